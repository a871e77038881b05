//! The properties that every layout of a block has, whatever units multiply.

use warpwright_dsl::DType;

/// The sizes of a block and of its tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockShape {
    /// Threads.
    pub threads: u32,
    /// Rows that the block owns: queries, forward.
    pub rows: u32,
    /// Columns of a tile.
    pub columns: u32,
    /// Elements of a row of a tile: the longest head that it takes.
    pub width: u32,
    /// Elements of an access to rows in global memory.
    pub vector: u32,
}

/// How a block is laid out. It owns some rows and visits tiles of columns.
pub trait BlockLayout {
    /// The layout in the names of kernels.
    fn name(&self) -> String;

    /// The sizes of a block.
    fn shape(&self) -> BlockShape;

    /// Threads of a block.
    fn threads(&self) -> u32 {
        self.shape().threads
    }

    /// Rows of a block.
    fn rows(&self) -> u32 {
        self.shape().rows
    }

    /// Columns of a tile.
    fn tile_columns(&self) -> u32 {
        self.shape().columns
    }

    /// Elements of a row of a tile.
    fn width(&self) -> u32 {
        self.shape().width
    }

    /// Elements of an access to rows in global memory.
    fn vector(&self) -> u32 {
        self.shape().vector
    }

    /// Bytes of dynamic shared memory for tensors of `dtype`, with `stationary` tiles of the block's own rows.
    fn shared_bytes(&self, dtype: DType, stationary: u32) -> u32;

    /// Blocks that should at least fit a multiprocessor, where the assembler does not know best.
    fn min_blocks_per_sm(&self, dtype: DType) -> Option<u32> {
        let _ = dtype;
        None
    }
}

/// How a block of few queries is laid out, the keys of a head shared out among its teams.
pub trait DecodeLayout: BlockLayout {
    /// Teams of a block, each with columns of its own.
    fn teams(&self) -> u32;

    /// Elements of an access to the result.
    fn result_vector(&self) -> u32;

    /// Whether teams take tiles in turn; otherwise each has tiles that follow each other.
    fn takes_turns(&self) -> bool {
        false
    }
}
