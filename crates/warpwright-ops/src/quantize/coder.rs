//! The code of a group: its scale, and the rules that turn elements into codes.

use warpwright_dsl::flow::{RawReg, RawRegs};
use warpwright_dsl::prelude::*;
use warpwright_dsl::{Halves, WarpTable, warp_reduce_lanes};

use super::reference::MIN_ABSMAX;
use super::tables::{
    BUCKETS_PER_UNIT, FP4_ASCENDING, FP4_MIDPOINTS, NF4_MIDPOINTS, NF4_ZERO_BUCKET, RankTable,
};
use super::{NibbleOrder, Scheme};

/// Adding this to a small f32 leaves its nearest integer, ties to even, in the low bits.
const ROUND_F32: f64 = 12_582_912.0;
/// Its bits.
const ROUND_BITS: u32 = (ROUND_F32 as f32).to_bits();
/// The same for f64.
const ROUND_F64: f64 = 6_755_399_441_055_744.0;
/// The extremes that a group's scale follows from: the least and the largest element, zero included; or, for schemes without zero
/// points, the largest magnitude in `high`. NaN if there is one.
pub(super) struct Extremes<'k, A: Accumulate> {
    low: Reg<'k, A>,
    high: Reg<'k, A>,
}
carry!(Extremes<A: Accumulate> { low, high });

impl<'k, A: Accumulate> Extremes<'k, A> {
    pub(super) fn none(k: K<'k>) -> Self {
        Self { low: k.lit(0.0), high: k.lit(0.0) }
    }

    pub(super) fn with(self, scheme: Scheme, x: Reg<'k, A>) -> Self {
        match scheme {
            Scheme::Int4Asymmetric => Self { low: self.low.minimum(x), high: self.high.maximum(x) },
            _ => Self { high: self.high.maximum(x.abs()), ..self },
        }
    }

    fn both(self, scheme: Scheme, other: Self) -> Self {
        let high = self.high.maximum(other.high);
        match scheme {
            Scheme::Int4Asymmetric => Self { low: self.low.minimum(other.low), high },
            _ => Self { high, ..self },
        }
    }

    pub(super) fn across(self, k: K<'k>, scheme: Scheme, lanes: u32) -> Self {
        match scheme {
            Scheme::Int4Asymmetric => k.warp_combine(lanes, self, |a, b| a.both(scheme, b)),
            _ => Self { high: warp_reduce_lanes(k, Maximum, lanes, self.high), ..self },
        }
    }
}

/// Elements that are loaded together; 16-bit floats also as they lie in memory.
#[derive(Clone)]
pub(super) struct Vector<'k, A: Accumulate> {
    pub(super) elements: Lanes<'k, A>,
    pub(super) halves: Vec<Halves<'k>>,
}

/// The ranges of several groups over `lanes` lanes each, of which this lane has `groups[i]`; shared out over the lanes as
/// [`K::warp_combine_each`] does.
fn ranges<'k, A: Accumulate>(
    k: K<'k>,
    scheme: Scheme,
    groups: &[Vec<Vector<'k, A>>],
    lanes: u32,
) -> Extremes<'k, A> {
    let combined = if scheme == Scheme::Int4Asymmetric {
        let halves = groups.iter().map(|group| group.iter().flat_map(|vector| &vector.halves).copied());
        match halves.map(range_of_halves).collect::<Option<Vec<_>>>() {
            Some(words) => return range_from_halves(k, words, lanes),
            None => {
                let ranges = groups.iter().map(|group| range_of(k, scheme, group)).collect();
                k.warp_combine_each(lanes, ranges, |a, b| a.both(scheme, b))
            }
        }
    } else {
        let highs = groups.iter().map(|group| range_of(k, scheme, group).high).collect();
        let high = k.warp_combine_each(lanes, highs, |a: Reg<'k, A>, b| a.maximum(b));
        high.map(|high| Extremes { high, ..Extremes::none(k) })
    };
    combined.unwrap_or_else(|| Extremes::none(k))
}

