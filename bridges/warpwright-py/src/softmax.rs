//! `softmax` and `log_softmax` as Python functions.

use pyo3::prelude::*;
use warpwright::plan::{PlanCache, Real};
use warpwright::softmax::{Softmax, SoftmaxArgs, SoftmaxBackwardArgs, SoftmaxBackwardDesc, SoftmaxDesc};

use crate::array::Array;
use crate::call::{Call, Form};
use crate::error::{Class, Problem};
use crate::library::{Maybe, Object};

/// The products of the extents around a dimension, which counts from the end if it is negative.
pub(crate) fn around(op: &'static str, x: &Array<'_>, dim: isize) -> PyResult<[usize; 3]> {
    let rank = x.shape.len();
    // A single number has one dimension, as in PyTorch.
    let from_end = if dim < 0 { dim.checked_add_unsigned(rank.max(1)) } else { Some(dim) };
    let axis = from_end.and_then(|d| usize::try_from(d).ok()).filter(|d| *d < rank.max(1));
    match axis {
        Some(_) if rank == 0 => Ok([1; 3]),
        Some(axis) => Ok(x.around(axis)),
        None => {
            let message = format!("{op}: dim is {dim}, but x has {rank} dimensions");
            let problem = Problem::new(x.object.py(), Class::Parameter, message).at(op, "dim");
            Err(problem.mismatch(rank, dim).into_err())
        }
    }
}

/// The arguments besides the tensors.
struct Options<'a, 'py> {
    dim: isize,
    scale: f64,
    out: Maybe<'a, 'py>,
    stream: Maybe<'a, 'py>,
}

fn forward<'py>(function: Softmax, x: &Object<'py>, o: &Options<'_, 'py>) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<SoftmaxDesc> = PlanCache::new();
    let op = function.name();
    let (call, x) = Call::new(op, ("x", x), o.stream)?;
    let x = call.dense(x)?;
    let [outer, n, inner] = around(op, &x, o.dim)?;
    let desc = SoftmaxDesc { function, dtype: x.dtype, outer, n, inner, scale: Real::new(o.scale) };
    let plan = call.plan(&PLANS, &desc)?;
    let y = call.output(("out", o.out), &x, Form::Like)?;
    let [y] =
        call.run(&[x], [y], move |stream, [x], [y]| Ok(plan.launch(stream, SoftmaxArgs { x: Some(x), y })?))?;
    Ok(y)
}

fn backward<'py>(
    op: &'static str,
    function: Softmax,
    [y, dy]: [&Object<'py>; 2],
    o: &Options<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<SoftmaxBackwardDesc> = PlanCache::new();
    let (call, y) = Call::new(op, ("y", y), o.stream)?;
    let y = call.dense(y)?;
    let dy = call.twin(("dy", dy), &y)?;
    let [outer, n, inner] = around(op, &y, o.dim)?;
    let desc = SoftmaxBackwardDesc {
        forward: SoftmaxDesc { function, dtype: y.dtype, outer, n, inner, scale: Real::new(o.scale) },
    };
    let plan = call.plan(&PLANS, &desc)?;
    let dx = call.output(("out", o.out), &y, Form::Like)?;
    let [dx] = call.run(&[y, dy], [dx], move |stream, [y, dy], [dx]| {
        Ok(plan.launch(stream, SoftmaxBackwardArgs { y, dy: Some(dy), dx })?)
    })?;
    Ok(dx)
}

macro_rules! functions {
    ($($name:ident, $backward:ident => $f:ident, $formula:literal, $gradient:literal;)*) => {$(
        #[doc = concat!("`", $formula, "` along dimension `dim`.")]
        ///
        /// x: float32, float64, float16 or bfloat16, any shape. The result has its shape and dtype; `out` may be `x`.
        #[pyfunction]
        #[pyo3(signature = (x, dim=-1, *, scale=1.0, out=None, stream=None))]
        pub(crate) fn $name<'py>(
            x: &Object<'py>,
            dim: isize,
            scale: f64,
            out: Maybe<'_, 'py>,
            stream: Maybe<'_, 'py>,
        ) -> PyResult<Object<'py>> {
            forward(Softmax::$f, x, &Options { dim, scale, out, stream })
        }

        #[doc = concat!("The gradient `", $gradient, "` of x, sums along dimension `dim`.")]
        ///
        /// y: the result of the forward function; dy: its gradient, of the shape and dtype of y. The result has the same;
        /// `out` may be `y` or `dy`.
        #[pyfunction]
        #[pyo3(signature = (y, dy, dim=-1, *, scale=1.0, out=None, stream=None))]
        pub(crate) fn $backward<'py>(
            y: &Object<'py>,
            dy: &Object<'py>,
            dim: isize,
            scale: f64,
            out: Maybe<'_, 'py>,
            stream: Maybe<'_, 'py>,
        ) -> PyResult<Object<'py>> {
            backward(stringify!($backward), Softmax::$f, [y, dy], &Options { dim, scale, out, stream })
        }
    )*};
}

functions! {
    softmax, softmax_backward =>
        Plain, "exp(scale x) / sum(exp(scale x))", "scale y (dy - sum(y dy))";
    log_softmax, log_softmax_backward =>
        Log, "scale x - log(sum(exp(scale x)))", "scale (dy - exp(y) sum(dy))";
}
