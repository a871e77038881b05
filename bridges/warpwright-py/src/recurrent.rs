//! Recurrent nets as Python functions.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use warpwright::DType;
use warpwright::plan::{PlanCache, Real};
use warpwright::recurrent::{
    Biases, Cell, RecurrentArgs, RecurrentBackwardArgs, RecurrentBackwardDesc, RecurrentDesc,
    WeightGradients, WeightRefs, check_lengths,
};

use crate::array::Array;
use crate::call::{Call, Form, gathered, places, present};
use crate::error::{Class, Problem};
use crate::indices::known_i32;
use crate::library::{Maybe, Object};
use crate::many::Listed;
use crate::matmul::precision_of;

/// The keywords of both directions.
struct Options<'a, 'py> {
    /// The function that was called.
    op: &'static str,
    cell: Cell,
    bidirectional: bool,
    batch_first: bool,
    lengths: Maybe<'a, 'py>,
    dropout_p: f64,
    random: Maybe<'a, 'py>,
    precision: &'a str,
    stream: Maybe<'a, 'py>,
}

/// The weights of a layer and direction: w_ih, w_hh, b_ih, b_hh, w_hr.
pub(crate) type Weights<'py> = [Option<Array<'py>>; 5];
pub(crate) const WEIGHTS: [&str; 5] = ["w_ih", "w_hh", "b_ih", "b_hh", "w_hr"];
/// Where w_hr is: behind the biases, and with two dimensions.
pub(crate) const PROJECTION: usize = 4;

/// A call with its arguments, and what it computes.
struct Started<'py> {
    call: Call<'py>,
    x: Array<'py>,
    lengths: Option<Array<'py>>,
    h0: Option<Array<'py>>,
    c0: Option<Array<'py>>,
    random: Option<Array<'py>>,
    weights: Vec<Weights<'py>>,
    desc: RecurrentDesc,
}

impl<'py> Started<'py> {
    /// Of h0 and c0, and the states after the last steps.
    fn states(&self) -> [[usize; 3]; 2] {
        let RecurrentDesc { layers, directions, batch, hidden, .. } = self.desc;
        [self.desc.output(), hidden].map(|width| [layers * directions, batch, width])
    }

    /// The tensors that both directions read, but for the weights.
    fn inputs(&self) -> Vec<Option<&Array<'py>>> {
        let further = [&self.lengths, &self.h0, &self.c0, &self.random].map(Option::as_ref);
        [Some(&self.x)].into_iter().chain(further).collect()
    }

    /// Of the results at all time steps.
    fn time_steps(&self) -> [usize; 3] {
        let RecurrentDesc { steps, batch, directions, batch_first, .. } = self.desc;
        let [first, second] = if batch_first { [batch, steps] } else { [steps, batch] };
        [first, second, directions.saturating_mul(self.desc.output())]
    }
}

/// An error about the weights.
pub(crate) fn refused(py: Python<'_>, op: &'static str, message: &str, expected: &str, got: &str) -> PyErr {
    let problem = Problem::new(py, Class::Argument, format!("{op}: {message}")).at(op, "weights");
    problem.mismatch(expected, got).into_err()
}

/// The weights of a layer and direction as they were listed.
pub(crate) fn listed<'py>(call: &Call<'py>, op: &'static str, one: &Object<'py>) -> PyResult<Weights<'py>> {
    let items = one.try_iter()?.collect::<PyResult<Vec<_>>>()?;
    if !(2..=5).contains(&items.len()) {
        let (expected, got) = ("w_ih, w_hh, up to two biases and w_hr", items.len().to_string());
        let message = format!("weights holds {got} tensors for a layer, expected {expected}");
        return Err(refused(one.py(), op, &message, expected, &got));
    }
    let mut arrays: Weights<'py> = [const { None }; 5];
    for ((array, name), item) in arrays.iter_mut().zip(WEIGHTS).zip(&items) {
        *array = Some(call.read((name, item))?);
    }
    let last = items.len() - 1;
    if (2..PROJECTION).contains(&last) && arrays[last].as_ref().is_some_and(|a| a.shape.len() == 2) {
        arrays.swap(last, PROJECTION);
    }
    Ok(arrays)
}

/// The weights, which must have these shapes, as kernels read them.
pub(crate) fn fitting<'py>(
    call: &Call<'py>,
    dtype: DType,
    weights: Weights<'py>,
    shapes: [&[usize]; 5],
) -> PyResult<Weights<'py>> {
    let mut checked: Weights<'py> = [const { None }; 5];
    for ((to, array), shape) in checked.iter_mut().zip(weights).zip(shapes) {
        let Some(array) = array else { continue };
        array.expect_dtype(dtype)?;
        array.expect_shape(shape)?;
        *to = Some(call.row_major(array)?);
    }
    Ok(checked)
}

