//! mbarriers in memory: who may touch them when, who waits for them, and what their phases publish.

use warpwright_ptx::{Semantics, StateSpace};

use super::mbarrier::{Mbarrier, Misuse, is_token, is_word, pending_count as count_of};
use super::reach::{Need, Spot};
use super::{Issuer, Parked, Remark};
use crate::code::asynchronous::{Arrive, Phase, Place, WaitOn};
use crate::code::layout::Slot;
use crate::context::Context;
use crate::events::asynchronous::Generic;
use crate::events::view::View;
use crate::exec::global::{alike, lane_value, lanes_of, set_lane};
use crate::flow::Flow;
use crate::launch::Completion;
use crate::report::{Other, Site, Space, Tool};
use crate::warp::{Group, Wait, Warp};

/// An mbarrier in shared memory.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) state: Mbarrier,
    /// Who initialised it.
    init: Option<Generic>,
    site: Site,
    pc: u32,
    /// Whether a fence published its initialisation, and whether a cluster barrier has carried it since.
    fenced: bool,
    published: bool,
    /// Knowledge of the arrivals of this phase.
    arrivals: View,
    /// Knowledge of those of the last phase that completed.
    completed: View,
    /// The copy whose bytes completed a phase that no thread has waited for.
    pub(super) unseen: Option<(u32, Site)>,
}

impl Object {
    /// Arrivals and bytes that the phase still waits for, in words.
    fn missing(&self) -> String {
        let Mbarrier { phase, expected, pending, tx } = self.state;
        let mut text = format!("phase {phase} still waits for {pending} of {expected} arrivals");
        if tx != 0 {
            text += &format!(" and {tx} bytes");
        }
        text
    }
}

const INIT_HELP: &str = "initialise it in one thread, then fence.mbarrier_init.release.cluster and bar.sync (for other \
                         blocks of the cluster barrier.cluster) before others use it";

/// `mbarrier.pending_count`
pub(super) fn pending_count(warp: &mut Warp, exec: u32, dst: Slot, state: Slot) {
    for lane in lanes_of(exec) {
        let count = count_of(lane_value(&warp.regs, state, lane));
        set_lane(&mut warp.regs, dst, lane, u64::from(count));
    }
}

