//! The kernels. Elements are moved as the bytes they are, so that one kernel serves every type of a size.

use warpwright_dsl::divide::{DivisorArgs, indices};
use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;
use warpwright_dsl::{FixedElement, Space};

use super::tuning::{THREADS, Tile};
use crate::elementwise::walk::MAX_OUTER;

kernel_args! {
    /// Units of the innermost dimension of two tensors, which may have any steps.
    pub(super) struct RowsArgs => RowsParams {
        x: In<u8>,
        y: Out<u8>,
        /// Bytes from one index of a tensor to the next, from the innermost dimension outwards.
        x_steps: [u64; MAX_OUTER + 1],
        y_steps: [u64; MAX_OUTER + 1],
        /// Units of the innermost dimension, and extents from there outwards.
        extents: [DivisorArgs; MAX_OUTER],
        units: u32,
    }
}

/// Dimensions outside of those that a tile has.
pub(super) const TILE_OUTER: usize = MAX_OUTER - 1;

kernel_args! {
    /// A matrix of `extents` that `x` has by columns and `y` by rows, for every index of the dimensions outside.
    pub(super) struct TilesArgs => TilesParams {
        x: In<u8>,
        y: Out<u8>,
        extents: [u32; 2],
        /// Bytes from one column of `x` and from one row of `y` to the next.
        x_step: u64,
        y_step: u64,
        /// The same of the dimensions outside, innermost first.
        x_outer: [u64; TILE_OUTER],
        y_outer: [u64; TILE_OUTER],
        /// Tiles along both dimensions, and all extents outside but the last.
        tiles: [DivisorArgs; 2],
        outer: [DivisorArgs; TILE_OUTER - 1],
    }
}

/// `place` moved by so many steps along each dimension.
fn moved<'k, S: Space>(place: Ptr<'k, S, u8>, indices: &[U32<'k>], steps: &[U64<'k>]) -> Ptr<'k, S, u8> {
    indices.iter().zip(steps).fold(place, |place, (index, step)| place.at(index.to_u64() * *step))
}

/// One unit a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    /// Bytes.
    pub(super) unit: u32,
    /// Dimensions outside of the innermost one, up to [`MAX_OUTER`].
    pub(super) outer: usize,
}

impl KernelDef for Rows {
    type Args = RowsArgs;

    fn spec(&self) -> KernelSpec {
        let Self { unit, outer } = self;
        KernelSpec::new(format!("copy_rows_b{unit}_{outer}"), BlockDim::x(THREADS))
    }

    fn build<'k>(&self, k: K<'k>, a: RowsParams<'k>) {
        k.after_previous_grid();
        let unit = k.block_idx_x().mul_add(THREADS, k.thread_idx());
        k.if_(unit.lt(a.units), || {
            let indices = indices(unit, &a.extents[..self.outer]);
            let (x, y) = (moved(a.x, &indices, &a.x_steps), moved(a.y, &indices, &a.y_steps));
            match self.unit {
                1 => y.set(x.get::<u32>()),
                2 => y.cast::<u16>().set(x.cast::<u16>().get::<u32>()),
                bytes => y.cast::<u32>().store(x.cast::<u32>().load::<u32>(bytes / 4)),
            }
        });
    }
}

/// One tile a block: loaded by columns of `x`, stored by rows of `y`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles(pub(super) Tile);

/// The elements of a tile that a thread has: `fast` of them side by side, further ones `slow` apart in rounds.
fn rounds(fast: u32, slow: u32) -> impl Iterator<Item = [u32; 2]> {
    let (columns, rows) = ((fast / THREADS).max(1), (THREADS / fast).max(1));
    (0..columns).flat_map(move |column| (0..slow / rows).map(move |row| [column * THREADS, row * rows]))
}

