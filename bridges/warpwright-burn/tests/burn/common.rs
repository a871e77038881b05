//! Inputs, and the comparison of results and gradients.

use burn::tensor::{DType, Device, Tensor, TensorData};
use warpwright_burn::Error;
use warpwright_testkit::budget::{self, Budget};

/// Numbers from -1 to 1, the same ones for a seed, that are exact in every element type.
pub(crate) fn numbers(len: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from((state >> 33) as u32 % 255) / 128.0 - 127.0 / 128.0
    };
    (0..len).map(next).collect()
}

/// A tensor of those numbers.
pub(crate) fn tensor<const D: usize>(
    shape: [usize; D],
    seed: u64,
    dtype: DType,
    device: &Device,
) -> Tensor<D> {
    let data = TensorData::new(numbers(shape.iter().product(), seed), shape);
    Tensor::from_data(data, (device, dtype))
}

/// The types that operations have.
pub(crate) const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

fn ours(dtype: DType) -> warpwright::DType {
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

pub(crate) fn vector<const D: usize>(x: &Tensor<D>) -> Vec<f64> {
    x.to_data().iter::<f64>().collect()
}

/// That the norm of a difference over the norm of what is expected is within a budget.
#[track_caller]
pub(crate) fn close(what: &str, got: &[f64], expected: &[f64], budget: Budget) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let norm = |of: &mut dyn Iterator<Item = f64>| of.map(|x| x * x).sum::<f64>().sqrt();
    let scale = norm(&mut expected.iter().copied());
    let distance =
        norm(&mut got.iter().zip(expected).map(|(a, b)| a - b)) / if scale == 0.0 { 1.0 } else { scale };
    let allowed = budget.norm_over(expected.len() as f64);
    assert!(distance <= allowed, "{what}: {distance:e} from what is expected, {allowed:e} is allowed");
}

/// The inputs of a case, which are leaves of the graph without dimensions, and their shapes.
pub(crate) struct Given<'a> {
    leaves: Vec<Tensor<1>>,
    shapes: &'a [&'a [usize]],
}

impl Given<'_> {
    pub(crate) fn at<const D: usize>(&self, index: usize) -> Tensor<D> {
        let shape: [usize; D] = self.shapes[index].try_into().expect("a shape of as many dimensions");
        self.leaves[index].clone().reshape(shape)
    }
}

/// A result without its dimensions.
pub(crate) fn flat<const D: usize>(y: Tensor<D>) -> Tensor<1> {
    y.flatten(0, D - 1)
}

/// A result of `f` and the gradients of all inputs, when the gradient of the result is the numbers of another seed.
pub(crate) fn differentiate(
    shapes: &[&[usize]],
    dtype: DType,
    f: impl Fn(&Given<'_>) -> Result<Tensor<1>, Error>,
) -> Vec<Vec<f64>> {
    let device = Device::flex().autodiff();
    let leaf = |(seed, shape): (usize, &&[usize])| {
        tensor([shape.iter().product()], seed as u64 + 1, dtype, &device).require_grad()
    };
    let leaves: Vec<Tensor<1>> = shapes.iter().enumerate().map(leaf).collect();
    let y = f(&Given { leaves: leaves.clone(), shapes }).unwrap();
    assert_eq!(y.dtype(), dtype);
    let mut all = vec![vector(&y)];
    let dy = tensor(y.dims(), 77, dtype, &device);
    let gradients = (y * dy).sum().backward();
    for leaf in leaves {
        let gradient = leaf.grad(&gradients).expect("a gradient");
        assert_eq!(gradient.dtype(), dtype);
        all.push(vector(&gradient));
    }
    all
}

/// Holds an operation and its gradients to burn's in f64, for some element types.
#[track_caller]
pub(crate) fn same_in(
    dtypes: &[DType],
    shapes: &[&[usize]],
    budget: impl Fn(DType) -> Budget,
    ours: impl Fn(&Given<'_>) -> Result<Tensor<1>, Error>,
    theirs: impl Fn(&Given<'_>) -> Tensor<1>,
) {
    let expected = differentiate(shapes, DType::F64, |given| Ok(theirs(given)));
    for &dtype in dtypes {
        let got = differentiate(shapes, dtype, &ours);
        for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
            close(&format!("{dtype:?} result and gradients, {index}"), got, expected, budget(dtype));
        }
    }
}

/// The same for every element type.
#[track_caller]
pub(crate) fn same(
    shapes: &[&[usize]],
    budget: impl Fn(DType) -> Budget,
    ours: impl Fn(&Given<'_>) -> Result<Tensor<1>, Error>,
    theirs: impl Fn(&Given<'_>) -> Tensor<1>,
) {
    same_in(&FLOATS, shapes, budget, ours, theirs);
}

/// Holds the gradients of an operation to differences of its results in f64.
#[track_caller]
pub(crate) fn differences(shapes: &[&[usize]], f: impl Fn(&Given<'_>) -> Result<Tensor<1>, Error>) {
    let device = Device::flex();
    let all = differentiate(shapes, DType::F64, &f);
    let values: Vec<Vec<f64>> =
        shapes.iter().enumerate().map(|(i, shape)| numbers(shape.iter().product(), i as u64 + 1)).collect();
    let loss = |values: &[Vec<f64>]| {
        let leaf = |values: &Vec<f64>| {
            Tensor::from_data(TensorData::new(values.clone(), [values.len()]), (&device, DType::F64))
        };
        let y = vector(&f(&Given { leaves: values.iter().map(leaf).collect(), shapes }).unwrap());
        let dy = numbers(y.len(), 77);
        y.iter().zip(&dy).map(|(y, dy)| y * dy).sum::<f64>()
    };
    let step = 1e-5;
    for (input, gradient) in all[1..].iter().enumerate() {
        for (element, &got) in gradient.iter().enumerate() {
            let at = |by: f64| {
                let mut moved = values.clone();
                moved[input][element] += by;
                loss(&moved)
            };
            let expected = (at(step) - at(-step)) / (2.0 * step);
            let allowed = 1e-7 * (1.0 + expected.abs());
            assert!(
                (got - expected).abs() < allowed,
                "input {input}, {element}: {got}, {expected} is expected"
            );
        }
    }
}
