//! The family's row of the catalogue, its descriptor from options, and its kernels.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::{CastDesc, OP};
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, TARGETS, distinct};
use crate::{Operation, PlanError};

/// The family.
pub(crate) const FAMILY: Family = Family { name: "cast", aliases: &[], entries, plan, kernels };

/// The family's row of the catalogue.
fn entries() -> Vec<Entry> {
    vec![Entry { op: OP, direction: Direction::Forward, dtypes: &DType::FLOATS, targets: &TARGETS }]
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let Asked { dtype: from, len, .. } = *asked;
    let usual = if from == DType::F32 { DType::BF16 } else { DType::F32 };
    let to = asked.options.to().map_or(usual, |to| to.0);
    asked.plan(&CastDesc { from, to, len })
}

/// Every kernel that a plan of the entry can hold; they do not depend on the length.
fn kernels(_: &Entry, from: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    distinct(DType::FLOATS.map(|to| CastDesc { from, to, len: 1 }.plan(target).map(Into::into)))
}
