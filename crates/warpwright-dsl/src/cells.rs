//! Cells: threads take the cells of images `[outer, depth, height, width, vectors]`, one each, and visit boxes of cells of another
//! image, such as the windows of a pooling. With channels first `outer` is samples times channels and there is one vector of one
//! element; with channels last it is the samples, and the vectors are those of the channels.

use crate::context::K;
use crate::divide::DivisorArgs;
use crate::flow::{Carry, Range};
use crate::kernel_args;
use crate::mem::{Element, Fill, Ptr, Readable};
use crate::reg::{I32, Pred, U32, U64};

kernel_args! {
    /// Where the vectors of images lie: vectors from a pixel to the next and from a row to the next, which 32 bits hold with those of
    /// a whole image, and elements of an image.
    pub struct ImageArgs => Image { height: u32, pixel: u32, row: u32, size: u64 }
}

impl ImageArgs {
    /// Images of `[depth, height, width]` pixels of `vectors` vectors of `elements` elements. `None` if an image has more than
    /// [`MAX_CHUNK`](CellGridArgs::MAX_CHUNK) vectors.
    pub fn new([depth, height, width]: [u32; 3], vectors: u32, elements: u32) -> Option<Self> {
        let factors = [width, height, depth].map(u64::from);
        let size = factors.into_iter().try_fold(u64::from(vectors), u64::checked_mul)?;
        let fits = size <= CellGridArgs::MAX_CHUNK;
        fits.then(|| Self {
            height,
            pixel: vectors,
            row: vectors.wrapping_mul(width),
            size: size * u64::from(elements),
        })
    }
}

impl<'k> Image<'k> {
    /// The first element of a pixel in its image, of vectors of `width` elements. One less than a row before the image has a place
    /// before it, and those behind it are anywhere: nothing may access them.
    #[track_caller]
    pub fn pixel_at(self, [depth, row, column]: [I32<'k>; 3], width: u32) -> U64<'k> {
        row.k().on_behalf(|| {
            let row = depth.mul_add(self.height.to_i32(), row);
            let vectors = row.mul_add(self.row.to_i32(), column * self.pixel.to_i32());
            vectors.mul_wide(width.cast_signed()).to_u64()
        })
    }

    /// The vectors before row `row`.
    pub(crate) fn row_at(self, depth: I32<'k>, row: I32<'k>) -> I32<'k> {
        depth.mul_add(self.height.to_i32(), row) * self.row.to_i32()
    }

    /// Vectors from a pixel to the next.
    pub(crate) fn pixel_pitch(self) -> I32<'k> {
        self.pixel.to_i32()
    }

    /// The first element of vector `vector` in the first pixel of image `outer`.
    #[track_caller]
    pub fn start(self, outer: U64<'k>, vector: U32<'k>, width: u32) -> U64<'k> {
        outer.k().on_behalf(|| outer * self.size + vector.mul_wide(width))
    }
}

kernel_args! {
    /// Which cell each thread has. Blocks lie along x over the cells of a chunk of images, along y over the chunks.
    pub struct CellGridArgs => CellGrid {
        vectors: DivisorArgs, width: DivisorArgs, row_groups: DivisorArgs, depth: DivisorArgs, height: u32, group: u32, outer: u64,
        chunk: u32,
    }
}

/// Most blocks along y of a grid.
const MAX_GRID_Y: u64 = 65535;

impl CellGridArgs {
    /// The most cells of a chunk: numbers of threads stay below what a [`Divisor`](crate::divide::Divisor) takes.
    pub const MAX_CHUNK: u64 = (1 << 31) - 1024;

    /// Threads for `outer` images of `[depth, height, width]` cells of `vectors` vectors, and the grid of blocks of `threads` of
    /// them. Threads go over the vectors of a cell first, then over `2^group` rows, then over the columns: with vectors, a block
    /// has a tile of several rows. A chunk has at most `limit` cells, or one image. `None` if an image has more than
    /// [`MAX_CHUNK`](Self::MAX_CHUNK) cells or a grid does not have that many blocks; without a cell it has one block.
    pub fn over(
        outer: u64,
        [depth, height, width]: [u32; 3],
        vectors: u32,
        group: u32,
        threads: u32,
        limit: u64,
    ) -> Option<(Self, [u32; 3])> {
        let row_groups = height.div_ceil(1 << group.min(31));
        let rows = u64::from(row_groups) << group.min(31);
        let image = [rows, u64::from(width), u64::from(vectors)];
        let image = image.into_iter().try_fold(u64::from(depth), u64::checked_mul)?;
        if image > Self::MAX_CHUNK {
            return None;
        }
        let chunk = (limit.min(Self::MAX_CHUNK) / image.max(1)).clamp(1, outer.max(1));
        let chunks = outer.div_ceil(chunk).max(1);
        if chunks > MAX_GRID_Y {
            return None;
        }
        let blocks = (chunk * image).div_ceil(u64::from(threads.max(1))).max(1);
        let args = Self {
            vectors: DivisorArgs::new(vectors),
            width: DivisorArgs::new(width),
            row_groups: DivisorArgs::new(row_groups),
            depth: DivisorArgs::new(depth),
            height,
            group,
            outer,
            chunk: u32::try_from(chunk).ok()?,
        };
        Some((args, [u32::try_from(blocks).ok()?, chunks as u32, 1]))
    }
}

