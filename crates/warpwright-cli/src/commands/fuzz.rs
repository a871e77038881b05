//! `fuzz`: random kernels in the emulator and on a GPU.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde_json::json;
use warpwright_ptx::DType;
use warpwright_runtime::{Device, DeviceId};
use warpwright_testkit::differential::{Wrong, check, disagree, plain, reduce, reference, run as run_on};
use warpwright_testkit::random::{self, Program};

use super::open_gpu;
use crate::args::{DeviceArg, JsonArg};
use crate::checkpoint::atomic::write_whole;
use crate::console::Console;
use crate::error::{Error, Outcome};
use crate::interrupt;
use crate::npy::Array;
use crate::paths::Shown;

/// `fuzz`
#[derive(Debug, Args)]
pub struct FuzzArgs {
    /// Which kernels: a number or FIRST..LAST, without the last. The same number is the same kernel.
    #[arg(long, value_name = "RANGE", default_value = "0..1000", value_parser = seeds)]
    pub seeds: std::ops::Range<u64>,
    /// Levels of optimization of the GPU driver's compiler, from 0 to 4.
    #[arg(long, value_name = "LEVELS", value_delimiter = ',', default_value = "0,4",
          value_parser = clap::value_parser!(u32).range(0..=4))]
    pub levels: Vec<u32>,
    /// The device that is held against the emulator; the emulator is held against itself in any case.
    #[command(flatten)]
    pub device: DeviceArg,
    /// Where kernels go that devices disagree on, cut down to what matters, with their input and what the emulator
    /// makes of it.
    #[arg(short, long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
    /// Machine-readable output.
    #[command(flatten)]
    pub json: JsonArg,
}

fn seeds(text: &str) -> Result<std::ops::Range<u64>, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|e| format!("{text:?}: {e}"));
    let range = match text.split_once("..") {
        Some((first, last)) => number(first)?..number(last)?,
        None => {
            let only = number(text)?;
            only..only.saturating_add(1)
        }
    };
    if range.is_empty() { Err("has no number".to_owned()) } else { Ok(range) }
}

/// Something that runs kernels, and how it is called in messages.
struct Runner {
    name: String,
    device: Device,
}

/// A finding about a kernel.
struct Found {
    seed: u64,
    runner: String,
    what: Wrong,
    kept: Option<Kept>,
}

/// The kernel that shows it.
struct Kept {
    kernel: PathBuf,
    lines: usize,
    /// The command that runs it.
    again: String,
}

/// Runs the command. What was found until the user ends it is said.
///
/// # Errors
/// A GPU that is named cannot be used, or a file cannot be written; interrupted. A difference is a finding.
pub fn run(args: &FuzzArgs, console: &mut Console) -> Result<Outcome, Error> {
    let started = Instant::now();
    if let Some(folder) = &args.output {
        std::fs::create_dir_all(folder).map_err(Error::file(folder, "make"))?;
    }
    let emulator = reference();
    let runners = runners(args, console)?;
    let mut found = Vec::new();
    let mut done = 0u64;
    {
        let progress = console.steps(args.seeds.end - args.seeds.start);
        for seed in args.seeds.clone() {
            if interrupt::check().is_err() {
                break;
            }
            progress.describe(&format!("kernel {seed}"));
            compare(seed, &emulator, &runners, args.output.as_deref(), &mut found)?;
            progress.step(1);
            done += 1;
        }
    }
    let names: Vec<&str> = runners.iter().map(|runner| runner.name.as_str()).collect();
    if args.json.json {
        let list: Vec<_> = found.iter().map(as_json).collect();
        console.json(&json!({"kernels": done, "devices": names, "found": list}))?;
    } else {
        for one in &found {
            say(one, console)?;
        }
        let seconds = started.elapsed().as_secs_f64();
        let verdict = match found.len() {
            0 => "the same everywhere".to_owned(),
            n => console.palette().error(&format!("{n} differences")).to_string(),
        };
        console.line(format_args!(
            "{done} kernels, {verdict}: emulator, {}; {seconds:.1} s",
            names.join(", ")
        ))?;
    }
    interrupt::check()?;
    Ok(if found.is_empty() { Outcome::Clean } else { Outcome::Findings })
}

/// The devices that are held against the emulator.
fn runners(args: &FuzzArgs, console: &Console) -> Result<Vec<Runner>, Error> {
    let mut runners = vec![Runner { name: "emulator in another order".to_owned(), device: plain() }];
    let Some(gpu) = open_gpu(&args.device.device, console)? else { return Ok(runners) };
    let DeviceId::Cuda(ordinal) = gpu.id() else { return Ok(runners) };
    if gpu.sm() < 80 {
        if args.device.device != "auto" {
            let message = format!("--device: {gpu} does not run the kernels, which are for sm_80 and above");
            return Err(Error::usage(message, "compare the emulator with itself: --device emulator"));
        }
        console.note(format_args!("{gpu} is left alone: the kernels are for sm_80 and above"));
        return Ok(runners);
    }
    for level in &args.levels {
        let name = format!("{gpu} at -O{level}");
        runners.push(Runner { name, device: Device::cuda_compiling(ordinal, *level)? });
    }
    Ok(runners)
}

