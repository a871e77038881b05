//! Forms of the tensor-core instructions: shapes, types, and the registers of their fragments.

use super::set::{Misfit, Requirement};
use crate::inst::MatrixType::{self, *};
use crate::inst::*;

/// One row of the table of `mma`.
#[derive(Clone, Copy, Debug)]
pub struct MmaForm {
    /// Shapes.
    pub shapes: &'static [MmaShape],
    /// Types of A, and of B independently unless `same` is set.
    pub types: &'static [MatrixType],
    /// Types of D with that of C.
    pub accumulators: &'static [(MatrixType, MatrixType)],
    /// Modifiers that are written besides.
    pub extra: MmaExtra,
    /// Its requirement.
    pub needs: Requirement,
}

/// Modifiers of a form of `mma` besides shape and types.
#[derive(Clone, Copy, Debug)]
pub struct MmaExtra {
    /// Whether A and B have the same type.
    pub same: bool,
    /// Whether A and B may have any layout; otherwise rows and columns.
    pub any_layout: bool,
    /// Whether a rounding may be written.
    pub rounding: bool,
    /// Whether `.satfinite` may be written.
    pub satfinite: bool,
    /// The operation on bits.
    pub product: Option<BitProduct>,
    /// `.kind::*`
    pub kind: Option<MmaKind>,
    /// Scales: how many along k (`None` where it is not written), and their type.
    pub scales: &'static [(Option<ScaleVector>, ScaleType)],
    /// Whether A is dense, sparse or sparse with ordered metadata.
    pub sparse: Sparse,
}

/// Whether A of a form of `mma` is sparse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sparse {
    /// Dense.
    No,
    /// Sparse; with ordered metadata from PTX 8.5 on.
    Yes,
    /// Sparse with ordered metadata.
    Ordered,
}

const PLAIN: MmaExtra = MmaExtra {
    same: true,
    any_layout: false,
    rounding: false,
    satfinite: false,
    product: None,
    kind: None,
    scales: &[],
    sparse: Sparse::No,
};
const MIXED: MmaExtra = MmaExtra { same: false, ..PLAIN };
const SATURATING: MmaExtra = MmaExtra { satfinite: true, ..MIXED };
const SPARSE: MmaExtra = MmaExtra { sparse: Sparse::Yes, ..PLAIN };
const SPARSE_INTEGER: MmaExtra = MmaExtra { sparse: Sparse::Yes, ..SATURATING };
const ROUNDED: MmaExtra = MmaExtra { rounding: true, ..PLAIN };

const fn bits(product: BitProduct) -> MmaExtra {
    MmaExtra { product: Some(product), ..PLAIN }
}

const fn kind(
    kind: MmaKind,
    scales: &'static [(Option<ScaleVector>, ScaleType)],
    sparse: Sparse,
) -> MmaExtra {
    MmaExtra { kind: Some(kind), scales, sparse, ..MIXED }
}

const HALVES: &[(MatrixType, MatrixType)] = &[(F16, F16), (F32, F32)];
const FLOAT: &[(MatrixType, MatrixType)] = &[(F32, F32)];
const HALF: &[(MatrixType, MatrixType)] = &[(F16, F16)];
const DOUBLE: &[(MatrixType, MatrixType)] = &[(F64, F64)];
const INTEGER: &[(MatrixType, MatrixType)] = &[(S32, S32)];
const BYTES: &[MatrixType] = &[S8, U8];
const NIBBLES: &[MatrixType] = &[S4, U4];
const FP8: &[MatrixType] = &[E4M3, E5M2];
const NARROW: &[MatrixType] = &[E4M3, E5M2, E3M2, E2M3, E2M1];
/// Targets with `.kind::*`.
const KINDS: &[u32] = &[120, 121];
const X1: &[(Option<ScaleVector>, ScaleType)] =
    &[(None, ScaleType::UE8M0), (Some(ScaleVector::X1), ScaleType::UE8M0)];
