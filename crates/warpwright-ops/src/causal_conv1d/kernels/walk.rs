//! A thread with a vector of channels walks along a run of positions; what a window has of earlier positions stays in registers. Blocks
//! lie over the runs and vectors of a sample.

use warpwright_dsl::prelude::*;

use super::{
    BackwardArgs, BackwardParams, Config, Filter, ForwardArgs, ForwardParams, ProblemParams, Rows, Share,
    Sums, accumulate, same_sequence, same_sequence_later,
};
use crate::causal_conv1d::tuning::{BATCH, THREADS};

/// Blocks of a multiprocessor that leave enough registers: told nothing, ptxas spills a word to have room for one block more.
const FORWARD_BLOCKS: u32 = 3;
const BACKWARD_BLOCKS: u32 = 2;

/// A thread's channels and positions.
struct Walk<'k> {
    k: K<'k>,
    config: Config,
    p: ProblemParams<'k>,
    rows: Rows<'k>,
    /// Those of `x`.
    given: Rows<'k>,
    states: Rows<'k>,
    /// The first channel.
    channel: U32<'k>,
    /// Which channels there are: one predicate for all, or one for each.
    live: Vec<Pred<'k>>,
    there: Pred<'k>,
    /// Number of the run in the sample, its first position and its end.
    run: U32<'k>,
    start: U32<'k>,
    end: U32<'k>,
}

/// The elements of neighbouring channels at one position.
type Row<'k, A> = Lanes<'k, A>;

/// The state of earlier positions: the elements, and the numbers of their sequences where there are any.
type History<'k, A> = (Vec<Row<'k, A>>, Vec<I32<'k>>);

impl<'k> Walk<'k> {
    fn new(k: K<'k>, config: Config, p: ProblemParams<'k>) -> Self {
        let v = config.vector;
        let share = Share::new(k, p, (k.thread_idx(), THREADS), (p.channels + (v - 1)) / v);
        let channel = share.inner * v;
        let live = match config.aligned {
            true => vec![share.there],
            false => (0..v).map(|i| share.there & (channel + i).lt(p.channels)).collect(),
        };
        let [rows, states] = Rows::of_sample(k, config, p, share.sample);
        let given = Rows { channels: p.position_stride, ..rows };
        let start = share.outer * p.run;
        let end = (start + p.run).min(p.len);
        Self {
            k,
            config,
            p,
            rows,
            given,
            states,
            channel,
            live,
            there: share.there,
            run: share.outer,
            start,
            end,
        }
    }

