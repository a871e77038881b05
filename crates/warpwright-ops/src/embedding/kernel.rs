//! The kernels that copy rows and add them up.

use warpwright_dsl::divide::{DivisorArgs, WideDivisorArgs};
use warpwright_dsl::prelude::*;
use warpwright_dsl::{WARP, bounded_blocks, kernel_args};

use super::tuning::{GATHER_THREADS, PART, SUM_UNROLL, SUM_WARPS, UNROLL};

kernel_args! {
    /// `y_i = weight[indices_i]`, `vectors` in all, `of_row` to a row.
    pub(crate) struct GatherArgs => GatherParams {
        weight: In<Elem>, indices: In<u32>, y: Out<Elem>, rows: u64, words: u32, vectors: u64,
        of_row: WideDivisorArgs, of_row_small: DivisorArgs,
    }
}

kernel_args! {
    /// Rows of `vectors` vectors at `places`, whose columns `columns` warps share.
    pub(crate) struct SumArgs => Sums {
        dy: In<Elem>, places: In<u32>, vectors: u32, columns: DivisorArgs,
    }
}

kernel_args! {
    /// The sums of those parts whose places are of one of the `rows` rows.
    pub(crate) struct PartArgs => PartParams {
        sums: SumArgs, keys: In<u32>, rows: u32, parts: u32, partials: Out<Elem>,
    }
}

