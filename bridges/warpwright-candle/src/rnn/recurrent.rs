//! Recurrent nets over whole sequences.

use candle_core::{Result, Tensor};
use warpwright::TensorMut;
use warpwright::TensorRef;
use warpwright::plan::PlanCache;
pub use warpwright::recurrent::Cell;
use warpwright::recurrent::{
    Biases, RecurrentArgs, RecurrentBackwardArgs, RecurrentBackwardDesc, RecurrentDesc, WeightGradients,
    WeightRefs,
};

use crate::array::{Array, Made, Spec};
use crate::call::{Call, present};
use crate::error::Error;
use crate::graph::{Named, any_tracked, record_all};

/// The weights of a layer and direction, with the gates in the order of PyTorch and candle: i, f, g, o or r, z, n.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    /// `[gates hidden, input]`
    pub w_ih: &'a Tensor,
    /// `[gates hidden, output]`, where a hidden state has `projection` elements, or else `hidden`.
    pub w_hh: &'a Tensor,
    /// The projection of the hidden states of an LSTM, `[projection, hidden]`.
    pub w_hr: Option<&'a Tensor>,
    /// `[gates hidden]`
    pub b_ih: Option<&'a Tensor>,
    /// `[gates hidden]`; not without `b_ih`.
    pub b_hh: Option<&'a Tensor>,
}

impl<'a> Weights<'a> {
    /// Weights without projection and biases.
    pub const fn new(w_ih: &'a Tensor, w_hh: &'a Tensor) -> Self {
        Self { w_ih, w_hh, w_hr: None, b_ih: None, b_hh: None }
    }

    fn all(&self) -> [Option<Named<'a>>; 5] {
        let Self { w_ih, w_hh, w_hr, b_ih, b_hh } = *self;
        let named = |name: &'static str, x: Option<&'a Tensor>| x.map(|x| (name, x));
        [
            Some(("w_ih", w_ih)),
            Some(("w_hh", w_hh)),
            named("w_hr", w_hr),
            named("b_ih", b_ih),
            named("b_hh", b_hh),
        ]
    }
}

/// How sequences are read; the default is one direction from a state of zeros.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecurrentOptions<'a> {
    /// The first hidden state, `[layers directions, batch, output]`; zeros if there is none.
    pub h0: Option<&'a Tensor>,
    /// The first cells of an LSTM, `[layers directions, batch, hidden]`; zeros if there are none.
    pub c0: Option<&'a Tensor>,
    /// Time steps of each sequence, `[batch]`, of u32, i32 or i64; more than there are count as all of them.
    pub lengths: Option<&'a Tensor>,
    /// A second direction reads sequences from their ends: there are two weights a layer.
    pub bidirectional: bool,
}

/// The results of a recurrent net.
#[derive(Clone, Debug)]
pub struct RecurrentOutput {
    /// The hidden states of the last layer at all time steps, `[batch, steps, directions output]`.
    pub y: Tensor,
    /// The hidden states of the last steps, `[layers directions, batch, output]`.
    pub h_n: Tensor,
    /// The cells of the last steps of an LSTM, `[layers directions, batch, hidden]`.
    pub c_n: Option<Tensor>,
}

