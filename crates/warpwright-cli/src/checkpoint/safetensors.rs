//! Reading safetensors: an 8-byte little-endian header length, a JSON header, then the tensors' bytes.
//!
//! [`Header::parse`] is the only door through which a header comes in. What it returns satisfies, for every tensor:
//! the shape's size in bytes fits 64 bits and equals the span of its offsets, the span lies inside the file, no two
//! spans share a byte, and no byte of the data belongs to nobody.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};

use super::error::{CheckpointError, Defect};
use super::gguf;
use super::schemes::Block;
use super::stored::StoredType;

/// The longest header that is read, the limit that the format's own library has.
pub const MAX_HEADER: u64 = 100_000_000;

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its key.
    pub name: String,
    /// Element type.
    pub dtype: StoredType,
    /// Shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// First byte, from the start of the data.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

impl TensorInfo {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        // Cannot overflow: the header was refused if it did.
        self.shape.iter().product()
    }

    /// Number of bytes.
    pub const fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// A checked header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The free-form `__metadata__`, in file order.
    pub metadata: Vec<(String, String)>,
    /// The tensors in the order of their bytes.
    pub tensors: Vec<TensorInfo>,
    /// Offset of the data in the file.
    pub data_start: u64,
}

impl Header {
    /// Reads and checks the header of a file of `length` bytes.
    ///
    /// # Errors
    /// The defect, and the tensor that has it. An I/O error is a defect too.
    pub fn parse(mut source: impl Read, length: u64) -> Result<Self, (Option<String>, Defect)> {
        let whole = |defect| (None, defect);
        let read = |source: io::Error| (None, Defect::Io { action: "read the header", source });
        if length < 8 {
            return Err(whole(Defect::TooShort { length }));
        }
        let mut prefix = [0u8; 8];
        source.read_exact(&mut prefix).map_err(read)?;
        let announced = u64::from_le_bytes(prefix);
        if announced > MAX_HEADER {
            return Err(whole(Defect::HeaderTooLong { length: announced, limit: MAX_HEADER }));
        }
        let available = length - 8;
        if announced > available {
            return Err(whole(Defect::HeaderTruncated { length: announced, available }));
        }
        // `read_to_end` on a limited source grows with what is really there, so a lying length cannot make it reserve.
        let mut bytes = Vec::new();
        source.take(announced).read_to_end(&mut bytes).map_err(read)?;
        if (bytes.len() as u64) < announced {
            return Err(whole(Defect::HeaderTruncated { length: announced, available: bytes.len() as u64 }));
        }
        let text = std::str::from_utf8(&bytes)
            .map_err(|error| whole(Defect::HeaderNotUtf8 { at: error.valid_up_to() }))?;
        let data_start = 8 + announced;
        Self::from_json(text, data_start, length - data_start)
    }

    fn from_json(text: &str, data_start: u64, data_bytes: u64) -> Result<Self, (Option<String>, Defect)> {
        let mut current = None;
        let mut parser = serde_json::Deserializer::from_str(text);
        let raw = (HeaderSeed { current: &mut current })
            .deserialize(&mut parser)
            .and_then(|raw| parser.end().map(|()| raw))
            .map_err(|error| (current.take(), Defect::HeaderJson { message: error.to_string() }))?;
        let mut names: HashSet<&str> = HashSet::with_capacity(raw.tensors.len());
        let mut tensors = Vec::with_capacity(raw.tensors.len());
        for (name, entry) in &raw.tensors {
            let checked = check_entry(entry, data_bytes);
            let (dtype, start, end) = checked.map_err(|defect| (Some(name.clone()), defect))?;
            if !names.insert(name) {
                return Err((Some(name.clone()), Defect::DuplicateTensor));
            }
            tensors.push(TensorInfo { name: name.clone(), dtype, shape: entry.shape.clone(), start, end });
        }
        tensors.sort_by_key(|tensor| (tensor.start, tensor.end));
        let mut end = 0;
        let mut previous: Option<&TensorInfo> = None;
        for tensor in &tensors {
            if tensor.start > end {
                return Err((None, Defect::Gap { start: end, end: tensor.start }));
            }
            if let Some(other) = previous.filter(|_| tensor.start < end) {
                let overlap =
                    Defect::Overlap { other: other.name.clone(), start: tensor.start, other_end: end };
                return Err((Some(tensor.name.clone()), overlap));
            }
            end = tensor.end;
            previous = Some(tensor);
        }
        if end < data_bytes {
            return Err((None, Defect::Gap { start: end, end: data_bytes }));
        }
        Ok(Self { metadata: raw.metadata, tensors, data_start })
    }
}

