//! Which kernel runs for which product.
//!
//! A tile takes the time of its products at the rate that its shape reaches, of filling the pipeline and storing the sums, and of
//! its bytes at the rate of the L2 cache (all of which overlap in part: the rates allow for it); tiles run in waves over the
//! multiprocessors, and no faster than memory is read. The configuration that takes the least time is chosen. Where there are
//! fewer tiles than multiprocessors, several blocks share the common dimension of a tile.

mod config;
mod sharing;

use warpwright_dsl::{Major, MmaAtom, PanelTile};
use warpwright_ptx::isa::DeviceLimits;
use warpwright_ptx::{DType, Target};

use super::{MAX_BOX_STRIDE, MAX_LAYERS, Precision};

use config::PIECE;
pub use config::{
    Config, PersistentConfig, SimtConfig, SplitConfig, TensorConfig, Tiled, Tiles, WarpgroupConfig,
};
pub(super) use sharing::Sharing;

/// A configuration, and what part of the best rate it reaches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) config: Config,
    efficiency: f64,
}

pub(crate) const fn tensor(tiles: Tiles, warps: (u32, u32), efficiency: f64) -> Candidate {
    let config = TensorConfig { tiles, warps_down: warps.0, warps_across: warps.1 };
    Candidate { config: Config::Tiled(Tiled::Tensor(config)), efficiency }
}

pub(crate) const fn split(tiles: Tiles, warps: (u32, u32), efficiency: f64) -> Candidate {
    let config = SplitConfig { tiles, warps_down: warps.0, warps_across: warps.1 };
    Candidate { config: Config::Tiled(Tiled::Split(config)), efficiency }
}

pub(crate) const fn simt(tiles: Tiles, across: u32, efficiency: f64) -> Candidate {
    Candidate { config: Config::Tiled(Tiled::Simt(SimtConfig { tiles, across })), efficiency }
}

const fn layout((rows, cols, groups): (u32, u32, u32), stages: u32) -> PersistentConfig {
    PersistentConfig { rows, cols, groups, stages, cluster: 1, height: 8 }
}

const fn persistent(config: PersistentConfig, efficiency: f64) -> Candidate {
    Candidate { config: Config::Persistent(config), efficiency }
}

const fn shared(config: PersistentConfig, efficiency: f64) -> Candidate {
    Candidate { config: Config::Shared(config), efficiency }
}

const fn f16x3(config: PersistentConfig, efficiency: f64) -> Candidate {
    Candidate { config: Config::F16x3(config), efficiency }
}

/// Persistent configurations that are worth a look where the choice among [`configs`] is checked or made anew, on sm_90.
pub fn sweep(dtype: DType) -> Vec<Config> {
    let layouts = persistent_layouts(&[4, 8, 16]);
    match dtype {
        DType::F64 => Vec::new(),
        DType::F32 => {
            let pairs = |layout: PersistentConfig| layout.multiplies_pairs().then_some(Config::F16x3(layout));
            layouts.flat_map(|layout| [Some(Config::Persistent(layout)), pairs(layout)]).flatten().collect()
        }
        _ => layouts.map(Config::Persistent).collect(),
    }
}

/// Persistent layouts with as many stages as sm_90 has shared memory for, in orders of these heights. Slices of elements of any size are 128
/// bytes deep.
pub(crate) fn persistent_layouts(heights: &[u32]) -> impl Iterator<Item = PersistentConfig> {
    let limit = DeviceLimits::of(Target::sm(90)).shared_per_block;
    let tiles = [
        (128, 256),
        (256, 128),
        (128, 192),
        (128, 128),
        (128, 64),
        (256, 64),
        (64, 64),
        (64, 128),
        (64, 256),
    ];
    let layouts = tiles.into_iter().flat_map(|tile| [1, 2].map(|cluster| (tile, cluster)));
    layouts.flat_map(move |((rows, cols), cluster)| {
        let groups = (rows / 64).min(2);
        let config = |stages, height| PersistentConfig { rows, cols, groups, stages, cluster, height };
        let fits = |stages: &u32| config(*stages, 8).shared_bytes((rows + cols) * 128) <= limit;
        let stages = (2..=12).rev().find(fits);
        let all =
            stages.into_iter().flat_map(|stages| heights.iter().map(move |height| config(stages, *height)));
        all.collect::<Vec<_>>()
    })
}

