//! From descriptors to launches.

use warpwright_dsl::{Elem, In, Out};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use super::channel::{self, FOLD_CHANNELS, present};
use super::planner::{CombineChannels, Planner, Walked};
use super::{
    BatchNorm, BatchNormArgs, BatchNormBackwardArgs, BatchNormBackwardDesc, BatchNormDesc,
    BatchNormInferenceArgs, BatchNormInferenceBackwardArgs, BatchNormInferenceBackwardDesc,
    BatchNormInferenceDesc, INFERENCE, Layout, TRAINING, kernel, persistent, resident, tuning,
};
use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{Operation, Plan, TensorSpec, Variant};
use crate::tensors::{InSlot, OutSlot, SlotSpec};

/// The least value that a result may have.
pub(super) fn lower(relu: bool) -> f64 {
    if relu { 0.0 } else { f64::NEG_INFINITY }
}

pub(super) fn training(desc: &BatchNormDesc, target: Target) -> Result<Plan<BatchNormDesc>, PlanError> {
    type Args<'a> = BatchNormArgs<'a>;
    let p = Planner::new(TRAINING, &desc.norm, target)?;
    p.check_values()?;
    p.check_momentum(desc.momentum)?;
    let (norm, c) = (p.norm, desc.norm.channels);
    let walks = p.walks(1)?;
    let running = desc.momentum.is_some();
    let statistics = |slot: OutSlot| slot.holds(p.accumulate, c);
    let tensors = Args::specs([
        p.full(Args::x),
        p.parameter(Args::weight).optional(norm.weight),
        p.parameter(Args::bias).optional(norm.bias),
        p.full(Args::residual).like(Args::x).optional(desc.residual),
        p.full_result(Args::y).like(Args::x).in_place(),
        statistics(Args::mean),
        statistics(Args::rstd),
        Args::running_mean.holds(norm.parameter_dtype, c).optional(running),
        Args::running_var.holds(norm.parameter_dtype, c).optional(running),
        Args::workspace.scratch(p.accumulate, p.workspace_len(&walks, 3, 3, 1)),
    ]);
    let affine = channel::AffineArgs { weight: Args::weight.arg(), bias: Args::bias.arg() };
    let old = channel::RunningArgs {
        mean: Args::running_mean.before().arg(),
        var: Args::running_var.before().arg(),
    };
    let results = channel::ResultsArgs {
        mean: Args::mean.arg(),
        rstd: Args::rstd.arg(),
        running_mean: Args::running_mean.after().arg(),
        running_var: Args::running_var.after().arg(),
    };
    let settings = channel::SettingsArgs {
        present: p.present(if running { present::RUNNING } else { 0 }),
        eps: norm.eps.get(),
        factor: desc.momentum.map_or(0.0, super::Momentum::factor),
    };
    let channels = CombineChannels { affine, running: old, results, settings };
    let steps = |w: &Walked| {
        let [statistics, combine] = p.statistics(w, Args::x, Args::workspace, &channels)?;
        let coefficients = Args::workspace.written_at(p.row(3 * w.split.parts));
        let read = [Args::x.arg(), Args::residual.arg()];
        let normalize = p.normalize(w, read, Args::y, desc.residual, lower(norm.relu), coefficients)?;
        Ok(vec![statistics, combine, normalize])
    };
    let once = p.residence(1).map(|r| {
        let def = resident::Forward { common: p.resident(&r), residual: desc.residual };
        let args = resident::ForwardArgs {
            x: Args::x.arg(),
            affine: channels.affine.clone(),
            residual: Args::residual.arg(),
            running: channels.running.clone(),
            y: Args::y.arg(),
            results: channels.results.clone(),
            settings: channels.settings.clone(),
            lower: lower(norm.relu),
            sizes: p.sizes(&r.split),
        };
        p.resident_variant(&def, args, &r)
    });
    let grid = p.persistence(1).map(|r| {
        let def = persistent::Forward { common: p.persistent(&r), residual: desc.residual };
        let args = persistent::ForwardArgs {
            x: Args::x.arg(),
            affine: channels.affine.clone(),
            residual: Args::residual.arg(),
            running: channels.running.clone(),
            y: Args::y.arg(),
            results: channels.results.clone(),
            partial: Args::workspace.read_write(),
            coefficients: Args::workspace.read_write_at(p.row(3 * u64::from(r.blocks))),
            settings: channels.settings.clone(),
            lower: lower(norm.relu),
            hold: r.hold,
            rows: p.rows(&r.split),
        };
        p.persistent_variant(&def, args, &r)
    });
    let once = once.or(grid).transpose()?;
    let empty = || p.undefined(Args::mean.arg(), Args::rstd.arg());
    p.finish(Direction::Forward, tensors, once, walks, steps, empty)
}

