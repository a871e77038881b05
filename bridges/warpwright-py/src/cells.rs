//! Single steps of recurrent nets as Python functions.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use warpwright::plan::PlanCache;
use warpwright::recurrent::{
    Cell, CellArgs, CellBackwardArgs, CellBackwardDesc, CellDesc, WeightGradients, WeightRefs,
};
use warpwright::{DType, Operation, Plan};

use crate::array::Array;
use crate::call::{Call, Form, gathered, places, present};
use crate::library::{Maybe, Object};
use crate::many::Listed;
use crate::recurrent::{PROJECTION, WEIGHTS, Weights, biases_of, cell_of, fitting, listed, refused};

/// A call with its arguments, and what it computes.
struct Started<'py> {
    call: Call<'py>,
    x: Array<'py>,
    h: Array<'py>,
    c: Option<Array<'py>>,
    weights: Weights<'py>,
    desc: CellDesc,
}

fn start<'py>(
    (op, cell): (&'static str, Cell),
    [x, h, weights]: [&Object<'py>; 3],
    c: Maybe<'_, 'py>,
    training: bool,
    stream: Maybe<'_, 'py>,
) -> PyResult<Started<'py>> {
    let py = x.py();
    let (call, x) = Call::new(op, ("x", x), stream)?;
    let x = call.row_major(x)?;
    let [batch, input] = x.extents()?;
    let weights = listed(&call, op, weights)?;
    if weights[PROJECTION].is_some() {
        return Err(refused(py, op, "weights holds a projection", "no w_hr", "one"));
    }
    let [_, Some(w_hh), b_ih, b_hh, _] = &weights else { unreachable!("two at least were listed") };
    let [_, hidden] = w_hh.extents()?;
    let rows = hidden.saturating_mul(cell.gates());
    let (dtype, biases) = (x.dtype, biases_of([b_ih, b_hh]));
    let shapes: [&[usize]; 5] = [&[rows, input], &[rows, hidden], &[rows], &[rows], &[]];
    let weights = fitting(&call, dtype, weights, shapes)?;
    let h = call.small(("h", h), dtype, &[batch, hidden])?;
    let c = call.optional(("c", c), dtype, &[batch, hidden])?;
    let desc = CellDesc { cell, dtype, batch, input, hidden, biases, training };
    Ok(Started { call, x, h, c, weights, desc })
}

/// Type and elements of what a forward pass for training leaves.
fn reserve_of<O: Operation>(plan: &Plan<O>) -> (DType, usize) {
    plan.tensor("reserve").map_or((DType::F32, 0), |spec| (spec.dtype, spec.len))
}

