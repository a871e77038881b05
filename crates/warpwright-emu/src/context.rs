//! The state of one worker while it runs blocks of a launch.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::time::Instant;

use crate::block::{Block, SharedMemory};
use crate::code::Code;
use crate::counters::{Class, Tally};
use crate::exec::matrix::Scratch;
use crate::flow::Outcome;
use crate::launch::{Fault, LaunchConfig, Options, Printed, Sanitizers};
use crate::limits::Slice;
use crate::memory::{Allocation, Memory, SLOT_BITS};
use crate::program::{Entry, Program};
use crate::progress::Time;
use crate::relevance::Region;
use crate::report::{Event, Findings, Key, Position, Severity, Site, Space, Tool};
use crate::resident::{Cluster, Shape};
use crate::sanitize::racecheck::{BlockRaces, LaunchRaces};
use crate::sanitize::synccheck::Opened;
use crate::schedule::Idle;
use crate::slots::Slot;
use crate::warp::Warp;

/// Which checks run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checks {
    pub(crate) memcheck: bool,
    pub(crate) initcheck: bool,
    pub(crate) synccheck: bool,
    pub(crate) counters: bool,
}

/// State that all workers of a launch share.
pub(crate) struct Shared<'a> {
    pub(crate) program: &'a Program,
    pub(crate) entry: &'a Entry,
    pub(crate) memory: &'a Memory,
    pub(crate) config: &'a LaunchConfig,
    pub(crate) options: &'a Options,
    pub(crate) params: &'a [u8],
    pub(crate) constants: Arc<[u8]>,
    /// Addresses of the module's `.global` variables.
    pub(crate) globals: Arc<[u64]>,
    /// The launch in the books of the heap.
    pub(crate) heap_launch: u64,
    /// Zeroed words in which the blocks of a cooperative grid meet; 0 for kernels that do not ask for them.
    pub(crate) workspace: u64,
    pub(crate) shape: Shape,
    /// End of a block's shared memory, from address 0.
    pub(crate) shared_end: u64,
    pub(crate) races: Option<LaunchRaces>,
    pub(crate) workers: usize,
    /// The next cluster that no worker has.
    pub(crate) next_cluster: AtomicU64,
    /// Clusters of the grid.
    pub(crate) clusters: u64,
    /// Set when the launch ends early.
    pub(crate) stop: AtomicBool,
    /// Blocks that have begun and not ended.
    pub(crate) resident: AtomicU64,
    /// Set once a cluster was parked: from then on workers say when they change memory.
    pub(crate) parked: AtomicBool,
    /// Changes of memory that parked clusters may wait for.
    pub(crate) changes: AtomicU64,
    /// Set when no worker can go on.
    pub(crate) deadlock: AtomicBool,
    pub(crate) idle: Idle,
    pub(crate) time: Time,
    /// Instructions of the slices that have ended, over all workers; kept where there is a limit.
    pub(crate) steps: AtomicU64,
    pub(crate) begun: Instant,
}

impl Shared<'_> {
    /// Says to other workers that something changed which their parked clusters may wait for.
    pub(crate) fn changed(&self) {
        if self.workers > 1 {
            self.changes.fetch_add(1, SeqCst);
        }
    }

    /// The same after a turn; nobody has to know while nobody waits.
    #[inline]
    pub(crate) fn turn_changed(&self) {
        if self.workers > 1 && self.parked.load(SeqCst) {
            self.changed();
        }
    }

    /// Blocks that no worker has begun.
    pub(crate) fn blocks_left(&self) -> u64 {
        let begun = self.next_cluster.load(Relaxed).min(self.clusters);
        (self.clusters - begun) * u64::from(self.shape.size())
    }

    /// Whether another cluster may be resident.
    pub(crate) fn has_room(&self) -> bool {
        let limit = self.options.max_resident_blocks as u64;
        limit == 0 || self.resident.load(Relaxed) + u64::from(self.shape.size()) <= limit
    }

    /// Takes the next cluster.
    pub(crate) fn take_cluster(&self) -> Option<u64> {
        let linear = self.next_cluster.fetch_add(1, Relaxed);
        if linear >= self.clusters {
            return None;
        }
        self.resident.fetch_add(u64::from(self.shape.size()), Relaxed);
        Some(linear)
    }

    /// A cluster has ended.
    pub(crate) fn cluster_ended(&self) {
        self.resident.fetch_sub(u64::from(self.shape.size()), Relaxed);
    }
}

