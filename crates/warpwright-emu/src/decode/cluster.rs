//! Instructions of clusters, and of the grids and registers around them.

use warpwright_ptx::{Inst, ScalarType, Semantics, StateSpace};

use super::{Decoder, Result, index};
use crate::code::barrier::ClusterOp;
use crate::code::op::Op;

impl Decoder<'_> {
    pub(super) fn cluster(&mut self, inst: &Inst) -> Result<()> {
        let op = match inst {
            // Without semantics written, arriving releases.
            Inst::ClusterBarrier { arrive: true, semantics, aligned } => {
                ClusterOp::Arrive { aligned: *aligned, release: *semantics != Semantics::Relaxed }
            }
            Inst::ClusterBarrier { arrive: false, aligned, .. } => ClusterOp::Wait { aligned: *aligned },
            Inst::Mapa { space, ty, dst, a, rank } => ClusterOp::Map {
                dst: self.slot(*dst)?,
                a: self.source(a, *ty)?,
                rank: self.source(rank, ScalarType::U32)?,
                generic: *space == StateSpace::Generic,
            },
            Inst::GetCtaRank { space, ty, dst, a } => ClusterOp::Rank {
                dst: self.slot(*dst)?,
                a: self.source(a, *ty)?,
                generic: *space == StateSpace::Generic,
            },
            Inst::SetMaxNreg { .. } => ClusterOp::SetMaxRegisters,
            // Without a dependent launch there is nothing to wait for and nobody to start.
            Inst::GridDepControl { .. } => {
                self.emit(Op::Nothing);
                return Ok(());
            }
            _ => return self.error("not an instruction about clusters"),
        };
        self.code.clusters.push(op);
        let at = index(self.code.clusters.len() - 1);
        self.emit(Op::Cluster(at));
        Ok(())
    }
}
