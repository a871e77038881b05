//! Whole-kernel patterns.

use crate::context::K;
use crate::index::{Index, IntoIndex};
use crate::reg::U64;

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

/// The grid that covers `n` elements with blocks of `threads` threads of `width` elements; `None` if it would be larger
/// than a device allows. Empty work still needs one block.
pub fn elementwise_grid(n: u64, threads: u32, width: u32) -> Option<[u32; 3]> {
    let per_block = u64::from(threads).checked_mul(u64::from(width)).filter(|p| *p > 0)?;
    let blocks = n.div_ceil(per_block).max(1);
    (blocks <= MAX_GRID_X).then_some([u32::try_from(blocks).ok()?, 1, 1])
}
