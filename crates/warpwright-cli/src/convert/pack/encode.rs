//! From rows of numbers to codes and scales, rounded to nearest. Everything is computed in f32; searches compare sums of squared
//! errors in f64 and keep the earlier of two equal candidates.
//!
//! | format | scale s | code |
//! |---|---|---|
//! | int4, symmetric | max abs x / 7.5 | clamp(rne(x / s), -8, 7) + 8 |
//! | int4, asymmetric | (max(x, 0) - min(x, 0)) / 15, z = rne(-min / s) | clamp(rne(x / s) + z, 0, 15) |
//! | mxfp4 | 2^(e - 2), where e is the exponent of max abs x, or one more if its significand is 1.75 or more | e2m1(x / s) |
//! | nvfp4 | e4m3(max abs x / 6 * global) / global, global = 2688 / max abs W | e2m1(x / s) |
//! | fp8 | max abs x / 448 | e4m3(x / s) |
//!
//! Integer scales are rounded to the type that holds them before codes are chosen. Sources: llm-compressor (observers),
//! compressed-tensors (`mxfp_utils`, `fp4_utils`), DeepSeek-V3 (fp8 blocks).

use half::{bf16, f16};
use warpwright_ptx::float8::{E4M3_MAX, e4m3_bits, e4m3_value};

use crate::args::PackedFormat;
use crate::checkpoint::StoredType;
use crate::checkpoint::schemes::packing::{e2m1_bits, e2m1_value, e8m0_value};

/// The largest 4-bit float times the largest 8-bit one: where the largest number of a weight goes.
pub(super) const NVFP4_RANGE: f32 = 2688.0;

/// How numbers become codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rule {
    pub(super) format: PackedFormat,
    pub(super) group_size: usize,
    pub(super) asymmetric: bool,
    pub(super) search: bool,
    /// The type that holds scales.
    pub(super) scale_type: StoredType,
    /// The divisor of scales of NVFP4.
    pub(super) global: f32,
}

/// The scale of a group, the bits that are stored for it, and the code of zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Scale {
    pub(super) value: f32,
    pub(super) bits: u32,
    pub(super) zero: u8,
}

/// Rows that share scales, and what they became.
#[derive(Debug, Default)]
pub(super) struct Block {
    /// A code a byte.
    pub(super) codes: Vec<u8>,
    /// By group.
    pub(super) scales: Vec<Scale>,
    /// The numbers that the codes stand for.
    pub(super) restored: Vec<f32>,
}

impl Rule {
    /// Encodes `rows x columns` numbers, all of them finite, which share a scale for each group of columns. `None` if a scale does
    /// not fit its type.
    pub(super) fn encode(&self, values: &[f32], columns: usize) -> Option<Block> {
        let rows = values.len() / columns;
        let mut block =
            Block { codes: vec![0; values.len()], scales: Vec::new(), restored: vec![0.0; values.len()] };
        let mut group = Vec::with_capacity(rows * self.group_size);
        for start in (0..columns).step_by(self.group_size) {
            let end = columns.min(start + self.group_size);
            group.clear();
            values.chunks_exact(columns).for_each(|row| group.extend_from_slice(&row[start..end]));
            let scale = self.scale(&group)?;
            for (row, values) in values.chunks_exact(columns).enumerate() {
                for (k, x) in (start..end).zip(&values[start..end]) {
                    let code = self.code(*x, scale);
                    block.codes[row * columns + k] = code;
                    block.restored[row * columns + k] = self.restore(code, scale);
                }
            }
            block.scales.push(scale);
        }
        Some(block)
    }

    fn code(&self, x: f32, scale: Scale) -> u8 {
        match self.format {
            // Saturating, so that rounding of the division does no harm.
            PackedFormat::Fp8 => e4m3_bits((x / scale.value).into()),
            PackedFormat::Mxfp4 | PackedFormat::Nvfp4 => e2m1_bits(x / scale.value),
            _ => ((x / scale.value).round_ties_even() + f32::from(scale.zero)).clamp(0.0, 15.0) as u8,
        }
    }

    /// The number that a code stands for.
    pub(super) fn restore(&self, code: u8, scale: Scale) -> f32 {
        let number = match self.format {
            // An f32 number.
            PackedFormat::Fp8 => e4m3_value(code) as f32,
            PackedFormat::Mxfp4 | PackedFormat::Nvfp4 => e2m1_value(code),
            _ => f32::from(code) - f32::from(scale.zero),
        };
        number * scale.value
    }