fn range_of<'k, A: Accumulate>(k: K<'k>, scheme: Scheme, group: &[Vector<'k, A>]) -> Extremes<'k, A> {
    let elements = group.iter().flat_map(|vector| vector.elements.iter());
    elements.fold(Extremes::none(k), |range, x| range.with(scheme, x))
}

/// The largest element and the negated least in one word.
fn range_of_halves<'k>(halves: impl Iterator<Item = Halves<'k>> + Clone) -> Option<Halves<'k>> {
    let high = halves.clone().reduce(Halves::maximum)?;
    let minus_low = halves.reduce(Halves::minimum)?.negated();
    Some(high.firsts(minus_low).maximum(high.seconds(minus_low)))
}

fn range_from_halves<'k, A: Accumulate>(k: K<'k>, words: Vec<Halves<'k>>, lanes: u32) -> Extremes<'k, A> {
    let Some(&first) = words.first() else { return Extremes::none(k) };
    let words = words.into_iter().map(Halves::word).collect();
    let combined = k.warp_combine_each(lanes, words, |a, b| first.like(a).maximum(first.like(b)).word());
    let both = first.like(combined.unwrap_or_else(|| first.word())).maximum(first.like(k.lit(0u32)));
    let [high, minus_low] = both.widen();
    Extremes { low: -minus_low.convert::<A>(), high: high.convert() }
}

/// The scale of a group and its zero point.
pub(super) struct GroupScale<'k, A: Accumulate> {
    scale: Reg<'k, A>,
    zero: Option<Reg<'k, A>>,
    /// The scale of the group in the form in which elements are multiplied or divided by it.
    pub(super) prepared: Prepared<'k, A>,
}

impl<'k, A: Accumulate> GroupScale<'k, A> {
    /// From the elements that this lane has of several groups, each of them over `lanes` neighbours. A lane receives the
    /// scale of one of the groups, shared out as [`K::warp_combine_each`] does.
    pub(super) fn of(k: K<'k>, scheme: Scheme, groups: &[Vec<Vector<'k, A>>], lanes: u32) -> Self {
        Self::from_extremes(scheme, ranges(k, scheme, groups, lanes))
    }

    pub(super) fn from_extremes(scheme: Scheme, range: Extremes<'k, A>) -> Self {
        match scheme {
            Scheme::Int4Asymmetric => Self::from_range(range.low, range.high),
            Scheme::Int4Symmetric => Self::known(scheme, divide_by(range.high, 7.0), None),
            Scheme::Nf4 | Scheme::Fp4 => Self::known(scheme, range.high, None),
        }
    }

    /// From what was stored.
    pub(super) fn known(scheme: Scheme, scale: Reg<'k, A>, zero: Option<Reg<'k, A>>) -> Self {
        let prepared = match scheme {
            Scheme::Nf4 | Scheme::Fp4 => {
                Prepared::Reciprocal(scale.to_f32().max(f64::from(MIN_ABSMAX)).rcp())
            }
            Scheme::Int4Symmetric | Scheme::Int4Asymmetric => {
                let passes = if zero.is_some() { Passes::Maybe } else { Passes::Never };
                Prepared::Integer(IntegerCoder::new(Divider::new(scale), zero, passes))
            }
        };
        Self { scale, zero, prepared }
    }

    fn from_range(low: Reg<'k, A>, high: Reg<'k, A>) -> Self {
        // Halved first, so that a range as wide as the type does not overflow.
        let scale = divide_by(high * 0.5 - low * 0.5, 7.5);
        let divider = Divider::new(scale);
        let zero = nearest(divider.quotient(-low)).max(0.0).min(15.0);
        // Where both ends of the range are halfway between integers, both may be rounded away from zero, and the largest
        // element passes the last code. NaN passes it too.
        let largest = nearest(divider.quotient(high)) + zero;
        let passes = Passes::Where(!largest.le(15.0));
        let prepared = Prepared::Integer(IntegerCoder::new(divider, Some(zero), passes));
        Self { scale, zero: Some(zero), prepared }
    }

    pub(super) fn store(
        &self,
        group: impl IntoIndex<'k> + Copy,
        scales: Ptr<'k, Write, Elem>,
        zero_points: Ptr<'k, Write, u8>,
    ) {
        scales.at(group).set(self.scale);
        if let Some(zero) = self.zero {
            zero_points.at(group).set(zero.to_u32());
        }
    }
}

