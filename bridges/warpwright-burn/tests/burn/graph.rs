//! Operations in burn's graph.

use burn::tensor::{DType, Device, Tensor};
use warpwright_burn::ops;

use crate::common::{close, elementwise, tensor, vector};

/// Parameters that burn does not track have no gradients, and the others do.
#[test]
fn gradients_of_what_is_tracked_alone() {
    let device = Device::flex().autodiff();
    let x: Tensor<2> = tensor([3, 8], 1, DType::F32, &device);
    let gamma: Tensor<1> = tensor([8], 2, DType::F32, &device);
    for (of_x, of_gamma) in [(true, false), (false, true), (true, true)] {
        let x = if of_x { x.clone().require_grad() } else { x.clone() };
        let gamma = if of_gamma { gamma.clone().require_grad() } else { gamma.clone() };
        let gradients = ops::rms_norm(x.clone(), gamma.clone(), 1e-5).unwrap().sum().backward();
        assert_eq!((x.grad(&gradients).is_some(), gamma.grad(&gradients).is_some()), (of_x, of_gamma));
    }
}

/// Tensors of an autodiff device and of the one inside, which are constants, in one call.
#[test]
fn tensors_inside_and_outside_of_the_graph() {
    let x: Tensor<2> = tensor([3, 8], 1, DType::F32, &Device::flex().autodiff()).require_grad();
    let gamma: Tensor<1> = tensor([8], 2, DType::F32, &Device::flex());
    let y = ops::rms_norm(x.clone(), gamma.clone(), 1e-5).unwrap();
    let inside = ops::rms_norm(x.clone().inner(), gamma, 1e-5).unwrap();
    assert_eq!(vector(&y), vector(&inside));
    assert!(x.grad(&y.sum().backward()).is_some());
}

/// A tensor that an operation takes twice, and a result that two others take.
#[test]
fn sums_of_gradients() {
    let x: Tensor<2> = tensor([3, 8], 1, DType::F64, &Device::flex().autodiff()).require_grad();
    let y = ops::silu(x.clone()).unwrap();
    let z = ops::swiglu(y.clone(), y.clone()).unwrap() + ops::tanh(y).unwrap();
    let got = x.grad(&z.sum().backward()).unwrap();
    use burn::tensor::activation::silu;
    let y = silu(x.clone());
    let z = silu(y.clone()) * y.clone() + y.tanh();
    let expected = x.grad(&z.sum().backward()).unwrap();
    close("gradient", &vector(&got), &vector(&expected), elementwise(DType::F64));
}

/// With checkpointing burn computes again what it did not keep; the results of kernels are kept.
#[test]
fn checkpointing() {
    let run = |device: Device| {
        let x: Tensor<2> = tensor([3, 8], 1, DType::F32, &device).require_grad();
        let gamma: Tensor<1> = tensor([8], 2, DType::F32, &device).require_grad();
        let y = ops::silu(ops::rms_norm(x.clone() * 2.0, gamma.clone(), 1e-5).unwrap()).unwrap();
        let gradients = (y * x.clone()).sum().backward();
        [vector(&x.grad(&gradients).unwrap()), vector(&gamma.grad(&gradients).unwrap())]
    };
    assert_eq!(run(Device::flex().autodiff()), run(Device::flex().autodiff().gradient_checkpointing()));
}

#[test]
fn the_same_results_from_run_to_run() {
    let x: Tensor<2> = tensor([7, 33], 1, DType::F32, &Device::flex());
    let run = || vector(&ops::softmax(x.clone(), 1).unwrap());
    assert_eq!(run(), run());
}
