//! The options of operations, by name and from text, and which operation takes which.
//!
//! An option stands for a field of a descriptor that decides between kernels or launches. Numbers that kernels take as
//! arguments (`eps`, `softmax_scale`, a slope) are no options: the PTX is the same for all of them.

use std::cell::RefCell;
use std::str::FromStr;

use warpwright_ptx::DType;

use crate::activation::Activation;
use crate::attention::Window;
use crate::cross_entropy::Reduction;
use crate::elementwise::Expr;
use crate::pool::Argmax;
use crate::quantize8::Scaling;
use crate::resize::Mode;
use crate::rotary::Pairing;
use crate::softmax::MaskKind;

/// An option by name.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// Its name, with `_` between words.
    pub name: &'static str,
    /// One line for the user.
    pub help: &'static str,
    /// The placeholder for its value in help texts; `None` for an option without one.
    pub value_name: Option<&'static str>,
    /// The words that it takes, where these are few.
    pub values: &'static [&'static str],
    /// Whether values may begin with a minus.
    pub signed: bool,
    /// Options, this one among them, that make a difference to most operations that take it: `"dropout=0.5"`.
    pub example: &'static [&'static str],
    set: fn(&mut OpOptions, &str) -> Result<(), String>,
}

impl OptionSpec {
    /// Whether `text` is a value of the option.
    ///
    /// # Errors
    /// Says which values it takes.
    pub fn check(&self, text: &str) -> Result<(), String> {
        (self.set)(&mut OpOptions::default(), text)
    }

    /// Sets the option from text.
    ///
    /// # Errors
    /// Says which values it takes.
    pub fn set(&self, options: &mut OpOptions, text: &str) -> Result<(), String> {
        (self.set)(options, text)
    }
}

/// A value of an option, from text.
trait OptionValue: Sized {
    /// All words, where these are few.
    const WORDS: &'static [&'static str] = &[];
    /// Whether a value may begin with a minus.
    const SIGNED: bool = false;

    fn parse(text: &str) -> Result<Self, String>;
}

/// Declares the options, and for each the method by which an operation takes it.
macro_rules! op_options {
    ($(#[doc = $doc:literal] $name:ident: $ty:ty $(= $value:literal)?, $example:expr;)*) => {
        /// The options of operations; each operation takes some of them.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct OpOptions {
            $(#[doc = $doc] pub $name: Option<$ty>,)*
        }

        /// All options.
        pub const OPTIONS: &[OptionSpec] = &[$(OptionSpec {
            name: stringify!($name),
            help: $doc,
            value_name: { let name: &[&'static str] = &[$($value)?]; if name.is_empty() { None } else { Some(name[0]) } },
            values: <$ty as OptionValue>::WORDS,
            signed: <$ty as OptionValue>::SIGNED,
            example: &$example,
            set: |options, text| {
                options.$name = Some(OptionValue::parse(text)?);
                Ok(())
            },
        },)*];

        impl OpOptions {
            /// The names of those that were given.
            fn given(&self) -> impl Iterator<Item = &'static str> {
                [$(self.$name.is_some().then_some(stringify!($name)),)*].into_iter().flatten()
            }
        }

        impl Taken<'_> {
            $(#[doc = $doc] pub(crate) fn $name(&self) -> Option<$ty> {
                self.take(stringify!($name), &self.given.$name)
            })*
        }
    };
}

