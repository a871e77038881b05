//! Forms of `wmma`: shapes, types, and the registers of fragments.

use super::set::{Misfit, Requirement};
use crate::inst::MatrixLayout::{Col, Row};
use crate::inst::MatrixType::{self, *};
use crate::inst::WmmaShape::{self, *};
use crate::inst::*;
use crate::types::StateSpace;

const fn since(major: u16, minor: u16, sm: u32) -> Requirement {
    Requirement::new(major, minor, sm)
}

/// Requirement of products of a shape with factors of a type.
const fn factors(shape: WmmaShape, ty: MatrixType) -> Option<Requirement> {
    Some(match (shape, ty) {
        (M16N16K16, F16) => since(6, 0, 70),
        (M8N32K16 | M32N8K16, F16) => since(6, 1, 70),
        (M16N16K16 | M8N32K16 | M32N8K16, S8 | U8) => since(6, 3, 72),
        (M8N8K32, S4 | U4) | (M8N8K128, B1) => since(6, 3, 75),
        (M16N16K16 | M8N32K16 | M32N8K16, BF16) | (M16N16K8, TF32) | (M8N8K4, F64) => since(7, 0, 80),
        _ => return None,
    })
}

/// Requirement of sums of a type in a shape.
const fn sums(shape: WmmaShape, ty: MatrixType) -> Option<Requirement> {
    match (shape, ty) {
        (_, F16) => factors(shape, F16),
        (M16N16K16 | M8N32K16 | M32N8K16, F32) => factors(shape, F16),
        (M16N16K8, F32) => factors(shape, TF32),
        (M8N8K4, F64) => factors(shape, F64),
        (M16N16K16 | M8N32K16 | M32N8K16, S32) => factors(shape, S8),
        (M8N8K32, S32) => factors(shape, S4),
        (M8N8K128, S32) => factors(shape, B1),
        _ => None,
    }
}

/// Whether factors of a type are packed below bytes, which fixes their layouts.
const fn packed(ty: MatrixType) -> bool {
    matches!(ty, S4 | U4 | B1)
}

/// Requirement of a form of `wmma.load` or `wmma.store`.
///
/// # Errors
/// If there is no such form.
pub fn wmma_tile(tile: &WmmaTile) -> Result<Requirement, Misfit> {
    let needs = match tile.matrix {
        WmmaMatrix::A | WmmaMatrix::B => factors(tile.shape, tile.ty),
        WmmaMatrix::C | WmmaMatrix::D => sums(tile.shape, tile.ty),
    };
    let fixed = match tile.matrix {
        WmmaMatrix::A if packed(tile.ty) => tile.layout == Row,
        WmmaMatrix::B if packed(tile.ty) => tile.layout == Col,
        _ => true,
    };
    let space = matches!(tile.space, StateSpace::Generic | StateSpace::Global | StateSpace::Shared);
    needs.filter(|_| fixed && space).ok_or(Misfit::Types)
}

/// Requirement of a form of `wmma.mma`.
///
/// # Errors
/// If there is no such form.
pub fn wmma(m: &Wmma) -> Result<Requirement, Misfit> {
    let accumulators = match m.a_ty {
        F16 => matches!(m.d_ty, F16 | F32) && matches!(m.c_ty, F16 | F32),
        BF16 | TF32 => (m.d_ty, m.c_ty) == (F32, F32),
        F64 => (m.d_ty, m.c_ty) == (F64, F64),
        _ => (m.d_ty, m.c_ty) == (S32, S32),
    };
    let needs = factors(m.shape, m.a_ty).filter(|_| m.a_ty == m.b_ty && accumulators).ok_or(Misfit::Types)?;
    let product = match m.product {
        None if m.a_ty != B1 => Requirement::BASE,
        Some(BitProduct::Xor) if m.a_ty == B1 => Requirement::BASE,
        Some(BitProduct::And) if m.a_ty == B1 => since(7, 1, 80),
        _ => return Err(Misfit::Types),
    };
    let legal = (!packed(m.a_ty) || (m.a_layout, m.b_layout) == (Row, Col))
        && (m.rounding.is_none() || m.a_ty == F64)
        && (!m.satfinite || matches!(m.a_ty, S8 | U8 | S4 | U4));
    if legal { Ok(needs.and(product)) } else { Err(Misfit::Types) }
}

/// Registers per lane of a fragment.
pub const fn wmma_registers(matrix: WmmaMatrix, shape: WmmaShape, ty: MatrixType) -> usize {
    if matches!((matrix, ty), (WmmaMatrix::A | WmmaMatrix::B, F16)) {
        // Some elements are there twice or more often.
        return 8;
    }
    wmma_distinct(matrix, shape, ty)
}

/// Registers per lane that the elements of a matrix fill.
pub const fn wmma_distinct(matrix: WmmaMatrix, shape: WmmaShape, ty: MatrixType) -> usize {
    let (rows, columns) = matrix.dimensions(shape);
    (rows * columns * ty.bits() / ty.register_bits() / 32) as usize
}
