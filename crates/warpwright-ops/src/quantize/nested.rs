//! Nested statistics ("double quantization"): the block maxima of NF4 and FP4, themselves in 8 bits.
//!
//! `offset = mean(absmax)`; `absmax - offset` is quantized in blocks of [`BLOCK`] to the nearest entry of the signed
//! dynamic map ([`tables::dynamic_map`](super::tables::dynamic_map); Dettmers 2015, arXiv:1511.04561) after division by
//! the largest magnitude of the block. A value is `map[code] * nested_absmax + offset`, product and sum each rounded to
//! f32. The mean is summed in f64, in an order that does not depend on the device.

use warpwright_dsl::WARP;
use warpwright_ptx::{DType, Target};
use warpwright_runtime::Tensor;

use super::{groups, nested_kernel as kernel, tuning};
use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, Variant};
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
        let args = kernel::PartialSumsArgs {
            x: QuantizeNestedArgs::absmax.arg(),
            partial: QuantizeNestedArgs::workspace.arg(),
            n,
        };
        let partial = plan::launch(op, &kernel::PartialSums, args, target, [PARTIALS, 1, 1])?;
        let args = kernel::MeanArgs {
            partial: QuantizeNestedArgs::workspace.written(),
            mean: QuantizeNestedArgs::offset.arg(),
            n,
        };
        let mean = plan::launch(op, &kernel::MeanOfPartials, args, target, [1; 3])?;
        let args = kernel::QuantizeNestedArgs {
            x: QuantizeNestedArgs::absmax.arg(),
            offset: QuantizeNestedArgs::offset.written(),
            codes: QuantizeNestedArgs::codes.arg(),
            absmax: QuantizeNestedArgs::nested_absmax.arg(),
            n,
        };
        let grid = plan::cover(op, groups(len, BLOCK), tuning::THREADS / WARP)?;
        let quantize = plan::launch_over(op, &kernel::QuantizeNested, args, target, grid)?;
        let steps = [partial, mean].into_iter().chain(quantize).collect();
        Ok(Plan::of(op, Direction::Forward, target, tensors, vec![Variant { alignment: 1, steps }]))
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
        let grid = plan::cover(op, len, tuning::THREADS)?;
        let step = plan::launch_over(op, &kernel::DequantizeNested, args, target, grid)?;
        let variants = vec![Variant { alignment: 1, steps: step.into_iter().collect() }];
        Ok(Plan::of(op, Direction::Forward, target, tensors, variants))
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
