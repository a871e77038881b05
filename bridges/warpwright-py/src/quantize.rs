//! Quantization as Python functions.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use warpwright::DType;
use warpwright::plan::PlanCache;
use warpwright::quantize::nested::{
    BLOCK, DequantizeNestedArgs, DequantizeNestedDesc, QuantizeNestedArgs, QuantizeNestedDesc, workspace_len,
};
use warpwright::quantize::{
    DequantizeArgs, DequantizeDesc, NibbleOrder, QuantizeArgs, QuantizeDesc, Scheme, groups, packed_bytes,
};

use crate::array::{Array, Site, count, dtype_given, shape_given};
use crate::call::{Call, Form, present, several};
use crate::error::{self, Class, Problem};
use crate::library::{Maybe, Object};

fn nibble_order(py: Python<'_>, op: &str, order: &str) -> PyResult<NibbleOrder> {
    match order {
        "high_first" => Ok(NibbleOrder::HighFirst),
        "low_first" => Ok(NibbleOrder::LowFirst),
        other => {
            let message = format!("{op}: order is '{other}', expected 'high_first' or 'low_first'");
            let problem = Problem::new(py, Class::Parameter, message).at(op, "order");
            Err(problem.mismatch(("high_first", "low_first"), other).into_err())
        }
    }
}

/// How a tensor is cut into groups.
struct Grouping<'a> {
    op: &'static str,
    scheme: Scheme,
    size: usize,
    order: &'a str,
}

static QUANTIZE: PlanCache<QuantizeDesc> = PlanCache::new();
static DEQUANTIZE: PlanCache<DequantizeDesc> = PlanCache::new();

fn quantize<'py>(
    g: &Grouping<'_>,
    x: &Object<'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    let (op, scheme, group_size) = (g.op, g.scheme, g.size);
    let py = x.py();
    let order = nibble_order(py, op, g.order)?;
    let (call, x) = Call::new(op, ("x", x), stream)?;
    let x = call.row_major(x)?;
    let (dtype, len) = (x.dtype, x.len());
    let plan = call.plan(&QUANTIZE, &QuantizeDesc { scheme, dtype, group_size, order, len })?;
    let (codes_shape, scales_shape) = ([packed_bytes(len)], [groups(len, group_size)]);
    let zeros = scheme.has_zero_points();
    let out = if zeros {
        several::<3>(op, out)?
    } else {
        let [codes, scales] = several::<2>(op, out)?;
        [codes, scales, None]
    };
    let [to_codes, to_scales, to_zeros] = out.each_ref().map(Option::as_ref);
    let scales_form = Form::RowMajor(scheme.scale_dtype(dtype), &scales_shape);
    let outputs = [
        Some(call.output(("out[0]", to_codes), &x, Form::RowMajor(DType::U8, &codes_shape))?),
        Some(call.output(("out[1]", to_scales), &x, scales_form)?),
        call.optional_output(zeros, ("out[2]", to_zeros), &x, Form::RowMajor(DType::U8, &scales_shape))?,
    ];
    let results = call.run_some([Some(&x)], outputs, move |stream, [x], [codes, scales, zero_points]| {
        let (x, codes, scales) = (present(x), present(codes), present(scales));
        Ok(plan.launch(stream, QuantizeArgs { x, codes, scales, zero_points })?)
    })?;
    PyTuple::new(py, results.into_iter().flatten().collect::<Vec<_>>())
}

/// The caller's wishes for the result of dequantization.
struct Request<'a, 'py> {
    shape: Maybe<'a, 'py>,
    dtype: Maybe<'a, 'py>,
    out: Maybe<'a, 'py>,
    stream: Maybe<'a, 'py>,
}

fn dequantize<'py>(
    g: &Grouping<'_>,
    codes: &Object<'py>,
    scales: &Object<'py>,
    zero_points: Maybe<'_, 'py>,
    request: &Request<'_, 'py>,
) -> PyResult<Object<'py>> {
    let (op, scheme, group_size) = (g.op, g.scheme, g.size);
    let py = codes.py();
    let order = nibble_order(py, op, g.order)?;
    let (call, codes) = Call::new(op, ("codes", codes), request.stream)?;
    let codes = call.row_major(codes)?;
    codes.expect_dtype(DType::U8)?;
    let scales = call.row_major(call.read(("scales", scales))?)?;
    let wanted = request.out.map(|out| call.read(("out", out))).transpose()?;
    let dtype = match (request.dtype, &wanted) {
        (Some(dtype), _) => dtype_given(dtype, Site { op, argument: "dtype" })?,
        (None, Some(out)) => out.dtype,
        (None, None) => scales.dtype,
    };
    let shape = match (request.shape, &wanted) {
        (Some(shape), _) => shape_given(shape)?,
        (None, Some(out)) => out.shape.to_vec(),
        (None, None) => vec![2 * codes.len()],
    };
    let count = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let len = count.ok_or_else(|| error::shape(py, op, "shape", &[], &shape))?;
    expect_len(&codes, packed_bytes(len))?;
    expect_len(&scales, groups(len, group_size))?;
    if DType::FLOATS.contains(&dtype) {
        scales.expect_dtype(scheme.scale_dtype(dtype))?;
    }
    let plan = call.plan(&DEQUANTIZE, &DequantizeDesc { scheme, dtype, group_size, order, len })?;
    let y = call.output(("out", request.out), &codes, Form::RowMajor(dtype, &shape))?;
    let zero_points = match zero_points {
        None => None,
        Some(zero_points) => {
            let zero_points = call.row_major(call.read(("zero_points", zero_points))?)?;
            zero_points.expect_dtype(DType::U8)?;
            expect_len(&zero_points, groups(len, group_size))?;
            Some(zero_points)
        }
    };
    let inputs = [Some(&codes), Some(&scales), zero_points.as_ref()];
    let [y] = call.run_some(inputs, [Some(y)], move |stream, [codes, scales, zero_points], [y]| {
        let (codes, scales, y) = (present(codes), present(scales), present(y));
        Ok(plan.launch(stream, DequantizeArgs { codes, scales, zero_points, y })?)
    })?;
    Ok(present(y))
}

