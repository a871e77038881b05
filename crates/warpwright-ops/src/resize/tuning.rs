//! How images are shared out: a thread for each vector of 16 bytes of channels with channels last, for each element with channels first.

use warpwright_dsl::cells::CellGridArgs;
use warpwright_ptx::DType;

use crate::batch_norm::Layout;
use crate::pool::tuning as pool;

/// Threads of a block.
pub const THREADS: u32 = pool::THREADS;

/// How the cells of a pass are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Elements of a thread's vector of channels.
    pub width: u32,
    /// Cells of a launch's chunk at most; fewer than a chunk can have only in tests.
    pub chunk: u64,
}

impl Config {
    /// Alignment of tensors of type `dtype` in bytes.
    pub const fn alignment(self, dtype: DType) -> u64 {
        self.width as u64 * dtype.bytes() as u64
    }
}

/// The layouts, best first.
pub fn configs(dtype: DType, layout: Layout, channels: usize) -> Vec<Config> {
    let vector = pool::width(dtype, layout, channels);
    let widths = if vector > 1 { vec![vector, 1] } else { vec![1] };
    widths.into_iter().map(|width| Config { width, chunk: CellGridArgs::MAX_CHUNK }).collect()
}
