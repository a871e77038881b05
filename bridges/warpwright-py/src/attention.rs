//! `attention` as Python functions.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use warpwright::attention::{
    AlibiSlopes, Alignment, AttentionArgs, AttentionBackwardArgs, AttentionBackwardDesc, AttentionDesc,
    AttentionInputs, AttentionOptions, Window,
};
use warpwright::plan::{Layout, PlanCache, Real};
use warpwright::{DType, TensorRef};

use crate::array::Array;
use crate::call::{Call, Form, present, several, statistics_dtype};
use crate::error::{Class, Problem};

type Object<'py> = Bound<'py, PyAny>;
type Maybe<'a, 'py> = Option<&'a Object<'py>>;

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
    stream: Maybe<'a, 'py>,
}

/// A call with its arguments, and what it computes.
struct Started<'py> {
    call: Call<'py>,
    q: Array<'py>,
    k: Array<'py>,
    v: Array<'py>,
    bias: Option<Array<'py>>,
    slopes: Option<Array<'py>>,
    key_lengths: Option<Array<'py>>,
    desc: AttentionDesc,
}

/// Shape and strides of an argument of four dimensions.
fn layout(array: &Array<'_>) -> PyResult<Layout> {
    if let (Ok(shape), Ok(strides)) = ((*array.shape).try_into(), (*array.strides).try_into()) {
        return Ok(Layout { shape, strides });
    }
    let (op, argument, rank) = (array.site.op, array.site.argument, array.shape.len());
    let message = format!("{op}: {argument} has {rank} dimensions, expected 4");
    Err(Problem::new(array.object.py(), Class::Shape, message).at(op, argument).mismatch(4, rank).into_err())
}

/// What both directions read, in the order of [`Started`].
fn arguments(inputs: [Option<TensorRef<'_>>; 6]) -> AttentionInputs<'_> {
    let [q, k, v, bias, slopes, key_lengths] = inputs;
    let required = AttentionInputs::new(present(q), present(k), present(v));
    AttentionInputs { bias, slopes, key_lengths, ..required }
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

fn start<'py>(
    op: &'static str,
    [q, k, v]: [&Object<'py>; 3],
    o: &Options<'_, 'py>,
) -> PyResult<Started<'py>> {
    let py = q.py();
    let alignment = match o.alignment {
        "bottom_right" => Alignment::BottomRight,
        "top_left" => Alignment::TopLeft,
        other => {
            let expected = "'bottom_right' or 'top_left'";
            let message = format!("{op}: alignment is '{other}', expected {expected}");
            let problem = Problem::new(py, Class::Parameter, message).at(op, "alignment");
            return Err(problem.mismatch(expected, other).into_err());
        }
    };
    let window = Window { left: bound(py, op, o.window.0)?, right: bound(py, op, o.window.1)? };
    let (call, q) = Call::new(op, ("q", q), o.stream)?;
    let q = call.shaped(q)?;
    let further = |argument, object| -> PyResult<Array<'py>> {
        let array = call.read((argument, object))?;
        array.expect_dtype(q.dtype)?;
        call.shaped(array)
    };
    let (k, v) = (further("k", k)?, further("v", v)?);
    let bias = o.bias.map(|bias| further("bias", bias)).transpose()?;
    let whole = |argument, object: Maybe<'_, 'py>, dtype| -> PyResult<Option<Array<'py>>> {
        let Some(object) = object else { return Ok(None) };
        let array = call.read((argument, object))?;
        array.expect_dtype(dtype)?;
        call.row_major(array).map(Some)
    };
    let slopes = whole("slopes", o.slopes, DType::F32)?;
    let key_lengths = whole("key_lengths", o.key_lengths, DType::I32)?;
    let (q_layout, v_layout) = (layout(&q)?, layout(&v)?);
    let [batch, queries, heads, _] = q_layout.shape;
    let desc = AttentionDesc {
        dtype: q.dtype,
        q: q_layout,
        k: layout(&k)?,
        v: v_layout,
        o: Layout::contiguous([batch, queries, heads, v_layout.shape[3]]),
        options: AttentionOptions {
            softmax_scale: o.softmax_scale.map(Real::new),
            causal: o.causal,
            window,
            alignment,
            softcap: o.softcap.map(Real::new),
            bias: bias.as_ref().map(layout).transpose()?,
            alibi: slopes.as_ref().map(|slopes| match slopes.shape.len() {
                2 => AlibiSlopes::PerBatchAndHead,
                _ => AlibiSlopes::PerHead,
            }),
            key_lengths: key_lengths.is_some(),
            ..AttentionOptions::default()
        },
    };
    if let Some(lengths) = &key_lengths {
        lengths.expect_shape(&[batch])?;
    }
    if let Some(slopes) = &slopes {
        let expected = [batch, heads];
        slopes.expect_shape(if slopes.shape.len() == 2 { &expected } else { &expected[1..] })?;
    }
    Ok(Started { call, q, k, v, bias, slopes, key_lengths, desc })
}

