//! Holding what was written against the f64 reference, bit for bit.

use warpwright_ops::quantize::reference;
use warpwright_ptx::DType;

use super::chunks;
use super::kernels::{Groups, Method, NestedScales};
use super::measure::decode;
use crate::checkpoint::floats;

/// How many numbers of a weight are not what the reference says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mismatches {
    /// Codes, two to a byte.
    pub codes: u64,
    /// Scales and zero points.
    pub scales: u64,
    /// Values that the kernels dequantize to.
    pub values: u64,
}

impl Mismatches {
    /// Takes in those of another part of the same whole.
    pub const fn merge(&mut self, other: Self) {
        self.codes += other.codes;
        self.scales += other.scales;
        self.values += other.values;
    }

    /// Whether there are any.
    pub const fn any(&self) -> bool {
        self.codes + self.scales + self.values > 0
    }
}

/// Elements whose reference is at work at a time: what it needs stays in a core's own cache.
const PIECE: u64 = 16 << 10;

/// Compares the codes, scales and zero points of a chunk with those of the reference.
pub fn compare_codes(bytes: &[u8], dtype: DType, method: Method, groups: Groups<'_>, found: &mut Mismatches) {
    let Method { scheme, group_size, order } = method;
    let elements = (bytes.len() / dtype.bytes()) as u64;
    for piece in chunks(elements, group_size.into(), PIECE) {
        // The chunk is in memory, so its positions fit.
        let (start, end) = (piece.start as usize, piece.end as usize);
        let x = floats::to_f64(&bytes[start * dtype.bytes()..end * dtype.bytes()], dtype);
        let expected = reference::quantize::<f32>(&x, scheme, group_size as usize, order);
        let (from, to) = (start / group_size as usize, end.div_ceil(group_size as usize));
        let part = |all: &[u8]| all.get(from..to).unwrap_or_default().to_vec();
        found.codes += differing(&expected.codes, &groups.codes[start / 2..end.div_ceil(2)]);
        let scales = groups.scales.get(from..to).unwrap_or_default();
        found.scales += differing(&bits(&expected.scales), &bits(scales));
        found.scales += differing(&expected.zero_points, &part(groups.zero_points));
    }
}

/// Compares the values that the kernels dequantize to with those that the codes stand for, rounded once.
pub fn compare_values(
    values: &[u8],
    dtype: DType,
    method: Method,
    groups: Groups<'_>,
    found: &mut Mismatches,
) {
    let size = dtype.bytes();
    let expected = floats::encode(&decode(groups, values.len() / size, method), dtype);
    let differ = |(a, b): &(&[u8], &[u8])| a != b;
    found.values += if expected == values {
        0
    } else {
        expected.chunks_exact(size).zip(values.chunks_exact(size)).filter(differ).count() as u64
    };
}

/// Compares nested scales: their codes by the offset that was written, the offset itself to an f32 rounding, and the
/// scales that they stand for.
pub fn compare_nested(scales: &[f32], nested: &NestedScales, effective: &[f32], found: &mut Mismatches) {
    let (codes, absmax) = reference::quantize_nested_with(scales, nested.offset);
    found.scales += differing(&codes, &nested.codes);
    found.scales += differing(&bits(&absmax), &bits(&nested.absmax));
    let offset = reference::quantize_nested(scales).offset;
    found.scales += u64::from((offset - nested.offset).abs() > 2.0 * f32::EPSILON * offset.abs());
    let stored = reference::Nested { codes, absmax, offset: nested.offset };
    found.scales += differing(&bits(&reference::dequantize_nested(&stored)), &bits(effective));
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn differing<T: PartialEq>(a: &[T], b: &[T]) -> u64 {
    (a.iter().zip(b).filter(|(a, b)| a != b).count() + a.len().abs_diff(b.len())) as u64
}
