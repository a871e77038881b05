//! Cases of the norms of rows.

use std::sync::Arc;

use warpwright_ops::layer_norm::reference::{self, Statistics};
use warpwright_ops::layer_norm::{
    RowNorm, RowNormArgs, RowNormBackwardArgs, RowNormBackwardDesc, RowNormDesc,
};
use warpwright_ops::plan::Real;
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Scope, Subject, view, view_mut};
use crate::inputs::Input;
use crate::measure::{Comparison, Expected};
use crate::storage;

/// Contents of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    /// Standard normal.
    Normal,
    /// Mean 10000, variance 0.01: where `E[x^2] - E[x]^2` has no digit left.
    Offset,
    /// The same number all along.
    Constant,
    /// Denormals, signed zeros, and magnitudes that differ widely.
    Wide,
    /// Every other row has an infinity or a NaN in it.
    Special,
}

impl Rows {
    const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Offset => "mean 1e4, variance 1e-2",
            Self::Constant => "constant",
            Self::Wide => "wide",
            Self::Special => "special",
        }
    }

    fn fill(self, rows: usize, len: usize, seed: u64) -> Vec<f64> {
        let mut values = Input::Normal.values(rows * len, seed);
        for (row, values) in values.chunks_mut(len.max(1)).enumerate() {
            match self {
                Self::Normal => {}
                Self::Offset => values.iter_mut().for_each(|v| *v = 1e4 + 0.1 * *v),
                Self::Constant => values.fill(3.7 + row as f64),
                Self::Wide => {
                    let factors = [1.0, 1e-3, 0.0, -0.0, 1e-40, 1e-7, 30.0];
                    values.iter_mut().enumerate().for_each(|(i, v)| *v *= factors[i % factors.len()]);
                }
                Self::Special if row % 2 == 1 => {
                    let special = [f64::INFINITY, f64::NAN, f64::NEG_INFINITY];
                    values[row * 7 % len] = special[row / 2 % special.len()];
                }
                Self::Special => {}
            }
        }
        values
    }
}

/// Which of the optional tensors there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Options {
    weight: bool,
    bias: bool,
    /// The residual, forward; the gradient of `z`, backward.
    residual: bool,
    statistics: bool,
}

impl Options {
    const ALL: Self = Self { weight: true, bias: true, residual: true, statistics: true };
    const PLAIN: Self = Self { weight: true, bias: true, residual: false, statistics: false };
    const BARE: Self = Self { weight: false, bias: false, residual: false, statistics: true };
    const BIAS: Self = Self { weight: false, bias: true, residual: true, statistics: false };
}

#[derive(Debug)]
struct RowNormSubject {
    norm: RowNorm,
    direction: Direction,
    dtype: DType,
    rows: usize,
    len: usize,
    fill: Rows,
    options: Options,
    eps: f64,
    /// Elements past an aligned address.
    lead: usize,
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for norm in RowNorm::ALL {
        for direction in [Direction::Forward, Direction::Backward] {
            for dtype in DType::FLOATS {
                for situation in situations(scope) {
                    let (fill, rows, len, options, lead) = situation;
                    let options = Options { bias: options.bias && norm == RowNorm::Layer, ..options };
                    let eps = if rows == 3 && fill == Rows::Normal { 0.0 } else { norm.default_eps(dtype) };
                    let place = if lead > 0 { ", misaligned" } else { "" };
                    let given = [(options.weight, 'w'), (options.bias, 'b'), (options.residual, 'r')];
                    let given: String = given.iter().filter(|g| g.0).map(|g| g.1).collect();
                    let subject =
                        RowNormSubject { norm, direction, dtype, rows, len, fill, options, eps, lead };
                    out.push(Case {
                        op: norm.name(),
                        direction,
                        dtype,
                        shape: vec![rows, len],
                        input: format!("{}, {given}{place}", fill.name()),
                        budget: budget::elementwise(dtype),
                        subject: Arc::new(subject),
                    });
                }
            }
        }
    }
    out
}

type Situation = (Rows, usize, usize, Options, usize);

