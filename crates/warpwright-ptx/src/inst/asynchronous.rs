//! Asynchronous copies, tensor maps, cache policies and fences between proxies.

use super::operand::{Address, Operand, Reg};
use crate::types::{ScalarType, Scope, StateSpace, spelled};

/// How much of the source `cp.async` reads; the rest of the destination becomes zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceLimit {
    /// All of it.
    Full,
    /// The first so many bytes.
    Bytes(Operand),
    /// Nothing where the predicate is true.
    Ignore(Reg),
}

/// Phase that a wait on an mbarrier waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MbarrierPhase {
    /// The phase of a state that an arrival returned.
    State(Operand),
    /// The phase of this parity.
    Parity(Operand),
}

/// How the end of a bulk copy shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Completion {
    /// `.mbarrier::complete_tx::bytes`: the bytes are counted by the mbarrier at this address.
    Mbarrier(Address),
    /// `.bulk_group`: the group of the issuing thread.
    BulkGroup,
}

/// How `st.async` and `red.async` are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AsyncOrder {
    /// `.mbarrier::complete_tx::bytes`: the bytes are counted by the mbarrier at this address, in the same block as the
    /// data.
    Mbarrier(Address),
    /// `{.mmio}.release.scope` in global memory.
    Release {
        /// `.mmio`
        mmio: bool,
        /// The scope.
        scope: Scope,
    },
}

/// `cp.async.bulk.dst.src.completion [dst], [src], bytes{, [mbar]}{, mask}{, policy}`
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BulkCopy {
    /// `SharedCluster`, `Shared` or `Global`.
    pub dst_space: StateSpace,
    /// `Global` or `Shared`.
    pub src_space: StateSpace,
    /// Destination.
    pub dst: Address,
    /// Source.
    pub src: Address,
    /// Number of bytes, a multiple of 16.
    pub bytes: Operand,
    /// How the end shows.
    pub completion: Completion,
    /// `.multicast::cluster`: the blocks of the cluster that receive the bytes.
    pub multicast: Option<Operand>,
    /// `.L2::cache_hint`
    pub policy: Option<Reg>,
    /// `.cp_mask`: which of every 16 bytes are written.
    pub byte_mask: Option<Operand>,
}

spelled! {
    /// Operators of `cp.reduce.async.bulk`.
    pub enum BulkOp {
        Add = "add", Min = "min", Max = "max", Inc = "inc", Dec = "dec", And = "and", Or = "or", Xor = "xor",
    }
}

/// `cp.reduce.async.bulk.dst.src.completion.op{.noftz}.ty [dst], [src], bytes{, [mbar]}{, policy}`
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BulkReduce {
    /// Operator.
    pub op: BulkOp,
    /// Type of the elements.
    pub ty: ScalarType,
    /// `.noftz`, mandatory for additions of halves.
    pub noftz: bool,
    /// `SharedCluster` or `Global`; the source is in the block's shared memory.
    pub dst_space: StateSpace,
    /// Destination.
    pub dst: Address,
    /// Source.
    pub src: Address,
    /// Number of bytes, a multiple of 16.
    pub bytes: Operand,
    /// How the end shows.
    pub completion: Completion,
    /// `.L2::cache_hint`
    pub policy: Option<Reg>,
}

spelled! {
    /// How a tensor copy selects elements; `Tile` is the default.
    pub enum TensorCopyMode {
        Tile = "tile", Gather4 = "tile::gather4", Scatter4 = "tile::scatter4",
        Im2col = "im2col", Im2colNoOffsets = "im2col_no_offs", Im2colW = "im2col::w", Im2colW128 = "im2col::w::128",
    }
}

/// Direction of a tensor copy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TensorTransfer {
    /// From the tensor to shared memory.
    Load {
        /// `SharedCluster` or `Shared`.
        dst_space: StateSpace,
        /// Destination.
        dst: Address,
        /// The mbarrier that counts the bytes.
        barrier: Address,
        /// `.multicast::cluster`: the blocks of the cluster that receive the box.
        multicast: Option<Operand>,
        /// `.cta_group::1` or `::2`
        cta_group: Option<u8>,
    },
    /// From the block's shared memory to the tensor.
    Store {
        /// Source.
        src: Address,
    },
    /// Combines the tensor with the block's shared memory.
    Reduce {
        /// Operator.
        op: BulkOp,
        /// Source.
        src: Address,
    },
    /// Into the L2 cache.
    Prefetch,
}

