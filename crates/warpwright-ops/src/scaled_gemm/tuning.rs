//! Which kernel runs for which product on sm_90: the tile that takes the least time by the rates that were measured on an H200, as
//! [`gemm::tuning`](crate::gemm::tuning) does it.

use warpwright_ptx::isa::DeviceLimits;
use warpwright_ptx::{DType, Target};

use crate::gemm::tuning::persistent_layouts;
use crate::quantize8::Scaling;

pub use super::kernel::Scales;
pub use crate::gemm::tuning::PersistentConfig;

/// A configuration, and what part of the best rate it reaches.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    config: PersistentConfig,
    efficiency: f64,
}

const fn candidate(rows: u32, cols: u32, (groups, stages): (u32, u32), efficiency: f64) -> Candidate {
    let config = PersistentConfig { rows, cols, groups, stages, cluster: 1, height: 8 };
    Candidate { config, efficiency }
}

/// Where tensor cores keep the sums.
const WHOLE: [Candidate; 5] = [
    candidate(128, 256, (2, 4), 1.0),
    candidate(256, 128, (2, 4), 0.98),
    candidate(128, 128, (2, 6), 0.85),
    candidate(64, 128, (1, 8), 0.6),
    candidate(64, 64, (1, 12), 0.45),
];

/// Where threads add those of slices, each group 64 rows.
const BY_SLICES: [Candidate; 4] = [
    candidate(128, 192, (2, 4), 0.93),
    candidate(128, 128, (2, 6), 0.88),
    candidate(64, 128, (1, 8), 0.55),
    candidate(64, 64, (1, 12), 0.45),
];

fn candidates(scales: Scales) -> impl Iterator<Item = &'static Candidate> {
    let all: &'static [Candidate] = if scales.by_slices() { &BY_SLICES } else { &WHOLE };
    all.iter().filter(move |candidate| suits(scales, candidate.config))
}

/// Every configuration that a plan can have.
pub fn configs(scales: Scales) -> Vec<PersistentConfig> {
    candidates(scales).map(|candidate| candidate.config).collect()
}

/// Whether a thread has the registers for a configuration: sums twice where those of slices are added, and the scales of its columns
/// twice if each has one.
pub const fn suits(scales: Scales, config: PersistentConfig) -> bool {
    let of_columns = matches!(scales.b, Some(Scaling::BlockWise1x128));
    let most = if of_columns { 128 } else { 192 };
    !scales.by_slices() || config.is_of_slabs(most)
}

/// Configurations that are worth a look where the choice is checked or made anew, on sm_90.
pub fn sweep(scales: Scales) -> Vec<PersistentConfig> {
    persistent_layouts(&[8, 16]).filter(|config| suits(scales, *config)).collect()
}

/// Products of a multiprocessor in a microsecond at an efficiency of 1.
const RATE: f64 = 6.2e6;
/// The cost of filling the pipeline and storing a tile, in elements of the common dimension.
const TILE_COST: f64 = 384.0;
/// Bytes that a multiprocessor reads from the L2 cache in a microsecond, and a device from memory.
const CACHE_RATE: f64 = 1e5;
const MEMORY_RATE: f64 = 4.3e6;

/// The configuration for a product of `m` x `n` results of type `y`.
pub(super) fn choose(
    target: Target,
    scales: Scales,
    sizes @ [m, n, _]: [usize; 3],
    y: DType,
) -> PersistentConfig {
    let multiprocessors = DeviceLimits::of(target).multiprocessors as usize;
    let us = |c: &Candidate| {
        let (rows, cols) = (c.config.rows, c.config.cols);
        let tiles = m.div_ceil(rows as usize).saturating_mul(n.div_ceil(cols as usize));
        let waves = tiles.div_ceil(multiprocessors) as f64;
        let [m, n, k] = sizes.map(|side| side as f64);
        let (rows, cols) = (f64::from(rows), f64::from(cols));
        let multiplying = rows * cols * (k + TILE_COST) / (RATE * c.efficiency);
        let reading = (rows + cols) * k / CACHE_RATE;
        let all = ((m + n) * k + m * n * y.bytes() as f64) / MEMORY_RATE;
        (waves * (multiplying + reading)).max(all)
    };
    let fastest = candidates(scales).min_by(|a, b| us(a).total_cmp(&us(b)));
    fastest.map_or(WHOLE[0].config, |candidate| candidate.config)
}
