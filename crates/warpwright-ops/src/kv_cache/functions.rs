//! Free functions: take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor, TensorMut, TensorRef};

use super::{AppendKvCacheArgs, AppendKvCacheDesc, CacheRotation, OP, refused};
use crate::Error;
use crate::PlanError;
use crate::attention::{Float8Cache, Paged};
use crate::plan::{Layout, PlanCache};
use crate::rotary::{Pairing, tables_of};

/// The keys and values of sequences, as [`attention`](fn@crate::attention::attention) takes them.
#[derive(Debug)]
pub struct KvCache<'a> {
    /// `[batch, capacity, num_kv_heads, head_dim]`, or `[pages, rows of a page, num_kv_heads, head_dim]` with a block table.
    pub k: TensorMut<'a>,
    /// The same, with the head_dim of the values.
    pub v: TensorMut<'a>,
    /// Keys of each sequence with the new ones: `[batch]` in i32; `None` is the new ones alone.
    pub key_lengths: Option<TensorRef<'a>>,
    /// The pages of each sequence: `[batch, pages]` in i32.
    pub block_table: Option<TensorRef<'a>>,
    /// The scale of keys of e4m3, by which attention multiplies them: `[1]` or `[num_kv_heads]` in f32; see [`Float8Cache`].
    pub k_scale: Option<TensorRef<'a>>,
    /// The scale of values of e4m3, likewise.
    pub v_scale: Option<TensorRef<'a>>,
}

impl<'a> KvCache<'a> {
    /// A cache that holds the new keys and values alone, without pages and scales.
    pub fn new(k: impl Into<TensorMut<'a>>, v: impl Into<TensorMut<'a>>) -> Self {
        let (k, v) = (k.into(), v.into());
        Self { k, v, key_lengths: None, block_table: None, k_scale: None, v_scale: None }
    }
}

/// How [`append_kv_cache_rotary`] rotates queries and keys.
#[derive(Clone, Copy, Debug)]
pub struct CacheRotary<'a> {
    /// Cosines of each position: `[rows, rotary_dim / 2]`, or `[rows, rotary_dim]` with each number twice; f32 or the type of the keys.
    pub cos: TensorRef<'a>,
    /// Sines, likewise.
    pub sin: TensorRef<'a>,
    /// Which elements are rotated together.
    pub pairing: Pairing,
    /// Elements of a head that are rotated, an even number; `None` is all of them.
    pub rotary_dim: Option<usize>,
}

impl<'a> CacheRotary<'a> {
    /// All elements of a head, in halves.
    pub fn new(cos: impl Into<TensorRef<'a>>, sin: impl Into<TensorRef<'a>>) -> Self {
        Self { cos: cos.into(), sin: sin.into(), pairing: Pairing::default(), rotary_dim: None }
    }

    fn describe(&self, head_dim: usize) -> Result<CacheRotation, PlanError> {
        let rotary_dim = self.rotary_dim.unwrap_or(head_dim);
        if self.cos.shape().len() != 2 {
            return Err(refused("cos", format!("{:?}", self.cos.shape()), "[rows, ..]"));
        }
        let tables = tables_of(OP, (&self.cos, &self.sin), rotary_dim)?;
        Ok(CacheRotation { pairing: self.pairing, rotary_dim, tables })
    }
}

fn layout(parameter: &'static str, x: &TensorRef<'_>) -> Result<Layout, PlanError> {
    let expected = "4 dimensions: [batch, steps, heads, head_dim]";
    Layout::of(x).ok_or_else(|| refused(parameter, format!("{:?}", x.shape()), expected))
}

static PLANS: PlanCache<AppendKvCacheDesc> = PlanCache::new();

