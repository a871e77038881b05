//! The parts of every plan of the family: checked sizes, the ways to walk over the tensors, and launches.

use warpwright_dsl::channels::CHANNELS_OF_BLOCK;
use warpwright_dsl::{ChannelSizesArgs, Elem, In, KernelArgs, KernelDef, Out};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use super::channel::{self, FOLD_CHANNELS, Types, present};
use super::kernel::{self, Common};
use super::tuning::{self, Config, Persistence, Residence, Split};
use super::{BatchNorm, Layout, Momentum, persistent, resident};
use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, TensorSpec, Variant};
use crate::tensors::{InSlot, OutSlot, SlotSpec};

/// Most blocks of a grid along x and along y.
const MAX_GRID: [u64; 2] = [(1 << 31) - 1, 65_535];

/// One walk over the tensors of a variant.
#[derive(Clone, Copy)]
pub(super) struct Walked {
    pub(super) common: Common,
    pub(super) split: Split,
    pub(super) grid: [u32; 3],
}

/// Tensors and settings of each channel for the step between the two walks of training.
pub(super) struct CombineChannels {
    pub(super) affine: channel::AffineArgs,
    pub(super) running: channel::RunningArgs,
    pub(super) results: channel::ResultsArgs,
    pub(super) settings: channel::SettingsArgs,
}

/// The parts of every plan of the family.
pub(super) struct Planner<'a> {
    pub(super) op: &'static str,
    target: Target,
    pub(super) norm: &'a BatchNorm,
    /// Elements of `x`.
    len: usize,
    pub(super) types: Types,
    pub(super) accumulate: DType,
}

