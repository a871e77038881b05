//! Elementwise functions, and products with one of two halves.

use candle_core::{D, Result, Tensor};
use warpwright::activation::{
    Activation, ActivationArgs, ActivationBackwardArgs, ActivationBackwardDesc, ActivationDesc,
    GatedActivation, GatedArgs, GatedBackwardArgs, GatedBackwardDesc, GatedDesc,
};
use warpwright::plan::{PlanCache, Real};

use crate::array::{Made, Spec};
use crate::call::{Call, only, present};
use crate::graph::record;

/// `f(x)` of every element, for the `f` that is named at run time.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use warpwright_candle::ops::{self, Activation};
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::new(&[-1f32, 2.0], &Device::Cpu)?;
/// assert_eq!(ops::activate(Activation::Relu, &x)?.to_vec1::<f32>()?, [0.0, 2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If the element type is none of f32, f64, f16 and bf16.
pub fn activate(f: Activation, xs: &Tensor) -> Result<Tensor> {
    static PLANS: PlanCache<ActivationDesc> = PlanCache::new();
    let op = f.name();
    let call = Call::new(op, ("xs", xs))?;
    let x = call.row_major(("xs", xs))?;
    let plan = call.plan(&PLANS, &ActivationDesc { activation: f, dtype: x.dtype, len: xs.elem_count() })?;
    let y = call.run([Some(&x)], [Some(Spec::like(&x))], |stream, [x], [y]| {
        Ok(plan.launch(stream, ActivationArgs { x, y: present(y) })?)
    })?;
    let len = xs.elem_count();
    record(op, &[("xs", xs)], only(y), move |_, dy| {
        static PLANS: PlanCache<ActivationBackwardDesc> = PlanCache::new();
        let call = Call::new(op, ("dy", dy))?;
        let dy = call.row_major(("dy", dy))?;
        let plan = call.plan(&PLANS, &ActivationBackwardDesc { activation: f, dtype: x.dtype, len })?;
        let dx = call.run([Some(&x), Some(&dy)], [Some(Spec::like(&x))], |stream, [x, dy], [dx]| {
            Ok(plan.launch(stream, ActivationBackwardArgs { x: present(x), dy, dx: present(dx) })?)
        })?;
        Ok(vec![Some(only(dx).into_tensor()?)])
    })
}

macro_rules! functions {
    ($($name:ident => $f:ident, $said:literal;)*) => {$(
        #[doc = $said]
        ///
        /// # Errors
        /// As [`activate`].
        pub fn $name(xs: &Tensor) -> Result<Tensor> {
            activate(Activation::$f, xs)
        }
    )*};
}

functions! {
    gelu => GeluTanh, "The tanh approximation of GELU, as [`Tensor::gelu`].";
    gelu_erf => GeluErf, "`x P(X <= x)` of a standard normal `X`, as [`Tensor::gelu_erf`].";
    relu => Relu, "`max(x, 0)`, as [`Tensor::relu`].";
    sigmoid => Sigmoid, "`1 / (1 + exp(-x))`, as [`candle_nn::ops::sigmoid`].";
    silu => Silu, "`x sigmoid(x)`, as [`candle_nn::ops::silu`].";
    tanh => Tanh, "The hyperbolic tangent, as [`Tensor::tanh`].";
}

/// `x` where it is positive and `negative_slope x` elsewhere, as [`candle_nn::ops::leaky_relu`].
///
/// # Errors
/// As [`activate`].
pub fn leaky_relu(xs: &Tensor, negative_slope: f64) -> Result<Tensor> {
    activate(Activation::LeakyRelu { negative_slope: Real::new(negative_slope) }, xs)
}

/// `log(1 + exp(beta x)) / beta`; `beta` is not 0.
///
/// # Errors
/// As [`activate`].
pub fn softplus(xs: &Tensor, beta: f64) -> Result<Tensor> {
    activate(Activation::Softplus { beta: Real::new(beta) }, xs)
}

