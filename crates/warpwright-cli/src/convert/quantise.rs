//! Checkpoint in, 4-bit checkpoint out.

use std::collections::BTreeMap;
use std::path::Path;

use globset::GlobSet;
use warpwright_ops::quantise::tables::{FP4, NF4, dynamic_map};
use warpwright_ops::quantise::{NibbleOrder, Scheme};
use warpwright_ptx::DType;

use super::config::Change;
use super::destination::Destination;
use super::kernels::{Groups, Kernels, Method, NestedScales};
use super::measure::{ErrorStats, decode};
use super::verify::{Mismatches, compare_chunk, compare_nested};
use super::{CHUNK, chunks, floats};
use crate::args::Format;
use crate::checkpoint::quantised::{BnbCode, NESTED_BLOCK, keys, torch_name};
use crate::checkpoint::sharded::{INDEX, shard_name};
use crate::checkpoint::{
    self, BnbState, Checkpoint, CheckpointError, Defect, Int4State, Layout, Reader, Storage, StoredType,
    TensorInfo, TensorSpec, Writer,
};
use crate::error::Error;
use crate::interrupt;

/// What to do.
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

    /// Whether this tensor is quantised.
    fn takes(&self, tensor: &TensorInfo) -> Option<DType> {
        let dtype = tensor.dtype.float().filter(|dtype| *dtype != DType::F64)?;
        let fits = tensor.shape.len() == 2 && tensor.elements() > 0 && !self.skip.is_match(&tensor.name);
        fits.then_some(dtype)
    }
}

/// What became of a tensor.
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
    /// The error, if it was quantised.
    pub error: Option<ErrorStats>,
    /// What verification found, if it was asked for.
    pub mismatches: Option<Mismatches>,
}

/// What became of a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Every tensor of the input.
    pub tensors: Vec<TensorResult>,
    /// What the user should know.
    pub notes: Vec<String>,
}

impl Summary {
    /// The quantised tensors.
    pub fn quantised(&self) -> impl Iterator<Item = (&TensorResult, &ErrorStats)> {
        self.tensors.iter().filter_map(|tensor| tensor.error.as_ref().map(|error| (tensor, error)))
    }

    /// Bytes of all tensors before and after.
    pub fn bytes(&self) -> (u64, u64) {
        self.tensors.iter().fold((0, 0), |(a, b), tensor| (a + tensor.bytes_in, b + tensor.bytes_out))
    }

    /// The error over all quantised weights.
    pub fn error(&self) -> ErrorStats {
        let mut all = ErrorStats::default();
        self.quantised().for_each(|(_, error)| all.merge(error));
        all
    }

    /// Whether verification found anything.
    pub fn has_mismatches(&self) -> bool {
        self.tensors.iter().filter_map(|tensor| tensor.mismatches.as_ref()).any(Mismatches::any)
    }
}

/// Told what is going on.
pub trait Observer {
    /// A tensor begins.
    fn begin(&self, tensor: &str);
    /// So many bytes of the input are done.
    fn advance(&self, bytes: u64);
}

/// Quantises `checkpoint` into `output`. Nothing has its name there if this fails, or if verification found a mismatch.
///
/// # Errors
/// What is wrong with the input, the output or the device.
pub fn run(
    checkpoint: &Checkpoint,
    mut output: Destination,
    options: &Options,
    kernels: &mut dyn Kernels,
    observer: &dyn Observer,
) -> Result<Summary, Error> {
    let mut summary = Summary::default();
    let mut weight_map = BTreeMap::new();
    let mut total = 0;
    for shard in checkpoint.shards() {
        let name = shard_name(shard);
        let target = output.name_of(&name);
        let plan = ShardPlan::new(shard, options, &target)?;
        weight_map.extend(plan.specs.iter().map(|spec| (spec.name.clone(), name.clone())));
        total += plan.bytes();
        let writer = output.shard(&name, plan.layout.clone())?;
        let mut job = ShardJob { shard, writer, options, kernels, observer };
        for item in &plan.items {
            summary.tensors.push(job.tensor(item)?);
        }
        output.keep(job.writer.finish()?);
    }
    let left: Vec<String> = checkpoint
        .tensors()
        .filter(|at| at.tensor.shape.len() == 2 && options.takes(at.tensor).is_none())
        .filter_map(|at| at.tensor.name.strip_suffix(".weight").map(str::to_owned))
        .collect();
    let change = Change::for_format(options.format, options.double_quant, left);
    summary.notes.extend(output.config(checkpoint.folder(), &change)?);
    if checkpoint.is_sharded() {
        output.text(INDEX, &checkpoint.new_index(&weight_map, total))?;
    }
    if !summary.has_mismatches() {
        output.commit()?;
    }
    Ok(summary)
}

