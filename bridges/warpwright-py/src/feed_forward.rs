//! Layers beside activations, and gated linear units, as Python functions.

use pyo3::prelude::*;
use warpwright::DType;
use warpwright::activation::{Activation, GatedActivation};
use warpwright::matmul::{
    ActivationLinearBackwardArgs, ActivationLinearBackwardDesc, GatedActivationLinearBackwardArgs,
    GatedActivationLinearBackwardDesc, GatedLinearArgs, GatedLinearDesc, LinearActivationArgs,
    LinearActivationDesc,
};
use warpwright::plan::PlanCache;

use crate::array::{Array, Site};
use crate::call::{Call, Form, present};
use crate::error::{Class, Problem, unknown};
use crate::library::{Maybe, Object};
use crate::matmul::{activation_of, matrices};

/// Rows before the last dimension of an array, and its shape without that.
fn rows_of<'a>(array: &'a Array<'_>) -> PyResult<(usize, &'a [usize], usize)> {
    let Some((&columns, before)) = array.shape.split_last() else {
        let Site { op, argument } = array.site;
        let message = format!("{op}: {argument} has 0 dimensions, expected at least 1");
        let problem = Problem::new(array.object.py(), Class::Shape, message).at(op, argument);
        return Err(problem.mismatch(1, 0).into_err());
    };
    Ok((before.iter().fold(1, |n: usize, d| n.saturating_mul(*d)), before, columns))
}

/// The weight of a layer: itself, or a copy without gaps.
struct Weight<'py> {
    array: Array<'py>,
    out_features: usize,
    in_features: usize,
    /// Whether the features that it takes lie together.
    along: bool,
}

impl<'py> Weight<'py> {
    fn of(call: &Call<'py>, object: &Object<'py>, dtype: DType) -> PyResult<Self> {
        let named = ("weight", object);
        let array = call.read(named)?;
        array.expect_dtype(dtype)?;
        let [out_features, in_features] = array.extents()?;
        let (array, found) = matrices(call, array)?;
        let tight = found.leading == if found.transposed { out_features } else { in_features };
        if tight {
            return Ok(Self { array, out_features, in_features, along: !found.transposed });
        }
        let array = call.row_major(call.read(named)?)?;
        Ok(Self { array, out_features, in_features, along: true })
    }
}

/// The layer behind an activation, and the gradient of what it gave.
struct Behind<'py> {
    call: Call<'py>,
    dy: Array<'py>,
    weight: Weight<'py>,
    rows: usize,
    /// That of what the activation took, and of its gradient.
    shape: Vec<usize>,
}

impl<'py> Behind<'py> {
    fn of(
        op: &'static str,
        dy: &Object<'py>,
        weight: &Object<'py>,
        stream: Maybe<'_, 'py>,
    ) -> PyResult<Self> {
        let (call, dy) = Call::new(op, ("dy", dy), stream)?;
        let (rows, before, out_features) = rows_of(&dy)?;
        let weight = Weight::of(&call, weight, dy.dtype)?;
        let in_features = weight.in_features;
        weight.array.expect_shape(&[out_features, in_features])?;
        let shape = [before, &[in_features]].concat();
        let dy = call.row_major(dy)?;
        Ok(Self { call, dy, weight, rows, shape })
    }
}

/// The gated unit of primitive `op` of that name.
fn unit_of(py: Python<'_>, op: &'static str, name: &str) -> PyResult<GatedActivation> {
    let expected = "'swiglu', 'geglu' or 'geglu_tanh'";
    GatedActivation::from_name(name).ok_or_else(|| unknown(py, op, ("activation", name), expected))
}

/// The function of primitive `op` of that name.
fn function_of(py: Python<'_>, op: &'static str, name: &str) -> PyResult<Activation> {
    activation_of(py, op, Some(name)).map(present)
}

