//! `bench`: times against the bandwidth of the device; counters where there is no time to take.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use warpwright_ops::catalogue::{OpOptions, Planned, Request, plan_named};
use warpwright_ops::plan::{Access, Variant};
use warpwright_ops::{Entry, catalogue};
use warpwright_ptx::DType;
use warpwright_runtime::timing::{Measurement, Timer, TimerOptions};
use warpwright_runtime::{
    Counters, Device, EmulatorConfig, Error as DeviceError, LaunchStep, Stream, Tensor,
};
use warpwright_testkit::{Filter, cases, run_case};

use super::check::refuse_unknown;
use super::open_with;
use super::run::counters_json;
use crate::args::BenchArgs;
use crate::checkpoint::atomic::write_whole;
use crate::checkpoint::floats;
use crate::console::Console;
use crate::error::{Error, Outcome};
use crate::interrupt;
use crate::paths::check_new_file;
use crate::table::Align;

/// Runs the command.
///
/// # Errors
/// There is no such primitive, or the device fails.
pub fn run(args: &BenchArgs, console: &mut Console) -> Result<Outcome, Error> {
    refuse_unknown(&args.ops)?;
    if let Some(path) = &args.svg {
        check_new_file(path, true)?;
    }
    let device = open_with(
        &args.device.device,
        EmulatorConfig { counters: true, ..EmulatorConfig::default() },
        console,
    )?;
    let default = if device.is_emulator() { 1 << 16 } else { 1 << 26 };
    let mut options = args.options.0.clone();
    let elements = *options.elements.get_or_insert(default);
    let entries: Vec<Entry> = catalogue()
        .into_iter()
        .filter(|entry| args.ops.is_empty() || args.ops.iter().any(|op| op == entry.op))
        .collect();
    let asked: Vec<(Entry, DType)> = entries
        .iter()
        .flat_map(|entry| entry.dtypes.iter().map(|&dtype| (*entry, dtype)))
        .filter(|(_, dtype)| args.dtype.is_empty() || args.dtype.contains(dtype))
        .collect();
    if asked.is_empty() {
        return Err(Error::usage("none of these primitives takes that type", "`warpwright ops` lists them"));
    }
    let mut bench = Bench::new(&device, options)?;
    let mut results = Vec::new();
    let mut wrong = Vec::new();
    {
        let progress = console.steps(asked.len() as u64);
        for (entry, dtype) in asked {
            interrupt::check()?;
            progress.describe(&format!("{} {} {dtype}", entry.op, entry.direction));
            match bench.verdict(&entry, dtype) {
                None => results.push(bench.one(entry, dtype, args.launches)?),
                Some(reason) => wrong.push((entry, dtype, reason)),
            }
            progress.step(1);
        }
    }
    if let Some(path) = &args.svg {
        match bench.copy_gb_per_s {
            Some(roof) => write_whole(path, picture(&device, roof, &results).as_bytes(), true)?,
            None => console.note("--svg needs times, which the emulator has none of: --device cuda:0"),
        }
    }
    if args.json.json {
        console.json(&json!({
            "device": device.to_string(),
            "elements": elements,
            "copy_gb_per_s": bench.copy_gb_per_s,
            "results": results.iter().map(|result| result.as_json(bench.copy_gb_per_s)).collect::<Vec<_>>(),
            "wrong": wrong.iter().map(|(entry, dtype, reason)| json!({
                "op": entry.op, "direction": entry.direction.name(), "dtype": dtype.name(), "reason": reason,
            })).collect::<Vec<_>>(),
        }))?;
    } else {
        print(&bench, elements, &results, console)?;
        for (entry, dtype, reason) in &wrong {
            let text =
                format!("{} {} {dtype}: no time, the result is wrong: {reason}", entry.op, entry.direction);
            console.line(console.palette().error(&text))?;
        }
    }
    Ok(if wrong.is_empty() { Outcome::Clean } else { Outcome::Findings })
}

/// The measurements of a primitive.
enum Figures {
    Time(Measurement),
    Count(Box<Counters>),
}

impl Figures {
    fn add_to(&self, value: &mut Value) {
        match self {
            Self::Time(time) => {
                value["median_us"] = json!(time.median_us);
                value["spread"] = json!(time.spread());
                value["runs"] = json!(time.runs);
                value["host_us"] = json!(time.host_us);
            }
            Self::Count(counters) => value["counters"] = counters_json(counters),
        }
    }
}