op_options! {
    /// Elements of the main tensor, about; gives the extents that are not named [default: 1048576]
    elements: usize = "N", ["elements=5000"];
    /// Elements that share a scale [default: 64]
    block_size: usize = "N", ["block_size=96"];
    /// Scales are 8-bit codes with scales of their own
    nested: bool, ["nested"];
    /// Samples, sequences or matrices
    batch: usize = "N", ["batch=7"];
    /// Channels of a sample
    channels: usize = "N", ["channels=128"];
    /// Elements of a channel of a sample: the product of height, width and the like
    spatial: usize = "N", ["spatial=100"];
    /// Groups of channels, or of rows of a product
    groups: usize = "N", ["groups=16"];
    /// Channels a window spans
    size: usize = "N", ["size=9"];
    /// Depth, height and width of an image, or the last of them
    image: Extents = "DxHxW", ["image=30x40"];
    /// Channels of the result of a convolution [default: as many as of its input]
    filters: usize = "N", ["filters=48"];
    /// Taps of a kernel along depth, height and width, or along all [default: 3]
    kernel: Extents = "DxHxW", ["kernel=5"];
    /// Extents of the result of an adaptive pooling or of a resized image
    output: Extents = "DxHxW", ["output=7x7"];
    /// Cells of a window along depth, height and width
    window_size: Extents = "DxHxW", ["window_size=3x3"];
    /// Pixels from an output, or a window, to the next
    stride: Extents = "DxHxW", ["stride=2x1"];
    /// Pixels that the first output begins before the image [default: half a kernel; 0 for windows]
    padding: Extents = "DxHxW", ["padding=1x0"];
    /// Pixels from one tap, or cell of a window, to the next
    dilation: Extents = "DxHxW", ["dilation=2x2"];
    /// A last window may end behind the padding
    ceil_mode: bool, ["ceil_mode", "window_size=3x3"];
    /// How it is kept where maxima are from [default: index]
    argmax: Argmax = "HOW", ["argmax=tap"];
    /// How values between cells are found [default: linear]
    mode: Mode = "MODE", ["mode=cubic"];
    /// The first and the last cells of input and output are at the same places
    align_corners: bool, ["align_corners"];
    /// Channels are innermost in memory
    channels_last: bool, ["channels_last"];
    /// Rows; of a softmax the product of the dimensions before the one that it is over
    rows: usize = "N", ["rows=77"];
    /// Elements of a row
    len: usize = "N", ["len=100000"];
    /// The product of the dimensions after the one that a softmax is over
    inner: usize = "N", ["inner=64"];
    /// Each sum is without its own element
    exclusive: bool, ["exclusive"];
    /// Sums go from the last element to the first
    reverse: bool, ["reverse"];
    /// Without weight and bias
    no_affine: bool, ["no_affine"];
    /// A tensor is added: to `x` of a norm over rows, to the result of a convolution or a batch norm; backward of norms, its gradient
    residual: bool, ["residual"];
    /// Mean and rstd are saved for the gradient
    statistics: bool, ["statistics"];
    /// Running statistics are updated
    track_running_stats: bool, ["track_running_stats"];
    /// Type of weight, bias and statistics of a batch norm: that of the tensor, or f32
    parameter_dtype: FloatDType = "DTYPE", ["parameter_dtype=f32"];
    /// A ReLU follows
    relu: bool, ["relu"];
    /// A SiLU follows
    silu: bool, ["silu"];
    /// Type that elements are cast to [default: f32, or bf16 from f32]
    to: FloatDType = "DTYPE", ["to=f64"];
    /// An expression of x0, x1, .. and numbers s0, s1, .. [default: add(x0, x1)]
    expr: Expr = "EXPR", ["expr=silu(add(x0, mul(s0, x1)))"];
    /// How the last input of an expression is broadcast to rows of `len` elements
    broadcast: Broadcast = "HOW", ["broadcast=row"];
    /// Rows of the product
    m: usize = "N", ["m=1000"];
    /// Columns of the product
    n: usize = "N", ["n=1000"];
    /// The elements that share a scale of 8-bit codes [default: row]
    scaling: Scaling = "SCALING", ["scaling=1x128"];
    /// The common dimension of a product
    k: usize = "N", ["k=100000"];
    /// Which of `a` and `b` is transposed (t) and which is not (n) [default: nt]
    transpose: Transpose = "AB", ["transpose=tn"];
    /// `beta c` is added to a product, with this `beta`
    beta: f64 = "X", ["beta=1"];
    /// A bias is added: of a product to every row, of attention to the scores
    bias: bool, ["bias"];
    /// Each channel of the result of a convolution has a factor; it and the bias are of f32, or f64 for f64
    scale: bool, ["scale"];
    /// The sums of the rows of the left factor of a product are stored, too
    bias_gradient: bool, ["bias_gradient"];
    /// Both products of a gated linear unit are stored, too
    saved: bool, ["saved"];
    /// The function of a product, or of a gate
    activation: Activation = "OP", ["activation=gelu_tanh"];
    /// Sums of products of 8-bit floats stay in the tensor cores
    fast_accumulation: bool, ["fast_accumulation"];
    /// Products of f32 are rounded to tf32
    tf32: bool, ["tf32"];
    /// Queries of a sequence
    queries: usize = "N", ["queries=1"];
    /// Keys of a sequence [default: as many as queries]
    keys: usize = "N", ["keys=333"];
    /// Heads of the queries
    heads: usize = "N", ["heads=4"];
    /// Heads of keys and values [default: as many as of the queries]
    num_kv_heads: usize = "N", ["num_kv_heads=2"];
    /// Elements of a head [default: 128]
    head_dim: usize = "N", ["head_dim=32"];
    /// Elements of a head of the values [default: as many as of the queries]
    value_head_dim: usize = "N", ["value_head_dim=64"];
    /// A query sees no key after its position
    causal: bool, ["causal"];
    /// A query sees so many keys before and after its position; -1 is all
    window: Window = "LEFT,RIGHT", ["window=-1,64"];
    /// `score = softcap tanh(score / softcap)`
    softcap: f64 = "X", ["softcap=30"];
    /// Each head has a slope on the distance of query and key
    alibi: bool, ["alibi"];
    /// Each sequence has a number of keys of its own
    key_lengths: bool, ["key_lengths"];
    /// So many sequences lie one after the other in the rows of queries and keys
    sequences: usize = "N", ["sequences=5"];
    /// Keys and values lie in pages of so many rows
    page_size: usize = "N", ["page_size=64", "queries=1", "keys=4096"];
    /// Keys and values of the cache are of e4m3, with scales
    float8_cache: bool, ["float8_cache", "queries=1", "keys=4096"];
    /// Each head has a logit that takes part in the sum of exponentials alone
    sinks: bool, ["sinks"];
    /// The probability that an element is dropped
    dropout: f64 = "P", ["dropout=0.5"];
    /// Classes of a row
    classes: usize = "N", ["classes=128000"];
    /// Type of target classes, indices or positions: i64 or i32 [default: i64; no positions]
    index_dtype: IndexDType = "DTYPE", ["index_dtype=i32"];
    /// Which elements of a head are rotated together [default: half]
    pairing: Pairing = "PAIRING", ["pairing=interleaved"];
    /// Elements of a head that are rotated [default: all]
    rotary_dim: usize = "N", ["rotary_dim=64"];
    /// Type of cosines and sines: that of the tensor, or f32
    table_dtype: FloatDType = "DTYPE", ["table_dtype=f32"];
    /// Tables have each number twice, where the elements of its pair are
    repeated_tables: bool, ["repeated_tables", "pairing=interleaved"];
    /// The share of the target distribution that is spread over all classes
    label_smoothing: f64 = "X", ["label_smoothing=0.1"];
    /// Reduction of the losses of the rows [default: mean]
    reduction: Reduction = "REDUCTION", ["reduction=none"];
    /// A mask of the scores of a softmax, of their shape
    mask: MaskKind = "KIND", ["mask=boolean"];
    /// Each index has a factor of this type: that of the tensor, or f32
    factors: FloatDType = "DTYPE", ["factors=f32"];
    /// Time steps
    steps: usize = "N", ["steps=7"];
    /// Elements of the input of a step
    input: usize = "N", ["input=300"];
    /// Units of a layer and direction
    hidden: usize = "N", ["hidden=300"];
    /// Elements that the hidden states of an LSTM are projected to
    projection: usize = "N", ["projection=32"];
    /// Layers
    layers: usize = "N", ["layers=2"];
    /// A second direction reads sequences from their ends
    bidirectional: bool, ["bidirectional"];
    /// Tensors are `[batch, steps, ..]`
    batch_first: bool, ["batch_first", "batch=2"];
    /// Biases of a layer: 0, 1 (`b_ih`) or 2 (`b_ih` and `b_hh`) [default: 2]
    biases: BiasCount = "N", ["biases=0"];
    /// The function of an rnn [default: tanh]
    nonlinearity: Nonlinearity = "OP", ["nonlinearity=relu"];
    /// Each sequence has a length of its own
    lengths: bool, ["lengths"];
    /// Taps of a filter [default: 4]
    width: usize = "N", ["width=3"];
    /// States precede the samples, and their last positions are wanted
    states: bool, ["states"];
    /// Each position has the number of its sequence
    seq_idx: bool, ["seq_idx"];
    /// Statistics, or states, are saved for the gradient
    training: bool, ["training"];
    /// Numbers in the state of a channel [default: 16]
    state_size: usize = "N", ["state_size=64"];
    /// The result has a gate
    gate: bool, ["gate"];
}

