//! The family's rows of the catalogue, its descriptors from options, and its kernels.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::kernel::{Rows, Tiles};
use super::{CAT, CatDesc, PERMUTE, PermuteDesc, SPLIT, SplitDesc, size, tuning};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, TARGETS};
use crate::elementwise::walk::MAX_OUTER;
use crate::plan::{self, View};

/// The family.
pub(crate) const FAMILY: Family = Family { name: "copy", aliases: &[], entries, plan, kernels };

/// Elements of a row where nothing is said.
const ROW: usize = 4096;

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    let one = |op| Entry { op, direction: Direction::Forward, dtypes: &DType::FLOATS, targets: &TARGETS };
    [PERMUTE, CAT, SPLIT].map(one).to_vec()
}

/// Plans what is asked for: a matrix transposed, or two halves of rows.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let Asked { entry, dtype, len, ref options, .. } = *asked;
    let row = options.len().unwrap_or(ROW.min(len.max(1)));
    let outer = options.rows().unwrap_or(len / row.max(1)).max(1);
    let cat = CatDesc { dtype, outer, lens: vec![row / 2, row - row / 2] };
    match entry.op {
        CAT => asked.plan(&cat),
        SPLIT => asked.plan(&SplitDesc { cat }),
        _ => {
            let rank = || PlanError::refused(PERMUTE, "shape", "a matrix", "of at most 8 dimensions");
            let x = View::contiguous(&[outer, row]).ok_or_else(rank)?;
            asked.plan(&PermuteDesc { dtype, x, axes: vec![1, 0] })
        }
    }
}

/// Every kernel that a plan of the entry can hold; those for single bytes, which no type of floats has, with f16.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let mut elements = vec![size(dtype)];
    elements.extend((dtype == DType::F16).then_some(1));
    let least = elements.iter().copied().min().unwrap_or(1);
    let units = [1, 2, 4, 8, 16].into_iter().filter(|unit| *unit >= least);
    let outer = if entry.op == PERMUTE { vec![1, MAX_OUTER] } else { vec![1] };
    let rows = units.flat_map(|unit| outer.iter().map(move |outer| Rows { unit, outer: *outer }));
    let mut all: Vec<_> =
        rows.map(|rows| plan::recorded(PERMUTE, &rows, target)).collect::<Result<_, _>>()?;
    if entry.op == PERMUTE {
        for tile in tuning::tiles().into_iter().filter(|tile| elements.contains(&tile.element)) {
            all.push(plan::recorded(PERMUTE, &Tiles(tile), target)?);
        }
    }
    Ok(all)
}
