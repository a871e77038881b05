//! Races in words.

use super::AccessKind;
use super::shadow::{Id, Lanes};
use super::slow::{Clash, Slow};
use crate::report::{Event, Key, Other, Severity, Site, Tool};

/// Two accesses that conflict.
pub(super) enum Conflict {
    /// Lanes of one instruction that store different values to one place.
    OneInstruction {
        /// A lane.
        lane: u32,
        /// Another.
        other: u32,
    },
    /// An earlier access and this one.
    Pair(Clash),
}

/// One side of a race.
struct Party {
    site: Site,
    pc: Option<u32>,
    writes: bool,
    atomic: bool,
}

impl Party {
    const fn action(&self) -> &'static str {
        match (self.writes, self.atomic) {
            (true, true) => "updated it atomically",
            (true, false) => "wrote it",
            (false, _) => "read it",
        }
    }
}

impl Slow<'_, '_> {
    #[cold]
    pub(super) fn report(&mut self, conflict: Conflict, offset: u64) {
        if !self.races.launch.may_report() {
            return;
        }
        match conflict {
            Conflict::OneInstruction { lane, other } => self.report_one_instruction(lane, other, offset),
            Conflict::Pair(clash) => self.report_pair(clash, offset),
        }
    }

    fn site(&self, block: u32, warp: u32, lane: u32) -> Site {
        Site { block: self.races.launch.linear(block), thread: 32 * warp + lane }
    }

    fn report_one_instruction(&mut self, lane: u32, other: u32, offset: u64) {
        let (space, address) = (self.shadow.space(), self.shadow.address(offset));
        let (low, high) = (lane.min(other), lane.max(other));
        let site = self.site(self.races.block, self.access.warp, low);
        let other = self.site(self.races.block, self.access.warp, high);
        let pc = self.access.pc;
        let key = Key { tool: Tool::Racecheck, kind: "write-write-one-instruction", pc, other_pc: None };
        self.findings.record(key, site, || Event {
            severity: Severity::Error,
            message: format!("lanes of one warp store different values to the same {} address", space.name()),
            help: "only one of the values stays, and which one is not specified; let one lane store, give each lane its \
                   own address, or use an atomic"
                .to_owned(),
            address: Some((space, address)),
            other: Some(Other { site: Some(other), pc: Some(pc), action: "stored another value" }),
        });
    }

    fn report_pair(&mut self, clash: Clash, offset: u64) {
        let Clash { prev, prev_at, prev_writes, lanes, mine } = clash;
        let their_lane = lanes.trailing_zeros();
        let my_lane =
            if mine == 1 << their_lane { their_lane } else { (mine & !(1 << their_lane)).trailing_zeros() };
        let same_warp = prev.same_warp(self.id);
        let weak = self.access.kind == AccessKind::Write && prev_writes && !prev.is_atomic();
        let mut same_value = false;
        if weak {
            if same_warp && self.one_dynamic_instruction(prev, prev_at, their_lane, offset) {
                if !(self.same)(my_lane, Some(their_lane)) {
                    self.report_one_instruction(my_lane, their_lane, offset);
                }
                return;
            }
            same_value = (self.same)(my_lane, None);
        }
        let me = Party {
            site: self.site(self.races.block, self.access.warp, my_lane),
            pc: Some(self.access.pc),
            writes: self.writes(),
            atomic: self.id.is_atomic(),
        };
        let they = Party {
            site: self.site(prev.block(), prev.warp(), their_lane),
            pc: prev_at.pc(),
            writes: prev_writes,
            atomic: prev.is_atomic(),
        };
        // The write stands first, of two writes that of the lower instruction: either order of arrival is one finding.
        let they_first =
            if me.writes == they.writes { they.pc <= me.pc && they.pc.is_some() } else { they.writes };
        let (first, second) = if they_first { (they, me) } else { (me, they) };
        let scope = prev.strength() > 0 && self.id.strength() > 0;
        let kind = match (first.writes && second.writes, same_value, scope) {
            (_, _, true) => "scope-too-narrow",
            (true, true, _) => "write-write-same-value",
            (true, false, _) => "write-write",
            (false, ..) => "read-write",
        };
        let (space, address) = (self.shadow.space(), self.shadow.address(offset));
        let distance = Distance::between(prev, self.id, self.races.is_in_cluster(prev));
        let pc = first.pc.unwrap_or(self.access.pc);
        let key = Key { tool: Tool::Racecheck, kind, pc, other_pc: second.pc };
        self.findings.record(key, first.site, || Event {
            severity: if same_value { Severity::Warning } else { Severity::Error },
            message: message(kind, space.name(), &first, &second, distance),
            help: help(kind, distance, first.atomic || second.atomic),
            address: Some((space, address)),
            other: Some(Other { site: Some(second.site), pc: second.pc, action: second.action() }),
        });
    }

