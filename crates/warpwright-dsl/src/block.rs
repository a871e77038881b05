//! What the threads of a block do together.

use crate::context::K;
use crate::error::IssueKind;
use crate::flow::Range;
use crate::mem::FixedElement;
use crate::reg::{Number, Reg, U32, U64};
use crate::warp::{Reduction, WARP, warp_reduce, warp_reduce_lanes};

/// Combines the values of a block, whose threads must all be here; every thread receives the result. The order of the
/// combination depends on the block size alone, so the result is the same in every run.
#[track_caller]
pub fn block_reduce<'k, T, R>(k: K<'k>, op: R, mine: Reg<'k, T>) -> Reg<'k, T>
where
    T: Number + FixedElement + crate::mem::Access<T>,
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

impl<'k> K<'k> {
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
