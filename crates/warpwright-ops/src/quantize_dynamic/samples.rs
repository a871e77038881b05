//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::{BLOCK_SIZES, DTYPES, DequantizeDynamicDesc, Problem, QuantizeDynamicDesc, op};
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, TARGETS, distinct};
use crate::dynamic_map::Map;
use crate::{Operation, PlanError};

/// The family.
pub(crate) const FAMILY: Family = Family { name: "quantize_dynamic", aliases: &[], entries, plan, kernels };

fn all() -> impl Iterator<Item = (Map, bool)> {
    Map::ALL.into_iter().flat_map(|map| [(map, true), (map, false)])
}

/// The map of an operation, and whether it quantizes.
fn of_name(name: &str) -> Option<(Map, bool)> {
    all().find(|(map, quantizes)| op(*map, *quantizes) == name)
}

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    let entry = |(map, quantizes)| Entry {
        op: op(map, quantizes),
        direction: Direction::Forward,
        dtypes: &DTYPES,
        targets: &TARGETS,
    };
    all().map(entry).collect()
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let (map, quantizes) = of_name(asked.entry.op).ok_or_else(|| asked.unknown())?;
    let o = &asked.options;
    let (len, block_size) = (o.len().unwrap_or(asked.len), o.block_size().unwrap_or(BLOCK_SIZES[0]));
    let problem = Problem { map, dtype: asked.dtype, len, block_size };
    match quantizes {
        true => asked.plan(&QuantizeDynamicDesc { problem }),
        false => asked.plan(&DequantizeDynamicDesc { problem }),
    }
}

/// Every kernel that a plan of `entry` can hold.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let unknown = || PlanError::UnknownOperation { name: entry.op.to_owned() };
    let (map, quantizes) = of_name(entry.op).ok_or_else(unknown)?;
    distinct(BLOCK_SIZES.into_iter().map(|block_size| {
        let problem = Problem { map, dtype, len: block_size, block_size };
        match quantizes {
            true => QuantizeDynamicDesc { problem }.plan(target).map(Into::into),
            false => DequantizeDynamicDesc { problem }.plan(target).map(Into::into),
        }
    }))
}
