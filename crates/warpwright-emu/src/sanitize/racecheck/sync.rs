//! Clocks of a block: warp and block barriers, fences, releases and acquires.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering as Atomic;

use warpwright_ptx::{Ordering, Scope, Semantics};

use super::shadow::Id;
use super::{AccessKind, BlockRaces, Participant, Strength};
use crate::code::asynchronous::Proxied;
use crate::events::StrongAccess;
use crate::events::view::{Acquired, Release, TensorKnown, Variables, View, lock};
use crate::report::Space;

/// A block and the cluster that it belongs to.
struct Place {
    block: u32,
    cluster: Range<u32>,
}

#[derive(Debug, Default)]
struct Warp {
    /// When the warp's present accesses happen.
    tick: u32,
    /// All lanes know each other's accesses up to here.
    sync: u32,
    /// Knowledge of all lanes.
    view: View,
    /// Knowledge of some lanes in addition; the masks are disjoint.
    groups: Vec<(u32, View)>,
    /// Strong reads that a fence or barrier will turn into acquires.
    pending: Vec<Reading>,
    /// Knowledge that each lane had of tensor memory at its last fence; none until one fences.
    usable: Vec<Option<Arc<TensorKnown>>>,
}

/// A strong read that nothing has ordered yet.
#[derive(Debug)]
struct Reading {
    lanes: u32,
    acquired: Acquired,
    strength: Strength,
    /// Whether a barrier is enough: in the block, and for the word that the last block of published reductions counts
    /// with. A loop of loads that waits for another block needs a fence behind it.
    barrier: bool,
}

/// The order that the reads of lanes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Barrier,
    Fence,
}

#[derive(Clone, Copy, Debug)]
struct Arrival {
    warp: u32,
    lanes: u32,
    tick: u32,
    sync: u32,
}

/// Who may release through a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Users {
    /// Every lane for itself.
    Fencing,
    /// These lanes of the warp, for all that fenced.
    Lanes(u32),
    /// Every thread of the block, after a block barrier.
    Block,
}

#[derive(Debug)]
struct Fence {
    warp: u32,
    by: u32,
    users: Users,
    scope: u32,
    tick: u32,
    floor: u32,
    view: Arc<View>,
}

/// The clocks of one block.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    block: u32,
    /// The blocks of its cluster.
    cluster: Range<u32>,
    /// Number in the cluster of the block's first warp.
    base: u32,
    now: u32,
    floor: u32,
    warps: Vec<Warp>,
    fences: Vec<Fence>,
    arrivals: [Vec<Arrival>; 16],
    variables: Variables,
}

impl Clocks {
    /// Times from here on do not fit an [`Id`]; a block that gets so far is no longer watched.
    const END: u32 = (1 << Id::TICK_BITS) - 1;

    /// Begins block `block` of the cluster that consists of the blocks `cluster`.
    pub(super) fn begin(&mut self, block: u32, cluster: Range<u32>, warps: u32) {
        self.block = block;
        self.base = 32 * block.wrapping_sub(cluster.start);
        self.cluster = cluster;
        self.now = 1;
        self.floor = 0;
        self.warps.resize_with(warps as usize, Warp::default);
        for warp in &mut self.warps {
            *warp = Warp { tick: 1, ..Warp::default() };
        }
        self.fences.clear();
        self.arrivals.iter_mut().for_each(Vec::clear);
        self.variables.clear();
    }

    #[inline(always)]
    pub(super) fn floor(&self) -> u32 {
        self.floor
    }

    #[inline(always)]
    pub(super) fn tick(&self, warp: u32) -> u32 {
        self.warps.get(warp as usize).map_or(0, |w| w.tick)
    }

    /// Begins a new time for a warp, so that what it did before can be known without what it does after.
    fn advance(&mut self, warp: u32) {
        if self.now >= Self::END - 1 {
            self.floor = Self::END;
            return;
        }
        self.now += 1;
        if let Some(warp) = self.warps.get_mut(warp as usize) {
            warp.tick = self.now;
        }
    }

