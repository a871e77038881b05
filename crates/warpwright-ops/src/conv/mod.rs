//! Convolutions over one, two or three spatial dimensions, as `torch.nn.functional.conv1d`, `conv2d` and `conv3d` define them (without
//! reflection of the kernel), and their gradients.
//!
//! `x` is `[batch, channels, ..spatial]` and `y` `[batch, filters, ..outputs]`, channels first or last in memory. The weight is `[filters,
//! channels / groups, ..kernel]`, in memory as that or with the channels of a filter innermost (PyTorch's `channels_last`). With
//! `groups`, filters and channels are cut into as many, and a filter sees the channels of its group alone.
//!
//! `y[n, f, o] = activation(scale[f] * sum over c and taps t of x[n, c, stride o + dilation t - padding] weight[f, c, t] + bias[f] + residual[n,
//! f, o])`, where `x` is 0 outside of the image, and scale, bias and residual are there if they are asked for; each dimension has a stride, dilation and padding of its own, the padding before and behind it, and
//! `(input + padding - dilation (kernel - 1) - 1) / stride + 1` outputs.
//!
//! Backward, `dx[n, c, i]` is the sum of `dy[n, f, o] weight[f, c, t]` over what `x[n, c, i]` was multiplied for, `dweight[f, c, t]` that of
//! `dy[n, f, o] x[n, c, i]`, and `dbias[f]` that of `dy[n, f, o]`. A transposed convolution is a gradient of `x`.
//!
//! Scale and bias are what a normalization with known statistics is after a convolution. With a scale both are of the type of sums.
//!
//! Sums are kept in f32, in f64 for f64, and rounded once. Their order depends on the shapes and the target alone. As in other products that
//! gather images, a weight that is infinite or NaN, or a `dy` for the gradient of the weight, meets the zeros of the padding as it meets numbers.

mod bias;
mod depthwise;
mod exact;
mod functions;
mod gather;
mod grouped;
mod implicit;
mod plans;
pub mod reference;
mod relayout;
pub(crate) mod samples;
mod tiled;
pub mod tuning;
mod weight;

use warpwright_dsl::U32;
use warpwright_ptx::DType;

use crate::PlanError;
use crate::activation::Activation;
pub use crate::batch_norm::Layout;
use crate::gemm::{MAX_SIDE, Precision, epilogue};
use crate::tensors::tensors;

pub use functions::*;

/// The name in the catalogue.
const OP: &str = "conv";

/// A spatial dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    /// Pixels of `x`.
    pub input: usize,
    /// Taps of the kernel, at least 1.
    pub kernel: usize,
    /// Pixels of `x` from one output to the next, at least 1.
    pub stride: usize,
    /// Zeros before the first pixel and behind the last.
    pub padding: [usize; 2],
    /// Pixels of `x` from one tap to the next, at least 1.
    pub dilation: usize,
}

impl Axis {
    /// The dimension that a convolution does not have.
    pub const ONE: Self = Self::new(1, 1);

    /// A dimension of `input` pixels without padding, of which each output takes the `kernel` pixels that follow it.
    pub const fn new(input: usize, kernel: usize) -> Self {
        Self { input, kernel, stride: 1, padding: [0; 2], dilation: 1 }
    }

    /// The same with padding, stride and dilation.
    pub const fn with(self, stride: usize, padding: usize, dilation: usize) -> Self {
        Self { stride, padding: [padding; 2], dilation, ..self }
    }

    /// Pixels from the first tap to the last, if they can be counted.
    fn span(&self) -> Option<usize> {
        self.dilation.checked_mul(self.kernel.checked_sub(1)?)?.checked_add(1)
    }

    /// Pixels with the padding, if they can be counted.
    fn padded(&self) -> Option<usize> {
        self.input.checked_add(self.padding[0])?.checked_add(self.padding[1])
    }

    /// Outputs; `None` if the kernel is larger than the padded input, or a number is out of range.
    pub fn outputs(&self) -> Option<usize> {
        let room = self.padded()?.checked_sub(self.span()?)?;
        room.checked_div(self.stride)?.checked_add(1)
    }
}

