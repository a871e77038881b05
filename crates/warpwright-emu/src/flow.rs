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

/// How the loop goes on after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// At the next instruction with the same lanes.
    Next,
    /// At this instruction with the same lanes.
    Jump(u32),
    /// With a group that is chosen anew: the groups were changed.
    Repick,
    /// The same, without having run: the instruction is counted when its lanes have come together.
    Gather,
    /// Not for now: the warp's turn ends like this.
    Leave(Outcome),
    /// Not at all: the launch ends at this instruction, which has not run.
    Stop,
}
