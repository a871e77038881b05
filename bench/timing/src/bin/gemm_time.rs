//! Times matrix products with every kernel that there is for them, in microseconds with cold caches, and prints the error of
//! single precision.
//!
//!     cargo run --release -p warpwright-timing --bin gemm_time [-- M,N,K ...] [f32 ...] [nt ...] [only=PART] [sweep]
//!
//! `n` and `t` say how `a` and `b` lie; PART is a part of a kernel's name; `sweep` takes layouts that no plan has, too.

use std::collections::HashMap;
use std::rc::Rc;

use warpwright::activation::{Activation, ActivationDesc};
use warpwright::matmul::{GemmDesc, Precision, tuning};
use warpwright::plan::Access;
use warpwright::{DType, Device, Error, Operation, Plan, Stream, Tensor};

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
/// Elements whose activation, in front of every product, leaves nothing of it in the caches.
const FLUSH: usize = 1 << 26;
const SAMPLES: usize = 15;
/// Rows whose errors are looked at.
const ROWS: usize = 2;

/// A plan and what it works on: numbers of either sign near a tenth, whatever the type.
struct Ready<O: Operation> {
    plan: Plan<O>,
    tensors: Vec<Rc<Tensor>>,
}

/// Tensors that plans of one product share: their slot, type and length.
type Shared = HashMap<(usize, DType, usize), Rc<Tensor>>;

/// Random bits.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state ^ *state >> 29
}

/// Numbers from a sixteenth to an eighth, and their negatives.
fn content(dtype: DType, len: usize) -> Vec<u8> {
    let mut state = len as u64;
    let mut out = Vec::with_capacity(len * dtype.bytes());
    for _ in 0..len {
        let bits = random(&mut state) >> 8;
        let sign = |place: u32| (bits >> 54 & 1) << place;
        let (high, low) = match dtype {
            DType::F64 => (0x3fb0 << 48, 52),
            DType::F32 => (0x3d80 << 16, 23),
            DType::BF16 => (0x3d80, 7),
            _ => (0x2c00, 10),
        };
        let value = high | bits & ((1 << low) - 1) | sign(8 * dtype.bytes() as u32 - 1);
        out.extend_from_slice(&value.to_le_bytes()[..dtype.bytes()]);
    }
    out
}

impl<O: Operation> Ready<O> {
    fn new(device: &Device, shared: &mut Shared, plan: Plan<O>) -> Result<Self, Error> {
        let mut tensors = Vec::new();
        for (slot, spec) in plan.tensors().iter().enumerate() {
            let key = (slot, spec.dtype, spec.len);
            let tensor = match (shared.get(&key), spec.access) {
                (Some(tensor), _) => tensor.clone(),
                (None, Access::Read) => {
                    let content = content(spec.dtype, spec.len);
                    Rc::new(Tensor::from_bytes(device, spec.dtype, &content, &[spec.len])?)
                }
                (None, Access::Write) => Rc::new(Tensor::empty(device, spec.dtype, &[spec.len])?),
            };
            shared.insert(key, tensor.clone());
            tensors.push(tensor);
        }
        plan.warm_up(device)?;
        Ok(Self { plan, tensors })
    }

    fn launch(&self, stream: &Stream) -> Result<(), Error> {
        let bindings: Vec<_> = self.tensors.iter().map(|tensor| tensor.binding()).collect();
        self.plan.steps().iter().try_for_each(|step| Ok(stream.launch(step, &bindings)?))
    }
}

/// Microseconds of a product, the median of a few.
fn time(stream: &Stream, flush: &Ready<ActivationDesc>, product: &Ready<GemmDesc>) -> Result<f64, Error> {
    let mut all = Vec::new();
    for _ in 0..SAMPLES {
        flush.launch(stream)?;
        let start = stream.record()?;
        product.launch(stream)?;
        let end = stream.record()?;
        stream.synchronize()?;
        all.extend(start.elapsed_us(&end)?);
    }
    all.sort_by(f64::total_cmp);
    Ok(all.get(all.len() / 2).copied().unwrap_or(f64::NAN))
}

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
    let (stream, target) = (device.stream()?, device.target());
    println!("{}, {target}", device.name());
    let flush =
        ActivationDesc { activation: Activation::Relu, dtype: DType::F32, len: FLUSH }.plan(target)?;
    let flush = Ready::new(&device, &mut Shared::new(), flush)?;
    for dtype in &asked.dtypes {
        for shape in &asked.shapes {
            for (ta, tb) in &asked.orientations {
                let desc = GemmDesc::new(*dtype, *shape, *ta, *tb);
                products(&asked, &device, &stream, &flush, &desc)?;
            }
        }
    }
    Ok(())
}

/// All kernels for a product, that of the plan first.
fn products(
    asked: &Asked,
    device: &Device,
    stream: &Stream,
    flush: &Ready<ActivationDesc>,
    desc: &GemmDesc,
) -> Result<(), Error> {
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
                tuning::Config::Persistent(config) => format!(", height {}", config.height),
                _ => String::new(),
            };
            Some((" ", order, desc.plan_with(target, config).ok()?))
        }));
    }
    let (mut expected, mut shared) = (None, Shared::new());
    for (mark, config, plan) in plans {
        let kernel = plan.steps().first().map_or("", |step| step.kernel().name()).to_owned();
        if !asked.wants(&kernel) {
            continue;
        }
        let parts = plan.steps().first().map_or(0, |step| step.grid()[1]);
        let product = Ready::new(device, &mut shared, plan)?;
        let us = time(stream, flush, &product)?;
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
