//! The options of operations as flags, and which operation takes which.
//!
//! A flag stands for a field of a descriptor that decides between kernels or launches. Numbers that kernels take as
//! arguments (`eps`, `softmax_scale`, a slope) are no options: the PTX is the same for all of them.

use std::cell::RefCell;

use clap::{Args, ValueEnum};
use warpwright_ops::Direction;
use warpwright_ops::activation::Activation;
use warpwright_ops::attention::Window;
use warpwright_ptx::DType;

use crate::error::Error;

/// Declares the flags, and for each the method by which an operation takes it.
macro_rules! op_options {
    ($($(#[doc = $doc:tt])* [$($arg:tt)*] $name:ident: $ty:ty,)*) => {
        /// The options of operations; each operation takes some of them.
        #[derive(Args, Clone, Debug, Default, PartialEq)]
        #[command(next_help_heading = "Options of operations")]
        pub struct OpOptions {
            $($(#[doc = $doc])* #[arg(long, $($arg)*)] pub $name: Option<$ty>,)*
        }

        impl OpOptions {
            /// The names of those that were given.
            fn given(&self) -> impl Iterator<Item = &'static str> {
                [$(self.$name.is_some().then_some(stringify!($name)),)*].into_iter().flatten()
            }
        }

        impl Taken<'_> {
            $($(#[doc = $doc])* pub(crate) fn $name(&self) -> Option<$ty> {
                self.take(stringify!($name), &self.given.$name)
            })*
        }
    };
}

op_options! {
    /// Elements of the main tensor, about; gives the extents that are not named [default: 1048576].
    [value_name = "N"] elements: usize,
    /// Elements that share a scale [default: 64].
    [value_name = "N"] block_size: usize,
    /// Samples, sequences or matrices.
    [value_name = "N"] batch: usize,
    /// Channels of a sample.
    [value_name = "N"] channels: usize,
    /// Elements of a channel of a sample: the product of height, width and the like.
    [value_name = "N"] spatial: usize,
    /// Groups of channels.
    [value_name = "N"] groups: usize,
    /// Channels a window spans.
    [value_name = "N"] size: usize,
    /// Channels are innermost in memory.
    [num_args = 0, default_missing_value = "true"] channels_last: bool,
    /// Rows; of a softmax the product of the dimensions before the one that it is over.
    [value_name = "N"] rows: usize,
    /// Elements of a row.
    [value_name = "N"] len: usize,
    /// The product of the dimensions after the one that a softmax is over.
    [value_name = "N"] inner: usize,
    /// Without weight and bias.
    [num_args = 0, default_missing_value = "true"] no_affine: bool,
    /// A tensor is added: to `x` of a norm over rows, to the result of a batch norm; backward, its gradient.
    [num_args = 0, default_missing_value = "true"] residual: bool,
    /// Mean and rstd are saved for the gradient.
    [num_args = 0, default_missing_value = "true"] statistics: bool,
    /// Running statistics are updated.
    [num_args = 0, default_missing_value = "true"] track_running_stats: bool,
    /// Type of weight, bias and statistics of a batch norm: that of the tensor, or f32.
    [value_name = "DTYPE", value_parser = super::args::parse_float_dtype] parameter_dtype: DType,
    /// A ReLU follows.
    [num_args = 0, default_missing_value = "true"] relu: bool,
    /// A SiLU follows.
    [num_args = 0, default_missing_value = "true"] silu: bool,
    /// Rows of the product.
    [value_name = "N"] m: usize,
    /// Columns of the product.
    [value_name = "N"] n: usize,
    /// The common dimension of a product.
    [value_name = "N"] k: usize,
    /// Which of `a` and `b` is transposed (t) and which is not (n) [default: nt].
    [value_enum, value_name = "AB"] transpose: Transpose,
    /// `beta c` is added to a product, with this `beta`.
    [value_name = "X", allow_hyphen_values = true] beta: f64,
    /// A bias is added: of a product to every row, of attention to the scores.
    [num_args = 0, default_missing_value = "true"] bias: bool,
    /// The function of a product.
    [value_name = "OP", value_parser = parse_activation] activation: Activation,
    /// Products of f32 are rounded to tf32.
    [num_args = 0, default_missing_value = "true"] tf32: bool,
    /// Queries of a sequence.
    [value_name = "N"] queries: usize,
    /// Keys of a sequence [default: as many as queries].
    [value_name = "N"] keys: usize,
    /// Heads of the queries.
    [value_name = "N"] heads: usize,
    /// Heads of keys and values [default: as many as of the queries].
    [value_name = "N"] num_kv_heads: usize,
    /// Elements of a head [default: 128].
    [value_name = "N"] head_dim: usize,
    /// Elements of a head of the values [default: as many as of the queries].
    [value_name = "N"] value_head_dim: usize,
    /// A query sees no key after its position.
    [num_args = 0, default_missing_value = "true"] causal: bool,
    /// A query sees so many keys before and after its position; -1 is all.
    [value_name = "LEFT,RIGHT", allow_hyphen_values = true, value_parser = parse_window] window: Window,
    /// `score = softcap tanh(score / softcap)`
    [value_name = "X"] softcap: f64,
    /// Each head has a slope on the distance of query and key.
    [num_args = 0, default_missing_value = "true"] alibi: bool,
    /// Each sequence has a number of keys of its own.
    [num_args = 0, default_missing_value = "true"] key_lengths: bool,
    /// So many sequences lie one after the other in the rows of queries and keys.
    [value_name = "N"] sequences: usize,
    /// Keys and values lie in pages of so many rows.
    [value_name = "N"] page_size: usize,
    /// Each head has a logit that takes part in the sum of exponentials alone.
    [num_args = 0, default_missing_value = "true"] sinks: bool,
    /// The probability that an element is dropped.
    [value_name = "P"] dropout: f64,
    /// Classes of a row.
    [value_name = "N"] classes: usize,
    /// Type of the target classes: i64 or i32 [default: i64].
    [value_name = "DTYPE", value_parser = parse_index_dtype] index_dtype: DType,
    /// The share of the target distribution that is spread over all classes.
    [value_name = "X"] label_smoothing: f64,
    /// Reduction of the losses of the rows [default: mean].
    [value_enum] reduction: Reduction,
    /// A mask of the scores of a softmax, of their shape.
    [value_enum, value_name = "KIND"] mask: Mask,
    /// Time steps.
    [value_name = "N"] steps: usize,
    /// Elements of the input of a step.
    [value_name = "N"] input: usize,
    /// Units of a layer and direction.
    [value_name = "N"] hidden: usize,
    /// Elements that the hidden states of an LSTM are projected to.
    [value_name = "N"] projection: usize,
    /// Layers.
    [value_name = "N"] layers: usize,
    /// A second direction reads sequences from their ends.
    [num_args = 0, default_missing_value = "true"] bidirectional: bool,
    /// Tensors are `[batch, steps, ..]`.
    [num_args = 0, default_missing_value = "true"] batch_first: bool,
    /// Biases of a layer: 0, 1 (`b_ih`) or 2 (`b_ih` and `b_hh`) [default: 2].
    [value_name = "N", value_parser = clap::value_parser!(u8).range(0..=2)] biases: u8,
    /// The function of an rnn [default: tanh].
    [value_enum, value_name = "OP"] nonlinearity: Nonlinearity,
    /// Each sequence has a length of its own.
    [num_args = 0, default_missing_value = "true"] lengths: bool,
    /// Statistics are saved for the gradient.
    [num_args = 0, default_missing_value = "true"] training: bool,
}

/// Which operand of a product is stored transposed, in the words of BLAS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transpose {
    /// Neither.
    Nn,
    /// `b`, as a linear layer stores its weight.
    Nt,
    /// `a`.
    Tn,
    /// Both.
    Tt,
}

/// Reduction of the losses of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Reduction {
    /// Each is a result.
    None,
    /// Their mean.
    Mean,
    /// Their sum.
    Sum,
}

