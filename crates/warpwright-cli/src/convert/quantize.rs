//! Checkpoint in, 4-bit checkpoint out.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use globset::GlobSet;
use warpwright_ops::quantize::{NibbleOrder, Scheme};
use warpwright_ptx::DType;

use super::config::Change;
use super::destination::Destination;
use super::kernels::{GroupBuffers, Groups, Kernels, Lane, Method, Staging};
use super::measure::ErrorStats;
use super::parts::{Item, ShardPlan, write_parts};
use super::verify::{Mismatches, compare_codes, compare_nested, compare_values};
use super::{CHUNK, chunks, pool};
use crate::args::Format;
use crate::checkpoint::floats;
use crate::checkpoint::sharded::shard_name;
use crate::checkpoint::{
    Checkpoint, CheckpointError, Defect, Reader, Storage, StoredType, TensorInfo, Writer,
};
use crate::error::Error;

/// Format and form of the output.
#[derive(Clone, Debug)]
pub struct Options {
    /// The format.
    pub format: Format,
    /// Elements that share a scale.
    pub block_size: u32,
    /// Scales in 8 bits.
    pub double_quant: bool,
    /// int4 with zero points.
    pub asymmetric: bool,
    /// Weights to leave as they are.
    pub skip: GlobSet,
    /// Hold the output against the reference.
    pub verify: bool,
    /// Elements in flight at a time.
    pub chunk: u64,
}

impl Options {
    /// Plain options for a format.
    pub fn new(format: Format) -> Self {
        Self {
            format,
            block_size: 64,
            double_quant: false,
            asymmetric: false,
            skip: GlobSet::empty(),
            verify: false,
            chunk: CHUNK,
        }
    }

    /// How elements become codes.
    pub const fn method(&self) -> Method {
        let scheme = match self.format {
            Format::BnbNf4 => Scheme::Nf4,
            Format::BnbFp4 => Scheme::Fp4,
            Format::Int4 if self.asymmetric => Scheme::Int4Asymmetric,
            Format::Int4 => Scheme::Int4Symmetric,
        };
        let order = if self.format.is_bnb() { NibbleOrder::HighFirst } else { NibbleOrder::LowFirst };
        Method { scheme, group_size: self.block_size, order }
    }

    /// The chunks of a weight.
    fn chunks(&self, tensor: &TensorInfo) -> impl Iterator<Item = Range<u64>> + use<> {
        chunks(tensor.elements(), self.block_size.into(), self.chunk)
    }

    /// Whether this tensor is quantized.
    pub(super) fn takes(&self, tensor: &TensorInfo) -> Option<DType> {
        let dtype = tensor.dtype.float().filter(|dtype| *dtype != DType::F64)?;
        let fits = tensor.shape.len() == 2 && tensor.elements() > 0 && !self.skip.is_match(&tensor.name);
        fits.then_some(dtype)
    }
}

/// The result of a tensor.
#[derive(Clone, Debug)]
pub struct TensorResult {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Its type before.
    pub dtype: StoredType,
    /// Bytes before.
    pub bytes_in: u64,
    /// Bytes after, scales and state included.
    pub bytes_out: u64,
    /// The error, if it was quantized.
    pub error: Option<ErrorStats>,
    /// The finding of the verification, if it was asked for.
    pub mismatches: Option<Mismatches>,
}

/// The result of a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Every tensor of the input.
    pub tensors: Vec<TensorResult>,
    /// Remarks for the user.
    pub notes: Vec<String>,
}

impl Summary {
    /// The quantized tensors.
    pub fn quantized(&self) -> impl Iterator<Item = (&TensorResult, &ErrorStats)> {
        self.tensors.iter().filter_map(|tensor| tensor.error.as_ref().map(|error| (tensor, error)))
    }

    /// Bytes of all tensors before and after.
    pub fn bytes(&self) -> (u64, u64) {
        self.tensors.iter().fold((0, 0), |(a, b), tensor| (a + tensor.bytes_in, b + tensor.bytes_out))
    }

    /// The error over all quantized weights.
    pub fn error(&self) -> ErrorStats {
        let mut all = ErrorStats::default();
        self.quantized().for_each(|(_, error)| all.merge(error));
        all
    }

    /// Whether verification found anything.
    pub fn has_mismatches(&self) -> bool {
        self.tensors.iter().filter_map(|tensor| tensor.mismatches.as_ref()).any(Mismatches::any)
    }
}

/// Told what is going on, by all threads.
pub trait Observer: Sync {
    /// A tensor goes on.
    fn begin(&self, tensor: &str);
    /// So many bytes of the input are done.
    fn advance(&self, bytes: u64);
}

