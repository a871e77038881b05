//! Inputs of the cases: random, structured and hostile values, the same on every machine.

/// A small counter-based generator (the finaliser of SplitMix64): fast, seedable, without state shared by tests.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The sequence that belongs to `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// A way to fill a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Input {
    /// Standard normal.
    Normal,
    /// Uniform in `[-8, 8)`.
    Uniform,
    /// A ramp through `[-16, 16]`: every branch and its neighbourhood in order.
    Ramp,
    /// Normal with mean 100 and deviation 0.01: what a cancelling formula cannot bear.
    Offset,
    /// Magnitudes from the smallest denormal to the largest number, both signs.
    Magnitudes,
    /// Infinities, NaN, signed zeros, denormals and huge values between ordinary ones.
    Hostile,
    /// Zeros.
    Zero,
}

impl Input {
    /// Every way.
    pub const ALL: [Self; 7] =
        [Self::Normal, Self::Uniform, Self::Ramp, Self::Offset, Self::Magnitudes, Self::Hostile, Self::Zero];

    /// A word for tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Uniform => "uniform",
            Self::Ramp => "ramp",
            Self::Offset => "offset",
            Self::Magnitudes => "magnitudes",
            Self::Hostile => "hostile",
            Self::Zero => "zero",
        }
    }

    /// `len` values. They are rounded to the tensor's type when they are stored, so values outside its range become
    /// infinite or zero there.
    pub fn values(self, len: usize, seed: u64) -> Vec<f64> {
        let mut random = Random::new(seed);
        (0..len)
            .map(|i| match self {
                Self::Normal => random.normal(),
                Self::Uniform => 16.0 * random.unit() - 8.0,
                Self::Ramp => 32.0 * (i as f64 + 0.5) / len as f64 - 16.0,
                Self::Offset => 100.0 + 0.01 * random.normal(),
                Self::Magnitudes => {
                    // 2^-160 .. 2^130: passes both ends of f32 and bf16, and far beyond those of f16.
                    let exponent = -160.0 + 290.0 * ((i / 2) as f64 + random.unit()) / len.div_ceil(2) as f64;
                    exponent.exp2() * if i % 2 == 0 { 1.0 } else { -1.0 }
                }
                Self::Hostile => {
                    let at = (i as u64).wrapping_add(seed) % (2 * SPECIALS.len() as u64);
                    // Every other element is ordinary, so that damage done by a neighbour shows.
                    if at.is_multiple_of(2) { SPECIALS[(at / 2) as usize] } else { 3.0 * random.normal() }
                }
                Self::Zero => 0.0,
            })
            .collect()
    }
}

/// Values at and around the ends of every floating-point type and of the functions computed on them.
pub const SPECIALS: [f64; 32] = [
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    0.0,
    -0.0,
    1e4,
    -1e4,
    // Denormals of f16, of bf16 and f32, and of f64.
    5.960_464_5e-8,
    -1e-7,
    1e-40,
    -1e-45,
    5e-324,
    -1e-310,
    // The largest finite numbers of f16, bf16 and f32, and values whose squares and cubes overflow.
    65504.0,
    -65504.0,
    3.389_531_4e38,
    -3.402_823_466_385_288_6e38,
    1e20,
    -1e20,
    1e13,
    -5.8e7,
    // Where exp and erfc leave the range of f32.
    88.8,
    -88.8,
    -103.9,
    13.2,
    -14.3,
    // Where they leave that of f64.
    -709.0,
    -745.2,
    -38.6,
    // Where derivatives vanish.
    -1.278_464_542_761_074,
    -0.751_791_524_693_564_5,
    1.0,
];

/// Lengths around every vector width, block and tile of the kernels, the empty tensor included.
pub fn awkward_lengths() -> Vec<usize> {
    let mut lengths: Vec<usize> = (0..=67).collect();
    for tile in [128, 256, 512, 1024, 2048, 4096] {
        lengths.extend([tile - 1, tile, tile + 1]);
    }
    lengths.push((1 << 16) + 3);
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_repeat_and_differ_by_seed() {
        let bits = |v: Vec<f64>| v.into_iter().map(f64::to_bits).collect::<Vec<_>>();
        for input in [Input::Normal, Input::Uniform, Input::Hostile, Input::Magnitudes] {
            assert_eq!(bits(input.values(100, 7)), bits(input.values(100, 7)));
            assert_ne!(bits(input.values(100, 7)), bits(input.values(100, 8)));
        }
    }

    #[test]
    fn moments_of_the_normal_input() {
        let v = Input::Normal.values(100_000, 1);
        let mean = v.iter().sum::<f64>() / v.len() as f64;
        let var = v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / v.len() as f64;
        assert!(mean.abs() < 0.015 && (var - 1.0).abs() < 0.02, "mean {mean}, variance {var}");
    }

    #[test]
    fn hostile_input_holds_every_special_value() {
        let v = Input::Hostile.values(2 * SPECIALS.len(), 0);
        for s in SPECIALS {
            assert!(v.iter().any(|x| x.to_bits() == s.to_bits()), "{s} is missing");
        }
    }
}
