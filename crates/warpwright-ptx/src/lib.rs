//! PTX as data: typed instructions, a control-flow graph, the text in both directions, and a verifier.
//!
//! The crate knows no CUDA and depends on no other part of warpwright.

#![forbid(unsafe_code)]

pub mod abi;
pub mod cfg;
pub mod dtype;
pub mod float16;
pub mod float8;
mod float_format;
pub mod inst;
pub mod isa;
pub mod join;
pub mod kernel;
pub mod module;
pub mod prove;
pub mod tensor_map;
pub mod text;
pub mod types;
pub mod verify;

pub use abi::{ArgError, ArgValue, pack_args};
pub use dtype::DType;
pub use inst::*;
pub use join::JoinError;
pub use kernel::{Kernel, KernelError};
pub use module::*;
pub use tensor_map::{
    Im2col, TensorElement, TensorFill, TensorInterleave, TensorMap, TensorMapError, TensorMode, TensorSwizzle,
};
pub use types::*;
