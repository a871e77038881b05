//! The family's rows of the catalogue, and its descriptors from options.

use super::{
    BatchNorm, BatchNormBackwardDesc, BatchNormDesc, BatchNormInferenceBackwardDesc, BatchNormInferenceDesc,
    Momentum,
};
use crate::PlanError;
use crate::catalogue::{Asked, Family, Planned};
use crate::plan::Real;

/// The family.
pub(crate) const FAMILY: Family =
    Family { name: "batch_norm", aliases: &[], entries: super::entries, plan, kernels: super::kernels };

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let o = &asked.options;
    // Images of 64 channels.
    let affine = o.no_affine().is_none();
    let norm = BatchNorm {
        parameter_dtype: o.parameter_dtype().map_or(asked.dtype, |dtype| dtype.0),
        weight: affine,
        bias: affine,
        relu: o.relu().is_some(),
        ..BatchNorm::new(
            asked.dtype,
            asked.layout(),
            o.batch().unwrap_or((asked.len >> 18).max(1)),
            o.channels().unwrap_or(64),
            o.spatial().unwrap_or((asked.len >> 6).clamp(2, 4096)),
        )
    };
    let residual = o.residual().is_some();
    if asked.entry.op == "batch_norm_inference" {
        let forward = BatchNormInferenceDesc { norm, residual };
        return asked.either(&forward, &BatchNormInferenceBackwardDesc { norm, dresidual: residual });
    }
    if asked.is_backward() {
        return asked.plan(&BatchNormBackwardDesc { norm, dresidual: residual });
    }
    let momentum = o.track_running_stats().map(|_| Momentum::Exponential(Real::new(0.1)));
    asked.plan(&BatchNormDesc { norm, residual, momentum })
}
