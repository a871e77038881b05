//! Deep-learning primitives for NVIDIA GPUs in pure Rust.
//!
//! Kernels are written in Rust, recorded as PTX, verified, and run by the NVIDIA driver, or, on a machine without a GPU,
//! by an emulator that checks every access. No CUDA toolkit, no C++ compiler, no LLVM: the driver's library is looked up
//! when the program starts.
//!
//! ```
//! # fn main() -> Result<(), warpwright::Error> {
//! use warpwright::{Device, Tensor, gelu_erf, gelu_erf_backward};
//!
//! let device = Device::best(); // the GPU if there is one, else the emulator
//! let stream = device.stream()?;
//! let x = Tensor::from_slice(&device, &[-1.0f32, 0.0, 1.0, 2.0], &[2, 2])?;
//! let y = gelu_erf(&stream, &x)?;
//! let dy = Tensor::from_slice(&device, &[1.0f32; 4], &[2, 2])?;
//! let dx = gelu_erf_backward(&stream, &x, &dy)?;
//! assert_eq!(y.shape(), [2, 2]);
//! assert!((y.to_vec::<f32>()?[3] - 1.954_499_7).abs() < 1e-6);
//! assert_eq!(dx.to_vec::<f32>()?[1], 0.5);
//! # Ok(())
//! # }
//! ```
//!
//! # Operations
//!
//! | family | operations | element types | targets |
//! |---|---|---|---|
//! | [`activation`] | `relu`, `leaky_relu`, `gelu_tanh`, `gelu_erf`, `silu`, `sigmoid`, `tanh`, `softplus`, forward and backward | f32, f64, f16, bf16 | sm_75 and later |
//! | | `swiglu`, `geglu`, `geglu_tanh`, forward and backward | f32, f64, f16, bf16 | sm_75 and later |
//! | [`mod@batch_norm`] | `batch_norm` (training), `batch_norm_inference`, residual and ReLU fused, forward and backward | f32, f64, f16, bf16 | sm_75 and later |
//! | [`mod@cast`] | `cast`: the elements of a tensor in another type | f32, f64, f16, bf16 | sm_75 and later |
//! | [`mod@conv`] | `conv` over one to three dimensions with strides, padding, dilation, groups, bias and activation, and its gradients, channels first and last | f32, f64, f16, bf16 | sm_75 and later |
//! | [`mod@causal_conv1d`] | `causal_conv1d`, forward and backward, and `causal_conv1d_update`: depthwise convolution along time with 2 to 4 taps, bias and silu; states, packed sequences; channels first and last | f32, f64, f16, bf16 | sm_75 and later |
//! | [`mod@chunk_scan`] | `chunk_scan`, forward and backward: the scan of Mamba 2 by products on tensor cores over chunks of positions, with softplus of time steps, groups, heads of 1 to 128 elements and states of 1 to 256 numbers | f16, bf16 | sm_80 and later |
//! | [`mod@selective_scan`] | `selective_scan`, forward and backward, and `selective_scan_update`: the scan of selective state spaces with a gate, softplus of time steps, groups, and states of 1 to 64 numbers; channels first and last | f32, f64, f16, bf16 | sm_75 and later |
//! | [`mod@copy`] | `permute`: dimensions in another order; `cat` and `split` along one | every type | sm_75 and later |
//! | [`mod@elementwise`] | `map` and `map_into`: expressions of up to six tensors in one launch, with broadcasting and mixed types; `add`, `sub`, `mul`, `div`, `minimum`, `maximum`, `where_`, `lerp`, `addcmul` | f32, f64, f16, bf16, masks of u8 | sm_75 and later |
//! | | `dropout`, `dropout_add` and their gradients | f32, f64, f16, bf16 | sm_75 and later |
//! | [`mod@matmul`] | `matmul`: products of matrices with transposes, batches, bias and activation; as a descriptor also with leading dimensions, alpha and beta; `matmul::linear_backward`; `gated_linear`: `swiglu`, `geglu` and `geglu_tanh` of two products at once; `matmul::linear_activation`, `matmul::activation_linear_backward`, `matmul::gated_activation_linear_backward`: activations, and gradients of activations and gated units, in the products beside them | f32, f64, f16, bf16 | sm_75 and later |
//! | [`group_norm`](mod@group_norm) | `group_norm` with optional silu, `instance_norm`, forward and backward, channels first and last | f32, f64, f16, bf16 | sm_75 and later |
//! | [`layer_norm`](mod@layer_norm) | `layer_norm`, `rms_norm`, with an optional residual added first, forward and backward | f32, f64, f16, bf16 | sm_75 and later |
//! | [`local_response_norm`](mod@local_response_norm) | `local_response_norm`, forward and backward | f32, f64, f16, bf16 | sm_75 and later |
//! | [`pool`](mod@pool) | `max_pool`, `avg_pool`, `adaptive_max_pool`, `adaptive_avg_pool` in one to three dimensions, forward and backward, channels first and last | f32, f64, f16, bf16 | sm_75 and later |
//! | [`optimizer`] | `adamw`, `adam`, `sgd`, `grad_norm`, `clip_grad_norm` over lists of parameters, with AMSGrad, master parameters in f32, and learning rate, step and gradient scale on the device; `adamw8bit`, `adam8bit` with moments in 8 bits | f32, f64 (not with 8 bits), f16, bf16 | sm_75 and later |
//! | [`mod@cumsum`] | `cumsum` along a dimension, inclusive or exclusive, in both directions | f32, f64, f16, bf16, i32, i64 | sm_75 and later |
//! | [`mod@topk`] | `topk` along the last dimension, and its gradient | f32, f64, f16, bf16 | sm_75 and later |
//! | [`reduce`] | `sum`, `mean`, `amax`, `amin` over any dimensions, `argmax`, `argmin` over one, `sum_to_shape` (the gradient of broadcasting) | f32, f64, f16, bf16 | sm_75 and later |
//! | [`mod@resize`] | `resize` (`interpolate`): nearest, linear, cubic, area in one to three dimensions, forward and backward, channels first and last | f32, f64, f16, bf16 | sm_75 and later |
//! | [`mod@quantize`] | 4-bit `nf4`, `fp4`, `int4` symmetric and asymmetric, any group size, to codes and back; nested scales | f32, f64, f16, bf16 | sm_75 and later |
//! | [`mod@quantize8`] | 8-bit `e4m3`, `e5m2` and `int8` codes with a scale for a tensor, a row, 1 x 128 or 128 x 128 elements, and back | f32, f16, bf16 | sm_75 and later; 8-bit floats sm_89 and later |
//! | [`mod@quantize_dynamic`] | 8-bit codes by the dynamic maps of bitsandbytes, signed and unsigned, with a maximum for 256 or 4096 elements, and back | f32, f16, bf16 | sm_75 and later |
//! | [`scaled_gemm`] | products of `e4m3`, `e5m2` and `int8` matrices with scales for a tensor, rows, 1 x 128 or 128 x 128 elements, with bias and activation; of `int8` to i32 | f32, f16, bf16 | sm_75 and later; 8-bit floats sm_89 and later |
//! | [`mod@matmul_4bit`] | `matmul_4bit` and its gradient by `x`: products with `nf4`, `fp4`, `int4`, `int4_asymmetric`, `mxfp4` and `nvfp4` weights as checkpoints store them, with bias; nested scales | f32, f16, bf16 | sm_75 and later |
//! | [`grouped_gemm`] | `grouped_matmul`, `grouped_matmul_k`: products of ragged groups of rows, or of the common dimension, whose ends are on the device | f32, f16, bf16 | sm_75 and later |
//! | [`mod@cross_entropy`] | `cross_entropy` from logits, forward and backward; ignored rows, label smoothing | f32, f64, f16, bf16 | sm_75 and later |
//! | [`mod@linear_cross_entropy`] | `linear_cross_entropy` of a linear layer without the logits of all rows in memory; the loss and all gradients in one call | f32, f64, f16, bf16 | sm_75 and later |
//! | [`mod@embedding`] | `embedding` (`index_select` of rows), forward and backward without atomics on floats; a padding row, means by frequency | f32, f64, f16, bf16 | sm_75 and later |
//! | [`mod@attention`] | `attention` with grouped heads, masks, windows, masks as tiles, bias, ALiBi, soft capping, sinks, packed sequences, decoding from contiguous and paged caches, and its gradients | f32, f64, f16, bf16; caches of e4m3 from sm_89 on | sm_75 and later |
//! | [`mod@recurrent`] | `lstm`, `gru`, `rnn` over sequences, forward and backward: layers, both directions, lengths, projections, dropout; all steps in one launch where the weights fit the chip | f32, f64, f16, bf16 | sm_75 and later |
//! | [`mod@rotary`] | `rotary_embedding` of queries and keys in one launch, in place too, forward and backward: halves or neighbours, a part of a head, positions | f32, f64, f16, bf16 | sm_75 and later |
//! | [`kv_cache`] | `append_kv_cache`: new keys and values to the contiguous or paged cache that attention reads, with rotary position embedding in the same launch | f32, f64, f16, bf16; caches of e4m3 from sm_89 on | sm_75 and later |
//! | [`mod@softmax`] | `softmax`, `log_softmax` over any dimension, forward and backward | f32, f64, f16, bf16 | sm_75 and later |
//!
//! [`catalogue()`] has the same as data. f16 and bf16 are computed in f32 and rounded once; f64 is computed in f64.
//!
//! # Plans
//!
//! The free functions allocate their result and take a plan from a cache. They have one form: forward with inputs and options, backward with
//! the same inputs, the output of forward as it is, the gradient of the result, and the same options. To reuse memory, to capture a CUDA graph, or to
//! launch through another runtime, plan the operation and launch it: planning needs no GPU, and
//! [`Plan::steps`] gives kernel text, grid and arguments as data.
//!
//! ```
//! # fn main() -> Result<(), warpwright::Error> {
//! use warpwright::activation::{Activation, ActivationDesc};
//! use warpwright::{DType, Operation, Target};
//!
//! let desc = ActivationDesc { activation: Activation::Silu, dtype: DType::BF16, len: 1 << 20 };
//! let plan = desc.plan(Target::sm(90))?;
//! let step = &plan.steps()[0];
//! assert_eq!(step.kernel().name(), "silu_bf16_x8");
//! assert_eq!(step.grid(), [512, 1, 1]);
//! assert!(step.kernel().text().contains(".target sm_90"));
//! # Ok(())
//! # }
//! ```
//!
//! A launch of a plan only enqueues, so a graph can hold it. The graph keeps the memory of its tensors. Free functions can be captured, too: what
//! they allocate is the graph's, and holds what its last launch has written.
//!
//! ```
//! # fn main() -> Result<(), warpwright::Error> {
//! use warpwright::activation::{Activation, ActivationArgs, ActivationDesc};
//! use warpwright::{DType, Device, Error, Operation, Tensor};
//!
//! let device = Device::best();
//! let stream = device.new_stream()?;
//! let x = Tensor::from_slice(&device, &[-1.0f32, 2.0], &[2])?;
//! let mut y = Tensor::empty(&device, DType::F32, &[2])?;
//! let graph = stream.capture(|stream| {
//!     let desc = ActivationDesc { activation: Activation::Relu, dtype: DType::F32, len: 2 };
//!     let plan = desc.plan(device.target())?;
//!     plan.launch(stream, ActivationArgs { x: Some(x.as_ref()), y: y.as_mut() })?;
//!     Ok::<_, Error>(())
//! })?;
//! drop(x);
//! graph.launch(&stream)?;
//! assert_eq!(y.to_vec_on::<f32>(&stream)?, [0.0, 2.0]);
//! # Ok(())
//! # }
//! ```
//!
//! # Kernels of your own
//!
//! [`dsl`] is the language that the operations are written in, [`ptx`] its intermediate representation, and [`emu`] the
//! emulator.
//!
//! # What is stable
//!
//! This crate alone is under semantic versioning. Its stable interface is what stands at its root, [`plan`](mod@plan), [`comm`], [`parallel`], and in the modules of the
//! families ([`activation`], [`mod@attention`], [`mod@batch_norm`], [`mod@cast`], [`mod@causal_conv1d`], [`mod@chunk_scan`], [`mod@conv`], [`mod@copy`], [`mod@cross_entropy`], [`mod@elementwise`], [`mod@embedding`], [`mod@matmul`], [`group_norm`](mod@group_norm), [`grouped_gemm`],
//! [`kv_cache`], [`layer_norm`](mod@layer_norm), [`mod@linear_cross_entropy`], [`local_response_norm`](mod@local_response_norm), [`mod@matmul_4bit`], [`optimizer`], [`pool`](mod@pool), [`mod@quantize`], [`mod@quantize8`], [`mod@quantize_dynamic`], [`dynamic_map`],
//! [`mod@recurrent`], [`reduce`], [`mod@resize`], [`mod@rotary`], [`scaled_gemm`], [`mod@selective_scan`], [`mod@softmax`]) the
//! descriptors, arguments, options and free functions.
//!
//! May change with any minor version: [`dsl`], [`ptx`] and [`emu`]; the families' modules `tuning` and `reference`, and methods that
//! take what these name, such as `plan_with`, which are there for comparisons; the text and the names of kernels.

