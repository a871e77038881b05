//! 4-bit quantization: NF4 and FP4 blocks as bitsandbytes stores them, and int4 groups. Quantize and dequantize.
//!
//! A tensor is read as one flat sequence in row-major order. Every `group_size` consecutive elements share one scale;
//! the last group may be short. Two codes share a byte.
//!
//! | scheme | scale of a group | code of `x` | value of a code |
//! |---|---|---|---|
//! | `nf4`, `fp4` | `absmax = max abs(x)`, f32 | index of the nearest table value to `x * (1 / absmax)` | `table[code] * absmax` |
//! | `int4` symmetric | `absmax / 7` | `clamp(round(x / scale), -8, 7) + 8` | `(code - 8) * scale` |
//! | `int4` asymmetric | `(high - low) / 15` | `clamp(round(x / scale) + zero_point, 0, 15)` | `(code - zero_point) * scale` |
//!
//! with `low = min(x, 0)`, `high = max(x, 0)` over the group, so that zero is always represented exactly, and
//! `zero_point = clamp(round(-low / scale), 0, 15)`. Rounding is to nearest even. The NF4 table is that of QLoRA
//! (Dettmers et al. 2023, arXiv:2305.14314), the FP4 table and the decisions between neighbours are those of bitsandbytes'
//! CUDA kernels ([`tables`]).
//!
//! Arithmetic is f32, and f64 for int4 of f64 tensors, whose scales are f64; NF4 and FP4 round an f64 tensor to f32 first.
//! A group of zeros has scale 0. A NaN in a group makes its scale NaN, so that all of it is NaN when it comes back; an
//! infinity makes it infinite or NaN. The codes of such a group mean nothing. An odd tail is padded with the code of zero.
//!
//! [`nested`] quantizes the block maxima themselves ("double quantization").

mod coder;
mod functions;
mod kernel;
pub mod nested;
mod nested_kernel;
pub mod reference;
pub(crate) mod samples;
pub mod tables;
pub mod tuning;

use warpwright_ptx::{DType, Target};

use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, PlanParts, Variant};
use crate::tensors::tensors;

pub use functions::{Quantized, dequantize, dequantize_nested, quantize, quantize_nested};
pub use nested::QuantizedNested;

/// The values that codes stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scheme {
    /// 4-bit NormalFloat.
    Nf4,
    /// 4-bit floating point with two exponent bits.
    Fp4,
    /// Integers from -8 to 7.
    Int4Symmetric,
    /// Integers from 0 to 15 with a zero point per group.
    Int4Asymmetric,
}

impl Scheme {
    /// Every scheme.
    pub const ALL: [Self; 4] = [Self::Nf4, Self::Fp4, Self::Int4Symmetric, Self::Int4Asymmetric];

    /// Its name in the catalogue, after `quantize_` and `dequantize_`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nf4 => "nf4",
            Self::Fp4 => "fp4",
            Self::Int4Symmetric => "int4",
            Self::Int4Asymmetric => "int4_asymmetric",
        }
    }

    /// The type of scales for tensors of `dtype`.
    pub const fn scale_dtype(self, dtype: DType) -> DType {
        match (self, dtype) {
            (Self::Int4Symmetric | Self::Int4Asymmetric, DType::F64) => DType::F64,
            _ => DType::F32,
        }
    }

    /// Whether groups have zero points.
    pub const fn has_zero_points(self) -> bool {
        matches!(self, Self::Int4Asymmetric)
    }

    const fn op(self, quantizes: bool) -> &'static str {
        match (self, quantizes) {
            (Self::Nf4, true) => "quantize_nf4",
            (Self::Nf4, false) => "dequantize_nf4",
            (Self::Fp4, true) => "quantize_fp4",
            (Self::Fp4, false) => "dequantize_fp4",
            (Self::Int4Symmetric, true) => "quantize_int4",
            (Self::Int4Symmetric, false) => "dequantize_int4",
            (Self::Int4Asymmetric, true) => "quantize_int4_asymmetric",
            (Self::Int4Asymmetric, false) => "dequantize_int4_asymmetric",
        }
    }
}

