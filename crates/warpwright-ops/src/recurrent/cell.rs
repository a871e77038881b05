//! A single step, as a primitive of its own.

use warpwright_ptx::{DType, Target};
use warpwright_runtime::{TensorMut, TensorRef};

use super::plan::{backward, forward};
use super::tuning::Schedule;
use super::{
    Biases, Cell, RecurrentArgs, RecurrentBackwardArgs, RecurrentBackwardDesc, RecurrentDesc,
    WeightGradients, WeightRefs,
};
use crate::plan::{Operation, Plan};
use crate::tensors::Arguments;
use crate::{Binding, PlanError};

/// A step of a cell: `lstm_cell`, `gru_cell`, `rnn_cell`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CellDesc {
    /// The cell.
    pub cell: Cell,
    /// Element type of all tensors but the reserve.
    pub dtype: DType,
    /// Sequences.
    pub batch: usize,
    /// Elements of an input, at least 1.
    pub input: usize,
    /// Units, at least 1.
    pub hidden: usize,
    /// The biases.
    pub biases: Biases,
    /// Whether a reserve is written, as [`RecurrentDesc`] does of a sequence of one time step.
    pub training: bool,
}

/// Tensors of [`CellDesc`].
#[derive(Debug)]
pub struct CellArgs<'a> {
    /// `[batch, input]`
    pub x: TensorRef<'a>,
    /// The hidden state, `[batch, hidden]`.
    pub h: TensorRef<'a>,
    /// The cells of an LSTM, `[batch, hidden]`.
    pub c: Option<TensorRef<'a>>,
    /// The weights.
    pub weights: WeightRefs<'a>,
    /// The hidden state after the step.
    pub h_next: TensorMut<'a>,
    /// The cells of an LSTM after the step.
    pub c_next: Option<TensorMut<'a>>,
    /// The reserve of the backward pass.
    pub reserve: Option<TensorMut<'a>>,
    /// Scratch memory.
    pub workspace: Option<TensorMut<'a>>,
}

/// The gradients of [`CellDesc`], whose `training` must be set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CellBackwardDesc {
    /// The forward pass.
    pub forward: CellDesc,
    /// Whether `c_next` has a gradient.
    pub dc_next: bool,
}

/// Tensors of [`CellBackwardDesc`].
#[derive(Debug)]
pub struct CellBackwardArgs<'a> {
    /// As in the forward pass.
    pub x: TensorRef<'a>,
    /// As in the forward pass.
    pub h: TensorRef<'a>,
    /// As in the forward pass.
    pub c: Option<TensorRef<'a>>,
    /// The reserve of the forward pass.
    pub reserve: TensorRef<'a>,
    /// The gradient of `h_next`.
    pub dh_next: TensorRef<'a>,
    /// The gradient of `c_next`.
    pub dc_next: Option<TensorRef<'a>>,
    /// The weights and their gradients.
    pub weights: WeightGradients<'a>,
    /// The gradient of `x`.
    pub dx: TensorMut<'a>,
    /// The gradient of `h`.
    pub dh: TensorMut<'a>,
    /// The gradient of `c`.
    pub dc: Option<TensorMut<'a>>,
    /// Scratch memory.
    pub workspace: Option<TensorMut<'a>>,
}

impl CellDesc {
    /// The sequence of one time step that it is.
    fn sequence(&self) -> RecurrentDesc {
        let Self { cell, dtype, batch, input, hidden, biases, training } = *self;
        let one = RecurrentDesc::new(cell, dtype, [1, batch, input, hidden]);
        RecurrentDesc { biases, h0: true, c0: cell.has_c(), training, ..one }
    }
}

impl Operation for CellDesc {
    type Args<'a> = CellArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        forward::plan(&self.sequence(), target, Schedule::Stepwise, self.cell.cell_op())
    }
}

impl<'a> Arguments<'a> for CellArgs<'a> {
    fn bindings(self) -> Vec<Binding<'a>> {
        let mut all = RecurrentArgs::bind([
            RecurrentArgs::x.bind(self.x),
            RecurrentArgs::h0.bind(self.h),
            RecurrentArgs::c0.bind(self.c),
            RecurrentArgs::h_n.bind(self.h_next),
            RecurrentArgs::c_n.bind(self.c_next),
            RecurrentArgs::reserve.bind(self.reserve),
            RecurrentArgs::workspace.bind(self.workspace),
        ]);
        all.extend(self.weights.bindings());
        all
    }
}

impl Operation for CellBackwardDesc {
    type Args<'a> = CellBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let forward = self.forward.sequence();
        let (dy, dh_n, dc_n, dx) = (false, true, self.dc_next, true);
        let desc = RecurrentBackwardDesc { forward, dy, dh_n, dc_n, dx };
        backward::plan(&desc, target, Schedule::Stepwise, self.forward.cell.cell_op())
    }
}

impl<'a> Arguments<'a> for CellBackwardArgs<'a> {
    fn bindings(self) -> Vec<Binding<'a>> {
        let mut all = RecurrentBackwardArgs::bind([
            RecurrentBackwardArgs::x.bind(self.x),
            RecurrentBackwardArgs::h0.bind(self.h),
            RecurrentBackwardArgs::c0.bind(self.c),
            RecurrentBackwardArgs::reserve.bind(self.reserve),
            RecurrentBackwardArgs::dh_n.bind(self.dh_next),
            RecurrentBackwardArgs::dc_n.bind(self.dc_next),
            RecurrentBackwardArgs::dx.bind(self.dx),
            RecurrentBackwardArgs::dh0.bind(self.dh),
            RecurrentBackwardArgs::dc0.bind(self.dc),
            RecurrentBackwardArgs::workspace.bind(self.workspace),
        ]);
        all.extend(self.weights.bindings());
        all
    }
}
