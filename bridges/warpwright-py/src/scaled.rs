//! 8-bit quantization and products of 8-bit matrices as Python functions.

use pyo3::prelude::*;
use warpwright::DType;
use warpwright::activation::Activation;
use warpwright::dynamic_map::Map;
use warpwright::plan::PlanCache;
use warpwright::quantize_dynamic::{
    DequantizeDynamicArgs, DequantizeDynamicDesc, Problem as Blocks, QuantizeDynamicArgs, QuantizeDynamicDesc,
};
use warpwright::quantize8::{
    CODES, Dequantize8Args, Dequantize8Desc, Format, Problem as Matrix, Quantize8Args, Quantize8Desc, Scaling,
};
use warpwright::scaled_gemm::{Accumulation, ScaledGemmArgs, ScaledGemmDesc};

use crate::array::{Array, Site, dtype_given};
use crate::call::{Call, Form, present};
use crate::error;
use crate::error::unknown;
use crate::library::{Maybe, Object};
use crate::matmul::{activation_of, expect_matrix};

fn scaling_of(py: Python<'_>, op: &'static str, parameter: &'static str, name: &str) -> PyResult<Scaling> {
    let known = Scaling::from_name(name).filter(|scaling| *scaling != Scaling::Static);
    known.ok_or_else(|| unknown(py, op, (parameter, name), "'tensor', 'row', '1x128' or '128x128'"))
}

/// The format of an array of codes.
fn format_of(array: &Array<'_>) -> PyResult<Format> {
    Format::of(array.dtype).ok_or_else(|| {
        let Site { op, argument } = array.site;
        error::dtype(array.object.py(), op, argument, &CODES, array.dtype.name())
    })
}

/// Rows and elements of a row: the last dimension is that of a row.
fn matrix(array: &Array<'_>) -> [usize; 2] {
    match &*array.shape {
        [] => [1, 1],
        [rows @ .., cols] => [rows.iter().product(), *cols],
    }
}

/// Scales in the order in which they lie, whatever their shape.
fn scales<'py>(
    call: &Call<'py>,
    named: (&'static str, &Object<'py>),
    shape: &[usize],
) -> PyResult<Array<'py>> {
    let array = call.read(named)?;
    array.expect_dtype(DType::F32)?;
    if array.len() != shape.iter().product::<usize>() {
        array.expect_shape(shape)?;
    }
    call.row_major(array)
}

/// 8-bit codes for x and their scales: `x = codes * scales`, nearly.
///
/// x: float32, float16 or bfloat16; the last dimension is that of a row. format: "e4m3", "e5m2" (from sm_89 on) or "int8". scaling: what
/// a scale is of, "tensor", "row", "1x128" (128 elements of a row) or "128x128". Returns codes of the shape of x (float8_e4m3fn,
/// float8_e5m2 or int8), and scales, float32: [1], [rows], [ceil(cols / 128), rows] or [ceil(rows / 128), ceil(cols / 128)].
#[pyfunction]
#[pyo3(signature = (x, format="e4m3", scaling="row", *, stream=None))]
pub(crate) fn quantize8<'py>(
    x: &Object<'py>,
    format: &str,
    scaling: &str,
    stream: Maybe<'_, 'py>,
) -> PyResult<(Object<'py>, Object<'py>)> {
    static PLANS: PlanCache<Quantize8Desc> = PlanCache::new();
    const OP: &str = "quantize8";
    let py = x.py();
    let known = Format::ALL.into_iter().find(|known| known.name() == format);
    let expected = "'e4m3', 'e5m2' or 'int8'";
    let format = known.ok_or_else(|| unknown(py, OP, ("format", format), expected))?;
    let scaling = scaling_of(py, OP, "scaling", scaling)?;
    let (call, x) = Call::new(OP, ("x", x), stream)?;
    let x = call.row_major(x)?;
    let [rows, cols] = matrix(&x);
    let desc = Quantize8Desc { problem: Matrix { format, scaling, dtype: x.dtype, rows, cols } };
    let plan = call.plan(&PLANS, &desc)?;
    let shape = x.shape.to_vec();
    let outputs = [
        Some(call.output(("codes", None), &x, Form::RowMajor(format.dtype(), &shape))?),
        Some(call.output(("scales", None), &x, Form::RowMajor(DType::F32, &scaling.shape(rows, cols)))?),
        call.workspace(&plan, &x)?,
    ];
    let [q, scales, _] = call.run_some([Some(&x)], outputs, move |stream, [x], [q, scales, workspace]| {
        let (x, q) = (present(x), present(q));
        Ok(plan.launch(stream, Quantize8Args { x, scale: None, q, scales, workspace })?)
    })?;
    Ok((present(q), present(scales)))
}

