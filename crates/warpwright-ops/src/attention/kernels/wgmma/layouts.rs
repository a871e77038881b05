//! How blocks are laid out on sm_90a.

use warpwright_dsl::{DType, K, Major, PanelTile, WARP};

use super::{GROUP, GROUP_ROWS, VECTOR};
use crate::attention::layout::{BlockLayout, BlockShape};
use crate::attention::tuning::Work;

/// Bytes of shared memory of a block, but for the barriers.
const SHARED: u32 = (227 << 10) - 512;
/// As many tiles as their barriers leave room for.
const MAX_TILES: u32 = 24;

/// Whether products have rows of `width` elements, of which a tile has whole panels.
const fn is_width(width: u32) -> bool {
    width.is_multiple_of(16) && 16 <= width && width <= 256
}

/// Two widths in the names of kernels.
fn name_of_widths(width: u32, value_width: u32) -> String {
    if width == value_width { format!("d{width}") } else { format!("d{width}v{value_width}") }
}

/// The sizes of a block of `groups` warpgroups that multiply and one that copies.
const fn shape(groups: u32, columns: u32, width: u32) -> BlockShape {
    let (threads, rows) = ((groups + 1) * GROUP, groups * GROUP_ROWS);
    BlockShape { threads, rows, columns, width, vector: VECTOR }
}

/// How a block is laid out: groups of four warps with 64 queries each, and one more of which a thread copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wgmma {
    /// Groups of four warps.
    pub groups: u32,
    /// Keys of a tile, a multiple of 16.
    pub columns: u32,
    /// Elements of a row of queries and keys, a multiple of 16 up to 256.
    pub width: u32,
    /// Elements of a row of values, likewise.
    pub value_width: u32,
    /// Tiles of keys in shared memory, and of values.
    pub stages: u32,
    /// Whether groups start their products in turn, so that one's exponentials run beside another's products (FlashAttention-3).
    pub ping_pong: bool,
    /// Whether sums are rescaled only where scores lie far above the reference.
    pub lazy_rescale: bool,
    /// Whether blocks go on to other tiles of queries when they have done one.
    pub persistent: bool,
}

/// The tiles of a block: its queries, and the keys and values of a stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedTiles {
    pub(super) q: PanelTile,
    pub(super) keys: PanelTile,
    pub(super) values: PanelTile,
}

impl Wgmma {
    /// Registers of a thread that copies, and of one that multiplies: together what the threads of a block begin with.
    pub(super) const fn registers(self) -> (u32, u32) {
        if self.groups > 2 { (32, 160) } else { (24, 240) }
    }

    /// Threads that multiply.
    pub(super) const fn multiplying(self) -> u32 {
        self.groups * GROUP
    }

    pub(super) const fn tiles(self, dtype: DType) -> SharedTiles {
        let Self { columns, width, value_width, .. } = self;
        SharedTiles {
            q: PanelTile { dtype, major: Major::K, outer: self.groups * GROUP_ROWS, depth: width },
            keys: PanelTile { dtype, major: Major::K, outer: columns, depth: width },
            values: PanelTile { dtype, major: Major::Mn, outer: value_width, depth: columns },
        }
    }

    /// The tiles of queries, keys and values.
    pub(in crate::attention) const fn panels(self, dtype: DType) -> [PanelTile; 3] {
        let SharedTiles { q, keys, values } = self.tiles(dtype);
        [q, keys, values]
    }

    /// Whether its tiles are possible and hold rows of `width` elements, and of `value_width` in values.
    pub(in crate::attention) fn holds(self, width: u32, value_width: u32) -> bool {
        let Self { groups, columns, stages, .. } = self;
        let possible = (1..=3).contains(&groups)
            && columns.is_multiple_of(16)
            && (16..=256).contains(&columns)
            && is_width(self.width)
            && is_width(self.value_width)
            && (1..=8).contains(&stages)
            && (groups > 1 || !self.ping_pong);
        let holds = width <= self.width && value_width <= self.value_width;
        possible && holds && self.shared_bytes(DType::BF16, 1) <= SHARED
    }
}

