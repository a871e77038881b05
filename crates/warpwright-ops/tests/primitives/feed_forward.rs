//! The counters of products with activations and gated units beside them.

use warpwright_ops::Operation;
use warpwright_ops::activation::{Activation, GatedActivation};
use warpwright_ops::gemm::{
    ActivationLinearBackwardDesc, GatedActivationLinearBackwardDesc, GatedLinearDesc, LinearActivationDesc,
};
use warpwright_ptx::DType;
use warpwright_runtime::Counters;

use crate::counters::{TARGET, count};

/// Products with activations, and with gated units, in the same launch.
pub(crate) fn count_all(add: &mut dyn FnMut(&str, &str, Counters)) {
    let (dtype, rows, in_features, out_features) = (DType::BF16, 128, 64, 64);
    let unit = GatedLinearDesc {
        dtype,
        rows,
        in_features,
        out_features,
        activation: GatedActivation::Swiglu,
        bias: false,
        saved: false,
    };
    let plan = unit.plan(TARGET).expect("plan");
    add(plan.op(), "forward", count(&plan));
    let plan = GatedLinearDesc { bias: true, saved: true, ..unit }.plan(TARGET).expect("plan");
    add("gated_linear of both factors", "forward", count(&plan));
    let (activation, bias) = (Activation::GeluErf, true);
    let (out_features, transpose_b) = (128, true);
    let layer =
        LinearActivationDesc { dtype, rows, in_features, out_features, transpose_b, bias, activation };
    let plan = layer.plan(TARGET).expect("plan");
    add(plan.op(), "forward", count(&plan));
    let (in_features, out_features, transpose_b) = (128, 64, false);
    let layer =
        ActivationLinearBackwardDesc { dtype, rows, in_features, out_features, transpose_b, activation };
    let plan = layer.plan(TARGET).expect("plan");
    add(plan.op(), "backward", count(&plan));
    let activation = GatedActivation::Swiglu;
    let layer =
        GatedActivationLinearBackwardDesc { dtype, rows, in_features, out_features, transpose_b, activation };
    let plan = layer.plan(TARGET).expect("plan");
    add(plan.op(), "backward", count(&plan));
}
