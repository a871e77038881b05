//! Lanes have neighbouring vectors of positions of one channel; the positions of a window before and behind a vector are in the registers of
//! neighbouring lanes.

use warpwright_dsl::WARP;
use warpwright_dsl::prelude::*;

use super::{
    BackwardArgs, BackwardParams, Config, Filter, ForwardArgs, ForwardParams, ProblemParams, Rows, Share,
    Sums, accumulate, same_sequence, same_sequence_later,
};
use crate::causal_conv1d::tuning::THREADS;

/// A channel of a sample, of which lanes have vectors.
struct Line<'k> {
    k: K<'k>,
    config: Config,
    p: ProblemParams<'k>,
    rows: Rows<'k>,
    states: Rows<'k>,
    channel: U32<'k>,
    lane: U32<'k>,
    /// Whether the thread has a channel.
    there: Pred<'k>,
}

impl<'k> Line<'k> {
    fn new(k: K<'k>, config: Config, p: ProblemParams<'k>, share: Share<'k>) -> Self {
        let [rows, states] = Rows::of_sample(k, config, p, share.sample);
        let Share { outer: channel, there, .. } = share;
        Self { k, config, p, rows, states, channel, lane: k.lane_idx(), there }
    }

    fn filter<A: Float>(&self) -> Filter<'k, A> {
        let (k, there) = (self.k, self.there);
        let first = self.p.weight.at(self.channel.mul_wide(self.config.width));
        let tap = |i: u32| first.at(u64::from(i)).only_where(there, Fill::Zero).get();
        let bias = self.p.bias.value.at(self.channel);
        let bias = k.if_else(there & self.p.bias.is_given(), || bias.get(), || k.lit(0.0));
        Filter { taps: (0..self.config.width).map(tap).collect(), bias }
    }

    /// Which of the lane's positions from `first` on are below `end`: one predicate for all, or one for each.
    fn live(&self, first: U32<'k>, end: U32<'k>) -> Vec<Pred<'k>> {
        let count = if self.config.aligned { 1 } else { self.config.vector };
        (0..count).map(|i| self.there & (first + i).lt(end)).collect()
    }

    /// The same, one for each.
    fn live_each(&self, live: &[Pred<'k>]) -> Vec<Pred<'k>> {
        (0..self.config.vector as usize).map(|i| live[i % live.len()]).collect()
    }

    fn load<T: Number, E: Access<T>>(&self, at: Ptr<'k, Read, E>, live: &[Pred<'k>]) -> Vec<Reg<'k, T>> {
        if self.config.aligned {
            return at.only_where(live[0], Fill::Zero).load(self.config.vector).into_iter().collect();
        }
        (0u64..).zip(live).map(|(i, &live)| at.at(i).only_where(live, Fill::Zero).get()).collect()
    }

    fn store<A: Float>(&self, at: Ptr<'k, Write, Elem>, values: Vec<Reg<'k, A>>, live: &[Pred<'k>]) {
        if self.config.aligned {
            at.only_where(live[0], Fill::Zero).store(values);
            return;
        }
        for ((i, value), &live) in (0u64..).zip(values).zip(live) {
            at.at(i).only_where(live, Fill::Zero).set(value);
        }
    }

    fn ids(&self, position: U32<'k>) -> Ptr<'k, Read, i32> {
        self.p.ids.at(self.rows.sample.mul_wide(self.p.len) + position.to_u64())
    }

    /// Lanes that the position `distance` before a vector, or behind one, is away.
    const fn lanes_away(&self, distance: u32) -> u32 {
        distance.div_ceil(self.config.vector)
    }

    /// The positions before a vector as far as windows go back, oldest first, and those of the vector. Lanes with positions that have no
    /// lane with those below, `lacking` and the first of a warp, take what `load` gives.
    fn behind_history<T: Number>(
        &self,
        own: Vec<Reg<'k, T>>,
        live: Pred<'k>,
        lacking: Option<Pred<'k>>,
        load: impl FnOnce() -> Vec<Reg<'k, T>>,
    ) -> Vec<Reg<'k, T>> {
        let (history, v) = (self.config.history(), self.config.vector);
        let neighbour = |d: u32| {
            let lanes = self.lanes_away(d);
            own[(lanes * v - d) as usize].shfl_up(lanes)
        };
        let neighbours: Vec<_> = (1..=history).rev().map(neighbour).collect();
        let first = self.lane.lt(self.lanes_away(history));
        let lacking = live & lacking.map_or(first, |lacking| lacking | first);
        let mut all = self.k.if_else(lacking, load, || neighbours.clone());
        all.extend(own);
        all
    }

    /// The values of the positions before `first`, which `at` points to, as far as windows go back, oldest first; `without` gives those that do
    /// not exist, by their distances.
    fn history<T: Number, E: Access<T>>(
        &self,
        at: Ptr<'k, Read, E>,
        first: U32<'k>,
        without: impl Fn(u32) -> Reg<'k, T>,
    ) -> Vec<Reg<'k, T>> {
        let (k, history) = (self.k, self.config.history());
        let before = |d: u32| at.at(u64::from(d).wrapping_neg()).get();
        k.if_else(
            first.ge(history),
            || (1..=history).rev().map(before).collect::<Vec<_>>(),
            || {
                let one = |d: u32| k.if_else(first.ge(d), || before(d), || without(d));
                (1..=history).rev().map(one).collect()
            },
        )
    }

    /// The vector of `x` at `first` behind its history, and the numbers of their sequences, if there are any. `lacking` as above.
    fn window_rows<A: Float>(
        &self,
        first: U32<'k>,
        live: &[Pred<'k>],
        lacking: Option<Pred<'k>>,
    ) -> (Vec<Reg<'k, A>>, Vec<I32<'k>>) {
        let x = self.p.x.at(self.rows.at(self.channel, first));
        let initial = |d: u32| self.initial(first + (self.config.history() - d));
        let history = || self.history(x, first, initial);
        let x = self.behind_history(self.load(x, live), live[0], lacking, history);
        if !self.config.sequences {
            return (x, Vec::new());
        }
        let ids = self.ids(first);
        let history = || self.history(ids, first, |_| self.k.lit(-1));
        (x, self.behind_history(self.load(ids, live), live[0], lacking, history))
    }

    /// An initial state, or 0.
    fn initial<A: Float>(&self, at: U32<'k>) -> Reg<'k, A> {
        if self.config.sequences {
            return self.k.lit(0.0);
        }
        let states = self.p.initial.value.at(self.states.at(self.channel, at));
        states.only_where(self.p.initial.is_given(), Fill::Zero).get()
    }

    /// The values of a vector's positions and of those behind it as far as windows go: of lanes above, or else of `after`, which every
    /// lane has.
    fn before_later<T: Number>(&self, own: &[Reg<'k, T>], after: &[Reg<'k, T>]) -> Vec<Reg<'k, T>> {
        let v = self.config.vector;
        let later = (1..=self.config.history()).map(|d| {
            let lanes = self.lanes_away(d);
            let neighbour = own[(d - 1 - v * (lanes - 1)) as usize].shfl_down(lanes);
            (1..=lanes).fold(neighbour, |value, from_top| {
                let after = after[(d - 1 - v * (from_top - 1)) as usize];
                self.lane.eq(WARP - from_top).select(after, value)
            })
        });
        own.iter().copied().chain(later).collect()
    }

    /// The first values of the warp, as many as windows go back, for every lane.
    fn first_of_warp<T: Number>(&self, own: &[Reg<'k, T>]) -> Vec<Reg<'k, T>> {
        let v = self.config.vector;
        (0..self.config.history()).map(|i| self.k.from_lane(i / v, &own[(i % v) as usize])).collect()
    }
}

/// Forward: a thread for each vector of a sample.
#[derive(Clone, Copy, Debug)]
pub(in crate::causal_conv1d) struct Forward(pub(in crate::causal_conv1d) Config);

impl AccumulateKernel for Forward {
    type Args = ForwardArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec("")
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ForwardParams<'k>) {
        let Config { width, silu, sequences, vector: v, dtype, .. } = self.0;
        let (p, history) = (a.problem, self.0.history());
        let share = Share::new(k, p, (k.thread_idx(), THREADS), (p.len + (v - 1)) / v);
        let (line, first) = (Line::new(k, self.0, p, share), share.inner * v);
        let live = line.live(first, p.len);
        let starts = first.lt(history);
        let (x, ids) = line.window_rows::<A>(first, &live, Some(starts));
        let filter = line.filter::<A>();
        let counts = sequences.then(|| same_sequence(width, &ids));
        let y = x.windows(width as usize).enumerate().map(|(i, window)| {
            let z = filter.apply((window, counts.as_ref().map(|all| &all[i][..])));
            let y = if silu { z.silu_for(Precision::of(dtype)) } else { z };
            if sequences { ids[i + history as usize].ge(0).select(y, 0.0) } else { y }
        });
        line.store(a.y.at(line.rows.at(line.channel, first)), y.collect(), &live);
        if sequences {
            return;
        }
        k.if_(share.there & (first + v).ge(p.len) & a.last.is_given(), || {
            for j in 0..history {
                // The position, counted from the first one of the initial states.
                let at = p.len + j;
                let value = k.if_else(
                    at.ge(history),
                    || p.x.at(line.rows.at(line.channel, at - history)).get::<A>(),
                    || line.initial(at),
                );
                a.last.value.at(line.states.at(line.channel, k.lit(j))).set(value);
            }
        });
    }
}

/// Warps of a block.
pub(in crate::causal_conv1d) const WARPS: u32 = THREADS / WARP;

/// The gradient of `x` and the initial states, and sums of those of weight and bias: a warp for each run of positions of a channel, which
/// it takes from its end to its start, so that the gradients of later positions are there.
#[derive(Clone, Copy, Debug)]
pub(in crate::causal_conv1d) struct Backward(pub(in crate::causal_conv1d) Config);

/// The state that later positions leave: the gradients of their sums, the numbers of their sequences, and the sums of the gradient of the filter.
type State<'k, A> = (Vec<Reg<'k, A>>, Vec<I32<'k>>, Sums<'k, A>);

