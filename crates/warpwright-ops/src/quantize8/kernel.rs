//! The kernels: rows and blocks that lie in registers until their scale is known, and tensors with one scale.

use warpwright_dsl::prelude::*;
use warpwright_dsl::rows::{RowVector, row_amax};

use super::tuning::{AMAX_THREADS, AMAX_UNROLL, FLAT_THREADS, FLAT_VECTORS, LOOP_UNROLL, RowLayout, Tile};
use super::{BLOCK, Format, MIN_SCALE, Problem, Scaling};

/// The scale of a part, and what its elements are multiplied by.
struct Scale<'k> {
    scale: F32<'k>,
    inverse: F32<'k>,
}

impl<'k> Scale<'k> {
    fn of(format: Format, amax: F32<'k>) -> Self {
        Self::known((amax / format.max()).maximum(f64::from(MIN_SCALE)))
    }

    fn known(scale: F32<'k>) -> Self {
        Self { scale, inverse: scale.rcp() }
    }

    /// The codes of a vector before they are rounded, which the store does.
    fn codes(&self, x: &Packed<'k, f32>) -> Lanes<'k, f32> {
        x.lanes() * self.inverse
    }
}

fn maximum<'k>(a: F32<'k>, b: F32<'k>) -> F32<'k> {
    a.maximum(b)
}

/// The types of the matrix and of its codes.
fn dtypes(dtype: DType, format: Format) -> DTypes {
    DTypes::all(dtype).with("q", format.dtype())
}

kernel_args! {
    /// `rows` rows of `cols` elements to codes, and a scale for each row.
    pub(super) struct RowsArgs => RowsParams {
        x: In<Elem>, q: Out<Elem>, scales: Out<f32>, rows: u64, cols: u64,
    }
}

/// Quantizes rows that have a scale each.
pub(super) struct Rows {
    pub(super) format: Format,
    pub(super) dtype: DType,
    pub(super) layout: RowLayout,
}

impl KernelDef for Rows {
    type Args = RowsArgs;

    fn spec(&self) -> KernelSpec {
        let Self { format, dtype, layout } = self;
        let name = format!("quantize_{}_{dtype}_{}", format.name(), layout.name());
        KernelSpec::new(name, BlockDim::x(layout.threads)).dtypes(dtypes(*dtype, *format))
    }

    fn build<'k>(&self, k: K<'k>, a: RowsParams<'k>) {
        k.after_previous_grid();
        match self.layout.held {
            Some([team, vectors]) => self.held(k, a, Team::new(k, team), vectors),
            None => self.read_twice(k, a),
        }
    }
}

impl Rows {
    fn held<'k>(&self, k: K<'k>, a: RowsParams<'k>, team: Team<'k>, vectors: u32) {
        let row = team.hold(a.rows, a.cols, self.layout.width, vectors);
        let xs = row.load::<f32>(a.x, Fill::Zero);
        let scale = Scale::of(self.format, team.combine(row_amax(k, &xs), maximum));
        row.store(a.q, xs.iter().map(|x| scale.codes(x)));
        let number = team.row();
        let first = team.lane().eq(0) & number.lt(a.rows);
        k.if_(first, || a.scales.at(number).set(scale.scale));
    }

    fn read_twice<'k>(&self, k: K<'k>, a: RowsParams<'k>) {
        let width = self.layout.width;
        let number = k.block_idx_x().to_u64();
        let (x, q) = (a.x.at(number * a.cols), a.q.at(number * a.cols));
        let row = RowLoop::of_block(k, a.cols, width, LOOP_UNROLL);
        let load = |v: &RowVector<'k>| v.of(x, Fill::Zero).load_packed::<f32>(width);
        let mine = row.fold(k.lit(0.0), |round, amax: F32<'k>| {
            let xs: Vec<_> = round.bounded().iter().map(load).collect();
            amax.maximum(row_amax(k, &xs))
        });
        let scale = Scale::of(self.format, k.group_combine_once(k.block_threads(), mine, maximum));
        row.each(|round| {
            let vectors = round.bounded();
            let xs: Vec<_> = vectors.iter().map(load).collect();
            for (v, x) in vectors.iter().zip(&xs) {
                v.of(q, Fill::Zero).store(scale.codes(x));
            }
        });
        k.if_(k.thread_idx().eq(0), || a.scales.at(number).set(scale.scale));
    }
}

