//! `inspect`: the tensors of a checkpoint, and the quantization scheme that their keys speak of.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};
use warpwright_ptx::DType;

use super::printable;
use crate::args::InspectArgs;
use crate::checkpoint::error::Quoted;
use crate::checkpoint::quantized::{QuantizedWeight, find_quantized};
use crate::checkpoint::schemes::{PackedWeight, find_packed};
use crate::checkpoint::sharded::shard_name;
use crate::checkpoint::{Checkpoint, Located};
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
    // Who looks for what is wrong with a checkpoint wants to see its tensors, too.
    let (packed, defect) = match find_packed(&checkpoint) {
        Ok(packed) => (packed, None),
        Err(defect) => (Vec::new(), Some(defect)),
    };
    let notes = notes(&weights, &packed);
    let outcome = match &defect {
        None => Outcome::Clean,
        Some(defect) => {
            console.error(defect, defect.help().as_deref());
            Outcome::Findings
        }
    };
    if args.json.json {
        let defect = defect.map(|defect| defect.to_string());
        console.json(&as_json(args, &checkpoint, &notes, defect))?;
        return Ok(outcome);
    }
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
        let note = notes.get(tensor.name.as_str()).map_or_else(String::new, |note| {
            format!("{} of {} {}", note.description, note.dtype, shape_text(&note.shape))
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
    for line in summary(&notes) {
        console.line(format_args!("scheme: {line}"))?;
    }
    Ok(outcome)
}

/// Remarks about the tensor that holds the codes of a weight.
struct Note {
    scheme: &'static str,
    description: String,
    /// The weight's key, shape and type once it is restored.
    name: String,
    shape: Vec<u64>,
    dtype: DType,
    group_size: u64,
}

/// The notes, by the key of the codes.
fn notes<'a>(weights: &'a [QuantizedWeight], packed: &'a [PackedWeight]) -> HashMap<&'a str, Note> {
    let own = weights.iter().map(|weight| {
        let note = Note {
            scheme: weight.scheme.name(),
            description: weight.scheme.describe(),
            name: weight.name.clone(),
            shape: weight.scheme.shape().to_vec(),
            dtype: weight.dtype,
            group_size: weight.scheme.group_size(),
        };
        (weight.name.as_str(), note)
    });
    let packed = packed.iter().map(|weight| {
        let note = Note {
            scheme: weight.tool.name(),
            description: weight.describe(),
            name: weight.name.clone(),
            shape: weight.shape(),
            dtype: weight.dtype,
            group_size: weight.group_size,
        };
        (weight.codes.key.as_str(), note)
    });
    own.chain(packed).collect()
}

/// One line per scheme, or one that says there is none.
fn summary(notes: &HashMap<&str, Note>) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for note in notes.values() {
        *counts.entry(&note.description).or_default() += 1;
    }
    if counts.is_empty() {
        return vec!["none".to_owned()];
    }
    counts.iter().map(|(scheme, count)| format!("{scheme} ({count} weights)")).collect()
}

fn as_json(
    args: &InspectArgs,
    checkpoint: &Checkpoint,
    notes: &HashMap<&str, Note>,
    defect: Option<String>,
) -> Value {
    let mut names: Vec<&str> = notes.values().map(|note| note.scheme).collect();
    names.sort_unstable();
    names.dedup();
    let tensors: Vec<Value> = checkpoint
        .tensors()
        .map(|Located { shard, tensor }| {
            let quantization = notes.get(tensor.name.as_str()).map(|note| {
                json!({
                    "scheme": note.scheme,
                    "name": note.name,
                    "shape": note.shape,
                    "dtype": note.dtype.name(),
                    "group_size": note.group_size,
                    "description": note.description,
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
        "defect": defect,
        "bytes": checkpoint.tensors().map(|at| at.tensor.bytes()).sum::<u64>(),
        "tensors": tensors,
    })
}
