//! Kernels written in Rust and recorded as PTX.
//!
//! A kernel is a [`KernelDef`]: a Rust value with a `build` method that receives the recorder [`K`] and its arguments as
//! handles. Handles are `Copy` and have operators, so the body reads as mathematics. *Rust control flow runs while
//! recording; control flow on the device is a method of `K`.* [`record`] returns the verified kernel.
//!
//! ```
//! use warpwright_dsl::prelude::*;
//!
//! kernel_args! {
//!     /// `dx = dy * silu'(x)`
//!     pub struct SiluBackwardArgs => SiluBackwardParams { x: In<Elem>, dy: In<Elem>, dx: Out<Elem>, n: u64 }
//! }
//!
//! struct SiluBackward {
//!     dtype: DType,
//!     width: u32,
//! }
//!
//! fn silu_grad<'k, A: Float>(x: Reg<'k, A>, dy: Reg<'k, A>, p: Precision) -> Reg<'k, A> {
//!     let s = x.sigmoid_for(p);
//!     dy * s * (1.0 + x * (1.0 - s))
//! }
//!
//! impl AccumulateKernel for SiluBackward {
//!     type Args = SiluBackwardArgs;
//!
//!     fn spec(&self) -> KernelSpec {
//!         let name = format!("silu_backward_{}_x{}", self.dtype, self.width);
//!         KernelSpec::new(name, BlockDim::x(256)).dtypes(DTypes::all(self.dtype))
//!     }
//!
//!     fn build<'k, A: Accumulate>(&self, k: K<'k>, a: SiluBackwardParams<'k>) {
//!         let p = Precision::of(self.dtype);
//!         elementwise(k, a.n, self.width, |i, w| {
//!             let (x, dy) = (a.x.at(i).load::<A>(w), a.dy.at(i).load(w));
//!             a.dx.at(i).store(x.zip(dy, |x, dy| silu_grad(x, dy, p)));
//!         });
//!     }
//! }
//!
//! let kernel = record(&SiluBackward { dtype: DType::BF16, width: 8 }, Target::sm(90))?;
//! assert!(kernel.text().contains(".visible .entry silu_backward_bf16_x8"));
//! # Ok::<(), BuildError>(())
//! ```

#![forbid(unsafe_code)]

pub mod args;
mod block;
mod bulk;
pub mod cells;
pub mod channels;
mod cluster;
pub mod columns;
mod context;
mod convert;
mod copy;
pub mod divide;
mod error;
mod exchange;
mod float;
pub mod flow;
mod grid;
mod halves;
mod index;
mod int;
mod kernel;
mod lanes;
mod math;
mod mbarrier;
mod mem;
mod moments;
mod packed;
mod philox;
mod pipeline;
pub mod pixels;
mod prune;
mod recorder;
mod reg;
pub mod rows;
mod scan;
mod skeleton;
pub mod sliding;
mod smem_uniform;
mod storage;
pub mod strips;
mod table;
mod tile;
mod transcendental;
mod warp;

pub use args::{DTypes, Extra, In, InOut, KernelArgs, Optional, OptionalParam, Out, Strided, StridedPtr};
pub use block::{block_inclusive_sum, block_reduce};
pub use bulk::Turn;
pub use channels::{ChannelSizes, ChannelSizesArgs, ChannelWalk};
pub use cluster::{AllGather, cluster_reduce};
pub use columns::ColumnTile;
pub use context::K;
pub use copy::{Bounds, Fetched, Stages, TileCopy};
pub use error::{BuildError, Issue, IssueKind};
pub use float::{Float, Precision};
pub use flow::{Carry, Range};
pub use halves::Halves;
pub use index::{Index, IntoIndex};
pub use kernel::{
    Accumulate, AccumulateKernel, BlockDim, KernelDef, KernelSpec, Params, record, record_module, record_with,
};
pub use lanes::{LaneSource, Lanes, tree, tree_of};
pub use mbarrier::{Mbarrier, Mbarriers, TensorMapArg, TensorMapParam};
pub use mem::{
    Access, BF16, ClusterShared, Elem, Element, F16, Fill, FixedElement, Ptr, Read, ReadWrite, Readable,
    Shared, Space, Writable, Write,
};
pub use moments::Moments;
pub use packed::Packed;
pub use philox::Philox;
pub use pipeline::{Pipeline, PipelineState};
pub use pixels::{PixelColumn, PixelStrips, PixelTilingArgs};
pub use reg::{F32, F64, I32, I64, Integer, Number, Pred, Reg, Scalar, Source, U32, U64};
pub use rows::{HeldVectors, RowLoop, Team};
pub use scan::Scanned;
pub use skeleton::{
    COLUMN_SUM_LANES, bounded_blocks, column_sums, elementwise, elementwise_grid, sum_of_parts,
};
pub use smem_uniform::SmemUniform;
pub use storage::VECTOR_BYTES;
pub use table::{WARP_TABLE_LEN, WarpTable};
pub use tile::{
    Accumulator, Fragment, Im2colImage, Major, MatrixA, MatrixB, MmaAtom, OutputPanel, PanelTile, Part,
    RegTile, RowVector, SharedTile, Split, SplitSum, SplitTile, TileLayout, TilePoint, TileReader,
    WarpgroupSums,
};
pub use transcendental::{Functions, Normal};
pub use warp::{
    Max, Maximum, Min, Minimum, Reduction, Sum, WARP, warp_inclusive_sum, warp_reduce, warp_reduce_lanes,
};
pub use warpwright_ptx::kernel::Kernel;
pub use warpwright_ptx::{ArgValue, DType, Target};

/// Everything that a kernel file uses.
pub mod prelude {
    pub use crate::{
        Access, Accumulate, AccumulateKernel, Accumulator, BF16, BlockDim, Bounds, BuildError, Carry,
        ClusterShared, ColumnTile, DType, DTypes, Elem, Extra, F16, F32, F64, Fetched, Fill, Float, Fragment,
        HeldVectors, I32, I64, In, InOut, Index, Integer, IntoIndex, K, Kernel, KernelArgs, KernelDef,
        KernelSpec, Lanes, Major, MatrixA, MatrixB, Max, Maximum, Min, Minimum, MmaAtom, Moments, Normal,
        Number, Optional, Out, Packed, Params, Philox, Precision, Pred, Ptr, Read, ReadWrite, Reduction, Reg,
        RegTile, RowLoop, RowVector, Scalar, Shared, SharedTile, Source, Stages, Strided, Sum, Target, Team,
        TileCopy, TileLayout, TilePoint, TileReader, U32, U64, Write, accumulate, block_reduce, carry,
        cluster_reduce, elementwise, elementwise_grid, kernel_args, record, warp_reduce,
    };
}