kernel_args! {
    /// A matrix and the number of blocks of 128 columns.
    pub(super) struct Matrix => MatrixParams { rows: u64, cols: u64, col_blocks: u32 }
}

/// The arguments of a matrix.
pub(super) fn matrix(problem: Problem) -> Matrix {
    let Problem { rows, cols, .. } = problem;
    // A matrix with more has no grid.
    let col_blocks = u32::try_from(cols.div_ceil(BLOCK)).unwrap_or(u32::MAX);
    Matrix { rows: rows as u64, cols: cols as u64, col_blocks }
}

/// A block's tile of a matrix, and a thread's part of it.
struct Position<'k> {
    /// Rows of tiles above, and columns of blocks before.
    tile: [U32<'k>; 2],
    /// The thread's first row.
    first: U64<'k>,
    /// How many of the thread's rows there are.
    left: U32<'k>,
    /// The thread's vectors in each of its rows.
    rows: Vec<HeldVectors<'k>>,
}

impl<'k> Position<'k> {
    fn new(k: K<'k>, matrix: MatrixParams<'k>, tile: Tile) -> Self {
        let (block, thread) = (k.block_idx_x(), k.thread_idx());
        let [down, across] = [block / matrix.col_blocks, block % matrix.col_blocks];
        let column = (thread & (tile.lanes - 1)).mul_add(tile.width, across * BLOCK as u32).to_u64();
        let in_tile = (thread >> tile.lanes.trailing_zeros()) * tile.rounds;
        let first = down.mad_wide(tile.rows(), in_tile.to_u64());
        let most = k.lit(u64::from(tile.rounds));
        let left = first.lt(matrix.rows).select((matrix.rows - first).min(most), 0).to_u32();
        let step = tile.lanes * tile.width;
        let inside: Vec<_> =
            (0..tile.vectors()).map(|v| (column + u64::from(v * step)).lt(matrix.cols)).collect();
        let mut start = first * matrix.cols + column;
        let row = |round: u32| {
            let there = left.gt(round);
            start = if round > 0 { start + matrix.cols } else { start };
            let inside = inside.iter().map(|inside| *inside & there).collect();
            HeldVectors::new(k, start, step, tile.width, inside)
        };
        Self { tile: [down, across], first, left, rows: (0..tile.rounds).map(row).collect() }
    }

    /// Where the scale of the thread's first row lies among those of 1 x 128 elements.
    fn first_strip(&self, rows: U64<'k>) -> U64<'k> {
        self.tile[1].to_u64() * rows + self.first
    }
}

kernel_args! {
    /// A matrix to codes, and a scale for each block of 1 x 128 or 128 x 128 elements.
    pub(super) struct BlocksArgs => BlocksParams {
        x: In<Elem>, q: Out<Elem>, scales: Out<f32>, matrix: Matrix,
    }
}

/// Quantizes blocks.
pub(super) struct Blocks {
    pub(super) format: Format,
    pub(super) dtype: DType,
    /// Whether a block has 128 rows, all those of the tile, or one.
    pub(super) whole: bool,
    pub(super) tile: Tile,
}

impl KernelDef for Blocks {
    type Args = BlocksArgs;

    fn spec(&self) -> KernelSpec {
        let Self { format, dtype, whole, tile } = self;
        let scaling = if *whole { Scaling::BlockWise128x128 } else { Scaling::BlockWise1x128 };
        let name = format!("quantize_{}_{dtype}_{}_{}", format.name(), scaling.name(), tile.name());
        KernelSpec::new(name, BlockDim::x(tile.threads)).dtypes(dtypes(*dtype, *format))
    }

