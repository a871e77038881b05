//! Cases of products of 8-bit matrices with scales.

use std::sync::Arc;

use warpwright_ops::Direction;
use warpwright_ops::activation::Activation;
use warpwright_ops::quantize8::{Format, Scaling};
use warpwright_ops::scaled_gemm::tuning::{self, PersistentConfig, Scales};
use warpwright_ops::scaled_gemm::{Accumulation, DTYPES, ScaledGemmArgs, ScaledGemmDesc, reference};
use warpwright_ptx::DType;

use crate::budget::{self, Budget};
use crate::case::{Bench, Case, CaseError, Scope, Subject, say, view};
use crate::inputs::Input;
use crate::measure::{Comparison, Expected};
use crate::storage;

#[derive(Clone, Debug)]
struct Product {
    desc: ScaledGemmDesc,
    /// Whether there are NaN among the elements.
    special: bool,
    /// Elements past an aligned address.
    lead: usize,
    /// The kernel, where the target has it; otherwise the one that is chosen for the sizes.
    config: Option<PersistentConfig>,
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    let names = warpwright_ops::catalogue();
    for format in Format::ALL {
        let name = format!("scaled_gemm_{}", format.name());
        let op = names.iter().find(|entry| entry.op == name).map_or("unknown", |entry| entry.op);
        let integers: &[DType] = if format == Format::Int8 { &[DType::I32] } else { &[] };
        for y in DTYPES.iter().chain(integers) {
            for subject in situations(format, *y, scope) {
                let d = &subject.desc;
                let name = |scaling: Option<Scaling>| scaling.map_or("none", Scaling::name);
                let mut input = format!(
                    "{} by {}, scaling {} {}, {:?}, bias {}, {}, ld {} {} {}{}",
                    d.a.name(),
                    d.b.name(),
                    name(d.scaling_a),
                    name(d.scaling_b),
                    d.accumulation,
                    d.bias,
                    d.activation.map_or("no activation", Activation::name),
                    d.lda,
                    d.ldb,
                    d.ldy,
                    subject.config.map_or(String::new(), |c| format!(", {}", c.name())),
                );
                say(&mut input, [(subject.special, ", special"), (subject.lead > 0, ", misaligned")]);
                out.push(Case {
                    op,
                    direction: Direction::Forward,
                    dtype: *y,
                    shape: vec![d.m, d.n, d.k],
                    input,
                    budget: summed(d),
                    subject: Arc::new(subject),
                });
            }
        }
    }
    out
}

/// A sum in f32 of sums of 128 products, and the bits that tensor cores of sm_90 keep of those of floats.
fn summed(d: &ScaledGemmDesc) -> Budget {
    if d.y == DType::I32 {
        return budget::EXACT;
    }
    let table = budget::normalised(d.y);
    let float = d.a != Format::Int8;
    if float {
        budget::eight_bit_products(table, d.y, d.accumulation == Accumulation::Fast, d.k)
    } else {
        table
    }
}

