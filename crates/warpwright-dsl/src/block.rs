//! Collective operations of the threads of a block.

use crate::context::K;
use crate::error::IssueKind;
use crate::flow::{Carry, Range};
use crate::mem::{Access, FixedElement};
use crate::reg::{Number, Reg, U32, U64};
use crate::warp::{Reduction, WARP, warp_inclusive_sum, warp_reduce, warp_reduce_lanes};

/// Combines the values of a block, whose threads must all be here; every thread receives the result. The order of the
/// combination depends on the block size alone, so the result is the same in every run.
#[track_caller]
pub fn block_reduce<'k, T, R>(k: K<'k>, op: R, mine: Reg<'k, T>) -> Reg<'k, T>
where
    T: Number + FixedElement + Access<T>,
    R: Reduction<T>,
{
    k.on_behalf(|| {
        let threads = k.block_threads();
        if !threads.is_multiple_of(WARP) {
            k.issue(IssueKind::PartialWarp { what: "block_reduce", threads });
            return mine;
        }
        let of_warp = warp_reduce(k, op, mine);
        let warps = threads / WARP;
        if warps == 1 {
            return of_warp;
        }
        let slots = k.shared::<T>(warps);
        k.if_(k.lane_idx().eq(0), || slots.at(k.warp_idx()).set(of_warp));
        k.barrier();
        // Every warp reads all slots and combines them in the same order.
        let total = if warps.is_power_of_two() {
            warp_reduce_lanes(k, op, warps, slots.at(k.lane_idx() & (warps - 1)).get())
        } else {
            let inside = k.lane_idx().lt(warps);
            let partial = k.if_else(inside, || slots.at(k.lane_idx()).get(), || op.identity(k));
            warp_reduce(k, op, partial)
        };
        // A loop may come here again and overwrite the slots.
        k.barrier();
        total
    })
}

/// The sum of the values of the threads of the block before a thread, and of its own. Whole warps, all of them here, and only once: the
/// slots are not given back.
#[track_caller]
pub fn block_inclusive_sum<'k>(k: K<'k>, value: U32<'k>) -> U32<'k> {
    k.on_behalf(|| {
        let warps = k.block_threads() / WARP;
        let of_warp = warp_inclusive_sum(k, value);
        let slots = k.shared::<u32>(warps);
        k.if_(k.lane_idx().eq(WARP - 1), || slots.at(k.warp_idx()).set(of_warp));
        k.barrier();
        let own = k.warp_idx();
        (0..warps - 1)
            .fold(of_warp, |sum, warp| sum + own.gt(warp).select(slots.at(u64::from(warp)).get(), 0))
    })
}

impl<'k> K<'k> {
    /// Combines values of several registers over groups of `threads` neighbouring threads: a power of two up to 32, the
    /// whole block, or a power of two of whole warps that divides the block. All threads of the block must be here; every
    /// thread receives its group's result. `combine` as for [`warp_combine`](Self::warp_combine).
    #[track_caller]
    pub fn group_combine<C: Carry<'k>>(self, threads: u32, value: C, combine: impl Fn(C, C) -> C) -> C {
        self.on_behalf(|| {
            let total = self.group_combine_once(threads, value, combine);
            if threads > WARP {
                // A loop may come here again and overwrite the slots.
                self.barrier();
            }
            total
        })
    }

    /// [`group_combine`](Self::group_combine) without a barrier behind it: between two times that a thread comes here,
    /// another barrier of the block must pass, or it comes here only once.
    #[track_caller]
    pub fn group_combine_once<C: Carry<'k>>(self, threads: u32, value: C, combine: impl Fn(C, C) -> C) -> C {
        self.on_behalf(|| {
            let block = self.block_threads();
            if threads < WARP {
                return self.warp_combine(threads, value, combine);
            }
            let divides = threads.is_power_of_two() && block.is_multiple_of(threads);
            if !(divides || threads == block && block.is_multiple_of(WARP)) {
                self.issue(IssueKind::PartialWarp { what: "group_combine", threads });
                return value;
            }
            let of_warp = self.warp_combine(WARP, value, &combine);
            self.combine_warps(threads, of_warp, combine)
        })
    }

    /// The first elements of this thread's vectors when the block walks over `len` elements, `width` at a time:
    /// neighbouring threads take neighbouring vectors. `len` must be a multiple of `width`.
    #[track_caller]
    pub fn block_strided(self, len: U64<'k>, width: u32) -> Range<'k, u64> {
        self.on_behalf(|| {
            let step = u64::from(self.block_threads()) * u64::from(width);
            self.range(self.thread_idx().mul_wide(width), len, step)
        })
    }

    /// Like [`block_strided`](Self::block_strided) with 32-bit indices, for lengths below 2^31.
    #[track_caller]
    pub fn block_strided_u32(self, len: U32<'k>, width: u32) -> Range<'k, u32> {
        self.on_behalf(|| {
            let step = self.block_threads().saturating_mul(width);
            self.range(self.thread_idx() * width, len, step)
        })
    }
}