#![forbid(unsafe_code)]

#[cfg(doctest)]
mod guide;
pub mod parallel;

pub use warpwright_dsl as dsl;
pub use warpwright_emu as emu;
pub use warpwright_ptx as ptx;

pub use warpwright_ops::activation::{
    self, geglu, geglu_backward, geglu_tanh, geglu_tanh_backward, gelu_erf, gelu_erf_backward, gelu_tanh,
    gelu_tanh_backward, leaky_relu, leaky_relu_backward, relu, relu_backward, sigmoid, sigmoid_backward,
    silu, silu_backward, softplus, softplus_backward, swiglu, swiglu_backward, tanh, tanh_backward,
};
pub use warpwright_ops::attention::{self, attention, attention_backward};
pub use warpwright_ops::batch_norm::{
    self, batch_norm, batch_norm_backward, batch_norm_inference, batch_norm_inference_backward,
};
pub use warpwright_ops::cast::{self, cast};
pub use warpwright_ops::causal_conv1d::{self, causal_conv1d, causal_conv1d_backward, causal_conv1d_update};
pub use warpwright_ops::chunk_scan::{self, chunk_scan, chunk_scan_backward};
pub use warpwright_ops::conv::{self, conv, conv_backward};
pub use warpwright_ops::copy::{self, cat, permute, split};
pub use warpwright_ops::cross_entropy::{self, cross_entropy, cross_entropy_backward};
pub use warpwright_ops::cumsum::{self, cumsum};
pub use warpwright_ops::dynamic_map;
pub use warpwright_ops::elementwise::{self, dropout, dropout_add, dropout_backward};
pub use warpwright_ops::embedding::{self, embedding, embedding_backward};
pub use warpwright_ops::gather_scatter::{self, gather_rows, row_dots, scatter_rows};
pub use warpwright_ops::gemm::{self as matmul, gated_linear, matmul};
pub use warpwright_ops::group_norm::{
    self, group_norm, group_norm_backward, instance_norm, instance_norm_backward,
};
pub use warpwright_ops::grouped_gemm::{self, grouped_matmul, grouped_matmul_k};
pub use warpwright_ops::kv_cache::{
    self, append_kv_cache, append_kv_cache_rotary, append_kv_cache_rotary_in_place,
};
pub use warpwright_ops::layer_norm::{
    self, layer_norm, layer_norm_backward, rms_norm, rms_norm_backward, row_norm, row_norm_backward,
};
pub use warpwright_ops::linear_cross_entropy::{
    self, linear_cross_entropy, linear_cross_entropy_with_gradients,
};
pub use warpwright_ops::local_response_norm::{self, local_response_norm, local_response_norm_backward};
pub use warpwright_ops::matmul_4bit::{self, matmul_4bit, matmul_4bit_backward};
pub use warpwright_ops::optimizer::{self, adam, adam8bit, adamw, adamw8bit, clip_grad_norm, grad_norm, sgd};
pub use warpwright_ops::pool::{
    self, adaptive_avg_pool, adaptive_avg_pool_backward, adaptive_max_pool, adaptive_max_pool_backward,
    avg_pool, avg_pool_backward, max_pool, max_pool_backward,
};
pub use warpwright_ops::quantize::{self, dequantize, dequantize_nested, quantize, quantize_nested};
pub use warpwright_ops::quantize_dynamic::{self, dequantize_dynamic, quantize_dynamic};
pub use warpwright_ops::quantize8::{self, dequantize8, quantize8, quantize8_static};
pub use warpwright_ops::recurrent::{
    self, gru, gru_backward, gru_cell, gru_cell_backward, lstm, lstm_backward, lstm_cell, lstm_cell_backward,
    recurrent, recurrent_backward, rnn, rnn_backward, rnn_cell, rnn_cell_backward,
};
pub use warpwright_ops::reduce::{self, amax, amin, argmax, argmin, mean, sum, sum_to_shape};
pub use warpwright_ops::resize::{self, resize, resize_backward};
pub use warpwright_ops::rotary::{
    self, rotary_embedding, rotary_embedding_backward, rotary_embedding_backward_in_place,
    rotary_embedding_in_place,
};
pub use warpwright_ops::scaled_gemm::{self, int8_matmul, scaled_matmul};
pub use warpwright_ops::selective_scan::{
    self, selective_scan, selective_scan_backward, selective_scan_update,
};
pub use warpwright_ops::softmax::{self, log_softmax, log_softmax_backward, softmax, softmax_backward};
pub use warpwright_ops::topk::{self, topk, topk_backward};
pub use warpwright_ops::{
    Direction, Dropout, Entry, Error, NormGradients, NormOutput, Operation, Plan, PlanError, catalogue, plan,
};
pub use warpwright_ptx::{DType, PtxVersion, Target};
pub use warpwright_runtime::{
    ArgValue, Binding, Buffer, CacheStatistics, Counters, CudaDeviceInfo, CudaUnavailable, Device, DeviceId,
    Discovery, DiskCacheRefusal, DiskCacheStatus, DriverVersion, Element, EmulatorConfig,
    Error as RuntimeError, Event, F8E4M3, F8E5M2, Fault, Finding, Graph, HostBuffer, Interrupt, KernelInfo,
    LaunchLimit, LaunchStep, LoadedKernel, MAX_RANK, MemoryInfo, OnFinding, OperationName, Properties,
    SanitizerFailure, Sanitizers, Stream, Tensor, TensorMut, TensorRef, comm, discover, interop, timing,
};