/// The numbers that codes stand for: `codes * scales`, as `quantize8` returns them.
///
/// codes: float8_e4m3fn, float8_e5m2 or int8; scales: float32, of what `scaling` says; dtype: float32, float16 or bfloat16, by name or as a
/// library has it. Returns an array of the shape of the codes.
#[pyfunction]
#[pyo3(signature = (codes, scales, dtype, scaling="row", *, out=None, stream=None))]
pub(crate) fn dequantize8<'py>(
    codes: &Object<'py>,
    scales: &Object<'py>,
    dtype: &Object<'py>,
    scaling: &str,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<Dequantize8Desc> = PlanCache::new();
    const OP: &str = "dequantize8";
    let dtype = dtype_given(dtype, Site { op: OP, argument: "dtype" })?;
    let scaling = scaling_of(codes.py(), OP, "scaling", scaling)?;
    let (call, q) = Call::new(OP, ("codes", codes), stream)?;
    let (format, q) = (format_of(&q)?, call.row_major(q)?);
    let [rows, cols] = matrix(&q);
    let scales = self::scales(&call, ("scales", scales), &scaling.shape(rows, cols))?;
    let plan =
        call.plan(&PLANS, &Dequantize8Desc { problem: Matrix { format, scaling, dtype, rows, cols } })?;
    let shape = q.shape.to_vec();
    let y = call.output(("out", out), &q, Form::RowMajor(dtype, &shape))?;
    let [y] = call.run(&[q, scales], [y], move |stream, [q, scales], [y]| {
        Ok(plan.launch(stream, Dequantize8Args { q, scales, y })?)
    })?;
    Ok(y)
}

const fn map_of(signed: bool) -> Map {
    if signed { Map::Signed } else { Map::Unsigned }
}

/// 8-bit codes for x by a dynamic map, and the largest magnitudes of blocks: `bitsandbytes.functional.quantize_blockwise`.
///
/// x: float32, float16 or bfloat16. signed: whether the map is the one with both signs. block_size: elements that share a maximum, neighbours in
/// row-major order, 256 or 4096. Returns codes of the shape of x, uint8, and maxima, float32, [ceil(len / block_size)].
#[pyfunction]
#[pyo3(signature = (x, signed=true, block_size=256, *, stream=None))]
pub(crate) fn quantize_dynamic<'py>(
    x: &Object<'py>,
    signed: bool,
    block_size: usize,
    stream: Maybe<'_, 'py>,
) -> PyResult<(Object<'py>, Object<'py>)> {
    static PLANS: PlanCache<QuantizeDynamicDesc> = PlanCache::new();
    let (call, x) = Call::new("quantize_dynamic", ("x", x), stream)?;
    let x = call.row_major(x)?;
    let problem = Blocks { map: map_of(signed), dtype: x.dtype, len: x.len(), block_size };
    let plan = call.plan(&PLANS, &QuantizeDynamicDesc { problem })?;
    let shape = x.shape.to_vec();
    let outputs = [
        call.output(("codes", None), &x, Form::RowMajor(DType::U8, &shape))?,
        call.output(("absmax", None), &x, Form::RowMajor(DType::F32, &[problem.blocks()]))?,
    ];
    let [codes, absmax] = call.run(&[x], outputs, move |stream, [x], [codes, absmax]| {
        Ok(plan.launch(stream, QuantizeDynamicArgs { x, codes, absmax })?)
    })?;
    Ok((codes, absmax))
}

