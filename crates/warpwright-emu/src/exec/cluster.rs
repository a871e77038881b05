//! The blocks of a cluster together: the cluster barrier, and each other's shared memory.

use super::access::Lanes;
use super::global::{alike, lane_value, lanes_of, set_lane};
use crate::code::barrier::ClusterOp;
use crate::code::memory::Access;
use crate::code::rows::LANES;
use crate::context::Context;
use crate::events::AccessKind;
use crate::events::problem::{self, Problem};
use crate::flow::Flow;
use crate::report::{Space, Tool};
use crate::space::{SHARED_WINDOW, classify, map_cluster, split_cluster};
use crate::warp::{Group, Wait, Warp};

/// An access of lanes.
type AccessFn<'a, C> = dyn FnMut(&mut C, &mut Warp, Lanes<'_>) -> Flow + 'a;

impl Context<'_> {
    /// A load or store by addresses in the shared memory of any block of the cluster.
    #[inline(never)]
    pub(super) fn access_cluster(
        &mut self,
        warp: &mut Warp,
        lanes: Lanes<'_>,
        access: &Access,
        kind: AccessKind,
    ) -> Flow {
        let write = kind != AccessKind::Read;
        let mut access_own = |cx: &mut Self, warp: &mut Warp, lanes: Lanes<'_>| {
            if write {
                cx.store_shared_lanes(warp, lanes, access)
            } else {
                cx.load_shared_lanes(warp, lanes, access)
            }
        };
        if lanes_of(lanes.exec).all(|lane| split_cluster(lanes.addresses[lane]).0.is_none()) {
            return access_own(self, warp, lanes);
        }
        self.zero_lanes(warp, lanes.exec, access, kind);
        self.each_owner(warp, lanes, write, &mut access_own)
    }

    /// Makes an access once for each block whose shared memory some lanes name, with that memory in place of the running
    /// block's. Lanes that name none are reported and left out.
    pub(super) fn each_owner(
        &mut self,
        warp: &mut Warp,
        lanes: Lanes<'_>,
        write: bool,
        access: &mut AccessFn<'_, Self>,
    ) -> Flow {
        let own = self.rank();
        let mut owners = [own; LANES];
        let mut places = [0; LANES];
        for lane in 0..LANES {
            let (rank, place) = split_cluster(lanes.addresses[lane]);
            owners[lane] = rank.unwrap_or(own);
            places[lane] = place;
        }
        for (owner, exec) in alike(lanes.exec, owners) {
            let there = Lanes { pc: lanes.pc, exec, addresses: &places };
            let flow = if owner == own {
                access(self, warp, there)
            } else if let Some(problem) = self.unreachable(owner, write) {
                let mut flow = Flow::Next;
                for lane in lanes_of(exec) {
                    let problem =
                        Problem { address: (Space::Shared, lanes.addresses[lane]), ..problem.clone() };
                    flow = self.bad_access(warp, lanes.pc, lane, &problem);
                }
                flow
            } else {
                self.with_shared_of(owner, |cx| access(cx, warp, there))
            };
            if flow == Flow::Stop {
                return flow;
            }
        }
        Flow::Next
    }

    /// Why the shared memory of another block cannot be accessed now.
    pub(super) fn unreachable(&mut self, rank: u32, write: bool) -> Option<Problem> {
        let size = self.cluster.residents.len();
        let Some(block) = self.block_of(rank) else { return Some(problem::no_block(rank, size, write)) };
        if !block.started {
            return Some(problem::not_started(rank, write));
        }
        (block.live_warps == 0).then(|| problem::exited(rank, write))
    }

    /// Lanes execute an instruction that concerns the cluster.
    #[inline(never)]
    pub(super) fn cluster_op(&mut self, warp: &mut Warp, here: Group, exec: u32, op: &ClusterOp) -> Flow {
        match *op {
            ClusterOp::Map { dst, a, rank, generic } => {
                let size = self.cluster.residents.len() as u32;
                let mut strangers = 0;
                for lane in lanes_of(exec) {
                    let rank = lane_value(&warp.regs, rank, lane) as u32;
                    let place = shared_place(lane_value(&warp.regs, a, lane), generic);
                    let window = if generic { SHARED_WINDOW } else { 0 };
                    set_lane(&mut warp.regs, dst, lane, window + map_cluster(place, rank));
                    strangers |= u32::from(rank >= size) << lane;
                }
                if strangers != 0 && self.checks.memcheck {
                    let problem = problem::no_block(size, size as usize, false);
                    self.finding(warp, here.pc, strangers, Tool::Memcheck, "no-such-block", None, || {
                        (
                            format!("maps an address to a block of the cluster beyond its {size} blocks"),
                            problem.help.to_owned(),
                        )
                    });
                }
                Flow::Next
            }
            ClusterOp::Rank { dst, a, generic } => {
                let own = self.rank();
                for lane in lanes_of(exec) {
                    let place = shared_place(lane_value(&warp.regs, a, lane), generic);
                    let rank = split_cluster(place).0.unwrap_or(own);
                    set_lane(&mut warp.regs, dst, lane, u64::from(rank));
                }
                Flow::Next
            }
            ClusterOp::SetMaxRegisters => {
                let Some((here, exec)) = self.converge(warp, here, exec, true) else { return Flow::Gather };
                self.check_whole(warp, here.pc, exec);
                warp.push(here.pc + 1, here.mask, here.turn);
                Flow::Repick
            }
            ClusterOp::Arrive { aligned, release } => {
                let Some((here, exec)) = self.converge(warp, here, exec, aligned) else {
                    return Flow::Gather;
                };
                if aligned {
                    self.check_aligned(warp, here.pc, exec);
                }
                self.cluster_arrive(warp, here.pc, exec, release);
                warp.push(here.pc + 1, here.mask, here.turn);
                Flow::Repick
            }
            ClusterOp::Wait { aligned } => {
                let Some((here, exec)) = self.converge(warp, here, exec, aligned) else {
                    return Flow::Gather;
                };
                if aligned {
                    self.check_aligned(warp, here.pc, exec);
                }
                self.counters.barriers += 1;
                self.cluster_wait(warp, here, exec);
                Flow::Repick
            }
        }
    }

    fn check_aligned(&mut self, warp: &Warp, pc: u32, exec: u32) {
        let live = warp.live;
        if live & !exec != 0 && self.checks.synccheck {
            self.finding(warp, pc, exec, Tool::Synccheck, "divergent-barrier", None, || {
                (
                    format!("lanes {exec:#010x} of {live:#010x} reach an aligned cluster barrier without the others"),
                    "all lanes of a warp have to execute an .aligned instruction: move it out of the divergent branch"
                        .to_owned(),
                )
            });
        }
    }

    fn cluster_arrive(&mut self, warp: &Warp, pc: u32, lanes: u32, release: bool) {
        let rank = self.rank();
        if let Some(races) = &mut self.races {
            let view = if release {
                races.publish(warp.index, lanes)
            } else {
                races.publish_fenced(warp.index, lanes)
            };
            self.cluster.barrier.published.merge(&view);
        }
        let before = self.cluster.barrier.phase;
        let twice = self.cluster.barrier.arrive(rank, warp.index, lanes);
        if self.cluster.barrier.phase != before {
            self.asynchronous_published();
        }
        if twice != 0 && self.checks.synccheck {
            self.finding(warp, pc, twice, Tool::Synccheck, "cluster-arrive-twice", None, || {
                (
                    "arrives at the cluster barrier again without having waited".to_owned(),
                    "every barrier.cluster.arrive needs its barrier.cluster.wait before the next".to_owned(),
                )
            });
        }
    }

    /// Lanes wait for the end of the phase in which they arrived.
    fn cluster_wait(&mut self, warp: &mut Warp, here: Group, exec: u32) {
        let rank = self.rank();
        let (waiting, strangers) = self.cluster.barrier.wait(rank, warp.index, exec);
        if strangers != 0 && self.checks.synccheck {
            self.finding(
                warp,
                here.pc,
                strangers,
                Tool::Synccheck,
                "cluster-wait-without-arrive",
                None,
                || {
                    (
                        "waits at the cluster barrier without having arrived".to_owned(),
                        "every barrier.cluster.wait needs a barrier.cluster.arrive before it".to_owned(),
                    )
                },
            );
        }
        if waiting != 0 {
            let wait = Wait::ClusterBarrier;
            warp.groups.push(Group { pc: here.pc, mask: waiting, wait, turn: 0 });
        }
        if let Some(races) = &mut self.races {
            races.accept(warp.index, exec & !waiting, warp.live, &self.cluster.barrier.known);
        }
        warp.push(here.pc + 1, here.mask & !waiting, here.turn);
    }

    /// Lets groups that wait for the cluster barrier go on if their phase has ended.
    #[cold]
    pub(crate) fn open_cluster_barrier(&mut self, warps: &mut [Warp]) {
        let rank = self.rank();
        self.block.phase = self.cluster.barrier.phase;
        for warp in warps {
            let arrived = self.cluster.barrier.arrived(rank, warp.index);
            for group in &mut warp.groups {
                if group.wait == Wait::ClusterBarrier && group.mask & arrived == 0 {
                    if let Some(races) = &mut self.races {
                        races.accept(warp.index, group.mask, warp.live, &self.cluster.barrier.known);
                    }
                    *group = Group { pc: group.pc + 1, mask: group.mask, wait: Wait::Ready, turn: 0 };
                }
            }
        }
    }
}

/// The address in the shared window that an operand of `mapa` or `getctarank` names.
fn shared_place(address: u64, generic: bool) -> u64 {
    if generic { classify(address).1 } else { address }
}
