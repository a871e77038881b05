//! Kernel arguments as data: what a launch passes for each parameter, and how it is laid out.

use crate::module::Function;
use crate::tensor_map::TensorMap;
use crate::types::ScalarType;

/// One argument of a launch.
#[derive(Clone, Debug, PartialEq)]
pub enum ArgValue {
    /// A device address.
    Address(u64),
    /// The `slot`-th tensor of an operation plus a byte offset; a plan holds these until tensors are bound.
    Slot {
        /// Which tensor of the operation.
        slot: u32,
        /// Bytes past its start.
        offset: u64,
    },
    /// Scalars.
    U32(u32),
    /// Signed.
    S32(i32),
    /// 64-bit.
    U64(u64),
    /// 64-bit signed.
    S64(i64),
    /// Single precision.
    F32(f32),
    /// Double precision.
    F64(f64),
    /// A tensor map, which the device encodes. With a slot its base counts from the start of that tensor of the
    /// operation; without, it is a device address.
    TensorMap {
        /// The map.
        map: Box<TensorMap>,
        /// Which tensor of the operation.
        slot: Option<u32>,
    },
    /// A by-value aggregate.
    Bytes(Vec<u8>),
}

/// Why arguments do not fit a kernel's parameters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArgError {
    /// Too few or too many.
    #[error("kernel `{kernel}` takes {expected} arguments, got {got}")]
    Count {
        /// The kernel.
        kernel: String,
        /// Its parameters.
        expected: usize,
        /// The value that was passed.
        got: usize,
    },
    /// One has the wrong type.
    #[error("argument {index} (`{name}`) of kernel `{kernel}` is a {expected}, got {got}")]
    Type {
        /// The kernel.
        kernel: String,
        /// Position from 0.
        index: usize,
        /// Parameter name.
        name: String,
        /// The type of the parameter.
        expected: String,
        /// The value that was passed.
        got: &'static str,
    },
}

impl ArgValue {
    /// A word for messages.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Address(_) => "address",
            Self::Slot { .. } => "unbound tensor",
            Self::U32(_) => "u32",
            Self::S32(_) => "s32",
            Self::U64(_) => "u64",
            Self::S64(_) => "s64",
            Self::F32(_) => "f32",
            Self::F64(_) => "f64",
            Self::TensorMap { .. } => "tensor map",
            Self::Bytes(_) => "bytes",
        }
    }

    /// The bytes in device order; `None` for an unbound tensor. A tensor map has the encoding of the emulator.
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        Some(match self {
            Self::Address(v) | Self::U64(v) => v.to_le_bytes().to_vec(),
            Self::S64(v) => v.to_le_bytes().to_vec(),
            Self::U32(v) => v.to_le_bytes().to_vec(),
            Self::S32(v) => v.to_le_bytes().to_vec(),
            Self::F32(v) => v.to_le_bytes().to_vec(),
            Self::F64(v) => v.to_le_bytes().to_vec(),
            Self::Bytes(b) => b.clone(),
            Self::TensorMap { map, slot: None } => map.encode().to_vec(),
            Self::Slot { .. } | Self::TensorMap { slot: Some(_), .. } => return None,
        })
    }

    fn fits(&self, ty: ScalarType, array: bool) -> bool {
        use ScalarType::*;
        match self {
            Self::Address(_) | Self::U64(_) => !array && matches!(ty, U64 | B64 | S64),
            Self::S64(_) => !array && matches!(ty, S64 | B64 | U64),
            Self::U32(_) => !array && matches!(ty, U32 | B32 | S32),
            Self::S32(_) => !array && matches!(ty, S32 | B32 | U32),
            Self::F32(_) => !array && matches!(ty, F32 | B32),
            Self::F64(_) => !array && matches!(ty, F64 | B64),
            Self::TensorMap { .. } => array,
            Self::Bytes(_) => true,
            Self::Slot { .. } => false,
        }
    }
}

/// Lays out `args` as the parameter buffer of `function`, checking count and types.
///
/// # Errors
/// [`ArgError`] names the argument that does not fit.
pub fn pack_args(function: &Function, args: &[ArgValue]) -> Result<Vec<u8>, ArgError> {
    if args.len() != function.params.len() {
        return Err(ArgError::Count {
            kernel: function.name.clone(),
            expected: function.params.len(),
            got: args.len(),
        });
    }
    let (offsets, size) = function.param_layout();
    let mut buffer = vec![0u8; usize::try_from(size).unwrap_or(0)];
    for (index, (arg, param)) in args.iter().zip(&function.params).enumerate() {
        let mismatch = || ArgError::Type {
            kernel: function.name.clone(),
            index,
            name: param.name.clone(),
            expected: param.array.map_or(param.ty.name().to_owned(), |n| format!("{}[{n}]", param.ty)),
            got: arg.kind(),
        };
        let bytes = arg.to_bytes().ok_or_else(mismatch)?;
        if !arg.fits(param.ty, param.array.is_some()) || bytes.len() as u64 != param.bytes() {
            return Err(mismatch());
        }
        let at = usize::try_from(offsets[index]).map_err(|_| mismatch())?;
        buffer[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    Ok(buffer)
}
