//! Keys and values of e4m3 as operands of products of `f16`, which holds them exactly.
//!
//! Two neighbours of a row are one element of 16 bits to `ldmatrix`. A lane has four of a key then, where a fragment wants two neighbours
//! and two more eight further on: the sum over a row does not depend on its order, so queries lie in shared memory in the order in which
//! keys come. Of values, transposed, a lane has two neighbours of two keys: of each pair of blocks of eight columns the one takes those at
//! even places, the other those at odd ones, and a lane has four neighbours of the result.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{Fragment, Halves, MatrixB, MmaAtom, SharedTile, TileLayout};

use super::engine::Source;
use super::mma::VECTOR;

/// Neighbours of a row that `ldmatrix` takes for one element.
pub(in crate::attention) const PAIR: u32 = 2;
/// Columns of a sum of which a lane has neighbours.
pub(in crate::attention) const GROUP: u32 = 16;
/// How many of them.
pub(in crate::attention) const NEIGHBOURS: u32 = 4;

/// Biased exponents of `f32`: of the factor 1, of the least magnitude that a factor brings to [`LARGEST`], and of the largest finite one.
const ONE: u32 = 127;
const LEAST: u32 = 15;
const MOST: u32 = 254;
/// The exponent that the largest magnitude of a row of queries gets, below that of the largest `f16`.
const LARGEST: u32 = 14;
/// Bits of the mantissa of `f32`.
const MANTISSA: u32 = 23;

/// The tile of the same bytes, two neighbours an element.
pub(in crate::attention) fn pairs(tile: SharedTile<'_>) -> SharedTile<'_> {
    let TileLayout { rows, cols, .. } = tile.layout();
    tile.base().k().tile_from(tile.base(), TileLayout::new(DType::F16, rows, cols / PAIR))
}

/// The right operands of two products, 16 elements of a row each, of what is read of 16 keys and 32 elements.
pub(in crate::attention) fn of_keys<'k>(
    k: K<'k>,
    read: &[Fragment<'k, MatrixB>; 2],
) -> [[Fragment<'k, MatrixB>; 2]; 2] {
    let words: Vec<Vec<U32<'k>>> = read.iter().map(Fragment::words).collect();
    [0, 1].map(|chunk| {
        [0, 1].map(|keys: usize| {
            let words = Halves::both_from_e4m3(words[keys][chunk]).map(Halves::word);
            Fragment::b(k, MmaAtom::F16, &words)
        })
    })
}

/// The right operands of a product with 16 columns, of what is read of 16 keys and 16 values.
pub(in crate::attention) fn of_values<'k>(
    k: K<'k>,
    read: &Fragment<'k, MatrixB>,
) -> [Fragment<'k, MatrixB>; 2] {
    // Of two keys both even places, then both odd ones.
    let apart = |word: U32<'k>| Halves::both_from_e4m3(word.permute(0, 0x3120)).map(Halves::word);
    let words: Vec<[U32<'k>; 2]> = read.words().into_iter().map(apart).collect();
    [0, 1].map(|odd: usize| {
        let words: Vec<U32<'k>> = words.iter().map(|both| both[odd]).collect();
        Fragment::b(k, MmaAtom::F16, &words)
    })
}

/// The lane's elements of [`GROUP`] columns of a sum, as products leave them, in the order of the columns.
pub(in crate::attention) fn in_order<'k>(sums: &[F32<'k>]) -> Vec<F32<'k>> {
    match *sums {
        [even, next_even, odd, next_odd] => vec![even, odd, next_even, next_odd],
        _ => sums.to_vec(),
    }
}

/// Rows of queries as left operands of products with keys of e4m3.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Queries<'k> {
    /// The factors of the products of each row, if queries are no `f16` and may be too large or too small for one.
    factors: Option<Ptr<'k, Shared, Elem>>,
    rows: u32,
    /// Elements of a row in shared memory.
    width: u32,
}

impl<'k> Queries<'k> {
    /// Room for `rows` rows of `width` elements of queries of `dtype`.
    pub(in crate::attention) fn new(k: K<'k>, dtype: DType, rows: u32, width: u32) -> Self {
        let factors = (dtype != DType::F16).then(|| k.shared_elem(DType::F32, rows));
        Self { factors, rows, width }
    }

    /// Loads rows from row `first` on, all `threads` threads together, to the places that `tile` gives for rows and their columns.
    pub(in crate::attention) fn load(
        &self,
        k: K<'k>,
        (source, first): (Source<'k>, I32<'k>),
        (thread, threads): (U32<'k>, u32),
        place: impl Fn(U32<'k>, U32<'k>) -> Ptr<'k, Shared, Elem>,
    ) {
        let per_row = self.width / VECTOR;
        // All lanes take part in what a row has in common.
        k.for_each(k.range(0u32, self.rows * per_row, threads), |before| {
            let index = before + thread;
            let (row, column) = (index >> per_row.trailing_zeros(), (index & (per_row - 1)) * VECTOR);
            let at = first + row.to_i32();
            let there = at.lt(source.rows) & column.lt(source.width);
            let from = source.data.at(source.offset(at, there)).at(column);
            let mut x = from.only_where(there, Fill::Zero).load::<f32>(VECTOR);
            if let Some(factors) = self.factors {
                let of_lane = x.map(Reg::abs).reduce(|a, b| a.max(b)).unwrap_or_else(|| k.lit(0.0));
                let top = k.warp_combine(per_row, of_lane, |a, b| a.max(b));
                let exponent = (top.to_bits() >> MANTISSA).max(LEAST).min(MOST);
                let power = |exponent: U32<'k>| F32::from_bits(exponent << MANTISSA);
                x = x * power(2 * ONE + LARGEST - exponent);
                let back = factors.at(row).only_where(column.eq(0), Fill::Zero);
                back.set(power(exponent - LARGEST));
            }
            // The first and third pair of neighbours are what a lane has for one register, the others what it has for the next.
            let some = |pairs: [usize; 2]| -> Lanes<'k, f32> {
                pairs.into_iter().flat_map(|pair| [x[2 * pair], x[2 * pair + 1]]).collect()
            };
            let within = (column & !(GROUP - 1)) + ((column >> 1) & (GROUP / 4));
            place(row, within).store(some([0, 2]));
            place(row, within + GROUP / 2).store(some([1, 3]));
        });
    }

    /// Products of rows, of which the thread has some, as they would be of the queries themselves.
    pub(in crate::attention) fn restored(
        &self,
        products: RegTile<'k, f32>,
        rows: &[U32<'k>],
    ) -> RegTile<'k, f32> {
        let Some(factors) = self.factors else { return products };
        let factors: Lanes<'k, f32> = rows.iter().map(|row| factors.at(*row).get::<f32>()).collect();
        &products * &factors
    }
}
