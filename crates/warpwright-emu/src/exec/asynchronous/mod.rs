//! Operations that complete later: asynchronous copies, mbarriers, bulk and tensor copies.
//!
//! An operation is checked and recorded when it is issued, and put into a queue. When its bytes move is up to
//! [`Completion`](crate::Completion): at once, as late as possible, or at random in between. As late as possible means
//! when a thread waits for its group, or when no thread of the cluster can go on; then the oldest operation completes.
//! Threads that wait for an mbarrier in vain are parked; if nothing is left that could complete, they get `false`, as if
//! their time was up, and are watched as others that poll are.

mod bulk;
mod copy;
mod map;
mod mbarrier;
mod object;
mod queue;
mod reach;
mod tensor;
mod tile;
mod watch;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::code::asynchronous::Asynchronous;
use crate::context::Context;
use crate::flow::Flow;
use crate::launch::Completion;
use crate::memory::Allocation;
use crate::report::{Event, Key, Other, Severity, Site, Space, Tool};
use crate::warp::{Group, Warp};

use object::Object;
use queue::{Groups, Pending};
use watch::Operation;

/// Nanoseconds after which a thread that waits for an mbarrier is told that its time is up.
const SUSPENSION: u64 = 1000;

/// The asynchronous operations and mbarriers of the cluster that runs.
#[derive(Default)]
pub(crate) struct State {
    /// Whether there have been any.
    active: bool,
    /// Operations that have not completed, oldest first.
    queue: VecDeque<Pending>,
    /// Operations as findings name them, by number.
    operations: HashMap<u32, Operation>,
    /// How many of those were left when last some were forgotten.
    kept: usize,
    /// Number of the next operation.
    next: u32,
    /// By rank and address.
    objects: BTreeMap<(u32, u64), Object>,
    /// Groups of copies by rank and warp: `cp.async`, and bulk.
    copies: HashMap<(u32, u32), Groups>,
    bulks: HashMap<(u32, u32), Groups>,
    /// Operations of `tcgen05` that threads, by rank, warp and lane, have issued since their last commit.
    uncommitted: HashMap<(u32, u32, u32), Vec<u32>>,
    parked: Vec<Parked>,
    random: u64,
    /// The allocation that was used last.
    last: Option<Arc<Allocation>>,
}

/// Lanes that wait for an mbarrier.
#[derive(Clone, Copy, Debug)]
struct Parked {
    rank: u32,
    warp: u32,
    pc: u32,
    lanes: u32,
    /// Their time is up.
    expired: bool,
}

/// Who issues an operation.
#[derive(Clone, Copy, Debug)]
struct Issuer {
    rank: u32,
    warp: u32,
    /// The lanes that issue it.
    lanes: u32,
    /// Lanes of the warp that have not exited.
    live: u32,
    pc: u32,
}

impl Issuer {
    /// The first lane that issues it, for whom findings speak.
    fn lane(self) -> u32 {
        self.lanes.trailing_zeros() % 32
    }
}

impl State {
    /// Whether generic accesses have to be watched.
    #[inline(always)]
    pub(crate) fn watching(&self) -> bool {
        self.active
    }

    /// Takes the next number of an operation.
    fn number(&mut self) -> u32 {
        // Views tell reads and writes apart in the lowest bit.
        self.next = (self.next + 1) & (u32::MAX >> 1);
        self.next
    }

    /// A deterministic number below `n`.
    fn draw(&mut self, n: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.random;
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ x >> 31) % n
    }
}

