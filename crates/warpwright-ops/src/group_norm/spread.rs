//! [`Spread`]: mean and variance of values whose mean may be large beside their deviations.

use warpwright_dsl::carry;
use warpwright_dsl::prelude::*;

/// How many values there were, their mean in two parts, and the sum of the squares of their distances from it.
///
/// The mean is `mean + low`: a value near 10000 has a spacing of 0.001 in f32, which is too coarse where the values differ
/// by 0.01; `x - mean` is exact there, and `low` corrects it. Sets are merged as in Chan, Golub and LeVeque (1979), and
/// merging is commutative to the last bit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread<'k, A: Float> {
    pub(super) count: Reg<'k, A>,
    pub(super) mean: Reg<'k, A>,
    pub(super) low: Reg<'k, A>,
    pub(super) m2: Reg<'k, A>,
}

carry!(Spread<A: Float> { count, mean, low, m2 });

impl<'k, A: Float> Spread<'k, A> {
    pub(super) fn empty(k: K<'k>) -> Self {
        Self { count: k.lit(0.0), mean: k.lit(0.0), low: k.lit(0.0), m2: k.lit(0.0) }
    }

    /// Of vectors in registers, of which those with `inside` count and the others are zeros. Distances are taken from the
    /// mean of the first vector: it is made of `width` of the `count` values, so it is at most `sqrt(count / width)`
    /// standard deviations from their mean, and at most that much of the sum of squares is subtracted again.
    pub(super) fn of(k: K<'k>, vectors: &[Packed<'k, A>], inside: &[Pred<'k>], width: u32) -> Self {
        let total = |lanes: &Lanes<'k, A>| lanes.sum().unwrap_or_else(|| k.lit(0.0));
        let pivot = match vectors.first() {
            Some(first) => total(&first.lanes()) * (1.0 / f64::from(width)),
            None => k.lit(0.0),
        };
        let zero = || k.lit::<A>(0.0);
        let mut state = (zero(), zero(), zero());
        for (vector, inside) in vectors.iter().zip(inside) {
            state = k.if_else(
                *inside,
                || {
                    let distances = vector.lanes().map(|x| x - pivot);
                    let squares = distances.fold(state.2, |sum, d| d.mul_add(d, sum));
                    (state.0 + f64::from(width), state.1 + total(&distances), squares)
                },
                || state,
            );
        }
        let (count, sum, squares) = state;
        let low = sum * count.max(1.0).rcp_approx();
        Self { count, mean: pivot, low, m2: (-low).mul_add(sum, squares) }
    }

    /// Those of both sets together.
    pub(super) fn merge(self, other: Self) -> Self {
        let (a, b) = (self, other);
        let count = a.count + b.count;
        // A rounding error of the weights moves `mean`, and `low` makes up for it.
        let reciprocal = count.max(1.0).rcp_approx();
        let (of_a, of_b) = (a.count * reciprocal, b.count * reciprocal);
        let mean = a.mean * of_a + b.mean * of_b;
        let rest = |s: Self, weight: Reg<'k, A>| ((s.mean - mean) + s.low) * weight;
        let low = rest(a, of_a) + rest(b, of_b);
        let distance = (b.mean - a.mean) + (b.low - a.low);
        let between = (a.count * b.count) * reciprocal;
        Self { count, mean, low, m2: (a.m2 + b.m2) + (distance * between) * distance }
    }

    /// `1 / sqrt(variance + eps)`
    pub(super) fn rstd(self, eps: Reg<'k, A>) -> Reg<'k, A> {
        let variance = self.m2 * self.count.rcp();
        // Rounding may leave less than nothing; NaN stays.
        let variance = variance.lt(0.0).select(0.0, variance);
        (variance + eps).rsqrt()
    }
}
