//! Rows of any length, and rows with a mask: read once for the greatest score and the sum, which are carried along the row
//! together (Milakov and Gimelshein 2018, arXiv:1805.02867), and once more for the result.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{WARP, kernel_args};

use super::MaskKind;
use super::kernel::{Backward, BackwardParams, Common, Forward, ForwardParams};
use super::math::{Exponential, Mass};
use super::strided::{Columns, Place};
use super::tuning::Layout;

kernel_args! {
    /// `y = softmax(scale x + mask)`, or the same over the elements whose mask is not 0. Row `o` takes row
    /// `o / group * period + o % period` of the mask.
    pub(super) struct MaskedArgs => MaskedParams {
        x: In<Elem>, mask: In<Elem>, y: Out<Elem>,
        n: u64, inner: u64, tiles: u32, scale: f64, group: u64, period: u64,
    }
}

/// Vectors of a thread that are in flight together.
const UNROLL: u64 = 4;

/// The vectors of one thread along its row or columns: vector `i` lies `i * pitch` elements past `origin`.
struct Walk<'k> {
    k: K<'k>,
    outer: U64<'k>,
    first: U64<'k>,
    end: U64<'k>,
    stride: u64,
    /// Of the thread's columns, from the start of the row.
    column: Option<U64<'k>>,
    pitch: Option<U64<'k>>,
    place: Option<Place<'k>>,
}

/// A vector of a walk.
#[derive(Clone, Copy)]
struct Step<'k> {
    /// Elements past the origin.
    along: U64<'k>,
    /// Whether it lies in the row, if the loop itself does not say so.
    inside: Option<Pred<'k>>,
}

impl<'k> Step<'k> {
    fn of<S: warpwright_dsl::Space>(self, p: Ptr<'k, S, Elem>, fill: Fill) -> Ptr<'k, S, Elem> {
        let at = p.at(self.along);
        self.inside.map_or(at, |inside| at.only_where(inside, fill))
    }
}

impl<'k> Walk<'k> {
    fn new(k: K<'k>, common: Common, n: U64<'k>, inner: U64<'k>, tiles: U32<'k>) -> Self {
        let config = common.config;
        match config.layout {
            Layout::ColumnLoop { lanes, teams } | Layout::Columns { lanes, teams, .. } => {
                let place = Place::new(k, inner, tiles, config, lanes);
                Self {
                    k,
                    outer: place.outer,
                    first: place.team.to_u64(),
                    end: place.inside.select(n, 0),
                    stride: u64::from(teams),
                    column: Some(place.column),
                    pitch: Some(inner),
                    place: Some(place),
                }
            }
            Layout::RowLoop | Layout::Rows { .. } => Self {
                k,
                outer: k.block_idx_x().to_u64(),
                first: k.thread_idx().mul_wide(config.width),
                end: n,
                stride: u64::from(config.threads * config.width),
                column: None,
                pitch: None,
                place: None,
            },
        }
    }

    /// First element of the thread's row or columns in row `row` of a tensor.
    fn origin(&self, row: U64<'k>, n: U64<'k>) -> U64<'k> {
        match (self.pitch, self.column) {
            (Some(pitch), Some(column)) => row * n * pitch + column,
            _ => row * n,
        }
    }

    /// Goes along the row, some vectors at a time.
    fn each<C: Carry<'k>>(&self, init: C, body: impl FnOnce(&[Step<'k>], C) -> C) -> C {
        let k = self.k;
        k.fold(k.range(self.first, self.end, self.stride * UNROLL), init, |i, state| {
            let mut steps = Vec::new();
            for u in 0..UNROLL {
                let at = if u == 0 { i } else { i + u * self.stride };
                let along = self.pitch.map_or(at, |pitch| at * pitch);
                steps.push(Step { along, inside: (u > 0).then(|| at.lt(self.end)) });
            }
            body(&steps, state)
        })
    }
}

