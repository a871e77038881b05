//! Errors of a quantized weight, computed on the host and independently of the kernels.

use half::{bf16, f16};
use warpwright_ops::quantize::Scheme;
use warpwright_ops::quantize::tables::{FP4, NF4};
use warpwright_ptx::DType;

use super::kernels::{Groups, Method};

/// Error of a weight, accumulated over chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ErrorStats {
    squared_error: f64,
    squared_value: f64,
    largest: f64,
}

impl ErrorStats {
    /// Takes in the elements of `bytes` and the codes that they became, with the scales in effect.
    pub fn add(&mut self, bytes: &[u8], dtype: DType, groups: Groups<'_>, method: Method) {
        match dtype {
            DType::F32 => {
                self.add_as(bytes.as_chunks().0, |b| f32::from_le_bytes(b).into(), groups, method);
            }
            DType::F16 => {
                self.add_as(bytes.as_chunks().0, |b| f16::from_le_bytes(b).into(), groups, method);
            }
            DType::BF16 => {
                self.add_as(bytes.as_chunks().0, |b| bf16::from_le_bytes(b).into(), groups, method);
            }
            DType::F64 => self.add_as(bytes.as_chunks().0, f64::from_le_bytes, groups, method),
            _ => {}
        }
    }

    fn add_as<const N: usize>(
        &mut self,
        elements: &[[u8; N]],
        value: impl Fn([u8; N]) -> f64 + Copy,
        groups: Groups<'_>,
        method: Method,
    ) {
        let size = method.group_size as usize;
        // Sums of even and of odd elements: a single one would wait for each addition before the next.
        let mut sums = [Sums::default(); 2];
        for (group, xs) in elements.chunks(size).enumerate() {
            let table = values_of_codes(groups, group, method);
            let start = group * size;
            let mut take = |at: usize, code: u8, x: [u8; N]| {
                sums[at].take(value(x), f64::from(table[usize::from(code)]));
            };
            let (head, pairs) = xs.split_at(start % 2);
            if let [x] = head {
                take(1, method.order.unpack(groups.codes[start / 2], 1), *x);
            }
            let (pairs, tail) = pairs.as_chunks::<2>();
            let codes = &groups.codes[start.div_ceil(2)..];
            for ([x, y], &byte) in pairs.iter().zip(codes) {
                take(0, method.order.unpack(byte, 0), *x);
                take(1, method.order.unpack(byte, 1), *y);
            }
            if let [x] = tail {
                take(0, method.order.unpack(codes[pairs.len()], 0), *x);
            }
        }
        for sum in sums {
            self.squared_error += sum.squared_error;
            self.squared_value += sum.squared_value;
            self.largest = self.largest.max(sum.largest);
        }
    }

    /// Takes in numbers and what became of them.
    pub fn add_pairs(&mut self, values: &[f32], restored: &[f32]) {
        let mut sums = Sums::default();
        values.iter().zip(restored).for_each(|(x, restored)| sums.take((*x).into(), (*restored).into()));
        self.squared_error += sums.squared_error;
        self.squared_value += sums.squared_value;
        self.largest = self.largest.max(sums.largest);
    }

    /// Takes in another part of the same whole.
    pub fn merge(&mut self, other: &Self) {
        self.squared_error += other.squared_error;
        self.squared_value += other.squared_value;
        self.largest = self.largest.max(other.largest);
    }

    /// Norm of the error over norm of the weight; 0 for a weight of zeros that stayed one.
    pub fn relative(&self) -> f64 {
        if self.squared_error == 0.0 { 0.0 } else { (self.squared_error / self.squared_value).sqrt() }
    }

    /// Largest error of an element.
    pub const fn largest(&self) -> f64 {
        self.largest
    }
}

/// Running sums over elements.
#[derive(Clone, Copy, Default)]
struct Sums {
    squared_error: f64,
    squared_value: f64,
    largest: f64,
}

impl Sums {
    #[inline(always)]
    fn take(&mut self, x: f64, restored: f64) {
        let error = x - restored;
        self.squared_error += error * error;
        self.squared_value += x * x;
        let size = error.abs();
        // Not `f64::max`, whose care for NaN costs more than the comparison.
        self.largest = if size > self.largest { size } else { self.largest };
    }
}

/// The values that the 16 codes stand for in a group, in f32 as the formats define them.
fn values_of_codes(groups: Groups<'_>, group: usize, method: Method) -> [f32; 16] {
    let scale = groups.scales.get(group).copied().unwrap_or(0.0);
    // Symmetric groups have no zero points: theirs is 8.
    let zero = f32::from(groups.zero_points.get(group).copied().unwrap_or(8));
    std::array::from_fn(|code| match method.scheme {
        Scheme::Nf4 => NF4[code] * scale,
        Scheme::Fp4 => FP4[code] * scale,
        _ => (code as f32 - zero) * scale,
    })
}

