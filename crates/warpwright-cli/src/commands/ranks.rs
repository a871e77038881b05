//! `check --ranks`: operations over several ranks against one device.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warpwright_runtime::comm::{CommOptions, Communicator, Rendezvous};
use warpwright_runtime::{Device, EmulatorConfig, discover};
use warpwright_testkit::ranks::{RankCase, RankResult, cases, run_case, run_one};

use super::check::{refuse_max_steps, verdict};
use crate::args::{CheckArgs, Launch};
use crate::console::Console;
use crate::error::{Error, Outcome};
use crate::interrupt;
use crate::table::Align;

/// How long a rank waits for others, if no limit is given.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the command.
///
/// # Errors
/// There is no such operation, the devices cannot be opened, or the ranks cannot find each other; interrupted. A case that fails
/// is a finding.
pub(super) fn run(args: &CheckArgs, console: &mut Console) -> Result<Outcome, Error> {
    if args.limits.max_steps.is_some() {
        return Err(refuse_max_steps());
    }
    if args.ranks.launch != Launch::Threads {
        refuse_of_threads(args)?;
    }
    let cases = chosen(&args.ops)?;
    let options = CommOptions { timeout: args.limits.time_limit.unwrap_or(PATIENCE) };
    match (args.ranks.launch, args.ranks.ranks) {
        (Launch::Environment, None) => one_of_several(&cases, options, console),
        (Launch::Environment, Some(_)) => {
            Err(Error::usage("--ranks: the environment says how many ranks there are", "leave it out"))
        }
        (_, None) => Err(Error::usage("--launch: there are no ranks to start", "--ranks N")),
        (Launch::Processes, Some(ranks)) => processes(args, ranks),
        (Launch::Threads, Some(ranks)) => threads(args, &cases, ranks, options, console),
    }
}

/// Options that processes do not have.
fn refuse_of_threads(args: &CheckArgs) -> Result<(), Error> {
    if !matches!(args.device.device.as_str(), "auto" | "cuda") {
        return Err(Error::usage("--device: every process has a GPU of its own", "auto or cuda"));
    }
    if args.json.json {
        return Err(Error::usage("--json: every process says what it has found", "--launch threads"));
    }
    Ok(())
}

fn chosen(ops: &[String]) -> Result<Vec<RankCase>, Error> {
    let all = cases();
    if let Some(op) = ops.iter().find(|op| all.iter().all(|case| case.op != **op)) {
        let mut names: Vec<&str> = all.iter().map(|case| case.op).collect();
        names.dedup();
        let hint = format!("with --ranks: {}", names.join(", "));
        return Err(Error::usage(format!("there is no operation over ranks called '{op}'"), hint));
    }
    Ok(all.into_iter().filter(|case| ops.is_empty() || ops.iter().any(|op| op == case.op)).collect())
}

/// A device for each rank: GPUs if that many are there or are asked for.
fn devices(args: &CheckArgs, ranks: u32, console: &Console) -> Result<Vec<Device>, Error> {
    // A limit beyond the clock is none.
    let deadline = args.limits.time_limit.and_then(|limit| Instant::now().checked_add(limit));
    let emulator = || {
        let config = EmulatorConfig {
            // Ranks are threads already.
            threads: 1,
            interrupt: Some(interrupt::token()),
            deadline,
            ..EmulatorConfig::default()
        };
        Device::emulator_with(config)
    };
    let gpus = || (0..ranks).map(|n| Ok(Device::cuda(n)?)).collect();
    match args.device.device.as_str() {
        "cuda" => gpus(),
        "emulator" => Ok((0..ranks).map(|_| emulator()).collect()),
        "auto" => {
            let found = discover().devices.len();
            if found >= ranks as usize {
                return gpus();
            }
            if found > 0 {
                console.note(format_args!("{ranks} ranks on emulators: there are {found} GPUs"));
            }
            Ok((0..ranks).map(|_| emulator()).collect())
        }
        _ => Err(Error::usage("--device: ranks have a device each", "auto, cuda or emulator")),
    }
}

fn threads(
    args: &CheckArgs,
    cases: &[RankCase],
    ranks: u32,
    options: CommOptions,
    console: &mut Console,
) -> Result<Outcome, Error> {
    let started = Instant::now();
    let devices = devices(args, ranks, console)?;
    let mut results: Vec<RankResult> = Vec::new();
    {
        let progress = console.steps(cases.len() as u64);
        let mut comms = Communicator::local(&devices, options)?;
        for case in cases {
            if interrupt::check().is_err() {
                break;
            }
            progress.describe(&format!("{} {}", case.op, case.dtype));
            let result = run_case(case, &comms);
            // What was ended says nothing about the operation; a communicator that has failed says nothing about the next.
            if interrupt::check().is_err() {
                break;
            }
            if result.reason.is_some() {
                drop(comms);
                comms = Communicator::local(&devices, options)?;
            }
            results.push(result);
            progress.step(1);
        }
    }
    let failed = results.iter().filter(|result| !result.ok).count();
    let on = devices.first().map_or_else(String::new, ToString::to_string);
    if args.json.json {
        let list: Vec<Value> = results.iter().map(as_json).collect();
        console.json(
            &json!({"device": on, "ranks": ranks, "cases": list, "of": cases.len(), "failed": failed}),
        )?;
    } else {
        table(&results, console)?;
        let seconds = started.elapsed().as_secs_f64();
        let verdict = verdict(results.len(), cases.len(), failed, "interrupted", console.palette());
        console.line(format_args!("\n{verdict} over {ranks} ranks on {on} in {seconds:.1} s"))?;
    }
    interrupt::check()?;
    Ok(if failed == 0 && results.len() == cases.len() { Outcome::Clean } else { Outcome::Findings })
}

