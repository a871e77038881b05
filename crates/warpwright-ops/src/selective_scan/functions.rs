//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::{
    Layout, OP, SelectiveScan, SelectiveScanArgs, SelectiveScanBackwardArgs, SelectiveScanBackwardDesc,
    SelectiveScanDesc, SelectiveScanUpdateArgs, SelectiveScanUpdateDesc, UPDATE, tuning,
};
use crate::plan::PlanCache;
use crate::tensors::written;
use crate::{Error, PlanError};

/// The tensors that every scan has.
#[derive(Clone, Copy, Debug)]
pub struct SelectiveScanInputs<'a> {
    /// The samples: `[batch, channels, len]`, or `[batch, len, channels]` for channels last.
    pub u: &'a Tensor,
    /// Time steps, like `u`.
    pub delta: &'a Tensor,
    /// `[channels, state]`, of f32, of f64 for f64.
    pub a: &'a Tensor,
    /// The share of each position in the state: `[batch, groups, state, len]`, or `[batch, len, groups, state]` for channels last.
    pub b: &'a Tensor,
    /// The share of the state in each result, like `b`.
    pub c: &'a Tensor,
}

/// Everything that [`selective_scan`] takes beside its inputs; the default is none of it, channels first.
#[derive(Clone, Copy, Debug)]
pub struct SelectiveScanOptions<'a> {
    /// The factor of `u` in the result, `[channels]`, of f32, of f64 for f64.
    pub d: Option<&'a Tensor>,
    /// The gate, like `u`.
    pub z: Option<&'a Tensor>,
    /// Added to the time steps, `[channels]`, of f32, of f64 for f64.
    pub delta_bias: Option<&'a Tensor>,
    /// Whether time steps go through `softplus`.
    pub delta_softplus: bool,
    /// How `u` lies in memory.
    pub layout: Layout,
    /// The state before the first position, `[batch, channels, state]`, of f32, of f64 for f64.
    pub initial_state: Option<&'a Tensor>,
    /// Whether the state behind the last position is wanted.
    pub last_state: bool,
    /// Whether states are saved for [`selective_scan_backward`].
    pub training: bool,
}

impl Default for SelectiveScanOptions<'_> {
    fn default() -> Self {
        Self {
            d: None,
            z: None,
            delta_bias: None,
            delta_softplus: false,
            layout: Layout::ChannelsFirst,
            initial_state: None,
            last_state: false,
            training: false,
        }
    }
}

/// The results of [`selective_scan`].
#[derive(Debug)]
pub struct SelectiveScanOutput {
    /// Like `u`.
    pub y: Tensor,
    /// The state behind the last position, if it was asked for.
    pub last_state: Option<Tensor>,
    /// The states that [`selective_scan_backward`] takes, if they were asked for.
    pub states: Option<Tensor>,
}

/// The results of [`selective_scan_backward`].
#[derive(Debug)]
pub struct SelectiveScanGradients {
    /// Like `u`.
    pub du: Tensor,
    /// Like `delta`.
    pub ddelta: Tensor,
    /// Like `a`.
    pub da: Tensor,
    /// Like `b`.
    pub db: Tensor,
    /// Like `c`.
    pub dc: Tensor,
    /// Like `d`, if there is one.
    pub dd: Option<Tensor>,
    /// Like `z`, if there is one.
    pub dz: Option<Tensor>,
    /// Like `delta_bias`, if there is one.
    pub ddelta_bias: Option<Tensor>,
    /// Like the initial state, if there is one.
    pub dinitial_state: Option<Tensor>,
}

/// Scan and samples of these tensors.
fn describe(
    op: &'static str,
    SelectiveScanInputs { u, b, .. }: SelectiveScanInputs<'_>,
    options: &SelectiveScanOptions<'_>,
) -> Result<SelectiveScan, PlanError> {
    let refuse = |parameter, got: usize, expected| Err(PlanError::refused(op, parameter, got, expected));
    let &[batch, middle, last] = u.shape() else {
        return refuse("dimensions", u.shape().len(), "3: samples, channels and positions");
    };
    let &[_, first, second, third] = b.shape() else {
        return refuse(
            "dimensions of b",
            b.shape().len(),
            "4: samples, groups, numbers of state and positions",
        );
    };
    let (channels, len, groups, state) = match options.layout {
        Layout::ChannelsFirst => (middle, last, first, second),
        Layout::ChannelsLast => (last, middle, second, third),
    };
    Ok(SelectiveScan {
        dtype: u.dtype(),
        layout: options.layout,
        batch,
        channels,
        len,
        state,
        groups,
        d: options.d.is_some(),
        gate: options.z.is_some(),
        delta_bias: options.delta_bias.is_some(),
        delta_softplus: options.delta_softplus,
    })
}

impl SelectiveScanOptions<'_> {
    fn describe(&self, inputs: SelectiveScanInputs<'_>) -> Result<SelectiveScanDesc, PlanError> {
        Ok(SelectiveScanDesc {
            scan: describe(OP, inputs, self)?,
            initial_state: self.initial_state.is_some(),
            last_state: self.last_state,
            training: self.training,
        })
    }
}