const fn warpgroup(rows: u32, cols: u32, stages: u32, efficiency: f64) -> Candidate {
    Candidate { config: Config::Warpgroup(WarpgroupConfig { rows, cols, stages }), efficiency }
}

/// Beside those that follow, with tensor copies and `wgmma`.
const WARPGROUP: [Candidate; 4] = [
    warpgroup(256, 128, 4, 1.58),
    warpgroup(128, 128, 6, 1.44),
    warpgroup(128, 64, 8, 1.1),
    warpgroup(64, 64, 12, 0.75),
];
const LARGEST: PersistentConfig = layout((128, 256, 2), 4);
/// The same, for whole products.
const PERSISTENT: [Candidate; 5] = [
    persistent(LARGEST, 1.78),
    persistent(layout((256, 128, 2), 4), 1.76),
    persistent(layout((128, 128, 2), 6), 1.7),
    persistent(layout((64, 128, 1), 8), 1.25),
    persistent(layout((64, 64, 1), 12), 0.9),
];
/// Of blocks that share the slices of all tiles.
const SHARED: [Candidate; 2] = [shared(LARGEST, 1.78), shared(layout((256, 128, 2), 4), 1.76)];
/// Those with teams are for few rows; the smallest without is the last.
const HALF: [Candidate; 5] = [
    tensor(Tiles::new(128, 256, 64, 3), (2, 4), 1.0),
    tensor(Tiles::new(128, 128, 64, 3), (2, 2), 0.97),
    tensor(Tiles::new(16, 32, 64, 4).of_teams(4), (1, 1), 0.25),
    tensor(Tiles::new(64, 32, 64, 4).of_teams(2), (2, 1), 0.6),
    tensor(Tiles::new(64, 64, 64, 3), (2, 2), 0.7),
];
/// The same beside persistent blocks of 64 rows, which take less time than two teams wherever tensor maps describe the operands.
const HALF_BESIDE: [Candidate; 5] =
    [HALF[0], HALF[1], HALF[2], tensor(Tiles::new(64, 32, 64, 4).of_teams(2), (2, 1), 0.3), HALF[4]];
const DOUBLE: [Candidate; 1] = [tensor(Tiles::new(64, 64, 16, 3), (2, 2), 0.5)];
/// The same with products 8 deep.
const DEEP_DOUBLE: [Candidate; 6] = [
    tensor(Tiles::new(128, 128, 16, 3), (4, 2), 0.94),
    tensor(Tiles::new(128, 64, 16, 4), (4, 2), 0.87),
    tensor(Tiles::new(64, 128, 16, 4), (2, 2), 0.86),
    tensor(Tiles::new(16, 32, 16, 4).of_teams(4), (1, 1), 0.5),
    tensor(Tiles::new(64, 32, 16, 4).of_teams(2), (2, 1), 0.7),
    tensor(Tiles::new(64, 64, 16, 3), (2, 2), 0.84),
];
const SINGLE: [Candidate; 3] = [
    simt(Tiles::new(128, 128, 8, 2), 16, 0.74),
    simt(Tiles::new(32, 64, 16, 4).of_teams(4), 8, 0.62),
    simt(Tiles::new(64, 64, 16, 3), 8, 0.66),
];
/// Of `f32` rounded to `tf32`.
const ROUNDED: [Candidate; 3] = [
    tensor(Tiles::new(128, 256, 32, 3), (2, 4), 0.66),
    tensor(Tiles::new(64, 32, 32, 4).of_teams(2), (2, 1), 0.4),
    tensor(Tiles::new(64, 64, 32, 3), (2, 2), 0.7),
];
/// Of operands that are split; with those of `SINGLE` behind them.
const SPLIT: [Candidate; 2] =
    [split(Tiles::new(128, 128, 16, 3), (2, 4), 0.81), split(Tiles::new(64, 128, 16, 3), (2, 4), 0.79)];
