//! Convolutions as Python functions.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use warpwright::conv::{Axis, Conv, ConvArgs, ConvBackwardArgs, ConvBackwardDesc, ConvDesc, Layout};
use warpwright::matmul::Precision;
use warpwright::plan::PlanCache;

use crate::array::{Array, Site, count};
use crate::call::{Form, places, present};
use crate::error::{self, Class, Problem};
use crate::images::{Images, InMemory, Order, counts, each};
use crate::library::{Library, Maybe, Object};
use crate::matmul::{activation_of, precision_of};

const FORWARD: &str = "conv";
const BACKWARD: &str = "conv_backward";

/// Keywords of both passes.
struct Keywords<'a, 'py> {
    stride: Maybe<'a, 'py>,
    padding: Maybe<'a, 'py>,
    dilation: Maybe<'a, 'py>,
    groups: usize,
    precision: Precision,
    memory: InMemory<'a>,
    stream: Maybe<'a, 'py>,
}

/// A call with what is known of its keywords.
struct Started<'a, 'py> {
    images: Images<'py>,
    keywords: &'a Keywords<'a, 'py>,
}

impl<'a, 'py> Started<'a, 'py> {
    /// A call whose first argument are images that name the place, and the order in memory if nothing else does.
    fn new(
        op: &'static str,
        images: (&'static str, &Object<'py>),
        keywords: &'a Keywords<'a, 'py>,
    ) -> PyResult<(Self, Array<'py>)> {
        let (images, first) = Images::new(op, images, keywords.memory, keywords.stream)?;
        Ok((Self { images, keywords }, first))
    }

    /// A weight as the kernels take it, and how it lies; `turned` if it may lie in the order that is not row-major.
    fn weight(&self, array: Array<'py>, turned: bool) -> PyResult<(Array<'py>, Layout)> {
        let (rank, row_major) = (array.shape.len(), self.images.order.of_row_major());
        let has_other = turned
            && match row_major {
                Layout::ChannelsFirst => array.has_last(1),
                Layout::ChannelsLast => array.has_order([0, rank - 1].into_iter().chain(1..rank - 1)),
            };
        match (array.is_row_major(), has_other) {
            // The same elements in both.
            (true, true) => Ok((array, self.images.order.layout())),
            (false, true) => Ok((array, opposite(row_major))),
            (_, false) => Ok((self.images.call.row_major(array)?, row_major)),
        }
    }

    /// The shapes of the convolution of images and a weight of these shapes.
    fn conv(&self, first: &Array<'py>, x: &[usize], weight: &[usize]) -> PyResult<Conv> {
        let Images { op, order, .. } = self.images;
        let (py, groups) = (first.object.py(), self.keywords.groups);
        let problem = |class, argument, what: String| {
            Problem::new(py, class, format!("{op}: {argument} {what}")).at(op, argument)
        };
        let rank = x.len();
        if weight.len() != rank {
            let what = format!("has {} dimensions, expected {rank}", weight.len());
            return Err(problem(Class::Shape, "weight", what).mismatch(rank, weight.len()).into_err());
        }
        let (batch, channels, image) = (x[0], x[order.channels(rank)], order.spatial(x));
        let (filters, of_group, kernel) = (weight[0], weight[order.channels(rank)], order.spatial(weight));
        if groups == 0 || !channels.is_multiple_of(groups) {
            let (expected, got) = (format!("a divisor of {channels} channels"), groups);
            let what = format!("is {got}, expected {expected}");
            return Err(problem(Class::Parameter, "groups", what).mismatch(expected, got).into_err());
        }
        if of_group != channels / groups {
            let expected = order.shape(filters, channels / groups, kernel);
            return Err(error::shape(py, op, "weight", &expected, weight));
        }
        if !filters.is_multiple_of(groups) {
            let (expected, got) = (format!("a divisor of {filters} filters"), groups);
            let what = format!("is {got}, expected {expected}");
            return Err(problem(Class::Parameter, "groups", what).mismatch(expected, got).into_err());
        }
        for (argument, number, of) in [("x", channels, "channels"), ("weight", filters, "filters")] {
            if number == 0 {
                let what = format!("has no {of}, expected at least 1");
                return Err(problem(Class::Shape, argument, what).mismatch(1, 0).into_err());
            }
        }
        let dims = image.len();
        let number = |argument, object| counts(Site { op, argument }, object, 1, dims);
        let strides = number("stride", self.keywords.stride)?;
        let dilations = number("dilation", self.keywords.dilation)?;
        let side = |item: &Object<'py>| {
            item.extract().map(|padding: usize| [padding; 2]).or_else(|_| item.extract())
        };
        let sides = (" that are not negative, or one for all, or pairs of them", side);
        let paddings = each(Site { op, argument: "padding" }, self.keywords.padding, [0; 2], dims, sides)?;
        let mut axes = [Axis::ONE; 3];
        for (i, axis) in axes.iter_mut().skip(3 - dims).enumerate() {
            let (input, kernel) = (image[i], kernel[i]);
            *axis = Axis { input, kernel, stride: strides[i], padding: paddings[i], dilation: dilations[i] };
            let span = axis.dilation.saturating_mul(kernel.saturating_sub(1)).saturating_add(1);
            let room = input.saturating_add(paddings[i][0]).saturating_add(paddings[i][1]);
            if kernel == 0 || (span > room && axis.dilation > 0) {
                let what = format!(
                    "has a kernel of {kernel} taps over {} pixels in spatial dimension {i}, expected from 1 to {room}, \
                     those of x with its padding",
                    if kernel == 0 { 0 } else { span },
                );
                return Err(problem(Class::Shape, "weight", what).mismatch(room, span).into_err());
            }
        }
        let (layout, weight_layout) = (order.layout(), order.of_row_major());
        let (dtype, precision) = (first.dtype, self.keywords.precision);
        Ok(Conv { dtype, layout, weight_layout, batch, channels, filters, groups, axes, precision })
    }

    /// The shape of the result of a convolution over `dims` dimensions.
    fn outputs(&self, conv: &Conv, dims: usize) -> Vec<usize> {
        let outputs: Vec<usize> =
            // What has none is refused by the plan.
            conv.axes[3 - dims..].iter().map(|axis| axis.outputs().unwrap_or(0)).collect();
        self.images.order.shape(conv.batch, conv.filters, &outputs)
    }
}