impl AccumulateKernel for Backward {
    type Args = BackwardArgs;

    fn spec(&self) -> KernelSpec {
        self.0.backward()
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: BackwardParams<'k>) {
        let (p, width) = (a.problem, self.0.width);
        let runs = (p.len + (p.run - 1)) / p.run;
        let share = Share::new(k, p, (k.warp_idx(), WARPS), runs);
        k.if_(share.there, || {
            let line = Line::new(k, self.0, p, share);
            let filter = line.filter::<A>();
            let start = share.inner * p.run;
            let end = (start + p.run).min(p.len);
            let step = WARP * self.0.vector;
            let chunks = (end - start + (step - 1)) / step;
            let (dz, ids) = self.behind(&line, a, &filter, end);
            let sums = (0..=width).map(|_| k.lit(0.0)).collect();
            let (first, _, sums) = k.fold(k.range(0, chunks, 1), (dz, ids, sums), |i, state| {
                let from = start + (chunks - 1 - i) * step;
                self.chunk(&line, a, &filter, (from, end), state)
            });
            let sums = k.warp_combine(WARP, sums, |a, b| a.into_iter().zip(b).map(|(a, b)| a + b).collect());
            let row = (share.sample * runs + share.inner).mul_wide(p.channels * (width + 1));
            let places = a.sums.at(row + line.channel.to_u64()).pitched(p.channels.to_u64(), width + 1);
            let leader = line.lane.eq(0);
            k.if_(leader, || places.zip(&sums).for_each(|(place, &sum)| place.set(sum)));
            if !self.0.sequences {
                k.if_(leader & start.eq(0) & a.dinitial.is_given(), || {
                    self.store_initial(&line, a, &filter, &first);
                });
            }
        });
    }
}