/// Launches the plan for queries in their layouts, if there are any.
fn launch<'a>(
    stream: &Stream,
    (q, q_rotated, of_q): (Option<TensorRef<'a>>, Option<TensorMut<'a>>, Option<[Layout; 2]>),
    [k, v]: [TensorRef<'a>; 2],
    rotary: Option<CacheRotary<'a>>,
    cache: KvCache<'a>,
) -> Result<(), Error> {
    let KvCache { k: k_cache, v: v_cache, key_lengths, block_table, k_scale, v_scale } = cache;
    let paged = block_table.as_ref().map(|table| match *table.shape() {
        [_, pages] => Ok(Paged { pages }),
        _ => Err(refused("block_table", format!("{:?}", table.shape()), "[batch, pages]")),
    });
    let of_k = layout("k", &k)?;
    let scales = [&k_scale, &v_scale].map(|scale| scale.as_ref().map(TensorRef::shape));
    let caches = [("k_cache", k_cache.reading().dtype()), ("v_cache", v_cache.reading().dtype())];
    let desc = AppendKvCacheDesc {
        dtype: k.dtype(),
        q: of_q,
        k: of_k,
        v: layout("v", &v)?,
        k_cache: layout("k_cache", k_cache.reading())?,
        v_cache: layout("v_cache", v_cache.reading())?,
        rotation: rotary.map(|rotary| rotary.describe(of_k.shape[3])).transpose()?,
        key_lengths: key_lengths.is_some(),
        paged: paged.transpose()?,
        float8: Float8Cache::describe(OP, caches, scales, of_k.shape[2])?,
    };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let (cos, sin) = (rotary.map(|rotary| rotary.cos), rotary.map(|rotary| rotary.sin));
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
}

/// Writes new keys and values to the cache of their sequences, as vLLM's `reshape_and_cache` and FlashInfer's `append_paged_kv_cache`; see
/// the [module](crate::kv_cache).
///
/// `k` and `v` are `[batch, steps, num_kv_heads, head_dim]` of f32, f64, f16 or bf16, with any strides but 1 in the last dimension; the head_dim
/// of `v` may differ. The caches are of that type, or of e4m3 with scales.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::kv_cache::KvCache;
/// use warpwright::{DType, Device, Tensor, append_kv_cache};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let mut keys = Tensor::zeros(&device, DType::F32, &[1, 4, 1, 2])?;
/// let mut values = Tensor::zeros(&device, DType::F32, &[1, 4, 1, 2])?;
/// let new = Tensor::from_slice(&device, &[1.0f32, 2.0], &[1, 1, 1, 2])?;
/// // With the new one the sequence has three keys.
/// let lengths = Tensor::from_slice(&device, &[3i32], &[1])?;
/// let cache = KvCache { key_lengths: Some(lengths.as_ref()), ..KvCache::new(&mut keys, &mut values) };
/// append_kv_cache(&stream, &new, &new, cache)?;
/// assert_eq!(keys.to_vec_on::<f32>(&stream)?, [0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if shapes do not fit each other, an element type is none of those, or there are caches of e4m3 without scales or before sm_89.
/// [`Error::Runtime`] if lengths or block table are not contiguous. Tokens without a place in the cache are not written; [`check_key_lengths`](crate::attention::check_key_lengths) and
/// [`check_block_table`](crate::attention::check_block_table) find them on the host.
pub fn append_kv_cache<'a>(
    stream: &Stream,
    k: impl Into<TensorRef<'a>>,
    v: impl Into<TensorRef<'a>>,
    cache: KvCache<'a>,
) -> Result<(), Error> {
    launch(stream, (None, None, None), [k.into(), v.into()], None, cache)
}

