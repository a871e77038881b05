//! Register handles and what may stand beside them in an expression.

use std::fmt;
use std::marker::PhantomData;

use warpwright_ptx::{Imm, Inst, Operand, RegKind, ScalarType};

use crate::context::K;

/// A virtual register of the kernel `'k` that holds a `T`.
///
/// Handles are `Copy` and carry their recorder, so `a * b + 1.0` needs no context. Registers of two kernels have
/// different lifetimes and do not mix:
///
/// ```compile_fail
/// use warpwright_dsl::prelude::*;
/// fn mix<'a, 'b>(x: F32<'a>, y: F32<'b>) {
///     let _ = x + y;
/// }
/// ```
#[must_use = "a recorded value that nothing reads is a mistake in the kernel"]
pub struct Reg<'k, T> {
    id: warpwright_ptx::Reg,
    k: K<'k>,
    ty: PhantomData<fn() -> T>,
}

impl<T> Clone for Reg<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Reg<'_, T> {}

impl<T: Scalar> fmt::Debug for Reg<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}:{}", self.id.0, T::TYPE)
    }
}

/// A single-precision register.
pub type F32<'k> = Reg<'k, f32>;
/// A double-precision register.
pub type F64<'k> = Reg<'k, f64>;
/// An unsigned 32-bit register.
pub type U32<'k> = Reg<'k, u32>;
/// An unsigned 64-bit register.
pub type U64<'k> = Reg<'k, u64>;
/// A signed 32-bit register.
pub type I32<'k> = Reg<'k, i32>;
/// A signed 64-bit register.
pub type I64<'k> = Reg<'k, i64>;
/// A predicate register.
///
/// It is a value on the device, so a Rust `if` does not take it; use [`K::if_`] or [`Reg::select`]:
///
/// ```compile_fail
/// use warpwright_dsl::prelude::*;
/// fn branch(p: Pred<'_>) {
///     if p {}
/// }
/// ```
pub type Pred<'k> = Reg<'k, bool>;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
    impl Sealed for u16 {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
    impl Sealed for i32 {}
    impl Sealed for i64 {}
    impl Sealed for bool {}
}

/// The Rust types that a register can hold.
pub trait Scalar: sealed::Sealed + Copy + 'static {
    /// The type that instructions on it carry.
    const TYPE: ScalarType;
    /// The type that the register is declared with: untyped bits for integers, so that signed and unsigned handles
    /// can share a register.
    const REGISTER: ScalarType;

    /// The value as a literal operand.
    fn literal(self) -> Operand;
}

/// Types with arithmetic.
pub trait Number: Scalar {}

/// Integer types.
pub trait Integer: Number {
    /// The bitwise type of the same width.
    const BITS: ScalarType;
    /// Whether it is signed.
    const SIGNED: bool;
}

macro_rules! scalar {
    ($($rust:ty, $ty:ident, $reg:ident, |$v:ident| $imm:expr;)*) => {$(
        impl Scalar for $rust {
            const TYPE: ScalarType = ScalarType::$ty;
            const REGISTER: ScalarType = ScalarType::$reg;
            fn literal(self) -> Operand {
                let $v = self;
                Operand::Imm($imm)
            }
        }
    )*};
}

scalar! {
    f32, F32, F32, |v| Imm::F32(v.to_bits());
    f64, F64, F64, |v| Imm::F64(v.to_bits());
    u16, U16, B16, |v| Imm::Int(i64::from(v));
    u32, U32, B32, |v| Imm::Int(i64::from(v));
    u64, U64, B64, |v| Imm::Int(v.cast_signed());
    i32, S32, B32, |v| Imm::Int(i64::from(v));
    i64, S64, B64, |v| Imm::Int(v);
    bool, Pred, Pred, |v| Imm::Int(i64::from(v));
}

impl Number for f32 {}
impl Number for f64 {}

macro_rules! integer {
    ($($rust:ty, $bits:ident, $signed:literal;)*) => {$(
        impl Number for $rust {}
        impl Integer for $rust {
            const BITS: ScalarType = ScalarType::$bits;
            const SIGNED: bool = $signed;
        }
    )*};
}

integer! {
    u32, B32, false;
    u64, B64, false;
    i32, B32, true;
    i64, B64, true;
}

/// A source of a `T`: a register, or a Rust literal.
///
/// Floating-point literals are `f64` whatever the register type and are rounded once while recording, so that code
/// generic over the register type can write `x * 0.5`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be used as a `{T}` value in a kernel",
    note = "use a register of that type, or a literal: f64 for floats, the exact integer type otherwise"
)]
pub trait Source<'k, T: Scalar>: Copy {
    /// The operand of an instruction.
    fn operand(self) -> Operand;

    /// The value in a register; records a `mov` for a literal.
    #[track_caller]
    fn reg(self, k: K<'k>) -> Reg<'k, T> {
        match self.operand() {
            Operand::Reg(id) => Reg::from_id(k, id),
            literal => {
                let dst = k.fresh::<T>();
                k.emit(if T::TYPE == ScalarType::Pred {
                    Inst::PredMov { dst: dst.id, a: literal }
                } else {
                    Inst::Mov { ty: T::REGISTER, dst: dst.id, src: literal }
                });
                dst
            }
        }
    }
}

impl<'k, T: Scalar> Source<'k, T> for Reg<'k, T> {
    fn operand(self) -> Operand {
        Operand::Reg(self.id)
    }
}

impl<'k, A: crate::float::Float> Source<'k, A> for f64 {
    fn operand(self) -> Operand {
        A::from_f64(self).literal()
    }
}

macro_rules! literal_source {
    ($($ty:ty),*) => {$(
        impl<'k> Source<'k, $ty> for $ty {
            fn operand(self) -> Operand {
                self.literal()
            }
        }
    )*};
}

literal_source!(f32, u16, u32, u64, i32, i64, bool);

impl<'k, T: Scalar> Reg<'k, T> {
    pub(crate) fn from_id(k: K<'k>, id: warpwright_ptx::Reg) -> Self {
        Self { id, k, ty: PhantomData }
    }

    /// The recorder that it belongs to.
    pub fn k(self) -> K<'k> {
        self.k
    }

    /// The register in the IR, for [`K::raw`].
    pub fn id(self) -> warpwright_ptx::Reg {
        self.id
    }

    /// The same bits under another type of the same register class.
    pub(crate) fn retype<U: Scalar>(self) -> Reg<'k, U> {
        Reg::from_id(self.k, self.id)
    }
}

impl<'k> K<'k> {
    /// A new register with a single definition, which the next recorded instruction is expected to be.
    pub(crate) fn fresh<T: Scalar>(self) -> Reg<'k, T> {
        Reg::from_id(self, self.rec().new_reg(T::REGISTER, RegKind::Value))
    }
}
