//! From descriptors to launches.

use warpwright_dsl::{Elem, In, KernelArgs, KernelDef};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use super::channel::{self, CHANNELS, FOLD_CHANNELS, Types, present};
use super::kernel::{self, Common};
use super::tuning::{self, Config, Persistence, Residence, Split};
use super::walk::SizesArgs;
use super::{
    BatchNorm, BatchNormArgs, BatchNormBackwardArgs, BatchNormBackwardDesc, BatchNormDesc,
    BatchNormInferenceArgs, BatchNormInferenceBackwardArgs, BatchNormInferenceBackwardDesc,
    BatchNormInferenceDesc, INFERENCE, Layout, TRAINING,
};
use super::{persistent, resident};
use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, PlanParts, TensorSpec, Variant};
use crate::tensors::{InSlot, OutSlot, SlotSpec};

/// Most blocks of a grid along x and along y.
const MAX_GRID: [u64; 2] = [(1 << 31) - 1, 65_535];

/// One walk over the tensors of a variant.
struct Walked {
    common: Common,
    split: Split,
    grid: [u32; 3],
}

/// What every plan of the family needs.
struct Planner<'a> {
    op: &'static str,
    target: Target,
    norm: &'a BatchNorm,
    /// Elements of `x`.
    len: usize,
    types: Types,
    accumulate: DType,
}

