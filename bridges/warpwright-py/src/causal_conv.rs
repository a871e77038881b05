//! Causal depthwise convolutions along time as Python functions.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use warpwright::DType;
use warpwright::causal_conv1d::{
    CausalConv1d, CausalConv1dArgs, CausalConv1dBackwardArgs, CausalConv1dBackwardDesc, CausalConv1dDesc,
    CausalConv1dUpdateArgs, CausalConv1dUpdateDesc, WIDTHS,
};
use warpwright::plan::PlanCache;

use crate::array::Array;
use crate::call::{Call, Form, gathered, places, present};
use crate::error::{self, Class, Problem, unknown};
use crate::images::{Images, InMemory, Order};
use crate::library::{Maybe, Object};

const FORWARD: &str = "causal_conv1d";
const BACKWARD: &str = "causal_conv1d_backward";
const UPDATE: &str = "causal_conv1d_update";

/// Keywords of all functions.
struct Keywords<'a, 'py> {
    bias: Maybe<'a, 'py>,
    activation: Option<&'a str>,
    memory: InMemory<'a>,
    out: Maybe<'a, 'py>,
    stream: Maybe<'a, 'py>,
}

impl Keywords<'_, '_> {
    /// Whether `silu` follows.
    fn silu(&self, py: Python<'_>, op: &'static str) -> PyResult<bool> {
        match self.activation {
            None => Ok(false),
            Some("silu") => Ok(true),
            Some(name) => Err(unknown(py, op, ("activation", name), "None or 'silu'")),
        }
    }
}

/// A call with what it reads in every direction.
struct Started<'py> {
    images: Images<'py>,
    x: Array<'py>,
    weight: Array<'py>,
    bias: Option<Array<'py>>,
    conv: CausalConv1d,
    /// Elements from one position of x to the next, if its rows have gaps.
    position_stride: Option<usize>,
}

/// The samples with positions that may lie apart where channels are innermost: themselves, or a copy. Their stride of positions, too, if they
/// have gaps.
fn with_gaps<'py>(
    images: &Images<'py>,
    mut x: Array<'py>,
    channels: usize,
) -> PyResult<(Array<'py>, Option<usize>)> {
    if images.order == Order::First {
        return Ok((images.taken(x)?, None));
    }
    let turn = |x: &mut Array<'py>| {
        if images.order == Order::LastInMemory {
            x.shape.swap_last_two();
            x.strides.swap_last_two();
        }
    };
    turn(&mut x);
    if let Some(stride) = x.spread_over_positions() {
        return Ok((x, (stride > channels).then_some(stride)));
    }
    turn(&mut x);
    Ok((images.taken(x)?, None))
}

