//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::{AppendKvCacheDesc, CacheRotation, OP, kernel};
use crate::PlanError;
use crate::attention::samples::PER_TENSOR;
use crate::attention::{Paged, WIDE};
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, TARGETS};
use crate::plan::{self, Layout};
use crate::quantize8::FLOAT8_SM;
use crate::rotary::samples::{rotations, tables};

/// The family.
pub(crate) const FAMILY: Family = Family { name: "kv_cache", aliases: &[], entries, plan, kernels };

/// Heads and elements of a head where nothing is said.
const HEADS: usize = 8;
const HEAD_DIM: usize = 128;

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    vec![Entry { op: OP, direction: Direction::Forward, dtypes: &DType::FLOATS, targets: &TARGETS }]
}

/// Plans what is asked for: `steps` new tokens of each sequence, with rotary position embedding.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let o = &asked.options;
    let head_dim = o.head_dim().unwrap_or(HEAD_DIM);
    let value_dim = o.value_head_dim().unwrap_or(head_dim);
    let heads = o.heads().unwrap_or(HEADS);
    let num_kv_heads = o.num_kv_heads().unwrap_or(heads);
    let batch = o.batch().unwrap_or(1);
    let of_step = batch.saturating_mul(heads).saturating_mul(head_dim).max(1);
    let steps = o.steps().unwrap_or((asked.len / of_step).max(1));
    let capacity = o.keys().unwrap_or(steps);
    let paged = o.page_size().map(|rows| Paged { pages: capacity.div_ceil(rows.max(1)) });
    // Every sequence has pages of its own.
    let of_cache = match (o.page_size(), paged) {
        (Some(rows), Some(Paged { pages })) => [batch.saturating_mul(pages), rows],
        _ => [batch, capacity],
    };
    let of = |[batch, rows]: [usize; 2], heads, width| Layout::contiguous([batch, rows, heads, width]);
    let q = of([batch, steps], heads, head_dim);
    asked.plan(&AppendKvCacheDesc {
        dtype: asked.dtype,
        q: Some([q; 2]),
        k: of([batch, steps], num_kv_heads, head_dim),
        v: of([batch, steps], num_kv_heads, value_dim),
        k_cache: of(of_cache, num_kv_heads, head_dim),
        v_cache: of(of_cache, num_kv_heads, value_dim),
        rotation: Some(CacheRotation {
            pairing: o.pairing().unwrap_or_default(),
            rotary_dim: o.rotary_dim().unwrap_or(head_dim),
            tables: tables(asked, capacity),
        }),
        key_lengths: o.key_lengths().is_some(),
        paged,
        float8: o.float8_cache().map(|_| PER_TENSOR),
    })
}

/// Every kernel that a plan can hold.
fn kernels(_: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let plain = rotations(dtype).map(|rotate| plan::recorded(OP, &kernel::Append(rotate), target));
    let float8 = WIDE.contains(&dtype) && target.sm >= FLOAT8_SM;
    let scaled = rotations(dtype).filter(|_| float8);
    plain.chain(scaled.map(|rotate| plan::recorded(OP, &kernel::AppendScaled(rotate), target))).collect()
}
