//! How the passes of a convolution are run.

use warpwright_dsl::{Major, MmaAtom};
use warpwright_ptx::isa::DeviceLimits;
use warpwright_ptx::{DType, Target};

use super::grouped::{self, Grouped};
use super::{Pass, depthwise, gather};
use crate::gemm::Precision;
use crate::gemm::engine::TURNING_WARPS;
use crate::gemm::tuning::{self as products, Candidate, Config, Tiles};

pub use crate::gemm::tuning::{PersistentConfig, Tiled};

/// A tile of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tile {
    /// Of persistent blocks, that tensor copies bring images to.
    Persistent(PersistentConfig),
    /// Of blocks that ordinary copies do.
    Copied(Tiled),
}

impl Tile {
    /// A part of the kernel's name.
    pub fn name(&self) -> String {
        match self {
            Self::Persistent(config) => config.name(),
            Self::Copied(config) => config.name(),
        }
    }

    /// Rows and columns of a product.
    pub const fn sides(&self) -> (u32, u32) {
        match self {
            Self::Persistent(config) => (config.rows, config.cols),
            Self::Copied(config) => (config.tiles().rows, config.tiles().cols),
        }
    }

    /// Slices in shared memory.
    pub const fn stages(&self) -> u32 {
        match self {
            Self::Persistent(config) => config.stages,
            Self::Copied(config) => config.tiles().stages,
        }
    }
}

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
    /// Slices of the common dimension, of 128 bytes.
    pub(super) slices: u32,
    /// Products.
    pub(super) count: u64,
    /// Whether sums are stored and read again even if there is one part.
    pub(super) adds: bool,
    pub(super) arrival: Arrival,
}

/// How the slices of a product come to shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    AsMultiplied,
    /// Across the common dimension: warps turn them.
    Turned,
    /// The same, and elements are split: three products for one.
    Split,
}

impl Arrival {
    /// Of slices of a pass.
    pub(super) fn of(dtype: DType, precision: Precision, pass: Pass) -> Self {
        match (dtype, pass, precision) {
            (DType::F32, Pass::BackwardWeight, Precision::Full) => Self::Split,
            (DType::F32, Pass::BackwardWeight, _) => Self::Turned,
            _ => Self::AsMultiplied,
        }
    }

