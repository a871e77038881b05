//! Free functions: allocate the result, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::{
    Matmul4bitArgs, Matmul4bitBackwardArgs, Matmul4bitBackwardDesc, Matmul4bitDesc, ScaleFormat,
    Weight4bitDesc, WeightFormat, op,
};
use crate::plan::PlanCache;
use crate::quantize::{Quantized, QuantizedNested, Scheme};
use crate::{Error, PlanError};

/// A weight of 4 bits on a device, as [`matmul_4bit`] takes it: references to the tensors of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Weight4bit<'a> {
    /// The numbers of codes, and how codes lie.
    pub format: WeightFormat,
    /// Rows and columns.
    pub shape: [usize; 2],
    /// Elements that share a scale.
    pub group_size: usize,
    /// u8, two codes a byte.
    pub codes: &'a Tensor,
    /// f32, f16 or bf16; u8 if they are nested or e8m0; e4m3 for [`WeightFormat::Nvfp4`].
    pub scales: &'a Tensor,
    /// u8, one a group, for [`WeightFormat::Int4Asymmetric`].
    pub zero_points: Option<&'a Tensor>,
    /// Maxima and offset of nested scales, `[ceil(groups / 256)]` and `[1]` of f32.
    pub nested: Option<(&'a Tensor, &'a Tensor)>,
    /// `[1]` of f32 for [`WeightFormat::Nvfp4`], a factor of every number: `weight_scale_2` of ModelOpt, the reciprocal of
    /// `weight_global_scale` of compressed-tensors.
    pub tensor_scale: Option<&'a Tensor>,
    /// `[k]` of i32 for [`WeightFormat::Int4`] and [`WeightFormat::Int4Asymmetric`]: the group of each column, where these are no neighbours.
    pub group_index: Option<&'a Tensor>,
}

impl<'a> Weight4bit<'a> {
    /// The codes that [`quantize`](crate::quantize::quantize()) made of a matrix.
    ///
    /// # Errors
    /// [`PlanError::Parameter`] if it was no matrix, has its codes in another order than its format, or was of integers in groups that go
    /// beyond a row.
    pub fn from_quantized(q: &'a Quantized) -> Result<Self, PlanError> {
        let format = match q.scheme {
            Scheme::Nf4 => WeightFormat::Nf4,
            Scheme::Fp4 => WeightFormat::Fp4,
            Scheme::Int4Symmetric => WeightFormat::Int4,
            Scheme::Int4Asymmetric => WeightFormat::Int4Asymmetric,
        };
        let refused =
            |parameter, got: String, expected| PlanError::refused(op(format), parameter, got, expected);
        let &[n, k] = q.shape.as_slice() else {
            return Err(refused("weight", format!("{:?}", q.shape), "of two dimensions"));
        };
        if q.order != format.order() {
            return Err(refused(
                "order",
                format!("{:?}", q.order),
                "high nibble first for nf4 and fp4, else low",
            ));
        }
        let of_rows = k.is_multiple_of(q.group_size) && k.is_multiple_of(2);
        if !(format.is_flat() || of_rows) {
            return Err(refused("group_size", q.group_size.to_string(), "a divisor of k, which is even"));
        }
        Ok(Self {
            format,
            shape: [n, k],
            group_size: q.group_size,
            codes: &q.codes,
            scales: &q.scales,
            zero_points: q.zero_points.as_ref(),
            nested: None,
            tensor_scale: None,
            group_index: None,
        })
    }

    /// The same with the scales nested, as [`quantize_nested`](crate::quantize::quantize_nested) made them of those.
    #[must_use]
    pub fn with_nested(self, nested: &'a QuantizedNested) -> Self {
        Self { scales: &nested.codes, nested: Some((&nested.nested_absmax, &nested.offset)), ..self }
    }

    /// The descriptor.
    fn desc(&self) -> Weight4bitDesc {
        let scale = match (self.format, self.nested) {
            (WeightFormat::Mxfp4, _) => ScaleFormat::E8m0,
            (WeightFormat::Nvfp4, _) => ScaleFormat::E4m3,
            (_, Some(_)) => ScaleFormat::Nested,
            (_, None) => ScaleFormat::Float(self.scales.dtype()),
        };
        let [n, k] = self.shape;
        let group_index = self.group_index.is_some();
        Weight4bitDesc { format: self.format, scale, n, k, group_size: self.group_size, group_index }
    }
}