/// A linear layer and the activation behind it: `y = activation(z)` of `z = x weight.T + bias`. Gives y and z, which the gradient needs.
///
/// x: [..., k]; weight: [n, k], or the transpose of [k, n]; bias: [n]; float32, float64, float16 or bfloat16, of one dtype. activation:
/// "relu", "gelu_erf", "gelu_tanh", "silu", "sigmoid" or "tanh". The results are [..., n] of their dtype. float16 and bfloat16 are summed in
/// float32; on sm_90 large products are one launch.
#[pyfunction]
#[pyo3(signature = (x, weight, bias=None, activation="gelu_erf", *, stream=None))]
pub(crate) fn linear_activation<'py>(
    x: &Object<'py>,
    weight: &Object<'py>,
    bias: Maybe<'_, 'py>,
    activation: &str,
    stream: Maybe<'_, 'py>,
) -> PyResult<(Object<'py>, Object<'py>)> {
    static PLANS: PlanCache<LinearActivationDesc> = PlanCache::new();
    const OP: &str = "linear_activation";
    let activation = function_of(x.py(), OP, activation)?;
    let (call, x) = Call::new(OP, ("x", x), stream)?;
    let (rows, before, in_features) = rows_of(&x)?;
    let weight = Weight::of(&call, weight, x.dtype)?;
    let out_features = weight.out_features;
    weight.array.expect_shape(&[out_features, in_features])?;
    let shape = [before, &[out_features]].concat();
    let x = call.row_major(x)?;
    let bias = call.optional(("bias", bias), x.dtype, &[out_features])?;
    let desc = LinearActivationDesc {
        dtype: x.dtype,
        rows,
        in_features,
        out_features,
        transpose_b: weight.along,
        bias: bias.is_some(),
        activation,
    };
    let plan = call.plan(&PLANS, &desc)?;
    let output = |name| call.output((name, None), &x, Form::RowMajor(x.dtype, &shape));
    let outputs = [Some(output("y")?), Some(output("z")?), call.workspace(&plan, &x)?];
    let inputs = [Some(&x), Some(&weight.array), bias.as_ref()];
    let [y, z, _] = call.run_some(inputs, outputs, move |stream, [x, weight, bias], [y, z, workspace]| {
        let (x, weight, z, y) = (present(x), present(weight), present(z), present(y));
        Ok(plan.launch(stream, LinearActivationArgs { x, weight, bias, z, y, workspace })?)
    })?;
    Ok((present(y), present(z)))
}

/// The gradient of z where a linear layer takes `activation(z)`: `(dy weight) * activation'(z)`.
///
/// dy: [..., n], the gradient of what the layer gave; weight: [n, k], that of the layer, or the transpose of [k, n]; z: [..., k]; float32,
/// float64, float16 or bfloat16, of one dtype. activation: as `linear_activation`. The result is like z. float16 and bfloat16 are summed in
/// float32; on sm_90 large products are one launch.
#[pyfunction]
#[pyo3(signature = (dy, weight, z, activation="gelu_erf", *, stream=None))]
pub(crate) fn activation_linear_backward<'py>(
    dy: &Object<'py>,
    weight: &Object<'py>,
    z: &Object<'py>,
    activation: &str,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<ActivationLinearBackwardDesc> = PlanCache::new();
    const OP: &str = "activation_linear_backward";
    let activation = function_of(dy.py(), OP, activation)?;
    let Behind { call, dy, weight, rows, shape } = Behind::of(OP, dy, weight, stream)?;
    let (in_features, out_features) = (weight.in_features, weight.out_features);
    let z = call.small(("z", z), dy.dtype, &shape)?;
    let transpose_b = !weight.along;
    let desc = ActivationLinearBackwardDesc {
        dtype: dy.dtype,
        rows,
        in_features,
        out_features,
        transpose_b,
        activation,
    };
    let plan = call.plan(&PLANS, &desc)?;
    let dz = call.output(("dz", None), &dy, Form::RowMajor(dy.dtype, &shape))?;
    let outputs = [Some(dz), call.workspace(&plan, &dy)?];
    let inputs = [Some(&dy), Some(&weight.array), Some(&z)];
    let [dz, _] = call.run_some(inputs, outputs, move |stream, [dy, weight, z], [dz, workspace]| {
        let (dy, weight, z, dz) = (present(dy), present(weight), present(z), present(dz));
        Ok(plan.launch(stream, ActivationLinearBackwardArgs { dy, weight, z, dz, workspace })?)
    })?;
    Ok(present(dz))
}

