//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor, TensorRef};

use super::{
    Biases, Cell, RecurrentArgs, RecurrentBackwardArgs, RecurrentBackwardDesc, RecurrentDesc,
    WeightGradients, WeightRefs, refuse,
};
use crate::gemm::Precision;
use crate::plan::{PlanCache, Real};
use crate::{Dropout, Error, PlanError};

/// The weights of a layer and direction.
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

    /// Which biases there are.
    pub(super) fn biases(&self, op: &'static str) -> Result<Biases, PlanError> {
        match (self.b_ih, self.b_hh) {
            (None, None) => Ok(Biases::Absent),
            (Some(_), None) => Ok(Biases::One),
            (Some(_), Some(_)) => Ok(Biases::Two),
            (None, Some(_)) => Err(refuse(op, "b_hh", "without b_ih", "given with b_ih")),
        }
    }

    /// The units, and what their hidden states are projected to, or 0.
    fn sizes(&self, op: &'static str) -> Result<[usize; 2], PlanError> {
        let shape = |tensor: &Tensor| format!("{:?}", tensor.shape());
        match (self.w_hr, self.w_hh.shape()) {
            (None, &[_, hidden]) => Ok([hidden, 0]),
            (None, _) => Err(refuse(op, "w_hh", shape(self.w_hh), "of two dimensions")),
            (Some(w_hr), _) => match w_hr.shape() {
                &[projection, hidden] if projection > 0 => Ok([hidden, projection]),
                _ => Err(refuse(op, "w_hr", shape(w_hr), "[projection, hidden]")),
            },
        }
    }

    /// Holds the shapes to `input` elements and as many units, and elements that they are projected to.
    pub(super) fn check(
        &self,
        cell: Cell,
        op: &'static str,
        input: usize,
        [hidden, projection]: [usize; 2],
    ) -> Result<(), PlanError> {
        let rows = hidden.saturating_mul(cell.gates());
        let output = if projection > 0 { projection } else { hidden };
        let shape = |tensor: &Tensor| format!("{:?}", tensor.shape());
        if self.w_hh.shape() != [rows, output] {
            return Err(refuse(op, "w_hh", shape(self.w_hh), "[gates hidden, output]"));
        }
        if self.w_ih.shape() != [rows, input] {
            return Err(refuse(op, "w_ih", shape(self.w_ih), "[gates hidden, input]"));
        }
        match self.w_hr {
            Some(w_hr) if w_hr.shape() != [projection, hidden] => {
                Err(refuse(op, "w_hr", shape(w_hr), "[projection, hidden] everywhere, or nowhere"))
            }
            None if projection > 0 => Err(refuse(op, "w_hr", "absent", "in every layer and direction")),
            _ => Ok(()),
        }
    }

    pub(super) fn refs(&self) -> WeightRefs<'a> {
        WeightRefs {
            w_ih: self.w_ih.as_ref(),
            w_hh: self.w_hh.as_ref(),
            w_hr: self.w_hr.map(Tensor::as_ref),
            b_ih: self.b_ih.map(Tensor::as_ref),
            b_hh: self.b_hh.map(Tensor::as_ref),
        }
    }
}

/// The first state; what is not given is zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct State<'a> {
    /// The hidden state, `[layers directions, batch, output]`.
    pub h0: Option<&'a Tensor>,
    /// The cells of an LSTM, `[layers directions, batch, hidden]`.
    pub c0: Option<&'a Tensor>,
}

/// How sequences are read; the default is one direction, time steps first, no dropout, with everything saved for the backward pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecurrentOptions<'a> {
    /// A second direction reads sequences from their ends: there are two weights a layer.
    pub bidirectional: bool,
    /// Tensors are `[batch, steps, ..]`.
    pub batch_first: bool,
    /// Time steps of each sequence: `[batch]` in i32, from 0 to `steps`. They are read on the device, where they are cut to that;
    /// [`check_lengths`](super::check_lengths) checks them on the host.
    pub lengths: Option<TensorRef<'a>>,
    /// Elements that are dropped at random between layers.
    pub dropout: Option<Dropout>,
    /// How exact products are; [`Precision::Tf32`] is for `f32`.
    pub precision: Precision,
    /// Whether no reserve is saved: then there is no backward pass.
    pub inference: bool,
}

