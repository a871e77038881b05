//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::clip::{CLIP_GRAD_NORM, ClipGradNormDesc, GRAD_NORM, GradNormDesc, Norm};
use super::{Adam, EIGHT_BIT_DTYPES, OptimizerDesc, Rule, Sgd};
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, TARGETS, distinct};
use crate::plan::Real;
use crate::{Operation, PlanError};

/// The family.
pub(crate) const FAMILY: Family = Family { name: "optimizer", aliases: &[], entries, plan, kernels };

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    let entry = |op| Entry { op, direction: Direction::Forward, dtypes: &DType::FLOATS, targets: &TARGETS };
    let wide = ["adamw", "adam", "sgd", GRAD_NORM, CLIP_GRAD_NORM].map(entry);
    let eight_bit = ["adamw8bit", "adam8bit"].map(|op| Entry { dtypes: &EIGHT_BIT_DTYPES, ..entry(op) });
    wide.into_iter().chain(eight_bit).collect()
}

fn rule(op: &str) -> Option<Rule> {
    match op {
        "adamw" | "adamw8bit" => Some(Rule::Adam(Adam::ADAMW)),
        "adam" | "adam8bit" => Some(Rule::Adam(Adam::ADAM)),
        "sgd" => Some(Rule::Sgd(Sgd { momentum: Real::new(0.9), ..Sgd::PLAIN })),
        _ => None,
    }
}

/// Whether an operation keeps moments in 8 bits.
fn is_eight_bit(op: &str) -> bool {
    op.ends_with("8bit")
}

fn desc(rule: Rule, dtype: DType, grad_dtype: DType, lens: Vec<usize>) -> OptimizerDesc {
    let (maximize, master, grad_scale, found_inf) = (false, false, false, false);
    let eight_bit = Vec::new();
    OptimizerDesc { rule, maximize, dtype, grad_dtype, master, grad_scale, found_inf, lens, eight_bit }
}

/// Tensors of a list that is asked for by their number.
const MOST_TENSORS: usize = 1 << 16;

/// Plans what is asked for: as many parameters of as many elements together.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let Asked { dtype, entry, len, .. } = *asked;
    let o = &asked.options;
    let count = o.batch().unwrap_or(1);
    if count > MOST_TENSORS {
        return Err(PlanError::refused(entry.op, "batch", count, "at most 65536 tensors"));
    }
    let lens = vec![o.len().unwrap_or(len / count.max(1)); count];
    let grads = GradNormDesc { norm: Norm::L2, dtype, lens: lens.clone() };
    match entry.op {
        GRAD_NORM => asked.plan(&grads),
        CLIP_GRAD_NORM => asked.plan(&ClipGradNormDesc { grads, max_norm: Real::new(1.0) }),
        op => {
            let rule = rule(op).ok_or_else(|| asked.unknown())?;
            let grad_dtype = o.parameter_dtype().map_or(dtype, |dtype| dtype.0);
            let eight_bit = vec![is_eight_bit(op); if is_eight_bit(op) { count } else { 0 }];
            asked.plan(&OptimizerDesc { eight_bit, ..desc(rule, dtype, grad_dtype, lens) })
        }
    }
}

/// Every kernel that a plan of `entry` can hold.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    if [GRAD_NORM, CLIP_GRAD_NORM].contains(&entry.op) {
        let grads = [Norm::L2, Norm::Infinity].map(|norm| GradNormDesc { norm, dtype, lens: vec![1] });
        return distinct(grads.into_iter().map(|grads| match entry.op {
            GRAD_NORM => grads.plan(target).map(Into::into),
            _ => ClipGradNormDesc { grads, max_norm: Real::new(1.0) }.plan(target).map(Into::into),
        }));
    }
    let rule = rule(entry.op).ok_or_else(|| PlanError::UnknownOperation { name: entry.op.to_owned() })?;
    let eight_bit = is_eight_bit(entry.op);
    let rules = match rule {
        Rule::Adam(_) if eight_bit => vec![rule],
        Rule::Adam(adam) => vec![rule, Rule::Adam(Adam { amsgrad: true, ..adam })],
        Rule::Sgd(sgd) => {
            vec![rule, Rule::Sgd(Sgd { nesterov: true, ..sgd }), Rule::Sgd(Sgd::PLAIN)]
        }
    };
    let wide = dtype.accumulator();
    let mut plans = Vec::new();
    for rule in rules {
        for grad in if wide == dtype { vec![dtype] } else { vec![dtype, wide] } {
            for master in if wide == dtype { vec![false] } else { vec![false, true] } {
                // Those of parameters with moments in f32 are beside those in 8 bits.
                let (lens, eight_bit) =
                    if eight_bit { (vec![1; 2], vec![true, false]) } else { (vec![1], Vec::new()) };
                let desc = OptimizerDesc { master, eight_bit, ..desc(rule, dtype, grad, lens) };
                plans.push(desc.plan(target).map(Into::into));
            }
        }
    }
    distinct(plans)
}