/// `f(gate) up` elementwise, of two tensors of one shape.
///
/// # Errors
/// If shapes, element types or devices differ, or the element type is none of f32, f64, f16 and bf16.
pub fn gate(f: GatedActivation, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    let (op, detached) = (f.name(), [gate.detach(), up.detach()]);
    let y = gated(f, [("gate", gate), ("up", up)])?;
    record(op, &[("gate", gate), ("up", up)], y, move |_, dy| {
        let [gate, up] = &detached;
        Ok(gated_gradients(f, [gate, up], dy)?.map(Some).into())
    })
}

fn gated(f: GatedActivation, [gate, up]: [(&'static str, &Tensor); 2]) -> Result<Made> {
    static PLANS: PlanCache<GatedDesc> = PlanCache::new();
    let call = Call::new(f.name(), gate)?;
    let len = gate.1.elem_count();
    let gate = call.row_major(gate)?;
    let up = call.expect(up, gate.dtype, &gate.shape)?;
    let plan = call.plan(&PLANS, &GatedDesc { activation: f, dtype: gate.dtype, len })?;
    let y = call.run([Some(&gate), Some(&up)], [Some(Spec::like(&gate))], |stream, [gate, up], [y]| {
        Ok(plan.launch(stream, GatedArgs { gate: present(gate), up: present(up), y: present(y) })?)
    })?;
    Ok(only(y))
}

fn gated_gradients(f: GatedActivation, [gate, up]: [&Tensor; 2], dy: &Tensor) -> Result<[Tensor; 2]> {
    static PLANS: PlanCache<GatedBackwardDesc> = PlanCache::new();
    let call = Call::new(f.name(), ("dy", dy))?;
    let len = gate.elem_count();
    let (gate, up, dy) =
        (call.row_major(("gate", gate))?, call.row_major(("up", up))?, call.row_major(("dy", dy))?);
    let plan = call.plan(&PLANS, &GatedBackwardDesc { activation: f, dtype: gate.dtype, len })?;
    let like = Some(Spec::like(&gate));
    let inputs = [Some(&gate), Some(&up), Some(&dy)];
    let [dgate, dup] = call.run(inputs, [like.clone(), like], |stream, [gate, up, dy], [dgate, dup]| {
        let args = GatedBackwardArgs {
            gate: present(gate),
            up: present(up),
            dy: present(dy),
            dgate: present(dgate),
            dup: present(dup),
        };
        Ok(plan.launch(stream, args)?)
    })?;
    Ok([present(dgate).into_tensor()?, present(dup).into_tensor()?])
}

/// `f` of the first half of the last dimension, times the second half.
fn halves(f: GatedActivation, xs: &Tensor) -> Result<Tensor> {
    let op = f.name();
    let last = xs.dims().last().copied().unwrap_or(1);
    if !last.is_multiple_of(2) {
        return Err(Call::new(op, ("xs", xs))?.refuse_shape(("xs", xs), "[.., 2 n]"));
    }
    let of = xs.detach();
    let half = |second: usize| of.narrow(D::Minus1, second * (last / 2), last / 2);
    let [gate, up] = [half(0)?, half(1)?];
    let y = gated(f, [("xs", &gate), ("xs", &up)])?;
    record(op, &[("xs", xs)], y, move |_, dy| {
        let halves = gated_gradients(f, [&gate, &up], dy)?;
        Ok(vec![Some(Tensor::cat(&halves, D::Minus1)?)])
    })
}

/// `silu` of the first half of the last dimension, times the second half, as [`candle_nn::ops::swiglu`]. [`gate()`] takes the halves
/// as tensors of their own, which need no copies.
///
/// # Errors
/// As [`activate`], and if the last dimension is odd.
pub fn swiglu(xs: &Tensor) -> Result<Tensor> {
    halves(GatedActivation::Swiglu, xs)
}

/// `gelu_erf` of the first half of the last dimension, times the second half.
///
/// # Errors
/// As [`swiglu`].
pub fn geglu(xs: &Tensor) -> Result<Tensor> {
    halves(GatedActivation::Geglu, xs)
}

/// The tanh approximation of `gelu` of the first half of the last dimension, times the second half.
///
/// # Errors
/// As [`swiglu`].
pub fn geglu_tanh(xs: &Tensor) -> Result<Tensor> {
    halves(GatedActivation::GegluTanh, xs)
}
