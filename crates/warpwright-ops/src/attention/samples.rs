//! The family's rows of the catalogue, and its descriptors from options.

use super::{AlibiSlopes, AttentionBackwardDesc, AttentionDesc, AttentionOptions, Packed, Paged};
use crate::PlanError;
use crate::catalogue::{Asked, Family, Planned};
use crate::plan::{Layout as Strided, Real};

/// The family.
pub(crate) const FAMILY: Family =
    Family { name: "attention", aliases: &[], entries: super::entries, plan, kernels: super::kernels };

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let o = &asked.options;
    // Heads of 128 elements, 16 of them where there is room.
    let head_dim = o.head_dim().unwrap_or(128);
    let value_head_dim = o.value_head_dim().unwrap_or(head_dim);
    let heads = o.heads().unwrap_or((asked.len >> 17).clamp(1, 16));
    let num_kv_heads = o.num_kv_heads().unwrap_or(heads);
    let batch = o.batch().unwrap_or(1);
    let row = [batch, heads, head_dim].into_iter().fold(1, usize::saturating_mul);
    let queries = o.queries().unwrap_or((asked.len / row.max(1)).max(1));
    let keys = o.keys().unwrap_or(queries);
    let packed =
        o.sequences().map(|sequences| Packed { sequences, longest_queries: queries, longest_keys: keys });
    // Pages are of caches, whose keys have no gradients.
    let page_size = if asked.is_backward() { None } else { o.page_size() };
    let (key_lengths, causal) = (o.key_lengths().is_some(), o.causal().is_some());
    let (bias, sinks) = (o.bias().is_some(), o.sinks().is_some());
    let paged = page_size.map(|rows| Paged { pages: keys.div_ceil(rows.max(1)) });
    // Every sequence has pages of its own.
    let of_keys = match (page_size, paged) {
        (Some(rows), Some(Paged { pages })) => [batch.saturating_mul(pages), rows],
        _ => [batch, keys],
    };
    let sequences = packed.map_or(batch, |packed| packed.sequences);
    let options = AttentionOptions {
        causal,
        window: o.window().unwrap_or_default(),
        softcap: o.softcap().map(Real::new),
        bias: bias.then(|| Strided::contiguous([sequences, heads, queries, keys])),
        alibi: o.alibi().map(|_| AlibiSlopes::PerHead),
        key_lengths: key_lengths || paged.is_some(),
        packed,
        paged,
        sinks,
        dropout: o.dropout().map(Real::new),
        ..AttentionOptions::default()
    };
    let of = |[batch, rows]: [usize; 2], heads, width| Strided::contiguous([batch, rows, heads, width]);
    let q = of([batch, queries], heads, head_dim);
    let k = of(of_keys, num_kv_heads, head_dim);
    let v = of(of_keys, num_kv_heads, value_head_dim);
    let y = of([batch, queries], heads, value_head_dim);
    let forward = AttentionDesc { dtype: asked.dtype, q, k, v, o: y, options };
    if !asked.is_backward() {
        return asked.plan(&forward);
    }
    let (dbias, dsinks) = (bias, sinks);
    asked.plan(&AttentionBackwardDesc { forward, dy: y, dq: q, dk: k, dv: v, dbias, dsinks })
}
