//! The results of a chunk for some heads of a group.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::{
    ChunkSteps, Config, Place, Rows, STEP_BYTES, Share, SizeParams, Sizes, Steps, TileRows, first_state,
    first_step, rows_of_chunk, settle,
};
use crate::chunk_scan::tuning::{self, CHUNK};

kernel_args! {
    /// `parts` blocks share the heads of a group.
    pub(in crate::chunk_scan) struct OutputArgs => OutputParams {
        x: Rows, b: Rows, c: Rows, steps: Steps, states: In<Elem>, d: Optional<In<f32>>, y: Out<Elem>, sizes: Sizes, parts: u32,
    }
}

/// A block for some heads of a group in a chunk.
#[derive(Clone, Copy, Debug)]
pub(in crate::chunk_scan) struct Outputs(pub(in crate::chunk_scan) Config);

impl Outputs {
    const fn stages(self) -> Stages {
        let bytes = self.0.head_tile().bytes() + self.0.state_tile().bytes() + STEP_BYTES;
        Stages { count: tuning::STAGES.1, bytes }
    }

    /// Bytes of what all heads share.
    const fn shared_by_heads(self) -> u32 {
        2 * self.0.row_tile().bytes() + self.0.pair_tile().bytes()
    }

    /// Bytes of dynamic shared memory.
    pub(in crate::chunk_scan) const fn shared_bytes(self) -> u32 {
        self.shared_by_heads() + self.stages().total_bytes()
    }
}

impl KernelDef for Outputs {
    type Args = OutputArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(self.0.name(""), BlockDim::x(self.0.threads()))
            .dtypes(DTypes::all(self.0.dtype))
            .min_blocks_per_sm(1)
    }

    fn build<'k>(&self, k: K<'k>, p: OutputParams<'k>) {
        let config = self.0;
        let sizes: SizeParams<'k> = p.sizes;
        let place = Place::new(k, config);
        let share = Share::new(k, sizes, p.parts);
        let base = k.dynamic_shared_elem(config.dtype);
        let c = k.tile_at(base, config.row_tile());
        let b = c.moved(config.row_tile().bytes());
        let pairs = k.tile_at(base, config.pair_tile()).moved(2 * config.row_tile().bytes());
        let x = k.tile_at(base, config.head_tile()).moved(self.shared_by_heads());
        let of_state = self.shared_by_heads() + config.head_tile().bytes();
        let state = k.tile_at(base, config.state_tile()).moved(of_state);
        let scalars = state.base() + config.state_tile().bytes();
        let position = share.position(sizes);
        let here = share.here;
        for (tile, from) in [(b, p.b), (c, p.c)] {
            let copy = rows_of_chunk(config, tile, from, position, share.group.mul_wide(sizes.state));
            copy.start([here, sizes.state]);
        }
        settle(k, config);
        let products = place.product((c, Major::K), (b, Major::K), [CHUNK, config.state]);
        let of_x = rows_of_chunk(config, x, p.x, position, share.head.mul_wide(sizes.head_dim));
        let of_state = sizes.head_dim.mul_wide(sizes.state);
        let first = p.states.at(first_state(sizes, share.sample, share.head, share.chunk));
        let of_states = TileRows::new(config, state, first, sizes.state.to_u64());
        let copy = |step: U32<'k>, stage: U32<'k>, there: Pred<'k>| {
            of_x.start_at(step.mul_wide(sizes.head_dim), stage, [here, sizes.head_dim], Some(there));
            of_states.start_at(step.to_u64() * of_state, stage, [sizes.head_dim, sizes.state], Some(there));
            let from = first_step(sizes, share.sample, share.head + step, share.chunk);
            ChunkSteps::at(k, scalars + stage).copy(k, p.steps, from, there);
        };
        k.pipeline(self.stages(), share.heads, copy, (), |step, stage, ()| {
            let head = share.head + step;
            let (x, state) = (x.moved(stage), state.moved(stage));
            let weights = place.weights(ChunkSteps::at(k, scalars + stage));
            let weighted = products.map(|row, column, product| {
                weights.masked(row, column, product * weights.decay(row, column) * weights.steps[column])
            });
            place.put(pairs, &weighted);
            let d = p.d.value.at(head).only_where(p.d.is_given(), Fill::Zero).get::<f32>();
            k.barrier();
            let before = place.product((c, Major::K), (state, Major::K), [config.head, config.state]);
            let before = before.map(|row, _, sum| sum * weights.rows[row][0].exp2_approx());
            let mut y = before.zip(&place.take(x), |sum, x| x.mul_add(d, sum));
            place.add(&mut y, (pairs, Major::K), (x, Major::Mn), [config.head, CHUNK]);
            // Results take the place of `x`.
            k.barrier();
            place.put(x, &y);
            k.barrier();
            let of_y = sizes.heads.mul_wide(sizes.head_dim);
            let to = p.y.at(position * of_y + head.mul_wide(sizes.head_dim));
            place.store(x, to, of_y, [here, sizes.head_dim]);
        });
    }
}
