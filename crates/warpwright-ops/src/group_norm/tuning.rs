//! Which kernels run for which shapes.
//!
//! Both directions move bytes and little else, so what counts is how often a tensor is read. A group that fits the
//! registers of a cluster is read once; any other is read twice, and the second time from the L2 cache as far as it
//! holds. Blocks of one cluster that are smaller than a multiprocessor let the loads of one group overlap the stores of
//! another.

use warpwright_dsl::VECTOR_BYTES;
use warpwright_ptx::{DType, Target};

/// The first architecture with clusters.
const CLUSTER_SM: u32 = 90;

/// Threads of the kernels that go over their input in a loop.
pub(super) const STREAM_THREADS: u32 = 256;
/// Vectors that a thread of such a kernel has in flight.
pub(super) const STREAM_VECTORS: u32 = 4;

/// Elements of a vector.
pub(super) const fn vector_width(dtype: DType) -> u32 {
    (VECTOR_BYTES as usize / dtype.bytes()) as u32
}

/// A kernel that holds whole groups in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Resident {
    /// Elements that a thread loads and stores at once.
    pub width: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Vectors of a thread.
    pub vectors: u32,
    /// Blocks of a cluster, which share a group.
    pub cluster: u32,
}

impl Resident {
    /// Vectors of a cluster.
    pub const fn capacity(self) -> u64 {
        self.threads as u64 * self.vectors as u64 * self.cluster as u64
    }

    /// Vectors of a block, of groups of `vectors` vectors: whole channels of `channel_vectors` if that leaves no block
    /// without work, otherwise whole sectors.
    pub(super) fn per_block(self, vectors: u64, channel_vectors: u64) -> u64 {
        let cluster = u64::from(self.cluster);
        let even = vectors.div_ceil(cluster).next_multiple_of(8);
        let whole = even.next_multiple_of(channel_vectors.max(1));
        let room = u64::from(self.threads) * u64::from(self.vectors);
        if whole <= room && whole * (cluster - 1) < vectors { whole } else { even }
    }
}

/// How a group is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// Once, and held in registers.
    Resident(Resident),
    /// Twice.
    Streamed,
}

impl Path {
    /// Whether it is for vectors of `width` elements.
    pub(super) fn fits(self, width: u32) -> bool {
        match self {
            Self::Resident(config) => config.width == width,
            Self::Streamed => true,
        }
    }
}

const fn resident(width: u32, threads: u32, vectors: u32, cluster: u32) -> Resident {
    Resident { width, threads, vectors, cluster }
}

/// The resident kernels of the forward direction, by capacity.
pub fn forward(dtype: DType, target: Target, width: u32) -> Vec<Resident> {
    if width != vector_width(dtype) {
        return vec![resident(width, 128, 8, 1), resident(width, 512, 16, 1)];
    }
    let mut all = vec![
        resident(width, 32, 4, 1),
        resident(width, 128, 5, 1),
        resident(width, 256, 8, 1),
        resident(width, 512, 8, 1),
    ];
    if target.sm >= CLUSTER_SM {
        all.extend([2, 4, 8, 16].map(|cluster| resident(width, 512, 8, cluster)));
    }
    all
}

/// Multiprocessors of a large device.
const PROCESSORS: u64 = 132;

/// The resident kernel for `groups` groups of `vectors` vectors, if one holds them: the smallest, or one with a larger
/// cluster where there are too few groups to keep a device busy.
pub fn forward_for(dtype: DType, target: Target, width: u32, groups: u64, vectors: u64) -> Path {
    spread_out(forward(dtype, target, width), groups, vectors)
}

/// Threads of a block that fills a multiprocessor, with 64 registers each.
const WHOLE: u32 = 1024;

/// The resident kernels of the backward direction, which hold two tensors, by capacity.
pub fn backward(dtype: DType, target: Target, width: u32) -> Vec<Resident> {
    if width != vector_width(dtype) {
        return vec![resident(width, 128, 8, 1), resident(width, 512, 4, 1)];
    }
    let mut all = vec![resident(width, 32, 2, 1), resident(width, 128, 4, 1), resident(width, 512, 4, 1)];
    if target.sm >= CLUSTER_SM {
        all.push(resident(width, 512, 4, 2));
        // Double precision lacks the registers.
        all.extend((dtype != DType::F64).then(|| resident(width, WHOLE, 4, 2)));
        all.extend([4, 8, 16].map(|cluster| resident(width, 512, 4, cluster)));
    }
    all
}

