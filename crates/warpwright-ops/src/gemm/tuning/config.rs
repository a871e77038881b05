//! How the kernels of a product are laid out.

use warpwright_dsl::{K, Major, OutputPanel, PanelTile, Stages, TileLayout};
use warpwright_ptx::DType;

use super::super::Precision;
use super::super::engine::PANELS;

/// The tile of a block, and how the operands come to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiles {
    /// Rows of the result.
    pub rows: u32,
    /// Columns of the result.
    pub cols: u32,
    /// How much of the common dimension is in shared memory at once.
    pub slice: u32,
    /// Slices in shared memory: the one that is multiplied and those on their way.
    pub stages: u32,
    /// Bytes of one copy: 16, or those of an element.
    pub piece: u32,
    /// Teams of warps, each of which multiplies a part of the common dimension, from slices of its own, for the whole tile.
    pub teams: u32,
}

impl Tiles {
    pub(crate) const fn new(rows: u32, cols: u32, slice: u32, stages: u32) -> Self {
        Self { rows, cols, slice, stages, piece: PIECE, teams: 1 }
    }

    pub(super) const fn of_teams(self, teams: u32) -> Self {
        Self { teams, ..self }
    }

    /// A part of a kernel's name.
    fn name(&self) -> String {
        let Self { rows, cols, slice, stages, piece, teams } = *self;
        let teams = if teams > 1 { format!("_t{teams}") } else { String::new() };
        format!("{rows}x{cols}x{slice}_s{stages}_p{piece}{teams}")
    }

    /// Where the slices of `a` and `b` lie in shared memory.
    pub(in crate::gemm) const fn layouts(
        &self,
        dtype: DType,
        a: Major,
        b: Major,
    ) -> (TileLayout, TileLayout) {
        const fn layout(dtype: DType, major: Major, outer: u32, slice: u32) -> TileLayout {
            match major {
                Major::K => TileLayout::new(dtype, outer, slice),
                Major::Mn => TileLayout::new(dtype, slice, outer),
            }
        }
        (layout(dtype, a, self.rows, self.slice), layout(dtype, b, self.cols, self.slice))
    }

    /// The stages of slices of a team.
    pub(in crate::gemm) const fn pipeline(&self, dtype: DType, a: Major, b: Major) -> Stages {
        let (a, b) = self.layouts(dtype, a, b);
        Stages { count: self.stages, bytes: a.bytes() + b.bytes() }
    }

    /// Bytes of dynamic shared memory: the stages, or the sums of the tile, which follow them there.
    pub fn shared_bytes(&self, dtype: DType, a: Major, b: Major) -> u32 {
        let sum = if dtype == DType::F64 { 8 } else { 4 };
        self.teams * self.pipeline(dtype, a, b).total_bytes().max(self.rows * self.cols * sum)
    }
}

/// How a kernel on tensor cores is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorConfig {
    /// The tile of a block.
    pub tiles: Tiles,
    /// Warps of a team along the rows.
    pub warps_down: u32,
    /// Warps of a team along the columns.
    pub warps_across: u32,
}

/// How a kernel is laid out that multiplies `f32` as sums of two `tf32` on tensor cores. Warps compute rows and columns in
/// multiples of 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SplitConfig {
    /// The tile of a block.
    pub tiles: Tiles,
    /// Warps along the rows.
    pub warps_down: u32,
    /// Warps along the columns.
    pub warps_across: u32,
}

impl SplitConfig {
    const fn threads(&self) -> u32 {
        32 * self.warps_down * self.warps_across
    }

    /// The same product on the ordinary units.
    pub(in crate::gemm) const fn simt(&self) -> SimtConfig {
        let across = self.tiles.rows * self.tiles.cols / (self.threads() * SimtConfig::DOWN);
        SimtConfig { tiles: self.tiles, across }
    }
}

/// How a kernel on the ordinary units is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SimtConfig {
    /// The tile of a block: rows and columns a multiple of those of a warp, 32 x 64 or 64 x 64.
    pub tiles: Tiles,
    /// Sums of a thread along the columns, 8 or 16; along the rows it has 8.
    ///
    /// With 16, operands that lie along the common dimension are turned on their way to shared memory. Vectors along it would put
    /// what is multiplied together into one bank of the registers.
    pub across: u32,
}

impl SimtConfig {
    /// Sums of a thread along the rows.
    pub(in crate::gemm) const DOWN: u32 = 8;

    /// Lanes of a warp along the rows and along the columns.
    pub(in crate::gemm) const fn lanes(&self) -> (u32, u32) {
        if self.across > 8 { (8, 4) } else { (4, 8) }
    }

    /// Places of the common dimension whose operands are read together.
    pub(in crate::gemm) const fn depths(&self) -> u32 {
        if self.across > 8 { 1 } else { 4 }
    }

    /// Whether an operand that is `major` is turned.
    pub(in crate::gemm) fn turns(&self, major: Major) -> bool {
        self.across > 8 && major == Major::K
    }
}