impl<'a> Planner<'a> {
    pub(super) fn new(op: &'static str, norm: &'a BatchNorm, target: Target) -> Result<Self, PlanError> {
        let &BatchNorm { dtype, parameter_dtype, batch, channels, spatial, eps, .. } = norm;
        PlanError::check_floats(op, "x", dtype)?;
        let allowed: &'static [DType] = match dtype {
            DType::F64 => &[DType::F64],
            DType::F16 => &[DType::F16, DType::F32],
            DType::BF16 => &[DType::BF16, DType::F32],
            _ => &[DType::F32],
        };
        if !allowed.contains(&parameter_dtype) {
            return Err(PlanError::DType { op, tensor: "weight", got: parameter_dtype, expected: allowed });
        }
        PlanError::check_eps(op, eps)?;
        let len = batch.checked_mul(channels).and_then(|n| n.checked_mul(spatial));
        let len = len.filter(|len| isize::try_from(*len).is_ok()).ok_or_else(|| {
            let got = format!("{batch} * {channels} * {spatial}");
            PlanError::refused(op, "batch * channels * spatial", got, "below 2^63")
        })?;
        let types = Types { dtype, parameters: parameter_dtype };
        Ok(Self { op, target, norm, len, types, accumulate: dtype.accumulator() })
    }

    /// A batch of training must have a variance.
    pub(super) fn check_values(&self) -> Result<(), PlanError> {
        if self.norm.values() != 1 || self.norm.channels == 0 {
            return Ok(());
        }
        let expected = "more than one value per channel in training";
        Err(PlanError::refused(self.op, "batch * spatial", 1, expected))
    }

    pub(super) fn check_momentum(&self, momentum: Option<Momentum>) -> Result<(), PlanError> {
        let Some(momentum) = momentum.filter(|momentum| !momentum.factor().is_finite()) else {
            return Ok(());
        };
        let (got, expected) = (format!("{momentum:?}"), "a finite factor, or at least one batch");
        Err(PlanError::refused(self.op, "momentum", got, expected))
    }

    pub(super) fn check_dresidual(&self, dresidual: bool) -> Result<(), PlanError> {
        if !dresidual || self.norm.relu {
            return Ok(());
        }
        Err(PlanError::refused(self.op, "dresidual", true, "false without a ReLU: it is dy then"))
    }

    /// `[batch, channels]` is the same in both layouts.
    fn layout(&self) -> Layout {
        if self.norm.spatial == 1 { Layout::ChannelsLast } else { self.norm.layout }
    }

    /// Every way to walk, best first; none over an empty tensor. `streams` tensors are read.
    pub(super) fn walks(&self, streams: u32) -> Result<Vec<Walked>, PlanError> {
        if self.len == 0 {
            return Ok(Vec::new());
        }
        let (layout, dtype) = (self.layout(), self.norm.dtype);
        let (n, c, s) = (self.norm.batch as u64, self.norm.channels as u64, self.norm.spatial as u64);
        let run = if layout == Layout::ChannelsFirst { s } else { c };
        let of = |config: Config| {
            let split = tuning::split(layout, config, n, c, s);
            let blocks = match layout {
                Layout::ChannelsFirst => [split.parts * split.tiles, 1],
                Layout::ChannelsLast => [split.parts, split.tiles],
            };
            for (blocks, limit) in blocks.into_iter().zip(MAX_GRID) {
                if blocks > limit {
                    return Err(PlanError::TooLarge { op: self.op, blocks, limit });
                }
            }
            if split.part > u64::from(u32::MAX / 2) {
                return Err(PlanError::TooLarge { op: self.op, blocks: split.part, limit: 1 << 31 });
            }
            let grid = [blocks[0] as u32, blocks[1] as u32, 1];
            Ok(Walked { common: Common { dtype, layout, config }, split, grid })
        };
        tuning::configs(layout, dtype, run, streams).into_iter().map(of).collect()
    }

    pub(super) fn channels(&self) -> u64 {
        self.norm.channels as u64
    }

    pub(super) fn sizes(&self, split: &Split) -> ChannelSizesArgs {
        ChannelSizesArgs {
            extent: split.extent,
            part: split.part,
            row: split.row,
            channels: self.channels(),
            split: split.argument as u32,
            reciprocal: split.reciprocal.factor,
            shift: split.reciprocal.shift,
        }
    }

    pub(super) fn rows(&self, split: &Split) -> persistent::RowsArgs {
        let (row, split_across) = (split.row, split.argument as u32);
        persistent::RowsArgs { extent: split.extent, row, channels: self.channels(), split: split_across }
    }

    pub(super) fn step<D: KernelDef>(
        &self,
        def: &D,
        args: D::Args,
        grid: [u32; 3],
    ) -> Result<LaunchStep, PlanError> {
        plan::launch(self.op, def, args, self.target, grid)
    }

    /// The launch of blocks that hold so many bytes of the tensors in dynamic shared memory.
    fn holding<D: KernelDef>(
        &self,
        def: &D,
        args: D::Args,
        blocks: u32,
        bytes: u32,
    ) -> Result<LaunchStep, PlanError> {
        let kernel = plan::recorded(self.op, def, self.target)?;
        plan::launch_step(self.op, kernel, [blocks, 1, 1], args.values(), bytes)
    }

    pub(super) fn channel_grid(&self, per_block: u32) -> Result<[u32; 3], PlanError> {
        Ok(plan::cover(self.op, self.norm.channels, per_block)?.unwrap_or([1; 3]))
    }

    pub(super) fn present(&self, more: u32) -> u32 {
        plan::bits([(present::WEIGHT, self.norm.weight), (present::BIAS, self.norm.bias)]) | more
    }

    /// Elements of the workspace: `rows` values a channel and part, and the coefficients.
    pub(super) fn workspace_len(
        &self,
        walks: &[Walked],
        rows: usize,
        coefficients: usize,
        streams: u32,
    ) -> usize {
        let grid = self.persistence(streams).map_or(0, |p| u64::from(p.blocks));
        let parts = walks.iter().map(|w| w.split.parts).max().map_or(0, |parts| parts.max(grid) as usize);
        if walks.is_empty() { 0 } else { (parts * rows + coefficients) * self.norm.channels }
    }

    /// So many numbers of each channel.
    pub(super) fn numbers(&self, rows: usize) -> Result<usize, PlanError> {
        let numbers = self.norm.channels.checked_mul(rows).filter(|n| isize::try_from(*n).is_ok());
        numbers.ok_or_else(|| PlanError::refused(self.op, "channels", self.norm.channels, "below 2^60"))
    }

    /// Numbers of the moments of a batch: two of each channel, and how many values it has.
    pub(super) fn moments(&self) -> Result<usize, PlanError> {
        Ok(self.numbers(2)? + 1)
    }

    /// Where a row of the workspace starts, in bytes.
    pub(super) fn row(&self, row: u64) -> u64 {
        row * self.channels() * self.accumulate.bytes() as u64
    }

    /// A tensor like `x`.
    pub(super) fn full(&self, slot: InSlot) -> SlotSpec {
        slot.holds(self.norm.dtype, self.len)
    }

    /// A tensor like `x` that is written.
    pub(super) fn full_result(&self, slot: OutSlot) -> SlotSpec {
        slot.holds(self.norm.dtype, self.len)
    }

    /// A tensor that is read and has one value a channel.
    pub(super) fn parameter(&self, slot: InSlot) -> SlotSpec {
        slot.holds(self.norm.parameter_dtype, self.norm.channels)
    }

    /// How to read the tensors once, if their channels fit the shared memory of a cluster.
    pub(super) fn residence(&self, streams: u32) -> Option<Residence> {
        let BatchNorm { dtype, batch, channels, spatial, .. } = *self.norm;
        if self.len == 0 || self.layout() != Layout::ChannelsFirst {
            return None;
        }
        tuning::residence(self.target, dtype, streams, batch as u64, channels as u64, spatial as u64)
    }

    /// How to read what fits the whole device once, with channels last.
    pub(super) fn persistence(&self, streams: u32) -> Option<Persistence> {
        let BatchNorm { dtype, channels, .. } = *self.norm;
        if self.len == 0 || self.layout() != Layout::ChannelsLast {
            return None;
        }
        tuning::persistence(self.target, dtype, streams, self.norm.values() as u64, channels as u64)
    }

    pub(super) fn persistent(&self, r: &Persistence) -> persistent::Common {
        let BatchNorm { dtype, parameter_dtype: parameters, .. } = *self.norm;
        persistent::Common { dtype, parameters, config: r.config }
    }

    /// The one cooperative launch.
    pub(super) fn persistent_variant<D: KernelDef>(
        &self,
        def: &D,
        args: D::Args,
        r: &Persistence,
    ) -> Result<Variant, PlanError> {
        let step = self.holding(def, args, r.blocks, r.bytes)?.cooperative();
        Ok(Variant { alignment: tuning::alignment(r.config, self.norm.dtype), steps: vec![step] })
    }

    pub(super) fn resident(&self, r: &Residence) -> resident::Common {
        let BatchNorm { dtype, parameter_dtype: parameters, .. } = *self.norm;
        resident::Common { dtype, parameters, config: r.config, cluster: r.cluster }
    }

    /// The one launch of a residence.
    pub(super) fn resident_variant<D: KernelDef>(
        &self,
        def: &D,
        args: D::Args,
        r: &Residence,
    ) -> Result<Variant, PlanError> {
        let (blocks, limit) = (self.channels() * u64::from(r.cluster), MAX_GRID[0]);
        if blocks > limit {
            return Err(PlanError::TooLarge { op: self.op, blocks, limit });
        }
        let step = self.holding(def, args, blocks as u32, r.bytes)?;
        Ok(Variant { alignment: tuning::alignment(r.config, self.norm.dtype), steps: vec![step] })
    }

    pub(super) fn finish<O: Operation>(
        &self,
        direction: Direction,
        tensors: Vec<TensorSpec>,
        first: Option<Variant>,
        walks: Vec<Walked>,
        steps: impl Fn(&Walked) -> Result<Vec<LaunchStep>, PlanError>,
        empty: impl Fn() -> Result<Vec<LaunchStep>, PlanError>,
    ) -> Result<Plan<O>, PlanError> {
        let mut variants: Vec<Variant> = first.into_iter().collect();
        for walked in &walks {
            let alignment = tuning::alignment(walked.common.config, self.norm.dtype);
            variants.push(Variant { alignment, steps: steps(walked)? });
        }
        if variants.is_empty() {
            variants.push(Variant { alignment: 1, steps: empty()? });
        }
        Ok(Plan::of(self.op, direction, self.target, tensors, variants))
    }

    /// The walk that leaves three rows of statistics of each part.
    pub(super) fn partial_statistics(
        &self,
        walked: &Walked,
        x: InSlot,
        workspace: OutSlot,
    ) -> Result<LaunchStep, PlanError> {
        let sizes = self.sizes(&walked.split);
        let args = kernel::StatisticsArgs { x: x.arg(), partial: workspace.arg(), sizes };
        self.step(&kernel::Statistics(walked.common), args, walked.grid)
    }

    /// Statistics of whole channels: the walk that reads them, and what follows for each channel. Coefficients are in the workspace,
    /// behind three rows for each part.
    pub(super) fn statistics(
        &self,
        walked: &Walked,
        x: InSlot,
        workspace: OutSlot,
        of: &CombineChannels,
    ) -> Result<[LaunchStep; 2], PlanError> {
        let split = &walked.split;
        let statistics = self.partial_statistics(walked, x, workspace)?;
        let args = channel::CombineArgs {
            partial: workspace.written(),
            affine: of.affine.clone(),
            running: of.running.clone(),
            results: of.results.clone(),
            coefficients: workspace.arg_at(self.row(3 * split.parts)),
            channels: self.channels(),
            parts: split.parts,
            part_elements: split.part * split.per_step,
            elements: self.norm.values() as u64,
            settings: of.settings.clone(),
        };
        let grid = self.channel_grid(CHANNELS_OF_BLOCK)?;
        Ok([statistics, self.step(&channel::Combine(self.types), args, grid)?])
    }

    /// Fills the statistics of no values.
    pub(super) fn undefined(&self, mean: Out<Elem>, rstd: Out<Elem>) -> Result<Vec<LaunchStep>, PlanError> {
        if self.norm.channels == 0 {
            return Ok(Vec::new());
        }
        let args = channel::UndefinedArgs { mean, rstd, channels: self.channels() };
        Ok(vec![self.step(&channel::Undefined(self.accumulate), args, self.channel_grid(FOLD_CHANNELS)?)?])
    }

    /// Sums of whole channels from those of parts, and coefficients in the workspace behind two rows for each part.
    pub(super) fn combine_gradients(
        &self,
        walked: &Walked,
        saved: channel::SavedArgs,
        gradients: channel::GradientsArgs,
        workspace: OutSlot,
        training: u32,
    ) -> Result<LaunchStep, PlanError> {
        let parts = walked.split.parts;
        let args = channel::CombineGradientsArgs {
            partial: workspace.written(),
            saved,
            gradients,
            coefficients: workspace.arg_at(self.row(2 * parts)),
            channels: self.channels(),
            parts,
            elements: self.norm.values() as u64,
            present: self.present(training),
        };
        self.step(&channel::CombineGradients(self.types), args, self.channel_grid(CHANNELS_OF_BLOCK)?)
    }

    /// Gradients of weight and bias of no values.
    pub(super) fn zero(&self, gradients: channel::GradientsArgs) -> Result<Vec<LaunchStep>, PlanError> {
        if self.norm.channels == 0 || !(self.norm.weight || self.norm.bias) {
            return Ok(Vec::new());
        }
        let args = channel::ZeroArgs { gradients, channels: self.channels(), present: self.present(0) };
        Ok(vec![self.step(&channel::Zero(self.types), args, self.channel_grid(FOLD_CHANNELS)?)?])
    }

    /// The walk that writes the gradient of training from its coefficients.
    pub(super) fn gradient(
        &self,
        walked: &Walked,
        [x, g, coefficients]: [In<Elem>; 3],
        dx: Out<Elem>,
    ) -> Result<LaunchStep, PlanError> {
        let args = kernel::GradientArgs { x, g, coefficients, dx, sizes: self.sizes(&walked.split) };
        self.step(&kernel::Gradient(walked.common), args, walked.grid)
    }

    /// The walk that writes results: `y = max((x - mean) scale + shift + residual, lower)`.
    pub(super) fn normalize(
        &self,
        walked: &Walked,
        [x, residual]: [In<Elem>; 2],
        y: OutSlot,
        with_residual: bool,
        lower: f64,
        coefficients: In<Elem>,
    ) -> Result<LaunchStep, PlanError> {
        let def = kernel::Normalize { common: walked.common, residual: with_residual };
        let (y, sizes) = (y.arg(), self.sizes(&walked.split));
        let args = kernel::NormalizeArgs { x, residual, coefficients, y, lower, sizes };
        self.step(&def, args, walked.grid)
    }
}

