//! Elementwise expressions: one launch for a chain of operations, with broadcasting, on tensors of mixed element types.
//!
//! An [`Expr`] says what becomes of the elements of up to six inputs at one place; a launch computes up to three of them, each into an
//! output of its own. Inputs are broadcast to the shape of the outputs as in PyTorch: dimensions are matched from the last one on, and
//! one that is 1 or absent is repeated. Inputs may have strides; outputs are contiguous.
//!
//! | in text | value |
//! |---|---|
//! | `x0`, `x1`, .. | the element of an input |
//! | `s0`, `s1`, .. | a number that the launch is given, which is not part of the kernel |
//! | `0.5`, `inf` | a number that is part of the kernel |
//! | `neg`, `abs`, `square`, `reciprocal`, `sqrt`, `rsqrt`, `exp`, `log` | as their names say |
//! | `relu`, `sigmoid`, `tanh`, `silu`, `gelu_erf`, `gelu_tanh`, `softplus` | the [activations](crate::activation), `softplus` with beta 1 |
//! | `silu_derivative`, `gelu_erf_derivative`, `gelu_tanh_derivative` | the derivatives of three of them |
//! | `add`, `sub`, `mul`, `div` of two | rounded one by one |
//! | `minimum`, `maximum` of two | NaN if either is NaN |
//! | `lt`, `le`, `gt`, `ge`, `eq`, `ne` of two | 1 or 0; with NaN only `ne` is 1 |
//! | `where` of three | the second where the first is not 0, else the third; all are computed |
//! | `dropout` | 0 where the element is dropped, else its argument divided by `1 - probability` |
//!
//! Tensors are f32, f64, f16 or bf16, each of its own type, or u8: an input of it is read as a number, a mask in `where`; an output
//! of it gets 1 where the expression is not 0, else 0. Everything is computed in f64 if one of the types is, else in f32, and rounded once.
//! Where all results are of 16 bits, exponentials and activations are as exact as these need.
//!
//! Dropout numbers its elements as they follow each other in the output, so that [`dropout_backward`] drops what [`dropout`] dropped.
//! A dropped element gives 0 even if it is NaN. All dropouts of a launch drop the same elements.
//!
//! An output may replace an input of its type and shape exactly; any other overlap is an error.

mod expr;
mod functions;
mod kernel;
mod math;
mod parse;
pub mod reference;
pub(crate) mod samples;
pub mod tuning;
pub(crate) mod walk;

use warpwright_dsl::{In, KernelArgs, Out};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{LaunchStep, TensorMut, TensorRef};

use crate::plan::{self, Operation, Plan, Real, TensorSpec, Variant, View, small};
use crate::tensors::Arguments;
use crate::{Binding, Direction, Dropout, PlanError};

pub use expr::{Binary, Expr, ExprError, MAX_INPUTS, MAX_NODES, MAX_OUTPUTS, MAX_SCALARS, Unary};
pub use functions::*;
use kernel::{Common, Flat, FlatArgs, Strided, StridedArgs, TensorArgs};
use tuning::{MAX_ELEMENTS, MAX_VECTORS};
pub use walk::broadcast_shape;
use walk::{Reading, Walk};

/// The name in the catalogue.
const OP: &str = "elementwise";

/// Types of elements.
const DTYPES: [DType; 5] = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::U8];

/// Names of the tensors.
const INPUTS: [&str; MAX_INPUTS] = ["x0", "x1", "x2", "x3", "x4", "x5"];
const OUTPUTS: [&str; MAX_OUTPUTS] = ["y0", "y1", "y2"];

/// `y = f(x0, x1, ..)` for each output, elementwise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ElementwiseDesc {
    /// The expression of each output.
    pub outputs: Vec<Expr>,
    /// Element type of each output.
    pub dtypes: Vec<DType>,
    /// Shape of every output.
    pub shape: Vec<usize>,
    /// The inputs.
    pub inputs: Vec<InputDesc>,
    /// The numbers `s0`, `s1`, .. of the expressions.
    pub scalars: Vec<Real>,
    /// The probability that an element is dropped, if one of the expressions has `dropout`.
    pub dropout: Option<Real>,
}