fn situations(scope: Scope) -> Vec<Situation> {
    let mut all = vec![
        (Rows::Normal, 0, 16, Options::PLAIN, 0),
        (Rows::Normal, 19, 64, Options::ALL, 0),
        (Rows::Normal, 9, 200, Options::BARE, 0),
        (Rows::Normal, 3, 1000, Options::PLAIN, 0),
        (Rows::Normal, 5, 77, Options::ALL, 0),
        (Rows::Special, 7, 264, Options::ALL, 0),
        (Rows::Wide, 6, 136, Options::PLAIN, 0),
        (Rows::Constant, 5, 520, Options::BARE, 0),
        (Rows::Offset, 4, 1024, Options::ALL, 0),
        (Rows::Offset, 3, 2056, Options::BIAS, 0),
        (Rows::Normal, 2, 4096, Options::ALL, 0),
        (Rows::Normal, 2, 4099, Options::ALL, 0),
        (Rows::Normal, 5, 256, Options::PLAIN, 1),
    ];
    if scope == Scope::Full {
        let lengths = [1, 2, 3, 7, 8, 9, 31, 32, 33, 63, 65, 127, 128, 129, 255, 257, 511, 513, 768];
        all.extend(lengths.map(|len| (Rows::Normal, 6, len, Options::ALL, 0)));
        all.extend([1, 2, 15, 16, 17, 133, 300].map(|rows| (Rows::Normal, rows, 48, Options::PLAIN, 0)));
        for len in [1031, 2047, 2048, 4104, 8192, 16384, 20000, 33000, 40003] {
            all.push((Rows::Normal, 2, len, Options::ALL, 0));
            all.push((Rows::Offset, 3, len, Options::BARE, 0));
            all.push((Rows::Special, 2, len, Options::PLAIN, 1));
        }
        all.push((Rows::Normal, 150, 4096, Options::PLAIN, 0));
        all.push((Rows::Normal, 2, 1 << 17, Options::PLAIN, 0));
    }
    all
}

impl RowNormSubject {
    /// Values as the tensor will hold them.
    fn rounded(&self, values: Vec<f64>) -> Vec<f64> {
        values.into_iter().map(|v| storage::round(self.dtype, v)).collect()
    }

    fn draw(&self, len: usize, salt: u64) -> Vec<f64> {
        self.rounded(Input::Normal.values(len, salt << 20 | self.len as u64))
    }

    fn x(&self) -> Vec<f64> {
        self.rounded(self.fill.fill(self.rows, self.len, self.len as u64))
    }

    fn weight(&self) -> Option<Vec<f64>> {
        self.options.weight.then(|| self.draw(self.len, 1))
    }

