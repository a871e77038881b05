//! Softmax and its logarithm over any dimension of a contiguous tensor, forward and backward.
//!
//! A tensor is read as `[outer, n, inner]`: the dimension in question has `n` elements, `inner` is the product of the
//! dimensions after it (1 for the last one), `outer` that of those before it. A *row* is the `n` elements with the same
//! outer and inner index.
//!
//! | name | forward | backward, from `y` and `dy` |
//! |---|---|---|
//! | `softmax` | `y = exp(scale x - m) / sum exp(scale x - m)` | `dx = scale y (dy - sum(y dy))` |
//! | `log_softmax` | `y = scale x - m - log(sum exp(scale x - m))` | `dx = scale (dy - exp(y) sum(dy))` |
//!
//! `m` is the largest `scale x` of the row (Bridle 1990; Goodfellow et al., *Deep Learning*, 4.1). The meaning is that of
//! `torch.softmax(scale * x, dim)` and `torch.log_softmax`: NaN in a row makes the whole row NaN, and so do `+inf` and a
//! row that is `-inf` throughout. `scale` is positive and finite, 1 for the plain function.
//!
//! [`MaskedSoftmaxDesc`] adds a mask. There, a row in which nothing takes part (every `scale x + mask` is `-inf`, or every
//! boolean 0) gives zeros, or `-inf` as logarithms, where PyTorch gives NaN; a boolean says what takes part, as in
//! `scaled_dot_product_attention`, and what it leaves out may be anything, NaN included.
//!
//! Tensors are contiguous and of one element type. Half types are computed in f32 and rounded once. An output may replace
//! an input of the same launch exactly; any other overlap is an error.

mod functions;
mod kernel;
pub(crate) mod math;
mod passes;
pub mod reference;
pub(crate) mod samples;
mod strided;
pub mod tuning;

use warpwright_dsl::KernelArgs;
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{ArgValue, DType, Target};
use warpwright_runtime::LaunchStep;

use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, Real, TensorSpec, Variant};
use crate::tensors::tensors;

pub use functions::*;
use kernel::Common;
use tuning::{Config, Layout};

/// Which of the two functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Softmax {
    /// The probabilities.
    Plain,
    /// Their logarithms.
    Log,
}

impl Softmax {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Plain, Self::Log];

    /// `softmax` or `log_softmax`
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "softmax",
            Self::Log => "log_softmax",
        }
    }

    /// The function with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.name() == name)
    }
}

/// The elements of a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MaskKind {
    /// Numbers of the type of `x`, added to `scale x`.
    Additive,
    /// Bytes; elements with a 0 do not take part.
    Boolean,
}

/// `y = softmax(scale x)` over the middle dimension of `[outer, n, inner]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SoftmaxDesc {
    /// Which function.
    pub function: Softmax,
    /// Element type of both tensors.
    pub dtype: DType,
    /// Product of the dimensions before the one in question.
    pub outer: usize,
    /// Elements of a row.
    pub n: usize,
    /// Product of the dimensions after it.
    pub inner: usize,
    /// The factor in front of `x`.
    pub scale: Real,
}

tensors! {
    /// Tensors of [`SoftmaxDesc`].
    pub struct SoftmaxArgs<'a> {
        /// The scores; `None` reads what `y` holds.
        x: InPlace<y>,
        /// The result.
        y: Out,
    }
}

impl SoftmaxDesc {
    fn shape(&self, direction: Direction) -> Shape {
        let Self { function, dtype, outer, n, inner, scale } = *self;
        Shape { function, dtype, outer, n, inner, scale, direction }
    }

    /// The plan with one given layout.
    ///
    /// # Errors
    /// As [`Operation::plan`]; [`PlanError::Parameter`] if the layout does not take the shape.
    pub fn plan_with(&self, target: Target, config: Config) -> Result<Plan<Self>, PlanError> {
        self.shape(Direction::Forward).check_config(config)?;
        self.planned(target, &[config])
    }

    fn planned(&self, target: Target, configs: &[Config]) -> Result<Plan<Self>, PlanError> {
        let shape = self.shape(Direction::Forward);
        let len = shape.len()?;
        let dtype = self.dtype;
        let tensors = SoftmaxArgs::specs([
            SoftmaxArgs::x.holds(dtype, len),
            SoftmaxArgs::y.holds(dtype, len).in_place().like(SoftmaxArgs::x),
        ]);
        shape.plan(target, tensors, configs, |common, tiles| {
            let args = kernel::ForwardArgs {
                x: SoftmaxArgs::x.arg(),
                y: SoftmaxArgs::y.arg(),
                rows: self.outer as u64,
                n: self.n as u64,
                inner: self.inner as u64,
                tiles,
                scale: shape.kernel_scale(),
            };
            Ok((plan::recorded(shape.op(), &kernel::Forward(common), target)?, args.values()))
        })
    }
}

impl Operation for SoftmaxDesc {
    type Args<'a> = SoftmaxArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.planned(target, &self.shape(Direction::Forward).configs(target))
    }
}