/// Which biases there are.
pub(crate) const fn biases_of(biases: [&Option<Array<'_>>; 2]) -> Biases {
    match biases {
        [None, _] => Biases::Absent,
        [Some(_), None] => Biases::One,
        [Some(_), Some(_)] => Biases::Two,
    }
}

fn start<'py>(
    [x, weights]: [&Object<'py>; 2],
    [h0, c0]: [Maybe<'_, 'py>; 2],
    training: bool,
    o: &Options<'_, 'py>,
) -> PyResult<Started<'py>> {
    let (py, op, cell) = (x.py(), o.op, o.cell);
    let (call, x) = Call::new(op, ("x", x), o.stream)?;
    let x = call.row_major(x)?;
    let [first, second, input] = x.extents()?;
    let [steps, batch] = if o.batch_first { [second, first] } else { [first, second] };
    let directions = if o.bidirectional { 2 } else { 1 };
    let refuse = |message: String, expected: &str, got: String| refused(py, op, &message, expected, &got);
    let given = weights.try_iter()?.map(|one| listed(&call, op, &one?)).collect::<PyResult<Vec<_>>>()?;
    let Some([_, Some(w_hh), b_ih, b_hh, w_hr]) = given.first() else {
        return Err(refuse(
            "weights is empty".to_owned(),
            "one for each direction of each layer",
            "none".to_owned(),
        ));
    };
    let [_, output] = w_hh.extents()?;
    let [projection, hidden] = w_hr.as_ref().map_or(Ok([0, output]), |w_hr| w_hr.extents())?;
    let biases = biases_of([b_ih, b_hh]);
    let count = given.len();
    if !count.is_multiple_of(directions) {
        let expected = "one for each direction of each layer";
        return Err(refuse(
            format!("weights holds {count} layers, expected {expected}"),
            expected,
            count.to_string(),
        ));
    }
    let layers = count / directions;
    let rows = hidden.saturating_mul(cell.gates());
    let present = |arrays: &Weights<'py>| [0, 1, 2, 3, 4].map(|at: usize| arrays[at].is_some());
    let all = present(&given[0]);
    let number = all.iter().filter(|given| **given).count();
    let mut weights = Vec::with_capacity(count);
    for (index, arrays) in given.into_iter().enumerate() {
        let columns = if index < directions { input } else { directions.saturating_mul(output) };
        if present(&arrays) != all {
            let got = arrays.iter().flatten().count();
            let message =
                format!("weights holds {got} tensors for a layer, expected the {number} of the first");
            return Err(refuse(message, &number.to_string(), got.to_string()));
        }
        let shapes: [&[usize]; 5] =
            [&[rows, columns], &[rows, output], &[rows], &[rows], &[projection, hidden]];
        weights.push(fitting(&call, x.dtype, arrays, shapes)?);
    }
    let h0 = call.optional(("h0", h0), x.dtype, &[count, batch, output])?;
    let c0 = call.optional(("c0", c0), x.dtype, &[count, batch, hidden])?;
    let lengths = call.optional(("lengths", o.lengths), DType::I32, &[batch])?;
    if let Some(array) = &lengths
        && let Some(numbers) = known_i32(array, call.stream())?
    {
        check_lengths(op, &numbers, steps).map_err(|e| call.raise(e))?;
    }
    let random = call.optional(("random", o.random), DType::I64, &[2])?;
    let drops = o.dropout_p != 0.0;
    if drops != random.is_some() {
        let message =
            format!("{op}: random is {}", if drops { "missing beside dropout_p" } else { "of dropout_p" });
        return Err(Problem::new(py, Class::Argument, message).at(op, "random").into_err());
    }
    let desc = RecurrentDesc {
        dropout: drops.then(|| Real::new(o.dropout_p)),
        projection,
        layers,
        directions,
        batch_first: o.batch_first,
        biases,
        h0: h0.is_some(),
        c0: c0.is_some(),
        lengths: lengths.is_some(),
        training,
        precision: precision_of(py, op, o.precision)?,
        ..RecurrentDesc::new(cell, x.dtype, [steps, batch, input, hidden])
    };
    Ok(Started { call, x, lengths, h0, c0, random, weights, desc })
}