const X2: &[(Option<ScaleVector>, ScaleType)] =
    &[(None, ScaleType::UE8M0), (Some(ScaleVector::X2), ScaleType::UE8M0)];
const X2_X4: &[(Option<ScaleVector>, ScaleType)] =
    &[(Some(ScaleVector::X2), ScaleType::UE8M0), (Some(ScaleVector::X4), ScaleType::UE4M3)];

const fn row(
    shapes: &'static [MmaShape],
    types: &'static [MatrixType],
    accumulators: &'static [(MatrixType, MatrixType)],
    extra: MmaExtra,
    needs: Requirement,
) -> MmaForm {
    MmaForm { shapes, types, accumulators, extra, needs }
}

const fn since(major: u16, minor: u16, sm: u32) -> Requirement {
    Requirement::new(major, minor, sm)
}

/// Every form of `mma`.
pub const MMA: &[MmaForm] = {
    use MmaShape::*;
    &[
        row(
            &[M8N8K4],
            &[F16],
            &[(F16, F16), (F32, F32), (F32, F16)],
            MmaExtra { any_layout: true, ..PLAIN },
            since(6, 4, 70),
        ),
        row(&[M16N8K8], &[F16], HALVES, PLAIN, since(6, 5, 75)),
        row(&[M16N8K16], &[F16], HALVES, PLAIN, since(7, 0, 80)),
        row(&[M16N8K8, M16N8K16], &[BF16], FLOAT, PLAIN, since(7, 0, 80)),
        row(&[M16N8K4, M16N8K8], &[TF32], FLOAT, PLAIN, since(7, 0, 80)),
        row(&[M8N8K4], &[F64], DOUBLE, ROUNDED, since(7, 0, 80)),
        row(&[M16N8K4, M16N8K8, M16N8K16], &[F64], DOUBLE, ROUNDED, since(7, 8, 90)),
        row(&[M8N8K16], BYTES, INTEGER, SATURATING, since(6, 5, 75)),
        row(&[M16N8K16, M16N8K32], BYTES, INTEGER, SATURATING, since(7, 0, 80)),
        row(&[M8N8K32], NIBBLES, INTEGER, SATURATING, since(6, 5, 75)),
        row(&[M16N8K32, M16N8K64], NIBBLES, INTEGER, SATURATING, since(7, 0, 80)),
        row(&[M8N8K128], &[B1], INTEGER, bits(BitProduct::Xor), since(7, 0, 75)),
        row(&[M16N8K128, M16N8K256], &[B1], INTEGER, bits(BitProduct::Xor), since(7, 0, 80)),
        row(&[M8N8K128, M16N8K128, M16N8K256], &[B1], INTEGER, bits(BitProduct::And), since(7, 1, 80)),
        row(&[M16N8K32], FP8, FLOAT, MIXED, since(8, 4, 89)),
        row(&[M16N8K32], FP8, HALF, MIXED, since(8, 7, 89)),
        row(&[M16N8K16], FP8, HALVES, MIXED, since(8, 7, 89)),
        row(
            &[M16N8K32],
            NARROW,
            HALVES,
            kind(MmaKind::F8F6F4, &[], Sparse::No),
            Requirement::only(8, 7, KINDS),
        ),
        row(
            &[M16N8K32],
            NARROW,
            FLOAT,
            kind(MmaKind::MxF8F6F4, X1, Sparse::No),
            Requirement::only(8, 7, KINDS),
        ),
        row(&[M16N8K64], &[E2M1], FLOAT, kind(MmaKind::MxF4, X2, Sparse::No), Requirement::only(8, 7, KINDS)),
        row(
            &[M16N8K64],
            &[E2M1],
            FLOAT,
            kind(MmaKind::MxF4NvF4, X2_X4, Sparse::No),
            Requirement::only(8, 7, KINDS),
        ),
        row(&[M16N8K16, M16N8K32], &[F16], HALVES, SPARSE, since(7, 1, 80)),
        row(&[M16N8K16, M16N8K32], &[BF16], FLOAT, SPARSE, since(7, 1, 80)),
        row(&[M16N8K8, M16N8K16], &[TF32], FLOAT, SPARSE, since(7, 1, 80)),
        row(&[M16N8K32, M16N8K64], BYTES, INTEGER, SPARSE_INTEGER, since(7, 1, 80)),
        row(&[M16N8K64, M16N8K128], NIBBLES, INTEGER, SPARSE_INTEGER, since(7, 1, 80)),
        row(&[M16N8K64], FP8, FLOAT, MmaExtra { sparse: Sparse::Yes, ..MIXED }, since(8, 4, 89)),
        row(
            &[M16N8K64],
            FP8,
            HALF,
            MmaExtra { sparse: Sparse::Ordered, ..MIXED },
            Requirement::only(8, 7, KINDS),
        ),
        row(
            &[M16N8K64],
            NARROW,
            HALVES,
            kind(MmaKind::F8F6F4, &[], Sparse::Ordered),
            Requirement::only(8, 7, KINDS),
        ),
        row(
            &[M16N8K64],
            NARROW,
            FLOAT,
            kind(MmaKind::MxF8F6F4, X1, Sparse::Ordered),
            Requirement::only(8, 7, KINDS),
        ),
        row(
            &[M16N8K128],
            &[E2M1],
            FLOAT,
            kind(MmaKind::MxF4, X2, Sparse::Ordered),
            Requirement::only(8, 7, KINDS),
        ),
        row(
            &[M16N8K128],
            &[E2M1],
            FLOAT,
            kind(MmaKind::MxF4NvF4, X2_X4, Sparse::Ordered),
            Requirement::only(8, 7, KINDS),
        ),
    ]
};

