//! Free functions of single steps: allocate the results, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::cell::{CellArgs, CellBackwardArgs, CellBackwardDesc, CellDesc};
use super::functions::{WeightGradient, Weights};
use super::{Cell, refuse};
use crate::plan::PlanCache;
use crate::{Error, PlanError};

/// The inputs of a step.
#[derive(Clone, Copy, Debug)]
pub struct CellInput<'a> {
    /// `[batch, input]`, of f32, f64, f16 or bf16.
    pub x: &'a Tensor,
    /// The hidden state, `[batch, hidden]`.
    pub h: &'a Tensor,
    /// The cells of an LSTM, `[batch, hidden]`.
    pub c: Option<&'a Tensor>,
    /// The weights.
    pub weights: Weights<'a>,
    /// Whether no reserve is saved: then there is no backward pass.
    pub inference: bool,
}

/// The results of a step, and what its backward function takes.
#[derive(Debug)]
pub struct CellOutput {
    /// The hidden state after the step, `[batch, hidden]`.
    pub h: Tensor,
    /// The cells of an LSTM after the step, `[batch, hidden]`.
    pub c: Option<Tensor>,
    /// The saved state that the gradients need. `None` after inference.
    pub reserve: Option<Tensor>,
}

/// The gradients of the inputs of a step, of their shapes.
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
    fn desc(&self, cell: Cell) -> Result<CellDesc, PlanError> {
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
        let training = !self.inference;
        Ok(CellDesc { cell, dtype: self.x.dtype(), batch, input, hidden, biases, training })
    }
}

