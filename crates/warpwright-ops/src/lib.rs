//! Deep-learning primitives as PTX kernels.
//!
//! Each family is one folder with the same files: the descriptors and their plans (`mod.rs`), the kernels
//! (`kernel.rs`), which of them runs when (`tuning.rs`), and the definition in plain f64 Rust (`reference.rs`).
//!
//! # The free functions
//!
//! They have one form. Forward, `op(stream, inputs.., options)`: where the gradient needs nothing but what the caller holds, the result is
//! a tensor; otherwise it is an `..Output` with the result and what was saved. Backward, `op_backward(stream, inputs.., output, dy, options)`
//! takes the same inputs and options, that output as it is, and the gradient of the result; it gives a tensor, or `..Gradients` with a
//! field for each input. All normalizations share [`NormOutput`] and [`NormGradients`]. `inference: true` in the options saves nothing,
//! and there is no backward pass then. Random numbers are a [`Dropout`], lengths of sequences are i32 on the device, wherever there are any.
//!
//! # Plans
//!
//! An operation is planned and then launched. Planning is pure: it needs no GPU, and the same descriptor and target give
//! the same kernels everywhere. Launching checks the arguments and enqueues; it does not allocate or wait. The free
//! functions ([`activation::gelu_erf`] and its neighbours) do both and allocate the result.
//!
//! | family | operations | element types |
//! |---|---|---|
//! | [`activation`] | relu, leaky_relu, gelu_tanh, gelu_erf, silu, sigmoid, tanh, softplus, swiglu, geglu, geglu_tanh, and their gradients | f32, f64, f16, bf16 |
//! | [`mod@attention`] | scaled dot-product attention with masks, bias, windows and soft capping, and its gradients | f32, f64, f16, bf16 |
//! | [`batch_norm`] | batch_norm (training), batch_norm_inference, with residual and ReLU, and their gradients | f32, f64, f16, bf16 |
//! | [`mod@cast`] | elements in another type | f32, f64, f16, bf16 |
//! | [`mod@conv`] | convolutions over one to three dimensions, with bias and activation, and their gradients; channels first and last | f32, f64, f16, bf16 |
//! | [`mod@causal_conv1d`] | causal depthwise convolution along time with 2 to 4 taps, its gradients, and steps | f32, f64, f16, bf16 |
//! | [`mod@chunk_scan`] | the scan of Mamba 2 by products over chunks, and its gradients | f16, bf16 |
//! | [`mod@selective_scan`] | the scan of selective state spaces, its gradients, and steps | f32, f64, f16, bf16 |
//! | [`mod@copy`] | permute, cat, split | every type |
//! | [`mod@elementwise`] | expressions of up to six tensors with broadcasting in one launch; dropout | f32, f64, f16, bf16, masks of u8 |
//! | [`gemm`] | products of matrices, one or a batch, with bias and activation | f32, f64, f16, bf16 |
//! | [`scaled_gemm`] | products of e4m3, e5m2 (from sm_89 on) or int8 matrices with scales, with bias and activation; int8 to i32 | f32, f16, bf16 |
//! | [`grouped_gemm`] | products of ragged groups of rows or of the common dimension, whose ends are on the device | f32, f16, bf16 |
//! | [`mod@matmul_4bit`] | products with nf4, fp4, int4, int4_asymmetric, mxfp4 and nvfp4 weights as checkpoints store them, with bias, and their gradients by x | f32, f16, bf16 |
//! | [`group_norm`] | group_norm with optional silu, instance_norm, and their gradients; channels first and last | f32, f64, f16, bf16 |
//! | [`quantize`] | quantize and dequantize nf4, fp4, int4, int4_asymmetric; nested statistics | f32, f64, f16, bf16 |
//! | [`mod@quantize8`] | quantize and dequantize e4m3, e5m2 (from sm_89 on) and int8, with a scale for a tensor, a row, 1 x 128 or 128 x 128 elements | f32, f16, bf16 |
//! | [`mod@quantize_dynamic`] | quantize and dequantize by the 8-bit dynamic maps, signed and unsigned, with a maximum for 256 or 4096 elements | f32, f16, bf16 |
//! | [`layer_norm`] | layer_norm, rms_norm, with a fused residual, and their gradients | f32, f64, f16, bf16 |
//! | [`local_response_norm`] | local_response_norm and its gradient | f32, f64, f16, bf16 |
//! | [`pool`] | max_pool, avg_pool, adaptive_max_pool, adaptive_avg_pool in one to three dimensions, and their gradients; channels first and last | f32, f64, f16, bf16 |
//! | [`optimizer`] | adamw, adam, sgd, grad_norm, clip_grad_norm over lists of parameters | f32, f64, f16, bf16 |
//! | [`mod@cumsum`] | cumulative sums along a dimension, inclusive or exclusive, in both directions | f32, f64, f16, bf16, i32, i64 |
//! | [`reduce`] | sum, mean, amax, amin over any dimensions; argmax, argmin over one | f32, f64, f16, bf16 |
//! | [`mod@topk`] | the k largest or least elements of rows, and the gradient | f32, f64, f16, bf16 |
//! | [`mod@resize`] | images at other extents: nearest, linear, bicubic, and their gradients; channels first and last | f32, f64, f16, bf16 |
//! | [`mod@cross_entropy`] | the loss of classes from logits, and its gradient | f32, f64, f16, bf16 |
//! | [`mod@linear_cross_entropy`] | the loss of classes from a linear layer in chunks of rows, with its gradients in the same call | f32, f64, f16, bf16 |
//! | [`mod@embedding`] | rows of a table by their indices (index_select), and the gradient of the table in a fixed order | f32, f64, f16, bf16 |
//! | [`gather_scatter`] | gather_rows (index_select), scatter_rows (index_add) with factors and in a fixed order, row_dots | f32, f64, f16, bf16 |
//! | [`mod@recurrent`] | lstm, gru, rnn over sequences, with layers, directions and lengths, and their gradients | f32, f64, f16, bf16 |
//! | [`rotary`] | rotary_embedding of queries and keys, both pairings, by tables and positions, and its gradient | f32, f64, f16, bf16 |
//! | [`kv_cache`] | append_kv_cache: new keys and values of sequences to the cache of attention, with rotary position embedding in the same launch | f32, f64, f16, bf16 |
//! | [`softmax`] | softmax and log_softmax over any dimension, and their gradients | f32, f64, f16, bf16 |

