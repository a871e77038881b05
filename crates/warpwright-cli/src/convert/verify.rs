//! Holding what was written against the f64 reference, bit for bit.

use warpwright_ops::quantise::reference;
use warpwright_ptx::DType;

use super::floats;
use super::kernels::{Groups, Method, NestedScales};

/// How many numbers of a weight are not what the reference says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mismatches {
    /// Codes, two to a byte.
    pub codes: u64,
    /// Scales and zero points.
    pub scales: u64,
    /// Values that the kernels dequantise to.
    pub values: u64,
}

impl Mismatches {
    /// Whether there are any.
    pub const fn any(&self) -> bool {
        self.codes + self.scales + self.values > 0
    }
}

/// Compares one chunk: `groups` with the scales in effect, `scales` as they were before nesting, `restored` from the host
/// and `values` from the kernels.
#[expect(clippy::too_many_arguments, reason = "two sides of a comparison")]
pub fn compare_chunk(
    bytes: &[u8],
    dtype: DType,
    method: Method,
    groups: &Groups,
    scales: &[f32],
    restored: &[f32],
    values: &[u8],
    found: &mut Mismatches,
) {
    let Method { scheme, group_size, order } = method;
    let x = floats::to_f64(bytes, dtype);
    let expected = reference::quantise::<f32>(&x, scheme, group_size as usize, order);
    found.codes += differing(&expected.codes, &groups.codes);
    found.scales += differing(&bits(&expected.scales), &bits(scales));
    found.scales += differing(&expected.zero_points, &groups.zero_points);
    let mut rounded = Vec::with_capacity(values.len());
    restored.iter().for_each(|value| floats::push(&mut rounded, f64::from(*value), dtype));
    let size = dtype.bytes();
    found.values += rounded.len().abs_diff(values.len()) as u64;
    found.values +=
        rounded.chunks_exact(size).zip(values.chunks_exact(size)).filter(|(a, b)| a != b).count() as u64;
}

/// Compares nested scales: their codes by the offset that was written, the offset itself to an f32 rounding, and the
/// scales that they stand for.
pub fn compare_nested(scales: &[f32], nested: &NestedScales, effective: &[f32], found: &mut Mismatches) {
    let (codes, absmax) = reference::quantise_nested_with(scales, nested.offset);
    found.scales += differing(&codes, &nested.codes);
    found.scales += differing(&bits(&absmax), &bits(&nested.absmax));
    let offset = reference::quantise_nested(scales).offset;
    found.scales += u64::from((offset - nested.offset).abs() > 2.0 * f32::EPSILON * offset.abs());
    let stored = reference::Nested { codes, absmax, offset: nested.offset };
    found.scales += differing(&bits(&reference::dequantise_nested(&stored)), &bits(effective));
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn differing<T: PartialEq>(a: &[T], b: &[T]) -> u64 {
    (a.iter().zip(b).filter(|(a, b)| a != b).count() + a.len().abs_diff(b.len())) as u64
}
