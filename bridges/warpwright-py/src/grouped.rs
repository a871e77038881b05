//! Products of groups of rows as Python functions.

use pyo3::prelude::*;
use warpwright::DType;
use warpwright::grouped_gemm::{GroupedGemmArgs, GroupedGemmDesc, check_ends};
use warpwright::plan::PlanCache;

use crate::array::Array;
use crate::call::{Call, Form};
use crate::indices::known_i32;
use crate::library::{Maybe, Object};
use crate::matmul::matrices;

/// A matrix whose rows lie together, and the elements from one to the next.
fn rows<'py>(call: &Call<'py>, array: Array<'py>) -> PyResult<(Array<'py>, usize)> {
    let [_, cols] = array.extents()?;
    let (array, found) = matrices(call, array)?;
    if found.transposed { Ok((call.row_major(array)?, cols)) } else { Ok((array, found.leading)) }
}

/// Where groups of `rows` rows end.
fn ends<'py>(call: &Call<'py>, ends: &Object<'py>, rows: usize) -> PyResult<Array<'py>> {
    let ends = call.read(("ends", ends))?;
    ends.expect_dtype(DType::I32)?;
    let [_] = ends.extents()?;
    let ends = call.row_major(ends)?;
    if let Some(numbers) = known_i32(&ends, call.stream())? {
        check_ends("ends", &numbers, rows).map_err(|e| call.raise(e))?;
    }
    Ok(ends)
}

fn product<'py>(
    call: &Call<'py>,
    desc: &GroupedGemmDesc,
    inputs: [Array<'py>; 3],
    shape: &[usize],
    out: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<GroupedGemmDesc> = PlanCache::new();
    let plan = call.plan(&PLANS, desc)?;
    let y = call.output(("out", out), &inputs[0], Form::RowMajor(desc.dtype, shape))?;
    let [y] = call.run(&inputs, [y], move |stream, [a, b, ends], [y]| {
        Ok(plan.launch(stream, GroupedGemmArgs { a, b, ends, y })?)
    })?;
    Ok(y)
}

/// Each row of a times the matrix of its group: mixtures of experts.
///
/// a: [m, k]; b: [groups, k, n], as it is or as the transpose of [groups, n, k], of which no copy is made; float32, float16 or bfloat16, of
/// one dtype. ends: int32 [groups], for each group the row behind its last, where the next begins; on the host it is checked, on a GPU it is
/// cut to the rows that there are (`validate_indices`). Groups may be empty and have any size. The result is [m, n]; rows behind the last
/// group are zeros.
#[pyfunction]
#[pyo3(signature = (a, b, ends, *, out=None, stream=None))]
pub(crate) fn grouped_matmul<'py>(
    a: &Object<'py>,
    b: &Object<'py>,
    ends: &Object<'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let (call, a) = Call::new("grouped_matmul", ("a", a), stream)?;
    let (a, lda) = rows(&call, a)?;
    let b = call.read(("b", b))?;
    b.expect_dtype(a.dtype)?;
    let [groups, rows_b, cols_b] = b.extents()?;
    let (mut b, right) = matrices(&call, b)?;
    let (mut transposed, mut ldb) = (right.transposed, right.leading);
    if !right.is_packed() {
        b = call.row_major(b)?;
        (transposed, ldb) = (false, cols_b);
    }
    let [m, k] = a.extents()?;
    if rows_b != k {
        b.expect_shape(&[groups, k, cols_b])?;
    }
    let ends = self::ends(&call, ends, m)?;
    ends.expect_shape(&[groups])?;
    let packed = GroupedGemmDesc::new(a.dtype, groups, [m, cols_b, k], transposed);
    let desc = GroupedGemmDesc { lda, ldb, ..packed };
    product(&call, &desc, [a, b, ends], &[m, cols_b], out)
}

/// The transposed rows of a of each group times those of b: gradients of the matrices of `grouped_matmul`.
///
/// a: [k, m]; b: [k, n]; float32, float16 or bfloat16, of one dtype. ends: int32 [groups], as `grouped_matmul`. The result is
/// [groups, m, n], zeros for an empty group.
#[pyfunction]
#[pyo3(signature = (a, b, ends, *, out=None, stream=None))]
pub(crate) fn grouped_matmul_k<'py>(
    a: &Object<'py>,
    b: &Object<'py>,
    ends: &Object<'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let (call, a) = Call::new("grouped_matmul_k", ("a", a), stream)?;
    let (a, lda) = rows(&call, a)?;
    let b = call.read(("b", b))?;
    b.expect_dtype(a.dtype)?;
    let (b, ldb) = rows(&call, b)?;
    let ([k, m], [_, n]) = (a.extents()?, b.extents()?);
    b.expect_shape(&[k, n])?;
    let ends = self::ends(&call, ends, k)?;
    let [groups] = ends.extents()?;
    let packed = GroupedGemmDesc::new_k(a.dtype, groups, [m, n, k]);
    let desc = GroupedGemmDesc { lda, ldb, ..packed };
    product(&call, &desc, [a, b, ends], &[groups, m, n], out)
}
