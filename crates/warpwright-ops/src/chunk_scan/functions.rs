//! The free functions: allocate the results, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::{ChunkScan, ChunkScanArgs, ChunkScanBackwardArgs, ChunkScanBackwardDesc, ChunkScanDesc, OP};
use crate::plan::PlanCache;
use crate::tensors::written;
use crate::{Error, PlanError};

/// The tensors that every scan has.
#[derive(Clone, Copy, Debug)]
pub struct ChunkScanInputs<'a> {
    /// The samples: `[batch, len, heads, head_dim]`.
    pub x: &'a Tensor,
    /// Time steps: `[batch, len, heads]`.
    pub dt: &'a Tensor,
    /// `[heads]`, of f32.
    pub a: &'a Tensor,
    /// The share of each position in the state: `[batch, len, groups, state]`.
    pub b: &'a Tensor,
    /// The share of the state in each result, like `b`.
    pub c: &'a Tensor,
}

/// Everything that [`chunk_scan`] takes beside its inputs; the default is none of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChunkScanOptions<'a> {
    /// The factor of `x` in the result, `[heads]`, of f32.
    pub d: Option<&'a Tensor>,
    /// Added to the time steps, `[heads]`, of f32.
    pub dt_bias: Option<&'a Tensor>,
    /// Whether time steps go through `softplus`.
    pub dt_softplus: bool,
    /// The state before the first position, `[batch, heads, head_dim, state]`, of f32.
    pub initial_state: Option<&'a Tensor>,
    /// Whether the state behind the last position is wanted.
    pub last_state: bool,
    /// Whether states are saved for [`chunk_scan_backward`].
    pub training: bool,
}

/// The results of [`chunk_scan`].
#[derive(Debug)]
pub struct ChunkScanOutput {
    /// Like `x`.
    pub y: Tensor,
    /// The state behind the last position, if it was asked for.
    pub last_state: Option<Tensor>,
    /// The states that [`chunk_scan_backward`] takes, if they were asked for.
    pub states: Option<Tensor>,
}

/// The results of [`chunk_scan_backward`].
#[derive(Debug)]
pub struct ChunkScanGradients {
    /// Like `x`.
    pub dx: Tensor,
    /// Like `dt`.
    pub ddt: Tensor,
    /// Like `a`.
    pub da: Tensor,
    /// Like `b`.
    pub db: Tensor,
    /// Like `c`.
    pub dc: Tensor,
    /// Like `d`, if there is one.
    pub dd: Option<Tensor>,
    /// Like `dt_bias`, if there is one.
    pub ddt_bias: Option<Tensor>,
    /// Like the initial state, if there is one.
    pub dinitial_state: Option<Tensor>,
}

impl ChunkScanOptions<'_> {
    fn describe(
        &self,
        ChunkScanInputs { x, b, .. }: ChunkScanInputs<'_>,
    ) -> Result<ChunkScanDesc, PlanError> {
        let refuse = |parameter, got: usize, expected| Err(PlanError::refused(OP, parameter, got, expected));
        let &[batch, len, heads, head_dim] = x.shape() else {
            return refuse("dimensions", x.shape().len(), "4: samples, positions, heads and their elements");
        };
        let &[_, _, groups, state] = b.shape() else {
            return refuse(
                "dimensions of b",
                b.shape().len(),
                "4: samples, positions, groups and numbers of state",
            );
        };
        let scan = ChunkScan {
            d: self.d.is_some(),
            dt_bias: self.dt_bias.is_some(),
            dt_softplus: self.dt_softplus,
            ..ChunkScan::new(x.dtype(), [batch, len, heads, head_dim], [groups, state])
        };
        let initial_state = self.initial_state.is_some();
        Ok(ChunkScanDesc { scan, initial_state, last_state: self.last_state, training: self.training })
    }
}

impl ChunkScan {
    /// The shape of the states that forward saves.
    pub fn saved_states(&self) -> [usize; 5] {
        [self.batch, self.chunks(), self.heads, self.head_dim, self.state]
    }
}

