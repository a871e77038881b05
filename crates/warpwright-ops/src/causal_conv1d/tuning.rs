//! Which kernel runs for which shape.

use warpwright_dsl::WARP;
use warpwright_ptx::isa::DeviceLimits;
use warpwright_ptx::{DType, Target};

use super::Layout;
use crate::catalogue::Direction;

/// Threads of a block.
pub const THREADS: u32 = 128;
/// Positions that a walking thread takes at once.
pub const BATCH: u32 = 4;
/// Bytes of one access.
const ACCESS_BYTES: u32 = 16;

/// Threads of a multiprocessor that keep memory busy: of forward kernels, and of backward kernels, which have more in registers.
const BUSY: [usize; 2] = [1024, 512];

/// Neighbours along the innermost dimension that a thread has: 16 bytes, of half of which a walking thread has the filter, its sums and
/// two windows in registers.
pub const fn vector(dtype: DType, layout: Layout, direction: Direction) -> u32 {
    let whole = ACCESS_BYTES / dtype.bytes() as u32;
    match (layout, direction) {
        (Layout::ChannelsLast, Direction::Backward) if whole > 4 => 4,
        _ => whole,
    }
}

/// The shape of the work: its innermost dimension in vectors, and the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Samples.
    pub batch: usize,
    /// Threads or warps of a sample for each run of positions.
    pub of_run: usize,
    /// Positions.
    pub len: usize,
}

/// Positions of a run: as many as leave enough threads, since runs read up to `width - 1` positions on either side again.
fn run(work: Work, threads: usize, [least, most]: [u32; 2]) -> u32 {
    let mut run = most;
    let enough = |run: u32| {
        let runs = work.len.div_ceil(run as usize);
        work.batch.saturating_mul(work.of_run).saturating_mul(runs) >= threads
    };
    while run > least && (!enough(run) || run as usize / 2 >= work.len) {
        run /= 2;
    }
    run
}

fn busy(target: Target, direction: Direction) -> usize {
    DeviceLimits::of(target).multiprocessors as usize * BUSY[usize::from(direction == Direction::Backward)]
}

/// Positions of a thread that walks along them.
pub fn walk(work: Work, target: Target, direction: Direction) -> u32 {
    let bounds = if direction == Direction::Backward { [16, 256] } else { [8, 64] };
    run(work, busy(target, direction), bounds)
}

/// Positions of a warp whose lanes have `vector` neighbouring ones each.
pub fn lines(work: Work, target: Target, vector: u32) -> u32 {
    let step = WARP * vector;
    run(work, busy(target, Direction::Backward) / WARP as usize, [step, 32 * step])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_leave_enough_threads_and_no_more() {
        let target = Target::sm(90);
        let work = |batch, of_run, len| Work { batch, of_run, len };
        let forward = |work| walk(work, target, Direction::Forward);
        assert_eq!(forward(work(16, 512, 2048)), 64);
        assert_eq!(forward(work(8, 512, 2048)), 32);
        assert_eq!(forward(work(1, 512, 2048)), 8);
        assert_eq!(forward(work(1000, 512, 5)), 8);
        assert_eq!(forward(work(0, 0, 0)), 8);
        assert_eq!(walk(work(16, 1024, 2048), target, Direction::Backward), 256);
        assert_eq!(walk(work(8, 1024, 2048), target, Direction::Backward), 128);
        assert_eq!(lines(work(8, 4096, 2048), target, 8), 2048);
        assert_eq!(lines(work(1, 1, 1 << 20), target, 8), 256);
        for len in 1..300 {
            assert!(lines(work(1, 64, len), target, 4).is_multiple_of(128));
            assert!(forward(work(3, 7, len)).is_multiple_of(BATCH));
        }
    }

    #[test]
    fn vectors_have_16_bytes_at_most() {
        let [first, last] = [Layout::ChannelsFirst, Layout::ChannelsLast];
        assert_eq!(vector(DType::BF16, first, Direction::Backward), 8);
        assert_eq!(vector(DType::BF16, last, Direction::Backward), 4);
        assert_eq!(vector(DType::F32, last, Direction::Forward), 4);
        assert_eq!(vector(DType::F64, first, Direction::Forward), 2);
    }
}
