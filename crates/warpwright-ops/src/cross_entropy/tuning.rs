//! Which kernel runs for which shape.

use warpwright_ptx::DType;

/// How a kernel is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Threads that share a row of a forward kernel: a warp, or the block.
    pub team: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Elements that a thread loads at once.
    pub width: u32,
}

impl Config {
    /// What the addresses of all tensors must be a multiple of; single elements are where they are.
    pub const fn alignment(self, dtype: DType) -> u64 {
        if self.width == 1 { 1 } else { self.width as u64 * dtype.bytes() as u64 }
    }
}

/// Vectors of a thread that are in flight together.
pub(super) const UNROLL: u64 = 4;
/// Threads of the block that adds up the losses.
pub(super) const REDUCE_THREADS: u32 = 1024;
/// Bytes of the widest load and store of every target.
const VECTOR_BYTES: u32 = 16;
/// Longest row that a warp takes.
const WARP_CLASSES: usize = 2048;

const fn width(dtype: DType) -> u32 {
    VECTOR_BYTES / dtype.bytes() as u32
}

const fn of_team(team: u32, width: u32) -> Config {
    Config { team, threads: if team > 128 { team } else { 128 }, width }
}

/// Layouts of forward kernels for rows of `classes` elements, best first; the last one takes any alignment.
pub const fn forward(dtype: DType, classes: usize) -> [Config; 2] {
    let team = if classes <= WARP_CLASSES { 32 } else { 512 };
    [of_team(team, width(dtype)), of_team(team, 1)]
}

/// Layouts of backward kernels.
pub const fn backward(dtype: DType) -> [Config; 2] {
    [Config { team: 256, threads: 256, width: width(dtype) }, Config { team: 256, threads: 256, width: 1 }]
}
