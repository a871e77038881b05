//! Primitives by name: from what the command line says to a plan.

mod families;

use warpwright_ops::plan::{TensorSpec, Variant};
use warpwright_ops::{Direction, Entry, Operation, Plan, PlanError, catalogue};
use warpwright_ptx::{DType, Target};

use crate::error::Error;
use crate::op_options::{OpOptions, Taken};

/// The primitive to plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) op: &'a str,
    pub(super) direction: Direction,
    pub(super) dtype: DType,
    pub(super) target: Target,
    pub(super) options: &'a OpOptions,
}

/// A plan without the type of its descriptor.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) tensors: Vec<TensorSpec>,
    pub(super) variants: Vec<Variant>,
}

impl Planned {
    /// Bytes that have to move: every tensor once, scratch memory not at all.
    pub(super) fn bytes(&self) -> u64 {
        let traffic = self.tensors.iter().filter(|tensor| tensor.name != "workspace");
        traffic.map(|tensor| (tensor.len * tensor.dtype.bytes()) as u64).sum()
    }
}

impl<O: Operation> From<Plan<O>> for Planned {
    fn from(plan: Plan<O>) -> Self {
        Self { tensors: plan.tensors().to_vec(), variants: plan.variants().to_vec() }
    }
}

/// Elements of the main tensor where nothing is said.
const ELEMENTS: usize = 1 << 20;

/// The catalogue's row of an operation in one direction.
///
/// # Errors
/// [`PlanError::UnknownOperation`].
pub(super) fn entry(op: &str, direction: Direction) -> Result<Entry, PlanError> {
    let found = catalogue().into_iter().find(|entry| entry.op == op && entry.direction == direction);
    found.ok_or_else(|| PlanError::UnknownOperation { name: format!("{op} ({direction})") })
}

/// Plans a primitive.
///
/// # Errors
/// There is none of that name, it does not take the type or one of the options, or it has no plan for them.
pub(super) fn plan(request: &Request<'_>) -> Result<Planned, Error> {
    let Request { op, direction, dtype, target, options } = *request;
    let entry = entry(op, direction)?;
    if !entry.dtypes.contains(&dtype) {
        let (op, expected) = (entry.op, entry.dtypes);
        return Err(PlanError::DType { op, tensor: "the tensor", got: dtype, expected }.into());
    }
    let taken = Taken::new(options);
    let len = taken.elements().unwrap_or(ELEMENTS);
    let planned = families::plan(&entry, dtype, target, len, &taken);
    // A plan that failed may be one of options that it does not have.
    taken.finish(op, direction)?;
    Ok(planned?)
}

/// The options that an operation takes.
#[cfg(test)]
pub(super) fn options_of(entry: &Entry) -> Vec<&'static str> {
    let options = OpOptions::default();
    let taken = Taken::new(&options);
    // A plan that fails has asked, too.
    let _ = families::plan(entry, entry.dtypes[0], entry.targets[0], ELEMENTS, &taken);
    let mut names = taken.asked();
    names.push("elements");
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_primitive_of_the_catalogue_has_a_plan_by_its_name() {
        let options = OpOptions { elements: Some(1000), ..OpOptions::default() };
        for Entry { op, direction, dtypes, .. } in catalogue() {
            for &dtype in dtypes {
                let request = Request { op, direction, dtype, target: Target::sm(90), options: &options };
                let planned = plan(&request).unwrap();
                assert!(planned.bytes() > 0 && !planned.variants.is_empty(), "{op} {direction}");
            }
        }
    }

    #[test]
    fn unknown_names_are_errors() {
        for (op, direction) in
            [("gelu", Direction::Forward), ("quantize_nf4", Direction::Backward), ("", Direction::Forward)]
        {
            let options = &OpOptions::default();
            let request = Request { op, direction, dtype: DType::F32, target: Target::sm(90), options };
            let error = plan(&request).expect_err(op);
            assert!(matches!(error, Error::Plan { source: PlanError::UnknownOperation { .. } }), "{op}");
        }
    }

    #[test]
    fn types_that_a_primitive_does_not_take_are_errors() {
        let (op, direction) = ("quantize_nested", Direction::Forward);
        let options = &OpOptions::default();
        let request = Request { op, direction, dtype: DType::BF16, target: Target::sm(90), options };
        let error = plan(&request).expect_err("block maxima are f32");
        assert!(matches!(error, Error::Plan { source: PlanError::DType { got: DType::BF16, .. } }));
    }
}
