//! Cases of group normalisation.

use std::sync::Arc;

use warpwright_ops::group_norm::tuning::{self, Path};
use warpwright_ops::group_norm::{
    GroupNormArgs, GroupNormBackwardArgs, GroupNormBackwardDesc, GroupNormDesc, GroupShape, Layout, reference,
};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::{DType, Target};

use crate::budget::{self, Budget};
use crate::case::{Bench, Case, CaseError, Scope, Subject, view, view_mut};
use crate::inputs::Input;
use crate::measure::{Comparison, Expected};
use crate::storage;

/// Contents of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    /// Standard normal.
    Normal,
    /// Mean 10000, variance 0.01: where `E[x^2] - E[x]^2` has no digit left.
    Offset,
    /// The first elements of each group far from the others.
    Outliers,
    /// Infinities and NaN in every other group.
    Special,
    /// Denormals, signed zeros, and magnitudes that differ widely.
    Wide,
}

impl Fill {
    const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Offset => "mean 1e4, variance 1e-2",
            Self::Outliers => "outliers",
            Self::Special => "special",
            Self::Wide => "wide",
        }
    }

    fn values(self, shape: GroupShape, seed: u64) -> Vec<f64> {
        let mut values = Input::Normal.values(shape.batch * shape.channels * shape.spatial, seed);
        let of_group = shape.channels / shape.groups;
        for sample in 0..shape.batch {
            for channel in 0..shape.channels {
                let group = sample * shape.groups + channel / of_group;
                for pixel in 0..shape.spatial {
                    let v = &mut values[reference::index(shape, sample, channel, pixel)];
                    let first = channel % of_group == 0;
                    *v = match self {
                        Self::Normal => *v,
                        Self::Offset => 1e4 + 0.1 * *v,
                        Self::Outliers if first && pixel < 8 => 50.0 + *v,
                        Self::Special if group % 2 == 1 && first && pixel == 7 % shape.spatial => {
                            [f64::INFINITY, f64::NAN, f64::NEG_INFINITY][group / 2 % 3]
                        }
                        Self::Wide => *v * [1.0, 1e-3, 0.0, -0.0, 1e-40, 1e-7, 30.0][(pixel + channel) % 7],
                        _ => *v,
                    };
                }
            }
        }
        values
    }
}

/// Which options there are: `w`eight, `b`ias, `s`ilu, saved statistics or gradients of `p`arameters.
type Options = &'static str;

#[derive(Debug)]
struct GroupNormSubject {
    direction: Direction,
    dtype: DType,
    shape: GroupShape,
    fill: Fill,
    options: Options,
    eps: f64,
    /// Elements past an aligned address.
    lead: usize,
    /// The path that is taken; that of tuning if `None`.
    path: Option<Path>,
}

#[derive(Clone, Copy, Debug)]
struct Situation {
    shape: GroupShape,
    fill: Fill,
    options: Options,
    eps: f64,
    lead: usize,
}

const fn first(batch: usize, channels: usize, spatial: usize, groups: usize) -> GroupShape {
    GroupShape { batch, channels, spatial, groups, layout: Layout::ChannelsFirst }
}

const fn last(batch: usize, channels: usize, spatial: usize, groups: usize) -> GroupShape {
    GroupShape { layout: Layout::ChannelsLast, ..first(batch, channels, spatial, groups) }
}

