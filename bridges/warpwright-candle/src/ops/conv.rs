//! Convolutions over one to three dimensions.

use candle_core::{Result, Tensor};
use candle_nn::{Conv1dConfig, Conv2dConfig};
use warpwright::conv::{Axis, Conv, ConvArgs, ConvBackwardArgs, ConvBackwardDesc, ConvDesc, Layout};
use warpwright::matmul::Precision;
use warpwright::plan::PlanCache;

use crate::array::{Array, Made, Spec};
use crate::call::{Call, present};
use crate::error::Error;
use crate::graph::record;

const OP: &str = "conv";

/// How a convolution goes over its input: one number for each spatial dimension, or one for all.
#[derive(Clone, Copy, Debug)]
pub struct ConvOptions<'a> {
    /// Zeros on either side.
    pub padding: &'a [usize],
    /// Pixels from one output to the next.
    pub stride: &'a [usize],
    /// Pixels from one tap to the next.
    pub dilation: &'a [usize],
    /// Groups of channels and filters.
    pub groups: usize,
}

impl Default for ConvOptions<'_> {
    fn default() -> Self {
        Self { padding: &[0], stride: &[1], dilation: &[1], groups: 1 }
    }
}

impl ConvOptions<'_> {
    fn axes(&self, image: &[usize], kernel: &[usize]) -> Result<[Axis; 3]> {
        let rank = image.len();
        let number = |argument: &'static str, list: &[usize], i: usize| match list {
            [all] => Ok(*all),
            list if list.len() == rank => Ok(list[i]),
            list => {
                let expected = format!("of one number, or of {rank}");
                Err(Error::Shape { op: OP, argument, expected, got: list.to_vec() })
            }
        };
        let mut axes = [Axis::ONE; 3];
        for (i, (&input, &taps)) in image.iter().zip(kernel).enumerate() {
            axes[3 - rank + i] = Axis::new(input, taps).with(
                number("stride", self.stride, i)?,
                number("padding", self.padding, i)?,
                number("dilation", self.dilation, i)?,
            );
        }
        Ok(axes)
    }
}

/// The convolution of `xs`, `[batch, channels, ..]` with one to three spatial dimensions, with `weight`, `[filters, channels / groups, ..]`,
/// and `bias`, `[filters]`, of one element type.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use warpwright_candle::ops::{self, ConvOptions};
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::ones((1, 1, 3, 3), DType::F32, &Device::Cpu)?;
/// let y = ops::conv(&x, &x, None, ConvOptions { padding: &[1], ..ConvOptions::default() })?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [4.0, 6.0, 4.0, 6.0, 9.0, 6.0, 4.0, 6.0, 4.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If shapes, element types, devices or options do not fit, or the element type is none of f32, f64, f16 and bf16.
pub fn conv(xs: &Tensor, weight: &Tensor, bias: Option<&Tensor>, options: ConvOptions<'_>) -> Result<Tensor> {
    static PLANS: PlanCache<ConvDesc> = PlanCache::new();
    let call = Call::new(OP, ("xs", xs))?;
    let &[batch, channels, ref image @ ..] = xs.dims() else {
        return Err(call.refuse_shape(("xs", xs), "[batch, channels, ..]"));
    };
    if !(1..=3).contains(&image.len()) {
        return Err(call.refuse_shape(("xs", xs), "of three to five dimensions"));
    }
    let x = call.row_major(("xs", xs))?;
    let &[filters, of_group, ref kernel @ ..] = weight.dims() else {
        return Err(call.refuse_shape(("weight", weight), "[filters, channels / groups, ..]"));
    };
    let groups = options.groups;
    if kernel.len() != image.len() || of_group.checked_mul(groups) != Some(channels) {
        let expected = format!("[filters, {channels} / {groups}, ..] of {} dimensions", xs.rank());
        return Err(call.refuse_shape(("weight", weight), expected));
    }
    let w = call.expect(("weight", weight), x.dtype, weight.dims())?;
    let b = call.optional("bias", bias, x.dtype, &[filters])?;
    let (layout, weight_layout) = (Layout::ChannelsFirst, Layout::ChannelsFirst);
    let (dtype, axes, precision) = (x.dtype, options.axes(image, kernel)?, Precision::Full);
    let conv = Conv { dtype, layout, weight_layout, batch, channels, filters, groups, axes, precision };
    let desc = ConvDesc { bias: b.is_some(), ..ConvDesc::new(conv) };
    let plan = call.plan(&PLANS, &desc)?;
    // Planned before: there are outputs.
    let outputs = axes[3 - image.len()..].iter().map(|axis| axis.outputs().unwrap_or(0));
    let result: Vec<usize> = [batch, filters].into_iter().chain(outputs).collect();
    let outputs = [Some(Spec::new(dtype, &result)), call.workspace(&plan)];
    let [y, _] =
        call.run([Some(&x), Some(&w), b.as_ref()], outputs, |stream, [x, weight, bias], [y, workspace]| {
            let (x, weight, y) = (present(x), present(weight), present(y));
            let (scale, residual) = (None, None);
            Ok(plan.launch(stream, ConvArgs { x, weight, scale, bias, residual, y, workspace })?)
        })?;
    let inputs: Vec<_> = [Some(("xs", xs)), Some(("weight", weight)), bias.map(|bias| ("bias", bias))]
        .into_iter()
        .flatten()
        .collect();
    let wanted = [xs.track_op(), weight.track_op(), bias.is_some_and(Tensor::track_op)];
    record(OP, &inputs, present(y), move |_, dy| gradients(conv, [&x, &w], dy, wanted))
}

