//! Defects of checkpoints, as data.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::stored::StoredType;
use crate::paths::Shown;

/// A defect of a checkpoint file: where, in which tensor, and what.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}{defect}", Shown(file), Named(tensor.as_deref()))]
pub struct CheckpointError {
    /// The file.
    pub file: PathBuf,
    /// The tensor, where the defect belongs to one.
    pub tensor: Option<String>,
    /// The defect.
    #[source]
    pub defect: Box<Defect>,
}

impl CheckpointError {
    /// A defect of the file as a whole.
    pub fn file(file: &Path, defect: Defect) -> Self {
        Self { file: file.to_owned(), tensor: None, defect: Box::new(defect) }
    }

    /// A defect of one tensor.
    pub fn tensor(file: &Path, tensor: &str, defect: Defect) -> Self {
        Self { file: file.to_owned(), tensor: Some(tensor.to_owned()), defect: Box::new(defect) }
    }

    /// The user's remedy.
    pub fn help(&self) -> Option<String> {
        self.defect.help()
    }
}

/// Prints `tensor 'x': `, or nothing.
struct Named<'a>(Option<&'a str>);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |name| write!(f, "tensor {}: ", Quoted(name)))
    }
}

/// A name from a file as it is safe to print: quoted, control characters escaped, cut where it is absurdly long.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<'a>(pub &'a str);

impl Quoted<'_> {
    const LONGEST: usize = 160;
}

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown: String = self.0.chars().take(Self::LONGEST).flat_map(char::escape_debug).collect();
        if self.0.chars().nth(Self::LONGEST).is_some() {
            shown.push_str("...");
        }
        // `escape_debug` escapes both kinds of quote; inside single quotes the double one needs none.
        write!(f, "'{}'", shown.replace("\\\"", "\""))
    }
}