/// The results of a recurrent net, and what its backward function takes.
#[derive(Debug)]
pub struct RecurrentOutput {
    /// The hidden states of the last layer at all time steps, `[steps, batch, directions output]`, or `[batch, steps, ..]`.
    pub y: Tensor,
    /// The hidden states of the last steps, `[layers directions, batch, output]`.
    pub h_n: Tensor,
    /// The cells of the last steps of an LSTM, `[layers directions, batch, hidden]`.
    pub c_n: Option<Tensor>,
    /// The saved state that the gradients need. `None` after inference.
    pub reserve: Option<Tensor>,
}

/// The gradients of the results of a net; what is not given is zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutputGradients<'a> {
    /// Of `y`.
    pub dy: Option<&'a Tensor>,
    /// Of `h_n`.
    pub dh_n: Option<&'a Tensor>,
    /// Of `c_n`.
    pub dc_n: Option<&'a Tensor>,
}

/// The gradients of the weights of a layer and direction.
#[derive(Debug)]
pub struct WeightGradient {
    /// Of `w_ih`.
    pub w_ih: Tensor,
    /// Of `w_hh`.
    pub w_hh: Tensor,
    /// Of `w_hr`.
    pub w_hr: Option<Tensor>,
    /// Of `b_ih`.
    pub b_ih: Option<Tensor>,
    /// Of `b_hh`.
    pub b_hh: Option<Tensor>,
}

impl WeightGradient {
    /// Room for the gradients of `weights`.
    pub(super) fn empty(stream: &Stream, weights: &Weights<'_>) -> Result<Self, warpwright_runtime::Error> {
        let like = |tensor: &Tensor| Tensor::empty_on(stream, tensor.dtype(), tensor.shape());
        Ok(Self {
            w_ih: like(weights.w_ih)?,
            w_hh: like(weights.w_hh)?,
            w_hr: weights.w_hr.map(like).transpose()?,
            b_ih: weights.b_ih.map(like).transpose()?,
            b_hh: weights.b_hh.map(like).transpose()?,
        })
    }

    pub(super) fn of<'a>(&'a mut self, weights: &Weights<'a>) -> WeightGradients<'a> {
        WeightGradients {
            w_ih: weights.w_ih.as_ref(),
            w_hh: weights.w_hh.as_ref(),
            w_hr: weights.w_hr.map(Tensor::as_ref),
            dw_ih: self.w_ih.as_mut(),
            dw_hh: self.w_hh.as_mut(),
            dw_hr: self.w_hr.as_mut().map(Tensor::as_mut),
            db_ih: self.b_ih.as_mut().map(Tensor::as_mut),
            db_hh: self.b_hh.as_mut().map(Tensor::as_mut),
        }
    }
}

/// The gradients of the inputs of a recurrent net.
#[derive(Debug)]
pub struct RecurrentGradients {
    /// Of `x`.
    pub dx: Tensor,
    /// Of `h0`.
    pub dh0: Option<Tensor>,
    /// Of `c0`.
    pub dc0: Option<Tensor>,
    /// Of each direction of each layer.
    pub weights: Vec<WeightGradient>,
}

/// The inputs of a recurrent net.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentInput<'a> {
    /// `[steps, batch, input]`, or `[batch, steps, input]`, of f32, f64, f16 or bf16.
    pub x: &'a Tensor,
    /// Of each direction of each layer.
    pub weights: &'a [Weights<'a>],
    /// The first state.
    pub state: State<'a>,
    /// How sequences are read.
    pub options: RecurrentOptions<'a>,
}