/// Of pairs, where threads have room for the sums of 64 x 128 three times.
const F16X3: [Candidate; 4] = [
    f16x3(layout((128, 128, 2), 6), 2.24),
    f16x3(layout((128, 64, 2), 8), 1.77),
    f16x3(layout((64, 128, 1), 8), 1.5),
    f16x3(layout((64, 64, 1), 12), 0.96),
];
const SMALL: [Candidate; 1] = [simt(Tiles::new(64, 64, 16, 2), 8, 1.0)];

/// The configurations for elements of `dtype` on `target`.
fn candidates(dtype: DType, precision: Precision, target: Target) -> impl Iterator<Item = Candidate> {
    let tensor_cores = dtype != DType::F32 && MmaAtom::of(dtype).is_some_and(|atom| atom.exists(target));
    let splits: &[Candidate] = match (dtype, precision) {
        (DType::F32, Precision::Full) if MmaAtom::Tf32.exists(target) => &SPLIT,
        _ => &[],
    };
    let groups = tensor_cores && dtype != DType::F64 && target.sm == 90;
    let warpgroups: &[Candidate] = if groups { &WARPGROUP } else { &[] };
    let rounds = dtype == DType::F32 && precision == Precision::Tf32 && target.sm == 90;
    let persistent: &[Candidate] = if groups || rounds { &PERSISTENT } else { &[] };
    let shared: &[Candidate] = if groups { &SHARED } else { &[] };
    let all: &[Candidate] = match dtype {
        DType::F64 if MmaAtom::F64Deep.exists(target) => &DEEP_DOUBLE,
        DType::F64 if tensor_cores => &DOUBLE,
        DType::F32 if precision == Precision::Tf32 && !MmaAtom::Tf32.exists(target) => &[],
        DType::F32 if precision == Precision::Tf32 => &ROUNDED,
        DType::F32 => &SINGLE,
        _ if groups => &HALF_BESIDE,
        _ if tensor_cores => &HALF,
        _ => &SMALL,
    };
    let pairs: &[Candidate] = match (dtype, precision) {
        (DType::F32, Precision::Full) if target.sm == 90 => &F16X3,
        _ => &[],
    };
    let limit = DeviceLimits::of(target).shared_per_block;
    let fits = move |c: &&Candidate| {
        let bytes = |a, b| c.config.shared_bytes(dtype, a, b);
        bytes(Major::K, Major::K).max(bytes(Major::Mn, Major::Mn)) <= limit
    };
    persistent
        .iter()
        .chain(shared)
        .chain(pairs)
        .chain(warpgroups)
        .chain(splits)
        .chain(all)
        .filter(fits)
        .copied()
}

/// Multiprocessors of the largest device of an architecture.
const fn multiprocessors(target: Target) -> u64 {
    DeviceLimits::of(target).multiprocessors as u64
}

/// A product, as far as the choice depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows of the result.
    pub m: u64,
    /// Columns of the result.
    pub n: u64,
    /// Common dimension.
    pub k: u64,
    /// Matrices.
    pub batch: u64,
}

/// A configuration, and how the common dimension is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// The kernel.
    pub config: Config,
    /// How much of the common dimension a block takes; all of it if it is not less.
    pub part: u64,
}

impl Choice {
    /// Blocks that share a tile.
    pub const fn parts(&self, k: u64) -> u64 {
        let parts = k.div_ceil(self.part);
        if parts > 1 { parts } else { 1 }
    }
}

