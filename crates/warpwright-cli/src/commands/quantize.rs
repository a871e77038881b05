//! `quantize`

use std::path::{Path, PathBuf};
use std::time::Instant;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde_json::json;
use warpwright_ptx::DType;

use super::demo;
use super::open_quiet;
use crate::args::{AnyFormat, Format, PackedFormat, QuantizeArgs};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::atomic::write_whole;
use crate::checkpoint::quantized::find_quantized;
use crate::checkpoint::schemes::find_packed;
use crate::console::Console;
use crate::convert::CHUNK;
use crate::convert::destination::Destination;
use crate::convert::device::DeviceKernels;
use crate::convert::pack;
use crate::convert::quantize::{self, Options, Summary, TensorResult};
use crate::error::{Error, Outcome};
use crate::paths::{Shown, check_conversion};
use crate::report::{self, Title};
use crate::table::Align;
use crate::units::{human_bytes, human_rate, shape_text};

/// The name of the host where a device would be named.
pub(super) const HOST: &str = "the host";

/// Runs the command.
///
/// # Errors
/// The input cannot be read, the output cannot be written, or the device fails.
pub fn run(args: &QuantizeArgs, console: &mut Console) -> Result<Outcome, Error> {
    let job = Job::new(args)?;
    let demo = args.input.is_none().then(Demo::write).transpose()?;
    if demo.is_some() {
        console.note("no checkpoint is named: quantizing the synthetic one of `warpwright demo`");
    }
    let input: &Path = match (&args.input, &demo) {
        (Some(input), _) => input,
        (None, demo) => demo.as_ref().map_or(Path::new(""), |demo| &demo.path),
    };
    let checkpoint = Checkpoint::open(input)?;
    check_conversion(input, &checkpoint, &args.output, args.report.as_deref(), args.force)?;
    refuse_quantized(input, &checkpoint)?;
    note_idle_globs(args, &checkpoint, console);
    let output = Destination::new(input, &checkpoint, &args.output, args.force)?;
    let shown = Shown(output.shown()).to_string();
    let Done { summary, device, seconds } = job.run(args, &checkpoint, output, console)?;
    let wrong = summary.has_mismatches();
    for note in &summary.notes {
        console.note(note);
    }
    if summary.quantized().next().is_none() {
        console.note(format_args!("no tensor was quantized: {}", job.needs()));
    }
    if let Some(path) = args.report.as_ref().filter(|_| !wrong) {
        let title = Title {
            input: shown_input(args),
            output: shown.clone(),
            format: job.description(),
            device: device.clone(),
        };
        write_whole(path, report::html(&title, &summary).as_bytes(), args.force)?;
    }
    if args.json.json {
        console.json(&as_json(args, &job, &device, &summary, seconds))?;
    } else {
        print(&job, &device, &summary, &shown, seconds, console)?;
    }
    if wrong {
        console.error(
            format_args!("{shown}: the kernels disagree with the reference, so nothing was written"),
            Some("please report this, with the table above and the output of `warpwright devices`"),
        );
        return Ok(Outcome::Findings);
    }
    Ok(Outcome::Clean)
}

/// The synthetic checkpoint in a file of its own, removed when it is no longer needed.
struct Demo {
    path: PathBuf,
}