    /// Knowledge and actions of lanes until now, for others to accept.
    pub(super) fn publish(&mut self, warp: u32, lanes: u32) -> View {
        let mut view = self.publishable(warp, lanes);
        view.add(self.base + warp, lanes, self.tick(warp));
        if self.cluster.len() > 1 {
            for own in self.own() {
                view.add(own, u32::MAX, self.floor);
            }
        }
        self.advance(warp);
        view
    }

    /// Knowledge and actions of lanes before their fences of cluster scope or wider.
    pub(super) fn publish_fenced(&mut self, warp: u32, lanes: u32) -> View {
        let mut view = View::default();
        for release in self.releases(warp, lanes, 3, false).iter().filter(|r| r.scope > 1) {
            view.add(self.base + release.warp, release.lanes, release.tick);
            for own in self.own() {
                view.add(own, u32::MAX, release.floor);
            }
            view.merge(&release.view);
        }
        view
    }

    /// Lanes learn what others published. `live` are the lanes of the warp that have not exited.
    pub(super) fn accept(&mut self, warp: u32, lanes: u32, live: u32, published: &View) {
        let Some(me) = self.warps.get_mut(warp as usize) else { return };
        if live & !lanes == 0 {
            me.view.merge(published);
        } else {
            me.learn(lanes, |view| view.merge(published));
        }
    }

    /// Lanes tell the asynchronous proxy of everything that they know and did.
    pub(super) fn fence_proxy(&mut self, warp: u32, lanes: u32, live: u32, memories: &[Proxied]) {
        let (own, floor) = (self.own(), self.floor);
        let mut view = self.publishable(warp, lanes);
        view.add(self.base + warp, lanes, self.tick(warp));
        view.fence_proxy(&own, floor, memories);
        self.accept(warp, lanes, live, &view.only_fenced());
        self.advance(warp);
    }

    /// Whether a lane satisfies a question about what it knows.
    pub(super) fn ask(&self, warp: u32, lane: u32, question: impl Fn(&View) -> bool) -> bool {
        let Some(me) = self.warps.get(warp as usize) else { return true };
        self.floor == Self::END
            || question(&me.view)
            || me.groups.iter().any(|(lanes, view)| lanes >> lane & 1 == 1 && question(view))
    }

    /// Knowledge and actions of lanes, as a release carries them.
    pub(super) fn offered(&self, warp: u32, lanes: u32) -> View {
        self.publishable(warp, lanes)
    }

    /// Changes what each of some lanes may use of its views.
    pub(super) fn with_views(
        &mut self,
        warp: u32,
        lanes: u32,
        change: impl Fn(&[&View], &mut Option<Arc<TensorKnown>>),
    ) {
        let Some(me) = self.warps.get_mut(warp as usize) else { return };
        me.usable.resize(32, None);
        let Warp { view, groups, usable, .. } = me;
        let mut last: Option<(Vec<bool>, Option<Arc<TensorKnown>>)> = None;
        for (lane, usable) in usable.iter_mut().enumerate().filter(|(lane, _)| lanes >> lane & 1 == 1) {
            let member: Vec<bool> = groups.iter().map(|(members, _)| members >> lane & 1 == 1).collect();
            if let Some((same, known)) = &last
                && *same == member
            {
                usable.clone_from(known);
                continue;
            }
            let own = groups.iter().zip(&member).filter(|(_, member)| **member).map(|((_, view), _)| view);
            let views: Vec<&View> = std::iter::once(&*view).chain(own).collect();
            change(&views, usable);
            last = Some((member, usable.clone()));
        }
    }

    /// Knowledge of tensor memory that a lane may use.
    pub(super) fn usable(&self, warp: u32, lane: u32) -> Option<&TensorKnown> {
        self.warps.get(warp as usize)?.usable.get(lane as usize)?.as_deref()
    }

    /// Ends the present time of a warp, which becomes that of an operation that it has just issued.
    pub(super) fn issue(&mut self, warp: u32) {
        self.advance(warp);
    }

    /// Forgets ends of operations of which nobody will ask again.
    pub(super) fn retain_ended(&mut self, wanted: &dyn Fn(u32) -> bool) {
        for warp in &mut self.warps {
            warp.view.retain_ended(wanted);
            warp.groups.iter_mut().for_each(|(_, view)| view.retain_ended(wanted));
        }
    }

