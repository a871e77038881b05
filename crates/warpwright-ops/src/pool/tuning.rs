//! Which kernel runs for which windows.
//!
//! Pooling is bound by the bytes that it moves. With channels last a thread has a vector of 16 bytes of channels, and a block a tile
//! of several rows, so that windows that overlap meet in the L1 cache. With channels first neighbouring threads have neighbouring
//! columns. Small windows are visited at once, all loads before the first use; others in loops.

use warpwright_dsl::VECTOR_BYTES;
use warpwright_dsl::cells::CellGridArgs;
use warpwright_ptx::DType;

use super::windows::{AxisWindows, Sliding};
use crate::batch_norm::Layout;

/// Threads of a block.
pub const THREADS: u32 = 256;

/// Windows of two outputs to four cells: their stride is 2, which is also the rows and columns of a thread backward. Which of them have
/// which of the thread's cells is then the same for all threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Halving {
    /// Rows and columns of a window.
    pub kernel: u32,
    /// Rows and columns of padding.
    pub padding: u32,
}

impl Halving {
    /// The first window of a thread along an axis, counted from the one of the same number as the thread.
    pub const fn first(self) -> i32 {
        (self.padding as i32 - self.kernel as i32).div_euclid(2) + 1
    }

    /// Windows of a thread along an axis.
    pub const fn windows(self) -> u32 {
        ((self.padding as i32 + 1).div_euclid(2) - self.first() + 1) as u32
    }

    /// The number that a thread's cell `cell` has in its window `window`; out of the kernel's range if the window does not have it.
    pub const fn tap(self, window: u32, cell: u32) -> i32 {
        cell as i32 + self.padding as i32 - 2 * (self.first() + window as i32)
    }
}

/// How a thread visits the cells of a window, or backward the windows of its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Visits {
    /// In loops.
    Loops,
    /// Forward: so many rows and columns at once. Backward: the one window that a cell can have, of windows that share no cells.
    Square(u32),
    /// Backward: the windows of two rows and columns at once.
    Tile(Halving),
}

impl Visits {
    /// Rows and columns that are visited at once, if not in loops.
    pub const fn at_once(self) -> Option<u32> {
        match self {
            Self::Loops => None,
            Self::Square(n) => Some(n),
            Self::Tile(halving) => Some(halving.windows()),
        }
    }

    /// Rows and columns of a thread.
    pub const fn tile(self) -> u32 {
        if let Self::Tile(_) = self { 2 } else { 1 }
    }

    /// Whether a visited window has a cell of the thread.
    pub fn has(self, window: [u32; 2], cell: [u32; 2]) -> bool {
        let Self::Tile(halving) = self else { return true };
        let inside = |i: usize| (0..halving.kernel as i32).contains(&halving.tap(window[i], cell[i]));
        inside(0) && inside(1)
    }
}

/// How the cells of a pass are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Elements of a thread's vector of channels.
    pub width: u32,
    /// How it visits windows.
    pub visits: Visits,
    /// Cells of a launch's chunk at most; fewer than a chunk can have only in tests.
    pub chunk: u64,
}

impl Config {
    /// Alignment in bytes of tensors of type `dtype`, and of indices; that of each's own elements where there are no vectors.
    pub const fn alignment(self, dtype: DType) -> u64 {
        if self.width == 1 { 1 } else { self.width as u64 * dtype.bytes() as u64 }
    }

    /// The same with single elements.
    pub const fn scalar(self) -> Self {
        Self { width: 1, ..self }
    }
}

/// Windows that are visited at once where they are squares of this size.
pub const SQUARES: [u32; 2] = [2, 3];

/// Windows whose backward pass has tiles.
pub const TILES: [Halving; 3] =
    [Halving { kernel: 2, padding: 0 }, Halving { kernel: 3, padding: 0 }, Halving { kernel: 3, padding: 1 }];

/// Elements of a thread's vectors.
pub(crate) const fn width(dtype: DType, layout: Layout, channels: usize) -> u32 {
    let width = VECTOR_BYTES as usize / dtype.bytes();
    match layout {
        Layout::ChannelsLast if channels.is_multiple_of(width) && channels > 0 => width as u32,
        _ => 1,
    }
}

/// That of the forward pass.
pub fn forward(dtype: DType, layout: Layout, channels: usize, axes: &[AxisWindows; 3]) -> Config {
    let is_square = |n: &u32| {
        let fits = |s: Sliding| s.kernel == *n && s.dilation == 1;
        axes[1..].iter().all(|axis| axis.sliding.is_some_and(fits))
    };
    let visits = SQUARES.into_iter().find(is_square).map_or(Visits::Loops, Visits::Square);
    Config { width: width(dtype, layout, channels), visits, chunk: CellGridArgs::MAX_CHUNK }
}

