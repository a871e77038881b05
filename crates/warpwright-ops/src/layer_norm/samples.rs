//! The family's rows of the catalogue, and its descriptors from options.

use super::{RowNorm, RowNormBackwardDesc, RowNormDesc};
use crate::PlanError;
use crate::catalogue::{Asked, Family, Planned};
use crate::plan::Real;

/// The family.
pub(crate) const FAMILY: Family =
    Family { name: "layer_norm", aliases: &[], entries: super::entries, plan, kernels: super::kernels };

/// Elements of a row where nothing is said.
const ROW: usize = 4096;

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
