//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::{EmbeddingBackwardDesc, EmbeddingDesc, OP, kernel, sort, tuning};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned};
use crate::plan;

/// The family.
pub(crate) const FAMILY: Family = Family {
    name: "embedding",
    aliases: &[(OP, "index_select"), (OP, "gather rows")],
    entries,
    plan,
    kernels,
};

/// Rows of the table and elements of a row where nothing is said.
const ROWS: usize = 32768;
const DIM: usize = 1024;

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    Entry::both(OP).to_vec()
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let o = &asked.options;
    let dim = o.len().unwrap_or(DIM);
    let forward = EmbeddingDesc {
        dtype: asked.dtype,
        index: o.index_dtype().map_or(DType::I64, |dtype| dtype.0),
        num_embeddings: o.rows().unwrap_or(ROWS),
        dim,
        count: o.batch().unwrap_or((asked.len / dim.max(1)).max(1)),
    };
    if !asked.is_backward() {
        return asked.plan(&forward);
    }
    asked.plan(&EmbeddingBackwardDesc { forward, padding_idx: None, scale_grad_by_freq: false })
}

/// Every kernel that a plan of `entry` can hold.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let mut out = Vec::new();
    if entry.direction == Direction::Forward {
        for width in tuning::all_widths(dtype) {
            out.push(plan::recorded(OP, &kernel::Gather { dtype, width }, target)?);
        }
        return Ok(out);
    }
    // Sorting knows no element type.
    if dtype == entry.dtypes[0] {
        for first in [true, false] {
            out.push(plan::recorded(OP, &sort::Count { first }, target)?);
            out.push(plan::recorded(OP, &sort::Scatter { first }, target)?);
        }
        out.push(plan::recorded(OP, &sort::Starts, target)?);
    }
    for width in tuning::all_widths(dtype) {
        out.push(plan::recorded(OP, &kernel::Parts { dtype, width }, target)?);
        out.push(plan::recorded(OP, &kernel::Rows { dtype, width }, target)?);
    }
    Ok(out)
}
