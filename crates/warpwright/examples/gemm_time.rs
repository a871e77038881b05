//! What products of matrices take on a GPU with every kernel that there is for them, in microseconds, with nothing in its caches:
//! `cargo run --release --example gemm_time [-- M,N,K ...]`

use warpwright::activation::{Activation, ActivationDesc};
use warpwright::gemm::{GemmDesc, tuning};
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

/// A plan and what it works on: numbers near a twentieth, whatever the type.
struct Ready<O: Operation> {
    plan: Plan<O>,
    tensors: Vec<Tensor>,
}

impl<O: Operation> Ready<O> {
    fn new(device: &Device, plan: Plan<O>) -> Result<Self, Error> {
        let mut tensors = Vec::new();
        for spec in plan.tensors() {
            let bytes = spec.len * spec.dtype.bytes();
            let pattern = if spec.dtype.bytes() == 2 { [0x2c; 4] } else { [0x0a, 0xd7, 0x23, 0x3d_u8] };
            let content: Vec<u8> = pattern.into_iter().cycle().take(bytes).collect();
            tensors.push(match spec.access {
                Access::Read => Tensor::from_bytes(device, spec.dtype, &content, &[spec.len])?,
                Access::Write => Tensor::empty(device, spec.dtype, &[spec.len])?,
            });
        }
        plan.warm_up(device)?;
        Ok(Self { plan, tensors })
    }

    fn launch(&self, stream: &Stream) -> Result<(), Error> {
        let bindings: Vec<_> = self.tensors.iter().map(Tensor::binding).collect();
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

fn main() -> Result<(), Error> {
    let asked = std::env::args().skip(1).filter_map(|arg| {
        let sides: Vec<usize> = arg.split(',').filter_map(|side| side.parse().ok()).collect();
        sides.try_into().ok()
    });
    let asked: Vec<[usize; 3]> = asked.collect();
    let shapes = if asked.is_empty() { &SHAPES[..] } else { &asked };
    let device = Device::best();
    let (stream, target) = (device.stream()?, device.target());
    println!("{}, {target}", device.name());
    let flush =
        ActivationDesc { activation: Activation::Relu, dtype: DType::F32, len: FLUSH }.plan(target)?;
    let flush = Ready::new(&device, flush)?;
    for dtype in [DType::BF16, DType::F32, DType::F64] {
        for shape in shapes {
            let desc = GemmDesc::new(dtype, *shape, false, true);
            let chosen = desc.plan(target)?;
            let us = time(&stream, &flush, &Ready::new(&device, chosen)?)?;
            println!("{dtype:<6}{:<22}{us:>10.2}  the plan's choice", format!("{shape:?}"));
            for config in tuning::configs(dtype, target) {
                let Ok(plan) = desc.plan_with(target, config) else { continue };
                let kernel = plan.steps().first().map_or("", |step| step.kernel().name()).to_owned();
                let parts = plan.steps().first().map_or(0, |step| step.grid()[1]);
                let us = time(&stream, &flush, &Ready::new(&device, plan)?)?;
                println!("{:<28}{us:>10.2}  {kernel}, {parts} parts", "");
            }
        }
    }
    Ok(())
}
