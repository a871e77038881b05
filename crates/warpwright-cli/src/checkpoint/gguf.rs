//! Reading the header of a GGUF file, little-endian, versions 2 and 3: a list of keys and values, one of tensors, and where their
//! bytes begin.
//!
//! Nothing is reserved by a number from the file; what a tensor spans lies inside the file, and no two share a byte. Of the values
//! only short strings under `general.` are kept.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read};

use super::error::Defect;
use super::safetensors::{Header, TensorInfo, product};
use super::schemes::Block;
use super::stored::StoredType;

/// The first four bytes.
pub const MAGIC: [u8; 4] = *b"GGUF";

/// The longest name of a tensor or key: the format's own limits are 64 and 65,535.
const LONGEST_NAME: u64 = 65_535;
/// The longest value that is shown.
const LONGEST_VALUE: u64 = 1024;
/// How deep lists of lists go.
const DEEPEST: u32 = 4;

/// A header, and the blocks of those tensors that have them. These are tensors of bytes, whose last extent is that of a row.
pub(super) type Parsed = (Header, HashMap<String, Block>);

/// The tensor that has the defect, where one does, and the defect.
type Failure = (Option<String>, Defect);

/// Reads and checks the header of a file of `length` bytes, from its magic on.
pub(super) fn parse(source: impl Read, length: u64) -> Result<Parsed, Failure> {
    let mut source = Source { inner: source, at: 0, length };
    source.take::<4>()?;
    let version = source.u32()?;
    if !(2..=3).contains(&version) {
        return Err(wrong(format!("has version {version}: only 2 and 3 in little-endian order are read")));
    }
    let (tensors, values) = (source.u64()?, source.u64()?);
    let (mut metadata, mut alignment) = (Vec::new(), 32);
    for _ in 0..values {
        let key = source.name()?;
        let kind = source.u32()?;
        match (kind, key.as_str()) {
            (4, "general.alignment") => alignment = u64::from(source.u32()?),
            (8, key) if key.starts_with("general.") => {
                metadata.extend(source.text()?.map(|text| (key.to_owned(), text)));
            }
            _ => source.skip_value(kind, 0)?,
        }
    }
    if !alignment.is_power_of_two() {
        return Err(wrong(format!("has an alignment of {alignment}, which is no power of two")));
    }
    let mut entries = Vec::new();
    for _ in 0..tensors {
        entries.push(Entry::read(&mut source)?);
    }
    let data_start = source.at.checked_next_multiple_of(alignment).unwrap_or(length);
    let available = length.saturating_sub(data_start);
    let (mut infos, mut blocks, mut names) = (Vec::new(), HashMap::new(), HashSet::new());
    for entry in entries {
        let fail = |defect| (Some(entry.name.clone()), defect);
        if !names.insert(entry.name.clone()) {
            return Err(fail(Defect::DuplicateTensor));
        }
        let (info, block) = entry.info(alignment, available).map_err(fail)?;
        blocks.extend(block.map(|block| (info.name.clone(), block)));
        infos.push(info);
    }
    infos.sort_by_key(|info: &TensorInfo| (info.start, info.end));
    for pair in infos.windows(2) {
        if pair[1].start < pair[0].end {
            let (other, start, other_end) = (pair[0].name.clone(), pair[1].start, pair[0].end);
            return Err((Some(pair[1].name.clone()), Defect::Overlap { other, start, other_end }));
        }
    }
    Ok((Header { metadata, tensors: infos, data_start }, blocks))
}

fn wrong(message: String) -> Failure {
    (None, Defect::Gguf { message })
}

/// A tensor as the file describes it.
struct Entry {
    name: String,
    /// From the outermost on.
    shape: Vec<u64>,
    kind: u32,
    offset: u64,
}

impl Entry {
    fn read<R: Read>(source: &mut Source<R>) -> Result<Self, Failure> {
        let name = source.name()?;
        let dimensions = source.u32()?;
        if dimensions > 4 {
            let message = format!("has {dimensions} dimensions, the limit is 4");
            return Err((Some(name), Defect::Gguf { message }));
        }
        let mut shape = (0..dimensions).map(|_| source.u64()).collect::<Result<Vec<_>, _>>()?;
        shape.reverse();
        Ok(Self { name, shape, kind: source.u32()?, offset: source.u64()? })
    }

