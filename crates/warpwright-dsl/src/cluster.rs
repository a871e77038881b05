//! What the blocks of a cluster do together (sm_90 and later).

use warpwright_ptx::{Inst, Operand, PlainSpecial, ScalarType, Semantics, SpecialReg};

use crate::context::K;
use crate::exchange::Slots;
use crate::flow::Carry;
use crate::reg::{Number, Reg, U32};
use crate::warp::Reduction;

impl<'k> K<'k> {
    /// Blocks of a cluster; part of the kernel, so known while recording.
    pub fn cluster_blocks(self) -> u32 {
        self.rec().cluster()
    }

    /// The block's number in its cluster, `%cluster_ctarank`; 0 in a kernel without clusters.
    #[track_caller]
    pub fn cluster_rank(self) -> U32<'k> {
        if self.cluster_blocks() == 1 {
            return self.lit(0u32);
        }
        let dst = self.fresh::<u32>();
        let src = Operand::Special(SpecialReg::Plain(PlainSpecial::ClusterCtaRank));
        self.emit(Inst::Mov { ty: ScalarType::U32, dst: dst.id(), src });
        dst
    }

    /// The number of the block's cluster along x: [`block_idx_x`](Self::block_idx_x) over the blocks of a cluster.
    #[track_caller]
    pub fn cluster_idx_x(self) -> U32<'k> {
        self.on_behalf(|| match self.cluster_blocks() {
            1 => self.block_idx_x(),
            blocks => self.block_idx_x() >> blocks.trailing_zeros(),
        })
    }

    /// Waits until every thread of the cluster is here, and orders their accesses to memory.
    #[track_caller]
    pub fn cluster_barrier(self) {
        self.cluster_arrive();
        self.cluster_wait();
    }

    /// The first half of [`cluster_barrier`](Self::cluster_barrier): what the thread did before is visible to whoever
    /// waits.
    #[track_caller]
    pub fn cluster_arrive(self) {
        self.emit(Inst::ClusterBarrier { arrive: true, semantics: Semantics::Release, aligned: true });
    }

    /// [`cluster_arrive`](Self::cluster_arrive) at the start of a kernel, when there is nothing yet for others to see: it
    /// orders nothing, and the first loads need not wait for it. Wait before the first remote access, and no time is lost on
    /// blocks that begin late.
    #[track_caller]
    pub fn cluster_begin(self) {
        self.emit(Inst::ClusterBarrier { arrive: true, semantics: Semantics::Relaxed, aligned: true });
    }

    /// The second half of [`cluster_barrier`](Self::cluster_barrier): waits until every thread of the cluster has
    /// arrived. Arrivals and waits of a thread alternate.
    #[track_caller]
    pub fn cluster_wait(self) {
        self.emit(Inst::ClusterBarrier { arrive: false, semantics: Semantics::Acquire, aligned: true });
    }

    /// Combines values of several registers over the cluster, whose threads must all be here; every thread receives the
    /// same result. The order depends on the shape of the cluster alone. `combine` as for
    /// [`warp_combine`](Self::warp_combine).
    ///
    /// Every block of the cluster must be known to have begun: a [`cluster_barrier`](Self::cluster_barrier), or its two
    /// halves, lies between the start of the kernel and the first call, and another one between two calls of a loop; in
    /// a kernel without clusters, a barrier of the block.
    #[track_caller]
    pub fn cluster_combine<C: Carry<'k>>(self, value: C, combine: impl Fn(C, C) -> C) -> C {
        let blocks = self.cluster_blocks();
        if blocks == 1 {
            return self.group_combine_once(self.block_threads(), value, combine);
        }
        self.on_behalf(|| {
            let of_block = self.group_combine_once(self.block_threads(), value, &combine);
            let slots = Slots::new(self, &of_block, blocks);
            // Lane `r` of the first warp hands the block's value to block `r`.
            let thread = self.thread_idx();
            self.if_(thread.lt(blocks), || slots.store_in(thread, self.cluster_rank(), &of_block));
            self.cluster_barrier();
            slots.combine(blocks, &of_block, &combine)
        })
    }
}

/// Combines the values of a cluster, as [`K::cluster_combine`] does; of a block in a kernel without clusters.
#[track_caller]
pub fn cluster_reduce<'k, T: Number, R: Reduction<T>>(k: K<'k>, op: R, mine: Reg<'k, T>) -> Reg<'k, T> {
    k.cluster_combine(mine, |a, b| op.combine(a, b))
}
