//! The 8-bit dynamic maps of bitsandbytes, the signed and the unsigned one (Dettmers 2015, arXiv:1511.04561; Dettmers et al. 2022, "8-bit
//! optimizers via block-wise quantization", arXiv:2110.02861, section 1.3).
//!
//! For every decade 10^-6 .. 10^0 the interval \[0.1, 1\] is cut into 2^i pieces, 2^(i + 1) in the unsigned map; the entries are the means of
//! neighbouring cuts, in the signed map with both signs, and 0 and 1. A number in \[-1, 1\] gets the code of the nearest entry, which is how
//! many of the 255 f32 midpoints between neighbours it exceeds.

pub(crate) mod device;

/// Entries of a map.
pub const ENTRIES: usize = 256;

/// The smallest block maximum that is divided by; smaller ones scale as if they were this.
pub const MIN_ABSMAX: f32 = 1e-38;

/// Decades of a map.
const DECADES: u32 = 7;

/// Which of the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Map {
    /// Entries of both signs: `create_dynamic_map(signed=True)`.
    Signed,
    /// Entries from 0 on: `create_dynamic_map(signed=False)`.
    Unsigned,
}

impl Map {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Signed, Self::Unsigned];

    /// The name that bitsandbytes' optimizers give it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Signed => "dynamic",
            Self::Unsigned => "udynamic",
        }
    }

    /// Pieces of the first decade.
    const fn first_pieces(self) -> u32 {
        match self {
            Self::Signed => 1,
            Self::Unsigned => 2,
        }
    }

    /// The entries, ascending.
    pub fn values(self) -> [f32; ENTRIES] {
        let mut map = Vec::with_capacity(ENTRIES);
        for i in 0..DECADES {
            let cut = linspace(0.1, 1.0, (self.first_pieces() << i) as usize + 1);
            let scale = 10f64.powi(i as i32 - 6);
            for pair in cut.windows(2) {
                let mean = (pair[0] + pair[1]) / 2.0;
                // The factor is rounded to f32 before it meets the f32 mean, as a tensor times a Python scalar is.
                let value = scale as f32 * mean;
                map.push(value);
                if self == Self::Signed {
                    map.push(-value);
                }
            }
        }
        map.extend([0.0, 1.0]);
        map.sort_by(f32::total_cmp);
        let mut out = [0.0; ENTRIES];
        out.copy_from_slice(&map);
        out
    }

    /// The code of the entry that is nearest to `t`, the lower of two; that of 0 for NaN.
    pub fn nearest(self, t: f32) -> u8 {
        // 255 at most.
        midpoints(&self.values()).partition_point(|bound| if t.is_nan() { 0.0 > *bound } else { t > *bound })
            as u8
    }
}

/// Rounds of a block that has tables of a map and takes `elements` in each, of all `len` of a launch: tables are brought for as many as leave a
/// device enough blocks.
pub(crate) fn rounds(len: usize, elements: u32) -> u32 {
    /// Blocks from which on a device is busy, about.
    const BLOCKS: usize = 2048;
    const MOST: usize = 8;
    // 8 at most.
    (len / (elements as usize * BLOCKS)).clamp(1, MOST) as u32
}

/// The 255 f32 midpoints between neighbouring entries of an ascending map.
pub fn midpoints(map: &[f32; ENTRIES]) -> [f32; ENTRIES - 1] {
    std::array::from_fn(|i| (map[i] + map[i + 1]) * 0.5)
}

/// `count` equally spaced f32 values, computed from both ends towards the middle as PyTorch's CPU `linspace` does.
fn linspace(start: f32, end: f32, count: usize) -> Vec<f32> {
    let step = (end - start) / (count - 1) as f32;
    (0..count)
        .map(|i| {
            if i < count / 2 {
                step.mul_add(i as f32, start)
            } else {
                (-step).mul_add((count - 1 - i) as f32, end)
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_ascending_and_reach_one() {
        let map = Map::Signed.values();
        assert!(map.is_sorted() && map[255] == 1.0 && map[127] == 0.0);
        // Every value but 1 has its mirror image.
        assert!(map[..255].iter().all(|v| map.contains(&-v)));
        let map = Map::Unsigned.values();
        assert!(map.windows(2).all(|pair| pair[0] < pair[1]) && map[255] == 1.0 && map[0] == 0.0);
    }

    #[test]
    fn entries_are_their_own_nearest() {
        for map in Map::ALL {
            let values = map.values();
            for (code, value) in values.iter().enumerate() {
                assert_eq!(usize::from(map.nearest(*value)), code, "{map:?}");
            }
            for (code, bound) in midpoints(&values).iter().enumerate() {
                assert_eq!(usize::from(map.nearest(*bound)), code, "{map:?}: a tie is the lower code");
                assert_eq!(usize::from(map.nearest(bound.next_up())), code + 1, "{map:?}");
            }
            assert_eq!(values[usize::from(map.nearest(f32::NAN))], 0.0);
        }
    }
}