    /// Whether there are kernels for this tile.
    pub(super) const fn takes(self, config: &PersistentConfig) -> bool {
        !matches!(self, Self::Split) || (config.multiplies_pairs() && config.stages.is_multiple_of(2))
    }
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

/// One more for slices that are turned: of 64 filters and 64 channels of nine taps.
const OF_TURNED: (PersistentConfig, f64) = tile((64, 192, 1), 6, 0.83);

/// Tiles of products whose slices arrive so, and what part of the best rate these reach.
fn persistent(arrival: Arrival) -> impl Iterator<Item = (PersistentConfig, f64)> {
    let further = (arrival == Arrival::Turned).then_some(OF_TURNED);
    TILES.into_iter().chain(further).filter(move |(config, _)| arrival.takes(config))
}

/// Every tile of persistent blocks.
pub(super) fn persistent_configs(arrival: Arrival) -> impl Iterator<Item = PersistentConfig> {
    persistent(arrival).map(|(config, _)| config)
}

/// Every tile that a plan for elements of `dtype` with this precision can have.
pub fn tiles(dtype: DType, precision: Precision, target: Target) -> Vec<Tile> {
    let on_copies = target.sm == 90 && dtype != DType::F64;
    let arrival = Arrival::of(dtype, precision, Pass::BackwardWeight);
    let persistent = persistent_configs(arrival).filter(|_| on_copies).map(Tile::Persistent);
    let kind = Kind { dtype, precision, target, pass: Pass::Forward };
    persistent.chain(tiled_configs(&kind, PIECES[0]).into_iter().map(Tile::Copied)).collect()
}

/// Whether persistent blocks multiply such elements.
pub(super) fn multiplies_panels(dtype: DType, precision: Precision) -> bool {
    dtype.bytes() == 2 || (dtype == DType::F32 && precision == Precision::Tf32)
}

/// Least slices of a part, and most parts.
const LEAST_STEPS: u32 = 8;
const MAX_PARTS: u32 = 64;
/// Depth of a slice of 16-bit elements, whose products take as long as those of half as many of `tf32`, and the bytes of a row of one.
const DEPTH: f64 = 64.0;
const LINE: f64 = 128.0;
/// Fitted to times on one H200, with cold caches, of every tile for 17 convolutions (`conv_time sweep`): the tile that this model takes is
/// within 1 % of the best on the average, and 12 % at most.
///
/// Products of a multiprocessor in a microsecond, and bytes that it is brought; those of sums that a device stores.
const RATE: f64 = 2.8e6;
const CACHE_RATE: f64 = 1.39e5;
/// Microseconds of a slice that warps turn beside its bytes, and of a panel of each warp; bytes that shared memory of a multiprocessor moves in a
/// microsecond then. The same of elements that are split, and of those of two warpgroups.
const TURN_US: f64 = 0.08;
const ROUND_US: f64 = 0.27;
const SHARED_RATE: f64 = 2.0e5;
const SPLIT_ROUND_US: f64 = 0.45;
const SPLIT_RATE: f64 = 1.75e5;
const SPLIT_RATE_OF_TWO: f64 = 1.5e5;
/// Rows or columns of a panel that is turned, and rows of a product of tensor cores.
const PANEL: u32 = 32;
const SLAB: u32 = 64;
const STORE_RATE: f64 = 8.2e6;
/// Microseconds between the last slice of a tile and the first of the next.
const TILE_US: f64 = 0.26;
/// Microseconds of the launch that adds parts, and bytes that it reads and writes in one: sums are in the L2 cache.
const PARTS_US: f64 = 4.8;
const PARTS_RATE: f64 = 1.58e7;

/// How many microseconds a slice takes at least that warps turn: as shared memory moves its bytes, or as they turn panels of 4 KB.
fn turning_us(arrival: Arrival, config: &PersistentConfig) -> f64 {
    let (rows, cols) = (f64::from(config.rows), f64::from(config.cols));
    let slices = (rows + cols) * LINE;
    // Bytes that tensor cores read for a product.
    let read = (rows + f64::from(config.rows / SLAB) * cols) * LINE;
    let rounds = f64::from(((config.rows + config.cols) / PANEL).div_ceil(TURNING_WARPS));
    match arrival {
        Arrival::AsMultiplied => 0.0,
        Arrival::Turned => (TURN_US + (3.0 * slices + read) / SHARED_RATE).max(rounds * ROUND_US),
        Arrival::Split => {
            let rate = if config.groups > 1 { SPLIT_RATE_OF_TWO } else { SPLIT_RATE };
            (TURN_US + (4.0 * slices + 3.0 * read) / rate).max(rounds * SPLIT_ROUND_US)
        }
    }
}

/// How many microseconds a product takes.
fn us(target: Target, product: &Product, choice: &Choice, efficiency: f64) -> f64 {
    let Product { m, n, slices, count, adds, arrival } = *product;
    let (rows, cols) = (u64::from(choice.config.rows), u64::from(choice.config.cols));
    let parts = u64::from(slices.div_ceil(choice.steps).max(1));
    let tiles = m.div_ceil(rows) * n.div_ceil(cols) * count * parts;
    let waves = tiles.div_ceil(DeviceLimits::of(target).multiprocessors.into()) as f64;
    let (rows, cols, steps) = (rows as f64, cols as f64, f64::from(choice.steps));
    let products = if arrival == Arrival::Split { 3.0 } else { 1.0 };
    let multiplying = products * rows * cols * DEPTH / (RATE * efficiency);
    let multiplying = multiplying.max(turning_us(arrival, &choice.config));
    let bringing = (rows + cols) * LINE / CACHE_RATE;
    let sums = (m * n * count * parts) as f64 * 4.0;
    let adding = if parts > 1 || adds { PARTS_US + 2.0 * sums / PARTS_RATE } else { 0.0 };
    waves * (TILE_US + steps * multiplying.max(bringing)) + sums / STORE_RATE + adding
}

/// The choice that takes the least time, with the tile of `only` if it is given.
pub(super) fn choose(target: Target, product: &Product, only: Option<Tile>) -> Choice {
    let slices = product.slices;
    let most = (slices / LEAST_STEPS).clamp(1, MAX_PARTS);
    let tiles = match only {
        Some(Tile::Persistent(config)) => vec![(config, 1.0)],
        _ => persistent(product.arrival).collect(),
    };
    let first = Choice { config: tiles[0].0, steps: slices };
    let all = tiles.into_iter().flat_map(|(config, efficiency)| {
        (1..=most).map(move |parts| {
            let choice = Choice { config, steps: slices.div_ceil(parts).max(1) };
            (choice, us(target, product, &choice, efficiency))
        })
    });
    all.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(first, |(choice, _)| choice)
}

/// A tile that ordinary copies bring images to, and in how many parts blocks take the common dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TiledChoice {
    pub(super) config: Tiled,
    /// How much of the common dimension a block takes.
    pub(super) part: u32,
}

