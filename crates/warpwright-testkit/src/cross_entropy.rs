//! Cases of cross entropy.

use std::sync::Arc;

use warpwright_ops::cross_entropy::reference::{self, Options};
use warpwright_ops::cross_entropy::{
    CrossEntropyArgs, CrossEntropyBackwardArgs, CrossEntropyBackwardDesc, CrossEntropyDesc, Reduction,
};
use warpwright_ops::plan::Real;
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Scope, Subject, say, view_mut};
use crate::inputs::{Input, Random};
use crate::measure::{Comparison, Expected, compare};
use crate::storage;

const IGNORED: i64 = -100;

#[derive(Clone, Copy, Debug)]
struct Situation {
    rows: usize,
    classes: usize,
    target: DType,
    reduction: Reduction,
    label_smoothing: f64,
    input: Input,
    /// Whether the loss has the type of the computation.
    wide_loss: bool,
    /// Elements between rows.
    gap: usize,
    /// Elements past an aligned address.
    lead: usize,
    in_place: bool,
    /// Whether some targets are no classes.
    stray: bool,
    /// Whether the targets' logits are raised, some so far that nothing else has a probability to speak of.
    likely: bool,
}

#[derive(Debug)]
struct CrossEntropySubject {
    direction: Direction,
    dtype: DType,
    situation: Situation,
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for direction in [Direction::Forward, Direction::Backward] {
        for dtype in DType::FLOATS {
            let many = if direction == Direction::Forward { many_rows(dtype, scope) } else { Vec::new() };
            for situation in situations(scope).into_iter().chain(many) {
                let Situation { rows, classes, target, reduction, label_smoothing, input, .. } = situation;
                let Situation { wide_loss, gap, lead, in_place, stray, likely, .. } = situation;
                let mut words =
                    format!("{}, {target} targets, {reduction:?}, smoothing {label_smoothing}", input.name());
                say(
                    &mut words,
                    [
                        (wide_loss, ", loss of f32"),
                        (gap > 0, ", rows apart"),
                        (lead > 0, ", misaligned"),
                        (in_place, ", in place"),
                        (stray, ", stray targets"),
                        (likely, ", likely targets"),
                    ],
                );
                out.push(Case {
                    op: "cross_entropy",
                    direction,
                    dtype,
                    shape: vec![rows, classes],
                    input: words,
                    budget: budget::elementwise(dtype),
                    subject: Arc::new(CrossEntropySubject { direction, dtype, situation }),
                });
            }
        }
    }
    out
}

const PLAIN: Situation = Situation {
    rows: 5,
    classes: 100,
    target: DType::I64,
    reduction: Reduction::None,
    label_smoothing: 0.0,
    input: Input::Normal,
    wide_loss: false,
    gap: 0,
    lead: 0,
    in_place: false,
    stray: false,
    likely: false,
};

/// Enough rows for each of the teams that long rows have where there are many.
fn many_rows(dtype: DType, scope: Scope) -> Vec<Situation> {
    let sizes: &[_] = match (scope, dtype) {
        (Scope::Full, DType::F16) => &[(4096, 2052)],
        (Scope::Full, DType::BF16) => &[(4096, 2052), (1024, 16390)],
        (Scope::Full, DType::F32) => &[(512, 2052)],
        _ => &[],
    };
    sizes.iter().map(|&(rows, classes)| Situation { rows, classes, ..PLAIN }).collect()
}

fn situations(scope: Scope) -> Vec<Situation> {
    let plain = PLAIN;
    let mut all = vec![
        plain,
        Situation { reduction: Reduction::Mean, ..plain },
        Situation { reduction: Reduction::Sum, target: DType::I32, ..plain },
        Situation { label_smoothing: 0.1, classes: 37, ..plain },
        Situation { stray: true, target: DType::I32, ..plain },
        Situation { stray: true, rows: 9, classes: 3, ..plain },
        Situation { lead: 1, ..plain },
        Situation { in_place: true, classes: 65, ..plain },
        Situation { gap: 28, ..plain },
        Situation { wide_loss: true, rows: 7, ..plain },
        Situation { wide_loss: true, rows: 7, reduction: Reduction::Mean, in_place: true, ..plain },
        Situation { gap: 6, in_place: true, label_smoothing: 0.1, classes: 65, ..plain },
        Situation { classes: 1, ..plain },
        Situation { rows: 0, ..plain },
        Situation { likely: true, rows: 30, ..plain },
        Situation { likely: true, rows: 30, classes: 130, label_smoothing: 0.1, ..plain },
        Situation { rows: 3, classes: 2049, ..plain },
    ];
    if scope == Scope::Full {
        for classes in [2, 5, 7, 8, 9, 15, 16, 17, 31, 33, 255, 257, 2047, 2048, 4096, 8193, 20_001] {
            all.push(Situation { rows: 3, classes, ..plain });
            all.push(Situation {
                rows: 2,
                classes,
                label_smoothing: 0.25,
                lead: 1,
                target: DType::I32,
                ..plain
            });
        }
        all.extend([
            Situation { rows: 0, reduction: Reduction::Mean, ..plain },
            Situation { rows: 0, reduction: Reduction::Sum, ..plain },
            Situation { rows: 2500, classes: 9, reduction: Reduction::Mean, ..plain },
            Situation { rows: 1025, classes: 4, reduction: Reduction::Sum, label_smoothing: 1.0, ..plain },
            Situation { rows: 40, input: Input::Offset, ..plain },
            Situation { rows: 40, input: Input::Uniform, label_smoothing: 0.5, ..plain },
            Situation { rows: 200, classes: 3, input: Input::Hostile, ..plain },
            Situation { rows: 5, classes: 2500, input: Input::Hostile, ..plain },
            Situation { rows: 3, classes: 2500, reduction: Reduction::Mean, stray: true, ..plain },
            Situation { rows: 2, classes: 9001, in_place: true, reduction: Reduction::Mean, ..plain },
            Situation { gap: 7, classes: 20_001, lead: 1, ..plain },
            Situation { gap: 63, classes: 2049, in_place: true, reduction: Reduction::Mean, ..plain },
        ]);
    }
    all
}

