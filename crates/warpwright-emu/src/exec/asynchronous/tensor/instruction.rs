//! Instruction descriptors of `tcgen05.mma`: shape and types.
//!
//! | bits | field |
//! |---|---|
//! | 2 | A is sparse |
//! | 3 | integer sums saturate |
//! | 4-5 | type of D: 0 f16, 1 f32, 2 s32 |
//! | 7-9, 10-12 | types of A and B |
//! | 13, 14 | A and B are negated |
//! | 15, 16 | A and B are MN-major |
//! | 17-22 | N / 8 |
//! | 24-28 | M / 16 |
//! | 30-31 | shift of B, weights only |
//!
//! Where factors have scales, D is in f32 and other bits say: 4-5 and 29-30 the byte of the first scale of B and A, 23 the
//! type of the scales (1 is ue8m0), 31 a longer k.
//!
//! Fields and codes are those of the PTX ISA ("Instruction descriptor") and of `InstrDescriptor` in CUTLASS's
//! `mma_sm100_desc.hpp`; the shapes those of "Matrix shape" for dense products of one block.

use warpwright_ptx::Tcgen05Kind;

use crate::code::matrix::{Accumulator, Element, Major};

/// Elements of A or B as they lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// As the arithmetic takes them.
    Plain(Element),
    /// Floats of 4 or 6 bits, sixteen to a chunk of 16 bytes.
    E2m1,
    E2m3,
    E3m2,
    /// Floats of 4 bits, two to a byte.
    PackedE2m1,
}

impl Stored {
    /// The type that the arithmetic takes.
    pub(super) const fn element(self) -> Element {
        match self {
            Self::Plain(element) => element,
            Self::E2m1 | Self::E2m3 | Self::E3m2 | Self::PackedE2m1 => Element::E4m3,
        }
    }

    /// Bits of an element and what fills it up.
    pub(super) const fn bits(self) -> u32 {
        self.element().bits()
    }

    /// Bytes of a chunk that hold elements; the others fill it up.
    pub(super) const fn used(self) -> u64 {
        match self {
            Self::E2m1 => 8,
            Self::E2m3 | Self::E3m2 => 12,
            Self::Plain(_) | Self::PackedE2m1 => 16,
        }
    }

    /// A chunk as the arithmetic takes it. Every narrow float is one of e4m3 as well.
    pub(super) fn widened(self, chunk: [u8; 16]) -> [u8; 16] {
        let packed = |bits: u32, i: usize| {
            let (at, shift) = (i * bits as usize / 8, i as u32 * bits % 8);
            let two = u32::from(chunk[at]) | u32::from(chunk[(at + 1) % 16]) << 8;
            (two >> shift & ((1 << bits) - 1)) as u8
        };
        match self {
            Self::Plain(_) | Self::PackedE2m1 => chunk,
            Self::E2m1 => std::array::from_fn(|i| {
                let code = packed(4, i);
                (code & 8) << 4 | [0, 0x30, 0x38, 0x3C, 0x40, 0x44, 0x48, 0x4C][usize::from(code & 7)]
            }),
            Self::E2m3 => std::array::from_fn(|i| {
                let code = packed(6, i);
                let small = [0, 0x20, 0x28, 0x2C, 0x30, 0x32, 0x34, 0x36][usize::from(code & 7)];
                let value = if code >> 3 & 3 == 0 { small } else { (code & 0x1F) + (6 << 3) };
                (code & 0x20) << 2 | value
            }),
            Self::E3m2 => std::array::from_fn(|i| {
                let code = packed(6, i);
                let small = [0, 0x18, 0x20, 0x24][usize::from(code & 3)];
                let value = if code >> 2 & 7 == 0 { small } else { ((code & 0x1F) << 1) + (4 << 3) };
                (code & 0x20) << 2 | value
            }),
        }
    }
}