/// A recurrent net over sequences, of the cell that is named: `xs` is `[batch, steps, input]`, of f32, f64, f16 or bf16, and there are as many
/// weights as layers times directions, the directions of a layer next to each other.
///
/// Where the recurrent weights fit the registers of the GPU, all time steps are one launch, forward and backward.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use warpwright_candle::rnn::{Cell, RecurrentOptions, Weights, recurrent};
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::new(&[[[1f32], [2.0], [3.0]]], &Device::Cpu)?;
/// let w_ih = Tensor::ones((2, 1), DType::F32, &Device::Cpu)?;
/// let w_hh = Tensor::zeros((2, 2), DType::F32, &Device::Cpu)?;
/// let net = [Weights::new(&w_ih, &w_hh)];
/// let out = recurrent(Cell::RnnRelu, &x, &net, RecurrentOptions::default())?;
/// assert_eq!(out.y.to_vec3::<f32>()?, [[[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If shapes, element types or devices do not fit, a size is 0, or the element type is none of those.
pub fn recurrent(
    cell: Cell,
    xs: &Tensor,
    weights: &[Weights<'_>],
    options: RecurrentOptions<'_>,
) -> Result<RecurrentOutput> {
    let results = run(cell, xs, weights, options, false)?;
    let mut results = results.into_iter();
    match (results.next(), results.next()) {
        (Some(y), Some(h_n)) => Ok(RecurrentOutput { y, h_n, c_n: results.next() }),
        _ => Err(Error::Order { op: cell.op() }.into()),
    }
}

/// The results of one layer and direction of an LSTM, and the cells of all steps, `[batch, steps, hidden]`, whose gradient does not exist.
pub(super) fn lstm_with_cells(
    xs: &Tensor,
    weights: &[Weights<'_>; 1],
    options: RecurrentOptions<'_>,
) -> Result<[Tensor; 4]> {
    let results = run(Cell::Lstm, xs, weights, options, true)?;
    results.try_into().map_err(|_| Error::Order { op: Cell::Lstm.op() }.into())
}

/// Arrays of the weights of a layer and direction.
type WeightArrays = [Option<Array>; 5];

fn run(
    cell: Cell,
    xs: &Tensor,
    weights: &[Weights<'_>],
    options: RecurrentOptions<'_>,
    cells: bool,
) -> Result<Vec<Tensor>> {
    static PLANS: PlanCache<RecurrentDesc> = PlanCache::new();
    let op = cell.op();
    let call = Call::new(op, ("xs", xs))?;
    let x = call.row_major(("xs", xs))?;
    let &[batch, steps, input] = xs.dims() else {
        return Err(call.refuse_shape(("xs", xs), "[batch, steps, input]"));
    };
    let tracked: Vec<_> = [Some(("xs", xs)), options.h0.map(|h| ("h0", h)), options.c0.map(|c| ("c0", c))]
        .into_iter()
        .chain(weights.iter().flat_map(Weights::all))
        .collect();
    let named: Vec<_> = tracked.iter().flatten().copied().collect();
    let training = cells || any_tracked(&named);
    let desc = describe(&call, cell, &x, [steps, batch, input], weights, &options, training)?;
    let arrays = read_weights(&call, &desc, weights)?;
    let RecurrentDesc { dtype, hidden, .. } = desc;
    let state = |width: usize| [desc.passes(), batch, width];
    let h0 = call.optional("h0", options.h0, dtype, &state(desc.output()))?;
    let c0 = call.optional("c0", options.c0, dtype, &state(hidden))?;
    let lengths = options.lengths.map(|lengths| call.lengths(("lengths", lengths), &[batch])).transpose()?;
    let plan = call.plan(&PLANS, &desc)?;
    let outputs = vec![
        Some(Spec::new(dtype, &[batch, steps, desc.result()])),
        Some(Spec::new(dtype, &state(desc.output()))),
        cell.has_c().then(|| Spec::new(dtype, &state(hidden))),
        call.place(&plan, "reserve"),
        call.workspace(&plan),
    ];
    let inputs: Vec<_> = [Some(&x), lengths.as_ref(), h0.as_ref(), c0.as_ref()]
        .into_iter()
        .chain(arrays.iter().flatten().map(Option::as_ref))
        .collect();
    let made = call.run_all(&inputs, outputs, |stream, inputs, mut outputs| {
        let (first, of_weights) = inputs.split_at(4);
        let mut next = outputs.drain(..);
        let args = RecurrentArgs {
            x: present(first[0]),
            lengths: first[1],
            h0: first[2],
            c0: first[3],
            random: None,
            weights: of_weights.chunks(5).map(weight_refs).collect(),
            y: present(next.next().flatten()),
            h_n: present(next.next().flatten()),
            c_n: next.next().flatten(),
            reserve: next.next().flatten(),
            workspace: next.next().flatten(),
        };
        Ok(plan.launch(stream, args)?)
    })?;
    let mut made = made.into_iter();
    let mut next = || made.next().flatten();
    let (y, h_n, c_n) = (present(next()), present(next()), next());
    let reserve = next().map(Made::into_array).transpose()?;
    let of_steps = match &reserve {
        Some(reserve) if cells => Some(cells_of_steps(reserve, &desc)?),
        _ => None,
    };
    let results: Vec<Made> = [Some(y), Some(h_n), c_n, of_steps].into_iter().flatten().collect();
    let saved = Saved { cell, x, h0, c0, lengths, weights: arrays, reserve };
    record_all(op, &named, results, move |results, gradients| saved.gradients(&desc, results, gradients))
}

fn describe(
    call: &Call,
    cell: Cell,
    x: &Array,
    [steps, batch, input]: [usize; 3],
    weights: &[Weights<'_>],
    options: &RecurrentOptions<'_>,
    training: bool,
) -> Result<RecurrentDesc> {
    let directions = if options.bidirectional { 2 } else { 1 };
    let first = match weights {
        [first, ..] if weights.len().is_multiple_of(directions) => first,
        _ => {
            let (op, argument, got) = (cell.op(), "weights", vec![weights.len()]);
            let expected = "of one for each direction of each layer".to_owned();
            return Err(Error::Shape { op, argument, expected, got }.into());
        }
    };
    let &[_, output] = first.w_hh.dims() else {
        return Err(call.refuse_shape(("w_hh", first.w_hh), "[gates hidden, output]"));
    };
    let (hidden, projection) = match first.w_hr {
        None => (output, 0),
        Some(w_hr) => match *w_hr.dims() {
            [projection, hidden] if projection > 0 => (hidden, projection),
            _ => return Err(call.refuse_shape(("w_hr", w_hr), "[projection, hidden]")),
        },
    };
    let biases = match (first.b_ih, first.b_hh) {
        (None, None) => Biases::Absent,
        (Some(_), None) => Biases::One,
        (Some(_), Some(_)) => Biases::Two,
        (None, Some(b_hh)) => return Err(call.refuse_shape(("b_hh", b_hh), "given with b_ih alone")),
    };
    call.expect_shape(("w_hh", first.w_hh), &[cell.gates().saturating_mul(hidden), output])?;
    let desc = RecurrentDesc::new(cell, x.dtype, [steps, batch, input, hidden]);
    Ok(RecurrentDesc {
        projection,
        layers: weights.len() / directions,
        directions,
        batch_first: true,
        biases,
        h0: options.h0.is_some(),
        c0: options.c0.is_some(),
        lengths: options.lengths.is_some(),
        training,
        ..desc
    })
}

/// All weights, held to the shapes that a net of these sizes has.
fn read_weights(call: &Call, desc: &RecurrentDesc, weights: &[Weights<'_>]) -> Result<Vec<WeightArrays>> {
    let rows = desc.cell.gates().saturating_mul(desc.hidden);
    let (biases, projected) = (desc.biases, desc.projection > 0);
    let of_layer = |(index, weights): (usize, &Weights<'_>)| {
        let input =
            if index < desc.directions { desc.input } else { desc.directions.saturating_mul(desc.output()) };
        let shapes: [Vec<usize>; 5] = [
            vec![rows, input],
            vec![rows, desc.output()],
            vec![desc.projection, desc.hidden],
            vec![rows],
            vec![rows],
        ];
        let there = [true, true, projected, biases != Biases::Absent, biases == Biases::Two];
        let names = ["w_ih", "w_hh", "w_hr", "b_ih", "b_hh"];
        let mut arrays = [const { None }; 5];
        for (i, named) in weights.all().into_iter().enumerate() {
            arrays[i] = match named {
                Some(named) if there[i] => Some(call.expect(named, desc.dtype, &shapes[i])?),
                None if !there[i] => None,
                _ => {
                    let expected = "in every layer and direction, or in none".to_owned();
                    let got = named.map(|(_, x)| x.dims().to_vec()).unwrap_or_default();
                    return Err(Error::Shape { op: desc.cell.op(), argument: names[i], expected, got }.into());
                }
            };
        }
        Ok(arrays)
    };
    weights.iter().enumerate().map(of_layer).collect()
}

fn weight_refs<'a>(arrays: &[Option<TensorRef<'a>>]) -> WeightRefs<'a> {
    WeightRefs {
        w_ih: present(arrays[0]),
        w_hh: present(arrays[1]),
        w_hr: arrays[2],
        b_ih: arrays[3],
        b_hh: arrays[4],
    }
}

/// The cells of all steps out of the reserve, which has the gates of all rows before them, up to a multiple of 16 bytes.
fn cells_of_steps(reserve: &Array, desc: &RecurrentDesc) -> Result<Made> {
    let len = desc.batch * desc.steps * desc.hidden;
    let elements = 16 / reserve.dtype.bytes();
    let start = (desc.cell.gates() * len).next_multiple_of(elements);
    let cells = reserve.part(start, len)?.reshape((desc.batch, desc.steps, desc.hidden))?;
    Made::of(cells, desc.dtype)
}

/// Inputs of the backward pass.
struct Saved {
    cell: Cell,
    x: Array,
    h0: Option<Array>,
    c0: Option<Array>,
    lengths: Option<Array>,
    weights: Vec<WeightArrays>,
    reserve: Option<Array>,
}

impl Saved {
    fn gradients(
        &self,
        forward: &RecurrentDesc,
        results: &[Tensor],
        gradients: &[Option<Tensor>],
    ) -> Result<Vec<Option<Tensor>>> {
        static PLANS: PlanCache<RecurrentBackwardDesc> = PlanCache::new();
        let Self { cell, x, h0, c0, lengths, weights, reserve } = self;
        let op = cell.op();
        let gradient = |index: usize| gradients.get(index).cloned().flatten();
        if gradient(3).is_some() {
            return Err(Error::NoGradient { op, argument: "the cells of a step before the last" }.into());
        }
        let call = Call::new(op, ("y", &results[0]))?;
        let y = call.row_major(("y", &results[0]))?;
        let read =
            |name, gradient: Option<Tensor>| gradient.map(|dy| call.row_major((name, &dy))).transpose();
        let (dy, dh_n, dc_n) =
            (read("dy", gradient(0))?, read("dh_n", gradient(1))?, read("dc_n", gradient(2))?);
        let given = [&dy, &dh_n, &dc_n].map(Option::is_some);
        let desc = RecurrentBackwardDesc {
            forward: forward.clone(),
            dy: given[0],
            dh_n: given[1],
            dc_n: given[2],
            dx: true,
        };
        let plan = call.plan(&PLANS, &desc)?;
        let fixed = [Some(x), lengths.as_ref(), h0.as_ref(), c0.as_ref(), Some(&y), reserve.as_ref()];
        let of_results = [dy.as_ref(), dh_n.as_ref(), dc_n.as_ref()];
        let first = fixed.len() + of_results.len();
        let inputs: Vec<_> =
            fixed.into_iter().chain(of_results).chain(weights.iter().flatten().map(Option::as_ref)).collect();
        let like = |array: &Option<Array>| array.as_ref().map(Spec::like);
        let outputs: Vec<_> = [call.workspace(&plan), Some(Spec::like(x)), like(h0), like(c0)]
            .into_iter()
            .chain(weights.iter().flatten().map(like))
            .collect();
        let made = call.run_all(&inputs, outputs, |stream, inputs, mut outputs| {
            let (fixed, of_weights) = inputs.split_at(first);
            let mut of_gradients = outputs.split_off(4).into_iter();
            let mut next = outputs.into_iter();
            let mut next = || next.next().flatten();
            let args = RecurrentBackwardArgs {
                x: present(fixed[0]),
                lengths: fixed[1],
                h0: fixed[2],
                c0: fixed[3],
                random: None,
                y: present(fixed[4]),
                reserve: present(fixed[5]),
                dy: fixed[6],
                dh_n: fixed[7],
                dc_n: fixed[8],
                workspace: next(),
                dx: next(),
                dh0: next(),
                dc0: next(),
                weights: of_weights.chunks(5).map(|of| weight_gradients(of, &mut of_gradients)).collect(),
            };
            Ok(plan.launch(stream, args)?)
        })?;
        // One for each input, without the workspace, in the order of the inputs that there are.
        made.into_iter().skip(1).flatten().map(|made| made.into_tensor().map(Some)).collect()
    }
}

fn weight_gradients<'a>(
    of: &[Option<TensorRef<'a>>],
    gradients: &mut impl Iterator<Item = Option<TensorMut<'a>>>,
) -> WeightGradients<'a> {
    let WeightRefs { w_ih, w_hh, w_hr, .. } = weight_refs(of);
    let mut next = || gradients.next().flatten();
    WeightGradients {
        w_ih,
        w_hh,
        w_hr,
        dw_ih: present(next()),
        dw_hh: present(next()),
        dw_hr: next(),
        db_ih: next(),
        db_hh: next(),
    }
}