/// How often each instruction ran: straight lines are counted at their ends.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// Differences: +1 where a line begins, -1 after its end; `warps` counts warps, `lanes` counts lanes.
    warps: Vec<i64>,
    lanes: Vec<i64>,
    /// Executions of guarded instructions, by at least one lane and by lanes.
    guarded: Vec<(u64, u64)>,
    /// Instructions that warps went through.
    pub(crate) steps: u64,
    /// The trace of the running warp, if it is watched.
    pub(crate) trace: Option<Region>,
}

impl Runs {
    pub(crate) fn new(instructions: usize) -> Self {
        Self {
            warps: vec![0; instructions + 2],
            lanes: vec![0; instructions + 2],
            guarded: vec![(0, 0); instructions],
            steps: 0,
            trace: None,
        }
    }

    /// Lanes went through the instructions from `start` to before `end`.
    #[inline(always)]
    pub(crate) fn line(&mut self, start: usize, end: usize, lanes: u32) {
        self.steps += (end - start) as u64;
        let lanes = i64::from(lanes.count_ones());
        self.warps[start] += 1;
        self.warps[end] -= 1;
        self.lanes[start] += lanes;
        self.lanes[end] -= lanes;
        if self.trace.is_some() {
            self.traced(start, end);
        }
    }

    #[cold]
    #[inline(never)]
    fn traced(&mut self, start: usize, end: usize) {
        if let Some(trace) = &mut self.trace {
            trace.add(start as u32, end as u32);
        }
    }

    #[inline(always)]
    pub(crate) fn guarded(&mut self, pc: usize, exec: u32) {
        let (warps, lanes) = &mut self.guarded[pc];
        *warps += u64::from(exec != 0);
        *lanes += u64::from(exec.count_ones());
    }

    /// Takes back the count of a guarded instruction whose lanes have to wait.
    pub(crate) fn uncount_guarded(&mut self, pc: usize, exec: u32) {
        let (warps, lanes) = &mut self.guarded[pc];
        *warps = warps.saturating_sub(1);
        *lanes = lanes.saturating_sub(u64::from(exec.count_ones()));
    }

    /// Counts one instruction that ran outside a straight line.
    pub(crate) fn again(&mut self, pc: usize, exec: u32, code: &Code) {
        self.line(pc, pc + 1, exec);
        if code.ins.get(pc).is_some_and(|i| i.guard != 0) {
            self.guarded(pc, exec);
        }
    }

    /// Hands every instruction of the text to `add`: where it stands, its class, warps and lanes that executed it.
    pub(crate) fn count(&self, code: &Code, mut add: impl FnMut(Position, Class, u64, u64)) {
        let (mut warps, mut lanes) = (0, 0);
        let mut elided = code.elided.iter().peekable();
        for (pc, (ins, origin)) in code.ins.iter().zip(&code.origins).enumerate() {
            warps += self.warps[pc];
            lanes += self.lanes[pc];
            while let Some(left_out) = elided.next_if(|left_out| left_out.next as usize == pc) {
                add(left_out.position, left_out.class, warps as u64, lanes as u64);
            }
            let Some(class) = origin.class else { continue };
            let (w, l) = if ins.guard == 0 { (warps as u64, lanes as u64) } else { self.guarded[pc] };
            add(origin.position, class, w, l);
        }
    }
}

/// The allocations that a worker has touched in this launch.
#[derive(Debug, Default)]
pub(crate) struct Allocations {
    pub(crate) list: Vec<Arc<Allocation>>,
    /// Which allocation each memory instruction touched last.
    sites: Vec<u32>,
}

impl Allocations {
    pub(crate) fn new(sites: usize) -> Self {
        Self { list: Vec::new(), sites: vec![0; sites] }
    }

    /// The allocation in whose slot `address` lies, remembered for `site`.
    #[inline(always)]
    pub(crate) fn find(&mut self, memory: &Memory, site: u32, address: u64) -> Option<usize> {
        let slot = address >> SLOT_BITS;
        let last = self.sites[site as usize] as usize;
        match self.list.get(last) {
            Some(a) if u64::from(a.slot) == slot => Some(last),
            _ => self.search(memory, site, address),
        }
    }

    /// Forgets an allocation that was freed.
    pub(crate) fn forget(&mut self, address: u64) {
        let slot = address >> SLOT_BITS;
        // What stands in its place afterwards is told apart by its slot.
        self.list.retain(|a| u64::from(a.slot) != slot);
    }

