//! Whether a warp that polls can still come to something by itself.
//!
//! After a turn that changed nothing in memory a warp is watched: which code its turns run, and the state in which they
//! end. Of the state only that counts which decides how it goes on ([`Relevance`]): a counter that nothing looks at, a
//! clock that only says how long to sleep and registers that are written before they are read may differ. States are noted
//! after 1, 2, 4, ... turns (Brent's search), so that a cycle of any length is found. What is then known, until memory
//! changes, is its [`Outlook`]:
//!
//! - The state came back, and no clock decides: the warp does the same for ever. This is a proof.
//! - All of the state came back but what follows clocks: only time can change its course.
//! - The state never came back: a counter decides. The warp is run on until it has polled [`POLL_LIMIT`] times; counts up
//!   to that are the kernel's own limits and end as on a device.
//!
//! A launch is deadlocked when every warp waits or is known to repeat itself. If it would be but for warps whose course
//! time or a count may change, the clocks are put forward by ever larger steps ([`Time::skip`]), and all poll again. A loop
//! with a deadline ends so; one that is not left after [`TIME_LIMIT`] counts as one that repeats itself.
//!
//! Warps that meet at barriers are watched as others are, after [`PATIENCE`] turns. What `bar.red` brings comes from other warps, whose
//! states may come back at other times, so there it takes [`PHASES`] turns without a change instead of a proof.
//!
//! Limits: a loop that writes to memory, be it a count, counts as one that gets on. Counters in local memory, in registers
//! that a called function returns and in carry flags are taken to decide.

use std::mem;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Mutex, PoisonError};

use warpwright_ptx::Module;

use crate::code::Code;
use crate::code::layout::Slot;
use crate::relevance::{Region, Relevance};
use crate::warp::{Digest, Wait, Warp};

/// Polls in vain after which the count of a loop is taken not to end it.
pub(crate) const POLL_LIMIT: u64 = 1 << 21;
/// Nanoseconds in which a loop with a deadline that is ever to pass ends: two years.
pub(crate) const TIME_LIMIT: u64 = 1 << 56;
/// Nanoseconds up to which the clocks are put forward in small steps, so that the order of deadlines is kept: minutes.
const SMALL_STEPS: u64 = 1 << 40;
/// Turns without a change after which warps that wait for each other at barriers are watched too.
const PATIENCE: u32 = 32;
/// Phases of a barrier with a reduction after which counts in other warps are taken not to matter.
const PHASES: u32 = 1 << 12;

/// A moment between changes of memory: changes that this worker made, and the launch's count of changes by others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) own: u64,
    pub(crate) others: u64,
}

/// Outcomes of a warp while nobody else changes anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outlook {
    /// It waits, or does the same for ever.
    #[default]
    Stuck,
    /// Only time can change its course.
    Timed,
    /// It has polled as often as any count should want.
    Spent,
    /// Not known.
    Open,
}

/// A turn of a warp that changed nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) stamp: Stamp,
    pub(crate) polls: u64,
    /// Whether it ended because the warp waits.
    pub(crate) parked: bool,
}

/// Progress of a warp since memory last changed.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    stamp: Stamp,
    /// Turns that changed nothing, and polls in them.
    quiet: u32,
    polls: u64,
    search: Option<Box<Search>>,
}

/// The search for a state that comes back.
#[derive(Debug, Default)]
struct Search {
    /// Instructions that ran since the state was noted.
    window: Region,
    /// The instructions taken to be all that runs, and the registers that decide there.
    region: Region,
    relevance: Relevance,
    noted: u64,
    turns: u32,
    span: u32,
    /// Turns of the cycle once it is found, and those since the noted state was last seen.
    cycle: Option<(u32, u32)>,
}

impl Watch {
    /// Whether what the warp runs has to be traced; if so, where to.
    pub(crate) fn trace(&mut self, stamp: impl FnOnce() -> Stamp) -> Option<Region> {
        let search = self.search.as_mut()?;
        if search.cycle.is_some() && !search.relevance.timed || stamp() != self.stamp {
            return None;
        }
        Some(mem::take(&mut search.window))
    }

    /// Takes back what was traced.
    pub(crate) fn traced(&mut self, window: Option<Region>) {
        if let (Some(search), Some(window)) = (&mut self.search, window) {
            search.window = window;
        }
    }

