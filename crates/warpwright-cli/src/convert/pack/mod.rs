//! Checkpoint in, checkpoint in another tool's format out: the engine of `convert`, and of `quantize` for those formats.
//!
//! A weight is one task: its rows are read, or decoded, in bands, encoded on the host and packed. Codes that lie in rows go out with
//! each band; those that do not, and the scales, are kept until the weight is complete.

mod encode;
mod layout;
mod plan;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use globset::GlobSet;
use warpwright_ptx::DType;

use super::CHUNK;
use super::config::Change;
use super::destination::Destination;
use super::measure::ErrorStats;
use super::pool;
use super::quantize::{Observer, Summary, TensorResult, pieces};
use crate::args::PackedFormat;
use crate::checkpoint::floats;
use crate::checkpoint::schemes::{Declared, Decoder, Global, PackedWeight};
use crate::checkpoint::sharded::shard_name;
use crate::checkpoint::{
    Checkpoint, CheckpointError, Defect, Reader, Storage, StoredType, TensorInfo, Writer,
};
use crate::error::Error;
use crate::paths::Shown;
use encode::{NVFP4_RANGE, Rule, Scale, in_type};
use plan::{Input, Item, ShardPlan, siblings};

/// Format and form of the output.
#[derive(Clone, Debug)]
pub struct Options {
    /// The format.
    pub format: PackedFormat,
    /// Elements that share a scale.
    pub group_size: u32,
    /// Integers with zero points.
    pub asymmetric: bool,
    /// Search scales by squared error.
    pub search: bool,
    /// Weights to leave as they are.
    pub skip: GlobSet,
}

impl Options {
    /// The rule for a weight whose numbers have this type.
    fn rule(&self, dtype: StoredType) -> Rule {
        let scale_type = match self.format {
            PackedFormat::Gptq | PackedFormat::Awq => StoredType::F16,
            PackedFormat::CompressedTensorsInt4 => dtype,
            PackedFormat::Mxfp4 => StoredType::U8,
            PackedFormat::Nvfp4 => StoredType::F8E4M3,
            PackedFormat::Fp8 => StoredType::F32,
        };
        Rule {
            format: self.format,
            group_size: self.group_size as usize,
            asymmetric: self.asymmetric,
            search: self.search,
            scale_type,
            global: 1.0,
        }
    }
}

/// Writes `checkpoint` to `output` in the format of `options`: `packed` weights are decoded first, and if `quantize` is set, so
/// are weights of floating point; all other tensors are taken over.
///
/// # Errors
/// A defect of the input or the output; nothing has its name in the output then.
pub fn run(
    checkpoint: &Checkpoint,
    mut output: Destination,
    options: &Options,
    packed: &[PackedWeight],
    quantize: bool,
    observer: &dyn Observer,
) -> Result<Summary, Error> {
    if quantize {
        check_model(checkpoint)?;
    }
    let mut plans = Vec::new();
    let (mut weight_map, mut total) = (BTreeMap::new(), 0);
    let mut left = Vec::new();
    for shard in checkpoint.shards() {
        let name = shard_name(shard);
        let plan = ShardPlan::new(checkpoint, shard, options, packed, quantize, &output.name_of(&name))?;
        left.extend(plan.left.iter().cloned());
        if plan.items.is_empty() {
            continue;
        }
        weight_map.extend(plan.specs.iter().map(|spec| (spec.name.clone(), name.clone())));
        total += (0..plan.specs.len()).map(|at| plan.layout.tensor_bytes(at)).sum::<u64>();
        let writer = output.shard(&name, plan.layout.clone())?;
        plans.push((shard, plan, writer));
    }
    let job = Job { checkpoint, observer, globals: job_globals(checkpoint, options, &plans)? };
    let results = Mutex::new(Vec::new());
    {
        let mut tasks = Vec::new();
        for (shard, plan, writer) in &plans {
            for item in &plan.items {
                match item.input {
                    Input::Copy(tensor) => {
                        results.lock().unwrap_or_else(PoisonError::into_inner).push(job.copied(tensor));
                        let copy = |range| Task::Copy(shard, tensor, range, writer, item.first);
                        tasks.extend(pieces(tensor.bytes()).map(copy));
                    }
                    _ => tasks.push(Task::Weight(shard, item, writer)),
                }
            }
        }
        let work = |_: &mut (), task: Task<'_, _>| {
            match task {
                Task::Copy(shard, tensor, range, writer, at) => {
                    job.copy(shard, tensor, &range, writer, at)?;
                }
                Task::Weight(shard, item, writer) => {
                    let result = job.weight(shard, item, writer)?;
                    results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
                }
            }
            Ok(Vec::new())
        };
        pool::run(tasks, pool::threads(), || Ok(()), work)?;
    }
    for (.., writer) in plans {
        output.keep(writer.finish()?);
    }
    let mut tensors = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    // Threads finish in any order.
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let mut summary = Summary { tensors, notes: Vec::new() };
    if !left.is_empty() {
        let shown = left[..left.len().min(3)].join(", ");
        let more = if left.len() > 3 { format!(", .. ({} in all)", left.len()) } else { String::new() };
        summary.notes.push(format!("not quantized: {shown}{more}"));
    }
    summary.notes.extend(output.beside(checkpoint, &Change::packed(options, left), &weight_map, total)?);
    output.commit()?;
    Ok(summary)
}

