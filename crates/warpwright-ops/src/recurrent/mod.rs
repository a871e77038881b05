//! Recurrent nets over sequences: LSTM, GRU and the plain cell, forward and backward.
//!
//! For each step, with `x` the input, `h` and `c` the state before:
//!
//! ```text
//! LSTM   i, f, o = sigmoid(W_ih x + b_ih + W_hh h + b_hh)      g = tanh(the same)
//!        c' = f c + i g                                        h' = o tanh(c'), with a projection W_hr (o tanh(c'))
//! GRU    r, z = sigmoid(W_ih x + b_ih + W_hh h + b_hh)         n = tanh(W_in x + b_in + r (W_hn h + b_hn))
//!        h' = (1 - z) n + z h
//! RNN    h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu of it
//! ```
//!
//! Gates lie in the order i, f, g, o or r, z, n along the rows of the weights `[gates hidden, input]` and `[gates hidden, hidden]`
//! and of the biases, as in PyTorch and cuDNN. A projection `W_hr [projection, hidden]` makes hidden states of `projection`
//! elements; `W_hh` is `[gates hidden, projection]` then. Below, `output` is the elements of a hidden state. Sources: Hochreiter
//! and Schmidhuber 1997 with the forget gate of Gers et al. 2000; Sak et al. 2014; Cho et al. 2014, with the reset gate behind
//! the product.
//!
//! Sequences are `[steps, batch, ..]` or `[batch, steps, ..]`. With `directions = 2` a second pass reads them from their ends,
//! and a row of `y` has the units of both. Layers read the `y` of the layer before. With `lengths`, sequence `b` has the
//! first `lengths[b]` time steps: `y` is zero beyond, the last state is that of the last one, and the second direction begins
//! there. The values of `x` and `dy` beyond do not matter to results; for the gradients of the weights it must be finite. Kernels cut
//! lengths to the range from 0 to `steps`; [`check_lengths`] finds such on the host.
//!
//! With `dropout`, elements of the result of a layer are zero at random for the next one, and the others are multiplied by `1 / (1 -
//! dropout)`. Which are depends on `random`, a seed and an offset, on the layer, the time step, the sequence and the element; a
//! backward pass that is given the same numbers drops the same ones.
//!
//! The products of the inputs of all steps are one matrix product whose sums stay in `f32`; the value that a unit hands to its own next
//! step (`c`, or the part of `h` that z keeps) stays in `f32` for the whole sequence (`f64` for `f64`). The hidden state of a step is
//! rounded to the element type before the recurrent weights multiply it, as in `y`.
//!
//! A single step of up to four sequences, of rows of whole 16 bytes, is one launch that reads every weight once; in 16 bits, on
//! tensor cores (sm_80 and later), one of up to 16, or of up to 64 where there are no more than 1024 units.
//!
//! With [`Precision::Tf32`](crate::gemm::Precision::Tf32) products of `f32` are those of factors rounded to `tf32`, forward and backward, wherever there are kernels that
//! are faster for it: the inputs of all time steps, gradients over all of them, projections, single steps that are no launch of their own, and
//! steps in one launch of many sequences. The rest is as exact as without.
//!
//! Where the recurrent weights fit the registers of the multiprocessors, all steps of a pass are one launch, either way
//! ([`tuning::Schedule`]); it needs a device with as many multiprocessors as the grid has blocks, and refuses others before it is
//! launched.
//!
//! # The reserve
//!
//! A forward pass for training saves the state that the backward pass starts from in a tensor of the type of sums (`f64` for `f64`,
//! else `f32`). For each layer and direction, in the order of the weights: the activated gates `[row][gates][hidden]`; then, but
//! for the plain cell, `[row][hidden]`: `c` after the step (LSTM) or `W_hn h + b_hn` (GRU). A row is a time step of a sequence, in
//! the order of `x`. Then, for every layer but the last, its `y` in the element type. Each part begins at a multiple of 16 bytes.
//! The backward pass does not change it.

mod args;
mod cell;
mod cell_functions;
mod desc;
mod functions;
mod gates;
mod persistent;
mod plan;
pub mod reference;
pub(crate) mod samples;
mod step;
pub mod tuning;
mod walk;

use warpwright_ptx::DType;

use crate::plan::small;
pub use args::*;
pub use cell::*;
pub use cell_functions::*;
use desc::refuse;
pub use desc::*;
pub use functions::*;
pub use gates::Cell;

/// The alignment of the parts of a tensor that holds several.
const WIDE: u64 = 16;

/// The type of sums and cells.
fn sums_of(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}
