//! Python bindings of warpwright: the module `warpwright._native`.

#![deny(unsafe_code)]

mod array;
mod call;
mod dlpack;
mod emulator;
mod error;
mod memory;
mod ops;
mod owned;
mod quantise;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::emulator::{Finding, Remark, Run, devices, lint, run};
    #[pymodule_export]
    use crate::ops::{
        geglu, geglu_backward, geglu_tanh, geglu_tanh_backward, gelu_erf, gelu_erf_backward, gelu_tanh,
        gelu_tanh_backward, leaky_relu, leaky_relu_backward, relu, relu_backward, sigmoid, sigmoid_backward,
        silu, silu_backward, swiglu, swiglu_backward, tanh, tanh_backward,
    };
    #[pymodule_export]
    use crate::owned::DeviceArray;
    #[pymodule_export]
    use crate::quantise::{
        dequantize_fp4, dequantize_int4, dequantize_int4_asymmetric, dequantize_nested, dequantize_nf4,
        quantize_fp4, quantize_int4, quantize_int4_asymmetric, quantize_nested, quantize_nf4,
    };

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
