//! The hardware's approximations, one instruction each. They exist for `f32` only and flush subnormals; where code is
//! generic over the register type, the methods of the same name do the exact computation in `f64`.

use warpwright_ptx::{BinaryOp, Modifiers, ScalarType, UnaryOp};

use crate::reg::{F32, Source};

pub(super) const APPROX_FTZ: Modifiers = Modifiers::APPROX.with_ftz();

macro_rules! approximations {
    ($($(#[$doc:meta])* $name:ident, $op:ident, $mods:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(self) -> Self {
            self.k().unary(UnaryOp::$op, ScalarType::F32, $mods, self.operand())
        }
    )*};
}

impl<'k> F32<'k> {
    approximations! {
        /// `log2(x)` within 2^-22: absolute between 1/2 and 2, relative elsewhere.
        lg2_approx, Lg2, APPROX_FTZ;
        /// `sqrt(x)` within 2^-23 relative.
        sqrt_approx, Sqrt, APPROX_FTZ;
        /// `sin(x)` within 2^-20.5 absolute on [-2 pi, 2 pi].
        sin_approx, Sin, APPROX_FTZ;
        /// `cos(x)` within 2^-20.5 absolute on [-2 pi, 2 pi].
        cos_approx, Cos, APPROX_FTZ;
    }

    /// `self / rhs` within 2 ulp while `|rhs|` is between 2^-126 and 2^126.
    #[track_caller]
    pub fn div_approx(self, rhs: impl Source<'k, f32>) -> Self {
        let (a, b) = (self.operand(), rhs.operand());
        self.k().binary(BinaryOp::Div, ScalarType::F32, APPROX_FTZ, a, b)
    }
}