impl CrossEntropySubject {
    fn options(&self) -> Options {
        Options { ignore_index: IGNORED, label_smoothing: self.situation.label_smoothing }
    }

    fn desc(&self) -> CrossEntropyDesc {
        let Situation { rows, classes, gap, target, reduction, label_smoothing, .. } = self.situation;
        CrossEntropyDesc {
            loss: self.loss(),
            row_stride: classes + gap,
            ignore_index: IGNORED,
            label_smoothing: Real::new(label_smoothing),
            reduction,
            ..CrossEntropyDesc::new(self.dtype, target, [rows, classes])
        }
    }

    /// The type of the loss.
    fn loss(&self) -> DType {
        if self.situation.wide_loss { self.wide() } else { self.dtype }
    }

    /// Rows as they lie in memory; nothing reads what lies between them, and nothing of that is a number.
    fn apart(&self, rows: &[f64]) -> Vec<f64> {
        let Situation { classes, gap, .. } = self.situation;
        let mut all = Vec::new();
        for row in rows.chunks(classes) {
            if !all.is_empty() {
                all.extend(std::iter::repeat_n(f64::NAN, gap));
            }
            all.extend_from_slice(row);
        }
        all
    }

    /// Logits and targets.
    fn draw(&self) -> (Vec<f64>, Vec<i64>) {
        let Situation { rows, classes, input, stray, likely, .. } = self.situation;
        let mut values = input.values(rows * classes, (rows * classes) as u64);
        let mut random = Random::new(rows as u64);
        let target = |row: usize| match row % 5 {
            1 if rows > 1 => IGNORED,
            2 if stray => [-1, classes as i64, -101, i64::from(i32::MAX)][row / 5 % 4],
            _ => (random.bits() % classes as u64) as i64,
        };
        let targets: Vec<i64> = (0..rows).map(target).collect();
        for (row, target) in targets.iter().enumerate().filter(|_| likely) {
            if let Ok(target) = usize::try_from(*target) {
                values[row * classes + target] += 1.5 * row as f64;
            }
        }
        (values.into_iter().map(|v| storage::round(self.dtype, v)).collect(), targets)
    }

