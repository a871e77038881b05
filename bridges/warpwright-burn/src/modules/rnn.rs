//! Layers of recurrent nets.

use burn::module::{Module, Param};
use burn::nn::activation::Activation;
use burn::nn::gru::Gru as HostGru;
use burn::nn::{GateController, Linear, Lstm as HostLstm, LstmState};
use burn::tensor::Tensor;

use crate::error::Error;
use crate::rnn::{Cell, RecurrentOptions, Weights, recurrent};

/// One of the two products of a gate.
type Part = fn(&GateController) -> &Linear;

/// Parts of gates, one beside the other. burn ends the program where they do not fit.
fn side_by_side<const D: usize>(
    op: &'static str,
    argument: &'static str,
    parts: Vec<Tensor<D>>,
) -> Result<Tensor<D>, Error> {
    let first = parts[0].dims();
    match parts.iter().map(Tensor::dims).find(|dims| *dims != first) {
        Some(other) => Err(Error::shape(op, argument, format!("{first:?} in every gate"), &other)),
        None => Ok(Tensor::cat(parts, 0)),
    }
}

/// The weights of burn's gates as kernels have them, in burn's graph.
fn weights(op: &'static str, gates: &[&GateController]) -> Result<Weights, Error> {
    let (of_input, of_hidden): (Part, Part) = (|gate| &gate.input_transform, |gate| &gate.hidden_transform);
    let matrix = |argument, part: Part| {
        let all = gates.iter().map(|gate| part(gate).weight.val().transpose());
        side_by_side(op, argument, all.collect())
    };
    let bias = |argument, part: Part| {
        let there: Vec<_> =
            gates.iter().filter_map(|gate| part(gate).bias.as_ref().map(Param::val)).collect();
        match there.len() {
            0 => Ok(None),
            n if n == gates.len() => side_by_side(op, argument, there).map(Some),
            n => Err(Error::shape(op, argument, "in every gate, or in none", &[n])),
        }
    };
    Ok(Weights {
        w_ih: matrix("the weight of the input", of_input)?,
        w_hh: matrix("the weight of the hidden state", of_hidden)?,
        b_ih: bias("the bias of the input", of_input)?,
        b_hh: bias("the bias of the hidden state", of_hidden)?,
    })
}

/// That a field of burn's layer has the value that kernels compute with.
fn expect(
    op: &'static str,
    parameter: &'static str,
    holds: bool,
    expected: &'static str,
) -> Result<(), Error> {
    let got = "another value".to_owned();
    if holds { Ok(()) } else { Err(Error::Parameter { op, parameter, expected, got }) }
}

/// [`recurrent`] with the parameters of [`burn::nn::Lstm`], which it is made from:
/// `Lstm::try_from(burn::nn::LstmConfig::new(4, 8, true).init(&device))?`.
#[derive(Module, Debug)]
pub struct Lstm {
    /// The input gate.
    pub input_gate: GateController,
    /// The forget gate.
    pub forget_gate: GateController,
    /// The output gate.
    pub output_gate: GateController,
    /// The gate of the cell.
    pub cell_gate: GateController,
    /// The elements of a state.
    pub d_hidden: usize,
    /// Whether input and output are `[batch, steps, ..]`, else `[steps, batch, ..]`.
    pub batch_first: bool,
    /// Whether sequences are read from their ends.
    pub reverse: bool,
}

impl TryFrom<HostLstm> for Lstm {
    type Error = Error;

