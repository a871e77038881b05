//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::{
    DOTS, GATHER, GatherRowsDesc, IndexedRows, RowDotsDesc, SCATTER, ScatterRowsDesc, kernel, tuning,
};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, TARGETS};
use crate::embedding;
use crate::plan;

/// The family.
pub(crate) const FAMILY: Family = Family {
    name: "gather_scatter",
    aliases: &[(GATHER, "index_select"), (SCATTER, "index_add")],
    entries,
    plan,
    kernels,
};

/// Rows and elements of each where nothing is said.
const ROWS: usize = 16384;
const DIM: usize = 1024;

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    let entry = |op| Entry { op, direction: Direction::Forward, dtypes: &DType::FLOATS, targets: &TARGETS };
    [GATHER, SCATTER, DOTS].map(entry).to_vec()
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let o = &asked.options;
    let dim = o.len().unwrap_or(DIM);
    let of = IndexedRows {
        dtype: asked.dtype,
        index: o.index_dtype().map_or(DType::I64, |dtype| dtype.0),
        rows: o.rows().unwrap_or(ROWS),
        dim,
        count: o.batch().unwrap_or((asked.len / dim.max(1)).max(1)),
    };
    let factors = o.factors().map(|dtype| dtype.0);
    match asked.entry.op {
        GATHER => asked.plan(&GatherRowsDesc { of, factors }),
        SCATTER => asked.plan(&ScatterRowsDesc { of, factors, base: o.residual().is_some() }),
        DOTS => asked.plan(&RowDotsDesc { y_dtype: factors.unwrap_or(of.dtype), of }),
        _ => Err(asked.unknown()),
    }
}

/// Every kernel that a plan of `entry` can hold but for those of embeddings.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let op = entry.op;
    let mut out = Vec::new();
    for width in tuning::all_widths(dtype) {
        match op {
            GATHER => out.push(plan::recorded(op, &embedding::kernel::Gather { dtype, width }, target)?),
            SCATTER => out.push(plan::recorded(op, &embedding::kernel::Parts { dtype, width }, target)?),
            _ => {}
        }
        for factors in tuning::factors(dtype) {
            out.push(match op {
                GATHER => plan::recorded(op, &kernel::GatherScaled { dtype, factors, width }, target)?,
                SCATTER => plan::recorded(op, &kernel::ScaledParts { dtype, factors, width }, target)?,
                _ => plan::recorded(op, &kernel::Dots { dtype, y_dtype: factors, width }, target)?,
            });
        }
        if op == SCATTER {
            for factors in tuning::factors(dtype).into_iter().map(Some).chain([None]) {
                for base in [false, true] {
                    out.push(plan::recorded(op, &kernel::Scatter { dtype, factors, base, width }, target)?);
                }
            }
        }
    }
    Ok(out)
}
