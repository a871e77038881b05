//! Plans of the gradients.

use warpwright_dsl::{Elem, In, KernelArgs, Out, Strided};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use super::super::kernels::backward::{Delta, DeltaArgs, MaskedSweepArgs, PlaceArgs, Sweep, SweepArgs};
use super::super::kernels::bias_gradient::{BiasArgs, BiasGradient, SinkArgs, SinkGradient};
use super::super::kernels::dropout::Keys;
use super::super::kernels::forward::Masked;
use super::super::options::{self, Common};
use super::super::score::{ProblemArgs, ScoreKind};
use super::super::tuning::{self, Config, Work};
use super::super::{AttentionBackwardArgs, AttentionBackwardDesc, AttentionInputs, OP, statistics_type};
use super::{BackwardAlgorithm, alignment, check_divides, inputs, step, wgmma};
use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Layout, Operation, Plan, PlanParts, TensorSpec, Variant};
use crate::tensors::OutSlot;

impl Operation for AttentionBackwardDesc {
    type Args<'a> = AttentionBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.planned(target, None)
    }
}

impl AttentionBackwardDesc {
    /// The plan with one given algorithm, for comparisons.
    ///
    /// # Errors
    /// As [`Operation::plan`], and [`PlanError::Parameter`] if the problem or the target has no such kernels.
    pub fn plan_with(&self, target: Target, algorithm: BackwardAlgorithm) -> Result<Plan<Self>, PlanError> {
        self.planned(target, Some(algorithm))
    }

    fn planned(&self, target: Target, algorithm: Option<BackwardAlgorithm>) -> Result<Plan<Self>, PlanError> {
        let Self { forward: desc, dy, dq, dk, dv, dbias, dsinks } = self;
        options::trainable(desc, *dbias, *dsinks)?;
        let outputs = [("dq", dq), ("dk", dk), ("dv", dv)];
        let c = Common::new(desc, &desc.outputs())?;
        options::same_shapes(&[
            ("dy", dy, &desc.o),
            ("dq", dq, &desc.q),
            ("dk", dk, &desc.k),
            ("dv", dv, &desc.v),
        ])?;
        options::check_outputs(&outputs)?;
        let (dtype, statistics) = (desc.dtype, statistics_type(desc.dtype));
        let fused = self.fused(&c, target, algorithm)?;
        let groups = if fused.is_some() { None } else { self.wgmma(&c, target, algorithm)? };
        let workspace = match groups {
            Some(_) => 2 * c.batch as usize * c.heads as usize * wgmma::pitch(&c) as usize,
            None => 2 * desc.rows(),
        };
        let workspace_bytes = (workspace * statistics.bytes()) as u64;
        // What comes after it begins at an address like that of the workspace.
        let before = workspace_bytes.next_multiple_of(256);
        let split = match algorithm {
            None => self.split_f16(&c, target, None)?,
            Some(BackwardAlgorithm::SplitF16 { queries, keys }) => {
                self.split_f16(&c, target, Some([queries, keys]))?
            }
            Some(_) => None,
        };
        let workspace_bytes = match &split {
            Some(split) => before + Self::split_f16_bytes(&c, split),
            None => workspace_bytes,
        };
        let workspace_bytes = match fused {
            Some((config, _)) => Self::fused_bytes(&c, config).max(workspace_bytes),
            None => workspace_bytes,
        };
        let tensors = self.tensors(&c, workspace_bytes);
        let layouts = [desc.q, desc.k, desc.v, desc.o, *dy, *dq, *dk, *dv];
        let [of_queries, of_keys, of_bias] = match algorithm {
            Some(BackwardAlgorithm::Blocks { queries, keys }) => {
                [queries, keys, queries].map(|config| vec![config])
            }
            Some(_) => [const { Vec::new() }; 3],
            None => [
                c.configs(dtype, Work::Queries, target, &layouts)?,
                c.configs(dtype, Work::KeysAndValues, target, &layouts)?,
                c.configs(dtype, Work::Bias, target, &layouts)?,
            ],
        };
        let mut variants = Vec::new();
        if let Some(config) = fused {
            variants.push(Variant { alignment: 16, steps: self.fused_steps(&c, target, config)? });
        }
        if let Some(configs) = groups {
            variants.push(Variant { alignment: 16, steps: self.wgmma_steps(&c, target, configs)? });
        }
        if let Some(split) = split {
            variants
                .push(Variant { alignment: 16, steps: self.split_f16_steps(&c, target, &split, before)? });
        }
        for ((queries, keys), bias) in of_queries.into_iter().zip(of_keys).zip(of_bias) {
            let vector = queries.layout().vector().max(keys.layout().vector());
            let alignment = alignment(dtype, vector);
            // One kernel for an alignment.
            if variants.iter().any(|variant: &Variant| variant.alignment == alignment) {
                continue;
            }
            let mut steps = Vec::new();
            let places = PlaceArgs::interleaved(&c);
            steps.extend(self.delta(&c, target, vector, &places)?);
            steps.extend(self.sweep(&c, target, Work::Queries, queries)?);
            for work in Work::of_keys(keys) {
                steps.extend(self.sweep(&c, target, *work, keys)?);
            }
            steps.extend(self.bias_gradient(&c, target, bias)?);
            steps.extend(self.sink_gradient(&c, target, &places)?);
            variants.push(Variant { alignment, steps });
        }
        let direction = Direction::Backward;
        Ok(Plan::new(PlanParts { op: OP, direction, target, tensors, variants, workspace_bytes }))
    }

