//! [`K`], the handle through which a kernel is recorded.

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::Location;

use warpwright_ptx::{
    AddressBase, Axis, BarrierKind, CacheHints, Inst, Operand, Ordering, PlainSpecial, ProxyFence,
    ScalarType, SpecialReg, StateSpace, SymbolId, Target,
};

use crate::error::IssueKind;
use crate::recorder::Recorder;
use crate::reg::{Reg, Scalar, Source, U32, U64};

/// The kernel that is being recorded.
///
/// Rust control flow runs while recording; control flow on the device is a method of `K` ([`if_`](Self::if_),
/// [`if_else`](Self::if_else), [`fold`](Self::fold), [`for_each`](Self::for_each)).
#[derive(Clone, Copy)]
pub struct K<'k> {
    rec: &'k Recorder,
    /// Makes `'k` invariant: handles of two kernels cannot be unified.
    brand: PhantomData<Cell<&'k ()>>,
}

impl std::fmt::Debug for K<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("K")
    }
}

impl<'k> K<'k> {
    pub(crate) fn new(rec: &'k Recorder) -> Self {
        Self { rec, brand: PhantomData }
    }

    pub(crate) fn rec(self) -> &'k Recorder {
        self.rec
    }

    /// The architecture that the kernel is recorded for.
    pub fn target(self) -> Target {
        self.rec.target()
    }

    /// Threads of a block along each axis; part of the kernel, so known while recording.
    pub fn block_dim(self) -> [u32; 3] {
        self.rec.block_dim()
    }

    /// Threads of a block.
    pub fn block_threads(self) -> u32 {
        self.block_dim().iter().product()
    }

    #[track_caller]
    pub(crate) fn emit(self, inst: Inst) {
        self.rec.push(None, inst);
    }

    #[track_caller]
    pub(crate) fn issue(self, kind: IssueKind) {
        self.rec.issue(kind);
    }

    /// Records what `f` records as coming from the caller's line.
    #[track_caller]
    pub(crate) fn on_behalf<R>(self, f: impl FnOnce() -> R) -> R {
        let before = self.rec.enter(Location::caller());
        let result = f();
        self.rec.leave(before);
        result
    }

    /// A literal in a register.
    #[track_caller]
    pub fn lit<T: Scalar>(self, value: impl Source<'k, T>) -> Reg<'k, T> {
        let dst = self.fresh::<T>();
        let src = value.operand();
        self.emit(if T::TYPE == ScalarType::Pred {
            Inst::PredMov { dst: dst.id(), a: src }
        } else {
            Inst::Mov { ty: T::REGISTER, dst: dst.id(), src }
        });
        dst
    }

    /// A new register for the destination of a [`raw`](Self::raw) instruction, its only definition.
    pub fn raw_reg<T: Scalar>(self) -> Reg<'k, T> {
        self.fresh()
    }

    /// Records an instruction that has no method. Operands come from [`Reg::id`], destinations from
    /// [`raw_reg`](Self::raw_reg). The verifier checks it like any other.
    #[track_caller]
    pub fn raw(self, inst: Inst) {
        self.emit(inst);
    }

    #[track_caller]
    fn special(self, special: SpecialReg) -> U32<'k> {
        let dst = self.fresh::<u32>();
        self.emit(Inst::Mov { ty: ScalarType::U32, dst: dst.id(), src: Operand::Special(special) });
        dst
    }

    /// `%tid.x`
    #[track_caller]
    pub fn thread_idx_x(self) -> U32<'k> {
        self.special(SpecialReg::Tid(Axis::X))
    }

    /// `%tid.y`
    #[track_caller]
    pub fn thread_idx_y(self) -> U32<'k> {
        self.special(SpecialReg::Tid(Axis::Y))
    }

    /// `%tid.z`
    #[track_caller]
    pub fn thread_idx_z(self) -> U32<'k> {
        self.special(SpecialReg::Tid(Axis::Z))
    }

    /// `%ctaid.x`
    #[track_caller]
    pub fn block_idx_x(self) -> U32<'k> {
        self.special(SpecialReg::Ctaid(Axis::X))
    }

    /// `%ctaid.y`
    #[track_caller]
    pub fn block_idx_y(self) -> U32<'k> {
        self.special(SpecialReg::Ctaid(Axis::Y))
    }

    /// `%ctaid.z`
    #[track_caller]
    pub fn block_idx_z(self) -> U32<'k> {
        self.special(SpecialReg::Ctaid(Axis::Z))
    }

    /// `%nctaid.x`
    #[track_caller]
    pub fn grid_dim_x(self) -> U32<'k> {
        self.special(SpecialReg::Nctaid(Axis::X))
    }

    /// `%nctaid.y`
    #[track_caller]
    pub fn grid_dim_y(self) -> U32<'k> {
        self.special(SpecialReg::Nctaid(Axis::Y))
    }

    /// `%nctaid.z`
    #[track_caller]
    pub fn grid_dim_z(self) -> U32<'k> {
        self.special(SpecialReg::Nctaid(Axis::Z))
    }

    /// 0, which the assembler does not know: it does not fold what is computed with it. The grid must have one block
    /// along z.
    #[track_caller]
    pub fn opaque_zero(self) -> U32<'k> {
        self.on_behalf(|| self.grid_dim_z() - 1)
    }

    /// The thread's number in its block, x fastest.
    #[track_caller]
    pub fn thread_idx(self) -> U32<'k> {
        let [x, y, z] = self.block_dim();
        let mut linear = self.thread_idx_x();
        if y > 1 {
            linear = self.thread_idx_y().mul_add(x, linear);
        }
        if z > 1 {
            linear = self.thread_idx_z().mul_add(x * y, linear);
        }
        linear
    }

    /// The thread's number in a grid with blocks along x only.
    #[track_caller]
    pub fn global_idx_x(self) -> U64<'k> {
        let threads = self.block_dim()[0];
        self.block_idx_x().mad_wide(threads, self.thread_idx_x().to_u64())
    }

    /// The lane of the thread in its warp.
    #[track_caller]
    pub fn lane_idx(self) -> U32<'k> {
        self.special(SpecialReg::Plain(PlainSpecial::LaneId))
    }

    /// The warp of the thread in its block.
    #[track_caller]
    pub fn warp_idx(self) -> U32<'k> {
        self.thread_idx() >> 5
    }

    /// Waits until every thread of the block is here, and orders their accesses to memory.
    #[track_caller]
    pub fn barrier(self) {
        self.emit(Inst::Barrier { kind: BarrierKind::Sync, aligned: true, id: Operand::int(0), count: None });
    }

    /// Waits until every lane of the warp is here, and orders their accesses to memory.
    #[track_caller]
    pub fn warp_barrier(self) {
        self.emit(Inst::WarpBarrier { mask: Operand::int(0xffff_ffff) });
    }

    /// Waits until `threads` threads of the block, whole warps, are at the barrier `id`: 1 to 15, one for each group of warps
    /// that meet on their own. Orders their accesses to memory.
    #[track_caller]
    pub fn barrier_of(self, id: impl Source<'k, u32>, threads: u32) {
        self.named_barrier(BarrierKind::Sync, id.operand(), threads);
    }

    /// Arrives at the barrier `id` of [`barrier_of`](Self::barrier_of) without waiting there: `threads` counts those who do too.
    #[track_caller]
    pub fn barrier_arrive(self, id: impl Source<'k, u32>, threads: u32) {
        self.named_barrier(BarrierKind::Arrive, id.operand(), threads);
    }

    #[track_caller]
    fn named_barrier(self, kind: BarrierKind, id: Operand, threads: u32) {
        let count = Some(Operand::int(i64::from(threads)));
        self.emit(Inst::Barrier { kind, aligned: true, id, count });
    }

    /// Makes what the thread has stored in shared memory known to copies and products of warpgroups that begin after the next
    /// barrier.
    #[track_caller]
    pub fn fence_shared_copies(self) {
        self.emit(Inst::ProxyFence(ProxyFence::Async(StateSpace::Shared)));
    }

    /// Loads a scalar parameter.
    #[track_caller]
    pub(crate) fn load_param<T: Scalar>(self, symbol: SymbolId) -> Reg<'k, T> {
        let dst = self.fresh::<T>();
        self.emit(Inst::Ld {
            space: StateSpace::Param,
            ty: T::TYPE,
            ordering: Ordering::WEAK,
            hints: CacheHints::NONE,
            non_coherent: false,
            dsts: vec![Some(dst.id())],
            addr: warpwright_ptx::Address { base: AddressBase::Symbol(symbol), offset: 0 },
        });
        dst
    }
}