    fn info(&self, alignment: u64, available: u64) -> Result<(TensorInfo, Option<Block>), Defect> {
        let mut shape = self.shape.clone();
        let block = Block::from_number(self.kind);
        let dtype = match (self.kind, block) {
            (0, _) => StoredType::F32,
            (1, _) => StoredType::F16,
            (24, _) => StoredType::I8,
            (25, _) => StoredType::I16,
            (26, _) => StoredType::I32,
            (27, _) => StoredType::I64,
            (28, _) => StoredType::F64,
            (30, _) => StoredType::BF16,
            (_, Some(block)) => {
                let [_, .., columns] = &mut shape[..] else {
                    return Err(Defect::Gguf { message: "is in blocks, which only matrices are".to_owned() });
                };
                let elements = block.elements() as u64;
                if !columns.is_multiple_of(elements) {
                    let message = format!("has rows of {columns} elements in blocks of {elements}");
                    return Err(Defect::Gguf { message });
                }
                let overflow = || Defect::ShapeOverflow { shape: self.shape.clone(), dtype: StoredType::U8 };
                *columns = (*columns / elements).checked_mul(block.bytes() as u64).ok_or_else(overflow)?;
                StoredType::U8
            }
            (kind, None) => {
                let name = name_of_unread(kind).map(|name| format!(" ({name})")).unwrap_or_default();
                return Err(Defect::Gguf {
                    message: format!("has the ggml type {kind}{name}, which is not read"),
                });
            }
        };
        let overflow = || Defect::ShapeOverflow { shape: self.shape.clone(), dtype };
        // That of the elements, too: others count them.
        product(&self.shape).ok_or_else(overflow)?;
        let bytes = product(&shape).and_then(|count| dtype.bytes(count)).ok_or_else(overflow)?;
        if !self.offset.is_multiple_of(alignment) {
            let message = format!("begins at {}, which is no multiple of {alignment}", self.offset);
            return Err(Defect::Gguf { message });
        }
        let end = self.offset.checked_add(bytes).ok_or_else(overflow)?;
        if end > available {
            return Err(Defect::OutOfFile { end, available });
        }
        Ok((TensorInfo { name: self.name.clone(), dtype, shape, start: self.offset, end }, block))
    }
}

/// ggml's name of a type that is not read.
const fn name_of_unread(kind: u32) -> Option<&'static str> {
    Some(match kind {
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        40 => "NVFP4",
        _ => return None,
    })
}

/// The file, and where in it we are.
struct Source<R> {
    inner: R,
    at: u64,
    length: u64,
}

impl<R: Read> Source<R> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Failure> {
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes).map_err(|source| self.failed(source))?;
        self.at += N as u64;
        Ok(bytes)
    }

    fn failed(&self, source: io::Error) -> Failure {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => {
                (None, Defect::HeaderTruncated { length: self.at, available: self.length })
            }
            _ => (None, Defect::Io { action: "read the header", source }),
        }
    }

    fn u32(&mut self) -> Result<u32, Failure> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Failure> {
        self.take().map(u64::from_le_bytes)
    }

    /// The length of what comes next, which the file must have.
    fn extent(&mut self, count: u64, size: u64) -> Result<u64, Failure> {
        let left = self.length.saturating_sub(self.at);
        count.checked_mul(size).filter(|bytes| *bytes <= left).ok_or_else(|| {
            (None, Defect::HeaderTruncated { length: self.at.saturating_add(count), available: self.length })
        })
    }

    fn skip(&mut self, bytes: u64) -> Result<(), Failure> {
        let skipped = io::copy(&mut self.inner.by_ref().take(bytes), &mut io::sink());
        let skipped = skipped.map_err(|source| self.failed(source))?;
        self.at += skipped;
        if skipped == bytes { Ok(()) } else { Err(self.failed(io::ErrorKind::UnexpectedEof.into())) }
    }

    fn name(&mut self) -> Result<String, Failure> {
        let length = self.u64()?;
        if length > LONGEST_NAME {
            return Err(wrong(format!("has a name of {length} bytes, the limit is {LONGEST_NAME}")));
        }
        self.string(length)
    }

    fn string(&mut self, length: u64) -> Result<String, Failure> {
        let length = self.extent(length, 1)?;
        let mut bytes = Vec::new();
        let read = self.inner.by_ref().take(length).read_to_end(&mut bytes);
        let read = read.map_err(|source| self.failed(source))? as u64;
        self.at += read;
        if read < length {
            return Err(self.failed(io::ErrorKind::UnexpectedEof.into()));
        }
        String::from_utf8(bytes)
            .map_err(|error| (None, Defect::HeaderNotUtf8 { at: error.utf8_error().valid_up_to() }))
    }

    /// A string, if it is short.
    fn text(&mut self) -> Result<Option<String>, Failure> {
        let length = self.u64()?;
        if length <= LONGEST_VALUE {
            return self.string(length).map(Some);
        }
        let bytes = self.extent(length, 1)?;
        self.skip(bytes).map(|()| None)
    }

    fn skip_value(&mut self, kind: u32, depth: u32) -> Result<(), Failure> {
        let size = |kind| match kind {
            0 | 1 | 7 => Some(1),
            2 | 3 => Some(2),
            4..=6 => Some(4),
            10..=12 => Some(8),
            _ => None,
        };
        if let Some(size) = size(kind) {
            return self.skip(size);
        }
        match kind {
            8 => {
                let length = self.u64()?;
                let bytes = self.extent(length, 1)?;
                self.skip(bytes)
            }
            9 if depth < DEEPEST => {
                let (kind, count) = (self.u32()?, self.u64()?);
                if let Some(size) = size(kind) {
                    let bytes = self.extent(count, size)?;
                    return self.skip(bytes);
                }
                // Each takes eight bytes at least.
                self.extent(count, 8)?;
                (0..count).try_for_each(|_| self.skip_value(kind, depth + 1))
            }
            _ => Err(wrong(format!("has a value of the unknown type {kind}"))),
        }
    }
}
