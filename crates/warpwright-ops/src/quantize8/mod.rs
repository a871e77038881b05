//! 8-bit quantization: floating-point and integer elements with f32 scales, as 8-bit matrix products take them; and back.
//!
//! A matrix `[rows, cols]` in row-major order becomes `q` of the same shape and scales, each of a part of it:
//!
//! | scaling | a scale is of | scales |
//! |---|---|---|
//! | `TensorWise` | the tensor | `[1]` |
//! | `RowWise` | a row | `[rows]` |
//! | `BlockWise1x128` | 128 neighbouring elements of a row | `[ceil(cols / 128), rows]` |
//! | `BlockWise128x128` | 128 x 128 elements | `[ceil(rows / 128), ceil(cols / 128)]` |
//! | `Static` | the tensor | `[1]`, given by the caller |
//!
//! Blocks at the ends may be short. The names are those of `ScalingType` of `torch.nn.functional.scaled_mm`, and scales of 1 x 128
//! blocks lie as it and DeepGEMM take them: those of neighbouring rows next to each other, which is `[rows, ceil(cols / 128)]` with
//! strides `(1, rows)`.
//!
//! With `amax` the largest magnitude of the part and `max` the largest number of the format (448, 57344, 127),
//!
//! `scale = max(amax / max, 2^-126)`, `q = round(x * (1 / scale))`, `y = q * scale`
//!
//! in f32, each step rounded to nearest even; `round` saturates. The least scale keeps a part of zeros from dividing by zero, and its
//! codes are zeros. A NaN in a part makes its scale NaN and an infinity makes it infinite, so that all of the part is NaN when it comes
//! back; their integer codes mean nothing. A scale that is given must be positive and finite; infinities saturate then, and NaN stays
//! NaN or becomes the integer 0.
//!
//! Sources: Micikevicius et al. 2022, "FP8 formats for deep learning" (arXiv:2209.05433), section 3.2; DeepSeek-AI 2024, "DeepSeek-V3
//! technical report" (arXiv:2412.19437), section 3.3.2, for blocks; Dettmers et al. 2022, "LLM.int8()" (arXiv:2208.07339), section 2.

mod functions;
mod kernel;
pub mod reference;
pub(crate) mod samples;
pub mod tuning;

use warpwright_dsl::KernelDef;
use warpwright_ptx::{DType, Target, float8};
use warpwright_runtime::LaunchStep;

use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, Variant};
use crate::tensors::tensors;

pub use functions::{Quantized8, dequantize8, quantize8, quantize8_static};

/// Elements of a side of a block.
pub const BLOCK: usize = 128;

/// The least scale: its reciprocal is finite.
pub const MIN_SCALE: f32 = f32::MIN_POSITIVE;

/// The types that are quantized, and that codes come back as.
pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// The types of codes.
pub const CODES: [DType; 3] = [DType::F8E4M3, DType::F8E5M2, DType::I8];

/// Conversions of 8-bit floats exist from here.
pub(crate) const FLOAT8_SM: u32 = 89;

/// The numbers that `q` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// 8-bit floats with four exponent bits; from sm_89 on.
    E4M3,
    /// 8-bit floats with five exponent bits; from sm_89 on.
    E5M2,
    /// Integers from -127 to 127, and -128 where a given scale is too small.
    Int8,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 3] = [Self::E4M3, Self::E5M2, Self::Int8];

    /// Its name in the catalogue, after `quantize_` and `dequantize_`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::E4M3 => "e4m3",
            Self::E5M2 => "e5m2",
            Self::Int8 => "int8",
        }
    }

    /// The element type of `q`.
    pub const fn dtype(self) -> DType {
        match self {
            Self::E4M3 => DType::F8E4M3,
            Self::E5M2 => DType::F8E5M2,
            Self::Int8 => DType::I8,
        }
    }

    /// The format of elements of a type.
    pub fn of(dtype: DType) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.dtype() == dtype)
    }

    /// The number that the largest magnitude becomes.
    pub const fn max(self) -> f64 {
        match self {
            Self::E4M3 => float8::E4M3_MAX,
            Self::E5M2 => float8::E5M2_MAX,
            Self::Int8 => 127.0,
        }
    }

    const fn op(self, quantizes: bool) -> &'static str {
        match (self, quantizes) {
            (Self::E4M3, true) => "quantize_e4m3",
            (Self::E4M3, false) => "dequantize_e4m3",
            (Self::E5M2, true) => "quantize_e5m2",
            (Self::E5M2, false) => "dequantize_e5m2",
            (Self::Int8, true) => "quantize_int8",
            (Self::Int8, false) => "dequantize_int8",
        }
    }
}

/// The elements that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scaling {
    /// The tensor.
    TensorWise,
    /// A row.
    RowWise,
    /// 128 neighbouring elements of a row.
    BlockWise1x128,
    /// 128 x 128 elements.
    BlockWise128x128,
    /// The tensor; the caller has the scale.
    Static,
}

