//! Cases of the reductions over dimensions.

use std::sync::Arc;

use warpwright_ops::reduce::{
    ArgReduceArgs, ArgReduceDesc, ArgReduceFunction, ReduceArgs, ReduceDesc, ReduceFunction, reference,
};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget::{self, EXACT};
use crate::case::{Bench, Case, CaseError, Scope, Subject, view_mut};
use crate::inputs::Input;
use crate::measure::{Comparison, Expected};
use crate::storage;

/// The elements of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Elements {
    Of(Input),
    /// Infinities of both signs, each with others of its kind in its result or not, and NaN.
    Special,
    /// Few numbers, each many times.
    Ties,
}

impl Elements {
    fn name(self) -> &'static str {
        match self {
            Self::Of(input) => input.name(),
            Self::Special => "special",
            Self::Ties => "ties",
        }
    }

    fn values(self, dtype: DType, len: usize) -> Vec<f64> {
        let mut x = match self {
            Self::Of(input) => input.values(len, len as u64),
            Self::Special => Input::Normal.values(len, 3),
            Self::Ties => Input::Normal.values(len, 5).into_iter().map(f64::round).collect(),
        };
        if self == Self::Special {
            let specials = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -0.0];
            x.iter_mut().step_by(41).enumerate().for_each(|(i, v)| *v = specials[i * i / 3 % 4]);
        }
        x.into_iter().map(|v| storage::round(dtype, v)).collect()
    }
}

#[derive(Debug)]
struct ReduceSubject {
    desc: ReduceDesc,
    elements: Elements,
    lead: usize,
}

#[derive(Debug)]
struct SearchSubject {
    desc: ArgReduceDesc,
    elements: Elements,
    lead: usize,
}

/// Shapes with the dimensions that are reduced.
type Shape = (&'static [usize], &'static [usize]);

/// A shape for each kernel, and some whose dimensions take several passes.
const SHAPES: &[Shape] = &[
    // Rows of a thread, of some lanes, of a warp, of a block and of several blocks.
    (&[300, 7], &[1]),
    (&[70, 8], &[1]),
    (&[33, 40], &[1]),
    (&[9, 61], &[1]),
    (&[5, 4, 100], &[1, 2]),
    (&[11, 1003], &[1]),
    (&[3, 9001], &[1]),
    (&[2, 50_000], &[1]),
    (&[41_003], &[0]),
    // Columns: few and many of them, next to each other.
    (&[130, 48], &[0]),
    (&[2, 45, 264], &[1]),
    (&[3, 77, 3], &[1]),
    (&[2, 30, 35], &[1]),
    (&[2000, 40], &[0]),
    (&[900, 130], &[0]),
    (&[3, 4, 500], &[1]),
    (&[4, 8, 9], &[1]),
    // Several runs of dimensions.
    (&[6, 5, 4, 16], &[0, 2, 3]),
    (&[3, 5, 7, 2], &[0, 2]),
    (&[4, 3, 20, 8], &[3, 1]),
    // Nothing to reduce, and nothing at all.
    (&[5, 33], &[]),
    (&[4, 1, 16], &[1]),
    (&[0, 3], &[1]),
];

/// Results without elements.
const EMPTY: Shape = (&[70, 0, 2], &[1]);