impl Backward {
    /// The gradients of the sums of the first positions behind the run, and the numbers of their sequences: a position a lane.
    fn behind<'k, A: Accumulate>(
        &self,
        line: &Line<'k>,
        a: BackwardParams<'k>,
        filter: &Filter<'k, A>,
        end: U32<'k>,
    ) -> (Vec<Reg<'k, A>>, Vec<I32<'k>>) {
        let (k, history, sequences) = (line.k, self.0.history(), self.0.sequences);
        let position = end + line.lane;
        let there = line.lane.lt(history) & position.lt(line.p.len);
        // A run in front of others is longer than a window.
        let before = |i: u32| position - (history - i);
        let (dz, id) = k.if_else(
            there,
            || {
                let x: Vec<_> =
                    (0..=history).map(|i| line.p.x.at(line.rows.at(line.channel, before(i))).get()).collect();
                let ids: Vec<I32<'k>> = match sequences {
                    true => (0..=history).map(|i| line.ids(before(i)).get()).collect(),
                    false => Vec::new(),
                };
                let counts = sequences.then(|| same_sequence(self.0.width, &ids).concat());
                let dy = a.dy.at(line.rows.at(line.channel, position)).get();
                let id = ids.last().copied();
                let dz = filter.slope(self.0, (&x, counts.as_deref()), dy, id.map(|id| id.ge(0)));
                (dz, Vec::from_iter(id))
            },
            || (k.lit(0.0), if sequences { vec![k.lit(-1)] } else { Vec::new() }),
        );
        let each = |i: u32| k.from_lane(i, &dz);
        let each_id = |i: u32| k.from_lane(i, &id[0]);
        let ids = if sequences { (0..history).map(each_id).collect() } else { Vec::new() };
        ((0..history).map(each).collect(), ids)
    }

    /// The positions of a warp from `from` on below `end`.
    fn chunk<'k, A: Accumulate>(
        &self,
        line: &Line<'k>,
        a: BackwardParams<'k>,
        filter: &Filter<'k, A>,
        (from, end): (U32<'k>, U32<'k>),
        (after, after_ids, sums): State<'k, A>,
    ) -> State<'k, A> {
        let Config { width, sequences, vector: v, .. } = self.0;
        let (k, history) = (line.k, self.0.history() as usize);
        let first = line.lane.mul_add(v, from);
        let live = line.live(first, end);
        let (x, ids) = line.window_rows::<A>(first, &live, None);
        let dy = line.load::<A, _>(a.dy.at(line.rows.at(line.channel, first)), &live);
        let each = line.live_each(&live);
        let counts = sequences.then(|| same_sequence(width, &ids));
        let counts = |i: usize| counts.as_ref().map(|all| &all[i][..]);
        let windows: Vec<_> = x.windows(width as usize).collect();
        let of = |(i, &dy): (usize, &Reg<'k, A>)| {
            let there = if sequences { each[i] & ids[i + history].ge(0) } else { each[i] };
            filter.slope(self.0, (windows[i], counts(i)), dy, Some(there))
        };
        let dz: Vec<_> = dy.iter().enumerate().map(of).collect();
        let add = |own: Option<&[Pred<'k>]>| {
            (0..v as usize).fold(sums.clone(), |sums, i| {
                accumulate(&sums, (windows[i], counts(i)), dz[i], own.map(|own| own[i]))
            })
        };
        let whole = (from + WARP * v).le(end);
        let sums = k.if_else(whole, || add(None), || add(Some(&each)));
        let own_ids: Vec<_> = ids.iter().skip(history).copied().collect();
        let later = line.before_later(&dz, &after);
        let same = sequences.then(|| same_sequence_later(width, &line.before_later(&own_ids, &after_ids)));
        let dx = later.windows(width as usize).enumerate();
        let dx = dx.map(|(i, dz)| filter.transposed(dz, same.as_ref().map(|all| &all[i][..])));
        let dx = self.with_last(line, a, first, dx.collect());
        line.store(a.dx.at(line.rows.at(line.channel, first)), dx, &live);
        let ids = if sequences { line.first_of_warp(&own_ids) } else { Vec::new() };
        (line.first_of_warp(&dz), ids, sums)
    }

    /// Adds the gradient of the final states, which are the last elements.
    fn with_last<'k, A: Accumulate>(
        &self,
        line: &Line<'k>,
        a: BackwardParams<'k>,
        first: U32<'k>,
        dx: Vec<Reg<'k, A>>,
    ) -> Vec<Reg<'k, A>> {
        let history = self.0.history();
        if self.0.sequences {
            return dx;
        }
        line.k.if_else(
            a.dlast.is_given(),
            || {
                let add = |(i, &dx): (u32, &Reg<'k, A>)| dx + self.last_at(line, a, first + (i + history));
                (0..).zip(&dx).map(add).collect::<Vec<_>>()
            },
            || dx.clone(),
        )
    }

    /// The gradient of the final state at a place counted from the first of the initial states; 0 where it is none.
    fn last_at<'k, A: Accumulate>(&self, line: &Line<'k>, a: BackwardParams<'k>, at: U32<'k>) -> Reg<'k, A> {
        // In front of the final states the difference is beyond any number of them.
        let state = at - line.p.len;
        let is_last = state.lt(self.0.history());
        a.dlast.value.at(line.states.at(line.channel, state)).only_where(is_last, Fill::Zero).get()
    }

    /// The gradient of the initial states from those of the sums of the first positions.
    fn store_initial<'k, A: Accumulate>(
        &self,
        line: &Line<'k>,
        a: BackwardParams<'k>,
        filter: &Filter<'k, A>,
        dz: &[Reg<'k, A>],
    ) {
        let history = self.0.history();
        let zeros = || (0..history).map(|_| line.k.lit(0.0)).collect::<Vec<_>>();
        let last = || (0..history).map(|j| self.last_at(line, a, line.k.lit(j))).collect();
        let last = line.k.if_else(a.dlast.is_given(), last, zeros);
        for (j, last) in last.into_iter().enumerate() {
            let sum = (0..=j).fold(last, |sum, i| dz[j - i].mul_add(filter.taps[i], sum));
            a.dinitial.value.at(line.states.at(line.channel, line.k.lit(j as u32))).set(sum);
        }
    }
}
