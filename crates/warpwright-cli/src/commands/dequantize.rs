//! `dequantize`

use std::time::Instant;

use serde_json::json;

use super::quantize::HOST;
use super::{open_quiet, printable};
use crate::args::DequantizeArgs;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::quantized::find_quantized;
use crate::console::Console;
use crate::convert::dequantize;
use crate::convert::destination::Destination;
use crate::convert::device::DeviceKernels;
use crate::error::{Error, Outcome};
use crate::paths::{Shown, check_conversion};
use crate::table::Align;
use crate::units::{human_rate, shape_text};

/// Runs the command.
///
/// # Errors
/// The input cannot be read, the output cannot be written, or the device fails.
pub fn run(args: &DequantizeArgs, console: &mut Console) -> Result<Outcome, Error> {
    let checkpoint = Checkpoint::open(&args.input)?;
    check_conversion(&args.input, &checkpoint, &args.output, None, args.force)?;
    let output = Destination::new(&args.input, &checkpoint, &args.output, args.force)?;
    let shown = Shown(output.shown()).to_string();
    // Weights of other tools are decoded on the host, so no GPU is opened for them.
    let on_host = find_quantized(&checkpoint)?.is_empty();
    let device = open_quiet(if on_host { "emulator" } else { &args.device.device }, console)?;
    let worker = if on_host { HOST.to_owned() } else { device.to_string() };
    let kernels = DeviceKernels::new(&device);
    let started = Instant::now();
    let summary = {
        let bytes = checkpoint.tensors().map(|at| at.tensor.bytes()).sum();
        let progress = console.progress(bytes);
        dequantize::run(&checkpoint, output, args.dtype, &kernels, &progress)?
    };
    let seconds = started.elapsed().as_secs_f64();
    for note in &summary.notes {
        console.note(note);
    }
    if args.json.json {
        let weights: Vec<_> = summary
            .weights
            .iter()
            .map(|weight| {
                json!({
                    "name": weight.name,
                    "shape": weight.shape,
                    "scheme": weight.scheme,
                    "dtype": weight.dtype.name(),
                    "bytes": weight.bytes,
                })
            })
            .collect();
        console.json(&json!({
            "input": args.input.display().to_string(),
            "output": args.output.display().to_string(),
            "device": worker,
            "weights": weights,
            "copied": summary.copied,
            "seconds": seconds,
            "bytes": summary.bytes,
            "bytes_per_second": summary.bytes as f64 / seconds,
        }))?;
        return Ok(Outcome::Clean);
    }
    let mut table = console.table(&[
        ("tensor", Align::Left),
        ("shape", Align::Left),
        ("from", Align::Left),
        ("to", Align::Left),
        ("bytes", Align::Right),
    ]);
    for weight in &summary.weights {
        table.row([
            printable(&weight.name),
            shape_text(&weight.shape),
            weight.scheme.clone(),
            weight.dtype.name().to_owned(),
            weight.bytes.to_string(),
        ]);
    }
    console.line(table)?;
    let (restored, copied) = (summary.weights.len(), summary.copied);
    let written = summary.bytes;
    console.line(format_args!(
        "\n{restored} tensors dequantized, {copied} copied to {shown} in {seconds:.2} s, {}, on {worker}",
        human_rate(written, seconds)
    ))?;
    Ok(Outcome::Clean)
}
