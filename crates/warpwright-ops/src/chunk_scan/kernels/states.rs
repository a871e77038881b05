//! The states before chunks, one chunk after the other, and from the last to the first the gradients of the states behind them.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{WARP, kernel_args};

use super::{
    ChunkSteps, Config, RowParams, Rows, SLAB, STEP_BYTES, SizeParams, Sizes, Steps, StepsParams,
    first_state, first_step, rows_of_chunk,
};
use crate::chunk_scan::tuning::{self, CHUNK};

kernel_args! {
    /// `left` has elements of a head, `x` or `dy`; `right` the rows of a group, `B` or `C`.
    pub(in crate::chunk_scan) struct StateArgs => StateParams {
        left: Rows, right: Rows, steps: Steps, sizes: Sizes, first: Optional<In<f32>>, states: Out<Elem>,
        last: Optional<Out<f32>>,
    }
}

/// A block for some numbers of the states of a head.
#[derive(Clone, Copy, Debug)]
pub(in crate::chunk_scan) struct States {
    pub(in crate::chunk_scan) config: Config,
    /// Whether these are gradients.
    pub(in crate::chunk_scan) backward: bool,
}

impl States {
    /// Numbers of state of a block.
    const fn columns(self) -> u32 {
        if self.config.state < tuning::NUMBERS { self.config.state } else { tuning::NUMBERS }
    }

    /// Blocks of a head.
    pub(in crate::chunk_scan) const fn tiles(self) -> u32 {
        self.config.state / self.columns()
    }

    const fn right_tile(self) -> TileLayout {
        TileLayout::new(self.config.dtype, CHUNK, self.columns())
    }

    const fn stages(self) -> Stages {
        let bytes = self.config.head_tile().bytes() + self.right_tile().bytes() + STEP_BYTES;
        Stages { count: tuning::STAGES.0, bytes }
    }

    /// Bytes of dynamic shared memory.
    pub(in crate::chunk_scan) const fn shared_bytes(self) -> u32 {
        self.stages().total_bytes()
    }

    const fn threads(self) -> u32 {
        self.config.head / SLAB * WARP
    }
}

impl KernelDef for States {
    type Args = StateArgs;

    fn spec(&self) -> KernelSpec {
        let name = self.config.name(if self.backward { "_backward_states" } else { "_states" });
        KernelSpec::new(name, BlockDim::x(self.threads())).dtypes(DTypes::all(self.config.dtype))
    }

    fn build<'k>(&self, k: K<'k>, p: StateParams<'k>) {
        let Self { config, backward } = *self;
        let sizes: SizeParams<'k> = p.sizes;
        let (rest, tile) = (k.block_idx_x() / self.tiles(), k.block_idx_x() % self.tiles());
        let (sample, head) = (rest / sizes.heads, rest % sizes.heads);
        let (group, before) = (head / sizes.of_group, tile * self.columns());
        let base = k.dynamic_shared_elem(config.dtype);
        let left = k.tile_at(base, config.head_tile());
        let right = k.tile_at(base, self.right_tile()).moved(config.head_tile().bytes());
        let scalars = left.base() + (config.head_tile().bytes() + self.right_tile().bytes());
        let position = sample.mul_wide(sizes.len);
        let of_left = rows_of_chunk(config, left, p.left, position, head.mul_wide(sizes.head_dim));
        let first = group.mul_wide(sizes.state) + before.to_u64();
        let of_right = rows_of_chunk(config, right, p.right, position, first);
        let number = |step: U32<'k>| if backward { sizes.chunks - 1 - step } else { step };
        let copy = |step: U32<'k>, stage: U32<'k>, there: Pred<'k>| {
            let chunk = number(step);
            let start = chunk * CHUNK;
            let rows = (sizes.len - start).min(CHUNK);
            for (copy, RowParams { row, .. }, cols) in
                [(of_left, p.left, sizes.head_dim), (of_right, p.right, sizes.state.max(before) - before)]
            {
                copy.start_at(start.to_u64() * row, stage, [rows, cols], Some(there));
            }
            let steps: StepsParams<'k> = p.steps;
            ChunkSteps::at(k, scalars + stage).copy(k, steps, first_step(sizes, sample, head, chunk), there);
        };
        let part = Part { k, config, sizes, before, columns: self.columns() };
        let own = (sample.mul_wide(sizes.heads) + head.to_u64()) * sizes.head_dim.mul_wide(sizes.state);
        let state = part.load(p.first.value.at(own), p.first.is_given());
        let state = k.pipeline(self.stages(), sizes.chunks, copy, state, |step, stage, state| {
            let chunk = number(step);
            part.store(p.states.at(first_state(sizes, sample, head, chunk)), &state, None);
            let steps = ChunkSteps::at(k, scalars + stage);
            let end = steps.end();
            let mut next = &state * end.exp2_approx();
            let atom = k.mma_atom(config.dtype);
            let a = left.moved(stage).reader_a(atom, Major::Mn, k.warp_idx() * SLAB);
            let b = right.moved(stage).reader_b(atom, Major::Mn, k.lit(0u32));
            let (_, column) = k.accumulator_origin();
            for depth in (0..CHUNK).step_by(atom.k() as usize) {
                // Those of the columns of A that the lane has.
                let weight = |offset: u32| {
                    let at = column + (depth + offset);
                    let sums = steps.sum.at(at).load::<f32>(2);
                    if backward {
                        return sums.map(|sum| sum.exp2_approx());
                    }
                    steps.step.at(at).load::<f32>(2) * sums.map(|sum| (end - sum).exp2_approx())
                };
                let a = a.load(0, depth).times_columns(&Lanes::concat([weight(0), weight(8)]));
                let b: Vec<_> = (0..self.columns()).step_by(16).flat_map(|n| b.load_pair(n, depth)).collect();
                next.mma(0, &[a], &b);
            }
            next
        });
        part.store(p.last.value.at(own), &state, Some(p.last.is_given()));
    }
}

