//! `attention` as Python functions.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use warpwright::attention::{
    AlibiSlopes, Alignment, AttentionArgs, AttentionBackwardArgs, AttentionBackwardDesc, AttentionDesc,
    AttentionInputs, AttentionOptions, BlockMaskShape, Float8Cache, MASK_TILE, Packed, Paged, Window,
    check_block_mask, check_block_table, check_key_lengths, check_offsets,
};
use warpwright::plan::{Layout, PlanCache, Real};
use warpwright::{DType, PlanError, TensorRef};

use crate::array::Array;
use crate::call::{Call, Form, places, present, several, statistics_dtype};
use crate::error::{Class, Problem, unknown};
use crate::indices::known_i32;
use crate::library::{Maybe, Object};

/// The arguments besides queries, keys and values.
struct Options<'a, 'py> {
    softmax_scale: Option<f64>,
    causal: bool,
    window: (i64, i64),
    alignment: &'a str,
    softcap: Option<f64>,
    bias: Maybe<'a, 'py>,
    slopes: Maybe<'a, 'py>,
    key_lengths: Maybe<'a, 'py>,
    /// Of queries and of keys.
    cu_seqlens: [Maybe<'a, 'py>; 2],
    max_seqlen: [Option<usize>; 2],
    block_table: Maybe<'a, 'py>,
    sinks: Maybe<'a, 'py>,
    dropout_p: f64,
    random: Maybe<'a, 'py>,
    /// Tiles of keys, tiles of queries, and bits.
    block_mask: [Maybe<'a, 'py>; 3],
    stream: Maybe<'a, 'py>,
}

/// Tensors that both directions read.
const INPUTS: usize = 16;

/// A call with its arguments, and what it computes.
struct Started<'py> {
    call: Call<'py>,
    /// In the order of [`AttentionInputs`].
    inputs: [Option<Array<'py>>; INPUTS],
    desc: AttentionDesc,
}

impl<'py> Started<'py> {
    /// The queries, in whose library results are made.
    fn q(&self) -> &Array<'py> {
        present(self.inputs[0].as_ref())
    }
}

/// The tensors that both directions read, in the order of [`Started`].
fn arguments(inputs: [Option<TensorRef<'_>>; INPUTS]) -> AttentionInputs<'_> {
    let [q, k, v, bias, slopes, key_lengths, query_offsets, key_offsets, ..] = inputs;
    let [.., block_table, sinks, random, k_scale, v_scale, key_tiles, query_tiles, mask_bits] = inputs;
    AttentionInputs {
        bias,
        slopes,
        key_lengths,
        query_offsets,
        key_offsets,
        block_table,
        sinks,
        random,
        k_scale,
        v_scale,
        key_tiles,
        query_tiles,
        mask_bits,
        ..AttentionInputs::new(present(q), present(k), present(v))
    }
}

/// A bound of a window; negative is none.
fn bound(py: Python<'_>, op: &'static str, value: i64) -> PyResult<Option<u32>> {
    if value < 0 {
        return Ok(None);
    }
    let beyond = |_| {
        let message = format!("{op}: window reaches {value} keys, expected less than 2^32");
        Problem::new(py, Class::Parameter, message).at(op, "window").mismatch(u32::MAX, value).into_err()
    };
    u32::try_from(value).map(Some).map_err(beyond)
}

fn alignment(py: Python<'_>, op: &'static str, name: &str) -> PyResult<Alignment> {
    match name {
        "bottom_right" => Ok(Alignment::BottomRight),
        "top_left" => Ok(Alignment::TopLeft),
        other => Err(unknown(py, op, ("alignment", other), "'bottom_right' or 'top_left'")),
    }
}

/// A further argument of a type, in row-major order.
pub(crate) fn whole<'py>(
    call: &Call<'py>,
    argument: &'static str,
    object: Maybe<'_, 'py>,
    dtype: DType,
) -> PyResult<Option<Array<'py>>> {
    let Some(object) = object else { return Ok(None) };
    let array = call.read((argument, object))?;
    array.expect_dtype(dtype)?;
    call.row_major(array).map(Some)
}

