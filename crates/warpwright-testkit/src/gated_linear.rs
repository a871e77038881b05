//! Cases of gated linear units, and of the gradients of their factors.

use std::sync::Arc;

use warpwright_ops::activation::GatedActivation;
use warpwright_ops::gemm::tuning::{self, Config, PersistentConfig};
use warpwright_ops::gemm::{
    GatedActivationLinearBackwardArgs, GatedActivationLinearBackwardDesc, GatedLinearArgs, GatedLinearDesc,
    reference,
};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::{DType, Target};

use crate::budget;
use crate::case::{Bench, Case, CaseError, Scope, Subject, view, view_mut};
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
    let forward = |dtype| situations(dtype, scope).into_iter().map(case);
    let backward = |dtype| situations_backward(dtype).into_iter().map(case_backward);
    DType::FLOATS.into_iter().flat_map(forward).chain(DType::FLOATS.into_iter().flat_map(backward)).collect()
}

fn case(subject: Gated) -> Case {
    let GatedLinearDesc { dtype, rows, in_features, out_features, activation, bias, saved } = subject.desc;
    let special = if subject.special { ", special" } else { "" };
    Case {
        op: "gated_linear",
        direction: Direction::Forward,
        dtype,
        shape: vec![rows, out_features, in_features],
        input: format!("{}, bias {bias}, saved {saved}, lead {}{special}", activation.name(), subject.lead),
        budget: budget::gated(summed(dtype, in_features), dtype),
        subject: Arc::new(subject),
    }
}

fn situations(dtype: DType, scope: Scope) -> Vec<Gated> {
    let plain = |[rows, out_features, in_features]: [usize; 3], activation| {
        let (bias, saved) = (false, false);
        let desc = GatedLinearDesc { dtype, rows, in_features, out_features, activation, bias, saved };
        Gated { desc, special: false, lead: 0, config: None }
    };
    // With biases, with both factors as results, and with both.
    let with_factors = |subject: &Gated| {
        [(true, false), (false, true), (true, true)].map(|(bias, saved)| {
            let desc = GatedLinearDesc { bias, saved, ..subject.desc.clone() };
            Gated { desc, ..subject.clone() }
        })
    };
    let mut all: Vec<_> = GatedActivation::ALL.into_iter().map(|f| plain([33, 72, 88], f)).collect();
    let swiglu = |sizes| plain(sizes, GatedActivation::Swiglu);
    for sizes in [[33, 72, 88], [17, 45, 37], [2, 40, 700]] {
        all.extend(with_factors(&swiglu(sizes)));
    }
    all.extend(with_factors(&Gated { lead: 1, ..swiglu([24, 40, 64]) }));
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
        for sizes in [[rows + 8, half + 24, 136], [rows - 3, half + 13, 72], [8, 134 * half, 8]] {
            with_factors(&swiglu(sizes)).into_iter().for_each(&mut with);
        }
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
        let GatedLinearDesc { dtype, rows, in_features: k, out_features: n, bias, saved, .. } = *desc;
        let plan = match self.config.filter(|_| bench.target().sm == 90) {
            Some(config) => desc.plan_with(bench.target(), config)?,
            None => desc.plan(bench.target())?,
        };
        let values = [(rows * k, 1), (n * k, 2), (n * k, 3)].map(|(len, salt)| self.draw(len, salt));
        let [x, gate, up] = &values;
        let biases = [4, 5].map(|salt| bias.then(|| self.draw(n, salt)));
        let of_x = bench.input("x", dtype, x, self.lead)?;
        let of_gate = bench.input("gate", dtype, gate, self.lead)?;
        let of_up = bench.input("up", dtype, up, self.lead)?;
        let gate_bias = bench.optional_input("gate_bias", dtype, biases[0].as_ref(), self.lead)?;
        let up_bias = bench.optional_input("up_bias", dtype, biases[1].as_ref(), self.lead)?;
        let mut gate_out = bench.optional_output("gate_out", dtype, (rows * n, self.lead), saved)?;
        let mut up_out = bench.optional_output("up_out", dtype, (rows * n, self.lead), saved)?;
        let mut y = bench.output("y", dtype, rows * n, self.lead)?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let args = GatedLinearArgs {
                x: of_x.view()?,
                gate: of_gate.view()?,
                up: of_up.view()?,
                gate_bias: view(&gate_bias)?,
                up_bias: view(&up_bias)?,
                gate_out: view_mut(&mut gate_out)?,
                up_out: view_mut(&mut up_out)?,
                y: y.view_mut()?,
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let row = |of: &[f64], at: usize| of[at * k..(at + 1) * k].to_vec();
        let added = |c: usize| [0, 1].map(|of| biases[of].as_ref().map_or(0.0, |bias| bias[c]));
        let expected: Vec<_> = (0..rows)
            .flat_map(|r| {
                let (x, row) = (row(x, r), &row);
                (0..n).map(move |c| reference::gated_linear(desc, &x, (&row(gate, c), &row(up, c)), added(c)))
            })
            .collect();
        let compare = |of: usize, got: &[f64]| {
            let expected: Vec<_> = expected.iter().map(|all| all[of]).collect();
            crate::measure::compare(dtype, got, &Expected::all(&expected), Bench::poison(dtype))
        };
        let mut found = compare(2, &bench.read(&y)?);
        for (of, factor) in [&gate_out, &up_out].into_iter().enumerate() {
            if let Some(factor) = factor {
                found = found.merge(compare(of, &bench.read(factor)?));
            }
        }
        Ok(found)
    }
}

