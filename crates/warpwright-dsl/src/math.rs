//! Arithmetic and comparisons.
//!
//! Floating-point `+ - *` are rounded one by one (`.rn`), never contracted by the assembler; fusing is written
//! [`mul_add`](Reg::mul_add). `/` and [`sqrt`](Reg::sqrt) are correctly rounded, and their hardware approximations end
//! in `_approx`.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};

use warpwright_ptx::{
    BinaryOp, BoolOp, CmpOp, Imm, Inst, Modifiers, Operand, RegKind, Rounding, ScalarType, TernaryOp, UnaryOp,
};

use crate::context::K;
use crate::error::IssueKind;
use crate::float::Float;
use crate::flow::{Carry, RawReg, RawRegs};
use crate::reg::{F32, Integer, Number, Pred, Reg, Scalar, Source};

impl<'k> K<'k> {
    #[track_caller]
    pub(crate) fn unary<T: Scalar>(
        self,
        op: UnaryOp,
        ty: ScalarType,
        mods: Modifiers,
        a: Operand,
    ) -> Reg<'k, T> {
        let dst = self.fresh::<T>();
        self.emit(Inst::Unary { op, ty, mods, dst: dst.id(), a });
        dst
    }

    #[track_caller]
    pub(crate) fn binary<T: Scalar>(
        self,
        op: BinaryOp,
        ty: ScalarType,
        mods: Modifiers,
        a: Operand,
        b: Operand,
    ) -> Reg<'k, T> {
        let dst = self.fresh::<T>();
        let (op, ty, b) = without_division(op, ty, b);
        self.emit(Inst::Binary { op, ty, mods, dst: dst.id(), a, b });
        dst
    }

    #[track_caller]
    pub(crate) fn ternary<T: Scalar>(
        self,
        op: TernaryOp,
        ty: ScalarType,
        mods: Modifiers,
        [a, b, c]: [Operand; 3],
    ) -> Reg<'k, T> {
        let dst = self.fresh::<T>();
        self.emit(Inst::Ternary { op, ty, mods, dst: dst.id(), a, b, c });
        dst
    }
}

/// Divisions of unsigned integers by literals that are powers of two as shifts and masks: assemblers of PTX leave them as
/// twenty instructions.
fn without_division(op: BinaryOp, ty: ScalarType, b: Operand) -> (BinaryOp, ScalarType, Operand) {
    let Operand::Imm(Imm::Int(divisor)) = b else { return (op, ty, b) };
    let divisor = divisor.cast_unsigned();
    if !matches!(ty, ScalarType::U32 | ScalarType::U64) || !divisor.is_power_of_two() {
        return (op, ty, b);
    }
    match op {
        BinaryOp::Div => (BinaryOp::Shr, ty, Operand::int(i64::from(divisor.ilog2()))),
        BinaryOp::Rem => (BinaryOp::And, ty.to_bits(), Operand::int((divisor - 1).cast_signed())),
        _ => (op, ty, b),
    }
}

/// The operator and modifiers of `+ - * /` for a type.
fn arithmetic<T: Number>(float: BinaryOp, integer: BinaryOp) -> (BinaryOp, Modifiers) {
    if T::TYPE.is_float() { (float, Modifiers::RN) } else { (integer, Modifiers::NONE) }
}

macro_rules! operators {
    ($($trait:ident, $method:ident, $float:ident, $integer:ident;)*) => {$(
        impl<'k, T: Number, R: Source<'k, T>> $trait<R> for Reg<'k, T> {
            type Output = Reg<'k, T>;

            #[track_caller]
            fn $method(self, rhs: R) -> Reg<'k, T> {
                let (op, mods) = arithmetic::<T>(BinaryOp::$float, BinaryOp::$integer);
                self.k().binary(op, T::TYPE, mods, self.operand(), rhs.operand())
            }
        }

        impl<'k, A: Float> $trait<Reg<'k, A>> for f64 {
            type Output = Reg<'k, A>;

            #[track_caller]
            fn $method(self, rhs: Reg<'k, A>) -> Reg<'k, A> {
                let (op, mods) = arithmetic::<A>(BinaryOp::$float, BinaryOp::$integer);
                rhs.k().binary(op, A::TYPE, mods, Source::<A>::operand(self), rhs.operand())
            }
        }

        operators!(@literal $trait, $method, $integer, u32 u64 i32 i64);
    )*};
    (@literal $trait:ident, $method:ident, $integer:ident, $($ty:ty)*) => {$(
        impl<'k> $trait<Reg<'k, $ty>> for $ty {
            type Output = Reg<'k, $ty>;

            #[track_caller]
            fn $method(self, rhs: Reg<'k, $ty>) -> Reg<'k, $ty> {
                let ty = <$ty as Scalar>::TYPE;
                rhs.k().binary(BinaryOp::$integer, ty, Modifiers::NONE, self.literal(), rhs.operand())
            }
        }
    )*};
}

