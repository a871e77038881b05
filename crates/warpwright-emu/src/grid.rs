//! Running a grid: blocks over workers, warps of a block in turns.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use crate::block::{Block, SharedMemory};
use crate::context::{Allocations, Checks, Context, Runs, Shared};
use crate::counters::Counters;
use crate::decode::registers::{LaunchValue, Slot, SpecialTime, special_time};
use crate::decode::{Code, LOCAL_BASE};
use crate::exec::matrix::{Flights, Warpgroups};
use crate::exec::rows::{LANES, Registers, Row32, Row64};
use crate::exec::{Outcome, read_image, run as run_warp, special_value};
use crate::launch::{Fault, LaunchConfig, LaunchError, Options, Report, Sanitizers};
use crate::memory::{Memory, POISON};
use crate::program::{Entry, Program};
use crate::report::{Findings, Position, Resolve, Space};
use crate::sanitize::racecheck::{BlockRaces, LaunchRaces};
use crate::sanitize::synccheck::Barriers;
use crate::warp::{Group, Local, Wait, Warp};

/// Threads that a block may have.
const MAX_THREADS: u64 = 1024;
/// Shared memory that a block may have: the opt-in limit of the largest devices.
const MAX_SHARED: u64 = 227 * 1024;

/// Local memory that a thread may have.
const MAX_LOCAL: u64 = 512 * 1024;

/// Runs a kernel; see [`launch`](crate::launch()).
pub(crate) fn run(
    program: &Program,
    entry: &Entry,
    config: &LaunchConfig,
    params: &[u8],
    memory: &Memory,
    options: &Options,
) -> Result<Report, LaunchError> {
    let blocks = check(entry, config, params)?;
    let shared = Shared {
        entry,
        memory,
        config,
        options,
        params,
        constants: program.constants(),
        globals: program.globals(memory)?,
        started: Instant::now(),
        next_block: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        blocks,
    };
    let workers = workers(options, blocks);
    let racecheck = options.sanitizers.contains(Sanitizers::RACECHECK);
    let races = racecheck
        .then(|| LaunchRaces::new(&memory.races, u32::try_from(blocks).unwrap_or(u32::MAX), workers));
    let mut results = Vec::with_capacity(workers);
    if workers == 1 {
        results.push(work(&shared, races.as_ref()));
    } else {
        results.resize_with(workers, WorkerResult::default);
        rayon::scope(|scope| {
            for slot in &mut results {
                let (shared, races) = (&shared, races.as_ref());
                scope.spawn(move |_| *slot = work(shared, races));
            }
        });
    }
    finish(&shared, results)
}

