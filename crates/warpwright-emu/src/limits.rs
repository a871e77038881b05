//! Limits of a launch that may never end by itself: an interrupt, a deadline, a number of steps.
//!
//! A worker looks at these between *slices* of its instructions. A slice ends inside straight code too: the interpreter
//! hands out no instruction beyond its end, so the cost is one comparison at each backward branch.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};
use std::time::Instant;

use crate::context::{Context, Shared};
use crate::launch::Fault;

/// Instructions of a warp between two looks: some microseconds of arithmetic, below half a second of the slowest
/// instructions.
const SLICE: u64 = 1 << 12;

/// Ends launches from another thread, or from a signal handler. Clones are the same interrupt.
///
/// A launch whose [`Options::interrupt`](crate::Options::interrupt) is raised ends with [`Fault::Interrupted`] within a
/// fraction of a second, whatever the kernel does; one that begins later ends before its first instruction.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// One that is not raised.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the launches that this belongs to.
    pub fn raise(&self) {
        self.0.store(true, SeqCst);
    }

    /// Lets launches run again.
    pub fn reset(&self) {
        self.0.store(false, SeqCst);
    }

    /// Whether it was raised.
    pub fn is_raised(&self) -> bool {
        self.0.load(Relaxed)
    }
}

impl PartialEq for Interrupt {
    /// Whether they are the same interrupt.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Interrupt {}

/// The slice of instructions that a worker is in.
#[derive(Debug, Default)]
pub(crate) struct Slice {
    /// Count of steps at which it ends.
    pub(crate) end: u64,
    /// Count of steps from which on a backward branch ends the slice. Close to the limit of the launch every one does, so that
    /// the limit is exact; else it is `end`, and a slice may be longer by what lies between two backward branches.
    pub(crate) branch: u64,
    /// Steps that were added to those of the launch.
    told: u64,
}

impl Shared<'_> {
    /// Why the launch has to end, the number of steps aside.
    fn asked_to_end(&self) -> Option<Fault> {
        let options = self.options;
        if options.interrupt.as_ref().is_some_and(Interrupt::is_raised) {
            return Some(Fault::Interrupted { block: [0; 3], positions: String::new() });
        }
        let now = options.deadline.map(|deadline| (deadline, Instant::now()));
        let elapsed = now.filter(|(deadline, now)| now >= deadline).map(|(_, now)| now - self.begun)?;
        Some(Fault::TimeLimit { block: [0; 3], elapsed, positions: String::new() })
    }
}

impl Context<'_> {
    /// Looks whether the launch has to end, between two clusters or while this worker waits for others.
    pub(crate) fn must_end(&mut self) -> bool {
        if let Some(fault) = self.shared.asked_to_end() {
            self.fault.get_or_insert(fault);
        }
        self.fault.is_some() || self.shared.stop.load(Relaxed)
    }

    /// Called at the end of a slice with an instruction left to execute: begins another one, or says that the launch ends.
    #[cold]
    #[inline(never)]
    pub(crate) fn slice_over(&mut self) -> bool {
        let steps = self.runs.steps;
        let limit = self.shared.options.max_steps;
        if limit == 0 {
            self.slice.end = steps + SLICE;
            self.slice.branch = self.slice.end;
            return self.must_end();
        }
        let new = steps - self.slice.told;
        self.slice.told = steps;
        let all = self.shared.steps.fetch_add(new, Relaxed) + new;
        let left = limit.saturating_sub(all);
        if left == 0 {
            let fault = Fault::StepLimit { block: [0; 3], steps: limit, positions: String::new() };
            self.fault.get_or_insert(fault);
        }
        // Others take from the same rest.
        let workers = self.shared.workers as u64;
        let share = if workers == 1 { left } else { (left / workers).max(left.min(64)) };
        self.slice.end = steps + share.min(SLICE);
        let straight = self.code.ins.len() as u64;
        self.slice.branch = if left <= SLICE + straight { 0 } else { self.slice.end };
        self.must_end()
    }
}