fn forward<'py>(
    required: [&Object<'py>; 2],
    state: [Maybe<'_, 'py>; 2],
    training: bool,
    out: Maybe<'_, 'py>,
    options: &Options<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<RecurrentDesc> = PlanCache::new();
    let started = start(required, state, training, options)?;
    let Started { call, x, desc, .. } = &started;
    let py = x.object.py();
    let plan = call.plan(&PLANS, desc)?;
    let kept = [true, true, options.cell.has_c(), training];
    let out = places::<4>(options.op, out, kept)?;
    let (dtype, [of_h, of_c], of_y) = (desc.dtype, started.states(), started.time_steps());
    let reserve = desc.reserve().map_err(|e| call.raise(e))?;
    let (reserve_dtype, reserve_len) = reserve;
    let forms: [Form<'_>; 4] = [
        Form::RowMajor(dtype, &of_y),
        Form::RowMajor(dtype, &of_h),
        Form::RowMajor(dtype, &of_c),
        Form::RowMajor(reserve_dtype, &[reserve_len]),
    ];
    let [y, h_n, c_n, of_reserve] = &out;
    let out = [("out[0]", y), ("out[1]", h_n), ("out[2]", c_n), ("reserve", of_reserve)];
    let mut outputs = call.optional_outputs(kept, out, x, forms)?;
    outputs.push(call.workspace(&plan, x)?);
    let mut inputs = started.inputs();
    inputs.extend(started.weights.iter().flatten().map(Option::as_ref));
    let stacked = desc.layers * desc.directions;
    let mut results = call.run_many::<Listed, Listed>(inputs, outputs, move |stream, inputs, outputs| {
        let (mut inputs, mut outputs) = (inputs.into_iter(), outputs.into_iter());
        let (mut input, mut output) = (|| inputs.next().flatten(), || outputs.next().flatten());
        let (x, lengths, h0, c0, random) = (present(input()), input(), input(), input(), input());
        let (y, h_n, c_n, reserve) = (present(output()), present(output()), output(), output());
        let weights = (0..stacked)
            .map(|_| WeightRefs {
                w_ih: present(input()),
                w_hh: present(input()),
                b_ih: input(),
                b_hh: input(),
                w_hr: input(),
            })
            .collect();
        let workspace = output();
        let args = RecurrentArgs { x, lengths, h0, c0, random, weights, y, h_n, c_n, reserve, workspace };
        Ok(plan.launch(stream, args)?)
    })?;
    // Scratch memory is nobody's result.
    results.pop();
    let results: [_; 4] = results.try_into().unwrap_or_else(|_| unreachable!("as many as were made"));
    gathered(py, results)
}

/// The tensors that the backward pass alone takes, by name.
type Further<'a, 'py> = [Maybe<'a, 'py>; 5];

