//! `topk` as Python functions.

use pyo3::prelude::*;
use warpwright::DType;
use warpwright::plan::PlanCache;
use warpwright::topk::{TopkArgs, TopkBackwardArgs, TopkBackwardDesc, TopkDesc};

use crate::array::Array;
use crate::call::{Call, Form, present};
use crate::error::{Class, Problem};
use crate::library::{Maybe, Object};

/// The extents before the last, multiplied, and the last.
fn rows(op: &'static str, x: &Array<'_>) -> PyResult<[usize; 2]> {
    match x.shape[..] {
        [] => {
            let name = x.site.argument;
            let message = format!("{op}: {name} has no dimensions, expected at least one");
            Err(Problem::new(x.object.py(), Class::Shape, message).at(op, name).into_err())
        }
        [.., n] => Ok([x.len().checked_div(n).unwrap_or(0), n]),
    }
}

fn with_last(x: &Array<'_>, last: usize) -> Vec<usize> {
    let outer = &x.shape[..x.shape.len() - 1];
    outer.iter().copied().chain([last]).collect()
}

/// The `k` largest elements along the last dimension of x, or the least if not `largest`, in order, and where they are.
///
/// x: float32, float64, float16 or bfloat16, [.., n]; k is at most n, and at most 128 where n is more than 1024. NaN is larger than every number;
/// of equal elements the first is first. The results are values, in the dtype of x, and indices, int64, [.., k] each.
#[pyfunction]
#[pyo3(signature = (x, k, *, largest=true, stream=None))]
pub(crate) fn topk<'py>(
    x: &Object<'py>,
    k: usize,
    largest: bool,
    stream: Maybe<'_, 'py>,
) -> PyResult<(Object<'py>, Object<'py>)> {
    static PLANS: PlanCache<TopkDesc> = PlanCache::new();
    const OP: &str = "topk";
    let (call, x) = Call::new(OP, ("x", x), stream)?;
    let x = call.row_major(x)?;
    let [rows, n] = rows(OP, &x)?;
    let plan = call.plan(&PLANS, &TopkDesc { dtype: x.dtype, rows, n, k, largest })?;
    let shape = with_last(&x, k);
    let values = call.output(("values", None), &x, Form::RowMajor(x.dtype, &shape))?;
    let index = call.output(("index", None), &x, Form::RowMajor(DType::I64, &shape))?;
    let outputs = [Some(values), Some(index), call.workspace(&plan, &x)?];
    let [values, index, _] =
        call.run_some([Some(&x)], outputs, move |stream, [x], [values, index, workspace]| {
            let (values, index) = (present(values), present(index));
            Ok(plan.launch(stream, TopkArgs { x: present(x), values, index, workspace })?)
        })?;
    Ok((present(values), present(index)))
}

/// The gradient of the x of `topk`, [.., n]: `dvalues` where the values are from, zeros elsewhere.
///
/// dvalues: float32, float64, float16 or bfloat16, [.., k]; index: int64, of the same shape, as `topk` gave it: the indices of a row differ from
/// each other. One that is no element is passed over.
#[pyfunction]
#[pyo3(signature = (dvalues, index, n, *, out=None, stream=None))]
pub(crate) fn topk_backward<'py>(
    dvalues: &Object<'py>,
    index: &Object<'py>,
    n: usize,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<TopkBackwardDesc> = PlanCache::new();
    const OP: &str = "topk_backward";
    let (call, dvalues) = Call::new(OP, ("dvalues", dvalues), stream)?;
    let dvalues = call.row_major(dvalues)?;
    let index = call.row_major(call.read(("index", index))?)?;
    index.expect_shape(&dvalues.shape)?;
    let [rows, k] = rows(OP, &dvalues)?;
    let plan = call.plan(&PLANS, &TopkBackwardDesc { dtype: dvalues.dtype, rows, n, k })?;
    let shape = with_last(&dvalues, n);
    let dx = call.output(("out", out), &dvalues, Form::RowMajor(dvalues.dtype, &shape))?;
    let [dx] = call.run(&[dvalues, index], [dx], move |stream, [dvalues, index], [dx]| {
        Ok(plan.launch(stream, TopkBackwardArgs { dvalues, index, dx })?)
    })?;
    Ok(dx)
}