    /// The thread's channels where `at` points to, which are read where `p` holds, and 0 elsewhere.
    fn load<A: Float>(&self, at: Ptr<'k, Read, Elem>, p: Option<Pred<'k>>) -> Row<'k, A> {
        let only = |live: Pred<'k>| p.map_or(live, |p| live & p);
        if self.config.aligned {
            return at.only_where(only(self.live[0]), Fill::Zero).load(self.config.vector);
        }
        (0..).zip(&self.live).map(|(i, &live)| at.at(i).only_where(only(live), Fill::Zero).get()).collect()
    }

    fn store<A: Float>(&self, at: Ptr<'k, Write, Elem>, row: &Row<'k, A>, p: Option<Pred<'k>>) {
        let only = |live: Pred<'k>| p.map_or(live, |p| live & p);
        if self.config.aligned {
            at.only_where(only(self.live[0]), Fill::Zero).store(row.clone());
            return;
        }
        for ((i, &live), value) in (0..).zip(&self.live).zip(row.iter()) {
            at.at(i).only_where(only(live), Fill::Zero).set(value);
        }
    }

    /// The filters of the thread's channels.
    fn filters<A: Float>(&self) -> Vec<Filter<'k, A>> {
        let Config { width, vector, .. } = self.config;
        let first = self.p.weight.at(self.channel.mul_wide(width));
        let taps: Vec<Vec<Reg<'k, A>>> = if self.config.aligned {
            let all = (0..width).map(|i| self.load::<A>(first.at(u64::from(i * vector)), None));
            let all: Vec<_> = Lanes::concat(all).into_iter().collect();
            all.chunks(width as usize).map(<[_]>::to_vec).collect()
        } else {
            let tap =
                |c: u32, i: u32, live| first.at(u64::from(c * width + i)).only_where(live, Fill::Zero).get();
            (0..).zip(&self.live).map(|(c, &live)| (0..width).map(|i| tap(c, i, live)).collect()).collect()
        };
        let k = self.k;
        let bias = k.if_else(
            self.p.bias.is_given(),
            || self.load(self.p.bias.value.at(self.channel), None),
            || Lanes::constant(k, 0.0, vector),
        );
        taps.into_iter().zip(bias).map(|(taps, bias)| Filter { taps, bias }).collect()
    }

    fn zeros<A: Float>(&self, rows: u32) -> Vec<Row<'k, A>> {
        (0..rows).map(|_| Lanes::constant(self.k, 0.0, self.config.vector)).collect()
    }

    /// Rows of a state from `first` on.
    fn state<A: Float>(
        &self,
        states: Ptr<'k, Read, Elem>,
        first: U32<'k>,
        p: Option<Pred<'k>>,
    ) -> Row<'k, A> {
        self.load(states.at(self.states.at(self.channel, first)), p)
    }

    /// The positions before the run; before the first one initial states, or zeros.
    fn history<A: Float>(&self) -> History<'k, A> {
        let (k, count) = (self.k, self.config.history());
        let x = k.if_else(
            self.start.gt(0),
            || {
                let first = self.p.x.at(self.given.at(self.channel, self.start - count));
                let pitch = self.given.pitch(k).to_u64();
                first.pitched(pitch, count).map(|at| self.load(at, None)).collect::<Vec<_>>()
            },
            || {
                if self.config.sequences {
                    return self.zeros(count);
                }
                let given = Some(self.p.initial.is_given());
                (0..count).map(|j| self.state(self.p.initial.value, k.lit(j), given)).collect()
            },
        );
        let ids = || self.start_ids(count);
        (x, if self.config.sequences { ids() } else { Vec::new() })
    }

    /// The sequences of the `count` positions before the run; no sequence where there are none.
    fn start_ids(&self, count: u32) -> Vec<I32<'k>> {
        let k = self.k;
        k.if_else(
            self.start.gt(0) & self.there,
            || (0..count).map(|j| self.ids(self.start - count + j).get()).collect::<Vec<_>>(),
            || (0..count).map(|_| k.lit(-1)).collect(),
        )
    }

    /// The sequence of a position.
    fn ids(&self, position: U32<'k>) -> Ptr<'k, Read, i32> {
        self.p.ids.at(self.rows.sample.mul_wide(self.p.len) + position.to_u64())
    }

    /// The positions from `l` on below `end`, behind those that are in the history.
    fn extend<A: Float>(&self, (x, ids): &mut History<'k, A>, l: U32<'k>, there: &[Pred<'k>]) {
        x.extend(self.batch(self.p.x, &self.given, l, there));
        if self.config.sequences {
            let id = |(i, &p): (u32, &Pred<'k>)| self.ids(l + i).only_where(self.there & p, Fill::Zero).get();
            ids.extend((0..).zip(there).map(id));
        }
    }

    /// A batch of positions of `x`, whose rows lie so, from `l` on, zeros where they are not there.
    fn batch<A: Float>(
        &self,
        x: Ptr<'k, Read, Elem>,
        rows: &Rows<'k>,
        l: U32<'k>,
        there: &[Pred<'k>],
    ) -> Vec<Row<'k, A>> {
        let (first, pitch) = (x.at(rows.at(self.channel, l)), rows.pitch(self.k).to_u64());
        first.pitched(pitch, BATCH).zip(there).map(|(at, &p)| self.load(at, Some(p))).collect()
    }

    /// Which of the positions from `l` on are below `end`.
    fn below(&self, l: U32<'k>, end: U32<'k>) -> Vec<Pred<'k>> {
        (0..BATCH).map(|i| (l + i).lt(end)).collect()
    }

    /// The last positions, as far back as a window goes, for whoever goes on.
    fn store_last<A: Float>(&self, last: Ptr<'k, Write, Elem>) {
        let (k, count) = (self.k, self.config.history());
        let row = |j: u32| {
            // The position, counted from the first one of the initial states.
            let at = self.p.len + j;
            k.if_else(
                at.ge(count),
                || self.load(self.p.x.at(self.given.at(self.channel, at - count)), None),
                || self.state(self.p.initial.value, at, Some(self.p.initial.is_given())),
            )
        };
        // All are read before the first is stored: a step's states are where they were.
        let all: Vec<Row<'k, A>> = (0..count).map(row).collect();
        for (j, row) in (0..).zip(&all) {
            self.store(last.at(self.states.at(self.channel, k.lit(j))), row, None);
        }
    }
}

/// The windows of lane `lane` in rows that follow each other, one for each row that has a whole one.
fn windows<'k, A: Float>(rows: &[Row<'k, A>], lane: usize, width: u32) -> Vec<Vec<Reg<'k, A>>> {
    let column: Vec<_> = rows.iter().map(|row| row[lane]).collect();
    column.windows(width as usize).map(<[_]>::to_vec).collect()
}