/// Quantizes `checkpoint` into `output`. Nothing has its name there if this fails, or if verification found a mismatch.
///
/// # Errors
/// A defect of the input, the output or the device.
pub fn run(
    checkpoint: &Checkpoint,
    mut output: Destination,
    options: &Options,
    kernels: &dyn Kernels,
    observer: &dyn Observer,
) -> Result<Summary, Error> {
    let mut plans = Vec::new();
    for shard in checkpoint.shards() {
        let name = shard_name(shard);
        let plan = ShardPlan::new(shard, options, &output.name_of(&name))?;
        let writer = output.shard(&name, plan.layout.clone())?;
        plans.push((shard, name, plan, writer));
    }
    let mut summary = Summary::default();
    let (mut weight_map, mut total) = (BTreeMap::new(), 0);
    {
        let mut tensors = Vec::new();
        for (shard, name, plan, writer) in &plans {
            weight_map.extend(plan.specs.iter().map(|spec| (spec.name.clone(), name.clone())));
            total += plan.bytes();
            tensors.extend(plan.items.iter().map(|item| Tensor::new(shard, writer, plan, item, options)));
        }
        let job = Job { options, observer };
        let tasks = tensors.iter().flat_map(|tensor| job.first_tasks(tensor)).collect();
        let worker = || Ok(Worker { lane: kernels.lane()?, buffers: Buffers::default() });
        pool::run(tasks, pool::threads(), worker, |worker, task| job.work(worker, task))?;
        summary.tensors.extend(tensors.into_iter().map(|tensor| tensor.result(options)));
    }
    for (.., writer) in plans {
        output.keep(writer.finish()?);
    }
    let left: Vec<String> = checkpoint
        .tensors()
        .filter(|at| at.tensor.shape.len() == 2 && options.takes(at.tensor).is_none())
        .filter_map(|at| at.tensor.name.strip_suffix(".weight").map(str::to_owned))
        .collect();
    let change = Change::for_format(options.format, options.double_quant, left);
    summary.notes.extend(output.beside(checkpoint, &change, &weight_map, total)?);
    if !summary.has_mismatches() {
        output.commit()?;
    }
    Ok(summary)
}

/// A tensor of the input on its way.
struct Tensor<'a, S> {
    shard: &'a Reader,
    writer: &'a Writer<S>,
    info: &'a TensorInfo,
    item: &'a Item,
    bytes_out: u64,
    /// `None` if it is taken over as it is.
    weight: Option<Weight>,
}

/// A tensor that is being quantized. Its chunks come in any order.
struct Weight {
    dtype: DType,
    /// How many chunks are not quantized yet.
    left: AtomicUsize,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    /// All scales, once the first chunk has come, if they are quantized themselves.
    scales: Vec<f32>,
    /// By chunk, so that sums do not depend on the order in which chunks come.
    errors: Vec<ErrorStats>,
    mismatches: Mismatches,
}

/// A part of the work.
enum Task<'t, S> {
    /// Takes bytes of a tensor over.
    Copy(&'t Tensor<'t, S>, Range<u64>),
    /// Quantizes a chunk of a weight.
    Quantize(Chunk<'t, S>),
    /// Measures what a chunk became with these scales of the weight, which are known only when all of it is quantized.
    Review(Chunk<'t, S>, Arc<[f32]>),
}

/// A thread's part of the device and its memory.
struct Worker<'a> {
    lane: Box<dyn Lane + 'a>,
    buffers: Buffers,
}

#[derive(Default)]
struct Buffers {
    input: Staging,
    groups: GroupBuffers,
    values: Staging,
}

impl<'a, S: Storage> Tensor<'a, S> {
    fn new(
        shard: &'a Reader,
        writer: &'a Writer<S>,
        plan: &ShardPlan,
        item: &'a Item,
        options: &Options,
    ) -> Self {
        let info = &shard.tensors()[item.tensor];
        let bytes_out = (item.first..item.first + item.parts).map(|at| plan.layout.tensor_bytes(at)).sum();
        let weight = item.dtype.map(|dtype| {
            let count = options.chunks(info).count();
            let errors = vec![ErrorStats::default(); count];
            let progress = Mutex::new(Progress { errors, ..Progress::default() });
            Weight { dtype, left: AtomicUsize::new(count), progress }
        });
        Self { shard, writer, info, item, bytes_out, weight }
    }

    /// Its result.
    fn result(self, options: &Options) -> TensorResult {
        let known =
            self.weight.map(|weight| weight.progress.into_inner().unwrap_or_else(PoisonError::into_inner));
        let error = known.as_ref().map(|progress| {
            let mut whole = ErrorStats::default();
            progress.errors.iter().for_each(|part| whole.merge(part));
            whole
        });
        TensorResult {
            name: self.info.name.clone(),
            shape: self.info.shape.clone(),
            dtype: self.info.dtype,
            bytes_in: self.info.bytes(),
            bytes_out: self.bytes_out,
            error,
            mismatches: known.filter(|_| options.verify).map(|progress| progress.mismatches),
        }
    }

