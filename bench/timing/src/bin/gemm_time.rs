//! Times matrix products with every kernel that there is for them, in microseconds with cold caches, and prints the error of
//! single precision.
//!
//!     cargo run --release -p warpwright-timing --bin gemm_time [-- M,N,K ...] [f32 ...] [nt ...] [only=PART] [sweep]
//!
//! `n` and `t` say how `a` and `b` lie; PART is a part of a kernel's name; `sweep` takes layouts that no plan has, too.

use warpwright::matmul::{GemmDesc, Precision, tuning};
use warpwright::{DType, Device, Error, Operation};
use warpwright_timing::{Cold, Ready, Shared};

const SHAPES: [[usize; 3]; 8] = [
    [1024, 1024, 1024],
    [2048, 2048, 2048],
    [4096, 4096, 4096],
    [64, 4096, 1024],
    [16, 4096, 4096],
    [1, 4096, 1024],
    [32, 8192, 2048],
    [128, 11_008, 4096],
];
/// Rows whose errors are looked at.
const ROWS: usize = 2;

/// The first rows in double precision, of `f32`.
fn exact(desc: &GemmDesc, a: &[f32], b: &[f32]) -> Vec<f64> {
    let GemmDesc { m, n, k, transpose_a, transpose_b, .. } = *desc;
    let mut out = Vec::new();
    for row in 0..ROWS.min(m) {
        let a_at = |p: usize| f64::from(if transpose_a { a[p * m + row] } else { a[row * k + p] });
        if transpose_b {
            out.extend(b.chunks(k).map(|b| (0..k).map(|p| a_at(p) * f64::from(b[p])).sum::<f64>()));
        } else {
            let mut sums = vec![0.0; n];
            for (p, b) in b.chunks(n).enumerate() {
                let a = a_at(p);
                sums.iter_mut().zip(b).for_each(|(sum, b)| *sum += a * f64::from(*b));
            }
            out.extend(sums);
        }
    }
    out
}

/// The difference's norm as a part of the result's, and the largest element's as a part of the root of its square's mean.
fn errors(got: &[f32], exact: &[f64]) -> (f64, f64) {
    let squares: f64 = exact.iter().map(|x| x * x).sum();
    let differences = || got.iter().zip(exact).map(|(got, exact)| (f64::from(*got) - exact).abs());
    let norm = differences().map(|d| d * d).sum::<f64>();
    let root = (squares / exact.len() as f64).sqrt();
    ((norm / squares).sqrt(), differences().fold(0.0, f64::max) / root)
}

/// The products that are asked for.
struct Asked {
    shapes: Vec<[usize; 3]>,
    dtypes: Vec<DType>,
    orientations: Vec<(bool, bool)>,
    only: Vec<String>,
    sweep: bool,
}

impl Asked {
    fn new() -> Self {
        let mut asked =
            Self { shapes: vec![], dtypes: vec![], orientations: vec![], only: vec![], sweep: false };
        for arg in std::env::args().skip(1) {
            let sides: Vec<usize> = arg.split(',').filter_map(|side| side.parse().ok()).collect();
            let known = [DType::BF16, DType::F16, DType::F32, DType::F64];
            if let Ok(shape) = sides.try_into() {
                asked.shapes.push(shape);
            } else if let Some(dtype) = known.into_iter().find(|d| d.to_string() == arg) {
                asked.dtypes.push(dtype);
            } else if let Some(part) = arg.strip_prefix("only=") {
                asked.only.push(part.to_owned());
            } else if arg == "sweep" {
                asked.sweep = true;
            } else if let [a @ (b'n' | b't'), b @ (b'n' | b't')] = arg.as_bytes() {
                asked.orientations.push((*a == b't', *b == b't'));
            }
        }
        if asked.shapes.is_empty() {
            asked.shapes = SHAPES.to_vec();
        }
        if asked.dtypes.is_empty() {
            asked.dtypes = vec![DType::BF16, DType::F32, DType::F64];
        }
        if asked.orientations.is_empty() {
            asked.orientations = vec![(false, true)];
        }
        asked
    }

    fn wants(&self, kernel: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| kernel.contains(part.as_str()))
    }
}

fn main() -> Result<(), Error> {
    let asked = Asked::new();
    let device = Device::best();
    println!("{}, {}", device.name(), device.target());
    let cold = Cold::new(&device)?;
    for dtype in &asked.dtypes {
        for shape in &asked.shapes {
            for (ta, tb) in &asked.orientations {
                let desc = GemmDesc::new(*dtype, *shape, *ta, *tb);
                products(&asked, &device, &cold, &desc)?;
            }
        }
    }
    Ok(())
}

/// All kernels for a product, that of the plan first.
fn products(asked: &Asked, device: &Device, cold: &Cold, desc: &GemmDesc) -> Result<(), Error> {
    let target = device.target();
    let letter = |transposed| if transposed { 't' } else { 'n' };
    println!(
        "{} {}{} {:?}",
        desc.dtype,
        letter(desc.transpose_a),
        letter(desc.transpose_b),
        [desc.m, desc.n, desc.k]
    );
    let mut plans = Vec::new();
    for precision in [Precision::Full, Precision::Tf32] {
        let desc = GemmDesc { precision, ..desc.clone() };
        plans.extend(desc.plan(target).ok().map(|plan| ("*", String::new(), plan)));
        let mut configs = tuning::configs(desc.dtype, target);
        if asked.sweep {
            configs.extend(tuning::sweep(desc.dtype));
        }
        plans.extend(configs.into_iter().filter_map(|config| {
            let order = match config {
                tuning::Config::Persistent(config) | tuning::Config::F16x3(config) => {
                    format!(", height {}", config.height)
                }
                _ => String::new(),
            };
            Some((" ", order, desc.plan_with(target, config).ok()?))
        }));
    }
    let (mut expected, mut shared) = (None, Shared::new());
    for (mark, config, plan) in plans {
        let mut names: Vec<_> = plan.steps().iter().map(|step| step.kernel().name()).collect();
        names.dedup();
        let kernel = names.join(" + ");
        if !asked.wants(&kernel) {
            continue;
        }
        let parts = plan.steps().first().map_or(0, |step| step.grid()[1]);
        let product = Ready::new(device, &mut shared, plan)?;
        let us = cold.time(&product)?;
        print!("{mark} {us:>10.2} {:>7.1} TFLOP/s", 2e-6 * (desc.m * desc.n * desc.k) as f64 / us);
        if desc.dtype == DType::F32 {
            let [a, b, y] = [0, 1, 4].map(|slot: usize| product.tensors[slot].to_vec::<f32>());
            let exact = expected.get_or_insert(exact(desc, &a?, &b?));
            let (norm, largest) = errors(&y?, exact);
            print!("  error {norm:.2e}, at most {largest:.2e}");
        }
        println!("  {kernel}, {parts} parts{config}");
    }
    Ok(())
}
