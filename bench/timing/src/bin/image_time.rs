//! Times pooling, resizing and causal convolutions with cold caches: microseconds, and the bytes of all tensors over that time.
//!
//!     cargo run --release -p warpwright-timing --bin image_time

use warpwright::causal_conv1d::{CausalConv1d, CausalConv1dBackwardDesc, CausalConv1dDesc};
use warpwright::conv::Layout;
use warpwright::pool::{
    Argmax, AvgPoolBackwardDesc, AvgPoolDesc, Divisor, MaxPoolBackwardDesc, MaxPoolDesc, Pool,
    SlidingWindows, Windows,
};
use warpwright::resize::{Mode, ResizeBackwardDesc, ResizeDesc};
use warpwright::{DType, Device, Error, Operation, Plan};
use warpwright_timing::{Cold, Ready, Shared};

fn time<O: Operation>(device: &Device, cold: &Cold, name: &str, plan: Plan<O>) -> Result<(), Error> {
    let used = plan.tensors().iter().filter(|tensor| tensor.name != "workspace");
    let bytes: usize = used.map(|tensor| tensor.len * tensor.dtype.bytes()).sum();
    let ready = Ready::new(device, &mut Shared::new(), plan)?;
    let us = cold.time(&ready)?;
    println!("{name:<44}{us:>10.2} us {:>8.2} TB/s", 1e-6 * bytes as f64 / us);
    Ok(())
}

/// Windows over whole planes, and planes cut into 7 x 7.
fn adaptive(device: &Device, cold: &Cold, layout: Layout, name: &str) -> Result<(), Error> {
    let target = device.target();
    for (batch, channels, side, to) in [(64, 2048, 7, 1), (64, 256, 56, 7), (64, 256, 50, 7)] {
        let windows = Windows::Adaptive { output: [1, to, to] };
        let (dtype, input) = (DType::BF16, [1, side, side]);
        let pool = Pool { dtype, layout, batch, channels, input, windows };
        let forward = AvgPoolDesc { pool: pool.clone(), divisor: Divisor::PaddedCells };
        let of = format!("{side} to {to}");
        time(device, cold, &format!("mean, {of}, {name}"), forward.plan(target)?)?;
        let backward = AvgPoolBackwardDesc { forward };
        time(device, cold, &format!("mean, {of}, backward, {name}"), backward.plan(target)?)?;
        let forward = MaxPoolDesc { pool, argmax: Argmax::Index };
        time(device, cold, &format!("max, {of}, {name}"), forward.plan(target)?)?;
        let backward = MaxPoolBackwardDesc { forward };
        time(device, cold, &format!("max, {of}, backward, {name}"), backward.plan(target)?)?;
    }
    Ok(())
}

/// 4 x 256 x 128 x 128 at another size, both ways.
fn resized(
    device: &Device,
    cold: &Cold,
    (layout, name): (Layout, &str),
    mode: Mode,
    (times, side): (&str, usize),
) -> Result<(), Error> {
    let target = device.target();
    let forward = ResizeDesc {
        dtype: DType::BF16,
        layout,
        batch: 4,
        channels: 256,
        input: [1, 128, 128],
        output: [1, side, side],
        mode,
        align_corners: false,
        scale: [None; 3],
    };
    time(device, cold, &format!("{times} the size, {mode:?}, {name}"), forward.plan(target)?)?;
    let backward = ResizeBackwardDesc { forward };
    time(device, cold, &format!("{times} the size, {mode:?}, backward, {name}"), backward.plan(target)?)
}

fn main() -> Result<(), Error> {
    let device = Device::best();
    let target = device.target();
    println!("{}, {target}", device.name());
    let cold = Cold::new(&device)?;
    let dtype = DType::BF16;
    for (layout, name) in [(Layout::ChannelsLast, "channels last"), (Layout::ChannelsFirst, "channels first")]
    {
        let pool = |kernel, stride, padding| Pool {
            dtype,
            layout,
            batch: 64,
            channels: 64,
            input: [1, 112, 112],
            windows: Windows::Sliding(SlidingWindows {
                kernel: [1, kernel, kernel],
                stride: [1, stride, stride],
                padding: [0, padding, padding],
                ..SlidingWindows::tiling([1; 3])
            }),
        };
        for (kind, argmax) in [("values", Argmax::None), ("indices", Argmax::Index), ("taps", Argmax::Tap)] {
            let forward = MaxPoolDesc { pool: pool(3, 2, 1), argmax };
            time(&device, &cold, &format!("max 3x3 by 2, {kind}, {name}"), forward.plan(target)?)?;
            if argmax != Argmax::None {
                let backward = MaxPoolBackwardDesc { forward };
                time(
                    &device,
                    &cold,
                    &format!("max 3x3 by 2, {kind}, backward, {name}"),
                    backward.plan(target)?,
                )?;
            }
        }
        let forward = AvgPoolDesc { pool: pool(2, 2, 0), divisor: Divisor::PaddedCells };
        time(&device, &cold, &format!("mean 2x2, {name}"), forward.plan(target)?)?;
        let backward = AvgPoolBackwardDesc { forward };
        time(&device, &cold, &format!("mean 2x2, backward, {name}"), backward.plan(target)?)?;
        adaptive(&device, &cold, layout, name)?;
        for mode in [Mode::Nearest, Mode::Linear, Mode::Cubic] {
            for (times, side) in [("twice", 256), ("half", 64), ("1.6 times", 205)] {
                resized(&device, &cold, (layout, name), mode, (times, side))?;
            }
        }
        let conv = CausalConv1d {
            dtype,
            layout,
            batch: 8,
            channels: 4096,
            len: 2048,
            width: 4,
            bias: true,
            silu: true,
        };
        let forward = CausalConv1dDesc {
            conv,
            initial_states: false,
            final_states: false,
            sequences: false,
            position_stride: None,
        };
        time(&device, &cold, &format!("causal conv1d, {name}"), forward.plan(target)?)?;
        let backward = CausalConv1dBackwardDesc { forward };
        time(&device, &cold, &format!("causal conv1d, backward, {name}"), backward.plan(target)?)?;
    }
    Ok(())
}
