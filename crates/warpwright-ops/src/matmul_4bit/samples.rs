//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_dsl::MmaAtom;
use warpwright_ptx::isa::DeviceLimits;
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::scales::Groups;
use super::{
    DTYPES, Matmul4bitBackwardDesc, Matmul4bitDesc, ScaleFormat, Weight4bitDesc, WeightFormat, expand,
    kernel, op, simt, sum, tuning, warpgroup,
};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, TARGETS};
use crate::plan;

/// The family.
pub(crate) const FAMILY: Family = Family { name: "matmul_4bit", aliases: &[], entries, plan, kernels };

/// The format of an operation.
fn of_name(name: &str) -> Option<WeightFormat> {
    WeightFormat::ALL.into_iter().find(|format| op(*format) == name)
}

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    let both = [Direction::Forward, Direction::Backward];
    let entry = |format, direction| Entry { op: op(format), direction, dtypes: &DTYPES, targets: &TARGETS };
    WeightFormat::ALL.into_iter().flat_map(|format| both.map(|direction| entry(format, direction))).collect()
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let format = of_name(asked.entry.op).ok_or_else(|| asked.unknown())?;
    let o = &asked.options;
    // A square weight, and one row.
    let side = asked.len.isqrt().max(1);
    let [n, k] = [o.n(), o.k()].map(|extent| extent.unwrap_or(side));
    let m = o.m().unwrap_or(1);
    let group_size = format.fixed_group_size().unwrap_or_else(|| o.block_size().unwrap_or(64));
    let mut weight = Weight4bitDesc::new(format, [n, k], group_size);
    if format.is_flat() && o.nested().is_some() {
        weight.scale = ScaleFormat::Nested;
    }
    let dtype = asked.dtype;
    if asked.is_backward() {
        return asked.plan(&Matmul4bitBackwardDesc { dtype, m, weight });
    }
    asked.plan(&Matmul4bitDesc { dtype, m, weight, bias: o.bias().is_some() })
}

/// The ways in which scales of a format are stored.
fn scales(format: WeightFormat) -> Vec<ScaleFormat> {
    let floats = DTYPES.map(ScaleFormat::Float);
    match format {
        WeightFormat::Mxfp4 => vec![ScaleFormat::E8m0],
        WeightFormat::Nvfp4 => vec![ScaleFormat::E4m3],
        WeightFormat::Nf4 | WeightFormat::Fp4 => vec![floats[0], ScaleFormat::Nested],
        _ => floats.to_vec(),
    }
}

/// Kernels of each way to store scales and each configuration; with and without bias and parts in one of them.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let unknown = || PlanError::UnknownOperation { name: entry.op.to_owned() };
    let format = of_name(entry.op).ok_or_else(unknown)?;
    let mut all = Vec::new();
    for scale in scales(format) {
        let groups = Groups { format, scale, indexed: false };
        if matches!(format, WeightFormat::Int4 | WeightFormat::Int4Asymmetric) {
            all.extend(for_any_shape(entry, dtype, target, (Groups { indexed: true, ..groups }, true))?);
        }
        for shifts in [true, false] {
            // Of one size, which is a power of two.
            if format.fixed_group_size().is_some() && !shifts {
                continue;
            }
            all.extend(for_any_shape(entry, dtype, target, (groups, shifts))?);
        }
        let multiplies = dtype != DType::F32 && MmaAtom::of(dtype).is_some_and(|atom| atom.exists(target));
        if entry.direction == Direction::Backward || !multiplies {
            continue;
        }
        for (i, config) in tuning::configs().into_iter().enumerate() {
            let has_room = tuning::has_room(config, groups.is_nested(), &DeviceLimits::of(target));
            // Groups of mxfp4 have one slice of one word, or are two of a slice of bf16.
            let halves = config.stages > 0 && dtype == DType::BF16;
            let sliced = format != WeightFormat::Mxfp4 || config.words == 1 || halves;
            if !has_room || !sliced || config.stages > 0 && target.sm < tuning::ASYNC_SM {
                continue;
            }
            for [fine, bias, parts] in ends(format, i == 0) {
                let kernel = kernel::Stream { dtype, groups, config, fine, bias, parts };
                all.push(plan::recorded(entry.op, &kernel, target)?);
            }
        }
        if target.sm == 90 {
            all.extend(warpgroup_kernels(entry.op, dtype, groups)?);
        }
    }
    if entry.direction == Direction::Forward {
        for bias in [false, true] {
            all.push(plan::recorded(entry.op, &sum::Sum { dtype, bias }, target)?);
        }
    }
    Ok(all)
}

/// Kernels that expand a weight, and those of few rows for any shape.
fn for_any_shape(
    entry: &Entry,
    dtype: DType,
    target: Target,
    (groups, shifts): (Groups, bool),
) -> Result<Vec<Kernel>, PlanError> {
    let mut all = Vec::new();
    for width in [8, 1] {
        all.push(plan::recorded(entry.op, &expand::Expand { dtype, groups, shifts, width }, target)?);
    }
    if entry.direction == Direction::Forward {
        for bias in [false, true] {
            all.push(plan::recorded(entry.op, &simt::Simt { dtype, groups, shifts, bias }, target)?);
        }
    }
    Ok(all)
}

/// Whether slices have scales of their own, whether there is a bias, and whether there are parts: of the first configuration with and without.
fn ends(format: WeightFormat, first: bool) -> Vec<[bool; 3]> {
    let of_results: &[[bool; 2]] =
        if first { &[[false, false], [true, false], [false, true]] } else { &[[false, false]] };
    // Groups of one size are a slice or less.
    let fine: &[bool] = if format.fixed_group_size().is_some() { &[true] } else { &[true, false] };
    let with = |[bias, parts]: &[bool; 2]| fine.iter().map(|fine| [*fine, *bias, *parts]).collect::<Vec<_>>();
    of_results.iter().flat_map(with).collect()
}

/// Kernels of each configuration of warpgroups; with and without a bias in one of them.
fn warpgroup_kernels(op: &'static str, dtype: DType, groups: Groups) -> Result<Vec<Kernel>, PlanError> {
    let mut all = Vec::new();
    let slice = match groups.format {
        WeightFormat::Mxfp4 => Some(32),
        WeightFormat::Nvfp4 => Some(64),
        _ => None,
    };
    let configs = tuning::warpgroup_configs()
        .into_iter()
        .filter(|config| slice.is_none_or(|slice| config.slice == slice));
    for (i, config) in configs.enumerate() {
        for [fine, bias, _] in ends(groups.format, i == 0).into_iter().filter(|[.., parts]| !parts) {
            let kernel = warpgroup::Warpgroup { dtype, groups, config, fine, bias };
            all.push(plan::recorded(op, &kernel, Target::specific(90))?);
        }
    }
    Ok(all)
}