fn backward<'py>(
    required: [&Object<'py>; 2],
    state: [Maybe<'_, 'py>; 2],
    [y, reserve, dy, dh_n, dc_n]: Further<'_, 'py>,
    input_gradient: bool,
    options: &Options<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<RecurrentBackwardDesc> = PlanCache::new();
    let started = start(required, state, true, options)?;
    let Started { call, x, desc, .. } = &started;
    let py = x.object.py();
    let (dtype, [of_h, of_c], of_y) = (desc.dtype, started.states(), started.time_steps());
    let (reserve_dtype, reserve_len) = desc.reserve().map_err(|e| call.raise(e))?;
    let y = call.optional(("y", y), dtype, &of_y)?;
    let reserve = call.optional(("reserve", reserve), reserve_dtype, &[reserve_len])?;
    let dy = call.optional(("dy", dy), dtype, &of_y)?;
    let dh_n = call.optional(("dh_n", dh_n), dtype, &of_h)?;
    let dc_n = call.optional(("dc_n", dc_n), dtype, &of_c)?;
    let (given, dx) = ((dy.is_some(), dh_n.is_some(), dc_n.is_some()), input_gradient);
    let plan = RecurrentBackwardDesc { forward: desc.clone(), dy: given.0, dh_n: given.1, dc_n: given.2, dx };
    let plan = call.plan(&PLANS, &plan)?;
    let wanted = |wanted, name, shape: &[usize]| {
        call.optional_output(wanted, (name, None), x, Form::RowMajor(dtype, shape))
    };
    let mut outputs = vec![
        wanted(dx, "dx", &x.shape)?,
        wanted(desc.h0, "dh0", &of_h)?,
        wanted(desc.c0, "dc0", &of_c)?,
        call.workspace(&plan, x)?,
    ];
    let mut inputs = started.inputs();
    inputs.extend([&y, &reserve, &dy, &dh_n, &dc_n].map(Option::as_ref));
    for weights in &started.weights {
        inputs.extend([0, 1, PROJECTION].map(|at| weights[at].as_ref()));
        for (array, name) in weights.iter().zip(WEIGHTS) {
            outputs.push(array.as_ref().map(|array| wanted(true, name, &array.shape)).transpose()?.flatten());
        }
    }
    let stacked = desc.layers * desc.directions;
    let mut results = call.run_many::<Listed, Listed>(inputs, outputs, move |stream, inputs, outputs| {
        let (mut inputs, mut outputs) = (inputs.into_iter(), outputs.into_iter());
        let (mut input, mut output) = (|| inputs.next().flatten(), || outputs.next().flatten());
        let (x, lengths, h0, c0, random) = (present(input()), input(), input(), input(), input());
        let (y, reserve, dy, dh_n, dc_n) = (present(input()), present(input()), input(), input(), input());
        let (dx, dh0, dc0, workspace) = (output(), output(), output(), output());
        let weights = (0..stacked).map(|_| WeightGradients {
            w_ih: present(input()),
            w_hh: present(input()),
            w_hr: input(),
            dw_ih: present(output()),
            dw_hh: present(output()),
            db_ih: output(),
            db_hh: output(),
            dw_hr: output(),
        });
        let weights = weights.collect();
        let args = RecurrentBackwardArgs {
            x,
            lengths,
            h0,
            c0,
            random,
            y,
            reserve,
            dy,
            dh_n,
            dc_n,
            weights,
            dx,
            dh0,
            dc0,
            workspace,
        };
        Ok(plan.launch(stream, args)?)
    })?;
    let weights = results.split_off(4);
    results.truncate(3);
    let none = || py.None().into_bound(py);
    let grouped = PyList::empty(py);
    for one in weights.chunks(WEIGHTS.len()) {
        grouped.append(PyTuple::new(py, one.iter().flatten().collect::<Vec<_>>())?)?;
    }
    let mut all: Vec<Object<'py>> = results.into_iter().map(|r| r.unwrap_or_else(none)).collect();
    all.push(grouped.into_any());
    Ok(PyTuple::new(py, all)?.into_any())
}

/// The cell of a primitive, and of the nonlinearity that a plain one names.
pub(crate) fn cell_of(py: Python<'_>, op: &'static str, nonlinearity: Option<&str>) -> PyResult<Cell> {
    match (op, nonlinearity) {
        _ if op.starts_with("lstm") => Ok(Cell::Lstm),
        _ if op.starts_with("gru") => Ok(Cell::Gru),
        (_, Some("tanh")) => Ok(Cell::RnnTanh),
        (_, Some("relu")) => Ok(Cell::RnnRelu),
        (_, other) => {
            let (other, expected) = (other.unwrap_or_default(), "'tanh' or 'relu'");
            let message = format!("{op}: nonlinearity is '{other}', expected {expected}");
            let problem = Problem::new(py, Class::Parameter, message).at(op, "nonlinearity");
            Err(problem.mismatch(expected, other).into_err())
        }
    }
}

