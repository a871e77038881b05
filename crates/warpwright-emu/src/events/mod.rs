//! Events of a run as `exec` tells them to the sanitizers: accesses, arrivals at barriers, asynchronous operations, and addresses
//! that no access may have. Data below both.

pub(crate) mod asynchronous;
pub(crate) mod barrier;
pub(crate) mod problem;
pub(crate) mod view;

use warpwright_ptx::{Ordering, Scope, Semantics};

use crate::report::Space;

/// Direction of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// A load.
    Read,
    /// A store.
    Write,
    /// A read-modify-write.
    Atomic,
}

/// Whether an access is strong, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strength {
    /// An ordinary load or store.
    Weak,
    /// Strong in the block.
    Cta,
    /// Strong in the cluster.
    Cluster,
    /// Strong on the device and beyond.
    Gpu,
}

impl Strength {
    /// The strength of a load or store with this ordering. Volatile accesses are relaxed at system scope; strong ones
    /// without a scope have the device's.
    pub const fn of(ordering: Ordering) -> Self {
        match (ordering.semantics, ordering.scope) {
            (Semantics::Weak, _) => Self::Weak,
            (Semantics::Volatile | Semantics::Mmio, _) => Self::Gpu,
            (_, Some(Scope::Cta)) => Self::Cta,
            (_, Some(Scope::Cluster)) => Self::Cluster,
            (_, Some(Scope::Gpu | Scope::Sys) | None) => Self::Gpu,
        }
    }

    /// The strength of an atomic or a reduction, which is relaxed at device scope unless it says otherwise.
    pub const fn of_atomic(ordering: Ordering) -> Self {
        match ordering.scope {
            Some(Scope::Cta) => Self::Cta,
            Some(Scope::Cluster) => Self::Cluster,
            Some(Scope::Gpu | Scope::Sys) | None => Self::Gpu,
        }
    }
}

/// One memory instruction of a warp.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Warp in the block, below 32.
    pub warp: u32,
    /// Decoded instruction.
    pub pc: u32,
    /// Bytes per lane, the whole vector; 1, 2, 4, 8, 16 or 32, and addresses are multiples of it.
    pub bytes: u32,
    /// Direction.
    pub kind: AccessKind,
    /// Strength.
    pub strength: Strength,
}

/// A strong access of a lane to the variable at an address: a device address, or an offset in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct StrongAccess {
    /// Shared memory, or global memory.
    pub space: Space,
    /// Where the variable is.
    pub address: u64,
    /// Warp in the block.
    pub warp: u32,
    /// Lane of the warp.
    pub lane: usize,
    /// Direction.
    pub kind: AccessKind,
    /// The order that it makes, and for whom.
    pub ordering: Ordering,
}

impl StrongAccess {
    /// Whether it is strong, and for whom.
    pub const fn strength(&self) -> Strength {
        match self.kind {
            AccessKind::Atomic => Strength::of_atomic(self.ordering),
            AccessKind::Read | AccessKind::Write => Strength::of(self.ordering),
        }
    }
}

/// Answers, when two threads wrote to one place, whether they wrote the same: `(lane, None)` whether memory already
/// holds what `lane` is about to write, `(lane, Some(other))` whether both lanes write the same bytes.
pub type SameValue<'a> = &'a dyn Fn(u32, Option<u32>) -> bool;

/// A warp that waits at a block barrier which opens now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Participant {
    /// Warp in the block.
    pub warp: u32,
    /// Its lanes that wait at the barrier.
    pub lanes: u32,
    /// Its lanes that have not exited.
    pub live: u32,
}
