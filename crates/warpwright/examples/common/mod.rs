//! Parts that the examples of whole models share: checkpoints, linear layers, and random weights for models without a checkpoint.

use std::process::ExitCode;

pub(crate) mod checkpoint;
pub(crate) mod codes;
pub(crate) mod linear;
pub(crate) mod random;
#[cfg(test)]
pub(crate) mod reference;

/// Results of the examples, whose errors are printed.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Says what went wrong, if anything did.
pub(crate) fn exit(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
