//! Vectors and blocks.
//!
//! A conversion is bound by the bytes it moves. A thread takes as many elements as the wider type has in 16 bytes: one access to either
//! tensor, that of the wider one the widest there is.

use warpwright_ptx::DType;

/// Elements of a thread and threads of a block.
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

    /// The addresses of both tensors must be multiples of this; single elements are where they are.
    pub fn alignment(self, from: DType, to: DType) -> u64 {
        if self.width == 1 { 1 } else { u64::from(self.width) * from.bytes().max(to.bytes()) as u64 }
    }
}

/// Bytes of the widest load and store of every target.
const VECTOR_BYTES: usize = 16;
const THREADS: u32 = 256;

/// The layouts for a pair of types, best first: vectors for tensors that start at a vector boundary, single elements for the
/// others.
pub fn configs(from: DType, to: DType) -> [Config; 2] {
    let width = VECTOR_BYTES / from.bytes().max(to.bytes());
    [width as u32, 1].map(|width| Config { width, threads: THREADS })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wider_type_fills_a_vector() {
        for (from, to, width) in
            [(DType::F64, DType::BF16, 2), (DType::BF16, DType::F32, 4), (DType::F16, DType::BF16, 8)]
        {
            let [vector, scalar] = configs(from, to);
            assert_eq!((vector.width, vector.alignment(from, to)), (width, 16));
            assert_eq!((scalar.width, scalar.alignment(from, to)), (1, 1));
        }
    }
}
