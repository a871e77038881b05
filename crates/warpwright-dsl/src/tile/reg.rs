//! [`RegTile`]: a matrix in the registers of the threads that share it.

use std::ops::{Add, Mul};

use crate::context::K;
use crate::error::IssueKind;
use crate::float::Float;
use crate::flow::{Carry, RawReg, RawRegs};
use crate::lanes::Lanes;
use crate::reg::{F32, Reg, U32};

use super::mma::{Accumulator, Fragment, MatrixA, MatrixB, MmaAtom, Split, SplitSum};
use super::shared::TileReader;

/// Columns of an accumulator, and how many of them a lane holds.
const BLOCK: usize = 8;
const OF_LANE: usize = 2;
/// Lanes that share a row of an accumulator.
const LANES: u32 = 4;

/// A value for each row that a thread has of a [`RegTile`]: a maximum, a sum, a factor.
pub type RowVector<'k, A> = Lanes<'k, A>;

/// A matrix in registers. A thread holds a few of its rows, and a few columns of each; `lanes` neighbouring lanes of one warp share
/// a row. Which rows and columns a thread holds depends on the unit that computed them: [`mma`](Self::mma) leaves them as
/// neighbouring [`Accumulator`]s do, slab by slab of 16 rows (rows `lane / 4` and `lane / 4 + 8` of each), two columns of every eight.
///
/// A softmax of the rows of a tile, the sums of which the lanes of a row share:
///
/// ```
/// use warpwright_dsl::prelude::*;
///
/// fn softmax<'k>(scores: &RegTile<'k, f32>) -> RegTile<'k, f32> {
///     let row_max = scores.row_max();
///     let p = scores.map(|row, _, score| (score - row_max[row]).exp());
///     let row_sum = p.row_sum();
///     &p * &row_sum.map(|sum| 1.0 / sum)
/// }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a recorded value that nothing reads is a mistake in the kernel"]
pub struct RegTile<'k, A: Float> {
    k: K<'k>,
    lanes: u32,
    rows: Vec<Vec<Reg<'k, A>>>,
}

impl<'k, A: Float> Carry<'k> for RegTile<'k, A> {
    fn collect(&self, regs: &mut Vec<RawReg>) {
        self.rows.collect(regs);
    }

    fn rebuild(&self, regs: &mut RawRegs) -> Self {
        Self { rows: self.rows.rebuild(regs), ..*self }
    }
}

impl<'k, A: Float> RegTile<'k, A> {
    /// The rows of a thread, all of the same length, each shared by `lanes` lanes: a power of two up to 32.
    #[track_caller]
    pub fn new(k: K<'k>, lanes: u32, rows: Vec<Vec<Reg<'k, A>>>) -> Self {
        if let Some(other) = rows.iter().find(|row| row.len() != rows[0].len()) {
            k.issue(IssueKind::Shape { what: "the rows of a tile", left: rows[0].len(), right: other.len() });
        }
        Self { k, lanes, rows }
    }

    /// A tile without rows: the sum that a kernel does not compute.
    pub fn empty(k: K<'k>) -> Self {
        Self { k, lanes: 1, rows: Vec::new() }
    }

    /// Zeros: `rows` rows with `columns` columns of a thread.
    #[track_caller]
    pub fn zero(k: K<'k>, lanes: u32, rows: u32, columns: u32) -> Self {
        k.on_behalf(|| {
            let row = || (0..columns).map(|_| k.lit(0.0)).collect();
            Self { k, lanes, rows: (0..rows).map(|_| row()).collect() }
        })
    }

    /// Zeros for products of `atom` with `rows` rows and `columns` columns: multiples of the atom's m and n.
    #[track_caller]
    pub fn zero_sums(k: K<'k>, atom: MmaAtom, rows: u32, columns: u32) -> Self {
        k.on_behalf(|| {
            let slab = || (0..columns / atom.n()).map(|_| Accumulator::zero(k, atom)).collect();
            let slabs: Vec<Vec<_>> = (0..rows / atom.m()).map(|_| slab()).collect();
            Self::of_accumulators(k, &slabs)
        })
    }