impl Context<'_> {
    /// Executes an instruction of this family; `Flow::Repick` if lanes were parked.
    pub(super) fn asynchronous(&mut self, warp: &mut Warp, here: Group, exec: u32, at: u32) -> Flow {
        if exec == 0 {
            return Flow::Next;
        }
        self.cluster.asynchronous.active = true;
        let code = self.code;
        let issuer =
            Issuer { rank: self.rank(), warp: warp.index, lanes: exec, live: warp.live, pc: here.pc };
        match &code.asynchronous[at as usize] {
            Asynchronous::Copy { dst, src, bytes, limit } => {
                self.copy(warp, issuer, (*dst, *src), *bytes, *limit);
            }
            Asynchronous::CopyCommit => self.copy_commit(issuer),
            Asynchronous::CopyWait { pending } => self.copy_wait(issuer, *pending),
            Asynchronous::CopyArrive { noinc, at } => self.copy_arrive(warp, issuer, *noinc, *at),
            Asynchronous::Init { at, count } => self.mbarrier_init(warp, issuer, *at, *count),
            Asynchronous::Inval { at } => self.mbarrier_inval(warp, issuer, *at),
            Asynchronous::Arrive(arrive) => self.mbarrier_arrive(warp, issuer, arrive),
            Asynchronous::Wait(wait) => return self.mbarrier_wait(warp, here, issuer, wait),
            Asynchronous::Tx { complete, at, bytes } => {
                self.mbarrier_tx(warp, issuer, *complete, *at, *bytes);
            }
            Asynchronous::PendingCount { dst, state } => object::pending_count(warp, exec, *dst, *state),
            Asynchronous::Bulk(bulk) => self.bulk(warp, issuer, bulk),
            Asynchronous::BulkPrefetch { at, bytes } => self.bulk_prefetch(warp, issuer, *at, *bytes),
            Asynchronous::BulkCommit => self.bulk_commit(issuer),
            Asynchronous::BulkWait { read, pending } => self.bulk_wait(issuer, *read, *pending),
            Asynchronous::Tensor(tensor) => self.tensor(warp, issuer, tensor),
            Asynchronous::Remote(remote) => self.remote(warp, issuer, remote),
            Asynchronous::Zero { at, bytes } => self.zero(warp, issuer, *at, *bytes),
            Asynchronous::Replace { field, at, index, value } => {
                self.replace_field(warp, issuer, *field, *at, *index, *value);
            }
            Asynchronous::CopyMap { dst, src } => self.copy_map(warp, issuer, *dst, *src),
            Asynchronous::FenceProxy(memories) => {
                if let Some(races) = &mut self.races {
                    races.fence_proxy(issuer.warp, issuer.lanes, issuer.live, memories);
                }
            }
            Asynchronous::TensorCore(op) => self.tensor_lanes(warp, issuer, op),
            Asynchronous::FenceInit => self.publish_inits(issuer),
            Asynchronous::FenceOther => {}
        }
        if self.shared.options.completion == Completion::Random {
            while !self.cluster.asynchronous.queue.is_empty() && self.cluster.asynchronous.draw(3) == 0 {
                let at =
                    self.cluster.asynchronous.draw(self.cluster.asynchronous.queue.len() as u64) as usize;
                self.complete_at(at);
            }
        }
        if self.fault.is_some() { Flow::Stop } else { Flow::Next }
    }

    /// Completes the oldest operation; `false` if there is none.
    pub(crate) fn complete_oldest(&mut self) -> bool {
        let any = !self.cluster.asynchronous.queue.is_empty();
        if any {
            self.complete_at(0);
        }
        any
    }

    /// Lets those that wait for mbarriers know that their time is up; `false` if there are none.
    pub(crate) fn expire_waits(&mut self) -> bool {
        let mut ranks = Vec::new();
        for parked in self.cluster.asynchronous.parked.iter_mut().filter(|p| !p.expired) {
            parked.expired = true;
            ranks.push(parked.rank);
        }
        let any = !ranks.is_empty();
        if any {
            self.clock += SUSPENSION;
        }
        for rank in ranks {
            self.wake_rank(rank);
        }
        any
    }

    /// Begins a cluster.
    pub(crate) fn begin_asynchronous(&mut self) {
        if self.cluster.asynchronous.active {
            self.cluster.asynchronous = State::default();
        }
        // Generic writes count from the beginning if something may read them through the other proxy.
        self.cluster.asynchronous.active = self.code.proxies;
        self.cluster.asynchronous.random = self.shared.options.seed ^ self.cluster.linear;
    }

    /// The threads of the cluster were ended by force: nothing is said about what they left.
    pub(crate) fn abandon_asynchronous(&mut self) {
        self.cluster.asynchronous = State::default();
    }

    /// All threads of the cluster have ended: completes what is left, and says what nobody waited for.
    pub(crate) fn end_asynchronous(&mut self) {
        if !self.cluster.asynchronous.active {
            return;
        }
        while !self.cluster.asynchronous.queue.is_empty() && self.fault.is_none() {
            self.complete_at(0);
        }
        self.report_pending();
    }

    /// Lets the threads of a block that wait for mbarriers look again.
    fn wake_rank(&mut self, rank: u32) {
        if let Some(block) = self.block_of(rank) {
            block.woken = true;
        }
    }

    /// Something that parked threads may wait for has happened.
    fn progressed(&mut self) {
        self.note_change();
    }

    /// Records a finding of one thread.
    #[cold]
    fn report(&mut self, key: Key, site: Site, remark: Remark) {
        self.report_as(Severity::Error, key, site, remark);
    }

    #[cold]
    fn report_as(&mut self, severity: Severity, key: Key, site: Site, remark: Remark) {
        let on = match key.tool {
            Tool::Memcheck => self.checks.memcheck,
            Tool::Initcheck => self.checks.initcheck,
            Tool::Synccheck => self.checks.synccheck,
            Tool::Racecheck => self.races.is_some(),
        };
        if on {
            self.findings.record(key, site, || Event {
                severity,
                message: remark.message,
                help: remark.help.to_owned(),
                address: remark.address,
                other: remark.other,
            });
        }
    }

    /// A finding of the lowest lane of an issuer.
    #[cold]
    fn report_of(&mut self, issuer: Issuer, tool: Tool, kind: &'static str, remark: Remark) {
        let site = self.site_of(issuer.rank, issuer.warp, issuer.lane());
        let other_pc = remark.other.and_then(|o| o.pc);
        self.report(Key { tool, kind, pc: issuer.pc, other_pc }, site, remark);
    }

    /// The same as a warning.
    #[cold]
    fn warn_of(&mut self, issuer: Issuer, tool: Tool, kind: &'static str, remark: Remark) {
        let site = self.site_of(issuer.rank, issuer.warp, issuer.lane());
        let other_pc = remark.other.and_then(|o| o.pc);
        self.report_as(Severity::Warning, Key { tool, kind, pc: issuer.pc, other_pc }, site, remark);
    }
}

/// The text of a finding.
struct Remark {
    message: String,
    help: &'static str,
    address: Option<(Space, u64)>,
    other: Option<Other>,
}

impl Remark {
    fn new(message: impl Into<String>, help: &'static str, address: Option<(Space, u64)>) -> Self {
        Self { message: message.into(), help, address, other: None }
    }
}
