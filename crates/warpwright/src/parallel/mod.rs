//! Operations spread over the ranks of a [`Communicator`]: batch norm with the statistics of all ranks, linear layers,
//! embedding and cross entropy whose weights are split, norms and attention over split sequences, and gradients of a model
//! that every rank has.
//!
//! Every rank calls the same functions in the same order, each with its own tensors and its own device. The results are those
//! of one device with all the data, up to the order of sums, and the same on every run with the same ranks. Functions only
//! enqueue; [`Communicator::synchronize`](crate::comm::Communicator::synchronize) waits with a deadline.
//!
//! | what is split | functions | exchanged, forward and backward |
//! |---|---|---|
//! | the batch | [`sync_batch_norm`] | statistics of each channel |
//! | the batch | [`GradientBuckets`] | the gradients, while backward runs |
//! | the columns or rows of a weight | [`column_linear`], [`row_linear`] | the activations |
//! | the vocabulary | [`VocabularyShard`] | the embeddings; of the loss three numbers of each row |
//! | the sequence, between the layers above | [`sum_norm_gradients`] | gradients of weights of norms |
//! | the sequence | [`ContextParallel`] | keys and values |

mod attention;
mod batch_norm;
mod data;
mod linear;
mod vocabulary;

use warpwright_ops::cast::cast;
use warpwright_ops::elementwise::{Expr, map_into};
use warpwright_ops::{Error, NormGradients, PlanError};
use warpwright_ptx::DType;
use warpwright_runtime::comm::{Communicator, Group, Reduction};
use warpwright_runtime::{Stream, Tensor, TensorRef};

pub use self::attention::{ContextParallel, Variant};
pub use self::batch_norm::{SyncBatchNormOutput, sync_batch_norm, sync_batch_norm_backward};
pub use self::data::GradientBuckets;
pub use self::linear::{
    TensorParallel, column_linear, column_linear_backward, row_linear, row_linear_backward,
};
pub use self::vocabulary::{VocabularyLoss, VocabularyShard};
pub use warpwright_ops::gemm::LinearGradients;

/// Sums the gradients of the weight and the bias of a norm over ranks that each have a part of the rows, as in sequence
/// parallelism: the norm itself is that of each rank's rows, forward and backward.
///
/// # Errors
/// [`Error::Runtime`] as [`Communicator::run`].
pub fn sum_norm_gradients(
    comm: &Communicator,
    stream: &Stream,
    gradients: &mut NormGradients,
) -> Result<(), Error> {
    let mut group = Group::new();
    for gradient in [&mut gradients.dweight, &mut gradients.dbias].into_iter().flatten() {
        group.all_reduce_in_place(Reduction::Sum, gradient);
    }
    Ok(comm.run(stream, group)?)
}

fn refused(op: &'static str, parameter: &'static str, got: String, expected: &'static str) -> Error {
    PlanError::Parameter { op, parameter, got, expected }.into()
}

/// Rows and columns of a matrix.
fn matrix(op: &'static str, parameter: &'static str, x: &Tensor) -> Result<[usize; 2], Error> {
    match x.shape() {
        &[rows, columns] => Ok([rows, columns]),
        shape => Err(refused(op, parameter, format!("{shape:?}"), "of two dimensions")),
    }
}

/// One expression of tensors that may have strides, in a new tensor of the given shape.
fn map_new<'a>(
    stream: &Stream,
    inputs: impl IntoIterator<Item = TensorRef<'a>>,
    (expr, scalars): (Expr, &[f64]),
    dtype: DType,
    shape: &[usize],
) -> Result<Tensor, Error> {
    let mut y = Tensor::empty_on(stream, dtype, shape)?;
    if !y.is_empty() {
        let inputs = inputs.into_iter().map(Into::into).collect();
        map_into(stream, inputs, &[expr], scalars, vec![y.as_mut()])?;
    }
    Ok(y)
}

/// A tensor of another type, such as that in which sums of its elements are formed; itself if it has the type.
fn into_dtype(stream: &Stream, x: Tensor, dtype: DType) -> Result<Tensor, Error> {
    if x.dtype() == dtype { Ok(x) } else { cast(stream, &x, dtype) }
}
