//! Tensor-core instructions: `mma`, `wgmma` and the matrix loads and stores between lanes and shared memory.

use super::operand::{Operand, Reg};
use crate::types::{Rounding, spelled};

spelled! {
    /// Element type of a matrix operand.
    pub enum MatrixType {
        F16 = "f16", BF16 = "bf16", TF32 = "tf32", F32 = "f32", F64 = "f64",
        S32 = "s32", S8 = "s8", U8 = "u8", S4 = "s4", U4 = "u4", B1 = "b1",
        E4M3 = "e4m3", E5M2 = "e5m2", E3M2 = "e3m2", E2M3 = "e2m3", E2M1 = "e2m1",
    }
}

impl MatrixType {
    /// Bits of one element in a fragment of `mma`; the 6- and 4-bit floats fill bytes there, except in the kinds
    /// `mxf4` and `mxf4nvf4`, which pack two [`E2M1`](Self::E2M1) into one.
    pub const fn bits(self) -> u32 {
        match self {
            Self::F64 => 64,
            Self::F32 | Self::TF32 | Self::S32 => 32,
            Self::F16 | Self::BF16 => 16,
            Self::S8 | Self::U8 | Self::E4M3 | Self::E5M2 | Self::E3M2 | Self::E2M3 | Self::E2M1 => 8,
            Self::S4 | Self::U4 => 4,
            Self::B1 => 1,
        }
    }

    /// Bits of the registers that hold elements of the type.
    pub const fn register_bits(self) -> u32 {
        if matches!(self, Self::F64) { 64 } else { 32 }
    }
}

/// Shapes of products as [`spelled!`] has them, each with its dimensions.
macro_rules! matrix_shapes {
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($variant:ident = $text:literal is ($m:literal, $n:literal, $k:literal)),* $(,)?
    }) => {
        spelled! { $(#[$meta])* $vis enum $name { $($variant = $text),* } }

        impl $name {
            /// Rows, columns and the common dimension.
            pub const fn dimensions(self) -> (u32, u32, u32) {
                match self { $(Self::$variant => ($m, $n, $k)),* }
            }
        }
    };
}
pub(super) use matrix_shapes;

matrix_shapes! {
    /// Rows of A, columns of B and common dimension of `mma`.
    pub enum MmaShape {
        M8N8K4 = "m8n8k4" is (8, 8, 4),
        M8N8K16 = "m8n8k16" is (8, 8, 16),
        M8N8K32 = "m8n8k32" is (8, 8, 32),
        M8N8K128 = "m8n8k128" is (8, 8, 128),
        M16N8K4 = "m16n8k4" is (16, 8, 4),
        M16N8K8 = "m16n8k8" is (16, 8, 8),
        M16N8K16 = "m16n8k16" is (16, 8, 16),
        M16N8K32 = "m16n8k32" is (16, 8, 32),
        M16N8K64 = "m16n8k64" is (16, 8, 64),
        M16N8K128 = "m16n8k128" is (16, 8, 128),
        M16N8K256 = "m16n8k256" is (16, 8, 256),
    }
}

spelled! {
    /// Order of a matrix operand in memory terms.
    pub enum MatrixLayout { Row = "row", Col = "col" }
}

spelled! {
    /// The operation of one-bit products.
    pub enum BitProduct { Xor = "xor", And = "and" }
}

spelled! {
    /// `.kind::*` of `mma` on narrow floats.
    pub enum MmaKind { F8F6F4 = "f8f6f4", MxF8F6F4 = "mxf8f6f4", MxF4 = "mxf4", MxF4NvF4 = "mxf4nvf4" }
}

spelled! {
    /// `.scale_vec::*`: how many scales there are along k.
    pub enum ScaleVector { X1 = "1X", X2 = "2X", X4 = "4X" }
}

spelled! {
    /// Type of the scales of a block-scaled `mma`.
    pub enum ScaleType { UE8M0 = "ue8m0", UE4M3 = "ue4m3" }
}

/// The scales of one matrix of a block-scaled `mma`: a register, and which of its bytes and which lanes apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scale {
    /// The register with the scales.
    pub data: Operand,
    /// Selects bytes of it.
    pub byte: Operand,
    /// Selects the lanes that supply it.
    pub thread: Operand,
}

/// `.block_scale{.scale_vec}` with its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockScale {
    /// `.scale_vec::NX`; `None` where the kind has one only.
    pub vector: Option<ScaleVector>,
    /// Type of the scales.
    pub ty: ScaleType,
    /// Scales of A.
    pub a: Scale,
    /// Scales of B.
    pub b: Scale,
}

/// The structure of a sparse A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sparsity {
    /// `.sp::ordered_metadata` instead of `.sp` (`mma` only).
    pub ordered: bool,
    /// The register with the positions of the elements that are there.
    pub metadata: Operand,
    /// Which lanes supply it.
    pub selector: u8,
}

