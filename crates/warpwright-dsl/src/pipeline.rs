//! Pipelines of tiles in shared memory between one thread that starts copies (the producer) and warps that use what they bring
//! (the consumers), in the words of CUTLASS's `PipelineTmaAsync`; or between warps that store and who uses that (`PipelineAsync`).
//!
//! Each stage has two barriers: `full`, which counts the bytes of its copies, and `empty`, at which every consuming warp arrives
//! when it has used the stage.

use crate::context::K;
use crate::flow::{Carry, RawReg, RawRegs};
use crate::mbarrier::{Mbarrier, Mbarriers};
use crate::reg::{Source, U32};

/// The barriers of a pipeline; made by [`K::pipeline`].
#[derive(Clone, Copy, Debug)]
pub struct Pipeline<'k> {
    full: Mbarriers<'k>,
    empty: Mbarriers<'k>,
    stages: u32,
}

/// A stage of a pipeline, and the parity of its round.
#[derive(Clone, Copy, Debug)]
#[must_use = "a state only names a stage"]
pub struct PipelineState<'k> {
    stage: U32<'k>,
    parity: U32<'k>,
}

impl<'k> Carry<'k> for PipelineState<'k> {
    fn collect(&self, regs: &mut Vec<RawReg>) {
        (self.stage, self.parity).collect(regs);
    }

    fn rebuild(&self, regs: &mut RawRegs) -> Self {
        let (stage, parity) = (self.stage, self.parity).rebuild(regs);
        Self { stage, parity }
    }
}

impl<'k> PipelineState<'k> {
    /// The number of the stage.
    pub fn stage(self) -> U32<'k> {
        self.stage
    }
}

impl<'k> K<'k> {
    /// A pipeline of `stages` stages, not initialised.
    #[track_caller]
    pub fn mbarrier_pipeline(self, stages: u32) -> Pipeline<'k> {
        Pipeline { full: self.mbarriers(stages), empty: self.mbarriers(stages), stages }
    }
}

impl<'k> Pipeline<'k> {
    /// Initialises the barriers for `warps` consuming warps; [`K::publish_mbarriers`] and a barrier follow. For one thread.
    #[track_caller]
    pub fn init(self, warps: u32) {
        for stage in 0..self.stages {
            self.full.at(stage).init(1);
            self.empty.at(stage).init(warps);
        }
    }

    /// The same for a pipeline that warps fill: `producers` arrivals [commit](Self::producer_commit) a stage, `consumers` give it back.
    /// For one thread.
    #[track_caller]
    pub fn init_for(self, producers: u32, consumers: u32) {
        for stage in 0..self.stages {
            self.full.at(stage).init(producers);
            self.empty.at(stage).init(consumers);
        }
    }

    /// A pipeline of the same stages for those who use them when warps have worked on what copies brought: each of these
    /// [waits](Self::consumer_wait) here and [commits](Self::producer_commit) there, where consumers wait and give stages back to the copies.
    /// Not initialised.
    #[track_caller]
    pub fn behind(self, k: K<'k>) -> Self {
        Self { full: k.mbarriers(self.stages), ..self }
    }

    /// Initialises what a pipeline [behind](Self::behind) another has of its own, for `warps` arrivals. For one thread.
    #[track_caller]
    pub fn init_behind(self, warps: u32) {
        for stage in 0..self.stages {
            self.full.at(stage).init(warps);
        }
    }

    /// The pipeline of `stages` of these stages, from stage `first` on.
    #[track_caller]
    pub fn part(self, first: impl Source<'k, u32>, stages: u32) -> Self {
        Self { full: self.full.from(first), empty: self.empty.from(first), stages }
    }

    /// The same for a pipeline whose stages receive copies of all blocks of the cluster: `warps` warps of each of them use a stage of
    /// this block or hold one of their own that this block's copies fill. For one thread.
    #[track_caller]
    pub fn init_in_cluster(self, k: K<'k>, warps: u32) {
        self.init(warps * k.cluster_blocks());
    }

    /// The first state, of the producer and of the consumers.
    #[track_caller]
    pub fn start(self, k: K<'k>) -> PipelineState<'k> {
        PipelineState { stage: k.lit(0u32), parity: k.lit(0u32) }
    }

    /// The state after one.
    #[track_caller]
    pub fn next(self, PipelineState { stage, parity }: PipelineState<'k>) -> PipelineState<'k> {
        if self.stages == 1 {
            return PipelineState { stage, parity: parity ^ 1 };
        }
        let next = stage + 1;
        let last = next.eq(self.stages);
        PipelineState { stage: last.select(0, next), parity: parity ^ last.select(1, 0) }
    }

    /// Waits until the stage is empty, and announces `bytes` bytes of copies, which count at the barrier that is returned: they
    /// commit themselves. For the producing thread.
    #[track_caller]
    pub fn producer_acquire(self, state: PipelineState<'k>, bytes: u32) -> Mbarrier<'k> {
        self.empty.at(state.stage).wait(state.parity ^ 1);
        let full = self.full.at(state.stage);
        full.arrive_expecting(bytes);
        full
    }

    /// Waits until the stage is empty. For every thread that fills it.
    #[track_caller]
    pub fn producer_wait(self, state: PipelineState<'k>) {
        self.empty.at(state.stage).wait(state.parity ^ 1);
    }

    /// Hands on a stage that a warp has filled with stores; for copies to read them, its lanes have
    /// [fenced](K::fence_shared_copies) them and met. For one lane of each producing warp.
    #[track_caller]
    pub fn producer_commit(self, state: PipelineState<'k>) {
        self.full.at(state.stage).arrive();
    }

    /// Waits until the copies to the stage have arrived, or the stores.
    #[track_caller]
    pub fn consumer_wait(self, state: PipelineState<'k>) {
        self.full.at(state.stage).wait(state.parity);
    }

    /// Gives the stage back to the producer. For one lane of each consuming warp.
    #[track_caller]
    pub fn consumer_release(self, state: PipelineState<'k>) {
        self.empty.at(state.stage).arrive();
    }

    /// Gives the stage back to the producer of block `rank` of the cluster. For one lane of each consuming warp, and each block.
    #[track_caller]
    pub fn consumer_release_at(self, rank: U32<'k>, state: PipelineState<'k>) {
        self.empty.at(state.stage).arrive_at(rank);
    }
}
