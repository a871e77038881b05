//! Placeholder module documentation, replaced with the crate.
