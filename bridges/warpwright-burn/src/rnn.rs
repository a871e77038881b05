//! Recurrent nets over whole sequences.

use burn::tensor::{Int, Tensor};
use warpwright::Tensor as Array;
pub use warpwright::recurrent::Cell;
use warpwright::recurrent::{
    OutputGradients, RecurrentInput, RecurrentOptions as Options, RecurrentOutput as Output, State,
    Weights as Arrays, recurrent as forward, recurrent_backward,
};

use crate::call::Call;
use crate::error::Error;
use crate::graph::{Inputs, Written};

/// The weights of a net of one layer and direction, with the gates in the order of PyTorch: i, f, g, o or r, z, n.
#[derive(Clone, Debug)]
pub struct Weights {
    /// `[gates hidden, input]`
    pub w_ih: Tensor<2>,
    /// `[gates hidden, hidden]`
    pub w_hh: Tensor<2>,
    /// `[gates hidden]`
    pub b_ih: Option<Tensor<1>>,
    /// `[gates hidden]`; not without `b_ih`.
    pub b_hh: Option<Tensor<1>>,
}

/// How sequences are read; the default is from a state of zeros.
#[derive(Clone, Debug, Default)]
pub struct RecurrentOptions {
    /// The first hidden state, `[batch, hidden]`.
    pub h0: Option<Tensor<2>>,
    /// The first cells of an LSTM, `[batch, hidden]`.
    pub c0: Option<Tensor<2>>,
    /// Time steps of each sequence, `[batch]`; more than there are count as all of them.
    pub lengths: Option<Tensor<1, Int>>,
}

/// The results of a recurrent net.
#[derive(Clone, Debug)]
pub struct RecurrentOutput {
    /// The hidden states at all time steps, `[batch, steps, hidden]`.
    pub y: Tensor<3>,
    /// The hidden states of the last steps, `[batch, hidden]`.
    pub h_n: Tensor<2>,
    /// The cells of the last steps of an LSTM, `[batch, hidden]`.
    pub c_n: Option<Tensor<2>>,
}

fn weights(inputs: &Inputs) -> [Arrays<'_>; 1] {
    let (w_ih, w_hh) = (inputs.of("w_ih"), inputs.of("w_hh"));
    [Arrays { w_ih, w_hh, w_hr: None, b_ih: inputs.get("b_ih"), b_hh: inputs.get("b_hh") }]
}