/// Most blocks that share a tile.
const MAX_PARTS: u64 = 32;
/// Least of the common dimension that is worth a block of its own.
const LEAST_PART: u64 = 256;
/// The cost of filling the pipeline and storing a tile, in elements of the common dimension.
const TILE_COST: f64 = 192.0;
/// Microseconds of the launch that adds the parts.
const PARTS_US: f64 = 4.0;
/// Microseconds of a launch that splits an operand, beside what it reads and writes.
const SPLIT_US: f64 = 3.0;
/// Bytes of an element that is split: it is read, at times twice, and its pair is written.
const SPLIT_BYTES: f64 = 10.0;
/// Slices that a team must have: with fewer there is nothing that a single one could not do as fast.
const LEAST_SLICES: f64 = 2.0;
/// Threads that keep a multiprocessor busy: a warp for each of its four schedulers.
const BUSY_THREADS: f64 = 128.0;
/// The same in double precision, whose operands come one by one: another warp multiplies meanwhile.
const BUSY_THREADS_DOUBLE: f64 = 256.0;
/// Microseconds of the launch that adds what blocks left which share all tiles, and bytes of their sums that are stored and read in one.
const SHARED_US: f64 = 3.0;
const STORE_RATE: f64 = 8.2e6;
const ADD_RATE: f64 = 6e6;
/// Part of the bytes of tiles of one warpgroup, whose slices are eight or more ahead, that products do not hide.
const AHEAD: f64 = 0.6;
/// Microseconds of the model in one that is measured, of products of large tiles.
const SCALE: f64 = 1.6;
/// The same of the launch that adds parts of single tiles, which takes twice what its bytes do.
const SPLIT_SCALE: f64 = 3.0;
/// The same of launches that add up rows, which take half as long again as their bytes do.
const SUMS_SCALE: f64 = 2.4;
/// The same of blocks that share tiles, beside whole ones: fewer of them read the same slices at the same time.
const SHARED_SCALE: f64 = 1.2;
/// Bytes of slices that blocks read at times of their own, in a microsecond, beside what all bytes take.
const APART_RATE: f64 = 4.6e5;
/// Bytes of an operand that stay in the L2 cache while blocks go through it several times.
const KEPT_BYTES: f64 = 2.4e7;
/// Bytes that a multiprocessor reads from the L2 cache in a microsecond, and a device from memory.
const CACHE_RATE: f64 = 1e5;
const MEMORY_RATE: f64 = 4.3e6;

/// Products of a multiprocessor in a microsecond at an efficiency of 1.
fn rate(dtype: DType, config: &Config) -> f64 {
    match (dtype, config) {
        (_, Config::Tiled(Tiled::Simt(_))) | (DType::F64, _) => 0.246e6,
        (_, Config::Tiled(Tiled::Split(_))) => 0.372e6,
        (_, Config::F16x3(_)) => 2.23e6 / 3.0,
        (DType::F32, _) => 1.11e6,
        _ => 2.23e6,
    }
}

/// How the operands lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Only elements are aligned.
    Elements,
    /// Every row and matrix begins at a multiple of 16 bytes.
    Wide,
    /// So they do, and tensor maps can describe them.
    TensorMap,
}

/// The configuration for a product.
pub fn choose(
    dtype: DType,
    precision: Precision,
    target: Target,
    shape: Shape,
    access: Access,
) -> Option<Choice> {
    choose_for((dtype, precision), target, shape, access, Sums::Whole, |_| 0.0)
}

/// Where the sums of a kernel go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sums {
    /// They become the result, in the same launch or in a second one that adds those of blocks that share a tile.
    Whole,
    /// They are left as they are, those of at most so many blocks that share a tile one behind the other.
    Parts(u64),
}