/// The cell of a thread.
#[derive(Clone, Copy, Debug)]
pub struct Cell<'k> {
    /// The image.
    pub outer: U64<'k>,
    /// Depth, row and column.
    pub position: [U32<'k>; 3],
    /// The vector of the cell.
    pub vector: U32<'k>,
    /// Whether there is such a cell.
    pub exists: Pred<'k>,
}

impl<'k> CellGrid<'k> {
    /// The thread's cell.
    #[track_caller]
    pub fn cell(self, k: K<'k>) -> Cell<'k> {
        k.on_behalf(|| {
            let thread = k.block_idx_x().mul_add(k.block_threads(), k.thread_idx());
            let (rest, vector) = self.vectors.divide(thread);
            let in_group = rest & ((k.lit(1u32) << self.group) - 1);
            let (rest, column) = self.width.divide(rest >> self.group);
            let (rest, group) = self.row_groups.divide(rest);
            let (image, depth) = self.depth.divide(rest);
            let row = (group << self.group) + in_group;
            let first = k.block_idx_y().mul_wide(self.chunk);
            let images = (self.outer - first).min(self.chunk.to_u64()).to_u32();
            let exists = image.lt(images) & row.lt(self.height);
            Cell { outer: first + image.to_u64(), position: [depth, row, column], vector, exists }
        })
    }
}

/// The cells that a thread visits along an axis: from `first` in steps of `step` below `end`.
#[derive(Clone, Copy, Debug)]
pub struct AxisRange<'k> {
    /// The first. Of a range that is visited at once it may be negative; what is, is not there.
    pub first: I32<'k>,
    /// The end, within the axis.
    pub end: I32<'k>,
    /// From one to the next.
    pub step: I32<'k>,
}

impl<'k> AxisRange<'k> {
    /// Number `i` of them, and whether there is one.
    #[track_caller]
    fn number(self, i: u32) -> (I32<'k>, Pred<'k>) {
        let at = if i == 0 { self.first } else { self.step.mul_add(i.cast_signed(), self.first) };
        (at, at.to_u32().lt(self.end.to_u32()))
    }

    #[track_caller]
    fn range(self, k: K<'k>, step: u32) -> Range<'k, i32> {
        let step = if step == 1 { self.step } else { self.step * step.cast_signed() };
        k.range(self.first, self.end, step)
    }
}

/// A visited cell.
#[derive(Clone, Copy, Debug)]
pub struct Visit<'k> {
    /// Depth, row and column.
    pub position: [I32<'k>; 3],
    /// Its first element for the thread.
    pub at: U64<'k>,
    /// Which row and column of those that are visited at once.
    pub number: [u32; 2],
    /// Whether it is there; `None` if it must be.
    inside: Option<Pred<'k>>,
}

impl<'k> Visit<'k> {
    /// The pointer to the thread's elements of the cell, whose loads give `fill` if it is not there.
    #[track_caller]
    pub fn of<S: Readable, E: Element>(&self, x: Ptr<'k, S, E>, fill: Fill) -> Ptr<'k, S, E> {
        let x = x.at(self.at);
        self.inside.map_or(x, |inside| x.only_where(inside, fill))
    }
}

/// Columns that a loop over a row visits at once, so that their loads are under way together.
const COLUMNS: u32 = 4;

/// A box of cells of an image that a thread visits, in order of depth, row and column.
#[derive(Clone, Copy, Debug)]
pub struct CellBox<'k> {
    /// The cells along depth, height and width.
    pub axes: [AxisRange<'k>; 3],
    /// Where they lie.
    pub image: Image<'k>,
    /// The thread's first element in the first pixel of the image.
    pub start: U64<'k>,
    /// Elements of its vectors.
    pub width: u32,
    /// At most so many rows, and as many columns, all of them visited at once; `None` for any number in loops.
    pub unrolled: Option<u32>,
}

impl<'k> CellBox<'k> {
    /// Folds `body` over the cells. `load` is recorded for several cells before `body` is for the first of them.
    #[track_caller]
    pub fn fold<L, C: Carry<'k>>(
        &self,
        k: K<'k>,
        init: C,
        load: impl Fn(Visit<'k>) -> L,
        body: impl Fn(C, Visit<'k>, L) -> C,
    ) -> C {
        let [depths, rows, columns] = self.axes;
        let apply = |state: C, visits: Vec<Visit<'k>>| {
            let loaded: Vec<_> = visits.into_iter().map(|visit| (visit, load(visit))).collect();
            loaded.into_iter().fold(state, |state, (visit, loaded)| body(state, visit, loaded))
        };
        k.fold(depths.range(k, 1), init, |depth, state| match self.unrolled {
            Some(n) => apply(state, k.on_behalf(|| self.square(depth, n))),
            None => k.fold(rows.range(k, 1), state, |row, state| {
                k.fold(columns.range(k, COLUMNS), state, |column, state| {
                    apply(state, k.on_behalf(|| self.part_of_row([depth, row, column])))
                })
            }),
        })
    }