/// Forward, and steps in either layout.
#[derive(Clone, Copy, Debug)]
pub(in crate::causal_conv1d) struct Forward(pub(in crate::causal_conv1d) Config);

impl AccumulateKernel for Forward {
    type Args = ForwardArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec("_walk").min_blocks_per_sm(Some(FORWARD_BLOCKS))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ForwardParams<'k>) {
        let walk = Walk::new(k, self.0, a.problem);
        let Config { width, silu, sequences, dtype, .. } = self.0;
        let filters = walk.filters::<A>();
        let positions = k.range(walk.start, walk.end, BATCH);
        let _ = k.fold(positions, walk.history::<A>(), |l, mut history| {
            let there = walk.below(l, walk.end);
            walk.extend(&mut history, l, &there);
            let (x, ids) = &history;
            let counts = sequences.then(|| same_sequence(width, ids));
            let windows: Vec<_> = (0..filters.len()).map(|lane| windows(x, lane, width)).collect();
            let first = a.y.at(walk.rows.at(walk.channel, l));
            let places = first.pitched(walk.rows.pitch(k).to_u64(), BATCH);
            for ((i, place), &there) in places.enumerate().zip(&there) {
                let y = filters.iter().zip(&windows).map(|(filter, windows)| {
                    let counts = counts.as_ref().map(|all| &all[i][..]);
                    let z = filter.apply((&windows[i], counts));
                    let y = if silu { z.silu_for(Precision::of(dtype)) } else { z };
                    match sequences {
                        true => ids[i + width as usize - 1].ge(0).select(y, 0.0),
                        false => y,
                    }
                });
                walk.store(place, &y.collect(), Some(there));
            }
            let (mut x, mut ids) = history;
            (x.split_off(BATCH as usize), if sequences { ids.split_off(BATCH as usize) } else { ids })
        });
        if !sequences {
            k.if_(walk.end.eq(a.problem.len) & walk.there & a.last.is_given(), || {
                walk.store_last::<A>(a.last.value);
            });
        }
    }
}

/// The gradient of `x` and the initial states, and sums of those of weight and bias. The walk goes on for `width - 1` positions behind
/// the run, whose results depend on elements of it.
#[derive(Clone, Copy, Debug)]
pub(in crate::causal_conv1d) struct Backward(pub(in crate::causal_conv1d) Config);

impl AccumulateKernel for Backward {
    type Args = BackwardArgs;

