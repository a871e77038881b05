//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::tuning;
use super::{GemmDesc, Major, OP, kernel_of, split};
use crate::PlanError;
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
    let Transpose { a, b } = o.transpose().unwrap_or(Transpose { a: false, b: true });
    let sizes = [of(o.m()), of(o.n()), of(o.k())];
    asked.plan(&GemmDesc {
        batch: o.batch().unwrap_or(1),
        beta: Real::new(o.beta().unwrap_or(0.0)),
        bias: o.bias().is_some(),
        activation: o.activation(),
        precision: asked.precision(),
        ..GemmDesc::new(asked.dtype, sizes, a, b)
    })
}

/// Every kernel that a plan can hold.
fn kernels(_: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let mut all = vec![plan::recorded(OP, &split::SumParts { dtype }, target)?];
    for config in tuning::configs(dtype, target) {
        for a in [Major::K, Major::Mn] {
            for b in [Major::K, Major::Mn] {
                for split in [false, true] {
                    all.push(kernel_of(dtype, (a, b), target, config, split)?);
                }
            }
        }
    }
    Ok(all)
}
