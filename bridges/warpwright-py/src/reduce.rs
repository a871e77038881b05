//! `sum`, `mean`, `amax`, `amin`, `argmax` and `argmin` as Python functions.

use pyo3::prelude::*;
use warpwright::DType;
use warpwright::plan::PlanCache;
use warpwright::reduce::{
    ArgReduceArgs, ArgReduceDesc, ArgReduceFunction, ReduceArgs, ReduceDesc, ReduceFunction,
};

use crate::array::{Array, Site, dtype_given};
use crate::call::{Call, Form, present};
use crate::error::{Class, Problem};
use crate::library::{Maybe, Object};

/// The arguments besides x.
struct Options<'a, 'py> {
    dim: Maybe<'a, 'py>,
    keepdim: bool,
    out: Maybe<'a, 'py>,
    stream: Maybe<'a, 'py>,
}

/// The dimensions of x that are named, of which negative ones count from the end; all without any.
fn dims(x: &Array<'_>, dim: Maybe<'_, '_>) -> PyResult<Vec<usize>> {
    let rank = x.shape.len();
    let Some(dim) = dim else { return Ok((0..rank).collect()) };
    let (py, op) = (dim.py(), x.site.op);
    let given: Vec<isize> = match dim.extract::<isize>() {
        Ok(one) => vec![one],
        Err(_) => dim.try_iter()?.map(|n| n?.extract()).collect::<PyResult<_>>()?,
    };
    if given.is_empty() {
        return Ok((0..rank).collect());
    }
    let mut found: Vec<usize> = Vec::new();
    for &dim in &given {
        // A single number has one dimension, as in PyTorch.
        let from_end = if dim < 0 { dim.checked_add_unsigned(rank.max(1)) } else { Some(dim) };
        let axis = from_end.and_then(|d| usize::try_from(d).ok()).filter(|d| *d < rank.max(1));
        let what = match axis {
            Some(axis) if !found.contains(&axis) => {
                found.push(axis);
                continue;
            }
            Some(_) => format!("names dimension {dim} twice"),
            None => format!("is {dim}, but x has {rank} dimensions"),
        };
        let problem = Problem::new(py, Class::Parameter, format!("{op}: dim {what}")).at(op, "dim");
        return Err(problem.mismatch(rank, dim).into_err());
    }
    found.retain(|axis| *axis < rank);
    Ok(found)
}

/// The shape of x without `dims`, or with extents of 1 there.
fn without(x: &Array<'_>, dims: &[usize], keepdim: bool) -> Vec<usize> {
    let kept = |(axis, &extent)| match dims.contains(&axis) {
        false => Some(extent),
        true => keepdim.then_some(1),
    };
    x.shape.iter().enumerate().filter_map(kept).collect()
}

/// x as one sequence, and the order in which its axes lie, such that results are in row-major order.
fn in_order<'py>(call: &Call<'py>, x: Array<'py>, dims: &[usize]) -> PyResult<(Array<'py>, Vec<usize>)> {
    let mut order: Vec<usize> = (0..x.shape.len()).collect();
    if x.is_row_major() {
        return Ok((x, order));
    }
    order.sort_by_key(|axis| std::cmp::Reverse(x.strides[*axis]));
    let kept = order.iter().filter(|axis| !dims.contains(axis) && x.shape[**axis] != 1);
    if x.is_dense() && kept.is_sorted() {
        return Ok((x, order));
    }
    order.sort_unstable();
    Ok((call.row_major(x)?, order))
}

fn reduce<'py>(
    function: ReduceFunction,
    x: &Object<'py>,
    dtype: Maybe<'_, 'py>,
    o: &Options<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<ReduceDesc> = PlanCache::new();
    let op = function.name();
    let (call, x) = Call::new(op, ("x", x), o.stream)?;
    let dims = dims(&x, o.dim)?;
    let shape = without(&x, &dims, o.keepdim);
    let (x, order) = in_order(&call, x, &dims)?;
    let y_dtype = dtype.map_or(Ok(x.dtype), |d| dtype_given(d, Site { op, argument: "dtype" }))?;
    let desc = ReduceDesc {
        function,
        dtype: x.dtype,
        y_dtype,
        shape: order.iter().map(|axis| x.shape[*axis]).collect(),
        dims: (0..order.len()).filter(|at| dims.contains(&order[*at])).collect(),
    };
    let plan = call.plan(&PLANS, &desc)?;
    let y = call.output(("out", o.out), &x, Form::RowMajor(y_dtype, &shape))?;
    let outputs = [Some(y), call.workspace(&plan, &x)?];
    let [y, _] = call.run_some([Some(&x)], outputs, move |stream, [x], [y, workspace]| {
        Ok(plan.launch(stream, ReduceArgs { x: present(x), y: present(y), workspace })?)
    })?;
    Ok(present(y))
}

