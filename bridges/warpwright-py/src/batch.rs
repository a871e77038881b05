//! `batch_norm` as Python functions.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use warpwright::batch_norm::{
    BatchMomentsArgs, BatchMomentsDesc, BatchNorm, BatchNormArgs, BatchNormBackwardArgs,
    BatchNormBackwardDesc, BatchNormDesc, BatchNormGradientArgs, BatchNormGradientDesc,
    BatchNormInferenceArgs, BatchNormInferenceBackwardArgs, BatchNormInferenceBackwardDesc,
    BatchNormInferenceDesc, BatchNormMergedArgs, BatchNormMergedDesc, BatchNormSumsArgs, BatchNormSumsDesc,
    Layout, Momentum,
};
use warpwright::plan::{PlanCache, Real};
use warpwright::{Operation, TensorMut, TensorRef};

use crate::array::Array;
use crate::call::{Call, Form, Named, gathered, places, present, statistics_dtype};
use crate::error::{Class, Problem};
use crate::images::image;
use crate::library::{Maybe, Object};
use crate::many::try_map;

/// Keywords of all passes.
struct Common<'a, 'py> {
    weight: Maybe<'a, 'py>,
    bias: Maybe<'a, 'py>,
    relu: bool,
    eps: f64,
    stream: Maybe<'a, 'py>,
}

/// A call with its image and what is known of it.
struct Started<'py> {
    call: Call<'py>,
    x: Array<'py>,
    weight: Option<Array<'py>>,
    bias: Option<Array<'py>>,
    norm: BatchNorm,
}

/// Weight, bias and running statistics are of the type of `x`, or of f32 beside 16 bits: what the first of them has.
fn start<'py>(
    op: &'static str,
    x: &Object<'py>,
    c: &Common<'_, 'py>,
    running: Maybe<'_, 'py>,
) -> PyResult<Started<'py>> {
    let (call, x, [batch, channels, spatial], last) = image(op, x, c.stream)?;
    let first = [("weight", c.weight), ("bias", c.bias), ("running_mean", running)];
    let first = first.into_iter().find_map(|(argument, object)| Some((argument, object?)));
    let parameter_dtype = match first {
        Some((argument, object)) => call.read((argument, object))?.dtype,
        None => x.dtype,
    };
    let weight = call.optional(("weight", c.weight), parameter_dtype, &[channels])?;
    let bias = call.optional(("bias", c.bias), parameter_dtype, &[channels])?;
    let norm = BatchNorm {
        dtype: x.dtype,
        parameter_dtype,
        layout: if last { Layout::ChannelsLast } else { Layout::ChannelsFirst },
        batch,
        channels,
        spatial,
        weight: weight.is_some(),
        bias: bias.is_some(),
        relu: c.relu,
        eps: Real::new(c.eps),
    };
    Ok(Started { call, x, weight, bias, norm })
}

/// The arguments of the forward pass in training besides `x`.
struct Training<'a, 'py> {
    running: [Maybe<'a, 'py>; 2],
    momentum: f64,
    residual: Maybe<'a, 'py>,
    statistics: bool,
    out: Maybe<'a, 'py>,
}

fn training<'py>(x: &Object<'py>, c: &Common<'_, 'py>, t: &Training<'_, 'py>) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<BatchNormDesc> = PlanCache::new();
    const OP: &str = "batch_norm";
    let Started { call, x, weight, bias, norm } = start(OP, x, c, t.running[0])?;
    let residual = call.optional_twin(("residual", t.residual), &x)?;
    let channels = [norm.channels];
    let mean = call.updated(("running_mean", t.running[0]), norm.parameter_dtype, &channels)?;
    let var = call.updated(("running_var", t.running[1]), norm.parameter_dtype, &channels)?;
    let momentum = mean.is_some().then(|| Momentum::Exponential(Real::new(t.momentum)));
    let desc = BatchNormDesc { norm, residual: residual.is_some(), momentum };
    let plan = call.plan(&PLANS, &desc)?;
    let out = places(OP, t.out, [true, t.statistics, t.statistics])?;
    let [y, m, r] = out.each_ref().map(Option::as_ref);
    let saved = Form::RowMajor(statistics_dtype(x.dtype), &channels);
    let outputs = [
        Some(call.output(("out", y), &x, Form::Like)?),
        Some(call.output(("out", m), &x, saved)?),
        Some(call.output(("out", r), &x, saved)?),
        mean,
        var,
        call.workspace(&plan, &x)?,
    ];
    let inputs = [Some(&x), weight.as_ref(), bias.as_ref(), residual.as_ref()];
    let [y, mean, rstd, ..] = call.run_some(inputs, outputs, move |stream, inputs, outputs| {
        let ([x, weight, bias, residual], [y, mean, rstd, running_mean, running_var, workspace]) =
            (inputs, outputs);
        let (x, y, mean, rstd) = (present(x), present(y), present(mean), present(rstd));
        let args =
            BatchNormArgs { x, weight, bias, residual, y, mean, rstd, running_mean, running_var, workspace };
        Ok(plan.launch(stream, args)?)
    })?;
    let saved = |statistic: Option<Object<'py>>| statistic.filter(|_| t.statistics);
    gathered(x.object.py(), [y, saved(mean), saved(rstd)])
}

