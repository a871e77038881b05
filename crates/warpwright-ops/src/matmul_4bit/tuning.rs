//! Which kernel serves which shape. Pure: a function of the descriptor and the target alone.

use warpwright_dsl::{K, MmaAtom};
use warpwright_ptx::isa::DeviceLimits;
use warpwright_ptx::{DType, Target};

use super::scales::MAP_LEN;
use super::table::TABLE_BYTES;
use super::{Matmul4bitDesc, ScaleFormat};

/// Copies to shared memory that no thread waits for exist from here on.
pub(super) const ASYNC_SM: u32 = 80;
/// Threads of a block on the ordinary units.
pub(super) const SIMT_THREADS: u32 = 128;
/// Rows of `x` that a warp multiplies with a row of the weight.
pub(super) const SIMT_ROWS: u32 = 4;
/// Threads of a block that writes the weight as a matrix.
pub(super) const EXPAND_THREADS: u32 = 256;
/// Threads of a block that adds parts.
pub(super) const SUM_THREADS: u32 = 256;

/// Rows of a tile of the weight that a product of a warp takes.
pub(super) const ATOM_ROWS: u32 = 16;
/// Rows of `x` of such a product.
pub(super) const ATOM_COLS: u32 = 8;
/// Slices of the common dimension whose codes are loaded one after the other: a line of 128 bytes of a row where a slice is of 64.
pub(super) const SLICES: u32 = 4;

/// Bytes of a row in a run that is copied to shared memory, and of all rows of it.
pub(super) const STAGE_ROW_BYTES: u32 = 128;
pub(super) const RUN_BYTES: u32 = ATOM_ROWS * STAGE_ROW_BYTES;

/// How a block of the streaming kernel is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamConfig {
    /// Words of codes that a lane loads of a row at once: a group of scales has at least 32 times as many elements.
    pub words: u32,
    /// Rows of the weight that a warp takes at once, in units of 16.
    pub row_tiles: u32,
    /// Rows of `x`, in units of 8.
    pub col_tiles: u32,
    /// Warps, which share out the common dimension.
    pub warps: u32,
    /// Runs of four slices that a warp has in flight.
    pub runs: u32,
    /// Blocks that must fit a multiprocessor at once.
    pub blocks: u32,
    /// Runs of a warp that shared memory has room for, 128 bytes of each of 16 rows; 0 if they are loaded to registers.
    pub stages: u32,
}

impl StreamConfig {
    /// Its name: slice, rows of the weight and of `x`, warps, and runs and blocks or stages.
    pub fn name(self) -> String {
        let Self { row_tiles, col_tiles, warps, runs, blocks, stages, .. } = self;
        let tile = format!("s{}_n{}_m{}_w{warps}", self.slice(), 16 * row_tiles, 8 * col_tiles);
        if stages > 0 { format!("{tile}_c{stages}") } else { format!("{tile}_r{runs}_b{blocks}") }
    }

    /// Slices of a run.
    pub const fn slices(self) -> u32 {
        if self.stages > 0 { 2 * STAGE_ROW_BYTES / self.slice() } else { SLICES }
    }

    /// Bytes of all stages of all warps.
    pub(super) const fn stages_bytes(self) -> u32 {
        self.warps * self.stages * RUN_BYTES
    }

    /// Elements of a slice of the common dimension.
    pub const fn slice(self) -> u32 {
        32 * self.words
    }

    /// Elements of a run of slices.
    pub const fn run(self) -> u32 {
        self.slices() * self.slice()
    }

    /// Rows of the weight of a tile.
    pub const fn rows(self) -> u32 {
        ATOM_ROWS * self.row_tiles
    }

    /// Most rows of `x`.
    pub const fn cols(self) -> u32 {
        ATOM_COLS * self.col_tiles
    }

    /// Threads of a block.
    pub const fn threads(self) -> u32 {
        32 * self.warps
    }

    /// Elements from one column of a warp's sums to the next in shared memory: no two lanes meet in a bank.
    pub(super) const fn sums_pitch(self) -> u32 {
        self.rows() + 4
    }

