//! Random words from numbers alone: Philox 4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
//! 1, 2, 3" (2011), which is also what PyTorch and cuRAND draw from on a GPU.

use crate::context::K;
use crate::reg::{U32, U64};

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: u32 = 10;

/// A word of the host or of a kernel.
trait Word: Copy {
    /// High and low half of the product.
    fn product(self, multiplier: u32) -> (Self, Self);
    fn xor(self, other: Self) -> Self;
    fn add(self, constant: u32) -> Self;
}

impl Word for u32 {
    fn product(self, multiplier: u32) -> (Self, Self) {
        let product = u64::from(self) * u64::from(multiplier);
        ((product >> 32) as Self, product as Self)
    }

    fn xor(self, other: Self) -> Self {
        self ^ other
    }

    fn add(self, constant: u32) -> Self {
        self.wrapping_add(constant)
    }
}

impl Word for U32<'_> {
    #[track_caller]
    fn product(self, multiplier: u32) -> (Self, Self) {
        // One instruction for both halves.
        let (low, high) = self.mul_wide(multiplier).words();
        (high, low)
    }

    #[track_caller]
    fn xor(self, other: Self) -> Self {
        self ^ other
    }

    #[track_caller]
    fn add(self, constant: u32) -> Self {
        self + constant
    }
}

#[track_caller]
fn rounds<W: Word>(key: [W; 2], counter: [W; 4]) -> [W; 4] {
    let ([mut k0, mut k1], [mut c0, mut c1, mut c2, mut c3]) = (key, counter);
    for round in 0..ROUNDS {
        if round > 0 {
            (k0, k1) = (k0.add(KEY_STEPS[0]), k1.add(KEY_STEPS[1]));
        }
        let ((high0, low0), (high2, low2)) = (c0.product(MULTIPLIERS[0]), c2.product(MULTIPLIERS[1]));
        (c0, c1, c2, c3) = (high2.xor(c1).xor(k0), low2, high0.xor(c3).xor(k1), low0);
    }
    [c0, c1, c2, c3]
}

/// Streams of random words: the words with a number are a function of `seed`, `offset` and that number, so every thread draws
/// what it needs, in any order, and a backward pass draws what the forward pass drew.
///
/// `seed` is the key; of the counter the lower half is the number and the upper half `offset`, which tells apart the uses of one
/// seed. [`words`](Self::words) draws the same on the host.
#[derive(Clone, Copy, Debug)]
pub struct Philox<'k> {
    key: [U32<'k>; 2],
    offset: [U32<'k>; 2],
}

impl<'k> Philox<'k> {
    /// The streams of a seed and an offset.
    #[track_caller]
    pub fn new(k: K<'k>, seed: U64<'k>, offset: U64<'k>) -> Self {
        k.on_behalf(|| {
            let ((k0, k1), (o0, o1)) = (seed.words(), offset.words());
            Self { key: [k0, k1], offset: [o0, o1] }
        })
    }

    /// Four words, each evenly distributed and independent of the others.
    #[track_caller]
    pub fn draw(self, number: U64<'k>) -> [U32<'k>; 4] {
        let [o0, o1] = self.offset;
        o0.k().on_behalf(|| {
            let (low, high) = number.words();
            rounds(self.key, [low, high, o0, o1])
        })
    }

    /// The words of `count` elements that follow each other, of which each four, the first of them a multiple of four, share a draw.
    /// `count` is a power of two that divides the number of the first element.
    #[track_caller]
    pub fn elements(self, first: U64<'k>, count: u32) -> Vec<U32<'k>> {
        first.k().on_behalf(|| {
            let number = first >> 2;
            if count >= 4 {
                let draws = u64::from(count / 4);
                return (0..draws)
                    .flat_map(|i| self.draw(if i == 0 { number } else { number + i }))
                    .collect();
            }
            let (mut words, at) = (self.draw(number).to_vec(), first.to_u32());
            while words.len() > count as usize {
                let half = words.len() / 2;
                let upper = (at & half as u32).ne(0);
                words = (0..half).map(|i| upper.select(words[half + i], words[i])).collect();
            }
            words
        })
    }

    /// The result of [`draw`](Self::draw) in a kernel.
    pub fn words(seed: u64, offset: u64, number: u64) -> [u32; 4] {
        let halves = |value: u64| [value as u32, (value >> 32) as u32];
        let ([n0, n1], [o0, o1]) = (halves(number), halves(offset));
        rounds(halves(seed), [n0, n1, o0, o1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors publish with Random123.
    #[test]
    fn known_answers() {
        let of = |key: [u32; 2], counter: [u32; 4]| rounds(key, counter);
        assert_eq!(of([0; 2], [0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(of([!0; 2], [!0; 4]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        assert_eq!(of([0xa409_3822, 0x299f_31d0], pi), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
        let joined = Philox::words(0x299f_31d0_a409_3822, 0x0370_7344_1319_8a2e, 0x85a3_08d3_243f_6a88);
        assert_eq!(joined, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }
}
