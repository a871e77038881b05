//! `embedding` as Python functions.

use pyo3::prelude::*;
use warpwright::DType;
use warpwright::embedding::{
    EmbeddingArgs, EmbeddingBackwardArgs, EmbeddingBackwardDesc, EmbeddingDesc, check_indices,
};
use warpwright::plan::PlanCache;

use crate::array::Array;
use crate::call::{Call, Form, present};
use crate::error::{Class, Problem};
use crate::indices::known;
use crate::library::{Maybe, Object};

/// The indices of rows of a table with so many.
fn indices<'py>(call: &Call<'py>, object: &Object<'py>, num_embeddings: usize) -> PyResult<Array<'py>> {
    let indices = call.row_major(call.read(("indices", object))?)?;
    if matches!(indices.dtype, DType::I32 | DType::I64)
        && let Some(numbers) = known(&indices, call.stream())?
    {
        check_indices(&numbers, num_embeddings).map_err(|e| call.raise(e))?;
    }
    Ok(indices)
}

/// The rows of `weight` that `indices` name.
///
/// weight: float32, float64, float16 or bfloat16, [num_embeddings, dim]; indices: int64 or int32, any shape. The result has the dtype of
/// weight and the shape of indices with dim behind it. An index that is no row is refused on the host and gives NaN on a GPU, see
/// `validate_indices`.
#[pyfunction]
#[pyo3(signature = (weight, indices, *, out=None, stream=None))]
pub(crate) fn embedding<'py>(
    weight: &Object<'py>,
    indices: &Object<'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<EmbeddingDesc> = PlanCache::new();
    let (call, weight) = Call::new("embedding", ("weight", weight), stream)?;
    let [num_embeddings, dim] = weight.extents()?;
    let weight = call.row_major(weight)?;
    let indices = self::indices(&call, indices, num_embeddings)?;
    let (dtype, index, count) = (weight.dtype, indices.dtype, indices.len());
    let plan = call.plan(&PLANS, &EmbeddingDesc { dtype, index, num_embeddings, dim, count })?;
    let shape: Vec<usize> = indices.shape.iter().copied().chain([dim]).collect();
    let y = call.output(("out", out), &weight, Form::RowMajor(dtype, &shape))?;
    let [y] = call.run(&[weight, indices], [y], move |stream, [weight, indices], [y]| {
        Ok(plan.launch(stream, EmbeddingArgs { weight, indices, y })?)
    })?;
    Ok(y)
}

/// The gradient of the weight of `embedding`: the rows of `dy` added up by their indices, in a fixed order; zeros where there are none.
///
/// dy: the gradient of the result, of the shape of indices with dim behind it; indices: as there; num_embeddings: rows of the weight.
/// padding_idx: a row that gets no gradient. scale_grad_by_freq: whether the sum of a row is divided by the number of its terms. The result is
/// [num_embeddings, dim] in the dtype of dy.
#[pyfunction]
#[pyo3(signature = (dy, indices, num_embeddings, *, padding_idx=None, scale_grad_by_freq=false, out=None, stream=None))]
pub(crate) fn embedding_backward<'py>(
    dy: &Object<'py>,
    indices: &Object<'py>,
    num_embeddings: usize,
    padding_idx: Option<usize>,
    scale_grad_by_freq: bool,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<EmbeddingBackwardDesc> = PlanCache::new();
    const OP: &str = "embedding_backward";
    let (call, dy) = Call::new(OP, ("dy", dy), stream)?;
    let Some(&dim) = dy.shape.last() else {
        let message = format!("{OP}: dy has no dimensions, expected the shape of indices with dim behind it");
        return Err(Problem::new(dy.object.py(), Class::Shape, message).at(OP, "dy").into_err());
    };
    let dy = call.row_major(dy)?;
    let indices = self::indices(&call, indices, num_embeddings)?;
    let expected: Vec<usize> = indices.shape.iter().copied().chain([dim]).collect();
    dy.expect_shape(&expected)?;
    let forward =
        EmbeddingDesc { dtype: dy.dtype, index: indices.dtype, num_embeddings, dim, count: indices.len() };
    let plan = call.plan(&PLANS, &EmbeddingBackwardDesc { forward, padding_idx, scale_grad_by_freq })?;
    let dweight = call.output(("out", out), &dy, Form::RowMajor(dy.dtype, &[num_embeddings, dim]))?;
    let outputs = [Some(dweight), call.workspace(&plan, &dy)?];
    let [dweight, _] =
        call.run_some([Some(&dy), Some(&indices)], outputs, move |stream, inputs, outputs| {
            let ([dy, indices], [dweight, workspace]) = (inputs.map(present), outputs);
            let dweight = present(dweight);
            Ok(plan.launch(stream, EmbeddingBackwardArgs { dy, indices, dweight, workspace })?)
        })?;
    Ok(present(dweight))
}
