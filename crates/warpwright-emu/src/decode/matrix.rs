//! Tensor-core instructions.

use std::collections::HashMap;

use warpwright_ptx::{
    Accumulate, Function, Inst, MatrixElement, MatrixLayout, MatrixShape, MatrixType, Mma, MmaKind, Operand,
    Reg, Role, Rounding, ScalarType, Wgmma, WgmmaSource,
};

use super::{Decoder, Result, defined, index, tensor};
use crate::code::collective::CollectiveKind;
use crate::code::matrix::{
    self, Accumulator, Element, Major, MatrixOp, MmaBits, MmaF64, Product, Rows, Source, Tiles, Touch,
};
use crate::code::op::Op;
use crate::code::rows::{R1, R2};

/// The registers that `wgmma` instructions use as D or A, those that `tcgen05.ld` writes, and those that moves copy from them, by slots in which their
/// state is kept.
#[derive(Debug, Default)]
pub(super) struct Registers {
    slots: HashMap<Reg, u32>,
}

impl Registers {
    pub(super) fn new(function: &Function) -> Self {
        let mut found = Self::default();
        let all = || function.blocks.iter().flat_map(|b| &b.instructions);
        for instruction in all() {
            tensor::loaded(&instruction.inst).iter().for_each(|r| found.add(*r));
            let Inst::Wgmma(w) = &instruction.inst else { continue };
            w.d.iter().for_each(|r| found.add(*r));
            if let WgmmaSource::Registers(a) = &w.a {
                a.iter().filter_map(register).for_each(|r| found.add(r));
            }
        }
        let mut before = 0;
        while before != found.slots.len() {
            before = found.slots.len();
            for instruction in all() {
                if let Inst::Mov { dst, src: Operand::Reg(src), .. } = &instruction.inst
                    && found.slots.contains_key(src)
                {
                    found.add(*dst);
                }
            }
        }
        found
    }

    pub(super) fn count(&self) -> u32 {
        index(self.slots.len())
    }

    fn add(&mut self, r: Reg) {
        let next = self.count();
        self.slots.entry(r).or_insert(next);
    }

    pub(super) fn slots(&self, registers: impl IntoIterator<Item = Reg>) -> Vec<u32> {
        registers.into_iter().filter_map(|r| self.slots.get(&r).copied()).collect()
    }
}

fn register(operand: &Operand) -> Option<Reg> {
    match operand {
        Operand::Reg(r) => Some(*r),
        _ => None,
    }
}

/// Registers that an instruction reads only where a predicate holds.
pub(super) fn conditional_uses(inst: &Inst) -> &[Reg] {
    match inst {
        Inst::Wgmma(w) => w.conditional_reads(),
        _ => &[],
    }
}