#[derive(Clone, Debug)]
struct Gradients {
    desc: GatedActivationLinearBackwardDesc,
    special: bool,
    lead: usize,
    config: Option<PersistentConfig>,
}

fn case_backward(subject: Gradients) -> Case {
    let GatedActivationLinearBackwardDesc { dtype, rows, in_features, out_features, transpose_b, activation } =
        subject.desc;
    let letter = if transpose_b { "t" } else { "n" };
    let special = if subject.special { ", special" } else { "" };
    Case {
        op: "gated_activation_linear",
        direction: Direction::Backward,
        dtype,
        shape: vec![rows, in_features, out_features],
        input: format!("{}, n{letter}, lead {}{special}", activation.name(), subject.lead),
        budget: budget::gated(summed(dtype, out_features), dtype),
        subject: Arc::new(subject),
    }
}

fn situations_backward(dtype: DType) -> Vec<Gradients> {
    let of = |[rows, in_features, out_features]: [usize; 3], activation, transpose_b| {
        let desc = GatedActivationLinearBackwardDesc {
            dtype,
            rows,
            in_features,
            out_features,
            transpose_b,
            activation,
        };
        Gradients { desc, special: false, lead: 0, config: None }
    };
    let mut all: Vec<_> = GatedActivation::ALL.into_iter().map(|f| of([33, 72, 88], f, false)).collect();
    let swiglu = |sizes| of(sizes, GatedActivation::Swiglu, false);
    all.extend([[0, 8, 8], [8, 0, 8], [3, 5, 0], [1, 1, 1], [17, 45, 37], [2, 40, 700]].map(swiglu));
    all.push(Gradients { lead: 1, ..swiglu([24, 40, 64]) });
    all.push(Gradients { special: true, ..swiglu([40, 72, 24]) });
    let layouts = tuning::configs(dtype, Target::sm(90)).into_iter().filter_map(|config| match config {
        Config::Persistent(layout) if dtype.bytes() == 2 => Some(layout),
        _ => None,
    });
    for layout in layouts {
        let mut with = |subject: Gradients| all.push(Gradients { config: Some(layout), ..subject });
        let (rows, cols, round) = (layout.rows as usize, layout.cols as usize, layout.stages as usize * 64);
        // More than a tile each way and than a round of the ring; results that begin anywhere; more tiles than blocks.
        for activation in GatedActivation::ALL {
            with(of([rows + 8, cols + 24, round + 88], activation, false));
        }
        with(of([rows - 3, cols + 13, 136], GatedActivation::GegluTanh, true));
        with(swiglu([8, 134 * cols, 8]));
        with(Gradients { special: true, ..swiglu([40, 72, 200]) });
    }
    all
}

impl Subject for Gradients {
    fn layout(&self) -> String {
        self.config.map_or(String::new(), |config| config.name())
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let desc = &self.desc;
        let GatedActivationLinearBackwardDesc { dtype, rows, in_features: n, out_features: k, .. } = *desc;
        let plan = match self.config.filter(|_| bench.target().sm == 90) {
            Some(config) => desc.plan_with(bench.target(), config)?,
            None => desc.plan(bench.target())?,
        };
        let sizes = [(rows * k, 1), (n * k, 2), (rows * n, 3), (rows * n, 4)];
        let [dy, weight, gate, up] = sizes.map(|(len, salt)| draw(dtype, self.special, len, salt));
        let of_dy = bench.input("dy", dtype, &dy, self.lead)?;
        let of_weight = bench.input("weight", dtype, &weight, self.lead)?;
        let of_gate = bench.input("gate", dtype, &gate, self.lead)?;
        let of_up = bench.input("up", dtype, &up, self.lead)?;
        let mut dgate = bench.output("dgate", dtype, rows * n, self.lead)?;
        let mut dup = bench.output("dup", dtype, rows * n, self.lead)?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let args = GatedActivationLinearBackwardArgs {
                dy: of_dy.view()?,
                weight: of_weight.view()?,
                gate: of_gate.view()?,
                up: of_up.view()?,
                dgate: dgate.view_mut()?,
                dup: dup.view_mut()?,
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let places = (0..rows).flat_map(|row| (0..n).map(move |col| (row, col)));
        let (of_dgate, of_dup): (Vec<_>, Vec<_>) = places
            .enumerate()
            .map(|(i, at)| {
                let [dgate, dup] =
                    reference::gated_activation_linear_backward(desc, (&dy, &weight), (gate[i], up[i]), at);
                (dgate, dup)
            })
            .unzip();
        let compare = |got: &[f64], expected: &[(f64, f64)]| {
            crate::measure::compare(dtype, got, &Expected::all(expected), Bench::poison(dtype))
        };
        let found = compare(&bench.read(&dgate)?, &of_dgate);
        Ok(found.merge(compare(&bench.read(&dup)?, &of_dup)))
    }
}
