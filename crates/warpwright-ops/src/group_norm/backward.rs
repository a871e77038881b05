//! The gradient as an operation.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use super::tuning::{self, Divisor, Path};
use super::{GroupShape, Layout, OP, Sizes, Steps, column_gradients, common, gradients, resident, variants};
use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan};
use crate::tensors::tensors;

/// Backward.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupNormBackwardDesc {
    /// Element type of `x`, `dy`, `weight`, `bias`, `dx`, `dweight` and `dbias`.
    pub dtype: DType,
    /// The tensor and its groups.
    pub shape: GroupShape,
    /// Whether there is a weight.
    pub weight: bool,
    /// Whether there is a bias. It is read only if `silu` followed.
    pub bias: bool,
    /// Whether `silu` followed.
    pub silu: bool,
    /// Whether the gradient of the weight is wanted.
    pub dweight: bool,
    /// Whether the gradient of the bias is wanted.
    pub dbias: bool,
}

tensors! {
    /// Tensors of [`GroupNormBackwardDesc`].
    pub struct GroupNormBackwardArgs<'a> {
        /// The input of the forward operation.
        x: In,
        /// Gradient of its result.
        dy: In,
        /// The means that it saved, `[N, groups]`, f32 or f64.
        mean: In,
        /// `1 / sqrt(variance + eps)`, as `mean`.
        rstd: In,
        /// `[C]`
        weight: Option<In>,
        /// `[C]`; there if the descriptor has both `bias` and `silu`.
        bias: Option<In>,
        /// Gradient of `x`; may replace `dy` or `x`.
        dx: Out,
        /// Gradient of the weight, `[C]`.
        dweight: Option<Out>,
        /// Gradient of the bias, `[C]`.
        dbias: Option<Out>,
        /// Scratch memory, see [`Plan::workspace`].
        workspace: Option<Out>,
    }
}

type Args<'a> = GroupNormBackwardArgs<'a>;

/// The arguments of all kernels that go over the tensors.
fn inputs() -> gradients::InputsArgs {
    gradients::InputsArgs {
        x: Args::x.arg(),
        dy: Args::dy.arg(),
        mean: Args::mean.arg(),
        rstd: Args::rstd.arg(),
        weight: Args::weight.arg(),
        bias: Args::bias.arg(),
    }
}

/// Planes of scratch memory, in elements from its start.
#[derive(Clone, Copy, Debug)]
struct Scratch {
    /// Of one plane of sums.
    sums_plane: u64,
    /// Of one plane of partial sums.
    partials_plane: u64,
    bytes: u64,
    groups: u64,
}

impl Scratch {
    /// Sums of whole channels come first, then partial sums, then the means.
    fn partials(self) -> u64 {
        2 * self.sums_plane * self.bytes
    }

    fn means(self) -> u64 {
        2 * (self.sums_plane + self.partials_plane) * self.bytes
    }

    fn len(self) -> u64 {
        2 * (self.sums_plane + self.partials_plane + self.groups)
    }
}

impl GroupNormBackwardDesc {
    fn flags(&self) -> u32 {
        plan::bits([
            (common::HAS_WEIGHT, self.weight),
            (common::HAS_BIAS, self.bias && self.silu),
            (common::SAVES, self.parameters()),
            (common::SILU, self.silu),
            (gradients::WANTS_DWEIGHT, self.dweight),
            (gradients::WANTS_DBIAS, self.dbias),
        ])
    }

    /// Whether there are gradients of parameters.
    fn parameters(&self) -> bool {
        self.dweight || self.dbias
    }

    fn steps(&self, sizes: &Sizes, width: u32, path: Option<Path>) -> Result<Steps, PlanError> {
        let bytes = self.dtype.accumulator().bytes() as u64;
        if sizes.len == 0 {
            let scratch = Scratch { sums_plane: 0, partials_plane: 0, bytes, groups: 0 };
            let steps = self.parameter_step(sizes, 0, scratch)?;
            return Ok((steps.into_iter().collect(), 0));
        }
        match sizes.layout {
            Layout::ChannelsFirst => {
                let vectors = sizes.of_group * (sizes.spatial / u64::from(width));
                let groups = sizes.all_groups as u64;
                let tuned = || tuning::backward_for(self.dtype, sizes.target, width, groups, vectors);
                match path.unwrap_or_else(tuned) {
                    Path::Resident(config) => self.resident_steps(sizes, config, bytes),
                    Path::Streamed => self.contiguous_steps(sizes, width, bytes),
                }
            }
            Layout::ChannelsLast => self.column_steps(sizes, width, bytes),
        }
    }

