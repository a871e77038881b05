//! `cross_entropy` as Python functions.

use pyo3::prelude::*;
use warpwright::DType;
use warpwright::cross_entropy::{
    CrossEntropyArgs, CrossEntropyBackwardArgs, CrossEntropyBackwardDesc, CrossEntropyDesc, Reduction,
    check_targets,
};
use warpwright::plan::{PlanCache, Real};

use crate::array::{Array, Site, dtype_given};
use crate::call::{Call, Form, gathered, places, present, statistics_dtype};
use crate::error::{self, unknown};
use crate::indices::known;
use crate::library::{Maybe, Object};

/// The arguments besides the tensors.
struct Options<'a, 'py> {
    ignore_index: i64,
    label_smoothing: f64,
    reduction: &'a str,
    stream: Maybe<'a, 'py>,
}

/// A call with its logits and targets, and what it computes.
struct Started<'py> {
    call: Call<'py>,
    logits: Array<'py>,
    target: Array<'py>,
    desc: CrossEntropyDesc,
}

/// The reduction of that name.
pub(crate) fn reduction_of(py: Python<'_>, op: &'static str, name: &str) -> PyResult<Reduction> {
    match name {
        "none" => Ok(Reduction::None),
        "mean" => Ok(Reduction::Mean),
        "sum" => Ok(Reduction::Sum),
        other => Err(unknown(py, op, ("reduction", other), "'none', 'mean' or 'sum'")),
    }
}

/// The classes of rows; where they are known, each is a class or the one that is ignored.
pub(crate) fn targets<'py>(
    call: &Call<'py>,
    target: &Object<'py>,
    [rows, classes]: [usize; 2],
    ignore_index: i64,
) -> PyResult<Array<'py>> {
    let target = call.read(("target", target))?;
    target.expect_shape(&[rows])?;
    let target = call.row_major(target)?;
    if matches!(target.dtype, DType::I32 | DType::I64)
        && let Some(numbers) = known(&target, call.stream())?
    {
        check_targets(&numbers, classes, ignore_index).map_err(|e| call.raise(e))?;
    }
    Ok(target)
}

fn start<'py>(
    op: &'static str,
    [logits, target]: [&Object<'py>; 2],
    o: &Options<'_, 'py>,
) -> PyResult<Started<'py>> {
    let py = logits.py();
    let reduction = reduction_of(py, op, o.reduction)?;
    let (call, logits) = Call::new(op, ("logits", logits), o.stream)?;
    let logits = call.row_major(logits)?;
    let [rows, classes] = *logits.shape else {
        return Err(error::shape(py, op, "logits", &[0, 0], &logits.shape));
    };
    let target = targets(&call, target, [rows, classes], o.ignore_index)?;
    let desc = CrossEntropyDesc {
        ignore_index: o.ignore_index,
        label_smoothing: Real::new(o.label_smoothing),
        reduction,
        ..CrossEntropyDesc::new(logits.dtype, target.dtype, [rows, classes])
    };
    Ok(Started { call, logits, target, desc })
}

/// The shape of the losses.
fn losses(desc: &CrossEntropyDesc) -> Vec<usize> {
    if desc.reduction == Reduction::None { vec![desc.rows] } else { Vec::new() }
}

