//! Convolutions.

use burn::tensor::Tensor;
use burn::tensor::ops::ConvOptions as HostOptions;
use warpwright::conv::ConvOptions;

use crate::call::Call;
use crate::error::Error;
use crate::graph::{Inputs, Written};

const OP: &str = "conv";

/// The options of a convolution over `N` dimensions.
#[derive(Clone, Copy)]
struct Numbers<const N: usize> {
    stride: [usize; N],
    padding: [usize; N],
    dilation: [usize; N],
    groups: usize,
}

impl<const N: usize> Numbers<N> {
    fn options<'a>(&'a self, inputs: &'a Inputs) -> ConvOptions<'a> {
        let Self { stride, padding, dilation, groups } = self;
        let bias = inputs.get("bias");
        ConvOptions { bias, stride, padding, dilation, groups: *groups, ..Default::default() }
    }
}

fn conv<const D: usize, const N: usize>(
    x: Tensor<D>,
    weight: Tensor<D>,
    bias: Option<Tensor<1>>,
    options: HostOptions<N>,
) -> Result<Tensor<D>, Error> {
    let HostOptions { stride, padding: ends, dilation, groups, .. } = options;
    let padding = ends.map(|(start, _)| start);
    if ends.iter().any(|(start, end)| start != end) {
        let (parameter, expected, got) = ("padding", "the same at both ends", format!("{ends:?}"));
        return Err(Error::Parameter { op: OP, parameter, expected, got });
    }
    let numbers = Numbers { stride, padding, dilation, groups };
    let call = Call::new(OP).float("x", x)?.float("weight", weight)?.optional("bias", bias)?;
    let mut results = call.run(move |stream, inputs| {
        let y = warpwright::conv(stream, inputs.of("x"), inputs.of("weight"), numbers.options(inputs))?;
        Ok(Written::of(OP, &[&y])?.with(move |stream, inputs, dy| {
            let (x, weight) = (inputs.of("x"), inputs.of("weight"));
            let back = warpwright::conv_backward(stream, x, weight, dy, numbers.options(inputs))?;
            let mut all = vec![("x", back.dx), ("weight", back.dweight)];
            all.extend(back.dbias.map(|gradient| ("bias", gradient)));
            Ok(all)
        }))
    })?;
    Ok(results.next())
}

/// The convolution over one dimension, as [`burn::tensor::module::conv1d`]: `x` is `[batch, channels, length]`, `weight` `[filters,
/// channels / groups, kernel]` and `bias` `[filters]`, of one element type. Padding is the same at
/// both ends.
///
/// # Errors
/// If shapes or element types do not fit, the kernel is larger than the padded image, the element type is none of f32, f64, f16 and
/// bf16, or the device is not Flex.
pub fn conv1d(
    x: Tensor<3>,
    weight: Tensor<3>,
    bias: Option<Tensor<1>>,
    options: HostOptions<1>,
) -> Result<Tensor<3>, Error> {
    conv(x, weight, bias, options)
}

/// The convolution over two dimensions, as [`burn::tensor::module::conv2d`]: `x` is `[batch, channels, height, width]`, `weight`
/// `[filters, channels / groups, height, width]` and `bias` `[filters]`, of one element type.
///
/// # Errors
/// As [`conv1d`].
pub fn conv2d(
    x: Tensor<4>,
    weight: Tensor<4>,
    bias: Option<Tensor<1>>,
    options: HostOptions<2>,
) -> Result<Tensor<4>, Error> {
    conv(x, weight, bias, options)
}
