//! A warp: registers, and the groups of lanes that stand at different instructions.

use crate::code::rows::Registers;
use crate::exec::matrix::Flights;
use crate::exec::{Definedness, Paths};
use crate::progress::{Outlook, Stamp, Watch};

/// Backward branches that a group may take before others get a turn.
const SPIN_LIMIT: u32 = 1024;
/// The weight of a poll of memory that others may change, in backward branches.
const POLL_WEIGHT: u32 = 31;

/// The wait of a group of lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing.
    Ready,
    /// The other lanes of the mask at this warp collective.
    Collective { mask: u32 },
    /// Block barrier `id`.
    Barrier { id: u32 },
    /// All lanes of the warp that have not left, at an aligned instruction.
    Aligned,
    /// The end of this phase of the cluster barrier.
    ClusterBarrier,
    /// A phase of the mbarrier at this address of a block of the cluster.
    Mbarrier { rank: u32, address: u32 },
}

/// Lanes that stand at the same instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) pc: u32,
    pub(crate) mask: u32,
    pub(crate) wait: Wait,
    /// Groups of a lower turn run first: a group that spun for long takes the next turn.
    pub(crate) turn: u32,
}

/// Local memory of the 32 lanes: word `w` of lane `l` is element `32 * w + l`, so that accesses of all lanes to the same
/// variable are whole rows.
#[derive(Debug, Default)]
pub(crate) struct Local {
    pub(crate) words: Vec<u32>,
    /// The undefined bits of each word.
    pub(crate) undefined: Vec<u32>,
}

#[derive(Debug)]
pub(crate) struct Warp {
    pub(crate) index: u32,
    pub(crate) regs: Registers,
    /// Lanes that exist and have not exited.
    pub(crate) live: u32,
    pub(crate) groups: Vec<Group>,
    /// Lanes that go on at an aligned instruction although others may still come.
    pub(crate) alone: u32,
    /// Backward branches since the last change of turns.
    pub(crate) spins: u32,
    /// The carry flag of `add.cc` and its family.
    pub(crate) carry: u32,
    /// Of the tracked registers.
    pub(crate) definedness: Definedness,
    pub(crate) local: Local,
    /// Registers that `wgmma` uses.
    pub(crate) flights: Flights,
    pub(crate) watch: Watch,
    /// The calls that lanes are inside of.
    pub(crate) paths: Paths,
    /// The path of the group that was picked last, while lanes are inside of calls.
    pub(crate) running: Option<u32>,
}

impl Warp {
    /// Takes the group that runs next: least turn, then the deepest call, then least instruction; groups that meet there
    /// on the same path of calls become one.
    pub(crate) fn pick(&mut self) -> Option<Group> {
        if !self.paths.is_flat() {
            return self.pick_called();
        }
        let first = |wait| self.groups.iter().filter(|g| g.wait == wait).map(|g| (g.turn, g.pc)).min();
        let (best, wait) = match first(Wait::Ready) {
            Some(best) => (best, Wait::Ready),
            None if self.nobody_comes() => (first(Wait::Aligned)?, Wait::Aligned),
            None => return None,
        };
        let mut picked = Group { pc: best.1, mask: 0, wait: Wait::Ready, turn: best.0 };
        self.groups.retain(|g| {
            let same = g.wait == wait && g.pc == best.1;
            if same {
                picked.mask |= g.mask;
                picked.turn = picked.turn.max(g.turn);
            }
            !same
        });
        Some(picked)
    }

    /// The same while lanes are inside of calls.
    #[cold]
    fn pick_called(&mut self) -> Option<Group> {
        self.split();
        let paths = &self.paths;
        let rank = |g: &&Group| (g.turn, std::cmp::Reverse(paths.depth(g.mask)), g.pc);
        let first = |wait| self.groups.iter().filter(|g| g.wait == wait).min_by_key(rank).copied();
        let best = match first(Wait::Ready) {
            Some(best) => best,
            None if self.nobody_comes() => first(Wait::Aligned)?,
            None => return None,
        };
        let path = paths.of(best.mask);
        let mut picked = Group { mask: 0, wait: Wait::Ready, ..best };
        self.groups.retain(|g| {
            let same = g.wait == best.wait && g.pc == best.pc && paths.of(g.mask) == path;
            if same {
                picked.mask |= g.mask;
                picked.turn = picked.turn.max(g.turn);
            }
            !same
        });
        self.running = path;
        Some(picked)
    }

