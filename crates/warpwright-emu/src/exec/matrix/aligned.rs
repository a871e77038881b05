//! How tensor cores add, as devices of compute capability 9.0 do it.
//!
//! One step adds up to 32 products and C. A product has the exponent `ea + eb` of its factors, and subnormal factors have
//! that of the smallest normal number; what is zero has none. Every term is truncated toward zero to a multiple of
//! `2^(emax - keep)`, where `emax` is the largest of the exponents, C's included; the terms are added exactly, and their
//! sum is truncated toward zero to `keep - 1` bits (`keep + 1` where `keep` is 13), or rounded to f16 where C is f16.
//! A sum of zero is +0, and so is an f16 sum that rounds to zero. PTX leaves all of this open; the rules were fitted to random
//! products that an H200 computed and give each of them bit for bit.
//!
//! The terms of a row are added in integers of 32 bits, unless the row has infinities, NaNs or exponents at the end of
//! the range of f32: then each of its elements is computed on its own.

use super::tile::{N, Tile};
use crate::code::rows::LANES;
use crate::exec::lanes::{f16_to_f32, f32_to_f16};

/// Rounding of the exact sum of truncated terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    /// Truncated to the bits that f32 sums of this precision have.
    Truncate { keep: i32 },
    /// Rounded to the nearest f16.
    Half,
}

impl Rounding {
    /// Low bits of an f32 that are cut off.
    const fn cut(self) -> u32 {
        match self {
            // 14 bits.
            Self::Truncate { keep: 13 } => 10,
            _ => 0,
        }
    }

    /// The exponent field of the smallest normal C.
    const fn least(self) -> i32 {
        match self {
            Self::Truncate { .. } => 1,
            Self::Half => 127 - 14,
        }
    }
}

/// One step of a sum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) rows: usize,
    /// Products of a whole row; those of every `stride`th eight are added, beginning with the `first`.
    pub(super) k: usize,
    pub(super) first: usize,
    pub(super) stride: usize,
    pub(super) keep: i32,
    pub(super) rounding: Rounding,
}

impl Step {
    /// The groups of eight products.
    #[inline(always)]
    fn groups(&self) -> impl Iterator<Item = usize> + Clone + use<> {
        (self.first..self.k.div_ceil(8)).step_by(self.stride)
    }
}

/// The exponent of zero: below every other, also when it is added to one.
pub(super) const NONE: i32 = -0x4000;

/// Exponent fields of two rows of numbers, as the halves of words. `largest` becomes the largest magnitude, its bits
/// moved up by one.
#[inline(always)]
pub(super) fn exponents(pair: &[[f32; LANES]; 2], least: u32, largest: &mut u32) -> [u32; LANES] {
    let mut out = [0; LANES];
    let mut most = 0;
    for (i, out) in out.iter_mut().enumerate() {
        let (low, high) = (pair[0][i].to_bits() << 1, pair[1][i].to_bits() << 1);
        most = most.max(low).max(high);
        *out = exponent(low, least) & 0xFFFF | exponent(high, least) << 16;
    }
    *largest = most.max(*largest);
    out
}

/// Of a magnitude moved up by one.
#[inline(always)]
fn exponent(bits: u32, least: u32) -> u32 {
    if bits == 0 { NONE as u32 } else { (bits >> 24).max(least) }
}

/// Runs a step on any machine.
pub(super) fn add(tile: &mut Tile, step: &Step) {
    for row in 0..step.rows {
        add_row(tile, step, row);
    }
}

/// Runs a step for one row, whatever it holds.
#[cold]
#[inline(never)]
fn add_row(tile: &mut Tile, step: &Step, row: usize) {
    for n in 0..N {
        let terms = step.groups().flat_map(|q| 8 * q..8 * q + 8).map(|k| {
            let (j, shift) = (4 * (k / 8) + k % 4, 16 * (k % 8 / 4));
            let exponent = |word: u32| i32::from((word >> shift) as u16 as i16);
            let exponents = (exponent(tile.a_exponents[row][j]), exponent(tile.b_exponents[j][n]));
            (f64::from(tile.a[row][k]) * f64::from(tile.b[k][n]), exponents.0 + exponents.1 - 254)
        });
        tile.sums[row][n] = sum(terms, tile.sums[row][n], step);
    }
}