/// One launch of a primitive by itself.
struct LaunchResult {
    entry: String,
    grid: [u32; 3],
    figures: Figures,
}

impl LaunchResult {
    fn name(&self) -> String {
        let [x, y, z] = self.grid;
        format!("  {} ({x}, {y}, {z})", self.entry)
    }

    fn as_json(&self) -> Value {
        let mut value = json!({"entry": self.entry, "grid": self.grid});
        self.figures.add_to(&mut value);
        value
    }
}

struct BenchResult {
    entry: Entry,
    dtype: DType,
    bytes: u64,
    figures: Figures,
    /// None unless they were asked for.
    launches: Vec<LaunchResult>,
}

impl BenchResult {
    fn name(&self) -> String {
        match self.entry.direction {
            warpwright_ops::Direction::Forward => format!("{} {}", self.entry.op, self.dtype),
            warpwright_ops::Direction::Backward => format!("{}_backward {}", self.entry.op, self.dtype),
        }
    }

    fn as_json(&self, roof: Option<f64>) -> Value {
        let mut value = json!({
            "op": self.entry.op,
            "direction": self.entry.direction.name(),
            "dtype": self.dtype.name(),
            "bytes": self.bytes,
        });
        self.figures.add_to(&mut value);
        if let Figures::Time(time) = &self.figures {
            let speed = time.gb_per_s(self.bytes);
            value["gb_per_s"] = json!(speed);
            value["roofline_fraction"] = json!(roof.map(|roof| speed / roof));
        }
        if !self.launches.is_empty() {
            value["launches"] = self.launches.iter().map(LaunchResult::as_json).collect();
        }
        value
    }
}

struct Bench {
    device: Device,
    stream: Stream,
    options: OpOptions,
    timer: Option<Timer>,
    /// The bandwidth of a copy; the roof of everything here, since all of it is bound by memory.
    copy_gb_per_s: Option<f64>,
}

impl Bench {
    fn new(device: &Device, options: OpOptions) -> Result<Self, Error> {
        let stream = device.stream()?;
        let mut timer = None;
        let mut copy_gb_per_s = None;
        if !device.is_emulator() {
            let mut made = Timer::new(
                &stream,
                TimerOptions { budget: Duration::from_millis(30), ..TimerOptions::default() },
            )?;
            copy_gb_per_s = Some(made.copy_bandwidth(1 << 30)?);
            timer = Some(made);
        }
        Ok(Self { device: device.clone(), stream, options, timer, copy_gb_per_s })
    }

    /// Why the primitive's result is wrong on this device, if it is: the cases of `check`.
    fn verdict(&self, entry: &Entry, dtype: DType) -> Option<String> {
        let filter = Filter {
            ops: vec![entry.op.to_owned()],
            dtypes: vec![dtype],
            direction: Some(entry.direction),
            ..Filter::default()
        };
        let list = cases(&filter);
        if list.is_empty() {
            return Some("there is no case to check it with".to_owned());
        }
        list.iter()
            .map(|case| run_case(&self.device, case))
            .find(|result| !result.ok)
            .map(|result| result.reason.unwrap_or_else(|| result.findings.join("\n")))
    }

    fn one(&mut self, entry: Entry, dtype: DType, launches: bool) -> Result<BenchResult, Error> {
        let planned = plan_named(&Request {
            op: entry.op,
            direction: entry.direction,
            dtype,
            target: self.device.target(),
            options: &self.options,
        })?;
        let tensors = self.tensors(&planned)?;
        let addresses: Vec<u64> = tensors.iter().map(|tensor| tensor.buffer().address()).collect();
        let bindings: Vec<_> = tensors.iter().map(Tensor::binding).collect();
        let steps = fitting(&planned.variants, &addresses);
        let whole = |stream: &Stream| steps.iter().try_for_each(|step| stream.launch(step, &bindings));
        let figures = match &mut self.timer {
            Some(timer) => Figures::Time(timer.measure(whole)?),
            None => self.count(whole)?,
        };
        let each = if launches { steps } else { &[] };
        let launch = |stream: &Stream, i: usize| stream.launch(&each[i], &bindings);
        let launches: Vec<Figures> = match &mut self.timer {
            Some(timer) => timer.measure_parts(each.len(), launch)?.into_iter().map(Figures::Time).collect(),
            None => {
                (0..each.len()).map(|i| self.count(|stream| launch(stream, i))).collect::<Result<_, _>>()?
            }
        };
        let launches = each.iter().zip(launches).map(|(step, figures)| {
            let entry = step.kernel().name().to_owned();
            LaunchResult { entry, grid: step.grid(), figures }
        });
        Ok(BenchResult { entry, dtype, bytes: planned.bytes(), figures, launches: launches.collect() })
    }

