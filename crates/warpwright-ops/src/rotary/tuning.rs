//! Which kernel runs for which shape.

use warpwright_dsl::VECTOR_BYTES;
use warpwright_ptx::isa::DeviceLimits;
use warpwright_ptx::{DType, Target};

use super::{Pairing, RotaryDesc};
use crate::plan::Layout;

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Heads whose elements a thread has in flight together.
pub const UNROLL: u32 = 4;
/// Heads that a thread takes where there is enough work: so often are cosines and sines used that it has loaded.
const MOST_HEADS: usize = 8;
/// Threads of a multiprocessor.
const RESIDENT: usize = 2048;

/// How a kernel is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Elements that a thread loads at once; it has two such vectors of each head.
    pub width: u32,
    /// Which elements are rotated together.
    pub pairing: Pairing,
    /// Whether rows of the tables have each number twice, side by side.
    pub repeated: bool,
}

impl Config {
    /// Alignment of all tensors in bytes; single elements are where they are.
    pub const fn alignment(self, dtype: DType) -> u64 {
        if self.width == 1 { 1 } else { self.width as u64 * dtype.bytes() as u64 }
    }

    /// Threads of a head: those that rotate, and those that copy the rest.
    pub fn chunks(self, rotary_dim: usize, head_dim: usize) -> [usize; 2] {
        let both = 2 * self.width as usize;
        [rotary_dim / both, (head_dim - rotary_dim).div_ceil(both)]
    }

    /// Whether heads and their halves consist of whole vectors.
    fn fits(self, [rotary_dim, head_dim]: [usize; 2], layouts: &[Layout]) -> bool {
        let width = self.width as usize;
        let rest = head_dim - rotary_dim;
        let whole = (rotary_dim / 2).is_multiple_of(width) && rest.is_multiple_of(width);
        let of_vectors = |layout: &Layout| {
            let mut axes = layout.shape[..3].iter().zip(&layout.strides);
            axes.all(|(extent, stride)| *extent < 2 || stride % i64::from(self.width) == 0)
        };
        whole && layouts.iter().all(of_vectors)
    }
}

/// Every layout for a pairing.
pub fn all(dtype: DType) -> Vec<Config> {
    let widest = VECTOR_BYTES as usize / dtype.bytes();
    let widths = [widest, widest / 2, 1].map(|width| width as u32);
    let widths = widths.into_iter().enumerate().filter(|(i, width)| *i == 2 || *width > 1);
    let of = |(_, width)| {
        let kinds = [(Pairing::Half, false), (Pairing::Interleaved, false), (Pairing::Interleaved, true)];
        kinds.map(|(pairing, repeated)| Config { width, pairing, repeated })
    };
    widths.flat_map(of).collect()
}

/// Layouts of a descriptor whose tensors lie like `layouts`, best first; the last one takes any alignment.
pub fn configs(desc: &RotaryDesc, layouts: &[Layout]) -> Vec<Config> {
    let sizes = [desc.rotary_dim, desc.q.shape[3]];
    configs_for(desc.dtype, desc.pairing, desc.tables.repeated, sizes, layouts)
}

/// Layouts for heads of which the first `rotary_dim` of `head_dim` elements are rotated, with tables of whole rows or repeated ones.
pub(crate) fn configs_for(
    dtype: DType,
    pairing: Pairing,
    repeated: bool,
    sizes: [usize; 2],
    layouts: &[Layout],
) -> Vec<Config> {
    // Rows of two halves begin with the numbers, like those without the second half.
    let repeated = repeated && pairing == Pairing::Interleaved;
    let kind = |config: &Config| config.pairing == pairing && config.repeated == repeated;
    all(dtype).into_iter().filter(|config| kind(config) && config.fits(sizes, layouts)).collect()
}

/// Heads of a thread, when one head of all tokens takes `threads` threads: one round if that leaves the device short of threads.
pub fn heads_per_thread<const N: usize>(threads: usize, heads: [usize; N], target: Target) -> usize {
    let busy = DeviceLimits::of(target).multiprocessors as usize * RESIDENT;
    let groups: usize = heads.into_iter().map(|heads| heads.div_ceil(MOST_HEADS)).sum();
    if threads.saturating_mul(groups) >= busy { MOST_HEADS } else { UNROLL as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_have_16_bytes_and_single_elements_come_last() {
        for dtype in DType::FLOATS {
            let all = all(dtype);
            assert_eq!(all[0].alignment(dtype), 16);
            assert_eq!(all.last().map(|config| (config.width, config.alignment(dtype))), Some((1, 1)));
        }
        assert_eq!(all(DType::F64).len(), 6);
        assert_eq!(all(DType::BF16).len(), 9);
    }

    #[test]
    fn many_tokens_take_more_heads_to_a_thread() {
        let target = Target::sm(90);
        assert_eq!(heads_per_thread(8 * 16384, [32, 8], target), 8);
        assert_eq!(heads_per_thread(8 * 64, [32, 8], target), 4);
    }
}
