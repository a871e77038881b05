//! Cases of 8-bit quantization. Codes and scales must equal the reference exactly: every rounding is defined.

use std::sync::Arc;

use warpwright_ops::quantize8::reference::{self, Quantized};
use warpwright_ops::quantize8::{
    DTYPES, Dequantize8Args, Dequantize8Desc, Format, Problem, Quantize8Args, Quantize8Desc, Scaling,
};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Scope, Subject, view, view_mut};
use crate::inputs::Input;
use crate::measure::{Comparison, Expected};
use crate::storage;

/// A scale that is given.
const GIVEN: f32 = 0.037;

/// Rows, elements of a row, and elements past an aligned address.
type Shape = (usize, usize, usize);

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    let names = warpwright_ops::catalogue();
    let known = |op: String| names.iter().find(|entry| entry.op == op).map_or("unknown", |entry| entry.op);
    for format in Format::ALL {
        for dtype in DTYPES {
            for (scaling, input, (rows, cols, lead)) in situations(scope, format, dtype) {
                let problem = Problem { format, scaling, dtype, rows, cols };
                let subject = Matrix { problem, input, lead };
                let misaligned = if lead > 0 { ", misaligned" } else { "" };
                let case = |op, subject: Arc<dyn Subject>| Case {
                    op: known(op),
                    direction: Direction::Forward,
                    dtype,
                    shape: vec![rows, cols],
                    input: format!("{}, scaling {}{misaligned}", input.name(), scaling.name()),
                    budget: budget::EXACT,
                    subject,
                };
                out.push(case(format!("quantize_{}", format.name()), Arc::new(Quantize(subject))));
                out.push(case(format!("dequantize_{}", format.name()), Arc::new(Dequantize(subject))));
            }
        }
    }
    out
}

fn situations(scope: Scope, format: Format, dtype: DType) -> Vec<(Scaling, Input, Shape)> {
    let mut all = Vec::new();
    for scaling in Scaling::ALL {
        let shapes: &[(Input, Shape)] = match scaling {
            Scaling::TensorWise | Scaling::Static => &[
                (Input::Normal, (3, 1000, 0)),
                (Input::Hostile, (1, 515, 0)),
                (Input::Magnitudes, (7, 293, 0)),
                (Input::Zero, (2, 40, 0)),
                (Input::Uniform, (1, 261, 1)),
                (Input::Normal, (0, 64, 0)),
                (Input::Normal, (1, 1, 0)),
            ],
            Scaling::RowWise => &[
                (Input::Normal, (5, 1024, 0)),
                (Input::Hostile, (70, 24, 0)),
                (Input::Hostile, (9, 333, 0)),
                (Input::Magnitudes, (33, 64, 0)),
                (Input::Normal, (2, 9000, 0)),
                (Input::Zero, (3, 72, 0)),
                (Input::Uniform, (3, 104, 1)),
                (Input::Normal, (3, 0, 0)),
                (Input::Normal, (0, 8, 0)),
                (Input::Normal, (1, 1, 0)),
            ],
            _ => &[
                (Input::Normal, (130, 264, 0)),
                (Input::Hostile, (67, 136, 0)),
                (Input::Hostile, (9, 333, 0)),
                (Input::Magnitudes, (131, 129, 0)),
                (Input::Zero, (2, 128, 0)),
                (Input::Uniform, (3, 256, 1)),
                (Input::Normal, (3, 0, 0)),
                (Input::Normal, (1, 1, 0)),
            ],
        };
        all.extend(shapes.iter().map(|(input, shape)| (scaling, *input, *shape)));
        if scope == Scope::Full {
            all.extend(Input::ALL.map(|input| (scaling, input, (40, 256, 0))));
            all.extend((1..=17).map(|cols| (scaling, Input::Normal, (cols % 5 + 1, cols, 1))));
            let long = [(2, 16_384, 0), (129, 1000, 0), (257, 640, 0), (1, 70_000, 0), (1, 70_001, 0)];
            all.extend(long.map(|shape| (scaling, Input::Normal, shape)));
        }
    }
    if scope == Scope::Quick && (format, dtype) == (Format::E4M3, DType::BF16) {
        // Rows that a block reads twice.
        all.extend([
            (Scaling::RowWise, Input::Normal, (1, 33_000, 0)),
            (Scaling::RowWise, Input::Normal, (1, 1001, 0)),
        ]);
        all.push((Scaling::TensorWise, Input::Normal, (1, 70_000, 0)));
    }
    all
}

/// One matrix.
#[derive(Clone, Copy, Debug)]
struct Matrix {
    problem: Problem,
    input: Input,
    lead: usize,
}

impl Matrix {
    fn len(&self) -> usize {
        self.problem.rows * self.problem.cols
    }

    /// Values as the tensor holds them.
    fn values(&self) -> Vec<f64> {
        let Problem { rows, cols, dtype, .. } = self.problem;
        let values = self.input.values(self.len(), (rows + cols) as u64);
        values.into_iter().map(|v| storage::round(dtype, v)).collect()
    }

    fn reference(&self, x: &[f64]) -> Quantized {
        let Problem { format, scaling, rows, cols, .. } = self.problem;
        reference::quantize(format, scaling, x, [rows, cols], GIVEN)
    }
}

#[derive(Debug)]
struct Quantize(Matrix);

impl Subject for Quantize {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let m @ Matrix { problem, lead, .. } = self.0;
        let given = problem.scaling == Scaling::Static;
        let plan = Quantize8Desc { problem }.plan(bench.target())?;
        let xs = m.values();
        let want = m.reference(&xs);
        let x = bench.input("x", problem.dtype, &xs, lead)?;
        let scale =
            bench.optional_input("scale", DType::F32, given.then(|| vec![f64::from(GIVEN)]).as_ref(), 0)?;
        let mut q = bench.output("q", problem.format.dtype(), m.len(), lead)?;
        let mut scales = bench.optional_output("scales", DType::F32, (want.scales.len(), 0), !given)?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let args = Quantize8Args {
                x: x.view()?,
                scale: view(&scale)?,
                q: q.view_mut()?,
                scales: view_mut(&mut scales)?,
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let expected: Vec<_> = want.q.iter().map(|q| Expected::exactly(*q)).collect();
        let codes = bench.compare(&q, &expected)?;
        let expected: Vec<_> = want.scales.iter().map(|s| Expected::exactly(f64::from(*s))).collect();
        match &scales {
            Some(scales) => Ok(codes.merge(bench.compare(scales, &expected)?)),
            None => Ok(codes),
        }
    }
}

#[derive(Debug)]
struct Dequantize(Matrix);

impl Subject for Dequantize {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let m @ Matrix { problem, lead, .. } = self.0;
        let Problem { format, scaling, dtype, rows, cols } = problem;
        let plan = Dequantize8Desc { problem }.plan(bench.target())?;
        let reference = m.reference(&m.values());
        let values = reference::dequantize(scaling, &reference, [rows, cols]);
        let scales: Vec<f64> = reference.scales.iter().map(|s| f64::from(*s)).collect();
        let q = bench.input("q", format.dtype(), &reference.q, lead)?;
        let scales = bench.input("scales", DType::F32, &scales, 0)?;
        let mut y = bench.output("y", dtype, m.len(), lead)?;
        bench.launch(|stream| {
            let args = Dequantize8Args { q: q.view()?, scales: scales.view()?, y: y.view_mut()? };
            Ok(plan.launch(stream, args)?)
        })?;
        let value = |v: f32| Expected::exactly(storage::round(dtype, f64::from(v)));
        bench.compare(&y, &values.into_iter().map(value).collect::<Vec<_>>())
    }
}
