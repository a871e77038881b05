//! Times products of 8-bit matrices with every kernel that there is for them, in microseconds with cold caches.
//!
//!     cargo run --release -p warpwright-timing --bin scaled_gemm_time [-- M,N,K ...] [e4m3 ...] [row ...] [fast] [sweep]
//!
//! Scalings are of `a`; `b` has the same, or 128x128 with 1x128. `fast` leaves sums in the tensor cores; `sweep` takes layouts that no plan
//! has, too.

use warpwright::quantize8::{Format, Scaling};
use warpwright::scaled_gemm::{Accumulation, ScaledGemmDesc, tuning};
use warpwright::{DType, Device, Error, Operation};
use warpwright_timing::{Cold, Ready, Shared};

const SHAPES: [[usize; 3]; 5] =
    [[8192, 8192, 8192], [4096, 4096, 4096], [4096, 7168, 16_384], [64, 7168, 16_384], [16, 8192, 8192]];

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| args.iter().any(|arg| arg == word);
    let shape = |arg: &String| {
        let sides: Vec<usize> = arg.split(',').filter_map(|side| side.parse().ok()).collect();
        <[usize; 3]>::try_from(sides).ok()
    };
    let mut shapes: Vec<_> = args.iter().filter_map(shape).collect();
    if shapes.is_empty() {
        shapes = SHAPES.to_vec();
    }
    let device = Device::best();
    println!("{}, {}", device.name(), device.target());
    let cold = Cold::new(&device)?;
    let formats = Format::ALL.into_iter().filter(|format| has(format.name()));
    for format in formats {
        for scaling in Scaling::ALL.into_iter().filter(|scaling| has(scaling.name())) {
            for shape in &shapes {
                let of_b =
                    if scaling == Scaling::BlockWise1x128 { Scaling::BlockWise128x128 } else { scaling };
                let accumulation = if has("fast") { Accumulation::Fast } else { Accumulation::Promoted };
                let desc = ScaledGemmDesc {
                    scaling_b: Some(of_b),
                    accumulation,
                    ..ScaledGemmDesc::new(format, DType::BF16, *shape, scaling)
                };
                println!("{} {} {shape:?} {accumulation:?}", format.name(), scaling.name());
                products(&device, &cold, &desc, has("sweep"))?;
            }
        }
    }
    Ok(())
}

/// All kernels for a product, that of the plan first.
fn products(device: &Device, cold: &Cold, desc: &ScaledGemmDesc, sweep: bool) -> Result<(), Error> {
    let target = device.target();
    let scales = desc.scales();
    let mut configs = tuning::configs(scales);
    if sweep {
        configs.extend(tuning::sweep(scales));
    }
    let others = configs.into_iter().map(|config| desc.plan_with(target, config));
    let mut shared = Shared::new();
    for (i, plan) in std::iter::once(desc.plan(target)).chain(others).enumerate() {
        let product = Ready::new(device, &mut shared, plan?)?;
        let us = cold.time(&product)?;
        let kernel = product.plan.steps().first().map_or("", |step| step.kernel().name());
        let mark = if i == 0 { '*' } else { ' ' };
        let rate = 2e-6 * (desc.m * desc.n * desc.k) as f64 / us;
        println!("{mark} {us:>10.2} {rate:>7.1} TFLOP/s  {kernel}");
    }
    Ok(())
}