    /// `dweight` and `dbias` from `rows` rows of sums.
    fn parameter_step(
        &self,
        sizes: &Sizes,
        rows: u64,
        scratch: Scratch,
    ) -> Result<Option<LaunchStep>, PlanError> {
        if !self.parameters() || sizes.channels == 0 {
            return Ok(None);
        }
        let args = gradients::ParameterArgs {
            sums: Args::workspace.written(),
            dweight: Args::dweight.arg(),
            dbias: Args::dbias.arg(),
            rows: sizes.word(rows)?,
            channels: sizes.channels,
            sums_plane: scratch.sums_plane,
            flags: self.flags(),
        };
        let [x, _, z] = sizes.grid(sizes.channels.div_ceil(u64::from(gradients::Parameters::LANES)))?;
        let def = gradients::Parameters { dtype: self.dtype };
        sizes.launch(&def, args, [x, 2, z]).map(Some)
    }

    fn resident_steps(
        &self,
        sizes: &Sizes,
        config: tuning::Resident,
        bytes: u64,
    ) -> Result<Steps, PlanError> {
        let dtype = self.dtype;
        let channel_vectors = sizes.spatial / u64::from(config.width);
        let vectors = sizes.of_group * channel_vectors;
        let divisor = Divisor::new(channel_vectors);
        let per_block = config.per_block(vectors, channel_vectors);
        // Blocks that a channel can lie in.
        let splits = match per_block.is_multiple_of(channel_vectors) {
            true => 1,
            false if channel_vectors.is_multiple_of(per_block) => channel_vectors / per_block,
            false => (channel_vectors - 1).div_ceil(per_block) + 1,
        };
        let rows = sizes.batch * splits;
        let wanted = if self.parameters() { rows * sizes.channels } else { 0 };
        let scratch = Scratch { sums_plane: wanted, partials_plane: 0, bytes, groups: 0 };
        let args = resident::BackwardArgs {
            inputs: inputs(),
            dx: Args::dx.arg(),
            sums: Args::workspace.arg(),
            groups: sizes.word(sizes.groups)?,
            of_group: sizes.word(sizes.of_group)?,
            vectors: sizes.word(vectors)?,
            per_block: sizes.word(per_block)?,
            channel_vectors: sizes.word(channel_vectors)?,
            magic: divisor.magic,
            shift: divisor.shift,
            splits: sizes.word(splits)?,
            sums_plane: scratch.sums_plane,
            reciprocal: sizes.reciprocal(),
            flags: self.flags(),
        };
        let grid = sizes.grid(sizes.all_groups as u64 * u64::from(config.cluster))?;
        let mut steps = vec![sizes.launch(&resident::Backward { dtype, config }, args, grid)?];
        steps.extend(self.parameter_step(sizes, rows, scratch)?);
        Ok((steps, scratch.len()))
    }

    /// The step between the partial sums and `dx`.
    fn finish_step(&self, sizes: &Sizes, splits: u32, scratch: Scratch) -> Result<LaunchStep, PlanError> {
        let at_once = sizes.of_group.clamp(1, u64::from(gradients::FINISH_THREADS)).next_power_of_two();
        let args = gradients::FinishArgs {
            partials: Args::workspace.written_at(scratch.partials()),
            weight: Args::weight.arg(),
            sums: Args::workspace.arg(),
            means: Args::workspace.arg_at(scratch.means()),
            groups: sizes.word(sizes.groups)?,
            of_group: sizes.word(sizes.of_group)?,
            log: at_once.trailing_zeros(),
            splits,
            plane: scratch.partials_plane,
            sums_plane: scratch.sums_plane,
            means_plane: scratch.groups,
            reciprocal: sizes.reciprocal(),
            flags: self.flags(),
        };
        let grid = sizes.grid(sizes.all_groups as u64)?;
        sizes.launch(&gradients::Finish { dtype: self.dtype }, args, grid)
    }

    fn contiguous_steps(&self, sizes: &Sizes, width: u32, bytes: u64) -> Result<Steps, PlanError> {
        let elements = common::Elements { dtype: self.dtype, width };
        let groups = sizes.all_groups as u64;
        let channel_vectors = sizes.spatial / u64::from(width);
        let (splits, per_split) = tuning::split_channel(sizes.batch * sizes.channels, channel_vectors);
        let scratch = Scratch {
            sums_plane: sizes.batch * sizes.channels,
            partials_plane: sizes.batch * sizes.channels * u64::from(splits),
            bytes,
            groups,
        };
        let warps = u64::from(tuning::STREAM_THREADS / 32);
        let parts = scratch.partials_plane;
        let cut = gradients::CutArgs {
            channels: sizes.word(sizes.channels)?,
            of_group: sizes.word(sizes.of_group)?,
            channel_vectors,
            splits,
            per_split,
        };
        let sums = gradients::SumsArgs {
            inputs: inputs(),
            partials: Args::workspace.arg_at(scratch.partials()),
            cut: cut.clone(),
            parts: sizes.word(parts)?,
            plane: scratch.partials_plane,
            flags: self.flags(),
        };
        let apply = gradients::ApplyArgs {
            inputs: inputs(),
            means: Args::workspace.written_at(scratch.means()),
            dx: Args::dx.arg(),
            cut: cut.clone(),
            parts: sizes.word(parts)?,
            means_plane: groups,
            flags: self.flags(),
        };
        let grid = sizes.grid(parts.div_ceil(warps))?;
        let mut steps = vec![
            sizes.launch(&gradients::Sums(elements), sums, grid)?,
            self.finish_step(sizes, splits, scratch)?,
            sizes.launch(&gradients::Apply(elements), apply, grid)?,
        ];
        steps.extend(self.parameter_step(sizes, sizes.batch, scratch)?);
        Ok((steps, scratch.len()))
    }

