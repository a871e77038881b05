//! The kernel that any target and alignment has, on the ordinary units.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::kernel;
use crate::gemm::groups::{GroupArgs, Grouping};
use crate::gemm::plain::{Factor, SIDE, THREADS, Tile};

kernel_args! {
    /// Products of groups.
    pub(super) struct SimtArgs => SimtParams {
        a: In<Elem>, b: In<Elem>, y: Out<Elem>,
        m: u32, n: u32, depth: u32,
        lda: u64, ldb: u64, ldy: u64,
        stride_b: u64, stride_y: u64,
        groups: GroupArgs,
    }
}

/// Products of groups on the ordinary units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Simt {
    pub(super) dtype: DType,
    pub(super) grouping: Grouping,
    pub(super) a: Major,
    pub(super) b: Major,
}

/// A tile of the result, of a group.
struct Place<'k> {
    group: U32<'k>,
    row: U32<'k>,
    /// The row behind the last of the group.
    end: U32<'k>,
    /// The common dimension.
    common: (U32<'k>, U32<'k>),
}

impl Simt {
    /// Stores the tile that begins at column `col`.
    fn tile<'k>(&self, k: K<'k>, p: SimtParams<'k>, place: &Place<'k>, col: U32<'k>) {
        let Place { group, row, end, common } = *place;
        let (b, y) = match self.grouping {
            Grouping::M => (p.b.at(group.to_u64() * p.stride_b), p.y),
            Grouping::K => (p.b, p.y.at(group.to_u64() * p.stride_y)),
        };
        let a = Factor { from: p.a, leading: p.lda, major: self.a, outer: (row, end) };
        let b = Factor { from: b, leading: p.ldb, major: self.b, outer: (col, p.n) };
        let tile = Tile::new(k, a, b);
        let sums = tile.sums(common, common.1);
        for (i, sums) in (0..).zip(&sums) {
            let row = row + tile.mine.0 + i;
            for (j, sum) in (0..).zip(sums) {
                let col = col + tile.mine.1 + j;
                let to = y.at(row.to_u64() * p.ldy + col.to_u64());
                to.only_where(row.lt(end) & col.lt(p.n), Fill::Zero).set(*sum);
            }
        }
    }
}

impl KernelDef for Simt {
    type Args = SimtArgs;

    fn spec(&self) -> KernelSpec {
        let name = kernel::name(self.grouping, self.dtype, self.b, "simt");
        KernelSpec::new(name, BlockDim::x(THREADS)).dtypes(DTypes::all(self.dtype))
    }

    fn build<'k>(&self, k: K<'k>, p: SimtParams<'k>) {
        let across = (p.n + (SIDE - 1)) / SIDE;
        let block = k.block_idx_x();
        let (down, col) = (block / across, block % across * SIDE);
        match self.grouping {
            Grouping::M => {
                let at = p.groups.find(down, p.groups.first(), (SIDE, k.lit(1u32)));
                k.if_(at.group.le(p.groups.groups), || {
                    let row = (down - at.before).mul_add(SIDE, at.begin);
                    // Rows of no group are zeros.
                    let depth = at.group.lt(p.groups.groups).select(p.depth, 0);
                    let place = Place { group: at.group, row, end: at.end, common: (k.lit(0u32), depth) };
                    self.tile(k, p, &place, col);
                });
            }
            Grouping::K => {
                let of_group = (p.m + (SIDE - 1)) / SIDE;
                let group = down / of_group;
                let row = (down - group * of_group) * SIDE;
                let place = Place { group, row, end: p.m, common: p.groups.rows_of(group) };
                self.tile(k, p, &place, col);
            }
        }
    }
}
