//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::{CumsumDesc, DTYPES, OP, kernel, tuning};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, TARGETS};
use crate::plan;

/// The family.
pub(crate) const FAMILY: Family =
    Family { name: "cumsum", aliases: &[(OP, "prefix sum"), (OP, "scan")], entries, plan, kernels };

/// Elements of a row where nothing is said.
const ROW: usize = 4096;

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    vec![Entry { op: OP, direction: Direction::Forward, dtypes: &DTYPES, targets: &TARGETS }]
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let Asked { dtype, len, .. } = *asked;
    let o = &asked.options;
    let n = o.len().unwrap_or(len.clamp(1, ROW));
    let inner = o.inner().unwrap_or(1);
    let outer = o.rows().unwrap_or(len / n.saturating_mul(inner).max(1));
    let (exclusive, reverse) = (o.exclusive().is_some(), o.reverse().is_some());
    asked.plan(&CumsumDesc { dtype, outer, n, inner, exclusive, reverse })
}

/// Every kernel that a plan of `entry` can hold.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let mut out = Vec::new();
    for reverse in [false, true] {
        for config in tuning::all(dtype) {
            out.push(plan::recorded(OP, &kernel::Cumsum { dtype, config, reverse }, target)?);
        }
    }
    // Clearing knows no element type.
    if dtype == entry.dtypes[0] {
        out.push(plan::recorded(OP, &kernel::Clear, target)?);
    }
    Ok(out)
}
