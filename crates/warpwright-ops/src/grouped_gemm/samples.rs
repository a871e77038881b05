//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::kernel::GroupedGemm;
use super::simt::Simt;
use super::{DTYPES, GroupedGemmDesc, Grouping, op, tuning};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, TARGETS};
use crate::gemm::engine::Store;
use crate::plan;

use warpwright_dsl::Major;

/// The family.
pub(crate) const FAMILY: Family =
    Family { name: "grouped_gemm", aliases: &[("grouped_gemm", "grouped_matmul")], entries, plan, kernels };

const GROUPINGS: [Grouping; 2] = [Grouping::M, Grouping::K];

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    let entry = |grouping| Entry {
        op: op(grouping),
        direction: Direction::Forward,
        dtypes: &DTYPES,
        targets: &TARGETS,
    };
    GROUPINGS.map(entry).to_vec()
}

/// The grouping of a row.
fn grouping(entry: &Entry) -> Grouping {
    if entry.op == op(Grouping::K) { Grouping::K } else { Grouping::M }
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let o = &asked.options;
    // Square matrices.
    let side = (asked.len / 3).isqrt().max(1);
    let sizes = [o.m(), o.n(), o.k()].map(|extent| extent.unwrap_or(side));
    let groups = o.groups().unwrap_or(8);
    asked.plan(&match grouping(&asked.entry) {
        Grouping::M => GroupedGemmDesc::new(asked.dtype, groups, sizes, true),
        Grouping::K => GroupedGemmDesc::new_k(asked.dtype, groups, sizes),
    })
}

/// Every kernel that a plan can hold.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let grouping = grouping(entry);
    let (a, of_b, whole): (_, &[Major], _) = match grouping {
        Grouping::M => (Major::K, &[Major::K, Major::Mn], Store::Whole),
        Grouping::K => (Major::Mn, &[Major::Mn], Store::Panels),
    };
    let mut all = Vec::new();
    for &b in of_b {
        all.push(plan::recorded(entry.op, &Simt { dtype, grouping, a, b }, target)?);
        if target.sm == 90 && dtype.bytes() == 2 {
            for config in tuning::configs() {
                for store in [whole, Store::Rows] {
                    let kernel = GroupedGemm { dtype, grouping, b, config, store };
                    all.push(plan::recorded(entry.op, &kernel, Target::specific(target.sm))?);
                }
            }
        }
    }
    Ok(all)
}