impl Demo {
    fn write() -> Result<Self, Error> {
        let path = std::env::temp_dir().join(format!("warpwright-demo-{}.safetensors", std::process::id()));
        demo::write(&path, true, DType::F32, 0)?;
        Ok(Self { path })
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // A file that cannot be removed is left in the folder for temporary files.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn shown_input(args: &QuantizeArgs) -> String {
    args.input.as_ref().map_or_else(|| "(demo)".to_owned(), |input| input.display().to_string())
}

/// The work, by who does it.
enum Job {
    /// The kernels.
    Own(Options),
    /// The host.
    Packed(pack::Options),
}

/// The outcome of the work, where it was done, and how long that took.
struct Done {
    summary: Summary,
    device: String,
    seconds: f64,
}

impl Job {
    fn new(args: &QuantizeArgs) -> Result<Self, Error> {
        let skip = globs(&args.skip)?;
        Ok(match args.format {
            AnyFormat::Own(format) => {
                let block_size = args.block_size.unwrap_or(64);
                check_own(args, format, block_size)?;
                let (double_quant, asymmetric, verify) = (args.double_quant, args.asymmetric, args.verify);
                Self::Own(Options {
                    format,
                    block_size,
                    double_quant,
                    asymmetric,
                    skip,
                    verify,
                    chunk: CHUNK,
                })
            }
            AnyFormat::Packed(format) => {
                let kernels = [("--double-quant", args.double_quant), ("--verify", args.verify)];
                if let Some((flag, _)) = kernels.iter().find(|(_, given)| *given) {
                    return Err(Error::usage(
                        format!("{flag} is not for {}", format.name()),
                        "leave it out: `warpwright dequantize` reads the output back",
                    ));
                }
                let group_size = group_size(format, args.block_size)?;
                check_zero_points(format, args.symmetric || args.asymmetric)?;
                check_search(format, args.search)?;
                // Files of AWQ have zero points.
                let asymmetric = args.asymmetric || (format == PackedFormat::Awq && !args.symmetric);
                Self::Packed(pack::Options { format, group_size, asymmetric, search: args.search, skip })
            }
        })
    }

    fn run(
        &self,
        args: &QuantizeArgs,
        checkpoint: &Checkpoint,
        output: Destination,
        console: &Console,
    ) -> Result<Done, Error> {
        let bytes = checkpoint.tensors().map(|at| at.tensor.bytes()).sum();
        let done = |summary, device, started: Instant| {
            let seconds = started.elapsed().as_secs_f64();
            Done { summary, device, seconds }
        };
        match self {
            Self::Own(options) => {
                let device = open_quiet(&args.device.device, console)?;
                let kernels = DeviceKernels::new(&device);
                let (started, progress) = (Instant::now(), console.progress(bytes));
                let summary = quantize::run(checkpoint, output, options, &kernels, &progress)?;
                Ok(done(summary, device.to_string(), started))
            }
            Self::Packed(options) => {
                let (started, progress) = (Instant::now(), console.progress(bytes));
                let summary = pack::run(checkpoint, output, options, &[], true, &progress)?;
                Ok(done(summary, HOST.to_owned(), started))
            }
        }
    }

    /// A line for people, such as `int4, groups of 64, symmetric`.
    fn description(&self) -> String {
        match self {
            Self::Own(options) => description(options),
            Self::Packed(options) => packed_description(options),
        }
    }

    /// The weights that it would have quantized.
    fn needs(&self) -> String {
        match self {
            Self::Own(_) => {
                "none is a non-empty 2-D weight of type F32, F16 or BF16 outside --skip".to_owned()
            }
            Self::Packed(pack::Options { format, group_size, .. }) => format!(
                "{} with groups of {group_size} is for weights of linear layers of type F32, F16 or BF16 outside --skip, in rows of \
                 whole groups",
                format.name()
            ),
        }
    }

