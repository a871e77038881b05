//! Plans: which kernels a problem takes, and their launches.

mod backward;
pub(super) mod decode;
mod forward;
pub(super) mod fused;
pub(super) mod split_f16;
pub(super) mod wgmma;

use warpwright_dsl::KernelDef;
use warpwright_ptx::{ArgValue, DType, Target};
use warpwright_runtime::LaunchStep;

use super::options::Common;
use super::tuning::{Config, DecodeConfig, Mma, Simt, SplitF16, Wgmma, WgmmaFused, WgmmaSweeps, Work};
use super::{AlibiSlopes, AttentionDesc, AttentionInputs, AttentionOptions, CacheScale, MASK_TILE, OP};
use crate::PlanError;
use crate::plan;
use crate::tensors::{InSlot, SlotSpec};

/// How the forward function is computed, by the units that multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Ordinary arithmetic.
    Simt(Simt),
    /// Tensor cores, by warps: `f16`, `bf16`, and `f32` as sums of two `tf32`.
    Mma(Mma),
    /// Tensor cores of sm_90a, by warpgroups: `f16` and `bf16`.
    Wgmma {
        /// The layout of a block.
        layout: Wgmma,
        /// Most blocks of a persistent layout; without, one for each multiprocessor.
        blocks: Option<u32>,
    },
    /// Tensor cores, `f32` as sums of two `f16`; and the layout for tiles whose numbers do not suit that.
    SplitF16(SplitF16, Mma),
    /// Few queries: blocks share out the keys of a head.
    Decode {
        /// The layout of a block.
        layout: DecodeConfig,
        /// Parts of the keys.
        splits: u32,
    },
}

impl From<Config> for Algorithm {
    fn from(config: Config) -> Self {
        match config {
            Config::Simt(layout) => Self::Simt(layout),
            Config::Mma(layout) => Self::Mma(layout),
        }
    }
}

/// How the gradients are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackwardAlgorithm {
    /// Ordinary arithmetic, or tensor cores by warps.
    Blocks {
        /// For the gradients of queries, and of the bias.
        queries: Config,
        /// For those of keys and values.
        keys: Config,
    },
    /// Tensor cores of sm_90a, by warpgroups: a sweep for the gradients of queries, and one or two for those of keys and values.
    Wgmma(WgmmaSweeps),
    /// The same, all gradients in one sweep: blocks add up those of queries in the workspace, in a fixed order.
    WgmmaFused {
        /// The layout of a block.
        layout: WgmmaFused,
        /// Heads of keys side by side in the order in which blocks begin, a power of two that divides their number; without, what tuning says.
        heads_at_once: Option<u32>,
    },
    /// Tensor cores, `f32` as sums of two `f16`; each with the layout for tiles whose numbers do not suit that.
    SplitF16 {
        /// For the gradients of queries.
        queries: (SplitF16, Mma),
        /// For those of keys and values.
        keys: (SplitF16, Mma),
    },
}

impl From<[Config; 2]> for BackwardAlgorithm {
    fn from([queries, keys]: [Config; 2]) -> Self {
        Self::Blocks { queries, keys }
    }
}

/// The tensors that both directions read, as their plans specify them.
fn inputs(c: &Common, desc: &AttentionDesc) -> Vec<SlotSpec> {
    let (dtype, batch, heads) = (desc.dtype, c.batch as usize, desc.q.shape[2]);
    let AttentionOptions {
        bias, alibi, key_lengths, packed, paged, sinks, dropout, float8, block_mask, ..
    } = desc.options;
    let scales = |slot: InSlot, scale: Option<CacheScale>| {
        let len = scale.map_or(0, |scale| scale.len(desc.k.shape[2]));
        slot.holds(DType::F32, len).optional(scale.is_some())
    };
    let slopes = match alibi {
        Some(AlibiSlopes::PerBatchAndHead) => batch * heads,
        _ => heads,
    };
    let integers = |slot: InSlot, len, there| slot.holds(DType::I32, len).optional(there);
    let pages = paged.map_or(0, |paged| paged.pages);
    let extents = [c.queries, c.keys].map(|n| n as usize);
    let tables = block_mask.and_then(|mask| mask.lens(extents)).unwrap_or_default();
    vec![
        AttentionInputs::q.laid_out(dtype, desc.q),
        AttentionInputs::k.laid_out(desc.cache_dtype(), desc.k),
        AttentionInputs::v.laid_out(desc.cache_dtype(), desc.v),
        match bias {
            Some(bias) => AttentionInputs::bias.laid_out(dtype, bias),
            None => AttentionInputs::bias.holds(dtype, 0).optional(false),
        },
        AttentionInputs::slopes.holds(DType::F32, slopes).optional(c.kind.alibi),
        integers(AttentionInputs::key_lengths, batch, key_lengths),
        integers(AttentionInputs::query_offsets, batch + 1, packed.is_some()),
        integers(AttentionInputs::key_offsets, batch + 1, packed.is_some()),
        integers(AttentionInputs::block_table, batch * pages, paged.is_some()),
        AttentionInputs::sinks.holds(DType::F32, heads).optional(sinks),
        AttentionInputs::random.holds(DType::I64, 2).optional(dropout.is_some()),
        scales(AttentionInputs::k_scale, float8.map(|float8| float8.k_scale)),
        scales(AttentionInputs::v_scale, float8.map(|float8| float8.v_scale)),
        integers(AttentionInputs::key_tiles, tables[0], block_mask.is_some()),
        integers(AttentionInputs::query_tiles, tables[1], block_mask.is_some()),
        integers(AttentionInputs::mask_bits, tables[2], block_mask.is_some()),
    ]
}

/// Alignment in bytes that accesses of `vector` elements want of all tensors, integers too; single elements are where they are.
fn alignment(dtype: DType, vector: u32) -> u64 {
    if vector == 1 { 1 } else { (dtype.bytes() as u64 * u64::from(vector)).min(16) }
}

/// Whether tiles of a mask are whole numbers of so many rows or columns.
fn divide_mask_tiles(extents: &[u32]) -> bool {
    extents.iter().all(|extent| MASK_TILE.is_multiple_of(*extent))
}

/// Refuses layouts whose blocks or tiles do not divide the tiles of a mask.
fn check_divides(config: Config) -> Result<(), PlanError> {
    let layout = config.layout();
    if divide_mask_tiles(&[layout.rows(), layout.tile_columns()]) {
        return Ok(());
    }
    let got = format!("{} rows and {} columns", layout.rows(), layout.tile_columns());
    Err(PlanError::refused(OP, "layout", got, "rows and columns that divide 128 with block_mask"))
}

/// The launch of a kernel with a layout of the units by blocks.
fn step<D: KernelDef>(
    def: &D,
    config: Config,
    (work, dtype, target): (Work, DType, Target),
    grid: [u32; 3],
    args: Vec<ArgValue>,
) -> Result<LaunchStep, PlanError> {
    let shared = config.layout().shared_bytes(dtype, work.stationary());
    plan::launch_step(OP, plan::recorded(OP, def, target)?, grid, args, shared)
}
