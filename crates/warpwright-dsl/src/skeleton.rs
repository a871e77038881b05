//! Whole-kernel patterns.

use crate::context::K;
use crate::error::IssueKind;
use crate::float::Float;
use crate::index::{Index, IntoIndex};
use crate::lanes::Lanes;
use crate::mem::{Access, Element, Fill, FixedElement, Ptr, Readable};
use crate::reg::{Reg, U32, U64};
use crate::warp::WARP;

/// Most blocks of a grid along x.
const MAX_GRID_X: u64 = (1 << 31) - 1;

/// One vector of `width` consecutive elements per thread, no loop over the grid: the fastest way through memory that is
/// known for elementwise work. `body` is recorded twice, for whole vectors and, with width 1, for the elements of a last
/// vector that `n` cuts short; it receives the index of its first element and the number of elements.
///
/// Launch it with [`elementwise_grid`]. Pointers must be aligned for accesses of `width` elements.
#[track_caller]
pub fn elementwise<'k>(k: K<'k>, n: U64<'k>, width: u32, body: impl Fn(Index<'k>, u32)) {
    let (index, first) = k.on_behalf(|| {
        let per_block = k.block_threads().saturating_mul(width);
        let index = Index::affine(k, (k.block_idx_x(), per_block), (k.thread_idx(), width));
        (index, index.to_u64())
    });
    if width == 1 {
        k.if_(first.lt(n), || body(index, 1));
        return;
    }
    let whole = k.on_behalf(|| (first + u64::from(width)).le(n));
    k.if_else(
        whole,
        || body(index, width),
        || k.for_each(k.range(first, n, 1), |i| body(i.into_index(k), 1)),
    );
}

/// For kernels whose blocks take `per_block` elements each, in order: `body` is recorded twice, with `false` for the blocks
/// that lie before `n` as a whole, which need no bounds, and with `true` for one that `n` may cut short. The choice is the
/// same for all threads of a block.
#[track_caller]
pub fn bounded_blocks<'k>(k: K<'k>, n: U64<'k>, per_block: u32, body: impl Fn(bool)) {
    let whole = k.on_behalf(|| (k.block_idx_x().mul_wide(per_block) + u64::from(per_block)).le(n));
    k.if_else(whole, || body(false), || body(true));
}

/// Columns that a block of [`column_sums`] adds up, one for each thread along x.
pub const COLUMN_SUM_LANES: u32 = WARP;

/// Rows that a thread of [`column_sums`] loads before it adds.
const ROWS_IN_FLIGHT: u32 = 8;

/// Sums of the columns of a matrix of `rows` x `columns` in row-major order: the second step of a gradient whose blocks
/// have left one row of partial sums each. The order of the additions depends on the block alone. The blocks are
/// [`COLUMN_SUM_LANES`] x any power of two threads, one for every [`COLUMN_SUM_LANES`] columns along x of the grid;
/// `emit` is recorded once, for the thread that has the sum of a column.
#[track_caller]
pub fn column_sums<'k, A, S, E>(
    k: K<'k>,
    partials: Ptr<'k, S, E>,
    rows: U32<'k>,
    columns: U64<'k>,
    emit: impl FnOnce(U64<'k>, Reg<'k, A>),
) where
    A: Float + FixedElement + Access<A>,
    S: Readable,
    E: Element + Access<A>,
{
    let (column, mine, sum) = k.on_behalf(|| {
        let [x, depth, z] = k.block_dim();
        if x != COLUMN_SUM_LANES || z != 1 || !depth.is_power_of_two() {
            k.issue(IssueKind::Block { dim: [x, depth, z] });
        }
        let (lane, strip) = (k.thread_idx_x(), k.thread_idx_y());
        let column = k.block_idx_x().mad_wide(x, lane.to_u64());
        let inside = column.lt(columns);
        // Rows in flight at once; a row beyond the last adds nothing.
        let zero = k.lit::<A>(0.0);
        let of_strip = k.fold(k.range(strip, rows, depth * ROWS_IN_FLIGHT), zero, |first, sum| {
            let load = |i: u32| {
                let row = first + i * depth;
                // The first is there, or the loop had ended.
                let there = if i == 0 { inside } else { inside & row.lt(rows) };
                k.if_else(there, || partials.at(row.to_u64() * columns + column).get::<A>(), || zero)
            };
            (0..ROWS_IN_FLIGHT).map(load).collect::<Vec<_>>().into_iter().fold(sum, |sum, row| sum + row)
        });
        let slots = k.shared::<A>(x * depth);
        slots.at(strip * x + lane).set(of_strip);
        k.barrier();
        let strips: Lanes<'k, A> = (0..depth).map(|strip| slots.at(lane + strip * x).get()).collect();
        (column, strip.eq(0) & inside, strips.sum().unwrap_or(of_strip))
    });
    k.if_(mine, || emit(column, sum));
}

/// Parts whose sums a thread of [`sum_of_parts`] loads before it adds.
const PARTS_IN_FLIGHT: u32 = 4;

/// The sum of `width` elements of each of `parts` parts, in order; zeros if there are none. Part `i` begins `i part`
/// elements behind `from`. For few parts of many elements; where parts are many, threads share them in [`column_sums`].
/// The pointer must be aligned for accesses of `width` elements, in every part.
#[track_caller]
pub fn sum_of_parts<'k, A, S, E>(
    from: Ptr<'k, S, E>,
    (parts, part): (U32<'k>, U64<'k>),
    width: u32,
) -> Lanes<'k, A>
where
    A: Float + FixedElement + Access<A>,
    S: Readable,
    E: Element + Access<A>,
{
    let k = parts.k();
    k.on_behalf(|| {
        let zero: Lanes<'k, A> = (0..width).map(|_| k.lit::<A>(0.0)).collect();
        k.fold(k.range(0, parts, PARTS_IN_FLIGHT), zero, |first, sum| {
            let load = |i: u32| {
                let number = first + i;
                let at = from.at(number.to_u64() * part);
                at.only_where(number.lt(parts), Fill::Zero).load::<A>(width)
            };
            let loaded: Vec<_> = (0..PARTS_IN_FLIGHT).map(load).collect();
            loaded.into_iter().fold(sum, |sum, next| sum.zip(next, |a, b| a + b))
        })
    })
}

/// The grid that covers `n` elements with blocks of `threads` threads of `width` elements; `None` if it would be larger
/// than a device allows. Empty work still needs one block.
pub fn elementwise_grid(n: u64, threads: u32, width: u32) -> Option<[u32; 3]> {
    let per_block = u64::from(threads).checked_mul(u64::from(width)).filter(|p| *p > 0)?;
    let blocks = n.div_ceil(per_block).max(1);
    (blocks <= MAX_GRID_X).then_some([u32::try_from(blocks).ok()?, 1, 1])
}
