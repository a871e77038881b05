//! Cases of cross entropy of linear layers.

use std::sync::Arc;

use warpwright_ops::cross_entropy::Reduction;
use warpwright_ops::gemm::reference::Scaled;
use warpwright_ops::linear_cross_entropy::reference::{self, Inputs};
use warpwright_ops::linear_cross_entropy::{LinearCrossEntropyArgs, LinearCrossEntropyDesc};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Scope, Subject, view, view_mut};
use crate::inputs::{Input, Random};
use crate::measure::{Comparison, Expected};
use crate::storage;

const IGNORED: i64 = -100;

/// Which targets are ignored or no classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Targets {
    /// Each fifth is ignored.
    Usual,
    Ignored,
    /// Some are no classes.
    Stray,
}

#[derive(Clone, Debug)]
struct Situation {
    desc: LinearCrossEntropyDesc,
    targets: Targets,
    /// Elements past an aligned address.
    lead: usize,
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for gradients in [false, true] {
        for dtype in DType::FLOATS {
            let all = situations(scope, dtype).into_iter();
            for mut situation in all.filter(|s| !gradients || s.desc.reduction != Reduction::None) {
                situation.desc.gradients = gradients;
                let Situation { desc, targets, lead } = &situation;
                let words = format!(
                    "{} targets, {:?}, smoothing {}, chunk {:?}, bias {}, {targets:?}, lead {lead}",
                    desc.target,
                    desc.reduction,
                    desc.label_smoothing.get(),
                    desc.chunk_rows,
                    desc.bias,
                );
                out.push(Case {
                    op: "linear_cross_entropy",
                    direction: if gradients { Direction::Backward } else { Direction::Forward },
                    dtype,
                    shape: vec![desc.rows, desc.features, desc.classes],
                    input: words,
                    budget: budget::attention(dtype, 1.0),
                    subject: Arc::new(situation),
                });
            }
        }
    }
    out
}

fn situations(scope: Scope, dtype: DType) -> Vec<Situation> {
    let desc = |sizes| LinearCrossEntropyDesc::new(dtype, DType::I64, sizes);
    let usual = |desc| Situation { desc, targets: Targets::Usual, lead: 0 };
    let chunks = LinearCrossEntropyDesc {
        bias: true,
        label_smoothing: 0.1.into(),
        chunk_rows: Some(8),
        ..desc([21, 24, 40])
    };
    let rowwise = |desc| LinearCrossEntropyDesc { reduction: Reduction::None, ..desc };
    let sum = |desc| LinearCrossEntropyDesc { reduction: Reduction::Sum, target: DType::I32, ..desc };
    let mut all = vec![
        usual(chunks.clone()),
        usual(desc([5, 24, 100])),
        // Rows of logits that begin anywhere.
        usual(sum(LinearCrossEntropyDesc { classes: 37, ..chunks.clone() })),
        usual(rowwise(LinearCrossEntropyDesc { chunk_rows: Some(3), ..desc([7, 16, 20]) })),
        Situation { lead: 1, ..usual(LinearCrossEntropyDesc { chunk_rows: Some(4), ..chunks.clone() }) },
        Situation { targets: Targets::Stray, ..usual(sum(desc([6, 8, 9]))) },
        Situation { targets: Targets::Ignored, ..usual(sum(chunks.clone())) },
        usual(LinearCrossEntropyDesc { rows: 0, bias: true, ..desc([0, 8, 9]) }),
        usual(LinearCrossEntropyDesc { features: 9, ..chunks.clone() }),
    ];
    if scope == Scope::Full {
        all.extend([
            Situation { targets: Targets::Ignored, ..usual(chunks.clone()) },
            usual(LinearCrossEntropyDesc { features: 0, ..chunks.clone() }),
            usual(LinearCrossEntropyDesc { classes: 1, ..chunks.clone() }),
            usual(LinearCrossEntropyDesc { chunk_rows: Some(1), ..desc([4, 8, 8]) }),
            usual(LinearCrossEntropyDesc { chunk_rows: Some(64), bias: true, ..desc([200, 72, 520]) }),
            usual(rowwise(LinearCrossEntropyDesc { chunk_rows: Some(32), ..desc([70, 136, 2056]) })),
            Situation { lead: 1, ..usual(sum(LinearCrossEntropyDesc { classes: 2049, ..chunks.clone() })) },
        ]);
    }
    all
}