    /// Bytes of the sums of the warps, of eight columns, twice.
    pub(super) const fn sums_bytes(self) -> u32 {
        2 * self.warps * ATOM_COLS * self.sums_pitch() * 4
    }

    /// Bytes of shared memory in front of `x`: tables, sums and stages.
    pub(super) const fn fixed_bytes(self, nested: bool) -> u32 {
        TABLE_BYTES + if nested { MAP_LEN * 4 } else { 0 } + self.sums_bytes() + self.stages_bytes()
    }

    /// Bytes from one row of `x` in shared memory to the next, `len` elements of 16 bits: lanes of two rows do not meet in a bank.
    pub(super) const fn x_pitch(self, len: u32) -> u32 {
        (2 * len).next_multiple_of(128) + if self.words == 2 { 16 } else { 64 }
    }
}

/// A configuration, and how a product is shared out among blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stream {
    pub(super) config: StreamConfig,
    /// Elements of the common dimension of a part, a multiple of a run; the last may be shorter.
    pub(super) part: u32,
    /// Parts, which blocks along y of the grid take.
    pub(super) parts: u32,
    /// Blocks along x.
    pub(super) blocks: u32,
}

/// Elements of the common dimension whose codes are copied at once: 128 bytes of a row.
pub(super) const CHUNK: u32 = 256;
/// Bytes of shared memory that a block can have on sm_90, less what tiles and barriers may lose.
const WARPGROUP_SHARED: u32 = 227 * 1024 - K::TILE_SLACK - 512;

/// How a block whose warpgroups multiply is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WarpgroupConfig {
    /// Elements of the common dimension whose sums are scaled at once: 64, or 32.
    pub slice: u32,
    /// Warpgroups that multiply, each 64 rows of the weight.
    pub groups: u32,
    /// Rows of `x`.
    pub cols: u32,
    /// Chunks of codes in flight.
    pub stages: u32,
    /// Pieces of `x` in flight, of which a chunk has four.
    pub x_stages: u32,
    /// Blocks of a cluster, which share out the common dimension of a tile and add their sums: 1, 2 or 4.
    pub cluster: u32,
}

impl WarpgroupConfig {
    /// Bytes of the map of nested scales, which are there whether scales are nested or not.
    pub(super) const MAP_BYTES: u32 = MAP_LEN * 4;

    /// Its name: slice, rows of the weight and of `x`, stages of codes and of `x`, and blocks of a cluster if they are several.
    pub fn name(self) -> String {
        let Self { slice, cols, stages, x_stages, cluster, .. } = self;
        let cluster = if cluster > 1 { format!("_p{cluster}") } else { String::new() };
        format!("wg_s{slice}_n{}_m{cols}_c{stages}_x{x_stages}{cluster}", self.rows())
    }

    /// Rows of the weight of a tile.
    pub const fn rows(self) -> u32 {
        64 * self.groups
    }

    /// Threads of a block, one warpgroup of which copies.
    pub const fn threads(self) -> u32 {
        128 * (self.groups + 1)
    }

    /// Whether scales that are of a slice multiply numbers, and not sums.
    pub(super) const fn scales_weights(self) -> bool {
        self.cols > 64
    }

    /// Registers of a thread that copies, and of one that multiplies.
    pub(super) const REGISTERS: (u32, u32) = (40, 232);

    /// Bytes of shared memory beside the stages.
    const fn fixed_bytes(self) -> u32 {
        TABLE_BYTES + Self::MAP_BYTES + self.groups * super::warpgroup::TURNED_BYTES
    }

    /// Bytes of the stages of codes.
    const fn code_bytes(self) -> u32 {
        self.stages * self.rows() * CHUNK / 2
    }

    /// Bytes of a stage of `x`.
    const fn x_bytes(self) -> u32 {
        self.cols * 128
    }

    /// With as many stages of `x` as there is room for, and as more chunks than one need.
    const fn filled(self) -> Self {
        let room = (WARPGROUP_SHARED - self.fixed_bytes() - self.code_bytes()) / self.x_bytes();
        Self { x_stages: if room > 12 { 12 } else { room }, ..self }
    }

