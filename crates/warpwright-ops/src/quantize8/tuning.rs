//! Which thread takes what.
//!
//! All of it is bound by the bytes that move: a thread loads 16 bytes of the matrix at once, several times, before it needs the first
//! of them, and every element is read once where the part that a scale is of fits the registers of a block.

use warpwright_dsl::VECTOR_BYTES;
use warpwright_ptx::DType;

use super::BLOCK;

const THREADS: u32 = 256;
/// Vectors of a thread where one scale is of the tensor.
pub(super) const FLAT_VECTORS: u32 = 4;

/// Elements that a thread loads at once from runs of `run` neighbouring elements, best first: vectors if whole ones fit, and single
/// elements for any address.
pub fn widths(dtype: DType, run: usize) -> Vec<u32> {
    let vector = VECTOR_BYTES / dtype.bytes() as u32;
    let fits = run.is_multiple_of(vector as usize);
    fits.then_some(vector).into_iter().chain([1]).collect()
}

/// Every tensor's address must be a multiple of this; single elements are where they are.
pub const fn alignment(dtype: DType, width: u32) -> u64 {
    if width == 1 { 1 } else { width as u64 * dtype.bytes() as u64 }
}

/// Elements of a block where one scale is of the tensor.
pub const fn flat_elements(width: u32) -> u32 {
    width * FLAT_VECTORS * THREADS
}

/// Threads of a block where one scale is of the tensor.
pub const FLAT_THREADS: u32 = THREADS;

/// Blocks that look for the largest magnitude of a tensor, one result each: at most as many as the threads of a block, which take one
/// each, and about as many as a device runs at once.
pub const fn partials(len: usize) -> u32 {
    const SMALL: usize = 1 << 17;
    if len <= SMALL { 8 } else { 256 }
}

/// Threads of a block that looks for the largest magnitude of a tensor.
pub const AMAX_THREADS: u32 = 512;
/// Vectors that such a thread has under way.
pub const AMAX_UNROLL: u32 = 4;

/// How threads share a row that has a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowLayout {
    /// Elements that are loaded at once.
    pub width: u32,
    /// Threads of a row, and vectors of a thread that it holds in registers; `None` if a block reads its row twice.
    pub held: Option<[u32; 2]>,
    /// Threads of a block.
    pub threads: u32,
}

impl RowLayout {
    /// Rows of a block.
    pub const fn rows_per_block(self) -> u32 {
        match self.held {
            Some([team, _]) => self.threads / team,
            None => 1,
        }
    }

    /// The longest row that it takes.
    pub const fn capacity(self) -> usize {
        match self.held {
            Some([team, vectors]) => team as usize * vectors as usize * self.width as usize,
            None => usize::MAX,
        }
    }

    /// A part of a kernel's name.
    pub(super) fn name(self) -> String {
        let Self { width, held, threads } = self;
        let held = held.map_or("loop".to_owned(), |[team, vectors]| format!("{team}v{vectors}"));
        format!("rows{held}_t{threads}x{width}")
    }
}

/// Vectors of a row under way where it is read twice.
pub const LOOP_UNROLL: u32 = 4;

/// Layouts of rows, shortest rows first.
pub fn row_layouts(width: u32) -> Vec<RowLayout> {
    let held = |team, vectors, threads| RowLayout { width, held: Some([team, vectors]), threads };
    let mut all = if width == 1 {
        vec![held(32, 16, 128)]
    } else {
        let of_warps = [held(8, 1, 128), held(32, 1, 128), held(32, 2, 128), held(32, 4, 128)];
        let of_blocks = [128, 256, 512, 1024].map(|threads| held(threads, 4, threads));
        of_warps.into_iter().chain(of_blocks).collect()
    };
    all.push(RowLayout { width, held: None, threads: 512 });
    all
}

/// The layout for rows of `cols` elements.
pub fn rows(cols: usize, width: u32) -> RowLayout {
    let looped = RowLayout { width, held: None, threads: 512 };
    row_layouts(width).into_iter().find(|layout| layout.capacity() >= cols).unwrap_or(looped)
}

/// 128 columns of some rows, which a block takes: neighbouring threads share 128 elements of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Elements that are loaded at once.
    pub width: u32,
    /// Threads of a row.
    pub lanes: u32,
    /// Rows of a thread, one after the other.
    pub rounds: u32,
    /// Threads of a block.
    pub threads: u32,
}

impl Tile {
    const fn new(width: u32, threads: u32, rows: u32) -> Self {
        let most = BLOCK as u32 / width;
        let lanes = if most < 32 { most } else { 32 };
        Self { width, lanes, rounds: rows / (threads / lanes), threads }
    }

    /// Vectors of a thread in a row.
    pub const fn vectors(self) -> u32 {
        BLOCK as u32 / (self.width * self.lanes)
    }

    /// Rows of the tile.
    pub const fn rows(self) -> u32 {
        self.threads / self.lanes * self.rounds
    }

    /// Tiles of a matrix.
    pub const fn count(self, rows: usize, cols: usize) -> Option<usize> {
        rows.div_ceil(self.rows() as usize).checked_mul(cols.div_ceil(BLOCK))
    }

    /// A part of a kernel's name.
    pub(super) fn name(self) -> String {
        format!("t{}r{}x{}", self.threads, self.rounds, self.width)
    }
}

/// The tile of a scale of 128 x 128 elements.
pub const fn block(dtype: DType, width: u32) -> Tile {
    // 16 KiB of registers hold 64 KiB of f32 in twice the threads.
    Tile::new(width, if dtype.bytes() == 2 && width > 1 { THREADS } else { 2 * THREADS }, BLOCK as u32)
}

/// The tile of rows that have scales of their own, or none to find.
pub const fn strip(width: u32) -> Tile {
    let lanes = Tile::new(width, THREADS, BLOCK as u32).lanes;
    Tile::new(width, THREADS, 4 * (THREADS / lanes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantize8::DTYPES;

    #[test]
    fn every_row_is_held_or_read_twice() {
        for dtype in DTYPES {
            for cols in [0, 1, 8, 64, 1000, 1024, 4096, 7168, 16384, 32768, 50_000, 1 << 40] {
                for width in widths(dtype, cols) {
                    let layout = rows(cols, width);
                    assert!(layout.capacity() >= cols && row_layouts(width).contains(&layout), "{cols}");
                    assert!(cols.is_multiple_of(width as usize));
                }
                assert_eq!(widths(dtype, cols).last(), Some(&1));
            }
        }
    }

    #[test]
    fn tiles_have_128_columns_and_blocks_128_rows() {
        for dtype in DTYPES {
            for width in widths(dtype, BLOCK) {
                let (block, strip) = (block(dtype, width), strip(width));
                assert_eq!(block.rows() as usize, BLOCK);
                for tile in [block, strip] {
                    assert_eq!((tile.lanes * tile.width * tile.vectors()) as usize, BLOCK);
                    assert!(BLOCK.is_multiple_of(tile.rows() as usize));
                }
            }
        }
        let tile = strip(8);
        assert_eq!((tile.rows(), tile.count(65, 129), tile.count(0, 5)), (64, Some(4), Some(0)));
        assert_eq!(strip(1).count(usize::MAX, usize::MAX), None);
    }
}