impl Situation {
    fn draw(&self, len: usize, seed: u64, scale: f64) -> Vec<f64> {
        let values = Input::Normal.values(len, seed).into_iter();
        values.map(|value| storage::round(self.desc.dtype, value * scale)).collect()
    }

    fn target(&self) -> Vec<i64> {
        let classes = self.desc.classes as u64;
        let mut random = Random::new(self.desc.rows as u64);
        let of_row = |row: usize| match (self.targets, row % 5) {
            (Targets::Ignored, _) | (_, 1) => IGNORED,
            (Targets::Stray, 2) => [-1, classes as i64][row / 5 % 2],
            _ => (random.bits() % classes) as i64,
        };
        (0..self.desc.rows).map(of_row).collect()
    }
}

fn expected(values: &[Scaled]) -> Vec<Expected> {
    let one = |(value, scale): &Scaled| Expected {
        value: *value,
        scale: *scale,
        underflow: f64::from(f32::MIN_POSITIVE),
    };
    values.iter().map(one).collect()
}

impl Subject for Situation {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Self { desc, lead, .. } = self;
        let LinearCrossEntropyDesc { dtype, rows, features, classes, gradients, .. } = *desc;
        let plan = desc.plan(bench.target())?;
        // Logits of standard deviation 1.
        let (xs, weights) = (
            self.draw(rows * features, 1, 1.0),
            self.draw(classes * features, 2, (features as f64).sqrt().recip()),
        );
        let (biases, targets) = (self.draw(classes, 3, 0.5), self.target());
        let inputs =
            Inputs { x: &xs, weight: &weights, bias: desc.bias.then_some(&biases[..]), target: &targets };
        let results = reference::results(desc, &inputs);
        let x = bench.input("x", dtype, &xs, *lead)?;
        let weight = bench.input("weight", dtype, &weights, *lead)?;
        let bias = bench.optional_input("bias", dtype, desc.bias.then_some(&biases), *lead)?;
        let of_target: Vec<f64> = targets.iter().map(|target| *target as f64).collect();
        let target = bench.input("target", desc.target, &of_target, *lead)?;
        let wide = dtype.accumulator();
        let mut loss = bench.output("loss", wide, results.loss.len(), 0)?;
        let output = |name: &'static str, len: usize| bench.output(name, dtype, len, *lead);
        let (mut dx, mut dweight) = (output("dx", xs.len())?, output("dweight", weights.len())?);
        let mut dbias = output("dbias", biases.len())?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let args = LinearCrossEntropyArgs {
                x: x.view()?,
                weight: weight.view()?,
                bias: view(&bias)?,
                target: target.view()?,
                loss: loss.view_mut()?,
                dx: if gradients { Some(dx.view_mut()?) } else { None },
                dweight: if gradients { Some(dweight.view_mut()?) } else { None },
                dbias: if gradients && desc.bias { Some(dbias.view_mut()?) } else { None },
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let mut all = bench.compare(&loss, &expected(&results.loss))?;
        // Of logits that were rounded to the type of `x`.
        let epsilon = |dtype: DType| dtype.epsilon().unwrap_or(1.0);
        all.element *= epsilon(wide) / epsilon(dtype);
        if gradients {
            all = all.merge(bench.compare(&dx, &expected(&results.dx))?);
            all = all.merge(bench.compare(&dweight, &expected(&results.dweight))?);
        }
        if gradients && desc.bias {
            all = all.merge(bench.compare(&dbias, &expected(&results.dbias))?);
        }
        Ok(all)
    }

    fn layout(&self) -> String {
        let LinearCrossEntropyDesc { classes, chunk_rows, .. } = self.desc;
        format!("{}, {}, {}", chunk_rows.is_some(), classes % 8 == 0, self.lead)
    }
}
