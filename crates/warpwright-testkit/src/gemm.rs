//! Cases of products of matrices.

use std::sync::Arc;

use warpwright_ops::activation::Activation;
use warpwright_ops::gemm::tuning::{self, Config, Tiled};
use warpwright_ops::gemm::{Addend, GemmArgs, GemmDesc, Precision, reference};
use warpwright_ops::plan::Real;
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::{DType, Target};

use crate::budget::{self, Budget};
use crate::case::{Bench, Case, CaseError, Scope, Subject, view_mut};
use crate::inputs::Input;
use crate::measure::{Comparison, Expected};
use crate::storage;

#[derive(Debug)]
struct GemmSubject {
    desc: GemmDesc,
    /// Whether `beta` multiplies what `y` holds.
    in_place: bool,
    /// Whether there are infinities and NaN among the elements.
    special: bool,
    lead: usize,
    /// The kernel, where the target has it; otherwise the one that is chosen for the sizes.
    config: Option<Config>,
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for dtype in DType::FLOATS {
        for subject in situations(dtype, scope) {
            let d = &subject.desc;
            let activation = d.activation.map_or("no activation", Activation::name);
            let letter = |transposed| if transposed { 't' } else { 'n' };
            let (a, b) = (letter(d.transpose_a), letter(d.transpose_b));
            let input = format!(
                "{a}{b}, {} matrices, alpha {:?}, beta {:?}, bias {}, {activation}, ld {} {} {}{}{}{}",
                d.batch,
                d.alpha,
                d.beta,
                d.bias,
                d.lda,
                d.ldb,
                d.ldy,
                if subject.special { ", special" } else { "" },
                if d.precision == Precision::Tf32 { ", tf32" } else { "" },
                if d.bias_gradient { ", dbias" } else { "" }
            );
            out.push(Case {
                op: "gemm",
                direction: Direction::Forward,
                dtype,
                shape: vec![d.m, d.n, d.k],
                input,
                budget: summed(dtype, d.k),
                subject: Arc::new(subject),
            });
        }
    }
    out
}

/// A sum of `k` products rounds once a product, errors that mostly cancel: their root is what counts norm-wise.
pub(crate) fn summed(dtype: DType, k: usize) -> Budget {
    let table = budget::normalised(dtype);
    let roundings = 1.0 + (k as f64).sqrt() / 8.0;
    match dtype {
        DType::F32 | DType::F64 => Budget { norm: table.norm * roundings.min(4.0), ..table },
        _ => table,
    }
}