impl Decoder<'_> {
    pub(super) fn matrix(&mut self, inst: &Inst) -> Result<()> {
        let op = match inst {
            Inst::Mma(m) => self.mma(m)?,
            Inst::MovMatrix { dst, a } => {
                MatrixOp::Transpose { d: self.dst_w(*dst)?, a: self.w(a, ScalarType::B32)? }
            }
            Inst::LdMatrix { tiles, space, dsts, addr } if plain(tiles.shape, tiles.element) => {
                let (addr, offset) = self.address(addr)?;
                let regs = self.destinations(dsts)?;
                MatrixOp::Load(Tiles { space: *space, transposed: tiles.transposed, addr, offset, regs })
            }
            Inst::StMatrix { tiles, space, addr, srcs } if plain(tiles.shape, tiles.element) => {
                let (addr, offset) = self.address(addr)?;
                let regs = self.sources(srcs, ScalarType::B32)?;
                MatrixOp::Store(Tiles { space: *space, transposed: tiles.transposed, addr, offset, regs })
            }
            Inst::LdMatrix { .. } | Inst::StMatrix { .. } => {
                return self.error("the emulator moves 8x8 matrices of .b16 only");
            }
            Inst::Wgmma(w) => {
                self.code.proxies = true;
                MatrixOp::Wgmma(Box::new(self.wgmma(w)?))
            }
            Inst::WgmmaFence => MatrixOp::WgmmaFence,
            Inst::WgmmaCommit => MatrixOp::WgmmaCommit,
            Inst::WgmmaWait { pending } => MatrixOp::WgmmaWait(*pending),
            _ => return self.error("not a matrix instruction"),
        };
        self.matrix_op(op);
        Ok(())
    }

    pub(super) fn matrix_op(&mut self, op: MatrixOp) {
        self.code.matrix.push(op);
        let at = index(self.code.matrix.len() - 1);
        let mask = self.regs.literal32(u32::MAX);
        self.collective(CollectiveKind::Matrix(at), mask);
    }

    pub(super) fn sources(&mut self, operands: &[Operand], ty: ScalarType) -> Result<Vec<u32>> {
        operands.iter().map(|o| if ty.bits() == 64 { self.l(o, ty) } else { self.w(o, ty) }).collect()
    }

    pub(super) fn destinations(&mut self, regs: &[Reg]) -> Result<Vec<u32>> {
        regs.iter().map(|r| self.dst_w(*r)).collect()
    }

    pub(super) fn four(&self, rows: &[u32]) -> Result<Rows> {
        match Rows::new(rows) {
            Some(rows) => Ok(rows),
            None => self.error("a fragment has at most four registers"),
        }
    }

    fn mma(&mut self, m: &Mma) -> Result<MatrixOp> {
        let (rows, _, k) = m.shape.dimensions();
        let rows = rows as usize;
        if m.sparsity.is_some() {
            return self.error("the emulator does not execute sparse products");
        }
        if m.scale.is_some() || !matches!(m.kind, None | Some(MmaKind::F8F6F4)) {
            return self.error("the emulator does not execute block-scaled products");
        }
        if (m.a_layout, m.b_layout) != (MatrixLayout::Row, MatrixLayout::Col) || m.c_ty != m.d_ty {
            return self.error("the emulator does not execute this form of m8n8k4");
        }
        if m.d_ty == MatrixType::F64 {
            return Ok(MatrixOp::MmaF64(MmaF64 {
                rounding: m.rounding.unwrap_or(Rounding::Rn),
                rows,
                a: self.sources(&m.a, ScalarType::F64)?,
                b: self.sources(&m.b, ScalarType::F64)?,
                c: self.sources(&m.c, ScalarType::F64)?,
                d: m.d.iter().map(|d| self.dst_l(*d)).collect::<Result<_>>()?,
            }));
        }
        let c_ty = match m.c_ty {
            MatrixType::F32 => ScalarType::F32,
            _ => ScalarType::B32,
        };
        let (a, b) = (self.sources(&m.a, ScalarType::B32)?, self.sources(&m.b, ScalarType::B32)?);
        let (c, d) = (self.sources(&m.c, c_ty)?, self.destinations(&m.d)?);
        let [a, b, c, d] = [self.four(&a)?, self.four(&b)?, self.four(&c)?, self.four(&d)?];
        if let Some(product) = m.product {
            return Ok(MatrixOp::MmaBits(MmaBits { product, rows, a, b, c, d }));
        }
        Ok(MatrixOp::Mma(matrix::Mma {
            a_element: self.element(m.a_ty)?,
            b_element: self.element(m.b_ty)?,
            accumulator: self.accumulator(m.d_ty, m.satfinite)?,
            rows,
            k: k as usize,
            a,
            b,
            c,
            d,
        }))
    }

    fn wgmma(&mut self, w: &Wgmma) -> Result<matrix::Wgmma> {
        if w.sparsity.is_some() {
            return self.error("the emulator does not execute sparse products");
        }
        let major = |transposed| if transposed { Major::Mn } else { Major::K };
        let product = match w.a_ty {
            MatrixType::B1 => Product::Bits,
            _ => Product::Numbers { a: self.element(w.a_ty)?, b: self.element(w.b_ty)? },
        };
        let (a, a_slots) = match &w.a {
            WgmmaSource::Descriptor(a) => {
                (Source::Descriptor(self.l(a, ScalarType::B64)?, major(w.transpose_a)), Vec::new())
            }
            WgmmaSource::Registers(a) => {
                let rows = self.sources(a, ScalarType::B32)?;
                let slots = self.wgmma.slots(a.iter().filter_map(register));
                (Source::Registers(self.four(&rows)?), slots)
            }
        };
        Ok(matrix::Wgmma {
            n: w.n.into(),
            k: w.k.into(),
            product,
            accumulator: self.accumulator(w.d_ty, w.satfinite)?,
            negate: w.negate_a != w.negate_b,
            accumulate: match w.accumulate {
                Accumulate::Always(value) => matrix::Accumulate::Always(value),
                Accumulate::If(pred) => matrix::Accumulate::If(self.pred(pred)?),
            },
            a,
            b: self.l(&w.b, ScalarType::B64)?,
            b_major: major(w.transpose_b),
            d: self.destinations(&w.d)?,
            d_slots: self.wgmma.slots(w.d.iter().copied()),
            a_slots,
            shape: u32::from(w.n) | u32::from(w.k) << 10 | u32::from(w.d_ty == MatrixType::F16) << 20,
        })
    }

    /// Emits a check of the sums that an instruction adds to where a predicate holds.
    pub(super) fn check_sums(&mut self, analysis: &defined::Analysis, inst: &Inst) -> Result<()> {
        let Inst::Wgmma(w) = inst else { return Ok(()) };
        let Accumulate::If(pred) = w.accumulate else { return Ok(()) };
        if !w.d.iter().any(|r| analysis.slot(*r).is_some()) {
            return Ok(());
        }
        let mut a = self.pred(pred)?;
        let (guard, invert) = self.guard;
        if guard != 0 {
            let both = self.regs.temp_pred();
            if invert != 0 {
                self.emit_part(Op::PredNot(R1 { d: both, a: guard }));
            } else {
                self.emit_part(Op::PredMov(R1 { d: both, a: guard }));
            }
            self.emit_part(Op::PredAnd(R2 { d: both, a: both, b: a }));
            a = both;
        }
        self.guard = (a, 0);
        self.check(analysis, w.d.iter().copied());
        self.guard = (guard, invert);
        Ok(())
    }

    /// Emits a check of the registers that `wgmma` may be using, for an instruction of another kind.
    pub(super) fn touch(&mut self, inst: &Inst) {
        if self.wgmma.slots.is_empty() || matches!(inst, Inst::Wgmma(_)) {
            return;
        }
        let mut touch = Touch::default();
        if let Inst::Mov { dst, src, .. } = inst {
            let slot = |r: Reg| self.wgmma.slots.get(&r).copied();
            touch.copy = slot(*dst).map(|dst| (register(src).and_then(slot), dst));
        } else {
            inst.visit(|role, r| {
                if let Some(slot) = self.wgmma.slots.get(&r) {
                    match role {
                        Role::Use => touch.reads.push(*slot),
                        Role::Def => touch.writes.push(*slot),
                    }
                }
            });
        }
        if !touch.is_empty() {
            self.code.touches.push(touch);
            let at = index(self.code.touches.len() - 1);
            self.emit_part(Op::Touch(at));
        }
    }

    pub(super) fn element(&self, ty: MatrixType) -> Result<Element> {
        Ok(match ty {
            MatrixType::F16 => Element::F16,
            MatrixType::BF16 => Element::Bf16,
            MatrixType::TF32 => Element::Tf32,
            MatrixType::E4M3 => Element::E4m3,
            MatrixType::E5M2 => Element::E5m2,
            MatrixType::S8 => Element::S8,
            MatrixType::U8 => Element::U8,
            MatrixType::S4 => Element::S4,
            MatrixType::U4 => Element::U4,
            _ => return self.error(format!("the emulator does not execute products of .{ty}")),
        })
    }

    pub(super) fn accumulator(&self, ty: MatrixType, saturate: bool) -> Result<Accumulator> {
        Ok(match ty {
            MatrixType::F32 => Accumulator::F32,
            MatrixType::F16 => Accumulator::F16,
            MatrixType::S32 => Accumulator::S32 { saturate },
            _ => return self.error(format!("the emulator does not execute products with sums in .{ty}")),
        })
    }
}

/// Whether `ldmatrix` and `stmatrix` move 8x8 matrices of 16-bit elements.
fn plain(shape: MatrixShape, element: MatrixElement) -> bool {
    (shape, element) == (MatrixShape::M8N8, MatrixElement::B16)
}
