//! Blockwise 8-bit quantization by the dynamic maps of bitsandbytes, and back.
//!
//! A block of `block_size` neighbouring elements becomes as many codes and the f32 `absmax`, the largest magnitude among them:
//!
//! `code = nearest(x * (1 / max(absmax, 1e-38)))`, `y = map[code] * absmax`
//!
//! in f32, each step rounded to nearest even; `nearest` is the number of midpoints between neighbouring entries of the map that are exceeded
//! ([`dynamic_map`](crate::dynamic_map)). The last block may be short. Elements below 0 get the code of 0 in the unsigned map. A NaN or an
//! infinity in a block spoils all of it: `absmax` is that, and the codes are those of 0.
//!
//! These are `quantize_blockwise` and `dequantize_blockwise` of `bitsandbytes.functional` with the maps of its optimizers.
//!
//! Sources: Dettmers 2015 (arXiv:1511.04561) for the maps; Dettmers et al. 2022, "8-bit optimizers via block-wise quantization"
//! (arXiv:2110.02861), section 2.1, for blocks.

mod functions;
mod kernel;
pub mod reference;
pub(crate) mod samples;

use warpwright_dsl::VECTOR_BYTES;
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use crate::PlanError;
use crate::catalogue::Direction;
use crate::dynamic_map::{Map, rounds};
use crate::plan::{self, Operation, Plan, Variant};
use crate::tensors::tensors;

pub use functions::{QuantizedDynamic, dequantize_dynamic, quantize_dynamic};

/// Elements of a block: those of bitsandbytes' optimizers, and those of its functions where nothing is said.
pub const BLOCK_SIZES: [usize; 2] = [256, 4096];

/// The types that are quantized, and that codes come back as.
pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// A tensor and its codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// The map.
    pub map: Map,
    /// Element type of the tensor: f32, f16 or bf16.
    pub dtype: DType,
    /// Elements.
    pub len: usize,
    /// Elements that share an `absmax`: one of [`BLOCK_SIZES`].
    pub block_size: usize,
}

const fn op(map: Map, quantizes: bool) -> &'static str {
    match (map, quantizes) {
        (Map::Signed, true) => "quantize_dynamic",
        (Map::Signed, false) => "dequantize_dynamic",
        (Map::Unsigned, true) => "quantize_udynamic",
        (Map::Unsigned, false) => "dequantize_udynamic",
    }
}

impl Problem {
    /// Number of blocks.
    pub const fn blocks(self) -> usize {
        self.len.div_ceil(self.block_size)
    }

    fn check(self, op: &'static str, tensor: &'static str) -> Result<(), PlanError> {
        if !DTYPES.contains(&self.dtype) {
            return Err(PlanError::DType { op, tensor, got: self.dtype, expected: &DTYPES });
        }
        if !BLOCK_SIZES.contains(&self.block_size) {
            return Err(PlanError::refused(op, "block_size", self.block_size, "256 or 4096"));
        }
        if self.len.checked_mul(self.dtype.bytes()).is_none_or(|bytes| i64::try_from(bytes).is_err()) {
            return Err(PlanError::TooLarge { op, blocks: u64::MAX, limit: plan::MAX_BLOCKS });
        }
        Ok(())
    }

    /// A variant for each number of elements that can be moved at once, best first; without a step there is nothing to do.
    fn variants(
        self,
        step: impl Fn(u32) -> Result<Option<LaunchStep>, PlanError>,
    ) -> Result<Vec<Variant>, PlanError> {
        let vector = VECTOR_BYTES / self.dtype.bytes() as u32;
        let fits = self.len.is_multiple_of(vector as usize);
        let widths = fits.then_some((vector, u64::from(VECTOR_BYTES))).into_iter().chain([(1, 1)]);
        let of_width =
            |(width, alignment)| Ok(Variant { alignment, steps: step(width)?.into_iter().collect() });
        widths.map(of_width).collect()
    }
}

/// `x` to codes and the maxima of its blocks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QuantizeDynamicDesc {
    /// The tensor.
    pub problem: Problem,
}

tensors! {
    /// Tensors of [`QuantizeDynamicDesc`].
    pub struct QuantizeDynamicArgs<'a> {
        /// The tensor.
        x: In,
        /// u8, of the shape of `x`.
        codes: Out,
        /// f32, of each block.
        absmax: Out,
    }
}

impl Operation for QuantizeDynamicDesc {
    type Args<'a> = QuantizeDynamicArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = QuantizeDynamicArgs<'a>;
        let problem @ Problem { map, dtype, len, block_size } = self.problem;
        let op = op(map, true);
        problem.check(op, "x")?;
        let tensors = Args::specs([
            Args::x.holds(dtype, len),
            Args::codes.holds(DType::U8, len).like(Args::x),
            Args::absmax.holds(DType::F32, problem.blocks()),
        ]);
        let variants = problem.variants(|width| {
            let def = kernel::Quantize { map, dtype, block_size: block_size as u32, width };
            let rounds = rounds(len, def.elements());
            let grid = plan::cover(op, len, def.elements() * rounds)?;
            let args = kernel::QuantizeArgs {
                x: Args::x.arg(),
                codes: Args::codes.arg(),
                absmax: Args::absmax.arg(),
                n: len as u64,
                rounds,
            };
            grid.map(|grid| plan::launch(op, &def, args, target, grid)).transpose()
        })?;
        Ok(Plan::of(op, Direction::Forward, target, tensors, variants))
    }
}

/// Codes and maxima back to elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DequantizeDynamicDesc {
    /// The tensor.
    pub problem: Problem,
}

tensors! {
    /// Tensors of [`DequantizeDynamicDesc`].
    pub struct DequantizeDynamicArgs<'a> {
        /// u8.
        codes: In,
        /// f32, of each block.
        absmax: In,
        /// The tensor, of the shape of `codes`.
        y: Out,
    }
}

impl Operation for DequantizeDynamicDesc {
    type Args<'a> = DequantizeDynamicArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = DequantizeDynamicArgs<'a>;
        let problem @ Problem { map, dtype, len, block_size } = self.problem;
        let op = op(map, false);
        problem.check(op, "y")?;
        let tensors = Args::specs([
            Args::codes.holds(DType::U8, len),
            Args::absmax.holds(DType::F32, problem.blocks()),
            Args::y.holds(dtype, len).like(Args::codes),
        ]);
        let variants = problem.variants(|width| {
            let def = kernel::Dequantize { map, dtype, width };
            let rounds = rounds(len, def.elements());
            let grid = plan::cover(op, len, def.elements() * rounds)?;
            let args = kernel::DequantizeArgs {
                codes: Args::codes.arg(),
                absmax: Args::absmax.arg(),
                y: Args::y.arg(),
                n: len as u64,
                rounds,
                shift: block_size.trailing_zeros(),
            };
            grid.map(|grid| plan::launch(op, &def, args, target, grid)).transpose()
        })?;
        Ok(Plan::of(op, Direction::Forward, target, tensors, variants))
    }
}