impl BlockLayout for Wgmma {
    fn name(&self) -> String {
        let Self { groups, columns, width, value_width, stages, ping_pong, lazy_rescale, persistent } = self;
        let flags = [(ping_pong, "a"), (lazy_rescale, "p"), (persistent, "s")];
        let flags: String = flags.iter().filter(|(on, _)| **on).map(|(_, flag)| *flag).collect();
        format!("wg{groups}c{columns}{}s{stages}{flags}", name_of_widths(*width, *value_width))
    }

    fn shape(&self) -> BlockShape {
        shape(self.groups, self.columns, self.width.max(self.value_width))
    }

    fn shared_bytes(&self, dtype: DType, stationary: u32) -> u32 {
        let SharedTiles { q, keys, values } = self.tiles(dtype);
        K::TILE_SLACK + stationary * q.bytes() + self.stages * (keys.bytes() + values.bytes())
    }
}

/// How a block of the gradients is laid out: groups of four warps that have 64 rows each, and four warps more of which one thread
/// fetches tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WgmmaSweep {
    /// Groups that multiply, 1 to 3.
    pub groups: u32,
    /// Columns of a tile: a multiple of 16 up to 128.
    pub columns: u32,
    /// Tiles of columns in shared memory, at least 4: two for each step.
    pub tiles: u32,
    /// Elements of a row of queries and keys, the first tensors: a multiple of 16 from 64 to 256.
    pub width: u32,
    /// Elements of a row of values and of gradients of the result, the second tensors: likewise.
    pub value_width: u32,
    /// Whether the block's stationary rows are in registers.
    pub held: bool,
}

impl WgmmaSweep {
    /// Whether there is such a kernel for rows of so many elements of the first and of the second tensors.
    pub(in crate::attention) fn fits(self, work: Work, dtype: DType, widths: [u32; 2]) -> bool {
        let Self { groups, columns, tiles, .. } = self;
        let wide = |(most, width): (u32, u32)| is_width(most) && most >= PanelTile::WIDTH && width <= most;
        (1..=3).contains(&groups)
            && columns.is_multiple_of(16)
            && (16..=128).contains(&columns)
            && (4..=MAX_TILES).contains(&tiles)
            && self.widths().into_iter().zip(widths).all(wide)
            && self.shared_bytes(dtype, work.stationary()) <= SHARED
    }

    /// Elements of a row of the first and of the second tensors.
    pub(in crate::attention) const fn widths(self) -> [u32; 2] {
        [self.width, self.value_width]
    }

    /// Registers of a thread that multiplies, and of one that does not.
    pub(in crate::attention) const fn registers(self) -> (u32, u32) {
        if self.groups == 3 { (160, 32) } else { (240, 24) }
    }

    /// The block's stationary rows of both tensors.
    pub(in crate::attention) fn stationary(self, dtype: DType) -> [PanelTile; 2] {
        let outer = self.groups * GROUP_ROWS;
        self.widths().map(|depth| PanelTile { dtype, major: Major::K, outer, depth })
    }

    /// Bytes of the stationary rows of `count` of the tensors.
    pub(in crate::attention) fn stationary_bytes(self, dtype: DType, count: u32) -> u32 {
        self.stationary(dtype).iter().take(count as usize).map(|tile| tile.bytes()).sum()
    }

    /// Tiles of columns of both tensors as what the rows are multiplied with.
    pub(in crate::attention) fn of_products(self, dtype: DType) -> [PanelTile; 2] {
        self.widths().map(|depth| PanelTile { dtype, major: Major::K, outer: self.columns, depth })
    }

    /// The same tiles as what weights are multiplied with.
    pub(in crate::attention) fn of_sums(self, dtype: DType) -> [PanelTile; 2] {
        self.widths().map(|outer| PanelTile { dtype, major: Major::Mn, outer, depth: self.columns })
    }

    /// Bytes of a stage, which tiles of both tensors fit.
    pub(in crate::attention) fn tile_bytes(self, dtype: DType) -> u32 {
        let [first, second] = self.of_products(dtype);
        first.bytes().max(second.bytes())
    }

