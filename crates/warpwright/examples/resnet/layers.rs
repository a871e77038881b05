//! Layers with parameters. Forward passes in training return what backward passes read; those store the gradients of the parameters and
//! return that of the input. Images are `[batch, height, width, channels]`.

use warpwright::batch_norm::{BatchNormOptions, Momentum, RunningStatistics};
use warpwright::conv::{ConvOptions, Layout};
use warpwright::matmul::MatmulOptions;
use warpwright::{
    DType, Error, NormOutput, Stream, Tensor, batch_norm, batch_norm_backward, batch_norm_inference, cast,
    conv, conv_backward, matmul,
};

/// Where the channels are, everywhere in the net.
pub(crate) const LAYOUT: Layout = Layout::ChannelsLast;

/// Added to the variances of the batch norms.
pub(crate) const EPS: f64 = 1e-5;

/// Numbers that look random.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Between -1 and 1.
    pub(crate) fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / 8_388_608.0 - 1.0
    }

    /// A tensor of numbers between `-bound` and `bound`.
    pub(crate) fn tensor(
        &mut self,
        stream: &Stream,
        dtype: DType,
        shape: &[usize],
        bound: f32,
    ) -> Result<Tensor, Error> {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| bound * self.next()).collect();
        cast(stream, &Tensor::from_slice_on(stream, &values, shape)?, dtype)
    }
}

/// A tensor that is trained.
pub(crate) struct Parameter {
    pub(crate) value: Tensor,
    /// Of the last backward pass, like the value.
    pub(crate) gradient: Option<Tensor>,
    /// The sum of the gradients of all steps, which decays; like the value.
    pub(crate) velocity: Option<Tensor>,
}

impl Parameter {
    pub(crate) fn new(value: Tensor) -> Self {
        Self { value, gradient: None, velocity: None }
    }

    /// The weight `[outputs, .., inputs]` of a layer that a ReLU follows (He et al. 2015, arXiv:1502.01852).
    fn weight(stream: &Stream, dtype: DType, random: &mut Random, shape: &[usize]) -> Result<Self, Error> {
        let fan_in: usize = shape.iter().skip(1).product();
        Ok(Self::new(random.tensor(stream, dtype, shape, (6.0 / fan_in as f32).sqrt())?))
    }
}

/// The shape of a [`ConvNorm`].
pub(crate) struct ConvShape {
    pub(crate) channels: usize,
    pub(crate) filters: usize,
    /// Height and width of the filters, which is odd.
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
}

/// A convolution, a batch norm, and a ReLU if there is one: `y = relu(norm(conv(x)) + residual)`.
pub(crate) struct ConvNorm {
    /// `[filters, kernel, kernel, channels]`
    weight: Parameter,
    /// `[filters]`
    norm_weight: Parameter,
    /// `[filters]`
    norm_bias: Parameter,
    /// `[filters]`
    pub(crate) running_mean: Tensor,
    /// `[filters]`
    pub(crate) running_var: Tensor,
    stride: [usize; 1],
    padding: [usize; 1],
    relu: bool,
}

/// The result of a [`ConvNorm`] in training.
pub(crate) struct ConvNormOutput {
    /// The result of the convolution.
    conv: Tensor,
    pub(crate) norm: NormOutput,
}

impl ConvNormOutput {
    pub(crate) fn y(&self) -> &Tensor {
        &self.norm.y
    }
}

/// The gradients of the tensors that a [`ConvNorm`] reads.
pub(crate) struct ConvNormGradients {
    pub(crate) dx: Tensor,
    /// If there are a residual and a ReLU; without a ReLU it is `dy` itself.
    pub(crate) dresidual: Option<Tensor>,
}

/// The options of a batch norm.
fn norm_options<'a>(
    weight: &'a Parameter,
    bias: &'a Parameter,
    residual: Option<&'a Tensor>,
    relu: bool,
) -> BatchNormOptions<'a> {
    BatchNormOptions {
        weight: Some(&weight.value),
        bias: Some(&bias.value),
        residual,
        relu,
        eps: EPS,
        layout: LAYOUT,
    }
}

impl ConvNorm {
    /// How far the running statistics go towards those of a batch: fast, for a few steps. PyTorch's default is 0.1.
    const MOMENTUM: f64 = 0.5;

    pub(crate) fn new(
        stream: &Stream,
        dtype: DType,
        random: &mut Random,
        shape: &ConvShape,
        relu: bool,
    ) -> Result<Self, Error> {
        let &ConvShape { channels, filters, kernel, stride } = shape;
        let zeros = || Tensor::zeros_on(stream, dtype, &[filters]);
        let ones = || Tensor::ones_on(stream, dtype, &[filters]);
        Ok(Self {
            weight: Parameter::weight(stream, dtype, random, &[filters, kernel, kernel, channels])?,
            norm_weight: Parameter::new(ones()?),
            norm_bias: Parameter::new(zeros()?),
            running_mean: zeros()?,
            running_var: ones()?,
            stride: [stride],
            padding: [kernel / 2],
            relu,
        })
    }

