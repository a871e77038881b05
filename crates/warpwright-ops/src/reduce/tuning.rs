//! Which kernel runs for which shape, and how a reduction is cut into passes.

use warpwright_dsl::VECTOR_BYTES;
use warpwright_ptx::isa::DeviceLimits;
use warpwright_ptx::{DType, Target};

/// How the threads of a grid share a tensor `[outer, n, inner]` that is reduced over `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `inner` is 1: `team` neighbouring threads take each row, or each part of one. Teams smaller than a warp read rows that begin
    /// and end at vectors.
    Rows {
        /// Threads of a row.
        team: u32,
    },
    /// `lanes` neighbouring threads of a block take neighbouring columns, and the block's teams take the rows in turn.
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
        let Self { layout, width, .. } = self;
        match layout {
            Layout::Rows { team } => format!("rows{team}_x{width}"),
            Layout::Columns { lanes } => format!("columns{lanes}_x{width}"),
            Layout::Flat => format!("flat_x{width}"),
        }
    }

    /// Threads that share a column.
    pub(super) const fn teams(self) -> u32 {
        match self.layout {
            Layout::Columns { lanes } => self.threads / lanes,
            _ => 1,
        }
    }

    const fn new(layout: Layout, width: u32) -> Self {
        let threads = match layout {
            Layout::Rows { team } if team > THREADS => team,
            _ => THREADS,
        };
        Self { layout, width, threads }
    }
}

/// Vectors of a thread that are in flight together.
pub(super) const UNROLL: u32 = 8;

/// Where tensors begin that are read in vectors: multiples of so many bytes.
pub(super) const ALIGNMENT: u64 = VECTOR_BYTES as u64;
/// Threads of a block of teams.
const THREADS: u32 = 256;
/// Threads of a block that has a row to itself.
const BLOCK_TEAM: u32 = 512;
/// Smaller teams with the most vectors of a row that each takes.
const TEAMS: [(u32, u64); 2] = [(1, 2), (8, 64)];
/// Threads side by side in narrow and in wide tensors.
const LANES: [u32; 2] = [4, 32];
/// Blocks of a multiprocessor by which the whole device reads at its rate.
const BUSY_BLOCKS: u64 = 4;
/// Threads of a multiprocessor that take columns by themselves, and rows of such a column, whose sum has no further parts.
const BUSY_THREADS: u64 = 1024;
const FLAT_ROWS: u64 = 4096;
/// Rows at most where a team would have next to nothing to do.
const FEW_ROWS: u64 = 8;
/// Bytes of a block that are not worth another launch.
const SMALL_BYTES: u64 = 64 << 10;
/// Longest part: positions in it are counted in 32 bits.
pub(super) const MAX_PART: u64 = 1 << 30;

/// A reduction of `[outer, n, inner]` over `n`, or over parts of `part` of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pass {
    /// The product of the extents before.
    pub outer: u64,
    /// The extent that is reduced.
    pub n: u64,
    /// The product of the extents behind.
    pub inner: u64,
    /// Elements of a part, at least 1.
    pub part: u64,
    /// The kernel.
    pub config: Config,
}

impl Pass {
    /// Parts of `n`.
    pub const fn parts(&self) -> u64 {
        if self.n <= self.part { 1 } else { self.n.div_ceil(self.part) }
    }

    /// The pass over `[outer, n, inner]` of elements of `dtype`. `vectors` says whether tensors begin at vectors, `last` that there must be
    /// no further pass over `n`.
    pub fn choose(dtype: DType, sizes: [u64; 3], vectors: bool, last: bool, target: Target) -> Self {
        let multiprocessors = u64::from(DeviceLimits::of(target).multiprocessors);
        let chooser = Chooser { dtype, width: vector(dtype), vectors, last, multiprocessors };
        let (config, part) = if sizes[2] == 1 { chooser.rows(sizes) } else { chooser.columns(sizes) };
        let [outer, n, inner] = sizes;
        Self { outer, n, inner, part, config }
    }
}

/// Elements of a vector.
const fn vector(dtype: DType) -> u32 {
    VECTOR_BYTES / dtype.bytes() as u32
}

struct Chooser {
    dtype: DType,
    width: u32,
    vectors: bool,
    last: bool,
    multiprocessors: u64,
}

impl Chooser {
    /// Elements of a part of `n`, of which there are `blocks` times `n` to read by as many blocks as keep the device busy. `bytes` is
    /// what a block reads without parts, `least` the shortest part that is worth a block.
    fn part(&self, n: u64, blocks: u64, bytes: u64, least: u64) -> u64 {
        let wanted = self.multiprocessors * BUSY_BLOCKS / blocks.max(1);
        let whole = n.clamp(1, MAX_PART);
        if self.last || wanted < 2 || bytes <= SMALL_BYTES {
            return whole;
        }
        n.div_ceil(wanted).max(least).next_multiple_of(u64::from(self.width)).min(whole)
    }

