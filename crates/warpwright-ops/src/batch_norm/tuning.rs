//! Which kernels run for which tensors, and into how many parts a channel is cut.

use warpwright_dsl::{ChannelWalk, VECTOR_BYTES};
use warpwright_ptx::isa::DeviceLimits;
use warpwright_ptx::{DType, Target};

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

/// Alignment of tensors in bytes.
pub(super) const fn alignment(config: Config, dtype: DType) -> u64 {
    config.width as u64 * dtype.bytes() as u64
}

/// The layouts for tensors of type `dtype` whose vectors lie in runs of `run` elements, best first: whole vectors where
/// they fit the runs, single elements for tensors that start anywhere.
pub(super) fn configs(layout: Layout, dtype: DType, run: u64, streams: u32) -> Vec<Config> {
    let width = VECTOR_BYTES / dtype.bytes() as u32;
    let (threads, unroll) = match layout {
        Layout::ChannelsFirst => (256, 4),
        Layout::ChannelsLast => (512, 8),
    };
    // Tensors that are read together share the registers.
    let unroll = (unroll >> (streams - 1)).max(2);
    let config = |width| Config { width, threads, unroll };
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
    pub(super) part: u64,
    /// Blocks that share a channel.
    pub(super) parts: u64,
    /// Vectors that lie together.
    pub(super) row: u64,
    /// Kernel argument: `parts`; channels last: threads side by side.
    pub(super) argument: u64,
    /// Blocks along the channels.
    pub(super) tiles: u64,
    /// Elements of a channel in one of `part`.
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

/// Vectors that a thread takes: many if the device takes all blocks at once, else few, so that the last ones are not
/// alone for long.
const VECTORS_PER_THREAD: [u64; 2] = [64, 16];
/// Blocks of 256 threads that a large device takes at once.
const RESIDENT_BLOCKS: u64 = 4 * 132;
/// Most parts of a channel; the step that combines them reads them all.
const MAX_PARTS: u64 = 1024;
/// Multiprocessors of a large device: more blocks leave more parts to combine, and are not faster.
const BLOCKS: u64 = 132;

/// Into which parts a tensor is cut.
pub(super) fn split(layout: Layout, config: Config, n: u64, channels: u64, spatial: u64) -> Split {
    let (width, threads) = (u64::from(config.width), u64::from(config.threads));
    let cut = |extent: u64, wanted: u64| {
        let part = extent.div_ceil(wanted.clamp(1, MAX_PARTS)).max(1);
        (part, extent.div_ceil(part))
    };
    match layout {
        Layout::ChannelsFirst => {
            let row = spatial / width;
            let extent = n * row;
            let [many, few] = VECTORS_PER_THREAD.map(|n| extent.div_ceil(threads * n));
            let wanted = if many.saturating_mul(channels) <= RESIDENT_BLOCKS { many } else { few };
            let (part, parts) = cut(extent, wanted);
            Split {
                extent,
                part,
                parts,
                row,
                argument: parts,
                tiles: channels,
                per_step: width,
                reciprocal: Reciprocal::new(row),
            }
        }
        Layout::ChannelsLast => {
            let (extent, vectors) = (n * spatial, channels / width);
            let widest = (threads * u64::from(ChannelWalk::COLUMNS_PER_THREAD) / width).min(threads);
            let tiles = vectors.div_ceil(widest).max(1);
            let across = vectors.div_ceil(tiles).max(1);
            let rows = (threads / across).max(1);
            let most = (BLOCKS / tiles).max(1);
            let wanted = extent.div_ceil(rows * u64::from(config.unroll)).min(most);
            let (part, parts) = cut(extent, wanted);
            Split {
                extent,
                part,
                parts,
                row: vectors,
                argument: across,
                tiles,
                per_step: 1,
                reciprocal: Reciprocal::new(vectors),
            }
        }
    }
}

/// How a channel is held in shared memory while it is normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Residence {
    pub(super) config: Config,
    /// Blocks that share a channel.
    pub(super) cluster: u32,
    pub(super) split: Split,
    /// Vectors of a tensor that a block has room for.
    pub(super) hold: u32,
    /// Bytes of dynamic shared memory.
    pub(super) bytes: u32,
}

