//! Ctrl-C, and requests to end.
//!
//! The first signal raises an interrupt, which ends launches in the emulator, and which commands [`check`] between two
//! chunks, so that destructors remove what is half-written. What does not look in time (a read that blocks, a kernel on a GPU)
//! is ended by force: files that have no name yet are removed, then the process exits. A second signal does that at
//! once. Either way the exit code says which signal it was.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use warpwright_runtime::Interrupt;

use crate::error::Error;

/// Time that a command has to end by itself.
const GRACE: Duration = Duration::from_millis(600);
/// Time to say why the process ends, where standard error may be blocked.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// A signal that asks a process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// The terminal is gone.
    Hangup,
    /// Ctrl-C.
    Interrupt,
    /// A polite request.
    Terminate,
}

impl Signal {
    /// Those there are.
    pub const ALL: [Self; 3] = [Self::Hangup, Self::Interrupt, Self::Terminate];

    /// Its number.
    pub const fn number(self) -> i32 {
        match self {
            Self::Hangup => 1,
            Self::Interrupt => 2,
            Self::Terminate => 15,
        }
    }

    /// The exit code that shells report for a program that it ended.
    pub const fn exit_code(self) -> u8 {
        128 + self.number() as u8
    }

    fn of(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.number() == number)
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hangup => "SIGHUP",
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        })
    }
}

/// The number of the first signal; 0 before.
static RECEIVED: AtomicI32 = AtomicI32::new(0);
static INTERRUPT: LazyLock<Interrupt> = LazyLock::new(Interrupt::new);
/// Whether something that cannot be ended still runs, so that the process must not wait for it at its exit.
static ABANDONED: AtomicBool = AtomicBool::new(false);

/// Starts to listen. Where the system refuses, signals end the process as they always do.
pub fn listen() {
    LazyLock::force(&INTERRUPT);
    system::listen();
}

/// Ends launches in the emulator when a signal comes.
pub fn token() -> Interrupt {
    INTERRUPT.clone()
}

/// The signal that came, if one did.
pub fn signal() -> Option<Signal> {
    Signal::of(RECEIVED.load(Ordering::SeqCst))
}

/// Fails if the user wants to end.
///
/// # Errors
/// [`Error::Interrupted`].
pub fn check() -> Result<(), Error> {
    signal().map_or(Ok(()), |signal| Err(Error::Interrupted { signal }))
}

/// Says that a kernel was left running on a GPU: freeing its memory, or an orderly exit, would wait for it.
pub(crate) fn abandon() {
    ABANDONED.store(true, Ordering::SeqCst);
}

/// The end of the process, for a command that came to its end; returns if nothing was abandoned.
pub(crate) fn exit_if_abandoned(code: u8) {
    if ABANDONED.load(Ordering::SeqCst) {
        system::exit(code);
    }
}

/// A signal has come.
fn receive(signal: Signal) {
    if RECEIVED.compare_exchange(0, signal.number(), Ordering::SeqCst, Ordering::SeqCst).is_err() {
        end(self::signal().unwrap_or(signal));
    }
    INTERRUPT.raise();
    let timer = thread::Builder::new().spawn(move || {
        thread::sleep(GRACE);
        end(signal);
    });
    if timer.is_err() {
        end(signal);
    }
}

/// Ends the process from outside of whatever it does.
fn end(signal: Signal) -> ! {
    clean_up();
    let (said, heard) = std::sync::mpsc::channel();
    let _ = thread::Builder::new().spawn(move || {
        eprintln!("error: {}", Error::Interrupted { signal });
        let _ = said.send(());
    });
    let _ = heard.recv_timeout(LAST_WORDS);
    system::exit(signal.exit_code())
}

/// Files to remove if the process is ended by force, and who must not be interrupted.
#[derive(Debug, Default)]
struct Unfinished {
    paths: BTreeSet<PathBuf>,
    /// Files that come into being or get their name at this moment.
    busy: usize,
    /// From here on no file comes into being or gets its name.
    closed: bool,
}

static UNFINISHED: Mutex<Unfinished> =
    Mutex::new(Unfinished { paths: BTreeSet::new(), busy: 0, closed: false });
