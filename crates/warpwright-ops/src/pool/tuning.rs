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
    /// Backward, of single channels: those of cells side by side.
    Spread(Spread),
    /// Of single channels: runs of windows.
    Runs(Run),
}

/// Windows of a plane whose stride divides its columns, and the outputs of a thread, beside each other, which are a divisor of those of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// Rows and columns of a window.
    pub kernel: u32,
    /// Rows and columns from a window to the next.
    pub stride: u32,
    /// Rows and columns of padding, at most 1.
    pub padding: u32,
    /// Outputs.
    pub outputs: u32,
}

impl Run {
    /// Windows that may have a cell, before that of the same number.
    pub const fn before(self) -> u32 {
        ((self.kernel - 1).saturating_sub(self.padding)) / self.stride
    }

    /// Windows that may have one of as many cells as the stride, behind that of the same number.
    pub const fn behind(self) -> u32 {
        self.padding.div_ceil(self.stride)
    }

    /// The number that cell `cell` of those has in the window `window` behind; `None` if the window does not have it.
    pub fn tap(self, window: i32, cell: u32) -> Option<u32> {
        let tap = cell.cast_signed() + self.padding.cast_signed() - self.stride.cast_signed() * window;
        u32::try_from(tap).ok().filter(|tap| *tap < self.kernel)
    }
}

/// Cells side by side in a row of windows that share no cells and leave none out, which have at least as many columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spread {
    /// Cells of a thread, a divisor of those of a row.
    pub run: u32,
    /// Whether a window has a whole plane: rows are then those of as many planes.
    pub planes: bool,
}

