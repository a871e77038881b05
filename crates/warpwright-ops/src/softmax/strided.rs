//! Rows along a dimension that is not the last: neighbouring threads take neighbouring columns.

use warpwright_dsl::prelude::*;
use warpwright_dsl::rows::column_max;
use warpwright_dsl::tree;

use super::kernel::{Backward, BackwardParams, Common, Forward, ForwardParams};
use super::math::{Exponential, OnlineSoftmax, minus_max};

/// The sums over the vectors, lane by lane.
fn sums_of<'k, A: Accumulate>(vectors: &[Lanes<'k, A>], width: u32) -> Lanes<'k, A> {
    (0..width as usize).filter_map(|lane| tree(vectors.iter().map(|v| v[lane]), |a, b| a + b)).collect()
}

/// The maxima and sums of columns from those of the teams.
pub(super) fn of_teams<'k, A: Accumulate>(
    tile: &ColumnTile<'k>,
    exp: Exponential<'k, A>,
    parts: [Lanes<'k, A>; 2],
) -> [Lanes<'k, A>; 2] {
    tile.combine(parts, |[maxima, sums]| {
        let OnlineSoftmax { row_max, row_sum } = OnlineSoftmax::of_parts(&maxima, &sums, exp);
        [row_max, row_sum]
    })
}

/// The sums of columns from those of the teams.
pub(super) fn sum_of_teams<'k, A: Accumulate>(tile: &ColumnTile<'k>, sums: Lanes<'k, A>) -> Lanes<'k, A> {
    let k = tile.outer().k();
    let [sums] = tile.combine([sums], |parts| parts.map(|v| k.tree("the sum of a column", v, |a, b| a + b)));
    sums
}

impl Forward {
    pub(super) fn columns<'k, A: Accumulate>(
        &self,
        k: K<'k>,
        a: ForwardParams<'k>,
        exp: Exponential<'k, A>,
        [lanes, vectors]: [u32; 2],
    ) {
        let Common { log, config, .. } = self.0;
        let tile = ColumnTile::new(k, a.inner, a.tiles, lanes, config.width);
        let (columns, alone) = (tile.hold(a.n, vectors), tile.teams() == 1);
        let xs = columns.load::<A>(a.x, Fill::MinusInfinity);
        let own_max = column_max(k, &xs, config.width) * exp.scale;
        let minus = own_max.map(|max| if alone { -max } else { minus_max(max) });
        let p = |x: &Packed<'k, A>, minus: &Lanes<'k, A>| x.lanes().zip(minus.clone(), |x, m| exp.exp(x, m));
        let own: Vec<Lanes<'k, A>> = xs.iter().map(|x| p(x, &minus)).collect();
        let sums = sums_of(&own, config.width);
        let [max, sum] =
            if alone { [own_max.clone(), sums] } else { of_teams(&tile, exp, [own_max.clone(), sums]) };
        let minus = max.map(|max| -max);
        if log {
            let (log_sum, zero) = (sum.map(Reg::log), k.opaque_zero());
            let y = |x: &Packed<'k, A>| {
                x.lanes_again(zero).zip3(minus.clone(), log_sum.clone(), |x, m, l| exp.shifted(x, m) - l)
            };
            columns.store(a.y, xs.iter().map(y));
            return;
        }
        let inverse = sum.map(Reg::rcp);
        if self.0.keeps() {
            let rescaled = |own, max, inverse| exp.rescale(own - max) * inverse;
            let factor = if alone { inverse } else { own_max.zip3(max, inverse, rescaled) };
            columns.store(a.y, own.iter().map(|p| p * &factor));
        } else {
            columns.store(a.y, xs.iter().map(|x| p(x, &minus) * &inverse));
        }
    }
}

impl Backward {
    pub(super) fn columns<'k, A: Accumulate>(
        &self,
        k: K<'k>,
        a: BackwardParams<'k>,
        scale: Reg<'k, A>,
        [lanes, vectors]: [u32; 2],
    ) {
        let width = self.0.config.width;
        let tile = ColumnTile::new(k, a.inner, a.tiles, lanes, width);
        let columns = tile.hold(a.n, vectors);
        let (ys, dys) = (columns.load::<A>(a.y, Fill::Zero), columns.load::<A>(a.dy, Fill::Zero));
        let terms: Vec<Lanes<'k, A>> = ys.iter().zip(&dys).map(|(y, dy)| self.term(y, dy)).collect();
        let mut sums = sums_of(&terms, width);
        if tile.teams() > 1 {
            sums = sum_of_teams(&tile, sums);
        }
        let sum = |lane: usize| sums[lane];
        columns.store(a.dx, ys.iter().zip(&dys).map(|(y, dy)| self.gradient(y, dy, &sum, scale)));
    }
}