/// The same for sums that go elsewhere, where so many microseconds are added behind a kernel.
pub(super) fn choose_for(
    (dtype, precision): (DType, Precision),
    target: Target,
    shape: Shape,
    access: Access,
    sums: Sums,
    behind: impl Fn(Config) -> f64,
) -> Option<Choice> {
    let most = if let Sums::Parts(most) = sums { most } else { MAX_PARTS };
    let wide = access != Access::Elements;
    let choice = |c: Candidate| {
        let choice = share_within(target, shape, c.config, most);
        let cost = cost(dtype, target, shape, &c, choice) + behind(c.config);
        let config = choice.config.with(if wide { PIECE } else { dtype.bytes() as u32 });
        (Choice { config, ..choice }, cost)
    };
    let possible = |c: &Candidate| {
        (access == Access::TensorMap || !c.config.takes_boxes())
            && (sums == Sums::Whole || c.config.splits())
            && (Sharing::new(target, shape, c.config).is_some() || !matches!(c.config, Config::Shared(_)))
            && (has_planes(shape) || !matches!(c.config, Config::F16x3(_)))
            && c.config.takes_depth(shape.k)
    };
    let all = candidates(dtype, precision, target).filter(possible).map(choice);
    // Copies of single elements are what limits a product without alignment, whatever the tile: a small one is there.
    if wide {
        all.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(choice, _)| choice)
    } else {
        all.last().map(|(choice, _)| choice)
    }
}

/// Every configuration of blocks that share all tiles.
pub(super) fn shared_configs() -> impl Iterator<Item = PersistentConfig> {
    SHARED.iter().filter_map(|c| if let Config::Shared(config) = c.config { Some(config) } else { None })
}

/// That of blocks that share all tiles, where they can.
pub(super) fn choose_shared(dtype: DType, target: Target, shape: Shape) -> Option<PersistentConfig> {
    let all = SHARED.iter().filter_map(|c| {
        let Config::Shared(config) = c.config else { return None };
        let sharing = Sharing::new(target, shape, c.config)?;
        Some((config, shared_us(dtype, target, shape, c, &sharing)))
    });
    all.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(config, _)| config)
}

/// Every configuration of persistent blocks of 16-bit elements.
pub(crate) fn persistent_configs() -> impl Iterator<Item = PersistentConfig> {
    PERSISTENT.iter().filter_map(|candidate| candidate.config.persistent())
}

/// The one that takes the least time for products whose shape depends on it.
pub(crate) fn choose_persistent(
    dtype: DType,
    target: Target,
    shape: impl Fn(&PersistentConfig) -> Shape,
) -> PersistentConfig {
    let fastest = persistent_us(dtype, target, shape).min_by(|a, b| a.1.total_cmp(&b.1));
    fastest.map_or(LARGEST, |(config, _)| config)
}

/// The configurations, and how many microseconds products take whose shape depends on them.
pub(crate) fn persistent_us(
    dtype: DType,
    target: Target,
    shape: impl Fn(&PersistentConfig) -> Shape,
) -> impl Iterator<Item = (PersistentConfig, f64)> {
    PERSISTENT.iter().filter_map(move |c| {
        let config = c.config.persistent()?;
        let shape = shape(&config);
        Some((config, cost(dtype, target, shape, c, Choice { config: c.config, part: shape.k.max(1) })))
    })
}

/// How a kernel shares a product.
pub(super) fn share(target: Target, shape: Shape, config: Config) -> Choice {
    share_within(target, shape, config, MAX_PARTS)
}

fn share_within(target: Target, shape: Shape, config: Config, most: u64) -> Choice {
    let parts = (multiprocessors(target) / blocks(shape, config)).min(shape.k / LEAST_PART);
    let parts = if config.splits() { parts.clamp(1, most.clamp(1, MAX_PARTS)) } else { 1 };
    let part = shape.k.div_ceil(parts).max(1).next_multiple_of(u64::from(config.slice()));
    Choice { config, part }
}

/// Whether both operands can be split into planes: a grid has a layer for each matrix, and tensor maps reach from one plane to the next.
pub(super) fn has_planes(Shape { m, n, k, batch }: Shape) -> bool {
    let side = |len: u64| len.next_multiple_of(PanelTile::WIDTH.into());
    let plane = side(m.max(n)).saturating_mul(side(k)).saturating_mul(DType::F16.bytes() as u64);
    batch <= MAX_LAYERS as u64 && plane < MAX_BOX_STRIDE as u64
}