    /// The type that is computed in.
    fn wide(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    fn expected(value: f64, scale: f64) -> Expected {
        Expected { value, scale, underflow: 0.0 }
    }

    fn losses(&self, logits: &[f64], targets: &[i64]) -> Vec<Expected> {
        let rows = logits.chunks(self.situation.classes).zip(targets);
        let one = |(x, &t): (&[f64], &i64)| {
            Self::expected(reference::forward(x, t, self.options()).0, reference::forward_scale(x, t))
        };
        let each: Vec<Expected> = rows.map(one).collect();
        let count = targets.iter().filter(|t| **t != IGNORED).count() as f64;
        let divisor = match self.situation.reduction {
            Reduction::None => return each,
            Reduction::Sum => 1.0,
            Reduction::Mean => count,
        };
        let total = |f: fn(&Expected) -> f64| each.iter().map(f).sum::<f64>() / divisor;
        vec![Self::expected(total(|e| e.value), total(|e| e.scale))]
    }

    fn forward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Situation { rows, target, lead, .. } = self.situation;
        let plan = self.desc().plan(bench.target())?;
        let (xs, ts) = self.draw();
        let losses = self.losses(&xs, &ts);
        let lses: Vec<Expected> = xs
            .chunks(self.situation.classes)
            .map(|x| {
                let lse = reference::forward(x, IGNORED, self.options()).1;
                Self::expected(lse, 1.0 + lse.abs())
            })
            .collect();
        let nlls: Vec<Expected> = xs
            .chunks(self.situation.classes)
            .zip(&ts)
            .map(|(x, t)| Self::expected(reference::nll(x, *t), reference::forward_scale(x, *t)))
            .collect();
        let logits = bench.input("logits", self.dtype, &self.apart(&xs), lead)?;
        let targets: Vec<f64> = ts.iter().map(|t| *t as f64).collect();
        let targets = bench.input("target", target, &targets, lead)?;
        let mut loss = bench.output("loss", self.loss(), losses.len(), 0)?;
        let mut lse = bench.output("lse", self.wide(), rows, 0)?;
        let mut nll = bench.output("nll", self.wide(), rows, 0)?;
        let mut count = bench.output("count", self.wide(), 1, 0)?;
        let mut workspace = bench.workspace(&plan)?;
        let mean = self.situation.reduction == Reduction::Mean;
        bench.launch(|stream| {
            let args = CrossEntropyArgs {
                logits: logits.view()?,
                target: targets.view()?,
                loss: loss.view_mut()?,
                lse: lse.view_mut()?,
                nll: nll.view_mut()?,
                count: if mean { Some(count.view_mut()?) } else { None },
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let mut result = if self.loss() == self.dtype {
            bench.compare(&loss, &losses)?
        } else {
            bench.compare_saved(self.dtype, &loss, &losses)?
        };
        if self.dtype == self.wide() {
            result = result.merge(bench.compare(&lse, &lses)?);
            result = result.merge(bench.compare(&nll, &nlls)?);
        }
        if mean {
            let counted = ts.iter().filter(|t| **t != IGNORED).count() as f64;
            result = result.merge(bench.compare(&count, &[Expected::exactly(counted)])?);
        }
        Ok(result)
    }

    fn backward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Situation { rows, classes, gap, target, reduction, lead, in_place, .. } = self.situation;
        let plan = CrossEntropyBackwardDesc { forward: self.desc() }.plan(bench.target())?;
        let (xs, ts) = self.draw();
        let (wide, options) = (self.wide(), self.options());
        let round = |v: f64| storage::round(wide, v);
        let lses: Vec<f64> =
            xs.chunks(classes).map(|x| round(reference::forward(x, IGNORED, options).1)).collect();
        let nlls: Vec<f64> = xs.chunks(classes).zip(&ts).map(|(x, t)| round(reference::nll(x, *t))).collect();
        let count = ts.iter().filter(|t| **t != IGNORED).count() as f64;
        let each = reduction == Reduction::None;
        let mut random = Random::new(3);
        let dlosses: Vec<f64> = (0..if each { rows } else { 1 })
            .map(|_| storage::round(self.loss(), 1.0 + random.unit()))
            .collect();
        let divisor = if reduction == Reduction::Mean { count } else { 1.0 };
        let mut expected = Vec::new();
        for (row, (x, t)) in xs.chunks(classes).zip(&ts).enumerate() {
            let dloss = dlosses[if each { row } else { 0 }] / divisor;
            let scales = reference::backward_scale(x, *t, dloss, options);
            let values = reference::backward(x, *t, dloss, options);
            expected.extend(values.into_iter().zip(scales).map(|(v, s)| Expected {
                value: v,
                scale: s,
                underflow: f64::from(f32::MIN_POSITIVE),
            }));
        }
        let targets: Vec<f64> = ts.iter().map(|t| *t as f64).collect();
        let targets = bench.input("target", target, &targets, lead)?;
        let lse = bench.input("lse", wide, &lses, 0)?;
        let nll = bench.input("nll", wide, &nlls, 0)?;
        let dloss = bench.input("dloss", self.loss(), &dlosses, 0)?;
        let counted = bench.input("count", wide, &[count], 0)?;
        let mean = reduction == Reduction::Mean;
        let xs = self.apart(&xs);
        let logits = bench.input("logits", self.dtype, &xs, lead)?;
        let mut dlogits = if in_place {
            bench.input("dlogits", self.dtype, &xs, lead)?
        } else {
            bench.output("dlogits", self.dtype, xs.len(), lead)?
        };
        let before = bench.read(&dlogits)?;
        bench.launch(|stream| {
            let args = CrossEntropyBackwardArgs {
                logits: if in_place { None } else { Some(logits.view()?) },
                target: targets.view()?,
                lse: lse.view()?,
                nll: nll.view()?,
                dloss: dloss.view()?,
                count: if mean { Some(counted.view()?) } else { None },
                dlogits: dlogits.view_mut()?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let after = bench.read(&dlogits)?;
        let of_row = |at: usize| at % (classes + gap) < classes;
        let changed = (0..after.len()).find(|&at| !of_row(at) && after[at].to_bits() != before[at].to_bits());
        if let Some(at) = changed {
            return Err(CaseError::Damage { tensor: "dlogits", offset: (at * self.dtype.bytes()) as i64 });
        }
        let of_rows: Vec<f64> = (0..after.len()).filter(|at| of_row(*at)).map(|at| after[at]).collect();
        Ok(compare(self.dtype, &of_rows, &expected, Bench::poison(self.dtype)))
    }
}

impl Subject for CrossEntropySubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        match self.direction {
            Direction::Forward => self.forward(bench),
            Direction::Backward => self.backward(bench),
        }
    }
}
