//! `prove`: bounds and races of a kernel in all launches.

use serde_json::{Value, json};
use warpwright_emu::Program;
use warpwright_emu::refute::{self, Answer, Passed, Refutation, Verdict};
use warpwright_ptx::prove::{Assumption, Contract, ContractError, Expression, Extent, Gap, parse_range};
use warpwright_ptx::{ArgValue, Param};

use super::run::findings::{region, to_json, to_sarif};
use super::run::{entry_name, read_valid};
use crate::args::{ProveArgs, ReportFormat};
use crate::console::Console;
use crate::error::{Error, Outcome};
use crate::paths::Shown;
use crate::sarif::{Finding, Log, Related, Rule};

/// Runs the command.
///
/// # Errors
/// The file cannot be read or is no valid PTX, or what is said of launches does not fit the kernel.
pub fn run(args: &ProveArgs, console: &mut Console) -> Result<Outcome, Error> {
    let source = read_valid(&args.file, args.format.get(), console)?;
    let entry = entry_name(&args.file, args.entry.as_ref(), &source)?;
    let contract = contract(args)?;
    let failed = |message: String| {
        let help = "see `warpwright prove --help` for what can be said of launches";
        Error::usage(format!("{}: kernel `{entry}`: {message}", Shown(&args.file)), help)
    };
    let program = Program::load(&source).map_err(|error| failed(error.to_string()))?;
    let verdict = refute::verdict(&program, &entry, &contract).map_err(|error| failed(error.to_string()))?;
    let params = program.entry(&entry).map(|kernel| kernel.function().params.as_slice()).unwrap_or_default();
    let report = Report { args, verdict: &verdict, source: &source, params };
    match args.format.get() {
        ReportFormat::Human => report.print(console)?,
        ReportFormat::Json => console.json(&report.json())?,
        ReportFormat::Sarif => console.json(&report.sarif())?,
    }
    Ok(match (verdict.is_refuted(), verdict.is_proved()) {
        (true, _) => Outcome::Findings,
        (false, true) => Outcome::Clean,
        (false, false) => Outcome::NotDecided,
    })
}

/// The contract of launches that the command line gives.
fn contract(args: &ProveArgs) -> Result<Contract, Error> {
    let wrong = |option: &str, error: ContractError| {
        Error::usage(format!("--{option} {error}"), "see `warpwright prove --help` for the forms")
    };
    let named = |option: &'static str, text: &str| {
        let (name, rest) = text.split_once('=').ok_or_else(|| {
            Error::usage(
                format!("--{option} {text}: has no name"),
                "the name is that of a parameter, before a `=`",
            )
        })?;
        Ok::<_, Error>((name.trim().to_owned(), rest.to_owned()))
    };
    let mut contract = Contract { block: args.block, grid: args.grid, ..Contract::default() };
    for text in &args.arrays {
        let (name, extent) = named("array", text)?;
        let extent = Extent::parse(&extent).map_err(|error| wrong("array", error))?;
        contract.arrays.insert(name, extent);
    }
    for text in &args.ranges {
        let (name, range) = named("range", text)?;
        contract.ranges.insert(name, parse_range(&range).map_err(|error| wrong("range", error))?);
    }
    for text in &args.assumptions {
        contract.assumptions.push(Assumption::parse(text).map_err(|error| wrong("assume", error))?);
    }
    if let Some(text) = &args.shared {
        contract.shared = Some(Expression::parse(text).map_err(|error| wrong("shared", error))?);
    }
    Ok(contract)
}

/// A verdict and what it is about.
struct Report<'a> {
    args: &'a ProveArgs,
    verdict: &'a Verdict,
    source: &'a str,
    params: &'a [Param],
}

