//! Ranks of one process over emulators: calls meet in memory of the host.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::combine::reduce;
use super::{Call, CommFailure, Kind, Signature, Transport, Trouble};
use crate::stream::Stream;

/// The elements of one rank for one call.
#[derive(Clone)]
struct Post {
    signature: Signature,
    bytes: Arc<[u8]>,
}

/// One collective call, as far as its ranks have come.
struct Round {
    posts: Vec<Option<Post>>,
    /// Ranks that have their result.
    taken: usize,
}

/// Messages from one rank to another.
#[derive(Default)]
struct Mailbox {
    waiting: VecDeque<Post>,
    sent: u64,
    taken: u64,
}

#[derive(Default)]
struct State {
    /// By their number in the order of calls.
    rounds: HashMap<u64, Round>,
    mail: HashMap<(usize, usize), Mailbox>,
    /// Of each rank that will not come any more, the reason.
    gone: Vec<Option<String>>,
}

struct World {
    size: usize,
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

impl World {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, rank: usize, reason: &str) {
        let mut state = self.lock();
        if let Some(gone) = state.gone.get_mut(rank) {
            gone.get_or_insert_with(|| reason.to_owned());
        }
        self.changed.notify_all();
    }
}

/// One rank.
pub(super) struct InProcess {
    rank: usize,
    world: Arc<World>,
    /// How many collective calls it has made. Held while a call runs: one thread at a time.
    calls: Mutex<u64>,
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InProcess({} of {})", self.rank, self.world.size)
    }
}

/// The event that a call has yet to wait for.
enum Pending {
    Round(u64),
    Received { from: usize },
    Taken { to: usize, nth: u64 },
}

impl InProcess {
    pub(super) fn ranks(size: usize, timeout: Duration) -> Vec<Self> {
        let state = Mutex::new(State { gone: vec![None; size], ..State::default() });
        let world = Arc::new(World { size, timeout, state, changed: Condvar::new() });
        (0..size).map(|rank| Self { rank, world: world.clone(), calls: Mutex::new(0) }).collect()
    }

    fn usable(&self) -> Result<(), CommFailure> {
        match self.world.lock().gone[self.rank].clone() {
            Some(reason) => Err(CommFailure::Unusable { reason }),
            None => Ok(()),
        }
    }

    /// Makes the elements of a call known to the others.
    fn post(&self, state: &mut State, next: &mut u64, call: &Call, bytes: Arc<[u8]>) -> Pending {
        let post = Post { signature: call.signature(), bytes };
        match call.kind {
            Kind::Send { to } => {
                let mailbox = state.mail.entry((self.rank, to)).or_default();
                mailbox.waiting.push_back(post);
                mailbox.sent += 1;
                Pending::Taken { to, nth: mailbox.sent }
            }
            Kind::Receive { from } => Pending::Received { from },
            _ => {
                let number = *next;
                *next += 1;
                let empty = || Round { posts: vec![None; self.world.size], taken: 0 };
                state.rounds.entry(number).or_insert_with(empty).posts[self.rank] = Some(post);
                Pending::Round(number)
            }
        }
    }

    /// The posts that make a call complete; `None` if it has to wait for the ranks in the list.
    fn poll(
        &self,
        state: &mut State,
        call: &Call,
        pending: &Pending,
    ) -> Result<Result<Vec<Post>, Vec<usize>>, CommFailure> {
        match *pending {
            Pending::Round(number) => {
                let Some(round) = state.rounds.get_mut(&number) else { return Ok(Ok(Vec::new())) };
                let posted = || round.posts.iter().enumerate();
                let other = posted().find_map(|(rank, post)| {
                    post.as_ref()
                        .filter(|post| post.signature != call.signature())
                        .map(|post| (rank, post.signature))
                });
                if let Some((other, theirs)) = other {
                    return Err(mismatch(call, other, theirs));
                }
                let missing: Vec<usize> =
                    posted().filter(|(_, post)| post.is_none()).map(|(rank, _)| rank).collect();
                if !missing.is_empty() {
                    return Ok(Err(missing));
                }
                let posts = round.posts.iter().flatten().cloned().collect();
                round.taken += 1;
                if round.taken == self.world.size {
                    state.rounds.remove(&number);
                }
                Ok(Ok(posts))
            }
            Pending::Received { from } => {
                let mailbox = state.mail.entry((from, self.rank)).or_default();
                let Some(post) = mailbox.waiting.pop_front() else { return Ok(Err(vec![from])) };
                mailbox.taken += 1;
                self.world.changed.notify_all();
                let Signature { dtype, count, .. } = post.signature;
                if (dtype, count) != (call.dtype, call.count) {
                    return Err(mismatch(call, from, post.signature));
                }
                Ok(Ok(vec![post]))
            }
            Pending::Taken { to, nth } => {
                let taken = state.mail.get(&(self.rank, to)).map_or(0, |mailbox| mailbox.taken);
                Ok(if taken >= nth { Ok(Vec::new()) } else { Err(vec![to]) })
            }
        }
    }

