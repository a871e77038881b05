//! Panels of results in shared memory, which tensor copies store to global memory while the threads go on.

use warpwright_ptx::{
    Address, DType, Inst, MatrixElement, MatrixShape, MatrixTiles, Operand, StateSpace, TensorFill,
    TensorInterleave, TensorMap, TensorMode, TensorSwizzle,
};

use crate::error::IssueKind;
use crate::halves::Halves;
use crate::lanes::Lanes;
use crate::reg::{F32, U32};

use super::shared::{Major, SharedTile, TileLayout};
use super::wgmma::PanelTile;

/// Bytes of a row of a panel: what the swizzle permutes.
const ROW_BYTES: u32 = 128;
/// Bytes of what the swizzle moves.
const PIECE: u32 = 16;

/// 64 rows of 128 bytes in shared memory, their 16-byte pieces swizzled as a tensor copy with [`TensorSwizzle::B128`] reads them, so
/// that a warpgroup's stores meet no bank conflict. Panels begin at multiples of 1024 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OutputPanel {
    /// Type of the elements, of 16 or 32 bits.
    pub dtype: DType,
}

impl OutputPanel {
    /// Rows.
    pub const ROWS: u32 = 64;
    /// Bytes.
    pub const BYTES: u32 = Self::ROWS * ROW_BYTES;

    /// Columns.
    pub const fn cols(self) -> u32 {
        ROW_BYTES / self.dtype.bytes() as u32
    }

    /// The map whose boxes are panels, over matrices of (`rows`, `cols`) of which the first begins where it is bound; `leading` are
    /// the bytes from one row to the next, `rest` how many there are along each further dimension and the bytes between them. Bytes
    /// are multiples of 16. Coordinates: the column, the row, those of the matrix.
    pub fn map(self, (rows, cols): (u64, u64), leading: u64, rest: &[(u64, u64)]) -> TensorMap {
        let (counts, strides) = (rest.iter().map(|r| r.0), rest.iter().map(|r| r.1));
        TensorMap {
            base: 0,
            element: self.dtype.into(),
            dims: [cols, rows].into_iter().chain(counts).collect(),
            strides: std::iter::once(leading).chain(strides).collect(),
            mode: TensorMode::Tiled {
                box_dims: [self.cols(), Self::ROWS].into_iter().chain(rest.iter().map(|_| 1)).collect(),
            },
            element_strides: vec![1; 2 + rest.len()],
            interleave: TensorInterleave::None,
            swizzle: TensorSwizzle::B128,
            fill: TensorFill::Zero,
        }
    }

    /// Stores a warpgroup's values of the columns of a panel in the panel at `to`, rounded to its type; the lanes' values are in the
    /// order of [`WarpgroupSums`](super::WarpgroupSums).
    #[track_caller]
    pub fn put<'k>(self, to: U32<'k>, values: &[F32<'k>]) {
        let k = to.k();
        k.on_behalf(|| {
            let (lane, first_row) = (k.lane_idx(), (k.warp_idx() & 3) * 16);
            if self.dtype.bytes() == 2 {
                // Each lane names a row of one of the four matrices of 8 x 8 that are stored together.
                let row = first_row + (lane & 15);
                let piece = (lane >> 4) ^ (row & 7);
                let at = row.mul_add(ROW_BYTES, to);
                for (i, block) in (0..).zip(values.chunks_exact(8)) {
                    let srcs =
                        block.chunks_exact(2).map(|pair| pair[0].pack_with(pair[1], self.dtype).as_operand());
                    let srcs = srcs.collect();
                    let place = at + (piece ^ (2 * i)) * PIECE;
                    store_matrices(place, 0, false, srcs);
                }
                return;
            }
            let (row, col) = k.accumulator_origin();
            let tile = self.tile(to);
            for (i, pair) in (0..).zip(values.chunks_exact(2)) {
                let (down, right): (u32, u32) = (i % 2 * 8, i / 2 * 8);
                tile.at(first_row + row + down, col + right).store(Lanes::from(pair.to_vec()));
            }
        });
    }

    /// A panel of 16-bit elements as [`put`](Self::put) takes it: pairs of neighbours in the order of a warpgroup's sums. Lanes may put others
    /// in their place then.
    #[track_caller]
    pub fn take<'k>(self, from: U32<'k>) -> Vec<[F32<'k>; 2]> {
        let k = from.k();
        k.on_behalf(|| {
            let (lane, first_row) = (k.lane_idx(), (k.warp_idx() & 3) * 16);
            let row = first_row + (lane & 15);
            let piece = (lane >> 4) ^ (row & 7);
            let at = row.mul_add(ROW_BYTES, from);
            let words = |i: u32| k.matrices_at::<4>(at + (piece ^ (2 * i)) * PIECE, false);
            let pairs = (0..self.cols() / 16).flat_map(words);
            pairs.map(|word| Halves::from_word(word, self.dtype).widen()).collect()
        })
    }

    /// The panel at `at` as a tile.
    pub fn tile(self, at: U32<'_>) -> SharedTile<'_> {
        at.k().tile_from(at, TileLayout::new(self.dtype, Self::ROWS, self.cols()))
    }
}

impl PanelTile {
    /// Where the lane stores in [`put_transposed`](Self::put_transposed), in the tile at `to`: sums of the warpgroup with number
    /// `group` are its depths from `64 group` on.
    #[track_caller]
    pub fn transposed_place<'k>(self, to: U32<'k>, group: U32<'k>) -> U32<'k> {
        let k = to.k();
        k.on_behalf(|| {
            // Each lane names a row of one of the four matrices of 8 x 8 that are stored together: two of each of two rows of pieces.
            let (lane, warp) = (k.lane_idx(), k.warp_idx() & 3);
            let row = (lane >> 4) * 8 + (lane & 7);
            let piece = (warp * 2 + (lane >> 3 & 1)) ^ (lane & 7);
            let panel = group.mul_add(self.outer * ROW_BYTES, to);
            row.mul_add(ROW_BYTES, panel) + piece * PIECE
        })
    }

    /// Stores a warpgroup's values transposed: words as [`packed`](super::WarpgroupSums::packed) gives them, whose columns are the outer index of
    /// the tile, a multiple of 16, and whose 64 rows are part of the common one. `place` is the lane's
    /// [place](Self::transposed_place); the tile is [`Major::K`], of 16-bit elements. [`K::fence_shared_copies`](crate::K::fence_shared_copies) and
    /// a barrier follow before it is multiplied.
    #[track_caller]
    pub fn put_transposed(self, place: U32<'_>, words: &[U32<'_>]) {
        let k = place.k();
        k.on_behalf(|| {
            let wanted = (self.outer / 4) as usize;
            if words.len() != wanted || self.major != Major::K {
                k.issue(IssueKind::Shape { what: "a transposed tile", left: wanted, right: words.len() });
            }
            for (block, words) in (0..).zip(words.chunks_exact(4)) {
                let srcs = words.iter().map(|word| word.as_operand()).collect();
                store_matrices(place, block * 16 * i64::from(ROW_BYTES), true, srcs);
            }
        });
    }
}

/// Stores four matrices of 8 x 8 elements of 16 bits; each lane has an address of a row.
#[track_caller]
fn store_matrices(at: U32<'_>, offset: i64, transposed: bool, srcs: Vec<Operand>) {
    at.k().emit(Inst::StMatrix {
        tiles: MatrixTiles { shape: MatrixShape::M8N8, count: 4, transposed, element: MatrixElement::B16 },
        space: StateSpace::Shared,
        addr: Address::reg(at.id(), offset),
        srcs,
    });
}
