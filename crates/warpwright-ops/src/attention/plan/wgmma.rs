//! Plans on the tensor cores of sm_90a.

use warpwright_dsl::{Elem, In, KernelArgs, TensorMapArg};
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{
    DType, Target, TensorElement, TensorFill, TensorInterleave, TensorMap, TensorMode, TensorSwizzle,
};
use warpwright_runtime::LaunchStep;

use super::super::kernels::backward::PlaceArgs;
use super::super::kernels::dropout::Keys;
use super::super::kernels::forward::Masked;
use super::super::kernels::wgmma::backward::{MaskedWgmmaBackwardArgs, WgmmaBackward, WgmmaBackwardArgs};
use super::super::kernels::wgmma::forward::{MaskedWgmmaForwardArgs, WgmmaForward, WgmmaForwardArgs};
use super::super::kernels::wgmma::{boxes, reach, recorded};
use super::super::layout::BlockLayout;
use super::super::options::{self, Common};
use super::super::score::{ProblemArgs, ScoreKind};
use super::super::tuning::{self, Wgmma, WgmmaSweep, WgmmaSweeps, Work};
use super::super::{AttentionBackwardArgs, AttentionBackwardDesc, AttentionDesc, AttentionInputs, OP};
use super::{BackwardAlgorithm, divide_mask_tiles};
use crate::PlanError;
use crate::plan::{self, Variant};

impl AttentionDesc {
    /// Refuses a layout of blocks on sm_90a with which no kernel takes the problem.
    pub(super) fn check_wgmma(&self, c: &Common, target: Target, layout: Wgmma) -> Result<(), PlanError> {
        // Groups have a part of one tile of a mask each.
        let divides = !c.kind.blocks || divide_mask_tiles(&[layout.columns]);
        if self.suits_wgmma(c, target) && layout.holds(c.width, c.value_width) && divides {
            return Ok(());
        }
        Err(PlanError::Parameter {
            op: OP,
            parameter: "layout",
            got: format!("{layout:?}"),
            expected: "a layout for the head_dim, and 16-bit tensors that tensor copies of sm_90 reach",
        })
    }

    /// The layout of blocks on sm_90a, if such a kernel takes the problem.
    pub(in crate::attention) fn wgmma(&self, c: &Common, target: Target) -> Option<Wgmma> {
        let few = c.kind.band && c.longest[1] <= tuning::FEW_KEYS;
        let groups = match c.kind.blocks {
            true => tuning::wgmma_of_blocks([c.width, c.value_width])?,
            false => tuning::wgmma([c.width, c.value_width], c.kind.bias, few)?,
        };
        // Sequences that end early leave blocks with less to do, which others make up for that come when they are needed.
        let alike = !c.kind.lengths && !c.kind.packed;
        let persistent = alike && tuning::is_persistent(groups, c.kind.is_uneven(), c.longest[0]);
        self.suits_wgmma(c, target).then_some(Wgmma { persistent, ..groups })
    }

    fn suits_wgmma(&self, c: &Common, target: Target) -> bool {
        let halves = matches!(self.dtype, DType::F16 | DType::BF16) && target.sm == 90;
        let usual = self.options.paged.is_none() && !c.kind.dropout;
        halves
            && usual
            && options::granularity(&[self.q, self.k, self.v, self.o]) >= 8
            && reach(&[self.q, self.k, self.v])
    }

    pub(in crate::attention) fn wgmma_variant(
        &self,
        c: &Common,
        target: Target,
        config: Wgmma,
        blocks: Option<u32>,
    ) -> Result<Variant, PlanError> {
        let mut steps = Vec::new();
        let [tile_q, tile_k, tile_v] = config.panels(self.dtype);
        let tiles = c.longest[0].div_ceil(config.rows());
        if let Some(grid) = c.grid(tiles, c.heads)? {
            let (grid, all_tiles) =
                if config.persistent { persistent_grid(target, grid, blocks)? } else { (grid, 0) };
            let args = WgmmaForwardArgs {
                problem: ProblemArgs::new(c),
                results: self.results(),
                q_boxes: boxes(&AttentionInputs::q.arg(), &self.q, tile_q)?,
                k_boxes: boxes(&AttentionInputs::k.arg(), &self.k, tile_k)?,
                v_boxes: boxes(&AttentionInputs::v.arg(), &self.v, tile_v)?,
                tiles,
                all_tiles,
            };
            let kernel = kernel(self.dtype, c.kind, config, target)?;
            let shared = config.shared_bytes(self.dtype, 1);
            let values = match c.mask_args(Keys::Columns) {
                None => args.values(),
                Some(mask) => MaskedWgmmaForwardArgs { forward: args, mask }.values(),
            };
            steps.push(plan::launch_step(OP, kernel, grid, values, shared)?);
        }
        Ok(Variant { alignment: 16, steps })
    }
}

