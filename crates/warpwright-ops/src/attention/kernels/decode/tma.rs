//! The engine of tensor cores whose warps walk alone over tiles that tensor copies bring: `f16` and `bf16` from sm_90 on.
//!
//! The warps of a team have a slab of rows each; the teams of a block share its rows and take turns with tiles of columns. One thread of
//! a team starts the copies of its tiles, so that a tile costs a warp few instructions beside its products; that leaves the memory as the
//! only limit.

use std::cell::{Cell, RefCell};

use warpwright_dsl::prelude::*;
use warpwright_dsl::{
    Fragment, Major, MatrixA, MatrixB, Mbarriers, MmaAtom, PanelTile, SharedTile, TensorMapParam, TileLayout,
    TileReader, WARP,
};

use super::super::dropout::{DrawLanes, Keys};
use super::super::engine::{Engine, Form, Next, Place, Source};
use super::super::float8::{GROUP, PAIR, Queries, in_order, of_keys, of_values};
use super::super::mma::{LANES, SLAB, VECTOR, draw_lanes, sum_column, sum_parts};
use super::padding;
use crate::attention::layout::{BlockLayout, BlockShape, DecodeLayout};

/// Up to here elements of a row, the fragments of the block's rows stay in registers.
const HELD: u32 = 128;

/// How a block is laid out whose teams of warps fetch tiles of columns of their own by tensor copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecodeTma {
    /// Warps of a block.
    pub warps: u32,
    /// Slabs of 16 rows, and warps of a team: 1, 2, 4 or 8.
    pub slabs: u32,
    /// Tiles of a team in shared memory: the one that is used and those on their way.
    pub stages: u32,
    /// Columns of a tile: 16 or 32. The rows of a page are a multiple.
    pub columns: u32,
    /// Elements of a row of a tile: 64, 128 or 256.
    pub width: u32,
}

impl DecodeTma {
    /// The tiles of keys, and those of values.
    pub(in crate::attention) const fn panels(self, dtype: DType) -> [PanelTile; 2] {
        let Self { columns, width, .. } = self;
        [
            PanelTile { dtype, major: Major::K, outer: columns, depth: width },
            PanelTile { dtype, major: Major::Mn, outer: width, depth: columns },
        ]
    }

    /// Bytes of a tile of keys of `dtype`, and of one of values.
    const fn tile_bytes(self, dtype: DType) -> u32 {
        let [keys, _] = self.panels(dtype);
        keys.bytes()
    }

    /// Bytes of a slab of rows.
    const fn slab_bytes(self) -> u32 {
        SLAB * self.width * 2
    }

    /// Threads of a team.
    const fn team_threads(self) -> u32 {
        self.slabs * WARP
    }

    /// Bytes of what the teams leave for each other, beside keys and values of `dtype`.
    const fn results_bytes(self, dtype: DType) -> u32 {
        self.warps * SLAB * (self.width + padding(dtype)) * 4
    }

    /// The team of the warp.
    pub(super) fn team(self, k: K<'_>) -> U32<'_> {
        if self.slabs == 1 { k.warp_idx() } else { k.warp_idx() >> self.slabs.trailing_zeros() }
    }
}

impl BlockLayout for DecodeTma {
    fn name(&self) -> String {
        let Self { warps, slabs, stages, columns, width } = self;
        let rows = if *slabs == 1 { String::new() } else { format!("r{}", self.rows()) };
        format!("tma_w{warps}{rows}s{stages}c{columns}d{width}")
    }

    fn shape(&self) -> BlockShape {
        let Self { warps, slabs, columns, width, .. } = *self;
        BlockShape { threads: warps * WARP, rows: slabs * SLAB, columns, width, vector: VECTOR }
    }

    fn shared_bytes(&self, dtype: DType, stationary: u32) -> u32 {
        let rows = stationary * self.slabs * self.slab_bytes();
        let tiles = self.teams() * self.stages * 2 * self.tile_bytes(dtype);
        K::TILE_SLACK + (rows + tiles).max(self.results_bytes(dtype))
    }

    fn min_blocks_per_sm(&self, _: DType) -> Option<u32> {
        Some(1)
    }
}

/// Each team walks alone.
impl DecodeLayout for DecodeTma {
    fn teams(&self) -> u32 {
        self.warps / self.slabs
    }

    fn result_vector(&self) -> u32 {
        VECTOR / 2
    }

