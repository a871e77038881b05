//! `emit`: the PTX of a primitive.

use std::collections::HashSet;

use serde_json::json;
use warpwright_ops::Direction;
use warpwright_ptx::{Module, text};

use super::primitive::{Request, plan};
use crate::args::EmitArgs;
use crate::error::{Error, Outcome};
use crate::style::Console;

/// Runs the command.
///
/// # Errors
/// There is no such primitive, or it has no plan.
pub fn run(args: &EmitArgs, console: &mut Console) -> Result<Outcome, Error> {
    let elements = usize::try_from(args.elements)
        .map_err(|_| Error::usage("--elements is beyond this machine's address space", "a smaller number"))?;
    let planned = plan(&Request {
        op: &args.op,
        direction: if args.backward { Direction::Backward } else { Direction::Forward },
        dtype: args.dtype,
        target: args.target,
        elements,
        group_size: args.block_size as usize,
    })?;
    let steps = planned.variants.first().map(|variant| variant.steps.as_slice()).unwrap_or_default();
    let Some(first) = steps.first() else {
        return Err(Error::usage("an operation on no elements launches nothing", "--elements 1024"));
    };
    // The kernels of one plan have one target, so they fit into one module.
    let mut module = Module { functions: Vec::new(), ..first.kernel().module().clone() };
    let mut names = HashSet::new();
    for step in steps {
        let kernel = step.kernel();
        if names.insert(kernel.name().to_owned()) {
            module.version = module.version.max(kernel.module().version);
            module.functions.extend(kernel.module().functions.iter().cloned());
        }
        for variable in &kernel.module().variables {
            if !module.variables.contains(variable) {
                module.variables.push(variable.clone());
            }
        }
    }
    let text = text::print(&module);
    if args.json.json {
        let launches: Vec<_> = steps
            .iter()
            .map(|step| {
                json!({
                    "entry": step.kernel().name(),
                    "grid": step.grid(),
                    "block": step.kernel().block(),
                })
            })
            .collect();
        console.json(&json!({"ptx": text, "target": args.target.to_string(), "launches": launches}))?;
    } else {
        console.raw(&text)?;
    }
    Ok(Outcome::Clean)
}