    /// Rows of a thread.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether a thread has no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The thread's rows.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[Reg<'k, A>]> {
        self.rows.iter().map(Vec::as_slice)
    }

    /// The thread's elements of its row `row`.
    pub fn row(&self, row: usize) -> &[Reg<'k, A>] {
        &self.rows[row]
    }

    /// The same, to be changed.
    pub fn row_mut(&mut self, row: usize) -> &mut [Reg<'k, A>] {
        &mut self.rows[row]
    }

    /// `f` of row, column and element: their numbers among those of the thread.
    pub fn map(&self, mut f: impl FnMut(usize, usize, Reg<'k, A>) -> Reg<'k, A>) -> Self {
        self.map_rows(|row, values| {
            values.iter().enumerate().map(|(column, value)| f(row, column, *value)).collect()
        })
    }

    /// `f` of each row with its number.
    pub fn map_rows(&self, mut f: impl FnMut(usize, &[Reg<'k, A>]) -> Vec<Reg<'k, A>>) -> Self {
        Self { rows: self.rows().enumerate().map(|(row, values)| f(row, values)).collect(), ..*self }
    }

    /// The rows in turn: `f` of the first one behind the others. A loop over all rows that does this computes each in the registers
    /// of one.
    pub fn rotated(&self, f: impl FnOnce(&[Reg<'k, A>]) -> Vec<Reg<'k, A>>) -> Self {
        let mut rows = self.rows.clone();
        if !rows.is_empty() {
            let first = f(&rows.remove(0));
            rows.push(first);
        }
        Self { rows, ..*self }
    }

    /// `f` of the elements of two tiles that lie in the same places.
    #[track_caller]
    pub fn zip(&self, other: &Self, mut f: impl FnMut(Reg<'k, A>, Reg<'k, A>) -> Reg<'k, A>) -> Self {
        self.check(other);
        self.k.on_behalf(|| self.map(|row, column, value| f(value, other.rows[row][column])))
    }

    #[track_caller]
    fn check(&self, other: &Self) {
        let shape = |tile: &Self| (tile.rows.len(), tile.rows.first().map_or(0, Vec::len));
        let (left, right) = (shape(self), shape(other));
        if left != right {
            let [left, right] = [left, right].map(|(rows, columns)| rows * columns);
            self.k.issue(IssueKind::Shape { what: "two tiles", left, right });
        }
    }

    /// The largest element of each row, over all lanes that share it; a number beats a NaN.
    #[track_caller]
    pub fn row_max(&self) -> RowVector<'k, A> {
        self.k.on_behalf(|| self.over_rows("the maximum of a row", |a, b| a.max(b)))
    }

    /// The sum of each row, over all lanes that share it.
    #[track_caller]
    pub fn row_sum(&self) -> RowVector<'k, A> {
        self.k.on_behalf(|| self.over_rows("the sum of a row", |a, b| a + b))
    }

    fn over_rows(
        &self,
        what: &'static str,
        combine: impl Fn(Reg<'k, A>, Reg<'k, A>) -> Reg<'k, A>,
    ) -> RowVector<'k, A> {
        let of_row = |row: &[Reg<'k, A>]| {
            let of_lane = self.k.tree(what, row.iter().copied(), &combine);
            self.k.warp_combine(self.lanes, of_lane, &combine)
        };
        self.rows().map(of_row).collect()
    }

    /// Adds the outer product of `a`, an element for each row, and `b`, one for each column.
    #[track_caller]
    pub fn add_outer(&mut self, a: &[Reg<'k, A>], b: &[Reg<'k, A>]) {
        self.k.on_behalf(|| {
            for (sums, a) in self.rows.iter_mut().zip(a) {
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = a.mul_add(*b, *sum);
                }
            }
        });
    }
}

/// All elements times a factor.
impl<'k, A: Float> Mul<Reg<'k, A>> for &RegTile<'k, A> {
    type Output = RegTile<'k, A>;

    #[track_caller]
    fn mul(self, factor: Reg<'k, A>) -> RegTile<'k, A> {
        self.k.on_behalf(|| self.map(|_, _, value| value * factor))
    }
}

/// Each row times its factor.
impl<'k, A: Float> Mul<&RowVector<'k, A>> for &RegTile<'k, A> {
    type Output = RegTile<'k, A>;

    #[track_caller]
    fn mul(self, factors: &RowVector<'k, A>) -> RegTile<'k, A> {
        self.k.on_behalf(|| self.map(|row, _, value| value * factors[row]))
    }
}

/// The sum of two tiles.
impl<'k, A: Float> Add for &RegTile<'k, A> {
    type Output = RegTile<'k, A>;

