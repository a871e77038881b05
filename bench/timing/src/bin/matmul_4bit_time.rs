//! Times products with 4-bit weights with every kernel that multiplies what it decodes, beside those with a dense weight, in microseconds with
//! cold caches.
//!
//!     cargo run --release -p warpwright-timing --bin matmul_4bit_time [-- N,K ...] [ROWS ...] [nf4 | int4 | int4_asymmetric | mxfp4 | nvfp4 ...] [nested]

use warpwright::matmul::GemmDesc;
use warpwright::matmul_4bit::tuning::{self, Config};
use warpwright::matmul_4bit::{Matmul4bitDesc, ScaleFormat, Weight4bitDesc, WeightFormat};
use warpwright::{DType, Device, Error, Operation};
use warpwright_timing::{Cold, Ready, Shared};

const SHAPES: [[usize; 2]; 3] = [[28_672, 8192], [8192, 8192], [4096, 4096]];
const ROWS: [usize; 6] = [16, 32, 64, 128, 256, 512];

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let shape = |arg: &String| {
        let sides: Vec<usize> = arg.split(',').filter_map(|side| side.parse().ok()).collect();
        <[usize; 2]>::try_from(sides).ok()
    };
    let or = |found: Vec<_>, all: &[[usize; 2]]| if found.is_empty() { all.to_vec() } else { found };
    let shapes = or(args.iter().filter_map(shape).collect(), &SHAPES);
    let mut rows: Vec<usize> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    if rows.is_empty() {
        rows = ROWS.to_vec();
    }
    let named = |format: &WeightFormat| args.iter().any(|arg| arg == format.name());
    let mut formats: Vec<_> = WeightFormat::ALL.into_iter().filter(named).collect();
    if formats.is_empty() {
        formats.push(WeightFormat::Nf4);
    }
    let device = Device::best();
    println!("{}, {}", device.name(), device.target());
    let cold = Cold::new(&device)?;
    for format in formats {
        for [n, k] in &shapes {
            for m in &rows {
                let group = format.fixed_group_size().unwrap_or(64);
                let mut weight = Weight4bitDesc::new(format, [*n, *k], group);
                if args.iter().any(|arg| arg == "nested") {
                    weight.scale = ScaleFormat::Nested;
                }
                let desc = Matmul4bitDesc { dtype: DType::BF16, m: *m, weight, bias: false };
                println!("{} {n} x {k}, {m} rows", format.name());
                products(&device, &cold, &desc)?;
            }
        }
    }
    Ok(())
}

/// All kernels for a product, that of the plan first and that of a dense weight last.
fn products(device: &Device, cold: &Cold, desc: &Matmul4bitDesc) -> Result<(), Error> {
    let (target, m, Weight4bitDesc { n, k, .. }) = (device.target(), desc.m, desc.weight);
    let flops = 2e-6 * (m * n * k) as f64;
    let print = |mark: char, us: f64, steps: usize, kernel: &str| {
        println!("{mark} {us:>10.2} {:>7.1} TFLOP/s  {steps} {kernel}", flops / us);
    };
    let streams = tuning::configs().into_iter().map(Config::Stream);
    let configs = streams.chain(tuning::warpgroup_configs().into_iter().map(Config::Warpgroup));
    let others = configs.filter_map(|config| desc.plan_with(target, config).ok());
    let mut shared = Shared::new();
    for (i, plan) in std::iter::once(desc.plan(target)?).chain(others).enumerate() {
        let product = Ready::new(device, &mut shared, plan)?;
        let us = cold.time(&product)?;
        let steps = product.plan.steps();
        print(
            if i == 0 { '*' } else { ' ' },
            us,
            steps.len(),
            steps.first().map_or("", |step| step.kernel().name()),
        );
    }
    let dense = GemmDesc::new(desc.dtype, [m, n, k], false, true).plan(target)?;
    let product = Ready::new(device, &mut Shared::new(), dense)?;
    let us = cold.time(&product)?;
    let steps = product.plan.steps();
    print('=', us, steps.len(), steps.first().map_or("", |step| step.kernel().name()));
    Ok(())
}