    fn scale(&self, group: &[f32]) -> Option<Scale> {
        let (low, high) = group.iter().fold((0f32, 0f32), |(low, high), x| (low.min(*x), high.max(*x)));
        let largest = high.max(-low);
        match self.format {
            PackedFormat::Fp8 => {
                let value = if largest == 0.0 { 1.0 } else { largest / E4M3_MAX as f32 };
                // The quotient of a subnormal number may be 0.
                let value = value.max(f32::MIN_POSITIVE);
                Some(Scale { value, bits: value.to_bits(), zero: 0 })
            }
            PackedFormat::Mxfp4 => {
                let middle = mx_exponent(largest);
                let near = |bits: &i32| (0..=254).contains(bits);
                let around = [middle, middle - 1, middle + 1].into_iter().filter(near);
                let candidates = around.map(|bits| {
                    let bits = bits as u8;
                    Scale { value: e8m0_value(bits), bits: bits.into(), zero: 0 }
                });
                self.best(group, candidates)
            }
            PackedFormat::Nvfp4 => {
                let middle = i32::from(e4m3_bits((largest / 6.0 * self.global).into()));
                // A scale of 0 would divide by it.
                let middle = if middle == 0 { i32::from(e4m3_bits(0.125)) } else { middle };
                let around = std::iter::once(middle).chain((-8..=4).map(|step| middle + step));
                let candidates = around.filter(|bits| (1..=0x7e).contains(bits)).map(|bits| {
                    let bits = bits as u8;
                    Scale { value: self.nvfp4_scale(bits), bits: bits.into(), zero: 0 }
                });
                self.best(group, candidates)
            }
            _ if largest == 0.0 => Some(Scale { value: 1.0, bits: 1f32.to_bits(), zero: 8 }),
            _ => {
                let ratios =
                    (0..=if self.search { 40u8 } else { 0 }).map(|step| 1.0 - f32::from(step) / 100.0);
                self.best(group, ratios.filter_map(|ratio| self.integer_scale(low * ratio, high * ratio)))
            }
        }
    }

    /// A scale of NVFP4 as readers have it: an 8-bit float, which is an f32 number, by the divisor of the weight.
    pub(super) fn nvfp4_scale(&self, bits: u8) -> f32 {
        e4m3_value(bits) as f32 / self.global
    }

    /// The scale of integers from `low` to `high`.
    fn integer_scale(&self, low: f32, high: f32) -> Option<Scale> {
        if !self.asymmetric {
            return self.stored((high.max(-low) / 7.5, 8));
        }
        // Both halves, so that the difference cannot overflow.
        let scale = self.stored((high / 15.0 - low / 15.0, 0))?;
        let zero = (-low / scale.value).round_ties_even().clamp(0.0, 15.0) as u8;
        if self.format == PackedFormat::Gptq && zero == 0 {
            // Readers differ about a zero point of 0, so none is written.
            return self.stored((high / 14.0, 1));
        }
        Some(Scale { zero, ..scale })
    }

    /// A scale as its type holds it: at least the smallest number; `None` beyond the largest.
    fn stored(&self, (value, zero): (f32, u8)) -> Option<Scale> {
        let value = in_type(value, self.scale_type).max(smallest(self.scale_type));
        value.is_finite().then_some(Scale { value, bits: value.to_bits(), zero })
    }

    /// The first candidate, or with a search that of the least squared error.
    fn best(&self, group: &[f32], mut candidates: impl Iterator<Item = Scale>) -> Option<Scale> {
        let mut best = candidates.next()?;
        if !self.search {
            return Some(best);
        }
        // The sum of squared errors, or any number from `least` on if it comes to that.
        let error = |scale: Scale, least: f64| -> f64 {
            let mut sum = 0.0;
            for part in group.chunks(16) {
                for x in part {
                    let difference = f64::from(*x) - f64::from(self.restore(self.code(*x, scale), scale));
                    sum += difference * difference;
                }
                if sum >= least {
                    break;
                }
            }
            sum
        };
        let mut least = error(best, f64::INFINITY);
        for candidate in candidates {
            let of_candidate = error(candidate, least);
            if of_candidate < least {
                (best, least) = (candidate, of_candidate);
            }
        }
        Some(best)
    }
}

/// The biased exponent of the scale of 32 numbers; that of 1 for zeros.
fn mx_exponent(largest: f32) -> i32 {
    if largest == 0.0 {
        return 127;
    }
    // Half of the last place of a 4-bit float carries significands from 1.75 on into the exponent.
    let rounded = (largest.to_bits() + (1 << 21)) >> 23;
    (rounded as i32 - 2).clamp(0, 254)
}

