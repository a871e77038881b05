//! Times a step of a recurrent net, in microseconds: the forward pass for inference, and forward and backward for training, each
//! in a graph.
//!
//!     cargo run --release -p warpwright-timing --bin sequence_time [-- CELL ...] [DTYPE ...] [BATCHxHIDDEN ...] [layouts[:PART]]
//!
//! DTYPE may be `tf32`: f32 with rounded factors. `layouts` times every layout that takes a row, or those with PART in their names,
//! forward for training and backward apart.

use warpwright::matmul::Precision;
use warpwright::plan::Access;
use warpwright::recurrent::tuning::{Schedule, layouts as every_layout};
use warpwright::recurrent::{Cell, RecurrentBackwardDesc, RecurrentDesc};
use warpwright::{DType, Device, Error, Graph, Operation, Plan, Stream, Tensor};

/// Steps, sequences, elements of an input, units.
const ROWS: [[usize; 4]; 10] = [
    [512, 1, 128, 128],
    [512, 64, 128, 128],
    [512, 64, 256, 256],
    [512, 1, 512, 512],
    [512, 4, 512, 512],
    [1000, 16, 256, 256],
    [1024, 16, 768, 768],
    [128, 32, 1024, 1024],
    [128, 64, 1024, 1024],
    [256, 32, 2048, 2048],
];
const SAMPLES: usize = 9;

/// A graph of a plan, and the tensors that it works on.
fn graph<O: Operation>(stream: &Stream, plan: &Plan<O>) -> Result<(Graph, Vec<Tensor>), Error> {
    let device = stream.device();
    let mut tensors = Vec::new();
    for spec in plan.tensors() {
        // Numbers near a twentieth, whatever the type.
        let bytes = spec.len * spec.dtype.bytes();
        let pattern =
            if spec.dtype.bytes() == 2 { [0x2c, 0x2c, 0x2c, 0x2c] } else { [0x0a, 0xd7, 0x23, 0x3d_u8] };
        let content: Vec<u8> = pattern.into_iter().cycle().take(bytes).collect();
        tensors.push(match spec.access {
            Access::Read => Tensor::from_bytes(device, spec.dtype, &content, &[spec.len])?,
            Access::Write => Tensor::empty(device, spec.dtype, &[spec.len])?,
        });
    }
    let bindings: Vec<_> = tensors.iter().map(Tensor::binding).collect();
    plan.warm_up(device)?;
    let graph =
        stream.capture(|stream| plan.steps().iter().try_for_each(|step| stream.launch(step, &bindings)))?;
    Ok((graph, tensors))
}

/// Microseconds of a plan, the median of a few runs.
fn time<O: Operation>(stream: &Stream, plan: &Plan<O>) -> Result<f64, Error> {
    let (graph, tensors) = graph(stream, plan)?;
    let mut all = Vec::new();
    for _ in 0..SAMPLES {
        let start = stream.record()?;
        graph.launch(stream)?;
        let end = stream.record()?;
        stream.synchronize()?;
        all.extend(start.elapsed_us(&end)?);
    }
    drop(tensors);
    all.sort_by(f64::total_cmp);
    Ok(all.get(all.len() / 2).copied().unwrap_or(f64::NAN))
}

/// The times of every layout that takes a row.
fn layouts(stream: &Stream, backward: &RecurrentBackwardDesc, part: &str) -> Result<(), Error> {
    let forward = &backward.forward;
    let target = stream.device().target();
    let steps = forward.steps as f64;
    let tuned = [forward.schedule(target), backward.schedule(target)];
    for schedule in every_layout().map(Schedule::Persistent).chain([Schedule::Stepwise]) {
        let name = match schedule {
            Schedule::Persistent(config) => config.to_string(),
            Schedule::Stepwise => "steps".to_owned(),
        };
        if !name.contains(part) {
            continue;
        }
        let mark = |i: usize| if tuned[i] == schedule { "*" } else { " " };
        if let Ok(plan) = forward.plan_with(target, schedule) {
            println!("    forward  {name:<14}{}{:>9.2}", mark(0), time(stream, &plan)? / steps);
        }
        if let Ok(plan) = backward.plan_with(target, schedule) {
            println!("    backward {name:<14}{}{:>9.2}", mark(1), time(stream, &plan)? / steps);
        }
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| given.iter().any(|arg| arg == name);
    let none_of = |names: &[String]| !names.iter().any(|name| has(name));
    let cells = [Cell::Lstm, Cell::Gru, Cell::RnnTanh];
    let types = [
        ("bf16", DType::BF16, Precision::Full),
        ("f16", DType::F16, Precision::Full),
        ("f32", DType::F32, Precision::Full),
        ("tf32", DType::F32, Precision::Tf32),
    ];
    let any_cell = none_of(&cells.map(|cell| cell.name().to_owned()));
    let any_type = none_of(&types.map(|(name, ..)| name.to_owned()));
    let row_name = |[_, batch, _, hidden]: [usize; 4]| format!("{batch}x{hidden}");
    let any_row = none_of(&ROWS.map(row_name));
    let device = Device::best();
    let stream = device.stream()?;
    println!("{}", device.name());
    println!("{:<10}{:<6}{:<24}{:>9}{:>9}  how", "cell", "dtype", "T, B, I, H", "forward", "both");
    for cell in cells.into_iter().filter(|cell| any_cell || has(cell.name())) {
        for (factors, dtype, precision) in types.into_iter().filter(|(name, ..)| any_type || has(name)) {
            for sizes in ROWS.into_iter().filter(|sizes| any_row || has(&row_name(*sizes))) {
                let desc = RecurrentDesc { precision, ..RecurrentDesc::new(cell, dtype, sizes) };
                let training = RecurrentDesc { training: true, ..desc.clone() };
                let (dy, dh_n, dc_n, dx) = (true, false, false, true);
                let backward = RecurrentBackwardDesc { forward: training.clone(), dy, dh_n, dc_n, dx };
                let target = device.target();
                let how = |schedule| if schedule == Schedule::Stepwise { "steps" } else { "whole" };
                let how = [how(desc.schedule(target)), how(backward.schedule(target))].join(" / ");
                let steps = sizes[0] as f64;
                let forward = time(&stream, &desc.plan(target)?)? / steps;
                let both = time(&stream, &training.plan(target)?)? + time(&stream, &backward.plan(target)?)?;
                let (name, sizes) = (cell.name(), format!("{sizes:?}"));
                println!("{name:<10}{factors:<6}{sizes:<24}{forward:>9.2}{:>9.2}  {how}", both / steps);
                for part in given.iter().filter_map(|arg| arg.strip_prefix("layouts")) {
                    layouts(&stream, &backward, part.trim_start_matches(':'))?;
                }
            }
        }
    }
    Ok(())
}
