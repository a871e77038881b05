//! Plain Rust definitions of every format, the oracle of the kernels.
//!
//! A format is defined in the arithmetic that stores its scales (f32, or f64 for integer formats of f64 tensors), so
//! codes and scales of a kernel must equal these exactly; the definitions use division and comparison where the
//! kernels use reciprocals and tables.

use super::tables::{FP4, FP4_ASCENDING, FP4_MIDPOINTS, NF4, NF4_MIDPOINTS, dynamic_map, midpoints};
use super::{NibbleOrder, Scheme};

/// Blocks of 8-bit codes of nested statistics.
pub const NESTED_BLOCK: usize = 256;

pub use crate::dynamic_map::MIN_ABSMAX;

/// A quantized tensor: packed codes, one scale and, for asymmetric integers, one zero point per group.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized<T> {
    /// Two codes per byte.
    pub codes: Vec<u8>,
    /// `absmax` of NF4 and FP4 blocks, the step of integer groups.
    pub scales: Vec<T>,
    /// Empty unless the scheme is asymmetric.
    pub zero_points: Vec<u8>,
}

/// The arithmetic of an integer format: f32, or f64 for f64 tensors.
pub trait Real: Copy + PartialOrd + Into<f64> {
    /// Rounds an f64.
    fn of(v: f64) -> Self;
    /// `self / other`, rounded once.
    fn over(self, other: Self) -> Self;
    /// The nearest integer, ties to even; the sign of a zero is not that of `self`.
    fn nearest(self) -> Self;
    /// `self * other`, rounded once.
    fn times(self, other: Self) -> Self;
    /// `self - other`, rounded once.
    fn minus(self, other: Self) -> Self;
}

macro_rules! real {
    ($($t:ty),*) => {$(
        impl Real for $t {
            fn of(v: f64) -> Self { v as $t }
            fn over(self, other: Self) -> Self { self / other }
            fn nearest(self) -> Self {
                // Half of the numbers from 1.5 * 2^(digits - 1) on are odd integers, so that a sum with it is rounded to the nearest
                // integer, ties to even: what `round_ties_even` gives, without a call where the machine has no instruction.
                const INTEGERS: $t = 1.5 * (1u64 << (<$t>::MANTISSA_DIGITS - 1)) as $t;
                if self.abs() < INTEGERS / 4.0 { (self + INTEGERS) - INTEGERS } else { self.round_ties_even() }
            }
            fn times(self, other: Self) -> Self { self * other }
            fn minus(self, other: Self) -> Self { self - other }
        }
    )*};
}
real!(f32, f64);

/// Quantizes `x` in groups of `group_size` consecutive elements; the last group may be short.
///
/// The elements are first converted to `T`. A group without a number other than zero has scale 0 and the codes of
/// zero; a NaN makes its group's scale NaN.
pub fn quantize<T: Real>(x: &[f64], scheme: Scheme, group_size: usize, order: NibbleOrder) -> Quantized<T> {
    let mut codes = Vec::with_capacity(x.len() + 1);
    let (mut scales, mut zero_points) = (Vec::new(), Vec::new());
    let mut group: Vec<T> = Vec::new();
    let mut scaled: Vec<f32> = Vec::new();
    for elements in x.chunks(group_size.max(1)) {
        group.clear();
        group.extend(elements.iter().map(|v| T::of(*v)));
        match scheme {
            Scheme::Nf4 | Scheme::Fp4 => {
                let absmax = absmax(&group).into() as f32;
                let r = 1.0 / absmax.max(MIN_ABSMAX);
                scaled.clear();
                scaled.extend(group.iter().map(|v| (*v).into() as f32 * r));
                if scheme == Scheme::Nf4 {
                    push_ranks(&mut codes, &scaled, &NF4_MIDPOINTS);
                } else {
                    codes.extend(scaled.iter().map(|t| fp4_code(*t)));
                }
                scales.push(T::of(f64::from(absmax)));
            }
            Scheme::Int4Symmetric => {
                let scale = absmax(&group).over(T::of(7.0));
                codes.extend(group.iter().map(|v| int4_code(*v, scale, 8.0)));
                scales.push(scale);
            }
            Scheme::Int4Asymmetric => {
                let (scale, zero) = int4_range(&group);
                codes.extend(group.iter().map(|v| int4_code(*v, scale, zero.into())));
                scales.push(scale);
                zero_points.push(zero.into() as u8);
            }
        }
    }
    if codes.len() % 2 == 1 {
        codes.push(match scheme {
            Scheme::Nf4 => 7,
            Scheme::Fp4 => 0,
            Scheme::Int4Symmetric => 8,
            Scheme::Int4Asymmetric => zero_points.last().copied().unwrap_or(0),
        });
    }
    let codes = codes.chunks_exact(2).map(|pair| order.pack(pair[0], pair[1])).collect();
    Quantized { codes, scales, zero_points }
}

