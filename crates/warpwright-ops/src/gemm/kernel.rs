//! A product of matrices as a kernel: a block computes a tile of `y` from tiles of `a` and `b` that asynchronous copies bring to
//! shared memory while the last ones are multiplied.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::epilogue::{self, EpilogueArgs, Outputs, ResultArgs, SumTile};
use super::tuning::{Tiled, Tiles};
use super::{simt, tensor, tf32};

kernel_args! {
    /// `y = activation(alpha op(a) op(b) + beta c + bias)`, or the sums of a part of the common dimension
    pub(super) struct GemmArgs => GemmParams {
        a: In<Elem>, b: In<Elem>, to: ResultArgs,
        m: u32, n: u32, depth: u32,
        /// How much of the common dimension a block along y of the grid takes.
        part: u32,
        lda: u64, ldb: u64, ldy: u64,
        /// Elements from one matrix of a batch to the next.
        stride_a: u64, stride_b: u64, stride_y: u64,
        epilogue: EpilogueArgs,
    }
}

/// Tiles along the rows whose tiles along the columns run together, so that they share what the L2 cache holds.
const GROUP_ROWS: u32 = 8;

/// The tile of a block along rows and columns of the result: blocks along x of the grid go down groups of rows.
pub(crate) fn tile_of_block<'k>(
    block: U32<'k>,
    (m, n): (U32<'k>, U32<'k>),
    (rows, cols): (u32, u32),
) -> (U32<'k>, U32<'k>) {
    let (down, across) = ((m + (rows - 1)) / rows, (n + (cols - 1)) / cols);
    let group = block / (across * GROUP_ROWS);
    let first = group * GROUP_ROWS;
    let height = (down - first).min(GROUP_ROWS);
    let local = block - first * across;
    (first + local % height, local / height)
}

/// A team's part of the common dimension and of shared memory.
struct Share<'k> {
    team: Option<U32<'k>>,
    tile_a: SharedTile<'k>,
    tile_b: SharedTile<'k>,
    first: U32<'k>,
    depth: U32<'k>,
    /// Slices, if not those of `depth`: every team goes through as many, because they meet at the same barriers.
    steps: Option<U32<'k>>,
}

impl<'k> Share<'k> {
    /// That of `team`, of the block's.
    fn of_team(self, team: U32<'k>, tiles: &Tiles, stages_bytes: u32) -> Self {
        let Tiles { slice, teams, .. } = *tiles;
        let steps = (self.depth + (teams * slice - 1)) / (teams * slice);
        let before = team * steps * slice;
        let behind = team * stages_bytes;
        Self {
            team: Some(team),
            tile_a: self.tile_a.moved(behind),
            tile_b: self.tile_b.moved(behind),
            first: self.first + before,
            depth: (self.depth.max(before) - before).min(steps * slice),
            steps: Some(steps),
        }
    }
}

/// The elements of both operands, how they lie in memory, and how a block that multiplies them is laid out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factors {
    pub(crate) dtype: DType,
    pub(crate) major: (Major, Major),
    pub(crate) config: Tiled,
}

impl Factors {
    /// The sums of a block, when all threads are here.
    pub(crate) fn sums<'k, A: Accumulate>(&self, problem: &Problem<'k>) -> SumTile<'k> {
        match self.config {
            Tiled::Tensor(config) if self.dtype == DType::F32 => tf32::sums(self, config, problem),
            Tiled::Tensor(config) => tensor::sums::<A>(self, config, problem),
            Tiled::Simt(config) => simt::sums::<A>(self, config, problem),
            Tiled::Split(config) => tf32::exact_sums(self, config, problem),
        }
    }
}

