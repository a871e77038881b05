//! Python bindings of warpwright: the module `warpwright._native`.
//!
//! Modules take from those above them alone (`tests/test_layers.py` holds them to it):
//!
//! | modules | |
//! |---|---|
//! | `dlpack` `ffi` `many` `interrupt` `logging` | C interfaces, lists, the interpreter's signals, events on standard error |
//! | `error` `library` | exceptions; libraries of arrays and their names |
//! | `device` `layouts` | where arrays lie, and streams; arguments of new tensors |
//! | `placeholder` `recording` | arrays without memory; what a call allocates |
//! | `torch` | how PyTorch takes a call, and its short ways |
//! | `array` | an argument: where it lies, its type, shape and strides |
//! | `overlap` | which arguments share memory |
//! | `memory` | launches on memory of other libraries |
//! | `indices` `owned` `quick` | numbers in arrays; results of our own; the shortest way of an elementwise call |
//! | `call` | arguments, results and launch of one call |
//! | `calls` | calls that are like one before |
//! | `planned` | calls that are planned once |
//! | `xla` | XLA's foreign function interface |
//! | `stable` | PyTorch's stable C interface |
//! | `operators` `repeated` | operators of PyTorch's dispatcher without Python; direct calls of PyTorch that are repeated |
//! | `elementwise` `images` `softmax` `matmul` `node` | the families, each of which turns keywords into a descriptor in one place |
//! | `attention` `batch` `cast` `cross_entropy` `grouped` `groups` `local_response` `ops` `quantize` `recurrent` `rows` `scaled` | |
//! | `causal_conv` `cells` `conv` `cumsum` `embedding` `gather_scatter` `optimizer` `parameter` `pool` `reduce` `resize` `rotary` `tensor_map` `topk` | |
//! | `chunk_scan` `feed_forward` `kv_cache` `linear_cross_entropy` `matmul_4bit` `selective_scan` | |
//! | `emulator` | `run` and `lint` |

#![deny(unsafe_code)]