/// A type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloatDType(pub DType);

impl FromStr for FloatDType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let dtype = DType::from_name(text).filter(|dtype| DType::FLOATS.contains(dtype));
        dtype.map(Self).ok_or_else(|| "expected f32, f64, f16 or bf16".to_owned())
    }
}

/// A type of indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexDType(pub DType);

/// Numbers along depth, height and width, or along the last one or two of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extents(pub Vec<usize>);

impl Extents {
    /// One for each of three dimensions, `other` for those that are not given.
    pub(crate) fn three(&self, other: usize) -> [usize; 3] {
        let mut three = [other; 3];
        let given = self.0.iter().rev().zip(three.iter_mut().rev());
        given.for_each(|(given, of)| *of = *given);
        three
    }
}

/// A number of biases: 0 to 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BiasCount(pub u8);

/// Which operand of a product is stored transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transpose {
    /// `a` is.
    pub a: bool,
    /// `b` is, as a linear layer stores its weight.
    pub b: bool,
}

/// How a tensor is broadcast to a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broadcast {
    /// It is a row.
    Row,
    /// It is a column.
    Column,
}

/// The function of a plain recurrent net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nonlinearity {
    /// tanh
    Tanh,
    /// relu
    Relu,
}

impl OptionValue for bool {
    const WORDS: &'static [&'static str] = &["true", "false"];

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| "expected true or false".to_owned())
    }
}

