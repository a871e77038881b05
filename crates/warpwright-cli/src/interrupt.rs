//! Ctrl-C, and a request to end: noticed between two chunks, so that destructors remove what is half-written.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Error;

static ASKED: AtomicBool = AtomicBool::new(false);

/// Starts to listen. A second Ctrl-C ends the process at once.
///
/// Where the system refuses the handler, Ctrl-C ends the process as it always does.
pub fn listen() {
    let _ = ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
    });
}

/// Fails if the user wants to end.
///
/// # Errors
/// [`Error::Interrupted`].
pub fn check() -> Result<(), Error> {
    if ASKED.load(Ordering::SeqCst) { Err(Error::Interrupted) } else { Ok(()) }
}