fn situations(format: Format, y: DType, scope: Scope) -> Vec<Product> {
    use Scaling::{BlockWise1x128 as Strips, BlockWise128x128 as Squares, RowWise, Static, TensorWise};
    let mut all = Vec::new();
    let integers = format == Format::Int8;
    let plain = |sizes, a: Scaling, b: Scaling| Product {
        desc: ScaledGemmDesc { scaling_b: Some(b), ..ScaledGemmDesc::new(format, y, sizes, a) },
        special: false,
        lead: 0,
        config: None,
    };
    if y == DType::I32 {
        let mut exact = |sizes: [usize; 3], pad: usize| {
            let mut product = plain(sizes, TensorWise, TensorWise);
            (product.desc.scaling_a, product.desc.scaling_b) = (None, None);
            product.desc.ldy += pad;
            all.push(product);
        };
        exact([72, 136, 400], 0);
        exact([33, 65, 37], 0);
        exact([40, 24, 144], 3);
        exact([3, 5, 0], 0);
        // Sums beyond what f32 holds.
        exact([2, 3, 5120], 0);
        return all;
    }
    let full = |sizes: [usize; 3], a: Scaling, b: Scaling, activation, pad: usize| {
        let mut product = plain(sizes, a, b);
        let d = &mut product.desc;
        (d.lda, d.ldb, d.ldy) = (d.lda + pad, d.ldb + pad, d.ldy + pad);
        (d.bias, d.activation) = (true, activation);
        product
    };
    let scalings = [
        (TensorWise, TensorWise),
        (RowWise, RowWise),
        (Strips, Squares),
        (Strips, Strips),
        (Squares, Squares),
        (RowWise, Squares),
        (Strips, Static),
    ];
    for (i, (a, b)) in scalings.into_iter().enumerate() {
        all.push(plain([72, 136, 144], a, b));
        all.push(full([33, 65, 37], a, b, Some(Activation::Silu), 0));
        all.push(full([140, 131, 272], a, b, None, 16 * (i % 2)));
    }
    for sizes in [[0, 5, 3], [5, 0, 3], [4, 6, 0], [1, 1, 1], [1, 40, 704], [64, 64, 64]] {
        all.push(full(sizes, RowWise, RowWise, Some(Activation::Relu), 0));
    }
    // Rows that begin at multiples of 16 bytes and end between them: what follows is not of the result.
    let mut gap = plain([70, 45, 64], RowWise, RowWise);
    gap.desc.ldy = 48;
    all.push(gap);
    all.push(Product { lead: 1, ..full([24, 40, 64], RowWise, TensorWise, Some(Activation::GeluErf), 16) });
    if !integers {
        all.push(Product { special: true, ..plain([40, 72, 208], RowWise, RowWise) });
        let mut mixed = plain([40, 72, 208], TensorWise, RowWise);
        mixed.desc.b = if format == Format::E5M2 { Format::E4M3 } else { Format::E5M2 };
        all.push(mixed);
        let mut mixed = full([20, 35, 50], RowWise, Squares, Some(Activation::Tanh), 0);
        mixed.desc.b = Format::E4M3;
        all.push(mixed);
    }
    // Every kernel of sm_90a: more than a round of its ring, rows and columns beyond a tile, and an end within a slice.
    for by_slices in [false, true] {
        let (a, b) = if by_slices { (Strips, Squares) } else { (RowWise, RowWise) };
        let scales = Scales { a: Some(a), b: Some(b), promotes: false };
        let sweeps =
            tuning::sweep(scales).into_iter().filter(|config| (config.cluster, config.height) == (2, 8));
        let sweeps = sweeps.filter(|_| y == DType::BF16 && format == Format::E4M3);
        for config in tuning::configs(scales).into_iter().chain(sweeps) {
            let depth = (config.stages * 128 + 80) as usize;
            let of = |product: Product| {
                let accumulation = Accumulation::Fast;
                Product {
                    config: Some(config),
                    desc: ScaledGemmDesc { accumulation, ..product.desc },
                    ..product
                }
            };
            let (rows, cols) = (config.rows as usize, config.cols as usize);
            all.push(of(full([rows * config.cluster as usize + 8, cols + 24, depth], a, b, None, 0)));
            all.push(of(full([20, 35, 144], a, b, Some(Activation::GeluTanh), 16)));
        }
    }
    // The type of results makes a difference to the epilogue alone.
    if scope == Scope::Full && y == DType::BF16 {
        for side in [2, 7, 8, 15, 16, 17, 31, 63, 64, 65, 127, 128, 129, 200] {
            for (a, b) in scalings {
                all.push(plain([side, 24, 48], a, b));
                all.push(plain([24, side, 80], a, b));
                all.push(plain([24, 40, side], a, b));
            }
        }
        for activation in Activation::ALL {
            if activation.parameter().is_none() {
                all.push(full([33, 40, 32], RowWise, RowWise, Some(activation), 0));
            }
        }
        for (a, b) in scalings {
            all.push(plain([130, 260, 640], a, b));
            all.push(plain([1, 64, 4000], a, b));
        }
    }
    all
}

