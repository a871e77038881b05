//! The asynchronous copies of a warp, from vectors in device memory to its stages.

use warpwright_dsl::WARP;
use warpwright_dsl::prelude::*;
use warpwright_ptx::{Address, CacheOp, Inst, L2Prefetch, SourceLimit};

use super::{Flagged, PIECE, Slot, Staging};
use crate::recurrent::persistent::gemm::StepGemm;

/// The stages of a warp in shared memory.
pub(super) trait Destination<'k> {
    /// The address that the lane copies to in the stage at `stage`, so many rows and elements behind its first.
    fn address(&self, stage: U32<'k>, down: u32, right: u32) -> Address;
}

/// The copies of a warp.
pub(super) struct Copies<'k, D> {
    k: K<'k>,
    gemm: StepGemm,
    staging: Staging,
    /// The first row of the lane, and whether it copies any.
    row: U32<'k>,
    inside: Option<Pred<'k>>,
    /// Whether the lane has a part in the last instruction for a row, if that is not for all.
    last: Option<Pred<'k>>,
    /// Instructions for a row, and rows between those of an instruction.
    pieces: u32,
    apart: u32,
    from: Ptr<'k, ReadWrite, u32>,
    pub(super) to: D,
}

impl<'k, D: Destination<'k>> Copies<'k, D> {
    /// Those of a step to `destination`, which is told where the stages of the warp begin, in elements, and the row and the column
    /// that the lane copies first.
    pub(super) fn new(
        k: K<'k>,
        flagged: &Flagged,
        slot: Slot<'k>,
        destination: impl FnOnce(U32<'k>, [U32<'k>; 2]) -> D,
    ) -> Self {
        let (gemm, staging) = (flagged.gemm, flagged.staging);
        let Staging { rows, columns, stages, .. } = staging;
        let size = gemm.element_bytes();
        let of_piece = PIECE / size;
        let pieces_of_row = columns / of_piece;
        // Lanes of a row; several rows, equally far apart, if there are few.
        let lanes = pieces_of_row.next_power_of_two().min(WARP);
        let apart = (rows / (WARP / lanes)).max(1);
        let (piece, row) = (k.lane_idx() % lanes, k.lane_idx() / lanes * apart);
        let uneven = lanes != pieces_of_row && pieces_of_row < WARP;
        let too_many = (WARP / lanes) > rows;
        let mut inside = uneven.then(|| piece.lt(pieces_of_row));
        if too_many {
            let there = row.lt(rows);
            inside = Some(inside.map_or(there, |inside| inside & there));
        }
        let first = k.warp_idx() * gemm.columns_of_warp() + piece * of_piece;
        let from = slot.words.cast::<u32>();
        let from = from.at(((row * gemm.depth + first).to_u64() * u64::from(size)) >> 2);
        let layout = flagged.sums();
        let (sums, between) = match staging.shares {
            true => (0, layout.of_part * 4),
            false => (layout.floats() * 4, stages.total_bytes()),
        };
        let start = (flagged.math.stored_bytes() + sums) / size + k.warp_idx() * (between / size);
        let to = destination(start, [row, piece]);
        let (pieces, rest) = (pieces_of_row.div_ceil(WARP), pieces_of_row % WARP);
        let last = (pieces > 1 && rest > 0).then(|| k.lane_idx().lt(rest));
        Self { k, gemm, staging, row, inside, last, pieces, apart, from, to }
    }

    /// Starts to copy chunk `chunk` of the vectors of `group`, where `there` holds, to the stage at `stage`. Vectors beyond
    /// the last become zeros.
    pub(super) fn start(&self, group: U32<'k>, chunk: u32, stage: U32<'k>, there: Option<Pred<'k>>) {
        let (k, gemm, staging) = (self.k, &self.gemm, self.staging);
        let of_group = u64::from(staging.rows * gemm.depth * gemm.element_bytes() / 4);
        let from = self.from.at(group.to_u64() * of_group);
        let guard = match (there, self.inside) {
            (Some(there), Some(inside)) => Some(there & inside),
            (there, inside) => there.or(inside),
        };
        let copy_all = || {
            for down in 0..self.apart {
                let limit = if gemm.batch.is_multiple_of(staging.rows) {
                    SourceLimit::Full
                } else {
                    let row = group * staging.rows + self.row + down;
                    SourceLimit::Bytes(row.lt(gemm.batch).select(PIECE, 0u32).as_operand())
                };
                for piece in 0..self.pieces {
                    let copy = || self.copy(from, stage, down, (chunk, piece), limit);
                    match self.last.filter(|_| piece + 1 == self.pieces) {
                        Some(last) => k.if_(last, copy),
                        None => copy(),
                    }
                }
            }
        };
        match guard {
            Some(guard) => k.if_(guard, copy_all),
            None => copy_all(),
        }
    }

    /// Starts to copy piece `piece` of a chunk, `down` rows below the lane's first.
    fn copy(
        &self,
        from: Ptr<'k, ReadWrite, u32>,
        stage: U32<'k>,
        down: u32,
        (chunk, piece): (u32, u32),
        limit: SourceLimit,
    ) {
        let size = self.gemm.element_bytes();
        let right = piece * WARP * PIECE / size;
        let dst = self.to.address(stage, down, right);
        let place = down * self.gemm.depth + chunk * self.staging.columns + right;
        self.k.raw(Inst::CpAsync {
            cache: CacheOp::Cg,
            l2_prefetch: L2Prefetch::Default,
            dst,
            src: from.at(u64::from(place * size / 4)).operand(),
            bytes: PIECE,
            limit,
            policy: None,
        });
    }
}
