//! LSTM and GRU over whole sequences, with the names, constructors and states of `candle_nn::rnn`, whose layers take two products of
//! matrices and a dozen elementwise kernels for each time step.

mod recurrent;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
pub use candle_nn::rnn::{Direction, GRUConfig, GRUState, LSTMConfig, LSTMState, RNN};

pub use recurrent::{Cell, RecurrentOptions, RecurrentOutput, Weights, recurrent};

/// The parameters of a layer of one direction.
#[derive(Clone, Debug)]
struct Parameters {
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Option<Tensor>,
    b_hh: Option<Tensor>,
    hidden_dim: usize,
    device: Device,
    dtype: DType,
}

/// How parameters begin that no checkpoint has: `w_ih`, `w_hh`, and `b_ih` and `b_hh` if there are such.
type Inits = (candle_nn::Init, candle_nn::Init, Option<candle_nn::Init>, Option<candle_nn::Init>);

impl Parameters {
    fn new(
        cell: Cell,
        [in_dim, hidden_dim]: [usize; 2],
        suffix: &str,
        (w_ih, w_hh, b_ih, b_hh): Inits,
        vb: &VarBuilder<'_>,
    ) -> Result<Self> {
        let rows = cell.gates() * hidden_dim;
        let weight = |name: &str, columns: usize, init| {
            vb.get_with_hints((rows, columns), &format!("weight_{name}_{suffix}"), init)
        };
        let bias = |name: &str, init: Option<candle_nn::Init>| {
            init.map(|init| vb.get_with_hints(rows, &format!("bias_{name}_{suffix}"), init)).transpose()
        };
        let (b_ih, b_hh) = (bias("ih", b_ih)?, bias("hh", b_hh)?);
        let b_ih = match (b_ih, &b_hh) {
            // Kernels have no second summand without the first.
            (None, Some(b_hh)) => Some(b_hh.zeros_like()?),
            (b_ih, _) => b_ih,
        };
        Ok(Self {
            w_ih: weight("ih", in_dim, w_ih)?,
            w_hh: weight("hh", hidden_dim, w_hh)?,
            b_ih,
            b_hh,
            hidden_dim,
            device: vb.device().clone(),
            dtype: vb.dtype(),
        })
    }

    fn weights(&self) -> [Weights<'_>; 1] {
        let Self { w_ih, w_hh, b_ih, b_hh, .. } = self;
        [Weights { w_ih, w_hh, w_hr: None, b_ih: b_ih.as_ref(), b_hh: b_hh.as_ref() }]
    }

    fn zeros(&self, batch_dim: usize) -> Result<Tensor> {
        Tensor::zeros((batch_dim, self.hidden_dim), self.dtype, &self.device)
    }
}

/// A step of each sequence of `[batch, steps, ..]`.
fn step_of(xs: &Tensor, step: usize) -> Result<Tensor> {
    xs.narrow(1, step, 1)?.squeeze(1)
}

/// A long short-term memory layer with the parameters of [`candle_nn::LSTM`] and its names for them.
///
/// [`RNN::seq`] and [`RNN::seq_init`] have all time steps in one operation. The cells of the last state have a gradient; asking for one of
/// those before is an error, where candle would have it. [`LSTM::sequence`] has the hidden states as one tensor, which is faster than the
/// states one by one.
#[allow(clippy::upper_case_acronyms, reason = "candle's name")]
#[derive(Clone, Debug)]
pub struct LSTM {
    parameters: Parameters,
    config: LSTMConfig,
}

impl LSTM {
    /// A layer whose parameters are `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0` and `bias_hh_l0`, with the number of the layer that
    /// `config` has and `_reverse` behind it for [`Direction::Backward`], as in PyTorch.
    ///
    /// # Errors
    /// Those of the builder.
    pub fn new(in_dim: usize, hidden_dim: usize, config: LSTMConfig, vb: VarBuilder<'_>) -> Result<Self> {
        let suffix = match config.direction {
            Direction::Forward => format!("l{}", config.layer_idx),
            Direction::Backward => format!("l{}_reverse", config.layer_idx),
        };
        let LSTMConfig { w_ih_init, w_hh_init, b_ih_init, b_hh_init, .. } = config;
        let inits = (w_ih_init, w_hh_init, b_ih_init, b_hh_init);
        let parameters = Parameters::new(Cell::Lstm, [in_dim, hidden_dim], &suffix, inits, &vb)?;
        Ok(Self { parameters, config })
    }

    /// Its configuration.
    pub fn config(&self) -> &LSTMConfig {
        &self.config
    }

    /// The hidden states of all time steps of `input`, `[batch, steps, features]`, as `[batch, steps, hidden]`, and the last state. The first
    /// state is zero if none is given.
    ///
    /// # Errors
    /// If shapes, element types or devices do not fit.
    pub fn sequence(&self, input: &Tensor, state: Option<&LSTMState>) -> Result<(Tensor, LSTMState)> {
        let (h0, c0) =
            (state.map(|s| s.h.unsqueeze(0)).transpose()?, state.map(|s| s.c.unsqueeze(0)).transpose()?);
        let options = RecurrentOptions { h0: h0.as_ref(), c0: c0.as_ref(), ..RecurrentOptions::default() };
        let RecurrentOutput { y, h_n, c_n } =
            recurrent(Cell::Lstm, input, &self.parameters.weights(), options)?;
        let c_n = c_n.map_or_else(|| h_n.zeros_like(), Ok)?;
        Ok((y, LSTMState::new(h_n.squeeze(0)?, c_n.squeeze(0)?)))
    }
}