fn inference<'py>(
    x: &Object<'py>,
    c: &Common<'_, 'py>,
    [mean, var]: [&Object<'py>; 2],
    residual: Maybe<'_, 'py>,
    out: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<BatchNormInferenceDesc> = PlanCache::new();
    let Started { call, x, weight, bias, norm } = start("batch_norm", x, c, Some(mean))?;
    let residual = call.optional_twin(("residual", residual), &x)?;
    let channels = [norm.channels];
    let mean = call.small(("running_mean", mean), norm.parameter_dtype, &channels)?;
    let var = call.small(("running_var", var), norm.parameter_dtype, &channels)?;
    let plan = call.plan(&PLANS, &BatchNormInferenceDesc { norm, residual: residual.is_some() })?;
    let outputs = [Some(call.output(("out", out), &x, Form::Like)?), call.workspace(&plan, &x)?];
    let inputs = [Some(&x), weight.as_ref(), bias.as_ref(), residual.as_ref(), Some(&mean), Some(&var)];
    let [y, _] = call.run_some(inputs, outputs, move |stream, inputs, [y, workspace]| {
        let [x, weight, bias, residual, mean, var] = inputs;
        let (x, y, running_mean, running_var) = (present(x), present(y), present(mean), present(var));
        let args =
            BatchNormInferenceArgs { x, weight, bias, residual, running_mean, running_var, y, workspace };
        Ok(plan.launch(stream, args)?)
    })?;
    gathered(x.object.py(), [y])
}

/// `(x - mean) / sqrt(variance + eps) weight + bias` over each channel, then `+ residual`, then ReLU, as far as they are
/// wanted.
///
/// x: float32, float64, float16 or bfloat16, [N, C, ...]; residual: like x; weight, bias, running_mean, running_var: [C] of
/// its dtype or float32, or None. training: the statistics are those of the batch, and the running ones follow them in
/// place, `running = (1 - momentum) running + momentum batch`, the variance unbiased; otherwise the statistics are the running
/// ones. statistics: whether mean and 1 / sqrt(variance + eps) of the batch are returned too, [C] of float32 (float64 for
/// float64), for `batch_norm_backward`. The result has the shape and dtype of x, and its memory format if that is
/// PyTorch's channels-last; with statistics it is the first of three, and so is `out`.
#[pyfunction]
#[pyo3(signature = (x, running_mean=None, running_var=None, weight=None, bias=None, training=false, momentum=0.1, eps=1e-5, *, relu=false, residual=None, statistics=false, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn batch_norm<'py>(
    x: &Object<'py>,
    running_mean: Maybe<'_, 'py>,
    running_var: Maybe<'_, 'py>,
    weight: Maybe<'_, 'py>,
    bias: Maybe<'_, 'py>,
    training: bool,
    momentum: f64,
    eps: f64,
    relu: bool,
    residual: Maybe<'_, 'py>,
    statistics: bool,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let common = Common { weight, bias, relu, eps, stream };
    match (training, running_mean, running_var) {
        (true, mean, var) if mean.is_some() == var.is_some() => {
            let running = [mean, var];
            self::training(x, &common, &Training { running, momentum, residual, statistics, out })
        }
        (false, Some(mean), Some(var)) if !statistics => inference(x, &common, [mean, var], residual, out),
        _ => {
            let message = "batch_norm: running_mean and running_var go together, are needed unless training, and \
                           statistics are those of training";
            let problem = Problem::new(x.py(), Class::Argument, message.to_owned());
            Err(problem.at("batch_norm", "running_mean").into_err())
        }
    }
}

