//! `group_norm` and `instance_norm` as Python functions.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use warpwright::group_norm::{
    GroupNormArgs, GroupNormBackwardArgs, GroupNormBackwardDesc, GroupNormDesc, GroupShape, Layout,
};
use warpwright::plan::{PlanCache, Real};

use crate::array::{Array, count};
use crate::call::{Call, Form, gathered, places, present, several, statistics_dtype};
use crate::images::image;
use crate::library::{Maybe, Object};

/// The arguments of `group_norm` besides `x`.
struct Group<'a, 'py> {
    groups: Option<usize>,
    weight: Maybe<'a, 'py>,
    bias: Maybe<'a, 'py>,
    silu: bool,
    stream: Maybe<'a, 'py>,
    /// Whether the gradients of weight and bias are wanted.
    gradients: [bool; 2],
}

/// A call with its image and parameters, and what both passes know.
struct Started<'py> {
    call: Call<'py>,
    x: Array<'py>,
    shape: GroupShape,
    weight: Option<Array<'py>>,
    bias: Option<Array<'py>>,
}

fn start<'py>(op: &'static str, x: &Object<'py>, g: &Group<'_, 'py>) -> PyResult<Started<'py>> {
    let (call, x, [batch, channels, spatial], last) = image(op, x, g.stream)?;
    let layout = if last { Layout::ChannelsLast } else { Layout::ChannelsFirst };
    let shape = GroupShape { batch, channels, spatial, groups: g.groups.unwrap_or(channels), layout };
    let weight = call.optional(("weight", g.weight), x.dtype, &[channels])?;
    let bias = call.optional(("bias", g.bias), x.dtype, &[channels])?;
    Ok(Started { call, x, shape, weight, bias })
}

fn group_forward<'py>(
    op: &'static str,
    x: &Object<'py>,
    g: &Group<'_, 'py>,
    eps: f64,
    statistics: bool,
    out: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<GroupNormDesc> = PlanCache::new();
    let Started { call, x, shape, weight, bias } = start(op, x, g)?;
    let desc = GroupNormDesc {
        dtype: x.dtype,
        shape,
        weight: weight.is_some(),
        bias: bias.is_some(),
        silu: g.silu,
        statistics,
        eps: Real::new(eps),
    };
    let plan = call.plan(&PLANS, &desc)?;
    let out = places(op, out, [true, statistics, statistics])?;
    let [y, m, r] = out.each_ref().map(Option::as_ref);
    let saved_shape = [shape.batch, shape.groups];
    let saved = Form::RowMajor(statistics_dtype(x.dtype), &saved_shape);
    let outputs = [
        Some(call.output(("out", y), &x, Form::Like)?),
        call.optional_output(statistics, ("out", m), &x, saved)?,
        call.optional_output(statistics, ("out", r), &x, saved)?,
        call.workspace(&plan, &x)?,
    ];
    let inputs = [Some(&x), weight.as_ref(), bias.as_ref()];
    let [y, mean, rstd, _] = call.run_some(inputs, outputs, move |stream, inputs, outputs| {
        let ([x, weight, bias], [y, mean, rstd, workspace]) = (inputs, outputs);
        let (x, y) = (present(x), present(y));
        Ok(plan.launch(stream, GroupNormArgs { x, weight, bias, y, mean, rstd, workspace })?)
    })?;
    gathered(x.object.py(), [y, mean, rstd])
}

fn group_backward<'py>(
    op: &'static str,
    x: &Object<'py>,
    [dy, mean, rstd]: [&Object<'py>; 3],
    g: &Group<'_, 'py>,
    out: Maybe<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    static PLANS: PlanCache<GroupNormBackwardDesc> = PlanCache::new();
    let Started { call, x, shape, weight, bias } = start(op, x, g)?;
    let (dweight, dbias) = (weight.is_some() && g.gradients[0], bias.is_some() && g.gradients[1]);
    let dy = call.twin(("dy", dy), &x)?;
    let saved = (statistics_dtype(x.dtype), [shape.batch, shape.groups]);
    let mean = call.small(("mean", mean), saved.0, &saved.1)?;
    let rstd = call.small(("rstd", rstd), saved.0, &saved.1)?;
    let desc = GroupNormBackwardDesc {
        dtype: x.dtype,
        shape,
        weight: weight.is_some(),
        bias: bias.is_some(),
        silu: g.silu,
        dweight,
        dbias,
    };
    let plan = call.plan(&PLANS, &desc)?;
    let out = several::<3>(op, out)?;
    let [dx, dw, db] = out.each_ref().map(Option::as_ref);
    let channels = [shape.channels];
    let parameter = Form::RowMajor(x.dtype, &channels);
    let outputs = [
        Some(call.output(("out[0]", dx), &x, Form::Like)?),
        call.optional_output(dweight, ("out[1]", dw), &x, parameter)?,
        call.optional_output(dbias, ("out[2]", db), &x, parameter)?,
        call.workspace(&plan, &x)?,
    ];
    let inputs = [Some(&x), Some(&dy), weight.as_ref(), bias.as_ref(), Some(&mean), Some(&rstd)];
    let silu = g.silu;
    let [dx, dweight, dbias, _] = call.run_some(inputs, outputs, move |stream, inputs, outputs| {
        let ([x, dy, weight, bias, mean, rstd], [dx, dweight, dbias, workspace]) = (inputs, outputs);
        // Only silu needs the bias again.
        let bias = bias.filter(|_| silu);
        let (x, dy, mean, rstd, dx) = (present(x), present(dy), present(mean), present(rstd), present(dx));
        let args = GroupNormBackwardArgs { x, dy, weight, bias, mean, rstd, dx, dweight, dbias, workspace };
        Ok(plan.launch(stream, args)?)
    })?;
    PyTuple::new(x.object.py(), [dx, dweight, dbias])
}