/// The elements of a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mask {
    /// Numbers that are added.
    Additive,
    /// Bytes, 0 for what does not take part.
    Boolean,
}

/// The function of a plain recurrent net.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Nonlinearity {
    /// tanh
    Tanh,
    /// relu
    Relu,
}

/// Options on their way to an operation: remembers which it asked for.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    given: &'a OpOptions,
    asked: RefCell<Vec<&'static str>>,
}

impl<'a> Taken<'a> {
    /// Nothing was asked for yet.
    pub(crate) const fn new(given: &'a OpOptions) -> Self {
        Self { given, asked: RefCell::new(Vec::new()) }
    }

    fn take<T: Clone>(&self, name: &'static str, value: &Option<T>) -> Option<T> {
        self.asked.borrow_mut().push(name);
        value.clone()
    }

    /// The operation has asked for everything that it takes: nothing else may have been given.
    ///
    /// # Errors
    /// [`Error::OpOption`] names the first one that the operation does not have.
    pub(crate) fn finish(&self, op: &str, direction: Direction) -> Result<(), Error> {
        let asked = self.asked.borrow();
        match self.given.given().find(|name| !asked.contains(name)) {
            None => Ok(()),
            Some(option) => {
                Err(Error::OpOption { op: op.to_owned(), direction, option, takes: asked.clone() })
            }
        }
    }

