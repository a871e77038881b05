//! How the threads of a block walk over their part of a tensor: vectors of one channel in `[N, C, spatial]`, vectors
//! of neighbouring channels in `[rows, C]`.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{carry, kernel_args};

use super::Layout;
use super::tuning::{Config, Split};

kernel_args! {
    /// The sizes that a walk depends on.
    pub(super) struct SizesArgs => Sizes {
        /// Vectors of a channel; channels last: rows.
        extent: u64,
        /// How many of them a block takes.
        part: u64,
        /// Vectors of a channel that lie together.
        row: u64,
        channels: u64,
        /// Blocks of a channel; channels last: threads side by side in a row.
        split: u32,
        /// With `shift`, takes the place of a division by `row`: see `tuning::Reciprocal`.
        reciprocal: u64,
        shift: u32,
    }
}

impl SizesArgs {
    pub(super) const fn new(split: &Split, channels: u64) -> Self {
        Self {
            extent: split.extent,
            part: split.part,
            row: split.row,
            channels,
            split: split.argument as u32,
            reciprocal: split.reciprocal.factor,
            shift: split.reciprocal.shift,
        }
    }
}

impl<'k> Sizes<'k> {
    /// The image that a vector of a channel lies in, and where.
    fn image(&self, at: U64<'k>) -> (U64<'k>, U64<'k>) {
        // See `tuning::Reciprocal`.
        let image = ((at << 1).mul_hi(self.reciprocal)) >> self.shift;
        (image, at - image * self.row)
    }

    /// The first element of a vector.
    fn offset(&self, image: U64<'k>, channel: U64<'k>, within: U64<'k>, width: u32) -> U64<'k> {
        ((image * self.channels + channel) * self.row + within) * u64::from(width)
    }
}

/// Where a thread is.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'k> {
    /// Index of the first element of the vector.
    offset: U64<'k>,
    /// Vectors since the start of the row; not used with channels last.
    within: U64<'k>,
}

carry!(Cursor { offset, within });

#[derive(Clone, Copy)]
enum Step<'k> {
    /// The same channels, some rows on.
    Rows { by: U64<'k> },
    /// Some vectors on in the same channel, over the end of a row if need be; `back` goes towards the first vector.
    Planes { within: U64<'k>, row: U64<'k>, by: U64<'k>, jump: U64<'k>, back: bool },
}

/// The vectors of one thread.
#[derive(Clone, Copy)]
pub(super) struct Walk<'k> {
    k: K<'k>,
    sizes: Sizes<'k>,
    width: u32,
    /// How many.
    count: U32<'k>,
    /// The first index of the extent that the block takes.
    first: U64<'k>,
    start: Cursor<'k>,
    step: Step<'k>,
    /// The part of the extent that the block takes, numbered.
    pub(super) part: U32<'k>,
    /// Its length.
    pub(super) len: U32<'k>,
    /// The channel, or the first of the thread's.
    pub(super) channel: U64<'k>,
    /// Channels last: the first channel of the block's, how many threads lie side by side, how many rows there are of
    /// them, and whether this is one of them.
    pub(super) tile: Option<Tile<'k>>,
}

/// The threads of a block as rows.
#[derive(Clone, Copy)]
pub(super) struct Tile<'k> {
    pub(super) first_channel: U64<'k>,
    pub(super) across: U32<'k>,
    pub(super) rows: U32<'k>,
    pub(super) row: U32<'k>,
    pub(super) active: Pred<'k>,
}

impl<'k> Walk<'k> {
    /// The walk of this thread. `reverse` goes from the end of the block's part to its start, with channels last from the
    /// last block on: what a walk before touched last is still in the cache.
    pub(super) fn new(k: K<'k>, layout: Layout, config: Config, sizes: Sizes<'k>, reverse: bool) -> Self {
        match layout {
            Layout::ChannelsFirst => Self::planes(k, config, sizes, reverse),
            Layout::ChannelsLast => Self::rows(k, config, sizes, reverse),
        }
    }

