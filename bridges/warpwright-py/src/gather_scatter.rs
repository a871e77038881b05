//! `gather_rows`, `scatter_rows` and `row_dots` as Python functions.

use pyo3::prelude::*;
use warpwright::DType;
use warpwright::gather_scatter::{
    GatherRowsArgs, GatherRowsDesc, IndexedRows, RowDotsArgs, RowDotsDesc, ScatterRowsArgs, ScatterRowsDesc,
    check_index,
};
use warpwright::plan::PlanCache;

use crate::array::{Array, Site, dtype_given};
use crate::call::{Call, Form, present};
use crate::error::{Class, Problem};
use crate::indices::known;
use crate::library::{Maybe, Object};

/// The indices of some of so many rows.
fn index<'py>(call: &Call<'py>, op: &'static str, object: &Object<'py>, rows: usize) -> PyResult<Array<'py>> {
    let index = call.row_major(call.read(("index", object))?)?;
    if matches!(index.dtype, DType::I32 | DType::I64)
        && let Some(numbers) = known(&index, call.stream())?
    {
        check_index(op, &numbers, rows).map_err(|e| call.raise(e))?;
    }
    Ok(index)
}

/// A factor for each index.
fn factors<'py>(
    call: &Call<'py>,
    object: Maybe<'_, 'py>,
    index: &Array<'py>,
) -> PyResult<Option<Array<'py>>> {
    let read = |object| {
        let factors = call.row_major(call.read(("factors", object))?)?;
        factors.expect_shape(&index.shape)?;
        Ok(factors)
    };
    object.map(read).transpose()
}

/// The dimensions of an array behind the first `from`, which it must have.
fn behind<'a>(op: &'static str, x: &'a Array<'_>, from: usize) -> PyResult<&'a [usize]> {
    x.shape.get(from..).ok_or_else(|| {
        let name = x.site.argument;
        let message = format!("{op}: {name} has {} dimensions, expected at least {from}", x.shape.len());
        Problem::new(x.object.py(), Class::Shape, message).at(op, name).into_err()
    })
}

fn indexed(x: &Array<'_>, index: &Array<'_>, rows: usize, row: &[usize]) -> IndexedRows {
    let dim = row.iter().product();
    IndexedRows { dtype: x.dtype, index: index.dtype, rows, dim, count: index.len() }
}

/// The rows of x that `index` names, each times its factor if there are factors.
///
/// x: float32, float64, float16 or bfloat16, [rows, ..]; index: int64 or int32, any shape; factors: of the shape of index, in the dtype of x or
/// float32 for 16-bit types. The result has the dtype of x and the shape of index with that of a row behind it. An index that is no row is
/// refused on the host and gives NaN on a GPU, see `validate_indices`.
#[pyfunction]
#[pyo3(signature = (x, index, factors=None, *, out=None, stream=None))]
pub(crate) fn gather_rows<'py>(
    x: &Object<'py>,
    index: &Object<'py>,
    factors: Maybe<'_, 'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<GatherRowsDesc> = PlanCache::new();
    const OP: &str = "gather_rows";
    let (call, x) = Call::new(OP, ("x", x), stream)?;
    let x = call.row_major(x)?;
    let row = behind(OP, &x, 1)?.to_vec();
    let index = self::index(&call, OP, index, x.shape[0])?;
    let factors = self::factors(&call, factors, &index)?;
    let of = indexed(&x, &index, x.shape[0], &row);
    let desc = GatherRowsDesc { of, factors: factors.as_ref().map(|factors| factors.dtype) };
    let plan = call.plan(&PLANS, &desc)?;
    let shape: Vec<usize> = index.shape.iter().chain(&row).copied().collect();
    let y = call.output(("out", out), &x, Form::RowMajor(x.dtype, &shape))?;
    let inputs = [Some(&x), Some(&index), factors.as_ref()];
    let [y] = call.run_some(inputs, [Some(y)], move |stream, [x, index, factors], [y]| {
        let (x, index, y) = (present(x), present(index), present(y));
        Ok(plan.launch(stream, GatherRowsArgs { x, index, factors, y })?)
    })?;
    Ok(present(y))
}

