//! Cases of softmax.

use std::sync::Arc;

use warpwright_ops::plan::Real;
use warpwright_ops::softmax::{
    MaskKind, MaskedSoftmaxArgs, MaskedSoftmaxDesc, Softmax, SoftmaxArgs, SoftmaxBackwardArgs,
    SoftmaxBackwardDesc, SoftmaxDesc, reference,
};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget::{self, Budget};
use crate::case::{Bench, Case, CaseError, Placement, Scope, Subject};
use crate::inputs::{Input, Random};
use crate::measure::{Comparison, Expected};
use crate::storage;

#[derive(Clone, Copy, Debug)]
struct Situation {
    /// `[outer, n, inner]`
    shape: [usize; 3],
    input: Input,
    placement: Placement,
    scale: f64,
}

impl Situation {
    fn budget(self, dtype: DType) -> Budget {
        let mut budget = budget::elementwise(dtype);
        if matches!(self.input, Input::Zero | Input::Offset) {
            budget = budget.of_alike();
        }
        if dtype == DType::F16 {
            // Long rows have results below the normal numbers, whose errors do not shrink with them: each is
            // 2^-24 / sqrt(12), and the norm of n probabilities is at least 1 / sqrt(n).
            budget.norm += self.shape[1] as f64 * 2f64.powi(-24) / 12f64.sqrt();
        }
        budget
    }

    fn describe(self) -> String {
        let placement = match self.placement {
            Placement::Apart => "",
            Placement::Misaligned => ", misaligned",
            Placement::InPlace => ", in place",
        };
        let scale = if self.scale == 1.0 { String::new() } else { format!(", scale {}", self.scale) };
        format!("{}{placement}{scale}", self.input.name())
    }
}

#[derive(Debug)]
struct SoftmaxSubject {
    function: Softmax,
    direction: Direction,
    dtype: DType,
    situation: Situation,
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for function in Softmax::ALL {
        for direction in [Direction::Forward, Direction::Backward] {
            for dtype in DType::FLOATS {
                for situation in situations(scope) {
                    out.push(Case {
                        op: function.name(),
                        direction,
                        dtype,
                        shape: situation.shape.to_vec(),
                        input: situation.describe(),
                        budget: situation.budget(dtype),
                        subject: Arc::new(SoftmaxSubject { function, direction, dtype, situation }),
                    });
                }
            }
        }
    }
    for function in Softmax::ALL {
        for dtype in DType::FLOATS {
            for mask in [MaskKind::Additive, MaskKind::Boolean] {
                for (shape, repeat, period) in masked_shapes(scope) {
                    let kind = if mask == MaskKind::Additive { "additive" } else { "boolean" };
                    let situation =
                        Situation { shape, input: Input::Normal, placement: Placement::Apart, scale: 0.5 };
                    out.push(Case {
                        op: function.name(),
                        direction: Direction::Forward,
                        dtype,
                        shape: shape.to_vec(),
                        input: format!("{kind} mask, repeat {repeat}, period {period}"),
                        budget: situation.budget(dtype),
                        subject: Arc::new(MaskedSubject {
                            plain: SoftmaxSubject {
                                function,
                                direction: Direction::Forward,
                                dtype,
                                situation,
                            },
                            mask,
                            repeat,
                            period,
                        }),
                    });
                }
            }
        }
    }
    out
}

/// Shapes with how often and after how many rows their mask repeats.
fn masked_shapes(scope: Scope) -> Vec<([usize; 3], usize, usize)> {
    let mut all = vec![([12, 40, 1], 2, 3), ([6, 33, 1], 6, 1), ([4, 9, 6], 2, 2), ([2, 5, 7], 1, 2)];
    if scope == Scope::Full {
        all.extend([([6, 1032, 1], 3, 2), ([4, 2051, 1], 1, 1), ([2, 300, 34], 2, 1), ([8, 1, 1], 1, 8)]);
    }
    all
}

#[derive(Debug)]
struct MaskedSubject {
    plain: SoftmaxSubject,
    mask: MaskKind,
    repeat: usize,
    period: usize,
}

