//! Windows that slide along the channels of `[images, channels, places]`: a thread takes one place of an image and a run of
//! channels, a batch of them at a time, and keeps what the next windows need in registers. Blocks lie along x over the places
//! of the images, along y over the runs.

use crate::context::K;
use crate::float::Float;
use crate::lanes::Lanes;
use crate::mem::{Access, Ptr, Readable, Writable};
use crate::reg::{I32, Pred, Reg, U32, U64};

/// A thread's place in its image and its run of channels.
#[derive(Clone, Copy, Debug)]
pub struct SlidingRun<'k> {
    k: K<'k>,
    /// The element of channel 0 at the thread's place.
    origin: U64<'k>,
    /// Whether the image has the place.
    pub inside: Pred<'k>,
    /// The first channel of the run.
    pub first: I32<'k>,
    /// The end of the run.
    pub end: I32<'k>,
    channels: I32<'k>,
    places: U32<'k>,
}

impl<'k> SlidingRun<'k> {
    /// In images of `channels` x `places` elements, at most 2^31, over which `tiles` blocks lie; `run` channels to a thread.
    #[track_caller]
    pub fn new(k: K<'k>, channels: U32<'k>, places: U32<'k>, tiles: U32<'k>, run: U32<'k>) -> Self {
        k.on_behalf(|| {
            let (image, tile) = (k.block_idx_x() / tiles, k.block_idx_x() % tiles);
            let place = tile * k.block_threads() + k.thread_idx();
            let first = k.block_idx_y() * run;
            let origin = image.mul_wide(channels) * places.to_u64() + place.to_u64();
            let inside = place.lt(places);
            let end = (first + run).min(channels).to_i32();
            Self { k, origin, inside, first: first.to_i32(), end, channels: channels.to_i32(), places }
        })
    }

    /// Offsets of `count` channels from `c` on.
    fn offsets(&self, c: I32<'k>, count: usize) -> Vec<U32<'k>> {
        let first = c.to_u32() * self.places;
        std::iter::successors(Some(first), |&at| Some(at + self.places)).take(count).collect()
    }

    /// Elements of the run's first channel, of `below` before it and of `above` behind it; 0 outside of the channels. Runs
    /// must be longer than that, so that only the first one lacks channels before it.
    #[track_caller]
    pub fn load_start<A: Float>(
        &self,
        x: Ptr<'k, impl Readable, impl Access<A>>,
        below: usize,
        above: usize,
    ) -> Vec<Reg<'k, A>> {
        let k = self.k;
        k.on_behalf(|| {
            let from = x.at(self.origin);
            let before = self.first + (-(below as i32));
            let mut all = k.if_else(
                self.first.gt(0),
                || self.offsets(before, below).iter().map(|&at| from.at(at).get()).collect::<Vec<_>>(),
                || (0..below).map(|_| k.lit(0.0)).collect(),
            );
            all.push(from.at(self.first.to_u32() * self.places).get());
            all.extend(self.load_edge(x, self.first + 1, above));
            all
        })
    }

    /// Elements of `count` channels from `c` on; 0 behind the last channel.
    fn load_edge<A: Float>(
        &self,
        x: Ptr<'k, impl Readable, impl Access<A>>,
        c: I32<'k>,
        count: usize,
    ) -> Vec<Reg<'k, A>> {
        let k = self.k;
        let (x, at) = (x.at(self.origin), self.offsets(c, count));
        let one = |(i, &at): (i32, &U32<'k>)| {
            k.if_else((c + i).lt(self.channels), || x.at(at).get(), || k.lit(0.0))
        };
        (0..).zip(&at).map(one).collect()
    }

    /// The same, without a question for each where all of them exist.
    #[track_caller]
    pub fn load<A: Float>(
        &self,
        x: Ptr<'k, impl Readable, impl Access<A>>,
        c: I32<'k>,
        count: usize,
    ) -> Vec<Reg<'k, A>> {
        let k = self.k;
        k.on_behalf(|| {
            let from = x.at(self.origin);
            k.if_else(
                (c + count as i32).le(self.channels),
                || self.offsets(c, count).iter().map(|&at| from.at(at).get()).collect::<Vec<_>>(),
                || self.load_edge(x, c, count),
            )
        })
    }

    /// Stores the elements of the channels from `c` on that belong to the run.
    #[track_caller]
    pub fn store<A: Float>(
        &self,
        y: Ptr<'k, impl Writable, impl Access<A>>,
        c: I32<'k>,
        values: &[Reg<'k, A>],
    ) {
        let k = self.k;
        k.on_behalf(|| {
            let (y, at) = (y.at(self.origin), self.offsets(c, values.len()));
            k.if_else(
                (c + values.len() as i32).le(self.end),
                || at.iter().zip(values).for_each(|(&at, &value)| y.at(at).set(value)),
                || {
                    for (i, (&at, &value)) in (0..).zip(at.iter().zip(values)) {
                        k.if_((c + i).lt(self.end), || y.at(at).set(value));
                    }
                },
            );
        });
    }
}

/// The sums of `count` neighbours, from each value on that has as many behind it.
#[track_caller]
pub fn window_sums<'k, A: Float>(values: &[Reg<'k, A>], count: usize) -> Vec<Reg<'k, A>> {
    let Some(first) = values.first() else { return Vec::new() };
    let sum = |window: &[Reg<'k, A>]| Lanes::from(window.to_vec()).sum();
    first.k().on_behalf(|| values.windows(count).filter_map(sum).collect())
}
