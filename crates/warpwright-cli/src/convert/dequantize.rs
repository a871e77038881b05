//! Quantized checkpoint in, floating-point checkpoint out.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use warpwright_ops::quantize::Scheme;
use warpwright_ops::quantize::tables::{FP4, NF4, dynamic_map};
use warpwright_ptx::DType;

use super::config::Change;
use super::destination::Destination;
use super::kernels::{Groups, Kernels, Lane, Method, NestedScales, Staging};
use super::quantize::{Observer, copy, pieces};
use super::unpack::{Band, Unpacked};
use super::{CHUNK, chunks, pool};
use crate::checkpoint::floats;
use crate::checkpoint::quantized::{QuantizedWeight, find_quantized, keys};
use crate::checkpoint::schemes::{PackedWeight, find_packed};
use crate::checkpoint::sharded::shard_name;
use crate::checkpoint::{
    self, Checkpoint, CheckpointError, Defect, Layout, Located, Reader, Storage, StoredType, TensorInfo,
    TensorSpec, Writer,
};
use crate::error::Error;
use crate::paths::Shown;

/// The result of a quantized weight.
#[derive(Clone, Debug)]
pub struct Restored {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// How it was quantized.
    pub scheme: String,
    /// Its type now.
    pub dtype: DType,
    /// Its bytes now.
    pub bytes: u64,
}

/// The result of a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The weights that were quantized.
    pub weights: Vec<Restored>,
    /// How many other tensors were copied.
    pub copied: usize,
    /// Bytes of all tensors of the output.
    pub bytes: u64,
    /// Remarks for the user.
    pub notes: Vec<String>,
}

/// Restores every quantized weight of `checkpoint` in `dtype`, or in the type that it had.
///
/// # Errors
/// A defect of the input, the output or the device; nothing has its name in the output then.
pub fn run(
    checkpoint: &Checkpoint,
    mut output: Destination,
    dtype: Option<DType>,
    kernels: &dyn Kernels,
    observer: &dyn Observer,
) -> Result<Summary, Error> {
    let (own, packed) = (find_quantized(checkpoint)?, find_packed(checkpoint)?);
    if own.is_empty() && packed.is_empty() {
        return Err(Error::usage(
            format!("{}: holds no quantized weights", Shown(checkpoint.path())),
            "`warpwright inspect` shows what it holds",
        ));
    }
    let of_own = own.iter().map(|weight| (weight.name.as_str(), Found::Own(weight)));
    let of_packed = packed.iter().map(|weight| (weight.codes.key.as_str(), Found::Packed(weight)));
    let by_key: HashMap<&str, Found<'_>> = of_own.chain(of_packed).collect();
    let parts: HashSet<String> = by_key.values().flat_map(Found::parts).collect();
    let mut summary = Summary::default();
    let (mut weight_map, mut total) = (BTreeMap::new(), 0);
    let mut shards = Vec::new();
    for shard in checkpoint.shards() {
        let name = shard_name(shard);
        let kept: Vec<_> = shard.tensors().iter().filter(|tensor| !parts.contains(&tensor.name)).collect();
        if kept.is_empty() {
            continue;
        }
        let spec = |tensor: &&TensorInfo| match by_key.get(tensor.name.as_str()) {
            None => {
                TensorSpec { name: tensor.name.clone(), dtype: tensor.dtype, shape: tensor.shape.clone() }
            }
            Some(weight) => {
                let dtype = dtype.unwrap_or(weight.dtype());
                let stored = StoredType::from_float(dtype).unwrap_or(StoredType::F32);
                TensorSpec { name: weight.name().to_owned(), dtype: stored, shape: weight.shape() }
            }
        };
        let specs: Vec<_> = kept.iter().map(spec).collect();
        let layout = Layout::new(&output.name_of(&name), &shard.header().metadata, &specs)?;
        total += (0..specs.len()).map(|at| layout.tensor_bytes(at)).sum::<u64>();
        weight_map.extend(specs.iter().map(|spec| (spec.name.clone(), name.clone())));
        let writer = output.shard(&name, layout)?;
        for (at, tensor) in kept.iter().enumerate() {
            match by_key.get(tensor.name.as_str()) {
                None => summary.copied += 1,
                Some(weight) => summary.weights.push(Restored {
                    name: weight.name().to_owned(),
                    shape: weight.shape(),
                    scheme: weight.describe(),
                    dtype: dtype.unwrap_or(weight.dtype()),
                    bytes: writer.layout().tensor_bytes(at),
                }),
            }
        }
        shards.push((shard, kept, writer));
    }
    let mut tasks = Vec::new();
    for (shard, kept, writer) in &shards {
        for (at, tensor) in kept.iter().enumerate() {
            match by_key.get(tensor.name.as_str()) {
                None => tasks
                    .extend(pieces(tensor.bytes()).map(|range| Task::Copy(shard, tensor, range, writer, at))),
                Some(found) => {
                    let dtype = dtype.unwrap_or(found.dtype());
                    tasks.push(match found {
                        Found::Own(weight) => {
                            let parts = Parts { checkpoint, weight };
                            Task::Prepare(Target { parts, dtype, writer, at })
                        }
                        Found::Packed(weight) => {
                            Task::Open(checkpoint, Unpacked { weight, dtype, writer, at })
                        }
                    });
                }
            }
        }
    }
    let worker =
        || Ok(Worker { lane: kernels.lane()?, codes: Staging::default(), values: Staging::default() });
    pool::run(tasks, pool::threads(), worker, |worker, task| work(worker, task, observer))?;
    for (.., writer) in shards {
        output.keep(writer.finish()?);
    }
    summary.bytes = total;
    summary.notes.extend(output.beside(checkpoint, &Change::Remove, &weight_map, total)?);
    output.commit()?;
    Ok(summary)
}

