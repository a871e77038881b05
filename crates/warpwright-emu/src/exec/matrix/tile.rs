//! The arithmetic of one tensor-core tile: up to 16 rows of A times 8 columns of B.
//!
//! A fragment register is a row of 32 words, word `4 g + t` in lane `4 g + t`. With `e` elements in a word, register `r`
//! of A holds the elements `(g + 8 (r & 1), e t + s + 4 e (r >> 1))` and register `r` of B the elements
//! `(e t + s + 4 e r, g)`, as (row, column) with `s` counting from the low bits. Here the k axis is walked in the order
//! (r, s, t) instead, and columns in the order (n & 1, n >> 1): then neighbouring words stay neighbours and no element
//! has to be moved on its own. The same orders are used for all operands.
//!
//! # Numbers
//!
//! Sums of floating-point products are those of [`aligned`](super::aligned), bit for bit. Integer products are summed
//! exactly (below 2^24), then C is added.

use super::super::lanes::{NAN32, canonical, f16_to_f32, f32_to_f16};
use super::aligned::{self, Rounding, Step};
use crate::code::matrix::{Accumulator, Element, Words};
use crate::code::rows::{LANES, Row32};

/// How products are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sum {
    /// Exactly, in any order.
    Integers,
    /// All products and C in one step that keeps this many bits below the largest exponent.
    Whole { keep: i32 },
    /// Four bytes of A meet four of B in each of two steps: the first two bytes, then the others. C is added at the end.
    Halves,
}

impl Sum {
    /// Of `mma.sync`.
    pub(crate) const fn of_mma(element: Element) -> Self {
        match element {
            Element::S8 | Element::U8 | Element::S4 | Element::U4 => Self::Integers,
            Element::E4m3 | Element::E5m2 => Self::Halves,
            Element::F16 | Element::Bf16 | Element::Tf32 => Self::Whole { keep: 25 },
        }
    }

    /// Of `wgmma.mma_async`.
    pub(crate) const fn of_wgmma(element: Element) -> Self {
        match Self::of_mma(element) {
            Self::Halves => Self::Whole { keep: 13 },
            sum => sum,
        }
    }
}

/// Longest k axis of a tile: 64 elements of four bits.
pub(super) const MAX_K: usize = 64;
/// Columns.
pub(super) const N: usize = 8;
/// Pairs of steps of a floating-point tile along k: 32 elements of eight bits.
pub(super) const PAIRS: usize = 16;

/// Magnitudes of f32 from here on, moved up by one, are infinite or NaN.
const SPECIAL: u32 = 0xFF00_0000;

/// Operands and sums of a tile; a worker keeps one.
#[derive(Clone, Debug)]
pub(crate) struct Tile {
    pub(super) a: [[f32; MAX_K]; 16],
    pub(super) b: [[f32; N]; MAX_K],
    pub(super) sums: [[f32; N]; 16],
    /// Exponents of A: those of `a[row][8 q + t]` and `a[row][8 q + t + 4]` are the halves of word `4 q + t`.
    pub(super) a_exponents: [[u32; PAIRS]; 16],
    /// Exponents of B, of `b[8 q + t]` and `b[8 q + t + 4]`.
    pub(super) b_exponents: [[u32; N]; PAIRS],
    /// Whether something in A, or in B, is infinite or NaN.
    special: [bool; 2],
    /// The sources of A and B: kernels multiply a fragment with one after the other of the other matrix.
    sources: [Origin; 2],
    /// A and B for vectors of 512 bits, where the machine has them.
    pub(super) wide: Option<Box<Wide>>,
}

/// The source of an operand.
#[derive(Clone, Copy, Debug)]
struct Origin {
    /// `None` if nothing was.
    element: Option<Element>,
    rows: usize,
    flip: u32,
    len: usize,
    words: [Words; 4],
}

impl Origin {
    const NONE: Self = Self { element: None, rows: 0, flip: 0, len: 0, words: [[0; LANES]; 4] };