pub(super) fn inference(
    desc: &BatchNormInferenceDesc,
    target: Target,
) -> Result<Plan<BatchNormInferenceDesc>, PlanError> {
    type Args<'a> = BatchNormInferenceArgs<'a>;
    let p = Planner::new(INFERENCE, &desc.norm, target)?;
    let norm = p.norm;
    let walks = p.walks(1)?;
    let coefficients = if walks.is_empty() { 0 } else { 4 * norm.channels };
    let tensors = Args::specs([
        p.full(Args::x),
        p.parameter(Args::weight).optional(norm.weight),
        p.parameter(Args::bias).optional(norm.bias),
        p.full(Args::residual).like(Args::x).optional(desc.residual),
        p.parameter(Args::running_mean),
        p.parameter(Args::running_var),
        p.full_result(Args::y).like(Args::x).in_place(),
        Args::workspace.scratch(p.accumulate, coefficients),
    ]);
    let steps = |w: &Walked| {
        let affine = channel::AffineArgs { weight: Args::weight.arg(), bias: Args::bias.arg() };
        let running = [Args::running_mean, Args::running_var];
        let fold = fold(&p, affine, running, Args::workspace.arg(), p.present(0))?;
        let coefficients = Args::workspace.written();
        let read = [Args::x.arg(), Args::residual.arg()];
        let y = Args::y;
        Ok(vec![fold, p.normalize(w, read, y, desc.residual, lower(norm.relu), coefficients)?])
    };
    p.finish(Direction::Forward, tensors, None, walks, steps, || Ok(Vec::new()))
}

/// Coefficients of inference: mean, scale, shift, rstd.
fn fold(
    p: &Planner<'_>,
    affine: channel::AffineArgs,
    [mean, var]: [InSlot; 2],
    coefficients: Out<Elem>,
    present: u32,
) -> Result<LaunchStep, PlanError> {
    let running = channel::RunningArgs { mean: mean.arg(), var: var.arg() };
    let (channels, eps) = (p.channels(), p.norm.eps.get());
    let args = channel::FoldArgs { affine, running, coefficients, channels, present, eps };
    p.step(&channel::Fold(p.types), args, p.channel_grid(FOLD_CHANNELS)?)
}

/// The parts that the two backward passes share.
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

    /// The tensors of a plan, of which those in `statistics` are not shared. `more` is the rows of the workspace beyond
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
        let saved = channel::SavedArgs { mean, rstd, weight: slots.weight.arg() };
        let combine = p.combine_gradients(w, saved, self.gradients(), slots.workspace, training)?;
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
        let empty = || self.p.zero(self.gradients());
        self.p.finish(Direction::Backward, tensors, first, self.walks.clone(), |w| steps(&self, w), empty)
    }
}

pub(super) fn training_backward(
    desc: &BatchNormBackwardDesc,
    target: Target,
) -> Result<Plan<BatchNormBackwardDesc>, PlanError> {
    type Args<'a> = BatchNormBackwardArgs<'a>;
    let p = Planner::new(TRAINING, &desc.norm, target)?;
    p.check_values()?;
    let backward = Backward::new(p, backward_slots!(BatchNormBackwardArgs), desc.dresidual)?;
    let p = &backward.p;
    let statistics = [Args::mean, Args::rstd].map(|slot| slot.holds(p.accumulate, p.norm.channels));
    let tensors = Args::specs(backward.specs(desc.dresidual, statistics, 0));
    let saved =
        || channel::SavedArgs { mean: Args::mean.arg(), rstd: Args::rstd.arg(), weight: Args::weight.arg() };
    let once = p.residence(2).map(|r| {
        let def = resident::Backward { common: p.resident(&r), relu: p.norm.relu };
        let dresidual = if desc.dresidual { present::DRESIDUAL } else { 0 };
        let args = resident::BackwardArgs {
            x: Args::x.arg(),
            dy: Args::dy.arg(),
            y: Args::y.arg(),
            saved: saved(),
            dx: Args::dx.arg(),
            gradients: backward.gradients(),
            dresidual: Args::dresidual.arg(),
            present: p.present(dresidual),
            elements: p.norm.values() as u64,
            hold: r.hold,
            sizes: p.sizes(&r.split),
        };
        p.resident_variant(&def, args, &r)
    });
    let grid = p.persistence(2).filter(|_| !p.norm.relu).map(|r| {
        let args = persistent::BackwardArgs {
            x: Args::x.arg(),
            dy: Args::dy.arg(),
            saved: saved(),
            dx: Args::dx.arg(),
            gradients: backward.gradients(),
            partial: Args::workspace.read_write(),
            coefficients: Args::workspace.read_write_at(p.row(2 * u64::from(r.blocks))),
            present: p.present(0),
            elements: p.norm.values() as u64,
            hold: r.hold,
            rows: p.rows(&r.split),
        };
        p.persistent_variant(&persistent::Backward(p.persistent(&r)), args, &r)
    });
    let once = once.or(grid).transpose()?;
    backward.finish(tensors, once, |b, w| {
        let [sums, combine] = b.sums(w, Args::mean.arg(), Args::rstd.arg(), present::TRAINING)?;
        let coefficients = Args::workspace.written_at(b.p.row(2 * w.split.parts));
        let gradient = b.p.gradient(w, [Args::x.arg(), b.gradient(), coefficients], Args::dx.arg())?;
        Ok(vec![sums, combine, gradient])
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
        let p = &b.p;
        let sums_end = 2 * w.split.parts;
        let folded = p.row(sums_end + 4);
        // Only the weight is read for the coefficients that are used here.
        let affine = channel::AffineArgs { weight: slots.weight.arg(), bias: slots.weight.arg() };
        let present = if p.norm.weight { present::WEIGHT } else { 0 };
        let fold = fold(p, affine, running, slots.workspace.arg_at(folded), present)?;
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
