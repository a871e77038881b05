//! Products with a matrix of weights in 4 bits.

use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use warpwright::DType;
use warpwright::matmul_4bit::{Weight4bit as Codes, matmul_4bit, matmul_4bit_backward};
use warpwright::quantize::{NibbleOrder, Quantized, Scheme, dequantize, quantize};

use crate::call::Call;
use crate::error::Error;
use crate::graph::Written;
use crate::memory::{device, download, upload};

const OP: &str = "linear_4bit";

/// A matrix of weights as codes of 4 bits, where kernels run. Clones share it.
#[derive(Clone, Debug)]
pub struct Weight4bit(Arc<Quantized>);

impl Weight4bit {
    /// The codes of `weight`, `[k, n]` as burn has it, in groups of `group_size` elements of a column with a scale each.
    ///
    /// # Errors
    /// If the scheme is of integers and `group_size` does not divide `k` or `k` is odd, `group_size` is 0, the element type is none of f32,
    /// f16 and bf16, or the device is not Flex.
    pub fn quantize(weight: Tensor<2>, scheme: Scheme, group_size: usize) -> Result<Self, Error> {
        Call::new(OP).float("weight", weight.clone())?;
        let data = weight.transpose().into_data();
        let weight = upload(device(), (OP, "weight"), &data, data.shape().as_slice())?;
        let order = match scheme {
            Scheme::Nf4 | Scheme::Fp4 => NibbleOrder::HighFirst,
            _ => NibbleOrder::LowFirst,
        };
        let codes = quantize(&device().stream()?, &weight, scheme, group_size, order)?;
        Codes::from_quantized(&codes).map_err(warpwright::Error::from)?;
        Ok(Self(Arc::new(codes)))
    }

    /// The numbers that the codes stand for, `[k, n]` of f32.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn dequantize(&self, host: &Device) -> Result<Tensor<2>, Error> {
        let numbers = dequantize(&device().stream()?, &self.0, DType::F32)?;
        Ok(Tensor::<2>::from_data(download(OP, &numbers)?, host).transpose())
    }
}

/// `x weight + bias` with a weight in 4 bits, which is multiplied with as it is stored: `x` is `[.., k]` of f32, f16 or bf16, and `bias` `[n]`
/// of its type. The gradients are those of `x` and `bias`.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use warpwright_burn::ops::{Scheme, Weight4bit, linear_4bit};
///
/// # fn main() -> Result<(), warpwright_burn::Error> {
/// let device = Device::flex();
/// let weight = Tensor::<2>::from_data([[1f32, 0.0, 0.0], [-1.0, 0.5, -0.5]], &device);
/// let weight = Weight4bit::quantize(weight, Scheme::Int4Symmetric, 2)?;
/// let y = linear_4bit(Tensor::<2>::from_data([[3f32, 1.0]], &device), &weight, None)?;
/// assert_eq!(y.into_data().as_slice::<f32>().unwrap(), [2.0, 0.5, -0.5]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If shapes or element types do not fit, or the device is not Flex.
pub fn linear_4bit<const D: usize>(
    x: Tensor<D>,
    weight: &Weight4bit,
    bias: Option<Tensor<1>>,
) -> Result<Tensor<D>, Error> {
    let mut dims = x.dims();
    let &[n, k] = weight.0.shape.as_slice() else {
        return Err(Error::shape(OP, "weight", "of two dimensions", &weight.0.shape));
    };
    if dims[D - 1] != k {
        return Err(Error::shape(OP, "x", format!("[.., {k}]"), &dims));
    }
    let rows = dims[..D - 1].iter().product::<usize>();
    let call = Call::new(OP).float("x", x.reshape([rows, k]))?.optional("bias", bias)?;
    let weight = weight.clone();
    let mut results = call.run(move |stream, inputs| {
        let codes = Codes::from_quantized(&weight.0).map_err(warpwright::Error::from)?;
        let y = matmul_4bit(stream, inputs.of("x"), codes, inputs.get("bias"))?;
        Ok(Written::of(OP, &[&y])?.with(move |stream, inputs, dy| {
            let mut all = Vec::new();
            if inputs.tracked("x") {
                all.push(("x", matmul_4bit_backward(stream, dy, Codes::from_quantized(&weight.0)?)?));
            }
            if inputs.tracked("bias") {
                all.push(("bias", warpwright::sum(stream, dy, &[0], false)?));
            }
            Ok(all)
        }))
    })?;
    dims[D - 1] = n;
    Ok(results.next::<2>().reshape(dims))
}
