//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_ptx::DType;
use warpwright_runtime::{Stream, Tensor};

use super::nested::{
    BLOCK, DequantizeNestedArgs, DequantizeNestedDesc, QuantizeNestedArgs, QuantizeNestedDesc,
    QuantizedNested, workspace_len,
};
use super::{
    DequantizeArgs, DequantizeDesc, NibbleOrder, QuantizeArgs, QuantizeDesc, Scheme, groups, packed_bytes,
};
use crate::Error;
use crate::plan::PlanCache;

/// A quantized tensor on a device, and all that [`dequantize`] takes.
#[derive(Debug)]
pub struct Quantized {
    /// The values of the codes.
    pub scheme: Scheme,
    /// Elements that share a scale.
    pub group_size: usize,
    /// Order of the codes in a byte.
    pub order: NibbleOrder,
    /// Shape of the tensor that was quantized.
    pub shape: Vec<usize>,
    /// `[(len + 1) / 2]`, u8, two codes a byte.
    pub codes: Tensor,
    /// `[groups]`, the last group may be shorter; f32, or f64 for integer codes of f64.
    pub scales: Tensor,
    /// `[groups]`, u8, for [`Scheme::Int4Asymmetric`].
    pub zero_points: Option<Tensor>,
}

/// Codes of 4 bits for `x`, in groups of `group_size` consecutive elements with a scale each; see the [module](crate::quantize).
///
/// `x` has any shape, of f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::quantize::{NibbleOrder, Scheme};
/// use warpwright::{DType, Device, Tensor, dequantize, quantize};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[-7.0f32, 0.0, 3.0, 7.0], &[2, 2])?;
/// let q = quantize(&stream, &x, Scheme::Int4Symmetric, 4, NibbleOrder::HighFirst)?;
/// assert_eq!((q.codes.shape(), q.scales.shape()), (&[2][..], &[1][..]));
/// let back = dequantize(&stream, &q, DType::F32)?;
/// assert_eq!(back.to_vec_on::<f32>(&stream)?, [-7.0, 0.0, 3.0, 7.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the element type is none of those or `group_size` is 0. [`Error::Runtime`] if memory runs out.
pub fn quantize(
    stream: &Stream,
    x: &Tensor,
    scheme: Scheme,
    group_size: usize,
    order: NibbleOrder,
) -> Result<Quantized, Error> {
    static PLANS: PlanCache<QuantizeDesc> = PlanCache::new();
    let (dtype, len) = (x.dtype(), x.len());
    let desc = QuantizeDesc { scheme, dtype, group_size, order, len };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let groups = groups(len, group_size);
    let mut codes = Tensor::empty_on(stream, DType::U8, &[packed_bytes(len)])?;
    let mut scales = Tensor::empty_on(stream, scheme.scale_dtype(dtype), &[groups])?;
    let mut zero_points =
        scheme.has_zero_points().then(|| Tensor::empty_on(stream, DType::U8, &[groups])).transpose()?;
    let args = QuantizeArgs {
        x: x.as_ref(),
        codes: codes.as_mut(),
        scales: scales.as_mut(),
        zero_points: zero_points.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok(Quantized { scheme, group_size, order, shape: x.shape().to_vec(), codes, scales, zero_points })
}

/// The elements that `q` stands for, of its shape, as `dtype`: f64 for integer codes with f64 scales, any of f32, f64, f16 and bf16
/// for others.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::quantize::{NibbleOrder, Scheme};
/// use warpwright::{DType, Device, Tensor, dequantize, quantize};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[-2.0f32, 2.0, 0.0], &[3])?;
/// let q = quantize(&stream, &x, Scheme::Nf4, 64, NibbleOrder::HighFirst)?;
/// let back = dequantize(&stream, &q, DType::F32)?;
/// assert_eq!(back.to_vec_on::<f32>(&stream)?, [-2.0, 2.0, 0.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `dtype` does not go with the scales. [`Error::Runtime`] if the tensors do not fit each other, or memory runs
/// out.
pub fn dequantize(stream: &Stream, q: &Quantized, dtype: DType) -> Result<Tensor, Error> {
    static PLANS: PlanCache<DequantizeDesc> = PlanCache::new();
    let len = q.shape.iter().product();
    let desc = DequantizeDesc { scheme: q.scheme, dtype, group_size: q.group_size, order: q.order, len };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut y = Tensor::empty_on(stream, dtype, &q.shape)?;
    let args = DequantizeArgs {
        codes: q.codes.as_ref(),
        scales: q.scales.as_ref(),
        zero_points: q.zero_points.as_ref().map(Tensor::as_ref),
        y: y.as_mut(),
    };
    plan.launch(stream, args)?;
    Ok(y)
}

/// Codes of 8 bits for the scales of NF4 and FP4, in blocks of 256 (the double quantization of Dettmers et al. 2023,
/// arXiv:2305.14314).
///
/// `absmax` is `[len]` in f32: the `scales` of a [`Quantized`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, dequantize_nested, quantize_nested};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let absmax = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], &[4])?;
/// let q = quantize_nested(&stream, &absmax)?;
/// let back = dequantize_nested(&stream, &q)?.to_vec_on::<f32>(&stream)?;
/// assert!(back.iter().zip(1u8..).all(|(back, x)| (back - f32::from(x)).abs() < 0.05), "{back:?}");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Runtime`] if `absmax` is not f32, or memory runs out.
pub fn quantize_nested(stream: &Stream, absmax: &Tensor) -> Result<QuantizedNested, Error> {
    static PLANS: PlanCache<QuantizeNestedDesc> = PlanCache::new();
    let len = absmax.len();
    let plan = PLANS.get(&QuantizeNestedDesc { len }, stream.device().target())?;
    let mut codes = Tensor::empty_on(stream, DType::U8, &[len])?;
    let mut nested_absmax = Tensor::empty_on(stream, DType::F32, &[groups(len, BLOCK)])?;
    let mut offset = Tensor::empty_on(stream, DType::F32, &[1])?;
    let mut workspace = Tensor::empty_on(stream, DType::F64, &[workspace_len()])?;
    let args = QuantizeNestedArgs {
        absmax: absmax.as_ref(),
        codes: codes.as_mut(),
        nested_absmax: nested_absmax.as_mut(),
        offset: offset.as_mut(),
        workspace: workspace.as_mut(),
    };
    plan.launch(stream, args)?;
    Ok(QuantizedNested { codes, nested_absmax, offset })
}

/// The scales that nested statistics stand for, `[len]` in f32: the inverse of [`quantize_nested`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, dequantize_nested, quantize_nested};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let absmax = Tensor::from_slice(&device, &[2.5f32; 3], &[3])?;
/// let q = quantize_nested(&stream, &absmax)?;
/// assert_eq!(dequantize_nested(&stream, &q)?.to_vec_on::<f32>(&stream)?, [2.5; 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Runtime`] if the tensors do not fit each other, or memory runs out.
pub fn dequantize_nested(stream: &Stream, q: &QuantizedNested) -> Result<Tensor, Error> {
    static PLANS: PlanCache<DequantizeNestedDesc> = PlanCache::new();
    let len = q.codes.len();
    let plan = PLANS.get(&DequantizeNestedDesc { len }, stream.device().target())?;
    let mut absmax = Tensor::empty_on(stream, DType::F32, &[len])?;
    let args = DequantizeNestedArgs {
        codes: q.codes.as_ref(),
        nested_absmax: q.nested_absmax.as_ref(),
        offset: q.offset.as_ref(),
        absmax: absmax.as_mut(),
    };
    plan.launch(stream, args)?;
    Ok(absmax)
}