#[cfg(test)]
mod tests {
    use warpwright_dsl::kernel_args;
    use warpwright_dsl::prelude::*;
    use warpwright_ptx::isa::DeviceLimits;

    use super::*;

    kernel_args! {
        struct NoArgs => NoParams { count: u32 }
    }

    struct Nothing;

    impl KernelDef for Nothing {
        type Args = NoArgs;

        fn spec(&self) -> KernelSpec {
            KernelSpec::new("nothing", BlockDim::x(32))
        }

        fn build<'k>(&self, _: K<'k>, _: NoParams<'k>) {}
    }

    /// Blocks of sm_90 hold more than those of sm_86 have.
    #[test]
    fn tensors_that_blocks_cannot_hold_are_refused() {
        const SMALL: Target = Target::sm(86);
        let norm = BatchNorm::new(DType::F32, Layout::ChannelsLast, 32, 256, 56 * 56);
        let large = Planner::new("batch_norm", &norm, Target::sm(90)).expect("a planner");
        let held = large.persistence(1).expect("rows of whole vectors");
        let limit = DeviceLimits::of(SMALL).shared_per_block;
        assert!(held.bytes > limit && held.bytes <= DeviceLimits::of(Target::sm(90)).shared_per_block);
        assert!(large.persistent_variant(&Nothing, NoArgs { count: 0 }, &held).is_ok());
        let small = Planner::new("batch_norm", &norm, SMALL).expect("a planner");
        match small.persistent_variant(&Nothing, NoArgs { count: 0 }, &held) {
            Err(PlanError::SharedMemory { op: "batch_norm", target: SMALL, bytes, limit: room, .. }) => {
                assert_eq!((bytes, room), (u64::from(held.bytes), limit));
            }
            Err(e) => panic!("{e}"),
            Ok(_) => panic!("{} bytes in {limit}", held.bytes),
        }
    }
}
