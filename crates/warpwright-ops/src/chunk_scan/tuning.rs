//! Which kernel runs for which shape.

/// Positions of a chunk.
pub const CHUNK: u32 = 64;
/// Heads of a block, which shares products of `B` and `C` among them.
pub const HEADS: u32 = 8;
/// Warps beside each other, which share the columns of a product.
pub const ACROSS: u32 = 2;
/// Numbers of a state that a block of the scan over chunks has.
pub const NUMBERS: u32 = 64;
/// Stages of the scan over chunks, and of the results.
pub const STAGES: (u32, u32) = (3, 2);

/// Elements of a row of a tile for so many: a power of two, of which each warp has at least 16.
pub const fn width(elements: usize) -> u32 {
    match elements {
        0..=32 => 32,
        33..=64 => 64,
        65..=128 => 128,
        _ => 256,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{HEAD_DIMS, STATES};
    use super::*;

    #[test]
    fn tiles_hold_every_head_and_state() {
        for elements in HEAD_DIMS.chain(STATES) {
            let width = width(elements);
            assert!(width as usize >= elements && width.is_power_of_two(), "{elements}");
            assert!(width >= 16 * ACROSS && width.is_multiple_of(16), "{elements}");
            assert!(width == 32 || (width as usize) < 2 * elements, "{elements}");
        }
    }
}
