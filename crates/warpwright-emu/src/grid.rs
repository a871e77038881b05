//! Running a grid: what is checked before, the workers, and what they bring home.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use warpwright_ptx::isa::DeviceLimits;
use warpwright_ptx::text::SourceLine;
use warpwright_ptx::{PlainSpecial, SpecialReg};

use crate::code::Code;
use crate::context::Shared;
use crate::counters::Lines;
use crate::exec::MAX_LOCAL;
use crate::launch::{Fault, LaunchConfig, LaunchError, Options, Printed, Report, Sanitizers};
use crate::memory::{Memory, MemoryError};
use crate::program::{Entry, Program};
use crate::progress::Time;
use crate::report::{Findings, Position, Resolve, Space};
use crate::resident::Shape;
use crate::sanitize::racecheck::LaunchRaces;
use crate::schedule::{Idle, WorkerResult, work};
use crate::space::split_cluster;

/// Threads that a block may have.
const MAX_THREADS: u64 = DeviceLimits::BLOCK_THREADS as u64;
/// Shared memory that a block may have: which device is meant is not said, so that of the largest.
const MAX_SHARED: u64 = DeviceLimits::GREATEST_SHARED_PER_BLOCK as u64;
/// Blocks that a cluster may have.
const MAX_CLUSTER: u64 = DeviceLimits::CLUSTER_BLOCKS as u64;

/// Runs a kernel; see [`launch`](crate::launch()).
pub(crate) fn run(
    program: &Program,
    entry: &Entry,
    config: &LaunchConfig,
    params: &[u8],
    memory: &Memory,
    options: &Options,
) -> Result<Report, LaunchError> {
    let config = &LaunchConfig { cluster: cluster_shape(entry, config)?, ..*config };
    let clusters = check(entry, config, params)?;
    let shape = Shape::new(config.grid, config.cluster);
    let blocks = clusters * u64::from(shape.size());
    let workers = workers(options, clusters);
    let racecheck = options.sanitizers.contains(Sanitizers::RACECHECK);
    let races = racecheck.then(|| {
        LaunchRaces::new(&memory.races, u32::try_from(blocks).unwrap_or(u32::MAX), workers).with_shape(shape)
    });
    let dynamic = u64::from(config.dynamic_shared);
    let code = &entry.code;
    let globals = program.globals(memory)?;
    let shared = Shared {
        program,
        entry,
        memory,
        config,
        options,
        params,
        constants: program.constants(&globals),
        globals,
        heap_launch: memory.heap.begin(),
        workspace: workspace(code, memory)?,
        shape,
        shared_end: if dynamic > 0 { code.dynamic_base + dynamic } else { code.shared_end },
        races,
        workers,
        next_cluster: AtomicU64::new(0),
        clusters,
        stop: AtomicBool::new(false),
        resident: AtomicU64::new(0),
        parked: AtomicBool::new(false),
        changes: AtomicU64::new(0),
        deadlock: AtomicBool::new(false),
        idle: Idle::new(workers),
        time: Time::default(),
        steps: AtomicU64::new(0),
        begun: Instant::now(),
    };
    let _launching = memory.launching();
    let workspace = shared.workspace;
    let mut results = Vec::with_capacity(workers);
    if workers == 1 {
        results.push(work(&shared, 0));
    } else {
        results.resize_with(workers, WorkerResult::default);
        rayon::scope(|scope| {
            for (index, slot) in results.iter_mut().enumerate() {
                let shared = &shared;
                scope.spawn(move |_| *slot = work(shared, index));
            }
        });
    }
    let report = finish(&shared, results);
    if workspace != 0 {
        memory.free(workspace)?;
    }
    report
}

/// Bytes of the workspace of a cooperative grid.
const WORKSPACE_BYTES: u64 = 64;

/// Makes the workspace of the grid if the kernel asks where it is.
fn workspace(code: &Code, memory: &Memory) -> Result<u64, MemoryError> {
    let asks = |special: &SpecialReg| {
        matches!(special, SpecialReg::Plain(PlainSpecial::EnvReg1 | PlainSpecial::EnvReg2))
    };
    if !code.layout.specials.iter().any(|(_, special)| asks(special)) {
        return Ok(0);
    }
    let address = memory.alloc(WORKSPACE_BYTES, "workspace of the grid")?;
    memory.fill(address, 0, WORKSPACE_BYTES)?;
    Ok(address)
}

/// The shape of the clusters: that of the launch, or the one that the kernel fixes.
fn cluster_shape(entry: &Entry, config: &LaunchConfig) -> Result<[u32; 3], LaunchError> {
    let directives = &entry.function().directives;
    let refuse = |reason| Err(LaunchError::Configuration { kernel: entry.name().to_owned(), reason });
    match directives.cluster {
        Some(required) if config.cluster == [1; 3] || config.cluster == required => Ok(required),
        Some(required) => {
            refuse(format!("the kernel requires clusters of {required:?}, got {:?}", config.cluster))
        }
        None if directives.explicit_cluster && config.cluster == [1; 3] => {
            refuse("the kernel has to be launched with clusters, and says none of its own".to_owned())
        }
        None => Ok(config.cluster),
    }
}

