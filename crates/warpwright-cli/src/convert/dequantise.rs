//! 4-bit checkpoint in, floating-point checkpoint out.

use std::collections::{BTreeMap, HashMap, HashSet};

use warpwright_ops::quantise::Scheme;
use warpwright_ops::quantise::tables::{FP4, NF4, dynamic_map};
use warpwright_ptx::DType;

use super::config::Change;
use super::destination::Destination;
use super::kernels::{Groups, Kernels, Method, NestedScales};
use super::quantise::{Observer, copy};
use super::{CHUNK, chunks, floats};
use crate::checkpoint::quantised::{QuantisedWeight, find_quantised, keys};
use crate::checkpoint::sharded::{INDEX, shard_name};
use crate::checkpoint::{
    self, Checkpoint, CheckpointError, Defect, Layout, Located, Storage, StoredType, TensorSpec, Writer,
};
use crate::error::Error;
use crate::interrupt;

/// What became of a quantised weight.
#[derive(Clone, Debug)]
pub struct Restored {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// How it was quantised.
    pub scheme: String,
    /// Its type now.
    pub dtype: DType,
    /// Its bytes now.
    pub bytes: u64,
}

/// What became of a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The weights that were quantised.
    pub weights: Vec<Restored>,
    /// How many other tensors were copied.
    pub copied: usize,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// Restores every quantised weight of `checkpoint` in `dtype`, or in the type that it had.
///
/// # Errors
/// What is wrong with the input, the output or the device; nothing has its name in the output then.
pub fn run(
    checkpoint: &Checkpoint,
    mut output: Destination,
    dtype: Option<DType>,
    kernels: &mut dyn Kernels,
    observer: &dyn Observer,
) -> Result<Summary, Error> {
    let weights = find_quantised(checkpoint)?;
    if weights.is_empty() {
        return Err(Error::usage(
            format!(
                "{}: holds no weights that were quantised by warpwright or bitsandbytes",
                checkpoint.folder().display()
            ),
            "`warpwright inspect` shows what it holds",
        ));
    }
    let by_name: HashMap<&str, &QuantisedWeight> = weights.iter().map(|w| (w.name.as_str(), w)).collect();
    let parts: HashSet<String> = weights
        .iter()
        .flat_map(|w| w.scheme.part_suffixes().into_iter().map(move |suffix| format!("{}{suffix}", w.name)))
        .collect();
    let mut summary = Summary::default();
    let mut weight_map = BTreeMap::new();
    let mut total = 0;
    for shard in checkpoint.shards() {
        let name = shard_name(shard);
        let kept: Vec<_> = shard.tensors().iter().filter(|tensor| !parts.contains(&tensor.name)).collect();
        if kept.is_empty() {
            continue;
        }
        let mut specs = Vec::with_capacity(kept.len());
        for tensor in &kept {
            specs.push(match by_name.get(tensor.name.as_str()) {
                None => {
                    TensorSpec { name: tensor.name.clone(), dtype: tensor.dtype, shape: tensor.shape.clone() }
                }
                Some(weight) => {
                    let stored =
                        StoredType::from_float(dtype.unwrap_or(weight.dtype)).unwrap_or(StoredType::F32);
                    TensorSpec {
                        name: weight.name.clone(),
                        dtype: stored,
                        shape: weight.scheme.shape().to_vec(),
                    }
                }
            });
        }
        let layout = Layout::new(&output.name_of(&name), &shard.header().metadata, &specs)?;
        total += (0..specs.len()).map(|at| layout.tensor_bytes(at)).sum::<u64>();
        weight_map.extend(specs.iter().map(|spec| (spec.name.clone(), name.clone())));
        let mut writer = output.shard(&name, layout)?;
        for (at, tensor) in kept.iter().enumerate() {
            observer.begin(&tensor.name);
            let Some(weight) = by_name.get(tensor.name.as_str()) else {
                copy(shard, tensor, &mut writer, at, observer)?;
                summary.copied += 1;
                continue;
            };
            let target = dtype.unwrap_or(weight.dtype);
            restore(checkpoint, weight, target, &mut writer, at, kernels, observer)?;
            summary.weights.push(Restored {
                name: weight.name.clone(),
                shape: weight.scheme.shape().to_vec(),
                scheme: weight.scheme.describe(),
                dtype: target,
                bytes: writer.layout().tensor_bytes(at),
            });
        }
        output.keep(writer.finish()?);
    }
    summary.notes.extend(output.config(checkpoint.folder(), &Change::Remove)?);
    if checkpoint.is_sharded() {
        output.text(INDEX, &checkpoint.new_index(&weight_map, total))?;
    }
    output.commit()?;
    Ok(summary)
}

