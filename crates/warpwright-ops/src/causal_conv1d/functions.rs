//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::{
    CausalConv1d, CausalConv1dArgs, CausalConv1dBackwardArgs, CausalConv1dBackwardDesc, CausalConv1dDesc,
    CausalConv1dUpdateArgs, CausalConv1dUpdateDesc, Layout, OP, UPDATE,
};
use crate::plan::PlanCache;
use crate::{Error, PlanError};

/// Everything that [`causal_conv1d`] takes beside `x` and `weight`; the default is neither bias nor `silu` nor states, channels first.
#[derive(Clone, Copy, Debug)]
pub struct CausalConv1dOptions<'a> {
    /// Added to the sums of each channel, `[channels]`, of the element type of `x`.
    pub bias: Option<&'a Tensor>,
    /// Whether `silu` follows.
    pub silu: bool,
    /// How `x` lies in memory.
    pub layout: Layout,
    /// The positions before the first: `[batch, channels, width - 1]`, or `[batch, width - 1, channels]` for channels last.
    pub initial_states: Option<&'a Tensor>,
    /// Whether the last positions are wanted, in the shape of the initial states.
    pub final_states: bool,
    /// The number of the sequence of each position, `[batch, len]`, i32; negative where there is none. Not together with states.
    pub seq_idx: Option<&'a Tensor>,
}

impl Default for CausalConv1dOptions<'_> {
    fn default() -> Self {
        Self {
            bias: None,
            silu: false,
            layout: Layout::ChannelsFirst,
            initial_states: None,
            final_states: false,
            seq_idx: None,
        }
    }
}

/// The results of [`causal_conv1d`].
#[derive(Debug)]
pub struct CausalConv1dOutput {
    /// Like `x`.
    pub y: Tensor,
    /// The last positions, if they were asked for.
    pub final_states: Option<Tensor>,
}

/// The results of [`causal_conv1d_backward`].
#[derive(Debug)]
pub struct CausalConv1dGradients {
    /// Like `x`.
    pub dx: Tensor,
    /// Like `weight`.
    pub dweight: Tensor,
    /// Like `bias`, if there is one.
    pub dbias: Option<Tensor>,
    /// Like the initial states, if there are any.
    pub dinitial_states: Option<Tensor>,
}

/// Filter and samples of these tensors.
fn describe(
    op: &'static str,
    (x, weight): (&Tensor, &Tensor),
    layout: Layout,
    (bias, silu): (bool, bool),
) -> Result<CausalConv1d, PlanError> {
    let refuse = |parameter, got: usize, expected| Err(PlanError::refused(op, parameter, got, expected));
    let &[batch, middle, last] = x.shape() else {
        return refuse("dimensions", x.shape().len(), "3: samples, channels and positions");
    };
    let &[_, width] = weight.shape() else {
        return refuse("dimensions of weight", weight.shape().len(), "2: channels and taps");
    };
    let (channels, len) = match layout {
        Layout::ChannelsFirst => (middle, last),
        Layout::ChannelsLast => (last, middle),
    };
    Ok(CausalConv1d { dtype: x.dtype(), layout, batch, channels, len, width, bias, silu })
}

impl CausalConv1dOptions<'_> {
    fn describe(&self, x: &Tensor, weight: &Tensor) -> Result<CausalConv1dDesc, PlanError> {
        let conv = describe(OP, (x, weight), self.layout, (self.bias.is_some(), self.silu))?;
        Ok(CausalConv1dDesc {
            conv,
            initial_states: self.initial_states.is_some(),
            final_states: self.final_states,
            sequences: self.seq_idx.is_some(),
            position_stride: None,
        })
    }
}

impl CausalConv1d {
    /// The shape of states.
    fn states(&self) -> [usize; 3] {
        match self.layout {
            Layout::ChannelsFirst => [self.batch, self.channels, self.width - 1],
            Layout::ChannelsLast => [self.batch, self.width - 1, self.channels],
        }
    }
}

