//! Which kernel runs for which shape.

use warpwright_dsl::VECTOR_BYTES;
use warpwright_ptx::isa::DeviceLimits;
use warpwright_ptx::{DType, Target};

/// How the threads of a grid share a tensor `[outer, n, inner]` that is summed along `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `inner` is 1, and `team` neighbouring threads hold a row in `vectors` vectors each.
    Rows {
        /// Threads of a row.
        team: u32,
        /// Vectors of a thread.
        vectors: u32,
    },
    /// `inner` is 1, and blocks hold a tile of a row each. They hand the sums of their tiles to those behind them.
    Tiles {
        /// Vectors of a thread.
        vectors: u32,
    },
    /// `lanes` neighbouring threads of a block take neighbouring columns, and the block's teams take some rows each, in turn.
    Columns {
        /// Threads side by side.
        lanes: u32,
    },
    /// A thread takes whole columns.
    Flat,
}

/// A layout with the sizes of its accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// How the threads lie.
    pub layout: Layout,
    /// Elements that a thread loads at once.
    pub width: u32,
    /// Threads of a block.
    pub threads: u32,
}

impl Config {
    /// The part of a kernel's name.
    pub(super) fn name(self) -> String {
        let width = self.width;
        match self.layout {
            Layout::Rows { team, vectors } => format!("rows{team}x{vectors}_x{width}"),
            Layout::Tiles { vectors } => format!("tiles{vectors}_x{width}"),
            Layout::Columns { lanes } => format!("columns{lanes}_x{width}"),
            Layout::Flat => format!("flat_x{width}"),
        }
    }

    /// A layout of blocks of the usual size.
    pub const fn new(layout: Layout, width: u32) -> Self {
        let threads = match layout {
            Layout::Rows { team, .. } if team > THREADS => team,
            _ => THREADS,
        };
        Self { layout, width, threads }
    }

    /// Elements of a row that a team holds, or of a tile.
    pub const fn room(self) -> u64 {
        let (threads, vectors) = match self.layout {
            Layout::Rows { team, vectors } => (team, vectors),
            Layout::Tiles { vectors } => (self.threads, vectors),
            Layout::Columns { .. } | Layout::Flat => (0, 0),
        };
        threads as u64 * vectors as u64 * self.width as u64
    }

    /// The configuration for `[outer, n, inner]` elements of `dtype`; `vectors` says whether tensors begin at vectors.
    pub fn choose(dtype: DType, [outer, n, inner]: [u64; 3], vectors: bool, target: Target) -> Self {
        let multiprocessors = u64::from(DeviceLimits::of(target).multiprocessors);
        let whole = |extent: u64| vectors && extent.is_multiple_of(vector(dtype).into());
        if inner == 1 {
            let width = if whole(n) { vector(dtype) } else { 1 };
            return rows(width).find(|config| n <= config.room()).unwrap_or_else(|| tiles(dtype, width));
        }
        let width = if whole(inner) { vector(dtype) } else { 1 };
        let columns = inner / u64::from(width);
        let enough = outer.saturating_mul(columns) >= multiprocessors * BUSY_THREADS;
        if n <= FEW_ROWS || enough && n <= FLAT_ROWS {
            return Self::new(Layout::Flat, width);
        }
        let [narrow, wide] = lanes(width);
        let tiles = outer.saturating_mul(columns.div_ceil(wide.into()));
        // Narrow tiles read single sectors: worth it where wide ones are too few, or would have columns that are not there.
        let few = if width > 1 { tiles < multiprocessors * 2 } else { columns <= narrow.into() };
        Self::new(Layout::Columns { lanes: if few { narrow } else { wide } }, width)
    }
}

/// Where tensors begin that are read in vectors: multiples of so many bytes.
pub(super) const ALIGNMENT: u64 = VECTOR_BYTES as u64;
/// Threads of a block of teams, or of a tile.
const THREADS: u32 = 256;
/// Threads of a row and vectors of each, which are as many times as many if a vector is one element.
const ROWS_OF: [(u32, u32); 5] = [(8, 1), (32, 1), (32, 4), (256, 4), (512, 4)];
const TILE_VECTORS: u32 = 4;
const SINGLES: u32 = 4;
/// Rows of a column that a thread holds.
pub(super) const ROWS: u32 = 4;
/// Rows of a thread with whole columns that are in flight together.
pub(super) const UNROLL: u32 = 4;
/// Threads of a multiprocessor that take columns by themselves, and rows of such a column.
const BUSY_THREADS: u64 = 1024;
const FLAT_ROWS: u64 = 4096;
/// Rows at most where a team would have next to nothing to do.
const FEW_ROWS: u64 = 8;
/// Threads of a block that clears the words through which tiles hand on their sums.
pub(super) const CLEAR_THREADS: u32 = 256;

/// Elements of a vector.
const fn vector(dtype: DType) -> u32 {
    VECTOR_BYTES / dtype.bytes() as u32
}

/// Threads side by side in narrow and in wide tiles.
const fn lanes(width: u32) -> [u32; 2] {
    if width > 1 { [2, 8] } else { [4, 32] }
}

const fn vectors_of(vectors: u32, width: u32) -> u32 {
    if width > 1 { vectors } else { vectors * SINGLES }
}

fn rows(width: u32) -> impl Iterator<Item = Config> {
    let of = move |(team, vectors)| Layout::Rows { team, vectors: vectors_of(vectors, width) };
    ROWS_OF.into_iter().map(move |shape| Config::new(of(shape), width))
}

fn tiles(dtype: DType, width: u32) -> Config {
    let vectors = vectors_of(TILE_VECTORS, width);
    // As many single elements of 64 bits would not have registers.
    let vectors = if width == 1 && dtype.bytes() == 8 { vectors / SINGLES } else { vectors };
    Config::new(Layout::Tiles { vectors }, width)
}

/// Every configuration for elements of `dtype`.
pub fn all(dtype: DType) -> Vec<Config> {
    let of_width = |width: u32| {
        let columns = lanes(width).map(|lanes| Config::new(Layout::Columns { lanes }, width));
        let others = [tiles(dtype, width), Config::new(Layout::Flat, width)];
        rows(width).chain(others).chain(columns).collect::<Vec<_>>()
    };
    [vector(dtype), 1].into_iter().flat_map(of_width).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::cumsum::DTYPES;

    #[test]
    fn every_configuration_that_is_chosen_is_listed() {
        for dtype in DTYPES {
            let all: HashSet<Config> = all(dtype).into_iter().collect();
            let mut chosen = HashSet::new();
            for outer in [0, 1, 100, 1 << 22] {
                for n in [0, 1, 3, 16, 40, 64, 100, 256, 1000, 1001, 4096, 4099, 8000, 8192, 16384, 1 << 40] {
                    for inner in [1, 3, 16, 64, 4096, 100_001] {
                        for vectors in [false, true] {
                            let config = Config::choose(dtype, [outer, n, inner], vectors, Target::sm(90));
                            assert!(all.contains(&config), "{config:?}");
                            chosen.insert(config);
                        }
                    }
                }
            }
            assert_eq!(chosen, all, "{dtype}");
        }
    }
}