    /// Whether an earlier record of this warp comes from the very execution of the instruction that is looked at.
    fn one_dynamic_instruction(&self, prev: Id, prev_at: Lanes, lane: u32, offset: u64) -> bool {
        let Some(offsets) = self.offsets else { return false };
        let theirs = offsets[lane as usize & 31];
        prev == self.id
            && prev_at.pc() == Some(self.access.pc)
            && self.mask >> lane & 1 == 1
            && theirs < offset + 4
            && offset < theirs + u64::from(self.access.bytes)
    }
}

/// How far the parties are from each other, which decides what can order them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Distance {
    Warp,
    Block,
    Cluster,
    Grid,
}

impl Distance {
    const fn between(a: Id, b: Id, same_cluster: bool) -> Self {
        if a.same_warp(b) {
            Self::Warp
        } else if a.block() == b.block() {
            Self::Block
        } else if same_cluster {
            Self::Cluster
        } else {
            Self::Grid
        }
    }
}

fn message(kind: &str, space: &str, first: &Party, second: &Party, distance: Distance) -> String {
    let between = match distance {
        Distance::Warp => "another lane of the warp",
        Distance::Block => "a thread of another warp",
        Distance::Cluster => "a thread of another block of the cluster",
        Distance::Grid => "a thread of another block",
    };
    let noun = |party: &Party| match (party.writes, party.atomic) {
        (true, true) => "atomic update",
        (true, false) => "write",
        (false, _) => "read",
    };
    match kind {
        "scope-too-narrow" => format!(
            "{} of {space} memory and {} by {between} are strong, but the scope of one does not include the other",
            noun(first),
            noun(second)
        ),
        "write-write-same-value" => {
            format!("{space} memory is written with the same value by {between}, and nothing orders the two")
        }
        _ => format!(
            "race on {space} memory: nothing orders this {} and the {} by {between}",
            noun(first),
            noun(second)
        ),
    }
}

fn help(kind: &str, distance: Distance, atomic: bool) -> String {
    let text = match (kind, distance) {
        ("scope-too-narrow", Distance::Cluster) => {
            "widen the scope: .cluster for threads of other blocks of the cluster"
        }
        ("scope-too-narrow", _) => "widen the scope: .gpu for threads of other blocks",
        ("write-write-same-value", _) => "harmless as long as the values agree; let one thread store",
        (_, Distance::Warp) if atomic => "make both accesses atomic, or put bar.warp.sync between them",
        (_, Distance::Warp) => {
            "lanes of a warp do not run in step: put bar.warp.sync (or bar.sync) between the two accesses"
        }
        (_, Distance::Block) if atomic => "make both accesses atomic, or put bar.sync between them",
        (_, Distance::Block) => {
            "put bar.sync 0 between the two accesses; in a loop, also before the next iteration writes again"
        }
        (_, Distance::Cluster) if atomic => {
            "make both accesses atomic, or put the cluster barrier between them"
        }
        (_, Distance::Cluster) => {
            "put the cluster barrier between the two accesses, arriving with .release and waiting with .acquire; in a loop, \
             also before the next iteration writes again"
        }
        (_, Distance::Grid) if atomic => {
            "make both accesses atomic, or publish with fence.acq_rel.gpu and an atomic flag that the other side acquires"
        }
        (_, Distance::Grid) => {
            "blocks are not ordered within a kernel: use atomics, give each block its own elements, split the kernel, or \
             publish with fence.acq_rel.gpu and an atomic flag"
        }
    };
    text.to_owned()
}
