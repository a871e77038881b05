//! Vectors and blocks.
//!
//! A conversion is bound by the bytes it moves. A thread takes as many elements as the wider type has in 16 bytes: one access to either
//! tensor, that of the wider one the widest there is.

use warpwright_ptx::DType;

use crate::activation;

pub use crate::activation::tuning::Config;

/// The wider of two types.
fn wider(from: DType, to: DType) -> DType {
    if from.bytes() < to.bytes() { to } else { from }
}

/// The addresses of both tensors must be multiples of this; single elements are where they are.
pub fn alignment(config: Config, from: DType, to: DType) -> u64 {
    if config.width == 1 { 1 } else { config.alignment(wider(from, to)) }
}

/// The layouts for a pair of types, best first: vectors for tensors that start at a vector boundary, single elements for the
/// others.
pub fn configs(from: DType, to: DType) -> [Config; 2] {
    activation::tuning::configs(wider(from, to))
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
            assert_eq!((vector.width, alignment(vector, from, to)), (width, 16));
            assert_eq!((scalar.width, alignment(scalar, from, to)), (1, 1));
        }
    }
}
