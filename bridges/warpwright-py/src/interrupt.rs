//! Ctrl-C while the emulator works.
//!
//! Python handles signals on its main thread, between instructions of its own. So the work runs on another thread, and the
//! calling one comes back to look for signals; what a handler raises ends the launch.

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use warpwright::Interrupt;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// Whether the work has ended, by a panic too.
#[derive(Default)]
struct Ended {
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Ended {
    /// Waits for the end, for a while.
    fn wait(&self) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(ended, LOOK, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Says so when it is dropped.
struct Says<'a>(&'a Ended);

impl Drop for Says<'_> {
    fn drop(&mut self) {
        *self.0.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.changed.notify_all();
    }
}

/// Does some work without the interpreter, with an interrupt that is raised when a signal handler of Python raises; then that
/// is the error, once the work has ended.
pub(crate) fn interruptible<R: Send>(
    py: Python<'_>,
    work: impl FnOnce(&Interrupt) -> R + Send,
) -> PyResult<R> {
    let interrupt = Interrupt::new();
    let ended = Ended::default();
    let (done, raised) = py.detach(|| {
        thread::scope(|scope| {
            let (interrupt, ended) = (&interrupt, &ended);
            let worker = scope.spawn(move || {
                let _says = Says(ended);
                work(interrupt)
            });
            let mut raised = None;
            while !ended.wait() {
                if raised.is_none()
                    && let Err(error) = Python::attach(|py| py.check_signals())
                {
                    interrupt.raise();
                    raised = Some(error);
                }
            }
            (worker.join(), raised)
        })
    });
    match (done, raised) {
        (Err(panic), _) => std::panic::resume_unwind(panic),
        (Ok(_), Some(error)) => Err(error),
        (Ok(result), None) => Ok(result),
    }
}