impl Subject for MaskedSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Self { plain, mask, repeat, period } = self;
        let SoftmaxSubject { function, dtype, situation, .. } = *plain;
        let [outer, n, inner] = situation.shape;
        let softmax = SoftmaxDesc { function, dtype, outer, n, inner, scale: Real::new(situation.scale) };
        let desc = MaskedSoftmaxDesc { softmax, mask: *mask, repeat: *repeat, period: *period };
        let plan = desc.plan(bench.target())?;
        let mut xs = plain.draw(Input::Normal, 1);
        let len = xs.len() / repeat;
        let mut random = Random::new(len as u64);
        // The first row of the mask leaves nothing over; of the others, about a third of the elements.
        let out_of_it: Vec<bool> = (0..len)
            .map(|i| i / (n * inner) == 0 && i % inner == 0 || random.bits().is_multiple_of(3))
            .collect();
        let row_of = |o: usize| o / (repeat * period) * period + o % period;
        let at_mask = |i: usize| row_of(i / (n * inner)) * n * inner + i % (n * inner);
        let masks: Vec<f64> = match mask {
            MaskKind::Boolean => out_of_it.iter().map(|out| if *out { 0.0 } else { 2.0 }).collect(),
            MaskKind::Additive => out_of_it
                .iter()
                .map(|out| if *out { f64::NEG_INFINITY } else { storage::round(dtype, random.normal()) })
                .collect(),
        };
        if *mask == MaskKind::Boolean {
            // What is left out may be anything.
            for (i, x) in xs.iter_mut().enumerate().filter(|(i, _)| out_of_it[at_mask(*i)]) {
                *x = [f64::NAN, f64::INFINITY, 7.0][i % 3];
            }
        }
        let expected = by_rows(situation.shape, |at| {
            let score = |&i: &usize| {
                let scaled = xs[i] * situation.scale;
                match mask {
                    MaskKind::Boolean if masks[at_mask(i)] == 0.0 => f64::NEG_INFINITY,
                    MaskKind::Boolean => scaled,
                    MaskKind::Additive => scaled + masks[at_mask(i)],
                }
            };
            let row: Vec<f64> = at.iter().map(score).collect();
            if row.iter().all(|v| *v == f64::NEG_INFINITY) {
                let nothing = if function == Softmax::Plain { 0.0 } else { f64::NEG_INFINITY };
                return row.iter().map(|_| plain.expected(nothing, 0.0)).collect();
            }
            let scales = reference::forward_scale(function, &row);
            let values = reference::forward(function, &row);
            // The scores are rounded once more.
            let widen = |(v, s): (f64, f64)| plain.expected(v, s * 4.0);
            values.into_iter().zip(scales).map(widen).collect()
        });
        let mask_type = if *mask == MaskKind::Boolean { DType::U8 } else { dtype };
        let x = bench.input("x", dtype, &xs, 0)?;
        let mask = bench.input("mask", mask_type, &masks, 0)?;
        let mut y = bench.output("y", dtype, xs.len(), 0)?;
        bench.launch(|stream| {
            let args = MaskedSoftmaxArgs { x: Some(x.view()?), mask: mask.view()?, y: y.view_mut()? };
            Ok(plan.launch(stream, args)?)
        })?;
        bench.compare(&y, &expected)
    }
}

/// Row lengths at both ends of what each layout of contiguous rows takes, whole vectors and not.
const ROWS: [[usize; 2]; 28] = [
    [300, 1],
    [5, 2],
    [37, 7],
    [37, 8],
    [17, 31],
    [33, 64],
    [17, 65],
    [9, 72],
    [9, 128],
    [5, 255],
    [5, 256],
    [6, 264],
    [3, 1000],
    [5, 1023],
    [5, 1024],
    [2, 1032],
    [2, 2050],
    [2, 4096],
    [1, 4104],
    [2, 8200],
    [1, 16384],
    [1, 16387],
    [1, 32768],
    [1, 33000],
    [1, 70000],
    [1, 131_072],
    [1, 140_000],
    [1, 270_000],
];

/// The same for rows along an earlier dimension.
const COLUMNS: [[usize; 3]; 16] = [
    [3, 1, 6],
    [2, 3, 4],
    [2, 16, 64],
    [3, 17, 66],
    [2, 5, 3],
    [2, 16, 65],
    [1, 64, 130],
    [1, 100, 33],
    [2, 128, 34],
    [1, 256, 36],
    [1, 1000, 20],
    [1, 129, 68],
    [1, 300, 7],
    [1, 512, 32],
    [1, 1030, 5],
    [1, 1100, 12],
];