/// The defect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Defect {
    /// The file cannot be opened, read or written.
    #[error("cannot {action}: {source}")]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// Neither a file nor a folder that holds a checkpoint.
    #[error("holds no model.safetensors.index.json and no model.safetensors")]
    NoCheckpoint,
    /// Shorter than the length field.
    #[error("is {length} bytes long, a safetensors file starts with an 8-byte header length")]
    TooShort {
        /// Length of the file.
        length: u64,
    },
    /// The header length cannot be true.
    #[error("claims a header of {length} bytes, the limit is {limit}")]
    HeaderTooLong {
        /// The number in the file.
        length: u64,
        /// The longest that is accepted.
        limit: u64,
    },
    /// The file ends inside its header.
    #[error("ends inside its header: {length} bytes are announced, {available} are there")]
    HeaderTruncated {
        /// The number in the file.
        length: u64,
        /// The bytes that there are.
        available: u64,
    },
    /// The header is not text.
    #[error("header is not UTF-8 from byte {at} on")]
    HeaderNotUtf8 {
        /// Offset of the first bad byte in the header.
        at: usize,
    },
    /// The header is not the JSON that it should be.
    #[error("header: {message}")]
    HeaderJson {
        /// The parser's words, with line and column.
        message: String,
    },
    /// Two tensors of one name.
    #[error("appears twice in the header")]
    DuplicateTensor,
    /// A type that the format does not have.
    #[error("has the unknown dtype {}", Quoted(name))]
    UnknownType {
        /// As spelled in the header.
        name: String,
    },
    /// The number of elements or bytes does not fit 64 bits, or sub-byte elements do not fill their bytes.
    #[error("shape {shape:?} of {dtype} has no size in bytes")]
    ShapeOverflow {
        /// The shape.
        shape: Vec<u64>,
        /// The element type.
        dtype: StoredType,
    },
    /// Offsets and shape disagree.
    #[error("shape {shape:?} of {dtype} takes {needs} bytes, data_offsets span {holds}")]
    SizeMismatch {
        /// The shape.
        shape: Vec<u64>,
        /// The element type.
        dtype: StoredType,
        /// Bytes by shape.
        needs: u64,
        /// Bytes by offsets.
        holds: u64,
    },
    /// The end lies before the start.
    #[error("data_offsets [{start}, {end}] run backwards")]
    OffsetsReversed {
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
    },
    /// The tensor reaches past the end of the file.
    #[error("ends at byte {end} of the data, the file holds {available}")]
    OutOfFile {
        /// One past the last byte.
        end: u64,
        /// Bytes of data in the file.
        available: u64,
    },
    /// Two tensors share bytes.
    #[error(
        "overlaps tensor {}: it starts at byte {start} of the data, the other ends at {other_end}",
        Quoted(other)
    )]
    Overlap {
        /// The other tensor.
        other: String,
        /// Start of this one.
        start: u64,
        /// End of the other.
        other_end: u64,
    },
    /// Bytes that belong to no tensor.
    #[error("bytes {start} to {end} of the data belong to no tensor")]
    Gap {
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
    },
    /// The file got shorter while it was read.
    #[error("file ended while the tensor was read")]
    Shrunk,
    /// A GGUF file is not what it should be.
    #[error("GGUF: {message}")]
    Gguf {
        /// The defect.
        message: String,
    },
    /// The shard index is not what it should be.
    #[error("index: {message}")]
    Index {
        /// The defect.
        message: String,
    },
    /// A shard name that leaves the folder.
    #[error("index names the shard {}, which is not a plain file name", Quoted(shard))]
    ShardName {
        /// As in the index.
        shard: String,
    },
    /// The index and the shards disagree.
    #[error("is listed in the index for shard {}, which does not hold it", Quoted(shard))]
    NotInShard {
        /// The shard.
        shard: String,
    },
    /// Two shards hold it.
    #[error("is in two shards, {} and {}", Quoted(first), Quoted(second))]
    InTwoShards {
        /// One shard.
        first: String,
        /// The other.
        second: String,
    },
    /// NaN or infinite where a number is needed.
    #[error("element {index} is {value}, which no code stands for")]
    NonFinite {
        /// Flat index.
        index: u64,
        /// The value.
        value: f64,
    },
    /// A scale is larger than its type can hold.
    #[error("numbers up to {value} need a scale that {dtype} cannot hold")]
    ScaleRange {
        /// The largest number.
        value: f32,
        /// The type of scales.
        dtype: StoredType,
    },
    /// The tensors of a quantized weight do not fit together.
    #[error("quantized weight: {message}")]
    Scheme {
        /// The part that does not fit.
        message: String,
    },
    /// A quantized weight has no place in the format that was asked for.
    #[error("{message}")]
    Unfit {
        /// Which weight, and what it lacks.
        message: String,
    },
    /// A part of a quantized weight has another type or shape than the others ask for.
    #[error("quantized weight: {} is {dtype} {shape:?}, expected {expected}", Quoted(key))]
    PartShape {
        /// The key.
        key: String,
        /// Its type.
        dtype: StoredType,
        /// Its shape.
        shape: Vec<u64>,
        /// Type and shape that the others ask for.
        expected: String,
    },
    /// The configuration says otherwise than the tensors.
    #[error(
        "quantized weight: the configuration declares {}, the tensors have {}",
        Quoted(declared),
        Quoted(found)
    )]
    Declared {
        /// In the configuration.
        declared: String,
        /// In the file.
        found: String,
    },
    /// A column is in a group that there is not.
    #[error("quantized weight: {} puts column {column} into group {group} of {groups}", Quoted(key))]
    GroupIndex {
        /// The key.
        key: String,
        /// The column.
        column: u64,
        /// The group that it is said to be in.
        group: i64,
        /// How many there are.
        groups: u64,
    },
    /// The configuration beside the checkpoint is not what it should be.
    #[error("{message}")]
    Config {
        /// The defect.
        message: String,
    },
    /// A part of a quantized weight is missing.
    #[error("quantized weight: {} is missing", Quoted(key))]
    MissingPart {
        /// The key.
        key: String,
    },
    /// A tensor that the output would hold twice.
    #[error("the output would hold {} twice, the input has a tensor of that name already", Quoted(key))]
    KeyTaken {
        /// The key.
        key: String,
    },
    /// The output exists.
    #[error("exists already")]
    OutputExists,
    /// The input is a pipe, a device or the like.
    #[error("is not a regular file")]
    InputNotAFile,
    /// The output is not something that can be replaced.
    #[error("is not a regular file")]
    NotAFile,
}

