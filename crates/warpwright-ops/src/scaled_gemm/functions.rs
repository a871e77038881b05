//! Free functions: allocate the result, take the plan from a cache, launch.

use warpwright_ptx::DType;
use warpwright_runtime::{Stream, Tensor, TensorRef};

use super::{Accumulation, ScaledGemmArgs, ScaledGemmDesc, op};
use crate::activation::Activation;
use crate::plan::PlanCache;
use crate::quantize8::{CODES, Format, Quantized8, Scaling};
use crate::{Error, PlanError};

/// The epilogue of [`scaled_matmul`], and how sums are kept; the default has neither bias nor function.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScaledMatmulOptions<'a> {
    /// A vector that is added to every row, `[n]`, of the type of the result.
    pub bias: Option<&'a Tensor>,
    /// A function of the sums, after the bias.
    pub activation: Option<Activation>,
    /// How sums of products of 8-bit floats are kept.
    pub accumulation: Accumulation,
}

/// The format of codes, and the product of the dimensions before the last, and that one.
fn matrix(name: &'static str, q: &Tensor) -> Result<(Format, [usize; 2]), PlanError> {
    let Some(format) = Format::of(q.dtype()) else {
        let (op, got) = ("scaled_gemm", q.dtype());
        return Err(PlanError::DType { op, tensor: name, got, expected: &CODES });
    };
    match q.shape() {
        [rows @ .., cols] if !rows.is_empty() => Ok((format, [rows.iter().product(), *cols])),
        shape => {
            Err(PlanError::refused(op(format), name, format!("{shape:?}"), "of at least two dimensions"))
        }
    }
}

/// An operand: its name, codes, and scales with what each is of.
type Operand<'a> = (&'static str, &'a Tensor, Option<(Scaling, TensorRef<'a>)>);

fn product(
    stream: &Stream,
    (name_a, a, scales_a): Operand<'_>,
    (name_b, b, scales_b): Operand<'_>,
    dtype: DType,
    options: ScaledMatmulOptions<'_>,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<ScaledGemmDesc> = PlanCache::new();
    let (format_a, [m, k]) = matrix(name_a, a)?;
    let (format_b, [n, k_b]) = matrix(name_b, b)?;
    if k != k_b || b.shape().len() != 2 {
        let got = format!("{:?}", b.shape());
        return Err(
            PlanError::refused(op(format_a), name_b, got, "[n, k] with the last dimension of a").into()
        );
    }
    let desc = ScaledGemmDesc {
        b: format_b,
        scaling_a: scales_a.map(|(scaling, _)| scaling),
        scaling_b: scales_b.map(|(scaling, _)| scaling),
        bias: options.bias.is_some(),
        activation: options.activation,
        accumulation: options.accumulation,
        ..ScaledGemmDesc::new(format_a, dtype, [m, n, k], Scaling::TensorWise)
    };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut shape = a.shape().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = n;
    }
    let mut y = Tensor::empty_on(stream, dtype, &shape)?;
    let args = ScaledGemmArgs {
        a: a.as_ref(),
        b: b.as_ref(),
        scale_a: scales_a.map(|(_, scales)| scales),
        scale_b: scales_b.map(|(_, scales)| scales),
        bias: options.bias.map(Tensor::as_ref),
        y: y.as_mut(),
    };
    plan.launch(stream, args)?;
    Ok(y)
}

/// `y = activation(a b^T + bias)` of what `a` and `b` stand for; see the [module](crate::scaled_gemm).
///
/// `a` is `[.., m, k]` and `b` `[n, k]`, as the weight of a linear layer; scales may be of different parts in both. `y` is `[.., m, n]` of
/// `dtype`: f32, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::quantize8::{Format, Scaling};
/// use warpwright::{DType, Device, Tensor, quantize8, scaled_matmul};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[127.0f32, 1.0, -2.0, 254.0], &[2, 2])?;
/// let weight = Tensor::from_slice(&device, &[127.0f32, 0.0, 0.0, 127.0, 127.0, 127.0], &[3, 2])?;
/// let [x, weight] = [&x, &weight].map(|x| quantize8(&stream, x, Format::Int8, Scaling::RowWise));
/// let y = scaled_matmul(&stream, &x?, &weight?, DType::F32, Default::default())?;
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [16129.0, 127.0, 16256.0, -254.0, 32258.0, 32004.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if shapes, formats or `dtype` do not go together, or for 8-bit floats on a device before sm_89. [`Error::Runtime`] if
/// scales or bias do not fit, or memory runs out.
pub fn scaled_matmul(
    stream: &Stream,
    a: &Quantized8,
    b: &Quantized8,
    dtype: DType,
    options: ScaledMatmulOptions<'_>,
) -> Result<Tensor, Error> {
    let a = ("a", &a.q, Some((a.scaling, a.scales.as_ref())));
    let b = ("b", &b.q, Some((b.scaling, b.scales.as_ref())));
    product(stream, a, b, dtype, options)
}

/// `y = a b^T` of integers, exactly: `torch._int_mm` with a transposed second operand.
///
/// `a` is `[.., m, k]` and `b` `[n, k]`, both i8; `y` is `[.., m, n]` of i32, and `k` less than 2^17. For
/// scales, and results of f32, f16 or bf16, there is [`scaled_matmul`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, int8_matmul};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let a = Tensor::from_slice(&device, &[1i8, 2, -3, 4], &[2, 2])?;
/// let b = Tensor::from_slice(&device, &[5i8, 6], &[1, 2])?;
/// assert_eq!(int8_matmul(&stream, &a, &b)?.to_vec_on::<i32>(&stream)?, [17, 9]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the shapes do not go together, or a type is not i8. [`Error::Runtime`] if memory runs out.
pub fn int8_matmul(stream: &Stream, a: &Tensor, b: &Tensor) -> Result<Tensor, Error> {
    for (tensor, x) in [("a", a), ("b", b)] {
        if x.dtype() != DType::I8 {
            let (op, got, expected) = (op(Format::Int8), x.dtype(), &[DType::I8]);
            return Err(PlanError::DType { op, tensor, got, expected }.into());
        }
    }
    product(stream, ("a", a, None), ("b", b, None), DType::I32, ScaledMatmulOptions::default())
}
