//! Which warp runs when.
//!
//! The warps of a block take turns; a turn ends at a barrier, at the end, or after many backward branches. A block runs
//! until none of its warps gets further, then the next block of its cluster does. When no block of the cluster gets
//! further, the oldest asynchronous operation completes: as late as the memory model allows. When there is none, and
//! some warps *poll*, the cluster is parked and the worker takes another one, so that kernels whose blocks wait for each
//! other through memory end on any number of workers.
//!
//! A warp polls if its turn ended by spinning, changed no memory, and either read memory with a strong load or an
//! atomic, or read a clock, or slept, or came back to a state in which it was before. The last is a proof, unless it looks
//! at clocks: until memory changes it does the same for ever. If that holds for every warp of every resident cluster that does
//! not wait at a barrier, the launch is deadlocked.
//!
//! Parked clusters take memory, so they are few: a cluster begins only when as many parked ones were polled again as
//! have begun since, which lets their number double between two rounds of polling them all, and keeps it at one if what
//! they wait for comes from blocks that end.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::context::{Context, Shared};
use crate::counters::{Counters, Lines};
use crate::exec::run as run_warp;
use crate::flow::Outcome;
use crate::launch::{Fault, Printed};
use crate::report::Findings;
use crate::resident::Cluster;
use crate::sanitize::deadlock;
use crate::warp::{Stamp, Warp, Watch};

/// The results of one worker.
#[derive(Default)]
pub(crate) struct WorkerResult {
    pub(crate) findings: Findings,
    pub(crate) counters: Counters,
    pub(crate) lines: Lines,
    pub(crate) steps: u64,
    pub(crate) printed: Vec<(u64, Printed)>,
    /// The linear index of the block that failed, and how.
    pub(crate) fault: Option<(u64, Fault)>,
}

/// Workers that cannot go on: for each, the count of changes since which it is stuck.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    stuck: Mutex<Vec<Option<u64>>>,
}

impl Idle {
    /// The mark of a worker that has ended.
    const ENDED: u64 = u64::MAX;

    pub(crate) fn new(workers: usize) -> Self {
        // A worker that never begins holds nobody up.
        Self { stuck: Mutex::new(vec![Some(Self::ENDED); workers]) }
    }

    /// Says since when a worker is stuck, if it is; whether all are, since then.
    fn set(&self, worker: usize, since: Option<u64>) -> bool {
        let mut stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = stuck.get_mut(worker) {
            *slot = since;
        }
        since.is_some() && stuck.iter().all(|s| *s == since || *s == Some(Self::ENDED))
    }
}

/// How a turn of all warps of a block went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// Something happened.
    Progress,
    /// Some warps ran, and only polled.
    Polling,
    /// No warp could run.
    Waiting,
    /// The launch ends.
    Stopped,
}

/// How a cluster came to a halt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Halt {
    Ended,
    Polling,
    Stopped,
}

struct Worker<'a> {
    cx: Context<'a>,
    index: usize,
    parked: VecDeque<Cluster<'a>>,
    /// Clusters that have ended, for their memory.
    free: Vec<Cluster<'a>>,
    /// Parked clusters that are still to be polled in this round.
    to_poll: usize,
    /// Clusters begun since the last round.
    begun: usize,
    fault: Option<(u64, Fault)>,
}

/// Takes clusters until there are none.
pub(crate) fn work(shared: &Shared<'_>, index: usize) -> WorkerResult {
    shared.idle.set(index, None);
    let mut worker = Worker {
        cx: Context::new(shared),
        index,
        parked: VecDeque::new(),
        free: Vec::new(),
        to_poll: 0,
        begun: 0,
        fault: None,
    };
    worker.run();
    shared.changed();
    shared.idle.set(index, Some(Idle::ENDED));
    let Worker { mut cx, fault, .. } = worker;
    let (counters, lines) =
        if cx.checks.counters { cx.counters.finish(&cx.runs, cx.code) } else { Default::default() };
    WorkerResult {
        findings: std::mem::take(&mut cx.findings),
        counters,
        lines,
        steps: cx.runs.steps,
        printed: std::mem::take(&mut cx.printed),
        fault,
    }
}