/// Type and span of an entry, checked on their own.
fn check_entry(entry: &RawEntry, data_bytes: u64) -> Result<(StoredType, u64, u64), Defect> {
    let dtype = StoredType::from_name(&entry.dtype)
        .ok_or_else(|| Defect::UnknownType { name: entry.dtype.clone() })?;
    let overflow = || Defect::ShapeOverflow { shape: entry.shape.clone(), dtype };
    let elements = product(&entry.shape).ok_or_else(overflow)?;
    let needs = dtype.bytes(elements).ok_or_else(overflow)?;
    let [start, end] = entry.data_offsets;
    let holds = end.checked_sub(start).ok_or(Defect::OffsetsReversed { start, end })?;
    if needs != holds {
        return Err(Defect::SizeMismatch { shape: entry.shape.clone(), dtype, needs, holds });
    }
    if end > data_bytes {
        return Err(Defect::OutOfFile { end, available: data_bytes });
    }
    Ok((dtype, start, end))
}

/// The product of a shape. A zero anywhere makes it zero only if the other extents do not overflow before it.
pub(crate) fn product(shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(1u64, |n, &extent| n.checked_mul(extent))
}

#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

struct RawHeader {
    metadata: Vec<(String, String)>,
    tensors: Vec<(String, RawEntry)>,
}

/// Reads the header object; leaves the key it was at in `current`, so that an error can name the tensor.
struct HeaderSeed<'a> {
    current: &'a mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for HeaderSeed<'_> {
    type Value = RawHeader;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<RawHeader, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeaderSeed<'_> {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut raw = RawHeader { metadata: Vec::new(), tensors: Vec::new() };
        let mut seen_metadata = false;
        while let Some(key) = map.next_key::<String>()? {
            if key == "__metadata__" {
                if std::mem::replace(&mut seen_metadata, true) {
                    return Err(A::Error::custom("__metadata__ appears twice"));
                }
                raw.metadata = map.next_value::<Pairs>()?.0;
            } else {
                *self.current = Some(key);
                let entry = map.next_value::<RawEntry>()?;
                raw.tensors.extend(self.current.take().map(|key| (key, entry)));
            }
        }
        Ok(raw)
    }
}

/// A string-to-string object in file order, each key once.
struct Pairs(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor;
        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                let mut seen = HashSet::new();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    if !seen.insert(key.clone()) {
                        return Err(A::Error::custom("a key of __metadata__ appears twice"));
                    }
                    pairs.push((key, value));
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(PairsVisitor)
    }
}

/// An open safetensors or GGUF file.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    file: File,
    header: Header,
    by_name: HashMap<String, usize>,
    /// The tensors of a GGUF file that have blocks.
    blocks: Option<HashMap<String, Block>>,
}

/// The length of a file that can be read anywhere. Others are refused before they are opened: opening a pipe waits for who
/// writes to it.
pub(crate) fn regular_length(path: &Path) -> Result<u64, CheckpointError> {
    let io = |source| CheckpointError::file(path, Defect::Io { action: "open", source });
    let facts = std::fs::metadata(path).map_err(io)?;
    if facts.is_file() { Ok(facts.len()) } else { Err(CheckpointError::file(path, Defect::InputNotAFile)) }
}

