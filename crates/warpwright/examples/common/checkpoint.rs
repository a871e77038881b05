//! Checkpoints: safetensors files, whose tensors are read one at a time, as they are stored or from 4-bit codes.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::Path;
use std::rc::Rc;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::de::DeserializeOwned;
use warpwright::{DType, Stream, Tensor, cast};

use super::Result;
use super::codes::Codes;
use super::linear::Weight;

/// Longest header that is read.
const MAX_HEADER: u64 = 100 << 20;

/// A safetensors file, or its bytes in memory.
trait Source: Read + Seek {}

impl<T: Read + Seek> Source for T {}

/// Where a tensor is.
struct Place {
    /// The number of its file.
    source: usize,
    /// The byte of the file that its offsets count from.
    first: u64,
    info: TensorInfo,
}

/// The tensors of a model by name.
pub(crate) struct Checkpoint {
    sources: Vec<Box<dyn Source>>,
    places: HashMap<String, Place>,
}

/// A JSON file of a checkpoint's folder.
pub(crate) fn read_json<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<T> {
    let path = folder.join(name);
    let text = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()).into())
}

impl Checkpoint {
    /// Every safetensors file of a folder.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let mut checkpoint = Self { sources: Vec::new(), places: HashMap::new() };
        for entry in fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "safetensors") {
                let added = checkpoint.add(File::open(&path)?);
                added.map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
        match checkpoint.sources.len() {
            0 => Err(format!("{}: no safetensors file here", folder.display()).into()),
            _ => Ok(checkpoint),
        }
    }

    /// The bytes of one safetensors file.
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        let mut checkpoint = Self { sources: Vec::new(), places: HashMap::new() };
        checkpoint.add(Cursor::new(bytes))?;
        Ok(checkpoint)
    }

    /// Takes in the header of a file: its length in 8 bytes, then JSON, and the tensors behind it.
    fn add(&mut self, mut source: impl Source + 'static) -> Result<()> {
        let end = source.seek(SeekFrom::End(0))?;
        source.rewind()?;
        let mut length = [0; 8];
        source.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > end.min(MAX_HEADER) {
            return Err(format!("a header of {length} bytes").into());
        }
        let mut header = vec![0; length as usize];
        source.read_exact(&mut header)?;
        let header: Metadata = serde_json::from_slice(&header)?;
        let first = 8 + length;
        for (name, info) in header.tensors() {
            let (begin, stop) = info.data_offsets;
            if begin > stop || first.checked_add(stop as u64).is_none_or(|stop| stop > end) {
                return Err(format!("{name} is outside of the file").into());
            }
            self.places.insert(name, Place { source: self.sources.len(), first, info: info.clone() });
        }
        self.sources.push(Box::new(source));
        Ok(())
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// The element type that a tensor is stored in, if it is here, and of one that there is.
    pub(crate) fn dtype(&self, name: &str) -> Option<DType> {
        self.places.get(name).and_then(|place| dtype_of(place.info.dtype))
    }

    fn read(&mut self, name: &str) -> Result<(TensorInfo, Vec<u8>)> {
        let place = self.places.get(name).ok_or_else(|| format!("the checkpoint has no {name}"))?;
        let (begin, stop) = place.info.data_offsets;
        let mut bytes = vec![0; stop - begin];
        let source = &mut self.sources[place.source];
        source.seek(SeekFrom::Start(place.first + begin as u64))?;
        source.read_exact(&mut bytes)?;
        Ok((place.info.clone(), bytes))
    }

    /// The shape of a tensor.
    pub(crate) fn shape(&self, name: &str) -> Result<Vec<usize>> {
        let place = self.places.get(name).ok_or_else(|| format!("the checkpoint has no {name}"))?;
        Ok(place.info.shape.clone())
    }

    /// The bytes of a tensor.
    pub(crate) fn bytes(&mut self, name: &str) -> Result<Vec<u8>> {
        Ok(self.read(name)?.1)
    }

    /// Integers of 32 or 64 bits.
    pub(crate) fn integers(&mut self, name: &str) -> Result<Vec<i64>> {
        let (info, bytes) = self.read(name)?;
        match info.dtype {
            Dtype::I64 => Ok(bytes.as_chunks().0.iter().map(|x| i64::from_le_bytes(*x)).collect()),
            Dtype::I32 => Ok(bytes.as_chunks().0.iter().map(|x| i32::from_le_bytes(*x).into()).collect()),
            other => Err(format!("{name} is {other:?}, expected I64 or I32").into()),
        }
    }

    /// The one element of a tensor.
    pub(crate) fn number(&mut self, stream: &Stream, name: &str) -> Result<f32> {
        let numbers = self.tensor(stream, name, DType::F32)?.to_vec_on::<f32>(stream)?;
        match numbers[..] {
            [number] => Ok(number),
            _ => Err(format!("{name} has {} elements, expected 1", numbers.len()).into()),
        }
    }

    /// A tensor as it is stored.
    pub(crate) fn stored(&mut self, stream: &Stream, name: &str) -> Result<Tensor> {
        let (info, bytes) = self.read(name)?;
        let dtype = dtype_of(info.dtype).ok_or_else(|| format!("{name} is {:?}", info.dtype))?;
        Ok(Tensor::from_bytes(stream.device(), dtype, &bytes, &info.shape)?)
    }

    /// A tensor in type `dtype`, whatever it is stored in; codes of NF4 and FP4 as bitsandbytes and `warpwright quantize` write them.
    pub(crate) fn tensor(&mut self, stream: &Stream, name: &str, dtype: DType) -> Result<Tensor> {
        if let Some(codes) = Codes::load(self, stream, name)? {
            return codes.floats(stream, dtype).map_err(|error| format!("{name}: {error}").into());
        }
        let stored = self.stored(stream, name)?;
        if stored.dtype() == dtype { Ok(stored) } else { Ok(cast(stream, &stored, dtype)?) }
    }

    /// The weight of a layer: its codes if it is stored as such, else floats of type `dtype`.
    pub(crate) fn weight(&mut self, stream: &Stream, name: &str, dtype: DType) -> Result<Weight> {
        match Codes::load(self, stream, name)? {
            Some(codes) => Ok(Weight::Codes(Box::new(codes))),
            None => Ok(Weight::Floats(Rc::new(self.tensor(stream, name, dtype)?))),
        }
    }
}

fn dtype_of(stored: Dtype) -> Option<DType> {
    match stored {
        Dtype::F64 => Some(DType::F64),
        Dtype::F32 => Some(DType::F32),
        Dtype::F16 => Some(DType::F16),
        Dtype::BF16 => Some(DType::BF16),
        Dtype::U8 => Some(DType::U8),
        Dtype::I32 => Some(DType::I32),
        Dtype::F8_E4M3 => Some(DType::F8E4M3),
        _ => None,
    }
}
