//! The gradients of parameters.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{COLUMN_SUM_LANES, column_sums, kernel_args};

use super::step_gradients::PARAMETERS;

/// Rows that a block adds at once.
const STRIPS: u32 = 8;

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
