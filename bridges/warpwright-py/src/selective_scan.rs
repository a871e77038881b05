//! The scan of selective state spaces as Python functions.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use warpwright::DType;
use warpwright::plan::PlanCache;
use warpwright::selective_scan::{
    Layout, SelectiveScan, SelectiveScanArgs, SelectiveScanBackwardArgs, SelectiveScanBackwardDesc,
    SelectiveScanDesc, SelectiveScanUpdateArgs, SelectiveScanUpdateDesc,
};

use crate::array::Array;
use crate::call::{Call, Form, gathered, places, present, statistics_dtype};
use crate::error;
use crate::library::{Maybe, Object};

const FORWARD: &str = "selective_scan";
const BACKWARD: &str = "selective_scan_backward";
const UPDATE: &str = "selective_scan_update";

/// Keywords of all functions.
struct Keywords<'a, 'py> {
    d: Maybe<'a, 'py>,
    z: Maybe<'a, 'py>,
    delta_bias: Maybe<'a, 'py>,
    delta_softplus: bool,
    channels_last: bool,
    out: Maybe<'a, 'py>,
    stream: Maybe<'a, 'py>,
}

/// A call with what it reads in every direction.
struct Started<'py> {
    call: Call<'py>,
    u: Array<'py>,
    delta: Array<'py>,
    a: Array<'py>,
    b: Array<'py>,
    c: Array<'py>,
    d: Option<Array<'py>>,
    z: Option<Array<'py>>,
    delta_bias: Option<Array<'py>>,
    scan: SelectiveScan,
}

impl<'py> Started<'py> {
    fn new(
        op: &'static str,
        [u, delta, a, b, c]: [&Object<'py>; 5],
        keywords: &Keywords<'_, 'py>,
    ) -> PyResult<Self> {
        let (call, u) = Call::new(op, ("u", u), keywords.stream)?;
        let [batch, middle, last] = u.extents()?;
        let layout = if keywords.channels_last { Layout::ChannelsLast } else { Layout::ChannelsFirst };
        let [channels, len] = if keywords.channels_last { [last, middle] } else { [middle, last] };
        let (dtype, sums) = (u.dtype, statistics_dtype(u.dtype));
        if !DType::FLOATS.contains(&dtype) {
            return Err(error::dtype(u.object.py(), op, "u", &DType::FLOATS, dtype.name()));
        }
        let u = call.row_major(u)?;
        let delta = call.small(("delta", delta), dtype, &u.shape)?;
        let a = call.read(("A", a))?;
        a.expect_dtype(sums)?;
        let [_, state] = a.extents()?;
        a.expect_shape(&[channels, state])?;
        let b = call.read(("B", b))?;
        let [_, first, second, _] = b.extents()?;
        let (groups, rows) = if keywords.channels_last {
            (second, [batch, len, second, state])
        } else {
            (first, [batch, first, state, len])
        };
        b.expect_dtype(dtype)?;
        b.expect_shape(&rows)?;
        let d = call.optional(("D", keywords.d), sums, &[channels])?;
        let z = call.optional(("z", keywords.z), dtype, &u.shape)?;
        let delta_bias = call.optional(("delta_bias", keywords.delta_bias), sums, &[channels])?;
        let scan = SelectiveScan {
            dtype,
            layout,
            batch,
            channels,
            len,
            state,
            groups,
            d: d.is_some(),
            gate: z.is_some(),
            delta_bias: delta_bias.is_some(),
            delta_softplus: keywords.delta_softplus,
        };
        let (a, b) = (call.row_major(a)?, call.row_major(b)?);
        let c = call.small(("C", c), dtype, &rows)?;
        Ok(Self { call, u, delta, a, b, c, d, z, delta_bias, scan })
    }

    /// The arrays that kernels read, in the order of their arguments.
    fn inputs(&self) -> [Option<&Array<'py>>; 8] {
        let Self { u, delta, a, b, c, d, z, delta_bias, .. } = self;
        [Some(u), Some(delta), Some(a), Some(b), Some(c), d.as_ref(), z.as_ref(), delta_bias.as_ref()]
    }

    /// The shape of the states behind samples.
    fn state(&self) -> [usize; 3] {
        [self.scan.batch, self.scan.channels, self.scan.state]
    }

    /// A further argument of that shape, if it is given.
    fn optional_state(&self, argument: &'static str, object: Maybe<'_, 'py>) -> PyResult<Option<Array<'py>>> {
        self.call.optional((argument, object), self.a.dtype, &self.state())
    }

    /// The form of a result like `u`.
    fn of_samples(&self) -> Form<'_> {
        Form::RowMajor(self.scan.dtype, &self.u.shape)
    }

    /// The form of a result of the type of sums.
    fn of_sums<'s>(&self, shape: &'s [usize]) -> Form<'s> {
        Form::RowMajor(self.a.dtype, shape)
    }
}