/// Dequantises one weight into tensor `at` of the output.
fn restore<S: Storage>(
    checkpoint: &Checkpoint,
    weight: &QuantisedWeight,
    dtype: DType,
    writer: &mut Writer<S>,
    at: usize,
    kernels: &mut dyn Kernels,
    observer: &dyn Observer,
) -> Result<(), Error> {
    let parts = Parts { checkpoint, weight };
    let method =
        Method::of(&weight.scheme).ok_or_else(|| parts.wrong("the group size is too large".to_owned()))?;
    let scales = parts.scales(method, kernels)?;
    let zero_points =
        if method.scheme.has_zero_points() { parts.read(keys::ZERO_POINT)? } else { Vec::new() };
    let codes = parts.locate("")?;
    let size = u64::from(method.group_size);
    for range in chunks(weight.elements, size, CHUNK) {
        interrupt::check()?;
        let index =
            |n: u64| usize::try_from(n).map_err(|_| parts.wrong("a group is too large to hold".to_owned()));
        let elements = index(range.end - range.start)?;
        let mut bytes = vec![0; elements.div_ceil(2)];
        codes.shard.read_at(codes.tensor, range.start / 2, &mut bytes)?;
        let (from, to) = (index(range.start / size)?, index(range.end.div_ceil(size))?);
        let groups = Groups {
            codes: bytes,
            scales: scales.get(from..to).unwrap_or_default().to_vec(),
            zero_points: zero_points.get(from..to).unwrap_or_default().to_vec(),
        };
        let values = kernels.dequantise(&groups, elements, dtype, method)?;
        writer.append(at, &values)?;
        observer.advance(elements.div_ceil(2) as u64);
    }
    Ok(())
}

/// The tensors of one weight.
struct Parts<'a> {
    checkpoint: &'a Checkpoint,
    weight: &'a QuantisedWeight,
}

impl<'a> Parts<'a> {
    fn wrong(&self, message: String) -> CheckpointError {
        CheckpointError::tensor(self.checkpoint.folder(), &self.weight.name, Defect::Scheme { message })
    }

    fn locate(&self, suffix: &str) -> Result<Located<'a>, CheckpointError> {
        let key = format!("{}{suffix}", self.weight.name);
        self.checkpoint.get(&key).ok_or_else(|| {
            CheckpointError::tensor(self.checkpoint.folder(), &self.weight.name, Defect::MissingPart { key })
        })
    }

    fn read(&self, suffix: &str) -> Result<Vec<u8>, CheckpointError> {
        let at = self.locate(suffix)?;
        at.shard.read(at.tensor)
    }

    /// The scales, out of their 8-bit form if need be.
    fn scales(&self, method: Method, kernels: &mut dyn Kernels) -> Result<Vec<f32>, Error> {
        let checkpoint::Scheme::Bnb(state) = &self.weight.scheme else {
            return Ok(floats::f32_values(&self.read(keys::SCALE)?));
        };
        let table = if method.scheme == Scheme::Nf4 { NF4 } else { FP4 };
        self.check_map(keys::QUANT_MAP, &table)?;
        let Some(offset) = state.nested_offset else {
            return Ok(floats::f32_values(&self.read(keys::ABSMAX)?));
        };
        self.check_map(keys::NESTED_QUANT_MAP, &dynamic_map())?;
        let nested = NestedScales {
            codes: self.read(keys::ABSMAX)?,
            absmax: floats::f32_values(&self.read(keys::NESTED_ABSMAX)?),
            offset: offset as f32,
        };
        kernels.unnest(&nested)
    }

    /// The kernels have the code values built in, so a checkpoint with others must not be read with them.
    fn check_map(&self, suffix: &str, expected: &[f32]) -> Result<(), CheckpointError> {
        // Versions of bitsandbytes differ in the last places of the table that they store; none reads it back.
        const TOLERANCE: f32 = 1e-6;
        let stored = floats::f32_values(&self.read(suffix)?);
        let same = stored.len() == expected.len()
            && stored.iter().zip(expected).all(|(a, b)| (a - b).abs() <= TOLERANCE);
        if same { Ok(()) } else { Err(self.wrong(format!("{suffix} is not the standard code"))) }
    }
}
