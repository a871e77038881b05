//! Scaled dot-product attention in one pass over keys and values, and its gradients.
//!
//! `o = softmax(score) v` with `score = softcap(softmax_scale q k^T) + bias - slope distance`, where a query that sees no key
//! gives zeros. `lse`, the logarithm of the sum of exponentials, is minus infinity there; the gradients need it. The
//! online softmax is that of Milakov and Gimelshein (2018), the tiling and the backward pass are those of Dao et al. (2022,
//! 2023). No matrix of the scores is ever stored.
//!
//! | tensor | shape | |
//! |---|---|---|
//! | `q`, `o` | `[batch, queries, heads, head_dim]`, `o` with the values' head_dim | any strides, the last 1 |
//! | `k`, `v` | `[batch, keys, num_kv_heads, head_dim]`; head_dim up to 256, that of `v` may differ | any strides, the last 1 |
//! | `lse` | `[batch, heads, queries]`, f32, or f64 for f64 | contiguous |
//! | `bias` | `[batch, heads, queries, keys]`, each of them may be 1 | any strides |
//! | `slopes` | `[heads]` or `[batch, heads]`, f32 | contiguous |
//! | `key_lengths` | `[batch]`, i32 | contiguous |
//! | `query_offsets`, `key_offsets` | `[sequences + 1]`, i32: where packed sequences begin, see [`Packed`] | contiguous |
//! | `block_table` | `[batch, pages]`, i32: the pages of each sequence, see [`Paged`] | contiguous |
//! | `sinks` | `[heads]`, f32: a logit that takes part in the sum of exponentials and in nothing else | contiguous |
//! | `random` | `[2]`, i64: seed and offset of what is dropped | contiguous |
//! | `k_scale`, `v_scale` | `[1]` or `[num_kv_heads]`, f32: what elements of a [`Float8Cache`] are multiplied by | contiguous |
//! | `key_tiles`, `query_tiles`, `mask_bits` | i32: the tables of a [`BlockMask`], see [`BlockMaskTables`] | contiguous |
//!
//! `heads` is a multiple of `num_kv_heads`: query head `h` reads key head `h / (heads / num_kv_heads)`. A tensor
//! `[batch, heads, sequence, head_dim]` is one of other strides.
//!
//! The position of a query is its index with [`Alignment::TopLeft`], and its index plus keys minus queries with
//! [`Alignment::BottomRight`], which lets the last query see the last key. `causal` leaves it the keys up to its position, a
//! window those near it. With `key_lengths` the keys of each sequence end there, for positions too.
//!
//! Kernels follow no number out of a tensor: a key length is cut to the keys that there are, offsets to the rows of the tensor and to
//! what does not decrease, and a number of the block table to the pages that exist. What is on the host can be checked there:
//! [`check_key_lengths`], [`check_offsets`], [`check_block_table`].
//!
//! A [`BlockMask`] says of each pair whether they see each other, for masks that positions do not give: documents, prefixes, windows with global
//! tokens, trees. Tiles that nobody sees are not visited, and bits are read for tiles that are seen in part alone. It is the whole mask: there is no
//! other beside it, neither a bias nor lengths nor packed or paged sequences.
//!
//! Dropout leaves out probabilities after the softmax: that of query `i` and key `j` is the element `2^28 row + j` of
//! [`Dropout`](crate::Dropout), where `row` is the number of the query's `lse`. Both directions drop the same ones, whatever their
//! tiles. Seed and offset are read on the device, so that a captured graph can draw anew.
//!
//! Up to 16 queries without dropout, and keys in pages, are for kernels that share out the keys of a head to many blocks; their
//! results are put together in a fixed order.
//!
//! Keys and values may be of e4m3 with scales (a [`Float8Cache`], from sm_89 on), beside queries and results of f16 or bf16: the product of a query and
//! a key times `k_scale` takes the place of `q k^T`, and the result is multiplied by `v_scale`. All numbers of queries are for the kernels of few then,
//! which read e4m3 as f16 without an error: those of bf16 become f16 times a power of two for each query. There are neither packed sequences nor
//! dropout nor gradients.
//!
//! Gradients of f64 with more than 128 elements a head do not fit the shared memory of sm_75: there they have no plan.
//!
//! Half types are computed in f32 and rounded once, probabilities to the type of the values; f32 and f64 throughout in
//! themselves. On tensor cores numbers of f32 are sums of two of fewer bits, with the errors of f32; for long sequences the workspace holds
//! copies of the inputs for that, of their size. Results are the same from run to run.
//!
//! On sm_90 gradients of 16-bit types with up to 128 elements a head and at least 512 queries are computed in one sweep, in which blocks add up those of
//! the queries in a fixed order. Their workspace holds these sums, `batch * heads * queries * head_dim` numbers of f32 with `head_dim` rounded up to 64,
//! 80, 96, 112 or 128 and `queries` to whole tiles of 128, 80 or 64, and a few bytes more for each query.

