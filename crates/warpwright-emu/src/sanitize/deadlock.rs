//! Deadlocks in words: who waits at which instruction for what, and where the others are.

use std::fmt::Write as _;

use super::synccheck::Barriers;
use crate::code::Code;
use crate::context::Context;
use crate::launch::Fault;
use crate::progress::{Outlook, POLL_LIMIT, TIME_LIMIT};
use crate::report::{Event, Key, Other, Severity, Site, Tool};
use crate::resident::ClusterBarrier;
use crate::warp::{Wait, Warp};

/// Lanes of a warp that stand at an instruction.
#[derive(Clone, Copy, Debug)]
struct Standing {
    warp: u32,
    lanes: u32,
    /// Lanes of the warp that have not exited.
    live: u32,
    pc: u32,
    wait: Wait,
    /// The state that the warp was found to come to, if it polls.
    outlook: Outlook,
}

/// Threads of a block that wait for ever at an instruction.
#[derive(Clone, Debug)]
pub(crate) struct Stuck {
    site: Site,
    block: [u32; 3],
    pc: u32,
    /// Others of the same cluster that wait elsewhere.
    other: Option<(Site, u32)>,
    text: String,
}

/// Where the threads of a block are.
struct Places<'a> {
    standing: Vec<Standing>,
    /// Warps that have exited.
    exited: Vec<u32>,
    code: &'a Code,
}

impl<'a> Places<'a> {
    fn new(warps: &[Warp], code: &'a Code) -> Self {
        let standing = warps.iter().flat_map(|w| {
            let (outlook, poll) = w.watch.latest();
            // Lanes of one loop stand where they poll, wherever their turn has ended.
            let poll = poll.filter(|_| w.groups.iter().filter(|g| g.wait == Wait::Ready).count() == 1);
            let at = move |g: &crate::warp::Group| Standing {
                warp: w.index,
                lanes: g.mask,
                live: w.live,
                pc: poll.filter(|_| g.wait == Wait::Ready).unwrap_or(g.pc),
                wait: g.wait,
                outlook,
            };
            w.groups.iter().map(at)
        });
        Self {
            standing: standing.collect(),
            exited: warps.iter().filter(|w| w.live == 0).map(|w| w.index).collect(),
            code,
        }
    }

    /// The places of the threads of which `wanted` holds, and the exited warps.
    fn describe(&self, wanted: impl Fn(&Standing) -> bool) -> String {
        let mut parts: Vec<String> = Vec::new();
        let mut rest: Vec<Standing> = self.standing.iter().copied().filter(wanted).collect();
        while let Some(&Standing { pc, wait, .. }) = rest.first() {
            let (here, others): (Vec<_>, Vec<_>) =
                rest.into_iter().partition(|s| (s.pc, s.wait) == (pc, wait));
            rest = others;
            let line = self.code.position(pc).line;
            let (who, several) = names(&here);
            let verb = if several { "stand" } else { "stands" };
            parts.push(format!("{who} {verb} at line {line}{}", what(wait)));
        }
        if !self.exited.is_empty() {
            let (who, several) = ranges(&self.exited);
            parts.push(format!("{who} {} exited", if several { "have" } else { "has" }));
        }
        // Enough to see what happened.
        let more = parts.len().saturating_sub(8);
        parts.truncate(8);
        if more > 0 {
            parts.push(format!("and {more} more places"));
        }
        parts.join(", ")
    }
}

/// The wait of a standing group, in parentheses.
fn what(wait: Wait) -> String {
    match wait {
        Wait::Ready => String::new(),
        Wait::Collective { .. } => " (warp collective)".to_owned(),
        Wait::Barrier { id } => format!(" (barrier {id})"),
        Wait::ClusterBarrier => " (cluster barrier)".to_owned(),
        Wait::Aligned => " (before an aligned instruction)".to_owned(),
        Wait::Mbarrier { .. } => " (mbarrier)".to_owned(),
    }
}

/// `warp 3`, `warps 0-2, 5`; and whether it is more than one.
fn ranges(warps: &[u32]) -> (String, bool) {
    let mut text = String::from(if warps.len() == 1 { "warp " } else { "warps " });
    let mut at = 0;
    while let Some(&first) = warps.get(at) {
        let run = (at..warps.len()).take_while(|i| warps[*i] == first + (*i - at) as u32).count();
        let separator = if at == 0 { "" } else { ", " };
        // Writing to a String cannot fail.
        let _ = match run {
            1 => write!(text, "{separator}{first}"),
            _ => write!(text, "{separator}{first}-{}", first + run as u32 - 1),
        };
        at += run;
    }
    (text, warps.len() > 1)
}

