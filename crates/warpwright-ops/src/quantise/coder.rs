//! What a group is coded with: its scale, and the rules that turn elements into codes.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{WarpTable, warp_reduce_lanes};

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
/// What a group's scale is made of: the least and the greatest element, zero included; or, for schemes without zero
/// points, the greatest magnitude in `high`. NaN if there is one.
pub(super) struct Extremes<'k, A: Float> {
    low: Reg<'k, A>,
    high: Reg<'k, A>,
}
carry!(Extremes<A: Float> { low, high });

impl<'k, A: Float> Extremes<'k, A> {
    pub(super) fn none(k: K<'k>) -> Self {
        Self { low: k.lit(0.0), high: k.lit(0.0) }
    }

    pub(super) fn with(self, scheme: Scheme, x: Reg<'k, A>) -> Self {
        match scheme {
            Scheme::Int4Asymmetric => Self { low: self.low.minimum(x), high: self.high.maximum(x) },
            _ => Self { high: self.high.maximum(x.abs()), ..self },
        }
    }

    pub(super) fn across(self, k: K<'k>, scheme: Scheme, lanes: u32) -> Self {
        let high = warp_reduce_lanes(k, Maximum, lanes, self.high);
        match scheme {
            Scheme::Int4Asymmetric => Self { low: warp_reduce_lanes(k, Minimum, lanes, self.low), high },
            _ => Self { high, ..self },
        }
    }
}

/// The scale of a group and its zero point.
pub(super) struct GroupScale<'k, A: Float> {
    pub(super) scheme: Scheme,
    pub(super) scale: Reg<'k, A>,
    pub(super) zero: Option<Reg<'k, A>>,
}

impl<'k, A: Float> GroupScale<'k, A> {
    /// From the elements of a thread, one of `lanes` neighbours that share the group.
    pub(super) fn of(k: K<'k>, scheme: Scheme, elements: &[Reg<'k, A>], lanes: u32) -> Self {
        let range = elements.iter().fold(Extremes::none(k), |range, x| range.with(scheme, *x));
        Self::from_extremes(k, scheme, range.across(k, scheme, lanes))
    }

    pub(super) fn from_extremes(k: K<'k>, scheme: Scheme, range: Extremes<'k, A>) -> Self {
        match scheme {
            Scheme::Int4Asymmetric => Self::from_range(k, range.low, range.high),
            _ => Self::from_absmax(scheme, range.high),
        }
    }

    fn from_absmax(scheme: Scheme, absmax: Reg<'k, A>) -> Self {
        let scale = if scheme == Scheme::Int4Symmetric { divide_by(absmax, 7.0) } else { absmax };
        Self { scheme, scale, zero: None }
    }

    fn from_range(k: K<'k>, low: Reg<'k, A>, high: Reg<'k, A>) -> Self {
        // Halved first, so that a range as wide as the type does not overflow.
        let scale = divide_by(high * 0.5 - low * 0.5, 7.5);
        let quotient = k.if_else(
            Divider::is_small(scale),
            || Divider::lifted(scale).quotient(-low),
            || Divider::ordinary(scale).quotient(-low),
        );
        let zero = nearest(quotient).max(0.0).min(15.0);
        Self { scheme: Scheme::Int4Asymmetric, scale, zero: Some(zero) }
    }

    pub(super) fn store(
        &self,
        group: impl IntoIndex<'k> + Copy,
        scales: Ptr<'k, Write, Elem>,
        zero_points: Ptr<'k, Write, u8>,
    ) where
        Elem: Access<A>,
    {
        scales.at(group).set(self.scale);
        if let Some(zero) = self.zero {
            zero_points.at(group).set(zero.to_u32());
        }
    }

    /// What the elements of the group are multiplied or divided by.
    pub(super) fn prepare(&self) -> Prepared<'k, A> {
        match self.scheme {
            Scheme::Nf4 | Scheme::Fp4 => {
                Prepared::Reciprocal(self.scale.to_f32().max(f64::from(MIN_ABSMAX)).rcp())
            }
            Scheme::Int4Symmetric | Scheme::Int4Asymmetric => {
                Prepared::Integer { scale: self.scale, zero: self.zero.map(|zero| zero.convert()) }
            }
        }
    }
}

