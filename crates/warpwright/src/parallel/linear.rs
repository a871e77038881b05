//! Linear layers whose weights are split over the ranks (Shoeybi et al. 2019, arXiv:1909.08053), and whose rows are split between
//! them where that is asked for (Korthikanti et al. 2022, arXiv:2205.05198).

use warpwright_ops::Error;
use warpwright_ops::elementwise::add;
use warpwright_ops::gemm::{LinearGradients, MatmulOptions, linear_backward, linear_weight_backward, matmul};
use warpwright_runtime::comm::{Communicator, Reduction};
use warpwright_runtime::{Stream, Tensor};

use super::{matrix, refused};

/// The ranks that share a weight, and whether the rows of activations are split over them outside of the pair of layers.
#[derive(Clone, Copy, Debug)]
pub struct TensorParallel<'c> {
    /// The ranks.
    pub comm: &'c Communicator,
    /// Whether each rank has a part of the rows before a [`column_linear`] and after a [`row_linear`] (sequence parallelism), rather than
    /// all of them. The number of rows divides by that of the ranks.
    pub sequence: bool,
}

impl TensorParallel<'_> {
    /// The rows of all ranks.
    fn gather(self, stream: &Stream, x: &Tensor) -> Result<Tensor, Error> {
        let [rows, columns] = matrix("all_gather", "x", x)?;
        let mut all = Tensor::empty_on(stream, x.dtype(), &[rows.saturating_mul(self.comm.size()), columns])?;
        self.comm.all_gather(stream, x, &mut all)?;
        Ok(all)
    }

    /// The sum over the ranks, or this rank's rows of it.
    fn total(self, stream: &Stream, mut partial: Tensor) -> Result<Tensor, Error> {
        if !self.sequence {
            self.comm.all_reduce_in_place(stream, Reduction::Sum, &mut partial)?;
            return Ok(partial);
        }
        let ([rows, columns], size) = (matrix("reduce_scatter", "x", &partial)?, self.comm.size());
        if rows % size != 0 {
            return Err(refused("reduce_scatter", "rows", rows.to_string(), "a multiple of the ranks"));
        }
        let mut own = Tensor::empty_on(stream, partial.dtype(), &[rows / size, columns])?;
        self.comm.reduce_scatter(stream, Reduction::Sum, &partial, &mut own)?;
        Ok(own)
    }
}

const WEIGHT: MatmulOptions<'_> =
    MatmulOptions { transpose_a: false, transpose_b: true, bias: None, activation: None };
const PLAIN: MatmulOptions<'_> = MatmulOptions { transpose_b: false, ..WEIGHT };

/// `y = x weight^T + bias` with the rows of the weight, which are output features, split over the ranks.
///
/// `x` is `[rows, in_features]`, the same on all ranks, or with [`TensorParallel::sequence`] this rank's part of the rows; `weight` is
/// `[out_features / ranks, in_features]`, `bias` `[out_features / ranks]`, `y` `[rows, out_features / ranks]` of all rows. Ranks may have
/// different numbers of features. f32, f64, f16 or bf16.
///
/// # Errors
/// [`Error::Plan`] and [`Error::Runtime`] as [`matmul`](crate::matmul()); [`Error::Runtime`] as [`Communicator::run`].
pub fn column_linear(
    parallel: TensorParallel<'_>,
    stream: &Stream,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor, Error> {
    let options = MatmulOptions { bias, ..WEIGHT };
    if parallel.sequence {
        return matmul(stream, &parallel.gather(stream, x)?, weight, options);
    }
    matmul(stream, x, weight, options)
}

/// The gradients of [`column_linear`] from what it took and the gradient `dy` of its result.
///
/// `dx` is like `x` and complete: summed over the ranks. Gradients of weight and bias are those of this rank's features.
///
/// # Errors
/// As [`column_linear`].
pub fn column_linear_backward(
    parallel: TensorParallel<'_>,
    stream: &Stream,
    x: &Tensor,
    weight: &Tensor,
    bias: bool,
    dy: &Tensor,
) -> Result<LinearGradients, Error> {
    let dx = parallel.total(stream, matmul(stream, dy, weight, PLAIN)?)?;
    let gathered = parallel.sequence.then(|| parallel.gather(stream, x)).transpose()?;
    let (dweight, dbias) = linear_weight_backward(stream, gathered.as_ref().unwrap_or(x), dy, bias)?;
    Ok(LinearGradients { dx, dweight, dbias })
}

/// `y = x weight^T + bias` with the columns of the weight, which are input features, split over the ranks.
///
/// `x` is `[rows, in_features / ranks]`, as [`column_linear`] leaves it, `weight` `[out_features, in_features / ranks]`, `bias`
/// `[out_features]`, the same on all ranks; `y` is `[rows, out_features]`, the same on all ranks, or with
/// [`TensorParallel::sequence`] this rank's part of the rows. The bias is added once, after the sum.
///
/// # Errors
/// As [`column_linear`]; [`Error::Plan`] if the rows cannot be split evenly, or the bias has another shape.
pub fn row_linear(
    parallel: TensorParallel<'_>,
    stream: &Stream,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor, Error> {
    let partial = matmul(stream, x, weight, WEIGHT)?;
    // Before ranks wait for each other. A bias of another shape would be broadcast.
    if let (Some(bias), Some(features)) = (bias, partial.shape().last())
        && bias.shape() != [*features]
    {
        return Err(refused("row_linear", "bias", format!("{:?}", bias.shape()), "[out_features]"));
    }
    let y = parallel.total(stream, partial)?;
    match bias {
        Some(bias) => add(stream, &y, bias, 1.0),
        None => Ok(y),
    }
}

/// The gradients of [`row_linear`] from what it took and the gradient `dy` of its result.
///
/// `dy` is like `y`. Gradients of `x` and the weight are those of this rank's features; `dbias` is complete on every rank without
/// [`TensorParallel::sequence`], and with it, too: the rows are gathered for the others.
///
/// # Errors
/// As [`row_linear`].
pub fn row_linear_backward(
    parallel: TensorParallel<'_>,
    stream: &Stream,
    x: &Tensor,
    weight: &Tensor,
    bias: bool,
    dy: &Tensor,
) -> Result<LinearGradients, Error> {
    let gathered = parallel.sequence.then(|| parallel.gather(stream, dy)).transpose()?;
    linear_backward(stream, x, weight, gathered.as_ref().unwrap_or(dy), bias)
}
