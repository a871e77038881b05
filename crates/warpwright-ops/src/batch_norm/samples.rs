//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::{
    BatchNorm, BatchNormBackwardDesc, BatchNormDesc, BatchNormInferenceBackwardDesc, BatchNormInferenceDesc,
    INFERENCE, Momentum, TRAINING, plans,
};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, TARGETS};
use crate::plan::{Operation, Real};

/// The family.
pub(crate) const FAMILY: Family = Family { name: "batch_norm", aliases: &[], entries, plan, kernels };

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    let both = |op| {
        [Direction::Forward, Direction::Backward].map(|direction| Entry {
            op,
            direction,
            dtypes: &DType::FLOATS,
            targets: &TARGETS,
        })
    };
    [TRAINING, INFERENCE].into_iter().flat_map(both).collect()
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

/// Every kernel that a plan of `entry` can hold and that no entry before it has.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    fn of<O: Operation>(desc: O, target: Target) -> Result<Vec<Kernel>, PlanError> {
        let plan = desc.plan(target)?;
        Ok(plan.variants().iter().flat_map(|v| &v.steps).map(|s| s.kernel().clone()).collect())
    }
    let mut all: Vec<Kernel> = Vec::new();
    let mut add = |kernels: Vec<Kernel>| {
        for kernel in kernels {
            if !all.iter().any(|k| k.name() == kernel.name()) {
                all.push(kernel);
            }
        }
    };
    let (training, forward) = (entry.op == TRAINING, entry.direction == Direction::Forward);
    for norm in plans::every_norm(dtype) {
        for option in [false, true] {
            let momentum = None;
            match (training, forward) {
                (true, true) => add(of(BatchNormDesc { norm, residual: option, momentum }, target)?),
                (true, false) => {
                    let norm = BatchNorm { relu: option, ..norm };
                    add(of(BatchNormBackwardDesc { norm, dresidual: false }, target)?);
                }
                (false, true) => add(of(BatchNormInferenceDesc { norm, residual: option }, target)?),
                (false, false) => {
                    let norm = BatchNorm { relu: option, ..norm };
                    add(of(BatchNormInferenceBackwardDesc { norm, dresidual: false }, target)?);
                }
            }
        }
    }
    // Inference shares kernels with training; each is listed once.
    if !training {
        let forward = Entry { direction: Direction::Forward, op: TRAINING, ..*entry };
        let backward = Entry { direction: Direction::Backward, ..forward };
        let mut listed = kernels(&forward, dtype, target)?;
        listed.extend(kernels(&backward, dtype, target)?);
        if entry.direction == Direction::Backward {
            listed.extend(kernels(&Entry { direction: Direction::Forward, ..*entry }, dtype, target)?);
        }
        all.retain(|kernel| !listed.iter().any(|k| k.name() == kernel.name()));
    }
    Ok(all)
}
