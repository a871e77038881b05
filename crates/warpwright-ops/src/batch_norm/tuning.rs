//! Which kernels run for which tensors, and into how many parts a channel is cut.

use warpwright_ptx::DType;

use super::Layout;

/// How a kernel that walks over tensors is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Elements of one load.
    pub width: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Loads of a tensor that a thread has under way.
    pub unroll: u32,
}

/// Bytes of the widest load and store of every target.
const VECTOR_BYTES: u32 = 16;

/// What addresses must be a multiple of.
pub(super) const fn alignment(config: Config, dtype: DType) -> u64 {
    config.width as u64 * dtype.bytes() as u64
}

/// The layouts for tensors of type `dtype` whose vectors lie in runs of `run` elements, best first: whole vectors where
/// they fit the runs, single elements for tensors that start anywhere.
pub(super) fn configs(dtype: DType, run: u64, streams: u32) -> Vec<Config> {
    let width = VECTOR_BYTES / dtype.bytes() as u32;
    // Two tensors that are read together fill the registers twice as fast.
    let unroll = if streams > 1 { 2 } else { 4 };
    let config = |width| Config { width, threads: 256, unroll };
    let mut all = vec![config(width), config(1)];
    all.retain(|c| run.is_multiple_of(u64::from(c.width)));
    all
}

/// How the blocks share out the work of one walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    /// Vectors of a channel; channels last: rows.
    pub(super) extent: u64,
    /// How many of them one block takes.
    pub(super) slab: u64,
    /// Blocks that share a channel.
    pub(super) slabs: u64,
    /// Vectors that lie together.
    pub(super) row: u64,
    /// Kernel argument: `slabs`; channels last: threads side by side.
    pub(super) argument: u64,
    /// Blocks along the channels.
    pub(super) tiles: u64,
    /// Elements of a channel in one of `slab`.
    pub(super) per_step: u64,
    /// Of `row`.
    pub(super) reciprocal: Reciprocal,
}

/// `n / divisor` for `n` below 2^63 as the upper half of `2 n factor`, shifted right (Granlund and Montgomery 1994):
/// `factor = ceil(2^(63 + shift) / divisor)` with `2^shift >= divisor` errs by less than one part in `2^63`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reciprocal {
    pub(super) factor: u64,
    pub(super) shift: u32,
}

impl Reciprocal {
    pub(super) fn new(divisor: u64) -> Self {
        let divisor = divisor.max(1);
        let shift = 64 - (divisor - 1).leading_zeros();
        let factor = (1u128 << (63 + shift)).div_ceil(u128::from(divisor));
        Self { factor: factor as u64, shift }
    }
}

/// Vectors that a thread takes: enough to hide what a block costs at its ends.
const VECTORS_PER_THREAD: u64 = 16;
/// Most parts of a channel; the step that combines them reads them all.
const MAX_SLABS: u64 = 1024;
/// Blocks that fill a large device a few times over.
const BLOCKS: u64 = 132 * 4;

/// Into which parts a tensor is cut.
pub(super) fn split(layout: Layout, config: Config, n: u64, channels: u64, spatial: u64) -> Split {
    let (width, threads) = (u64::from(config.width), u64::from(config.threads));
    let cut = |extent: u64, wanted: u64| {
        let slab = extent.div_ceil(wanted.clamp(1, MAX_SLABS)).max(1);
        (slab, extent.div_ceil(slab))
    };
    match layout {
        Layout::ChannelsFirst => {
            let row = spatial / width;
            let extent = n * row;
            let (slab, slabs) = cut(extent, extent.div_ceil(threads * VECTORS_PER_THREAD));
            Split {
                extent,
                slab,
                slabs,
                row,
                argument: slabs,
                tiles: channels,
                per_step: width,
                reciprocal: Reciprocal::new(row),
            }
        }
        Layout::ChannelsLast => {
            let (extent, vectors) = (n * spatial, channels / width);
            let tiles = vectors.div_ceil(threads).max(1);
            let across = vectors.div_ceil(tiles).max(1);
            let rows = (threads / across).max(1);
            let most = (BLOCKS / tiles).max(1);
            let wanted = extent.div_ceil(rows * u64::from(config.unroll)).min(most);
            let (slab, slabs) = cut(extent, wanted);
            Split {
                extent,
                slab,
                slabs,
                row: vectors,
                argument: across,
                tiles,
                per_step: 1,
                reciprocal: Reciprocal::new(vectors),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reciprocals_divide() {
        for divisor in
            (1..70).chain([127, 128, 129, 392, 1568, 65_535, (1 << 31) + 1, (1 << 40) - 1, 1 << 50])
        {
            let Reciprocal { factor, shift } = Reciprocal::new(divisor);
            let quotient = |n: u64| (((2 * u128::from(n) * u128::from(factor)) >> 64) as u64) >> shift;
            let ends = [0, 1, divisor - 1, divisor, divisor + 1, 7 * divisor - 1, (1 << 63) - 1];
            let near = (1u64 << 62) / divisor * divisor;
            for n in ends.into_iter().chain([near - 1, near, near + 1]) {
                assert_eq!(quotient(n), n / divisor, "{n} / {divisor}");
            }
        }
    }

    #[test]
    fn parts_cover_a_channel() {
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            for (n, c, s) in [(1, 1, 2), (32, 256, 3136), (64, 64, 12_544), (3, 24, 7), (999, 8, 1)] {
                for config in configs(DType::F32, 1, 1) {
                    let split = split(layout, config, n, c, s);
                    assert!(split.slab * split.slabs >= split.extent, "{split:?}");
                    assert!(split.slab * (split.slabs - 1) < split.extent, "no part is empty: {split:?}");
                }
            }
        }
    }
}
