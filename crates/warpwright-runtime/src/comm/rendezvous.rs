//! How processes find each other: rank 0 makes the identity of a communicator, and the others fetch it.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{CommFailure, Trouble};

/// Bytes of the identity of a communicator, as NCCL has it.
pub(crate) const ID_BYTES: usize = 128;

/// Begins what a rank says, so that a stranger on the port or in the file is noticed.
const MAGIC: [u8; 8] = *b"wwcomm1\n";
const GREETING_BYTES: usize = MAGIC.len() + 8;
const ANSWER_BYTES: usize = MAGIC.len() + 4 + ID_BYTES;
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(20);
/// How long one of several addresses of a name is tried at a time.
const ONE_ADDRESS: Duration = Duration::from_secs(5);

/// Where the processes of a communicator meet, and which of them this is.
///
/// Whoever reaches the place can join in the name of a rank: use a network that can be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    rank: usize,
    size: usize,
    local_rank: Option<usize>,
    place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Tcp(String),
    File(PathBuf),
}

impl Rendezvous {
    /// At a TCP address, such as `10.0.0.1:29500`, where rank 0 listens.
    ///
    /// # Errors
    /// [`CommFailure::Rank`] if `rank` is not below `size`.
    pub fn tcp(address: impl Into<String>, rank: usize, size: usize) -> Result<Self, CommFailure> {
        Self::at(Place::Tcp(address.into()), rank, size)
    }

    /// At a file that all processes see, and that is not there before. Rank 0 writes it, and removes it when all have come.
    ///
    /// # Errors
    /// [`CommFailure::Rank`] if `rank` is not below `size`.
    pub fn file(path: impl Into<PathBuf>, rank: usize, size: usize) -> Result<Self, CommFailure> {
        Self::at(Place::File(path.into()), rank, size)
    }

