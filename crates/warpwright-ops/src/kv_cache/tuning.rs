//! Which kernel runs for which shape.

use super::{AppendKvCacheDesc, CacheRotation};
use crate::plan::Layout;
use crate::rotary::Pairing;
use crate::rotary::tuning::{Config, configs_for};

/// Layouts of a descriptor, best first; the last one takes any alignment.
pub fn configs(desc: &AppendKvCacheDesc) -> Vec<Config> {
    let none = (Pairing::Half, false, 0);
    let (pairing, repeated, rotary_dim) = desc
        .rotation
        .map_or(none, |CacheRotation { pairing, rotary_dim, tables }| (pairing, tables.repeated, rotary_dim));
    let mut layouts: Vec<Layout> = desc.q.into_iter().flatten().collect();
    layouts.extend([desc.k, desc.v, desc.k_cache, desc.v_cache]);
    let all = configs_for(desc.dtype, pairing, repeated, [rotary_dim, desc.k.shape[3]], &layouts);
    all.into_iter().filter(|config| desc.v.shape[3].is_multiple_of(config.width as usize)).collect()
}
