//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::{
    GroupNormArgs, GroupNormBackwardArgs, GroupNormBackwardDesc, GroupNormDesc, GroupShape, Layout,
    statistics_dtype,
};
use crate::Error;
use crate::plan::PlanCache;

/// Samples, channels and pixels of a tensor `[N, C, *]` or `[N, *, C]`; missing dimensions count as 1.
fn shape_of(x: &Tensor, groups: usize, layout: Layout) -> GroupShape {
    let shape = x.shape();
    let batch = shape.first().copied().unwrap_or(1);
    let rest = shape.get(1..).unwrap_or(&[]);
    let (channels, spatial) = match layout {
        Layout::ChannelsFirst => (rest.first().copied(), rest.get(1..)),
        Layout::ChannelsLast => (rest.last().copied(), rest.get(..rest.len().saturating_sub(1))),
    };
    let spatial = spatial.unwrap_or(&[]).iter().product();
    GroupShape { batch, channels: channels.unwrap_or(1), spatial, groups, layout }
}

/// The result of [`group_norm_training`].
#[derive(Debug)]
pub struct Normalized {
    /// Of the shape of `x`.
    pub y: Tensor,
    /// `[N, groups]`, f32, or f64 for f64.
    pub mean: Tensor,
    /// `1 / sqrt(variance + eps)`, as `mean`.
    pub rstd: Tensor,
}

/// What goes into a normalisation beside `x`.
#[derive(Clone, Copy, Debug)]
pub struct GroupNorm<'a> {
    /// Groups of a sample, a divisor of the number of channels.
    pub groups: usize,
    /// `[C]`
    pub weight: Option<&'a Tensor>,
    /// `[C]`
    pub bias: Option<&'a Tensor>,
    /// What is added to the variance.
    pub eps: f64,
    /// Whether `silu` follows.
    pub silu: bool,
    /// How `x` lies in memory.
    pub layout: Layout,
}

static PLANS: PlanCache<GroupNormDesc> = PlanCache::new();

/// Launches the forward operation; `saved` receives mean and rstd.
fn forward(
    stream: &Stream,
    x: &Tensor,
    options: GroupNorm<'_>,
    saved: Option<(&mut Tensor, &mut Tensor)>,
) -> Result<Tensor, Error> {
    let GroupNorm { groups, weight, bias, eps, silu, layout } = options;
    let desc = GroupNormDesc {
        dtype: x.dtype(),
        shape: shape_of(x, groups, layout),
        weight: weight.is_some(),
        bias: bias.is_some(),
        silu,
        statistics: saved.is_some(),
        eps: eps.into(),
    };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut y = Tensor::empty_on(stream, x.dtype(), x.shape())?;
    let mut workspace = plan.workspace(stream)?;
    let (mean, rstd) = saved.map(|(mean, rstd)| (mean.as_mut(), rstd.as_mut())).unzip();
    plan.launch(
        stream,
        GroupNormArgs {
            x: x.as_ref(),
            weight: weight.map(Tensor::as_ref),
            bias: bias.map(Tensor::as_ref),
            y: y.as_mut(),
            mean,
            rstd,
            workspace: workspace.as_mut().map(Tensor::as_mut),
        },
    )?;
    Ok(y)
}

/// `x` normalised over its groups.
///
/// # Errors
/// The groups do not divide the channels, the tensors do not fit each other, the element type is not supported, or
/// memory runs out.
pub fn group_norm(stream: &Stream, x: &Tensor, options: GroupNorm<'_>) -> Result<Tensor, Error> {
    forward(stream, x, options, None)
}

/// `x` normalised over its groups, with the statistics that the gradient needs.
///
/// # Errors
/// As [`group_norm`].
pub fn group_norm_training(stream: &Stream, x: &Tensor, options: GroupNorm<'_>) -> Result<Normalized, Error> {
    let batch = shape_of(x, options.groups, options.layout).batch;
    let make = || Tensor::empty_on(stream, statistics_dtype(x.dtype()), &[batch, options.groups]);
    let (mut mean, mut rstd) = (make()?, make()?);
    let y = forward(stream, x, options, Some((&mut mean, &mut rstd)))?;
    Ok(Normalized { y, mean, rstd })
}

