//! Recurrent nets as large as models have them, against their reference in f64: too long for a suite, quick on a GPU.
//! `cargo run --release -p warpwright-testkit --example recurrent_sizes`; behind it the cells and types that are wanted,
//! `layouts` for every layout that takes a size, or the names of some, and sizes as `BxH`: sequences and units.

use std::process::ExitCode;

use warpwright_ops::Direction;
use warpwright_ops::recurrent::tuning::{Schedule, layouts};
use warpwright_ops::recurrent::{Cell, RecurrentBackwardDesc, RecurrentDesc};
use warpwright_ptx::DType;
use warpwright_runtime::Device;
use warpwright_testkit::{recurrent_case, run_case};

/// Sequences and units.
const SIZES: [[usize; 2]; 11] = [
    [1, 320],
    [16, 320],
    [16, 448],
    [17, 448],
    [1, 512],
    [4, 512],
    [16, 256],
    [16, 768],
    [32, 1024],
    [64, 1024],
    [32, 2048],
];
/// Steps: both buffers of an exchange are used again.
const STEPS: usize = 4;
const INPUT: usize = 16;

/// The schedules to try: as tuning says, or all.
fn schedules(
    desc: &RecurrentDesc,
    device: &Device,
    direction: Direction,
    given: &[String],
) -> Vec<Option<Schedule>> {
    let has = |name: &str| given.iter().any(|arg| arg == name);
    let named: Vec<_> = layouts().filter(|layout| has(&layout.to_string())).collect();
    let all = if has("layouts") { layouts().collect() } else { named };
    if all.is_empty() {
        return vec![None];
    }
    let backward = RecurrentBackwardDesc {
        forward: RecurrentDesc { training: true, ..desc.clone() },
        dy: true,
        dh_n: true,
        dc_n: desc.cell.has_c(),
        dx: true,
    };
    let takes = |schedule: &Schedule| match direction {
        Direction::Forward => desc.plan_with(device.target(), *schedule).is_ok(),
        Direction::Backward => backward.plan_with(device.target(), *schedule).is_ok(),
    };
    all.into_iter().map(Schedule::Persistent).filter(takes).map(Some).collect()
}

fn main() -> ExitCode {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| given.iter().any(|arg| arg == name);
    let wanted = |names: &[String], name: &str| has(name) || !names.iter().any(|name| has(name));
    let cells = [Cell::Lstm, Cell::Gru, Cell::RnnTanh];
    let dtypes = [DType::BF16, DType::F16, DType::F32];
    let names = (cells.map(|cell| cell.name().to_owned()), dtypes.map(|dtype| dtype.to_string()));
    let size = |arg: &String| {
        let (batch, hidden) = arg.split_once('x')?;
        Some([batch.parse::<usize>().ok()?, hidden.parse::<usize>().ok()?])
    };
    let asked: Vec<_> = given.iter().filter_map(size).collect();
    let all = if asked.is_empty() { SIZES.to_vec() } else { asked };
    let device = Device::best();
    println!("{device}");
    let mut failed = 0;
    for cell in cells.into_iter().filter(|cell| wanted(&names.0, cell.name())) {
        for dtype in dtypes.into_iter().filter(|dtype| wanted(&names.1, &dtype.to_string())) {
            for &[batch, hidden] in &all {
                for direction in [Direction::Forward, Direction::Backward] {
                    let sizes = [STEPS, batch, INPUT, hidden];
                    let desc = RecurrentDesc::new(cell, dtype, sizes);
                    for schedule in schedules(&desc, &device, direction, &given) {
                        let case = recurrent_case(cell, dtype, sizes, direction, schedule);
                        let r = run_case(&device, &case);
                        let verdict = if r.ok { "ok    " } else { "FAILED" };
                        println!("{verdict} {:.2e} {:.2} {case}", r.error, r.element_error);
                        if !r.ok {
                            failed += 1;
                            println!("    {:?} {:?}", r.reason, r.findings.first());
                        }
                    }
                }
            }
        }
    }
    println!("{failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