/// The shapes of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv {
    /// Element type of all tensors.
    pub dtype: DType,
    /// How `x` and `y` lie in memory.
    pub layout: Layout,
    /// How the weight does.
    pub weight_layout: Layout,
    /// Images.
    pub batch: usize,
    /// Channels of `x`.
    pub channels: usize,
    /// Channels of `y`.
    pub filters: usize,
    /// Groups of both.
    pub groups: usize,
    /// Depth, height and width; [`Axis::ONE`] for those that there are not.
    pub axes: [Axis; 3],
    /// How exact products are; [`Precision::Tf32`] is for `f32`.
    pub precision: Precision,
}

/// A pass through a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Pass {
    Forward,
    /// The gradient of `x`.
    BackwardX,
    /// The gradient of the weight.
    BackwardWeight,
}

impl Pass {
    const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::BackwardX => "dx",
            Self::BackwardWeight => "dweight",
        }
    }
}

/// `index` by digits, the innermost first, each of which `divide` splits off by an extent: the last is what is left.
fn digits<'k, E>(
    index: U32<'k>,
    extents: impl IntoIterator<Item = E>,
    divide: impl Fn(U32<'k>, E) -> (U32<'k>, U32<'k>),
) -> Vec<U32<'k>> {
    let mut left = index;
    let mut digits = Vec::new();
    for extent in extents {
        let (next, digit) = divide(left, extent);
        digits.push(digit);
        left = next;
    }
    digits.push(left);
    digits
}

/// The part of a kernel's name that says how a weight lies in memory: its dimensions from the outermost on.
const fn weight_name(layout: Layout) -> &'static str {
    match layout {
        Layout::ChannelsFirst => "kcrs",
        Layout::ChannelsLast => "krsc",
    }
}

/// Sizes that follow from a [`Conv`].
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// Outputs along each dimension.
    outputs: [usize; 3],
    /// Pixels of an image of `x` and of `y`.
    pixels_in: usize,
    pixels_out: usize,
    /// Taps of a kernel.
    taps: usize,
    /// Elements.
    x: usize,
    weight: usize,
    y: usize,
}

impl Conv {
    /// A convolution of two-dimensional images, channels last in all tensors, without groups.
    pub const fn new(
        dtype: DType,
        [batch, channels, filters]: [usize; 3],
        height: Axis,
        width: Axis,
    ) -> Self {
        let layout = Layout::ChannelsLast;
        let axes = [Axis::ONE, height, width];
        let precision = Precision::Full;
        Self { dtype, layout, weight_layout: layout, batch, channels, filters, groups: 1, axes, precision }
    }

    fn refused(parameter: &'static str, got: impl ToString, expected: &'static str) -> PlanError {
        PlanError::refused(OP, parameter, got, expected)
    }

