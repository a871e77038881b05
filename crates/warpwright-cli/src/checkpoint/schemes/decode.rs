//! From the tensors of a packed weight to its numbers: the difference of code and zero point, exact, times the scale, rounded once
//! to f32.

use std::ops::Range;

use warpwright_ptx::float8::e4m3_value;

use super::packing::{e8m0_value, integers};
use super::{Global, PackedWeight, Packing, ScaleCode, Zero};
use crate::checkpoint::error::{CheckpointError, Defect};
use crate::checkpoint::floats;
use crate::checkpoint::sharded::{Checkpoint, Located};

/// A packed weight with its scales, zero points and groups in memory.
#[derive(Debug)]
pub struct Decoder<'a> {
    source: Source<'a>,
    columns: usize,
    /// All codes, where those of a row do not lie together.
    whole: Option<Vec<u8>>,
    /// The group of each column.
    group_of: Vec<u32>,
    groups: usize,
    /// Rows of scales, each of `groups`, in effect.
    scales: Vec<f32>,
    /// The same as stored, if a byte holds one.
    stored: Vec<u8>,
    /// As the scales; empty where it is the same everywhere.
    zeros: Vec<f32>,
    fixed: f32,
    values: [f32; 256],
}

impl<'a> Decoder<'a> {
    /// Reads all of a weight but its codes, and those too if they must be read as a whole.
    ///
    /// # Errors
    /// A tensor cannot be read or held, or a column is in a group that there is not.
    pub fn open(checkpoint: &'a Checkpoint, weight: &'a PackedWeight) -> Result<Self, CheckpointError> {
        let source = Source { checkpoint, weight };
        let (columns, groups) = (source.size(weight.columns)?, source.size(weight.scales.groups)?);
        let in_rows = weight.codes.packing.row_bytes(columns, weight.codes.code.bits()).is_some();
        let whole = if in_rows { None } else { Some(source.read(&weight.codes.key)?) };
        let group_of = match &weight.group_index {
            None => source.runs(),
            Some(key) => source.group_index(key)?,
        };
        let (scales, stored) = source.scales()?;
        let zeros = source.zeros()?;
        let fixed = if let Zero::Fixed(zero) = weight.zero { f32::from(zero) } else { 0.0 };
        let values = weight.codes.code.values();
        Ok(Self { source, columns, whole, group_of, groups, scales, stored, zeros, fixed, values })
    }

    /// The weight.
    pub const fn weight(&self) -> &'a PackedWeight {
        self.source.weight
    }

    /// The codes of some rows of all matrices, one a byte.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn codes(&self, rows: Range<u64>) -> Result<Vec<u8>, CheckpointError> {
        let weight = self.source.weight;
        let (packing, bits) = (weight.codes.packing, weight.codes.code.bits());
        let size = |n| self.source.size(n);
        let (count, first, all) = (size(rows.end - rows.start)?, size(rows.start)?, size(weight.rows)?);
        let mut codes = self.source.room(count, self.columns)?;
        if self.columns == 0 {
            return Ok(codes);
        }
        let mut unpack = |bytes: &[u8], rows: usize, first: usize| {
            for (row, codes) in codes.chunks_exact_mut(self.columns).enumerate() {
                packing.unpack(bytes, rows, first + row, bits, codes);
            }
        };
        match &self.whole {
            Some(whole) => unpack(whole, all, first),
            None => unpack(&self.bytes(&rows)?, count, 0),
        }
        Ok(codes)
    }

    /// The bytes of some rows, where those of a row lie together.
    fn bytes(&self, rows: &Range<u64>) -> Result<Vec<u8>, CheckpointError> {
        let codes = &self.source.weight.codes;
        let row_bytes = codes.packing.row_bytes(self.columns, codes.code.bits()).unwrap_or(0);
        let mut bytes = self.source.room(self.source.size(rows.end - rows.start)?, row_bytes)?;
        let at = self.source.locate(&codes.key)?;
        at.shard.read_at(at.tensor, rows.start * row_bytes as u64, &mut bytes)?;
        Ok(bytes)
    }

    /// The numbers of some rows of all matrices.
    ///
    /// # Errors
    /// The codes cannot be read.
    pub fn rows(&self, rows: Range<u64>) -> Result<Vec<f32>, CheckpointError> {
        if let Packing::Blocks(block) = self.source.weight.codes.packing {
            let mut out = Vec::new();
            block.decode(&self.bytes(&rows)?, &mut out);
            return Ok(out);
        }
        let codes = self.codes(rows.clone())?;
        let mut out = Vec::with_capacity(codes.len());
        if self.columns == 0 {
            return Ok(out);
        }
        for (row, codes) in (rows.start..).zip(codes.chunks_exact(self.columns)) {
            let (scales, zeros) = self.of_row(row);
            let pairs = codes.iter().zip(&self.group_of);
            if zeros.is_empty() {
                out.extend(pairs.map(|(code, group)| {
                    (self.values[usize::from(*code)] - self.fixed) * scales[*group as usize]
                }));
            } else {
                out.extend(pairs.map(|(code, group)| {
                    let group = *group as usize;
                    (self.values[usize::from(*code)] - zeros[group]) * scales[group]
                }));
            }
        }
        Ok(out)
    }

    /// Whether every group is a run of columns, one behind the other.
    pub fn has_runs(&self) -> bool {
        let size = self.source.weight.group_size;
        self.group_of.iter().zip(0u64..).all(|(group, k)| u64::from(*group) == k / size)
    }

    /// The byte that holds a scale, if one does.
    pub fn stored_scale(&self, scale_row: u64, group: usize) -> Option<u8> {
        self.stored.get(scale_row as usize * self.groups + group).copied()
    }

    /// The code of zero where it is the same everywhere.
    pub const fn fixed_zero(&self) -> u8 {
        if let Zero::Fixed(zero) = self.source.weight.zero { zero } else { 0 }
    }

    /// The number that scales are divided by, where there is one; else 1. A factor is turned into a divisor.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn divisor(&self) -> Result<f32, CheckpointError> {
        let source = self.source;
        match &source.weight.scales.global {
            Global::None | Global::Constant(_) => Ok(1.0),
            Global::Factor(key) => Ok(1.0 / source.number(key)?),
            Global::Divisor(key) => source.number(key),
        }
    }

    /// Scales and zero points of a row, by group; no zero points if they are the same everywhere.
    pub fn of_row(&self, row: u64) -> (&[f32], &[f32]) {
        let start = (row / self.source.weight.scales.rows) as usize * self.groups;
        let range = start..start + self.groups;
        (&self.scales[range.clone()], self.zeros.get(range).unwrap_or_default())
    }
}