fn forward<'py>(
    given: [&Object<'py>; 5],
    initial_state: Maybe<'_, 'py>,
    [last_state, training]: [bool; 2],
    keywords: &Keywords<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<SelectiveScanDesc> = PlanCache::new();
    let started = Started::new(FORWARD, given, keywords)?;
    let initial = started.optional_state("initial_state", initial_state)?;
    let Started { call, u, scan, .. } = &started;
    let desc = SelectiveScanDesc { scan: *scan, initial_state: initial.is_some(), last_state, training };
    let plan = call.plan(&PLANS, &desc)?;
    let [y, last, states] = places(FORWARD, keywords.out, [true, last_state, training])?;
    let (state, saved) = (started.state(), scan.saved_states());
    let outputs = [
        Some(call.output(("out", y.as_ref()), u, started.of_samples())?),
        call.optional_output(last_state, ("out", last.as_ref()), u, started.of_sums(&state))?,
        call.optional_output(training, ("out", states.as_ref()), u, started.of_sums(&saved))?,
    ];
    let [u, delta, a, b, c, d, z, delta_bias] = started.inputs();
    let inputs = [u, delta, a, b, c, d, z, delta_bias, initial.as_ref()];
    let results = call.run_some(inputs, outputs, move |stream, inputs, [y, last_state, states]| {
        let [u, delta, a, b, c, d, z, delta_bias, initial_state] = inputs;
        let [u, delta, a, b, c] = [u, delta, a, b, c].map(present);
        let y = present(y);
        let args =
            SelectiveScanArgs { u, delta, a, b, c, d, z, delta_bias, initial_state, y, last_state, states };
        Ok(plan.launch(stream, args)?)
    })?;
    gathered(started.u.object.py(), results)
}