impl Product {
    /// Codes, as the numbers that they stand for.
    fn codes(&self, format: Format, len: usize, salt: u64) -> Vec<f64> {
        let values = Input::Normal.values(len, salt << 32 | len as u64);
        let spread = if format == Format::Int8 { 50.0 } else { 8.0 };
        let code = |value: f64| match format {
            Format::Int8 => (value * spread).round().clamp(-128.0, 127.0),
            _ => storage::round(format.dtype(), value * spread),
        };
        let mut values: Vec<f64> = values.into_iter().map(code).collect();
        if self.special {
            values.iter_mut().step_by(1499).for_each(|v| *v = f64::NAN);
        }
        values
    }

    fn scales(len: usize, salt: u64) -> Vec<f64> {
        let values = Input::Normal.values(len, salt << 32 | len as u64);
        values.into_iter().map(|v| f64::from((0.01 * (v.abs() + 0.1)) as f32)).collect()
    }
}

impl Subject for Product {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let desc = &self.desc;
        let plan = bench.plan(desc, self.config, ScaledGemmDesc::plan_with)?;
        let len = |name: &str| plan.tensor(name).map_or(0, |spec| spec.len);
        let (a_codes, b_codes) = (self.codes(desc.a, len("a"), 1), self.codes(desc.b, len("b"), 2));
        let (a_scales, b_scales) = (Self::scales(len("scale_a"), 3), Self::scales(len("scale_b"), 4));
        let bias_values: Vec<f64> = Input::Normal.values(desc.n, 5);
        let bias_values: Vec<f64> = bias_values.into_iter().map(|v| storage::round(desc.y, v)).collect();
        let a = bench.input("a", desc.a.dtype(), &a_codes, self.lead)?;
        let b = bench.input("b", desc.b.dtype(), &b_codes, self.lead)?;
        let scale_a =
            bench.optional_input("scale_a", DType::F32, desc.scaling_a.map(|_| &a_scales), self.lead)?;
        let scale_b =
            bench.optional_input("scale_b", DType::F32, desc.scaling_b.map(|_| &b_scales), self.lead)?;
        let bias = bench.optional_input("bias", desc.y, desc.bias.then_some(&bias_values), self.lead)?;
        let mut y = bench.output("y", desc.y, len("y"), self.lead)?;
        bench.launch(|stream| {
            let args = ScaledGemmArgs {
                a: a.view()?,
                b: b.view()?,
                scale_a: view(&scale_a)?,
                scale_b: view(&scale_b)?,
                bias: view(&bias)?,
                y: y.view_mut()?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        // What lies between the rows stays as it was.
        let (poison, got) = (Bench::poison(desc.y), bench.read(&y)?);
        let mut untouched = vec![true; got.len()];
        let (mut of_rows, mut expected) = (Vec::new(), Vec::new());
        let a = reference::Operand { q: &a_codes, scales: &a_scales };
        let b = reference::Operand { q: &b_codes, scales: &b_scales };
        let (a, b) = match got.is_empty() {
            true => (Vec::new(), Vec::new()),
            false => (
                a.numbers(desc.scaling_a, [desc.m, desc.k], desc.lda),
                b.numbers(desc.scaling_b, [desc.n, desc.k], desc.ldb),
            ),
        };
        let rows = if got.is_empty() { 0 } else { desc.m };
        for row in 0..rows {
            for col in 0..desc.n {
                let at = row * desc.ldy + col;
                untouched[at] = false;
                let bias = desc.bias.then_some(&bias_values[..]);
                let (value, scale) = reference::element(desc, (&a, &b), bias, (row, col));
                of_rows.push(got[at]);
                expected.push(Expected { value, scale, underflow: 0.0 });
            }
        }
        let damaged = (0..got.len()).find(|&at| untouched[at] && got[at].to_bits() != poison.to_bits());
        if let Some(at) = damaged {
            return Err(CaseError::Damage { tensor: "y", offset: (at * desc.y.bytes()) as i64 });
        }
        Ok(crate::measure::compare(desc.y, &of_rows, &expected, poison))
    }
}
