//! Writing safetensors as a stream: the header is computed from names, types and shapes alone and goes out first,
//! then each tensor's bytes as they become known, in any order between tensors.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};

use super::atomic::{AtomicFile, Storage};
use super::error::{CheckpointError, Defect};
use super::safetensors::product;
use super::stored::StoredType;

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its key.
    pub name: String,
    /// Element type.
    pub dtype: StoredType,
    /// Shape.
    pub shape: Vec<u64>,
}

/// Where everything of a file will lie.
#[derive(Clone, Debug)]
pub struct Layout {
    header: Vec<u8>,
    /// Span of each tensor from the start of the file, in the order in which the tensors were given.
    spans: Vec<(u64, u64)>,
    names: Vec<String>,
    length: u64,
}

impl Layout {
    /// Lays out `tensors`. They are ordered by falling alignment (then as given), so that each starts at a multiple of
    /// its element size and a reader may map the file.
    ///
    /// # Errors
    /// A name is given twice, or a shape has no size. `file` is for the message.
    pub fn new(
        file: &Path,
        metadata: &[(String, String)],
        tensors: &[TensorSpec],
    ) -> Result<Self, CheckpointError> {
        let mut order: Vec<usize> = (0..tensors.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(tensors[at].dtype.alignment()));
        let mut header = Map::new();
        if !metadata.is_empty() {
            let pairs: Map<String, Value> =
                metadata.iter().map(|(k, v)| (k.clone(), Value::from(v.as_str()))).collect();
            header.insert("__metadata__".to_owned(), Value::Object(pairs));
        }
        let mut seen = HashSet::new();
        let mut spans = vec![(0, 0); tensors.len()];
        let mut end = 0u64;
        for at in order {
            let TensorSpec { name, dtype, shape } = &tensors[at];
            if !seen.insert(name.as_str()) || name == "__metadata__" {
                return Err(CheckpointError::tensor(file, name, Defect::KeyTaken { key: name.clone() }));
            }
            let start = end;
            end = product(shape)
                .and_then(|elements| dtype.bytes(elements))
                .and_then(|bytes| start.checked_add(bytes))
                .ok_or_else(|| {
                    let defect = Defect::ShapeOverflow { shape: shape.clone(), dtype: *dtype };
                    CheckpointError::tensor(file, name, defect)
                })?;
            spans[at] = (start, end);
            header.insert(
                name.clone(),
                json!({"dtype": dtype.name(), "shape": shape, "data_offsets": [start, end]}),
            );
        }
        let mut text = Value::Object(header).to_string();
        // The data starts at a multiple of eight bytes; blanks are what the format allows for it.
        text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        let base = bytes.len() as u64;
        for span in &mut spans {
            *span = (span.0 + base, span.1 + base);
        }
        let names = tensors.iter().map(|t| t.name.clone()).collect();
        Ok(Self { header: bytes, spans, names, length: base + end })
    }

    /// Length of the whole file.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Bytes of the tensor that was given as number `at`.
    pub fn tensor_bytes(&self, at: usize) -> u64 {
        self.spans[at].1 - self.spans[at].0
    }
}

/// Writes a file of a known layout.
#[derive(Debug)]
pub struct Writer<S> {
    storage: S,
    target: PathBuf,
    layout: Layout,
    /// How many bytes of each tensor are written.
    written: Vec<AtomicU64>,
}

impl Writer<AtomicFile> {
    /// Begins the file `target`; see [`AtomicFile::create`].
    ///
    /// # Errors
    /// The target cannot be created or written.
    pub fn create(target: &Path, replace: bool, layout: Layout) -> Result<Self, CheckpointError> {
        let storage = AtomicFile::create(target, replace)?;
        Self::new(storage, target, layout)
    }

    /// Makes the file durable and gives it its name.
    ///
    /// # Errors
    /// As [`AtomicFile::commit`].
    pub fn commit(self) -> Result<(), CheckpointError> {
        self.finish()?.commit()
    }
}

