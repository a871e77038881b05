//! Local response normalisation across channels (Krizhevsky et al. 2012), as `torch.nn.functional.local_response_norm`
//! does it. Forward and backward.
//!
//! A tensor is read as `images` x `channels` x `spatial` elements, whatever the number of spatial dimensions; without any,
//! `spatial` is 1.
//!
//! `y = x / d^beta` with `d = k + alpha / size * sum(x_j^2)` over the channels `j` from `c - size / 2` to
//! `c + (size - 1) / 2`, as far as they exist: the sum is divided by `size` at the ends too.
//!
//! Backward takes the forward input: `dx_c = dy_c d_c^-beta - 2 alpha beta / size x_c sum(dy_j x_j d_j^(-beta - 1))` over the
//! channels `j` whose window has `c`. Nothing is saved forward; the sums of squares cost less than reading them.
//!
//! Half types are computed in f32 and rounded once. Every window is summed anew, so an infinity or NaN does not outlive
//! it. A `beta` of 3/4 is taken by square roots, any other by logarithm and exponential.

mod functions;
mod kernel;
pub mod reference;
pub(crate) mod samples;
pub mod tuning;

use warpwright_dsl::KernelDef;
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, Real, TensorSpec, Variant};
use crate::tensors::{InSlot, OutSlot, tensors};

pub use functions::{local_response_norm, local_response_norm_backward};
use kernel::{Common, Power, Single, SlidingBackward, SlidingForward, Step};
use tuning::Walk;

/// The name in the catalogue.
const OP: &str = "local_response_norm";

/// The numbers of the formula; all finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Coefficients {
    /// Factor of the mean square.
    pub alpha: Real,
    /// Exponent.
    pub beta: Real,
    /// Added to the mean square.
    pub k: Real,
}

impl Default for Coefficients {
    /// Those of PyTorch: `alpha` 1e-4, `beta` 3/4, `k` 1.
    fn default() -> Self {
        Self { alpha: Real::new(1e-4), beta: Real::new(0.75), k: Real::new(1.0) }
    }
}

/// `y = x / d^beta`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LocalResponseNormDesc {
    /// Element type.
    pub dtype: DType,
    /// Number of images.
    pub images: usize,
    /// Channels of an image.
    pub channels: usize,
    /// Elements of a channel.
    pub spatial: usize,
    /// Channels of a window, at least 1.
    pub size: usize,
    /// The numbers of the formula.
    pub coefficients: Coefficients,
}

tensors! {
    /// Tensors of [`LocalResponseNormDesc`].
    pub struct LocalResponseNormArgs<'a> {
        /// `images` x `channels` x `spatial`.
        x: In,
        /// The result, of the shape of `x`.
        y: Out,
    }
}

/// The gradient of [`LocalResponseNormDesc`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LocalResponseNormBackwardDesc {
    /// The forward operation.
    pub forward: LocalResponseNormDesc,
}

tensors! {
    /// Tensors of [`LocalResponseNormBackwardDesc`].
    pub struct LocalResponseNormBackwardArgs<'a> {
        /// The forward input.
        x: In,
        /// Gradient of the result, of the shape of `x`.
        dy: In,
        /// Gradient of `x`, of its shape.
        dx: Out,
        /// Of [`Plan::workspace_bytes`].
        workspace: Option<Out>,
    }
}

/// Elements of an image at most.
const MAX_IMAGE: usize = 1 << 31;

/// A descriptor whose sizes are in order.
struct Checked<'a> {
    desc: &'a LocalResponseNormDesc,
    total: usize,
    target: Target,
}

impl LocalResponseNormDesc {
    fn check(&self, target: Target) -> Result<Checked<'_>, PlanError> {
        let Self { dtype, images, channels, spatial, size, coefficients: Coefficients { alpha, beta, k } } =
            *self;
        let refuse = |parameter, got: String, expected| Err(PlanError::refused(OP, parameter, got, expected));
        PlanError::check_floats(OP, "x", dtype)?;
        if u32::try_from(size).map_or(true, |size| size == 0) {
            return refuse("size", size.to_string(), "from 1 to 2^32 - 1");
        }
        for (parameter, value) in [("alpha", alpha), ("beta", beta), ("k", k)] {
            if !value.get().is_finite() {
                return refuse(parameter, format!("{value:?}"), "finite");
            }
        }
        let image = channels.checked_mul(spatial).filter(|n| *n <= MAX_IMAGE);
        let Some(image) = image else {
            return refuse(
                "channels",
                channels.to_string(),
                "so few that an image has at most 2^31 elements",
            );
        };
        let total = images.checked_mul(image).filter(|n| n.checked_mul(8).is_some());
        match total {
            Some(total) => Ok(Checked { desc: self, total, target }),
            None => refuse("images", images.to_string(), "so few that the bytes of a tensor can be counted"),
        }
    }

    /// The plan with this walk, which must fit the window: for measuring one against another.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn plan_with(&self, target: Target, walk: Walk) -> Result<Plan<Self>, PlanError> {
        let checked = self.check(target)?;
        type Args<'a> = LocalResponseNormArgs<'a>;
        let tensors = Args::specs([
            Args::x.holds(self.dtype, checked.total),
            Args::y.holds(self.dtype, checked.total).like(Args::x),
        ]);
        // The forward kernels take neither a gradient nor terms.
        let args = checked.args(walk, Args::x, Args::x, Args::y, Args::y);
        let step = match walk {
            Walk::Sliding { .. } => {
                let def = SlidingForward { common: checked.common(), size: self.size as u32 };
                checked.step(&def, args, walk)?
            }
            Walk::Single => checked.step(&Single { dtype: self.dtype, step: Step::Forward }, args, walk)?,
        };
        Ok(checked.finish(Direction::Forward, tensors, step.into_iter().collect()))
    }

    fn walk(&self) -> Walk {
        tuning::choose(self.size, self.channels, self.spatial)
    }
}