/// A tensor of the input and where its parts go in the output.
struct Item {
    /// Position in the shard.
    tensor: usize,
    /// Position of its first part among the specs; the parts follow in the order of [`weight_specs`].
    first: usize,
    /// Number of parts.
    parts: usize,
    /// Its type, if it is quantised.
    dtype: Option<DType>,
}

/// The output file of a shard.
struct ShardPlan {
    specs: Vec<TensorSpec>,
    items: Vec<Item>,
    layout: Layout,
}

impl ShardPlan {
    fn new(shard: &Reader, options: &Options, target: &Path) -> Result<Self, CheckpointError> {
        let mut specs = Vec::new();
        let mut items = Vec::new();
        for (at, tensor) in shard.tensors().iter().enumerate() {
            let first = specs.len();
            let dtype = options.takes(tensor);
            match dtype {
                Some(dtype) => specs.extend(weight_specs(tensor, dtype, options)),
                None => specs.push(TensorSpec {
                    name: tensor.name.clone(),
                    dtype: tensor.dtype,
                    shape: tensor.shape.clone(),
                }),
            }
            items.push(Item { tensor: at, first, parts: specs.len() - first, dtype });
        }
        let mut metadata = shard.header().metadata.clone();
        if options.format.is_bnb() && !metadata.iter().any(|(key, _)| key == "format") {
            metadata.push(("format".to_owned(), "pt".to_owned()));
        }
        let layout = Layout::new(target, &metadata, &specs)?;
        Ok(Self { specs, items, layout })
    }

    fn bytes(&self) -> u64 {
        (0..self.specs.len()).map(|at| self.layout.tensor_bytes(at)).sum()
    }
}

/// The tensors that stand for a weight: codes first, then scales, then the rest.
fn weight_specs(tensor: &TensorInfo, dtype: DType, options: &Options) -> Vec<TensorSpec> {
    let elements = tensor.elements();
    let groups = elements.div_ceil(u64::from(options.block_size));
    let spec = |suffix: &str, dtype, shape: &[u64]| TensorSpec {
        name: format!("{}{suffix}", tensor.name),
        dtype,
        shape: shape.to_vec(),
    };
    let mut specs = vec![spec("", StoredType::U8, &[elements.div_ceil(2), 1])];
    let state = match options.format {
        Format::BnbNf4 | Format::BnbFp4 => {
            let absmax = if options.double_quant { StoredType::U8 } else { StoredType::F32 };
            specs.push(spec(keys::ABSMAX, absmax, &[groups]));
            specs.push(spec(keys::QUANT_MAP, StoredType::F32, &[16]));
            if options.double_quant {
                specs.push(spec(keys::NESTED_ABSMAX, StoredType::F32, &[groups.div_ceil(NESTED_BLOCK)]));
                specs.push(spec(keys::NESTED_QUANT_MAP, StoredType::F32, &[256]));
            }
            if options.format == Format::BnbNf4 { keys::NF4_STATE } else { keys::FP4_STATE }
        }
        Format::Int4 => {
            specs.push(spec(keys::SCALE, StoredType::F32, &[groups]));
            if options.asymmetric {
                specs.push(spec(keys::ZERO_POINT, StoredType::U8, &[groups]));
            }
            keys::INT4_STATE
        }
    };
    specs.push(spec(state, StoredType::U8, &[state_room(tensor, dtype, options)]));
    specs
}

/// The JSON beside a weight.
fn state_text(tensor: &TensorInfo, dtype: DType, options: &Options, offset: Option<f32>) -> String {
    let torch = torch_name(dtype).unwrap_or_default().to_owned();
    let shape = tensor.shape.clone();
    let text = match options.format {
        Format::BnbNf4 | Format::BnbFp4 => serde_json::to_string(&BnbState {
            quant_type: if options.format == Format::BnbNf4 { BnbCode::Nf4 } else { BnbCode::Fp4 },
            blocksize: options.block_size.into(),
            dtype: torch,
            shape,
            nested_blocksize: offset.map(|_| NESTED_BLOCK),
            nested_dtype: offset.map(|_| "float32".to_owned()),
            nested_offset: offset.map(f64::from),
        }),
        Format::Int4 => serde_json::to_string(&Int4State {
            quant_type: "int4".to_owned(),
            group_size: options.block_size.into(),
            symmetric: !options.asymmetric,
            nibble_order: checkpoint::NibbleOrder::LowFirst,
            dtype: torch,
            shape,
        }),
    };
    // Strings, integers and finite floats always serialise.
    text.unwrap_or_default()
}