    #[track_caller]
    fn add(self, other: &RegTile<'k, A>) -> RegTile<'k, A> {
        self.zip(other, |a, b| a + b)
    }
}

/// Products of tensor cores.
impl<'k, A: Float> RegTile<'k, A> {
    /// Neighbouring accumulators `[slab][eight columns]`.
    pub fn of_accumulators(k: K<'k>, slabs: &[Vec<Accumulator<'k, A>>]) -> Self {
        let row = |slab: &Vec<Accumulator<'k, A>>, row: usize| {
            let pair = |sum: &Accumulator<'k, A>| {
                let lanes = sum.lanes().as_slice();
                [lanes[OF_LANE * row], lanes[OF_LANE * row + 1]]
            };
            slab.iter().flat_map(pair).collect()
        };
        let rows = |slab: &Vec<Accumulator<'k, A>>| slab.first().map_or(0, |sum| sum.lanes().len() / OF_LANE);
        let rows = slabs.iter().flat_map(|slab| (0..rows(slab)).map(move |i| row(slab, i)));
        Self { k, lanes: LANES, rows: rows.collect() }
    }

    /// The accumulator of eight columns, `block` of them before, in the slab whose first row of the thread is `row`.
    fn accumulator(&self, row: usize, rows: usize, block: usize) -> Accumulator<'k, A> {
        let rows = &self.rows[row..row + rows];
        Accumulator::new(
            self.k,
            rows.iter().flat_map(|row| row[OF_LANE * block..][..OF_LANE].iter().copied()).collect(),
        )
    }

    /// Adds the product `a b` to the columns from `column` on, a multiple of 8: `a` has a fragment for each slab of rows, `b` one for
    /// each eight columns. The whole warp is here.
    #[track_caller]
    pub fn mma(&mut self, column: u32, a: &[Fragment<'k, MatrixA>], b: &[Fragment<'k, MatrixB>]) {
        let k = self.k;
        let first = column as usize / BLOCK;
        let rows = self.rows.len() / a.len().max(1);
        let columns = self.rows.first().map_or(0, |row| row.len() / OF_LANE);
        if rows == 0 || first + b.len() > columns {
            k.issue(IssueKind::Shape { what: "a product's tile", left: columns, right: first + b.len() });
            return;
        }
        k.on_behalf(|| {
            for (slab, a) in a.iter().enumerate() {
                for (block, b) in (first..).zip(b) {
                    let sum = self.accumulator(slab * rows, rows, block).mma(a, b);
                    for (row, pair) in
                        self.rows[slab * rows..].iter_mut().zip(sum.lanes().as_slice().chunks(OF_LANE))
                    {
                        row[OF_LANE * block..][..OF_LANE].copy_from_slice(pair);
                    }
                }
            }
        });
    }
}

impl<'k> RegTile<'k, f32> {
    /// Adds the product of 16 rows of `a` and as many columns of `b` as the tile has, a multiple of 16, over `depth` of the common
    /// dimension, a multiple of the atom's k. The whole warp is here.
    #[track_caller]
    pub fn mma_over(&mut self, depth: u32, a: &TileReader<'k, MatrixA>, b: &TileReader<'k, MatrixB>) {
        let columns = self.rows.first().map_or(0, |row| row.len() / OF_LANE * BLOCK) as u32;
        self.k.on_behalf(|| {
            for depth in (0..depth).step_by(a.atom().k() as usize) {
                let a = a.load(0, depth);
                for column in (0..columns).step_by(2 * BLOCK) {
                    self.mma(column, std::slice::from_ref(&a), &b.load_pair(column, depth));
                }
            }
        });
    }

