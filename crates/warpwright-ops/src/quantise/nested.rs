//! Nested statistics ("double quantisation"): the block maxima of NF4 and FP4, themselves in 8 bits.
//!
//! `offset = mean(absmax)`; `absmax - offset` is quantised in blocks of [`BLOCK`] to the nearest entry of the signed
//! dynamic map ([`tables::dynamic_map`](super::tables::dynamic_map); Dettmers 2015, arXiv:1511.04561) after division by
//! the largest magnitude of the block. A value is `map[code] * nested_absmax + offset`, product and sum each rounded to
//! f32. The mean is summed in f64, in an order that does not depend on the device.

use warpwright_dsl::{In, Out};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Tensor, TensorMut, TensorRef};

use super::{groups, nested_kernel as kernel, step, tuning};
use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{Binding, Operation, Plan, PlanParts, TensorSpec, Variant};

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

/// Tensors of [`QuantizeNestedDesc`].
#[derive(Debug)]
pub struct QuantizeNestedArgs<'a> {
    /// f32, the block maxima.
    pub absmax: TensorRef<'a>,
    /// u8, one a maximum.
    pub codes: TensorMut<'a>,
    /// f32, one for every [`BLOCK`] maxima.
    pub nested_absmax: TensorMut<'a>,
    /// f32, one element: the mean that was subtracted. NaN for an empty input.
    pub offset: TensorMut<'a>,
    /// f64, [`workspace_len`] elements of scratch memory.
    pub workspace: TensorMut<'a>,
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
        let tensors = vec![
            TensorSpec::read("absmax", DType::F32, len),
            TensorSpec::write("codes", DType::U8, len),
            TensorSpec::write("nested_absmax", DType::F32, groups(len, BLOCK)),
            TensorSpec::write("offset", DType::F32, 1),
            TensorSpec::write("workspace", DType::F64, workspace_len()),
        ];
        let whole = (PARTIALS as usize, 1);
        let args = kernel::PartialSumsArgs { x: In::slot(0), partial: Out::slot(4), n };
        let partial = step(op, &kernel::PartialSums, args, target, whole)?;
        let args = kernel::MeanArgs { partial: In::slot(4), mean: Out::slot(3), n };
        let mean = step(op, &kernel::MeanOfPartials, args, target, (1, 1))?;
        let args = kernel::QuantiseNestedArgs {
            x: In::slot(0),
            offset: In::slot(3),
            codes: Out::slot(1),
            absmax: Out::slot(2),
            n,
        };
        let per_block = tuning::THREADS / 32;
        let quantise = step(op, &kernel::QuantiseNested, args, target, (groups(len, BLOCK), per_block))?;
        let steps = [partial, mean, quantise];
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

    fn bind<'a>(args: Self::Args<'a>) -> Vec<Binding<'a>> {
        let outputs = [args.codes, args.nested_absmax, args.offset, args.workspace];
        std::iter::once(Binding::Input(args.absmax)).chain(outputs.into_iter().map(Binding::Output)).collect()
    }
}

/// 8-bit codes to block maxima.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DequantizeNestedDesc {
    /// Number of block maxima.
    pub len: usize,
}

/// Tensors of [`DequantizeNestedDesc`].
#[derive(Debug)]
pub struct DequantizeNestedArgs<'a> {
    /// u8, one a maximum.
    pub codes: TensorRef<'a>,
    /// f32, one for every [`BLOCK`] maxima.
    pub nested_absmax: TensorRef<'a>,
    /// f32, one element.
    pub offset: TensorRef<'a>,
    /// f32, the block maxima.
    pub absmax: TensorMut<'a>,
}

impl Operation for DequantizeNestedDesc {
    type Args<'a> = DequantizeNestedArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let (op, len) = (DEQUANTIZE, self.len);
        let tensors = vec![
            TensorSpec::read("codes", DType::U8, len),
            TensorSpec::read("nested_absmax", DType::F32, groups(len, BLOCK)),
            TensorSpec::read("offset", DType::F32, 1),
            TensorSpec::write("absmax", DType::F32, len),
        ];
        let args = kernel::DequantiseNestedArgs {
            codes: In::slot(0),
            absmax: In::slot(1),
            offset: In::slot(2),
            y: Out::slot(3),
            n: len as u64,
        };
        let step = step(op, &kernel::DequantiseNested, args, target, (len, tuning::THREADS))?;
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

    fn bind<'a>(args: Self::Args<'a>) -> Vec<Binding<'a>> {
        let inputs = [args.codes, args.nested_absmax, args.offset].into_iter().map(Binding::Input);
        inputs.chain([Binding::Output(args.absmax)]).collect()
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
