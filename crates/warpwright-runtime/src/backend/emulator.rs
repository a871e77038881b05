//! The emulator as a backend: launches run when they are enqueued, and memory is the emulator's.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering as AtomicOrdering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use warpwright_emu::report::Severity;
use warpwright_emu::{
    Counters, Entry, Finding, Interrupt, LaunchConfig, LaunchError, Memory, MemoryError, Options, Program,
    launch as emulate,
};
use warpwright_ptx::SourceLoc;
use warpwright_ptx::isa::DeviceLimits;
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::tensor_map::{TENSOR_MAP_BYTES, TensorMap};

use super::{
    Backend, EventHandle, FunctionHandle, GraphHandle, LoadedFunction, Ordering, Pattern, RawLaunch,
    StreamHandle,
};
use crate::cache::DiskCache;
use crate::device::{DeviceId, EmulatorConfig, MemoryInfo, OnFinding, Properties};
use crate::error::{Error, Result, SanitizerFailure};
use crate::launch::KernelInfo;

/// A kernel that the emulator has decoded.
#[derive(Debug)]
struct Function {
    program: Program,
    kernel: Kernel,
}

/// One operation of a captured graph.
#[derive(Clone, Debug)]
enum Step {
    Launch {
        function: Arc<Function>,
        config: LaunchConfig,
        params: Vec<u8>,
    },
    Copy {
        target: u64,
        source: u64,
        bytes: u64,
    },
    Fill {
        target: u64,
        pattern: Pattern,
        count: u64,
    },
    /// Recording or waiting for an event: nothing to do where every operation has finished when the next one starts.
    Event,
}

/// Everything behind a handle.
#[derive(Debug, Default)]
struct Objects {
    /// Captures in progress.
    captures: HashMap<u64, Vec<Step>>,
    graphs: HashMap<u64, Arc<[Step]>>,
    /// Of the streams that have one of their own.
    interrupts: HashMap<u64, Interrupt>,
    sizes: HashMap<u64, u64>,
    used: u64,
}

/// One emulated device.
#[derive(Debug)]
pub(crate) struct EmulatorBackend {
    properties: Properties,
    config: EmulatorConfig,
    memory: Memory,
    /// Makes handles; 0 is never one.
    next: AtomicU64,
    functions: RwLock<HashMap<u64, Arc<Function>>>,
    objects: Mutex<Objects>,
    findings: Mutex<Vec<Finding>>,
    counters: Mutex<Counters>,
}

impl EmulatorBackend {
    pub(crate) fn new(number: u32, config: EmulatorConfig) -> Self {
        Self {
            properties: properties(number, &config),
            config,
            memory: Memory::new(),
            next: AtomicU64::new(1),
            functions: RwLock::default(),
            objects: Mutex::default(),
            findings: Mutex::default(),
            counters: Mutex::default(),
        }
    }

    fn handle(&self) -> u64 {
        self.next.fetch_add(1, AtomicOrdering::Relaxed)
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the step now, or adds it to the capture that the stream is in.
    fn submit(&self, stream: &StreamHandle, step: Step) -> Result<()> {
        let interrupt = {
            let mut objects = self.objects();
            if let Some(steps) = objects.captures.get_mut(&stream.0) {
                steps.push(step);
                return Ok(());
            }
            objects.interrupts.get(&stream.0).cloned()
        };
        self.run(&step, interrupt.as_ref())
    }

    fn run(&self, step: &Step, interrupt: Option<&Interrupt>) -> Result<()> {
        match step {
            Step::Launch { function, config, params } => self.run_kernel(function, config, params, interrupt),
            Step::Copy { target, source, bytes } => {
                self.memory.copy(*target, *source, *bytes).map_err(|e| self.memory_error(e, "copy"))
            }
            Step::Fill { target, pattern, count } => {
                let filled = match pattern {
                    Pattern::Byte(value) => self.memory.fill(*target, *value, *count),
                    Pattern::Half(value) => self.repeat(*target, value.to_ne_bytes(), *count),
                    Pattern::Word(value) => self.repeat(*target, value.to_ne_bytes(), *count),
                    Pattern::Double(value) => self.repeat(*target, value.to_ne_bytes(), *count),
                };
                filled.map_err(|e| self.memory_error(e, "fill"))
            }
            Step::Event => Ok(()),
        }
    }

    /// Writes `count` times `element`.
    fn repeat<const N: usize>(&self, target: u64, element: [u8; N], count: u64) -> Result<(), MemoryError> {
        const CHUNK: u64 = 1 << 13;
        let chunk = element.repeat(count.min(CHUNK) as usize);
        let mut done = 0;
        while done < count {
            let more = CHUNK.min(count - done);
            self.memory.write(target + done * N as u64, &chunk[..more as usize * N])?;
            done += more;
        }
        Ok(())
    }

    fn run_kernel(
        &self,
        function: &Function,
        config: &LaunchConfig,
        params: &[u8],
        interrupt: Option<&Interrupt>,
    ) -> Result<()> {
        let c = &self.config;
        let options = Options {
            sanitizers: c.sanitizers,
            counters: c.counters,
            threads: c.threads,
            seed: c.seed,
            max_findings: c.max_findings,
            max_steps: c.max_steps,
            deadline: c.deadline,
            interrupt: interrupt.or(c.interrupt.as_ref()).cloned(),
            ..Options::default()
        };
        let kernel = &function.kernel;
        let outcome = emulate(&function.program, kernel.name(), config, params, &self.memory, &options);
        let (report, stopped) = match outcome {
            Ok(report) => (report, None),
            Err(LaunchError::Fault { kernel, fault, mut report }) => {
                let found = std::mem::take(&mut *report);
                (found, Some(LaunchError::Fault { kernel, fault, report }))
            }
            Err(error) => return Err(Error::Emulator(Box::new(error))),
        };
        if c.counters {
            *self.counters.lock().unwrap_or_else(PoisonError::into_inner) += &report.counters;
        }
        let failure = self.failure(kernel, &report.findings);
        self.findings.lock().unwrap_or_else(PoisonError::into_inner).extend(report.findings);
        match (failure, stopped) {
            (Some(error), _) => Err(error),
            (None, Some(stopped)) => Err(Error::Emulator(Box::new(stopped))),
            (None, None) => Ok(()),
        }
    }

    fn failure(&self, kernel: &Kernel, findings: &[Finding]) -> Option<Error> {
        if self.config.on_finding == OnFinding::Collect {
            return None;
        }
        let mut errors = findings.iter().filter(|f| f.severity == Severity::Error);
        let first = errors.next()?;
        let lines: Option<&[SourceLoc]> = Some(kernel.lines());
        Some(Error::Sanitizer(Box::new(SanitizerFailure {
            kernel: kernel.name().to_owned(),
            finding: first.render(lines, kernel.text()),
            count: 1 + errors.count(),
        })))
    }

    /// Ranges are checked against the buffers before they come here.
    fn memory_error(&self, source: MemoryError, call: &'static str) -> Error {
        Error::HostAccess { call, device: self.properties.id, source }
    }
}

impl Backend for EmulatorBackend {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let total = self.properties.memory;
        Ok(MemoryInfo { free: total.saturating_sub(self.objects().used), total })
    }