impl SelectiveScan {
    /// The shape of the states that forward saves.
    pub fn saved_states(&self) -> [usize; 4] {
        let chunks = self.len.div_ceil(tuning::chunk(self.dtype) as usize);
        [self.batch, chunks, self.channels, self.state]
    }
}

/// `y[t] = (C[t] . h[t] + D u[t]) silu(z[t])` of states `h[t] = exp(s[t] A) h[t - 1] + s[t] B[t] u[t]` with time steps `s[t]` that are
/// `delta[t] + delta_bias` or its `softplus` (Gu and Dao 2023, arXiv:2312.00752); see the [module](crate::selective_scan).
///
/// Shapes are those of [`SelectiveScanInputs`] and [`SelectiveScanOptions`], the state of 1 to 64 numbers. Tensors are of f32, f64, f16 or
/// bf16, parameters and states of f32, of f64 for f64.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::selective_scan::{SelectiveScanInputs, SelectiveScanOptions};
/// use warpwright::{Device, Tensor, selective_scan};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let u = Tensor::from_slice(&device, &[1.0f32, 2.0, 4.0], &[1, 1, 3])?;
/// let ones = Tensor::ones_on(&stream, u.dtype(), u.shape())?;
/// let rows = Tensor::ones_on(&stream, u.dtype(), &[1, 1, 1, 3])?;
/// // A state that never decays: the sums of what came.
/// let a = Tensor::from_slice(&device, &[0.0f32], &[1, 1])?;
/// let options = SelectiveScanOptions { last_state: true, ..Default::default() };
/// let inputs = SelectiveScanInputs { u: &u, delta: &ones, a: &a, b: &rows, c: &rows };
/// let out = selective_scan(&stream, inputs, options)?;
/// assert_eq!(out.y.to_vec_on::<f32>(&stream)?, [1.0, 3.0, 7.0]);
/// assert_eq!(out.last_state.expect("asked for").to_vec_on::<f32>(&stream)?, [7.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `u` has not three dimensions or `b` not four, the state is none of those, or the groups do not divide the
/// channels. [`Error::Runtime`] if a tensor does not fit, or memory runs out.
pub fn selective_scan(
    stream: &Stream,
    inputs: SelectiveScanInputs<'_>,
    options: SelectiveScanOptions<'_>,
) -> Result<SelectiveScanOutput, Error> {
    static PLANS: PlanCache<SelectiveScanDesc> = PlanCache::new();
    let SelectiveScanInputs { u, delta, a, b, c } = inputs;
    let desc = options.describe(inputs)?;
    let plan = PLANS.get(&desc, stream.device().target())?;
    let SelectiveScan { batch, channels, state, .. } = desc.scan;
    let empty = |shape: &[usize]| Tensor::empty_on(stream, u.dtype().accumulator(), shape);
    let mut y = Tensor::empty_on(stream, u.dtype(), u.shape())?;
    let mut last_state = desc.last_state.then(|| empty(&[batch, channels, state])).transpose()?;
    let mut states = desc.training.then(|| empty(&desc.scan.saved_states())).transpose()?;
    plan.launch(
        stream,
        SelectiveScanArgs {
            u: u.as_ref(),
            delta: delta.as_ref(),
            a: a.as_ref(),
            b: b.as_ref(),
            c: c.as_ref(),
            d: options.d.map(Tensor::as_ref),
            z: options.z.map(Tensor::as_ref),
            delta_bias: options.delta_bias.map(Tensor::as_ref),
            initial_state: options.initial_state.map(Tensor::as_ref),
            y: y.as_mut(),
            last_state: written(&mut last_state),
            states: written(&mut states),
        },
    )?;
    Ok(SelectiveScanOutput { y, last_state, states })
}