/// Refuses models whose weights are \[K, N\], as `Conv1D` of transformers has them: the formats would take K for N.
fn check_model(checkpoint: &Checkpoint) -> Result<(), Error> {
    const TRANSPOSED: [&str; 4] = ["decision_transformer", "gpt2", "imagegpt", "openai-gpt"];
    let declared = Declared::read(checkpoint.folder())?;
    match declared.model_type.as_deref().filter(|model| TRANSPOSED.contains(model)) {
        None => Ok(()),
        Some(model) => Err(Error::usage(
            format!(
                "{}: weights of {model} are [inputs, outputs], which these formats have no place for",
                Shown(checkpoint.path())
            ),
            "use --format bnb-nf4, bnb-fp4 or int4",
        )),
    }
}

/// A part of the work.
enum Task<'t, S> {
    /// Takes bytes of a tensor over.
    Copy(&'t Reader, &'t TensorInfo, Range<u64>, &'t Writer<S>, usize),
    /// Encodes a weight.
    Weight(&'t Reader, &'t Item<'t>, &'t Writer<S>),
}

/// Shared by all threads.
struct Job<'a> {
    checkpoint: &'a Checkpoint,
    observer: &'a dyn Observer,
    /// The divisors of NVFP4, by what [`siblings`] says of a weight's name.
    globals: HashMap<String, f32>,
}

