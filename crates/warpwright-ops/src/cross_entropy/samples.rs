//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::{CrossEntropyBackwardDesc, CrossEntropyDesc, OP, kernel, tuning};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned};
use crate::plan::{self, Real};

/// The family.
pub(crate) const FAMILY: Family = Family { name: "cross_entropy", aliases: &[], entries, plan, kernels };

/// Classes where nothing is said.
const CLASSES: usize = 4096;

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    Entry::both(OP).to_vec()
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let o = &asked.options;
    let classes = o.classes().unwrap_or(asked.len.clamp(1, CLASSES));
    let rows = o.rows().unwrap_or(asked.len / classes.max(1));
    let target = o.index_dtype().map_or(DType::I64, |dtype| dtype.0);
    let forward = CrossEntropyDesc {
        label_smoothing: Real::new(o.label_smoothing().unwrap_or(0.0)),
        reduction: o.reduction().unwrap_or_default(),
        ..CrossEntropyDesc::new(asked.dtype, target, [rows, classes])
    };
    asked.either(&forward, &CrossEntropyBackwardDesc { forward: forward.clone() })
}

/// Every kernel that a plan of `entry` can hold.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let mut out = Vec::new();
    if entry.direction == Direction::Backward {
        let wide = dtype.accumulator();
        for loss in if wide == dtype { vec![dtype] } else { vec![dtype, wide] } {
            for config in tuning::backward(dtype) {
                out.push(plan::recorded(OP, &kernel::Backward { dtype, loss, config }, target)?);
            }
        }
        return Ok(out);
    }
    for config in tuning::all_forward(dtype) {
        for smoothed in [false, true] {
            out.push(plan::recorded(OP, &kernel::Forward { dtype, config, smoothed }, target)?);
        }
    }
    out.push(plan::recorded(OP, &kernel::Reduce { dtype }, target)?);
    Ok(out)
}