    /// The tensors of a plan with a workspace of so many bytes.
    fn tensors(&self, c: &Common, workspace_bytes: u64) -> Vec<TensorSpec> {
        let Self { forward: desc, dbias, dsinks, .. } = self;
        let (dtype, statistics) = (desc.dtype, statistics_type(desc.dtype));
        let of_bias = desc.options.bias.filter(|_| *dbias).map(|bias| Layout::contiguous(bias.shape));
        let others = [
            AttentionBackwardArgs::o.laid_out(dtype, desc.o),
            AttentionBackwardArgs::lse.holds(statistics, desc.rows()),
            AttentionBackwardArgs::dy.laid_out(dtype, self.dy),
            AttentionBackwardArgs::dq.laid_out(dtype, self.dq),
            AttentionBackwardArgs::dk.laid_out(dtype, self.dk),
            AttentionBackwardArgs::dv.laid_out(dtype, self.dv),
            match of_bias {
                Some(bias) => AttentionBackwardArgs::dbias.laid_out(dtype, bias),
                None => AttentionBackwardArgs::dbias.holds(dtype, 0).optional(false),
            },
            AttentionBackwardArgs::dsinks.holds(DType::F32, desc.q.shape[2]).optional(*dsinks),
            AttentionBackwardArgs::workspace
                .scratch(statistics, workspace_bytes as usize / statistics.bytes()),
        ];
        AttentionBackwardArgs::specs(inputs(c, desc).into_iter().chain(others))
    }

    /// The outputs of a sweep: its first gradient and that of the values.
    pub(super) fn written(&self, queries: bool) -> [Strided<Out<Elem>, 3>; 2] {
        let first = match queries {
            true => (AttentionBackwardArgs::dq, &self.dq),
            false => (AttentionBackwardArgs::dk, &self.dk),
        };
        let strided =
            |(slot, layout): (OutSlot, &Layout)| Strided { data: slot.arg(), strides: layout.steps() };
        [first, (AttentionBackwardArgs::dv, &self.dv)].map(strided)
    }

    /// The gradient of the result.
    pub(super) fn dy(&self) -> Strided<In<Elem>, 3> {
        Strided { data: AttentionBackwardArgs::dy.arg(), strides: self.dy.steps() }
    }

    pub(super) fn sweep_args(&self, c: &Common, queries: bool) -> SweepArgs {
        let [first, second] = self.written(queries);
        let statistics = AttentionBackwardArgs::workspace.written();
        SweepArgs { problem: ProblemArgs::new(c), dy: self.dy(), statistics, first, second }
    }

    /// One sweep; `None` if there are no rows.
    fn sweep(
        &self,
        c: &Common,
        target: Target,
        work: Work,
        config: Config,
    ) -> Result<Option<LaunchStep>, PlanError> {
        let queries = work == Work::Queries;
        let [of_queries, of_keys] = c.longest;
        let (rows, heads) = if queries { (of_queries, c.heads) } else { (of_keys, c.heads / c.group) };
        let tiles = rows.div_ceil(config.layout().rows());
        let Some(grid) = c.grid(tiles, heads)? else { return Ok(None) };
        let args = self.sweep_args(c, queries);
        let dtype = self.forward.dtype;
        let def = Sweep { work, dtype, kind: c.kind, config };
        let keys = if queries { Keys::Columns } else { Keys::Rows };
        let work = (work, dtype, target);
        let step = match c.mask_args(keys) {
            None => step(&def, config, work, grid, args.values())?,
            Some(mask) => {
                check_divides(config)?;
                let args = MaskedSweepArgs { sweep: args, mask };
                step(&Masked(def), config, work, grid, args.values())?
            }
        };
        Ok(Some(step))
    }

