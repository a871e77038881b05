//! [`Moments`]: mean and variance in one pass without the cancellation of `E[x^2] - E[x]^2`.

use crate::context::K;
use crate::float::Float;
use crate::flow::{Carry, RawReg, RawRegs};
use crate::lanes::Lanes;
use crate::reg::Reg;

/// How many values there were, their mean, and the sum of their squared distances from it.
///
/// Values are added by Welford's update, sets are merged by that of Chan, Golub and LeVeque (1979). Merging is commutative
/// to the last bit, so [`K::warp_combine`] and [`K::group_combine`] give every thread the same moments. Counts are exact
/// up to 2^24 in f32.
#[derive(Clone, Copy, Debug)]
#[must_use = "a recorded value that nothing reads is a mistake in the kernel"]
pub struct Moments<'k, A: Float> {
    /// Number of values.
    pub count: Reg<'k, A>,
    /// Their mean; 0 if there are none.
    pub mean: Reg<'k, A>,
    /// Sum of the squared distances from the mean.
    pub m2: Reg<'k, A>,
}

impl<'k, A: Float> Carry<'k> for Moments<'k, A> {
    fn collect(&self, regs: &mut Vec<RawReg>) {
        (self.count, self.mean, self.m2).collect(regs);
    }

    fn rebuild(&self, regs: &mut RawRegs) -> Self {
        let (count, mean, m2) = (self.count, self.mean, self.m2).rebuild(regs);
        Self { count, mean, m2 }
    }
}

impl<'k, A: Float> Moments<'k, A> {
    /// Those of nothing.
    #[track_caller]
    pub fn empty(k: K<'k>) -> Self {
        k.on_behalf(|| Self { count: k.lit(0.0), mean: k.lit(0.0), m2: k.lit(0.0) })
    }

    /// Those of values in registers, in two passes over them: mean first, then the squares of the distances. `None` if
    /// there are no values.
    #[track_caller]
    pub fn of(values: &Lanes<'k, A>) -> Option<Self> {
        let k = values.iter().next()?.k();
        k.on_behalf(|| {
            let count = values.len() as f64;
            let mean = values.reduce(|a, b| a + b)? * (1.0 / count);
            let squares = values.map(|x| {
                let distance = x - mean;
                distance * distance
            });
            Some(Self { count: k.lit(count), mean, m2: squares.reduce(|a, b| a + b)? })
        })
    }

    /// With one value more. A division a value: where values come in vectors, [`merge`](Self::merge) with
    /// [`of`](Self::of) costs less.
    #[track_caller]
    pub fn push(self, x: Reg<'k, A>) -> Self {
        x.k().on_behalf(|| {
            let count = self.count + 1.0;
            let before = x - self.mean;
            let mean = before.mul_add(count.rcp(), self.mean);
            Self { count, mean, m2: before.mul_add(x - mean, self.m2) }
        })
    }

    /// Those of both sets together.
    #[track_caller]
    pub fn merge(self, other: Self) -> Self {
        self.mean.k().on_behalf(|| {
            let (a, b) = (self, other);
            let count = a.count + b.count;
            let reciprocal = count.max(1.0).rcp();
            // From the larger set, and the greater mean of equal ones: the same choice whichever comes first.
            let from_a = a.count.gt(b.count) | (a.count.eq(b.count) & a.mean.ge(b.mean));
            let far = from_a.select_all(&b, &a);
            let near: Reg<'k, A> = from_a.select(a.mean, b.mean);
            let distance = far.mean - near;
            let mean = distance.mul_add(far.count * reciprocal, near);
            let between = a.count * b.count * reciprocal;
            Self { count, mean, m2: (distance * distance).mul_add(between, a.m2 + b.m2) }
        })
    }

    /// The mean square of the distances from the mean, as `layer_norm` and `batch_norm` in training divide by; 0 of
    /// nothing.
    #[track_caller]
    pub fn variance(self) -> Reg<'k, A> {
        self.m2.k().on_behalf(|| self.m2 * self.count.max(1.0).rcp())
    }
}