impl MmaForm {
    fn has(&self, m: &Mma) -> bool {
        let extra = &self.extra;
        let layout = extra.any_layout || (m.a_layout, m.b_layout) == (MatrixLayout::Row, MatrixLayout::Col);
        let scales = match &m.scale {
            None => extra.scales.is_empty(),
            Some(s) => extra.scales.contains(&(s.vector, s.ty)),
        };
        let sparse = match m.sparsity {
            None => extra.sparse == Sparse::No,
            Some(s) => extra.sparse == Sparse::Yes || (s.ordered && extra.sparse == Sparse::Ordered),
        };
        self.shapes.contains(&m.shape)
            && self.types.contains(&m.a_ty)
            && self.types.contains(&m.b_ty)
            && (!extra.same || m.a_ty == m.b_ty)
            && self.accumulators.contains(&(m.d_ty, m.c_ty))
            && layout
            && (extra.rounding || m.rounding.is_none())
            && (extra.satfinite || !m.satfinite)
            && extra.product == m.product
            && extra.kind == m.kind
            && scales
            && sparse
    }
}

/// Requirement of a form of `mma`.
///
/// # Errors
/// If there is no such form.
pub fn mma(m: &Mma) -> Result<Requirement, Misfit> {
    let ordered = if m.sparsity.is_some_and(|s| s.ordered) { since(8, 5, 80) } else { Requirement::BASE };
    MMA.iter().find(|f| f.has(m)).map(|f| f.needs.and(ordered)).ok_or(Misfit::Types)
}

/// Registers per lane of the fragments of an `mma`: D, A, B and C.
pub fn mma_registers(m: &Mma) -> [usize; 4] {
    let (rows, columns, k) = m.shape.dimensions();
    let packed = matches!(m.kind, Some(MmaKind::MxF4 | MmaKind::MxF4NvF4));
    let width = |ty: MatrixType| if packed && ty == E2M1 { 4 } else { ty.bits() };
    let count = |elements: u32, ty: MatrixType| (elements * width(ty) / ty.register_bits() / 32) as usize;
    if m.shape == MmaShape::M8N8K4 && m.a_ty == F16 {
        // Four independent products, one per group of eight lanes.
        let accumulator = |ty| if ty == F32 { 8 } else { 4 };
        return [accumulator(m.d_ty), 2, 2, accumulator(m.c_ty)];
    }
    let present = if m.sparsity.is_some() { k / 2 } else { k };
    [
        count(rows * columns, m.d_ty),
        count(rows * present, m.a_ty),
        count(k * columns, m.b_ty),
        count(rows * columns, m.c_ty),
    ]
}

