//! Element types of matrices: their values as bits, random ones, and packing into registers.

use warpwright_ptx::float16::{bf16_bits, f16_bits};

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    F16,
    Bf16,
    Tf32,
    F32,
    F64,
    E4m3,
    E5m2,
    S8,
    U8,
    S4,
    U4,
    B1,
    S32,
}

impl Type {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Tf32 => "tf32",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::E4m3 => "e4m3",
            Self::E5m2 => "e5m2",
            Self::S8 => "s8",
            Self::U8 => "u8",
            Self::S4 => "s4",
            Self::U4 => "u4",
            Self::B1 => "b1",
            Self::S32 => "s32",
        }
    }

    pub(super) const fn bits(self) -> usize {
        match self {
            Self::F64 => 64,
            Self::Tf32 | Self::F32 | Self::S32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::E4m3 | Self::E5m2 | Self::S8 | Self::U8 => 8,
            Self::S4 | Self::U4 => 4,
            Self::B1 => 1,
        }
    }

    pub(super) const fn is_integer(self) -> bool {
        matches!(self, Self::S8 | Self::U8 | Self::S4 | Self::U4 | Self::B1 | Self::S32)
    }

    /// The number that bits stand for.
    pub(super) fn value(self, bits: u64) -> f64 {
        match self {
            Self::F16 => half::f16::from_bits(bits as u16).to_f64(),
            Self::Bf16 => half::bf16::from_bits(bits as u16).to_f64(),
            Self::Tf32 => f64::from(f32::from_bits(bits as u32 & !0x1FFF)),
            Self::F32 => f64::from(f32::from_bits(bits as u32)),
            Self::F64 => f64::from_bits(bits),
            Self::E4m3 => minifloat(bits, 3, 7),
            Self::E5m2 => minifloat(bits, 2, 15),
            Self::S8 => f64::from(bits as u8 as i8),
            Self::U8 => f64::from(bits as u8),
            Self::S4 => f64::from((bits as i8) << 4 >> 4),
            Self::U4 | Self::B1 => bits as f64,
            Self::S32 => f64::from(bits as u32 as i32),
        }
    }

    /// The bits of a small whole number.
    fn whole(self, value: i64) -> u64 {
        let x = value as f64;
        match self {
            Self::F16 => u64::from(f16_bits(x)),
            Self::Bf16 => u64::from(bf16_bits(x)),
            Self::Tf32 | Self::F32 => u64::from((x as f32).to_bits()),
            Self::F64 => x.to_bits(),
            Self::E4m3 | Self::E5m2 => {
                (0..256).find(|b| self.value(*b) == x).expect("a number that the type has")
            }
            _ => value as u64 & (u64::MAX >> (64 - self.bits())),
        }
    }
}

/// Eight bits with an exponent of that bias and `mantissa` bits behind it; special values are not asked for.
fn minifloat(bits: u64, mantissa: u32, bias: i32) -> f64 {
    let sign = if bits & 0x80 != 0 { -1.0 } else { 1.0 };
    let exponent = (bits as i32 & 0x7F) >> mantissa;
    let fraction = (bits & ((1 << mantissa) - 1)) as f64 / f64::from(1 << mantissa);
    let magnitude = if exponent == 0 {
        fraction * 2f64.powi(1 - bias)
    } else {
        (1.0 + fraction) * 2f64.powi(exponent - bias)
    };
    sign * magnitude
}

/// Which numbers a case is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// So small that every sum is exact in every type of sums.
    Whole,
    /// Any of the type, within a few powers of two.
    Real,
    /// The largest, all of one sign: for integers that overflow.
    Extreme,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole numbers",
            Self::Real => "real numbers",
            Self::Extreme => "extremes",
        }
    }
}