impl Operation for LocalResponseNormDesc {
    type Args<'a> = LocalResponseNormArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.plan_with(target, self.walk())
    }
}

impl LocalResponseNormBackwardDesc {
    /// The plan with this walk, which must fit the window: for measuring one against another.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn plan_with(&self, target: Target, walk: Walk) -> Result<Plan<Self>, PlanError> {
        let desc = &self.forward;
        let checked = desc.check(target)?;
        let dtype = desc.dtype;
        let workspace = if walk == Walk::Single { checked.total } else { 0 };
        type Args<'a> = LocalResponseNormBackwardArgs<'a>;
        let tensors = Args::specs([
            Args::x.holds(dtype, checked.total),
            Args::dy.holds(dtype, checked.total).like(Args::x),
            Args::dx.holds(dtype, checked.total).like(Args::x),
            Args::workspace.scratch(dtype.accumulator(), workspace),
        ]);
        let args = checked.args(walk, Args::x, Args::dy, Args::workspace, Args::dx);
        let steps = match walk {
            Walk::Sliding { .. } => {
                let def = SlidingBackward { common: checked.common(), size: desc.size as u32 };
                checked.step(&def, args, walk)?.into_iter().collect()
            }
            Walk::Single => {
                let both = [Step::Terms, Step::Gradient].map(|step| Single { dtype, step });
                let both = both.map(|def| checked.step(&def, args.clone(), walk));
                both.into_iter().filter_map(Result::transpose).collect::<Result<_, _>>()?
            }
        };
        Ok(checked.finish(Direction::Backward, tensors, steps))
    }
}

impl Operation for LocalResponseNormBackwardDesc {
    type Args<'a> = LocalResponseNormBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.plan_with(target, self.forward.walk())
    }
}

impl Checked<'_> {
    fn common(&self) -> Common {
        Common { dtype: self.desc.dtype, power: Power::of(self.desc.coefficients.beta.get()) }
    }

    /// The dimension that blocks along x of the grid divide.
    fn places(&self, walk: Walk) -> usize {
        let Walk::Sliding { .. } = walk else { return self.desc.channels * self.desc.spatial };
        self.desc.spatial
    }

    fn tiles(&self, walk: Walk) -> u32 {
        // An image has at most 2^31 elements.
        self.places(walk).div_ceil(tuning::THREADS as usize) as u32
    }

    fn args(&self, walk: Walk, x: InSlot, dy: InSlot, terms: OutSlot, y: OutSlot) -> kernel::LrnArgs {
        let LocalResponseNormDesc { channels, spatial, size, coefficients, .. } = *self.desc;
        let run = if let Walk::Sliding { channels } = walk { channels } else { 0 };
        kernel::LrnArgs {
            x: x.arg(),
            dy: dy.arg(),
            terms: terms.read_write(),
            y: y.arg(),
            channels: channels as u32,
            spatial: spatial as u32,
            tiles: self.tiles(walk),
            run,
            size: size as u32,
            scale: coefficients.alpha.get() / size as f64,
            beta: coefficients.beta.get(),
            k: coefficients.k.get(),
        }
    }

    /// A launch, if there is anything to do.
    fn step<D: KernelDef<Args = kernel::LrnArgs>>(
        &self,
        def: &D,
        args: kernel::LrnArgs,
        walk: Walk,
    ) -> Result<Option<LaunchStep>, PlanError> {
        let blocks = self.desc.images.saturating_mul(self.tiles(walk) as usize);
        let runs = match walk {
            Walk::Sliding { channels } => (self.desc.channels as u32).div_ceil(channels),
            Walk::Single => 1,
        };
        let grid = plan::cover(OP, if self.total > 0 { blocks } else { 0 }, 1)?.map(|[x, ..]| [x, runs, 1]);
        plan::launch_over(OP, def, args, self.target, grid)
    }

    fn finish<O: Operation>(
        &self,
        direction: Direction,
        tensors: Vec<TensorSpec>,
        steps: Vec<LaunchStep>,
    ) -> Plan<O> {
        Plan::of(OP, direction, self.target, tensors, vec![Variant { alignment: 1, steps }])
    }
}