/// Runs the kernel of a number everywhere.
fn compare(
    seed: u64,
    emulator: &Device,
    runners: &[Runner],
    folder: Option<&Path>,
    found: &mut Vec<Found>,
) -> Result<(), Error> {
    let program = random::program(seed);
    let want = match run_on(emulator, &program) {
        Ok(want) => want,
        Err(error) => {
            interrupt::check()?;
            let kept = folder.map(|folder| keep(folder, seed, &program, None)).transpose()?;
            found.push(Found { seed, runner: "emulator".to_owned(), what: Wrong::Failed(error), kept });
            return Ok(());
        }
    };
    for runner in runners {
        let Some(what) = check(&runner.device, &program, &want) else { continue };
        let kept = folder.map(|folder| {
            let differs = |p: &Program| interrupt::check().is_ok() && disagree(emulator, &runner.device, p);
            let smallest =
                if matches!(what, Wrong::Differs(_)) { reduce(&program, differs) } else { program.clone() };
            keep(folder, seed, &smallest, run_on(emulator, &smallest).ok())
        });
        found.push(Found { seed, runner: runner.name.clone(), what, kept: kept.transpose()? });
    }
    Ok(())
}

/// Writes a kernel, its arguments, and what the emulator makes of it: the words that it adds to and those that it stores.
fn keep(folder: &Path, seed: u64, program: &Program, want: Option<Vec<u8>>) -> Result<Kept, Error> {
    let named = |kind: &str| folder.join(format!("{seed}.{kind}"));
    let save = |kind: &str, bytes: Vec<u8>| {
        let array = Array { dtype: DType::U32, shape: vec![(bytes.len() / 4) as u64], bytes };
        write_whole(&named(kind), &array.to_bytes(), true)
    };
    let kernel = named("ptx");
    write_whole(&kernel, program.ptx.as_bytes(), true)?;
    save("in.npy", program.input.clone())?;
    save("sums.npy", vec![0; 4 * program.counters])?;
    if let Some(want) = want {
        save("want.npy", want)?;
    }
    let again = format!(
        "warpwright run {} --grid {} --block {} --arg in:{} --arg inout:{}:{} --arg out:{}:u32:{}",
        Shown(&kernel),
        program.grid,
        program.block,
        Shown(&named("in.npy")),
        Shown(&named("sums.npy")),
        Shown(&named("got-sums.npy")),
        Shown(&named("got.npy")),
        program.output_bytes / 4
    );
    Ok(Kept { kernel, lines: program.ptx.lines().count(), again })
}

fn say(found: &Found, console: &mut Console) -> Result<(), Error> {
    let Found { seed, runner, what, kept } = found;
    console.line(format_args!("kernel {seed} on {runner}: {what}"))?;
    if let Some(Kept { kernel, lines, again }) = kept {
        console.line(format_args!("  {lines} lines: {}", Shown(kernel)))?;
        console.line(format_args!("  again: {again}"))?;
    }
    Ok(())
}

fn as_json(found: &Found) -> serde_json::Value {
    let mut value = json!({"seed": found.seed, "device": found.runner});
    match &found.what {
        Wrong::Differs(difference) => {
            value["word"] = difference.word.into();
            value["got"] = difference.got.into();
            value["want"] = difference.want.into();
        }
        Wrong::Failed(error) => value["error"] = error.to_string().into(),
    }
    if let Some(kept) = &found.kept {
        value["file"] = kept.kernel.display().to_string().into();
        value["run"] = kept.again.as_str().into();
    }
    value
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Cli;
    use crate::commands::dispatch;

    /// A kernel that is kept, run by the command that is printed, gives what the emulator gave.
    #[test]
    fn a_kernel_that_is_kept_runs_again() {
        let folder = tempfile::tempdir().unwrap();
        let program = random::program(11);
        let want = run_on(&reference(), &program).unwrap();
        let kept = keep(folder.path(), 11, &program, Some(want.clone())).unwrap();
        assert_eq!(kept.lines, program.ptx.lines().count());
        let command = Cli::parse_from(kept.again.split(' ')).command;
        assert_eq!(dispatch(&command, &mut Console::new()).unwrap(), Outcome::Clean);
        let read = |kind: &str| Array::read(&folder.path().join(format!("11.{kind}.npy"))).unwrap().bytes;
        assert_eq!([read("got-sums"), read("got")].concat(), want);
        assert_eq!(read("want"), want);
    }
}