/// A backward pass: its tensors, and which gradients are wanted where.
struct Backward<'a, 'py> {
    op: &'static str,
    dy: &'a Object<'py>,
    /// The result, if it passed a ReLU.
    y: Maybe<'a, 'py>,
    /// Those that the forward pass took: saved ones, or the running ones, which are of the parameters' type.
    statistics: [Named<'a, 'py>; 2],
    are_running: bool,
    residual: bool,
    out: Maybe<'a, 'py>,
}

/// The tensors of a backward pass on the device.
struct BackwardTensors<'a> {
    x: TensorRef<'a>,
    y: Option<TensorRef<'a>>,
    dy: TensorRef<'a>,
    weight: Option<TensorRef<'a>>,
    statistics: [TensorRef<'a>; 2],
    dx: TensorMut<'a>,
    dweight: Option<TensorMut<'a>>,
    dbias: Option<TensorMut<'a>>,
    dresidual: Option<TensorMut<'a>>,
    workspace: Option<TensorMut<'a>>,
}

/// The gradients `(dx, dweight, dbias)`, and a fourth if that of the residual is wanted.
fn backward<'py, D: Operation>(
    x: &Object<'py>,
    c: &Common<'_, 'py>,
    b: &Backward<'_, 'py>,
    plans: &PlanCache<D>,
    describe: impl FnOnce(BatchNorm, bool) -> D,
    args: impl for<'a> Fn(BackwardTensors<'a>) -> D::Args<'a> + Send + Sync + 'static,
) -> PyResult<Bound<'py, PyTuple>> {
    let running = b.are_running.then_some(b.statistics[0].1);
    let Started { call, x, weight, norm, .. } = start(b.op, x, c, running)?;
    let dy = call.twin(("dy", b.dy), &x)?;
    let y = call.optional_twin(("y", b.y), &x)?;
    let channels = [norm.channels];
    let dtype = if b.are_running { norm.parameter_dtype } else { statistics_dtype(x.dtype) };
    let [first, second] = try_map(b.statistics, |named| call.small(named, dtype, &channels))?;
    let plan = call.plan(plans, &describe(norm, b.residual))?;
    let out = places(b.op, b.out, [true, true, true, b.residual])?;
    let [dx, dweight, dbias, dresidual] = out.each_ref().map(Option::as_ref);
    let parameter = Form::RowMajor(norm.parameter_dtype, &channels);
    let outputs = [
        Some(call.output(("out[0]", dx), &x, Form::Like)?),
        call.optional_output(norm.weight, ("out[1]", dweight), &x, parameter)?,
        call.optional_output(norm.bias, ("out[2]", dbias), &x, parameter)?,
        call.optional_output(b.residual, ("out[3]", dresidual), &x, Form::Like)?,
        call.workspace(&plan, &x)?,
    ];
    let inputs = [Some(&x), y.as_ref(), Some(&dy), weight.as_ref(), Some(&first), Some(&second)];
    let results =
        call.run_some(inputs, outputs, move |stream, [x, y, dy, weight, first, second], outputs| {
            let [dx, dweight, dbias, dresidual, workspace] = outputs;
            let (x, dy, dx, statistics) =
                (present(x), present(dy), present(dx), [first, second].map(present));
            let tensors =
                BackwardTensors { x, y, dy, weight, statistics, dx, dweight, dbias, dresidual, workspace };
            Ok(plan.launch(stream, args(tensors))?)
        })?;
    PyTuple::new(x.object.py(), &results[..if b.residual { 4 } else { 3 }])
}