operators! {
    Add, add, Add, Add;
    Sub, sub, Sub, Sub;
    Mul, mul, Mul, MulLo;
    Div, div, Div, Div;
}

impl<'k, T: Integer, R: Source<'k, T>> Rem<R> for Reg<'k, T> {
    type Output = Reg<'k, T>;

    #[track_caller]
    fn rem(self, rhs: R) -> Reg<'k, T> {
        self.k().binary(BinaryOp::Rem, T::TYPE, Modifiers::NONE, self.operand(), rhs.operand())
    }
}

impl<'k, T: Number> Neg for Reg<'k, T> {
    type Output = Reg<'k, T>;

    #[track_caller]
    fn neg(self) -> Reg<'k, T> {
        match T::TYPE {
            ScalarType::U32 | ScalarType::U64 => {
                self.k().binary(BinaryOp::Sub, T::TYPE, Modifiers::NONE, Operand::int(0), self.operand())
            }
            ty => self.k().unary(UnaryOp::Neg, ty, Modifiers::NONE, self.operand()),
        }
    }
}

macro_rules! bit_operators {
    ($($trait:ident, $method:ident, $op:ident, $bool:ident;)*) => {$(
        impl<'k, T: Integer, R: Source<'k, T>> $trait<R> for Reg<'k, T> {
            type Output = Reg<'k, T>;

            #[track_caller]
            fn $method(self, rhs: R) -> Reg<'k, T> {
                self.k().binary(BinaryOp::$op, T::BITS, Modifiers::NONE, self.operand(), rhs.operand())
            }
        }

        impl<'k> $trait for Pred<'k> {
            type Output = Pred<'k>;

            #[track_caller]
            fn $method(self, rhs: Pred<'k>) -> Pred<'k> {
                let dst = self.k().fresh::<bool>();
                self.k().emit(Inst::PredBinary { op: BoolOp::$bool, dst: dst.id(), a: self.id(), b: rhs.id() });
                dst
            }
        }
    )*};
}

bit_operators! {
    BitAnd, bitand, And, And;
    BitOr, bitor, Or, Or;
    BitXor, bitxor, Xor, Xor;
}

impl<'k, T: Integer> Not for Reg<'k, T> {
    type Output = Reg<'k, T>;

    #[track_caller]
    fn not(self) -> Reg<'k, T> {
        self.k().unary(UnaryOp::Not, T::BITS, Modifiers::NONE, self.operand())
    }
}

impl<'k> Not for Pred<'k> {
    type Output = Pred<'k>;

    #[track_caller]
    fn not(self) -> Pred<'k> {
        let dst = self.k().fresh::<bool>();
        self.k().emit(Inst::PredNot { dst: dst.id(), a: self.id() });
        dst
    }
}

impl<'k, T: Integer, R: Source<'k, u32>> Shl<R> for Reg<'k, T> {
    type Output = Reg<'k, T>;

    /// Amounts beyond the width give 0.
    #[track_caller]
    fn shl(self, amount: R) -> Reg<'k, T> {
        self.k().binary(BinaryOp::Shl, T::BITS, Modifiers::NONE, self.operand(), amount.operand())
    }
}

impl<'k, T: Integer, R: Source<'k, u32>> Shr<R> for Reg<'k, T> {
    type Output = Reg<'k, T>;

    /// Arithmetic for signed types; amounts beyond the width give 0 or the sign.
    #[track_caller]
    fn shr(self, amount: R) -> Reg<'k, T> {
        self.k().binary(BinaryOp::Shr, T::TYPE, Modifiers::NONE, self.operand(), amount.operand())
    }
}

macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident => $cmp:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(self, rhs: impl Source<'k, T>) -> Pred<'k> {
            self.compare(CmpOp::$cmp, rhs)
        }
    )*};
}