static CHANGED: Condvar = Condvar::new();

fn unfinished() -> MutexGuard<'static, Unfinished> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While it lives, the process is not ended by force: for steps that belong together, such as renaming several files.
#[derive(Debug)]
pub struct Busy(());

/// Keeps the process from being ended by force until the result is dropped. Waits for ever if that has begun.
pub fn busy() -> Busy {
    let mut unfinished = CHANGED
        .wait_while(unfinished(), |unfinished| unfinished.closed)
        .unwrap_or_else(PoisonError::into_inner);
    unfinished.busy += 1;
    Busy(())
}

impl Drop for Busy {
    fn drop(&mut self) {
        unfinished().busy -= 1;
        CHANGED.notify_all();
    }
}

/// A file or folder that is removed if the process is ended by force. Whoever makes it removes it otherwise.
#[derive(Debug)]
pub struct Leftover(PathBuf);

impl Leftover {
    /// Notes a path, which is made while `busy` lives.
    pub fn new(path: &Path, _busy: &Busy) -> Self {
        // A relative path means something else after a change of folder.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        unfinished().paths.insert(path.clone());
        Self(path)
    }
}

impl Drop for Leftover {
    fn drop(&mut self) {
        unfinished().paths.remove(&self.0);
    }
}

/// Removes what is unfinished, and lets nothing new come into being.
fn clean_up() {
    let mut unfinished = CHANGED
        .wait_while(unfinished(), |unfinished| unfinished.busy > 0)
        .unwrap_or_else(PoisonError::into_inner);
    unfinished.closed = true;
    for path in &unfinished.paths {
        // What is gone already need not go.
        let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    }
}

#[cfg(unix)]
mod system {
    use std::sync::mpsc;
    use std::thread;

    use signal_hook::iterator::Signals;

    use super::{Signal, receive};

    pub(super) fn listen() {
        let (give, take) = mpsc::channel::<Signals>();
        // First the thread, then the handlers: signals that nobody takes would be lost.
        let listener = thread::Builder::new().name("signals".to_owned()).spawn(move || {
            let Ok(mut signals) = take.recv() else { return };
            signals.forever().filter_map(Signal::of).for_each(receive);
        });
        let ignored = ignored();
        let wanted = Signal::ALL.into_iter().map(Signal::number);
        let wanted =
            wanted.filter(|number| *number != Signal::Hangup.number() || ignored >> (number - 1) & 1 == 0);
        if listener.is_ok()
            && let Ok(signals) = Signals::new(wanted)
        {
            // The listener waits for it.
            let _ = give.send(signals);
        }
    }

    /// The signals that the process was started to ignore, as `nohup` does with SIGHUP, on Linux.
    fn ignored() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    }

    /// Ends the process without the exit handlers of libraries, which may wait for what runs.
    pub(super) fn exit(code: u8) -> ! {
        signal_hook::low_level::exit(i32::from(code))
    }
}

#[cfg(not(unix))]
mod system {
    use super::{Signal, receive};

    pub(super) fn listen() {
        let _ = ctrlc::set_handler(|| receive(Signal::Interrupt));
    }

    pub(super) fn exit(code: u8) -> ! {
        std::process::exit(i32::from(code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_the_exit_codes_of_shells() {
        let codes = Signal::ALL.map(|signal| (signal.to_string(), signal.exit_code()));
        let expected = [("SIGHUP", 129), ("SIGINT", 130), ("SIGTERM", 143)];
        assert_eq!(codes, expected.map(|(name, code)| (name.to_owned(), code)));
        assert!(Signal::ALL.into_iter().all(|signal| Signal::of(signal.number()) == Some(signal)));
        assert_eq!(Signal::of(0), None);
        assert!(check().is_ok());
    }

    #[test]
    fn what_is_left_over_is_known_as_long_as_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("half");
        let known = || unfinished().paths.contains(&path);
        let busy = busy();
        let leftover = Leftover::new(&path, &busy);
        drop(busy);
        assert!(known());
        drop(leftover);
        assert!(!known());
    }
}
