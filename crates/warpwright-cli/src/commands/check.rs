//! `check`: every primitive against its f64 reference.

use std::time::Instant;

use serde_json::{Value, json};
use warpwright_ops::catalogue;
use warpwright_runtime::{Device, EmulatorConfig};
use warpwright_testkit::{CaseResult, Filter, cases, run_case};

use super::{open_with, ranks};
use crate::args::{CheckArgs, Launch};
use crate::console::Console;
use crate::error::{Error, Outcome};
use crate::interrupt;
use crate::palette::Palette;
use crate::table::Align;

/// Runs the command. What was found until the user ends it is said.
///
/// # Errors
/// There is no such primitive, or the device cannot be opened; interrupted. A case that fails is a finding.
pub fn run(args: &CheckArgs, console: &mut Console) -> Result<Outcome, Error> {
    if args.ranks.ranks.is_some() || args.ranks.launch != Launch::Threads {
        return ranks::run(args, console);
    }
    refuse_unknown(&args.ops)?;
    let started = Instant::now();
    // A limit beyond the clock is none.
    let deadline = args.limits.time_limit.and_then(|limit| started.checked_add(limit));
    let max_steps = args.limits.max_steps.unwrap_or(0);
    let config = EmulatorConfig { deadline, max_steps, ..EmulatorConfig::default() };
    let device = open_with(&args.device.device, config, console)?;
    if !device.is_emulator() && max_steps > 0 {
        return Err(refuse_max_steps());
    }
    let in_time = || deadline.is_none_or(|deadline| Instant::now() < deadline);
    let target = Some(device.target());
    let mut cases = cases(&Filter { ops: args.ops.clone(), target, ..Filter::default() });
    if let Some(text) = &args.matching {
        cases.retain(|case| case.to_string().contains(text.as_str()));
        if cases.is_empty() {
            let remedy = "a text of a row of `warpwright check`, such as \"causal\" or \"bf16\"";
            return Err(Error::usage(format!("--match: no case has the text {text:?}"), remedy));
        }
    }
    let mut results = Vec::with_capacity(cases.len());
    {
        let progress = console.steps(cases.len() as u64);
        for case in &cases {
            if interrupt::check().is_err() || !in_time() {
                break;
            }
            progress.describe(&format!("{} {} {}", case.op, case.direction, case.dtype));
            let result = run_case(&device, case);
            // What was ended says nothing about the primitive.
            if interrupt::check().is_err() || !in_time() {
                break;
            }
            results.push(result);
            progress.step(1);
        }
    }
    let failed = results.iter().filter(|result| !result.ok).count();
    if args.json.json {
        let list: Vec<Value> = results.iter().map(as_json).collect();
        let device = device.to_string();
        let mut value = json!({"device": device, "cases": list, "of": cases.len(), "failed": failed});
        if results.len() < cases.len() && interrupt::check().is_ok() {
            value["time_limit"] = args.limits.time_limit.map(|limit| limit.as_secs_f64()).into();
        }
        console.json(&value)?;
    } else {
        table(&device, &results, console)?;
        let until = match (args.limits.time_limit, interrupt::check()) {
            (Some(limit), Ok(())) => format!("the time limit of {} s", limit.as_secs_f64()),
            _ => "interrupted".to_owned(),
        };
        let verdict = verdict(results.len(), cases.len(), failed, &until, console.palette());
        let seconds = started.elapsed().as_secs_f64();
        console.line(format_args!("\n{verdict} on {device} in {seconds:.1} s"))?;
    }
    interrupt::check()?;
    Ok(if failed == 0 && results.len() == cases.len() { Outcome::Clean } else { Outcome::Findings })
}

/// Steps are counted where they are emulated.
pub(super) fn refuse_max_steps() -> Error {
    Error::usage("--max-steps: steps are counted in the emulator", "--device emulator, or --time-limit")
}

/// Every name must be one of the catalogue, or a check that checks nothing would succeed.
pub(super) fn refuse_unknown(ops: &[String]) -> Result<(), Error> {
    let known = catalogue();
    match ops.iter().find(|op| !known.iter().any(|entry| entry.op == **op)) {
        None => Ok(()),
        Some(op) => {
            Err(Error::usage(format!("there is no primitive called '{op}'"), "`warpwright ops` lists them"))
        }
    }
}

fn as_json(result: &CaseResult) -> Value {
    json!({
        "op": result.op,
        "direction": result.direction.name(),
        "dtype": result.dtype.name(),
        "shape": result.shape,
        "error": result.error,
        "budget": result.budget.norm,
        "ok": result.ok,
        "findings": result.findings,
        "element_error": result.element_error,
        "element_budget": result.budget.element,
        "input": result.input,
        "reason": result.reason,
        "seconds": result.time.as_secs_f64(),
    })
}

fn table(device: &Device, results: &[CaseResult], console: &mut Console) -> Result<(), Error> {
    let mut table = console.table(&[
        ("", Align::Left),
        ("op", Align::Left),
        ("dtype", Align::Left),
        ("shape", Align::Left),
        ("input", Align::Left),
        ("error", Align::Right),
        ("budget", Align::Right),
        ("eps", Align::Right),
        ("budget", Align::Right),
        ("sanitizers", Align::Left),
        ("time", Align::Right),
    ]);
    for result in results {
        let sanitizers = match (device.is_emulator(), result.findings.len()) {
            (false, _) => "-".to_owned(),
            (true, 0) => "clean".to_owned(),
            (true, n) => format!("{n} findings"),
        };
        table.row([
            if result.ok { "ok" } else { "FAILED" }.to_owned(),
            match result.direction {
                warpwright_ops::Direction::Backward => format!("{}_backward", result.op),
                warpwright_ops::Direction::Forward => result.op.to_owned(),
            },
            result.dtype.name().to_owned(),
            format!("{:?}", result.shape),
            result.input.clone(),
            format!("{:.1e}", result.error),
            format!("{:.0e}", result.budget.norm),
            format!("{:.2}", result.element_error),
            format!("{:.2}", result.budget.element),
            sanitizers,
            format!("{:.1} ms", result.time.as_secs_f64() * 1e3),
        ]);
    }
    console.line(table)?;
    for result in results.iter().filter(|result| !result.ok) {
        let reason = result.reason.as_deref().unwrap_or("the sanitizers object");
        let (op, direction, dtype) = (result.op, result.direction, result.dtype);
        console.line(format_args!(
            "\n{op} {direction} {dtype} {:?} ({}): {reason}",
            result.shape, result.input
        ))?;
        for finding in &result.findings {
            console.line(finding)?;
        }
    }
    Ok(())
}

/// Text on `count` of `of` cases, some of which failed, and on what ended them early.
pub(super) fn verdict(count: usize, of: usize, failed: usize, until: &str, palette: Palette) -> String {
    let cases = if count < of { format!("{count} of {of} cases") } else { format!("{count} cases") };
    if failed > 0 {
        palette.error(&format!("{cases}, {failed} failed")).to_string()
    } else if count < of {
        palette.warning(&format!("{cases}, all within budget until {until}")).to_string()
    } else {
        palette.good(&format!("{cases}, all within budget")).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_counts_what_ran() {
        let verdict = |count, failed| verdict(count, 5, failed, "interrupted", Palette::PLAIN);
        assert_eq!(verdict(5, 0), "5 cases, all within budget");
        assert_eq!(verdict(5, 2), "5 cases, 2 failed");
        assert_eq!(verdict(3, 0), "3 of 5 cases, all within budget until interrupted");
        assert_eq!(verdict(3, 1), "3 of 5 cases, 1 failed");
    }
}