kernel_args! {
    /// `dweight`, whose row `v` has the places from `starts[v]` to below `starts[v + 1]`; each is the mean of its terms if `mean` is not 0.
    pub(crate) struct RowArgs => RowParams {
        sums: SumArgs, starts: In<u32>, partials: In<Elem>, rows: u32, mean: u32, dweight: Out<Elem>,
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Gather {
    pub(crate) dtype: DType,
    pub(crate) width: u32,
}

impl AccumulateKernel for Gather {
    type Args = GatherArgs;

    fn spec(&self) -> KernelSpec {
        let name = format!("embedding_{}_x{}", self.dtype, self.width);
        KernelSpec::new(name, GATHER_BLOCK).dtypes(DTypes::all(self.dtype))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: GatherParams<'k>) {
        a.copy::<A, ()>(k, self.dtype, self.width, |_| (), |x, ()| x);
    }
}

impl<'k> GatherParams<'k> {
    /// Copies the rows, each vector as `made` makes it with what `of_row` loads for a row of the result, if it lies there.
    pub(crate) fn copy<A: Accumulate, F>(
        self,
        k: K<'k>,
        dtype: DType,
        width: u32,
        of_row: impl Fn(U64<'k>) -> F,
        made: impl Fn(Packed<'k, A>, F) -> Packed<'k, A>,
    ) {
        k.after_previous_grid();
        let (a, per_block) = (self, GATHER_THREADS * UNROLL);
        bounded_blocks(k, a.vectors, per_block, |bounded| {
            let first = k.block_idx_x().mul_wide(per_block);
            let row = a.of_row.quotient(first);
            let column = (first - row * a.of_row_small.divisor.to_u64()).to_u32();
            let vectors: Vec<_> = (0..UNROLL)
                .map(|i| {
                    let of_block = k.thread_idx() + i * GATHER_THREADS;
                    let (rows, column) = a.of_row_small.divide(column + of_block);
                    let vector = first + of_block.to_u64();
                    let there = bounded.then(|| vector.lt(a.vectors));
                    (row + rows.to_u64(), column, vector, there)
                })
                .collect();
            let indices: Vec<_> = vectors
                .iter()
                .map(|&(row, _, _, there)| {
                    let row = there.map_or(row, |there| there.select(row, 0));
                    (a.indices.integer(row, a.words), of_row(row))
                })
                .collect();
            let rows: Vec<(Packed<'k, A>, Pred<'k>, F)> = vectors
                .iter()
                .zip(indices)
                .map(|(&(_, column, _, there), (index, of_row))| {
                    let valid = index.ge(0) & index.lt(a.rows.to_i64());
                    let from = index.to_u64() * a.of_row_small.divisor.to_u64() + column.to_u64();
                    let read = there.map_or(valid, |there| valid & there);
                    let x = a.weight.at(from * u64::from(width)).only_where(read, Fill::Zero);
                    (x.load_packed(width), valid, of_row)
                })
                .collect();
            let nan = Packed::round(k, dtype, Lanes::<A>::constant(k, f64::NAN, width));
            for ((_, _, vector, there), (x, valid, of_row)) in vectors.into_iter().zip(rows) {
                let y = a.y.at(vector * u64::from(width));
                let y = there.map_or(y, |there| y.only_where(there, Fill::Zero));
                y.store_packed(&valid.select_all(&made(x, of_row), &nan));
            }
        });
    }
}

/// The blocks of kernels that take rows, and of those that add them up.
pub(crate) const GATHER_BLOCK: BlockDim = BlockDim::x(GATHER_THREADS);
pub(crate) const SUM_BLOCK: BlockDim = BlockDim::x(SUM_WARPS * WARP);

/// Bits of a place in its part.
const PART_BITS: u32 = PART.trailing_zeros();

/// The vector of a row that a lane adds up.
#[derive(Clone, Copy)]
struct Column<'k> {
    /// The row or the part of the warp.
    row: U32<'k>,
    vector: U32<'k>,
    there: Pred<'k>,
    width: u32,
}

impl<'k> Sums<'k> {
    fn column(self, k: K<'k>, width: u32) -> Column<'k> {
        let warp = k.block_idx_x() * SUM_WARPS + k.warp_idx();
        let (row, column) = self.columns.divide(warp);
        let vector = column * WARP + k.lane_idx();
        Column { row, vector, there: vector.lt(self.vectors), width }
    }

    /// Where the vector of `row` is.
    fn at<S: warpwright_dsl::Space>(
        self,
        x: Ptr<'k, S, Elem>,
        row: U32<'k>,
        column: Column<'k>,
    ) -> Ptr<'k, S, Elem> {
        x.at(row.mad_wide(self.vectors, column.vector.to_u64()) * u64::from(column.width))
    }

    /// `sum` and the vectors of the rows that `row` gives for the numbers from `first` to below `end`, in order; each times its factor
    /// if it has one.
    fn add<A: Accumulate>(
        self,
        k: K<'k>,
        x: Ptr<'k, Read, Elem>,
        [first, end]: [U32<'k>; 2],
        column: Column<'k>,
        sum: Lanes<'k, A>,
        row: impl Fn(U32<'k>, Pred<'k>) -> (U32<'k>, Option<Reg<'k, A>>),
    ) -> Lanes<'k, A> {
        k.fold(k.range(first, end, SUM_UNROLL), sum, |first, sum| {
            let rows: Vec<_> = (0..SUM_UNROLL)
                .map(|i| {
                    let there = (first + i).lt(end);
                    (row(first + i, there), there & column.there)
                })
                .collect();
            let load = |((row, factor), there)| {
                let x = self.at(x, row, column).only_where(there, Fill::Zero);
                (x.load_packed::<A>(column.width), factor)
            };
            let rows: Vec<_> = rows.into_iter().map(load).collect();
            rows.iter().fold(sum, |sum, (x, factor)| match factor {
                Some(factor) => x.lanes().mul_add(*factor, sum),
                None => sum + x.lanes(),
            })
        })
    }

    /// [`add`](Self::add) of the rows of `dy` at sorted places.
    fn add_places<A: Accumulate>(
        self,
        k: K<'k>,
        ends: [U32<'k>; 2],
        column: Column<'k>,
        sum: Lanes<'k, A>,
        factors: Option<Ptr<'k, Read, Elem>>,
    ) -> Lanes<'k, A> {
        self.add(k, self.dy, ends, column, sum, |i, there| {
            let place: U32<'k> = self.places.at(i).only_where(there, Fill::Zero).get();
            (place, factors.map(|factors| factors.at(place).only_where(there, Fill::Zero).get()))
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    pub(crate) dtype: DType,
    pub(crate) width: u32,
}

impl AccumulateKernel for Parts {
    type Args = PartArgs;

    fn spec(&self) -> KernelSpec {
        let name = format!("embedding_backward_parts_{}_x{}", self.dtype, self.width);
        let dtypes = DTypes::all(self.dtype).accumulated(["partials"]);
        KernelSpec::new(name, SUM_BLOCK).dtypes(dtypes)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: PartParams<'k>) {
        a.add::<A>(k, self.width, None);
    }
}

impl<'k> PartParams<'k> {
    /// The sums of parts, of rows times their factors if there are any.
    pub(crate) fn add<A: Accumulate>(self, k: K<'k>, width: u32, factors: Option<Ptr<'k, Read, Elem>>) {
        k.after_previous_grid();
        let a = self;
        let column = a.sums.column(k, width);
        k.if_(column.row.lt(a.parts), || {
            let first = column.row * PART;
            let (key, last): (U32<'k>, U32<'k>) =
                (a.keys.at(first).get(), a.keys.at(first + (PART - 1)).get());
            k.if_(key.eq(last) & key.lt(a.rows), || {
                let none = Lanes::constant(k, 0.0, width);
                let sum = a.sums.add_places::<A>(k, [first, first + PART], column, none, factors);
                a.sums.at(a.partials, column.row, column).only_where(column.there, Fill::Zero).store(sum);
            });
        });
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) dtype: DType,
    pub(crate) width: u32,
}

impl AccumulateKernel for Rows {
    type Args = RowArgs;

    fn spec(&self) -> KernelSpec {
        let name = format!("embedding_backward_{}_x{}", self.dtype, self.width);
        let dtypes = DTypes::all(self.dtype).accumulated(["partials"]);
        KernelSpec::new(name, SUM_BLOCK).dtypes(dtypes)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: RowParams<'k>) {
        a.add::<A>(k, self.width, None, None);
    }
}

impl<'k> RowParams<'k> {
    /// The sums of rows, times their factors if there are any, and of the rows of `base` if it is there.
    pub(crate) fn add<A: Accumulate>(
        self,
        k: K<'k>,
        width: u32,
        factors: Option<Ptr<'k, Read, Elem>>,
        base: Option<Ptr<'k, Read, Elem>>,
    ) {
        k.after_previous_grid();
        let a = self;
        let column = a.sums.column(k, width);
        k.if_(column.row.lt(a.rows), || {
            let (start, end): (U32<'k>, U32<'k>) =
                (a.starts.at(column.row).get(), a.starts.at(column.row + 1).get());
            // Whole parts, which have sums, and the places around them.
            let (first, last) = ((start + (PART - 1)) >> PART_BITS, end >> PART_BITS);
            let parts = first.lt(last);
            let around = [parts.select(first * PART, end), parts.select(last * PART, end)];
            let sum = match base {
                Some(base) => {
                    let base = a.sums.at(base, column.row, column).only_where(column.there, Fill::Zero);
                    base.load_packed::<A>(width).lanes()
                }
                None => Lanes::constant(k, 0.0, width),
            };
            let sum = a.sums.add_places::<A>(k, [start, around[0]], column, sum, factors);
            let whole = [first, parts.select(last, first)];
            let sum = a.sums.add(k, a.partials, whole, column, sum, |part, _| (part, None));
            let sum = a.sums.add_places(k, [around[1], end], column, sum, factors);
            let mean = || {
                let terms = (end - start).max(1).convert::<A>();
                sum.map(|sum| sum / terms)
            };
            let sum = k.if_else(a.mean.ne(0), mean, || sum.clone());
            a.sums.at(a.dweight, column.row, column).only_where(column.there, Fill::Zero).store(sum);
        });
    }
}