impl Scaling {
    /// Every one.
    pub const ALL: [Self; 5] =
        [Self::TensorWise, Self::RowWise, Self::BlockWise1x128, Self::BlockWise128x128, Self::Static];

    /// A word for names and options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TensorWise => "tensor",
            Self::RowWise => "row",
            Self::BlockWise1x128 => "1x128",
            Self::BlockWise128x128 => "128x128",
            Self::Static => "static",
        }
    }

    /// The one of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scaling| scaling.name() == name)
    }

    /// The shape of the scales of a matrix, without strides.
    pub fn shape(self, rows: usize, cols: usize) -> Vec<usize> {
        match self {
            Self::TensorWise | Self::Static => vec![1],
            Self::RowWise => vec![rows],
            Self::BlockWise1x128 => vec![cols.div_ceil(BLOCK), rows],
            Self::BlockWise128x128 => vec![rows.div_ceil(BLOCK), cols.div_ceil(BLOCK)],
        }
    }

    /// Whether there is one scale.
    const fn is_single(self) -> bool {
        matches!(self, Self::TensorWise | Self::Static)
    }
}

/// A matrix and its codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// The numbers that `q` holds.
    pub format: Format,
    /// The elements that share a scale.
    pub scaling: Scaling,
    /// Element type of the matrix: f32, f16 or bf16.
    pub dtype: DType,
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub cols: usize,
}

impl Problem {
    /// Elements of the matrix and number of scales.
    fn checked(self, op: &'static str, target: Target) -> Result<(usize, usize), PlanError> {
        let Self { format, scaling, dtype, rows, cols } = self;
        if !DTYPES.contains(&dtype) {
            return Err(PlanError::DType { op, tensor: "x", got: dtype, expected: &DTYPES });
        }
        if format.dtype().is_float8() && target.sm < FLOAT8_SM {
            return Err(PlanError::Target { op, needs: FLOAT8_SM, target });
        }
        // There are no more scales than elements, but for the one of an empty tensor.
        match rows.checked_mul(cols).filter(|len| i64::try_from(*len).is_ok()) {
            Some(len) => Ok((len, scaling.shape(rows, cols).iter().product())),
            None => Err(too_large(op)),
        }
    }

    const fn is_empty(self) -> bool {
        self.rows == 0 || self.cols == 0
    }
}

/// More elements than can be addressed.
fn too_large(op: &'static str) -> PlanError {
    PlanError::TooLarge { op, blocks: u64::MAX, limit: plan::MAX_BLOCKS }
}

/// `x` to codes and scales.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Quantize8Desc {
    /// The matrix.
    pub problem: Problem,
}

tensors! {
    /// Tensors of [`Quantize8Desc`].
    pub struct Quantize8Args<'a> {
        /// The matrix.
        x: In,
        /// The scale, f32, of [`Scaling::Static`] alone.
        scale: Option<In>,
        /// The codes, of the shape of `x`.
        q: Out,
        /// f32, as the [module](crate::quantize8) has them; of all but [`Scaling::Static`].
        scales: Option<Out>,
        /// Scratch memory of [`Scaling::TensorWise`].
        workspace: Option<Out>,
    }
}

impl Operation for Quantize8Desc {
    type Args<'a> = Quantize8Args<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let Problem { format, scaling, dtype, rows, cols } = self.problem;
        let op = format.op(true);
        let (len, count) = self.problem.checked(op, target)?;
        let given = scaling == Scaling::Static;
        let partials = if scaling == Scaling::TensorWise { tuning::partials(len) as usize } else { 0 };
        let tensors = Quantize8Args::specs([
            Quantize8Args::x.holds(dtype, len),
            Quantize8Args::scale.holds(DType::F32, 1).optional(given),
            Quantize8Args::q.holds(format.dtype(), len).like(Quantize8Args::x),
            Quantize8Args::scales.holds(DType::F32, count).optional(!given),
            Quantize8Args::workspace.scratch(DType::F32, partials),
        ]);
        let mut variants = Vec::new();
        let run = if scaling.is_single() { len } else { cols };
        for width in tuning::widths(dtype, run) {
            let steps = match scaling {
                Scaling::TensorWise | Scaling::Static => self.flat(op, target, width, len)?,
                Scaling::RowWise => {
                    let layout = tuning::rows(cols, width);
                    let args = kernel::RowsArgs {
                        x: Quantize8Args::x.arg(),
                        q: Quantize8Args::q.arg(),
                        scales: Quantize8Args::scales.arg(),
                        rows: rows as u64,
                        cols: cols as u64,
                    };
                    let def = kernel::Rows { format, dtype, layout };
                    // A row of no elements has a scale, too.
                    step(op, &def, args, target, (rows, layout.rows_per_block()))?
                }
                Scaling::BlockWise1x128 | Scaling::BlockWise128x128 => {
                    let whole = scaling == Scaling::BlockWise128x128;
                    let tile = if whole { tuning::block(dtype, width) } else { tuning::strip(width) };
                    let args = kernel::BlocksArgs {
                        x: Quantize8Args::x.arg(),
                        q: Quantize8Args::q.arg(),
                        scales: Quantize8Args::scales.arg(),
                        matrix: kernel::matrix(self.problem),
                    };
                    let tiles = tile.count(rows, cols).ok_or_else(|| too_large(op))?;
                    step(op, &kernel::Blocks { format, dtype, whole, tile }, args, target, (tiles, 1))?
                }
            };
            variants.push(Variant { alignment: tuning::alignment(dtype, width), steps });
        }
        Ok(Plan::of(op, Direction::Forward, target, tensors, variants))
    }
}

