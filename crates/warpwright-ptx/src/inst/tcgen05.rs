//! The fifth generation of tensor cores: tensor memory, and the asynchronous products and copies that use it.

use super::operand::{Address, Operand, Reg};
use super::tensor::ScaleVector;
use crate::types::{StateSpace, spelled};

spelled! {
    /// Lanes of tensor memory, and bits of each, that a load or store moves as one piece.
    pub enum Tcgen05Shape {
        L32B32 = "32x32b", L16B64 = "16x64b", L16B128 = "16x128b", L16B256 = "16x256b", L16B32X2 = "16x32bx2",
    }
}

impl Tcgen05Shape {
    /// Registers of a lane for one piece.
    pub const fn registers(self) -> usize {
        match self {
            Self::L32B32 | Self::L16B64 | Self::L16B32X2 => 1,
            Self::L16B128 => 2,
            Self::L16B256 => 4,
        }
    }
}

/// The part of tensor memory that `tcgen05.ld` and `tcgen05.st` move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tcgen05Access {
    /// Shape of a piece.
    pub shape: Tcgen05Shape,
    /// Pieces side by side: 1, 2, 4, ..., 128.
    pub count: u8,
    /// `.pack::16b` of a load and `.unpack::16b` of a store: a register holds the low halves of two columns.
    pub packed: bool,
    /// Columns between the two halves; [`Tcgen05Shape::L16B32X2`] only.
    pub split: u32,
}

impl Tcgen05Access {
    /// Registers of a lane.
    pub const fn registers(self) -> usize {
        self.shape.registers() * self.count as usize
    }
}

spelled! {
    /// Rows and bits of each that `tcgen05.cp` copies.
    pub enum Tcgen05CopyShape {
        R128B256 = "128x256b", R4B256 = "4x256b", R128B128 = "128x128b", R64B128 = "64x128b", R32B128 = "32x128b",
    }
}

spelled! {
    /// Which warps' quarters of tensor memory get the rows of `tcgen05.cp`.
    pub enum Tcgen05Multicast {
        Pairs02And13 = "warpx2::02_13", Pairs01And23 = "warpx2::01_23", All = "warpx4",
    }
}

spelled! {
    /// Packed elements of the source of `tcgen05.cp`, which become bytes.
    pub enum Tcgen05Packed { B6 = "b6x16_p32", B4 = "b4x16_p64" }
}

spelled! {
    /// `.kind::*` of `tcgen05.mma`: the types that its factors may have.
    pub enum Tcgen05Kind {
        F16 = "f16", TF32 = "tf32", F8F6F4 = "f8f6f4", I8 = "i8",
        MxF8F6F4 = "mxf8f6f4", MxF4 = "mxf4", MxF4NvF4 = "mxf4nvf4",
    }
}

impl Tcgen05Kind {
    /// Whether the factors have scales.
    pub const fn is_scaled(self) -> bool {
        matches!(self, Self::MxF8F6F4 | Self::MxF4 | Self::MxF4NvF4)
    }
}

spelled! {
    /// `.collector::a::*`: what becomes of the buffer that holds A.
    pub enum Tcgen05Collector { Fill = "fill", Use = "use", LastUse = "lastuse", Discard = "discard" }
}

spelled! {
    /// How many elements share a scale, as newer text says it.
    pub enum Tcgen05Block { B16 = "block16", B32 = "block32" }
}

/// How many scales a row has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tcgen05ScaleSize {
    /// By their number.
    Vector(ScaleVector),
    /// By the elements that share one.
    Block(Tcgen05Block),
}

/// `.block_scale{.scale_vectorsize}` with its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tcgen05Scales {
    /// `None` where the kind has one only.
    pub size: Option<Tcgen05ScaleSize>,
    /// Scales of A in tensor memory.
    pub a: Address,
    /// Scales of B in tensor memory.
    pub b: Address,
}

/// The A operand of `tcgen05.mma`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tcgen05Source {
    /// A 64-bit matrix descriptor of shared memory.
    Descriptor(Operand),
    /// Tensor memory.
    Memory(Address),
}

/// `tcgen05.mma.cta_group.kind{.block_scale}{.ashift}{.collector} [d], a, b, descriptor, ..., enable{, scale}`
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tcgen05Mma {
    /// `.cta_group::2`
    pub pair: bool,
    /// Types of the factors.
    pub kind: Tcgen05Kind,
    /// `.block_scale`
    pub scales: Option<Tcgen05Scales>,
    /// `.ashift`: the rows of A in tensor memory move down by one.
    pub shift: bool,
    /// `.collector::a::*`
    pub collector: Option<Tcgen05Collector>,
    /// D in tensor memory.
    pub d: Address,
    /// A.
    pub a: Tcgen05Source,
    /// The 64-bit matrix descriptor of B.
    pub b: Operand,
    /// The instruction descriptor.
    pub descriptor: Operand,
    /// disable-output-lane: masks of lanes that are not written; four of them, eight for a pair, or none.
    pub disabled: Vec<Operand>,
    /// enable-input-d: whether D is added to.
    pub accumulate: Reg,
    /// scale-input-d: D is divided by two to this power first.
    pub scale_d: Option<u8>,
}

/// An instruction of the family `tcgen05`. `pair` is `.cta_group::2`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the operand names of the form in each variant's documentation")]
pub enum Tcgen05 {
    /// `tcgen05.alloc.cta_group.sync.aligned{.shared::cta}.b32 [addr], columns`
    Alloc { pair: bool, space: StateSpace, addr: Address, columns: Operand },
    /// `tcgen05.dealloc.cta_group.sync.aligned.b32 memory, columns`
    Dealloc { pair: bool, memory: Operand, columns: Operand },
    /// `tcgen05.relinquish_alloc_permit.cta_group.sync.aligned`
    Relinquish { pair: bool },
    /// `tcgen05.ld.sync.aligned.shape.xN{.pack::16b}.b32 {dsts}, [memory]{, split}`
    Load { access: Tcgen05Access, dsts: Vec<Reg>, memory: Address },
    /// `tcgen05.st.sync.aligned.shape.xN{.unpack::16b}.b32 [memory]{, split}, {srcs}`
    Store { access: Tcgen05Access, memory: Address, srcs: Vec<Operand> },
    /// `tcgen05.wait::{ld|st}.sync.aligned`
    Wait { stores: bool },
    /// `tcgen05.fence::{before|after}_thread_sync`
    Fence { after: bool },
    /// `tcgen05.commit.cta_group.mbarrier::arrive::one{.shared::cluster}{.multicast::cluster}.b64 [addr]{, mask}`
    Commit { pair: bool, space: StateSpace, addr: Address, multicast: Option<Operand> },
    /// `tcgen05.cp.cta_group.shape{.multicast}{.b8x16.packed} [memory], descriptor`
    Copy {
        pair: bool,
        shape: Tcgen05CopyShape,
        multicast: Option<Tcgen05Multicast>,
        packed: Option<Tcgen05Packed>,
        memory: Address,
        descriptor: Operand,
    },
    /// `tcgen05.shift.cta_group.down [memory]`
    Shift { pair: bool, memory: Address },
    /// `tcgen05.mma...`
    Mma(Tcgen05Mma),
}
