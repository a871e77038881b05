//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::{
    ADAPTIVE_AVERAGE, ADAPTIVE_MAX, AVERAGE, Argmax, AvgPoolArgs, AvgPoolBackwardArgs, AvgPoolBackwardDesc,
    AvgPoolDesc, Divisor, Layout, MAX, MaxPoolArgs, MaxPoolBackwardArgs, MaxPoolBackwardDesc, MaxPoolDesc,
    Pool, SlidingWindows, Windows,
};
use crate::images::Dimensions;
use crate::plan::PlanCache;
use crate::{Error, PlanError};

/// Everything that [`max_pool`] takes beside `x` and the kernel; the default is PyTorch's. Numbers for each dimension are as many as
/// there are, or one for all of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct MaxPoolOptions<'a> {
    /// Cells from a window to the next; empty for windows side by side.
    pub stride: &'a [usize],
    /// Cells that the first window begins before the input, filled with minus infinity; empty for 0.
    pub padding: &'a [usize],
    /// Cells from one cell of a window to the next; empty for 1.
    pub dilation: &'a [usize],
    /// Whether a last window may end behind the padding, if it begins before it.
    pub ceil_mode: bool,
    /// How `x` lies in memory.
    pub layout: Layout,
    /// Whether and how it is kept where the maxima are from; without there is no backward pass.
    pub argmax: Argmax,
}

/// Everything that [`avg_pool`] takes beside `x` and the kernel; the default is PyTorch's. Numbers for each dimension are as many as
/// there are, or one for all of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct AvgPoolOptions<'a> {
    /// Cells from a window to the next; empty for windows side by side.
    pub stride: &'a [usize],
    /// Cells that the first window begins before the input, filled with 0; empty for 0.
    pub padding: &'a [usize],
    /// Whether a last window may end behind the padding, if it begins before it.
    pub ceil_mode: bool,
    /// How `x` lies in memory.
    pub layout: Layout,
    /// The number that sums are divided by.
    pub divisor: Divisor,
}

/// The result of [`max_pool`] and [`adaptive_max_pool`], and what their backward functions take.
#[derive(Debug)]
pub struct MaxPoolOutput {
    /// The maxima, like `x` with the extents of the output.
    pub y: Tensor,
    /// Where they are from, of the shape of `y`, of i64 or u8; `None` for [`Argmax::None`].
    pub indices: Option<Tensor>,
}

fn sliding(
    of: &Dimensions<'_>,
    kernel: &[usize],
    stride: &[usize],
    padding: &[usize],
    dilation: &[usize],
    ceil_mode: bool,
) -> Result<Windows, PlanError> {
    let three = |parameter, given: &[usize], default, other| {
        if given.is_empty() { Ok(default) } else { of.three(parameter, given, other) }
    };
    let kernel = of.three("kernel", kernel, 1)?;
    Ok(Windows::Sliding(SlidingWindows {
        kernel,
        stride: three("stride", stride, kernel, 1)?,
        padding: three("padding", padding, [0; 3], 0)?,
        dilation: three("dilation", dilation, [1; 3], 1)?,
        ceil_mode,
    }))
}

fn pool(of: &Dimensions<'_>, x: &Tensor, windows: Windows) -> Pool {
    let Dimensions { layout, batch, channels, .. } = *of;
    Pool { dtype: x.dtype(), layout, batch, channels, input: of.extents(), windows }
}

fn max(stream: &Stream, x: &Tensor, of: &Dimensions<'_>, desc: &MaxPoolDesc) -> Result<MaxPoolOutput, Error> {
    static PLANS: PlanCache<MaxPoolDesc> = PlanCache::new();
    let plan = PLANS.get(desc, stream.device().target())?;
    let shape = of.shape(desc.pool.output()?);
    let mut y = Tensor::empty_on(stream, x.dtype(), &shape)?;
    let kept = desc.argmax.dtype();
    let mut indices = kept.map(|dtype| Tensor::empty_on(stream, dtype, &shape)).transpose()?;
    let args = MaxPoolArgs { x: x.as_ref(), y: y.as_mut(), indices: indices.as_mut().map(Tensor::as_mut) };
    plan.launch(stream, args)?;
    Ok(MaxPoolOutput { y, indices })
}

fn max_backward(
    stream: &Stream,
    x: &Tensor,
    op: &'static str,
    output: &MaxPoolOutput,
    dy: &Tensor,
    forward: MaxPoolDesc,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<MaxPoolBackwardDesc> = PlanCache::new();
    let plan = PLANS.get(&MaxPoolBackwardDesc { forward }, stream.device().target())?;
    let Some(indices) = &output.indices else {
        return Err(PlanError::refused(op, "indices", "none", "those of the forward pass").into());
    };
    let mut dx = Tensor::empty_on(stream, x.dtype(), x.shape())?;
    let args = MaxPoolBackwardArgs { indices: indices.as_ref(), dy: dy.as_ref(), dx: dx.as_mut() };
    plan.launch(stream, args)?;
    Ok(dx)
}

