//! Rows of any length, and rows with a mask: read once for the largest score and the sum, which are carried along the row
//! together (Milakov and Gimelshein 2018, arXiv:1805.02867), and once more for the result.

use warpwright_dsl::prelude::*;
use warpwright_dsl::rows::{RowVector, column_max};
use warpwright_dsl::{WARP, kernel_args};

use super::MaskKind;
use super::kernel::{Backward, BackwardParams, Common, Forward, ForwardParams};
use super::math::{Exponential, OnlineSoftmax, minus_max};
use super::strided::{of_teams, sum_of_teams};
use super::tuning::{Config, Layout};

kernel_args! {
    /// `y = softmax(scale x + mask)`, or the same over the elements whose mask is not 0. Row `o` takes row
    /// `o / group * period + o % period` of the mask.
    pub(super) struct MaskedArgs => MaskedParams {
        x: In<Elem>, mask: In<Elem>, y: Out<Elem>,
        n: u64, inner: u64, tiles: u32, scale: f64, group: u64, period: u64,
    }
}

/// Vectors of a thread that are in flight together.
const UNROLL: u32 = 4;

/// How a thread goes over its row or columns.
struct Walk<'k> {
    vectors: RowLoop<'k>,
    /// The number of the row, or of those before the columns.
    outer: U64<'k>,
    n: U64<'k>,
    inner: U64<'k>,
    /// Of strided rows.
    tile: Option<ColumnTile<'k>>,
}

impl<'k> Walk<'k> {
    fn new(k: K<'k>, config: Config, n: U64<'k>, inner: U64<'k>, tiles: U32<'k>) -> Self {
        match config.layout {
            Layout::ColumnLoop { lanes, .. } | Layout::Columns { lanes, .. } => {
                let tile = ColumnTile::new(k, inner, tiles, lanes, config.width);
                Self { vectors: tile.walk(n, UNROLL), outer: tile.outer(), n, inner, tile: Some(tile) }
            }
            Layout::RowLoop | Layout::Rows { .. } => {
                let outer = k.block_idx_x().to_u64();
                Self { vectors: RowLoop::of_block(k, n, config.width, UNROLL), outer, n, inner, tile: None }
            }
        }
    }

    /// The first element of the thread's row or columns in row `row` of a tensor.
    fn origin(&self, row: U64<'k>) -> U64<'k> {
        let start = row * self.n;
        self.tile.map_or(start, |tile| start * self.inner + tile.column())
    }
}

/// The largest score and the sum of each of the thread's lanes, then of the row or column.
fn statistics<'k, A: Accumulate>(
    k: K<'k>,
    walk: &Walk<'k>,
    width: u32,
    exp: Exponential<'k, A>,
    load: &dyn Fn(&RowVector<'k>) -> Packed<'k, A>,
) -> [Lanes<'k, A>; 2] {
    let none = [Lanes::constant(k, f64::NEG_INFINITY, width), Lanes::constant(k, 0.0, width)];
    let [maxima, sums] = walk.vectors.fold(none, |round, [maxima, sums]| {
        let xs: Vec<Packed<'k, A>> = round.bounded().iter().map(load).collect();
        let next = column_max(k, &xs, width).zip(maxima.clone(), |x, max| (x * exp.scale).maximum(max));
        let minus = next.map(minus_max);
        let kept = sums.zip3(maxima, minus.clone(), |sum, max, minus| sum * exp.rescale(max + minus));
        let added = xs.iter().map(|x| x.lanes().zip(minus.clone(), |x, minus| exp.exp(x, minus)));
        [next, added.fold(kept, |sums, x| sums + x)]
    });
    if let Some(tile) = &walk.tile {
        return of_teams(tile, exp, [maxima, sums]);
    }
    let mine = OnlineSoftmax::of_parts(maxima.as_slice(), sums.as_slice(), exp);
    let all = mine.of_lanes(k, WARP, exp).of_warps(k, exp);
    [all.row_max, all.row_sum].map(|value| Lanes::splat(value, width))
}

/// The second pass. Where `masked`, a row in which nothing takes part gives 0, or minus infinity as its logarithm.
fn finish<'k, A: Accumulate>(
    walk: &Walk<'k>,
    log: bool,
    exp: Exponential<'k, A>,
    [maxima, sums]: [Lanes<'k, A>; 2],
    masked: bool,
    load: &dyn Fn(&RowVector<'k>) -> Packed<'k, A>,
    y: Ptr<'k, Write, Elem>,
) {
    let none = |max: Reg<'k, A>, value: Reg<'k, A>| {
        if masked { max.eq(f64::NEG_INFINITY).select(0.0, value) } else { value }
    };
    let minus = maxima.map(|max| none(max, -max));
    let last = maxima.zip(sums, |max, sum| none(max, if log { sum.log() } else { sum.rcp() }));
    walk.vectors.each(|round| {
        let vectors = round.bounded();
        let xs: Vec<Packed<'k, A>> = vectors.iter().map(load).collect();
        for (vector, x) in vectors.iter().zip(xs) {
            let value = x.lanes().zip3(minus.clone(), last.clone(), |x, minus, last| {
                if log { exp.shifted(x, minus) - last } else { exp.exp(x, minus) * last }
            });
            vector.of(y, Fill::Zero).store(value);
        }
    });
}

impl Forward {
    pub(super) fn passes<'k, A: Accumulate>(&self, k: K<'k>, a: ForwardParams<'k>, exp: Exponential<'k, A>) {
        let Common { log, config, .. } = self.0;
        let walk = Walk::new(k, config, a.n, a.inner, a.tiles);
        let origin = walk.origin(walk.outer);
        let (x, y) = (a.x.at(origin), a.y.at(origin));
        let load = |v: &RowVector<'k>| v.of(x, Fill::MinusInfinity).load_packed::<A>(config.width);
        let statistics = statistics(k, &walk, config.width, exp, &load);
        finish(&walk, log, exp, statistics, false, &load, y);
    }
}

/// A forward kernel with a mask.
#[derive(Clone, Copy, Debug)]
pub(super) struct MaskedForward {
    pub(super) common: Common,
    pub(super) mask: MaskKind,
}

impl AccumulateKernel for MaskedForward {
    type Args = MaskedArgs;

