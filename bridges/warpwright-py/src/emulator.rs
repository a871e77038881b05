//! The tools for PTX: `lint` and `run`.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use warpwright::emu::report::Severity;
use warpwright::emu::{
    Counters, Finding as Found, LaunchConfig, LaunchError, Memory, Options, Program, Sanitizers, launch,
};
use warpwright::ptx::text::{self, Severity as TextSeverity};
use warpwright::ptx::verify;
use warpwright::ptx::{ArgValue, SourceLoc, Target, pack_args};

use crate::array::{Argument, Array, Ordering, Site, shape_given};
use crate::device::{self, Place};
use crate::error::{Class, Problem};
use crate::interrupt::interruptible;
use crate::memory::{read_host, write_host};
use crate::overlap::{self, Group};
use crate::parameter::scalar;
use crate::tensor_map::TensorMap;

/// A remark of `lint` on a PTX text.
#[pyclass(frozen, get_all, module = "warpwright")]
pub(crate) struct Remark {
    /// "error" or "warning".
    severity: &'static str,
    /// Name of the rule.
    rule: &'static str,
    /// From 1; 0 for the module as a whole.
    line: u32,
    /// In bytes, from 1; 0 for the line as a whole.
    column: u32,
    /// One sentence.
    message: String,
    /// The usual repair; may be empty.
    help: &'static str,
    /// Lines that explain it, and what there is to say about each.
    notes: Vec<(u32, String)>,
}

#[pymethods]
impl Remark {
    fn __repr__(&self) -> String {
        format!("<{}[{}] at {}:{}: {}>", self.severity, self.rule, self.line, self.column, self.message)
    }
}

/// A finding of a sanitizer.
#[pyclass(frozen, get_all, module = "warpwright")]
#[derive(Clone)]
pub(crate) struct Finding {
    /// "memcheck", "initcheck", "racecheck" or "synccheck".
    tool: &'static str,
    /// "error" or "warning".
    severity: &'static str,
    /// Stable name of the defect, such as "out-of-bounds".
    kind: &'static str,
    /// The kernel.
    kernel: String,
    /// Line of the PTX text, from 1; 0 if not known.
    line: u32,
    /// Column, from 1; 0 if not known.
    column: u32,
    /// One sentence.
    message: String,
    /// Block of the first thread that showed it.
    block: [u32; 3],
    /// The first thread that showed it.
    thread: [u32; 3],
    /// How often it happened.
    count: u64,
    /// The usual fix; may be empty.
    help: String,
    /// All of it with an excerpt of the text, as a compiler prints it.
    text: String,
}

impl Finding {
    fn new(found: &Found, source: &str) -> Self {
        Self {
            tool: found.tool.name(),
            severity: found.severity.name(),
            kind: found.kind,
            kernel: found.kernel.clone(),
            line: found.line,
            column: found.column,
            message: found.message.clone(),
            block: found.block,
            thread: found.thread,
            count: found.count,
            help: found.help.clone(),
            text: found.render(None, source),
        }
    }
}

#[pymethods]
impl Finding {
    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self) -> String {
        format!("<{}[{}/{}] at line {}: {}>", self.severity, self.tool, self.kind, self.line, self.message)
    }
}

/// The outcome of a launch in the emulator.
#[pyclass(frozen, get_all, module = "warpwright")]
pub(crate) struct Run {
    /// Findings of the sanitizers, by line.
    findings: Vec<Finding>,
    /// Instructions, memory traffic and the like by name; empty if they were not asked for.
    counters: HashMap<String, u64>,
    /// The same for each line of the text, from 1.
    lines: BTreeMap<u32, HashMap<String, u64>>,
    /// Texts that the threads printed, call by call.
    printed: Vec<String>,
    /// Why the kernel was ended before its threads were done, or None.
    fault: Option<String>,
}

