//! The tools for PTX: `lint` and `run`.

use std::collections::{BTreeMap, HashMap};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFloat};
use warpwright::emu::report::Severity;
use warpwright::emu::{
    Counters, Finding as Found, LaunchConfig, LaunchError, Memory, Options, Program, Sanitizers, launch,
};
use warpwright::ptx::text::{self, Severity as TextSeverity};
use warpwright::ptx::verify;
use warpwright::ptx::{ArgValue, Param, ScalarType, SourceLoc, Target, pack_args};

use crate::array::{Argument, Array, Ordering, Place, Site, shape_given};
use crate::error::{Class, Problem};
use crate::memory::{read_host, write_host};
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
    /// What usually repairs it; may be empty.
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

/// What a sanitizer found.
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
    /// What usually fixes it; may be empty.
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

/// What a launch in the emulator did.
#[pyclass(frozen, get_all, module = "warpwright")]
pub(crate) struct Run {
    /// What the sanitizers found, by line.
    findings: Vec<Finding>,
    /// Instructions, memory traffic and the like by name; empty if they were not asked for.
    counters: HashMap<String, u64>,
    /// The same for each line of the text, from 1.
    lines: BTreeMap<u32, HashMap<String, u64>>,
    /// What the threads printed, call by call.
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
                message: found.message,
                help: found.help.unwrap_or_default(),
                notes: found.notes.into_iter().map(|n| (place(n.location).0, n.message)).collect(),
            }
        }));
    }
    remarks.sort_by_key(|r| (r.line, r.column));
    remarks
}

/// What the parser and the verifier say about a PTX text, by place.
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

fn dimensions(argument: &'static str, object: &Bound<'_, PyAny>) -> PyResult<[u32; 3]> {
    let given = shape_given(object)?;
    let mut all = [1u32; 3];
    let fits = given.len() <= 3
        && given.iter().zip(&mut all).all(|(n, d)| u32::try_from(*n).map(|n| *d = n).is_ok());
    if fits {
        return Ok(all);
    }
    let message = format!("run: {argument} is {given:?}, expected one to three numbers below 2^32");
    Err(Problem::new(object.py(), Class::Parameter, message)
        .at("run", argument)
        .with("got", given)
        .into_err())
}

/// The value of a parameter that is no array.
fn scalar(object: &Bound<'_, PyAny>, param: &Param) -> PyResult<ArgValue> {
    use ScalarType::{F32, F64, S32, S64, U32, U64};
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(ArgValue::Bytes(bytes.as_bytes().to_vec()));
    }
    let is_float = object.is_instance_of::<PyFloat>();
    let bits = param.ty.bits();
    Ok(match param.ty {
        F32 => ArgValue::F32(object.extract::<f64>()? as f32),
        F64 => ArgValue::F64(object.extract()?),
        S32 => ArgValue::S32(object.extract()?),
        S64 => ArgValue::S64(object.extract()?),
        U32 => ArgValue::U32(object.extract()?),
        U64 => ArgValue::U64(object.extract()?),
        // Untyped bits hold what the number is.
        _ if bits == 32 && is_float => ArgValue::F32(object.extract::<f64>()? as f32),
        _ if bits == 64 && is_float => ArgValue::F64(object.extract()?),
        _ if bits == 32 => ArgValue::U32(object.extract::<i64>()? as u32),
        _ if bits == 64 => ArgValue::U64(object.extract::<i128>()? as u64),
        _ => {
            let value: i64 = object.extract()?;
            ArgValue::Bytes(value.to_le_bytes()[..(bits / 8) as usize].to_vec())
        }
    })
}

/// An array in the emulator's memory, and where it came from.
struct Placed<'py> {
    array: Array<'py>,
    address: u64,
    bytes: usize,
}