    /// Number in the cluster of the block's first warp.
    pub(super) fn first_warp(&self) -> u32 {
        self.base
    }

    fn place(&self) -> Place {
        Place { block: self.block, cluster: self.cluster.clone() }
    }

    /// Numbers in the cluster of the block's warps.
    fn own(&self) -> Range<u32> {
        self.base..self.base + 32
    }

    /// Which of `lanes` of warp `prev` did something at `tick` that one of the lanes `mine` of `warp` does not know.
    pub(super) fn unordered(&self, prev: u32, lanes: u32, tick: u32, warp: u32, mine: u32) -> u32 {
        let Some(me) = self.warps.get(warp as usize) else { return 0 };
        if tick <= self.floor || (prev == warp && tick <= me.sync) {
            return 0;
        }
        me.missing(mine, lanes, |view, lanes| view.missing(self.base + prev, lanes, tick))
    }

    /// The same for a warp of another block.
    pub(super) fn unordered_remote(
        &self,
        block: u32,
        prev: u32,
        lanes: u32,
        tick: u32,
        warp: u32,
        mine: u32,
    ) -> u32 {
        let Some(me) = self.warps.get(warp as usize) else { return 0 };
        if self.floor == Self::END {
            return 0;
        }
        let near = self.cluster.contains(&block).then(|| 32 * (block - self.cluster.start) + prev);
        me.missing(mine, lanes, |view, lanes| {
            let rest = near.map_or(lanes, |prev| view.missing(prev, lanes, tick));
            if rest == 0 { 0 } else { view.missing_remote(block, prev, rest, tick) }
        })
    }

    fn warp_barrier(&mut self, warp: u32, mask: u32, live: u32) {
        let place = self.place();
        let number = self.base + warp;
        let Some(me) = self.warps.get_mut(warp as usize) else { return };
        me.settle(mask, &place, Order::Barrier);
        if live & !mask == 0 {
            me.gather();
            me.sync = me.tick;
        } else {
            let tick = me.tick;
            let mut merged = me.leave_groups(mask);
            merged.add(number, mask, tick);
            me.groups.push((mask, merged));
        }
        for fence in self.fences.iter_mut().filter(|f| f.warp == warp && f.by & mask != 0) {
            fence.users = match fence.users {
                Users::Fencing => Users::Lanes(mask),
                Users::Lanes(lanes) => Users::Lanes(lanes | mask),
                Users::Block => Users::Block,
            };
        }
        self.advance(warp);
    }

    fn arrive(&mut self, id: u32, warp: u32, lanes: u32) {
        let Some(me) = self.warps.get(warp as usize) else { return };
        let arrival = Arrival { warp, lanes, tick: me.tick, sync: me.sync };
        if let Some(arrivals) = self.arrivals.get_mut(id as usize) {
            arrivals.push(arrival);
        }
        self.advance(warp);
    }

    fn everyone(&mut self, id: u32) {
        if let Some(arrivals) = self.arrivals.get_mut(id as usize) {
            arrivals.clear();
        }
        if self.now >= Self::END - 1 {
            self.floor = Self::END;
            return;
        }
        let floor = self.now;
        self.floor = floor;
        self.now += 1;
        let (now, place, own) = (self.now, self.place(), self.own());
        let mut shared = View::default();
        for warp in &mut self.warps {
            warp.tick = now;
            warp.sync = floor;
            warp.settle(u32::MAX, &place, Order::Barrier);
            if !warp.groups.is_empty() {
                warp.gather();
            }
            warp.view.forget_warps(own.clone());
            if !warp.view.is_empty() {
                shared.merge(&warp.view);
            }
        }
        if !shared.is_empty() {
            for warp in &mut self.warps {
                warp.view = shared.clone();
            }
        }
        for fence in &mut self.fences {
            fence.users = Users::Block;
        }
        self.drop_old_fences();
    }

    /// A later fence of the same lanes, which everybody may use as well, makes an earlier one superfluous.
    fn drop_old_fences(&mut self) {
        let mut at = 0;
        while at < self.fences.len() {
            let old = &self.fences[at];
            let newer = self.fences[at + 1..].iter().any(|new| {
                new.warp == old.warp
                    && old.by & !new.by == 0
                    && new.scope >= old.scope
                    && new.users == Users::Block
            });
            if newer {
                self.fences.remove(at);
            } else {
                at += 1;
            }
        }
    }

