//! The next positions behind a state, as decoders take them: lanes have the numbers of a channel's state in registers, which are read and
//! written once, and nothing is staged.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::{PARAMETERS, Problem, ProblemParams};
use crate::selective_scan::tuning::{OWN, THREADS};

kernel_args! {
    /// Neighbouring channels and positions of tensors like `u` lie `of_channel` and `of_position` elements apart, rows of `B` and `C` of
    /// neighbouring positions and groups `of_row` and `of_rows`, and their numbers `of_number`.
    pub(in crate::selective_scan) struct UpdateArgs => UpdateParams {
        problem: Problem, before: In<Elem>, y: Out<Elem>, after: Out<Elem>,
        of_channel: u32, of_position: u32, of_row: u32, of_rows: u32, of_number: u32,
    }
}

/// A block for channels of a group of a sample.
#[derive(Clone, Copy, Debug)]
pub(in crate::selective_scan) struct Update {
    pub(in crate::selective_scan) dtype: DType,
    /// Lanes that share a channel's state.
    pub(in crate::selective_scan) lanes: u32,
    /// Vectors of [`OWN`] numbers that a lane has of it, as many numbers apart as all lanes have of one.
    pub(in crate::selective_scan) vectors: u32,
    /// Whether states and rows are whole vectors that begin at multiples of their size.
    pub(in crate::selective_scan) aligned: bool,
}

impl Update {
    /// Channels of a block.
    pub(in crate::selective_scan) const fn channels(self) -> u32 {
        THREADS / self.lanes
    }
}

/// The channel of a thread, and the first numbers of its vectors.
struct Own<'k> {
    p: ProblemParams<'k>,
    sample: U32<'k>,
    group: U32<'k>,
    channel: U32<'k>,
    /// Whether the group has the channel.
    inside: Pred<'k>,
    numbers: Vec<U32<'k>>,
    aligned: bool,
}

impl<'k> Own<'k> {
    fn new(k: K<'k>, def: Update, p: ProblemParams<'k>) -> Self {
        let (group, tile) = (k.block_idx_x() / p.tiles, k.block_idx_x() % p.tiles);
        let (sample, group) = (group / p.groups, group % p.groups);
        let within = tile * def.channels() + k.thread_idx() / def.lanes;
        let lane = k.thread_idx() % def.lanes;
        let numbers = (0..def.vectors).map(|vector| (lane + vector * def.lanes) * OWN).collect();
        let (channel, inside) = (group.mul_add(p.of_group, within), within.lt(p.of_group));
        Self { p, sample, group, channel, inside, numbers, aligned: def.aligned }
    }

    /// Which numbers of a vector there are: one predicate for all, or one for each.
    fn there(&self, number: U32<'k>) -> Vec<Pred<'k>> {
        let of = |i: u32| self.inside & (number + i).lt(self.p.state);
        (0..if self.aligned { 1 } else { OWN }).map(of).collect()
    }

    /// The thread's numbers of what `from` points to, `stride` elements apart; zeros where there are none.
    fn load<A: Float>(&self, from: Ptr<'k, Read, Elem>, stride: U32<'k>) -> Vec<Lanes<'k, A>> {
        let of = |&number: &U32<'k>| {
            let there = self.there(number);
            if self.aligned {
                return from.at(number).only_where(there[0], Fill::Zero).load(OWN);
            }
            let one = |(i, there): (u32, &Pred<'k>)| {
                from.at((number + i) * stride).only_where(*there, Fill::Zero).get()
            };
            (0..).zip(&there).map(one).collect()
        };
        self.numbers.iter().map(of).collect()
    }

    fn store<A: Float>(&self, to: Ptr<'k, Write, Elem>, values: &[Lanes<'k, A>]) {
        for (&number, values) in self.numbers.iter().zip(values) {
            let there = self.there(number);
            if self.aligned {
                to.at(number).only_where(there[0], Fill::Zero).store(values.clone());
                continue;
            }
            for ((i, value), there) in (0..).zip(values.iter()).zip(there) {
                to.at(number + i).only_where(there, Fill::Zero).set(value);
            }
        }
    }

    /// An element of the channel, 0 where it is not given.
    fn of_channel<A: Float>(
        &self,
        from: warpwright_dsl::OptionalParam<'k, Ptr<'k, Read, Elem>>,
    ) -> Reg<'k, A> {
        from.value.at(self.channel).only_where(self.inside & from.is_given(), Fill::Zero).get()
    }

    /// Numbers of a vector, 0 behind the last of the state even where what they are made of is infinite.
    fn where_there<A: Float>(&self, number: U32<'k>, values: &Lanes<'k, A>) -> Lanes<'k, A> {
        let there = self.there(number);
        let of = |(i, value): (usize, Reg<'k, A>)| there[i % there.len()].select(value, 0.0);
        values.iter().enumerate().map(of).collect()
    }
}

