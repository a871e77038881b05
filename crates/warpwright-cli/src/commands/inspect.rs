//! `inspect`: the tensors of a checkpoint, and the quantization scheme that their keys speak of.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

use super::printable;
use crate::args::InspectArgs;
use crate::checkpoint::error::Quoted;
use crate::checkpoint::quantized::{QuantizedWeight, find_quantized};
use crate::checkpoint::sharded::shard_name;
use crate::checkpoint::{Checkpoint, Located, StoredType};
use crate::console::Console;
use crate::error::{Error, Outcome};
use crate::table::Align;
use crate::units::{human_bytes, shape_text};

/// Runs the command.
///
/// # Errors
/// The checkpoint cannot be read.
pub fn run(args: &InspectArgs, console: &mut Console) -> Result<Outcome, Error> {
    let checkpoint = Checkpoint::open(&args.file)?;
    let weights = find_quantized(&checkpoint)?;
    let schemes = foreign_schemes(&checkpoint);
    if args.json.json {
        console.json(&as_json(args, &checkpoint, &weights, &schemes))?;
        return Ok(Outcome::Clean);
    }
    let by_name: HashMap<&str, &QuantizedWeight> = weights.iter().map(|w| (w.name.as_str(), w)).collect();
    let columns = [
        ("tensor", Align::Left),
        ("dtype", Align::Left),
        ("shape", Align::Left),
        ("bytes", Align::Right),
        ("", Align::Left),
    ];
    let mut table = console.table(&columns);
    let mut bytes = 0;
    for Located { tensor, .. } in checkpoint.tensors() {
        bytes += tensor.bytes();
        let note = by_name.get(tensor.name.as_str()).map_or_else(String::new, |weight| {
            format!("{} of {} {}", weight.scheme.describe(), weight.dtype, shape_text(weight.scheme.shape()))
        });
        let row = [
            printable(&tensor.name),
            tensor.dtype.name().to_owned(),
            shape_text(&tensor.shape),
            tensor.bytes().to_string(),
            note,
        ];
        table.row(row);
    }
    console.line(table)?;
    console.line("")?;
    let count = checkpoint.tensors().count();
    let files = checkpoint.shards().len();
    let plural = if files == 1 { "file" } else { "files" };
    console.line(format_args!("{count} tensors, {} in {files} {plural}", human_bytes(bytes)))?;
    for (key, value) in checkpoint.shards().iter().flat_map(|shard| &shard.header().metadata) {
        console.line(format_args!("metadata {} = {}", Quoted(key), Quoted(value)))?;
    }
    for line in summary(&weights, &schemes) {
        console.line(format_args!("scheme: {line}"))?;
    }
    Ok(Outcome::Clean)
}

/// One line per scheme, or one that says there is none.
fn summary(weights: &[QuantizedWeight], foreign: &BTreeMap<&'static str, usize>) -> Vec<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for weight in weights {
        *counts.entry(weight.scheme.describe()).or_default() += 1;
    }
    for (name, count) in foreign {
        *counts.entry((*name).to_owned()).or_default() += count;
    }
    if counts.is_empty() {
        return vec!["none".to_owned()];
    }
    counts.iter().map(|(scheme, count)| format!("{scheme} ({count} weights)")).collect()
}

/// The schemes of others, told by their keys, with the number of weights in each.
pub(super) fn foreign_schemes(checkpoint: &Checkpoint) -> BTreeMap<&'static str, usize> {
    let mut found = BTreeMap::new();
    for Located { tensor, .. } in checkpoint.tensors() {
        let has = |base: &str, suffix: &str| checkpoint.get(&format!("{base}{suffix}")).is_some();
        let scheme = if let Some(base) = tensor.name.strip_suffix(".qweight") {
            match (has(base, ".g_idx"), has(base, ".qzeros")) {
                (true, _) => Some("gptq"),
                (false, true) => Some("awq"),
                _ => None,
            }
        } else if let Some(base) = tensor.name.strip_suffix(".weight_packed") {
            has(base, ".weight_scale").then_some("compressed-tensors")
        } else if let Some(base) = tensor.name.strip_suffix(".SCB") {
            has(base, ".weight").then_some("bnb-int8")
        } else if matches!(tensor.dtype, StoredType::F8E4M3 | StoredType::F8E5M2) && tensor.shape.len() == 2 {
            Some("fp8")
        } else {
            None
        };
        if let Some(scheme) = scheme {
            *found.entry(scheme).or_default() += 1;
        }
    }
    found
}

fn as_json(
    args: &InspectArgs,
    checkpoint: &Checkpoint,
    weights: &[QuantizedWeight],
    foreign: &BTreeMap<&'static str, usize>,
) -> Value {
    let by_name: HashMap<&str, &QuantizedWeight> = weights.iter().map(|w| (w.name.as_str(), w)).collect();
    let mut names: Vec<&str> =
        weights.iter().map(|weight| weight.scheme.name()).chain(foreign.keys().copied()).collect();
    names.sort_unstable();
    names.dedup();
    let tensors: Vec<Value> = checkpoint
        .tensors()
        .map(|Located { shard, tensor }| {
            let quantization = by_name.get(tensor.name.as_str()).map(|weight| {
                json!({
                    "scheme": weight.scheme.name(),
                    "shape": weight.scheme.shape(),
                    "dtype": weight.dtype.name(),
                    "group_size": weight.scheme.group_size(),
                    "description": weight.scheme.describe(),
                })
            });
            json!({
                "name": tensor.name,
                "dtype": tensor.dtype.name(),
                "shape": tensor.shape,
                "bytes": tensor.bytes(),
                "file": shard_name(shard),
                "quantization": quantization,
            })
        })
        .collect();
    let metadata: serde_json::Map<String, Value> = checkpoint
        .shards()
        .iter()
        .flat_map(|shard| &shard.header().metadata)
        .map(|(key, value)| (key.clone(), Value::from(value.as_str())))
        .collect();
    json!({
        "file": args.file.display().to_string(),
        "files": checkpoint.shards().iter().map(shard_name).collect::<Vec<_>>(),
        "metadata": metadata,
        "schemes": names,
        "bytes": checkpoint.tensors().map(|at| at.tensor.bytes()).sum::<u64>(),
        "tensors": tensors,
    })
}
