//! Channels: how the threads of a grid share out a tensor whose channels are summed, in either order of its dimensions, and what
//! a block makes of its part. Blocks leave partial sums of each channel; another kernel, or the other side of a grid barrier,
//! puts them together.

use crate::context::K;
use crate::error::IssueKind;
use crate::float::Float;
use crate::flow::{Carry, Range};
use crate::kernel::Accumulate;
use crate::lanes::Lanes;
use crate::mem::{Ptr, Shared};
use crate::reg::{Pred, Reg, U32, U64};
use crate::warp::WARP;
use crate::{carry, kernel_args};

kernel_args! {
    /// How a tensor is cut for a [`ChannelWalk`], in vectors of the walk's width.
    pub struct ChannelSizesArgs => ChannelSizes {
        /// Vectors of a channel; channels last: rows.
        extent: u64,
        /// How many of them a block takes.
        part: u64,
        /// Vectors of a channel that lie together.
        row: u64,
        channels: u64,
        /// Blocks of a channel; channels last: threads side by side in a row.
        split: u32,
        /// With `shift`, takes the place of a division by `row`: the quotient of an `n` below 2^63 is the upper half of
        /// `2 n reciprocal`, shifted right by `shift`.
        reciprocal: u64,
        shift: u32,
    }
}

impl<'k> ChannelSizes<'k> {
    /// The image that a vector of a channel lies in, and where.
    fn image(&self, at: U64<'k>) -> (U64<'k>, U64<'k>) {
        let image = ((at << 1).mul_hi(self.reciprocal)) >> self.shift;
        (image, at - image * self.row)
    }

    /// The first element of a vector.
    fn offset(&self, image: U64<'k>, channel: U64<'k>, within: U64<'k>, width: u32) -> U64<'k> {
        ((image * self.channels + channel) * self.row + within) * u64::from(width)
    }
}

/// Where a thread is.
#[derive(Clone, Copy, Debug)]
struct Cursor<'k> {
    /// Index of the first element of the vector.
    offset: U64<'k>,
    /// Vectors since the start of the row; not used with channels last.
    within: U64<'k>,
}

carry!(Cursor { offset, within });

#[derive(Clone, Copy, Debug)]
enum Step<'k> {
    /// The same channels, some rows on.
    Rows { by: U64<'k> },
    /// Some vectors on in the same channel, over the end of a row if need be; `back` goes towards the first vector.
    Planes { within: U64<'k>, row: U64<'k>, by: U64<'k>, jump: U64<'k>, back: bool },
}

/// The vectors of one thread.
#[derive(Clone, Copy, Debug)]
pub struct ChannelWalk<'k> {
    k: K<'k>,
    sizes: ChannelSizes<'k>,
    width: u32,
    /// How many.
    count: U32<'k>,
    /// The first index of the extent that the block takes.
    first: U64<'k>,
    start: Cursor<'k>,
    step: Step<'k>,
    /// The part of the extent that the block takes, numbered.
    pub part: U32<'k>,
    /// Its length.
    pub len: U32<'k>,
    /// The channel, or the first of the thread's.
    pub channel: U64<'k>,
    /// Channels last: how the threads of the block lie.
    pub tile: Option<ChannelTile<'k>>,
}

/// The threads of a block as rows, with channels last.
#[derive(Clone, Copy, Debug)]
pub struct ChannelTile<'k> {
    /// The first channel of the block's.
    pub first_channel: U64<'k>,
    /// Threads that lie side by side.
    pub across: U32<'k>,
    /// Rows of them.
    pub rows: U32<'k>,
    /// The thread's row.
    pub row: U32<'k>,
    /// Whether the thread has channels.
    pub active: Pred<'k>,
}

impl<'k> ChannelWalk<'k> {
    /// Columns of a tile for each thread of its block that there is shared memory for.
    pub const COLUMNS_PER_THREAD: u32 = 2;

    /// Over one channel of `[images, channels, spatial]`, with vectors of `width` neighbours. `reverse` goes from the end of the
    /// block's part to its start: what a walk before touched last is still in the cache.
    #[track_caller]
    pub fn planes(k: K<'k>, width: u32, sizes: ChannelSizes<'k>, reverse: bool) -> Self {
        k.on_behalf(|| Self::of_planes(k, width, sizes, reverse))
    }

