//! The numbers of 4-bit codes, and how codes and their scales lie in memory.

use warpwright_ptx::DType;
use warpwright_ptx::float16::{bf16_bits, f16_bits};

use crate::quantize::NibbleOrder;
use crate::quantize::tables::{E2M1, FP4, NF4};

/// A format of 4-bit weights, in the layout of the checkpoints that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WeightFormat {
    /// 4-bit NormalFloat of bitsandbytes: high nibble first, scales of blocks of the flattened matrix.
    Nf4,
    /// 4-bit floats of bitsandbytes, in the same layout.
    Fp4,
    /// Integers from -8 to 7, stored with 8 added, low nibble first; scales of groups of a row: `weight_packed` of compressed-tensors.
    Int4,
    /// Integers from 0 to 15 with zero points, in the same layout.
    Int4Asymmetric,
    /// e2m1, low nibble first, with e8m0 scales of 32 elements of a row (OCP Microscaling Formats 1.0).
    Mxfp4,
    /// e2m1, low nibble first, with e4m3 scales of 16 elements of a row and one f32 scale of the whole: `weight` of ModelOpt's NVFP4 and
    /// `weight_packed` of compressed-tensors' nvfp4-pack-quantized.
    Nvfp4,
}

/// How a scale is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleFormat {
    /// A float.
    Float(DType),
    /// An 8-bit code of the dynamic map, times a maximum of 256 scales, plus an offset: [`quantize::nested`](crate::quantize::nested).
    Nested,
    /// A power of two, as the byte of its biased exponent; 255 is NaN.
    E8m0,
    /// An 8-bit float, times one f32 scale of the whole weight.
    E4m3,
}

impl ScaleFormat {
    /// The type of the tensor of scales.
    pub const fn dtype(self) -> DType {
        match self {
            Self::Float(dtype) => dtype,
            Self::Nested | Self::E8m0 => DType::U8,
            Self::E4m3 => DType::F8E4M3,
        }
    }

    /// Its part of the name of a kernel.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Float(DType::F16) => "f16",
            Self::Float(DType::BF16) => "bf16",
            Self::Float(_) => "f32",
            Self::Nested => "nested",
            Self::E8m0 => "e8m0",
            Self::E4m3 => "e4m3",
        }
    }
}

/// The factor between the numbers of a format and its table in the type of `x`.
///
/// NF4 is irrational: times these numbers, found by search, no entry is further than 0.18 % from its rounding to bf16, and 0.017 % from
/// that to f16, which is half of what rounding alone does. Twelve times FP4 is exact.
const NF4_TIMES: [f64; 2] = [1.436_715, 1.6385];
const FP4_TIMES: f64 = 12.0;

impl WeightFormat {
    /// Every format.
    pub const ALL: [Self; 6] =
        [Self::Nf4, Self::Fp4, Self::Int4, Self::Int4Asymmetric, Self::Mxfp4, Self::Nvfp4];

    /// Its name, after `matmul_4bit_`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nf4 => "nf4",
            Self::Fp4 => "fp4",
            Self::Int4 => "int4",
            Self::Int4Asymmetric => "int4_asymmetric",
            Self::Mxfp4 => "mxfp4",
            Self::Nvfp4 => "nvfp4",
        }
    }

    /// Whether scales are of blocks of the flattened matrix, and not of groups of a row.
    pub const fn is_flat(self) -> bool {
        matches!(self, Self::Nf4 | Self::Fp4)
    }

    /// Order of the codes in a byte.
    pub const fn order(self) -> NibbleOrder {
        if self.is_flat() { NibbleOrder::HighFirst } else { NibbleOrder::LowFirst }
    }

    /// Whether groups have zero points.
    pub const fn has_zero_points(self) -> bool {
        matches!(self, Self::Int4Asymmetric)
    }

    /// Elements that share a scale, of a format that has groups of one size only.
    pub const fn fixed_group_size(self) -> Option<usize> {
        match self {
            Self::Mxfp4 => Some(32),
            Self::Nvfp4 => Some(16),
            _ => None,
        }
    }

    /// The number of each code, before scale and zero point.
    pub fn table(self) -> [f32; 16] {
        match self {
            Self::Nf4 => NF4,
            Self::Fp4 => FP4,
            Self::Int4 => std::array::from_fn(|code| code as f32 - 8.0),
            Self::Int4Asymmetric => std::array::from_fn(|code| code as f32),
            Self::Mxfp4 | Self::Nvfp4 => E2M1,
        }
    }

    /// The factor of the entries of [`pairs`](Self::pairs).
    pub(super) const fn times(self, dtype: DType) -> f64 {
        match (self, dtype) {
            (Self::Nf4, DType::BF16) => NF4_TIMES[0],
            (Self::Nf4, _) => NF4_TIMES[1],
            (Self::Fp4, _) => FP4_TIMES,
            _ => 1.0,
        }
    }

    /// The two numbers of each byte of codes, times [`times`](Self::times), in f16 or bf16, the first in the lower half.
    pub(super) fn pairs(self, dtype: DType) -> Vec<u32> {
        let (table, order, times) = (self.table(), self.order(), self.times(dtype));
        let bits = |code: u8| {
            let value = f64::from(table[usize::from(code)]) * times;
            u32::from(if dtype == DType::BF16 { bf16_bits(value) } else { f16_bits(value) })
        };
        (0..=u8::MAX).map(|byte| bits(order.unpack(byte, 0)) | bits(order.unpack(byte, 1)) << 16).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error model of the budget rests on these bounds.
    #[test]
    fn tables_in_half_types_are_closer_than_a_rounding() {
        for (dtype, digits) in [(DType::BF16, 8), (DType::F16, 11)] {
            for format in WeightFormat::ALL {
                let pairs = format.pairs(dtype);
                for (code, value) in (0u8..).zip(format.table()) {
                    let byte = usize::from(format.order().pack(code, 0));
                    let half = (pairs[byte] & 0xffff) as u16;
                    let stored = match dtype {
                        DType::BF16 => f64::from(half::bf16::from_bits(half)),
                        _ => f64::from(half::f16::from_bits(half)),
                    };
                    let (got, value) = (stored / format.times(dtype), f64::from(value));
                    let most = if format == WeightFormat::Nf4 { 0.45 * 2f64.powi(-digits) } else { 1e-7 };
                    assert!(
                        (got - value).abs() <= most * value.abs(),
                        "{format:?} {dtype} {code}: {got} {value}"
                    );
                }
            }
        }
    }
}
