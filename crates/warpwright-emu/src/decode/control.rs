//! Warp exchange, barriers, fences and the rest.

use warpwright_ptx::{BarrierKind, Inst, ScalarType};

use super::{BarrierDecoded, BarrierOp, Collective, CollectiveKind, Decoder, Result, index};
use crate::exec::ops::Op;

impl Decoder<'_> {
    pub(super) fn control(&mut self, inst: &Inst) -> Result<()> {
        let word = ScalarType::B32;
        let (kind, mask) = match inst {
            Inst::Shfl { mode, dst, pred, a, b, c, mask } => {
                let kind = CollectiveKind::Shuffle {
                    mode: *mode,
                    dst: self.dst_w(*dst)?,
                    pred: pred.map(|p| self.pred(p)).transpose()?,
                    a: self.w(a, word)?,
                    b: self.w(b, word)?,
                    c: self.w(c, word)?,
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
            Inst::Redux { op, ty, dst, a, mask } => {
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
            Inst::Nanosleep { .. } => {
                self.emit(Op::Yield);
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

    fn collective(&mut self, kind: CollectiveKind, mask: u32) {
        self.code.collectives.push(Collective { kind, mask });
        let at = index(self.code.collectives.len() - 1);
        self.emit(Op::Collective(at));
    }
}
