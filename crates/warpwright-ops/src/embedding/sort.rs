//! A stable radix sort of indices, and where the run of each row begins.
//!
//! A pass goes by one digit: a first kernel counts the digits of each tile, a second one adds the counts of smaller digits and of earlier
//! tiles, and puts each element behind those. Within a tile every warp has a run of elements and counts of its own, so that
//! the order of equal digits is that of their places.
//!
//! Source: D. Merrill and A. Grimshaw, Revisiting Sorting for GPGPU Stream Architectures, 2010.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;
use warpwright_dsl::{WARP, block_inclusive_sum};

use super::tuning::{DIGITS, STARTS_THREADS};

/// Warps of a block.
const WARPS: u32 = DIGITS / WARP;
/// Tiles whose counts a thread has in flight.
const TILES_IN_FLIGHT: u32 = 8;

kernel_args! {
    /// Elements to sort: in the first pass the indices, whose rows are `rows` where they are no row or are `padding_idx`; later rows and
    /// places in the order of the pass before. The digit begins at bit `shift`.
    pub(super) struct SourceArgs => Source {
        indices: In<u32>, words: u32, rows: u64, padding_idx: i64, keys: In<u32>, places: In<u32>,
        count: u32, tile: u32, shift: u32,
    }
}

kernel_args! {
    /// `counts` gets a row of the counts of all digits for each tile.
    pub(super) struct CountArgs => CountParams { source: SourceArgs, counts: Out<u32> }
}

kernel_args! {
    /// Rows and places by the digit.
    pub(super) struct ScatterArgs => ScatterParams {
        source: SourceArgs, counts: In<u32>, tiles: u32, keys: Out<u32>, places: Out<u32>,
    }
}

kernel_args! {
    /// `starts[v]` is the number of sorted rows below `v`, for `v` up to `rows`.
    pub(super) struct StartsArgs => StartsParams { keys: In<u32>, count: u32, rows: u32, starts: Out<u32> }
}

/// An element of a lane, and how it lies among those of its warp with its digit.
struct Item<'k> {
    key: U32<'k>,
    place: U32<'k>,
    there: Pred<'k>,
    /// Where the counts of its warp have its digit.
    digit: U32<'k>,
    /// Elements of lower lanes with the digit.
    rank: U32<'k>,
    /// Elements of all lanes with it.
    alike: U32<'k>,
}

