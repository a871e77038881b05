//! Which kernel serves which shape. Pure: a function of the descriptor alone.

use warpwright_dsl::WARP;
use warpwright_ptx::DType;

use super::Scheme;

/// Threads of a block.
pub const THREADS: u32 = 256;

/// Lanes of a warp.
const LANES: usize = WARP as usize;
/// Bytes of elements that a thread may hold in registers, as they are loaded and as they are computed with.
const MAX_BYTES_PER_THREAD: usize = 512;

/// How the fused kernel lays a group over a warp: `lanes` neighbouring lanes hold `vectors` vectors of `width`
/// elements each, vector by vector across the lanes, so that every access of a group is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuantizeTile {
    /// Elements of one vector access.
    pub width: u32,
    /// Vectors of a group that one lane holds.
    pub vectors: u32,
    /// Lanes that share a group.
    pub lanes: u32,
    /// Groups that one lane takes part in, one after the other.
    pub rounds: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Blocks that must fit a multiprocessor at once, which bounds the registers of a thread.
    pub min_blocks: Option<u32>,
}

impl QuantizeTile {
    /// Elements of a group.
    pub const fn group_size(self) -> u32 {
        self.width * self.vectors * self.lanes
    }

    /// Elements that a block takes.
    pub const fn elements_per_block(self) -> u32 {
        self.width * self.vectors * self.rounds * self.threads
    }

    /// Groups that a block takes.
    pub const fn groups_per_block(self) -> u32 {
        self.rounds * (self.threads / self.lanes)
    }
}

/// The tile for groups of `group_size`, or `None` where groups do not divide into whole vectors of a warp.
///
/// Four vectors in flight per thread hide the chain from load to store; integer codes of 16-bit elements need so few
/// instructions that more warps with two vectors each are faster. Both were measured with the register bounds below.
pub fn quantize_tile(scheme: Scheme, dtype: DType, group_size: usize) -> Option<QuantizeTile> {
    let widest = 16 / dtype.bytes();
    let width = widest.min(group_size);
    if width < 2 || !group_size.is_multiple_of(width) || !width.is_power_of_two() {
        return None;
    }
    let pieces = group_size / width;
    let most = match dtype {
        DType::F64 => MAX_BYTES_PER_THREAD / 2 / (8 * width),
        _ => MAX_BYTES_PER_THREAD / (4 * width),
    };
    let (lanes, vectors) = match pieces {
        p if p.is_power_of_two() && p <= LANES => (p, 1),
        p if p.is_multiple_of(LANES) && p / LANES <= most => (LANES, p / LANES),
        _ => return None,
    };
    let integer = matches!(scheme, Scheme::Int4Symmetric | Scheme::Int4Asymmetric);
    let (rounds, min_blocks) = match (vectors, dtype) {
        (1, DType::F16 | DType::BF16) if integer => (2, Some(8)),
        (1, DType::F64) => (2, None),
        // Five blocks would spill.
        (1, DType::F16 | DType::BF16) if scheme == Scheme::Fp4 => (4, Some(4)),
        (1, DType::F16 | DType::BF16) => (4, Some(5)),
        (1, _) => (4, Some(6)),
        _ => (1, None),
    };
    let (width, vectors, lanes) = (width as u32, vectors as u32, lanes as u32);
    Some(QuantizeTile { width, vectors, lanes, rounds, threads: THREADS, min_blocks })
}

/// Group sizes whose fused kernels are part of the catalogue: those that checkpoints use.
pub const CATALOGUED_GROUP_SIZES: [usize; 8] = [32, 64, 128, 256, 512, 1024, 2048, 4096];

/// How many lanes find the scale of a group in the kernel for any shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleTile {
    /// One thread a group.
    Thread,
    /// One warp a group.
    Warp,
}

impl ScaleTile {
    /// Groups that a block takes.
    pub const fn groups_per_block(self) -> u32 {
        match self {
            Self::Thread => THREADS,
            Self::Warp => THREADS / 32,
        }
    }
}

/// Short groups take a thread each, so that most lanes have work.
pub const fn scale_tile(group_size: usize) -> ScaleTile {
    if group_size < LANES { ScaleTile::Thread } else { ScaleTile::Warp }
}

/// How the kernel that dequantizes finds an element's group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DequantizeConfig {
    /// Elements that are written as one vector; 2 for any alignment.
    pub width: u32,
    /// Vectors of a thread, one after the other.
    pub rounds: u32,
    /// Whether the elements of a thread share a scale.
    pub one_group: bool,
    /// Whether the group size is a power of two, passed as its logarithm.
    pub power_of_two: bool,
}

impl DequantizeConfig {
    /// Elements that a block takes.
    pub const fn elements_per_block(self) -> u32 {
        self.width * self.rounds * THREADS
    }

    /// Every tensor's address must be a multiple of this.
    pub const fn alignment(self, dtype: DType) -> u64 {
        if self.one_group { self.width as u64 * dtype.bytes() as u64 } else { 1 }
    }
}

/// The configurations for groups of `group_size`, best first; the last one takes any alignment.
pub fn dequantize_configs(dtype: DType, group_size: usize) -> Vec<DequantizeConfig> {
    let width = 16 / dtype.bytes();
    let power_of_two = group_size.is_power_of_two();
    let wide = group_size.is_multiple_of(width).then_some(DequantizeConfig {
        width: width as u32,
        rounds: 2,
        one_group: true,
        power_of_two,
    });
    let any = DequantizeConfig { width: 2, rounds: 1, one_group: false, power_of_two };
    wide.into_iter().chain([any]).collect()
}
