//! The named barriers of a block, and what is wrong with their use.
//!
//! [`Barriers`] is the state of the 16 barriers that the interpreter drives: threads arrive, and the last arrival opens
//! the barrier. On the way it reports what PTX leaves undefined: an `.aligned` barrier that only some of a warp's
//! lanes reach, counts that are impossible or differ between arrivals, reductions mixed with plain arrivals.
//!
//! Without a count a barrier opens when all threads that have not exited are there. With a count it opens when
//! that many threads are there, and a warp counts as 32 threads once all its lanes that have not exited have
//! arrived; warps that exited are not counted.

use warpwright_ptx::isa::DeviceLimits;

pub use crate::events::barrier::{Arrival, Arrived, BarrierCall, Opened, Reduction, Waiter};
use crate::report::{Event, Findings, Key, Other, Severity, Site, Tool};

/// Barriers of a block.
pub const BARRIERS: u32 = DeviceLimits::BLOCK_BARRIERS;

#[derive(Clone, Debug, Default)]
struct Barrier {
    /// The count of the arrivals so far; `None` also if they gave none.
    count: Option<u32>,
    /// Threads that have arrived.
    threads: u32,
    /// The same, with complete warps counted as 32.
    counted: u32,
    /// Lanes of warps that have arrived in part.
    partial: Vec<(u32, u32)>,
    waiters: Vec<Waiter>,
    /// Warps and lanes that arrived without waiting.
    passed: Vec<(u32, u32)>,
    /// Instruction and thread of the first arrival, and whether it reduces.
    first: Option<(u32, Site, bool)>,
    popc: u32,
    reducing: u32,
}

/// The barriers of the block that a worker runs.
#[derive(Clone, Debug)]
pub struct Barriers {
    barriers: Vec<Barrier>,
    /// Barriers with arrivals.
    active: u32,
}

impl Default for Barriers {
    fn default() -> Self {
        Self { barriers: vec![Barrier::default(); BARRIERS as usize], active: 0 }
    }
}

impl Barriers {
    /// Sixteen barriers at which nobody has arrived.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a block.
    pub fn reset(&mut self) {
        if self.active != 0 {
            self.barriers.fill(Barrier::default());
            self.active = 0;
        }
    }

    /// Lanes arrive. Misuse goes to `findings` if the tool is on.
    pub fn arrive(&mut self, call: &BarrierCall, findings: Option<&mut Findings>) -> Arrived {
        let Some(barrier) = self.barriers.get_mut(call.id as usize) else {
            if let Some(findings) = findings {
                report_id(call, findings);
            }
            return Arrived::Passed;
        };
        if let Some(findings) = findings {
            barrier.check(call, findings);
        }
        self.active |= 1 << call.id;
        barrier.enter(call);
        if barrier.is_complete(call.live_threads) {
            return Arrived::Opened(self.open(call.id, call.live_threads));
        }
        if call.arrival == Arrival::Arrive { Arrived::Passed } else { Arrived::Blocked }
    }

    /// After threads have exited: a barrier without a count for which the remaining ones are all there now. Call again
    /// until there is none.
    pub fn open_after_exit(&mut self, live_threads: u32) -> Option<Opened> {
        if self.active == 0 {
            return None;
        }
        let id = (0..BARRIERS).find(|id| {
            let barrier = &self.barriers[*id as usize];
            barrier.count.is_none() && !barrier.waiters.is_empty() && barrier.is_complete(live_threads)
        })?;
        Some(self.open(id, live_threads))
    }

    /// How many threads a closed barrier has, and how many it was told to wait for.
    pub fn progress(&self, id: u32) -> (u32, Option<u32>) {
        self.barriers.get(id as usize).map_or((0, None), |b| match b.count {
            Some(count) => (b.counted, Some(count)),
            None => (b.threads, None),
        })
    }

    /// The lanes of a warp that have arrived at a closed barrier.
    pub fn arrived(&self, id: u32, warp: u32) -> u32 {
        let Some(barrier) = self.barriers.get(id as usize) else { return 0 };
        let waiting = barrier.waiters.iter().map(|w| (w.warp, w.lanes));
        let passed = barrier.passed.iter().copied();
        waiting.chain(passed).filter(|(w, _)| *w == warp).fold(0, |all, (_, lanes)| all | lanes)
    }

