//! Operands of `f32` as pairs of `f16`.
//!
//! Elements that a product adds up share a scale: a row of `a`, a column of `b`. It is a power of two that brings the largest magnitude to
//! 2^14 or more, less than 2^15. A scaled element is `high + low / 4096`, both `f16`, to 24 bits if it is at least 2^-12, 2^-26 of the largest, and to within 2^-37 otherwise.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;
use warpwright_dsl::rows::RowVector;
use warpwright_dsl::{Halves, Space, WARP};

use super::VECTOR;

/// Factor of the second number of a pair: one less would leave bits of it below the least of `f16`, one more exceed the largest.
pub(super) const LOW: f64 = 4096.0;
/// Threads of a block.
const THREADS: u32 = 256;
/// Warps of a block, which share the rows where columns have scales.
const WARPS: u32 = THREADS / WARP;
/// Vectors of a row, or rows of columns, that a thread has on their way at once.
const UNROLL: u32 = 4;
/// Blocks along the rows that find the extents of columns: all have their loads on their way when they are combined.
pub(super) const MAX_PARTS: usize = 16;
/// Rows that are worth a block.
const LEAST_ROWS: usize = 64;

/// The exponent of a scaled largest magnitude.
const TOP: u32 = 14;
/// Biased exponents of the magnitudes between which a largest one has a scale: from 2^-100 to 2^63, so that scales of both operands may be
/// multiplied to sums one after the other.
const EXPONENTS: (u32, u32) = (27, 190);
/// Bits of a `f32` behind its exponent.
const MANTISSA: u32 = 23;
/// How much less than the largest exponent that of an element may be that is kept to 24 bits.
const WHOLE: u32 = TOP + 12;

kernel_args! {
    /// Matrices of `rows` x `cols` elements.
    pub(super) struct SourceArgs => SourceParams {
        x: In<Elem>,
        rows: u32, cols: u32,
        /// Elements from one row, and from one matrix, to the next.
        leading: u64, stride: u64,
    }
}

kernel_args! {
    /// Each matrix to two planes, one of the high and one of the low numbers, and scales.
    pub(super) struct SplitArgs => SplitParams {
        from: SourceArgs, y: Out<Elem>, scales: Out<f32>,
        /// Elements from one row, and from one plane, to the next.
        leading: u64, plane: u64,
    }
}

kernel_args! {
    /// The extents of columns in parts of the rows, of each part all largest magnitudes before all least.
    pub(super) struct ExtentArgs => ExtentParams { from: SourceArgs, extents: Out<u32>, rows_of_part: u32 }
}

kernel_args! {
    /// The same for the kernel that makes scales of them.
    pub(super) struct SplitColsArgs => SplitColsParams {
        to: SplitArgs, extents: In<u32>, rows_of_part: u32, parts: u32,
    }
}

/// Parts of the rows of a matrix whose columns have scales, and the rows of each.
pub(super) const fn parts(rows: usize) -> (usize, usize) {
    let most = if rows < MAX_PARTS * LEAST_ROWS { rows.div_ceil(LEAST_ROWS) } else { MAX_PARTS };
    let each = if most == 0 { rows } else { rows.div_ceil(most) };
    (if each == 0 { 0 } else { rows.div_ceil(each) }, each)
}

/// The magnitudes that decide a scale, as bits.
#[derive(Clone, Copy)]
struct Extent<'k> {
    largest: U32<'k>,
    /// One less than that of the least that is not zero.
    least: U32<'k>,
}

carry!(Extent { largest, least });

impl<'k> Extent<'k> {
    /// That of nothing.
    fn none(k: K<'k>) -> Self {
        Self { largest: k.lit(0u32), least: k.lit(u32::MAX) }
    }

    fn with(self, x: F32<'k>) -> Self {
        let magnitude = x.to_bits() & (u32::MAX >> 1);
        Self { largest: self.largest.max(magnitude), least: self.least.min(magnitude - 1) }
    }

    fn both(self, other: Self) -> Self {
        Self { largest: self.largest.max(other.largest), least: self.least.min(other.least) }
    }
}

