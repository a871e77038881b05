//! Codes in words and bytes, and the numbers that they stand for.

use warpwright_ops::quantize::tables::E2M1;
use warpwright_ptx::float8::{e4m3_value, e5m2_value};

use super::Block;
use crate::checkpoint::stored::StoredType;

/// The meaning of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// An integer of so many bits, 1 to 8.
    Unsigned(u32),
    /// A byte with a sign.
    Int8,
    /// An 8-bit float with four exponent bits.
    E4m3,
    /// An 8-bit float with five exponent bits.
    E5m2,
    /// A 4-bit float.
    E2m1,
    /// A byte of a block, which stands for nothing by itself.
    Block,
}

impl Code {
    /// Bits of a code.
    pub const fn bits(self) -> u32 {
        match self {
            Self::Unsigned(bits) => bits,
            Self::E2m1 => 4,
            Self::Int8 | Self::E4m3 | Self::E5m2 | Self::Block => 8,
        }
    }

    /// The number of every code, before zero point and scale.
    pub fn values(self) -> [f32; 256] {
        std::array::from_fn(|code| {
            let code = code as u8;
            match self {
                Self::Unsigned(_) | Self::Block => f32::from(code),
                Self::Int8 => f32::from(code.cast_signed()),
                // 8-bit floats are f32 numbers.
                Self::E4m3 => e4m3_value(code) as f32,
                Self::E5m2 => e5m2_value(code) as f32,
                Self::E2m1 => e2m1_value(code),
            }
        })
    }
}

/// The number of a 4-bit float, of whose byte the lower half counts.
pub fn e2m1_value(code: u8) -> f32 {
    E2M1[usize::from(code & 15)]
}

/// The 4-bit float nearest to a number, ties to the even code; beyond 6 it is 6.
pub fn e2m1_bits(value: f32) -> u8 {
    // The middles between neighbours; the bool says whether the middle itself goes up, to an even code.
    const MIDDLES: [(f32, bool); 7] =
        [(0.25, false), (0.75, true), (1.25, false), (1.75, true), (2.5, false), (3.5, true), (5.0, false)];
    let size = value.abs();
    let up = |(middle, even_above): &&(f32, bool)| size > *middle || (*even_above && size == *middle);
    let magnitude = MIDDLES.iter().filter(up).count() as u8;
    magnitude | if value.is_sign_negative() { 8 } else { 0 }
}

/// The number of an exponent byte: 2^(byte - 127), and NaN for 255.
pub fn e8m0_value(byte: u8) -> f32 {
    match byte {
        255 => f32::NAN,
        // 2^-127 is subnormal.
        0 => f32::from_bits(1 << 22),
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }
}

/// The numbers of I64; bytes of any other type are read as I32.
pub(super) fn integers(bytes: &[u8], dtype: StoredType) -> Vec<i64> {
    match dtype {
        StoredType::I64 => bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
        _ => bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect(),
    }
}

/// The words of 32 bits that so many codes fill, unless they are too many to count.
pub(super) fn words(codes: u64, bits: u32) -> Option<u64> {
    codes.checked_mul(bits.into()).map(|bits| bits.div_ceil(32))
}

/// How the codes of a matrix \[N, K\] share words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// i32 \[ceil(K b / 32), N\]: along K from the lowest bit on, as a stream.
    Down,
    /// i32 \[K, N / 8\]: eight neighbours along N in AWQ's order.
    Interleaved,
    /// i32 \[N, ceil(K b / 32)\]: along K from the lowest bit on, as a stream.
    Along,
    /// u8 \[N, K / 2\]: the even element in the low half.
    Nibbles,
    /// u8 \[N, K\].
    Bytes,
    /// Scales and codes together; [`Block`] decodes them.
    Blocks(Block),
}

/// Which nibble of AWQ's word holds the neighbour of this number.
const NIBBLE_OF: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

impl Packing {
    /// Bytes of a row, where the codes of a row lie together.
    pub const fn row_bytes(self, columns: usize, bits: u32) -> Option<usize> {
        match self {
            Self::Down | Self::Interleaved => None,
            Self::Along => Some((columns * bits as usize).div_ceil(32) * 4),
            Self::Nibbles => Some(columns.div_ceil(2)),
            Self::Bytes => Some(columns),
            Self::Blocks(block) => Some(columns / block.elements() * block.bytes()),
        }
    }

    /// Bytes of a matrix.
    pub fn bytes(self, rows: usize, columns: usize, bits: u32) -> usize {
        match self {
            Self::Down => (columns * bits as usize).div_ceil(32) * rows * 4,
            Self::Interleaved => columns * rows.div_ceil(8) * 4,
            _ => rows * self.row_bytes(columns, bits).unwrap_or(0),
        }
    }

    /// Takes the codes of row `row` out of the bytes of a matrix of `rows` rows.
    pub fn unpack(self, bytes: &[u8], rows: usize, row: usize, bits: u32, codes: &mut [u8]) {
        match self {
            Self::Down => unpack_stream(|word| load(bytes, word * rows + row), bits, codes),
            Self::Interleaved => {
                let (width, shift) = (rows.div_ceil(8), 4 * NIBBLE_OF[row % 8]);
                for (k, code) in codes.iter_mut().enumerate() {
                    *code = (load(bytes, k * width + row / 8) >> shift & 15) as u8;
                }
            }
            Self::Along => {
                let width = (codes.len() * bits as usize).div_ceil(32);
                unpack_stream(|word| load(bytes, row * width + word), bits, codes);
            }
            Self::Nibbles => {
                let start = row * codes.len().div_ceil(2);
                for (k, code) in codes.iter_mut().enumerate() {
                    *code = bytes[start + k / 2] >> (4 * (k % 2)) & 15;
                }
            }
            Self::Bytes | Self::Blocks(_) => {
                let start = row * codes.len();
                codes.copy_from_slice(&bytes[start..start + codes.len()]);
            }
        }
    }