    fn count(&self, work: impl FnOnce(&Stream) -> Result<(), DeviceError>) -> Result<Figures, Error> {
        // What earlier work counted.
        let _ = self.device.counters();
        work(&self.stream)?;
        Ok(Figures::Count(Box::new(self.device.counters().unwrap_or_default())))
    }

    /// Inputs with contents that do not repeat within a cache, outputs with none.
    fn tensors(&self, planned: &Planned) -> Result<Vec<Tensor>, Error> {
        let mut tensors = Vec::with_capacity(planned.tensors.len());
        for spec in &planned.tensors {
            tensors.push(match spec.access {
                Access::Write => Tensor::empty(&self.device, spec.dtype, &[spec.len])?,
                Access::Read => Tensor::from_bytes(
                    &self.device,
                    spec.dtype,
                    &contents(spec.dtype, spec.len),
                    &[spec.len],
                )?,
            });
        }
        Ok(tensors)
    }
}

/// The first variant whose alignment the addresses have.
fn fitting<'a>(variants: &'a [Variant], addresses: &[u64]) -> &'a [LaunchStep] {
    let fits = |variant: &&Variant| addresses.iter().all(|at| at.is_multiple_of(variant.alignment.max(1)));
    variants.iter().find(fits).map(|variant| variant.steps.as_slice()).unwrap_or_default()
}

/// Numbers between -3 and 3, or codes; a million different ones, then again.
fn contents(dtype: DType, len: usize) -> Vec<u8> {
    const PERIOD: usize = 1 << 20;
    let mut state = 1u64;
    let mut pattern = Vec::new();
    for _ in 0..len.min(PERIOD) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = (state >> 40) as f64 / 16_777_216.0;
        if DType::FLOATS.contains(&dtype) {
            floats::push(&mut pattern, random * 6.0 - 3.0, dtype);
        } else {
            pattern.extend(std::iter::repeat_n((state >> 56) as u8, dtype.bytes()));
        }
    }
    let mut bytes = Vec::with_capacity(len * dtype.bytes());
    while bytes.len() < len * dtype.bytes() {
        let room = len * dtype.bytes() - bytes.len();
        bytes.extend_from_slice(&pattern[..room.min(pattern.len())]);
    }
    bytes
}

fn print(
    bench: &Bench,
    elements: usize,
    results: &[BenchResult],
    console: &mut Console,
) -> Result<(), Error> {
    let Some(roof) = bench.copy_gb_per_s else {
        console.line(format_args!(
            "{}: the emulator has no times; these are counters of {elements} elements, which are the same on every machine\n",
            bench.device
        ))?;
        let mut table = console.table(&[
            ("op", Align::Left),
            ("warp instr.", Align::Right),
            ("instr./element", Align::Right),
            ("bytes", Align::Right),
            ("sectors", Align::Right),
            ("of ideal", Align::Right),
            ("bank conflicts", Align::Right),
            ("divergent", Align::Right),
        ]);
        let mut row = |name: String, figures: &Figures| {
            let Figures::Count(counters) = figures else { return };
            let (loads, stores) = (counters.global_loads, counters.global_stores);
            let (sectors, ideal) =
                (loads.sectors + stores.sectors, loads.ideal_sectors + stores.ideal_sectors);
            table.row([
                name,
                counters.total_warp_instructions().to_string(),
                format!("{:.1}", counters.total_lane_instructions() as f64 / elements as f64),
                (loads.bytes + stores.bytes).to_string(),
                sectors.to_string(),
                format!("{:.2}x", sectors as f64 / ideal.max(1) as f64),
                (counters.shared_loads.bank_conflicts() + counters.shared_stores.bank_conflicts())
                    .to_string(),
                counters.divergent_branches.to_string(),
            ]);
        };
        for result in results {
            row(result.name(), &result.figures);
            result.launches.iter().for_each(|launch| row(launch.name(), &launch.figures));
        }
        return console.line(table);
    };
    console.line(format_args!("{}: {elements} elements; a copy reaches {roof:.0} GB/s\n", bench.device))?;
    let mut table = console.table(&[
        ("op", Align::Left),
        ("median", Align::Right),
        ("spread", Align::Right),
        ("GB/s", Align::Right),
        ("of copy", Align::Right),
        ("host", Align::Right),
    ]);
    let mut row = |name: String, figures: &Figures, bytes: Option<u64>| {
        let Figures::Time(time) = figures else { return };
        let speed = bytes.map(|bytes| time.gb_per_s(bytes));
        table.row([
            name,
            format!("{:.1} us", time.median_us),
            format!("{:.1} %", time.spread() * 100.0),
            speed.map(|speed| format!("{speed:.0}")).unwrap_or_default(),
            speed.map(|speed| format!("{:.1} %", speed / roof * 100.0)).unwrap_or_default(),
            format!("{:.1} us", time.host_us),
        ]);
    };
    for result in results {
        row(result.name(), &result.figures, Some(result.bytes));
        result.launches.iter().for_each(|launch| row(launch.name(), &launch.figures, None));
    }
    console.line(table)
}

