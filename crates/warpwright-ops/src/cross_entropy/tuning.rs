//! Which kernel runs for which shape.

use warpwright_dsl::VECTOR_BYTES;
use warpwright_ptx::DType;

/// How a kernel is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Threads that share a row of a forward kernel: a warp, or all threads of the block.
    pub team: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Elements that a thread loads at once.
    pub width: u32,
    /// Vectors of a thread that are in flight together.
    pub unroll: u32,
}

impl Config {
    /// Alignment of all tensors in bytes; single elements are where they are.
    pub const fn alignment(self, dtype: DType) -> u64 {
        if self.width == 1 { 1 } else { self.width as u64 * dtype.bytes() as u64 }
    }
}

/// Vectors of a thread of a backward kernel that are in flight together.
pub(super) const UNROLL: u32 = 4;
/// Threads of the block that adds up the losses.
pub(super) const REDUCE_THREADS: u32 = 1024;
/// Longest row that a warp takes however few rows there are, with fewer vectors in flight.
const SHORT_CLASSES: usize = 2048;
/// Longest row of 16-bit elements that a warp takes where rows are many.
const WARP_CLASSES: usize = 16384;
/// Threads that keep a large device busy. Fewer rows than that allows take larger teams.
const BUSY_THREADS: usize = 1 << 17;
/// Threads that share a row where rows are few.
const LARGEST_TEAM: u32 = 512;

const fn width(dtype: DType) -> u32 {
    VECTOR_BYTES / dtype.bytes() as u32
}

/// Teams of long rows and the longest row of each, smallest first. Small teams have little to combine at the end, and their
/// rows end at different times; what several warps combine costs more where elements are small.
const fn teams(dtype: DType) -> &'static [(u32, usize)] {
    match dtype.bytes() {
        2 => &[(32, WARP_CLASSES), (128, usize::MAX)],
        4 => &[(256, usize::MAX)],
        _ => &[],
    }
}

const fn of_team(dtype: DType, team: u32, short: bool) -> [Config; 2] {
    let threads = if team > 128 { team } else { 128 };
    let unroll = if short || dtype.bytes() == 8 { 4 } else { 8 };
    [Config { team, threads, width: width(dtype), unroll }, Config { team, threads, width: 1, unroll }]
}

/// Layouts of forward kernels for `rows` rows of `classes` elements, best first; the last one takes any alignment.
pub fn forward(dtype: DType, rows: usize, classes: usize) -> [Config; 2] {
    if classes <= SHORT_CLASSES {
        return of_team(dtype, 32, true);
    }
    let busy = |team: u32| rows.saturating_mul(team as usize) >= BUSY_THREADS;
    let team = teams(dtype).iter().find(|(team, longest)| classes <= *longest && busy(*team));
    of_team(dtype, team.map_or(LARGEST_TEAM, |(team, _)| *team), false)
}

/// Every layout of forward kernels.
pub fn all_forward(dtype: DType) -> Vec<Config> {
    let long = teams(dtype).iter().map(|(team, _)| *team).chain([LARGEST_TEAM]);
    long.map(|team| of_team(dtype, team, false)).chain([of_team(dtype, 32, true)]).flatten().collect()
}

/// Layouts of backward kernels.
pub const fn backward(dtype: DType) -> [Config; 2] {
    let config = Config { team: 256, threads: 256, width: width(dtype), unroll: UNROLL };
    [config, Config { width: 1, ..config }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_that_is_chosen_is_listed() {
        for dtype in DType::FLOATS {
            let all = all_forward(dtype);
            let mut chosen = std::collections::HashSet::new();
            for rows in [1, 256, 4096, 1 << 20] {
                for classes in [1, 2048, 2049, 16384, 16385, 1 << 40] {
                    for config in forward(dtype, rows, classes) {
                        assert!(all.contains(&config), "{dtype} {rows} {classes}: {config:?}");
                        chosen.insert(config);
                    }
                }
            }
            assert_eq!(chosen.len(), all.len(), "{dtype}");
        }
    }
}
