//! `mma.sync` of `f16` and `bf16` with sums in f32, in vectors of 512 bits: a vector is a column of 16 rows.
//!
//! The sums are those of [`aligned`](super::aligned), operation by operation, so the same machine gives the same bits with
//! either. Fragments are turned as blocks of four by four words, which puts the rows in the order `4 m + j` for
//! place `4 j + m`; an element of B meets a whole column of A and is repeated by the load that fetches it. What does not
//! lie well within the range of f32 is left to the general way.

use std::arch::x86_64::*;

use bytemuck::cast;

use super::tile::{N, Sum};
use crate::code::matrix::{Accumulator, Element, Mma, Words};
use crate::code::rows::{LANES, Registers, Row32};

/// Lanes of a vector.
const WIDE: usize = 16;
/// Bits below the largest exponent that a term keeps.
const KEEP: i32 = 25;

/// Whether the product is one of those.
pub(super) fn takes(op: &Mma) -> bool {
    let halves = matches!(op.a_element, Element::F16 | Element::Bf16) && op.a_element == op.b_element;
    let sums = op.accumulator == Accumulator::F32 && Sum::of_mma(op.a_element) == Sum::Whole { keep: KEEP };
    halves && sums && op.rows == WIDE && matches!(op.k, 8 | 16)
}

/// Four words along k: factors and their exponents, two elements of a word at once.
struct Part {
    a: [[__m512; 2]; 4],
    a_exponents: [__m512i; 4],
    /// By half: element `(.., g)` in lane `4 g + t`.
    b: [[f32; LANES]; 2],
    b_exponents: [u32; LANES],
}

/// The registers of D; `None` if a number does not lie well within the range of f32.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
pub(super) fn multiply(regs: &Registers, op: &Mma) -> Option<[Row32; 4]> {
    let (a, _) = op.a.words(regs);
    let (b, _) = op.b.words(regs);
    let (c, _) = op.c.words(regs);
    let mut range = Range::new();
    let sums = if op.a_element == Element::Bf16 {
        columns::<true>(op.k, &a, &b, &c, &mut range)
    } else {
        columns::<false>(op.k, &a, &b, &c, &mut range)
    };
    if !range.holds() {
        return None;
    }
    let mut d = [Row32::ZERO; 4];
    for odd in 0..2 {
        let column = |t: usize| _mm512_castps_si512(sums[2 * t + odd]);
        let [low, high, lower, upper] = transposed([column(0), column(1), column(2), column(3)]);
        d[odd] = Row32(cast([low, high]));
        d[odd + 2] = Row32(cast([lower, upper]));
    }
    Some(d)
}