/// The least magnitude of a sum of `depth` products of scaled elements beside which what pairs lack is no more than half a bit of `f32`: each
/// element lacks at most 2^-37, times the largest of the other operand, 2^15, for both.
pub(super) fn least(depth: usize) -> f32 {
    depth as f32 * (2.0f32).powi(2 - 37 + 15 + 24)
}

/// The factor of the elements, and its reciprocal.
struct Scale<'k> {
    /// 0 where there is none.
    factor: F32<'k>,
    /// 0 where all elements are zeros, and less where the pairs may not be all that the elements were.
    inverse: F32<'k>,
}

impl<'k> Scale<'k> {
    fn of(k: K<'k>, extent: Extent<'k>) -> Self {
        let exponent = extent.largest >> MANTISSA;
        let exists = exponent.ge(EXPONENTS.0) & exponent.le(EXPONENTS.1);
        let kept = exists.select(exponent, EXPONENTS.0);
        let power = |biased: U32<'k>| F32::from_bits(biased << MANTISSA);
        // 2^(14 - e), where `exponent` is e + 127.
        let factor = exists.select(power(k.lit(2 * 127 + TOP) - kept), 0.0);
        let inverse = power(kept - TOP);
        let whole = exists & (extent.least + 1).ge((kept - WHOLE) << MANTISSA);
        let otherwise = exists.select(-inverse, -1.0);
        let some = whole.select(inverse, otherwise);
        Self { factor, inverse: extent.largest.eq(0).select(0.0, some) }
    }
}

/// The numbers of each pair, of an element and its factor.
fn split<'k>(pairs: impl Iterator<Item = (F32<'k>, F32<'k>)>) -> [Lanes<'k, f32>; 2] {
    let numbers = pairs.map(|(x, factor)| {
        // What has no factor may be infinite.
        let scaled = factor.ne(0.0).select(x * factor, 0.0);
        let [high, _] = Halves::from_word(scaled.pack_with(scaled, DType::F16), DType::F16).widen();
        (high, (scaled - high) * LOW)
    });
    let (high, low): (Vec<_>, Vec<_>) = numbers.unzip();
    [high.into(), low.into()]
}

/// Elements of a vector, of rows that are read so or not.
const fn width(vectors: bool) -> u32 {
    if vectors { VECTOR as u32 } else { 1 }
}

fn spec(what: &str, vectors: bool) -> KernelSpec {
    KernelSpec::new(format!("gemm_{what}_v{}", width(vectors)), BlockDim::x(THREADS))
}

impl<'k> SplitParams<'k> {
    /// The planes of the block's matrix.
    fn planes(&self, k: K<'k>) -> [Ptr<'k, Write, Elem>; 2] {
        let first = k.block_idx_z().to_u64() * 2;
        [0u64, 1].map(|plane| self.y.at((first + plane) * self.plane))
    }
}

/// Splits an operand whose rows in memory have scales: a block for each.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitRows {
    pub(super) vectors: bool,
}

impl KernelDef for SplitRows {
    type Args = SplitArgs;

    fn spec(&self) -> KernelSpec {
        spec("split_f16_rows", self.vectors).dtypes(DTypes::all(DType::F32).with("y", DType::F16))
    }

    fn build<'k>(&self, k: K<'k>, p: SplitParams<'k>) {
        k.after_previous_grid();
        split_row(k, p, self.vectors);
    }
}

kernel_args! {
    /// Both operands, and matrices of each.
    pub(super) struct SplitBothArgs => SplitBothParams { sides: [SplitArgs; 2], matrices: [u32; 2] }
}

/// Splits both operands in one launch, one beside the other along y of the grid.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitBothRows {
    pub(super) vectors: bool,
}

impl KernelDef for SplitBothRows {
    type Args = SplitBothArgs;

    fn spec(&self) -> KernelSpec {
        let dtypes = DTypes::all(DType::F32).with("sides.0.y", DType::F16).with("sides.1.y", DType::F16);
        spec("split_f16_both", self.vectors).dtypes(dtypes)
    }

    fn build<'k>(&self, k: K<'k>, p: SplitBothParams<'k>) {
        k.after_previous_grid();
        let row = |side: usize| {
            let there = k.block_idx_x().lt(p.sides[side].from.rows) & k.block_idx_z().lt(p.matrices[side]);
            k.if_(there, || split_row(k, p.sides[side], self.vectors));
        };
        k.if_else(k.block_idx_y().eq(0), || row(0), || row(1));
    }
}