/// A function over sequences. Its arguments: tensors; states that may be None; the choice of a nonlinearity, if there is one; keywords
/// of its own, before and after those of both directions, which its body finds as [`Options`] under the name behind `with`.
macro_rules! sequences {
    (
        $(#[$doc:meta])*
        fn $name:ident(
            $x:ident $(, $tensor:ident)*; $($state:ident),*; $($nonlinearity:ident)?;
            $($before:ident: $before_type:ty = $before_default:tt)?; $($after:ident: $after_type:ty = $after_default:tt),*
        ) with $options:ident $body:block
    ) => {
        $(#[$doc])*
        #[pyfunction]
        #[pyo3(signature = ($x, $($tensor,)* $($state=None,)* *, $($nonlinearity="tanh",)? $($before=$before_default,)? bidirectional=false, batch_first=false, lengths=None, dropout_p=0.0, random=None, precision="full", $($after=$after_default,)* stream=None))]
        #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
        pub(crate) fn $name<'py>(
            $x: &Object<'py>,
            $($tensor: &Object<'py>,)*
            $($state: Maybe<'_, 'py>,)*
            $($nonlinearity: &str,)?
            $($before: $before_type,)?
            bidirectional: bool,
            batch_first: bool,
            lengths: Maybe<'_, 'py>,
            dropout_p: f64,
            random: Maybe<'_, 'py>,
            precision: &str,
            $($after: $after_type,)*
            stream: Maybe<'_, 'py>,
        ) -> PyResult<Object<'py>> {
            let op = stringify!($name);
            let cell = cell_of($x.py(), op, [$(Some($nonlinearity),)? None][0])?;
            let $options =
                Options { op, cell, bidirectional, batch_first, lengths, dropout_p, random, precision, stream };
            $body
        }
    };
}

/// The functions of a net: `c0` if it has cells, `nonlinearity` if it has a choice.
macro_rules! nets {
    ($(
        $(#[$doc:meta])* $name:ident,
        $(#[$doc_backward:meta])* $backward:ident: $($c0:ident $dc_n:ident)?, $($nonlinearity:ident)?;
    )*) => {$(
        sequences! {
            $(#[$doc])*
            fn $name(
                x, weights; h0 $(, $c0)?; $($nonlinearity)?;
                ; training: bool = false, out: Maybe<'_, 'py> = None
            ) with options {
                forward([x, weights], [h0, [$($c0,)? None][0]], training, out, &options)
            }
        }

        sequences! {
            $(#[$doc_backward])*
            fn $backward(
                x, weights, y, reserve; dy, dh_n $(, $dc_n)?, h0 $(, $c0)?; $($nonlinearity)?;
                input_gradient: bool = true;
            ) with options {
                let further = [Some(y), Some(reserve), dy, dh_n, [$($dc_n,)? None][0]];
                backward([x, weights], [h0, [$($c0,)? None][0]], further, input_gradient, &options)
            }
        }
    )*};
}

nets! {
    /// Long short-term memory over sequences: `i, f, o = sigmoid(w_ih x + b_ih + w_hh h + b_hh)`, `g = tanh(the same)`,
    /// `c' = f c + i g`, `h' = o tanh(c')`, or w_hr times that.
    ///
    /// x: [steps, batch, input], or [batch, steps, input] with batch_first; float32, float64, float16 or bfloat16. weights: for
    /// each layer, and each direction of it, a sequence of w_ih [4 hidden, input], w_hh [4 hidden, output], up to two biases
    /// [4 hidden], and w_hr [output, hidden] where hidden states are projected (or else output is hidden), the gates in the order
    /// i, f, g, o; later layers have directions * output inputs. h0: [layers * directions, batch, output], c0: [layers *
    /// directions, batch, hidden], zero if None. lengths: int32, [batch], the steps of each sequence that count; y is zero
    /// after them. On the host they are checked, on a GPU cut to the steps that there are; see `validate_indices`. The
    /// result is (y, h_n, c_n): y [steps, batch, directions * output], or batch first, the states after the last steps like h0 and c0. dropout_p: the probability that an element is dropped between two layers; what is kept is multiplied
    /// by 1 / (1 - dropout_p); random: int64, [2], the seed and offset of what is dropped. precision: "full", or "tf32", for float32
    /// from sm_80 on: factors of products may be rounded to 11 bits. With training there is also what
    /// `lstm_backward` needs. `out` is a tuple of the three.
    lstm,
    /// The gradients (dx, dh0, dc0, dweights) of `lstm` with training.
    ///
    /// y, reserve: what it gave; dy, dh_n, dc_n: the gradients of its results, zero if None; the rest as it was called. dh0 and dc0
    /// are None without h0 and c0, dx is without input_gradient; dweights is a list like weights.
    lstm_backward: c0 dc_n,;

    /// The gated recurrent unit over sequences: `r, z = sigmoid(w_ih x + b_ih + w_hh h + b_hh)`,
    /// `n = tanh(w_in x + b_in + r (w_hn h + b_hn))`, `h' = (1 - z) n + z h`.
    ///
    /// As `lstm`, with three gates in the order r, z, n and without c0. The result is (y, h_n), with training also what
    /// `gru_backward` needs.
    gru,
    /// The gradients (dx, dh0, None, dweights) of `gru` with training, as `lstm_backward`.
    gru_backward: ,;

    /// The plain recurrent net over sequences: `h' = f(w_ih x + b_ih + w_hh h + b_hh)`, f being tanh or relu.
    ///
    /// As `lstm`, with one gate and without c0. nonlinearity: "tanh" or "relu". The result is (y, h_n), with training also what
    /// `rnn_backward` needs.
    rnn,
    /// The gradients (dx, dh0, None, dweights) of `rnn` with training, as `lstm_backward`.
    rnn_backward: , nonlinearity;
}