/// [`append_kv_cache`] with rotary position embedding in the same launch, as FlashAttention's `flash_attn_with_kvcache` has it: new keys are
/// rotated by the angles of their positions on their way to the cache, and the result is the queries rotated by the same.
///
/// `q` is `[batch, steps, heads, head_dim]` of the type of `k`; the result is contiguous.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::kv_cache::{CacheRotary, KvCache};
/// use warpwright::{DType, Device, Tensor, append_kv_cache_rotary};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let mut keys = Tensor::zeros(&device, DType::F32, &[1, 2, 1, 2])?;
/// let mut values = Tensor::zeros(&device, DType::F32, &[1, 2, 1, 2])?;
/// let new = Tensor::from_slice(&device, &[1.0f32, 2.0], &[1, 1, 1, 2])?;
/// // The second position is turned by a right angle.
/// let cos = Tensor::from_slice(&device, &[1.0f32, 0.0], &[2, 1])?;
/// let sin = Tensor::from_slice(&device, &[0.0f32, 1.0], &[2, 1])?;
/// let lengths = Tensor::from_slice(&device, &[2i32], &[1])?;
/// let cache = KvCache { key_lengths: Some(lengths.as_ref()), ..KvCache::new(&mut keys, &mut values) };
/// let q = append_kv_cache_rotary(&stream, &new, &new, &new, CacheRotary::new(&cos, &sin), cache)?;
/// assert_eq!(q.to_vec_on::<f32>(&stream)?, [-2.0, 1.0]);
/// assert_eq!(keys.to_vec_on::<f32>(&stream)?, [0.0, 0.0, -2.0, 1.0]);
/// assert_eq!(values.to_vec_on::<f32>(&stream)?, [0.0, 0.0, 1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`append_kv_cache`]; [`Error::Plan`], too, if `rotary_dim` is odd or beyond head_dim, or the tables do not have rows of it.
/// [`Error::Runtime`], too, if the tables are not contiguous, or memory runs out. A position that the tables have no row for gives NaN.
pub fn append_kv_cache_rotary<'a>(
    stream: &Stream,
    q: impl Into<TensorRef<'a>>,
    k: impl Into<TensorRef<'a>>,
    v: impl Into<TensorRef<'a>>,
    rotary: CacheRotary<'a>,
    cache: KvCache<'a>,
) -> Result<Tensor, Error> {
    let q = q.into();
    let of_q = layout("q", &q)?;
    let mut rotated = Tensor::empty_on(stream, q.dtype(), q.shape())?;
    let layouts = [of_q, Layout::contiguous(of_q.shape)];
    append_to(stream, (Some(q), rotated.as_mut(), layouts), [k.into(), v.into()], rotary, cache)?;
    Ok(rotated)
}

/// [`append_kv_cache_rotary`] in place: the queries `[batch, steps, heads, head_dim]` become the rotated ones.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::kv_cache::{CacheRotary, KvCache};
/// use warpwright::{DType, Device, Tensor, append_kv_cache_rotary_in_place};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let mut keys = Tensor::zeros(&device, DType::F32, &[1, 1, 1, 2])?;
/// let mut values = Tensor::zeros(&device, DType::F32, &[1, 1, 1, 2])?;
/// let new = Tensor::from_slice(&device, &[1.0f32, 2.0], &[1, 1, 1, 2])?;
/// let mut q = Tensor::from_slice(&device, &[3.0f32, 4.0], &[1, 1, 1, 2])?;
/// // Half a turn.
/// let cos = Tensor::from_slice(&device, &[-1.0f32], &[1, 1])?;
/// let sin = Tensor::from_slice(&device, &[0.0f32], &[1, 1])?;
/// let cache = KvCache::new(&mut keys, &mut values);
/// append_kv_cache_rotary_in_place(&stream, &mut q, &new, &new, CacheRotary::new(&cos, &sin), cache)?;
/// assert_eq!(q.to_vec_on::<f32>(&stream)?, [-3.0, -4.0]);
/// assert_eq!(keys.to_vec_on::<f32>(&stream)?, [-1.0, -2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`append_kv_cache_rotary`].
pub fn append_kv_cache_rotary_in_place<'a>(
    stream: &Stream,
    q: impl Into<TensorMut<'a>>,
    k: impl Into<TensorRef<'a>>,
    v: impl Into<TensorRef<'a>>,
    rotary: CacheRotary<'a>,
    cache: KvCache<'a>,
) -> Result<(), Error> {
    let q = q.into();
    let of_q = layout("q", q.reading())?;
    append_to(stream, (None, q, [of_q; 2]), [k.into(), v.into()], rotary, cache)
}

/// With tensors that live only as long as the call.
fn append_to(
    stream: &Stream,
    (q, rotated, layouts): (Option<TensorRef<'_>>, TensorMut<'_>, [Layout; 2]),
    new: [TensorRef<'_>; 2],
    rotary: CacheRotary<'_>,
    cache: KvCache<'_>,
) -> Result<(), Error> {
    launch(stream, (q, Some(rotated), Some(layouts)), new, Some(rotary), cache)
}
