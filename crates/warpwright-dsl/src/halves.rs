//! [`Halves`]: two 16-bit floats of one register, as they lie in memory.

use warpwright_ptx::{BinaryOp, DType, Modifiers, ScalarType, TernaryOp};

use crate::context::K;
use crate::mem::{Element, Ptr, Readable};
use crate::reg::{F32, Source, U32};
use crate::storage::{both_float8, load_halves, lower_float8, widen};

/// Packed `min` and `max` exist from here.
const PACKED_MIN_MAX_SM: u32 = 80;
/// The signs of both halves.
const SIGNS: u32 = 0x8000_8000;
/// 2^8 in both halves, as `f16`.
const TWO_TO_8: u32 = 0x5c00_5c00;

/// Two `f16` or `bf16` elements in a word, the first in the low half. One instruction works on both.
#[derive(Clone, Copy, Debug)]
#[must_use = "a recorded value that nothing reads is a mistake in the kernel"]
pub struct Halves<'k> {
    word: U32<'k>,
    dtype: DType,
}

impl<'k> Halves<'k> {
    /// Whether elements of `dtype` come in halves that the target computes with.
    pub fn exist(k: K<'k>, dtype: DType) -> bool {
        matches!(dtype, DType::F16 | DType::BF16) && k.target().sm >= PACKED_MIN_MAX_SM
    }

    /// Two elements of `dtype` that are in `word` already.
    pub fn from_word(word: U32<'k>, dtype: DType) -> Self {
        Self { word, dtype }
    }

    /// The e4m3 numbers in the two lower bytes of `word` as `f16`, which holds them exactly. NaN stays NaN.
    #[track_caller]
    pub fn from_e4m3(word: U32<'k>) -> Self {
        let k = word.k();
        k.on_behalf(|| {
            let half = |word| Self::from_word(word, DType::F16);
            if let Some(converted) = lower_float8(word, DType::F8E4M3) {
                return half(converted);
            }
            // Each byte above a zero, then exponent and mantissa where `f16` has them: its bias is greater by 8.
            let bytes = word.permute(0, 0x1404);
            let magnitudes = (bytes >> 1) & 0x3f80_3f80;
            let scaled = half(magnitudes | (bytes & SIGNS)).times(half(k.lit(TWO_TO_8)));
            // The largest magnitude is NaN: one more carries, from where all bits of the exponent are set.
            let carry = (magnitudes + 0x0080_0080) & 0x4000_4000;
            half(scaled.word() | carry | (carry - (carry >> 5)))
        })
    }

    /// The four e4m3 numbers of `word` as `f16`, those of its lower bytes first; as [`from_e4m3`](Self::from_e4m3).
    #[track_caller]
    pub fn both_from_e4m3(word: U32<'k>) -> [Self; 2] {
        word.k().on_behalf(|| match both_float8(word, DType::F8E4M3) {
            Some(pairs) => pairs.map(|pair| Self::from_word(pair, DType::F16)),
            None => [word, word >> 16].map(Self::from_e4m3),
        })
    }

    /// Both, in one register.
    pub fn word(self) -> U32<'k> {
        self.word
    }

    /// The elements, widened.
    #[track_caller]
    pub fn widen(self) -> [F32<'k>; 2] {
        self.word.k().on_behalf(|| widen(self.word, self.dtype))
    }

    /// The greater of each half; NaN if either is NaN.
    #[track_caller]
    pub fn maximum(self, rhs: Self) -> Self {
        self.propagating(BinaryOp::Max, rhs)
    }

    /// The lesser of each half; NaN if either is NaN.
    #[track_caller]
    pub fn minimum(self, rhs: Self) -> Self {
        self.propagating(BinaryOp::Min, rhs)
    }

    #[track_caller]
    fn propagating(self, op: BinaryOp, rhs: Self) -> Self {
        let mods = Modifiers { nan: true, ..Modifiers::NONE };
        self.like(self.word.k().binary(op, self.packed(), mods, self.word.operand(), rhs.word.operand()))
    }

    fn packed(self) -> ScalarType {
        if self.dtype == DType::BF16 { ScalarType::BF16x2 } else { ScalarType::F16x2 }
    }

    /// `self * factor` of each half, rounded; for the types and targets of [`mul_add`](Self::mul_add).
    #[track_caller]
    pub fn times(self, factor: Self) -> Self {
        // A sum with -0 is what it is added to, -0 included.
        self.mul_add(factor, self.like(self.word.k().lit(SIGNS)))
    }

    /// `self * factor + addend` of each half, rounded once. Of `f16` on every target, of `bf16` where halves [exist](Self::exist).
    #[track_caller]
    pub fn mul_add(self, factor: Self, addend: Self) -> Self {
        let operands = [self.word.operand(), factor.word.operand(), addend.word.operand()];
        self.like(self.word.k().ternary(TernaryOp::Fma, self.packed(), Modifiers::RN, operands))
    }

    /// Both without their signs.
    #[track_caller]
    pub fn magnitudes(self) -> Self {
        self.like(self.word & !SIGNS)
    }

    /// Both with the other sign.
    #[track_caller]
    pub fn negated(self) -> Self {
        self.like(self.word ^ SIGNS)
    }

    /// The first elements of `self` and `rhs`.
    #[track_caller]
    pub fn firsts(self, rhs: Self) -> Self {
        self.like(self.word.permute(rhs.word, 0x5410))
    }

    /// The second elements of `self` and `rhs`.
    #[track_caller]
    pub fn seconds(self, rhs: Self) -> Self {
        self.like(self.word.permute(rhs.word, 0x7632))
    }

    /// Elements of the same type in another word.
    pub fn like(self, word: U32<'k>) -> Self {
        Self { word, ..self }
    }
}

impl<'k, S: Readable, E: Element> Ptr<'k, S, E> {
    /// Loads `width` consecutive 16-bit floats, two to a register; aligned as for [`load`](Self::load). `None` where
    /// they do not [`exist`](Halves::exist).
    #[track_caller]
    pub fn load_halves(self, width: u32) -> Option<Vec<Halves<'k>>> {
        let (k, dtype) = (self.k, self.dtype());
        (width >= 2 && Halves::exist(k, dtype)).then(|| {
            let words = k.on_behalf(|| load_halves(self.place(), width));
            words.into_iter().map(|word| Halves::from_word(word, dtype)).collect()
        })
    }
}