impl<'a> RecurrentInput<'a> {
    /// From a state of zeros, with the default options.
    pub fn new(x: &'a Tensor, weights: &'a [Weights<'a>]) -> Self {
        Self { x, weights, state: State::default(), options: RecurrentOptions::default() }
    }

    fn desc(&self, cell: Cell) -> Result<RecurrentDesc, PlanError> {
        let op = cell.op();
        let shape = |tensor: &Tensor| format!("{:?}", tensor.shape());
        let &[first, second, input] = self.x.shape() else {
            return Err(refuse(op, "x", shape(self.x), "of three dimensions"));
        };
        let batch_first = self.options.batch_first;
        let [steps, batch] = if batch_first { [second, first] } else { [first, second] };
        let directions = if self.options.bidirectional { 2 } else { 1 };
        let (one, rest) = match self.weights {
            [one, rest @ ..] if self.weights.len().is_multiple_of(directions) => (one, rest),
            _ => {
                let expected = "one for each direction of each layer";
                return Err(refuse(op, "weights", self.weights.len(), expected));
            }
        };
        let sizes = one.sizes(op)?;
        let [hidden, projection] = sizes;
        let output = if projection > 0 { projection } else { hidden };
        let biases = one.biases(op)?;
        if rest.iter().any(|weights| weights.biases(op).ok() != Some(biases)) {
            return Err(refuse(op, "biases", "some", "the same in every layer and direction"));
        }
        for (index, weights) in self.weights.iter().enumerate() {
            let input = if index < directions { input } else { directions.saturating_mul(output) };
            weights.check(cell, op, input, sizes)?;
        }
        let (h0, c0) = (self.state.h0.is_some(), self.state.c0.is_some());
        let (layers, lengths) = (self.weights.len() / directions, self.options.lengths.is_some());
        let desc = RecurrentDesc::new(cell, self.x.dtype(), [steps, batch, input, hidden]);
        let desc = RecurrentDesc { projection, layers, directions, batch_first, biases, ..desc };
        let dropout = self.options.dropout.map(|dropout| Real::new(f64::from(dropout.probability)));
        let precision = self.options.precision;
        let training = !self.options.inference;
        Ok(RecurrentDesc { h0, c0, lengths, training, dropout, precision, ..desc })
    }

    /// Seed and offset on the device.
    fn random(&self, stream: &Stream) -> Result<Option<Tensor>, Error> {
        self.options.dropout.map(|dropout| dropout.random(stream)).transpose()
    }
}

/// A recurrent net over sequences, of the cell that is named at run time: LSTM, GRU or the plain cell, with layers, directions and
/// projections; see the [module](crate::recurrent).
///
/// `x` is `[steps, batch, input]`, of f32, f64, f16 or bf16, and there are as many [`Weights`] as layers times directions, the directions of
/// a layer next to each other. Results are in [`RecurrentOutput`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::recurrent::{Cell, RecurrentInput, Weights};
/// use warpwright::{DType, Device, Tensor, recurrent};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// // One sequence of three time steps of one element, two units whose weights are zero.
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], &[3, 1, 1])?;
/// let w_ih = Tensor::zeros_on(&stream, DType::F32, &[2, 1])?;
/// let w_hh = Tensor::zeros_on(&stream, DType::F32, &[2, 2])?;
/// let b_ih = Tensor::ones_on(&stream, DType::F32, &[2])?;
/// let weights = [Weights { b_ih: Some(&b_ih), ..Weights::new(&w_ih, &w_hh) }];
/// let input = RecurrentInput::new(&x, &weights);
/// let out = recurrent(&stream, Cell::RnnRelu, &input)?;
/// assert_eq!(out.y.to_vec_on::<f32>(&stream)?, [1.0; 6]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the shapes do not fit each other, a size is 0, or the element type is none of those. [`Error::Runtime`] if the
/// tensors do not fit, or memory runs out.
pub fn recurrent(stream: &Stream, cell: Cell, input: &RecurrentInput<'_>) -> Result<RecurrentOutput, Error> {
    static PLANS: PlanCache<RecurrentDesc> = PlanCache::new();
    let desc = input.desc(cell)?;
    let plan = PLANS.get(&desc, stream.device().target())?;
    let random = input.random(stream)?;
    let RecurrentDesc { dtype, steps, batch, hidden, .. } = desc;
    let empty = |shape: &[usize]| Tensor::empty_on(stream, dtype, shape);
    let [first, second] = if desc.batch_first { [batch, steps] } else { [steps, batch] };
    let mut y = empty(&[first, second, desc.result()])?;
    let mut h_n = empty(&[desc.passes(), batch, desc.output()])?;
    let mut c_n = cell.has_c().then(|| empty(&[desc.passes(), batch, hidden])).transpose()?;
    let reserve = |spec: &crate::plan::TensorSpec| Tensor::empty_on(stream, spec.dtype, &[spec.len]);
    let reserve_spec = plan.tensor("reserve");
    let mut reserve = reserve_spec.map(reserve).transpose()?;
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        RecurrentArgs {
            x: input.x.as_ref(),
            lengths: input.options.lengths,
            h0: input.state.h0.map(Tensor::as_ref),
            c0: input.state.c0.map(Tensor::as_ref),
            random: random.as_ref().map(Tensor::as_ref),
            weights: input.weights.iter().map(Weights::refs).collect(),
            y: y.as_mut(),
            h_n: h_n.as_mut(),
            c_n: c_n.as_mut().map(Tensor::as_mut),
            reserve: reserve.as_mut().map(Tensor::as_mut),
            workspace: workspace.as_mut().map(Tensor::as_mut),
        },
    )?;
    Ok(RecurrentOutput { y, h_n, c_n, reserve })
}