    fn column_steps(&self, sizes: &Sizes, width: u32, bytes: u64) -> Result<Steps, PlanError> {
        let elements = common::Elements { dtype: self.dtype, width };
        let groups = sizes.all_groups as u64;
        let t = sizes.tiling(width)?;
        let scratch = Scratch {
            sums_plane: sizes.batch * sizes.channels,
            partials_plane: sizes.batch * u64::from(t.splits) * sizes.channels,
            bytes,
            groups,
        };
        let sums = column_gradients::SumsArgs {
            inputs: inputs(),
            partials: Args::workspace.arg_at(scratch.partials()),
            groups: sizes.word(sizes.groups)?,
            of_group: sizes.word(sizes.of_group)?,
            shape: t.shape(sizes.spatial),
            plane: scratch.partials_plane,
            flags: self.flags(),
        };
        let apply = column_gradients::ApplyArgs {
            inputs: inputs(),
            means: Args::workspace.written_at(scratch.means()),
            dx: Args::dx.arg(),
            groups: sizes.word(sizes.groups)?,
            of_group: sizes.word(sizes.of_group)?,
            shape: t.shape(sizes.spatial),
            means_plane: groups,
            flags: self.flags(),
        };
        let mut steps = vec![
            sizes.launch(&column_gradients::Sums(elements), sums, t.grid)?,
            self.finish_step(sizes, t.splits, scratch)?,
            sizes.launch(&column_gradients::Apply(elements), apply, t.grid)?,
        ];
        steps.extend(self.parameter_step(sizes, sizes.batch, scratch)?);
        Ok((steps, scratch.len()))
    }

    /// The plan with a chosen path for vectors instead of the one that tuning takes: for tests and measurements. A
    /// resident kernel must have room for a group.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn plan_along(&self, target: Target, path: Path) -> Result<Plan<Self>, PlanError> {
        self.plan_by(target, Some(path))
    }

    fn plan_by(&self, target: Target, path: Option<Path>) -> Result<Plan<Self>, PlanError> {
        let sizes = Sizes::of(OP, target, self.dtype, self.shape)?;
        let (variants, workspace) =
            variants(&sizes, |width| self.steps(&sizes, width, path.filter(|p| p.fits(width))))?;
        let statistics = self.dtype.accumulator();
        let channels = self.shape.channels;
        let tensors = Args::specs([
            Args::x.holds(self.dtype, sizes.len),
            Args::dy.holds(self.dtype, sizes.len).like(Args::x),
            Args::mean.holds(statistics, sizes.all_groups),
            Args::rstd.holds(statistics, sizes.all_groups),
            Args::weight.holds(self.dtype, channels).optional(self.weight),
            Args::bias.holds(self.dtype, channels).optional(self.bias && self.silu),
            Args::dx.holds(self.dtype, sizes.len).in_place().like(Args::x),
            Args::dweight.holds(self.dtype, channels).optional(self.dweight),
            Args::dbias.holds(self.dtype, channels).optional(self.dbias),
            Args::workspace.scratch(statistics, workspace),
        ]);
        Ok(Plan::of(OP, Direction::Backward, target, tensors, variants))
    }
}

impl Operation for GroupNormBackwardDesc {
    type Args<'a> = GroupNormBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.plan_by(target, None)
    }
}

/// Every kernel that a backward plan can hold.
pub(super) fn kernels(dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let mut all = Vec::new();
    for width in [tuning::vector_width(dtype), 1] {
        let elements = common::Elements { dtype, width };
        for config in tuning::backward(dtype, target, width) {
            all.push(plan::recorded(OP, &resident::Backward { dtype, config }, target)?);
        }
        all.push(plan::recorded(OP, &gradients::Sums(elements), target)?);
        all.push(plan::recorded(OP, &gradients::Apply(elements), target)?);
        all.push(plan::recorded(OP, &column_gradients::Sums(elements), target)?);
        all.push(plan::recorded(OP, &column_gradients::Apply(elements), target)?);
    }
    all.push(plan::recorded(OP, &gradients::Finish { dtype }, target)?);
    all.push(plan::recorded(OP, &gradients::Parameters { dtype }, target)?);
    Ok(all)
}