/// Functions of tensors with the keywords that both have; `with` does the work.
macro_rules! with_options {
    ($($(#[$doc:meta])* $name:ident($($tensor:ident),*) => $with:ident;)*) => {$(
        $(#[$doc])*
        #[pyfunction]
        #[pyo3(signature = ($($tensor),*, *, softmax_scale=None, causal=false, window=(-1, -1), alignment="bottom_right", softcap=None, bias=None, slopes=None, key_lengths=None, out=None, stream=None))]
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
            out: Maybe<'_, 'py>,
            stream: Maybe<'_, 'py>,
        ) -> PyResult<Bound<'py, PyTuple>> {
            let options =
                Options { softmax_scale, causal, window, alignment, softcap, bias, slopes, key_lengths, stream };
            $with(stringify!($name), [$($tensor),*], &options, out)
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
    /// times the distance of a key is subtracted. key_lengths: int32, [batch], how many of the keys count. The result is (o, lse):
    /// o like q with the head_dim of v, lse [batch, heads, queries] in float32 (float64 for float64); a query that sees no key has
    /// zeros and minus infinity. `out` is a pair.
    attention(q, k, v) => forward;

    /// The gradients `(dq, dk, dv)` of `attention`.
    ///
    /// q, k, v and the keywords: as in the forward pass; o, lse: as it gave them; dy: the gradient of o. The results are contiguous;
    /// `out` is a tuple of three.
    attention_backward(q, k, v, o, lse, dy) => backward;
}

fn forward<'py>(
    op: &'static str,
    qkv: [&Object<'py>; 3],
    options: &Options<'_, 'py>,
    out: Maybe<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    static PLANS: PlanCache<AttentionDesc> = PlanCache::new();
    let Started { call, q, k, v, bias, slopes, key_lengths, desc } = start(op, qkv, options)?;
    let plan = call.plan(&PLANS, &desc)?;
    let out = several::<2>(op, out)?;
    let [batch, queries, heads, _] = desc.q.shape;
    let statistics = Form::RowMajor(statistics_dtype(desc.dtype), &[batch, heads, queries]);
    let result = Form::RowMajor(desc.dtype, &desc.o.shape);
    let o = call.output(("out[0]", out[0].as_ref()), &q, result)?.in_shape(&desc.o.shape);
    let lse = call.output(("out[1]", out[1].as_ref()), &q, statistics)?;
    let inputs = [Some(&q), Some(&k), Some(&v), bias.as_ref(), slopes.as_ref(), key_lengths.as_ref()];
    let outputs = [Some(o), Some(lse), call.workspace(&plan, &q)?];
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
    out: Maybe<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    static PLANS: PlanCache<AttentionBackwardDesc> = PlanCache::new();
    let Started { call, q, k, v, bias, slopes, key_lengths, desc } = start(op, [q, k, v], options)?;
    let like_result = |argument, object| -> PyResult<Array<'py>> {
        let array = call.read((argument, object))?;
        array.expect_dtype(desc.dtype)?;
        array.expect_shape(&desc.o.shape)?;
        call.shaped(array)
    };
    let (o, dy) = (like_result("o", o)?, like_result("dy", dy)?);
    let [batch, queries, heads, _] = desc.q.shape;
    let lse = call.small(("lse", lse), statistics_dtype(desc.dtype), &[batch, heads, queries])?;
    let dtype = desc.dtype;
    let shapes = [desc.q.shape, desc.k.shape, desc.v.shape];
    let [dq, dk, dv] = shapes.map(Layout::contiguous);
    let forward = AttentionDesc { o: layout(&o)?, ..desc };
    let (dbias, dsinks) = (false, false);
    let backward = AttentionBackwardDesc { forward, dy: layout(&dy)?, dq, dk, dv, dbias, dsinks };
    let plan = call.plan(&PLANS, &backward)?;
    let out = several::<3>(op, out)?;
    let output = |argument, index: usize| {
        let form = Form::RowMajor(dtype, &shapes[index]);
        call.output((argument, out[index].as_ref()), &q, form).map(|y| y.in_shape(&shapes[index]))
    };
    let outputs = [
        Some(output("out[0]", 0)?),
        Some(output("out[1]", 1)?),
        Some(output("out[2]", 2)?),
        call.workspace(&plan, &q)?,
    ];
    let inputs = [
        Some(&q),
        Some(&k),
        Some(&v),
        bias.as_ref(),
        slopes.as_ref(),
        key_lengths.as_ref(),
        Some(&o),
        Some(&lse),
        Some(&dy),
    ];
    let [dq, dk, dv, _] = call.run_some(inputs, outputs, move |stream, inputs, outputs| {
        let [q, k, v, bias, slopes, key_lengths, o, lse, dy] = inputs;
        let inputs = [q, k, v, bias, slopes, key_lengths];
        let [dq, dk, dv, workspace] = outputs;
        let args = AttentionBackwardArgs {
            inputs: arguments(inputs),
            o: present(o),
            lse: present(lse),
            dy: present(dy),
            dq: present(dq),
            dk: present(dk),
            dv: present(dv),
            dbias: None,
            dsinks: None,
            workspace,
        };
        Ok(plan.launch(stream, args)?)
    })?;
    PyTuple::new(q.object.py(), [dq, dk, dv].map(present))
}
