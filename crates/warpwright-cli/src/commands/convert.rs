//! `convert`

use std::time::Instant;

use globset::GlobSet;
use serde_json::json;

use super::printable;
use super::quantize::{HOST, check_search, check_zero_points, group_size, packed_description, tensors_json};
use crate::args::{ConvertArgs, PackedFormat};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::quantized::find_quantized;
use crate::checkpoint::schemes::{PackedWeight, Zero, find_packed};
use crate::console::Console;
use crate::convert::destination::Destination;
use crate::convert::pack;
use crate::error::{Error, Outcome};
use crate::paths::{Shown, check_conversion};
use crate::table::Align;
use crate::units::{human_bytes, human_rate, shape_text};

/// Runs the command.
///
/// # Errors
/// The input cannot be read, or the output cannot be written.
pub fn run(args: &ConvertArgs, console: &mut Console) -> Result<Outcome, Error> {
    check_zero_points(args.format, args.symmetric || args.asymmetric)?;
    check_search(args.format, args.search)?;
    group_size(args.format, args.group_size)?;
    let checkpoint = Checkpoint::open(&args.input)?;
    check_conversion(&args.input, &checkpoint, &args.output, None, args.force)?;
    if let Some(own) = find_quantized(&checkpoint)?.first() {
        return Err(Error::usage(
            format!("{}: holds {} weights, which are not converted", Shown(&args.input), own.scheme.name()),
            "`warpwright dequantize` them first, then `warpwright quantize`",
        ));
    }
    let packed = find_packed(&checkpoint)?;
    if packed.is_empty() {
        return Err(Error::usage(
            format!("{}: holds no quantized weights", Shown(&args.input)),
            "`warpwright inspect` shows what it holds; `warpwright quantize` starts from floating point",
        ));
    }
    let options = options(args, &packed)?;
    let output = Destination::new(&args.input, &checkpoint, &args.output, args.force)?;
    let shown = Shown(output.shown()).to_string();
    let started = Instant::now();
    let summary = {
        let progress = console.progress(checkpoint.tensors().map(|at| at.tensor.bytes()).sum());
        pack::run(&checkpoint, output, &options, &packed, false, &progress)?
    };
    let seconds = started.elapsed().as_secs_f64();
    for note in &summary.notes {
        console.note(note);
    }
    let (before, after) = summary.bytes();
    if args.json.json {
        console.json(&json!({
            "input": args.input.display().to_string(),
            "output": args.output.display().to_string(),
            "format": options.format.name(),
            "group_size": options.group_size,
            "symmetric": options.format.has_zero_points().then_some(!options.asymmetric),
            "searched": options.search,
            "tensors": tensors_json(&summary),
            "bytes": before,
            "bytes_after": after,
            "seconds": seconds,
        }))?;
        return Ok(Outcome::Clean);
    }
    let mut table = console.table(&[
        ("tensor", Align::Left),
        ("shape", Align::Left),
        ("bytes", Align::Right),
        ("bytes after", Align::Right),
        ("rel. error", Align::Right),
    ]);
    for (tensor, error) in summary.quantized() {
        table.row([
            printable(&tensor.name),
            shape_text(&tensor.shape),
            tensor.bytes_in.to_string(),
            tensor.bytes_out.to_string(),
            format!("{:.5}", error.relative()),
        ]);
    }
    console.line(table)?;
    let converted = summary.quantized().count();
    let exact = summary.quantized().filter(|(_, error)| error.largest() == 0.0).count();
    let copied = summary.tensors.len() - converted;
    console.line(format_args!(
        "\n{converted} tensors converted ({}), {exact} of them without a change, {copied} copied",
        packed_description(&options)
    ))?;
    console.line(format_args!(
        "{shown}: {} to {} in {seconds:.2} s, {}, on {HOST}",
        human_bytes(before),
        human_bytes(after),
        human_rate(before, seconds)
    ))?;
    Ok(Outcome::Clean)
}

/// The form of the output: what was asked for, else that of the input.
fn options(args: &ConvertArgs, packed: &[PackedWeight]) -> Result<pack::Options, Error> {
    let format = args.format;
    let has_zero_points = |weight: &PackedWeight| match weight.zero {
        Zero::Fixed(_) => false,
        // Zero points that nothing is said about may be any.
        Zero::Gptq { symmetric, .. } => symmetric != Some(true),
        Zero::Awq(_) | Zero::Packed(_) | Zero::Int8(_) => true,
    };
    // A scale for each row is no size of groups that others could have, nor is that of a weight narrower than a group.
    let in_groups = packed.iter().filter(|weight| weight.scales.groups > 1);
    let usual = in_groups.map(|weight| weight.group_size).max().and_then(|size| u32::try_from(size).ok());
    let asked = match (args.group_size, format.fixed_group_size()) {
        (None, None) => usual.filter(|size| size.is_multiple_of(8)),
        (asked, _) => asked,
    };
    let by_input = !args.symmetric && packed.iter().any(has_zero_points);
    let asymmetric = args.asymmetric
        || (format.has_zero_points() && by_input)
        || (format == PackedFormat::Awq && !args.symmetric);
    let group_size = group_size(format, asked)?;
    Ok(pack::Options { format, group_size, asymmetric, search: args.search, skip: GlobSet::empty() })
}