    fn spec(&self) -> KernelSpec {
        self.0.backward().min_blocks_per_sm(Some(BACKWARD_BLOCKS))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: BackwardParams<'k>) {
        let walk = Walk::new(k, self.0, a.problem);
        let Config { width, sequences, .. } = self.0;
        let (history, lanes) = (self.0.history(), self.0.vector as usize);
        let filters = walk.filters::<A>();
        let sums: Vec<Sums<'k, A>> = (0..lanes).map(|_| (0..=width).map(|_| k.lit(0.0)).collect()).collect();
        let init = (walk.history::<A>(), walk.zeros::<A>(history), sums);
        let behind = walk.end + history;
        let upto = behind.min(a.problem.len);
        let (_, _, sums) = k.fold(k.range(walk.start, behind, BATCH), init, |l, (mut past, mut dz, sums)| {
            let there = walk.below(l, upto);
            walk.extend(&mut past, l, &there);
            let dy = walk.batch::<A>(a.dy, &walk.rows, l, &there);
            let (x, ids) = &past;
            let counts = sequences.then(|| same_sequence(width, ids));
            let counts = |i: usize| counts.as_ref().map(|all| &all[i][..]);
            let windows: Vec<_> = (0..lanes).map(|lane| windows(x, lane, width)).collect();
            for (i, (dy, &there)) in dy.iter().zip(&there).enumerate() {
                let there = match sequences {
                    true => there & ids[i + history as usize].ge(0),
                    false => there,
                };
                let of = |lane: usize| {
                    filters[lane].slope(self.0, (&windows[lane][i], counts(i)), dy[lane], Some(there))
                };
                dz.push((0..lanes).map(of).collect());
            }
            let add = |own: Option<&[Pred<'k>]>| {
                let of = |(lane, sums): (usize, &Sums<'k, A>)| {
                    (0..BATCH as usize).fold(sums.clone(), |sums, i| {
                        let dz = dz[i + history as usize][lane];
                        accumulate(&sums, (&windows[lane][i], counts(i)), dz, own.map(|own| own[i]))
                    })
                };
                sums.iter().enumerate().map(of).collect::<Vec<_>>()
            };
            let sums =
                k.if_else((l + BATCH).le(walk.end), || add(None), || add(Some(&walk.below(l, walk.end))));
            let later = sequences.then(|| same_sequence_later(width, ids));
            for i in 0..BATCH {
                let counts = later.as_ref().map(|all| &all[i as usize][..]);
                let of = |lane: usize| {
                    let dz: Vec<_> = dz[i as usize..].iter().map(|row| row[lane]).collect();
                    filters[lane].transposed(&dz[..width as usize], counts)
                };
                self.store(k, &walk, a, l + i, (0..lanes).map(of).collect());
            }
            let (mut x, mut ids) = past;
            let ids = if sequences { ids.split_off(BATCH as usize) } else { ids };
            ((x.split_off(BATCH as usize), ids), dz.split_off(BATCH as usize), sums)
        });
        let row = walk.rows.sample * ((a.problem.len + (a.problem.run - 1)) / a.problem.run) + walk.run;
        let first = row.mul_wide(a.problem.channels * (width + 1)) + walk.channel.to_u64();
        let places = a.sums.at(first).pitched(a.problem.channels.to_u64(), width + 1);
        for (i, place) in places.enumerate() {
            walk.store(place, &sums.iter().map(|of_lane| of_lane[i]).collect(), None);
        }
    }
}

impl Backward {
    /// Stores the gradient of the element `width - 1` positions before `l`: of the run, or of the initial states, which end where the
    /// first run begins.
    fn store<'k, A: Accumulate>(
        &self,
        k: K<'k>,
        walk: &Walk<'k>,
        a: BackwardParams<'k>,
        l: U32<'k>,
        dx: Row<'k, A>,
    ) {
        let (history, len) = (self.0.history(), a.problem.len);
        let place = || a.dx.at(walk.rows.at(walk.channel, l - history));
        let of_run = l.ge(walk.start + history) & l.lt(walk.end + history);
        if self.0.sequences {
            k.if_(of_run, || walk.store(place(), &dx, None));
            return;
        }
        // The final states are the last elements, counted like `l` from the first of the initial states; in front of them the
        // difference is beyond any number of them.
        let last = (l - len).lt(history) & a.dlast.is_given();
        let dx = k.if_else(last, || &dx + walk.state(a.dlast.value, l - len, None), || dx.clone());
        k.if_(of_run, || walk.store(place(), &dx, None));
        k.if_(l.lt(history) & a.dinitial.is_given(), || {
            walk.store(a.dinitial.value.at(walk.states.at(walk.channel, l)), &dx, None);
        });
    }
}