impl Report<'_> {
    fn print(&self, console: &mut Console) -> Result<(), Error> {
        let palette = console.palette();
        let verdict = self.verdict;
        for (kind, of, answer) in
            [("bounds", "accesses", verdict.bounds()), ("races", "pairs of accesses", verdict.races())]
        {
            match answer {
                Answer::Proved(count) => console.line(format_args!("{kind}: proved ({count} {of})"))?,
                Answer::Refuted(refutation) => {
                    console.line(format_args!("{kind}: {}", palette.error("refuted")))?;
                    console.line(refutation.finding.render(None, self.source).trim_end())?;
                    console.line(format_args!("   = again: {}", self.command(refutation)))?;
                }
                Answer::NotDecided(gaps) => {
                    console.line(format_args!("{kind}: not decided"))?;
                    for gap in gaps {
                        console.line(format_args!("  {gap}"))?;
                    }
                }
            }
        }
        let assumed = &verdict.proof.assumptions;
        if !assumed.is_empty() {
            console.line(format_args!("assumed: {}", assumed.join("; ")))?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let args = self.args;
        let said = args.arrays.iter().chain(&args.ranges).chain(&args.assumptions);
        let assumptions: Vec<&String> = said.chain(&self.verdict.proof.assumptions).collect();
        json!({
            "kernel": self.verdict.proof.kernel,
            "bounds": self.answer(self.verdict.bounds()),
            "races": self.answer(self.verdict.races()),
            "assumptions": assumptions,
        })
    }

    fn answer(&self, answer: Answer<'_>) -> Value {
        match answer {
            Answer::Proved(count) => json!({"verdict": "proved", "obligations": count}),
            Answer::Refuted(refutation) => json!({
                "verdict": "refuted",
                "finding": to_json(&refutation.finding, self.source),
                "run": self.command(refutation),
            }),
            Answer::NotDecided(gaps) => {
                let gaps = gaps.iter().map(|gap| {
                    json!({"line": gap.line(), "other_line": gap.other_line(), "message": gap.reason.to_string()})
                });
                json!({"verdict": "not decided", "gaps": gaps.collect::<Value>()})
            }
        }
    }

    fn sarif(&self) -> Value {
        let mut log = Log::new(&self.args.file);
        for (id, answer) in [("prove/bounds", self.verdict.bounds()), ("prove/races", self.verdict.races())] {
            match answer {
                Answer::Proved(_) => {}
                Answer::Refuted(refutation) => to_sarif(&refutation.finding, self.source, &mut log),
                Answer::NotDecided(gaps) => gaps.iter().for_each(|gap| log.add(&self.open(id, gap))),
            }
        }
        log.finish()
    }

    /// A place that is not decided, as a warning.
    fn open<'a>(&'a self, id: &'a str, gap: &Gap) -> Finding<'a> {
        let related = gap.other_line().map(|line| Related {
            region: region(self.source, line, 1),
            message: "the other place".to_owned(),
        });
        Finding {
            rule: Rule { id, summary: "Bounds and races are decided for all launches.", help: "" },
            is_error: false,
            message: format!("not decided: {}", gap.reason),
            region: region(self.source, gap.line(), 1),
            kernel: Some(&self.verdict.proof.kernel),
            related: related.into_iter().collect(),
            properties: Value::Null,
        }
    }

    /// The command that shows a finding again.
    fn command(&self, refutation: &Refutation) -> String {
        let shape = |[x, y, z]: [u32; 3]| match (y, z) {
            (1, 1) => x.to_string(),
            (_, 1) => format!("{x},{y}"),
            _ => format!("{x},{y},{z}"),
        };
        let config = &refutation.config;
        let mut words = vec!["warpwright run".to_owned(), quoted(&Shown(&self.args.file).to_string())];
        words.extend(["--entry".to_owned(), quoted(&self.verdict.proof.kernel)]);
        words.push(format!("--grid {} --block {}", shape(config.grid), shape(config.block)));
        if config.dynamic_shared != 0 {
            words.push(format!("--shared {}", config.dynamic_shared));
        }
        words.push("--device emulator --sanitize memcheck,racecheck".to_owned());
        for (passed, param) in refutation.arguments.iter().zip(self.params) {
            words.push(format!("--arg {}", quoted(&argument(passed, &param.name))));
        }
        words.join(" ")
    }
}

fn argument(passed: &Passed, name: &str) -> String {
    match passed {
        Passed::Array(bytes) => format!("out:{name}.npy:u8:{bytes}"),
        Passed::Number(ArgValue::U32(value)) => format!("u32:{value}"),
        Passed::Number(ArgValue::S32(value)) => format!("s32:{value}"),
        Passed::Number(ArgValue::U64(value)) => format!("u64:{value}"),
        Passed::Number(ArgValue::S64(value)) => format!("s64:{value}"),
        Passed::Number(ArgValue::F32(value)) => format!("f32:{value}"),
        Passed::Number(ArgValue::F64(value)) => format!("f64:{value}"),
        Passed::Number(other) => {
            let bytes = other.to_bytes().unwrap_or_default();
            let fields: Vec<String> = bytes.iter().map(|byte| format!("u8:{byte}")).collect();
            format!("struct:{}", fields.join(","))
        }
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,".contains(c);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}