    /// Waits until a call is complete.
    fn wait(&self, call: &Call, pending: &Pending, began: Instant) -> Result<Vec<Post>, CommFailure> {
        let world = &*self.world;
        let mut state = world.lock();
        loop {
            if let Some(reason) = &state.gone[self.rank] {
                return Err(CommFailure::Unusable { reason: reason.clone() });
            }
            let missing = match self.poll(&mut state, call, pending)? {
                Ok(posts) => return Ok(posts),
                Err(missing) => missing,
            };
            let gone =
                missing.iter().find_map(|rank| state.gone[*rank].clone().map(|reason| (*rank, reason)));
            if let Some((other, reason)) = gone {
                return Err(CommFailure::Gone { other, reason });
            }
            let Some(left) = world.timeout.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) else {
                return Err(CommFailure::TimedOut { after: world.timeout, missing });
            };
            state = world.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The elements that a complete call leaves in its target.
    fn result(&self, call: &Call, posts: &[Post]) -> Vec<u8> {
        let all: Vec<&[u8]> = posts.iter().map(|post| &*post.bytes).collect();
        let part = usize::try_from(call.count).unwrap_or(usize::MAX).saturating_mul(call.dtype.bytes());
        let own = |bytes: &[u8]| bytes[self.rank * part..][..part].to_vec();
        match call.kind {
            Kind::AllReduce(reduction) => reduce(reduction, call.dtype, &all),
            Kind::ReduceScatter(reduction) => {
                let parts: Vec<&[u8]> = all.iter().map(|bytes| &bytes[self.rank * part..][..part]).collect();
                reduce(reduction, call.dtype, &parts)
            }
            Kind::AllGather => all.concat(),
            Kind::AllToAll => all.iter().flat_map(|bytes| own(bytes)).collect(),
            Kind::Broadcast { root } => all[root].to_vec(),
            Kind::Receive { .. } => all.concat(),
            Kind::Send { .. } | Kind::Barrier => Vec::new(),
        }
    }

    fn exchange(&self, next: &mut u64, stream: &Stream, calls: &[Call]) -> Result<(), Trouble> {
        let backend = stream.device().backend();
        let mut sources = Vec::new();
        for call in calls {
            let mut bytes = vec![0; usize::try_from(call.source_bytes()).unwrap_or(usize::MAX)];
            if !bytes.is_empty() {
                backend.copy_to_host(stream.handle(), &mut bytes, call.source.0)?;
            }
            sources.push(Arc::from(bytes));
        }
        let began = Instant::now();
        let mut pending: Vec<(&Call, Pending)> = {
            let mut state = self.world.lock();
            let post = |(call, bytes)| (call, self.post(&mut state, next, call, bytes));
            calls.iter().zip(sources).map(post).collect()
        };
        self.world.changed.notify_all();
        // What others wait for comes first: that this rank takes its messages.
        pending.sort_by_key(|(_, pending)| match pending {
            Pending::Received { .. } => 0,
            Pending::Round(_) => 1,
            Pending::Taken { .. } => 2,
        });
        for (call, pending) in &pending {
            let posts = self.wait(call, pending, began)?;
            let bytes = self.result(call, &posts);
            if !bytes.is_empty() {
                backend.copy_to_device(stream.handle(), call.target.0, &bytes)?;
            }
        }
        Ok(())
    }
}

fn mismatch(call: &Call, other: usize, theirs: Signature) -> CommFailure {
    CommFailure::Mismatch { other, this: call.signature().to_string(), theirs: theirs.to_string() }
}

impl Transport for InProcess {
    fn run(&self, stream: &Stream, calls: &[Call]) -> Result<(), Trouble> {
        stream.forbid_capture("a collective call between emulators")?;
        let mut next = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        self.usable()?;
        let outcome = self.exchange(&mut next, stream, calls);
        // Ranks no longer agree on what comes next.
        match &outcome {
            Err(Trouble::Ranks(failure)) => self.world.leave(self.rank, &failure.to_string()),
            Err(Trouble::Device(error)) => self.world.leave(self.rank, &error.to_string()),
            Ok(()) => {}
        }
        outcome
    }

    fn synchronize(&self, stream: &Stream) -> Result<(), Trouble> {
        stream.synchronize()?;
        Ok(self.usable()?)
    }

    fn abort(&self, reason: &str) {
        self.world.leave(self.rank, reason);
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.world
            .leave(self.rank, if std::thread::panicking() { "its thread panicked" } else { "it has ended" });
    }
}
