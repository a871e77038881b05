//! The plan of all gradients in one sweep, on the tensor cores of sm_90a.

use warpwright_dsl::{DType, KernelArgs, Strided};
use warpwright_ptx::Target;
use warpwright_ptx::kernel::Kernel;
use warpwright_runtime::LaunchStep;

use super::super::kernels::backward::{Delta, PlaceArgs};
use super::super::kernels::wgmma::finish::{FinishArgs, FinishQueries, Prepare, PrepareArgs};
use super::super::kernels::wgmma::fused::{SumsArgs, SumsParams, WgmmaFusedArgs, WgmmaFusedBackward};
use super::super::kernels::wgmma::{VECTOR, boxes, recorded};
use super::super::layout::BlockLayout;
use super::super::options::Common;
use super::super::score::{ProblemArgs, ScoreKind};
use super::super::tuning::{self, WgmmaFused};
use super::super::{AttentionBackwardArgs, AttentionBackwardDesc, AttentionInputs, OP};
use super::wgmma::{pitch, statistics};
use super::{BackwardAlgorithm, wgmma};
use crate::PlanError;
use crate::plan;

/// Alignment in bytes of the parts that follow the statistics in the workspace.
const ALIGN: u64 = 256;

/// The places of the sums of queries in the workspace behind the statistics, in bytes: counters, and sums in `f32` of all tiles of queries.
#[derive(Clone, Copy, Debug)]
struct Sums {
    tiles: u32,
    counters: u64,
    dq: u64,
    end: u64,
}

impl Sums {
    fn new(c: &Common, config: WgmmaFused) -> Self {
        let heads = u64::from(c.batch) * u64::from(c.heads);
        let tiles = c.queries.div_ceil(config.columns);
        let all = heads * u64::from(tiles);
        let counters = (heads * 2 * u64::from(pitch(c)) * 4).next_multiple_of(ALIGN);
        let dq =
            (counters + heads * u64::from(SumsParams::counters_of_head(tiles)) * 4).next_multiple_of(ALIGN);
        let end = dq.saturating_add(all.saturating_mul(u64::from(config.columns * config.width * 4)));
        Self { tiles, counters, dq, end }
    }

    fn args(&self) -> SumsArgs {
        let workspace = AttentionBackwardArgs::workspace;
        SumsArgs {
            dq: workspace.read_write_at(self.dq),
            counters: workspace.read_write_at(self.counters),
            tiles: self.tiles,
        }
    }
}

impl AttentionBackwardDesc {
    /// The layout of the kernel for all gradients at once and how many heads are side by side, `None` where it does not take the problem
    /// or is slower.
    pub(in crate::attention) fn fused(
        &self,
        c: &Common,
        target: Target,
        algorithm: Option<BackwardAlgorithm>,
    ) -> Result<Option<(WgmmaFused, u32)>, PlanError> {
        let dtype = self.forward.dtype;
        let key_heads = c.heads / c.group.max(1);
        let chosen =
            |layout: WgmmaFused| tuning::heads_at_once(key_heads, c.group, [c.queries, c.keys], layout.width);
        match algorithm {
            Some(BackwardAlgorithm::WgmmaFused { layout, heads_at_once }) => {
                if c.queries == 0
                    || c.kind.blocks
                    || !self.suits_wgmma(c, target)
                    || !layout.fits(dtype, c.widest())
                {
                    let expected =
                        "a layout for the head_dim, and a problem with queries that kernels with wgmma take";
                    let got = format!("{layout:?}");
                    return Err(PlanError::Parameter { op: OP, parameter: "layout", got, expected });
                }
                let heads = heads_at_once.unwrap_or_else(|| chosen(layout));
                if !heads.is_power_of_two() || !key_heads.is_multiple_of(heads) {
                    let (parameter, got) = ("heads_at_once", heads.to_string());
                    let expected = "a power of two that divides the number of key heads";
                    return Err(PlanError::Parameter { op: OP, parameter, got, expected });
                }
                Ok(Some((layout, heads)))
            }
            None if self.suits_wgmma(c, target) && !c.kind.blocks => {
                let layout = tuning::wgmma_fused(c.widest(), c.longest[0]);
                Ok(layout.map(|layout| (layout, chosen(layout))))
            }
            _ => Ok(None),
        }
    }

    /// Bytes of the workspace.
    pub(super) fn fused_bytes(c: &Common, config: WgmmaFused) -> u64 {
        Sums::new(c, config).end
    }