    /// # Errors
    /// If the cells are clipped, the gates of input and forgetting are coupled, or the functions are not sigmoid and tanh.
    fn try_from(layer: HostLstm) -> Result<Self, Error> {
        let op = Cell::Lstm.op();
        expect(op, "clip", layer.clip.is_none(), "none")?;
        let sigmoid = matches!(layer.gate_activation, Activation::Sigmoid(_));
        expect(op, "gate_activation", sigmoid, "sigmoid")?;
        expect(op, "cell_activation", matches!(layer.cell_activation, Activation::Tanh(_)), "tanh")?;
        expect(op, "hidden_activation", matches!(layer.hidden_activation, Activation::Tanh(_)), "tanh")?;
        let HostLstm { input_gate, forget_gate, output_gate, cell_gate, .. } = layer;
        let HostLstm { d_hidden, batch_first, reverse, .. } = layer;
        let Some(forget_gate) = forget_gate else {
            let (parameter, expected, got) = ("input_forget", "false", "true".to_owned());
            return Err(Error::Parameter { op, parameter, expected, got });
        };
        Ok(Self { input_gate, forget_gate, output_gate, cell_gate, d_hidden, batch_first, reverse })
    }
}

impl Lstm {
    /// The hidden states of all steps and the state after the last one, as [`burn::nn::Lstm::forward`]: `input` is `[batch, steps, d_input]`, or
    /// with the steps first.
    ///
    /// # Errors
    /// As [`recurrent`].
    pub fn forward(
        &self,
        input: Tensor<3>,
        state: Option<LstmState<2>>,
    ) -> Result<(Tensor<3>, LstmState<2>), Error> {
        let gates = [&self.input_gate, &self.forget_gate, &self.cell_gate, &self.output_gate];
        let weights = weights(Cell::Lstm.op(), &gates)?;
        let (c0, h0) = state.map(LstmState::unpack).unzip();
        let x = if self.batch_first { input } else { input.swap_dims(0, 1) };
        let x = if self.reverse { x.flip([1]) } else { x };
        let out = recurrent(Cell::Lstm, x, weights, RecurrentOptions { h0, c0, lengths: None })?;
        let y = if self.reverse { out.y.flip([1]) } else { out.y };
        let y = if self.batch_first { y } else { y.swap_dims(0, 1) };
        let Some(c_n) = out.c_n else { unreachable!("an LSTM has cells") };
        Ok((y, LstmState::new(c_n, out.h_n)))
    }
}

/// [`recurrent`] with the parameters of [`burn::nn::gru::Gru`], which it is made from:
/// `Gru::try_from(burn::nn::gru::GruConfig::new(4, 8, true).init(&device))?`.
#[derive(Module, Debug)]
pub struct Gru {
    /// The update gate.
    pub update_gate: GateController,
    /// The reset gate.
    pub reset_gate: GateController,
    /// The gate of the new state.
    pub new_gate: GateController,
    /// The elements of a state.
    pub d_hidden: usize,
}

impl TryFrom<HostGru> for Gru {
    type Error = Error;

    /// # Errors
    /// If the states are clipped, the reset gate is applied before the product, or the functions are not sigmoid and tanh.
    fn try_from(layer: HostGru) -> Result<Self, Error> {
        let op = Cell::Gru.op();
        expect(op, "clip", layer.clip.is_none(), "none")?;
        expect(op, "reset_after", layer.reset_after, "true")?;
        expect(op, "gate_activation", matches!(layer.gate_activation, Activation::Sigmoid(_)), "sigmoid")?;
        expect(op, "hidden_activation", matches!(layer.hidden_activation, Activation::Tanh(_)), "tanh")?;
        let HostGru { update_gate, reset_gate, new_gate, d_hidden, .. } = layer;
        Ok(Self { update_gate, reset_gate, new_gate, d_hidden })
    }
}

impl Gru {
    /// The hidden states of all steps, as [`burn::nn::gru::Gru::forward`]: `input` is `[batch, steps, d_input]`, `state` `[batch, d_hidden]`.
    ///
    /// # Errors
    /// As [`recurrent`].
    pub fn forward(&self, input: Tensor<3>, state: Option<Tensor<2>>) -> Result<Tensor<3>, Error> {
        let weights = weights(Cell::Gru.op(), &[&self.reset_gate, &self.update_gate, &self.new_gate])?;
        let options = RecurrentOptions { h0: state, ..RecurrentOptions::default() };
        Ok(recurrent(Cell::Gru, input, weights, options)?.y)
    }
}