/// The gradients of both factors of a gated unit where a linear layer takes `activation(gate) * up`: of `h = dy weight`,
/// `h * activation'(gate) * up` and `h * activation(gate)`.
///
/// dy: [..., n], the gradient of what the layer gave; weight: [n, k], that of the layer, or the transpose of [k, n]; gate, up: [..., k];
/// float32, float64, float16 or bfloat16, of one dtype. activation: "swiglu", "geglu" or "geglu_tanh". The results are like gate. float16 and
/// bfloat16 are summed in float32; on sm_90 large products are one launch.
#[pyfunction]
#[pyo3(signature = (dy, weight, gate, up, activation="swiglu", *, stream=None))]
pub(crate) fn gated_activation_linear_backward<'py>(
    dy: &Object<'py>,
    weight: &Object<'py>,
    gate: &Object<'py>,
    up: &Object<'py>,
    activation: &str,
    stream: Maybe<'_, 'py>,
) -> PyResult<(Object<'py>, Object<'py>)> {
    static PLANS: PlanCache<GatedActivationLinearBackwardDesc> = PlanCache::new();
    const OP: &str = "gated_activation_linear_backward";
    let activation = unit_of(dy.py(), OP, activation)?;
    let Behind { call, dy, weight, rows, shape } = Behind::of(OP, dy, weight, stream)?;
    let (in_features, out_features) = (weight.in_features, weight.out_features);
    let gate = call.small(("gate", gate), dy.dtype, &shape)?;
    let up = call.small(("up", up), dy.dtype, &shape)?;
    let transpose_b = !weight.along;
    let desc = GatedActivationLinearBackwardDesc {
        dtype: dy.dtype,
        rows,
        in_features,
        out_features,
        transpose_b,
        activation,
    };
    let plan = call.plan(&PLANS, &desc)?;
    let output = |name| call.output((name, None), &dy, Form::RowMajor(dy.dtype, &shape));
    let outputs = [Some(output("dgate")?), Some(output("dup")?), call.workspace(&plan, &dy)?];
    let inputs = [Some(&dy), Some(&weight.array), Some(&gate), Some(&up)];
    let [dgate, dup, _] =
        call.run_some(inputs, outputs, move |stream, [dy, weight, gate, up], [dgate, dup, workspace]| {
            let (dy, weight, gate, up) = (present(dy), present(weight), present(gate), present(up));
            let (dgate, dup) = (present(dgate), present(dup));
            let args = GatedActivationLinearBackwardArgs { dy, weight, gate, up, dgate, dup, workspace };
            Ok(plan.launch(stream, args)?)
        })?;
    Ok((present(dgate), present(dup)))
}

/// The arguments of a gated linear unit.
struct Unit<'a, 'py> {
    op: &'static str,
    x: &'a Object<'py>,
    weights: [&'a Object<'py>; 2],
    activation: &'a str,
    biases: [Maybe<'a, 'py>; 2],
    out: Maybe<'a, 'py>,
    saved: bool,
    stream: Maybe<'a, 'py>,
}