fn forward<'py>(
    of: (&'static str, Cell),
    given: [&Object<'py>; 3],
    c: Maybe<'_, 'py>,
    training: bool,
    [out, stream]: [Maybe<'_, 'py>; 2],
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<CellDesc> = PlanCache::new();
    let Started { call, x, h, c, weights, desc } = start(of, given, c, training, stream)?;
    let plan = call.plan(&PLANS, &desc)?;
    let kept = [true, desc.cell.has_c(), training];
    let out = places::<3>(of.0, out, kept)?;
    let ((dtype, len), state) = (reserve_of(&plan), [desc.batch, desc.hidden]);
    let of_state = || Form::RowMajor(desc.dtype, &state);
    let forms = [of_state(), of_state(), Form::RowMajor(dtype, &[len])];
    let [h_next, c_next, of_reserve] = &out;
    let out = [("out[0]", h_next), ("out[1]", c_next), ("reserve", of_reserve)];
    let mut outputs = call.optional_outputs(kept, out, &x, forms)?;
    outputs.push(call.workspace(&plan, &x)?);
    let mut inputs = vec![Some(&x), Some(&h), c.as_ref()];
    inputs.extend(weights[..PROJECTION].iter().map(Option::as_ref));
    let mut results = call.run_many::<Listed, Listed>(inputs, outputs, move |stream, inputs, outputs| {
        let (mut inputs, mut outputs) = (inputs.into_iter(), outputs.into_iter());
        let (mut input, mut output) = (|| inputs.next().flatten(), || outputs.next().flatten());
        let (x, h, c) = (present(input()), present(input()), input());
        let (w_ih, w_hh) = (present(input()), present(input()));
        let weights = WeightRefs { w_ih, w_hh, b_ih: input(), b_hh: input(), w_hr: None };
        let (h_next, c_next, reserve, workspace) = (present(output()), output(), output(), output());
        Ok(plan.launch(stream, CellArgs { x, h, c, weights, h_next, c_next, reserve, workspace })?)
    })?;
    // Scratch memory is nobody's result.
    results.pop();
    let results: [_; 3] = results.try_into().unwrap_or_else(|_| unreachable!("as many as were made"));
    gathered(x.object.py(), results)
}

fn backward<'py>(
    of: (&'static str, Cell),
    given: [&Object<'py>; 3],
    c: Maybe<'_, 'py>,
    [reserve, dh]: [&Object<'py>; 2],
    [dc, stream]: [Maybe<'_, 'py>; 2],
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<CellBackwardDesc> = PlanCache::new();
    let Started { call, x, h, c, weights, desc } = start(of, given, c, true, stream)?;
    let (py, state, dtype) = (x.object.py(), [desc.batch, desc.hidden], desc.dtype);
    let dh = call.small(("dh", dh), dtype, &state)?;
    let dc = call.optional(("dc", dc), dtype, &state)?;
    let plan = call.plan(&PLANS, &CellBackwardDesc { forward: desc.clone(), dc_next: dc.is_some() })?;
    let (reserve_dtype, reserve_len) = reserve_of(&plan);
    let reserve = call.small(("reserve", reserve), reserve_dtype, &[reserve_len])?;
    let wanted = |wanted, name, shape: &[usize]| {
        call.optional_output(wanted, (name, None), &x, Form::RowMajor(dtype, shape))
    };
    let mut outputs = vec![
        wanted(true, "dx", &x.shape)?,
        wanted(true, "dh", &state)?,
        wanted(desc.cell.has_c(), "dc", &state)?,
        call.workspace(&plan, &x)?,
    ];
    for (array, name) in weights[..PROJECTION].iter().zip(WEIGHTS) {
        outputs.push(array.as_ref().map(|array| wanted(true, name, &array.shape)).transpose()?.flatten());
    }
    let mut inputs = vec![Some(&x), Some(&h), c.as_ref(), Some(&reserve), Some(&dh), dc.as_ref()];
    inputs.extend(weights[..2].iter().map(Option::as_ref));
    let mut results = call.run_many::<Listed, Listed>(inputs, outputs, move |stream, inputs, outputs| {
        let (mut inputs, mut outputs) = (inputs.into_iter(), outputs.into_iter());
        let (mut input, mut output) = (|| inputs.next().flatten(), || outputs.next().flatten());
        let (x, h, c) = (present(input()), present(input()), input());
        let (reserve, dh_next, dc_next) = (present(input()), present(input()), input());
        let (dx, dh, dc, workspace) = (present(output()), present(output()), output(), output());
        let weights = WeightGradients {
            w_ih: present(input()),
            w_hh: present(input()),
            w_hr: None,
            dw_ih: present(output()),
            dw_hh: present(output()),
            db_ih: output(),
            db_hh: output(),
            dw_hr: None,
        };
        let args = CellBackwardArgs { x, h, c, reserve, dh_next, dc_next, weights, dx, dh, dc, workspace };
        Ok(plan.launch(stream, args)?)
    })?;
    let weights: Vec<_> = results.split_off(4).into_iter().flatten().collect();
    results.truncate(3);
    let mut all: Vec<Object<'py>> = results.into_iter().flatten().collect();
    all.push(PyTuple::new(py, weights)?.into_any());
    Ok(PyTuple::new(py, all)?.into_any())
}

/// The functions of a cell: `c` if it has one, `nonlinearity` if it has a choice.
macro_rules! cells {
    ($(
        $(#[$doc:meta])* $name:ident,
        $(#[$doc_backward:meta])* $backward:ident: $($c:ident $dc:ident)?, $($nonlinearity:ident)?;
    )*) => {$(
        $(#[$doc])*
        #[pyfunction]
        #[pyo3(signature = (x, h, $($c,)? weights, *, $($nonlinearity="tanh",)? training=false, out=None, stream=None))]
        #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
        pub(crate) fn $name<'py>(
            x: &Object<'py>,
            h: &Object<'py>,
            $($c: &Object<'py>,)?
            weights: &Object<'py>,
            $($nonlinearity: &str,)?
            training: bool,
            out: Maybe<'_, 'py>,
            stream: Maybe<'_, 'py>,
        ) -> PyResult<Object<'py>> {
            let op = stringify!($name);
            let cell = cell_of(x.py(), op, [$(Some($nonlinearity),)? None][0])?;
            forward((op, cell), [x, h, weights], [$(Some($c),)? None][0], training, [out, stream])
        }

        $(#[$doc_backward])*
        #[pyfunction]
        #[pyo3(signature = (x, h, $($c,)? weights, reserve, dh, $($dc=None,)? *, $($nonlinearity="tanh",)? stream=None))]
        #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
        pub(crate) fn $backward<'py>(
            x: &Object<'py>,
            h: &Object<'py>,
            $($c: &Object<'py>,)?
            weights: &Object<'py>,
            reserve: &Object<'py>,
            dh: &Object<'py>,
            $($dc: Maybe<'_, 'py>,)?
            $($nonlinearity: &str,)?
            stream: Maybe<'_, 'py>,
        ) -> PyResult<Object<'py>> {
            let op = stringify!($backward);
            let cell = cell_of(x.py(), op, [$(Some($nonlinearity),)? None][0])?;
            let (c, dc) = ([$(Some($c),)? None][0], [$($dc,)? None][0]);
            backward((op, cell), [x, h, weights], c, [reserve, dh], [dc, stream])
        }
    )*};
}

cells! {
    /// One step of an LSTM, as in `lstm`: the pair (h, c) after it.
    ///
    /// x: [batch, input]; h, c: [batch, hidden]; float32, float64, float16 or bfloat16. weights: a sequence of w_ih [4 hidden,
    /// input], w_hh [4 hidden, hidden] and up to two biases [4 hidden], the gates in the order i, f, g, o. With training there is
    /// also what `lstm_cell_backward` needs. `out` is a tuple of the results.
    lstm_cell,
    /// The gradients (dx, dh, dc, dweights) of `lstm_cell` with training.
    ///
    /// reserve: what it gave; dh, dc: the gradients of its results, that of c zero if None; the rest as it was called. dweights is
    /// a tuple like weights.
    lstm_cell_backward: c dc,;

    /// One step of a gated recurrent unit, as in `gru`: h after it.
    ///
    /// As `lstm_cell`, with three gates in the order r, z, n and without c.
    gru_cell,
    /// The gradients (dx, dh, dweights) of `gru_cell` with training, as `lstm_cell_backward`.
    gru_cell_backward: ,;

    /// One step of the plain recurrent cell, as in `rnn`: h after it.
    ///
    /// As `lstm_cell`, with one gate and without c. nonlinearity: "tanh" or "relu".
    rnn_cell,
    /// The gradients (dx, dh, dweights) of `rnn_cell` with training, as `lstm_cell_backward`.
    rnn_cell_backward: , nonlinearity;
}
