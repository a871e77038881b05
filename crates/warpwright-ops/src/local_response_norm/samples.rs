//! The family's rows of the catalogue, and its descriptors from options.

use super::{Coefficients, LocalResponseNormBackwardDesc, LocalResponseNormDesc};
use crate::PlanError;
use crate::catalogue::{Asked, Family, Planned};

/// The family.
pub(crate) const FAMILY: Family = Family {
    name: "local_response_norm",
    aliases: &[],
    entries: super::entries,
    plan,
    kernels: super::kernels,
};

/// Places and channels of an image where nothing is said.
const PLACES: usize = 55 * 55;
const CHANNELS: usize = 96;

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