impl AccumulateKernel for Update {
    type Args = UpdateArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, lanes, vectors, aligned } = *self;
        let scalar = if aligned { "" } else { "_scalar" };
        let name = format!("selective_scan_update_{dtype}_x{lanes}_v{vectors}{scalar}");
        KernelSpec::new(name, BlockDim::x(THREADS))
            .dtypes(DTypes::all(dtype).accumulated(PARAMETERS).accumulated(["before", "after"]))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: UpdateParams<'k>) {
        let (p, precision) = (a.problem, Precision::of(self.dtype));
        let own = Own::new(k, *self, p);
        let one = k.lit(1u32);
        let row = own.channel.mul_wide(p.state);
        let state = own.sample.to_u64() * p.channels.mul_wide(p.state) + row;
        let h = own.load::<A>(a.before.at(state), one);
        let rates: Vec<_> =
            own.load::<A>(p.a.at(row), one).iter().map(|rate| rate * std::f64::consts::LOG2_E).collect();
        let (bias, d) = (own.of_channel::<A>(p.delta_bias), own.of_channel::<A>(p.d));
        let sample = own.sample.mul_wide(p.channels * p.len) + (own.channel * a.of_channel).to_u64();
        let rows = own.sample.mul_wide(p.groups * p.state * p.len) + (own.group * a.of_rows).to_u64();
        let h = k.fold(k.range(0, p.len, 1), h, |position, h| {
            let at = sample + (position * a.of_position).to_u64();
            let of = |from: Ptr<'k, Read, Elem>, given: Pred<'k>| {
                from.at(at).only_where(own.inside & given, Fill::Zero).get::<A>()
            };
            let always = own.inside;
            let (u, delta, z) = (of(p.u, always), of(p.delta, always), of(p.z.value, p.z.is_given()));
            let at = rows + (position * a.of_row).to_u64();
            let (b, c) = (own.load::<A>(p.b.at(at), a.of_number), own.load::<A>(p.c.at(at), a.of_number));
            let x = delta + bias;
            let step = k.if_else(p.softplus.ne(0), || x.softplus(), || x);
            let input = step * u;
            let next: Vec<_> = (h.iter().zip(&rates).zip(&b).zip(&own.numbers))
                .map(|(((h, rates), b), &number)| {
                    let decay = rates.map(|rate| (rate * step).exp2_approx());
                    decay.mul_add(h, own.where_there(number, &(b * input)))
                })
                .collect();
            // In the order of whole scans, so that steps have their bits.
            let (h, c) = (next.iter().flat_map(Lanes::iter), c.iter().flat_map(Lanes::iter));
            let sum =
                h.zip(c).fold(None, |sum, (h, c)| Some(sum.map_or_else(|| h * c, |sum| h.mul_add(c, sum))));
            let sum = k.warp_combine(self.lanes, sum.unwrap_or(input), |a, b| a + b);
            let y = u.mul_add(d, sum);
            let y = k.if_else(p.z.is_given(), || y * z.silu_for(precision), || y);
            let first = own.inside & (k.thread_idx() % self.lanes).eq(0);
            a.y.at(sample + (position * a.of_position).to_u64()).only_where(first, Fill::Zero).set(y);
            next
        });
        own.store(a.after.at(state), &h);
    }
}
