//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::{Axis, Conv, ConvArgs, ConvBackwardArgs, ConvBackwardDesc, ConvDesc, Layout};
use crate::activation::Activation;
use crate::gemm::Precision;
use crate::plan::PlanCache;
use crate::{Error, PlanError};

/// How [`conv`] goes over an image; the default is a stride of 1 without padding, channels first. Lists have a number for each spatial
/// dimension, or one for all.
#[derive(Clone, Copy, Debug)]
pub struct ConvOptions<'a> {
    /// Multiplies each channel of the sums, `[filters]`. With it scale and bias are of f32, or of f64 for f64. Backward knows none.
    pub scale: Option<&'a Tensor>,
    /// Added to each channel of the result, `[filters]`.
    pub bias: Option<&'a Tensor>,
    /// Added to the result before the activation, of its shape. Backward knows none.
    pub residual: Option<&'a Tensor>,
    /// A function of the sums, after the bias; any but the leaky ReLU. Backward knows no activation.
    pub activation: Option<Activation>,
    /// Pixels from one output to the next.
    pub stride: &'a [usize],
    /// Zeros on either side of an image.
    pub padding: &'a [usize],
    /// Pixels from one tap to the next.
    pub dilation: &'a [usize],
    /// Groups of channels and filters.
    pub groups: usize,
    /// Where the channels of `x`, the weight and the result are.
    pub layout: Layout,
    /// How exact products of `f32` are.
    pub precision: Precision,
}

impl Default for ConvOptions<'_> {
    fn default() -> Self {
        Self {
            scale: None,
            bias: None,
            residual: None,
            activation: None,
            stride: &[1],
            padding: &[0],
            dilation: &[1],
            groups: 1,
            layout: Layout::ChannelsFirst,
            precision: Precision::Full,
        }
    }
}

/// Gradients of [`conv`].
#[derive(Debug)]
pub struct ConvGradients {
    /// Like `x`.
    pub dx: Tensor,
    /// Like the weight.
    pub dweight: Tensor,
    /// `[filters]`, if there is a bias.
    pub dbias: Option<Tensor>,
}

/// Images or channels, channels, and the extents of the other dimensions.
fn parts<'s>(
    name: &'static str,
    shape: &'s [usize],
    layout: Layout,
) -> Result<(usize, usize, &'s [usize]), PlanError> {
    let found = match (layout, shape) {
        (Layout::ChannelsFirst, [outer, channels, extents @ ..]) => (*outer, *channels, extents),
        (Layout::ChannelsLast, [outer, extents @ .., channels]) => (*outer, *channels, extents),
        _ => (0, 0, [].as_slice()),
    };
    if (1..=3).contains(&found.2.len()) {
        return Ok(found);
    }
    Err(Conv::refused(name, format!("{shape:?}"), "of three to five dimensions"))
}

impl ConvOptions<'_> {
    fn conv(&self, x: &Tensor, weight: &Tensor) -> Result<Conv, PlanError> {
        let (batch, channels, image) = parts("x", x.shape(), self.layout)?;
        let (filters, of_group, kernel) = parts("weight", weight.shape(), self.layout)?;
        if kernel.len() != image.len() {
            let got = format!("{:?}", weight.shape());
            return Err(Conv::refused("weight", got, "of as many dimensions as x"));
        }
        if of_group.checked_mul(self.groups) != Some(channels) {
            let got = format!("{:?}", weight.shape());
            return Err(Conv::refused("weight", got, "of the channels of x, divided by the groups"));
        }
        let dims = image.len();
        let number = |name, list: &[usize], i: usize| match list {
            [all] => Ok(*all),
            list if list.len() == dims => Ok(list[i]),
            list => {
                Err(Conv::refused(name, format!("{list:?}"), "a number for each spatial dimension, or one"))
            }
        };
        let mut axes = [Axis::ONE; 3];
        for (i, (input, kernel)) in image.iter().zip(kernel).enumerate() {
            axes[3 - dims + i] = Axis::new(*input, *kernel).with(
                number("stride", self.stride, i)?,
                number("padding", self.padding, i)?,
                number("dilation", self.dilation, i)?,
            );
        }
        let Self { groups, layout, precision, .. } = *self;
        let (dtype, weight_layout) = (x.dtype(), layout);
        Ok(Conv { dtype, layout, weight_layout, batch, channels, filters, groups, axes, precision })
    }

    /// The shape of the result.
    fn result(&self, conv: &Conv, dims: usize) -> Vec<usize> {
        // Planned before: there are outputs.
        let outputs = conv.axes[3 - dims..].iter().map(|axis| axis.outputs().unwrap_or(0));
        let (batch, filters) = (conv.batch, conv.filters);
        match self.layout {
            Layout::ChannelsFirst => [batch, filters].into_iter().chain(outputs).collect(),
            Layout::ChannelsLast => [batch].into_iter().chain(outputs).chain([filters]).collect(),
        }
    }
}