/// Division by one scale, rounded exactly: the quotient by a correctly rounded reciprocal, corrected once by its
/// remainder, is the correctly rounded quotient (Markstein, IBM J. Res. Dev. 34(1), 1990) while reciprocal and remainder
/// are normal numbers. A small scale is therefore lifted by a power of two, together with what it divides. Division by 0
/// gives 0.
#[derive(Clone, Copy)]
struct Divider<'k, A: Accumulate> {
    /// Whether the scale was lifted.
    small: Pred<'k>,
    scale: Reg<'k, A>,
    reciprocal: Reg<'k, A>,
}

impl<'k, A: Accumulate> Divider<'k, A> {
    fn new(scale: Reg<'k, A>) -> Self {
        let small = scale.lt(if A::DOUBLE { 2f64.powi(-900) } else { 2f64.powi(-60) });
        let scale = scale * lift(small);
        let reciprocal = scale.gt(0.0).select(scale.rcp(), 0.0);
        Self { small, scale, reciprocal }
    }

    /// `x / scale`
    fn quotient(self, x: Reg<'k, A>) -> Reg<'k, A> {
        quotient(x * lift(self.small), self.scale, self.reciprocal)
    }
}

/// The power of two that a scale and its dividend are multiplied by.
fn lift<'k, A: Accumulate>(small: Pred<'k>) -> Reg<'k, A> {
    let lift = if A::DOUBLE { 2f64.powi(512) } else { 2f64.powi(64) };
    small.select(small.k().lit::<A>(lift), 1.0)
}

/// `x / scale` of numbers that are lifted if they have to be.
fn quotient<'k, A: Accumulate>(x: Reg<'k, A>, scale: Reg<'k, A>, reciprocal: Reg<'k, A>) -> Reg<'k, A> {
    let q = x * reciprocal;
    let remainder = (-q).mul_add(scale, x);
    remainder.mul_add(reciprocal, q)
}

/// `x / divisor`, rounded exactly, for a non-negative `x` and a small constant: as [`Divider::quotient`], except near the
/// denormals, where the remainder would be rounded.
fn divide_by<'k, A: Accumulate>(x: Reg<'k, A>, divisor: f64) -> Reg<'k, A> {
    let k = x.k();
    let tiny = if A::DOUBLE { 2f64.powi(-900) } else { 2f64.powi(-90) };
    let reciprocal = k.lit::<A>(1.0 / divisor);
    let q = x * reciprocal;
    let near = (-q).mul_add(divisor, x).mul_add(reciprocal, q);
    // Infinity and NaN take the slow way too.
    let ordinary = x.gt(tiny) & x.lt(f64::INFINITY);
    k.if_else(ordinary, || near, || x / divisor)
}

/// The nearest integer, ties to even, of a number below 2^21.
fn nearest<'k, A: Accumulate>(x: Reg<'k, A>) -> Reg<'k, A> {
    let round = if A::DOUBLE { ROUND_F64 } else { ROUND_F32 };
    (x + round) - round
}