/// Tiles of 16-bit elements: the narrow ones are for groups.
const HALF: [Candidate; 4] = [
    products::tensor(Tiles::new(128, 128, 64, 3), (2, 4), 0.9),
    products::tensor(Tiles::new(64, 64, 32, 4), (2, 2), 0.6),
    products::tensor(Tiles::new(128, 32, 32, 4), (4, 1), 0.35),
    products::tensor(Tiles::new(128, 16, 32, 3), (4, 1), 0.2),
];
/// Of `f32` whose numbers are split.
const SPLIT: [Candidate; 4] = [
    products::split(Tiles::new(128, 128, 16, 3), (2, 4), 0.81),
    products::split(Tiles::new(64, 128, 16, 3), (2, 4), 0.79),
    products::split(Tiles::new(64, 32, 16, 3), (2, 1), 0.5),
    products::split(Tiles::new(32, 64, 16, 3), (1, 2), 0.5),
];
/// Of `f32` rounded to `tf32`.
const ROUNDED: [Candidate; 4] = [
    products::tensor(Tiles::new(128, 128, 32, 3), (2, 4), 0.66),
    products::tensor(Tiles::new(64, 64, 32, 3), (2, 2), 0.6),
    products::tensor(Tiles::new(64, 32, 32, 3), (2, 1), 0.4),
    products::tensor(Tiles::new(32, 64, 32, 3), (1, 2), 0.4),
];
/// Of `f32` without tensor cores for it.
const SINGLE: [Candidate; 1] = [products::simt(Tiles::new(64, 64, 16, 3), 8, 0.66)];

/// Copies of a slice of one operand that a thread has registers for: where each reads from. Where it has few sums there are more.
const MAX_COPIES: u32 = 8;
const MAX_COPIES_OF_NARROW: u32 = 16;

/// Bytes that a copy of neighbouring channels can have.
pub(super) const PIECES: [u32; 3] = [16, 8, 4];

/// The products of a pass, as far as there are tiles for them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) dtype: DType,
    pub(super) precision: Precision,
    pub(super) target: Target,
    pub(super) pass: Pass,
}

