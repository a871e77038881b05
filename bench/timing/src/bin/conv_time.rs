//! Times convolutions and their gradients with every tile that there is for them, in microseconds with cold caches.
//!
//!     cargo run --release -p warpwright-timing --bin conv_time [-- NAME ...] [DTYPE] [PASS] [tf32] [first] [sweep] [scale] [bias] [residual] [relu]
//!
//! NAME: a part of the name of a row, or all rows. PASS: `forward`, `dx` or `dweight`, or all of them. `tf32`: of `f32` rounded to that. `first`: channels first. `sweep` takes every tile,
//! not only that of the plan. `scale`, `bias`, `residual`, `relu`: forward alone, with these behind.

use warpwright::activation::Activation;
use warpwright::conv::tuning::{self, Tile};
use warpwright::conv::{Axis, Conv, ConvBackwardDesc, ConvDesc, Layout};
use warpwright::matmul::Precision;
use warpwright::{DType, Device, Error, Operation, Plan};
use warpwright_timing::{Cold, Ready, Shared};

/// Name, batch, channels, filters, groups, and the dimensions: input, kernel, stride, padding.
type Row = (&'static str, [usize; 4], &'static [[usize; 4]]);

const ROWS: &[Row] = &[
    ("resnet 3x3 c64 56", [64, 64, 64, 1], &[[56, 3, 1, 1]; 2]),
    ("resnet 3x3 c128 28", [64, 128, 128, 1], &[[28, 3, 1, 1]; 2]),
    ("resnet 3x3 c256 14", [64, 256, 256, 1], &[[14, 3, 1, 1]; 2]),
    ("resnet 3x3 c512 7", [64, 512, 512, 1], &[[7, 3, 1, 1]; 2]),
    ("resnet 3x3 s2 c128 56", [64, 128, 128, 1], &[[56, 3, 2, 1]; 2]),
    ("resnet 1x1 256-64 56", [64, 256, 64, 1], &[[56, 1, 1, 0]; 2]),
    ("resnet 1x1 64-256 56", [64, 64, 256, 1], &[[56, 1, 1, 0]; 2]),
    ("resnet 1x1 128-512 28", [64, 128, 512, 1], &[[28, 1, 1, 0]; 2]),
    ("resnet 1x1 256-1024 14", [64, 256, 1024, 1], &[[14, 1, 1, 0]; 2]),
    ("resnet 1x1 512-2048 7", [64, 512, 2048, 1], &[[7, 1, 1, 0]; 2]),
    ("resnet 1x1 s2 1024-2048 14", [64, 1024, 2048, 1], &[[14, 1, 2, 0]; 2]),
    ("stem 7x7 s2 3-64 224", [64, 3, 64, 1], &[[224, 7, 2, 3]; 2]),
    ("unet 3x3 c320 64", [2, 320, 320, 1], &[[64, 3, 1, 1]; 2]),
    ("unet 3x3 c640 32", [2, 640, 640, 1], &[[32, 3, 1, 1]; 2]),
    ("unet 3x3 c1280 16", [2, 1280, 1280, 1], &[[16, 3, 1, 1]; 2]),
    ("vae 3x3 c512 64", [1, 512, 512, 1], &[[64, 3, 1, 1]; 2]),
    ("vae 3x3 c256 256", [1, 256, 256, 1], &[[256, 3, 1, 1]; 2]),
    ("vae 3x3 c128 512", [1, 128, 128, 1], &[[512, 3, 1, 1]; 2]),
    ("large 3x3 256-512 112", [32, 256, 512, 1], &[[112, 3, 1, 1]; 2]),
    ("patch 16x16 s16 3-768 224", [64, 3, 768, 1], &[[224, 16, 16, 0]; 2]),
    ("depthwise 3x3 c192 56", [64, 192, 192, 192], &[[56, 3, 1, 1]; 2]),
    ("depthwise 7x7 c96 56", [64, 96, 96, 96], &[[56, 7, 1, 3]; 2]),
    ("depthwise 5x5 s2 c240 28", [64, 240, 240, 240], &[[28, 5, 2, 2]; 2]),
    ("grouped 3x3 g32 c128 56", [64, 128, 128, 32], &[[56, 3, 1, 1]; 2]),
    ("grouped 3x3 g32 c256 28", [64, 256, 256, 32], &[[28, 3, 1, 1]; 2]),
    ("grouped 3x3 g32 c512 14", [64, 512, 512, 32], &[[14, 3, 1, 1]; 2]),
    ("grouped 3x3 g32 c1024 7", [64, 1024, 1024, 32], &[[7, 3, 1, 1]; 2]),
    ("grouped 3x3 s2 g32 c256 56", [64, 256, 256, 32], &[[56, 3, 2, 1]; 2]),
    ("conv1d k3 s2 512-512 3000", [8, 512, 512, 1], &[[3000, 3, 2, 1]]),
    ("causal conv1d k4 c4096 2048", [8, 4096, 4096, 4096], &[[2051, 4, 1, 0]]),
    ("conv3d 3x3x3 c64 16x56x56", [2, 64, 64, 1], &[[16, 3, 1, 1], [56, 3, 1, 1], [56, 3, 1, 1]]),
];

