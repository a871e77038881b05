//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::nested::{DEQUANTIZE, DequantizeNestedDesc, QUANTIZE, QuantizeNestedDesc};
use super::{DequantizeDesc, NibbleOrder, QuantizeDesc, Scheme, tuning};
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, TARGETS, distinct};
use crate::{Operation, PlanError};

/// The family.
pub(crate) const FAMILY: Family = Family { name: "quantize", aliases: &[], entries, plan, kernels };

/// The scheme of an operation.
fn of_name(op: &str) -> Option<Scheme> {
    Scheme::ALL.into_iter().find(|scheme| op == scheme.op(true) || op == scheme.op(false))
}

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    let entry = |op, dtypes| Entry { op, direction: Direction::Forward, dtypes, targets: &TARGETS };
    let both = Scheme::ALL.into_iter().flat_map(|s| [s.op(true), s.op(false)]);
    let plain = both.map(|op| entry(op, &DType::FLOATS[..]));
    let nested = [QUANTIZE, DEQUANTIZE].map(|op| entry(op, &[DType::F32]));
    plain.chain(nested).collect()
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let Asked { entry, dtype, len, .. } = *asked;
    match entry.op {
        QUANTIZE => return asked.plan(&QuantizeNestedDesc { len }),
        DEQUANTIZE => return asked.plan(&DequantizeNestedDesc { len }),
        _ => {}
    }
    let group_size = asked.options.block_size().unwrap_or(64);
    let scheme = of_name(entry.op).ok_or_else(|| asked.unknown())?;
    let order = match scheme {
        Scheme::Nf4 | Scheme::Fp4 => NibbleOrder::HighFirst,
        _ => NibbleOrder::LowFirst,
    };
    if entry.op == scheme.op(true) {
        asked.plan(&QuantizeDesc { scheme, dtype, group_size, order, len })
    } else {
        asked.plan(&DequantizeDesc { scheme, dtype, group_size, order, len })
    }
}

/// Every kernel that a plan of `entry` can hold for the group sizes that checkpoints use, and for all others.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    /// Kernels do not depend on the length, as long as there is something to do.
    const LEN: usize = 1;
    /// A group of less than a warp, one of no power of two, one that no vector divides.
    const OTHER_GROUP_SIZES: [usize; 3] = [1, 96, 100];

    let of = |group_size, order| -> Result<Planned, PlanError> {
        match (entry.op, of_name(entry.op)) {
            (QUANTIZE, _) => QuantizeNestedDesc { len: LEN }.plan(target).map(Into::into),
            (DEQUANTIZE, _) => DequantizeNestedDesc { len: LEN }.plan(target).map(Into::into),
            (op, Some(scheme)) if op == scheme.op(true) => {
                QuantizeDesc { scheme, dtype, group_size, order, len: LEN }.plan(target).map(Into::into)
            }
            (_, Some(scheme)) => {
                DequantizeDesc { scheme, dtype, group_size, order, len: LEN }.plan(target).map(Into::into)
            }
            (op, None) => Err(PlanError::UnknownOperation { name: op.to_owned() }),
        }
    };
    let group_sizes = OTHER_GROUP_SIZES.into_iter().chain(tuning::CATALOGUED_GROUP_SIZES);
    let high = group_sizes.map(|group_size| of(group_size, NibbleOrder::HighFirst));
    // The order only moves immediates: one group size shows that.
    distinct(high.chain([of(64, NibbleOrder::LowFirst)]))
}