/// The gradients `(dx, dweight, dbias)` of `batch_norm` in training, None where there is no weight or bias.
///
/// x, weight, bias: as in the forward pass; dy: gradient of its result, like x; mean, rstd: as it saved them. y: the result,
/// if it passed a ReLU. residual: whether the gradient of a residual is wanted as a fourth result (without a ReLU it is dy
/// itself). `out` is a tuple with None where there is no result.
#[pyfunction]
#[pyo3(signature = (x, dy, mean, rstd, weight=None, bias=None, *, y=None, residual=false, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn batch_norm_backward<'py>(
    x: &Object<'py>,
    dy: &Object<'py>,
    mean: &Object<'py>,
    rstd: &Object<'py>,
    weight: Maybe<'_, 'py>,
    bias: Maybe<'_, 'py>,
    y: Maybe<'_, 'py>,
    residual: bool,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    static PLANS: PlanCache<BatchNormBackwardDesc> = PlanCache::new();
    // The eps went into rstd.
    let common = Common { weight, bias, relu: y.is_some(), eps: 0.0, stream };
    let statistics = [("mean", mean), ("rstd", rstd)];
    let pass = Backward { op: "batch_norm_backward", dy, y, statistics, are_running: false, residual, out };
    let describe = |norm, dresidual| BatchNormBackwardDesc { norm, dresidual };
    backward(x, &common, &pass, &PLANS, describe, |tensors| {
        let BackwardTensors { x, y, dy, weight, statistics, dx, dweight, dbias, dresidual, workspace } =
            tensors;
        let [mean, rstd] = statistics;
        BatchNormBackwardArgs { x, y, dy, weight, mean, rstd, dx, dweight, dbias, dresidual, workspace }
    })
}

/// The gradients `(dx, dweight, dbias)` of `batch_norm` with given statistics, None where there is no weight or bias.
///
/// As `batch_norm_backward`, from the running statistics and eps of the forward pass.
#[pyfunction]
#[pyo3(signature = (x, dy, running_mean, running_var, weight=None, bias=None, eps=1e-5, *, y=None, residual=false, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn batch_norm_inference_backward<'py>(
    x: &Object<'py>,
    dy: &Object<'py>,
    running_mean: &Object<'py>,
    running_var: &Object<'py>,
    weight: Maybe<'_, 'py>,
    bias: Maybe<'_, 'py>,
    eps: f64,
    y: Maybe<'_, 'py>,
    residual: bool,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    static PLANS: PlanCache<BatchNormInferenceBackwardDesc> = PlanCache::new();
    let common = Common { weight, bias, relu: y.is_some(), eps, stream };
    let statistics = [("running_mean", running_mean), ("running_var", running_var)];
    let op = "batch_norm_inference_backward";
    let pass = Backward { op, dy, y, statistics, are_running: true, residual, out };
    let describe = |norm, dresidual| BatchNormInferenceBackwardDesc { norm, dresidual };
    backward(x, &common, &pass, &PLANS, describe, |tensors| {
        let BackwardTensors { x, y, dy, weight, statistics, dx, dweight, dbias, dresidual, workspace } =
            tensors;
        let [running_mean, running_var] = statistics;
        BatchNormInferenceBackwardArgs {
            x,
            y,
            dy,
            weight,
            running_mean,
            running_var,
            dx,
            dweight,
            dbias,
            dresidual,
            workspace,
        }
    })
}

/// A call of a part of batch norm with its image, and the normalisation without weight and bias.
fn part<'py>(
    op: &'static str,
    x: &Object<'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<(Call<'py>, Array<'py>, BatchNorm)> {
    let common = Common { weight: None, bias: None, relu: false, eps: 0.0, stream };
    let Started { call, x, norm, .. } = start(op, x, &common, None)?;
    Ok((call, x, norm))
}

/// The moments of a batch, `[2 C + 1]`: the mean of each channel, the sum of squared distances from it, and how many values a channel has, in one
/// read of x: what `batch_norm_merged` takes of each batch.
///
/// x: float32, float64, float16 or bfloat16, [N, C, ...], of which N may be 0. The result is of float32 (float64 for float64).
#[pyfunction]
#[pyo3(signature = (x, *, out=None, stream=None))]
pub(crate) fn batch_moments<'py>(
    x: &Object<'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<BatchMomentsDesc> = PlanCache::new();
    let (call, x, norm) = part("batch_moments", x, stream)?;
    let plan = call.plan(&PLANS, &BatchMomentsDesc { norm })?;
    let form = [norm.channels.saturating_mul(2).saturating_add(1)];
    let form = Form::RowMajor(statistics_dtype(x.dtype), &form);
    let outputs = [Some(call.output(("out", out), &x, form)?), call.workspace(&plan, &x)?];
    let [moments, _] = call.run_some([Some(&x)], outputs, move |stream, [x], [moments, workspace]| {
        let args = BatchMomentsArgs { x: present(x), moments: present(moments), workspace };
        Ok(plan.launch(stream, args)?)
    })?;
    gathered(x.object.py(), [moments])
}

