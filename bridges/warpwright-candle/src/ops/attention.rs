//! Scaled dot-product attention.

use candle_core::{Result, Tensor};
use warpwright::attention::{
    self as kernels, AlibiSlopes, Alignment, AttentionArgs, AttentionBackwardArgs, AttentionBackwardDesc,
    AttentionDesc, AttentionInputs, Window,
};
use warpwright::plan::{PlanCache, Real};
use warpwright::{DType, TensorRef};

use crate::array::{Array, Made, Spec};
use crate::call::{Call, present};
use crate::error::Error;
use crate::graph::record;
use crate::heads::{Heads, layout};

const OP: &str = "attention";

/// Masks and modifications of the scores; the default is none, on `[batch, steps, heads, head_dim]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionOptions<'a> {
    /// Whether tensors are `[batch, heads, steps, head_dim]`, as those of `candle_nn::ops::sdpa`; else `[batch, steps, heads,
    /// head_dim]`, as those of flash attention.
    pub heads_first: bool,
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
    /// Added to the scores: `[batch, heads, queries, keys]`, of which each may be 1, of the element type of `q`. It has a gradient.
    pub bias: Option<&'a Tensor>,
    /// Slopes of the heads on the distance, `[heads]` or `[batch, heads]`, f32 (ALiBi).
    pub alibi_slopes: Option<&'a Tensor>,
    /// Keys of each sequence, `[batch]`, of u32, i32 or i64. More than there are count as all of them.
    pub key_lengths: Option<&'a Tensor>,
    /// A logit of each head that takes part in the sum of exponentials and in nothing else, `[heads]`, f32. It has a gradient.
    pub sinks: Option<&'a Tensor>,
}

/// `softmax(score) v` with `score = softcap(softmax_scale q k^T) + bias`, without a matrix of scores in memory, and its gradients.
///
/// `q` is `[batch, queries, heads, head_dim]`, `k` and `v` are `[batch, keys, num_kv_heads, head_dim]`, or with the heads first, of one
/// element type: `heads` is a multiple of `num_kv_heads`, a head has up to 256 elements, and those of `v` may have another number. The
/// result is like `q` with the elements of `v`. Tensors are read where they lie if their last stride is 1, so that parts of a fused
/// tensor and transposed ones are not copied.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use warpwright_candle::ops::{AttentionOptions, attention};
///
/// # fn main() -> candle_core::Result<()> {
/// // Two queries and keys of one head that are all alike: the second query has the mean of both values.
/// let q = Tensor::zeros((1, 2, 1, 2), DType::F32, &Device::Cpu)?;
/// let v = Tensor::new(&[1f32, 2.0, 3.0, 6.0], &Device::Cpu)?.reshape((1, 2, 1, 2))?;
/// let o = attention(&q, &q, &v, AttentionOptions { causal: true, ..Default::default() })?;
/// assert_eq!(o.flatten_all()?.to_vec1::<f32>()?, [1.0, 2.0, 2.0, 4.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If shapes, element types or devices do not fit each other, a head has more than 256 elements, an option is out of its range, or the
/// element type is none of f32, f64, f16 and bf16.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, options: AttentionOptions<'_>) -> Result<Tensor> {
    static PLANS: PlanCache<AttentionDesc> = PlanCache::new();
    let call = Call::new(OP, ("q", q))?;
    let heads_at = if options.heads_first { Heads::First } else { Heads::AfterSteps };
    let read = |argument, x| heads_at.read(&call, (argument, x));
    let [q_read, k_read, v_read] = [read("q", q)?, read("k", k)?, read("v", v)?];
    let k_read = call.expect_dtype(k_read, ("k", k), q_read.dtype)?;
    let v_read = call.expect_dtype(v_read, ("v", v), q_read.dtype)?;
    let dtype = q_read.dtype;
    let &[batch, queries, heads, _] = &q_read.shape[..] else { return Err(Error::Order { op: OP }.into()) };
    let inputs = Inputs::read(&call, [q_read, k_read, v_read], [batch, heads], &options)?;
    let value_dim = inputs.v.shape[3];
    let (o, o_layout) = heads_at.spec(dtype, [batch, queries, heads, value_dim]);
    let desc = AttentionDesc {
        dtype,
        q: layout(&inputs.q),
        k: layout(&inputs.k),
        v: layout(&inputs.v),
        o: o_layout,
        options: inputs.describe(&options),
    };
    let plan = call.plan(&PLANS, &desc)?;
    let lse = Spec::new(dtype.accumulator(), &[batch, heads, queries]);
    let outputs = [Some(o), Some(lse), call.workspace(&plan)];
    let [o, lse, _] = call.run(inputs.arrays(), outputs, |stream, arrays, [o, lse, workspace]| {
        let (inputs, o, lse) = (bound(arrays), present(o), present(lse));
        Ok(plan.launch(stream, AttentionArgs { inputs, o, lse, workspace })?)
    })?;
    let lse = present(lse).into_array()?;
    let named =
        [("q", Some(q)), ("k", Some(k)), ("v", Some(v)), ("bias", options.bias), ("sinks", options.sinks)];
    let tracked: Vec<_> = named.into_iter().filter_map(|(name, x)| Some((name, x?))).collect();
    let wanted = [options.bias, options.sinks].map(|x| x.is_some_and(Tensor::track_op));
    let present_options = [options.bias, options.sinks].map(|x| x.is_some());
    record(OP, &tracked, present(o), move |o, dy| {
        let saved = Saved { desc: &desc, inputs: &inputs, lse: &lse, heads_at };
        saved.gradients(o, dy, wanted, present_options)
    })
}