pub(crate) fn expect_len(array: &Array<'_>, expected: usize) -> PyResult<()> {
    let got = array.len();
    if got == expected {
        return Ok(());
    }
    let Site { op, argument } = array.site;
    let message = format!("{op}: {argument} has {got} elements, expected {expected}");
    let problem = Problem::new(array.object.py(), Class::Shape, message).at(op, argument);
    Err(problem.mismatch(expected, got).into_err())
}

macro_rules! schemes {
    ($($quantize:ident, $dequantize:ident => $scheme:ident, $what:literal;)*) => {$(
        #[doc = concat!("4-bit quantization: ", $what)]
        ///
        /// x: float32, float64, float16 or bfloat16, any shape, n elements in row-major order; every `group_size` of them
        /// share a scale. Returns (codes, scales): uint8 [ceil(n / 2)], two codes a byte, and float32 (float64 for int4 of
        /// float64) [ceil(n / group_size)]. `order` says which half of a byte comes first: 'high_first' as in
        /// bitsandbytes, or 'low_first'. `out` is a pair.
        #[pyfunction]
        #[pyo3(signature = (x, group_size=64, *, order="high_first", out=None, stream=None))]
        pub(crate) fn $quantize<'py>(
            x: &Object<'py>,
            #[pyo3(from_py_with = count)] group_size: usize,
            order: &str,
            out: Maybe<'_, 'py>,
            stream: Maybe<'_, 'py>,
        ) -> PyResult<Bound<'py, PyTuple>> {
            let g = Grouping { op: stringify!($quantize), scheme: Scheme::$scheme, size: group_size, order };
            quantize(&g, x, out, stream)
        }

        #[doc = concat!("The elements that 4-bit codes stand for: ", $what)]
        ///
        /// codes: uint8, ceil(n / 2) bytes of any shape; scales: one a group; both as the quantizing function returns them.
        /// Returns n elements of `shape` (one dimension of two elements a byte without it) and `dtype` (that of the scales
        /// without it); both default to those of `out`.
        #[pyfunction]
        #[pyo3(signature = (codes, scales, shape=None, group_size=64, *, dtype=None, order="high_first", out=None, stream=None))]
        #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
        pub(crate) fn $dequantize<'py>(
            codes: &Object<'py>,
            scales: &Object<'py>,
            shape: Maybe<'_, 'py>,
            #[pyo3(from_py_with = count)] group_size: usize,
            dtype: Maybe<'_, 'py>,
            order: &str,
            out: Maybe<'_, 'py>,
            stream: Maybe<'_, 'py>,
        ) -> PyResult<Object<'py>> {
            let g = Grouping { op: stringify!($dequantize), scheme: Scheme::$scheme, size: group_size, order };
            dequantize(&g, codes, scales, None, &Request { shape, dtype, out, stream })
        }
    )*};
}

schemes! {
    quantize_nf4, dequantize_nf4 => Nf4, "NF4 blocks as bitsandbytes stores them; a scale is the block's largest magnitude.";
    quantize_fp4, dequantize_fp4 => Fp4, "FP4 blocks as bitsandbytes stores them; a scale is the block's largest magnitude.";
    quantize_int4, dequantize_int4 => Int4Symmetric, "integers from -8 to 7, stored plus 8; a scale is the group's largest magnitude over 7.";
}

/// 4-bit quantization: integers from 0 to 15 with a zero point per group, so that zero is always represented exactly.
///
/// x: float32, float64, float16 or bfloat16, any shape, n elements in row-major order; every `group_size` of them share a
/// scale. Returns (codes, scales, zero_points): uint8 [ceil(n / 2)], float32 (float64 for float64) and uint8
/// [ceil(n / group_size)]. `out` is a triple.
#[pyfunction]
#[pyo3(signature = (x, group_size=64, *, order="high_first", out=None, stream=None))]
pub(crate) fn quantize_int4_asymmetric<'py>(
    x: &Object<'py>,
    #[pyo3(from_py_with = count)] group_size: usize,
    order: &str,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    let g =
        Grouping { op: "quantize_int4_asymmetric", scheme: Scheme::Int4Asymmetric, size: group_size, order };
    quantize(&g, x, out, stream)
}