/// Which half of a byte holds the first of its two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NibbleOrder {
    /// The high half, as in bitsandbytes.
    HighFirst,
    /// The low half, as in most integer formats.
    LowFirst,
}

impl NibbleOrder {
    /// Both orders.
    pub const ALL: [Self; 2] = [Self::HighFirst, Self::LowFirst];

    /// A byte of two codes.
    pub const fn pack(self, first: u8, second: u8) -> u8 {
        match self {
            Self::HighFirst => first << 4 | second & 15,
            Self::LowFirst => second << 4 | first & 15,
        }
    }

    /// The first (`position` 0) or second code of a byte.
    pub const fn unpack(self, byte: u8, position: usize) -> u8 {
        byte >> self.shift(position) & 15
    }

    /// The bit at which the code of element `position` starts in a little-endian word of codes.
    pub const fn shift(self, position: usize) -> u32 {
        let nibble = match self {
            Self::HighFirst => position ^ 1,
            Self::LowFirst => position,
        };
        4 * nibble as u32
    }
}

/// Groups that `len` elements fall into.
pub const fn groups(len: usize, group_size: usize) -> usize {
    len.div_ceil(if group_size == 0 { 1 } else { group_size })
}

/// Bytes that `len` codes take.
pub const fn packed_bytes(len: usize) -> usize {
    len.div_ceil(2)
}

/// `x` to codes and scales.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QuantizeDesc {
    /// The values that codes stand for.
    pub scheme: Scheme,
    /// Element type of `x`.
    pub dtype: DType,
    /// Elements that share a scale, at least 1.
    pub group_size: usize,
    /// Order of the codes in a byte.
    pub order: NibbleOrder,
    /// Number of elements.
    pub len: usize,
}

tensors! {
    /// Tensors of [`QuantizeDesc`].
    pub struct QuantizeArgs<'a> {
        /// The elements.
        x: In,
        /// u8, [`packed_bytes`] of them.
        codes: Out,
        /// [`Scheme::scale_dtype`], one a group.
        scales: Out,
        /// u8, one a group; for schemes that have them.
        zero_points: Option<Out>,
    }
}

impl Operation for QuantizeDesc {
    type Args<'a> = QuantizeArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let Self { scheme, dtype, group_size, order, len } = *self;
        let op = scheme.op(true);
        check(op, dtype, group_size)?;
        let groups = groups(len, group_size);
        let tensors = QuantizeArgs::specs([
            QuantizeArgs::x.holds(dtype, len),
            QuantizeArgs::codes.holds(DType::U8, packed_bytes(len)),
            QuantizeArgs::scales.holds(scheme.scale_dtype(dtype), groups),
            QuantizeArgs::zero_points.holds(DType::U8, groups).optional(scheme.has_zero_points()),
        ]);
        let n = len as u64;
        let mut variants = Vec::new();
        if let Some(tile) = tuning::quantize_tile(scheme, dtype, group_size) {
            let args = kernel::QuantizeArgs {
                x: QuantizeArgs::x.arg(),
                codes: QuantizeArgs::codes.arg(),
                scales: QuantizeArgs::scales.arg(),
                zero_points: QuantizeArgs::zero_points.arg(),
                n,
            };
            let def = kernel::Quantize { scheme, dtype, order, tile };
            let grid = plan::cover(op, len, tile.elements_per_block())?;
            let step = plan::launch_over(op, &def, args, target, grid)?;
            variants.push(Variant { alignment: 16, steps: step.into_iter().collect() });
        }
        // The variant for any group size and alignment: one launch for the scales, one for the codes.
        // A longer group is the whole tensor; without this, products with its size could wrap.
        let group = group_size.min(len.max(1)) as u64;
        let tile = tuning::scale_tile(group_size);
        let args = kernel::ScalesArgs {
            x: QuantizeArgs::x.arg(),
            scales: QuantizeArgs::scales.arg(),
            zero_points: QuantizeArgs::zero_points.arg(),
            n,
            group_size: group,
        };
        let grid = plan::cover(op, groups, tile.groups_per_block())?;
        let scales = plan::launch_over(op, &kernel::Scales { scheme, dtype, tile }, args, target, grid)?;
        let args = kernel::CodesArgs {
            x: QuantizeArgs::x.arg(),
            scales: QuantizeArgs::scales.written(),
            zero_points: QuantizeArgs::zero_points.written(),
            codes: QuantizeArgs::codes.arg(),
            n,
            group_size: group,
        };
        let grid = plan::cover(op, packed_bytes(len), tuning::THREADS)?;
        let codes = plan::launch_over(op, &kernel::Codes { scheme, dtype, order }, args, target, grid)?;
        variants.push(Variant { alignment: 1, steps: scales.into_iter().chain(codes).collect() });
        let direction = Direction::Forward;
        Ok(Plan::new(PlanParts { op, direction, target, tensors, variants, workspace_bytes: 0 }))
    }
}