    pub(super) fn fused_steps(
        &self,
        c: &Common,
        target: Target,
        (config, heads_at_once): (WgmmaFused, u32),
    ) -> Result<Vec<LaunchStep>, PlanError> {
        let (places, sums) = (PlaceArgs::apart(pitch(c)), Sums::new(c, config));
        let mut steps = Vec::new();
        if let Some((delta, grid, args)) = self.delta_launch(c, config.vector(), &places)? {
            let of_head = SumsParams::counters_of_head(sums.tiles);
            let counters = AttentionBackwardArgs::workspace.arg_at(sums.counters);
            let args = PrepareArgs { delta: args, counters, of_head };
            let kernel = plan::recorded(OP, &Prepare { delta }, target)?;
            steps.push(LaunchStep::new(kernel, grid, args.values()));
        }
        steps.extend(self.fused_sweep(c, target, (config, heads_at_once), &sums)?);
        if let Some(grid) = c.grid(sums.tiles, c.heads)? {
            let args = FinishArgs {
                sums: sums.args(),
                dq: Strided { data: AttentionBackwardArgs::dq.arg(), strides: self.dq.steps() },
                queries: c.queries,
                heads: c.heads,
                width: c.width,
                scale: c.scale,
            };
            let kernel = plan::recorded(OP, &FinishQueries::of(self.forward.dtype, config), target)?;
            steps.push(LaunchStep::new(kernel, grid, args.values()));
        }
        steps.extend(self.sink_gradient(c, target, &places)?);
        Ok(steps)
    }

    /// The sweep; `None` if there are no keys.
    fn fused_sweep(
        &self,
        c: &Common,
        target: Target,
        (config, heads_at_once): (WgmmaFused, u32),
        sums: &Sums,
    ) -> Result<Option<LaunchStep>, PlanError> {
        let (desc, dtype) = (&self.forward, self.forward.dtype);
        let key_heads = c.heads / c.group.max(1);
        let tiles = c.keys.div_ceil(config.rows());
        let along = u64::from(tiles) * u64::from(heads_at_once);
        let along = u32::try_from(along).ok().filter(|along| *along <= i32::MAX.cast_unsigned());
        let along = along.ok_or(PlanError::TooLarge {
            op: OP,
            blocks: u64::from(tiles) * u64::from(heads_at_once),
            limit: i32::MAX as u64,
        })?;
        let Some(grid) = c.grid(along, key_heads / heads_at_once)? else { return Ok(None) };
        let (own, columns) = (config.own(dtype), config.of_products(dtype));
        let kinds = u64::from(c.batch) * u64::from(c.heads) * 2;
        let places = [u64::from(c.queries), kinds, u64::from(pitch(c))];
        let [dk, dv] = self.written(false);
        let args = WgmmaFusedArgs {
            problem: ProblemArgs::new(c),
            queries: boxes(&AttentionInputs::q.arg(), &desc.q, columns)?,
            dy: boxes(&AttentionBackwardArgs::dy.arg(), &self.dy, columns)?,
            keys: boxes(&AttentionInputs::k.arg(), &desc.k, own)?,
            values: boxes(&AttentionInputs::v.arg(), &desc.v, own)?,
            statistics: statistics(&AttentionBackwardArgs::workspace.written(), places, config.columns),
            heads_at_once: heads_at_once.ilog2(),
            sums: sums.args(),
            dk,
            dv,
        };
        let kernel = fused(dtype, c.kind, config, target)?;
        plan::launch_step(OP, kernel, grid, args.values(), config.shared_bytes(dtype, 2)).map(Some)
    }
}

fn fused(dtype: DType, kind: ScoreKind, config: WgmmaFused, target: Target) -> Result<Kernel, PlanError> {
    recorded(&WgmmaFusedBackward { dtype, kind, config }, target)
}

/// Every kernel that tuning can choose.
pub(in crate::attention) fn kernels(dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let mut out = Vec::new();
    if !matches!(dtype, DType::F16 | DType::BF16) || target.sm != 90 {
        return Ok(out);
    }
    for width in [64, 128] {
        let delta = Delta { dtype, vector: VECTOR, width };
        out.push(plan::recorded(OP, &Prepare { delta }, target)?);
    }
    for width in tuning::FUSED_WIDTHS {
        let Some(config) = tuning::wgmma_fused(width as usize, u32::MAX) else { continue };
        for kind in wgmma::KINDS {
            out.push(fused(dtype, kind, config, target)?);
        }
        out.push(plan::recorded(OP, &FinishQueries::of(dtype, config), target)?);
    }
    Ok(out)
}