    #[inline(always)]
    fn new(element: Element, words: &[&Words], rows: usize, flip: u32) -> Self {
        let mut origin = Self { element: Some(element), rows, flip, len: words.len(), ..Self::NONE };
        for (to, from) in origin.words.iter_mut().zip(words) {
            *to = **from;
        }
        origin
    }

    #[inline(always)]
    fn is(&self, element: Element, words: &[&Words], rows: usize, flip: u32) -> bool {
        (self.element, self.rows, self.flip, self.len) == (Some(element), rows, flip, words.len())
            && self.words.iter().zip(words).all(|(ours, theirs)| ours == *theirs)
    }
}

/// Rows that a vector of 512 bits holds.
pub(super) const ROWS: usize = 2;

/// Factors and exponents as vectors of two rows: every element of A eight times, and every row of B twice.
#[derive(Clone, Debug)]
pub(super) struct Wide {
    pub(super) a: [[[f32; ROWS * N]; 2 * PAIRS]; 16 / ROWS],
    pub(super) a_exponents: [[[u32; ROWS * N]; PAIRS]; 16 / ROWS],
    pub(super) b: [[f32; ROWS * N]; 2 * PAIRS],
    pub(super) b_exponents: [[u32; ROWS * N]; PAIRS],
}

#[cfg(target_arch = "x86_64")]
impl Wide {
    fn new() -> Self {
        Self {
            a: [[[0.0; ROWS * N]; 2 * PAIRS]; 16 / ROWS],
            a_exponents: [[[0; ROWS * N]; PAIRS]; 16 / ROWS],
            b: [[0.0; ROWS * N]; 2 * PAIRS],
            b_exponents: [[0; ROWS * N]; PAIRS],
        }
    }
}

impl Default for Tile {
    fn default() -> Self {
        Self {
            a: [[0.0; MAX_K]; 16],
            b: [[0.0; N]; MAX_K],
            sums: [[0.0; N]; 16],
            a_exponents: [[0; PAIRS]; 16],
            b_exponents: [[0; N]; PAIRS],
            special: [false; 2],
            sources: [Origin::NONE; 2],
            wide: None,
        }
    }
}

impl Tile {
    /// From now on keeps what vectors of 512 bits need.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn widen(&mut self) {
        if self.wide.is_none() {
            self.wide = Some(Box::new(Wide::new()));
            self.sources = [Origin::NONE; 2];
        }
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn is_special(&self) -> bool {
        self.special != [false; 2]
    }

    /// Takes A from its fragment registers; with 8 rows every register continues the k axis.
    #[inline(always)]
    pub(super) fn set_a(&mut self, element: Element, words: &[&Words], rows: usize, negate: bool) {
        let (per_word, blocks) = ((32 / element.bits()) as usize, rows / 8);
        let flip = if negate { 1 << 31 } else { 0u32 };
        if self.sources[0].is(element, words, rows, flip) {
            return;
        }
        self.sources[0] = Origin::new(element, words, rows, flip);
        let mut largest = 0;
        for block in 0..blocks {
            let steps = per_word * (words.len() / blocks);
            for step in (0..steps).step_by(2) {
                let word = |step: usize| words[block + blocks * (step / per_word)];
                let low = convert(element, word(step), step % per_word, flip);
                // The last product of an odd number of steps is zero.
                let high = match step + 1 {
                    next if next < steps => convert(element, word(next), next % per_word, flip),
                    _ => [0.0; LANES],
                };
                for g in 0..8 {
                    let Some(to) = self.a[8 * block + g][4 * step..].first_chunk_mut::<8>() else { continue };
                    to[..4].copy_from_slice(&low[4 * g..4 * g + 4]);
                    to[4..].copy_from_slice(&high[4 * g..4 * g + 4]);
                }
                let Some(least) = element.least_exponent() else { continue };
                let exponents = aligned::exponents(&[low, high], least, &mut largest);
                for g in 0..8 {
                    let to = &mut self.a_exponents[8 * block + g][2 * step..2 * step + 4];
                    to.copy_from_slice(&exponents[4 * g..4 * g + 4]);
                }
            }
        }
        self.special[0] = largest >= SPECIAL;
        let steps = per_word * (words.len() / blocks);
        if let Some(wide) = &mut self.wide
            && element.least_exponent().is_some()
        {
            for (pair, to) in wide.a.iter_mut().enumerate().take(rows / ROWS) {
                for (k, to) in to.iter_mut().enumerate().take(4 * steps.next_multiple_of(2)) {
                    for (i, half) in to.chunks_exact_mut(N).enumerate() {
                        half.fill(self.a[ROWS * pair + i][k]);
                    }
                }
            }
            for (pair, to) in wide.a_exponents.iter_mut().enumerate().take(rows / ROWS) {
                for (j, to) in to.iter_mut().enumerate().take(2 * steps.next_multiple_of(2)) {
                    for (i, half) in to.chunks_exact_mut(N).enumerate() {
                        half.fill(self.a_exponents[ROWS * pair + i][j]);
                    }
                }
            }
        }
    }

