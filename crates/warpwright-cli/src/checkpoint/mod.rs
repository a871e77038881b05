//! Checkpoints: safetensors files, single or sharded, read and written without holding a model in memory, and GGUF files, read.
//!
//! Nothing here trusts a file. A header is checked as a whole before the first byte of data is used, and every
//! refusal is a [`CheckpointError`] that names the file, the tensor and what to do about it.

pub mod atomic;
pub mod error;
pub mod floats;
pub mod gguf;
pub mod quantized;
pub mod safetensors;
pub mod schemes;
pub mod sharded;
pub mod stored;
pub mod writer;

pub use atomic::{AtomicFile, Storage};
pub use error::{CheckpointError, Defect};
pub use quantized::{BnbState, Int4State, NibbleOrder, Scheme};
pub use safetensors::{Header, Reader, TensorInfo};
pub use sharded::{Checkpoint, Located};
pub use stored::StoredType;
pub use writer::{Layout, TensorSpec, Writer};