/// Blocks of four by four words, transposed: the first four vectors in, one of each `t` out, and the other way round.
#[target_feature(enable = "avx512f")]
#[inline]
fn transposed(v: [__m512i; 4]) -> [__m512i; 4] {
    let (low, high) = (_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    let (lower, upper) = (_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    [
        _mm512_unpacklo_epi64(low, lower),
        _mm512_unpackhi_epi64(low, lower),
        _mm512_unpacklo_epi64(high, upper),
        _mm512_unpackhi_epi64(high, upper),
    ]
}

/// The words of the upper and of the lower eight rows, by `t`.
#[target_feature(enable = "avx512f")]
#[inline]
fn turned(rows: [&Words; 2]) -> [__m512i; 4] {
    let ([low, high], [lower, upper]) = (halves(rows[0]), halves(rows[1]));
    transposed([low, high, lower, upper])
}

/// The words of a register.
#[target_feature(enable = "avx512f")]
#[inline]
fn halves(words: &Words) -> [__m512i; 2] {
    let [low, high]: [[u32; WIDE]; 2] = cast(*words);
    [cast(low), cast(high)]
}

/// The exponents that tell whether all numbers lie well within the range of f32, looked at once for a whole product.
struct Range {
    /// Elements of A and B that are out of it.
    elements: __mmask32,
    /// The least and the largest exponent of a sum; where there is nothing to add, neither.
    least: __m512i,
    largest: __m512i,
    /// Signs of sums that do not fit 32 bits.
    overflow: __m512i,
}

impl Range {
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn new() -> Self {
        let zero = _mm512_setzero_si512();
        Self { elements: 0, least: _mm512_set1_epi32(-1), largest: zero, overflow: zero }
    }

    /// Exponents from 2^-100 to 2^120, or nothing at all.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq")]
    #[inline]
    fn holds(&self) -> bool {
        let low = _mm512_cmplt_epu32_mask(self.least, _mm512_set1_epi32(LEAST - 1));
        let high = _mm512_cmpge_epi32_mask(self.largest, _mm512_set1_epi32(field(121)));
        self.elements == 0 && low | high | _mm512_movepi32_mask(self.overflow) == 0
    }
}

/// An exponent where f32 has it.
const fn field(exponent: i32) -> i32 {
    (127 + exponent) << 23
}

/// The least exponent of a sum.
const LEAST: i32 = field(-100);

/// How an operand writes its exponents, so that a sum of two is that of their product, biased once, or negative if
/// either number is zero, and never overflows.
struct Code {
    bias: i16,
    zero: i16,
}

const A: Code = Code { bias: 127 << 7, zero: -191 << 7 };
const B: Code = Code { bias: 0, zero: -64 << 7 };

/// The exponents of both halves of words where bf16 has them. Numbers with which sums could be none of a product of `f32`
/// are out of range.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn exponents<const BF16: bool>(words: __m512i, code: &Code, range: &mut Range) -> __m512i {
    let number = |n: i16| _mm512_set1_epi16(n);
    let (field, low, high) = if BF16 {
        (_mm512_and_si512(words, number(0x7F80)), 127 - 63, 127 + 63)
    } else {
        // Subnormal numbers have the exponent of the smallest normal one.
        let field = _mm512_srli_epi16::<3>(_mm512_and_si512(words, number(0x7C00)));
        let field = _mm512_max_epi16(field, number(1 << 7));
        (_mm512_add_epi16(field, number((127 - 15) << 7)), 127 - 14, 127 + 15)
    };
    let nonzero = _mm512_test_epi16_mask(words, number(0x7FFF));
    let above = _mm512_sub_epi16(field, number(low << 7));
    range.elements |= _mm512_mask_cmpgt_epu16_mask(nonzero, above, number((high - low) << 7));
    _mm512_mask_sub_epi16(number(code.zero), nonzero, field, number(code.bias))
}

/// Both halves of words as f32.
#[target_feature(enable = "avx512f")]
#[inline]
fn numbers<const BF16: bool>(words: __m512i) -> [__m512; 2] {
    let floats = |x: __m512i| _mm512_castsi512_ps(x);
    if BF16 {
        let high = _mm512_and_si512(words, _mm512_set1_epi32(0xFFFF_0000_u32.cast_signed()));
        [floats(_mm512_slli_epi32::<16>(words)), floats(high)]
    } else {
        // The exponent is moved by a multiplication, which also normalises subnormals.
        let scale = _mm512_set1_ps(f32::from_bits(0x7780_0000)); // 2^112
        let sign_and_fraction = _mm512_set1_epi32(0x8FFF_E000_u32.cast_signed());
        let number = |upper| {
            let moved = _mm512_and_si512(_mm512_srai_epi32::<3>(upper), sign_and_fraction);
            _mm512_mul_ps(floats(moved), scale)
        };
        [number(_mm512_slli_epi32::<16>(words)), number(words)]
    }
}

impl Part {
    /// From two registers of A and one of B.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn new<const BF16: bool>(a: [&Words; 2], b: &Words, range: &mut Range) -> Self {
        let [t0, t1, t2, t3] = turned(a);
        let [low, high] = halves(b);
        let a_exponents = [
            exponents::<BF16>(t0, &A, range),
            exponents::<BF16>(t1, &A, range),
            exponents::<BF16>(t2, &A, range),
            exponents::<BF16>(t3, &A, range),
        ];
        let b_exponents = cast([exponents::<BF16>(low, &B, range), exponents::<BF16>(high, &B, range)]);
        let a = [numbers::<BF16>(t0), numbers::<BF16>(t1), numbers::<BF16>(t2), numbers::<BF16>(t3)];
        let (low, high) = (numbers::<BF16>(low), numbers::<BF16>(high));
        Self { a, a_exponents, b: [cast([low[0], high[0]]), cast([low[1], high[1]])], b_exponents }
    }
}

/// The columns of the sums.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn columns<const BF16: bool>(
    k: usize,
    a: &[&Words; 4],
    b: &[&Words; 4],
    c: &[&Words; 4],
    range: &mut Range,
) -> [__m512; N] {
    let mut sums = [_mm512_setzero_ps(); N];
    for odd in 0..2 {
        for (t, column) in turned([c[odd], c[odd + 2]]).into_iter().enumerate() {
            sums[2 * t + odd] = _mm512_castsi512_ps(column);
        }
    }
    let first = Part::new::<BF16>([a[0], a[1]], b[0], range);
    if k == 16 {
        add([&first, &Part::new::<BF16>([a[2], a[3]], b[1], range)], &mut sums, range);
    } else {
        add([&first], &mut sums, range);
    }
    sums
}