const PASSES: [&str; 3] = ["forward", "dx", "dweight"];

fn conv(
    (dtype, precision): (DType, Precision),
    layout: Layout,
    ([batch, channels, filters, groups], dims): ([usize; 4], &[[usize; 4]]),
) -> Conv {
    let mut axes = [Axis::ONE; 3];
    for (axis, [input, kernel, stride, padding]) in axes[3 - dims.len()..].iter_mut().zip(dims) {
        *axis = Axis::new(*input, *kernel).with(*stride, *padding, 1);
    }
    Conv { dtype, layout, weight_layout: layout, batch, channels, filters, groups, axes, precision }
}

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| args.iter().any(|arg| arg == word);
    let dtype = args.iter().find_map(|arg| DType::from_name(arg)).unwrap_or(DType::BF16);
    let layout = if has("first") { Layout::ChannelsFirst } else { Layout::ChannelsLast };
    let (dtype, precision) = match has("tf32") {
        true => (DType::F32, Precision::Tf32),
        false => (dtype, Precision::Full),
    };
    let passes: Vec<&str> = PASSES.into_iter().filter(|pass| has(pass)).collect();
    let wanted = |pass: &str| passes.is_empty() || passes.contains(&pass);
    let options = ["first", "sweep", "tf32", "scale", "bias", "residual", "relu"];
    let words = |arg: &&String| {
        let arg = arg.as_str();
        !options.contains(&arg) && !PASSES.contains(&arg) && DType::from_name(arg).is_none()
    };
    let names: Vec<&String> = args.iter().filter(words).collect();
    let device = Device::best();
    println!("{}, {}", device.name(), device.target());
    let cold = Cold::new(&device)?;
    for &(name, sizes, dims) in ROWS {
        if !names.is_empty() && !names.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        let conv = conv((dtype, precision), layout, (sizes, dims));
        let outputs: usize = conv.axes.iter().map(|axis| axis.outputs().unwrap_or(0)).product();
        let taps: usize = conv.axes.iter().map(|axis| axis.kernel).product();
        let products = conv.batch * outputs * conv.filters * (conv.channels / conv.groups) * taps;
        println!("{name}: {:.1} GFLOP", 2e-9 * products as f64);
        let target = device.target();
        let tiles = if has("sweep") { tuning::tiles(dtype, precision, target) } else { Vec::new() };
        let tiles: Vec<_> = std::iter::once(None).chain(tiles.into_iter().map(Some)).collect();
        let (scale, bias, residual) = (has("scale"), has("bias"), has("residual"));
        let activation = has("relu").then_some(Activation::Relu);
        let forward = ConvDesc { conv, scale, bias, residual, activation };
        let plan = |tile| match tile {
            Some(tile) => forward.plan_with(target, tile),
            None => forward.plan(target),
        };
        if wanted("forward") {
            time(&device, &cold, "forward", (&tiles, products), plan)?;
        }
        if forward != ConvDesc::new(conv) {
            continue;
        }
        for (pass, dx) in [("dx", true), ("dweight", false)].into_iter().filter(|(pass, _)| wanted(pass)) {
            let backward = ConvBackwardDesc { conv, dx, dweight: !dx, dbias: false };
            let plan = |tile| match tile {
                Some(tile) => backward.plan_with(target, tile),
                None => backward.plan(target),
            };
            time(&device, &cold, pass, (&tiles, products), plan)?;
        }
    }
    Ok(())
}

/// Times the plans of a pass.
fn time<O: Operation>(
    device: &Device,
    cold: &Cold,
    pass: &str,
    (tiles, products): (&[Option<Tile>], usize),
    plan: impl Fn(Option<Tile>) -> Result<Plan<O>, warpwright::PlanError>,
) -> Result<(), Error> {
    let mut shared = Shared::new();
    for tile in tiles {
        let ready = Ready::new(device, &mut shared, plan(*tile)?)?;
        let us = cold.time(&ready)?;
        let steps: Vec<_> = ready.plan.steps().iter().map(|step| step.kernel().name().to_owned()).collect();
        let mark = if tile.is_none() { '*' } else { ' ' };
        println!(
            "{mark} {pass:<8}{us:>10.2} us {:>7.1} TFLOP/s  {}",
            2e-6 * products as f64 / us,
            steps.join(" + ")
        );
    }
    Ok(())
}