impl<'k> Source<'k> {
    /// Runs `body` for the elements of the thread's warp in order, a lane each.
    fn each(self, k: K<'k>, first: bool, body: impl FnOnce(Item<'k>)) {
        let of_warp = self.tile / WARPS;
        let lane = k.lane_idx();
        let start = k.block_idx_x() * self.tile + k.warp_idx() * of_warp;
        k.for_each(k.range(0, of_warp, WARP), |at| {
            let i = start + at + lane;
            let there = i.lt(self.count);
            let read = there.select(i, 0);
            let (key, place) = if first {
                let index = self.indices.integer(read.to_u64(), self.words);
                let counts = index.ge(0) & index.lt(self.rows.to_i64()) & index.ne(self.padding_idx);
                (counts.select(index.to_u64(), self.rows).to_u32(), i)
            } else {
                (self.keys.at(read).get(), self.places.at(read).get())
            };
            let digit = (key >> self.shift) & (DIGITS - 1);
            // Lanes behind the end are alike among themselves.
            let alike = there.select(digit, DIGITS).match_any();
            let below = (k.lit(1u32) << lane) - 1;
            let digit = k.warp_idx().mul_add(DIGITS, digit);
            let (rank, alike) = ((alike & below).count_ones(), alike.count_ones());
            body(Item { key, place, there, digit, rank, alike });
        });
    }

    /// Counts the digits of every warp in shared memory. Other warps see them behind a barrier.
    fn count(self, k: K<'k>, first: bool) -> Ptr<'k, Shared, u32> {
        let counts = k.shared::<u32>(WARPS * DIGITS);
        for warp in 0..WARPS {
            counts.at(k.thread_idx() + warp * DIGITS).set(0u32);
        }
        k.barrier();
        self.each(k, first, |item| {
            k.if_(item.there & item.rank.eq(0), || {
                let count = counts.at(item.digit);
                count.set(count.get() + item.alike);
            });
            k.warp_barrier();
        });
        counts
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Count {
    pub(super) first: bool,
}

/// The name of a kernel of the first pass or of a later one.
fn named(kernel: &str, first: bool) -> KernelSpec {
    let pass = if first { "first" } else { "later" };
    KernelSpec::new(format!("embedding_sort_{kernel}_{pass}"), BlockDim::x(DIGITS))
}

impl KernelDef for Count {
    type Args = CountArgs;

    fn spec(&self) -> KernelSpec {
        named("count", self.first)
    }

    fn build<'k>(&self, k: K<'k>, a: CountParams<'k>) {
        k.after_previous_grid();
        let counts = a.source.count(k, self.first);
        k.barrier();
        let digit = k.thread_idx();
        let of_warps: Lanes<'k, u32> =
            (0..WARPS).map(|warp| counts.at(digit + warp * DIGITS).get()).collect();
        let sum = k.tree("counts of warps", of_warps, |a, b| a + b);
        a.counts.at(k.block_idx_x().mad_wide(DIGITS, digit.to_u64())).set(sum);
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Scatter {
    pub(super) first: bool,
}

impl KernelDef for Scatter {
    type Args = ScatterArgs;

    fn spec(&self) -> KernelSpec {
        named("scatter", self.first)
    }

    fn build<'k>(&self, k: K<'k>, a: ScatterParams<'k>) {
        k.after_previous_grid();
        let counts = a.source.count(k, self.first);
        let (digit, own) = (k.thread_idx(), k.block_idx_x());
        // Of the thread's digit in all tiles, and in those before this one.
        let none = (k.lit(0u32), k.lit(0u32));
        let (all, before) = k.fold(k.range(0, a.tiles, TILES_IN_FLIGHT), none, |tile, sums| {
            let of_tiles: Vec<_> = (0..TILES_IN_FLIGHT)
                .map(|i| {
                    let count = a.counts.at((tile + i).mad_wide(DIGITS, digit.to_u64()));
                    count.only_where((tile + i).lt(a.tiles), Fill::Zero).get::<u32>()
                })
                .collect();
            (0..).zip(of_tiles).fold(sums, |(all, before), (i, count)| {
                (all + count, before + (tile + i).lt(own).select(count, 0))
            })
        });
        // Its barrier is the one behind which the counts of all warps are there.
        let first = block_inclusive_sum(k, all) - all + before;
        let _ = (0..WARPS).fold(first, |first, warp| {
            let of_warp = counts.at(digit + warp * DIGITS);
            let count = of_warp.get();
            of_warp.set(first);
            first + count
        });
        k.barrier();
        a.source.each(k, self.first, |item| {
            let next = counts.at(item.digit);
            let first = next.get();
            let to = first + item.rank;
            a.keys.at(to).only_where(item.there, Fill::Zero).set(item.key);
            a.places.at(to).only_where(item.there, Fill::Zero).set(item.place);
            k.warp_barrier();
            next.only_where(item.there & item.rank.eq(0), Fill::Zero).set(first + item.alike);
            k.warp_barrier();
        });
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Starts;

impl KernelDef for Starts {
    type Args = StartsArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("embedding_starts", BlockDim::x(STARTS_THREADS))
    }

    fn build<'k>(&self, k: K<'k>, a: StartsParams<'k>) {
        k.after_previous_grid();
        let row = k.block_idx_x() * STARTS_THREADS + k.thread_idx();
        k.if_(row.le(a.rows), || {
            let all = (k.lit(0u32), a.count);
            let (start, _) = k.while_(
                all,
                |(low, high)| low.lt(*high),
                |(low, high)| {
                    let middle = (low + high) >> 1;
                    let below = a.keys.at(middle).get().lt(row);
                    (below.select(middle + 1, low), below.select(high, middle))
                },
            );
            a.starts.at(row).set(start);
        });
    }
}
