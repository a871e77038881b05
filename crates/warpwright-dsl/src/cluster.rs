//! Collective operations of the blocks of a cluster (sm_90 and later).

use warpwright_ptx::{Inst, Operand, PlainSpecial, ScalarType, Semantics, SpecialReg};

use crate::context::K;
use crate::exchange::Slots;
use crate::flow::Carry;
use crate::mbarrier::Mbarrier;
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
}

/// Values that each block of a cluster gives all others, once ([`K::all_gather`]): an all-gather through distributed shared memory
/// in which nobody waits for more than the values. In a kernel without clusters there is nothing to wait for.
#[derive(Clone, Copy, Debug)]
pub struct AllGather<'k> {
    k: K<'k>,
    /// Counts the bytes of the values.
    done: Option<Mbarrier<'k>>,
}

impl<'k> K<'k> {
    /// Begins an all-gather, at the start of a kernel: the first loads need not wait for blocks of the cluster that begin late. All
    /// threads are here.
    #[track_caller]
    pub fn all_gather(self) -> AllGather<'k> {
        let done = (self.cluster_blocks() > 1).then(|| {
            let done = self.mbarriers(1).at(0u32);
            self.if_(self.thread_idx().eq(0), || {
                done.init(1u32);
                self.publish_mbarriers();
            });
            self.cluster_begin();
            done
        });
        AllGather { k: self, done }
    }
}

impl<'k> AllGather<'k> {
    /// The value of block `lane modulo cluster`, given that of this block, the same in the first threads. All threads are here,
    /// once.
    #[track_caller]
    pub fn values<C: Carry<'k>>(self, mine: C) -> C {
        let Self { k, done: Some(done) } = self else { return mine };
        k.on_behalf(|| {
            let blocks = k.cluster_blocks();
            let slots = Slots::wide(k, &mine, blocks);
            let thread = k.thread_idx();
            k.if_(thread.eq(0), || done.arrive_expecting(blocks * slots.bytes()));
            k.cluster_wait();
            k.if_(thread.lt(blocks), || slots.send(thread, k.cluster_rank(), &mine, done));
            done.wait(k.lit(0u32));
            slots.load(k.lane_idx() & (blocks - 1), &mine)
        })
    }

    /// Combines values of several registers over the cluster; every thread receives the same result. The order depends on the
    /// shape of the cluster alone. `combine` as for [`K::warp_combine`]. All threads are here, once.
    #[track_caller]
    pub fn combine<C: Carry<'k>>(self, value: C, combine: impl Fn(C, C) -> C) -> C {
        let k = self.k;
        k.on_behalf(|| {
            let of_block = k.group_combine_once(k.block_threads(), value, &combine);
            k.warp_combine(k.cluster_blocks(), self.values(of_block), combine)
        })
    }
}

/// Combines the values of a cluster, as [`AllGather::combine`] does; of a block in a kernel without clusters.
#[track_caller]
pub fn cluster_reduce<'k, T: Number, R: Reduction<T>>(
    gather: AllGather<'k>,
    op: R,
    mine: Reg<'k, T>,
) -> Reg<'k, T> {
    gather.combine(mine, |a, b| op.combine(a, b))
}