impl Reader {
    /// Opens a file and checks its header.
    ///
    /// # Errors
    /// The defect of the file, with its name and the tensor's.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let io = |action| move |source| CheckpointError::file(path, Defect::Io { action, source });
        let length = regular_length(path)?;
        let file = File::open(path).map_err(io("open"))?;
        let failed =
            |(tensor, defect)| CheckpointError { file: path.to_owned(), tensor, defect: Box::new(defect) };
        // A safetensors file that began so would announce a header beyond the limit.
        let mut magic = [0; 4];
        let is_gguf = length >= 4 && read_exact_at(&file, &mut magic, 0).is_ok() && magic == gguf::MAGIC;
        let source = io::BufReader::new(&file);
        let (header, blocks) = if is_gguf {
            let (header, blocks) = gguf::parse(source, length).map_err(failed)?;
            (header, Some(blocks))
        } else {
            (Header::parse(source, length).map_err(failed)?, None)
        };
        let by_name = header.tensors.iter().enumerate().map(|(at, t)| (t.name.clone(), at)).collect();
        Ok(Self { path: path.to_owned(), file, header, by_name, blocks })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The checked header.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The tensors in the order of their bytes.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.header.tensors
    }

    /// Whether it is a GGUF file.
    pub const fn is_gguf(&self) -> bool {
        self.blocks.is_some()
    }

    /// The blocks of a tensor of a GGUF file, if it has them.
    pub fn block(&self, name: &str) -> Option<Block> {
        self.blocks.as_ref()?.get(name).copied()
    }

    /// The tensor called `name`.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&at| &self.header.tensors[at])
    }

    /// Fills `bytes` from a tensor of this file, starting `offset` bytes into it.
    ///
    /// # Errors
    /// The system's reason, or that the file has become shorter.
    pub fn read_at(&self, tensor: &TensorInfo, offset: u64, bytes: &mut [u8]) -> Result<(), CheckpointError> {
        let at = self.header.data_start + tensor.start + offset;
        debug_assert!(offset + bytes.len() as u64 <= tensor.bytes());
        read_exact_at(&self.file, bytes, at).map_err(|source| {
            let defect = match source.kind() {
                io::ErrorKind::UnexpectedEof => Defect::Shrunk,
                _ => Defect::Io { action: "read", source },
            };
            CheckpointError::tensor(&self.path, &tensor.name, defect)
        })
    }

    /// A whole tensor; for the small parts of quantized weights.
    ///
    /// # Errors
    /// As [`Reader::read_at`].
    pub fn read(&self, tensor: &TensorInfo) -> Result<Vec<u8>, CheckpointError> {
        let length = usize::try_from(tensor.bytes()).map_err(|_| {
            let source = io::Error::from(io::ErrorKind::OutOfMemory);
            CheckpointError::tensor(
                &self.path,
                &tensor.name,
                Defect::Io { action: "hold the tensor", source },
            )
        })?;
        let mut bytes = vec![0; length];
        self.read_at(tensor, 0, &mut bytes)?;
        Ok(bytes)
    }
}

/// Reads at an offset without moving a shared cursor.
#[cfg(unix)]
pub(crate) fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