/// A decoded instruction descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) m: u32,
    pub(super) n: u32,
    pub(super) a: Stored,
    pub(super) b: Stored,
    pub(super) accumulator: Accumulator,
    pub(super) a_major: Major,
    pub(super) b_major: Major,
    /// Whether the sign of the products is exchanged.
    pub(super) negate: bool,
    /// Whether two blocks share the product: each has half of the rows of A and D, and half of the columns of B.
    pub(super) pair: bool,
}

fn float8(code: u32) -> Option<Stored> {
    Some(match code {
        0 => Stored::Plain(Element::E4m3),
        1 => Stored::Plain(Element::E5m2),
        3 => Stored::E2m3,
        4 => Stored::E3m2,
        5 => Stored::E2m1,
        _ => return None,
    })
}

/// The type that a code names in a kind.
fn element(kind: Tcgen05Kind, code: u32) -> Option<Stored> {
    match (kind, code) {
        (Tcgen05Kind::F16, 0) => Some(Stored::Plain(Element::F16)),
        (Tcgen05Kind::F16, 1) => Some(Stored::Plain(Element::Bf16)),
        (Tcgen05Kind::TF32, 2) => Some(Stored::Plain(Element::Tf32)),
        (Tcgen05Kind::F8F6F4 | Tcgen05Kind::MxF8F6F4, code) => float8(code),
        (Tcgen05Kind::MxF4 | Tcgen05Kind::MxF4NvF4, 1) => Some(Stored::PackedE2m1),
        (Tcgen05Kind::I8, 0) => Some(Stored::Plain(Element::U8)),
        (Tcgen05Kind::I8, 1) => Some(Stored::Plain(Element::S8)),
        _ => None,
    }
}

impl Instruction {
    /// Bits that no field uses.
    const RESERVED: u32 = 1 << 6 | 1 << 23 | 1 << 29;
    /// The same where factors have scales.
    const RESERVED_OF_SCALED: u32 = 1 << 3 | 1 << 6;

    /// Reads a descriptor of a dense product of one block or a pair; the error says why it is none.
    pub(super) fn decode(kind: Tcgen05Kind, pair: bool, bits: u32) -> Result<Self, String> {
        let field = |at: u32, width: u32| bits >> at & ((1 << width) - 1);
        let unused = if kind.is_scaled() { Self::RESERVED_OF_SCALED } else { Self::RESERVED };
        if bits & unused != 0 {
            return Err(format!("has bits {:#x} set, which no field uses", bits & unused));
        }
        if field(0, 3) != 0 {
            return Err("is one of a sparse product".to_owned());
        }
        if kind.is_scaled() && field(31, 1) != 0 {
            return Err("has a k of 96, which is not executed".to_owned());
        }
        if !kind.is_scaled() && field(30, 2) != 0 {
            return Err("shifts B, which products with `.ws` do".to_owned());
        }
        let factor = |name: &str, at: u32| {
            element(kind, field(at, 3)).ok_or_else(|| {
                format!("gives {name} the type {}, which .kind::{kind} does not have", field(at, 3))
            })
        };
        let (a, b) = (factor("A", 7)?, factor("B", 10)?);
        let integers = kind == Tcgen05Kind::I8;
        let halves = [a, b].iter().all(|f| *f != Stored::Plain(Element::Bf16)) && kind != Tcgen05Kind::TF32;
        let saturate = field(3, 1) == 1;
        let accumulator = match if kind.is_scaled() { 1 } else { field(4, 2) } {
            0 if halves && !integers => Accumulator::F16,
            1 if !integers => Accumulator::F32,
            2 if integers => Accumulator::S32 { saturate },
            code => return Err(format!("gives D the type {code}, which does not go with the factors")),
        };
        if saturate && !integers {
            return Err("saturates sums of floats".to_owned());
        }
        if integers && field(13, 2) != 0 {
            return Err("negates integers".to_owned());
        }
        let (m, n) = (16 * field(24, 5), 8 * field(17, 6));
        let one_block = match (m, integers) {
            (128, _) if kind.is_scaled() => n.is_multiple_of(8),
            (64, false) => n.is_multiple_of(8) && !kind.is_scaled(),
            (64 | 128, true) => n.is_multiple_of(16) || m == 64 && matches!(n, 8 | 24),
            (128, false) => n.is_multiple_of(16),
            _ => false,
        };
        let two_blocks =
            (m == 256 || m == 128 && !kind.is_scaled()) && n.is_multiple_of(if integers { 32 } else { 16 });
        if !(if pair { two_blocks } else { one_block }) || !(8..=256).contains(&n) {
            let blocks = if pair { "a pair of blocks" } else { "one block" };
            return Err(format!("has a shape of {m} x {n}, which .kind::{kind} of {blocks} does not have"));
        }
        let major = |at: u32, factor: Stored| match (field(at, 1), factor) {
            (0, _) => Ok(Major::K),
            (_, Stored::Plain(Element::Tf32)) => {
                Err("has an MN-major factor of tf32, which is not executed".to_owned())
            }
            (_, Stored::Plain(_)) => Ok(Major::Mn),
            _ => Err("has an MN-major factor of less than 8 bits".to_owned()),
        };
        let negate = field(13, 1) != field(14, 1);
        Ok(Self { m, n, a, b, accumulator, a_major: major(15, a)?, b_major: major(16, b)?, negate, pair })
    }

