//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::{
    Activation, ActivationArgs, ActivationBackwardArgs, ActivationBackwardDesc, ActivationDesc,
    GatedActivation, GatedArgs, GatedBackwardArgs, GatedBackwardDesc, GatedDesc, Slope,
};
use crate::Error;
use crate::plan::PlanCache;

fn empty_like(stream: &Stream, x: &Tensor) -> Result<Tensor, Error> {
    Ok(Tensor::empty_on(stream, x.dtype(), x.shape())?)
}

static PLANS: PlanCache<ActivationDesc> = PlanCache::new();

/// `f(x)`, elementwise.
///
/// # Errors
/// The element type is not supported, or memory runs out.
pub fn activate(stream: &Stream, f: Activation, x: &Tensor) -> Result<Tensor, Error> {
    let desc = ActivationDesc { activation: f, dtype: x.dtype(), len: x.len() };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut y = empty_like(stream, x)?;
    plan.launch(stream, ActivationArgs { x: Some(x.as_ref()), y: y.as_mut() })?;
    Ok(y)
}

/// Replaces `x` by `f(x)`.
///
/// # Errors
/// The element type is not supported.
pub fn activate_in_place(stream: &Stream, f: Activation, x: &mut Tensor) -> Result<(), Error> {
    let desc = ActivationDesc { activation: f, dtype: x.dtype(), len: x.len() };
    let plan = PLANS.get(&desc, stream.device().target())?;
    Ok(plan.launch(stream, ActivationArgs { x: None, y: x.as_mut() })?)
}

/// `dy f'(x)`, elementwise, for the argument `x` of the forward function.
///
/// # Errors
/// The tensors do not fit each other, the element type is not supported, or memory runs out.
pub fn activate_backward(stream: &Stream, f: Activation, x: &Tensor, dy: &Tensor) -> Result<Tensor, Error> {
    static PLANS: PlanCache<ActivationBackwardDesc> = PlanCache::new();
    let desc = ActivationBackwardDesc { activation: f, dtype: x.dtype(), len: x.len() };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut dx = empty_like(stream, x)?;
    let args = ActivationBackwardArgs { x: x.as_ref(), dy: Some(dy.as_ref()), dx: dx.as_mut() };
    plan.launch(stream, args)?;
    Ok(dx)
}

/// `f(gate) * up`, elementwise.
///
/// # Errors
/// The tensors do not fit each other, the element type is not supported, or memory runs out.
pub fn gate(stream: &Stream, f: GatedActivation, gate: &Tensor, up: &Tensor) -> Result<Tensor, Error> {
    static PLANS: PlanCache<GatedDesc> = PlanCache::new();
    let desc = GatedDesc { activation: f, dtype: gate.dtype(), len: gate.len() };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut y = empty_like(stream, gate)?;
    plan.launch(stream, GatedArgs { gate: gate.as_ref(), up: up.as_ref(), y: y.as_mut() })?;
    Ok(y)
}

/// The gradients `(dgate, dup)` of [`gate`].
///
/// # Errors
/// The tensors do not fit each other, the element type is not supported, or memory runs out.
pub fn gate_backward(
    stream: &Stream,
    f: GatedActivation,
    gate: &Tensor,
    up: &Tensor,
    dy: &Tensor,
) -> Result<(Tensor, Tensor), Error> {
    static PLANS: PlanCache<GatedBackwardDesc> = PlanCache::new();
    let desc = GatedBackwardDesc { activation: f, dtype: gate.dtype(), len: gate.len() };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut dgate = empty_like(stream, gate)?;
    let mut dup = empty_like(stream, gate)?;
    let args = GatedBackwardArgs {
        gate: gate.as_ref(),
        up: up.as_ref(),
        dy: dy.as_ref(),
        dgate: dgate.as_mut(),
        dup: dup.as_mut(),
    };
    plan.launch(stream, args)?;
    Ok((dgate, dup))
}

macro_rules! named {
    ($($name:ident, $backward:ident => $f:ident;)*) => {$(
        #[doc = concat!("[`activate`] with [`Activation::", stringify!($f), "`].")]
        ///
        /// # Errors
        /// The element type is not supported, or memory runs out.
        pub fn $name(stream: &Stream, x: &Tensor) -> Result<Tensor, Error> {
            activate(stream, Activation::$f, x)
        }

        #[doc = concat!("[`activate_backward`] with [`Activation::", stringify!($f), "`].")]
        ///
        /// # Errors
        /// The tensors do not fit each other, the element type is not supported, or memory runs out.
        pub fn $backward(stream: &Stream, x: &Tensor, dy: &Tensor) -> Result<Tensor, Error> {
            activate_backward(stream, Activation::$f, x, dy)
        }
    )*};
}

named! {
    relu, relu_backward => Relu;
    gelu_tanh, gelu_tanh_backward => GeluTanh;
    gelu_erf, gelu_erf_backward => GeluErf;
    silu, silu_backward => Silu;
    sigmoid, sigmoid_backward => Sigmoid;
    tanh, tanh_backward => Tanh;
}

/// [`activate`] with [`Activation::LeakyRelu`].
///
/// # Errors
/// The slope is not finite, the element type is not supported, or memory runs out.
pub fn leaky_relu(stream: &Stream, x: &Tensor, negative_slope: f64) -> Result<Tensor, Error> {
    activate(stream, Activation::LeakyRelu { negative_slope: Slope::new(negative_slope) }, x)
}

/// [`activate_backward`] with [`Activation::LeakyRelu`].
///
/// # Errors
/// The slope is not finite, the tensors do not fit each other, the element type is not supported, or memory runs out.
pub fn leaky_relu_backward(
    stream: &Stream,
    x: &Tensor,
    dy: &Tensor,
    negative_slope: f64,
) -> Result<Tensor, Error> {
    activate_backward(stream, Activation::LeakyRelu { negative_slope: Slope::new(negative_slope) }, x, dy)
}

macro_rules! named_gates {
    ($($name:ident, $backward:ident => $f:ident;)*) => {$(
        #[doc = concat!("[`gate()`] with [`GatedActivation::", stringify!($f), "`].")]
        ///
        /// # Errors
        /// The tensors do not fit each other, the element type is not supported, or memory runs out.
        pub fn $name(stream: &Stream, gate_values: &Tensor, up: &Tensor) -> Result<Tensor, Error> {
            gate(stream, GatedActivation::$f, gate_values, up)
        }

        #[doc = concat!("[`gate_backward`] with [`GatedActivation::", stringify!($f), "`].")]
        ///
        /// # Errors
        /// The tensors do not fit each other, the element type is not supported, or memory runs out.
        pub fn $backward(
            stream: &Stream,
            gate_values: &Tensor,
            up: &Tensor,
            dy: &Tensor,
        ) -> Result<(Tensor, Tensor), Error> {
            gate_backward(stream, GatedActivation::$f, gate_values, up, dy)
        }
    )*};
}

named_gates! {
    swiglu, swiglu_backward => Swiglu;
    geglu, geglu_backward => Geglu;
    geglu_tanh, geglu_tanh_backward => GegluTanh;
}