/// A number as a type holds it.
pub(super) fn in_type(value: f32, dtype: StoredType) -> f32 {
    match dtype {
        StoredType::F16 => f16::from_f32(value).to_f32(),
        StoredType::BF16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

fn smallest(dtype: StoredType) -> f32 {
    match dtype {
        StoredType::F16 => f16::from_bits(1).to_f32(),
        _ => f32::MIN_POSITIVE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(format: PackedFormat, asymmetric: bool) -> Rule {
        let scale_type = StoredType::F16;
        Rule { format, group_size: 32, asymmetric, search: false, scale_type, global: 1.0 }
    }

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * i * 7 + i * 3) % 101) as f32 / 50.0 - 0.8).collect()
    }

    fn squared(values: &[f32], restored: &[f32]) -> f64 {
        values.iter().zip(restored).map(|(x, y)| f64::from(x - y).powi(2)).sum()
    }

    #[test]
    fn integers_follow_their_formulas() {
        let x = numbers(64);
        let block = rule(PackedFormat::CompressedTensorsInt4, false).encode(&x, 64).unwrap();
        for (k, x) in x.iter().enumerate() {
            let largest = numbers(64)[k / 32 * 32..][..32].iter().fold(0f32, |m, x| m.max(x.abs()));
            let s = f16::from_f32(largest / 7.5).to_f32();
            assert_eq!(f32::from(block.codes[k]), (x / s).round_ties_even().clamp(-8.0, 7.0) + 8.0);
            assert_eq!(block.restored[k], (f32::from(block.codes[k]) - 8.0) * s);
        }
        let block = rule(PackedFormat::Awq, true).encode(&x, 64).unwrap();
        for (group, scale) in x.chunks(32).zip(&block.scales) {
            let (low, high) = group.iter().fold((0f32, 0f32), |(a, b), x| (a.min(*x), b.max(*x)));
            assert_eq!(scale.value, f16::from_f32(high / 15.0 - low / 15.0).to_f32());
            assert_eq!(f32::from(scale.zero), (-low / scale.value).round_ties_even());
        }
    }

    #[test]
    fn gptq_has_no_zero_point_of_zero() {
        let positive: Vec<_> = numbers(32).iter().map(|x| x.abs() + 0.1).collect();
        let of = |format| rule(format, true).encode(&positive, 32).unwrap().scales[0].zero;
        assert_eq!((of(PackedFormat::Awq), of(PackedFormat::Gptq)), (0, 1));
        let block = rule(PackedFormat::Gptq, true).encode(&positive, 32).unwrap();
        assert!(squared(&positive, &block.restored) < 0.1);
    }

    #[test]
    fn powers_of_two_follow_the_largest_number() {
        // 2^(floor(log2(x)) - 2), and one more from a significand of 1.75 on.
        for (largest, exponent) in
            [(1.0f32, -2), (1.7499, -2), (1.75, -1), (1.99, -1), (6.0, 0), (7.0, 1), (0.01, -9)]
        {
            assert_eq!(mx_exponent(largest) - 127, exponent, "{largest}");
        }
        assert_eq!((mx_exponent(f32::from_bits(1)), mx_exponent(f32::MAX)), (0, 253));
    }

    #[test]
    fn a_search_is_never_worse() {
        // Sums of several numbers, so that the largest are few.
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        let x: Vec<f32> = (0..2048).map(|_| (0..6).map(|_| next()).sum()).collect();
        for format in [
            PackedFormat::Gptq,
            PackedFormat::Awq,
            PackedFormat::CompressedTensorsInt4,
            PackedFormat::Mxfp4,
            PackedFormat::Nvfp4,
        ] {
            for asymmetric in [false, true] {
                let plain = Rule { global: 100.0, ..rule(format, asymmetric) };
                let error = |rule: Rule| squared(&x, &rule.encode(&x, 128).unwrap().restored);
                let (without, with) = (error(plain), error(Rule { search: true, ..plain }));
                assert!(with <= without, "{format:?}: {with} > {without}");
                assert!(format == PackedFormat::Mxfp4 || with < without, "{format:?} finds nothing");
            }
        }
    }

    #[test]
    fn zeros_and_extremes_have_finite_scales() {
        for format in [PackedFormat::Gptq, PackedFormat::Mxfp4, PackedFormat::Nvfp4, PackedFormat::Fp8] {
            for x in [[0.0; 32], [1e-44; 32], [-1e-9; 32]] {
                let block = rule(format, true).encode(&x, 32).unwrap();
                assert!(block.scales[0].value > 0.0 && block.scales[0].value.is_finite(), "{format:?}");
                assert!(squared(&x, &block.restored) < 1e-12, "{format:?}");
            }
        }
        assert!(rule(PackedFormat::Gptq, false).encode(&[1e9; 32], 32).is_none(), "no scale of f16");
        assert!(rule(PackedFormat::Fp8, false).encode(&[f32::MAX; 32], 32).is_some());
    }
}