/// A small generator (the finaliser of SplitMix64).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: &str) -> Self {
        Self(
            seed.bytes().fold(0xCBF2_9CE4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01B3)),
        )
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }

    /// Bits of an element.
    pub(super) fn element(&mut self, ty: Type, kind: Kind) -> u64 {
        let unsigned = matches!(ty, Type::U8 | Type::U4 | Type::B1);
        match (ty, kind) {
            (Type::B1, _) => self.below(2),
            (Type::S8, Kind::Extreme) => 0x80,
            (Type::U8, Kind::Extreme) => 0xFF,
            (Type::S4, Kind::Extreme) => 8,
            (Type::U4, Kind::Extreme) => 15,
            (Type::S32, Kind::Extreme) => (i32::MAX - self.below(9) as i32) as u64,
            (Type::S32, Kind::Real) => u64::from(self.bits() as u32),
            (_, Kind::Real) if ty.is_integer() => self.bits() & (u64::MAX >> (64 - ty.bits())),
            (_, Kind::Whole | Kind::Extreme) if unsigned => ty.whole(self.below(7) as i64),
            // The low bits of tf32 are ignored.
            (Type::Tf32, Kind::Whole | Kind::Extreme) => {
                ty.whole(self.below(9) as i64 - 4) | self.bits() & 0x1FFF
            }
            (_, Kind::Whole | Kind::Extreme) => ty.whole(self.below(9) as i64 - 4),
            (Type::E4m3 | Type::E5m2, Kind::Real) => loop {
                let bits = self.bits() & 0xFF;
                // Neither NaN nor infinite, and not so large that f16 sums overflow.
                if ty.value(bits).abs() <= 8.0 && bits & 0x7F < 0x7C {
                    return bits;
                }
            },
            (Type::F16, Kind::Real) => u64::from(f16_bits(self.real())),
            (Type::Bf16, Kind::Real) => u64::from(bf16_bits(self.real())),
            (Type::Tf32 | Type::F32, Kind::Real) => u64::from((self.real() as f32).to_bits()),
            (_, Kind::Real) => self.real().to_bits(),
        }
    }

    /// Uniform in -2 to 2, sometimes much smaller.
    fn real(&mut self) -> f64 {
        let unit = (self.bits() >> 11) as f64 / (1u64 << 53) as f64;
        let scale = if self.below(4) == 0 { 2f64.powi(-(self.below(12) as i32)) } else { 1.0 };
        (4.0 * unit - 2.0) * scale
    }
}

/// A matrix as bits of its elements.
#[derive(Clone, Debug)]
pub(super) struct Matrix {
    pub(super) ty: Type,
    columns: usize,
    bits: Vec<u64>,
}

impl Matrix {
    pub(super) fn random(random: &mut Random, ty: Type, kind: Kind, rows: usize, columns: usize) -> Self {
        let bits = (0..rows * columns).map(|_| random.element(ty, kind)).collect();
        Self { ty, columns, bits }
    }

    pub(super) fn bits(&self, row: usize, column: usize) -> u64 {
        self.bits[row * self.columns + column]
    }

    pub(super) fn value(&self, row: usize, column: usize) -> f64 {
        self.ty.value(self.bits(row, column))
    }

    /// The registers of all lanes: element `i` of a lane is the one that `place` gives, lowest bits first.
    pub(super) fn fragments(
        &self,
        lanes: usize,
        elements: usize,
        place: impl Fn(usize, usize) -> (usize, usize),
    ) -> Vec<u8> {
        let bits = self.ty.bits();
        let mut out = vec![0u8; lanes * elements * bits / 8];
        for lane in 0..lanes {
            for i in 0..elements {
                let (row, column) = place(lane, i);
                put(&mut out, (lane * elements + i) * bits, bits, self.bits(row, column));
            }
        }
        out
    }
}

/// Writes `count` bits at bit `at`.
pub(super) fn put(out: &mut [u8], at: usize, count: usize, bits: u64) {
    if count >= 8 {
        out[at / 8..(at + count) / 8].copy_from_slice(&bits.to_le_bytes()[..count / 8]);
    } else {
        out[at / 8] |= (bits as u8) << (at % 8);
    }
}

/// `d = a * b + c` in f64, and the sum of the magnitudes of everything that was added.
pub(super) fn dot(a: impl Iterator<Item = (f64, f64)>, c: f64) -> (f64, f64) {
    a.fold((c, c.abs()), |(sum, size), (a, b)| (sum + a * b, size + (a * b).abs()))
}

/// How a sum is made.
pub(super) struct Sums {
    /// A term may be off by this many bits below the largest.
    pub(super) bits: i32,
    /// Roundings to the type of the result before the last.
    pub(super) roundings: usize,
}

/// How far a sum of `k` products may be from its value: the bound for devices, and roundings of results.
pub(super) fn tolerance(d: Type, sums: &Sums, k: usize, value: f64, size: f64) -> f64 {
    let terms = k as f64 * 2f64.powi(-sums.bits) * size;
    match d {
        Type::F32 => terms,
        Type::F16 => terms + 2f64.powi(-11) * (value.abs() + sums.roundings as f64 * size) + 2f64.powi(-25),
        Type::F64 => k as f64 * 2f64.powi(-52) * size,
        _ => 0.0,
    }
}
