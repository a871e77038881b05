//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::kernel::{ScaledGemm, Scales};
use super::simt::Simt;
use super::{Accumulation, DTYPES, ScaledGemmDesc, op, tuning};
use crate::PlanError;
use crate::activation::Activation;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, TARGETS};
use crate::gemm::engine::Store;
use crate::gemm::epilogue::Program;
use crate::plan;
use crate::quantize8::samples::FLOAT8_TARGETS;
use crate::quantize8::{Format, Scaling};

/// The family.
pub(crate) const FAMILY: Family = Family { name: "scaled_gemm", aliases: &[], entries, plan, kernels };

/// The format of an operation.
fn of_name(name: &str) -> Option<Format> {
    Format::ALL.into_iter().find(|format| op(*format) == name)
}

/// The format that goes with one: gradients of five exponent bits meet weights and activations of four.
fn other(format: Format) -> Format {
    if format == Format::E5M2 { Format::E4M3 } else { format }
}

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    let entry = |format: Format| Entry {
        op: op(format),
        direction: Direction::Forward,
        dtypes: &DTYPES,
        targets: if format.dtype().is_float8() { &FLOAT8_TARGETS } else { &TARGETS },
    };
    Format::ALL.map(entry).to_vec()
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let format = of_name(asked.entry.op).ok_or_else(|| asked.unknown())?;
    let o = &asked.options;
    // Square matrices.
    let side = (asked.len / 3).isqrt().max(1);
    let [m, n, k] = [o.m(), o.n(), o.k()].map(|extent| extent.unwrap_or(side));
    let scaling = o.scaling().unwrap_or(Scaling::RowWise);
    // Blocks of 1 x 128 are of activations, those of 128 x 128 of weights.
    let of_b = if scaling == Scaling::BlockWise1x128 { Scaling::BlockWise128x128 } else { scaling };
    // Sums of integers are exact.
    let fast = format != Format::Int8 && o.fast_accumulation() == Some(true);
    let accumulation = if fast { Accumulation::Fast } else { Accumulation::Promoted };
    asked.plan(&ScaledGemmDesc {
        b: other(format),
        scaling_b: Some(of_b),
        bias: o.bias().is_some(),
        activation: o.activation(),
        accumulation,
        ..ScaledGemmDesc::new(format, asked.dtype, [m, n, k], scaling)
    })
}

/// Kernels of each way to scale and store with the shortest epilogue, and of one layout with the longest.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let unknown = || PlanError::UnknownOperation { name: entry.op.to_owned() };
    let format = of_name(entry.op).ok_or_else(unknown)?;
    let integers = format == Format::Int8;
    let whole = [Scaling::TensorWise, Scaling::RowWise].map(|scaling| (Some(scaling), Some(scaling)));
    let blocks = [
        (Scaling::BlockWise1x128, Scaling::BlockWise128x128),
        (Scaling::BlockWise1x128, Scaling::BlockWise1x128),
        (Scaling::BlockWise128x128, Scaling::RowWise),
    ];
    let scalings = whole.into_iter().chain(blocks.map(|(a, b)| (Some(a), Some(b))));
    let longest = Program { bias: true, activation: Some(Activation::GeluErf), ..Program::default() };
    let (a, b) = (format, other(format));
    let mut all = Vec::new();
    let mut add = |y: DType, scales: Scales, program: Program| {
        all.push(plan::recorded(entry.op, &Simt { a, b, y, program, scales }, target)?);
        if target.sm == 90 {
            let layouts = if program == Program::default() { usize::MAX } else { 1 };
            for config in tuning::configs(scales).into_iter().take(layouts) {
                for store in [Store::Panels, Store::Rows] {
                    let kernel = ScaledGemm { a, b, y, config, program, scales, store };
                    all.push(plan::recorded(entry.op, &kernel, Target::specific(target.sm))?);
                }
            }
        }
        Ok::<_, PlanError>(())
    };
    for (a, b) in scalings {
        for promotes in [false, true] {
            let scales = Scales { a, b, promotes };
            if promotes && (integers || Scales { promotes: false, ..scales }.by_slices()) {
                continue;
            }
            for program in [Program::default(), longest] {
                add(dtype, scales, program)?;
            }
        }
    }
    if integers && dtype == DType::F32 {
        add(DType::I32, Scales { a: None, b: None, promotes: false }, Program::default())?;
    }
    Ok(all)
}