/// The values that `n` packed codes stand for, before rounding to the output dtype.
pub fn dequantize<T: Real>(
    q: &Quantized<T>,
    n: usize,
    scheme: Scheme,
    group: usize,
    order: NibbleOrder,
) -> Vec<T> {
    (0..n)
        .map(|i| {
            let code = order.unpack(q.codes[i / 2], i % 2);
            let scale = q.scales[i / group.max(1)];
            match scheme {
                Scheme::Nf4 => T::of(f64::from(NF4[usize::from(code)])).times(scale),
                Scheme::Fp4 => T::of(f64::from(FP4[usize::from(code)])).times(scale),
                Scheme::Int4Symmetric => T::of(f64::from(code) - 8.0).times(scale),
                Scheme::Int4Asymmetric => {
                    T::of(f64::from(code) - f64::from(q.zero_points[i / group.max(1)])).times(scale)
                }
            }
        })
        .collect()
}

/// Largest magnitude; NaN if there is one.
fn absmax<T: Real>(group: &[T]) -> T {
    let mut most = 0.0f64;
    for v in group {
        let v: f64 = (*v).into();
        if v.is_nan() {
            return T::of(f64::NAN);
        }
        most = most.max(v.abs());
    }
    T::of(most)
}

/// Scale and zero point of an asymmetric group: the range always holds zero, so that zero is represented exactly and
/// groups of one sign lose nothing to clamping.
fn int4_range<T: Real>(group: &[T]) -> (T, T) {
    let (mut low, mut high) = (0.0f64, 0.0f64);
    for v in group {
        let v: f64 = (*v).into();
        if v.is_nan() {
            return (T::of(f64::NAN), T::of(0.0));
        }
        low = low.min(v);
        high = high.max(v);
    }
    let (low, high) = (T::of(low), T::of(high));
    // Halved first, so that a range as wide as the type does not overflow.
    let scale = high.times(T::of(0.5)).minus(low.times(T::of(0.5))).over(T::of(7.5));
    // The scale is also zero where half the range underflows.
    let zeros = Into::<f64>::into(scale) == 0.0;
    let zero: f64 = if zeros { 0.0 } else { T::of(0.0).minus(low).over(scale).nearest().into() };
    (scale, T::of(if zero.is_nan() { 0.0 } else { zero.clamp(0.0, 15.0) }))
}

/// Code of `x` with the zero point added after rounding. In a group of zeros it is the code of zero.
fn int4_code<T: Real>(x: T, scale: T, zero: f64) -> u8 {
    let divisor: f64 = scale.into();
    let t: f64 = if divisor == 0.0 { 0.0 } else { x.over(scale).nearest().into() };
    (t + zero).clamp(0.0, 15.0) as u8
}