fn average(stream: &Stream, x: &Tensor, of: &Dimensions<'_>, desc: &AvgPoolDesc) -> Result<Tensor, Error> {
    static PLANS: PlanCache<AvgPoolDesc> = PlanCache::new();
    let plan = PLANS.get(desc, stream.device().target())?;
    let mut y = Tensor::empty_on(stream, x.dtype(), &of.shape(desc.pool.output()?))?;
    plan.launch(stream, AvgPoolArgs { x: x.as_ref(), y: y.as_mut() })?;
    Ok(y)
}

fn average_backward(
    stream: &Stream,
    x: &Tensor,
    of: &Dimensions<'_>,
    dy: &Tensor,
    forward: AvgPoolDesc,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<AvgPoolBackwardDesc> = PlanCache::new();
    let shape = of.shape(forward.pool.output()?);
    if dy.shape() != shape {
        let got = format!("{:?}", dy.shape());
        return Err(PlanError::refused(of.op, "dy", got, "of the shape of the result").into());
    }
    let plan = PLANS.get(&AvgPoolBackwardDesc { forward }, stream.device().target())?;
    let mut dx = Tensor::empty_on(stream, x.dtype(), x.shape())?;
    plan.launch(stream, AvgPoolBackwardArgs { dy: dy.as_ref(), dx: dx.as_mut() })?;
    Ok(dx)
}

fn max_desc<'x>(
    x: &'x Tensor,
    kernel: &[usize],
    options: MaxPoolOptions<'_>,
) -> Result<(Dimensions<'x>, MaxPoolDesc), PlanError> {
    let MaxPoolOptions { stride, padding, dilation, ceil_mode, layout, argmax } = options;
    let of = Dimensions::of(MAX, x, layout)?;
    let windows = sliding(&of, kernel, stride, padding, dilation, ceil_mode)?;
    let pool = pool(&of, x, windows);
    Ok((of, MaxPoolDesc { pool, argmax }))
}

fn average_desc<'x>(
    x: &'x Tensor,
    kernel: &[usize],
    options: AvgPoolOptions<'_>,
) -> Result<(Dimensions<'x>, AvgPoolDesc), PlanError> {
    let AvgPoolOptions { stride, padding, ceil_mode, layout, divisor } = options;
    let of = Dimensions::of(AVERAGE, x, layout)?;
    let windows = sliding(&of, kernel, stride, padding, &[], ceil_mode)?;
    let pool = pool(&of, x, windows);
    Ok((of, AvgPoolDesc { pool, divisor }))
}

fn adaptive<'x>(
    op: &'static str,
    x: &'x Tensor,
    output: &[usize],
    layout: Layout,
) -> Result<(Dimensions<'x>, Pool), PlanError> {
    let of = Dimensions::of(op, x, layout)?;
    let windows = Windows::Adaptive { output: of.three("output", output, 1)? };
    let pool = pool(&of, x, windows);
    Ok((of, pool))
}

/// The maximum of each window of `kernel` cells, as `torch.nn.functional.max_pool1d`, `max_pool2d` and `max_pool3d`; see the
/// [module](crate::pool).
///
/// `x` is `[batch, channels, ..]`, or `[batch, .., channels]` for channels last, with one to three dimensions to pool, of f32, f64, f16
/// or bf16. `y` is like `x` with `floor((n + 2 padding - dilation (kernel - 1) - 1) / stride) + 1` cells of `n`, rounded up with
/// `ceil_mode`; `indices` are i64 or u8, of the shape of `y`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::pool::MaxPoolOptions;
/// use warpwright::{Device, Tensor, max_pool};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 5.0, 2.0, 4.0, 3.0, 0.0], &[1, 1, 6])?;
/// let options = MaxPoolOptions { stride: &[2], padding: &[1], ..Default::default() };
/// let out = max_pool(&stream, &x, &[3], options)?;
/// assert_eq!(out.y.to_vec_on::<f32>(&stream)?, [5.0, 5.0, 4.0]);
/// assert_eq!(out.indices.expect("kept").to_vec_on::<i64>(&stream)?, [1, 1, 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if a kernel, stride or dilation is 0, the padding is more than half of a window, a window does not fit the padded
/// input, or the element type is none of those. [`Error::Runtime`] if memory runs out.
pub fn max_pool(
    stream: &Stream,
    x: &Tensor,
    kernel: &[usize],
    options: MaxPoolOptions<'_>,
) -> Result<MaxPoolOutput, Error> {
    let (of, desc) = max_desc(x, kernel, options)?;
    max(stream, x, &of, &desc)
}