    /// Parts ready groups that a rendezvous put together from lanes on different paths.
    fn split(&mut self) {
        let mut at = 0;
        while let Some(group) = self.groups.get(at).copied() {
            let same = self.paths.same(group.mask);
            if group.wait == Wait::Ready && same != group.mask {
                self.groups[at].mask = same;
                self.groups.push(Group { mask: group.mask & !same, ..group });
            }
            at += 1;
        }
    }

    /// The next instruction after `pc` at which another ready group stands that may join.
    pub(crate) fn limit(&self, pc: u32) -> u32 {
        let joins = |g: &&Group| {
            let ready = g.wait == Wait::Ready && g.pc > pc;
            ready && (self.paths.is_flat() || self.paths.of(g.mask) == self.running)
        };
        self.groups.iter().filter(joins).map(|g| g.pc).min().unwrap_or(u32::MAX)
    }

    /// Whether lanes that wait for the whole warp wait in vain: the others wait for lanes too.
    pub(crate) fn nobody_comes(&self) -> bool {
        let for_lanes =
            |g: &Group| matches!(g.wait, Wait::Collective { .. } | Wait::Barrier { .. } | Wait::Aligned);
        self.groups.iter().all(for_lanes)
    }

    pub(crate) fn has_ready(&self) -> bool {
        self.groups.iter().any(|g| g.wait == Wait::Ready)
    }

    pub(crate) fn push(&mut self, pc: u32, mask: u32, turn: u32) {
        if mask != 0 {
            self.groups.push(Group { pc, mask, wait: Wait::Ready, turn });
        }
    }

    /// Counts a backward branch; whether it is time to let others run.
    #[inline(always)]
    pub(crate) fn spin(&mut self) -> bool {
        self.spins += 1;
        self.spins > SPIN_LIMIT
    }

    /// Counts a poll of memory, so that a loop of them gives others a turn soon.
    pub(crate) fn poll(&mut self) {
        self.spins += POLL_WEIGHT;
    }

    /// Whether lanes run, or wait for an mbarrier and are woken when their time is up.
    pub(crate) fn moves(&self) -> bool {
        self.groups.iter().any(|g| matches!(g.wait, Wait::Ready | Wait::Mbarrier { .. }))
    }

    /// The outcome of the warp as long as nothing changes after `stamp`.
    pub(crate) fn outlook(&self, stamp: Stamp) -> Outlook {
        if self.moves() { self.watch.outlook(stamp) } else { Outlook::Stuck }
    }

    /// Where a group stands: instruction, lanes, and how far it is behind others in turns.
    pub(crate) fn position(&self, group: &Group) -> u64 {
        let mut digest = Digest::new(u64::from(group.pc) << 32 | u64::from(group.mask));
        if group.wait == Wait::Ready {
            let least = self.groups.iter().filter(|g| g.wait == Wait::Ready).map(|g| g.turn).min();
            digest.add(u64::from(group.turn - least.unwrap_or(group.turn)));
        }
        digest.value()
    }

    /// A digest of everything that decides what the warp does next, memory that others see aside.
    pub(crate) fn state(&self) -> u64 {
        let mut digest = Digest::new(u64::from(self.carry) ^ u64::from(self.live) << 32);
        digest.add(self.groups.iter().fold(0, |sum, group| sum.wrapping_add(self.position(group))));
        for row in &self.regs.r32 {
            digest.words(&row.0);
        }
        for row in &self.regs.r64 {
            row.0.iter().for_each(|v| digest.add(*v));
        }
        digest.words(&self.regs.pred);
        digest.words(&self.local.words);
        self.paths.tops.iter().for_each(|top| digest.add(*top));
        digest.value()
    }

    /// Puts back a group that branched backwards. `true` if it spun for long: then it also loses its turn to the other
    /// ready groups of the warp.
    #[cold]
    pub(crate) fn pass_turn(&mut self, pc: u32, mask: u32, turn: u32, alone: bool) -> bool {
        let spun = self.spins > SPIN_LIMIT || (!alone && self.spin());
        if spun {
            self.spins = 0;
        }
        self.push(pc, mask, turn + u32::from(spun && !alone));
        spun
    }

    /// Takes the lanes that wait at `pc` for the rest of the warp.
    pub(crate) fn join_held(&mut self, pc: u32) -> u32 {
        let mut lanes = 0;
        self.groups.retain(|g| {
            let joins = g.pc == pc && g.wait == Wait::Aligned;
            lanes |= if joins { g.mask } else { 0 };
            !joins
        });
        lanes
    }