    fn of_planes(k: K<'k>, width: u32, s: ChannelSizes<'k>, reverse: bool) -> Self {
        let threads = k.block_threads();
        let block = k.block_idx_x();
        let (channel, part) = ((block / s.split).to_u64(), block % s.split);
        // The last blocks of a cluster may have nothing.
        let first = (part.to_u64() * s.part).min(s.extent);
        let len = s.part.min(s.extent - first).to_u32();
        let thread = k.thread_idx();
        let count = thread.lt(len).select((len - thread + (threads - 1)) / threads, 0);
        let mut at = first + thread.to_u64();
        if reverse {
            at = at + count.max(1).mul_wide(threads) - u64::from(threads);
        }
        let (image, within) = s.image(at);
        let offset = s.offset(image, channel, within, width);
        // A step of `threads` vectors passes this many whole rows.
        let step = u64::from(threads);
        let images = (k.lit(threads) / s.row.min(step + 1).to_u32()).to_u64();
        let rest = k.lit(step) - images * s.row;
        let by = (images * s.channels * s.row + rest) * u64::from(width);
        let jump = (s.channels - 1) * s.row * u64::from(width);
        let step = Step::Planes { within: rest, row: s.row, by, jump, back: reverse };
        let start = Cursor { offset, within };
        Self { k, sizes: s, width, count, first, start, step, part, len, channel, tile: None }
    }

    /// Down `width` neighbouring columns of `[rows, channels]`. `reverse` goes from the end of the block's part to its start, and
    /// from the last block on.
    #[track_caller]
    pub fn rows(k: K<'k>, width: u32, sizes: ChannelSizes<'k>, reverse: bool) -> Self {
        k.on_behalf(|| Self::of_rows(k, width, sizes, reverse))
    }

    fn of_rows(k: K<'k>, width: u32, s: ChannelSizes<'k>, reverse: bool) -> Self {
        let threads = k.block_threads();
        let mut part = k.block_idx_x();
        if reverse {
            part = k.grid_dim_x() - 1 - part;
        }
        let thread = k.thread_idx();
        let (row, column, rows) = (thread / s.split, thread % s.split, threads / s.split);
        let first_vector = k.block_idx_y().mul_wide(s.split);
        let first_channel = first_vector * u64::from(width);
        let channel = (first_vector + column.to_u64()) * u64::from(width);
        let active = row.lt(rows) & channel.lt(s.channels);
        // The last blocks of a cooperative grid may have nothing.
        let first = (part.to_u64() * s.part).min(s.extent);
        let len = s.part.min(s.extent - first).to_u32();
        let count = (active & row.lt(len)).select((len - row + rows - 1) / rows, 0);
        let channel = active.select(channel, 0);
        let stride = rows.to_u64() * s.channels;
        let (start, by) = if reverse {
            (first + (len - 1 - row).to_u64(), 0 - stride)
        } else {
            (first + row.to_u64(), stride)
        };
        let start = Cursor { offset: start * s.channels + channel, within: first };
        let tile = Some(ChannelTile { first_channel, across: s.split, rows, row, active });
        let step = Step::Rows { by };
        Self { k, sizes: s, width, count, first, start, step, part, len, channel, tile }
    }

    fn advance(&self, at: Cursor<'k>) -> Cursor<'k> {
        match self.step {
            Step::Rows { by } => Cursor { offset: at.offset + by, ..at },
            Step::Planes { within, row, by, jump, back: true } => {
                let (next, offset) = (at.within - within, at.offset - by);
                let over = at.within.lt(within);
                Cursor { offset: over.select(offset - jump, offset), within: over.select(next + row, next) }
            }
            Step::Planes { within, row, by, jump, back: false } => {
                let (next, offset) = (at.within + within, at.offset + by);
                let over = next.ge(row);
                Cursor { offset: over.select(offset + jump, offset), within: over.select(next - row, next) }
            }
        }
    }

    /// How many vectors the thread takes.
    pub fn count(&self) -> U32<'k> {
        self.count
    }

