//! Cases of searches for the largest or least elements of rows.

use std::sync::Arc;

use warpwright_ops::topk::{TopkArgs, TopkBackwardArgs, TopkBackwardDesc, TopkDesc, reference};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget::EXACT;
use crate::case::{Bench, Case, CaseError, Scope, Subject, view_mut};
use crate::inputs::Input;
use crate::measure::{Comparison, Expected};
use crate::storage;

/// The elements of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Elements {
    Of(Input),
    /// Infinities of both signs, zeros of both and NaN.
    Special,
    /// Few numbers, each many times.
    Ties,
    /// The largest and the least elements beside each other, so that few threads have them.
    Sorted,
}

impl Elements {
    const ALL: [Self; 4] = [Self::Of(Input::Normal), Self::Special, Self::Ties, Self::Sorted];

    fn name(self) -> &'static str {
        match self {
            Self::Of(input) => input.name(),
            Self::Special => "special",
            Self::Ties => "ties",
            Self::Sorted => "sorted",
        }
    }

    fn values(self, dtype: DType, len: usize) -> Vec<f64> {
        let mut x = Input::Normal.values(len, len as u64);
        match self {
            Self::Of(_) => {}
            Self::Special => {
                let specials = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -0.0, 0.0];
                x.iter_mut().step_by(3).enumerate().for_each(|(i, v)| *v = specials[i * i / 3 % 5]);
            }
            Self::Ties => x.iter_mut().for_each(|v| *v = v.round()),
            Self::Sorted => x.sort_by(f64::total_cmp),
        }
        x.into_iter().map(|v| storage::round(dtype, v)).collect()
    }
}

#[derive(Debug)]
struct TopkSubject {
    direction: Direction,
    desc: TopkDesc,
    elements: Elements,
    lead: usize,
}

/// Rows, elements of each, and how many are wanted.
const SHAPES: &[[usize; 3]] = &[
    // A warp.
    [9, 1, 1],
    [5, 31, 31],
    [9, 64, 8],
    [11, 100, 3],
    [8, 128, 40],
    [3, 256, 8],
    [3, 250, 33],
    [1, 1000, 200],
    [1, 520, 129],
    // A block.
    [3, 264, 8],
    [2, 1003, 64],
    [2, 1024, 100],
    [2, 1500, 7],
    [1, 8000, 65],
    [1, 8190, 128],
    // Parts of rows, which a warp or a block puts together.
    [2, 9000, 5],
    [1, 17_001, 50],
    [1, 16_400, 128],
    // Nothing.
    [3, 5, 0],
    [0, 5, 2],
    [3, 0, 0],
];

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for direction in [Direction::Forward, Direction::Backward] {
        for dtype in DType::FLOATS {
            for (number, &[rows, n, k]) in SHAPES.iter().enumerate() {
                for (at, elements) in Elements::ALL.into_iter().enumerate() {
                    let quick = scope != Scope::Full;
                    if quick && (number + at) % 2 == 1 || direction == Direction::Backward && at > 0 {
                        continue;
                    }
                    let both = [true, false];
                    let taken = if quick { &both[number / 2 % 2..][..1] } else { &both[..] };
                    for &largest in taken {
                        let lead = usize::from(number % 5 == 3);
                        let mut input = elements.name().to_owned();
                        input.push_str(if largest { "" } else { ", least" });
                        input.push_str(if lead > 0 { ", misaligned" } else { "" });
                        let desc = TopkDesc { dtype, rows, n, k, largest };
                        let shape = vec![rows, n, k];
                        let subject = Arc::new(TopkSubject { direction, desc, elements, lead });
                        out.push(Case { op: "topk", direction, dtype, shape, input, budget: EXACT, subject });
                    }
                }
            }
        }
    }
    out
}

fn exactly(values: impl IntoIterator<Item = f64>) -> Vec<Expected> {
    values.into_iter().map(Expected::exactly).collect()
}

impl TopkSubject {
    fn forward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let TopkDesc { dtype, rows, n, k, largest } = self.desc;
        let plan = self.desc.plan(bench.target())?;
        let elements = self.elements.values(dtype, rows * n);
        let places = reference::topk(&elements, n, k, largest);
        let x = bench.input("x", dtype, &elements, self.lead)?;
        let mut values = bench.output("values", dtype, rows * k, self.lead)?;
        let mut index = bench.output("index", DType::I64, rows * k, self.lead)?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let workspace = view_mut(&mut workspace)?;
            let (values, index) = (values.view_mut()?, index.view_mut()?);
            Ok(plan.launch(stream, TopkArgs { x: x.view()?, values, index, workspace })?)
        })?;
        let of_row = |(at, place): (usize, &usize)| elements[at / k.max(1) * n + place];
        let found = bench.compare(&values, &exactly(places.iter().enumerate().map(of_row)))?;
        let at = bench.compare(&index, &exactly(places.iter().map(|place| *place as f64)))?;
        Ok(found.merge(at))
    }

    fn backward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let TopkDesc { dtype, rows, n, k, .. } = self.desc;
        let plan = TopkBackwardDesc { dtype, rows, n, k }.plan(bench.target())?;
        let places = reference::topk(&self.elements.values(dtype, rows * n), n, k, true);
        let gradients = Elements::Of(Input::Normal).values(dtype, rows * k);
        let dvalues = bench.input("dvalues", dtype, &gradients, self.lead)?;
        let numbers: Vec<f64> = places.iter().map(|place| *place as f64).collect();
        let index = bench.input("index", DType::I64, &numbers, self.lead)?;
        let mut dx = bench.output("dx", dtype, rows * n, self.lead)?;
        bench.launch(|stream| {
            let (dvalues, index) = (dvalues.view()?, index.view()?);
            Ok(plan.launch(stream, TopkBackwardArgs { dvalues, index, dx: dx.view_mut()? })?)
        })?;
        bench.compare(&dx, &exactly(reference::backward(&gradients, &places, [rows, n, k.max(1)])))
    }
}

impl Subject for TopkSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        match self.direction {
            Direction::Forward => self.forward(bench),
            Direction::Backward => self.backward(bench),
        }
    }
}
