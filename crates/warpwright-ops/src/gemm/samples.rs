//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::engine::Store;
use super::epilogue::{self, Program};
use super::kernel::Gemm;
use super::persistent::{PersistentGemm, SummingGemm};
use super::tuning::{self, Config, PersistentConfig};
use super::warpgroup::WarpgroupGemm;
use super::{GemmDesc, Major, OP, f16x3, pack, split};
use crate::PlanError;
use crate::activation::Activation;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, TARGETS, Transpose};
use crate::plan::{self, Real};

/// The family.
pub(crate) const FAMILY: Family =
    Family { name: "gemm", aliases: &[("gemm", "matmul")], entries, plan, kernels };

/// The family's row of the catalogue.
fn entries() -> Vec<Entry> {
    vec![Entry { op: OP, direction: Direction::Forward, dtypes: &DType::FLOATS, targets: &TARGETS }]
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let o = &asked.options;
    // Square matrices.
    let side = (asked.len / 3).isqrt().max(1);
    let of = |extent: Option<usize>| extent.unwrap_or(side);
    let bias_gradient = o.bias_gradient().is_some();
    let usual = Transpose { a: bias_gradient, b: !bias_gradient };
    let Transpose { a, b } = o.transpose().unwrap_or(usual);
    let sizes = [of(o.m()), of(o.n()), of(o.k())];
    asked.plan(&GemmDesc {
        batch: o.batch().unwrap_or(1),
        beta: Real::new(o.beta().unwrap_or(0.0)),
        bias: o.bias().is_some(),
        activation: o.activation(),
        precision: asked.precision(),
        bias_gradient,
        ..GemmDesc::new(asked.dtype, sizes, a, b)
    })
}

/// Every kernel that a plan can hold.
fn kernels(_: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let mut all = vec![
        plan::recorded(OP, &split::SumParts { dtype }, target)?,
        plan::recorded(OP, &pack::Pack { dtype }, target)?,
    ];
    let configs = tuning::configs(dtype, target);
    if configs.iter().any(|config| matches!(config, Config::F16x3(_))) {
        all.extend(f16x3::split_kernels(target)?);
    }
    for config in configs {
        for a in [Major::K, Major::Mn] {
            for b in [Major::K, Major::Mn] {
                match config {
                    Config::Persistent(config) => {
                        if dtype.bytes() == 2 || (a, b) == (Major::K, Major::K) {
                            all.extend(persistent_kernels(dtype, (a, b), target, config)?);
                        }
                    }
                    Config::F16x3(config) => {
                        let each = programs((a, b), config).into_iter();
                        let kernel = |program| f16x3::product_kernel((a, b), target, config, program);
                        all.extend(each.map(kernel).collect::<Result<Vec<_>, _>>()?);
                    }
                    Config::Tiled(config) => {
                        for split in [false, true] {
                            all.push(plan::recorded(OP, &Gemm { dtype, a, b, config, split }, target)?);
                        }
                    }
                    Config::Warpgroup(config) => {
                        let mut ends = vec![(false, false), (true, false)];
                        // Gradients of weights are summed.
                        ends.extend((dtype.bytes() == 2 && a == Major::Mn).then_some((false, true)));
                        for (split, onto) in ends {
                            let def = WarpgroupGemm { dtype, a, b, config, split, onto };
                            all.push(plan::recorded(OP, &def, Target::specific(target.sm))?);
                        }
                    }
                }
            }
        }
    }
    Ok(all)
}

/// Epilogues of persistent kernels of a configuration: each way to store with the shortest and the longest, and in the largest tiles, where both
/// operands are along the common dimension, each function.
fn programs((a, b): (Major, Major), config: PersistentConfig) -> Vec<(Program, Store)> {
    let all = |activation| Program { scaled: true, addend: true, bias: true, activation };
    let mut programs = vec![Program::default(), all(Some(Activation::GeluErf))];
    if (a, b) == (Major::K, Major::K) && (config.rows, config.cols) == (128, 256) {
        programs.push(all(None));
        let functions = epilogue::ACTIVATIONS.into_iter().map(Some);
        programs.extend(functions.map(|activation| Program { bias: true, activation, ..Program::default() }));
    }
    let stores = [Store::Panels, Store::Rows];
    programs.into_iter().flat_map(|program| stores.map(|store| (program, store))).collect()
}

/// Persistent kernels of a configuration.
fn persistent_kernels(
    dtype: DType,
    (a, b): (Major, Major),
    target: Target,
    config: PersistentConfig,
) -> Result<Vec<Kernel>, PlanError> {
    let target = Target::specific(target.sm);
    let def = |program, store| PersistentGemm { dtype, a, b, config, program, store };
    let kernel = |(program, store)| plan::recorded(OP, &def(program, store), target);
    let summing = |store| plan::recorded(OP, &SummingGemm(def(Program::default(), store)), target);
    let mut kernels = programs((a, b), config).into_iter().map(kernel).collect::<Result<Vec<_>, _>>()?;
    if a == Major::Mn {
        for store in [Store::Panels, Store::Rows] {
            kernels.push(summing(store)?);
        }
    }
    Ok(kernels)
}
