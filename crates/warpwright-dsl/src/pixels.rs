//! Pixels: how threads share `[samples, pixels, channels]` where each sample is reduced by itself, such as the groups of a group
//! norm with channels last. A block takes some pixels of one sample and a tile of channels; a thread keeps to its vector of
//! channels, and the threads of a vector, which take its pixels in turn, are its strips.

use crate::context::K;
use crate::float::Float;
use crate::flow::Carry;
use crate::kernel::Accumulate;
use crate::kernel_args;
use crate::lanes::Lanes;
use crate::mem::{Elem, Ptr, Readable, Shared};
use crate::packed::Packed;
use crate::reg::{Pred, Reg, U32, U64};

kernel_args! {
    /// How the blocks lie over a tensor, in vectors of `row_vectors` to a pixel: `tile` is the binary logarithm of the vectors of
    /// one of `tiles` tiles, `per_split` the pixels of one of `splits` parts of a sample.
    pub struct PixelTilingArgs => PixelTiling {
        pixels: u64, row_vectors: u32, tiles: u32, tile: u32, splits: u32, per_split: u64,
    }
}

/// The pixels and the vector of channels of a thread.
#[derive(Clone, Copy, Debug)]
pub struct PixelColumn<'k> {
    k: K<'k>,
    width: u32,
    tiling: PixelTiling<'k>,
    /// The sample.
    pub sample: U32<'k>,
    /// The part of the sample, counted over all samples.
    pub part: U32<'k>,
    /// The thread's vector of channels.
    pub vector: U32<'k>,
    /// Whether the tensor has that vector.
    pub exists: Pred<'k>,
    /// The thread's first pixel in the sample, and the end of its part.
    first: U64<'k>,
    end: U64<'k>,
    /// Pixels between those of a thread.
    stride: U64<'k>,
    /// The first pixel of the sample.
    base: U64<'k>,
    /// Pixels of the part.
    pub length: U64<'k>,
}

impl<'k> PixelColumn<'k> {
    /// That of the thread in a block that works as number `block`, with vectors of `width` channels.
    #[track_caller]
    pub fn of(k: K<'k>, block: U32<'k>, tiling: PixelTiling<'k>, width: u32) -> Self {
        k.on_behalf(|| {
            let (part, tile_number) = (block / tiling.tiles, block % tiling.tiles);
            let (sample, split) = (part / tiling.splits, part % tiling.splits);
            let thread = k.thread_idx();
            let one = k.lit(1u32) << tiling.tile;
            let vector = (tile_number << tiling.tile) + (thread & (one - 1));
            let start = split.to_u64() * tiling.per_split;
            let end = (start + tiling.per_split).min(tiling.pixels);
            let exists = vector.lt(tiling.row_vectors);
            let first = start + (thread >> tiling.tile).to_u64();
            let stride = (k.lit(k.block_threads()) >> tiling.tile).to_u64();
            let base = sample.to_u64() * tiling.pixels;
            let length = end - start;
            Self { k, width, tiling, sample, part, vector, exists, first, end, stride, base, length }
        })
    }

    /// The first element of the thread's vector of pixel `pixel`.
    #[track_caller]
    pub fn element(&self, pixel: U64<'k>) -> U64<'k> {
        let row_vectors = self.tiling.row_vectors;
        self.k.on_behalf(|| {
            ((self.base + pixel) * row_vectors.to_u64() + self.vector.to_u64()) * u64::from(self.width)
        })
    }

    /// Elements between the thread's vectors of successive pixels.
    #[track_caller]
    pub fn pitch(&self) -> U64<'k> {
        self.k.on_behalf(|| self.stride * self.tiling.row_vectors.to_u64() * u64::from(self.width))
    }