impl<'py> Started<'py> {
    /// A call on samples whose order is known; `gaps`: whether positions may lie apart.
    fn new(
        images: Images<'py>,
        (x, gaps): (Array<'py>, bool),
        weight: &Object<'py>,
        keywords: &Keywords<'_, 'py>,
    ) -> PyResult<Self> {
        let (op, py) = (images.op, weight.py());
        let silu = keywords.silu(py, op)?;
        let [batch, ..] = x.extents::<3>()?;
        let (channels, len) = (x.shape[images.order.channels(3)], images.order.spatial(&x.shape)[0]);
        let weight = images.call.read(("weight", weight))?;
        weight.expect_dtype(x.dtype)?;
        let [rows, width] = weight.extents()?;
        if rows != channels {
            return Err(error::shape(py, op, "weight", &[channels, width], &weight.shape));
        }
        if !WIDTHS.contains(&width) {
            let expected = "from 2 to 4";
            let message = format!("{op}: weight has {width} taps, expected {expected}");
            let problem = Problem::new(py, Class::Shape, message).at(op, "weight");
            return Err(problem.mismatch(expected, width).into_err());
        }
        let weight = images.call.row_major(weight)?;
        let bias = images.call.optional(("bias", keywords.bias), x.dtype, &[channels])?;
        let (dtype, layout, bias_given) = (x.dtype, images.order.layout(), bias.is_some());
        let (x, position_stride) = match gaps {
            true => with_gaps(&images, x, channels)?,
            false => (images.taken(x)?, None),
        };
        let conv = CausalConv1d { dtype, layout, batch, channels, len, width, bias: bias_given, silu };
        Ok(Self { images, x, weight, bias, conv, position_stride })
    }

    /// A call on samples that name their order.
    fn on_samples(
        op: &'static str,
        [x, weight]: [&Object<'py>; 2],
        keywords: &Keywords<'_, 'py>,
    ) -> PyResult<Self> {
        let (call, x) = Call::new(op, ("x", x), keywords.stream)?;
        x.extents::<3>()?;
        let order = keywords.memory.order(op, &x, 3)?;
        Self::new(Images { op, call, order }, (x, true), weight, keywords)
    }

    /// The shape of the samples.
    fn samples(&self) -> Vec<usize> {
        let CausalConv1d { batch, channels, len, .. } = self.conv;
        self.images.order.shape(batch, channels, &[len])
    }

    /// The shape of states.
    fn states(&self) -> Vec<usize> {
        let CausalConv1d { batch, channels, width, .. } = self.conv;
        self.images.order.shape(batch, channels, &[width - 1])
    }

    /// A further argument of a shape, in the order of the samples, if it is given.
    fn optional(
        &self,
        argument: &'static str,
        object: Maybe<'_, 'py>,
        shape: &[usize],
    ) -> PyResult<Option<Array<'py>>> {
        let Some(object) = object else { return Ok(None) };
        let array = self.images.call.read((argument, object))?;
        array.expect_dtype(self.conv.dtype)?;
        array.expect_shape(shape)?;
        self.images.taken(array).map(Some)
    }

    /// The numbers of sequences, if they are given, which no states are beside.
    fn seq_idx(&self, object: Maybe<'_, 'py>, states: bool) -> PyResult<Option<Array<'py>>> {
        let (CausalConv1d { batch, len, .. }, op) = (self.conv, self.images.op);
        let problem = |class, argument, what: &str| {
            let message = format!("{op}: {argument} {what}");
            Problem::new(self.x.object.py(), class, message).at(op, argument)
        };
        if states && object.is_some() {
            let problem =
                problem(Class::Argument, "seq_idx", "is given, expected None where there are states");
            return Err(problem.mismatch("None", "array").into_err());
        }
        if states && len == 0 {
            let what = "has no positions, expected at least 1 where there are states";
            return Err(problem(Class::Shape, "x", what).mismatch(1, 0).into_err());
        }
        self.images.call.optional(("seq_idx", object), DType::I32, &[batch, len])
    }

    fn form<'s>(&self, shape: &'s [usize]) -> Form<'s> {
        self.images.form(self.conv.dtype, shape)
    }
}

/// Where the states before the first position and the sequences of positions are.
#[derive(Clone, Copy)]
struct Before<'a, 'py> {
    initial_states: Maybe<'a, 'py>,
    seq_idx: Maybe<'a, 'py>,
}

fn forward<'py>(
    given: [&Object<'py>; 2],
    before: Before<'_, 'py>,
    final_states: bool,
    keywords: &Keywords<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<CausalConv1dDesc> = PlanCache::new();
    let started = Started::on_samples(FORWARD, given, keywords)?;
    let (of_samples, of_states) = (started.samples(), started.states());
    let initial = started.optional("initial_states", before.initial_states, &of_states)?;
    let seq_idx = started.seq_idx(before.seq_idx, final_states || initial.is_some())?;
    let Started { images: Images { call, .. }, x, weight, bias, conv, position_stride } = &started;
    let desc = CausalConv1dDesc {
        conv: *conv,
        initial_states: initial.is_some(),
        final_states,
        sequences: seq_idx.is_some(),
        position_stride: *position_stride,
    };
    let plan = call.plan(&PLANS, &desc)?;
    let [y, last] = places(FORWARD, keywords.out, [true, final_states])?;
    let outputs = [
        Some(call.output(("out", y.as_ref()), x, started.form(&of_samples))?),
        call.optional_output(final_states, ("out", last.as_ref()), x, started.form(&of_states))?,
    ];
    let inputs = [Some(x), Some(weight), bias.as_ref(), initial.as_ref(), seq_idx.as_ref()];
    let results = call.run_some(inputs, outputs, move |stream, inputs, [y, final_states]| {
        let [x, weight, bias, initial_states, seq_idx] = inputs;
        let (x, weight, y) = (present(x), present(weight), present(y));
        let args = CausalConv1dArgs { x, weight, bias, initial_states, seq_idx, y, final_states };
        Ok(plan.launch(stream, args)?)
    })?;
    gathered(x.object.py(), results)
}

