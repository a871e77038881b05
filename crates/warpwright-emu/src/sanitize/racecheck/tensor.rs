//! Tensor memory in the race detector.
//!
//! `tcgen05.ld`, `st`, `mma` and `cp` are ordered across threads only by synchronisation between
//! `tcgen05.fence::before_thread_sync` in the one and `tcgen05.fence::after_thread_sync` in the other thread (PTX ISA, "Memory
//! Consistency Model for 5th generation of TensorCore operations"). The first enters what the thread did into the part of
//! its [`View`] that says so; that part travels with every synchronisation, relaxed ones included. The second makes
//! what has arrived usable. `tcgen05.commit` does what the first does, and its arrival says besides that operations have
//! ended.

use std::sync::Arc;

use super::BlockRaces;
use super::sync::Clocks;
use crate::events::asynchronous::Part;
use crate::events::view::{TensorKnown, View};

impl Clocks {
    /// Lanes make what they did known.
    fn fence_tensor(&mut self, warp: u32, lanes: u32, live: u32) {
        let mut view = View::default();
        view.add_tensor(self.first_warp() + warp, lanes, self.tick(warp), &[]);
        self.accept(warp, lanes, live, &view);
        self.issue(warp);
    }

    /// Lanes may use from now on what has arrived.
    fn use_tensor(&mut self, warp: u32, lanes: u32) {
        self.with_views(warp, lanes, |views, usable| {
            let mut known = TensorKnown::default();
            views.iter().for_each(|view| known.merge(view.tensor()));
            *usable = Some(Arc::new(known));
        });
    }
}

impl BlockRaces<'_> {
    /// `tcgen05.fence::before_thread_sync`
    pub fn fence_tensor_before(&mut self, warp: u32, lanes: u32, live: u32) {
        self.clocks.fence_tensor(warp, lanes, live);
        self.moved();
    }

    /// `tcgen05.fence::after_thread_sync`
    pub fn fence_tensor_after(&mut self, warp: u32, lanes: u32) {
        self.clocks.use_tensor(warp, lanes);
    }

    /// Knowledge of those who see the arrival of a `tcgen05.commit` by one lane for operations.
    pub fn committing(&mut self, warp: u32, lanes: u32, live: u32, operations: &[u32]) -> View {
        self.fence_tensor_before(warp, lanes, live);
        let parts: Vec<u32> =
            operations.iter().flat_map(|id| [Part::Reads.of(*id), Part::Writes.of(*id)]).collect();
        let tick = self.tick(warp);
        let mut view = self.ending(warp, lanes, tick, &parts);
        view.merge(&self.clocks.offered(warp, lanes).only_tensor());
        view.add_tensor(self.clocks.first_warp() + warp, lanes, tick, operations);
        self.issue(warp);
        view
    }

    /// Knowledge that a relaxed arrival hands on.
    pub fn publish_tensor(&mut self, warp: u32, lanes: u32) -> View {
        self.clocks.offered(warp, lanes).only_tensor()
    }

    /// Whether what a lane may use of tensor memory answers a question.
    pub(super) fn tensor_usable(
        &self,
        warp: u32,
        lane: u32,
        question: impl Fn(&TensorKnown) -> bool,
    ) -> bool {
        self.clocks.usable(warp, lane).is_some_and(question)
    }
}
