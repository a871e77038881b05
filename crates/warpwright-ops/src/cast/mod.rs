//! Conversion of elements to another type: `y = round(x)`, to nearest, ties to even.
//!
//! Every pair of f32, f64, f16 and bf16 converts with one rounding, from f64 to the 16-bit types too. A wider type holds every
//! element exactly, subnormal numbers included. What rounds beyond the largest number becomes an infinity; NaN stays NaN, without
//! its payload; the sign of zero stays. Converting to the same type copies.
//!
//! Source: IEEE 754-2019, sections 4.3.1 and 5.4.2.

mod functions;
mod kernel;
pub mod reference;
pub(crate) mod samples;
pub mod tuning;

use warpwright_dsl::KernelArgs;
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, PlanParts, Variant};
use crate::tensors::tensors;

pub use functions::cast;

/// The name in the catalogue.
const OP: &str = "cast";

/// `y = x` in another type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CastDesc {
    /// Element type of `x`.
    pub from: DType,
    /// Element type of `y`.
    pub to: DType,
    /// Number of elements of each tensor.
    pub len: usize,
}

tensors! {
    /// Tensors of [`CastDesc`].
    pub struct CastArgs<'a> {
        /// The elements.
        x: In,
        /// The same in the other type.
        y: Out,
    }
}

impl Operation for CastDesc {
    type Args<'a> = CastArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let Self { from, to, len } = *self;
        let tensors =
            CastArgs::specs([CastArgs::x.holds(from, len), CastArgs::y.holds(to, len).like(CastArgs::x)]);
        if let Some(spec) = tensors.iter().find(|spec| !DType::FLOATS.contains(&spec.dtype)) {
            let (tensor, got) = (spec.name, spec.dtype);
            return Err(PlanError::DType { op: OP, tensor, got, expected: &DType::FLOATS });
        }
        let mut variants = Vec::new();
        for config in tuning::configs(from, to) {
            let mut steps = Vec::new();
            if let Some(grid) = plan::cover(OP, len, config.block_elements())? {
                let kernel = plan::recorded(OP, &kernel::Cast { from, to, config }, target)?;
                let args = kernel::Args { x: CastArgs::x.arg(), y: CastArgs::y.arg(), n: len as u64 };
                steps.push(LaunchStep::new(kernel, grid, args.values()));
            }
            variants.push(Variant { alignment: tuning::alignment(config, from, to), steps });
        }
        let direction = Direction::Forward;
        Ok(Plan::new(PlanParts { op: OP, direction, target, tensors, variants, workspace_bytes: 0 }))
    }
}
