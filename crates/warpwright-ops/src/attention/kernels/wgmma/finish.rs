//! What stands in front of and behind the kernel for all gradients at once: statistics of the queries beside cleared counters, and the
//! gradients of queries from their sums, times the factor of the softmax and rounded.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{WARP, kernel_args};

use super::super::backward::{Delta, DeltaArgs};
use super::fused::SumsArgs;
use super::layouts::WgmmaFused;
use super::{GROUP, VECTOR};

kernel_args! {
    /// Gradients of queries `[batch, queries, heads, width]` from sums of tiles.
    pub(in crate::attention) struct FinishArgs => FinishParams {
        sums: SumsArgs, dq: Strided<Out<Elem>, 3>, queries: u32, heads: u32, width: u32, scale: f64,
    }
}

kernel_args! {
    /// What [`Delta`] writes, and zeros for `of_head` counters of each head.
    pub(in crate::attention) struct PrepareArgs => PrepareParams { delta: DeltaArgs, counters: Out<u32>, of_head: u32 }
}

/// The statistics of queries, and counters at zero.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Prepare {
    pub(in crate::attention) delta: Delta,
}

impl AccumulateKernel for Prepare {
    type Args = PrepareArgs;

    fn spec(&self) -> KernelSpec {
        let Delta { dtype, vector, width } = self.delta;
        KernelSpec::new(
            format!("attention_backward_prepare_{dtype}_d{width}x{vector}"),
            BlockDim::x(Delta::THREADS),
        )
        .dtypes(DTypes::all(dtype).with("delta.lse", DType::F32).with("delta.statistics", DType::F32))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: PrepareParams<'k>) {
        let (head, batch) = (k.block_idx_y(), k.block_idx_z());
        let counters = a.counters.at((batch * a.delta.heads + head).mul_wide(a.of_head));
        // A block has more threads than its queries have counters.
        let counter = k.block_idx_x() * Delta::THREADS + k.thread_idx();
        counters.at(counter).only_where(counter.lt(a.of_head), Fill::Zero).set(0u32);
        AccumulateKernel::build::<A>(&self.delta, k, a.delta);
    }
}

/// A block has a tile of queries: its sums come in the order of the threads that left them, and go through shared memory to rows.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct FinishQueries {
    pub(in crate::attention) dtype: DType,
    /// Queries of a tile.
    pub(in crate::attention) columns: u32,
    /// Elements of a row.
    pub(in crate::attention) width: u32,
}

impl FinishQueries {
    const THREADS: u32 = 256;
    /// Elements between each 32 of a row in shared memory, so that neither side has bank conflicts: threads store eight neighbours in four
    /// rows, and load 16 bytes of each 32.
    const PAD: u32 = 4;

    pub(in crate::attention) const fn of(dtype: DType, config: WgmmaFused) -> Self {
        Self { dtype, columns: config.columns, width: config.width }
    }
}

impl KernelDef for FinishQueries {
    type Args = FinishArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, columns, width } = self;
        KernelSpec::new(
            format!("attention_backward_dq_{dtype}_c{columns}d{width}"),
            BlockDim::x(Self::THREADS),
        )
        .dtypes(DTypes::all(self.dtype))
    }

    fn build<'k>(&self, k: K<'k>, a: FinishParams<'k>) {
        let Self { columns, width, .. } = *self;
        k.after_previous_grid();
        let (tile, head, batch) = (k.block_idx_x(), k.block_idx_y(), k.block_idx_z());
        let of_all = batch * a.heads + head;
        let number = of_all.mad_wide(a.sums.tiles, tile.to_u64());
        // Queries that see no key have no sums.
        let there = a.sums.counter(of_all, number * u64::from(WgmmaFused::GROUPS)).get::<u32>().ne(0);
        let from = a.sums.dq.at(number * u64::from(columns * width)).at(k.thread_idx() * 4);
        let chunks = columns * width / 4 / Self::THREADS;
        let sums: Vec<_> = (0..chunks)
            .map(|turn| {
                from.at(u64::from(turn * Self::THREADS * 4)).only_where(there, Fill::Zero).load::<f32>(4)
            })
            .collect();
        let pitch = width + (width / 32 - 1) * Self::PAD;
        let rows = k.shared::<f32>(columns * pitch);
        // A turn of the block covers two chunks of eight queries of a group, each by its 128 threads.
        let (lane, warp) = (k.lane_idx(), k.thread_idx() / WARP);
        let place = (lane % 4 * 2 + (warp / 4) * 8) * pitch + (warp % 4 * 16 + lane / 4);
        let place = place + warp % 4 / 2 * Self::PAD;
        let to = rows.at(place);
        let of_group = columns * width / WgmmaFused::GROUPS / (4 * GROUP);
        for (turn, sums) in (0..).zip(&sums) {
            let (group, chunk) = (2 * turn / of_group, 2 * turn % of_group);
            let (query, element) = match width {
                64 => (group * columns / WgmmaFused::GROUPS, 0),
                _ => (0, group * 64),
            };
            let at = (query + chunk * 8) * pitch + element + element / 32 * Self::PAD;
            for (i, sum) in (0..).zip(sums.iter()) {
                to.at(u64::from(at + i % 2 * pitch + i / 2 * 8)).set(sum);
            }
        }
        k.barrier();
        let scale = a.scale.convert::<f32>();
        let lanes = width / VECTOR;
        let (row, column) = (k.thread_idx() / lanes, k.thread_idx() % lanes * VECTOR);
        let [of_batch, of_row, of_head] = a.dq.strides;
        let first = tile * columns + row;
        let out = a.dq.data.at(batch.to_u64() * of_batch + head.to_u64() * of_head);
        let out = out.at(first.to_u64() * of_row).at(column);
        let from = rows.at(row * pitch + column + column / 32 * Self::PAD);
        let at_once = Self::THREADS / lanes;
        for turn in 0..columns / at_once {
            let down = turn * at_once;
            let values = from.at(u64::from(down * pitch));
            let values = Lanes::concat([0, 4].map(|right: u64| values.at(right).load::<f32>(4)));
            let inside = (first + down).lt(a.queries) & column.lt(a.width);
            let to = out.at(of_row * u64::from(down)).only_where(inside, Fill::Zero);
            to.store(values.iter().map(|value| value * scale).collect::<Vec<_>>());
        }
    }
}