    /// From `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`, as `torchrun` sets them. Where it keeps the port to itself
    /// (`TORCHELASTIC_USE_AGENT_STORE`) the next one is taken; `WARPWRIGHT_PORT` goes before both.
    ///
    /// # Errors
    /// [`CommFailure::Rendezvous`] names a variable that is missing or no number; [`CommFailure::Rank`] as [`Rendezvous::tcp`].
    pub fn from_environment() -> Result<Self, CommFailure> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Self, CommFailure> {
        let refuse = |name: &str, reason: &str| CommFailure::Rendezvous {
            place: name.to_owned(),
            reason: reason.to_owned(),
        };
        let text = |name: &str| get(name).ok_or_else(|| refuse(name, "the variable is not set"));
        let number = |name: &str, text: String| {
            text.trim().parse::<usize>().map_err(|_| refuse(name, &format!("`{text}` is no number")))
        };
        let port = |name: &str, text: String| {
            text.trim().parse::<u16>().map_err(|_| refuse(name, &format!("`{text}` is no port")))
        };
        let (rank, size) = (number("RANK", text("RANK")?)?, number("WORLD_SIZE", text("WORLD_SIZE")?)?);
        let local_rank = get("LOCAL_RANK").map(|text| number("LOCAL_RANK", text)).transpose()?;
        let host = text("MASTER_ADDR")?;
        let taken = get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|text| text.eq_ignore_ascii_case("true"));
        let port = match get("WARPWRIGHT_PORT") {
            Some(text) => port("WARPWRIGHT_PORT", text)?,
            None => {
                let base = port("MASTER_PORT", text("MASTER_PORT")?)?;
                base.checked_add(taken.into())
                    .ok_or_else(|| refuse("MASTER_PORT", "there is no port after it"))?
            }
        };
        // An IPv6 address stands in brackets before a port.
        let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        Ok(Self { local_rank, ..Self::at(Place::Tcp(address), rank, size)? })
    }

    fn at(place: Place, rank: usize, size: usize) -> Result<Self, CommFailure> {
        if rank >= size || u32::try_from(size).is_err() {
            return Err(CommFailure::Rank { argument: "rank", got: rank, size });
        }
        Ok(Self { rank, size, local_rank: None, place })
    }

    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many processes there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The rank among the processes of this machine, which is the number of its GPU, if the environment tells.
    pub fn local_rank(&self) -> Option<usize> {
        self.local_rank
    }

    /// The identity that rank 0 makes, on every rank.
    pub(super) fn share(
        &self,
        make: impl FnOnce() -> Result<[u8; ID_BYTES], Trouble>,
        timeout: Duration,
    ) -> Result<[u8; ID_BYTES], Trouble> {
        let deadline = Deadline { began: Instant::now(), timeout };
        match (&self.place, self.rank) {
            (_, 0) if self.size == 1 => make(),
            (Place::Tcp(address), 0) => {
                // Before the identity is made: a port that is taken should cost nothing.
                let listener = self.listen(address)?;
                let id = make()?;
                self.serve(&listener, &id, &deadline)?;
                Ok(id)
            }
            (Place::Tcp(address), _) => Ok(self.fetch(address, &deadline)?),
            (Place::File(path), 0) => {
                if path.exists() {
                    return Err(self.refuse("the file is there already, of another run").into());
                }
                let id = make()?;
                self.write(path, &id)?;
                Ok(id)
            }
            (Place::File(path), _) => Ok(self.read(path, &deadline)?),
        }
    }

    /// Clears up after [`Self::share`], when all ranks have come or cannot any more.
    pub(super) fn done(&self) {
        // One rank alone has written nothing.
        if let (Place::File(path), 0, 2..) = (&self.place, self.rank, self.size) {
            // Left behind it stops the next run, which says why.
            let _ = std::fs::remove_file(path);
        }
    }

    fn refuse(&self, reason: impl ToString) -> CommFailure {
        let place = match &self.place {
            Place::Tcp(address) => address.clone(),
            Place::File(path) => path.display().to_string(),
        };
        CommFailure::Rendezvous { place, reason: reason.to_string() }
    }

    fn listen(&self, address: &str) -> Result<TcpListener, CommFailure> {
        let listener =
            TcpListener::bind(address).map_err(|error| self.refuse(format!("cannot listen: {error}")))?;
        listener.set_nonblocking(true).map_err(|error| self.refuse(error))?;
        Ok(listener)
    }

    fn greeting(&self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        let (magic, numbers) = bytes.split_at_mut(MAGIC.len());
        magic.copy_from_slice(&MAGIC);
        // Both are below 2^32: see `at`.
        numbers[..4].copy_from_slice(&(self.rank as u32).to_le_bytes());
        numbers[4..].copy_from_slice(&(self.size as u32).to_le_bytes());
        bytes
    }

    /// The rank that a greeting names; `None` if it is no greeting.
    fn greeted(&self, bytes: &[u8; GREETING_BYTES]) -> Option<Result<usize, CommFailure>> {
        let numbers = bytes.strip_prefix(&MAGIC)?;
        let number = |at: usize| {
            u32::from_le_bytes([numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3]]) as usize
        };
        let (rank, size) = (number(0), number(4));
        Some(if size != self.size {
            Err(self.refuse(format!("rank {rank} was told of {size} ranks, rank 0 of {}", self.size)))
        } else if rank == 0 || rank >= size {
            Err(self.refuse(format!("there is no place for another rank {rank} of {size}")))
        } else {
            Ok(rank)
        })
    }

    fn serve(
        &self,
        listener: &TcpListener,
        id: &[u8; ID_BYTES],
        deadline: &Deadline,
    ) -> Result<(), CommFailure> {
        let mut came: Vec<Option<TcpStream>> = Vec::new();
        came.resize_with(self.size, || None);
        if let Err(failure) = self.gather(listener, &mut came, deadline) {
            for stream in came.iter_mut().flatten() {
                tell(stream, &failure);
            }
            return Err(failure);
        }
        let answer = self.answer(id);
        for (rank, stream) in came.iter_mut().enumerate() {
            let Some(stream) = stream else { continue };
            let told = deadline.limit(stream).and_then(|()| stream.write_all(&answer));
            told.map_err(|error| self.refuse(format!("rank {rank} has hung up: {error}")))?;
        }
        Ok(())
    }

    /// Waits until every other rank is here. None is waited for alone: a stranger that says nothing keeps nobody out.
    fn gather(
        &self,
        listener: &TcpListener,
        came: &mut [Option<TcpStream>],
        deadline: &Deadline,
    ) -> Result<(), CommFailure> {
        let mut callers: Vec<Caller> = Vec::new();
        loop {
            loop {
                match listener.accept() {
                    Ok((stream, _)) => callers.extend(Caller::new(stream)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // It has hung up before it was its turn.
                    Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                    Err(error) => return Err(self.refuse(error)),
                }
            }
            for mut caller in std::mem::take(&mut callers) {
                match caller.listen() {
                    Ok(true) => self.admit(caller, came)?,
                    Ok(false) => callers.push(caller),
                    Err(_) => {}
                }
            }
            for place in came.iter_mut() {
                // A rank that was started anew comes again.
                place.take_if(|stream| hung_up(stream));
            }
            let missing: Vec<usize> = (1..self.size).filter(|rank| came[*rank].is_none()).collect();
            if missing.is_empty() {
                return Ok(());
            }
            deadline.pause(missing)?;
        }
    }

    /// Gives a caller the place of its rank; a stranger gets none.
    fn admit(&self, mut caller: Caller, came: &mut [Option<TcpStream>]) -> Result<(), CommFailure> {
        let Some(rank) = self.greeted(&caller.greeting) else { return Ok(()) };
        let free = rank.and_then(|rank| match &came[rank] {
            Some(stream) if !hung_up(stream) => Err(self.refuse(format!("there are two ranks {rank}"))),
            _ => Ok(rank),
        });
        match free {
            Ok(rank) => came[rank] = Some(caller.stream),
            Err(failure) => {
                tell(&mut caller.stream, &failure);
                return Err(failure);
            }
        }
        Ok(())
    }

    fn fetch(&self, address: &str, deadline: &Deadline) -> Result<[u8; ID_BYTES], CommFailure> {
        let mut stream = loop {
            let addresses: Vec<SocketAddr> = address
                .to_socket_addrs()
                .map_err(|error| self.refuse(format!("no such address: {error}")))?
                .collect();
            // One that does not answer leaves time for the next.
            let patience = deadline.left().min(ONE_ADDRESS).max(PAUSE);
            let connect = |at: &SocketAddr| TcpStream::connect_timeout(at, patience).ok();
            match addresses.iter().find_map(connect) {
                Some(stream) => break stream,
                // Rank 0 may begin later.
                None => deadline.pause(vec![0])?,
            }
        };
        let io = |error: std::io::Error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => deadline.failure(vec![0]),
            _ => self.refuse(format!("rank 0 has hung up: {error}")),
        };
        deadline.limit(&stream).map_err(io)?;
        stream.write_all(&self.greeting()).map_err(io)?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES as u64).read_to_end(&mut answer).map_err(io)?;
        self.identity(&answer)
    }

    /// The bytes that rank 0 answers with, or leaves in a file, with the identity.
    fn answer(&self, id: &[u8; ID_BYTES]) -> Vec<u8> {
        // Below 2^32: see `at`.
        [&MAGIC, &(self.size as u32).to_le_bytes()[..], id].concat()
    }

    /// The identity in such an answer.
    fn identity(&self, answer: &[u8]) -> Result<[u8; ID_BYTES], CommFailure> {
        if answer.is_empty() {
            return Err(self.refuse("rank 0 has hung up"));
        }
        let rest = answer.strip_prefix(&MAGIC).and_then(<[u8]>::split_first_chunk::<4>);
        let Some((size, id)) = rest else {
            let said = String::from_utf8_lossy(answer);
            return Err(self.refuse(format!("rank 0 did not answer with an identity: {}", said.trim())));
        };
        let size = u32::from_le_bytes(*size) as usize;
        if size != self.size {
            return Err(
                self.refuse(format!("rank 0 was told of {size} ranks, rank {} of {}", self.rank, self.size))
            );
        }
        id.try_into().map_err(|_| self.refuse("the identity is cut short"))
    }

    fn write(&self, path: &Path, id: &[u8; ID_BYTES]) -> Result<(), CommFailure> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let write = || -> std::io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            file.write_all(&self.answer(id))?;
            file.as_file().sync_all()?;
            file.persist_noclobber(path)?;
            Ok(())
        };
        write().map_err(|error| self.refuse(error))
    }

    fn read(&self, path: &Path, deadline: &Deadline) -> Result<[u8; ID_BYTES], CommFailure> {
        loop {
            match std::fs::read(path) {
                Ok(bytes) => return self.identity(&bytes),
                Err(error) if error.kind() == ErrorKind::NotFound => deadline.pause(vec![0])?,
                Err(error) => return Err(self.refuse(error)),
            }
        }
    }
}

