//! The fifth generation of tensor cores.

use warpwright_ptx::{Tcgen05Access, Tcgen05CopyShape, Tcgen05Kind, Tcgen05Multicast};

use super::asynchronous::Place;
use super::layout::Slot;

/// An address in tensor memory: a row of 32 bits, and what is added to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) row: u32,
    pub(crate) offset: u32,
}

/// An instruction of a whole warp.
#[derive(Debug)]
pub(crate) enum WarpOp {
    Alloc {
        at: Place,
        columns: u32,
    },
    Dealloc {
        memory: u32,
        columns: u32,
    },
    Relinquish,
    Load {
        access: Tcgen05Access,
        memory: Address,
        dsts: Vec<u32>,
        /// Slots in which the state of the registers is kept.
        slots: Vec<u32>,
    },
    Store {
        access: Tcgen05Access,
        memory: Address,
        srcs: Vec<u32>,
    },
    Wait {
        stores: bool,
    },
}

/// A of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// Row of 64 bits with a descriptor.
    Descriptor(u32),
    Memory(Address),
}

/// The scales of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scales {
    pub(crate) a: Address,
    pub(crate) b: Address,
    /// Scales of a row.
    pub(crate) per_row: u32,
}

/// A product.
#[derive(Debug)]
pub(crate) struct Product {
    /// Whether a pair of blocks shares it.
    pub(crate) pair: bool,
    pub(crate) kind: Tcgen05Kind,
    pub(crate) d: Address,
    pub(crate) a: Source,
    /// Row of 64 bits with the descriptor of B.
    pub(crate) b: u32,
    /// Row with the instruction descriptor.
    pub(crate) descriptor: u32,
    /// Rows with masks of lanes that are not written.
    pub(crate) disabled: Vec<u32>,
    /// The predicate by which D is added to.
    pub(crate) accumulate: u32,
    /// D is divided by two to this power.
    pub(crate) scale_d: u8,
    pub(crate) scales: Option<Scales>,
}

/// An instruction that every lane runs for itself.
#[derive(Debug)]
pub(crate) enum LaneOp {
    Fence {
        after: bool,
    },
    Commit {
        at: Place,
        multicast: Option<Slot>,
    },
    /// By both blocks of a pair, if it says so.
    Copy {
        pair: bool,
        shape: Tcgen05CopyShape,
        multicast: Option<Tcgen05Multicast>,
        memory: Address,
        descriptor: u32,
    },
    Product(Product),
}