impl OptionValue for usize {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|e: std::num::ParseIntError| e.to_string())
    }
}

impl OptionValue for f64 {
    const SIGNED: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|e: std::num::ParseFloatError| e.to_string())
    }
}

impl OptionValue for FloatDType {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse()
    }
}

impl OptionValue for IndexDType {
    fn parse(text: &str) -> Result<Self, String> {
        let dtype = DType::from_name(text).filter(|dtype| [DType::I64, DType::I32].contains(dtype));
        dtype.map(Self).ok_or_else(|| "expected i64 or i32".to_owned())
    }
}

impl OptionValue for Extents {
    fn parse(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<usize>, _> = text.split('x').map(str::parse).collect();
        let numbers = numbers.ok().filter(|numbers| numbers.len() <= 3);
        numbers.map(Self).ok_or_else(|| "expected one to three numbers with x between them".to_owned())
    }
}

impl OptionValue for BiasCount {
    fn parse(text: &str) -> Result<Self, String> {
        let count = text.parse().ok().filter(|count| *count <= 2);
        count.map(Self).ok_or_else(|| "expected 0, 1 or 2".to_owned())
    }
}

impl OptionValue for Expr {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: crate::elementwise::ExprError| error.to_string())
    }
}

impl OptionValue for Activation {
    fn parse(text: &str) -> Result<Self, String> {
        Self::from_name(text).ok_or_else(|| "expected relu, gelu_tanh, silu or the like".to_owned())
    }
}

impl OptionValue for Window {
    const SIGNED: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        let bound = |text: &str| match text.trim() {
            "-1" => Ok(None),
            number => {
                number.parse().map(Some).map_err(|_| format!("{text:?} is neither a number of keys nor -1"))
            }
        };
        let (left, right) = text.split_once(',').ok_or("expected LEFT,RIGHT")?;
        Ok(Self { left: bound(left)?, right: bound(right)? })
    }
}

