//! Cases of the activations.

use std::sync::Arc;

use warpwright_ops::activation::{
    Activation, ActivationArgs, ActivationBackwardArgs, ActivationBackwardDesc, ActivationDesc,
    GatedActivation, GatedArgs, GatedBackwardArgs, GatedBackwardDesc, GatedDesc, reference,
};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Placement, Scope, Subject};
use crate::inputs::{Input, awkward_lengths};
use crate::measure::{Comparison, Expected};
use crate::storage;

#[derive(Clone, Copy, Debug)]
enum Unit {
    Plain(Activation),
    Gated(GatedActivation),
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Plain(f) => f.name(),
            Self::Gated(f) => f.name(),
        }
    }
}

#[derive(Debug)]
struct ActivationSubject {
    unit: Unit,
    direction: Direction,
    dtype: DType,
    len: usize,
    input: Input,
    placement: Placement,
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let units =
        Activation::ALL.into_iter().map(Unit::Plain).chain(GatedActivation::ALL.into_iter().map(Unit::Gated));
    let mut out = Vec::new();
    for unit in units {
        for direction in [Direction::Forward, Direction::Backward] {
            for dtype in DType::FLOATS {
                for (input, len, placement) in situations(scope) {
                    let in_place = placement == Placement::InPlace;
                    if in_place && matches!(unit, Unit::Gated(_)) {
                        continue;
                    }
                    out.push(Case {
                        op: unit.name(),
                        direction,
                        dtype,
                        shape: vec![len],
                        input: match placement {
                            Placement::Apart => input.name().to_owned(),
                            Placement::Misaligned => format!("{}, misaligned", input.name()),
                            Placement::InPlace => format!("{}, in place", input.name()),
                        },
                        budget: match input {
                            Input::Zero => budget::elementwise(dtype).of_alike(),
                            _ => budget::elementwise(dtype),
                        },
                        subject: Arc::new(ActivationSubject {
                            unit,
                            direction,
                            dtype,
                            len,
                            input,
                            placement,
                        }),
                    });
                }
            }
        }
    }
    out
}

fn situations(scope: Scope) -> Vec<(Input, usize, Placement)> {
    let mut all = vec![
        (Input::Normal, 4099, Placement::Apart),
        (Input::Ramp, 2053, Placement::Apart),
        (Input::Magnitudes, 1021, Placement::Apart),
        (Input::Hostile, 515, Placement::Apart),
        (Input::Hostile, 261, Placement::Misaligned),
        (Input::Normal, 519, Placement::InPlace),
    ];
    match scope {
        Scope::Quick => {
            all.extend([0, 1, 2, 3, 5, 7, 8, 9, 17, 67].map(|n| (Input::Normal, n, Placement::Apart)));
        }
        Scope::Full => {
            all.extend(Input::ALL.map(|input| (input, 2048, Placement::Apart)));
            all.extend((1..=17).map(|n| (Input::Normal, n, Placement::Misaligned)));
            all.extend(awkward_lengths().into_iter().map(|n| (Input::Normal, n, Placement::Apart)));
        }
    }
    all
}

impl ActivationSubject {
    /// Values of one input as the tensor will hold them.
    fn draw(&self, input: Input, salt: u64) -> Vec<f64> {
        let values = input.values(self.len, salt.wrapping_mul(1 << 20).wrapping_add(self.len as u64));
        values.into_iter().map(|v| storage::round(self.dtype, v)).collect()
    }

    /// Gradients and gated values: ordinary, and special where the function and its slope are not near zero: there the
    /// sign of a rounding error, times an infinity, would say nothing about the kernel.
    fn companion(&self, salt: u64, argument: &[f64]) -> Vec<f64> {
        let mut values = self.draw(Input::Normal, salt);
        if self.input == Input::Hostile {
            let specials = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0];
            let f = match self.unit {
                Unit::Plain(f) => f,
                Unit::Gated(f) => f.activation(),
            };
            let exact = matches!(f, Activation::Relu | Activation::LeakyRelu { .. });
            let clear = |x: f64| {
                let (value, slope) = (reference::forward(f, x), reference::derivative(f, x));
                exact || value.abs() > 0.01 && slope.abs() > 0.01
            };
            for (i, (value, &x)) in values.iter_mut().zip(argument).enumerate() {
                if i % 7 == salt as usize % 7 && clear(x) {
                    *value = specials[i / 7 % specials.len()];
                }
            }
        }
        values
    }

    fn lead(&self) -> usize {
        usize::from(self.placement == Placement::Misaligned)
    }

    /// The smallest normal number of the type that the kernel computes in.
    fn underflow(&self) -> f64 {
        if self.dtype == DType::F64 { f64::MIN_POSITIVE } else { f64::from(f32::MIN_POSITIVE) }
    }

    /// A factor of the result that underflows is lost; the others enlarge what is lost.
    fn expected(&self, value: f64, scale: f64, x: f64, others: f64) -> Expected {
        // |x| from the product, x^2 from the slope of a cubic argument; beyond 1000 every tail is zero in f64 too.
        let magnitude = x.abs().min(1000.0);
        let enlarged = (1.0 + magnitude) * (1.0 + magnitude * magnitude) * others.abs().max(1.0);
        Expected { value, scale, underflow: (self.underflow() * enlarged).min(1.0) }
    }
}