/// Names warps, and lanes of warps of which not all lanes are here; and whether it is a plural.
fn names(standing: &[Standing]) -> (String, bool) {
    let whole: Vec<u32> = standing.iter().filter(|s| s.live & !s.lanes == 0).map(|s| s.warp).collect();
    let mut parts = Vec::new();
    if !whole.is_empty() {
        parts.push(ranges(&whole).0);
    }
    let some = standing.iter().filter(|s| s.live & !s.lanes != 0);
    parts.extend(some.map(|s| format!("lanes {:#010x} of warp {}", s.lanes, s.warp)));
    (parts.join(", "), parts.len() > 1 || whole.len() != 1)
}

/// The wait of the threads that stand at one instruction of a block.
fn text(
    at: &Standing,
    places: &Places<'_>,
    barriers: &Barriers,
    cluster: &(&ClusterBarrier, String),
) -> String {
    let here: Vec<Standing> =
        places.standing.iter().copied().filter(|s| (s.pc, s.wait) == (at.pc, at.wait)).collect();
    let (who, several) = names(&here);
    let waits = if several { "wait" } else { "waits" };
    match at.wait {
        Wait::Ready => {
            let poll = if several { "poll" } else { "polls" };
            let ends = match here.iter().map(|s| s.outlook).max() {
                Some(Outlook::Timed) => format!(", and {} days on the clocks do not end the loop", days()),
                Some(Outlook::Spent) => format!(", and {POLL_LIMIT} polls do not end the loop"),
                Some(Outlook::Stuck | Outlook::Open) | None => String::new(),
            };
            format!("{who} {poll} for ever: no thread is left that could change what is read here{ends}")
        }
        Wait::Collective { mask } => {
            let missing = mask & at.live & !at.lanes;
            let others = places.describe(|s| s.warp == at.warp && s.lanes & missing != 0);
            format!("{who} {waits} for ever: the warp collective waits for lanes {missing:#010x}; {others}")
        }
        Wait::Barrier { id } => {
            let (counted, wanted) = match barriers.progress(id) {
                (here, Some(count)) => (here, format!("{count} threads")),
                (here, None) => {
                    let live: u32 = lanes_left(&places.standing);
                    (here, format!("all {live} threads"))
                }
            };
            let absent = places.describe(|s| s.lanes & !barriers.arrived(id, s.warp) != 0);
            let absent = if absent.is_empty() { "the block has no other threads".to_owned() } else { absent };
            format!("{who} {waits} for ever: barrier {id} waits for {wanted} and has {counted}; {absent}")
        }
        Wait::Aligned => {
            let others = places.describe(|s| s.warp == at.warp && s.wait != Wait::Aligned);
            format!("{who} {waits} for ever: the warp has to come here as a whole; {others}")
        }
        Wait::Mbarrier { .. } => {
            let others = places.describe(|s| (s.pc, s.wait) != (at.pc, at.wait));
            let others = if others.is_empty() { "the block has no other threads".to_owned() } else { others };
            format!("{who} {waits} for ever; {others}")
        }
        Wait::ClusterBarrier => {
            let (barrier, absent) = cluster;
            let (live, arrived) = barrier.counts();
            format!(
                "{who} {waits} for ever: the cluster barrier waits for all {live} threads and has {arrived}; {absent}"
            )
        }
    }
}

/// The time that loops with a deadline are given.
fn days() -> u64 {
    TIME_LIMIT / (86_400 * 1_000_000_000)
}

fn lanes_left(standing: &[Standing]) -> u32 {
    standing.iter().map(|s| s.lanes.count_ones()).sum()
}

/// The message of a fault: every wait once, after `headline`.
pub(crate) fn message(stuck: &[Stuck], headline: &str, code: &Code) -> String {
    let mut text = headline.to_owned();
    let mut seen = Vec::new();
    for s in stuck {
        if !seen.contains(&s.pc) {
            seen.push(s.pc);
            let separator = if text.is_empty() { "" } else { "; " };
            let _ = write!(text, "{separator}line {}: {}", code.position(s.pc).line, s.text);
        }
    }
    text
}