/// A group's scale, prepared for turning elements into codes. Lanes can hand it on.
#[derive(Clone, Copy)]
pub(super) enum Prepared<'k, A: Accumulate> {
    Reciprocal(F32<'k>),
    Integer(IntegerCoder<'k, A>),
}

impl<'k, A: Accumulate> Carry<'k> for Prepared<'k, A> {
    fn collect(&self, regs: &mut Vec<RawReg>) {
        match self {
            Self::Reciprocal(reciprocal) => reciprocal.collect(regs),
            Self::Integer(coder) => coder.factors.collect(regs),
        }
    }

    fn rebuild(&self, regs: &mut RawRegs) -> Self {
        match self {
            Self::Reciprocal(reciprocal) => Self::Reciprocal(reciprocal.rebuild(regs)),
            Self::Integer(coder) => {
                Self::Integer(IntegerCoder { factors: coder.factors.rebuild(regs), ..*coder })
            }
        }
    }
}

/// Values that a scheme needs once per thread.
pub(super) enum Coder<'k> {
    Nf4 {
        rank: WarpTable<'k, u32>,
        midpoint: WarpTable<'k, f32>,
    },
    /// `codes` holds the code below the midpoint in bits 0-3 and the one above in bits 4-7.
    Fp4 {
        codes: WarpTable<'k, u32>,
        midpoint: WarpTable<'k, f32>,
    },
    Integer,
}

impl<'k> Coder<'k> {
    /// Every lane must be active here and in [`pack`](Self::pack).
    pub(super) fn new(k: K<'k>, scheme: Scheme) -> Self {
        match scheme {
            Scheme::Nf4 => {
                let table = RankTable::new(&NF4_MIDPOINTS, NF4_ZERO_BUCKET);
                Self::Nf4 { rank: k.warp_table_u32(&table.rank), midpoint: k.warp_table_f32(&table.midpoint) }
            }
            Scheme::Fp4 => {
                let table = RankTable::new(&FP4_MIDPOINTS, 0);
                let ascending =
                    |rank: u32| u32::from(FP4_ASCENDING[(rank as usize).min(FP4_ASCENDING.len() - 1)]);
                let codes = table.rank.map(|rank| ascending(rank) | ascending(rank + 1) << 4);
                Self::Fp4 { codes: k.warp_table_u32(&codes), midpoint: k.warp_table_f32(&table.midpoint) }
            }
            Scheme::Int4Symmetric | Scheme::Int4Asymmetric => Self::Integer,
        }
    }

    /// The codes of up to eight elements of one group, in a word in memory order.
    pub(super) fn pack<A: Accumulate>(
        &self,
        k: K<'k>,
        elements: &Lanes<'k, A>,
        prepared: &Prepared<'k, A>,
        order: NibbleOrder,
    ) -> U32<'k> {
        let units: Vec<u32> = (0..elements.len()).map(|position| 1 << order.shift(position)).collect();
        match *prepared {
            Prepared::Reciprocal(r) => {
                let codes = elements.iter().map(|x| self.ranked(x.to_f32() * r));
                codes.zip(&units).fold(k.lit(0u32), |word, (code, &unit)| code.mul_add(unit, word))
            }
            Prepared::Integer(integers) => integers.pack(k, elements, &units),
        }
    }

    /// The code of `t = x / absmax` in a 4-bit float format.
    fn ranked(&self, t: F32<'k>) -> U32<'k> {
        match self {
            Self::Nf4 { rank, midpoint } => {
                let bucket =
                    t.mul_add(f64::from(BUCKETS_PER_UNIT), ROUND_F32 + f64::from(NF4_ZERO_BUCKET)).to_bits();
                // The sign of the difference says whether t exceeds the midpoint.
                rank.get(bucket) + ((midpoint.get(bucket) - t).to_bits() >> 31)
            }
            Self::Fp4 { codes, midpoint } => {
                let magnitude = t.abs();
                let bucket = magnitude.mul_add(f64::from(BUCKETS_PER_UNIT), ROUND_F32).to_bits();
                let pair = codes.get(bucket);
                let code = magnitude.gt(midpoint.get(bucket)).select(pair >> 4, pair & 15);
                code | t.lt(0.0).select(8, 0)
            }
            Self::Integer => t.to_bits(),
        }
    }
}

