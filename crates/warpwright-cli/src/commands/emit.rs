//! `emit`: the PTX of a primitive.

use serde_json::{Value, json};
use warpwright_ops::Direction;
use warpwright_ops::catalogue::{Planned, Request, entry, kernels_of, plan_named};
use warpwright_ops::plan::{Access, TensorSpec};
use warpwright_ptx::{ArgValue, Im2col, Module, TensorMode, text};
use warpwright_runtime::LaunchStep;

use crate::args::EmitArgs;
use crate::console::Console;
use crate::error::{Error, Outcome};

/// Runs the command.
///
/// # Errors
/// There is no such primitive, it does not take what was asked for, or it has no plan.
pub fn run(args: &EmitArgs, console: &mut Console) -> Result<Outcome, Error> {
    let emitted = emitted(args)?;
    if args.json.json {
        console.json(&emitted.json())?;
        return Ok(Outcome::Clean);
    }
    let target = emitted.module.target;
    if target != args.target {
        let asked = args.target;
        console.note(format_args!(
            "the kernels use instructions of {target} alone: the module is not for {asked}"
        ));
    }
    console.raw(&text::print(&emitted.module))?;
    Ok(Outcome::Clean)
}

/// The launches and kernels of a primitive.
#[derive(Debug)]
pub(super) struct Emitted {
    /// All kernels, for the target that takes them all.
    pub(super) module: Module,
    /// The launches in order.
    pub(super) steps: Vec<LaunchStep>,
    /// The tensors that slots of arguments stand for.
    pub(super) tensors: Vec<TensorSpec>,
}

impl Emitted {
    /// All that a program needs to launch the primitive through a driver of its own.
    fn json(&self) -> Value {
        let tensors = self.tensors.iter().map(|tensor| {
            json!({
                "name": tensor.name,
                "access": match tensor.access {
                    Access::Read => "read",
                    Access::Write => "write",
                },
                "dtype": tensor.dtype.name(),
                "elements": tensor.len,
                "present": tensor.present,
            })
        });
        let launches = self.steps.iter().map(|step| {
            json!({
                "entry": step.kernel().name(),
                "grid": step.grid(),
                "block": step.block(),
                "cluster": step.cluster(),
                "dynamic_shared": step.dynamic_shared(),
                "cooperative": step.is_cooperative(),
                "arguments": step.args().iter().map(argument).collect::<Value>(),
            })
        });
        let kernels = kernels_of(&self.steps).into_iter().map(|kernel| {
            json!({"entry": kernel.name(), "target": kernel.target().to_string(), "ptx": kernel.text()})
        });
        json!({
            "ptx": text::print(&self.module),
            "target": self.module.target.to_string(),
            "tensors": tensors.collect::<Value>(),
            "launches": launches.collect::<Value>(),
            "kernels": kernels.collect::<Value>(),
        })
    }
}

/// A kernel's argument: its type and its value.
fn argument(value: &ArgValue) -> Value {
    match value {
        ArgValue::Address(address) => json!({"address": address}),
        ArgValue::Slot { slot, offset } => json!({"tensor": slot, "offset": offset}),
        ArgValue::U32(value) => json!({"u32": value}),
        ArgValue::S32(value) => json!({"s32": value}),
        ArgValue::U64(value) => json!({"u64": value}),
        ArgValue::S64(value) => json!({"s64": value}),
        // As text where JSON has no number for it.
        ArgValue::F32(value) if !value.is_finite() => json!({"f32": value.to_string()}),
        ArgValue::F32(value) => json!({"f32": value}),
        ArgValue::F64(value) if !value.is_finite() => json!({"f64": value.to_string()}),
        ArgValue::F64(value) => json!({"f64": value}),
        ArgValue::TensorMap { map, slot } => {
            let mut described = json!({
                "tensor": slot,
                "offset": map.base,
                "element": map.element.name(),
                "dims": map.dims,
                "strides": map.strides,
                "swizzle": map.swizzle.name(),
            });
            match &map.mode {
                TensorMode::Tiled { box_dims } => described["box"] = json!(box_dims),
                TensorMode::Im2col(Im2col { lower, upper, channels, pixels }) => {
                    described["im2col"] =
                        json!({"lower": lower, "upper": upper, "channels": channels, "pixels": pixels});
                    described["element_strides"] = json!(map.element_strides);
                }
            }
            json!({"tensor_map": described})
        }
        ArgValue::Bytes(bytes) => json!({"bytes": bytes}),
    }
}

/// The launches of a primitive's best variant, and their kernels in one module.
pub(super) fn emitted(args: &EmitArgs) -> Result<Emitted, Error> {
    let direction = if args.backward { Direction::Backward } else { Direction::Forward };
    let supported = entry(&args.op, direction)?.targets;
    if !supported.contains(&args.target) {
        return Err(Error::Target { op: args.op.clone(), direction, target: args.target, supported });
    }
    let planned = plan_named(&Request {
        op: &args.op,
        direction,
        dtype: args.dtype,
        target: args.target,
        options: &args.options.0,
    })?;
    let Planned { variants, tensors } = planned;
    let steps = variants.into_iter().next().map(|variant| variant.steps).unwrap_or_default();
    let kernels = kernels_of(&steps);
    let Some((first, others)) = kernels.split_first() else {
        return Err(Error::usage("an operation on no elements launches nothing", "--elements 1024"));
    };
    let mut module = first.module().clone();
    for kernel in others {
        module.join(kernel.module().clone()).map_err(|source| Error::Join { op: args.op.clone(), source })?;
    }
    Ok(Emitted { module, steps, tensors })
}

#[cfg(test)]
mod tests;