const fn opposite(layout: Layout) -> Layout {
    match layout {
        Layout::ChannelsFirst => Layout::ChannelsLast,
        Layout::ChannelsLast => Layout::ChannelsFirst,
    }
}

/// An argument of a backward pass.
enum Given<'py> {
    Array(Array<'py>),
    /// In place of an array that no wanted gradient is computed from.
    Shape(Vec<usize>),
}

impl<'py> Given<'py> {
    /// The shape of an argument that is one; `needed` for a gradient, it must be an array.
    fn shape_of(
        argument: &'static str,
        object: &Object<'py>,
        (needed, of): (bool, &str),
    ) -> PyResult<Option<Self>> {
        if !object.is_instance_of::<PyTuple>() && !object.is_instance_of::<PyList>() {
            return Ok(None);
        }
        let refused = |class, got: String, expected: String| -> PyErr {
            let message = format!("{BACKWARD}: {argument} is {got}, expected {expected}");
            let problem = Problem::new(object.py(), class, message).at(BACKWARD, argument);
            problem.mismatch(expected, got).into_err()
        };
        let Ok(shape) = object.extract() else {
            let got = object.repr().map_or_else(|_| "something else".to_owned(), |text| text.to_string());
            return Err(refused(Class::Shape, got, "an array or a shape".to_owned()));
        };
        if needed {
            let expected = format!("an array for the gradient of {of}");
            return Err(refused(Class::Argument, "a shape".to_owned(), expected));
        }
        Ok(Some(Self::Shape(shape)))
    }

    fn shape(&self) -> &[usize] {
        match self {
            Self::Array(array) => &array.shape,
            Self::Shape(shape) => shape,
        }
    }

    fn array(self) -> Option<Array<'py>> {
        match self {
            Self::Array(array) => Some(array),
            Self::Shape(_) => None,
        }
    }
}