/// An input of [`ElementwiseDesc`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InputDesc {
    /// Element type.
    pub dtype: DType,
    /// Shape and strides.
    pub view: View,
}

/// Where the elements of an input are.
#[derive(Debug)]
pub enum Operand<'a> {
    /// In a tensor.
    Tensor(TensorRef<'a>),
    /// In the output of that number, which replaces them.
    Output(usize),
}

impl<'a> From<TensorRef<'a>> for Operand<'a> {
    fn from(x: TensorRef<'a>) -> Self {
        Self::Tensor(x)
    }
}

/// Tensors of [`ElementwiseDesc`].
#[derive(Debug)]
pub struct ElementwiseArgs<'a> {
    /// The inputs in order.
    pub inputs: Vec<Operand<'a>>,
    /// Seed and offset of dropout on the device, `[2]` in i64.
    pub random: Option<TensorRef<'a>>,
    /// The outputs in order.
    pub outputs: Vec<TensorMut<'a>>,
}

impl<'a> Arguments<'a> for ElementwiseArgs<'a> {
    fn bindings(self) -> Vec<Binding<'a>> {
        let first = self.inputs.len() + 1;
        let inputs = self.inputs.into_iter().map(|input| match input {
            Operand::Tensor(x) => Binding::Input(x),
            Operand::Output(output) => Binding::InPlace { output: first.saturating_add(output) },
        });
        inputs.chain([self.random.into()]).chain(self.outputs.into_iter().map(Binding::Output)).collect()
    }
}

impl Operation for ElementwiseDesc {
    type Args<'a> = ElementwiseArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let tensors = self.check()?;
        let views: Vec<_> = INPUTS.into_iter().zip(self.inputs.iter().map(|input| input.view)).collect();
        let walk = Walk::new(OP, &self.shape, &views)?;
        let readings = walk.readings();
        let side_by_side = |reading| matches!(reading, Reading::Contiguous | Reading::Row);
        let inputs: Vec<_> = self.inputs.iter().map(|input| input.dtype).zip(readings).collect();
        let vectors = inputs.iter().filter(|(_, reading)| side_by_side(*reading)).map(|(dtype, _)| *dtype);
        let vectors: Vec<_> = vectors.chain(self.dtypes.iter().copied()).collect();
        let widest = tuning::width(vectors.iter().copied());
        let width = if walk.is_flat() { widest } else { walk.vector(widest) };
        let mut variants = Vec::new();
        for config in tuning::configs(width) {
            let (outputs, dtypes) = (self.outputs.clone(), self.dtypes.clone());
            let common = Common { outputs, inputs: inputs.clone(), dtypes, config };
            let of_vectors = vectors.iter().map(|dtype| config.alignment(*dtype)).max().unwrap_or(1);
            // Single elements are where they are.
            let alignment = if config.width == 1 { 1 } else { of_vectors };
            variants.push(Variant { alignment, steps: self.steps(&walk, common, target)? });
        }
        Ok(Plan::of(OP, Direction::Forward, target, tensors, variants))
    }
}

impl ElementwiseDesc {
    /// The tensors, if there is a plan for them.
    fn check(&self) -> Result<Vec<TensorSpec>, PlanError> {
        let Self { outputs, dtypes, shape, inputs, scalars, dropout } = self;
        expr::check(outputs, inputs.len(), scalars.len(), dropout.is_some())
            .map_err(|source| PlanError::Expression { op: OP, source })?;
        if dtypes.len() != outputs.len() {
            let got = format!("{} types for {} outputs", dtypes.len(), outputs.len());
            return Err(PlanError::refused(OP, "dtypes", got, "one for each output"));
        }
        let rank = || PlanError::refused(OP, "shape", format!("{shape:?}"), "of at most 8 dimensions");
        let view = View::contiguous(shape).ok_or_else(rank)?;
        let large = |shape: &[usize]| {
            let expected = "of at most 2^44 elements";
            PlanError::refused(OP, "shape", format!("{shape:?}"), expected)
        };
        let len = |view: &View| {
            let len = view.elements().filter(|len| *len as u64 <= MAX_ELEMENTS);
            len.ok_or_else(|| large(view.shape()))
        };
        let mut tensors = Vec::new();
        for (name, InputDesc { dtype, view }) in INPUTS.into_iter().zip(inputs) {
            tensors.push(TensorSpec::read(name, *dtype, len(view)?).viewed(*view));
        }
        tensors.push(TensorSpec::read("random", DType::I64, 2).optional(dropout.is_some()));
        for (name, dtype) in OUTPUTS.into_iter().zip(dtypes) {
            tensors.push(TensorSpec::write(name, *dtype, len(&view)?).in_place().viewed(view));
        }
        let other = tensors.iter().find(|spec| spec.name != "random" && !DTYPES.contains(&spec.dtype));
        match other {
            Some(spec) => {
                let (tensor, got) = (spec.name, spec.dtype);
                Err(PlanError::DType { op: OP, tensor, got, expected: &DTYPES })
            }
            None => Ok(tensors),
        }
    }