/// A connection that has not said yet which rank it is.
struct Caller {
    stream: TcpStream,
    greeting: [u8; GREETING_BYTES],
    heard: usize,
}

impl Caller {
    fn new(stream: TcpStream) -> Option<Self> {
        stream.set_nonblocking(true).ok()?;
        Some(Self { stream, greeting: [0; GREETING_BYTES], heard: 0 })
    }

    /// Takes what has arrived: whether the greeting is complete. An error if no more will come.
    fn listen(&mut self) -> std::io::Result<bool> {
        while self.heard < GREETING_BYTES {
            match self.stream.read(&mut self.greeting[self.heard..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => self.heard += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Whether the other end of a connection, which does not block, is closed.
fn hung_up(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(bytes) => bytes == 0,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
    }
}

/// Tells a rank why it waits in vain. If it is gone itself it need not know.
fn tell(stream: &mut TcpStream, failure: &CommFailure) {
    let _ = stream.write_all(failure.to_string().as_bytes());
}

struct Deadline {
    began: Instant,
    timeout: Duration,
}

impl Deadline {
    fn left(&self) -> Duration {
        self.timeout.saturating_sub(self.began.elapsed())
    }

    fn failure(&self, missing: Vec<usize>) -> CommFailure {
        CommFailure::TimedOut { after: self.timeout, missing }
    }

    /// Waits a moment; an error once the time is over.
    fn pause(&self, missing: Vec<usize>) -> Result<(), CommFailure> {
        if self.left().is_zero() {
            return Err(self.failure(missing));
        }
        std::thread::sleep(PAUSE.min(self.left()));
        Ok(())
    }

    fn limit(&self, stream: &TcpStream) -> std::io::Result<()> {
        stream.set_nonblocking(false)?;
        let left = Some(self.left().max(PAUSE));
        stream.set_read_timeout(left)?;
        stream.set_write_timeout(left)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(200);
    const ID: [u8; ID_BYTES] = [7; ID_BYTES];

    fn free_address() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address").to_string()
    }

    fn meet(ranks: Vec<Rendezvous>, timeout: Duration) -> Vec<Result<[u8; ID_BYTES], String>> {
        let run = move |rank: Rendezvous| {
            rank.share(|| Ok(ID), timeout).map_err(|trouble| match trouble {
                Trouble::Ranks(failure) => failure.to_string(),
                Trouble::Device(error) => error.to_string(),
            })
        };
        let threads: Vec<_> = ranks.into_iter().map(|rank| thread::spawn(move || run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    }

    #[test]
    fn all_ranks_get_the_identity() {
        let address = free_address();
        // Rank 0 comes last.
        let ranks = (0..4).rev().map(|rank| Rendezvous::tcp(&address, rank, 4).expect("a rank")).collect();
        assert_eq!(meet(ranks, LONG), vec![Ok(ID); 4]);

        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("id");
        let ranks: Vec<_> =
            (0..3).rev().map(|rank| Rendezvous::file(&path, rank, 3).expect("a rank")).collect();
        assert_eq!(meet(ranks.clone(), LONG), vec![Ok(ID); 3]);
        let again = meet(vec![ranks[2].clone()], SHORT);
        assert!(again[0].as_ref().is_err_and(|error| error.contains("there already")), "{again:?}");
        ranks[2].done();
        assert!(!path.exists());
    }

    #[test]
    fn a_rank_that_does_not_come_is_named() {
        let address = free_address();
        let ranks = [0, 2].map(|rank| Rendezvous::tcp(&address, rank, 4).expect("a rank"));
        let outcome = meet(ranks.to_vec(), SHORT);
        assert!(outcome[0].as_ref().is_err_and(|error| error.contains("from ranks [1, 3]")), "{outcome:?}");
        // Rank 2 hears it from rank 0, unless its own time is over before.
        assert!(outcome[1].is_err(), "{outcome:?}");
        let outcome = meet(vec![ranks[1].clone()], SHORT);
        assert!(outcome[0].as_ref().is_err_and(|error| error.contains("from rank 0")), "{outcome:?}");
    }

    #[test]
    fn ranks_that_contradict_each_other_are_named() {
        let address = free_address();
        let of = |rank, size| Rendezvous::tcp(&address, rank, size).expect("a rank");
        let outcome = meet(vec![of(0, 2), of(1, 3)], LONG);
        for side in &outcome {
            assert!(
                side.as_ref().is_err_and(|error| error.contains("rank 1 was told of 3 ranks")),
                "{outcome:?}"
            );
        }
        assert!(Rendezvous::tcp(&address, 2, 2).is_err_and(|error| error.to_string().contains("rank 2")));
        // A stranger is no rank, and keeps nobody out.
        let rank = of(0, 2);
        let listener = rank.listen(&address).expect("a listener");
        let mut stranger = TcpStream::connect(&address).expect("a connection");
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
        let other = thread::spawn({
            let rank = of(1, 2);
            move || rank.share(|| Ok(ID), LONG).is_ok_and(|id| id == ID)
        });
        let deadline = Deadline { began: Instant::now(), timeout: LONG };
        rank.serve(&listener, &ID, &deadline).expect("served");
        assert!(other.join().expect("no panic"));
    }

    /// A rank 1 of two that comes after `before` has used the port.
    fn comes_after(before: impl FnOnce(&str) -> Option<TcpStream>) {
        let address = free_address();
        let of = |rank| Rendezvous::tcp(&address, rank, 2).expect("a rank");
        let (first, second) = (of(0), of(1));
        let listener = first.listen(&address).expect("a listener");
        let _open = before(&address);
        let other = thread::spawn(move || second.share(|| Ok(ID), LONG).is_ok_and(|id| id == ID));
        let deadline = Deadline { began: Instant::now(), timeout: LONG };
        first.serve(&listener, &ID, &deadline).expect("served");
        assert!(other.join().expect("no panic"));
    }

    #[test]
    fn a_stranger_that_says_nothing_keeps_nobody_out() {
        comes_after(|address| Some(TcpStream::connect(address).expect("a connection")));
    }

    #[test]
    fn a_rank_that_has_hung_up_may_come_again() {
        comes_after(|address| {
            let mut early = TcpStream::connect(address).expect("a connection");
            let greeting = Rendezvous::tcp(address, 1, 2).expect("a rank").greeting();
            early.write_all(&greeting).expect("sent");
            None
        });
    }

    #[test]
    fn ranks_that_wait_hear_why_they_wait_in_vain() {
        let address = free_address();
        let rank = Rendezvous::tcp(&address, 0, 3).expect("a rank");
        let listener = rank.listen(&address).expect("a listener");
        let waiting = Rendezvous::tcp(&address, 1, 3).expect("a rank");
        let other = thread::spawn(move || meet(vec![waiting], LONG));
        let deadline = Deadline { began: Instant::now(), timeout: SHORT * 5 };
        let failure = rank.serve(&listener, &ID, &deadline).expect_err("no rank 2");
        let CommFailure::TimedOut { missing, .. } = &failure else { panic!("{failure}") };
        assert_eq!(missing, &[2]);
        let heard = other.join().expect("no panic");
        assert!(heard[0].as_ref().is_err_and(|error| error.contains(&failure.to_string())), "{heard:?}");
    }

    #[test]
    fn one_rank_alone_leaves_files_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("mine");
        std::fs::write(&path, "precious").expect("written");
        let rank = Rendezvous::file(&path, 0, 1).expect("a rank");
        assert_eq!(meet(vec![rank.clone()], LONG), [Ok(ID)]);
        rank.done();
        assert_eq!(std::fs::read(&path).expect("still there"), b"precious");
    }

    #[test]
    fn the_environment_of_torchrun() {
        let set = [
            ("RANK", "3"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "node0"),
            ("MASTER_PORT", "29500"),
        ];
        let read = |more: &[(&str, &str)]| {
            let all: Vec<_> =
                more.iter().chain(&set).map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            let get =
                |name: &str| all.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone()).filter(|v| v != "-");
            Rendezvous::from_variables(get)
        };
        let found = read(&[]).expect("complete");
        assert_eq!((found.rank(), found.size(), found.local_rank()), (3, 8, Some(1)));
        assert_eq!(found.place, Place::Tcp("node0:29500".into()));
        let found =
            read(&[("TORCHELASTIC_USE_AGENT_STORE", "True"), ("MASTER_ADDR", "::1")]).expect("complete");
        assert_eq!(found.place, Place::Tcp("[::1]:29501".into()));
        assert_eq!(read(&[("WARPWRIGHT_PORT", "7")]).expect("complete").place, Place::Tcp("node0:7".into()));
        for (name, value, word) in
            [("RANK", "-", "not set"), ("WORLD_SIZE", "x", "no number"), ("MASTER_PORT", "99999", "no port")]
        {
            let error = read(&[(name, value)]).expect_err("a fault").to_string();
            assert!(error.contains(name) && error.contains(word), "{error}");
        }
    }
}
