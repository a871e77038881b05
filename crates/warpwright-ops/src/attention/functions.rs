//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor, TensorRef};

use super::{
    AlibiSlopes, Alignment, AttentionArgs, AttentionBackwardArgs, AttentionBackwardDesc, AttentionDesc,
    AttentionOptions, OP, Window, statistics_type,
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
}

impl Scores<'_> {
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
pub fn attention(
    stream: &Stream,
    q: TensorRef<'_>,
    k: TensorRef<'_>,
    v: TensorRef<'_>,
    scores: &Scores<'_>,
) -> Result<(Tensor, Tensor), Error> {
    static PLANS: PlanCache<AttentionDesc> = PlanCache::new();
    let desc = describe(&q, &k, &v, scores)?;
    let plan = PLANS.get(&desc, stream.device().target())?;
    let [batch, queries, heads, _] = desc.q.shape;
    let mut o = Tensor::empty_on(stream, desc.dtype, &desc.o.shape)?;
    let mut lse = Tensor::empty_on(stream, statistics_type(desc.dtype), &[batch, heads, queries])?;
    let Scores { bias, slopes, key_lengths, .. } = *scores;
    let args = AttentionArgs { q, k, v, bias, slopes, key_lengths, o: o.as_mut(), lse: lse.as_mut() };
    plan.launch(stream, args)?;
    Ok((o, lse))
}

/// The gradients of queries, keys and values, contiguous, from what [`attention`] took and gave and the gradient `dy` of
/// its result.
///
/// # Errors
/// As [`attention`].
#[allow(clippy::too_many_arguments, reason = "the tensors of the forward function and their gradient")]
pub fn attention_backward(
    stream: &Stream,
    q: TensorRef<'_>,
    k: TensorRef<'_>,
    v: TensorRef<'_>,
    scores: &Scores<'_>,
    o: TensorRef<'_>,
    lse: TensorRef<'_>,
    dy: TensorRef<'_>,
) -> Result<[Tensor; 3], Error> {
    static PLANS: PlanCache<AttentionBackwardDesc> = PlanCache::new();
    let forward = AttentionDesc { o: layout("o", &o)?, ..describe(&q, &k, &v, scores)? };
    let [dq, dk, dv] = [forward.q, forward.k, forward.v].map(|layout| Layout::contiguous(layout.shape));
    let desc = AttentionBackwardDesc { forward, dy: layout("dy", &dy)?, dq, dk, dv };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let empty = |layout: Layout| Tensor::empty_on(stream, desc.forward.dtype, &layout.shape);
    let [mut dq, mut dk, mut dv] = [empty(dq)?, empty(dk)?, empty(dv)?];
    let mut workspace = plan.workspace(stream)?;
    let Scores { bias, slopes, key_lengths, .. } = *scores;
    let args = AttentionBackwardArgs {
        q,
        k,
        v,
        bias,
        slopes,
        key_lengths,
        o,
        lse,
        dy,
        dq: dq.as_mut(),
        dk: dk.as_mut(),
        dv: dv.as_mut(),
        workspace: workspace.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok([dq, dk, dv])
}
