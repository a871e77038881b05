//! The scan of Mamba 2 as Python functions.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use warpwright::DType;
use warpwright::chunk_scan::{
    ChunkScan, ChunkScanArgs, ChunkScanBackwardArgs, ChunkScanBackwardDesc, ChunkScanDesc, DTYPES,
    PositionStrides,
};
use warpwright::plan::PlanCache;

use crate::array::Array;
use crate::call::{Call, Form, gathered, places, present};
use crate::error;
use crate::library::{Maybe, Object};

const FORWARD: &str = "chunk_scan";
const BACKWARD: &str = "chunk_scan_backward";

/// Keywords of both functions.
struct Keywords<'a, 'py> {
    d: Maybe<'a, 'py>,
    dt_bias: Maybe<'a, 'py>,
    dt_softplus: bool,
    out: Maybe<'a, 'py>,
    stream: Maybe<'a, 'py>,
}

/// A call with what it reads in both directions.
struct Started<'py> {
    call: Call<'py>,
    x: Array<'py>,
    dt: Array<'py>,
    a: Array<'py>,
    b: Array<'py>,
    c: Array<'py>,
    d: Option<Array<'py>>,
    dt_bias: Option<Array<'py>>,
    scan: ChunkScan,
}

impl<'py> Started<'py> {
    fn new(
        op: &'static str,
        [x, dt, a, b, c]: [&Object<'py>; 5],
        keywords: &Keywords<'_, 'py>,
    ) -> PyResult<Self> {
        let (call, x) = Call::new(op, ("x", x), keywords.stream)?;
        let [batch, len, heads, head_dim] = x.extents()?;
        let dtype = x.dtype;
        if !DTYPES.contains(&dtype) {
            return Err(error::dtype(x.object.py(), op, "x", &DTYPES, dtype.name()));
        }
        let of_type = |named, shape: &[usize]| {
            let array = call.read(named)?;
            array.expect_dtype(dtype)?;
            array.expect_shape(shape)?;
            call.positions(array)
        };
        let (dt, of_dt) = of_type(("dt", dt), &[batch, len, heads])?;
        let a = call.small(("A", a), DType::F32, &[heads])?;
        let b = call.read(("B", b))?;
        let [_, _, groups, state] = b.extents()?;
        let rows = [batch, len, groups, state];
        b.expect_dtype(dtype)?;
        b.expect_shape(&rows)?;
        let (b, of_b) = call.positions(b)?;
        let (c, of_c) = of_type(("C", c), &rows)?;
        let (x, of_x) = call.positions(x)?;
        let d = call.optional(("D", keywords.d), DType::F32, &[heads])?;
        let dt_bias = call.optional(("dt_bias", keywords.dt_bias), DType::F32, &[heads])?;
        let scan = ChunkScan {
            strides: PositionStrides { x: of_x, dt: of_dt, b: of_b, c: of_c },
            d: d.is_some(),
            dt_bias: dt_bias.is_some(),
            dt_softplus: keywords.dt_softplus,
            ..ChunkScan::new(dtype, [batch, len, heads, head_dim], [groups, state])
        };
        Ok(Self { call, x, dt, a, b, c, d, dt_bias, scan })
    }

    /// The arrays that kernels read, in the order of their arguments.
    fn inputs(&self) -> [Option<&Array<'py>>; 7] {
        let Self { x, dt, a, b, c, d, dt_bias, .. } = self;
        [Some(x), Some(dt), Some(a), Some(b), Some(c), d.as_ref(), dt_bias.as_ref()]
    }

    /// The shape of the states behind samples.
    fn state(&self) -> [usize; 4] {
        let ChunkScan { batch, heads, head_dim, state, .. } = self.scan;
        [batch, heads, head_dim, state]
    }

    /// A further argument of the shape of states behind samples, if it is given.
    fn optional_state(&self, argument: &'static str, object: Maybe<'_, 'py>) -> PyResult<Option<Array<'py>>> {
        self.call.optional((argument, object), DType::F32, &self.state())
    }

    /// The form of a result of the type of `x`.
    fn of_samples<'s>(&self, shape: &'s [usize]) -> Form<'s> {
        Form::RowMajor(self.scan.dtype, shape)
    }
}

