//! Cases of products beside an activation.

use std::sync::Arc;

use warpwright_ops::activation::Activation;
use warpwright_ops::gemm::tuning::{self, Config, PersistentConfig};
use warpwright_ops::gemm::{
    ActivationLinearBackwardArgs, ActivationLinearBackwardDesc, LinearActivationArgs, LinearActivationDesc,
    reference,
};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::{DType, Target};

use crate::budget;
use crate::case::{Bench, Case, CaseError, Scope, Subject, view, view_mut};
use crate::gemm::{draw, summed};
use crate::measure::{Comparison, Expected};

#[derive(Clone, Debug)]
struct Layer {
    direction: Direction,
    dtype: DType,
    /// Rows and columns of the results, and the common dimension.
    sizes: [usize; 3],
    transpose_b: bool,
    bias: bool,
    activation: Activation,
    /// Whether there are infinities and NaN among the elements.
    special: bool,
    lead: usize,
    /// The layout, where the target has it.
    config: Option<PersistentConfig>,
}

/// Every case of both operations.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut all = Vec::new();
    for direction in [Direction::Forward, Direction::Backward] {
        for dtype in DType::FLOATS {
            all.extend(situations(direction, dtype, scope).into_iter().map(case));
        }
    }
    all
}

fn case(subject: Layer) -> Case {
    let Layer { direction, dtype, sizes, transpose_b, bias, activation, special, lead, .. } = subject;
    let op = if direction == Direction::Forward { "linear_activation" } else { "activation_linear" };
    let letter = if transpose_b { "t" } else { "n" };
    let special = if special { ", special" } else { "" };
    Case {
        op,
        direction,
        dtype,
        shape: sizes.to_vec(),
        input: format!("{}, n{letter}, bias {bias}, lead {lead}{special}", activation.name()),
        budget: budget::gated(summed(dtype, sizes[2]), dtype),
        subject: Arc::new(subject),
    }
}

fn situations(direction: Direction, dtype: DType, scope: Scope) -> Vec<Layer> {
    let bias = direction == Direction::Forward;
    let of = |sizes, activation| Layer {
        direction,
        dtype,
        sizes,
        transpose_b: bias,
        bias,
        activation,
        special: false,
        lead: 0,
        config: None,
    };
    let functions = || Activation::ALL.into_iter().filter(|activation| activation.parameter().is_none());
    let gelu = |sizes| of(sizes, Activation::GeluErf);
    let turned = |layer: Layer| Layer { transpose_b: !layer.transpose_b, ..layer };
    let mut all: Vec<_> = functions().map(|activation| of([33, 72, 88], activation)).collect();
    all.extend([[0, 8, 8], [8, 0, 8], [3, 5, 0], [1, 1, 1], [17, 45, 37], [2, 40, 700]].map(gelu));
    all.push(turned(gelu([24, 40, 64])));
    all.push(Layer { bias: false, ..gelu([24, 40, 64]) });
    all.push(Layer { lead: 1, ..gelu([24, 40, 64]) });
    all.push(Layer { special: true, ..of([40, 72, 24], Activation::Relu) });
    all.push(Layer { special: true, ..gelu([40, 72, 24]) });
    let layouts = tuning::configs(dtype, Target::sm(90)).into_iter().filter_map(|config| match config {
        // Where two results are stored, a warpgroup has 64 rows.
        Config::Persistent(layout) if dtype.bytes() == 2 && !(bias && layout.rows > 64 * layout.groups) => {
            Some(layout)
        }
        _ => None,
    });
    for layout in layouts {
        let mut with = |layer: Layer| all.push(Layer { config: Some(layout), ..layer });
        let (rows, cols, round) = (layout.rows as usize, layout.cols as usize, layout.stages as usize * 64);
        // More than a tile each way and than a round of the ring; results that begin anywhere; more tiles than blocks.
        with(gelu([rows + 8, cols + 24, round + 88]));
        // Weights along the columns leave fewer registers.
        if direction == Direction::Backward || cols < 256 {
            with(turned(of([rows + 8, cols + 24, 136], Activation::GeluTanh)));
        }
        with(Layer { transpose_b: true, ..of([rows - 3, cols + 13, 136], Activation::Silu) });
        with(Layer { bias: false, ..of([8, 134 * cols, 8], Activation::Relu) });
        with(Layer { special: true, ..of([40, 72, 200], Activation::Tanh) });
        if (layout.rows, layout.cols) == (128, 128) {
            // Several tiles a block, for warpgroups that take turns: fewer slices than stages, and more.
            with(gelu([8, 400 * cols, 136]));
            with(of([8, 270 * cols, round + 72], Activation::Silu));
        }
        if (layout.rows, layout.cols) == (128, 256) {
            functions().for_each(|activation| with(of([72, 136, 72], activation)));
        }
    }
    if scope == Scope::Full {
        for side in [2, 7, 8, 15, 31, 63, 64, 65, 127, 128, 129, 200] {
            all.extend([[side, 24, 40], [24, side, 40], [24, 40, side]].map(gelu));
        }
    }
    all
}

