//! `mma.sync` of `f16` and `bf16` with sums in f32, in vectors of 512 bits: a vector is a column of 16 rows.
//!
//! The sums are those of [`aligned`](super::aligned), operation by operation, so the same machine gives the same bits with
//! either. Fragments are turned as blocks of four by four words, which puts the rows in the order `4 m + j` for
//! place `4 j + m`; an element of B meets a whole column of A and is repeated by the load that fetches it. What does not
//! lie well within the range of f32 is left to the general way.

use std::arch::x86_64::*;

use bytemuck::cast;

use super::aligned::NONE;
use super::mma::Mma;
use super::tile::{Accumulator, Element, N, Sum, Words};
use crate::exec::rows::{LANES, Registers, Row32};

/// Lanes of a vector.
const WIDE: usize = 16;
/// Words of a row of A along k, for k = 16.
const STEPS: usize = 8;
/// Bits below the greatest exponent that a term keeps.
const KEEP: i32 = 25;

/// Whether the product is one of those.
pub(super) fn takes(op: &Mma) -> bool {
    let halves = matches!(op.a_element, Element::F16 | Element::Bf16) && op.a_element == op.b_element;
    let sums = op.accumulator == Accumulator::F32 && Sum::of_mma(op.a_element) == Sum::Whole { keep: KEEP };
    halves && sums && op.rows == WIDE && matches!(op.k, 8 | 16)
}

/// Factors and their exponents: two elements of a word at once.
struct Operands {
    a: [[__m512; 2]; STEPS],
    a_exponents: [__m512i; STEPS],
    /// By register and half: element `(.., g)` in lane `4 g + t`.
    b: [[[f32; LANES]; 2]; 2],
    b_exponents: [[u32; LANES]; 2],
}

