//! Nested statistics ("double quantization"): the block maxima of NF4 and FP4, themselves in 8 bits.
//!
//! `offset = mean(absmax)`; `absmax - offset` is quantized in blocks of [`BLOCK`] to the nearest entry of the signed
//! dynamic map ([`tables::dynamic_map`](super::tables::dynamic_map); Dettmers 2015, arXiv:1511.04561) after division by
//! the largest magnitude of the block. A value is `map[code] * nested_absmax + offset`, product and sum each rounded to
//! f32. The mean is summed in f64, in an order that does not depend on the device.

use warpwright_ptx::{DType, Target};
use warpwright_runtime::Tensor;

use super::{groups, nested_kernel as kernel, step, tuning};
use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{Operation, Plan, PlanParts, Variant};
use crate::tensors::tensors;

/// Values that share a nested maximum.
pub const BLOCK: usize = 256;

/// Partial sums of the mean: one per block of the first launch.
pub(super) const PARTIALS: u32 = 128;

pub(super) const QUANTIZE: &str = "quantize_nested";
pub(super) const DEQUANTIZE: &str = "dequantize_nested";

/// Block maxima to 8-bit codes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QuantizeNestedDesc {
    /// Number of block maxima.
    pub len: usize,
}

tensors! {
    /// Tensors of [`QuantizeNestedDesc`].
    pub struct QuantizeNestedArgs<'a> {
        /// f32, the block maxima.
        absmax: In,
        /// u8, one a maximum.
        codes: Out,
        /// f32, one for every [`BLOCK`] maxima.
        nested_absmax: Out,
        /// f32, one element: the mean that was subtracted. NaN for an empty input.
        offset: Out,
        /// f64, [`workspace_len`] elements of scratch memory.
        workspace: Out,
    }
}

/// Elements of the workspace of [`QuantizeNestedDesc`].
pub const fn workspace_len() -> usize {
    PARTIALS as usize
}

impl Operation for QuantizeNestedDesc {
    type Args<'a> = QuantizeNestedArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let (op, len) = (QUANTIZE, self.len);
        let n = len as u64;
        let tensors = QuantizeNestedArgs::specs([
            QuantizeNestedArgs::absmax.holds(DType::F32, len),
            QuantizeNestedArgs::codes.holds(DType::U8, len),
            QuantizeNestedArgs::nested_absmax.holds(DType::F32, groups(len, BLOCK)),
            QuantizeNestedArgs::offset.holds(DType::F32, 1),
            QuantizeNestedArgs::workspace.holds(DType::F64, workspace_len()),
        ]);
        let whole = (PARTIALS as usize, 1);
        let args = kernel::PartialSumsArgs {
            x: QuantizeNestedArgs::absmax.arg(),
            partial: QuantizeNestedArgs::workspace.arg(),
            n,
        };
        let partial = step(op, &kernel::PartialSums, args, target, whole)?;
        let args = kernel::MeanArgs {
            partial: QuantizeNestedArgs::workspace.written(),
            mean: QuantizeNestedArgs::offset.arg(),
            n,
        };
        let mean = step(op, &kernel::MeanOfPartials, args, target, (1, 1))?;
        let args = kernel::QuantizeNestedArgs {
            x: QuantizeNestedArgs::absmax.arg(),
            offset: QuantizeNestedArgs::offset.written(),
            codes: QuantizeNestedArgs::codes.arg(),
            absmax: QuantizeNestedArgs::nested_absmax.arg(),
            n,
        };
        let per_block = tuning::THREADS / 32;
        let quantize = step(op, &kernel::QuantizeNested, args, target, (groups(len, BLOCK), per_block))?;
        let steps = [partial, mean, quantize];
        let variants = vec![Variant { alignment: 1, steps: steps.into_iter().flatten().collect() }];
        let workspace_bytes = (workspace_len() * DType::F64.bytes()) as u64;
        Ok(Plan::new(PlanParts {
            op,
            direction: Direction::Forward,
            target,
            tensors,
            variants,
            workspace_bytes,
        }))
    }
}

/// 8-bit codes to block maxima.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DequantizeNestedDesc {
    /// Number of block maxima.
    pub len: usize,
}

tensors! {
    /// Tensors of [`DequantizeNestedDesc`].
    pub struct DequantizeNestedArgs<'a> {
        /// u8, one a maximum.
        codes: In,
        /// f32, one for every [`BLOCK`] maxima.
        nested_absmax: In,
        /// f32, one element.
        offset: In,
        /// f32, the block maxima.
        absmax: Out,
    }
}

impl Operation for DequantizeNestedDesc {
    type Args<'a> = DequantizeNestedArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let (op, len) = (DEQUANTIZE, self.len);
        let tensors = DequantizeNestedArgs::specs([
            DequantizeNestedArgs::codes.holds(DType::U8, len),
            DequantizeNestedArgs::nested_absmax.holds(DType::F32, groups(len, BLOCK)),
            DequantizeNestedArgs::offset.holds(DType::F32, 1),
            DequantizeNestedArgs::absmax.holds(DType::F32, len),
        ]);
        let args = kernel::DequantizeNestedArgs {
            codes: DequantizeNestedArgs::codes.arg(),
            absmax: DequantizeNestedArgs::nested_absmax.arg(),
            offset: DequantizeNestedArgs::offset.arg(),
            y: DequantizeNestedArgs::absmax.arg(),
            n: len as u64,
        };
        let step = step(op, &kernel::DequantizeNested, args, target, (len, tuning::THREADS))?;
        let variants = vec![Variant { alignment: 1, steps: step.into_iter().collect() }];
        Ok(Plan::new(PlanParts {
            op,
            direction: Direction::Forward,
            target,
            tensors,
            variants,
            workspace_bytes: 0,
        }))
    }
}

/// Nested statistics on a device.
#[derive(Debug)]
pub struct QuantizedNested {
    /// u8, one a block maximum.
    pub codes: Tensor,
    /// f32, one for every [`BLOCK`] maxima.
    pub nested_absmax: Tensor,
    /// f32, one element.
    pub offset: Tensor,
}