    const fn verifies(&self) -> bool {
        matches!(self, Self::Own(Options { verify: true, .. }))
    }
}

/// The size of groups of a format of another tool.
///
/// # Errors
/// It is none that the format has.
pub(super) fn group_size(format: PackedFormat, asked: Option<u32>) -> Result<u32, Error> {
    match (format.fixed_group_size(), asked) {
        (Some(fixed), None) => Ok(fixed),
        (Some(fixed), Some(size)) if size == fixed => Ok(fixed),
        (Some(fixed), Some(size)) => Err(Error::usage(
            format!("--group-size {size}: {} has groups of {fixed}", format.name()),
            "leave it out",
        )),
        (None, Some(size)) if !size.is_multiple_of(8) => Err(Error::usage(
            format!("--group-size {size}: {} has groups of a multiple of 8", format.name()),
            "--group-size 128",
        )),
        (None, size) => Ok(size.unwrap_or(128)),
    }
}

/// Refuses a choice of zero points where there are none.
pub(super) fn check_zero_points(format: PackedFormat, chosen: bool) -> Result<(), Error> {
    if chosen && !format.has_zero_points() {
        let message = format!("--symmetric and --asymmetric are for integers, not for {}", format.name());
        return Err(Error::usage(message, "leave them out, or use --format gptq"));
    }
    Ok(())
}

/// Refuses a search where the largest number decides.
pub(super) fn check_search(format: PackedFormat, search: bool) -> Result<(), Error> {
    if search && format == PackedFormat::Fp8 {
        return Err(Error::usage("--search is for the 4-bit formats of other tools", "leave it out"));
    }
    Ok(())
}

fn check_own(args: &QuantizeArgs, format: Format, block_size: u32) -> Result<(), Error> {
    let bnb = format.is_bnb();
    if bnb && !(block_size.is_power_of_two() && (32..=4096).contains(&block_size)) {
        return Err(Error::usage(
            format!(
                "--block-size {block_size}: bitsandbytes has blocks of 32, 64, 128, 256, 512, 1024, 2048 or 4096"
            ),
            "--block-size 64",
        ));
    }
    if !bnb && args.double_quant {
        return Err(Error::usage(
            "--double-quant is for the bnb formats",
            "leave it out, or use --format bnb-nf4",
        ));
    }
    if bnb && (args.symmetric || args.asymmetric) {
        return Err(Error::usage(
            "--symmetric and --asymmetric are for int4",
            "leave them out, or use --format int4",
        ));
    }
    if args.search {
        let message = format!("--search is not for {}", format.name());
        return Err(Error::usage(message, "leave it out, or use --format compressed-tensors-int4"));
    }
    Ok(())
}

fn globs(patterns: &[String]) -> Result<GlobSet, Error> {
    let wrong =
        |error: globset::Error| Error::usage(format!("--skip: {error}"), "for example --skip 'lm_head*'");
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(GlobBuilder::new(pattern).build().map_err(wrong)?);
    }
    set.build().map_err(wrong)
}

/// A pattern that names nothing is probably misspelt.
fn note_idle_globs(args: &QuantizeArgs, checkpoint: &Checkpoint, console: &Console) {
    for pattern in &args.skip {
        let Ok(glob) = GlobBuilder::new(pattern).build() else { continue };
        let matcher = glob.compile_matcher();
        if !checkpoint.tensors().any(|at| matcher.is_match(&at.tensor.name)) {
            console.note(format_args!("--skip '{pattern}' matches no tensor"));
        }
    }
}

/// The tensors of a quantized weight are no weights, although some of them look like it.
fn refuse_quantized(input: &Path, checkpoint: &Checkpoint) -> Result<(), Error> {
    let own = find_quantized(checkpoint)?.first().map(|weight| weight.scheme.name());
    let packed = find_packed(checkpoint)?.first().map(|weight| weight.tool.name());
    match own.or(packed) {
        None => Ok(()),
        Some(scheme) => Err(Error::usage(
            format!("{}: is quantized already ({scheme})", Shown(input)),
            "quantize the original checkpoint, or dequantize this one first",
        )),
    }
}

fn description(options: &Options) -> String {
    let mut text = format!("{}, {} of {}", options.format.name(), unit(options), options.block_size);
    if options.double_quant {
        text.push_str(", double-quantized");
    }
    if !options.format.is_bnb() {
        text.push_str(if options.asymmetric { ", asymmetric" } else { ", symmetric" });
    }
    text
}

/// A line for people about a format of another tool.
pub(super) fn packed_description(options: &pack::Options) -> String {
    let mut text = format!("{}, groups of {}", options.format.name(), options.group_size);
    if options.format == PackedFormat::Fp8 {
        text = "fp8, blocks of 128 x 128".to_owned();
    }
    if options.format.has_zero_points() {
        text.push_str(if options.asymmetric { ", asymmetric" } else { ", symmetric" });
    }
    if options.search {
        text.push_str(", searched");
    }
    text
}