mod array;
mod attention;
mod batch;
mod call;
mod calls;
mod cast;
mod causal_conv;
mod cells;
mod chunk_scan;
mod conv;
mod cross_entropy;
mod cumsum;
mod device;
mod dlpack;
mod elementwise;
mod embedding;
mod emulator;
mod error;
mod feed_forward;
mod ffi;
mod gather_scatter;
mod grouped;
mod groups;
mod images;
mod indices;
mod interrupt;
mod kv_cache;
mod layouts;
mod library;
mod linear_cross_entropy;
mod local_response;
mod logging;
mod many;
mod matmul;
mod matmul_4bit;
mod memory;
mod node;
mod operators;
mod ops;
mod optimizer;
mod overlap;
mod owned;
mod parameter;
mod placeholder;
mod planned;
mod pool;
mod quantize;
mod quick;
mod recording;
mod recurrent;
mod reduce;
mod repeated;
mod resize;
mod rotary;
mod rows;
mod scaled;
mod selective_scan;
mod softmax;
mod stable;
mod tensor_map;
mod topk;
mod torch;
mod xla;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::attention::{attention, attention_backward};
    #[pymodule_export]
    use crate::batch::{
        batch_moments, batch_norm, batch_norm_backward, batch_norm_gradient, batch_norm_inference_backward,
        batch_norm_merged, batch_norm_sums,
    };
    #[pymodule_export]
    use crate::calls::{forget_calls, repeat_first_calls};
    #[pymodule_export]
    use crate::cast::cast;
    #[pymodule_export]
    use crate::causal_conv::{causal_conv1d, causal_conv1d_backward, causal_conv1d_update};
    #[pymodule_export]
    use crate::cells::{
        gru_cell, gru_cell_backward, lstm_cell, lstm_cell_backward, rnn_cell, rnn_cell_backward,
    };
    #[pymodule_export]
    use crate::chunk_scan::{chunk_scan, chunk_scan_backward};
    #[pymodule_export]
    use crate::conv::{conv, conv_backward};
    #[pymodule_export]
    use crate::cross_entropy::{cross_entropy, cross_entropy_backward};
    #[pymodule_export]
    use crate::cumsum::cumsum;
    #[pymodule_export]
    use crate::elementwise::{dropout, dropout_add, elementwise};
    #[pymodule_export]
    use crate::embedding::{embedding, embedding_backward};
    #[pymodule_export]
    use crate::emulator::{Finding, Remark, Run, devices, lint, run};
    #[pymodule_export]
    use crate::feed_forward::{
        activation_linear_backward, gated_activation_linear_backward, gated_linear, gated_linear_factors,
        linear_activation,
    };
    #[pymodule_export]
    use crate::gather_scatter::{gather_rows, row_dots, scatter_rows};
    #[pymodule_export]
    use crate::grouped::{grouped_matmul, grouped_matmul_k};
    #[pymodule_export]
    use crate::groups::{group_norm, group_norm_backward, instance_norm, instance_norm_backward};
    #[pymodule_export]
    use crate::indices::validate_indices;
    #[pymodule_export]
    use crate::kv_cache::append_kv_cache;
    #[pymodule_export]
    use crate::linear_cross_entropy::linear_cross_entropy;
    #[pymodule_export]
    use crate::local_response::{local_response_norm, local_response_norm_backward};
    #[pymodule_export]
    use crate::matmul::{linear_weight_backward, matmul};
    #[pymodule_export]
    use crate::matmul_4bit::{matmul_4bit, matmul_4bit_backward};
    #[pymodule_export]
    use crate::node::{Backward, Entry, Forward};
    #[pymodule_export]
    use crate::operators::{implement_operator, operator_calls};
    #[pymodule_export]
    use crate::ops::{
        geglu, geglu_backward, geglu_tanh, geglu_tanh_backward, gelu_erf, gelu_erf_backward, gelu_tanh,
        gelu_tanh_backward, leaky_relu, leaky_relu_backward, relu, relu_backward, sigmoid, sigmoid_backward,
        silu, silu_backward, softplus, softplus_backward, swiglu, swiglu_backward, tanh, tanh_backward,
    };
    #[pymodule_export]
    use crate::optimizer::{adam_step, adamw_step, adamw8bit_step, clip_grad_norm, grad_norm, sgd_step};
    #[pymodule_export]
    use crate::owned::DeviceArray;
    #[pymodule_export]
    use crate::placeholder::Placeholder;
    #[pymodule_export]
    use crate::planned::{forget_planned_calls, plan_call, planned_calls};
    #[pymodule_export]
    use crate::pool::{
        adaptive_avg_pool, adaptive_avg_pool_backward, adaptive_max_pool, adaptive_max_pool_backward,
        avg_pool, avg_pool_backward, max_pool, max_pool_backward,
    };
    #[pymodule_export]
    use crate::quantize::{
        dequantize_fp4, dequantize_int4, dequantize_int4_asymmetric, dequantize_nested, dequantize_nf4,
        quantize_fp4, quantize_int4, quantize_int4_asymmetric, quantize_nested, quantize_nf4,
    };
    #[pymodule_export]
    use crate::recording::{operator_error, operator_failed, recorded, recording_wanted};
    #[pymodule_export]
    use crate::recurrent::{gru, gru_backward, lstm, lstm_backward, rnn, rnn_backward};
    #[pymodule_export]
    use crate::reduce::{amax, amin, argmax, argmin, mean, sum};
    #[pymodule_export]
    use crate::repeated::Repeated;
    #[pymodule_export]
    use crate::resize::{resize, resize_backward};
    #[pymodule_export]
    use crate::rotary::{rotary_embedding, rotary_embedding_backward};
    #[pymodule_export]
    use crate::rows::{layer_norm, layer_norm_backward, rms_norm, rms_norm_backward};
    #[pymodule_export]
    use crate::scaled::{
        dequantize_dynamic, dequantize8, int8_matmul, quantize_dynamic, quantize8, scaled_matmul,
    };
    #[pymodule_export]
    use crate::selective_scan::{selective_scan, selective_scan_backward, selective_scan_update};
    #[pymodule_export]
    use crate::softmax::{log_softmax, log_softmax_backward, softmax, softmax_backward};
    #[pymodule_export]
    use crate::tensor_map::TensorMap;
    #[pymodule_export]
    use crate::topk::{topk, topk_backward};
    #[pymodule_export]
    use crate::torch::torch_route;
    #[pymodule_export]
    use crate::xla::xla_handlers;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::logging::read_environment(module.py())?;
        crate::indices::read_environment();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