/// Checks a launch against the kernel and the limits of devices. Returns the number of blocks.
fn check(entry: &Entry, config: &LaunchConfig, params: &[u8]) -> Result<u64, LaunchError> {
    let refuse = |reason: String| Err(LaunchError::Configuration { kernel: entry.name().to_owned(), reason });
    let LaunchConfig { grid, block, dynamic_shared, cluster } = *config;
    if block.contains(&0) || grid.contains(&0) || cluster.contains(&0) {
        return refuse(format!(
            "grid {grid:?}, block {block:?} and cluster {cluster:?} need at least 1 in each dimension"
        ));
    }
    let threads: u64 = block.iter().map(|n| u64::from(*n)).fold(1, u64::saturating_mul);
    if threads > MAX_THREADS || block[2] > 64 {
        return refuse(format!(
            "a block of {block:?} has {threads} threads; at most {MAX_THREADS}, 64 of them along z"
        ));
    }
    if grid[0] > i32::MAX as u32 || grid[1] > 65535 || grid[2] > 65535 {
        return refuse(format!("grid {grid:?} passes [2147483647, 65535, 65535]"));
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
    if let Some(required) = directives.cluster
        && required != cluster
        && cluster != [1; 3]
    {
        return refuse(format!("the kernel requires clusters of {required:?}, got {cluster:?}"));
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
    Ok(grid.iter().map(|n| u64::from(*n)).product())
}

fn workers(options: &Options, blocks: u64) -> usize {
    let wanted = match options.threads {
        0 => rayon::current_num_threads(),
        n => n,
    };
    wanted.min(usize::try_from(blocks).unwrap_or(usize::MAX)).max(1)
}

/// What one worker brings home.
#[derive(Default)]
struct WorkerResult {
    findings: Findings,
    counters: Counters,
    steps: u64,
    fault: Option<(u64, Fault)>,
}

fn finish(shared: &Shared<'_>, results: Vec<WorkerResult>) -> Result<Report, LaunchError> {
    let mut findings = Findings::new();
    let mut report = Report::default();
    let mut fault: Option<(u64, Fault)> = None;
    for result in results {
        findings.merge(result.findings);
        report.counters += &result.counters;
        report.steps += result.steps;
        // The fault of the lowest block stands for all.
        fault = match (fault, result.fault) {
            (Some(a), Some(b)) => Some(if b.0 < a.0 { b } else { a }),
            (a, b) => a.or(b),
        };
    }
    report.findings = findings.finish(shared, shared.options.max_findings);
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

    fn label(&self, space: Space, address: u64) -> Option<(String, u64)> {
        let named = |names: &[(String, u64, u64)]| {
            names
                .iter()
                .filter(|(_, start, bytes)| *start <= address && (*bytes == 0 || address < start + bytes))
                .max_by_key(|(_, start, _)| *start)
                .map(|(name, start, _)| (name.clone(), address - start))
        };
        match space {
            Space::Global => {
                let (label, _, base) = self.memory.describe(address)?;
                (address >= base).then(|| (label, address - base))
            }
            Space::Shared => named(&self.entry.code.shared_names),
            Space::Local => named(&self.entry.code.local_names),
            Space::Param | Space::Const | Space::Generic => None,
        }
    }
}

/// The rows of a warp that are the same for all warps and blocks of the launch.
fn template(code: &Code, shared: &Shared<'_>) -> (Vec<Row32>, Vec<Row64>) {
    let (mut r32, mut r64) = (code.layout.r32.clone(), code.layout.r64.clone());
    for (slot, value) in &code.layout.launch {
        let value = match *value {
            LaunchValue::Param { offset, bytes, sign } => {
                let value = read_image(shared.params, offset, bytes);
                let shift = 64 - 8 * bytes.clamp(1, 8);
                if sign { ((value << shift) as i64 >> shift) as u64 } else { value }
            }
            LaunchValue::Global { index, offset } => {
                shared.globals.get(index as usize).copied().unwrap_or(0).wrapping_add(offset as u64)
            }
        };
        match *slot {
            Slot::W(row) => r32[row as usize] = Row32([value as u32; LANES]),
            Slot::L(row) | Slot::Q(row) => r64[row as usize] = Row64([value; LANES]),
            Slot::P(_) => {}
        }
    }
    (r32, r64)
}

/// Takes blocks until there are none.
fn work(shared: &Shared<'_>, races: Option<&LaunchRaces>) -> WorkerResult {
    let code = &shared.entry.code;
    let config = shared.config;
    let sanitizers = shared.options.sanitizers;
    let dynamic = u64::from(config.dynamic_shared);
    let shared_end = if dynamic > 0 { code.dynamic_base + dynamic } else { code.shared_end };
    let mut cx = Context {
        shared,
        entry: shared.entry,
        code,
        checks: Checks {
            memcheck: sanitizers.contains(Sanitizers::MEMCHECK),
            initcheck: sanitizers.contains(Sanitizers::INITCHECK),
            synccheck: sanitizers.contains(Sanitizers::SYNCCHECK),
            counters: shared.options.counters,
        },
        findings: Findings::new(),
        counters: Counters::new(),
        runs: Runs::new(code.ins.len()),
        allocations: Allocations::new(code.sites as usize),
        races: races.map(BlockRaces::new),
        block: Block {
            linear: 0,
            coordinates: [0; 3],
            shared: SharedMemory::new(shared_end),
            barriers: Barriers::new(),
            live_threads: 0,
            warpgroups: Warpgroups::default(),
        },
        matrix: Box::default(),
        fault: None,
        clock: 0,
        opened: Vec::new(),
    };
    let mut warps = make_warps(&cx);
    let mut fault = None;
    while !shared.stop.load(Relaxed) {
        let linear = shared.next_block.fetch_add(1, Relaxed);
        if linear >= shared.blocks {
            break;
        }
        begin_block(&mut cx, &mut warps, linear);
        run_block(&mut cx, &mut warps);
        if let Some(f) = cx.fault.take() {
            fault = Some((linear, f));
            shared.stop.store(true, Relaxed);
        }
    }
    let mut counters = Counters::new();
    if cx.checks.counters {
        counters = cx.counters;
        cx.runs.count(code, &mut counters);
    }
    WorkerResult { findings: cx.findings, counters, steps: cx.runs.steps, fault }
}

fn make_warps(cx: &Context<'_>) -> Vec<Warp> {
    let threads: u32 = cx.shared.config.block.iter().product();
    let (r32, r64) = template(cx.code, cx.shared);
    let local_words =
        if cx.code.local_end > LOCAL_BASE { cx.code.local_end.div_ceil(4) as usize * LANES } else { 0 };
    (0..threads.div_ceil(32))
        .map(|index| {
            let mut pred = vec![0; cx.code.layout.preds];
            if let Some(first) = pred.first_mut() {
                *first = u32::MAX;
            }
            let mut warp = Warp {
                index,
                regs: Registers { r32: r32.clone(), r64: r64.clone(), pred },
                live: 0,
                groups: Vec::with_capacity(4),
                spins: 0,
                carry: 0,
                defined: vec![0; cx.code.tracked.len()],
                flights: Flights::new(cx.code.flights),
                local: Local {
                    words: vec![u32::from_ne_bytes([POISON; 4]); local_words],
                    defined: vec![0; local_words],
                },
            };
            set_specials(cx, &mut warp, SpecialTime::Launch);
            warp
        })
        .collect()
}

/// Fills the rows of the special registers that are known at `time`.
fn set_specials(cx: &Context<'_>, warp: &mut Warp, time: SpecialTime) {
    for (slot, special) in &cx.code.layout.specials {
        if special_time(*special) != time {
            continue;
        }
        let uniform = time == SpecialTime::Block;
        let value =
            |lane: usize| special_value(cx, warp.index, if uniform { 0 } else { lane as u32 }, *special);
        match *slot {
            Slot::W(row) if uniform => {
                let value = value(0) as u32;
                warp.regs.r32[row as usize] = Row32([value; LANES]);
            }
            Slot::W(row) => {
                let values = std::array::from_fn(|lane| value(lane) as u32);
                warp.regs.r32[row as usize] = Row32(values);
            }
            Slot::L(row) | Slot::Q(row) => {
                let values = std::array::from_fn(value);
                warp.regs.r64[row as usize] = Row64(values);
            }
            Slot::P(p) => {
                let bits = (0..LANES).fold(0, |m, lane| m | ((value(lane) & 1) as u32) << lane);
                warp.regs.pred[p as usize] = bits;
            }
        }
    }
}

/// Makes everything as it is when a block begins; rows that the kernel always writes first are left as they are.
fn begin_block(cx: &mut Context<'_>, warps: &mut [Warp], linear: u64) {
    let [x, y, _] = cx.shared.config.grid.map(u64::from);
    let threads: u32 = cx.shared.config.block.iter().product();
    cx.block.linear = linear;
    cx.block.coordinates = [linear % x, linear / x % y, linear / x / y].map(|v| v as u32);
    cx.block.shared.reset();
    cx.block.barriers.reset();
    cx.block.warpgroups.reset();
    cx.block.live_threads = threads;
    if let Some(races) = &mut cx.races {
        races.begin(linear as u32, threads.div_ceil(32));
    }
    cx.counters.blocks += 1;
    cx.counters.warps += warps.len() as u64;
    for warp in warps {
        let lanes = threads - warp.index * 32;
        warp.live = if lanes >= 32 { u32::MAX } else { (1 << lanes) - 1 };
        warp.groups.clear();
        warp.groups.push(Group { pc: 0, mask: warp.live, wait: Wait::Ready, turn: 0 });
        warp.spins = 0;
        warp.carry = 0;
        warp.flights.reset();
        for (slot, defined) in cx.code.tracked.iter().zip(&mut warp.defined) {
            *defined = 0;
            // What is read before it is written must not depend on the block before.
            match *slot {
                Slot::W(row) => warp.regs.r32[row as usize] = Row32::ZERO,
                Slot::L(row) => warp.regs.r64[row as usize] = Row64::ZERO,
                Slot::Q(row) => {
                    warp.regs.r64[row as usize] = Row64::ZERO;
                    warp.regs.r64[row as usize + 1] = Row64::ZERO;
                }
                Slot::P(p) => warp.regs.pred[p as usize] = 0,
            }
        }
        warp.local.words.fill(u32::from_ne_bytes([POISON; 4]));
        warp.local.defined.fill(0);
        set_specials(cx, warp, SpecialTime::Block);
    }
}

/// Runs the warps in turns until all have ended.
fn run_block(cx: &mut Context<'_>, warps: &mut [Warp]) {
    let count = warps.len();
    let first = first_warp(cx.shared.options.seed, cx.block.linear, count);
    let mut left = count;
    let mut progress = true;
    while left > 0 {
        if !progress {
            cx.stuck(warps);
            return;
        }
        progress = false;
        for turn in 0..count {
            let Some(warp) = warps.get_mut((first + turn) % count) else { continue };
            if warp.live == 0 || !warp.has_ready() {
                continue;
            }
            progress = true;
            let before = warp.live;
            let outcome = run_warp(cx, warp);
            if outcome == Outcome::Stopped {
                return;
            }
            let ended = (before & !warp.live).count_ones();
            if warp.live == 0 {
                left -= 1;
            }
            if ended > 0 {
                cx.block.live_threads -= ended;
                cx.lanes_exited();
            }
            cx.open_barriers(warps);
        }
    }
    cx.check_warpgroups(count as u32);
}

/// Which warp begins: 0, or one that the seed chooses for each block.
fn first_warp(seed: u64, block: u64, count: usize) -> usize {
    if seed == 0 || count == 0 {
        return 0;
    }
    // A few rounds of mixing, as in SplitMix64.
    let mut x = seed.wrapping_add(block.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((x ^ x >> 31) % count as u64) as usize
}
