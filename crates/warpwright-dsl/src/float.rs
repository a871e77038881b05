//! The floating-point register types and the precision that a computation is worth.

use warpwright_ptx::DType;

use crate::reg::Number;
use crate::transcendental::Functions;

/// `f32` and `f64` registers: what kernels compute in.
pub trait Float: Number + Functions {
    /// Rounds a literal to the type.
    fn from_f64(value: f64) -> Self;

    /// Whether this is `f64`.
    const DOUBLE: bool;
}

impl Float for f32 {
    fn from_f64(value: f64) -> Self {
        value as Self
    }

    const DOUBLE: bool = false;
}

impl Float for f64 {
    fn from_f64(value: f64) -> Self {
        value
    }

    const DOUBLE: bool = true;
}

/// How exact a function has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// A few units in the last place of the register type.
    Full,
    /// The result is rounded to a 16-bit storage type next: a relative error of 2^-16 costs nothing there and saves
    /// instructions. `f64` registers ignore it.
    Storage,
}

impl Precision {
    /// The precision of a result that is stored as `dtype`.
    pub const fn of(dtype: DType) -> Self {
        match dtype {
            DType::F16 | DType::BF16 => Self::Storage,
            _ => Self::Full,
        }
    }
}

/// Calls a generic body with the register type that values of a dtype are computed in: `f64` for [`DType::F64`], else
/// `f32`.
///
/// ```
/// use warpwright_dsl::{DType, accumulate};
/// fn bytes<A>() -> usize {
///     size_of::<A>()
/// }
/// assert_eq!(accumulate!(DType::BF16, |A| bytes::<A>()), 4);
/// assert_eq!(accumulate!(DType::F64, |A| bytes::<A>()), 8);
/// ```
#[macro_export]
macro_rules! accumulate {
    ($dtype:expr, |$A:ident| $body:expr) => {
        if $dtype == $crate::DType::F64 {
            type $A = f64;
            $body
        } else {
            type $A = f32;
            $body
        }
    };
}