    fn length(&self, n: u64) -> Result<usize, CheckpointError> {
        usize::try_from(n).map_err(|_| {
            let source = std::io::ErrorKind::OutOfMemory.into();
            let defect = Defect::Io { action: "hold a group", source };
            CheckpointError::tensor(self.shard.path(), &self.info.name, defect)
        })
    }
}

/// A chunk of a weight.
struct Chunk<'t, S> {
    tensor: &'t Tensor<'t, S>,
    weight: &'t Weight,
    number: usize,
    /// Its elements.
    range: Range<u64>,
}

impl<'t, S: Storage> Chunk<'t, S> {
    fn all(tensor: &'t Tensor<'t, S>, weight: &'t Weight, options: &Options) -> impl Iterator<Item = Self> {
        let ranges = options.chunks(tensor.info).enumerate();
        ranges.map(move |(number, range)| Chunk { tensor, weight, number, range })
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.weight.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn elements(&self) -> Result<usize, CheckpointError> {
        self.tensor.length(self.range.end - self.range.start)
    }

    /// The groups of the chunk among those of the weight.
    fn groups(&self, method: Method) -> Result<Range<usize>, CheckpointError> {
        let size = u64::from(method.group_size);
        let of = |n| self.tensor.length(n);
        Ok(of(self.range.start / size)?..of(self.range.end.div_ceil(size))?)
    }

    fn read<'b>(&self, lane: &dyn Lane, staging: &'b mut Staging) -> Result<&'b [u8], Error> {
        let size = self.weight.dtype.bytes() as u64;
        let bytes = self.tensor.length((self.range.end - self.range.start).saturating_mul(size))?;
        let bytes = staging.fit(lane, bytes)?;
        self.tensor.shard.read_at(self.tensor.info, self.range.start * size, bytes)?;
        Ok(bytes)
    }

    /// Reads the codes back from the output.
    fn read_codes(&self, lane: &dyn Lane, staging: &mut Staging) -> Result<(), Error> {
        let codes = staging.fit(lane, self.elements()?.div_ceil(2))?;
        Ok(self.tensor.writer.read_back(self.tensor.item.first, self.range.start / 2, codes)?)
    }
}

/// Shared by all threads.
struct Job<'a> {
    options: &'a Options,
    observer: &'a dyn Observer,
}

