//! The cells: what becomes of the sums of the gates of a unit, and of the gradients that come back.

use warpwright_dsl::prelude::*;

use crate::activation::{Activation, evaluate};

/// The step of a unit: a function of the sums of its gates and its own value before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cell {
    /// Long short-term memory: gates i, f, g, o, and a cell beside the hidden state.
    Lstm,
    /// The gated recurrent unit: gates r, z, n; the state's bias of n lies inside the product with r.
    Gru,
    /// `h' = tanh(..)`
    RnnTanh,
    /// `h' = relu(..)`
    RnnRelu,
}

impl Cell {
    /// Every cell.
    pub const ALL: [Self; 4] = [Self::Lstm, Self::Gru, Self::RnnTanh, Self::RnnRelu];

    /// A part of the names of kernels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lstm => "lstm",
            Self::Gru => "gru",
            Self::RnnTanh => "rnn_tanh",
            Self::RnnRelu => "rnn_relu",
        }
    }

    /// The primitive that it belongs to.
    pub const fn op(self) -> &'static str {
        match self {
            Self::Lstm => "lstm",
            Self::Gru => "gru",
            Self::RnnTanh | Self::RnnRelu => "rnn",
        }
    }

    /// The primitive of a single step.
    pub const fn cell_op(self) -> &'static str {
        match self {
            Self::Lstm => "lstm_cell",
            Self::Gru => "gru_cell",
            Self::RnnTanh | Self::RnnRelu => "rnn_cell",
        }
    }

    /// Gates of a unit.
    pub const fn gates(self) -> usize {
        match self {
            Self::Lstm => 4,
            Self::Gru => 3,
            Self::RnnTanh | Self::RnnRelu => 1,
        }
    }

    /// Whether there is a cell beside the hidden state.
    pub const fn has_c(self) -> bool {
        matches!(self, Self::Lstm)
    }

    /// Whether a unit's own value passes to the next step in the precision of sums: `c`, or the `h` that `z` keeps.
    pub(super) const fn carries(self) -> bool {
        matches!(self, Self::Lstm | Self::Gru)
    }

    /// Whether the gradients of the gates on the side of the state differ from those on the side of the input.
    pub(super) const fn splits(self) -> bool {
        matches!(self, Self::Gru)
    }

    /// Lanes of a unit where each has one gate: a power of two.
    pub(super) const fn lanes(self) -> u32 {
        (self.gates() as u32).next_power_of_two()
    }
}

/// The function of a gate that needs no other gate, from the sum of both of its products. The last gate of [`Cell::Gru`]
/// does: its sums are kept apart.
#[derive(Clone, Copy, Debug)]
pub(super) enum Gate<'k> {
    /// A gate that is known while recording.
    Known(usize),
    /// That of the lane.
    Lane(U32<'k>),
}

/// A step of a unit.
pub(super) struct Step<'k, A: Float> {
    /// The gates, activated.
    pub(super) gates: Vec<Reg<'k, A>>,
    /// The cell, or the state's part of n: the gradients need it beside the gates.
    pub(super) extra: Option<Reg<'k, A>>,
    pub(super) h: Reg<'k, A>,
    /// The value that passes to the next step: the cell, or the hidden state.
    pub(super) own: Reg<'k, A>,
}

/// The gradients of a step of a unit.
pub(super) struct Gradient<'k, A: Float> {
    /// Of the sums on the side of the input.
    pub(super) gates: Vec<Reg<'k, A>>,
    /// Of the last of them on the side of the state, where it differs.
    pub(super) inner: Reg<'k, A>,
    /// Of the value that passes from step to step.
    pub(super) carry: Reg<'k, A>,
}

/// The saved state of a step.
pub(super) struct Saved<'k, A: Float> {
    pub(super) gates: Vec<Reg<'k, A>>,
    pub(super) extra: Reg<'k, A>,
    /// The cell, or the hidden state, before the step.
    pub(super) before: Reg<'k, A>,
}

fn logistic<'k, A: Float>(x: Reg<'k, A>, dtype: DType) -> Reg<'k, A> {
    evaluate(Activation::Sigmoid, x, dtype)
}

fn squash<'k, A: Float>(x: Reg<'k, A>, dtype: DType) -> Reg<'k, A> {
    evaluate(Activation::Tanh, x, dtype)
}

