//! From descriptors to launches.

use warpwright_dsl::{In, InOut, KernelArgs, KernelDef, Out};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use super::channel::{self, CHANNELS, FOLD_CHANNELS, Types, present};
use super::kernel::{self, Common, accumulate_type};
use super::tuning::{self, Config, Persistence, Residence, Split};
use super::{
    BatchNorm, BatchNormBackwardDesc, BatchNormDesc, BatchNormEvaluationBackwardDesc,
    BatchNormEvaluationDesc, EVALUATION, Layout, TRAINING,
};
use super::{persistent, resident};
use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, PlanParts, TensorSpec, Variant};

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

/// The arguments that every walk ends with.
macro_rules! walk_args {
    ($args:ident { $($field:ident: $value:expr),+ $(,)? }, $walked:expr, $channels:expr) => {
        walk_args!(kernel, $args { $($field: $value),+ }, $walked, $channels)
    };
    ($module:ident, $args:ident { $($field:ident: $value:expr),+ $(,)? }, $walked:expr, $channels:expr) => {
        $module::$args {
            $($field: $value,)+
            extent: $walked.split.extent,
            slab: $walked.split.slab,
            row: $walked.split.row,
            channels: $channels,
            split: $walked.split.argument as u32,
            reciprocal: $walked.split.reciprocal.factor,
            shift: $walked.split.reciprocal.shift,
        }
    };
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
        Ok(Self { op, target, norm, len, types, accumulate: accumulate_type(dtype) })
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
                Layout::ChannelsFirst => [split.slabs * split.tiles, 1],
                Layout::ChannelsLast => [split.slabs, split.tiles],
            };
            for (blocks, limit) in blocks.into_iter().zip(MAX_GRID) {
                if blocks > limit {
                    return Err(PlanError::TooLarge { op: self.op, blocks, limit });
                }
            }
            if split.slab > u64::from(u32::MAX / 2) {
                return Err(PlanError::TooLarge { op: self.op, blocks: split.slab, limit: 1 << 31 });
            }
            let grid = [blocks[0] as u32, blocks[1] as u32, 1];
            Ok(Walked { common: Common { dtype, layout, config }, split, grid })
        };
        tuning::configs(layout, dtype, run, streams).into_iter().map(of).collect()
    }

    fn channels(&self) -> u64 {
        self.norm.channels as u64
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

    /// Elements of the workspace: `rows` values a channel and slab, and the coefficients.
    fn workspace_len(&self, walks: &[Walked], rows: usize, coefficients: usize, streams: u32) -> usize {
        let grid = self.persistence(streams).map_or(0, |p| u64::from(p.blocks));
        let slabs = walks.iter().map(|w| w.split.slabs).max().map_or(0, |slabs| slabs.max(grid) as usize);
        if walks.is_empty() { 0 } else { (slabs * rows + coefficients) * self.norm.channels }
    }

    /// Where a row of the workspace starts, in bytes.
    fn row(&self, row: u64) -> u64 {
        row * self.channels() * self.accumulate.bytes() as u64
    }

    fn parameter(&self, name: &'static str, given: bool) -> TensorSpec {
        TensorSpec::read(name, self.norm.parameter_dtype, self.norm.channels).optional(given)
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
        let workspace = tensors.last().map_or(0, |spec| spec.len * spec.dtype.bytes());
        let (op, target) = (self.op, self.target);
        let workspace_bytes = workspace as u64;
        Ok(Plan::new(PlanParts { op, direction, target, tensors, variants, workspace_bytes }))
    }

    /// The walk that writes results: `y = max((x - mean) scale + shift + residual, lower)`.
    fn normalise(
        &self,
        walked: &Walked,
        [x, residual, y]: [u32; 3],
        with_residual: bool,
        lower: f64,
        coefficients: In<warpwright_dsl::Elem>,
    ) -> Result<LaunchStep, PlanError> {
        let def = kernel::Normalise { common: walked.common, residual: with_residual };
        let args = walk_args!(
            NormaliseArgs {
                x: In::slot(x),
                residual: In::slot(residual),
                coefficients: coefficients,
                y: Out::slot(y),
                lower: lower,
            },
            walked,
            self.channels()
        );
        self.step(&def, args, walked.grid)
    }
}