    fn open(&mut self, id: u32, live_threads: u32) -> Opened {
        let barrier = std::mem::take(&mut self.barriers[id as usize]);
        self.active &= !(1 << id);
        let waiting: u32 = barrier.waiters.iter().map(|w| w.lanes.count_ones()).sum();
        Opened {
            id,
            everyone: waiting == live_threads,
            waiters: barrier.waiters,
            reduction: Reduction { popc: barrier.popc, threads: barrier.reducing },
        }
    }
}

impl Barrier {
    fn enter(&mut self, call: &BarrierCall) {
        let lanes = call.lanes;
        if self.first.is_none() {
            self.count = call.count;
            self.first = Some((call.pc, site(call), matches!(call.arrival, Arrival::Reduce(_))));
        }
        self.threads += lanes.count_ones();
        self.counted += self.weight(call);
        if let Arrival::Reduce(predicates) = call.arrival {
            self.popc += (predicates & lanes).count_ones();
            self.reducing += lanes.count_ones();
        }
        if call.arrival == Arrival::Arrive {
            self.passed.push((call.warp, lanes));
        } else {
            self.waiters.push(Waiter { warp: call.warp, lanes, pc: call.pc, live: call.live });
        }
    }

    /// The weight of the arrival at a counted barrier: the threads, and those that a warp lacks of 32 when it is complete.
    fn weight(&mut self, call: &BarrierCall) -> u32 {
        let threads = call.lanes.count_ones();
        let before = self.partial.iter().position(|(warp, _)| *warp == call.warp);
        let arrived = call.lanes | before.map_or(0, |at| self.partial[at].1);
        if call.live & !arrived == 0 {
            if let Some(at) = before {
                self.partial.swap_remove(at);
            }
            return threads + 32 - arrived.count_ones();
        }
        match before {
            Some(at) => self.partial[at].1 = arrived,
            None => self.partial.push((call.warp, arrived)),
        }
        threads
    }

    fn is_complete(&self, live_threads: u32) -> bool {
        match self.count {
            Some(count) => self.counted >= count,
            None => self.threads >= live_threads,
        }
    }

    fn check(&self, call: &BarrierCall, findings: &mut Findings) {
        if call.aligned && call.live & !call.lanes != 0 {
            report_divergence(call, findings);
        }
        let bad_count = match call.count {
            Some(count) => count == 0 || count % 32 != 0 || count > DeviceLimits::BLOCK_THREADS,
            None => call.arrival == Arrival::Arrive,
        };
        if bad_count {
            report_count(call, findings);
        }
        let Some(first) = self.first else { return };
        if self.count != call.count {
            let text =
                |count: Option<u32>| count.map_or("all threads".to_owned(), |n| format!("{n} threads"));
            let (here, there) =
                if call.pc <= first.0 { (call.count, self.count) } else { (self.count, call.count) };
            let message = format!(
                "arrives at barrier {} for {}, while others arrive there for {}",
                call.id,
                text(here),
                text(there)
            );
            let help = "all arrivals at a barrier have to give the same count until it opens";
            report_pair(call, first, "barrier-count-mismatch", message, help, findings);
        }
        if first.2 != matches!(call.arrival, Arrival::Reduce(_)) {
            let message =
                format!("barrier {} is used by bar.red and by bar.sync or bar.arrive at once", call.id);
            let help = "use a barrier of its own for the reduction";
            report_pair(call, first, "barrier-kind-mismatch", message, help, findings);
        }
    }
}

/// Reports two arrivals that do not fit, at the lower instruction, so that the finding is the same whoever comes first.
#[cold]
fn report_pair(
    call: &BarrierCall,
    (first_pc, first_site, _): (u32, Site, bool),
    kind: &'static str,
    message: String,
    help: &str,
    findings: &mut Findings,
) {
    let (mine, theirs) = ((call.pc, site(call)), (first_pc, first_site));
    let (here, there) = if mine <= theirs { (mine, theirs) } else { (theirs, mine) };
    let key = Key { tool: Tool::Synccheck, kind, pc: here.0, other_pc: Some(there.0) };
    findings.record(key, here.1, || Event {
        severity: Severity::Error,
        message,
        help: help.to_owned(),
        address: None,
        other: Some(Other { site: Some(there.1), pc: Some(there.0), action: "arrived too" }),
    });
}