fn situations(dtype: DType, scope: Scope) -> Vec<GemmSubject> {
    let plain = |sizes, ta, tb| GemmSubject {
        desc: GemmDesc::new(dtype, sizes, ta, tb),
        in_place: false,
        special: false,
        lead: 0,
        config: None,
    };
    let mut all = Vec::new();
    // Whole vectors, and one more.
    for [m, n, k] in [[72, 136, 88], [33, 65, 37]] {
        for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
            all.push(plain([m, n, k], ta, tb));
        }
    }
    for sizes in [[0, 5, 3], [5, 0, 3], [4, 6, 0], [1, 1, 1], [1, 40, 700], [64, 64, 64]] {
        all.push(plain(sizes, false, true));
    }
    // Everything at once: a part of larger matrices, a batch, factors, c, bias and a function.
    let full = |sizes: [usize; 3], batch, (alpha, beta), bias, activation, pad: usize| {
        let mut s = plain(sizes, true, false);
        let d = &mut s.desc;
        (d.lda, d.ldb, d.ldy) = (d.lda + pad, d.ldb + pad, d.ldy + pad);
        (d.stride_a, d.stride_b) = (d.k * d.lda + pad, d.k * d.ldb + pad);
        d.stride_y = d.m * d.ldy + pad;
        (d.batch, d.bias, d.activation) = (batch, bias, activation);
        (d.alpha, d.beta) = (Real::new(alpha), Real::new(beta));
        s
    };
    all.push(full([40, 24, 56], 3, (0.5, -2.0), true, Some(Activation::GeluErf), 8));
    all.push(full([9, 70, 21], 2, (-1.25, 0.75), true, Some(Activation::Silu), 3));
    all.push(GemmSubject { in_place: true, ..full([17, 50, 30], 2, (1.0, 1.0), false, None, 5) });
    all.push(GemmSubject { lead: 1, ..full([24, 40, 64], 1, (1.0, 0.0), true, Some(Activation::Relu), 8) });
    all.push(full([12, 20, 0], 1, (1.0, 0.5), true, Some(Activation::Tanh), 0));
    all.push(GemmSubject { special: true, ..full([20, 40, 24], 1, (1.0, 1.0), true, None, 0) });
    let mut shared = plain([16, 24, 40], false, false);
    (shared.desc.batch, shared.desc.stride_b) = (3, 0);
    all.push(shared);
    // Rows that begin at multiples of 16 bytes and end between them: what follows is not of the result.
    for n in [42, 44, 45] {
        let mut gap = plain([70, n, 40], false, true);
        gap.desc.ldy = 48;
        all.push(gap);
    }
    // Sums of rows beside the product: of parts that blocks share, of nothing, and beside nothing.
    let summed = |subject: GemmSubject| {
        let desc = GemmDesc { bias_gradient: true, ..subject.desc };
        GemmSubject { desc, ..subject }
    };
    for sizes in [[40, 24, 56], [33, 65, 37], [72, 24, 1032], [4, 6, 0], [5, 0, 3], [0, 5, 3]] {
        all.push(summed(plain(sizes, true, false)));
    }
    all.push(summed(GemmSubject { special: true, ..full([20, 40, 24], 1, (0.5, 1.0), true, None, 0) }));
    all.push(summed(GemmSubject { lead: 1, ..plain([24, 40, 64], true, true) }));
    // The common dimension shared by blocks.
    all.push(full([16, 48, 1100], 2, (0.5, 1.0), true, Some(Activation::GeluTanh), 8));
    // The kernels of sm_90a, of double precision and those that turn their operands, whose tiles are larger than what would be given to
    // them here, and those with teams: more than a round of their rings, rows and columns beyond a tile, and a common dimension that
    // ends within a slice.
    let apart = |config: &Config| match config {
        Config::Persistent(_) | Config::Shared(_) | Config::F16x3(_) | Config::Warpgroup(_) => true,
        _ if dtype == DType::F64 => true,
        Config::Tiled(Tiled::Split(_)) => true,
        Config::Tiled(_) if config.precision(dtype) == Precision::Tf32 => true,
        Config::Tiled(config) => config.tiles().teams > 1 || matches!(config, Tiled::Simt(c) if c.across > 8),
    };
    for config in tuning::configs(dtype, Target::sm(90)).into_iter().filter(apart) {
        let mut with = |subject: GemmSubject| {
            // Products on warpgroups read `f32` along the common dimension alone.
            let along = !subject.desc.transpose_a && subject.desc.transpose_b;
            if matches!(config, Config::Persistent(_)) && dtype == DType::F32 && !along {
                return;
            }
            // Blocks share the tiles of one product.
            if matches!(config, Config::Shared(_)) && subject.desc.batch > 1 {
                return;
            }
            let desc = GemmDesc { precision: config.precision(dtype), ..subject.desc };
            all.push(GemmSubject { config: Some(config), desc, ..subject });
        };
        let round = match config {
            Config::Persistent(groups) | Config::Shared(groups) => (groups.stages * config.slice()) as usize,
            Config::Warpgroup(groups) => (groups.stages * config.slice()) as usize,
            // Slices of both planes have a stage each.
            Config::F16x3(groups) => (groups.stages * config.slice() / 2) as usize,
            Config::Tiled(_) => 384,
        };
        for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
            with(plain([136, 136, round + 88], ta, tb));
        }
        with(plain([8, 24, 8], false, true));
        // Sums of parts in rows of an odd and of an even number of columns.
        with(plain([72, 13, 1032], false, true));
        with(plain([72, 24, 1032], true, false));
        with(full([72, 136, 328], 2, (0.5, -2.0), true, Some(Activation::GeluErf), 8));
        with(GemmSubject { special: true, ..plain([40, 72, 200], false, true) });
        // Operands that are packed before: both, and one of a batch.
        let mut both = plain([33, 65, 36], false, true);
        (both.desc.lda, both.desc.ldb) = (37, 39);
        with(both);
        let mut one = full([20, 35, 44], 2, (0.5, 1.0), true, None, 0);
        (one.desc.lda, one.desc.stride_a) = (24, 44 * 24);
        with(one);
        if let Config::Persistent(_) | Config::F16x3(_) = config {
            // More tiles than blocks, and rows of results that begin anywhere.
            with(full([24, 40, 72], 150, (1.0, 0.0), true, None, 8));
            let mut odd = full([140, 131, 72], 2, (1.0, 0.5), true, Some(Activation::Silu), 0);
            (odd.desc.lda, odd.desc.ldb) = (144, 136);
            (odd.desc.stride_a, odd.desc.stride_b) = (72 * 144, 72 * 136);
            (odd.desc.ldy, odd.desc.stride_y) = (133, 140 * 133 + 1);
            with(odd);
            let mut along = full([140, 131, 72], 2, (1.0, 0.5), true, Some(Activation::Silu), 0);
            (along.desc.transpose_a, along.desc.transpose_b) = (false, true);
            (along.desc.lda, along.desc.ldb) = (72, 72);
            (along.desc.stride_a, along.desc.stride_b) = (72 * 140, 72 * 131);
            (along.desc.ldy, along.desc.stride_y) = (133, 140 * 133);
            with(along);
        }
        if let Config::Shared(layout) = config {
            let (rows, cols) = (layout.rows as usize, layout.cols as usize);
            // Blocks that begin and end within tiles, of lines down and right, and the last of which has less; tiles of one part.
            with(full([rows + 8, cols, 1160], 1, (0.5, -2.0), true, Some(Activation::GeluErf), 8));
            with(GemmSubject {
                in_place: true,
                ..full([40, cols + 24, 2056], 1, (1.0, 1.0), false, None, 3)
            });
            with(plain([5 * rows, 3 * cols, 200], true, false));
            with(plain([9, 15 * cols, 1100], false, true));
            with(summed(plain([rows - 8, 2 * cols + 8, 1500], true, true)));
            with(summed(full([2 * rows + 8, 3 * cols + 2, 4000], 1, (0.5, 1.0), true, None, 0)));
            with(summed(GemmSubject { special: true, ..plain([rows, 4 * cols, 1200], true, false) }));
            with(summed(plain([rows + 16, 40, 1200], true, false)));
            with(summed(plain([rows + 3, 2 * cols, 1201], true, true)));
            with(summed(plain([rows + 8, 45, 1104], true, true)));
        }
        if let (Config::Persistent(layout), 2) = (config, dtype.bytes()) {
            let (rows, cols) = (layout.rows as usize, layout.cols as usize);
            // As many tiles along the columns as share the rows in each way, in the last of which there are some of them; more tiles than blocks.
            with(summed(plain([rows + 16, 40, round + 88], true, false)));
            with(summed(plain([rows - 8, 2 * cols + 8, 136], true, true)));
            with(summed(GemmSubject {
                special: true,
                ..full([2 * rows, 3 * cols, 72], 1, (0.5, 1.0), true, None, 0)
            }));
            with(summed(plain([72, 33 * cols, 8], true, false)));
            with(summed(plain([135 * rows, 13, 24], true, false)));
            // Packed before, and results that begin anywhere.
            with(summed(plain([rows + 3, 37, 61], true, true)));
        }
    }
    // Clusters, which no plan has: neighbours share `b`, and the last of an odd number of tiles has nothing to do.
    let clusters =
        |config: &Config| matches!(config, Config::Persistent(c) if (c.cluster, c.height) == (2, 4));
    for config in tuning::sweep(dtype).into_iter().filter(clusters) {
        let Config::Persistent(layout) = config else { continue };
        let depth = (layout.stages * 64 + 40) as usize;
        let mut subject = plain([layout.rows as usize + 8, 72, depth], false, true);
        subject.desc.precision = config.precision(dtype);
        all.push(GemmSubject { config: Some(config), ..subject });
    }
    if scope == Scope::Full {
        for side in [2, 7, 8, 15, 16, 17, 31, 63, 64, 65, 127, 128, 129, 200] {
            all.push(plain([side, 24, 40], false, false));
            all.push(plain([24, side, 40], false, true));
            all.push(plain([24, 40, side], true, false));
            all.push(plain([side, side + 1, side + 2], true, true));
        }
        for activation in Activation::ALL {
            if activation.parameter().is_none() {
                all.push(full([33, 40, 20], 1, (1.0, 0.0), true, Some(activation), 0));
            }
        }
        all.push(plain([1, 64, 4000], false, true));
        all.push(plain([130, 260, 600], false, true));
    }
    all
}

