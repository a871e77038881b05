//! The gradient of the bias: sums of `dy` over images and pixels, of parts of them.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{COLUMN_SUM_LANES, column_sums, kernel_args};
use warpwright_ptx::Target;
use warpwright_ptx::isa::DeviceLimits;

use crate::batch_norm::Layout;
use crate::gemm::epilogue::sums_dtype;

kernel_args! {
    /// Sums of a part of `rows` images or, with channels last, pixels.
    pub(super) struct BiasArgs => BiasParams {
        dy: In<Elem>, sums: Out<Elem>,
        filters: u32,
        rows: u32,
        /// Those that a block along y of the grid takes.
        part: u32,
        /// Pixels of an image, with channels first.
        pixels: u32,
    }
}

/// Rows of threads of a block, with channels last.
const DEPTH: u32 = 8;
/// Threads of a block.
pub(super) const THREADS: u32 = COLUMN_SUM_LANES * DEPTH;

/// Blocks of a multiprocessor that memory is read at its rate by, and most parts.
const BUSY_BLOCKS: usize = 8;
const MAX_PARTS: usize = 1024;

/// The sums of `dy` over a part of it: `[part][filter]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct BiasParts {
    pub(super) dtype: DType,
    pub(super) layout: Layout,
}

impl BiasParts {
    /// Channels of a block.
    pub(super) const fn channels(&self) -> u32 {
        match self.layout {
            Layout::ChannelsFirst => 1,
            Layout::ChannelsLast => COLUMN_SUM_LANES,
        }
    }
}

impl AccumulateKernel for BiasParts {
    type Args = BiasArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, layout } = *self;
        let block = match layout {
            Layout::ChannelsFirst => BlockDim::x(THREADS),
            Layout::ChannelsLast => BlockDim::xy(COLUMN_SUM_LANES, DEPTH),
        };
        KernelSpec::new(format!("conv_bias_{dtype}_{}", layout.name()), block)
            .dtypes(DTypes::all(dtype).with("sums", sums_dtype(dtype)))
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: BiasParams<'k>) {
        let part = k.block_idx_y();
        let first = part * p.part;
        let rows = (first + p.part).min(p.rows) - first;
        let to = p.sums.at(part.mul_wide(p.filters));
        let filters = p.filters.to_u64();
        match self.layout {
            Layout::ChannelsLast => {
                let dy = p.dy.at(first.to_u64() * filters);
                column_sums::<A, _, _>(k, dy, rows, filters, |filter, sum| to.at(filter).set(sum));
            }
            Layout::ChannelsFirst => {
                let filter = k.block_idx_x().to_u64();
                let zero = k.lit::<A>(0.0);
                let mine = k.fold(k.range(0, rows, 1), zero, |row, sum| {
                    let plane = p.dy.at(((first + row).to_u64() * filters + filter) * p.pixels.to_u64());
                    k.fold(k.range(k.thread_idx(), p.pixels, THREADS), sum, |at, sum| {
                        sum + plane.at(at).get::<A>()
                    })
                });
                let sum = k.group_combine_once(THREADS, mine, |a, b| a + b);
                k.if_(k.thread_idx().eq(0), || to.at(filter).set(sum));
            }
        }
    }
}

/// Rows of a part, where `across` blocks have the channels.
pub(super) fn part(target: Target, rows: usize, across: usize) -> usize {
    let blocks = DeviceLimits::of(target).multiprocessors as usize * BUSY_BLOCKS;
    let parts = (blocks / across.max(1)).clamp(1, MAX_PARTS);
    rows.div_ceil(parts).max(1)
}
