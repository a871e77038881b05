//! Times one call on the host, in microseconds: a prepared launch, a plan with its checks, and the free function that also
//! allocates. On the emulator the launch itself is included, which says nothing about a GPU.
//!
//!     cargo run --release -p warpwright-timing --bin host_time

use std::time::Instant;

use warpwright::activation::{Activation, ActivationArgs, ActivationDesc};
use warpwright::{DType, Device, Error, Operation, Tensor, silu};

/// Calls between two synchronisations: fewer than the driver's queue holds, so that none waits for the GPU.
const BURST: u32 = 200;
const SAMPLES: u32 = 50;

fn time(device: &Device, what: &str, mut call: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
    let mut best = f64::INFINITY;
    for _ in 0..SAMPLES {
        device.synchronize()?;
        let start = Instant::now();
        for _ in 0..BURST {
            call()?;
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e6 / f64::from(BURST));
    }
    println!("{what:<28}{best:8.2} us");
    Ok(())
}

fn main() -> Result<(), Error> {
    const LEN: usize = 1024;
    let device = Device::best();
    let stream = device.stream()?;
    println!("{}", device.name());
    let x = Tensor::from_slice(&device, &[1.0f32; LEN], &[LEN])?;
    let mut y = Tensor::empty(&device, DType::F32, &[LEN])?;
    let desc = ActivationDesc { activation: Activation::Silu, dtype: DType::F32, len: LEN };
    let plan = desc.plan(device.target())?;
    plan.warm_up(&device)?;
    let bindings = [x.binding(), y.binding()];
    time(&device, "launch of a prepared step", || Ok(stream.launch(&plan.steps()[0], &bindings)?))?;
    time(&device, "plan with its checks", || {
        Ok(plan.launch(&stream, ActivationArgs { x: Some(x.as_ref()), y: y.as_mut() })?)
    })?;
    time(&device, "free function", || silu(&stream, &x).map(drop))
}