/// A quantized weight of the input.
#[derive(Clone, Copy)]
enum Found<'a> {
    /// Of bitsandbytes or in a layout of our own, which the kernels decode.
    Own(&'a QuantizedWeight),
    /// Of another tool.
    Packed(&'a PackedWeight),
}

impl<'a> Found<'a> {
    fn name(&self) -> &'a str {
        match self {
            Self::Own(weight) => &weight.name,
            Self::Packed(weight) => &weight.name,
        }
    }

    fn shape(&self) -> Vec<u64> {
        match self {
            Self::Own(weight) => weight.scheme.shape().to_vec(),
            Self::Packed(weight) => weight.shape(),
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Own(weight) => weight.scheme.describe(),
            Self::Packed(weight) => weight.describe(),
        }
    }

    const fn dtype(&self) -> DType {
        match self {
            Self::Own(weight) => weight.dtype,
            Self::Packed(weight) => weight.dtype,
        }
    }

    /// The tensors that go with it.
    fn parts(&self) -> Vec<String> {
        match self {
            Self::Own(weight) => {
                let suffixes = weight.scheme.part_suffixes();
                suffixes.into_iter().map(|suffix| format!("{}{suffix}", weight.name)).collect()
            }
            Self::Packed(weight) => weight.parts().cloned().collect(),
        }
    }
}

/// A weight, and the tensor of the output that it becomes.
struct Target<'t, S> {
    parts: Parts<'t>,
    dtype: DType,
    writer: &'t Writer<S>,
    at: usize,
}

/// Derived, it would ask the same of `S`.
impl<S> Clone for Target<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Target<'_, S> {}

/// Facts for all chunks of a weight.
struct Known {
    method: Method,
    scales: Vec<f32>,
    zero_points: Vec<u8>,
}

/// A part of the work.
enum Task<'t, S> {
    /// Takes bytes of a tensor over.
    Copy(&'t Reader, &'t TensorInfo, Range<u64>, &'t Writer<S>, usize),
    /// Reads the scales of a weight.
    Prepare(Target<'t, S>),
    /// Restores a chunk of a weight.
    Restore(Target<'t, S>, Arc<Known>, Range<u64>),
    /// Reads what all rows of a packed weight need.
    Open(&'t Checkpoint, Unpacked<'t, S>),
    /// Restores rows of a packed weight.
    Unpack(Unpacked<'t, S>, Band<'t>),
}

/// A thread's part of the device and its memory.
struct Worker<'a> {
    lane: Box<dyn Lane + 'a>,
    codes: Staging,
    values: Staging,
}

fn work<'t, S: Storage>(
    worker: &mut Worker<'_>,
    task: Task<'t, S>,
    observer: &dyn Observer,
) -> Result<Vec<Task<'t, S>>, Error> {
    let lane = &mut *worker.lane;
    match task {
        Task::Copy(shard, tensor, range, writer, at) => {
            observer.begin(&tensor.name);
            copy(lane, (shard, tensor, range), &mut worker.values, writer, at, observer)?;
            Ok(Vec::new())
        }
        Task::Prepare(target) => {
            let parts = target.parts;
            observer.begin(&parts.weight.name);
            let method = Method::of(&parts.weight.scheme)
                .ok_or_else(|| parts.wrong("the group size is too large".to_owned()))?;
            let scales = parts.scales(method, lane)?;
            let zero_points =
                if method.scheme.has_zero_points() { parts.read(keys::ZERO_POINT)? } else { Vec::new() };
            let known = Arc::new(Known { method, scales, zero_points });
            let ranges = chunks(parts.weight.elements, method.group_size.into(), CHUNK);
            Ok(ranges.map(|range| Task::Restore(target, known.clone(), range)).collect())
        }
        Task::Restore(target, known, range) => {
            restore(&target, &known, &range, lane, &mut worker.codes, &mut worker.values)?;
            observer.advance((range.end - range.start).div_ceil(2));
            Ok(Vec::new())
        }
        Task::Open(checkpoint, target) => {
            observer.begin(&target.weight.name);
            let bands = target.begin(checkpoint)?;
            Ok(bands.into_iter().map(|band| Task::Unpack(target, band)).collect())
        }
        Task::Unpack(target, band) => {
            target.restore(&band)?;
            observer.advance(band.bytes());
            Ok(Vec::new())
        }
    }
}