/// The largest magnitude of each weight, and of those that are multiplied as one, where the format has a scale for all.
fn job_globals<S: Storage>(
    checkpoint: &Checkpoint,
    options: &Options,
    plans: &[(&Reader, ShardPlan<'_>, Writer<S>)],
) -> Result<HashMap<String, f32>, Error> {
    let largest = Mutex::new(HashMap::new());
    if options.format != PackedFormat::Nvfp4 {
        return Ok(HashMap::new());
    }
    let weights: Vec<_> = plans
        .iter()
        .flat_map(|(shard, plan, _)| plan.items.iter().map(move |item| (*shard, item)))
        .filter(|(_, item)| !matches!(item.input, Input::Copy(_)))
        .collect();
    let work = |_: &mut (), (shard, item): (&Reader, &Item<'_>)| {
        let rows = Rows::open(checkpoint, shard, item)?;
        let mut most = 0f32;
        for band in rows.bands(1) {
            most = rows.read(&band)?.iter().fold(most, |most, x| most.max(x.abs()));
        }
        let mut largest = largest.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = largest.entry(siblings(&item.name)).or_insert(0f32);
        *entry = entry.max(most);
        Ok(Vec::new())
    };
    pool::run(weights, pool::threads(), || Ok(()), work)?;
    let largest = largest.into_inner().unwrap_or_else(PoisonError::into_inner);
    let global = |most: f32| if most == 0.0 { 1.0 } else { (NVFP4_RANGE / most).min(f32::MAX) };
    Ok(largest.into_iter().map(|(key, most)| (key, global(most))).collect())
}

/// The numbers of a weight, by rows.
struct Rows<'a> {
    checkpoint: &'a Checkpoint,
    shape: [u64; 2],
    source: Source<'a>,
}

enum Source<'a> {
    Plain(&'a Reader, &'a TensorInfo),
    Packed(Box<Decoder<'a>>),
}

impl<'a> Rows<'a> {
    fn open(checkpoint: &'a Checkpoint, shard: &'a Reader, item: &Item<'a>) -> Result<Self, CheckpointError> {
        let source = match item.input {
            Input::Packed(weight) => Source::Packed(Box::new(Decoder::open(checkpoint, weight)?)),
            Input::Copy(tensor) | Input::Plain(tensor) => Source::Plain(shard, tensor),
        };
        Ok(Self { checkpoint, shape: item.shape, source })
    }

    /// The file of its numbers or codes.
    fn file(&self) -> &'a Path {
        match &self.source {
            Source::Packed(decoder) => self.checkpoint.path_of(&decoder.weight().codes.key),
            Source::Plain(shard, _) => shard.path(),
        }
    }

    /// Rows that are in memory at a time, a multiple of `unit`.
    fn bands(&self, unit: usize) -> impl Iterator<Item = Range<u64>> + use<> {
        let ([n, k], unit) = (self.shape, unit as u64);
        let length = (CHUNK / k.max(1) / unit).max(1) * unit;
        (0..n.div_ceil(length)).map(move |band| band * length..((band + 1) * length).min(n))
    }

    /// The numbers of a band, all of them finite.
    fn read(&self, band: &Range<u64>) -> Result<Vec<f32>, CheckpointError> {
        let (values, name) = match &self.source {
            Source::Packed(decoder) => (decoder.rows(band.clone())?, &decoder.weight().name),
            Source::Plain(shard, tensor) => {
                let row = tensor.dtype.bits() / 8 * self.shape[1];
                // A band is a few megabytes long, or a few rows.
                let mut bytes = vec![0; ((band.end - band.start) * row) as usize];
                shard.read_at(tensor, band.start * row, &mut bytes)?;
                (floats::to_f32(&bytes, tensor.dtype.float().unwrap_or(DType::F32)), &tensor.name)
            }
        };
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(values),
            Some(at) => {
                let index = band.start * self.shape[1] + at as u64;
                let defect = Defect::NonFinite { index, value: values[at].into() };
                Err(CheckpointError::tensor(self.file(), name, defect))
            }
        }
    }
}

