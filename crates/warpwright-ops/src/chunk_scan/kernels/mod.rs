//! The kernels, and what they share: the sizes of a scan, and tiles of a chunk in shared memory.
//!
//! A chunk's results are products of matrices: with `G = C B^T`, and `S[t]` the sum of the exponents up to position `t` of the chunk,
//! `y[t] = sum over s <= t of G[t, s] exp(S[t] - S[s]) step[s] x[s] + exp(S[t]) C[t] h`, where `h` is the state before the chunk. The next
//! chunk's is `exp(S[end]) h + sum over s of exp(S[end] - S[s]) step[s] x[s] B[s]^T`.
//!
//! Warps of the kernels of results and gradients lie four below each other, each with 16 positions, and some beside each other, which share
//! the columns of every product.

pub(super) mod gradients;
pub(super) mod outputs;
pub(super) mod states;
pub(super) mod step_gradients;
pub(super) mod steps;
pub(super) mod sums;

use warpwright_dsl::prelude::*;
use warpwright_dsl::{VECTOR_BYTES, WARP, kernel_args};

use super::tuning::{self, ACROSS, CHUNK};

/// Positions of a warp.
const SLAB: u32 = 16;
/// Warps below each other.
const DOWN: u32 = CHUNK / SLAB;

kernel_args! {
    /// The sizes that every kernel has; `of_group` heads share rows of `B` and `C`.
    pub(super) struct Sizes => SizeParams {
        len: u32, chunks: u32, heads: u32, head_dim: u32, state: u32, groups: u32, of_group: u32,
    }
}

kernel_args! {
    /// A tensor whose positions lie `row` elements apart.
    pub(super) struct Rows => RowParams { data: In<Elem>, row: u64 }
}

kernel_args! {
    /// For every position of a head, whole chunks of them: its step, and the sum of the exponents up to it, for powers of 2.
    pub(super) struct Steps => StepsParams { step: In<f32>, sum: In<f32> }
}

/// The properties that a kernel's code depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    pub(super) dtype: DType,
    /// Elements of tiles for those of a head.
    pub(super) head: u32,
    /// Elements of tiles for those of a state.
    pub(super) state: u32,
    /// Whether rows begin at multiples of 16 bytes and have multiples of them.
    pub(super) aligned: bool,
}

impl Config {
    fn name(self, step: &str) -> String {
        let Self { dtype, head, state, aligned } = self;
        let scalar = if aligned { "" } else { "_scalar" };
        format!("chunk_scan{step}_{dtype}_p{head}n{state}{scalar}")
    }

    /// Threads of a block of results or gradients.
    const fn threads(self) -> u32 {
        DOWN * ACROSS * WARP
    }

    /// A tile of positions by elements of a head.
    pub(super) const fn head_tile(self) -> TileLayout {
        TileLayout::new(self.dtype, CHUNK, self.head)
    }

    /// A tile of positions by numbers of a state.
    pub(super) const fn row_tile(self) -> TileLayout {
        TileLayout::new(self.dtype, CHUNK, self.state)
    }

    /// A tile of a state.
    pub(super) const fn state_tile(self) -> TileLayout {
        TileLayout::new(self.dtype, self.head, self.state)
    }

    /// A tile of pairs of positions.
    pub(super) const fn pair_tile(self) -> TileLayout {
        TileLayout::new(self.dtype, CHUNK, CHUNK)
    }
}

/// Columns of a product that a warp scales at once.
const AT_ONCE: u32 = 32;
/// Bytes of the steps and the sums of a chunk.
const STEP_BYTES: u32 = 2 * CHUNK * 4;

/// The steps and sums of a chunk in shared memory.
#[derive(Clone, Copy)]
struct ChunkSteps<'k> {
    step: Ptr<'k, Shared, f32>,
    sum: Ptr<'k, Shared, f32>,
}

impl<'k> ChunkSteps<'k> {
    fn at(k: K<'k>, address: U32<'k>) -> Self {
        Self { step: k.shared_at(address), sum: k.shared_at(address + CHUNK * 4) }
    }

    /// Starts the copies of the steps of a chunk, which begin at element `from`, where `there` holds.
    fn copy(self, k: K<'k>, steps: StepsParams<'k>, from: U64<'k>, there: Pred<'k>) {
        const VECTOR: u32 = 4;
        let thread = k.thread_idx();
        k.if_(there & thread.lt(2 * CHUNK / VECTOR), || {
            let is_step = thread.lt(CHUNK / VECTOR);
            let at = (thread & (CHUNK / VECTOR - 1)) * VECTOR;
            let from = is_step.pointer(steps.step, steps.sum).at(from + at.to_u64());
            // Sums lie behind steps.
            self.step.at(thread * VECTOR).copy_16(from);
        });
    }

