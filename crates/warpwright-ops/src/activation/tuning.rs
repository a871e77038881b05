//! Which kernel runs for which tensors.
//!
//! An elementwise function is bound by the bytes it moves. The fastest copy on an H200 is one 16-byte vector a thread,
//! no loop, 128 to 512 threads a block: more elements a thread cost occupancy, a persistent grid 8 %.

use warpwright_dsl::VECTOR_BYTES;
use warpwright_ptx::DType;

/// How a kernel is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Elements that a thread loads and stores at once.
    pub width: u32,
    /// Threads of a block.
    pub threads: u32,
}

impl Config {
    /// Elements of a block.
    pub const fn block_elements(self) -> u32 {
        self.width * self.threads
    }

    /// Alignment of tensors in bytes.
    pub const fn alignment(self, dtype: DType) -> u64 {
        self.width as u64 * dtype.bytes() as u64
    }
}

const THREADS: u32 = 256;

/// The layouts for tensors of type `dtype`, best first: vectors for tensors that start at a vector boundary, single
/// elements for the others. Only the addresses decide, so both belong to every plan.
pub const fn configs(dtype: DType) -> [Config; 2] {
    [
        Config { width: VECTOR_BYTES / dtype.bytes() as u32, threads: THREADS },
        Config { width: 1, threads: THREADS },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_sixteen_bytes() {
        for (dtype, width) in [(DType::F64, 2), (DType::F32, 4), (DType::F16, 8), (DType::BF16, 8)] {
            let [vector, scalar] = configs(dtype);
            assert_eq!((vector.width, vector.alignment(dtype)), (width, 16));
            assert_eq!((scalar.width, scalar.alignment(dtype)), (1, dtype.bytes() as u64));
        }
    }
}