/// Sizes of clusters, smallest first.
pub(super) const CLUSTERS: [u32; 4] = [1, 2, 8, 16];
/// Dynamic shared memory of a block of a cluster: two of them share a multiprocessor, so that some read while others
/// write. With more, two walks are faster.
const CLUSTER_SHARED: u64 = 100 << 10;

/// Whether targets have the shared memory and the clusters of data-centre GPUs.
const fn has_large_clusters(target: Target) -> bool {
    matches!(target.sm, 90 | 100 | 103)
}

/// How to hold `streams` tensors `[n, channels, spatial]`; `None` if a channel does not fit.
pub(super) fn residence(
    target: Target,
    dtype: DType,
    streams: u32,
    n: u64,
    channels: u64,
    spatial: u64,
) -> Option<Residence> {
    let width = VECTOR_BYTES / dtype.bytes() as u32;
    if !has_large_clusters(target) || !spatial.is_multiple_of(u64::from(width)) {
        return None;
    }
    let config = Config { width, threads: 256, unroll: if streams > 1 { 4 } else { 8 } };
    let row = spatial / u64::from(width);
    let extent = n.checked_mul(row)?;
    let of = |cluster: u32| {
        let part = extent.div_ceil(u64::from(cluster));
        let hold = part.next_multiple_of(u64::from(config.threads));
        let bytes = hold.checked_mul(u64::from(streams * VECTOR_BYTES)).filter(|b| *b <= CLUSTER_SHARED)?;
        let split = Split {
            extent,
            part,
            parts: u64::from(cluster),
            row,
            argument: u64::from(cluster),
            tiles: channels,
            per_step: u64::from(width),
            reciprocal: Reciprocal::new(row),
        };
        Some(Residence { config, cluster, split, hold: hold as u32, bytes: bytes as u32 })
    };
    CLUSTERS.into_iter().find_map(of)
}

/// How one cooperative grid holds what it can of tensors `[rows, channels]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Persistence {
    pub(super) config: Config,
    pub(super) split: Split,
    /// Most blocks.
    pub(super) blocks: u32,
    /// Vectors of a tensor that a thread keeps in shared memory.
    pub(super) hold: u32,
    /// Bytes of dynamic shared memory.
    pub(super) bytes: u32,
}

/// How to hold `streams` tensors `[rows, channels]`; `None` if a row is too long for a block, or not of whole vectors.
pub(super) fn persistence(
    target: Target,
    dtype: DType,
    streams: u32,
    rows: u64,
    channels: u64,
) -> Option<Persistence> {
    let width = VECTOR_BYTES / dtype.bytes() as u32;
    if !has_large_clusters(target) || !channels.is_multiple_of(u64::from(width)) {
        return None;
    }
    let config = Config { width, threads: 512, unroll: 4 };
    let split = split(Layout::ChannelsLast, config, rows, channels, 1);
    if split.tiles > 1 {
        return None;
    }
    let at_once = (u64::from(config.threads) / split.row).max(1);
    let blocks = rows.div_ceil(2 * at_once).clamp(1, BLOCKS);
    let accumulate = if dtype == DType::F64 { 8 } else { 4 };
    let fixed = 2 * config.threads * (width + ChannelWalk::COLUMNS_PER_THREAD) * accumulate + 1024;
    let vectors = rows.div_ceil(blocks).div_ceil(at_once);
    // A block has a multiprocessor to itself.
    let room =
        (DeviceLimits::of(target).shared_per_block - fixed) / (config.threads * VECTOR_BYTES * streams);
    // Two tensors keep the shared memory busier than the cache: measured, a few vectors of each are best.
    let room = if streams > 1 { room.min(4) } else { room };
    let hold = u64::from(room).min(vectors) as u32;
    let bytes = hold * config.threads * VECTOR_BYTES * streams;
    Some(Persistence { config, split, blocks: blocks as u32, hold, bytes })
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
                for config in configs(layout, DType::F32, 1, 1) {
                    let split = split(layout, config, n, c, s);
                    assert!(split.part * split.parts >= split.extent, "{split:?}");
                    assert!(split.part * (split.parts - 1) < split.extent, "no part is empty: {split:?}");
                }
            }
        }
    }
}
