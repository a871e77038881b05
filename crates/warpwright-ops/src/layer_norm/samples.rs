//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::{RowNorm, RowNormBackwardDesc, RowNormDesc, tuning};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, TARGETS};
use crate::plan::Real;

/// The family.
pub(crate) const FAMILY: Family = Family { name: "layer_norm", aliases: &[], entries, plan, kernels };

/// Elements of a row where nothing is said.
const ROW: usize = 4096;

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    let both = |norm: RowNorm| {
        [Direction::Forward, Direction::Backward].map(|direction| Entry {
            op: norm.name(),
            direction,
            dtypes: &DType::FLOATS,
            targets: &TARGETS,
        })
    };
    RowNorm::ALL.into_iter().flat_map(both).collect()
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
    let norm = RowNorm::from_name(entry.op)
        .ok_or_else(|| PlanError::UnknownOperation { name: entry.op.to_owned() })?;
    let forward = entry.direction == Direction::Forward;
    let vectors =
        if forward { tuning::forward_vectors(dtype, target) } else { tuning::backward_vectors(norm, dtype) };
    let mut found: Vec<Kernel> = Vec::new();
    for layout in vectors.into_iter().chain(tuning::scalars()) {
        for parameters in [true, false] {
            let steps = if forward {
                let desc = RowNormDesc {
                    norm,
                    dtype,
                    rows: 1,
                    len: 1,
                    eps: Real::new(1e-5),
                    weight: parameters,
                    bias: false,
                    residual: false,
                    statistics: false,
                };
                desc.plan_with(target, &[layout])?.steps().to_vec()
            } else {
                let desc = RowNormBackwardDesc {
                    norm,
                    dtype,
                    rows: 1,
                    len: 1,
                    weight: parameters,
                    bias: false,
                    dz: false,
                };
                // Few rows of partial sums, and many.
                let desc = |rows| RowNormBackwardDesc { rows, ..desc.clone() };
                let many = desc(1 << 20).plan_with(target, &[(layout, 1 << 10)])?;
                let few = desc(1).plan_with(target, &[(layout, 1)])?;
                [few.steps(), many.steps()].concat()
            };
            for step in steps {
                // The sums of the parameters are the same kernel for both norms.
                let foreign = norm == RowNorm::Rms && step.kernel().name().starts_with("norm_parameter");
                if !foreign && found.iter().all(|k| k.name() != step.kernel().name()) {
                    found.push(step.kernel().clone());
                }
            }
        }
    }
    Ok(found)
}
