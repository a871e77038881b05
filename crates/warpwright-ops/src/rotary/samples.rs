//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::kernel::Rotate;
use super::{OP, RotaryBackwardDesc, RotaryDesc, RotaryPositions, RotaryTables, tuning};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned};
use crate::plan::{self, Layout};

/// The family.
pub(crate) const FAMILY: Family =
    Family { name: "rotary", aliases: &[(OP, "rotary"), (OP, "rope")], entries, plan, kernels };

/// Heads and elements of a head where nothing is said.
const HEADS: usize = 8;
const HEAD_DIM: usize = 128;

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    Entry::both(OP).to_vec()
}

/// Plans what is asked for: queries and keys, `[batch, steps, heads, head_dim]`.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let o = &asked.options;
    let head_dim = o.head_dim().unwrap_or(HEAD_DIM);
    let heads = o.heads().unwrap_or(HEADS);
    let num_kv_heads = o.num_kv_heads().unwrap_or(heads);
    let batch = o.batch().unwrap_or(1);
    let of_step = batch.saturating_mul(heads).saturating_mul(head_dim).max(1);
    let steps = o.steps().unwrap_or((asked.len / of_step).max(1));
    let [q, k] = [heads, num_kv_heads].map(|heads| Layout::contiguous([batch, steps, heads, head_dim]));
    let forward = RotaryDesc {
        dtype: asked.dtype,
        q,
        k: Some(k),
        q_rotated: q,
        k_rotated: Some(k),
        pairing: o.pairing().unwrap_or_default(),
        rotary_dim: o.rotary_dim().unwrap_or(head_dim),
        tables: tables(asked, steps),
        positions: o.index_dtype().map(|dtype| RotaryPositions { dtype: dtype.0, batch }),
    };
    asked.either(&forward, &RotaryBackwardDesc { forward: forward.clone() })
}

/// The tables that are asked for, of so many positions.
pub(crate) fn tables(asked: &Asked<'_>, rows: usize) -> RotaryTables {
    let o = &asked.options;
    let dtype = o.table_dtype().map_or(asked.dtype, |dtype| dtype.0);
    RotaryTables { dtype, batch: 1, rows, repeated: o.repeated_tables().is_some() }
}

/// Every way to rotate elements of a type.
pub(crate) fn rotations(dtype: DType) -> impl Iterator<Item = Rotate> {
    let tables = if dtype == DType::F32 { vec![dtype] } else { vec![dtype, DType::F32] };
    let of = move |table| tuning::all(dtype).into_iter().map(move |config| Rotate { dtype, table, config });
    tables.into_iter().flat_map(of)
}

/// Every kernel that a plan of `entry` can hold; both directions have the same.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    if entry.direction == Direction::Backward {
        return Ok(Vec::new());
    }
    rotations(dtype).map(|rotate| plan::recorded(OP, &rotate, target)).collect()
}
