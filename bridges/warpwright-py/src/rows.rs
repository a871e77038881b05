//! `layer_norm` and `rms_norm` as Python functions.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use warpwright::layer_norm::{RowNorm, RowNormArgs, RowNormBackwardArgs, RowNormBackwardDesc, RowNormDesc};
use warpwright::plan::{PlanCache, Real};

use crate::array::{Array, shape_given};
use crate::call::{Call, Form, gathered, places, present, several, statistics_dtype};
use crate::error;
use crate::library::{Maybe, Object};

/// How the rows of an array lie: the leading dimensions, and the normalised ones.
struct Rows<'a> {
    leading: &'a [usize],
    normalised: &'a [usize],
}

impl<'a> Rows<'a> {
    /// The last dimensions of `x` must be the normalised shape, as in PyTorch.
    fn of(op: &'static str, x: &'a Array<'_>, normalised: &Object<'_>) -> PyResult<Self> {
        let wanted = shape_given(normalised)?;
        let at = x.shape.len().checked_sub(wanted.len()).filter(|_| !wanted.is_empty());
        match at.map(|at| x.shape.split_at(at)) {
            Some((leading, normalised)) if normalised == wanted => Ok(Self { leading, normalised }),
            _ => {
                let last = x.shape.len().saturating_sub(wanted.len().max(1));
                Err(error::shape(normalised.py(), op, "normalized_shape", &x.shape[last..], &wanted))
            }
        }
    }

    fn rows(&self) -> usize {
        self.leading.iter().product()
    }

    fn len(&self) -> usize {
        self.normalised.iter().product()
    }
}

/// The arguments of the forward pass besides `x`.
struct Forward<'a, 'py> {
    normalised: &'a Object<'py>,
    weight: Maybe<'a, 'py>,
    bias: Maybe<'a, 'py>,
    eps: Option<f64>,
    residual: Maybe<'a, 'py>,
    statistics: bool,
    out: Maybe<'a, 'py>,
    stream: Maybe<'a, 'py>,
}

fn forward<'py>(norm: RowNorm, x: &Object<'py>, f: &Forward<'_, 'py>) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<RowNormDesc> = PlanCache::new();
    let op = norm.name();
    let (call, x) = Call::new(op, ("x", x), f.stream)?;
    let x = call.row_major(x)?;
    let rows = Rows::of(op, &x, f.normalised)?;
    let residual = call.optional_twin(("residual", f.residual), &x)?;
    let weight = call.optional(("weight", f.weight), x.dtype, rows.normalised)?;
    let bias = call.optional(("bias", f.bias), x.dtype, rows.normalised)?;
    let desc = RowNormDesc {
        norm,
        dtype: x.dtype,
        rows: rows.rows(),
        len: rows.len(),
        eps: Real::new(f.eps.unwrap_or_else(|| norm.default_eps(x.dtype))),
        weight: weight.is_some(),
        bias: bias.is_some(),
        residual: residual.is_some(),
        statistics: f.statistics,
    };
    let plan = call.plan(&PLANS, &desc)?;
    let (sum, mean) = (residual.is_some(), f.statistics && norm == RowNorm::Layer);
    let wanted = [true, sum, mean, f.statistics];
    let out = places(op, f.out, wanted)?;
    let [y, z, m, r] = out.each_ref().map(Option::as_ref);
    let saved = Form::RowMajor(statistics_dtype(x.dtype), rows.leading);
    let outputs = [
        Some(call.output(("out", y), &x, Form::RowMajor(x.dtype, &x.shape))?),
        call.optional_output(sum, ("out", z), &x, Form::RowMajor(x.dtype, &x.shape))?,
        call.optional_output(mean, ("out", m), &x, saved)?,
        call.optional_output(f.statistics, ("out", r), &x, saved)?,
    ];
    let inputs = [Some(&x), residual.as_ref(), weight.as_ref(), bias.as_ref()];
    let results = call.run_some(inputs, outputs, move |stream, inputs, outputs| {
        let ([x, residual, weight, bias], [y, z, mean, rstd]) = (inputs, outputs);
        let args = RowNormArgs { x: present(x), residual, weight, bias, y: present(y), z, mean, rstd };
        Ok(plan.launch(stream, args)?)
    })?;
    gathered(x.object.py(), results)
}

