//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::{EmbeddingArgs, EmbeddingBackwardArgs, EmbeddingBackwardDesc, EmbeddingDesc, OP};
use crate::plan::PlanCache;
use crate::{Error, PlanError};

/// How [`embedding_backward`] adds up; the default is PyTorch's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmbeddingOptions {
    /// A row that gets no gradient.
    pub padding_idx: Option<usize>,
    /// Whether the sum of a row is divided by the number of its terms.
    pub scale_grad_by_freq: bool,
}

/// The rows of `weight` that `indices` name, as `torch.nn.functional.embedding` and `torch.index_select` along the first dimension; see
/// the [module](crate::embedding).
///
/// `weight` is `[num_embeddings, dim]`, of f32, f64, f16 or bf16, `indices` of any shape, i64 or i32; the result is `[.., dim]`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, embedding};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let weight = Tensor::from_slice(&device, &[0.0f32, 1.0, 2.0, 3.0], &[2, 2])?;
/// let indices = Tensor::from_slice(&device, &[1i64, 0, 1], &[1, 3])?;
/// let y = embedding(&stream, &weight, &indices)?;
/// assert_eq!(y.shape(), [1, 3, 2]);
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [2.0, 3.0, 0.0, 1.0, 2.0, 3.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `weight` is not of two dimensions, or an element type is none of those. [`Error::Runtime`] if memory runs out. An
/// index that is no row gives NaN; [`check_indices`](super::check_indices) finds it on the host.
pub fn embedding(stream: &Stream, weight: &Tensor, indices: &Tensor) -> Result<Tensor, Error> {
    static PLANS: PlanCache<EmbeddingDesc> = PlanCache::new();
    let &[num_embeddings, dim] = weight.shape() else {
        let got = format!("{:?}", weight.shape());
        return Err(PlanError::refused(OP, "weight", got, "[num_embeddings, dim]").into());
    };
    let (dtype, index, count) = (weight.dtype(), indices.dtype(), indices.len());
    let desc = EmbeddingDesc { dtype, index, num_embeddings, dim, count };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let shape: Vec<usize> = indices.shape().iter().copied().chain([dim]).collect();
    let mut y = Tensor::empty_on(stream, dtype, &shape)?;
    plan.launch(stream, EmbeddingArgs { weight: weight.as_ref(), indices: indices.as_ref(), y: y.as_mut() })?;
    Ok(y)
}

/// The gradient of the `weight` of [`embedding`], `[num_embeddings, dim]`, from the gradient `dy` of its result: the rows of `dy` added
/// up by their indices, in order; zero where there are none.
///
/// `dy` is `[.., dim]`, of f32, f64, f16 or bf16; sums of 16-bit types are in f32.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::embedding::EmbeddingOptions;
/// use warpwright::{Device, Tensor, embedding_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let indices = Tensor::from_slice(&device, &[2i64, 0, 2], &[3])?;
/// let dy = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], &[3, 1])?;
/// let dweight = embedding_backward(&stream, &dy, &indices, 4, EmbeddingOptions::default())?;
/// assert_eq!(dweight.to_vec_on::<f32>(&stream)?, [2.0, 0.0, 4.0, 0.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `dy` has no dimension, `padding_idx` is no row, or an element type is none of those. [`Error::Runtime`] if `dy` has not
/// a row for each index, or memory runs out.
pub fn embedding_backward(
    stream: &Stream,
    dy: &Tensor,
    indices: &Tensor,
    num_embeddings: usize,
    options: EmbeddingOptions,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<EmbeddingBackwardDesc> = PlanCache::new();
    let Some(&dim) = dy.shape().last() else {
        return Err(PlanError::refused(OP, "dy", "[]", "[.., dim]").into());
    };
    let (dtype, index, count) = (dy.dtype(), indices.dtype(), indices.len());
    let forward = EmbeddingDesc { dtype, index, num_embeddings, dim, count };
    let EmbeddingOptions { padding_idx, scale_grad_by_freq } = options;
    let desc = EmbeddingBackwardDesc { forward, padding_idx, scale_grad_by_freq };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut dweight = Tensor::empty_on(stream, dtype, &[num_embeddings, dim])?;
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        EmbeddingBackwardArgs {
            dy: dy.as_ref(),
            indices: indices.as_ref(),
            dweight: dweight.as_mut(),
            workspace: workspace.as_mut().map(Tensor::as_mut),
        },
    )?;
    Ok(dweight)
}
