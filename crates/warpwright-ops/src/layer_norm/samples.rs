//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::{RowNorm, RowNormBackwardDesc, RowNormDesc, tuning};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, distinct};
use crate::plan::{Operation, Plan, Real};

/// The family.
pub(crate) const FAMILY: Family = Family { name: "layer_norm", aliases: &[], entries, plan, kernels };

/// Elements of a row where nothing is said.
const ROW: usize = 4096;

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    RowNorm::ALL.into_iter().flat_map(|norm| Entry::both(norm.name())).collect()
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let norm = RowNorm::from_name(asked.entry.op).ok_or_else(|| asked.unknown())?;
    let o = &asked.options;
    let row = o.len().unwrap_or(asked.len.clamp(1, ROW));
    let rows = o.rows().unwrap_or(asked.len / row.max(1));
    let weight = o.no_affine().is_none();
    let bias = weight && norm == RowNorm::Layer;
    let residual = o.residual().is_some();
    let dtype = asked.dtype;
    if asked.is_backward() {
        let desc = RowNormBackwardDesc { norm, dtype, rows, len: row, weight, bias, dz: residual };
        return asked.plan(&desc);
    }
    let (eps, statistics) = (Real::new(norm.default_eps(dtype)), o.statistics().is_some());
    asked.plan(&RowNormDesc { norm, dtype, rows, len: row, eps, weight, bias, residual, statistics })
}

/// Every kernel that a plan of `entry` can hold.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    fn planned<O: Operation>(plan: Result<Plan<O>, PlanError>) -> Result<Planned, PlanError> {
        plan.map(Planned::from)
    }
    let norm = RowNorm::from_name(entry.op)
        .ok_or_else(|| PlanError::UnknownOperation { name: entry.op.to_owned() })?;
    let forward = entry.direction == Direction::Forward;
    let vectors =
        if forward { tuning::forward_vectors(dtype, target) } else { tuning::backward_vectors(norm, dtype) };
    let layouts = vectors.into_iter().chain(tuning::scalars());
    let plans = layouts.flat_map(|layout| [true, false].map(|weight| (layout, weight)));
    let plans = plans.flat_map(|(layout, weight)| {
        let (rows, len, bias, residual, statistics) = (1, 1, false, false, false);
        if forward {
            let eps = Real::new(1e-5);
            let desc = RowNormDesc { norm, dtype, rows, len, eps, weight, bias, residual, statistics };
            return vec![planned(desc.plan_with(target, &[layout]))];
        }
        // Few rows of partial sums, and many.
        let sizes = [(1, 1), (1 << 20, 1 << 10)];
        let plan = |(rows, partial_rows)| {
            let desc = RowNormBackwardDesc { norm, dtype, rows, len, weight, bias, dz: false };
            planned(desc.plan_with(target, &[(layout, partial_rows)]))
        };
        Vec::from(sizes.map(plan))
    });
    let mut found = distinct(plans)?;
    // The sums of the parameters are the same kernel for both norms.
    found.retain(|kernel| norm == RowNorm::Layer || !kernel.name().starts_with("norm_parameter"));
    Ok(found)
}