#![forbid(unsafe_code)]

pub mod activation;
pub mod attention;
pub mod batch_norm;
pub mod cast;
pub mod catalogue;
pub mod causal_conv1d;
pub mod chunk_scan;
pub mod conv;
pub mod copy;
pub mod cross_entropy;
pub mod cumsum;
mod dropout;
pub mod dynamic_map;
pub mod elementwise;
pub mod embedding;
mod error;
pub mod gather_scatter;
pub mod gemm;
pub mod group_norm;
pub mod grouped_gemm;
mod images;
pub mod kv_cache;
pub mod layer_norm;
pub mod linear_cross_entropy;
pub mod local_response_norm;
pub mod matmul_4bit;
mod norm;
pub mod optimizer;
pub mod plan;
pub mod pool;
pub mod quantize;
pub mod quantize8;
pub mod quantize_dynamic;
pub mod recurrent;
pub mod reduce;
pub mod resize;
pub mod rotary;
pub mod scaled_gemm;
pub mod selective_scan;
pub mod softmax;
mod tensors;
pub mod topk;

pub use catalogue::{Direction, Entry, catalogue};
pub use dropout::Dropout;
pub use error::{Error, PlanError};
pub use norm::{NormGradients, NormOutput};
pub use plan::{Binding, Operation, Plan};
pub use tensors::Arguments;

/// Every family, in the order of the catalogue.
pub(crate) const FAMILIES: &[&catalogue::Family] = &[
    &activation::samples::FAMILY,
    &attention::samples::FAMILY,
    &batch_norm::samples::FAMILY,
    &cast::samples::FAMILY,
    &causal_conv1d::samples::FAMILY,
    &chunk_scan::samples::FAMILY,
    &selective_scan::samples::FAMILY,
    &quantize::samples::FAMILY,
    &quantize8::samples::FAMILY,
    &quantize_dynamic::samples::FAMILY,
    &conv::samples::FAMILY,
    &copy::samples::FAMILY,
    &elementwise::samples::FAMILY,
    &gemm::samples::FAMILY,
    &scaled_gemm::samples::FAMILY,
    &grouped_gemm::samples::FAMILY,
    &matmul_4bit::samples::FAMILY,
    &group_norm::samples::FAMILY,
    &layer_norm::samples::FAMILY,
    &local_response_norm::samples::FAMILY,
    &pool::samples::FAMILY,
    &reduce::samples::FAMILY,
    &cumsum::samples::FAMILY,
    &topk::samples::FAMILY,
    &optimizer::samples::FAMILY,
    &resize::samples::FAMILY,
    &recurrent::samples::FAMILY,
    &rotary::samples::FAMILY,
    &kv_cache::samples::FAMILY,
    &softmax::samples::FAMILY,
    &cross_entropy::samples::FAMILY,
    &linear_cross_entropy::samples::FAMILY,
    &embedding::samples::FAMILY,
    &gather_scatter::samples::FAMILY,
];