impl Context<'_> {
    /// Where an mbarrier operand of a lane points.
    pub(super) fn object_spot(
        &mut self,
        warp: &Warp,
        issuer: Issuer,
        lane: usize,
        at: (StateSpace, u64),
    ) -> Option<Spot> {
        self.shared_spot(warp, issuer, lane, at, Need { bytes: 8, align: 8, write: true })
    }

    /// `mbarrier.init`
    pub(super) fn mbarrier_init(&mut self, warp: &Warp, issuer: Issuer, at: Place, count: u32) {
        let places = self.places(warp, at);
        for lane in lanes_of(issuer.lanes) {
            let Some(spot) = self.object_spot(warp, issuer, lane, (at.space, places[lane])) else { continue };
            let issuer = Issuer { lanes: 1 << lane, ..issuer };
            let key = (spot.rank, spot.address);
            let address = Some((Space::Shared, spot.address));
            if let Some(object) = self.cluster.asynchronous.objects.get(&key) {
                let other =
                    Some(Other { site: Some(object.site), pc: Some(object.pc), action: "initialised it" });
                let help = "initialise an mbarrier once, or mbarrier.inval it first";
                let message = "initialises an mbarrier that is in use";
                let remark = Remark { message: message.to_owned(), help, address, other };
                self.report_of(issuer, Tool::Synccheck, "mbarrier-reinitialised", remark);
            }
            let state = match Mbarrier::new(warp.regs.r32[count as usize].0[lane]) {
                Ok(state) => state,
                Err(misuse) => {
                    self.misuse(issuer, spot, misuse);
                    continue;
                }
            };
            let object = Object {
                state,
                init: self.races.as_ref().map(|r| r.moment(issuer.warp, lane as u32, issuer.pc)),
                site: self.site_of(issuer.rank, issuer.warp, lane as u32),
                pc: issuer.pc,
                fenced: false,
                published: false,
                arrivals: View::default(),
                completed: View::default(),
                unseen: None,
            };
            self.cluster.asynchronous.objects.insert(key, object);
            self.on_rank(spot.rank, |cx| cx.block.shared.mbarriers.insert(spot.address));
            self.show(spot);
        }
        if let Some(races) = &mut self.races {
            races.issue(issuer.warp);
        }
    }

    /// `mbarrier.inval`
    pub(super) fn mbarrier_inval(&mut self, warp: &Warp, issuer: Issuer, at: Place) {
        let places = self.places(warp, at);
        for lane in lanes_of(issuer.lanes) {
            let Some(spot) = self.object_spot(warp, issuer, lane, (at.space, places[lane])) else { continue };
            let issuer = Issuer { lanes: 1 << lane, ..issuer };
            if self.object(issuer, spot) {
                self.report_unseen(spot);
                self.cluster.asynchronous.objects.remove(&(spot.rank, spot.address));
                self.on_rank(spot.rank, |cx| {
                    cx.block.shared.mbarriers.remove(&spot.address);
                    cx.block.shared.store(spot.address, 8, 0);
                });
            }
        }
    }

    /// Writes the state of an mbarrier to memory, where it is opaque.
    fn show(&mut self, spot: Spot) {
        let Some(object) = self.cluster.asynchronous.objects.get(&(spot.rank, spot.address)) else { return };
        let word = object.state.word();
        self.on_rank(spot.rank, |cx| {
            cx.block.shared.store(spot.address, 8, word);
            cx.block.shared.define(spot.address, 8);
        });
        self.progressed();
    }

    /// Checks that lanes may use the mbarrier at a place; `false` if there is none.
    pub(super) fn object(&mut self, issuer: Issuer, spot: Spot) -> bool {
        let address = Some((Space::Shared, spot.address));
        let word = self.on_rank(spot.rank, |cx| cx.block.shared.load(spot.address, 8));
        let Some(object) = self.cluster.asynchronous.objects.get(&(spot.rank, spot.address)) else {
            let message = if is_word(word) {
                "uses a copy of an mbarrier; only the place that was initialised is one"
            } else {
                "uses shared memory as an mbarrier that was not initialised"
            };
            let help = "mbarrier.init first, and pass its own address";
            self.report_of(
                issuer,
                Tool::Synccheck,
                "mbarrier-uninitialised",
                Remark::new(message, help, address),
            );
            return false;
        };
        let (overwritten, init) = (object.state.word() != word, object.init);
        let other = Some(Other { site: Some(object.site), pc: Some(object.pc), action: "initialised it" });
        let published = object.published;
        if overwritten {
            let message = "uses an mbarrier whose bytes were overwritten";
            let help = "nothing but mbarrier operations may write to an mbarrier";
            self.report_of(
                issuer,
                Tool::Synccheck,
                "mbarrier-overwritten",
                Remark::new(message, help, address),
            );
        }
        if let (Some(races), Some(init), false) = (&self.races, init, published)
            && lanes_of(issuer.lanes).any(|lane| !races.knows(issuer.warp, lane as u32, init))
        {
            let message = "uses an mbarrier, and nothing orders this after its initialisation".to_owned();
            let remark = Remark { message, help: INIT_HELP, address, other };
            self.report_of(issuer, Tool::Racecheck, "mbarrier-init-unordered", remark);
        }
        true
    }

    fn misuse(&mut self, issuer: Issuer, spot: Spot, misuse: Misuse) {
        let (kind, message, help) = match misuse {
            Misuse::Count { got } => (
                "mbarrier-count",
                format!("an mbarrier cannot wait for {got} arrivals; the count is 1 to 1048575"),
                "pass the number of arrivals of a phase",
            ),
            Misuse::Overflow { pending, got } => (
                "mbarrier-overflow",
                format!("{got} arrivals at an mbarrier whose phase waits for {pending}"),
                "initialise it with the number of arrivals of each phase, and wait for a phase before arriving at the next",
            ),
            Misuse::Completes => (
                "mbarrier-no-complete",
                "an arrival with .noComplete is the last one of its phase".to_owned(),
                "the last arrival must be one without .noComplete",
            ),
            Misuse::Bytes { got } => (
                "mbarrier-bytes",
                format!(
                    "the mbarrier's phase would have to count {got} bytes; the limit is 1048575 either way"
                ),
                "announce in expect_tx just the bytes that the copies of this phase bring",
            ),
        };
        let address = Some((Space::Shared, spot.address));
        self.report_of(issuer, Tool::Synccheck, kind, Remark::new(message, help, address));
    }

    /// Changes the state of an mbarrier. `change` says whether a phase has completed.
    fn change(
        &mut self,
        issuer: Issuer,
        spot: Spot,
        known: Option<&View>,
        change: impl FnOnce(&mut Mbarrier) -> Result<bool, Misuse>,
    ) -> bool {
        let Some(object) = self.cluster.asynchronous.objects.get_mut(&(spot.rank, spot.address)) else {
            return false;
        };
        if let Some(view) = known {
            object.arrivals.merge(view);
        }
        let completed = match change(&mut object.state) {
            Ok(completed) => completed,
            Err(misuse) => {
                self.misuse(issuer, spot, misuse);
                return false;
            }
        };
        if completed {
            object.completed = std::mem::take(&mut object.arrivals);
        }
        self.show(spot);
        if completed {
            self.wake_rank(spot.rank);
        }
        completed
    }

    /// `mbarrier.arrive` and its family
    pub(super) fn mbarrier_arrive(&mut self, warp: &mut Warp, issuer: Issuer, arrive: &Arrive) {
        let places = self.places(warp, arrive.at);
        let mut spots = [None; 32];
        for lane in lanes_of(issuer.lanes) {
            spots[lane] = self.object_spot(warp, issuer, lane, (arrive.at.space, places[lane]));
        }
        let relaxed = arrive.ordering.semantics == Semantics::Relaxed;
        let lanes_to: u32 = lanes_of(issuer.lanes).filter(|l| spots[*l].is_some()).fold(0, |m, l| m | 1 << l);
        let view = if lanes_to == 0 {
            None
        } else {
            // Lanes that arrive together publish together if they arrive at one place.
            self.races.is_some().then_some(())
        };
        for (spot, same) in alike(lanes_to, spots) {
            let Some(spot) = spot else { continue };
            let issuer = Issuer { lanes: same, ..issuer };
            if !self.object(issuer, spot) {
                continue;
            }
            let view = view.and_then(|()| {
                let races = self.races.as_mut()?;
                Some(if relaxed {
                    races.publish_tensor(issuer.warp, same)
                } else {
                    races.publish(issuer.warp, same)
                })
            });
            for lane in lanes_of(same) {
                let value = |row: Option<u32>| row.map(|r| warp.regs.r32[r as usize].0[lane]);
                let (count, bytes) = (value(arrive.count).unwrap_or(1), value(arrive.expect_tx));
                let issuer = Issuer { lanes: 1 << lane, ..issuer };
                let key = (spot.rank, spot.address);
                let mut token = self.cluster.asynchronous.objects.get(&key).map_or(0, |o| o.state.token());
                self.change(issuer, spot, view.as_ref(), |state| {
                    if let Some(bytes) = bytes {
                        state.expect_tx(bytes)?;
                    }
                    token = state.token();
                    if arrive.drop {
                        state.drop_expected(count)?;
                    }
                    if arrive.no_complete {
                        state.arrive_no_complete(count).map(|()| false)
                    } else {
                        state.arrive(count)
                    }
                });
                if let Some(dst) = arrive.dst {
                    set_lane(&mut warp.regs, dst, lane, token);
                }
            }
        }
    }

    /// `mbarrier.expect_tx` and `mbarrier.complete_tx`
    pub(super) fn mbarrier_tx(&mut self, warp: &Warp, issuer: Issuer, complete: bool, at: Place, bytes: u32) {
        let places = self.places(warp, at);
        for lane in lanes_of(issuer.lanes) {
            let Some(spot) = self.object_spot(warp, issuer, lane, (at.space, places[lane])) else { continue };
            let issuer = Issuer { lanes: 1 << lane, ..issuer };
            let bytes = warp.regs.r32[bytes as usize].0[lane];
            if self.object(issuer, spot) {
                self.change(issuer, spot, None, |state| {
                    if complete { state.complete_tx(bytes) } else { state.expect_tx(bytes).map(|()| false) }
                });
            }
        }
    }

    /// An arrival on behalf of asynchronous copies.
    pub(super) fn arrive_later(&mut self, issuer: Issuer, spot: Spot, view: &View) {
        self.change(issuer, spot, Some(view), |state| state.arrive(1));
    }

    /// One more arrival to wait for in this phase.
    pub(super) fn expect_arrival(&mut self, issuer: Issuer, spot: Spot) {
        self.change(issuer, spot, None, |state| state.increase().map(|()| false));
    }

    /// The bytes of an operation have landed.
    pub(super) fn complete_tx(&mut self, issuer: Issuer, spot: Spot, bytes: u32, view: &View) {
        let site = self.site_of(issuer.rank, issuer.warp, issuer.lane());
        self.change(issuer, spot, Some(view), |state| state.complete_tx(bytes));
        if let Some(object) = self.cluster.asynchronous.objects.get_mut(&(spot.rank, spot.address)) {
            object.unseen = Some((issuer.pc, site));
        }
    }

    /// `mbarrier.test_wait` and `mbarrier.try_wait`
    pub(super) fn mbarrier_wait(
        &mut self,
        warp: &mut Warp,
        here: Group,
        issuer: Issuer,
        wait: &WaitOn,
    ) -> Flow {
        let places = self.places(warp, wait.at);
        let mut expired = self.take_parked(issuer);
        // A wait may give up at any time, so code that does not look at its answer is wrong.
        if self.shared.options.completion == Completion::Random && self.cluster.asynchronous.draw(3) == 0 {
            expired = issuer.lanes;
        }
        let (mut ready, mut late) = (0u32, 0u32);
        let mut parked_at = None;
        let mut checked: Option<Spot> = None;
        for lane in lanes_of(issuer.lanes) {
            let Some(spot) = self.object_spot(warp, issuer, lane, (wait.at.space, places[lane])) else {
                // Going on is better than waiting for nothing.
                ready |= 1 << lane;
                continue;
            };
            let one = Issuer { lanes: 1 << lane, ..issuer };
            if checked != Some(spot) {
                let all = lanes_of(issuer.lanes).all(|l| places[l] == places[lane]);
                if !self.object(if all { issuer } else { one }, spot) {
                    ready |= 1 << lane;
                    continue;
                }
                checked = all.then_some(spot);
            }
            if spot.rank != issuer.rank {
                let help = "wait in the block that owns the mbarrier";
                let message =
                    "waits for an mbarrier of another block of the cluster, which PTX does not allow";
                let remark = Remark::new(message, help, Some((Space::Shared, spot.address)));
                self.report_of(one, Tool::Synccheck, "mbarrier-remote-wait", remark);
            }
            let Some(object) = self.cluster.asynchronous.objects.get_mut(&(spot.rank, spot.address)) else {
                continue;
            };
            let done = match wait.phase {
                Phase::Parity(row) => object.state.has_completed_parity(warp.regs.r32[row as usize].0[lane]),
                Phase::State(slot) => {
                    let token = lane_value(&warp.regs, slot, lane);
                    !is_token(token) || object.state.has_completed(token)
                }
            };
            if done {
                ready |= 1 << lane;
                object.unseen = None;
            } else if !wait.suspends || expired >> lane & 1 == 1 {
                late |= 1 << lane;
            } else {
                parked_at = Some(spot);
            }
        }
        self.accept_phases(warp, issuer, wait, ready, &places);
        for lane in lanes_of(ready | late) {
            set_lane(&mut warp.regs, Slot::P(wait.dst), lane, u64::from(ready >> lane & 1));
        }
        if late != 0 {
            self.note_poll(warp);
        }
        let parked = issuer.lanes & !(ready | late);
        let Some(spot) = parked_at else { return Flow::Next };
        warp.push(here.pc + 1, here.mask & !parked, here.turn);
        let wait = Wait::Mbarrier { rank: spot.rank, address: spot.address as u32 };
        warp.groups.push(Group { pc: here.pc, mask: parked, wait, turn: 0 });
        let Issuer { rank, warp, pc, .. } = issuer;
        self.cluster.asynchronous.parked.push(Parked { rank, warp, pc, lanes: parked, expired: false });
        Flow::Repick
    }

    /// Lanes that saw a phase complete learn what its arrivals published.
    fn accept_phases(&mut self, warp: &Warp, issuer: Issuer, wait: &WaitOn, ready: u32, places: &[u64; 32]) {
        let relaxed = wait.ordering.semantics == Semantics::Relaxed;
        let Some(races) = &mut self.races else { return };
        for (place, same) in alike(ready, *places) {
            let address = crate::space::split_cluster(match crate::space::classify(place) {
                (Space::Shared, address) => address,
                _ => place,
            });
            if let Some(object) = self.cluster.asynchronous.objects.get(&(issuer.rank, address.1)) {
                if relaxed {
                    // Execution order is enough for `tcgen05` between its fences.
                    races.accept(issuer.warp, same, warp.live, &object.completed.only_tensor());
                } else {
                    races.accept(issuer.warp, same, warp.live, &object.completed);
                }
            }
        }
    }

    /// Forgets that lanes were parked at an instruction; gives those whose time is up.
    fn take_parked(&mut self, issuer: Issuer) -> u32 {
        let mut expired = 0;
        for parked in &mut self.cluster.asynchronous.parked {
            if (parked.rank, parked.warp, parked.pc) == (issuer.rank, issuer.warp, issuer.pc) {
                if parked.expired {
                    expired |= parked.lanes & issuer.lanes;
                }
                parked.lanes &= !issuer.lanes;
            }
        }
        self.cluster.asynchronous.parked.retain(|p| p.lanes != 0);
        expired
    }

    /// `fence.mbarrier_init`
    pub(super) fn publish_inits(&mut self, issuer: Issuer) {
        for object in self.cluster.asynchronous.objects.values_mut() {
            let by = |init: &Generic| {
                (init.rank, init.warp) == (issuer.rank, issuer.warp) && issuer.lanes >> init.lane & 1 == 1
            };
            object.fenced |= object.init.as_ref().is_some_and(by);
        }
    }

    /// A phase of the cluster barrier has ended: initialisations that were fenced before are known to everyone.
    pub(crate) fn asynchronous_published(&mut self) {
        for object in self.cluster.asynchronous.objects.values_mut() {
            object.published |= object.fenced;
        }
    }

    /// Describes what an mbarrier waits for, for the report of a deadlock.
    pub(crate) fn describe_mbarrier(&self, rank: u32, address: u32) -> String {
        let name = crate::report::Resolve::label(self.shared, Space::Shared, u64::from(address))
            .map_or_else(|| format!("{address:#x}"), |(name, offset)| format!("`{name}` + {offset}"));
        match self.cluster.asynchronous.objects.get(&(rank, u64::from(address))) {
            Some(object) => format!("the mbarrier at {name}: {}", object.missing()),
            None => format!("the mbarrier at {name}, which is not one any more"),
        }
    }

    /// Reports a copy whose end no thread has waited for.
    fn report_unseen(&mut self, spot: Spot) {
        let unseen = self.cluster.asynchronous.objects.get(&(spot.rank, spot.address)).and_then(|o| o.unseen);
        if let Some((pc, site)) = unseen {
            let help = "wait for the mbarrier before the block ends or reuses its memory";
            let message = "no thread waits for the mbarrier that counts the bytes of this copy";
            let remark = Remark::new(message, help, Some((Space::Shared, spot.address)));
            let key = crate::report::Key { tool: Tool::Synccheck, kind: "pending-copy", pc, other_pc: None };
            self.report(key, site, remark);
        }
    }

    /// Reports everything that nobody waited for.
    pub(super) fn report_unseen_objects(&mut self) {
        let spots: Vec<Spot> =
            self.cluster.asynchronous.objects.keys().map(|&(rank, address)| Spot { rank, address }).collect();
        for spot in spots {
            self.report_unseen(spot);
        }
    }
}
