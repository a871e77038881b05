//! How images are shared out: a thread for each vector of 16 bytes of channels with channels last, for each element with channels first.

use warpwright_dsl::VECTOR_BYTES;
use warpwright_dsl::cells::CellGridArgs;
use warpwright_ptx::DType;

use super::sampling::Sampling;
use super::{Mode, doubling};
use crate::batch_norm::Layout;
use crate::catalogue::Direction;
use crate::pool::tuning as pool;

/// Threads of a block.
pub const THREADS: u32 = pool::THREADS;

/// Which cells a thread has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shares {
    /// One, of images of any extents.
    Single,
    /// So many beside each other in a row of the output, of single channels; for the forward pass. Their number divides its columns.
    Run(u32),
    /// Where height and width are doubled: so many beside each other in a row of the input, and the four above each. Their number
    /// divides the input's columns.
    Doubled(u32),
}

impl Shares {
    /// Cells beside each other.
    pub const fn run(self) -> u32 {
        match self {
            Self::Single => 1,
            Self::Run(run) | Self::Doubled(run) => run,
        }
    }
}

/// How the cells of a pass are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Elements of a thread's vector of channels.
    pub width: u32,
    /// Its cells.
    pub shares: Shares,
    /// Cells of a launch's chunk at most; fewer than a chunk can have only in tests.
    pub chunk: u64,
}

impl Config {
    /// Alignment of tensors of type `dtype` in bytes.
    pub const fn alignment(self, layout: Layout, dtype: DType) -> u64 {
        let elements = match (self.shares, layout) {
            (Shares::Doubled(run), Layout::ChannelsFirst) => 2 * run,
            (Shares::Run(run), _) => run,
            _ => self.width,
        };
        elements as u64 * dtype.bytes() as u64
    }
}

/// The most cells of a run whose places are computed: each has several loads in flight.
const MOST_COMPUTED: u32 = 4;

/// The layouts of a pass, best first.
pub fn configs(
    dtype: DType,
    layout: Layout,
    channels: usize,
    axes: &[Sampling; 3],
    direction: Direction,
) -> Vec<Config> {
    let vector = pool::width(dtype, layout, channels);
    let widths = if vector > 1 { vec![vector, 1] } else { vec![1] };
    let config = |width, shares| Config { width, shares, chunk: CellGridArgs::MAX_CHUNK };
    let mut all = Vec::new();
    if doubling::is_doubling(axes) {
        // Twice as many are a vector of the output.
        let most = match layout {
            Layout::ChannelsFirst => VECTOR_BYTES / 2 / dtype.bytes() as u32,
            Layout::ChannelsLast => 2,
        };
        all.push(config(vector, Shares::Doubled(pool::divisor(axes[2].input.into(), most))));
    }
    let run = pool::divisor(axes[2].output.into(), MOST_COMPUTED.min(VECTOR_BYTES / dtype.bytes() as u32));
    // Cubic sampling has sixteen loads of a cell: more of them at once gain nothing.
    let few = axes[2].mode != Mode::Cubic && run > 1;
    if (layout, direction) == (Layout::ChannelsFirst, Direction::Forward) && few {
        all.push(config(1, Shares::Run(run)));
    }
    all.extend(widths.into_iter().map(|width| config(width, Shares::Single)));
    all
}
