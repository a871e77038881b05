//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::{
    BatchMomentsDesc, BatchNorm, BatchNormBackwardDesc, BatchNormDesc, BatchNormGradientDesc,
    BatchNormInferenceBackwardDesc, BatchNormInferenceDesc, BatchNormMergedDesc, INFERENCE, Layout, Momentum,
    TRAINING, plans,
};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, distinct};
use crate::plan::{Operation, Real};

/// The family.
pub(crate) const FAMILY: Family = Family { name: "batch_norm", aliases: &[], entries, plan, kernels };

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    [TRAINING, INFERENCE].into_iter().flat_map(Entry::both).collect()
}

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
    if asked.entry.op == INFERENCE {
        let forward = BatchNormInferenceDesc { norm, residual };
        return asked.either(&forward, &BatchNormInferenceBackwardDesc { norm, dresidual: residual });
    }
    if asked.is_backward() {
        return asked.plan(&BatchNormBackwardDesc { norm, dresidual: residual });
    }
    let momentum = o.track_running_stats().map(|_| Momentum::Exponential(Real::new(0.1)));
    asked.plan(&BatchNormDesc { norm, residual, momentum })
}

/// Every kernel that a plan of `entry` can hold and that no entry before it has.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let norms =
        plans::every_norm(dtype).into_iter().flat_map(|norm| [false, true].map(|option| (norm, option)));
    let plans = norms.map(|(norm, option)| planned(entry, norm, option, target));
    if entry.op == TRAINING {
        return distinct(plans.chain(parts(entry, dtype, target)));
    }
    let found = distinct(plans)?;
    // Inference shares kernels with training; each is listed once.
    let [forward, backward] = Entry::both(TRAINING);
    let mut listed = [kernels(&forward, dtype, target)?, kernels(&backward, dtype, target)?].concat();
    if entry.direction == Direction::Backward {
        listed.extend(kernels(&Entry { direction: Direction::Forward, ..*entry }, dtype, target)?);
    }
    let new = found.into_iter().filter(|kernel| listed.iter().all(|known| known.name() != kernel.name()));
    Ok(new.collect())
}

/// The plans of training's parts, of which those of moments have no kernel of 16 bits of their own.
fn parts(entry: &Entry, dtype: DType, target: Target) -> Vec<Result<Planned, PlanError>> {
    let norm = BatchNorm::new(dtype, Layout::ChannelsLast, 2, 64, 64);
    if entry.direction == Direction::Backward {
        return vec![BatchNormGradientDesc { norm }.plan(target).map(Planned::from)];
    }
    let merged = BatchNormMergedDesc { norm, batches: 2, residual: false, momentum: None };
    let moments =
        (dtype == dtype.accumulator()).then(|| BatchMomentsDesc { norm }.plan(target).map(Planned::from));
    moments.into_iter().chain([merged.plan(target).map(Planned::from)]).collect()
}

/// The plan of `entry` for a normalisation: forward with or without a residual, backward with or without a ReLU.
fn planned(entry: &Entry, norm: BatchNorm, option: bool, target: Target) -> Result<Planned, PlanError> {
    let (behind, residual) = (BatchNorm { relu: option, ..norm }, option);
    Ok(match (entry.op, entry.direction) {
        (TRAINING, Direction::Forward) => {
            BatchNormDesc { norm, residual, momentum: None }.plan(target)?.into()
        }
        (TRAINING, _) => BatchNormBackwardDesc { norm: behind, dresidual: false }.plan(target)?.into(),
        (_, Direction::Forward) => BatchNormInferenceDesc { norm, residual }.plan(target)?.into(),
        _ => BatchNormInferenceBackwardDesc { norm: behind, dresidual: false }.plan(target)?.into(),
    })
}