/// The numbers that codes of a dynamic map stand for, as `quantize_dynamic` returns them: `bitsandbytes.functional.dequantize_blockwise`.
///
/// codes: uint8; absmax: float32, [ceil(len / block_size)]; dtype: float32, float16 or bfloat16, by name or as a library has it; signed,
/// block_size: as of `quantize_dynamic`. Returns an array of the shape of the codes.
#[pyfunction]
#[pyo3(signature = (codes, absmax, dtype, signed=true, block_size=256, *, out=None, stream=None))]
pub(crate) fn dequantize_dynamic<'py>(
    codes: &Object<'py>,
    absmax: &Object<'py>,
    dtype: &Object<'py>,
    signed: bool,
    block_size: usize,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<DequantizeDynamicDesc> = PlanCache::new();
    const OP: &str = "dequantize_dynamic";
    let dtype = dtype_given(dtype, Site { op: OP, argument: "dtype" })?;
    let (call, codes) = Call::new(OP, ("codes", codes), stream)?;
    codes.expect_dtype(DType::U8)?;
    let codes = call.row_major(codes)?;
    let problem = Blocks { map: map_of(signed), dtype, len: codes.len(), block_size };
    let plan = call.plan(&PLANS, &DequantizeDynamicDesc { problem })?;
    let absmax = scales(&call, ("absmax", absmax), &[problem.blocks()])?;
    let shape = codes.shape.to_vec();
    let y = call.output(("out", out), &codes, Form::RowMajor(dtype, &shape))?;
    let [y] = call.run(&[codes, absmax], [y], move |stream, [codes, absmax], [y]| {
        Ok(plan.launch(stream, DequantizeDynamicArgs { codes, absmax, y })?)
    })?;
    Ok(y)
}

/// A factor: codes, and scales with what each is of.
struct Factor<'py> {
    codes: Array<'py>,
    format: Format,
    scales: Option<(Scaling, Array<'py>)>,
}

/// `a b^T` of codes with scales or without.
fn product<'py>(
    call: &Call<'py>,
    (a, b): (Factor<'py>, Factor<'py>),
    dtype: DType,
    (bias, activation, accumulation): (Maybe<'_, 'py>, Option<Activation>, Accumulation),
    out: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<ScaledGemmDesc> = PlanCache::new();
    let [m, k] = matrix(&a.codes);
    let n = b.codes.shape[0];
    let desc = ScaledGemmDesc {
        b: b.format,
        scaling_a: a.scales.as_ref().map(|(scaling, _)| *scaling),
        scaling_b: b.scales.as_ref().map(|(scaling, _)| *scaling),
        bias: bias.is_some(),
        activation,
        accumulation,
        ..ScaledGemmDesc::new(a.format, dtype, [m, n, k], Scaling::TensorWise)
    };
    let plan = call.plan(&PLANS, &desc)?;
    let bias = call.optional(("bias", bias), dtype, &[n])?;
    let (rows, _) = a.codes.shape.split_at(a.codes.shape.len() - 1);
    let shape = [rows, &[n]].concat();
    let y = call.output(("out", out), &a.codes, Form::RowMajor(dtype, &shape))?;
    let [scale_a, scale_b] = [&a, &b].map(|factor| factor.scales.as_ref().map(|(_, scales)| scales));
    let inputs = [Some(&a.codes), Some(&b.codes), scale_a, scale_b, bias.as_ref()];
    let [y] = call.run_some(inputs, [Some(y)], move |stream, [a, b, scale_a, scale_b, bias], [y]| {
        let (a, b, y) = (present(a), present(b), present(y));
        Ok(plan.launch(stream, ScaledGemmArgs { a, b, scale_a, scale_b, bias, y })?)
    })?;
    Ok(present(y))
}

