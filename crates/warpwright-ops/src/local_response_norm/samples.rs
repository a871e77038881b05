//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::tuning::Walk;
use super::{Coefficients, LocalResponseNormBackwardDesc, LocalResponseNormDesc, OP, tuning};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned};
use crate::plan::Real;

/// The family.
pub(crate) const FAMILY: Family =
    Family { name: "local_response_norm", aliases: &[], entries, plan, kernels };

/// Places and channels of an image where nothing is said.
const PLACES: usize = 55 * 55;
const CHANNELS: usize = 96;

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    Entry::both(OP).to_vec()
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let o = &asked.options;
    let spatial = o.spatial().unwrap_or(asked.len.clamp(1, PLACES));
    let channels = o.channels().unwrap_or((asked.len / spatial.max(1)).clamp(1, CHANNELS));
    let image = spatial.saturating_mul(channels).max(1);
    let images = o.batch().unwrap_or(asked.len / image);
    let (size, coefficients) = (o.size().unwrap_or(5), Coefficients::default());
    let dtype = asked.dtype;
    let forward = LocalResponseNormDesc { dtype, images, channels, spatial, size, coefficients };
    asked.either(&forward, &LocalResponseNormBackwardDesc { forward: forward.clone() })
}

/// Every kernel that a plan of `entry` can hold.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let mut found = Vec::new();
    let sliding =
        tuning::SLIDING_WINDOWS.map(|size| (size as usize, Walk::Sliding { channels: tuning::BATCH }));
    let betas = [0.75, 0.5];
    let sliding = sliding.into_iter().flat_map(|(size, walk)| betas.map(|beta| (size, walk, beta)));
    for (size, walk, beta) in sliding.chain([(7, Walk::Single, 0.75)]) {
        let coefficients = Coefficients { beta: Real::new(beta), ..Coefficients::default() };
        let desc = LocalResponseNormDesc { dtype, images: 1, channels: 1, spatial: 1, size, coefficients };
        let steps = match entry.direction {
            Direction::Forward => desc.plan_with(target, walk)?.steps().to_vec(),
            Direction::Backward => {
                LocalResponseNormBackwardDesc { forward: desc }.plan_with(target, walk)?.steps().to_vec()
            }
        };
        found.extend(steps.iter().map(|step| step.kernel().clone()));
    }
    Ok(found)
}