/// Numbers of a head's state: a warp has 16 elements of the head.
struct Part<'k> {
    k: K<'k>,
    config: Config,
    sizes: SizeParams<'k>,
    /// The first number, and how many there are.
    before: U32<'k>,
    columns: u32,
}

impl<'k> Part<'k> {
    /// Element of the head and number of the state of each pair of each row of the thread.
    fn places(&self) -> Vec<Vec<[U32<'k>; 2]>> {
        let (row, column) = self.k.accumulator_origin();
        let first = self.k.warp_idx().mul_add(SLAB, row);
        let of = |row: U32<'k>| {
            (0..self.columns).step_by(8).map(|block| [row, self.before + column + block]).collect()
        };
        [first, first + 8].map(of).to_vec()
    }

    /// For each element of a pair, where it lies and whether it is there; one for both if they are a vector.
    fn elements(&self, [row, number]: [U32<'k>; 2], given: Option<Pred<'k>>) -> Vec<(U64<'k>, Pred<'k>)> {
        let at = row.mul_wide(self.sizes.state) + number.to_u64();
        let of = |i: u32| {
            let there = row.lt(self.sizes.head_dim) & (number + i).lt(self.sizes.state);
            (at + u64::from(i), given.map_or(there, |given| given & there))
        };
        (0..if self.config.aligned { 1 } else { 2 }).map(of).collect()
    }

    fn load(&self, from: Ptr<'k, Read, f32>, given: Pred<'k>) -> RegTile<'k, f32> {
        let pair = |place: &[U32<'k>; 2]| {
            let elements = self.elements(*place, Some(given));
            let width = 2 / elements.len() as u32;
            let load = |(at, there)| from.at(at).only_where(there, Fill::Zero).load::<f32>(width);
            Lanes::concat(elements.into_iter().map(load)).iter().collect::<Vec<_>>()
        };
        let rows = self.places().iter().map(|row| row.iter().flat_map(pair).collect()).collect();
        RegTile::new(self.k, 4, rows)
    }

    fn store<E: Access<f32>>(
        &self,
        to: Ptr<'k, Write, E>,
        state: &RegTile<'k, f32>,
        given: Option<Pred<'k>>,
    ) {
        for (places, values) in self.places().into_iter().zip(state.rows()) {
            for (place, pair) in places.into_iter().zip(values.chunks(2)) {
                let elements = self.elements(place, given);
                let width = 2 / elements.len();
                for ((at, there), values) in elements.into_iter().zip(pair.chunks(width)) {
                    to.at(at).only_where(there, Fill::Zero).store(Lanes::from(values.to_vec()));
                }
            }
        }
    }
}
