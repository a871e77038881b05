//! Which kernel runs for which shape.

use warpwright_dsl::VECTOR_BYTES;
use warpwright_ptx::{DType, Target};

use crate::catalogue::Direction;

/// How the elements of a row are spread over threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Contiguous rows in registers: `team` threads share a row, each with `vectors` vectors of it. A team is part of a
    /// warp, or the block, or the blocks of a cluster (sm_90 and later).
    Rows {
        /// Threads of a row; a multiple of those of a block is a cluster.
        team: u32,
        /// Vectors of a thread.
        vectors: u32,
    },
    /// Contiguous rows of any length: a block reads its row twice.
    RowLoop,
    /// Strided rows in registers: `lanes` neighbouring threads take neighbouring columns, `teams` of them share the
    /// elements of a column, `vectors` each.
    Columns {
        /// Threads across columns.
        lanes: u32,
        /// Threads of a column.
        teams: u32,
        /// Vectors of a thread.
        vectors: u32,
    },
    /// Strided rows of any length: a thread reads its part of a column twice.
    ColumnLoop {
        /// Threads across columns.
        lanes: u32,
        /// Threads of a column.
        teams: u32,
    },
}

/// How a kernel is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Which thread has which elements.
    pub layout: Layout,
    /// Neighbouring elements that a thread loads and stores at once.
    pub width: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Whether exponentials are kept in registers until the sum is known, or computed twice. Types of 32 bits and more
    /// keep them in the place of the elements.
    pub keep: bool,
}

impl Config {
    /// The longest row that it takes.
    pub const fn capacity(self) -> usize {
        match self.layout {
            Layout::Rows { team, vectors } => team as usize * vectors as usize * self.width as usize,
            Layout::Columns { teams, vectors, .. } => teams as usize * vectors as usize,
            Layout::RowLoop | Layout::ColumnLoop { .. } => usize::MAX,
        }
    }

    /// Blocks of a cluster.
    pub const fn cluster(self) -> u32 {
        match self.layout {
            Layout::Rows { team, .. } if team > self.threads => team / self.threads,
            _ => 1,
        }
    }

    /// Alignment of all tensors in bytes; single elements are where they are.
    pub const fn alignment(self, dtype: DType) -> u64 {
        if self.width == 1 { 1 } else { self.width as u64 * dtype.bytes() as u64 }
    }
}

const fn rows(team: u32, vectors: u32, threads: u32, width: u32) -> Config {
    Config { layout: Layout::Rows { team, vectors }, width, threads, keep: false }
}

const fn columns(lanes: u32, teams: u32, vectors: u32, width: u32) -> Config {
    Config { layout: Layout::Columns { lanes, teams, vectors }, width, threads: lanes * teams, keep: false }
}

const fn row_loop(threads: u32, width: u32) -> Config {
    Config { layout: Layout::RowLoop, width, threads, keep: false }
}

const fn column_loop(width: u32) -> Config {
    Config { layout: Layout::ColumnLoop { lanes: 32, teams: 8 }, width, threads: 256, keep: false }
}

/// Clusters exist from here.
const CLUSTER_SM: u32 = 90;

/// Layouts of contiguous rows, shortest rows first, whole vectors before single elements. A row should nearly fill the
/// team that takes it: threads without elements cost as much as others.
fn row_layouts(dtype: DType, direction: Direction, target: Target) -> Vec<Config> {
    let w = VECTOR_BYTES / dtype.bytes() as u32;
    let mut out = vec![
        rows(8, 1, 128, w),
        rows(32, 1, 128, w),
        rows(32, 2, 128, w),
        rows(32, 4, 128, w),
        rows(128, 4, 128, w),
        rows(256, 4, 256, w),
    ];
    if target.sm >= CLUSTER_SM {
        // Faster than the blocks below: small blocks come and go one by one, and have few warps to wait for.
        out.push(rows(2 * 256, 4, 256, w));
        out.extend([4, 8, 16].map(|blocks| rows(blocks * 128, 8, 128, w)));
        out.push(rows(16 * 256, 8, 256, w));
    } else {
        out.extend([512, 1024].map(|threads| rows(threads, 4, threads, w)));
        if dtype == DType::F32 && direction == Direction::Forward {
            // Double precision and the gradient's two tensors lack the registers.
            out.push(rows(1024, 8, 1024, w));
        }
    }
    out.push(row_loop(1024, w));
    out.extend([rows(8, 4, 128, 1), rows(32, 32, 128, 1), rows(512, 16, 512, 1), row_loop(1024, 1)]);
    out
}