/// Names of the packed arguments of queries and of keys.
const CU_SEQLENS: [&str; 2] = ["cu_seqlens_q", "cu_seqlens_k"];
const MAX_SEQLEN: [&str; 2] = ["max_seqlen_q", "max_seqlen_k"];

/// Where packed sequences begin and end in tensors of so many rows.
fn packed<'py>(
    call: &Call<'py>,
    q: &Array<'py>,
    rows: [usize; 2],
    o: &Options<'_, 'py>,
) -> PyResult<(Option<Packed>, [Option<Array<'py>>; 2])> {
    let (py, op) = (q.object.py(), q.site.op);
    let refuse = |argument: &str, what: &str| {
        let message = format!("{op}: {argument} {what}");
        Problem::new(py, Class::Argument, message).at(op, argument).into_err()
    };
    let queries = whole(call, CU_SEQLENS[0], o.cu_seqlens[0], DType::I32)?;
    let keys = whole(call, CU_SEQLENS[1], o.cu_seqlens[1], DType::I32)?;
    let (queries, keys) = match (queries, keys) {
        (Some(queries), Some(keys)) => (queries, keys),
        (None, None) => {
            return match o.max_seqlen.iter().position(Option::is_some) {
                Some(which) => {
                    Err(refuse(MAX_SEQLEN[which], "is of packed sequences, expected cu_seqlens_q"))
                }
                None => Ok((None, [None, None])),
            };
        }
        (queries, _) => {
            return Err(refuse(CU_SEQLENS[usize::from(queries.is_some())], "is missing beside the other"));
        }
    };
    let [all] = queries.extents()?;
    keys.expect_shape(&[all])?;
    let mut longest = rows;
    for (which, offsets) in [&queries, &keys].into_iter().enumerate() {
        let given = o.max_seqlen[which];
        longest[which] = given.unwrap_or(rows[which]);
        let Some(numbers) = known_i32(offsets, call.stream())? else { continue };
        let found = check_offsets(CU_SEQLENS[which], &numbers, rows[which]);
        let found = found.map_err(|e| call.raise(e))?;
        if found > longest[which] {
            let got = longest[which];
            let message = format!("{op}: {} is {got}, expected at least {found}", MAX_SEQLEN[which]);
            let problem = Problem::new(py, Class::Parameter, message).at(op, MAX_SEQLEN[which]);
            return Err(problem.mismatch(found, got).into_err());
        }
    }
    let [longest_queries, longest_keys] = longest;
    let packed = Packed { sequences: all.saturating_sub(1), longest_queries, longest_keys };
    Ok((Some(packed), [Some(queries), Some(keys)]))
}

/// Names of the tables of a mask of tiles.
const MASK: [&str; 3] = ["key_tiles", "query_tiles", "mask_bits"];

/// The tables of a mask for so many queries and keys, and its extents, if there is one. Numbers that are to be looked at are checked.
fn block_mask<'py>(
    call: &Call<'py>,
    tables: [Maybe<'_, 'py>; 3],
    extents: [usize; 2],
) -> PyResult<(Option<BlockMaskShape>, [Option<Array<'py>>; 3])> {
    let mut arrays = [None, None, None];
    for ((array, name), table) in arrays.iter_mut().zip(MASK).zip(tables) {
        *array = whole(call, name, table, DType::I32)?;
    }
    let [Some(keys), Some(queries), Some(bits)] = &arrays else {
        let Some(given) = arrays.iter().flatten().next() else { return Ok((None, arrays)) };
        let (py, op) = (given.object.py(), given.site.op);
        let missing = arrays.iter().zip(MASK).find(|(array, _)| array.is_none()).map_or("", |(_, name)| name);
        let message = format!("{op}: {missing} is missing beside the others");
        return Err(Problem::new(py, Class::Argument, message).at(op, missing).into_err());
    };
    let [batch, heads, ..] = keys.extents::<4>()?;
    let [tiles, ..] = bits.extents::<4>()?;
    let tile = MASK_TILE as usize;
    let [of_queries, of_keys] = extents.map(|extent| extent.div_ceil(tile));
    keys.expect_shape(&[batch, heads, of_queries, 1 + 2 * of_keys])?;
    queries.expect_shape(&[batch, heads, of_keys, 1 + 2 * of_queries])?;
    bits.expect_shape(&[tiles, 2, tile, tile / 32])?;
    let shape = BlockMaskShape { batch, heads, tiles };
    let known = |array: &Array<'py>| known_i32(array, call.stream());
    if let (Some(keys), Some(queries), Some(bits)) = (known(keys)?, known(queries)?, known(bits)?) {
        check_block_mask(shape, extents, &keys, &queries, &bits).map_err(|e| call.raise(e))?;
    }
    Ok((Some(shape), arrays))
}

/// Checks key lengths and block table, where they are to be looked at.
fn check_lengths<'py>(
    call: &Call<'py>,
    key_lengths: Option<&Array<'py>>,
    block_table: Option<&Array<'py>>,
    desc: &AttentionDesc,
) -> PyResult<()> {
    let Some(array) = key_lengths else { return Ok(()) };
    let Some(lengths) = known_i32(array, call.stream())? else { return Ok(()) };
    check_places(call, &lengths, block_table.zip(desc.options.paged), desc.k.shape)
}

