//! Moves, and the packing and taking apart of registers.

use warpwright_ptx::{Operand, Reg, ScalarType};

use super::{Decoder, Result, index};
use crate::code::layout::Slot;
use crate::code::op::Op;
use crate::code::rows::{R1, R2};

impl Decoder<'_> {
    pub(super) fn mov(&mut self, ty: ScalarType, dst: Reg, src: &Operand) -> Result<()> {
        match self.slot(dst)? {
            Slot::P(d) => {
                let Operand::Reg(r) = src else { return self.error("mov.pred wants a predicate") };
                let a = self.pred(*r)?;
                self.emit(Op::PredMov(R1 { d, a }));
            }
            Slot::Q(d) => {
                let Slot::Q(a) = self.source(src, ty)? else { return self.error("mov.b128 wants 128 bits") };
                self.emit(Op::MovL(R1 { d, a }));
                self.emit(Op::MovL(R1 { d: d + 1, a: a + 1 }));
            }
            Slot::L(d) => {
                let a = self.l(src, ty)?;
                self.emit(Op::MovL(R1 { d, a }));
            }
            Slot::W(d) => {
                let a = self.w(src, ty)?;
                self.emit(if ty.bits() == 16 { Op::Zext16(R1 { d, a }) } else { Op::MovW(R1 { d, a }) });
            }
        }
        Ok(())
    }

    pub(super) fn pack(&mut self, ty: ScalarType, dst: Reg, parts: &[Operand]) -> Result<()> {
        let part = match (ty.bits(), parts.len()) {
            (128, 2) => ScalarType::B64,
            (64, 2) | (128, 4) => ScalarType::B32,
            (32, 2) | (64, 4) => ScalarType::B16,
            (16, 2) | (32, 4) => ScalarType::B8,
            _ => return self.error("the parts do not make up the whole"),
        };
        match (self.slot(dst)?, parts) {
            (Slot::W(d), [lo, hi]) if part == ScalarType::B16 => {
                let (a, b) = (self.w(lo, part)?, self.w(hi, part)?);
                self.emit(Op::Pack16(R2 { d, a, b }));
            }
            (Slot::L(d), [lo, hi]) if part == ScalarType::B32 => {
                let (a, b) = (self.w(lo, part)?, self.w(hi, part)?);
                self.emit(Op::PackL(R2 { d, a, b }));
            }
            (Slot::L(d), [p0, p1, p2, p3]) => {
                let (lo, hi) = (self.regs.temp32(), self.regs.temp32());
                let (a, b) = (self.w(p0, part)?, self.w(p1, part)?);
                self.emit(Op::Pack16(R2 { d: lo, a, b }));
                let (a, b) = (self.w(p2, part)?, self.w(p3, part)?);
                self.emit(Op::Pack16(R2 { d: hi, a, b }));
                self.emit(Op::PackL(R2 { d, a: lo, b: hi }));
            }
            (Slot::Q(d), [lo, hi]) => {
                let (a, b) = (self.l(lo, part)?, self.l(hi, part)?);
                // The destination may be a source only as a whole, which the types exclude.
                self.emit(Op::MovL(R1 { d, a }));
                self.emit(Op::MovL(R1 { d: d + 1, a: b }));
            }
            (Slot::Q(d), [p0, p1, p2, p3]) => {
                let (a, b) = (self.w(p0, part)?, self.w(p1, part)?);
                self.emit(Op::PackL(R2 { d, a, b }));
                let (a, b) = (self.w(p2, part)?, self.w(p3, part)?);
                self.emit(Op::PackL(R2 { d: d + 1, a, b }));
            }
            (Slot::W(d), bytes) => {
                // Built up from the top in a temporary: shift left by 8, insert the next byte.
                let eight = self.regs.literal32(8);
                let mut so_far = self.regs.literal32(0);
                for byte in bytes.iter().rev() {
                    let (shifted, low, next) = (self.regs.temp32(), self.regs.temp32(), self.regs.temp32());
                    let a = self.w(byte, part)?;
                    self.emit(Op::ShlW(R2 { d: shifted, a: so_far, b: eight }));
                    self.emit(Op::Zext8(R1 { d: low, a }));
                    self.emit(Op::OrW(R2 { d: next, a: shifted, b: low }));
                    so_far = next;
                }
                self.emit(Op::MovW(R1 { d, a: so_far }));
            }
            _ => return self.error("the parts do not make up the whole"),
        }
        Ok(())
    }

    pub(super) fn unpack(&mut self, ty: ScalarType, dsts: &[Option<Reg>], src: &Operand) -> Result<()> {
        let part_bits = ty.bits() / (dsts.len().max(1) as u32);
        match self.source(src, ty)? {
            Slot::Q(a) => {
                for (i, dst) in dsts.iter().enumerate() {
                    let Some(dst) = dst else { continue };
                    let row = a + index(i) * part_bits / 64;
                    match self.slot(*dst)? {
                        Slot::L(d) => self.emit(Op::MovL(R1 { d, a: row })),
                        Slot::W(d) if i % 2 == 0 => self.emit(Op::TruncL(R1 { d, a: row })),
                        Slot::W(d) => self.emit(Op::HighL(R1 { d, a: row })),
                        _ => return self.error("wrong destination"),
                    }
                }
            }
            Slot::L(a) => {
                for (i, dst) in dsts.iter().enumerate() {
                    let Some(dst) = dst else { continue };
                    let d = self.dst_w(*dst)?;
                    match (part_bits, i) {
                        (32, 0) => self.emit(Op::TruncL(R1 { d, a })),
                        (32, _) => self.emit(Op::HighL(R1 { d, a })),
                        (16, 0) => self.emit(Op::Trunc16L(R1 { d, a })),
                        (16, _) => {
                            let (shifted, b) = (self.regs.temp64(), self.regs.literal32(16 * index(i)));
                            self.emit(Op::ShrU64(R2 { d: shifted, a, b }));
                            self.emit(Op::Trunc16L(R1 { d, a: shifted }));
                        }
                        _ => return self.error("the parts do not make up the whole"),
                    }
                }
            }
            Slot::W(a) => {
                // 16-bit halves or bytes; a destination is never the source, whose type is wider.
                for (i, dst) in dsts.iter().enumerate() {
                    let Some(dst) = dst else { continue };
                    let d = self.dst_w(*dst)?;
                    match (part_bits, i) {
                        (16, 0) => self.emit(Op::Zext16(R1 { d, a })),
                        (16, _) => self.emit(Op::High16(R1 { d, a })),
                        (8, _) => {
                            let (shifted, b) = (self.regs.temp32(), self.regs.literal32(8 * index(i)));
                            self.emit(Op::ShrU32(R2 { d: shifted, a, b }));
                            self.emit(Op::Zext8(R1 { d, a: shifted }));
                        }
                        _ => return self.error("the parts do not make up the whole"),
                    }
                }
            }
            Slot::P(_) => return self.error("a predicate cannot be taken apart"),
        }
        Ok(())
    }
}
