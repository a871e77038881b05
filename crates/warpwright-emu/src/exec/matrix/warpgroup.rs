//! Whether the four warps of a warpgroup issue the same `wgmma` instructions.
//!
//! A warpgroup is four consecutive warps of which the first has a number that is a multiple of four. Its warps may issue
//! an instruction one after the other, but all of them have to, in the same order and with the same descriptors.

use std::collections::VecDeque;

use crate::context::Context;
use crate::report::{Event, Key, Other, Severity, Site, Tool};
use crate::warp::Warp;

/// Warps of a warpgroup.
const WARPS: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Issued {
    pc: u32,
    descriptors: (u64, u64),
    /// The warps that have issued it.
    warps: u8,
}

/// The instructions that warps of a group have issued, from the first that some have not.
#[derive(Debug, Default)]
struct Warpgroup {
    log: VecDeque<Issued>,
    /// Instructions that were dropped from the front of the log.
    dropped: u64,
    issued: [u64; WARPS],
}

/// The warpgroups of a block.
#[derive(Debug, Default)]
pub(crate) struct Warpgroups {
    groups: Vec<Warpgroup>,
}

/// How an instruction differs from what another warp of the group issued in its place.
enum Difference {
    Instruction { warp: u32, pc: u32 },
    Descriptors { warp: u32, pc: u32 },
}

impl Warpgroups {
    /// Begins a block.
    pub(crate) fn reset(&mut self) {
        self.groups.clear();
    }

    fn issue(&mut self, warp: u32, pc: u32, descriptors: (u64, u64)) -> Option<Difference> {
        let (group, member) = (warp as usize / WARPS, warp as usize % WARPS);
        if self.groups.len() <= group {
            self.groups.resize_with(group + 1, Warpgroup::default);
        }
        let g = self.groups.get_mut(group)?;
        let at = usize::try_from(g.issued[member] - g.dropped).ok()?;
        g.issued[member] += 1;
        let Some(entry) = g.log.get_mut(at) else {
            g.log.push_back(Issued { pc, descriptors, warps: 1 << member });
            return None;
        };
        let first = warp - member as u32 + entry.warps.trailing_zeros();
        let difference = if entry.pc != pc {
            Some(Difference::Instruction { warp: first, pc: entry.pc })
        } else if entry.descriptors != descriptors {
            Some(Difference::Descriptors { warp: first, pc: entry.pc })
        } else {
            None
        };
        entry.warps |= 1 << member;
        while g.log.front().is_some_and(|e| e.warps == 0xF) {
            g.log.pop_front();
            g.dropped += 1;
        }
        difference
    }
}

impl Context<'_> {
    pub(super) fn check_warpgroup(&mut self, warp: &Warp, pc: u32, a: u64, b: u64) {
        let Some(difference) = self.block.warpgroups.issue(warp.index, pc, (a, b)) else { return };
        let site = |warp: u32| Site { block: self.block.linear as u32, thread: 32 * warp };
        let (other, other_pc, message) = match difference {
            Difference::Instruction { warp, pc } => {
                (warp, pc, "the warps of a warpgroup execute different wgmma.mma_async instructions")
            }
            Difference::Descriptors { warp, pc } => {
                (warp, pc, "the warps of a warpgroup give different matrix descriptors")
            }
        };
        let key = Key { tool: Tool::Synccheck, kind: "warpgroup-mismatch", pc, other_pc: Some(other_pc) };
        let other = Other { site: Some(site(other)), pc: Some(other_pc), action: "executed this instead" };
        self.findings.record(key, site(warp.index), || Event {
            severity: Severity::Error,
            message: message.to_owned(),
            help: "let branches around wgmma and the operands of it depend on the warpgroup only".to_owned(),
            address: None,
            other: Some(other),
        });
    }

    /// A block has ended: all warps of a group must have issued everything.
    pub(crate) fn check_warpgroups(&mut self, warps: u32) {
        if !self.checks.synccheck {
            return;
        }
        for (group, g) in (0u32..).zip(&self.block.warpgroups.groups) {
            let first = group * WARPS as u32;
            for entry in &g.log {
                let missing: Vec<String> = (0..WARPS as u32)
                    .filter(|w| entry.warps >> w & 1 == 0)
                    .map(|w| (first + w).to_string())
                    .collect();
                let lowest = first + entry.warps.trailing_zeros();
                let site = Site { block: self.block.linear as u32, thread: 32 * lowest };
                let key =
                    Key { tool: Tool::Synccheck, kind: "incomplete-warpgroup", pc: entry.pc, other_pc: None };
                self.findings.record(key, site, || Event {
                    severity: Severity::Error,
                    message: format!(
                        "warps {first} to {} are a warpgroup, but warp {} did not execute this wgmma.mma_async{}",
                        first + 3,
                        missing.join(", "),
                        if warps < first + 4 { format!("; the block has {warps} warps") } else { String::new() }
                    ),
                    help: "let all four warps of a warpgroup, which begins at a multiple of 128 threads, execute wgmma"
                        .to_owned(),
                    address: None,
                    other: None,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complete_group_leaves_nothing_behind() {
        let mut w = Warpgroups::default();
        for pc in [3, 5, 3] {
            for warp in [6, 4, 7, 5] {
                assert!(w.issue(warp, pc, (1, 2)).is_none());
            }
        }
        assert!(w.groups[1].log.is_empty());
    }

    #[test]
    fn warps_may_run_ahead_but_not_astray() {
        let mut w = Warpgroups::default();
        for pc in [3, 5, 7] {
            assert!(w.issue(0, pc, (1, 2)).is_none());
        }
        assert!(w.issue(2, 3, (1, 2)).is_none());
        assert!(matches!(w.issue(2, 7, (1, 2)), Some(Difference::Instruction { warp: 0, pc: 5 })));
        assert!(matches!(w.issue(2, 7, (1, 3)), Some(Difference::Descriptors { warp: 0, pc: 7 })));
        assert_eq!(w.groups[0].log.len(), 3);
    }
}