    /// Rows of A and D of a block.
    pub(super) const fn rows(&self) -> u32 {
        if self.pair { self.m / 2 } else { self.m }
    }

    /// Columns of B of a block.
    pub(super) const fn columns(&self) -> u32 {
        if self.pair { self.n / 2 } else { self.n }
    }

    /// The common dimension: 32 bytes.
    pub(super) const fn k(&self) -> u32 {
        if matches!(self.a, Stored::PackedE2m1) { 64 } else { 256 / self.a.bits() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D in f32, A and B of one type, 128 x 64.
    fn bits(ty: u32) -> u32 {
        1 << 4 | ty << 7 | ty << 10 | 8 << 17 | 8 << 24
    }

    #[test]
    fn fields_are_read() {
        let read =
            Instruction::decode(Tcgen05Kind::F16, false, bits(1) | 1 << 13 | 1 << 16).expect("a descriptor");
        let bf16 = Stored::Plain(Element::Bf16);
        assert_eq!((read.m, read.n, read.k(), read.a, read.b), (128, 64, 16, bf16, bf16));
        assert_eq!((read.accumulator, read.negate), (Accumulator::F32, true));
        assert_eq!((read.a_major, read.b_major), (Major::K, Major::Mn));
        // The descriptor of a kernel of 128 x 128 in bf16 with sums in f32.
        let other = Instruction::decode(Tcgen05Kind::F16, false, 0x0820_0490).expect("a descriptor");
        assert_eq!((other.m, other.n, other.accumulator), (128, 128, Accumulator::F32));
    }

    #[test]
    fn fields_of_scaled_products_are_read() {
        let read = Instruction::decode(Tcgen05Kind::MxF4, false, bits(1) ^ 1 << 4 | 1 << 23 | 2 << 29)
            .expect("a descriptor");
        assert_eq!((read.m, read.n, read.k(), read.a), (128, 64, 64, Stored::PackedE2m1));
        assert_eq!(read.accumulator, Accumulator::F32);
    }

    #[test]
    fn pairs_of_blocks_have_shapes_of_their_own() {
        let decode = |m: u32, n: u32| {
            let bits = bits(1) & !(31 << 24 | 63 << 17) | (m / 16) << 24 | (n / 8) << 17;
            Instruction::decode(Tcgen05Kind::F16, true, bits)
        };
        for m in [128, 256] {
            let read = decode(m, 48).expect("a descriptor");
            assert_eq!((read.rows(), read.columns()), (m / 2, 24));
        }
        for (m, n) in [(64, 48), (256, 24)] {
            assert!(decode(m, n).expect_err("a shape").contains("a pair of blocks"));
        }
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for (kind, bits, why) in [
            (Tcgen05Kind::F16, bits(1) | 1 << 6, "no field uses"),
            (Tcgen05Kind::F16, bits(1) | 1 << 2, "sparse"),
            (Tcgen05Kind::F16, bits(1) | 1 << 30, "shifts B"),
            (Tcgen05Kind::F16, bits(2), "gives A the type 2"),
            (Tcgen05Kind::TF32, bits(0), "gives A the type 0"),
            (Tcgen05Kind::F16, bits(1) & !(3 << 4), "gives D the type 0"),
            (Tcgen05Kind::I8, bits(1), "gives D the type 1"),
            (Tcgen05Kind::F16, bits(1) | 1 << 3, "saturates"),
            (Tcgen05Kind::I8, bits(1) & !(1 << 4) | 2 << 4 | 1 << 14, "negates"),
            (Tcgen05Kind::F16, bits(1) ^ 1 << 17, "128 x 72"),
            (Tcgen05Kind::F16, bits(1) ^ 8 << 24 | 16 << 24, "256 x 64"),
            (Tcgen05Kind::TF32, bits(2) | 1 << 15, "tf32"),
            (Tcgen05Kind::F8F6F4, bits(5) | 1 << 15, "less than 8 bits"),
            (Tcgen05Kind::MxF4, bits(1) ^ 1 << 4 | 1 << 31, "k of 96"),
            (Tcgen05Kind::MxF4, bits(1) ^ 1 << 4 | 1 << 15, "less than 8 bits"),
            (Tcgen05Kind::MxF8F6F4, bits(2), "gives A the type 2"),
            (Tcgen05Kind::MxF8F6F4, bits(0) ^ 8 << 24 | 4 << 24, "64 x 64"),
        ] {
            let problem = Instruction::decode(kind, false, bits).expect_err(why);
            assert!(problem.contains(why), "{problem}");
        }
    }

    /// The value of a float of `exponent` and `mantissa` bits behind its sign.
    fn value(code: u8, exponent: u32, mantissa: u32) -> f64 {
        let code = u32::from(code);
        let (e, m) = (code >> mantissa & ((1 << exponent) - 1), code & ((1 << mantissa) - 1));
        let (bias, scale) = ((1 << (exponent - 1)) - 1, f64::from(1u32 << mantissa));
        let magnitude = if e == 0 {
            f64::from(m) / scale * 2f64.powi(1 - bias)
        } else {
            (1.0 + f64::from(m) / scale) * 2f64.powi(e as i32 - bias)
        };
        if code >> (exponent + mantissa) & 1 == 1 { -magnitude } else { magnitude }
    }

    #[test]
    fn narrow_floats_keep_their_values() {
        for (stored, bits, exponent, mantissa) in
            [(Stored::E2m1, 4, 2, 1), (Stored::E2m3, 6, 2, 3), (Stored::E3m2, 6, 3, 2)]
        {
            for first in (0..1u32 << bits).step_by(16) {
                let mut chunk = [0u8; 16];
                for i in 0..16u32 {
                    let (at, shift) = ((i * bits / 8) as usize, i * bits % 8);
                    let two = (first + i) << shift;
                    chunk[at] |= two as u8;
                    chunk[at + 1] |= (two >> 8) as u8;
                }
                for (i, wide) in (first..).zip(stored.widened(chunk)) {
                    let narrow = value(i as u8, exponent, mantissa);
                    let sign = narrow.is_sign_negative() == (wide & 0x80 != 0);
                    assert!(value(wide, 4, 3) == narrow && sign, "{stored:?} {i:#x}: {wide:#x}");
                }
            }
        }
    }
}