impl<'k, T: Number> Reg<'k, T> {
    /// A comparison by its PTX operator.
    #[track_caller]
    pub fn compare(self, cmp: CmpOp, rhs: impl Source<'k, T>) -> Pred<'k> {
        let dst = self.k().fresh::<bool>();
        self.k().emit(Inst::Setp {
            cmp,
            combine: None,
            ty: T::TYPE,
            ftz: false,
            dst: dst.id(),
            dst_not: None,
            a: self.operand(),
            b: rhs.operand(),
        });
        dst
    }

    comparisons! {
        /// `self < rhs`; false if either is NaN.
        lt => Lt;
        /// `self <= rhs`; false if either is NaN.
        le => Le;
        /// `self > rhs`; false if either is NaN.
        gt => Gt;
        /// `self >= rhs`; false if either is NaN.
        ge => Ge;
        /// `self == rhs`; false if either is NaN.
        eq => Eq;
    }

    /// `self != rhs`; true if either is NaN, as in Rust.
    #[track_caller]
    pub fn ne(self, rhs: impl Source<'k, T>) -> Pred<'k> {
        self.compare(if T::TYPE.is_float() { CmpOp::Neu } else { CmpOp::Ne }, rhs)
    }

    /// The lesser; of a number and a NaN, the number.
    #[track_caller]
    pub fn min(self, rhs: impl Source<'k, T>) -> Self {
        self.k().binary(BinaryOp::Min, T::TYPE, Modifiers::NONE, self.operand(), rhs.operand())
    }

    /// The greater; of a number and a NaN, the number.
    #[track_caller]
    pub fn max(self, rhs: impl Source<'k, T>) -> Self {
        self.k().binary(BinaryOp::Max, T::TYPE, Modifiers::NONE, self.operand(), rhs.operand())
    }

    /// The value at most `high` and at least `low`; NaN becomes a bound, see [`maximum`](Self::maximum).
    #[track_caller]
    pub fn clamp(self, low: impl Source<'k, T>, high: impl Source<'k, T>) -> Self {
        self.max(low).min(high)
    }

    /// The absolute value (unsigned values are their own).
    #[track_caller]
    pub fn abs(self) -> Self {
        match T::TYPE {
            ScalarType::U32 | ScalarType::U64 => self,
            ty => self.k().unary(UnaryOp::Abs, ty, Modifiers::NONE, self.operand()),
        }
    }

    /// `self * a + b`: one rounding for floats, the low half for integers.
    #[track_caller]
    pub fn mul_add(self, a: impl Source<'k, T>, b: impl Source<'k, T>) -> Self {
        let (op, mods) = if T::TYPE.is_float() {
            (TernaryOp::Fma, Modifiers::RN)
        } else {
            (TernaryOp::MadLo, Modifiers::NONE)
        };
        self.k().ternary(op, T::TYPE, mods, [self.operand(), a.operand(), b.operand()])
    }
}

impl<'k> F32<'k> {
    /// The product, clamped to \[0, 1\]; NaN becomes 0.
    #[track_caller]
    pub fn mul_saturated(self, rhs: impl Source<'k, f32>) -> Self {
        let mods = Modifiers { sat: true, ..Modifiers::RN };
        self.k().binary(BinaryOp::Mul, ScalarType::F32, mods, self.operand(), rhs.operand())
    }
}

impl<'k> Pred<'k> {
    /// `a` where the predicate holds, `b` elsewhere. Both have been computed.
    #[track_caller]
    pub fn select<T: Number>(self, a: impl Source<'k, T>, b: impl Source<'k, T>) -> Reg<'k, T> {
        let dst = self.k().fresh::<T>();
        self.k().emit(Inst::Selp {
            ty: T::REGISTER,
            dst: dst.id(),
            a: a.operand(),
            b: b.operand(),
            pred: self.id(),
        });
        dst
    }
}

impl<'k> Pred<'k> {
    /// The same for every register of two values of one shape. Predicates among them are an issue.
    #[track_caller]
    pub fn select_all<C: Carry<'k>>(self, a: &C, b: &C) -> C {
        let k = self.k();
        let regs = |value: &C| {
            let mut regs = Vec::new();
            value.collect(&mut regs);
            regs
        };
        let chosen = regs(a).into_iter().zip(regs(b)).map(|(a, b)| {
            if a.ty == ScalarType::Pred {
                k.issue(IssueKind::Shuffle { register: a.ty });
                return a;
            }
            let dst = k.rec().new_reg(a.ty, RegKind::Value);
            let ty = a.ty;
            let (a, b) = (Operand::Reg(a.id), Operand::Reg(b.id));
            k.emit(Inst::Selp { ty, dst, a, b, pred: self.id() });
            RawReg { id: dst, ty }
        });
        a.rebuild(&mut RawRegs::new(chosen.collect()))
    }
}