impl Job<'_> {
    fn copied(&self, tensor: &TensorInfo) -> TensorResult {
        TensorResult {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            dtype: tensor.dtype,
            bytes_in: tensor.bytes(),
            bytes_out: tensor.bytes(),
            error: None,
            mismatches: None,
        }
    }

    fn copy<S: Storage>(
        &self,
        shard: &Reader,
        tensor: &TensorInfo,
        range: &Range<u64>,
        writer: &Writer<S>,
        at: usize,
    ) -> Result<(), Error> {
        self.observer.begin(&tensor.name);
        // A piece is a few megabytes long.
        let mut bytes = vec![0; (range.end - range.start) as usize];
        shard.read_at(tensor, range.start, &mut bytes)?;
        writer.write_at(at, range.start, &bytes)?;
        self.observer.advance(range.end - range.start);
        Ok(())
    }

    /// Encodes a weight and writes all of its tensors.
    fn weight<S: Storage>(
        &self,
        shard: &Reader,
        item: &Item<'_>,
        writer: &Writer<S>,
    ) -> Result<TensorResult, Error> {
        self.observer.begin(&item.name);
        let rows = Rows::open(self.checkpoint, shard, item)?;
        let mut rule = item.rule;
        if let Some(global) = self.globals.get(&siblings(&item.name)) {
            rule.global = *global;
        }
        let mut encoder = Encoder::new(rule, item, writer);
        let kept = match &rows.source {
            Source::Packed(decoder) => self.keep(decoder, &mut encoder)?,
            Source::Plain(..) => false,
        };
        if !kept {
            self.encode(&rows, &mut encoder)?;
        }
        let bytes_out =
            (item.first..item.first + item.specs).map(|at| writer.layout().tensor_bytes(at)).sum();
        let error = encoder.finish()?;
        self.observer.advance(item.bytes);
        Ok(TensorResult {
            name: item.name.clone(),
            shape: item.shape.to_vec(),
            dtype: item.dtype,
            bytes_in: item.bytes,
            bytes_out,
            error: Some(error),
            mismatches: None,
        })
    }

    fn encode<S: Storage>(&self, rows: &Rows<'_>, encoder: &mut Encoder<'_, S>) -> Result<(), Error> {
        let columns = encoder.columns;
        let block_rows = encoder.rule.block_rows();
        for band in rows.bands(block_rows) {
            let values = rows.read(&band)?;
            let mut codes = Vec::with_capacity(values.len());
            for block in values.chunks(block_rows * columns) {
                let Some(encoded) = encoder.rule.encode(block, columns) else {
                    let largest = block.iter().fold(0f32, |most, x| most.max(x.abs()));
                    let defect = Defect::ScaleRange { value: largest, dtype: encoder.rule.scale_type };
                    return Err(CheckpointError::tensor(rows.file(), encoder.name, defect).into());
                };
                encoder.error.add_pairs(block, &encoded.restored);
                encoder.scales.extend(encoded.scales);
                codes.extend(encoded.codes);
            }
            encoder.put(band.start, &codes)?;
        }
        Ok(())
    }

    /// Takes codes and zero points over as they are, if the format can hold them. Scales are rounded to its type, which changes
    /// nothing if that holds them.
    fn keep<S: Storage>(&self, decoder: &Decoder<'_>, encoder: &mut Encoder<'_, S>) -> Result<bool, Error> {
        let (weight, rule) = (decoder.weight(), encoder.rule);
        // The divisor belongs to the format of 4-bit floats in groups of 16, whichever way it is stored.
        let has_divisor = !matches!(weight.scales.global, Global::None);
        let alike = weight.codes.code == rule.code_kind()
            && decoder.has_runs()
            && weight.group_size.min(weight.columns) == (rule.group_size as u64).min(weight.columns)
            && weight.scales.rows == rule.block_rows() as u64
            && has_divisor == (rule.format == PackedFormat::Nvfp4);
        if !alike {
            return Ok(false);
        }
        let rule = Rule { global: decoder.divisor()?, ..rule };
        let Some((scales, exact)) = kept_scales(decoder, rule) else { return Ok(false) };
        encoder.rule = rule;
        let (columns, groups) = (encoder.columns, weight.scales.groups as usize);
        let step = (CHUNK / weight.columns.max(1)).max(1);
        for start in (0..weight.rows).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
            let band = start..(start + step).min(weight.rows);
            let codes = decoder.codes(band.clone())?;
            encoder.put(start, &codes)?;
            if exact {
                continue;
            }
            let before = decoder.rows(band.clone())?;
            let scale = |at: usize| {
                let row = (start + (at / columns) as u64) / weight.scales.rows;
                scales[row as usize * groups + at % columns / rule.group_size]
            };
            let after: Vec<_> =
                codes.iter().enumerate().map(|(at, code)| rule.restore(*code, scale(at))).collect();
            encoder.error.add_pairs(&before, &after);
        }
        encoder.scales = scales;
        Ok(true)
    }
}