    /// The names of what was asked for.
    #[cfg(test)]
    pub(crate) fn asked(&self) -> Vec<&'static str> {
        self.asked.borrow().clone()
    }
}

fn parse_activation(text: &str) -> Result<Activation, String> {
    Activation::from_name(text).ok_or_else(|| "expected relu, gelu_tanh, silu or the like".to_owned())
}

fn parse_index_dtype(text: &str) -> Result<DType, String> {
    let dtype = DType::from_name(text).filter(|dtype| [DType::I64, DType::I32].contains(dtype));
    dtype.ok_or_else(|| "expected i64 or i32".to_owned())
}

fn parse_window(text: &str) -> Result<Window, String> {
    let bound = |text: &str| match text.trim() {
        "-1" => Ok(None),
        number => {
            number.parse().map(Some).map_err(|_| format!("{text:?} is neither a number of keys nor -1"))
        }
    };
    let (left, right) = text.split_once(',').ok_or("expected LEFT,RIGHT")?;
    Ok(Window { left: bound(left)?, right: bound(right)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_asked_for_is_refused_with_what_would_do() {
        let given = OpOptions { batch: Some(3), causal: Some(true), ..OpOptions::default() };
        let taken = Taken::new(&given);
        assert_eq!((taken.batch(), taken.m()), (Some(3), None));
        let error = taken.finish("gemm", Direction::Forward).expect_err("gemm is not causal");
        assert!(
            matches!(&error, Error::OpOption { option: "causal", takes, .. } if takes == &["batch", "m"]),
            "{error:?}"
        );
        assert_eq!(error.to_string(), "gemm (forward) has no option --causal");
        assert_eq!(error.help().as_deref(), Some("it takes --batch, --m"));
        assert_eq!(taken.causal(), Some(true));
        assert!(taken.finish("gemm", Direction::Forward).is_ok());
    }

    #[test]
    fn windows_have_two_bounds() {
        assert_eq!(parse_window("128,0"), Ok(Window { left: Some(128), right: Some(0) }));
        assert_eq!(parse_window("-1, 5"), Ok(Window { left: None, right: Some(5) }));
        for bad in ["", "5", "1,2,3", "-2,0", "a,b", "99999999999,0"] {
            assert!(parse_window(bad).is_err(), "{bad}");
        }
    }
}
