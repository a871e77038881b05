//! A training step: loss, gradients, and stochastic gradient descent with momentum.

use warpwright::cross_entropy::{CrossEntropyOptions, cross_entropy, cross_entropy_backward};
use warpwright::{DType, Error, Stream, Tensor, cast};

use super::layers::Parameter;
use super::net::ResNet;
use super::sum::scaled_sum;

/// The loss of `net`, `[]`, for images `[batch, height, width, 3]` of the classes `labels`, `[batch]`, i64; leaves the gradients of the
/// parameters with them.
pub(crate) fn gradients(
    stream: &Stream,
    net: &mut ResNet,
    images: &Tensor,
    labels: &Tensor,
) -> Result<Tensor, Error> {
    let options = CrossEntropyOptions::default();
    let activations = net.forward(stream, images)?;
    let output = cross_entropy(stream, &activations.logits, labels, options)?;
    let dloss = Tensor::ones_on(stream, images.dtype(), &[])?;
    let dlogits = cross_entropy_backward(stream, &activations.logits, labels, &output, &dloss, options)?;
    net.backward(stream, images, &activations, &dlogits)?;
    Ok(output.loss)
}

/// `velocity = momentum velocity + gradient`, `value = value - rate velocity`, as `torch.optim.SGD`.
pub(crate) struct Sgd {
    /// `[1]`
    momentum: Tensor,
    /// `[1]`
    minus_rate: Tensor,
}

impl Sgd {
    /// For parameters of type `dtype`.
    pub(crate) fn new(stream: &Stream, dtype: DType, rate: f32, momentum: f32) -> Result<Self, Error> {
        let scalar = |value| cast(stream, &Tensor::full_on(stream, value, &[1])?, dtype);
        Ok(Self { momentum: scalar(momentum)?, minus_rate: scalar(-rate)? })
    }

    /// Updates parameters by the gradients that they have.
    pub(crate) fn update<'a>(
        &self,
        stream: &Stream,
        parameters: impl Iterator<Item = &'a mut Parameter>,
    ) -> Result<(), Error> {
        for parameter in parameters {
            let Some(gradient) = parameter.gradient.take() else { continue };
            let velocity = match &parameter.velocity {
                Some(velocity) => scaled_sum(stream, Some(&self.momentum), velocity, &gradient)?,
                None => gradient,
            };
            parameter.value = scaled_sum(stream, Some(&self.minus_rate), &velocity, &parameter.value)?;
            parameter.velocity = Some(velocity);
        }
        Ok(())
    }
}