/// Implements [`OptionValue`] for a type of few values.
macro_rules! words {
    ($ty:ty { $($word:literal => $value:expr,)* }) => {
        impl OptionValue for $ty {
            const WORDS: &'static [&'static str] = &[$($word),*];

            fn parse(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok($value),)*
                    _ => Err(format!("expected one of {}", Self::WORDS.join(", "))),
                }
            }
        }
    };
}

words!(Transpose {
    "nn" => Self { a: false, b: false },
    "nt" => Self { a: false, b: true },
    "tn" => Self { a: true, b: false },
    "tt" => Self { a: true, b: true },
});
words!(Reduction { "none" => Self::None, "mean" => Self::Mean, "sum" => Self::Sum, });
words!(Scaling {
    "tensor" => Self::TensorWise,
    "row" => Self::RowWise,
    "1x128" => Self::BlockWise1x128,
    "128x128" => Self::BlockWise128x128,
    "static" => Self::Static,
});
words!(Argmax { "none" => Self::None, "index" => Self::Index, "tap" => Self::Tap, });
words!(Mode {
    "nearest" => Self::Nearest,
    "nearest_exact" => Self::NearestExact,
    "linear" => Self::Linear,
    "cubic" => Self::Cubic,
});
words!(Pairing { "half" => Self::Half, "interleaved" => Self::Interleaved, });
words!(MaskKind { "additive" => Self::Additive, "boolean" => Self::Boolean, });
words!(Broadcast { "row" => Self::Row, "column" => Self::Column, });
words!(Nonlinearity { "tanh" => Self::Tanh, "relu" => Self::Relu, });

/// Options on their way to an operation: remembers which it asked for.
#[derive(Debug)]
pub struct Taken<'a> {
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

    /// The first option that was given and not asked for.
    pub(super) fn left(&self) -> Option<&'static str> {
        let asked = self.asked.borrow();
        self.given.given().find(|name| !asked.contains(name))
    }

    /// The names of what was asked for.
    pub(super) fn asked(&self) -> Vec<&'static str> {
        self.asked.borrow().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_asked_for_is_left() {
        let given = OpOptions { batch: Some(3), causal: Some(true), ..OpOptions::default() };
        let taken = Taken::new(&given);
        assert_eq!((taken.batch(), taken.m()), (Some(3), None));
        assert_eq!((taken.left(), taken.asked()), (Some("causal"), vec!["batch", "m"]));
        assert_eq!(taken.causal(), Some(true));
        assert_eq!(taken.left(), None);
    }

    #[test]
    fn windows_have_two_bounds() {
        assert_eq!(Window::parse("128,0"), Ok(Window { left: Some(128), right: Some(0) }));
        assert_eq!(Window::parse("-1, 5"), Ok(Window { left: None, right: Some(5) }));
        for bad in ["", "5", "1,2,3", "-2,0", "a,b", "99999999999,0"] {
            assert!(Window::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_example_names_its_option_first_and_has_values_that_it_takes() {
        for option in OPTIONS {
            for (index, example) in option.example.iter().enumerate() {
                let (name, value) = example.split_once('=').unwrap_or((example, "true"));
                let named = OPTIONS.iter().find(|o| o.name == name).expect(example);
                assert_eq!(index == 0, named.name == option.name, "{example}");
                assert_eq!(named.check(value), Ok(()), "{example}");
            }
        }
    }

    #[test]
    fn words_that_an_option_does_not_take_are_told_what_it_takes() {
        let transpose = OPTIONS.iter().find(|o| o.name == "transpose").expect("an option of products");
        assert_eq!(transpose.check("xx"), Err("expected one of nn, nt, tn, tt".to_owned()));
        let biases = OPTIONS.iter().find(|o| o.name == "biases").expect("an option of recurrent nets");
        assert_eq!(biases.check("3"), Err("expected 0, 1 or 2".to_owned()));
    }
}