/// The gradients of [`recurrent`] from its `input` and `output`, and the gradients of `y`, `h_n` and `c_n`, each like its tensor.
///
/// Those of `x`, the first state and the weights are of their shapes and element types, f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::recurrent::{Cell, OutputGradients, RecurrentInput, Weights};
/// use warpwright::{DType, Device, Tensor, recurrent, recurrent_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// // One sequence of three time steps of one element, two units whose weights are zero.
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], &[3, 1, 1])?;
/// let w_ih = Tensor::zeros_on(&stream, DType::F32, &[2, 1])?;
/// let w_hh = Tensor::zeros_on(&stream, DType::F32, &[2, 2])?;
/// let b_ih = Tensor::ones_on(&stream, DType::F32, &[2])?;
/// let weights = [Weights { b_ih: Some(&b_ih), ..Weights::new(&w_ih, &w_hh) }];
/// let input = RecurrentInput::new(&x, &weights);
/// let out = recurrent(&stream, Cell::RnnRelu, &input)?;
/// let dy = Tensor::ones_on(&stream, DType::F32, out.y.shape())?;
/// let wanted = OutputGradients { dy: Some(&dy), ..Default::default() };
/// let gradients = recurrent_backward(&stream, Cell::RnnRelu, &input, &out, wanted)?;
/// // The sum of x for each unit.
/// assert_eq!(gradients.weights[0].w_ih.to_vec_on::<f32>(&stream)?, [6.0, 6.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] as [`recurrent`], and if the output was for inference. [`Error::Runtime`] if the tensors do not fit each other, or
/// memory runs out.
pub fn recurrent_backward(
    stream: &Stream,
    cell: Cell,
    input: &RecurrentInput<'_>,
    output: &RecurrentOutput,
    gradients: OutputGradients<'_>,
) -> Result<RecurrentGradients, Error> {
    static PLANS: PlanCache<RecurrentBackwardDesc> = PlanCache::new();
    let forward = RecurrentDesc { training: true, ..input.desc(cell)? };
    let Some(reserve) = &output.reserve else {
        let expected = "saved by a forward pass without `inference`";
        return Err(refuse(cell.op(), "reserve", "absent", expected).into());
    };
    let OutputGradients { dy, dh_n, dc_n } = gradients;
    let (dtype, dx) = (forward.dtype, true);
    let given = (dy.is_some(), dh_n.is_some(), dc_n.is_some());
    let desc = RecurrentBackwardDesc { forward, dy: given.0, dh_n: given.1, dc_n: given.2, dx };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let random = input.random(stream)?;
    let like = |tensor: &Tensor| Tensor::empty_on(stream, dtype, tensor.shape());
    let maybe = |tensor: Option<&Tensor>| tensor.map(like).transpose();
    let mut dx = like(input.x)?;
    let (mut dh0, mut dc0) = (maybe(input.state.h0)?, maybe(input.state.c0)?);
    let all = input.weights.iter().map(|weights| WeightGradient::empty(stream, weights));
    let mut all = all.collect::<Result<Vec<_>, _>>()?;
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        RecurrentBackwardArgs {
            x: input.x.as_ref(),
            lengths: input.options.lengths,
            h0: input.state.h0.map(Tensor::as_ref),
            c0: input.state.c0.map(Tensor::as_ref),
            random: random.as_ref().map(Tensor::as_ref),
            y: output.y.as_ref(),
            reserve: reserve.as_ref(),
            dy: dy.map(Tensor::as_ref),
            dh_n: dh_n.map(Tensor::as_ref),
            dc_n: dc_n.map(Tensor::as_ref),
            weights: all.iter_mut().zip(input.weights).map(|(gradient, of)| gradient.of(of)).collect(),
            dx: Some(dx.as_mut()),
            dh0: dh0.as_mut().map(Tensor::as_mut),
            dc0: dc0.as_mut().map(Tensor::as_mut),
            workspace: workspace.as_mut().map(Tensor::as_mut),
        },
    )?;
    Ok(RecurrentGradients { dx, dh0, dc0, weights: all })
}

