//! The arithmetic of `tcgen05.mma`, tile by tile, in the tiles of `mma.sync`.
//!
//! A factor has 32 bytes along k in each row of A or column of B, whatever its type, as elements of 8 bits or more: what is
//! narrower was widened. Floating-point products are summed as [`aligned`](super::aligned) does, all of an instruction and C in one step that keeps 25 bits. NVIDIA does not publish that for these tensor cores; it is what `wgmma`
//! does with 16-bit types, and a guess for those of eight.

use super::aligned;
use super::tile::{Sum, Tile};
use crate::code::matrix::{Accumulator, Element, Words};
use crate::code::rows::LANES;

/// A row of A or a column of B.
pub(in crate::exec) type Factor = [u8; 32];

/// A product without its sums.
#[derive(Clone, Debug)]
pub(in crate::exec) struct Factors<'a> {
    pub(in crate::exec) a: &'a [Factor],
    pub(in crate::exec) b: &'a [Factor],
    pub(in crate::exec) a_element: Element,
    pub(in crate::exec) b_element: Element,
    pub(in crate::exec) accumulator: Accumulator,
    /// Whether the sign of the products is exchanged.
    pub(in crate::exec) negate: bool,
}

/// Sums in place.
pub(in crate::exec) trait Sums {
    /// The word of C at a row and column.
    fn c(&self, row: usize, column: usize) -> u32;
    /// Puts the word of D there.
    fn d(&mut self, row: usize, column: usize, word: u32);
}

/// Eight rows as the words of two fragment registers.
fn block(rows: &[Factor]) -> [Words; 2] {
    let mut out = [[0; LANES]; 2];
    for (g, row) in rows.iter().enumerate().take(8) {
        let (words, _) = row.as_chunks::<4>();
        for (at, word) in words.iter().enumerate() {
            out[at / 4][4 * g + at % 4] = u32::from_le_bytes(*word);
        }
    }
    out
}

/// Computes D; rows of A come in 16s and columns of B in eights.
pub(in crate::exec) fn multiply(tile: &mut Tile, factors: &Factors<'_>, sums: &mut impl Sums) {
    let k = 256 / factors.a_element.bits() as usize;
    let sum = match Sum::of_mma(factors.a_element) {
        Sum::Integers => Sum::Integers,
        Sum::Whole { .. } | Sum::Halves => Sum::Whole { keep: 25 },
    };
    let b_blocks: Vec<[Words; 2]> = factors.b.chunks(8).map(block).collect();
    let half = factors.accumulator == Accumulator::F16;
    for (first, rows) in (0..).step_by(16).zip(factors.a.chunks(16)) {
        let (low, high) = rows.split_at(8.min(rows.len()));
        let [low, high] = [block(low), block(high)];
        tile.set_a(factors.a_element, &[&low[0], &high[0], &low[1], &high[1]], 16, factors.negate);
        for (column, b) in (0..).step_by(8).zip(&b_blocks) {
            tile.set_b(factors.b_element, &b.each_ref());
            let mut c = [[0; LANES]; 4];
            let registers = factors.accumulator.registers();
            for (i, c) in c.iter_mut().enumerate().take(registers) {
                for (lane, c) in c.iter_mut().enumerate() {
                    let (g, t) = (lane / 4, lane % 4);
                    *c = if half {
                        let (row, column) = (first + 8 * i + g, column + 2 * t);
                        sums.c(row, column) & 0xFFFF | sums.c(row, column + 1) << 16
                    } else {
                        sums.c(first + 8 * (i >> 1) + g, column + 2 * t + (i & 1))
                    };
                }
            }
            let c = c.each_ref();
            tile.set_sums(factors.accumulator, &c[..registers]);
            tile.multiply(sum, factors.accumulator, 16, k, aligned::add);
            for (i, c) in c.iter().enumerate().take(registers) {
                let d = tile.register(factors.accumulator, i, c).0;
                for (lane, d) in d.into_iter().enumerate() {
                    let (g, t) = (lane / 4, lane % 4);
                    if half {
                        sums.d(first + 8 * i + g, column + 2 * t, d & 0xFFFF);
                        sums.d(first + 8 * i + g, column + 2 * t + 1, d >> 16);
                    } else {
                        sums.d(first + 8 * (i >> 1) + g, column + 2 * t + (i & 1), d);
                    }
                }
            }
        }
    }
}
