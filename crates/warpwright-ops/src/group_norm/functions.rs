//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::{
    GroupNormArgs, GroupNormBackwardArgs, GroupNormBackwardDesc, GroupNormDesc, GroupShape, Layout, OP,
};
use crate::Error;
use crate::norm::{NormGradients, NormOutput};
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

/// Everything that a group norm takes beside `x`; the default is one group without weight and bias, channels first.
#[derive(Clone, Copy, Debug)]
pub struct GroupNormOptions<'a> {
    /// Groups of a sample, a divisor of the number of channels. `instance_norm` has as many as channels, whatever this is.
    pub groups: usize,
    /// Factor of each channel, `[channels]`, of the element type of `x`.
    pub weight: Option<&'a Tensor>,
    /// Summand of each channel, as `weight`.
    pub bias: Option<&'a Tensor>,
    /// Added to the variance.
    pub eps: f64,
    /// Whether `silu` follows.
    pub silu: bool,
    /// How `x` lies in memory.
    pub layout: Layout,
    /// Whether no statistics are saved: then there is no backward pass.
    pub inference: bool,
}

impl Default for GroupNormOptions<'_> {
    fn default() -> Self {
        Self {
            groups: 1,
            weight: None,
            bias: None,
            eps: 1e-5,
            silu: false,
            layout: Layout::ChannelsFirst,
            inference: false,
        }
    }
}

/// `y = (x - mean) rstd weight + bias` over the channels and pixels of each group (Wu and He 2018, arXiv:1803.08494), as
/// `torch.nn.functional.group_norm`, with `silu` of that if it is asked for; see the [module](crate::group_norm).
///
/// `x` is `[batch, channels, ..]`, or `[batch, .., channels]` for channels last, of f32, f64, f16 or bf16; `y` is like `x`, `mean` and
/// `rstd` are `[batch, groups]`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::group_norm::GroupNormOptions;
/// use warpwright::{Device, Tensor, group_norm};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// // Two groups of one channel each.
/// let x = Tensor::from_slice(&device, &[1.0f32, 3.0, 2.0, 10.0], &[1, 2, 2])?;
/// let out = group_norm(&stream, &x, GroupNormOptions { groups: 2, eps: 0.0, ..Default::default() })?;
/// assert_eq!(out.y.to_vec_on::<f32>(&stream)?, [-1.0, 1.0, -1.0, 1.0]);
/// assert_eq!(out.mean.expect("saved").to_vec_on::<f32>(&stream)?, [2.0, 6.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the groups do not divide the channels, `eps` is negative, or the element type is none of those.
/// [`Error::Runtime`] if weight or bias do not fit, or memory runs out.
pub fn group_norm(stream: &Stream, x: &Tensor, options: GroupNormOptions<'_>) -> Result<NormOutput, Error> {
    static PLANS: PlanCache<GroupNormDesc> = PlanCache::new();
    let GroupNormOptions { groups, weight, bias, eps, silu, layout, inference } = options;
    let shape = shape_of(x, groups, layout);
    let batch = shape.batch;
    let desc = GroupNormDesc {
        dtype: x.dtype(),
        shape,
        weight: weight.is_some(),
        bias: bias.is_some(),
        silu,
        statistics: !inference,
        eps: eps.into(),
    };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let per_group = || Tensor::empty_on(stream, x.dtype().accumulator(), &[batch, groups]);
    let mut y = Tensor::empty_on(stream, x.dtype(), x.shape())?;
    let mut mean = (!inference).then(per_group).transpose()?;
    let mut rstd = (!inference).then(per_group).transpose()?;
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        GroupNormArgs {
            x: x.as_ref(),
            weight: weight.map(Tensor::as_ref),
            bias: bias.map(Tensor::as_ref),
            y: y.as_mut(),
            mean: mean.as_mut().map(Tensor::as_mut),
            rstd: rstd.as_mut().map(Tensor::as_mut),
            workspace: workspace.as_mut().map(Tensor::as_mut),
        },
    )?;
    Ok(NormOutput { y, z: None, mean, rstd })
}