/// [`SoftmaxDesc`] with a mask that is shared by rows, and so smaller than the tensor.
///
/// The mask has the shape `[outer / (repeat period), period, n, inner]`: row `o` takes row
/// `o / (repeat period) period + o % period` of it. For scores of shape `[batch, heads, queries, keys]` along the keys:
///
/// | shape of the mask | `repeat` | `period` |
/// |---|---|---|
/// | `[queries, keys]` | `batch heads` | `queries` |
/// | `[batch, 1, 1, keys]` | `heads queries` | 1 |
/// | `[batch, 1, queries, keys]` | `heads` | `queries` |
/// | that of the scores | 1 | 1 |
///
/// The gradient is that of [`SoftmaxBackwardDesc`], which needs no mask: what does not take part has `y = 0` and so
/// `dx = 0`. Of the logarithm `dx = scale dy` there, as in PyTorch; a `dy` of 0 leaves it out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MaskedSoftmaxDesc {
    /// The function without the mask.
    pub softmax: SoftmaxDesc,
    /// The elements of the mask.
    pub mask: MaskKind,
    /// Rows of a period that take the same row of the mask.
    pub repeat: usize,
    /// Rows after which the mask starts again.
    pub period: usize,
}

tensors! {
    /// Tensors of [`MaskedSoftmaxDesc`].
    pub struct MaskedSoftmaxArgs<'a> {
        /// The scores; `None` reads what `y` holds.
        x: InPlace<y>,
        /// The mask.
        mask: In,
        /// The result.
        y: Out,
    }
}

impl Operation for MaskedSoftmaxDesc {
    type Args<'a> = MaskedSoftmaxArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let SoftmaxDesc { dtype, outer, n, inner, .. } = self.softmax;
        let shape = self.softmax.shape(Direction::Forward);
        let len = shape.len()?;
        let group = self.repeat.checked_mul(self.period).filter(|group| *group > 0);
        let Some(group) = group.filter(|group| outer.is_multiple_of(*group)) else {
            let got = format!("{} x {} of {outer} rows", self.repeat, self.period);
            return Err(shape.parameter("repeat x period", got, "a divisor of outer"));
        };
        let mask = match self.mask {
            MaskKind::Additive => dtype,
            MaskKind::Boolean => DType::U8,
        };
        let tensors = MaskedSoftmaxArgs::specs([
            MaskedSoftmaxArgs::x.holds(dtype, len),
            MaskedSoftmaxArgs::mask.holds(mask, len / self.repeat),
            MaskedSoftmaxArgs::y.holds(dtype, len).in_place().like(MaskedSoftmaxArgs::x),
        ]);
        let configs = tuning::masked_configs(dtype, n, inner);
        shape.plan(target, tensors, &configs, |common, tiles| {
            let args = passes::MaskedArgs {
                x: MaskedSoftmaxArgs::x.arg(),
                mask: MaskedSoftmaxArgs::mask.arg(),
                y: MaskedSoftmaxArgs::y.arg(),
                n: n as u64,
                inner: inner as u64,
                tiles,
                scale: shape.kernel_scale(),
                group: group as u64,
                period: self.period as u64,
            };
            let def = passes::MaskedForward { common, mask: self.mask };
            Ok((plan::recorded(shape.op(), &def, target)?, args.values()))
        })
    }
}

/// The gradient of [`SoftmaxDesc`] from its result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SoftmaxBackwardDesc {
    /// The forward operation.
    pub forward: SoftmaxDesc,
}

tensors! {
    /// Tensors of [`SoftmaxBackwardDesc`].
    pub struct SoftmaxBackwardArgs<'a> {
        /// The result of the forward function.
        y: In,
        /// Its gradient; `None` reads what `dx` holds.
        dy: InPlace<dx>,
        /// The gradient of the scores.
        dx: Out,
    }
}

impl SoftmaxBackwardDesc {
    /// The plan with one given layout.
    ///
    /// # Errors
    /// As [`Operation::plan`]; [`PlanError::Parameter`] if the layout does not take the shape.
    pub fn plan_with(&self, target: Target, config: Config) -> Result<Plan<Self>, PlanError> {
        self.forward.shape(Direction::Backward).check_config(config)?;
        self.planned(target, &[config])
    }

    fn planned(&self, target: Target, configs: &[Config]) -> Result<Plan<Self>, PlanError> {
        let shape = self.forward.shape(Direction::Backward);
        let len = shape.len()?;
        let SoftmaxDesc { dtype, outer, n, inner, scale, .. } = self.forward;
        let tensors = SoftmaxBackwardArgs::specs([
            SoftmaxBackwardArgs::y.holds(dtype, len),
            SoftmaxBackwardArgs::dy.holds(dtype, len).like(SoftmaxBackwardArgs::y),
            SoftmaxBackwardArgs::dx.holds(dtype, len).in_place().like(SoftmaxBackwardArgs::y),
        ]);
        shape.plan(target, tensors, configs, |common, tiles| {
            let args = kernel::BackwardArgs {
                y: SoftmaxBackwardArgs::y.arg(),
                dy: SoftmaxBackwardArgs::dy.arg(),
                dx: SoftmaxBackwardArgs::dx.arg(),
                rows: outer as u64,
                n: n as u64,
                inner: inner as u64,
                tiles,
                scale: scale.get(),
            };
            Ok((plan::recorded(shape.op(), &kernel::Backward(common), target)?, args.values()))
        })
    }
}