fn forward<'py>(
    given: [&Object<'py>; 5],
    initial_state: Maybe<'_, 'py>,
    [last_state, training]: [bool; 2],
    keywords: &Keywords<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<ChunkScanDesc> = PlanCache::new();
    let started = Started::new(FORWARD, given, keywords)?;
    let initial = started.optional_state("initial_state", initial_state)?;
    let Started { call, x, scan, .. } = &started;
    let desc = ChunkScanDesc { scan: *scan, initial_state: initial.is_some(), last_state, training };
    let plan = call.plan(&PLANS, &desc)?;
    let [y, last, states] = places(FORWARD, keywords.out, [true, last_state, training])?;
    let (state, saved) = (started.state(), scan.saved_states());
    let last_form = Form::RowMajor(DType::F32, &state);
    let outputs = [
        Some(call.output(("out", y.as_ref()), x, started.of_samples(&x.shape))?),
        call.optional_output(last_state, ("out", last.as_ref()), x, last_form)?,
        call.optional_output(training, ("out", states.as_ref()), x, started.of_samples(&saved))?,
        call.workspace(&plan, x)?,
    ];
    let [x, dt, a, b, c, d, dt_bias] = started.inputs();
    let inputs = [x, dt, a, b, c, d, dt_bias, initial.as_ref()];
    let [y, last, states, _] = call.run_some(inputs, outputs, move |stream, inputs, outputs| {
        let [x, dt, a, b, c, d, dt_bias, initial_state] = inputs;
        let [y, last_state, states, workspace] = outputs;
        let [x, dt, a, b, c] = [x, dt, a, b, c].map(present);
        let y = present(y);
        let args =
            ChunkScanArgs { x, dt, a, b, c, d, dt_bias, initial_state, y, last_state, states, workspace };
        Ok(plan.launch(stream, args)?)
    })?;
    gathered(started.x.object.py(), [y, last, states])
}