    fn build<'k>(&self, k: K<'k>, a: BlocksParams<'k>) {
        k.after_previous_grid();
        let position = Position::new(k, a.matrix, self.tile);
        let xs: Vec<_> = position.rows.iter().map(|row| row.load::<f32>(a.x, Fill::Zero)).collect();
        if self.whole {
            let all: Vec<_> = xs.iter().flatten().cloned().collect();
            let amax = k.group_combine_once(self.tile.threads, row_amax(k, &all), maximum);
            let scale = Scale::of(self.format, amax);
            for (row, xs) in position.rows.iter().zip(&xs) {
                row.store(a.q, xs.iter().map(|x| scale.codes(x)));
            }
            // Blocks are numbered as their scales lie.
            k.if_(k.thread_idx().eq(0), || a.scales.at(k.block_idx_x()).set(scale.scale));
        } else {
            self.strips(k, a, &position, &xs);
        }
    }
}

impl Blocks {
    /// The lanes of a row share its scales out, so that each of them divides once for all rows.
    fn strips<'k>(
        &self,
        k: K<'k>,
        a: BlocksParams<'k>,
        position: &Position<'k>,
        xs: &[Vec<Packed<'k, f32>>],
    ) {
        let Tile { lanes, rounds, .. } = self.tile;
        let amax = xs.iter().map(|xs| row_amax(k, xs)).collect();
        let Some(amax) = k.warp_combine_each(lanes, amax, maximum) else { return };
        let scale = Scale::of(self.format, amax);
        let (lane, share) = (k.lane_idx(), lanes / rounds);
        let first_lane = lane & !(lanes - 1);
        for ((row, xs), round) in position.rows.iter().zip(xs).zip(0..) {
            let inverse = scale.inverse.shfl_idx(first_lane + round * share);
            row.store(a.q, xs.iter().map(|x| x.lanes() * inverse));
        }
        let row = (lane & (lanes - 1)) >> share.trailing_zeros();
        let stores = (lane & (share - 1)).eq(0) & row.lt(position.left);
        let at = a.scales.at(position.first_strip(a.matrix.rows) + row.to_u64());
        at.only_where(stores, Fill::Zero).set(scale.scale);
    }
}

kernel_args! {
    /// The largest magnitude of what each block reads.
    pub(super) struct AmaxArgs => AmaxParams { x: In<Elem>, partials: Out<f32>, n: u64 }
}

/// Looks for the largest magnitude of a tensor.
pub(super) struct Amax {
    pub(super) dtype: DType,
    pub(super) width: u32,
    pub(super) blocks: u32,
}

impl KernelDef for Amax {
    type Args = AmaxArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, width, blocks } = self;
        KernelSpec::new(format!("amax_{dtype}_b{blocks}x{width}"), BlockDim::x(AMAX_THREADS))
            .dtypes(DTypes::all(*dtype))
    }

    fn build<'k>(&self, k: K<'k>, a: AmaxParams<'k>) {
        k.after_previous_grid();
        let (block, width) = (k.block_idx_x(), self.width);
        let first = block.mad_wide(AMAX_THREADS * width, (k.thread_idx() * width).to_u64());
        let stride = u64::from(AMAX_THREADS * width * self.blocks);
        let vectors = RowLoop::new(k, first, a.n, stride, AMAX_UNROLL);
        let mine = vectors.fold(k.lit(0.0), |round, amax: F32<'k>| {
            let load = |v: &RowVector<'k>| v.of(a.x, Fill::Zero).load_packed::<f32>(width);
            let xs: Vec<_> = round.bounded().iter().map(load).collect();
            amax.maximum(row_amax(k, &xs))
        });
        let amax = k.group_combine_once(AMAX_THREADS, mine, maximum);
        k.if_(k.thread_idx().eq(0), || a.partials.at(block).set(amax));
    }
}

kernel_args! {
    /// A tensor to codes with one scale, which is given or follows from the results of [`Amax`].
    pub(super) struct FlatArgs => FlatParams {
        x: In<Elem>, scale: In<f32>, partials: In<f32>, q: Out<Elem>, scales: Out<f32>, n: u64,
    }
}

/// Quantizes a tensor with one scale.
pub(super) struct Flat {
    pub(super) format: Format,
    pub(super) dtype: DType,
    pub(super) width: u32,
    /// The number of results of [`Amax`]; `None` if the scale is given.
    pub(super) partials: Option<u32>,
}

