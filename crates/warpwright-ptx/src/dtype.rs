//! Element types of tensors in memory.

use crate::types::{ScalarType, spelled};

spelled! {
    /// The element type of a tensor.
    pub enum DType {
        /// IEEE single precision.
        F32 = "f32",
        /// IEEE double precision.
        F64 = "f64",
        /// IEEE half precision.
        F16 = "f16",
        /// bfloat16.
        BF16 = "bf16",
        /// 8-bit floating point with four exponent bits and no infinities: E4M3FN of the OCP 8-bit floating point specification,
        /// `float8_e4m3fn` in PyTorch.
        F8E4M3 = "f8e4m3",
        /// 8-bit floating point with five exponent bits, the upper half of an f16: `float8_e5m2` in PyTorch.
        F8E5M2 = "f8e5m2",
        /// Unsigned byte; also two packed 4-bit codes.
        U8 = "u8",
        /// Signed byte.
        I8 = "i8",
        /// Unsigned 16-bit integer.
        U16 = "u16",
        /// Signed 16-bit integer.
        I16 = "i16",
        /// Unsigned 32-bit integer.
        U32 = "u32",
        /// Signed 32-bit integer.
        I32 = "i32",
        /// Unsigned 64-bit integer.
        U64 = "u64",
        /// Signed 64-bit integer.
        I64 = "i64",
    }
}

impl DType {
    /// The floating-point types that every primitive takes.
    pub const FLOATS: [Self; 4] = [Self::F32, Self::F64, Self::F16, Self::BF16];

    /// The 8-bit floating-point types, which hold what products of 8-bit matrices multiply.
    pub const FLOATS8: [Self; 2] = [Self::F8E4M3, Self::F8E5M2];

    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::F16 | Self::BF16 | Self::U16 | Self::I16 => 2,
            Self::F32 | Self::U32 | Self::I32 => 4,
            Self::F64 | Self::U64 | Self::I64 => 8,
        }
    }

    /// Whether the elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64 | Self::F16 | Self::BF16) || self.is_float8()
    }

    /// Whether the elements are 8-bit floating-point numbers.
    pub const fn is_float8(self) -> bool {
        matches!(self, Self::F8E4M3 | Self::F8E5M2)
    }

    /// The type that sums of such elements are kept in: f64 for f64, f32 for all other floating-point types.
    pub const fn accumulator(self) -> Self {
        match self {
            Self::F64 => Self::F64,
            _ => Self::F32,
        }
    }

    /// Distance from 1 to the next larger number of a floating-point type; `None` for integers.
    pub const fn epsilon(self) -> Option<f64> {
        match self {
            Self::F32 => Some(1.0 / (1u64 << 23) as f64),
            Self::F64 => Some(f64::EPSILON),
            Self::F16 => Some(1.0 / 1024.0),
            Self::BF16 => Some(1.0 / 128.0),
            Self::F8E4M3 => Some(1.0 / 8.0),
            Self::F8E5M2 => Some(1.0 / 4.0),
            _ => None,
        }
    }

    /// The type of a load or store of one element (untyped for the floats of 16 and 8 bits).
    pub const fn memory_type(self) -> ScalarType {
        match self {
            Self::F32 => ScalarType::F32,
            Self::F64 => ScalarType::F64,
            Self::F16 | Self::BF16 => ScalarType::B16,
            Self::F8E4M3 | Self::F8E5M2 => ScalarType::B8,
            Self::U8 => ScalarType::U8,
            Self::I8 => ScalarType::S8,
            Self::U16 => ScalarType::U16,
            Self::I16 => ScalarType::S16,
            Self::U32 => ScalarType::U32,
            Self::I32 => ScalarType::S32,
            Self::U64 => ScalarType::U64,
            Self::I64 => ScalarType::S64,
        }
    }
}
