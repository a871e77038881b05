//! `append_kv_cache` as a Python function.

use pyo3::prelude::*;
use warpwright::DType;
use warpwright::attention::Paged;
use warpwright::kv_cache::{AppendKvCacheArgs, AppendKvCacheDesc, CacheRotation};
use warpwright::plan::{Layout, PlanCache};
use warpwright::rotary::RotaryTables;

use crate::array::Array;
use crate::attention::{check_places, scales, whole};
use crate::call::{Call, present};
use crate::error::{self, Class, Problem};
use crate::indices::known_i32;
use crate::library::{Maybe, Object};
use crate::rotary::pairing_of;

const OP: &str = "append_kv_cache";

/// The arguments besides keys, values and their caches.
struct Options<'a, 'py> {
    key_lengths: Maybe<'a, 'py>,
    block_table: Maybe<'a, 'py>,
    q: Maybe<'a, 'py>,
    cos: Maybe<'a, 'py>,
    sin: Maybe<'a, 'py>,
    pairing: &'a str,
    rotary_dim: Option<usize>,
    /// Of keys and values of 8-bit floats.
    scales: [Maybe<'a, 'py>; 2],
    out: Maybe<'a, 'py>,
    stream: Maybe<'a, 'py>,
}

/// The tables of a rotation, and what it is.
type Angles<'py> = ([Array<'py>; 2], CacheRotation);

/// How keys with heads of `head_dim` elements are rotated, if they are.
fn angles<'py>(call: &Call<'py>, head_dim: usize, o: &Options<'_, 'py>) -> PyResult<Option<Angles<'py>>> {
    let (cos, sin) = match (o.cos, o.sin) {
        (Some(cos), Some(sin)) => (cos, sin),
        (None, None) => return Ok(None),
        (Some(given), _) | (_, Some(given)) => {
            let missing = if o.cos.is_none() { "cos" } else { "sin" };
            let message = format!("{OP}: {missing} is missing beside the other");
            return Err(Problem::new(given.py(), Class::Argument, message).at(OP, missing).into_err());
        }
    };
    let pairing = pairing_of(cos.py(), OP, o.pairing)?;
    let mut cos = call.row_major(call.read(("cos", cos))?)?;
    let mut sin = call.small(("sin", sin), cos.dtype, &cos.shape)?;
    let [rows, width] = cos.extents()?;
    let rotary_dim = o.rotary_dim.unwrap_or(head_dim);
    if width != rotary_dim && width.checked_mul(2) != Some(rotary_dim) {
        return Err(error::shape(cos.object.py(), OP, "cos", &[rows, rotary_dim / 2], &cos.shape));
    }
    (cos.shaped, sin.shaped) = (true, true);
    let tables = RotaryTables { dtype: cos.dtype, batch: 1, rows, repeated: width == rotary_dim };
    Ok(Some(([cos, sin], CacheRotation { pairing, rotary_dim, tables })))
}

/// Checks key lengths and block table, where they are to be looked at.
fn check<'py>(
    call: &Call<'py>,
    (key_lengths, block_table): (Option<&Array<'py>>, Option<&Array<'py>>),
    desc: &AppendKvCacheDesc,
) -> PyResult<()> {
    let lengths = match key_lengths {
        Some(array) => known_i32(array, call.stream())?,
        None => Some(vec![i32::try_from(desc.k.shape[1]).unwrap_or(i32::MAX); desc.k.shape[0]]),
    };
    let Some(lengths) = lengths else { return Ok(()) };
    check_places(call, &lengths, block_table.zip(desc.paged), desc.k_cache.shape)
}

