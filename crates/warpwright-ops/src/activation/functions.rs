//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::{
    Activation, ActivationArgs, ActivationBackwardArgs, ActivationBackwardDesc, ActivationDesc,
    GatedActivation, GatedArgs, GatedBackwardArgs, GatedBackwardDesc, GatedDesc,
};
use crate::Error;
use crate::plan::{PlanCache, Real};

fn empty_like(stream: &Stream, x: &Tensor) -> Result<Tensor, Error> {
    Ok(Tensor::empty_on(stream, x.dtype(), x.shape())?)
}

static PLANS: PlanCache<ActivationDesc> = PlanCache::new();

/// `y = f(x)`, elementwise, for the `f` that is named at run time.
///
/// `x` has any shape, of f32, f64, f16 or bf16; `y` is like `x`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::activation::{Activation, activate};
/// use warpwright::{Device, Tensor};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[-1.0f32, 2.0], &[2])?;
/// let y = activate(&stream, Activation::Relu, &x)?;
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [0.0, 2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the element type is none of those or a slope is not finite; [`Error::Runtime`] if memory runs out.
pub fn activate(stream: &Stream, f: Activation, x: &Tensor) -> Result<Tensor, Error> {
    let desc = ActivationDesc { activation: f, dtype: x.dtype(), len: x.len() };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut y = empty_like(stream, x)?;
    plan.launch(stream, ActivationArgs { x: Some(x.as_ref()), y: y.as_mut() })?;
    Ok(y)
}

/// Replaces every element of `x` by `f` of it; `x` as for [`activate`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::activation::{Activation, activate_in_place};
/// use warpwright::{Device, Tensor};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let mut x = Tensor::from_slice(&device, &[-1.0f32, 2.0], &[2])?;
/// activate_in_place(&stream, Activation::Relu, &mut x)?;
/// assert_eq!(x.to_vec_on::<f32>(&stream)?, [0.0, 2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] as [`activate`]; [`Error::Runtime`] if the launch fails.
pub fn activate_in_place(stream: &Stream, f: Activation, x: &mut Tensor) -> Result<(), Error> {
    let desc = ActivationDesc { activation: f, dtype: x.dtype(), len: x.len() };
    let plan = PLANS.get(&desc, stream.device().target())?;
    Ok(plan.launch(stream, ActivationArgs { x: None, y: x.as_mut() })?)
}

/// `dx = dy f'(x)`, elementwise, for the argument `x` of [`activate`].
///
/// `x` and `dy` have one shape and type, f32, f64, f16 or bf16; `dx` is like them.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::activation::{Activation, activate_backward};
/// use warpwright::{Device, Tensor};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[-1.0f32, 2.0], &[2])?;
/// let dy = Tensor::from_slice(&device, &[3.0f32, 3.0], &[2])?;
/// let dx = activate_backward(&stream, Activation::Relu, &x, &dy)?;
/// assert_eq!(dx.to_vec_on::<f32>(&stream)?, [0.0, 3.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] as [`activate`]; [`Error::Runtime`] if `dy` is not like `x`, or memory runs out.
pub fn activate_backward(stream: &Stream, f: Activation, x: &Tensor, dy: &Tensor) -> Result<Tensor, Error> {
    static PLANS: PlanCache<ActivationBackwardDesc> = PlanCache::new();
    let desc = ActivationBackwardDesc { activation: f, dtype: x.dtype(), len: x.len() };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut dx = empty_like(stream, x)?;
    let args = ActivationBackwardArgs { x: x.as_ref(), dy: Some(dy.as_ref()), dx: dx.as_mut() };
    plan.launch(stream, args)?;
    Ok(dx)
}

/// `y = f(gate) up`, elementwise, for the `f` that is named at run time.
///
/// `gate` and `up` have one shape and type, f32, f64, f16 or bf16; `y` is like them.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::activation::{GatedActivation, gate};
/// use warpwright::{Device, Tensor};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[0.0f32, 1.0], &[2])?;
/// let up = Tensor::from_slice(&device, &[5.0f32, 2.0], &[2])?;
/// let y = gate(&stream, GatedActivation::Swiglu, &x, &up)?.to_vec_on::<f32>(&stream)?;
/// assert!(y[0] == 0.0 && (y[1] - 2.0 / (1.0 + (-1.0f32).exp())).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the element type is none of those; [`Error::Runtime`] if `up` is not like `gate`, or memory runs out.
pub fn gate(stream: &Stream, f: GatedActivation, gate: &Tensor, up: &Tensor) -> Result<Tensor, Error> {
    static PLANS: PlanCache<GatedDesc> = PlanCache::new();
    let desc = GatedDesc { activation: f, dtype: gate.dtype(), len: gate.len() };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut y = empty_like(stream, gate)?;
    plan.launch(stream, GatedArgs { gate: gate.as_ref(), up: up.as_ref(), y: y.as_mut() })?;
    Ok(y)
}

/// The gradients of [`gate()`].
#[derive(Debug)]
pub struct GatedGradients {
    /// Of the gate, like it.
    pub dgate: Tensor,
    /// Of what the gate multiplies, like it.
    pub dup: Tensor,
}

/// The gradients `dgate = dy up f'(gate)` and `dup = dy f(gate)` of [`gate()`], elementwise.
///
/// `gate`, `up` and `dy` have one shape and type, f32, f64, f16 or bf16; the gradients are like them.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::activation::{GatedActivation, gate_backward};
/// use warpwright::{Device, Tensor};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let [x, up, dy] = [0.0f32, 6.0, 1.0].map(|x| Tensor::from_slice(&device, &[x], &[1]));
/// let gradients = gate_backward(&stream, GatedActivation::Swiglu, &x?, &up?, &dy?)?;
/// // silu'(0) = 1/2.
/// assert_eq!(gradients.dgate.to_vec_on::<f32>(&stream)?, [3.0]);
/// assert_eq!(gradients.dup.to_vec_on::<f32>(&stream)?, [0.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] and [`Error::Runtime`] as [`gate()`].
pub fn gate_backward(
    stream: &Stream,
    f: GatedActivation,
    gate: &Tensor,
    up: &Tensor,
    dy: &Tensor,
) -> Result<GatedGradients, Error> {
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
    Ok(GatedGradients { dgate, dup })
}

macro_rules! named {
    ($($name:ident, $backward:ident => $f:ident, $at_one:literal, $slope_at_one:literal;)*) => {$(
        #[doc = concat!("[`activate`] with [`Activation::", stringify!($f), "`]: `y` like `x`, of any shape, f32, f64, f16 or bf16.")]
        ///
        /// ```
        /// # fn main() -> Result<(), warpwright::Error> {
        #[doc = concat!("use warpwright::{Device, Tensor, ", stringify!($name), "};")]
        ///
        /// let device = Device::best();
        /// let stream = device.stream()?;
        /// let x = Tensor::from_slice(&device, &[1.0f32], &[1])?;
        #[doc = concat!("let y = ", stringify!($name), "(&stream, &x)?.to_vec_on::<f32>(&stream)?;")]
        #[doc = concat!("assert!((y[0] - ", stringify!($at_one), ").abs() < 1e-6);")]
        /// # Ok(())
        /// # }
        /// ```
        ///
        /// # Errors
        /// As [`activate`].
        pub fn $name(stream: &Stream, x: &Tensor) -> Result<Tensor, Error> {
            activate(stream, Activation::$f, x)
        }

        #[doc = concat!("[`activate_backward`] with [`Activation::", stringify!($f), "`]: `dx` like `x` and `dy`, of any shape, f32, f64, f16 or bf16.")]
        ///
        /// ```
        /// # fn main() -> Result<(), warpwright::Error> {
        #[doc = concat!("use warpwright::{Device, Tensor, ", stringify!($backward), "};")]
        ///
        /// let device = Device::best();
        /// let stream = device.stream()?;
        /// let x = Tensor::from_slice(&device, &[1.0f32], &[1])?;
        /// let dy = Tensor::from_slice(&device, &[1.0f32], &[1])?;
        #[doc = concat!("let dx = ", stringify!($backward), "(&stream, &x, &dy)?.to_vec_on::<f32>(&stream)?;")]
        #[doc = concat!("assert!((dx[0] - ", stringify!($slope_at_one), ").abs() < 1e-6);")]
        /// # Ok(())
        /// # }
        /// ```
        ///
        /// # Errors
        /// As [`activate_backward`].
        pub fn $backward(stream: &Stream, x: &Tensor, dy: &Tensor) -> Result<Tensor, Error> {
            activate_backward(stream, Activation::$f, x, dy)
        }
    )*};
}

named! {
    relu, relu_backward => Relu, 1.0, 1.0;
    gelu_tanh, gelu_tanh_backward => GeluTanh, 0.841_192, 1.082_964;
    gelu_erf, gelu_erf_backward => GeluErf, 0.841_344_7, 1.083_315_5;
    silu, silu_backward => Silu, 0.731_058_6, 0.927_670_5;
    sigmoid, sigmoid_backward => Sigmoid, 0.731_058_6, 0.196_611_9;
    tanh, tanh_backward => Tanh, 0.761_594_2, 0.419_974_3;
}

/// [`activate`] with [`Activation::LeakyRelu`]: `x`, or `negative_slope x` where it is negative; `y` like `x`, of any shape, f32,
/// f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, leaky_relu};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[-4.0f32, 2.0], &[2])?;
/// assert_eq!(leaky_relu(&stream, &x, 0.25)?.to_vec_on::<f32>(&stream)?, [-1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the slope is not finite; as [`activate`].
pub fn leaky_relu(stream: &Stream, x: &Tensor, negative_slope: f64) -> Result<Tensor, Error> {
    activate(stream, Activation::LeakyRelu { negative_slope: Real::new(negative_slope) }, x)
}

/// [`activate_backward`] with [`Activation::LeakyRelu`]: `dx` like `x` and `dy`, of any shape, f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, leaky_relu_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[-4.0f32, 2.0], &[2])?;
/// let dy = Tensor::from_slice(&device, &[4.0f32, 4.0], &[2])?;
/// let dx = leaky_relu_backward(&stream, &x, &dy, 0.25)?;
/// assert_eq!(dx.to_vec_on::<f32>(&stream)?, [1.0, 4.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the slope is not finite; as [`activate_backward`].
pub fn leaky_relu_backward(
    stream: &Stream,
    x: &Tensor,
    dy: &Tensor,
    negative_slope: f64,
) -> Result<Tensor, Error> {
    activate_backward(stream, Activation::LeakyRelu { negative_slope: Real::new(negative_slope) }, x, dy)
}

/// [`activate`] with [`Activation::Softplus`]: `log(1 + exp(beta x)) / beta`, as `torch.nn.functional.softplus` without its
/// threshold; `y` like `x`, of any shape, f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, softplus};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[0.0f32, 50.0], &[2])?;
/// let y = softplus(&stream, &x, 1.0)?.to_vec_on::<f32>(&stream)?;
/// assert!((y[0] - 2f32.ln()).abs() < 1e-6 && y[1] == 50.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `beta` is 0 or not finite; as [`activate`].
pub fn softplus(stream: &Stream, x: &Tensor, beta: f64) -> Result<Tensor, Error> {
    activate(stream, Activation::Softplus { beta: Real::new(beta) }, x)
}

/// [`activate_backward`] with [`Activation::Softplus`]: `dy / (1 + exp(-beta x))`; `x`, `dy` and the result of one shape, f32,
/// f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, softplus_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[0.0f32, 50.0], &[2])?;
/// let dy = Tensor::from_slice(&device, &[2.0f32, 2.0], &[2])?;
/// assert_eq!(softplus_backward(&stream, &x, &dy, 1.0)?.to_vec_on::<f32>(&stream)?, [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `beta` is 0 or not finite; as [`activate_backward`].
pub fn softplus_backward(stream: &Stream, x: &Tensor, dy: &Tensor, beta: f64) -> Result<Tensor, Error> {
    activate_backward(stream, Activation::Softplus { beta: Real::new(beta) }, x, dy)
}

macro_rules! named_gates {
    ($($name:ident, $backward:ident => $f:ident, $at_one:literal, $slope_at_one:literal;)*) => {$(
        #[doc = concat!("[`gate()`] with [`GatedActivation::", stringify!($f), "`]: `y` like `gate_values` and `up`, of any shape, f32, f64, f16 or bf16.")]
        ///
        /// ```
        /// # fn main() -> Result<(), warpwright::Error> {
        #[doc = concat!("use warpwright::{Device, Tensor, ", stringify!($name), "};")]
        ///
        /// let device = Device::best();
        /// let stream = device.stream()?;
        /// let gate = Tensor::from_slice(&device, &[1.0f32], &[1])?;
        /// let up = Tensor::from_slice(&device, &[2.0f32], &[1])?;
        #[doc = concat!("let y = ", stringify!($name), "(&stream, &gate, &up)?.to_vec_on::<f32>(&stream)?;")]
        #[doc = concat!("assert!((y[0] - 2.0 * ", stringify!($at_one), ").abs() < 1e-5);")]
        /// # Ok(())
        /// # }
        /// ```
        ///
        /// # Errors
        /// As [`gate()`].
        pub fn $name(stream: &Stream, gate_values: &Tensor, up: &Tensor) -> Result<Tensor, Error> {
            gate(stream, GatedActivation::$f, gate_values, up)
        }

        #[doc = concat!("[`gate_backward`] with [`GatedActivation::", stringify!($f), "`]: gradients like `gate_values`, `up` and `dy`, of any shape, f32, f64, f16 or bf16.")]
        ///
        /// ```
        /// # fn main() -> Result<(), warpwright::Error> {
        #[doc = concat!("use warpwright::{Device, Tensor, ", stringify!($backward), "};")]
        ///
        /// let device = Device::best();
        /// let stream = device.stream()?;
        /// let [gate, up, dy] = [1.0f32, 2.0, 1.0].map(|x| Tensor::from_slice(&device, &[x], &[1]));
        #[doc = concat!("let gradients = ", stringify!($backward), "(&stream, &gate?, &up?, &dy?)?;")]
        /// let (dgate, dup) = (gradients.dgate.to_vec::<f32>()?, gradients.dup.to_vec::<f32>()?);
        #[doc = concat!("assert!((dgate[0] - 2.0 * ", stringify!($slope_at_one), ").abs() < 1e-5);")]
        #[doc = concat!("assert!((dup[0] - ", stringify!($at_one), ").abs() < 1e-5);")]
        /// # Ok(())
        /// # }
        /// ```
        ///
        /// # Errors
        /// As [`gate_backward`].
        pub fn $backward(
            stream: &Stream,
            gate_values: &Tensor,
            up: &Tensor,
            dy: &Tensor,
        ) -> Result<GatedGradients, Error> {
            gate_backward(stream, GatedActivation::$f, gate_values, up, dy)
        }
    )*};
}

named_gates! {
    swiglu, swiglu_backward => Swiglu, 0.731_058_6, 0.927_670_5;
    geglu, geglu_backward => Geglu, 0.841_344_7, 1.083_315_5;
    geglu_tanh, geglu_tanh_backward => GegluTanh, 0.841_192, 1.082_964;
}
