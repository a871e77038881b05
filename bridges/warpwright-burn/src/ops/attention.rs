//! Scaled dot-product attention.

use burn::tensor::{Int, Tensor};
use warpwright::attention::{Alignment, Scores, Window};

use crate::call::Call;
use crate::error::Error;
use crate::graph::{Inputs, Written};

const OP: &str = "attention";

/// Masks and modifications of the scores; the default is none.
#[derive(Clone, Debug, Default)]
pub struct AttentionOptions {
    /// The factor of the products, positive and finite; `None` is `1 / sqrt(head_dim)`.
    pub scale: Option<f64>,
    /// Whether a query sees no key after its position.
    pub causal: bool,
    /// The keys near its position that it sees.
    pub window: Window,
    /// Where the positions of the queries begin.
    pub alignment: Alignment,
    /// `score = softcap tanh(score / softcap)`
    pub softcap: Option<f64>,
    /// Added to the scores: `[batch, heads, queries, keys]`, of which each may be 1, of the element type of `q`. It has a gradient.
    pub bias: Option<Tensor<4>>,
    /// Keys of each sequence, `[batch]`. More than there are count as all of them.
    pub key_lengths: Option<Tensor<1, Int>>,
    /// A logit of each head that takes part in the sum of exponentials and in nothing else, `[heads]`, f32. It has a gradient.
    pub sinks: Option<Tensor<1>>,
}

/// The options that are numbers.
#[derive(Clone, Copy)]
struct Numbers {
    scale: Option<f64>,
    causal: bool,
    window: Window,
    alignment: Alignment,
    softcap: Option<f64>,
}

impl Numbers {
    fn scores<'a>(&self, inputs: &'a Inputs) -> Scores<'a> {
        Scores {
            softmax_scale: self.scale,
            causal: self.causal,
            window: self.window,
            alignment: self.alignment,
            softcap: self.softcap,
            bias: inputs.get("bias").map(Into::into),
            key_lengths: inputs.get("key_lengths").map(Into::into),
            sinks: inputs.get("sinks").map(Into::into),
            dbias: inputs.tracked("bias"),
            dsinks: inputs.tracked("sinks"),
            ..Scores::default()
        }
    }
}

/// `softmax(score) v` with `score = softcap(scale q k^T) + bias`, without a matrix of scores in memory, and its gradients, as
/// [`burn::tensor::module::attention`].
///
/// `q` is `[batch, heads, queries, head_dim]`, `k` and `v` are `[batch, num_kv_heads, keys, head_dim]`, of one element type: `heads` is a
/// multiple of `num_kv_heads`, a head has up to 256 elements, and those of `v` may have another number. The result is like `q` with the
/// elements of `v`.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use warpwright_burn::ops::{AttentionOptions, attention};
///
/// # fn main() -> Result<(), warpwright_burn::Error> {
/// // Two queries and keys of one head that are all alike: the second query has the mean of both values.
/// let device = Device::flex();
/// let q = Tensor::<4>::zeros([1, 1, 2, 2], &device);
/// let v = Tensor::<4>::from_data([[[[1f32, 2.0], [3.0, 6.0]]]], &device);
/// let o = attention(q.clone(), q, v, AttentionOptions { causal: true, ..Default::default() })?;
/// assert_eq!(o.into_data().as_slice::<f32>().unwrap(), [1.0, 2.0, 2.0, 4.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If shapes or element types do not fit each other, a head has more than 256 elements, an option is out of its range, the element type
/// is none of f32, f64, f16 and bf16, or the device is not Flex.
pub fn attention(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    options: AttentionOptions,
) -> Result<Tensor<4>, Error> {
    let AttentionOptions { scale, causal, window, alignment, softcap, bias, key_lengths, sinks } = options;
    let numbers = Numbers { scale, causal, window, alignment, softcap };
    // Kernels have the heads after the time steps.
    let [q, k, v] = [q, k, v].map(|x| x.swap_dims(1, 2));
    let call = Call::new(OP).float("q", q)?.float("k", k)?.float("v", v)?;
    let call = call.optional("bias", bias)?.optional("sinks", sinks)?;
    let call = call.lengths("key_lengths", key_lengths)?;
    let mut results = call.run(move |stream, inputs| {
        let [q, k, v] = ["q", "k", "v"].map(|name| inputs.of(name));
        let output = warpwright::attention(stream, q, k, v, numbers.scores(inputs))?;
        Ok(Written::of(OP, &[&output.o])?.with(move |stream, inputs, dy| {
            let [q, k, v] = ["q", "k", "v"].map(|name| inputs.of(name));
            let scores = numbers.scores(inputs);
            let back = warpwright::attention_backward(stream, q, k, v, &output, dy, scores)?;
            let mut all = vec![("q", back.dq), ("k", back.dk), ("v", back.dv)];
            all.extend(back.dbias.map(|gradient| ("bias", gradient)));
            all.extend(back.dsinks.map(|gradient| ("sinks", gradient)));
            Ok(all)
        }))
    })?;
    Ok(results.next::<4>().swap_dims(1, 2))
}
