//! Values of several registers in shared memory, and what a block combines through it.

use warpwright_ptx::{Address, CacheHints, Inst, Operand, Ordering, ScalarType, StateSpace};

use crate::context::K;
use crate::error::IssueKind;
use crate::flow::{Carry, RawReg, RawRegs};
use crate::lanes::tree;
use crate::mem::{Ptr, Shared};
use crate::reg::U32;
use crate::warp::WARP;

/// Shared arrays for values of one shape: one array for each register of the value, so that neighbouring slots lie next
/// to each other.
#[derive(Debug)]
pub(crate) struct Slots<'k> {
    k: K<'k>,
    arrays: Vec<(ScalarType, Ptr<'k, Shared, u8>)>,
}

impl<'k> Slots<'k> {
    /// `count` slots for values of the shape of `value`.
    #[track_caller]
    pub(crate) fn new<C: Carry<'k>>(k: K<'k>, value: &C, count: u32) -> Self {
        let mut regs = Vec::new();
        value.collect(&mut regs);
        let arrays = regs.iter().map(|&RawReg { ty, .. }| {
            if !matches!(ty.bits(), 32 | 64) {
                k.issue(IssueKind::Shuffle { register: ty });
            }
            (ty, k.shared::<u8>(count.saturating_mul(ty.bytes())))
        });
        Self { k, arrays: arrays.collect() }
    }

    /// Stores `value` in a slot of this block.
    #[track_caller]
    pub(crate) fn store<C: Carry<'k>>(&self, slot: U32<'k>, value: &C) {
        self.store_by(StateSpace::Shared, value, |array, bytes| array.at(slot * bytes).operand());
    }

    /// Stores `value` in a slot of block `rank` of the cluster.
    #[track_caller]
    pub(crate) fn store_in<C: Carry<'k>>(&self, rank: U32<'k>, slot: U32<'k>, value: &C) {
        let place = |array: Ptr<'k, Shared, u8>, bytes| array.at(slot * bytes).of_block(rank).operand();
        self.store_by(StateSpace::SharedCluster, value, place);
    }

    #[track_caller]
    fn store_by<C: Carry<'k>>(
        &self,
        space: StateSpace,
        value: &C,
        place: impl Fn(Ptr<'k, Shared, u8>, u32) -> Address,
    ) {
        let mut regs = Vec::new();
        value.collect(&mut regs);
        for (reg, &(ty, array)) in regs.iter().zip(&self.arrays) {
            let addr = place(array, ty.bytes());
            self.k.emit(Inst::St {
                space,
                ty,
                ordering: Ordering::WEAK,
                hints: CacheHints::NONE,
                srcs: vec![Operand::Reg(reg.id)],
                addr,
            });
        }
    }

    /// The value in a slot of this block, of the shape of `like`.
    #[track_caller]
    pub(crate) fn load<C: Carry<'k>>(&self, slot: U32<'k>, like: &C) -> C {
        let load = |&(ty, array): &(ScalarType, Ptr<'k, Shared, u8>)| {
            let addr = array.at(slot * ty.bytes()).operand();
            let id = self.k.rec().new_reg(ty, warpwright_ptx::RegKind::Value);
            self.k.emit(Inst::Ld {
                space: StateSpace::Shared,
                ty,
                ordering: Ordering::WEAK,
                hints: CacheHints::NONE,
                non_coherent: false,
                dsts: vec![Some(id)],
                addr,
            });
            RawReg { id, ty }
        };
        like.rebuild(&mut RawRegs::new(self.arrays.iter().map(load).collect()))
    }

    /// The values of the first `count` slots, combined in a fixed order; every lane of the warp receives the result.
    #[track_caller]
    pub(crate) fn combine<C: Carry<'k>>(&self, count: u32, like: &C, combine: impl Fn(C, C) -> C) -> C {
        let k = self.k;
        if count.is_power_of_two() && count <= WARP {
            let mine = self.load(k.lane_idx() & (count - 1), like);
            return k.warp_combine(count, mine, combine);
        }
        let all: Vec<C> = (0..count).map(|slot| self.load(k.lit(slot), like)).collect();
        tree(all, combine).unwrap_or_else(|| self.load(k.lit(0u32), like))
    }
}

impl<'k> K<'k> {
    /// Combines values of several registers over the block, whose threads must all be here; every thread receives the
    /// same result. The order depends on the block size alone. `combine` as for [`warp_combine`](Self::warp_combine).
    #[track_caller]
    pub fn block_combine<C: Carry<'k>>(self, value: C, combine: impl Fn(C, C) -> C) -> C {
        self.group_combine(self.block_threads(), value, combine)
    }

    /// Combines over whole warps of a block: `threads` neighbouring threads, all of the block or a power of two that
    /// divides it. `of_warp` is what each warp has; a barrier lies in front of the result, and none behind it.
    #[track_caller]
    pub(crate) fn combine_warps<C: Carry<'k>>(
        self,
        threads: u32,
        of_warp: C,
        combine: impl Fn(C, C) -> C,
    ) -> C {
        let (block, warps) = (self.block_threads(), threads / WARP);
        if warps <= 1 {
            return of_warp;
        }
        let slots = Slots::new(self, &of_warp, block / WARP);
        let warp = self.warp_idx();
        self.if_(self.lane_idx().eq(0), || slots.store(warp, &of_warp));
        self.barrier();
        if threads == block {
            return slots.combine(warps, &of_warp, combine);
        }
        // Every warp reads the slots of its group and combines them in the same order.
        let at = (self.lane_idx() & (warps - 1)) + (warp & !(warps - 1));
        self.warp_combine(warps, slots.load(at, &of_warp), combine)
    }
}
