//! Plans of the forward kernel on sm_90a.

use warpwright_dsl::KernelArgs;
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use super::super::options::{self, Common};
use super::super::score::{ProblemArgs, ScoreKind};
use super::super::tuning::{self, Warpgroups};
use super::super::{AttentionDesc, AttentionInputs, OP};
use super::forward::{ForwardArgs, WarpgroupForward};
use super::{boxes, reach, recorded};
use crate::PlanError;
use crate::plan::{self, Plan, Variant};

impl AttentionDesc {
    /// The plan on sm_90a with one given layout of blocks, for comparisons; where blocks stay, with at most `blocks` of them instead
    /// of one for each multiprocessor.
    ///
    /// # Errors
    /// As [`Operation::plan`](crate::Operation::plan); and if the target, the element type or the layouts have no such kernel.
    pub fn plan_warpgroups_with(
        &self,
        target: Target,
        groups: Warpgroups,
        blocks: Option<u32>,
    ) -> Result<Plan<Self>, PlanError> {
        let c = Common::new(self, &self.outputs())?;
        if !self.suits_warpgroups(&c, target) || !groups.holds(c.width.max(c.value_width)) {
            return Err(PlanError::Parameter {
                op: OP,
                parameter: "groups",
                got: format!("{groups:?}"),
                expected: "a layout for the head_dim, and 16-bit tensors that tensor copies of sm_90 reach",
            });
        }
        let variant = self.warpgroup_variant(&c, target, groups, blocks)?;
        Ok(self.with_variants(&c, target, vec![variant], 0))
    }

    /// The layout of blocks on sm_90a, if such a kernel takes the problem.
    pub(in super::super) fn warpgroups(&self, c: &Common, target: Target) -> Option<Warpgroups> {
        let few = c.kind.band && c.longest[1] <= tuning::FEW_KEYS;
        let groups = tuning::warpgroups(c.width.max(c.value_width), c.kind.bias, few)?;
        // Sequences that end early leave blocks with less to do, which others make up for that come when they are needed.
        let alike = !c.kind.lengths && !c.kind.packed;
        let staying = alike && tuning::stays(groups, c.kind.band, c.longest[0]);
        self.suits_warpgroups(c, target).then_some(Warpgroups { staying, ..groups })
    }

    fn suits_warpgroups(&self, c: &Common, target: Target) -> bool {
        let halves = matches!(self.dtype, DType::F16 | DType::BF16) && target.sm == 90;
        let usual = self.options.paged.is_none() && !c.kind.dropout;
        halves
            && usual
            && options::granularity(&[self.q, self.k, self.v, self.o]) >= 8
            && reach(&[self.q, self.k, self.v])
    }

    pub(in super::super) fn warpgroup_variant(
        &self,
        c: &Common,
        target: Target,
        config: Warpgroups,
        blocks: Option<u32>,
    ) -> Result<Variant, PlanError> {
        let mut steps = Vec::new();
        let [tile_q, tile_k, tile_v] = config.panels(self.dtype);
        let tiles = c.longest[0].div_ceil(config.rows());
        if let Some(grid) = c.grid(tiles, c.heads)? {
            let (grid, all_tiles) =
                if config.staying { staying_grid(target, grid, blocks)? } else { (grid, 0) };
            let args = ForwardArgs {
                problem: ProblemArgs::new(c),
                results: self.results(),
                q_boxes: boxes(&AttentionInputs::q.arg(), &self.q, tile_q)?,
                k_boxes: boxes(&AttentionInputs::k.arg(), &self.k, tile_k)?,
                v_boxes: boxes(&AttentionInputs::v.arg(), &self.v, tile_v)?,
                tiles,
                all_tiles,
            };
            let kernel = kernel(self.dtype, c.kind, config, target)?;
            let step = LaunchStep::new(kernel, grid, args.values());
            steps.push(step.with_dynamic_shared(config.shared_bytes()));
        }
        Ok(Variant { alignment: 16, steps })
    }
}

/// The grid of blocks that stay for `tiles` tiles of heads of batches, and how many these are; at most `blocks`, if that is given.
fn staying_grid(target: Target, tiles: [u32; 3], blocks: Option<u32>) -> Result<([u32; 3], u32), PlanError> {
    let all = tiles.iter().fold(1usize, |all, n| all.saturating_mul(*n as usize));
    let [all, ..] = plan::cover(OP, all, 1)?.unwrap_or([1; 3]);
    Ok(([blocks.unwrap_or(tuning::blocks(target)).clamp(1, all), 1, 1], all))
}

/// The forward kernel with instructions of sm_90a alone.
pub(in super::super) fn kernel(
    dtype: DType,
    kind: ScoreKind,
    config: Warpgroups,
    target: Target,
) -> Result<Kernel, PlanError> {
    recorded(&WarpgroupForward { dtype, kind, config }, target)
}