/// One step of the cell that is named at run time; see the [module](crate::recurrent).
///
/// `x` is `[batch, input]`, `h` and `c` are `[batch, hidden]`, of f32, f64, f16 or bf16. Results are in [`CellOutput`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::recurrent::{Cell, CellInput, Weights, cell};
/// use warpwright::{DType, Device, Tensor};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// // Two units whose weights are zero.
/// let x = Tensor::from_slice(&device, &[1.0f32], &[1, 1])?;
/// let h = Tensor::zeros_on(&stream, DType::F32, &[1, 2])?;
/// let w_ih = Tensor::zeros_on(&stream, DType::F32, &[2, 1])?;
/// let w_hh = Tensor::zeros_on(&stream, DType::F32, &[2, 2])?;
/// let b_ih = Tensor::ones_on(&stream, DType::F32, &[2])?;
/// let weights = Weights { b_ih: Some(&b_ih), ..Weights::new(&w_ih, &w_hh) };
/// let input = CellInput { x: &x, h: &h, c: None, weights, inference: false };
/// let out = cell(&stream, Cell::RnnRelu, &input)?;
/// assert_eq!(out.h.to_vec_on::<f32>(&stream)?, [1.0, 1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the shapes do not fit each other, a size is 0, or the element type is none of those. [`Error::Runtime`] if the
/// tensors do not fit, or memory runs out.
pub fn cell(stream: &Stream, cell: Cell, input: &CellInput<'_>) -> Result<CellOutput, Error> {
    static PLANS: PlanCache<CellDesc> = PlanCache::new();
    let desc = input.desc(cell)?;
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

/// The gradients of [`cell()`] from its `input` and `output`, and the gradients `dh` and `dc` of the states after the step, each like its
/// tensor: of the shapes and element types of the inputs, f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::recurrent::{Cell, CellInput, Weights, cell, cell_backward};
/// use warpwright::{DType, Device, Tensor};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// // Two units whose weights are zero.
/// let x = Tensor::from_slice(&device, &[1.0f32], &[1, 1])?;
/// let h = Tensor::zeros_on(&stream, DType::F32, &[1, 2])?;
/// let w_ih = Tensor::zeros_on(&stream, DType::F32, &[2, 1])?;
/// let w_hh = Tensor::zeros_on(&stream, DType::F32, &[2, 2])?;
/// let b_ih = Tensor::ones_on(&stream, DType::F32, &[2])?;
/// let weights = Weights { b_ih: Some(&b_ih), ..Weights::new(&w_ih, &w_hh) };
/// let input = CellInput { x: &x, h: &h, c: None, weights, inference: false };
/// let out = cell(&stream, Cell::RnnRelu, &input)?;
/// let dh = Tensor::ones_on(&stream, DType::F32, &[1, 2])?;
/// let gradients = cell_backward(&stream, Cell::RnnRelu, &input, &out, &dh, None)?;
/// assert_eq!(gradients.weights.w_ih.to_vec_on::<f32>(&stream)?, [1.0, 1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] as [`cell()`], and if the output was for inference. [`Error::Runtime`] if the tensors do not fit each other, or
/// memory runs out.
pub fn cell_backward(
    stream: &Stream,
    cell: Cell,
    input: &CellInput<'_>,
    output: &CellOutput,
    dh: &Tensor,
    dc: Option<&Tensor>,
) -> Result<CellGradients, Error> {
    static PLANS: PlanCache<CellBackwardDesc> = PlanCache::new();
    let forward = CellDesc { training: true, ..input.desc(cell)? };
    let Some(reserve) = &output.reserve else {
        let expected = "saved by a forward pass without `inference`";
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

/// One step of a long short-term memory, as `torch.nn.LSTMCell`: [`cell()`] of [`Cell::Lstm`].
///
/// `x` is `[batch, input]`, `h` and `c` are `[batch, hidden]`, of f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::recurrent::{CellInput, Weights};
/// use warpwright::{DType, Device, Tensor, lstm_cell};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// // Two units whose weights are zero.
/// let x = Tensor::from_slice(&device, &[1.0f32], &[1, 1])?;
/// let h = Tensor::zeros_on(&stream, DType::F32, &[1, 2])?;
/// let w_ih = Tensor::zeros_on(&stream, DType::F32, &[8, 1])?;
/// let w_hh = Tensor::zeros_on(&stream, DType::F32, &[8, 2])?;
/// let b_ih = Tensor::ones_on(&stream, DType::F32, &[8])?;
/// let weights = Weights { b_ih: Some(&b_ih), ..Weights::new(&w_ih, &w_hh) };
/// let input = CellInput { x: &x, h: &h, c: Some(&h), weights, inference: false };
/// let h = lstm_cell(&stream, &input)?.h.to_vec_on::<f32>(&stream)?;
/// assert!(h.iter().all(|h| (h - 0.369606).abs() < 1e-5), "{h:?}");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`cell()`].
pub fn lstm_cell(stream: &Stream, input: &CellInput<'_>) -> Result<CellOutput, Error> {
    cell(stream, Cell::Lstm, input)
}

/// The gradients of [`lstm_cell`], as [`cell_backward`] gives them: of the shapes of its inputs, f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::recurrent::{CellInput, Weights};
/// use warpwright::{DType, Device, Tensor, lstm_cell, lstm_cell_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// // Two units whose weights are zero.
/// let x = Tensor::from_slice(&device, &[1.0f32], &[1, 1])?;
/// let h = Tensor::zeros_on(&stream, DType::F32, &[1, 2])?;
/// let w_ih = Tensor::zeros_on(&stream, DType::F32, &[8, 1])?;
/// let w_hh = Tensor::zeros_on(&stream, DType::F32, &[8, 2])?;
/// let b_ih = Tensor::ones_on(&stream, DType::F32, &[8])?;
/// let weights = Weights { b_ih: Some(&b_ih), ..Weights::new(&w_ih, &w_hh) };
/// let input = CellInput { x: &x, h: &h, c: Some(&h), weights, inference: false };
/// let out = lstm_cell(&stream, &input)?;
/// let dh = Tensor::ones_on(&stream, DType::F32, &[1, 2])?;
/// let gradients = lstm_cell_backward(&stream, &input, &out, &dh, None)?;
/// assert_eq!(gradients.weights.w_hh.shape(), [8, 2]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`cell_backward`].
pub fn lstm_cell_backward(
    stream: &Stream,
    input: &CellInput<'_>,
    output: &CellOutput,
    dh: &Tensor,
    dc: Option<&Tensor>,
) -> Result<CellGradients, Error> {
    cell_backward(stream, Cell::Lstm, input, output, dh, dc)
}

/// One step of a gated recurrent unit, as `torch.nn.GRUCell`: [`cell()`] of [`Cell::Gru`].
///
/// `x` is `[batch, input]`, `h` is `[batch, hidden]`, of f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::recurrent::{CellInput, Weights};
/// use warpwright::{DType, Device, Tensor, gru_cell};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// // Two units whose weights are zero.
/// let x = Tensor::from_slice(&device, &[1.0f32], &[1, 1])?;
/// let h = Tensor::zeros_on(&stream, DType::F32, &[1, 2])?;
/// let w_ih = Tensor::zeros_on(&stream, DType::F32, &[6, 1])?;
/// let w_hh = Tensor::zeros_on(&stream, DType::F32, &[6, 2])?;
/// let b_ih = Tensor::ones_on(&stream, DType::F32, &[6])?;
/// let weights = Weights { b_ih: Some(&b_ih), ..Weights::new(&w_ih, &w_hh) };
/// let input = CellInput { x: &x, h: &h, c: None, weights, inference: false };
/// let h = gru_cell(&stream, &input)?.h.to_vec_on::<f32>(&stream)?;
/// assert!(h.iter().all(|h| (h - 0.204824).abs() < 1e-5), "{h:?}");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`cell()`].
pub fn gru_cell(stream: &Stream, input: &CellInput<'_>) -> Result<CellOutput, Error> {
    cell(stream, Cell::Gru, input)
}

/// The gradients of [`gru_cell`], as [`cell_backward`] gives them: of the shapes of its inputs, f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::recurrent::{CellInput, Weights};
/// use warpwright::{DType, Device, Tensor, gru_cell, gru_cell_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// // Two units whose weights are zero.
/// let x = Tensor::from_slice(&device, &[1.0f32], &[1, 1])?;
/// let h = Tensor::zeros_on(&stream, DType::F32, &[1, 2])?;
/// let w_ih = Tensor::zeros_on(&stream, DType::F32, &[6, 1])?;
/// let w_hh = Tensor::zeros_on(&stream, DType::F32, &[6, 2])?;
/// let b_ih = Tensor::ones_on(&stream, DType::F32, &[6])?;
/// let weights = Weights { b_ih: Some(&b_ih), ..Weights::new(&w_ih, &w_hh) };
/// let input = CellInput { x: &x, h: &h, c: None, weights, inference: false };
/// let out = gru_cell(&stream, &input)?;
/// let dh = Tensor::ones_on(&stream, DType::F32, &[1, 2])?;
/// let gradients = gru_cell_backward(&stream, &input, &out, &dh)?;
/// assert_eq!(gradients.weights.w_hh.shape(), [6, 2]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`cell_backward`].
pub fn gru_cell_backward(
    stream: &Stream,
    input: &CellInput<'_>,
    output: &CellOutput,
    dh: &Tensor,
) -> Result<CellGradients, Error> {
    cell_backward(stream, Cell::Gru, input, output, dh, None)
}

/// One step of the plain cell with the hyperbolic tangent, as `torch.nn.RNNCell`: [`cell()`] of [`Cell::RnnTanh`].
///
/// `x` is `[batch, input]`, `h` is `[batch, hidden]`, of f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::recurrent::{CellInput, Weights};
/// use warpwright::{DType, Device, Tensor, rnn_cell};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// // Two units whose weights are zero.
/// let x = Tensor::from_slice(&device, &[1.0f32], &[1, 1])?;
/// let h = Tensor::zeros_on(&stream, DType::F32, &[1, 2])?;
/// let w_ih = Tensor::zeros_on(&stream, DType::F32, &[2, 1])?;
/// let w_hh = Tensor::zeros_on(&stream, DType::F32, &[2, 2])?;
/// let b_ih = Tensor::ones_on(&stream, DType::F32, &[2])?;
/// let weights = Weights { b_ih: Some(&b_ih), ..Weights::new(&w_ih, &w_hh) };
/// let input = CellInput { x: &x, h: &h, c: None, weights, inference: false };
/// let h = rnn_cell(&stream, &input)?.h.to_vec_on::<f32>(&stream)?;
/// assert!(h.iter().all(|h| (h - 0.761594).abs() < 1e-5), "{h:?}");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`cell()`].
pub fn rnn_cell(stream: &Stream, input: &CellInput<'_>) -> Result<CellOutput, Error> {
    cell(stream, Cell::RnnTanh, input)
}

/// The gradients of [`rnn_cell`], as [`cell_backward`] gives them: of the shapes of its inputs, f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::recurrent::{CellInput, Weights};
/// use warpwright::{DType, Device, Tensor, rnn_cell, rnn_cell_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// // Two units whose weights are zero.
/// let x = Tensor::from_slice(&device, &[1.0f32], &[1, 1])?;
/// let h = Tensor::zeros_on(&stream, DType::F32, &[1, 2])?;
/// let w_ih = Tensor::zeros_on(&stream, DType::F32, &[2, 1])?;
/// let w_hh = Tensor::zeros_on(&stream, DType::F32, &[2, 2])?;
/// let b_ih = Tensor::ones_on(&stream, DType::F32, &[2])?;
/// let weights = Weights { b_ih: Some(&b_ih), ..Weights::new(&w_ih, &w_hh) };
/// let input = CellInput { x: &x, h: &h, c: None, weights, inference: false };
/// let out = rnn_cell(&stream, &input)?;
/// let dh = Tensor::ones_on(&stream, DType::F32, &[1, 2])?;
/// let gradients = rnn_cell_backward(&stream, &input, &out, &dh)?;
/// assert_eq!(gradients.weights.w_hh.shape(), [2, 2]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`cell_backward`].
pub fn rnn_cell_backward(
    stream: &Stream,
    input: &CellInput<'_>,
    output: &CellOutput,
    dh: &Tensor,
) -> Result<CellGradients, Error> {
    cell_backward(stream, Cell::RnnTanh, input, output, dh, None)
}
