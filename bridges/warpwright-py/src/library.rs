//! Libraries of arrays: which there are, their names for element types, and the functions in Python that ask them.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use warpwright::DType;

/// An argument in Python.
pub(crate) type Object<'py> = Bound<'py, PyAny>;
/// An argument that may be None.
pub(crate) type Maybe<'a, 'py> = Option<&'a Object<'py>>;

/// Whose arrays they are: how results are made and which stream is the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    Numpy,
    Torch,
    Cupy,
    Jax,
    /// Arrays without memory, on which calls are planned.
    Placeholder,
    Other,
}

impl Library {
    pub(crate) fn of_module(module: &str) -> Self {
        match module.split('.').next() {
            Some("numpy") => Self::Numpy,
            Some("torch") => Self::Torch,
            Some("cupy") => Self::Cupy,
            Some("jax" | "jaxlib") => Self::Jax,
            _ => Self::Other,
        }
    }

    /// The name that `warpwright._interop` knows it by.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Numpy => "numpy",
            Self::Torch => "torch",
            Self::Cupy => "cupy",
            Self::Jax => "jax",
            Self::Placeholder => "placeholder",
            Self::Other => "other",
        }
    }
}

/// The functions in Python that libraries are asked through.
pub(crate) fn interop(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || py.import("warpwright._interop").map(Bound::unbind))?;
    Ok(module.bind(py))
}

/// An element type by any name that libraries have for it.
pub(crate) fn dtype_named(name: &str) -> Option<DType> {
    let name = name.strip_prefix("torch.").unwrap_or(name);
    Some(match name {
        "float32" | "f32" | "float" | "<f4" => DType::F32,
        "float64" | "f64" | "double" | "<f8" => DType::F64,
        "float16" | "f16" | "half" | "<f2" => DType::F16,
        "bfloat16" | "bf16" => DType::BF16,
        "float8_e4m3fn" | "f8e4m3" => DType::F8E4M3,
        "float8_e5m2" | "f8e5m2" => DType::F8E5M2,
        "uint8" | "u8" | "|u1" => DType::U8,
        "int8" | "i8" | "|i1" => DType::I8,
        "uint16" | "u16" | "<u2" => DType::U16,
        "int16" | "i16" | "<i2" => DType::I16,
        "uint32" | "u32" | "<u4" => DType::U32,
        "int32" | "i32" | "<i4" => DType::I32,
        "uint64" | "u64" | "<u8" => DType::U64,
        "int64" | "i64" | "<i8" => DType::I64,
        _ => return None,
    })
}

/// The name that numpy, PyTorch, cupy and jax have for an element type.
pub(crate) const fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::F64 => "float64",
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        DType::F8E4M3 => "float8_e4m3fn",
        DType::F8E5M2 => "float8_e5m2",
        DType::U8 => "uint8",
        DType::I8 => "int8",
        DType::U16 => "uint16",
        DType::I16 => "int16",
        DType::U32 => "uint32",
        DType::I32 => "int32",
        DType::U64 => "uint64",
        DType::I64 => "int64",
    }
}

/// A tuple of extents.
pub(crate) fn extents<'py>(py: Python<'py>, shape: &[usize]) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, shape)
}
