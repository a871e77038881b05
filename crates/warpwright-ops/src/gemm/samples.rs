//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::engine::Store;
use super::epilogue::{self, Program};
use super::kernel::Gemm;
use super::persistent::{PersistentGemm, SummingGemm};
use super::tuning::{self, Config, PersistentConfig};
use super::warpgroup::WarpgroupGemm;
use super::{
    ActivationLinearBackwardDesc, GatedActivationLinearBackwardDesc, GatedLinearDesc, GemmDesc,
    LinearActivationDesc, Major, OP, activated, f16x3, gated, gated_backward, pack, shared, split,
};
use crate::PlanError;
use crate::activation::{Activation, GatedActivation};
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, TARGETS, Transpose};
use crate::plan::{self, Real};

/// The ways to store results.
const STORES: [Store; 2] = [Store::Panels, Store::Rows];

/// The family.
pub(crate) const FAMILY: Family =
    Family { name: "gemm", aliases: &[("gemm", "matmul")], entries, plan, kernels };

/// The family's row of the catalogue.
fn entries() -> Vec<Entry> {
    let entry = |op| Entry { op, direction: Direction::Forward, dtypes: &DType::FLOATS, targets: &TARGETS };
    let backward = Entry { direction: Direction::Backward, ..entry(activated::BACKWARD) };
    let of_unit = Entry { op: gated_backward::OP, ..backward };
    vec![entry(OP), entry(gated::OP), entry(activated::FORWARD), backward, of_unit]
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let o = &asked.options;
    // Square matrices.
    let side = (asked.len / 3).isqrt().max(1);
    let of = |extent: Option<usize>| extent.unwrap_or(side);
    if matches!(asked.entry.op, gated::OP | gated_backward::OP) {
        let op = asked.entry.op;
        let f = o.activation().unwrap_or(Activation::Silu);
        let unit = GatedActivation::ALL.into_iter().find(|unit| unit.activation() == f);
        let expected = "silu, gelu_erf or gelu_tanh";
        let activation = unit.ok_or_else(|| PlanError::refused(op, "activation", f.name(), expected))?;
        if op == gated_backward::OP {
            return asked.plan(&GatedActivationLinearBackwardDesc {
                dtype: asked.dtype,
                rows: of(o.m()),
                in_features: of(o.n()),
                out_features: of(o.k()),
                transpose_b: o.transpose().is_some_and(|transpose| transpose.b),
                activation,
            });
        }
        return asked.plan(&GatedLinearDesc {
            dtype: asked.dtype,
            rows: of(o.m()),
            in_features: of(o.k()),
            out_features: of(o.n()),
            activation,
            bias: o.bias().is_some(),
            saved: o.saved().is_some(),
        });
    }
    if matches!(asked.entry.op, activated::FORWARD | activated::BACKWARD) {
        return plan_activated(asked, [of(o.m()), of(o.n()), of(o.k())]);
    }
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

/// The same of products beside an activation, by the rows and columns of the results and the common dimension.
fn plan_activated(asked: &Asked<'_>, [rows, cols, depth]: [usize; 3]) -> Result<Planned, PlanError> {
    let (dtype, o) = (asked.dtype, &asked.options);
    let activation = o.activation().unwrap_or(Activation::GeluErf);
    if asked.entry.op == activated::FORWARD {
        return asked.plan(&LinearActivationDesc {
            dtype,
            rows,
            in_features: depth,
            out_features: cols,
            transpose_b: o.transpose().is_none_or(|transpose| transpose.b),
            bias: o.bias().is_some(),
            activation,
        });
    }
    asked.plan(&ActivationLinearBackwardDesc {
        dtype,
        rows,
        in_features: cols,
        out_features: depth,
        transpose_b: o.transpose().is_some_and(|transpose| transpose.b),
        activation,
    })
}

/// Every kernel that a plan can hold.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    if matches!(entry.op, gated::OP | gated_backward::OP) {
        return gated_kernels(entry, dtype, target);
    }
    if matches!(entry.op, activated::FORWARD | activated::BACKWARD) {
        return activated_kernels(entry, dtype, target);
    }
    let mut all = vec![
        plan::recorded(OP, &split::SumParts { dtype }, target)?,
        plan::recorded(OP, &pack::Pack { dtype }, target)?,
    ];
    let configs = tuning::configs(dtype, target);
    if configs.iter().any(|config| matches!(config, Config::F16x3(_))) {
        all.extend(f16x3::split_kernels(target)?);
    }
    if dtype == DType::F32 && target.sm == 90 {
        for config in tuning::shared_configs() {
            all.extend(shared::kernels(dtype, (Major::K, Major::K), target, config)?);
        }
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
                    Config::Shared(config) => {
                        all.extend(shared::kernels(dtype, (a, b), target, config)?);
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

/// Kernels of gated linear units but for those of products.
fn gated_kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let mut all = Vec::new();
    for activation in GatedActivation::ALL {
        let unit = Entry { op: activation.name(), ..*entry };
        all.extend((crate::activation::samples::FAMILY.kernels)(&unit, dtype, target)?);
        if dtype.bytes() != 2 || target.sm != 90 {
            continue;
        }
        let target = Target::specific(target.sm);
        let configs = tuning::persistent_configs().flat_map(|config| STORES.map(|store| (config, store)));
        for (config, store) in configs {
            if entry.op == gated_backward::OP {
                for b in [Major::K, Major::Mn] {
                    let (a, program) = (Major::K, Program::default());
                    let product = PersistentGemm { dtype, a, b, config, program, store };
                    let def = gated_backward::FactorsGemm { product, activation };
                    all.push(plan::recorded(entry.op, &def, target)?);
                }
            } else if gated::has_panels(&config) {
                let product = gated::GatedProduct { dtype, config, store, activation };
                all.push(plan::recorded(gated::OP, &product, target)?);
                for (bias, saved) in [(true, false), (false, true), (true, true)] {
                    let def = gated::GatedFactors { product, bias, saved };
                    all.push(plan::recorded(gated::OP, &def, target)?);
                }
            }
        }
    }
    Ok(all)
}

/// Kernels of products beside an activation but for those of products.
fn activated_kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let mut all = Vec::new();
    for activation in epilogue::ACTIVATIONS {
        let function = Entry { op: activation.name(), ..*entry };
        all.extend((crate::activation::samples::FAMILY.kernels)(&function, dtype, target)?);
        if dtype.bytes() != 2 || target.sm != 90 {
            continue;
        }
        for config in tuning::persistent_configs() {
            let largest = (config.rows, config.cols) == (128, 256);
            // Functions differ where tiles do not.
            if !(largest || activation == Activation::GeluErf) {
                continue;
            }
            for (b, store) in [Major::K, Major::Mn].into_iter().flat_map(|b| STORES.map(|store| (b, store))) {
                if entry.op == activated::FORWARD && !activated::has_registers(&config, b) {
                    continue;
                }
                let bias = entry.op == activated::FORWARD && b == Major::K;
                let program = Program { bias, ..Program::default() };
                let product = PersistentGemm { dtype, a: Major::K, b, config, program, store };
                let target = Target::specific(target.sm);
                all.push(if entry.op == activated::FORWARD {
                    plan::recorded(entry.op, &activated::SavingGemm { product, activation }, target)?
                } else {
                    plan::recorded(entry.op, &activated::DerivativeGemm { product, activation }, target)?
                });
            }
        }
    }
    Ok(all)
}

/// Epilogues of persistent kernels of a configuration: each way to store with the shortest and the longest, and in the largest tiles, where both
/// operands are along the common dimension, each function.
fn programs((a, b): (Major, Major), config: PersistentConfig) -> Vec<(Program, Store)> {
    let all =
        |activation| Program { scaled: true, addend: true, bias: true, activation, ..Program::default() };
    let mut programs = vec![Program::default(), all(Some(Activation::GeluErf))];
    if (a, b) == (Major::K, Major::K) && (config.rows, config.cols) == (128, 256) {
        programs.push(all(None));
        let functions = epilogue::ACTIVATIONS.into_iter().map(Some);
        programs.extend(functions.map(|activation| Program { bias: true, activation, ..Program::default() }));
    }
    programs.into_iter().flat_map(|program| STORES.map(|store| (program, store))).collect()
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
        for store in STORES {
            kernels.push(summing(store)?);
        }
    }
    Ok(kernels)
}
