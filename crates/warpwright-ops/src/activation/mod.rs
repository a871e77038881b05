//! Activations: elementwise functions, and gated units that multiply one by a second input. Forward and backward.
//!
//! | name | `f(x)` | source |
//! |---|---|---|
//! | `relu` | `max(x, 0)` | |
//! | `leaky_relu` | `x` if `x > 0`, else `negative_slope x` | Maas et al. 2013 |
//! | `gelu_erf` | `x Phi(x)`, `Phi` the normal distribution function | Hendrycks and Gimpel 2016, arXiv:1606.08415 |
//! | `gelu_tanh` | `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))` | the same, section 2 |
//! | `silu` | `x / (1 + exp(-x))` | the same; also called swish |
//! | `sigmoid` | `1 / (1 + exp(-x))` | |
//! | `tanh` | `tanh(x)` | |
//! | `swiglu`, `geglu`, `geglu_tanh` | `f(gate) up` with `silu`, `gelu_erf`, `gelu_tanh` | Shazeer 2020, arXiv:2002.05202 |
//!
//! Backward takes the forward input `x` and gives `dx = dy f'(x)`; a gated unit gives `dgate = dy up f'(gate)` and
//! `dup = dy f(gate)`.
//!
//! Special values: NaN in `x` gives NaN in `y` and in `dx`, but for the gradients of `relu`, which is `dy` there, and of
//! `leaky_relu`, `negative_slope dy`, as in PyTorch. Where `relu` is flat its gradient is 0 whatever `dy` is.
//! Finite arguments of any magnitude give the right value, even where a square or an exponential overflows. `silu` and
//! both `gelu` are evaluated as `x` times a probability, so they are NaN at `-inf`, as in PyTorch; their derivatives
//! are NaN at both infinities, as there.
//!
//! Tensors are contiguous and of one element type. Half types are computed in f32 and rounded once. An output may
//! replace an input of the same launch exactly; any other overlap is an error.

mod function;
mod functions;
mod kernel;
mod math;
pub mod reference;
pub(crate) mod samples;
mod storage;
pub mod tuning;

use warpwright_dsl::{Float, KernelArgs, Reg};
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{ArgValue, DType, Target};
use warpwright_runtime::LaunchStep;

use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, TensorSpec, Variant};
use crate::tensors::tensors;

pub use function::{Activation, GatedActivation};
pub use functions::*;
use kernel::Common;
use tuning::Config;

/// `y = f(x)`, elementwise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ActivationDesc {
    /// The function.
    pub activation: Activation,
    /// Element type of both tensors.
    pub dtype: DType,
    /// Number of elements.
    pub len: usize,
}

tensors! {
    /// Tensors of [`ActivationDesc`].
    pub struct ActivationArgs<'a> {
        /// The argument; `None` reads what `y` holds.
        x: InPlace<y>,
        /// The result.
        y: Out,
    }
}

impl Operation for ActivationDesc {
    type Args<'a> = ActivationArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let Self { activation, dtype, len } = *self;
        check_parameters(activation)?;
        let tensors = ActivationArgs::specs([
            ActivationArgs::x.holds(dtype, len),
            ActivationArgs::y.holds(dtype, len).in_place().like(ActivationArgs::x),
        ]);
        let parameter = activation.parameter().map_or(0.0, |(_, value)| value);
        plan_with(activation.name(), Direction::Forward, dtype, len, target, tensors, |config| {
            let def = kernel::Forward { f: activation, common: Common { dtype, config } };
            let args = kernel::ForwardArgs {
                x: ActivationArgs::x.arg(),
                y: ActivationArgs::y.arg(),
                n: len as u64,
                parameter,
            };
            Ok((plan::recorded(activation.name(), &def, target)?, args.values()))
        })
    }
}

/// `dx = dy f'(x)`, elementwise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ActivationBackwardDesc {
    /// The function whose gradient is taken.
    pub activation: Activation,
    /// Element type of all tensors.
    pub dtype: DType,
    /// Number of elements.
    pub len: usize,
}

tensors! {
    /// Tensors of [`ActivationBackwardDesc`].
    pub struct ActivationBackwardArgs<'a> {
        /// The argument of the forward function.
        x: In,
        /// Gradient of its result; `None` reads what `dx` holds.
        dy: InPlace<dx>,
        /// Gradient of its argument.
        dx: Out,
    }
}

impl Operation for ActivationBackwardDesc {
    type Args<'a> = ActivationBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let Self { activation, dtype, len } = *self;
        check_parameters(activation)?;
        let tensors = ActivationBackwardArgs::specs([
            ActivationBackwardArgs::x.holds(dtype, len),
            ActivationBackwardArgs::dy.holds(dtype, len).like(ActivationBackwardArgs::x),
            ActivationBackwardArgs::dx.holds(dtype, len).in_place().like(ActivationBackwardArgs::x),
        ]);
        let parameter = activation.parameter().map_or(0.0, |(_, value)| value);
        plan_with(activation.name(), Direction::Backward, dtype, len, target, tensors, |config| {
            let def = kernel::Backward { f: activation, common: Common { dtype, config } };
            let args = kernel::BackwardArgs {
                x: ActivationBackwardArgs::x.arg(),
                dy: ActivationBackwardArgs::dy.arg(),
                dx: ActivationBackwardArgs::dx.arg(),
                n: len as u64,
                parameter,
            };
            Ok((plan::recorded(activation.name(), &def, target)?, args.values()))
        })
    }
}

/// `y = activation(gate) * up`, elementwise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GatedDesc {
    /// The unit.
    pub activation: GatedActivation,
    /// Element type of all tensors.
    pub dtype: DType,
    /// Number of elements of each tensor.
    pub len: usize,
}

