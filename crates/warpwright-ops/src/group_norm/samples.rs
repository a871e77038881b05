//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::{
    GroupNormBackwardDesc, GroupNormDesc, GroupShape, OP, backward, columns, common, contiguous, resident,
    tuning,
};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned};
use crate::plan::{self, Real};

/// The family.
pub(crate) const FAMILY: Family =
    Family { name: "group_norm", aliases: &[("group_norm", "instance_norm")], entries, plan, kernels };

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    Entry::both(OP).to_vec()
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    // As convolutional networks normalise them: 512 channels of 64 x 64 pixels in 32 groups for large ones.
    let o = &asked.options;
    let (channels, groups) = if asked.len < 1 << 20 { (32, 8) } else { (512, 32) };
    let channels = o.channels().unwrap_or(channels);
    let groups = o.groups().unwrap_or(groups);
    let spatial = o.spatial().unwrap_or((asked.len / channels.max(1)).clamp(1, 4096));
    let sample = channels.saturating_mul(spatial).max(1);
    let batch = o.batch().unwrap_or((asked.len / sample).max(1));
    let shape = GroupShape { batch, channels, spatial, groups, layout: asked.layout() };
    let (dtype, silu, affine) = (asked.dtype, o.silu().is_some(), o.no_affine().is_none());
    let (weight, bias) = (affine, affine);
    if asked.is_backward() {
        let (dweight, dbias) = (affine, affine);
        return asked.plan(&GroupNormBackwardDesc { dtype, shape, weight, bias, silu, dweight, dbias });
    }
    let (statistics, eps) = (true, Real::new(1e-5));
    asked.plan(&GroupNormDesc { dtype, shape, weight, bias, silu, statistics, eps })
}

/// Every kernel that a plan of `entry` can hold.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    if entry.direction == Direction::Backward {
        return backward::kernels(dtype, target);
    }
    let mut all = Vec::new();
    for width in [tuning::vector_width(dtype), 1] {
        let elements = common::Elements { dtype, width };
        for config in tuning::forward(dtype, target, width) {
            all.push(plan::recorded(OP, &resident::Forward { dtype, config }, target)?);
        }
        all.push(plan::recorded(OP, &contiguous::Moments(elements), target)?);
        all.push(plan::recorded(OP, &contiguous::Apply(elements), target)?);
        all.push(plan::recorded(OP, &columns::Moments(elements), target)?);
        all.push(plan::recorded(OP, &columns::Apply(elements), target)?);
    }
    all.push(plan::recorded(OP, &columns::Finish { dtype }, target)?);
    Ok(all)
}