mod block_mask;
mod float8;
mod functions;
mod kernels;
mod layout;
mod options;
mod plan;
pub mod reference;
pub(crate) mod samples;
mod score;
pub mod tuning;

use warpwright_ptx::DType;
use warpwright_runtime::TensorRef;

use crate::plan::Layout;
#[cfg(doc)]
use crate::plan::Plan;
use crate::tensors::tensors;

pub use block_mask::{BlockMask, BlockMaskShape, BlockMaskTables, check_block_mask};
pub(crate) use float8::WIDE;
pub use float8::{CacheScale, Float8Cache};

pub use functions::*;
pub use options::{
    AlibiSlopes, Alignment, AttentionOptions, Packed, Paged, Window, check_block_table, check_key_lengths,
    check_offsets,
};
pub use plan::{Algorithm, BackwardAlgorithm};
pub use score::MASK_TILE;

const OP: &str = "attention";

/// The type of `lse` and of the other sums over a row.
pub(crate) fn statistics_type(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// `o` and `lse` from queries, keys and values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionDesc {
    /// Element type of all tensors but `lse`, `slopes`, numbers of rows and pages, and keys and values of a [`Float8Cache`] with their
    /// scales.
    pub dtype: DType,
    /// Layout of the queries.
    pub q: Layout,
    /// Layout of the keys.
    pub k: Layout,
    /// Layout of the values.
    pub v: Layout,
    /// Layout of the result.
    pub o: Layout,
    /// Masks and modifications of the scores.
    pub options: AttentionOptions,
}

tensors! {
    /// The tensors that both directions read. Those that are optional are there if the descriptor says so.
    #[derive(Clone, Copy)]
    pub struct AttentionInputs<'a> {
        /// Queries.
        q: In,
        /// Keys.
        k: In,
        /// Values.
        v: In,
        /// Added to the scores.
        bias: Option<In>,
        /// Slopes of the heads on the distance.
        slopes: Option<In>,
        /// Keys of each sequence.
        key_lengths: Option<In>,
        /// Where the queries of packed sequences begin and end.
        query_offsets: Option<In>,
        /// Where the keys of packed sequences begin and end.
        key_offsets: Option<In>,
        /// The pages of each sequence.
        block_table: Option<In>,
        /// A further logit of each head.
        sinks: Option<In>,
        /// Seed and offset of what is dropped.
        random: Option<In>,
        /// The scale of the keys of a [`Float8Cache`].
        k_scale: Option<In>,
        /// The scale of its values.
        v_scale: Option<In>,
        /// The tiles of keys of each tile of queries of a [`BlockMask`].
        key_tiles: Option<In>,
        /// The tiles of queries of each tile of keys.
        query_tiles: Option<In>,
        /// The bits of the tiles that are seen in part.
        mask_bits: Option<In>,
    }
}

impl<'a> AttentionInputs<'a> {
    /// Queries, keys and values alone.
    pub const fn new(q: TensorRef<'a>, k: TensorRef<'a>, v: TensorRef<'a>) -> Self {
        Self {
            q,
            k,
            v,
            bias: None,
            slopes: None,
            key_lengths: None,
            query_offsets: None,
            key_offsets: None,
            block_table: None,
            sinks: None,
            random: None,
            k_scale: None,
            v_scale: None,
            key_tiles: None,
            query_tiles: None,
            mask_bits: None,
        }
    }
}

tensors! {
    /// Tensors of [`AttentionDesc`].
    pub struct AttentionArgs<'a> {
        /// The tensors that are read.
        inputs: Group<AttentionInputs>,
        /// The result.
        o: Out,
        /// Logarithms of the sums of exponentials.
        lse: Out,
        /// [`Plan::workspace`]
        workspace: Option<Out>,
    }
}

/// The gradients of [`AttentionDesc`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionBackwardDesc {
    /// The forward function.
    pub forward: AttentionDesc,
    /// Layout of the gradient of the result.
    pub dy: Layout,
    /// Layout of the gradient of the queries.
    pub dq: Layout,
    /// Layout of the gradient of the keys.
    pub dk: Layout,
    /// Layout of the gradient of the values.
    pub dv: Layout,
    /// Whether there is a gradient of the bias, contiguous and of its shape: the sum over what it is broadcast over.
    pub dbias: bool,
    /// Whether there is a gradient of the sinks.
    pub dsinks: bool,
}

tensors! {
    /// Tensors of [`AttentionBackwardDesc`].
    pub struct AttentionBackwardArgs<'a> {
        /// The tensors that the forward function read.
        inputs: Group<AttentionInputs>,
        /// The result.
        o: In,
        /// Logarithms of the sums of exponentials.
        lse: In,
        /// The gradient of the result.
        dy: In,
        /// The gradient of the queries.
        dq: Out,
        /// The gradient of the keys.
        dk: Out,
        /// The gradient of the values.
        dv: Out,
        /// The gradient of the bias, if described.
        dbias: Option<Out>,
        /// The gradient of the sinks, if described.
        dsinks: Option<Out>,
        /// [`Plan::workspace`]
        workspace: Option<Out>,
    }
}
