//! Primitives by name: from what the command line says to a plan.

use warpwright_ops::activation::{
    Activation, ActivationBackwardDesc, ActivationDesc, GatedActivation, GatedBackwardDesc, GatedDesc,
};
use warpwright_ops::attention::{AttentionBackwardDesc, AttentionDesc, AttentionOptions};
use warpwright_ops::batch_norm::{
    BatchNorm, BatchNormBackwardDesc, BatchNormDesc, BatchNormEvaluationBackwardDesc,
    BatchNormEvaluationDesc, Layout,
};
use warpwright_ops::cross_entropy::{CrossEntropyBackwardDesc, CrossEntropyDesc, Reduction};
use warpwright_ops::gemm::GemmDesc;
use warpwright_ops::group_norm::{GroupNormBackwardDesc, GroupNormDesc, GroupShape};
use warpwright_ops::layer_norm::{RowNorm, RowNormBackwardDesc, RowNormDesc};
use warpwright_ops::local_response_norm::{
    Coefficients, LocalResponseNormBackwardDesc, LocalResponseNormDesc,
};
use warpwright_ops::plan::{Real, TensorSpec, Variant};
use warpwright_ops::quantise::nested::{DequantizeNestedDesc, QuantizeNestedDesc};
use warpwright_ops::quantise::{DequantizeDesc, NibbleOrder, QuantizeDesc, Scheme};
use warpwright_ops::recurrent::{
    Biases, Cell, CellBackwardDesc, CellDesc, RecurrentBackwardDesc, RecurrentDesc,
};
use warpwright_ops::softmax::{Softmax, SoftmaxBackwardDesc, SoftmaxDesc};
use warpwright_ops::{Direction, Operation, Plan, PlanError};
use warpwright_ptx::{DType, Target};

/// What to plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) op: &'a str,
    pub(super) direction: Direction,
    pub(super) dtype: DType,
    pub(super) target: Target,
    pub(super) elements: usize,
    pub(super) group_size: usize,
}

/// A plan without the type of its descriptor.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) tensors: Vec<TensorSpec>,
    pub(super) variants: Vec<Variant>,
}

impl Planned {
    /// Bytes that have to move: every tensor once, scratch memory not at all.
    pub(super) fn bytes(&self) -> u64 {
        let traffic = self.tensors.iter().filter(|tensor| tensor.name != "workspace");
        traffic.map(|tensor| (tensor.len * tensor.dtype.bytes()) as u64).sum()
    }
}

impl<O: Operation> From<Plan<O>> for Planned {
    fn from(plan: Plan<O>) -> Self {
        Self { tensors: plan.tensors().to_vec(), variants: plan.variants().to_vec() }
    }
}

/// An image of about `len` elements as convolutional networks normalise them: 512 channels of 64 x 64 pixels in 32 groups
/// for large ones.
fn group_shape(len: usize) -> GroupShape {
    let (channels, groups) = if len < 1 << 20 { (32, 8) } else { (512, 32) };
    let spatial = (len / channels).clamp(1, 4096);
    let batch = (len / (channels * spatial)).max(1);
    GroupShape { batch, channels, spatial, groups, layout: Layout::ChannelsFirst }
}

/// Elements of a row that is normalised.
const ROW: usize = 4096;
/// Places and channels of an image that is normalised across channels.
const PLACES: usize = 55 * 55;
const CHANNELS: usize = 96;

