//! Cases of recurrent nets.

use std::sync::Arc;

use warpwright_ops::recurrent::tuning::Schedule;
use warpwright_ops::recurrent::{LstmArgs, LstmDesc, reference::Lstm};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget::Budget;
use crate::case::{Bench, Case, CaseError, Placed, Scope, Subject};
use crate::inputs::Input;
use crate::measure::{Comparison, Expected};
use crate::storage;

#[derive(Debug)]
struct LstmSubject {
    desc: LstmDesc,
    /// Whether every step is launched by itself, whatever tuning says.
    stepwise: bool,
    lead: usize,
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for dtype in DType::FLOATS {
        // Steps, batches, input, units; what is given; placement.
        let mut all = vec![
            ([5, 1, 24, 32], true, true, 0, false),
            ([4, 3, 8, 64], true, true, 0, false),
            ([3, 9, 16, 48], true, false, 0, false),
            ([3, 2, 7, 11], false, true, 0, false),
            ([1, 4, 5, 16], false, false, 1, false),
            ([6, 2, 16, 32], true, true, 0, true),
            ([2, 0, 4, 8], true, true, 0, false),
        ];
        if scope == Scope::Full {
            all.extend([
                ([40, 2, 16, 32], true, true, 0, false),
                ([3, 17, 16, 128], true, true, 0, false),
                ([3, 4, 16, 272], true, true, 0, false),
                ([2, 1, 3, 1], true, true, 0, false),
                ([9, 5, 40, 20], true, true, 1, false),
            ]);
        }
        for ([steps, batch, input, hidden], bias, state, lead, stepwise) in all {
            let desc = LstmDesc { dtype, steps, batch, input, hidden, bias, h0: state, c0: state };
            let how = if stepwise { "step by step" } else { "tuned" };
            out.push(Case {
                op: "lstm",
                direction: Direction::Forward,
                dtype,
                shape: vec![steps, batch, input, hidden],
                input: format!("{how}, bias {bias}, state {state}, lead {lead}"),
                budget: budget(dtype),
                subject: Arc::new(LstmSubject { desc, stepwise, lead }),
            });
        }
    }
    out
}

/// A hidden state is below 1 and carries the roundings of the states before it, which the gates damp. Norm-wise 1.5 times
/// what PyTorch reaches.
fn budget(dtype: DType) -> Budget {
    let (norm, element) = match dtype {
        DType::F64 => (1e-13, 64.0),
        DType::F32 => (5.7e-7, 16.0),
        DType::F16 => (3.9e-4, 3.0),
        _ => (3.45e-3, 3.0),
    };
    Budget { norm, element, norm_of_one: 2.0 * norm }
}

impl LstmSubject {
    fn draw(&self, len: usize, salt: u64, scale: f64) -> Vec<f64> {
        let values = Input::Normal.values(len, salt << 32 | len as u64);
        values.into_iter().map(|v| storage::round(self.desc.dtype, scale * v)).collect()
    }
}

impl Subject for LstmSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let LstmDesc { dtype, steps, batch, input, hidden, bias, h0, c0 } = self.desc;
        let plan = if self.stepwise {
            self.desc.plan_with(bench.target(), Schedule::Stepwise)?
        } else {
            self.desc.plan(bench.target())?
        };
        let weight = 1.0 / (hidden as f64).sqrt();
        let x_values = self.draw(steps * batch * input, 1, 1.0);
        let w_ih_values = self.draw(4 * hidden * input, 2, weight);
        let w_hh_values = self.draw(4 * hidden * hidden, 3, weight);
        let (b_ih_values, b_hh_values) = (self.draw(4 * hidden, 4, weight), self.draw(4 * hidden, 5, weight));
        let (h0_values, c0_values) = (self.draw(batch * hidden, 6, 0.5), self.draw(batch * hidden, 7, 1.0));
        let given = |name, values: &[f64]| bench.input(name, dtype, values, self.lead);
        let (x, w_ih, w_hh) =
            (given("x", &x_values)?, given("w_ih", &w_ih_values)?, given("w_hh", &w_hh_values)?);
        let (b_ih, b_hh) = (given("b_ih", &b_ih_values)?, given("b_hh", &b_hh_values)?);
        let (first_h, first_c) = (given("h0", &h0_values)?, given("c0", &c0_values)?);
        let state = batch * hidden;
        let mut y = bench.output("y", dtype, steps * state, self.lead)?;
        let mut h_n = bench.output("h_n", dtype, state, self.lead)?;
        let mut c_n = bench.output("c_n", dtype, state, self.lead)?;
        let scratch = plan.tensors()[10].clone();
        let workspace = scratch.present.then(|| bench.output("workspace", scratch.dtype, scratch.len, 0));
        let mut workspace = workspace.transpose()?;
        bench.launch(|stream| {
            let args = LstmArgs {
                x: x.view()?,
                w_ih: w_ih.view()?,
                w_hh: w_hh.view()?,
                b_ih: if bias { Some(b_ih.view()?) } else { None },
                b_hh: if bias { Some(b_hh.view()?) } else { None },
                h0: if h0 { Some(first_h.view()?) } else { None },
                c0: if c0 { Some(first_c.view()?) } else { None },
                y: y.view_mut()?,
                h_n: h_n.view_mut()?,
                c_n: c_n.view_mut()?,
                workspace: workspace.as_mut().map(Placed::view_mut).transpose()?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let reference = Lstm {
            sizes: [steps, batch, input, hidden],
            x: &x_values,
            w_ih: &w_ih_values,
            w_hh: &w_hh_values,
            bias: bias.then_some((&b_ih_values, &b_hh_values)),
            h0: h0.then_some(&h0_values),
            c0: c0.then_some(&c0_values),
        };
        let (want_y, want_c) = reference.forward();
        // The scale of a state is that of what the gates add up to.
        let of = |values: &[f64]| -> Vec<Expected> {
            let scaled = |&value: &f64| Expected { value, scale: 1f64.max(value.abs()), underflow: 0.0 };
            values.iter().map(scaled).collect()
        };
        let last = &want_y[(steps - 1) * state..];
        let of_y = bench.compare(&y, &of(&want_y))?;
        let of_state = bench.compare(&h_n, &of(last))?.merge(bench.compare(&c_n, &of(&want_c))?);
        Ok(of_y.merge(of_state))
    }
}
