//! How execution goes on: for a warp after an instruction, for its block after a turn of the warp.

/// Why a warp stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// No group can go on before something else happens.
    Parked,
    /// All lanes have ended.
    Exited,
    /// It has spun for a while: others should run.
    Yielded,
    /// The launch ends: a fault, a trap, a limit or an interrupt.
    Stopped,
}

/// How the loop goes on after an operation that may block or end lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// The next instruction with the same lanes.
    Next,
    /// The groups were changed: choose again.
    Repick,
    Stop,
}
