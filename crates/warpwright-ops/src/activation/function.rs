//! The functions by name.

/// A number in a descriptor: compared and hashed by its bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slope(u64);

impl Slope {
    /// The slope `value`.
    pub const fn new(value: f64) -> Self {
        Self(value.to_bits())
    }

    /// Its value.
    pub const fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl std::fmt::Debug for Slope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}

/// An elementwise function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// `max(x, 0)`
    Relu,
    /// `x` if positive, else `negative_slope * x`
    LeakyRelu {
        /// The slope of the negative side.
        negative_slope: Slope,
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
}

impl Activation {
    /// Every function; the leaky one with its customary slope.
    pub const ALL: [Self; 7] = [
        Self::Relu,
        Self::LeakyRelu { negative_slope: Slope::new(0.01) },
        Self::GeluTanh,
        Self::GeluErf,
        Self::Silu,
        Self::Sigmoid,
        Self::Tanh,
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
        }
    }

    /// The slope of the leaky function; 0 for the others.
    pub(super) const fn negative_slope(self) -> f64 {
        match self {
            Self::LeakyRelu { negative_slope } => negative_slope.get(),
            _ => 0.0,
        }
    }

    /// The function called `name`, the leaky one with its customary slope.
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