/// Elements of a factor, of which every 149th is none that a sum survives if they are `special`.
pub(crate) fn draw(dtype: DType, special: bool, len: usize, salt: u64) -> Vec<f64> {
    let values = Input::Normal.values(len, salt << 32 | len as u64);
    let mut values: Vec<f64> = values.into_iter().map(|v| storage::round(dtype, v)).collect();
    if special {
        let specials = [f64::INFINITY, f64::NAN, 0.0, f64::NEG_INFINITY];
        values.iter_mut().step_by(149).enumerate().for_each(|(i, v)| *v = specials[i % specials.len()]);
    }
    values
}

impl GemmSubject {
    fn draw(&self, len: usize, salt: u64) -> Vec<f64> {
        draw(self.desc.dtype, self.special, len, salt)
    }
}

/// Elements that are multiplied in place of those of an operand.
fn multiplied(precision: Precision, config: Option<Config>, values: Vec<f64>) -> Vec<f64> {
    // To the nearest of 11 bits: half way away from zero, or to even where tensor copies round.
    let copied = matches!(config, Some(Config::Persistent(_)));
    let rounded = |value: f64| match (value as f32).to_bits() {
        _ if !value.is_finite() => value,
        bits => {
            let half = if copied { 0x0fff + (bits >> 13 & 1) } else { 0x1000 };
            f64::from(f32::from_bits((bits + half) & !0x1fff))
        }
    };
    match precision {
        Precision::Full => values,
        Precision::Tf32 => values.into_iter().map(rounded).collect(),
    }
}