/// Checks a launch against the kernel and the limits of devices. Returns the number of clusters.
fn check(entry: &Entry, config: &LaunchConfig, params: &[u8]) -> Result<u64, LaunchError> {
    let refuse = |reason: String| Err(LaunchError::Configuration { kernel: entry.name().to_owned(), reason });
    let LaunchConfig { grid, block, dynamic_shared, cluster } = *config;
    if block.contains(&0) || grid.contains(&0) || cluster.contains(&0) {
        return refuse(format!(
            "grid {grid:?}, block {block:?} and cluster {cluster:?} need at least 1 in each dimension"
        ));
    }
    let threads: u64 = block.iter().map(|n| u64::from(*n)).fold(1, u64::saturating_mul);
    let [.., z] = DeviceLimits::BLOCK;
    if threads > MAX_THREADS || block[2] > z {
        return refuse(format!(
            "a block of {block:?} has {threads} threads; at most {MAX_THREADS}, {z} of them along z"
        ));
    }
    if grid.iter().zip(DeviceLimits::GRID).any(|(n, most)| *n > most) {
        return refuse(format!("grid {grid:?} passes {:?}", DeviceLimits::GRID));
    }
    let directives = &entry.function().directives;
    if let Some(required) = directives.required_threads
        && required != block
    {
        return refuse(format!("the kernel requires blocks of {required:?}, got {block:?}"));
    }
    if let Some(max) = directives.max_threads {
        let max: u64 = max.iter().map(|n| u64::from(*n)).product();
        if threads > max {
            return refuse(format!("the kernel takes blocks of up to {max} threads, got {threads}"));
        }
    }
    let size: u64 = cluster.iter().map(|n| u64::from(*n)).fold(1, u64::saturating_mul);
    let max = directives.max_cluster_rank.map_or(MAX_CLUSTER, |max| MAX_CLUSTER.min(u64::from(max)));
    if size > max {
        return refuse(format!("a cluster of {cluster:?} has {size} blocks; at most {max}"));
    }
    if (0..3).any(|i| grid[i] % cluster[i] != 0) {
        return refuse(format!("the grid {grid:?} is not a multiple of the cluster {cluster:?}"));
    }
    let bytes = entry.static_shared_bytes() + u64::from(dynamic_shared);
    if bytes > MAX_SHARED {
        return refuse(format!("{bytes} bytes of shared memory pass the {MAX_SHARED} that a block may have"));
    }
    if entry.code.local_end > MAX_LOCAL {
        return refuse(format!("{} bytes of local memory per thread pass {MAX_LOCAL}", entry.code.local_end));
    }
    if params.len() as u64 != entry.param_bytes() {
        return Err(LaunchError::Parameters {
            kernel: entry.name().to_owned(),
            expected: entry.param_bytes(),
            got: params.len() as u64,
        });
    }
    Ok(grid.iter().zip(cluster).map(|(n, of)| u64::from(n / of)).product())
}

fn workers(options: &Options, clusters: u64) -> usize {
    let wanted = match options.threads {
        0 => rayon::current_num_threads(),
        n => n,
    };
    wanted.min(usize::try_from(clusters).unwrap_or(usize::MAX)).max(1)
}

fn finish(shared: &Shared<'_>, results: Vec<WorkerResult>) -> Result<Report, LaunchError> {
    let mut findings = Findings::new();
    let mut report = Report::default();
    let mut lines = Lines::default();
    let mut fault: Option<(u64, Fault)> = None;
    let mut printed: Vec<(u64, Printed)> = Vec::new();
    for result in results {
        findings.merge(result.findings);
        report.counters += &result.counters;
        lines.merge(&result.lines);
        report.steps += result.steps;
        printed.extend(result.printed);
        // The fault of the lowest block stands for all.
        fault = match (fault, result.fault) {
            (Some(a), Some(b)) => Some(if b.0 < a.0 { b } else { a }),
            (a, b) => a.or(b),
        };
    }
    // A block runs on one worker, so its lines are in order.
    printed.sort_by_key(|(block, _)| *block);
    report.printed = printed.into_iter().map(|(_, line)| line).collect();
    report.unfreed = shared.memory.heap.unfreed(shared.heap_launch);
    report.lines = lines.into_rows();
    report.findings = findings.finish(shared, shared.options.max_findings);
    let limit = shared.options.max_steps;
    if fault.is_none() && limit != 0 && report.steps > limit {
        // Several workers may end before one of them sees the sum.
        let block = shared.config.grid.map(|n| n - 1);
        let positions = "its threads have exited".to_owned();
        fault = Some((0, Fault::StepLimit { block, steps: limit, positions }));
    }
    match fault {
        None => Ok(report),
        Some((_, fault)) => Err(LaunchError::Fault {
            kernel: shared.entry.name().to_owned(),
            fault,
            report: Box::new(report),
        }),
    }
}

impl Resolve for Shared<'_> {
    fn kernel(&self) -> &str {
        self.entry.name()
    }

    fn grid(&self) -> [u32; 3] {
        self.config.grid
    }

    fn block(&self) -> [u32; 3] {
        self.config.block
    }

    fn position(&self, pc: u32) -> Position {
        self.entry.code.position(pc)
    }

    fn source(&self, line: u32) -> Option<SourceLine> {
        self.program.sources().at(line)
    }

    fn label(&self, space: Space, address: u64) -> Option<(String, u64)> {
        // The variable that holds the address, or else the one that it has run past.
        let named = |names: &[(String, u64, u64)], address: u64| {
            names
                .iter()
                .filter(|(_, start, _)| *start <= address)
                .max_by_key(|(_, start, bytes)| (*bytes == 0 || address < start + bytes, *start))
                .map(|(name, start, _)| (name.clone(), address - start))
        };
        match space {
            Space::Global => {
                let (label, _, base) = self.memory.describe(address)?;
                (address >= base).then(|| (label, address - base))
            }
            Space::Shared => {
                let (rank, address) = split_cluster(address);
                let (name, offset) = named(&self.entry.code.shared_names, address)?;
                let owner = rank.map_or_else(String::new, |rank| format!(" of block {rank} of the cluster"));
                Some((name + &owner, offset))
            }
            Space::Local => named(&self.entry.code.local_names, address),
            Space::Param | Space::Const | Space::Generic | Space::Tensor => None,
        }
    }
}
