//! Asynchronous copies, mbarriers, and the fences between proxies.

use warpwright_ptx::{AtomOp, BulkOp, Ordering, ScalarType, StateSpace, TensormapField};

use super::layout::Slot;
use super::tensor::LaneOp;

/// The memories of which the asynchronous proxy learns apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxied {
    /// Shared memory.
    Shared,
    /// Global memory.
    Global,
}

impl Proxied {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Shared, Self::Global];
}

/// Where an address comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) space: StateSpace,
    pub(crate) slot: Slot,
    pub(crate) offset: i64,
}

/// How much of its source a `cp.async` reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    Full,
    /// Row of byte counts.
    Bytes(u32),
    /// Nothing where this predicate is true.
    Ignore(u32),
}

/// The operator by which a bulk operation combines the bytes that it moves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction {
    pub(crate) op: BulkOp,
    /// Type of the elements; a tensor copy takes that of the map.
    pub(crate) ty: Option<ScalarType>,
}

/// How the end of a bulk operation shows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Mbarrier(Place),
    Group,
}

/// `mbarrier.arrive` and its family.
#[derive(Debug)]
pub(crate) struct Arrive {
    pub(crate) drop: bool,
    pub(crate) no_complete: bool,
    pub(crate) expect_tx: Option<u32>,
    pub(crate) count: Option<u32>,
    pub(crate) ordering: Ordering,
    pub(crate) dst: Option<Slot>,
    pub(crate) at: Place,
}

/// `mbarrier.test_wait` and `mbarrier.try_wait`
#[derive(Debug)]
pub(crate) struct WaitOn {
    pub(crate) suspends: bool,
    pub(crate) ordering: Ordering,
    pub(crate) dst: u32,
    pub(crate) at: Place,
    /// Row of parities, or slot of states.
    pub(crate) phase: Phase,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase {
    Parity(u32),
    State(Slot),
}

/// A copy of bytes that follow each other.
#[derive(Debug)]
pub(crate) struct Bulk {
    pub(crate) dst: Place,
    pub(crate) src: Place,
    pub(crate) bytes: u32,
    pub(crate) end: End,
    pub(crate) multicast: Option<Slot>,
    pub(crate) reduction: Option<Reduction>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    Load { dst: Place, barrier: Place, multicast: Option<Slot> },
    Store { src: Place, reduction: Option<Reduction> },
    Prefetch,
}

/// A copy of a box of a tensor.
#[derive(Debug)]
pub(crate) struct Tensor {
    pub(crate) direction: Direction,
    pub(crate) dims: usize,
    pub(crate) map: Place,
    /// Rows of coordinates.
    pub(crate) coords: Vec<u32>,
    /// The offsets of the im2col mode; `None` in the tiled one.
    pub(crate) offsets: Option<Vec<Slot>>,
}

/// A remote store with a count of bytes at an mbarrier.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) dst: Place,
    pub(crate) barrier: Place,
    pub(crate) srcs: Vec<Slot>,
    pub(crate) ty: ScalarType,
    pub(crate) op: Option<AtomOp>,
}

/// A decoded instruction of this family.
#[derive(Debug)]
pub(crate) enum Asynchronous {
    Copy {
        dst: Place,
        src: Place,
        bytes: u32,
        limit: Limit,
    },
    CopyCommit,
    /// At most so many groups stay pending; `None` for `wait_all`.
    CopyWait {
        pending: Option<u32>,
    },
    CopyArrive {
        noinc: bool,
        at: Place,
    },
    Init {
        at: Place,
        count: u32,
    },
    Inval {
        at: Place,
    },
    Arrive(Arrive),
    Wait(WaitOn),
    Tx {
        complete: bool,
        at: Place,
        bytes: u32,
    },
    PendingCount {
        dst: Slot,
        state: Slot,
    },
    Bulk(Bulk),
    BulkPrefetch {
        at: Place,
        bytes: u32,
    },
    BulkCommit,
    BulkWait {
        read: bool,
        pending: u32,
    },
    Tensor(Tensor),
    Remote(Remote),
    /// Every thread writes zeros, as a store.
    Zero {
        at: Place,
        bytes: Slot,
    },
    Replace {
        field: TensormapField,
        at: Place,
        index: Option<u32>,
        value: Slot,
    },
    CopyMap {
        dst: Place,
        src: Place,
    },
    FenceProxy(&'static [Proxied]),
    FenceInit,
    TensorCore(LaneOp),
    /// Nothing to do here: a fence of a proxy that is not told apart from the generic one, or a prefetch.
    FenceOther,
}