/// A tile of a matrix in global memory, as the threads of a block go through it.
struct Side<'k, S> {
    place: Ptr<'k, S, u8>,
    /// Bytes from one slow index to the next.
    step: U64<'k>,
    /// Elements that are there along the fast and the slow dimension.
    there: [U32<'k>; 2],
    /// The thread's first element.
    first: [U32<'k>; 2],
}

impl<'k, S: Space> Side<'k, S> {
    /// Calls `body` for every element of the thread, of `bytes`, with its place and how far it is from the first one in both dimensions.
    fn each(&self, (bytes, fast, slow): (u32, u32, u32), mut body: impl FnMut(Ptr<'k, S, u8>, [u64; 2])) {
        let start = self.place.at(self.first[0] * bytes).at(self.first[1].to_u64() * self.step);
        let apart = self.step * u64::from((THREADS / fast).max(1));
        let mut at = start;
        for [column, row] in rounds(fast, slow) {
            at = if row == 0 { start.at(u64::from(column * bytes)) } else { at.at(apart) };
            let index = [self.first[0] + column, self.first[1] + row];
            let there = index[0].lt(self.there[0]) & index[1].lt(self.there[1]);
            body(at.only_where(there, Fill::Zero), [column, row].map(u64::from));
        }
    }
}

impl Tiles {
    /// The tile's sides in the tensors.
    fn sides<'k>(self, k: K<'k>, a: TilesParams<'k>) -> (Side<'k, Read>, Side<'k, Write>) {
        let Tile { element, a: of_a, b: of_b, pairs } = self.0;
        let mut extents = a.tiles.to_vec();
        extents.extend(a.outer);
        let all = indices(k.block_idx_x(), &extents);
        let [first_a, first_b] = [all[0] * of_a, all[1] * of_b];
        let [left_a, left_b] = [a.extents[0] - first_a, a.extents[1] - first_b];
        let place = moved(a.x, &all[2..], &a.x_outer).at(first_a.mul_wide(element));
        let x = place.at(first_b.to_u64() * a.x_step);
        let place = moved(a.y, &all[2..], &a.y_outer).at(first_b.mul_wide(element));
        let y = place.at(first_a.to_u64() * a.y_step);
        let thread = |fast: u32| [k.thread_idx() & (fast - 1), k.thread_idx() >> fast.trailing_zeros()];
        let (fast_a, fast_b) = if pairs { (of_a / 2, of_b / 2) } else { (of_a, of_b) };
        let half = |extent: U32<'k>| if pairs { extent >> 1 } else { extent };
        (
            Side {
                place: x,
                step: a.x_step,
                there: [half(left_a), left_b],
                first: thread(fast_a.min(THREADS)),
            },
            Side {
                place: y,
                step: a.y_step,
                there: [half(left_b), half(left_a)],
                first: thread(fast_b.min(THREADS)),
            },
        )
    }

    fn single<'k, E, R: Number>(self, k: K<'k>, (x, y): (Side<'k, Read>, Side<'k, Write>))
    where
        E: FixedElement + Access<R>,
    {
        let Tile { element, a, b, .. } = self.0;
        // Columns begin in banks of their own: a word apart, or four elements where a warp has four of each.
        let pitch = a + if a > THREADS { 4 } else { (4 / element).max(1) };
        let tile = k.shared::<E>(b * pitch);
        let [by_a, by_b] = [x.first[1].mul_add(pitch, x.first[0]), y.first[0].mul_add(pitch, y.first[1])];
        let [by_a, by_b] = [by_a, by_b].map(|first| tile.at(first));
        let pitch = u64::from(pitch);
        let mut loaded = Vec::new();
        x.each((element, a, b), |place, further| loaded.push((place.cast::<E>().get::<R>(), further)));
        for (value, [fast, slow]) in loaded {
            by_a.at(slow * pitch + fast).set(value);
        }
        k.barrier();
        y.each((element, b, a), |place, [fast, slow]| {
            place.cast::<E>().set(by_b.at(fast * pitch + slow).get::<R>());
        });
    }

    /// Two elements of 16 bits at a time: a thread turns squares of two by two. The rows of `x` with odd numbers lie behind the even ones,
    /// so that neighbouring threads read neighbouring rows.
    fn paired<'k>(self, k: K<'k>, (x, y): (Side<'k, Read>, Side<'k, Write>)) {
        let Tile { a, b, .. } = self.0;
        let pitch = a / 2 + 1;
        let odd = b / 2 * pitch;
        let tile = k.shared::<u32>(2 * odd);
        // Rounds are even numbers of rows apart.
        let [fast, slow] = x.first;
        let by_rows = tile.at((slow & 1).mul_add(odd, (slow >> 1).mul_add(pitch, fast)));
        let by_columns = tile.at(y.first[0].mul_add(pitch, y.first[1]));
        let [pitch, odd] = [pitch, odd].map(u64::from);
        let mut loaded = Vec::new();
        x.each((4, a / 2, b), |place, further| loaded.push((place.cast::<u32>().get::<u32>(), further)));
        for (value, [fast, slow]) in loaded {
            by_rows.at(slow / 2 * pitch + fast).set(value);
        }
        k.barrier();
        let two_rows = Side { step: y.step * 2u64, ..y };
        two_rows.each((4, b / 2, a / 2), |place, [fast, slow]| {
            let square = by_columns.at(fast * pitch + slow);
            let [upper, lower] = [square.get::<u32>(), square.at(odd).get::<u32>()];
            place.cast::<u32>().set(upper.permute(lower, 0x5410));
            place.at(y.step).cast::<u32>().set(upper.permute(lower, 0x7632));
        });
    }
}

impl KernelDef for Tiles {
    type Args = TilesArgs;

    fn spec(&self) -> KernelSpec {
        let Tile { element, a, b, pairs } = self.0;
        let by = if pairs { "_pairs" } else { "" };
        KernelSpec::new(format!("copy_tiles_b{element}_{a}x{b}{by}"), BlockDim::x(THREADS))
    }

    fn build<'k>(&self, k: K<'k>, a: TilesParams<'k>) {
        k.after_previous_grid();
        let sides = self.sides(k, a);
        match self.0.element {
            _ if self.0.pairs => self.paired(k, sides),
            1 => self.single::<u8, u32>(k, sides),
            2 => self.single::<u16, u32>(k, sides),
            4 => self.single::<u32, u32>(k, sides),
            _ => self.single::<u64, u64>(k, sides),
        }
    }
}