/// The values of `elements` codes, in f32 as the formats define them.
pub fn decode(groups: Groups<'_>, elements: usize, method: Method) -> Vec<f32> {
    let mut out = Vec::with_capacity(elements);
    let size = method.group_size as usize;
    for group in 0..elements.div_ceil(size) {
        let table = values_of_codes(groups, group, method);
        let start = group * size;
        for i in start..start.saturating_add(size).min(elements) {
            out.push(table[usize::from(method.order.unpack(groups.codes[i / 2], i % 2))]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use warpwright_ops::quantize::NibbleOrder;

    use super::*;
    use crate::checkpoint::floats;

    fn method(scheme: Scheme, group_size: u32, order: NibbleOrder) -> Method {
        Method { scheme, group_size, order }
    }

    #[test]
    fn codes_become_values_in_either_nibble_order() {
        let groups = Groups { codes: &[0xf0, 0x07], scales: &[2.0, 0.5], zero_points: &[] };
        let high = decode(groups, 4, method(Scheme::Nf4, 2, NibbleOrder::HighFirst));
        assert_eq!(high, [2.0, -2.0, -0.5, 0.0]);
        let low = decode(groups, 3, method(Scheme::Nf4, 2, NibbleOrder::LowFirst));
        assert_eq!(low, [-2.0, 2.0, 0.0]);
        let int4 = decode(groups, 4, method(Scheme::Int4Symmetric, 2, NibbleOrder::LowFirst));
        assert_eq!(int4, [-16.0, 14.0, -0.5, -4.0]);
        let groups = Groups { zero_points: &[0, 15], ..groups };
        let int4 = decode(groups, 4, method(Scheme::Int4Asymmetric, 2, NibbleOrder::LowFirst));
        assert_eq!(int4, [0.0, 30.0, -4.0, -7.5]);
    }

    #[test]
    fn the_error_is_relative_to_the_weight() {
        let mut stats = ErrorStats::default();
        assert_eq!(stats.relative(), 0.0);
        let int4 = method(Scheme::Int4Symmetric, 2, NibbleOrder::LowFirst);
        let groups = Groups { codes: &[0xfe], scales: &[0.5], zero_points: &[] };
        // 14 and 15 of a step of 0.5 stand for 3 and 3.5.
        stats.add(&floats::f32_bytes(&[3.0, 4.0]), DType::F32, groups, int4);
        assert_eq!((stats.relative(), stats.largest()), (0.1, 0.5));
        let mut whole = ErrorStats::default();
        whole.merge(&stats);
        whole.merge(&stats);
        assert!((whole.relative() - 0.1).abs() < 1e-15);
    }

    /// Groups of odd length begin in the middle of a byte.
    #[test]
    fn the_error_is_that_of_the_decoded_values_in_every_shape() {
        let codes: Vec<u8> = (0..50).map(|i| (i * 37) as u8).collect();
        let scales: Vec<f32> = (0..34).map(|i| 0.25 + i as f32 / 16.0).collect();
        for dtype in DType::FLOATS {
            for (size, elements) in [(3, 100), (3, 99), (4, 97), (64, 99), (1000, 7), (1, 33), (5, 0)] {
                for order in [NibbleOrder::LowFirst, NibbleOrder::HighFirst] {
                    let method = method(Scheme::Fp4, size, order);
                    let groups = Groups { codes: &codes, scales: &scales, zero_points: &[] };
                    let xs: Vec<f32> = (0..elements).map(|i| (i % 7) as f32 - 2.5).collect();
                    let mut stats = ErrorStats::default();
                    stats.add(&floats::encode(&xs, dtype), dtype, groups, method);
                    let mut expected = (0.0, 0.0, 0.0f64);
                    for (x, y) in xs.iter().zip(decode(groups, elements, method)) {
                        let error = f64::from(*x) - f64::from(y);
                        expected = (
                            expected.0 + error * error,
                            expected.1 + f64::from(*x).powi(2),
                            expected.2.max(error.abs()),
                        );
                    }
                    assert!((stats.squared_error - expected.0).abs() <= 1e-12 * expected.0, "{dtype} {size}");
                    assert!((stats.squared_value - expected.1).abs() <= 1e-12 * expected.1, "{dtype} {size}");
                    assert_eq!(stats.largest, expected.2, "{dtype} {size}");
                }
            }
        }
    }
}