/// The tensors of a weight.
#[derive(Clone, Copy, Debug)]
struct Source<'a> {
    checkpoint: &'a Checkpoint,
    weight: &'a PackedWeight,
}

impl<'a> Source<'a> {
    fn locate(&self, key: &str) -> Result<Located<'a>, CheckpointError> {
        self.checkpoint.get(key).ok_or_else(|| self.fail(Defect::MissingPart { key: key.to_owned() }))
    }

    fn read(&self, key: &str) -> Result<Vec<u8>, CheckpointError> {
        let at = self.locate(key)?;
        at.shard.read(at.tensor)
    }

    fn fail(&self, defect: Defect) -> CheckpointError {
        let file = self.checkpoint.path_of(&self.weight.codes.key);
        CheckpointError::tensor(file, &self.weight.name, defect)
    }

    fn too_large(&self) -> CheckpointError {
        let source = std::io::ErrorKind::OutOfMemory.into();
        self.fail(Defect::Io { action: "hold the weight", source })
    }

    fn size(&self, n: u64) -> Result<usize, CheckpointError> {
        usize::try_from(n).map_err(|_| self.too_large())
    }

    /// Zeros for so many rows.
    fn room(&self, rows: usize, row_bytes: usize) -> Result<Vec<u8>, CheckpointError> {
        Ok(vec![0; rows.checked_mul(row_bytes).ok_or_else(|| self.too_large())?])
    }

    /// The group of each column where groups are runs.
    fn runs(&self) -> Vec<u32> {
        (0..self.weight.columns).map(|k| (k / self.weight.group_size) as u32).collect()
    }

    /// The group of each column. compressed-tensors writes -1 everywhere while nothing is assigned.
    fn group_index(&self, key: &str) -> Result<Vec<u32>, CheckpointError> {
        let at = self.locate(key)?;
        let bytes = at.shard.read(at.tensor)?;
        let index = integers(&bytes, at.tensor.dtype);
        if index.iter().all(|group| *group == -1) {
            return Ok(self.runs());
        }
        let groups = self.weight.scales.groups;
        let inside = |(column, group): (usize, &i64)| match u32::try_from(*group) {
            Ok(inside) if u64::from(inside) < groups => Ok(inside),
            _ => {
                let (key, column, group) = (key.to_owned(), column as u64, *group);
                Err(self.fail(Defect::GroupIndex { key, column, group, groups }))
            }
        };
        index.iter().enumerate().map(inside).collect()
    }

    /// The scales in effect, by rows of scales and by groups, and the same as stored, if a byte holds one.
    fn scales(&self) -> Result<(Vec<f32>, Vec<u8>), CheckpointError> {
        let scales = &self.weight.scales;
        let Some(key) = &scales.key else { return Ok((vec![1.0], Vec::new())) };
        let bytes = self.read(key)?;
        let mut numbers: Vec<f32> = match scales.code {
            ScaleCode::E8m0 => bytes.iter().map(|byte| e8m0_value(*byte)).collect(),
            // 8-bit floats are f32 numbers.
            ScaleCode::E4m3 => bytes.iter().map(|byte| e4m3_value(*byte) as f32).collect(),
            ScaleCode::Float(dtype) => floats::to_f32(&bytes, dtype),
        };
        match &scales.global {
            Global::None => {}
            Global::Constant(divisor) => numbers.iter_mut().for_each(|scale| *scale /= *divisor as f32),
            Global::Factor(key) => {
                let factor = self.number(key)?;
                numbers.iter_mut().for_each(|scale| *scale *= factor);
            }
            Global::Divisor(key) => {
                let divisor = self.number(key)?;
                numbers.iter_mut().for_each(|scale| *scale /= divisor);
            }
        }
        let numbers = if scales.groups_first { self.rows_first(&numbers) } else { numbers };
        let stored = if matches!(scales.code, ScaleCode::Float(_)) { Vec::new() } else { bytes };
        Ok((numbers, stored))
    }

    fn number(&self, key: &str) -> Result<f32, CheckpointError> {
        let bytes = self.read(key)?;
        Ok(bytes.first_chunk().map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes)))
    }

    /// From \[G, N\] to \[N, G\].
    fn rows_first<T: Copy>(&self, numbers: &[T]) -> Vec<T> {
        let rows = self.weight.rows as usize;
        let groups = self.weight.scales.groups as usize;
        (0..rows * groups).map(|at| numbers[at % groups * rows + at / groups]).collect()
    }

    /// The zero points, by rows and by groups; none if they are the same everywhere.
    fn zeros(&self) -> Result<Vec<f32>, CheckpointError> {
        // Sizes were compared with those of tensors that are in memory by now.
        let (rows, groups) = (self.weight.rows as usize, self.weight.scales.groups as usize);
        let bits = self.weight.codes.code.bits();
        let numbers = |codes: Vec<u8>| codes.into_iter().map(f32::from).collect();
        Ok(match &self.weight.zero {
            Zero::Fixed(_) => Vec::new(),
            Zero::Int8(key) => self.read(key)?.iter().map(|byte| f32::from(byte.cast_signed())).collect(),
            Zero::Gptq { key, less_one, symmetric } => {
                let bytes = self.read(key)?;
                let mut codes = vec![0; rows * groups];
                if rows > 0 {
                    // Words of [G, ..] along N: as codes along K of a matrix [G, N].
                    for (group, codes) in codes.chunks_exact_mut(rows).enumerate() {
                        Packing::Along.unpack(&bytes, groups, group, bits, codes);
                    }
                }
                // What is said about the format is not always so; the middle code in every place says it itself.
                let middle = 1u8 << (bits - 1);
                let all = |code: u8| codes.iter().all(|other| *other == code);
                let add = match symmetric {
                    None | Some(true) if all(middle) => 0,
                    Some(true) if all(middle - 1) => 1,
                    _ => u8::from(*less_one),
                };
                let mask = ((1u16 << bits) - 1) as u8;
                codes.iter_mut().for_each(|code| *code = code.wrapping_add(add) & mask);
                numbers(self.rows_first(&codes))
            }
            Zero::Awq(key) => {
                let bytes = self.read(key)?;
                let mut codes = vec![0; rows * groups];
                if groups > 0 {
                    for (row, codes) in codes.chunks_exact_mut(groups).enumerate() {
                        Packing::Interleaved.unpack(&bytes, rows, row, bits, codes);
                    }
                }
                numbers(codes)
            }
            Zero::Packed(key) => {
                let bytes = self.read(key)?;
                let mut codes = vec![0; rows * groups];
                if groups > 0 {
                    // Words of [.., G] along N: as codes along K of a matrix [G, N].
                    let mut by_group = vec![0; rows];
                    for group in 0..groups {
                        Packing::Down.unpack(&bytes, groups, group, bits, &mut by_group);
                        by_group.iter().enumerate().for_each(|(n, code)| codes[n * groups + group] = *code);
                    }
                }
                numbers(codes)
            }
        })
    }
}
