//! Cases of the normalisation across channels.

use std::sync::Arc;

use warpwright_ops::local_response_norm::{
    Coefficients, LocalResponseNormArgs, LocalResponseNormBackwardArgs, LocalResponseNormBackwardDesc,
    LocalResponseNormDesc, reference,
};
use warpwright_ops::plan::Real;
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Scope, Subject, view_mut};
use crate::inputs::Input;
use crate::measure::{Comparison, Expected};
use crate::storage;

#[derive(Debug)]
struct LrnSubject {
    direction: Direction,
    desc: LocalResponseNormDesc,
    /// Whether there are infinities and NaN among the elements.
    special: bool,
    lead: usize,
}

/// `alpha`, `beta`, `k`.
type Numbers = [f64; 3];

const PYTORCH: Numbers = [1e-4, 0.75, 1.0];
/// So large that the window matters.
const STRONG: Numbers = [0.9, 0.75, 2.0];
const OTHER: Numbers = [1.5, 1.25, 0.5];

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for direction in [Direction::Forward, Direction::Backward] {
        for dtype in DType::FLOATS {
            for (size, [images, channels, spatial], [alpha, beta, k], special) in situations(scope) {
                let coefficients =
                    Coefficients { alpha: Real::new(alpha), beta: Real::new(beta), k: Real::new(k) };
                let desc = LocalResponseNormDesc { dtype, images, channels, spatial, size, coefficients };
                let lead = usize::from(images == 3);
                out.push(Case {
                    op: "local_response_norm",
                    direction,
                    dtype,
                    shape: vec![images, channels, spatial],
                    input: format!("size {size}, beta {beta}{}", if special { ", special" } else { "" }),
                    budget: budget::elementwise(dtype),
                    subject: Arc::new(LrnSubject { direction, desc, special, lead }),
                });
            }
        }
    }
    out
}

fn situations(scope: Scope) -> Vec<(usize, [usize; 3], Numbers, bool)> {
    let mut all = vec![
        (5, [0, 8, 30], PYTORCH, false),
        (5, [2, 13, 147], PYTORCH, false),
        (5, [1, 40, 33], STRONG, false),
        (3, [3, 9, 70], STRONG, false),
        (5, [2, 17, 20], OTHER, false),
        (3, [1, 8, 129], OTHER, false),
        (5, [2, 12, 50], STRONG, true),
        (4, [2, 11, 19], STRONG, false),
        (5, [7, 23, 1], STRONG, false),
        (100, [1, 10, 9], OTHER, false),
        (7, [2, 10, 20], STRONG, true),
        (1, [1, 3, 40], STRONG, false),
    ];
    if scope == Scope::Full {
        for size in [1, 2, 3, 4, 5, 6, 9] {
            for channels in [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33] {
                all.push((size, [2, channels, 16], STRONG, false));
            }
        }
        all.extend([1, 2, 15, 31, 127, 128, 129, 257].map(|spatial| (5, [3, 10, spatial], STRONG, false)));
        all.push((5, [1, 300, 40], PYTORCH, false));
        all.push((5, [2, 64, 729], PYTORCH, false));
    }
    all
}

impl LrnSubject {
    fn draw(&self, salt: u64) -> Vec<f64> {
        let LocalResponseNormDesc { dtype, images, channels, spatial, .. } = self.desc;
        let values = Input::Normal.values(images * channels * spatial, salt << 20 | spatial as u64);
        values.into_iter().map(|v| storage::round(dtype, 2.0 * v)).collect()
    }

    fn x(&self) -> Vec<f64> {
        let mut x = self.draw(1);
        if self.special {
            let specials = [f64::INFINITY, f64::NAN, 0.0, f64::NEG_INFINITY, -0.0];
            x.iter_mut().step_by(37).enumerate().for_each(|(i, v)| *v = specials[i % specials.len()]);
        }
        x
    }

    /// `f` of the channels at every place; the results where their elements lie.
    fn by_place<T: Copy>(&self, of: impl Fn(usize) -> T, f: impl Fn(&[T]) -> Vec<Expected>) -> Vec<Expected> {
        let LocalResponseNormDesc { images, channels, spatial, .. } = self.desc;
        let mut out = vec![Expected::exactly(0.0); images * channels * spatial];
        for image in 0..images {
            for place in 0..spatial {
                let at = |c: usize| (image * channels + c) * spatial + place;
                let column: Vec<T> = (0..channels).map(|c| of(at(c))).collect();
                f(&column).into_iter().enumerate().for_each(|(c, e)| out[at(c)] = e);
            }
        }
        out
    }

    /// Units in which the power may err: its logarithm carries the errors of the sum `exponent` times.
    fn conditioned(&self, scale: f64) -> f64 {
        scale * (1.0 + self.desc.coefficients.beta.get())
    }

    fn forward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let LocalResponseNormDesc { dtype, size, coefficients, .. } = self.desc;
        let plan = self.desc.plan(bench.target())?;
        let xs = self.x();
        let x = bench.input("x", dtype, &xs, self.lead)?;
        let mut y = bench.output("y", dtype, xs.len(), self.lead)?;
        bench.launch(|stream| {
            Ok(plan.launch(stream, LocalResponseNormArgs { x: x.view()?, y: y.view_mut()? })?)
        })?;
        let expected = self.by_place(
            |at| xs[at],
            |x| {
                let y = reference::forward(coefficients, size, x);
                let of =
                    |value: f64| Expected { value, scale: self.conditioned(value.abs()), underflow: 0.0 };
                y.into_iter().map(of).collect()
            },
        );
        bench.compare(&y, &expected)
    }

    fn backward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let LocalResponseNormDesc { dtype, size, coefficients, .. } = self.desc;
        let plan = LocalResponseNormBackwardDesc { forward: self.desc.clone() }.plan(bench.target())?;
        let (xs, dys) = (self.x(), self.draw(2));
        let (x, dy) = (bench.input("x", dtype, &xs, self.lead)?, bench.input("dy", dtype, &dys, self.lead)?);
        let mut dx = bench.output("dx", dtype, xs.len(), self.lead)?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let args = LocalResponseNormBackwardArgs {
                x: x.view()?,
                dy: dy.view()?,
                dx: dx.view_mut()?,
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let expected = self.by_place(
            |at| (xs[at], dys[at]),
            |column| {
                let (x, dy): (Vec<f64>, Vec<f64>) = column.iter().copied().unzip();
                let dx = reference::backward(coefficients, size, &x, &dy).into_iter();
                dx.map(|(value, scale)| Expected { value, scale: self.conditioned(scale), underflow: 0.0 })
                    .collect()
            },
        );
        bench.compare(&dx, &expected)
    }
}

impl Subject for LrnSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        match self.direction {
            Direction::Forward => self.forward(bench),
            Direction::Backward => self.backward(bench),
        }
    }
}