/// [`LSTM::new`], as [`candle_nn::lstm`].
///
/// # Errors
/// Those of the builder.
pub fn lstm(in_dim: usize, hidden_dim: usize, config: LSTMConfig, vb: VarBuilder<'_>) -> Result<LSTM> {
    LSTM::new(in_dim, hidden_dim, config, vb)
}

impl RNN for LSTM {
    type State = LSTMState;

    fn zero_state(&self, batch_dim: usize) -> Result<LSTMState> {
        let zeros = self.parameters.zeros(batch_dim)?;
        Ok(LSTMState::new(zeros.clone(), zeros))
    }

    fn step(&self, input: &Tensor, state: &LSTMState) -> Result<LSTMState> {
        Ok(self.sequence(&input.unsqueeze(1)?, Some(state))?.1)
    }

    fn seq_init(&self, input: &Tensor, state: &LSTMState) -> Result<Vec<LSTMState>> {
        let (_, steps, _) = input.dims3()?;
        if steps == 0 {
            return Ok(Vec::new());
        }
        let (h0, c0) = (state.h.unsqueeze(0)?, state.c.unsqueeze(0)?);
        let options = RecurrentOptions { h0: Some(&h0), c0: Some(&c0), ..RecurrentOptions::default() };
        let [y, h_n, c_n, cells] = recurrent::lstm_with_cells(input, &self.parameters.weights(), options)?;
        let mut states = (0..steps - 1)
            .map(|step| Ok(LSTMState::new(step_of(&y, step)?, step_of(&cells, step)?)))
            .collect::<Result<Vec<_>>>()?;
        states.push(LSTMState::new(h_n.squeeze(0)?, c_n.squeeze(0)?));
        Ok(states)
    }

    fn states_to_tensor(&self, states: &[LSTMState]) -> Result<Tensor> {
        let states: Vec<_> = states.iter().map(|state| &state.h).collect();
        Tensor::stack(&states, 1)
    }
}

/// A gated recurrent unit layer with the parameters of [`candle_nn::GRU`] and its names for them.
///
/// [`RNN::seq`] and [`RNN::seq_init`] have all time steps in one operation; [`GRU::sequence`] has them as one tensor.
#[allow(clippy::upper_case_acronyms, reason = "candle's name")]
#[derive(Clone, Debug)]
pub struct GRU {
    parameters: Parameters,
    config: GRUConfig,
}

impl GRU {
    /// A layer whose parameters are `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0` and `bias_hh_l0`.
    ///
    /// # Errors
    /// Those of the builder.
    pub fn new(in_dim: usize, hidden_dim: usize, config: GRUConfig, vb: VarBuilder<'_>) -> Result<Self> {
        let GRUConfig { w_ih_init, w_hh_init, b_ih_init, b_hh_init } = config;
        let inits = (w_ih_init, w_hh_init, b_ih_init, b_hh_init);
        let parameters = Parameters::new(Cell::Gru, [in_dim, hidden_dim], "l0", inits, &vb)?;
        Ok(Self { parameters, config })
    }

    /// Its configuration.
    pub fn config(&self) -> &GRUConfig {
        &self.config
    }

    /// The hidden states of all time steps of `input`, `[batch, steps, features]`, as `[batch, steps, hidden]`, and the last state. The first
    /// state is zero if none is given.
    ///
    /// # Errors
    /// If shapes, element types or devices do not fit.
    pub fn sequence(&self, input: &Tensor, state: Option<&GRUState>) -> Result<(Tensor, GRUState)> {
        let h0 = state.map(|state| state.h.unsqueeze(0)).transpose()?;
        let options = RecurrentOptions { h0: h0.as_ref(), ..RecurrentOptions::default() };
        let RecurrentOutput { y, h_n, .. } =
            recurrent(Cell::Gru, input, &self.parameters.weights(), options)?;
        Ok((y, GRUState { h: h_n.squeeze(0)? }))
    }
}

/// [`GRU::new`], as [`candle_nn::gru`].
///
/// # Errors
/// Those of the builder.
pub fn gru(in_dim: usize, hidden_dim: usize, config: GRUConfig, vb: VarBuilder<'_>) -> Result<GRU> {
    GRU::new(in_dim, hidden_dim, config, vb)
}

impl RNN for GRU {
    type State = GRUState;

    fn zero_state(&self, batch_dim: usize) -> Result<GRUState> {
        Ok(GRUState { h: self.parameters.zeros(batch_dim)? })
    }

    fn step(&self, input: &Tensor, state: &GRUState) -> Result<GRUState> {
        Ok(self.sequence(&input.unsqueeze(1)?, Some(state))?.1)
    }

    fn seq_init(&self, input: &Tensor, state: &GRUState) -> Result<Vec<GRUState>> {
        let (_, steps, _) = input.dims3()?;
        if steps == 0 {
            return Ok(Vec::new());
        }
        let (y, last) = self.sequence(input, Some(state))?;
        let mut states =
            (0..steps - 1).map(|step| Ok(GRUState { h: step_of(&y, step)? })).collect::<Result<Vec<_>>>()?;
        states.push(last);
        Ok(states)
    }

    fn states_to_tensor(&self, states: &[GRUState]) -> Result<Tensor> {
        let states: Vec<_> = states.iter().map(|state| &state.h).collect();
        Tensor::cat(&states, 1)
    }
}
