//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_ptx::DType;
use warpwright_runtime::{Stream, Tensor, TensorRef};

use super::options::parameter;
use super::{
    AlibiSlopes, Alignment, AttentionArgs, AttentionBackwardArgs, AttentionBackwardDesc, AttentionDesc,
    AttentionInputs, AttentionOptions, BlockMask, Float8Cache, OP, Packed, Paged, Window, statistics_type,
};
use crate::plan::{Layout, PlanCache, Real};
use crate::{Dropout, Error, PlanError};

/// Masks and modifications of the scores, with their tensors; the default is none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scores<'a> {
    /// The factor of the products, positive and finite; `None` is `1 / sqrt(head_dim)`.
    pub softmax_scale: Option<f64>,
    /// Whether a query sees no key after its position.
    pub causal: bool,
    /// The keys near its position that it sees.
    pub window: Window,
    /// Where the positions of the queries begin.
    pub alignment: Alignment,
    /// `score = softcap tanh(score / softcap)`
    pub softcap: Option<f64>,
    /// Added to the scores: `[batch, heads, queries, keys]`, each of them may be 1, of the element type of `q`.
    pub bias: Option<TensorRef<'a>>,
    /// Slopes on the distance: `[heads]` or `[batch, heads]` in f32.
    pub slopes: Option<TensorRef<'a>>,
    /// Keys of each sequence: `[batch]` in i32, from 0 to the keys that there are. They are read on the device, where they are cut
    /// to that; [`check_key_lengths`](super::check_key_lengths) checks them on the host.
    pub key_lengths: Option<TensorRef<'a>>,
    /// Sequences one after the other in the rows of one batch.
    pub packed: Option<PackedRows<'a>>,
    /// The pages of each sequence: `[batch, pages]` in i32.
    pub block_table: Option<TensorRef<'a>>,
    /// A logit of each head that takes part in the sum of exponentials and in nothing else: `[heads]` in f32.
    pub sinks: Option<TensorRef<'a>>,
    /// Probabilities that are dropped at random before they meet the values. `lse` is without.
    pub dropout: Option<Dropout>,
    /// The scale of keys of e4m3: `[1]` or `[num_kv_heads]` in f32; see [`Float8Cache`].
    pub k_scale: Option<TensorRef<'a>>,
    /// The scale of values of e4m3, likewise.
    pub v_scale: Option<TensorRef<'a>>,
    /// Which pairs of queries and keys see each other, as tiles. It is the whole mask: neither another one nor a bias may be beside it.
    pub block_mask: Option<&'a BlockMask>,
    /// Whether [`attention_backward`] gives the gradient of the bias, too.
    pub dbias: bool,
    /// Whether it gives that of the sinks.
    pub dsinks: bool,
}

/// The result of [`attention`], and what its backward function takes.
#[derive(Debug)]
pub struct AttentionOutput {
    /// The result, `[batch, queries, heads, head_dim]` with the head_dim of the values, of their element type.
    pub o: Tensor,
    /// The logarithm of the sum of exponentials of each query, `[batch, heads, queries]`, f32, or f64 for f64.
    pub lse: Tensor,
}

/// The gradients of [`attention`], contiguous.
#[derive(Debug)]
pub struct AttentionGradients {
    /// Of the queries, of their shape.
    pub dq: Tensor,
    /// Of the keys, of their shape.
    pub dk: Tensor,
    /// Of the values, of their shape.
    pub dv: Tensor,
    /// Of the bias, of its shape, if it is wanted: summed over the extents that are 1.
    pub dbias: Option<Tensor>,
    /// Of the sinks, `[heads]` in f32, if it is wanted.
    pub dsinks: Option<Tensor>,
}

/// Where packed sequences begin and end; see [`Packed`].
#[derive(Clone, Copy, Debug)]
pub struct PackedRows<'a> {
    /// Rows of the queries: `[sequences + 1]` in i32.
    pub query_offsets: TensorRef<'a>,
    /// Rows of the keys: `[sequences + 1]` in i32.
    pub key_offsets: TensorRef<'a>,
    /// Queries of the longest sequence at most, as [`check_offsets`](super::check_offsets) returns them.
    pub longest_queries: usize,
    /// Keys of the longest sequence at most.
    pub longest_keys: usize,
}