    /// The length of part `number` of the extent; 0 past the last.
    #[track_caller]
    pub fn rows_of(&self, number: U32<'k>) -> U64<'k> {
        self.k.on_behalf(|| {
            let start = (number.to_u64() * self.sizes.part).min(self.sizes.extent);
            self.sizes.part.min(self.sizes.extent - start)
        })
    }

    /// `count` of the thread's vectors from number `from` on, last one first if `backwards`; channels last only.
    #[track_caller]
    pub fn slice(&self, from: U32<'k>, count: U32<'k>, backwards: bool) -> Self {
        let Step::Rows { by } = self.step else { return *self };
        self.k.on_behalf(|| {
            let (number, by, step) = if backwards { (from + count - 1, by, 0 - by) } else { (from, by, by) };
            let start = Cursor { offset: self.start.offset + number.to_u64() * by, ..self.start };
            Self { start, count, step: Step::Rows { by: step }, ..*self }
        })
    }

    /// Where the vector of the thread's channels is that lies some quarters into the block's part.
    #[track_caller]
    pub fn sample(&self, quarters: u32) -> U64<'k> {
        self.k.on_behalf(|| {
            let at = (self.first + ((self.len * quarters) >> 2).to_u64()).min(self.sizes.extent - 1);
            if self.tile.is_some() {
                return at * self.sizes.channels + self.channel;
            }
            let (image, within) = self.sizes.image(at);
            self.sizes.offset(image, self.channel, within, self.width)
        })
    }

    /// The first elements of `n` vectors, and where the next one is.
    fn take(&self, n: u32, mut at: Cursor<'k>) -> (Cursor<'k>, Vec<U64<'k>>) {
        let mut offsets = Vec::new();
        for _ in 0..n {
            offsets.push(at.offset);
            // Nothing follows a last single vector.
            if n > 1 {
                at = self.advance(at);
            }
        }
        (at, offsets)
    }