    /// Takes B from its fragment registers.
    #[inline(always)]
    pub(super) fn set_b(&mut self, element: Element, words: &[&Words]) {
        if self.sources[1].is(element, words, N, 0) {
            return;
        }
        self.sources[1] = Origin::new(element, words, N, 0);
        let per_word = (32 / element.bits()) as usize;
        let mut largest = 0;
        let steps = per_word * words.len();
        for step in (0..steps).step_by(2) {
            let low = convert(element, &columns(words[step / per_word]), step % per_word, 0);
            let high = match step + 1 {
                next if next < steps => {
                    convert(element, &columns(words[next / per_word]), next % per_word, 0)
                }
                _ => [0.0; LANES],
            };
            for t in 0..4 {
                self.b[4 * step + t].copy_from_slice(&low[8 * t..8 * t + 8]);
                self.b[4 * step + 4 + t].copy_from_slice(&high[8 * t..8 * t + 8]);
            }
            let Some(least) = element.least_exponent() else { continue };
            let exponents = aligned::exponents(&[low, high], least, &mut largest);
            for t in 0..4 {
                self.b_exponents[2 * step + t].copy_from_slice(&exponents[8 * t..8 * t + 8]);
            }
        }
        self.special[1] = largest >= SPECIAL;
        if let Some(wide) = &mut self.wide
            && element.least_exponent().is_some()
        {
            for (to, from) in wide.b.iter_mut().zip(&self.b).take(4 * steps.next_multiple_of(2)) {
                to.chunks_exact_mut(N).for_each(|half| half.copy_from_slice(from));
            }
            let exponents = wide.b_exponents.iter_mut().zip(&self.b_exponents);
            for (to, from) in exponents.take(2 * steps.next_multiple_of(2)) {
                to.chunks_exact_mut(N).for_each(|half| half.copy_from_slice(from));
            }
        }
    }

    /// Begins sums with C.
    #[inline(always)]
    pub(super) fn set_sums(&mut self, accumulator: Accumulator, c: &[&Words]) {
        match accumulator {
            Accumulator::F32 => {
                for (i, words) in c.iter().enumerate() {
                    let (row, column) = (8 * (i >> 1), 4 * (i & 1));
                    for g in 0..8 {
                        for t in 0..4 {
                            self.sums[row + g][column + t] = f32::from_bits(words[4 * g + t]);
                        }
                    }
                }
            }
            Accumulator::F16 => {
                for (i, words) in c.iter().enumerate() {
                    for (half, column) in [0, 4].into_iter().enumerate() {
                        let values = convert(Element::F16, words, half, 0);
                        for g in 0..8 {
                            let to = &mut self.sums[8 * i + g][column..column + 4];
                            to.copy_from_slice(&values[4 * g..4 * g + 4]);
                        }
                    }
                }
            }
            // C is added when the products are summed.
            Accumulator::S32 { .. } => self.clear_sums(),
        }
    }

    #[inline(always)]
    fn clear_sums(&mut self) {
        self.sums = [[0.0; N]; 16];
    }

