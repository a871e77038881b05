//! Attention on sm_90a: one warp brings tiles to shared memory by tensor copies, groups of four warps multiply them with `wgmma`.

pub(in crate::attention) mod backward;
pub(in crate::attention) mod finish;
pub(in crate::attention) mod forward;
pub(in crate::attention) mod fused;
pub(in crate::attention) mod layouts;
mod lists;
mod order;

use warpwright_dsl::prelude::*;
use warpwright_dsl::{In, Major, Mbarrier, PanelTile, TensorMapArg, TensorMapParam};
use warpwright_ptx::Target;
use warpwright_ptx::kernel::Kernel;

use crate::PlanError;
use crate::attention::OP;
use crate::attention::score::Origin;
use crate::plan::Layout;

pub use layouts::{Wgmma, WgmmaFused, WgmmaSweep, WgmmaSweeps};

/// Threads of a warpgroup, and its rows of a product.
pub(in crate::attention) const GROUP: u32 = 128;
pub(in crate::attention) const GROUP_ROWS: u32 = 64;
/// Elements of an access to rows in global memory.
pub(in crate::attention) const VECTOR: u32 = 8;
/// Lanes that share a row of a product.
pub(in crate::attention) const LANES: u32 = 4;
/// Bytes that distances in a tensor map are multiples of, and what they are below.
const STEP: u64 = 16;
const FARTHEST: u64 = 1 << 40;

/// Bytes from one row, head and batch of `layout`, of elements of so many bytes, to the next, if tensor maps can describe it.
fn distances(layout: &Layout, size: usize) -> Option<[u64; 3]> {
    let of = |axis: usize| {
        if layout.shape[axis] == 1 {
            return Some(STEP);
        }
        let bytes = u64::try_from(layout.strides[axis]).ok()?.checked_mul(size as u64)?;
        (bytes > 0 && bytes.is_multiple_of(STEP) && bytes < FARTHEST).then_some(bytes)
    };
    let there = !layout.shape.contains(&0) && layout.shape.iter().all(|n| u32::try_from(*n).is_ok());
    if there { Some([of(1)?, of(2)?, of(0)?]) } else { None }
}

/// Whether tensor copies reach tensors of 16-bit elements with these layouts.
pub(in crate::attention) fn reach(layouts: &[Layout]) -> bool {
    reach_elements(DType::F16, layouts)
}

/// The same of elements of `dtype`.
pub(in crate::attention) fn reach_elements(dtype: DType, layouts: &[Layout]) -> bool {
    layouts.iter().all(|layout| distances(layout, dtype.bytes()).is_some())
}

/// The map of a tensor `[batch, sequence, heads, head_dim]` whose boxes fill `tile`; its further coordinates are head and batch.
pub(in crate::attention) fn boxes(
    tensor: &In<Elem>,
    layout: &Layout,
    tile: PanelTile,
) -> Result<TensorMapArg, PlanError> {
    let unreached = || PlanError::Parameter {
        op: OP,
        parameter: "layout",
        got: format!("{layout:?}"),
        expected: "one that tensor maps can describe",
    };
    let [row, head, batch] = distances(layout, tile.dtype.bytes()).ok_or_else(unreached)?;
    let [batches, rows, heads, width] = layout.shape.map(|extent| extent as u64);
    let extents = match tile.major {
        Major::K => (rows, width),
        Major::Mn => (width, rows),
    };
    Ok(TensorMapArg::over(tensor, tile.map(extents, row, &[(heads, head), (batches, batch)])))
}

/// A kernel with instructions of one architecture alone.
pub(in crate::attention) fn recorded<D: KernelDef>(def: &D, target: Target) -> Result<Kernel, PlanError> {
    crate::plan::recorded(OP, def, Target::specific(target.sm))
}

/// Rows of one head of a sequence, as tensor copies reach them.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct HeadBoxes<'k> {
    from: TensorMapParam<'k>,
    /// The row of the tensor that is the sequence's first.
    first: U32<'k>,
    head: U32<'k>,
    batch: U32<'k>,
}

impl<'k> HeadBoxes<'k> {
    pub(in crate::attention) fn new(from: TensorMapParam<'k>, origin: Origin<'k>, head: U32<'k>) -> Self {
        let none = head.k().lit(0u32);
        let (first, batch) = match origin {
            Origin::Batch(batch) => (none, batch),
            Origin::Row(row) => (row.to_u32(), none),
        };
        Self { from, first, head, batch }
    }

    /// Starts the copies that fill `tile` at `to` with rows from `row` on.
    pub(in crate::attention) fn fetch(self, tile: PanelTile, to: U32<'k>, row: I32<'k>, done: Mbarrier<'k>) {
        let (row, start) = (self.first + row.to_u32(), row.k().lit(0u32));
        let at = match tile.major {
            Major::K => (row, start),
            Major::Mn => (start, row),
        };
        tile.fetch(self.from, to, at, &[self.head, self.batch], done);
    }
}

/// Rows and columns of a thread in the sums of its warpgroup: row of each of two slots, first column, and how far from it the
/// columns lie. `row` is the warpgroup's first.
pub(in crate::attention) fn place<'k>(k: K<'k>, row: U32<'k>, columns: u32) -> super::engine::Place<'k> {
    let (of_lane, first) = k.accumulator_origin();
    let row = row + (k.warp_idx() & 3) * 16 + of_lane;
    let columns = (0..columns / 8).flat_map(|block| [8 * block, 8 * block + 1]).collect();
    super::engine::Place { rows: vec![row, row + 8], first, columns }
}

/// Transposes four blocks of eight columns among the four lanes of a row: a lane has two elements of each block before, and all eight of
/// the block with its number after.
pub(in crate::attention) fn gathered<'k>(lane: U32<'k>, words: [U32<'k>; 4]) -> [U32<'k>; 4] {
    let mut words = words;
    for bit in [1u32, 2] {
        let upper = (lane & bit).ne(0);
        for low in (0..4usize).filter(|low| low & bit as usize == 0) {
            let high = low | bit as usize;
            let sent = upper.select(words[low], words[high]);
            let got = sent.shfl_xor(bit);
            words[low] = upper.select(got, words[low]);
            words[high] = upper.select(words[high], got);
        }
    }
    words
}
