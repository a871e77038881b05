//! Products with a matrix of weights.

use burn::tensor::Tensor;
use warpwright::matmul;
use warpwright::matmul::MatmulOptions;

use crate::call::Call;
use crate::error::Error;
use crate::graph::Written;

const OP: &str = "linear";

/// `x weight + bias`, as [`burn::tensor::module::linear`]: `x` is `[.., k]`, `weight` `[k, n]` and `bias` `[n]`, of one element type.
///
/// # Errors
/// If shapes or element types do not fit, the element type is none of f32, f64, f16 and bf16, or the device is not Flex.
pub fn linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Result<Tensor<D>, Error> {
    let (mut dims, [k, n]) = (x.dims(), weight.dims());
    if dims[D - 1] != k {
        return Err(Error::shape(OP, "x", format!("[.., {k}]"), &dims));
    }
    if let Some(bias) = &bias
        && bias.dims() != [n]
    {
        return Err(Error::shape(OP, "bias", format!("[{n}]"), &bias.dims()));
    }
    let rows = dims[..D - 1].iter().product::<usize>();
    let call =
        Call::new(OP).float("x", x.reshape([rows, k]))?.float("weight", weight)?.optional("bias", bias)?;
    let mut results = call.run(|stream, inputs| {
        let options = MatmulOptions { bias: inputs.get("bias"), ..Default::default() };
        let y = matmul(stream, inputs.of("x"), inputs.of("weight"), options)?;
        Ok(Written::of(OP, &[&y])?.with(|stream, inputs, dy| {
            let (x, weight) = (inputs.of("x"), inputs.of("weight"));
            let of_x = MatmulOptions { transpose_b: true, ..Default::default() };
            let of_weight = MatmulOptions { transpose_a: true, ..Default::default() };
            let mut all = Vec::new();
            if inputs.tracked("x") {
                all.push(("x", matmul(stream, dy, weight, of_x)?));
            }
            if inputs.tracked("weight") {
                all.push(("weight", matmul(stream, x, dy, of_weight)?));
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