    /// Bytes of the stages, or of the sums that a block of a cluster leaves there for the others, if those are more.
    pub(super) const fn stage_bytes(self) -> u32 {
        let stages = self.code_bytes() + self.x_stages * self.x_bytes();
        let sums = if self.cluster > 1 { self.rows() * self.cols * 4 } else { 0 };
        if sums > stages { sums } else { stages }
    }

    /// Bytes of dynamic shared memory.
    pub(super) const fn shared_bytes(self) -> u32 {
        K::TILE_SLACK + self.fixed_bytes() + self.stage_bytes()
    }
}

/// How a product is multiplied while its weight is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Config {
    /// By warps that share out the common dimension.
    Stream(StreamConfig),
    /// By warpgroups, on sm_90a.
    Warpgroup(WarpgroupConfig),
}

impl Config {
    /// Its name.
    pub fn name(self) -> String {
        match self {
            Self::Stream(config) => config.name(),
            Self::Warpgroup(config) => config.name(),
        }
    }
}

/// A configuration of warpgroups, and how a product is shared out among blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Warpgroups {
    pub(super) config: WarpgroupConfig,
    /// Chunks of the common dimension, and those of a block of a cluster; the last may have less.
    pub(super) chunks: u32,
    pub(super) part: u32,
    /// Tiles along the rows of `x`, and all tiles.
    pub(super) across: u32,
    pub(super) tiles: u32,
    pub(super) blocks: u32,
}

/// A launch of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Stream(Stream),
    Warpgroup(Warpgroups),
}

/// Most rows of `x` that warps multiply as they read the weight.
pub const MAX_STREAM_ROWS: usize = 64;
/// Most rows of `x` that warpgroups multiply with what they decode. Of more it is worth while to expand the weight, once for all of them.
pub const MAX_DECODED_ROWS: usize = 3072;
/// Elements of a weight from which warpgroups multiply 9 to 16 rows, too.
const LARGE: usize = 1 << 25;
/// Most rows that the kernel for any alignment multiplies where no other one does; of more the weight is expanded.
pub const MAX_SIMT_ROWS: usize = SIMT_ROWS as usize;

/// Every configuration that a plan can have: for up to eight rows codes come by way of shared memory, where that has room, or two small
/// blocks share a multiprocessor, where the rows fit twice; from 17 on sums take the registers of more than eight warps.
pub fn configs() -> Vec<StreamConfig> {
    let layouts = [
        (1, 1, 16, 1, 1, 3),
        (1, 1, 8, 2, 2, 0),
        (1, 1, 16, 2, 1, 0),
        (2, 2, 16, 1, 1, 0),
        (2, 4, 8, 2, 1, 0),
        (2, 8, 8, 1, 1, 0),
    ];
    let of = |words, (row_tiles, col_tiles, warps, runs, blocks, stages)| StreamConfig {
        words,
        row_tiles,
        col_tiles,
        warps,
        runs,
        blocks,
        stages,
    };
    [2, 1].into_iter().flat_map(|words| layouts.map(|layout| of(words, layout))).collect()
}

/// Whether a block has room for a run of the fewest rows that a configuration is for.
pub(super) fn has_room(config: StreamConfig, nested: bool, limits: &DeviceLimits) -> bool {
    let rows = if config.col_tiles == 1 { 1 } else { config.cols() / 2 + 1 };
    let bytes = config.fixed_bytes(nested) + rows * (2 * config.run() + 256);
    bytes <= (limits.shared_per_multiprocessor / config.blocks - 1024).min(limits.shared_per_block)
}