impl Quantize8Desc {
    /// The launches with one scale: the largest magnitude first, unless the scale is given.
    fn flat(
        &self,
        op: &'static str,
        target: Target,
        width: u32,
        len: usize,
    ) -> Result<Vec<LaunchStep>, PlanError> {
        let Problem { format, scaling, dtype, .. } = self.problem;
        let given = scaling == Scaling::Static;
        let (n, partials) = (len as u64, tuning::partials(len));
        let mut steps = Vec::new();
        if !given {
            let args =
                kernel::AmaxArgs { x: Quantize8Args::x.arg(), partials: Quantize8Args::workspace.arg(), n };
            let def = kernel::Amax { dtype, width, blocks: partials };
            steps = step(op, &def, args, target, (partials as usize, 1))?;
        }
        let args = kernel::FlatArgs {
            x: Quantize8Args::x.arg(),
            scale: Quantize8Args::scale.arg(),
            partials: Quantize8Args::workspace.written(),
            q: Quantize8Args::q.arg(),
            scales: Quantize8Args::scales.arg(),
            n,
        };
        let def = kernel::Flat { format, dtype, width, partials: (!given).then_some(partials) };
        // The scale of an empty tensor is written, too.
        let len = if given { len } else { len.max(1) };
        steps.extend(step(op, &def, args, target, (len, tuning::flat_elements(width)))?);
        Ok(steps)
    }
}

/// Codes and scales back to elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dequantize8Desc {
    /// The matrix.
    pub problem: Problem,
}

tensors! {
    /// Tensors of [`Dequantize8Desc`].
    pub struct Dequantize8Args<'a> {
        /// The codes.
        q: In,
        /// f32, as the [module](crate::quantize8) has them.
        scales: In,
        /// The matrix, of the shape of `q`.
        y: Out,
    }
}

impl Operation for Dequantize8Desc {
    type Args<'a> = Dequantize8Args<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let Problem { format, scaling, dtype, rows, cols } = self.problem;
        let op = format.op(false);
        let (len, count) = self.problem.checked(op, target)?;
        let tensors = Dequantize8Args::specs([
            Dequantize8Args::q.holds(format.dtype(), len),
            Dequantize8Args::scales.holds(DType::F32, count),
            Dequantize8Args::y.holds(dtype, len).like(Dequantize8Args::q),
        ]);
        let args = || kernel::DequantizeArgs {
            q: Dequantize8Args::q.arg(),
            scales: Dequantize8Args::scales.arg(),
            y: Dequantize8Args::y.arg(),
            n: len as u64,
            matrix: kernel::matrix(self.problem),
        };
        let mut variants = Vec::new();
        // With one scale the last vector may be short.
        let run = if scaling.is_single() { 0 } else { cols };
        for width in tuning::widths(dtype, run) {
            let tile = tuning::strip(width);
            let def = kernel::Dequantize { format, dtype, scaling, tile };
            let steps = if self.problem.is_empty() {
                Vec::new()
            } else if scaling.is_single() {
                step(op, &def, args(), target, (len, tile.width * tile.threads))?
            } else {
                let tiles = tile.count(rows, cols).ok_or_else(|| too_large(op))?;
                step(op, &def, args(), target, (tiles, 1))?
            };
            variants.push(Variant { alignment: tuning::alignment(dtype, width), steps });
        }
        Ok(Plan::of(op, Direction::Forward, target, tensors, variants))
    }
}

/// A launch with one thread block for every `per_block` of `count` items, if there are any.
fn step<D: KernelDef>(
    op: &'static str,
    def: &D,
    args: D::Args,
    target: Target,
    (count, per_block): (usize, u32),
) -> Result<Vec<LaunchStep>, PlanError> {
    let step = plan::launch_over(op, def, args, target, plan::cover(op, count, per_block)?)?;
    Ok(step.into_iter().collect())
}