impl<'a> Worker<'a> {
    fn run(&mut self) {
        while !self.cx.shared.stop.load(Relaxed) {
            if !self.next() {
                if self.parked.is_empty() || self.all_stuck() {
                    break;
                }
                if self.cx.must_end()
                    && let Some(cluster) = self.parked.pop_front()
                {
                    self.cx.cluster = cluster;
                    self.stop();
                }
                continue;
            }
            if self.cx.must_end() {
                self.stop();
                break;
            }
            let changes = self.cx.changes;
            match self.run_cluster() {
                Halt::Ended => {
                    self.cx.shared.cluster_ended();
                    if !self.parked.is_empty() {
                        let ended = self.cx.take_cluster();
                        self.free.push(ended);
                    }
                }
                Halt::Polling => self.park(self.cx.changes != changes),
                Halt::Stopped => self.stop(),
            }
        }
        if self.cx.shared.deadlock.load(Relaxed) {
            self.deadlocked();
        }
    }

    /// Brings the cluster that runs next into the context; `false` if all are parked and none may begin.
    fn next(&mut self) -> bool {
        let shared = self.cx.shared;
        let may_begin = shared.blocks_left() > 0 && (self.parked.is_empty() || shared.has_room());
        if self.to_poll == 0 && (2 * self.begun >= self.parked.len() || !may_begin) {
            (self.to_poll, self.begun) = (self.parked.len(), 0);
        }
        while self.to_poll > 0 {
            self.to_poll -= 1;
            let Some(cluster) = self.parked.pop_front() else { break };
            if cluster.settled != Some(self.cx.stamp()) {
                self.cx.cluster = cluster;
                return true;
            }
            self.parked.push_back(cluster);
        }
        if may_begin && let Some(linear) = shared.take_cluster() {
            if self.cx.cluster.residents.is_empty() {
                self.cx.cluster = self.free.pop().unwrap_or_else(|| self.cx.make_cluster());
            }
            self.begun += 1;
            self.cx.begin(linear);
            return true;
        }
        false
    }

    /// Puts away a cluster that can only poll; `wrote` says whether it changed memory before.
    fn park(&mut self, wrote: bool) {
        let shared = self.cx.shared;
        if shared.workers > 1 {
            // From now on others tell of their changes; what they changed before, the next poll sees.
            shared.parked.store(true, SeqCst);
            if wrote {
                shared.changed();
            }
            std::thread::yield_now();
        }
        let stamp = self.cx.stamp();
        let mut cluster = self.cx.take_cluster();
        let mut warps = cluster.residents.iter().flat_map(|r| &r.warps);
        let settled = warps.all(|warp| !warp.has_ready() || warp.watch.repeats(stamp));
        cluster.settled = settled.then_some(stamp);
        self.parked.push_back(cluster);
    }

    /// Runs the blocks of the cluster in turns until none gets further.
    fn run_cluster(&mut self) -> Halt {
        let cx = &mut self.cx;
        let size = cx.cluster.residents.len();
        let warps = cx.shared.config.block.iter().product::<u32>().div_ceil(32);
        let first = pseudo_random(cx.shared.options.seed, cx.cluster.linear, size);
        loop {
            let (mut progress, mut polling, mut ended) = (false, false, true);
            for turn in 0..size {
                cx.enter((first + turn) % size);
                if cx.block.live_warps == 0 {
                    continue;
                }
                let round = run_block(cx);
                if cx.block.live_warps == 0 {
                    cx.check_warpgroups(warps);
                    progress = true;
                    continue;
                }
                ended = false;
                match round {
                    Round::Progress => progress = true,
                    Round::Polling => polling = true,
                    Round::Waiting => {}
                    Round::Stopped => return Halt::Stopped,
                }
            }
            if ended {
                cx.end_asynchronous();
                return Halt::Ended;
            }
            if progress || cx.complete_asynchronous() {
                continue;
            }
            if polling {
                return Halt::Polling;
            }
            let stuck = cx.stuck();
            cx.report_stuck(&stuck, "no thread of the cluster can go on");
            cx.kill_cluster();
            cx.abandon_asynchronous();
            if cx.fault.is_some() {
                return Halt::Stopped;
            }
        }
    }

    /// Keeps the fault that ends the launch.
    fn stop(&mut self) {
        // A cluster that has just been brought in is in no block yet.
        self.cx.enter(self.cx.rank() as usize);
        if let Some(mut fault) = self.cx.fault.take() {
            let linear = self.cx.block.linear;
            if let Fault::StepLimit { block, positions, .. }
            | Fault::TimeLimit { block, positions, .. }
            | Fault::Interrupted { block, positions } = &mut fault
            {
                *block = self.cx.block.coordinates;
                *positions = self.cx.positions();
            }
            self.fault.get_or_insert((linear, fault));
        }
        self.cx.shared.stop.store(true, Relaxed);
    }