    /// Lets the groups that wait at warp collectives look again at who is there.
    pub(crate) fn wake_collectives(&mut self) {
        for group in &mut self.groups {
            if matches!(group.wait, Wait::Collective { .. }) {
                group.wait = Wait::Ready;
            }
        }
    }

    /// Lets the groups go on that wait for the rest of the warp; whether there is one.
    pub(crate) fn release_held(&mut self) -> bool {
        let before = self.alone;
        for group in self.groups.iter_mut().filter(|g| g.wait == Wait::Aligned) {
            group.wait = Wait::Ready;
            self.alone |= group.mask;
        }
        self.alone != before
    }

    /// Whether lanes no longer wait for the rest of the warp; they do at the next instruction.
    pub(crate) fn go_alone(&mut self, lanes: u32) -> bool {
        let alone = self.alone & lanes != 0;
        self.alone &= !lanes;
        alone
    }

    /// Ends all lanes.
    pub(crate) fn kill(&mut self) {
        self.paths.end(self.live);
        self.live = 0;
        self.groups.clear();
    }
}

/// A digest of numbers in their order.
pub(crate) struct Digest(u64);

impl Digest {
    pub(crate) fn new(start: u64) -> Self {
        Self(start)
    }

    pub(crate) fn value(&self) -> u64 {
        self.0
    }

    pub(crate) fn add(&mut self, value: u64) {
        // The multiplier of MurmurHash's 64-bit finaliser.
        self.0 = (self.0 ^ value).wrapping_mul(0xFF51_AFD7_ED55_8CCD).rotate_left(31);
    }

    pub(crate) fn words(&mut self, words: &[u32]) {
        let (pairs, rest) = words.as_chunks::<2>();
        for [a, b] in pairs {
            self.add(u64::from(*a) | u64::from(*b) << 32);
        }
        for word in rest {
            self.add(u64::from(*word));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warp(groups: &[(u32, u32, u32)]) -> Warp {
        let groups =
            groups.iter().map(|&(pc, mask, turn)| Group { pc, mask, wait: Wait::Ready, turn }).collect();
        Warp {
            index: 0,
            regs: Registers::default(),
            live: u32::MAX,
            groups,
            alone: 0,
            spins: 0,
            carry: 0,
            definedness: Definedness::default(),
            local: Local::default(),
            flights: Flights::default(),
            watch: Watch::default(),
            paths: Paths::default(),
            running: None,
        }
    }

    #[test]
    fn the_least_instruction_runs_and_groups_merge() {
        let mut w = warp(&[(9, 1, 0), (4, 2, 0), (4, 4, 0)]);
        let g = w.pick().unwrap();
        assert_eq!((g.pc, g.mask), (4, 6));
        assert_eq!(w.limit(4), 9);
        assert_eq!(w.limit(9), u32::MAX);
    }

    #[test]
    fn lanes_at_an_aligned_instruction_wait_as_long_as_others_may_come() {
        let mut w = warp(&[(4, 1, 0), (9, 2, 0)]);
        w.groups[0].wait = Wait::Aligned;
        assert_eq!(w.pick().unwrap().mask, 2);
        w.groups.push(Group { pc: 9, mask: 2, wait: Wait::Barrier { id: 0 }, turn: 0 });
        assert_eq!(w.pick().unwrap().mask, 1);
        assert_eq!(w.pick(), None);
    }

    #[test]
    fn a_spinning_group_waits_its_turn() {
        let mut w = warp(&[(4, 1, 1), (9, 2, 0)]);
        assert_eq!(w.pick().unwrap().mask, 2);
        assert_eq!(w.pick().unwrap().mask, 1);
        assert_eq!(w.pick(), None);
    }

    #[test]
    fn registers_and_positions_make_the_state() {
        let mut w = warp(&[(4, 1, 0)]);
        w.regs.pred = vec![0, 5, 7];
        let before = w.state();
        assert_eq!(before, w.state());
        w.regs.pred[2] = 6;
        assert_ne!(before, w.state());
        w.regs.pred[2] = 7;
        w.groups[0].pc = 5;
        assert_ne!(before, w.state());
        // Groups change places in the list, and all take turns.
        let two = warp(&[(4, 1, 3), (9, 2, 4)]);
        assert_eq!(two.state(), warp(&[(9, 2, 8), (4, 1, 7)]).state());
        assert_ne!(two.state(), warp(&[(4, 1, 4), (9, 2, 4)]).state());
    }
}
