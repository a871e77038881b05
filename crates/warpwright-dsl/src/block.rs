//! What the threads of a block do together.

use warpwright_ptx::ScalarType;

use crate::context::K;
use crate::error::IssueKind;
use crate::flow::{Carry, Range, RawReg, RawRegs};
use crate::mem::{Access, FixedElement, Ptr, Shared};
use crate::reg::{Number, Reg, U32, U64};
use crate::warp::{Reduction, WARP, warp_reduce, warp_reduce_lanes};

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

/// Places in shared memory for one register of each warp.
enum Slots<'k> {
    F32(Ptr<'k, Shared, f32>),
    F64(Ptr<'k, Shared, f64>),
    U32(Ptr<'k, Shared, u32>),
    U64(Ptr<'k, Shared, u64>),
}

impl<'k> Slots<'k> {
    fn new(k: K<'k>, ty: ScalarType, warps: u32) -> Option<Self> {
        Some(match ty {
            ScalarType::F32 => Self::F32(k.shared(warps)),
            ScalarType::F64 => Self::F64(k.shared(warps)),
            ScalarType::B32 => Self::U32(k.shared(warps)),
            ScalarType::B64 => Self::U64(k.shared(warps)),
            _ => return None,
        })
    }

    fn put(&self, k: K<'k>, warp: U32<'k>, RawReg { id, .. }: RawReg) {
        match self {
            Self::F32(slots) => slots.at(warp).set(Reg::<f32>::from_id(k, id)),
            Self::F64(slots) => slots.at(warp).set(Reg::<f64>::from_id(k, id)),
            Self::U32(slots) => slots.at(warp).set(Reg::<u32>::from_id(k, id)),
            Self::U64(slots) => slots.at(warp).set(Reg::<u64>::from_id(k, id)),
        }
    }

    fn take(&self, warp: U32<'k>) -> warpwright_ptx::Reg {
        match self {
            Self::F32(slots) => slots.at(warp).get().id(),
            Self::F64(slots) => slots.at(warp).get().id(),
            Self::U32(slots) => slots.at(warp).get().id(),
            Self::U64(slots) => slots.at(warp).get().id(),
        }
    }
}

impl<'k> K<'k> {
    /// Combines values of several registers over groups of `threads` neighbouring threads: a power of two up to 32, or
    /// a power of two of whole warps that divides the block. All threads of the block must be here; every thread
    /// receives its group's result. `combine` as for [`warp_combine`](Self::warp_combine).
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
            if threads <= WARP {
                return self.warp_combine(threads, value, combine);
            }
            let block = self.block_threads();
            if !threads.is_power_of_two() || !block.is_multiple_of(threads) {
                self.issue(IssueKind::PartialWarp { what: "group_combine", threads });
                return value;
            }
            let of_warp = self.warp_combine(WARP, value, &combine);
            let mut regs = Vec::new();
            of_warp.collect(&mut regs);
            let slots: Option<Vec<Slots<'k>>> =
                regs.iter().map(|reg| Slots::new(self, reg.ty, block / WARP)).collect();
            let Some(slots) = slots else {
                self.issue(IssueKind::Shuffle { register: ScalarType::Pred });
                return of_warp;
            };
            let warp = self.warp_idx();
            self.if_(self.lane_idx().eq(0), || {
                slots.iter().zip(&regs).for_each(|(slots, reg)| slots.put(self, warp, *reg));
            });
            self.barrier();
            // Every warp reads the slots of its group and combines them in the same order.
            let warps = threads / WARP;
            let mut at = self.lane_idx() & (warps - 1);
            if threads < block {
                at = at + (warp & !(warps - 1));
            }
            let taken = slots.iter().zip(&regs).map(|(slots, reg)| RawReg { id: slots.take(at), ty: reg.ty });
            let partial = of_warp.rebuild(&mut RawRegs::new(taken.collect()));
            self.warp_combine(warps, partial, combine)
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
