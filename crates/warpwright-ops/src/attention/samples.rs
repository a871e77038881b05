//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::kernels::decode::combine::Combine;
use super::kernels::forward::{Forward, Masked};
use super::kernels::{backward, bias_gradient};
use super::plan::{decode, fused, split_f16, wgmma};
use super::score::ScoreKind;
use super::tuning::{Config, DecodeConfig, DecodeTma, Simt, Wgmma, Work};
use super::{
    AlibiSlopes, AttentionBackwardDesc, AttentionDesc, AttentionOptions, CacheScale, Float8Cache, OP, Packed,
    Paged, WIDE, tuning,
};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, TARGETS};
use crate::plan::{self, Layout as Strided, Real};
use crate::quantize8::FLOAT8_SM;

/// The scales of the samples' caches of 8-bit floats: kernels are the same for others.
pub(crate) const PER_TENSOR: Float8Cache =
    Float8Cache { k_scale: CacheScale::PerTensor, v_scale: CacheScale::PerTensor };

/// The family.
pub(crate) const FAMILY: Family = Family { name: "attention", aliases: &[], entries, plan, kernels };

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    let entry = |direction| Entry { op: OP, direction, dtypes: &DType::FLOATS, targets: &TARGETS };
    [Direction::Forward, Direction::Backward].map(entry).to_vec()
}

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
    let float8 = !asked.is_backward() && o.float8_cache().is_some();
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
        float8: float8.then_some(PER_TENSOR),
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

/// Kernels that a plan of `entry` can hold: each configuration with every modification, the usual ones without, and some
/// with one alone.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let plain = ScoreKind::default();
    let all = ScoreKind {
        band: true,
        softcap: true,
        bias: true,
        alibi: true,
        lengths: true,
        ..ScoreKind::default()
    };
    let dropped = ScoreKind { band: true, dropout: true, ..plain };
    let alone = [
        ScoreKind { band: true, ..plain },
        ScoreKind { softcap: true, ..plain },
        ScoreKind { bias: true, ..plain },
        ScoreKind { alibi: true, ..plain },
        ScoreKind { lengths: true, ..plain },
        ScoreKind { packed: true, ..plain },
    ];
    let packed = ScoreKind { band: true, packed: true, ..plain };
    let listed = ScoreKind { blocks: true, ..plain };
    let all_listed = ScoreKind { softcap: true, alibi: true, dropout: true, ..listed };
    let mut out = Vec::new();
    let works: &[Work] = match entry.direction {
        Direction::Forward => &[Work::Forward],
        Direction::Backward => &[Work::Queries, Work::KeysAndValues],
    };
    let usual = |kind: ScoreKind, config: Config| match config {
        _ if [all, all_listed].contains(&kind) => true,
        Config::Mma(_) => [plain, alone[0], packed, dropped, listed].contains(&kind),
        Config::Simt(Simt { vector: 1, .. }) => false,
        Config::Simt(Simt { width: 64, .. }) if dtype == DType::F32 => kind != packed,
        Config::Simt(_) => [plain, dropped].contains(&kind),
    };
    let kinds: Vec<_> =
        [all, plain, packed, dropped].into_iter().chain(alone).chain([listed, all_listed]).collect();
    for (&planned, &kind) in works.iter().flat_map(|work| kinds.iter().map(move |kind| (work, kind))) {
        let configs = tuning::all(dtype, planned, target, kind).into_iter();
        for config in configs.filter(|config| usual(kind, *config)) {
            let works = if planned == Work::KeysAndValues { Work::of_keys(config) } else { &[planned] };
            for &work in works {
                let (forward, sweep) =
                    (Forward { dtype, kind, config }, backward::Sweep { work, dtype, kind, config });
                out.push(match (work, kind.blocks) {
                    (Work::Forward, false) => plan::recorded(OP, &forward, target)?,
                    (Work::Forward, true) => plan::recorded(OP, &Masked(forward), target)?,
                    (_, false) => plan::recorded(OP, &sweep, target)?,
                    (_, true) => plan::recorded(OP, &Masked(sweep), target)?,
                });
            }
        }
    }
    if dtype == DType::F32 {
        out.extend(split_f16::kernels(entry.direction, target, &[all, plain, alone[0], dropped])?);
    }
    if entry.direction == Direction::Forward {
        let all_listed = ScoreKind { dropout: false, ..all_listed };
        for kind in [all, plain, packed, alone[0], alone[1], alone[2], listed, all_listed] {
            for config in tuning::all_wgmma(dtype, target, kind) {
                out.push(wgmma::kernel(dtype, kind, config, target)?);
                if !kind.packed {
                    let (kind, config) =
                        (ScoreKind { lengths: false, ..kind }, Wgmma { persistent: true, ..config });
                    out.push(wgmma::kernel(dtype, kind, config, target)?);
                }
            }
        }
        let float8 = WIDE.contains(&dtype) && target.sm >= FLOAT8_SM;
        for cache in [Some(dtype), float8.then_some(DType::F8E4M3)].into_iter().flatten() {
            for config in tuning::all_decode(cache, target) {
                let lengths = ScoreKind { lengths: true, ..plain };
                let shared = ScoreKind { band: true, ..lengths };
                let several = matches!(config, DecodeConfig::Tma(DecodeTma { slabs: 2.., .. }));
                for kind in [plain, if several { shared } else { lengths }, all] {
                    out.push(decode::kernel([dtype, cache], kind, config, target)?);
                }
            }
        }
        for vector in [1, 2, 4] {
            out.push(plan::recorded(OP, &Combine { dtype, vector }, target)?);
        }
    }
    if entry.direction == Direction::Backward {
        out.extend(wgmma::backward_kernels(dtype, target)?);
        out.extend(fused::kernels(dtype, target)?);
        for vector in tuning::vectors(dtype) {
            for width in tuning::TILE_WIDTHS {
                let def = backward::Delta { dtype, vector: *vector, width };
                out.push(plan::recorded(OP, &def, target)?);
            }
        }
        for kind in [alone[2], all] {
            for config in tuning::all(dtype, Work::Bias, target, kind) {
                out.push(plan::recorded(OP, &bias_gradient::BiasGradient { dtype, kind, config }, target)?);
            }
        }
        for kind in [plain, alone[5]] {
            out.push(plan::recorded(OP, &bias_gradient::SinkGradient { dtype, kind }, target)?);
        }
    }
    Ok(out)
}