tensors! {
    /// Tensors of [`GatedDesc`].
    pub struct GatedArgs<'a> {
        /// The argument of the activation.
        gate: In,
        /// The operand that it gates.
        up: In,
        /// The result.
        y: Out,
    }
}

impl Operation for GatedDesc {
    type Args<'a> = GatedArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let Self { activation, dtype, len } = *self;
        let tensors = GatedArgs::specs([
            GatedArgs::gate.holds(dtype, len),
            GatedArgs::up.holds(dtype, len).like(GatedArgs::gate),
            GatedArgs::y.holds(dtype, len).in_place().like(GatedArgs::gate),
        ]);
        plan_with(activation.name(), Direction::Forward, dtype, len, target, tensors, |config| {
            let def = kernel::GatedForward { f: activation, common: Common { dtype, config } };
            let args = kernel::GatedForwardArgs {
                gate: GatedArgs::gate.arg(),
                up: GatedArgs::up.arg(),
                y: GatedArgs::y.arg(),
                n: len as u64,
            };
            Ok((plan::recorded(activation.name(), &def, target)?, args.values()))
        })
    }
}

/// `dgate = dy * up * activation'(gate)` and `dup = dy * activation(gate)`, elementwise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GatedBackwardDesc {
    /// The unit whose gradients are taken.
    pub activation: GatedActivation,
    /// Element type of all tensors.
    pub dtype: DType,
    /// Number of elements of each tensor.
    pub len: usize,
}

tensors! {
    /// Tensors of [`GatedBackwardDesc`].
    pub struct GatedBackwardArgs<'a> {
        /// The argument of the activation.
        gate: In,
        /// The operand that it gates.
        up: In,
        /// Gradient of the result.
        dy: In,
        /// Gradient of `gate`.
        dgate: Out,
        /// Gradient of `up`.
        dup: Out,
    }
}

impl Operation for GatedBackwardDesc {
    type Args<'a> = GatedBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let Self { activation, dtype, len } = *self;
        let tensors = GatedBackwardArgs::specs([
            GatedBackwardArgs::gate.holds(dtype, len),
            GatedBackwardArgs::up.holds(dtype, len).like(GatedBackwardArgs::gate),
            GatedBackwardArgs::dy.holds(dtype, len).like(GatedBackwardArgs::gate),
            GatedBackwardArgs::dgate.holds(dtype, len).in_place().like(GatedBackwardArgs::gate),
            GatedBackwardArgs::dup.holds(dtype, len).in_place().like(GatedBackwardArgs::gate),
        ]);
        plan_with(activation.name(), Direction::Backward, dtype, len, target, tensors, |config| {
            let def = kernel::GatedBackward { f: activation, common: Common { dtype, config } };
            let args = kernel::GatedBackwardArgs {
                gate: GatedBackwardArgs::gate.arg(),
                up: GatedBackwardArgs::up.arg(),
                dy: GatedBackwardArgs::dy.arg(),
                dgate: GatedBackwardArgs::dgate.arg(),
                dup: GatedBackwardArgs::dup.arg(),
                n: len as u64,
            };
            Ok((plan::recorded(activation.name(), &def, target)?, args.values()))
        })
    }
}

/// `activation(x)` in registers, for the epilogues of other operations; not for functions with a parameter.
pub(crate) fn evaluate<'k, A: Float>(activation: Activation, x: Reg<'k, A>, dtype: DType) -> Reg<'k, A> {
    math::forward(activation, x, [x, x], dtype)
}

/// `dy activation'(x)` in registers, for the same.
pub(crate) fn differentiate<'k, A: Float>(
    activation: Activation,
    (x, dy): (Reg<'k, A>, Reg<'k, A>),
    dtype: DType,
) -> Reg<'k, A> {
    math::backward(activation, x, dy, x, dtype)
}

/// The gradients of both factors of a unit in registers, for the same.
pub(crate) fn differentiate_gated<'k, A: Float>(
    unit: GatedActivation,
    (gate, up): (Reg<'k, A>, Reg<'k, A>),
    dy: Reg<'k, A>,
    dtype: DType,
) -> (Reg<'k, A>, Reg<'k, A>) {
    let jet = math::weighted_jet(unit.into(), gate, dtype);
    (dy * jet.derivative * up, dy * jet.value)
}

/// A plan with one launch per layout; `build` gives the kernel and its arguments for a layout.
fn plan_with<O: Operation>(
    op: &'static str,
    direction: Direction,
    dtype: DType,
    len: usize,
    target: Target,
    tensors: Vec<TensorSpec>,
    build: impl Fn(Config) -> Result<(Kernel, Vec<ArgValue>), PlanError>,
) -> Result<Plan<O>, PlanError> {
    PlanError::check_floats(op, tensors[0].name, dtype)?;
    let mut variants = Vec::new();
    for config in tuning::configs(dtype) {
        let mut steps = Vec::new();
        if let Some(grid) = plan::cover(op, len, config.block_elements())? {
            let (kernel, args) = build(config)?;
            steps.push(LaunchStep::new(kernel, grid, args));
        }
        variants.push(Variant { alignment: config.alignment(dtype), steps });
    }
    Ok(Plan::of(op, direction, target, tensors, variants))
}

fn check_parameters(activation: Activation) -> Result<(), PlanError> {
    let Some((parameter, value)) = activation.parameter() else { return Ok(()) };
    let (right, expected) = match activation {
        Activation::Softplus { .. } => (value.is_finite() && value != 0.0, "finite and not 0"),
        _ => (value.is_finite(), "finite"),
    };
    if right { Ok(()) } else { Err(PlanError::refused(activation.name(), parameter, value, expected)) }
}