    /// Puts the codes of row `row` into the bytes of a matrix of `rows` rows, which were 0.
    pub fn pack(self, bytes: &mut [u8], rows: usize, row: usize, bits: u32, codes: &[u8]) {
        match self {
            Self::Down => pack_stream(|word, value| merge(bytes, word * rows + row, value), bits, codes),
            Self::Interleaved => {
                let (width, shift) = (rows.div_ceil(8), 4 * NIBBLE_OF[row % 8]);
                for (k, code) in codes.iter().enumerate() {
                    merge(bytes, k * width + row / 8, u32::from(*code) << shift);
                }
            }
            Self::Along => {
                let width = (codes.len() * bits as usize).div_ceil(32);
                pack_stream(|word, value| merge(bytes, row * width + word, value), bits, codes);
            }
            Self::Nibbles => {
                let start = row * codes.len().div_ceil(2);
                for (k, code) in codes.iter().enumerate() {
                    bytes[start + k / 2] |= code << (4 * (k % 2));
                }
            }
            Self::Bytes | Self::Blocks(_) => {
                let start = row * codes.len();
                bytes[start..start + codes.len()].copy_from_slice(codes);
            }
        }
    }
}

/// A word; words have a sign in files, which shifts must not see.
fn load(bytes: &[u8], word: usize) -> u32 {
    bytes.as_chunks::<4>().0.get(word).map_or(0, |word| u32::from_le_bytes(*word))
}

fn merge(bytes: &mut [u8], word: usize, value: u32) {
    if let Some(at) = bytes.as_chunks_mut::<4>().0.get_mut(word) {
        *at = (u32::from_le_bytes(*at) | value).to_le_bytes();
    }
}

/// Codes of `bits` bits one behind the other, the lowest bit first; a code may reach into the next word.
fn unpack_stream(word: impl Fn(usize) -> u32, bits: u32, codes: &mut [u8]) {
    for (n, code) in codes.iter_mut().enumerate() {
        let at = n * bits as usize;
        let mut pair = u64::from(word(at / 32));
        if at % 32 + bits as usize > 32 {
            pair |= u64::from(word(at / 32 + 1)) << 32;
        }
        *code = (pair >> (at % 32) & ((1 << bits) - 1)) as u8;
    }
}

/// The other way: `merge` is given words and the bits to set in them.
fn pack_stream(mut merge: impl FnMut(usize, u32), bits: u32, codes: &[u8]) {
    for (n, code) in codes.iter().enumerate() {
        let at = n * bits as usize;
        let pair = u64::from(*code) << (at % 32);
        merge(at / 32, pair as u32);
        if at % 32 + bits as usize > 32 {
            merge(at / 32 + 1, (pair >> 32) as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_bit_floats_are_rounded_to_the_nearest_with_ties_to_even() {
        for code in 0..16 {
            assert_eq!(e2m1_bits(e2m1_value(code)), code);
        }
        let ties = [
            (0.25, 0.0),
            (0.75, 1.0),
            (1.25, 1.0),
            (1.75, 2.0),
            (2.5, 2.0),
            (3.5, 4.0),
            (5.0, 4.0),
            (9.0, 6.0),
        ];
        for (x, rounded) in ties {
            assert_eq!((e2m1_value(e2m1_bits(x)), e2m1_value(e2m1_bits(-x))), (rounded, -rounded), "{x}");
        }
        assert_eq!(e2m1_value(e2m1_bits(f32::INFINITY)), 6.0);
    }

    #[test]
    fn exponents_are_powers_of_two() {
        for byte in 0..255u8 {
            assert_eq!(f64::from(e8m0_value(byte)), 2f64.powi(i32::from(byte) - 127));
        }
        assert!(e8m0_value(255).is_nan());
    }

    #[test]
    fn codes_come_back_from_every_packing_at_odd_sizes() {
        let all = [
            (Packing::Down, &[1, 2, 3, 4, 5, 6, 7, 8][..]),
            (Packing::Along, &[1, 2, 3, 4, 5, 6, 7, 8]),
            (Packing::Interleaved, &[4]),
            (Packing::Nibbles, &[4]),
            (Packing::Bytes, &[8]),
        ];
        for (packing, widths) in all {
            for &bits in widths {
                for (rows, columns) in [(1, 1), (3, 5), (8, 32), (11, 37), (2, 0)] {
                    let code = |row: usize, k: usize| ((row * 31 + k * 7 + 5) % (1 << bits)) as u8;
                    let mut bytes = vec![0; packing.bytes(rows, columns, bits)];
                    for row in 0..rows {
                        let codes: Vec<_> = (0..columns).map(|k| code(row, k)).collect();
                        packing.pack(&mut bytes, rows, row, bits, &codes);
                    }
                    for row in 0..rows {
                        let mut codes = vec![0xff; columns];
                        packing.unpack(&bytes, rows, row, bits, &mut codes);
                        let expected: Vec<_> = (0..columns).map(|k| code(row, k)).collect();
                        assert_eq!(codes, expected, "{packing:?}, {bits} bits, [{rows}, {columns}]");
                    }
                }
            }
        }
    }
}
