//! What quantisation did to a weight, computed on the host and independently of the kernels.

use warpwright_ops::quantise::Scheme;
use warpwright_ops::quantise::tables::{FP4, NF4};
use warpwright_ptx::DType;

use super::floats;
use super::kernels::{Groups, Method};

/// Error of a weight, accumulated over chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ErrorStats {
    squared_error: f64,
    squared_value: f64,
    largest: f64,
}

impl ErrorStats {
    /// Takes in the elements of `bytes` and the values that they became.
    pub fn add(&mut self, bytes: &[u8], dtype: DType, restored: &[f32]) {
        let mut restored = restored.iter();
        floats::for_each(bytes, dtype, |x| {
            if let Some(&y) = restored.next() {
                let error = x - f64::from(y);
                self.squared_error += error * error;
                self.squared_value += x * x;
                self.largest = self.largest.max(error.abs());
            }
        });
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

/// The values of `elements` codes, in f32 as the formats define them.
pub fn decode(groups: &Groups, elements: usize, method: Method) -> Vec<f32> {
    let mut out = Vec::with_capacity(elements);
    let size = method.group_size as usize;
    for (group, &scale) in groups.scales.iter().enumerate() {
        let zero = groups.zero_points.get(group).copied().unwrap_or(8);
        let table: [f32; 16] = std::array::from_fn(|code| match method.scheme {
            Scheme::Nf4 => NF4[code] * scale,
            Scheme::Fp4 => FP4[code] * scale,
            // Symmetric groups have no zero points: theirs is 8.
            _ => (code as f32 - f32::from(zero)) * scale,
        });
        let start = group.saturating_mul(size);
        for i in start..start.saturating_add(size).min(elements) {
            let byte = groups.codes.get(i / 2).copied().unwrap_or(0);
            out.push(table[usize::from(method.order.unpack(byte, i % 2))]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use warpwright_ops::quantise::NibbleOrder;

    use super::*;

    #[test]
    fn codes_become_values_in_either_nibble_order() {
        let method = |scheme, order| Method { scheme, group_size: 2, order };
        let groups = Groups { codes: vec![0xf0, 0x07], scales: vec![2.0, 0.5], zero_points: vec![] };
        let high = decode(&groups, 4, method(Scheme::Nf4, NibbleOrder::HighFirst));
        assert_eq!(high, [2.0, -2.0, -0.5, 0.0]);
        let low = decode(&groups, 3, method(Scheme::Nf4, NibbleOrder::LowFirst));
        assert_eq!(low, [-2.0, 2.0, 0.0]);
        let int4 = decode(&groups, 4, method(Scheme::Int4Symmetric, NibbleOrder::LowFirst));
        assert_eq!(int4, [-16.0, 14.0, -0.5, -4.0]);
        let groups = Groups { zero_points: vec![0, 15], ..groups };
        let int4 = decode(&groups, 4, method(Scheme::Int4Asymmetric, NibbleOrder::LowFirst));
        assert_eq!(int4, [0.0, 30.0, -4.0, -7.5]);
    }

    #[test]
    fn the_error_is_relative_to_the_weight() {
        let mut stats = ErrorStats::default();
        assert_eq!(stats.relative(), 0.0);
        stats.add(&floats::f32_bytes(&[3.0, 4.0]), DType::F32, &[3.0, 4.5]);
        assert_eq!((stats.relative(), stats.largest()), (0.1, 0.5));
        let mut whole = ErrorStats::default();
        whole.merge(&stats);
        whole.merge(&stats);
        assert!((whole.relative() - 0.1).abs() < 1e-15);
    }
}
