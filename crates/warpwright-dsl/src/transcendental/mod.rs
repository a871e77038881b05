//! Exponentials and their relatives, branch-free, for `f32` and `f64` registers.
//!
//! The polynomials are our own minimax fits (Remez exchange in 50-digit arithmetic); the interval and the error of each
//! stand beside its coefficients. `f64` never passes through `f32`. Accuracy is part of the contract and is tested:
//!
//! | function | f32 | f64 |
//! |---|---|---|
//! | `exp`, `exp2`, `log`, `sigmoid`, `softplus`, `tanh`, `erf`, `rsqrt` | 2 ulp | 1e-15 relative |
//! | tail of the normal distribution | 2^-20 relative | 4e-15 relative |
//!
//! Infinities, NaN and signed zeros give the mathematical limits, and subnormal results are produced unless a function says
//! otherwise. With [`Precision::Storage`] the relative error is below 2^-16 and results below 2^-126 may be zero;
//! subnormal arguments of `rsqrt` count as zero, and the tail of the normal distribution holds to that error up to 6.

mod approx;
mod double;
mod single;

use crate::float::{Float, Precision};
use crate::reg::{Number, Pred, Reg};

/// The upper tail and the density of the standard normal distribution at `|x|`; see [`Reg::normal`].
#[derive(Clone, Copy, Debug)]
pub struct Normal<'k, A: Number> {
    /// Where it was evaluated.
    pub x: Reg<'k, A>,
    /// `P(X > |x|)`, at most 1/2, with a small relative error however small it is.
    pub tail: Reg<'k, A>,
    /// `exp(-x^2 / 2) / sqrt(2 pi)`
    pub density: Reg<'k, A>,
}

impl<'k, A: Float> Normal<'k, A> {
    /// `P(X <= x)`
    #[track_caller]
    pub fn cdf(&self) -> Reg<'k, A> {
        self.x.k().on_behalf(|| {
            let positive: Pred<'k> = self.x.ge(0.0);
            positive.select(1.0 - self.tail, self.tail)
        })
    }
}

/// Operations of each register type, called through the methods of [`Reg`].
pub trait Functions: Number {
    #[doc(hidden)]
    fn exp<'k>(x: Reg<'k, Self>, p: Precision) -> Reg<'k, Self>;
    #[doc(hidden)]
    fn exp_nonpositive<'k>(x: Reg<'k, Self>, p: Precision) -> Reg<'k, Self>;
    #[doc(hidden)]
    fn exp2<'k>(x: Reg<'k, Self>, p: Precision) -> Reg<'k, Self>;
    #[doc(hidden)]
    fn log<'k>(x: Reg<'k, Self>) -> Reg<'k, Self>;
    #[doc(hidden)]
    fn sigmoid<'k>(x: Reg<'k, Self>, p: Precision) -> Reg<'k, Self>;
    #[doc(hidden)]
    fn softplus<'k>(x: Reg<'k, Self>, p: Precision) -> Reg<'k, Self>;
    #[doc(hidden)]
    fn tanh<'k>(x: Reg<'k, Self>, p: Precision) -> Reg<'k, Self>;
    #[doc(hidden)]
    fn erf<'k>(x: Reg<'k, Self>) -> Reg<'k, Self>;
    #[doc(hidden)]
    fn rsqrt<'k>(x: Reg<'k, Self>, p: Precision) -> Reg<'k, Self>;
    #[doc(hidden)]
    fn exp2_approx<'k>(x: Reg<'k, Self>) -> Reg<'k, Self>;
    #[doc(hidden)]
    fn rcp_approx<'k>(x: Reg<'k, Self>) -> Reg<'k, Self>;
    #[doc(hidden)]
    fn tanh_approx<'k>(x: Reg<'k, Self>) -> Reg<'k, Self>;
    #[doc(hidden)]
    fn normal<'k>(x: Reg<'k, Self>, p: Precision) -> Normal<'k, Self>;
}

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident, $with:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(self) -> Self {
            self.$with(Precision::Full)
        }

        #[doc = concat!("[`", stringify!($name), "`](Self::", stringify!($name), ") as exact as `p` asks for.")]
        #[track_caller]
        pub fn $with(self, p: Precision) -> Self {
            self.k().on_behalf(|| A::$name(self, p))
        }
    )*};
}