/// The gradients of [`group_norm`] from its `x`, `output` and options, and the gradient `dy` of `y`.
///
/// `dy` and `dx` are like `x`, f32, f64, f16 or bf16; `dweight` and `dbias` are `[channels]`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::group_norm::GroupNormOptions;
/// use warpwright::{Device, Tensor, group_norm, group_norm_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 3.0, 2.0, 10.0], &[1, 2, 2])?;
/// let weight = Tensor::ones_on(&stream, x.dtype(), &[2])?;
/// let options = GroupNormOptions { groups: 2, weight: Some(&weight), eps: 0.0, ..Default::default() };
/// let out = group_norm(&stream, &x, options)?;
/// let dy = Tensor::from_slice(&device, &[0.0f32, 1.0, 2.0, 0.0], &[1, 2, 2])?;
/// let gradients = group_norm_backward(&stream, &x, &out, &dy, options)?;
/// assert_eq!(gradients.dweight.expect("there is a weight").to_vec_on::<f32>(&stream)?, [1.0, -2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] as [`group_norm`], and if the output was for inference. [`Error::Runtime`] if the tensors do not fit each other,
/// or memory runs out.
pub fn group_norm_backward(
    stream: &Stream,
    x: &Tensor,
    output: &NormOutput,
    dy: &Tensor,
    options: GroupNormOptions<'_>,
) -> Result<NormGradients, Error> {
    static PLANS: PlanCache<GroupNormBackwardDesc> = PlanCache::new();
    let GroupNormOptions { groups, weight, bias, silu, layout, .. } = options;
    let (mean, rstd) = (output.saved_mean(OP)?, output.saved_rstd(OP)?);
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
            mean: mean.as_ref(),
            rstd: rstd.as_ref(),
            weight: weight.map(Tensor::as_ref),
            bias: bias.filter(|_| silu).map(Tensor::as_ref),
            dx: dx.as_mut(),
            dweight: dweight.as_mut().map(Tensor::as_mut),
            dbias: dbias.as_mut().map(Tensor::as_mut),
            workspace: workspace.as_mut().map(Tensor::as_mut),
        },
    )?;
    Ok(NormGradients { dx, dweight, dbias, dresidual: None })
}

/// The same with each channel as a group.
fn instance<'a>(x: &Tensor, options: GroupNormOptions<'a>) -> GroupNormOptions<'a> {
    GroupNormOptions { groups: shape_of(x, 1, options.layout).channels, ..options }
}

/// [`group_norm`] with as many groups as channels: each channel of each sample is normalized by itself (Ulyanov et al. 2016,
/// arXiv:1607.08022).
///
/// `x` is `[batch, channels, ..]`, or `[batch, .., channels]` for channels last, of f32, f64, f16 or bf16; `y` is like `x`, `mean` and
/// `rstd` are `[batch, channels]`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::group_norm::GroupNormOptions;
/// use warpwright::{Device, Tensor, instance_norm};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 3.0, 2.0, 10.0], &[1, 2, 2])?;
/// let out = instance_norm(&stream, &x, GroupNormOptions { eps: 0.0, ..Default::default() })?;
/// assert_eq!(out.y.to_vec_on::<f32>(&stream)?, [-1.0, 1.0, -1.0, 1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`group_norm`].
pub fn instance_norm(
    stream: &Stream,
    x: &Tensor,
    options: GroupNormOptions<'_>,
) -> Result<NormOutput, Error> {
    group_norm(stream, x, instance(x, options))
}

/// The gradients of [`instance_norm`] from its `x`, `output` and options, and the gradient `dy` of `y`.
///
/// `dy` and `dx` are like `x`, f32, f64, f16 or bf16; `dweight` and `dbias` are `[channels]`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::group_norm::GroupNormOptions;
/// use warpwright::{Device, Tensor, instance_norm, instance_norm_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 3.0, 2.0, 10.0], &[1, 2, 2])?;
/// let bias = Tensor::zeros_on(&stream, x.dtype(), &[2])?;
/// let options = GroupNormOptions { bias: Some(&bias), ..Default::default() };
/// let out = instance_norm(&stream, &x, options)?;
/// let dy = Tensor::from_slice(&device, &[0.0f32, 1.0, 2.0, 0.0], &[1, 2, 2])?;
/// let gradients = instance_norm_backward(&stream, &x, &out, &dy, options)?;
/// assert_eq!(gradients.dbias.expect("there is a bias").to_vec_on::<f32>(&stream)?, [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`group_norm_backward`].
pub fn instance_norm_backward(
    stream: &Stream,
    x: &Tensor,
    output: &NormOutput,
    dy: &Tensor,
    options: GroupNormOptions<'_>,
) -> Result<NormGradients, Error> {
    group_norm_backward(stream, x, output, dy, instance(x, options))
}