/// The registers of D; `None` if a number does not lie well within the range of f32.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
pub(super) fn multiply(regs: &Registers, op: &Mma) -> Option<[Row32; 4]> {
    let (a, _) = op.a.words(regs);
    let (b, _) = op.b.words(regs);
    let (c, _) = op.c.words(regs);
    let operands = match op.k {
        16 => operands::<8>(op.a_element, &a, &b)?,
        _ => operands::<4>(op.a_element, &a, &b)?,
    };
    let mut sums = [_mm512_setzero_ps(); N];
    for odd in 0..2 {
        for (t, column) in turned([c[odd], c[odd + 2]]).into_iter().enumerate() {
            sums[2 * t + odd] = _mm512_castsi512_ps(column);
        }
    }
    for (n, sum) in sums.iter_mut().enumerate() {
        *sum = match op.k {
            16 => column::<8>(&operands, n, *sum)?,
            _ => column::<4>(&operands, n, *sum)?,
        };
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

/// The exponent fields of both halves of words, as those of f32; `None` if one is infinite or NaN.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn exponents(element: Element, words: __m512i) -> Option<__m512i> {
    let magnitude = _mm512_slli_epi16::<1>(words);
    let (field, special, up) = match element {
        Element::Bf16 => (_mm512_srli_epi16::<8>(magnitude), 0xFF, 0),
        _ => (_mm512_srli_epi16::<11>(magnitude), 0x1F, 127 - 15),
    };
    if _mm512_cmpeq_epi16_mask(field, _mm512_set1_epi16(special)) != 0 {
        return None;
    }
    // Subnormal numbers have the exponent of the smallest normal one.
    let field = _mm512_add_epi16(_mm512_max_epi16(field, _mm512_set1_epi16(1)), _mm512_set1_epi16(up));
    let zero = _mm512_testn_epi16_mask(magnitude, magnitude);
    Some(_mm512_mask_mov_epi16(field, zero, _mm512_set1_epi16(NONE as i16)))
}

/// Both halves of words as f32.
#[target_feature(enable = "avx512f")]
#[inline]
fn numbers(element: Element, words: __m512i) -> [__m512; 2] {
    let floats = |x: __m512i| _mm512_castsi512_ps(x);
    match element {
        Element::Bf16 => {
            let high = _mm512_and_si512(words, _mm512_set1_epi32(0xFFFF_0000_u32.cast_signed()));
            [floats(_mm512_slli_epi32::<16>(words)), floats(high)]
        }
        _ => {
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
}

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn operands<const K: usize>(element: Element, a: &[&Words; 4], b: &[&Words; 4]) -> Option<Operands> {
    let mut out = Operands {
        a: [[_mm512_setzero_ps(); 2]; STEPS],
        a_exponents: [_mm512_setzero_si512(); STEPS],
        b: [[[0.0; LANES]; 2]; 2],
        b_exponents: [[0; LANES]; 2],
    };
    for r in 0..K / 4 {
        for (t, words) in turned([a[2 * r], a[2 * r + 1]]).into_iter().enumerate() {
            out.a[4 * r + t] = numbers(element, words);
            out.a_exponents[4 * r + t] = exponents(element, words)?;
        }
        let words = halves(b[r]);
        let (low, high) = (numbers(element, words[0]), numbers(element, words[1]));
        out.b[r] = [cast([low[0], high[0]]), cast([low[1], high[1]])];
        out.b_exponents[r] = cast([exponents(element, words[0])?, exponents(element, words[1])?]);
    }
    Some(out)
}

/// Column `n` of the sums, which begins as C; `K` words along k.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn column<const K: usize>(operands: &Operands, n: usize, c: __m512) -> Option<__m512> {
    let number = |n: i32| _mm512_set1_epi32(n);
    let floats = |x: __m512i| _mm512_castsi512_ps(x);
    let bits = |x: __m512| _mm512_castps_si512(x);

    // The greatest exponents, with twice the bias of f32.
    let mut pairs = [_mm512_set1_epi16(2 * NONE as i16); 2];
    for j in 0..K {
        let b = number(operands.b_exponents[j / 4][4 * n + j % 4].cast_signed());
        pairs[j % 2] = _mm512_max_epi16(pairs[j % 2], _mm512_add_epi16(operands.a_exponents[j], b));
    }
    let pairs = _mm512_max_epi16(pairs[0], pairs[1]);
    let low = _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(pairs));
    let products = _mm512_max_epi32(low, _mm512_srai_epi32::<16>(pairs));
    let magnitude = _mm512_slli_epi32::<1>(bits(c));
    let field = _mm512_max_epi32(_mm512_srli_epi32::<24>(magnitude), number(1));
    let zero = _mm512_testn_epi32_mask(magnitude, magnitude);
    let c_exponent = _mm512_mask_mov_epi32(_mm512_add_epi32(field, number(127)), zero, number(i32::MIN));
    let greatest = _mm512_max_epi32(products, c_exponent);

    // From 2^-100 to 2^120, or nothing at all.
    let outside = (_mm512_cmpgt_epi32_mask(number(254 - 100), greatest)
        & _mm512_cmpgt_epi32_mask(greatest, _mm512_setzero_si512()))
        | _mm512_cmpgt_epi32_mask(greatest, number(254 + 120));
    if outside != 0 {
        return None;
    }
    let greatest = _mm512_max_epi32(greatest, number(254 - 100));
    let scale = floats(_mm512_slli_epi32::<23>(_mm512_sub_epi32(number(127 + 254 + KEEP), greatest)));
    let unit = floats(_mm512_slli_epi32::<23>(_mm512_sub_epi32(greatest, number(127 + KEEP))));

    // Products are exact, and so is their scaling to the unit unless they vanish.
    let mut totals = [_mm512_setzero_si512(); 2];
    for j in 0..K {
        for (s, total) in totals.iter_mut().enumerate() {
            let b = _mm512_set1_ps(operands.b[j / 4][s][4 * n + j % 4]);
            let product = _mm512_mul_ps(operands.a[j][s], b);
            let term = _mm512_cvttps_epi32(_mm512_mul_ps(product, scale));
            *total = _mm512_add_epi32(*total, term);
        }
    }
    let c = _mm512_cvttps_epi32(_mm512_mul_ps(c, scale));
    let products = _mm512_add_epi32(totals[0], totals[1]);
    let total = _mm512_add_epi32(products, c);
    let overflow = _mm512_and_si512(_mm512_xor_si512(products, total), _mm512_xor_si512(c, total));
    let size = _mm512_abs_epi32(total);
    if _mm512_movepi32_mask(overflow) | _mm512_cmpgt_epi32_mask(size, number(i32::MAX - 128)) != 0 {
        return None;
    }
    let toward = _mm512_cvt_roundepi32_ps::<{ _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC }>(size);
    let sign = _mm512_and_si512(total, number(i32::MIN));
    Some(_mm512_mul_ps(floats(_mm512_or_si512(bits(toward), sign)), unit))
}

#[cfg(test)]
mod tests {
    use super::super::aligned;
    use super::super::mma::{self, Rows, WIDE_VECTORS};
    use super::super::tile::Tile;
    use super::*;

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
                1 => bits >> 8 & ((1 << mantissa) - 1),
                _ => {
                    (middle - spread / 2 + exponent % spread) << mantissa | bits >> 8 & ((1 << mantissa) - 1)
                }
            }
        };
        let (low, high) = (half(next(), next()), half(next(), next()));
        low | high << 16 | next() & 0x8000_8000
    }

    #[test]
    fn columns_add_as_rows_do() {
        if !*WIDE_VECTORS {
            return;
        }
        let mut state = 1;
        for (element, k) in [(Element::F16, 16), (Element::Bf16, 16), (Element::F16, 8), (Element::Bf16, 8)] {
            let mut taken = 0;
            for round in 0..200 {
                let spread = [1, 4, 12, 28][round % 4];
                let mut regs =
                    Registers { r32: vec![Row32::ZERO; 12], r64: Vec::new(), pred: vec![u32::MAX] };
                for (i, row) in regs.r32.iter_mut().enumerate() {
                    let bits = |state: &mut u64| match i {
                        0..8 => word(element, state, spread),
                        // C is as large as the sums, much smaller, or zero.
                        _ => word(Element::Bf16, state, [4, 40, 4, 1][round % 4]) & 0xFFFF_0000,
                    };
                    row.0 = std::array::from_fn(|_| bits(&mut state));
                }
                let rows = |rows: &[u32]| Rows::new(rows).unwrap_or_default();
                let (a, b): (&[u32], &[u32]) =
                    if k == 16 { (&[0, 1, 2, 3], &[4, 5]) } else { (&[0, 1], &[4]) };
                let op = Mma {
                    a_element: element,
                    b_element: element,
                    accumulator: Accumulator::F32,
                    rows: 16,
                    k,
                    a: rows(a),
                    b: rows(b),
                    c: rows(&[8, 9, 10, 11]),
                    d: rows(&[8, 9, 10, 11]),
                };
                assert!(takes(&op));
                #[allow(unsafe_code, reason = "calling a function with target features")]
                // SAFETY: `WIDE_VECTORS` says that all of these features were detected.
                let columns = unsafe { multiply(&regs, &op) };
                mma::multiply(&mut Tile::default(), &mut regs, u32::MAX, &op, aligned::add);
                if let Some(columns) = columns {
                    taken += 1;
                    assert_eq!(columns[..], regs.r32[8..], "{element:?} {k} round {round}");
                }
            }
            assert!(taken > 150, "{element:?}: {taken}");
        }
    }
}