    /// Adds the products of `k` steps, where `add` runs one step of a floating-point sum.
    #[inline(always)]
    pub(super) fn multiply(
        &mut self,
        sum: Sum,
        accumulator: Accumulator,
        rows: usize,
        k: usize,
        add: impl Fn(&mut Self, &Step),
    ) {
        let rounding = match (accumulator, sum) {
            (Accumulator::F16, _) => Rounding::Half,
            (_, Sum::Whole { keep }) => Rounding::Truncate { keep },
            _ => Rounding::Truncate { keep: 25 },
        };
        let step = Step { rows, k, first: 0, stride: 1, keep: 25, rounding };
        match sum {
            Sum::Integers => self.add_integers(rows, k),
            Sum::Whole { keep } => add(self, &Step { keep, ..step }),
            Sum::Halves => {
                let c = std::mem::replace(&mut self.sums, [[0.0; N]; 16]);
                for first in 0..2 {
                    add(self, &Step { first, stride: 2, ..step });
                }
                for (sums, c) in self.sums.iter_mut().flatten().zip(c.iter().flatten()) {
                    *sums += c;
                }
            }
        }
    }

    #[inline(always)]
    fn add_integers(&mut self, rows: usize, k: usize) {
        for first in (0..rows).step_by(8) {
            let mut sums = [[0.0; N]; 8];
            sums.copy_from_slice(&self.sums[first..first + 8]);
            for (k, b) in self.b[..k].iter().enumerate() {
                for (i, sums) in sums.iter_mut().enumerate() {
                    let a = self.a[first + i][k];
                    for (sum, b) in sums.iter_mut().zip(b) {
                        *sum = a.mul_add(*b, *sum);
                    }
                }
            }
            self.sums[first..first + 8].copy_from_slice(&sums);
        }
    }

    /// Register `i` of D; `c` is the same register of C.
    #[inline(always)]
    pub(super) fn register(&self, accumulator: Accumulator, i: usize, c: &Words) -> Row32 {
        match accumulator {
            Accumulator::F32 => self.f32_register(i),
            Accumulator::F16 => self.f16_register(i),
            Accumulator::S32 { saturate } => self.s32_register(i, c, saturate),
        }
    }

    #[inline(always)]
    fn f32_register(&self, i: usize) -> Row32 {
        let (row, column) = (8 * (i >> 1), 4 * (i & 1));
        let mut out = Row32::ZERO;
        for g in 0..8 {
            let four = self.sums[row + g][column..].first_chunk::<4>().copied().unwrap_or_default();
            out.0[4 * g..4 * g + 4].copy_from_slice(&four.map(f32::to_bits));
        }
        // One loop over neighbours, which becomes vectors.
        for bits in &mut out.0 {
            *bits = canonical(f32::from_bits(*bits));
        }
        out
    }

    #[inline(always)]
    fn f16_register(&self, i: usize) -> Row32 {
        let mut out = Row32::ZERO;
        for g in 0..8 {
            for t in 0..4 {
                let row = &self.sums[8 * i + g];
                let [low, high] = [t, t + 4].map(|n| f32_to_f16(row[n].to_bits()));
                out.0[4 * g + t] = low | high << 16;
            }
        }
        out
    }

    #[inline(always)]
    fn s32_register(&self, i: usize, c: &Words, saturate: bool) -> Row32 {
        let (row, column) = (8 * (i >> 1), 4 * (i & 1));
        let mut out = Row32::ZERO;
        for g in 0..8 {
            for t in 0..4 {
                let sum = self.sums[row + g][column + t] as i32;
                let c = c[4 * g + t] as i32;
                let d = if saturate { c.saturating_add(sum) } else { c.wrapping_add(sum) };
                out.0[4 * g + t] = d as u32;
            }
        }
        out
    }
}

/// Words of B with those of one k next to each other.
#[inline(always)]
fn columns(words: &Words) -> Words {
    let mut turned = [0; LANES];
    for t in 0..4 {
        for (n, to) in turned[8 * t..8 * t + 8].iter_mut().enumerate() {
            *to = words[4 * (2 * (n & 3) + (n >> 2)) + t];
        }
    }
    turned
}