/// The sum of products, each with its exponent, and C.
fn sum(terms: impl Iterator<Item = (f64, i32)> + Clone, c: f32, step: &Step) -> f32 {
    let field = (c.to_bits() << 1 >> 24) as i32;
    let c_exponent = if c == 0.0 { NONE } else { field.max(step.rounding.least()) - 127 };
    let terms = terms.chain([(f64::from(c), c_exponent)]);
    if terms.clone().any(|(term, _)| !term.is_finite()) {
        return terms.map(|(term, _)| term).sum::<f64>() as f32;
    }
    let Some(largest) = terms.clone().filter(|(term, _)| *term != 0.0).map(|(_, e)| e).max() else {
        return 0.0;
    };
    let unit = power(largest - step.keep);
    let total: i64 = terms.map(|(term, _)| (term / unit) as i64).sum();
    // Below 2^33, so this is exact.
    let total = total as f64 * unit;
    match step.rounding {
        Rounding::Half => nearest(half(total)),
        Rounding::Truncate { .. } => {
            // An f32 has as many bits as fit above its least unit, and no more than the sum has.
            let bits = total.abs().to_bits();
            let exponent = (bits >> 52) as i32 - 1023;
            let cut = (29 + step.rounding.cut() as i32).max(29 - 126 - exponent);
            let kept = if cut > 52 { 0 } else { bits >> cut << cut };
            f64::from_bits(kept).copysign(total) as f32
        }
    }
}

/// An f16 as f32; what rounds to zero loses its sign.
#[inline(always)]
fn nearest(bits: u32) -> f32 {
    f32::from_bits(f16_to_f32(if bits == 0x8000 { 0 } else { bits }))
}

/// The nearest f16; rounding to f32 on the way keeps what was lost in the lowest bit.
fn half(value: f64) -> u32 {
    let near = value as f32;
    let toward = if f64::from(near).abs() > value.abs() { near.to_bits() - 1 } else { near.to_bits() };
    let odd = f64::from(f32::from_bits(toward)) != value;
    f32_to_f16(toward | u32::from(odd))
}

