//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::{LinearCrossEntropyDesc, OP, kernel};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned};
use crate::plan::{self, Real};

/// The family.
pub(crate) const FAMILY: Family = Family {
    name: "linear_cross_entropy",
    aliases: &[(OP, "fused_linear_cross_entropy")],
    entries,
    plan,
    kernels,
};

/// Features and classes where nothing is said.
const SIDES: [usize; 2] = [1024, 4096];

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    Entry::both(OP).to_vec()
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let o = &asked.options;
    let [features, classes] = [o.k().unwrap_or(SIDES[0]), o.classes().unwrap_or(SIDES[1])];
    let rows = o.rows().unwrap_or(asked.len / features.max(1));
    let target = o.index_dtype().map_or(DType::I64, |dtype| dtype.0);
    let desc = LinearCrossEntropyDesc {
        bias: o.bias().is_some(),
        label_smoothing: Real::new(o.label_smoothing().unwrap_or(0.0)),
        reduction: o.reduction().unwrap_or_default(),
        gradients: asked.is_backward(),
        ..LinearCrossEntropyDesc::new(asked.dtype, target, [rows, features, classes])
    };
    asked.plan(&desc)
}

/// Every kernel that a plan of `entry` can hold but those of products, which are listed as `gemm`.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let of_rows = |direction| {
        (crate::cross_entropy::samples::FAMILY.kernels)(&Entry { direction, ..*entry }, dtype, target)
    };
    let mut all = of_rows(Direction::Forward)?;
    if entry.direction == Direction::Backward {
        all.push(plan::recorded(OP, &kernel::Prepare { dtype }, target)?);
        all.extend(of_rows(Direction::Backward)?);
    }
    Ok(all)
}
