//! Timing launches on a GPU: CUDA events around each run, the L2 cache flushed before it, medians and spread.
//!
//! Before every run 256 MB are written and then another 256 MB read, so that neither the inputs of a run nor dirty lines
//! of the flush are in the cache when its clock starts. The flush is also the backlog that hides the host: while the GPU
//! works on it, the host enqueues the run; where the host needs longer than a flush takes, more reads are put in front.
//! The emulator has no device time, so everything here is [`Error::NotSupported`] there.

use std::time::{Duration, Instant};

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{
    Address, ArgValue, Axis, BinaryOp, Block, CacheHints, Function, Inst, Instruction, Modifiers, Module,
    Operand, Ordering, Param, PtxVersion, Reg, RegKind, ScalarType, SpecialReg, StateSpace, Symbol, Target,
    Terminator, TernaryOp,
};

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::launch::LaunchStep;
use crate::stream::{Event, Stream};

/// Bytes written, and bytes read, to flush the L2 cache: several times the largest one.
const FLUSH_BYTES: u64 = 256 << 20;
/// Reads in front of a run at most, to hide the host.
const MAX_COVER: u32 = 24;
const THREADS: u32 = 256;
const VECTOR_BYTES: u64 = 16;

/// How long and how often to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimerOptions {
    /// Whether to flush the L2 cache before every run; without it the inputs are as warm as the last run left them.
    pub flush: bool,
    /// Runs before the first measured one.
    pub warm_up: u32,
    /// Fewest measured runs.
    pub min_runs: u32,
    /// Most measured runs.
    pub max_runs: u32,
    /// Device time to spend on measured runs, between those bounds.
    pub budget: Duration,
}

impl Default for TimerOptions {
    fn default() -> Self {
        Self { flush: true, warm_up: 2, min_runs: 5, max_runs: 150, budget: Duration::from_millis(50) }
    }
}

/// Times of one piece of work, in microseconds.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Measurement {
    /// Half of the runs were faster.
    pub median_us: f64,
    /// The fastest run.
    pub min_us: f64,
    /// A quarter of the runs were faster.
    pub lower_us: f64,
    /// Three quarters of the runs were faster.
    pub upper_us: f64,
    /// How many runs.
    pub runs: usize,
    /// Host time to enqueue one run.
    pub host_us: f64,
}

impl Measurement {
    /// From the times of single runs; `None` if there are none.
    fn new(mut times: Vec<f64>, host_us: f64) -> Option<Self> {
        times.sort_by(f64::total_cmp);
        let at = |q: f64| quantile(&times, q);
        Some(Self {
            median_us: at(0.5)?,
            min_us: at(0.0)?,
            lower_us: at(0.25)?,
            upper_us: at(0.75)?,
            runs: times.len(),
            host_us,
        })
    }

    /// Gigabytes per second if a run moves `bytes`.
    pub fn gb_per_s(&self, bytes: u64) -> f64 {
        bytes as f64 / self.median_us / 1e3
    }

    /// TFLOP/s if a run does `operations`.
    pub fn tflops(&self, operations: f64) -> f64 {
        operations / self.median_us / 1e6
    }

    /// Spread: the distance between the quartiles as a fraction of the median.
    pub fn spread(&self) -> f64 {
        (self.upper_us - self.lower_us) / self.median_us
    }
}

/// The quantile `q` of sorted values, interpolated.
fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let position = q * (sorted.len().checked_sub(1)?) as f64;
    let (below, above) = (position.floor() as usize, position.ceil() as usize);
    Some(sorted[below] + (sorted[above] - sorted[below]) * position.fract())
}

/// Measures work on one stream. Holds 512 MB of device memory for the flush.
#[derive(Debug)]
pub struct Timer {
    stream: Stream,
    options: TimerOptions,
    written: Buffer,
    read: Buffer,
    reader: LaunchStep,
}

