//! The sanitizers that watch order: who may access what when, and who waits for whom.
//!
//! [`racecheck`] finds conflicting accesses that nothing orders; [`synccheck`] finds barriers and warp collectives that
//! are used wrongly.

pub(crate) mod deadlock;
pub(crate) mod memcheck;
pub mod racecheck;
pub mod synccheck;