/// The grid of blocks that stay for `tiles` tiles of heads of batches, and how many these are; at most `blocks`, if that is given.
fn persistent_grid(
    target: Target,
    tiles: [u32; 3],
    blocks: Option<u32>,
) -> Result<([u32; 3], u32), PlanError> {
    let all = tiles.iter().fold(1usize, |all, n| all.saturating_mul(*n as usize));
    let [all, ..] = plan::cover(OP, all, 1)?.unwrap_or([1; 3]);
    Ok(([blocks.unwrap_or(tuning::blocks(target)).clamp(1, all), 1, 1], all))
}

/// The forward kernel with instructions of sm_90a alone.
pub(in crate::attention) fn kernel(
    dtype: DType,
    kind: ScoreKind,
    config: Wgmma,
    target: Target,
) -> Result<Kernel, PlanError> {
    let def = WgmmaForward { dtype, kind, config };
    if kind.blocks { recorded(&Masked(def), target) } else { recorded(&def, target) }
}

/// Numbers of queries, `pitch` of one kind after the other: the two kinds of `columns` queries. Coordinates: query, kind.
pub(super) fn statistics(tensor: &In<Elem>, [queries, kinds, pitch]: [u64; 3], columns: u32) -> TensorMapArg {
    let map = TensorMap {
        base: 0,
        element: TensorElement::F32,
        dims: vec![queries, kinds],
        strides: vec![pitch * 4],
        mode: TensorMode::Tiled { box_dims: vec![columns, 2] },
        element_strides: vec![1; 2],
        interleave: TensorInterleave::None,
        swizzle: TensorSwizzle::None,
        fill: TensorFill::Zero,
    };
    TensorMapArg::over(tensor, map)
}

/// Queries of a head as what is known of them is laid out: rows of a tensor map are multiples of 16 bytes.
pub(in crate::attention) fn pitch(c: &Common) -> u32 {
    c.queries.next_multiple_of(4)
}

/// Queries of all heads, twice, that a tensor map can count.
const MAX_KINDS: u64 = 1 << 31;

/// Whether the sweeps have all modifications of the scores.
const fn has_kind(kind: ScoreKind) -> bool {
    let ScoreKind { band: _, softcap, bias, alibi, lengths: _, packed, dropout, blocks: _ } = kind;
    !(softcap || bias || alibi || packed || dropout)
}

impl AttentionBackwardDesc {
    /// The configurations of the sweeps with `wgmma`, `None` where they do not take the problem.
    pub(in crate::attention) fn wgmma(
        &self,
        c: &Common,
        target: Target,
        algorithm: Option<BackwardAlgorithm>,
    ) -> Result<Option<WgmmaSweeps>, PlanError> {
        let (desc, fits) = (&self.forward, self.suits_wgmma(c, target));
        match algorithm {
            Some(
                BackwardAlgorithm::Blocks { .. }
                | BackwardAlgorithm::WgmmaFused { .. }
                | BackwardAlgorithm::SplitF16 { .. },
            ) => Ok(None),
            Some(BackwardAlgorithm::Wgmma(sweeps)) => {
                let widths = [c.width, c.value_width];
                let fit = sweeps.each().iter().all(|(work, config)| {
                    let divides = divide_mask_tiles(&[config.rows(), config.columns]);
                    config.fits(*work, desc.dtype, widths) && (divides || !c.kind.blocks)
                });
                if fits && fit {
                    return Ok(Some(sweeps));
                }
                let expected = "layouts for the head_dim, and a problem that kernels with wgmma take";
                let got = format!("{sweeps:?}");
                Err(PlanError::Parameter { op: OP, parameter: "sweeps", got, expected })
            }
            None if fits => {
                Ok(tuning::wgmma_sweeps(desc.dtype, target, [c.width, c.value_width], c.kind.blocks))
            }
            None => Ok(None),
        }
    }

    /// Whether kernels with `wgmma` take the problem.
    pub(super) fn suits_wgmma(&self, c: &Common, target: Target) -> bool {
        let desc = &self.forward;
        let all = [desc.q, desc.k, desc.v, desc.o, self.dy, self.dq, self.dk, self.dv];
        let halves = matches!(desc.dtype, DType::F16 | DType::BF16) && target.sm == 90;
        halves
            && reach(&[desc.q, desc.k, desc.v, self.dy])
            && options::granularity(&all) >= 8
            && has_kind(c.kind)
            && !self.dbias
            && u64::from(c.batch) * u64::from(c.heads) * 2 < MAX_KINDS
    }