fn situations(scope: Scope) -> Vec<Situation> {
    let of = |shape, fill, options| Situation { shape, fill, options, eps: 1e-5, lead: 0 };
    let normal = |shape, options| of(shape, Fill::Normal, options);
    let mut all = vec![
        normal(first(2, 8, 64, 4), "wbp"),
        // Many groups, so that the errors of their statistics average out.
        normal(first(4, 64, 64, 32), "wbp"),
        normal(first(1, 6, 49, 2), "wbsp"),
        normal(first(3, 16, 1, 4), "wbp"),
        normal(first(2, 6, 200, 6), ""),
        normal(first(1, 4, 1000, 1), "bsp"),
        normal(last(2, 16, 30, 4), "wbp"),
        normal(last(1, 6, 77, 3), "wbsp"),
        normal(last(2, 48, 130, 4), "wp"),
        of(first(4, 6, 40, 3), Fill::Special, "wbp"),
        of(last(4, 6, 40, 3), Fill::Special, "wbsp"),
        of(first(1, 6, 400, 2), Fill::Offset, "wbp"),
        of(last(1, 8, 300, 2), Fill::Offset, "wbp"),
        of(first(1, 6, 400, 2), Fill::Outliers, "wbsp"),
        of(first(1, 6, 136, 2), Fill::Wide, "wp"),
        // Empty, one element, one pixel.
        normal(first(0, 4, 8, 2), "wbp"),
        normal(last(0, 4, 8, 2), "wbp"),
        normal(first(1, 1, 1, 1), "wbp"),
        normal(last(1, 1, 1, 1), "wbp"),
    ];
    all.push(Situation { lead: 1, ..normal(first(1, 4, 64, 2), "wbp") });
    all.push(Situation { lead: 1, ..normal(last(1, 8, 33, 2), "wbsp") });
    all.push(Situation { eps: 0.0, ..normal(first(2, 4, 88, 2), "wbp") });
    if scope == Scope::Full {
        for spatial in [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 256, 1031] {
            all.push(normal(first(2, 6, spatial, 3), "wbp"));
            all.push(normal(last(2, 6, spatial, 3), "wbsp"));
            all.push(normal(last(1, 16, spatial, 2), "wp"));
        }
        for channels in [1, 2, 3, 8, 64, 130, 520, 1280] {
            all.push(normal(last(1, channels, 20, 1), "wbp"));
            all.push(normal(first(1, channels, 24, channels), "wbsp"));
        }
        for elements in [4096, 10_240, 40_960, 65_536, 140_000, 300_000] {
            all.push(normal(first(1, 8, elements / 4, 2), "wbp"));
            all.push(of(first(1, 4, elements / 4, 1), Fill::Offset, "wp"));
        }
        all.push(normal(first(1, 2, 140_001, 1), "wbsp"));
        all.push(normal(last(1, 64, 20_000, 8), "wbsp"));
    }
    all
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for direction in [Direction::Forward, Direction::Backward] {
        for dtype in DType::FLOATS {
            for situation in situations(scope) {
                out.push(case(direction, dtype, situation, None));
            }
            // Every kernel on groups that leave some of its blocks and vectors without work.
            let width = 16 / dtype.bytes() as u32;
            let configs = match direction {
                Direction::Forward => tuning::forward(dtype, Target::sm(90), width),
                Direction::Backward => tuning::backward(dtype, Target::sm(90), width),
            };
            let paths = configs.into_iter().map(Path::Resident).chain([Path::Streamed]);
            for path in paths {
                let situation = Situation {
                    shape: first(2, 10, 24, 2),
                    fill: Fill::Normal,
                    options: "wbp",
                    eps: 1e-5,
                    lead: 0,
                };
                out.push(case(direction, dtype, situation, Some(path)));
            }
        }
    }
    out
}

fn case(direction: Direction, dtype: DType, situation: Situation, path: Option<Path>) -> Case {
    let Situation { shape, fill, options, eps, lead } = situation;
    let layout = if shape.layout == Layout::ChannelsLast { ", channels last" } else { "" };
    let place = if lead > 0 { ", misaligned" } else { "" };
    let way = match path {
        None => String::new(),
        Some(Path::Streamed) => ", streamed".to_owned(),
        Some(Path::Resident(r)) => format!(", {} x {} x {}", r.cluster, r.threads, r.vectors),
    };
    let budget = budget::elementwise(dtype);
    // The gradient of two elements all but cancels, so no relative bound holds; each is held against its natural scale.
    let of_group = shape.channels / shape.groups.max(1) * shape.spatial;
    let cancels = direction == Direction::Backward && of_group == 2;
    Case {
        op: "group_norm",
        direction,
        dtype,
        shape: vec![shape.batch, shape.channels, shape.spatial, shape.groups],
        input: format!("{}, {options}{layout}{place}{way}", fill.name()),
        budget: Budget { norm: if cancels { f64::INFINITY } else { budget.norm }, ..budget },
        subject: Arc::new(GroupNormSubject { direction, dtype, shape, fill, options, eps, lead, path }),
    }
}

impl GroupNormSubject {
    fn has(&self, option: char) -> bool {
        self.options.contains(option)
    }

    /// Values as the tensor will hold them.
    fn rounded(&self, values: Vec<f64>) -> Vec<f64> {
        values.into_iter().map(|v| storage::round(self.dtype, v)).collect()
    }

    fn x(&self) -> Vec<f64> {
        self.rounded(self.fill.values(self.shape, 1))
    }

    fn parameter(&self, option: char, salt: u64) -> Option<Vec<f64>> {
        self.has(option).then(|| self.rounded(Input::Normal.values(self.shape.channels, salt)))
    }