    fn rows(&self, [outer, n, _]: [u64; 3]) -> (Config, u64) {
        let small = |width: u64| TEAMS.iter().find(|(_, most)| n <= most * width).map(|(team, _)| *team);
        let whole = n.is_multiple_of(u64::from(self.width)) && n > 0;
        let mut width = if self.vectors { self.width } else { 1 };
        if small(width.into()).is_some() && !whole {
            width = 1;
        }
        if let Some(team) = small(width.into()) {
            return (Config::new(Layout::Rows { team }, width), n.max(1));
        }
        let few = outer < self.multiprocessors * BUSY_THREADS / 32;
        let long = n > u64::from(32 * UNROLL * width);
        if !(few && long) {
            return (Config::new(Layout::Rows { team: 32 }, width), n.clamp(1, MAX_PART));
        }
        let least = u64::from(BLOCK_TEAM * self.width * 2);
        let part = self.part(n, outer, n * self.dtype.bytes() as u64, least);
        (Config::new(Layout::Rows { team: BLOCK_TEAM }, width), part)
    }

    fn columns(&self, [outer, n, inner]: [u64; 3]) -> (Config, u64) {
        let vectors = self.vectors && inner.is_multiple_of(u64::from(self.width));
        let mut width = if vectors { self.width } else { 1 };
        let columns = |width: u32| inner / u64::from(width);
        let enough = outer * columns(width) >= self.multiprocessors * BUSY_THREADS;
        if n <= FEW_ROWS || enough && n <= FLAT_ROWS {
            return (Config::new(Layout::Flat, width), n.max(1));
        }
        let lanes = |width: u32| LANES[usize::from(columns(width) > if width > 1 { 16 } else { 4 })];
        let tiles = |width: u32| outer * columns(width).div_ceil(lanes(width).into());
        // Partial sums of one pass are few: what counts is how many blocks read them.
        if self.last && tiles(width) < self.multiprocessors {
            width = 1;
        }
        let config = Config::new(Layout::Columns { lanes: lanes(width) }, width);
        let across = u64::from(lanes(width) * width).min(inner);
        let bytes = n * across * self.dtype.bytes() as u64;
        (config, self.part(n, tiles(width), bytes, u64::from(config.teams() * 2)))
    }
}

/// Every configuration for elements of `dtype`.
pub fn all(dtype: DType) -> Vec<Config> {
    let teams = TEAMS.map(|(team, _)| team).into_iter().chain([32, BLOCK_TEAM]);
    let rows = teams.map(|team| Layout::Rows { team });
    let columns = LANES.map(|lanes| Layout::Columns { lanes });
    let layouts: Vec<Layout> = rows.chain(columns).chain([Layout::Flat]).collect();
    let of_width = |width| layouts.iter().map(move |&layout| Config::new(layout, width));
    of_width(vector(dtype)).chain(of_width(1)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_configuration_that_is_chosen_is_listed() {
        for dtype in DType::FLOATS {
            let all: HashSet<Config> = all(dtype).into_iter().collect();
            let mut chosen = HashSet::new();
            for outer in [0, 1, 100, 1 << 22] {
                for n in [0, 1, 3, 4, 8, 16, 64, 100, 4096, 4099, 1 << 20, 1 << 40] {
                    for inner in [1, 3, 16, 64, 4096, 100_001] {
                        for vectors in [false, true] {
                            for last in [false, true] {
                                let sizes = [outer, n, inner];
                                let pass = Pass::choose(dtype, sizes, vectors, last, Target::sm(90));
                                assert!(all.contains(&pass.config), "{pass:?}");
                                assert!(pass.part > 0 && (pass.part <= MAX_PART || pass.parts() == 1));
                                chosen.insert(pass.config);
                            }
                        }
                    }
                }
            }
            assert_eq!(chosen, all, "{dtype}");
        }
    }

    #[test]
    fn few_results_are_shared_by_the_whole_device() {
        let pass = |sizes, last| Pass::choose(DType::BF16, sizes, true, last, Target::sm(90));
        let columns = pass([1, 8192, 4096], false);
        let blocks = columns.parts() * 16;
        assert!((400..=600).contains(&blocks), "{columns:?}");
        let all = pass([1, 1 << 26, 1], false);
        assert!((400..=600).contains(&all.parts()), "{all:?}");
        assert_eq!(pass([1, 33, 4096], true).config.width, 1);
        assert_eq!(pass([8192, 4096, 1], false).parts(), 1);
    }
}