impl<'a> Planner<'a> {
    fn new(op: &'static str, norm: &'a BatchNorm, target: Target) -> Result<Self, PlanError> {
        let &BatchNorm { dtype, parameter_dtype, batch, channels, spatial, eps, .. } = norm;
        if !DType::FLOATS.contains(&dtype) {
            return Err(PlanError::DType { op, tensor: "x", got: dtype, expected: &DType::FLOATS });
        }
        let allowed: &'static [DType] = match dtype {
            DType::F64 => &[DType::F64],
            DType::F16 => &[DType::F16, DType::F32],
            DType::BF16 => &[DType::BF16, DType::F32],
            _ => &[DType::F32],
        };
        if !allowed.contains(&parameter_dtype) {
            return Err(PlanError::DType { op, tensor: "weight", got: parameter_dtype, expected: allowed });
        }
        if !(eps.get() >= 0.0 && eps.get().is_finite()) {
            return Err(PlanError::Parameter {
                op,
                parameter: "eps",
                got: format!("{eps:?}"),
                expected: "at least 0 and finite",
            });
        }
        let len = batch.checked_mul(channels).and_then(|n| n.checked_mul(spatial));
        let len = len.filter(|len| isize::try_from(*len).is_ok()).ok_or_else(|| PlanError::Parameter {
            op,
            parameter: "batch * channels * spatial",
            got: format!("{batch} * {channels} * {spatial}"),
            expected: "below 2^63",
        })?;
        let types = Types { dtype, parameters: parameter_dtype };
        Ok(Self { op, target, norm, len, types, accumulate: dtype.accumulator() })
    }

    /// A batch of training must have a variance.
    fn check_values(&self) -> Result<(), PlanError> {
        if self.norm.values() != 1 || self.norm.channels == 0 {
            return Ok(());
        }
        Err(PlanError::Parameter {
            op: self.op,
            parameter: "batch * spatial",
            got: "1".to_owned(),
            expected: "more than one value per channel in training",
        })
    }

    fn check_dresidual(&self, dresidual: bool) -> Result<(), PlanError> {
        if !dresidual || self.norm.relu {
            return Ok(());
        }
        Err(PlanError::Parameter {
            op: self.op,
            parameter: "dresidual",
            got: "true".to_owned(),
            expected: "false without a ReLU: it is dy then",
        })
    }

    /// `[batch, channels]` is the same in both layouts.
    fn layout(&self) -> Layout {
        if self.norm.spatial == 1 { Layout::ChannelsLast } else { self.norm.layout }
    }

    /// Every way to walk, best first; none over an empty tensor. `streams` tensors are read.
    fn walks(&self, streams: u32) -> Result<Vec<Walked>, PlanError> {
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

    fn channels(&self) -> u64 {
        self.norm.channels as u64
    }

    fn sizes(&self, split: &Split) -> SizesArgs {
        SizesArgs::new(split, self.channels())
    }

    fn rows(&self, split: &Split) -> persistent::RowsArgs {
        let (row, split_across) = (split.row, split.argument as u32);
        persistent::RowsArgs { extent: split.extent, row, channels: self.channels(), split: split_across }
    }

    fn step<D: KernelDef>(&self, def: &D, args: D::Args, grid: [u32; 3]) -> Result<LaunchStep, PlanError> {
        Ok(LaunchStep::new(plan::recorded(self.op, def, self.target)?, grid, args.values()))
    }

    fn channel_grid(&self, per_block: u32) -> Result<[u32; 3], PlanError> {
        Ok(plan::cover(self.op, self.norm.channels, per_block)?.unwrap_or([1; 3]))
    }

    fn present(&self, more: u32) -> u32 {
        let bit = |given: bool, bit: u32| if given { bit } else { 0 };
        bit(self.norm.weight, present::WEIGHT) | bit(self.norm.bias, present::BIAS) | more
    }

    /// Elements of the workspace: `rows` values a channel and part, and the coefficients.
    fn workspace_len(&self, walks: &[Walked], rows: usize, coefficients: usize, streams: u32) -> usize {
        let grid = self.persistence(streams).map_or(0, |p| u64::from(p.blocks));
        let parts = walks.iter().map(|w| w.split.parts).max().map_or(0, |parts| parts.max(grid) as usize);
        if walks.is_empty() { 0 } else { (parts * rows + coefficients) * self.norm.channels }
    }

    /// Where a row of the workspace starts, in bytes.
    fn row(&self, row: u64) -> u64 {
        row * self.channels() * self.accumulate.bytes() as u64
    }

    /// A tensor like `x`.
    fn full(&self, slot: InSlot) -> SlotSpec {
        slot.holds(self.norm.dtype, self.len)
    }

    /// A tensor like `x` that is written.
    fn full_result(&self, slot: OutSlot) -> SlotSpec {
        slot.holds(self.norm.dtype, self.len)
    }

    /// What has one value a channel and is read.
    fn parameter(&self, slot: InSlot) -> SlotSpec {
        slot.holds(self.norm.parameter_dtype, self.norm.channels)
    }

    /// How to read the tensors once, if their channels fit the shared memory of a cluster.
    fn residence(&self, streams: u32) -> Option<Residence> {
        let BatchNorm { dtype, batch, channels, spatial, .. } = *self.norm;
        if self.len == 0 || self.layout() != Layout::ChannelsFirst {
            return None;
        }
        tuning::residence(self.target, dtype, streams, batch as u64, channels as u64, spatial as u64)
    }

    /// How to read what fits the whole device once, with channels last.
    fn persistence(&self, streams: u32) -> Option<Persistence> {
        let BatchNorm { dtype, channels, .. } = *self.norm;
        if self.len == 0 || self.layout() != Layout::ChannelsLast {
            return None;
        }
        tuning::persistence(self.target, dtype, streams, self.norm.values() as u64, channels as u64)
    }

    fn persistent(&self, r: &Persistence) -> persistent::Common {
        let BatchNorm { dtype, parameter_dtype, .. } = *self.norm;
        persistent::Common { dtype, parameters: parameter_dtype, config: r.config }
    }

    /// The one cooperative launch.
    fn persistent_variant<D: KernelDef>(
        &self,
        def: &D,
        args: D::Args,
        r: &Persistence,
    ) -> Result<Variant, PlanError> {
        let step = self.step(def, args, [r.blocks, 1, 1])?.with_dynamic_shared(r.bytes).cooperative();
        Ok(Variant { alignment: tuning::alignment(r.config, self.norm.dtype), steps: vec![step] })
    }

    fn resident(&self, r: &Residence) -> resident::Common {
        resident::Common {
            dtype: self.norm.dtype,
            parameters: self.norm.parameter_dtype,
            config: r.config,
            cluster: r.cluster,
        }
    }

    /// The one launch of a residence.
    fn resident_variant<D: KernelDef>(
        &self,
        def: &D,
        args: D::Args,
        r: &Residence,
    ) -> Result<Variant, PlanError> {
        let (blocks, limit) = (self.channels() * u64::from(r.cluster), MAX_GRID[0]);
        if blocks > limit {
            return Err(PlanError::TooLarge { op: self.op, blocks, limit });
        }
        let step = self.step(def, args, [blocks as u32, 1, 1])?.with_dynamic_shared(r.bytes);
        Ok(Variant { alignment: tuning::alignment(r.config, self.norm.dtype), steps: vec![step] })
    }

    fn finish<O: Operation>(
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
        let workspace = tensors.iter().find(|spec| spec.name == TensorSpec::WORKSPACE);
        let workspace = workspace.map_or(0, |spec| spec.len * spec.dtype.bytes());
        let (op, target) = (self.op, self.target);
        let workspace_bytes = workspace as u64;
        Ok(Plan::new(PlanParts { op, direction, target, tensors, variants, workspace_bytes }))
    }

    /// The walk that writes results: `y = max((x - mean) scale + shift + residual, lower)`.
    fn normalize(
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

fn lower(relu: bool) -> f64 {
    if relu { 0.0 } else { f64::NEG_INFINITY }
}

pub(super) fn training(desc: &BatchNormDesc, target: Target) -> Result<Plan<BatchNormDesc>, PlanError> {
    let p = Planner::new(TRAINING, &desc.norm, target)?;
    p.check_values()?;
    if let Some(momentum) = desc.momentum
        && !momentum.factor().is_finite()
    {
        return Err(PlanError::Parameter {
            op: p.op,
            parameter: "momentum",
            got: format!("{momentum:?}"),
            expected: "a finite factor, or at least one batch",
        });
    }
    let (norm, c) = (p.norm, desc.norm.channels);
    let walks = p.walks(1)?;
    let running = desc.momentum.is_some();
    let statistics = |slot: OutSlot| slot.holds(p.accumulate, c);
    let tensors = BatchNormArgs::specs([
        p.full(BatchNormArgs::x),
        p.parameter(BatchNormArgs::weight).optional(norm.weight),
        p.parameter(BatchNormArgs::bias).optional(norm.bias),
        p.full(BatchNormArgs::residual).like(BatchNormArgs::x).optional(desc.residual),
        p.full_result(BatchNormArgs::y).like(BatchNormArgs::x).in_place(),
        statistics(BatchNormArgs::mean),
        statistics(BatchNormArgs::rstd),
        BatchNormArgs::running_mean.holds(norm.parameter_dtype, c).optional(running),
        BatchNormArgs::running_var.holds(norm.parameter_dtype, c).optional(running),
        BatchNormArgs::workspace.scratch(p.accumulate, p.workspace_len(&walks, 3, 3, 1)),
    ]);
    let affine = channel::AffineArgs { weight: BatchNormArgs::weight.arg(), bias: BatchNormArgs::bias.arg() };
    let old = channel::RunningArgs {
        mean: BatchNormArgs::running_mean.before().arg(),
        var: BatchNormArgs::running_var.before().arg(),
    };
    let results = channel::ResultsArgs {
        mean: BatchNormArgs::mean.arg(),
        rstd: BatchNormArgs::rstd.arg(),
        running_mean: BatchNormArgs::running_mean.after().arg(),
        running_var: BatchNormArgs::running_var.after().arg(),
    };
    let settings = channel::SettingsArgs {
        present: p.present(if running { present::RUNNING } else { 0 }),
        eps: norm.eps.get(),
        factor: desc.momentum.map_or(0.0, super::Momentum::factor),
    };
    let steps = |w: &Walked| {
        let coefficients = p.row(3 * w.split.parts);
        let def = kernel::Statistics(w.common);
        let (x, partial) = (BatchNormArgs::x.arg(), BatchNormArgs::workspace.arg());
        let args = kernel::StatisticsArgs { x, partial, sizes: p.sizes(&w.split) };
        let statistics = p.step(&def, args, w.grid)?;
        let args = channel::CombineArgs {
            partial: BatchNormArgs::workspace.written(),
            affine: affine.clone(),
            running: old.clone(),
            results: results.clone(),
            coefficients: BatchNormArgs::workspace.arg_at(coefficients),
            channels: p.channels(),
            parts: w.split.parts,
            part_elements: w.split.part * w.split.per_step,
            elements: norm.values() as u64,
            settings: settings.clone(),
        };
        let combine = p.step(&channel::Combine(p.types), args, p.channel_grid(CHANNELS)?)?;
        let coefficients = BatchNormArgs::workspace.written_at(coefficients);
        let read = [BatchNormArgs::x.arg(), BatchNormArgs::residual.arg()];
        let normalize =
            p.normalize(w, read, BatchNormArgs::y, desc.residual, lower(norm.relu), coefficients)?;
        Ok(vec![statistics, combine, normalize])
    };
    let once = p.residence(1).map(|r| {
        let def = resident::Forward { common: p.resident(&r), residual: desc.residual };
        let args = resident::ForwardArgs {
            x: BatchNormArgs::x.arg(),
            affine: affine.clone(),
            residual: BatchNormArgs::residual.arg(),
            running: old.clone(),
            y: BatchNormArgs::y.arg(),
            results: results.clone(),
            settings: settings.clone(),
            lower: lower(norm.relu),
            sizes: p.sizes(&r.split),
        };
        p.resident_variant(&def, args, &r)
    });
    let grid = p.persistence(1).map(|r| {
        let def = persistent::Forward { common: p.persistent(&r), residual: desc.residual };
        let args = persistent::ForwardArgs {
            x: BatchNormArgs::x.arg(),
            affine: affine.clone(),
            residual: BatchNormArgs::residual.arg(),
            running: old.clone(),
            y: BatchNormArgs::y.arg(),
            results: results.clone(),
            partial: BatchNormArgs::workspace.read_write(),
            coefficients: BatchNormArgs::workspace.read_write_at(p.row(3 * u64::from(r.blocks))),
            settings: settings.clone(),
            lower: lower(norm.relu),
            hold: r.hold,
            rows: p.rows(&r.split),
        };
        p.persistent_variant(&def, args, &r)
    });
    let once = once.or(grid).transpose()?;
    let empty = || {
        if norm.channels == 0 {
            return Ok(Vec::new());
        }
        let args = channel::UndefinedArgs {
            mean: BatchNormArgs::mean.arg(),
            rstd: BatchNormArgs::rstd.arg(),
            channels: p.channels(),
        };
        Ok(vec![p.step(&channel::Undefined(p.accumulate), args, p.channel_grid(FOLD_CHANNELS)?)?])
    };
    p.finish(Direction::Forward, tensors, once, walks, steps, empty)
}

pub(super) fn inference(
    desc: &BatchNormInferenceDesc,
    target: Target,
) -> Result<Plan<BatchNormInferenceDesc>, PlanError> {
    let p = Planner::new(INFERENCE, &desc.norm, target)?;
    let norm = p.norm;
    let walks = p.walks(1)?;
    let coefficients = if walks.is_empty() { 0 } else { 4 * norm.channels };
    let tensors = BatchNormInferenceArgs::specs([
        p.full(BatchNormInferenceArgs::x),
        p.parameter(BatchNormInferenceArgs::weight).optional(norm.weight),
        p.parameter(BatchNormInferenceArgs::bias).optional(norm.bias),
        p.full(BatchNormInferenceArgs::residual).like(BatchNormInferenceArgs::x).optional(desc.residual),
        p.parameter(BatchNormInferenceArgs::running_mean),
        p.parameter(BatchNormInferenceArgs::running_var),
        p.full_result(BatchNormInferenceArgs::y).like(BatchNormInferenceArgs::x).in_place(),
        BatchNormInferenceArgs::workspace.scratch(p.accumulate, coefficients),
    ]);
    let steps = |w: &Walked| {
        let fold = fold(
            &p,
            channel::FoldArgs {
                affine: channel::AffineArgs {
                    weight: BatchNormInferenceArgs::weight.arg(),
                    bias: BatchNormInferenceArgs::bias.arg(),
                },
                running: channel::RunningArgs {
                    mean: BatchNormInferenceArgs::running_mean.arg(),
                    var: BatchNormInferenceArgs::running_var.arg(),
                },
                coefficients: BatchNormInferenceArgs::workspace.arg(),
                channels: p.channels(),
                present: p.present(0),
                eps: norm.eps.get(),
            },
        )?;
        let coefficients = BatchNormInferenceArgs::workspace.written();
        let read = [BatchNormInferenceArgs::x.arg(), BatchNormInferenceArgs::residual.arg()];
        let y = BatchNormInferenceArgs::y;
        Ok(vec![fold, p.normalize(w, read, y, desc.residual, lower(norm.relu), coefficients)?])
    };
    p.finish(Direction::Forward, tensors, None, walks, steps, || Ok(Vec::new()))
}

/// Coefficients of inference: mean, scale, shift, rstd.
fn fold(p: &Planner<'_>, args: channel::FoldArgs) -> Result<LaunchStep, PlanError> {
    p.step(&channel::Fold(p.types), args, p.channel_grid(FOLD_CHANNELS)?)
}

/// What the two backward passes share.
struct Backward<'a> {
    p: Planner<'a>,
    walks: Vec<Walked>,
    slots: BackwardSlots,
    /// Where `g = dy` behind the ReLU is written, if it differs from `dy`.
    g: Option<OutSlot>,
}

/// The tensors that both backward passes have, whatever their statistics are.
#[derive(Clone, Copy)]
struct BackwardSlots {
    x: InSlot,
    y: InSlot,
    dy: InSlot,
    weight: InSlot,
    dx: OutSlot,
    dweight: OutSlot,
    dbias: OutSlot,
    dresidual: OutSlot,
    workspace: OutSlot,
}

/// Those of one of the passes.
macro_rules! backward_slots {
    ($args:ident: $($field:ident)+) => {
        BackwardSlots { $($field: $args::$field),+ }
    };
    ($args:ident) => {
        backward_slots!($args: x y dy weight dx dweight dbias dresidual workspace)
    };
}

impl<'a> Backward<'a> {
    fn new(p: Planner<'a>, slots: BackwardSlots, dresidual: bool) -> Result<Self, PlanError> {
        p.check_dresidual(dresidual)?;
        let walks = p.walks(if p.norm.relu { 3 } else { 2 })?;
        let g = p.norm.relu.then_some(if dresidual { slots.dresidual } else { slots.dx });
        Ok(Self { p, walks, slots, g })
    }

    /// What a plan says of the tensors, of which those in `statistics` are not shared. `more` is the rows of the workspace beyond
    /// sums and coefficients.
    fn specs(
        &self,
        dresidual: bool,
        statistics: [SlotSpec; 2],
        more: usize,
    ) -> impl Iterator<Item = SlotSpec> {
        let (p, norm, slots) = (&self.p, self.p.norm, self.slots);
        let gradient = |slot: OutSlot| slot.holds(norm.parameter_dtype, norm.channels);
        let shared = [
            p.full(slots.x),
            p.full(slots.y).like(slots.x).optional(norm.relu),
            p.full(slots.dy).like(slots.x),
            p.parameter(slots.weight).optional(norm.weight),
            p.full_result(slots.dx).like(slots.x),
            gradient(slots.dweight).optional(norm.weight),
            gradient(slots.dbias).optional(norm.bias),
            p.full_result(slots.dresidual).like(slots.x).optional(dresidual),
            slots.workspace.scratch(p.accumulate, p.workspace_len(&self.walks, 2, 4 + more, 2)),
        ];
        shared.into_iter().chain(statistics)
    }

    /// The two steps that both passes begin with, for given places of the mean and of `rstd`.
    fn sums(
        &self,
        w: &Walked,
        mean: In<Elem>,
        rstd: In<Elem>,
        training: u32,
    ) -> Result<[LaunchStep; 2], PlanError> {
        let (p, slots) = (&self.p, self.slots);
        let def = kernel::GradientSums { common: w.common, relu: p.norm.relu };
        let args = kernel::GradientSumsArgs {
            x: slots.x.arg(),
            dy: slots.dy.arg(),
            y: slots.y.arg(),
            mean: mean.clone(),
            g: self.g.unwrap_or(slots.dx).arg(),
            partial: slots.workspace.arg(),
            sizes: p.sizes(&w.split),
        };
        let sums = p.step(&def, args, w.grid)?;
        let args = channel::CombineGradientsArgs {
            partial: slots.workspace.written(),
            saved: channel::SavedArgs { mean, rstd, weight: slots.weight.arg() },
            gradients: self.gradients(),
            coefficients: slots.workspace.arg_at(p.row(2 * w.split.parts)),
            channels: p.channels(),
            parts: w.split.parts,
            elements: p.norm.values() as u64,
            present: p.present(training),
        };
        let combine = p.step(&channel::CombineGradients(p.types), args, p.channel_grid(CHANNELS)?)?;
        Ok([sums, combine])
    }

    /// Where the gradients of weight and bias go.
    fn gradients(&self) -> channel::GradientsArgs {
        channel::GradientsArgs { dweight: self.slots.dweight.arg(), dbias: self.slots.dbias.arg() }
    }

    /// Where the gradient behind the ReLU is read.
    fn gradient(&self) -> In<Elem> {
        self.g.map_or_else(|| self.slots.dy.arg(), OutSlot::written)
    }

    fn finish<O: Operation>(
        self,
        tensors: Vec<TensorSpec>,
        first: Option<Variant>,
        steps: impl Fn(&Self, &Walked) -> Result<Vec<LaunchStep>, PlanError>,
    ) -> Result<Plan<O>, PlanError> {
        let empty = || {
            let p = &self.p;
            if p.norm.channels == 0 || !(p.norm.weight || p.norm.bias) {
                return Ok(Vec::new());
            }
            let args = channel::ZeroArgs {
                gradients: self.gradients(),
                channels: p.channels(),
                present: p.present(0),
            };
            Ok(vec![p.step(&channel::Zero(p.types), args, p.channel_grid(FOLD_CHANNELS)?)?])
        };
        let walks: Vec<_> = self.walks.iter().map(Walked::again).collect();
        self.p.finish(Direction::Backward, tensors, first, walks, |w| steps(&self, w), empty)
    }
}

impl Walked {
    fn again(&self) -> Self {
        Self { common: self.common, split: self.split, grid: self.grid }
    }
}

pub(super) fn training_backward(
    desc: &BatchNormBackwardDesc,
    target: Target,
) -> Result<Plan<BatchNormBackwardDesc>, PlanError> {
    let p = Planner::new(TRAINING, &desc.norm, target)?;
    p.check_values()?;
    let backward = Backward::new(p, backward_slots!(BatchNormBackwardArgs), desc.dresidual)?;
    let p = &backward.p;
    let statistics = [BatchNormBackwardArgs::mean, BatchNormBackwardArgs::rstd]
        .map(|slot| slot.holds(p.accumulate, p.norm.channels));
    let tensors = BatchNormBackwardArgs::specs(backward.specs(desc.dresidual, statistics, 0));
    let saved = || channel::SavedArgs {
        mean: BatchNormBackwardArgs::mean.arg(),
        rstd: BatchNormBackwardArgs::rstd.arg(),
        weight: BatchNormBackwardArgs::weight.arg(),
    };
    let once = p.residence(2).map(|r| {
        let def = resident::Backward { common: p.resident(&r), relu: p.norm.relu };
        let dresidual = if desc.dresidual { present::DRESIDUAL } else { 0 };
        let args = resident::BackwardArgs {
            x: BatchNormBackwardArgs::x.arg(),
            dy: BatchNormBackwardArgs::dy.arg(),
            y: BatchNormBackwardArgs::y.arg(),
            saved: saved(),
            dx: BatchNormBackwardArgs::dx.arg(),
            gradients: backward.gradients(),
            dresidual: BatchNormBackwardArgs::dresidual.arg(),
            present: p.present(dresidual),
            elements: p.norm.values() as u64,
            hold: r.hold,
            sizes: p.sizes(&r.split),
        };
        p.resident_variant(&def, args, &r)
    });
    let grid = p.persistence(2).filter(|_| !p.norm.relu).map(|r| {
        let args = persistent::BackwardArgs {
            x: BatchNormBackwardArgs::x.arg(),
            dy: BatchNormBackwardArgs::dy.arg(),
            saved: saved(),
            dx: BatchNormBackwardArgs::dx.arg(),
            gradients: backward.gradients(),
            partial: BatchNormBackwardArgs::workspace.read_write(),
            coefficients: BatchNormBackwardArgs::workspace.read_write_at(p.row(2 * u64::from(r.blocks))),
            present: p.present(0),
            elements: p.norm.values() as u64,
            hold: r.hold,
            rows: p.rows(&r.split),
        };
        p.persistent_variant(&persistent::Backward(p.persistent(&r)), args, &r)
    });
    let once = once.or(grid).transpose()?;
    backward.finish(tensors, once, |b, w| {
        let [sums, combine] = b.sums(
            w,
            BatchNormBackwardArgs::mean.arg(),
            BatchNormBackwardArgs::rstd.arg(),
            present::TRAINING,
        )?;
        let args = kernel::GradientArgs {
            x: BatchNormBackwardArgs::x.arg(),
            g: b.gradient(),
            coefficients: BatchNormBackwardArgs::workspace.written_at(b.p.row(2 * w.split.parts)),
            dx: BatchNormBackwardArgs::dx.arg(),
            sizes: b.p.sizes(&w.split),
        };
        Ok(vec![sums, combine, b.p.step(&kernel::Gradient(w.common), args, w.grid)?])
    })
}

pub(super) fn inference_backward(
    desc: &BatchNormInferenceBackwardDesc,
    target: Target,
) -> Result<Plan<BatchNormInferenceBackwardDesc>, PlanError> {
    let p = Planner::new(INFERENCE, &desc.norm, target)?;
    let slots = backward_slots!(BatchNormInferenceBackwardArgs);
    let backward = Backward::new(p, slots, desc.dresidual)?;
    let running = [BatchNormInferenceBackwardArgs::running_mean, BatchNormInferenceBackwardArgs::running_var];
    let statistics = running.map(|slot| backward.p.parameter(slot));
    let tensors = BatchNormInferenceBackwardArgs::specs(backward.specs(desc.dresidual, statistics, 4));
    backward.finish(tensors, None, |b, w| {
        let (p, [running_mean, running_var]) = (&b.p, running);
        let sums_end = 2 * w.split.parts;
        let folded = p.row(sums_end + 4);
        let fold = fold(
            p,
            channel::FoldArgs {
                // Only the weight is read for the coefficients that are used here.
                affine: channel::AffineArgs { weight: slots.weight.arg(), bias: slots.weight.arg() },
                running: channel::RunningArgs { mean: running_mean.arg(), var: running_var.arg() },
                coefficients: slots.workspace.arg_at(folded),
                channels: p.channels(),
                present: if p.norm.weight { present::WEIGHT } else { 0 },
                eps: p.norm.eps.get(),
            },
        )?;
        let at = |row: u64| slots.workspace.written_at(folded + p.row(row));
        let [sums, combine] = b.sums(w, at(0), at(3), 0)?;
        let coefficients = slots.workspace.written_at(p.row(sums_end));
        let read = [b.gradient(), slots.y.arg()];
        let result = p.normalize(w, read, slots.dx, false, f64::NEG_INFINITY, coefficients)?;
        Ok(vec![fold, sums, combine, result])
    })
}

/// Normalisations that between them need every kernel for tensors of type `dtype`.
pub(super) fn every_norm(dtype: DType) -> Vec<BatchNorm> {
    let norm = |layout, batch, spatial| BatchNorm::new(dtype, layout, batch, 64, spatial);
    let (first, last) = (Layout::ChannelsFirst, Layout::ChannelsLast);
    // Channels that fit one block, and more blocks of a cluster.
    let once = tuning::CLUSTERS.map(|blocks| norm(first, blocks as usize, 16 << 10 >> dtype.bytes().ilog2()));
    once.into_iter().chain([norm(last, 2, 64), norm(last, 0, 64)]).collect()
}
