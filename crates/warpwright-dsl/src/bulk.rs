//! Bulk copies from shared to global memory (`cp.async.bulk`, `cp.reduce.async.bulk`, sm_90 and later), and turns that blocks take
//! one after the other, so that what they add up is added in one order.

use warpwright_ptx::{
    Address, AtomOp, BulkCopy, BulkOp, BulkReduce, CacheHints, Completion, Inst, Operand, Ordering,
    ProxyFence, ScalarType, Scope, Semantics, StateSpace,
};

use crate::context::K;
use crate::mem::{Ptr, ReadWrite};
use crate::reg::{Reg, Source, U32};

impl<'k> Ptr<'k, ReadWrite, f32> {
    /// Starts the copy of `bytes` bytes of shared memory at `from` to here, all of them multiples of 16.
    /// [`K::commit_stores`] and [`K::wait_stores`] or [`K::wait_stored`] follow. The memory was written before a
    /// [`fence_shared_copies`](K::fence_shared_copies) of those who wrote it and a barrier. For one thread.
    #[track_caller]
    pub fn store_bulk(self, from: U32<'k>, bytes: u32) {
        let k = from.k();
        k.emit(Inst::BulkCopy(Box::new(BulkCopy {
            dst_space: StateSpace::Global,
            src_space: StateSpace::Shared,
            dst: self.operand(),
            src: Address::reg(from.id(), 0),
            bytes: Operand::int(i64::from(bytes)),
            completion: Completion::BulkGroup,
            multicast: None,
            policy: None,
            byte_mask: None,
        })));
    }

    /// Like [`store_bulk`](Self::store_bulk), adding to what is here. Subnormal sums become zero. In which order several such
    /// additions to one place happen, a [`Turn`] decides.
    #[track_caller]
    pub fn add_bulk(self, from: U32<'k>, bytes: u32) {
        let k = from.k();
        k.emit(Inst::BulkReduce(Box::new(BulkReduce {
            op: BulkOp::Add,
            ty: ScalarType::F32,
            noftz: false,
            dst_space: StateSpace::Global,
            dst: self.operand(),
            src: Address::reg(from.id(), 0),
            bytes: Operand::int(i64::from(bytes)),
            completion: Completion::BulkGroup,
            policy: None,
        })));
    }
}

impl<'k> Ptr<'k, ReadWrite, u32> {
    /// The number that is here, which is one more from now on: each thread of the grid that comes here gets another one, from 0 on where zero
    /// was here. A block that takes its work by such a ticket knows that who took lower ones has begun, which `ctaid` does not say.
    #[track_caller]
    pub fn take_ticket(self) -> U32<'k> {
        let number = self.k.fresh::<u32>();
        self.count(Some(number), Semantics::Relaxed);
        number
    }

    /// Adds 1 to what is here, and says what was before.
    #[track_caller]
    fn count(self, before: Option<U32<'k>>, semantics: Semantics) {
        self.k.emit(Inst::Atom {
            op: AtomOp::Add,
            space: StateSpace::Global,
            ty: ScalarType::U32,
            ordering: Ordering::new(semantics, Scope::Gpu),
            noftz: false,
            dst: before.map(Reg::id),
            addr: self.operand(),
            b: 1u32.operand(),
            c: None,
            policy: None,
        });
    }
}

impl<'k> K<'k> {
    /// Waits until at most the last `pending` groups of bulk copies of the thread are not yet in global memory.
    #[track_caller]
    pub fn wait_stored(self, pending: u32) {
        self.emit(Inst::BulkWait { read: false, pending });
    }
}

/// Whose turn it is to change some memory, among threads of different blocks: a counter in global memory, zero in front of the first
/// turn. Who waits for turn `n` sees, and bulk copies of its do too, what the ones with the turns before did before they
/// [passed](Self::pass) theirs.
///
/// Blocks that have not begun pass no turn: a block waits only for turns of blocks that have, as [tickets](Ptr::take_ticket) say.
#[derive(Clone, Copy, Debug)]
#[must_use = "it records instructions but does nothing"]
pub struct Turn<'k> {
    counter: Ptr<'k, ReadWrite, u32>,
}

impl<'k> Turn<'k> {
    /// The turns that `counter` counts.
    pub fn new(counter: Ptr<'k, ReadWrite, u32>) -> Self {
        Self { counter }
    }

    /// Waits for turn `turn`. For one thread.
    #[track_caller]
    pub fn wait(self, turn: U32<'k>) {
        let k = turn.k();
        k.on_behalf(|| {
            k.until(|| {
                let now = k.fresh::<u32>();
                k.emit(Inst::Ld {
                    space: StateSpace::Global,
                    ty: ScalarType::U32,
                    ordering: Ordering::new(Semantics::Acquire, Scope::Gpu),
                    hints: CacheHints::NONE,
                    non_coherent: false,
                    dsts: vec![Some(now.id())],
                    addr: self.counter.operand(),
                });
                now.eq(turn)
            });
            k.emit(Inst::ProxyFence(ProxyFence::Async(StateSpace::Global)));
        });
    }

    /// Ends the turn: after [`K::wait_stored`], if bulk copies were started in it.
    #[track_caller]
    pub fn pass(self) {
        self.counter.count(None, Semantics::Release);
    }
}
