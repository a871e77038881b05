//! Cases of batch normalisation.

use std::sync::Arc;

use warpwright_ops::batch_norm::{
    BatchNorm, BatchNormArgs, BatchNormBackwardArgs, BatchNormBackwardDesc, BatchNormDesc,
    BatchNormInferenceArgs, BatchNormInferenceBackwardArgs, BatchNormInferenceBackwardDesc,
    BatchNormInferenceDesc, Layout, Momentum, Real,
    reference::{self, Channels, Gradients, Statistics},
};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;
use warpwright_runtime::Tensor;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Placed, Scope, Subject, view, view_mut};
use crate::inputs::{Input, Random};
use crate::measure::{Comparison, Expected};
use crate::storage;

/// Contents of the tensor that is normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Values {
    /// Normal, with a mean and a deviation of each channel's own.
    Normal,
    /// Mean 1e4, variance 1e-2: what a cancelling formula cannot bear.
    LargeMean,
    /// The first values of each channel are far from the others.
    Outliers,
    /// One value a channel.
    Constant,
    /// An infinity in one channel and a NaN in another.
    Hostile,
}

/// Properties of a case beside its shape.
#[derive(Clone, Copy, Debug)]
struct Options {
    values: Values,
    training: bool,
    weight: bool,
    bias: bool,
    residual: bool,
    relu: bool,
    momentum: Option<Momentum>,
    eps: f64,
    /// f32 parameters beside 16-bit tensors.
    wide_parameters: bool,
    misaligned: bool,
}

const PLAIN: Options = Options {
    values: Values::Normal,
    training: true,
    weight: true,
    bias: true,
    residual: false,
    relu: false,
    momentum: None,
    eps: 1e-5,
    wide_parameters: false,
    misaligned: false,
};

const FIRST: Layout = Layout::ChannelsFirst;
const LAST: Layout = Layout::ChannelsLast;

/// Layout, batch, channels, spatial size.
type Shape = (Layout, usize, usize, usize);

fn situations(scope: Scope) -> Vec<(Shape, Options)> {
    let fused = Options { residual: true, relu: true, wide_parameters: true, ..PLAIN };
    let exponential = Some(Momentum::Exponential(Real::new(0.1)));
    let cumulative = Some(Momentum::Cumulative { batches: 4 });
    let bare = Options { weight: false, bias: false, ..PLAIN };
    let with = |values| Options { values, ..PLAIN };
    let mut all = vec![
        ((FIRST, 4, 3, 64), PLAIN),
        ((LAST, 4, 16, 64), PLAIN),
        ((FIRST, 3, 2, 49), fused),
        ((LAST, 33, 24, 7), fused),
        ((FIRST, 16, 5, 1), Options { momentum: exponential, wide_parameters: true, ..PLAIN }),
        ((LAST, 5, 1, 1), Options { momentum: cumulative, ..bare }),
        // Several blocks a channel, the last of them short, and rows longer and shorter than a block.
        ((FIRST, 2, 1, 17_000), Options { momentum: cumulative, relu: true, ..PLAIN }),
        ((FIRST, 600, 2, 16), Options { residual: true, ..PLAIN }),
        ((LAST, 999, 8, 1), Options { bias: false, momentum: exponential, ..PLAIN }),
        // More channels than a block is wide, and a number of them that fits no vector.
        ((LAST, 5, 2056, 1), PLAIN),
        ((LAST, 9, 37, 3), Options { weight: false, ..PLAIN }),
        ((FIRST, 4, 6, 64), Options { misaligned: true, ..fused }),
        ((LAST, 4, 16, 9), Options { misaligned: true, ..PLAIN }),
        ((FIRST, 3, 4, 200), with(Values::LargeMean)),
        ((LAST, 300, 16, 2), with(Values::LargeMean)),
        ((FIRST, 3, 4, 200), with(Values::Outliers)),
        ((LAST, 300, 16, 2), with(Values::Outliers)),
        ((FIRST, 3, 4, 200), with(Values::Hostile)),
        ((LAST, 300, 16, 2), with(Values::Hostile)),
        ((FIRST, 3, 2, 56), with(Values::Constant)),
        ((LAST, 70, 16, 2), Options { eps: 0.25, ..with(Values::Constant) }),
        ((FIRST, 2, 3, 24), Options { eps: 0.0, ..PLAIN }),
        ((FIRST, 0, 3, 5), PLAIN),
        ((LAST, 3, 0, 5), PLAIN),
    ];
    let inference: Vec<_> = all
        .iter()
        .enumerate()
        .filter(|(i, (_, o))| i % 3 != 2 || o.relu || o.values == Values::Hostile)
        .map(|(_, &(shape, o))| (shape, Options { training: false, momentum: None, ..o }))
        .collect();
    all.extend(inference);
    if scope == Scope::Full {
        for (i, (n, c, s)) in [
            (1, 1, 6),
            (2, 3, 7),
            (7, 5, 8),
            (3, 9, 31),
            (2, 64, 56),
            (5, 33, 100),
            (1, 17, 1023),
            (64, 130, 4),
            (3, 1, 12_345),
            (257, 4, 3),
            (2, 513, 12),
            (4, 8, 1025),
            (31, 2, 640),
            // The largest clusters.
            (1, 1, 120_000),
        ]
        .into_iter()
        .enumerate()
        {
            for layout in [FIRST, LAST] {
                for training in [true, false] {
                    let base = if i % 2 == 0 { PLAIN } else { fused };
                    all.push(((layout, n, c, s), Options { training, ..base }));
                    let misaligned =
                        Options { training, misaligned: true, values: Values::LargeMean, ..base };
                    all.push(((layout, n, c, s), misaligned));
                }
            }
        }
    }
    all
}

