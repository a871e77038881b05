//! Layers against burn's, with the records of burn's.

use burn::module::{Module, Param};
use burn::nn::{BatchNormConfig, GroupNormConfig, LayerNormConfig, LinearConfig, RmsNormConfig};
use burn::tensor::{DType, Device, Tensor};
use warpwright_burn::{BatchNorm, GroupNorm, LayerNorm, Linear, RmsNorm};

use crate::common::{close, normalised, tensor, vector};

fn device() -> Device {
    Device::flex().autodiff()
}

fn param<const D: usize>(shape: [usize; D], seed: u64) -> Param<Tensor<D>> {
    Param::from_tensor(tensor(shape, seed, DType::F32, &device()))
}

#[track_caller]
fn near<const D: usize>(got: &Tensor<D>, expected: &Tensor<D>) {
    close("result", &vector(got), &vector(expected), normalised(DType::F32));
}

#[test]
fn records_of_burn() {
    let device = device();
    let x: Tensor<3> = tensor([2, 6, 8], 1, DType::F32, &device);

    let mut theirs = LayerNormConfig::new(8).init(&device);
    (theirs.gamma, theirs.beta) = (param([8], 2), Some(param([8], 3)));
    let fresh = LayerNorm::new(&LayerNormConfig::new(8), &device);
    let ours = fresh.load_record(theirs.clone().into_record());
    near(&ours.forward(x.clone()).unwrap(), &theirs.forward(x.clone()));
    // And back.
    let back = LayerNormConfig::new(8).init(&device).load_record(ours.into_record());
    near(&back.forward(x.clone()), &theirs.forward(x.clone()));

    let mut theirs = RmsNormConfig::new(8).init(&device);
    theirs.gamma = param([8], 4);
    let ours = RmsNorm::new(&RmsNormConfig::new(8), &device).load_record(theirs.clone().into_record());
    near(&ours.forward(x.clone()).unwrap(), &theirs.forward(x.clone()));

    let mut theirs = GroupNormConfig::new(3, 6).init(&device);
    (theirs.gamma, theirs.beta) = (Some(param([6], 5)), Some(param([6], 6)));
    let ours = GroupNorm::new(&GroupNormConfig::new(3, 6), &device).load_record(theirs.clone().into_record());
    near(&ours.forward(x.clone()).unwrap(), &theirs.forward(x.clone()));
    near(&GroupNorm::from(theirs.clone()).forward(x.clone()).unwrap(), &theirs.forward(x.clone()));

    let theirs = LinearConfig::new(8, 5).init(&device);
    let ours = Linear::from(LinearConfig::new(8, 5).init(&device)).load_record(theirs.clone().into_record());
    near(&ours.forward(x.clone()).unwrap(), &theirs.forward(x));
}

#[test]
fn batch_norm_follows_batches() {
    let device = device();
    let mut theirs = BatchNormConfig::new(6).init(&device);
    (theirs.gamma, theirs.beta) = (param([6], 2), param([6], 3));
    // A clone shares the running statistics.
    let ours =
        BatchNorm::from(BatchNormConfig::new(6).init(&device)).load_record(theirs.clone().into_record());
    for seed in 0..3 {
        let x: Tensor<3> = tensor([4, 6, 5], seed, DType::F32, &device);
        near(&ours.forward(x.clone()).unwrap(), &theirs.forward(x));
        near(&ours.running_mean.value_sync(), &theirs.running_mean.value_sync());
        near(&ours.running_var.value_sync(), &theirs.running_var.value_sync());
    }
    let inside = Device::flex();
    let x: Tensor<3> = tensor([4, 6, 5], 9, DType::F32, &inside);
    let expected = theirs.to_device(&inside).forward(x.clone());
    let got = ours.to_device(&inside).forward(x).unwrap();
    near(&got, &expected);
}