impl Timer {
    /// A timer for work on `stream`.
    ///
    /// # Errors
    /// [`Error::NotSupported`] on the emulator; [`Error::OutOfMemory`].
    pub fn new(stream: &Stream, options: TimerOptions) -> Result<Self> {
        let device = stream.device();
        if device.is_emulator() {
            return Err(Error::NotSupported { what: "timing", device: device.id() });
        }
        let written = device.alloc(FLUSH_BYTES)?;
        let mut read = device.alloc(FLUSH_BYTES)?;
        stream.fill(&mut read, 0, 0, FLUSH_BYTES)?;
        let slot = ArgValue::Slot { slot: 0, offset: 0 };
        let reader = LaunchStep::new(read_kernel()?, vector_grid(FLUSH_BYTES)?, vec![slot]);
        reader.warm_up(device)?;
        stream.synchronize()?;
        Ok(Self { stream: stream.clone(), options, written, read, reader })
    }

    fn flush(&mut self, cover: u32) -> Result<()> {
        self.stream.fill(&mut self.written, 0, 0, FLUSH_BYTES)?;
        (0..cover).try_for_each(|_| self.stream.launch(&self.reader, &[self.read.binding()]))
    }

    /// Times `work`, which enqueues one run on the stream.
    ///
    /// # Errors
    /// The error of `work`; [`Error::Fault`] if a kernel failed.
    pub fn measure(&mut self, mut work: impl FnMut(&Stream) -> Result<()>) -> Result<Measurement> {
        self.measure_parts(1, |stream, _| work(stream))?.pop().ok_or_else(|| self.unsupported())
    }

    /// Times each of the `parts` of a run: `work` enqueues the part with this index on the stream. Parts follow one another
    /// as in a whole run, so that each finds in the cache what those before it left there. An event lies between two of
    /// them: launches that would overlap do not, and the sum can be more than the time of the whole.
    ///
    /// # Errors
    /// As [`Timer::measure`].
    pub fn measure_parts(
        &mut self,
        parts: usize,
        mut work: impl FnMut(&Stream, usize) -> Result<()>,
    ) -> Result<Vec<Measurement>> {
        let stream = self.stream.clone();
        for _ in 0..self.options.warm_up {
            (0..parts).try_for_each(|part| work(&stream, part))?;
        }
        stream.synchronize()?;
        let start = stream.record()?;
        let mut host_us = Vec::with_capacity(parts);
        for part in 0..parts {
            let host = Instant::now();
            work(&stream, part)?;
            host_us.push(host.elapsed().as_secs_f64() * 1e6);
        }
        let end = stream.record()?;
        let estimate_us = device_us(&start, &end)?.max(1.0);

        // One flush is about 110 us of backlog, one more read 60 us (on the fastest memory of today).
        let enqueued_us: f64 = host_us.iter().sum();
        let cover = ((enqueued_us * 1.6 - 60.0) / 60.0).ceil().clamp(1.0, f64::from(MAX_COVER)) as u32;
        let wanted = self.options.budget.as_secs_f64() * 1e6 / estimate_us;
        let runs = wanted.clamp(f64::from(self.options.min_runs), f64::from(self.options.max_runs)) as usize;

        let mut events = Vec::with_capacity(runs);
        for _ in 0..runs.max(1) {
            let marks: Vec<_> = (0..=parts).map(|_| Event::new(stream.device())).collect::<Result<_>>()?;
            events.push(marks);
        }
        for marks in &events {
            if self.options.flush {
                self.flush(cover)?;
            }
            for (part, mark) in marks.iter().enumerate() {
                mark.record(&stream)?;
                if part < parts {
                    work(&stream, part)?;
                }
            }
        }
        stream.synchronize()?;
        let measured = |(part, host_us): (usize, f64)| {
            let times = events.iter().map(|marks| device_us(&marks[part], &marks[part + 1]));
            Measurement::new(times.collect::<Result<_>>()?, host_us).ok_or_else(|| self.unsupported())
        };
        host_us.into_iter().enumerate().map(measured).collect()
    }

    /// Times `work` inside a graph of `copies` of it, without flush: the cost of one run without that of its launch. For
    /// work of a few microseconds, where events around single launches measure the launch.
    ///
    /// # Errors
    /// As [`Timer::measure`], and those of [`Stream::capture`].
    pub fn measure_in_graph(
        &mut self,
        copies: u32,
        mut work: impl FnMut(&Stream) -> Result<()>,
    ) -> Result<Measurement> {
        let copies = copies.max(1);
        work(&self.stream)?;
        self.stream.synchronize()?;
        let graph = self.stream.capture(|s| (0..copies).try_for_each(|_| work(s)))?;
        let options = self.options;
        self.options.flush = false;
        let measured = self.measure(|s| graph.launch(s));
        self.options = options;
        let m = measured?;
        let each = |us: f64| us / f64::from(copies);
        Ok(Measurement {
            median_us: each(m.median_us),
            min_us: each(m.min_us),
            lower_us: each(m.lower_us),
            upper_us: each(m.upper_us),
            host_us: each(m.host_us),
            ..m
        })
    }

