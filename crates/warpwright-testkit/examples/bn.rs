use std::time::Duration;
use warpwright_ops::batch_norm::*;
use warpwright_ops::plan::Access;
use warpwright_ops::{Operation, Plan};
use warpwright_ptx::DType;
use warpwright_runtime::timing::{Timer, TimerOptions};
use warpwright_runtime::{Binding, Device, Tensor};
use warpwright_testkit::{Filter, Scope, cases, run_case};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let device = match args[0].as_str() {
        "best" => Device::best(),
        other => Device::open(other).unwrap(),
    };
    println!("{device}");
    match args[1].as_str() {
        "check" => check(&device, &args[2..]),
        "time" => time(&device, &args[2..]),
        _ => panic!(),
    }
}

fn check(device: &Device, args: &[String]) {
    let scope = if args.iter().any(|a| a == "full") { Scope::Full } else { Scope::Quick };
    let ops = vec!["batch_norm".to_owned(), "batch_norm_evaluation".to_owned()];
    let all = cases(&Filter { ops, scope, ..Filter::default() });
    let mut worst: std::collections::BTreeMap<String, (f64, f64)> = Default::default();
    let (mut bad, start) = (0, std::time::Instant::now());
    for case in &all {
        let r = run_case(device, case);
        let e = worst.entry(format!("{} {} {}", r.op, r.direction, r.dtype)).or_default();
        *e = (e.0.max(r.error), e.1.max(r.element_error));
        if !r.ok {
            bad += 1;
            if bad < 25 {
                println!("FAIL {case}: {}\n{}", r.reason.unwrap_or_default(), r.findings.first().map_or("", |f| &f[..f.len().min(600)]));
            }
        }
    }
    for (k, v) in worst {
        println!("{k}: {:.2e} {:.3}", v.0, v.1);
    }
    println!("{bad} of {} failed, {:?}", all.len(), start.elapsed());
}

fn tensors<O: Operation>(device: &Device, plan: &Plan<O>) -> Vec<Tensor> {
    plan.tensors()
        .iter()
        .enumerate()
        .map(|(slot, spec)| match spec.access {
            Access::Read => {
                let period = 1 << 20;
                let v = warpwright_testkit::inputs::Input::Normal.values(period.min(spec.len), slot as u64);
                let pattern = warpwright_testkit::storage::encode(spec.dtype, &v);
                let total = spec.len * spec.dtype.bytes();
                let mut bytes = Vec::with_capacity(total);
                while bytes.len() < total {
                    let room = total - bytes.len();
                    bytes.extend_from_slice(&pattern[..room.min(pattern.len())]);
                }
                Tensor::from_bytes(device, spec.dtype, &bytes, &[spec.len]).unwrap()
            }
            Access::Write => Tensor::empty(device, spec.dtype, &[spec.len]).unwrap(),
        })
        .collect()
}

fn one<O: Operation>(device: &Device, timer: &mut Timer, plan: &Plan<O>, bytes: f64, name: &str) {
    let tensors = tensors(device, plan);
    let bindings: Vec<Binding> = tensors.iter().map(Tensor::binding).collect();
    let m = timer
        .measure(|stream| plan.steps().iter().try_for_each(|step| stream.launch(step, &bindings)))
        .unwrap();
    let mut parts = String::new();
    for step in plan.steps() {
        let m = timer.measure(|stream| stream.launch(step, &bindings)).unwrap();
        parts += &format!(" {:.1}", m.median_us);
    }
    let floor = bytes / 4.3e6;
    println!("{name:<28} {:8.1} us, floor {floor:6.1} ({:3.0} %)  steps{parts}", m.median_us, 100.0 * floor / m.median_us);
}

fn time(device: &Device, args: &[String]) {
    let stream = device.stream().unwrap();
    let mut timer =
        Timer::new(&stream, TimerOptions { budget: Duration::from_millis(40), ..TimerOptions::default() }).unwrap();
    let dtypes: Vec<DType> = [DType::BF16, DType::F32, DType::F16]
        .into_iter()
        .filter(|d| args.is_empty() || args.iter().any(|a| a == d.name()))
        .collect();
    for dtype in dtypes {
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            for (n, c, s) in [(32, 256, 56 * 56), (64, 64, 112 * 112)] {
                let norm = BatchNorm { parameter_dtype: if dtype == DType::F64 { dtype } else { DType::F32 }, ..BatchNorm::new(dtype, layout, n, c, s) };
                let momentum = Some(Momentum::Exponential(Real::new(0.1)));
                let size = (n * c * s * dtype.bytes()) as f64;
                let f = BatchNormDesc { norm, residual: false, momentum }.plan(device.target()).unwrap();
                one(device, &mut timer, &f, 2.0 * size, &format!("{dtype} {} {n}x{c} forward", layout.name()));
                let b = BatchNormBackwardDesc { norm, dresidual: false }.plan(device.target()).unwrap();
                one(device, &mut timer, &b, 3.0 * size, &format!("{dtype} {} {n}x{c} backward", layout.name()));
            }
        }
    }
}
