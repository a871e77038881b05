//! A single step, as a primitive of its own.

use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Stream, Tensor, TensorMut, TensorRef};

use super::tuning::Schedule;
use super::{
    Biases, Cell, RecurrentArgs, RecurrentBackwardArgs, RecurrentBackwardDesc, RecurrentDesc, WeightGradient,
    WeightGradients, WeightRefs, Weights, backward, forward, refuse,
};
use crate::plan::{Operation, Plan, PlanCache};
use crate::tensors::Arguments;
use crate::{Binding, Error, PlanError};

/// A step of a cell: `lstm_cell`, `gru_cell`, `rnn_cell`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CellDesc {
    /// What a unit computes.
    pub cell: Cell,
    /// Element type of all tensors but the reserve.
    pub dtype: DType,
    /// Sequences.
    pub batch: usize,
    /// Elements of an input, at least 1.
    pub input: usize,
    /// Units, at least 1.
    pub hidden: usize,
    /// Which biases there are.
    pub biases: Biases,
    /// Whether a reserve is written, as [`RecurrentDesc`] does of a sequence of one place.
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
    /// What the backward pass needs.
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
    /// What the forward pass left.
    pub reserve: TensorRef<'a>,
    /// The gradient of `h_next`.
    pub dh_next: TensorRef<'a>,
    /// The gradient of `c_next`.
    pub dc_next: Option<TensorRef<'a>>,
    /// The weights and what becomes their gradients.
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
    /// The sequence of one place that it is.
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

/// What a step is given.
#[derive(Clone, Copy, Debug)]
pub struct CellInput<'a> {
    /// `[batch, input]`
    pub x: &'a Tensor,
    /// The hidden state, `[batch, hidden]`.
    pub h: &'a Tensor,
    /// The cells of an LSTM, `[batch, hidden]`.
    pub c: Option<&'a Tensor>,
    /// The weights.
    pub weights: Weights<'a>,
}

/// What a step gives.
#[derive(Debug)]
pub struct CellOutput {
    /// The hidden state after the step.
    pub h: Tensor,
    /// The cells of an LSTM after the step.
    pub c: Option<Tensor>,
    /// What the gradients need, if they are wanted.
    pub reserve: Option<Tensor>,
}

/// The gradients of what a step was given.
#[derive(Debug)]
pub struct CellGradients {
    /// Of `x`.
    pub dx: Tensor,
    /// Of `h`.
    pub dh: Tensor,
    /// Of `c`.
    pub dc: Option<Tensor>,
    /// Of the weights.
    pub weights: WeightGradient,
}

impl CellInput<'_> {
    fn desc(&self, cell: Cell, training: bool) -> Result<CellDesc, PlanError> {
        let op = cell.cell_op();
        let shape = |tensor: &Tensor| format!("{:?}", tensor.shape());
        let &[batch, input] = self.x.shape() else {
            return Err(refuse(op, "x", shape(self.x), "of two dimensions: batch, input"));
        };
        let &[_, hidden] = self.h.shape() else {
            return Err(refuse(op, "h", shape(self.h), "of two dimensions: batch, hidden"));
        };
        let biases = self.weights.biases(op)?;
        self.weights.check(cell, op, input, [hidden, 0])?;
        Ok(CellDesc { cell, dtype: self.x.dtype(), batch, input, hidden, biases, training })
    }
}

/// A step of a cell; with `training` it leaves what [`cell_backward`] needs.
///
/// # Errors
/// The shapes do not fit each other, the element type is not supported, or memory runs out.
pub fn cell(stream: &Stream, cell: Cell, input: &CellInput<'_>, training: bool) -> Result<CellOutput, Error> {
    static PLANS: PlanCache<CellDesc> = PlanCache::new();
    let desc = input.desc(cell, training)?;
    let plan = PLANS.get(&desc, stream.device().target())?;
    let empty = || Tensor::empty_on(stream, desc.dtype, input.h.shape());
    let mut h = empty()?;
    let mut c = cell.has_c().then(empty).transpose()?;
    let spec = plan.tensor("reserve");
    let mut reserve = spec.map(|spec| Tensor::empty_on(stream, spec.dtype, &[spec.len])).transpose()?;
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        CellArgs {
            x: input.x.as_ref(),
            h: input.h.as_ref(),
            c: input.c.map(Tensor::as_ref),
            weights: input.weights.refs(),
            h_next: h.as_mut(),
            c_next: c.as_mut().map(Tensor::as_mut),
            reserve: reserve.as_mut().map(Tensor::as_mut),
            workspace: workspace.as_mut().map(Tensor::as_mut),
        },
    )?;
    Ok(CellOutput { h, c, reserve })
}

/// The gradients of [`cell`] from its `output`, which was made for training, and the gradients of that.
///
/// # Errors
/// The tensors do not fit each other, the forward pass left no reserve, or memory runs out.
pub fn cell_backward(
    stream: &Stream,
    cell: Cell,
    input: &CellInput<'_>,
    output: &CellOutput,
    dh: &Tensor,
    dc: Option<&Tensor>,
) -> Result<CellGradients, Error> {
    static PLANS: PlanCache<CellBackwardDesc> = PlanCache::new();
    let forward = input.desc(cell, true)?;
    let Some(reserve) = &output.reserve else {
        let expected = "made by a forward pass for training";
        return Err(refuse(cell.cell_op(), "reserve", "absent", expected).into());
    };
    let desc = CellBackwardDesc { forward, dc_next: dc.is_some() };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let like = |tensor: &Tensor| Tensor::empty_on(stream, tensor.dtype(), tensor.shape());
    let (mut dx, mut dh_before) = (like(input.x)?, like(input.h)?);
    let mut dc_before = input.c.map(like).transpose()?;
    let mut weights = WeightGradient::empty(stream, &input.weights)?;
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        CellBackwardArgs {
            x: input.x.as_ref(),
            h: input.h.as_ref(),
            c: input.c.map(Tensor::as_ref),
            reserve: reserve.as_ref(),
            dh_next: dh.as_ref(),
            dc_next: dc.map(Tensor::as_ref),
            weights: weights.of(&input.weights),
            dx: dx.as_mut(),
            dh: dh_before.as_mut(),
            dc: dc_before.as_mut().map(Tensor::as_mut),
            workspace: workspace.as_mut().map(Tensor::as_mut),
        },
    )?;
    Ok(CellGradients { dx, dh: dh_before, dc: dc_before, weights })
}

/// A step of an LSTM for inference: the hidden state and the cells after it.
///
/// # Errors
/// As [`cell()`].
pub fn lstm_cell(stream: &Stream, input: &CellInput<'_>) -> Result<CellOutput, Error> {
    cell(stream, Cell::Lstm, input, false)
}

/// A step of a gated recurrent unit for inference.
///
/// # Errors
/// As [`cell()`].
pub fn gru_cell(stream: &Stream, input: &CellInput<'_>) -> Result<CellOutput, Error> {
    cell(stream, Cell::Gru, input, false)
}

/// A step of the plain cell with the hyperbolic tangent for inference.
///
/// # Errors
/// As [`cell()`].
pub fn rnn_cell(stream: &Stream, input: &CellInput<'_>) -> Result<CellOutput, Error> {
    cell(stream, Cell::RnnTanh, input, false)
}
