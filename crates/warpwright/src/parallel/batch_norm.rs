//! Batch norm with the statistics of the batches of all ranks.

use warpwright_ops::batch_norm::{
    BatchNormOptions, BatchNormSums, Layout, RunningStatistics, batch_norm_gradient, batch_norm_inference,
    batch_norm_sums, batch_statistics,
};
use warpwright_ops::cast::cast;
use warpwright_ops::copy::cat;
use warpwright_ops::elementwise::{Expr, Operand, map, map_into};
use warpwright_ops::reduce::sum;
use warpwright_ops::{Error, NormGradients, NormOutput};
use warpwright_ptx::DType;
use warpwright_runtime::comm::{Communicator, Group, Reduction};
use warpwright_runtime::{Stream, Tensor};

use super::{into_dtype, map_new, refused};

const OP: &str = "sync_batch_norm";

/// The result of [`sync_batch_norm`], and what its backward function takes.
#[derive(Debug)]
pub struct SyncBatchNormOutput {
    /// The result, and the mean and `rstd` of each channel over all ranks.
    pub norm: NormOutput,
    /// The biased variance of each channel over all ranks, `[channels]`, as the mean.
    pub var: Tensor,
    /// How many values of a channel all ranks have, `[1]`, as the mean.
    pub count: Tensor,
}

/// Which part of `x` is a channel.
struct Channels {
    channels: usize,
    /// Values of a channel on this rank.
    count: usize,
    wide: DType,
}

impl Channels {
    fn of(x: &Tensor, layout: Layout) -> Result<Self, Error> {
        let shape = x.shape();
        let &[batch, .., _] = shape else {
            return Err(refused(OP, "x", format!("{shape:?}"), "of at least two dimensions"));
        };
        let (channels, spatial) = match layout {
            Layout::ChannelsFirst => (shape[1], &shape[2..]),
            Layout::ChannelsLast => (shape[shape.len() - 1], &shape[1..shape.len() - 1]),
        };
        let count = spatial.iter().fold(batch, |n, extent| n.saturating_mul(*extent));
        Ok(Self { channels, count, wide: x.dtype().accumulator() })
    }

    fn empty(&self, stream: &Stream) -> Result<Tensor, Error> {
        Ok(Tensor::empty_on(stream, self.wide, &[self.channels])?)
    }
}

/// Weight, bias or running statistics in the type that batch norm computes in.
fn widened(stream: &Stream, x: Option<&Tensor>, wide: DType) -> Result<Option<Tensor>, Error> {
    x.map(|x| cast(stream, x, wide)).transpose()
}

/// Mean and sum of squared distances from it of each channel on this rank: zeros without values.
fn local_statistics(
    stream: &Stream,
    x: &Tensor,
    layout: Layout,
    of: &Channels,
) -> Result<[Tensor; 2], Error> {
    if of.count == 0 {
        let zeros = || Tensor::zeros_on(stream, of.wide, &[of.channels]);
        return Ok([zeros()?, zeros()?]);
    }
    let options = BatchNormOptions { eps: 0.0, layout, ..Default::default() };
    let [mean, rstd] = batch_statistics(stream, x, options)?;
    let spread = (Expr::scalar(0) / Expr::input(0).square(), &[of.count as f64][..]);
    Ok([mean, map_new(stream, [rstd.as_ref()], spread, of.wide, &[of.channels])?])
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
    let of = Channels::of(x, options.layout)?;
    let [mean, spread] = local_statistics(stream, x, options.layout, &of)?;
    let count = map_new(stream, [], (Expr::scalar(0), &[of.count as f64]), of.wide, &[1])?;
    let gathered = |columns| Tensor::empty_on(stream, of.wide, &[comm.size(), columns]);
    let (mut means, mut spreads, mut counts) = (gathered(of.channels)?, gathered(of.channels)?, gathered(1)?);
    let mut group = Group::new();
    group.all_gather(&mean, &mut means).all_gather(&spread, &mut spreads).all_gather(&count, &mut counts);
    comm.run(stream, group)?;

    let [a, b] = Expr::inputs();
    let count = sum(stream, &counts, &[0], false)?;
    let weighted = map(stream, &[&counts, &means], &(a * b), &[], of.wide)?;
    let [a, b] = Expr::inputs();
    let mean = map(stream, &[&sum(stream, &weighted, &[0], false)?, &count], &(a / b), &[], of.wide)?;
    let [spread, n, theirs, ours] = Expr::inputs();
    let about = spread + n * (theirs - ours).square();
    let about = map(stream, &[&spreads, &counts, &means, &mean], &about, &[], of.wide)?;
    let total = sum(stream, &about, &[0], false)?;
    let (mut var, mut rstd) = (of.empty(stream)?, of.empty(stream)?);
    let [total_, n] = Expr::inputs();
    let variance = total_ / n;
    let exprs = [variance.clone(), (variance + Expr::scalar(0)).rsqrt()];
    let inputs: Vec<Operand<'_>> = vec![total.as_ref().into(), count.as_ref().into()];
    map_into(stream, inputs, &exprs, &[options.eps], vec![var.as_mut(), rstd.as_mut()])?;
    if let Some(running) = running {
        move_running(stream, running, [&mean, &total, &count])?;
    }

    let weight = widened(stream, options.weight, of.wide)?;
    let bias = widened(stream, options.bias, of.wide)?;
    let options = BatchNormOptions { weight: weight.as_ref(), bias: bias.as_ref(), ..options };
    let y = if of.count == 0 {
        Tensor::empty_on(stream, x.dtype(), x.shape())?
    } else {
        batch_norm_inference(stream, x, &mean, &var, options)?.y
    };
    let norm = NormOutput { y, z: None, mean: Some(mean), rstd: Some(rstd) };
    Ok(SyncBatchNormOutput { norm, var, count })
}