    /// The type of statistics.
    fn saved(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// The sum of two elements in the kernel's type.
    fn sum(&self, a: f64, b: f64) -> f64 {
        let sum = if self.dtype == DType::F64 { a + b } else { f64::from(a as f32 + b as f32) };
        storage::round(self.dtype, sum)
    }

    fn forward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Self { norm, dtype, rows, len, options, eps, lead, .. } = *self;
        let Options { weight, bias, residual, statistics } = options;
        let eps = Real::new(eps);
        let desc = RowNormDesc { norm, dtype, rows, len, eps, weight, bias, residual, statistics };
        let plan = desc.plan(bench.target())?;
        let xs = self.x();
        let (weights, biases) = (self.weight(), bias.then(|| self.draw(len, 2)));
        let residuals = residual.then(|| {
            // Half of `x`, so that the sum keeps its character.
            self.rounded(xs.iter().map(|v| if v.is_finite() { 0.5 * v } else { 0.0 }).collect())
        });
        let zs: Vec<f64> = match &residuals {
            Some(r) => xs.iter().zip(r).map(|(x, r)| self.sum(*x, *r)).collect(),
            None => xs.clone(),
        };
        let mean = statistics && norm == RowNorm::Layer;
        let (x, r) = (
            bench.input("x", dtype, &xs, lead)?,
            bench.optional_input("residual", dtype, residuals.as_ref(), lead)?,
        );
        let (w, b) = (
            bench.optional_input("weight", dtype, weights.as_ref(), lead)?,
            bench.optional_input("bias", dtype, biases.as_ref(), lead)?,
        );
        let mut y = bench.output("y", dtype, rows * len, lead)?;
        let mut z = bench.optional_output("z", dtype, (rows * len, lead), residual)?;
        let mut m = bench.optional_output("mean", self.saved(), (rows, lead), mean)?;
        let mut s = bench.optional_output("rstd", self.saved(), (rows, lead), statistics)?;
        bench.launch(|stream| {
            let args = RowNormArgs {
                x: x.view()?,
                residual: view(&r)?,
                weight: view(&w)?,
                bias: view(&b)?,
                y: y.view_mut()?,
                z: view_mut(&mut z)?,
                mean: view_mut(&mut m)?,
                rstd: view_mut(&mut s)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let (mut ys, mut means, mut rstds) = (Vec::new(), Vec::new(), Vec::new());
        for row in zs.chunks(len) {
            let of_row = reference::statistics(norm, row, eps.get());
            let values = reference::forward(row, of_row, weights.as_deref(), biases.as_deref());
            ys.extend(values.into_iter().enumerate().map(|(i, value)| {
                let xhat = (of_row.distance(row[i]) * of_row.rstd).abs();
                let (w, b) = (weights.as_ref().map_or(1.0, |w| w[i]), biases.as_ref().map_or(0.0, |b| b[i]));
                Expected { value, scale: w.abs() * (xhat + 1.0) + b.abs(), underflow: 0.0 }
            }));
            let size = row.iter().map(|v| v.abs()).sum::<f64>() / len as f64;
            means.push(Expected { value: of_row.mean, scale: size, underflow: 0.0 });
            rstds.push(Expected::exactly(of_row.rstd));
        }
        let mut c = bench.compare(&y, &ys)?;
        if let Some(z) = &z {
            let zs: Vec<Expected> = zs.iter().map(|&z| Expected::exactly(z)).collect();
            c = c.merge(bench.compare(z, &zs)?);
        }
        if let Some(m) = &m {
            // A mean that cancels is compared with what cancelled.
            let mut of_mean = bench.compare_saved(dtype, m, &means)?;
            of_mean.norm = 0.0;
            c = c.merge(of_mean);
        }
        if let Some(s) = &s {
            c = c.merge(bench.compare_saved(dtype, s, &rstds)?);
        }
        Ok(c)
    }

    fn backward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Self { norm, dtype, rows, len, options, eps, lead, .. } = *self;
        let Options { weight, bias, residual: dz, .. } = options;
        let desc = RowNormBackwardDesc { norm, dtype, rows, len, weight, bias, dz };
        let plan = desc.plan(bench.target())?;
        let xs = self.x();
        let dys = self.draw(rows * len, 3);
        let dzs = dz.then(|| self.draw(rows * len, 4));
        let weights = self.weight();
        // As the forward pass would have saved them.
        let save = |v: f64| storage::round(self.saved(), v);
        let of_rows: Vec<Statistics> = xs
            .chunks(len)
            .map(|row| reference::statistics(norm, row, eps))
            .map(|s| Statistics { mean: save(s.mean), rest: 0.0, rstd: save(s.rstd) })
            .collect();
        let (x, dy) = (bench.input("x", dtype, &xs, lead)?, bench.input("dy", dtype, &dys, lead)?);
        let (z, w) = (
            bench.optional_input("dz", dtype, dzs.as_ref(), lead)?,
            bench.optional_input("weight", dtype, weights.as_ref(), lead)?,
        );
        let means: Vec<f64> = of_rows.iter().map(|s| s.mean).collect();
        let rstds: Vec<f64> = of_rows.iter().map(|s| s.rstd).collect();
        let mean = (norm == RowNorm::Layer).then(|| bench.input("mean", self.saved(), &means, lead));
        let (mean, rstd) = (mean.transpose()?, bench.input("rstd", self.saved(), &rstds, lead)?);
        let mut dx = bench.output("dx", dtype, rows * len, lead)?;
        let mut dw = bench.optional_output("dweight", dtype, (len, lead), weight)?;
        let mut db = bench.optional_output("dbias", dtype, (len, lead), bias)?;
        let scratch = plan.tensors().last().map_or(0, |t| t.len);
        let mut workspace = bench.optional_output("workspace", self.saved(), (scratch, lead), scratch > 0)?;
        bench.launch(|stream| {
            let args = RowNormBackwardArgs {
                x: x.view()?,
                dy: dy.view()?,
                dz: view(&z)?,
                weight: view(&w)?,
                mean: view(&mean)?,
                rstd: rstd.view()?,
                dx: dx.view_mut()?,
                dweight: view_mut(&mut dw)?,
                dbias: view_mut(&mut db)?,
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let nothing = Expected { value: 0.0, scale: 0.0, underflow: 0.0 };
        let (mut dxs, mut dws, mut dbs) = (Vec::new(), vec![nothing; len], vec![nothing; len]);
        for (row, s) in of_rows.iter().enumerate() {
            let at = row * len..(row + 1) * len;
            let (x, dy) = (&xs[at.clone()], &dys[at.clone()]);
            let (values, dweight, dbias) = reference::backward(norm, x, dy, *s, weights.as_deref());
            let g = |i: usize| (dy[i] * weights.as_ref().map_or(1.0, |w| w[i])).abs();
            let xhat = |i: usize| ((x[i] - s.mean) * s.rstd).abs();
            let n = len as f64;
            let level = (0..len).map(g).sum::<f64>() / n;
            let along = (0..len).map(|i| g(i) * xhat(i)).sum::<f64>() / n;
            dxs.extend(values.into_iter().enumerate().map(|(i, value)| {
                let added = dzs.as_ref().map_or(0.0, |dz| dz[row * len + i]);
                let scale = (g(i) + level + xhat(i) * along) * s.rstd + added.abs();
                Expected { value: value + added, scale, underflow: 0.0 }
            }));
            for i in 0..len {
                dws[i].value += dweight[i];
                dws[i].scale += dweight[i].abs();
                dbs[i].value += dbias[i];
                dbs[i].scale += dbias[i].abs();
            }
        }
        let mut c = bench.compare(&dx, &dxs)?;
        if let Some(dw) = &dw {
            c = c.merge(bench.compare(dw, &dws)?);
        }
        if let Some(db) = &db {
            c = c.merge(bench.compare(db, &dbs)?);
        }
        Ok(c)
    }
}

impl Subject for RowNormSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        match self.direction {
            Direction::Forward => self.forward(bench),
            Direction::Backward => self.backward(bench),
        }
    }
}