/// The gradients of [`selective_scan`] from its inputs and options, the `states` that it saved, the gradient `dy` of `y`, and that of the
/// last state if something depends on it.
///
/// `dy` is like `u`, of f32, f64, f16 or bf16, `dlast_state` `[batch, channels, state]` of f32, of f64 for f64. The gradient of every
/// input is like it.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::selective_scan::{SelectiveScanInputs, SelectiveScanOptions};
/// use warpwright::{Device, Tensor, selective_scan, selective_scan_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let u = Tensor::from_slice(&device, &[1.0f32, 2.0, 4.0], &[1, 1, 3])?;
/// let ones = Tensor::ones_on(&stream, u.dtype(), u.shape())?;
/// let rows = Tensor::ones_on(&stream, u.dtype(), &[1, 1, 1, 3])?;
/// let a = Tensor::from_slice(&device, &[0.0f32], &[1, 1])?;
/// let options = SelectiveScanOptions { training: true, ..Default::default() };
/// let inputs = SelectiveScanInputs { u: &u, delta: &ones, a: &a, b: &rows, c: &rows };
/// let out = selective_scan(&stream, inputs, options)?;
/// let states = out.states.expect("asked for");
/// let d = selective_scan_backward(&stream, inputs, &states, &ones, None, options)?;
/// assert_eq!(d.du.to_vec_on::<f32>(&stream)?, [3.0, 2.0, 1.0]);
/// assert_eq!(d.dc.to_vec_on::<f32>(&stream)?, [1.0, 3.0, 7.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`selective_scan`]; [`Error::Runtime`] if `dy` is not like `u`.
pub fn selective_scan_backward(
    stream: &Stream,
    inputs: SelectiveScanInputs<'_>,
    states: &Tensor,
    dy: &Tensor,
    dlast_state: Option<&Tensor>,
    options: SelectiveScanOptions<'_>,
) -> Result<SelectiveScanGradients, Error> {
    static PLANS: PlanCache<SelectiveScanBackwardDesc> = PlanCache::new();
    let SelectiveScanInputs { u, delta, a, b, c } = inputs;
    let forward =
        SelectiveScanDesc { last_state: dlast_state.is_some(), training: true, ..options.describe(inputs)? };
    let plan = PLANS.get(&SelectiveScanBackwardDesc { forward }, stream.device().target())?;
    let like = |tensor: &Tensor| Tensor::empty_on(stream, tensor.dtype(), tensor.shape());
    let like_given = |tensor: Option<&Tensor>| tensor.map(like).transpose();
    let (mut du, mut ddelta, mut da) = (like(u)?, like(delta)?, like(a)?);
    let (mut db, mut dc) = (like(b)?, like(c)?);
    let (mut dd, mut dz) = (like_given(options.d)?, like_given(options.z)?);
    let mut ddelta_bias = like_given(options.delta_bias)?;
    let mut dinitial_state = like_given(options.initial_state)?;
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        SelectiveScanBackwardArgs {
            u: u.as_ref(),
            delta: delta.as_ref(),
            a: a.as_ref(),
            b: b.as_ref(),
            c: c.as_ref(),
            d: options.d.map(Tensor::as_ref),
            z: options.z.map(Tensor::as_ref),
            delta_bias: options.delta_bias.map(Tensor::as_ref),
            states: states.as_ref(),
            dy: dy.as_ref(),
            dlast_state: dlast_state.map(Tensor::as_ref),
            du: du.as_mut(),
            ddelta: ddelta.as_mut(),
            da: da.as_mut(),
            db: db.as_mut(),
            dc: dc.as_mut(),
            dd: written(&mut dd),
            dz: written(&mut dz),
            ddelta_bias: written(&mut ddelta_bias),
            dinitial_state: written(&mut dinitial_state),
            workspace: written(&mut workspace),
        },
    )?;
    Ok(SelectiveScanGradients { du, ddelta, da, db, dc, dd, dz, ddelta_bias, dinitial_state })
}

/// [`selective_scan`] of the next positions `u`, one or a few, behind `state`, which becomes that behind the last of them.
///
/// Shapes and types are those of [`selective_scan`], of f32, f64, f16 or bf16; `state` is `[batch, channels, state]`, of f32, of f64 for
/// f64. Of the options, the initial state, the last state and training say nothing here.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::selective_scan::{SelectiveScanInputs, SelectiveScanOptions};
/// use warpwright::{Device, Tensor, selective_scan_update};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let u = Tensor::from_slice(&device, &[3.0f32], &[1, 1, 1])?;
/// let ones = Tensor::ones_on(&stream, u.dtype(), u.shape())?;
/// let rows = Tensor::ones_on(&stream, u.dtype(), &[1, 1, 1, 1])?;
/// let a = Tensor::from_slice(&device, &[0.0f32], &[1, 1])?;
/// let mut state = Tensor::from_slice(&device, &[10.0f32], &[1, 1, 1])?;
/// let inputs = SelectiveScanInputs { u: &u, delta: &ones, a: &a, b: &rows, c: &rows };
/// let y = selective_scan_update(&stream, inputs, &mut state, SelectiveScanOptions::default())?;
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [13.0]);
/// assert_eq!(state.to_vec_on::<f32>(&stream)?, [13.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`selective_scan`]; the state may have up to 256 numbers.
pub fn selective_scan_update(
    stream: &Stream,
    inputs: SelectiveScanInputs<'_>,
    state: &mut Tensor,
    options: SelectiveScanOptions<'_>,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<SelectiveScanUpdateDesc> = PlanCache::new();
    let SelectiveScanInputs { u, delta, a, b, c } = inputs;
    let desc = SelectiveScanUpdateDesc { scan: describe(UPDATE, inputs, &options)? };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut y = Tensor::empty_on(stream, u.dtype(), u.shape())?;
    plan.launch(
        stream,
        SelectiveScanUpdateArgs {
            u: u.as_ref(),
            delta: delta.as_ref(),
            a: a.as_ref(),
            b: b.as_ref(),
            c: c.as_ref(),
            d: options.d.map(Tensor::as_ref),
            z: options.z.map(Tensor::as_ref),
            delta_bias: options.delta_bias.map(Tensor::as_ref),
            state: state.as_mut(),
            y: y.as_mut(),
        },
    )?;
    Ok(y)
}