/// `mma{.sp}.sync.aligned.shape.alayout.blayout{.kind}{.block_scale}{.rnd}{.satfinite}.dty.aty.bty.cty{.op.popc} d, a, b, c`
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mma {
    /// Shape.
    pub shape: MmaShape,
    /// Layout of A; all but `m8n8k4.f16` have rows.
    pub a_layout: MatrixLayout,
    /// Layout of B; all but `m8n8k4.f16` have columns.
    pub b_layout: MatrixLayout,
    /// Type of D.
    pub d_ty: MatrixType,
    /// Type of A.
    pub a_ty: MatrixType,
    /// Type of B.
    pub b_ty: MatrixType,
    /// Type of C.
    pub c_ty: MatrixType,
    /// Rounding, f64 only.
    pub rounding: Option<Rounding>,
    /// Whether integer results saturate.
    pub satfinite: bool,
    /// `.xor.popc` or `.and.popc`, one-bit types only.
    pub product: Option<BitProduct>,
    /// `.kind::*`
    pub kind: Option<MmaKind>,
    /// `.sp`
    pub sparsity: Option<Sparsity>,
    /// `.block_scale`
    pub scale: Option<BlockScale>,
    /// Registers of D.
    pub d: Vec<Reg>,
    /// Registers of A.
    pub a: Vec<Operand>,
    /// Registers of B.
    pub b: Vec<Operand>,
    /// Registers of C, or literals.
    pub c: Vec<Operand>,
}

spelled! {
    /// Shape of the matrices of `ldmatrix` and `stmatrix`.
    pub enum MatrixShape { M8N8 = "m8n8", M16N16 = "m16n16", M8N16 = "m8n16", M16N8 = "m16n8" }
}

spelled! {
    /// Elements of `ldmatrix` and `stmatrix`: in memory, and packed sub-byte ones that are spread to bytes.
    pub enum MatrixElement { B16 = "b16", B8 = "b8", B6 = "b8x16.b6x16_p32", B4 = "b8x16.b4x16_p64" }
}

/// Matrices that `ldmatrix` and `stmatrix` move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixTiles {
    /// Shape of each matrix.
    pub shape: MatrixShape,
    /// Number of matrices: 1, 2 or 4.
    pub count: u8,
    /// `.trans`
    pub transposed: bool,
    /// Elements.
    pub element: MatrixElement,
}

impl MatrixTiles {
    /// Registers per lane.
    pub const fn registers(self) -> usize {
        match self.shape {
            MatrixShape::M16N16 => 2 * self.count as usize,
            MatrixShape::M8N8 | MatrixShape::M8N16 | MatrixShape::M16N8 => self.count as usize,
        }
    }
}

/// The A operand of `wgmma`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WgmmaSource {
    /// A 64-bit matrix descriptor of shared memory.
    Descriptor(Operand),
    /// Registers of the lanes.
    Registers(Vec<Operand>),
}

/// The scale-d operand of `wgmma`: whether D is added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accumulate {
    /// Written out.
    Always(bool),
    /// Where the predicate is true.
    If(Reg),
}

/// `wgmma.mma_async{.sp}.sync.aligned.m64nNkK.dty.aty.bty{.satfinite} d, a, b, scale-d, ...`
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wgmma {
    /// Columns of B and D, a multiple of 8 up to 256; there are always 64 rows.
    pub n: u16,
    /// The common dimension.
    pub k: u16,
    /// Type of D.
    pub d_ty: MatrixType,
    /// Type of A.
    pub a_ty: MatrixType,
    /// Type of B.
    pub b_ty: MatrixType,
    /// Whether integer results saturate.
    pub satfinite: bool,
    /// `.sp`
    pub sparsity: Option<Sparsity>,
    /// Registers of D, which are read too unless `accumulate` is `Always(false)`.
    pub d: Vec<Reg>,
    /// A.
    pub a: WgmmaSource,
    /// The 64-bit matrix descriptor of B.
    pub b: Operand,
    /// Whether the products are added to D or replace it.
    pub accumulate: Accumulate,
    /// Whether A is negated (imm-scale-a of -1); floats only.
    pub negate_a: bool,
    /// Whether B is negated.
    pub negate_b: bool,
    /// imm-trans-a: A in shared memory is M-major; 16-bit floats only.
    pub transpose_a: bool,
    /// imm-trans-b: B is N-major; 16-bit floats only.
    pub transpose_b: bool,
}

impl Wgmma {
    /// The registers of D if they are read only where a predicate is true.
    pub fn conditional_reads(&self) -> &[Reg] {
        if matches!(self.accumulate, Accumulate::If(_)) { &self.d } else { &[] }
    }

    /// Whether the form has operands that negate A and B.
    pub const fn has_scales(&self) -> bool {
        !matches!(self.d_ty, MatrixType::S32)
    }

    /// Whether the form has operands that transpose matrices in shared memory.
    pub const fn has_transposes(&self) -> bool {
        matches!(self.a_ty, MatrixType::F16 | MatrixType::BF16)
    }
}
