//! Layers that normalize.

use burn::module::{Flag, Module, Param, RunningState};
use burn::nn::{GroupNormConfig, Initializer, LayerNormConfig, RmsNormConfig};
use burn::tensor::{Device, Tensor};

use crate::error::Error;
use crate::ops;

/// [`ops::layer_norm`] with the parameters of [`burn::nn::LayerNorm`].
#[derive(Module, Debug)]
pub struct LayerNorm {
    /// The factors, `[d_model]`.
    pub gamma: Param<Tensor<1>>,
    /// The summands, `[d_model]`.
    pub beta: Option<Param<Tensor<1>>>,
    epsilon: f64,
}

impl LayerNorm {
    /// A layer of ones and zeros, from the configuration of burn's.
    pub fn new(config: &LayerNormConfig, device: &Device) -> Self {
        let (gamma, beta) = ones_and_zeros(config.d_model, device);
        Self { gamma, beta: config.bias.then_some(beta), epsilon: config.epsilon }
    }

    /// The normalization of the last dimension of `input`.
    ///
    /// # Errors
    /// As [`ops::layer_norm`].
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Result<Tensor<D>, Error> {
        ops::layer_norm(input, self.gamma.val(), self.beta.as_ref().map(Param::val), self.epsilon)
    }
}

fn ones_and_zeros(len: usize, device: &Device) -> (Param<Tensor<1>>, Param<Tensor<1>>) {
    (Initializer::Ones.init([len], device), Initializer::Zeros.init([len], device))
}

/// [`ops::rms_norm`] with the parameters of [`burn::nn::RmsNorm`].
#[derive(Module, Debug)]
pub struct RmsNorm {
    /// The factors, `[d_model]`.
    pub gamma: Param<Tensor<1>>,
    /// The number that is added to the mean of the squares.
    pub epsilon: f64,
}

impl From<burn::nn::RmsNorm> for RmsNorm {
    fn from(layer: burn::nn::RmsNorm) -> Self {
        Self { gamma: layer.gamma, epsilon: layer.epsilon }
    }
}

impl RmsNorm {
    /// A layer of ones, from the configuration of burn's.
    pub fn new(config: &RmsNormConfig, device: &Device) -> Self {
        Self { gamma: ones_and_zeros(config.d_model, device).0, epsilon: config.epsilon }
    }

    /// The normalization of the last dimension of `input`.
    ///
    /// # Errors
    /// As [`ops::rms_norm`].
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Result<Tensor<D>, Error> {
        ops::rms_norm(input, self.gamma.val(), self.epsilon)
    }
}

/// [`ops::group_norm`] with the parameters of [`burn::nn::GroupNorm`].
#[derive(Module, Debug)]
pub struct GroupNorm {
    /// The factors, `[num_channels]`.
    pub gamma: Option<Param<Tensor<1>>>,
    /// The summands, `[num_channels]`.
    pub beta: Option<Param<Tensor<1>>>,
    /// The groups that the channels are divided into.
    pub num_groups: usize,
    /// The number that is added to the variance.
    pub epsilon: f64,
}

impl From<burn::nn::GroupNorm> for GroupNorm {
    fn from(layer: burn::nn::GroupNorm) -> Self {
        let burn::nn::GroupNorm { gamma, beta, num_groups, epsilon, .. } = layer;
        Self { gamma, beta, num_groups, epsilon }
    }
}

impl GroupNorm {
    /// A layer of ones and zeros, from the configuration of burn's.
    pub fn new(config: &GroupNormConfig, device: &Device) -> Self {
        let (gamma, beta) = ones_and_zeros(config.num_channels, device);
        let (gamma, beta) = (config.affine.then_some(gamma), config.affine.then_some(beta));
        Self { gamma, beta, num_groups: config.num_groups, epsilon: config.epsilon }
    }

    /// The normalization of the groups of `input`, `[batch, num_channels, ..]`.
    ///
    /// # Errors
    /// As [`ops::group_norm`].
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Result<Tensor<D>, Error> {
        let (gamma, beta) = (self.gamma.as_ref().map(Param::val), self.beta.as_ref().map(Param::val));
        ops::group_norm(input, gamma, beta, self.num_groups, self.epsilon)
    }
}

/// [`ops::batch_norm_train`] or [`ops::batch_norm`] with the parameters and running statistics of [`burn::nn::BatchNorm`], which it is made
/// from: `burn::nn::BatchNormConfig::new(8).init(&device).into()`.
#[derive(Module, Debug)]
pub struct BatchNorm {
    /// The factors, `[num_features]`.
    pub gamma: Param<Tensor<1>>,
    /// The summands, `[num_features]`.
    pub beta: Param<Tensor<1>>,
    /// Whether batches are normalized by their own statistics on an autodiff device.
    pub training: Param<Flag>,
    /// The mean that inference normalizes by.
    pub running_mean: RunningState<Tensor<1>>,
    /// The variance that inference normalizes by.
    pub running_var: RunningState<Tensor<1>>,
    /// How far the running statistics go towards those of a batch.
    pub momentum: f64,
    /// The number that is added to the variance.
    pub epsilon: f64,
}

impl From<burn::nn::BatchNorm> for BatchNorm {
    fn from(layer: burn::nn::BatchNorm) -> Self {
        let burn::nn::BatchNorm { gamma, beta, training, running_mean, running_var, momentum, epsilon } =
            layer;
        Self { gamma, beta, training, running_mean, running_var, momentum, epsilon }
    }
}

impl BatchNorm {
    /// The normalization of the channels of `input`, `[batch, num_features, ..]`: on an autodiff device, while `training` is set, by the
    /// statistics of the batch, which the running ones follow; else by the running ones.
    ///
    /// # Errors
    /// As [`ops::batch_norm_train`].
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Result<Tensor<D>, Error> {
        let (device, gamma, beta) = (input.device(), self.gamma.val(), self.beta.val());
        let [features] = gamma.dims();
        for (name, state) in [("running_mean", &self.running_mean), ("running_var", &self.running_var)] {
            let got = state.value().dims();
            if got != [features] {
                return Err(Error::shape("batch_norm", name, format!("[{features}]"), &got));
            }
        }
        if !(device.is_autodiff() && self.training.is_enabled()) {
            let running = |state: &RunningState<Tensor<1>>| state.value().to_device(&device).detach();
            let (mean, var) = (running(&self.running_mean), running(&self.running_var));
            return ops::batch_norm(input, gamma, beta, mean, var, self.epsilon);
        }
        let batch = ops::batch_norm_train(input, gamma, beta, self.epsilon)?;
        for (state, of_batch) in [(&self.running_mean, batch.mean), (&self.running_var, batch.variance)] {
            let before = state.value_sync().to_device(&device);
            let of_batch = of_batch.cast(before.dtype());
            let after = before.mul_scalar(1.0 - self.momentum) + of_batch.mul_scalar(self.momentum);
            state.update(after.detach());
        }
        Ok(batch.output)
    }
}
