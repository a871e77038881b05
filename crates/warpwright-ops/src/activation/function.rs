//! The functions by name.

use crate::plan::Real;

/// An elementwise function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// `max(x, 0)`
    Relu,
    /// `x` if positive, else `negative_slope * x`
    LeakyRelu {
        /// The slope of the negative side.
        negative_slope: Real,
    },
    /// GELU by its tanh approximation.
    GeluTanh,
    /// GELU by the error function.
    GeluErf,
    /// `x * sigmoid(x)`
    Silu,
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// `log(1 + exp(beta * x)) / beta`
    Softplus {
        /// How sharply it bends at 0; not 0.
        beta: Real,
    },
}

impl Activation {
    /// Every function, those with a parameter with PyTorch's default for it.
    pub const ALL: [Self; 8] = [
        Self::Relu,
        Self::LeakyRelu { negative_slope: Real::new(0.01) },
        Self::GeluTanh,
        Self::GeluErf,
        Self::Silu,
        Self::Sigmoid,
        Self::Tanh,
        Self::Softplus { beta: Real::new(1.0) },
    ];

    /// Its name in the catalogue.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Relu => "relu",
            Self::LeakyRelu { .. } => "leaky_relu",
            Self::GeluTanh => "gelu_tanh",
            Self::GeluErf => "gelu_erf",
            Self::Silu => "silu",
            Self::Sigmoid => "sigmoid",
            Self::Tanh => "tanh",
            Self::Softplus { .. } => "softplus",
        }
    }

    /// The parameter of a function that has one, with its name.
    pub const fn parameter(self) -> Option<(&'static str, f64)> {
        match self {
            Self::LeakyRelu { negative_slope } => Some(("negative_slope", negative_slope.get())),
            Self::Softplus { beta } => Some(("beta", beta.get())),
            _ => None,
        }
    }

    /// The function called `name`, with the default of its parameter.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.name() == name)
    }
}

/// A gated unit: `activation(gate) * up`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GatedActivation {
    /// `silu(gate) * up`
    Swiglu,
    /// `gelu_erf(gate) * up`
    Geglu,
    /// `gelu_tanh(gate) * up`
    GegluTanh,
}

impl GatedActivation {
    /// Every unit.
    pub const ALL: [Self; 3] = [Self::Swiglu, Self::Geglu, Self::GegluTanh];

    /// Its name in the catalogue.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Swiglu => "swiglu",
            Self::Geglu => "geglu",
            Self::GegluTanh => "geglu_tanh",
        }
    }

    /// The unit called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.name() == name)
    }

    /// The function of the gate.
    pub const fn activation(self) -> Activation {
        match self {
            Self::Swiglu => Activation::Silu,
            Self::Geglu => Activation::GeluErf,
            Self::GegluTanh => Activation::GeluTanh,
        }
    }
}