    fn complete(&mut self, id: u32, waiting: &[Participant]) {
        let Some(arrivals) = self.arrivals.get_mut(id as usize) else { return };
        let arrivals = std::mem::take(arrivals);
        let (place, base) = (self.place(), self.base);
        let mut merged = View::default();
        let mut ticks = [0; 32];
        for arrival in &arrivals {
            let Some(warp) = self.warps.get_mut(arrival.warp as usize) else { continue };
            warp.settle(arrival.lanes, &place, Order::Barrier);
            merged.add(base + arrival.warp, u32::MAX, arrival.sync);
            merged.add(base + arrival.warp, arrival.lanes, arrival.tick);
            merged.merge(&warp.view);
            for (_, view) in warp.groups.iter().filter(|(lanes, _)| lanes & arrival.lanes != 0) {
                merged.merge(view);
            }
            if let Some(tick) = ticks.get_mut(arrival.warp as usize) {
                *tick = arrival.tick;
            }
        }
        for participant in waiting {
            let Some(warp) = self.warps.get_mut(participant.warp as usize) else { continue };
            if participant.live & !participant.lanes == 0 {
                warp.gather();
                warp.view.merge(&merged);
                warp.sync = warp.sync.max(ticks.get(participant.warp as usize).copied().unwrap_or(0));
            } else {
                let mut view = warp.leave_groups(participant.lanes);
                view.merge(&merged);
                warp.groups.push((participant.lanes, view));
            }
        }
        for fence in self.fences.iter_mut().filter(|f| arrivals.iter().any(|a| a.warp == f.warp)) {
            fence.users = Users::Block;
        }
        self.drop_old_fences();
        // Kept for its capacity.
        if let Some(slot) = self.arrivals.get_mut(id as usize) {
            *slot = arrivals;
            slot.clear();
        }
    }

    /// Knowledge of lanes, as a release carries it.
    fn publishable(&self, warp: u32, lanes: u32) -> View {
        let mut view = View::default();
        if let Some(me) = self.warps.get(warp as usize) {
            view.merge(&me.view);
            for (_, group) in me.groups.iter().filter(|(l, _)| l & lanes != 0) {
                view.merge(group);
            }
            view.add(self.base + warp, u32::MAX, me.sync);
        }
        view
    }

    fn fence(&mut self, warp: u32, lanes: u32, scope: u32) {
        let place = self.place();
        let Some(me) = self.warps.get_mut(warp as usize) else { return };
        me.settle(lanes, &place, Order::Fence);
        let tick = me.tick;
        let view = Arc::new(self.publishable(warp, lanes));
        self.fences
            .retain(|f| f.warp != warp || f.by & !lanes != 0 || f.scope > scope || f.users != Users::Fencing);
        self.fences.push(Fence {
            warp,
            by: lanes,
            users: Users::Fencing,
            scope,
            tick,
            floor: self.floor,
            view,
        });
        self.advance(warp);
    }

    /// The releases of lanes with a strong write.
    fn releases(&mut self, warp: u32, lanes: u32, scope: u32, explicit: bool) -> Vec<Arc<Release>> {
        let (block, base) = (self.block, self.base);
        let mut releases: Vec<Arc<Release>> = self
            .fences
            .iter()
            .filter_map(|f| {
                let by = match f.users {
                    Users::Block => f.by,
                    Users::Lanes(users) if f.warp == warp && users & lanes != 0 => f.by,
                    Users::Lanes(_) | Users::Fencing if f.warp == warp => f.by & lanes,
                    Users::Lanes(_) | Users::Fencing => 0,
                };
                (by != 0).then(|| {
                    let (tick, floor, scope) = (f.tick, f.floor, f.scope.min(scope));
                    Arc::new(Release {
                        block,
                        warp: f.warp,
                        lanes: by,
                        tick,
                        floor,
                        scope,
                        base,
                        view: f.view.clone(),
                    })
                })
            })
            .collect();
        if explicit {
            let view = Arc::new(self.publishable(warp, lanes));
            let (tick, floor) = (self.tick(warp), self.floor);
            releases.push(Arc::new(Release { block, warp, lanes, tick, floor, scope, base, view }));
            self.advance(warp);
        }
        releases
    }

