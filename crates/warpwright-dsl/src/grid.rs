//! Cooperative grids, whose blocks meet, and grids of a chain of launches.

use warpwright_ptx::inst::FenceSemantics;
use warpwright_ptx::{
    Address, AtomOp, CacheHints, Inst, Operand, Ordering, PlainSpecial, ScalarType, Scope, Semantics,
    SpecialReg, StateSpace,
};

use crate::context::K;
use crate::reg::{U32, U64};

/// The first architecture whose grids may wait for each other.
const DEPENDENT_LAUNCH_SM: u32 = 90;

/// Where the word that counts arrivals lies in the workspace of a cooperative grid.
const ARRIVALS: i64 = 4;
/// The bit that changes when all blocks have arrived.
const PHASE: u32 = 1 << 31;

impl<'k> K<'k> {
    /// Lets the next launch of the stream begin as soon as all blocks of this grid have come here or ended, if that launch
    /// begins with [`after_previous_grid`](Self::after_previous_grid): what it does before its memory is needed then
    /// costs no time. Nothing before sm_90.
    #[track_caller]
    pub fn start_next_grid(self) {
        if self.target().sm >= DEPENDENT_LAUNCH_SM {
            self.emit(Inst::GridDepControl { wait: false });
        }
    }

    /// Waits until the grid that was launched before this one has ended and its writes are visible. A kernel that
    /// begins with it may be launched while that grid runs. Nothing before sm_90, where launches never overlap.
    #[track_caller]
    pub fn after_previous_grid(self) {
        if self.target().sm >= DEPENDENT_LAUNCH_SM {
            self.emit(Inst::GridDepControl { wait: true });
        }
    }

    /// Both: [`start_next_grid`](Self::start_next_grid), then [`after_previous_grid`](Self::after_previous_grid). A kernel of a chain
    /// begins with it unless it has something to do before the grid in front of it has ended.
    #[track_caller]
    pub fn overlap_grids(self) {
        self.start_next_grid();
        self.after_previous_grid();
    }

    /// Waits until every thread of the grid, which has blocks along x only, is here, and orders their accesses to
    /// memory. The launch must be cooperative: its workspace is where the blocks count themselves.
    ///
    /// Every block adds 1 to a word and one of them as much as makes the sum `2^31`, so the top bit changes with the last
    /// arrival and the word needs no reset: the barrier of CUDA's cooperative groups.
    #[track_caller]
    pub fn grid_barrier(self) {
        self.on_behalf(|| {
            self.barrier();
            self.if_(self.thread_idx().eq(0), || {
                let fence = Inst::Fence { semantics: FenceSemantics::AcqRel, scope: Scope::Gpu };
                self.emit(fence.clone());
                let word = |special| {
                    let dst = self.fresh::<u32>();
                    let src = Operand::Special(SpecialReg::Plain(special));
                    self.emit(Inst::Mov { ty: ScalarType::U32, dst: dst.id(), src });
                    dst
                };
                let (high, low) = (word(PlainSpecial::EnvReg1), word(PlainSpecial::EnvReg2));
                let workspace = U64::from_words(low, high);
                let addr = Address::reg(workspace.id(), ARRIVALS);
                let first = self.block_idx_x().eq(0);
                let own: U32<'k> = first.select(PHASE - (self.grid_dim_x() - 1), 1);
                let before = self.fresh::<u32>();
                let relaxed = Ordering::new(Semantics::Relaxed, Scope::Gpu);
                self.emit(Inst::Atom {
                    op: AtomOp::Add,
                    space: StateSpace::Generic,
                    ty: ScalarType::U32,
                    ordering: relaxed,
                    noftz: false,
                    dst: Some(before.id()),
                    addr,
                    b: Operand::Reg(own.id()),
                    c: None,
                    policy: None,
                });
                let waits = |now: U32<'k>| ((now ^ before) & PHASE).eq(0);
                let _ = self.while_(
                    before,
                    |now| waits(*now),
                    |_| {
                        let now = self.fresh::<u32>();
                        self.emit(Inst::Ld {
                            space: StateSpace::Generic,
                            ty: ScalarType::U32,
                            ordering: relaxed,
                            hints: CacheHints::NONE,
                            non_coherent: false,
                            dsts: vec![Some(now.id())],
                            addr,
                        });
                        now
                    },
                );
                self.emit(fence);
            });
            self.barrier();
        });
    }
}