/// Plans a primitive.
pub(super) fn plan(request: &Request<'_>) -> Result<Planned, PlanError> {
    let Request { op, direction, dtype, target, elements: len, group_size } = *request;
    let backward = direction == Direction::Backward;
    if let Some(activation) = Activation::from_name(op) {
        return if backward {
            ActivationBackwardDesc { activation, dtype, len }.plan(target).map(Into::into)
        } else {
            ActivationDesc { activation, dtype, len }.plan(target).map(Into::into)
        };
    }
    if let Some(activation) = GatedActivation::from_name(op) {
        return if backward {
            GatedBackwardDesc { activation, dtype, len }.plan(target).map(Into::into)
        } else {
            GatedDesc { activation, dtype, len }.plan(target).map(Into::into)
        };
    }
    if op.starts_with("batch_norm") {
        // Square images of 64 channels.
        let norm =
            BatchNorm::new(dtype, Layout::ChannelsFirst, (len >> 18).max(1), 64, (len >> 6).clamp(2, 4096));
        return match (op, backward) {
            ("batch_norm", false) => {
                BatchNormDesc { norm, residual: false, momentum: None }.plan(target).map(Into::into)
            }
            ("batch_norm", true) => {
                BatchNormBackwardDesc { norm, dresidual: false }.plan(target).map(Into::into)
            }
            ("batch_norm_evaluation", false) => {
                BatchNormEvaluationDesc { norm, residual: false }.plan(target).map(Into::into)
            }
            ("batch_norm_evaluation", true) => {
                BatchNormEvaluationBackwardDesc { norm, dresidual: false }.plan(target).map(Into::into)
            }
            _ => Err(PlanError::UnknownOperation { name: format!("{op} ({direction})") }),
        };
    }
    if op == "gemm" && !backward {
        // Square matrices.
        let side = (len / 3).isqrt().max(1);
        return GemmDesc::new(dtype, [side; 3], false, true).plan(target).map(Into::into);
    }
    if let Some(cell) = Cell::ALL.into_iter().find(|cell| cell.op() == op) {
        let (batch, input, hidden) = (1, 64, 64);
        let steps = (len / hidden).clamp(1, 1024);
        let forward = RecurrentDesc::new(cell, dtype, [steps, batch, input, hidden]);
        let forward = RecurrentDesc { h0: true, c0: cell.has_c(), training: backward, ..forward };
        return if backward {
            let (dy, dh_n, dc_n, dx) = (true, false, false, true);
            RecurrentBackwardDesc { forward, dy, dh_n, dc_n, dx }.plan(target).map(Into::into)
        } else {
            forward.plan(target).map(Into::into)
        };
    }
    if let Some(cell) = Cell::ALL.into_iter().find(|cell| cell.cell_op() == op) {
        let (batch, hidden, biases) = (1, len.isqrt().clamp(1, 4096), Biases::Two);
        let input = hidden;
        let forward = CellDesc { cell, dtype, batch, input, hidden, biases, training: backward };
        return if backward {
            CellBackwardDesc { forward, dc_next: false }.plan(target).map(Into::into)
        } else {
            forward.plan(target).map(Into::into)
        };
    }
    if op == "group_norm" {
        let shape = group_shape(len);
        return if backward {
            let (weight, bias, dweight, dbias) = (true, true, true, true);
            let desc = GroupNormBackwardDesc { dtype, shape, weight, bias, silu: false, dweight, dbias };
            desc.plan(target).map(Into::into)
        } else {
            let (weight, bias, silu, statistics) = (true, true, false, true);
            let eps = 1e-5.into();
            GroupNormDesc { dtype, shape, weight, bias, silu, statistics, eps }.plan(target).map(Into::into)
        };
    }
    if let Some(norm) = RowNorm::from_name(op) {
        let row = len.clamp(1, ROW);
        let (rows, bias) = (len / row, norm == RowNorm::Layer);
        return if backward {
            let desc = RowNormBackwardDesc { norm, dtype, rows, len: row, weight: true, bias, dz: false };
            desc.plan(target).map(Into::into)
        } else {
            let eps = Real::new(norm.default_eps(dtype));
            let (weight, residual, statistics) = (true, false, false);
            let desc = RowNormDesc { norm, dtype, rows, len: row, eps, weight, bias, residual, statistics };
            desc.plan(target).map(Into::into)
        };
    }
    if op == "local_response_norm" {
        let spatial = len.clamp(1, PLACES);
        let channels = (len / spatial).clamp(1, CHANNELS);
        let (images, coefficients) = (len / spatial / channels, Coefficients::default());
        let forward = LocalResponseNormDesc { dtype, images, channels, spatial, size: 5, coefficients };
        return if backward {
            LocalResponseNormBackwardDesc { forward }.plan(target).map(Into::into)
        } else {
            forward.plan(target).map(Into::into)
        };
    }
    if op == "attention" {
        // Heads of 128 elements, 16 of them where there is room.
        let (head_dim, heads) = (128, (len >> 17).clamp(1, 16));
        let rows = (len / (head_dim * heads)).max(1);
        let layout = warpwright_ops::plan::Layout::contiguous([1, rows, heads, head_dim]);
        let options = AttentionOptions::default();
        let forward = AttentionDesc { dtype, q: layout, k: layout, v: layout, o: layout, options };
        return if backward {
            let (dbias, dsinks) = (false, false);
            let desc = AttentionBackwardDesc {
                forward,
                dy: layout,
                dq: layout,
                dk: layout,
                dv: layout,
                dbias,
                dsinks,
            };
            desc.plan(target).map(Into::into)
        } else {
            forward.plan(target).map(Into::into)
        };
    }
    if op == "cross_entropy" {
        let (classes, target_type) = (len.clamp(1, ROW), DType::I64);
        let (rows, ignore_index) = (len / classes, -100);
        let (label_smoothing, reduction) = (Real::new(0.0), Reduction::Mean);
        let forward = CrossEntropyDesc {
            dtype,
            target: target_type,
            rows,
            classes,
            ignore_index,
            label_smoothing,
            reduction,
        };
        return if backward {
            CrossEntropyBackwardDesc { forward }.plan(target).map(Into::into)
        } else {
            forward.plan(target).map(Into::into)
        };
    }
    if let Some(function) = Softmax::from_name(op) {
        let n = len.clamp(1, ROW);
        let (outer, inner, scale) = (len / n, 1, Real::new(1.0));
        return if backward {
            SoftmaxBackwardDesc { function, dtype, outer, n, inner, scale }.plan(target).map(Into::into)
        } else {
            SoftmaxDesc { function, dtype, outer, n, inner, scale }.plan(target).map(Into::into)
        };
    }
    let scheme = |name: &str| Scheme::ALL.into_iter().find(|scheme| scheme.name() == name);
    let order = |scheme| match scheme {
        Scheme::Nf4 | Scheme::Fp4 => NibbleOrder::HighFirst,
        _ => NibbleOrder::LowFirst,
    };
    match op {
        _ if backward => {}
        "quantize_nested" => return QuantizeNestedDesc { len }.plan(target).map(Into::into),
        "dequantize_nested" => return DequantizeNestedDesc { len }.plan(target).map(Into::into),
        _ => {
            if let Some(scheme) = op.strip_prefix("quantize_").and_then(scheme) {
                let order = order(scheme);
                return QuantizeDesc { scheme, dtype, group_size, order, len }.plan(target).map(Into::into);
            }
            if let Some(scheme) = op.strip_prefix("dequantize_").and_then(scheme) {
                let order = order(scheme);
                return DequantizeDesc { scheme, dtype, group_size, order, len }.plan(target).map(Into::into);
            }
        }
    }
    Err(PlanError::UnknownOperation { name: format!("{op} ({direction})") })
}

#[cfg(test)]
mod tests {
    use warpwright_ops::catalogue;

    use super::*;

    #[test]
    fn every_primitive_of_the_catalogue_has_a_plan_by_its_name() {
        for entry in catalogue() {
            for &dtype in entry.dtypes {
                let request = Request {
                    op: entry.op,
                    direction: entry.direction,
                    dtype,
                    target: Target::sm(90),
                    elements: 1000,
                    group_size: 64,
                };
                let planned = plan(&request).unwrap();
                assert!(
                    planned.bytes() > 0 && !planned.variants.is_empty(),
                    "{} {}",
                    entry.op,
                    entry.direction
                );
            }
        }
    }

    #[test]
    fn unknown_names_are_errors() {
        for (op, direction) in
            [("gelu", Direction::Forward), ("quantize_nf4", Direction::Backward), ("", Direction::Forward)]
        {
            let request = Request {
                op,
                direction,
                dtype: DType::F32,
                target: Target::sm(90),
                elements: 1,
                group_size: 64,
            };
            assert!(matches!(plan(&request), Err(PlanError::UnknownOperation { .. })), "{op}");
        }
    }
}
