//! Elementwise functions, and products with them.

use burn::tensor::Tensor;
use warpwright::activation::{
    Activation, GatedActivation, activate as forward, activate_backward, gate as forward_gate, gate_backward,
};
use warpwright::plan::Real;

use crate::call::Call;
use crate::error::Error;
use crate::graph::Written;

/// `f(x)` of every element, for the `f` that is named at run time.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use warpwright_burn::ops::{Activation, activate};
///
/// # fn main() -> Result<(), warpwright_burn::Error> {
/// let x = Tensor::<1>::from_data([-1f32, 2.0], &Device::flex());
/// let y = activate(Activation::Relu, x)?;
/// assert_eq!(y.into_data().as_slice::<f32>().unwrap(), [0.0, 2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If the element type is none of f32, f64, f16 and bf16, or the device is not Flex.
pub fn activate<const D: usize>(f: Activation, x: Tensor<D>) -> Result<Tensor<D>, Error> {
    let op = f.name();
    let mut results = Call::new(op).float("x", x)?.run(move |stream, inputs| {
        let y = forward(stream, f, inputs.of("x"))?;
        Ok(Written::of(op, &[&y])?.with(move |stream, inputs, dy| {
            Ok(vec![("x", activate_backward(stream, f, inputs.of("x"), dy)?)])
        }))
    })?;
    Ok(results.next())
}

macro_rules! functions {
    ($($name:ident => $f:ident, $said:literal;)*) => {$(
        #[doc = $said]
        ///
        /// # Errors
        /// As [`activate`].
        pub fn $name<const D: usize>(x: Tensor<D>) -> Result<Tensor<D>, Error> {
            activate(Activation::$f, x)
        }
    )*};
}

functions! {
    gelu => GeluErf, "`x P(X <= x)` of a standard normal `X`, as [`burn::tensor::activation::gelu`].";
    gelu_approximate => GeluTanh, "The tanh approximation of GELU, as [`burn::tensor::activation::gelu_approximate`].";
    relu => Relu, "`max(x, 0)`, as [`burn::tensor::activation::relu`].";
    sigmoid => Sigmoid, "`1 / (1 + exp(-x))`, as [`burn::tensor::activation::sigmoid`].";
    silu => Silu, "`x sigmoid(x)`, as [`burn::tensor::activation::silu`].";
    tanh => Tanh, "The hyperbolic tangent, as [`burn::tensor::activation::tanh`].";
}

/// `x` where it is positive and `negative_slope x` elsewhere, as [`burn::tensor::activation::leaky_relu`].
///
/// # Errors
/// As [`activate`].
pub fn leaky_relu<const D: usize>(x: Tensor<D>, negative_slope: f64) -> Result<Tensor<D>, Error> {
    activate(Activation::LeakyRelu { negative_slope: Real::new(negative_slope) }, x)
}

/// `log(1 + exp(beta x)) / beta`, as [`burn::tensor::activation::softplus`]; `beta` is not 0.
///
/// # Errors
/// As [`activate`], and if `beta` is 0.
pub fn softplus<const D: usize>(x: Tensor<D>, beta: f64) -> Result<Tensor<D>, Error> {
    activate(Activation::Softplus { beta: Real::new(beta) }, x)
}

/// `f(gate) up` elementwise, of two tensors of one shape.
///
/// # Errors
/// As [`activate`], and if shapes or element types differ.
pub fn gate<const D: usize>(f: GatedActivation, gate: Tensor<D>, up: Tensor<D>) -> Result<Tensor<D>, Error> {
    let op = f.name();
    let mut results = Call::new(op).float("gate", gate)?.float("up", up)?.run(move |stream, inputs| {
        let y = forward_gate(stream, f, inputs.of("gate"), inputs.of("up"))?;
        Ok(Written::of(op, &[&y])?.with(move |stream, inputs, dy| {
            let gradients = gate_backward(stream, f, inputs.of("gate"), inputs.of("up"), dy)?;
            Ok(vec![("gate", gradients.dgate), ("up", gradients.dup)])
        }))
    })?;
    Ok(results.next())
}

/// `silu(gate) up` elementwise.
///
/// # Errors
/// As [`gate()`].
pub fn swiglu<const D: usize>(gate_values: Tensor<D>, up: Tensor<D>) -> Result<Tensor<D>, Error> {
    gate(GatedActivation::Swiglu, gate_values, up)
}