/// The tiles of products, of which there may be none, with copies of so many bytes.
fn tiled_candidates(kind: &Kind, piece: u32) -> impl Iterator<Item = (Candidate, Tiled)> + use<> {
    let Kind { dtype, precision, target, pass } = *kind;
    let has_cores = |dtype| MmaAtom::of(dtype).is_some_and(|atom| atom.exists(target));
    let all: &[Candidate] = match dtype {
        DType::F32 if precision == Precision::Tf32 => &ROUNDED,
        DType::F32 if MmaAtom::Tf32.exists(target) => &SPLIT,
        DType::F32 => &SINGLE,
        DType::F16 | DType::BF16 if has_cores(dtype) => &HALF,
        _ => &[],
    };
    let limit = DeviceLimits::of(target).shared_per_block;
    all.iter().filter_map(move |candidate| {
        let Config::Tiled(config) = candidate.config else { return None };
        let (config, tiles) = (config.with(piece), config.tiles());
        let bytes = |a, b| Config::Tiled(config).shared_bytes(dtype, a, b);
        let shared = bytes(Major::K, Major::K).max(bytes(Major::Mn, Major::Mn));
        let pieces = tiles.rows.max(tiles.cols) * tiles.slice * dtype.bytes() as u32 / piece;
        let narrow = dtype.bytes() == 2 && tiles.cols <= 32 && pass != Pass::BackwardWeight;
        let most = if narrow { MAX_COPIES_OF_NARROW } else { MAX_COPIES };
        let fits = shared <= limit && pieces <= most * config.threads();
        fits.then_some((*candidate, config))
    })
}

/// Every tile that ordinary copies of so many bytes bring images to.
pub(super) fn tiled_configs(kind: &Kind, piece: u32) -> Vec<Tiled> {
    tiled_candidates(kind, piece).map(|(_, config)| config).collect()
}

/// The one that takes the least time for `groups` products, in which blocks share the common dimension where they may.
pub(super) fn choose_tiled(
    kind: &Kind,
    [m, n, depth]: [u64; 3],
    groups: u64,
    (piece, most): (u32, u32),
    only: Option<Tile>,
) -> Option<TiledChoice> {
    let Kind { dtype, target, .. } = *kind;
    let devices = u64::from(DeviceLimits::of(target).multiprocessors);
    let choices = |(candidate, config): (Candidate, Tiled)| {
        let tiles = *config.tiles();
        let blocks = m.div_ceil(tiles.rows.into()) * n.div_ceil(tiles.cols.into()) * groups;
        // Several blocks run on a multiprocessor.
        let most_parts = (TILED_BLOCKS * devices).div_ceil(blocks.max(1)).min(depth / LEAST_PART);
        (1..=most_parts.clamp(1, most.min(MAX_PARTS).into())).filter_map(move |parts| {
            let part = depth.div_ceil(parts).max(1).next_multiple_of(tiles.slice.into());
            let parts = depth.div_ceil(part).max(1);
            let sums = (m * n * groups * parts) as f64 * 4.0;
            let adding = if parts > 1 { PARTS_US + 2.0 * sums / PARTS_RATE + sums / STORE_RATE } else { 0.0 };
            let tiles = (blocks * parts, part.min(depth));
            let us = products::tiles_us(dtype, target, &candidate, tiles) + adding;
            Some((TiledChoice { config, part: u32::try_from(part).ok()? }, us))
        })
    };
    let mut all: Vec<_> = tiled_candidates(kind, piece).flat_map(choices).collect();
    all.sort_by(|a, b| a.1.total_cmp(&b.1));
    let asked = all.iter().find(|(choice, _)| match only {
        Some(Tile::Copied(only)) => choice.config.with(only.tiles().piece) == only,
        _ => false,
    });
    asked.or_else(|| all.first()).map(|(choice, _)| *choice)
}

