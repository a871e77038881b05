//! Sums of products on the ordinary units, of operands that lie and end anywhere: what any target has.

use warpwright_dsl::prelude::*;

/// Rows and columns of a tile.
pub(crate) const SIDE: u32 = 64;
/// Rows and columns of a thread's sums.
pub(crate) const OWN: u32 = 4;
/// Threads along each side.
const ACROSS: u32 = SIDE / OWN;
/// Threads of a block.
pub(crate) const THREADS: u32 = ACROSS * ACROSS;
/// How much of the common dimension is in shared memory.
pub(crate) const SLICE: u32 = 32;
/// Elements from one place of the common dimension to the next there: neighbours go to different banks.
const PITCH: u32 = SIDE + 4;

/// The sums of a thread: rows, and columns.
pub(crate) type Sums<'k, T> = Vec<Vec<Reg<'k, T>>>;

/// No sums yet.
pub(crate) fn zero<'k, T: Number>(zero: Reg<'k, T>) -> Sums<'k, T> {
    (0..OWN).map(|_| vec![zero; OWN as usize]).collect()
}

/// An operand, whose rows (or, of the right one, columns) a tile has [`SIDE`] of.
pub(crate) trait Operand<'k, T: Accumulate> {
    /// Brings the slice from `first` on, of what lies before `end`.
    fn bring(&self, to: Slice<'k, T>, range: (U32<'k>, U32<'k>));
}

/// A slice in shared memory.
#[derive(Clone, Copy)]
pub(crate) struct Slice<'k, T>(Ptr<'k, Shared, T>);

impl<'k, T: Accumulate> Slice<'k, T> {
    /// The element of row `outer` at place `depth`.
    pub(crate) fn at(self, (outer, depth): (U32<'k>, U32<'k>)) -> Ptr<'k, Shared, T> {
        self.0.at(depth * PITCH + outer)
    }
}

/// A matrix in memory.
#[derive(Clone, Copy)]
pub(crate) struct Factor<'k> {
    pub(crate) from: Ptr<'k, Read, Elem>,
    /// Elements from one row in memory to the next.
    pub(crate) leading: U64<'k>,
    pub(crate) major: Major,
    /// The first row of the left factor or column of the right one that the tile has, and the one behind the last that there is.
    pub(crate) outer: (U32<'k>, U32<'k>),
}

impl<'k> Operand<'k, f32> for Factor<'k> {
    fn bring(&self, to: Slice<'k, f32>, (first, end): (U32<'k>, U32<'k>)) {
        let k = first.k();
        let (outer, outer_end) = self.outer;
        for i in 0..SIDE * SLICE / THREADS {
            let at = k.thread_idx() + i * THREADS;
            // Neighbouring threads load neighbours in memory.
            let (row, depth) = match self.major {
                Major::K => (at / SLICE, at % SLICE),
                Major::Mn => (at % SIDE, at / SIDE),
            };
            let there = (outer + row).lt(outer_end) & (first + depth).lt(end);
            let (across, along) = ((outer + row).to_u64(), (first + depth).to_u64());
            let element = match self.major {
                Major::K => self.from.at(across * self.leading + along),
                Major::Mn => self.from.at(along * self.leading + across),
            };
            to.at((row, depth)).set(element.only_where(there, Fill::Zero).get::<f32>());
        }
    }
}

/// A block's tile, and how it comes to shared memory.
pub(crate) struct Tile<'k, T = f32, A = Factor<'k>, B = Factor<'k>> {
    a: A,
    b: B,
    shared: [Slice<'k, T>; 2],
    /// The first row and column of the thread's in the tile.
    pub(crate) mine: (U32<'k>, U32<'k>),
}

impl<'k, T: Accumulate, A: Operand<'k, T>, B: Operand<'k, T>> Tile<'k, T, A, B> {
    pub(crate) fn new(k: K<'k>, a: A, b: B) -> Self {
        let shared = [0, 1].map(|_| Slice(k.shared::<T>(SLICE * PITCH)));
        let thread = k.thread_idx();
        Self { a, b, shared, mine: (thread / ACROSS * OWN, thread % ACROSS * OWN) }
    }

    /// The sums of the products from `begin` to `end`; there are none from `limit` on.
    pub(crate) fn sums(&self, (begin, end): (U32<'k>, U32<'k>), limit: U32<'k>) -> Sums<'k, T> {
        let k = begin.k();
        k.fold(k.range(begin, end, SLICE), zero(k.lit::<T>(0.0)), |first, sums| {
            k.barrier();
            self.a.bring(self.shared[0], (first, limit));
            self.b.bring(self.shared[1], (first, limit));
            k.barrier();
            k.fold(k.range(0, SLICE, 1), sums, |depth, sums| {
                let vector = |from: Slice<'k, T>, mine| from.0.at(depth * PITCH + mine).load::<T>(OWN);
                let (a, b) = (vector(self.shared[0], self.mine.0), vector(self.shared[1], self.mine.1));
                let row = |i: usize| (0..OWN as usize).map(|j| a[i].mul_add(b[j], sums[i][j])).collect();
                (0..OWN as usize).map(row).collect::<Sums<'k, T>>()
            })
        })
    }
}
