//! Times products of groups of rows with every kernel that there is for them, in microseconds with cold caches.
//!
//!     cargo run --release -p warpwright-timing --bin grouped_gemm_time [-- GROUPS,ROWS,N,K ...] [k] [n] [sweep]
//!
//! ROWS are those of all groups, cut at random. `k`: groups of the common dimension, of which a result is N x K. `n`: matrices of groups are
//! not transposed. `sweep` takes layouts that no plan has, too.

use std::rc::Rc;

use warpwright::grouped_gemm::{GroupedGemmDesc, tuning};
use warpwright::{DType, Device, Error, Operation, Tensor};
use warpwright_timing::{Cold, Ready, Shared};

const SHAPES: [[usize; 4]; 4] =
    [[8, 16_384, 4096, 4096], [16, 4096, 4096, 4096], [64, 16_384, 2048, 2048], [128, 4096, 1536, 4096]];

/// Where groups of `rows` rows end, the last at all of them.
fn cuts(groups: usize, rows: usize) -> Vec<i32> {
    let mut state = 12_345u64;
    let mut ends: Vec<i32> = (1..groups)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % (rows as u64 + 1)) as i32
        })
        .collect();
    ends.sort_unstable();
    ends.push(rows as i32);
    ends
}

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| args.iter().any(|arg| arg == word);
    let shape = |arg: &String| {
        let sides: Vec<usize> = arg.split(',').filter_map(|side| side.parse().ok()).collect();
        <[usize; 4]>::try_from(sides).ok()
    };
    let mut shapes: Vec<_> = args.iter().filter_map(shape).collect();
    if shapes.is_empty() {
        shapes = SHAPES.to_vec();
    }
    let device = Device::best();
    println!("{}, {}", device.name(), device.target());
    let cold = Cold::new(&device)?;
    for shape @ [groups, rows, n, k] in shapes {
        let desc = if has("k") {
            GroupedGemmDesc::new_k(DType::BF16, groups, [n, k, rows])
        } else {
            GroupedGemmDesc::new(DType::BF16, groups, [rows, n, k], !has("n"))
        };
        println!("{shape:?}");
        let ends = Rc::new(Tensor::from_slice(&device, &cuts(groups, rows), &[groups])?);
        products(&device, &cold, &desc, &ends, (has("sweep"), 2.0 * (rows * n * k) as f64))?;
    }
    Ok(())
}

/// All kernels for a product, that of the plan first.
fn products(
    device: &Device,
    cold: &Cold,
    desc: &GroupedGemmDesc,
    ends: &Rc<Tensor>,
    (sweep, operations): (bool, f64),
) -> Result<(), Error> {
    let target = device.target();
    let mut configs = tuning::configs();
    if sweep {
        configs.extend(tuning::sweep());
    }
    let others = configs.into_iter().map(|config| desc.plan_with(target, config));
    let mut shared = Shared::from([((2, DType::I32, desc.groups), ends.clone())]);
    for (i, plan) in std::iter::once(desc.plan(target)).chain(others).enumerate() {
        let product = Ready::new(device, &mut shared, plan?)?;
        let us = cold.time(&product)?;
        let kernel = product.plan.steps().first().map_or("", |step| step.kernel().name());
        let mark = if i == 0 { '*' } else { ' ' };
        println!("{mark} {us:>10.2} {:>7.1} TFLOP/s  {kernel}", 1e-6 * operations / us);
    }
    Ok(())
}
