//! Rows along a dimension that is not the last: neighbouring threads take neighbouring columns.

use warpwright_dsl::prelude::*;
use warpwright_dsl::tree;

use super::kernel::{Backward, BackwardParams, Common, Forward, ForwardParams};
use super::math::{Exponential, Mass};
use super::tuning::Config;

/// Which columns a thread has.
#[derive(Clone, Copy)]
pub(super) struct Place<'k> {
    /// The thread's number across the columns.
    pub(super) lane: U32<'k>,
    /// The thread's number in its columns.
    pub(super) team: U32<'k>,
    /// Index before the dimension.
    pub(super) outer: U64<'k>,
    /// First column of the thread.
    pub(super) column: U64<'k>,
    /// Whether there is such a column.
    pub(super) inside: Pred<'k>,
    lanes: u32,
}

impl<'k> Place<'k> {
    pub(super) fn new(k: K<'k>, inner: U64<'k>, tiles: U32<'k>, config: Config, lanes: u32) -> Self {
        let thread = k.thread_idx();
        let (lane, team) = (thread & (lanes - 1), thread >> lanes.trailing_zeros());
        let block = k.block_idx_x();
        let outer = block / tiles;
        let tile = block - outer * tiles;
        let column = tile.mul_wide(lanes * config.width) + (lane * config.width).to_u64();
        Self { lane, team, outer: outer.to_u64(), column, inside: column.lt(inner), lanes }
    }
}

/// Where the vectors of one thread lie.
pub(super) struct ColumnPart<'k> {
    place: Place<'k>,
    /// First element of the thread, from the start of the tensor.
    start: U64<'k>,
    /// Elements from one vector of the thread to the next.
    step: U64<'k>,
    /// For each vector, whether it lies in the tensor.
    inside: Vec<Pred<'k>>,
}

impl<'k> ColumnPart<'k> {
    pub(super) fn new(
        k: K<'k>,
        n: U64<'k>,
        inner: U64<'k>,
        tiles: U32<'k>,
        config: Config,
        [lanes, teams, vectors]: [u32; 3],
    ) -> Self {
        let place = Place::new(k, inner, tiles, config, lanes);
        let left = place.inside.select(n.to_u32().to_i32() - place.team.to_i32(), 0);
        let start = (place.outer * n + place.team.to_u64()) * inner + place.column;
        let inside = (0..vectors).map(|v| left.gt((v * teams).cast_signed())).collect();
        Self { place, start, step: inner * u64::from(teams), inside }
    }

    pub(super) fn load<A: Accumulate>(
        &self,
        x: Ptr<'k, Read, Elem>,
        width: u32,
        fill: Fill,
    ) -> Vec<Packed<'k, A>>
    where
        Elem: Access<A>,
    {
        let mut at = x.at(self.start);
        let mut out = Vec::with_capacity(self.inside.len());
        for (v, inside) in self.inside.iter().enumerate() {
            if v > 0 {
                at = at.at(self.step);
            }
            out.push(at.only_where(*inside, fill).load_packed(width));
        }
        out
    }

    pub(super) fn store<A: Accumulate>(
        &self,
        y: Ptr<'k, Write, Elem>,
        vectors: impl IntoIterator<Item = Lanes<'k, A>>,
    ) where
        Elem: Access<A>,
    {
        let mut at = y.at(self.start);
        for (v, (inside, lanes)) in self.inside.iter().zip(vectors).enumerate() {
            if v > 0 {
                at = at.at(self.step);
            }
            at.only_where(*inside, Fill::Zero).store(lanes);
        }
    }
}

/// Element `lane` of each vector.
fn column<'k, A: Accumulate>(vectors: &[Lanes<'k, A>], lane: usize) -> Vec<Reg<'k, A>> {
    vectors.iter().map(|v| v[lane]).collect()
}

/// Values of each column from each team, and what comes of them for the column.
pub(super) struct Columns<'k, A: Float, const N: usize> {
    k: K<'k>,
    config: Config,
    place: Place<'k>,
    slots: [Ptr<'k, Shared, A>; N],
}

impl<'k, A: Accumulate, const N: usize> Columns<'k, A, N> {
    /// Room for `N` kinds of values of each column and team.
    pub(super) fn new(k: K<'k>, config: Config, place: &Place<'k>) -> Self {
        let slots = [(); N].map(|()| k.shared::<A>(config.threads * config.width));
        Self { k, config, place: *place, slots }
    }