    /// Bandwidth of a plain copy of `bytes` (rounded up to 4 KiB) in GB/s, reads and writes counted: the roofline of
    /// work that is bound by memory, measured beside it.
    ///
    /// # Errors
    /// As [`Timer::measure`]; [`Error::OutOfMemory`].
    pub fn copy_bandwidth(&mut self, bytes: u64) -> Result<f64> {
        let bytes = bytes.max(1).next_multiple_of(u64::from(THREADS) * VECTOR_BYTES);
        let device = self.stream.device().clone();
        let (mut source, target) = (device.alloc(bytes)?, device.alloc(bytes)?);
        self.stream.fill(&mut source, 0, 1, bytes)?;
        let args = (0..2).map(|slot| ArgValue::Slot { slot, offset: 0 }).collect();
        let step = LaunchStep::new(copy_kernel()?, vector_grid(bytes)?, args);
        let bindings = [source.binding(), target.binding()];
        Ok(self.measure(|s| s.launch(&step, &bindings))?.gb_per_s(2 * bytes))
    }

    fn unsupported(&self) -> Error {
        Error::NotSupported { what: "timing", device: self.stream.device().id() }
    }
}

fn device_us(start: &Event, end: &Event) -> Result<f64> {
    Ok(start.elapsed_us(end)?.unwrap_or(f64::NAN))
}

/// A grid with one thread per vector.
fn vector_grid(bytes: u64) -> Result<[u32; 3]> {
    let blocks = bytes / (u64::from(THREADS) * VECTOR_BYTES);
    let shape = || [usize::try_from(bytes).unwrap_or(usize::MAX)].into();
    let x = u32::try_from(blocks).map_err(|_| Error::Overflow {
        op: "timing",
        argument: "bytes",
        shape: shape(),
    })?;
    Ok([x, 1, 1])
}

/// Reads one vector a thread and drops it; volatile, so that the assembler keeps the load.
fn read_kernel() -> Result<Kernel> {
    vector_kernel("warpwright_read", &["source"], |f, pointers| {
        let values: Vec<Reg> = (0..4).map(|_| f.new_reg(ScalarType::U32, RegKind::Value)).collect();
        vec![load(pointers[0], &values, Ordering::VOLATILE)]
    })
}

/// Copies one vector a thread: the fastest plain copy there is.
fn copy_kernel() -> Result<Kernel> {
    vector_kernel("warpwright_copy", &["source", "target"], |f, pointers| {
        let values: Vec<Reg> = (0..4).map(|_| f.new_reg(ScalarType::U32, RegKind::Value)).collect();
        let store = Inst::St {
            space: StateSpace::Global,
            ty: ScalarType::U32,
            ordering: Ordering::WEAK,
            hints: CacheHints::NONE,
            srcs: values.iter().map(|v| Operand::Reg(*v)).collect(),
            addr: Address::reg(pointers[1], 0),
        };
        vec![load(pointers[0], &values, Ordering::WEAK), store]
    })
}

fn load(pointer: Reg, values: &[Reg], ordering: Ordering) -> Inst {
    Inst::Ld {
        space: StateSpace::Global,
        ty: ScalarType::U32,
        ordering,
        hints: CacheHints::NONE,
        non_coherent: false,
        dsts: values.iter().map(|v| Some(*v)).collect(),
        addr: Address::reg(pointer, 0),
    }
}

