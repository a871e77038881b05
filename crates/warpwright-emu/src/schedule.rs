//! Which warp runs when.
//!
//! The warps of a block take turns; a turn ends at a barrier, at the end, or after many backward branches. A block runs
//! until none of its warps gets further, then the next block of its cluster does. When no block of the cluster gets
//! further, the oldest asynchronous operation completes: as late as the memory model allows. When there is none, those that
//! wait for mbarriers are told that their time is up. When some warps still *poll*, the cluster is parked and the worker
//! takes another one, so that kernels whose blocks wait for each other through memory end on any number of workers.
//!
//! A warp polls if its turn changed no memory, and either read memory with a strong load or an atomic, or read a clock, or
//! slept, or came back to a state in which it was before. What that proves, and when it takes time to go on, is in
//! [`progress`](crate::progress). If every warp of every resident cluster waits or repeats itself, the launch is deadlocked.
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
use crate::progress::{Outlook, Stamp, Turn};
use crate::report::Findings;
use crate::resident::{Cluster, Moment, Settled};
use crate::sanitize::deadlock;
use crate::warp::Warp;

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

/// A worker that cannot go on, and since when: the count of changes, and how often the clocks were put forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stuck {
    changes: u64,
    epoch: u64,
    outlook: Outlook,
}

/// The workers that cannot go on.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    stuck: Mutex<Vec<Option<Stuck>>>,
}

impl Stuck {
    /// The mark of a worker that has ended.
    const ENDED: Self = Self { changes: u64::MAX, epoch: u64::MAX, outlook: Outlook::Stuck };

    fn moment(self) -> (u64, u64) {
        (self.changes, self.epoch)
    }
}

impl Idle {
    pub(crate) fn new(workers: usize) -> Self {
        // A worker that never begins holds nobody up.
        Self { stuck: Mutex::new(vec![Some(Stuck::ENDED); workers]) }
    }