/// The sums of those rows of x that have the same index, times their factors if there are factors, onto `base` or zeros; in the order of their
/// places.
///
/// x: float32, float64, float16 or bfloat16, of the shape of index with that of a row behind it; index: int64 or int32, any shape; rows: those of
/// the result; factors: of the shape of index, in the dtype of x or float32 for 16-bit types; base: of the shape and dtype of the result. The
/// result is [rows, ..] in the dtype of x; `out` may be `base`. An index that is no row is refused on the host and passed over on a GPU, see
/// `validate_indices`.
#[pyfunction]
#[pyo3(signature = (x, index, rows, factors=None, base=None, *, out=None, stream=None))]
pub(crate) fn scatter_rows<'py>(
    x: &Object<'py>,
    index: &Object<'py>,
    rows: usize,
    factors: Maybe<'_, 'py>,
    base: Maybe<'_, 'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<ScatterRowsDesc> = PlanCache::new();
    const OP: &str = "scatter_rows";
    let (call, x) = Call::new(OP, ("x", x), stream)?;
    let x = call.row_major(x)?;
    let index = self::index(&call, OP, index, rows)?;
    let row = behind(OP, &x, index.shape.len())?.to_vec();
    let expected: Vec<usize> = index.shape.iter().chain(&row).copied().collect();
    x.expect_shape(&expected)?;
    let factors = self::factors(&call, factors, &index)?;
    let shape: Vec<usize> = [rows].iter().chain(&row).copied().collect();
    let base = call.optional(("base", base), x.dtype, &shape)?;
    let desc = ScatterRowsDesc {
        of: indexed(&x, &index, rows, &row),
        factors: factors.as_ref().map(|factors| factors.dtype),
        base: base.is_some(),
    };
    let plan = call.plan(&PLANS, &desc)?;
    let y = call.output(("out", out), &x, Form::RowMajor(x.dtype, &shape))?;
    let inputs = [Some(&x), Some(&index), factors.as_ref(), base.as_ref()];
    let outputs = [Some(y), call.workspace(&plan, &x)?];
    let [y, _] =
        call.run_some(inputs, outputs, move |stream, [x, index, factors, base], [y, workspace]| {
            let (x, index, y) = (present(x), present(index), present(y));
            Ok(plan.launch(stream, ScatterRowsArgs { x, index, factors, base, y, workspace })?)
        })?;
    Ok(present(y))
}

/// The products of the rows of a with the rows of b that `index` names: the gradients of the factors of `gather_rows` and `scatter_rows`.
///
/// a: float32, float64, float16 or bfloat16, of the shape of index with that of a row behind it; b: [rows, ..] of the same dtype; index: int64 or
/// int32, any shape. The result has the shape of index, in the dtype of a, or `dtype`: float32 for 16-bit types. An index that is no row is
/// refused on the host and gives NaN on a GPU, see `validate_indices`.
#[pyfunction]
#[pyo3(signature = (a, b, index, *, dtype=None, out=None, stream=None))]
pub(crate) fn row_dots<'py>(
    a: &Object<'py>,
    b: &Object<'py>,
    index: &Object<'py>,
    dtype: Maybe<'_, 'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<RowDotsDesc> = PlanCache::new();
    const OP: &str = "row_dots";
    let (call, a) = Call::new(OP, ("a", a), stream)?;
    let a = call.row_major(a)?;
    let b = call.row_major(call.read(("b", b))?)?;
    b.expect_dtype(a.dtype)?;
    let row = behind(OP, &b, 1)?.to_vec();
    let index = self::index(&call, OP, index, b.shape[0])?;
    let expected: Vec<usize> = index.shape.iter().chain(&row).copied().collect();
    a.expect_shape(&expected)?;
    let y_dtype = dtype.map_or(Ok(a.dtype), |d| dtype_given(d, Site { op: OP, argument: "dtype" }))?;
    let of = indexed(&a, &index, b.shape[0], &row);
    let plan = call.plan(&PLANS, &RowDotsDesc { of, y_dtype })?;
    let y = call.output(("out", out), &a, Form::RowMajor(y_dtype, &index.shape))?;
    let [y] = call.run(&[a, b, index], [y], move |stream, [a, b, index], [y]| {
        Ok(plan.launch(stream, RowDotsArgs { a, b, index, y })?)
    })?;
    Ok(y)
}