impl Operation for SoftmaxBackwardDesc {
    type Args<'a> = SoftmaxBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.planned(target, &self.forward.shape(Direction::Backward).configs(target))
    }
}

/// The parts that both directions have in common.
#[derive(Clone, Copy, Debug)]
struct Shape {
    function: Softmax,
    dtype: DType,
    outer: usize,
    n: usize,
    inner: usize,
    scale: Real,
    direction: Direction,
}

impl Shape {
    fn op(&self) -> &'static str {
        self.function.name()
    }

    /// The layouts that tuning gives.
    fn configs(&self, target: Target) -> Vec<Config> {
        tuning::configs(self.dtype, self.direction, target, self.n, self.inner)
    }

    fn parameter(&self, parameter: &'static str, got: String, expected: &'static str) -> PlanError {
        PlanError::refused(self.op(), parameter, got, expected)
    }

    /// The factor for the forward kernels. In a row of one every factor gives the same, and only 1 gives it without a
    /// rounding: a logarithm of exactly 0.
    fn kernel_scale(&self) -> f64 {
        if self.n == 1 { 1.0 } else { self.scale.get() }
    }

    /// Elements of each tensor.
    fn len(&self) -> Result<usize, PlanError> {
        let tensor = if self.direction == Direction::Forward { "x" } else { "y" };
        PlanError::check_floats(self.op(), tensor, self.dtype)?;
        let scale = self.scale.get();
        if !(scale > 0.0 && scale.is_finite()) {
            return Err(self.parameter("scale", format!("{scale:?}"), "positive and finite"));
        }
        let len = self.outer.checked_mul(self.n).and_then(|rows| rows.checked_mul(self.inner));
        let fits = len.filter(|len| len.checked_mul(self.dtype.bytes()).is_some());
        fits.ok_or_else(|| {
            let got = format!("[{}, {}, {}]", self.outer, self.n, self.inner);
            self.parameter("[outer, n, inner]", got, "a tensor that can be addressed")
        })
    }

    fn check_config(&self, config: Config) -> Result<(), PlanError> {
        let strided = matches!(config.layout, Layout::Columns { .. } | Layout::ColumnLoop { .. });
        let run = if strided { self.inner } else { self.n };
        let fits = config.capacity() >= self.n
            && config.width > 0
            && run.is_multiple_of(config.width as usize)
            && (strided || self.inner == 1);
        let got = || format!("{config:?} for [{}, {}, {}]", self.outer, self.n, self.inner);
        if fits { Ok(()) } else { Err(self.parameter("config", got(), "a layout that takes the shape")) }
    }

    /// A plan with one launch per layout; `build` gives the kernel and its arguments for a layout and a number of tiles.
    fn plan<O: Operation>(
        &self,
        target: Target,
        tensors: Vec<TensorSpec>,
        configs: &[Config],
        build: impl Fn(Common, u32) -> Result<(Kernel, Vec<ArgValue>), PlanError>,
    ) -> Result<Plan<O>, PlanError> {
        let dtype = self.dtype;
        let mut variants = Vec::new();
        for &config in configs {
            let mut steps = Vec::new();
            if tensors[0].len > 0 {
                let (grid, tiles) = self.grid(config)?;
                let common = Common { log: self.function == Softmax::Log, dtype, config };
                let (kernel, args) = build(common, tiles)?;
                steps.push(LaunchStep::new(kernel, grid, args));
            }
            variants.push(Variant { alignment: config.alignment(dtype), steps });
        }
        Ok(Plan::of(self.op(), self.direction, target, tensors, variants))
    }

    /// The grid, and how many blocks lie across the columns of strided rows.
    fn grid(&self, config: Config) -> Result<([u32; 3], u32), PlanError> {
        let op = self.op();
        let (blocks, tiles) = match config.layout {
            Layout::Rows { team, .. } if team > config.threads => {
                (self.outer.saturating_mul(config.cluster() as usize), 1)
            }
            Layout::Rows { team, .. } => (self.outer.div_ceil((config.threads / team) as usize), 1),
            Layout::RowLoop => (self.outer, 1),
            Layout::Columns { lanes, .. } | Layout::ColumnLoop { lanes, .. } => {
                let tiles = self.inner.div_ceil((lanes * config.width) as usize);
                (tiles.saturating_mul(self.outer), tiles)
            }
        };
        let grid = plan::cover(op, blocks, 1)?.unwrap_or([1; 3]);
        // Not more than the blocks of the grid.
        Ok((grid, u32::try_from(tiles).unwrap_or(u32::MAX)))
    }
}