/// How the weight is multiplied while it is read, if it can be.
pub(super) fn choose(desc: &Matmul4bitDesc, target: Target) -> Option<Choice> {
    let streamed = || stream(desc, target).map(Choice::Stream);
    // Of small weights up to 16 rows are multiplied sooner by warps, whose sums need no second launch.
    let large = desc.weight.n * desc.weight.k >= LARGE;
    if desc.m <= if large { 8 } else { 16 } {
        return streamed();
    }
    if desc.m > MAX_DECODED_ROWS {
        return None;
    }
    let limits = DeviceLimits::of(target);
    let configs = warpgroup_configs().into_iter().filter(|config| {
        // Longer slices are fewer.
        let longest = config.slice == 64 || !desc.weight.groups().1.is_multiple_of(64);
        longest && suits_warpgroups(desc, target, *config)
    });
    let all = configs.filter_map(|config| warpgroups(desc, config, &limits));
    let best = all.min_by(|a, b| a.us(&limits).total_cmp(&b.us(&limits)));
    best.map(Choice::Warpgroup).or_else(streamed)
}

/// How the streaming kernel is launched, if it can be: products of 16 bits exist, rows of codes begin at whole vectors, and scales are of
/// whole slices.
fn stream(desc: &Matmul4bitDesc, target: Target) -> Option<Stream> {
    let limits = DeviceLimits::of(target);
    let fitting = configs().into_iter().filter(|config| suits(desc, target, *config));
    let all = fitting.filter_map(|config| shared_out(desc, config, &limits));
    // Long vectors are fewer loads, fewer parts less to add; copies of codes are worth a part, and small blocks begin and end closer to each
    // other.
    all.min_by_key(|stream| (2 - stream.config.words, stream.parts + u32::from(stream.config.stages == 0)))
}

/// Whether a kernel multiplies what is described.
pub(super) fn suits(desc: &Matmul4bitDesc, target: Target, config: StreamConfig) -> bool {
    let atom = MmaAtom::of(desc.dtype).is_some_and(|atom| atom.exists(target));
    let slice = config.slice();
    // Runs that are copied are whole.
    let staged = config.stages > 0;
    let part = if staged { config.run() } else { slice };
    let whole = desc.weight.k >= config.run() as usize && desc.weight.k.is_multiple_of(part as usize);
    let atom = atom && (!staged || target.sm >= ASYNC_SM);
    let cols = desc.m.div_ceil(ATOM_COLS as usize).next_power_of_two();
    // Powers of two that multiply numbers of bf16 may be two of a slice.
    let halves = staged && desc.weight.scale == ScaleFormat::E8m0 && desc.dtype == DType::BF16;
    let sliced = is_sliced(desc, if halves { 32 } else { slice });
    atom && whole && sliced && cols == config.col_tiles as usize
}

/// Whether there is a product of 16-bit numbers whose scales are of whole slices, or e4m3 ones, of which a slice has several.
fn is_sliced(desc: &Matmul4bitDesc, slice: u32) -> bool {
    let half = matches!(desc.dtype, DType::F16 | DType::BF16);
    let (_, group) = desc.weight.groups();
    let several = desc.weight.scale == ScaleFormat::E4m3;
    half && !desc.weight.group_index
        && desc.m > 0
        && group.is_power_of_two()
        && (several || group.is_multiple_of(slice as usize))
}

/// The launch with a configuration, if what it needs fits shared memory.
pub(super) fn shared_out(
    desc: &Matmul4bitDesc,
    config: StreamConfig,
    limits: &DeviceLimits,
) -> Option<Stream> {
    let (k, m) = (u32::try_from(desc.weight.k).ok()?, u32::try_from(desc.m).ok()?);
    // Each block takes a kilobyte more than it asks for.
    let of_block = (limits.shared_per_multiprocessor / config.blocks - 1024).min(limits.shared_per_block);
    let left = of_block.checked_sub(config.fixed_bytes(desc.weight.scale == ScaleFormat::Nested))?;
    let row = left / m.max(1);
    // What lies between rows is less than two lines.
    let most = row.checked_sub(256)? / 2 / config.run() * config.run();
    if most == 0 {
        return None;
    }
    // No part is shorter than a run.
    let shares = (k.div_ceil(most)..=k / config.run()).map(|parts| {
        let part = k.div_ceil(parts).next_multiple_of(config.run());
        (k.div_ceil(part), part)
    });
    let (parts, part) = shares.into_iter().find(|(parts, part)| k - (parts - 1) * part >= config.run())?;
    let tiles = u32::try_from(desc.weight.n.div_ceil(config.rows() as usize)).ok()?;
    let resident = limits.multiprocessors * config.blocks;
    Some(Stream { config, part, parts, blocks: (resident / parts).clamp(1, tiles.max(1)) })
}

