//! Weights of `tf32` that are kept as `f16`, two to a register, where there is no room for them otherwise.
//!
//! `f16` has the 11 bits of `tf32`, but not its range. So the weights of a block are multiplied by a power of two that brings the greatest
//! of them below 2^15: what is 2^29 times smaller loses bits, and 2^-40 of the greatest at most. They are widened again for each product,
//! and sums are multiplied by the inverse.

use warpwright_dsl::Halves;
use warpwright_dsl::prelude::*;

use super::exchange::{Matrix, Product, THREADS, WARPS};
use super::staged::{FRAGMENT_BYTES, MOST_WEIGHTS};
use super::tuning::Exchange;

/// Registers of a thread: those of two fragments that are widened are not there for them.
pub(super) const MOST_PACKED: u32 = 112;
/// Bytes of shared memory for weights that leave room for sums.
const MOST_STORED: u32 = 160 << 10;
/// Elements of a thread that are on their way while the greatest is looked for.
const AHEAD: u32 = 8;
/// Where the exponent of `f32` begins.
const EXPONENT: u32 = 23;
/// The exponent of the least factor's number, and the sum of those of factor and number: 14 with both offsets.
const LEAST: u32 = 15;
const TOGETHER: u32 = 14 + 2 * 127;

impl Product {
    /// Whether weights are kept in halves.
    pub(super) fn packs(&self) -> bool {
        let tiles = self.padded() / self.atom().m();
        let stored = self.slices().saturating_sub(MOST_WEIGHTS / (4 * tiles));
        let tagged = self.rounds && self.exchange == Exchange::Tags;
        tagged && WARPS * tiles * stored * FRAGMENT_BYTES > MOST_STORED
    }

    /// The power of two that the weights of the block are multiplied by, and its inverse. All threads are here.
    pub(super) fn factor<'k, F>(&self, k: K<'k>, matrix: &Matrix<'k, F>) -> [F32<'k>; 2]
    where
        F: Fn(U32<'k>, U32<'k>) -> U64<'k>,
    {
        let elements = self.rows * self.depth;
        let zero = k.lit(0.0f32);
        let most = k.fold(k.range(k.thread_idx(), elements, AHEAD * THREADS), zero, |first, most| {
            let element = |i: u32| {
                let at = first + i * THREADS;
                let from = matrix.elements.at((matrix.at)(at / self.depth, at % self.depth));
                from.only_where(at.lt(elements), Fill::Zero).get::<f32>().abs()
            };
            (0..AHEAD).map(element).collect::<Vec<_>>().into_iter().fold(most, |most, one| most.max(one))
        });
        let most = k.group_combine_once(k.block_threads(), most, |a, b| a.max(b));
        let exponent = (most.to_bits() >> EXPONENT).max(LEAST);
        let power = |exponent: U32<'k>| F32::from_bits(exponent << EXPONENT);
        [power(k.lit(TOGETHER) - exponent), power(exponent - (LEAST - 1))]
    }

    /// The fragments of two slices from one of halves.
    pub(super) fn unpacked<'k>(
        &self,
        k: K<'k>,
        halves: &Fragment<'k, MatrixA>,
    ) -> [Fragment<'k, MatrixA>; 2] {
        let words = halves.words();
        let both: Vec<_> = words.iter().map(|word| Halves::from_word(*word, DType::F16).widen()).collect();
        [0, 1].map(|slice: usize| {
            let words: Vec<_> = both.iter().map(|both| both[slice].to_bits()).collect();
            Fragment::a(k, self.atom(), &words)
        })
    }
}