fn site(call: &BarrierCall) -> Site {
    Site { block: call.block, thread: 32 * call.warp + call.lanes.trailing_zeros() % 32 }
}

#[cold]
fn report(call: &BarrierCall, kind: &'static str, message: String, help: &str, findings: &mut Findings) {
    let key = Key { tool: Tool::Synccheck, kind, pc: call.pc, other_pc: None };
    findings.record(key, site(call), || Event {
        severity: Severity::Error,
        message,
        help: help.to_owned(),
        address: None,
        other: None,
    });
}

#[cold]
fn report_id(call: &BarrierCall, findings: &mut Findings) {
    let message = format!("barrier {} does not exist: a block has barriers 0 to 15", call.id);
    report(call, "barrier-id", message, "use a barrier below 16", findings);
}

#[cold]
fn report_divergence(call: &BarrierCall, findings: &mut Findings) {
    let message = format!(
        "{} of the warp's {} lanes reach an aligned barrier without the others (lanes {:#010x} of {:#010x})",
        call.lanes.count_ones(),
        call.live.count_ones(),
        call.lanes,
        call.live
    );
    let help = "move the barrier out of the divergent branch, or use barrier.sync without .aligned";
    report(call, "divergent-barrier", message, help, findings);
}

#[cold]
fn report_count(call: &BarrierCall, findings: &mut Findings) {
    let message = match call.count {
        Some(count) => format!("barrier {} with a count of {count} threads", call.id),
        None => format!("arrives at barrier {} without a count", call.id),
    };
    let help = "the count has to be a multiple of 32 from 32 to 1024, and bar.arrive needs one";
    report(call, "barrier-count", message, help, findings);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Participant;

    const FULL: u32 = u32::MAX;

    fn call(id: u32, warp: u32, lanes: u32, arrival: Arrival, count: Option<u32>) -> BarrierCall {
        BarrierCall {
            id,
            count,
            arrival,
            aligned: true,
            pc: 10 + warp,
            block: 3,
            warp,
            lanes,
            live: FULL,
            live_threads: 96,
        }
    }

    fn kinds(findings: Findings) -> Vec<&'static str> {
        struct Names;
        impl crate::report::Resolve for Names {
            fn kernel(&self) -> &str {
                "k"
            }
            fn grid(&self) -> [u32; 3] {
                [8, 1, 1]
            }
            fn block(&self) -> [u32; 3] {
                [96, 1, 1]
            }
            fn position(&self, pc: u32) -> crate::report::Position {
                crate::report::Position { line: pc, column: 1 }
            }
            fn label(&self, _: crate::report::Space, _: u64) -> Option<(String, u64)> {
                None
            }
        }
        findings.finish(&Names, 10).iter().map(|f| f.kind).collect()
    }

    #[test]
    fn the_last_of_all_threads_opens_a_barrier() {
        let mut b = Barriers::new();
        let mut findings = Findings::new();
        assert_eq!(b.arrive(&call(0, 0, FULL, Arrival::Sync, None), Some(&mut findings)), Arrived::Blocked);
        assert_eq!(b.arrive(&call(0, 2, FULL, Arrival::Sync, None), Some(&mut findings)), Arrived::Blocked);
        let Arrived::Opened(opened) = b.arrive(&call(0, 1, FULL, Arrival::Sync, None), Some(&mut findings))
        else {
            panic!("stays closed")
        };
        assert!(opened.everyone);
        assert_eq!(opened.participants().iter().map(|p| p.warp).collect::<Vec<_>>(), [0, 2, 1]);
        assert!(findings.is_empty());
        // And it can be used again.
        assert_eq!(b.arrive(&call(0, 0, FULL, Arrival::Sync, None), None), Arrived::Blocked);
    }

    #[test]
    fn exited_threads_are_not_waited_for_without_a_count() {
        let mut b = Barriers::new();
        b.arrive(&call(0, 0, FULL, Arrival::Sync, None), None);
        b.arrive(&call(0, 1, 0xff, Arrival::Sync, None), None);
        assert_eq!(b.open_after_exit(64), None);
        let opened = b.open_after_exit(40).expect("all 40 are there");
        assert_eq!(opened.waiters.len(), 2);
        assert_eq!(b.open_after_exit(40), None);
        b.arrive(&call(1, 0, FULL, Arrival::Sync, Some(64)), None);
        assert_eq!(b.open_after_exit(32), None);
    }

    #[test]
    fn counted_barriers_count_warps() {
        let mut b = Barriers::new();
        // A producer of 32 threads arrives, a consumer warp of which 16 lanes are left waits.
        assert_eq!(b.arrive(&call(1, 0, FULL, Arrival::Arrive, Some(64)), None), Arrived::Passed);
        let half = BarrierCall { live: 0xffff, ..call(1, 1, 0xffff, Arrival::Sync, Some(64)) };
        let Arrived::Opened(opened) = b.arrive(&half, None) else { panic!("stays closed") };
        assert!(!opened.everyone);
        assert_eq!(opened.participants(), [Participant { warp: 1, lanes: 0xffff, live: 0xffff }]);
        // A warp that arrives in two parts counts once.
        let part = |lanes| BarrierCall { aligned: false, ..call(2, 0, lanes, Arrival::Sync, Some(64)) };
        assert_eq!(b.arrive(&part(0xff), None), Arrived::Blocked);
        assert_eq!(b.arrive(&part(!0xff), None), Arrived::Blocked);
        assert!(matches!(b.arrive(&call(2, 1, FULL, Arrival::Sync, Some(64)), None), Arrived::Opened(_)));
    }

    #[test]
    fn reductions_combine_the_predicates_of_all_threads() {
        let mut b = Barriers::new();
        for (warp, predicates) in [(0, 0b1011), (1, FULL)] {
            assert_eq!(
                b.arrive(&call(0, warp, FULL, Arrival::Reduce(predicates), None), None),
                Arrived::Blocked
            );
        }
        let Arrived::Opened(opened) = b.arrive(&call(0, 2, FULL, Arrival::Reduce(0), None), None) else {
            panic!("stays closed")
        };
        assert_eq!(opened.reduction, Reduction { popc: 35, threads: 96 });
        assert!(opened.reduction.any() && !opened.reduction.all());
    }

    #[test]
    fn misuse_is_reported() {
        let cases: [(&str, &[BarrierCall]); 6] = [
            ("divergent-barrier", &[call(0, 0, 0xffff, Arrival::Sync, None)]),
            ("barrier-id", &[call(16, 0, FULL, Arrival::Sync, None)]),
            ("barrier-count", &[call(1, 0, FULL, Arrival::Sync, Some(33))]),
            ("barrier-count", &[call(1, 0, FULL, Arrival::Arrive, None)]),
            (
                "barrier-count-mismatch",
                &[call(1, 0, FULL, Arrival::Sync, Some(64)), call(1, 1, FULL, Arrival::Sync, Some(96))],
            ),
            (
                "barrier-kind-mismatch",
                &[call(1, 0, FULL, Arrival::Sync, None), call(1, 1, FULL, Arrival::Reduce(0), None)],
            ),
        ];
        for (kind, calls) in cases {
            let mut b = Barriers::new();
            let mut findings = Findings::new();
            for call in calls {
                b.arrive(call, Some(&mut findings));
            }
            assert_eq!(kinds(findings), [kind]);
        }
        // Lanes that exited are not missed.
        let mut findings = Findings::new();
        let left = BarrierCall { live: 0xffff, ..call(0, 0, 0xffff, Arrival::Sync, None) };
        Barriers::new().arrive(&left, Some(&mut findings));
        assert!(findings.is_empty());
    }

    #[test]
    fn progress_tells_threads_and_counts() {
        let mut b = Barriers::new();
        b.arrive(&call(1, 0, FULL, Arrival::Arrive, Some(96)), None);
        b.arrive(&BarrierCall { live: 0xffff, ..call(1, 1, 0xffff, Arrival::Sync, Some(96)) }, None);
        assert_eq!(b.progress(1), (64, Some(96)));
        assert_eq!((b.arrived(1, 0), b.arrived(1, 1), b.arrived(1, 2)), (FULL, 0xffff, 0));
        assert_eq!(b.progress(2), (0, None));
    }
}