macro_rules! named {
    ($(
        $(#[doc = $doc:literal])*
        $name:ident, $backward:ident => $cell:ident, $rows:literal, $at_one:literal;
    )*) => {$(
        $(#[doc = $doc])*
        ///
        /// `x` is `[steps, batch, input]`, of f32, f64, f16 or bf16; weights are `[gates hidden, input]` and `[gates hidden, output]`.
        ///
        /// ```
        /// # fn main() -> Result<(), warpwright::Error> {
        /// use warpwright::recurrent::{RecurrentInput, Weights};
        #[doc = concat!("use warpwright::{DType, Device, Tensor, ", stringify!($name), "};")]
        ///
        /// let device = Device::best();
        /// let stream = device.stream()?;
        /// // One sequence of three time steps of one element, two units whose weights are zero.
        /// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], &[3, 1, 1])?;
        #[doc = concat!("let w_ih = Tensor::zeros_on(&stream, DType::F32, &[", stringify!($rows), ", 1])?;")]
        #[doc = concat!("let w_hh = Tensor::zeros_on(&stream, DType::F32, &[", stringify!($rows), ", 2])?;")]
        #[doc = concat!("let b_ih = Tensor::ones_on(&stream, DType::F32, &[", stringify!($rows), "])?;")]
        /// let weights = [Weights { b_ih: Some(&b_ih), ..Weights::new(&w_ih, &w_hh) }];
        #[doc = concat!("let out = ", stringify!($name), "(&stream, &RecurrentInput::new(&x, &weights))?;")]
        /// let h_n = out.h_n.to_vec_on::<f32>(&stream)?;
        #[doc = concat!("assert!(h_n.iter().all(|h| (h - ", stringify!($at_one), ").abs() < 1e-5), \"{h_n:?}\");")]
        /// # Ok(())
        /// # }
        /// ```
        ///
        /// # Errors
        /// As [`recurrent`].
        pub fn $name(stream: &Stream, input: &RecurrentInput<'_>) -> Result<RecurrentOutput, Error> {
            recurrent(stream, Cell::$cell, input)
        }

        #[doc = concat!("The gradients of [`", stringify!($name), "`], as [`recurrent_backward`] gives them: of the shapes of its inputs, f32, f64, f16 or bf16.")]
        ///
        /// ```
        /// # fn main() -> Result<(), warpwright::Error> {
        /// use warpwright::recurrent::{OutputGradients, RecurrentInput, Weights};
        #[doc = concat!("use warpwright::{DType, Device, Tensor, ", stringify!($name), ", ", stringify!($backward), "};")]
        ///
        /// let device = Device::best();
        /// let stream = device.stream()?;
        /// // One sequence of three time steps of one element, two units whose weights are zero.
        /// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], &[3, 1, 1])?;
        #[doc = concat!("let w_ih = Tensor::zeros_on(&stream, DType::F32, &[", stringify!($rows), ", 1])?;")]
        #[doc = concat!("let w_hh = Tensor::zeros_on(&stream, DType::F32, &[", stringify!($rows), ", 2])?;")]
        /// let weights = [Weights::new(&w_ih, &w_hh)];
        /// let input = RecurrentInput::new(&x, &weights);
        #[doc = concat!("let out = ", stringify!($name), "(&stream, &input)?;")]
        /// let dh_n = Tensor::ones_on(&stream, DType::F32, out.h_n.shape())?;
        /// let wanted = OutputGradients { dh_n: Some(&dh_n), ..Default::default() };
        #[doc = concat!("let gradients = ", stringify!($backward), "(&stream, &input, &out, wanted)?;")]
        /// assert_eq!(gradients.weights[0].w_hh.shape(), w_hh.shape());
        /// assert_eq!(gradients.dx.to_vec_on::<f32>(&stream)?, [0.0; 3], "weights of zero");
        /// # Ok(())
        /// # }
        /// ```
        ///
        /// # Errors
        /// As [`recurrent_backward`].
        pub fn $backward(
            stream: &Stream,
            input: &RecurrentInput<'_>,
            output: &RecurrentOutput,
            gradients: OutputGradients<'_>,
        ) -> Result<RecurrentGradients, Error> {
            recurrent_backward(stream, Cell::$cell, input, output, gradients)
        }
    )*};
}

named! {
    /// A long short-term memory over sequences (Hochreiter and Schmidhuber 1997; Gers et al. 2000), as `torch.nn.LSTM`: [`recurrent`] of
    /// [`Cell::Lstm`], whose four gates lie in the order i, f, g, o.
    lstm, lstm_backward => Lstm, 8, 0.622_453;
    /// A gated recurrent unit over sequences (Cho et al. 2014, arXiv:1406.1078), as `torch.nn.GRU`: [`recurrent`] of [`Cell::Gru`], whose three
    /// gates lie in the order r, z, n.
    gru, gru_backward => Gru, 6, 0.464_03;
    /// The plain cell with the hyperbolic tangent over sequences, as `torch.nn.RNN`: [`recurrent`] of [`Cell::RnnTanh`], which has one gate.
    rnn, rnn_backward => RnnTanh, 2, 0.761_594_2;
}