fn lower(relu: bool) -> f64 {
    if relu { 0.0 } else { f64::NEG_INFINITY }
}

pub(super) fn training(desc: &BatchNormDesc, target: Target) -> Result<Plan<BatchNormDesc>, PlanError> {
    const WORKSPACE: u32 = 11;
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
    let statistics = |name| TensorSpec::write(name, p.accumulate, c);
    let new = |name| TensorSpec::write(name, norm.parameter_dtype, c).in_place().optional(running);
    let tensors = vec![
        TensorSpec::read("x", norm.dtype, p.len),
        p.parameter("weight", norm.weight),
        p.parameter("bias", norm.bias),
        TensorSpec::read("residual", norm.dtype, p.len).like(0).optional(desc.residual),
        p.parameter("running_mean", running),
        p.parameter("running_var", running),
        TensorSpec::write("y", norm.dtype, p.len).like(0).in_place(),
        statistics("mean"),
        statistics("rstd"),
        new("running_mean"),
        new("running_var"),
        TensorSpec::workspace(p.accumulate, p.workspace_len(&walks, 3, 3, 1)),
    ];
    let steps = |w: &Walked| {
        let coefficients = p.row(3 * w.split.slabs);
        let def = kernel::Statistics(w.common);
        let args =
            walk_args!(StatisticsArgs { x: In::slot(0), partial: Out::slot(WORKSPACE) }, w, p.channels());
        let statistics = p.step(&def, args, w.grid)?;
        let args = channel::CombineArgs {
            partial: In::slot(WORKSPACE),
            weight: In::slot(1),
            bias: In::slot(2),
            running_mean: In::slot(4),
            running_var: In::slot(5),
            mean: Out::slot(7),
            rstd: Out::slot(8),
            new_running_mean: Out::slot(9),
            new_running_var: Out::slot(10),
            coefficients: Out::slot_at(WORKSPACE, coefficients),
            channels: p.channels(),
            slabs: w.split.slabs,
            slab_elements: w.split.slab * w.split.per_step,
            elements: norm.values() as u64,
            present: p.present(if running { present::RUNNING } else { 0 }),
            eps: norm.eps.get(),
            factor: desc.momentum.map_or(0.0, super::Momentum::factor),
        };
        let combine = p.step(&channel::Combine(p.types), args, p.channel_grid(CHANNELS)?)?;
        let coefficients = In::slot_at(WORKSPACE, coefficients);
        let normalise = p.normalise(w, [0, 3, 6], desc.residual, lower(norm.relu), coefficients)?;
        Ok(vec![statistics, combine, normalise])
    };
    let once = p.residence(1).map(|r| {
        let def = resident::Forward { common: p.resident(&r), residual: desc.residual };
        let args = walk_args!(
            resident,
            ForwardArgs {
                x: In::slot(0),
                weight: In::slot(1),
                bias: In::slot(2),
                residual: In::slot(3),
                running_mean: In::slot(4),
                running_var: In::slot(5),
                y: Out::slot(6),
                mean: Out::slot(7),
                rstd: Out::slot(8),
                new_running_mean: Out::slot(9),
                new_running_var: Out::slot(10),
                present: p.present(if running { present::RUNNING } else { 0 }),
                eps: norm.eps.get(),
                factor: desc.momentum.map_or(0.0, super::Momentum::factor),
                lower: lower(norm.relu),
            },
            r,
            p.channels()
        );
        p.resident_variant(&def, args, &r)
    });
    let grid = p.persistence(1).map(|r| {
        let def = persistent::Forward { common: p.persistent(&r), residual: desc.residual };
        let args = persistent::ForwardArgs {
            x: In::slot(0),
            weight: In::slot(1),
            bias: In::slot(2),
            residual: In::slot(3),
            running_mean: In::slot(4),
            running_var: In::slot(5),
            y: Out::slot(6),
            mean: Out::slot(7),
            rstd: Out::slot(8),
            new_running_mean: Out::slot(9),
            new_running_var: Out::slot(10),
            partial: InOut::slot(WORKSPACE),
            coefficients: InOut::slot_at(WORKSPACE, p.row(3 * u64::from(r.blocks))),
            present: p.present(if running { present::RUNNING } else { 0 }),
            eps: norm.eps.get(),
            factor: desc.momentum.map_or(0.0, super::Momentum::factor),
            lower: lower(norm.relu),
            hold: r.hold,
            extent: r.split.extent,
            row: r.split.row,
            channels: p.channels(),
            split: r.split.argument as u32,
        };
        p.persistent_variant(&def, args, &r)
    });
    let once = once.or(grid).transpose()?;
    let empty = || {
        if norm.channels == 0 {
            return Ok(Vec::new());
        }
        let args = channel::UndefinedArgs { mean: Out::slot(7), rstd: Out::slot(8), channels: p.channels() };
        Ok(vec![p.step(&channel::Undefined(p.accumulate), args, p.channel_grid(FOLD_CHANNELS)?)?])
    };
    p.finish(Direction::Forward, tensors, once, walks, steps, empty)
}