/// Arguments of the kernels of both directions.
struct Inputs {
    q: Array,
    k: Array,
    v: Array,
    bias: Option<Array>,
    slopes: Option<Array>,
    key_lengths: Option<Array>,
    sinks: Option<Array>,
}

impl Inputs {
    fn read(
        call: &Call,
        [q, k, v]: [Array; 3],
        [batch, heads]: [usize; 2],
        options: &AttentionOptions<'_>,
    ) -> Result<Self> {
        let bias = options.bias.map(|bias| {
            if bias.rank() != 4 {
                let expected = "[batch, heads, queries, keys], of which each may be 1";
                return Err(call.refuse_shape(("bias", bias), expected));
            }
            call.expect_dtype(call.read(("bias", bias))?, ("bias", bias), q.dtype)
        });
        let slopes = options.alibi_slopes.map(|slopes| {
            let shape: &[usize] = if slopes.rank() == 1 { &[heads] } else { &[batch, heads] };
            call.expect(("alibi_slopes", slopes), DType::F32, shape)
        });
        let key_lengths = options.key_lengths.map(|lengths| call.lengths(("key_lengths", lengths), &[batch]));
        let sinks = call.optional("sinks", options.sinks, DType::F32, &[heads])?;
        Ok(Self {
            q,
            k,
            v,
            bias: bias.transpose()?,
            slopes: slopes.transpose()?,
            key_lengths: key_lengths.transpose()?,
            sinks,
        })
    }

    fn describe(&self, options: &AttentionOptions<'_>) -> kernels::AttentionOptions {
        kernels::AttentionOptions {
            softmax_scale: options.softmax_scale.map(Real::new),
            causal: options.causal,
            window: options.window,
            alignment: options.alignment,
            softcap: options.softcap.map(Real::new),
            bias: self.bias.as_ref().map(layout),
            alibi: self.slopes.as_ref().map(|slopes| match slopes.shape.len() {
                1 => AlibiSlopes::PerHead,
                _ => AlibiSlopes::PerBatchAndHead,
            }),
            key_lengths: self.key_lengths.is_some(),
            sinks: self.sinks.is_some(),
            ..kernels::AttentionOptions::default()
        }
    }

    fn arrays(&self) -> [Option<&Array>; 7] {
        let Self { q, k, v, bias, slopes, key_lengths, sinks } = self;
        let optional = [bias, slopes, key_lengths, sinks].map(Option::as_ref);
        let [bias, slopes, key_lengths, sinks] = optional;
        [Some(q), Some(k), Some(v), bias, slopes, key_lengths, sinks]
    }
}