/// The greatest score and the sum of each of the thread's lanes, then of the row or column.
fn mass<'k, A: Accumulate>(
    k: K<'k>,
    walk: &Walk<'k>,
    common: Common,
    exp: Exponential<'k, A>,
    load: &dyn Fn(Step<'k>) -> Packed<'k, A>,
) -> (Lanes<'k, A>, Lanes<'k, A>) {
    let width = common.config.width as usize;
    let lanes = |value: f64| -> Lanes<'k, A> { (0..width).map(|_| k.lit::<A>(value)).collect() };
    let (tops, sums) = walk.each((lanes(f64::NEG_INFINITY), lanes(0.0)), |steps, (tops, sums)| {
        let xs: Vec<Packed<'k, A>> = steps.iter().map(|step| load(*step)).collect();
        let next = exp.greatest_each(&xs, width).zip(tops.clone(), |x, top| (x * exp.scale).maximum(top));
        let minus = next.map(Mass::minus_reference);
        let kept = sums.zip3(tops, minus.clone(), |sum, top, minus| sum * exp.of(top + minus));
        let added = xs.iter().map(|x| x.lanes().zip(minus.clone(), |x, minus| exp.power(x, minus)));
        let sums = added.fold(kept, |sums, x| sums.zip(x, |a, b| a + b));
        (next, sums)
    });
    match &walk.place {
        Some(place) => {
            let both = Columns::new(k, common.config, place).combine([tops, sums], |[tops, sums]| {
                let all = Mass::of_parts(&tops, &sums, exp);
                [all.top, all.sum]
            });
            both.into()
        }
        None => {
            let mine = Mass::of_parts(tops.as_slice(), sums.as_slice(), exp);
            let all = mine.of_lanes(k, WARP, exp).of_warps(k, exp);
            let every = |value| (0..width).map(|_| value).collect();
            (every(all.top), every(all.sum))
        }
    }
}

/// The second pass. Where `masked`, a row in which nothing takes part gives 0, or minus infinity as its logarithm.
fn finish<'k, A: Accumulate>(
    walk: &Walk<'k>,
    common: Common,
    exp: Exponential<'k, A>,
    (tops, sums): (Lanes<'k, A>, Lanes<'k, A>),
    masked: bool,
    load: &dyn Fn(Step<'k>) -> Packed<'k, A>,
    y: Ptr<'k, Write, Elem>,
) where
    Elem: Access<A>,
{
    let none = |top: Reg<'k, A>, value: Reg<'k, A>| {
        if masked { top.eq(f64::NEG_INFINITY).select(0.0, value) } else { value }
    };
    let minus: Lanes<'k, A> = tops.map(|top| none(top, -top));
    let last: Lanes<'k, A> =
        tops.zip(sums, |top, sum| none(top, if common.log { sum.log() } else { sum.rcp() }));
    walk.each((), |steps, ()| {
        let xs: Vec<Packed<'k, A>> = steps.iter().map(|step| load(*step)).collect();
        for (step, x) in steps.iter().zip(xs) {
            let value = x.lanes().zip3(minus.clone(), last.clone(), |x, minus, last| {
                if common.log { exp.below(x, minus) - last } else { exp.power(x, minus) * last }
            });
            step.of(y, Fill::Zero).store(value);
        }
    });
}

