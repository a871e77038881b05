//! The operations as Python functions.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use warpwright::activation::{
    Activation, ActivationArgs, ActivationBackwardArgs, ActivationBackwardDesc, ActivationDesc,
    GatedActivation, GatedArgs, GatedBackwardArgs, GatedBackwardDesc, GatedDesc,
};
use warpwright::elementwise::{Expr, Unary};
use warpwright::plan::{PlanCache, Real};

use crate::call::{elementwise, several};
use crate::elementwise::of_rows;
use crate::library::{Maybe, Object};

/// An activation and its derivative as functions of expressions, if it is one of those that gates have.
fn value_and_derivative(activation: Activation) -> Option<[Unary; 2]> {
    match activation {
        Activation::Silu => Some([Unary::Silu, Unary::SiluDerivative]),
        Activation::GeluErf => Some([Unary::GeluErf, Unary::GeluErfDerivative]),
        Activation::GeluTanh => Some([Unary::GeluTanh, Unary::GeluTanhDerivative]),
        _ => None,
    }
}

fn forward<'py>(
    op: &'static str,
    activation: Activation,
    x: &Object<'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<ActivationDesc> = PlanCache::new();
    let [y] = elementwise(
        op,
        &PLANS,
        ([("x", x)], [("out", out)]),
        stream,
        |e| ActivationDesc { activation, dtype: e.dtype, len: e.len },
        |[x], [y]| ActivationArgs { x: Some(x), y },
        |call, rows| {
            let exprs = || value_and_derivative(activation).map(|[value, _]| [Expr::input(0).unary(value)]);
            of_rows(call, rows, exprs)
        },
    )?;
    Ok(y)
}

fn backward<'py>(
    op: &'static str,
    activation: Activation,
    [x, dy]: [&Object<'py>; 2],
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<ActivationBackwardDesc> = PlanCache::new();
    let inputs = [("x", x), ("dy", dy)];
    let [dx] = elementwise(
        op,
        &PLANS,
        (inputs, [("out", out)]),
        stream,
        |e| ActivationBackwardDesc { activation, dtype: e.dtype, len: e.len },
        |[x, dy], [dx]| ActivationBackwardArgs { x, dy: Some(dy), dx },
        |call, rows| {
            of_rows(call, rows, || {
                let [_, derivative] = value_and_derivative(activation)?;
                Some([Expr::input(1) * Expr::input(0).unary(derivative)])
            })
        },
    )?;
    Ok(dx)
}

fn gated<'py>(
    op: &'static str,
    activation: GatedActivation,
    [gate, up]: [&Object<'py>; 2],
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<GatedDesc> = PlanCache::new();
    let inputs = [("gate", gate), ("up", up)];
    let [y] = elementwise(
        op,
        &PLANS,
        (inputs, [("out", out)]),
        stream,
        |e| GatedDesc { activation, dtype: e.dtype, len: e.len },
        |[gate, up], [y]| GatedArgs { gate, up, y },
        |call, rows| {
            let unit = |[value, _]: [Unary; 2]| [Expr::input(0).unary(value) * Expr::input(1)];
            of_rows(call, rows, || value_and_derivative(activation.activation()).map(unit))
        },
    )?;
    Ok(y)
}

fn gated_backward<'py>(
    op: &'static str,
    activation: GatedActivation,
    [gate, up, dy]: [&Object<'py>; 3],
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    static PLANS: PlanCache<GatedBackwardDesc> = PlanCache::new();
    let py = gate.py();
    let out = several::<2>(op, out)?;
    let inputs = [("gate", gate), ("up", up), ("dy", dy)];
    let outputs = [("out[0]", out[0].as_ref()), ("out[1]", out[1].as_ref())];
    let grads = elementwise(
        op,
        &PLANS,
        (inputs, outputs),
        stream,
        |e| GatedBackwardDesc { activation, dtype: e.dtype, len: e.len },
        |[gate, up, dy], [dgate, dup]| GatedBackwardArgs { gate, up, dy, dgate, dup },
        |call, rows| {
            let [gate, up, dy] = [0, 1, 2].map(Expr::input);
            let gradients = |[value, derivative]: [Unary; 2]| {
                [&dy * &up * gate.unary(derivative), &dy * gate.unary(value)]
            };
            of_rows(call, rows, || value_and_derivative(activation.activation()).map(gradients))
        },
    )?;
    PyTuple::new(py, grads)
}

macro_rules! activations {
    ($($name:ident, $backward:ident => $f:ident, $formula:literal;)*) => {$(
        #[doc = concat!("`", $formula, "`, elementwise.")]
        ///
        /// x: float32, float64, float16 or bfloat16, any shape. The result has its shape and dtype; `out` may be `x`.
        #[pyfunction]
        #[pyo3(signature = (x, *, out=None, stream=None))]
        pub(crate) fn $name<'py>(
            x: &Object<'py>,
            out: Maybe<'_, 'py>,
            stream: Maybe<'_, 'py>,
        ) -> PyResult<Object<'py>> {
            forward(stringify!($name), Activation::$f, x, out, stream)
        }

        #[doc = concat!("`dx = dy f'(x)` for `f(x) = ", $formula, "`, elementwise.")]
        ///
        /// x: the argument of the forward function; dy: gradient of its result, of the shape and dtype of x. The result
        /// has the same; `out` may be `x` or `dy`.
        #[pyfunction]
        #[pyo3(signature = (x, dy, *, out=None, stream=None))]
        pub(crate) fn $backward<'py>(
            x: &Object<'py>,
            dy: &Object<'py>,
            out: Maybe<'_, 'py>,
            stream: Maybe<'_, 'py>,
        ) -> PyResult<Object<'py>> {
            backward(stringify!($backward), Activation::$f, [x, dy], out, stream)
        }
    )*};
}