fn backward<'py>(
    given: [&Object<'py>; 5],
    [states, dy]: [&Object<'py>; 2],
    [dlast_state, initial_state]: [Maybe<'_, 'py>; 2],
    keywords: &Keywords<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    static PLANS: PlanCache<ChunkScanBackwardDesc> = PlanCache::new();
    let started = Started::new(BACKWARD, given, keywords)?;
    let Started { call, x, dt, b, d, dt_bias, scan, .. } = &started;
    let states = call.small(("states", states), scan.dtype, &scan.saved_states())?;
    let dy = call.small(("dy", dy), scan.dtype, &x.shape)?;
    let dlast = started.optional_state("dlast_state", dlast_state)?;
    let initial = started.optional_state("initial_state", initial_state)?;
    let forward = ChunkScanDesc {
        scan: *scan,
        initial_state: initial.is_some(),
        last_state: dlast.is_some(),
        training: true,
    };
    let plan = call.plan(&PLANS, &ChunkScanBackwardDesc { forward })?;
    let wanted = [true, true, true, true, true, d.is_some(), dt_bias.is_some(), initial.is_some()];
    let out = places(BACKWARD, keywords.out, wanted)?;
    let (heads, state) = ([scan.heads], started.state());
    let (of_heads, rows) = (Form::RowMajor(DType::F32, &heads), started.of_samples(&b.shape));
    let forms = [
        started.of_samples(&x.shape),
        started.of_samples(&dt.shape),
        of_heads,
        rows,
        rows,
        of_heads,
        of_heads,
        Form::RowMajor(DType::F32, &state),
    ];
    let mut outputs = call.optional_outputs(wanted, out.each_ref().map(|place| ("out", place)), x, forms)?;
    outputs.push(call.workspace(&plan, x)?);
    let outputs: [_; 9] =
        outputs.try_into().unwrap_or_else(|_| unreachable!("eight gradients and a workspace"));
    let [x, dt, a, b, c, d, dt_bias] = started.inputs();
    let inputs = [x, dt, a, b, c, d, dt_bias, Some(&states), Some(&dy), dlast.as_ref()];
    let results = call.run_some(inputs, outputs, move |stream, inputs, outputs| {
        let [x, dt, a, b, c, d, dt_bias, states, dy, dlast_state] = inputs;
        let [dx, ddt, da, db, dc, dd, ddt_bias, dinitial_state, workspace] = outputs;
        let [x, dt, a, b, c, states, dy] = [x, dt, a, b, c, states, dy].map(present);
        let [dx, ddt, da, db, dc] = [dx, ddt, da, db, dc].map(present);
        let args = ChunkScanBackwardArgs {
            x,
            dt,
            a,
            b,
            c,
            d,
            dt_bias,
            states,
            dy,
            dlast_state,
            dx,
            ddt,
            da,
            db,
            dc,
            dd,
            ddt_bias,
            dinitial_state,
            workspace,
        };
        Ok(plan.launch(stream, args)?)
    })?;
    PyTuple::new(started.x.object.py(), &results[..8])
}

/// The scan of Mamba 2 by products over chunks of positions: `y[t] = h[t] C[t] + D x[t]` of states
/// `h[t] = exp(s[t] A) h[t - 1] + s[t] x[t] B[t]^T` with time steps `s[t]` that are `dt[t] + dt_bias`, or its softplus.
///
/// x: float16 or bfloat16, [N, L, heads, head_dim]; dt: [N, L, heads]; B, C: [N, L, groups, state], each group with as many neighbouring
/// heads; all of its dtype, with positions that may lie apart, as those of parts of a tensor do (what lies otherwise is copied). A, D,
/// dt_bias: [heads] of float32. A head has 1 to 128 elements, each with 1 to 256 numbers of state.
/// initial_state: that before the first position, [N, heads, head_dim, state] of float32; zeros without. last_state: whether that behind
/// the last position is wanted, too. training: whether the states are wanted that `chunk_scan_backward` takes. From sm_80 on.
#[pyfunction]
#[pyo3(signature = (x, dt, A, B, C, D=None, dt_bias=None, dt_softplus=false, *, initial_state=None, last_state=false, training=false, out=None, stream=None))]
#[allow(
    clippy::too_many_arguments,
    non_snake_case,
    reason = "they are keywords in Python, in the letters of the paper"
)]
pub(crate) fn chunk_scan<'py>(
    x: &Object<'py>,
    dt: &Object<'py>,
    A: &Object<'py>,
    B: &Object<'py>,
    C: &Object<'py>,
    D: Maybe<'_, 'py>,
    dt_bias: Maybe<'_, 'py>,
    dt_softplus: bool,
    initial_state: Maybe<'_, 'py>,
    last_state: bool,
    training: bool,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let keywords = Keywords { d: D, dt_bias, dt_softplus, out, stream };
    forward([x, dt, A, B, C], initial_state, [last_state, training], &keywords)
}

/// The gradients (dx, ddt, dA, dB, dC, dD, ddt_bias, dinitial_state) of `chunk_scan`, without gaps, None for what is not given.
///
/// states: those of a call with training=True; dy: like x; dlast_state: the gradient of the last state if something depends on it,
/// [N, heads, head_dim, state] of float32; the rest as there. Sums over samples and positions come in an order that depends on the shape
/// alone.
#[pyfunction]
#[pyo3(signature = (x, dt, A, B, C, states, dy, dlast_state=None, *, D=None, dt_bias=None, dt_softplus=false, initial_state=None, out=None, stream=None))]
#[allow(
    clippy::too_many_arguments,
    non_snake_case,
    reason = "they are keywords in Python, in the letters of the paper"
)]
pub(crate) fn chunk_scan_backward<'py>(
    x: &Object<'py>,
    dt: &Object<'py>,
    A: &Object<'py>,
    B: &Object<'py>,
    C: &Object<'py>,
    states: &Object<'py>,
    dy: &Object<'py>,
    dlast_state: Maybe<'_, 'py>,
    D: Maybe<'_, 'py>,
    dt_bias: Maybe<'_, 'py>,
    dt_softplus: bool,
    initial_state: Maybe<'_, 'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    let keywords = Keywords { d: D, dt_bias, dt_softplus, out, stream };
    backward([x, dt, A, B, C], [states, dy], [dlast_state, initial_state], &keywords)
}