/// `y = activation(scale conv(x, weight) + bias + residual)`, as `torch.nn.functional.conv1d`, `conv2d` and `conv3d`; see the [module](crate::conv).
///
/// `x` is `[batch, channels, ..spatial]` and `weight` `[filters, channels / groups, ..kernel]`, or with
/// [`ChannelsLast`](Layout::ChannelsLast) `[batch, ..spatial, channels]` and `[filters, ..kernel, channels / groups]`, of one to three spatial
/// dimensions and of f32, f64, f16 or bf16. `y` is `[batch, filters, ..outputs]` or `[batch, ..outputs, filters]`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::conv::ConvOptions;
/// use warpwright::{Device, Tensor, conv};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], &[1, 1, 3])?;
/// let weight = Tensor::from_slice(&device, &[1.0f32, 10.0, 100.0], &[1, 1, 3])?;
/// let y = conv(&stream, &x, &weight, ConvOptions { padding: &[1], ..Default::default() })?;
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [210.0, 321.0, 32.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the shapes do not fit each other, a residual is not of the result's, the kernel is larger than the padded image, or the element type is none of those.
/// [`Error::Runtime`] if the types, the scale or the bias do not fit, or memory runs out.
pub fn conv(stream: &Stream, x: &Tensor, weight: &Tensor, options: ConvOptions<'_>) -> Result<Tensor, Error> {
    static PLANS: PlanCache<ConvDesc> = PlanCache::new();
    let conv = options.conv(x, weight)?;
    let ConvOptions { scale, bias, residual, activation, .. } = options;
    let (with_scale, with_bias, with_residual) = (scale.is_some(), bias.is_some(), residual.is_some());
    let desc = ConvDesc { conv, scale: with_scale, bias: with_bias, residual: with_residual, activation };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let shape = options.result(&conv, x.shape().len() - 2);
    if let Some(other) = residual.map(Tensor::shape).filter(|residual| *residual != shape) {
        return Err(Conv::refused("residual", format!("{other:?}"), "of the shape of the result").into());
    }
    let mut y = Tensor::empty_on(stream, x.dtype(), &shape)?;
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        ConvArgs {
            x: x.as_ref(),
            weight: weight.as_ref(),
            scale: scale.map(Tensor::as_ref),
            bias: bias.map(Tensor::as_ref),
            residual: residual.map(Tensor::as_ref),
            y: y.as_mut(),
            workspace: workspace.as_mut().map(Tensor::as_mut),
        },
    )?;
    Ok(y)
}

/// The gradients of [`conv`] without an activation, as PyTorch's autograd gives them: of `x`, the weight, and the bias if the options have one.
///
/// `dy` is of the shape of the result; the other tensors and the options are forward's.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::conv::ConvOptions;
/// use warpwright::{Device, Tensor, conv_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], &[1, 1, 3])?;
/// let weight = Tensor::from_slice(&device, &[1.0f32, 10.0], &[1, 1, 2])?;
/// let dy = Tensor::from_slice(&device, &[1.0f32, 100.0], &[1, 1, 2])?;
/// let gradients = conv_backward(&stream, &x, &weight, &dy, ConvOptions::default())?;
/// assert_eq!(gradients.dx.to_vec_on::<f32>(&stream)?, [1.0, 110.0, 1000.0]);
/// assert_eq!(gradients.dweight.to_vec_on::<f32>(&stream)?, [201.0, 302.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`conv`]; [`Error::Plan`] too if there is an activation, a scale or a residual.
pub fn conv_backward(
    stream: &Stream,
    x: &Tensor,
    weight: &Tensor,
    dy: &Tensor,
    options: ConvOptions<'_>,
) -> Result<ConvGradients, Error> {
    static PLANS: PlanCache<ConvBackwardDesc> = PlanCache::new();
    let conv = options.conv(x, weight)?;
    if let Some(activation) = options.activation {
        return Err(Conv::refused("activation", activation.name(), "none, backward").into());
    }
    for (name, given) in [("scale", options.scale), ("residual", options.residual)] {
        if let Some(given) = given {
            return Err(Conv::refused(name, format!("{:?}", given.shape()), "none, backward").into());
        }
    }
    let desc = ConvBackwardDesc { conv, dx: true, dweight: true, dbias: options.bias.is_some() };
    let plan = PLANS.get(&desc, stream.device().target())?;
    if dy.shape() != options.result(&conv, x.shape().len() - 2) {
        return Err(Conv::refused("dy", format!("{:?}", dy.shape()), "of the shape of the result").into());
    }
    let mut dx = Tensor::empty_on(stream, x.dtype(), x.shape())?;
    let mut dweight = Tensor::empty_on(stream, x.dtype(), weight.shape())?;
    let dbias = options.bias.map(|_| Tensor::empty_on(stream, x.dtype(), &[conv.filters]));
    let mut dbias = dbias.transpose()?;
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        ConvBackwardArgs {
            x: Some(x.as_ref()),
            weight: Some(weight.as_ref()),
            dy: dy.as_ref(),
            dx: Some(dx.as_mut()),
            dweight: Some(dweight.as_mut()),
            dbias: dbias.as_mut().map(Tensor::as_mut),
            workspace: workspace.as_mut().map(Tensor::as_mut),
        },
    )?;
    Ok(ConvGradients { dx, dweight, dbias })
}
