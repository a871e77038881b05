//! Scans: of values that threads have, the sum of those before each; and how blocks hand sums to blocks behind them while all of them run.

use warpwright_ptx::{CacheHints, Inst, Operand, Ordering, ScalarType, Scope, Semantics, StateSpace};

use crate::columns::ColumnTile;
use crate::context::K;
use crate::flow::Carry;
use crate::lanes::Lanes;
use crate::mem::{Access, Fill, FixedElement, Ptr, ReadWrite};
use crate::reg::{Number, Reg, U32, U64};
use crate::rows::Team;
use crate::warp::{Reduction, Sum, WARP, inclusive_sum};

/// A value for each of the values that were scanned, and their total.
#[derive(Clone, Debug)]
pub struct Scanned<V, T> {
    /// The sum of those before each.
    pub before: V,
    /// The sum of all.
    pub all: T,
}

impl<'k> Team<'k> {
    /// Scans values that the threads of the team have in stripes: the order is that of `values` first and of the threads second. A team
    /// is lanes of a warp or a whole block of at most 32 warps; all threads of the block are here, once.
    #[track_caller]
    pub fn scan<A>(self, values: &[Reg<'k, A>]) -> Scanned<Vec<Reg<'k, A>>, Reg<'k, A>>
    where
        A: Number + FixedElement + Access<A>,
        Sum: Reduction<A>,
    {
        let (k, threads) = (self.k(), self.threads());
        k.on_behalf(|| match threads <= WARP {
            true => scan_lanes(k, threads, values),
            false => scan_block(k, values),
        })
    }
}

/// The sums of the lanes below, from those with the lane itself, which is number `lane` of its group.
fn exclusive<'k, A: Number>(lane: U32<'k>, inclusive: Reg<'k, A>) -> Reg<'k, A>
where
    Sum: Reduction<A>,
{
    lane.eq(0).select(Sum.identity(lane.k()), inclusive.shfl_up(1))
}

fn scan_lanes<'k, A: Number>(
    k: K<'k>,
    lanes: u32,
    values: &[Reg<'k, A>],
) -> Scanned<Vec<Reg<'k, A>>, Reg<'k, A>>
where
    Sum: Reduction<A>,
{
    let (lane, last) = (k.lane_idx() & (lanes - 1), k.lane_idx() | (lanes - 1));
    let (mut before, mut all) = (Vec::with_capacity(values.len()), Sum.identity(k));
    for &value in values {
        let inclusive = inclusive_sum(lane, [1, lanes], value);
        before.push(all + exclusive(lane, inclusive));
        all = all + inclusive.shfl_idx(last);
    }
    Scanned { before, all }
}

fn scan_block<'k, A>(k: K<'k>, values: &[Reg<'k, A>]) -> Scanned<Vec<Reg<'k, A>>, Reg<'k, A>>
where
    A: Number + FixedElement + Access<A>,
    Sum: Reduction<A>,
{
    let warps = k.block_threads() / WARP;
    let stripes = values.len() as u32;
    let slots = k.shared::<A>(stripes * warps);
    let (lane, warp) = (k.lane_idx(), k.warp_idx());
    let mut inside = Vec::with_capacity(values.len());
    for (stripe, &value) in (0..).zip(values) {
        let inclusive = inclusive_sum(lane, [1, WARP], value);
        k.if_(lane.eq(WARP - 1), || slots.at(warp + stripe * warps).set(inclusive));
        inside.push(exclusive(lane, inclusive));
    }
    k.barrier();
    // The totals of warps lie in the order of the scan; each warp scans them, 32 at a time.
    let (mut all, mut rounds) = (Sum.identity(k), Vec::new());
    for first in (0..stripes * warps).step_by(WARP as usize) {
        let slot = lane + first;
        let total = slots.at(slot).only_where(slot.lt(stripes * warps), Fill::Zero).get::<A>();
        let inclusive = inclusive_sum(lane, [1, WARP], total);
        rounds.push(all + exclusive(lane, inclusive));
        all = all + inclusive.shfl_idx(WARP - 1);
    }
    let before = (0..).zip(inside).map(|(stripe, inside): (u32, Reg<'k, A>)| {
        let first = stripe * warps;
        rounds[(first / WARP) as usize].shfl_idx(warp + first % WARP) + inside
    });
    Scanned { before: before.collect(), all }
}

impl<'k> ColumnTile<'k> {
    /// Scans values that the teams have of their columns, in the order of the teams. All threads of the block are here, whole warps
    /// of whole teams or of a part of one.
    #[track_caller]
    pub fn scan<A>(&self, values: Lanes<'k, A>) -> Scanned<Lanes<'k, A>, Lanes<'k, A>>
    where
        A: Number + FixedElement + Access<A>,
        Sum: Reduction<A>,
    {
        let (k, lanes, width) = (self.k(), self.lanes(), self.width());
        k.on_behalf(|| {
            let warps = k.block_threads() / WARP;
            let (lane, warp) = (k.lane_idx(), k.warp_idx());
            let inclusive = values.map(|value| inclusive_sum(lane, [lanes, WARP], value));
            let inside = inclusive.map(|sum| match lanes < WARP {
                true => lane.lt(lanes).select(Sum.identity(k), sum.shfl_up(lanes)),
                false => Sum.identity(k),
            });
            let slots = k.shared::<A>(warps * lanes * width);
            let mine = (lane & (lanes - 1)) * width;
            let store = || slots.at(warp * (lanes * width) + mine).store(inclusive.clone());
            match lanes < WARP {
                true => k.if_(lane.ge(WARP - lanes), store),
                false => store(),
            }
            k.barrier();
            let none = || -> Lanes<'k, A> { (0..width).map(|_| Sum.identity(k)).collect() };
            let (before, all) = (0..warps).fold((none(), none()), |(before, all), number| {
                let of_warp = slots.at(mine + number * (lanes * width)).load::<A>(width);
                let all = &all + &of_warp;
                (warp.gt(number).select_all(&all, &before), all)
            });
            // A loop may come here again and overwrite the slots.
            k.barrier();
            Scanned { before: before + inside, all }
        })
    }
}

/// The upper word of a pair that has been written; nothing else writes it.
const WRITTEN: u32 = 1;

impl<'k> Ptr<'k, ReadWrite, u64> {
    /// Lets other blocks of the grid have `value` from here on, as many words as it has words of 32 bits: each is written whole, with a
    /// mark that it is. All words are 0 before, and a single thread does it.
    #[track_caller]
    pub fn publish<C: Carry<'k>>(self, k: K<'k>, value: &C) {
        k.on_behalf(|| {
            let mut at = 0u64;
            let _ = value.map_words(k, |word| {
                let marked = U64::from_words(word, k.lit(WRITTEN));
                k.emit(Inst::St {
                    space: StateSpace::Global,
                    ty: ScalarType::B64,
                    ordering: Ordering::new(Semantics::Relaxed, Scope::Gpu),
                    hints: CacheHints::NONE,
                    srcs: vec![Operand::Reg(marked.id())],
                    addr: self.at(at).operand(),
                });
                at += 1;
                word
            });
        });
    }

    /// Waits for what another block of the grid [publishes](Self::publish) here, a value of the shape of `like`. That block must have
    /// begun, or begin whatever this one does.
    #[track_caller]
    pub fn published<C: Carry<'k>>(self, k: K<'k>, like: &C) -> C {
        k.on_behalf(|| {
            let mut at = 0u64;
            like.map_words(k, |_| {
                let place = self.at(at);
                at += 1;
                let load = || {
                    let pair = k.fresh::<u64>();
                    k.emit(Inst::Ld {
                        space: StateSpace::Global,
                        ty: ScalarType::B64,
                        ordering: Ordering::new(Semantics::Relaxed, Scope::Gpu),
                        hints: CacheHints::NONE,
                        non_coherent: false,
                        dsts: vec![Some(pair.id())],
                        addr: place.operand(),
                    });
                    let (word, mark): (U32<'k>, U32<'k>) = pair.words();
                    (word, mark)
                };
                k.while_(load(), |(_, mark)| mark.ne(WRITTEN), |_| load()).0
            })
        })
    }
}