/// Bytes kept for the state. The offset of nested scales is known only after the header is written, so the longest text
/// of an f32 as an f64 is allowed for, and blanks, which JSON ignores, fill what is left.
fn state_room(tensor: &TensorInfo, dtype: DType, options: &Options) -> u64 {
    const LONGEST_NUMBER: usize = "-1.1754943508222875e-38".len();
    let offset = options.double_quant.then_some(0.0);
    let text = state_text(tensor, dtype, options, offset);
    let extra = if offset.is_some() { LONGEST_NUMBER - "0.0".len() } else { 0 };
    (text.len() + extra) as u64
}

/// One shard on its way.
struct ShardJob<'a, S> {
    shard: &'a Reader,
    writer: Writer<S>,
    options: &'a Options,
    kernels: &'a mut dyn Kernels,
    observer: &'a dyn Observer,
}

impl<S: Storage> ShardJob<'_, S> {
    fn tensor(&mut self, item: &Item) -> Result<TensorResult, Error> {
        let shard = self.shard;
        let tensor = &shard.tensors()[item.tensor];
        self.observer.begin(&tensor.name);
        let mut result = TensorResult {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            dtype: tensor.dtype,
            bytes_in: tensor.bytes(),
            bytes_out: (item.first..item.first + item.parts)
                .map(|at| self.writer.layout().tensor_bytes(at))
                .sum(),
            error: None,
            mismatches: None,
        };
        match item.dtype {
            None => copy(self.shard, tensor, &mut self.writer, item.first, self.observer)?,
            Some(dtype) => {
                let (error, mismatches) = self.weight(tensor, dtype, item.first)?;
                result.error = Some(error);
                result.mismatches = self.options.verify.then_some(mismatches);
            }
        }
        Ok(result)
    }

    fn weight(
        &mut self,
        tensor: &TensorInfo,
        dtype: DType,
        first: usize,
    ) -> Result<(ErrorStats, Mismatches), Error> {
        let method = self.options.method();
        let (mut scales, mut zero_points) = (Vec::new(), Vec::new());
        for range in self.chunks(tensor) {
            interrupt::check()?;
            let bytes = self.read(tensor, dtype, &range)?;
            if let Some((at, value)) = floats::first_nonfinite(&bytes, dtype) {
                let defect = Defect::NonFinite { index: range.start + at, value };
                return Err(CheckpointError::tensor(self.shard.path(), &tensor.name, defect).into());
            }
            let groups = self.kernels.quantise(&bytes, dtype, method)?;
            self.writer.append(first, &groups.codes)?;
            scales.extend(groups.scales);
            zero_points.extend(groups.zero_points);
            self.observer.advance((range.end - range.start) * dtype.bytes() as u64);
        }
        let mut mismatches = Mismatches::default();
        let nested = if self.options.double_quant { Some(self.kernels.nest(&scales)?) } else { None };
        self.write_parts(tensor, dtype, first, &scales, &zero_points, nested.as_ref())?;
        let effective = match &nested {
            Some(nested) => {
                let effective = self.kernels.unnest(nested)?;
                if self.options.verify {
                    compare_nested(&scales, nested, &effective, &mut mismatches);
                }
                effective
            }
            None => scales.clone(),
        };
        let error = self.review(tensor, dtype, first, &scales, &effective, &zero_points, &mut mismatches)?;
        Ok((error, mismatches))
    }

    /// Everything but the codes.
    fn write_parts(
        &mut self,
        tensor: &TensorInfo,
        dtype: DType,
        first: usize,
        scales: &[f32],
        zero_points: &[u8],
        nested: Option<&NestedScales>,
    ) -> Result<(), Error> {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        match self.options.format {
            Format::BnbNf4 | Format::BnbFp4 => {
                let map = if self.options.format == Format::BnbNf4 { NF4 } else { FP4 };
                match nested {
                    None => parts.extend([floats::f32_bytes(scales), floats::f32_bytes(&map)]),
                    Some(nested) => parts.extend([
                        nested.codes.clone(),
                        floats::f32_bytes(&map),
                        floats::f32_bytes(&nested.absmax),
                        floats::f32_bytes(&dynamic_map()),
                    ]),
                }
            }
            Format::Int4 => {
                parts.push(floats::f32_bytes(scales));
                if self.options.asymmetric {
                    parts.push(zero_points.to_vec());
                }
            }
        }
        let mut state =
            state_text(tensor, dtype, self.options, nested.map(|nested| nested.offset)).into_bytes();
        let room = state_room(tensor, dtype, self.options);
        state.resize(usize::try_from(room).unwrap_or(state.len()), b' ');
        parts.push(state);
        for (at, bytes) in parts.iter().enumerate() {
            self.writer.append(first + 1 + at, bytes)?;
        }
        Ok(())
    }

    /// Reads the codes back from the output and measures what they stand for against the input.
    #[expect(clippy::too_many_arguments, reason = "the parts of one weight")]
    fn review(
        &mut self,
        tensor: &TensorInfo,
        dtype: DType,
        first: usize,
        scales: &[f32],
        effective: &[f32],
        zero_points: &[u8],
        mismatches: &mut Mismatches,
    ) -> Result<ErrorStats, Error> {
        let method = self.options.method();
        let size = u64::from(method.group_size);
        let mut stats = ErrorStats::default();
        for range in self.chunks(tensor) {
            interrupt::check()?;
            let bytes = self.read(tensor, dtype, &range)?;
            let elements = self.length(tensor, range.end - range.start)?;
            let mut codes = vec![0; elements.div_ceil(2)];
            self.writer.read_back(first, range.start / 2, &mut codes)?;
            let of = |n: u64| self.length(tensor, n);
            let (from, to) = (of(range.start / size)?, of(range.end.div_ceil(size))?);
            let zero_points = zero_points.get(from..to).unwrap_or_default().to_vec();
            let groups = Groups { codes, scales: effective[from..to].to_vec(), zero_points };
            let restored = decode(&groups, elements, method);
            stats.add(&bytes, dtype, &restored);
            if self.options.verify {
                let values = self.kernels.dequantise(&groups, elements, dtype, method)?;
                compare_chunk(
                    &bytes,
                    dtype,
                    method,
                    &groups,
                    &scales[from..to],
                    &restored,
                    &values,
                    mismatches,
                );
            }
        }
        Ok(stats)
    }

    fn chunks(&self, tensor: &TensorInfo) -> impl Iterator<Item = std::ops::Range<u64>> + use<S> {
        chunks(tensor.elements(), self.options.block_size.into(), self.options.chunk)
    }

    fn read(
        &self,
        tensor: &TensorInfo,
        dtype: DType,
        range: &std::ops::Range<u64>,
    ) -> Result<Vec<u8>, Error> {
        let size = dtype.bytes() as u64;
        let mut bytes = vec![0; self.length(tensor, (range.end - range.start).saturating_mul(size))?];
        self.shard.read_at(tensor, range.start * size, &mut bytes)?;
        Ok(bytes)
    }

    fn length(&self, tensor: &TensorInfo, n: u64) -> Result<usize, CheckpointError> {
        usize::try_from(n).map_err(|_| {
            let source = std::io::ErrorKind::OutOfMemory.into();
            CheckpointError::tensor(
                self.shard.path(),
                &tensor.name,
                Defect::Io { action: "hold a group", source },
            )
        })
    }
}

/// Copies a tensor through as it is.
pub(super) fn copy<S: Storage>(
    shard: &Reader,
    tensor: &TensorInfo,
    writer: &mut Writer<S>,
    at: usize,
    observer: &dyn Observer,
) -> Result<(), Error> {
    const PIECE: u64 = 8 << 20;
    let mut buffer = vec![0; usize::try_from(tensor.bytes().min(PIECE)).unwrap_or(0)];
    let mut offset = 0;
    while offset < tensor.bytes() {
        interrupt::check()?;
        let length = (tensor.bytes() - offset).min(buffer.len() as u64);
        let piece = &mut buffer[..usize::try_from(length).unwrap_or(0)];
        shard.read_at(tensor, offset, piece)?;
        writer.append(at, piece)?;
        offset += length;
        observer.advance(length);
    }
    Ok(())
}
