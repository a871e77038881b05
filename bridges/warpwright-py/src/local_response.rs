//! `local_response_norm` as Python functions.

use pyo3::prelude::*;
use warpwright::local_response_norm::{
    Coefficients, LocalResponseNormArgs, LocalResponseNormBackwardArgs, LocalResponseNormBackwardDesc,
    LocalResponseNormDesc,
};
use warpwright::plan::{PlanCache, Real};

use crate::array::{Array, count};
use crate::call::{Call, Form, gathered, present};
use crate::images::sizes;
use crate::library::{Maybe, Object};

/// The arguments besides the tensors.
struct Options<'a, 'py> {
    size: usize,
    alpha: f64,
    beta: f64,
    k: f64,
    out: Maybe<'a, 'py>,
    stream: Maybe<'a, 'py>,
}

fn described(op: &'static str, x: &Array<'_>, o: &Options<'_, '_>) -> PyResult<LocalResponseNormDesc> {
    sizes(op, x)?;
    let [images, channels, spatial] = x.around(1);
    let coefficients = Coefficients { alpha: Real::new(o.alpha), beta: Real::new(o.beta), k: Real::new(o.k) };
    Ok(LocalResponseNormDesc { dtype: x.dtype, images, channels, spatial, size: o.size, coefficients })
}

fn forward<'py>(x: &Object<'py>, o: &Options<'_, 'py>) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<LocalResponseNormDesc> = PlanCache::new();
    const OP: &str = "local_response_norm";
    let (call, x) = Call::new(OP, ("x", x), o.stream)?;
    let x = call.dense(x)?;
    let plan = call.plan(&PLANS, &described(OP, &x, o)?)?;
    let y = call.output(("out", o.out), &x, Form::Like)?;
    let [y] = call
        .run(&[x], [y], move |stream, [x], [y]| Ok(plan.launch(stream, LocalResponseNormArgs { x, y })?))?;
    Ok(y)
}

fn backward<'py>([x, dy]: [&Object<'py>; 2], o: &Options<'_, 'py>) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<LocalResponseNormBackwardDesc> = PlanCache::new();
    const OP: &str = "local_response_norm_backward";
    let (call, x) = Call::new(OP, ("x", x), o.stream)?;
    let x = call.dense(x)?;
    let dy = call.twin(("dy", dy), &x)?;
    let plan = call.plan(&PLANS, &LocalResponseNormBackwardDesc { forward: described(OP, &x, o)? })?;
    let dx = Some(call.output(("out", o.out), &x, Form::Like)?);
    let outputs = [dx, call.workspace(&plan, &x)?];
    let [dx, _] =
        call.run_some([Some(&x), Some(&dy)], outputs, move |stream, [x, dy], [dx, workspace]| {
            let (x, dy, dx) = (present(x), present(dy), present(dx));
            Ok(plan.launch(stream, LocalResponseNormBackwardArgs { x, dy, dx, workspace })?)
        })?;
    gathered(x.object.py(), [dx])
}

/// `x / (k + alpha / size sum(x^2))^beta`, sums over a window of `size` channels.
///
/// x: float32, float64, float16 or bfloat16, [N, C, ...]. The window of channel c goes from `c - size // 2` to
/// `c + (size - 1) // 2`; channels that do not exist count as zeros. The result has the shape and dtype of x.
#[pyfunction]
#[pyo3(signature = (x, size, alpha=1e-4, beta=0.75, k=1.0, *, out=None, stream=None))]
pub(crate) fn local_response_norm<'py>(
    x: &Object<'py>,
    #[pyo3(from_py_with = count)] size: usize,
    alpha: f64,
    beta: f64,
    k: f64,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    forward(x, &Options { size, alpha, beta, k, out, stream })
}

/// The gradient of `local_response_norm`.
///
/// x, size, alpha, beta, k: as in the forward pass; dy: gradient of its result, like x, as is the result.
#[pyfunction]
#[pyo3(signature = (x, dy, size, alpha=1e-4, beta=0.75, k=1.0, *, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn local_response_norm_backward<'py>(
    x: &Object<'py>,
    dy: &Object<'py>,
    #[pyo3(from_py_with = count)] size: usize,
    alpha: f64,
    beta: f64,
    k: f64,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    backward([x, dy], &Options { size, alpha, beta, k, out, stream })
}