/// Reads at an offset.
#[cfg(windows)]
pub(crate) fn read_exact_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                bytes = &mut bytes[count..];
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Header, (Option<String>, Defect)> {
        Header::parse(bytes, bytes.len() as u64)
    }

    #[test]
    fn reads_tensors_in_the_order_of_their_bytes() {
        let header = r#"{"__metadata__":{"format":"pt"},
            "b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}  "#;
        let header = parse(&file(header, 28)).unwrap();
        assert_eq!(header.metadata, [("format".to_owned(), "pt".to_owned())]);
        let seen: Vec<_> =
            header.tensors.iter().map(|t| (t.name.as_str(), t.elements(), t.bytes())).collect();
        assert_eq!(seen, [("a", 2, 4), ("b", 6, 24)]);
    }

    #[test]
    fn zero_length_tensors_and_scalars_are_tensors() {
        let header = r#"{"e":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]}}"#;
        let header = parse(&file(header, 8)).unwrap();
        assert_eq!(header.tensors[0].elements(), 0);
        assert_eq!(header.tensors[1].elements(), 1);
    }

    #[test]
    fn an_empty_checkpoint_is_one() {
        assert_eq!(parse(&file("{}", 0)).unwrap().tensors, []);
    }

    /// Each defect, and the tensor that the error must name.
    #[test]
    fn every_defect_is_told_apart() {
        let one = |dtype: &str, shape: &str, offsets: &str| {
            format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        let pair = |a: &str, b: &str| {
            format!(
                r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":{a}}},"b":{{"dtype":"U8","shape":[4],"data_offsets":{b}}}}}"#
            )
        };
        type Expect = fn(&Defect) -> bool;
        let cases: Vec<(&str, Vec<u8>, Option<&str>, Expect)> = vec![
            ("empty file", vec![], None, |d| matches!(d, Defect::TooShort { length: 0 })),
            ("seven bytes", vec![0; 7], None, |d| matches!(d, Defect::TooShort { length: 7 })),
            ("huge length", u64::MAX.to_le_bytes().to_vec(), None, |d| {
                matches!(d, Defect::HeaderTooLong { length: u64::MAX, .. })
            }),
            ("cut header", 50u64.to_le_bytes().to_vec(), None, |d| {
                matches!(d, Defect::HeaderTruncated { length: 50, available: 0 })
            }),
            ("not UTF-8", [&2u64.to_le_bytes()[..], &[b'{', 0xff]].concat(), None, |d| {
                matches!(d, Defect::HeaderNotUtf8 { at: 1 })
            }),
            ("not JSON", file("{{", 0), None, |d| matches!(d, Defect::HeaderJson { .. })),
            ("an array", file("[]", 0), None, |d| matches!(d, Defect::HeaderJson { .. })),
            ("two objects", file("{}{}", 0), None, |d| matches!(d, Defect::HeaderJson { .. })),
            (
                "no dtype",
                file(r#"{"w":{"shape":[],"data_offsets":[0,1]}}"#, 1),
                Some("w"),
                |d| matches!(d, Defect::HeaderJson { message } if message.contains("dtype")),
            ),
            ("negative extent", file(&one("U8", "[-1]", "[0,1]"), 1), Some("w"), |d| {
                matches!(d, Defect::HeaderJson { .. })
            }),
            ("three offsets", file(&one("U8", "[1]", "[0,1,2]"), 2), Some("w"), |d| {
                matches!(d, Defect::HeaderJson { .. })
            }),
            ("metadata of numbers", file(r#"{"__metadata__":{"a":1}}"#, 0), None, |d| {
                matches!(d, Defect::HeaderJson { .. })
            }),
            (
                "unknown dtype",
                file(&one("F128", "[1]", "[0,16]"), 16),
                Some("w"),
                |d| matches!(d, Defect::UnknownType { name } if name == "F128"),
            ),
            ("shape overflow", file(&one("U8", "[4294967296,4294967296]", "[0,0]"), 0), Some("w"), |d| {
                matches!(d, Defect::ShapeOverflow { .. })
            }),
            ("byte overflow", file(&one("F64", "[4611686018427387904]", "[0,0]"), 0), Some("w"), |d| {
                matches!(d, Defect::ShapeOverflow { .. })
            }),
            ("five billion elements", file(&one("F32", "[5000000000]", "[0,16]"), 16), Some("w"), |d| {
                matches!(d, Defect::SizeMismatch { needs: 20_000_000_000, holds: 16, .. })
            }),
            ("wrong dtype size", file(&one("F16", "[4]", "[0,16]"), 16), Some("w"), |d| {
                matches!(d, Defect::SizeMismatch { needs: 8, holds: 16, .. })
            }),
            ("backwards", file(&one("U8", "[4]", "[4,0]"), 4), Some("w"), |d| {
                matches!(d, Defect::OffsetsReversed { start: 4, end: 0 })
            }),
            ("past the end", file(&one("U8", "[8]", "[0,8]"), 4), Some("w"), |d| {
                matches!(d, Defect::OutOfFile { end: 8, available: 4 })
            }),
            (
                "overlap",
                file(&pair("[0,4]", "[2,6]"), 6),
                Some("b"),
                |d| matches!(d, Defect::Overlap { other, start: 2, other_end: 4 } if other == "a"),
            ),
            ("same bytes", file(&pair("[0,4]", "[0,4]"), 4), Some("b"), |d| {
                matches!(d, Defect::Overlap { .. })
            }),
            ("hole", file(&pair("[0,4]", "[5,9]"), 9), None, |d| {
                matches!(d, Defect::Gap { start: 4, end: 5 })
            }),
            ("hole in front", file(&one("U8", "[4]", "[1,5]"), 5), None, |d| {
                matches!(d, Defect::Gap { start: 0, end: 1 })
            }),
            ("bytes left over", file(&one("U8", "[4]", "[0,4]"), 6), None, |d| {
                matches!(d, Defect::Gap { start: 4, end: 6 })
            }),
            (
                "duplicate key",
                file(
                    r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#,
                    2,
                ),
                Some("w"),
                |d| matches!(d, Defect::DuplicateTensor),
            ),
            (
                "duplicate field",
                file(r#"{"w":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}}"#, 1),
                Some("w"),
                |d| matches!(d, Defect::HeaderJson { message } if message.contains("duplicate")),
            ),
        ];
        for (what, bytes, tensor, expected) in cases {
            let (name, defect) = parse(&bytes).expect_err(what);
            assert!(expected(&defect), "{what}: {defect:?}");
            assert_eq!(name.as_deref(), tensor, "{what}");
            assert!(defect.help().is_some(), "{what} has no remedy");
        }
    }

    #[test]
    fn deep_nesting_is_refused_without_using_up_the_stack() {
        let header = format!(r#"{{"w":{}"#, "[".repeat(1_000_000));
        assert!(matches!(parse(&file(&header, 0)), Err((Some(_), Defect::HeaderJson { .. }))));
        let header = format!(r#"{{"w":{{"x":{}"#, "[".repeat(1_000_000));
        assert!(matches!(parse(&file(&header, 0)), Err((Some(_), Defect::HeaderJson { .. }))));
    }
}
