//! A warp: registers, and the groups of lanes that stand at different instructions.

use crate::exec::matrix::Flights;
use crate::exec::rows::Registers;

/// Backward branches that a group may take before others get a turn.
const SPIN_LIMIT: u32 = 1024;

/// What a group of lanes waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing.
    Ready,
    /// The other lanes of the mask at this warp collective.
    Collective { mask: u32 },
    /// Block barrier `id`.
    Barrier { id: u32 },
    /// All lanes of the warp at an aligned instruction.
    Aligned,
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
    /// Per word and lane, four bits for its bytes, eight lanes to an element.
    pub(crate) defined: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Warp {
    pub(crate) index: u32,
    pub(crate) regs: Registers,
    /// Lanes that exist and have not exited.
    pub(crate) live: u32,
    pub(crate) groups: Vec<Group>,
    /// Backward branches since the last change of turns.
    pub(crate) spins: u32,
    /// The carry flag of `add.cc` and its family.
    pub(crate) carry: u32,
    /// Defined lanes of the tracked registers.
    pub(crate) defined: Vec<u32>,
    pub(crate) local: Local,
    /// Registers that `wgmma` uses.
    pub(crate) flights: Flights,
}

impl Warp {
    /// Takes the group that runs next: least turn, then least instruction; groups that meet there become one.
    pub(crate) fn pick(&mut self) -> Option<Group> {
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

    /// The next instruction after `pc` at which another ready group stands.
    pub(crate) fn limit(&self, pc: u32) -> u32 {
        self.groups
            .iter()
            .filter(|g| g.wait == Wait::Ready && g.pc > pc)
            .map(|g| g.pc)
            .min()
            .unwrap_or(u32::MAX)
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

    /// Lets the groups that wait at warp collectives look again at who is there.
    pub(crate) fn wake_collectives(&mut self) {
        for group in &mut self.groups {
            if matches!(group.wait, Wait::Collective { .. }) {
                group.wait = Wait::Ready;
            }
        }
    }

    /// Ends all lanes.
    pub(crate) fn kill(&mut self) {
        self.live = 0;
        self.groups.clear();
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
            spins: 0,
            carry: 0,
            defined: Vec::new(),
            local: Local::default(),
            flights: Flights::default(),
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
}