    /// The vectors left after rounds of `unroll`, half as many at a time.
    fn rest<C: Carry<'k> + Clone>(&self, unroll: u32, state: C, some: impl Fn(u32, C) -> C) -> C {
        let halves = std::iter::successors(Some(unroll / 2), |n| Some(n / 2)).take_while(|n| *n > 0);
        halves.fold(state, |state, n| {
            let rest = (self.count & n).ne(0);
            let before = state.clone();
            self.k.if_else(rest, || some(n, before), || state)
        })
    }

    /// Folds `body` over the vectors, up to `unroll` of them at once (a power of two), so that as many loads are under
    /// way together. It receives the index of the first element of each.
    #[track_caller]
    pub fn fold<C: Carry<'k> + Clone>(&self, unroll: u32, init: C, body: impl Fn(C, &[U64<'k>]) -> C) -> C {
        let k = self.k;
        let some = |n: u32, (at, state): (Cursor<'k>, C)| {
            let (at, offsets) = self.take(n, at);
            (at, body(state, &offsets))
        };
        let rounds = k.range(0u32, self.count / unroll, 1u32);
        let state = k.fold(rounds, (self.start, init), |_, state| some(unroll, state));
        self.rest(unroll, state, some).1
    }

    /// [`fold`](Self::fold) with the loads of the next round under way while a round is worked on. `load` receives the
    /// places of vectors, `body` what it returns.
    #[track_caller]
    pub fn fold_ahead<L: Carry<'k> + Clone, C: Carry<'k> + Clone>(
        &self,
        unroll: u32,
        init: C,
        load: impl Fn(&[U64<'k>]) -> L,
        body: impl Fn(C, L) -> C,
    ) -> C {
        let k = self.k;
        let some = |n: u32, at: Cursor<'k>| {
            let (at, offsets) = self.take(n, at);
            (at, load(&offsets))
        };
        let rounds = self.count / unroll;
        let (start, before) = (self.start, init.clone());
        let whole = || {
            let (at, loaded) = some(unroll, start);
            let begun = (at, loaded, before);
            let (at, loaded, state) = k.fold(k.range(1u32, rounds, 1u32), begun, |_, (at, loaded, state)| {
                let (at, ahead) = some(unroll, at);
                (at, ahead, body(state, loaded))
            });
            (at, body(state, loaded))
        };
        let state = k.if_else(rounds.gt(0), whole, || (start, init));
        let last = |n: u32, (at, state): (Cursor<'k>, C)| {
            let (at, loaded) = some(n, at);
            (at, body(state, loaded))
        };
        self.rest(unroll, state, last).1
    }

    /// The sums over the block's part of what its threads have summed in each lane, `N` kinds of them. `write` receives a channel
    /// and its sums, in one thread for each channel. All threads of the block are here, once.
    #[track_caller]
    pub fn sums<A: Accumulate, const N: usize>(
        &self,
        sums: [Lanes<'k, A>; N],
        write: impl FnOnce(U64<'k>, [Reg<'k, A>; N]),
    ) {
        let k = self.k;
        if let Some(tile) = self.tile {
            return self.column_sums(&tile, sums, write);
        }
        let mine = sums.map(|lanes| lanes.sum().unwrap_or_else(|| k.lit::<A>(0.0)));
        let add = |a: [Reg<'k, A>; N], b: [Reg<'k, A>; N]| std::array::from_fn(|i| a[i] + b[i]);
        let sums = k.group_combine_once(k.block_threads(), mine, add);
        k.if_(k.thread_idx().eq(0), || write(self.channel, sums));
    }

    /// [`sums`](Self::sums) with channels last: over the rows of the block's threads.
    #[track_caller]
    fn column_sums<A: Accumulate, const N: usize>(
        &self,
        tile: &ChannelTile<'k>,
        sums: [Lanes<'k, A>; N],
        write: impl FnOnce(U64<'k>, [Reg<'k, A>; N]),
    ) {
        let Self { k, width, .. } = *self;
        let (threads, thread) = (k.block_threads(), k.thread_idx());
        let columns = tile.across * width;
        let shared = |len: u32| -> [Ptr<'k, Shared, A>; N] { [(); N].map(|()| k.shared::<A>(len)) };
        let total = |rows: &dyn Fn() -> Range<'k, u32>, of: [Ptr<'k, Shared, A>; N], column: U32<'k>| {
            let zero = [(); N].map(|()| k.lit::<A>(0.0));
            k.fold(rows(), zero, |row, total| {
                let at = row * columns + column;
                std::array::from_fn(|i| total[i] + of[i].at(at).get::<A>())
            })
        };
        let all = shared(threads * width);
        for (slots, sums) in all.iter().zip(sums) {
            slots.at(thread * width).store(sums);
        }
        k.barrier();
        // With vectors there are fewer rows to add up than threads for it: groups of rows first.
        let (grouped, groups) = if width == 1 {
            (all, tile.rows)
        } else {
            let grouped = shared(threads * Self::COLUMNS_PER_THREAD);
            let side = columns.min(threads);
            let groups = k.lit(threads) / side;
            let (group, first) = (thread / side, thread % side);
            k.if_(group.lt(groups), || {
                k.for_each(k.range(first, columns, side), |column| {
                    let total = total(&|| k.range(group, tile.rows, groups), all, column);
                    for (slots, total) in grouped.iter().zip(total) {
                        slots.at(group * columns + column).set(total);
                    }
                });
            });
            k.barrier();
            (grouped, groups)
        };
        let left = self.sizes.channels - tile.first_channel;
        let end = left.min(columns.to_u64()).to_u32();
        k.for_each(k.range(thread, end, threads), |column| {
            let total = total(&|| k.range(0u32, groups, 1u32), grouped, column);
            write(tile.first_channel + column.to_u64(), total);
        });
    }
}

/// Parts that a lane reads at once.
const TOGETHER: u32 = 5;

