//! The four floating-point types as bytes.

use half::{bf16, f16};
use warpwright_ptx::DType;
use warpwright_ptx::float16::{bf16_bits, f16_bits};

/// Calls `each` with every element of `bytes` as an f64, which holds all four types exactly.
///
/// Bytes beyond the last whole element and types that are not floating-point give nothing.
pub fn for_each(bytes: &[u8], dtype: DType, mut each: impl FnMut(f64)) {
    match dtype {
        DType::F32 => bytes.as_chunks::<4>().0.iter().for_each(|b| each(f32::from_le_bytes(*b).into())),
        DType::F64 => bytes.as_chunks::<8>().0.iter().for_each(|b| each(f64::from_le_bytes(*b))),
        DType::F16 => bytes.as_chunks::<2>().0.iter().for_each(|b| each(f16::from_le_bytes(*b).into())),
        DType::BF16 => bytes.as_chunks::<2>().0.iter().for_each(|b| each(bf16::from_le_bytes(*b).into())),
        _ => {}
    }
}

/// All elements.
pub fn to_f64(bytes: &[u8], dtype: DType) -> Vec<f64> {
    let mut out = Vec::with_capacity(bytes.len() / dtype.bytes());
    for_each(bytes, dtype, |value| out.push(value));
    out
}

/// All elements as f32, those of F64 rounded to it.
pub fn to_f32(bytes: &[u8], dtype: DType) -> Vec<f32> {
    match dtype {
        DType::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        DType::F64 => bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b) as f32).collect(),
        DType::F16 => bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        DType::BF16 => bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        _ => Vec::new(),
    }
}

/// Appends a value, rounded once to `dtype`.
pub fn push(out: &mut Vec<u8>, value: f64, dtype: DType) {
    match dtype {
        DType::F32 => out.extend((value as f32).to_le_bytes()),
        DType::F64 => out.extend(value.to_le_bytes()),
        DType::F16 => out.extend(f16_bits(value).to_le_bytes()),
        DType::BF16 => out.extend(bf16_bits(value).to_le_bytes()),
        _ => {}
    }
}

/// All values, each rounded once to `dtype`.
pub fn encode(values: &[f32], dtype: DType) -> Vec<u8> {
    fn each<const N: usize>(values: &[f32], bytes: impl Fn(f32) -> [u8; N]) -> Vec<u8> {
        let mut out = vec![0; values.len() * N];
        out.as_chunks_mut().0.iter_mut().zip(values).for_each(|(to, value)| *to = bytes(*value));
        out
    }
    match dtype {
        DType::F32 => each(values, f32::to_le_bytes),
        DType::F64 => each(values, |v| f64::from(v).to_le_bytes()),
        DType::F16 => each(values, |v| f16::from_f32(v).to_le_bytes()),
        DType::BF16 => each(values, |v| bf16::from_f32(v).to_le_bytes()),
        _ => Vec::new(),
    }
}

/// Index and value of the first element that is NaN or infinite.
pub fn first_nonfinite(bytes: &[u8], dtype: DType) -> Option<(u64, f64)> {
    fn find<const N: usize>(bytes: &[u8], suspect: impl Fn([u8; N]) -> bool) -> Option<usize> {
        // An exponent of all ones; folding over a run of elements lets the compiler vectorise.
        let (elements, _) = bytes.as_chunks::<N>();
        let mut at = 0;
        for run in elements.chunks(4096) {
            if run.iter().fold(false, |any, b| any | suspect(*b)) {
                return run.iter().position(|b| suspect(*b)).map(|inside| at + inside);
            }
            at += run.len();
        }
        None
    }
    let at = match dtype {
        DType::F32 => find(bytes, |b| u32::from_le_bytes(b) & 0x7f80_0000 == 0x7f80_0000),
        DType::F64 => find(bytes, |b| u64::from_le_bytes(b) & 0x7ff0_0000_0000_0000 == 0x7ff0_0000_0000_0000),
        DType::F16 => find(bytes, |b| u16::from_le_bytes(b) & 0x7c00 == 0x7c00),
        DType::BF16 => find(bytes, |b| u16::from_le_bytes(b) & 0x7f80 == 0x7f80),
        _ => None,
    }?;
    let size = dtype.bytes();
    let mut value = f64::NAN;
    for_each(&bytes[at * size..(at + 1) * size], dtype, |v| value = v);
    Some((at as u64, value))
}

/// f32 values as bytes.
pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_the_trip_through_bytes() {
        for dtype in DType::FLOATS {
            let mut bytes = Vec::new();
            for value in [0.0, -1.5, 0.25, 1024.0] {
                push(&mut bytes, value, dtype);
            }
            assert_eq!(bytes.len(), 4 * dtype.bytes());
            assert_eq!(to_f64(&bytes, dtype), [0.0, -1.5, 0.25, 1024.0]);
            assert_eq!(to_f32(&bytes, dtype), [0.0, -1.5, 0.25, 1024.0]);
        }
        assert_eq!(to_f32(&f32_bytes(&[1.0, -2.5]), DType::F32), [1.0, -2.5]);
    }

    #[test]
    fn the_first_nonfinite_element_is_found() {
        for dtype in DType::FLOATS {
            let mut bytes = Vec::new();
            for i in 0..5000 {
                push(&mut bytes, f64::from(i % 7), dtype);
            }
            assert_eq!(first_nonfinite(&bytes, dtype), None);
            push(&mut bytes, f64::NEG_INFINITY, dtype);
            push(&mut bytes, f64::NAN, dtype);
            assert_eq!(first_nonfinite(&bytes, dtype), Some((5000, f64::NEG_INFINITY)));
            let tail = &bytes[5001 * dtype.bytes()..];
            let (at, value) = first_nonfinite(tail, dtype).unwrap();
            assert_eq!((at, value.is_nan()), (0, true));
        }
    }
}