fn as_json(result: &RankResult) -> Value {
    let RankResult { case, error, ok, reason, time } = result;
    json!({
        "op": case.op,
        "options": case.options,
        "dtype": case.dtype.name(),
        // Infinity is no number of JSON.
        "error": error.is_finite().then_some(*error),
        "budget": case.budget,
        "ok": ok,
        "reason": reason,
        "seconds": time.as_secs_f64(),
    })
}

fn table(results: &[RankResult], console: &mut Console) -> Result<(), Error> {
    let mut table = console.table(&[
        ("", Align::Left),
        ("op", Align::Left),
        ("options", Align::Left),
        ("dtype", Align::Left),
        ("error", Align::Right),
        ("budget", Align::Right),
        ("time", Align::Right),
    ]);
    for RankResult { case, error, ok, time, .. } in results {
        table.row([
            if *ok { "ok" } else { "FAILED" }.to_owned(),
            case.op.to_owned(),
            case.options.to_owned(),
            case.dtype.name().to_owned(),
            format!("{error:.1e}"),
            format!("{:.0e}", case.budget),
            format!("{:.1} ms", time.as_secs_f64() * 1e3),
        ]);
    }
    console.line(table)?;
    for result in results.iter().filter(|result| !result.ok) {
        let RankCase { op, options, dtype, .. } = result.case;
        let reason = result.reason.as_deref().unwrap_or("the error is beyond the budget");
        console.line(format_args!("\n{op} {dtype} ({options}): {reason}"))?;
    }
    Ok(())
}

/// This process is one rank; each says what failed there.
fn one_of_several(cases: &[RankCase], options: CommOptions, console: &mut Console) -> Result<Outcome, Error> {
    let place = Rendezvous::from_environment()
        .map_err(|failure| Error::usage(failure.to_string(), "`torchrun` or --launch processes set it"))?;
    let (rank, size) = (place.rank(), place.size());
    let ordinal = u32::try_from(place.local_rank().unwrap_or(rank)).unwrap_or(u32::MAX);
    let device = Device::cuda(ordinal)?;
    let comm = Communicator::connect(&device, &place, options)?;
    let mut outcome = Outcome::Clean;
    for case in cases {
        let RankCase { op, options, dtype, .. } = case;
        match run_one(case, &comm) {
            Ok(error) => {
                if rank == 0 {
                    console.line(format_args!("ok {op} ({options}) {dtype}: {error:.1e}"))?;
                }
            }
            Err(reason) => {
                console.line(format_args!("FAILED {op} ({options}) {dtype} on rank {rank}: {reason}"))?;
                outcome = Outcome::Findings;
                // The other ranks are elsewhere now.
                break;
            }
        }
    }
    if rank == 0 && outcome == Outcome::Clean {
        console
            .line(format_args!("{} cases, all within budget over {size} ranks on {device}", cases.len()))?;
    }
    Ok(outcome)
}

/// Starts this program once for each rank.
fn processes(args: &CheckArgs, ranks: u32) -> Result<Outcome, Error> {
    let start = |action| {
        move |source| Error::File { path: std::env::current_exe().unwrap_or_default(), action, source }
    };
    let program = std::env::current_exe().map_err(start("find this program"))?;
    // Free now; if it is taken meanwhile rank 0 says so.
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map_err(start("find a port"))?
        .port();
    let mut children = Vec::new();
    for rank in 0..ranks {
        let mut command = Command::new(&program);
        command.args(["check", "--launch", "environment"]).args(&args.ops).stdin(Stdio::null());
        if let Some(limit) = args.limits.time_limit {
            command.arg("--time-limit").arg(limit.as_secs_f64().to_string());
        }
        let (rank, port) = (rank.to_string(), port.to_string());
        command.env("RANK", &rank).env("LOCAL_RANK", &rank).env("WORLD_SIZE", ranks.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port).env_remove("WARPWRIGHT_PORT");
        command.env_remove("TORCHELASTIC_USE_AGENT_STORE");
        match command.spawn() {
            Ok(child) => children.push(child),
            Err(source) => {
                for child in &mut children {
                    // It may have ended by itself.
                    let _ = child.kill();
                    let _ = child.wait();
                }
                return Err(start("start a rank")(source));
            }
        }
    }
    let mut outcome = Outcome::Clean;
    for child in &mut children {
        if !child.wait().map_err(start("wait for a rank"))?.success() {
            outcome = Outcome::Findings;
        }
    }
    Ok(outcome)
}