    /// Elements between cells that are `step` cells of `vectors` vectors apart.
    fn pitch(&self, step: I32<'k>, vectors: U32<'k>) -> U64<'k> {
        (step.to_u32() * vectors).mul_wide(self.width)
    }

    /// The first `n` rows and columns.
    fn square(&self, depth: I32<'k>, n: u32) -> Vec<Visit<'k>> {
        let [_, rows, columns] = self.axes;
        let (down, right) =
            (self.pitch(rows.step, self.image.row), self.pitch(columns.step, self.image.pixel));
        let mut start = self.start + self.image.pixel_at([depth, rows.first, columns.first], self.width);
        let of_row: Vec<_> = (0..n).map(|i| columns.number(i)).collect();
        let mut all = Vec::new();
        for i in 0..n {
            let (row, row_there) = rows.number(i);
            start = if i > 0 { start + down } else { start };
            let mut at = start;
            for (&(column, column_there), j) in of_row.iter().zip(0..) {
                at = if j > 0 { at + right } else { at };
                let inside = Some(row_there & column_there);
                all.push(Visit { position: [depth, row, column], at, number: [i, j], inside });
            }
        }
        all
    }

    /// [`COLUMNS`] columns of a row from one that is there.
    fn part_of_row(&self, [depth, row, column]: [I32<'k>; 3]) -> Vec<Visit<'k>> {
        let columns = AxisRange { first: column, ..self.axes[2] };
        let right = self.pitch(columns.step, self.image.pixel);
        let mut at = self.start + self.image.pixel_at([depth, row, column], self.width);
        let visit = |j: u32| {
            let (column, there) = match j {
                0 => (column, None),
                _ => {
                    let (column, there) = columns.number(j);
                    (column, Some(there))
                }
            };
            at = if j > 0 { at + right } else { at };
            Visit { position: [depth, row, column], at, number: [0, j], inside: there }
        };
        (0..COLUMNS).map(visit).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(outer: u64, extents: [u32; 3], vectors: u32, group: u32) -> Option<(CellGridArgs, [u32; 3])> {
        CellGridArgs::over(outer, extents, vectors, group, 256, u64::MAX)
    }

    #[test]
    fn one_chunk_where_that_is_enough() {
        let (args, grid) = over(64, [1, 56, 56], 8, 2).expect("a grid");
        assert_eq!((args.chunk, grid), (64, [64 * 56 * 56 * 8 / 256, 1, 1]));
        // Rows are counted up to whole groups.
        let (args, grid) = over(1, [2, 5, 3], 1, 2).expect("a grid");
        assert_eq!((args.row_groups, args.height, grid), (DivisorArgs::new(2), 5, [1, 1, 1]));
    }

    #[test]
    fn chunks_have_whole_images() {
        let (args, grid) = over(100_000_000, [1, 10, 10], 1, 0).expect("a grid");
        assert_eq!(args.chunk, 21_474_826);
        assert_eq!(grid, [(2_147_482_600u32).div_ceil(256), 5, 1]);
        let (args, grid) = CellGridArgs::over(7, [1, 2, 3], 1, 0, 32, 13).expect("a grid");
        assert_eq!((args.chunk, grid), (2, [1, 4, 1]));
    }

    #[test]
    fn images_are_counted_in_vectors() {
        let args = ImageArgs::new([2, 3, 5], 7, 8).expect("small");
        assert_eq!(args, ImageArgs { height: 3, pixel: 7, row: 35, size: 2 * 3 * 5 * 7 * 8 });
        assert!(ImageArgs::new([1 << 10, 1 << 10, 1 << 10], 2, 8).is_none());
        assert_eq!(ImageArgs::new([1, 4, 4], 0, 8).expect("empty").size, 0);
    }

    #[test]
    fn images_that_no_chunk_holds_have_no_grid() {
        assert!(over(1, [1 << 11, 1 << 11, 1 << 9], 1, 0).is_none());
        assert!(over(u64::MAX, [1, 1 << 15, 1 << 15], 1, 0).is_none());
        assert_eq!(over(0, [1, 1, 1], 1, 0).expect("a grid").1, [1, 1, 1]);
    }
}