impl Job<'_> {
    /// Work that can begin at once.
    fn first_tasks<'t, S: Storage>(&self, tensor: &'t Tensor<'t, S>) -> Vec<Task<'t, S>> {
        match &tensor.weight {
            None => pieces(tensor.info.bytes()).map(|range| Task::Copy(tensor, range)).collect(),
            Some(weight) => Chunk::all(tensor, weight, self.options).map(Task::Quantize).collect(),
        }
    }

    fn work<'t, S: Storage>(
        &self,
        worker: &mut Worker<'_>,
        task: Task<'t, S>,
    ) -> Result<Vec<Task<'t, S>>, Error> {
        let Worker { lane, buffers } = worker;
        let lane = &mut **lane;
        match task {
            Task::Copy(tensor, range) => {
                self.observer.begin(&tensor.info.name);
                let piece = (tensor.shard, tensor.info, range);
                copy(lane, piece, &mut buffers.input, tensor.writer, tensor.item.first, self.observer)?;
                Ok(Vec::new())
            }
            Task::Quantize(chunk) => {
                self.observer.begin(&chunk.tensor.info.name);
                self.quantize(&chunk, lane, buffers)?;
                let elements = chunk.range.end - chunk.range.start;
                self.observer.advance(elements * chunk.weight.dtype.bytes() as u64);
                // The last chunk of a weight completes it.
                if chunk.weight.left.fetch_sub(1, Ordering::AcqRel) > 1 {
                    return Ok(Vec::new());
                }
                let Some(scales) = self.complete(&chunk, lane)? else { return Ok(Vec::new()) };
                let all = Chunk::all(chunk.tensor, chunk.weight, self.options);
                Ok(all.map(|chunk| Task::Review(chunk, scales.clone())).collect())
            }
            Task::Review(chunk, scales) => {
                let x = chunk.read(lane, &mut buffers.input)?;
                chunk.read_codes(lane, &mut buffers.groups.codes)?;
                let codes = &buffers.groups.codes.held()[..chunk.elements()?.div_ceil(2)];
                let scales = &scales[chunk.groups(self.options.method())?];
                // Formats whose scales are quantized have no zero points.
                let groups = Groups { codes, scales, zero_points: &[] };
                self.review(&chunk, x, groups, lane, &mut buffers.values)?;
                Ok(Vec::new())
            }
        }
    }

    /// From the chunk in the input to its codes and scales.
    fn quantize<S: Storage>(
        &self,
        chunk: &Chunk<'_, S>,
        lane: &mut dyn Lane,
        buffers: &mut Buffers,
    ) -> Result<(), Error> {
        let (method, first) = (self.options.method(), chunk.tensor.item.first);
        let Buffers { input, groups, values } = buffers;
        let (elements, of_chunk) = (chunk.elements()?, chunk.groups(method)?);
        let x = chunk.read(lane, input)?;
        if let Some((at, value)) = floats::first_nonfinite(x, chunk.weight.dtype) {
            let defect = Defect::NonFinite { index: chunk.range.start + at, value };
            let (file, name) = (chunk.tensor.shard.path(), &chunk.tensor.info.name);
            return Err(CheckpointError::tensor(file, name, defect).into());
        }
        lane.quantize(x, chunk.weight.dtype, method, groups)?;
        let writer = chunk.tensor.writer;
        writer.write_at(first, chunk.range.start / 2, groups.groups(elements).codes)?;
        if self.options.verify {
            // What counts is what the file holds.
            chunk.read_codes(lane, &mut groups.codes)?;
            let mut found = Mismatches::default();
            compare_codes(x, chunk.weight.dtype, method, groups.groups(elements), &mut found);
            chunk.progress().mismatches.merge(found);
        }
        if self.options.double_quant {
            let mut progress = chunk.progress();
            let all = chunk.tensor.length(chunk.tensor.info.elements().div_ceil(method.group_size.into()))?;
            progress.scales.resize(all, 0.0);
            progress.scales[of_chunk].copy_from_slice(&groups.scales);
            return Ok(());
        }
        let from = of_chunk.start as u64;
        writer.write_at(first + 1, from * 4, &floats::f32_bytes(&groups.scales))?;
        if method.scheme.has_zero_points() {
            writer.write_at(first + 2, from, &groups.zero_points)?;
        }
        self.review(chunk, x, groups.groups(elements), lane, values)
    }

    /// Measures what the elements of a chunk became: `groups`, with the scales in effect.
    fn review<S: Storage>(
        &self,
        chunk: &Chunk<'_, S>,
        x: &[u8],
        groups: Groups<'_>,
        lane: &mut dyn Lane,
        values: &mut Staging,
    ) -> Result<(), Error> {
        let method = self.options.method();
        let mut error = ErrorStats::default();
        error.add(x, chunk.weight.dtype, groups, method);
        let mut found = Mismatches::default();
        if self.options.verify {
            let values = values.fit(lane, x.len())?;
            lane.dequantize(groups, chunk.weight.dtype, method, values)?;
            compare_values(values, chunk.weight.dtype, method, groups, &mut found);
        }
        let mut progress = chunk.progress();
        progress.errors[chunk.number] = error;
        progress.mismatches.merge(found);
        Ok(())
    }

    /// Writes what is known only when all chunks of a weight are quantized; gives the scales in effect if they are quantized too.
    fn complete<S: Storage>(
        &self,
        chunk: &Chunk<'_, S>,
        lane: &mut dyn Lane,
    ) -> Result<Option<Arc<[f32]>>, Error> {
        let Tensor { info, item, writer, .. } = chunk.tensor;
        if !self.options.double_quant {
            write_parts(writer, info, chunk.weight.dtype, item, self.options, None)?;
            return Ok(None);
        }
        let scales = std::mem::take(&mut chunk.progress().scales);
        let nested = lane.nest(&scales)?;
        write_parts(writer, info, chunk.weight.dtype, item, self.options, Some(&nested))?;
        let effective = lane.unnest(&nested)?;
        if self.options.verify {
            let mut found = Mismatches::default();
            compare_nested(&scales, &nested, &effective, &mut found);
            chunk.progress().mismatches.merge(found);
        }
        Ok(Some(effective.into()))
    }
}

/// How a tensor that is taken over is cut.
pub(super) fn pieces(bytes: u64) -> impl Iterator<Item = Range<u64>> {
    chunks(bytes, 1, 8 << 20)
}

/// Takes a piece of a tensor over as it is.
pub(super) fn copy<S: Storage>(
    lane: &dyn Lane,
    (shard, tensor, range): (&Reader, &TensorInfo, Range<u64>),
    staging: &mut Staging,
    writer: &Writer<S>,
    at: usize,
    observer: &dyn Observer,
) -> Result<(), Error> {
    let length = range.end - range.start;
    // A piece is a few megabytes long.
    let bytes = staging.fit(lane, length as usize)?;
    shard.read_at(tensor, range.start, bytes)?;
    writer.write_at(at, range.start, bytes)?;
    observer.advance(length);
    Ok(())
}
