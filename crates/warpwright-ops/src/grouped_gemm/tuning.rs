//! Which kernel runs for which product on sm_90: the tile that takes the least time by the model of [`gemm::tuning`](crate::gemm::tuning).

use warpwright_ptx::Target;

use super::{GroupedGemmDesc, Grouping};
use crate::gemm::tuning::{self, Shape};

pub use crate::gemm::tuning::PersistentConfig;

/// Every configuration that a plan can have.
pub fn configs() -> Vec<PersistentConfig> {
    tuning::persistent_configs().collect()
}

/// Configurations that are worth a look where the choice is checked or made anew, on sm_90.
pub fn sweep() -> Vec<PersistentConfig> {
    tuning::persistent_layouts(&[4, 8, 16]).filter(|config| config.cluster == 1).collect()
}

/// The configuration for products of groups that are about equal.
pub(super) fn choose(target: Target, desc: &GroupedGemmDesc) -> PersistentConfig {
    let [m, n, k, batch] = [desc.m, desc.n, desc.k, desc.groups.max(1)].map(|side| side as u64);
    tuning::choose_persistent(desc.dtype, target, |config| match desc.grouping {
        // A group ends within a tile: half of one, on the average, is of no use.
        Grouping::M => Shape { m: m.div_ceil(batch) + u64::from(config.rows / 2), n, k, batch },
        Grouping::K => Shape { m, n, k: k.div_ceil(batch), batch },
    })
}
