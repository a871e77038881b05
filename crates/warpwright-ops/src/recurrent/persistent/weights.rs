//! The rows of the recurrent weights that a block keeps: in registers, and in shared memory where there is no room for more.
//!
//! Weights of `tf32` are kept as `f16`, two to a register, where there is no room for them otherwise. `f16` has the 11 bits of `tf32`,
//! but not its range. So the weights of a block are multiplied by a power of two that brings the largest of them below 2^15: what is
//! 2^29 times smaller loses bits, and 2^-40 of the largest at most. They are widened again for each product, and sums are multiplied
//! by the inverse.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{Halves, WARP};

use super::gemm::{ATOM, QUAD, StepGemm, THREADS, WARPS};

/// Registers of weights of a thread; more stay in shared memory.
pub(in crate::recurrent) const MOST_WEIGHTS: u32 = 128;
/// The same of weights in halves: those of two fragments that are widened are not there for them.
const MOST_PACKED: u32 = 112;
/// Bytes of shared memory for weights that leave room for sums.
const MOST_STORED: u32 = 160 << 10;
/// Bytes of a fragment of a warp.
const FRAGMENT_BYTES: u32 = WARP * QUAD * 4;
/// Elements of a thread that are on their way while the largest is looked for.
const AHEAD: u32 = 8;
/// The lowest bit of the exponent of `f32`.
const EXPONENT: u32 = 23;
/// The exponent of the least factor's number, and the sum of those of factor and number: 14 with both offsets.
const LEAST: u32 = 15;
const TOGETHER: u32 = 14 + 2 * 127;

/// Fragments of weights, by tiles of 16 rows.
pub(super) type Tiles<'k> = Vec<Vec<Fragment<'k, MatrixA>>>;

/// The matrix: where the element `depth` of row `row` of the block is, and whether the elements of a row are neighbours.
pub(in crate::recurrent) struct Matrix<'k, 'm> {
    pub(super) elements: Ptr<'k, Read, Elem>,
    pub(super) at: &'m dyn Fn(U32<'k>, U32<'k>) -> U64<'k>,
    pub(super) dense: bool,
}

impl<'k> Matrix<'k, '_> {
    /// Elements of 16 bits at `depth`, an even one, and behind it; zeros where they are not `there`.
    pub(super) fn word(&self, row: U32<'k>, depth: U32<'k>, there: Pred<'k>) -> U32<'k> {
        if self.dense {
            let words = self.elements.cast::<u32>();
            return words.at((self.at)(row, depth) >> 1).only_where(there, Fill::Zero).get();
        }
        let half = |depth: U32<'k>| -> U32<'k> {
            let from = self.elements.cast::<u16>().at((self.at)(row, depth));
            from.only_where(there, Fill::Zero).get()
        };
        half(depth) | (half(depth + 1) << 16)
    }

    /// The element of `f32` at `depth`, rounded to `tf32`.
    fn rounded(&self, row: U32<'k>, depth: U32<'k>, there: Pred<'k>) -> U32<'k> {
        self.elements.at((self.at)(row, depth)).only_where(there, Fill::Zero).get::<f32>().to_tf32()
    }

    /// A lane's part of a fragment of tile `tile`, of which it has row `group` and the one eight further on, from `depth` on and
    /// `apart` elements further.
    pub(super) fn fragment(
        &self,
        k: K<'k>,
        (gemm, atom): (&StepGemm, MmaAtom),
        (group, tile): (U32<'k>, u32),
        (depth, apart): (U32<'k>, u32),
    ) -> Fragment<'k, MatrixA> {
        let inside = depth.lt(gemm.depth);
        let word = |down: u32, right: u32| -> U32<'k> {
            let row = group + (tile * ATOM.0 + down);
            let there = if gemm.padded() == gemm.rows { inside } else { inside & row.lt(gemm.rows) };
            if gemm.rounds {
                self.rounded(row, depth + right, there)
            } else {
                self.word(row, depth + right, there)
            }
        };
        let registers = [word(0, 0), word(8, 0), word(0, apart), word(8, apart)];
        Fragment::a(k, atom, &registers)
    }

    /// The columns of a lane in `f32`: four neighbours each time, of its rows.
    pub(super) fn quads(
        &self,
        k: K<'k>,
        gemm: &StepGemm,
        shape: super::gemm::Shape,
    ) -> Vec<Vec<Lanes<'k, f32>>> {
        let (part, group) = (k.lane_idx() % shape.parts, k.lane_idx() / shape.parts);
        let of_quad = |quad: u32| {
            let depth = k.warp_idx() * gemm.columns_of_warp() + part * QUAD + quad * QUAD * shape.parts;
            let row = |i: u32| -> Lanes<'k, f32> {
                let row = group * shape.rows + i;
                let from = |right: u32| {
                    let from = self.elements.at((self.at)(row, depth + right));
                    if gemm.padded() == gemm.rows {
                        from
                    } else {
                        from.only_where(row.lt(gemm.rows), Fill::Zero)
                    }
                };
                if self.dense {
                    return from(0).load(QUAD);
                }
                (0..QUAD).map(|right| from(right).get()).collect()
            };
            (0..shape.rows).map(row).collect()
        };
        let quads = gemm.columns_of_warp() / (QUAD * shape.parts);
        (0..quads).map(of_quad).collect()
    }

    /// The power of two that the weights of the block are multiplied by to be kept as `f16`, and its inverse. All threads are here.
    pub(super) fn f16_scale(&self, k: K<'k>, gemm: &StepGemm) -> [F32<'k>; 2] {
        let elements = gemm.rows * gemm.depth;
        let zero = k.lit(0.0f32);
        let most = k.fold(k.range(k.thread_idx(), elements, AHEAD * THREADS), zero, |first, most| {
            let element = |i: u32| {
                let at = first + i * THREADS;
                let from = self.elements.at((self.at)(at / gemm.depth, at % gemm.depth));
                from.only_where(at.lt(elements), Fill::Zero).get::<f32>().abs()
            };
            (0..AHEAD).map(element).collect::<Vec<_>>().into_iter().fold(most, |most, one| most.max(one))
        });
        let most = k.group_combine_once(k.block_threads(), most, |a, b| a.max(b));
        let exponent = (most.to_bits() >> EXPONENT).max(LEAST);
        let power = |exponent: U32<'k>| F32::from_bits(exponent << EXPONENT);
        [power(k.lit(TOGETHER) - exponent), power(exponent - (LEAST - 1))]
    }
}

