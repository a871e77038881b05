//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::{DTYPES, Dequantize8Desc, Format, Problem, Quantize8Desc, Scaling, tuning};
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, TARGETS, distinct};
use crate::{Operation, PlanError};

/// The family.
pub(crate) const FAMILY: Family = Family { name: "quantize8", aliases: &[], entries, plan, kernels };

/// Targets with conversions of 8-bit floats.
pub(crate) const FLOAT8_TARGETS: [Target; 4] =
    [Target::sm(89), Target::sm(90), Target::sm(100), Target::sm(120)];

/// Elements of a row where nothing is said.
const COLS: usize = 4096;

/// The format of an operation, and whether it quantizes.
fn of_name(op: &str) -> Option<(Format, bool)> {
    let both = Format::ALL.into_iter().flat_map(|format| [(format, true), (format, false)]);
    both.into_iter().find(|(format, quantizes)| format.op(*quantizes) == op)
}

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    let entry = |format: Format, quantizes| Entry {
        op: format.op(quantizes),
        direction: Direction::Forward,
        dtypes: &DTYPES,
        targets: if format.dtype().is_float8() { &FLOAT8_TARGETS } else { &TARGETS },
    };
    Format::ALL.into_iter().flat_map(|format| [entry(format, true), entry(format, false)]).collect()
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let (format, quantizes) = of_name(asked.entry.op).ok_or_else(|| asked.unknown())?;
    let o = &asked.options;
    let cols = o.len().unwrap_or(asked.len.clamp(1, COLS));
    let rows = o.rows().unwrap_or(asked.len / cols.max(1));
    let scaling = o.scaling().unwrap_or(Scaling::RowWise);
    let problem = Problem { format, scaling, dtype: asked.dtype, rows, cols };
    if quantizes { asked.plan(&Quantize8Desc { problem }) } else { asked.plan(&Dequantize8Desc { problem }) }
}

/// Every kernel that a plan of `entry` can hold.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let unknown = || PlanError::UnknownOperation { name: entry.op.to_owned() };
    let (format, quantizes) = of_name(entry.op).ok_or_else(unknown)?;
    let vector = 16 / dtype.bytes() as u32;
    // The longest row of each layout; and a tensor that more blocks search.
    let lengths = [vector, 1].into_iter().flat_map(tuning::row_layouts).map(|layout| match layout.held {
        Some(_) => layout.capacity(),
        None => (1 << 20) + (layout.width as usize & 1),
    });
    let rows = lengths.map(|cols| (Scaling::RowWise, cols));
    let others = Scaling::ALL.into_iter().flat_map(|scaling| [1, 128, 1 << 20].map(|cols| (scaling, cols)));
    distinct(rows.chain(others).map(|(scaling, cols)| {
        let problem = Problem { format, scaling, dtype, rows: 1, cols };
        if quantizes {
            Quantize8Desc { problem }.plan(target).map(Into::into)
        } else {
            Dequantize8Desc { problem }.plan(target).map(Into::into)
        }
    }))
}
