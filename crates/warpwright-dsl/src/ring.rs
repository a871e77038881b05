//! Rings of tiles in shared memory between one thread that starts copies and warps that use what they bring.
//!
//! Each place has two barriers: `ready`, which counts the bytes of its copies, and `free`, at which every warp that uses it
//! arrives when it has done so.

use crate::context::K;
use crate::flow::{Carry, RawReg, RawRegs};
use crate::mbarrier::{Mbarrier, Mbarriers};
use crate::reg::U32;

/// The barriers of a ring; made by [`K::ring`].
#[derive(Clone, Copy, Debug)]
pub struct Ring<'k> {
    ready: Mbarriers<'k>,
    free: Mbarriers<'k>,
    stages: u32,
}

/// A place in a ring, and the parity of its round.
#[derive(Clone, Copy, Debug)]
#[must_use = "a turn is nothing but a place"]
pub struct Turn<'k> {
    stage: U32<'k>,
    parity: U32<'k>,
}

impl<'k> Carry<'k> for Turn<'k> {
    fn collect(&self, regs: &mut Vec<RawReg>) {
        (self.stage, self.parity).collect(regs);
    }

    fn rebuild(&self, regs: &mut RawRegs) -> Self {
        let (stage, parity) = (self.stage, self.parity).rebuild(regs);
        Self { stage, parity }
    }
}

impl<'k> Turn<'k> {
    /// The number of the place.
    pub fn stage(self) -> U32<'k> {
        self.stage
    }
}

impl<'k> K<'k> {
    /// A ring of `stages` places, not initialised.
    #[track_caller]
    pub fn ring(self, stages: u32) -> Ring<'k> {
        Ring { ready: self.mbarriers(stages), free: self.mbarriers(stages), stages }
    }
}

impl<'k> Ring<'k> {
    /// Initialises the barriers for `warps` warps that use a place; [`K::publish_mbarriers`] and a barrier follow. For one thread.
    #[track_caller]
    pub fn init(self, warps: u32) {
        for stage in 0..self.stages {
            self.ready.at(stage).init(1);
            self.free.at(stage).init(warps);
        }
    }

    /// The first turn, on either side.
    #[track_caller]
    pub fn start(self, k: K<'k>) -> Turn<'k> {
        Turn { stage: k.lit(0u32), parity: k.lit(0u32) }
    }

    /// The turn after one.
    #[track_caller]
    pub fn after(self, Turn { stage, parity }: Turn<'k>) -> Turn<'k> {
        if self.stages == 1 {
            return Turn { stage, parity: parity ^ 1 };
        }
        let next = stage + 1;
        let last = next.eq(self.stages);
        Turn { stage: last.select(0, next), parity: parity ^ last.select(1, 0) }
    }

    /// Waits until the place has been used, and announces `bytes` bytes of copies, which count at the barrier that is returned.
    /// For the thread that copies.
    #[track_caller]
    pub fn fill(self, turn: Turn<'k>, bytes: u32) -> Mbarrier<'k> {
        self.free.at(turn.stage).wait(turn.parity ^ 1);
        let ready = self.ready.at(turn.stage);
        ready.arrive_expecting(bytes);
        ready
    }

    /// Waits until the copies to the place are there.
    #[track_caller]
    pub fn wait(self, turn: Turn<'k>) {
        self.ready.at(turn.stage).wait(turn.parity);
    }

    /// Gives the place back. For one lane of each warp that uses it.
    #[track_caller]
    pub fn give_back(self, turn: Turn<'k>) {
        self.free.at(turn.stage).arrive();
    }
}