/// The resident kernel for the gradients of `groups` groups of `vectors` vectors, if one holds them.
pub fn backward_for(dtype: DType, target: Target, width: u32, groups: u64, vectors: u64) -> Path {
    // Blocks that fill a multiprocessor leave no cluster without a place, but later ones begin only where one has ended: they are
    // for one wave, and smaller ones for more.
    let one_wave = 2 * groups <= PROCESSORS;
    let mut configs = backward(dtype, target, width);
    let whole = configs.iter().find(|r| r.threads == WHOLE).map(|r| r.capacity());
    configs.retain(|r| whole != Some(r.capacity()) || (r.threads == WHOLE) == one_wave);
    spread_out(configs, groups, vectors)
}

fn spread_out(configs: Vec<Resident>, groups: u64, vectors: u64) -> Path {
    let mut fitting = configs.into_iter().filter(|r| vectors <= r.capacity());
    let Some(mut best) = fitting.next() else { return Path::Streamed };
    for larger in fitting {
        let cluster = u64::from(larger.cluster);
        let idle = groups * u64::from(best.cluster) < PROCESSORS * 3 / 4;
        if cluster > u64::from(best.cluster) && idle && vectors >= cluster * u64::from(larger.threads) {
            best = larger;
        }
    }
    Path::Resident(best)
}

/// Blocks of the streaming kernels that a large device holds at once. All parts then run side by side, and what they read
/// last is in the cache when the second pass goes through them backwards.
const BLOCKS: u64 = PROCESSORS * 6;
/// The same of those that sum for the gradients, which need more registers.
const SUM_BLOCKS: u64 = PROCESSORS * 3;

/// The parts that a range of `vectors` vectors is cut into, so that `ranges` of them fill the device, and the vectors of
/// a part.
pub fn split(ranges: u64, vectors: u64) -> (u32, u64) {
    let round = u64::from(STREAM_THREADS * STREAM_VECTORS);
    cut(BLOCKS / ranges.max(1), vectors, round, 8)
}

/// The parts that `channels` channels of `vectors` vectors are cut into if a warp takes a part.
pub fn split_channel(channels: u64, vectors: u64) -> (u32, u64) {
    let warps = SUM_BLOCKS * u64::from(STREAM_THREADS / 32);
    cut(warps / channels.max(1), vectors, u64::from(32 * STREAM_VECTORS), 8)
}

/// The same for `pixels` pixels of channels-last tensors, of which a block takes `strips` at a time.
pub fn split_pixels(ranges: u64, pixels: u64, strips: u64) -> (u32, u64) {
    cut((PROCESSORS * 4).div_ceil(ranges.max(1)), pixels, strips * 8, strips)
}

fn cut(wanted: u64, length: u64, round: u64, multiple: u64) -> (u32, u64) {
    let wanted = wanted.min(length.div_ceil(round)).max(1);
    let per = length.div_ceil(wanted).next_multiple_of(multiple.max(1)).max(1);
    (u32::try_from(length.div_ceil(per).max(1)).unwrap_or(u32::MAX), per)
}

/// Division of a number below 2^31 by a constant: `(n * magic) >> shift`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Divisor {
    pub(super) magic: u32,
    pub(super) shift: u32,
    /// Where the divisor is so large that the quotient is 0 or 1: the dividend from which on it is 1.
    pub(super) limit: u64,
}

impl Divisor {
    /// The divisor `d`, at least 1, for dividends below `2 d` or 2^31, whichever is less.
    pub(super) fn new(d: u64) -> Self {
        if d >= 1 << 29 {
            return Self { magic: 0, shift: 0, limit: d };
        }
        let log = d.max(1).next_power_of_two().trailing_zeros();
        let magic = (1u64 << (31 + log)).div_ceil(d.max(1));
        Self { magic: u32::try_from(magic).unwrap_or(u32::MAX), shift: 31 + log, limit: u64::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_divide() {
        for d in [1u64, 2, 3, 5, 7, 49, 512, 1000, 4095, 65_537, (1 << 29) - 1] {
            let by = Divisor::new(d);
            for n in [0, 1, d - 1, d, d + 1, 2 * d - 1, 7 * d, 7 * d - 1, (1 << 31) - 1, 1 << 30] {
                if n < 1 << 31 {
                    assert_eq!((n * u64::from(by.magic)) >> by.shift, n / d, "{n} / {d}");
                }
            }
        }
        assert_eq!(Divisor::new(1 << 40).limit, 1 << 40);
    }

    #[test]
    fn parts_cover_their_range() {
        for ranges in [1u64, 2, 256, 100_000] {
            for vectors in [0u64, 1, 7, 1024, 131_072, 1 << 33] {
                let (parts, per) = split(ranges, vectors);
                assert!(u64::from(parts) * per >= vectors, "{ranges} x {vectors}");
                assert!(u64::from(parts - 1) * per <= vectors, "{ranges} x {vectors}");
            }
        }
    }
}
