//! Units, tiles and blocks.
//!
//! A copy is bound by the bytes it moves, once each way. Where both tensors go on along the same dimension a thread moves 16 bytes, or as
//! many as all steps are multiples of. Where they do not, a block turns a tile in shared memory, so that loads and stores are both side by
//! side: a tile of 8 elements along a dimension of few is as long as needed along the other one.

use warpwright_dsl::VECTOR_BYTES;

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Elements along a dimension that a narrow tile has.
const FEW: usize = 8;
/// Elements along the other dimension of such a tile.
const MANY: u32 = 512;

/// A tile that a block turns: so many elements along the dimension that the input goes on along, and along that of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Bytes of an element.
    pub element: u32,
    /// Elements along the dimension of the input.
    pub a: u32,
    /// Elements along the dimension of the result.
    pub b: u32,
    /// Whether threads load and store two elements at a time.
    pub pairs: bool,
}

/// The tile for elements of so many bytes, whose dimensions have these extents. `paired` says that every step is an even number of
/// elements.
pub fn tile(element: u32, [a, b]: [usize; 2], paired: bool) -> Tile {
    let side = if element == 8 { 32 } else { 64 };
    let (a, b) = match [a <= FEW, b <= FEW] {
        [_, true] => (MANY, FEW as u32),
        [true, false] => (FEW as u32, MANY),
        [false, false] => (side, side),
    };
    Tile { element, a, b, pairs: paired && element == 2 && a == b }
}

/// Every tile that [`tile`] can choose.
pub fn tiles() -> Vec<Tile> {
    let mut all: Vec<_> = [1, 2, 4, 8]
        .into_iter()
        .flat_map(|element| [[64, 64], [64, 1], [1, 64]].map(|extents| tile(element, extents, false)))
        .collect();
    all.push(tile(2, [64, 64], true));
    all
}

/// The largest power of two, up to 16 and at least `element`, that divides every one of these bytes.
pub fn unit(element: u32, bytes: impl IntoIterator<Item = u64>) -> u32 {
    let common = bytes.into_iter().fold(u64::from(VECTOR_BYTES), |bits, bytes| bits | bytes);
    element.max(1 << common.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_divide_every_step() {
        assert_eq!(unit(2, [64, 128]), 16);
        assert_eq!(unit(2, [64, 24]), 8);
        assert_eq!(unit(2, [6]), 2);
        assert_eq!(unit(4, [4, 12]), 4);
        assert_eq!(unit(1, [0]), 16);
        assert_eq!(unit(8, []), 16);
    }

    #[test]
    fn tiles_follow_the_extents() {
        let shape = |tile: Tile| (tile.a, tile.b, tile.pairs);
        assert_eq!(shape(tile(2, [4096, 4096], true)), (64, 64, true));
        assert_eq!(shape(tile(4, [4096, 4096], true)), (64, 64, false));
        assert_eq!(shape(tile(8, [4096, 4096], false)), (32, 32, false));
        assert_eq!(shape(tile(2, [4096, 3], true)), (512, 8, false));
        assert_eq!(shape(tile(4, [3, 4096], false)), (8, 512, false));
        assert_eq!(tiles().len(), 13);
    }
}
