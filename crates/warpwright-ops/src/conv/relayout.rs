//! Images in the layout that products read: channels last, as many as whole vectors of 16 bytes hold, and back.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::Layout;
use crate::gemm::WIDE;

kernel_args! {
    /// Images with channels in another order, or with more or fewer of them.
    pub(super) struct RelayoutArgs => RelayoutParams {
        x: In<Elem>, y: Out<Elem>,
        pixels: u32,
        /// Channels of `x`, and of `y`: zeros where `x` has none.
        channels: u32, to_channels: u32,
    }
}

/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// Channels and pixels of a block.
pub(super) const SIDE: u32 = 64;

/// Copies images of one layout to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Relayout {
    pub(super) dtype: DType,
    pub(super) from: Layout,
    pub(super) to: Layout,
    /// Elements that a thread copies at once, which pixels and channels are multiples of.
    pub(super) width: u32,
}

impl Relayout {
    /// Elements of a thread at once where these are multiples and tensors are aligned.
    pub(super) const WIDE: u32 = 2;
}

impl AccumulateKernel for Relayout {
    type Args = RelayoutArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, from, to, width } = *self;
        let name = format!("conv_relayout_{dtype}_{}_{}_v{width}", from.name(), to.name());
        KernelSpec::new(name, BlockDim::x(THREADS)).dtypes(DTypes::all(dtype))
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: RelayoutParams<'k>) {
        let tile = k.shared::<A>(SIDE * (SIDE + 1));
        let across = (p.to_channels + (SIDE - 1)) / SIDE;
        let of_image = (p.pixels + (SIDE - 1)) / SIDE * across;
        let image = k.block_idx_x() / of_image;
        let block = k.block_idx_x() - image * of_image;
        let (first_pixel, first_channel) = (block / across * SIDE, block % across * SIDE);
        let lanes = SIDE / self.width;
        let (along, line) = (k.thread_idx() % lanes * self.width, k.thread_idx() / lanes);
        // Neighbouring threads have neighbours in memory.
        let place = |layout: Layout, i: u32| {
            let other = line + i * (THREADS / lanes);
            if layout == Layout::ChannelsLast { (other, along) } else { (along, other) }
        };
        let at = |layout: Layout, channels: U32<'k>, (image, pixel, channel): (U32<'k>, U32<'k>, U32<'k>)| {
            let first = image.mul_wide(p.pixels) * channels.to_u64();
            first
                + if layout == Layout::ChannelsLast {
                    pixel.mad_wide(channels, channel.to_u64())
                } else {
                    channel.mad_wide(p.pixels, pixel.to_u64())
                }
        };
        let each = SIDE * lanes / THREADS;
        // How far down and right in the tile the elements of a vector follow one another.
        let next = |layout: Layout| if layout == Layout::ChannelsLast { 1 } else { SIDE + 1 };
        let load = |i: u32| {
            let (pixel, channel) = place(self.from, i);
            let (x_pixel, x_channel) = (first_pixel + pixel, first_channel + channel);
            let there = x_pixel.lt(p.pixels) & x_channel.lt(p.channels);
            let element = p.x.at(at(self.from, p.channels, (image, x_pixel, x_channel)));
            ((pixel, channel), element.only_where(there, Fill::Zero).load::<A>(self.width))
        };
        let loaded: Vec<_> = (0..each).map(load).collect();
        let transposes = self.from != self.to;
        if transposes {
            for ((pixel, channel), values) in &loaded {
                let first = *pixel * (SIDE + 1) + *channel;
                for (i, value) in (0..).zip(values.iter()) {
                    tile.at(first + i * next(self.from)).set(value);
                }
            }
            k.barrier();
        }
        for (i, (_, mine)) in (0..).zip(&loaded) {
            let (pixel, channel) = place(self.to, i);
            let first = pixel * (SIDE + 1) + channel;
            let turned = || (0..self.width).map(|i| tile.at(first + i * next(self.to)).get()).collect();
            let values: Lanes<'k, A> = if transposes { turned() } else { mine.clone() };
            let (y_pixel, y_channel) = (first_pixel + pixel, first_channel + channel);
            let there = y_pixel.lt(p.pixels) & y_channel.lt(p.to_channels);
            let element = p.y.at(at(self.to, p.to_channels, (image, y_pixel, y_channel)));
            element.only_where(there, Fill::Zero).store(values);
        }
    }
}

kernel_args! {
    /// Images of few channels in another order.
    pub(super) struct InterleaveArgs => InterleaveParams {
        x: In<Elem>, y: Out<Elem>,
        /// Pixels of an image, and vectors of them in all images.
        pixels: u32, vectors: u32,
    }
}

/// Copies images of few channels from one layout to the other: a thread has all channels of as many pixels as a vector holds of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interleave {
    pub(super) dtype: DType,
    pub(super) to: Layout,
    pub(super) channels: u32,
}