/// How slices come to shared memory.
enum Slices<'k> {
    /// Those of matrices.
    Copied(Box<Copies<'k>>),
    /// Whatever this starts of a step for the stage that begins so many bytes after the first, where a condition holds.
    Brought(Box<dyn Fn(U32<'k>, U32<'k>, Pred<'k>) + 'k>),
}

/// The copies of the slices of two matrices.
struct Copies<'k> {
    major: (Major, Major),
    slice: u32,
    a: TileCopy<'k>,
    b: TileCopy<'k>,
    /// Where what the thread turns of `a` and `b` begins in shared memory.
    turned: [Option<TilePoint<'k>>; 2],
    /// Elements from one slice to the next.
    next_a: U64<'k>,
    next_b: U64<'k>,
    /// How much is left of rows, columns, and of the common dimension.
    left: (U32<'k>, U32<'k>, U32<'k>),
    /// Whether a team may have less than its steps.
    of_team: bool,
}

/// The block's part of a product, and how its slices come to shared memory.
pub(crate) struct Problem<'k> {
    pub(super) k: K<'k>,
    /// The warp's number in its team.
    pub(super) warp: U32<'k>,
    /// The number of its team, if there are several.
    pub(super) team: Option<U32<'k>>,
    pub(super) tile_a: SharedTile<'k>,
    pub(super) tile_b: SharedTile<'k>,
    /// How they lie in shared memory.
    pub(super) placed: (Major, Major),
    slices: Slices<'k>,
    /// First row and column of the result.
    pub(super) origin: (U32<'k>, U32<'k>),
    /// Slices.
    pub(super) steps: U32<'k>,
}

impl<'k> Problem<'k> {
    /// That of matrices, and the number of its product.
    fn of_matrices(k: K<'k>, p: GemmParams<'k>, factors: &Factors) -> (Self, U64<'k>) {
        let Factors { dtype, major, config } = *factors;
        let tiles = *config.tiles();
        let Tiles { rows, cols, slice, piece, teams, .. } = tiles;
        let (layout_a, layout_b) = tiles.layouts(dtype, major.0, major.1);
        let turns = |major| matches!(config, Tiled::Simt(c) if c.turns(major));
        let batch = k.block_idx_z().to_u64();
        let (tile_row, tile_col) = tile_of_block(k.block_idx_x(), (p.m, p.n), (rows, cols));
        let (row, col) = (tile_row * rows, tile_col * cols);
        let first = k.block_idx_y() * p.part;
        let depth = (first + p.part).min(p.depth) - first;
        let tile_a = k.tile_at(k.dynamic_shared_elem(dtype), layout_a);
        let tile_b = k.tile_at(k.dynamic_shared_elem(dtype), layout_b).moved(layout_a.bytes());
        let mut warp = k.warp_idx();
        let mut copying = (k.thread_idx(), k.block_threads());
        let mut share = Share { team: None, tile_a, tile_b, first, depth, steps: None };
        if teams > 1 {
            let threads = config.team_threads();
            let team = k.thread_idx() / threads;
            warp = warp % (threads / 32);
            copying = (k.thread_idx() % threads, threads);
            share = share.of_team(team, &tiles, tiles.pipeline(dtype, major.0, major.1).total_bytes());
        }
        let Share { team, tile_a, tile_b, first, depth, steps } = share;
        // Where the first slice begins, and how far the next lies.
        let side = |major: Major, outer: U32<'k>, leading: U64<'k>| match major {
            Major::K => (outer.to_u64() * leading + first.to_u64(), k.lit(u64::from(slice))),
            Major::Mn => (first.to_u64() * leading + outer.to_u64(), leading * u64::from(slice)),
        };
        let (from_a, next_a) = side(major.0, row, p.lda);
        let (from_b, next_b) = side(major.1, col, p.ldb);
        let copy_a = k.tile_copy(tile_a, p.a.at(batch * p.stride_a + from_a), p.lda, piece, copying);
        let copy_b = k.tile_copy(tile_b, p.b.at(batch * p.stride_b + from_b), p.ldb, piece, copying);
        let (outer_a, outer_b) = tiles.layouts(dtype, Major::Mn, Major::Mn);
        let outer = |major, tile: SharedTile<'k>, layout| {
            if turns(major) { k.tile_from(tile.base(), layout) } else { tile }
        };
        let (tile_a, tile_b) = (outer(major.0, tile_a, outer_a), outer(major.1, tile_b, outer_b));
        let turned =
            [turns(major.0).then(|| copy_a.across(tile_a)), turns(major.1).then(|| copy_b.across(tile_b))];
        let placed = |major| if turns(major) { Major::Mn } else { major };
        let copies = Copies {
            major,
            slice,
            a: copy_a,
            b: copy_b,
            turned,
            next_a,
            next_b,
            left: (p.m - row, p.n - col, depth),
            of_team: team.is_some(),
        };
        let problem = Self {
            k,
            warp,
            team,
            tile_a,
            tile_b,
            placed: (placed(major.0), placed(major.1)),
            slices: Slices::Copied(Box::new(copies)),
            origin: (row, col),
            steps: steps.unwrap_or_else(|| (depth + (slice - 1)) / slice),
        };
        (problem, batch)
    }

    /// The sums from `origin` on of `steps` slices, which what `slices` makes of both tiles in the first stage starts the copies of.
    pub(crate) fn brought<F: Fn(U32<'k>, U32<'k>, Pred<'k>) + 'k>(
        k: K<'k>,
        factors: &Factors,
        origin: (U32<'k>, U32<'k>),
        steps: U32<'k>,
        slices: impl FnOnce(SharedTile<'k>, SharedTile<'k>) -> F,
    ) -> Self {
        let Factors { dtype, major, config } = *factors;
        let (layout_a, layout_b) = config.tiles().layouts(dtype, major.0, major.1);
        let tile_a = k.tile_at(k.dynamic_shared_elem(dtype), layout_a);
        let tile_b = k.tile_at(k.dynamic_shared_elem(dtype), layout_b).moved(layout_a.bytes());
        let slices = Slices::Brought(Box::new(slices(tile_a, tile_b)));
        Self { k, warp: k.warp_idx(), team: None, tile_a, tile_b, placed: major, slices, origin, steps }
    }

    /// Starts the copies of slice `step`; what has to be turned comes to registers.
    pub(super) fn start(&self, step: U32<'k>, stage: U32<'k>, there: Pred<'k>) -> Turning<'k> {
        match &self.slices {
            Slices::Copied(copies) => copies.start(step, stage, there),
            Slices::Brought(start) => {
                start(step, stage, there);
                Turning::default()
            }
        }
    }
}

impl<'k> Copies<'k> {
    fn start(&self, step: U32<'k>, stage: U32<'k>, there: Pred<'k>) -> Turning<'k> {
        let (m, n, depth) = self.left;
        let begun = step * self.slice;
        let depth = if self.of_team { depth.max(begun) - begun } else { depth - begun };
        let bounds = |major, outer: U32<'k>| {
            let (rows, cols) = if major == Major::K { (outer, depth) } else { (depth, outer) };
            Bounds { rows: Some(rows), cols: Some(cols) }
        };
        let step = step.to_u64();
        let sides = [(self.a, self.next_a, self.major.0, m), (self.b, self.next_b, self.major.1, n)];
        let mut sides_turning = Vec::new();
        for ((copy, next, major, outer), turned) in sides.into_iter().zip(self.turned) {
            let (copy, bounds) = (copy.advanced(step * next), bounds(major, outer));
            match turned {
                Some(first) => sides_turning.push((copy.fetch(bounds, Some(there)), first.moved(stage))),
                None => copy.start(stage, bounds, Some(there)),
            }
        }
        Turning { sides: sides_turning, done: 0 }
    }
}

/// Pieces that a thread has fetched and not yet turned.
#[derive(Default)]
pub(super) struct Turning<'k> {
    sides: Vec<(Fetched<'k>, TilePoint<'k>)>,
    /// Pieces that have been stored.
    done: u32,
}

impl Turning<'_> {
    fn pieces(&self) -> u32 {
        self.sides.iter().map(|(fetched, _)| fetched.pieces()).sum()
    }

    /// Stores an even share of it, where this is one of `turns` that are left.
    pub(super) fn put(&mut self, turns: u32) {
        let share = (self.pieces() - self.done).div_ceil(turns);
        let all = self
            .sides
            .iter()
            .flat_map(|(fetched, first)| (0..fetched.pieces()).map(move |i| (fetched, i, first)));
        for (fetched, i, first) in all.skip(self.done as usize).take(share as usize) {
            fetched.put_across(i, *first);
        }
        self.done += share;
    }
}