fn backward<'py>(
    given: [&Object<'py>; 2],
    (dy, dfinal_states): (&Object<'py>, Maybe<'_, 'py>),
    before: Before<'_, 'py>,
    keywords: &Keywords<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    static PLANS: PlanCache<CausalConv1dBackwardDesc> = PlanCache::new();
    let started = Started::on_samples(BACKWARD, given, keywords)?;
    let (of_samples, of_states) = (started.samples(), started.states());
    let dy = present(started.optional("dy", Some(dy), &of_samples)?);
    let dlast = started.optional("dfinal_states", dfinal_states, &of_states)?;
    let initial = started.optional("initial_states", before.initial_states, &of_states)?;
    let seq_idx = started.seq_idx(before.seq_idx, dlast.is_some() || initial.is_some())?;
    let Started { images: Images { call, .. }, x, weight, bias, conv, position_stride } = &started;
    let forward = CausalConv1dDesc {
        conv: *conv,
        initial_states: initial.is_some(),
        final_states: dlast.is_some(),
        sequences: seq_idx.is_some(),
        position_stride: *position_stride,
    };
    let plan = call.plan(&PLANS, &CausalConv1dBackwardDesc { forward })?;
    let wanted = [true, true, bias.is_some(), initial.is_some()];
    let out = places(BACKWARD, keywords.out, wanted)?;
    let [dx, dweight, dbias, dinitial] = out.each_ref().map(Option::as_ref);
    let channels = [conv.channels];
    let small = |shape| Form::RowMajor(conv.dtype, shape);
    let outputs = [
        Some(call.output(("out", dx), x, started.form(&of_samples))?),
        Some(call.output(("out", dweight), x, small(&weight.shape))?),
        call.optional_output(wanted[2], ("out", dbias), x, small(&channels))?,
        call.optional_output(wanted[3], ("out", dinitial), x, started.form(&of_states))?,
        call.workspace(&plan, x)?,
    ];
    let inputs =
        [Some(x), Some(weight), bias.as_ref(), initial.as_ref(), seq_idx.as_ref(), Some(&dy), dlast.as_ref()];
    let [dx, dweight, dbias, dinitial, _] =
        call.run_some(inputs, outputs, move |stream, inputs, outputs| {
            let [x, weight, bias, initial_states, seq_idx, dy, dfinal_states] = inputs;
            let [dx, dweight, dbias, dinitial_states, workspace] = outputs;
            let (x, weight, dy) = (present(x), present(weight), present(dy));
            let (dx, dweight) = (present(dx), present(dweight));
            let args = CausalConv1dBackwardArgs {
                x,
                weight,
                bias,
                initial_states,
                seq_idx,
                dy,
                dfinal_states,
                dx,
                dweight,
                dbias,
                dinitial_states,
                workspace,
            };
            Ok(plan.launch(stream, args)?)
        })?;
    PyTuple::new(x.object.py(), [dx, dweight, dbias, dinitial])
}

fn update<'py>(
    [x, states, weight]: [&Object<'py>; 3],
    keywords: &Keywords<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<CausalConv1dUpdateDesc> = PlanCache::new();
    let (call, x) = Call::new(UPDATE, ("x", x), keywords.stream)?;
    // One position lies in either order, so states say which.
    let order = keywords.memory.order(UPDATE, &call.read(("states", states))?, 3)?;
    let started = Started::new(Images { op: UPDATE, call, order }, (x, false), weight, keywords)?;
    let (of_samples, of_states) = (started.samples(), started.states());
    let Started { images: Images { call, .. }, x, weight, bias, conv, .. } = &started;
    let plan = call.plan(&PLANS, &CausalConv1dUpdateDesc { conv: *conv })?;
    let outputs = [
        Some(call.updated_in(("states", states), started.form(&of_states))?),
        Some(call.output(("out", keywords.out), x, started.form(&of_samples))?),
    ];
    let inputs = [Some(x), Some(weight), bias.as_ref()];
    let [_, y] = call.run_some(inputs, outputs, move |stream, [x, weight, bias], [states, y]| {
        let (x, weight, states, y) = (present(x), present(weight), present(states), present(y));
        Ok(plan.launch(stream, CausalConv1dUpdateArgs { x, weight, bias, states, y })?)
    })?;
    Ok(present(y))
}

/// `activation(bias + sum_i weight[i] x[l - width + 1 + i])` in every channel: a convolution along time that sees no later position.
///
/// x: float32, float64, float16 or bfloat16, [N, C, L], or [N, L, C] with channels_last; weight: [C, width] of it, with a width of 2 to 4;
/// bias: [C], or None. activation: "silu", or None. initial_states: the width - 1 positions before the first, [N, C, width - 1], or
/// [N, width - 1, C] with channels_last; zeros without. final_states: whether the last width - 1 positions are wanted, too.
/// seq_idx: the number of the sequence of each position, [N, L], int32, negative where there is none; not together with states.
/// memory_format: "contiguous_format" or "channels_last", of x, states and results, for tensors of PyTorch [N, C, L]; by default what x has.
#[pyfunction]
#[pyo3(signature = (x, weight, bias=None, *, initial_states=None, final_states=false, seq_idx=None, activation=None, channels_last=false, memory_format=None, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn causal_conv1d<'py>(
    x: &Object<'py>,
    weight: &Object<'py>,
    bias: Maybe<'_, 'py>,
    initial_states: Maybe<'_, 'py>,
    final_states: bool,
    seq_idx: Maybe<'_, 'py>,
    activation: Option<&str>,
    channels_last: bool,
    memory_format: Option<&str>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let memory = InMemory { channels_last, memory_format };
    let keywords = Keywords { bias, activation, memory, out, stream };
    forward([x, weight], Before { initial_states, seq_idx }, final_states, &keywords)
}

