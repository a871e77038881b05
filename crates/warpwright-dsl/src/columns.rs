//! Columns: how threads share elements that lie a row apart, and what they make of them together. Neighbouring threads take
//! neighbouring columns, so that the loads of a warp lie next to each other.

use crate::context::K;
use crate::exchange::Slots;
use crate::flow::Carry;
use crate::kernel::Accumulate;
use crate::lanes::Lanes;
use crate::mem::{Ptr, Shared};
use crate::reg::{Pred, Reg, U32, U64};
use crate::rows::{HeldVectors, RowLoop};

/// Where a thread is in a tensor `[outer, n, inner]` whose columns, along `n`, are shared out to tiles: `lanes` neighbouring
/// threads of a block take `width` neighbouring columns each, and the other threads are teams for the same columns, of which
/// each takes some of the elements. `lanes` is a power of two.
#[derive(Clone, Copy, Debug)]
pub struct ColumnTile<'k> {
    k: K<'k>,
    lanes: u32,
    width: u32,
    lane: U32<'k>,
    team: U32<'k>,
    inner: U64<'k>,
    outer: U64<'k>,
    column: U64<'k>,
    inside: Pred<'k>,
}

impl<'k> ColumnTile<'k> {
    /// The tile of the block, of `tiles` across the columns.
    #[track_caller]
    pub fn new(k: K<'k>, inner: U64<'k>, tiles: U32<'k>, lanes: u32, width: u32) -> Self {
        k.on_behalf(|| {
            let thread = k.thread_idx();
            let (lane, team) = (thread & (lanes - 1), thread >> lanes.trailing_zeros());
            let block = k.block_idx_x();
            let outer = block / tiles;
            let tile = block - outer * tiles;
            let column = tile.mul_wide(lanes * width) + (lane * width).to_u64();
            let (outer, inside) = (outer.to_u64(), column.lt(inner));
            Self { k, lanes, width, lane, team, inner, outer, column, inside }
        })
    }

    pub(crate) fn k(&self) -> K<'k> {
        self.k
    }

    pub(crate) fn lanes(&self) -> u32 {
        self.lanes
    }

    pub(crate) fn width(&self) -> u32 {
        self.width
    }

    /// Teams of the block.
    pub fn teams(&self) -> u32 {
        self.k.block_threads() / self.lanes
    }

    /// The index before the columns.
    pub fn outer(&self) -> U64<'k> {
        self.outer
    }

    /// The thread's first column.
    pub fn column(&self) -> U64<'k> {
        self.column
    }

    /// The thread's elements of columns of `n` elements, `vectors` of them at most: vector `i` has the elements of its
    /// columns in row `team + i teams`.
    #[track_caller]
    pub fn hold(&self, n: U64<'k>, vectors: u32) -> HeldVectors<'k> {
        let (k, teams) = (self.k, self.teams());
        k.on_behalf(|| {
            let left = self.inside.select(n.to_u32().to_i32() - self.team.to_i32(), 0);
            let start = (self.outer * n + self.team.to_u64()) * self.inner + self.column;
            let inside = (0..vectors).map(|v| left.gt((v * teams).cast_signed())).collect();
            let pitch = self.inner * u64::from(teams);
            HeldVectors::with_pitch(k, start, pitch, self.width, inside)
        })
    }

    /// A loop over the thread's elements of columns of `n` elements, however many there are.
    #[track_caller]
    pub fn walk(&self, n: U64<'k>, unroll: u32) -> RowLoop<'k> {
        self.k.on_behalf(|| {
            let (first, end) = (self.team.to_u64(), self.inside.select(n, 0));
            RowLoop::new(self.k, first, end, u64::from(self.teams()), unroll).with_pitch(self.inner)
        })
    }

    /// The number of the thread's team.
    pub fn team(&self) -> U32<'k> {
        self.team
    }

    /// Whether the tensor has the thread's columns.
    pub fn inside(&self) -> Pred<'k> {
        self.inside
    }

    /// Combines values of several registers that the teams, a power of two of them, have of the same columns: half of the teams
    /// take what the other half has, until the first team has all. What other teams receive means nothing. All threads of the
    /// block are here, once.
    #[track_caller]
    pub fn halve_teams<C: Carry<'k> + Clone>(&self, value: C, combine: impl Fn(C, C) -> C) -> C {
        let Self { k, lanes, lane, team, .. } = *self;
        k.on_behalf(|| {
            let slots = Slots::new(k, &value, k.block_threads());
            let (mut value, mut teams, mut first) = (value, self.teams(), 0);
            while teams > 1 {
                teams /= 2;
                // Slots of its own for each round, so that none waits for the one before.
                let at = lane + first * lanes;
                let upper = (team >> teams.trailing_zeros()).eq(1);
                k.if_(upper, || slots.store((team & (teams - 1)) * lanes + at, &value));
                k.barrier();
                let both = || combine(value.clone(), slots.load(team * lanes + at, &value));
                value = k.if_else(team.lt(teams), both, || value.clone());
                first += teams;
            }
            value
        })
    }

    /// Combines values that each team has of its columns, `values[kind]` for the thread's: `combine` makes one value of each
    /// kind for a column from those of all teams. The thread receives the results of its columns. All threads of the block
    /// are here, once.
    #[track_caller]
    pub fn combine<A: Accumulate, const N: usize>(
        &self,
        values: [Lanes<'k, A>; N],
        combine: impl Fn([Vec<Reg<'k, A>>; N]) -> [Reg<'k, A>; N],
    ) -> [Lanes<'k, A>; N] {
        let Self { k, width, .. } = *self;
        k.on_behalf(|| {
            let (threads, teams, columns) = (k.block_threads(), self.teams(), self.lanes * width);
            let all: [Ptr<'k, Shared, A>; N] = [(); N].map(|()| k.shared::<A>(threads * width));
            let mine = self.lane * width;
            for (slots, values) in all.iter().zip(values) {
                slots.at(self.team * columns + mine).store(values);
            }
            k.barrier();
            for first in (0..columns).step_by(threads as usize) {
                let column = k.thread_idx() + first;
                let work = || {
                    let of = |slots: Ptr<'k, Shared, A>| -> Vec<Reg<'k, A>> {
                        let slots = slots.at(column);
                        (0..teams).map(|team| slots.at(u64::from(team * columns)).get()).collect()
                    };
                    for (slots, result) in all.iter().zip(combine(all.map(of))) {
                        slots.at(column).set(result);
                    }
                };
                if first + threads <= columns { work() } else { k.if_(column.lt(columns), work) }
            }
            k.barrier();
            all.map(|slots| slots.at(mine).load(width))
        })
    }
}
