//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_ptx::DType;
use warpwright_runtime::{Stream, Tensor};

use super::{
    DequantizeDynamicArgs, DequantizeDynamicDesc, Problem, QuantizeDynamicArgs, QuantizeDynamicDesc,
};
use crate::Error;
use crate::dynamic_map::Map;
use crate::plan::PlanCache;

/// A quantized tensor on a device, and all that [`dequantize_dynamic`] takes.
#[derive(Debug)]
pub struct QuantizedDynamic {
    /// The map.
    pub map: Map,
    /// Elements of a block.
    pub block_size: usize,
    /// u8, of the shape of what was quantized.
    pub codes: Tensor,
    /// f32, of each block.
    pub absmax: Tensor,
}

/// 8-bit codes for `x`, f32, f16 or bf16 of any shape, in blocks of `block_size` neighbouring elements, 256 or 4096, and the largest magnitudes
/// of the blocks, f32 `[ceil(len / block_size)]`; see the [module](crate::quantize_dynamic).
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::dynamic_map::Map;
/// use warpwright::{DType, Device, Tensor, dequantize_dynamic, quantize_dynamic};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[4.0f32, 0.0, -1.0, 0.001], &[4])?;
/// let q = quantize_dynamic(&stream, &x, Map::Signed, 256)?;
/// assert_eq!(q.codes.to_vec_on::<u8>(&stream)?[..2], [255, 127]);
/// assert_eq!(q.absmax.to_vec_on::<f32>(&stream)?, [4.0]);
/// let back = dequantize_dynamic(&stream, &q, DType::F32)?.to_vec_on::<f32>(&stream)?;
/// assert_eq!(back[..2], [4.0, 0.0]);
/// assert!((back[2] + 1.0).abs() < 0.03 && (back[3] - 0.001).abs() < 0.0001);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the element type or the block size is none of those. [`Error::Runtime`] if memory runs out.
pub fn quantize_dynamic(
    stream: &Stream,
    x: &Tensor,
    map: Map,
    block_size: usize,
) -> Result<QuantizedDynamic, Error> {
    static PLANS: PlanCache<QuantizeDynamicDesc> = PlanCache::new();
    let problem = Problem { map, dtype: x.dtype(), len: x.len(), block_size };
    let plan = PLANS.get(&QuantizeDynamicDesc { problem }, stream.device().target())?;
    let mut codes = Tensor::empty_on(stream, DType::U8, x.shape())?;
    let mut absmax = Tensor::empty_on(stream, DType::F32, &[problem.blocks()])?;
    let args = QuantizeDynamicArgs { x: x.as_ref(), codes: codes.as_mut(), absmax: absmax.as_mut() };
    plan.launch(stream, args)?;
    Ok(QuantizedDynamic { map, block_size, codes, absmax })
}

/// The elements that `q` stands for, of the shape of its codes, as `dtype`: f32, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::dynamic_map::Map;
/// use warpwright::{DType, Device, Tensor, dequantize_dynamic, quantize_dynamic};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[8.0f32, 0.0, 2.0], &[3])?;
/// let q = quantize_dynamic(&stream, &x, Map::Unsigned, 256)?;
/// let back = dequantize_dynamic(&stream, &q, DType::F32)?.to_vec_on::<f32>(&stream)?;
/// assert_eq!(back[..2], [8.0, 0.0]);
/// assert!((back[2] - 2.0).abs() < 0.03);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `dtype` or the block size is none of those. [`Error::Runtime`] if the codes are not u8, the maxima do not fit them, or
/// memory runs out.
pub fn dequantize_dynamic(stream: &Stream, q: &QuantizedDynamic, dtype: DType) -> Result<Tensor, Error> {
    static PLANS: PlanCache<DequantizeDynamicDesc> = PlanCache::new();
    let problem = Problem { map: q.map, dtype, len: q.codes.len(), block_size: q.block_size };
    let plan = PLANS.get(&DequantizeDynamicDesc { problem }, stream.device().target())?;
    let mut y = Tensor::empty_on(stream, dtype, q.codes.shape())?;
    let args = DequantizeDynamicArgs { codes: q.codes.as_ref(), absmax: q.absmax.as_ref(), y: y.as_mut() };
    plan.launch(stream, args)?;
    Ok(y)
}
