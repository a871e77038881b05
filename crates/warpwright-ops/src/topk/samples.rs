//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::{OP, TopkBackwardDesc, TopkDesc, kernel, tuning};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned};
use crate::plan;

/// The family.
pub(crate) const FAMILY: Family = Family { name: "topk", aliases: &[(OP, "top-k")], entries, plan, kernels };

/// Elements of a row, and how many of them are wanted, where nothing is said.
const ROW: usize = 256;
const K: usize = 8;

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    Entry::both(OP).to_vec()
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let Asked { dtype, len, .. } = *asked;
    let o = &asked.options;
    let n = o.len().unwrap_or(len.clamp(1, ROW));
    let rows = o.rows().unwrap_or(len / n.max(1));
    let k = o.k().unwrap_or(K.min(n));
    let forward = TopkDesc { dtype, rows, n, k, largest: true };
    asked.either(&forward, &TopkBackwardDesc { dtype, rows, n, k })
}

/// Every kernel that a plan of `entry` can hold.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let mut out = Vec::new();
    if entry.direction == Direction::Backward {
        for width in [tuning::vector(dtype), 1] {
            out.push(plan::recorded(OP, &kernel::Backward { dtype, width }, target)?);
        }
        return Ok(out);
    }
    for (first, configs) in [true, false].into_iter().zip(tuning::all(dtype)) {
        for config in configs {
            out.push(plan::recorded(OP, &kernel::Topk { dtype, config, first }, target)?);
        }
    }
    Ok(out)
}
