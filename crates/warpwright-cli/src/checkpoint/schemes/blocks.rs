//! The blocks of GGUF: a run of elements along K with scales and codes together in so many bytes.
//!
//! | type | block | value of element e |
//! |---|---|---|
//! | Q4_0 | 32: f16 d, 16 bytes | d (q - 8) |
//! | Q4_1 | 32: f16 d, f16 m, 16 bytes | d q + m |
//! | Q5_0, Q5_1 | the same with u32 qh in front of the bytes: bit e is the fifth | d (q - 16), d q + m |
//! | Q8_0 | 32: f16 d, 32 i8 | d q |
//! | Q4_K | 256: f16 d, f16 dmin, 12 bytes of 6-bit scales and minima, 128 bytes | d sc q - dmin m |
//! | Q5_K | the same with 32 bytes qh in front of the 128 | d sc q - dmin m |
//! | Q6_K | 256: 128 bytes ql, 64 bytes qh, 16 i8 sc, f16 d | d sc (q - 32) |
//! | MXFP4 | 32: e8m0, 16 bytes of e2m1 | q s |
//!
//! Blocks of 32 have element j in the low half of byte j and element j + 16 in the high half. Source: ggml (`ggml-common.h`,
//! `ggml-quants.c`).

use half::f16;

use super::packing::{e2m1_value, e8m0_value};

/// A kind of block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "ggml's names")]
pub enum Block {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
    Mxfp4,
}

impl Block {
    /// The block that a file calls by this number.
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            39 => Self::Mxfp4,
            _ => return None,
        })
    }

    /// As `inspect` names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q4_0 => "gguf-q4_0",
            Self::Q4_1 => "gguf-q4_1",
            Self::Q5_0 => "gguf-q5_0",
            Self::Q5_1 => "gguf-q5_1",
            Self::Q8_0 => "gguf-q8_0",
            Self::Q4K => "gguf-q4_k",
            Self::Q5K => "gguf-q5_k",
            Self::Q6K => "gguf-q6_k",
            Self::Mxfp4 => "gguf-mxfp4",
        }
    }

    /// Elements of a block.
    pub const fn elements(self) -> usize {
        match self {
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
            _ => 32,
        }
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Mxfp4 => 17,
        }
    }

    /// The numbers of whole blocks.
    pub(super) fn decode(self, bytes: &[u8], out: &mut Vec<f32>) {
        for block in bytes.chunks_exact(self.bytes()) {
            let number = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
            match self {
                Self::Q4_0 => {
                    let d = number(0);
                    out.extend(halves(&block[2..]).map(|(_, q)| d * (f32::from(q) - 8.0)));
                }
                Self::Q4_1 => {
                    let (d, m) = (number(0), number(2));
                    out.extend(halves(&block[4..]).map(|(_, q)| d * f32::from(q) + m));
                }
                Self::Q5_0 => {
                    let d = number(0);
                    let q = |(e, q)| fifth(&block[2..6], e, q);
                    out.extend(halves(&block[6..]).map(q).map(|q| d * (q - 16.0)));
                }
                Self::Q5_1 => {
                    let (d, m) = (number(0), number(2));
                    let q = |(e, q)| fifth(&block[4..8], e, q);
                    out.extend(halves(&block[8..]).map(q).map(|q| d * q + m));
                }
                Self::Q8_0 => {
                    let d = number(0);
                    out.extend(block[2..].iter().map(|q| d * f32::from(q.cast_signed())));
                }
                Self::Q4K => super_block(number(0), number(2), &block[4..16], None, &block[16..], out),
                Self::Q5K => {
                    let high = Some(&block[16..48]);
                    super_block(number(0), number(2), &block[4..16], high, &block[48..], out);
                }
                Self::Q6K => {
                    let (ql, qh, scales, d) =
                        (&block[..128], &block[128..192], &block[192..208], number(208));
                    out.extend((0..256).map(|e| {
                        let (half, quarter, l) = (e / 128, e % 128 / 32, e % 32);
                        let low = ql[64 * half + 32 * (quarter % 2) + l] >> (4 * (quarter / 2)) & 15;
                        let high = qh[32 * half + l] >> (2 * quarter) & 3;
                        let scale = d * f32::from(scales[e / 16].cast_signed());
                        scale * (f32::from(low | high << 4) - 32.0)
                    }));
                }
                Self::Mxfp4 => {
                    let scale = e8m0_value(block[0]);
                    out.extend(halves(&block[1..]).map(|(_, q)| e2m1_value(q) * scale));
                }
            }
        }
    }
}

/// The elements of a block of 32 in order, with their 4 bits.
fn halves(bytes: &[u8]) -> impl Iterator<Item = (usize, u8)> + '_ {
    (0..32).map(|e| (e, bytes[e % 16] >> (4 * (e / 16)) & 15))
}

fn fifth(high: &[u8], e: usize, low: u8) -> f32 {
    f32::from(low | (high[e / 8] >> (e % 8) & 1) << 4)
}

/// 256 elements in eight runs of 32, each with a scale and a minimum of 6 bits.
fn super_block(d: f32, dmin: f32, packed: &[u8], high: Option<&[u8]>, low: &[u8], out: &mut Vec<f32>) {
    for j in 0..8 {
        let (scale, minimum) = if j < 4 {
            (packed[j] & 63, packed[j + 4] & 63)
        } else {
            let shared = packed[j + 4];
            ((shared & 15) | packed[j - 4] >> 6 << 4, shared >> 4 | packed[j] >> 6 << 4)
        };
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        out.extend((0..32).map(|l| {
            let four = low[32 * (j / 2) + l] >> (4 * (j % 2)) & 15;
            let five = high.map_or(0, |high| (high[l] >> j & 1) << 4);
            scale * f32::from(four | five) - minimum
        }));
    }
}
