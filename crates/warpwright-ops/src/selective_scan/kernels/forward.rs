//! The results: a walk along the positions.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::{Block, Config, Problem, Share, Tile, batch, chunk, sums_over_lanes};

kernel_args! {
    /// `states` are those before each chunk.
    pub(in crate::selective_scan) struct ForwardArgs => ForwardParams {
        problem: Problem, initial: Optional<In<Elem>>, y: Out<Elem>, last: Optional<Out<Elem>>, states: Optional<Out<Elem>>,
    }
}

/// A block for channels of a group of a sample.
#[derive(Clone, Copy, Debug)]
pub(in crate::selective_scan) struct Forward(pub(in crate::selective_scan) Config);

impl AccumulateKernel for Forward {
    type Args = ForwardArgs;

    fn spec(&self) -> KernelSpec {
        let spec = self.0.spec("");
        let dtypes = spec.dtypes.clone().accumulated(["initial", "last", "states"]);
        spec.dtypes(dtypes)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ForwardParams<'k>) {
        let (config, p, precision) = (self.0, a.problem, Precision::of(self.0.dtype));
        let block = Block::new(k, config, p);
        let [steps, inputs, sums]: [Tile<'k, A>; 3] = std::array::from_fn(|_| block.tile());
        let rows @ [b, c]: [Tile<'k, A>; 2] = std::array::from_fn(|_| block.rows());
        let (bias, d) = (block.of_channels::<A>(p.delta_bias), block.of_channels::<A>(p.d));
        let rates = block.rates::<A>();
        let positions = chunk(config.dtype);
        let chunks = (p.len + (positions - 1)) / positions;
        let own_state = block.state(block.sample);
        let state = block.numbers(a.initial.value.at(own_state), Some(a.initial.is_given()));
        let first = block.inputs::<A>(k.lit(0));
        let (state, _) = k.fold(k.range(0, p.len, positions), (state, first), |start, (state, now)| {
            let before = block.sample.mul_add(chunks, start / positions);
            let place = a.states.value.at(block.state(before));
            block.store_numbers(place, &state, a.states.is_given());
            let step: Vec<_> =
                block.steps(start, &now.delta, &bias).into_iter().map(|[_, step]| step).collect();
            let input: Vec<_> = step.iter().zip(&now.u).map(|(step, u)| step * u).collect();
            block.put(steps, &step);
            block.put(inputs, &input);
            block.put_rows(b, &now.b);
            block.put_rows(c, &now.c);
            let z = block.load::<A>(p.z.value, start, Some(p.z.is_given()));
            k.barrier();
            let next = block.inputs(start + positions);
            let state = self.walk(&block, &rates, ([steps, inputs], rows), sums, state);
            k.barrier();
            let y = block.take(sums).into_iter().zip(&now.u).zip(&d).map(|((sum, u), d)| u.mul_add(d, sum));
            let y = k.if_else(
                p.z.is_given(),
                || y.clone().zip(&z).map(|(y, z)| y * z.map(|z| z.silu_for(precision))).collect::<Vec<_>>(),
                || y.clone().collect(),
            );
            block.store(a.y, start, &y);
            (state, next)
        });
        block.store_numbers(a.last.value.at(own_state), &state, a.last.is_given());
    }
}

impl Forward {
    /// The state behind a chunk from that before it; the sums over the state at each position go to the tile `sums`.
    fn walk<'k, A: Accumulate>(
        &self,
        block: &Block<'k>,
        rates: &Lanes<'k, A>,
        ([steps, inputs], [b, c]): ([Tile<'k, A>; 2], [Tile<'k, A>; 2]),
        sums: Tile<'k, A>,
        state: Lanes<'k, A>,
    ) -> Lanes<'k, A> {
        let (k, Config { dtype, lanes, .. }) = (block.k, self.0);
        let (positions, at_once) = (chunk(dtype), batch(dtype));
        let share = Share::new(k.lane_idx() % lanes, lanes, at_once);
        k.fold(k.range(0, positions, at_once), state, |from, mut h| {
            let at = block.own(from);
            let (step, x) = (steps.at(at).load::<A>(at_once), inputs.at(at).load::<A>(at_once));
            let (b, c) = (block.batch_rows(b, from), block.batch_rows(c, from));
            let mut found = Vec::new();
            for (i, (step, x)) in step.iter().zip(x).enumerate() {
                let decay = rates.map(|rate| (rate * step).exp2_approx());
                h = decay.mul_add(&h, block.times_row(&b[i], x));
                found.push(
                    h.iter().zip(c[i].iter()).skip(1).fold(h[0] * c[i][0], |sum, (h, c)| h.mul_add(c, sum)),
                );
            }
            let found = sums_over_lanes(k, [1, lanes], found);
            sums.at(at + share.first).only_where(share.leads, Fill::Zero).store(found);
            h
        })
    }
}