activations! {
    relu, relu_backward => Relu, "max(x, 0)";
    gelu_tanh, gelu_tanh_backward => GeluTanh, "x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))";
    gelu_erf, gelu_erf_backward => GeluErf, "x/2 (1 + erf(x / sqrt(2)))";
    silu, silu_backward => Silu, "x / (1 + exp(-x))";
    sigmoid, sigmoid_backward => Sigmoid, "1 / (1 + exp(-x))";
    tanh, tanh_backward => Tanh, "tanh(x)";
}

/// `x` if `x > 0`, else `negative_slope x`, elementwise.
///
/// x: float32, float64, float16 or bfloat16, any shape. The result has its shape and dtype; `out` may be `x`.
#[pyfunction]
#[pyo3(signature = (x, negative_slope=0.01, *, out=None, stream=None))]
pub(crate) fn leaky_relu<'py>(
    x: &Object<'py>,
    negative_slope: f64,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let activation = Activation::LeakyRelu { negative_slope: Real::new(negative_slope) };
    forward("leaky_relu", activation, x, out, stream)
}

/// `dy` where `x > 0`, else `negative_slope dy`, elementwise.
///
/// x: the argument of the forward function; dy: gradient of its result, of the shape and dtype of x. The result has the
/// same; `out` may be `x` or `dy`.
#[pyfunction]
#[pyo3(signature = (x, dy, negative_slope=0.01, *, out=None, stream=None))]
pub(crate) fn leaky_relu_backward<'py>(
    x: &Object<'py>,
    dy: &Object<'py>,
    negative_slope: f64,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let activation = Activation::LeakyRelu { negative_slope: Real::new(negative_slope) };
    backward("leaky_relu_backward", activation, [x, dy], out, stream)
}

/// `log(1 + exp(beta x)) / beta`, elementwise.
///
/// x: float32, float64, float16 or bfloat16, any shape. The result has its shape and dtype; `out` may be `x`.
#[pyfunction]
#[pyo3(signature = (x, beta=1.0, *, out=None, stream=None))]
pub(crate) fn softplus<'py>(
    x: &Object<'py>,
    beta: f64,
    out: Option<&Object<'py>>,
    stream: Option<&Object<'py>>,
) -> PyResult<Object<'py>> {
    forward("softplus", Activation::Softplus { beta: Real::new(beta) }, x, out, stream)
}

/// `dx = dy / (1 + exp(-beta x))`, elementwise.
///
/// x: the argument of the forward function; dy: gradient of its result, of the shape and dtype of x. The result has the
/// same; `out` may be `x` or `dy`.
#[pyfunction]
#[pyo3(signature = (x, dy, beta=1.0, *, out=None, stream=None))]
pub(crate) fn softplus_backward<'py>(
    x: &Object<'py>,
    dy: &Object<'py>,
    beta: f64,
    out: Option<&Object<'py>>,
    stream: Option<&Object<'py>>,
) -> PyResult<Object<'py>> {
    backward("softplus_backward", Activation::Softplus { beta: Real::new(beta) }, [x, dy], out, stream)
}

macro_rules! gates {
    ($($name:ident, $backward:ident => $f:ident, $formula:literal;)*) => {$(
        #[doc = concat!("`", $formula, "(gate) up`, elementwise.")]
        ///
        /// gate, up: float32, float64, float16 or bfloat16, of one shape and dtype. The result has the same; `out` may be
        /// `gate` or `up`.
        #[pyfunction]
        #[pyo3(signature = (gate, up, *, out=None, stream=None))]
        pub(crate) fn $name<'py>(
            gate: &Object<'py>,
            up: &Object<'py>,
            out: Maybe<'_, 'py>,
            stream: Maybe<'_, 'py>,
        ) -> PyResult<Object<'py>> {
            gated(stringify!($name), GatedActivation::$f, [gate, up], out, stream)
        }

        #[doc = concat!("The gradients `(dgate, dup)` of `", $formula, "(gate) up`, elementwise.")]
        ///
        /// gate, up: the arguments of the forward function; dy: gradient of its result; all of one shape and dtype, which
        /// both results have. `out` is a pair; each may be one of the arguments.
        #[pyfunction]
        #[pyo3(signature = (gate, up, dy, *, out=None, stream=None))]
        pub(crate) fn $backward<'py>(
            gate: &Object<'py>,
            up: &Object<'py>,
            dy: &Object<'py>,
            out: Maybe<'_, 'py>,
            stream: Maybe<'_, 'py>,
        ) -> PyResult<Bound<'py, PyTuple>> {
            gated_backward(stringify!($backward), GatedActivation::$f, [gate, up, dy], out, stream)
        }
    )*};
}

gates! {
    swiglu, swiglu_backward => Swiglu, "silu";
    geglu, geglu_backward => Geglu, "gelu_erf";
    geglu_tanh, geglu_tanh_backward => GegluTanh, "gelu_tanh";
}