impl<'py> Unit<'_, 'py> {
    /// The result, and both factors if they are saved.
    fn run(self) -> PyResult<[Option<Object<'py>>; 3]> {
        static PLANS: PlanCache<GatedLinearDesc> = PlanCache::new();
        let Self { op, x, weights: [gate, up], activation, biases: [gate_bias, up_bias], out, saved, stream } =
            self;
        let py = x.py();
        let activation = unit_of(py, op, activation)?;
        let (call, x) = Call::new(op, ("x", x), stream)?;
        let (rows, before, in_features) = rows_of(&x)?;
        let gate = call.read(("gate", gate))?;
        gate.expect_dtype(x.dtype)?;
        let [out_features, _] = gate.extents()?;
        gate.expect_shape(&[out_features, in_features])?;
        let up = call.read(("up", up))?;
        up.expect_dtype(x.dtype)?;
        up.expect_shape(&[out_features, in_features])?;
        let shape = [before, &[out_features]].concat();
        let (x, gate, up) = (call.row_major(x)?, call.row_major(gate)?, call.row_major(up)?);
        let gate_bias = call.optional(("gate_bias", gate_bias), x.dtype, &[out_features])?;
        let up_bias = call.optional(("up_bias", up_bias), x.dtype, &[out_features])?;
        let bias = gate_bias.is_some();
        if bias != up_bias.is_some() {
            let argument = if bias { "up_bias" } else { "gate_bias" };
            let message = format!("{op}: {argument} is None, expected a bias of each factor or of none");
            let problem = Problem::new(py, Class::Argument, message).at(op, argument);
            return Err(problem.mismatch("array", "None").into_err());
        }
        let desc =
            GatedLinearDesc { dtype: x.dtype, rows, in_features, out_features, activation, bias, saved };
        let plan = call.plan(&PLANS, &desc)?;
        let output = |named| call.output(named, &x, Form::RowMajor(x.dtype, &shape));
        let factor = |name| saved.then(|| output((name, None))).transpose();
        let outputs =
            [Some(output(("out", out))?), factor("gate_out")?, factor("up_out")?, call.workspace(&plan, &x)?];
        let inputs = [Some(&x), Some(&gate), Some(&up), gate_bias.as_ref(), up_bias.as_ref()];
        let [y, gate_out, up_out, _] = call.run_some(
            inputs,
            outputs,
            move |stream, [x, gate, up, gate_bias, up_bias], [y, gate_out, up_out, workspace]| {
                let (x, gate, up, y) = (present(x), present(gate), present(up), present(y));
                let args =
                    GatedLinearArgs { x, gate, up, gate_bias, up_bias, gate_out, up_out, y, workspace };
                Ok(plan.launch(stream, args)?)
            },
        )?;
        Ok([y, gate_out, up_out])
    }
}

/// A gated linear unit, `activation(x gate.T + gate_bias) * (x up.T + up_bias)`.
///
/// x: [..., k]; gate, up: [n, k]; gate_bias, up_bias: [n], both or none; float32, float64, float16 or bfloat16, of one dtype. activation:
/// "swiglu" (of silu), "geglu" (of the exact gelu) or "geglu_tanh". The result is [..., n] of their dtype. float16 and bfloat16 are summed in
/// float32; on sm_90 large products are one launch that rounds once.
#[pyfunction]
#[pyo3(signature = (x, gate, up, activation="swiglu", *, gate_bias=None, up_bias=None, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn gated_linear<'py>(
    x: &Object<'py>,
    gate: &Object<'py>,
    up: &Object<'py>,
    activation: &str,
    gate_bias: Maybe<'_, 'py>,
    up_bias: Maybe<'_, 'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let (weights, biases) = ([gate, up], [gate_bias, up_bias]);
    let unit = Unit { op: "gated_linear", x, weights, activation, biases, out, saved: false, stream };
    let [y, ..] = unit.run()?;
    Ok(present(y))
}

/// `gated_linear`, and both factors, `x gate.T + gate_bias` and `x up.T + up_bias`, which the gradients need.
#[pyfunction]
#[pyo3(signature = (x, gate, up, activation="swiglu", *, gate_bias=None, up_bias=None, stream=None))]
pub(crate) fn gated_linear_factors<'py>(
    x: &Object<'py>,
    gate: &Object<'py>,
    up: &Object<'py>,
    activation: &str,
    gate_bias: Maybe<'_, 'py>,
    up_bias: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<(Object<'py>, Object<'py>, Object<'py>)> {
    let (weights, biases, out) = ([gate, up], [gate_bias, up_bias], None);
    let unit = Unit { op: "gated_linear_factors", x, weights, activation, biases, out, saved: true, stream };
    let [y, gate_out, up_out] = unit.run()?;
    Ok((present(y), present(gate_out), present(up_out)))
}