/// Checks that keys of so many have places: in caches of this shape, or in those of their pages that a block table names.
pub(crate) fn check_places<'py>(
    call: &Call<'py>,
    lengths: &[i32],
    paged: Option<(&Array<'py>, Paged)>,
    [count, rows, ..]: [usize; 4],
) -> PyResult<()> {
    let raise = |e: PlanError| call.raise(e);
    let Some((table, pages)) = paged else {
        return check_key_lengths(lengths, rows).map_err(raise);
    };
    check_key_lengths(lengths, pages.pages.saturating_mul(rows)).map_err(raise)?;
    match known_i32(table, call.stream())? {
        Some(table) => check_block_table(&table, pages, lengths, rows, count).map_err(raise),
        None => Ok(()),
    }
}

/// Scales of keys and values of 8-bit floats.
type Scales<'a, 'py> = [Maybe<'a, 'py>; 2];

/// Scales of caches of these types, for so many key heads, and their description, if there are any.
pub(crate) fn scales<'py>(
    (call, op): (&Call<'py>, &'static str),
    caches: [(&'static str, DType); 2],
    [k_scale, v_scale]: Scales<'_, 'py>,
    heads: usize,
) -> PyResult<([Option<Array<'py>>; 2], Option<Float8Cache>)> {
    let scale = |argument, object| whole(call, argument, object, DType::F32);
    let arrays = [scale("k_scale", k_scale)?, scale("v_scale", v_scale)?];
    let shapes = arrays.each_ref().map(|array| array.as_ref().map(|array| &*array.shape));
    let float8 = Float8Cache::describe(op, caches, shapes, heads);
    Ok((arrays, float8.map_err(|e| call.raise(e))?))
}

fn start<'py>(
    op: &'static str,
    [q, k, v]: [&Object<'py>; 3],
    o: &Options<'_, 'py>,
    of_cache: Scales<'_, 'py>,
) -> PyResult<Started<'py>> {
    let py = q.py();
    let alignment = alignment(py, op, o.alignment)?;
    let window = Window { left: bound(py, op, o.window.0)?, right: bound(py, op, o.window.1)? };
    let (call, q) = Call::new(op, ("q", q), o.stream)?;
    let q = call.shaped(q)?;
    let further = |argument, object| -> PyResult<Array<'py>> {
        let array = call.read((argument, object))?;
        array.expect_dtype(q.dtype)?;
        call.shaped(array)
    };
    let cached = |argument, object| -> PyResult<Array<'py>> {
        let array = call.read((argument, object))?;
        if !array.dtype.is_float8() {
            array.expect_dtype(q.dtype)?;
        }
        call.shaped(array)
    };
    let (k, v) = (cached("k", k)?, cached("v", v)?);
    let bias = o.bias.map(|bias| further("bias", bias)).transpose()?;
    let slopes = whole(&call, "slopes", o.slopes, DType::F32)?;
    let key_lengths = whole(&call, "key_lengths", o.key_lengths, DType::I32)?;
    let block_table = whole(&call, "block_table", o.block_table, DType::I32)?;
    let sinks = whole(&call, "sinks", o.sinks, DType::F32)?;
    let random = whole(&call, "random", o.random, DType::I64)?;
    let drops = o.dropout_p != 0.0;
    if drops != random.is_some() {
        let message =
            format!("{op}: random is {}", if drops { "missing beside dropout_p" } else { "of dropout_p" });
        return Err(Problem::new(py, Class::Argument, message).at(op, "random").into_err());
    }
    let (q_layout, k_layout, v_layout) = (q.layout()?, k.layout()?, v.layout()?);
    let [batch, queries, heads, _] = q_layout.shape;
    let (packed, [query_offsets, key_offsets]) = packed(&call, &q, [queries, k_layout.shape[1]], o)?;
    let sequences = packed.map_or(batch, |packed| packed.sequences);
    let pages = |table: &Array<'py>| table.extents().map(|[_, pages]| Paged { pages });
    let paged = block_table.as_ref().map(pages).transpose()?;
    let (block_mask, tables) = block_mask(&call, o.block_mask, [queries, k_layout.shape[1]])?;
    let caches = [("k", k.dtype), ("v", v.dtype)];
    let ([k_scale, v_scale], float8) = scales((&call, op), caches, of_cache, v_layout.shape[2])?;
    let desc = AttentionDesc {
        dtype: q.dtype,
        q: q_layout,
        k: k_layout,
        v: v_layout,
        o: Layout::contiguous([batch, queries, heads, v_layout.shape[3]]),
        options: AttentionOptions {
            softmax_scale: o.softmax_scale.map(Real::new),
            causal: o.causal,
            window,
            alignment,
            softcap: o.softcap.map(Real::new),
            bias: bias.as_ref().map(|bias| bias.layout()).transpose()?,
            alibi: slopes.as_ref().map(|slopes| match slopes.shape.len() {
                2 => AlibiSlopes::PerBatchAndHead,
                _ => AlibiSlopes::PerHead,
            }),
            key_lengths: key_lengths.is_some(),
            packed,
            paged,
            sinks: sinks.is_some(),
            dropout: drops.then(|| Real::new(o.dropout_p)),
            float8,
            block_mask,
        },
    };
    let of_heads = [sequences, heads];
    let expected = |array: &Option<Array<'py>>, shape: &[usize]| {
        array.as_ref().map_or(Ok(()), |array| array.expect_shape(shape))
    };
    expected(&key_lengths, &of_heads[..1])?;
    expected(&sinks, &of_heads[1..])?;
    expected(&random, &[2])?;
    let each = slopes.as_ref().is_some_and(|slopes| slopes.shape.len() == 2);
    expected(&slopes, if each { &of_heads } else { &of_heads[1..] })?;
    expected(&block_table, &[batch, paged.map_or(0, |paged| paged.pages)])?;
    check_lengths(&call, key_lengths.as_ref(), block_table.as_ref(), &desc)?;
    let further = [bias, slopes, key_lengths, query_offsets, key_offsets, block_table, sinks, random];
    let mut all = [q, k, v].into_iter().map(Some).chain(further).chain([k_scale, v_scale]).chain(tables);
    let inputs = std::array::from_fn(|_| all.next().flatten());
    Ok(Started { call, inputs, desc })
}

