//! Warp exchange, barriers, fences and the rest.

use warpwright_ptx::{BarrierKind, Imm, Inst, Operand, ScalarType, ShflMode};

use super::{Decoder, Result, index};
use crate::code::barrier::{BarrierDecoded, BarrierOp};
use crate::code::collective::{Collective, CollectiveKind, Pattern, shuffle_source};
use crate::code::op::Op;

impl Decoder<'_> {
    pub(super) fn control(&mut self, inst: &Inst) -> Result<()> {
        let word = ScalarType::B32;
        let (kind, mask) = match inst {
            // Any lane of the whole warp: a table lookup, in which every source is inside.
            Inst::Shfl { mode: ShflMode::Idx, dst, pred: None, a, b, c, mask } if whole_warp(c) => {
                let kind = CollectiveKind::Lookup {
                    dst: self.dst_w(*dst)?,
                    a: self.w(a, word)?,
                    b: self.w(b, word)?,
                    c: self.w(c, word)?,
                };
                (kind, mask)
            }
            Inst::Shfl { mode, dst, pred, a, b, c, mask } => {
                let kind = CollectiveKind::Shuffle {
                    mode: *mode,
                    dst: self.dst_w(*dst)?,
                    pred: pred.map(|p| self.pred(p)).transpose()?,
                    a: self.w(a, word)?,
                    b: self.w(b, word)?,
                    c: self.w(c, word)?,
                    fixed: pattern(*mode, b, c),
                };
                (kind, mask)
            }
            Inst::Vote { mode, dst, src, mask } => {
                let kind = CollectiveKind::Vote {
                    mode: *mode,
                    dst: self.slot(*dst)?,
                    src: self.pred(src.reg)?,
                    negated: src.negated,
                };
                (kind, mask)
            }
            Inst::Match { all, ty, dst, pred, a, mask } => {
                let kind = CollectiveKind::Match {
                    all: *all,
                    dst: self.dst_w(*dst)?,
                    pred: pred.map(|p| self.pred(p)).transpose()?,
                    a: self.source(a, *ty)?,
                };
                (kind, mask)
            }
            Inst::Redux { op, ty, dst, a, mask, .. } => {
                let kind =
                    CollectiveKind::Redux { op: *op, ty: *ty, dst: self.dst_w(*dst)?, a: self.w(a, *ty)? };
                (kind, mask)
            }
            Inst::Elect { dst, pred, mask } => {
                let dst = dst.map(|d| self.dst_w(d)).transpose()?;
                (CollectiveKind::Elect { dst, pred: self.pred(*pred)? }, mask)
            }
            Inst::WarpBarrier { mask } => (CollectiveKind::Barrier, mask),
            Inst::Activemask { dst } => {
                let dst = self.dst_w(*dst)?;
                let mask = self.regs.literal32(u32::MAX);
                self.collective(CollectiveKind::Activemask { dst }, mask);
                return Ok(());
            }
            Inst::Barrier { kind, aligned, id, count } => {
                let kind = match kind {
                    BarrierKind::Sync => BarrierDecoded::Sync,
                    BarrierKind::Arrive => BarrierDecoded::Arrive,
                    BarrierKind::Reduce { op, dst, src } => BarrierDecoded::Reduce {
                        op: *op,
                        dst: self.slot(*dst)?,
                        src: self.pred(src.reg)?,
                        negated: src.negated,
                    },
                };
                let id = self.w(id, ScalarType::U32)?;
                let count = count.as_ref().map(|c| self.w(c, ScalarType::U32)).transpose()?;
                self.code.barriers.push(BarrierOp { kind, aligned: *aligned, id, count });
                let at = index(self.code.barriers.len() - 1);
                self.emit(Op::Barrier(at));
                return Ok(());
            }
            Inst::Fence { scope, .. } => {
                self.code.fences.push(*scope);
                let at = index(self.code.fences.len() - 1);
                self.emit(Op::Fence(at));
                return Ok(());
            }
            Inst::Nanosleep { duration } => {
                let nanoseconds = self.w(duration, ScalarType::U32)?;
                self.emit(Op::Yield { nanoseconds });
                return Ok(());
            }
            Inst::Brkpt => {
                self.emit(Op::Nothing);
                return Ok(());
            }
            Inst::Trap => {
                self.emit(Op::Trap);
                return Ok(());
            }
            _ => return self.error("not a control instruction"),
        };
        let mask = self.w(mask, word)?;
        self.collective(kind, mask);
        Ok(())
    }

    pub(super) fn collective(&mut self, kind: CollectiveKind, mask: u32) {
        self.code.collectives.push(Collective { kind, mask, shuffled: None });
        let at = index(self.code.collectives.len() - 1);
        let matrix =
            matches!(self.code.collectives.last(), Some(c) if matches!(c.kind, CollectiveKind::Matrix(_)));
        self.emit(if matrix { Op::Matrix(at) } else { Op::Collective(at) });
    }
}

/// Whether the clamp operand of an indexed shuffle is the literal that makes one segment of the warp.
fn whole_warp(c: &Operand) -> bool {
    matches!(c, Operand::Imm(Imm::Int(c)) if *c & 0x1F1F == 0x1F)
}

/// The source lanes of a shuffle with literal lane and clamp operands.
fn pattern(mode: ShflMode, b: &Operand, c: &Operand) -> Option<Box<Pattern>> {
    let (Operand::Imm(Imm::Int(b)), Operand::Imm(Imm::Int(c))) = (b, c) else { return None };
    let (b, c) = (*b as u32, *c as u32);
    let mut pattern = Pattern { source: [0; 32], inside: 0, exchange: None };
    for (lane, to) in (0u32..).zip(&mut pattern.source) {
        let (source, inside) = shuffle_source(mode, lane, b, c);
        *to = source as u8;
        pattern.inside |= u32::from(inside) << lane;
    }
    if mode == ShflMode::Bfly && pattern.inside == u32::MAX {
        pattern.exchange = Some(b & 31);
    }
    Some(Box::new(pattern))
}