/// Moves running statistics towards those of all ranks; there they stay if there is one value or none.
fn move_running(
    stream: &Stream,
    running: RunningStatistics<'_>,
    [mean, total, count]: [&Tensor; 3],
) -> Result<(), Error> {
    let RunningStatistics { mean: running_mean, var: running_var, momentum } = running;
    let [old_mean, old_var, mean_, total_, n] = Expr::inputs();
    let (keep, factor) = (Expr::scalar(0), Expr::scalar(1));
    let several = n.gt(Expr::constant(1.0));
    let moved = |old: &Expr, new: Expr| several.where_(old * &keep + new * &factor, old.clone());
    let unbiased = total_ / (&n - Expr::constant(1.0));
    let exprs = [moved(&old_mean, mean_), moved(&old_var, unbiased)];
    let mut inputs = vec![Operand::Output(0), Operand::Output(1)];
    inputs.extend([mean, total, count].map(|x| Operand::Tensor(x.as_ref())));
    let factor = momentum.factor();
    map_into(
        stream,
        inputs,
        &exprs,
        &[1.0 - factor, factor],
        vec![running_mean.as_mut(), running_var.as_mut()],
    )
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
    let of = Channels::of(x, options.layout)?;
    let saved = |tensor: &Option<Tensor>| tensor.is_some();
    let (Some(mean), Some(rstd)) = (&output.norm.mean, &output.norm.rstd) else {
        let got = format!("mean: {}, rstd: {}", saved(&output.norm.mean), saved(&output.norm.rstd));
        return Err(refused(OP, "output", got, "with its statistics"));
    };
    let ones = || Ok::<_, Error>(Tensor::ones_on(stream, of.wide, &[of.channels])?);
    let weight = widened(stream, options.weight, of.wide)?.map_or_else(ones, Ok)?;
    let (sums, masked) = if of.count == 0 {
        let zeros = Tensor::zeros_on(stream, of.wide, &[of.channels])?;
        ([zeros.clone_on(stream)?, zeros], None)
    } else {
        let y = options.relu.then_some(&output.norm.y);
        let BatchNormSums { dweight, dbias, g } = batch_norm_sums(stream, x, y, dy, [mean, rstd], options)?;
        ([dbias, dweight], g)
    };
    let [dbias, dweight] = sums;
    let (mut all_dbias, mut all_dweight) = (of.empty(stream)?, of.empty(stream)?);
    let mut group = Group::new();
    group.all_reduce(Reduction::Sum, &dbias, &mut all_dbias);
    group.all_reduce(Reduction::Sum, &dweight, &mut all_dweight);
    comm.run(stream, group)?;

    let dx = if of.count == 0 {
        Tensor::empty_on(stream, x.dtype(), x.shape())?
    } else {
        let (mut of_g, mut slope, mut shift) = (of.empty(stream)?, of.empty(stream)?, of.empty(stream)?);
        let [w, r, sum_dy, sum_dy_normal, n] = Expr::inputs();
        let scale = w * &r;
        let exprs = [scale.clone(), -(&scale * r) * sum_dy_normal / &n, -scale * sum_dy / n];
        let inputs = [&weight, rstd, &all_dbias, &all_dweight, &output.count];
        let inputs = inputs.map(|x| Operand::Tensor(x.as_ref())).into();
        map_into(stream, inputs, &exprs, &[], vec![of_g.as_mut(), slope.as_mut(), shift.as_mut()])?;
        let coefficients = cat(stream, &[mean, &of_g, &slope, &shift], 0)?.reshape(&[4, of.channels])?;
        batch_norm_gradient(stream, x, masked.as_ref().unwrap_or(dy), &coefficients, options)?
    };
    let as_parameter = |given: Option<&Tensor>, gradient: Tensor| {
        given.map(|given| into_dtype(stream, gradient, given.dtype())).transpose()
    };
    let dresidual = match (options.relu && options.residual.is_some(), masked) {
        (true, None) => Some(Tensor::empty_on(stream, x.dtype(), x.shape())?),
        (wanted, masked) => masked.filter(|_| wanted),
    };
    Ok(NormGradients {
        dx,
        dweight: as_parameter(options.weight, dweight)?,
        dbias: as_parameter(options.bias, dbias)?,
        dresidual,
    })
}