/// The fragment of halves of two slices, each element multiplied by `factor`.
pub(super) fn pack<'k>(
    k: K<'k>,
    atom: MmaAtom,
    [even, odd]: [Fragment<'k, MatrixA>; 2],
    factor: F32<'k>,
) -> Fragment<'k, MatrixA> {
    let [even, odd] = [even.words(), odd.words()];
    let scaled = |word: &U32<'k>| F32::from_bits(*word) * factor;
    let both = |(a, b)| scaled(a).pack_with(scaled(b), DType::F16);
    Fragment::a(k, atom, &even.iter().zip(&odd).map(both).collect::<Vec<_>>())
}

/// The fragments of two slices from one of halves.
pub(super) fn unpack<'k>(
    k: K<'k>,
    atom: MmaAtom,
    halves: &Fragment<'k, MatrixA>,
) -> [Fragment<'k, MatrixA>; 2] {
    let words = halves.words();
    let both: Vec<_> = words.iter().map(|word| Halves::from_word(*word, DType::F16).widen()).collect();
    [0, 1].map(|slice: usize| {
        let words: Vec<_> = both.iter().map(|both| both[slice].to_bits()).collect();
        Fragment::a(k, atom, &words)
    })
}

/// The homes of the fragments of a warp: the first of each tile in registers, the others in shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Residence {
    tiles: u32,
    /// Fragments of a tile, and how many of them stay in shared memory.
    fragments: u32,
    stored: u32,
}

impl Residence {
    /// That of a fragment for each of `slices`.
    pub(super) fn of(gemm: &StepGemm, slices: u32) -> Self {
        Self::within(gemm.tiles(), slices, MOST_WEIGHTS)
    }

    /// That of a fragment of halves for every two of `slices`.
    pub(super) fn packed(gemm: &StepGemm, slices: u32) -> Self {
        Self::within(gemm.tiles(), slices / 2, MOST_PACKED)
    }

    /// At most `registers` of a thread.
    const fn within(tiles: u32, fragments: u32, registers: u32) -> Self {
        Self { tiles, fragments, stored: fragments.saturating_sub(registers / (4 * tiles)) }
    }

    /// Whether shared memory has room for its part and for sums.
    pub(super) const fn has_room(&self) -> bool {
        self.bytes() <= MOST_STORED
    }

    /// Fragments of a tile.
    pub(super) const fn fragments(&self) -> u32 {
        self.fragments
    }

    /// Whether some stay in shared memory.
    pub(super) const fn stores(&self) -> bool {
        self.stored > 0
    }

    /// Bytes of these.
    pub(super) const fn bytes(&self) -> u32 {
        WARPS * self.tiles * self.stored * FRAGMENT_BYTES
    }

    /// Registers of a thread that the others take.
    pub(super) const fn registers(&self) -> u32 {
        4 * self.tiles * (self.fragments - self.stored)
    }

    /// The lane's part of a stored fragment: it reads only what it has written.
    fn at<'k>(&self, k: K<'k>, tile: u32, stored: u32) -> Ptr<'k, Shared, u32> {
        let first = k.thread_idx() + k.warp_idx() * (WARP * (self.tiles * self.stored - 1));
        let fragment = tile * self.stored + stored;
        k.dynamic_shared::<u32>().at(first * QUAD).at(u64::from(fragment * FRAGMENT_BYTES / 4))
    }

    /// Stores the last fragments of each tile, and returns the others.
    pub(super) fn share_out<'k>(
        &self,
        k: K<'k>,
        fragment: impl Fn(u32, u32) -> Fragment<'k, MatrixA>,
    ) -> Tiles<'k> {
        let kept = self.fragments - self.stored;
        for tile in 0..self.tiles {
            for stored in 0..self.stored {
                let fragment = fragment(tile, kept + stored);
                self.at(k, tile, stored).store(fragment.words());
            }
        }
        let of_tile = |tile| (0..kept).map(|at| fragment(tile, at)).collect();
        (0..self.tiles).map(of_tile).collect()
    }

    /// A fragment of a tile, of which `kept` are in registers.
    pub(super) fn get<'k>(
        &self,
        k: K<'k>,
        atom: MmaAtom,
        (tile, kept): (u32, &[Fragment<'k, MatrixA>]),
        fragment: u32,
    ) -> Fragment<'k, MatrixA> {
        match fragment.checked_sub(self.fragments - self.stored) {
            None => kept[fragment as usize].clone(),
            Some(stored) => {
                let words: Lanes<'k, u32> = self.at(k, tile, stored).load(QUAD);
                Fragment::a(k, atom, words.as_slice())
            }
        }
    }
}
