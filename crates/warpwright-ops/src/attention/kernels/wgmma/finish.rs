//! The kernels before and after the one for all gradients at once: statistics of the queries beside cleared counters, and the
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
    /// The results of [`Delta`], and zeros for `of_head` counters of each head.
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
    /// Whether each warp's share of the sums lies for itself, as [`WgmmaFused::is_uneven`] says.
    by_warps: bool,
}

impl FinishQueries {
    const THREADS: u32 = 256;
    /// Elements between each 32 of a row in shared memory, so that neither side has bank conflicts: threads store eight neighbours in four
    /// rows, and load 16 bytes of each 32.
    const PAD: u32 = 4;

    pub(in crate::attention) const fn of(dtype: DType, config: WgmmaFused) -> Self {
        Self { dtype, columns: config.columns, width: config.width, by_warps: config.is_uneven() }
    }

    /// Elements from one row to the next in shared memory.
    const fn pitch(self) -> u32 {
        let pitch = self.width + (self.width.div_ceil(32) - 1) * Self::PAD;
        if pitch.is_multiple_of(2 * Self::PAD) { pitch + Self::PAD } else { pitch }
    }

    /// Sums of a thread in the order in which they lie, 16 bytes for each turn of the block.
    fn sums<'k>(self, k: K<'k>, from: Ptr<'k, ReadWrite, f32>, there: Pred<'k>) -> Vec<Lanes<'k, f32>> {
        let pieces = self.columns * self.width / 4;
        let load = |turn: u32| {
            // Warps have 32 pieces, and so does each share.
            let left = pieces - turn * Self::THREADS;
            let all = left >= Self::THREADS;
            let there = if all { there } else { there & k.thread_idx().lt(left) };
            let from = from.at(u64::from(turn * Self::THREADS * 4));
            from.only_where(there, Fill::Zero).load::<f32>(4)
        };
        (0..pieces.div_ceil(Self::THREADS)).map(load).collect()
    }

    /// Lays the sums of each warp's share out in rows.
    fn put_by_warps<'k>(self, k: K<'k>, rows: Ptr<'k, Shared, f32>, sums: &[Lanes<'k, f32>]) {
        let (pitch, chunks) = (self.pitch(), self.columns / 8);
        let (lane, warp) = (k.lane_idx(), k.thread_idx() / WARP);
        for (turn, sums) in (0..).zip(sums) {
            let number = warp + turn * (Self::THREADS / WARP);
            let share = number / chunks;
            let query = (number - share * chunks) * 8 + lane % 4 * 2;
            let at = query * pitch + share * 16 + lane / 4 + share / 2 * Self::PAD;
            k.if_(number.lt(chunks * (self.width / 16)), || {
                for (i, sum) in (0..).zip(sums.iter()) {
                    rows.at(at).at(u64::from(i % 2 * pitch + i / 2 * 8)).set(sum);
                }
            });
        }
    }

    /// The same of each group's part.
    fn put_by_groups<'k>(self, k: K<'k>, rows: Ptr<'k, Shared, f32>, sums: &[Lanes<'k, f32>]) {
        let Self { columns, width, .. } = self;
        let pitch = self.pitch();
        // A turn of the block covers two chunks of eight queries of a group, each by its 128 threads.
        let (lane, warp) = (k.lane_idx(), k.thread_idx() / WARP);
        let place = (lane % 4 * 2 + (warp / 4) * 8) * pitch + (warp % 4 * 16 + lane / 4);
        let place = place + warp % 4 / 2 * Self::PAD;
        let to = rows.at(place);
        let of_group = columns * width / WgmmaFused::GROUPS / (4 * GROUP);
        for (turn, sums) in (0..).zip(sums) {
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
    }
}

impl KernelDef for FinishQueries {
    type Args = FinishArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, columns, width, .. } = self;
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
        let sums = self.sums(k, from, there);
        let pitch = self.pitch();
        let rows = k.shared::<f32>(columns * pitch);
        if self.by_warps {
            self.put_by_warps(k, rows, &sums);
        } else {
            self.put_by_groups(k, rows, &sums);
        }
        k.barrier();
        let scale = a.scale.convert::<f32>();
        let lanes = (width / VECTOR).next_power_of_two();
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
            let load = |at: Ptr<'k, Shared, f32>| {
                // Fewer threads than a power of two have elements of a row.
                let whole = lanes * VECTOR == width;
                if whole { at.load(4) } else { at.only_where(column.lt(width), Fill::Zero).load(4) }
            };
            let values = Lanes::concat([0, 4].map(|right: u64| load(values.at(right))));
            let inside = (first + down).lt(a.queries) & column.lt(a.width);
            let to = out.at(of_row * u64::from(down)).only_where(inside, Fill::Zero);
            to.store(values.iter().map(|value| value * scale).collect::<Vec<_>>());
        }
    }
}