    /// A path that the device cannot take is not taken: clusters need sm_90.
    fn path(&self, bench: &Bench<'_>) -> Option<Path> {
        self.path.filter(|path| match path {
            Path::Resident(r) => r.cluster == 1 || bench.target().sm >= 90,
            Path::Streamed => true,
        })
    }

    /// Runs `f` for every element: number of its group, channel, index.
    fn each(&self, mut f: impl FnMut(usize, usize, usize)) {
        let s = self.shape;
        for sample in 0..s.batch {
            for channel in 0..s.channels {
                for pixel in 0..s.spatial {
                    let group = sample * s.groups + channel / (s.channels / s.groups);
                    f(group, channel, reference::index(s, sample, channel, pixel));
                }
            }
        }
    }

    fn forward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Self { dtype, shape, eps, .. } = *self;
        let saves = self.has('p');
        let desc = GroupNormDesc {
            dtype,
            shape,
            weight: self.has('w'),
            bias: self.has('b'),
            silu: self.has('s'),
            statistics: saves,
            eps: eps.into(),
        };
        let plan = match self.path(bench) {
            Some(path) => desc.plan_along(bench.target(), path)?,
            None => desc.plan(bench.target())?,
        };
        let xs = self.x();
        let (weights, biases) = (self.parameter('w', 2), self.parameter('b', 3));
        let x = bench.input("x", dtype, &xs, self.lead)?;
        let w = bench.optional_input("weight", self.dtype, weights.as_ref(), self.lead)?;
        let b = bench.optional_input("bias", self.dtype, biases.as_ref(), self.lead)?;
        let saved = dtype.accumulator();
        let groups = shape.batch * shape.groups;
        let mut y = bench.output("y", dtype, xs.len(), self.lead)?;
        let mut mean = bench.optional_output("mean", saved, (groups, self.lead), saves)?;
        let mut rstd = bench.optional_output("rstd", saved, (groups, self.lead), saves)?;
        let scratch = plan.tensors().last().map_or(0, |t| t.len);
        let mut workspace = bench.optional_output("workspace", saved, (scratch, self.lead), scratch > 0)?;
        bench.launch(|stream| {
            let args = GroupNormArgs {
                x: x.view()?,
                weight: view(&w)?,
                bias: view(&b)?,
                y: y.view_mut()?,
                mean: view_mut(&mut mean)?,
                rstd: view_mut(&mut rstd)?,
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let want = reference::forward(shape, &xs, weights.as_deref(), biases.as_deref(), self.has('s'), eps);
        let statistics = reference::statistics(shape, &xs, eps);
        let mut ys = vec![Expected::exactly(0.0); xs.len()];
        let mut sizes = vec![0.0; groups];
        self.each(|group, channel, i| {
            let xhat = ((xs[i] - statistics.mean[group]) * statistics.rstd[group]).abs();
            let (w, b) =
                (weights.as_ref().map_or(1.0, |w| w[channel]), biases.as_ref().map_or(0.0, |b| b[channel]));
            ys[i] = Expected { value: want[i], scale: w.abs() * (xhat + 1.0) + b.abs(), underflow: 0.0 };
            sizes[group] += xs[i].abs() * (shape.groups as f64 / (shape.channels * shape.spatial) as f64);
        });
        let mut c = bench.compare(&y, &ys)?;
        if let (Some(mean), Some(rstd)) = (&mean, &rstd) {
            let means = statistics.mean.iter().zip(&sizes);
            let means: Vec<_> =
                means.map(|(&value, &scale)| Expected { value, scale, underflow: 0.0 }).collect();
            // A mean that cancels is compared with what cancelled.
            let mut of_mean = bench.compare_saved(self.dtype, mean, &means)?;
            of_mean.norm = 0.0;
            let rstds: Vec<_> = statistics.rstd.iter().map(|&v| Expected::exactly(v)).collect();
            c = c.merge(of_mean).merge(bench.compare_saved(self.dtype, rstd, &rstds)?);
        }
        Ok(c)
    }

    fn backward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Self { dtype, shape, eps, .. } = *self;
        let (silu, parameters) = (self.has('s'), self.has('p'));
        let desc = GroupNormBackwardDesc {
            dtype,
            shape,
            weight: self.has('w'),
            bias: self.has('b'),
            silu,
            dweight: parameters && self.has('w'),
            dbias: parameters && self.has('b'),
        };
        let plan = match self.path(bench) {
            Some(path) => desc.plan_along(bench.target(), path)?,
            None => desc.plan(bench.target())?,
        };
        let xs = self.x();
        let dys = self.rounded(Input::Normal.values(xs.len(), 4));
        let (weights, biases) = (self.parameter('w', 2), self.parameter('b', 3));
        let saved = dtype.accumulator();
        // As the forward pass would have saved them.
        let mut statistics = reference::statistics(shape, &xs, eps);
        for values in [&mut statistics.mean, &mut statistics.rstd] {
            values.iter_mut().for_each(|v| *v = storage::round(saved, *v));
        }
        let x = bench.input("x", dtype, &xs, self.lead)?;
        let dy = bench.input("dy", dtype, &dys, self.lead)?;
        let mean = bench.input("mean", saved, &statistics.mean, self.lead)?;
        let rstd = bench.input("rstd", saved, &statistics.rstd, self.lead)?;
        let w = bench.optional_input("weight", self.dtype, weights.as_ref(), self.lead)?;
        let b = bench.optional_input("bias", self.dtype, biases.as_ref().filter(|_| silu), self.lead)?;
        let mut dx = bench.output("dx", dtype, xs.len(), self.lead)?;
        let mut dw = bench.optional_output("dweight", dtype, (shape.channels, self.lead), desc.dweight)?;
        let mut db = bench.optional_output("dbias", dtype, (shape.channels, self.lead), desc.dbias)?;
        let scratch = plan.tensors().last().map_or(0, |t| t.len);
        let mut workspace = bench.optional_output("workspace", saved, (scratch, self.lead), scratch > 0)?;
        bench.launch(|stream| {
            let args = GroupNormBackwardArgs {
                x: x.view()?,
                dy: dy.view()?,
                mean: mean.view()?,
                rstd: rstd.view()?,
                weight: view(&w)?,
                bias: view(&b)?,
                dx: dx.view_mut()?,
                dweight: view_mut(&mut dw)?,
                dbias: view_mut(&mut db)?,
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;

        let (weights, biases) = (weights.as_deref(), biases.as_deref());
        let want = reference::backward(shape, &xs, &dys, &statistics, weights, biases, silu);
        let groups = shape.batch * shape.groups;
        let count = (shape.channels / shape.groups * shape.spatial) as f64;
        let weight = |channel: usize| weights.map_or(1.0, |w| w[channel]).abs();
        let xhat = |group: usize, i: usize| ((xs[i] - statistics.mean[group]) * statistics.rstd[group]).abs();
        // Behind `silu` an error of its argument is multiplied by its second derivative, at most 1/2.
        let gradient = |group: usize, channel: usize, i: usize| {
            let z = weight(channel) * (xhat(group, i) + 1.0) + biases.map_or(0.0, |b| b[channel]).abs();
            dys[i].abs() * if silu { 1.1 + 0.5 * z } else { 1.0 }
        };
        let (mut level, mut along) = (vec![0.0; groups], vec![0.0; groups]);
        let (mut of_dw, mut of_db) = (vec![0.0; shape.channels], vec![0.0; shape.channels]);
        self.each(|group, channel, i| {
            let (g, xhat) = (gradient(group, channel, i), xhat(group, i));
            level[group] += g * weight(channel) / count;
            along[group] += g * weight(channel) * xhat / count;
            of_dw[channel] += g * xhat;
            of_db[channel] += g;
        });
        let mut dxs = vec![Expected::exactly(0.0); xs.len()];
        self.each(|group, channel, i| {
            let g = gradient(group, channel, i) * weight(channel);
            let scale = (g + level[group] + xhat(group, i) * along[group]) * statistics.rstd[group];
            // The gradient of a group of one element is a difference of equal numbers.
            let lost = if count == 1.0 { scale * dtype.accumulator().epsilon().unwrap_or(0.0) } else { 0.0 };
            dxs[i] = Expected { value: want.dx[i], scale, underflow: lost };
        });
        let mut c = bench.compare(&dx, &dxs)?;
        let sums = [(&dw, &want.dweight, &of_dw), (&db, &want.dbias, &of_db)];
        for (output, values, scales) in sums {
            let Some(output) = output else { continue };
            let expected: Vec<_> = values
                .iter()
                .zip(scales)
                .map(|(&value, &scale)| Expected { value, scale, underflow: 0.0 })
                .collect();
            let mut sums = bench.compare(output, &expected)?;
            if dtype.bytes() > 2 {
                // A sum that cancels is compared with what cancelled.
                sums.norm = 0.0;
            }
            c = c.merge(sums);
        }
        Ok(c)
    }
}

impl Subject for GroupNormSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        match self.direction {
            Direction::Forward => self.forward(bench),
            Direction::Backward => self.backward(bench),
        }
    }
}
