//! The formats of checkpoints that the command writes.

use clap::ValueEnum;
use clap::builder::PossibleValue;

/// A 4-bit format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// NormalFloat 4 in bitsandbytes' layout.
    BnbNf4,
    /// 4-bit floats in bitsandbytes' layout.
    BnbFp4,
    /// Integers with a scale (and a zero point) per group, in warpwright's layout.
    Int4,
}

impl Format {
    /// As on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BnbNf4 => "bnb-nf4",
            Self::BnbFp4 => "bnb-fp4",
            Self::Int4 => "int4",
        }
    }

    /// Whether bitsandbytes reads it.
    pub const fn is_bnb(self) -> bool {
        matches!(self, Self::BnbNf4 | Self::BnbFp4)
    }
}

/// A format of another tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum PackedFormat {
    /// 4-bit integers as GPTQ stores them (format 1, groups in order).
    Gptq,
    /// 4-bit integers with zero points as AutoAWQ stores them (gemm).
    Awq,
    /// 4-bit integers of compressed-tensors (pack-quantized).
    CompressedTensorsInt4,
    /// 4-bit floats with a power of two for each 32 (mxfp4-pack-quantized of compressed-tensors).
    Mxfp4,
    /// 4-bit floats with an 8-bit float for each 16 (nvfp4-pack-quantized of compressed-tensors).
    Nvfp4,
    /// 8-bit floats (e4m3) with a scale for each 128 x 128.
    Fp8,
}

impl PackedFormat {
    /// As on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gptq => "gptq",
            Self::Awq => "awq",
            Self::CompressedTensorsInt4 => "compressed-tensors-int4",
            Self::Mxfp4 => "mxfp4",
            Self::Nvfp4 => "nvfp4",
            Self::Fp8 => "fp8",
        }
    }

    /// The size of groups, where the format knows only one.
    pub const fn fixed_group_size(self) -> Option<u32> {
        match self {
            Self::Gptq | Self::Awq | Self::CompressedTensorsInt4 => None,
            Self::Mxfp4 => Some(32),
            Self::Nvfp4 => Some(16),
            Self::Fp8 => Some(128),
        }
    }

    /// Whether zero points are a choice.
    pub const fn has_zero_points(self) -> bool {
        self.fixed_group_size().is_none()
    }
}

/// A format that `quantize` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnyFormat {
    /// One that the kernels write.
    Own(Format),
    /// One of another tool.
    Packed(PackedFormat),
}

impl ValueEnum for AnyFormat {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self::Own(Format::BnbNf4),
            Self::Own(Format::BnbFp4),
            Self::Own(Format::Int4),
            Self::Packed(PackedFormat::Gptq),
            Self::Packed(PackedFormat::Awq),
            Self::Packed(PackedFormat::CompressedTensorsInt4),
            Self::Packed(PackedFormat::Mxfp4),
            Self::Packed(PackedFormat::Nvfp4),
            Self::Packed(PackedFormat::Fp8),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Own(format) => format.to_possible_value(),
            Self::Packed(format) => format.to_possible_value(),
        }
    }
}