impl KernelDef for Flat {
    type Args = FlatArgs;

    fn spec(&self) -> KernelSpec {
        let Self { format, dtype, width, partials } = self;
        let scale = partials.map_or("static".to_owned(), |partials| format!("tensor{partials}"));
        KernelSpec::new(
            format!("quantize_{}_{dtype}_{scale}_x{width}", format.name()),
            BlockDim::x(FLAT_THREADS),
        )
        .dtypes(dtypes(*dtype, *format))
    }

    fn build<'k>(&self, k: K<'k>, a: FlatParams<'k>) {
        k.after_previous_grid();
        let (block, thread, width) = (k.block_idx_x(), k.thread_idx(), self.width);
        let step = FLAT_THREADS * width;
        let first = block.mad_wide(step * FLAT_VECTORS, (thread * width).to_u64());
        let inside = (0..FLAT_VECTORS).map(|v| (first + u64::from(v * step)).lt(a.n)).collect();
        let held = HeldVectors::new(k, first, step, width, inside);
        let xs = held.load::<f32>(a.x, Fill::Zero);
        let scale = match self.partials {
            None => Scale::known(a.scale.get()),
            Some(partials) => {
                let mine = a.partials.at(thread).only_where(thread.lt(partials), Fill::Zero).get();
                let scale = Scale::of(self.format, k.group_combine_once(FLAT_THREADS, mine, maximum));
                let first = (block | thread).eq(0);
                k.if_(first, || a.scales.set(scale.scale));
                scale
            }
        };
        held.store(a.q, xs.iter().map(|x| scale.codes(x)));
    }
}

kernel_args! {
    /// Codes and scales to elements.
    pub(super) struct DequantizeArgs => DequantizeParams {
        q: In<Elem>, scales: In<f32>, y: Out<Elem>, n: u64, matrix: Matrix,
    }
}

/// Turns codes back into elements.
pub(super) struct Dequantize {
    pub(super) format: Format,
    pub(super) dtype: DType,
    pub(super) scaling: Scaling,
    pub(super) tile: Tile,
}

impl KernelDef for Dequantize {
    type Args = DequantizeArgs;

    fn spec(&self) -> KernelSpec {
        let Self { format, dtype, scaling, tile } = self;
        // One scale is one scale, whoever found it.
        let scaling = if scaling.is_single() { Scaling::TensorWise } else { *scaling };
        let name = format!("dequantize_{}_{dtype}_{}_{}", format.name(), scaling.name(), tile.name());
        KernelSpec::new(name, BlockDim::x(tile.threads)).dtypes(dtypes(*dtype, *format))
    }

    fn build<'k>(&self, k: K<'k>, a: DequantizeParams<'k>) {
        k.after_previous_grid();
        if self.scaling.is_single() {
            let scale = a.scales.get::<f32>();
            elementwise(k, a.n, self.tile.width, |i, w| a.y.at(i).store(a.q.at(i).load::<f32>(w) * scale));
            return;
        }
        let position = Position::new(k, a.matrix, self.tile);
        let [down, across] = position.tile;
        // The scale of the thread's first row, and the distance of those of neighbouring rows.
        let (first, pitch) = match self.scaling {
            Scaling::BlockWise1x128 => (position.first_strip(a.matrix.rows), 1),
            // A tile lies in one block.
            Scaling::BlockWise128x128 => {
                let block = down >> (BLOCK as u32 / self.tile.rows()).trailing_zeros();
                (block.mad_wide(a.matrix.col_blocks, across.to_u64()), 0)
            }
            _ => (position.first, 1),
        };
        let first = a.scales.at(first);
        let load = |(row, round): (&HeldVectors<'k>, u32)| {
            let there = position.left.gt(round);
            let scale = first.at(u64::from(pitch * round)).only_where(there, Fill::Zero).get::<f32>();
            (scale, row.load::<f32>(a.q, Fill::Zero))
        };
        let loaded: Vec<_> = position.rows.iter().zip(0..).map(load).collect();
        for (row, (scale, qs)) in position.rows.iter().zip(loaded) {
            row.store(a.y, qs.iter().map(|q| q.lanes() * scale));
        }
    }
}