    /// The tensors of a launch that begins at the element `first` of the outputs and so many elements behind the beginning of each
    /// input.
    fn tensors(&self, first: u64, offsets: &[i64]) -> Result<TensorArgs, PlanError> {
        let bytes = |dtype: DType| dtype.bytes() as u64;
        let (inputs, outputs) = (self.inputs.len(), self.dtypes.len());
        let (threshold, keeping) = match self.dropout {
            Some(probability) => Dropout::constants(OP, probability.get())?,
            None => (0, 1.0),
        };
        // A launch has no more tensors than a u32 counts.
        let x = |i: usize| match self.inputs.get(i).zip(offsets.get(i)) {
            Some((input, offset)) => {
                In::slot_at(i as u32, offset.cast_unsigned().wrapping_mul(bytes(input.dtype)))
            }
            None => In::address(0),
        };
        let y = |i: usize| match self.dtypes.get(i) {
            Some(dtype) if i < outputs => Out::slot_at((inputs + 1 + i) as u32, first * bytes(*dtype)),
            _ => Out::address(0),
        };
        let random = if self.dropout.is_some() { In::slot(inputs as u32) } else { In::address(0) };
        let scalars = std::array::from_fn(|i| self.scalars.get(i).map_or(0.0, |scalar| scalar.get()));
        let (x, y) = (std::array::from_fn(x), std::array::from_fn(y));
        Ok(TensorArgs { x, random, y, scalars, threshold, keeping })
    }

    fn steps(&self, walk: &Walk, common: Common, target: Target) -> Result<Vec<LaunchStep>, PlanError> {
        let config = common.config;
        let elements: usize = walk.extents.iter().product();
        if elements == 0 {
            return Ok(Vec::new());
        }
        if walk.is_flat() {
            let tensors = self.tensors(0, &vec![0; self.inputs.len()])?;
            let grid = plan::cover(OP, elements, config.block_elements())?;
            let args = FlatArgs { tensors, n: elements as u64 };
            let step = plan::launch_over(OP, &Flat(common), args, target, grid)?;
            return Ok(step.into_iter().collect());
        }
        let outer = walk.extents.len() - 1;
        let kernel = plan::recorded(OP, &Strided { common, outer }, target)?;
        let mut steps = Vec::new();
        for part in walk.parts(config.width, MAX_VECTORS) {
            let (vectors, extents) = part.vectors(config.width);
            let stride = |input: usize, axis: usize| {
                let own = self.inputs.get(input).and(walk.strides.get(input));
                own.and_then(|own| own.iter().rev().nth(axis)).map_or(0, |stride| stride.cast_unsigned())
            };
            let args = StridedArgs {
                tensors: self.tensors(part.first, &part.offsets)?,
                strides: std::array::from_fn(|input| std::array::from_fn(|axis| stride(input, axis))),
                extents,
                vectors: small(vectors),
                first: part.first,
            };
            if let Some(grid) = plan::cover(OP, vectors, config.threads)? {
                steps.push(LaunchStep::new(kernel.clone(), grid, args.values()));
            }
        }
        Ok(steps)
    }
}