    fn allocate(&self, bytes: u64, label: &str, _order: Ordering<'_>) -> Result<u64> {
        let total = self.properties.memory;
        let refuse = |used: u64| Error::OutOfMemory {
            device: self.properties.id,
            requested: bytes,
            free: total.saturating_sub(used),
            total,
        };
        let mut objects = self.objects();
        let used =
            objects.used.checked_add(bytes).filter(|n| *n <= total).ok_or_else(|| refuse(objects.used))?;
        let address = self.memory.alloc(bytes, label).map_err(|_| refuse(objects.used))?;
        objects.used = used;
        objects.sizes.insert(address, bytes);
        Ok(address)
    }

    fn free(&self, address: u64, _order: Ordering<'_>) {
        let mut objects = self.objects();
        if let Some(bytes) = objects.sizes.remove(&address) {
            objects.used -= bytes;
            // The address is one that `alloc` returned and that has not been freed since.
            let _ = self.memory.free(address);
        }
    }

    fn load(&self, kernel: &Kernel, _disk: Option<&DiskCache>) -> Result<LoadedFunction> {
        let program = Program::load(kernel.text())
            .map_err(|e| Error::Load { kernel: kernel.name().to_owned(), source: Box::new(e) })?;
        let shared = program.entry(kernel.name()).map_or(0, Entry::static_shared_bytes);
        let info = KernelInfo {
            shared_bytes: u32::try_from(shared).unwrap_or(u32::MAX),
            max_threads: self.properties.max_threads,
            ..KernelInfo::default()
        };
        let handle = self.handle();
        let function = Arc::new(Function { program, kernel: kernel.clone() });
        self.functions.write().unwrap_or_else(PoisonError::into_inner).insert(handle, function);
        Ok(LoadedFunction { handle: FunctionHandle(handle), info, from_disk: false })
    }

    fn unload(&self, function: FunctionHandle) {
        self.functions.write().unwrap_or_else(PoisonError::into_inner).remove(&function.0);
    }

    fn allow_dynamic_shared(&self, _function: &FunctionHandle, _bytes: u32) -> Result<()> {
        Ok(())
    }

    fn create_stream(&self) -> Result<StreamHandle> {
        Ok(StreamHandle(self.handle()))
    }

    fn destroy_stream(&self, stream: StreamHandle) {
        let mut objects = self.objects();
        objects.captures.remove(&stream.0);
        objects.interrupts.remove(&stream.0);
    }

    fn set_interrupt(&self, stream: &StreamHandle, interrupt: Option<Interrupt>) {
        let mut objects = self.objects();
        match interrupt {
            Some(interrupt) => objects.interrupts.insert(stream.0, interrupt),
            None => objects.interrupts.remove(&stream.0),
        };
    }

    fn synchronize(&self, _stream: &StreamHandle) -> Result<()> {
        Ok(())
    }

    fn synchronize_device(&self) -> Result<()> {
        Ok(())
    }