    fn takes_turns(&self) -> bool {
        true
    }
}

/// A layout with its registers.
#[derive(Debug)]
pub(in crate::attention) struct TmaEngine<'k> {
    config: DecodeTma,
    /// Of keys and values.
    dtype: DType,
    atom: MmaAtom,
    /// The block's rows, if keys and values are of 8-bit floats.
    queries: Option<Queries<'k>>,
    /// Where the block's rows lie, and the team's first tile.
    stationary_at: U32<'k>,
    tiles_at: U32<'k>,
    /// The warp's team and its slab there, if a team has several.
    team: Option<U32<'k>>,
    slab: Option<U32<'k>>,
    /// Those of the team count the bytes of its tiles.
    ready: Mbarriers<'k>,
    boxes: [TensorMapParam<'k>; 2],
    /// Key head and batch.
    of: [U32<'k>; 2],
    /// Whether values behind the last key may be in the tensor.
    lengths: bool,
    /// The number of the thread in its team.
    member: U32<'k>,
    /// Where a lane reads the team's first tile of keys and of values.
    keys: TileReader<'k, MatrixB>,
    values: TileReader<'k, MatrixB>,
    /// The stage of the tile that comes next, and the parity of its round.
    turn: Cell<[U32<'k>; 2]>,
    /// Bytes from the team's first tile to the one that is used.
    used: Cell<U32<'k>>,
    held: RefCell<Vec<Fragment<'k, MatrixA>>>,
}

/// A tile: an address for stationary rows, bytes from the team's first tile for columns.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct At<'k>(U32<'k>);

impl<'k> TmaEngine<'k> {
    /// With initialised barriers, for queries, and keys and values, of two types, of one key head in one batch, unless they lie in pages.
    pub(in crate::attention) fn new(
        k: K<'k>,
        config: DecodeTma,
        [of_queries, dtype]: [DType; 2],
        boxes: [TensorMapParam<'k>; 2],
        of: [U32<'k>; 2],
        lengths: bool,
    ) -> Self {
        let stationary_at = k.dynamic_shared_tiles();
        let of_team = config.stages * 2 * config.tile_bytes(dtype);
        // Tiles begin at multiples of what the pattern of their pieces repeats after, as the rows of the block do.
        let tiles_at = config.team(k).mul_add(of_team, stationary_at + config.slabs * config.slab_bytes());
        let all = k.mbarriers(config.teams() * config.stages);
        k.if_(k.thread_idx().eq(0), || {
            for barrier in 0..config.teams() * config.stages {
                all.at(barrier).init(1);
            }
            k.publish_mbarriers();
        });
        k.barrier();
        let ready = all.from(config.team(k) * config.stages);
        let float8 = dtype.is_float8();
        let (atom, none) = (k.mma_atom(if float8 { DType::F16 } else { dtype }), k.lit(0u32));
        let panel = k.tile_from(tiles_at, TileLayout::new(atom.dtype(), config.columns, PanelTile::WIDTH));
        Self {
            config,
            dtype,
            atom,
            queries: float8.then(|| Queries::new(k, of_queries, config.rows(), config.width)),
            stationary_at,
            tiles_at,
            team: (config.slabs > 1).then(|| config.team(k)),
            slab: (config.slabs > 1).then(|| k.warp_idx() & (config.slabs - 1)),
            ready,
            boxes,
            of,
            lengths,
            member: match config.slabs {
                1 => k.lane_idx(),
                _ => k.thread_idx() & (config.team_threads() - 1),
            },
            keys: panel.reader_b(atom, Major::K, none),
            values: panel.moved(config.tile_bytes(dtype)).reader_b(atom, Major::Mn, none),
            turn: Cell::new([none, none]),
            used: Cell::new(none),
            held: RefCell::default(),
        }
    }

    /// Columns from a tile of the team to its next one.
    fn step(&self) -> u32 {
        self.config.columns * self.config.teams()
    }

    /// Waits for all warps of the team.
    fn meet(&self, k: K<'k>) {
        match self.team {
            // Barrier 0 is of the block.
            Some(team) => k.barrier_of(team + 1, self.config.team_threads()),
            None => k.warp_barrier(),
        }
    }

    /// Bytes from the team's first tile to that of a stage.
    fn place(&self, stage: U32<'k>) -> U32<'k> {
        stage * (2 * self.config.tile_bytes(self.dtype))
    }

    /// Starts the copies of the columns from `at` on to a stage, if they are below `end`.
    fn fetch(&self, k: K<'k>, sources: [Source<'k>; 2], stage: U32<'k>, (at, there): (I32<'k>, Pred<'k>)) {
        k.if_(there & self.member.eq(0), || {
            let done = self.ready.at(stage);
            done.arrive_expecting(2 * self.config.tile_bytes(self.dtype));
            let [key_head, batch] = self.of;
            let (batch, row) = match sources[0].form {
                Form::Pages(pages) => pages.place(batch, at),
                _ => (batch, at.to_u32()),
            };
            let start = k.lit(0u32);
            let [keys, values] = self.config.panels(self.dtype);
            let to = self.tiles_at + self.place(stage);
            let rest = [key_head, batch];
            keys.fetch(self.boxes[0], to, (row, start), &rest, done);
            values.fetch(self.boxes[1], to + self.config.tile_bytes(self.dtype), (start, row), &rest, done);
        });
    }

    /// Rows from a tile of columns to its panel that has the elements of 16 bits from `column` on, and which of that panel's they are.
    fn panel(&self, column: u32) -> (u32, u32) {
        (column / PanelTile::WIDTH * self.config.columns, column % PanelTile::WIDTH)
    }

    /// The panel of that number of a slab of the block's rows, the first without a number.
    fn stationary_panel(&self, k: K<'k>, slab: Option<U32<'k>>, panel: U32<'k>) -> SharedTile<'k> {
        let layout = TileLayout::new(self.atom.dtype(), SLAB, PanelTile::WIDTH);
        let from = slab
            .map_or(self.stationary_at, |slab| slab.mul_add(self.config.slab_bytes(), self.stationary_at));
        k.tile_from(panel.mul_add(layout.bytes(), from), layout)
    }

    /// The warp's rows as left operands.
    fn fragments(&self, k: K<'k>) -> Vec<Fragment<'k, MatrixA>> {
        let panels = 0..self.config.width / PanelTile::WIDTH;
        let depths = || (0..PanelTile::WIDTH).step_by(self.atom.k() as usize);
        let of = |panel| {
            self.stationary_panel(k, self.slab, k.lit(panel)).reader_a(self.atom, Major::K, k.lit(0u32))
        };
        panels.map(of).flat_map(|panel| depths().map(move |depth| panel.load(0, depth))).collect()
    }
}

impl<'k> Engine<'k, f32> for TmaEngine<'k> {
    type Tile = At<'k>;

    fn lanes(&self) -> u32 {
        LANES
    }

    fn product_place(&self, k: K<'k>) -> Place<'k> {
        let (row, first) = k.accumulator_origin();
        let row = self.slab.map_or(row, |slab| slab.mul_add(SLAB, row));
        let columns = (0..self.config.columns / 8).flat_map(|block| [8 * block, 8 * block + 1]).collect();
        Place { rows: vec![row, row + 8], first, columns }
    }

    fn lazy_rescale(&self) -> bool {
        self.config.width >= HELD
    }

    fn draw_lanes(&self, keys: Keys) -> DrawLanes {
        draw_lanes(keys)
    }

    fn load_stationary(&self, k: K<'k>, source: Source<'k>, first: I32<'k>, _: u32) -> At<'k> {
        let place = |row: U32<'k>, column: U32<'k>| {
            let panel = column >> PanelTile::WIDTH.trailing_zeros();
            let (slab, row) = match self.config.slabs {
                1 => (None, row),
                _ => (Some(row >> SLAB.trailing_zeros()), row & (SLAB - 1)),
            };
            self.stationary_panel(k, slab, panel).at(row, column & (PanelTile::WIDTH - 1))
        };
        if let Some(queries) = self.queries {
            queries.load(k, (source, first), (k.thread_idx(), self.config.threads()), place);
            return At(self.stationary_at);
        }
        let per_row = self.config.width / VECTOR;
        k.for_each(k.range(k.thread_idx(), self.config.rows() * per_row, self.config.threads()), |index| {
            let (row, column) = (index >> per_row.trailing_zeros(), (index & (per_row - 1)) * VECTOR);
            let at = first + row.to_i32();
            let there = at.lt(source.rows) & column.lt(source.width);
            let from = source.data.at(source.offset(at, there)).at(column);
            place(row, column).store(from.only_where(there, Fill::Zero).load::<f32>(VECTOR));
        });
        At(self.stationary_at)
    }

    fn publish_stationary(&self, k: K<'k>) {
        k.barrier();
        if self.config.width <= HELD {
            self.held.replace(self.fragments(k));
        }
    }

    fn pipeline_state(&self) -> Vec<U32<'k>> {
        self.turn.get().to_vec()
    }

    fn resume(&self, turn: &[U32<'k>]) {
        if let [stage, parity] = *turn {
            self.turn.set([stage, parity]);
        }
    }

    fn start(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>, first: Next<'k>) {
        for stage in 0..self.config.stages - 1 {
            self.fetch(k, sources, k.lit(stage), first.behind(at, stage * self.step()));
        }
    }

    fn wait_k(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>, next: Next<'k>) -> At<'k> {
        let ([stage, parity], stages) = (self.turn.get(), self.config.stages);
        // The tile before, whose place is filled again, has been read by the whole team.
        self.meet(k);
        let before = stage.eq(0).select(stages - 1, stage - 1);
        self.fetch(k, sources, before, next.behind(at, (stages - 1) * self.step()));
        self.ready.at(stage).wait(parity);
        let tile = self.place(stage);
        let last = stage.eq(stages - 1);
        self.turn.set([last.select(0, stage + 1), parity ^ last.select(1, 0)]);
        self.used.set(tile);
        if self.lengths {
            let left = sources[1].rows - at;
            let columns = self.config.columns.cast_signed();
            // Weights of 0 do not leave out what is no number.
            k.if_(left.lt(columns), || {
                let to = self.tiles_at + tile + self.config.tile_bytes(self.dtype);
                let values = self.config.panels(self.dtype)[1];
                values.clear_from(to, left.max(0).to_u32(), (self.member, self.config.team_threads()));
                self.meet(k);
            });
        }
        At(tile)
    }

    fn wait_v(&self, _: K<'k>, _: [Source<'k>; 2], _: I32<'k>) -> At<'k> {
        At(self.used.get())
    }

    fn reuse_k(&self, _: K<'k>, _: [Source<'k>; 2], _: I32<'k>) -> At<'k> {
        At(self.used.get())
    }

    fn product(&self, k: K<'k>, _: At<'k>, At(tile): At<'k>) -> RegTile<'k, f32> {
        let DecodeTma { columns, width, .. } = self.config;
        let held = self.held.borrow();
        let loaded = if held.is_empty() { self.fragments(k) } else { Vec::new() };
        let left = if held.is_empty() { &loaded } else { &held };
        let keys = self.keys.moved(tile);
        let mut sum = RegTile::zero_sums(k, self.atom, SLAB, columns);
        if let Some(queries) = self.queries {
            for (both, depth) in left.chunks(2).zip((0..width / PAIR).step_by(self.atom.k() as usize)) {
                let (panel, depth) = self.panel(depth);
                for column in (0..columns).step_by(16) {
                    let read = keys.load_pair(panel + column, depth);
                    for (a, keys) in both.iter().zip(of_keys(k, &read)) {
                        sum.mma(column, std::slice::from_ref(a), &keys);
                    }
                }
            }
            return queries.restored(sum, &self.product_place(k).rows);
        }
        for (a, depth) in left.iter().zip((0..width).step_by(self.atom.k() as usize)) {
            let (panel, depth) = self.panel(depth);
            for column in (0..columns).step_by(16) {
                sum.mma(column, std::slice::from_ref(a), &keys.load_pair(panel + column, depth));
            }
        }
        sum
    }

    fn zero(&self, k: K<'k>) -> RegTile<'k, f32> {
        RegTile::zero_sums(k, self.atom, SLAB, self.config.width)
    }

    fn accumulate(
        &self,
        k: K<'k>,
        weights: &RegTile<'k, f32>,
        At(tile): At<'k>,
        mut sum: RegTile<'k, f32>,
    ) -> RegTile<'k, f32> {
        let DecodeTma { columns, width, .. } = self.config;
        let right = self.values.moved(tile);
        for depth in (0..columns).step_by(self.atom.k() as usize) {
            let a = weights.fragments(self.atom, depth);
            if self.queries.is_some() {
                for column in (0..width / PAIR).step_by(16) {
                    let (panel, within) = self.panel(column);
                    let read = right.load_pair(within, panel + depth);
                    for (column, values) in (PAIR * column..).step_by(GROUP as usize).zip(&read) {
                        sum.mma(column, &a, &of_values(k, values));
                    }
                }
                continue;
            }
            for column in (0..width).step_by(16) {
                let (panel, within) = self.panel(column);
                sum.mma(column, &a, &right.load_pair(within, panel + depth));
            }
        }
        sum
    }

    fn finish(&self, _: K<'k>) {}

    fn sum_parts(&self) -> (u32, Vec<u32>) {
        sum_parts(self.config.width, self.queries.is_some())
    }

    fn sum_column(&self, k: K<'k>) -> U32<'k> {
        sum_column(k, self.queries.is_some())
    }

    fn in_order(&self, part: &[F32<'k>]) -> Vec<F32<'k>> {
        in_order(part)
    }
}
