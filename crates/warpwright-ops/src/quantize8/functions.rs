//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_ptx::DType;
use warpwright_runtime::{Stream, Tensor};

use super::{
    CODES, Dequantize8Args, Dequantize8Desc, Format, Problem, Quantize8Args, Quantize8Desc, Scaling,
};
use crate::plan::PlanCache;
use crate::{Error, PlanError};

/// A quantized tensor on a device, and all that [`dequantize8`] takes.
#[derive(Debug)]
pub struct Quantized8 {
    /// The elements that share a scale; [`Scaling::Static`] is [`Scaling::TensorWise`] here, with the scale that was given.
    pub scaling: Scaling,
    /// The codes, of the shape of what was quantized; their type is the format.
    pub q: Tensor,
    /// f32, of the shape that [`Scaling::shape`] gives.
    pub scales: Tensor,
}

/// Rows and elements of a row: the last dimension is that of a row.
fn matrix(shape: &[usize]) -> [usize; 2] {
    match shape {
        [] => [1, 1],
        [rows @ .., cols] => [rows.iter().product(), *cols],
    }
}

fn quantize(
    stream: &Stream,
    x: &Tensor,
    format: Format,
    scaling: Scaling,
    scale: Option<&Tensor>,
) -> Result<(Tensor, Option<Tensor>), Error> {
    static PLANS: PlanCache<Quantize8Desc> = PlanCache::new();
    let [rows, cols] = matrix(x.shape());
    let problem = Problem { format, scaling, dtype: x.dtype(), rows, cols };
    let plan = PLANS.get(&Quantize8Desc { problem }, stream.device().target())?;
    let mut q = Tensor::empty_on(stream, format.dtype(), x.shape())?;
    let found = scale.is_none();
    let shape = scaling.shape(rows, cols);
    let mut scales = found.then(|| Tensor::empty_on(stream, DType::F32, &shape)).transpose()?;
    let mut workspace = plan.workspace(stream)?;
    let args = Quantize8Args {
        x: x.as_ref(),
        scale: scale.map(Tensor::as_ref),
        q: q.as_mut(),
        scales: scales.as_mut().map(Tensor::as_mut),
        workspace: workspace.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok((q, scales))
}

/// 8-bit codes for `x`, f32, f16 or bf16, and the scales that make the most of them; see the [module](crate::quantize8).
///
/// `x` is a matrix `[rows, cols]`, or of any shape, the last dimension of which is that of a row. All of [`Scaling`] but
/// [`Scaling::Static`], for which there is [`quantize8_static`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::quantize8::{Format, Scaling};
/// use warpwright::{DType, Device, Tensor, dequantize8, quantize8};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[-254.0f32, 2.0, 0.5, 127.0], &[2, 2])?;
/// let q = quantize8(&stream, &x, Format::Int8, Scaling::RowWise)?;
/// assert_eq!(q.q.to_vec_on::<i8>(&stream)?, [-127, 1, 0, 127]);
/// assert_eq!(q.scales.to_vec_on::<f32>(&stream)?, [2.0, 1.0]);
/// let back = dequantize8(&stream, &q, DType::F32)?;
/// assert_eq!(back.to_vec_on::<f32>(&stream)?, [-254.0, 2.0, 0.0, 127.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the element type is none of those, for [`Scaling::Static`], or for 8-bit floats on a device before sm_89.
/// [`Error::Runtime`] if memory runs out.
pub fn quantize8(stream: &Stream, x: &Tensor, format: Format, scaling: Scaling) -> Result<Quantized8, Error> {
    if scaling == Scaling::Static {
        let (op, got) = (format.op(true), scaling.name());
        return Err(PlanError::refused(
            op,
            "scaling",
            got,
            "one whose scales are found; see quantize8_static",
        )
        .into());
    }
    let (q, scales) = quantize(stream, x, format, scaling, None)?;
    // There are scales where none was given.
    let scales = scales.map_or_else(|| Tensor::empty_on(stream, DType::F32, &[0]), Ok)?;
    Ok(Quantized8 { scaling, q, scales })
}

/// 8-bit codes for `x` with a scale that is known, f32 `[1]`, positive and finite: `round(x * (1 / scale))`, saturated.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::quantize8::Format;
/// use warpwright::{Device, Tensor, quantize8_static};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, -0.25, 1000.0], &[3])?;
/// let scale = Tensor::from_slice(&device, &[0.5f32], &[1])?;
/// let q = quantize8_static(&stream, &x, Format::Int8, &scale)?;
/// assert_eq!(q.to_vec_on::<i8>(&stream)?, [2, 0, 127]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`quantize8`]; [`Error::Runtime`] if `scale` is not one f32.
pub fn quantize8_static(
    stream: &Stream,
    x: &Tensor,
    format: Format,
    scale: &Tensor,
) -> Result<Tensor, Error> {
    quantize(stream, x, format, Scaling::Static, Some(scale)).map(|(q, _)| q)
}

/// The elements that `q` stands for, of its shape, as `dtype`: f32, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::quantize8::{Format, Scaling};
/// use warpwright::{DType, Device, Tensor, dequantize8, quantize8};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, -3.0, 0.0], &[3])?;
/// let q = quantize8(&stream, &x, Format::Int8, Scaling::TensorWise)?;
/// assert_eq!(dequantize8(&stream, &q, DType::F32)?.to_vec_on::<f32>(&stream)?[1..], [-3.0, 0.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `q` or `dtype` has another type, or for 8-bit floats on a device before sm_89. [`Error::Runtime`] if the scales do
/// not fit the codes, or memory runs out.
pub fn dequantize8(stream: &Stream, q: &Quantized8, dtype: DType) -> Result<Tensor, Error> {
    static PLANS: PlanCache<Dequantize8Desc> = PlanCache::new();
    let Some(format) = Format::of(q.q.dtype()) else {
        let (op, got) = ("dequantize8", q.q.dtype());
        return Err(PlanError::DType { op, tensor: "q", got, expected: &CODES }.into());
    };
    let [rows, cols] = matrix(q.q.shape());
    let problem = Problem { format, scaling: q.scaling, dtype, rows, cols };
    let plan = PLANS.get(&Dequantize8Desc { problem }, stream.device().target())?;
    let mut y = Tensor::empty_on(stream, dtype, q.q.shape())?;
    plan.launch(stream, Dequantize8Args { q: q.q.as_ref(), scales: q.scales.as_ref(), y: y.as_mut() })?;
    Ok(y)
}