/// Adds the products to all columns. The two loops leave each its operands in registers, and no sum waits for its scale.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
#[inline(never)]
fn add<const PARTS: usize>(parts: [&Part; PARTS], sums: &mut [__m512; N], range: &mut Range) {
    let mut scales = [[_mm512_setzero_ps(); 2]; N];
    for (n, scale) in scales.iter_mut().enumerate() {
        *scale = scale_of(parts, n, sums[n], range);
    }
    let mut overflow = range.overflow;
    for (n, &[scale, unit]) in scales.iter().enumerate() {
        // Products are exact, and so is their scaling to the unit unless they vanish.
        let mut totals = [_mm512_setzero_si512(); 2];
        for part in parts {
            for (j, a) in part.a.iter().enumerate() {
                for (half, total) in totals.iter_mut().enumerate() {
                    let product = _mm512_mul_ps(a[half], _mm512_set1_ps(part.b[half][4 * n + j]));
                    let term = _mm512_cvttps_epi32(_mm512_mul_ps(product, scale));
                    *total = _mm512_add_epi32(*total, term);
                }
            }
        }
        let c = _mm512_cvttps_epi32(_mm512_mul_ps(sums[n], scale));
        // Each of the products is less than 2^27, so these always fit.
        let products = _mm512_add_epi32(totals[0], totals[1]);
        let total = _mm512_add_epi32(products, c);
        // The sign differs from that of both.
        let other = _mm512_ternarylogic_epi32::<0b10_0100>(products, total, c);
        overflow = _mm512_or_si512(overflow, other);
        let cut = _mm512_cvt_roundepi32_ps::<{ _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC }>(total);
        sums[n] = _mm512_mul_ps(cut, unit);
    }
    range.overflow = overflow;
}

/// The factors by which the terms of column `n` become integers, and by which their sum becomes a number again.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn scale_of<const PARTS: usize>(
    parts: [&Part; PARTS],
    n: usize,
    c: __m512,
    range: &mut Range,
) -> [__m512; 2] {
    let number = |n: i32| _mm512_set1_epi32(n);
    let floats = |x: __m512i| _mm512_castsi512_ps(x);
    // The largest exponents, those of products in both halves. What is below them in a word is cut off at the end.
    let mut pairs = [_mm512_set1_epi16(i16::MIN); 2];
    for part in parts {
        for (j, a) in part.a_exponents.iter().enumerate() {
            let b = number(part.b_exponents[4 * n + j].cast_signed());
            pairs[j % 2] = _mm512_max_epi16(pairs[j % 2], _mm512_add_epi16(*a, b));
        }
    }
    let pairs = _mm512_max_epi16(pairs[0], pairs[1]);
    let products = _mm512_max_epi32(pairs, _mm512_slli_epi32::<16>(pairs));
    let magnitude = _mm512_and_si512(_mm512_castps_si512(c), number(i32::MAX));
    let largest = _mm512_max_epi32(products, magnitude);
    range.least = _mm512_min_epu32(range.least, _mm512_sub_epi32(largest, number(1)));
    range.largest = _mm512_max_epi32(range.largest, largest);
    let largest = _mm512_and_si512(_mm512_max_epi32(largest, number(LEAST)), number(0xFF << 23));
    let scale = _mm512_sub_epi32(number(field(127).wrapping_add(KEEP << 23)), largest);
    [floats(scale), floats(_mm512_sub_epi32(largest, number(KEEP << 23)))]
}

#[cfg(test)]
mod tests {
    use super::super::aligned;
    use super::super::mma::{self, WIDE_VECTORS};
    use super::super::tile::Tile;
    use super::*;
    use crate::code::matrix::Rows;

    /// Words of two halves: numbers of some range of exponents, zeros and subnormals.
    fn word(element: Element, state: &mut u64, spread: u32) -> u32 {
        let mut next = || {
            *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (*state >> 33) as u32
        };
        let half = |bits: u32, exponent: u32| {
            let (mantissa, middle) = if element == Element::F16 { (10, 15) } else { (7, 127) };
            match bits & 0x1F {
                0 => 0,
                1 if element == Element::F16 => bits >> 8 & ((1 << mantissa) - 1),
                _ => {
                    (middle - spread / 2 + exponent % spread) << mantissa | bits >> 8 & ((1 << mantissa) - 1)
                }
            }
        };
        let (low, high) = (half(next(), next()), half(next(), next()));
        low | high << 16 | next() & 0x8000_8000
    }

