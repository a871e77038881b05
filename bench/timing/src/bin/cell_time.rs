//! Times a single step of a recurrent net, in microseconds: with weights that come from memory, and many in one graph, where the
//! weights of one net stay in the L2 cache.
//!
//!     cargo run --release -p warpwright-timing --bin cell_time [-- CELL ...] [DTYPE ...] [BATCHxHIDDEN ...]

use warpwright::plan::Access;
use warpwright::recurrent::{Biases, Cell, CellDesc};

use warpwright::timing::{Timer, TimerOptions};
use warpwright::{DType, Device, Error, Operation, Plan, Tensor};

/// Sequences, units: as many as elements of an input.
const ROWS: [[usize; 2]; 7] =
    [[1, 1024], [4, 1024], [16, 1024], [32, 1024], [64, 1024], [1, 512], [64, 2048]];
/// Steps of a graph.
const COPIES: u32 = 64;

/// Memory for the tensors of a plan, with numbers near a twentieth.
fn tensors<O: Operation>(device: &Device, plan: &Plan<O>) -> Result<Vec<Tensor>, Error> {
    let tensor = |spec: &warpwright::plan::TensorSpec| {
        let pattern =
            if spec.dtype.bytes() == 2 { [0x2c, 0x2c, 0x2c, 0x2c] } else { [0x0a, 0xd7, 0x23, 0x3d_u8] };
        let content: Vec<u8> = pattern.into_iter().cycle().take(spec.len * spec.dtype.bytes()).collect();
        Ok(match spec.access {
            Access::Read => Tensor::from_bytes(device, spec.dtype, &content, &[spec.len])?,
            Access::Write => Tensor::empty(device, spec.dtype, &[spec.len])?,
        })
    };
    plan.tensors().iter().map(tensor).collect()
}

fn main() -> Result<(), Error> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| given.iter().any(|arg| arg == name);
    let wanted = |names: &[String], name: &str| !names.iter().any(|name| has(name)) || has(name);
    let (cells, dtypes) = ([Cell::Lstm, Cell::Gru, Cell::RnnTanh], [DType::BF16, DType::F16, DType::F32]);
    let names = (
        cells.map(|cell| cell.name().to_owned()),
        dtypes.map(|dtype| dtype.to_string()),
        ROWS.map(|[batch, hidden]| format!("{batch}x{hidden}")),
    );
    let device = Device::best();
    let stream = device.stream()?;
    let options = TimerOptions { min_runs: 30, max_runs: 30, ..TimerOptions::default() };
    let mut timer = Timer::new(&stream, options)?;
    println!("{}", device.name());
    println!(
        "{:<10}{:<6}{:<12}{:>9}{:>12}{:>10}",
        "cell", "dtype", "B, H", "alone", "in a graph", "launches"
    );
    for cell in cells.into_iter().filter(|cell| wanted(&names.0, cell.name())) {
        for dtype in dtypes.into_iter().filter(|dtype| wanted(&names.1, &dtype.to_string())) {
            for (row, [batch, hidden]) in names.2.iter().zip(ROWS).filter(|(row, _)| wanted(&names.2, row)) {
                let (biases, training) = (Biases::Two, false);
                let desc = CellDesc { cell, dtype, batch, input: hidden, hidden, biases, training };
                let plan = desc.plan(device.target())?;
                let tensors = tensors(&device, &plan)?;
                let bindings: Vec<_> = tensors.iter().map(Tensor::binding).collect();
                plan.warm_up(&device)?;
                let alone = timer.measure(|stream| {
                    plan.steps().iter().try_for_each(|step| stream.launch(step, &bindings))
                })?;
                let together = timer.measure_in_graph(COPIES, |stream| {
                    plan.steps().iter().try_for_each(|step| stream.launch(step, &bindings))
                })?;
                let (name, launches) = (cell.name(), plan.steps().len());
                let (alone, together) = (alone.median_us, together.median_us);
                println!("{name:<10}{dtype:<6}{row:<12}{alone:>9.2}{together:>12.2}{launches:>10}");
            }
        }
    }
    Ok(())
}
