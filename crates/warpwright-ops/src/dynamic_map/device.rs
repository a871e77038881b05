//! The maps in kernels: values of codes from a table in shared memory, and codes of values by one comparison.
//!
//! Within a decade thresholds between entries are equally far apart, so that a multiplication and an addition say which of them a magnitude is
//! next to. Which decade it is in, and with it the factor, is found by the exponent and three bits of the mantissa in a table of few words; the
//! comparison with the threshold itself makes the result that of a search through all of them. The first threshold of a decade is a fifth of a piece
//! above the power of ten, so that the magnitude may be taken for one of either decade within a few percent: what is next to a threshold
//! is found all the same.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{Readable, Writable};

use super::{DECADES, ENTRIES, Map, midpoints};

/// Threads of a block that has tables: each brings an entry of each.
pub(crate) const THREADS: u32 = ENTRIES as u32;

/// Where in a float the eighths of octaves begin, of which the lower bits number the entries of a table of decades.
const BUCKET_SHIFT: u32 = 20;
/// Added to magnitudes, so that small ones have a bucket too.
const LEAST: f64 = 1.0 / (1u32 << 24) as f64;
/// Low bits of a factor that say how many pieces its decade has: an exponent of a float, and the place of its sign.
const FACTOR_BITS: u32 = 9;
/// A float from which on there are integers only; their last bits are those of what is added. Less than 0 is added, too.
const ROUND: f64 = (1u32 << 23) as f64 + ENTRIES as f64;
const ROUND_BITS: u32 = 0x4b00_0000 + ENTRIES as u32;

impl Map {
    /// A factor that moves the ends of eighths of octaves to where decades may end.
    const fn bucket_scale(self) -> f32 {
        match self {
            Self::Signed => 1.02,
            Self::Unsigned => 1.095,
        }
    }

    /// For the eighths of octaves that magnitudes may be in, the factor of their decade: thresholds are at integers of
    /// `t * factor + pieces * 8 / 9`. In place of its low bits it has the exponent of the number of pieces.
    fn factors(self) -> [u32; ENTRIES] {
        let first = (LEAST as f32).to_bits() >> BUCKET_SHIFT;
        let last = self.bucket_scale().to_bits() >> BUCKET_SHIFT;
        let mut out = [0; ENTRIES];
        for bucket in first..=last {
            let [low, high] = [bucket, bucket + 1].map(|b| f64::from(f32::from_bits(b << BUCKET_SHIFT)));
            let middle = (low * high).sqrt() / f64::from(self.bucket_scale());
            let decade = (middle.log10().floor() as i32 + DECADES as i32).clamp(0, DECADES as i32 - 1);
            let pieces = self.first_pieces() << decade;
            let factor = 10f64.powi(DECADES as i32 - 1 - decade) * f64::from(pieces) / 0.9;
            let low_bits = (1 << FACTOR_BITS) - 1;
            out[bucket as usize % ENTRIES] =
                (factor as f32).to_bits() & !low_bits | (pieces as f32).to_bits() >> 23;
        }
        out
    }
}

/// A table in shared memory, by blocks of [`THREADS`] threads; it is there behind the next barrier.
fn table<'k>(k: K<'k>, words: &[u32; ENTRIES]) -> Ptr<'k, Shared, u32> {
    let table = k.shared::<u32>(ENTRIES as u32);
    let mine: U32<'k> = k.constant_table::<u32>(words).at(k.thread_idx()).get();
    table.at(k.thread_idx()).set(mine);
    table
}

/// Code to value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decoder<'k> {
    values: Ptr<'k, Shared, f32>,
}

impl<'k> Decoder<'k> {
    /// A barrier must follow before the first use.
    pub(crate) fn new(k: K<'k>, map: Map) -> Self {
        Self { values: table(k, &map.values().map(f32::to_bits)).cast() }
    }

    /// The values of neighbouring codes.
    pub(crate) fn values(&self, codes: &Codes<'k>) -> Lanes<'k, f32> {
        codes.each().map(|code| self.values.at(code).get()).collect()
    }
}

/// Value to code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coder<'k> {
    map: Map,
    /// Where the table of factors begins, and where that of thresholds, less four times [`ROUND_BITS`].
    factors: U32<'k>,
    bounds: U32<'k>,
}

impl<'k> Coder<'k> {
    /// A barrier must follow before the first use. With `keeps_sign` what is below 0 gets the code of an entry below 0.
    pub(crate) fn new(k: K<'k>, map: Map, keeps_sign: bool) -> Self {
        let values = map.values();
        // Behind the threshold that all exceed; that between the codes `i - 1` and `i` is the `i`-th.
        let mut bounds = [f32::NEG_INFINITY; ENTRIES];
        bounds[1..].copy_from_slice(&midpoints(&values));
        if keeps_sign && let Some(zero) = values.iter().position(|value| *value == 0.0) {
            bounds[zero] = 0.0;
        }
        let bounds = table(k, &bounds.map(f32::to_bits)).shared_address();
        let factors = table(k, &map.factors()).shared_address();
        Self { map, factors, bounds: bounds + 4u32.wrapping_sub(ROUND_BITS.wrapping_mul(4)) }
    }