impl<S: Storage> Writer<S> {
    /// Writes the header to `storage`; `target` is for messages.
    ///
    /// # Errors
    /// The system's reason.
    pub fn new(storage: S, target: &Path, layout: Layout) -> Result<Self, CheckpointError> {
        storage
            .write_all_at(&layout.header, 0)
            .map_err(|source| CheckpointError::file(target, Defect::Io { action: "write", source }))?;
        let written = layout.spans.iter().map(|_| AtomicU64::new(0)).collect();
        Ok(Self { storage, target: target.to_owned(), layout, written })
    }

    /// Where everything lies.
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Writes bytes of the tensor that was given to the layout as number `at`, from byte `offset` of it on. Several threads may
    /// write at a time; each byte is written once.
    ///
    /// # Errors
    /// The system's reason, or that the bytes pass the tensor's end.
    pub fn write_at(&self, at: usize, offset: u64, bytes: &[u8]) -> Result<(), CheckpointError> {
        let (start, end) = self.layout.spans[at];
        let failed = |source| {
            CheckpointError::tensor(
                &self.target,
                &self.layout.names[at],
                Defect::Io { action: "write", source },
            )
        };
        let length = bytes.len() as u64;
        if offset.checked_add(length).is_none_or(|behind| behind > end - start) {
            return Err(failed(io::Error::other("more bytes than the shape has")));
        }
        self.storage.write_all_at(bytes, start + offset).map_err(failed)?;
        self.written[at].fetch_add(length, Ordering::Relaxed);
        Ok(())
    }

    /// Writes the bytes behind those of tensor `at` that are written already.
    ///
    /// # Errors
    /// As [`Writer::write_at`].
    pub fn append(&mut self, at: usize, bytes: &[u8]) -> Result<(), CheckpointError> {
        let offset = *self.written[at].get_mut();
        self.write_at(at, offset, bytes)
    }

    /// Reads back what was written of tensor `at`, from byte `offset` of it on.
    ///
    /// # Errors
    /// The system's reason.
    pub fn read_back(&self, at: usize, offset: u64, bytes: &mut [u8]) -> Result<(), CheckpointError> {
        self.storage.read_exact_at(bytes, self.layout.spans[at].0 + offset).map_err(|source| {
            let defect = Defect::Io { action: "read back", source };
            CheckpointError::tensor(&self.target, &self.layout.names[at], defect)
        })
    }

    /// Checks that every tensor is complete and hands the storage back.
    ///
    /// # Errors
    /// The first tensor that is not.
    pub fn finish(self) -> Result<S, CheckpointError> {
        for (at, written) in self.written.iter().enumerate() {
            if written.load(Ordering::Relaxed) != self.layout.tensor_bytes(at) {
                let source = io::Error::other("fewer bytes than the shape has");
                let defect = Defect::Io { action: "finish", source };
                return Err(CheckpointError::tensor(&self.target, &self.layout.names[at], defect));
            }
        }
        Ok(self.storage)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::safetensors::{Header, Reader};
    use super::*;

    fn spec(name: &str, dtype: StoredType, shape: &[u64]) -> TensorSpec {
        TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() }
    }

    /// Memory that is full after some bytes.
    #[derive(Debug)]
    struct Disk {
        bytes: Mutex<Vec<u8>>,
        room: usize,
    }

    fn disk(room: usize) -> Disk {
        Disk { bytes: Mutex::default(), room }
    }

    impl Storage for Disk {
        fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
            let end = usize::try_from(offset).unwrap() + bytes.len();
            if end > self.room {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let mut written = self.bytes.lock().unwrap();
            let length = written.len().max(end);
            written.resize(length, 0);
            written[end - bytes.len()..end].copy_from_slice(bytes);
            Ok(())
        }

        fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
            let start = usize::try_from(offset).unwrap();
            bytes.copy_from_slice(&self.bytes.lock().unwrap()[start..start + bytes.len()]);
            Ok(())
        }
    }

    #[test]
    fn what_is_written_reads_back_and_is_aligned() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("m.safetensors");
        let specs = [
            spec("codes", StoredType::U8, &[3, 1]),
            spec("half", StoredType::BF16, &[2]),
            spec("empty", StoredType::F32, &[0, 4]),
            spec("wide \"quoted\"", StoredType::F64, &[]),
        ];
        let metadata = [("format".to_owned(), "pt".to_owned())];
        let layout = Layout::new(&target, &metadata, &specs).unwrap();
        let length = layout.length();
        let mut writer = Writer::create(&target, false, layout).unwrap();
        writer.append(0, &[1, 2]).unwrap();
        writer.append(3, &2.5f64.to_le_bytes()).unwrap();
        writer.append(0, &[3]).unwrap();
        writer.append(1, &[9; 4]).unwrap();
        let mut back = [0; 2];
        writer.read_back(0, 1, &mut back).unwrap();
        assert_eq!(back, [2, 3]);
        writer.commit().unwrap();

        assert_eq!(std::fs::metadata(&target).unwrap().len(), length);
        let reader = Reader::open(&target).unwrap();
        assert_eq!(reader.header().metadata, metadata);
        assert_eq!(reader.header().data_start % 8, 0);
        for tensor in reader.tensors() {
            assert_eq!(tensor.start % tensor.dtype.alignment(), 0, "{}", tensor.name);
            let given = specs.iter().find(|s| s.name == tensor.name).unwrap();
            assert_eq!((given.dtype, &given.shape), (tensor.dtype, &tensor.shape));
        }
        assert_eq!(reader.read(reader.get("codes").unwrap()).unwrap(), [1, 2, 3]);
        assert_eq!(reader.read(reader.get("wide \"quoted\"").unwrap()).unwrap(), 2.5f64.to_le_bytes());
        assert_eq!(reader.get("empty").unwrap().bytes(), 0);
    }

    #[test]
    fn too_many_too_few_and_twice_are_refused() {
        let target = Path::new("m");
        let layout = Layout::new(target, &[], &[spec("w", StoredType::U8, &[2])]).unwrap();
        let mut writer = Writer::new(disk(1000), target, layout).unwrap();
        assert!(writer.append(0, &[0; 3]).unwrap_err().to_string().contains("more bytes"));
        writer.append(0, &[0]).unwrap();
        assert!(writer.finish().unwrap_err().to_string().contains("fewer bytes"));
        let twice = [spec("w", StoredType::U8, &[2]), spec("w", StoredType::F32, &[2])];
        let error = Layout::new(target, &[], &twice).unwrap_err();
        assert!(matches!(*error.defect, Defect::KeyTaken { .. }));
        let huge = [spec("w", StoredType::F32, &[1 << 40, 1 << 40])];
        assert!(matches!(*Layout::new(target, &[], &huge).unwrap_err().defect, Defect::ShapeOverflow { .. }));
    }

    #[test]
    fn a_full_disk_is_an_error_that_names_the_tensor() {
        let target = Path::new("m.safetensors");
        let layout = Layout::new(target, &[], &[spec("w", StoredType::U8, &[100])]).unwrap();
        let header = usize::try_from(layout.length()).unwrap() - 100;
        let full = Writer::new(disk(4), target, layout.clone()).unwrap_err();
        assert!(full.help().unwrap().contains("free some space"));
        let mut writer = Writer::new(disk(header + 50), target, layout).unwrap();
        writer.append(0, &[0; 50]).unwrap();
        let full = writer.append(0, &[0; 50]).unwrap_err();
        assert!(full.to_string().starts_with("m.safetensors: tensor 'w': cannot write"));
        assert!(full.help().unwrap().contains("nothing was left behind"));
    }

    #[test]
    fn the_header_is_what_the_reader_accepts() {
        let target = Path::new("m");
        let layout = Layout::new(target, &[], &[]).unwrap();
        let disk = Writer::new(disk(100), target, layout).unwrap().finish().unwrap();
        let bytes = disk.bytes.into_inner().unwrap();
        let header = Header::parse(&bytes[..], bytes.len() as u64).unwrap();
        assert!(header.tensors.is_empty());
    }
}
