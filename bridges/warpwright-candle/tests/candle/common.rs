//! Inputs, and the comparison of results and gradients.

use std::sync::OnceLock;

use candle_core::{DType, Device, Result, Tensor, Var};
use warpwright_testkit::budget::{self, Budget};

/// Where the tests run: on the CPU, or on the first GPU if candle was built for CUDA.
pub(crate) fn device() -> Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let open = || match cfg!(feature = "cuda") {
        true => Device::new_cuda_with_stream(0).expect("a GPU"),
        false => Device::Cpu,
    };
    DEVICE.get_or_init(open).clone()
}

/// Numbers from -1 to 1, the same ones for a seed, that are exact in every element type.
pub(crate) fn numbers(shape: &[usize], seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    let len = shape.iter().product();
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from((state >> 33) as u32 % 255) / 128.0 - 127.0 / 128.0
    };
    let data: Vec<f64> = (0..len).map(next).collect();
    Tensor::from_vec(data, shape, &device()).unwrap()
}

/// The types that operations have.
pub(crate) const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

pub(crate) fn ours(dtype: DType) -> warpwright::DType {
    match dtype {
        DType::F64 => warpwright::DType::F64,
        DType::F32 => warpwright::DType::F32,
        DType::F16 => warpwright::DType::F16,
        _ => warpwright::DType::BF16,
    }
}

pub(crate) fn elementwise(dtype: DType) -> Budget {
    budget::elementwise(ours(dtype))
}

pub(crate) fn normalised(dtype: DType) -> Budget {
    budget::normalised(ours(dtype))
}

pub(crate) fn attention(dtype: DType) -> Budget {
    budget::attention(ours(dtype), 1.0)
}

pub(crate) fn vector(x: &Tensor) -> Vec<f64> {
    x.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// The norm of the difference over the norm of what is expected.
pub(crate) fn distance(got: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(got.dims(), expected.dims());
    let (got, expected) = (vector(got), vector(expected));
    let norm = |of: &mut dyn Iterator<Item = f64>| of.map(|x| x * x).sum::<f64>().sqrt();
    let scale = norm(&mut expected.iter().copied());
    norm(&mut got.iter().zip(&expected).map(|(a, b)| a - b)) / if scale == 0.0 { 1.0 } else { scale }
}

#[track_caller]
pub(crate) fn close(what: &str, got: &Tensor, expected: &Tensor, budget: Budget) {
    let (distance, allowed) = (distance(got, expected), budget.norm_over(expected.elem_count() as f64));
    assert!(distance <= allowed, "{what}: {distance:e} from what is expected, {allowed:e} is allowed");
}

/// A result and the gradients of all inputs, when the gradient of the result is `dy`.
pub(crate) fn differentiate(
    inputs: &[Tensor],
    dtype: DType,
    dy: impl Fn(&Tensor) -> Tensor,
    f: impl Fn(&[Tensor]) -> Result<Tensor>,
) -> (Tensor, Vec<Tensor>) {
    let variables: Vec<Var> =
        inputs.iter().map(|x| Var::from_tensor(&x.to_dtype(dtype).unwrap()).unwrap()).collect();
    let tensors: Vec<Tensor> = variables.iter().map(|v| v.as_tensor().clone()).collect();
    let y = f(&tensors).unwrap();
    assert_eq!(y.dtype(), dtype);
    let dy = dy(&y).to_dtype(dtype).unwrap();
    let gradients = (&y * &dy).unwrap().sum_all().unwrap().backward().unwrap();
    let of = |v: &Var| {
        let gradient = gradients.get(v.as_tensor()).expect("a gradient");
        assert_eq!((gradient.dtype(), gradient.dims()), (dtype, v.dims()));
        gradient.clone()
    };
    (y, variables.iter().map(of).collect())
}

/// Holds an operation and its gradients to candle's composition in f64, for every element type.
#[track_caller]
pub(crate) fn same(
    inputs: &[Tensor],
    budget: impl Fn(DType) -> Budget,
    ours: impl Fn(&[Tensor]) -> Result<Tensor>,
    theirs: impl Fn(&[Tensor]) -> Result<Tensor>,
) {
    for dtype in FLOATS {
        same_in(dtype, inputs, budget(dtype), &ours, &theirs);
    }
}

/// The same for one element type.
#[track_caller]
pub(crate) fn same_in(
    dtype: DType,
    inputs: &[Tensor],
    budget: Budget,
    ours: impl Fn(&[Tensor]) -> Result<Tensor>,
    theirs: impl Fn(&[Tensor]) -> Result<Tensor>,
) {
    let dy = |y: &Tensor| numbers(y.dims(), 77);
    let (y, gradients) = differentiate(inputs, dtype, dy, ours);
    let (expected, of_expected) = differentiate(inputs, DType::F64, dy, theirs);
    close(&format!("{dtype:?} result"), &y, &expected, budget);
    for (index, (got, expected)) in gradients.iter().zip(&of_expected).enumerate() {
        close(&format!("{dtype:?} gradient {index}"), got, expected, budget);
    }
}