#[derive(Debug)]
struct BatchNormSubject {
    norm: BatchNorm,
    options: Options,
    direction: Direction,
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for (shape, options) in situations(scope) {
        for direction in [Direction::Forward, Direction::Backward] {
            for dtype in DType::FLOATS {
                out.push(case(shape, options, direction, dtype));
            }
        }
    }
    out
}

fn case(
    (layout, batch, channels, spatial): Shape,
    options: Options,
    direction: Direction,
    dtype: DType,
) -> Case {
    let wide = options.wide_parameters && dtype.bytes() == 2;
    let norm = BatchNorm {
        parameter_dtype: if wide { DType::F32 } else { dtype },
        weight: options.weight,
        bias: options.bias,
        relu: options.relu,
        eps: Real::new(options.eps),
        ..BatchNorm::new(dtype, layout, batch, channels, spatial)
    };
    let shape = match layout {
        Layout::ChannelsFirst => vec![batch, channels, spatial],
        Layout::ChannelsLast => vec![batch, spatial, channels],
    };
    let mut input = format!("{:?}, {}", options.values, layout.name());
    let words = [
        (options.residual, "residual"),
        (options.relu, "relu"),
        (wide, "f32 parameters"),
        (options.momentum.is_some(), "running statistics"),
        (options.misaligned, "misaligned"),
        (options.eps == 0.0, "eps 0"),
    ];
    for (_, word) in words.into_iter().filter(|(said, _)| *said) {
        input.push_str(", ");
        input.push_str(word);
    }
    let mut budget = budget::normalised(dtype);
    if options.values == Values::Constant {
        // Equal values have equal errors, which do not average out.
        budget.norm = budget.norm.max(budget.norm_of_one);
    }
    Case {
        op: if options.training { "batch_norm" } else { "batch_norm_inference" },
        direction,
        dtype,
        shape,
        input,
        budget,
        subject: Arc::new(BatchNormSubject { norm, options, direction }),
    }
}

/// The tensors of a channel each, as they are stored.
struct Parameters {
    weight: Option<Vec<f64>>,
    bias: Option<Vec<f64>>,
    running_mean: Vec<f64>,
    running_var: Vec<f64>,
}

impl BatchNormSubject {
    fn len(&self) -> usize {
        self.norm.values() * self.norm.channels
    }

    fn channel(&self, i: usize) -> usize {
        match self.norm.layout {
            Layout::ChannelsFirst => i / self.norm.spatial % self.norm.channels,
            Layout::ChannelsLast => i % self.norm.channels,
        }
    }