    /// The gradient of the bias; `None` if there is none.
    pub(super) fn bias_gradient(
        &self,
        c: &Common,
        target: Target,
        config: Config,
    ) -> Result<Option<LaunchStep>, PlanError> {
        let Some(bias) = self.forward.options.bias.filter(|_| self.dbias) else { return Ok(None) };
        let [batch, heads, rows, columns] = bias.shape;
        let tiles = |extent: usize, longest: u32, size: u32| {
            let all = u64::from(longest.div_ceil(size));
            // Where the bias has one for all queries or keys, one block has them all.
            if extent == 1 { 1 } else { all }
        };
        let along = tiles(rows, c.longest[0], config.layout().rows())
            * tiles(columns, c.longest[1], config.layout().tile_columns());
        let along = u32::try_from(along).map_err(|_| PlanError::TooLarge {
            op: OP,
            blocks: along,
            limit: i32::MAX as u64,
        })?;
        let grid = [along, heads as u32, batch as u32];
        c.grid(along, c.heads)?;
        if grid.contains(&0) {
            return Ok(None);
        }
        let args = BiasArgs {
            problem: ProblemArgs::new(c),
            dy: self.dy(),
            statistics: AttentionBackwardArgs::workspace.written(),
            dbias: Strided {
                data: AttentionBackwardArgs::dbias.arg(),
                strides: Layout::contiguous(bias.shape).strides.map(i64::cast_unsigned),
            },
            one: bias.shape.map(|extent| u32::from(extent == 1)),
            batches: c.batch,
            longest: c.longest,
        };
        let dtype = self.forward.dtype;
        let def = BiasGradient { dtype, kind: c.kind, config };
        step(&def, config, (Work::Bias, dtype, target), grid, args.values()).map(Some)
    }

    /// The gradients of the sinks; `None` if there are none.
    pub(super) fn sink_gradient(
        &self,
        c: &Common,
        target: Target,
        places: &PlaceArgs,
    ) -> Result<Option<LaunchStep>, PlanError> {
        if !self.dsinks || c.heads == 0 {
            return Ok(None);
        }
        let args = SinkArgs {
            problem: ProblemArgs::new(c),
            sinks: AttentionInputs::sinks.arg(),
            lse: AttentionBackwardArgs::lse.arg(),
            statistics: AttentionBackwardArgs::workspace.written(),
            dsinks: AttentionBackwardArgs::dsinks.arg(),
            batches: c.batch,
            places: places.clone(),
        };
        let kind = ScoreKind { packed: c.kind.packed, ..ScoreKind::default() };
        let def = SinkGradient { dtype: self.forward.dtype, kind };
        plan::launch(OP, &def, args, target, [c.heads, 1, 1]).map(Some)
    }

    /// The sums of `dy o`; `None` if there are no queries.
    pub(super) fn delta(
        &self,
        c: &Common,
        target: Target,
        vector: u32,
        places: &PlaceArgs,
    ) -> Result<Option<LaunchStep>, PlanError> {
        let Some((def, grid, args)) = self.delta_launch(c, vector, places)? else { return Ok(None) };
        let kernel = plan::recorded(OP, &def, target)?;
        Ok(Some(LaunchStep::new(kernel, grid, args.values())))
    }

    /// Their kernel, grid and arguments; `None` if there are no queries.
    pub(super) fn delta_launch(
        &self,
        c: &Common,
        vector: u32,
        places: &PlaceArgs,
    ) -> Result<Option<(Delta, [u32; 3], DeltaArgs)>, PlanError> {
        let desc = &self.forward;
        let width = tuning::tile_width(c.value_width as usize).unwrap_or(tuning::MAX_WIDTH as u32);
        let def = Delta { dtype: desc.dtype, vector, width };
        let Some([tiles, heads, _]) = c.grid(c.queries.div_ceil(def.rows()), c.heads)? else {
            return Ok(None);
        };
        // The rows of packed sequences are those of one batch.
        let grid = [tiles, heads, desc.q.shape[0] as u32];
        let args = DeltaArgs {
            o: Strided { data: AttentionBackwardArgs::o.arg(), strides: desc.o.steps() },
            dy: self.dy(),
            lse: AttentionBackwardArgs::lse.arg(),
            statistics: AttentionBackwardArgs::workspace.arg(),
            queries: c.queries,
            heads: c.heads,
            width: c.value_width,
            places: places.clone(),
        };
        Ok(Some((def, grid, args)))
    }
}