impl<'a> Scores<'a> {
    fn inputs<'b>(&self, [q, k, v]: [TensorRef<'b>; 3], random: Option<&'b Tensor>) -> AttentionInputs<'b>
    where
        'a: 'b,
    {
        let Self {
            bias, slopes, key_lengths, packed, block_table, sinks, k_scale, v_scale, block_mask, ..
        } = *self;
        AttentionInputs {
            bias,
            slopes,
            key_lengths,
            query_offsets: packed.map(|packed| packed.query_offsets),
            key_offsets: packed.map(|packed| packed.key_offsets),
            block_table,
            sinks,
            random: random.map(Tensor::as_ref),
            k_scale,
            v_scale,
            key_tiles: block_mask.map(|mask| mask.key_tiles.as_ref()),
            query_tiles: block_mask.map(|mask| mask.query_tiles.as_ref()),
            mask_bits: block_mask.map(|mask| mask.bits.as_ref()),
            ..AttentionInputs::new(q, k, v)
        }
    }

    /// Seed and offset on the device.
    fn random(&self, stream: &Stream) -> Result<Option<Tensor>, Error> {
        self.dropout.map(|dropout| dropout.random(stream)).transpose()
    }

    fn options(&self) -> Result<AttentionOptions, PlanError> {
        let alibi = self.slopes.as_ref().map(|slopes| match slopes.shape().len() {
            1 => AlibiSlopes::PerHead,
            _ => AlibiSlopes::PerBatchAndHead,
        });
        Ok(AttentionOptions {
            softmax_scale: self.softmax_scale.map(Real::new),
            causal: self.causal,
            window: self.window,
            alignment: self.alignment,
            softcap: self.softcap.map(Real::new),
            bias: self.bias.as_ref().map(|bias| layout("bias", bias)).transpose()?,
            alibi,
            key_lengths: self.key_lengths.is_some(),
            packed: self.packed.as_ref().map(|packed| Packed {
                sequences: packed.query_offsets.shape().iter().product::<usize>().saturating_sub(1),
                longest_queries: packed.longest_queries,
                longest_keys: packed.longest_keys,
            }),
            paged: self
                .block_table
                .as_ref()
                .map(|table| Paged { pages: table.shape().last().copied().unwrap_or(0) }),
            sinks: self.sinks.is_some(),
            dropout: self.dropout.map(|dropout| Real::new(dropout.probability.into())),
            float8: None,
            block_mask: self.block_mask.map(BlockMask::shape),
        })
    }
}

fn layout(parameter: &'static str, x: &TensorRef<'_>) -> Result<Layout, PlanError> {
    Layout::of(x).ok_or_else(|| PlanError::Parameter {
        op: OP,
        parameter,
        got: format!("{} dimensions", x.shape().len()),
        expected: "4 dimensions",
    })
}