/// Element `s` of every word as an f32, with the sign bit exchanged with `flip`.
#[inline(always)]
fn convert(element: Element, words: &Words, s: usize, flip: u32) -> [f32; LANES] {
    let shift = s as u32 * element.bits();
    match element {
        Element::F16 if !any_special(words) => {
            // The exponent is moved by a multiplication, which also normalises subnormals.
            const SCALE: f32 = f32::from_bits(0x7780_0000); // 2^112
            let up = 16 - shift;
            each(words, |w| {
                let moved = ((w << up) as i32 >> 3) as u32 & 0x8FFF_E000;
                f32::from_bits(moved ^ flip) * SCALE
            })
        }
        Element::F16 => each(words, |w| f32::from_bits(f16_to_f32(w >> shift & 0xFFFF) ^ flip)),
        Element::Bf16 => each(words, |w| f32::from_bits((w >> shift) << 16 ^ flip)),
        Element::Tf32 => each(words, |w| f32::from_bits(w & 0xFFFF_E000 ^ flip)),
        Element::E4m3 => each(words, |w| f32::from_bits(e4m3(w >> shift & 0xFF) ^ flip)),
        // The upper byte of an f16.
        Element::E5m2 => each(words, |w| f32::from_bits(f16_to_f32((w >> shift & 0xFF) << 8) ^ flip)),
        Element::S8 => each(words, |w| ((w << (24 - shift)) as i32 >> 24) as f32),
        Element::U8 => each(words, |w| (w >> shift & 0xFF) as i32 as f32),
        Element::S4 => each(words, |w| ((w << (28 - shift)) as i32 >> 28) as f32),
        Element::U4 => each(words, |w| (w >> shift & 0xF) as i32 as f32),
    }
}

#[inline(always)]
pub(super) fn each(words: &Words, value: impl Fn(u32) -> f32) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    for (out, w) in out.iter_mut().zip(words) {
        *out = value(*w);
    }
    out
}

/// Whether an f16 of a pair is infinite or NaN.
#[inline(always)]
fn any_special(words: &Words) -> bool {
    let mut found = 0;
    for w in words {
        // A full exponent carries into the sign's place.
        found |= (w & 0x7C00_7C00) + 0x0400_0400;
    }
    found & 0x8000_8000 != 0
}

/// Four bits of exponent with a bias of 7, three of mantissa, no infinities.
#[inline(always)]
fn e4m3(byte: u32) -> u32 {
    const SCALE: f32 = f32::from_bits(0x7B80_0000); // 2^120
    let magnitude = byte & 0x7F;
    let scaled = (f32::from_bits(magnitude << 20) * SCALE).to_bits();
    let value = if magnitude == 0x7F { NAN32 } else { scaled };
    (byte & 0x80) << 24 | value
}

/// One-bit products: what 256 or 128 positions of A and B have in common or in difference, added to C.
pub(super) fn popcounts(
    a: &[&Words],
    b: &[&Words],
    c: &[&Words],
    rows: usize,
    combine: impl Fn(u32, u32) -> u32,
) -> Vec<Row32> {
    let blocks = rows / 8;
    let mut out = vec![Row32::ZERO; c.len()];
    for (i, (out, c)) in out.iter_mut().zip(c).enumerate() {
        for (lane, d) in out.0.iter_mut().enumerate() {
            let (block, g, n) = (i >> 1, lane / 4, 2 * (lane % 4) + (i & 1));
            let words = b.iter().enumerate().flat_map(|(r, b)| (0..4).map(move |t| (r, b, t)));
            let sum: u32 = words
                .map(|(r, b, t)| {
                    let a = a.get(block + blocks * r).map_or(0, |a| a[4 * g + t]);
                    combine(a, b[4 * n + t]).count_ones()
                })
                .sum();
            *d = c[lane].wrapping_add(sum);
        }
    }
    out
}