/// The gradients `(dx, dweight, dbias, dinitial_states)` of `causal_conv1d`, None for what was not given.
///
/// x, weight, bias, initial_states, seq_idx, activation: as in the forward pass; dy: gradient of the result; dfinal_states: that of the last
/// positions, if something depends on them. `out` holds the results that there are.
#[pyfunction]
#[pyo3(signature = (x, weight, dy, dfinal_states=None, *, bias=None, initial_states=None, seq_idx=None, activation=None, channels_last=false, memory_format=None, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn causal_conv1d_backward<'py>(
    x: &Object<'py>,
    weight: &Object<'py>,
    dy: &Object<'py>,
    dfinal_states: Maybe<'_, 'py>,
    bias: Maybe<'_, 'py>,
    initial_states: Maybe<'_, 'py>,
    seq_idx: Maybe<'_, 'py>,
    activation: Option<&str>,
    channels_last: bool,
    memory_format: Option<&str>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    let memory = InMemory { channels_last, memory_format };
    let keywords = Keywords { bias, activation, memory, out, stream };
    backward([x, weight], (dy, dfinal_states), Before { initial_states, seq_idx }, &keywords)
}

/// `causal_conv1d` of the next positions behind states, which become the last positions.
///
/// x: one or a few positions, [N, C, L], or [N, L, C] with channels_last; states: the width - 1 positions before, [N, C, width - 1], or
/// [N, width - 1, C], written in place; weight, bias, activation: as there. The order in memory is that of the states.
#[pyfunction]
#[pyo3(signature = (x, states, weight, bias=None, *, activation=None, channels_last=false, memory_format=None, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn causal_conv1d_update<'py>(
    x: &Object<'py>,
    states: &Object<'py>,
    weight: &Object<'py>,
    bias: Maybe<'_, 'py>,
    activation: Option<&str>,
    channels_last: bool,
    memory_format: Option<&str>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let memory = InMemory { channels_last, memory_format };
    let keywords = Keywords { bias, activation, memory, out, stream };
    update([x, states, weight], &keywords)
}