/// Dequantizes a chunk of a weight into the output.
fn restore<S: Storage>(
    target: &Target<'_, S>,
    known: &Known,
    range: &Range<u64>,
    lane: &mut dyn Lane,
    codes: &mut Staging,
    values: &mut Staging,
) -> Result<(), Error> {
    let Target { parts, dtype, writer, at } = *target;
    let index =
        |n: u64| usize::try_from(n).map_err(|_| parts.wrong("a group is too large to hold".to_owned()));
    let size = u64::from(known.method.group_size);
    let elements = index(range.end - range.start)?;
    let (from, to) = (index(range.start / size)?, index(range.end.div_ceil(size))?);
    let located = parts.locate("")?;
    let codes = codes.fit(lane, elements.div_ceil(2))?;
    located.shard.read_at(located.tensor, range.start / 2, codes)?;
    let groups = Groups {
        codes,
        scales: known.scales.get(from..to).unwrap_or_default(),
        zero_points: known.zero_points.get(from..to).unwrap_or_default(),
    };
    let width = dtype.bytes() as u64;
    let values = values.fit(lane, index((range.end - range.start).saturating_mul(width))?)?;
    lane.dequantize(groups, dtype, known.method, values)?;
    Ok(writer.write_at(at, range.start * width, values)?)
}

/// The tensors of one weight.
#[derive(Clone, Copy)]
struct Parts<'a> {
    checkpoint: &'a Checkpoint,
    weight: &'a QuantizedWeight,
}

impl<'a> Parts<'a> {
    fn wrong(&self, message: String) -> CheckpointError {
        self.fail(Defect::Scheme { message })
    }

    fn fail(&self, defect: Defect) -> CheckpointError {
        let name = &self.weight.name;
        CheckpointError::tensor(self.checkpoint.path_of(name), name, defect)
    }

    fn locate(&self, suffix: &str) -> Result<Located<'a>, CheckpointError> {
        let key = format!("{}{suffix}", self.weight.name);
        self.checkpoint.get(&key).ok_or_else(|| self.fail(Defect::MissingPart { key }))
    }

    fn read(&self, suffix: &str) -> Result<Vec<u8>, CheckpointError> {
        let at = self.locate(suffix)?;
        at.shard.read(at.tensor)
    }

    /// The scales, out of their 8-bit form if need be.
    fn scales(&self, method: Method, lane: &mut dyn Lane) -> Result<Vec<f32>, Error> {
        let checkpoint::Scheme::Bnb(state) = &self.weight.scheme else {
            return Ok(floats::to_f32(&self.read(keys::SCALE)?, DType::F32));
        };
        let table = if method.scheme == Scheme::Nf4 { NF4 } else { FP4 };
        self.check_map(keys::QUANT_MAP, &table)?;
        let Some(offset) = state.nested_offset else {
            return Ok(floats::to_f32(&self.read(keys::ABSMAX)?, DType::F32));
        };
        self.check_map(keys::NESTED_QUANT_MAP, &dynamic_map())?;
        let nested = NestedScales {
            codes: self.read(keys::ABSMAX)?,
            absmax: floats::to_f32(&self.read(keys::NESTED_ABSMAX)?, DType::F32),
            offset: offset as f32,
        };
        lane.unnest(&nested)
    }

    /// The kernels have the code values built in, so a checkpoint with others must not be read with them.
    fn check_map(&self, suffix: &str, expected: &[f32]) -> Result<(), CheckpointError> {
        // Versions of bitsandbytes differ in the last places of the table that they store; none reads it back.
        const TOLERANCE: f32 = 1e-6;
        let stored = floats::to_f32(&self.read(suffix)?, DType::F32);
        let same = stored.len() == expected.len()
            && stored.iter().zip(expected).all(|(a, b)| (a - b).abs() <= TOLERANCE);
        if same { Ok(()) } else { Err(self.wrong(format!("{suffix} is not the standard code"))) }
    }
}