/// Division by one scale, rounded exactly: the quotient by a correctly rounded reciprocal, corrected once by its
/// remainder, is the correctly rounded quotient (Markstein, IBM J. Res. Dev. 34(1), 1990) while reciprocal and remainder
/// are normal numbers.
#[derive(Clone, Copy)]
struct Divider<'k, A: Float> {
    lift: Option<f64>,
    scale: Reg<'k, A>,
    reciprocal: Reg<'k, A>,
}

impl<'k, A: Float> Divider<'k, A> {
    /// Whether division by `scale` has to be [`lifted`](Self::lifted).
    fn is_small(scale: Reg<'k, A>) -> Pred<'k> {
        scale.lt(if A::DOUBLE { 2f64.powi(-900) } else { 2f64.powi(-60) })
    }

    fn ordinary(scale: Reg<'k, A>) -> Self {
        Self { lift: None, scale, reciprocal: scale.rcp() }
    }

    /// For a small scale, which is multiplied by a power of two together with what it divides. Division by 0 gives 0.
    fn lifted(scale: Reg<'k, A>) -> Self {
        let lift = if A::DOUBLE { 2f64.powi(512) } else { 2f64.powi(64) };
        let scale = scale * lift;
        Self { lift: Some(lift), scale, reciprocal: scale.gt(0.0).select(scale.rcp(), 0.0) }
    }

    /// `x / scale`
    fn quotient(self, x: Reg<'k, A>) -> Reg<'k, A> {
        let x = self.lift.map_or(x, |lift| x * lift);
        let q = x * self.reciprocal;
        let remainder = (-q).mul_add(self.scale, x);
        remainder.mul_add(self.reciprocal, q)
    }
}

/// `x / divisor`, rounded exactly, for a non-negative `x` and a small constant: as [`Divider::quotient`], except near the
/// denormals, where the remainder would be rounded.
fn divide_by<'k, A: Float>(x: Reg<'k, A>, divisor: f64) -> Reg<'k, A> {
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
fn nearest<'k, A: Float>(x: Reg<'k, A>) -> Reg<'k, A> {
    let round = if A::DOUBLE { ROUND_F64 } else { ROUND_F32 };
    (x + round) - round
}

/// What turns the elements of one group into codes.
pub(super) enum Prepared<'k, A: Float> {
    Reciprocal(F32<'k>),
    /// The zero point of symmetric groups is 8.
    Integer {
        scale: Reg<'k, A>,
        zero: Option<U32<'k>>,
    },
}

/// What a scheme needs once per thread.
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
    pub(super) fn pack<A: Float>(
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
            Prepared::Integer { scale, zero } => k.if_else(
                Divider::is_small(scale),
                || integers(k, elements, &units, Divider::lifted(scale), zero),
                || integers(k, elements, &units, Divider::ordinary(scale), zero),
            ),
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

/// The integer codes of elements of one group, each multiplied by its unit, in one word.
fn integers<'k, A: Float>(
    k: K<'k>,
    elements: &Lanes<'k, A>,
    units: &[u32],
    divider: Divider<'k, A>,
    zero: Option<U32<'k>>,
) -> U32<'k> {
    // A code is a rounded quotient, which comes with bits that are the same for every element, plus the zero point. Both
    // are summed up for the whole word first.
    let all = units.iter().fold(0u32, |all, unit| all.wrapping_add(*unit));
    let bits = all.wrapping_mul(ROUND_BITS).wrapping_neg();
    let start = match zero {
        Some(zero) => zero.mul_add(all, bits),
        // Symmetric codes are stored with 8 added.
        None => k.lit(bits.wrapping_add(all.wrapping_mul(8))),
    };
    elements.iter().zip(units).fold(start, |word, (x, &unit)| {
        let q = divider.quotient(x);
        let q = if A::DOUBLE { nearest(q).to_f32() } else { q.to_f32() };
        let quotient = (q + ROUND_F32).to_bits();
        // Only with a zero point can rounding up twice pass the last code.
        let quotient = zero.map_or(quotient, |zero| quotient.min(k.lit(ROUND_BITS + 15) - zero));
        quotient.mul_add(unit, word)
    })
}