    /// Bytes of what is known of the columns of a tile: two numbers each.
    pub(in crate::attention) const fn statistics_bytes(self) -> u32 {
        2 * self.columns * 4
    }
}

impl BlockLayout for WgmmaSweep {
    fn name(&self) -> String {
        let Self { groups, columns, tiles, width, value_width, held } = self;
        let widths = name_of_widths(*width, *value_width);
        format!("wg{groups}c{columns}t{tiles}{widths}{}", if *held { "h" } else { "" })
    }

    fn shape(&self) -> BlockShape {
        shape(self.groups, self.columns, self.width.max(self.value_width))
    }

    fn shared_bytes(&self, dtype: DType, stationary: u32) -> u32 {
        let tiles = self.tiles * (self.tile_bytes(dtype) + self.statistics_bytes());
        K::TILE_SLACK + self.stationary_bytes(dtype, stationary) + tiles
    }
}

/// The layouts of the sweeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WgmmaSweeps {
    /// For the gradients of queries.
    pub queries: WgmmaSweep,
    /// For those of keys, and of values if those have no sweep of their own.
    pub keys: WgmmaSweep,
    /// For those of values.
    pub values: Option<WgmmaSweep>,
}

impl WgmmaSweeps {
    /// The gradients, each with its layout.
    pub(in crate::attention) fn each(self) -> Vec<(Work, WgmmaSweep)> {
        let keys = if self.values.is_some() { Work::Keys } else { Work::KeysAndValues };
        let values = self.values.map(|values| (Work::Values, values));
        [(Work::Queries, self.queries), (keys, self.keys)].into_iter().chain(values).collect()
    }
}

/// How a block of the kernel for all gradients at once is laid out: two groups of four warps that have 64 keys each, and four warps more,
/// of which one fetches tiles of queries and two add up the gradients of queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WgmmaFused {
    /// Queries of a tile: a multiple of 32 in rows of 64, of 16 in others, up to 128.
    pub columns: u32,
    /// Tiles of queries and of gradients of the result in shared memory, together: at least 2, and 3 if scores are ahead.
    pub tiles: u32,
    /// Elements of a row of a tile: a multiple of 16 from 64 to 128.
    pub width: u32,
    /// Whether the scores of the next tile are computed while gradients are handed on.
    pub ahead: bool,
}

/// Where things lie in a block's shared memory, in bytes, behind the block's own keys and values.
#[derive(Clone, Copy, Debug)]
pub(super) struct FusedPlaces {
    pub(super) tiles: u32,
    pub(super) ds: u32,
    pub(super) dq: u32,
    pub(super) statistics: u32,
    end: u32,
}

impl WgmmaFused {
    /// Groups that multiply, and their warps.
    pub(in crate::attention) const GROUPS: u32 = 2;
    pub(in crate::attention) const WARPS: u32 = Self::GROUPS * GROUP / WARP;
    pub(in crate::attention) const THREADS: u32 = (Self::GROUPS + 1) * GROUP;
    /// Keys of a block.
    pub(in crate::attention) const ROWS: u32 = Self::GROUPS * GROUP_ROWS;
    /// Registers of a thread that multiplies, and of one that does not.
    pub(in crate::attention) const REGISTERS: (u32, u32) = (240, 24);
    /// Places for the gradients of a tile's scores, which groups fill in turn: they meet once for each tile.
    const DS_BUFFERS: u32 = 2;

    /// Whether there is such a kernel for rows of `width` elements.
    pub(in crate::attention) fn fits(self, dtype: DType, width: usize) -> bool {
        let Self { columns, tiles, width: most, ahead } = self;
        let step = if most == 64 { 32 } else { 16 };
        is_width(most)
            && (64..=128).contains(&most)
            && columns.is_multiple_of(step)
            && (step..=128).contains(&columns)
            && (2 + u32::from(ahead)..=MAX_TILES).contains(&tiles)
            && width <= most as usize
            && self.shared_bytes(dtype, 2) <= SHARED
    }