impl Defect {
    /// The user's remedy.
    pub fn help(&self) -> Option<String> {
        Some(match self {
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => "check the path".to_owned(),
                io::ErrorKind::PermissionDenied => "check the permissions of the file and its folder".to_owned(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                    "free some space or name an output on another disk; nothing was left behind".to_owned()
                }
                _ => return None,
            },
            Self::NoCheckpoint => "name the .safetensors or .gguf file, or the index".to_owned(),
            Self::TooShort { .. } | Self::HeaderTruncated { .. } | Self::OutOfFile { .. } | Self::Shrunk => {
                "the file was cut short or is still being written: fetch it again".to_owned()
            }
            Self::HeaderTooLong { .. } | Self::HeaderNotUtf8 { .. } | Self::HeaderJson { .. } => {
                "this is not a safetensors file, or it is damaged: a pickled .bin or .pt must be converted first".to_owned()
            }
            Self::DuplicateTensor
            | Self::ShapeOverflow { .. }
            | Self::SizeMismatch { .. }
            | Self::OffsetsReversed { .. }
            | Self::Overlap { .. }
            | Self::Gap { .. } => "the header is damaged or hostile: fetch the file again from a source you trust".to_owned(),
            Self::UnknownType { .. } => {
                let known: Vec<_> = StoredType::ALL.iter().map(|t| t.name()).collect();
                format!("known are {}", known.join(", "))
            }
            Self::Gguf { .. } => "fetch the file again, or one with other types: `warpwright dequantize --help` lists them".to_owned(),
            Self::Index { .. } | Self::NotInShard { .. } | Self::InTwoShards { .. } => {
                "index and shards do not belong together: fetch the whole set again".to_owned()
            }
            Self::ShardName { .. } => "shards must lie beside the index".to_owned(),
            Self::Unfit { .. } => "name another format or --group-size, or use `warpwright dequantize`".to_owned(),
            Self::ScaleRange { .. } => {
                "name another format; `warpwright quantize --skip NAME` copies a weight through unquantized".to_owned()
            }
            Self::NonFinite { .. } => {
                "repair the weight; `warpwright quantize --skip NAME` copies it through unquantized".to_owned()
            }
            Self::Config { .. } | Self::Declared { .. } => {
                "the configuration belongs to another checkpoint, or is damaged: fetch both again".to_owned()
            }
            Self::Scheme { .. } | Self::MissingPart { .. } | Self::PartShape { .. } | Self::GroupIndex { .. } => {
                "the checkpoint was not written completely, or by another convention: `warpwright inspect` shows its tensors"
                    .to_owned()
            }
            Self::KeyTaken { .. } => "is the input quantized already? dequantize it first, or --skip this weight".to_owned(),
            Self::OutputExists => "name another output, or replace it with --force".to_owned(),
            Self::InputNotAFile => "write it to a file first: checkpoints are not read in order".to_owned(),
            Self::NotAFile => "name a path for a new file".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_made_printable() {
        assert_eq!(Quoted("a.weight").to_string(), "'a.weight'");
        assert_eq!(Quoted("\u{1b}[2J\n").to_string(), "'\\u{1b}[2J\\n'");
        let long = "x".repeat(10_000);
        assert_eq!(Quoted(&long).to_string().len(), 160 + 3 + 2);
    }

    #[test]
    fn messages_name_file_and_tensor() {
        let error = CheckpointError::tensor(Path::new("m.safetensors"), "w", Defect::DuplicateTensor);
        assert_eq!(error.to_string(), "m.safetensors: tensor 'w': appears twice in the header");
        let error = CheckpointError::file(Path::new("m.safetensors"), Defect::TooShort { length: 3 });
        assert!(error.to_string().starts_with("m.safetensors: is 3 bytes long"));
        assert!(error.help().is_some());
    }
}