fn search<'py>(function: ArgReduceFunction, x: &Object<'py>, o: &Options<'_, 'py>) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<ArgReduceDesc> = PlanCache::new();
    let op = function.name();
    let (call, x) = Call::new(op, ("x", x), o.stream)?;
    let dims = dims(&x, o.dim)?;
    let shape = without(&x, &dims, o.keepdim);
    let x = call.row_major(x)?;
    let [outer, n, inner] = match dims[..] {
        [axis] if o.dim.is_some() => x.around(axis),
        _ => [1, x.len(), 1],
    };
    let plan = call.plan(&PLANS, &ArgReduceDesc { function, dtype: x.dtype, outer, n, inner })?;
    let index = call.output(("out", o.out), &x, Form::RowMajor(DType::I64, &shape))?;
    let outputs = [Some(index), call.workspace(&plan, &x)?];
    let [index, _] = call.run_some([Some(&x)], outputs, move |stream, [x], [index, workspace]| {
        Ok(plan.launch(stream, ArgReduceArgs { x: present(x), index: present(index), workspace })?)
    })?;
    Ok(present(index))
}

macro_rules! sums {
    ($($name:ident => $f:ident, $what:literal;)*) => {$(
        #[doc = concat!("The ", $what, " of the elements of x over the dimensions `dim`, summed in a fixed order.")]
        ///
        /// x: float32, float64, float16 or bfloat16, any shape; dim: a dimension or several, all if None. The result has the shape of x without
        /// them, or with extents of 1 there if keepdim, and the dtype of x, or `dtype`: float32 for a float16 or bfloat16 x.
        #[pyfunction]
        #[pyo3(signature = (x, dim=None, keepdim=false, *, dtype=None, out=None, stream=None))]
        pub(crate) fn $name<'py>(
            x: &Object<'py>,
            dim: Maybe<'_, 'py>,
            keepdim: bool,
            dtype: Maybe<'_, 'py>,
            out: Maybe<'_, 'py>,
            stream: Maybe<'_, 'py>,
        ) -> PyResult<Object<'py>> {
            reduce(ReduceFunction::$f, x, dtype, &Options { dim, keepdim, out, stream })
        }
    )*};
}

macro_rules! extremes {
    ($($name:ident => $f:ident, $what:literal;)*) => {$(
        #[doc = concat!("The ", $what, " of the elements of x over the dimensions `dim`, NaN where one is NaN.")]
        ///
        /// x: float32, float64, float16 or bfloat16, any shape; dim: a dimension or several, all if None. The result has the dtype of x and its
        /// shape without them, or with extents of 1 there if keepdim.
        #[pyfunction]
        #[pyo3(signature = (x, dim=None, keepdim=false, *, out=None, stream=None))]
        pub(crate) fn $name<'py>(
            x: &Object<'py>,
            dim: Maybe<'_, 'py>,
            keepdim: bool,
            out: Maybe<'_, 'py>,
            stream: Maybe<'_, 'py>,
        ) -> PyResult<Object<'py>> {
            reduce(ReduceFunction::$f, x, None, &Options { dim, keepdim, out, stream })
        }
    )*};
}

macro_rules! searches {
    ($($name:ident => $f:ident, $what:literal;)*) => {$(
        #[doc = concat!("Where the ", $what, " element of x is along dimension `dim`: the first of several, the first NaN before any number.")]
        ///
        /// x: float32, float64, float16 or bfloat16, any shape; without a dim all elements are searched in row-major order. The result is
        /// int64, of the shape of x without the dimension, or with an extent of 1 there if keepdim.
        #[pyfunction]
        #[pyo3(signature = (x, dim=None, keepdim=false, *, out=None, stream=None))]
        pub(crate) fn $name<'py>(
            x: &Object<'py>,
            dim: Option<isize>,
            keepdim: bool,
            out: Maybe<'_, 'py>,
            stream: Maybe<'_, 'py>,
        ) -> PyResult<Object<'py>> {
            let dim = dim.map(|dim| dim.into_pyobject(x.py())).transpose()?.map(Bound::into_any);
            search(ArgReduceFunction::$f, x, &Options { dim: dim.as_ref(), keepdim, out, stream })
        }
    )*};
}

sums! {
    sum => Sum, "sums";
    mean => Mean, "means";
}

extremes! {
    amax => Amax, "largest";
    amin => Amin, "least";
}

searches! {
    argmax => Argmax, "largest";
    argmin => Argmin, "least";
}
