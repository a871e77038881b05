//! Operations of the warps of a block and of the blocks of a cluster together.

use warpwright_ptx::BarRedOp;

use super::layout::Slot;

#[derive(Debug)]
pub(crate) enum BarrierDecoded {
    Sync,
    Arrive,
    Reduce { op: BarRedOp, dst: Slot, src: u32, negated: bool },
}

#[derive(Debug)]
pub(crate) struct BarrierOp {
    pub(crate) kind: BarrierDecoded,
    pub(crate) aligned: bool,
    pub(crate) id: u32,
    pub(crate) count: Option<u32>,
}

/// An instruction that concerns the blocks of a cluster.
#[derive(Debug)]
pub(crate) enum ClusterOp {
    /// `barrier.cluster.arrive`
    Arrive { aligned: bool, release: bool },
    /// `barrier.cluster.wait`
    Wait { aligned: bool },
    /// `mapa`, of generic addresses or of addresses in the shared window.
    Map { dst: Slot, a: Slot, rank: Slot, generic: bool },
    /// `getctarank`
    Rank { dst: Slot, a: Slot, generic: bool },
    /// `setmaxnreg`, which changes nothing here.
    SetMaxRegisters,
}