    /// A turn has changed nothing. Whether the warp got no further in it; `restart` is set if time had changed its course.
    pub(crate) fn observe(
        &mut self,
        warp: &Warp,
        turn: Turn,
        (code, module): (&Code, &Module),
        restart: &AtomicBool,
    ) -> bool {
        if turn.stamp != self.stamp {
            *self = Self { stamp: turn.stamp, ..Self::default() };
        }
        self.quiet = self.quiet.saturating_add(1);
        self.polls += turn.polls;
        if turn.parked && self.quiet < PATIENCE {
            return false;
        }
        let spent = self.polls >= POLL_LIMIT;
        match &mut self.search {
            None => self.search = Some(Box::default()),
            Some(search) if search.cycle.is_some() && !search.relevance.timed => {}
            Some(search) => {
                if search.step(warp, code, module) && !spent {
                    restart.store(true, Relaxed);
                }
            }
        }
        turn.polls != 0 || self.search.as_ref().is_some_and(|s| s.cycle.is_some())
    }

    /// The outcome of the warp as long as nothing changes after `stamp`, if it does not wait.
    pub(crate) fn outlook(&self, stamp: Stamp) -> Outlook {
        if self.stamp != stamp {
            return Outlook::Open;
        }
        let spent = if self.polls >= POLL_LIMIT { Outlook::Spent } else { Outlook::Open };
        match self.search.as_deref() {
            Some(Search { cycle: Some(_), relevance, .. }) if relevance.reduces => {
                if self.quiet >= PHASES {
                    Outlook::Spent
                } else {
                    Outlook::Open
                }
            }
            Some(Search { cycle: Some(_), relevance, .. }) if relevance.timed => Outlook::Timed,
            Some(Search { cycle: Some(_), .. }) => Outlook::Stuck,
            _ => spent,
        }
    }

    /// The same since memory last changed, and the polling instruction of its loop.
    pub(crate) fn latest(&self) -> (Outlook, Option<u32>) {
        let poll = self.search.as_ref().and_then(|s| s.relevance.poll);
        (self.outlook(self.stamp), poll)
    }

    /// Whether its loop waits for mbarriers so that it is parked.
    pub(crate) fn suspends(&self) -> bool {
        self.search.as_ref().is_some_and(|s| s.relevance.suspends)
    }

    /// Whether its loop reads memory that other clusters may write, if that is known.
    pub(crate) fn looks_outside(&self) -> Option<bool> {
        let search = self.search.as_ref()?;
        (search.span > 0).then_some(search.relevance.outside || search.relevance.opaque)
    }
}

impl Search {
    /// A turn has ended. Whether a cycle that was known is not one any more.
    fn step(&mut self, warp: &Warp, code: &Code, module: &Module) -> bool {
        if self.span == 0 || !self.relevance.covers.contains(&self.window) {
            let known = self.cycle.take().is_some();
            self.region.join(&self.window);
            self.relevance = Relevance::new(code, module, &self.region);
            // Not from one turn on: what runs but now and then would begin the search anew for ever.
            self.note(warp, code, module, self.span.max(1));
            return known;
        }
        let state = state(warp, &mut self.relevance, code, module);
        self.turns += 1;
        if let Some((length, since)) = &mut self.cycle {
            *since = if state == self.noted { 0 } else { *since + 1 };
            let broken = since > length;
            if broken {
                self.cycle = None;
                self.note(warp, code, module, self.span);
            } else if *since == 0 {
                self.window.clear();
            }
            return broken;
        }
        if state == self.noted {
            self.cycle = Some((self.turns, 0));
        } else if self.turns == self.span {
            // What ran before the loop is forgotten.
            if self.window != self.region {
                self.region = mem::take(&mut self.window);
                self.relevance = Relevance::new(code, module, &self.region);
            }
            self.note(warp, code, module, self.span.saturating_mul(2));
        }
        false
    }

    fn note(&mut self, warp: &Warp, code: &Code, module: &Module, span: u32) {
        self.noted = state(warp, &mut self.relevance, code, module);
        (self.turns, self.span) = (0, span);
        self.window.clear();
    }
}