impl Interleave {
    /// Channels that there are kernels of: of colours, and of latent images.
    pub(super) const CHANNELS: std::ops::RangeInclusive<u32> = 2..=4;

    /// Pixels of a thread, which those of an image are a multiple of.
    pub(super) fn width(dtype: DType) -> u32 {
        WIDE as u32 / dtype.bytes() as u32
    }
}

impl AccumulateKernel for Interleave {
    type Args = InterleaveArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, to, channels } = *self;
        let name = format!("conv_interleave_{dtype}_c{channels}_to_{}", to.name());
        KernelSpec::new(name, BlockDim::x(THREADS)).dtypes(DTypes::all(dtype))
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: InterleaveParams<'k>) {
        let (channels, width) = (self.channels, Self::width(self.dtype));
        let vector = k.block_idx_x() * THREADS + k.thread_idx();
        k.if_(vector.lt(p.vectors), || {
            let of_image = p.pixels / width;
            let image = vector / of_image;
            let pixel = (vector - image * of_image) * width;
            let first = image.mul_wide(p.pixels) * u64::from(channels);
            // A vector of each channel; with channels last, of each of as many runs of neighbouring elements.
            let planes = (0..channels).map(|c| first + p.pixels.mad_wide(c, pixel.to_u64()));
            let runs = (0..channels).map(|run| first + pixel.mad_wide(channels, u64::from(run * width)));
            let load = |at| p.x.at(at).load::<A>(width).iter().collect::<Vec<_>>();
            if self.to == Layout::ChannelsLast {
                let of_channels: Vec<_> = planes.map(load).collect();
                let mut pixels =
                    (0..width as usize).flat_map(|i| of_channels.iter().map(move |channel| channel[i]));
                runs.for_each(|at| {
                    p.y.at(at).store(pixels.by_ref().take(width as usize).collect::<Lanes<_>>());
                });
            } else {
                let elements: Vec<_> = runs.flat_map(load).collect();
                for (channel, at) in planes.enumerate() {
                    p.y.at(at).store(
                        elements
                            .iter()
                            .copied()
                            .skip(channel)
                            .step_by(channels as usize)
                            .collect::<Lanes<_>>(),
                    );
                }
            }
        });
    }
}

kernel_args! {
    /// Rows of images with the taps of each output side by side.
    pub(super) struct PackTapsArgs => PackTapsParams {
        x: In<Elem>, y: Out<Elem>,
        /// Rows of all images of `x`, and those of one.
        rows: u32, of_image: u32,
        /// Pixels of a row of `x`, and outputs of one.
        width: u32, outputs: u32,
        channels: u32, taps: u32,
        stride: u32, padding: u32, dilation: u32,
        /// Vectors of an output: its taps, the channels of each innermost, and zeros.
        vectors: u32,
        /// Elements of `x` from one image, row, pixel and channel to the next.
        step_image: u64, step_row: u64, step_pixel: u64, step_channel: u64,
    }
}

/// Elements of a vector.
pub(super) const VECTOR: u32 = 8;

/// Lays the taps of each output of a row side by side, as the channels of one pixel: images of few channels.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackTaps {
    pub(super) dtype: DType,
}

impl AccumulateKernel for PackTaps {
    type Args = PackTapsArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("conv_pack_taps_{}", self.dtype), BlockDim::x(THREADS))
            .dtypes(DTypes::all(self.dtype))
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: PackTapsParams<'k>) {
        let within = k.block_idx_x() * THREADS + k.thread_idx();
        let output = within / p.vectors;
        let vector = within - output * p.vectors;
        k.if_(output.lt(p.outputs), || {
            let first = vector * VECTOR;
            let tap = first / p.channels;
            let channel = first - tap * p.channels;
            let pixel = output * p.stride - p.padding;
            k.for_each(k.range(k.block_idx_y(), p.rows, k.grid_dim_y()), |row| {
                let image = row / p.of_image;
                let within = row - image * p.of_image;
                let line = p.x.at(image.to_u64() * p.step_image + within.to_u64() * p.step_row);
                let (mut tap, mut channel) = (tap, channel);
                let mut values = Vec::new();
                for _ in 0..VECTOR {
                    let at = pixel + tap * p.dilation;
                    let element = line.at(at.to_u64() * p.step_pixel + channel.to_u64() * p.step_channel);
                    let there = at.lt(p.width) & tap.lt(p.taps);
                    values.push(element.only_where(there, Fill::Zero).get::<A>());
                    let last = (channel + 1).eq(p.channels);
                    tap = last.select(tap + 1, tap);
                    channel = last.select(k.lit(0u32), channel + 1);
                }
                let to = (row.mul_wide(p.outputs) + output.to_u64()) * p.vectors.to_u64() + vector.to_u64();
                p.y.at(to * u64::from(VECTOR)).store(Lanes::from(values));
            });
        });
    }
}
