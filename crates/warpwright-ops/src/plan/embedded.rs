//! Plans as parts of others: their launches, on the tensors and the workspace of the plan around them.

use warpwright_dsl::args::Argument;
use warpwright_ptx::ArgValue;
use warpwright_runtime::LaunchStep;

use super::{Operation, Plan};

/// The argument that a kernel is given for a tensor.
pub(crate) fn value_of(argument: &impl Argument) -> ArgValue {
    let mut values = Vec::new();
    argument.pass(&mut values);
    // A pointer is one value.
    values.pop().unwrap_or(ArgValue::Address(0))
}

/// `value`, of tensors of the inner plan, with those of the outer one in their places.
fn rebound(value: &ArgValue, tensors: &[(ArgValue, ArgValue)]) -> ArgValue {
    let place = |slot: u32| {
        let of = |value: &ArgValue| matches!(value, ArgValue::Slot { slot: known, .. } if *known == slot);
        tensors.iter().find(|(inner, _)| of(inner)).map(|(_, own)| own.clone())
    };
    match value {
        ArgValue::Slot { slot, offset } => match place(*slot) {
            Some(ArgValue::Slot { slot, offset: begin }) => ArgValue::Slot { slot, offset: begin + offset },
            Some(ArgValue::Address(address)) => ArgValue::Address(address + offset),
            _ => value.clone(),
        },
        ArgValue::TensorMap { map, slot: Some(slot) } => match place(*slot) {
            Some(ArgValue::Slot { slot, offset }) => {
                let mut map = map.clone();
                map.base += offset;
                ArgValue::TensorMap { map, slot: Some(slot) }
            }
            _ => value.clone(),
        },
        _ => value.clone(),
    }
}

impl<O: Operation> Plan<O> {
    /// The launches for tensors at multiples of `alignment` bytes, with the second of each pair of `tensors` in the place of the first.
    pub(crate) fn embedded(&self, alignment: u64, tensors: &[(ArgValue, ArgValue)]) -> Vec<LaunchStep> {
        let fitting = self.variants().iter().find(|variant| variant.alignment <= alignment);
        let Some(variant) = fitting.or(self.variants().last()) else { return Vec::new() };
        let own = |step: &LaunchStep| {
            let args = step.args().iter().map(|value| rebound(value, tensors)).collect();
            step.clone().with_args(args)
        };
        variant.steps.iter().map(own).collect()
    }
}