/// `2^exponent`, which is in the range of f64.
fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use std::arch::x86_64::*;

    use bytemuck::cast;

    use super::{N, NONE, Rounding, Step, add_row, f32_to_f16, nearest};
    use crate::exec::matrix::tile::Tile;

    /// Runs a step.
    #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(in super::super) fn add(tile: &mut Tile, step: &Step) {
        let special = tile.is_special();
        for row in 0..step.rows {
            match if special { None } else { sum(tile, step, row) } {
                Some(sums) => tile.sums[row] = sums,
                None => add_row(tile, step, row),
            }
        }
    }

    /// `None` if a number does not lie well within the range of f32.
    #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    #[inline]
    fn sum(tile: &Tile, step: &Step, row: usize) -> Option<[f32; N]> {
        let number = |n: i32| _mm256_set1_epi32(n);
        let floats = |x: __m256i| _mm256_castsi256_ps(x);
        let bits = |x: __m256| _mm256_castps_si256(x);
        let (a, a_exponents) = (&tile.a[row], &tile.a_exponents[row]);

        // The largest exponents, with twice the bias of f32.
        let mut pairs = _mm256_set1_epi16(2 * NONE as i16);
        for q in step.groups() {
            let (a, b) =
                (a_exponents[4 * q..].first_chunk::<4>()?, tile.b_exponents[4 * q..].first_chunk::<4>()?);
            for (a, b) in a.iter().zip(b) {
                pairs = _mm256_max_epi16(pairs, _mm256_add_epi16(number(*a as i32), cast(*b)));
            }
        }
        let low = _mm256_srai_epi32::<16>(_mm256_slli_epi32::<16>(pairs));
        let products = _mm256_max_epi32(low, _mm256_srai_epi32::<16>(pairs));
        let c: __m256 = cast(tile.sums[row]);
        let magnitude = _mm256_slli_epi32::<1>(bits(c));
        let field = _mm256_max_epi32(_mm256_srli_epi32::<24>(magnitude), number(step.rounding.least()));
        let zero = _mm256_cmpeq_epi32(magnitude, _mm256_setzero_si256());
        let c_exponent =
            _mm256_or_si256(_mm256_add_epi32(field, number(127)), _mm256_and_si256(zero, number(i32::MIN)));
        let largest = _mm256_max_epi32(products, c_exponent);

        // From 2^-100 to 2^120, or nothing at all.
        let low = _mm256_and_si256(
            _mm256_cmpgt_epi32(number(254 - 100), largest),
            _mm256_cmpgt_epi32(largest, _mm256_setzero_si256()),
        );
        let outside = _mm256_or_si256(low, _mm256_cmpgt_epi32(largest, number(254 + 120)));
        if _mm256_testz_si256(outside, outside) == 0 {
            return None;
        }
        let largest = _mm256_max_epi32(largest, number(254 - 100));
        let scale = floats(_mm256_slli_epi32::<23>(_mm256_sub_epi32(number(127 + 254 + step.keep), largest)));
        let unit = floats(_mm256_slli_epi32::<23>(_mm256_sub_epi32(largest, number(127 + step.keep))));

        // Products are exact, and so is their scaling to the unit unless they vanish.
        let mut total = _mm256_setzero_si256();
        for q in step.groups() {
            let (a, b) = (a[8 * q..].first_chunk::<8>()?, tile.b[8 * q..].first_chunk::<8>()?);
            for (a, b) in a.iter().zip(b) {
                let product = _mm256_mul_ps(_mm256_set1_ps(*a), cast(*b));
                total = _mm256_add_epi32(total, _mm256_cvttps_epi32(_mm256_mul_ps(product, scale)));
            }
        }
        let c = _mm256_cvttps_epi32(_mm256_mul_ps(c, scale));
        let products = total;
        let total = _mm256_add_epi32(products, c);
        let overflow = _mm256_and_si256(_mm256_xor_si256(products, total), _mm256_xor_si256(c, total));
        let size = _mm256_abs_epi32(total);
        // The conversion rounds to nearest: where it went up, one step down.
        let near = _mm256_cvtepi32_ps(size);
        let back = _mm256_cvttps_epi32(near);
        let large = _mm256_or_si256(overflow, _mm256_cmpgt_epi32(size, number(i32::MAX - 128)));
        if _mm256_movemask_ps(floats(large)) != 0 {
            return None;
        }
        let toward = _mm256_add_epi32(bits(near), _mm256_cmpgt_epi32(back, size));
        let sign = _mm256_and_si256(total, number(i32::MIN));
        match step.rounding {
            Rounding::Truncate { .. } => {
                let kept = _mm256_and_si256(toward, number(-1 << step.rounding.cut()));
                Some(cast(_mm256_mul_ps(floats(_mm256_or_si256(kept, sign)), unit)))
            }
            Rounding::Half => {
                let exact = _mm256_cmpeq_epi32(back, size);
                let odd = _mm256_or_si256(toward, _mm256_andnot_si256(exact, number(1)));
                let sums: [f32; N] = cast(_mm256_mul_ps(floats(_mm256_or_si256(odd, sign)), unit));
                Some(sums.map(|sum| nearest(f32_to_f16(sum.to_bits()))))
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use std::arch::x86_64::*;

    use bytemuck::cast;

    use super::{N, NONE, Rounding, Step, add_row, f32_to_f16, nearest};
    use crate::exec::matrix::tile::{ROWS, Tile, Wide};

    /// Joins two halves, which lie next to each other where they are loaded.
    #[target_feature(enable = "avx512f,avx512dq")]
    #[inline]
    fn join(halves: [__m256; 2]) -> __m512 {
        _mm512_insertf32x8::<1>(_mm512_castps256_ps512(halves[0]), halves[1])
    }

    #[target_feature(enable = "avx512f,avx512dq")]
    #[inline]
    fn join_integers(halves: [__m256i; 2]) -> __m512i {
        _mm512_inserti32x8::<1>(_mm512_castsi256_si512(halves[0]), halves[1])
    }

    #[target_feature(enable = "avx512f,avx512dq")]
    #[inline]
    fn rows(both: __m512) -> [[f32; N]; ROWS] {
        cast([_mm512_castps512_ps256(both), _mm512_extractf32x8_ps::<1>(both)])
    }

    /// Runs a step on a tile that keeps [`Wide`] operands.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(in super::super) fn add(tile: &mut Tile, step: &Step) {
        let special = tile.is_special();
        for pair in 0..step.rows / ROWS {
            let sums = match &tile.wide {
                Some(wide) if !special => {
                    sum(wide, step, pair, [tile.sums[2 * pair], tile.sums[2 * pair + 1]])
                }
                _ => None,
            };
            match sums {
                Some(sums) => tile.sums[ROWS * pair..ROWS * (pair + 1)].copy_from_slice(&sums),
                None => (0..ROWS).for_each(|row| add_row(tile, step, ROWS * pair + row)),
            }
        }
    }

    /// The same as for one row in [`avx2`](super::avx2), of two rows.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    #[inline]
    fn sum(wide: &Wide, step: &Step, pair: usize, c: [[f32; N]; ROWS]) -> Option<[[f32; N]; ROWS]> {
        let number = |n: i32| _mm512_set1_epi32(n);
        let floats = |x: __m512i| _mm512_castsi512_ps(x);
        let bits = |x: __m512| _mm512_castps_si512(x);
        let (a, a_exponents) = (wide.a.get(pair)?, wide.a_exponents.get(pair)?);

        let mut pairs = _mm512_set1_epi16(2 * NONE as i16);
        for q in step.groups() {
            let (a, b) = (
                a_exponents.get(4 * q..)?.first_chunk::<4>()?,
                wide.b_exponents.get(4 * q..)?.first_chunk::<4>()?,
            );
            for (a, b) in a.iter().zip(b) {
                pairs = _mm512_max_epi16(
                    pairs,
                    _mm512_add_epi16(join_integers(cast(*a)), join_integers(cast(*b))),
                );
            }
        }
        let low = _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(pairs));
        let products = _mm512_max_epi32(low, _mm512_srai_epi32::<16>(pairs));
        let c = join(cast(c));
        let magnitude = _mm512_slli_epi32::<1>(bits(c));
        let field = _mm512_max_epi32(_mm512_srli_epi32::<24>(magnitude), number(step.rounding.least()));
        let zero = _mm512_testn_epi32_mask(magnitude, magnitude);
        let c_exponent = _mm512_mask_mov_epi32(_mm512_add_epi32(field, number(127)), zero, number(i32::MIN));
        let largest = _mm512_max_epi32(products, c_exponent);

        // From 2^-100 to 2^120, or nothing at all.
        let outside = (_mm512_cmpgt_epi32_mask(number(254 - 100), largest)
            & _mm512_cmpgt_epi32_mask(largest, _mm512_setzero_si512()))
            | _mm512_cmpgt_epi32_mask(largest, number(254 + 120));
        if outside != 0 {
            return None;
        }
        let largest = _mm512_max_epi32(largest, number(254 - 100));
        let scale = floats(_mm512_slli_epi32::<23>(_mm512_sub_epi32(number(127 + 254 + step.keep), largest)));
        let unit = floats(_mm512_slli_epi32::<23>(_mm512_sub_epi32(largest, number(127 + step.keep))));

        let mut totals = [_mm512_setzero_si512(); 2];
        for q in step.groups() {
            let (a, b) = (a.get(8 * q..)?.first_chunk::<8>()?, wide.b.get(8 * q..)?.first_chunk::<8>()?);
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                let product = _mm512_mul_ps(join(cast(*a)), join(cast(*b)));
                let term = _mm512_cvttps_epi32(_mm512_mul_ps(product, scale));
                totals[i % 2] = _mm512_add_epi32(totals[i % 2], term);
            }
        }
        let c = _mm512_cvttps_epi32(_mm512_mul_ps(c, scale));
        let products = _mm512_add_epi32(totals[0], totals[1]);
        let total = _mm512_add_epi32(products, c);
        let overflow = _mm512_and_si512(_mm512_xor_si512(products, total), _mm512_xor_si512(c, total));
        let size = _mm512_abs_epi32(total);
        let near = _mm512_cvtepi32_ps(size);
        let back = _mm512_cvttps_epi32(near);
        if _mm512_movepi32_mask(overflow) | _mm512_cmpgt_epi32_mask(size, number(i32::MAX - 128)) != 0 {
            return None;
        }
        let up = _mm512_cmpgt_epi32_mask(back, size);
        let toward = _mm512_mask_sub_epi32(bits(near), up, bits(near), number(1));
        let sign = _mm512_and_si512(total, number(i32::MIN));
        match step.rounding {
            Rounding::Truncate { .. } => {
                let kept = _mm512_and_si512(toward, number(-1 << step.rounding.cut()));
                Some(rows(_mm512_mul_ps(floats(_mm512_or_si512(kept, sign)), unit)))
            }
            Rounding::Half => {
                let inexact = _mm512_cmpneq_epi32_mask(back, size);
                let odd = _mm512_mask_or_epi32(toward, inexact, toward, number(1));
                let sums = rows(_mm512_mul_ps(floats(_mm512_or_si512(odd, sign)), unit));
                Some(sums.map(|row| row.map(|sum| nearest(f32_to_f16(sum.to_bits())))))
            }
        }
    }
}
