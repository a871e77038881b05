//! Tensors of heads: where the heads are, and how kernels see them, `[batch, steps, heads, head_dim]`.

use candle_core::Result;
use warpwright::DType;
use warpwright::plan::Layout;

use crate::array::{Array, Spec};
use crate::call::Call;
use crate::graph::Named;

/// Where the heads are in a tensor of queries, keys or values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heads {
    /// `[batch, heads, steps, head_dim]`
    First,
    /// `[batch, steps, heads, head_dim]`
    AfterSteps,
}

/// The order in which kernels see the dimensions where heads come first, and the other way round.
const SWAPPED: [usize; 4] = [0, 2, 1, 3];

impl Heads {
    /// An argument of four dimensions as kernels see it; it is copied where its rows have gaps.
    pub(crate) fn read(self, call: &Call, named: Named<'_>) -> Result<Array> {
        if named.1.rank() != 4 {
            let expected = match self {
                Self::First => "[batch, heads, steps, head_dim]",
                Self::AfterSteps => "[batch, steps, heads, head_dim]",
            };
            return Err(call.refuse_shape(named, expected));
        }
        let array = call.rows(named)?;
        Ok(if self == Self::First { array.permuted(&SWAPPED) } else { array })
    }

    /// Memory for what kernels see as `shape`, laid out as the caller has it.
    pub(crate) fn spec(self, dtype: DType, shape: [usize; 4]) -> (Spec, Layout) {
        let spec = match self {
            Self::First => Spec::new(dtype, &SWAPPED.map(|dim| shape[dim])).seen(&SWAPPED),
            Self::AfterSteps => Spec::new(dtype, &shape),
        };
        let layout = layout_of(&shape, &spec.strides());
        (spec, layout)
    }
}

/// The layout of an array of four dimensions.
pub(crate) fn layout(array: &Array) -> Layout {
    layout_of(&array.shape, array.strides())
}

fn layout_of(shape: &[usize], strides: &[i64]) -> Layout {
    let mut layout = Layout { shape: [0; 4], strides: [0; 4] };
    layout.shape.copy_from_slice(shape);
    layout.strides.copy_from_slice(strides);
    layout
}
