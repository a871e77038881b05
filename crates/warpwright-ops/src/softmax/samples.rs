//! The family's rows of the catalogue, and its descriptors from options.

use super::{MaskedSoftmaxDesc, Softmax, SoftmaxBackwardDesc, SoftmaxDesc};
use crate::PlanError;
use crate::catalogue::{Asked, Family, Planned};
use crate::plan::Real;

/// The family.
pub(crate) const FAMILY: Family =
    Family { name: "softmax", aliases: &[], entries: super::entries, plan, kernels: super::kernels };

/// Elements of a row where nothing is said.
const ROW: usize = 4096;

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let function = Softmax::from_name(asked.entry.op).ok_or_else(|| asked.unknown())?;
    let o = &asked.options;
    let n = o.len().unwrap_or(asked.len.clamp(1, ROW));
    let inner = o.inner().unwrap_or(1);
    let outer = o.rows().unwrap_or(asked.len / n.saturating_mul(inner).max(1));
    let (dtype, scale) = (asked.dtype, Real::new(1.0));
    if asked.is_backward() {
        return asked.plan(&SoftmaxBackwardDesc { function, dtype, outer, n, inner, scale });
    }
    let softmax = SoftmaxDesc { function, dtype, outer, n, inner, scale };
    match o.mask() {
        None => asked.plan(&softmax),
        Some(mask) => asked.plan(&MaskedSoftmaxDesc { softmax, mask, repeat: 1, period: 1 }),
    }
}