    #[inline(never)]
    fn search(&mut self, memory: &Memory, site: u32, address: u64) -> Option<usize> {
        let slot = address >> SLOT_BITS;
        let at = match self.list.iter().position(|a| u64::from(a.slot) == slot) {
            Some(at) => at,
            None => {
                let Some(Slot::Live(allocation)) = memory.slot(address) else { return None };
                self.list.push(allocation);
                self.list.len() - 1
            }
        };
        self.sites[site as usize] = u32::try_from(at).unwrap_or(0);
        Some(at)
    }
}

/// One worker: the blocks that it runs and what it has found.
pub(crate) struct Context<'a> {
    pub(crate) shared: &'a Shared<'a>,
    pub(crate) code: &'a Code,
    pub(crate) checks: Checks,
    pub(crate) findings: Findings,
    pub(crate) counters: Tally,
    pub(crate) runs: Runs,
    pub(crate) slice: Slice,
    pub(crate) allocations: Allocations,
    pub(crate) races: Option<BlockRaces<'a>>,
    pub(crate) block: Block,
    /// Operands of the tensor-core instruction that runs.
    pub(crate) matrix: Box<Scratch>,
    /// The cluster of the running block.
    pub(crate) cluster: Cluster<'a>,
    /// Changes of memory by this worker.
    pub(crate) changes: u64,
    /// Reads that polling loops make.
    pub(crate) polls: u64,
    pub(crate) fault: Option<Fault>,
    /// Reads of the clock, which must not stand still, and times of sleep.
    pub(crate) clock: u64,
    /// The longest sleep of a warp in this round: warps sleep at the same time.
    pub(crate) sleep: u64,
    /// Output of kernels, by block.
    pub(crate) printed: Vec<(u64, Printed)>,
    pub(crate) printed_bytes: usize,
    /// Barriers that have opened and whose waiters do not know yet.
    pub(crate) opened: Vec<Opened>,
}

impl<'a> Context<'a> {
    /// A worker that runs nothing yet.
    pub(crate) fn new(shared: &'a Shared<'a>) -> Self {
        let code = &shared.entry.code;
        let sanitizers = shared.options.sanitizers;
        Self {
            shared,
            code,
            checks: Checks {
                memcheck: sanitizers.contains(Sanitizers::MEMCHECK),
                initcheck: sanitizers.contains(Sanitizers::INITCHECK),
                synccheck: sanitizers.contains(Sanitizers::SYNCCHECK),
                counters: shared.options.counters,
            },
            findings: Findings::new(),
            counters: Tally::new(shared.options.counters, shared.entry.code.ins.len()),
            runs: Runs::new(code.ins.len()),
            slice: Slice::default(),
            allocations: Allocations::new(code.sites as usize),
            races: None,
            block: Block::new(SharedMemory::new(0)),
            cluster: Cluster::default(),
            matrix: Box::default(),
            changes: 0,
            polls: 0,
            fault: None,
            clock: 0,
            sleep: 0,
            opened: Vec::new(),
            printed: Vec::new(),
            printed_bytes: 0,
        }
    }
}

impl Context<'_> {
    /// Notes that memory which others see has changed: those that poll it may go on.
    #[inline(always)]
    pub(crate) fn note_change(&mut self) {
        self.changes += 1;
    }

    /// Notes a read of memory that others may change: a loop of them waits for others, other loops compute.
    #[inline(always)]
    pub(crate) fn note_poll(&mut self, warp: &mut Warp) {
        self.polls += 1;
        warp.poll();
    }

    /// Records a finding of the lowest of `lanes`, once for each of them.
    #[cold]
    #[allow(clippy::too_many_arguments, reason = "the facts of a finding")]
    pub(crate) fn finding(
        &mut self,
        warp: &Warp,
        pc: u32,
        lanes: u32,
        tool: Tool,
        kind: &'static str,
        address: Option<(Space, u64)>,
        text: impl Fn() -> (String, String),
    ) {
        let mut rest = lanes;
        while rest != 0 {
            let lane = rest.trailing_zeros();
            rest &= rest - 1;
            let site = self.site(warp, lane);
            self.findings.record(Key { tool, kind, pc, other_pc: None }, site, || {
                let (message, help) = text();
                Event { severity: Severity::Error, message, help, address, other: None }
            });
        }
    }

    /// A thread of the running block.
    pub(crate) fn site(&self, warp: &Warp, lane: u32) -> Site {
        Site { block: self.block.linear as u32, thread: warp.index * 32 + lane }
    }

    /// Whether a warp that has used up its turn may go on later.
    pub(crate) fn turn_over(&self) -> Outcome {
        if self.fault.is_some() || self.shared.stop.load(Relaxed) {
            Outcome::Stopped
        } else {
            Outcome::Yielded
        }
    }
}
