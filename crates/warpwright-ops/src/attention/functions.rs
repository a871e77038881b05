//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_ptx::DType;
use warpwright_runtime::{Stream, Tensor, TensorRef};

use super::{
    AlibiSlopes, Alignment, AttentionArgs, AttentionBackwardArgs, AttentionBackwardDesc, AttentionDesc,
    AttentionInputs, AttentionOptions, OP, Packed, Paged, Window, statistics_type,
};
use crate::plan::{Layout, PlanCache, Real};
use crate::{Error, PlanError};

/// Masks and modifications of the scores, with their tensors; the default is none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scores<'a> {
    /// The factor of the products; `None` is `1 / sqrt(head_dim)`.
    pub softmax_scale: Option<f64>,
    /// Whether a query sees no key after its position.
    pub causal: bool,
    /// The keys near its position that it sees.
    pub window: Window,
    /// Where the positions of the queries begin.
    pub alignment: Alignment,
    /// `score = softcap tanh(score / softcap)`
    pub softcap: Option<f64>,
    /// What is added: `[batch, heads, queries, keys]`, each of them may be 1.
    pub bias: Option<TensorRef<'a>>,
    /// Slopes on the distance: `[heads]` or `[batch, heads]` in f32.
    pub slopes: Option<TensorRef<'a>>,
    /// Keys of each sequence: `[batch]` in i32.
    pub key_lengths: Option<TensorRef<'a>>,
    /// Sequences one after the other in the rows of one batch.
    pub packed: Option<PackedRows<'a>>,
    /// The pages of each sequence: `[batch, pages]` in i32.
    pub block_table: Option<TensorRef<'a>>,
    /// A logit of each head that takes part in the sum of exponentials and in nothing else: `[heads]` in f32.
    pub sinks: Option<TensorRef<'a>>,
    /// The probability that a probability is dropped; then there are `random` numbers.
    pub dropout: Option<f64>,
    /// Seed and offset of what is dropped: `[2]` in i64.
    pub random: Option<TensorRef<'a>>,
    /// Whether [`attention_backward`] gives the gradient of the bias.
    pub dbias: bool,
    /// Whether it gives that of the sinks.
    pub dsinks: bool,
}

/// What [`attention_backward`] gives.
#[derive(Debug)]
pub struct Gradients {
    /// Of the queries.
    pub dq: Tensor,
    /// Of the keys.
    pub dk: Tensor,
    /// Of the values.
    pub dv: Tensor,
    /// Of the bias, if it is wanted, summed over what it is broadcast over.
    pub dbias: Option<Tensor>,
    /// Of the sinks, if it is wanted.
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
    fn inputs(&self, q: TensorRef<'a>, k: TensorRef<'a>, v: TensorRef<'a>) -> AttentionInputs<'a> {
        let Self { bias, slopes, key_lengths, packed, block_table, sinks, random, .. } = *self;
        AttentionInputs {
            bias,
            slopes,
            key_lengths,
            query_offsets: packed.map(|packed| packed.query_offsets),
            key_offsets: packed.map(|packed| packed.key_offsets),
            block_table,
            sinks,
            random,
            ..AttentionInputs::new(q, k, v)
        }
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
            dropout: self.dropout.map(Real::new),
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

fn describe(
    q: &TensorRef<'_>,
    k: &TensorRef<'_>,
    v: &TensorRef<'_>,
    scores: &Scores<'_>,
) -> Result<AttentionDesc, PlanError> {
    let (q_layout, v_layout) = (layout("q", q)?, layout("v", v)?);
    let [batch, queries, heads, _] = q_layout.shape;
    Ok(AttentionDesc {
        dtype: q.dtype(),
        q: q_layout,
        k: layout("k", k)?,
        v: v_layout,
        o: Layout::contiguous([batch, queries, heads, v_layout.shape[3]]),
        options: scores.options()?,
    })
}

/// `o` of `[batch, queries, heads, head_dim of v]` and `lse` of `[batch, heads, queries]`; see the
/// [module](crate::attention).
///
/// # Errors
/// Shapes do not fit each other, the element type or the head dimension is not supported, or memory runs out.
pub fn attention<'a>(
    stream: &Stream,
    q: TensorRef<'a>,
    k: TensorRef<'a>,
    v: TensorRef<'a>,
    scores: &Scores<'a>,
) -> Result<(Tensor, Tensor), Error> {
    static PLANS: PlanCache<AttentionDesc> = PlanCache::new();
    let desc = describe(&q, &k, &v, scores)?;
    let plan = PLANS.get(&desc, stream.device().target())?;
    let [batch, queries, heads, _] = desc.q.shape;
    let mut o = Tensor::empty_on(stream, desc.dtype, &desc.o.shape)?;
    let mut lse = Tensor::empty_on(stream, statistics_type(desc.dtype), &[batch, heads, queries])?;
    let mut workspace = plan.workspace(stream)?;
    let args = AttentionArgs {
        inputs: scores.inputs(q, k, v),
        o: o.as_mut(),
        lse: lse.as_mut(),
        workspace: workspace.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok((o, lse))
}

/// The gradients of queries, keys and values, and of bias and sinks if they are wanted, contiguous, from what [`attention`] took
/// and gave and the gradient `dy` of its result.
///
/// # Errors
/// As [`attention`].
#[allow(clippy::too_many_arguments, reason = "the tensors of the forward function and their gradient")]
pub fn attention_backward<'a>(
    stream: &Stream,
    q: TensorRef<'a>,
    k: TensorRef<'a>,
    v: TensorRef<'a>,
    scores: &Scores<'a>,
    o: TensorRef<'a>,
    lse: TensorRef<'a>,
    dy: TensorRef<'a>,
) -> Result<Gradients, Error> {
    static PLANS: PlanCache<AttentionBackwardDesc> = PlanCache::new();
    let forward = AttentionDesc { o: layout("o", &o)?, ..describe(&q, &k, &v, scores)? };
    let [dq, dk, dv] = [forward.q, forward.k, forward.v].map(|layout| Layout::contiguous(layout.shape));
    let Scores { dbias, dsinks, .. } = *scores;
    let desc = AttentionBackwardDesc { forward, dy: layout("dy", &dy)?, dq, dk, dv, dbias, dsinks };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let empty = |layout: Layout| Tensor::empty_on(stream, desc.forward.dtype, &layout.shape);
    let [mut dq, mut dk, mut dv] = [empty(dq)?, empty(dk)?, empty(dv)?];
    let of_bias = desc.forward.options.bias.filter(|_| dbias);
    let mut dbias = of_bias.map(|bias| empty(Layout::contiguous(bias.shape))).transpose()?;
    let heads = desc.forward.q.shape[2];
    let mut dsinks = dsinks.then(|| Tensor::empty_on(stream, DType::F32, &[heads])).transpose()?;
    let mut workspace = plan.workspace(stream)?;
    let args = AttentionBackwardArgs {
        inputs: scores.inputs(q, k, v),
        o,
        lse,
        dy,
        dq: dq.as_mut(),
        dk: dk.as_mut(),
        dv: dv.as_mut(),
        dbias: dbias.as_mut().map(Tensor::as_mut),
        dsinks: dsinks.as_mut().map(Tensor::as_mut),
        workspace: workspace.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok(Gradients { dq, dk, dv, dbias, dsinks })
}
