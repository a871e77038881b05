//! Arrivals at the named barriers of a block, and barriers that have opened.

use super::Participant;

/// The part of an instruction at a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// `bar.sync`: arrives and waits.
    Sync,
    /// `bar.arrive`: arrives and goes on.
    Arrive,
    /// `bar.red`: arrives with a predicate per lane (a mask) and waits.
    Reduce(u32),
}

/// Lanes of one warp execute a barrier instruction.
#[derive(Clone, Copy, Debug)]
pub struct BarrierCall {
    /// Which barrier.
    pub id: u32,
    /// The thread count, if one is given.
    pub count: Option<u32>,
    /// The part of the instruction.
    pub arrival: Arrival,
    /// Whether the instruction demands all lanes of the warp (`bar`, `barrier.aligned`).
    pub aligned: bool,
    /// Decoded instruction.
    pub pc: u32,
    /// Linear block index, for reports.
    pub block: u32,
    /// Warp in the block.
    pub warp: u32,
    /// Lanes that execute it.
    pub lanes: u32,
    /// Lanes of the warp that have not exited.
    pub live: u32,
    /// Threads of the block that have not exited.
    pub live_threads: u32,
}

/// Lanes that wait at a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Warp in the block.
    pub warp: u32,
    /// Its waiting lanes.
    pub lanes: u32,
    /// The instruction at which they wait.
    pub pc: u32,
    /// Lanes of the warp that had not exited when these arrived.
    pub live: u32,
}

/// The predicates of all threads that took part in a `bar.red`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    /// Threads whose predicate was true.
    pub popc: u32,
    /// Threads that took part.
    pub threads: u32,
}

impl Reduction {
    /// `bar.red.and`
    pub const fn all(&self) -> bool {
        self.popc == self.threads
    }

    /// `bar.red.or`
    pub const fn any(&self) -> bool {
        self.popc != 0
    }
}

/// A barrier that has opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Which.
    pub id: u32,
    /// Those that waited and go on now, the last to arrive included if it waits.
    pub waiters: Vec<Waiter>,
    /// Whether these are all threads of the block that have not exited.
    pub everyone: bool,
    /// The reduction, for waiters at a `bar.red`.
    pub reduction: Reduction,
}

impl Opened {
    /// The waiters by warp, as the race detector wants them.
    pub fn participants(&self) -> Vec<Participant> {
        let mut warps: Vec<Participant> = Vec::with_capacity(self.waiters.len());
        for w in &self.waiters {
            match warps.iter_mut().find(|p| p.warp == w.warp) {
                Some(p) => {
                    p.lanes |= w.lanes;
                    p.live &= w.live;
                }
                None => warps.push(Participant { warp: w.warp, lanes: w.lanes, live: w.live }),
            }
        }
        warps
    }
}

/// The outcome of an arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// The lanes have to wait.
    Blocked,
    /// The lanes go on, and the barrier stays closed.
    Passed,
    /// The barrier has opened.
    Opened(Opened),
}
