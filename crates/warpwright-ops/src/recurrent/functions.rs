//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::{LstmArgs, LstmDesc, OP};
use crate::plan::PlanCache;
use crate::{Error, PlanError};

/// The weights of a layer.
#[derive(Clone, Copy, Debug)]
pub struct LstmWeights<'a> {
    /// `[4 hidden, input]`
    pub w_ih: &'a Tensor,
    /// `[4 hidden, hidden]`
    pub w_hh: &'a Tensor,
    /// `b_ih` and `b_hh`, `[4 hidden]` each.
    pub bias: Option<(&'a Tensor, &'a Tensor)>,
}

/// What a sequence gives.
#[derive(Debug)]
pub struct LstmOutput {
    /// The hidden state of every step, `[steps, batch, hidden]`.
    pub y: Tensor,
    /// That of the last step, `[batch, hidden]`.
    pub h_n: Tensor,
    /// The cells of the last step, `[batch, hidden]`.
    pub c_n: Tensor,
}

/// An LSTM over `x`, `[steps, batch, input]`, from the state `(h0, c0)`, `[batch, hidden]` each, or from zero.
///
/// # Errors
/// The shapes do not fit each other, the element type is not supported, or memory runs out.
pub fn lstm(
    stream: &Stream,
    x: &Tensor,
    weights: LstmWeights<'_>,
    state: Option<(&Tensor, &Tensor)>,
) -> Result<LstmOutput, Error> {
    static PLANS: PlanCache<LstmDesc> = PlanCache::new();
    let refuse = |parameter, shape: &[usize], expected| {
        Error::Plan(PlanError::Parameter { op: OP, parameter, got: format!("{shape:?}"), expected })
    };
    let &[steps, batch, input] = x.shape() else {
        return Err(refuse("x", x.shape(), "of three dimensions: steps, batch, input"));
    };
    let &[rows, hidden] = weights.w_hh.shape() else {
        return Err(refuse("w_hh", weights.w_hh.shape(), "of two dimensions: 4 hidden, hidden"));
    };
    if hidden.checked_mul(super::GATES) != Some(rows) {
        return Err(refuse("w_hh", weights.w_hh.shape(), "of four rows a unit"));
    }
    if weights.w_ih.shape() != [rows, input] {
        return Err(refuse("w_ih", weights.w_ih.shape(), "of the rows of w_hh and the elements of an input"));
    }
    let given = state.is_some();
    let bias = weights.bias.is_some();
    let desc = LstmDesc { dtype: x.dtype(), steps, batch, input, hidden, bias, h0: given, c0: given };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let empty = |shape: &[usize]| Tensor::empty_on(stream, x.dtype(), shape);
    let mut y = empty(&[steps, batch, hidden])?;
    let (mut h_n, mut c_n) = (empty(&[batch, hidden])?, empty(&[batch, hidden])?);
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        LstmArgs {
            x: x.as_ref(),
            w_ih: weights.w_ih.as_ref(),
            w_hh: weights.w_hh.as_ref(),
            b_ih: weights.bias.map(|(ih, _)| ih.as_ref()),
            b_hh: weights.bias.map(|(_, hh)| hh.as_ref()),
            h0: state.map(|(h, _)| h.as_ref()),
            c0: state.map(|(_, c)| c.as_ref()),
            y: y.as_mut(),
            h_n: h_n.as_mut(),
            c_n: c_n.as_mut(),
            workspace: workspace.as_mut().map(Tensor::as_mut),
        },
    )?;
    Ok(LstmOutput { y, h_n, c_n })
}