pub(super) fn evaluation(
    desc: &BatchNormEvaluationDesc,
    target: Target,
) -> Result<Plan<BatchNormEvaluationDesc>, PlanError> {
    const WORKSPACE: u32 = 7;
    let p = Planner::new(EVALUATION, &desc.norm, target)?;
    let norm = p.norm;
    let walks = p.walks(1)?;
    let coefficients = if walks.is_empty() { 0 } else { 4 * norm.channels };
    let tensors = vec![
        TensorSpec::read("x", norm.dtype, p.len),
        p.parameter("weight", norm.weight),
        p.parameter("bias", norm.bias),
        TensorSpec::read("residual", norm.dtype, p.len).like(0).optional(desc.residual),
        p.parameter("running_mean", true),
        p.parameter("running_var", true),
        TensorSpec::write("y", norm.dtype, p.len).like(0).in_place(),
        TensorSpec::workspace(p.accumulate, coefficients),
    ];
    let steps = |w: &Walked| {
        let fold = fold(&p, [1, 2, 4, 5], WORKSPACE, 0)?;
        let coefficients = In::slot(WORKSPACE);
        Ok(vec![fold, p.normalise(w, [0, 3, 6], desc.residual, lower(norm.relu), coefficients)?])
    };
    p.finish(Direction::Forward, tensors, None, walks, steps, || Ok(Vec::new()))
}

/// Coefficients of evaluation at `offset` bytes of the workspace: mean, scale, shift, rstd.
fn fold(
    p: &Planner<'_>,
    [weight, bias, running_mean, running_var]: [u32; 4],
    workspace: u32,
    offset: u64,
) -> Result<LaunchStep, PlanError> {
    let args = channel::FoldArgs {
        weight: In::slot(weight),
        bias: In::slot(bias),
        running_mean: In::slot(running_mean),
        running_var: In::slot(running_var),
        coefficients: Out::slot_at(workspace, offset),
        channels: p.channels(),
        present: p.present(0),
        eps: p.norm.eps.get(),
    };
    p.step(&channel::Fold(p.types), args, p.channel_grid(FOLD_CHANNELS)?)
}

/// What the two backward passes share: the slots are in the same places.
struct Backward<'a> {
    p: Planner<'a>,
    walks: Vec<Walked>,
    tensors: Vec<TensorSpec>,
    /// Where `g = dy` behind the ReLU is written, if it differs from `dy`.
    g: Option<u32>,
}

