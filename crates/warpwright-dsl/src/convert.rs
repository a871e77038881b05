//! Conversions between register types.

use warpwright_ptx::{Inst, Modifiers, Rounding, ScalarType};

use crate::reg::{F32, F64, I32, I64, Number, Pred, Reg, Scalar, Source, U32, U64};

/// How a conversion has to be rounded, if it can be inexact.
fn rounding(from: ScalarType, to: ScalarType) -> Option<Rounding> {
    match (from.is_float(), to.is_float()) {
        (true, true) => (to.bits() < from.bits()).then_some(Rounding::Rn),
        (true, false) => Some(Rounding::Rzi),
        (false, true) => Some(Rounding::Rn),
        (false, false) => None,
    }
}

impl<'k, T: Number> Reg<'k, T> {
    /// The value as a `U`, as Rust's `as` converts: floats to integers towards zero and saturating, everything to
    /// floats to nearest. NaN becomes 0 as a 32-bit integer; as a 64-bit integer, or from f64, it becomes the least
    /// signed value. Nothing is recorded if the types are the same.
    #[track_caller]
    pub fn convert<U: Number>(self) -> Reg<'k, U> {
        self.convert_by(rounding(T::TYPE, U::TYPE))
    }

    /// The value as a `U` with the rounding written out (`Rni` to round floats to integers to nearest even).
    #[track_caller]
    pub fn convert_rounded<U: Number>(self, rounding: Rounding) -> Reg<'k, U> {
        self.convert_by(Some(rounding))
    }

    #[track_caller]
    fn convert_by<U: Number>(self, rounding: Option<Rounding>) -> Reg<'k, U> {
        let (from, to) = (T::TYPE, U::TYPE);
        let same_class = from.is_float() == to.is_float();
        if same_class && from.bits() == to.bits() {
            return self.retype();
        }
        self.cvt(Modifiers { rounding, ..Modifiers::NONE })
    }

    #[track_caller]
    pub(crate) fn cvt<U: Scalar>(self, mods: Modifiers) -> Reg<'k, U> {
        let dst = self.k().fresh::<U>();
        self.k().emit(Inst::Cvt {
            to: U::TYPE,
            from: T::TYPE,
            mods,
            dst: dst.id(),
            a: self.operand(),
            b: None,
        });
        dst
    }

    /// See [`convert`](Self::convert).
    #[track_caller]
    pub fn to_f32(self) -> F32<'k> {
        self.convert()
    }

    /// See [`convert`](Self::convert).
    #[track_caller]
    pub fn to_f64(self) -> F64<'k> {
        self.convert()
    }

    /// See [`convert`](Self::convert); signed integers are reinterpreted.
    #[track_caller]
    pub fn to_u32(self) -> U32<'k> {
        self.convert()
    }

    /// See [`convert`](Self::convert); `i32` is sign-extended, `u32` zero-extended.
    #[track_caller]
    pub fn to_u64(self) -> U64<'k> {
        self.convert()
    }

    /// See [`convert`](Self::convert); unsigned integers are reinterpreted.
    #[track_caller]
    pub fn to_i32(self) -> I32<'k> {
        self.convert()
    }

    /// See [`convert`](Self::convert); `i32` is sign-extended, `u32` zero-extended.
    #[track_caller]
    pub fn to_i64(self) -> I64<'k> {
        self.convert()
    }
}

macro_rules! bit_casts {
    ($($float:ident, $bits:ident, $bits_ty:ty, $move:ident;)*) => {$(
        impl<'k> $float<'k> {
            /// The bits of the IEEE encoding.
            #[track_caller]
            pub fn to_bits(self) -> $bits<'k> {
                let dst = self.k().fresh::<$bits_ty>();
                self.k().emit(Inst::Mov { ty: ScalarType::$move, dst: dst.id(), src: self.operand() });
                dst
            }

            /// The number with the given IEEE encoding.
            #[track_caller]
            pub fn from_bits(bits: $bits<'k>) -> Self {
                let dst = bits.k().fresh();
                bits.k().emit(Inst::Mov { ty: ScalarType::$move, dst: dst.id(), src: bits.operand() });
                dst
            }
        }
    )*};
}

bit_casts! {
    F32, U32, u32, B32;
    F64, U64, u64, B64;
}

impl<'k> Pred<'k> {
    /// 1 where it holds, else 0.
    #[track_caller]
    pub fn to_u32(self) -> U32<'k> {
        self.select(1, 0)
    }
}