/// How a kernel for sm_90a is laid out: groups of four warps compute 64 rows, one warp more fetches what they multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WarpgroupConfig {
    /// Rows of the result that a block computes: a multiple of 64.
    pub rows: u32,
    /// Columns of the result: a multiple of 64, up to 256.
    pub cols: u32,
    /// Slices of 64 of the common dimension in shared memory.
    pub stages: u32,
}

/// A slice of an operand in shared memory, as deep as a panel is wide.
const fn panels(dtype: DType, major: Major, outer: u32) -> PanelTile {
    PanelTile { dtype, major, outer, depth: PanelTile::width_of(dtype) }
}

impl WarpgroupConfig {
    /// The parts of `a` and `b` in a stage.
    pub(crate) fn tiles(&self, dtype: DType, a: Major, b: Major) -> (PanelTile, PanelTile) {
        (panels(dtype, a, self.rows), panels(dtype, b, self.cols))
    }

    /// A part of the kernel's name.
    pub(in crate::gemm) fn name(&self) -> String {
        let Self { rows, cols, stages } = *self;
        format!("wg_{rows}x{cols}_s{stages}")
    }
}

/// How a kernel for sm_90a is laid out whose blocks take one tile after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PersistentConfig {
    /// Rows of the result that a block computes at once: a multiple of 64 for each group.
    pub rows: u32,
    /// Columns of the result: a multiple of 64, up to 256.
    pub cols: u32,
    /// Warpgroups that multiply, which share the rows.
    pub groups: u32,
    /// Slices of the common dimension in shared memory.
    pub stages: u32,
    /// Blocks of a cluster, neighbours along the rows, which share the slices of `b`.
    pub cluster: u32,
    /// Tiles of a cluster along the rows that run beside their neighbours along the columns: what all clusters work at together is
    /// best about as high as it is wide, so that the L2 cache is read least.
    pub height: u32,
}

impl PersistentConfig {
    /// The parts of `a` and `b` in a stage.
    pub(crate) fn tiles(&self, dtype: DType, a: Major, b: Major) -> (PanelTile, PanelTile) {
        (panels(dtype, a, self.rows), panels(dtype, b, self.cols))
    }

    /// The part of `b` that a block of the cluster brings.
    pub(crate) fn part_of_b(&self, dtype: DType, b: Major) -> PanelTile {
        panels(dtype, b, self.cols / self.cluster)
    }

    /// Bytes of dynamic shared memory with slices of so many bytes.
    pub(crate) const fn shared_bytes(&self, slices: u32) -> u32 {
        K::TILE_SLACK + slices * self.stages + self.groups * PANELS * OutputPanel::BYTES
    }

    /// Whether warpgroups have one slab of 64 rows and at most so many columns: those of which threads have sums of their own beside the tensor
    /// cores'.
    pub const fn is_of_slabs(&self, cols: u32) -> bool {
        self.rows == 64 * self.groups && self.cols <= cols
    }

    /// Whether it multiplies pairs: threads have sums of their own and two of the tensor cores, and slices of both numbers of two pairs are
    /// there at once.
    pub(crate) const fn multiplies_pairs(&self) -> bool {
        self.is_of_slabs(128) && self.stages >= 4
    }

    /// A part of the kernel's name.
    pub fn name(&self) -> String {
        let Self { rows, cols, groups, stages, cluster, height: _ } = *self;
        format!("wgp_{rows}x{cols}_g{groups}_s{stages}_c{cluster}")
    }
}

/// A kernel whose tiles ordinary asynchronous copies bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tiled {
    /// On tensor cores.
    Tensor(TensorConfig),
    /// The same for `f32`, whose numbers are sums of two.
    Split(SplitConfig),
    /// On the ordinary units.
    Simt(SimtConfig),
}

