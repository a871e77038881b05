//! Parts that the examples of whole models share: checkpoints, linear layers, and random weights for models without a checkpoint.

pub(crate) mod checkpoint;
pub(crate) mod codes;
pub(crate) mod linear;
pub(crate) mod random;
#[cfg(test)]
pub(crate) mod reference;

/// Results of the examples, whose errors are printed.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