/// Codes and scales back to elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DequantizeDesc {
    /// The values that codes stand for.
    pub scheme: Scheme,
    /// Element type of `y`.
    pub dtype: DType,
    /// Elements that share a scale, at least 1.
    pub group_size: usize,
    /// Order of the codes in a byte.
    pub order: NibbleOrder,
    /// Number of elements.
    pub len: usize,
}

tensors! {
    /// Tensors of [`DequantizeDesc`].
    pub struct DequantizeArgs<'a> {
        /// u8, [`packed_bytes`] of them.
        codes: In,
        /// [`Scheme::scale_dtype`], one a group.
        scales: In,
        /// u8, one a group; for schemes that have them.
        zero_points: Option<In>,
        /// The elements.
        y: Out,
    }
}

impl Operation for DequantizeDesc {
    type Args<'a> = DequantizeArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let Self { scheme, dtype, group_size, order, len } = *self;
        let op = scheme.op(false);
        check(op, dtype, group_size)?;
        let groups = groups(len, group_size);
        let tensors = DequantizeArgs::specs([
            DequantizeArgs::codes.holds(DType::U8, packed_bytes(len)),
            DequantizeArgs::scales.holds(scheme.scale_dtype(dtype), groups),
            DequantizeArgs::zero_points.holds(DType::U8, groups).optional(scheme.has_zero_points()),
            DequantizeArgs::y.holds(dtype, len),
        ]);
        let mut variants = Vec::new();
        for config in tuning::dequantize_configs(dtype, group_size) {
            let args = kernel::DequantizeArgs {
                codes: DequantizeArgs::codes.arg(),
                scales: DequantizeArgs::scales.arg(),
                zero_points: DequantizeArgs::zero_points.arg(),
                y: DequantizeArgs::y.arg(),
                n: len as u64,
                divisor: if config.power_of_two {
                    group_size.trailing_zeros().into()
                } else {
                    group_size as u64
                },
            };
            let def = kernel::Dequantize { scheme, dtype, order, config };
            let grid = plan::cover(op, len, config.elements_per_block())?;
            let step = plan::launch_over(op, &def, args, target, grid)?;
            variants.push(Variant { alignment: config.alignment(dtype), steps: step.into_iter().collect() });
        }
        let direction = Direction::Forward;
        Ok(Plan::new(PlanParts { op, direction, target, tensors, variants, workspace_bytes: 0 }))
    }
}

/// The checks that both descriptors share.
fn check(op: &'static str, dtype: DType, group_size: usize) -> Result<(), PlanError> {
    if !DType::FLOATS.contains(&dtype) {
        return Err(PlanError::DType { op, tensor: "x", got: dtype, expected: &DType::FLOATS });
    }
    if group_size == 0 {
        let got = group_size.to_string();
        return Err(PlanError::Parameter { op, parameter: "group_size", got, expected: "at least 1" });
    }
    Ok(())
}