/// Blocks of a multiprocessor that share the common dimension of few tiles, and the least of it that is worth one.
const TILED_BLOCKS: u64 = 2;
const LEAST_PART: u64 = 256;

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
        for config in persistent_configs(Arrival::Turned) {
            let slices = (config.rows + config.cols) * LINE as u32;
            let bytes = |stages| PersistentConfig { stages, ..config }.shared_bytes(slices);
            assert!(bytes(config.stages) <= limit, "{config:?}");
            assert!(bytes(config.stages + 1) > limit || config.stages >= 8, "{config:?}");
        }
    }

    /// Of gradients of weights of 3 x 3 taps, those that took the least time on an H200.
    #[test]
    fn slices_that_are_turned_have_the_tile_that_is_fastest() {
        for (precision, channels, pixels, sides) in [
            (Precision::Tf32, 64, 64 * 56 * 56, (64, 192)),
            (Precision::Tf32, 256, 64 * 14 * 14, (128, 256)),
            (Precision::Tf32, 320, 2 * 64 * 64, (128, 256)),
            (Precision::Full, 64, 64 * 56 * 56, (64, 128)),
            (Precision::Full, 256, 64 * 14 * 14, (128, 128)),
            (Precision::Full, 320, 2 * 64 * 64, (64, 128)),
        ] {
            let arrival = Arrival::of(DType::F32, precision, Pass::BackwardWeight);
            let slices = pixels / PANEL;
            let product = Product { m: channels, n: 9 * channels, slices, count: 1, adds: false, arrival };
            let config = choose(Target::sm(90), &product, None).config;
            assert_eq!((config.rows, config.cols), sides, "{precision:?}, {channels} channels");
        }
    }
}

/// A box of results, and what of an image it meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupBox {
    /// Images, rows and columns of results.
    pub(super) results: [usize; 3],
    /// Rows and columns of pixels.
    pub(super) halo: [usize; 2],
}

impl GroupBox {
    /// Pixels.
    pub(super) const fn pixels(&self) -> u64 {
        let rows = (self.results[0] as u64).saturating_mul(self.halo[0] as u64);
        rows.saturating_mul(self.halo[1] as u64)
    }
}

/// Times in a box of groups by that of a pixel of its halo: of the products of a tap, and of all else.
const TAP_OF_BOX: u64 = 10;
const ELSE_OF_BOX: u64 = 100;

/// The box for results of images, rows and columns of which each has so many taps along both, `apart` and `dilation` pixels from one to the
/// next. A block has `shared` bytes.
pub(super) fn group_box(
    kernel: &Grouped,
    results: [usize; 3],
    [rows, cols]: [(usize, usize, usize); 2],
    shared: u32,
) -> Option<GroupBox> {
    let most = |extent: usize| extent.min(grouped::MAX_EXTENT as usize - 1);
    let met = |results: usize, (taps, apart, dilation): (usize, usize, usize)| {
        ((results - 1) * apart).saturating_add((taps - 1).saturating_mul(dilation)).saturating_add(1)
    };
    let room = grouped::RESULTS as usize;
    let boxes = (1..=most(results[2]).min(room)).map(|width| {
        let height = (room / width).min(most(results[1]));
        // As many rows as there are in every box of a column.
        let height = results[1].div_ceil(results[1].div_ceil(height));
        let whole = (height, width) == (results[1], results[2]);
        let images = if whole { (room / (height * width)).min(most(results[0])) } else { 1 };
        GroupBox { results: [images, height, width], halo: [met(height, rows), met(width, cols)] }
    });
    let time = |all: &GroupBox| {
        let boxes = results.iter().zip(&all.results).map(|(extent, of_box)| extent.div_ceil(*of_box) as u64);
        let of_box = all.pixels() + u64::from(kernel.taps) * TAP_OF_BOX + ELSE_OF_BOX;
        boxes.fold(of_box, u64::saturating_mul)
    };
    let room = u64::from(shared.saturating_sub(grouped::STATIC));
    boxes.filter(|all| kernel.bytes(all.pixels()).1 <= room).min_by_key(time)
}

/// Blocks of a slice of channels that go over `boxes`, where there are so many slices and a block has `bytes` of shared memory.
pub(super) fn group_blocks(
    target: Target,
    kernel: &Grouped,
    boxes: usize,
    slices: usize,
    bytes: u64,
) -> usize {
    let limits = DeviceLimits::of(target);
    let at_once = u64::from(limits.shared_per_multiprocessor) / (bytes + u64::from(grouped::STATIC));
    let at_once = at_once.clamp(1, kernel.blocks().into()) as usize;
    let most = (limits.multiprocessors as usize * at_once / slices).max(1);
    // Each as many boxes as the others, or one less.
    boxes.div_ceil(boxes.div_ceil(most))
}