    /// Accumulators of eight columns, `[slab][eight columns]`.
    fn accumulators(&self) -> Vec<Vec<Accumulator<'k, f32>>> {
        let blocks = self.rows.first().map_or(0, |row| row.len() / OF_LANE);
        let slab = |row| (0..blocks).map(|block| self.accumulator(row, 2, block)).collect();
        (0..self.rows.len()).step_by(2).map(slab).collect()
    }

    /// The 16 columns from `depth` on, rounded to the elements of `atom`, as the A of a next product whose common dimension they
    /// are: a fragment for each slab. Lanes keep their own elements, so nothing is exchanged. For 16-bit atoms.
    #[track_caller]
    pub fn fragments(&self, atom: MmaAtom, depth: u32) -> Vec<Fragment<'k, MatrixA>> {
        let block = depth as usize / BLOCK;
        let slab = |row| {
            let [left, right] = [block, block + 1].map(|block| self.accumulator(row, 2, block));
            Fragment::from_accumulators(atom, &left, &right)
        };
        self.k.on_behalf(|| (0..self.rows.len()).step_by(2).map(slab).collect())
    }

    /// All columns as the A of next products by `f16`, not rounded but [split](Fragment::split_accumulators):
    /// `[slab][16 columns]`.
    #[track_caller]
    pub fn split_fragments(&self) -> Vec<Vec<Split<'k, MatrixA>>> {
        let slab = |slab: Vec<Accumulator<'k, f32>>| {
            slab.chunks(2).map(|pair| Fragment::split_accumulators(&pair[0], &pair[1])).collect()
        };
        self.k.on_behalf(|| self.accumulators().into_iter().map(slab).collect())
    }

    /// All columns as the A of next products by `tf32`, split, in the order of [`Fragment::interleaved`]:
    /// `[slab][eight columns]`.
    #[track_caller]
    pub fn interleaved_fragments(&self) -> Vec<Vec<Split<'k, MatrixA>>> {
        let slab = |slab: Vec<Accumulator<'k, f32>>| {
            slab.iter().map(|sum| Fragment::interleaved(sum).split()).collect()
        };
        self.k.on_behalf(|| self.accumulators().into_iter().map(slab).collect())
    }

    /// Rounded to `dtype` as the A of a next product of a warpgroup, whose common dimension the columns are; a multiple of 16. Lanes
    /// keep their own elements.
    #[track_caller]
    pub fn packed(&self, dtype: warpwright_ptx::DType) -> Vec<U32<'k>> {
        let pairs = self.rows[0].chunks(OF_LANE).zip(self.rows[1].chunks(OF_LANE));
        let pack = |pair: &[F32<'k>]| pair[0].pack_with(pair[1], dtype);
        self.k.on_behalf(|| pairs.flat_map(|(upper, lower)| [pack(upper), pack(lower)]).collect())
    }

    /// Adds the elements of `part` to the columns from `column` on, a multiple of 8.
    #[track_caller]
    pub fn add_split(&mut self, column: u32, part: &SplitTile<'k>) {
        let first = column as usize / BLOCK;
        self.k.on_behalf(|| {
            for (rows, sums) in self.rows.chunks_mut(2).zip(&part.sums) {
                for (block, sum) in (first..).zip(sums) {
                    let sum = sum.total();
                    for (row, pair) in rows.iter_mut().zip(sum.lanes().as_slice().chunks(OF_LANE)) {
                        for (to, part) in row[OF_LANE * block..].iter_mut().zip(pair) {
                            *to = *to + *part;
                        }
                    }
                }
            }
        });
    }
}

/// Sums of products of [`Split`] operands of a warp, in the places of a [`RegTile`] of accumulators.
#[derive(Clone, Debug)]
#[must_use = "a recorded value that nothing reads is a mistake in the kernel"]
pub struct SplitTile<'k> {
    k: K<'k>,
    sums: Vec<Vec<SplitSum<'k>>>,
}

impl<'k> SplitTile<'k> {
    /// Zeros: `slabs` times 16 rows, and `columns` columns, a multiple of 8.
    #[track_caller]
    pub fn zero(k: K<'k>, slabs: u32, columns: u32) -> Self {
        let zero = k.on_behalf(|| SplitSum::zero(k));
        Self { k, sums: vec![vec![zero; columns as usize / BLOCK]; slabs as usize] }
    }

    /// Adds the product `a b` to eight columns from `column` on: `a` has an operand for each slab.
    #[track_caller]
    pub fn mma<'s>(
        &mut self,
        column: u32,
        a: impl IntoIterator<Item = &'s Split<'k, MatrixA>>,
        b: &Split<'k, MatrixB>,
    ) where
        'k: 's,
    {
        self.k.on_behalf(|| {
            for (sums, a) in self.sums.iter_mut().zip(a) {
                let sum = &mut sums[column as usize / BLOCK];
                *sum = sum.mma(a, b);
            }
        });
    }

    /// The elements.
    #[track_caller]
    pub fn total(&self) -> RegTile<'k, f32> {
        self.k.on_behalf(|| self.totals(SplitSum::total))
    }

    /// The elements, if no product was infinite.
    #[track_caller]
    pub fn finite_total(&self) -> RegTile<'k, f32> {
        self.k.on_behalf(|| self.totals(SplitSum::finite_total))
    }

    fn totals(&self, total: impl Fn(&SplitSum<'k>) -> Accumulator<'k, f32>) -> RegTile<'k, f32> {
        let slabs: Vec<Vec<_>> = self.sums.iter().map(|slab| slab.iter().map(&total).collect()).collect();
        RegTile::of_accumulators(self.k, &slabs)
    }
}
