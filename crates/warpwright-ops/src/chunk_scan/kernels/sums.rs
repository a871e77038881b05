//! The last step of gradients: sums of what blocks and chunks have left.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{COLUMN_SUM_LANES, column_sums, kernel_args, sum_of_parts};

use super::step_gradients::PARAMETERS;

/// Rows that a block adds at once.
const STRIPS: u32 = 8;

kernel_args! {
    /// `partial` has `parts` parts: rows of the gradient of `B` and of that of `C`, `elements` each.
    pub(in crate::chunk_scan) struct RowSumArgs => RowSumParams {
        partial: In<f32>, db: Out<Elem>, dc: Out<Elem>, parts: u32, elements: u64,
    }
}

/// The gradients of `B` and `C` from those of the blocks that share the heads of a group. There are few of these, so
/// that each thread adds all of its elements.
#[derive(Clone, Copy, Debug)]
pub(in crate::chunk_scan) struct RowSums {
    pub(in crate::chunk_scan) dtype: DType,
    /// Elements of a thread, which do not lie in both gradients.
    pub(in crate::chunk_scan) width: u32,
}

impl RowSums {
    /// Elements of a thread where rows are aligned.
    pub(in crate::chunk_scan) const WIDE: u32 = 4;
    pub(in crate::chunk_scan) const THREADS: u32 = 128;
}

impl KernelDef for RowSums {
    type Args = RowSumArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, width } = *self;
        KernelSpec::new(format!("chunk_scan_backward_rows_{dtype}_v{width}"), BlockDim::x(Self::THREADS))
            .dtypes(DTypes::all(dtype))
    }

    fn build<'k>(&self, k: K<'k>, p: RowSumParams<'k>) {
        let (at, of_part) = (k.global_idx_x() * u64::from(self.width), p.elements * 2);
        k.if_(at.lt(of_part), || {
            let sums: Lanes<'k, f32> = sum_of_parts(p.partial.at(at), (p.parts, of_part), self.width);
            let of_b = at.lt(p.elements);
            k.if_else(
                of_b,
                || p.db.at(at).store(sums.clone()),
                || p.dc.at(at - p.elements).store(sums.clone()),
            );
        });
    }
}

kernel_args! {
    /// `partial` has `rows` rows of the gradients of `A`, of `D` and of the bias of all heads.
    pub(in crate::chunk_scan) struct ParameterArgs => ParameterParams {
        partial: In<f32>, da: Out<f32>, dd: Optional<Out<f32>>, dbias: Optional<Out<f32>>, rows: u32, heads: u32,
    }
}

/// The gradients of parameters from those of the chunks.
#[derive(Clone, Copy, Debug)]
pub(in crate::chunk_scan) struct Parameters;

impl KernelDef for Parameters {
    type Args = ParameterArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("chunk_scan_backward_parameters", BlockDim::xy(COLUMN_SUM_LANES, STRIPS))
    }

    fn build<'k>(&self, k: K<'k>, p: ParameterParams<'k>) {
        let heads = p.heads.to_u64();
        column_sums::<f32, _, _>(k, p.partial, p.rows, heads * u64::from(PARAMETERS), |column, sum| {
            let (of_d, of_bias) = (column.ge(heads), column.ge(heads * 2));
            k.if_(!of_d, || p.da.at(column).set(sum));
            k.if_(of_d & !of_bias & p.dd.is_given(), || p.dd.value.at(column - heads).set(sum));
            k.if_(of_bias & p.dbias.is_given(), || p.dbias.value.at(column - heads * 2).set(sum));
        });
    }
}