    /// The thread's vectors of `round` pixels from the one at `at` on.
    #[track_caller]
    pub fn load<A: Float>(
        &self,
        x: Ptr<'k, impl Readable, Elem>,
        at: U64<'k>,
        round: u32,
    ) -> Vec<Packed<'k, A>> {
        self.k.on_behalf(|| {
            let (from, pitch) = (x.at(self.element(at)), self.pitch());
            from.pitched(pitch, round).map(|from| from.load_packed(self.width)).collect()
        })
    }

    /// Goes over the thread's pixels, `round` at a time while there are as many, then one by one. `body` receives the
    /// first pixel and how many there are.
    #[track_caller]
    pub fn rounds<C: Carry<'k>>(&self, round: u32, init: C, body: impl Fn(U64<'k>, u32, C) -> C) -> C {
        let k = self.k;
        let last = self.stride * u64::from(round - 1);
        let (at, state) = k.while_(
            (self.first, init),
            |(at, _)| (*at + last).lt(self.end),
            |(at, state)| (at + self.stride * u64::from(round), body(at, round, state)),
        );
        let one = |(at, state): (U64<'k>, C)| (at + self.stride, body(at, 1, state));
        k.while_((at, state), |(at, _)| at.lt(self.end), one).1
    }

    /// The place of a channel in partial sums `[part, channel]`.
    #[track_caller]
    pub fn partial(&self, channel: U32<'k>) -> U64<'k> {
        self.k.on_behalf(|| {
            let channels = (self.tiling.row_vectors * self.width).to_u64();
            self.part.to_u64() * channels + channel.to_u64()
        })
    }
}

/// `N` values of each thread for each of its channels, in shared memory: reads in the order of the channels and writes in that of
/// the threads are both free of bank conflicts.
#[derive(Clone, Copy, Debug)]
pub struct PixelStrips<'k, A: Accumulate, const N: usize> {
    column: PixelColumn<'k>,
    /// Strips of each channel.
    pub count: U32<'k>,
    slots: [Ptr<'k, Shared, A>; N],
    stride: u32,
}

/// A channel of the block's tile.
#[derive(Clone, Copy, Debug)]
pub struct StripChannel<'k> {
    /// Its number in the tensor.
    pub channel: U32<'k>,
    vector: U32<'k>,
    lane: U32<'k>,
}

impl<'k, A: Accumulate, const N: usize> PixelStrips<'k, A, N> {
    /// Puts the values of each thread, `values[i]` for its channels, where all find them. All threads of the block are here, once.
    #[track_caller]
    pub fn new(column: PixelColumn<'k>, values: [Lanes<'k, A>; N]) -> Self {
        let (k, width) = (column.k, column.width);
        k.on_behalf(|| {
            let (thread, threads) = (k.thread_idx(), k.block_threads());
            let banks = if A::DOUBLE { 16 } else { 32 };
            let stride = threads + banks / width;
            let slots = [(); N].map(|()| k.shared::<A>(stride * width));
            for (slots, values) in slots.iter().zip(values) {
                for (plane, value) in (0u32..).zip(values.iter()) {
                    slots.at(thread + plane * stride).set(value);
                }
            }
            k.barrier();
            Self { column, count: k.lit(threads) >> column.tiling.tile, slots, stride }
        })
    }

    /// Runs `body` for the channels of the tile, spread over the threads.
    #[track_caller]
    pub fn each_channel(&self, body: impl FnOnce(StripChannel<'k>)) {
        let PixelColumn { k, width, tiling, vector, .. } = self.column;
        let thread = k.thread_idx();
        let first = (vector - (thread & ((k.lit(1u32) << tiling.tile) - 1))) * width;
        let left = tiling.row_vectors * width - first;
        let count = (k.lit(width) << tiling.tile).min(left);
        k.for_each(k.range(thread, count, k.block_threads()), |number| {
            let vector = number >> width.trailing_zeros();
            let (lane, channel) = (number & (width - 1), first + number);
            body(StripChannel { channel, vector, lane });
        });
    }

    /// Folds `body` over the strips of a channel; it receives the number of one and its thread.
    #[track_caller]
    pub fn fold<C: Carry<'k>>(
        &self,
        channel: StripChannel<'k>,
        init: impl FnOnce() -> C,
        body: impl FnOnce(U32<'k>, U32<'k>, C) -> C,
    ) -> C {
        let PixelColumn { k, tiling, .. } = self.column;
        let range = k.range(0u32, self.count, 1u32);
        k.fold(range, init(), |strip, state| {
            let thread = (strip << tiling.tile) + channel.vector;
            body(strip, thread, state)
        })
    }

    /// Value `i` of `thread` for a channel.
    #[track_caller]
    pub fn value(&self, i: usize, channel: StripChannel<'k>, thread: U32<'k>) -> Reg<'k, A> {
        self.slots[i].at(channel.lane * self.stride + thread).get()
    }
}
