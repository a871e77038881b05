//! Plans for few queries, whose keys blocks share out.

use warpwright_dsl::{KernelArgs, Optional};
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use super::super::kernels::decode::combine::{Combine, CombineArgs};
use super::super::kernels::decode::float8::{ScaleArgs, Scaled, ScaledArgs, ScaledTmaArgs};
use super::super::kernels::decode::{Decode, DecodeArgs, PageArgs, PartArgs, TmaDecodeArgs};
use super::super::kernels::forward::ResultArgs;
use super::super::kernels::wgmma;
use super::super::options::{self, Common};
use super::super::score::{ProblemArgs, ScoreKind};
use super::super::tuning::{self, DecodeConfig, DecodeTma};
use super::super::{AttentionArgs, AttentionDesc, AttentionInputs, Float8Cache, OP, statistics_type};
use super::alignment;
use crate::PlanError;
use crate::plan::{self, Layout, Variant};

impl AttentionDesc {
    /// The layout for few queries whose tiles tensor copies bring, if they reach keys and values, and the number of parts.
    pub(super) fn tma_decode(
        &self,
        c: &Common,
        target: Target,
        layouts: &[Layout],
    ) -> Option<(DecodeTma, u32)> {
        let cache = self.cache_dtype();
        let reached = options::granularity(layouts) >= 8 && wgmma::reach_elements(cache, &[self.k, self.v]);
        let page = if self.options.paged.is_some() { self.k.shape[1] } else { usize::MAX };
        let rows = u64::from(c.queries) * u64::from(c.group);
        let layouts = tuning::tma_layouts(cache, target, rows, c.widest(), page);
        let units = |layout| c.units(DecodeConfig::Tma(layout));
        let first = *layouts.first().filter(|_| reached)?;
        tuning::tma_decode(&layouts, cache, target, units(first), c.keys.into())
    }

    /// The kernel for few queries, and where the keys are in several parts the one that puts them together.
    pub(super) fn decode_variants(
        &self,
        c: &Common,
        target: Target,
        configs: &[DecodeConfig],
        splits: u32,
    ) -> Result<Vec<Variant>, PlanError> {
        let of = |config: &DecodeConfig| {
            let alignment = alignment(self.dtype, config.layout().vector());
            Ok(Variant { alignment, steps: self.decode_steps(c, target, *config, splits)? })
        };
        configs.iter().map(of).collect()
    }

    fn decode_steps(
        &self,
        c: &Common,
        target: Target,
        config: DecodeConfig,
        splits: u32,
    ) -> Result<Vec<LaunchStep>, PlanError> {
        let (dtype, cache, rows) = (self.dtype, self.cache_dtype(), self.rows() as u64);
        let key_heads = c.heads / c.group.max(1);
        let tiles = c.row_tiles(config);
        let Some(grid) = c.grid(tiles.saturating_mul(splits), key_heads)? else { return Ok(Vec::new()) };
        let logarithms = self.parts_bytes(splits);
        let page_rows = if self.options.paged.is_some() { self.k.shape[1] } else { 1 << 31 };
        let pages = self.options.paged.map_or(1, |_| self.k.shape[0]);
        let args = DecodeArgs {
            problem: ProblemArgs::new(c),
            results: self.results(),
            parts: PartArgs {
                o: AttentionArgs::workspace.arg(),
                lse: AttentionArgs::workspace.arg_at(logarithms),
                splits,
                rows,
            },
            pages: PageArgs {
                table: Optional {
                    value: AttentionInputs::block_table.arg(),
                    given: self.options.paged.is_some(),
                },
                step: self.options.paged.map_or(0, |paged| paged.pages as u64),
                shift: page_rows.trailing_zeros(),
                count: u32::try_from(pages).unwrap_or(u32::MAX).min(i32::MAX.cast_unsigned()),
            },
        };
        let scales = self.options.float8.map(|Float8Cache { k_scale, v_scale }| ScaleArgs {
            k: AttentionInputs::k_scale.arg(),
            v: AttentionInputs::v_scale.arg(),
            steps: [k_scale.step(), v_scale.step()],
        });
        let args = match config {
            DecodeConfig::Simt(_) | DecodeConfig::Mma(_) => match scales {
                Some(scales) => ScaledArgs { of: args, scales }.values(),
                None => args.values(),
            },
            DecodeConfig::Tma(layout) => {
                let [keys, values] = layout.panels(cache);
                let k_boxes = wgmma::boxes(&AttentionInputs::k.arg(), &self.k, keys)?;
                let v_boxes = wgmma::boxes(&AttentionInputs::v.arg(), &self.v, values)?;
                let of = TmaDecodeArgs { of: args, k_boxes, v_boxes };
                match scales {
                    Some(scales) => ScaledTmaArgs { of, scales }.values(),
                    None => of.values(),
                }
            }
        };
        let kernel = kernel([dtype, cache], c.kind, config, target)?;
        let first = plan::launch_step(OP, kernel, grid, args, config.layout().shared_bytes(cache, 1))?;
        if splits == 1 {
            return Ok(vec![first]);
        }
        let ResultArgs { o, lse, sinks } = self.results();
        let args = CombineArgs {
            parts: AttentionArgs::workspace.written(),
            part_lse: AttentionArgs::workspace.written_at(logarithms),
            splits,
            rows,
            sinks,
            o,
            lse,
            queries: c.queries,
            heads: c.heads,
            width: c.value_width,
        };
        let kernel = plan::recorded(OP, &Combine { dtype, vector: config.layout().result_vector() }, target)?;
        let Some(grid) = plan::cover(OP, self.rows(), 1)? else { return Ok(vec![first]) };
        Ok(vec![first, LaunchStep::new(kernel, grid, args.values())])
    }

    /// Bytes of the parts of the result, which their logarithms follow in the workspace.
    fn parts_bytes(&self, splits: u32) -> u64 {
        let size = statistics_type(self.dtype).bytes() as u64;
        (self.rows() as u64) * u64::from(splits) * self.v.shape[3] as u64 * size
    }

    /// Bytes of the parts and of their logarithms, where there is more than one part.
    pub(super) fn splits_bytes(&self, splits: u32) -> u64 {
        if splits > 1 {
            self.parts_bytes(splits) / self.v.shape[3] as u64 * (self.v.shape[3] as u64 + 1)
        } else {
            0
        }
    }
}

/// The kernel of a layout, for queries and for keys and values of these types.
pub(in crate::attention) fn kernel(
    [dtype, cache]: [DType; 2],
    kind: ScoreKind,
    config: DecodeConfig,
    target: Target,
) -> Result<Kernel, PlanError> {
    match (config, cache.is_float8()) {
        (DecodeConfig::Simt(layout), false) => {
            plan::recorded(OP, &Decode { dtype, cache, kind, layout }, target)
        }
        (DecodeConfig::Mma(layout), false) => {
            plan::recorded(OP, &Decode { dtype, cache, kind, layout }, target)
        }
        (DecodeConfig::Tma(layout), false) => {
            plan::recorded(OP, &Decode { dtype, cache, kind, layout }, target)
        }
        (DecodeConfig::Simt(layout), true) => {
            plan::recorded(OP, &Scaled(Decode { dtype, cache, kind, layout }), target)
        }
        (DecodeConfig::Tma(layout), true) => {
            plan::recorded(OP, &Scaled(Decode { dtype, cache, kind, layout }), target)
        }
        (DecodeConfig::Mma(layout), true) => {
            plan::recorded(OP, &Scaled(Decode { dtype, cache, kind, layout }), target)
        }
    }
}
