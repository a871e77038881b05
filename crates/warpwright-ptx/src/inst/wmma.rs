//! `wmma`: products of tensor cores whose fragments nobody but the instructions themselves knows the layout of.

use super::operand::{Address, Operand, Reg};
use super::tensor::{BitProduct, MatrixLayout, MatrixType, matrix_shapes};
use crate::types::{Rounding, StateSpace, spelled};

matrix_shapes! {
    /// Rows of A, columns of B and common dimension of `wmma`.
    pub enum WmmaShape {
        M16N16K16 = "m16n16k16" is (16, 16, 16),
        M8N32K16 = "m8n32k16" is (8, 32, 16),
        M32N8K16 = "m32n8k16" is (32, 8, 16),
        M16N16K8 = "m16n16k8" is (16, 16, 8),
        M8N8K4 = "m8n8k4" is (8, 8, 4),
        M8N8K32 = "m8n8k32" is (8, 8, 32),
        M8N8K128 = "m8n8k128" is (8, 8, 128),
    }
}

spelled! {
    /// Which matrix a fragment is a piece of.
    pub enum WmmaMatrix { A = "a", B = "b", C = "c", D = "d" }
}

impl WmmaMatrix {
    /// Rows and columns of the matrix in a product of `shape`.
    pub const fn dimensions(self, shape: WmmaShape) -> (u32, u32) {
        let (m, n, k) = shape.dimensions();
        match self {
            Self::A => (m, k),
            Self::B => (k, n),
            Self::C | Self::D => (m, n),
        }
    }
}

/// A fragment and the matrix in memory that it is loaded from or stored to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WmmaTile {
    /// Which matrix.
    pub matrix: WmmaMatrix,
    /// Order in memory.
    pub layout: MatrixLayout,
    /// Shape of the product.
    pub shape: WmmaShape,
    /// Where the matrix is.
    pub space: StateSpace,
    /// Type of its elements.
    pub ty: MatrixType,
    /// Its first element.
    pub addr: Address,
    /// Elements from one row or column to the next; as many as it is long if left out.
    pub stride: Option<Operand>,
}

/// `wmma.mma{.op.popc}.sync.aligned.alayout.blayout.shape{.rnd}.dty{.aty.bty}.cty{.satfinite} d, a, b, c`
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wmma {
    /// Shape.
    pub shape: WmmaShape,
    /// Layout that A was loaded with.
    pub a_layout: MatrixLayout,
    /// Layout that B was loaded with.
    pub b_layout: MatrixLayout,
    /// Type of D.
    pub d_ty: MatrixType,
    /// Type of A; f16 is not written.
    pub a_ty: MatrixType,
    /// Type of B.
    pub b_ty: MatrixType,
    /// Type of C.
    pub c_ty: MatrixType,
    /// Rounding, f64 only.
    pub rounding: Option<Rounding>,
    /// Whether results saturate.
    pub satfinite: bool,
    /// `.xor.popc` or `.and.popc`, one-bit types only.
    pub product: Option<BitProduct>,
    /// Registers of D.
    pub d: Vec<Reg>,
    /// Registers of A.
    pub a: Vec<Operand>,
    /// Registers of B.
    pub b: Vec<Operand>,
    /// Registers of C.
    pub c: Vec<Operand>,
}
