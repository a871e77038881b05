//! Values of several registers in shared memory, and what a block combines through it.

use warpwright_ptx::{CacheHints, Inst, Operand, Ordering, ScalarType, StateSpace};

use crate::context::K;
use crate::error::IssueKind;
use crate::flow::{Carry, RawReg, RawRegs};
use crate::lanes::tree;
use crate::mbarrier::Mbarrier;
use crate::mem::{Ptr, Shared};
use crate::reg::U32;
use crate::storage::VECTOR_BYTES;
use crate::warp::WARP;

/// Shared arrays for values of one shape: one array for each piece of the value, so that neighbouring slots lie next
/// to each other.
#[derive(Debug)]
pub(crate) struct Slots<'k> {
    k: K<'k>,
    pieces: Vec<Piece<'k>>,
}

/// Registers of a value that lie together, and where.
#[derive(Debug)]
struct Piece<'k> {
    ty: ScalarType,
    registers: usize,
    array: Ptr<'k, Shared, u8>,
}

impl<'k> Piece<'k> {
    fn bytes(&self) -> u32 {
        self.registers as u32 * self.ty.bytes()
    }

    #[track_caller]
    fn at(&self, slot: U32<'k>) -> Ptr<'k, Shared, u8> {
        self.array.at(slot * self.bytes())
    }
}

/// How many registers from the first on are stored together: as many of one type as one access of `bytes` takes.
fn together(regs: &[RawReg], bytes: u32) -> usize {
    let alike = regs.iter().take_while(|reg| reg.ty == regs[0].ty).count();
    let most = (bytes / regs[0].ty.bytes().max(1)).max(1) as usize;
    1 << alike.min(most).ilog2()
}

impl<'k> Slots<'k> {
    /// `count` slots for values of the shape of `value`, each register of which has an array of its own.
    #[track_caller]
    pub(crate) fn new<C: Carry<'k>>(k: K<'k>, value: &C, count: u32) -> Self {
        Self::of_pieces(k, value, count, 0)
    }

    /// `count` slots for values of the shape of `value`, in as few pieces as accesses allow.
    #[track_caller]
    pub(crate) fn wide<C: Carry<'k>>(k: K<'k>, value: &C, count: u32) -> Self {
        Self::of_pieces(k, value, count, VECTOR_BYTES)
    }

    #[track_caller]
    fn of_pieces<C: Carry<'k>>(k: K<'k>, value: &C, count: u32, bytes: u32) -> Self {
        let (mut regs, mut pieces) = (Vec::new(), Vec::new());
        value.collect(&mut regs);
        let mut rest = regs.as_slice();
        while let Some(&RawReg { ty, .. }) = rest.first() {
            if !matches!(ty.bits(), 32 | 64) {
                k.issue(IssueKind::Shuffle { register: ty });
            }
            let registers = together(rest, bytes);
            let array = k.shared::<u8>(count.saturating_mul(registers as u32 * ty.bytes()));
            pieces.push(Piece { ty, registers, array });
            rest = &rest[registers..];
        }
        Self { k, pieces }
    }

    /// Bytes of a value.
    pub(crate) fn bytes(&self) -> u32 {
        self.pieces.iter().map(Piece::bytes).sum()
    }

    /// The pieces with the registers of `value` that belong there.
    fn with_registers<C: Carry<'k>>(&self, value: &C) -> impl Iterator<Item = (&Piece<'k>, Vec<Operand>)> {
        let mut regs = Vec::new();
        value.collect(&mut regs);
        let mut regs = regs.into_iter().map(|reg| Operand::Reg(reg.id));
        self.pieces.iter().map(move |piece| (piece, regs.by_ref().take(piece.registers).collect()))
    }

    /// Stores `value` in a slot of this block.
    #[track_caller]
    pub(crate) fn store<C: Carry<'k>>(&self, slot: U32<'k>, value: &C) {
        for (piece, srcs) in self.with_registers(value) {
            let addr = piece.at(slot).operand();
            self.k.emit(Inst::St {
                space: StateSpace::Shared,
                ty: piece.ty,
                ordering: Ordering::WEAK,
                hints: CacheHints::NONE,
                srcs,
                addr,
            });
        }
    }

    /// Stores `value` in a slot of block `rank` of the cluster, where `done` counts its bytes, as [`Ptr::send`] does.
    #[track_caller]
    pub(crate) fn send<C: Carry<'k>>(&self, rank: U32<'k>, slot: U32<'k>, value: &C, done: Mbarrier<'k>) {
        for (piece, srcs) in self.with_registers(value) {
            piece.at(slot).send_registers(rank, piece.ty, srcs, done);
        }
    }

    /// The value in a slot of this block, of the shape of `like`.
    #[track_caller]
    pub(crate) fn load<C: Carry<'k>>(&self, slot: U32<'k>, like: &C) -> C {
        let mut all = Vec::new();
        for piece in &self.pieces {
            let (k, ty) = (self.k, piece.ty);
            let addr = piece.at(slot).operand();
            let new = |_| RawReg { id: k.rec().new_reg(ty, warpwright_ptx::RegKind::Value), ty };
            let regs: Vec<RawReg> = (0..piece.registers).map(new).collect();
            k.emit(Inst::Ld {
                space: StateSpace::Shared,
                ty,
                ordering: Ordering::WEAK,
                hints: CacheHints::NONE,
                non_coherent: false,
                dsts: regs.iter().map(|reg| Some(reg.id)).collect(),
                addr,
            });
            all.extend(regs);
        }
        like.rebuild(&mut RawRegs::new(all))
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