/// The elements that 4-bit codes with zero points stand for: `(code - zero_point) scale`.
///
/// codes: uint8, ceil(n / 2) bytes of any shape; scales and zero_points: one a group; all as `quantize_int4_asymmetric`
/// returns them. Returns n elements of `shape` (one dimension of two elements a byte without it) and `dtype` (that of the
/// scales without it); both default to those of `out`.
#[pyfunction]
#[pyo3(signature = (codes, scales, zero_points, shape=None, group_size=64, *, dtype=None, order="high_first", out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn dequantize_int4_asymmetric<'py>(
    codes: &Object<'py>,
    scales: &Object<'py>,
    zero_points: &Object<'py>,
    shape: Maybe<'_, 'py>,
    #[pyo3(from_py_with = count)] group_size: usize,
    dtype: Maybe<'_, 'py>,
    order: &str,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let op = "dequantize_int4_asymmetric";
    let g = Grouping { op, scheme: Scheme::Int4Asymmetric, size: group_size, order };
    dequantize(&g, codes, scales, Some(zero_points), &Request { shape, dtype, out, stream })
}

/// Nested statistics ("double quantization"): block maxima in 8 bits, as bitsandbytes stores them.
///
/// absmax: float32, n elements (the scales of NF4 or FP4). Returns (codes, nested_absmax, offset): uint8 [n], float32
/// [ceil(n / 256)] and float32 [1]. `out` is a triple.
#[pyfunction]
#[pyo3(signature = (absmax, *, out=None, stream=None))]
pub(crate) fn quantize_nested<'py>(
    absmax: &Object<'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    static PLANS: PlanCache<QuantizeNestedDesc> = PlanCache::new();
    const OP: &str = "quantize_nested";
    let py = absmax.py();
    let (call, absmax) = Call::new(OP, ("absmax", absmax), stream)?;
    let absmax = call.row_major(absmax)?;
    absmax.expect_dtype(DType::F32)?;
    let desc = QuantizeNestedDesc { len: absmax.len() };
    let plan = call.plan(&PLANS, &desc)?;
    let out = several::<3>(OP, out)?;
    let shapes = [[desc.len], [groups(desc.len, BLOCK)], [1], [workspace_len()]];
    let form = |dtype, i: usize| Form::RowMajor(dtype, &shapes[i]);
    let outputs = [
        call.output(("out[0]", out[0].as_ref()), &absmax, form(DType::U8, 0))?,
        call.output(("out[1]", out[1].as_ref()), &absmax, form(DType::F32, 1))?,
        call.output(("out[2]", out[2].as_ref()), &absmax, form(DType::F32, 2))?,
        call.output(("workspace", None), &absmax, form(DType::F64, 3))?,
    ];
    let [codes, nested_absmax, offset, _] =
        call.run(&[absmax], outputs, move |stream, [absmax], [codes, nested_absmax, offset, workspace]| {
            Ok(plan.launch(stream, QuantizeNestedArgs { absmax, codes, nested_absmax, offset, workspace })?)
        })?;
    PyTuple::new(py, [codes, nested_absmax, offset])
}

/// The block maxima that nested statistics stand for.
///
/// codes: uint8, n elements; nested_absmax: float32 [ceil(n / 256)]; offset: float32 [1]. Returns float32 of the shape of
/// codes.
#[pyfunction]
#[pyo3(signature = (codes, nested_absmax, offset, *, out=None, stream=None))]
pub(crate) fn dequantize_nested<'py>(
    codes: &Object<'py>,
    nested_absmax: &Object<'py>,
    offset: &Object<'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<DequantizeNestedDesc> = PlanCache::new();
    const OP: &str = "dequantize_nested";
    let (call, codes) = Call::new(OP, ("codes", codes), stream)?;
    let codes = call.row_major(codes)?;
    codes.expect_dtype(DType::U8)?;
    let desc = DequantizeNestedDesc { len: codes.len() };
    let nested_absmax = call.row_major(call.read(("nested_absmax", nested_absmax))?)?;
    let offset = call.row_major(call.read(("offset", offset))?)?;
    for (array, len) in [(&nested_absmax, groups(desc.len, BLOCK)), (&offset, 1)] {
        array.expect_dtype(DType::F32)?;
        expect_len(array, len)?;
    }
    let (plan, shape) = (call.plan(&PLANS, &desc)?, codes.shape.to_vec());
    let y = call.output(("out", out), &codes, Form::RowMajor(DType::F32, &shape))?;
    let [y] = call.run(
        &[codes, nested_absmax, offset],
        [y],
        move |stream, [codes, nested_absmax, offset], [absmax]| {
            Ok(plan.launch(stream, DequantizeNestedArgs { codes, nested_absmax, offset, absmax })?)
        },
    )?;
    Ok(y)
}
