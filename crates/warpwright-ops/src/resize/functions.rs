//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::{Layout, Mode, OP, ResizeArgs, ResizeBackwardArgs, ResizeBackwardDesc, ResizeDesc};
use crate::images::Dimensions;
use crate::plan::{PlanCache, Real};
use crate::pool::{adaptive_avg_pool, adaptive_avg_pool_backward};
use crate::{Error, PlanError};

/// The extents of a result: numbers as many as dimensions, or one for all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ResizeTo<'a> {
    /// These.
    Extents(&'a [usize]),
    /// Those of the input times these factors, rounded down. The factors are also what places are computed from, unless
    /// [`ResizeOptions::recompute_scale`] says otherwise.
    Scale(&'a [f64]),
}

/// Everything that [`resize`] takes beside `x` and the extents; the default is PyTorch's.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResizeOptions {
    /// How values between cells are found.
    pub mode: Mode,
    /// Whether the first and the last cells of input and output are at the same places; for linear and cubic alone.
    pub align_corners: bool,
    /// Whether places are computed from the extents where factors are given; PyTorch's `recompute_scale_factor`.
    pub recompute_scale: bool,
    /// How `x` lies in memory.
    pub layout: Layout,
}

fn describe<'x>(
    x: &'x Tensor,
    to: ResizeTo<'_>,
    options: ResizeOptions,
) -> Result<(Dimensions<'x>, ResizeDesc), PlanError> {
    let ResizeOptions { mode, align_corners, recompute_scale, layout } = options;
    let of = Dimensions::of(OP, x, layout)?;
    let (batch, channels, input) = (of.batch, of.channels, of.extents());
    let (output, scale) = match to {
        ResizeTo::Extents(extents) => (of.three("output", extents, 1)?, [None; 3]),
        ResizeTo::Scale(factors) => {
            let factors = of.three("scale", factors, 1.0)?;
            // A factor that is no positive number makes an extent of 0, which has no plan.
            let output = [0, 1, 2].map(|i| (input[i] as f64 * factors[i]).floor() as usize);
            let scale = factors.map(|factor| (!recompute_scale).then_some(Real::new(factor)));
            (output, scale)
        }
    };
    let dtype = x.dtype();
    Ok((of, ResizeDesc { dtype, layout, batch, channels, input, output, mode, align_corners, scale }))
}

/// `x` at other extents, as `torch.nn.functional.interpolate`; see the [module](crate::resize).
///
/// `x` is `[batch, channels, ..]`, or `[batch, .., channels]` for channels last, with one to three dimensions to resize, of f32, f64, f16
/// or bf16. The result is like `x` with other extents.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::resize::{Mode, ResizeOptions, ResizeTo};
/// use warpwright::{Device, Tensor, resize};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 5.0], &[1, 1, 2])?;
/// let linear = ResizeOptions { mode: Mode::Linear, ..Default::default() };
/// let y = resize(&stream, &x, ResizeTo::Scale(&[2.0]), linear)?;
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [1.0, 2.0, 4.0, 5.0]);
/// let y = resize(&stream, &x, ResizeTo::Extents(&[3]), ResizeOptions::default())?;
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [1.0, 1.0, 5.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if an extent is 0, a factor is not positive, the mode does not have the number of dimensions or aligned corners, or the
/// element type is none of those. [`Error::Runtime`] if memory runs out.
pub fn resize(
    stream: &Stream,
    x: &Tensor,
    to: ResizeTo<'_>,
    options: ResizeOptions,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<ResizeDesc> = PlanCache::new();
    let (of, desc) = describe(x, to, options)?;
    if options.mode == Mode::Area && !options.align_corners {
        let output = &desc.output[3 - of.spatial.len()..];
        return adaptive_avg_pool(stream, x, output, options.layout);
    }
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut y = Tensor::empty_on(stream, x.dtype(), &of.shape(desc.output))?;
    plan.launch(stream, ResizeArgs { x: x.as_ref(), y: y.as_mut() })?;
    Ok(y)
}

/// The gradient of [`resize`] from its `x`, of which only the shape counts, its extents and options, and the gradient `dy` of its result.
///
/// `dy` is like the result, `dx` like `x`, f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::resize::{ResizeOptions, ResizeTo};
/// use warpwright::{Device, Tensor, resize_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[0.0f32; 2], &[1, 1, 2])?;
/// let dy = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], &[1, 1, 3])?;
/// let dx = resize_backward(&stream, &x, ResizeTo::Extents(&[3]), &dy, ResizeOptions::default())?;
/// assert_eq!(dx.to_vec_on::<f32>(&stream)?, [3.0, 3.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`resize`]; [`Error::Plan`] if `dy` is not of the shape of the result.
pub fn resize_backward(
    stream: &Stream,
    x: &Tensor,
    to: ResizeTo<'_>,
    dy: &Tensor,
    options: ResizeOptions,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<ResizeBackwardDesc> = PlanCache::new();
    let (of, forward) = describe(x, to, options)?;
    if options.mode == Mode::Area && !options.align_corners {
        let output = &forward.output[3 - of.spatial.len()..];
        return adaptive_avg_pool_backward(stream, x, output, dy, options.layout);
    }
    if dy.shape() != of.shape(forward.output) {
        let got = format!("{:?}", dy.shape());
        return Err(PlanError::refused(OP, "dy", got, "of the shape of the result").into());
    }
    let plan = PLANS.get(&ResizeBackwardDesc { forward }, stream.device().target())?;
    let mut dx = Tensor::empty_on(stream, x.dtype(), x.shape())?;
    plan.launch(stream, ResizeBackwardArgs { dy: dy.as_ref(), dx: dx.as_mut() })?;
    Ok(dx)
}
