//! Cases of cumulative sums.

use std::sync::Arc;

use warpwright_ops::cumsum::{CumsumArgs, CumsumDesc, reference};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Scope, Subject, say, view_mut};
use crate::inputs::Input;
use crate::measure::{Comparison, Expected};
use crate::storage;

/// The elements of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Elements {
    Of(Input),
    /// Infinities of both signs and NaN, behind numbers.
    Special,
}

impl Elements {
    fn name(self) -> &'static str {
        match self {
            Self::Of(input) => input.name(),
            Self::Special => "special",
        }
    }

    fn values(self, dtype: DType, len: usize) -> Vec<f64> {
        let mut x = match self {
            Self::Of(input) => input.values(len, len as u64),
            Self::Special => Input::Normal.values(len, 3),
        };
        if self == Self::Special {
            let specials = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -0.0];
            x.iter_mut().skip(29).step_by(41).enumerate().for_each(|(i, v)| *v = specials[i * i / 3 % 4]);
        }
        let whole = matches!(dtype, DType::I32 | DType::I64);
        x.into_iter().map(|v| if whole { (v * 100.0).round() } else { storage::round(dtype, v) }).collect()
    }
}

#[derive(Debug)]
struct CumsumSubject {
    desc: CumsumDesc,
    elements: Elements,
    lead: usize,
}

/// A shape `[outer, n, inner]` for each kernel.
const SHAPES: &[[usize; 3]] = &[
    // Rows of some lanes, of a warp with one and with several vectors, of blocks.
    [40, 7, 1],
    [70, 16, 1],
    [9, 61, 1],
    [17, 96, 1],
    [5, 400, 1],
    [6, 417, 1],
    [3, 2000, 1],
    [3, 2003, 1],
    [2, 4080, 1],
    [2, 5001, 1],
    // Tiles.
    [2, 20_000, 1],
    [3, 9_001, 1],
    // Columns: few and many of them, next to each other.
    [1, 130, 48],
    [2, 45, 264],
    [3, 77, 3],
    [2, 30, 35],
    [1, 600, 40],
    [3, 4, 500],
    [4, 8, 9],
    // Nothing to add, and nothing at all.
    [5, 1, 1],
    [4, 1, 16],
    [0, 3, 1],
    [3, 0, 1],
    [2, 3, 0],
];

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64] {
        let float = DType::FLOATS.contains(&dtype);
        let mut all = vec![Elements::Of(Input::Normal)];
        all.extend(float.then_some(Elements::Special));
        if scope == Scope::Full && float {
            all.extend([Input::Uniform, Input::Offset, Input::Zero].map(Elements::Of));
        }
        for (number, &[outer, n, inner]) in SHAPES.iter().enumerate() {
            for (at, &elements) in all.iter().enumerate() {
                let options = [(false, false), (true, false), (false, true), (true, true)];
                let taken = match scope {
                    Scope::Full => options.to_vec(),
                    _ => vec![options[(number + at) % 4]],
                };
                for (exclusive, reverse) in taken {
                    let table = budget::elementwise(dtype);
                    let alike = elements == Elements::Of(Input::Offset);
                    let budget = if alike { table.of_alike() } else { table };
                    let lead = usize::from(number % 4 == 2);
                    let mut input = elements.name().to_owned();
                    say(
                        &mut input,
                        [(exclusive, ", exclusive"), (reverse, ", reverse"), (lead > 0, ", misaligned")],
                    );
                    let desc = CumsumDesc { dtype, outer, n, inner, exclusive, reverse };
                    let (direction, shape) = (Direction::Forward, vec![outer, n, inner]);
                    let subject = Arc::new(CumsumSubject { desc, elements, lead });
                    out.push(Case { op: "cumsum", direction, dtype, shape, input, budget, subject });
                }
            }
        }
    }
    out
}

impl Subject for CumsumSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let CumsumDesc { dtype, outer, n, inner, exclusive, reverse } = self.desc;
        let plan = self.desc.plan(bench.target())?;
        let values = self.elements.values(dtype, outer * n * inner);
        let sums = reference::cumsum(&values, [outer, n, inner], exclusive, reverse).into_iter();
        let expected: Vec<Expected> = match DType::FLOATS.contains(&dtype) {
            true => sums.map(Expected::from).collect(),
            false => sums.map(|(value, _)| Expected::exactly(value)).collect(),
        };
        let x = bench.input("x", dtype, &values, self.lead)?;
        let mut y = bench.output("y", dtype, values.len(), self.lead)?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let workspace = view_mut(&mut workspace)?;
            Ok(plan.launch(stream, CumsumArgs { x: x.view()?, y: y.view_mut()?, workspace })?)
        })?;
        bench.compare(&y, &expected)
    }
}