    fn planes(k: K<'k>, config: Config, s: Sizes<'k>, reverse: bool) -> Self {
        let Config { width, threads, .. } = config;
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

    fn rows(k: K<'k>, config: Config, s: Sizes<'k>, reverse: bool) -> Self {
        let Config { width, threads, .. } = config;
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
        let offset = start * s.channels + channel;
        let start = Cursor { offset, within: first };
        let tile = Some(Tile { first_channel, across: s.split, rows, row, active });
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
    pub(super) fn count(&self) -> U32<'k> {
        self.count
    }

    /// The length of part `number` of the extent; 0 past the last.
    pub(super) fn rows_of(&self, number: U32<'k>) -> U64<'k> {
        let start = (number.to_u64() * self.sizes.part).min(self.sizes.extent);
        self.sizes.part.min(self.sizes.extent - start)
    }

    /// `count` of the thread's vectors from number `from` on, last one first if `backwards`; channels last only.
    pub(super) fn part(&self, from: U32<'k>, count: U32<'k>, backwards: bool) -> Self {
        let Step::Rows { by } = self.step else { return *self };
        let (number, by, step) = if backwards { (from + count - 1, by, 0 - by) } else { (from, by, by) };
        let start = Cursor { offset: self.start.offset + number.to_u64() * by, ..self.start };
        Self { start, count, step: Step::Rows { by: step }, ..*self }
    }

    /// Where the vector of the thread's channels is that lies some quarters into the block's part.
    pub(super) fn sample(&self, quarters: u32) -> U64<'k> {
        let at = (self.first + ((self.len * quarters) >> 2).to_u64()).min(self.sizes.extent - 1);
        match self.tile {
            Some(_) => at * self.sizes.channels + self.channel,
            None => {
                let (image, within) = self.sizes.image(at);
                self.sizes.offset(image, self.channel, within, self.width)
            }
        }
    }

    /// Folds `body` over the vectors, up to `unroll` of them at once (a power of two), so that as many loads are under
    /// way together.
    pub(super) fn fold<C: Carry<'k> + Clone>(
        &self,
        unroll: u32,
        init: C,
        body: impl Fn(C, &[U64<'k>]) -> C,
    ) -> C {
        let k = self.k;
        let some = |n: u32, (mut at, state): (Cursor<'k>, C)| {
            let mut offsets = Vec::new();
            for _ in 0..n {
                offsets.push(at.offset);
                // Nothing follows a last single vector.
                if n > 1 {
                    at = self.advance(at);
                }
            }
            (at, body(state, &offsets))
        };
        let rounds = k.range(0u32, self.count / unroll, 1u32);
        let mut state = k.fold(rounds, (self.start, init), |_, state| some(unroll, state));
        let mut n = unroll / 2;
        while n > 0 {
            let rest = (self.count & n).ne(0);
            let before = state.clone();
            state = k.if_else(rest, || some(n, before), || state);
            n /= 2;
        }
        state.1
    }

    /// [`fold`](Self::fold) with the loads of the next round under way while a round is worked on. `load` receives the
    /// places of vectors, `body` what it returns.
    pub(super) fn fold_ahead<L: Carry<'k> + Clone, C: Carry<'k> + Clone>(
        &self,
        unroll: u32,
        init: C,
        load: impl Fn(&[U64<'k>]) -> L,
        body: impl Fn(C, L) -> C,
    ) -> C {
        let k = self.k;
        let some = |n: u32, mut at: Cursor<'k>| {
            let mut offsets = Vec::new();
            for _ in 0..n {
                offsets.push(at.offset);
                // Nothing follows a last single vector.
                if n > 1 {
                    at = self.advance(at);
                }
            }
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
        let mut state = k.if_else(rounds.gt(0), whole, || (start, init));
        let mut n = unroll / 2;
        while n > 0 {
            let rest = (self.count & n).ne(0);
            let (at, before) = state.clone();
            let last = || {
                let (at, loaded) = some(n, at);
                (at, body(before, loaded))
            };
            state = k.if_else(rest, last, || state);
            n /= 2;
        }
        state.1
    }
}