    /// Called when nothing can run here: whether no worker can go on and nothing will change. Waits for a while for
    /// others.
    fn all_stuck(&mut self) -> bool {
        let shared = self.cx.shared;
        let stamp = self.cx.stamp();
        let settled = self.parked.iter().all(|cluster| cluster.settled == Some(stamp));
        // Launches on the same memory may wait for each other.
        if !settled || shared.memory.launches() > 1 {
            if shared.workers > 1 || settled {
                std::thread::yield_now();
            }
            return false;
        }
        if shared.idle.set(self.index, Some(stamp.others)) {
            shared.deadlock.store(true, Relaxed);
        }
        while !shared.deadlock.load(Relaxed) {
            if shared.stop.load(Relaxed) || shared.changes.load(SeqCst) != stamp.others {
                shared.idle.set(self.index, None);
                return false;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        true
    }

    /// Reports the parked clusters as deadlocked and ends them.
    fn deadlocked(&mut self) {
        let waiting = self.cx.shared.blocks_left();
        let resident = self.parked.len() as u64 * u64::from(self.cx.shared.shape.size());
        let mut stuck = Vec::new();
        let mut first = None;
        for cluster in std::mem::take(&mut self.parked) {
            self.cx.cluster = cluster;
            self.cx.enter(0);
            first.get_or_insert(self.cx.block.linear);
            stuck.extend(self.cx.stuck());
            let _ended = self.cx.take_cluster();
        }
        let Some(linear) = first else { return };
        self.cx.report_stuck(&stuck, "no thread of the grid can go on");
        if waiting > 0 {
            let message = deadlock::message(&stuck, "", self.cx.code);
            let limit = self.cx.shared.options.max_resident_blocks;
            let fault = Fault::Residency { resident, waiting, limit, message };
            self.fault.get_or_insert((linear, fault));
        } else if let Some(fault) = self.cx.fault.take() {
            self.fault.get_or_insert((linear, fault));
        }
        self.cx.shared.stop.store(true, Relaxed);
    }
}

/// Runs the warps of the running block in turns until none gets further.
fn run_block(cx: &mut Context<'_>) -> Round {
    let rank = cx.rank() as usize;
    let mut warps = cx.take_warps(rank);
    let first = pseudo_random(cx.shared.options.seed, cx.block.linear, warps.len());
    cx.block.started = true;
    let mut any = false;
    let round = loop {
        cx.wake(&mut warps);
        match run_warps(cx, &mut warps, first) {
            Round::Progress if cx.block.live_warps > 0 => any = true,
            Round::Polling | Round::Waiting if any => break Round::Progress,
            other => break other,
        }
    };
    cx.put_warps(rank, warps);
    round
}

/// Gives every warp that can run a turn.
fn run_warps(cx: &mut Context<'_>, warps: &mut [Warp], first: usize) -> Round {
    let count = warps.len();
    let mut result = Round::Waiting;
    for turn in 0..count {
        let Some(warp) = warps.get_mut((first + turn) % count) else { continue };
        if warp.live == 0 || !warp.has_ready() {
            continue;
        }
        let (live, changes, polls, clock_reads) = (warp.live, cx.changes, cx.polls, cx.clock_reads);
        let outcome = run_warp(cx, warp);
        if outcome == Outcome::Stopped {
            return Round::Stopped;
        }
        let ended = live & !warp.live;
        let mut idle = outcome == Outcome::Yielded && ended == 0 && cx.changes == changes;
        if idle && cx.clock_reads != clock_reads {
            warp.watch = Watch::default();
        } else if idle {
            let stamp = cx.stamp();
            warp.watch.observe(warp.state(), stamp);
            idle = cx.polls != polls || warp.watch.repeats(stamp);
        }
        if !idle {
            result = Round::Progress;
        } else if result == Round::Waiting {
            result = Round::Polling;
        }
        if warp.live == 0 {
            cx.block.live_warps -= 1;
        }
        if ended != 0 {
            let index = warp.index;
            cx.lanes_exited(index, ended);
        }
        if cx.changes != changes {
            cx.shared.turn_changed();
        }
        cx.open_barriers(warps);
    }
    result
}

/// Which warp or block begins: 0, or one that the seed chooses.
fn pseudo_random(seed: u64, salt: u64, count: usize) -> usize {
    if seed == 0 || count <= 1 {
        return 0;
    }
    // A few rounds of mixing, as in SplitMix64.
    let mut x = seed.wrapping_add(salt.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((x ^ x >> 31) % count as u64) as usize
}

impl Context<'_> {
    /// The present moment between changes of memory.
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp { own: self.changes, others: self.shared.changes.load(SeqCst) }
    }
}
