//! Batch norm with the statistics of the batches of all ranks.

use warpwright_ops::batch_norm::{
    BatchNormOptions, BatchNormSums, MergedStatistics, RunningStatistics, batch_moments, batch_norm_gradient,
    batch_norm_merged, batch_norm_sums,
};
use warpwright_ops::copy::split;
use warpwright_ops::{Error, NormGradients};
use warpwright_runtime::comm::{Communicator, Group, Reduction};
use warpwright_runtime::{Stream, Tensor};

use super::{into_dtype, refused};

const OP: &str = "sync_batch_norm";

/// The result of [`sync_batch_norm`], and what its backward function takes.
#[derive(Debug)]
pub struct SyncBatchNormOutput {
    /// The result, like `x`.
    pub y: Tensor,
    /// The statistics of each channel over all ranks.
    pub statistics: MergedStatistics,
}

/// [`batch_norm`](crate::batch_norm()) with the statistics of the batches of all ranks, as `torch.nn.SyncBatchNorm`; moves the running
/// statistics if they are given.
///
/// `x` is this rank's part of the batch, `[batch, channels, ..]` or `[batch, .., channels]`, of f32, f64, f16 or bf16; ranks may have batches of
/// different sizes, or empty ones, and the same channels. Weight, bias and running statistics are `[channels]` and the same on all
/// ranks. Each rank's mean, sum of squared distances from it, and count go to all others in one launch; all ranks merge them in the same
/// order (Chan, Golub and LeVeque 1979), so that they have the same statistics to the last bit.
///
/// # Errors
/// [`Error::Plan`] and [`Error::Runtime`] as `batch_norm`; [`Error::Runtime`] as [`Communicator::run`].
pub fn sync_batch_norm(
    comm: &Communicator,
    stream: &Stream,
    x: &Tensor,
    running: Option<RunningStatistics<'_>>,
    options: BatchNormOptions<'_>,
) -> Result<SyncBatchNormOutput, Error> {
    if x.shape().len() < 2 {
        return Err(refused(OP, "x", format!("{:?}", x.shape()), "of at least two dimensions"));
    }
    let own = batch_moments(stream, x, options)?;
    let mut moments = Tensor::empty_on(stream, own.dtype(), &[comm.size(), own.len()])?;
    let mut group = Group::new();
    group.all_gather(&own, &mut moments);
    comm.run(stream, group)?;
    let (y, statistics) = batch_norm_merged(stream, x, &moments, running, options)?;
    Ok(SyncBatchNormOutput { y, statistics })
}

/// The gradients of [`sync_batch_norm`] from its `x`, `output` and options, and the gradient `dy` of this rank's `y`.
///
/// `dy` and `dx` are like `x`. `dweight` and `dbias`, `[channels]`, are those of this rank's values, as those of other layers under data
/// parallelism: whoever sums gradients over ranks sums these, too. The sums of each channel over all ranks, which `dx` depends on, are
/// exchanged in one launch.
///
/// # Errors
/// As [`sync_batch_norm`].
pub fn sync_batch_norm_backward(
    comm: &Communicator,
    stream: &Stream,
    x: &Tensor,
    output: &SyncBatchNormOutput,
    dy: &Tensor,
    options: BatchNormOptions<'_>,
) -> Result<NormGradients, Error> {
    let SyncBatchNormOutput { y, statistics } = output;
    let y = options.relu.then_some(y);
    let of_all = [&statistics.mean, &statistics.rstd];
    let BatchNormSums { sums, g } = batch_norm_sums(stream, x, y, dy, of_all, options)?;
    let mut total = Tensor::empty_on(stream, sums.dtype(), sums.shape())?;
    let mut group = Group::new();
    group.all_reduce(Reduction::Sum, &sums, &mut total);
    comm.run(stream, group)?;
    let dx = batch_norm_gradient(stream, x, g.as_ref().unwrap_or(dy), statistics, &total, options)?;
    let mut rows = split(stream, &sums, &[1, 1], 0)?.into_iter();
    let mut gradient_of = |parameter: Option<&Tensor>| {
        let row = rows.next().zip(parameter);
        row.map(|(row, p)| into_dtype(stream, row.reshape(p.shape())?, p.dtype())).transpose()
    };
    let (dweight, dbias) = (gradient_of(options.weight)?, gradient_of(options.bias)?);
    Ok(NormGradients { dx, dweight, dbias, dresidual: g.filter(|_| options.residual.is_some()) })
}