    fn conv_options(&self) -> ConvOptions<'_> {
        let (stride, padding) = (&self.stride, &self.padding);
        ConvOptions { stride, padding, layout: LAYOUT, ..Default::default() }
    }

    /// With the running statistics.
    pub(crate) fn infer(
        &self,
        stream: &Stream,
        x: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<Tensor, Error> {
        let conv = conv(stream, x, &self.weight.value, self.conv_options())?;
        let options = norm_options(&self.norm_weight, &self.norm_bias, residual, self.relu);
        Ok(batch_norm_inference(stream, &conv, &self.running_mean, &self.running_var, options)?.y)
    }

    /// With the statistics of the batch, towards which the running ones move.
    pub(crate) fn forward(
        &mut self,
        stream: &Stream,
        x: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<ConvNormOutput, Error> {
        let conv = conv(stream, x, &self.weight.value, self.conv_options())?;
        let options = norm_options(&self.norm_weight, &self.norm_bias, residual, self.relu);
        let momentum = Momentum::Exponential(Self::MOMENTUM.into());
        let running =
            RunningStatistics { mean: &mut self.running_mean, var: &mut self.running_var, momentum };
        let norm = batch_norm(stream, &conv, Some(running), options)?;
        Ok(ConvNormOutput { conv, norm })
    }

    /// From what forward took and gave, and the gradient `dy` of its `y`.
    pub(crate) fn backward(
        &mut self,
        stream: &Stream,
        x: &Tensor,
        residual: Option<&Tensor>,
        output: &ConvNormOutput,
        dy: &Tensor,
    ) -> Result<ConvNormGradients, Error> {
        let options = norm_options(&self.norm_weight, &self.norm_bias, residual, self.relu);
        let norm = batch_norm_backward(stream, &output.conv, &output.norm, dy, options)?;
        let conv = conv_backward(stream, x, &self.weight.value, &norm.dx, self.conv_options())?;
        self.norm_weight.gradient = norm.dweight;
        self.norm_bias.gradient = norm.dbias;
        self.weight.gradient = Some(conv.dweight);
        Ok(ConvNormGradients { dx: conv.dx, dresidual: norm.dresidual })
    }

    pub(crate) fn parameters_mut(&mut self) -> [&mut Parameter; 3] {
        [&mut self.weight, &mut self.norm_weight, &mut self.norm_bias]
    }
}

/// `y = x weight^T + bias`: `[batch, inputs]` to `[batch, outputs]`.
pub(crate) struct Linear {
    /// `[outputs, inputs]`
    weight: Parameter,
    /// `[outputs]`
    bias: Parameter,
}

impl Linear {
    pub(crate) fn new(
        stream: &Stream,
        dtype: DType,
        random: &mut Random,
        [inputs, outputs]: [usize; 2],
    ) -> Result<Self, Error> {
        let bound = 1.0 / (inputs as f32).sqrt();
        let weight = random.tensor(stream, dtype, &[outputs, inputs], bound)?;
        let bias = Tensor::zeros_on(stream, dtype, &[outputs])?;
        Ok(Self { weight: Parameter::new(weight), bias: Parameter::new(bias) })
    }

    pub(crate) fn forward(&self, stream: &Stream, x: &Tensor) -> Result<Tensor, Error> {
        let options = MatmulOptions { transpose_b: true, bias: Some(&self.bias.value), ..Default::default() };
        matmul(stream, x, &self.weight.value, options)
    }

    /// From what forward took, and the gradient `dy` of its result: the gradient of `x`.
    pub(crate) fn backward(&mut self, stream: &Stream, x: &Tensor, dy: &Tensor) -> Result<Tensor, Error> {
        let turned = MatmulOptions { transpose_a: true, ..Default::default() };
        self.weight.gradient = Some(matmul(stream, dy, x, turned)?);
        // The sum over the batch is a product with ones.
        let ones = Tensor::ones_on(stream, dy.dtype(), &[dy.shape()[0], 1])?;
        self.bias.gradient = Some(matmul(stream, &ones, dy, turned)?.reshape(self.bias.value.shape())?);
        matmul(stream, dy, &self.weight.value, MatmulOptions::default())
    }

    pub(crate) fn parameters_mut(&mut self) -> [&mut Parameter; 2] {
        [&mut self.weight, &mut self.bias]
    }
}
