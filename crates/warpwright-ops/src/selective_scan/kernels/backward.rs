//! The gradients: chunks from the last to the first, each walked along once for its states and back for the gradients.

use warpwright_dsl::WARP;
use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::{Block, Config, Place, Problem, Share, Tile, WARPS, batch, chunk, sums_over_lanes};
use crate::selective_scan::tuning::{OWN, THREADS};

kernel_args! {
    /// `states` are those before each chunk. `rows` has for each block of a group what it gives to the gradients of `B` and `C`,
    /// `elements` each; `parameters` for each sample what it gives to those of `A`, of `D` and of the bias.
    pub(in crate::selective_scan) struct BackwardArgs => BackwardParams {
        problem: Problem, states: In<Elem>, dy: In<Elem>, dlast: Optional<In<Elem>>, du: Out<Elem>, ddelta: Out<Elem>,
        dz: Optional<Out<Elem>>, dinitial: Optional<Out<Elem>>, rows: Out<Elem>, parameters: Out<Elem>, elements: u64,
    }
}

/// A block for channels of a group of a sample.
#[derive(Clone, Copy, Debug)]
pub(in crate::selective_scan) struct Backward(pub(in crate::selective_scan) Config);

/// The state of the walk back: of a thread's numbers of state the gradient that later positions give them, and the sums of that of
/// `a`; of its channel the sums of those of `d` and of the bias, at its positions.
struct Carried<'k, A: Float> {
    dh: Lanes<'k, A>,
    da: Lanes<'k, A>,
    dd: Reg<'k, A>,
    dbias: Reg<'k, A>,
}

carry!(Carried<A: Float> { dh, da, dd, dbias });

/// The tiles of a chunk. What gradients replace in place is `u`, `slope` and `gate`.
struct Tiles<'k, A: Accumulate> {
    step: Tile<'k, A>,
    u: Tile<'k, A>,
    /// The slope of `softplus`.
    slope: Tile<'k, A>,
    /// The gradient of the sum in front of the gate.
    dy: Tile<'k, A>,
    /// The gradient of `y` times the slope of the gate.
    gate: Tile<'k, A>,
    b: Tile<'k, A>,
    c: Tile<'k, A>,
    /// The thread's state before each batch of positions.
    starts: Tile<'k, A>,
    /// The share of each warp in the gradients of the rows of a batch.
    partial: Tile<'k, A>,
}

impl AccumulateKernel for Backward {
    type Args = BackwardArgs;

    fn spec(&self) -> KernelSpec {
        let spec = self.0.spec("_backward");
        let dtypes = spec.dtypes.clone().accumulated(["states", "dlast", "dinitial", "rows", "parameters"]);
        spec.dtypes(dtypes)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: BackwardParams<'k>) {
        let (config, p) = (self.0, a.problem);
        let block = Block::new(k, config, p);
        let tiles = self.tiles::<A>(&block);
        let bias = block.of_channels::<A>(p.delta_bias);
        let rates = block.rates::<A>();
        let d = p.d.value.at(block.first + block.channel);
        let d = d.only_where(block.channel.lt(block.here) & p.d.is_given(), Fill::Zero).get::<A>();
        let positions = chunk(config.dtype);
        let chunks = (p.len + (positions - 1)) / positions;
        let own_state = block.state(block.sample);
        let zeros = || Lanes::constant(k, 0.0, OWN);
        let dh = block.numbers(a.dlast.value.at(own_state), Some(a.dlast.is_given()));
        let carried = Carried { dh, da: zeros(), dd: k.lit(0.0), dbias: k.lit(0.0) };
        let found = k.fold(k.range(0, chunks, 1), carried, |i, carried| {
            let number = chunks - 1 - i;
            let start = number * positions;
            self.stage(&block, a, &tiles, start, &bias);
            k.barrier();
            let state = block.numbers(a.states.at(block.state(block.sample.mul_add(chunks, number))), None);
            self.starts(&block, &rates, &tiles, state);
            let carried = k.fold(k.range(0, positions, batch(config.dtype)), carried, |done, carried| {
                let from = positions - batch(config.dtype) - done;
                let carried = self.batch(&block, (&rates, d), &tiles, p.z.is_given(), [start, from], carried);
                k.barrier();
                self.store_rows(&block, a, &tiles, start, from);
                k.barrier();
                carried
            });
            block.store(a.du, start, &block.take(tiles.u));
            block.store(a.ddelta, start, &block.take(tiles.slope));
            k.if_(a.dz.is_given(), || block.store(a.dz.value, start, &block.take(tiles.gate)));
            carried
        });
        block.store_numbers(a.dinitial.value.at(own_state), &found.dh, a.dinitial.is_given());
        self.store_parameters(&block, a, found);
    }
}

