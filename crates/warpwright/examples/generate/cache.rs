//! Keys and values of the tokens so far.

use warpwright::attention::Scores;
use warpwright::kv_cache::{CacheRotary, KvCache, append_kv_cache_rotary};
use warpwright::{DType, Error, Stream, Tensor, TensorRef, attention};

/// The keys and values of one layer, `[1, capacity, num_kv_heads, head_dim]`.
pub(crate) struct Cache {
    k: Tensor,
    v: Tensor,
    /// Of keys and values of e4m3, `[1]` in f32.
    scale: Option<Tensor>,
}

impl Cache {
    /// An empty one. The scale of e4m3 is 1, as vLLM's is for models that nobody calibrated: keys and values go up to 448.
    pub(crate) fn new(stream: &Stream, dtype: DType, shape: [usize; 3]) -> Result<Self, Error> {
        let [capacity, heads, dim] = shape;
        let empty = || Tensor::zeros_on(stream, dtype, &[1, capacity, heads, dim]);
        let scale = (dtype == DType::F8E4M3).then(|| Tensor::from_slice_on(stream, &[1.0f32], &[1]));
        Ok(Self { k: empty()?, v: empty()?, scale: scale.transpose()? })
    }

    /// Attention of new queries `[1, tokens, heads, head_dim]`, of which each sees the tokens up to its own. Queries and keys are rotated,
    /// and keys and values `[1, tokens, num_kv_heads, head_dim]` added to the cache, at places that follow on the device from `length`,
    /// `[1]` in i32: the tokens of the text with these.
    pub(crate) fn attend(
        &mut self,
        stream: &Stream,
        [q, k, v]: [TensorRef<'_>; 3],
        rotary: CacheRotary<'_>,
        length: TensorRef<'_>,
    ) -> Result<Tensor, Error> {
        let (of_k, of_v) = (self.k.as_mut(), self.v.as_mut());
        let scale = self.scale.as_ref().map(Tensor::as_ref);
        let cache =
            KvCache { key_lengths: Some(length), k_scale: scale, v_scale: scale, ..KvCache::new(of_k, of_v) };
        let q = append_kv_cache_rotary(stream, q, k, v, rotary, cache)?;
        let scores = Scores {
            causal: true,
            key_lengths: Some(length),
            k_scale: scale,
            v_scale: scale,
            ..Scores::default()
        };
        Ok(attention(stream, &q, &self.k, &self.v, scores)?.o)
    }
}