/// A bar per result under the bandwidth of a copy.
fn picture(device: &Device, roof: f64, results: &[BenchResult]) -> String {
    const ROW: f64 = 20.0;
    const NAME: f64 = 230.0;
    const PANEL: f64 = 560.0;
    const TOP: f64 = 56.0;
    let height = TOP + ROW * results.len() as f64 + 12.0;
    let fastest = results.iter().filter_map(|result| match &result.figures {
        Figures::Time(time) => Some(time.gb_per_s(result.bytes)),
        Figures::Count(_) => None,
    });
    let most = fastest.fold(roof, f64::max) * 1.02;
    let at = |speed: f64| NAME + PANEL * speed / most;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 860 {height}\" role=\"img\" \
         aria-label=\"Bandwidth of every primitive beside that of a copy\">\n<style>\
         :root{{color-scheme:light dark}} svg{{font:12px system-ui,sans-serif;background:#fff}} text{{fill:#1c2024}} \
         .bar{{fill:#2f6fde}} .roof{{stroke:#c2410c;stroke-width:2;stroke-dasharray:5 3}} .dim{{fill:#667078}} \
         @media (prefers-color-scheme:dark){{svg{{background:#14171a}} text{{fill:#e6e9ec}} .bar{{fill:#6ea0ff}} \
         .roof{{stroke:#fb923c}} .dim{{fill:#98a2ab}}}}</style>\n\
         <text x=\"12\" y=\"20\">{device}</text>\n\
         <text class=\"dim\" x=\"{:.1}\" y=\"44\" text-anchor=\"end\">a copy: {roof:.0} GB/s</text>\n",
        at(roof)
    );
    for (row, result) in results.iter().enumerate() {
        let Figures::Time(time) = &result.figures else { continue };
        let speed = time.gb_per_s(result.bytes);
        let top = TOP + ROW * row as f64;
        // Writing to a String cannot fail.
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"bar\" x=\"{NAME}\" y=\"{:.1}\" width=\"{:.1}\" height=\"12\"/>\
             <text class=\"dim\" x=\"{:.1}\" y=\"{:.1}\">{:.0} %</text>",
            NAME - 8.0,
            top + 13.0,
            result.name(),
            top + 3.0,
            PANEL * speed / most,
            NAME + PANEL + 14.0,
            top + 13.0,
            speed / roof * 100.0,
        );
    }
    let _ = writeln!(
        svg,
        "<line class=\"roof\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{1:.1}\" y2=\"{2:.1}\"/>\n</svg>",
        at(roof),
        TOP - 4.0,
        height - 8.0
    );
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_fill_every_type_and_stay_finite() {
        for &dtype in DType::ALL {
            let bytes = contents(dtype, 1000);
            assert_eq!(bytes.len(), 1000 * dtype.bytes());
            assert_eq!(floats::first_nonfinite(&bytes, dtype), None);
        }
        let long = contents(DType::U8, (1 << 20) + 5);
        assert_eq!(long[1 << 20..], long[..5]);
        assert!(contents(DType::F32, 0).is_empty());
    }
}
