//! All steps of a pass in one launch: the blocks keep the recurrent weights on the chip, and hand each other what a step gives.

pub(super) mod backward;
pub(super) mod exchange;
pub(super) mod forward;
pub(super) mod gemm;
mod weights;