fn backward<'py>(
    given: [&Object<'py>; 5],
    [states, dy]: [&Object<'py>; 2],
    [dlast_state, initial_state]: [Maybe<'_, 'py>; 2],
    keywords: &Keywords<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    static PLANS: PlanCache<SelectiveScanBackwardDesc> = PlanCache::new();
    let started = Started::new(BACKWARD, given, keywords)?;
    let Started { call, u, a, b, d, z, delta_bias, scan, .. } = &started;
    let states = call.small(("states", states), a.dtype, &scan.saved_states())?;
    let dy = call.small(("dy", dy), scan.dtype, &u.shape)?;
    let dlast = started.optional_state("dlast_state", dlast_state)?;
    let initial = started.optional_state("initial_state", initial_state)?;
    let forward = SelectiveScanDesc {
        scan: *scan,
        initial_state: initial.is_some(),
        last_state: dlast.is_some(),
        training: true,
    };
    let plan = call.plan(&PLANS, &SelectiveScanBackwardDesc { forward })?;
    let optional = [d.is_some(), z.is_some(), delta_bias.is_some(), initial.is_some()];
    let [of_d, of_z, of_bias, of_initial] = optional;
    let wanted = [true, true, true, true, true, of_d, of_z, of_bias, of_initial];
    let out = places(BACKWARD, keywords.out, wanted)?;
    let (channels, state) = ([scan.channels], started.state());
    let (samples, rows) = (started.of_samples(), Form::RowMajor(scan.dtype, &b.shape));
    let of_channels = started.of_sums(&channels);
    let forms = [
        samples,
        samples,
        started.of_sums(&a.shape),
        rows,
        rows,
        of_channels,
        samples,
        of_channels,
        started.of_sums(&state),
    ];
    let mut outputs = call.optional_outputs(wanted, out.each_ref().map(|place| ("out", place)), u, forms)?;
    outputs.push(call.workspace(&plan, u)?);
    let outputs: [_; 10] =
        outputs.try_into().unwrap_or_else(|_| unreachable!("nine gradients and a workspace"));
    let [u, delta, a, b, c, d, z, delta_bias] = started.inputs();
    let inputs = [u, delta, a, b, c, d, z, delta_bias, Some(&states), Some(&dy), dlast.as_ref()];
    let results = call.run_some(inputs, outputs, move |stream, inputs, outputs| {
        let [u, delta, a, b, c, d, z, delta_bias, states, dy, dlast_state] = inputs;
        let [du, ddelta, da, db, dc, dd, dz, ddelta_bias, dinitial_state, workspace] = outputs;
        let [u, delta, a, b, c, states, dy] = [u, delta, a, b, c, states, dy].map(present);
        let [du, ddelta, da, db, dc] = [du, ddelta, da, db, dc].map(present);
        let args = SelectiveScanBackwardArgs {
            u,
            delta,
            a,
            b,
            c,
            d,
            z,
            delta_bias,
            states,
            dy,
            dlast_state,
            du,
            ddelta,
            da,
            db,
            dc,
            dd,
            dz,
            ddelta_bias,
            dinitial_state,
            workspace,
        };
        Ok(plan.launch(stream, args)?)
    })?;
    PyTuple::new(started.u.object.py(), &results[..9])
}

fn update<'py>(
    given: [&Object<'py>; 5],
    state: &Object<'py>,
    keywords: &Keywords<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<SelectiveScanUpdateDesc> = PlanCache::new();
    let started = Started::new(UPDATE, given, keywords)?;
    let Started { call, u, scan, .. } = &started;
    let of_state = started.state();
    let outputs = [
        Some(call.updated_in(("state", state), started.of_sums(&of_state))?),
        Some(call.output(("out", keywords.out), u, started.of_samples())?),
    ];
    let plan = call.plan(&PLANS, &SelectiveScanUpdateDesc { scan: *scan })?;
    let [_, y] = call.run_some(started.inputs(), outputs, move |stream, inputs, [state, y]| {
        let [u, delta, a, b, c, d, z, delta_bias] = inputs;
        let [u, delta, a, b, c] = [u, delta, a, b, c].map(present);
        let (state, y) = (present(state), present(y));
        let args = SelectiveScanUpdateArgs { u, delta, a, b, c, d, z, delta_bias, state, y };
        Ok(plan.launch(stream, args)?)
    })?;
    Ok(present(y))
}

/// The scan of selective state spaces as Mamba has it: `y[t] = (C[t] . h[t] + D u[t]) silu(z[t])` of states
/// `h[t] = exp(s[t] A) h[t - 1] + s[t] B[t] u[t]` with time steps `s[t]` that are `delta[t] + delta_bias`, or its softplus.
///
/// u: float32, float64, float16 or bfloat16, [N, C, L], or [N, L, C] with channels_last; delta, z: like u; B, C: of its dtype,
/// [N, groups, state, L], or [N, L, groups, state] with channels_last, each group with as many neighbouring channels; A: [C, state] of
/// float32, of float64 for float64; D, delta_bias: [C] of that. z: the gate; without, none. The state of a channel has 1 to 64 numbers.
/// initial_state: that before the first position, [N, C, state] of the dtype of A; zeros without. last_state: whether that behind
/// the last position is wanted, too. training: whether the states are wanted that `selective_scan_backward` takes.
#[pyfunction]
#[pyo3(signature = (u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=false, *, initial_state=None, last_state=false, training=false, channels_last=false, out=None, stream=None))]
#[allow(
    clippy::too_many_arguments,
    non_snake_case,
    reason = "they are keywords in Python, in the letters of the paper"
)]
pub(crate) fn selective_scan<'py>(
    u: &Object<'py>,
    delta: &Object<'py>,
    A: &Object<'py>,
    B: &Object<'py>,
    C: &Object<'py>,
    D: Maybe<'_, 'py>,
    z: Maybe<'_, 'py>,
    delta_bias: Maybe<'_, 'py>,
    delta_softplus: bool,
    initial_state: Maybe<'_, 'py>,
    last_state: bool,
    training: bool,
    channels_last: bool,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let keywords = Keywords { d: D, z, delta_bias, delta_softplus, channels_last, out, stream };
    forward([u, delta, A, B, C], initial_state, [last_state, training], &keywords)
}