fn gradients(
    conv: Conv,
    [x, weight]: [&Array; 2],
    dy: &Tensor,
    wanted: [bool; 3],
) -> Result<Vec<Option<Tensor>>> {
    static PLANS: PlanCache<ConvBackwardDesc> = PlanCache::new();
    let call = Call::new(OP, ("dy", dy))?;
    let dy = call.row_major(("dy", dy))?;
    let [dx, dweight, dbias] = wanted;
    let plan = call.plan(&PLANS, &ConvBackwardDesc { conv, dx, dweight, dbias })?;
    let outputs = [
        dx.then(|| Spec::like(x)),
        dweight.then(|| Spec::like(weight)),
        dbias.then(|| Spec::new(conv.dtype, &[conv.filters])),
        call.workspace(&plan),
    ];
    // Each gradient takes the other factor.
    let inputs = [dweight.then_some(x), dx.then_some(weight), Some(&dy)];
    let [dx, dweight, dbias, _] =
        call.run(inputs, outputs, |stream, [x, weight, dy], [dx, dweight, dbias, workspace]| {
            let dy = present(dy);
            Ok(plan.launch(stream, ConvBackwardArgs { x, weight, dy, dx, dweight, dbias, workspace })?)
        })?;
    [dx, dweight, dbias].into_iter().map(|made| made.map(Made::into_tensor).transpose()).collect()
}

/// [`conv()`] over one dimension, with candle's configuration; as [`Tensor::conv1d`] and a bias.
///
/// # Errors
/// As [`conv()`], and if `xs` is not of three dimensions.
pub fn conv1d(xs: &Tensor, weight: &Tensor, bias: Option<&Tensor>, config: &Conv1dConfig) -> Result<Tensor> {
    if xs.rank() != 3 {
        return Err(Call::new(OP, ("xs", xs))?.refuse_shape(("xs", xs), "[batch, channels, length]"));
    }
    let Conv1dConfig { padding, stride, dilation, groups, .. } = *config;
    conv(
        xs,
        weight,
        bias,
        ConvOptions { padding: &[padding], stride: &[stride], dilation: &[dilation], groups },
    )
}

/// [`conv()`] over two dimensions, with candle's configuration; as [`Tensor::conv2d`], which computes the groups one by one, and a bias.
///
/// # Errors
/// As [`conv()`], and if `xs` is not of four dimensions.
pub fn conv2d(xs: &Tensor, weight: &Tensor, bias: Option<&Tensor>, config: &Conv2dConfig) -> Result<Tensor> {
    if xs.rank() != 4 {
        return Err(Call::new(OP, ("xs", xs))?.refuse_shape(("xs", xs), "[batch, channels, height, width]"));
    }
    let Conv2dConfig { padding, stride, dilation, groups, .. } = *config;
    conv(
        xs,
        weight,
        bias,
        ConvOptions { padding: &[padding], stride: &[stride], dilation: &[dilation], groups },
    )
}