    /// The sum of all exponents of the chunk.
    fn end(self) -> F32<'k> {
        self.sum.at(u64::from(CHUNK - 1)).get()
    }
}

/// The place of a thread in products of a block of results or gradients.
#[derive(Clone, Copy)]
struct Place<'k> {
    k: K<'k>,
    config: Config,
    /// The first position of the warp, and which columns it has.
    down: U32<'k>,
    side: U32<'k>,
    /// The thread's first row, and its first column of each eight.
    row: U32<'k>,
    column: U32<'k>,
}

impl<'k> Place<'k> {
    fn new(k: K<'k>, config: Config) -> Self {
        let warp = k.warp_idx();
        let (row, column) = k.accumulator_origin();
        let down = (warp & (DOWN - 1)) * SLAB;
        Self { k, config, down, side: warp / DOWN, row: down + row, column }
    }

    /// The columns of a warp, of `columns`.
    const fn share(&self, columns: u32) -> u32 {
        columns / ACROSS
    }

    /// Zeros for the warp's part of a product with `columns` columns.
    fn zeros(&self, columns: u32) -> RegTile<'k, f32> {
        RegTile::zero_sums(self.k, self.k.mma_atom(self.config.dtype), SLAB, self.share(columns))
    }

    /// Adds the warp's part of the product of `a` and `b` with `columns` columns, over `depth` of the common dimension.
    fn add(
        &self,
        sums: &mut RegTile<'k, f32>,
        (a, major_a): (SharedTile<'k>, Major),
        (b, major_b): (SharedTile<'k>, Major),
        [columns, depth]: [u32; 2],
    ) {
        let atom = self.k.mma_atom(self.config.dtype);
        let a = a.reader_a(atom, major_a, self.down);
        let b = b.reader_b(atom, major_b, self.side * self.share(columns));
        sums.mma_over(depth, &a, &b);
    }

    /// The product.
    fn product(
        &self,
        a: (SharedTile<'k>, Major),
        b: (SharedTile<'k>, Major),
        [columns, depth]: [u32; 2],
    ) -> RegTile<'k, f32> {
        let mut sums = self.zeros(columns);
        self.add(&mut sums, a, b, [columns, depth]);
        sums
    }

    /// Adds the warp's part of a product, each row times a factor of `to_sums`, a few columns at once; returns for each row of the thread
    /// the dot product with that of a tile, times the other factor.
    fn add_scaled(
        &self,
        sums: &mut RegTile<'k, f32>,
        (a, major_a): (SharedTile<'k>, Major),
        (b, major_b): (SharedTile<'k>, Major),
        [columns, depth]: [u32; 2],
        to_sums: [F32<'k>; 2],
        dots: Option<(SharedTile<'k>, [F32<'k>; 2])>,
    ) -> [F32<'k>; 2] {
        let (k, atom, share) = (self.k, self.k.mma_atom(self.config.dtype), self.share(columns));
        let at_once = share.min(AT_ONCE);
        let first = self.side * share;
        let a = a.reader_a(atom, major_a, self.down);
        let mut found = [k.lit(0.0f32); 2];
        for from in (0..share).step_by(at_once as usize) {
            let mut product = RegTile::zero_sums(k, atom, SLAB, at_once);
            product.mma_over(depth, &a, &b.reader_b(atom, major_b, first + from));
            for (row, values) in product.rows().enumerate() {
                let own = &mut sums.row_mut(row)[from as usize / 4..];
                for (sum, value) in own.iter_mut().zip(values) {
                    *sum = value.mul_add(to_sums[row], *sum);
                }
                let Some((tile, factors)) = dots else { continue };
                let columns = (0..at_once).step_by(8).map(|block| first + self.column + (from + block));
                let others = columns.flat_map(|column| {
                    tile.at(self.rows()[row], column).load::<f32>(2).iter().collect::<Vec<_>>()
                });
                let zero = k.lit(0.0f32);
                let dot =
                    values.iter().zip(others).fold(zero, |sum, (value, other)| value.mul_add(other, sum));
                found[row] = dot.mul_add(factors[row], found[row]);
            }
        }
        found
    }

    /// The first of each pair of neighbouring columns of the thread, of `columns`.
    fn columns(&self, columns: u32) -> Vec<U32<'k>> {
        let first = self.side.mul_add(self.share(columns), self.column);
        (0..self.share(columns)).step_by(8).map(|block| first + block).collect()
    }

    /// The thread's rows.
    fn rows(&self) -> [U32<'k>; 2] {
        [self.row, self.row + 8]
    }

    /// Puts the thread's values of a product into a tile.
    fn put(&self, tile: SharedTile<'k>, values: &RegTile<'k, f32>) {
        let columns = self.columns(tile.layout().cols);
        for (row, values) in self.rows().into_iter().zip(values.rows()) {
            for (&column, pair) in columns.iter().zip(values.chunks(2)) {
                tile.at(row, column).store(Lanes::from(pair.to_vec()));
            }
        }
    }

    /// The elements of a tile in the thread's places.
    fn take(&self, tile: SharedTile<'k>) -> RegTile<'k, f32> {
        let columns = self.columns(tile.layout().cols);
        let of = |row: U32<'k>| {
            columns
                .iter()
                .flat_map(|&column| tile.at(row, column).load::<f32>(2).iter().collect::<Vec<_>>())
                .collect()
        };
        RegTile::new(self.k, 4, self.rows().map(of).to_vec())
    }

    /// The exponents' sums and the steps of the thread's rows, and the same of its columns of a product of positions.
    fn weights(&self, steps: ChunkSteps<'k>) -> Weights<'k> {
        let rows = self.rows().map(|row| [steps.sum.at(row).get(), steps.step.at(row).get()]);
        let columns = self.columns(CHUNK);
        let pairs = |from: Ptr<'k, Shared, f32>| -> Vec<F32<'k>> {
            columns.iter().flat_map(|&column| from.at(column).load(2).iter().collect::<Vec<_>>()).collect()
        };
        let (sums, steps) = (pairs(steps.sum), pairs(steps.step));
        Weights { rows, positions: self.rows(), columns, sums, steps }
    }

    /// Stores the tile of a chunk's rows of a head, as far as there are.
    fn store(
        &self,
        tile: SharedTile<'k>,
        to: Ptr<'k, Write, Elem>,
        row: U64<'k>,
        [rows, columns]: [U32<'k>; 2],
    ) {
        let k = self.k;
        let width = if self.config.aligned { 16 / self.config.dtype.bytes() as u32 } else { 1 };
        let of_row = tile.layout().cols / width;
        k.for_each(k.range(k.thread_idx(), CHUNK * of_row, self.config.threads()), |index| {
            let (position, column) = (index / of_row, index % of_row * width);
            let there = position.lt(rows) & column.lt(columns);
            let at = to.at(position.to_u64() * row + column.to_u64());
            at.only_where(there, Fill::Zero).store(tile.at(position, column).load::<f32>(width));
        });
    }
}

/// The weights of pairs of positions.
struct Weights<'k> {
    /// Sum and step of each row.
    rows: [[F32<'k>; 2]; 2],
    positions: [U32<'k>; 2],
    /// The first of each two columns.
    columns: Vec<U32<'k>>,
    sums: Vec<F32<'k>>,
    steps: Vec<F32<'k>>,
}

impl<'k> Weights<'k> {
    /// How much of what a position gives to the state is left at a later one.
    fn decay(&self, row: usize, column: usize) -> F32<'k> {
        (self.rows[row][0] - self.sums[column]).exp2_approx()
    }

    /// The value of a pair of positions, 0 where the column's is the later one.
    fn masked(&self, row: usize, column: usize, value: F32<'k>) -> F32<'k> {
        let position = self.columns[column / 2] + (column % 2) as u32;
        position.le(self.positions[row]).select(value, 0.0)
    }
}

/// The number of a chunk's first element among the steps of all heads.
fn first_step<'k>(sizes: SizeParams<'k>, sample: U32<'k>, head: U32<'k>, chunk: U32<'k>) -> U64<'k> {
    (sample.mul_wide(sizes.heads) + head.to_u64()) * (sizes.chunks.to_u64() * u64::from(CHUNK))
        + chunk.to_u64() * u64::from(CHUNK)
}

/// The number of the first element of a head's state before a chunk.
fn first_state<'k>(sizes: SizeParams<'k>, sample: U32<'k>, head: U32<'k>, chunk: U32<'k>) -> U64<'k> {
    let chunks = sample.mul_wide(sizes.chunks) + chunk.to_u64();
    (chunks * sizes.heads.to_u64() + head.to_u64()) * sizes.head_dim.mul_wide(sizes.state)
}

/// Heads of a group of a sample in a chunk: what a block of results or gradients has.
struct Share<'k> {
    sample: U32<'k>,
    chunk: U32<'k>,
    group: U32<'k>,
    /// Number of the block among those of its group.
    part: U32<'k>,
    /// The first head, and how many there are.
    head: U32<'k>,
    heads: U32<'k>,
    /// The chunk's first position, and how many there are.
    start: U32<'k>,
    here: U32<'k>,
}

impl<'k> Share<'k> {
    fn new(k: K<'k>, sizes: SizeParams<'k>, parts: U32<'k>) -> Self {
        let (rest, part) = (k.block_idx_x() / parts, k.block_idx_x() % parts);
        let (rest, group) = (rest / sizes.groups, rest % sizes.groups);
        let (sample, chunk) = (rest / sizes.chunks, rest % sizes.chunks);
        let before = part * tuning::HEADS;
        let start = chunk * CHUNK;
        Self {
            sample,
            chunk,
            group,
            part,
            head: group.mul_add(sizes.of_group, before),
            heads: (sizes.of_group - before).min(tuning::HEADS),
            start,
            here: (sizes.len - start).min(CHUNK),
        }
    }

    /// The number of the chunk's first position among those of all samples.
    fn position(&self, sizes: SizeParams<'k>) -> U64<'k> {
        self.sample.mul_wide(sizes.len) + self.start.to_u64()
    }
}

/// How all threads of a block bring rows to a tile: by asynchronous copies, or element by element where they begin anywhere.
#[derive(Clone, Copy)]
struct TileRows<'k> {
    tile: SharedTile<'k>,
    from: Ptr<'k, Read, Elem>,
    /// Elements from one row to the next.
    row: U64<'k>,
    copy: Option<TileCopy<'k>>,
}

impl<'k> TileRows<'k> {
    fn new(config: Config, tile: SharedTile<'k>, from: Ptr<'k, Read, Elem>, row: U64<'k>) -> Self {
        let k = row.k();
        let threads = (k.thread_idx(), k.block_threads());
        let copy = || k.tile_copy(tile, from, row, VECTOR_BYTES, threads).in_whole_pieces();
        Self { tile, from, row, copy: config.aligned.then(copy) }
    }

    /// Starts to fill the tile with as many rows and columns as there are.
    fn start(&self, bounds: [U32<'k>; 2]) {
        let k = self.row.k();
        self.start_at(k.lit(0), k.lit(0), bounds, None);
    }

    /// The same of rows that begin `elements` further on, in the tile `stage` bytes further on, where a condition holds.
    fn start_at(
        &self,
        elements: U64<'k>,
        stage: U32<'k>,
        [rows, cols]: [U32<'k>; 2],
        there: Option<Pred<'k>>,
    ) {
        if let Some(copy) = self.copy {
            let bounds = Bounds { rows: Some(rows), cols: Some(cols) };
            return copy.advanced(elements).start(stage, bounds, there);
        }
        let k = self.row.k();
        let (tile, from, layout) = (self.tile.moved(stage), self.from.at(elements), self.tile.layout());
        let fill = || {
            k.for_each(k.range(k.thread_idx(), layout.rows * layout.cols, k.block_threads()), |index| {
                let (row, col) = (index / layout.cols, index % layout.cols);
                let at = from.at(row.to_u64() * self.row + col.to_u64());
                let element = at.only_where(row.lt(rows) & col.lt(cols), Fill::Zero).get::<f32>();
                tile.at(row, col).set(element);
            });
        };
        match there {
            Some(there) => k.if_(there, fill),
            None => fill(),
        }
    }
}

/// Waits until the rows that threads have started to bring are there for all of them.
fn settle(k: K<'_>, config: Config) {
    if config.aligned {
        k.commit_copies();
        k.wait_copies(0);
    }
    k.barrier();
}

/// A chunk's rows, from element `column` of each on.
fn rows_of_chunk<'k>(
    config: Config,
    tile: SharedTile<'k>,
    rows: RowParams<'k>,
    position: U64<'k>,
    column: U64<'k>,
) -> TileRows<'k> {
    TileRows::new(config, tile, rows.data.at(position * rows.row + column), rows.row)
}
