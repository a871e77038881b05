//! Which kernel runs for which shape.

/// Places of a block of the sliding kernels.
pub const THREADS: u32 = 128;

/// Windows that are kept in registers while a thread slides along the channels.
pub const SLIDING_WINDOWS: [u32; 2] = [3, 5];

/// Spatial sizes from which neighbouring threads take neighbouring places; below, most of a warp would idle.
const LEAST_SPATIAL: usize = 16;

/// Channels that a thread takes at once.
pub const BATCH: u32 = 8;

/// Channels of a run: short runs read more ends twice, from the cache; long ones leave too few threads.
const RUN: usize = 24;

/// How a tensor is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Walk {
    /// A thread for each place and each run of `channels` channels.
    Sliding {
        /// Channels of a thread, a multiple of [`BATCH`].
        channels: u32,
    },
    /// A thread for each element.
    Single,
}

/// The walk for windows of `size` over `channels` x `spatial` elements of an image.
pub fn choose(size: usize, channels: usize, spatial: usize) -> Walk {
    let kept = SLIDING_WINDOWS.iter().any(|w| *w as usize == size);
    if !kept || spatial < LEAST_SPATIAL {
        return Walk::Single;
    }
    // Runs of one length, as far as that goes.
    let runs = channels.div_ceil(RUN).max(1);
    let run = channels.div_ceil(runs).next_multiple_of(BATCH as usize).max(BATCH as usize);
    Walk::Sliding { channels: u32::try_from(run).unwrap_or(BATCH) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_no_longer_than_wanted() {
        for channels in [0, 1, 7, 8, 24, 25, 48, 96, 256, 1000] {
            let Walk::Sliding { channels: run } = choose(5, channels, 729) else {
                panic!("a window of 5 slides");
            };
            assert!(run > 0 && run.is_multiple_of(BATCH) && run as usize <= RUN, "{run}");
        }
        assert_eq!(choose(5, 96, 1), Walk::Single);
        assert_eq!(choose(4, 96, 100), Walk::Single);
    }
}