/// Requirement of a form of `ldmatrix` or `stmatrix`.
///
/// # Errors
/// If there is no such form.
pub fn matrix_tiles(tiles: MatrixTiles, stores: bool) -> Result<Requirement, Misfit> {
    use MatrixElement as E;
    use MatrixShape::*;
    /// Targets with matrices of bytes.
    const BYTES: &[u32] = &[100, 101, 103, 110, 120, 121];
    let MatrixTiles { shape, count, transposed, element } = tiles;
    let needs = match (shape, element, transposed, stores) {
        (M8N8, E::B16, _, false) => since(6, 5, 75),
        (M8N8, E::B16, _, true) => since(7, 8, 90),
        (M16N16, E::B8 | E::B6 | E::B4, true, false) if count <= 2 => Requirement::only(8, 6, BYTES),
        (M8N16, E::B6 | E::B4, false, false) | (M16N8, E::B8, true, true) => Requirement::only(8, 6, BYTES),
        _ => return Err(Misfit::Types),
    };
    if matches!(count, 1 | 2 | 4) { Ok(needs) } else { Err(Misfit::Types) }
}

/// One row of the table of `wgmma`: types of A and B, of D, the common dimension of dense matrices.
pub const WGMMA: &[(&[MatrixType], &[MatrixType], u16)] = &[
    (&[F16], &[F16, F32], 16),
    (&[BF16], &[F32], 16),
    (&[TF32], &[F32], 8),
    (FP8, &[F16, F32], 32),
    (BYTES, &[S32], 32),
    (&[B1], &[S32], 256),
];

/// Whether `wgmma` has `n` columns: integers skip odd multiples of 8 above 24.
pub const fn wgmma_columns(n: u16, integer: bool) -> bool {
    n >= 8 && n <= 256 && n.is_multiple_of(8) && (!integer || n.is_multiple_of(16) || n <= 24)
}

/// Requirement of a form of `wgmma`.
///
/// # Errors
/// If there is no such form.
pub fn wgmma(m: &Wgmma) -> Result<Requirement, Misfit> {
    let sparse = m.sparsity.is_some();
    let fits = |(types, results, k): &&(&[MatrixType], &[MatrixType], u16)| {
        types.contains(&m.a_ty)
            && types.contains(&m.b_ty)
            && results.contains(&m.d_ty)
            && m.k == if sparse { 2 * k } else { *k }
    };
    let integer = m.d_ty == S32;
    let saturates = !m.satfinite || (integer && m.a_ty != B1);
    let legal = WGMMA.iter().find(fits).is_some()
        && wgmma_columns(m.n, integer)
        && saturates
        && !(sparse && m.a_ty == B1);
    if !legal {
        return Err(Misfit::Types);
    }
    let mixed = integer && m.a_ty != m.b_ty;
    Ok(if mixed {
        WGMMA_NEEDS.and(since(8, 4, 90))
    } else if sparse {
        WGMMA_NEEDS.and(since(8, 2, 90))
    } else {
        WGMMA_NEEDS
    })
}

/// Requirement of every `wgmma`.
pub(super) const WGMMA_NEEDS: Requirement = Requirement::only(8, 0, &[90]);

/// Registers per lane of D and, if it is in registers, of A.
pub const fn wgmma_registers(m: &Wgmma) -> (usize, usize) {
    let per_register = if matches!(m.d_ty, F16) { 4 } else { 2 };
    ((m.n / per_register) as usize, 4)
}