impl Layer {
    fn draw(&self, len: usize, salt: u64) -> Vec<f64> {
        draw(self.dtype, self.special, len, salt)
    }

    /// The values of the factors.
    fn factors(&self) -> [Vec<f64>; 2] {
        let [m, n, k] = self.sizes;
        [self.draw(m * k, 1), self.draw(k * n, 2)]
    }

    /// The rows and columns of the results.
    fn places(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let [m, n, _] = self.sizes;
        (0..m).flat_map(move |row| (0..n).map(move |col| (row, col)))
    }

    fn forward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let &Self { dtype, sizes: [rows, out_features, in_features], lead, .. } = self;
        let desc = LinearActivationDesc {
            dtype,
            rows,
            in_features,
            out_features,
            transpose_b: self.transpose_b,
            bias: self.bias,
            activation: self.activation,
        };
        let plan = match self.config.filter(|_| bench.target().sm == 90) {
            Some(config) => desc.plan_with(bench.target(), config)?,
            None => desc.plan(bench.target())?,
        };
        let [x, weight] = self.factors();
        let bias = self.bias.then(|| self.draw(out_features, 3));
        let of_x = bench.input("x", dtype, &x, lead)?;
        let of_weight = bench.input("weight", dtype, &weight, lead)?;
        let of_bias = bench.optional_input("bias", dtype, bias.as_ref(), lead)?;
        let mut z = bench.output("z", dtype, rows * out_features, lead)?;
        let mut y = bench.output("y", dtype, rows * out_features, lead)?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let args = LinearActivationArgs {
                x: of_x.view()?,
                weight: of_weight.view()?,
                bias: view(&of_bias)?,
                z: z.view_mut()?,
                y: y.view_mut()?,
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let element = |at| reference::linear_activation(&desc, (&x, &weight), bias.as_deref(), at);
        let (of_z, of_y): (Vec<_>, Vec<_>) = self.places().map(element).map(|[z, y]| (z, y)).unzip();
        let z = self.compare(&bench.read(&z)?, &of_z);
        Ok(z.merge(self.compare(&bench.read(&y)?, &of_y)))
    }

    fn backward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let &Self { dtype, sizes: [rows, in_features, out_features], lead, .. } = self;
        let (transpose_b, activation) = (self.transpose_b, self.activation);
        let desc =
            ActivationLinearBackwardDesc { dtype, rows, in_features, out_features, transpose_b, activation };
        let plan = match self.config.filter(|_| bench.target().sm == 90) {
            Some(config) => desc.plan_with(bench.target(), config)?,
            None => desc.plan(bench.target())?,
        };
        let [dy, weight] = self.factors();
        let z = self.draw(rows * in_features, 3);
        let of_dy = bench.input("dy", dtype, &dy, lead)?;
        let of_weight = bench.input("weight", dtype, &weight, lead)?;
        let of_z = bench.input("z", dtype, &z, lead)?;
        let mut dz = bench.output("dz", dtype, rows * in_features, lead)?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let args = ActivationLinearBackwardArgs {
                dy: of_dy.view()?,
                weight: of_weight.view()?,
                z: of_z.view()?,
                dz: dz.view_mut()?,
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let element = |(at, z): ((usize, usize), &f64)| {
            reference::activation_linear_backward(&desc, (&dy, &weight), *z, at)
        };
        let expected: Vec<_> = self.places().zip(&z).map(element).collect();
        Ok(self.compare(&bench.read(&dz)?, &expected))
    }

    fn compare(&self, got: &[f64], expected: &[(f64, f64)]) -> Comparison {
        crate::measure::compare(self.dtype, got, &Expected::all(expected), Bench::poison(self.dtype))
    }
}

impl Subject for Layer {
    fn layout(&self) -> String {
        self.config.map_or(String::new(), |config| config.name())
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        if self.direction == Direction::Forward { self.forward(bench) } else { self.backward(bench) }
    }
}