const fn unit(options: &Options) -> &'static str {
    if options.format.is_bnb() { "blocks" } else { "groups" }
}

fn print(
    job: &Job,
    device: &str,
    summary: &Summary,
    shown: &str,
    seconds: f64,
    console: &mut Console,
) -> Result<(), Error> {
    let mut columns = vec![
        ("tensor", Align::Left),
        ("shape", Align::Left),
        ("dtype", Align::Left),
        ("bytes", Align::Right),
        ("bytes after", Align::Right),
        ("rel. error", Align::Right),
        ("max. error", Align::Right),
    ];
    if job.verifies() {
        columns.push(("mismatches", Align::Right));
    }
    let mut table = console.table(&columns);
    for (tensor, error) in summary.quantized() {
        let mut row = vec![
            super::printable(&tensor.name),
            shape_text(&tensor.shape),
            tensor.dtype.name().to_owned(),
            tensor.bytes_in.to_string(),
            tensor.bytes_out.to_string(),
            format!("{:.5}", error.relative()),
            format!("{:.3e}", error.largest()),
        ];
        if let Some(found) = tensor.mismatches {
            row.push((found.codes + found.scales + found.values).to_string());
        }
        table.row(row);
    }
    console.line(table)?;
    let (before, after) = summary.bytes();
    let quantized = summary.quantized().count();
    let copied = summary.tensors.len() - quantized;
    let verified = match (job.verifies(), summary.has_mismatches()) {
        (false, _) => "",
        (true, false) => ", verified against the reference",
        (true, true) => ", VERIFICATION FAILED",
    };
    console.line(format_args!(
        "\n{quantized} tensors quantized ({}), {copied} copied, relative error {:.5}{verified}",
        job.description(),
        summary.error().relative()
    ))?;
    console.line(format_args!(
        "{shown}: {} to {} in {seconds:.2} s, {}, on {device}",
        human_bytes(before),
        human_bytes(after),
        human_rate(before, seconds)
    ))
}

fn as_json(
    args: &QuantizeArgs,
    job: &Job,
    device: &str,
    summary: &Summary,
    seconds: f64,
) -> serde_json::Value {
    let tensors = tensors_json(summary);
    let (format, block_size, symmetric) = match job {
        Job::Own(own) => {
            let symmetric = (!own.format.is_bnb()).then_some(!own.asymmetric);
            (own.format.name(), own.block_size, symmetric)
        }
        Job::Packed(packed) => {
            let symmetric = packed.format.has_zero_points().then_some(!packed.asymmetric);
            (packed.format.name(), packed.group_size, symmetric)
        }
    };
    let (before, after) = summary.bytes();
    json!({
        "input": shown_input(args),
        "output": args.output.display().to_string(),
        "format": format,
        "block_size": block_size,
        "double_quant": args.double_quant,
        "symmetric": symmetric,
        "searched": args.search,
        "device": device,
        "tensors": tensors,
        "bytes": before,
        "bytes_after": after,
        "relative_error": summary.error().relative(),
        "verified": job.verifies().then_some(!summary.has_mismatches()),
        "seconds": seconds,
        "bytes_per_second": before as f64 / seconds,
    })
}

/// The tensors of a conversion as JSON.
pub(super) fn tensors_json(summary: &Summary) -> Vec<serde_json::Value> {
    let of = |tensor: &TensorResult| {
        let mut value = json!({
            "name": tensor.name,
            "shape": tensor.shape,
            "dtype": tensor.dtype.name(),
            "quantized": tensor.error.is_some(),
            "bytes": tensor.bytes_in,
            "bytes_after": tensor.bytes_out,
            "relative_error": tensor.error.map(|error| error.relative()),
            "max_error": tensor.error.map(|error| error.largest()),
        });
        if let Some(found) = tensor.mismatches {
            value["mismatches"] =
                json!({"codes": found.codes, "scales": found.scales, "values": found.values});
        }
        value
    };
    summary.tensors.iter().map(of).collect()
}