    fn acquire(&mut self, warp: u32, new: Reading, explicit: bool) {
        let place = self.place();
        let Some(me) = self.warps.get_mut(warp as usize) else { return };
        if explicit {
            me.absorb_log(new.lanes, &new.acquired, &place, new.strength);
        } else {
            // A spinning reader keeps its latest reading.
            let same = |old: &&mut Reading| {
                let alike = (old.lanes, old.strength, old.barrier) == (new.lanes, new.strength, new.barrier);
                alike && old.acquired.same_log(&new.acquired)
            };
            match me.pending.iter_mut().find(same) {
                Some(old) => *old = new,
                None => me.pending.push(new),
            }
        }
    }
}

impl Warp {
    /// The lanes of `lanes` that some of `mine` do not know of, by the views that each of them has.
    fn missing(&self, mine: u32, lanes: u32, ask: impl Fn(&View, u32) -> u32) -> u32 {
        let rest = if self.view.is_empty() { lanes } else { ask(&self.view, lanes) };
        if rest == 0 || self.groups.is_empty() {
            return rest;
        }
        let mut alone = mine;
        let mut missing = 0;
        for (members, view) in &self.groups {
            if members & mine != 0 {
                missing |= ask(view, rest);
                alone &= !members;
            }
        }
        if alone != 0 { rest } else { missing }
    }

    /// Moves what groups know to all lanes.
    fn gather(&mut self) {
        for (_, view) in self.groups.drain(..) {
            self.view.merge(&view);
        }
    }

    /// Takes lanes out of their groups and returns what these knew.
    fn leave_groups(&mut self, lanes: u32) -> View {
        let mut merged = View::default();
        for (members, view) in &mut self.groups {
            if *members & lanes != 0 {
                merged.merge(view);
                *members &= !lanes;
            }
        }
        self.groups.retain(|(members, _)| *members != 0);
        merged
    }

    /// Turns the strong reads of lanes into acquires.
    fn settle(&mut self, lanes: u32, place: &Place, order: Order) {
        if self.pending.is_empty() {
            return;
        }
        let mut kept = Vec::new();
        for reading in std::mem::take(&mut self.pending) {
            let ordered = reading.barrier || order == Order::Fence;
            let settled = if ordered { reading.lanes & lanes } else { 0 };
            if settled != 0 {
                self.absorb_log(settled, &reading.acquired, place, reading.strength);
            }
            if reading.lanes & !settled != 0 {
                kept.push(Reading { lanes: reading.lanes & !settled, ..reading });
            }
        }
        self.pending = kept;
    }

    /// Gives lanes what a variable's log holds.
    fn absorb_log(&mut self, lanes: u32, acquired: &Acquired, place: &Place, strength: Strength) {
        let beyond_block = strength > Strength::Cta;
        self.learn(lanes, |view| view.absorb(acquired, place.block, &place.cluster, beyond_block));
    }

    /// Changes what lanes know.
    fn learn(&mut self, lanes: u32, change: impl Fn(&mut View)) {
        // Lanes may belong to several groups; each keeps what it knew.
        let mut alone = lanes;
        let mut split = Vec::new();
        for (members, view) in &mut self.groups {
            let shared = *members & lanes;
            if shared == 0 {
                continue;
            }
            alone &= !shared;
            if shared == *members {
                change(view);
            } else {
                let mut copy = view.clone();
                change(&mut copy);
                *members &= !shared;
                split.push((shared, copy));
            }
        }
        if alone != 0 {
            let mut view = View::default();
            change(&mut view);
            split.push((alone, view));
        }
        self.groups.append(&mut split);
    }
}

const fn scope_level(scope: Scope) -> u32 {
    match scope {
        Scope::Cta => 1,
        Scope::Cluster => 2,
        Scope::Gpu | Scope::Sys => 3,
    }
}