impl<'k> ChannelWalk<'k> {
    /// Combines the parts that the blocks of a cooperative grid have left of each channel, a channel to a warp of the grid.
    /// `load` gives what block `part` left of a channel, with the number of values that it stands for, 0 if there is no such
    /// block; `finish` runs in one thread of each channel.
    pub fn combine_parts_of_grid<A: Float>(
        &self,
        load: impl Fn(U64<'k>, U64<'k>, Reg<'k, A>) -> Lanes<'k, A>,
        combine: impl Fn(Lanes<'k, A>, Lanes<'k, A>) -> Lanes<'k, A>,
        finish: impl FnOnce(U64<'k>, Lanes<'k, A>),
    ) {
        let k = self.k;
        let warps = k.block_threads() / WARP;
        let blocks = k.grid_dim_x();
        let first = (k.block_idx_x() * warps + k.warp_idx()).to_u64();
        let lane = k.lane_idx();
        k.for_each(k.range(first, self.sizes.channels, (blocks * warps).to_u64()), |channel| {
            let part = |number: U32<'k>| {
                let count = self.rows_of(number).convert::<A>();
                load(channel, number.min(blocks - 1).to_u64(), count)
            };
            let parts: Vec<_> = (0..TOGETHER).map(|i| part(lane + 32 * i)).collect();
            let total = parts.into_iter().reduce(&combine);
            let Some(total) = total else { return };
            let rest = k.range(lane + 32 * TOGETHER, blocks, 32u32);
            let total = k.fold(rest, total, |number, total| combine(total, part(number)));
            let total = k.warp_combine(WARP, total, &combine);
            k.if_(lane.eq(0), || finish(channel, total));
        });
    }
}

/// Channels of a block of [`combine_parts`].
pub const CHANNELS_OF_BLOCK: u32 = 8;

/// Combines the parts that another kernel's blocks have left of each channel, [`CHANNELS_OF_BLOCK`] channels to a block of 256, 512
/// or 1024 threads, in an order that depends on the number of parts alone. `load` gives part `part` of a channel, as nothing if
/// the predicate does not hold; `finish` runs in one thread of each channel.
pub fn combine_parts<'k, A: Accumulate>(
    k: K<'k>,
    channels: U64<'k>,
    parts: U64<'k>,
    load: impl Fn(U64<'k>, U64<'k>, Pred<'k>) -> Lanes<'k, A>,
    combine: impl Fn(Lanes<'k, A>, Lanes<'k, A>) -> Lanes<'k, A>,
    finish: impl FnOnce(U64<'k>, Lanes<'k, A>),
) {
    let dim = k.block_dim();
    if !k.block_threads().is_power_of_two() || k.block_threads() < WARP * CHANNELS_OF_BLOCK {
        k.issue(IssueKind::Block { dim });
    }
    // Lanes and threads that share a channel.
    let (warps, share) = (k.block_threads() / WARP, WARP / CHANNELS_OF_BLOCK);
    let stripes = share * warps;
    let (lane, warp) = (k.lane_idx(), k.warp_idx());
    let first = k.block_idx_x().mul_wide(CHANNELS_OF_BLOCK);
    let inside = |number: U32<'k>| (first + number.to_u64()).min(channels - 1);
    let channel = inside(lane / share);
    let stripe = (warp * share + lane % share).to_u64();
    let there = stripe.lt(parts);
    let start = load(channel, stripe.min(parts - 1), there);
    let rounds = (parts + u64::from(stripes - 1) - stripe) / u64::from(stripes);
    let always = k.lit(true);
    let total = k.fold(k.range(1u64, rounds, 1u64), start, |round, total| {
        combine(total, load(channel, round * u64::from(stripes) + stripe, always))
    });
    let total = k.warp_combine(share, total, &combine);
    let slots: Vec<_> = total.iter().map(|_| k.shared::<A>(CHANNELS_OF_BLOCK * warps)).collect();
    // Swizzled, so that neither side meets in a bank.
    let slot = |channel: U32<'k>, warp: U32<'k>| channel * warps + (warp ^ channel);
    k.if_((lane % share).eq(0), || {
        let slot = slot(lane / share, warp);
        for (slots, value) in slots.iter().zip(total.iter()) {
            slots.at(slot).set(value);
        }
    });
    k.barrier();
    let thread = k.thread_idx();
    k.if_(thread.lt(CHANNELS_OF_BLOCK * warps), || {
        let slot = slot(thread / warps, thread % warps);
        let mine: Lanes<'k, A> = slots.iter().map(|slots| slots.at(slot).get()).collect();
        let total = k.warp_combine(warps, mine, &combine);
        let channel = first + (thread / warps).to_u64();
        k.if_((thread % warps).eq(0) & channel.lt(channels), || finish(channel, total));
    });
}
