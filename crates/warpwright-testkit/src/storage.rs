//! Values as the bytes of a tensor, and back.

use half::{bf16, f16};
use warpwright_ptx::float16::{bf16_bits, f16_bits};
use warpwright_ptx::{DType, float8};

/// The nearest value of `dtype` to `v`, as it comes back from memory.
pub fn round(dtype: DType, v: f64) -> f64 {
    match dtype {
        DType::F32 => f64::from(v as f32),
        DType::F16 => f64::from(nearest_f16(v)),
        DType::BF16 => f64::from(nearest_bf16(v)),
        DType::F8E4M3 => float8::e4m3_value(float8::e4m3_bits(v)),
        DType::F8E5M2 => float8::e5m2_value(float8::e5m2_bits(v)),
        _ => v,
    }
}

/// The bytes of `values` in `dtype`, each rounded to nearest even; integers, which are truncated, and 8-bit floats saturate.
pub fn encode(dtype: DType, values: &[f64]) -> Vec<u8> {
    let mut out = Vec::with_capacity(values.len() * dtype.bytes());
    for &v in values {
        match dtype {
            DType::F32 => out.extend((v as f32).to_le_bytes()),
            DType::F64 => out.extend(v.to_le_bytes()),
            DType::F16 => out.extend(nearest_f16(v).to_le_bytes()),
            DType::BF16 => out.extend(nearest_bf16(v).to_le_bytes()),
            DType::F8E4M3 => out.push(float8::e4m3_bits(v)),
            DType::F8E5M2 => out.push(float8::e5m2_bits(v)),
            DType::U8 => out.push(v as u8),
            DType::I8 => out.extend((v as i8).to_le_bytes()),
            DType::U16 => out.extend((v as u16).to_le_bytes()),
            DType::I16 => out.extend((v as i16).to_le_bytes()),
            DType::U32 => out.extend((v as u32).to_le_bytes()),
            DType::I32 => out.extend((v as i32).to_le_bytes()),
            DType::U64 => out.extend((v as u64).to_le_bytes()),
            DType::I64 => out.extend((v as i64).to_le_bytes()),
        }
    }
    out
}

/// The values that `bytes` hold; a partial element at the end is left out.
pub fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    fn each<const N: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.chunks_exact(N).map(|c| f(std::array::from_fn(|i| c[i]))).collect()
    }
    match dtype {
        DType::F32 => each(bytes, |b| f64::from(f32::from_le_bytes(b))),
        DType::F64 => each(bytes, f64::from_le_bytes),
        DType::F16 => each(bytes, |b| f64::from(f16::from_le_bytes(b))),
        DType::BF16 => each(bytes, |b| f64::from(bf16::from_le_bytes(b))),
        DType::F8E4M3 => each(bytes, |[b]| float8::e4m3_value(b)),
        DType::F8E5M2 => each(bytes, |[b]| float8::e5m2_value(b)),
        DType::U8 => each(bytes, |[b]| f64::from(b)),
        DType::I8 => each(bytes, |b| f64::from(i8::from_le_bytes(b))),
        DType::U16 => each(bytes, |b| f64::from(u16::from_le_bytes(b))),
        DType::I16 => each(bytes, |b| f64::from(i16::from_le_bytes(b))),
        DType::U32 => each(bytes, |b| f64::from(u32::from_le_bytes(b))),
        DType::I32 => each(bytes, |b| f64::from(i32::from_le_bytes(b))),
        DType::U64 => each(bytes, |b| u64::from_le_bytes(b) as f64),
        DType::I64 => each(bytes, |b| i64::from_le_bytes(b) as f64),
    }
}

/// Largest finite value of a floating-point type, `None` for integers.
pub fn largest(dtype: DType) -> Option<f64> {
    Some(match dtype {
        DType::F32 => f64::from(f32::MAX),
        DType::F64 => f64::MAX,
        DType::F16 => f64::from(f16::MAX),
        DType::BF16 => f64::from(bf16::MAX),
        DType::F8E4M3 => float8::E4M3_MAX,
        DType::F8E5M2 => float8::E5M2_MAX,
        _ => return None,
    })
}

/// Smallest normal value of a floating-point type, `None` for integers.
pub fn smallest_normal(dtype: DType) -> Option<f64> {
    Some(match dtype {
        DType::F32 => f64::from(f32::MIN_POSITIVE),
        DType::F64 => f64::MIN_POSITIVE,
        DType::F16 => f64::from(f16::MIN_POSITIVE),
        DType::BF16 => f64::from(bf16::MIN_POSITIVE),
        DType::F8E4M3 => 2f64.powi(-6),
        DType::F8E5M2 => 2f64.powi(-14),
        _ => return None,
    })
}

fn nearest_f16(v: f64) -> f16 {
    f16::from_bits(f16_bits(v))
}

fn nearest_bf16(v: f64) -> bf16 {
    bf16::from_bits(bf16_bits(v))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rounding_to_half_types() {
        // Just above the midpoint of 1 and 1 + 2^-10; f32 cannot tell it from the midpoint.
        let v = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(round(DType::F16, v), 1.0 + 2f64.powi(-10));
        assert_eq!(round(DType::F16, 1.0 + 2f64.powi(-11)), 1.0);
        assert_eq!(round(DType::BF16, 1.0 + 2f64.powi(-8) + 2f64.powi(-45)), 1.0 + 2f64.powi(-7));
        assert_eq!(round(DType::F16, 65520.0), f64::INFINITY);
        assert_eq!(round(DType::F16, 65519.9), 65504.0);
        assert_eq!(round(DType::BF16, 1e39), f64::INFINITY);
        assert_eq!(round(DType::F16, 2f64.powi(-25)), 0.0);
        assert_eq!(round(DType::F16, 2f64.powi(-25) * 1.000_000_000_1), 2f64.powi(-24));
    }

    #[test]
    fn bytes_come_back() {
        for dtype in DType::FLOATS {
            let values = [0.0, -1.5, f64::INFINITY, 0.25];
            assert_eq!(decode(dtype, &encode(dtype, &values)), values);
        }
        for dtype in DType::FLOATS8 {
            let max = largest(dtype).unwrap_or(0.0);
            let smallest = smallest_normal(dtype).unwrap_or(0.0);
            let values = [0.0, -1.5, max, 0.25, smallest];
            assert_eq!(decode(dtype, &encode(dtype, &values)), values);
            assert_eq!(round(dtype, f64::NEG_INFINITY), -max);
        }
        assert_eq!(decode(DType::I8, &encode(DType::I8, &[-200.0, 3.0])), [-128.0, 3.0]);
    }
}