/// `cp{.reduce}.async.bulk{.prefetch}.tensor.Nd...`
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorCopy {
    /// Direction and its operands.
    pub transfer: TensorTransfer,
    /// Dimensions of the tensor, 1 to 5.
    pub dims: u8,
    /// How elements are selected.
    pub mode: TensorCopyMode,
    /// The generic address of the tensor map.
    pub map: Address,
    /// Coordinates, innermost first; `Gather4` and `Scatter4` have five.
    pub coords: Vec<Operand>,
    /// Offsets of the im2col modes.
    pub offsets: Vec<Operand>,
    /// `.L2::cache_hint`
    pub policy: Option<Reg>,
}

spelled! {
    /// A field of a tensor map that `tensormap.replace` writes.
    pub enum TensormapField {
        GlobalAddress = "global_address", Rank = "rank", BoxDim = "box_dim", GlobalDim = "global_dim",
        GlobalStride = "global_stride", ElementStride = "element_stride", ElementType = "elemtype",
        InterleaveLayout = "interleave_layout", SwizzleMode = "swizzle_mode", SwizzleAtomicity = "swizzle_atomicity",
        FillMode = "fill_mode",
    }
}

impl TensormapField {
    /// Whether the field has one value per dimension, selected by an index.
    pub const fn is_indexed(self) -> bool {
        matches!(self, Self::BoxDim | Self::GlobalDim | Self::GlobalStride | Self::ElementStride)
    }

    /// Whether the value is 64 bits wide.
    pub const fn is_wide(self) -> bool {
        matches!(self, Self::GlobalAddress | Self::GlobalStride)
    }
}

spelled! {
    /// Priority of lines in the L2 cache.
    pub enum L2Priority {
        Last = "L2::evict_last", Normal = "L2::evict_normal", First = "L2::evict_first",
        Unchanged = "L2::evict_unchanged",
    }
}

/// How `createpolicy` makes a cache policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PolicySource {
    /// `createpolicy.fractional.primary{.secondary}.b64 dst{, fraction}`
    Fractional {
        /// Priority of the chosen fraction of the lines.
        primary: L2Priority,
        /// Priority of the others; unchanged if none is written.
        secondary: Option<L2Priority>,
        /// The fraction; 1 if none is written.
        fraction: Option<Operand>,
    },
    /// `createpolicy.range{.global}.primary{.secondary}.b64 dst, [addr], primary_bytes, total_bytes`
    Range {
        /// `Global`, or `Generic` if none is written.
        space: StateSpace,
        /// Priority of the first bytes.
        primary: L2Priority,
        /// Priority of the others; unchanged if none is written.
        secondary: Option<L2Priority>,
        /// Where the range starts.
        addr: Address,
        /// Bytes with the primary priority.
        primary_bytes: Operand,
        /// Bytes of the range.
        total_bytes: Operand,
    },
    /// `createpolicy.cvt.L2.b64 dst, property`
    Convert {
        /// An access property as CUDA's runtime makes them.
        property: Operand,
    },
}

spelled! {
    /// Order that a fence makes.
    pub enum FenceSemantics { Sc = "sc", AcqRel = "acq_rel", Acquire = "acquire", Release = "release" }
}

/// A fence between the generic proxy and another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyFence {
    /// `.alias`: different addresses of the same memory.
    Alias,
    /// `.async{.space}`: bulk copies, tensor copies and `wgmma`. `Generic` stands for every space.
    Async(StateSpace),
    /// `.async::generic.{acquire|release}.sync_restrict::*.cluster`: one direction, for the bytes of mbarriers.
    AsyncGeneric {
        /// Acquire, restricted to `.shared::cluster`; otherwise release, restricted to `.shared::cta`.
        acquire: bool,
    },
    /// `.tensormap::generic.release.scope`: tensor maps written before.
    TensormapRelease(Scope),
    /// `.tensormap::generic.acquire.scope [addr], 128`: a tensor map that is used from now on.
    TensormapAcquire {
        /// Scope.
        scope: Scope,
        /// The tensor map.
        addr: Address,
    },
}