/// The gradients that are wanted of `x`, the weight and the bias.
fn gradients<'py>(
    keywords: &Keywords<'_, 'py>,
    [x, weight, dy]: [&Object<'py>; 3],
    wanted: [bool; 3],
    out: Maybe<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    static PLANS: PlanCache<ConvBackwardDesc> = PlanCache::new();
    let [of_x, of_weight, of_bias] = wanted;
    let x_shape = Given::shape_of("x", x, (of_weight, "weight"))?;
    let weight_shape = Given::shape_of("weight", weight, (of_x, "x"))?;
    // What names the order: x where there is one.
    let (started, x, dy) = match x_shape {
        Some(shape) => {
            let (started, dy) = Started::new(BACKWARD, ("dy", dy), keywords)?;
            (started, shape, dy)
        }
        None => {
            let (started, x) = Started::new(BACKWARD, ("x", x), keywords)?;
            let dy = started.images.call.read(("dy", dy))?;
            (started, Given::Array(x), dy)
        }
    };
    let call = &started.images.call;
    let first = if let Given::Array(x) = &x { x } else { &dy };
    let (dtype, rank) = (first.dtype, first.shape.len());
    let weight = match weight_shape {
        Some(shape) => shape,
        None => Given::Array(call.read(("weight", weight))?),
    };
    if let Given::Array(weight) = &weight {
        weight.expect_dtype(dtype)?;
    }
    if x.shape().len() != rank {
        let got = x.shape().len();
        let message = format!("{BACKWARD}: x has {got} dimensions, expected {rank}");
        return Err(Problem::new(dy.object.py(), Class::Shape, message)
            .at(BACKWARD, "x")
            .mismatch(rank, got)
            .into_err());
    }
    let mut conv = started.conv(first, x.shape(), weight.shape())?;
    // No result has an order that its library does not make.
    let makes_both = dy.library == Library::Torch && started.images.order != Order::Last && rank > 3;
    let (x_shape, weight_shape) = (x.shape().to_vec(), weight.shape().to_vec());
    let weight = weight.array().map(|weight| started.weight(weight, makes_both || !of_weight)).transpose()?;
    let mut form = Form::RowMajor(dtype, &weight_shape);
    if let Some((weight, layout)) = &weight {
        conv.weight_layout = *layout;
        if makes_both && !weight.is_row_major() {
            form = Form::ChannelsLast(dtype, &weight_shape);
        }
    }
    let desc = ConvBackwardDesc { conv, dx: of_x, dweight: of_weight, dbias: of_bias };
    let plan = call.plan(&PLANS, &desc)?;
    dy.expect_dtype(dtype)?;
    dy.expect_shape(&started.outputs(&conv, rank - 2))?;
    let dy = started.images.taken(dy)?;
    let x = x.array().filter(|_| of_weight).map(|x| started.images.taken(x)).transpose()?;
    let weight = weight.map(|(weight, _)| weight).filter(|_| of_x);
    let filters = [conv.filters];
    let out = places(BACKWARD, out, wanted)?;
    let [dx, dweight, dbias] = out.each_ref().map(Option::as_ref);
    let outputs = [
        call.optional_output(of_x, ("out", dx), &dy, started.images.form(dtype, &x_shape))?,
        call.optional_output(of_weight, ("out", dweight), &dy, form)?,
        call.optional_output(of_bias, ("out", dbias), &dy, Form::RowMajor(dtype, &filters))?,
        call.workspace(&plan, &dy)?,
    ];
    let inputs = [x.as_ref(), weight.as_ref(), Some(&dy)];
    let [dx, dweight, dbias, _] = call.run_some(inputs, outputs, move |stream, inputs, outputs| {
        let ([x, weight, dy], [dx, dweight, dbias, workspace]) = (inputs, outputs);
        let args = ConvBackwardArgs { x, weight, dy: present(dy), dx, dweight, dbias, workspace };
        Ok(plan.launch(stream, args)?)
    })?;
    PyTuple::new(dy.object.py(), [dx, dweight, dbias])
}