    /// Writes this thread's values, `values[kind]` for its columns; combines those of each column with `combine`, which
    /// takes and gives one value of each kind; and returns the results for the thread's columns.
    pub(super) fn combine(
        &self,
        values: [Lanes<'k, A>; N],
        combine: impl Fn([Vec<Reg<'k, A>>; N]) -> [Reg<'k, A>; N],
    ) -> [Lanes<'k, A>; N] {
        let Self { k, config, place, .. } = self;
        let (width, threads) = (config.width, config.threads);
        let columns = place.lanes * width;
        let teams = threads / place.lanes;
        let mine = place.lane * width;
        for (slots, values) in self.slots.iter().zip(values) {
            slots.at(place.team * columns + mine).store(values);
        }
        k.barrier();
        for first in (0..columns).step_by(threads as usize) {
            let column = k.thread_idx() + first;
            let work = || {
                let of = |slots: Ptr<'k, Shared, A>| -> Vec<Reg<'k, A>> {
                    let slots = slots.at(column);
                    (0..teams).map(|team| slots.at(u64::from(team * columns)).get()).collect()
                };
                let results = combine(self.slots.map(of));
                for (slots, result) in self.slots.iter().zip(results) {
                    slots.at(column).set(result);
                }
            };
            if first + threads <= columns { work() } else { k.if_(column.lt(columns), work) }
        }
        k.barrier();
        self.slots.map(|slots| slots.at(mine).load(width))
    }
}

impl Forward {
    pub(super) fn columns<'k, A: Accumulate>(
        &self,
        k: K<'k>,
        a: ForwardParams<'k>,
        exp: Exponential<'k, A>,
        shape: [u32; 3],
    ) where
        Elem: Access<A>,
    {
        let Common { log, config, .. } = self.0;
        let (width, alone) = (config.width as usize, shape[1] == 1);
        let part = ColumnPart::new(k, a.n, a.inner, a.tiles, config, shape);
        let xs = part.load::<A>(a.x, config.width, Fill::MinusInfinity);
        let tops = exp.greatest_each(&xs, width).map(|top| top * exp.scale);
        let minus_tops: Lanes<'k, A> = tops.map(|top| if alone { -top } else { Mass::minus_reference(top) });
        let power = |x: &Packed<'k, A>, minus_tops: &Lanes<'k, A>| {
            x.lanes().zip(minus_tops.clone(), |x, minus_top| exp.power(x, minus_top))
        };
        let powers: Vec<Lanes<'k, A>> = xs.iter().map(|x| power(x, &minus_tops)).collect();
        let sums: Lanes<'k, A> =
            (0..width).filter_map(|lane| tree(column(&powers, lane), |a, b| a + b)).collect();
        let (mut top, mut sum) = (tops.clone(), sums.clone());
        if !alone {
            [top, sum] =
                Columns::new(k, config, &part.place).combine([tops.clone(), sums], |[tops, sums]| {
                    let all = Mass::of_parts(&tops, &sums, exp);
                    [all.top, all.sum]
                });
        }
        let minus_top = top.map(|top| -top);
        if log {
            let (log_sum, zero) = (sum.map(Reg::log), k.opaque_zero());
            let y = |x: &Packed<'k, A>| {
                x.lanes_again(zero).zip3(minus_top.clone(), log_sum.clone(), |x, m, l| exp.below(x, m) - l)
            };
            part.store(a.y, xs.iter().map(y));
            return;
        }
        let inverse = sum.map(Reg::rcp);
        if self.0.keeps() {
            let factor = if alone {
                inverse
            } else {
                tops.zip3(top, inverse, |own, top, inverse| exp.of(own - top) * inverse)
            };
            part.store(a.y, powers.iter().map(|p| p.zip(factor.clone(), |p, f| p * f)));
        } else {
            let y = |x: &Packed<'k, A>| power(x, &minus_top).zip(inverse.clone(), |p, f| p * f);
            part.store(a.y, xs.iter().map(y));
        }
    }
}

impl Backward {
    pub(super) fn columns<'k, A: Accumulate>(
        &self,
        k: K<'k>,
        a: BackwardParams<'k>,
        scale: Reg<'k, A>,
        shape: [u32; 3],
    ) where
        Elem: Access<A>,
    {
        let config = self.0.config;
        let part = ColumnPart::new(k, a.n, a.inner, a.tiles, config, shape);
        let ys = part.load::<A>(a.y, config.width, Fill::Zero);
        let dys = part.load::<A>(a.dy, config.width, Fill::Zero);
        let terms: Vec<Lanes<'k, A>> = ys.iter().zip(&dys).map(|(y, dy)| self.term(y, dy)).collect();
        let lanes = 0..config.width as usize;
        let mut sums: Lanes<'k, A> =
            lanes.filter_map(|lane| tree(column(&terms, lane), |a, b| a + b)).collect();
        if shape[1] > 1 {
            [sums] = Columns::new(k, config, &part.place)
                .combine([sums], |of_teams| of_teams.map(|v| k.tree("the sum of a column", v, |a, b| a + b)));
        }
        let sum = |lane: usize| sums[lane];
        part.store(a.dx, ys.iter().zip(&dys).map(|(y, dy)| self.gradient(y, dy, &sum, scale)));
    }
}