#[pymethods]
impl Run {
    /// Whether the kernel ran to its end and nothing of severity "error" was found.
    #[getter]
    fn ok(&self) -> bool {
        self.fault.is_none() && self.findings.iter().all(|f| f.severity != Severity::Error.name())
    }

    fn __repr__(&self) -> String {
        let fault = self.fault.as_ref().map_or(String::new(), |f| format!(", fault: {f}"));
        format!("<Run: {} findings{fault}>", self.findings.len())
    }
}

fn examine(source: &str, target: Option<Target>) -> Vec<Remark> {
    let name = |is_error| if is_error { "error" } else { "warning" };
    let parsed = text::parse(source);
    let mut remarks: Vec<Remark> = parsed
        .diagnostics
        .iter()
        .map(|d| Remark {
            severity: name(d.severity == TextSeverity::Error),
            rule: d.rule,
            line: d.line,
            column: d.column,
            message: d.message.clone(),
            help: "",
            notes: Vec::new(),
        })
        .collect();
    // What could not be read may hold the definitions that the rest needs.
    if !parsed.has_errors() {
        let mut module = parsed.module;
        if let Some(target) = target {
            module.target = target;
        }
        let place = |at| match at {
            SourceLoc::Ptx { line, column } => (line, column),
            _ => (0, 0),
        };
        remarks.extend(verify::verify(&module).into_iter().map(|found| {
            let (line, column) = place(found.location);
            Remark {
                severity: name(found.severity == TextSeverity::Error),
                rule: found.rule.name(),
                line,
                column,
                message: found.breach.to_string(),
                help: found.help.unwrap_or_default(),
                notes: found.notes.into_iter().map(|n| (place(n.location).0, n.kind.to_string())).collect(),
            }
        }));
    }
    remarks.sort_by_key(|r| (r.line, r.column));
    remarks
}

/// Remarks of the parser and the verifier on a PTX text, by place.
///
/// target: an architecture such as "sm_90a" to check it for instead of its own `.target`.
#[pyfunction]
#[pyo3(signature = (ptx, target=None))]
pub(crate) fn lint(py: Python<'_>, ptx: &str, target: Option<&str>) -> PyResult<Vec<Remark>> {
    let target = target
        .map(|name| {
            let unknown = || {
                let message = format!("lint: target is '{name}', expected an architecture such as 'sm_90a'");
                Problem::new(py, Class::Parameter, message)
                    .at("lint", "target")
                    .mismatch("sm_XX", name)
                    .into_err()
            };
            Target::from_name(name).ok_or_else(unknown)
        })
        .transpose()?;
    Ok(py.detach(|| examine(ptx, target)))
}

fn sanitizers(py: Python<'_>, names: Option<&Bound<'_, PyAny>>) -> PyResult<Sanitizers> {
    let Some(names) = names else { return Ok(Sanitizers::empty()) };
    let names: Vec<String> = match names.extract::<String>() {
        Ok(list) => list.split(',').map(|n| n.trim().to_owned()).collect(),
        Err(_) => names.extract()?,
    };
    names.iter().try_fold(Sanitizers::empty(), |chosen, name| {
        Ok(chosen
            | match name.as_str() {
                "memcheck" => Sanitizers::MEMCHECK,
                "initcheck" => Sanitizers::INITCHECK,
                "racecheck" => Sanitizers::RACECHECK,
                "synccheck" => Sanitizers::SYNCCHECK,
                "all" => Sanitizers::all(),
                "none" => Sanitizers::empty(),
                other => {
                    let expected = "'memcheck', 'initcheck', 'racecheck', 'synccheck', 'all' or 'none'";
                    let message = format!("run: sanitize has '{other}', expected {expected}");
                    let problem = Problem::new(py, Class::Parameter, message).at("run", "sanitize");
                    return Err(problem.mismatch(expected, other).into_err());
                }
            })
    })
}

fn limit(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        let expected = "a number of seconds, not below 0";
        let message = format!("run: time_limit is {seconds}, expected {expected}");
        Problem::new(py, Class::Parameter, message)
            .at("run", "time_limit")
            .mismatch(expected, seconds)
            .into_err()
    })
}