/// A kernel whose threads each have a pointer to their own vector of every parameter, and run `body` on them.
fn vector_kernel(
    name: &str,
    params: &[&str],
    body: impl FnOnce(&mut Function, &[Reg]) -> Vec<Inst>,
) -> Result<Kernel> {
    let mut f = Function::entry(name);
    f.params = params.iter().map(|p| Param::scalar(*p, ScalarType::U64)).collect();
    f.directives.required_threads = Some([THREADS, 1, 1]);
    let word = |f: &mut Function| f.new_reg(ScalarType::U32, RegKind::Value);
    let (thread, block, index) = (word(&mut f), word(&mut f), word(&mut f));
    let long = |f: &mut Function| f.new_reg(ScalarType::U64, RegKind::Value);
    let offset = long(&mut f);
    let special = |dst, which| Inst::Mov { ty: ScalarType::U32, dst, src: Operand::Special(which) };
    let mut code = vec![
        special(thread, SpecialReg::Tid(Axis::X)),
        special(block, SpecialReg::Ctaid(Axis::X)),
        Inst::Ternary {
            op: TernaryOp::MadLo,
            ty: ScalarType::U32,
            mods: Modifiers::NONE,
            dst: index,
            a: block.into(),
            b: Operand::int(i64::from(THREADS)),
            c: thread.into(),
        },
        Inst::Binary {
            op: BinaryOp::MulWide,
            ty: ScalarType::U32,
            mods: Modifiers::NONE,
            dst: offset,
            a: index.into(),
            b: Operand::int(VECTOR_BYTES as i64),
        },
    ];
    let mut pointers = Vec::new();
    for param in 0..f.params.len() {
        let (base, pointer) = (long(&mut f), long(&mut f));
        let symbol = f.symbol(Symbol::Param(u32::try_from(param).unwrap_or(u32::MAX)));
        code.push(Inst::Ld {
            space: StateSpace::Param,
            ty: ScalarType::U64,
            ordering: Ordering::WEAK,
            hints: CacheHints::NONE,
            non_coherent: false,
            dsts: vec![Some(base)],
            addr: Address::symbol(symbol, 0),
        });
        code.push(Inst::Binary {
            op: BinaryOp::Add,
            ty: ScalarType::U64,
            mods: Modifiers::NONE,
            dst: pointer,
            a: base.into(),
            b: offset.into(),
        });
        pointers.push(pointer);
    }
    code.extend(body(&mut f, &pointers));
    f.blocks.push(Block {
        instructions: code.into_iter().map(Instruction::from).collect(),
        terminator: Terminator::Ret,
        locations: Vec::new(),
    });
    let mut module = Module::new(PtxVersion::new(6, 3), Target::sm(75));
    module.functions.push(f);
    Ok(Kernel::new(module)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn quantiles_interpolate() {
        let m = Measurement::new(vec![4.0, 1.0, 2.0, 3.0, 100.0], 7.0).expect("five times");
        assert_eq!((m.median_us, m.min_us, m.lower_us, m.upper_us, m.runs), (3.0, 1.0, 2.0, 4.0, 5));
        assert_eq!(m.spread(), 2.0 / 3.0);
        assert_eq!(m.gb_per_s(3000), 1.0);
        assert_eq!(m.tflops(3e6), 1.0);
        let even = Measurement::new(vec![1.0, 2.0], 0.0).expect("two times");
        assert_eq!(even.median_us, 1.5);
        assert_eq!(Measurement::new(vec![], 0.0), None);
    }

    #[test]
    fn the_emulator_is_not_timed() {
        let stream = Device::emulator().stream().expect("stream");
        let refused = Timer::new(&stream, TimerOptions::default());
        assert!(matches!(refused, Err(Error::NotSupported { what: "timing", .. })));
    }

    #[test]
    fn the_copy_copies_and_the_reader_reads() {
        let device = Device::emulator();
        let stream = device.stream().expect("stream");
        let bytes = 3 * u64::from(THREADS) * VECTOR_BYTES;
        let data: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
        let (mut source, target) =
            (device.alloc(bytes).expect("source"), device.alloc(bytes).expect("target"));
        source.write(0, &data).expect("write");
        let grid = vector_grid(bytes).expect("grid");
        assert_eq!(grid, [3, 1, 1]);
        let args: Vec<_> = (0..2).map(|slot| ArgValue::Slot { slot, offset: 0 }).collect();
        let read = LaunchStep::new(read_kernel().expect("kernel"), grid, args[..1].to_vec());
        stream.launch(&read, &[source.binding()]).expect("read");
        let copy = LaunchStep::new(copy_kernel().expect("kernel"), grid, args);
        stream.launch(&copy, &[source.binding(), target.binding()]).expect("copy");
        let mut back = vec![0; data.len()];
        target.read(0, &mut back).expect("read back");
        assert!(back == data, "the copy differs");
    }
}