fn append<'py>(
    [k, v]: [&Object<'py>; 2],
    [k_cache, v_cache]: [&Object<'py>; 2],
    o: &Options<'_, 'py>,
) -> PyResult<Option<Object<'py>>> {
    static PLANS: PlanCache<AppendKvCacheDesc> = PlanCache::new();
    let (call, k) = Call::new(OP, ("k", k), o.stream)?;
    let k = call.shaped(k)?;
    let of_k = k.layout()?;
    let [batch, steps, heads, head_dim] = of_k.shape;
    let further = |argument, object| -> PyResult<Array<'py>> {
        let array = call.read((argument, object))?;
        array.expect_dtype(k.dtype)?;
        call.shaped(array)
    };
    let v = further("v", v)?;
    let of_v = v.layout()?;
    let value_dim = of_v.shape[3];
    v.expect_shape(&[batch, steps, heads, value_dim])?;
    let q = o.q.map(|q| further("q", q)).transpose()?;
    let of_q = q.as_ref().map(|q| q.layout()).transpose()?;
    if let Some((q, of_q)) = q.as_ref().zip(of_q) {
        q.expect_shape(&[batch, steps, of_q.shape[2], head_dim])?;
    }
    let angles = angles(&call, head_dim, o)?;
    if q.is_some() && angles.is_none() {
        let message = format!("{OP}: q is given without cos and sin, by which it is rotated");
        return Err(Problem::new(k.object.py(), Class::Argument, message).at(OP, "q").into_err());
    }
    let key_lengths = whole(&call, "key_lengths", o.key_lengths, DType::I32)?;
    let block_table = whole(&call, "block_table", o.block_table, DType::I32)?;
    if let Some(lengths) = &key_lengths {
        lengths.expect_shape(&[batch])?;
    }
    let paged = block_table.as_ref().map(|table| table.extents().map(|[_, pages]| Paged { pages }));
    let paged = paged.transpose()?;
    if let Some((table, paged)) = block_table.as_ref().zip(paged) {
        table.expect_shape(&[batch, paged.pages])?;
    }
    let cache = |argument, object| -> PyResult<Array<'py>> {
        let array = call.read((argument, object))?;
        if !array.dtype.is_float8() {
            array.expect_dtype(k.dtype)?;
        }
        Ok(array)
    };
    let (k_cache, v_cache) = (cache("k_cache", k_cache)?, cache("v_cache", v_cache)?);
    let caches = [("k_cache", k_cache.dtype), ("v_cache", v_cache.dtype)];
    let ([k_scale, v_scale], float8) = scales((&call, OP), caches, o.scales, heads)?;
    let [outer, rows, ..]: [usize; 4] = k_cache.extents()?;
    let outer = if paged.is_some() { outer } else { batch };
    let (to_k, of_k_cache) = call.updated_strided(k_cache, &[outer, rows, heads, head_dim])?;
    let (to_v, of_v_cache) = call.updated_strided(v_cache, &[outer, rows, heads, value_dim])?;
    let rotated = of_q.map(|of_q| {
        let (y, strides) = call.strided_output(("out", o.out), &k, &of_q.shape)?;
        PyResult::Ok((y, Layout { strides: strides[..].try_into().unwrap_or_default(), ..of_q }))
    });
    let (y, of_y) = rotated.transpose()?.unzip();
    let (tables, rotation) = angles.unzip();
    let desc = AppendKvCacheDesc {
        dtype: k.dtype,
        q: of_q.zip(of_y).map(|(from, to)| [from, to]),
        k: of_k,
        v: of_v,
        k_cache: of_k_cache,
        v_cache: of_v_cache,
        rotation,
        key_lengths: key_lengths.is_some(),
        paged,
        float8,
    };
    check(&call, (key_lengths.as_ref(), block_table.as_ref()), &desc)?;
    let plan = call.plan(&PLANS, &desc)?;
    let [cos, sin] = [0, 1].map(|which| tables.as_ref().map(|tables| &tables[which]));
    let of_cache = [&key_lengths, &block_table, &k_scale, &v_scale].map(Option::as_ref);
    let [key_lengths, block_table, k_scale, v_scale] = of_cache;
    let inputs = [q.as_ref(), Some(&k), Some(&v), cos, sin, key_lengths, block_table, k_scale, v_scale];
    let outputs = [y, Some(to_k), Some(to_v)];
    let [y, ..] = call.run_some(inputs, outputs, move |stream, inputs, [q_rotated, k_cache, v_cache]| {
        let [q, k, v, cos, sin, key_lengths, block_table, k_scale, v_scale] = inputs;
        let (k, v, k_cache, v_cache) = (present(k), present(v), present(k_cache), present(v_cache));
        let args = AppendKvCacheArgs {
            q,
            k,
            v,
            cos,
            sin,
            key_lengths,
            block_table,
            k_scale,
            v_scale,
            q_rotated,
            k_cache,
            v_cache,
        };
        Ok(plan.launch(stream, args)?)
    })?;
    Ok(y)
}

/// Writes the next keys and values of sequences to the cache that `attention` reads, with rotary position embedding in the same launch.
///
/// k, v: [batch, steps, num_kv_heads, head_dim], of which v may have another head_dim; float32, float64, float16 or bfloat16, any strides
/// whose last is 1 (else they are copied). k_cache, v_cache: [batch, capacity, num_kv_heads, head_dim], written in place, any strides whose
/// last is 1. key_lengths: int32, [batch], the keys of each sequence with the new ones, as attention takes them: the last new token is the last key.
/// Without, the new tokens are all that a sequence has. block_table: int32, [batch, pages of a sequence], where k_cache and v_cache are
/// pages [pages, rows, num_kv_heads, head_dim] with rows a power of two from 16 on.
///
/// k_cache and v_cache may be float8_e4m3fn beside k and v of float16 or bfloat16, from sm_89 on: elements are divided by k_scale or v_scale,
/// float32, [1] or [num_kv_heads], and rounded to nearest even; what is beyond 448 becomes 448, and NaN stays.
///
/// cos, sin: [rows, rotary_dim / 2], or [rows, rotary_dim] with each number twice, float32 or the dtype of k: keys are rotated by the angle of
/// their position. pairing, rotary_dim: as of `rotary_embedding`. q: [batch, steps, heads, head_dim], rotated by the same angles; then the result is
/// the rotated queries, in row-major order or in `out`, which may be q itself. Otherwise it is None. A position without a row gives NaN.
///
/// On a GPU tokens without a place are not written: of a negative position (a sequence of length 0 keeps its place in the batch), behind the
/// last key that has a place, or in a page that there is not. On the host such lengths and pages are refused, but for lengths from 0 on; see
/// `validate_indices`. Lengths and pages are read on the GPU, so that a CUDA graph can run again with others.
#[pyfunction]
#[pyo3(signature = (k, v, k_cache, v_cache, *, key_lengths=None, block_table=None, q=None, cos=None, sin=None, pairing="half", rotary_dim=None, k_scale=None, v_scale=None, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn append_kv_cache<'py>(
    k: &Object<'py>,
    v: &Object<'py>,
    k_cache: &Object<'py>,
    v_cache: &Object<'py>,
    key_lengths: Maybe<'_, 'py>,
    block_table: Maybe<'_, 'py>,
    q: Maybe<'_, 'py>,
    cos: Maybe<'_, 'py>,
    sin: Maybe<'_, 'py>,
    pairing: &str,
    rotary_dim: Option<usize>,
    k_scale: Maybe<'_, 'py>,
    v_scale: Maybe<'_, 'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Option<Object<'py>>> {
    let scales = [k_scale, v_scale];
    let options = Options { key_lengths, block_table, q, cos, sin, pairing, rotary_dim, scales, out, stream };
    append([k, v], [k_cache, v_cache], &options)
}
