//! Products with 4-bit weights as Python functions.

use pyo3::prelude::*;
use warpwright::DType;
use warpwright::matmul_4bit::{
    Matmul4bitArgs, Matmul4bitBackwardArgs, Matmul4bitBackwardDesc, Matmul4bitDesc, ScaleFormat,
    Weight4bitDesc, WeightFormat,
};
use warpwright::plan::PlanCache;
use warpwright::quantize::nested::BLOCK;

use crate::array::{Array, count, shape_given};
use crate::call::{Call, Form, Named, present};
use crate::error::{self, unknown};
use crate::library::{Maybe, Object};
use crate::quantize::expect_len;

/// The arguments of a weight, as they were given.
struct Given<'a, 'py> {
    codes: &'a Object<'py>,
    scales: &'a Object<'py>,
    shape: &'a Object<'py>,
    format: &'a str,
    group_size: usize,
    zero_points: Maybe<'a, 'py>,
    nested_absmax: Maybe<'a, 'py>,
    offset: Maybe<'a, 'py>,
    tensor_scale: Maybe<'a, 'py>,
    group_index: Maybe<'a, 'py>,
}

/// A weight: what describes it, and its arrays.
struct Weight<'py> {
    desc: Weight4bitDesc,
    codes: Array<'py>,
    scales: Array<'py>,
    zero_points: Option<Array<'py>>,
    nested_absmax: Option<Array<'py>>,
    offset: Option<Array<'py>>,
    tensor_scale: Option<Array<'py>>,
    group_index: Option<Array<'py>>,
}

impl<'py> Weight<'py> {
    fn read(call: &Call<'py>, op: &'static str, given: &Given<'_, 'py>) -> PyResult<Self> {
        let py = given.codes.py();
        let known = WeightFormat::ALL.into_iter().find(|format| format.name() == given.format);
        let expected = "'nf4', 'fp4', 'int4', 'int4_asymmetric', 'mxfp4' or 'nvfp4'";
        let format = known.ok_or_else(|| unknown(py, op, ("format", given.format), expected))?;
        let shape = shape_given(given.shape)?;
        let &[n, k] = shape.as_slice() else {
            return Err(error::shape(py, op, "shape", &[0, 0], &shape));
        };
        let mut scales = call.row_major(call.read(("scales", given.scales))?)?;
        let scale = match (format, scales.dtype) {
            (WeightFormat::Mxfp4, _) => {
                scales.expect_dtype(DType::U8)?;
                ScaleFormat::E8m0
            }
            (WeightFormat::Nvfp4, dtype) => {
                // Bits of e4m3 where a library has no such type.
                if dtype == DType::U8 {
                    scales.dtype = DType::F8E4M3;
                }
                scales.expect_dtype(DType::F8E4M3)?;
                ScaleFormat::E4m3
            }
            (WeightFormat::Nf4 | WeightFormat::Fp4, DType::U8) => ScaleFormat::Nested,
            (_, dtype) => ScaleFormat::Float(dtype),
        };
        let group_size = format.fixed_group_size().unwrap_or(given.group_size);
        let group_index = given.group_index.is_some();
        let desc = Weight4bitDesc { format, scale, n, k, group_size, group_index };
        let too_large = || error::shape(py, op, "shape", &[], &shape);
        n.checked_mul(k).and_then(|len| len.checked_mul(2)).ok_or_else(too_large)?;
        let groups = desc.group_count();
        expect_len(&scales, groups)?;
        let further = |name, given: Maybe<'_, 'py>, dtype, len| match given {
            Some(given) => of_len(call, (name, given), dtype, len).map(Some),
            None => Ok(None),
        };
        Ok(Self {
            desc,
            codes: of_len(call, ("codes", given.codes), DType::U8, desc.code_bytes())?,
            scales,
            zero_points: further("zero_points", given.zero_points, DType::U8, groups)?,
            nested_absmax: further("nested_absmax", given.nested_absmax, DType::F32, groups.div_ceil(BLOCK))?,
            offset: further("offset", given.offset, DType::F32, 1)?,
            tensor_scale: further("tensor_scale", given.tensor_scale, DType::F32, 1)?,
            group_index: further("group_index", given.group_index, DType::I32, k)?,
        })
    }