/// That of the backward pass.
pub fn backward(dtype: DType, layout: Layout, channels: usize, axes: &[AxisWindows; 3]) -> Config {
    let is_halving = |Halving { kernel, padding }: &Halving| {
        let fits = Sliding { kernel: *kernel, stride: 2, padding: *padding, dilation: 1 };
        axes[1..].iter().all(|axis| axis.sliding == Some(fits))
    };
    let is_apart = |axis: &AxisWindows| axis.sliding.is_some_and(|s| s.span() <= s.stride);
    let visits = match TILES.into_iter().find(is_halving) {
        Some(halving) => Visits::Tile(halving),
        None if axes[1..].iter().all(is_apart) => Visits::Square(1),
        None => Visits::Loops,
    };
    Config { width: width(dtype, layout, channels), visits, chunk: CellGridArgs::MAX_CHUNK }
}

/// The binary logarithm of the rows of a block's tile, of `rows` of an image: 4 rows, or fewer where these do not come out even.
pub const fn row_group(layout: Layout, rows: u32) -> u32 {
    match layout {
        Layout::ChannelsFirst => 0,
        Layout::ChannelsLast if rows >= 16 || (rows >= 3 && rows.next_multiple_of(4) - rows <= 1) => 2,
        Layout::ChannelsLast if rows >= 7 || rows.is_multiple_of(2) => 1,
        Layout::ChannelsLast => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes([kernel, stride, padding]: [u32; 3]) -> [AxisWindows; 3] {
        let axis = |kernel, stride, padding| AxisWindows {
            input: 9,
            output: 4,
            sliding: Some(Sliding { kernel, stride, padding, dilation: 1 }),
        };
        [axis(1, 1, 0), axis(kernel, stride, padding), axis(kernel, stride, padding)]
    }

    #[test]
    fn vectors_need_whole_vectors_of_channels() {
        let of = |layout, channels| forward(DType::BF16, layout, channels, &axes([3, 2, 1])).width;
        assert_eq!(of(Layout::ChannelsLast, 64), 8);
        assert_eq!(of(Layout::ChannelsLast, 12), 1);
        assert_eq!(of(Layout::ChannelsLast, 0), 1);
        assert_eq!(of(Layout::ChannelsFirst, 64), 1);
    }

    #[test]
    fn small_windows_are_visited_at_once() {
        let of = |numbers| {
            let (channels, layout) = (64, Layout::ChannelsLast);
            let forward = forward(DType::BF16, layout, channels, &axes(numbers));
            let backward = backward(DType::BF16, layout, channels, &axes(numbers));
            (forward.visits, backward.visits)
        };
        let tile = |kernel, padding| Visits::Tile(Halving { kernel, padding });
        assert_eq!(of([2, 2, 0]), (Visits::Square(2), tile(2, 0)));
        assert_eq!(of([3, 2, 1]), (Visits::Square(3), tile(3, 1)));
        assert_eq!(of([3, 1, 1]), (Visits::Square(3), Visits::Loops));
        assert_eq!(of([5, 2, 2]), (Visits::Loops, Visits::Loops));
        assert_eq!(of([7, 7, 0]), (Visits::Loops, Visits::Square(1)));
        assert_eq!(of([2, 3, 1]), (Visits::Square(2), Visits::Square(1)));
    }

    /// Against the definition, for the tile in the middle of a long axis.
    #[test]
    fn tiles_have_the_windows_of_their_cells() {
        for halving in TILES {
            let Halving { kernel, padding } = halving;
            let tap = |o: i32, i: i32| i + padding as i32 - 2 * o;
            for cell in 0..2 {
                let (number, mut found) = (50, 0);
                for o in 0..100 {
                    let tap = tap(o, 2 * number + cell);
                    if (0..kernel as i32).contains(&tap) {
                        let window = (o - number - halving.first()) as u32;
                        assert!(window < halving.windows(), "{halving:?}");
                        assert_eq!(halving.tap(window, cell as u32), tap);
                        found += 1;
                    }
                }
                let visits = Visits::Tile(halving);
                let said = (0..halving.windows()).filter(|&w| visits.has([w, w], [cell as u32; 2])).count();
                assert_eq!(said, found, "{halving:?}");
            }
        }
    }

    #[test]
    fn groups_of_rows_waste_few_threads() {
        for rows in 1..200u32 {
            let group = 1 << row_group(Layout::ChannelsLast, rows);
            let wasted = rows.next_multiple_of(group) - rows;
            assert!(4 * wasted <= rows + 1, "{wasted} of {rows}");
        }
        assert_eq!(row_group(Layout::ChannelsFirst, 56), 0);
    }
}