fn situations(scope: Scope) -> Vec<Situation> {
    let plain = |shape| Situation { shape, input: Input::Normal, placement: Placement::Apart, scale: 1.0 };
    let mut all = vec![
        plain([0, 5, 1]),
        plain([3, 0, 2]),
        Situation { input: Input::Offset, ..plain([7, 200, 1]) },
        Situation { input: Input::Hostile, ..plain([301, 3, 1]) },
        Situation { input: Input::Hostile, ..plain([3, 4, 70]) },
        Situation { input: Input::Magnitudes, ..plain([40, 16, 1]) },
        Situation { input: Input::Uniform, scale: 0.125, ..plain([9, 96, 1]) },
        Situation { input: Input::Uniform, scale: 4.0, ..plain([2, 40, 24]) },
        Situation { placement: Placement::Misaligned, ..plain([3, 264, 1]) },
        Situation { placement: Placement::Misaligned, ..plain([2, 24, 40]) },
        Situation { placement: Placement::InPlace, ..plain([3, 520, 1]) },
        Situation { placement: Placement::InPlace, ..plain([1, 33, 40]) },
    ];
    let (rows, columns): (&[[usize; 2]], &[[usize; 3]]) = match scope {
        Scope::Quick => {
            (&[[5, 1], [7, 33], [3, 256], [2, 1024], [1, 2056]], &[[2, 3, 6], [2, 20, 34], [1, 130, 16]])
        }
        Scope::Full => (&ROWS, &COLUMNS),
    };
    all.extend(rows.iter().map(|&[outer, n]| plain([outer, n, 1])));
    all.extend(columns.iter().map(|&shape| plain(shape)));
    if scope == Scope::Full {
        for input in Input::ALL {
            all.push(Situation { input, ..plain([13, 48, 1]) });
            all.push(Situation { input, ..plain([2, 11, 66]) });
        }
        // Infinities and NaN among ordinary numbers, in every layout that combines over several warps.
        all.push(Situation { input: Input::Hostile, ..plain([2, 4096, 1]) });
        all.push(Situation { input: Input::Ramp, ..plain([1, 16384, 1]) });
        all.push(Situation { input: Input::Ramp, ..plain([1, 200, 32]) });
        all.push(Situation { placement: Placement::InPlace, ..plain([1, 33000, 1]) });
        all.push(Situation { placement: Placement::InPlace, ..plain([1, 1100, 12]) });
    }
    all
}

/// Applies `f` to each row of `tensors`, which all have the shape.
fn by_rows<T>([outer, n, inner]: [usize; 3], f: impl Fn(&[usize]) -> Vec<T>) -> Vec<T> {
    let mut out: Vec<Option<T>> = (0..outer * n * inner).map(|_| None).collect();
    for o in 0..outer {
        for i in 0..inner {
            let at: Vec<usize> = (0..n).map(|j| (o * n + j) * inner + i).collect();
            for (at, value) in at.iter().zip(f(&at)) {
                out[*at] = Some(value);
            }
        }
    }
    out.into_iter().flatten().collect()
}

fn pick(values: &[f64], at: &[usize]) -> Vec<f64> {
    at.iter().map(|&i| values[i]).collect()
}

impl SoftmaxSubject {
    fn len(&self) -> usize {
        self.situation.shape.iter().product()
    }

    fn draw(&self, input: Input, salt: u64) -> Vec<f64> {
        let len = self.len();
        let values = input.values(len, salt.wrapping_mul(1 << 20).wrapping_add(len as u64));
        values.into_iter().map(|v| storage::round(self.dtype, v)).collect()
    }

    fn lead(&self) -> usize {
        usize::from(self.situation.placement == Placement::Misaligned)
    }

    /// The smallest normal number of the type that the kernel computes in: exponentials below it may be 0.
    fn underflow(&self) -> f64 {
        if self.dtype == DType::F64 { f64::MIN_POSITIVE } else { f64::from(f32::MIN_POSITIVE) }
    }