/// `activation(scale conv(x, weight) + bias + residual)` over one, two or three dimensions.
///
/// x: float32, float64, float16 or bfloat16, [N, C, ...], or [N, ..., C] with channels_last; weight: [filters, C / groups, ...], or
/// [filters, ..., C / groups] with it, of its dtype; bias: [filters] of it, or None. scale: [filters], a factor of each; with it scale and bias
/// are float32, float64 for float64. residual: as the result, added before the activation. stride, dilation: a number, or one for each dimension;
/// padding: the same, or pairs of zeros before and behind. activation: "relu", "gelu_erf", "gelu_tanh", "silu", "sigmoid" or "tanh".
/// Sums are kept in float32, in float64 for float64, and rounded once. precision: "full", or "tf32", for float32 from sm_80 on: factors
/// may be rounded to 11 bits. The weight is read as it is with its channels first or last in memory.
/// memory_format: "contiguous_format" or "channels_last", of x and the result, for tensors of PyTorch [N, C, ...]; by default what x has.
/// The result is [N, filters, ...], or [N, ..., filters] with channels_last.
#[pyfunction]
#[pyo3(
    signature = (x, weight, bias=None, *, stride=None, padding=None, dilation=None, groups=1, scale=None, residual=None, activation=None, precision="full", channels_last=false, memory_format=None, out=None, stream=None),
    text_signature = "(x, weight, bias=None, *, stride=1, padding=0, dilation=1, groups=1, scale=None, residual=None, activation=None, precision='full', channels_last=False, memory_format=None, out=None, stream=None)"
)]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn conv<'py>(
    x: &Object<'py>,
    weight: &Object<'py>,
    bias: Maybe<'_, 'py>,
    stride: Maybe<'_, 'py>,
    padding: Maybe<'_, 'py>,
    dilation: Maybe<'_, 'py>,
    #[pyo3(from_py_with = count)] groups: usize,
    scale: Maybe<'_, 'py>,
    residual: Maybe<'_, 'py>,
    activation: Option<&str>,
    precision: &str,
    channels_last: bool,
    memory_format: Option<&str>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<ConvDesc> = PlanCache::new();
    let activation = activation_of(x.py(), FORWARD, activation)?;
    let precision = precision_of(x.py(), FORWARD, precision)?;
    let memory = InMemory { channels_last, memory_format };
    let keywords = Keywords { stride, padding, dilation, groups, precision, memory, stream };
    let (started, x) = Started::new(FORWARD, ("x", x), &keywords)?;
    let call = &started.images.call;
    let weight = call.read(("weight", weight))?;
    weight.expect_dtype(x.dtype)?;
    let conv = started.conv(&x, &x.shape, &weight.shape)?;
    let (weight, weight_layout) = started.weight(weight, true)?;
    let factors = if scale.is_some() { x.dtype.accumulator() } else { x.dtype };
    let scale = call.optional(("scale", scale), factors, &[conv.filters])?;
    let bias = call.optional(("bias", bias), factors, &[conv.filters])?;
    let conv = Conv { weight_layout, ..conv };
    let (with_scale, with_bias, with_residual) = (scale.is_some(), bias.is_some(), residual.is_some());
    let desc = ConvDesc { conv, scale: with_scale, bias: with_bias, residual: with_residual, activation };
    let plan = call.plan(&PLANS, &desc)?;
    let shape = started.outputs(&conv, x.shape.len() - 2);
    let residual = match residual {
        Some(residual) => {
            let residual = call.read(("residual", residual))?;
            residual.expect_dtype(x.dtype)?;
            residual.expect_shape(&shape)?;
            Some(started.images.taken(residual)?)
        }
        None => None,
    };
    let x = started.images.taken(x)?;
    let y = call.output(("out", out), &x, started.images.form(x.dtype, &shape))?;
    let inputs = [Some(&x), Some(&weight), scale.as_ref(), bias.as_ref(), residual.as_ref()];
    let outputs = [Some(y), call.workspace(&plan, &x)?];
    let [y, _] = call.run_some(inputs, outputs, move |stream, inputs, [y, workspace]| {
        let [x, weight, scale, bias, residual] = inputs;
        let (x, weight, y) = (present(x), present(weight), present(y));
        Ok(plan.launch(stream, ConvArgs { x, weight, scale, bias, residual, y, workspace })?)
    })?;
    Ok(present(y))
}

/// The gradients `(dx, dweight, dbias)` of `conv` without an activation, None for those that are not wanted.
///
/// x, weight, stride, padding, dilation, groups, precision, channels_last, memory_format: as in the forward pass; dy: gradient of its result.
/// x_gradient, weight_gradient, bias_gradient: which are wanted. An x or a weight that no wanted gradient is computed from may be given as
/// its shape, a tuple: x is there for the gradient of the weight, the weight for that of x, which is a transposed convolution of dy.
/// dx lies in memory as x, dweight as the weight. `out` holds the results that are wanted.
#[pyfunction]
#[pyo3(
    signature = (x, weight, dy, *, stride=None, padding=None, dilation=None, groups=1, precision="full", channels_last=false, memory_format=None, x_gradient=true, weight_gradient=true, bias_gradient=true, out=None, stream=None),
    text_signature = "(x, weight, dy, *, stride=1, padding=0, dilation=1, groups=1, precision='full', channels_last=False, memory_format=None, x_gradient=True, weight_gradient=True, bias_gradient=True, out=None, stream=None)"
)]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn conv_backward<'py>(
    x: &Object<'py>,
    weight: &Object<'py>,
    dy: &Object<'py>,
    stride: Maybe<'_, 'py>,
    padding: Maybe<'_, 'py>,
    dilation: Maybe<'_, 'py>,
    #[pyo3(from_py_with = count)] groups: usize,
    precision: &str,
    channels_last: bool,
    memory_format: Option<&str>,
    x_gradient: bool,
    weight_gradient: bool,
    bias_gradient: bool,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    let precision = precision_of(x.py(), BACKWARD, precision)?;
    let memory = InMemory { channels_last, memory_format };
    let keywords = Keywords { stride, padding, dilation, groups, precision, memory, stream };
    gradients(&keywords, [x, weight, dy], [x_gradient, weight_gradient, bias_gradient], out)
}