fn bound([q, k, v, bias, slopes, key_lengths, sinks]: [Option<TensorRef<'_>>; 7]) -> AttentionInputs<'_> {
    let inputs = AttentionInputs::new(present(q), present(k), present(v));
    AttentionInputs { bias, slopes, key_lengths, sinks, ..inputs }
}

/// The layout of an array of four dimensions.
/// Inputs of the backward pass.
struct Saved<'a> {
    desc: &'a AttentionDesc,
    inputs: &'a Inputs,
    lse: &'a Array,
    heads_at: Heads,
}

impl Saved<'_> {
    fn gradients(
        &self,
        o: &Tensor,
        dy: &Tensor,
        [of_bias, of_sinks]: [bool; 2],
        [has_bias, has_sinks]: [bool; 2],
    ) -> Result<Vec<Option<Tensor>>> {
        static PLANS: PlanCache<AttentionBackwardDesc> = PlanCache::new();
        let Self { desc, inputs, lse, heads_at } = *self;
        let call = Call::new(OP, ("dy", dy))?;
        let (dy, o) = (heads_at.read(&call, ("dy", dy))?, heads_at.read(&call, ("o", o))?);
        let [(dq, dq_layout), (dk, dk_layout), (dv, dv_layout)] =
            [desc.q.shape, desc.k.shape, desc.v.shape].map(|shape| heads_at.spec(desc.dtype, shape));
        let backward = AttentionBackwardDesc {
            forward: desc.clone(),
            dy: layout(&dy),
            dq: dq_layout,
            dk: dk_layout,
            dv: dv_layout,
            dbias: of_bias,
            dsinks: of_sinks,
        };
        let plan = call.plan(&PLANS, &backward)?;
        let dbias = inputs.bias.as_ref().filter(|_| of_bias).map(Spec::like);
        let dsinks = inputs.sinks.as_ref().filter(|_| of_sinks).map(Spec::like);
        let outputs = [Some(dq), Some(dk), Some(dv), dbias, dsinks, call.workspace(&plan)];
        let [q, k, v, bias, slopes, key_lengths, sinks] = inputs.arrays();
        let read = [q, k, v, bias, slopes, key_lengths, sinks, Some(&o), Some(lse), Some(&dy)];
        let [dq, dk, dv, dbias, dsinks, _] = call.run(read, outputs, |stream, arrays, outputs| {
            let [q, k, v, bias, slopes, key_lengths, sinks, o, lse, dy] = arrays;
            let [dq, dk, dv, dbias, dsinks, workspace] = outputs;
            let args = AttentionBackwardArgs {
                inputs: bound([q, k, v, bias, slopes, key_lengths, sinks]),
                o: present(o),
                lse: present(lse),
                dy: present(dy),
                dq: present(dq),
                dk: present(dk),
                dv: present(dv),
                dbias,
                dsinks,
                workspace,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let tensor = |made: Option<Made>| made.map(Made::into_tensor).transpose();
        let mut all = vec![tensor(dq)?, tensor(dk)?, tensor(dv)?];
        all.extend(has_bias.then(|| tensor(dbias)).transpose()?);
        all.extend(has_sinks.then(|| tensor(dsinks)).transpose()?);
        Ok(all)
    }
}

/// [`attention`] with the arguments of `candle_flash_attn::flash_attn`: tensors are `[batch, steps, heads, head_dim]`.
///
/// # Errors
/// As [`attention`].
pub fn flash_attn(q: &Tensor, k: &Tensor, v: &Tensor, softmax_scale: f32, causal: bool) -> Result<Tensor> {
    let softmax_scale = Some(softmax_scale.into());
    attention(q, k, v, AttentionOptions { softmax_scale, causal, ..AttentionOptions::default() })
}

/// [`attention`] with the arguments of [`candle_nn::ops::sdpa`], which exists on Metal alone and has no gradient: tensors are `[batch,
/// heads, steps, head_dim]`, `mask` is added to the scores and may lack leading dimensions, and a `softcapping` of 1 is none.
///
/// # Errors
/// As [`attention`].
pub fn sdpa(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    do_causal: bool,
    scale: f32,
    softcapping: f32,
) -> Result<Tensor> {
    let mask = mask.map(|mask| {
        let missing = 4usize.saturating_sub(mask.rank());
        mask.reshape([&[1; 4][..missing], mask.dims()].concat())
    });
    let mask = mask.transpose()?;
    let options = AttentionOptions {
        heads_first: true,
        softmax_scale: Some(scale.into()),
        causal: do_causal,
        softcap: (softcapping != 1.0).then_some(softcapping.into()),
        bias: mask.as_ref(),
        ..AttentionOptions::default()
    };
    attention(q, k, v, options)
}
