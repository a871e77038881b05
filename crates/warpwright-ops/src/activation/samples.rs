//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::{
    Activation, ActivationBackwardDesc, ActivationDesc, GatedActivation, GatedBackwardDesc, GatedDesc,
};
use crate::PlanError;
use crate::catalogue::{Asked, Entry, Family, OpOptions, Planned, Taken, distinct};

/// The family.
pub(crate) const FAMILY: Family = Family { name: "activation", aliases: &[], entries, plan, kernels };

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    let plain = Activation::ALL.into_iter().map(Activation::name);
    plain.chain(GatedActivation::ALL.into_iter().map(GatedActivation::name)).flat_map(Entry::both).collect()
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let Asked { entry, dtype, len, .. } = *asked;
    if let Some(activation) = Activation::from_name(entry.op) {
        let forward = ActivationDesc { activation, dtype, len };
        return asked.either(&forward, &ActivationBackwardDesc { activation, dtype, len });
    }
    let activation = GatedActivation::from_name(entry.op).ok_or_else(|| asked.unknown())?;
    asked.either(&GatedDesc { activation, dtype, len }, &GatedBackwardDesc { activation, dtype, len })
}

/// Every kernel that a plan of `entry` can hold.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    // The kernels do not depend on the length, as long as there is something to do.
    let given = OpOptions::default();
    distinct([plan(&Asked { entry: *entry, dtype, target, len: 1, options: Taken::new(&given) })])
}