fn describe([q, k, v]: &[TensorRef<'_>; 3], scores: &Scores<'_>) -> Result<AttentionDesc, PlanError> {
    let (q_layout, v_layout) = (layout("q", q)?, layout("v", v)?);
    let [batch, queries, heads, _] = q_layout.shape;
    let k_layout = layout("k", k)?;
    let extents = [queries, k_layout.shape[1]];
    if let Some(mask) = scores.block_mask.filter(|mask| mask.extents() != extents) {
        let got = format!("{:?} for {extents:?}", mask.extents());
        return Err(parameter("block_mask", got, "the queries of q and the keys of k"));
    }
    let scales = [&scores.k_scale, &scores.v_scale].map(|scale| scale.as_ref().map(TensorRef::shape));
    let caches = [("k", k.dtype()), ("v", v.dtype())];
    let float8 = Float8Cache::describe(OP, caches, scales, v_layout.shape[2])?;
    Ok(AttentionDesc {
        dtype: q.dtype(),
        q: q_layout,
        k: k_layout,
        v: v_layout,
        o: Layout::contiguous([batch, queries, heads, v_layout.shape[3]]),
        options: AttentionOptions { float8, ..scores.options()? },
    })
}

/// `o = softmax(score) v` with `score = softmax_scale q k^T`, masked and modified as `scores` says (Vaswani et al. 2017,
/// arXiv:1706.03762; Dao et al. 2022, arXiv:2205.14135), as `torch.nn.functional.scaled_dot_product_attention`; see the
/// [module](crate::attention).
///
/// `q` is `[batch, queries, heads, head_dim]`, `k` and `v` are `[batch, keys, num_kv_heads, head_dim]`, of f32, f64, f16 or bf16, tensors or
/// views with any strides but 1 in the last dimension; `num_kv_heads` divides `heads`, and the head_dim of `v` may differ. A query
/// that sees no key gives zeros. Beside `q` of f16 or bf16, `k` and `v` may be of e4m3 with `scores.k_scale` and `scores.v_scale`, as
/// [`append_kv_cache`](crate::kv_cache::append_kv_cache) writes them: [`Float8Cache`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::attention::Scores;
/// use warpwright::{Device, Tensor, attention};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// // Two positions, one head of two elements: with a causal mask the first query sees the first key alone.
/// let q = Tensor::from_slice(&device, &[0.0f32; 4], &[1, 2, 1, 2])?;
/// let v = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 6.0], &[1, 2, 1, 2])?;
/// let out = attention(&stream, &q, &q, &v, Scores { causal: true, ..Scores::default() })?;
/// assert_eq!(out.o.to_vec_on::<f32>(&stream)?, [1.0, 2.0, 2.0, 4.0]);
/// assert_eq!(out.lse.shape(), [1, 1, 2]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the shapes do not fit each other, a head_dim is beyond 256, a number of `scores` is out of its range, the
/// element type is none of those, or there are keys of e4m3 without scales, before sm_89, or where a [`Float8Cache`] has no kernel. [`Error::Runtime`] if a tensor of `scores` does not fit, or memory runs out.
pub fn attention<'a>(
    stream: &Stream,
    q: impl Into<TensorRef<'a>>,
    k: impl Into<TensorRef<'a>>,
    v: impl Into<TensorRef<'a>>,
    scores: Scores<'a>,
) -> Result<AttentionOutput, Error> {
    static PLANS: PlanCache<AttentionDesc> = PlanCache::new();
    let inputs = [q.into(), k.into(), v.into()];
    let desc = describe(&inputs, &scores)?;
    let plan = PLANS.get(&desc, stream.device().target())?;
    let [batch, queries, heads, _] = desc.q.shape;
    let mut o = Tensor::empty_on(stream, desc.dtype, &desc.o.shape)?;
    let mut lse = Tensor::empty_on(stream, statistics_type(desc.dtype), &[batch, heads, queries])?;
    let (random, mut workspace) = (scores.random(stream)?, plan.workspace(stream)?);
    let args = AttentionArgs {
        inputs: scores.inputs(inputs, random.as_ref()),
        o: o.as_mut(),
        lse: lse.as_mut(),
        workspace: workspace.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok(AttentionOutput { o, lse })
}

/// The gradients of [`attention`] from what it took, its `output`, and the gradient `dy` of `o`; of bias and sinks where `scores`
/// asks for them.
///
/// `dy` is `[batch, queries, heads, head_dim]`, like `o`; the gradients are of the shapes of `q`, `k` and `v` and of their element type,
/// f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::attention::Scores;
/// use warpwright::{Device, Tensor, attention, attention_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let q = Tensor::from_slice(&device, &[0.0f32; 4], &[1, 2, 1, 2])?;
/// let v = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 6.0], &[1, 2, 1, 2])?;
/// let scores = Scores { causal: true, ..Scores::default() };
/// let out = attention(&stream, &q, &q, &v, scores)?;
/// let dy = Tensor::ones_on(&stream, q.dtype(), q.shape())?;
/// let gradients = attention_backward(&stream, &q, &q, &v, &out, &dy, scores)?;
/// // The first value counts once and a half, the second half.
/// assert_eq!(gradients.dv.to_vec_on::<f32>(&stream)?, [1.5, 1.5, 0.5, 0.5]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`attention`].
pub fn attention_backward<'a>(
    stream: &Stream,
    q: impl Into<TensorRef<'a>>,
    k: impl Into<TensorRef<'a>>,
    v: impl Into<TensorRef<'a>>,
    output: &AttentionOutput,
    dy: impl Into<TensorRef<'a>>,
    scores: Scores<'a>,
) -> Result<AttentionGradients, Error> {
    static PLANS: PlanCache<AttentionBackwardDesc> = PlanCache::new();
    let (inputs, dy) = ([q.into(), k.into(), v.into()], dy.into());
    let forward = describe(&inputs, &scores)?;
    let [dq, dk, dv] = [forward.q, forward.k, forward.v].map(|layout| Layout::contiguous(layout.shape));
    let Scores { dbias, dsinks, .. } = scores;
    let desc = AttentionBackwardDesc { forward, dy: layout("dy", &dy)?, dq, dk, dv, dbias, dsinks };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let empty = |layout: Layout| Tensor::empty_on(stream, desc.forward.dtype, &layout.shape);
    let [mut dq, mut dk, mut dv] = [empty(dq)?, empty(dk)?, empty(dv)?];
    let of_bias = desc.forward.options.bias.filter(|_| dbias);
    let mut dbias = of_bias.map(|bias| empty(Layout::contiguous(bias.shape))).transpose()?;
    let heads = desc.forward.q.shape[2];
    let mut dsinks = dsinks.then(|| Tensor::empty_on(stream, DType::F32, &[heads])).transpose()?;
    let (random, mut workspace) = (scores.random(stream)?, plan.workspace(stream)?);
    let args = AttentionBackwardArgs {
        inputs: scores.inputs(inputs, random.as_ref()),
        o: output.o.as_ref(),
        lse: output.lse.as_ref(),
        dy,
        dq: dq.as_mut(),
        dk: dk.as_mut(),
        dv: dv.as_mut(),
        dbias: dbias.as_mut().map(Tensor::as_mut),
        dsinks: dsinks.as_mut().map(Tensor::as_mut),
        workspace: workspace.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok(AttentionGradients { dq, dk, dv, dbias, dsinks })
}