/// A digest of what decides how a warp goes on, memory that others see aside.
fn state(warp: &Warp, relevance: &mut Relevance, code: &Code, module: &Module) -> u64 {
    if relevance.opaque {
        return warp.state();
    }
    let mut all = Digest::new(u64::from(warp.carry) ^ u64::from(warp.live) << 32);
    if relevance.local {
        all.words(&warp.local.words);
    }
    warp.paths.tops.iter().for_each(|top| all.add(*top));
    let mut sum = 0u64;
    for group in &warp.groups {
        let mut digest = Digest::new(warp.position(group));
        match relevance.at(code, module, group.pc) {
            Some(slots) => slots.iter().for_each(|slot| lanes(&mut digest, warp, *slot, group.mask)),
            None if group.wait == Wait::Ready => digest.add(warp.state()),
            None => {}
        }
        // In no order: groups change places in the list.
        sum = sum.wrapping_add(digest.value());
    }
    all.add(sum);
    all.value()
}

/// Adds what lanes have in a slot.
fn lanes(digest: &mut Digest, warp: &Warp, slot: Slot, mask: u32) {
    let each = |digest: &mut Digest, row: &[u64]| {
        (0..).zip(row).filter(|(lane, _)| mask >> lane & 1 != 0).for_each(|(_, v)| digest.add(*v));
    };
    match slot {
        Slot::W(row) => {
            let row = &warp.regs.r32[row as usize].0;
            (0..).zip(row).filter(|(l, _)| mask >> l & 1 != 0).for_each(|(_, v)| digest.add(u64::from(*v)));
        }
        Slot::L(row) => each(digest, &warp.regs.r64[row as usize].0),
        Slot::Q(row) => {
            each(digest, &warp.regs.r64[row as usize].0);
            each(digest, &warp.regs.r64[row as usize + 1].0);
        }
        Slot::P(p) => digest.add(u64::from(warp.regs.pred[p as usize] & mask)),
    }
}

/// Emulated time, as far as the workers share it.
#[derive(Debug, Default)]
pub(crate) struct Time {
    /// The latest value of the global timer.
    timer: AtomicU64,
    /// Nanoseconds by which the clocks were put forward.
    skipped: AtomicU64,
    /// How often.
    epoch: AtomicU64,
    /// Set when a warp has changed its course since.
    pub(crate) restart: AtomicBool,
    /// The moment between changes since which nothing happens, and the nanoseconds that have passed.
    waited: Mutex<(u64, u64)>,
}

impl Time {
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(SeqCst)
    }

    pub(crate) fn skipped(&self) -> u64 {
        self.skipped.load(Relaxed)
    }

    /// The global timer where a worker's clock says `clock`; it never goes back.
    pub(crate) fn nanoseconds(&self, clock: u64) -> u64 {
        clock.max(self.timer.fetch_max(clock, Relaxed))
    }

    /// Puts the clocks forward, by a quarter of what has passed since `moment`, when memory last changed. `false` if
    /// enough has passed.
    pub(crate) fn skip(&self, moment: u64) -> bool {
        let mut waited = self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        if waited.0 != moment || self.restart.swap(false, Relaxed) {
            *waited = (moment, 0);
        }
        let passed = waited.1;
        if passed >= TIME_LIMIT {
            return false;
        }
        let step = if passed < SMALL_STEPS { (passed / 4).max(1024) } else { passed };
        waited.1 = passed + step;
        self.skipped.fetch_add(step, Relaxed);
        self.epoch.fetch_add(1, SeqCst);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clocks_are_put_forward_by_a_quarter_of_what_has_passed() {
        let time = Time::default();
        assert!(time.skip(7));
        assert_eq!((time.skipped(), time.epoch()), (1024, 1));
        while time.skipped() < 1 << 20 {
            let before = time.skipped();
            assert!(time.skip(7));
            assert_eq!(time.skipped() - before, (before / 4).max(1024));
        }
        // After a change of memory, or of a warp's course, steps are small again.
        let before = time.skipped();
        assert!(time.skip(8));
        assert_eq!(time.skipped() - before, 1024);
        time.restart.store(true, Relaxed);
        assert!(time.skip(8));
        assert_eq!(time.skipped() - before, 2048);
        let mut steps = 0;
        while time.skip(8) {
            steps += 1;
        }
        assert!(steps < 150, "{steps}");
        assert!(time.skipped() > TIME_LIMIT && time.skipped() < 2 * TIME_LIMIT + before);
    }

    #[test]
    fn the_global_timer_never_goes_back() {
        let time = Time::default();
        assert_eq!(time.nanoseconds(9), 9);
        assert_eq!(time.nanoseconds(5), 9);
        assert_eq!(time.nanoseconds(12), 12);
    }
}
