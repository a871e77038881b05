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

/// A quantized tensor on a device, and what is needed to read it.
#[derive(Debug)]
pub struct Quantized {
    /// What a code stands for.
    pub scheme: Scheme,
    /// Elements that share a scale.
    pub group_size: usize,
    /// Order of the codes in a byte.
    pub order: NibbleOrder,
    /// Shape of the tensor that was quantized.
    pub shape: Vec<usize>,
    /// u8, two codes a byte.
    pub codes: Tensor,
    /// One a group.
    pub scales: Tensor,
    /// u8, one a group, for [`Scheme::Int4Asymmetric`].
    pub zero_points: Option<Tensor>,
}

/// Quantizes `x` in groups of `group_size` consecutive elements.
///
/// # Errors
/// The element type is not a float, `group_size` is 0, or memory runs out.
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

/// The elements that `q` stands for, as `dtype`. Integer codes with f64 scales give f64 elements, others any float type.
///
/// # Errors
/// `dtype` does not go with the scales, or memory runs out.
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

/// Quantizes block maxima (the `scales` of NF4 and FP4) to 8 bits.
///
/// # Errors
/// `absmax` is not f32, or memory runs out.
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

/// The block maxima that nested statistics stand for.
///
/// # Errors
/// Memory runs out.
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