impl Subject for ActivationSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        match (self.unit, self.direction) {
            (Unit::Plain(f), Direction::Forward) => self.forward(f, bench),
            (Unit::Plain(f), Direction::Backward) => self.backward(f, bench),
            (Unit::Gated(f), Direction::Forward) => self.gated_forward(f, bench),
            (Unit::Gated(f), Direction::Backward) => self.gated_backward(f, bench),
        }
    }
}

impl ActivationSubject {
    fn forward(&self, f: Activation, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Self { dtype, len, .. } = *self;
        let plan = ActivationDesc { activation: f, dtype, len }.plan(bench.target())?;
        let xs = self.draw(self.input, 1);
        let expected = xs
            .iter()
            .map(|&x| self.expected(reference::forward(f, x), reference::forward_scale(f, x), x, 1.0));
        let expected: Vec<_> = expected.collect();
        if self.placement == Placement::InPlace {
            let mut y = bench.input("y", dtype, &xs, self.lead())?;
            bench.launch(|stream| Ok(plan.launch(stream, ActivationArgs { x: None, y: y.view_mut()? })?))?;
            return bench.compare(&y, &expected);
        }
        let x = bench.input("x", dtype, &xs, self.lead())?;
        let mut y = bench.output("y", dtype, len, self.lead())?;
        bench.launch(|stream| {
            Ok(plan.launch(stream, ActivationArgs { x: Some(x.view()?), y: y.view_mut()? })?)
        })?;
        bench.compare(&y, &expected)
    }

    fn backward(&self, f: Activation, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Self { dtype, len, .. } = *self;
        let plan = ActivationBackwardDesc { activation: f, dtype, len }.plan(bench.target())?;
        let xs = self.draw(self.input, 1);
        let dys = self.companion(2, &xs);
        let expected = xs.iter().zip(&dys).map(|(&x, &dy)| {
            let scale = dy.abs() * reference::derivative_scale(f, x);
            self.expected(reference::backward(f, x, dy), scale, x, dy)
        });
        let expected: Vec<_> = expected.collect();
        let x = bench.input("x", dtype, &xs, self.lead())?;
        if self.placement == Placement::InPlace {
            let mut dx = bench.input("dx", dtype, &dys, self.lead())?;
            bench.launch(|stream| {
                let args = ActivationBackwardArgs { x: x.view()?, dy: None, dx: dx.view_mut()? };
                Ok(plan.launch(stream, args)?)
            })?;
            return bench.compare(&dx, &expected);
        }
        let dy = bench.input("dy", dtype, &dys, self.lead())?;
        let mut dx = bench.output("dx", dtype, len, self.lead())?;
        bench.launch(|stream| {
            let args = ActivationBackwardArgs { x: x.view()?, dy: Some(dy.view()?), dx: dx.view_mut()? };
            Ok(plan.launch(stream, args)?)
        })?;
        bench.compare(&dx, &expected)
    }

    fn gated_forward(&self, f: GatedActivation, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Self { dtype, len, .. } = *self;
        let plan = GatedDesc { activation: f, dtype, len }.plan(bench.target())?;
        let gates = self.draw(self.input, 1);
        let ups = self.companion(3, &gates);
        let expected = gates.iter().zip(&ups).map(|(&gate, &up)| {
            let scale = up.abs() * reference::forward_scale(f.activation(), gate);
            self.expected(reference::gated_forward(f, gate, up), scale, gate, up)
        });
        let expected: Vec<_> = expected.collect();
        let gate = bench.input("gate", dtype, &gates, self.lead())?;
        let up = bench.input("up", dtype, &ups, self.lead())?;
        let mut y = bench.output("y", dtype, len, self.lead())?;
        bench.launch(|stream| {
            Ok(plan.launch(stream, GatedArgs { gate: gate.view()?, up: up.view()?, y: y.view_mut()? })?)
        })?;
        bench.compare(&y, &expected)
    }

    fn gated_backward(&self, f: GatedActivation, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Self { dtype, len, .. } = *self;
        let plan = GatedBackwardDesc { activation: f, dtype, len }.plan(bench.target())?;
        let gates = self.draw(self.input, 1);
        let (ups, dys) = (self.companion(3, &gates), self.companion(4, &gates));
        let a = f.activation();
        let mut dgates = Vec::with_capacity(len);
        let mut dups = Vec::with_capacity(len);
        for ((&gate, &up), &dy) in gates.iter().zip(&ups).zip(&dys) {
            let (dgate, dup) = reference::gated_backward(f, gate, up, dy);
            let (rate, value) = (reference::derivative_scale(a, gate), reference::forward_scale(a, gate));
            dgates.push(self.expected(
                dgate,
                (dy * up).abs() * rate,
                gate,
                dy.abs().max(1.0) * up.abs().max(1.0),
            ));
            dups.push(self.expected(dup, dy.abs() * value, gate, dy));
        }
        let gate = bench.input("gate", dtype, &gates, self.lead())?;
        let up = bench.input("up", dtype, &ups, self.lead())?;
        let dy = bench.input("dy", dtype, &dys, self.lead())?;
        let mut dgate = bench.output("dgate", dtype, len, self.lead())?;
        let mut dup = bench.output("dup", dtype, len, self.lead())?;
        bench.launch(|stream| {
            let args = GatedBackwardArgs {
                gate: gate.view()?,
                up: up.view()?,
                dy: dy.view()?,
                dgate: dgate.view_mut()?,
                dup: dup.view_mut()?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        Ok(bench.compare(&dgate, &dgates)?.merge(bench.compare(&dup, &dups)?))
    }
}