fn with_input<R>(inputs: &Inputs, f: impl FnOnce(&RecurrentInput<'_>) -> R) -> R {
    let lengths = inputs.get("lengths").map(Into::into);
    let options = Options { batch_first: true, lengths, inference: !inputs.training(), ..Options::default() };
    let state = State { h0: inputs.get("h0"), c0: inputs.get("c0") };
    f(&RecurrentInput { x: inputs.of("x"), weights: &weights(inputs), state, options })
}

/// A recurrent net over sequences, of the cell that is named: `x` is `[batch, steps, input]`, of f32, f64, f16 or bf16, and the weights and
/// states have its type. Gradients reach all of them.
///
/// Where the recurrent weights fit the registers of the GPU, all time steps are one launch, forward and backward.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use warpwright_burn::rnn::{Cell, RecurrentOptions, Weights, recurrent};
///
/// # fn main() -> Result<(), warpwright_burn::Error> {
/// let device = Device::flex();
/// let x = Tensor::<3>::from_data([[[1f32], [2.0], [3.0]]], &device);
/// let (w_ih, w_hh) = (Tensor::ones([2, 1], &device), Tensor::zeros([2, 2], &device));
/// let weights = Weights { w_ih, w_hh, b_ih: None, b_hh: None };
/// let out = recurrent(Cell::RnnRelu, x, weights, RecurrentOptions::default())?;
/// assert_eq!(out.y.into_data().as_slice::<f32>().unwrap(), [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If shapes or element types do not fit, a size is 0, the element type is none of those, or the device is not Flex.
pub fn recurrent(
    cell: Cell,
    x: Tensor<3>,
    weights: Weights,
    options: RecurrentOptions,
) -> Result<RecurrentOutput, Error> {
    let op = cell.op();
    let RecurrentOptions { h0, c0, lengths } = options;
    let Weights { w_ih, w_hh, b_ih, b_hh } = weights;
    let ([batch, steps, _], [_, hidden]) = (x.dims(), w_hh.dims());
    if batch == 0 || steps == 0 {
        return Err(Error::shape(op, "x", "[batch, steps, input] with elements", &x.dims()));
    }
    for (name, state) in [("h0", &h0), ("c0", &c0)] {
        if let Some(state) = state
            && state.dims() != [batch, hidden]
        {
            return Err(Error::shape(op, name, format!("[{batch}, {hidden}]"), &state.dims()));
        }
    }
    if b_ih.is_none()
        && let Some(b_hh) = &b_hh
    {
        return Err(Error::shape(op, "b_hh", "given with b_ih alone", &b_hh.dims()));
    }
    let of_layers = |state: Option<Tensor<2>>| state.map(|state| state.unsqueeze_dim::<3>(0));
    let call = Call::new(op).float("x", x)?.float("w_ih", w_ih)?.float("w_hh", w_hh)?;
    let call = call.optional("b_ih", b_ih)?.optional("b_hh", b_hh)?;
    let call = call.optional("h0", of_layers(h0))?.optional("c0", of_layers(c0))?;
    let call = call.lengths("lengths", lengths)?;
    let mut results = call.run(move |stream, inputs| {
        let output = with_input(inputs, |input| forward(stream, cell, input))?;
        let all = side_by_side(&output)?;
        Ok(Written::of(op, &[&all])?.with(move |stream, inputs, dall| {
            let [dy, dh_n, dc_n] = apart(dall, &output)?;
            let gradients = OutputGradients { dy: dy.as_ref(), dh_n: dh_n.as_ref(), dc_n: dc_n.as_ref() };
            let back =
                with_input(inputs, |input| recurrent_backward(stream, cell, input, &output, gradients))?;
            let mut all = vec![("x", back.dx)];
            all.extend(back.dh0.map(|gradient| ("h0", gradient)));
            all.extend(back.dc0.map(|gradient| ("c0", gradient)));
            for of_layer in back.weights {
                all.extend([("w_ih", of_layer.w_ih), ("w_hh", of_layer.w_hh)]);
                all.extend(of_layer.b_ih.map(|gradient| ("b_ih", gradient)));
                all.extend(of_layer.b_hh.map(|gradient| ("b_hh", gradient)));
            }
            Ok(all)
        }))
    })?;
    let all: Tensor<1> = results.next();
    let (of_y, of_state) = (batch * steps * hidden, batch * hidden);
    let state = |start: usize| all.clone().narrow(0, start, of_state).reshape([batch, hidden]);
    Ok(RecurrentOutput {
        y: all.clone().narrow(0, 0, of_y).reshape([batch, steps, hidden]),
        h_n: state(of_y),
        c_n: cell.has_c().then(|| state(of_y + of_state)),
    })
}

/// The results in one tensor of one dimension, because a node of burn's graph has one result.
fn side_by_side(output: &Output) -> Result<Array, Error> {
    let mut bytes = output.y.to_bytes()?;
    bytes.extend(output.h_n.to_bytes()?);
    if let Some(c_n) = &output.c_n {
        bytes.extend(c_n.to_bytes()?);
    }
    let dtype = output.y.dtype();
    Ok(Array::from_bytes(output.y.device(), dtype, &bytes, &[bytes.len() / dtype.bytes()])?)
}

/// The gradients of the results out of that of all of them.
fn apart(all: &Array, output: &Output) -> Result<[Option<Array>; 3], warpwright::Error> {
    let bytes = all.to_bytes()?;
    let mut rest = &bytes[..];
    let mut next = |like: &Array| {
        let (own, others) = rest.split_at(like.len() * like.dtype().bytes());
        rest = others;
        Array::from_bytes(all.device(), like.dtype(), own, like.shape())
    };
    let (dy, dh_n) = (next(&output.y)?, next(&output.h_n)?);
    Ok([Some(dy), Some(dh_n), output.c_n.as_ref().map(next).transpose()?])
}
