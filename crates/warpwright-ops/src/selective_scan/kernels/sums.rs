//! The last step of gradients: sums of what blocks and samples have left.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{COLUMN_SUM_LANES, column_sums, kernel_args};

/// Rows that a block adds at once.
const STRIPS: u32 = 8;

kernel_args! {
    /// `partial` has `rows` rows: of the gradient of `B` and of that of `C`, `elements` each.
    pub(in crate::selective_scan) struct RowSumArgs => RowSumParams {
        partial: In<Elem>, db: Out<Elem>, dc: Out<Elem>, rows: u32, elements: u64,
    }
}

/// The gradients of `B` and `C` from those of the blocks of a group.
#[derive(Clone, Copy, Debug)]
pub(in crate::selective_scan) struct RowSums {
    pub(in crate::selective_scan) dtype: DType,
}

impl AccumulateKernel for RowSums {
    type Args = RowSumArgs;

    fn spec(&self) -> KernelSpec {
        let name = format!("selective_scan_backward_rows_{}", self.dtype);
        KernelSpec::new(name, BlockDim::xy(COLUMN_SUM_LANES, STRIPS))
            .dtypes(DTypes::all(self.dtype).accumulated(["partial"]))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: RowSumParams<'k>) {
        column_sums::<A, _, _>(k, a.partial, a.rows, a.elements * 2, |column, sum| {
            let of_b = column.lt(a.elements);
            k.if_else(of_b, || a.db.at(column).set(sum), || a.dc.at(column - a.elements).set(sum));
        });
    }
}

kernel_args! {
    /// `partial` has a row for each sample: the gradients of `A`, of `D` and of the bias of the time steps.
    pub(in crate::selective_scan) struct ParameterArgs => ParameterParams {
        partial: In<Elem>, da: Out<Elem>, dd: Optional<Out<Elem>>, ddelta_bias: Optional<Out<Elem>>, rows: u32,
        channels: u32, state: u32,
    }
}

/// The gradients of parameters from those of the samples.
#[derive(Clone, Copy, Debug)]
pub(in crate::selective_scan) struct Parameters {
    pub(in crate::selective_scan) dtype: DType,
}

impl AccumulateKernel for Parameters {
    type Args = ParameterArgs;

    fn spec(&self) -> KernelSpec {
        let name = format!("selective_scan_backward_parameters_{}", self.dtype);
        KernelSpec::new(name, BlockDim::xy(COLUMN_SUM_LANES, STRIPS)).dtypes(DTypes::all(self.dtype))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ParameterParams<'k>) {
        let (of_a, channels) = (a.channels.mul_wide(a.state), a.channels.to_u64());
        column_sums::<A, _, _>(k, a.partial, a.rows, of_a + channels * 2, |column, sum| {
            let (of_d, of_bias) = (column.ge(of_a), column.ge(of_a + channels));
            k.if_(!of_d, || a.da.at(column).set(sum));
            k.if_(of_d & !of_bias & a.dd.is_given(), || a.dd.value.at(column - of_a).set(sum));
            k.if_(of_bias & a.ddelta_bias.is_given(), || {
                a.ddelta_bias.value.at(column - (of_a + channels)).set(sum);
            });
        });
    }
}