impl Context<'_> {
    /// The threads of the cluster, none of which gets further, by block and instruction.
    #[cold]
    pub(crate) fn stuck(&mut self) -> Vec<Stuck> {
        let code = self.code;
        let blocks = self.cluster.residents.len();
        let mut all = Vec::with_capacity(blocks);
        for rank in 0..blocks {
            self.enter(rank);
            let warps = self.take_warps(rank);
            all.push(Places::new(&warps, code));
            self.put_warps(rank, warps);
        }
        let absent = self.absent(&all);
        let mut stuck: Vec<Stuck> = Vec::new();
        for (rank, places) in all.iter().enumerate() {
            self.enter(rank);
            let mut seen: Vec<(u32, Wait)> = Vec::new();
            for s in &places.standing {
                if seen.contains(&(s.pc, s.wait)) {
                    continue;
                }
                seen.push((s.pc, s.wait));
                let text = text(s, places, &self.block.barriers, &(&self.cluster.barrier, absent.clone()));
                let text = match s.wait {
                    Wait::Mbarrier { rank, address } => {
                        format!("{text}; {}", self.describe_mbarrier(rank, address))
                    }
                    _ => text,
                };
                let thread = 32 * s.warp + s.lanes.trailing_zeros() % 32;
                let site = Site { block: self.block.linear as u32, thread };
                stuck.push(Stuck { site, block: self.block.coordinates, pc: s.pc, other: None, text });
            }
        }
        for i in 0..stuck.len() {
            let pc = stuck[i].pc;
            stuck[i].other = stuck.iter().filter(|s| s.pc != pc).map(|s| (s.site, s.pc)).min();
        }
        stuck
    }

    /// Where the threads are that have not arrived at the cluster barrier.
    fn absent(&self, all: &[Places<'_>]) -> String {
        let barrier = &self.cluster.barrier;
        let mut parts = Vec::new();
        for (rank, places) in (0..).zip(all) {
            let missing = |s: &Standing| s.lanes & !barrier.arrived(rank, s.warp) != 0;
            if places.standing.iter().any(missing) {
                parts.push(format!("in block {rank} of the cluster {}", places.describe(missing)));
            }
        }
        parts.join(", ")
    }

    /// Reports threads that wait for ever: a finding for each instruction, or a fault where synccheck is off.
    #[cold]
    pub(crate) fn report_stuck(&mut self, stuck: &[Stuck], headline: &str) {
        if !self.checks.synccheck {
            let Some(first) = stuck.iter().min_by_key(|s| s.site) else { return };
            let message = message(stuck, headline, self.code);
            self.fault.get_or_insert(Fault::Deadlock { block: first.block, message });
            return;
        }
        for s in stuck {
            let other_pc = s.other.map(|(_, pc)| pc);
            let key = Key { tool: Tool::Synccheck, kind: "deadlock", pc: s.pc, other_pc };
            self.findings.record(key, s.site, || Event {
                severity: Severity::Error,
                message: s.text.clone(),
                help: "every thread that a barrier counts has to reach it, and whoever sets what others poll has to be \
                       able to run; move the wait out of divergent code, or lower the count"
                    .to_owned(),
                address: None,
                other: s.other.map(|(site, pc)| Other { site: Some(site), pc: Some(pc), action: "waits too" }),
            });
        }
    }

    /// Ends all threads of the cluster.
    pub(crate) fn kill_cluster(&mut self) {
        for rank in 0..self.cluster.residents.len() {
            self.enter(rank);
            let mut warps = self.take_warps(rank);
            warps.iter_mut().for_each(Warp::kill);
            self.put_warps(rank, warps);
            self.block.live_warps = 0;
            self.block.live_threads = 0;
        }
    }

    /// Where the warps of the running cluster are.
    #[cold]
    pub(crate) fn positions(&mut self) -> String {
        let mut text = String::new();
        for rank in 0..self.cluster.residents.len() {
            self.enter(rank);
            let warps = self.take_warps(rank);
            let [x, y, z] = self.block.coordinates;
            let separator = if rank == 0 { "" } else { "; " };
            let places = Places::new(&warps, self.code).describe(|_| true);
            let _ = write!(text, "{separator}in block ({x}, {y}, {z}) {places}");
            self.put_warps(rank, warps);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(warp: u32, lanes: u32, pc: u32, wait: Wait) -> Standing {
        Standing { warp, lanes, live: u32::MAX, pc, wait, outlook: Outlook::Stuck }
    }

    #[test]
    fn warps_are_named_in_ranges_and_parts_by_lanes() {
        assert_eq!(ranges(&[4]), ("warp 4".to_owned(), false));
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), ("warps 0-2, 5, 7-8".to_owned(), true));
        let some = [standing(0, u32::MAX, 1, Wait::Ready), standing(3, 0xF, 1, Wait::Ready)];
        assert_eq!(names(&some), ("warp 0, lanes 0x0000000f of warp 3".to_owned(), true));
        assert_eq!(names(&some[..1]), ("warp 0".to_owned(), false));
    }

    #[test]
    fn places_are_told_once_each() {
        let code = Code::default();
        let at = Wait::Barrier { id: 2 };
        let all = [0, 1, 2].map(|w| standing(w, u32::MAX, 7, at));
        let mut places = Places { standing: all.to_vec(), exited: vec![3], code: &code };
        places.standing.push(standing(5, 1, 9, Wait::Ready));
        assert_eq!(
            places.describe(|_| true),
            "warps 0-2 stand at line 0 (barrier 2), lanes 0x00000001 of warp 5 stand at line 0, warp 3 has exited"
        );
        assert_eq!(
            places.describe(|s| s.warp == 1),
            "warp 1 stands at line 0 (barrier 2), warp 3 has exited"
        );
    }
}