/// `y[t] = h[t] C[t] + D x[t]` of states `h[t] = exp(s[t] A) h[t - 1] + s[t] x[t] B[t]^T` of heads, with time steps `s[t]` that are
/// `dt[t] + dt_bias` or its `softplus`: the scan of Mamba 2 (Dao and Gu 2024, arXiv:2405.21060); see the [module](crate::chunk_scan).
///
/// `x` and `y` are `[batch, len, heads, head_dim]`, `dt` is `[batch, len, heads]`, `b` and `c` are `[batch, len, groups, state]`, of f16 or bf16; `a`, `d`
/// and `dt_bias` are `[heads]`, states before and behind the samples `[batch, heads, head_dim, state]`, of f32. Heads have 1 to 128 elements and
/// states 1 to 256 numbers. From sm_80 on.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::chunk_scan::{ChunkScanInputs, ChunkScanOptions};
/// use warpwright::{DType, Device, Tensor, cast, chunk_scan};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 4.0], &[1, 3, 1, 1])?;
/// let x = cast(&stream, &x, DType::BF16)?;
/// let steps = Tensor::ones_on(&stream, x.dtype(), &[1, 3, 1])?;
/// let rows = Tensor::ones_on(&stream, x.dtype(), &[1, 3, 1, 1])?;
/// // A state that never decays: the sums of what came.
/// let a = Tensor::from_slice(&device, &[0.0f32], &[1])?;
/// let options = ChunkScanOptions { last_state: true, ..Default::default() };
/// let inputs = ChunkScanInputs { x: &x, dt: &steps, a: &a, b: &rows, c: &rows };
/// let out = chunk_scan(&stream, inputs, options)?;
/// let y = cast(&stream, &out.y, DType::F32)?;
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [1.0, 3.0, 7.0]);
/// assert_eq!(out.last_state.expect("asked for").to_vec_on::<f32>(&stream)?, [7.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `x` or `b` has not four dimensions, the type, the head or the state is none of those, the groups do not divide the heads,
/// or tiles of that size do not fit the device's shared memory. [`Error::Runtime`] if a tensor does not fit, or memory runs out.
pub fn chunk_scan(
    stream: &Stream,
    inputs: ChunkScanInputs<'_>,
    options: ChunkScanOptions<'_>,
) -> Result<ChunkScanOutput, Error> {
    static PLANS: PlanCache<ChunkScanDesc> = PlanCache::new();
    let ChunkScanInputs { x, dt, a, b, c } = inputs;
    let desc = options.describe(inputs)?;
    let plan = PLANS.get(&desc, stream.device().target())?;
    let ChunkScan { batch, heads, head_dim, state, .. } = desc.scan;
    let mut y = Tensor::empty_on(stream, x.dtype(), x.shape())?;
    let of_samples = [batch, heads, head_dim, state];
    let last = || Tensor::empty_on(stream, a.dtype(), &of_samples);
    let mut last_state = desc.last_state.then(last).transpose()?;
    let saved = || Tensor::empty_on(stream, x.dtype(), &desc.scan.saved_states());
    let mut states = desc.training.then(saved).transpose()?;
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        ChunkScanArgs {
            x: x.as_ref(),
            dt: dt.as_ref(),
            a: a.as_ref(),
            b: b.as_ref(),
            c: c.as_ref(),
            d: options.d.map(Tensor::as_ref),
            dt_bias: options.dt_bias.map(Tensor::as_ref),
            initial_state: options.initial_state.map(Tensor::as_ref),
            y: y.as_mut(),
            last_state: written(&mut last_state),
            states: written(&mut states),
            workspace: written(&mut workspace),
        },
    )?;
    Ok(ChunkScanOutput { y, last_state, states })
}

/// The gradients of [`chunk_scan`] from its inputs and options, the `states` that it saved, the gradient `dy` of `y`, and that of the last
/// state if something depends on it.
///
/// `dy` is like `x`, of f16 or bf16, `dlast_state` `[batch, heads, head_dim, state]` of f32. The gradient of every input is like it.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::chunk_scan::{ChunkScanInputs, ChunkScanOptions};
/// use warpwright::{DType, Device, Tensor, cast, chunk_scan, chunk_scan_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 4.0], &[1, 3, 1, 1])?;
/// let x = cast(&stream, &x, DType::BF16)?;
/// let steps = Tensor::ones_on(&stream, x.dtype(), &[1, 3, 1])?;
/// let rows = Tensor::ones_on(&stream, x.dtype(), &[1, 3, 1, 1])?;
/// let a = Tensor::from_slice(&device, &[0.0f32], &[1])?;
/// let options = ChunkScanOptions { training: true, ..Default::default() };
/// let inputs = ChunkScanInputs { x: &x, dt: &steps, a: &a, b: &rows, c: &rows };
/// let out = chunk_scan(&stream, inputs, options)?;
/// let states = out.states.expect("asked for");
/// let d = chunk_scan_backward(&stream, inputs, &states, &rows, None, options)?;
/// let dx = cast(&stream, &d.dx, DType::F32)?;
/// assert_eq!(dx.to_vec_on::<f32>(&stream)?, [3.0, 2.0, 1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`chunk_scan`]; [`Error::Runtime`] if `dy` is not like `x`.
pub fn chunk_scan_backward(
    stream: &Stream,
    inputs: ChunkScanInputs<'_>,
    states: &Tensor,
    dy: &Tensor,
    dlast_state: Option<&Tensor>,
    options: ChunkScanOptions<'_>,
) -> Result<ChunkScanGradients, Error> {
    static PLANS: PlanCache<ChunkScanBackwardDesc> = PlanCache::new();
    let ChunkScanInputs { x, dt, a, b, c } = inputs;
    let forward =
        ChunkScanDesc { last_state: dlast_state.is_some(), training: true, ..options.describe(inputs)? };
    let plan = PLANS.get(&ChunkScanBackwardDesc { forward }, stream.device().target())?;
    let like = |tensor: &Tensor| Tensor::empty_on(stream, tensor.dtype(), tensor.shape());
    let like_given = |tensor: Option<&Tensor>| tensor.map(like).transpose();
    let (mut dx, mut ddt, mut da) = (like(x)?, like(dt)?, like(a)?);
    let (mut db, mut dc) = (like(b)?, like(c)?);
    let (mut dd, mut ddt_bias) = (like_given(options.d)?, like_given(options.dt_bias)?);
    let mut dinitial_state = like_given(options.initial_state)?;
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        ChunkScanBackwardArgs {
            x: x.as_ref(),
            dt: dt.as_ref(),
            a: a.as_ref(),
            b: b.as_ref(),
            c: c.as_ref(),
            d: options.d.map(Tensor::as_ref),
            dt_bias: options.dt_bias.map(Tensor::as_ref),
            states: states.as_ref(),
            dy: dy.as_ref(),
            dlast_state: dlast_state.map(Tensor::as_ref),
            dx: dx.as_mut(),
            ddt: ddt.as_mut(),
            da: da.as_mut(),
            db: db.as_mut(),
            dc: dc.as_mut(),
            dd: written(&mut dd),
            ddt_bias: written(&mut ddt_bias),
            dinitial_state: written(&mut dinitial_state),
            workspace: written(&mut workspace),
        },
    )?;
    Ok(ChunkScanGradients { dx, ddt, da, db, dc, dd, ddt_bias, dinitial_state })
}