    pub(in crate::attention) fn wgmma_steps(
        &self,
        c: &Common,
        target: Target,
        sweeps: WgmmaSweeps,
    ) -> Result<Vec<LaunchStep>, PlanError> {
        let places = PlaceArgs::apart(pitch(c));
        let mut steps = Vec::new();
        steps.extend(self.delta(c, target, sweeps.queries.vector(), &places)?);
        for (work, config) in sweeps.each() {
            steps.extend(self.wgmma_sweep(c, target, work, config)?);
        }
        steps.extend(self.sink_gradient(c, target, &places)?);
        Ok(steps)
    }

    /// One sweep; `None` if there are no rows.
    fn wgmma_sweep(
        &self,
        c: &Common,
        target: Target,
        work: Work,
        config: WgmmaSweep,
    ) -> Result<Option<LaunchStep>, PlanError> {
        let (desc, of_queries) = (&self.forward, work == Work::Queries);
        let dtype = desc.dtype;
        let (rows, heads) = if of_queries { (c.queries, c.heads) } else { (c.keys, c.heads / c.group) };
        let Some(grid) = c.grid(rows.div_ceil(config.rows()), heads)? else { return Ok(None) };
        let tensors = [
            (AttentionInputs::q, &desc.q),
            (AttentionBackwardArgs::dy, &self.dy),
            (AttentionInputs::k, &desc.k),
            (AttentionInputs::v, &desc.v),
        ];
        let (stationary, columns) = (config.stationary(dtype), config.of_products(dtype));
        let tiles = if of_queries { [stationary, columns] } else { [columns, stationary] };
        let tiles = tiles.as_flattened();
        let order = if of_queries { [0, 1, 2, 3] } else { [2, 3, 0, 1] };
        let map = |at: usize| {
            let (slot, layout) = tensors[order[at]];
            boxes(&slot.arg(), layout, tiles[order[at]])
        };
        let kinds = u64::from(c.batch) * u64::from(c.heads) * 2;
        let places = [u64::from(c.queries), kinds, u64::from(pitch(c))];
        let workspace = AttentionBackwardArgs::workspace;
        let [first, second] = self.written(of_queries);
        let args = WgmmaBackwardArgs {
            problem: ProblemArgs::new(c),
            stationary_first: map(0)?,
            stationary_second: map(1)?,
            columns_first: map(2)?,
            columns_second: map(3)?,
            statistics: workspace.written(),
            of_queries: statistics(&workspace.written(), places, config.columns),
            pitch: pitch(c),
            first,
            second,
        };
        let kernel = sweep(work, dtype, c.kind, config, target)?;
        let shared = config.shared_bytes(dtype, work.stationary());
        let values = match c.mask_args(if of_queries { Keys::Columns } else { Keys::Rows }) {
            None => args.values(),
            Some(mask) => MaskedWgmmaBackwardArgs { sweep: args, mask }.values(),
        };
        plan::launch_step(OP, kernel, grid, values, shared).map(Some)
    }
}

fn sweep(
    work: Work,
    dtype: DType,
    kind: ScoreKind,
    config: WgmmaSweep,
    target: Target,
) -> Result<Kernel, PlanError> {
    let def = WgmmaBackward { work, dtype, kind, config };
    if kind.blocks { recorded(&Masked(def), target) } else { recorded(&def, target) }
}

/// Modifications of the scores that the gradients are recorded with: none, one, and all.
pub(super) const KINDS: [ScoreKind; 3] = {
    let plain = ScoreKind {
        band: false,
        softcap: false,
        bias: false,
        alibi: false,
        lengths: false,
        packed: false,
        dropout: false,
        blocks: false,
    };
    [plain, ScoreKind { band: true, ..plain }, ScoreKind { band: true, lengths: true, ..plain }]
};

/// Every kernel that tuning can choose.
pub(in crate::attention) fn backward_kernels(dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let mut out = Vec::new();
    for widths in tuning::SWEEP_WIDTHS {
        for kind in KINDS.into_iter().chain([ScoreKind { blocks: true, ..ScoreKind::default() }]) {
            let Some(sweeps) = tuning::wgmma_sweeps(dtype, target, widths, kind.blocks) else { continue };
            for (work, config) in sweeps.each() {
                out.push(sweep(work, dtype, kind, config, target)?);
            }
        }
    }
    Ok(out)
}