/// Codes of the factors, [..., m, k] and [n, k].
fn factors<'py>(call: &Call<'py>, a: Array<'py>, b: &Object<'py>) -> PyResult<(Array<'py>, Array<'py>)> {
    let b = call.read(("b", b))?;
    expect_matrix(&a)?;
    expect_matrix(&b)?;
    b.expect_shape(&[b.shape[0], a.shape[a.shape.len() - 1]])?;
    Ok((call.row_major(a)?, call.row_major(b)?))
}

/// `a b^T` of what codes and scales stand for, or `activation(a b^T + bias)`.
///
/// a: [..., m, k]; b: [n, k], as the weight of a linear layer; float8_e4m3fn or float8_e5m2 (from sm_89 on), or both int8. scale_a, scale_b:
/// float32, of what scaling_a and scaling_b say, as `quantize8` returns them. dtype: of the result, float32, float16 or bfloat16, by name or
/// as a library has it. bias: [n], of that dtype. activation: as `matmul`. accumulation: "promoted", which adds sums of 128 products of floats
/// in float32, or "fast", which leaves sums in the tensor cores of sm_90, which keep 14 bits. The result is [..., m, n].
#[pyfunction]
#[pyo3(signature = (a, b, scale_a, scale_b, dtype, *, scaling_a="row", scaling_b="row", bias=None, activation=None, accumulation="promoted", out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn scaled_matmul<'py>(
    a: &Object<'py>,
    b: &Object<'py>,
    scale_a: &Object<'py>,
    scale_b: &Object<'py>,
    dtype: &Object<'py>,
    scaling_a: &str,
    scaling_b: &str,
    bias: Maybe<'_, 'py>,
    activation: Option<&str>,
    accumulation: &str,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    const OP: &str = "scaled_matmul";
    let py = a.py();
    let dtype = dtype_given(dtype, Site { op: OP, argument: "dtype" })?;
    let of_a = scaling_of(py, OP, "scaling_a", scaling_a)?;
    let of_b = scaling_of(py, OP, "scaling_b", scaling_b)?;
    let activation = activation_of(py, OP, activation)?;
    let accumulation = match accumulation {
        "promoted" => Accumulation::Promoted,
        "fast" => Accumulation::Fast,
        other => return Err(unknown(py, OP, ("accumulation", other), "'promoted' or 'fast'")),
    };
    let (call, a) = Call::new(OP, ("a", a), stream)?;
    let (a, b) = factors(&call, a, b)?;
    let factor = |codes: Array<'py>, scaling: Scaling, named| {
        let (format, [rows, cols]) = (format_of(&codes)?, matrix(&codes));
        let scales = Some((scaling, scales(&call, named, &scaling.shape(rows, cols))?));
        PyResult::Ok(Factor { codes, format, scales })
    };
    let both = (factor(a, of_a, ("scale_a", scale_a))?, factor(b, of_b, ("scale_b", scale_b))?);
    product(&call, both, dtype, (bias, activation, accumulation), out)
}

/// `a b^T` of int8, exactly: int32.
///
/// a: [..., m, k], b: [n, k], int8, with k below 2^17. The result is [..., m, n].
#[pyfunction]
#[pyo3(signature = (a, b, *, out=None, stream=None))]
pub(crate) fn int8_matmul<'py>(
    a: &Object<'py>,
    b: &Object<'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let (call, a) = Call::new("int8_matmul", ("a", a), stream)?;
    a.expect_dtype(DType::I8)?;
    let (a, b) = factors(&call, a, b)?;
    b.expect_dtype(DType::I8)?;
    let factor = |codes| Factor { codes, format: Format::Int8, scales: None };
    let epilogue = (None, None, Accumulation::default());
    product(&call, (factor(a), factor(b)), DType::I32, epilogue, out)
}