/// Each channel of `x`, `[N, C, *]`, as a group.
fn instance<'a>(x: &Tensor, weight: Option<&'a Tensor>, bias: Option<&'a Tensor>, eps: f64) -> GroupNorm<'a> {
    let layout = Layout::ChannelsFirst;
    GroupNorm { groups: shape_of(x, 1, layout).channels, weight, bias, eps, silu: false, layout }
}

/// `x` normalised over each channel of each sample, `[N, C, *]`: [`group_norm`] with as many groups as channels.
///
/// # Errors
/// As [`group_norm`].
pub fn instance_norm(
    stream: &Stream,
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor, Error> {
    group_norm(stream, x, instance(x, weight, bias, eps))
}

/// [`instance_norm`] with the statistics that its gradient needs, `[N, C]`.
///
/// # Errors
/// As [`group_norm`].
pub fn instance_norm_training(
    stream: &Stream,
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Normalized, Error> {
    group_norm_training(stream, x, instance(x, weight, bias, eps))
}

/// The gradients of [`group_norm`].
#[derive(Debug)]
pub struct GroupNormGradients {
    /// Of `x`, of its shape.
    pub dx: Tensor,
    /// Of the weight, `[C]`, if there is one.
    pub dweight: Option<Tensor>,
    /// Of the bias, `[C]`, if there is one.
    pub dbias: Option<Tensor>,
}

/// The gradients of [`group_norm_training`] for the gradient `dy` of its result; `options` as there (`eps` is not used).
///
/// # Errors
/// As [`group_norm`].
pub fn group_norm_backward(
    stream: &Stream,
    x: &Tensor,
    dy: &Tensor,
    saved: (&Tensor, &Tensor),
    options: GroupNorm<'_>,
) -> Result<GroupNormGradients, Error> {
    static PLANS: PlanCache<GroupNormBackwardDesc> = PlanCache::new();
    let GroupNorm { groups, weight, bias, silu, layout, .. } = options;
    let shape = shape_of(x, groups, layout);
    let desc = GroupNormBackwardDesc {
        dtype: x.dtype(),
        shape,
        weight: weight.is_some(),
        bias: bias.is_some(),
        silu,
        dweight: weight.is_some(),
        dbias: bias.is_some(),
    };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut dx = Tensor::empty_on(stream, x.dtype(), x.shape())?;
    let channels =
        |wanted: bool| wanted.then(|| Tensor::empty_on(stream, x.dtype(), &[shape.channels])).transpose();
    let (mut dweight, mut dbias) = (channels(weight.is_some())?, channels(bias.is_some())?);
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        GroupNormBackwardArgs {
            x: x.as_ref(),
            dy: dy.as_ref(),
            mean: saved.0.as_ref(),
            rstd: saved.1.as_ref(),
            weight: weight.map(Tensor::as_ref),
            bias: bias.filter(|_| silu).map(Tensor::as_ref),
            dx: dx.as_mut(),
            dweight: dweight.as_mut().map(Tensor::as_mut),
            dbias: dbias.as_mut().map(Tensor::as_mut),
            workspace: workspace.as_mut().map(Tensor::as_mut),
        },
    )?;
    Ok(GroupNormGradients { dx, dweight, dbias })
}

/// The gradients of [`instance_norm_training`] for the gradient `dy` of its result.
///
/// # Errors
/// As [`group_norm`].
pub fn instance_norm_backward(
    stream: &Stream,
    x: &Tensor,
    dy: &Tensor,
    saved: (&Tensor, &Tensor),
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
) -> Result<GroupNormGradients, Error> {
    group_norm_backward(stream, x, dy, saved, instance(x, weight, bias, 0.0))
}