    /// The type of `mean` and `rstd`.
    fn statistics_dtype(&self) -> DType {
        if self.norm.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    fn x(&self) -> Vec<f64> {
        let mut random = Random::new(11 + self.len() as u64);
        // Beside a mean of 1 the rounded values of a large mean would all be the same.
        let values = match self.options.values {
            Values::LargeMean if !self.options.training => Values::Normal,
            values => values,
        };
        let (mut seen, half) = (vec![0; self.norm.channels], self.norm.values() / 2);
        let of = |i: usize| {
            let c = self.channel(i);
            seen[c] += 1;
            let (number, z) = (seen[c], random.normal());
            let (mean, deviation) = ((c % 5) as f64 - 2.0, 0.5 + (c % 3) as f64);
            let value = match (values, c) {
                (Values::LargeMean, _) => 1e4 + 0.1 * z,
                (Values::Outliers, _) if number <= 4 => 100.0 + z,
                (Values::Constant, _) => 0.3 + c as f64,
                (Values::Hostile, 1) if number == half => f64::INFINITY,
                (Values::Hostile, 2) if number == half => f64::NAN,
                _ => mean + deviation * z,
            };
            storage::round(self.norm.dtype, value)
        };
        (0..self.len()).map(of).collect()
    }

    /// Normal values as a tensor of `x`'s type holds them.
    fn like_x(&self, salt: u64) -> Vec<f64> {
        let values = Input::Normal.values(self.len(), salt + self.len() as u64);
        values.into_iter().map(|v| storage::round(self.norm.dtype, v)).collect()
    }

    fn parameters(&self) -> Parameters {
        let mut random = Random::new(7);
        let mut of = |mean: f64, deviation: f64| -> Vec<f64> {
            let mut one = || storage::round(self.norm.parameter_dtype, mean + deviation * random.normal());
            (0..self.norm.channels).map(|_| one()).collect()
        };
        let (weight, bias, running_mean) = (of(1.0, 0.5), of(0.0, 1.0), of(0.5, 1.0));
        let running_var = of(2.0, 0.3).into_iter().map(f64::abs).collect();
        Parameters {
            weight: self.norm.weight.then_some(weight),
            bias: self.norm.bias.then_some(bias),
            running_mean,
            running_var,
        }
    }

    fn lead(&self) -> usize {
        usize::from(self.options.misaligned)
    }

    fn input(&self, bench: &Bench<'_>, name: &'static str, values: &[f64]) -> Result<Placed, CaseError> {
        bench.input(name, self.norm.dtype, values, self.lead())
    }

    fn parameter(&self, bench: &Bench<'_>, name: &'static str, values: &[f64]) -> Result<Placed, CaseError> {
        bench.input(name, self.norm.parameter_dtype, values, 0)
    }

    /// Expectations in a tensor of type `dtype`, whose errors count in the budget of the case.
    fn expect(&self, dtype: DType, values: &[f64], scales: &[f64]) -> Vec<Expected> {
        let share = budget::normalised(dtype).element / budget::normalised(self.norm.dtype).element;
        let one = |(&value, &scale): (&f64, &f64)| Expected { value, scale: scale * share, underflow: 0.0 };
        values.iter().zip(scales).map(one).collect()
    }

    fn forward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let (norm, options, c) = (self.norm, self.options, self.norm.channels);
        let (xs, p) = (self.x(), self.parameters());
        let residuals = options.residual.then(|| self.like_x(5));
        let (mean, rest, var) = if options.training {
            let Statistics { mean, rest, var } = reference::statistics(&norm, &xs);
            (mean, Some(rest), var)
        } else {
            (p.running_mean.clone(), None, p.running_var.clone())
        };
        let rstd = reference::rstd(&norm, &var);
        let rest = rest.as_deref();
        let channels =
            Channels { mean: &mean, rest, rstd: &rstd, weight: p.weight.as_deref(), bias: p.bias.as_deref() };
        let (want, scale) = reference::forward(&norm, &xs, channels, residuals.as_deref());
        let want = self.expect(norm.dtype, &want, &scale);

        let x = self.input(bench, "x", &xs)?;
        let residual = residuals.as_deref().map(|r| self.input(bench, "residual", r)).transpose()?;
        let weight = p.weight.as_deref().map(|w| self.parameter(bench, "weight", w)).transpose()?;
        let bias = p.bias.as_deref().map(|b| self.parameter(bench, "bias", b)).transpose()?;
        let mut running_mean = self.parameter(bench, "running_mean", &p.running_mean)?;
        let mut running_var = self.parameter(bench, "running_var", &p.running_var)?;
        let mut y = bench.output("y", norm.dtype, self.len(), self.lead())?;
        if !options.training {
            let desc = BatchNormInferenceDesc { norm, residual: options.residual };
            let plan = desc.plan(bench.target())?;
            bench.launch(|stream| {
                let mut workspace = plan.workspace(stream)?;
                let args = BatchNormInferenceArgs {
                    x: x.view()?,
                    weight: view(&weight)?,
                    bias: view(&bias)?,
                    residual: view(&residual)?,
                    running_mean: running_mean.view()?,
                    running_var: running_var.view()?,
                    y: y.view_mut()?,
                    workspace: workspace.as_mut().map(Tensor::as_mut),
                };
                Ok(plan.launch(stream, args)?)
            })?;
            return bench.compare(&y, &want);
        }
        let mut means = bench.output("mean", self.statistics_dtype(), c, 0)?;
        let mut rstds = bench.output("rstd", self.statistics_dtype(), c, 0)?;
        let desc = BatchNormDesc { norm, residual: options.residual, momentum: options.momentum };
        let plan = desc.plan(bench.target())?;
        bench.launch(|stream| {
            let mut workspace = plan.workspace(stream)?;
            let (running_mean, running_var) = if options.momentum.is_some() {
                (Some(running_mean.view_mut()?), Some(running_var.view_mut()?))
            } else {
                (None, None)
            };
            let args = BatchNormArgs {
                x: x.view()?,
                weight: view(&weight)?,
                bias: view(&bias)?,
                residual: view(&residual)?,
                y: y.view_mut()?,
                mean: means.view_mut()?,
                rstd: rstds.view_mut()?,
                running_mean,
                running_var,
                workspace: workspace.as_mut().map(Tensor::as_mut),
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let mut result = bench.compare(&y, &want)?;
        if norm.values() == 0 {
            return Ok(result);
        }
        let deviation: Vec<f64> = mean.iter().zip(&var).map(|(m, v)| m.abs() + v.sqrt()).collect();
        // A channel with an infinity has no mean.
        let said: Vec<f64> = mean.iter().zip(&var).map(|(m, v)| if v.is_nan() { *v } else { *m }).collect();
        let want = self.expect(self.statistics_dtype(), &said, &deviation);
        result = result.merge(bench.compare(&means, &want)?);
        let want = self.expect(self.statistics_dtype(), &rstd, &rstd);
        result = result.merge(bench.compare(&rstds, &want)?);
        if let Some(momentum) = options.momentum {
            let (n, factor) = (norm.values() as f64, momentum.factor());
            let moved = |old: &[f64], new: &[f64], share: f64| -> Vec<f64> {
                let one = |(old, new): (&f64, &f64)| reference::running(*old, new * share, factor);
                old.iter().zip(new).map(one).collect()
            };
            let scales = |old: &[f64], new: &[f64]| -> Vec<f64> {
                old.iter().zip(new).map(|(old, new)| old.abs() + new.abs()).collect()
            };
            let want = moved(&p.running_mean, &mean, 1.0);
            let want = self.expect(norm.parameter_dtype, &want, &scales(&p.running_mean, &deviation));
            result = result.merge(bench.compare(&running_mean, &want)?);
            let want = moved(&p.running_var, &var, n / (n - 1.0));
            let want = self.expect(norm.parameter_dtype, &want, &scales(&p.running_var, &want));
            result = result.merge(bench.compare(&running_var, &want)?);
        }
        Ok(result)
    }

    fn backward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let (norm, options) = (self.norm, self.options);
        let (xs, p) = (self.x(), self.parameters());
        let mut dys = self.like_x(21);
        if options.values == Values::Hostile {
            // A channel of which x is in order.
            if let Some(i) = (0..self.len()).filter(|&i| self.channel(i) == 3).nth(5) {
                dys[i] = f64::NAN;
            }
        }
        let ys: Vec<f64> = self.like_x(22).into_iter().map(|y| y.max(0.0)).collect();
        let (mean, rstd) = if options.training {
            let Statistics { mean, var, .. } = reference::statistics(&norm, &xs);
            let round = |v: Vec<f64>| -> Vec<f64> {
                v.into_iter().map(|v| storage::round(self.statistics_dtype(), v)).collect()
            };
            let rstd = reference::rstd(&norm, &var);
            (round(mean), round(rstd))
        } else {
            (p.running_mean.clone(), reference::rstd(&norm, &p.running_var))
        };
        let channels = Channels {
            mean: &mean,
            rest: None,
            rstd: &rstd,
            weight: p.weight.as_deref(),
            bias: p.bias.as_deref(),
        };
        let want = reference::backward(&norm, &xs, &ys, &dys, channels, options.training);

        let dresidual = options.residual && options.relu;
        let x = self.input(bench, "x", &xs)?;
        let y = norm.relu.then(|| self.input(bench, "y", &ys)).transpose()?;
        let dy = self.input(bench, "dy", &dys)?;
        let weight = p.weight.as_deref().map(|w| self.parameter(bench, "weight", w)).transpose()?;
        let of_channels = |name, given: bool| {
            let place = || bench.output(name, norm.parameter_dtype, norm.channels, 0);
            given.then(place).transpose()
        };
        let mut outputs = Outputs {
            dx: bench.output("dx", norm.dtype, self.len(), self.lead())?,
            dweight: of_channels("dweight", norm.weight)?,
            dbias: of_channels("dbias", norm.bias)?,
            dresidual: dresidual
                .then(|| bench.output("dresidual", norm.dtype, self.len(), self.lead()))
                .transpose()?,
        };
        if options.training {
            let mean = bench.input("mean", self.statistics_dtype(), &mean, 0)?;
            let rstd = bench.input("rstd", self.statistics_dtype(), &rstd, 0)?;
            let plan = BatchNormBackwardDesc { norm, dresidual }.plan(bench.target())?;
            bench.launch(|stream| {
                let mut workspace = plan.workspace(stream)?;
                let args = BatchNormBackwardArgs {
                    x: x.view()?,
                    y: view(&y)?,
                    dy: dy.view()?,
                    weight: view(&weight)?,
                    mean: mean.view()?,
                    rstd: rstd.view()?,
                    dx: outputs.dx.view_mut()?,
                    dweight: view_mut(&mut outputs.dweight)?,
                    dbias: view_mut(&mut outputs.dbias)?,
                    dresidual: view_mut(&mut outputs.dresidual)?,
                    workspace: workspace.as_mut().map(Tensor::as_mut),
                };
                Ok(plan.launch(stream, args)?)
            })?;
        } else {
            let running_mean = self.parameter(bench, "running_mean", &p.running_mean)?;
            let running_var = self.parameter(bench, "running_var", &p.running_var)?;
            let plan = BatchNormInferenceBackwardDesc { norm, dresidual }.plan(bench.target())?;
            bench.launch(|stream| {
                let mut workspace = plan.workspace(stream)?;
                let args = BatchNormInferenceBackwardArgs {
                    x: x.view()?,
                    y: view(&y)?,
                    dy: dy.view()?,
                    weight: view(&weight)?,
                    running_mean: running_mean.view()?,
                    running_var: running_var.view()?,
                    dx: outputs.dx.view_mut()?,
                    dweight: view_mut(&mut outputs.dweight)?,
                    dbias: view_mut(&mut outputs.dbias)?,
                    dresidual: view_mut(&mut outputs.dresidual)?,
                    workspace: workspace.as_mut().map(Tensor::as_mut),
                };
                Ok(plan.launch(stream, args)?)
            })?;
        }
        self.compare_gradients(bench, &outputs, &want)
    }

    fn compare_gradients(
        &self,
        bench: &Bench<'_>,
        outputs: &Outputs,
        want: &Gradients,
    ) -> Result<Comparison, CaseError> {
        let norm = self.norm;
        let expected = self.expect(norm.dtype, &want.dx, &want.dx_scale);
        let mut result = bench.compare(&outputs.dx, &expected)?;
        if let Some(dresidual) = &outputs.dresidual {
            let exact: Vec<_> = want.dresidual.iter().map(|g| Expected::exactly(*g)).collect();
            result = result.merge(bench.compare(dresidual, &exact)?);
        }
        let sums = [
            (&outputs.dweight, &want.dweight, &want.dweight_scale),
            (&outputs.dbias, &want.dbias, &want.dbias_scale),
        ];
        for (placed, values, scales) in sums {
            if let Some(placed) = placed {
                let scales: Vec<f64> = values.iter().zip(scales).map(|(v, s)| v.abs() + s).collect();
                let expected = self.expect(norm.parameter_dtype, values, &scales);
                let mut comparison = bench.compare(placed, &expected)?;
                // A sum may cancel: its error is measured against what it is the sum of.
                let length =
                    |v: &[f64]| v.iter().map(|v| v * v).filter(|v| v.is_finite()).sum::<f64>().sqrt();
                comparison.norm *= (length(values) / length(&scales).max(f64::MIN_POSITIVE)).min(1.0);
                result = result.merge(comparison);
            }
        }
        Ok(result)
    }
}

struct Outputs {
    dx: Placed,
    dweight: Option<Placed>,
    dbias: Option<Placed>,
    dresidual: Option<Placed>,
}

impl Subject for BatchNormSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        match self.direction {
            Direction::Forward => self.forward(bench),
            Direction::Backward => self.backward(bench),
        }
    }
}