/// The arguments of the backward pass besides `x`.
struct Backward<'a, 'py> {
    dy: &'a Object<'py>,
    mean: Maybe<'a, 'py>,
    rstd: &'a Object<'py>,
    normalised: &'a Object<'py>,
    weight: Maybe<'a, 'py>,
    bias: bool,
    dz: Maybe<'a, 'py>,
    out: [Option<Object<'py>>; 3],
    stream: Maybe<'a, 'py>,
}

fn backward<'py>(
    op: &'static str,
    norm: RowNorm,
    x: &Object<'py>,
    b: &Backward<'_, 'py>,
) -> PyResult<[Option<Object<'py>>; 3]> {
    static PLANS: PlanCache<RowNormBackwardDesc> = PlanCache::new();
    let (call, x) = Call::new(op, ("x", x), b.stream)?;
    let x = call.row_major(x)?;
    let rows = Rows::of(op, &x, b.normalised)?;
    let saved = statistics_dtype(x.dtype);
    let dy = call.twin(("dy", b.dy), &x)?;
    let dz = call.optional_twin(("dz", b.dz), &x)?;
    let weight = call.optional(("weight", b.weight), x.dtype, rows.normalised)?;
    let mean = call.optional(("mean", b.mean), saved, rows.leading)?;
    let rstd = call.small(("rstd", b.rstd), saved, rows.leading)?;
    let desc = RowNormBackwardDesc {
        norm,
        dtype: x.dtype,
        rows: rows.rows(),
        len: rows.len(),
        weight: weight.is_some(),
        bias: b.bias,
        dz: dz.is_some(),
    };
    let plan = call.plan(&PLANS, &desc)?;
    let [dx, dw, db] = b.out.each_ref().map(Option::as_ref);
    let parameter = Form::RowMajor(x.dtype, rows.normalised);
    let outputs = [
        Some(call.output(("out[0]", dx), &x, Form::RowMajor(x.dtype, &x.shape))?),
        call.optional_output(weight.is_some(), ("out[1]", dw), &x, parameter)?,
        call.optional_output(b.bias, ("out[2]", db), &x, parameter)?,
        call.workspace(&plan, &x)?,
    ];
    let inputs = [Some(&x), Some(&dy), dz.as_ref(), weight.as_ref(), mean.as_ref(), Some(&rstd)];
    let [dx, dweight, dbias, _] = call.run_some(inputs, outputs, move |stream, inputs, outputs| {
        let ([x, dy, dz, weight, mean, rstd], [dx, dweight, dbias, workspace]) = (inputs, outputs);
        let (x, dy, rstd, dx) = (present(x), present(dy), present(rstd), present(dx));
        let args = RowNormBackwardArgs { x, dy, dz, weight, mean, rstd, dx, dweight, dbias, workspace };
        Ok(plan.launch(stream, args)?)
    })?;
    Ok([dx, dweight, dbias])
}

/// `(x - mean) / sqrt(variance + eps) weight + bias` over the last dimensions, whose shape is `normalized_shape`.
///
/// x: float32, float64, float16 or bfloat16; weight, bias: of `normalized_shape`, of its dtype, or None. residual: added to
/// x first; the sum is returned too. statistics: whether mean and 1 / sqrt(variance + eps) of each row are returned too, of
/// float32 (float64 for float64), for `layer_norm_backward`. The result y has the shape and dtype of x; with more results it
/// is the first of a tuple `(y, sum, mean, rstd)` of those that were asked for, and so is `out`.
#[pyfunction]
#[pyo3(signature = (x, normalized_shape, weight=None, bias=None, eps=1e-5, *, residual=None, statistics=false, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn layer_norm<'py>(
    x: &Object<'py>,
    normalized_shape: &Object<'py>,
    weight: Maybe<'_, 'py>,
    bias: Maybe<'_, 'py>,
    eps: f64,
    residual: Maybe<'_, 'py>,
    statistics: bool,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let eps = Some(eps);
    let normalised = normalized_shape;
    forward(RowNorm::Layer, x, &Forward { normalised, weight, bias, eps, residual, statistics, out, stream })
}