/// Splits the row of the block.
fn split_row<'k>(k: K<'k>, p: SplitParams<'k>, vectors: bool) {
    let width = width(vectors);
    let (matrix, number) = (k.block_idx_z(), k.block_idx_x());
    let SourceParams { x, rows, cols, leading, stride } = p.from;
    let x = x.at(matrix.to_u64() * stride + number.to_u64() * leading);
    let row = RowLoop::of_block(k, cols.to_u64(), width, UNROLL);
    let load = |v: &RowVector<'k>| v.of(x, Fill::Zero).load::<f32>(width);
    let mine = row.fold(Extent::none(k), |round, extent| {
        let xs: Vec<_> = round.bounded().iter().map(load).collect();
        xs.iter().flat_map(Lanes::iter).fold(extent, Extent::with)
    });
    let scale = Scale::of(k, k.group_combine_once(THREADS, mine, Extent::both));
    let planes = p.planes(k).map(|plane| plane.at(number.to_u64() * p.leading));
    row.each(|round| {
        let vectors = round.bounded();
        let xs: Vec<_> = vectors.iter().map(load).collect();
        for (v, x) in vectors.iter().zip(&xs) {
            let numbers = split(x.iter().map(|x| (x, scale.factor)));
            for (numbers, plane) in numbers.into_iter().zip(planes) {
                v.of(plane, Fill::Zero).store(numbers);
            }
        }
    });
    let to = p.scales.at(matrix.mul_wide(rows) + number.to_u64());
    k.if_(k.thread_idx().eq(0), || to.set(scale.inverse));
}

/// A block's columns, of which each lane has a vector, and its rows, which warps share.
struct Columns<'k> {
    k: K<'k>,
    p: SourceParams<'k>,
    width: u32,
    /// The lane's first column, and whether it is one.
    col: U32<'k>,
    there: Pred<'k>,
    /// The block's first row, and the one behind its last.
    rows: (U32<'k>, U32<'k>),
}

impl<'k> Columns<'k> {
    fn new(k: K<'k>, p: SourceParams<'k>, vectors: bool, rows_of_part: U32<'k>) -> Self {
        let width = width(vectors);
        let col = (k.block_idx_x() * WARP + k.lane_idx()) * width;
        let first = k.block_idx_y() * rows_of_part;
        let rows = (first, (first + rows_of_part).min(p.rows));
        Self { k, p, width, col, there: col.lt(p.cols), rows }
    }

    /// Columns of a block.
    const fn count(&self) -> u32 {
        WARP * self.width
    }

    /// Runs `body` for vectors of some rows at once, whose rows and whether they are there it gets with them.
    fn fold<C: Carry<'k>>(
        &self,
        init: C,
        body: impl FnOnce(Vec<(U32<'k>, Pred<'k>, Lanes<'k, f32>)>, C) -> C,
    ) -> C {
        let (k, p) = (self.k, self.p);
        let x = p.x.at(k.block_idx_z().to_u64() * p.stride + self.col.to_u64());
        let rounds = k.range(self.rows.0 + k.warp_idx(), self.rows.1, WARPS * UNROLL);
        k.fold(rounds, init, |first, state| {
            let row = |i: u32| {
                let row = first + i * WARPS;
                let inside = self.there & row.lt(self.rows.1);
                (row, inside)
            };
            let load = |(row, inside): (U32<'k>, Pred<'k>)| {
                let of_row = x.at(row.to_u64() * p.leading);
                (row, inside, of_row.only_where(inside, Fill::Zero).load::<f32>(self.width))
            };
            body((0..UNROLL).map(row).map(load).collect(), state)
        })
    }

    /// Where the extents of column `col` in part `part` of the rows are.
    fn of_part<S: Space>(
        &self,
        extents: Ptr<'k, S, u32>,
        part: U32<'k>,
        parts: U32<'k>,
        col: U32<'k>,
    ) -> [Ptr<'k, S, u32>; 2] {
        let first = (self.k.block_idx_z() * parts + part) * 2;
        [0, 1].map(|which| extents.at((first + which).mul_wide(self.p.cols) + col.to_u64()))
    }
}

/// Finds the extents of columns in parts of the rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct ColumnExtents {
    pub(super) vectors: bool,
}