const Y: u32 = 1;
const DY: u32 = 2;
const WEIGHT: u32 = 3;
const MEAN: u32 = 4;
const RSTD: u32 = 5;
const DX: u32 = 6;
const DWEIGHT: u32 = 7;
const DBIAS: u32 = 8;
const DRESIDUAL: u32 = 9;
const WORKSPACE: u32 = 10;

impl<'a> Backward<'a> {
    /// `statistics` are the tensors in slots 4 and 5, `more` the rows of the workspace beyond sums and coefficients.
    fn new(
        p: Planner<'a>,
        dresidual: bool,
        statistics: [TensorSpec; 2],
        more: usize,
    ) -> Result<Self, PlanError> {
        p.check_dresidual(dresidual)?;
        let norm = p.norm;
        let walks = p.walks(if norm.relu { 3 } else { 2 })?;
        let [mean, rstd] = statistics;
        let gradient =
            |name, given| TensorSpec::write(name, norm.parameter_dtype, norm.channels).optional(given);
        let tensors = vec![
            TensorSpec::read("x", norm.dtype, p.len),
            TensorSpec::read("y", norm.dtype, p.len).like(0).optional(norm.relu),
            TensorSpec::read("dy", norm.dtype, p.len).like(0),
            p.parameter("weight", norm.weight),
            mean,
            rstd,
            TensorSpec::write("dx", norm.dtype, p.len).like(0),
            gradient("dweight", norm.weight),
            gradient("dbias", norm.bias),
            TensorSpec::write("dresidual", norm.dtype, p.len).like(0).optional(dresidual),
            TensorSpec::workspace(p.accumulate, p.workspace_len(&walks, 2, 4 + more, 2)),
        ];
        let g = norm.relu.then_some(if dresidual { DRESIDUAL } else { DX });
        Ok(Self { p, walks, tensors, g })
    }

    /// The two steps that both passes begin with, for given places of the mean and of `rstd`.
    fn sums(
        &self,
        w: &Walked,
        mean: In<warpwright_dsl::Elem>,
        rstd: In<warpwright_dsl::Elem>,
        training: u32,
    ) -> Result<[LaunchStep; 2], PlanError> {
        let p = &self.p;
        let def = kernel::GradientSums { common: w.common, relu: p.norm.relu };
        let args = walk_args!(
            GradientSumsArgs {
                x: In::slot(0),
                dy: In::slot(DY),
                y: In::slot(Y),
                mean: mean.clone(),
                g: Out::slot(self.g.unwrap_or(DX)),
                partial: Out::slot(WORKSPACE),
            },
            w,
            p.channels()
        );
        let sums = p.step(&def, args, w.grid)?;
        let args = channel::CombineGradientsArgs {
            partial: In::slot(WORKSPACE),
            mean,
            rstd,
            weight: In::slot(WEIGHT),
            dweight: Out::slot(DWEIGHT),
            dbias: Out::slot(DBIAS),
            coefficients: Out::slot_at(WORKSPACE, p.row(2 * w.split.slabs)),
            channels: p.channels(),
            slabs: w.split.slabs,
            elements: p.norm.values() as u64,
            present: p.present(training),
        };
        let combine = p.step(&channel::CombineGradients(p.types), args, p.channel_grid(CHANNELS)?)?;
        Ok([sums, combine])
    }

    /// Where the gradient behind the ReLU is read.
    fn gradient(&self) -> u32 {
        self.g.unwrap_or(DY)
    }

