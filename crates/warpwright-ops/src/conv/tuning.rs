//! How the passes of a convolution are run.

use warpwright_ptx::Target;
use warpwright_ptx::isa::DeviceLimits;

use super::{depthwise, gather};

pub use crate::gemm::tuning::PersistentConfig;

/// A tile of persistent blocks, and in how many parts they take the common dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// The tile.
    pub config: PersistentConfig,
    /// Slices of a part.
    pub steps: u32,
}

/// The product that a pass is on tensor cores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) m: u64,
    pub(super) n: u64,
    /// Slices of the common dimension, of 64.
    pub(super) slices: u32,
    /// Products.
    pub(super) count: u64,
    /// Whether sums are stored and read again even if there is one part.
    pub(super) adds: bool,
}

/// A tile of rows and columns, as many stages as there is shared memory for, and what part of the best rate its products reach.
const fn tile(
    (rows, cols, groups): (u32, u32, u32),
    stages: u32,
    efficiency: f64,
) -> (PersistentConfig, f64) {
    (PersistentConfig { rows, cols, groups, stages, cluster: 1, height: 8 }, efficiency)
}

const TILES: [(PersistentConfig, f64); 8] = [
    tile((128, 256, 2), 4, 0.98),
    tile((256, 128, 2), 4, 0.97),
    tile((128, 192, 2), 4, 0.93),
    tile((128, 128, 2), 6, 0.93),
    tile((256, 64, 2), 4, 0.68),
    tile((128, 64, 2), 8, 0.69),
    tile((64, 128, 1), 8, 0.83),
    tile((64, 64, 1), 12, 0.61),
];

/// Every tile that a plan can have.
pub fn configs() -> Vec<PersistentConfig> {
    TILES.iter().map(|(config, _)| *config).collect()
}

/// Least slices of a part, and most parts.
const LEAST_STEPS: u32 = 8;
const MAX_PARTS: u32 = 64;
/// Depth of a slice of 16-bit elements, and the bytes of a row of one.
const DEPTH: f64 = 64.0;
const LINE: f64 = 128.0;
/// Fitted to times on one H200, with cold caches, of every tile for 17 convolutions (`conv_time sweep`): the tile that this model takes is
/// within 1 % of the best on the average, and 12 % at most.
///
/// Products of a multiprocessor in a microsecond, and bytes that it is brought; those of sums that a device stores.
const RATE: f64 = 2.8e6;
const CACHE_RATE: f64 = 1.39e5;
const STORE_RATE: f64 = 8.2e6;
/// Microseconds between the last slice of a tile and the first of the next.
const TILE_US: f64 = 0.26;
/// Microseconds of the launch that adds parts, and bytes that it reads and writes in one: sums are in the L2 cache.
const PARTS_US: f64 = 4.8;
const PARTS_RATE: f64 = 1.58e7;

/// How many microseconds a product takes.
fn us(target: Target, product: &Product, choice: &Choice, efficiency: f64) -> f64 {
    let Product { m, n, slices, count, adds } = *product;
    let (rows, cols) = (u64::from(choice.config.rows), u64::from(choice.config.cols));
    let parts = u64::from(slices.div_ceil(choice.steps).max(1));
    let tiles = m.div_ceil(rows) * n.div_ceil(cols) * count * parts;
    let waves = tiles.div_ceil(DeviceLimits::of(target).multiprocessors.into()) as f64;
    let (rows, cols, steps) = (rows as f64, cols as f64, f64::from(choice.steps));
    let multiplying = rows * cols * DEPTH / (RATE * efficiency);
    let bringing = (rows + cols) * LINE / CACHE_RATE;
    let sums = (m * n * count * parts) as f64 * 4.0;
    let adding = if parts > 1 || adds { PARTS_US + 2.0 * sums / PARTS_RATE } else { 0.0 };
    waves * (TILE_US + steps * multiplying.max(bringing)) + sums / STORE_RATE + adding
}

/// The choice that takes the least time, with the tile of `only` if it is given.
pub(super) fn choose(target: Target, product: &Product, only: Option<PersistentConfig>) -> Choice {
    let slices = product.slices;
    let most = (slices / LEAST_STEPS).clamp(1, MAX_PARTS);
    let tiles: Vec<_> = only.map_or_else(|| TILES.to_vec(), |config| vec![(config, 1.0)]);
    let first = Choice { config: tiles[0].0, steps: slices };
    let all = tiles.into_iter().flat_map(|(config, efficiency)| {
        (1..=most).map(move |parts| {
            let choice = Choice { config, steps: slices.div_ceil(parts).max(1) };
            (choice, us(target, product, &choice, efficiency))
        })
    });
    all.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(first, |(choice, _)| choice)
}

/// Blocks of a multiprocessor that the ordinary units are kept busy by.
const BUSY_BLOCKS: u64 = 4;
/// Least of the common dimension that is worth a block of its own.
const LEAST_DEPTH: u64 = 512;

/// How much of the common dimension of the gradient of a weight a block takes on the ordinary units, where there are `tiles`.
pub(super) fn gather_part(target: Target, tiles: u64, depth: u64) -> u32 {
    let blocks = u64::from(DeviceLimits::of(target).multiprocessors) * BUSY_BLOCKS;
    let parts = (blocks / tiles.max(1)).min(depth / LEAST_DEPTH).clamp(1, u64::from(MAX_PARTS));
    let part = depth.div_ceil(parts).max(1).next_multiple_of(u64::from(gather::SLICE));
    u32::try_from(part).unwrap_or(u32::MAX)
}

/// Threads of a multiprocessor that go down strips of an image, and rows at least: the taps of a thread are loaded once.
const BUSY_THREADS: usize = 1536;
const LEAST_ROWS: usize = 8;

/// Rows of a part of an image that has `columns` strips and vectors of channels.
pub(super) fn depthwise_rows(target: Target, columns: usize, rows: usize) -> usize {
    let threads = DeviceLimits::of(target).multiprocessors as usize * BUSY_THREADS;
    let parts = threads.div_ceil(columns.max(1)).clamp(1, rows.div_ceil(LEAST_ROWS).max(1));
    rows.div_ceil(parts).max(1)
}

/// Blocks that share `strips` of the gradient of a depthwise weight, of which `across` have the channels.
pub(super) fn depthwise_blocks(target: Target, across: u32, strips: usize) -> u32 {
    let blocks = DeviceLimits::of(target).multiprocessors * BUSY_BLOCKS as u32 / across.max(1);
    let teams = strips.div_ceil((depthwise::THREADS / depthwise::LANES) as usize);
    u32::try_from(teams).unwrap_or(u32::MAX).clamp(1, blocks.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_have_as_many_stages_as_there_is_shared_memory_for() {
        let limit = DeviceLimits::of(Target::sm(90)).shared_per_block;
        for config in configs() {
            let slices = (config.rows + config.cols) * LINE as u32;
            let bytes = |stages| PersistentConfig { stages, ..config }.shared_bytes(slices);
            assert!(bytes(config.stages) <= limit, "{config:?}");
            assert!(bytes(config.stages + 1) > limit || config.stages >= 8, "{config:?}");
        }
    }
}