/// `(x - mean) / sqrt(variance + eps) weight + bias` over groups of channels, then `silu` if it is wanted.
///
/// x: float32, float64, float16 or bfloat16, [N, C, ...]; groups: a divisor of C; weight, bias: [C] of its dtype, or None.
/// statistics: whether mean and 1 / sqrt(variance + eps) are returned too, [N, groups] of float32 (float64 for float64),
/// for `group_norm_backward`. The result has the shape and dtype of x, and its memory format if that is PyTorch's
/// channels-last; with statistics it is the first of three, and so is `out`.
#[pyfunction]
#[pyo3(signature = (x, groups, weight=None, bias=None, eps=1e-5, *, silu=false, statistics=false, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn group_norm<'py>(
    x: &Object<'py>,
    #[pyo3(from_py_with = count)] groups: usize,
    weight: Maybe<'_, 'py>,
    bias: Maybe<'_, 'py>,
    eps: f64,
    silu: bool,
    statistics: bool,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let g = Group { groups: Some(groups), weight, bias, silu, stream, gradients: [true; 2] };
    group_forward("group_norm", x, &g, eps, statistics, out)
}

/// The gradients `(dx, dweight, dbias)` of `group_norm`, None where there is no weight or bias.
///
/// x, groups, weight, bias, silu: as in the forward pass; dy: gradient of its result, like x; mean, rstd: as it saved them.
/// weight_gradient, bias_gradient: whether theirs are wanted, which are None otherwise. `out` is a triple with None where there is no result.
#[pyfunction]
#[pyo3(signature = (x, dy, mean, rstd, groups, weight=None, bias=None, *, silu=false, weight_gradient=true, bias_gradient=true, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn group_norm_backward<'py>(
    x: &Object<'py>,
    dy: &Object<'py>,
    mean: &Object<'py>,
    rstd: &Object<'py>,
    #[pyo3(from_py_with = count)] groups: usize,
    weight: Maybe<'_, 'py>,
    bias: Maybe<'_, 'py>,
    silu: bool,
    weight_gradient: bool,
    bias_gradient: bool,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    let gradients = [weight_gradient, bias_gradient];
    let g = Group { groups: Some(groups), weight, bias, silu, stream, gradients };
    group_backward("group_norm_backward", x, [dy, mean, rstd], &g, out)
}

/// `(x - mean) / sqrt(variance + eps) weight + bias` over the pixels of each channel of each sample.
///
/// As `group_norm` with a group for each channel.
#[pyfunction]
#[pyo3(signature = (x, weight=None, bias=None, eps=1e-5, *, statistics=false, out=None, stream=None))]
pub(crate) fn instance_norm<'py>(
    x: &Object<'py>,
    weight: Maybe<'_, 'py>,
    bias: Maybe<'_, 'py>,
    eps: f64,
    statistics: bool,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let g = Group { groups: None, weight, bias, silu: false, stream, gradients: [true; 2] };
    group_forward("instance_norm", x, &g, eps, statistics, out)
}

/// The gradients `(dx, dweight, dbias)` of `instance_norm`, None where there is no weight or bias.
///
/// As `group_norm_backward` with a group for each channel.
#[pyfunction]
#[pyo3(signature = (x, dy, mean, rstd, weight=None, bias=None, *, weight_gradient=true, bias_gradient=true, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn instance_norm_backward<'py>(
    x: &Object<'py>,
    dy: &Object<'py>,
    mean: &Object<'py>,
    rstd: &Object<'py>,
    weight: Maybe<'_, 'py>,
    bias: Maybe<'_, 'py>,
    weight_gradient: bool,
    bias_gradient: bool,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    let gradients = [weight_gradient, bias_gradient];
    let g = Group { groups: None, weight, bias, silu: false, stream, gradients };
    group_backward("instance_norm_backward", x, [dy, mean, rstd], &g, out)
}