/// The gradient of [`max_pool`] from its `x`, of which only the shape counts, its output and options, and the gradient `dy` of `y`.
///
/// `dy` is like `y`, `dx` like `x`, f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::pool::{Argmax, MaxPoolOptions};
/// use warpwright::{Device, Tensor, max_pool, max_pool_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 5.0, 2.0, 4.0], &[1, 1, 4])?;
/// let options = MaxPoolOptions { argmax: Argmax::Tap, ..Default::default() };
/// let out = max_pool(&stream, &x, &[2], options)?;
/// let dy = Tensor::from_slice(&device, &[1.0f32, 2.0], &[1, 1, 2])?;
/// let dx = max_pool_backward(&stream, &x, &[2], &out, &dy, options)?;
/// assert_eq!(dx.to_vec_on::<f32>(&stream)?, [0.0, 1.0, 0.0, 2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`max_pool`]; [`Error::Plan`] if the output has no indices, [`Error::Runtime`] if they or `dy` do not fit.
pub fn max_pool_backward(
    stream: &Stream,
    x: &Tensor,
    kernel: &[usize],
    output: &MaxPoolOutput,
    dy: &Tensor,
    options: MaxPoolOptions<'_>,
) -> Result<Tensor, Error> {
    let (of, desc) = max_desc(x, kernel, options)?;
    max_backward(stream, x, of.op, output, dy, desc)
}

/// The mean of each window of `kernel` cells, as `torch.nn.functional.avg_pool1d`, `avg_pool2d` and `avg_pool3d`; see the
/// [module](crate::pool).
///
/// `x` is `[batch, channels, ..]`, or `[batch, .., channels]` for channels last, with one to three dimensions to pool, of f32, f64, f16
/// or bf16. `y` is like `x` with `floor((n + 2 padding - kernel) / stride) + 1` cells of `n`, rounded up with `ceil_mode`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::pool::{AvgPoolOptions, Divisor};
/// use warpwright::{Device, Tensor, avg_pool};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 5.0, 2.0, 4.0], &[1, 1, 4])?;
/// let options = AvgPoolOptions { stride: &[2], padding: &[1], divisor: Divisor::Cells, ..Default::default() };
/// let y = avg_pool(&stream, &x, &[2], options)?.to_vec_on::<f32>(&stream)?;
/// assert_eq!(y, [1.0, 3.5, 4.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if a kernel or stride is 0, the padding is more than half of a window, a window does not fit the padded input, the
/// divisor is 0, or the element type is none of those. [`Error::Runtime`] if memory runs out.
pub fn avg_pool(
    stream: &Stream,
    x: &Tensor,
    kernel: &[usize],
    options: AvgPoolOptions<'_>,
) -> Result<Tensor, Error> {
    let (of, desc) = average_desc(x, kernel, options)?;
    average(stream, x, &of, &desc)
}

/// The gradient of [`avg_pool`] from its `x`, of which only the shape counts, its options, and the gradient `dy` of its result.
///
/// `dy` is like the result, `dx` like `x`, f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::pool::AvgPoolOptions;
/// use warpwright::{Device, Tensor, avg_pool_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[0.0f32; 4], &[1, 1, 4])?;
/// let dy = Tensor::from_slice(&device, &[1.0f32, 2.0], &[1, 1, 2])?;
/// let dx = avg_pool_backward(&stream, &x, &[2], &dy, AvgPoolOptions::default())?;
/// assert_eq!(dx.to_vec_on::<f32>(&stream)?, [0.5, 0.5, 1.0, 1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`avg_pool`]; [`Error::Plan`] if `dy` is not of the shape of the result.
pub fn avg_pool_backward(
    stream: &Stream,
    x: &Tensor,
    kernel: &[usize],
    dy: &Tensor,
    options: AvgPoolOptions<'_>,
) -> Result<Tensor, Error> {
    let (of, desc) = average_desc(x, kernel, options)?;
    average_backward(stream, x, &of, dy, desc)
}

/// The maxima of as many windows as `output` says, as `torch.nn.functional.adaptive_max_pool2d` and its siblings; see the
/// [module](crate::pool).
///
/// `x` is `[batch, channels, ..]`, or `[batch, .., channels]` for channels last, with one to three dimensions to pool, of f32, f64, f16
/// or bf16. `y` is like `x` with the extents `output`, one for each dimension or one for all; `indices` are i64, of the shape of `y`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::pool::{Argmax, Layout};
/// use warpwright::{Device, Tensor, adaptive_max_pool};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 5.0, 2.0], &[1, 1, 3])?;
/// // The windows of two outputs have the cells 0 and 1, and 1 and 2.
/// let out = adaptive_max_pool(&stream, &x, &[2], Layout::ChannelsFirst, Argmax::None)?;
/// assert_eq!(out.y.to_vec_on::<f32>(&stream)?, [5.0, 5.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if an extent is 0, `argmax` is [`Argmax::Tap`], or the element type is none of those. [`Error::Runtime`] if memory
/// runs out.
pub fn adaptive_max_pool(
    stream: &Stream,
    x: &Tensor,
    output: &[usize],
    layout: Layout,
    argmax: Argmax,
) -> Result<MaxPoolOutput, Error> {
    let (of, pool) = adaptive(ADAPTIVE_MAX, x, output, layout)?;
    max(stream, x, &of, &MaxPoolDesc { pool, argmax })
}