    /// Holds both ways against each other on registers A (4), B (2) and C (4); false if the columns leave it to the rows.
    fn agree(element: Element, k: usize, words: [Row32; 10]) -> bool {
        let mut regs = Registers { r32: words.to_vec(), r64: Vec::new(), pred: vec![u32::MAX] };
        let rows = |rows: &[u32]| Rows::new(rows).unwrap_or_default();
        let (a, b): (&[u32], &[u32]) = if k == 16 { (&[0, 1, 2, 3], &[4, 5]) } else { (&[0, 1], &[4]) };
        let op = Mma {
            a_element: element,
            b_element: element,
            accumulator: Accumulator::F32,
            rows: 16,
            k,
            a: rows(a),
            b: rows(b),
            c: rows(&[6, 7, 8, 9]),
            d: rows(&[6, 7, 8, 9]),
        };
        assert!(takes(&op));
        #[allow(unsafe_code, reason = "calling a function with target features")]
        // SAFETY: `WIDE_VECTORS` says that all of these features were detected.
        let columns = unsafe { multiply(&regs, &op) };
        mma::multiply(&mut Tile::default(), &mut regs, u32::MAX, &op, aligned::add);
        columns.inspect(|columns| assert_eq!(columns[..], regs.r32[6..], "{element:?} {k}")).is_some()
    }

    #[test]
    fn columns_add_as_rows_do() {
        if !*WIDE_VECTORS {
            return;
        }
        let mut state = 1;
        for (element, k) in [(Element::F16, 16), (Element::Bf16, 16), (Element::F16, 8), (Element::Bf16, 8)] {
            let mut taken = 0;
            for round in 0..250 {
                // C is as large as the sums, much smaller, or zero.
                let (spread, c) = [(1, 4), (4, 40), (12, 4), (28, 1), (112, 40)][round % 5];
                let spread = if element == Element::F16 { spread.min(28) } else { spread };
                let words = std::array::from_fn(|i| match i {
                    0..6 => Row32(std::array::from_fn(|_| word(element, &mut state, spread))),
                    _ => Row32(std::array::from_fn(|_| word(Element::Bf16, &mut state, c) & 0xFFFF_0000)),
                });
                taken += usize::from(agree(element, k, words));
            }
            assert!(taken > 200, "{element:?}: {taken}");
        }
    }

    #[test]
    fn what_is_out_of_range_is_left_to_the_rows() {
        if !*WIDE_VECTORS {
            return;
        }
        let ones = |element| if element == Element::F16 { 0x3C00_3C00 } else { 0x3F80_3F80 };
        let taken = |element, a: u32, c: f32| {
            let mut words = [Row32([0; LANES]); 10];
            (words[0].0[5], words[4], words[6].0[9]) = (a, Row32([ones(element); LANES]), c.to_bits());
            agree(element, 16, words)
        };
        // Fields of bf16 from 2^-63 to 2^63, and signs, in either half of a word.
        for (field, expected) in
            [(0, false), (1, false), (63, false), (64, true), (190, true), (191, false), (255, false)]
        {
            for sign in [0, 0x8000] {
                let half = sign | field << 7 | 0x55;
                assert_eq!(taken(Element::Bf16, half, 1.0), expected, "{half:x}");
                assert_eq!(taken(Element::Bf16, half << 16, 0.0), expected, "{half:x}");
            }
        }
        for (half, expected) in [(1, true), (0x83FF, true), (0x7BFF, true), (0x7C00, false), (0xFE00, false)]
        {
            assert_eq!(taken(Element::F16, half, -1.0), expected, "{half:x}");
        }
        for (exponent, expected) in [(-149, false), (-101, false), (-100, true), (120, true), (121, false)] {
            let c = 2f64.powi(exponent) as f32;
            assert_eq!(taken(Element::Bf16, 0, c), expected, "{c}");
            assert_eq!(taken(Element::F16, 0x8000, -c), expected, "{c}");
        }
        assert!(taken(Element::Bf16, 0, 0.0) && taken(Element::Bf16, 0x8000_8000, -0.0));
        assert!(!taken(Element::F16, 0, f32::INFINITY) && !taken(Element::F16, 0, f32::NAN));
    }

    #[test]
    fn sums_of_33_bits_are_left_to_the_rows() {
        if !*WIDE_VECTORS {
            return;
        }
        // The largest mantissas: sixteen products just below 2^27 units, and C of almost 2^26.
        for (half, element) in [(0x3FFF, Element::Bf16), (0x3FFF, Element::F16), (0xBFFF, Element::F16)] {
            let all = |word| Row32([word; LANES]);
            let (a, b) = (all(half << 16 | half), all(0x3FFF_3FFF));
            let c = |c: f32| all(c.to_bits());
            let words = |c| [a, a, a, a, b, b, c, c, c, c];
            let largest = f32::from_bits(0x3FFF_FFFF) * if half > 0x8000 { -1.0 } else { 1.0 };
            assert!(!agree(element, 16, words(c(largest))));
            assert!(agree(element, 16, words(c(-largest))));
            assert!(agree(element, 16, words(c(0.0))));
        }
    }
}