impl Visits {
    /// Rows and columns that are visited at once, if not in loops.
    pub const fn at_once(self) -> Option<u32> {
        match self {
            Self::Loops | Self::Spread(_) | Self::Runs(_) => None,
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

    /// Elements of a pixel's vector.
    pub const fn lanes(self) -> u32 {
        if let Visits::Spread(_) | Visits::Runs(_) = self.visits { 1 } else { self.width }
    }

    /// The same with single elements, visited like this.
    pub const fn single(self, visits: Visits) -> Self {
        Self { width: 1, visits, ..self }
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

/// How a thread with one output visits its window.
pub fn forward_visits(axes: &[AxisWindows; 3]) -> Visits {
    let is_square = |n: &u32| {
        let fits = |s: Sliding| s.kernel == *n && s.dilation == 1;
        axes[1..].iter().all(|axis| axis.sliding.is_some_and(fits))
    };
    SQUARES.into_iter().find(is_square).map_or(Visits::Loops, Visits::Square)
}

/// That of the forward pass.
pub fn forward(dtype: DType, layout: Layout, channels: usize, axes: &[AxisWindows; 3]) -> Config {
    if let Some(config) = runs(dtype, layout, axes) {
        return config;
    }
    let visits = forward_visits(axes);
    Config { width: width(dtype, layout, channels), visits, chunk: CellGridArgs::MAX_CHUNK }
}

/// Windows of a plane with runs: kernel, stride and padding.
pub const RUNS: [[u32; 3]; 3] = [[2, 2, 0], [3, 2, 1], [3, 1, 1]];

/// The greatest power of two, at most `most`, that divides `n`.
pub(crate) fn divisor(n: u64, most: u32) -> u32 {
    1 << n.trailing_zeros().min(most.ilog2())
}

/// Runs of windows.
fn runs(dtype: DType, layout: Layout, axes: &[AxisWindows; 3]) -> Option<Config> {
    let along = |[kernel, stride, padding]: [u32; 3]| Some(Sliding { kernel, stride, padding, dilation: 1 });
    let fits = |of: &[u32; 3]| axes[1..].iter().all(|axis| axis.sliding == along(*of));
    let [kernel, stride, padding] = RUNS.into_iter().find(fits)?;
    let columns = axes[2];
    let whole = columns.output.checked_mul(stride) == Some(columns.input);
    if layout != Layout::ChannelsFirst || !whole || axes[0].sliding != along([1, 1, 0]) {
        return None;
    }
    let most = VECTOR_BYTES / dtype.bytes() as u32;
    let cells = divisor(columns.input.into(), most);
    let outputs = cells / stride;
    let run = Run { kernel, stride, padding, outputs };
    let config = Config { width: cells, visits: Visits::Runs(run), chunk: CellGridArgs::MAX_CHUNK };
    (cells > 1).then_some(config)
}

/// Runs of cells of rows of windows side by side.
fn spread(dtype: DType, planes: u64, axes: &[AxisWindows; 3]) -> Option<Spread> {
    let side_by_side = |axis: &AxisWindows| {
        axis.sliding.filter(|s| {
            let whole = axis.output.checked_mul(s.kernel) == Some(axis.input);
            whole && s.kernel == s.stride && s.padding == 0 && s.dilation == 1
        })
    };
    let [depth, rows, columns] = axes.each_ref().map(side_by_side);
    let (depth, _, columns) = (depth?, rows?, columns?);
    let most = VECTOR_BYTES / dtype.bytes() as u32;
    let cells: u64 = axes.iter().map(|axis| u64::from(axis.input)).product();
    let whole = axes.iter().all(|axis| axis.output == 1);
    let spread = if whole {
        Spread { run: divisor(planes, most), planes: true }
    } else {
        Spread { run: divisor(axes[2].input.into(), most), planes: false }
    };
    let columns = if whole { cells } else { u64::from(columns.kernel) };
    let fits = u64::from(spread.run) <= columns && cells * u64::from(spread.run) <= CellGridArgs::MAX_CHUNK;
    (spread.run > 1 && fits && (whole || depth.kernel == 1)).then_some(spread)
}

/// How a thread with one cell of `dx`, or a tile of them, visits the windows.
pub fn backward_visits(axes: &[AxisWindows; 3]) -> Visits {
    let is_halving = |Halving { kernel, padding }: &Halving| {
        let fits = Sliding { kernel: *kernel, stride: 2, padding: *padding, dilation: 1 };
        axes[1..].iter().all(|axis| axis.sliding == Some(fits))
    };
    let is_apart = |axis: &AxisWindows| axis.sliding.is_some_and(|s| s.span() <= s.stride);
    match TILES.into_iter().find(is_halving) {
        Some(halving) => Visits::Tile(halving),
        None if axes[1..].iter().all(is_apart) => Visits::Square(1),
        None => Visits::Loops,
    }
}

/// That of the backward pass, of so many samples and channels.
pub fn backward(
    dtype: DType,
    layout: Layout,
    [batch, channels]: [usize; 2],
    axes: &[AxisWindows; 3],
) -> Config {
    let chunk = CellGridArgs::MAX_CHUNK;
    let spread = match layout {
        Layout::ChannelsFirst => spread(dtype, (batch as u64).saturating_mul(channels as u64), axes),
        Layout::ChannelsLast => None,
    };
    if let Some(spread) = spread {
        return Config { width: spread.run, visits: Visits::Spread(spread), chunk };
    }
    if let Some(config) = runs(dtype, layout, axes) {
        return config;
    }
    Config { width: width(dtype, layout, channels), visits: backward_visits(axes), chunk }
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
    use crate::pool::windows::{SlidingWindows, Windows, along_axes};

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
            let backward = backward(DType::BF16, layout, [1, channels], &axes(numbers));
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

    /// Against the definition, for every cell of a long axis.
    #[test]
    fn runs_have_the_windows_of_their_cells() {
        for [kernel, stride, padding] in RUNS {
            let run = Run { kernel, stride, padding, outputs: 1 };
            for cell in 20..30u32 {
                let defined: Vec<_> = (0..40u32)
                    .filter_map(|o| {
                        let tap = (cell + padding).checked_sub(o * stride)?;
                        (tap < kernel).then_some((o.cast_signed() - (cell / stride).cast_signed(), tap))
                    })
                    .collect();
                let windows = -run.before().cast_signed()..=run.behind().cast_signed();
                let taps = windows.filter_map(|window| Some((window, run.tap(window, cell % stride)?)));
                assert_eq!(taps.collect::<Vec<_>>(), defined, "{run:?} {cell}");
            }
        }
    }

    #[test]
    fn runs_need_whole_rows() {
        let of = |input: [usize; 3], [kernel, stride, padding]: [usize; 3], layout| {
            let windows = SlidingWindows {
                kernel: [1, kernel, kernel],
                stride: [1, stride, stride],
                padding: [0, padding, padding],
                ..SlidingWindows::tiling([1; 3])
            };
            let axes = along_axes("max_pool", input, &Windows::Sliding(windows)).expect("windows");
            let of = [
                forward(DType::BF16, layout, 64, &axes).visits,
                backward(DType::BF16, layout, [1, 64], &axes).visits,
            ];
            of.map(|visits| if let Visits::Runs(run) = visits { run.outputs } else { 0 })
        };
        let first = Layout::ChannelsFirst;
        assert_eq!(of([1, 5, 24], [3, 2, 1], first), [4, 4]);
        assert_eq!(of([3, 5, 12], [3, 1, 1], first), [4, 4]);
        assert_eq!(of([1, 5, 10], [2, 2, 0], first), [1, 1]);
        assert_eq!(of([1, 5, 11], [3, 2, 1], first), [0, 0], "an odd row");
        assert_eq!(of([1, 5, 24], [3, 2, 0], first), [0, 0], "cells of no window");
        assert_eq!(of([1, 5, 24], [3, 2, 1], Layout::ChannelsLast), [0, 0]);
    }

    #[test]
    fn runs_need_windows_side_by_side() {
        let adaptive =
            |input: [usize; 3], output| along_axes("avg_pool", input, &Windows::Adaptive { output });
        let run = |input, output, channels| {
            let axes = adaptive(input, output).expect("windows");
            let of = backward(DType::BF16, Layout::ChannelsFirst, [2, channels], &axes);
            if let Visits::Spread(Spread { run, planes }) = of.visits { Some((run, planes)) } else { None }
        };
        assert_eq!(run([1, 7, 7], [1, 1, 1], 12), Some((8, true)));
        assert_eq!(run([1, 7, 7], [1, 1, 1], 3), Some((2, true)), "six planes");
        assert_eq!(run([1, 2, 3], [1, 1, 1], 8), None, "planes smaller than a run");
        assert_eq!(run([1, 56, 56], [1, 7, 7], 3), Some((8, false)));
        assert_eq!(run([3, 6, 12], [3, 2, 3], 3), Some((4, false)));
        assert_eq!(run([1, 56, 56], [1, 28, 28], 8), None, "windows smaller than a run");
        assert_eq!(run([4, 8, 8], [2, 2, 2], 8), None, "windows of two planes");
        assert_eq!(run([1, 50, 50], [1, 7, 7], 8), None, "windows that share cells");
        let gaps = SlidingWindows { stride: [1, 1, 5], ..SlidingWindows::tiling([1, 1, 4]) };
        let axes = along_axes("avg_pool", [1, 8, 24], &Windows::Sliding(gaps)).expect("windows");
        let visits = backward(DType::BF16, Layout::ChannelsFirst, [2, 8], &axes).visits;
        assert_eq!(visits, Visits::Square(1), "gaps");
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