    /// Says since when a worker is stuck, if it is. If all are, since the same moment, gives what they can come to.
    fn set(&self, worker: usize, since: Option<Stuck>) -> Option<Outlook> {
        let mut stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = stuck.get_mut(worker) {
            *slot = since;
        }
        let moment = since?.moment();
        stuck.iter().try_fold(Outlook::Stuck, |worst, s| {
            let s = s.filter(|s| *s == Stuck::ENDED || s.moment() == moment)?;
            Some(worst.max(s.outlook))
        })
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
    /// How often the clocks had been put forward when the cluster that runs began its turn.
    epoch: u64,
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
        epoch: 0,
        fault: None,
    };
    worker.run();
    shared.changed();
    shared.idle.set(index, Some(Stuck::ENDED));
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
            let (changes, alone) = (self.cx.changes, self.cx.shared.memory.alone());
            match self.run_cluster() {
                Halt::Ended => {
                    self.cx.shared.cluster_ended();
                    if !self.parked.is_empty() {
                        let ended = self.cx.take_cluster();
                        self.free.push(ended);
                    }
                }
                Halt::Polling => self.park(self.cx.changes != changes, alone),
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
            let now = self.now();
            // Nothing is settled while another launch runs: launches on the same memory may wait for each other.
            if cluster.settled.as_ref().is_none_or(|settled| settled.since != now) {
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

    fn now(&self) -> Moment {
        let shared = self.cx.shared;
        Moment { stamp: self.cx.stamp(), epoch: shared.time.epoch(), alone: shared.memory.alone() }
    }

    /// Puts away a cluster that can only poll; `wrote` says whether it changed memory before, `alone` is [`Moment::alone`].
    fn park(&mut self, wrote: bool, alone: Option<u64>) {
        let shared = self.cx.shared;
        if shared.workers > 1 {
            // From now on others tell of their changes; what they changed before, the next poll sees.
            shared.parked.store(true, SeqCst);
            if wrote {
                shared.changed();
            }
            std::thread::yield_now();
        }
        let (stamp, epoch) = (self.cx.stamp(), self.epoch);
        let mut cluster = self.cx.take_cluster();
        let warps = cluster.residents.iter().flat_map(|r| &r.warps);
        let outlook = warps.map(|warp| warp.outlook(stamp)).max().unwrap_or_default();
        let since = Moment { stamp, epoch, alone };
        cluster.settled = (outlook != Outlook::Open && alone.is_some()).then_some(Settled { since, outlook });
        self.parked.push_back(cluster);
    }

    /// Runs the blocks of the cluster in turns until none gets further.
    fn run_cluster(&mut self) -> Halt {
        let cx = &mut self.cx;
        let size = cx.cluster.residents.len();
        let warps = cx.shared.config.block.iter().product::<u32>().div_ceil(32);
        let first = pseudo_random(cx.shared.options.seed, cx.cluster.linear, size);
        // The clocks may be put forward while the cluster runs.
        self.epoch = cx.shared.time.epoch();
        let mut expired = false;
        let mut last_rounds = LAST_ROUNDS;
        loop {
            let (mut progress, mut ended) = (false, true);
            for turn in 0..size {
                cx.enter((first + turn) % size);
                if cx.block.live_warps == 0 {
                    continue;
                }
                let round = run_block(cx);
                if cx.block.live_warps == 0 {
                    cx.check_warpgroups(warps);
                    cx.check_tensor_memory();
                    progress = true;
                    continue;
                }
                ended = false;
                match round {
                    Round::Progress => progress = true,
                    Round::Polling | Round::Waiting => {}
                    Round::Stopped => return Halt::Stopped,
                }
            }
            if ended {
                cx.end_asynchronous();
                return Halt::Ended;
            }
            if progress || cx.complete_oldest() {
                continue;
            }
            let rest = cx.rest();
            if (!expired || rest.alone && rest.outlook == Outlook::Open) && cx.expire_waits() {
                expired = true;
                continue;
            }
            if !rest.alone || rest.outlook != Outlook::Stuck {
                return Halt::Polling;
            }
            // Those that sleep between two waits are reported where they wait.
            if rest.sleeps && last_rounds > 0 {
                last_rounds -= 1;
                continue;
            }
            // Those that wait for the rest of their warp go on without it.
            if cx.release_held() {
                continue;
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
        let now = self.now();
        let outlook = |cluster: &Cluster<'_>| match &cluster.settled {
            Some(settled) if settled.since == now => settled.outlook,
            _ => Outlook::Open,
        };
        let outlook = self.parked.iter().map(outlook).max().unwrap_or_default();
        let Moment { stamp, epoch, alone } = now;
        if outlook == Outlook::Open {
            if shared.workers > 1 || alone.is_none() {
                std::thread::yield_now();
            }
            return false;
        }
        let stuck = Stuck { changes: stamp.others, epoch, outlook };
        if let Some(all) = shared.idle.set(self.index, Some(stuck)) {
            let moment = if shared.workers == 1 { stamp.own } else { stamp.others };
            if all == Outlook::Stuck || !shared.time.skip(moment) {
                shared.deadlock.store(true, Relaxed);
            }
        }
        while !shared.deadlock.load(Relaxed) {
            let now = (shared.changes.load(SeqCst), shared.time.epoch());
            if shared.stop.load(Relaxed) || now != stuck.moment() {
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
        let (live, changes, polls) = (warp.live, cx.changes, cx.polls);
        cx.runs.trace = warp.watch.trace(|| cx.stamp());
        let outcome = run_warp(cx, warp);
        warp.watch.traced(cx.runs.trace.take());
        if outcome == Outcome::Stopped {
            return Round::Stopped;
        }
        let ended = live & !warp.live;
        let quiet = warp.live != 0 && ended == 0 && cx.changes == changes;
        let idle = quiet && cx.gets_nowhere(warp, outcome, cx.polls - polls);
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
    cx.clock += std::mem::take(&mut cx.sleep);
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

/// Where the warps of a cluster are when none gets further.
struct Rest {
    outlook: Outlook,
    /// Whether only threads of the cluster can let them go on.
    alone: bool,
    /// Whether some that may run wait for mbarriers between.
    sleeps: bool,
}

/// Rounds in which warps that are known to repeat themselves come back to where they wait.
const LAST_ROUNDS: u32 = 64;

impl Context<'_> {
    /// Watches a warp whose turn changed nothing; whether it got no further.
    fn gets_nowhere(&self, warp: &mut Warp, outcome: Outcome, polls: u64) -> bool {
        let turn = Turn { stamp: self.stamp(), polls, parked: outcome == Outcome::Parked };
        let mut watch = std::mem::take(&mut warp.watch);
        let text = (self.code, self.shared.program.module());
        let idle = watch.observe(warp, turn, text, &self.shared.time.restart);
        warp.watch = watch;
        idle
    }

    /// Lets lanes go on that wait for the rest of their warp at an aligned instruction; whether there are any.
    fn release_held(&mut self) -> bool {
        let mut any = false;
        for rank in 0..self.cluster.residents.len() {
            let mut warps = self.take_warps(rank);
            warps.iter_mut().for_each(|warp| any |= warp.release_held());
            self.put_warps(rank, warps);
        }
        any
    }

    /// Looks at the warps of the cluster, none of which gets further.
    fn rest(&mut self) -> Rest {
        let stamp = self.stamp();
        let mut rest = Rest { outlook: Outlook::Stuck, alone: true, sleeps: false };
        for rank in 0..self.cluster.residents.len() {
            let warps = self.take_warps(rank);
            for warp in warps.iter().filter(|warp| warp.moves()) {
                rest.outlook = rest.outlook.max(warp.outlook(stamp));
                rest.sleeps |= warp.has_ready() && warp.watch.suspends();
                rest.alone &= match warp.watch.looks_outside() {
                    Some(outside) => !outside,
                    None => !warp.has_ready(),
                };
            }
            self.put_warps(rank, warps);
        }
        rest
    }

    /// The present moment between changes of memory.
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp { own: self.changes, others: self.shared.changes.load(SeqCst) }
    }
}
