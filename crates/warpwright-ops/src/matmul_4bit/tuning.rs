//! Which kernel serves which shape. Pure: a function of the descriptor and the target alone.

use warpwright_dsl::MmaAtom;
use warpwright_ptx::isa::DeviceLimits;
use warpwright_ptx::{DType, Target};

use super::scales::MAP_LEN;
use super::{Matmul4bitDesc, ScaleFormat};

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
/// Bytes of the table of pairs, which each lane has a copy of.
pub(super) const TABLE_BYTES: u32 = 256 * 32 * 4;

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
}

impl StreamConfig {
    /// Its name: slice, rows of the weight and of `x`, warps, runs and blocks.
    pub fn name(self) -> String {
        let Self { row_tiles, col_tiles, warps, runs, blocks, .. } = self;
        format!("s{}_n{}_m{}_w{warps}_r{runs}_b{blocks}", self.slice(), 16 * row_tiles, 8 * col_tiles)
    }

    /// Elements of a slice of the common dimension.
    pub const fn slice(self) -> u32 {
        32 * self.words
    }

    /// Elements of a run of slices.
    pub const fn run(self) -> u32 {
        SLICES * self.slice()
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

    /// Bytes of shared memory in front of `x`: tables and sums.
    pub(super) const fn fixed_bytes(self, nested: bool) -> u32 {
        TABLE_BYTES + if nested { MAP_LEN * 4 } else { 0 } + self.sums_bytes()
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

/// Most rows of `x` for which the weight is decoded in registers; above it is expanded for a dense product.
pub const MAX_STREAM_ROWS: usize = 64;
/// The same for the kernel for any alignment.
pub const MAX_SIMT_ROWS: usize = 8;

/// Every configuration that a plan can have: for up to eight rows two small blocks a multiprocessor, where the rows fit twice; from 17 on
/// sums take the registers of more than eight warps.
pub fn configs() -> Vec<StreamConfig> {
    let layouts = [(1, 1, 8, 2, 2), (1, 1, 16, 2, 1), (2, 2, 16, 1, 1), (2, 4, 8, 2, 1), (2, 8, 8, 1, 1)];
    let of = |words, (row_tiles, col_tiles, warps, runs, blocks)| StreamConfig {
        words,
        row_tiles,
        col_tiles,
        warps,
        runs,
        blocks,
    };
    [2, 1].into_iter().flat_map(|words| layouts.map(|layout| of(words, layout))).collect()
}

/// Whether a block has room for a run of the fewest rows that a configuration is for.
pub(super) fn has_room(config: StreamConfig, nested: bool, limits: &DeviceLimits) -> bool {
    let rows = if config.col_tiles == 1 { 1 } else { config.cols() / 2 + 1 };
    let bytes = config.fixed_bytes(nested) + rows * (2 * config.run() + 256);
    bytes <= (limits.shared_per_multiprocessor / config.blocks - 1024).min(limits.shared_per_block)
}

/// How the streaming kernel is launched, if it can be: products of 16 bits exist, rows of codes begin at whole vectors, and scales are of
/// whole slices.
pub(super) fn stream(desc: &Matmul4bitDesc, target: Target) -> Option<Stream> {
    let limits = DeviceLimits::of(target);
    let fitting = configs().into_iter().filter(|config| suits(desc, target, *config));
    let all = fitting.filter_map(|config| shared_out(desc, config, &limits));
    // Long vectors are fewer loads, fewer parts less to add; of as many, small blocks begin and end closer to each other.
    all.min_by_key(|stream| (2 - stream.config.words, stream.parts))
}

/// Whether a kernel multiplies what is described.
pub(super) fn suits(desc: &Matmul4bitDesc, target: Target, config: StreamConfig) -> bool {
    let half = matches!(desc.dtype, DType::F16 | DType::BF16);
    let atom = MmaAtom::of(desc.dtype).is_some_and(|atom| atom.exists(target));
    let (slice, (_, group)) = (config.slice() as usize, desc.weight.groups());
    let sliced = desc.weight.k >= config.run() as usize
        && desc.weight.k.is_multiple_of(slice)
        && group.is_power_of_two()
        && group.is_multiple_of(slice);
    let cols = desc.m.div_ceil(ATOM_COLS as usize).next_power_of_two();
    half && atom && sliced && desc.m > 0 && cols == config.col_tiles as usize
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