/// Whether an element may come out above the last code.
#[derive(Clone, Copy)]
enum Passes<'k> {
    /// Nothing rounds up twice with the fixed zero point of symmetric groups.
    Never,
    Maybe,
    Where(Pred<'k>),
}

/// Says in [`Factors::zero`] that the scale is lifted.
const SMALL: u32 = 1 << 8;
/// Says there that an element may come out above the last code.
const PASSES: u32 = 1 << 9;

/// The registers of an [`IntegerCoder`].
#[derive(Clone, Copy)]
struct Factors<'k, A: Accumulate> {
    scale: Reg<'k, A>,
    reciprocal: Reg<'k, A>,
    /// The zero point and flags.
    zero: U32<'k>,
}
carry!(Factors<A: Accumulate> { scale, reciprocal, zero });

/// Turns the elements of one group into integer codes.
#[derive(Clone, Copy)]
pub(super) struct IntegerCoder<'k, A: Accumulate> {
    factors: Factors<'k, A>,
    /// Whether there is a zero point; that of symmetric groups is 8.
    zero: bool,
    /// Whether the flags are to be trusted.
    flagged: bool,
}

impl<'k, A: Accumulate> IntegerCoder<'k, A> {
    fn new(divider: Divider<'k, A>, zero: Option<Reg<'k, A>>, passes: Passes<'k>) -> Self {
        let small = divider.small.select(divider.small.k().lit(SMALL), 0);
        let flags = match passes {
            Passes::Where(passes) => small | passes.select(passes.k().lit(PASSES), 0),
            Passes::Never | Passes::Maybe => small,
        };
        let factors = Factors {
            scale: divider.scale,
            reciprocal: divider.reciprocal,
            zero: zero.map_or(flags, |zero| zero.to_u32() | flags),
        };
        Self { factors, zero: zero.is_some(), flagged: !matches!(passes, Passes::Maybe) }
    }

    /// The codes, each multiplied by its unit, in one word.
    fn pack(&self, k: K<'k>, elements: &Lanes<'k, A>, units: &[u32]) -> U32<'k> {
        let Factors { scale, reciprocal, zero } = self.factors;
        let any = || {
            let lift = lift((zero & SMALL).ne(0));
            let zero = zero & 15;
            let last = |code: U32<'k>| if self.zero { code.min(k.lit(ROUND_BITS + 15) - zero) } else { code };
            self.sum(k, elements, units, zero, |x| last(round_bits(quotient(x * lift, scale, reciprocal))))
        };
        if !self.flagged {
            return any();
        }
        let ordinary = || self.sum(k, elements, units, zero, |x| round_bits(quotient(x, scale, reciprocal)));
        k.if_else(zero.ge(SMALL), any, ordinary)
    }

    /// A code is a rounded quotient, which comes with bits that are the same for every element, plus the zero point. Both
    /// are summed up for the whole word first.
    fn sum(
        &self,
        k: K<'k>,
        elements: &Lanes<'k, A>,
        units: &[u32],
        zero: U32<'k>,
        quotient: impl Fn(Reg<'k, A>) -> U32<'k>,
    ) -> U32<'k> {
        let all = units.iter().fold(0u32, |all, unit| all.wrapping_add(*unit));
        let bits = all.wrapping_mul(ROUND_BITS).wrapping_neg();
        let start = if self.zero {
            zero.mul_add(all, bits)
        } else {
            // Symmetric codes are stored with 8 added.
            k.lit(bits.wrapping_add(all.wrapping_mul(8)))
        };
        elements.iter().zip(units).fold(start, |word, (x, &unit)| quotient(x).mul_add(unit, word))
    }
}

/// The nearest integer, ties to even, in the low bits.
fn round_bits<'k, A: Accumulate>(q: Reg<'k, A>) -> U32<'k> {
    let q = if A::DOUBLE { nearest(q).to_f32() } else { q.to_f32() };
    (q + ROUND_F32).to_bits()
}
