//! The kernel before the first rows: the number of targets that count, and ones.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

kernel_args! {
    /// `count` gets the number of the `rows` targets, of `words` 32-bit words each, that are not `ignore_index`, and `ones` as many ones as
    /// `len` says: gradients of losses, and the factor that sums rows.
    pub(super) struct PrepareArgs => PrepareParams {
        target: In<u32>, count: Out<Elem>, ones: Out<Elem>, rows: u64, len: u64, words: u32, ignore_index: i64,
    }
}

/// Threads of the one block.
pub(super) const THREADS: u32 = 1024;

#[derive(Clone, Copy, Debug)]
pub(super) struct Prepare {
    pub(super) dtype: DType,
}

impl AccumulateKernel for Prepare {
    type Args = PrepareArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("linear_cross_entropy_prepare_{}", self.dtype), BlockDim::x(THREADS))
            .dtypes(DTypes::all(self.dtype).accumulated(["count"]))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: PrepareParams<'k>) {
        k.after_previous_grid();
        let count = k.fold(k.block_strided(a.rows, 1), k.lit::<A>(0.0), |row, count| {
            let counts = a.target.integer(row, a.words).ne(a.ignore_index);
            count + counts.select(1.0, 0.0)
        });
        let count = k.group_combine_once(k.block_threads(), count, |a, b| a + b);
        k.if_(k.thread_idx().eq(0), || a.count.set(count));
        k.for_each(k.block_strided(a.len, 1), |i| a.ones.at(i).set(k.lit::<A>(1.0)));
    }
}
