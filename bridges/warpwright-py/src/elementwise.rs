//! `elementwise`, `dropout` and `dropout_add` as Python functions.

use std::sync::LazyLock;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use warpwright::elementwise::{
    ElementwiseArgs, ElementwiseDesc, Expr, InputDesc, MAX_INPUTS, Operand, broadcast_shape,
};
use warpwright::plan::{PlanCache, Real, View};
use warpwright::{DType, PlanError};

use crate::array::{Array, Site, dtype_given};
use crate::call::{Call, Form, Wanted, present};
use crate::error::{self, Class, Problem};
use crate::library::{Maybe, Object};
use crate::many::Listed;

/// Names of the arrays of an expression.
const INPUTS: [&str; MAX_INPUTS] = ["x0", "x1", "x2", "x3", "x4", "x5"];

/// Numbers of a launch.
#[derive(Default)]
struct Numbers<'py> {
    scalars: Vec<Real>,
    /// The probability that an element is dropped, and seed and offset.
    dropout: Option<(f64, Array<'py>)>,
}

/// Expressions of arrays, which are broadcast, as arrays of type `dtype`: one for each of `outputs`.
fn launch<'py>(
    call: &Call<'py>,
    inputs: Vec<Array<'py>>,
    exprs: Vec<Expr>,
    numbers: Numbers<'py>,
    dtype: DType,
    outputs: &[Wanted<'_, 'py>],
) -> PyResult<Vec<Object<'py>>> {
    static PLANS: PlanCache<ElementwiseDesc> = PlanCache::new();
    let shape = broadcast_shape(inputs.iter().map(|x| &*x.shape)).map_err(|e| call.raise(e))?;
    let inputs = inputs.into_iter().map(|x| call.viewed(x)).collect::<PyResult<Vec<_>>>()?;
    // Arrays have at most as many dimensions as views.
    let described =
        |x: &Array<'py>| View::new(&x.shape, &x.strides).map(|view| InputDesc { dtype: x.dtype, view });
    let (probability, random) = numbers.dropout.unzip();
    let desc = ElementwiseDesc {
        dtypes: vec![dtype; exprs.len()],
        outputs: exprs,
        shape: shape.clone(),
        inputs: inputs.iter().filter_map(described).collect(),
        scalars: numbers.scalars,
        dropout: probability.map(Real::new),
    };
    let plan = call.plan(&PLANS, &desc)?;
    let output = |wanted: &Wanted<'_, 'py>| {
        let y = call.output(*wanted, &inputs[0], Form::RowMajor(dtype, &shape))?;
        Ok(Some(y.in_shape(&shape)))
    };
    let results = outputs.iter().map(output).collect::<PyResult<Vec<_>>>()?;
    let arguments = std::iter::once(random.as_ref()).chain(inputs.iter().map(Some)).collect();
    let found = call.run_many::<Listed, Listed>(arguments, results, move |stream, inputs, outputs| {
        let mut inputs = inputs.into_iter();
        let random = inputs.next().flatten();
        let inputs = inputs.map(|x| Operand::Tensor(present(x))).collect();
        let outputs = outputs.into_iter().map(present).collect();
        Ok(plan.launch(stream, ElementwiseArgs { inputs, random, outputs })?)
    })?;
    Ok(found.into_iter().map(present).collect())
}