impl Backward {
    fn tiles<'k, A: Accumulate>(&self, block: &Block<'k>) -> Tiles<'k, A> {
        let Config { dtype, .. } = self.0;
        let batches = chunk(dtype) / batch(dtype);
        Tiles {
            step: block.tile(),
            u: block.tile(),
            slope: block.tile(),
            dy: block.tile(),
            gate: block.tile(),
            b: block.rows(),
            c: block.rows(),
            starts: block.k.shared(batches * THREADS * OWN),
            partial: block.k.shared(2 * WARPS * batch(dtype) * self.0.states()),
        }
    }

    /// Puts the inputs of a chunk into its tiles.
    fn stage<'k, A: Accumulate>(
        &self,
        block: &Block<'k>,
        a: BackwardParams<'k>,
        tiles: &Tiles<'k, A>,
        start: U32<'k>,
        bias: &[Lanes<'k, A>],
    ) {
        let (k, p, precision) = (block.k, a.problem, Precision::of(self.0.dtype));
        let now = block.inputs::<A>(start);
        let dy = block.load::<A>(a.dy, start, None);
        let z = block.load::<A>(p.z.value, start, Some(p.z.is_given()));
        let steps = block.steps(start, &now.delta, bias);
        // Where there is no element the slope is 0 like the step, or sums would have what later positions give it.
        let slope = |(&place, [x, _]): (&Place<'k>, &[Lanes<'k, A>; 2])| {
            let one = || Lanes::constant(k, 1.0, x.len() as u32);
            let slope = k.if_else(p.softplus.ne(0), || x.map(|x| x.sigmoid()), one);
            block.where_live(place, start, slope)
        };
        let slope: Vec<_> = block.places.iter().zip(&steps).map(slope).collect();
        let step: Vec<_> = steps.into_iter().map(|[_, step]| step).collect();
        block.put(tiles.step, &step);
        block.put(tiles.u, &now.u);
        block.put(tiles.slope, &slope);
        block.put_rows(tiles.b, &now.b);
        block.put_rows(tiles.c, &now.c);
        let gated = |dy: &Lanes<'k, A>, z: &Lanes<'k, A>, f: &dyn Fn(Reg<'k, A>) -> Reg<'k, A>| dy * z.map(f);
        k.if_else(
            p.z.is_given(),
            || {
                let of = |f: &dyn Fn(Reg<'k, A>) -> Reg<'k, A>| -> Vec<_> {
                    dy.iter().zip(&z).map(|(dy, z)| gated(dy, z, f)).collect()
                };
                block.put(tiles.dy, &of(&|z| z.silu_for(precision)));
                block.put(tiles.gate, &of(&|z| z.silu_slope_for(precision)));
            },
            || block.put(tiles.dy, &dy),
        );
    }

    /// The place of the thread's state before the batch at `from`.
    fn start<'k, A: Accumulate>(
        &self,
        block: &Block<'k>,
        tiles: &Tiles<'k, A>,
        from: U32<'k>,
    ) -> Tile<'k, A> {
        let number = from / batch(self.0.dtype);
        tiles.starts.at((number * THREADS + block.k.thread_idx()) * OWN)
    }

    /// Walks along a chunk for the states before its batches.
    fn starts<'k, A: Accumulate>(
        &self,
        block: &Block<'k>,
        rates: &Lanes<'k, A>,
        tiles: &Tiles<'k, A>,
        state: Lanes<'k, A>,
    ) {
        let (k, at_once) = (block.k, batch(self.0.dtype));
        let last = chunk(self.0.dtype) - at_once;
        let state = k.fold(k.range(0, last, at_once), state, |from, mut h| {
            self.start(block, tiles, from).store(h.clone());
            let at = block.own(from);
            let (step, u) = (tiles.step.at(at).load::<A>(at_once), tiles.u.at(at).load::<A>(at_once));
            for ((step, u), b) in step.iter().zip(u).zip(block.batch_rows(tiles.b, from)) {
                let decay = rates.map(|rate| (rate * step).exp2_approx());
                h = decay.mul_add(&h, block.times_row(&b, step * u));
            }
            h
        });
        self.start(block, tiles, k.lit(last)).store(state);
    }

    /// The gradients of a batch of positions: those of `u`, of the steps and of the gate go to their tiles, what the warp gives to
    /// those of the rows to `partial`.
    fn batch<'k, A: Accumulate>(
        &self,
        block: &Block<'k>,
        (rates, d): (&Lanes<'k, A>, Reg<'k, A>),
        tiles: &Tiles<'k, A>,
        is_gated: Pred<'k>,
        [start, from]: [U32<'k>; 2],
        carried: Carried<'k, A>,
    ) -> Carried<'k, A> {
        let (k, Config { dtype, lanes, .. }) = (block.k, self.0);
        let (at_once, at) = (batch(dtype), block.own(from));
        let [step, u, dy] = [tiles.step, tiles.u, tiles.dy].map(|tile| tile.at(at).load::<A>(at_once));
        let input = &step * &u;
        let (b, c) = (block.batch_rows(tiles.b, from), block.batch_rows(tiles.c, from));
        let mut states = vec![self.start(block, tiles, from).load::<A>(OWN)];
        let mut decays = Vec::new();
        let mut y = Vec::new();
        for i in 0..at_once as usize {
            let decay = rates.map(|rate| (rate * step[i]).exp2_approx());
            let h = decay.mul_add(&states[i], block.times_row(&b[i], input[i]));
            y.push(dot(&h, &c[i]));
            decays.push(decay);
            states.push(h);
        }
        let Carried { mut dh, mut da, dd, dbias } = carried;
        let (mut of_input, mut of_exponents, mut db, mut dc) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for i in (0..at_once as usize).rev() {
            dh = match self.0.whole {
                true => c[i].mul_add(dy[i], &dh),
                false => dh + block.times_row(&c[i], dy[i]),
            };
            of_input.push(dot(&dh, &b[i]));
            db.push(&dh * input[i]);
            dc.push(&states[i + 1] * dy[i]);
            dh = &dh * &decays[i];
            // Behind the last position a state that is infinite must not become a NaN in sums.
            let there = (start + from + i as u32).lt(block.p.len);
            let of_exponent = (&dh * &states[i]).map(|value| there.select(value, 0.0));
            of_exponents.push(dot(&of_exponent, rates));
            da = of_exponent.mul_add(step[i], &da);
        }
        of_input.reverse();
        of_exponents.reverse();
        db.reverse();
        dc.reverse();
        self.put_partial(block, tiles, [db, dc]);
        let over = |values| sums_over_lanes(k, [1, lanes], values);
        let (of_input, of_exponents) = (over(of_input), over(of_exponents));
        let share = Share::new(k.lane_idx() % lanes, lanes, at_once);
        let at = at + share.first;
        let own = |tile: Tile<'k, A>| tile.at(at).load::<A>(share.count);
        let [step, u, slope, dy] = [tiles.step, tiles.u, tiles.slope, tiles.dy].map(own);
        let du = Lanes::from(of_input.clone()).mul_add(&step, &dy * d);
        let ddelta = Lanes::from(of_exponents) * std::f64::consts::LN_2;
        let ddelta = Lanes::from(of_input).mul_add(&u, ddelta) * slope;
        let dz = || own(tiles.gate) * u.mul_add(d, Lanes::from(over(y)));
        let dz = k.if_else(is_gated, dz, || du.clone());
        // What other lanes have read of the tiles is overwritten next.
        k.warp_barrier();
        let led = |tile: Tile<'k, A>| tile.at(at).only_where(share.leads, Fill::Zero);
        k.if_(is_gated, || led(tiles.gate).store(dz));
        led(tiles.u).store(du);
        led(tiles.slope).store(ddelta.clone());
        let counted =
            |sum: Reg<'k, A>, terms: &Lanes<'k, A>| share.leads.select(terms.fold(sum, |a, b| a + b), sum);
        Carried { dh, da, dd: counted(dd, &(&dy * &u)), dbias: counted(dbias, &ddelta) }
    }

    /// Sums over the channels of a warp of what they give to the gradients of rows.
    fn put_partial<'k, A: Accumulate>(
        &self,
        block: &Block<'k>,
        tiles: &Tiles<'k, A>,
        gradients: [Vec<Lanes<'k, A>>; 2],
    ) {
        let (k, Config { dtype, lanes, .. }) = (block.k, self.0);
        let (at_once, states) = (batch(dtype), self.0.states());
        let share = Share::new(k.lane_idx() / lanes, WARP / lanes, at_once);
        for (which, positions) in (0..).zip(gradients) {
            let of_number = |number: usize| {
                let values = positions.iter().map(|position| position[number]).collect();
                sums_over_lanes(k, [lanes, WARP], values)
            };
            let sums: Vec<_> = (0..OWN as usize).map(of_number).collect();
            let row = (k.warp_idx() + which * WARPS) * at_once + share.first;
            let at = tiles.partial.at(row * states + block.number).only_where(share.leads, Fill::Zero);
            for i in 0..share.count {
                let row: Lanes<'k, A> = sums.iter().map(|of_number| of_number[i as usize]).collect();
                at.at(u64::from(i * states)).store(row);
            }
        }
    }

    /// Adds what the warps give to the gradients of the rows of a batch, and stores it.
    fn store_rows<'k, A: Accumulate>(
        &self,
        block: &Block<'k>,
        a: BackwardParams<'k>,
        tiles: &Tiles<'k, A>,
        start: U32<'k>,
        from: U32<'k>,
    ) {
        let k = block.k;
        let (at_once, states) = (batch(self.0.dtype), self.0.states());
        let of_warp = at_once * states;
        for first in (0..2 * of_warp).step_by(THREADS as usize) {
            let index = k.thread_idx() + first;
            let (which, element) = (index / of_warp, index % of_warp);
            let inside = index.lt(2 * of_warp);
            let place = tiles.partial.at(which * (WARPS * of_warp) + element).only_where(inside, Fill::Zero);
            let terms: Lanes<'k, A> =
                (0..WARPS).map(|warp| place.at(u64::from(warp * of_warp)).get()).collect();
            let (position, number) = (start + from + element / states, element % states);
            let row = (block.tile * 2 + which).to_u64() * a.elements;
            let there = inside & position.lt(block.p.len) & number.lt(block.p.state);
            let place = a.rows.at(row + block.element(position, number)).only_where(there, Fill::Zero);
            terms.sum().into_iter().for_each(|sum| place.set(sum));
        }
    }

    /// Stores what the sample gives to the gradients of parameters.
    fn store_parameters<'k, A: Accumulate>(
        &self,
        block: &Block<'k>,
        a: BackwardParams<'k>,
        found: Carried<'k, A>,
    ) {
        let (k, lanes, p) = (block.k, self.0.lanes, block.p);
        let of_a = p.channels.mul_wide(p.state);
        let row = a.parameters.at(block.sample.to_u64() * (of_a + p.channels.to_u64() * 2));
        let channel = block.first + block.channel;
        // Rows of samples begin anywhere.
        let place = row.at(channel.mul_wide(p.state) + block.number.to_u64());
        for (i, da) in (0..).zip(found.da.iter()) {
            place.at(u64::from(i)).only_where(block.has_number(i), Fill::Zero).set(da);
        }
        let [dd, dbias] = [found.dd, found.dbias].map(|sum| k.warp_combine(lanes, sum, |a, b| a + b));
        let first = (k.lane_idx() % lanes).eq(0) & block.channel.lt(block.here);
        let place = row.at(of_a + channel.to_u64()).only_where(first, Fill::Zero);
        place.set(dd);
        place.at(p.channels.to_u64()).set(dbias);
    }
}

/// The sum of the products of two threads' numbers of state.
fn dot<'k, A: Float>(a: &Lanes<'k, A>, b: &Lanes<'k, A>) -> Reg<'k, A> {
    a.iter().zip(b.iter()).skip(1).fold(a[0] * b[0], |sum, (a, b)| a.mul_add(b, sum))
}