    fn check(&self) -> Result<Sizes, PlanError> {
        PlanError::check_floats(OP, "x", self.dtype)?;
        self.precision.check(OP, self.dtype)?;
        for (name, side) in [("channels", self.channels), ("filters", self.filters), ("groups", self.groups)]
        {
            if side == 0 || side > MAX_SIDE {
                return Err(Self::refused(name, side, "from 1 to 2^31 - 1"));
            }
        }
        for (name, side) in [("channels", self.channels), ("filters", self.filters)] {
            if !side.is_multiple_of(self.groups) {
                return Err(Self::refused(name, side, "a multiple of the groups"));
            }
        }
        let mut outputs = [0; 3];
        for (axis, outputs) in self.axes.iter().zip(&mut outputs) {
            for (name, number) in
                [("kernel", axis.kernel), ("stride", axis.stride), ("dilation", axis.dilation)]
            {
                if number == 0 || number > MAX_SIDE {
                    return Err(Self::refused(name, number, "from 1 to 2^31 - 1"));
                }
            }
            if axis.padded().is_none_or(|padded| padded > MAX_SIDE) {
                return Err(Self::refused(
                    "padding",
                    format!("{axis:?}"),
                    "such that a padded image is below 2^31",
                ));
            }
            let expected = "at most the input with its padding, dilated";
            *outputs = axis.outputs().ok_or_else(|| Self::refused("kernel", axis.kernel, expected))?;
        }
        let product = |name, factors: [usize; 3], limit: usize| {
            let product = factors.into_iter().try_fold(1usize, usize::checked_mul);
            product.filter(|product| *product <= limit).ok_or_else(|| {
                Self::refused(name, format!("{factors:?}"), "such that products of the sizes are below 2^31")
            })
        };
        let pixels_in = product("input", self.axes.map(|axis| axis.input), MAX_SIDE)?;
        let pixels_out = product("outputs", outputs, MAX_SIDE)?;
        let taps = product("kernel", self.axes.map(|axis| axis.kernel), MAX_SIDE)?;
        product("batch", [self.batch, pixels_in.max(pixels_out), 1], MAX_SIDE)?;
        let (channels, filters) = (self.channels / self.groups, self.filters / self.groups);
        product("channels", [channels.max(filters), taps, 1], MAX_SIDE)?;
        let limit = i64::MAX as usize / self.dtype.bytes();
        Ok(Sizes {
            outputs,
            pixels_in,
            pixels_out,
            taps,
            x: product("channels", [self.batch, pixels_in, self.channels], limit)?,
            weight: product("filters", [self.filters, taps, channels], limit)?,
            y: product("filters", [self.batch, pixels_out, self.filters], limit)?,
        })
    }
}

/// `y = activation(scale conv(x, weight) + bias + residual)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConvDesc {
    /// Shapes.
    pub conv: Conv,
    /// Whether there is a factor of each filter: it and the bias are of the type of sums, f32 or f64 for f64.
    pub scale: bool,
    /// Whether there is a bias.
    pub bias: bool,
    /// Whether a tensor like `y` is added before the activation.
    pub residual: bool,
    /// A function of the sums; any but the leaky ReLU.
    pub activation: Option<Activation>,
}

impl ConvDesc {
    /// The convolution alone.
    pub const fn new(conv: Conv) -> Self {
        Self { conv, scale: false, bias: false, residual: false, activation: None }
    }

    fn check(&self) -> Result<Sizes, PlanError> {
        if epilogue::code(self.activation).is_none() {
            let got = self.activation.map_or("none", Activation::name);
            let expected = "relu, gelu_erf, gelu_tanh, silu, sigmoid or tanh";
            return Err(Conv::refused("activation", got, expected));
        }
        self.conv.check()
    }
}

tensors! {
    /// Tensors of [`ConvDesc`], contiguous in the layouts that it names.
    pub struct ConvArgs<'a> {
        /// `[batch, channels, ..]`.
        x: In,
        /// `[filters, channels / groups, ..]`.
        weight: In,
        /// `[filters]`.
        scale: Option<In>,
        /// `[filters]`.
        bias: Option<In>,
        /// As `y`.
        residual: Option<In>,
        /// `[batch, filters, ..]`.
        y: Out,
        /// Scratch memory, if the plan needs some.
        workspace: Option<Out>,
    }
}

/// Gradients of a convolution without its activation: those that are asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConvBackwardDesc {
    /// Shapes.
    pub conv: Conv,
    /// Whether the gradient of `x` is wanted.
    pub dx: bool,
    /// Whether the gradient of the weight is.
    pub dweight: bool,
    /// Whether the gradient of the bias is.
    pub dbias: bool,
}

tensors! {
    /// Tensors of [`ConvBackwardDesc`], contiguous in the layouts that it names.
    pub struct ConvBackwardArgs<'a> {
        /// Forward's, for the gradient of the weight.
        x: Option<In>,
        /// Forward's, for the gradient of `x`.
        weight: Option<In>,
        /// Gradient of `y`, of its shape.
        dy: In,
        /// Gradient of `x`, of its shape.
        dx: Option<Out>,
        /// Gradient of the weight, of its shape.
        dweight: Option<Out>,
        /// Gradient of the bias, `[filters]`.
        dbias: Option<Out>,
        /// Scratch memory, if the plan needs some.
        workspace: Option<Out>,
    }
}