impl Cell {
    /// The value of a gate on its own, from its sums on the sides of input and state, for results of type `dtype`.
    pub(super) fn alone<'k, A: Float>(
        self,
        gate: Gate<'k>,
        x: Reg<'k, A>,
        h: Reg<'k, A>,
        dtype: DType,
    ) -> Reg<'k, A> {
        let other = |last: usize, usual: fn(Reg<'k, A>, DType) -> Reg<'k, A>, special: Reg<'k, A>| match gate
        {
            Gate::Known(gate) if gate == last => special,
            Gate::Known(_) => usual(x + h, dtype),
            Gate::Lane(gate) => gate.eq(last as u32).select(special, usual(x + h, dtype)),
        };
        match self {
            Self::Lstm => match gate {
                Gate::Known(2) => squash(x + h, dtype),
                Gate::Known(_) => logistic(x + h, dtype),
                Gate::Lane(_) => other(2, logistic, squash(x + h, dtype)),
            },
            Self::Gru => other(2, logistic, x),
            Self::RnnTanh => squash(x + h, dtype),
            Self::RnnRelu => evaluate(Activation::Relu, x + h, dtype),
        }
    }

    /// The step, from what the gates give on their own, the state's part of the last gate, and the value before.
    pub(super) fn together<'k, A: Float>(
        self,
        alone: &[Reg<'k, A>],
        inner: Reg<'k, A>,
        before: Reg<'k, A>,
        dtype: DType,
    ) -> Step<'k, A> {
        match (self, alone) {
            (Self::Lstm, &[input, forget, cell, output]) => {
                let c = forget.mul_add(before, input * cell);
                Step { gates: alone.to_vec(), extra: Some(c), h: output * squash(c, dtype), own: c }
            }
            (Self::Gru, &[reset, update, new]) => {
                let new = squash(reset.mul_add(inner, new), dtype);
                let h = update.mul_add(before - new, new);
                Step { gates: vec![reset, update, new], extra: Some(inner), h, own: h }
            }
            _ => Step { gates: alone.to_vec(), extra: None, h: alone[0], own: alone[0] },
        }
    }

    /// The hidden state of a step as it was before its projection.
    pub(super) fn unprojected<'k, A: Float>(self, saved: &Saved<'k, A>, dtype: DType) -> Reg<'k, A> {
        saved.gates[self.gates() - 1] * squash(saved.extra, dtype)
    }

    /// The gradients of a step from that of its hidden state and that of the value that passes on; for [`Cell::Gru`] that
    /// value is the hidden state, and `carry` is part of `dh`.
    pub(super) fn back<'k, A: Float>(
        self,
        saved: &Saved<'k, A>,
        dh: Reg<'k, A>,
        carry: Reg<'k, A>,
        dtype: DType,
    ) -> Gradient<'k, A> {
        // Slopes of the logistic function and of the hyperbolic tangent from their values.
        let of_logistic = |y: Reg<'k, A>| y * (1.0 - y);
        let of_tanh = |y: Reg<'k, A>| (-y).mul_add(y, 1.0);
        let before = saved.before;
        match (self, saved.gates.as_slice()) {
            (Self::Lstm, &[input, forget, cell, output]) => {
                let squashed = squash(saved.extra, dtype);
                let dc = (dh * output).mul_add(of_tanh(squashed), carry);
                let gates = vec![
                    dc * cell * of_logistic(input),
                    dc * before * of_logistic(forget),
                    dc * input * of_tanh(cell),
                    dh * squashed * of_logistic(output),
                ];
                Gradient { inner: gates[3], gates, carry: dc * forget }
            }
            (Self::Gru, &[reset, update, new]) => {
                let dh = dh + carry;
                let dnew = dh * (1.0 - update) * of_tanh(new);
                let gates = vec![
                    dnew * saved.extra * of_logistic(reset),
                    dh * (before - new) * of_logistic(update),
                    dnew,
                ];
                Gradient { gates, inner: dnew * reset, carry: dh * update }
            }
            (_, gates) => {
                let y = gates[0];
                let slope = dh * of_tanh(y);
                let dx = if self == Self::RnnRelu { y.le(0.0).select(0.0, dh) } else { slope };
                Gradient { gates: vec![dx], inner: dx, carry }
            }
        }
    }
}