fn inputs(scope: Scope) -> Vec<Elements> {
    let mut all = vec![Elements::Of(Input::Normal), Elements::Special];
    if scope == Scope::Full {
        all.extend([Input::Uniform, Input::Offset, Input::Zero].map(Elements::Of));
    }
    all
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    let direction = Direction::Forward;
    for dtype in DType::FLOATS {
        for function in ReduceFunction::ALL {
            let sums = matches!(function, ReduceFunction::Sum | ReduceFunction::Mean);
            let shapes = SHAPES.iter().chain(sums.then_some(&EMPTY));
            for (number, &(shape, dims)) in shapes.enumerate() {
                for elements in inputs(scope) {
                    // Both types of results; tensors at vectors and beside them.
                    let wide = number % 3 == 1;
                    let y_dtype = if wide { dtype.accumulator() } else { dtype };
                    let lead = usize::from(number % 4 == 2);
                    let table = budget::elementwise(y_dtype);
                    let alike = elements == Elements::Of(Input::Offset);
                    let budget = match sums {
                        true if alike => table.of_alike(),
                        true => table,
                        false => EXACT,
                    };
                    let (shape, dims) = (shape.to_vec(), dims.to_vec());
                    let desc = ReduceDesc { function, dtype, y_dtype, shape: shape.clone(), dims };
                    let input = format!("{}, dims {:?}, to {y_dtype}", elements.name(), desc.dims);
                    let subject = Arc::new(ReduceSubject { desc, elements, lead });
                    out.push(Case { op: function.name(), direction, dtype, shape, input, budget, subject });
                }
            }
        }
        for function in ArgReduceFunction::ALL {
            let one = SHAPES.iter().filter(|(_, dims)| dims.len() == 1);
            for (number, &(shape, dims)) in one.enumerate() {
                for elements in inputs(scope).into_iter().chain([Elements::Ties]) {
                    let product = |extents: &[usize]| extents.iter().product();
                    let (outer, inner) = (product(&shape[..dims[0]]), product(&shape[dims[0] + 1..]));
                    let desc = ArgReduceDesc { function, dtype, outer, n: shape[dims[0]], inner };
                    let (lead, input) = (usize::from(number % 4 == 2), elements.name().to_owned());
                    let subject = Arc::new(SearchSubject { desc, elements, lead });
                    let (op, shape, budget) = (function.name(), shape.to_vec(), EXACT);
                    out.push(Case { op, direction, dtype, shape, input, budget, subject });
                }
            }
        }
    }
    out
}

impl Subject for ReduceSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let ReduceDesc { function, dtype, y_dtype, ref shape, ref dims } = self.desc;
        let plan = self.desc.plan(bench.target())?;
        let values = self.elements.values(dtype, shape.iter().product());
        let expected: Vec<Expected> = match function {
            ReduceFunction::Amax | ReduceFunction::Amin => {
                let least = function == ReduceFunction::Amin;
                let all = reference::extremes(&values, shape, dims, least);
                all.into_iter().flatten().map(|(value, _)| Expected::exactly(value)).collect()
            }
            ReduceFunction::Sum | ReduceFunction::Mean => {
                let each: usize = dims.iter().map(|&dim| shape[dim]).product();
                let count = if function == ReduceFunction::Mean { each as f64 } else { 1.0 };
                let sums = reference::sums(&values, shape, dims).into_iter();
                let of = |(sum, scale): (f64, f64)| Expected {
                    value: sum / count,
                    scale: scale / count,
                    underflow: 0.0,
                };
                sums.map(of).collect()
            }
        };
        let x = bench.input("x", dtype, &values, self.lead)?;
        let mut y = bench.output("y", y_dtype, expected.len(), self.lead)?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let workspace = view_mut(&mut workspace)?;
            Ok(plan.launch(stream, ReduceArgs { x: x.view()?, y: y.view_mut()?, workspace })?)
        })?;
        bench.compare(&y, &expected)
    }
}

impl Subject for SearchSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let ArgReduceDesc { function, dtype, outer, n, inner } = self.desc;
        let plan = self.desc.plan(bench.target())?;
        let values = self.elements.values(dtype, outer * n * inner);
        let least = function == ArgReduceFunction::Argmin;
        let all = reference::extremes(&values, &[outer, n, inner], &[1], least).into_iter();
        let expected: Vec<Expected> =
            all.flatten().map(|(_, position)| Expected::exactly(position as f64)).collect();
        let x = bench.input("x", dtype, &values, self.lead)?;
        let mut index = bench.output("index", DType::I64, expected.len(), self.lead)?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let workspace = view_mut(&mut workspace)?;
            Ok(plan.launch(stream, ArgReduceArgs { x: x.view()?, index: index.view_mut()?, workspace })?)
        })?;
        bench.compare(&index, &expected)
    }
}