fn dimensions(argument: &'static str, object: &Bound<'_, PyAny>) -> PyResult<[u32; 3]> {
    let mut all = [1u32; 3];
    let fits = shape_given(object).is_ok_and(|given| {
        (1..=3).contains(&given.len())
            && given.iter().zip(&mut all).all(|(n, d)| u32::try_from(*n).map(|n| *d = n).is_ok())
    });
    if fits {
        return Ok(all);
    }
    let message = format!("run: {argument} is {}, expected one to three numbers below 2^32", object.repr()?);
    Err(Problem::new(object.py(), Class::Parameter, message)
        .at("run", argument)
        .with("got", object)
        .into_err())
}

/// The arrays of a launch, and where they lie in the emulator's memory: what overlaps on the host overlaps there.
#[derive(Default)]
struct Placed<'py> {
    arrays: Vec<Array<'py>>,
    addresses: Vec<u64>,
}

impl<'py> Placed<'py> {
    /// Reads an array; its number.
    fn read(&mut self, object: &Bound<'py, PyAny>, label: &str) -> PyResult<usize> {
        const SITE: Site = Site { op: "run", argument: "args" };
        let array = Argument::read(object, SITE, Ordering::Current)?;
        array.expect_place(Place::Host)?;
        if !array.is_row_major() {
            let message = format!("run: the array for {label} must be contiguous");
            return Err(Problem::new(object.py(), Class::Layout, message).at("run", label).into_err());
        }
        self.arrays.push(array);
        Ok(self.arrays.len() - 1)
    }