    /// The block's keys or values.
    pub(in crate::attention) const fn own(self, dtype: DType) -> PanelTile {
        PanelTile { dtype, major: Major::K, outer: Self::ROWS, depth: self.width }
    }

    /// The same as what is multiplied along its rows.
    pub(super) const fn own_of_sums(self, dtype: DType) -> PanelTile {
        PanelTile { dtype, major: Major::Mn, outer: self.width, depth: Self::ROWS }
    }

    /// A group's part of the keys as the left operand of the gradients of queries, transposed.
    pub(super) const fn keys_transposed(self, dtype: DType) -> PanelTile {
        PanelTile { outer: GROUP_ROWS, ..self.own_of_sums(dtype) }
    }

    /// A tile of queries, or of gradients of the result, as what the keys or values are multiplied with.
    pub(in crate::attention) const fn of_products(self, dtype: DType) -> PanelTile {
        PanelTile { dtype, major: Major::K, outer: self.columns, depth: self.width }
    }

    /// The same tile as what weights are multiplied with.
    pub(super) const fn of_sums(self, dtype: DType) -> PanelTile {
        PanelTile { dtype, major: Major::Mn, outer: self.width, depth: self.columns }
    }

    /// The gradients of a tile's scores.
    pub(super) const fn ds(self, dtype: DType) -> PanelTile {
        PanelTile { dtype, major: Major::K, outer: self.columns, depth: Self::ROWS }
    }

    /// From one group to the next, bytes in the keys and in the gradients of the scores to its operands for those of the queries: groups have
    /// 64 elements each of all rows, or all elements of some rows.
    pub(super) const fn dq_parts(self, dtype: DType) -> (u32, u32) {
        match self.width {
            64 => (0, self.ds(dtype).part(self.columns / Self::GROUPS)),
            _ => (self.own_of_sums(dtype).part(GROUP_ROWS), 0),
        }
    }

    /// Queries of a group's part of the gradients of a tile's queries.
    pub(super) const fn dq_columns(self) -> u32 {
        if self.width == 64 { self.columns / Self::GROUPS } else { self.columns }
    }

    /// Bytes of the groups' parts of the gradients of a tile's queries. Where the groups have 64 elements each, those of the second one that
    /// rows do not have are left out.
    pub(super) const fn part_bytes(self) -> [u32; Self::GROUPS as usize] {
        let all = self.columns * self.width * 4;
        let first = if self.width == 64 { all / Self::GROUPS } else { self.columns * GROUP_ROWS * 4 };
        [first, all - first]
    }

    /// Whether the groups' parts are of different sizes. Then each warp's share of a tile lies for itself, and those of the last warps are left
    /// out.
    pub(super) const fn is_uneven(self) -> bool {
        let [first, second] = self.part_bytes();
        first != second
    }

    /// Warps that have gradients of a tile's queries, where parts are uneven: each has 16 elements.
    pub(super) const fn dq_warps(self) -> u32 {
        self.width / 16
    }

    /// Bytes of what is known of the queries of a tile: two numbers each.
    pub(super) const fn statistics_bytes(self) -> u32 {
        2 * self.columns * 4
    }

    pub(super) const fn places(self, dtype: DType) -> FusedPlaces {
        let tiles = 2 * self.own(dtype).bytes();
        let ds = tiles + self.tiles * self.of_products(dtype).bytes();
        let dq = ds + Self::DS_BUFFERS * self.ds(dtype).bytes();
        let statistics = dq + self.columns * self.width * 4;
        FusedPlaces { tiles, ds, dq, statistics, end: statistics + self.tiles * self.statistics_bytes() }
    }
}

impl BlockLayout for WgmmaFused {
    fn name(&self) -> String {
        let Self { columns, tiles, width, ahead } = self;
        format!("wgfused_c{columns}t{tiles}d{width}{}", if *ahead { "a" } else { "" })
    }

    fn shape(&self) -> BlockShape {
        shape(Self::GROUPS, self.columns, self.width)
    }

    fn shared_bytes(&self, dtype: DType, _: u32) -> u32 {
        K::TILE_SLACK + self.places(dtype).end
    }
}