/// Functions of tensors with the keywords that both have, and further tensors and flags of their own; `with` does the work.
macro_rules! with_options {
    ($($(#[$doc:meta])* $name:ident($($tensor:ident),*; $($further:ident),*; $($flag:ident),*) => $with:ident;)*) => {$(
        $(#[$doc])*
        #[pyfunction]
        #[pyo3(signature = ($($tensor),*, *, softmax_scale=None, causal=false, window=(-1, -1), alignment="bottom_right", softcap=None, bias=None, slopes=None, key_lengths=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, block_table=None, sinks=None, dropout_p=0.0, random=None, key_tiles=None, query_tiles=None, mask_bits=None, $($further=None,)* $($flag=false,)* out=None, stream=None))]
        #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
        pub(crate) fn $name<'py>(
            $($tensor: &Object<'py>,)*
            softmax_scale: Option<f64>,
            causal: bool,
            window: (i64, i64),
            alignment: &str,
            softcap: Option<f64>,
            bias: Maybe<'_, 'py>,
            slopes: Maybe<'_, 'py>,
            key_lengths: Maybe<'_, 'py>,
            cu_seqlens_q: Maybe<'_, 'py>,
            cu_seqlens_k: Maybe<'_, 'py>,
            max_seqlen_q: Option<usize>,
            max_seqlen_k: Option<usize>,
            block_table: Maybe<'_, 'py>,
            sinks: Maybe<'_, 'py>,
            dropout_p: f64,
            random: Maybe<'_, 'py>,
            key_tiles: Maybe<'_, 'py>,
            query_tiles: Maybe<'_, 'py>,
            mask_bits: Maybe<'_, 'py>,
            $($further: Maybe<'_, 'py>,)*
            $($flag: bool,)*
            out: Maybe<'_, 'py>,
            stream: Maybe<'_, 'py>,
        ) -> PyResult<Bound<'py, PyTuple>> {
            let (cu_seqlens, max_seqlen) = ([cu_seqlens_q, cu_seqlens_k], [max_seqlen_q, max_seqlen_k]);
            let options = Options {
                softmax_scale, causal, window, alignment, softcap, bias, slopes, key_lengths, cu_seqlens, max_seqlen,
                block_table, sinks, dropout_p, random, block_mask: [key_tiles, query_tiles, mask_bits], stream,
            };
            $with(stringify!($name), [$($tensor),*], &options, [$($further),*], [$($flag),*], out)
        }
    )*};
}

with_options! {
    /// `softmax(softmax_scale q k^T, masked) v` without a matrix of the scores, and the log-sum-exp of each row.
    ///
    /// q: [batch, queries, heads, head_dim]; k, v: [batch, keys, num_kv_heads, head_dim], of which v may have another head_dim;
    /// float32, float64, float16 or bfloat16, any strides whose last is 1 (else they are copied); heads is a multiple of
    /// num_kv_heads. softmax_scale: 1 / sqrt(head_dim) if None. causal: a query sees no key after its position, which counts
    /// from the end of the keys with alignment "bottom_right" and from their start with "top_left". window: how many keys
    /// before and after its position a query sees, -1 for all. softcap: scores become softcap tanh(score / softcap). bias:
    /// added to the scores, [batch, heads, queries, keys], each of which may be 1. slopes: float32, [heads] or [batch, heads],
    /// times the distance of a key is subtracted. key_lengths: int32, [batch], how many of the keys count. sinks: float32,
    /// [heads], a logit that takes part in the sum of exponentials and in nothing else. dropout_p: the probability that a
    /// probability is dropped, those that are kept are multiplied by 1 / (1 - dropout_p); random: int64, [2], the seed and offset
    /// that decide which, the same in both directions.
    ///
    /// Packed sequences: q, k and v have a batch of 1 that holds the rows of all sequences; cu_seqlens_q, cu_seqlens_k:
    /// int32, [sequences + 1], where they begin and end; max_seqlen_q, max_seqlen_k: the rows of the longest at most, all rows
    /// if None, which launches more blocks than needed. The batch of bias and slopes is that of the sequences. Rows of no sequence
    /// are not written. On the host the numbers are checked, on a GPU those that lead outside are cut; see `validate_indices`. The same
    /// goes for key_lengths and the pages of block_table that are read.
    ///
    /// Pages of a cache: k and v are [pages, rows, num_kv_heads, head_dim] with rows a power of two from 16 on; block_table:
    /// int32, [batch, pages of a sequence], the pages that hold its keys in order; key_lengths is needed.
    ///
    /// A mask of tiles: key_tiles: int32, [batch, heads, query_tiles, 1 + 2 key_tiles], how many tiles of 128 keys a tile of 128 queries sees,
    /// then of each, in ascending order, its number and that of its bits, -1 where all pairs see each other; query_tiles: int32, [batch, heads,
    /// key_tiles, 1 + 2 query_tiles], the same listed for each tile of keys; mask_bits: int32, [tiles, 2, 128, 4], bit `key % 32` of word
    /// `key // 32` of row `query` of the first half, and the other way round in the second, 0 for keys that do not exist. batch and heads may
    /// be 1 for all. It is the whole mask: without causal, window, bias, key_lengths, cu_seqlens, block_table and caches of 8-bit floats.
    /// On the host the numbers are checked; kernels read nothing outside of the arrays whatever they are.
    ///
    /// Caches of 8-bit floats, from sm_89 on: k and v are float8_e4m3fn beside q of float16 or bfloat16, and k_scale, v_scale, float32, [1]
    /// or [num_kv_heads], are what their elements are multiplied by; without cu_seqlens and dropout. `append_kv_cache` writes such caches.
    ///
    /// The result is (o, lse): o like q with the head_dim of v, lse [batch, heads, queries] in float32 (float64 for float64); a
    /// query that sees no key has zeros and minus infinity (with sinks, the sink). `out` is a pair.
    attention(q, k, v; k_scale, v_scale;) => forward;

    /// The gradients `(dq, dk, dv)` of `attention`.
    ///
    /// q, k, v and the keywords: as in the forward pass, without block_table; o, lse: as it gave them; dy: the gradient of o.
    /// bias_gradient, sinks_gradient: whether those of bias, summed over what it is broadcast over, and of sinks follow. The
    /// results are contiguous; `out` is a tuple of as many, of which the first three may have any strides whose last is 1: parts of one
    /// tensor, say.
    attention_backward(q, k, v, o, lse, dy; ; bias_gradient, sinks_gradient) => backward;
}

fn forward<'py>(
    op: &'static str,
    qkv: [&Object<'py>; 3],
    options: &Options<'_, 'py>,
    scales: Scales<'_, 'py>,
    []: [bool; 0],
    out: Maybe<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    static PLANS: PlanCache<AttentionDesc> = PlanCache::new();
    let started = start(op, qkv, options, scales)?;
    let (Started { call, inputs, desc }, q) = (&started, started.q());
    let plan = call.plan(&PLANS, desc)?;
    let out = several::<2>(op, out)?;
    let [batch, queries, heads, _] = desc.q.shape;
    let statistics = Form::RowMajor(statistics_dtype(desc.dtype), &[batch, heads, queries]);
    let result = Form::RowMajor(desc.dtype, &desc.o.shape);
    let o = call.output(("out[0]", out[0].as_ref()), q, result)?.in_shape(&desc.o.shape);
    let lse = call.output(("out[1]", out[1].as_ref()), q, statistics)?;
    let inputs = inputs.each_ref().map(Option::as_ref);
    let outputs = [Some(o), Some(lse), call.workspace(&plan, q)?];
    let [o, lse, _] = call.run_some(inputs, outputs, move |stream, inputs, [o, lse, workspace]| {
        let (o, lse) = (present(o), present(lse));
        Ok(plan.launch(stream, AttentionArgs { inputs: arguments(inputs), o, lse, workspace })?)
    })?;
    PyTuple::new(q.object.py(), [o, lse].map(present))
}

fn backward<'py>(
    op: &'static str,
    [q, k, v, o, lse, dy]: [&Object<'py>; 6],
    options: &Options<'_, 'py>,
    []: [Maybe<'_, 'py>; 0],
    [dbias, dsinks]: [bool; 2],
    out: Maybe<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    static PLANS: PlanCache<AttentionBackwardDesc> = PlanCache::new();
    let started = start(op, [q, k, v], options, [None; 2])?;
    let (Started { call, inputs, desc }, q) = (&started, started.q());
    let like_result = |argument, object| -> PyResult<Array<'py>> {
        let array = call.read((argument, object))?;
        array.expect_dtype(desc.dtype)?;
        array.expect_shape(&desc.o.shape)?;
        call.shaped(array)
    };
    let (o, dy) = (like_result("o", o)?, like_result("dy", dy)?);
    let [batch, queries, heads, _] = desc.q.shape;
    let lse = call.small(("lse", lse), statistics_dtype(desc.dtype), &[batch, heads, queries])?;
    let wanted = [true, true, true, dbias, dsinks];
    let out = places::<5>(op, out, wanted)?;
    let gradient = |index: usize, argument, of: Layout| {
        let (y, strides) = call.strided_output((argument, out[index].as_ref()), q, &of.shape)?;
        PyResult::Ok((y, Layout { strides: strides[..].try_into().unwrap_or_default(), ..of }))
    };
    let (dq, of_dq) = gradient(0, "out[0]", desc.q)?;
    let (dk, of_dk) = gradient(1, "out[1]", desc.k)?;
    let (dv, of_dv) = gradient(2, "out[2]", desc.v)?;
    let forward = AttentionDesc { o: o.layout()?, ..desc.clone() };
    let dy_layout = dy.layout()?;
    let backward =
        AttentionBackwardDesc { forward, dy: dy_layout, dq: of_dq, dk: of_dk, dv: of_dv, dbias, dsinks };
    let plan = call.plan(&PLANS, &backward)?;
    let of_bias = desc.options.bias.map_or([0; 4], |bias| bias.shape);
    let output = |index: usize, argument, dtype, shape: &[usize]| {
        let place = (argument, out[index].as_ref());
        let y = call.optional_output(wanted[index], place, q, Form::RowMajor(dtype, shape))?;
        PyResult::Ok(y.map(|y| y.in_shape(shape)))
    };
    let outputs = [
        Some(dq),
        Some(dk),
        Some(dv),
        output(3, "dbias", desc.dtype, &of_bias)?,
        output(4, "dsinks", DType::F32, &[heads])?,
        call.workspace(&plan, q)?,
    ];
    let mut all = inputs.iter().map(Option::as_ref).chain([&o, &lse, &dy].map(Some));
    let inputs: [_; INPUTS + 3] = std::array::from_fn(|_| all.next().flatten());
    let results = call.run_some(inputs, outputs, move |stream, inputs, outputs| {
        let mut inputs = inputs.into_iter();
        let both = std::array::from_fn(|_| inputs.next().flatten());
        let [o, lse, dy] = std::array::from_fn(|_| present(inputs.next().flatten()));
        let [dq, dk, dv, dbias, dsinks, workspace] = outputs;
        let args = AttentionBackwardArgs {
            inputs: arguments(both),
            o,
            lse,
            dy,
            dq: present(dq),
            dk: present(dk),
            dv: present(dv),
            dbias,
            dsinks,
            workspace,
        };
        Ok(plan.launch(stream, args)?)
    })?;
    PyTuple::new(q.object.py(), results.into_iter().take(5).flatten().collect::<Vec<_>>())
}
