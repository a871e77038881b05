//! Codes as pairs of numbers of the type of `x`, by a table in shared memory.

use warpwright_dsl::Halves;
use warpwright_dsl::prelude::*;

use super::format::WeightFormat;

/// Bytes of the table, which each lane has a copy of.
pub(super) const TABLE_BYTES: u32 = ENTRIES * PITCH;
/// Bytes from one entry to the next: a word for each bank.
const PITCH: u32 = 128;
/// One for each byte of codes.
const ENTRIES: u32 = 256;

/// Writes the pairs of all bytes to every bank, a share for each of `threads` threads.
pub(super) fn fill<'k>(
    k: K<'k>,
    (format, dtype): (WeightFormat, DType),
    to: Ptr<'k, Shared, u32>,
    threads: u32,
) {
    let pairs = k.constant_table::<u32>(&format.pairs(dtype));
    k.for_each(k.range(k.thread_idx(), ENTRIES, threads), |entry| {
        let pair = Lanes::splat(pairs.at(entry).get(), 4);
        // Lanes begin at different banks.
        for part in 0..8u32 {
            let bank = ((entry + part) & 7) << 2;
            to.at((entry << 5) + bank).store(pair.clone());
        }
    });
}

/// The table as a lane reads it.
#[derive(Clone, Copy)]
pub(super) struct PairTable<'k> {
    pub(super) k: K<'k>,
    pub(super) dtype: DType,
    /// The lane's copy.
    pub(super) copy: Ptr<'k, Shared, u8>,
}

impl<'k> PairTable<'k> {
    /// The numbers of the byte of `word` that the last digit of `selector` names; its other digits are those of a permutation that
    /// gives zeros: 0x4440.
    pub(super) fn pair(&self, word: U32<'k>, selector: impl Source<'k, u32>) -> U32<'k> {
        let byte = word.permute(0, selector);
        self.copy.at(byte << PITCH.trailing_zeros()).cast::<u32>().get()
    }

    /// `pair` less a zero point, as [`minus`](Self::minus) gives it. Differences of integers of eight bits are exact.
    pub(super) fn less(&self, pair: U32<'k>, minus: Option<Halves<'k>>) -> U32<'k> {
        match minus {
            Some(minus) => self.halves(pair).mul_add(self.halves(self.ones()), minus).word(),
            None => pair,
        }
    }

    /// `pair` times a scale that is in both halves of a word.
    pub(super) fn times(&self, pair: U32<'k>, scale: Halves<'k>) -> U32<'k> {
        self.halves(pair).times(scale).word()
    }

    /// A zero point with a minus sign, twice.
    pub(super) fn minus(&self, zero: F32<'k>) -> Halves<'k> {
        if self.dtype == DType::BF16 {
            return self.halves((-zero).to_bits().permute(0, 0x3232));
        }
        // 1024 - (1024 + zero), of which the second has the integer in its last bits.
        let above = (zero.to_u32() | 0x6400).permute(0, 0x1010);
        self.halves(above).negated().mul_add(self.halves(self.ones()), self.halves(self.k.lit(0x6400_6400)))
    }

    fn halves(&self, word: U32<'k>) -> Halves<'k> {
        Halves::from_word(word, self.dtype)
    }

    fn ones(&self) -> U32<'k> {
        self.k.lit(if self.dtype == DType::BF16 { 0x3f80_3f80 } else { 0x3c00_3c00 })
    }
}