macro_rules! approximate {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(self) -> Self {
            self.k().on_behalf(|| A::$name(self))
        }
    )*};
}

impl<'k, A: Float> Reg<'k, A> {
    functions! {
        /// e to the power of the value.
        exp, exp_for;
        /// e to the power of a value that is at most 0, or above it by no more than a rounding: as exact as
        /// [`exp`](Self::exp), and cheaper in f32.
        exp_nonpositive, exp_nonpositive_for;
        /// 2 to the power of the value.
        exp2, exp2_for;
        /// `1 / (1 + exp(-x))`, with a small relative error on both sides.
        sigmoid, sigmoid_for;
        /// `log(1 + exp(x))`, with a small relative error in the tail too.
        softplus, softplus_for;
        /// The hyperbolic tangent.
        tanh, tanh_for;
        /// `1 / sqrt(x)`
        rsqrt, rsqrt_for;
    }

    approximate! {
        /// `2^x` by the hardware, within 2 ulp; results below 2^-126 are 0. [`exp2`](Self::exp2) for `f64`.
        exp2_approx;
        /// `1 / x` by the hardware, within 1 ulp; subnormals count as 0. [`rcp`](Self::rcp) for `f64`.
        rcp_approx;
        /// `tanh(x)` by the hardware, within 2^-11 relative. [`tanh`](Self::tanh) for `f64`.
        tanh_approx;
    }

    /// `1 / sqrt(x)` by the hardware, within 2^-22.9 relative. [`rsqrt`](Self::rsqrt) for `f64`.
    #[track_caller]
    pub fn rsqrt_approx(self) -> Self {
        self.rsqrt_for(Precision::Storage)
    }

    /// `1 / (1 + exp(-x))` from one `ex2` and one `rcp`: about 2^-17 relative. [`sigmoid`](Self::sigmoid) for `f64`.
    #[track_caller]
    pub fn sigmoid_approx(self) -> Self {
        self.sigmoid_for(Precision::Storage)
    }

    /// `x / (1 + exp(-x))`: NaN at minus infinity, as of the formula.
    #[track_caller]
    pub fn silu_for(self, precision: Precision) -> Self {
        self.k().on_behalf(|| self * self.sigmoid_for(precision))
    }

    /// The derivative of [`silu_for`](Self::silu_for).
    #[track_caller]
    pub fn silu_slope_for(self, precision: Precision) -> Self {
        self.k().on_behalf(|| {
            let s = self.sigmoid_for(precision);
            self.mul_add((-s).mul_add(s, s), s)
        })
    }

    /// The natural logarithm; NaN of negative values, minus infinity of zeros.
    #[track_caller]
    pub fn log(self) -> Self {
        self.k().on_behalf(|| A::log(self))
    }

    /// The error function, with a small relative error near 0 too.
    #[track_caller]
    pub fn erf(self) -> Self {
        self.k().on_behalf(|| A::erf(self))
    }

    /// Tail and density of the standard normal distribution at `|x|`, which share their exponential. In f32, results
    /// below 2^-126 are 0: the tail beyond 12.9 and the density beyond 13.1.
    ///
    /// `x.maximum(0.0) - x.abs().min(40.0) * x.normal(p).tail` is `x * cdf(x)` (GELU) without cancellation, with the
    /// limits at both infinities and NaN preserved.
    #[track_caller]
    pub fn normal(self, p: Precision) -> Normal<'k, A> {
        self.k().on_behalf(|| A::normal(self, p))
    }

    /// `c[0] + x c[1] + x^2 c[2] + ...` by Horner's rule; one `fma` per coefficient but the last. 0 without coefficients.
    #[track_caller]
    pub fn polynomial(self, coefficients: &[f64]) -> Self {
        self.k().on_behalf(|| match coefficients {
            [] => self.lit(0.0),
            [only] => self.lit(*only),
            [rest @ .., before, last] => {
                let top = self.mul_add(*last, *before);
                rest.iter().rev().fold(top, |sum, c| sum.mul_add(self, *c))
            }
        })
    }
}