/// The gradient of [`adaptive_max_pool`] from its `x`, of which only the shape counts, its extents and output, and the gradient `dy` of
/// `y`.
///
/// `dy` is like `y`, `dx` like `x`, f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::pool::{Argmax, Layout};
/// use warpwright::{Device, Tensor, adaptive_max_pool, adaptive_max_pool_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 5.0, 2.0], &[1, 1, 3])?;
/// let out = adaptive_max_pool(&stream, &x, &[2], Layout::ChannelsFirst, Argmax::Index)?;
/// let dy = Tensor::from_slice(&device, &[1.0f32, 2.0], &[1, 1, 2])?;
/// let dx = adaptive_max_pool_backward(&stream, &x, &[2], &out, &dy, Layout::ChannelsFirst)?;
/// assert_eq!(dx.to_vec_on::<f32>(&stream)?, [0.0, 3.0, 0.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`adaptive_max_pool`]; [`Error::Plan`] if the output has no indices, [`Error::Runtime`] if they or `dy` do not fit.
pub fn adaptive_max_pool_backward(
    stream: &Stream,
    x: &Tensor,
    output: &[usize],
    result: &MaxPoolOutput,
    dy: &Tensor,
    layout: Layout,
) -> Result<Tensor, Error> {
    let (of, pool) = adaptive(ADAPTIVE_MAX, x, output, layout)?;
    max_backward(stream, x, of.op, result, dy, MaxPoolDesc { pool, argmax: Argmax::Index })
}

/// The means of as many windows as `output` says, as `torch.nn.functional.adaptive_avg_pool2d` and its siblings; an output of 1 is the
/// mean of all cells. See the [module](crate::pool).
///
/// `x` is `[batch, channels, ..]`, or `[batch, .., channels]` for channels last, with one to three dimensions to pool, of f32, f64, f16
/// or bf16. The result is like `x` with the extents `output`, one for each dimension or one for all.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::pool::Layout;
/// use warpwright::{Device, Tensor, adaptive_avg_pool};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 5.0, 2.0, 4.0], &[1, 1, 2, 2])?;
/// let y = adaptive_avg_pool(&stream, &x, &[1], Layout::ChannelsFirst)?;
/// assert_eq!((y.shape(), y.to_vec_on::<f32>(&stream)?), (&[1, 1, 1, 1][..], vec![3.0]));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if an extent is 0 or the element type is none of those. [`Error::Runtime`] if memory runs out.
pub fn adaptive_avg_pool(
    stream: &Stream,
    x: &Tensor,
    output: &[usize],
    layout: Layout,
) -> Result<Tensor, Error> {
    let (of, pool) = adaptive(ADAPTIVE_AVERAGE, x, output, layout)?;
    average(stream, x, &of, &AvgPoolDesc { pool, divisor: Divisor::Cells })
}

/// The gradient of [`adaptive_avg_pool`] from its `x`, of which only the shape counts, its extents, and the gradient `dy` of its result.
///
/// `dy` is like the result, `dx` like `x`, f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::pool::Layout;
/// use warpwright::{Device, Tensor, adaptive_avg_pool_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[0.0f32; 3], &[1, 1, 3])?;
/// let dy = Tensor::from_slice(&device, &[1.0f32, 3.0], &[1, 1, 2])?;
/// let dx = adaptive_avg_pool_backward(&stream, &x, &[2], &dy, Layout::ChannelsFirst)?;
/// assert_eq!(dx.to_vec_on::<f32>(&stream)?, [0.5, 2.0, 1.5]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`adaptive_avg_pool`]; [`Error::Plan`] if `dy` is not of the shape of the result.
pub fn adaptive_avg_pool_backward(
    stream: &Stream,
    x: &Tensor,
    output: &[usize],
    dy: &Tensor,
    layout: Layout,
) -> Result<Tensor, Error> {
    let (of, pool) = adaptive(ADAPTIVE_AVERAGE, x, output, layout)?;
    average_backward(stream, x, &of, dy, AvgPoolDesc { pool, divisor: Divisor::Cells })
}
