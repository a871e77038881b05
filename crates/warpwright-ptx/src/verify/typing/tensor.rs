//! Fragments of the tensor-core instructions.

use super::{A, B, C, D, Width, predicate, register, result, source};
use crate::inst::*;
use crate::isa;
use crate::types::ScalarType::{self, *};
use crate::verify::{Breach, Checker, Rule};

/// The registers of a fragment: 32-bit ones of no particular type except for accumulators.
const fn accumulator(ty: MatrixType) -> ScalarType {
    match ty {
        MatrixType::F64 => F64,
        MatrixType::F32 => F32,
        _ => U32,
    }
}

/// The type of the registers of A and B.
const fn factor(ty: MatrixType) -> ScalarType {
    if matches!(ty, MatrixType::F64) { F64 } else { U32 }
}

pub(super) fn count(cx: &mut Checker<'_>, fragment: &'static str, registers: usize, needed: usize) {
    if registers != needed {
        cx.report(Rule::Type7, Breach::FragmentRegisters { fragment, registers, needed });
    }
}

/// The fragments of a product with the types of their elements: D, A, B and C have so many registers as are `needed`.
fn product(
    cx: &mut Checker<'_>,
    needed: [usize; 4],
    (d, d_ty): (&[Reg], MatrixType),
    [(a, a_ty), (b, b_ty), (c, c_ty)]: [(&[Operand], MatrixType); 3],
) {
    let registers = [("D", d.len()), ("A", a.len()), ("B", b.len()), ("C", c.len())];
    for ((fragment, registers), needed) in registers.into_iter().zip(needed) {
        count(cx, fragment, registers, needed);
    }
    for r in d {
        result(cx, *r, accumulator(d_ty));
    }
    for (fragment, ty, what) in [(a, factor(a_ty), A), (b, factor(b_ty), B), (c, accumulator(c_ty), C)] {
        for o in fragment {
            source(cx, *o, ty, what);
        }
    }
}

pub(super) fn mma(cx: &mut Checker<'_>, m: &Mma) {
    if isa::mma(m).is_err() {
        return;
    }
    let needed = isa::mma_registers(m);
    product(cx, needed, (&m.d, m.d_ty), [(&m.a, m.a_ty), (&m.b, m.b_ty), (&m.c, m.c_ty)]);
    sparsity(cx, m.sparsity);
    if let Some(scale) = &m.scale {
        for s in [scale.a, scale.b] {
            source(cx, s.data, U32, "the scales");
            source(cx, s.byte, U16, "the selector of bytes");
            source(cx, s.thread, U16, "the selector of lanes");
        }
    }
}

fn sparsity(cx: &mut Checker<'_>, sparsity: Option<Sparsity>) {
    if let Some(s) = sparsity {
        source(cx, s.metadata, U32, "the metadata");
    }
}

pub(super) fn load_matrix(cx: &mut Checker<'_>, tiles: MatrixTiles, dsts: &[Reg]) {
    count(cx, "the result", dsts.len(), tiles.registers());
    for r in dsts {
        result(cx, *r, B32);
    }
}

pub(super) fn store_matrix(cx: &mut Checker<'_>, tiles: MatrixTiles, srcs: &[Operand]) {
    count(cx, "the stored vector", srcs.len(), tiles.registers());
    for o in srcs {
        only_register(cx, *o, B32, "the stored operand");
    }
}

/// A source that may not be a literal.
pub(super) fn only_register(cx: &mut Checker<'_>, o: Operand, ty: ScalarType, what: &'static str) {
    match o {
        Operand::Reg(r) => register(cx, r, ty, Width::Exact, what),
        _ => cx.report(Rule::Type3, Breach::NotRegister { operand: what }),
    }
}

/// The registers of a fragment of `wmma` in memory, and its stride.
fn wmma_tile(cx: &mut Checker<'_>, tile: &WmmaTile, registers: usize) -> ScalarType {
    if isa::wmma_tile(tile).is_ok() {
        count(cx, "the fragment", registers, isa::wmma_registers(tile.matrix, tile.shape, tile.ty));
    }
    if let Some(stride) = tile.stride {
        source(cx, stride, U32, "the stride");
    }
    accumulator(tile.ty)
}

pub(super) fn wmma_load(cx: &mut Checker<'_>, tile: &WmmaTile, dsts: &[Reg]) {
    let ty = wmma_tile(cx, tile, dsts.len());
    for r in dsts {
        result(cx, *r, ty);
    }
}

pub(super) fn wmma_store(cx: &mut Checker<'_>, tile: &WmmaTile, srcs: &[Operand]) {
    let ty = wmma_tile(cx, tile, srcs.len());
    for o in srcs {
        only_register(cx, *o, ty, "the stored operand");
    }
}

pub(super) fn wmma(cx: &mut Checker<'_>, m: &Wmma) {
    if isa::wmma(m).is_err() {
        return;
    }
    let needed =
        [(WmmaMatrix::D, m.d_ty), (WmmaMatrix::A, m.a_ty), (WmmaMatrix::B, m.b_ty), (WmmaMatrix::C, m.c_ty)];
    let needed = needed.map(|(matrix, ty)| isa::wmma_registers(matrix, m.shape, ty));
    product(cx, needed, (&m.d, m.d_ty), [(&m.a, m.a_ty), (&m.b, m.b_ty), (&m.c, m.c_ty)]);
}

pub(super) fn wgmma(cx: &mut Checker<'_>, m: &Wgmma) {
    let (d, a) = isa::wgmma_registers(m);
    if isa::wgmma(m).is_ok() {
        count(cx, "D", m.d.len(), d);
    }
    for r in &m.d {
        result(cx, *r, accumulator(m.d_ty));
    }
    match &m.a {
        WgmmaSource::Descriptor(o) => source(cx, *o, B64, A),
        WgmmaSource::Registers(registers) => {
            count(cx, "A", registers.len(), a);
            for o in registers {
                source(cx, *o, U32, A);
            }
        }
    }
    source(cx, m.b, B64, B);
    sparsity(cx, m.sparsity);
    if let Accumulate::If(p) = m.accumulate {
        predicate(cx, p, D);
    }
}

/// `setmaxnreg`: 24 to 256 registers in steps of 8.
pub(super) fn max_registers(cx: &mut Checker<'_>, n: u32) {
    if !(24..=256).contains(&n) || !n.is_multiple_of(8) {
        cx.report(Rule::Type10, Breach::MaxRegisters { registers: n });
    }
}