/// The gradients `(dx, dweight, dbias)` of `layer_norm`, None where there is no weight or bias.
///
/// x: what was normalised (with a residual, the sum); dy: gradient of the result, like x; mean, rstd: as the forward
/// function saved them; bias: whether there is one. dz: gradient of the sum that was returned, added to dx. `out` is a
/// triple with None where there is no result.
#[pyfunction]
#[pyo3(signature = (x, dy, mean, rstd, normalized_shape, weight=None, bias=None, *, dz=None, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn layer_norm_backward<'py>(
    x: &Object<'py>,
    dy: &Object<'py>,
    mean: &Object<'py>,
    rstd: &Object<'py>,
    normalized_shape: &Object<'py>,
    weight: Maybe<'_, 'py>,
    bias: Maybe<'_, 'py>,
    dz: Maybe<'_, 'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    const OP: &str = "layer_norm_backward";
    let (mean, bias, normalised) = (Some(mean), is_wanted(bias)?, normalized_shape);
    let out = several::<3>(OP, out)?;
    let b = Backward { dy, mean, rstd, normalised, weight, bias, dz, out, stream };
    PyTuple::new(x.py(), backward(OP, RowNorm::Layer, x, &b)?)
}

/// `x / sqrt(mean(x^2) + eps) weight` over the last dimensions, whose shape is `normalized_shape`.
///
/// x: float32, float64, float16 or bfloat16; weight: of `normalized_shape`, of its dtype, or None. eps: None is the machine
/// epsilon of the dtype, as in PyTorch. residual: added to x first; the sum is returned too. statistics: whether
/// 1 / sqrt(mean(x^2) + eps) of each row is returned too, of float32 (float64 for float64), for `rms_norm_backward`. The
/// result y has the shape and dtype of x; with more results it is the first of a tuple `(y, sum, rstd)` of those that were
/// asked for, and so is `out`.
#[pyfunction]
#[pyo3(signature = (x, normalized_shape, weight=None, eps=None, *, residual=None, statistics=false, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn rms_norm<'py>(
    x: &Object<'py>,
    normalized_shape: &Object<'py>,
    weight: Maybe<'_, 'py>,
    eps: Option<f64>,
    residual: Maybe<'_, 'py>,
    statistics: bool,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let (bias, normalised) = (None, normalized_shape);
    forward(RowNorm::Rms, x, &Forward { normalised, weight, bias, eps, residual, statistics, out, stream })
}

/// The gradients `(dx, dweight)` of `rms_norm`, None where there is no weight.
///
/// x: what was normalised (with a residual, the sum); dy: gradient of the result, like x; rstd: as the forward function
/// saved it. dz: gradient of the sum that was returned, added to dx. `out` is a pair with None where there is no result.
#[pyfunction]
#[pyo3(signature = (x, dy, rstd, normalized_shape, weight=None, *, dz=None, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn rms_norm_backward<'py>(
    x: &Object<'py>,
    dy: &Object<'py>,
    rstd: &Object<'py>,
    normalized_shape: &Object<'py>,
    weight: Maybe<'_, 'py>,
    dz: Maybe<'_, 'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    const OP: &str = "rms_norm_backward";
    let [first, second] = several::<2>(OP, out)?;
    let (mean, bias, normalised, out) = (None, false, normalized_shape, [first, second, None]);
    let b = Backward { dy, mean, rstd, normalised, weight, bias, dz, out, stream };
    let [dx, dweight, _] = backward(OP, RowNorm::Rms, x, &b)?;
    PyTuple::new(x.py(), [dx, dweight])
}

/// Whether a gradient is wanted: the tensor that it is of is there, or a flag says so.
pub(crate) fn is_wanted(bias: Option<&Object<'_>>) -> PyResult<bool> {
    match bias {
        None => Ok(false),
        Some(flag) => flag.extract::<bool>().or(Ok(true)),
    }
}
