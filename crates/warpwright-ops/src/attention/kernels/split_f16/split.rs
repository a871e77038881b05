//! Copies of `f32` tensors as sums of two `f16` times a power of two for each tile of [`TILE`] rows of a head.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{Packed, WARP, kernel_args};

use super::{EXPONENT, TILE, powers_of_two};
use crate::attention::score::View;

/// Elements of an access.
const VECTOR: u32 = 4;
/// Largest numbers of a tile are between 2^-40 and 2^40, or 0: products and their sums stay far inside `f32`.
const EXPONENTS: [f32; 2] = [1.0 / (1u64 << 40) as f32, (1u64 << 40) as f32];
/// How many powers of two the largest numbers of rows of a tile may lie apart: what `f16` has below that is 2^-23 of the least of them.
const APART: u32 = 16;

kernel_args! {
    /// The tensor that [`SplitCopy`] reads, and its copy.
    pub(in crate::attention) struct SplitArgs => SplitParams {
        x: Strided<In<Elem>, 3>, rows: u32, width: u32, heads: u32,
        pairs: Out<Elem>, factors: Out<f32>,
        /// Rows of a head in the copy.
        pitch: u32,
        /// Rows of each batch that count, if there are such numbers.
        lengths: Optional<In<i32>>,
    }
}

/// Writes the copy of a tile: rows of twice `width` elements, upper parts and then lower ones, and what brings their numbers back, which is
/// 0 if no power of two suits the tile. Rows and elements that the tensor does not have, and rows that
/// do not count, are zeros.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct SplitCopy {
    /// Elements of a row of the copy, but for the lower parts: 64 or 128.
    pub(in crate::attention) width: u32,
}

impl SplitCopy {
    const THREADS: u32 = 256;

    /// Rows that the block reads at once.
    const fn at_once(self) -> u32 {
        Self::THREADS * VECTOR / self.width
    }
}

impl KernelDef for SplitCopy {
    type Args = SplitArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("attention_pairs_d{}", self.width), BlockDim::x(Self::THREADS))
            .dtypes(DTypes::all(DType::F32).with("pairs", DType::F16))
    }

    fn build<'k>(&self, k: K<'k>, a: SplitParams<'k>) {
        let lanes = self.width / VECTOR;
        let (head, batch) = (k.block_idx_y(), k.block_idx_z());
        let column = (k.thread_idx() & (lanes - 1)) * VECTOR;
        let first = k.block_idx_x() * TILE + (k.thread_idx() >> lanes.trailing_zeros());
        let [of_batch, of_row, of_head] = a.x.strides;
        let from = a.x.data.at(batch.to_u64() * of_batch + head.to_u64() * of_head).at(column);
        let rows: Vec<_> = (0..TILE).step_by(self.at_once() as usize).map(|down| first + down).collect();
        let length = a.lengths.value.at(batch).only_where(a.lengths.is_given(), Fill::Zero).get::<i32>();
        let count = a.lengths.is_given().select(length.max(0i32).to_u32().min(a.rows), a.rows);
        let load = |row: &U32<'k>| {
            let there = row.lt(count) & column.lt(a.width);
            from.at(row.to_u64() * of_row).only_where(there, Fill::Zero).load::<f32>(VECTOR)
        };
        let loaded: Vec<Lanes<'k, f32>> = rows.iter().map(load).collect();
        let factor = self.factor(k, &loaded);
        let of_head = (batch * a.heads + head).mul_wide(a.pitch);
        let tile = of_head / u64::from(TILE) + k.block_idx_x().to_u64();
        k.if_(k.thread_idx().eq(0), || a.factors.at(tile).set(factor.1));
        let to = a.pairs.at(of_head * u64::from(2 * self.width)).at(column);
        for (row, numbers) in rows.into_iter().zip(loaded) {
            let to = to.at(row.mul_wide(2 * self.width));
            let numbers = numbers.map(|x| x * factor.0);
            let upper = Packed::round(k, DType::F16, numbers.clone());
            let lower = numbers.zip(upper.lanes(), |x, upper: F32<'k>| x - upper);
            to.store_packed(&upper);
            to.at(u64::from(self.width)).store(lower);
        }
    }
}

impl SplitCopy {
    /// The power of two that brings the numbers of a tile into the range of `f16`, and its inverse, 0 if there is none.
    fn factor<'k>(&self, k: K<'k>, rows: &[Lanes<'k, f32>]) -> (F32<'k>, F32<'k>) {
        let bits = |x: f32| k.lit(x.to_bits());
        let row_max = |row: &Lanes<'k, f32>| {
            // As integers, numbers that are none are the largest.
            let max = row.map(|x| x.abs().to_bits()).reduce(|a, b| a.max(b));
            k.warp_combine((self.width / VECTOR).min(WARP), max.unwrap_or(bits(0.0)), |a, b| a.max(b))
        };
        let of_rows: Vec<U32<'k>> = rows.iter().map(row_max).collect();
        let nothing = bits(f32::INFINITY);
        let both = |row: &U32<'k>| [*row, row.eq(0).select(nothing, *row)];
        let combine = |a: [U32<'k>; 2], b: [U32<'k>; 2]| [a[0].max(b[0]), a[1].min(b[1])];
        let mine = of_rows.iter().map(both).reduce(combine).unwrap_or([nothing; 2]);
        let [max, min] = k.group_combine_once(Self::THREADS, mine, combine);
        let [low, high] = EXPONENTS.map(bits);
        let suits = max.ge(low) & max.lt(high) & (max - min).lt(APART << EXPONENT);
        let (up, down) = powers_of_two(suits.select(max, bits(1.0)) >> EXPONENT);
        let down = (suits | max.eq(0)).select(down, 0.0);
        (up, down)
    }
}

/// A copy, as kernels read it.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Copied<'k> {
    factors: Ptr<'k, Read, f32>,
    width: u32,
}

impl<'k> Copied<'k> {
    /// The copy of a tensor of `heads` heads with `pitch` rows each.
    pub(in crate::attention) fn view(
        (pairs, factors): (Ptr<'k, Read, Elem>, Ptr<'k, Read, f32>),
        heads: U32<'k>,
        pitch: U32<'k>,
        width: u32,
    ) -> View<'k, Read> {
        let row = u64::from(2 * width);
        let head = pitch.mul_wide(2 * width);
        let strides = [head * heads.to_u64(), heads.k().lit(row), head];
        View { copied: Some(Self { factors, width }), ..View::new(pairs, strides) }
    }

    /// Elements of a row.
    pub(in crate::attention) fn row(self) -> u32 {
        2 * self.width
    }

    /// The factors of the tiles from `offset` elements on.
    pub(in crate::attention) fn factors_from(self, offset: U64<'k>) -> Ptr<'k, Read, f32> {
        self.factors.at(offset >> (TILE * self.row()).trailing_zeros())
    }
}
