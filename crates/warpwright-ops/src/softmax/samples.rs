//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::kernel::Common;
use super::{MaskKind, MaskedSoftmaxDesc, Softmax, SoftmaxBackwardDesc, SoftmaxDesc, kernel, passes, tuning};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned};
use crate::plan::{self, Real};

/// The family.
pub(crate) const FAMILY: Family = Family { name: "softmax", aliases: &[], entries, plan, kernels };

/// Elements of a row where nothing is said.
const ROW: usize = 4096;

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    Softmax::ALL.into_iter().flat_map(|function| Entry::both(function.name())).collect()
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let function = Softmax::from_name(asked.entry.op).ok_or_else(|| asked.unknown())?;
    let o = &asked.options;
    let n = o.len().unwrap_or(asked.len.clamp(1, ROW));
    let inner = o.inner().unwrap_or(1);
    let outer = o.rows().unwrap_or(asked.len / n.saturating_mul(inner).max(1));
    let (dtype, scale) = (asked.dtype, Real::new(1.0));
    if asked.is_backward() {
        return asked
            .plan(&SoftmaxBackwardDesc { forward: SoftmaxDesc { function, dtype, outer, n, inner, scale } });
    }
    let softmax = SoftmaxDesc { function, dtype, outer, n, inner, scale };
    match o.mask() {
        None => asked.plan(&softmax),
        Some(mask) => asked.plan(&MaskedSoftmaxDesc { softmax, mask, repeat: 1, period: 1 }),
    }
}

/// Every kernel that a plan of `entry` can hold.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let Some(function) = Softmax::from_name(entry.op) else {
        return Err(PlanError::UnknownOperation { name: entry.op.to_owned() });
    };
    let mut out = Vec::new();
    for config in tuning::all(dtype, entry.direction, target) {
        let common = Common { log: function == Softmax::Log, dtype, config };
        out.push(match entry.direction {
            Direction::Forward => plan::recorded(function.name(), &kernel::Forward(common), target)?,
            Direction::Backward => plan::recorded(function.name(), &kernel::Backward(common), target)?,
        });
    }
    if entry.direction == Direction::Forward {
        for config in tuning::all_masked(dtype) {
            let common = Common { log: function == Softmax::Log, dtype, config };
            for mask in [MaskKind::Additive, MaskKind::Boolean] {
                let def = passes::MaskedForward { common, mask };
                out.push(plan::recorded(function.name(), &def, target)?);
            }
        }
    }
    Ok(out)
}