    fn arrays(&self) -> [Option<&Array<'py>>; 7] {
        let Self { codes, scales, zero_points, nested_absmax, offset, tensor_scale, group_index, .. } = self;
        let further = [zero_points, nested_absmax, offset, tensor_scale, group_index].map(Option::as_ref);
        let [zero_points, nested_absmax, offset, tensor_scale, group_index] = further;
        [Some(codes), Some(scales), zero_points, nested_absmax, offset, tensor_scale, group_index]
    }
}

/// An array of this type and so many elements.
fn of_len<'py>(call: &Call<'py>, named: Named<'_, 'py>, dtype: DType, len: usize) -> PyResult<Array<'py>> {
    let array = call.row_major(call.read(named)?)?;
    array.expect_dtype(dtype)?;
    expect_len(&array, len)?;
    Ok(array)
}

/// A call with its rows and its weight.
struct Started<'py> {
    call: Call<'py>,
    x: Array<'py>,
    weight: Weight<'py>,
    /// How many rows there are.
    m: usize,
    /// The shape of the result.
    shape: Vec<usize>,
}

/// Reads rows of the length of one side of the weight, for results of that of the other.
fn start<'py>(
    op: &'static str,
    x: Named<'_, 'py>,
    given: &Given<'_, 'py>,
    sides: impl FnOnce(&Weight4bitDesc) -> [usize; 2],
    stream: Maybe<'_, 'py>,
) -> PyResult<Started<'py>> {
    let (call, x) = Call::new(op, x, stream)?;
    let x = call.row_major(x)?;
    let weight = Weight::read(&call, op, given)?;
    let [from, to] = sides(&weight.desc);
    let rows = &x.shape[..x.shape.len().saturating_sub(1)];
    let shape = [rows, &[to]].concat();
    x.expect_shape(&[rows, &[from]].concat())?;
    let m = rows.iter().product();
    Ok(Started { call, x, weight, m, shape })
}

/// `x W^T + bias` with a weight of 4 bits, as checkpoints store it.
///
/// x: [..., k], float32, float16 or bfloat16. W stands for `shape`, [n, k], of `format`: "nf4" or "fp4", bitsandbytes' codes of the flattened
/// matrix; "int4", low nibble first in [n, ceil(k / 2)] with 8 added, compressed-tensors' `weight_packed` as bytes; "int4_asymmetric", the same
/// with zero points; "mxfp4" and "nvfp4", e2m1. codes: uint8. scales: one for `group_size` elements, of the flattened matrix for nf4 and fp4,
/// otherwise of a row; float32, float16 or bfloat16; uint8 where they are nested, with nested_absmax and offset as `quantize_nested` returns them, and
/// for mxfp4, whose groups are of 32; float8_e4m3fn, or its bits as uint8, for nvfp4, whose groups are of 16. tensor_scale: [1], float32, a factor of
/// every number of nvfp4: `weight_scale_2` of ModelOpt's files, 1 / `weight_global_scale` of compressed-tensors'. zero_points: uint8. group_index:
/// [k], int32, the group of each column of int4 and int4_asymmetric where these are no neighbours, compressed-tensors' `weight_g_idx`. bias: [n], of
/// the type of x. The result is [..., n].
#[pyfunction]
#[pyo3(signature = (x, codes, scales, shape, format="nf4", group_size=64, *, zero_points=None, nested_absmax=None, offset=None, tensor_scale=None, group_index=None, bias=None, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn matmul_4bit<'py>(
    x: &Object<'py>,
    codes: &Object<'py>,
    scales: &Object<'py>,
    shape: &Object<'py>,
    format: &str,
    #[pyo3(from_py_with = count)] group_size: usize,
    zero_points: Maybe<'_, 'py>,
    nested_absmax: Maybe<'_, 'py>,
    offset: Maybe<'_, 'py>,
    tensor_scale: Maybe<'_, 'py>,
    group_index: Maybe<'_, 'py>,
    bias: Maybe<'_, 'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<Matmul4bitDesc> = PlanCache::new();
    const OP: &str = "matmul_4bit";
    let given = Given {
        codes,
        scales,
        shape,
        format,
        group_size,
        zero_points,
        nested_absmax,
        offset,
        tensor_scale,
        group_index,
    };
    let Started { call, x, weight, m, shape } =
        start(OP, ("x", x), &given, |weight| [weight.k, weight.n], stream)?;
    let desc = Matmul4bitDesc { dtype: x.dtype, m, weight: weight.desc, bias: bias.is_some() };
    let plan = call.plan(&PLANS, &desc)?;
    let bias = call.optional(("bias", bias), x.dtype, &[weight.desc.n])?;
    let outputs =
        [Some(call.output(("out", out), &x, Form::RowMajor(x.dtype, &shape))?), call.workspace(&plan, &x)?];
    let [codes, scales, zero_points, nested_absmax, offset, tensor_scale, group_index] = weight.arrays();
    let inputs = [
        Some(&x),
        codes,
        scales,
        zero_points,
        nested_absmax,
        offset,
        tensor_scale,
        group_index,
        bias.as_ref(),
    ];
    let [y, _] = call.run_some(inputs, outputs, move |stream, inputs, [y, workspace]| {
        let [x, weight, scales, zero_points, nested_absmax, offset, tensor_scale, group_index, bias] = inputs;
        let (x, weight, scales, y) = (present(x), present(weight), present(scales), present(y));
        let args = Matmul4bitArgs {
            x,
            weight,
            scales,
            zero_points,
            nested_absmax,
            offset,
            tensor_scale,
            group_index,
            bias,
            y,
            workspace,
        };
        Ok(plan.launch(stream, args)?)
    })?;
    Ok(present(y))
}

