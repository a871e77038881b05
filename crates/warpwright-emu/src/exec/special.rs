//! Special registers, fences and `trap`.

use warpwright_ptx::{PlainSpecial, Scope, SpecialReg};

use super::global::{lanes_of, set_lane};
use crate::code::layout::{Slot, axis};
use crate::context::Context;
use crate::launch::Fault;
use crate::report::coordinates;
use crate::space::SHARED_BASE;
use crate::warp::Warp;

/// The value in a lane of a special register that does not change during a block.
pub(crate) fn special_value(cx: &Context<'_>, warp: u32, lane: u32, special: SpecialReg) -> u64 {
    let config = cx.shared.config;
    let threads = config.block.iter().product::<u32>();
    let clusters = |i: usize| config.grid[i] / config.cluster[i].max(1);
    let in_cluster = |i: usize| cx.block.coordinates[i] % config.cluster[i].max(1);
    let value = match special {
        SpecialReg::Tid(a) => coordinates(warp * 32 + lane, config.block)[axis(a)],
        SpecialReg::Ntid(a) => config.block[axis(a)],
        SpecialReg::Ctaid(a) => cx.block.coordinates[axis(a)],
        SpecialReg::Nctaid(a) => config.grid[axis(a)],
        SpecialReg::ClusterCtaid(a) => in_cluster(axis(a)),
        SpecialReg::ClusterNctaid(a) => config.cluster[axis(a)],
        SpecialReg::ClusterId(a) => cx.block.coordinates[axis(a)] / config.cluster[axis(a)].max(1),
        SpecialReg::NclusterId(a) => clusters(axis(a)),
        SpecialReg::Plain(p) => match p {
            PlainSpecial::LaneId => lane,
            PlainSpecial::WarpId => warp,
            PlainSpecial::NwarpId => threads.div_ceil(32),
            // Blocks are dealt to 64 imaginary multiprocessors.
            PlainSpecial::SmId => (cx.block.linear % 64) as u32,
            PlainSpecial::NsmId => 64,
            PlainSpecial::GridId => 1,
            PlainSpecial::LanemaskEq => 1 << lane,
            PlainSpecial::LanemaskLe => u32::MAX >> (31 - lane),
            PlainSpecial::LanemaskLt => (1 << lane) - 1,
            PlainSpecial::LanemaskGe => u32::MAX << lane,
            PlainSpecial::LanemaskGt => (u32::MAX << lane) ^ 1 << lane,
            PlainSpecial::ClusterCtaRank => {
                in_cluster(0) + config.cluster[0] * (in_cluster(1) + config.cluster[1] * in_cluster(2))
            }
            PlainSpecial::ClusterNctaRank => config.cluster.iter().product(),
            PlainSpecial::IsExplicitCluster => {
                u32::from(config.cluster != [1; 3] || cx.shared.entry.function().directives.cluster.is_some())
            }
            PlainSpecial::TotalSmemSize | PlainSpecial::AggrSmemSize => {
                (cx.shared.shared_end - SHARED_BASE) as u32
            }
            PlainSpecial::DynamicSmemSize => config.dynamic_shared,
            PlainSpecial::EnvReg1 => (cx.shared.workspace >> 32) as u32,
            PlainSpecial::EnvReg2 => cx.shared.workspace as u32,
            // What the system reserves lies below the variables.
            PlainSpecial::ReservedSmemOffset1 => 0,
            // These change: see `read_special`.
            PlainSpecial::Clock
            | PlainSpecial::ClockHi
            | PlainSpecial::Clock64
            | PlainSpecial::GlobalTimer
            | PlainSpecial::GlobalTimerLo
            | PlainSpecial::GlobalTimerHi => 0,
        },
    };
    u64::from(value)
}

impl Context<'_> {
    /// Clocks count the worker's warp instructions and times of sleep, and the global timer takes one for a nanosecond, so
    /// with one worker they are deterministic. The timer never goes back, whichever worker reads it. While all threads of the
    /// grid only poll, time passes faster: see [`progress`](crate::progress).
    #[cold]
    pub(super) fn read_special(&mut self, warp: &mut Warp, exec: u32, (slot, special): (Slot, SpecialReg)) {
        self.clock += 1;
        let clock = self.runs.steps + self.clock + self.shared.time.skipped();
        self.note_poll(warp);
        let nanoseconds = self.shared.time.nanoseconds(clock);
        let value = match special {
            SpecialReg::Plain(PlainSpecial::Clock) => clock & 0xFFFF_FFFF,
            SpecialReg::Plain(PlainSpecial::ClockHi) => clock >> 32,
            SpecialReg::Plain(PlainSpecial::Clock64) => clock,
            SpecialReg::Plain(PlainSpecial::GlobalTimer) => nanoseconds,
            SpecialReg::Plain(PlainSpecial::GlobalTimerLo) => nanoseconds & 0xFFFF_FFFF,
            SpecialReg::Plain(PlainSpecial::GlobalTimerHi) => nanoseconds >> 32,
            other => special_value(self, warp.index, 0, other),
        };
        for lane in lanes_of(exec) {
            set_lane(&mut warp.regs, slot, lane, value);
        }
    }

    pub(super) fn fence(&mut self, warp: &Warp, exec: u32, scope: Scope) {
        if let Some(races) = &mut self.races {
            races.fence(warp.index, exec, scope);
        }
    }

    #[cold]
    pub(super) fn unsupported(&mut self, warp: &Warp, pc: u32, exec: u32, at: u32) {
        let site = self.site(warp, exec.trailing_zeros() & 31);
        self.fault.get_or_insert(Fault::Unsupported {
            line: self.code.position(pc).line,
            block: self.block.coordinates,
            thread: coordinates(site.thread, self.shared.config.block),
            message: self.code.unsupported.get(at as usize).cloned().unwrap_or_default(),
        });
    }

    #[cold]
    pub(super) fn trap(&mut self, warp: &Warp, pc: u32, exec: u32) {
        let site = self.site(warp, exec.trailing_zeros() & 31);
        self.fault.get_or_insert(Fault::Trap {
            line: self.code.position(pc).line,
            block: self.block.coordinates,
            thread: coordinates(site.thread, self.shared.config.block),
        });
    }
}