impl BlockRaces<'_> {
    /// `bar.warp.sync mask`, when it opens; `live` are the lanes of the warp that have not exited.
    pub fn warp_barrier(&mut self, warp: u32, mask: u32, live: u32) {
        self.clocks.warp_barrier(warp, mask, live);
        self.moved();
    }

    /// Lanes of a warp arrive at block barrier `id` with `bar.sync`, `bar.red` or `bar.arrive`.
    pub fn barrier_arrive(&mut self, id: u32, warp: u32, lanes: u32) {
        self.clocks.arrive(id, warp, lanes);
        self.moved();
    }

    /// Block barrier `id` opens. `waiting` are those that wait at it and go on now; `everyone` says that these are all
    /// threads of the block that have not exited.
    pub fn barrier_complete(&mut self, id: u32, waiting: &[Participant], everyone: bool) {
        if everyone {
            self.clocks.everyone(id);
        } else {
            self.clocks.complete(id, waiting);
        }
        self.moved();
    }

    /// Exchanges the synchronisation variables in shared memory with those of another block, whose shared memory is
    /// about to be accessed.
    pub(crate) fn swap_variables(&mut self, other: &mut BlockRaces<'_>) {
        std::mem::swap(&mut self.clocks.variables, &mut other.clocks.variables);
    }

    /// `fence` or `membar` by lanes of a warp.
    pub fn fence(&mut self, warp: u32, lanes: u32, scope: Scope) {
        self.clocks.fence(warp, lanes, scope_level(scope));
        self.moved();
    }

    /// Whether [`release`](Self::release) would do anything for a strong access; a cheap question for hot loops.
    #[inline]
    pub fn wants_release(&self, kind: AccessKind, ordering: Ordering) -> bool {
        let explicit = matches!(ordering.semantics, Semantics::Release | Semantics::AcqRel);
        match kind {
            AccessKind::Read => false,
            AccessKind::Atomic => explicit || !self.clocks.fences.is_empty(),
            AccessKind::Write => {
                ordering.semantics != Semantics::Weak
                    && (explicit || !self.clocks.fences.is_empty() || self.any_variable())
            }
        }
    }

    /// Whether [`acquire`](Self::acquire) would do anything.
    #[inline]
    pub fn wants_acquire(&self, kind: AccessKind, ordering: Ordering) -> bool {
        let strong = kind == AccessKind::Atomic || ordering.semantics != Semantics::Weak;
        kind != AccessKind::Write && strong && self.any_variable()
    }

    #[inline]
    fn any_variable(&self) -> bool {
        !self.clocks.variables.is_empty() || self.launch.published.load(Atomic::Acquire)
    }

    /// A lane is about to write strongly to a variable. Call it before the memory operation, so that no other worker
    /// sees the value before its clock.
    pub fn release(&mut self, access: &StrongAccess) {
        let StrongAccess { space, address, warp, lane, kind, ordering } = *access;
        if !self.wants_release(kind, ordering) {
            return;
        }
        let explicit = matches!(ordering.semantics, Semantics::Release | Semantics::AcqRel);
        let releases = self.clocks.releases(warp, 1 << lane, access.strength() as u32, explicit);
        let store = kind == AccessKind::Write;
        if space == Space::Shared {
            self.clocks.variables.publish(address, &releases, store);
        } else {
            lock(self.launch.variables(address)).publish(address, &releases, store);
            if !releases.is_empty() {
                self.launch.published.store(true, Atomic::Release);
            }
        }
        self.moved();
    }

    /// A lane has read a variable strongly. Call it after the memory operation.
    pub fn acquire(&mut self, access: &StrongAccess) {
        let StrongAccess { space, address, warp, lane, kind, ordering } = *access;
        if !self.wants_acquire(kind, ordering) {
            return;
        }
        let explicit = matches!(ordering.semantics, Semantics::Acquire | Semantics::AcqRel);
        let observed = if space == Space::Shared {
            self.clocks.variables.observe(address)
        } else {
            lock(self.launch.variables(address)).observe(address)
        };
        if let Some(acquired) = observed {
            let strength = access.strength();
            let barrier = strength <= Strength::Cta || kind == AccessKind::Atomic;
            self.clocks.acquire(warp, Reading { lanes: 1 << lane, acquired, strength, barrier }, explicit);
        }
    }
}