/// Tiles of a product.
fn blocks(Shape { m, n, batch, .. }: Shape, config: Config) -> u64 {
    let (rows, cols) = config.extent();
    let blocks = m.div_ceil(u64::from(rows)).saturating_mul(n.div_ceil(u64::from(cols)));
    blocks.saturating_mul(batch).max(1)
}

/// Bytes that a kernel which packs operands copies in a microsecond: elements are loaded one by one.
const PACK_RATE: f64 = 1.6e6;
/// Microseconds of a product of single elements up to which packing is not worth its launches and workspace, whatever the model says.
pub(super) const LEAST_NARROW_US: f64 = 20.0;
/// Elements that a multiprocessor fetches in a microsecond one by one, whatever it does with them.
const ELEMENT_RATE: f64 = 8e3;

/// Microseconds of packing so many bytes, with the launch.
pub(super) fn pack_us(bytes: u64) -> f64 {
    PARTS_US + bytes as f64 / PACK_RATE
}

/// Microseconds of a pass over so many bytes, with the launch.
pub(super) fn pass_us(bytes: u64) -> f64 {
    PARTS_US + bytes as f64 / MEMORY_RATE
}

/// Microseconds of the launches that add up the rows of so many bytes.
pub(super) fn sums_us(bytes: u64) -> f64 {
    SUMS_SCALE * pass_us(bytes)
}

/// Microseconds of a product as [`choose`] says.
pub(super) fn us(
    (dtype, precision): (DType, Precision),
    target: Target,
    shape: Shape,
    choice: Choice,
) -> f64 {
    let candidate = candidates(dtype, precision, target).find(|c| c.config.with(PIECE) == choice.config);
    candidate.map_or(f64::INFINITY, |c| cost(dtype, target, shape, &c, choice))
}

/// Microseconds of a product whose kernel copies single elements: at least those that its tiles fetch.
pub(super) fn narrow_us(types: (DType, Precision), target: Target, shape: Shape, choice: Choice) -> f64 {
    let (rows, cols) = choice.config.extent();
    let parts = choice.parts(shape.k);
    let fetched = f64::from(rows + cols) * choice.part.min(shape.k) as f64;
    let waves = blocks(shape, choice.config).saturating_mul(parts) as f64 / multiprocessors(target) as f64;
    let wide = Choice { config: choice.config.with(PIECE), ..choice };
    us(types, target, shape, wide).max(waves.max(1.0) * fetched / ELEMENT_RATE)
}

/// How many microseconds a candidate takes that shares the work as `choice` says.
fn cost(dtype: DType, target: Target, shape: Shape, c: &Candidate, choice: Choice) -> f64 {
    let Shape { m, n, k, batch } = shape;
    if let Config::Shared(_) = c.config {
        let sharing = Sharing::new(target, shape, c.config);
        return sharing.map_or(f64::INFINITY, |sharing| shared_us(dtype, target, shape, c, &sharing));
    }
    let parts = choice.parts(k);
    let depth = choice.part.min(k);
    let tiles = tiles_us(dtype, target, c, (blocks(shape, c.config).saturating_mul(parts), depth));
    // Pairs are as long as what they are made of.
    let splits = matches!(c.config, Config::F16x3(_));
    let size = dtype.bytes() as f64;
    let [m, n, k, batch] = [m, n, k, batch].map(|side| side as f64);
    let all = (m * k + k * n + m * n) * batch * size / MEMORY_RATE;
    // The sums are written and read again, in f32.
    let adding = PARTS_US + parts as f64 * m * n * batch * 8.0 / MEMORY_RATE;
    let splitting = 2.0 * SPLIT_US + (m * k + k * n) * batch * SPLIT_BYTES / MEMORY_RATE;
    // Blocks of warpgroups end far sooner than the launch behind them.
    let adding = if let Config::Warpgroup(_) = c.config { SPLIT_SCALE * adding } else { adding };
    tiles.max(all) + if parts > 1 { adding } else { 0.0 } + if splits { splitting } else { 0.0 }
}