/// Puts an array into the emulator's memory, unless it is there; its number.
fn place<'py>(
    memory: &Memory,
    placed: &mut Vec<Placed<'py>>,
    object: &Bound<'py, PyAny>,
    label: &str,
) -> PyResult<usize> {
    const SITE: Site = Site { op: "run", argument: "args" };
    let py = object.py();
    let array = Argument::read(object, SITE, Ordering::Current)?;
    array.expect_place(Place::Host)?;
    let bytes = array.len() * array.dtype.bytes();
    // The same array twice is the same memory twice.
    if let Some(known) = placed.iter().position(|p| p.array.address == array.address && p.bytes == bytes) {
        return Ok(known);
    }
    if !array.is_row_major() {
        let message = format!("run: the array for {label} must be contiguous");
        return Err(Problem::new(py, Class::Layout, message).at("run", label).into_err());
    }
    let failed = |e: warpwright::emu::MemoryError| {
        Problem::new(py, Class::OutOfMemory, format!("run: {e}")).at("run", label).into_err()
    };
    let address = memory.alloc(bytes as u64, label).map_err(failed)?;
    memory.write(address, read_host(&array)).map_err(failed)?;
    placed.push(Placed { array, address, bytes });
    Ok(placed.len() - 1)
}

/// Runs a kernel of a PTX text in the emulator, on numpy arrays.
///
/// entry: name of the kernel; may be None if there is one. grid, block, cluster: a number or up to three. args: one for
/// each parameter: arrays for addresses (contiguous; read, and written in place after a run without a fault unless they
/// are read-only), numbers for scalars, bytes for aggregates, TensorMaps. sanitize: "all", "none", or names out of "memcheck",
/// "initcheck", "racecheck", "synccheck". shared: bytes of dynamic shared memory. seed: selects the order in which warps
/// run. max_steps: instructions after which the launch is stopped; 0 is no limit.
///
/// Returns a Run with findings, counters (of the launch and by line), printed text and fault. PtxError says why a text cannot run.
#[pyfunction]
#[pyo3(signature = (ptx, entry=None, grid=None, block=None, args=None, *, sanitize=None, shared=0, cluster=None, counters=true, seed=0, max_steps=0))]
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
    let memory = Memory::new();
    let mut placed = Vec::new();
    let values: Vec<ArgValue> = objects
        .iter()
        .enumerate()
        .map(|(i, object)| {
            // Numpy's scalars have the interface of arrays; only arrays have a length in memory of their own.
            let is_array =
                object.hasattr(intern!(py, "__dlpack__"))? && object.hasattr(intern!(py, "__setitem__"))?;
            match function.params.get(i) {
                Some(param) if is_array => {
                    let at = place(&memory, &mut placed, object, &param.name)?;
                    Ok(ArgValue::Address(placed[at].address))
                }
                Some(param) if object.is_instance_of::<TensorMap>() => {
                    let map = object.cast::<TensorMap>()?.get();
                    let at = place(&memory, &mut placed, map.over(py), &param.name)?;
                    let Placed { array, address, .. } = &placed[at];
                    Ok(ArgValue::TensorMap { map: map.at(array, *address)?.into(), slot: None })
                }
                Some(param) => scalar(object, param),
                // One too many: refused with the count below.
                None => Ok(ArgValue::U32(0)),
            }
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
    let options = Options { sanitizers, counters, seed, max_steps, ..Options::default() };
    let outcome = py.detach(|| launch(&program, &entry, &config, &params, &memory, &options));
    let (report, fault) = match outcome {
        Ok(report) => (report, None),
        Err(LaunchError::Fault { fault, report, .. }) => (*report, Some(fault.to_string())),
        Err(other) => {
            let problem = Problem::new(py, Class::Kernel, format!("run: {other}")).with("op", "run");
            return Err(problem.into_err());
        }
    };
    // A kernel that was ended has not written what it was to write.
    for p in placed.iter().filter(|p| fault.is_none() && p.array.expect_writable().is_ok()) {
        let read = write_host(&p.array, |bytes| memory.read(p.address, bytes));
        read.map_err(|e| Problem::new(py, Class::Kernel, format!("run: {e}")).with("op", "run").into_err())?;
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

/// What was found: the GPUs that CUDA offers, then the emulator, as dicts.
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
    let emulator = crate::memory::emulator().properties();
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