    /// The code of `x * inverse` in the lowest byte; that of 0 for NaN.
    fn code(&self, x: F32<'k>, inverse: F32<'k>) -> U32<'k> {
        let k = x.k();
        let (t, signed) = match self.map {
            Map::Signed => (x.abs().mul_saturated(inverse), x * inverse),
            Map::Unsigned => {
                let t = x.mul_saturated(inverse);
                (t, t)
            }
        };
        let bucket = t.mul_add(f64::from(self.map.bucket_scale()), LEAST).to_bits();
        let offset = (bucket >> (BUCKET_SHIFT - 2)) & (4 * (ENTRIES as u32 - 1));
        let factor = k.shared_at::<u32>(self.factors + offset).get();
        let pieces = F32::from_bits(factor << 23);
        let to_code = match self.map {
            // Half way from 0 to the first threshold, which makes both signs alike.
            Map::Signed => 0.5,
            // The first threshold, between the codes 0 and 1, is at 2.
            Map::Unsigned => 2.0,
        };
        let place = t.mul_add(F32::from_bits(factor), pieces.mul_add(8.0 / 9.0, -to_code));
        let below = match self.map {
            Map::Signed => place.mul_add(k.lit(1.0).copysign(signed), 126.5),
            Map::Unsigned => place,
        };
        // The code below the threshold that is next.
        let below = (below + ROUND).to_bits();
        let bound: U32<'k> = k.shared_at::<u32>(below.mul_add(4, self.bounds)).get();
        // The sign of the difference says whether the threshold is exceeded.
        below + ((F32::from_bits(bound) - signed).to_bits() >> 31)
    }

    /// The codes of neighbouring elements.
    pub(crate) fn codes(&self, xs: &Lanes<'k, f32>, inverse: F32<'k>) -> Codes<'k> {
        let codes: Vec<U32<'k>> = xs.iter().map(|x| self.code(x, inverse)).collect();
        Codes::of_low_bytes(&codes)
    }
}

/// Neighbouring codes: four to a word, or one in the lowest byte of a word.
#[derive(Clone, Debug)]
pub(crate) struct Codes<'k> {
    words: Vec<U32<'k>>,
    count: usize,
}

impl<'k> Codes<'k> {
    /// Loads `count` codes: 1, 4 or 8.
    pub(crate) fn load(at: Ptr<'k, impl Readable, u8>, count: u32) -> Self {
        let words = match count {
            1 => vec![at.get::<u32>()],
            _ => at.cast::<u32>().load::<u32>(count / 4).iter().collect(),
        };
        Self { words, count: count as usize }
    }

    /// Stores them.
    pub(crate) fn store(&self, at: Ptr<'k, impl Writable, u8>) {
        if self.count == 1 {
            self.words.iter().for_each(|code| at.set(*code));
        } else {
            at.cast::<u32>().store(Lanes::from(self.words.clone()));
        }
    }

    /// Words whose lowest bytes are the codes.
    fn of_low_bytes(codes: &[U32<'k>]) -> Self {
        let word = |four: &[U32<'k>]| match *four {
            [a, b, c, d] => Some(a.permute(b, 0x0040).permute(c.permute(d, 0x0040), 0x5410)),
            _ => four.first().copied(),
        };
        Self { words: codes.chunks(4).filter_map(word).collect(), count: codes.len() }
    }

    fn each(&self) -> impl Iterator<Item = U32<'k>> {
        let byte = |i: usize| {
            let word = self.words[i / 4];
            // Bytes of zeros from the other word.
            if self.count == 1 { word } else { word.permute(0, 0x4440 | (i as u32 % 4)) }
        };
        (0..self.count).map(byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place of a magnitude among thresholds as [`Coder::code`] computes it, on the host.
    fn place(map: Map, factors: &[u32; ENTRIES], t: f32) -> f32 {
        let bucket = t.mul_add(map.bucket_scale(), LEAST as f32).to_bits() >> BUCKET_SHIFT;
        let factor = factors[bucket as usize % ENTRIES];
        let pieces = f32::from_bits(factor << 23);
        t.mul_add(f32::from_bits(factor), pieces * (8.0 / 9.0))
    }

    /// A threshold that is next to a magnitude is one of the two around it.
    #[test]
    fn a_single_comparison_decides() {
        for map in Map::ALL {
            let (factors, values) = (map.factors(), map.values());
            let positive: Vec<f32> = values.into_iter().filter(|v| *v >= 0.0).collect();
            let bounds: Vec<f32> = positive.windows(2).map(|pair| (pair[0] + pair[1]) * 0.5).collect();
            let dense = (0..1 << 20).map(|i| 10f32.powf(i as f32 / (1 << 17) as f32 - 8.0));
            let near = bounds.iter().flat_map(|b| [b.next_down(), *b, b.next_up()]);
            for t in dense.chain(near).chain([0.0, 1.0]).map(|t| t.min(1.0)) {
                let rank = bounds.iter().filter(|b| t > **b).count();
                let first = if map == Map::Signed { 1.0 } else { 2.0 };
                let next = (place(map, &factors, t) - first).round() as usize;
                assert!(rank == next || rank == next + 1, "{map:?} {t}: {rank}, next to {next}");
                assert!(next < bounds.len(), "{map:?} {t}: {next}");
            }
        }
    }
}
