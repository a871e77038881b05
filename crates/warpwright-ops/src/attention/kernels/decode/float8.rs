//! The kernels whose keys and values are of e4m3.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::super::mma::MmaEngine;
use super::super::simt::SimtEngine;
use super::tma::TmaEngine;
use super::{Decode, DecodeArgs, DecodeParams, Task, TmaDecodeArgs, TmaDecodeParams};
use crate::attention::tuning::{DecodeMma, DecodeTma, Simt};

kernel_args! {
    /// Scales of keys and of values, and numbers from that of a key head to that of the next: 0 if there is one for all.
    pub(in crate::attention) struct ScaleArgs => ScaleParams { k: In<f32>, v: In<f32>, steps: [u32; 2] }
}

kernel_args! {
    /// Those of the kernel for keys of the type of the queries, and the scales.
    pub(in crate::attention) struct ScaledArgs => ScaledParams { of: DecodeArgs, scales: ScaleArgs }
}

kernel_args! {
    /// The same with keys and values as tensor copies reach them.
    pub(in crate::attention) struct ScaledTmaArgs => ScaledTmaParams { of: TmaDecodeArgs, scales: ScaleArgs }
}

impl<'k> ScaleParams<'k> {
    /// The scales of the keys and the values of a head.
    pub(super) fn of_head(self, head: U32<'k>) -> [F32<'k>; 2] {
        [(self.k, self.steps[0]), (self.v, self.steps[1])].map(|(scale, step)| scale.at(head * step).get())
    }
}

/// The kernel of a layout for keys and values of e4m3.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Scaled<L>(pub(in crate::attention) Decode<L>);

impl AccumulateKernel for Scaled<Simt> {
    type Args = ScaledArgs;

    fn spec(&self) -> KernelSpec {
        let Self(decode) = self;
        let cached = ["of.problem.k", "of.problem.v"];
        decode.body().spec(["of.results.lse", "of.parts"], &cached)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ScaledParams<'k>) {
        let Self(decode) = self;
        k.start_next_grid();
        let grid = [k.block_idx_x(), k.block_idx_y(), k.block_idx_z()];
        let engine = SimtEngine::new(k, decode.layout, decode.dtype, 1);
        decode.body().build::<A, _>(k, task(a.of, a.scales), &engine, k.lit(0u32), grid);
    }
}

impl KernelDef for Scaled<DecodeMma> {
    type Args = ScaledArgs;

    fn spec(&self) -> KernelSpec {
        let Self(decode) = self;
        let cached = ["of.problem.k", "of.problem.v"];
        decode.body().spec(["of.results.lse", "of.parts"], &cached)
    }

    fn build<'k>(&self, k: K<'k>, a: ScaledParams<'k>) {
        let Self(decode) = self;
        k.start_next_grid();
        let grid = [k.block_idx_x(), k.block_idx_y(), k.block_idx_z()];
        let engine = MmaEngine::alone(k, decode.layout, [decode.dtype, decode.cache]);
        decode.body().build(k, task(a.of, a.scales), &engine, k.warp_idx(), grid);
    }
}

impl KernelDef for Scaled<DecodeTma> {
    type Args = ScaledTmaArgs;

    fn spec(&self) -> KernelSpec {
        let Self(decode) = self;
        let cached = ["of.of.problem.k", "of.of.problem.v"];
        decode.body().spec(["of.of.results.lse", "of.of.parts"], &cached)
    }

    fn build<'k>(&self, k: K<'k>, a: ScaledTmaParams<'k>) {
        let Self(decode) = self;
        let TmaDecodeParams { of, k_boxes, v_boxes } = a.of;
        k.start_next_grid();
        let team = decode.layout.team(k);
        let grid = [k.block_idx_x(), k.block_idx_y(), k.block_idx_z()];
        let (dtypes, head) = ([decode.dtype, decode.cache], [grid[1], grid[2]]);
        let engine = TmaEngine::new(k, decode.layout, dtypes, [k_boxes, v_boxes], head, decode.kind.lengths);
        decode.body().build(k, task(of, a.scales), &engine, team, grid);
    }
}

fn task<'k>(of: DecodeParams<'k>, scales: ScaleParams<'k>) -> Task<'k> {
    Task { scales: Some(scales), ..Task::of(of) }
}