/// Appends how many of the midpoints each number exceeds.
///
/// Midpoint by midpoint over a run of numbers, which a compiler turns into vector comparisons: checkpoints are verified with it.
fn push_ranks(codes: &mut Vec<u8>, numbers: &[f32], midpoints: &[f32]) {
    const RUN: usize = 32;
    for run in numbers.chunks(RUN) {
        let mut padded = [f32::NEG_INFINITY; RUN];
        padded[..run.len()].copy_from_slice(run);
        let mut ranks = [0u32; RUN];
        for midpoint in midpoints {
            for (rank, t) in ranks.iter_mut().zip(&padded) {
                *rank += u32::from(t > midpoint);
            }
        }
        codes.extend(ranks[..run.len()].iter().map(|rank| *rank as u8));
    }
}

/// Sign bit and the code of the magnitude.
fn fp4_code(t: f32) -> u8 {
    let rank = FP4_MIDPOINTS.iter().filter(|m| t.abs() > **m).count();
    FP4_ASCENDING[rank] | (u8::from(t < 0.0) << 3)
}

/// Nested statistics: the block maxima of a tensor, themselves in 8 bits.
#[derive(Clone, Debug, PartialEq)]
pub struct Nested {
    /// One code per block maximum.
    pub codes: Vec<u8>,
    /// Largest magnitude of every 256 shifted maxima.
    pub absmax: Vec<f32>,
    /// The mean that was subtracted.
    pub offset: f32,
}

/// Quantizes block maxima to 8 bits: their mean is subtracted, then blocks of 256 take the dynamic map's nearest entry.
pub fn quantize_nested(absmax: &[f32]) -> Nested {
    let offset = (absmax.iter().map(|v| f64::from(*v)).sum::<f64>() / absmax.len().max(1) as f64) as f32;
    let (codes, nested) = quantize_nested_with(absmax, offset);
    Nested { codes, absmax: nested, offset }
}

/// The same with a given offset: codes and the maxima of the blocks.
pub fn quantize_nested_with(absmax: &[f32], offset: f32) -> (Vec<u8>, Vec<f32>) {
    let mid = midpoints(&dynamic_map());
    let mut nested = Vec::new();
    let mut codes = Vec::with_capacity(absmax.len());
    for block in absmax.chunks(NESTED_BLOCK) {
        let most = block.iter().map(|v| (v - offset).abs()).fold(0.0, f32::max);
        let r = 1.0 / most.max(MIN_ABSMAX);
        codes.extend(block.iter().map(|v| mid.partition_point(|m| (v - offset) * r > *m) as u8));
        nested.push(most);
    }
    (codes, nested)
}

/// The block maxima that nested statistics stand for: product and sum are each rounded.
pub fn dequantize_nested(q: &Nested) -> Vec<f32> {
    let map = dynamic_map();
    let value = |(i, c): (usize, &u8)| map[usize::from(*c)] * q.absmax[i / NESTED_BLOCK] + q.offset;
    q.codes.iter().enumerate().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_is_what_the_standard_library_rounds_to() {
        for i in -4000..4000 {
            let x = f64::from(i) / 8.0;
            for near in [x, f64::from_bits(x.to_bits() + 1), f64::from_bits(x.to_bits().saturating_sub(1))] {
                assert_eq!(near.nearest(), near.round_ties_even(), "{near}");
                let narrow = near as f32;
                assert_eq!(narrow.nearest(), narrow.round_ties_even(), "{narrow}");
            }
        }
        for big in [
            2f32.powi(21) + 0.5,
            2f32.powi(22) - 0.25,
            2f32.powi(22) + 0.5,
            2f32.powi(24),
            f32::MAX,
            f32::INFINITY,
        ] {
            assert_eq!(big.nearest(), big.round_ties_even());
            assert_eq!((-big).nearest(), (-big).round_ties_even());
            assert_eq!(f64::from(big).nearest(), f64::from(big).round_ties_even());
        }
        assert!(f32::NAN.nearest().is_nan() && f64::NAN.nearest().is_nan());
    }
}