impl KernelDef for ColumnExtents {
    type Args = ExtentArgs;

    fn spec(&self) -> KernelSpec {
        spec("column_extents", self.vectors).dtypes(DTypes::all(DType::F32))
    }

    fn build<'k>(&self, k: K<'k>, p: ExtentParams<'k>) {
        k.after_previous_grid();
        let columns = Columns::new(k, p.from, self.vectors, p.rows_of_part);
        let none = (0..columns.width).map(|_| Extent::none(k)).collect::<Vec<_>>();
        let mine = columns.fold(none, |vectors, extents| {
            vectors.iter().fold(extents, |extents, (.., x)| {
                extents.into_iter().zip(x.iter()).map(|(extent, x)| extent.with(x)).collect()
            })
        });
        // Warps after one another, with the columns of all lanes.
        let count = columns.count();
        let places = [0, 1].map(|_| k.shared::<u32>(WARPS * count));
        let at = k.warp_idx() * count + k.lane_idx() * columns.width;
        for (i, extent) in (0..).zip(&mine) {
            places[0].at(at + i).set(extent.largest);
            places[1].at(at + i).set(extent.least);
        }
        k.barrier();
        let thread = k.thread_idx();
        let col = k.block_idx_x() * count + thread;
        k.if_(thread.lt(count) & col.lt(p.from.cols), || {
            let of_warp = |warp: u32| {
                let [largest, least] = places.map(|place| place.at(thread + warp * count).get::<u32>());
                Extent { largest, least }
            };
            let all = (1..WARPS).map(of_warp).fold(of_warp(0), Extent::both);
            let [largest, least] = columns.of_part(p.extents, k.block_idx_y(), k.grid_dim_y(), col);
            largest.set(all.largest);
            least.set(all.least);
        });
    }
}

/// Splits an operand whose columns in memory have scales, of which the extents are known.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitCols {
    pub(super) vectors: bool,
}

impl KernelDef for SplitCols {
    type Args = SplitColsArgs;

    fn spec(&self) -> KernelSpec {
        spec("split_f16_cols", self.vectors).dtypes(DTypes::all(DType::F32).with("to.y", DType::F16))
    }

    fn build<'k>(&self, k: K<'k>, p: SplitColsParams<'k>) {
        k.after_previous_grid();
        let SplitParams { from, scales, leading, .. } = p.to;
        let columns = Columns::new(k, from, self.vectors, p.rows_of_part);
        let count = columns.count();
        let factors = k.shared::<f32>(count);
        let thread = k.thread_idx();
        let col = k.block_idx_x() * count + thread;
        let inside = col.lt(from.cols);
        k.if_(thread.lt(count), || {
            let of_part = |part: u32| {
                let there = inside & p.parts.gt(part);
                let at = columns.of_part(p.extents, k.lit(part), p.parts, col);
                let [largest, least] = at.map(|at| at.only_where(there, Fill::Zero).get::<u32>());
                Extent { largest, least: there.select(least, u32::MAX) }
            };
            let parts: Vec<_> = (0..MAX_PARTS as u32).map(of_part).collect();
            let scale = Scale::of(k, parts.into_iter().fold(Extent::none(k), Extent::both));
            factors.at(thread).set(scale.factor);
            let to = scales.at(k.block_idx_z().mul_wide(from.cols) + col.to_u64());
            k.if_(inside & k.block_idx_y().eq(0), || to.set(scale.inverse));
        });
        k.barrier();
        let mine = (0..columns.width).map(|i| factors.at(k.lane_idx() * columns.width + i).get::<f32>());
        let mine: Vec<_> = mine.collect();
        let planes = p.to.planes(k).map(|plane| plane.at(columns.col.to_u64()));
        columns.fold((), |vectors, ()| {
            for (row, inside, x) in vectors {
                let numbers = split(x.iter().zip(mine.iter().copied()));
                for (numbers, plane) in numbers.into_iter().zip(planes) {
                    let of_row = plane.at(row.to_u64() * leading);
                    of_row.only_where(inside, Fill::Zero).store(numbers);
                }
            }
        });
    }
}