/// `.NaN` of `min` and `max` exists for f32 from sm_80.
const MIN_MAX_NAN_SM: u32 = 80;

impl<'k, A: Float> Reg<'k, A> {
    /// The literal `value` in a register of this type.
    #[track_caller]
    pub fn lit(self, value: f64) -> Self {
        self.k().lit(value)
    }

    /// The lesser; NaN if either is NaN (one instruction for f32 from sm_80, two otherwise).
    #[track_caller]
    pub fn minimum(self, rhs: impl Source<'k, A>) -> Self {
        self.propagating(BinaryOp::Min, CmpOp::Leu, rhs)
    }

    /// The greater; NaN if either is NaN (one instruction for f32 from sm_80, two otherwise).
    #[track_caller]
    pub fn maximum(self, rhs: impl Source<'k, A>) -> Self {
        self.propagating(BinaryOp::Max, CmpOp::Geu, rhs)
    }

    #[track_caller]
    fn propagating(self, op: BinaryOp, cmp: CmpOp, rhs: impl Source<'k, A>) -> Self {
        let k = self.k();
        if !A::DOUBLE && k.target().sm >= MIN_MAX_NAN_SM {
            let mods = Modifiers { nan: true, ..Modifiers::NONE };
            return k.binary(op, A::TYPE, mods, self.operand(), rhs.operand());
        }
        let kept = self.compare(cmp, rhs).select(self, rhs);
        match rhs.operand() {
            // The unordered comparison keeps a NaN on the left; one on the right needs a look of its own.
            Operand::Reg(_) => {
                let rhs = rhs.reg(k);
                rhs.is_nan().select(rhs, kept)
            }
            _ => kept,
        }
    }

    /// Whether it is NaN.
    #[track_caller]
    pub fn is_nan(self) -> Pred<'k> {
        self.compare(CmpOp::Nan, self)
    }

    /// Whether it is neither NaN nor infinite.
    #[track_caller]
    pub fn is_finite(self) -> Pred<'k> {
        self.abs().lt(f64::INFINITY)
    }

    /// The square root, correctly rounded.
    #[track_caller]
    pub fn sqrt(self) -> Self {
        self.k().unary(UnaryOp::Sqrt, A::TYPE, Modifiers::RN, self.operand())
    }

    /// `1 / self`, correctly rounded.
    #[track_caller]
    pub fn rcp(self) -> Self {
        self.k().unary(UnaryOp::Rcp, A::TYPE, Modifiers::RN, self.operand())
    }

    /// This magnitude with the sign of `sign`.
    #[track_caller]
    pub fn copysign(self, sign: impl Source<'k, A>) -> Self {
        // PTX takes the sign from the first operand.
        self.k().binary(BinaryOp::Copysign, A::TYPE, Modifiers::NONE, sign.operand(), self.operand())
    }

    /// The nearest integer, ties to even.
    #[track_caller]
    pub fn round_even(self) -> Self {
        self.integral(Rounding::Rni)
    }

    /// The largest integer that is not greater.
    #[track_caller]
    pub fn floor(self) -> Self {
        self.integral(Rounding::Rmi)
    }

    /// The least integer that is not less.
    #[track_caller]
    pub fn ceil(self) -> Self {
        self.integral(Rounding::Rpi)
    }

    /// The integer part.
    #[track_caller]
    pub fn trunc(self) -> Self {
        self.integral(Rounding::Rzi)
    }

    #[track_caller]
    fn integral(self, rounding: Rounding) -> Self {
        let dst = self.k().fresh::<A>();
        self.k().emit(Inst::Cvt {
            to: A::TYPE,
            from: A::TYPE,
            mods: Modifiers::rounded(rounding),
            dst: dst.id(),
            a: self.operand(),
            b: None,
        });
        dst
    }
}