/// The name of a kernel: element type, orientation of both operands, what a block computes, and of what.
pub(super) fn name(dtype: DType, (a, b): (Major, Major), config: &str, split: bool) -> String {
    let letter = |major| if major == Major::K { "k" } else { "o" };
    let split = if split { "_split" } else { "" };
    format!("gemm_{dtype}_{}{}_{config}{split}", letter(a), letter(b))
}

/// A product of matrices whose tiles ordinary asynchronous copies bring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gemm {
    pub(super) dtype: DType,
    /// How `op(a)` and `op(b)` are stored.
    pub(super) a: Major,
    pub(super) b: Major,
    pub(super) config: Tiled,
    /// Whether sums of parts are stored as they are, one matrix after the other.
    pub(super) split: bool,
}

impl AccumulateKernel for Gemm {
    type Args = GemmArgs;

    fn spec(&self) -> KernelSpec {
        // Sums and operands take the registers that a thread can have; the assembler would rather spill than not fit twice.
        KernelSpec::new(
            name(self.dtype, (self.a, self.b), &self.config.name(), self.split),
            BlockDim::x(self.config.threads()),
        )
        .dtypes(epilogue::dtypes(self.dtype, self.split))
        .min_blocks_per_sm(1)
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: GemmParams<'k>) {
        let factors = Factors { dtype: self.dtype, major: (self.a, self.b), config: self.config };
        let (problem, batch) = Problem::of_matrices(k, p, &factors);
        let sums = factors.sums::<A>(&problem);
        let matrix = k.block_idx_y().to_u64() * k.grid_dim_z().to_u64() + batch;
        let outputs = Outputs::new(p.to, p.epilogue, (p.ldy, p.stride_y), (batch, matrix));
        epilogue::finish_tile::<A>(k, outputs, sums, problem.origin, (p.m, p.n));
    }
}