/// The rows of `x`, whose last extent must be `from`, and its shape with `to` in the place of that.
fn rows(
    op: &'static str,
    (name, x): (&'static str, &Tensor),
    [from, to]: [usize; 2],
) -> Result<(usize, Vec<usize>), PlanError> {
    match x.shape() {
        [rows @ .., last] if *last == from => Ok((rows.iter().product(), [rows, &[to]].concat())),
        shape => {
            let expected = "of the weight's extent in its last dimension";
            Err(PlanError::refused(op, name, format!("{shape:?}"), expected))
        }
    }
}

/// `y = x W^T + bias` with a weight of 4 bits; see the [module](crate::matmul_4bit).
///
/// `x` is `[.., k]` of f32, f16 or bf16, W stands for `[n, k]`, `bias` is `[n]` of the type of `x`, and `y` is `[.., n]`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::matmul_4bit::Weight4bit;
/// use warpwright::quantize::{NibbleOrder, Scheme};
/// use warpwright::{Device, Tensor, matmul_4bit, quantize};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let weight = Tensor::from_slice(&device, &[1.0f32, -1.0, 0.0, 0.5, 0.0, -0.5], &[3, 2])?;
/// let q = quantize(&stream, &weight, Scheme::Nf4, 2, NibbleOrder::HighFirst)?;
/// let x = Tensor::from_slice(&device, &[3.0f32, 1.0], &[1, 2])?;
/// let y = matmul_4bit(&stream, &x, Weight4bit::from_quantized(&q)?, None)?;
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [2.0, 0.5, -0.5]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if shapes, formats and types do not go together. [`Error::Runtime`] if a tensor does not fit, or memory runs out.
pub fn matmul_4bit(
    stream: &Stream,
    x: &Tensor,
    weight: Weight4bit<'_>,
    bias: Option<&Tensor>,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<Matmul4bitDesc> = PlanCache::new();
    let of_weight = weight.desc();
    let (m, shape) = rows(op(weight.format), ("x", x), [of_weight.k, of_weight.n])?;
    let desc = Matmul4bitDesc { dtype: x.dtype(), m, weight: of_weight, bias: bias.is_some() };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut y = Tensor::empty_on(stream, x.dtype(), &shape)?;
    let mut workspace = plan.workspace(stream)?;
    let args = Matmul4bitArgs {
        x: x.as_ref(),
        weight: weight.codes.as_ref(),
        scales: weight.scales.as_ref(),
        zero_points: weight.zero_points.map(Tensor::as_ref),
        nested_absmax: weight.nested.map(|(absmax, _)| absmax.as_ref()),
        offset: weight.nested.map(|(_, offset)| offset.as_ref()),
        tensor_scale: weight.tensor_scale.map(Tensor::as_ref),
        group_index: weight.group_index.map(Tensor::as_ref),
        bias: bias.map(Tensor::as_ref),
        y: y.as_mut(),
        workspace: workspace.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok(y)
}

/// The gradient of [`matmul_4bit`] by `x`: `dx = dy W`, `[.., k]` of the type of `dy`, which is `[.., n]`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::matmul_4bit::{Weight4bit, matmul_4bit_backward};
/// use warpwright::quantize::{NibbleOrder, Scheme};
/// use warpwright::{Device, Tensor, quantize};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let weight = Tensor::from_slice(&device, &[1.0f32, -1.0, 0.0, 0.5], &[2, 2])?;
/// let q = quantize(&stream, &weight, Scheme::Nf4, 2, NibbleOrder::HighFirst)?;
/// let dy = Tensor::from_slice(&device, &[3.0f32, 2.0], &[1, 2])?;
/// let dx = matmul_4bit_backward(&stream, &dy, Weight4bit::from_quantized(&q)?)?;
/// assert_eq!(dx.to_vec_on::<f32>(&stream)?, [3.0, -2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`matmul_4bit`].
pub fn matmul_4bit_backward(stream: &Stream, dy: &Tensor, weight: Weight4bit<'_>) -> Result<Tensor, Error> {
    static PLANS: PlanCache<Matmul4bitBackwardDesc> = PlanCache::new();
    let of_weight = weight.desc();
    let (m, shape) = rows(op(weight.format), ("dy", dy), [of_weight.n, of_weight.k])?;
    let desc = Matmul4bitBackwardDesc { dtype: dy.dtype(), m, weight: of_weight };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut dx = Tensor::empty_on(stream, dy.dtype(), &shape)?;
    let mut workspace = plan.workspace(stream)?;
    let args = Matmul4bitBackwardArgs {
        dy: dy.as_ref(),
        weight: weight.codes.as_ref(),
        scales: weight.scales.as_ref(),
        zero_points: weight.zero_points.map(Tensor::as_ref),
        nested_absmax: weight.nested.map(|(absmax, _)| absmax.as_ref()),
        offset: weight.nested.map(|(_, offset)| offset.as_ref()),
        tensor_scale: weight.tensor_scale.map(Tensor::as_ref),
        group_index: weight.group_index.map(Tensor::as_ref),
        dx: dx.as_mut(),
        workspace: workspace.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok(dx)
}
