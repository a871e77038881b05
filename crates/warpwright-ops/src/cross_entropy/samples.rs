//! The family's rows of the catalogue, and its descriptors from options.

use super::{CrossEntropyBackwardDesc, CrossEntropyDesc};
use crate::PlanError;
use crate::catalogue::{Asked, Family, Planned};
use crate::plan::Real;
use warpwright_ptx::DType;

/// The family.
pub(crate) const FAMILY: Family =
    Family { name: "cross_entropy", aliases: &[], entries: super::entries, plan, kernels: super::kernels };

/// Classes where nothing is said.
const CLASSES: usize = 4096;

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let o = &asked.options;
    let classes = o.classes().unwrap_or(asked.len.clamp(1, CLASSES));
    let forward = CrossEntropyDesc {
        dtype: asked.dtype,
        target: o.index_dtype().map_or(DType::I64, |dtype| dtype.0),
        rows: o.rows().unwrap_or(asked.len / classes.max(1)),
        classes,
        ignore_index: -100,
        label_smoothing: Real::new(o.label_smoothing().unwrap_or(0.0)),
        reduction: o.reduction().unwrap_or_default(),
    };
    asked.either(&forward, &CrossEntropyBackwardDesc { forward: forward.clone() })
}
