//! The code tables of the 4-bit and 8-bit formats, and the midpoints that decide between neighbouring codes.

use crate::dynamic_map::Map;
pub use crate::dynamic_map::midpoints;

/// The NF4 code: quantiles of the normal distribution (QLoRA, arXiv:2305.14314), as bitsandbytes rounds them.
pub const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Magnitudes of bitsandbytes' FP4 by its three low bits, before division by 12; bit 3 is the sign.
const FP4_MAGNITUDES: [f32; 8] = [0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0];

/// The FP4 code in bit-pattern order.
pub const FP4: [f32; 16] = {
    let mut code = [0.0; 16];
    let mut i = 0;
    while i < 8 {
        code[i] = FP4_MAGNITUDES[i] / 12.0;
        code[i + 8] = -(FP4_MAGNITUDES[i] / 12.0);
        i += 1;
    }
    code
};

/// The 4-bit floats e2m1 in bit-pattern order (OCP Microscaling Formats 1.0, table 5).
pub const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// FP4's three low bits in ascending order of magnitude.
pub const FP4_ASCENDING: [u8; 8] = [0, 1, 6, 7, 4, 5, 2, 3];

/// Midpoints between neighbouring NF4 values, in f32: the code of `t` is how many of them it exceeds.
pub const NF4_MIDPOINTS: [f32; 15] = {
    let mut mid = [0.0; 15];
    let mut i = 0;
    while i < 15 {
        mid[i] = (NF4[i] + NF4[i + 1]) / 2.0;
        i += 1;
    }
    mid
};

/// Midpoints between neighbouring FP4 magnitudes, as bitsandbytes' CUDA kernel writes them.
///
/// The literals have seven or eight digits, so some are one unit in the last place off the f32 midpoint.
pub const FP4_MIDPOINTS: [f32; 7] =
    [0.002_604_17, 0.085_937_5, 0.208_333_33, 0.291_666_67, 0.416_666_7, 0.583_333, 0.833_333_3];

/// The signed 8-bit dynamic map of bitsandbytes; see [`dynamic_map`](crate::dynamic_map).
pub fn dynamic_map() -> [f32; 256] {
    Map::Signed.values()
}

/// Entries of a table that a warp holds, one a lane.
pub(super) const BUCKETS: usize = 32;

/// How a value `t` of a 4-bit float format finds its code with one comparison.
///
/// `bucket = round(15 t + first)` cuts the range of `t` into pieces of 1/15, fewer than any two midpoints are apart, so
/// that a bucket holds at most one. The rank of `t` among the midpoints is then the number of midpoints in lower buckets,
/// and one more if `t` exceeds the next.
#[derive(Clone, Debug)]
pub(super) struct RankTable {
    /// The next midpoint above each bucket's lower end; 2 past the last, which nothing exceeds.
    pub(super) midpoint: [f32; BUCKETS],
    /// Midpoints in lower buckets.
    pub(super) rank: [u32; BUCKETS],
}

/// Pieces that the unit interval is cut into.
pub(super) const BUCKETS_PER_UNIT: f32 = 15.0;

impl RankTable {
    /// For ascending `midpoints` and values whose least lands in bucket `first`.
    pub(super) fn new(midpoints: &[f32], first: u32) -> Self {
        let bucket = |t: f32| (BUCKETS_PER_UNIT.mul_add(t, first as f32)).round_ties_even() as usize;
        let rank = std::array::from_fn(|b| midpoints.iter().filter(|m| bucket(**m) < b).count());
        Self {
            midpoint: rank.map(|r| midpoints.get(r).copied().unwrap_or(2.0)),
            rank: rank.map(|r| r as u32),
        }
    }
}

/// The bucket of `t = 0` in NF4's table, whose values have both signs.
pub(super) const NF4_ZERO_BUCKET: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bucket_holds_two_midpoints() {
        for (midpoints, first) in [(&NF4_MIDPOINTS[..], NF4_ZERO_BUCKET), (&FP4_MIDPOINTS[..], 0)] {
            let table = RankTable::new(midpoints, first);
            let low = if first == 0 { 0 } else { -1 << 20 };
            for step in low..=1 << 20 {
                let t = step as f32 / (1 << 20) as f32;
                let bucket = BUCKETS_PER_UNIT.mul_add(t, first as f32).round_ties_even() as usize;
                let rank = table.rank[bucket] as usize + usize::from(t > table.midpoint[bucket]);
                assert_eq!(rank, midpoints.iter().filter(|m| t > **m).count(), "t = {t}");
            }
        }
    }

    #[test]
    fn codes_are_ascending_and_reach_one() {
        assert!(NF4.is_sorted() && NF4[0] == -1.0 && NF4[15] == 1.0);
        let magnitudes: Vec<f32> = FP4_ASCENDING.iter().map(|c| FP4[usize::from(*c)]).collect();
        assert!(magnitudes.is_sorted() && magnitudes[7] == 1.0);
    }
}