/// The scales and zero points of a weight as a rule holds them, and whether that changes no scale; `None` if it cannot.
fn kept_scales(decoder: &Decoder<'_>, rule: Rule) -> Option<(Vec<Scale>, bool)> {
    let weight = decoder.weight();
    let (mut scales, mut exact) = (Vec::new(), true);
    for block in 0..weight.rows.div_ceil(weight.scales.rows) {
        let (values, zeros) = decoder.of_row(block * weight.scales.rows);
        for (group, stored) in values.iter().enumerate() {
            let zero = zeros.get(group).map_or(decoder.fixed_zero(), |zero| *zero as u8);
            let holds_zero = match rule.format {
                // Readers differ about a zero point of 0.
                PackedFormat::Gptq => zero != 0 && (rule.asymmetric || zero == 8),
                PackedFormat::CompressedTensorsInt4 => rule.asymmetric || zero == 8,
                _ => true,
            };
            let (value, bits) = match rule.scale_type {
                StoredType::U8 => (*stored, decoder.stored_scale(block, group)?.into()),
                // The reciprocal of a factor is rounded, so a quotient may differ from the product.
                StoredType::F8E4M3 => {
                    let bits = decoder.stored_scale(block, group)?;
                    (rule.nvfp4_scale(bits), bits.into())
                }
                dtype => {
                    let value = in_type(*stored, dtype);
                    (value, value.to_bits())
                }
            };
            let vanishes = *stored != 0.0 && value == 0.0;
            if !holds_zero || vanishes || !(value.is_finite() || value.to_bits() == stored.to_bits()) {
                return None;
            }
            exact &= value.to_bits() == stored.to_bits();
            scales.push(Scale { value, bits, zero });
        }
    }
    Some((scales, exact))
}

/// A weight on its way into its tensors.
struct Encoder<'a, S> {
    rule: Rule,
    name: &'a str,
    writer: &'a Writer<S>,
    /// The tensor of the codes; the others follow.
    first: usize,
    rows: usize,
    columns: usize,
    scales: Vec<Scale>,
    /// The codes, where those of a row do not lie together.
    whole: Vec<u8>,
    error: ErrorStats,
}

impl<'a, S: Storage> Encoder<'a, S> {
    fn new(rule: Rule, item: &'a Item<'_>, writer: &'a Writer<S>) -> Self {
        let [rows, columns] = item.shape.map(|extent| extent as usize);
        let in_rows = rule.packing().row_bytes(columns, rule.bits()).is_some();
        let whole = if in_rows { 0 } else { rule.packing().bytes(rows, columns, rule.bits()) };
        Self {
            rule,
            name: &item.name,
            writer,
            first: item.first,
            rows,
            columns,
            scales: Vec::new(),
            whole: vec![0; whole],
            error: ErrorStats::default(),
        }
    }

    /// Packs the codes of rows from `start` on.
    fn put(&mut self, start: u64, codes: &[u8]) -> Result<(), CheckpointError> {
        let (packing, bits) = (self.rule.packing(), self.rule.bits());
        let rows = codes.chunks_exact(self.columns).enumerate();
        match packing.row_bytes(self.columns, bits) {
            None => {
                for (row, codes) in rows {
                    packing.pack(&mut self.whole, self.rows, start as usize + row, bits, codes);
                }
                Ok(())
            }
            Some(row_bytes) => {
                let count = codes.len() / self.columns;
                let mut bytes = vec![0; count * row_bytes];
                for (row, codes) in rows {
                    packing.pack(&mut bytes, count, row, bits, codes);
                }
                self.writer.write_at(self.first, start * row_bytes as u64, &bytes)
            }
        }
    }

    /// Writes what is known only now.
    fn finish(self) -> Result<ErrorStats, CheckpointError> {
        if !self.whole.is_empty() {
            self.writer.write_at(self.first, 0, &self.whole)?;
        }
        for (part, bytes) in self.rule.parts([self.rows, self.columns], &self.scales).iter().enumerate() {
            self.writer.write_at(self.first + 1 + part, 0, bytes)?;
        }
        Ok(self.error)
    }
}
