//! The kernels: those of embeddings with factors, and the products of rows.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;
use warpwright_dsl::{WARP, tree};

use super::tuning::{DOT_THREADS, UNROLL};
use crate::embedding::kernel::{GATHER_BLOCK, GatherArgs, PartArgs, RowArgs, SUM_BLOCK};

kernel_args! {
    /// Rows times their factors.
    pub(super) struct GatherScaledArgs => GatherScaledParams { of: GatherArgs, factors: In<Elem> }
}

kernel_args! {
    /// Sums of parts of rows times their factors.
    pub(super) struct ScaledPartArgs => ScaledPartParams { of: PartArgs, factors: In<Elem> }
}

kernel_args! {
    /// Sums of rows, and of those of `base`.
    pub(super) struct ScatterArgs => ScatterParams { of: RowArgs, factors: In<Elem>, base: In<Elem> }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct GatherScaled {
    pub(super) dtype: DType,
    pub(super) factors: DType,
    pub(super) width: u32,
}

impl AccumulateKernel for GatherScaled {
    type Args = GatherScaledArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, factors, width } = *self;
        let dtypes = DTypes::all(dtype).with("factors", factors);
        KernelSpec::new(format!("gather_rows_{dtype}_by_{factors}_x{width}"), GATHER_BLOCK).dtypes(dtypes)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: GatherScaledParams<'k>) {
        let factor = |row| a.factors.at(row).get::<A>();
        a.of.copy(k, self.dtype, self.width, factor, |x: Packed<'k, A>, factor| {
            Packed::round(k, self.dtype, x.lanes() * factor)
        });
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ScaledParts {
    pub(super) dtype: DType,
    pub(super) factors: DType,
    pub(super) width: u32,
}

impl AccumulateKernel for ScaledParts {
    type Args = ScaledPartArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, factors, width } = *self;
        let dtypes = DTypes::all(dtype).accumulated(["of.partials"]).with("factors", factors);
        KernelSpec::new(format!("scatter_rows_parts_{dtype}_by_{factors}_x{width}"), SUM_BLOCK).dtypes(dtypes)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ScaledPartParams<'k>) {
        a.of.add::<A>(k, self.width, Some(a.factors));
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Scatter {
    pub(super) dtype: DType,
    pub(super) factors: Option<DType>,
    pub(super) base: bool,
    pub(super) width: u32,
}

impl AccumulateKernel for Scatter {
    type Args = ScatterArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, factors, base, width } = *self;
        let by = factors.map_or(String::new(), |factors| format!("_by_{factors}"));
        let onto = if base { "_onto_base" } else { "" };
        let dtypes =
            DTypes::all(dtype).accumulated(["of.partials"]).with("factors", factors.unwrap_or(dtype));
        KernelSpec::new(format!("scatter_rows_{dtype}{by}{onto}_x{width}"), SUM_BLOCK).dtypes(dtypes)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ScatterParams<'k>) {
        let (factors, base) = (self.factors.map(|_| a.factors), self.base.then_some(a.base));
        a.of.add::<A>(k, self.width, factors, base);
    }
}

kernel_args! {
    /// The products of rows of `a` with the rows of `b` that their indices name.
    pub(super) struct DotArgs => DotParams {
        a: In<Elem>, b: In<Elem>, index: In<u32>, y: Out<Elem>, words: u32, rows: u64, count: u64, dim: u64,
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Dots {
    pub(super) dtype: DType,
    pub(super) y_dtype: DType,
    pub(super) width: u32,
}

impl AccumulateKernel for Dots {
    type Args = DotArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, y_dtype, width } = *self;
        let dtypes = DTypes::all(dtype).with("y", y_dtype);
        KernelSpec::new(format!("row_dots_{dtype}_to_{y_dtype}_x{width}"), BlockDim::x(DOT_THREADS))
            .dtypes(dtypes)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: DotParams<'k>) {
        k.overlap_grids();
        let (team, width) = (Team::new(k, WARP), self.width);
        let (place, lane) = (team.row(), team.lane());
        let there = place.lt(p.count);
        let index = p.index.integer(there.select(place, 0), p.words);
        let valid = index.ge(0) & index.lt(p.rows.to_i64());
        let n = (there & valid).select(p.dim, 0);
        let [a, b] = [p.a.at(place * p.dim), p.b.at(index.to_u64() * p.dim)];
        let walk = RowLoop::new(k, (lane * width).to_u64(), n, u64::from(WARP * width), UNROLL);
        let sum = walk.fold(Lanes::<A>::constant(k, 0.0, width), |round, sum| {
            let load = |vector: warpwright_dsl::rows::RowVector<'k>| {
                [a, b].map(|row| vector.of(row, Fill::Zero).load_packed::<A>(width))
            };
            let loaded: Vec<_> = round.map(load).collect();
            loaded.iter().fold(sum, |sum, [a, b]| a.lanes().mul_add(b.lanes(), sum))
        });
        let zero = k.lit::<A>(0.0);
        let of_lanes = tree(sum, |a, b| a + b).unwrap_or(zero);
        let sum = team.combine(of_lanes, |a, b| a + b);
        k.if_(there & lane.eq(0), || p.y.at(place).set(valid.select(sum, f64::NAN)));
    }
}