/// Layouts of strided rows, shortest rows first, wide vectors before single elements. Long columns take narrow vectors, so
/// that a thread has more elements of fewer columns and fewer threads must combine.
fn column_layouts(dtype: DType, direction: Direction) -> Vec<Config> {
    let forward = direction == Direction::Forward;
    let list: &[Config] = match (dtype.bytes(), forward) {
        (2, true) => &[
            columns(32, 4, 4, 4),
            columns(32, 4, 16, 4),
            columns(32, 4, 64, 2),
            columns(16, 32, 32, 2),
            column_loop(4),
            columns(32, 4, 16, 1),
            columns(32, 16, 32, 1),
            column_loop(1),
        ],
        (2, false) => &[
            columns(32, 4, 4, 4),
            columns(32, 8, 8, 2),
            columns(32, 8, 32, 2),
            columns(16, 32, 32, 2),
            column_loop(4),
            columns(32, 4, 16, 1),
            columns(16, 32, 16, 1),
            column_loop(1),
        ],
        (4, true) => &[
            columns(32, 4, 4, 2),
            columns(32, 8, 8, 2),
            column_loop(2),
            columns(32, 4, 16, 1),
            columns(32, 4, 64, 1),
            columns(16, 16, 64, 1),
            column_loop(1),
        ],
        (4, false) => &[
            columns(32, 4, 4, 2),
            columns(32, 8, 8, 2),
            column_loop(2),
            columns(32, 4, 16, 1),
            columns(32, 8, 32, 1),
            columns(16, 32, 32, 1),
            column_loop(1),
        ],
        (_, true) => &[columns(32, 4, 4, 1), columns(32, 4, 16, 1), columns(32, 8, 16, 1), column_loop(1)],
        (_, false) => &[columns(32, 4, 4, 1), columns(32, 8, 8, 1), columns(32, 8, 16, 1), column_loop(1)],
    };
    list.to_vec()
}

/// Of layouts that take rows of `n` elements and vectors along `run`, the smallest; and one for any alignment behind it.
fn choose(list: &[Config], n: usize, run: usize) -> Vec<Config> {
    let held = |c: &&Config| !matches!(c.layout, Layout::RowLoop | Layout::ColumnLoop { .. });
    let fits = |c: &&Config| c.capacity() >= n && run.is_multiple_of(c.width as usize);
    // A row that some layout holds is not read twice, whatever the width of that layout.
    let best = list.iter().filter(held).find(fits).or_else(|| list.iter().find(fits));
    let any = list.iter().filter(|c| c.width == 1).find(fits);
    let mut out: Vec<Config> = best.into_iter().chain(any).copied().collect();
    out.dedup();
    out
}

/// The layouts for rows of `n` elements at a distance of `inner`, best first; the last one takes any alignment.
pub fn configs(dtype: DType, direction: Direction, target: Target, n: usize, inner: usize) -> Vec<Config> {
    match inner {
        1 => choose(&row_layouts(dtype, direction, target), n, n),
        _ => choose(&column_layouts(dtype, direction), n, inner),
    }
}

/// Every layout that can be chosen.
pub fn all(dtype: DType, direction: Direction, target: Target) -> Vec<Config> {
    let mut out = row_layouts(dtype, direction, target);
    out.extend(column_layouts(dtype, direction));
    out
}

/// Layouts of rows with a mask: all are read twice, the second time from a cache.
pub fn masked_configs(dtype: DType, n: usize, inner: usize) -> Vec<Config> {
    let rows = |c: &Config| c.layout == Layout::RowLoop;
    let list: Vec<Config> = all_masked(dtype).into_iter().filter(|c| rows(c) == (inner == 1)).collect();
    choose(&list, n, if inner == 1 { n } else { inner })
}

/// Every layout of rows with a mask.
pub fn all_masked(dtype: DType) -> Vec<Config> {
    let mut out = vec![row_loop(256, VECTOR_BYTES / dtype.bytes() as u32), row_loop(256, 1)];
    out.extend(match dtype.bytes() {
        2 => vec![column_loop(4), column_loop(1)],
        4 => vec![column_loop(2), column_loop(1)],
        _ => vec![column_loop(1)],
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGETS: [Target; 2] = [Target::sm(75), Target::sm(90)];

    #[test]
    fn every_shape_has_a_layout_and_the_last_takes_any_alignment() {
        for dtype in DType::FLOATS {
            for direction in [Direction::Forward, Direction::Backward] {
                for target in TARGETS {
                    for n in [1, 2, 7, 64, 65, 1000, 1024, 4097, 50257, 1 << 20, 1 << 40] {
                        for inner in [1, 2, 3, 4096] {
                            let found = configs(dtype, direction, target, n, inner);
                            let all = all(dtype, direction, target);
                            assert!(
                                found.iter().all(|c| c.capacity() >= n && all.contains(c)),
                                "{n} {inner}"
                            );
                            assert_eq!(found.last().map(|c| c.width), Some(1), "{dtype} {n} {inner}");
                            let masked = masked_configs(dtype, n, inner);
                            assert_eq!(masked.last().map(|c| c.width), Some(1), "{dtype} {n} {inner}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn rows_that_fit_are_not_read_twice() {
        let of = |n, inner| configs(DType::BF16, Direction::Forward, TARGETS[1], n, inner)[0].layout;
        assert_eq!(of(4096, 1), Layout::Rows { team: 128, vectors: 4 });
        assert_eq!(of(131_072, 1), Layout::Rows { team: 2048, vectors: 8 });
        assert_eq!(of(1000, 4096), Layout::Columns { lanes: 16, teams: 32, vectors: 32 });
        assert_eq!(of(1 << 20, 1), Layout::RowLoop);
    }
}