    /// Puts the arrays into memory; `labels` are the names of their parameters.
    fn fill(&mut self, py: Python<'py>, memory: &Memory, labels: &[&str]) -> PyResult<()> {
        let ranges: Vec<_> =
            self.arrays.iter().map(|a| overlap::range(a.address, read_host(a).len())).collect();
        self.addresses = vec![0; ranges.len()];
        let mut groups = overlap::groups(&ranges);
        let empty = (0..ranges.len()).filter(|&i| ranges[i].is_empty());
        groups.extend(empty.map(|i| Group::single(i, ranges[i].clone())));
        for group in groups {
            let mut names: Vec<&str> = group.members.iter().map(|&i| labels[i]).collect();
            names.sort_unstable();
            names.dedup();
            let label = names.join(", ");
            let failed = |e: warpwright::emu::MemoryError| {
                Problem::new(py, Class::OutOfMemory, format!("run: {e}")).at("run", &label).into_err()
            };
            let base = memory.alloc(group.bytes(), &label).map_err(failed)?;
            for &i in &group.members {
                self.addresses[i] = base + group.offset(ranges[i].start);
                memory.write(self.addresses[i], read_host(&self.arrays[i])).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Copies the arrays that may be written back.
    fn write_back(&self, py: Python<'py>, memory: &Memory) -> PyResult<()> {
        let all = self.arrays.iter().zip(&self.addresses);
        for (array, address) in all.filter(|(array, _)| array.expect_writable().is_ok()) {
            let read = write_host(array, |bytes| memory.read(*address, bytes));
            read.map_err(|e| {
                Problem::new(py, Class::Kernel, format!("run: {e}")).with("op", "run").into_err()
            })?;
        }
        Ok(())
    }
}

/// An argument of a kernel before arrays have addresses.
enum Given<'a, 'py> {
    Value(ArgValue),
    Array(usize),
    Map(&'a Bound<'py, TensorMap>, usize),
}

/// Runs a kernel of a PTX text in the emulator, on numpy arrays.
///
/// entry: name of the kernel; may be None if there is one. grid, block, cluster: a number or up to three. args: one for
/// each parameter: arrays for addresses (contiguous; read, and written in place after a run without a fault unless they
/// are read-only; views that share memory share it in the kernel too), numbers for scalars, bytes for aggregates, TensorMaps. sanitize: "all", "none", or names out of "memcheck",
/// "initcheck", "racecheck", "synccheck". shared: bytes of dynamic shared memory. seed: selects the order in which warps
/// run. max_steps: instructions after which the launch is stopped; 0 is no limit. time_limit: seconds after which it is
/// stopped. Ctrl-C stops it too.
///
/// Returns a Run with findings, counters (of the launch and by line), printed text and fault. PtxError says why a text cannot run.
#[pyfunction]
#[pyo3(signature = (ptx, entry=None, grid=None, block=None, args=None, *, sanitize=None, shared=0, cluster=None, counters=true, seed=0, max_steps=0, time_limit=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn run<'py>(
    py: Python<'py>,
    ptx: &str,
    entry: Option<&str>,
    grid: Option<&Bound<'py, PyAny>>,
    block: Option<&Bound<'py, PyAny>>,
    args: Option<&Bound<'py, PyAny>>,
    sanitize: Option<&Bound<'py, PyAny>>,
    shared: u32,
    cluster: Option<&Bound<'py, PyAny>>,
    counters: bool,
    seed: u64,
    max_steps: u64,
    time_limit: Option<f64>,
) -> PyResult<Run> {
    let broken = |message: String| Problem::new(py, Class::Ptx, format!("run: {message}")).with("op", "run");
    let remarks = py.detach(|| examine(ptx, None));
    let first =
        remarks.iter().find(|r| r.severity == "error").map(|r| format!("line {}: {}", r.line, r.message));
    if let Some(first) = first {
        let remarks: Vec<_> = remarks.into_iter().map(|r| Bound::new(py, r)).collect::<PyResult<_>>()?;
        return Err(broken(format!("the text is not valid PTX: {first}"))
            .with("remarks", remarks)
            .into_err());
    }
    let program = py.detach(|| Program::load(ptx)).map_err(|e| broken(e.to_string()).into_err())?;
    let names: Vec<String> = text::parse(ptx).module.functions.into_iter().map(|f| f.name).collect();
    let entry = match (entry, names.as_slice()) {
        (Some(name), _) => name.to_owned(),
        (None, [only]) => only.clone(),
        (None, all) => {
            let all: Vec<String> = all.iter().filter(|n| program.entry(n).is_some()).cloned().collect();
            match all.as_slice() {
                [only] => only.clone(),
                _ => {
                    return Err(
                        broken(format!("entry must name one of the kernels: {}", all.join(", "))).into_err()
                    );
                }
            }
        }
    };
    let Some(kernel) = program.entry(&entry) else {
        let problem = broken(format!("there is no kernel '{entry}', only {}", names.join(", ")));
        return Err(problem.with("argument", "entry").mismatch(names, entry).into_err());
    };
    let function = kernel.function();
    let objects: Vec<Bound<'py, PyAny>> = match args {
        Some(list) => list.try_iter()?.collect::<PyResult<_>>()?,
        None => Vec::new(),
    };
    let mut placed = Placed::default();
    let mut labels = Vec::new();
    let mut given = Vec::with_capacity(objects.len());
    for (i, object) in objects.iter().enumerate() {
        // One too many is refused with the count below.
        let Some(param) = function.params.get(i) else {
            given.push(Given::Value(ArgValue::U32(0)));
            continue;
        };
        // Numpy's scalars have the interface of arrays; only arrays have a length in memory of their own.
        let is_array =
            object.hasattr(intern!(py, "__dlpack__"))? && object.hasattr(intern!(py, "__setitem__"))?;
        given.push(if is_array {
            labels.push(param.name.as_str());
            Given::Array(placed.read(object, &param.name)?)
        } else if let Ok(map) = object.cast::<TensorMap>() {
            labels.push(param.name.as_str());
            Given::Map(map, placed.read(map.get().over(py), &param.name)?)
        } else {
            Given::Value(scalar(object, param)?)
        });
    }
    let memory = Memory::new();
    placed.fill(py, &memory, &labels)?;
    let values: Vec<ArgValue> = given
        .into_iter()
        .map(|given| {
            Ok(match given {
                Given::Value(value) => value,
                Given::Array(at) => ArgValue::Address(placed.addresses[at]),
                Given::Map(map, at) => {
                    let map = map.get().at(&placed.arrays[at], placed.addresses[at])?;
                    ArgValue::TensorMap { map: map.into(), slot: None }
                }
            })
        })
        .collect::<PyResult<_>>()?;
    let params = pack_args(function, &values)
        .map_err(|e| Problem::new(py, Class::Argument, format!("run: {e}")).at("run", "args").into_err())?;
    let size = |argument, given: Option<&Bound<'py, PyAny>>, default| {
        given.map_or(Ok(default), |object| dimensions(argument, object))
    };
    let directives = &function.directives;
    let config = LaunchConfig {
        grid: size("grid", grid, [1; 3])?,
        block: size("block", block, directives.required_threads.unwrap_or([1; 3]))?,
        dynamic_shared: shared,
        cluster: size("cluster", cluster, directives.cluster.unwrap_or([1; 3]))?,
    };
    let all = pyo3::types::PyString::new(py, "all").into_any();
    let sanitizers = sanitizers(py, Some(sanitize.unwrap_or(&all)))?;
    let time_limit = time_limit.map(|seconds| limit(py, seconds)).transpose()?;
    // A limit beyond the clock is none.
    let deadline = time_limit.and_then(|limit| Instant::now().checked_add(limit));
    let options = Options { sanitizers, counters, seed, max_steps, deadline, ..Options::default() };
    let outcome = interruptible(py, |interrupt| {
        let options = Options { interrupt: Some(interrupt.clone()), ..options };
        launch(&program, &entry, &config, &params, &memory, &options)
    })?;
    let (report, fault) = match outcome {
        Ok(report) => (report, None),
        Err(LaunchError::Fault { fault, report, .. }) => (*report, Some(fault.to_string())),
        Err(other) => {
            let problem = Problem::new(py, Class::Kernel, format!("run: {other}")).with("op", "run");
            return Err(problem.into_err());
        }
    };
    // A kernel that was ended has not written what it was to write.
    if fault.is_none() {
        placed.write_back(py, &memory)?;
    }
    let findings = report.findings.iter().map(|f| Finding::new(f, ptx)).collect();
    let lines = report.lines.iter().map(|row| (row.line, rows(&row.counters))).collect();
    let counters = if counters { rows(&report.counters) } else { HashMap::new() };
    let printed = report.printed.into_iter().map(|p| p.text).collect();
    Ok(Run { findings, counters, lines, printed, fault })
}

fn rows(counters: &Counters) -> HashMap<String, u64> {
    counters.rows().into_iter().collect()
}

/// The GPUs that CUDA offers, then the emulator, as dicts.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let found = py.detach(warpwright::discover);
    let mut all = Vec::new();
    for d in &found.devices {
        let dict = PyDict::new(py);
        dict.set_item("device", format!("cuda:{}", d.ordinal))?;
        dict.set_item("name", &d.name)?;
        dict.set_item("sm", d.sm)?;
        dict.set_item("multiprocessors", d.multiprocessors)?;
        dict.set_item("memory", d.memory)?;
        all.push(dict);
    }
    let emulator = device::emulator().properties();
    let dict = PyDict::new(py);
    dict.set_item("device", "emulator")?;
    dict.set_item("name", &emulator.name)?;
    dict.set_item("sm", emulator.target.sm)?;
    dict.set_item("multiprocessors", emulator.multiprocessors)?;
    dict.set_item("memory", emulator.memory)?;
    if let Some(why) = &found.unavailable {
        dict.set_item("cuda", why.to_string())?;
    }
    all.push(dict);
    Ok(all)
}