/// The gradient of `matmul_4bit` by x: `dy W`, [..., k], of the type of dy, which is [..., n]. The weight is as there.
#[pyfunction]
#[pyo3(signature = (dy, codes, scales, shape, format="nf4", group_size=64, *, zero_points=None, nested_absmax=None, offset=None, tensor_scale=None, group_index=None, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn matmul_4bit_backward<'py>(
    dy: &Object<'py>,
    codes: &Object<'py>,
    scales: &Object<'py>,
    shape: &Object<'py>,
    format: &str,
    #[pyo3(from_py_with = count)] group_size: usize,
    zero_points: Maybe<'_, 'py>,
    nested_absmax: Maybe<'_, 'py>,
    offset: Maybe<'_, 'py>,
    tensor_scale: Maybe<'_, 'py>,
    group_index: Maybe<'_, 'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<Matmul4bitBackwardDesc> = PlanCache::new();
    const OP: &str = "matmul_4bit_backward";
    let given = Given {
        codes,
        scales,
        shape,
        format,
        group_size,
        zero_points,
        nested_absmax,
        offset,
        tensor_scale,
        group_index,
    };
    let Started { call, x: dy, weight, m, shape } =
        start(OP, ("dy", dy), &given, |weight| [weight.n, weight.k], stream)?;
    let plan = call.plan(&PLANS, &Matmul4bitBackwardDesc { dtype: dy.dtype, m, weight: weight.desc })?;
    let outputs = [
        Some(call.output(("out", out), &dy, Form::RowMajor(dy.dtype, &shape))?),
        call.workspace(&plan, &dy)?,
    ];
    let [codes, scales, zero_points, nested_absmax, offset, tensor_scale, group_index] = weight.arrays();
    let inputs = [Some(&dy), codes, scales, zero_points, nested_absmax, offset, tensor_scale, group_index];
    let [dx, _] = call.run_some(inputs, outputs, move |stream, inputs, [dx, workspace]| {
        let [dy, weight, scales, zero_points, nested_absmax, offset, tensor_scale, group_index] = inputs;
        let (dy, weight, scales, dx) = (present(dy), present(weight), present(scales), present(dx));
        let args = Matmul4bitBackwardArgs {
            dy,
            weight,
            scales,
            zero_points,
            nested_absmax,
            offset,
            tensor_scale,
            group_index,
            dx,
            workspace,
        };
        Ok(plan.launch(stream, args)?)
    })?;
    Ok(present(dx))
}