    fn finish<O: Operation>(
        self,
        first: Option<Variant>,
        steps: impl Fn(&Self, &Walked) -> Result<Vec<LaunchStep>, PlanError>,
    ) -> Result<Plan<O>, PlanError> {
        let (tensors, none) = (self.tensors.clone(), Vec::new());
        let empty = || {
            let p = &self.p;
            if p.norm.channels == 0 || !(p.norm.weight || p.norm.bias) {
                return Ok(none.clone());
            }
            let args = channel::ZeroArgs {
                dweight: Out::slot(DWEIGHT),
                dbias: Out::slot(DBIAS),
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
    let statistics = ["mean", "rstd"].map(|name| TensorSpec::read(name, p.accumulate, p.norm.channels));
    let backward = Backward::new(p, desc.dresidual, statistics, 0)?;
    let p = &backward.p;
    let once = p.residence(2).map(|r| {
        let def = resident::Backward { common: p.resident(&r), relu: p.norm.relu };
        let dresidual = if desc.dresidual { present::DRESIDUAL } else { 0 };
        let args = walk_args!(
            resident,
            BackwardArgs {
                x: In::slot(0),
                dy: In::slot(DY),
                y: In::slot(Y),
                mean: In::slot(MEAN),
                rstd: In::slot(RSTD),
                weight: In::slot(WEIGHT),
                dx: Out::slot(DX),
                dweight: Out::slot(DWEIGHT),
                dbias: Out::slot(DBIAS),
                dresidual: Out::slot(DRESIDUAL),
                present: p.present(dresidual),
                elements: p.norm.values() as u64,
                hold: r.hold,
            },
            r,
            p.channels()
        );
        p.resident_variant(&def, args, &r)
    });
    let grid = p.persistence(2).filter(|_| !p.norm.relu).map(|r| {
        let args = persistent::BackwardArgs {
            x: In::slot(0),
            dy: In::slot(DY),
            mean: In::slot(MEAN),
            rstd: In::slot(RSTD),
            weight: In::slot(WEIGHT),
            dx: Out::slot(DX),
            dweight: Out::slot(DWEIGHT),
            dbias: Out::slot(DBIAS),
            partial: InOut::slot(WORKSPACE),
            coefficients: InOut::slot_at(WORKSPACE, p.row(2 * u64::from(r.blocks))),
            present: p.present(0),
            elements: p.norm.values() as u64,
            hold: r.hold,
            extent: r.split.extent,
            row: r.split.row,
            channels: p.channels(),
            split: r.split.argument as u32,
        };
        p.persistent_variant(&persistent::Backward(p.persistent(&r)), args, &r)
    });
    let once = once.or(grid).transpose()?;
    backward.finish(once, |b, w| {
        let [sums, combine] = b.sums(w, In::slot(MEAN), In::slot(RSTD), present::TRAINING)?;
        let args = walk_args!(
            GradientArgs {
                x: In::slot(0),
                g: In::slot(b.gradient()),
                coefficients: In::slot_at(WORKSPACE, b.p.row(2 * w.split.slabs)),
                dx: Out::slot(DX),
            },
            w,
            b.p.channels()
        );
        Ok(vec![sums, combine, b.p.step(&kernel::Gradient(w.common), args, w.grid)?])
    })
}

pub(super) fn evaluation_backward(
    desc: &BatchNormEvaluationBackwardDesc,
    target: Target,
) -> Result<Plan<BatchNormEvaluationBackwardDesc>, PlanError> {
    let p = Planner::new(EVALUATION, &desc.norm, target)?;
    let statistics = ["running_mean", "running_var"].map(|name| p.parameter(name, true));
    let backward = Backward::new(p, desc.dresidual, statistics, 4)?;
    backward.finish(None, |b, w| {
        let p = &b.p;
        let sums_end = 2 * w.split.slabs;
        let folded = p.row(sums_end + 4);
        let fold = {
            // Only the weight is read for the coefficients that are used here.
            let norm = BatchNorm { bias: false, ..*p.norm };
            let p = Planner { norm: &norm, ..Planner::new(p.op, p.norm, p.target)? };
            fold(&p, [WEIGHT, WEIGHT, MEAN, RSTD], WORKSPACE, folded)?
        };
        let at = |row: u64| In::slot_at(WORKSPACE, folded + p.row(row));
        let [sums, combine] = b.sums(w, at(0), at(3), 0)?;
        let coefficients = In::slot_at(WORKSPACE, p.row(sums_end));
        let slots = [b.gradient(), Y, DX];
        let result = p.normalise(w, slots, false, f64::NEG_INFINITY, coefficients)?;
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