/// How many microseconds blocks take that share the slices of all tiles, and the launch that adds their sums.
fn shared_us(dtype: DType, target: Target, shape: Shape, c: &Candidate, sharing: &Sharing) -> f64 {
    let Shape { m, n, k, .. } = shape;
    let (rows, cols) = c.config.extent();
    let share = u64::from(sharing.share) * u64::from(c.config.slice());
    // A block ends the tile that another began, and begins the next.
    let depth = share + TILE_COST as u64 * u64::from(sharing.share.div_ceil(sharing.steps));
    let side = if sharing.along { rows } else { cols };
    let apart = f64::from(side) * share as f64 * dtype.bytes() as f64 / APART_RATE;
    let multiplying = tiles_us(dtype, target, c, (1, depth)) + apart;
    let [m, n, k] = [m, n, k].map(|side| side as f64);
    let size = dtype.bytes() as f64;
    // Blocks of all lines go through one operand at the same time, and those of a line through their part of the other in each tile.
    let (together, apart) = if sharing.along { (n, m) } else { (m, n) };
    let again = if apart * k * size > KEPT_BYTES { f64::from(sharing.tiles) } else { 1.0 };
    let read = (together + again * apart) * k * size / MEMORY_RATE;
    let sums = f64::from(sharing.pieces) * f64::from(rows * cols) * 4.0;
    let adding = SHARED_US + sums / STORE_RATE + (sums + m * n * size) / ADD_RATE;
    SHARED_SCALE * multiplying.max(read) + SCALE * adding
}

/// How many microseconds so many blocks take whose tiles are so deep.
pub(crate) fn tiles_us(dtype: DType, target: Target, c: &Candidate, (blocks, depth): (u64, u64)) -> f64 {
    // Blocks that share a multiprocessor share its rate.
    let waves = blocks.div_ceil(multiprocessors(target)) as f64;
    let (rows, cols) = c.config.extent();
    let (rows, cols, depth) = (f64::from(rows), f64::from(cols), depth as f64);
    let (busy, least) = match c.config {
        Config::Persistent(_) | Config::Shared(_) | Config::F16x3(_) | Config::Warpgroup(_) => (1.0, 0.0),
        Config::Tiled(config) => {
            let Tiles { teams, slice, .. } = *config.tiles();
            let least = if teams > 1 { LEAST_SLICES * f64::from(teams * slice) } else { 0.0 };
            // Where threads have more sums, one warp of a scheduler has less beside its products to wait with.
            let of_thread = if let Tiled::Simt(SimtConfig { across, .. }) = config { across / 8 } else { 1 };
            let threads = waves * f64::from(config.threads()) / f64::from(of_thread);
            let enough = if dtype == DType::F64 { BUSY_THREADS_DOUBLE } else { BUSY_THREADS };
            ((threads / enough).min(1.0), least)
        }
    };
    let multiplying = rows * cols * (depth + TILE_COST) / (rate(dtype, &c.config) * c.efficiency * busy);
    // Slices of small tiles are far ahead.
    let ahead = matches!(c.config, Config::Persistent(PersistentConfig { groups: 1, .. }));
    let overlap = if ahead { AHEAD } else { 1.0 };
    let reading = overlap * (rows + cols) * depth * dtype.bytes() as f64 / CACHE_RATE;
    if depth < least { f64::INFINITY } else { waves * (multiplying + reading) }
}

/// Every configuration that [`choose`] can give.
pub fn configs(dtype: DType, target: Target) -> Vec<Config> {
    let of_precision = |&precision: &Precision| {
        let wide: Vec<Config> = candidates(dtype, precision, target).map(|c| c.config.with(PIECE)).collect();
        let single = wide.last().map(|config| config.with(dtype.bytes() as u32));
        wide.into_iter().chain(single)
    };
    Precision::of(dtype, target).iter().flat_map(of_precision).collect()
}