/// The gradients (du, ddelta, dA, dB, dC, dD, dz, ddelta_bias, dinitial_state) of `selective_scan`, None for what is not given.
///
/// states: those of a call with training=True; dy: like u; dlast_state: the gradient of the last state if something depends on it,
/// [N, C, state] of the dtype of A; the rest as there. Sums over samples and positions come in an order that depends on the shape alone.
#[pyfunction]
#[pyo3(signature = (u, delta, A, B, C, states, dy, dlast_state=None, *, D=None, z=None, delta_bias=None, delta_softplus=false, initial_state=None, channels_last=false, out=None, stream=None))]
#[allow(
    clippy::too_many_arguments,
    non_snake_case,
    reason = "they are keywords in Python, in the letters of the paper"
)]
pub(crate) fn selective_scan_backward<'py>(
    u: &Object<'py>,
    delta: &Object<'py>,
    A: &Object<'py>,
    B: &Object<'py>,
    C: &Object<'py>,
    states: &Object<'py>,
    dy: &Object<'py>,
    dlast_state: Maybe<'_, 'py>,
    D: Maybe<'_, 'py>,
    z: Maybe<'_, 'py>,
    delta_bias: Maybe<'_, 'py>,
    delta_softplus: bool,
    initial_state: Maybe<'_, 'py>,
    channels_last: bool,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    let keywords = Keywords { d: D, z, delta_bias, delta_softplus, channels_last, out, stream };
    backward([u, delta, A, B, C], [states, dy], [dlast_state, initial_state], &keywords)
}

/// `selective_scan` of the next positions behind a state of 1 to 256 numbers, which becomes that behind the last of them.
///
/// u: one or a few positions, [N, C, L], or [N, L, C] with channels_last; state: [N, C, state] of the dtype of A, written in place; the
/// rest as there.
#[pyfunction]
#[pyo3(signature = (u, delta, A, B, C, state, D=None, z=None, delta_bias=None, delta_softplus=false, *, channels_last=false, out=None, stream=None))]
#[allow(
    clippy::too_many_arguments,
    non_snake_case,
    reason = "they are keywords in Python, in the letters of the paper"
)]
pub(crate) fn selective_scan_update<'py>(
    u: &Object<'py>,
    delta: &Object<'py>,
    A: &Object<'py>,
    B: &Object<'py>,
    C: &Object<'py>,
    state: &Object<'py>,
    D: Maybe<'_, 'py>,
    z: Maybe<'_, 'py>,
    delta_bias: Maybe<'_, 'py>,
    delta_softplus: bool,
    channels_last: bool,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let keywords = Keywords { d: D, z, delta_bias, delta_softplus, channels_last, out, stream };
    update([u, delta, A, B, C], state, &keywords)
}