    fn expected(&self, value: f64, scale: f64) -> Expected {
        Expected { value, scale, underflow: self.underflow() }
    }
}

impl Subject for SoftmaxSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        match self.direction {
            Direction::Forward => self.forward(bench),
            Direction::Backward => self.backward(bench),
        }
    }
}

impl SoftmaxSubject {
    fn forward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Self { function, dtype, situation, .. } = *self;
        let [outer, n, inner] = situation.shape;
        let desc = SoftmaxDesc { function, dtype, outer, n, inner, scale: Real::new(situation.scale) };
        let plan = desc.plan(bench.target())?;
        let xs = self.draw(situation.input, 1);
        let expected = by_rows(situation.shape, |at| {
            let row: Vec<f64> = pick(&xs, at).into_iter().map(|x| x * situation.scale).collect();
            let scales = reference::forward_scale(function, &row);
            let values = reference::forward(function, &row);
            values.into_iter().zip(scales).map(|(v, s)| self.expected(v, s)).collect()
        });
        if situation.placement == Placement::InPlace {
            let mut y = bench.input("y", dtype, &xs, self.lead())?;
            bench.launch(|stream| Ok(plan.launch(stream, SoftmaxArgs { x: None, y: y.view_mut()? })?))?;
            return bench.compare(&y, &expected);
        }
        let x = bench.input("x", dtype, &xs, self.lead())?;
        let mut y = bench.output("y", dtype, self.len(), self.lead())?;
        bench.launch(|stream| {
            Ok(plan.launch(stream, SoftmaxArgs { x: Some(x.view()?), y: y.view_mut()? })?)
        })?;
        bench.compare(&y, &expected)
    }

    /// A forward result and its gradient; where the input is hostile, some gradients are infinite or NaN.
    fn gradients(&self) -> (Vec<f64>, Vec<f64>) {
        let Self { function, dtype, situation, .. } = *self;
        let tame = match situation.input {
            Input::Hostile | Input::Magnitudes => Input::Normal,
            other => other,
        };
        let xs = self.draw(tame, 1);
        let ys = by_rows(situation.shape, |at| reference::forward(function, &pick(&xs, at)));
        let ys = ys.into_iter().map(|y| storage::round(dtype, y)).collect();
        let mut dys = self.draw(Input::Normal, 2);
        if situation.input == Input::Hostile {
            let specials = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0];
            for (i, dy) in dys.iter_mut().enumerate().filter(|(i, _)| i % 11 == 5) {
                *dy = specials[i / 11 % specials.len()];
            }
        }
        (ys, dys)
    }

    fn backward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Self { function, dtype, situation, .. } = *self;
        let [outer, n, inner] = situation.shape;
        let desc = SoftmaxBackwardDesc {
            forward: SoftmaxDesc { function, dtype, outer, n, inner, scale: Real::new(situation.scale) },
        };
        let plan = desc.plan(bench.target())?;
        let (ys, dys) = self.gradients();
        let factor = situation.scale;
        let expected = by_rows(situation.shape, |at| {
            let (y, dy) = (pick(&ys, at), pick(&dys, at));
            let scales = reference::backward_scale(function, &y, &dy);
            let values = reference::backward(function, &y, &dy);
            values.into_iter().zip(scales).map(|(v, s)| self.expected(v * factor, s * factor)).collect()
        });
        let y = bench.input("y", dtype, &ys, self.lead())?;
        if situation.placement == Placement::InPlace {
            let mut dx = bench.input("dx", dtype, &dys, self.lead())?;
            bench.launch(|stream| {
                let args = SoftmaxBackwardArgs { y: y.view()?, dy: None, dx: dx.view_mut()? };
                Ok(plan.launch(stream, args)?)
            })?;
            return bench.compare(&dx, &expected);
        }
        let dy = bench.input("dy", dtype, &dys, self.lead())?;
        let mut dx = bench.output("dx", dtype, self.len(), self.lead())?;
        bench.launch(|stream| {
            let args = SoftmaxBackwardArgs { y: y.view()?, dy: Some(dy.view()?), dx: dx.view_mut()? };
            Ok(plan.launch(stream, args)?)
        })?;
        bench.compare(&dx, &expected)
    }
}
