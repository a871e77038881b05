//! Integer instructions beyond the operators: wide and high products, bit fields, byte permutes.

use warpwright_ptx::{BinaryOp, Inst, Modifiers, Operand, TernaryOp, UnaryOp};

use crate::reg::{I32, I64, Integer, Reg, Source, U32, U64};

impl<'k, T: Integer> Reg<'k, T> {
    /// The upper half of the product.
    #[track_caller]
    pub fn mul_hi(self, rhs: impl Source<'k, T>) -> Self {
        self.k().binary(BinaryOp::MulHi, T::TYPE, Modifiers::NONE, self.operand(), rhs.operand())
    }

    /// Number of bits that are 1.
    #[track_caller]
    pub fn count_ones(self) -> U32<'k> {
        self.k().unary(UnaryOp::Popc, T::BITS, Modifiers::NONE, self.operand())
    }

    /// Number of zeros above the highest 1; the width if the value is 0.
    #[track_caller]
    pub fn leading_zeros(self) -> U32<'k> {
        self.k().unary(UnaryOp::Clz, T::BITS, Modifiers::NONE, self.operand())
    }

    /// The bits in reverse order.
    #[track_caller]
    pub fn reverse_bits(self) -> Self {
        self.k().unary(UnaryOp::Brev, T::BITS, Modifiers::NONE, self.operand())
    }

    /// The `len` bits from `pos`, sign-extended for signed types.
    #[track_caller]
    pub fn bit_field(self, pos: impl Source<'k, u32>, len: impl Source<'k, u32>) -> Self {
        self.k().ternary(
            TernaryOp::Bfe,
            T::TYPE,
            Modifiers::NONE,
            [self.operand(), pos.operand(), len.operand()],
        )
    }

    /// This value with the `len` bits from `pos` replaced by the lowest bits of `field`.
    #[track_caller]
    pub fn with_bit_field(
        self,
        field: impl Source<'k, T>,
        pos: impl Source<'k, u32>,
        len: impl Source<'k, u32>,
    ) -> Self {
        let dst = self.k().fresh::<T>();
        self.k().emit(Inst::Bfi {
            ty: T::BITS,
            dst: dst.id(),
            a: field.operand(),
            b: self.operand(),
            pos: pos.operand(),
            len: len.operand(),
        });
        dst
    }
}

macro_rules! wide {
    ($($narrow:ident => $wide:ident: $ty:ty, $wide_ty:ty;)*) => {$(
        impl<'k> $narrow<'k> {
            /// The whole product in 64 bits.
            #[track_caller]
            pub fn mul_wide(self, rhs: impl Source<'k, $ty>) -> $wide<'k> {
                let ty = <$ty as crate::reg::Scalar>::TYPE;
                self.k().binary(BinaryOp::MulWide, ty, Modifiers::NONE, self.operand(), rhs.operand())
            }

            /// The whole product in 64 bits plus `addend`.
            #[track_caller]
            pub fn mad_wide(self, rhs: impl Source<'k, $ty>, addend: impl Source<'k, $wide_ty>) -> $wide<'k> {
                let ty = <$ty as crate::reg::Scalar>::TYPE;
                let operands = [self.operand(), rhs.operand(), addend.operand()];
                self.k().ternary(TernaryOp::MadWide, ty, Modifiers::NONE, operands)
            }
        }
    )*};
}

wide! {
    U32 => U64: u32, u64;
    I32 => I64: i32, i64;
}

impl<'k> U32<'k> {
    /// Four bytes picked from the eight of `self` (0 to 3) and `high` (4 to 7): nibble `i` of `selector` names the
    /// byte that goes to position `i`; its bit 3 replicates that byte's sign instead.
    #[track_caller]
    pub fn permute(self, high: impl Source<'k, u32>, selector: impl Source<'k, u32>) -> Self {
        self.k().ternary(
            TernaryOp::Prmt,
            warpwright_ptx::ScalarType::B32,
            Modifiers::NONE,
            [self.operand(), high.operand(), selector.operand()],
        )
    }

    /// Any bitwise function of three words: `lut` is the function of `0xF0`, `0xCC` and `0xAA`.
    #[track_caller]
    pub fn lop3(self, b: impl Source<'k, u32>, c: impl Source<'k, u32>, lut: u8) -> Self {
        let dst = self.k().fresh::<u32>();
        self.k().emit(Inst::Lop3 { dst: dst.id(), a: self.operand(), b: b.operand(), c: c.operand(), lut });
        dst
    }

    /// The upper word of `high:self` shifted left by `amount` modulo 32.
    #[track_caller]
    pub fn funnel_shl(self, high: impl Source<'k, u32>, amount: impl Source<'k, u32>) -> Self {
        self.funnel(TernaryOp::ShfLWrap, high, amount)
    }

    /// The lower word of `high:self` shifted right by `amount` modulo 32.
    #[track_caller]
    pub fn funnel_shr(self, high: impl Source<'k, u32>, amount: impl Source<'k, u32>) -> Self {
        self.funnel(TernaryOp::ShfRWrap, high, amount)
    }

    #[track_caller]
    fn funnel(self, op: TernaryOp, high: impl Source<'k, u32>, amount: impl Source<'k, u32>) -> Self {
        self.k().ternary(
            op,
            warpwright_ptx::ScalarType::B32,
            Modifiers::NONE,
            [self.operand(), high.operand(), amount.operand()],
        )
    }

    /// `c` plus the dot product of the four unsigned bytes of `self` and `rhs`.
    #[track_caller]
    pub fn dot4(self, rhs: impl Source<'k, u32>, c: impl Source<'k, u32>) -> Self {
        let dst = self.k().fresh::<u32>();
        self.k().emit(Inst::Dp4a {
            a_ty: warpwright_ptx::ScalarType::U32,
            b_ty: warpwright_ptx::ScalarType::U32,
            dst: dst.id(),
            a: self.operand(),
            b: rhs.operand(),
            c: c.operand(),
        });
        dst
    }
}

impl<'k> U64<'k> {
    /// `high:low` as one value.
    #[track_caller]
    pub fn from_words(low: U32<'k>, high: U32<'k>) -> Self {
        let dst = low.k().fresh::<u64>();
        low.k().emit(Inst::Pack {
            ty: warpwright_ptx::ScalarType::B64,
            dst: dst.id(),
            parts: vec![Operand::Reg(low.id()), Operand::Reg(high.id())],
        });
        dst
    }

    /// The low and the high word.
    #[track_caller]
    pub fn words(self) -> (U32<'k>, U32<'k>) {
        let k = self.k();
        let (low, high) = (k.fresh::<u32>(), k.fresh::<u32>());
        k.emit(Inst::Unpack {
            ty: warpwright_ptx::ScalarType::B64,
            dsts: vec![Some(low.id()), Some(high.id())],
            src: self.operand(),
        });
        (low, high)
    }
}
