//! Kernels before and after a product: sums of its parts, zeros, and weights in another order.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{COLUMN_SUM_LANES, column_sums, kernel_args, sum_of_parts};

use crate::gemm::epilogue::{EpilogueArgs, Outputs, Program, ResultArgs, sums_dtype};

/// Threads of a block.
pub(super) const THREADS: u32 = 128;

kernel_args! {
    /// `y[i]`, the sum of element `i` of all parts.
    pub(super) struct SumArgs => SumParams {
        from: In<Elem>, y: Out<Elem>,
        len: u64,
        parts: u32,
        /// Elements of a part.
        part: u64,
    }
}

kernel_args! {
    /// The same as a result of `columns` channels, with an epilogue.
    pub(super) struct FinishArgs => FinishParams {
        from: In<Elem>, to: ResultArgs,
        len: u64,
        parts: u32, columns: u32,
        epilogue: EpilogueArgs,
    }
}

/// Adds parts of a result, and finishes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FinishParts {
    pub(super) dtype: DType,
    /// Elements of a thread, which divides the columns.
    pub(super) width: u32,
    /// Whether columns have factors.
    pub(super) scale: bool,
}

impl AccumulateKernel for FinishParts {
    type Args = FinishArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, width, scale } = *self;
        let program = Program { scale, ..Program::default() };
        let name = format!("conv_finish_parts_{dtype}_v{width}{}", program.name());
        let dtypes = DTypes::all(dtype).with("from", sums_dtype(dtype));
        KernelSpec::new(name, BlockDim::x(THREADS)).dtypes(program.dtypes(dtypes, dtype))
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: FinishParams<'k>) {
        let at = k.global_idx_x() * u64::from(self.width);
        k.if_(at.lt(p.len), || {
            let sums = sum_of_parts::<A, _, _>(p.from.at(at), (p.parts, p.len), self.width);
            let none = (k.lit(0u64), k.lit(0u64));
            let outputs = Outputs::new(p.to, p.epilogue, (p.len, p.len), none);
            outputs.finish_at(at, (at % p.columns.to_u64()).to_u32(), &sums);
        });
    }
}

/// Adds parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct SumParts {
    pub(super) dtype: DType,
    /// Elements of a thread: a power of two, which parts and `y` are aligned to.
    pub(super) width: u32,
}

impl SumParts {
    /// Elements of a thread where tensors are aligned.
    pub(super) const WIDE: u32 = 4;
}

impl AccumulateKernel for SumParts {
    type Args = SumArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, width } = *self;
        KernelSpec::new(format!("conv_sum_parts_{dtype}_v{width}"), BlockDim::x(THREADS))
            .dtypes(DTypes::all(dtype).with("from", sums_dtype(dtype)))
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: SumParams<'k>) {
        let at = k.global_idx_x() * u64::from(self.width);
        k.if_(at.lt(p.len), || {
            p.y.at(at).store(sum_of_parts::<A, _, _>(p.from.at(at), (p.parts, p.part), self.width));
        });
    }
}

kernel_args! {
    /// `y[outer, middle, inner]`, the sum over parts of elements that lie as the strides say; an inner index counts pairs of two.
    pub(super) struct ReorderArgs => ReorderParams {
        from: In<Elem>, y: Out<Elem>,
        parts: u32,
        /// Elements of a part.
        part: u64,
        outer: u32, middle: u32, inner: u32,
        /// Outer and inner indices that there are elements for: zeros behind them.
        known_outer: u32, known_inner: u32,
        /// The second of a pair goes up to here.
        pair: u32,
        stride_outer: u64, stride_middle: u64, stride_first: u64, stride_second: u64,
    }
}

/// Changes the order of a weight, or adds parts of the gradient of one that lie in another order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reorder {
    pub(super) dtype: DType,
    /// Whether what is read are sums, and not elements.
    pub(super) sums: bool,
}

impl AccumulateKernel for Reorder {
    type Args = ReorderArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, sums } = *self;
        let (of, from) = if sums { ("sums", sums_dtype(dtype)) } else { ("elements", dtype) };
        KernelSpec::new(format!("conv_reorder_{of}_{dtype}"), BlockDim::x(THREADS))
            .dtypes(DTypes::all(dtype).with("from", from))
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: ReorderParams<'k>) {
        let within = k.block_idx_x() * THREADS + k.thread_idx();
        let middle = within / p.inner;
        let inner = within - middle * p.inner;
        let first = inner / p.pair;
        let second = inner - first * p.pair;
        k.if_(middle.lt(p.middle), || {
            let of_pair = first.to_u64() * p.stride_first + second.to_u64() * p.stride_second;
            let from = p.from.at(middle.to_u64() * p.stride_middle + of_pair);
            k.for_each(k.range(k.block_idx_y(), p.outer, k.grid_dim_y()), |outer| {
                let to = p.y.at(outer.to_u64() * p.middle.mul_wide(p.inner) + within.to_u64());
                let there = outer.lt(p.known_outer) & inner.lt(p.known_inner);
                let parts = there.select(p.parts, 0);
                to.store(sum_of_parts::<A, _, _>(
                    from.at(outer.to_u64() * p.stride_outer),
                    (parts, p.part),
                    1,
                ));
            });
        });
    }
}

/// Adds so many parts that threads share them.
#[derive(Clone, Copy, Debug)]
pub(super) struct SumManyParts {
    pub(super) dtype: DType,
}

impl SumManyParts {
    /// Parts up to which a thread of [`SumParts`] adds them alone.
    pub(super) const LEAST: u32 = 16;
    /// Elements of a block.
    pub(super) const COLUMNS: u32 = COLUMN_SUM_LANES;
    /// Threads that share the parts of an element.
    const DEPTH: u32 = 8;
}

impl AccumulateKernel for SumManyParts {
    type Args = SumArgs;

    fn spec(&self) -> KernelSpec {
        let block = BlockDim::xy(COLUMN_SUM_LANES, Self::DEPTH);
        KernelSpec::new(format!("conv_sum_many_parts_{}", self.dtype), block)
            .dtypes(DTypes::all(self.dtype).with("from", sums_dtype(self.dtype)))
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: SumParams<'k>) {
        column_sums::<A, _, _>(k, p.from, p.parts, p.len, |at, sum| p.y.at(at).set(sum));
    }
}
