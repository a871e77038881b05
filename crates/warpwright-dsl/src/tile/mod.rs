//! Tiles: matrices in shared memory, in the registers of threads, and in those of tensor cores.

mod im2col;
mod mma;
mod output;
mod reg;
mod shared;
mod turn;
mod wgmma;

pub use im2col::Im2colImage;
pub use mma::{Accumulator, Fragment, MatrixA, MatrixB, MmaAtom, Split, SplitSum};
pub use output::OutputPanel;
pub use reg::{RegTile, RowVector, SplitTile};
pub(crate) use shared::CHUNK;
pub use shared::{Major, SharedTile, TileLayout, TilePoint, TileReader};
pub use wgmma::{PanelTile, Part, WarpgroupSums};