/// Whether arrays of one shape and type have gaps behind rows, or other gaps than the first one, so that an operation that takes its arguments
/// as sequences would have to copy them first.
fn are_rows(inputs: &[Array<'_>]) -> bool {
    let first = &inputs[0];
    let alike = |x: &Array<'_>| x.dtype == first.dtype && x.shape == first.shape && x.has_rows();
    let sequences = first.is_dense() && inputs.iter().all(|x| x.has_layout_of(first));
    !sequences && !first.shape.contains(&0) && inputs.iter().all(alike)
}

/// Expressions of such arrays of PyTorch where they lie, as new arrays in row-major order; the arrays, if they are not such or there are no
/// expressions.
pub(crate) fn of_rows<'py, const I: usize, const O: usize>(
    call: &Call<'py>,
    inputs: [Array<'py>; I],
    exprs: impl FnOnce() -> Option<[Expr; O]>,
) -> PyResult<Result<[Object<'py>; O], [Array<'py>; I]>> {
    let Some(exprs) = are_rows(&inputs).then(exprs).flatten() else { return Ok(Err(inputs)) };
    let dtype = inputs[0].dtype;
    let found = launch(call, inputs.into(), exprs.into(), Numbers::default(), dtype, &[("out", None); O])?;
    let mut found = found.into_iter();
    Ok(Ok(std::array::from_fn(|_| present(found.next()))))
}

/// The type that holds the elements of both: float64 if there is one, float32 for float16 beside bfloat16; a mask has that of what it stands beside.
fn promoted(a: DType, b: DType) -> DType {
    match (a, b) {
        _ if a == b => a,
        (DType::F64, _) | (_, DType::F64) => DType::F64,
        (DType::U8, other) | (other, DType::U8) => other,
        _ => DType::F32,
    }
}

/// An expression of the elements of arrays that are broadcast together, in one launch.
///
/// expr: text as "silu(add(x0, mul(x1, s0)))": x0, x1, .. are the arrays, at most 6, s0, s1, .. the numbers `scalars`, at most 8, which are not part of
/// the kernel, and 0.5 or inf is a number that is. Functions of one argument: neg, abs, square, reciprocal, sqrt, rsqrt, exp, log, relu, sigmoid,
/// tanh, silu, gelu_erf, gelu_tanh, softplus, and silu_derivative, gelu_erf_derivative, gelu_tanh_derivative; of two: add, sub, mul, div, minimum,
/// maximum, lt, le, gt, ge, eq, ne; of three: where. Comparisons give 1 or 0. Arrays are float32, float64, float16, bfloat16, or uint8 as masks, each of its own type and with any strides; computed is in float64 if
/// one is, else in float32. The result has the dtype that holds all of them, or `dtype`, where uint8 is 1 where the expression is not 0, and is in
/// row-major order; `out` may be one of the arrays.
#[pyfunction]
#[pyo3(signature = (expr, *arrays, scalars=Vec::new(), dtype=None, out=None, stream=None))]
pub(crate) fn elementwise<'py>(
    expr: &str,
    arrays: &Bound<'py, PyTuple>,
    scalars: Vec<f64>,
    dtype: Maybe<'_, 'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    const OP: &str = "elementwise";
    let given: Vec<Object<'py>> = arrays.iter().collect();
    if given.is_empty() || given.len() > MAX_INPUTS {
        let (got, expected) = (given.len(), format!("from 1 to {MAX_INPUTS}"));
        let message = format!("{OP}: {got} arrays are given, expected {expected}");
        let problem = Problem::new(arrays.py(), Class::Argument, message).at(OP, "arrays");
        return Err(problem.mismatch(expected, got).into_err());
    }
    let (call, first) = Call::new(OP, (INPUTS[0], &given[0]), stream)?;
    let expr: Expr = expr.parse().map_err(|source| call.raise(PlanError::Expression { op: OP, source }))?;
    let mut inputs = vec![first];
    for (name, object) in INPUTS.into_iter().zip(&given).skip(1) {
        inputs.push(call.read((name, object))?);
    }
    let dtype = match dtype {
        Some(dtype) => dtype_given(dtype, Site { op: OP, argument: "dtype" })?,
        None => inputs.iter().map(|x| x.dtype).fold(inputs[0].dtype, promoted),
    };
    let scalars = scalars.into_iter().map(Real::new).collect();
    let numbers = Numbers { scalars, dropout: None };
    Ok(launch(&call, inputs, vec![expr], numbers, dtype, &[("out", out)])?.swap_remove(0))
}

/// Elements of x are set to 0 at random, and the others divided by 1 - p.
///
/// x: float32, float64, float16 or bfloat16, any shape and strides; random: int64, [2], seed and offset, which say which elements are dropped,
/// as they follow each other in row-major order; p: the probability that one is. The result is like x in row-major order; `out` may be `x`. The
/// gradient is the same function of the gradient of the result, with the same random.
#[pyfunction]
#[pyo3(signature = (x, random, p=0.5, *, out=None, stream=None))]
pub(crate) fn dropout<'py>(
    x: &Object<'py>,
    random: &Object<'py>,
    p: f64,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static EXPR: LazyLock<Expr> = LazyLock::new(|| Expr::input(0).dropout());
    let (call, x) = Call::new("dropout", ("x", x), stream)?;
    dropped(&call, vec![x], &EXPR, (random, p), out)
}

/// `dropout(x) + residual` in one launch.
///
/// residual: of the shape and dtype of x; the rest as for `dropout`. The gradient of residual is that of the result, and that of x is `dropout` of it.
#[pyfunction]
#[pyo3(signature = (x, residual, random, p=0.5, *, out=None, stream=None))]
pub(crate) fn dropout_add<'py>(
    x: &Object<'py>,
    residual: &Object<'py>,
    random: &Object<'py>,
    p: f64,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static EXPR: LazyLock<Expr> = LazyLock::new(|| Expr::input(0).dropout() + Expr::input(1));
    let (call, x) = Call::new("dropout_add", ("x", x), stream)?;
    let residual = call.read(("residual", residual))?;
    residual.expect_dtype(x.dtype)?;
    residual.expect_shape(&x.shape)?;
    dropped(&call, vec![x, residual], &EXPR, (random, p), out)
}

fn dropped<'py>(
    call: &Call<'py>,
    inputs: Vec<Array<'py>>,
    expr: &Expr,
    (random, p): (&Object<'py>, f64),
    out: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let (site, dtype) = (inputs[0].site, inputs[0].dtype);
    if !DType::FLOATS.contains(&dtype) {
        return Err(error::dtype(random.py(), site.op, site.argument, &DType::FLOATS, dtype.name()));
    }
    if !(0.0..=1.0).contains(&p) {
        let expected = "from 0 to 1";
        let message = format!("{}: p is {p}, expected {expected}", site.op);
        let problem = Problem::new(random.py(), Class::Parameter, message).at(site.op, "p");
        return Err(problem.mismatch(expected, p).into_err());
    }
    let random = call.small(("random", random), DType::I64, &[2])?;
    let numbers = Numbers { scalars: Vec::new(), dropout: Some((p, random)) };
    Ok(launch(call, inputs, vec![expr.clone()], numbers, dtype, &[("out", out)])?.swap_remove(0))
}
