//! Products of operands that are pairs of `f16`.

use warpwright_dsl::WARP;
use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::split::LOW;
use crate::gemm::Major;
use crate::gemm::engine::{Blocks, Epilogue, Joined, ResultPanel, Store, WorkArgs};
use crate::gemm::epilogue::{Even, Program, ResultParams};
use crate::gemm::tuning::PersistentConfig;

kernel_args! {
    /// An operand as it was before it was split.
    pub(super) struct SourceArgs => SourceParams {
        x: In<Elem>,
        /// For each row of `op(a)` or column of `op(b)`.
        scales: In<f32>,
        /// Elements to what has the next scale, along the common dimension, and to the next matrix.
        outer: u64, along: u64, stride: u64,
    }
}

kernel_args! {
    /// `y = activation(alpha op(a) op(b) + beta c + bias)`
    pub(super) struct F16x3Args => F16x3Params {
        work: WorkArgs, alpha: f32, beta: f32,
        a: SourceArgs, b: SourceArgs,
        /// The common dimension.
        depth: u32,
        /// The least magnitude of a sum of scaled elements whose error is that of `f32` whatever pairs lack.
        least: f32,
    }
}

/// A product whose operands have been split.
#[derive(Clone, Copy, Debug)]
pub(super) struct F16x3Gemm {
    /// How `op(a)` and `op(b)` are stored.
    pub(super) a: Major,
    pub(super) b: Major,
    pub(super) config: PersistentConfig,
    pub(super) program: Program,
    pub(super) store: Store,
}

impl F16x3Gemm {
    pub(super) fn blocks(&self) -> Blocks {
        let Self { a, b, config, store, .. } = *self;
        let slices = config.tiles(DType::F16, a, b);
        let part_of_b = config.part_of_b(DType::F16, b);
        Blocks { slices, part_of_b, y: DType::F32, config, store, planes: Some(LOW.recip()), turns: false }
    }
}

impl KernelDef for F16x3Gemm {
    type Args = F16x3Args;

    fn spec(&self) -> KernelSpec {
        let rows = if self.store == Store::Rows { "_rows" } else { "" };
        let name = format!("f16x3_{}{rows}{}", self.config.name(), self.program.name());
        let name = crate::gemm::kernel::name(DType::F32, (self.a, self.b), &name, false);
        KernelSpec::new(name, BlockDim::x(self.blocks().threads()))
            .dtypes(DTypes::all(DType::F32))
            .cluster(self.config.cluster)
            .min_blocks_per_sm(1)
    }

    fn build<'k>(&self, k: K<'k>, p: F16x3Params<'k>) {
        k.after_previous_grid();
        self.blocks().record(k, p.work, None, &Finish { program: self.program, p });
    }
}

/// The scales of a lane's rows, and of columns.
struct Scales<'k> {
    of_rows: [F32<'k>; 2],
    of_cols: Ptr<'k, Read, f32>,
    cols: U32<'k>,
}

impl<'k> Scales<'k> {
    /// That of a column, 0 behind the last.
    fn of_col(&self, col: U32<'k>) -> F32<'k> {
        self.of_cols.at(col).only_where(col.lt(self.cols), Fill::Zero).get::<f32>()
    }
}

/// The epilogue: sums times their scales, and again from the operands where that may be too far from what `f32` gives.
struct Finish<'k> {
    program: Program,
    p: F16x3Params<'k>,
}

