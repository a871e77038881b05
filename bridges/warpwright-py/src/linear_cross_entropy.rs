//! `linear_cross_entropy` as a Python function.

use pyo3::prelude::*;
use warpwright::cross_entropy::Reduction;
use warpwright::linear_cross_entropy::{LinearCrossEntropyArgs, LinearCrossEntropyDesc};
use warpwright::plan::{PlanCache, Real};

use crate::call::{Call, Form, gathered, places, present, statistics_dtype};
use crate::cross_entropy::{reduction_of, targets};
use crate::error;
use crate::library::{Maybe, Object};

/// `cross_entropy(x @ weight.T + bias, target)`, with the logits of a part of the rows in memory at a time.
///
/// x: float32, float64, float16 or bfloat16, [rows, features]; weight: [classes, features]; bias: [classes], both of the dtype of x;
/// target: int64 or int32, [rows]. ignore_index, label_smoothing, reduction: as in `cross_entropy`. chunk_rows: rows of logits that are in
/// memory at a time; None leaves it to the library. The result is float32, or float64 for float64; with `gradients` it is the first of a
/// tuple with the gradients of x, weight and, if there is one, bias, for a gradient 1 of the loss, which must be reduced then, and so is
/// `out`.
#[pyfunction]
#[pyo3(signature = (x, weight, target, bias=None, *, ignore_index=-100, label_smoothing=0.0, reduction="mean", gradients=false, chunk_rows=None, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn linear_cross_entropy<'py>(
    x: &Object<'py>,
    weight: &Object<'py>,
    target: &Object<'py>,
    bias: Maybe<'_, 'py>,
    ignore_index: i64,
    label_smoothing: f64,
    reduction: &str,
    gradients: bool,
    chunk_rows: Option<usize>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<LinearCrossEntropyDesc> = PlanCache::new();
    const OP: &str = "linear_cross_entropy";
    let py = x.py();
    let reduction = reduction_of(py, OP, reduction)?;
    let (call, x) = Call::new(OP, ("x", x), stream)?;
    let x = call.row_major(x)?;
    let [rows, features] = *x.shape else {
        return Err(error::shape(py, OP, "x", &[0, 0], &x.shape));
    };
    let weight = call.row_major(call.read(("weight", weight))?)?;
    let [classes, _] = *weight.shape else {
        return Err(error::shape(py, OP, "weight", &[0, features], &weight.shape));
    };
    weight.expect_dtype(x.dtype)?;
    weight.expect_shape(&[classes, features])?;
    let bias = call.optional(("bias", bias), x.dtype, &[classes])?;
    let target = targets(&call, target, [rows, classes], ignore_index)?;
    let desc = LinearCrossEntropyDesc {
        bias: bias.is_some(),
        ignore_index,
        label_smoothing: Real::new(label_smoothing),
        reduction,
        gradients,
        chunk_rows,
        ..LinearCrossEntropyDesc::new(x.dtype, target.dtype, [rows, features, classes])
    };
    let plan = call.plan(&PLANS, &desc)?;
    let with_bias = gradients && bias.is_some();
    let out = places(OP, out, [true, gradients, gradients, with_bias])?;
    let [first, second, third, fourth] = out.each_ref().map(Option::as_ref);
    let each = [rows];
    let losses: &[usize] = if reduction == Reduction::None { &each } else { &[] };
    let like = |shape| Form::RowMajor(x.dtype, shape);
    let outputs = [
        Some(call.output(("out", first), &x, Form::RowMajor(statistics_dtype(x.dtype), losses))?),
        call.optional_output(gradients, ("out", second), &x, like(&x.shape))?,
        call.optional_output(gradients, ("out", third), &x, like(&weight.shape))?,
        call.optional_output(with_bias, ("out", fourth), &x, like(&[classes]))?,
        call.workspace(&plan, &x)?,
    ];
    let inputs = [Some(&x), Some(&weight), bias.as_ref(), Some(&target)];
    let [loss, dx, dweight, dbias, _] =
        call.run_some(inputs, outputs, move |stream, [x, weight, bias, target], outputs| {
            let [loss, dx, dweight, dbias, workspace] = outputs;
            let [x, weight, target] = [x, weight, target].map(present);
            let loss = present(loss);
            let args =
                LinearCrossEntropyArgs { x, weight, bias, target, loss, dx, dweight, dbias, workspace };
            Ok(plan.launch(stream, args)?)
        })?;
    gathered(py, [loss, dx, dweight, dbias])
}