/// `y[l] = act(bias + sum_i weight[i] x[l - width + 1 + i])` in every channel, zeros or initial states before the first position (Gu and
/// Dao 2023, arXiv:2312.00752); see the [module](crate::causal_conv1d).
///
/// `x` is `[batch, channels, len]`, or `[batch, len, channels]` for channels last, `weight` `[channels, width]` with a width of 2 to 4, of
/// f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::causal_conv1d::CausalConv1dOptions;
/// use warpwright::{Device, Tensor, causal_conv1d};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], &[1, 1, 3])?;
/// let weight = Tensor::from_slice(&device, &[10.0f32, 1.0], &[1, 2])?;
/// let options = CausalConv1dOptions { final_states: true, ..Default::default() };
/// let out = causal_conv1d(&stream, &x, &weight, options)?;
/// assert_eq!(out.y.to_vec_on::<f32>(&stream)?, [1.0, 12.0, 23.0]);
/// assert_eq!(out.final_states.expect("asked for").to_vec_on::<f32>(&stream)?, [3.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `x` has not three dimensions or `weight` not two, the width is none of those, or there are states and sequences or
/// states and no positions. [`Error::Runtime`] if a tensor does not fit, or memory runs out.
pub fn causal_conv1d(
    stream: &Stream,
    x: &Tensor,
    weight: &Tensor,
    options: CausalConv1dOptions<'_>,
) -> Result<CausalConv1dOutput, Error> {
    static PLANS: PlanCache<CausalConv1dDesc> = PlanCache::new();
    let desc = options.describe(x, weight)?;
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut y = Tensor::empty_on(stream, x.dtype(), x.shape())?;
    let states = || Tensor::empty_on(stream, x.dtype(), &desc.conv.states());
    let mut final_states = desc.final_states.then(states).transpose()?;
    plan.launch(
        stream,
        CausalConv1dArgs {
            x: x.as_ref(),
            weight: weight.as_ref(),
            bias: options.bias.map(Tensor::as_ref),
            initial_states: options.initial_states.map(Tensor::as_ref),
            seq_idx: options.seq_idx.map(Tensor::as_ref),
            y: y.as_mut(),
            final_states: final_states.as_mut().map(Tensor::as_mut),
        },
    )?;
    Ok(CausalConv1dOutput { y, final_states })
}

/// The gradients of [`causal_conv1d`] from its inputs and options, the gradient `dy` of `y`, and that of the final states if something
/// depends on them.
///
/// `dy` and `dx` are like `x`, `dfinal_states` and `dinitial_states` like the states, of f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::causal_conv1d::CausalConv1dOptions;
/// use warpwright::{Device, Tensor, causal_conv1d_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], &[1, 1, 3])?;
/// let weight = Tensor::from_slice(&device, &[10.0f32, 1.0], &[1, 2])?;
/// let dy = Tensor::ones_on(&stream, x.dtype(), x.shape())?;
/// let d = causal_conv1d_backward(&stream, &x, &weight, &dy, None, CausalConv1dOptions::default())?;
/// assert_eq!(d.dx.to_vec_on::<f32>(&stream)?, [11.0, 11.0, 1.0]);
/// assert_eq!(d.dweight.to_vec_on::<f32>(&stream)?, [3.0, 6.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`causal_conv1d`]; [`Error::Runtime`] if `dy` is not like `x`.
pub fn causal_conv1d_backward(
    stream: &Stream,
    x: &Tensor,
    weight: &Tensor,
    dy: &Tensor,
    dfinal_states: Option<&Tensor>,
    options: CausalConv1dOptions<'_>,
) -> Result<CausalConv1dGradients, Error> {
    static PLANS: PlanCache<CausalConv1dBackwardDesc> = PlanCache::new();
    let forward = CausalConv1dDesc { final_states: dfinal_states.is_some(), ..options.describe(x, weight)? };
    let plan = PLANS.get(&CausalConv1dBackwardDesc { forward }, stream.device().target())?;
    let empty = |shape: &[usize]| Tensor::empty_on(stream, x.dtype(), shape);
    let (mut dx, mut dweight) = (empty(x.shape())?, empty(weight.shape())?);
    let mut dbias = options.bias.map(|bias| empty(bias.shape())).transpose()?;
    let mut dinitial_states = options.initial_states.map(|states| empty(states.shape())).transpose()?;
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        CausalConv1dBackwardArgs {
            x: x.as_ref(),
            weight: weight.as_ref(),
            bias: options.bias.map(Tensor::as_ref),
            initial_states: options.initial_states.map(Tensor::as_ref),
            seq_idx: options.seq_idx.map(Tensor::as_ref),
            dy: dy.as_ref(),
            dfinal_states: dfinal_states.map(Tensor::as_ref),
            dx: dx.as_mut(),
            dweight: dweight.as_mut(),
            dbias: dbias.as_mut().map(Tensor::as_mut),
            dinitial_states: dinitial_states.as_mut().map(Tensor::as_mut),
            workspace: workspace.as_mut().map(Tensor::as_mut),
        },
    )?;
    Ok(CausalConv1dGradients { dx, dweight, dbias, dinitial_states })
}