impl<'k> Finish<'k> {
    fn results(
        &self,
        to: &ResultParams<'k>,
        at: (U32<'k>, U32<'k>),
        sums: [F32<'k>; 2],
        even: Even,
    ) -> [F32<'k>; 2] {
        let F16x3Params { work, alpha, beta, .. } = self.p;
        self.program.pair(to, (work.m, work.n, work.ldy), (alpha, beta), at, (sums, None), even)
    }

    /// The product of a row and a column in `f32`, for a warp.
    fn product(&self, batch: U32<'k>, (row, col): (U32<'k>, U32<'k>)) -> F32<'k> {
        let k = row.k();
        let F16x3Params { a, b, depth, .. } = self.p;
        let of = |source: SourceParams<'k>, outer: U32<'k>| {
            source.x.at(batch.to_u64() * source.stride + outer.to_u64() * source.outer)
        };
        let (from_a, from_b) = (of(a, row), of(b, col));
        let mine = k.fold(k.range(k.lane_idx(), depth, WARP), k.lit(0.0f32), |i, sum| {
            let [x, y] = [(from_a, a), (from_b, b)]
                .map(|(from, source)| from.at(i.to_u64() * source.along).get::<f32>());
            x.mul_add(y, sum)
        });
        k.warp_combine(WARP, mine, |a, b| a + b)
    }

    /// The bits of sums that may lack too much of elements that pairs do not hold: of numbers with scales that say so, small beside the
    /// largest.
    fn doubtful(
        &self,
        scales: &Scales<'k>,
        panel: &ResultPanel<'k>,
        right: U32<'k>,
        sums: &[Joined<'k>],
    ) -> U32<'k> {
        let k = right.k();
        let mut bits = k.lit(0u32);
        for (pair, (down, at, sums)) in (0..).zip(sums) {
            let of_row = scales.of_rows[(down / 8) as usize];
            for (i, sum) in (0..).zip(sums[0]) {
                let of_col = scales.of_col(panel.col + right + (at - panel.right + i));
                let lacks = of_row.lt(0.0) | of_col.lt(0.0);
                // What is zero as a whole lacks nothing.
                let some = of_row.ne(0.0) & of_col.ne(0.0);
                let small = !sum.abs().ge(self.p.least);
                bits = (lacks & some & small).select(bits | (1u32 << (2 * pair + i)), bits);
            }
        }
        bits
    }
}

impl<'k> Epilogue<'k> for Finish<'k> {
    type Rows = Scales<'k>;

    fn rows(&self, batch: U32<'k>, row: &dyn Fn(u32) -> U32<'k>) -> Scales<'k> {
        let F16x3Params { work, a, b, .. } = self.p;
        let of_rows = a.scales.at((batch * work.batch_a).mul_wide(work.m));
        let of_row = |row: U32<'k>| of_rows.at(row).only_where(row.lt(work.m), Fill::Zero).get::<f32>();
        let of_cols = b.scales.at((batch * work.batch_b).mul_wide(work.n));
        Scales { of_rows: [of_row(row(0)), of_row(row(8))], of_cols, cols: work.n }
    }

    fn pair(
        &self,
        to: &ResultParams<'k>,
        scales: &Scales<'k>,
        ((row, down), col): ((U32<'k>, u32), U32<'k>),
        sums: [F32<'k>; 2],
        even: Even,
    ) -> [F32<'k>; 2] {
        let of_row = scales.of_rows[(down / 8) as usize].abs();
        let sums = [0, 1].map(|i| sums[i as usize] * of_row * scales.of_col(col + i).abs());
        self.results(to, (row, col), sums, even)
    }

    fn mend(&self, to: &ResultParams<'k>, scales: &Scales<'k>, panel: &ResultPanel<'k>, sums: &[Joined<'k>]) {
        let k = panel.row.k();
        let lane = k.lane_idx();
        // A panel of `f32` has as many columns as a warp has lanes.
        let lacks = [scales.of_rows[0], scales.of_rows[1], scales.of_col(panel.col + lane)];
        let lacks = lacks.map(|scale| scale.lt(0.0));
        k.if_((lacks[0] | lacks[1] | lacks[2]).vote_any(), || {
            let (down, right) = k.accumulator_origin();
            let doubtful = self.doubtful(scales, panel, right, sums);
            panel.mend((lane, down, right), doubtful, |at| {
                let sum = self.product(panel.batch, at);
                let even = Even { rows: false, bias: false };
                self.results(to, (at.0, at.1 & !1), [sum; 2], even)
            });
        });
    }
}
