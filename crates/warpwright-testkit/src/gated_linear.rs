//! Cases of gated linear units.

use std::sync::Arc;

use warpwright_ops::activation::GatedActivation;
use warpwright_ops::gemm::tuning::{self, Config, PersistentConfig};
use warpwright_ops::gemm::{GatedLinearArgs, GatedLinearDesc, reference};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::{DType, Target};

use crate::budget;
use crate::case::{Bench, Case, CaseError, Scope, Subject, view_mut};
use crate::gemm::{draw, summed};
use crate::measure::{Comparison, Expected};

#[derive(Clone, Debug)]
struct Gated {
    desc: GatedLinearDesc,
    /// Whether there are infinities and NaN among the elements.
    special: bool,
    lead: usize,
    /// The layout, where the target has it.
    config: Option<PersistentConfig>,
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let of = |dtype| situations(dtype, scope).into_iter().map(case);
    DType::FLOATS.into_iter().flat_map(of).collect()
}

fn case(subject: Gated) -> Case {
    let GatedLinearDesc { dtype, rows, in_features, out_features, activation } = subject.desc;
    let special = if subject.special { ", special" } else { "" };
    Case {
        op: "gated_linear",
        direction: Direction::Forward,
        dtype,
        shape: vec![rows, out_features, in_features],
        input: format!("{}, lead {}{special}", activation.name(), subject.lead),
        budget: budget::gated(summed(dtype, in_features), dtype),
        subject: Arc::new(subject),
    }
}

fn situations(dtype: DType, scope: Scope) -> Vec<Gated> {
    let plain = |[rows, out_features, in_features]: [usize; 3], activation| {
        let desc = GatedLinearDesc { dtype, rows, in_features, out_features, activation };
        Gated { desc, special: false, lead: 0, config: None }
    };
    let mut all: Vec<_> = GatedActivation::ALL.into_iter().map(|f| plain([33, 72, 88], f)).collect();
    let swiglu = |sizes| plain(sizes, GatedActivation::Swiglu);
    all.extend([[0, 8, 8], [8, 0, 8], [3, 5, 0], [1, 1, 1], [17, 45, 37], [2, 40, 700]].map(swiglu));
    all.push(Gated { lead: 1, ..swiglu([24, 40, 64]) });
    all.push(Gated { special: true, ..swiglu([40, 72, 24]) });
    let layouts = tuning::configs(dtype, Target::sm(90)).into_iter().filter_map(|config| match config {
        Config::Persistent(layout) if dtype.bytes() == 2 && layout.cols >= 128 => Some(layout),
        _ => None,
    });
    for layout in layouts {
        let mut with = |subject: Gated| all.push(Gated { config: Some(layout), ..subject });
        let (rows, half, round) =
            (layout.rows as usize, layout.cols as usize / 2, layout.stages as usize * 64);
        // More than a tile each way and than a round of the ring; results that begin anywhere; more tiles than blocks.
        for activation in GatedActivation::ALL {
            with(plain([rows + 8, half + 24, round + 88], activation));
        }
        with(plain([rows - 3, half + 13, 136], GatedActivation::GegluTanh));
        with(swiglu([8, 134 * half, 8]));
        with(Gated { special: true, ..swiglu([40, 72, 200]) });
    }
    if scope == Scope::Full {
        for side in [2, 7, 8, 15, 31, 63, 64, 65, 127, 128, 129, 200] {
            all.extend([[side, 24, 40], [24, side, 40], [24, 40, side]].map(swiglu));
        }
    }
    all
}

impl Gated {
    fn draw(&self, len: usize, salt: u64) -> Vec<f64> {
        draw(self.desc.dtype, self.special, len, salt)
    }
}

impl Subject for Gated {
    fn layout(&self) -> String {
        self.config.map_or(String::new(), |config| config.name())
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let desc = &self.desc;
        let GatedLinearDesc { dtype, rows, in_features: k, out_features: n, .. } = *desc;
        let plan = match self.config.filter(|_| bench.target().sm == 90) {
            Some(config) => desc.plan_with(bench.target(), config)?,
            None => desc.plan(bench.target())?,
        };
        let values = [(rows * k, 1), (n * k, 2), (n * k, 3)].map(|(len, salt)| self.draw(len, salt));
        let [x, gate, up] = &values;
        let of_x = bench.input("x", dtype, x, self.lead)?;
        let of_gate = bench.input("gate", dtype, gate, self.lead)?;
        let of_up = bench.input("up", dtype, up, self.lead)?;
        let mut y = bench.output("y", dtype, rows * n, self.lead)?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let args = GatedLinearArgs {
                x: of_x.view()?,
                gate: of_gate.view()?,
                up: of_up.view()?,
                y: y.view_mut()?,
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let row = |of: &[f64], at: usize| of[at * k..(at + 1) * k].to_vec();
        let expected = (0..rows).flat_map(|r| {
            let x = row(x, r);
            (0..n).map(move |c| reference::gated_linear(desc, &x, &row(gate, c), &row(up, c)))
        });
        let expected = Expected::all(&expected.collect::<Vec<_>>());
        let got = bench.read(&y)?;
        Ok(crate::measure::compare(dtype, &got, &expected, Bench::poison(dtype)))
    }
}