/// Everything that [`causal_conv1d_update`] takes beside its tensors; the default is neither bias nor `silu`, channels first.
#[derive(Clone, Copy, Debug)]
pub struct CausalConv1dUpdateOptions<'a> {
    /// Added to the sums of each channel, `[channels]`, of the element type of `x`.
    pub bias: Option<&'a Tensor>,
    /// Whether `silu` follows.
    pub silu: bool,
    /// How `x` and the states lie in memory.
    pub layout: Layout,
}

impl Default for CausalConv1dUpdateOptions<'_> {
    fn default() -> Self {
        Self { bias: None, silu: false, layout: Layout::ChannelsFirst }
    }
}

/// [`causal_conv1d`] of the next positions `x`, one or a few, behind `states`, which become the last positions.
///
/// `x` and the result are `[batch, channels, len]`, `states` `[batch, channels, width - 1]`, with channels last `[batch, len, channels]`
/// and `[batch, width - 1, channels]`; of f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::causal_conv1d::CausalConv1dUpdateOptions;
/// use warpwright::{Device, Tensor, causal_conv1d_update};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[3.0f32], &[1, 1, 1])?;
/// let weight = Tensor::from_slice(&device, &[100.0f32, 10.0, 1.0], &[1, 3])?;
/// let mut states = Tensor::from_slice(&device, &[1.0f32, 2.0], &[1, 1, 2])?;
/// let y = causal_conv1d_update(&stream, &x, &weight, &mut states, CausalConv1dUpdateOptions::default())?;
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [123.0]);
/// assert_eq!(states.to_vec_on::<f32>(&stream)?, [2.0, 3.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`causal_conv1d`]; there is at least one position.
pub fn causal_conv1d_update(
    stream: &Stream,
    x: &Tensor,
    weight: &Tensor,
    states: &mut Tensor,
    options: CausalConv1dUpdateOptions<'_>,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<CausalConv1dUpdateDesc> = PlanCache::new();
    let CausalConv1dUpdateOptions { bias, silu, layout } = options;
    let desc =
        CausalConv1dUpdateDesc { conv: describe(UPDATE, (x, weight), layout, (bias.is_some(), silu))? };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut y = Tensor::empty_on(stream, x.dtype(), x.shape())?;
    plan.launch(
        stream,
        CausalConv1dUpdateArgs {
            x: x.as_ref(),
            weight: weight.as_ref(),
            bias: bias.map(Tensor::as_ref),
            states: states.as_mut(),
            y: y.as_mut(),
        },
    )?;
    Ok(y)
}