impl Forward {
    pub(super) fn passes<'k, A: Accumulate>(&self, k: K<'k>, a: ForwardParams<'k>, exp: Exponential<'k, A>)
    where
        Elem: Access<A>,
    {
        let (common, width) = (self.0, self.0.config.width);
        let walk = Walk::new(k, common, a.n, a.inner, a.tiles);
        let origin = walk.origin(walk.outer, a.n);
        let (x, y) = (a.x.at(origin), a.y.at(origin));
        let load = |s: Step<'k>| s.of(x, Fill::MinusInfinity).load_packed::<A>(width);
        let mass = mass(k, &walk, common, exp, &load);
        finish(&walk, common, exp, mass, false, &load, y);
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

    fn dtype(&self) -> DType {
        self.common.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: MaskedParams<'k>)
    where
        Elem: Access<A>,
    {
        let (common, width) = (self.common, self.common.config.width);
        let scale = a.scale.convert::<A>();
        // The scores are scaled when they are loaded.
        let exp = Exponential { scale: k.lit::<A>(1.0), precision: Precision::of(common.dtype) };
        let walk = Walk::new(k, common, a.n, a.inner, a.tiles);
        let origin = walk.origin(walk.outer, a.n);
        let (x, y) = (a.x.at(origin), a.y.at(origin));
        let mask_row = walk.outer / a.group * a.period + walk.outer % a.period;
        let mask_origin = walk.origin(mask_row, a.n);
        let load = |s: Step<'k>| -> Packed<'k, A> {
            let xs = s.of(x, Fill::MinusInfinity).load::<A>(width);
            match self.mask {
                MaskKind::Additive => {
                    let mask = s.of(a.mask.at(mask_origin), Fill::Zero).load::<A>(width);
                    Packed::unrounded(xs.zip(mask, |x, mask| x.mul_add(scale, mask)))
                }
                MaskKind::Boolean => {
                    let mask = a.mask.cast::<u8>().at(mask_origin).at(s.along);
                    let mask = s.inside.map_or(mask, |inside| mask.only_where(inside, Fill::Zero));
                    let score =
                        |x: Reg<'k, A>, mask: U32<'k>| mask.ne(0).select(x * scale, f64::NEG_INFINITY);
                    Packed::unrounded(xs.zip(mask.load::<u32>(width), score))
                }
            }
        };
        let mass = mass(k, &walk, common, exp, &load);
        finish(&walk, common, exp, mass, true, &load, y);
    }
}

impl Backward {
    pub(super) fn passes<'k, A: Accumulate>(&self, k: K<'k>, a: BackwardParams<'k>, scale: Reg<'k, A>)
    where
        Elem: Access<A>,
    {
        let (common, width) = (self.0, self.0.config.width);
        let walk = Walk::new(k, common, a.n, a.inner, a.tiles);
        let origin = walk.origin(walk.outer, a.n);
        let (y, dy, dx) = (a.y.at(origin), a.dy.at(origin), a.dx.at(origin));
        let of = |p: Ptr<'k, Read, Elem>, s: &Step<'k>| -> Packed<'k, A> {
            s.of(p, Fill::Zero).load_packed(width)
        };
        let zeros: Lanes<'k, A> = (0..width).map(|_| k.lit::<A>(0.0)).collect();
        let sums = walk.each(zeros, |steps, sums| {
            let pairs: Vec<_> = steps.iter().map(|s| (of(y, s), of(dy, s))).collect();
            let terms = pairs.iter().map(|(y, dy)| self.term(y, dy));
            terms.fold(sums, |sums, term| sums.zip(term, |a, b| a + b))
        });
        let sums: Lanes<'k, A> = match &walk.place {
            Some(place) => {
                let [sums] = Columns::new(k, common.config, place).combine([sums], |of_teams| {
                    of_teams.map(|v| k.tree("the sum of a column", v, |a, b| a + b))
                });
                sums
            }
            None => {
                let mine = k.tree("the sum of a row", sums, |a, b| a + b);
                let all = k.group_combine_once(k.block_threads(), mine, |a, b| a + b);
                (0..width).map(|_| all).collect()
            }
        };
        let sum = |lane: usize| sums[lane];
        walk.each((), |steps, ()| {
            let pairs: Vec<_> = steps.iter().map(|s| (s, of(y, s), of(dy, s))).collect();
            for (s, y, dy) in pairs {
                let value = self.gradient(&y, &dy, &sum, scale);
                s.of(dx, Fill::Zero).store(value);
            }
        });
    }
}
