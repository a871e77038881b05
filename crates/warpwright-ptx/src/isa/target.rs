//! Facts about targets: the first PTX version that knows each, and its limits.

use super::device::DeviceLimits;
use crate::types::{PtxVersion, Target, TargetVariant};

/// Versions of the architectures, in order: plain, then family, then architecture-specific where they exist.
const TARGETS: &[(u32, PtxVersion, Option<PtxVersion>, Option<PtxVersion>)] = &[
    (50, v(4, 0), None, None),
    (52, v(4, 1), None, None),
    (53, v(4, 2), None, None),
    (60, v(5, 0), None, None),
    (61, v(5, 0), None, None),
    (62, v(5, 0), None, None),
    (70, v(6, 0), None, None),
    (72, v(6, 1), None, None),
    (75, v(6, 3), None, None),
    (80, v(7, 0), None, None),
    (86, v(7, 1), None, None),
    (87, v(7, 4), None, None),
    (88, v(9, 0), None, None),
    (89, v(7, 8), None, None),
    (90, v(7, 8), None, Some(v(8, 0))),
    (100, v(8, 6), Some(v(8, 8)), Some(v(8, 6))),
    (101, v(8, 6), Some(v(8, 8)), Some(v(8, 6))),
    (103, v(8, 8), Some(v(8, 8)), Some(v(8, 8))),
    (110, v(9, 0), Some(v(9, 0)), Some(v(9, 0))),
    (120, v(8, 7), Some(v(8, 8)), Some(v(8, 7))),
    (121, v(8, 8), Some(v(8, 8)), Some(v(8, 8))),
];

/// The newest PTX version that this crate knows.
pub const NEWEST_VERSION: PtxVersion = v(9, 1);

/// Why something in a text of `version` may be unknown: it is newer than [`NEWEST_VERSION`].
pub fn newer_version_note(version: PtxVersion) -> Option<String> {
    let newer = version > NEWEST_VERSION;
    newer.then(|| format!("the text is PTX {version}, the newest known here is {NEWEST_VERSION}"))
}

const fn v(major: u16, minor: u16) -> PtxVersion {
    PtxVersion::new(major, minor)
}

/// The first PTX version that knows `target`; `None` for a target that this crate does not know.
pub fn target_version(target: Target) -> Option<PtxVersion> {
    let (_, plain, family, specific) = *TARGETS.iter().find(|t| t.0 == target.sm)?;
    match target.variant {
        TargetVariant::Plain => Some(plain),
        TargetVariant::Family => family,
        TargetVariant::Specific => specific,
    }
}

/// Every target that this crate knows, with the first PTX version of each.
pub fn targets() -> impl Iterator<Item = (Target, PtxVersion)> {
    TARGETS.iter().flat_map(|&(sm, plain, family, specific)| {
        [
            Some((TargetVariant::Plain, plain)),
            family.map(|version| (TargetVariant::Family, version)),
            specific.map(|version| (TargetVariant::Specific, version)),
        ]
        .into_iter()
        .flatten()
        .map(move |(variant, version)| (Target { sm, variant }, version))
    })
}

/// Bytes of statically declared shared memory that an entry may have: what the assembler accepts.
pub const fn static_shared_limit(target: Target) -> u64 {
    // Code for one architecture may take all that a block of it can have.
    match target.variant {
        TargetVariant::Specific => DeviceLimits::of(target).shared_per_block as u64,
        TargetVariant::Plain | TargetVariant::Family => DeviceLimits::SHARED_WITHOUT_ASKING as u64,
    }
}

/// Bytes of kernel parameters.
pub fn parameter_limit(version: PtxVersion, target: Target) -> u64 {
    if version >= LARGE_PARAMETERS && target.sm >= 70 { LARGE_PARAMETER_BYTES } else { SMALL_PARAMETER_BYTES }
}

/// The first version that allows more than [`SMALL_PARAMETER_BYTES`] of parameters.
pub const LARGE_PARAMETERS: PtxVersion = v(8, 1);
/// Limit of the parameters before that.
pub const SMALL_PARAMETER_BYTES: u64 = 4352;
/// Limit of the parameters since then.
pub const LARGE_PARAMETER_BYTES: u64 = 32764;