/// `batch_norm` in training with the statistics of several batches, of which x is one: `(y, mean, rstd, count)`, the result, mean and 1 / sqrt(variance + eps) of
/// each channel over all batches, and how many values of a channel they have.
///
/// moments: [batches, 2 C + 1] of float32 (float64 for float64), a row of `batch_moments` for each batch, merged exactly (Chan, Golub and LeVeque 1979) in an
/// order that depends on their number alone. The other arguments are as for `batch_norm`; N may be 0. The running statistics move towards those of
/// all batches, and stay where these have one value of a channel or none. mean and rstd: [C], count: [1], of the type of moments.
#[pyfunction]
#[pyo3(signature = (x, moments, running_mean=None, running_var=None, weight=None, bias=None, momentum=0.1, eps=1e-5, *, relu=false, residual=None, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn batch_norm_merged<'py>(
    x: &Object<'py>,
    moments: &Object<'py>,
    running_mean: Maybe<'_, 'py>,
    running_var: Maybe<'_, 'py>,
    weight: Maybe<'_, 'py>,
    bias: Maybe<'_, 'py>,
    momentum: f64,
    eps: f64,
    relu: bool,
    residual: Maybe<'_, 'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    static PLANS: PlanCache<BatchNormMergedDesc> = PlanCache::new();
    const OP: &str = "batch_norm_merged";
    if running_mean.is_some() != running_var.is_some() {
        let message = "batch_norm_merged: running_mean and running_var go together";
        return Err(Problem::new(x.py(), Class::Parameter, message).at(OP, "running_mean").into_err());
    }
    let common = Common { weight, bias, relu, eps, stream };
    let Started { call, x, weight, bias, norm } = start(OP, x, &common, running_mean)?;
    let residual = call.optional_twin(("residual", residual), &x)?;
    let (channels, dtype) = ([norm.channels], statistics_dtype(x.dtype));
    let mean = call.updated(("running_mean", running_mean), norm.parameter_dtype, &channels)?;
    let var = call.updated(("running_var", running_var), norm.parameter_dtype, &channels)?;
    let moments = call.read(("moments", moments))?;
    moments.expect_dtype(dtype)?;
    let batches = moments.shape.first().copied().unwrap_or(0);
    moments.expect_shape(&[batches, norm.channels.saturating_mul(2).saturating_add(1)])?;
    let moments = call.row_major(moments)?;
    let momentum = mean.is_some().then(|| Momentum::Exponential(Real::new(momentum)));
    let desc = BatchNormMergedDesc { norm, batches, residual: residual.is_some(), momentum };
    let plan = call.plan(&PLANS, &desc)?;
    let out = places(OP, out, [true; 4])?;
    let [y, m, r, n] = out.each_ref().map(Option::as_ref);
    let of_channels = Form::RowMajor(dtype, &channels);
    let outputs = [
        Some(call.output(("out[0]", y), &x, Form::Like)?),
        Some(call.output(("out[1]", m), &x, of_channels)?),
        Some(call.output(("out[2]", r), &x, of_channels)?),
        Some(call.output(("out[3]", n), &x, Form::RowMajor(dtype, &[1]))?),
        mean,
        var,
        call.workspace(&plan, &x)?,
    ];
    let inputs = [Some(&x), Some(&moments), weight.as_ref(), bias.as_ref(), residual.as_ref()];
    let results = call.run_some(inputs, outputs, move |stream, inputs, outputs| {
        let [x, moments, weight, bias, residual] = inputs;
        let [y, mean, rstd, count, running_mean, running_var, workspace] = outputs;
        let args = BatchNormMergedArgs {
            x: present(x),
            moments: present(moments),
            weight,
            bias,
            residual,
            y: present(y),
            mean: present(mean),
            rstd: present(rstd),
            count: present(count),
            running_mean,
            running_var,
            workspace,
        };
        Ok(plan.launch(stream, args)?)
    })?;
    PyTuple::new(x.object.py(), &results[..4])
}