/// Every configuration of warpgroups that a plan can have.
pub fn warpgroup_configs() -> Vec<WarpgroupConfig> {
    let layouts = [(2, 32, 4), (2, 64, 4), (2, 128, 4), (2, 256, 2)];
    let of = |slice, (groups, cols, stages), cluster| {
        WarpgroupConfig { slice, groups, cols, stages, x_stages: 0, cluster }.filled()
    };
    let layouts = [1, 2, 4].into_iter().flat_map(|cluster| layouts.map(|layout| (layout, cluster)));
    let layouts: Vec<_> = layouts.collect();
    [64, 32]
        .into_iter()
        .flat_map(|slice| layouts.iter().map(move |(layout, cluster)| of(slice, *layout, *cluster)))
        .collect()
}

/// Whether warpgroups multiply what is described: products of 16 bits, whole chunks, and scales of whole slices.
pub(super) fn suits_warpgroups(desc: &Matmul4bitDesc, target: Target, config: WarpgroupConfig) -> bool {
    let whole = desc.weight.k > 0 && desc.weight.k.is_multiple_of(CHUNK as usize);
    // A word of e4m3 scales is of a slice of 64.
    let sliced = desc.weight.scale != ScaleFormat::E4m3 || config.slice == 64;
    // Each block of a cluster finishes whole products.
    let finishes = [1, 2, 4, 8].contains(&config.cluster) && config.cols >= ATOM_COLS * config.cluster;
    target.sm == 90 && whole && sliced && finishes && is_sliced(desc, config.slice)
}

/// The launch of warpgroups with a configuration.
pub(super) fn warpgroups(
    desc: &Matmul4bitDesc,
    config: WarpgroupConfig,
    limits: &DeviceLimits,
) -> Option<Warpgroups> {
    let chunks = u32::try_from(desc.weight.k).ok()? / CHUNK;
    let across = u32::try_from(desc.m).ok()?.div_ceil(config.cols);
    let down = u32::try_from(desc.weight.n).ok()?.div_ceil(config.rows());
    let tiles = down.checked_mul(across)?;
    let part = chunks.div_ceil(config.cluster);
    // Every block of a cluster has a part.
    if chunks.div_ceil(part.max(1)) < config.cluster {
        return None;
    }
    let blocks = match config.cluster {
        1 => tiles.min(limits.multiprocessors),
        cluster => tiles.checked_mul(cluster)?,
    };
    Some(Warpgroups { config, chunks, part, across, tiles, blocks })
}

impl Warpgroups {
    /// Microseconds of the launch, about: those of chunks as they were measured on an H100, of beginning and ending a tile, and of adding the
    /// sums of a cluster.
    fn us(&self, limits: &DeviceLimits) -> f64 {
        let config = self.config;
        let chunk = match (config.cols, config.slice) {
            (32, 64) => 1.2,
            (64, 64) => 1.4,
            (32, _) => 1.5,
            (64, _) => 1.75,
            (128, _) => 2.0,
            _ => 2.75,
        };
        // A cluster is within a graphics processing cluster, whose multiprocessors four seldom divides: 32 such clusters were seen to take two
        // rounds on 132 multiprocessors.
        let at_once = match config.cluster {
            1 | 2 => limits.multiprocessors / config.cluster,
            cluster => limits.multiprocessors * 7 / 8 / cluster,
        };
        let rounds = self.tiles.div_ceil(at_once.max(1));
        let added = if config.cluster > 1 { 1.5 + f64::from(config.cols) / 128.0 } else { 0.0 };
        f64::from(rounds) * (f64::from(self.part) * chunk + 2.5 + added)
    }
}
