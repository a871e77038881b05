//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::kernel::{Kept, Reduce};
use super::{ArgReduceDesc, ArgReduceFunction, ReduceDesc, ReduceFunction, tuning};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, TARGETS};
use crate::plan;

/// The family.
pub(crate) const FAMILY: Family = Family { name: "reduce", aliases: &[], entries, plan, kernels };

/// Elements of a row where nothing is said.
const ROW: usize = 4096;

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    let names = ReduceFunction::ALL.map(ReduceFunction::name).into_iter();
    let names = names.chain(ArgReduceFunction::ALL.map(ArgReduceFunction::name));
    let entry = |op| Entry { op, direction: Direction::Forward, dtypes: &DType::FLOATS, targets: &TARGETS };
    names.map(entry).collect()
}

fn reduction(name: &str) -> Option<ReduceFunction> {
    ReduceFunction::ALL.into_iter().find(|function| function.name() == name)
}

fn search(name: &str) -> Option<ArgReduceFunction> {
    ArgReduceFunction::ALL.into_iter().find(|function| function.name() == name)
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let Asked { dtype, entry, len, .. } = *asked;
    let o = &asked.options;
    let n = o.len().unwrap_or(len.clamp(1, ROW));
    let inner = o.inner().unwrap_or(1);
    let outer = o.rows().unwrap_or(len / n.saturating_mul(inner).max(1));
    if let Some(function) = search(entry.op) {
        return asked.plan(&ArgReduceDesc { function, dtype, outer, n, inner });
    }
    let function = reduction(entry.op).ok_or_else(|| asked.unknown())?;
    let y_dtype = o.to().map_or(dtype, |to| to.0);
    asked.plan(&ReduceDesc { function, dtype, y_dtype, shape: vec![outer, n, inner], dims: vec![1] })
}

/// Every kernel that a plan of `entry` can hold: of a single pass, of a first one, of one in the middle, and of a last one.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let wide = dtype.accumulator();
    let mut kinds = if search(entry.op).is_some() {
        vec![(Kept::Position, dtype, wide), (Kept::PositionOfParts, wide, wide)]
    } else {
        let sum = reduction(entry.op).is_some_and(ReduceFunction::has_value_of_nothing);
        let kept = if sum { Kept::Sum } else { Kept::Extreme };
        vec![(kept, dtype, dtype), (kept, dtype, wide), (kept, wide, wide), (kept, wide, dtype)]
    };
    kinds.dedup();
    let mut out = Vec::new();
    for (kept, from, to) in kinds {
        for config in tuning::all(from) {
            out.push(plan::recorded(entry.op, &Reduce { kept, from, to, config }, target)?);
        }
    }
    Ok(out)
}