/// `[2, C]`, the sums over each channel of `dy (x - mean) rstd` and of `dy`, in one read of x and dy: gradients of weight and bias of `batch_norm_merged`
/// as far as they are of this batch. Added over all batches they are what `batch_norm_gradient` takes.
///
/// x, dy: float32, float64, float16 or bfloat16, [N, C, ...]; mean, rstd: [C] of float32 (float64 for float64), of which the result is, too.
#[pyfunction]
#[pyo3(signature = (x, dy, mean, rstd, *, out=None, stream=None))]
pub(crate) fn batch_norm_sums<'py>(
    x: &Object<'py>,
    dy: &Object<'py>,
    mean: &Object<'py>,
    rstd: &Object<'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<BatchNormSumsDesc> = PlanCache::new();
    let (call, x, norm) = part("batch_norm_sums", x, stream)?;
    let dy = call.twin(("dy", dy), &x)?;
    let (channels, dtype) = ([norm.channels], statistics_dtype(x.dtype));
    let statistics = [("mean", mean), ("rstd", rstd)];
    let [mean, rstd] = try_map(statistics, |named| call.small(named, dtype, &channels))?;
    let plan = call.plan(&PLANS, &BatchNormSumsDesc { norm })?;
    let form = [2, norm.channels];
    let outputs =
        [Some(call.output(("out", out), &x, Form::RowMajor(dtype, &form))?), call.workspace(&plan, &x)?];
    let inputs = [Some(&x), Some(&dy), Some(&mean), Some(&rstd)];
    let [sums, _] = call.run_some(inputs, outputs, move |stream, inputs, [sums, workspace]| {
        let [x, dy, mean, rstd] = inputs.map(present);
        let args = BatchNormSumsArgs { x, y: None, dy, mean, rstd, sums: present(sums), g: None, workspace };
        Ok(plan.launch(stream, args)?)
    })?;
    gathered(x.object.py(), [sums])
}

/// The gradient of `batch_norm_merged` in x: with n values of a channel, `weight rstd (dy - sums[1] / n - (x - mean) rstd sums[0] / n)`.
///
/// x, dy: float32, float64, float16 or bfloat16, [N, C, ...]; mean, rstd: [C] and count: [1], the statistics of all batches, and sums: [2, C], those of
/// `batch_norm_sums` added over all batches, of float32 (float64 for float64). weight: [C] of the type of x or float32, or None. The result is like x, in its memory
/// format if that is PyTorch's channels-last.
#[pyfunction]
#[pyo3(signature = (x, dy, mean, rstd, count, sums, weight=None, *, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn batch_norm_gradient<'py>(
    x: &Object<'py>,
    dy: &Object<'py>,
    mean: &Object<'py>,
    rstd: &Object<'py>,
    count: &Object<'py>,
    sums: &Object<'py>,
    weight: Maybe<'_, 'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<BatchNormGradientDesc> = PlanCache::new();
    let common = Common { weight, bias: None, relu: false, eps: 0.0, stream };
    let Started { call, x, weight, norm, .. } = start("batch_norm_gradient", x, &common, None)?;
    let dy = call.twin(("dy", dy), &x)?;
    let (channels, dtype) = (norm.channels, statistics_dtype(x.dtype));
    let small = |named, shape: &[usize]| call.small(named, dtype, shape);
    let [mean, rstd] = try_map([("mean", mean), ("rstd", rstd)], |named| small(named, &[channels]))?;
    let (count, sums) = (small(("count", count), &[1])?, small(("sums", sums), &[2, channels])?);
    let plan = call.plan(&PLANS, &BatchNormGradientDesc { norm })?;
    let outputs = [Some(call.output(("out", out), &x, Form::Like)?), call.workspace(&plan, &x)?];
    let inputs = [Some(&x), Some(&dy), weight.as_ref(), Some(&mean), Some(&rstd), Some(&count), Some(&sums)];
    let [dx, _] = call.run_some(inputs, outputs, move |stream, inputs, [dx, workspace]| {
        let [x, g, weight, mean, rstd, count, sums] = inputs;
        let [x, g, mean, rstd, count, sums] = [x, g, mean, rstd, count, sums].map(present);
        let dx = present(dx);
        let args = BatchNormGradientArgs { x, g, weight, mean, rstd, count, sums, dx, workspace };
        Ok(plan.launch(stream, args)?)
    })?;
    gathered(x.object.py(), [dx])
}