    fn is_idle(&self, _stream: &StreamHandle) -> Result<bool> {
        Ok(true)
    }

    fn launch(&self, stream: &StreamHandle, function: &FunctionHandle, launch: RawLaunch<'_>) -> Result<()> {
        let functions = self.functions.read().unwrap_or_else(PoisonError::into_inner);
        let Some(function) = functions.get(&function.0).cloned() else {
            return Err(Error::NotSupported {
                what: "a kernel that is not loaded",
                device: self.properties.id,
            });
        };
        drop(functions);
        let config = LaunchConfig {
            grid: launch.grid,
            block: launch.block,
            dynamic_shared: launch.dynamic_shared,
            cluster: launch.cluster,
        };
        self.submit(stream, Step::Launch { function, config, params: launch.params.to_vec() })
    }

    fn encode_tensor_map(&self, map: &TensorMap) -> Result<[u8; TENSOR_MAP_BYTES]> {
        Ok(map.encode())
    }

    fn copy_to_device(&self, _stream: &StreamHandle, target: u64, source: &[u8]) -> Result<()> {
        self.memory.write(target, source).map_err(|e| self.memory_error(e, "copy_to_device"))
    }

    fn copy_to_host(&self, _stream: &StreamHandle, target: &mut [u8], source: u64) -> Result<()> {
        self.memory.read(source, target).map_err(|e| self.memory_error(e, "copy_to_host"))
    }

    fn copy_on_device(&self, stream: &StreamHandle, target: u64, source: u64, bytes: u64) -> Result<()> {
        self.submit(stream, Step::Copy { target, source, bytes })
    }

    fn fill(&self, stream: &StreamHandle, target: u64, pattern: Pattern, count: u64) -> Result<()> {
        self.submit(stream, Step::Fill { target, pattern, count })
    }

    fn create_event(&self) -> Result<EventHandle> {
        Ok(EventHandle(self.handle()))
    }

    fn destroy_event(&self, _event: EventHandle) {}

    fn record_event(&self, _event: &EventHandle, stream: &StreamHandle) -> Result<()> {
        self.submit(stream, Step::Event)
    }

    fn synchronize_event(&self, _event: &EventHandle) -> Result<()> {
        Ok(())
    }

    fn wait_event(&self, stream: &StreamHandle, _event: &EventHandle) -> Result<()> {
        self.submit(stream, Step::Event)
    }

    fn elapsed_us(&self, _start: &EventHandle, _end: &EventHandle) -> Result<Option<f64>> {
        Ok(None)
    }

    fn begin_capture(&self, stream: &StreamHandle) -> Result<()> {
        self.objects().captures.insert(stream.0, Vec::new());
        Ok(())
    }

    fn end_capture(&self, stream: &StreamHandle, keep: bool) -> Result<Option<GraphHandle>> {
        let handle = self.handle();
        let mut objects = self.objects();
        let Some(steps) = objects.captures.remove(&stream.0).filter(|_| keep) else { return Ok(None) };
        objects.graphs.insert(handle, steps.into());
        Ok(Some(GraphHandle(handle)))
    }

    fn launch_graph(&self, graph: &GraphHandle, stream: &StreamHandle) -> Result<()> {
        let (steps, interrupt) = {
            let objects = self.objects();
            (objects.graphs.get(&graph.0).cloned(), objects.interrupts.get(&stream.0).cloned())
        };
        steps.iter().flat_map(|s| s.iter()).try_for_each(|step| self.run(step, interrupt.as_ref()))
    }

    fn graph_nodes(&self, graph: &GraphHandle) -> usize {
        let is_node = |step: &&Step| !matches!(step, Step::Event);
        self.objects().graphs.get(&graph.0).map_or(0, |steps| steps.iter().filter(is_node).count())
    }

    fn destroy_graph(&self, graph: GraphHandle) {
        self.objects().graphs.remove(&graph.0);
    }

    fn take_findings(&self) -> Vec<Finding> {
        std::mem::take(&mut *self.findings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn take_counters(&self) -> Option<Counters> {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        self.config.counters.then(|| std::mem::take(&mut *counters))
    }
}

/// Megabytes of L2 cache of the largest device of an architecture.
const fn l2_megabytes(sm: u32) -> u64 {
    match sm {
        80 => 40,
        87 => 4,
        89 => 96,
        90 => 50,
        100 | 103 => 126,
        110 => 32,
        120 | 121 => 128,
        _ => 6,
    }
}

fn properties(number: u32, config: &EmulatorConfig) -> Properties {
    let device = DeviceLimits::of(config.target);
    Properties {
        id: DeviceId::Emulator(number),
        name: format!("emulator ({})", config.target),
        target: config.target,
        multiprocessors: device.multiprocessors,
        max_threads: DeviceLimits::BLOCK_THREADS,
        max_block: DeviceLimits::BLOCK,
        max_grid: DeviceLimits::GRID,
        max_shared: device.shared_per_block,
        registers: device.registers,
        l2_bytes: l2_megabytes(config.target.sm) << 20,
        memory: config.memory,
        driver: None,
    }
}