    fn spec(&self) -> KernelSpec {
        let mask = match self.mask {
            MaskKind::Additive => "_additive_mask",
            MaskKind::Boolean => "_boolean_mask",
        };
        KernelSpec::new(self.common.name(mask), BlockDim::x(self.common.config.threads))
            .dtypes(DTypes::all(self.common.dtype))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: MaskedParams<'k>) {
        let Common { log, config, dtype } = self.common;
        let (width, scale) = (config.width, a.scale.convert::<A>());
        // The scores are scaled when they are loaded.
        let exp = Exponential { scale: k.lit::<A>(1.0), precision: Precision::of(dtype) };
        let walk = Walk::new(k, config, a.n, a.inner, a.tiles);
        let origin = walk.origin(walk.outer);
        let (x, y) = (a.x.at(origin), a.y.at(origin));
        let mask_row = walk.outer / a.group * a.period + walk.outer % a.period;
        let mask_origin = walk.origin(mask_row);
        let load = |v: &RowVector<'k>| -> Packed<'k, A> {
            let xs = v.of(x, Fill::MinusInfinity).load::<A>(width);
            Packed::unrounded(match self.mask {
                MaskKind::Additive => {
                    let mask = v.of(a.mask.at(mask_origin), Fill::Zero).load::<A>(width);
                    xs.zip(mask, |x, mask| x.mul_add(scale, mask))
                }
                MaskKind::Boolean => {
                    let mask = v.of(a.mask.cast::<u8>().at(mask_origin), Fill::Zero).load::<u32>(width);
                    xs.zip(mask, |x, mask| mask.ne(0).select(x * scale, f64::NEG_INFINITY))
                }
            })
        };
        let statistics = statistics(k, &walk, width, exp, &load);
        finish(&walk, log, exp, statistics, true, &load, y);
    }
}

impl Backward {
    pub(super) fn passes<'k, A: Accumulate>(&self, k: K<'k>, a: BackwardParams<'k>, scale: Reg<'k, A>) {
        let config = self.0.config;
        let walk = Walk::new(k, config, a.n, a.inner, a.tiles);
        let origin = walk.origin(walk.outer);
        let (y, dy, dx) = (a.y.at(origin), a.dy.at(origin), a.dx.at(origin));
        let load = |v: &RowVector<'k>| -> [Packed<'k, A>; 2] {
            [y, dy].map(|of| v.of(of, Fill::Zero).load_packed(config.width))
        };
        let sums = walk.vectors.fold(Lanes::constant(k, 0.0, config.width), |round, sums| {
            let pairs: Vec<_> = round.bounded().iter().map(load).collect();
            pairs.iter().map(|[y, dy]| self.term(y, dy)).fold(sums, |sums, term| sums + term)
        });
        let sums = match &walk.tile {
            Some(tile) => sum_of_teams(tile, sums),
            None => {
                let mine = k.tree("the sum of a row", sums, |a, b| a + b);
                let all = k.group_combine_once(k.block_threads(), mine, |a, b| a + b);
                Lanes::splat(all, config.width)
            }
        };
        let sum = |lane: usize| sums[lane];
        walk.vectors.each(|round| {
            let vectors = round.bounded();
            let pairs: Vec<_> = vectors.iter().map(load).collect();
            for (v, [y, dy]) in vectors.iter().zip(&pairs) {
                let value = self.gradient(y, dy, &sum, scale);
                v.of(dx, Fill::Zero).store(value);
            }
        });
    }
}