/// The negative log-likelihood of the classes `target` under the softmax of the rows of `logits`.
///
/// logits: float32, float64, float16 or bfloat16, [rows, classes]; target: int64 or int32, [rows]. A row whose target is
/// `ignore_index` does not count; one that is neither a class nor that is refused on the host and gives NaN on a GPU, see
/// `validate_indices`. label_smoothing: the share of the target distribution that is spread over all classes.
/// reduction: "mean" over the rows that count, "sum" or "none". The result has the dtype of logits, or `dtype`: float32 for float16 or
/// bfloat16 logits, as if they were converted before. With `statistics` it is the first of a tuple with the log-sum-exp of each row, the
/// negative log-likelihood of its target without smoothing and, of a mean, the number of rows that count, for `cross_entropy_backward`,
/// and so is `out`.
#[pyfunction]
#[pyo3(signature = (logits, target, *, ignore_index=-100, label_smoothing=0.0, reduction="mean", dtype=None, statistics=false, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn cross_entropy<'py>(
    logits: &Object<'py>,
    target: &Object<'py>,
    ignore_index: i64,
    label_smoothing: f64,
    reduction: &str,
    dtype: Maybe<'_, 'py>,
    statistics: bool,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<CrossEntropyDesc> = PlanCache::new();
    const OP: &str = "cross_entropy";
    let options = Options { ignore_index, label_smoothing, reduction, stream };
    let Started { call, logits, target, mut desc } = start(OP, [logits, target], &options)?;
    if let Some(dtype) = dtype {
        desc.loss = dtype_given(dtype, Site { op: OP, argument: "dtype" })?;
    }
    let plan = call.plan(&PLANS, &desc)?;
    let mean = desc.reduction == Reduction::Mean;
    let out = places(OP, out, [true, statistics, statistics, statistics && mean])?;
    let [first, second, third, fourth] = out.each_ref().map(Option::as_ref);
    let (shape, wide) = (losses(&desc), statistics_dtype(desc.dtype));
    let outputs = [
        Some(call.output(("out", first), &logits, Form::RowMajor(desc.loss, &shape))?),
        Some(call.output(("out", second), &logits, Form::RowMajor(wide, &[desc.rows]))?),
        Some(call.output(("out", third), &logits, Form::RowMajor(wide, &[desc.rows]))?),
        call.optional_output(mean, ("out", fourth), &logits, Form::RowMajor(wide, &[]))?,
        call.workspace(&plan, &logits)?,
    ];
    let inputs = [Some(&logits), Some(&target)];
    let [loss, lse, nll, count, _] =
        call.run_some(inputs, outputs, move |stream, [logits, target], outputs| {
            let [loss, lse, nll, count, workspace] = outputs;
            let (logits, target) = (present(logits), present(target));
            let [loss, lse, nll] = [loss, lse, nll].map(present);
            Ok(plan.launch(stream, CrossEntropyArgs { logits, target, loss, lse, nll, count, workspace })?)
        })?;
    let saved = |statistic: Option<Object<'py>>| statistic.filter(|_| statistics);
    gathered(logits.object.py(), [loss, saved(lse), saved(nll), saved(count)])
}

/// The gradient of `cross_entropy` with respect to the logits.
///
/// logits, target, ignore_index, label_smoothing, reduction: as in the forward pass; lse, nll, count: as it saved them (count of
/// a mean only); dloss: the gradient of its result. The result has the shape and dtype of logits; `out` may be `logits`.
#[pyfunction]
#[pyo3(signature = (logits, target, lse, nll, dloss, count=None, *, ignore_index=-100, label_smoothing=0.0, reduction="mean", out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn cross_entropy_backward<'py>(
    logits: &Object<'py>,
    target: &Object<'py>,
    lse: &Object<'py>,
    nll: &Object<'py>,
    dloss: &Object<'py>,
    count: Maybe<'_, 'py>,
    ignore_index: i64,
    label_smoothing: f64,
    reduction: &str,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<CrossEntropyBackwardDesc> = PlanCache::new();
    const OP: &str = "cross_entropy_backward";
    let options = Options { ignore_index, label_smoothing, reduction, stream };
    let Started { call, logits, target, mut desc } = start(OP, [logits, target], &options)?;
    let wide = statistics_dtype(desc.dtype);
    let lse = call.small(("lse", lse), wide, &[desc.rows])?;
    let nll = call.small(("nll", nll), wide, &[desc.rows])?;
    let dloss = call.read(("dloss", dloss))?;
    if dloss.dtype == wide {
        desc.loss = wide;
    }
    dloss.expect_dtype(desc.loss)?;
    dloss.expect_shape(&losses(&desc))?;
    let dloss = call.row_major(dloss)?;
    let count = call.optional(("count", count), wide, &[])?;
    let plan = call.plan(&PLANS, &CrossEntropyBackwardDesc { forward: desc })?;
    let outputs = [Some(call.output(("out", out), &logits, Form::RowMajor(logits.dtype, &logits.shape))?)];
    let inputs = [Some(&logits), Some(&target), Some(&lse), Some(&nll), Some(&dloss), count.as_ref()];
    let [dlogits] = call.run_some(inputs, outputs, move |stream, inputs, [dlogits]| {
        let [logits, target, lse, nll, dloss, count] = inputs;
        let [target, lse, nll, dloss] = [target, lse, nll, dloss].map(present);
        let dlogits = present(dlogits);
        let args = CrossEntropyBackwardArgs { logits, target, lse, nll, dloss, count, dlogits };
        Ok(plan.launch(stream, args)?)
    })?;
    gathered(logits.object.py(), [dlogits])
}