impl Tiled {
    /// The tile of a block.
    pub const fn tiles(&self) -> &Tiles {
        match self {
            Self::Tensor(config) => &config.tiles,
            Self::Split(config) => &config.tiles,
            Self::Simt(config) => &config.tiles,
        }
    }

    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        self.tiles().teams * self.team_threads()
    }

    /// Threads of a team.
    pub(in crate::gemm) const fn team_threads(&self) -> u32 {
        match self {
            Self::Tensor(config) => 32 * config.warps_down * config.warps_across,
            Self::Split(config) => config.threads(),
            Self::Simt(SimtConfig { tiles, across }) => {
                tiles.rows * tiles.cols / (SimtConfig::DOWN * *across)
            }
        }
    }

    /// A part of the kernel's name.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Tensor(TensorConfig { tiles, warps_down, warps_across }) => {
                format!("{}_w{warps_down}x{warps_across}", tiles.name())
            }
            Self::Split(SplitConfig { tiles, warps_down, warps_across }) => {
                format!("tf32x3_{}_w{warps_down}x{warps_across}", tiles.name())
            }
            Self::Simt(SimtConfig { tiles, across: 8 }) => format!("simt_{}", tiles.name()),
            Self::Simt(SimtConfig { tiles, across }) => format!("simt_{}_c{across}", tiles.name()),
        }
    }

    pub(crate) const fn with(self, piece: u32) -> Self {
        match self {
            Self::Tensor(c) => Self::Tensor(TensorConfig { tiles: Tiles { piece, ..c.tiles }, ..c }),
            Self::Split(c) => Self::Split(SplitConfig { tiles: Tiles { piece, ..c.tiles }, ..c }),
            Self::Simt(c) => Self::Simt(SimtConfig { tiles: Tiles { piece, ..c.tiles }, ..c }),
        }
    }
}

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Config {
    /// With tensor copies and `wgmma`, in blocks that take one tile after the other.
    Persistent(PersistentConfig),
    /// The same blocks, which share the slices of all tiles evenly, wherever that divides a tile: a launch behind adds the sums of its parts.
    Shared(PersistentConfig),
    /// The same of `f32` that is split into pairs of `f16` before: three products for one.
    F16x3(PersistentConfig),
    /// With tensor copies and `wgmma`, a block for each tile or part of one.
    Warpgroup(WarpgroupConfig),
    /// With ordinary copies.
    Tiled(Tiled),
}

impl Config {
    /// Rows and columns of the result that a block computes.
    pub const fn extent(&self) -> (u32, u32) {
        match self {
            Self::Persistent(config) | Self::Shared(config) | Self::F16x3(config) => {
                (config.rows, config.cols)
            }
            Self::Warpgroup(config) => (config.rows, config.cols),
            Self::Tiled(config) => (config.tiles().rows, config.tiles().cols),
        }
    }

    /// How much of the common dimension is multiplied at once.
    pub const fn slice(&self) -> u32 {
        match self {
            Self::Persistent(_) | Self::Shared(_) | Self::F16x3(_) | Self::Warpgroup(_) => PanelTile::WIDTH,
            Self::Tiled(config) => config.tiles().slice,
        }
    }

    /// That of persistent blocks, if it is one.
    pub(in crate::gemm) const fn persistent(self) -> Option<PersistentConfig> {
        if let Self::Persistent(config) = self { Some(config) } else { None }
    }

    /// Whether so many blocks can share the common dimension of each tile.
    pub(in crate::gemm) const fn splits(&self) -> bool {
        !matches!(self, Self::Persistent(_) | Self::Shared(_) | Self::F16x3(_))
    }

    /// Whether tensor copies bring the operands as they are.
    pub(in crate::gemm) const fn takes_boxes(&self) -> bool {
        matches!(self, Self::Persistent(_) | Self::Shared(_) | Self::Warpgroup(_))
    }

    /// Bytes of dynamic shared memory.
    pub fn shared_bytes(&self, dtype: DType, a: Major, b: Major) -> u32 {
        let slices = |(a, b): (PanelTile, PanelTile)| a.bytes() + b.bytes();
        match self {
            Self::Persistent(config) | Self::Shared(config) => {
                config.shared_bytes(slices(config.tiles(dtype, a, b)))
            }
            Self::F16x3(config) => config.shared_bytes(slices(config.tiles(DType::F16, a, b))),
            Self::Warpgroup(config) => {
                let (a, b) = config.tiles(dtype, a, b);
                K::TILE_SLACK + ((a.bytes() + b.bytes()) * config.stages).max(config.rows * config.cols * 4)
            }
            Self::Tiled(Tiled::Split(SplitConfig { tiles, .. })) => {
                tiles.pipeline(dtype, a, b).total_bytes() + tiles.rows * tiles.cols * 4
            }
            Self::Tiled(config) => config.tiles().shared_bytes(dtype, a, b),
        }
    }

    /// How exact its products of `dtype` are.
    pub fn precision(&self, dtype: DType) -> Precision {
        match self {
            Self::Persistent(_) | Self::Tiled(Tiled::Tensor(_)) if dtype == DType::F32 => Precision::Tf32,
            _ => Precision::Full,
        }
    }

    /// Whether it takes a common dimension of `k`: what may be turned is fetched as whole vectors.
    pub(in crate::gemm) const fn takes_depth(&self, k: u64) -> bool {
        if let Self::F16x3(_) = self {
            return k > 0;
        }
        !matches!(self, Self::Tiled(Tiled::Simt(SimtConfig { across: 9.., .. }))) || k.is_multiple_of(4)
    }

    pub(super) const fn with(self, piece: u32) -> Self {
        match self {
            Self::Persistent(_) | Self::Shared(_) | Self::F16x3(_) | Self::Warpgroup(_) => self,
            Self::Tiled(config) => Self::Tiled(config.with(piece)),
        }
    }
}

/// Bytes of the widest copy.
pub(super) const PIECE: u32 = 16;