impl Subject for GemmSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let dtype = self.desc.dtype;
        let exists = |config: &Config| {
            let sweeps = bench.target().sm == 90 && tuning::sweep(dtype).contains(config);
            sweeps || tuning::configs(dtype, bench.target()).contains(config)
        };
        let known = self.config.filter(exists);
        let precision = known.map_or(Precision::Full, |config| config.precision(dtype));
        let desc = &GemmDesc { precision, ..self.desc.clone() };
        let plan = match known {
            Some(config) => desc.plan_with(bench.target(), config)?,
            None => desc.plan(bench.target())?,
        };
        let len = |slot: usize| plan.tensors()[slot].len;
        let (has_c, has_bias) = (plan.tensors()[2].present, plan.tensors()[3].present);
        let a_values = self.draw(len(0), 1);
        let b_values = self.draw(len(1), 2);
        let c_values = self.draw(len(4), 3);
        let bias_values = self.draw(desc.n, 4);
        let a = bench.input("a", dtype, &a_values, self.lead)?;
        let b = bench.input("b", dtype, &b_values, self.lead)?;
        let [a_values, b_values] = [a_values, b_values].map(|values| multiplied(precision, known, values));
        let c = bench.input("c", dtype, &c_values, self.lead)?;
        let bias = bench.input("bias", dtype, &bias_values, self.lead)?;
        let mut y = if self.in_place {
            bench.input("y", dtype, &c_values, self.lead)?
        } else {
            bench.output("y", dtype, len(4), self.lead)?
        };
        let rows = if desc.bias_gradient { desc.m } else { 0 };
        let mut dbias = bench.output("dbias", dtype, rows, self.lead)?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let args = GemmArgs {
                a: a.view()?,
                b: b.view()?,
                c: match (has_c, self.in_place) {
                    (false, _) => Addend::Absent,
                    (true, true) => Addend::Result,
                    (true, false) => Addend::Tensor(c.view()?),
                },
                bias: if has_bias { Some(bias.view()?) } else { None },
                y: y.view_mut()?,
                dbias: if desc.bias_gradient { Some(dbias.view_mut()?) } else { None },
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        // What lies between the rows stays as it was.
        let before = if self.in_place { c_values.clone() } else { vec![Bench::poison(dtype); len(4)] };
        let got = bench.read(&y)?;
        let mut untouched = vec![true; len(4)];
        let (mut of_rows, mut expected) = (Vec::new(), Vec::new());
        let matrices = if len(4) == 0 { 0 } else { desc.batch };
        for batch in 0..matrices {
            for row in 0..desc.m {
                for col in 0..desc.n {
                    let at = batch * desc.stride_y + row * desc.ldy + col;
                    untouched[at] = false;
                    let (value, scale) = reference::element(
                        desc,
                        (&a_values, &b_values),
                        has_c.then_some(&c_values),
                        has_bias.then_some(&bias_values),
                        (batch, row, col),
                    );
                    of_rows.push(got[at]);
                    expected.push(Expected { value, scale, underflow: 0.0 });
                }
            }
        }
        let damaged = (0..got.len()).find(|&at| untouched[at] && got[at].to_bits() != before[at].to_bits());
        if let Some(at) = damaged {
            return Err(CaseError::Damage { tensor: "y", offset: (at * dtype.bytes()) as i64 });
        }
        let compared = crate::measure::compare(dtype, &of_rows, &expected, Bench::poison(dtype));
        if !desc.bias_gradient {
            return Ok(compared);
        }
        let sums: Vec<_> = (0..desc.m).map(|row| reference::row_sum(desc, &a_values, row)).collect();
        let got = bench.read(&dbias)?;
        Ok(compared.merge(crate::measure::compare(dtype, &got, &Expected::all(&sums), Bench::poison(dtype))))
    }
}
