//! A checkpoint as a whole: one file, or several with a `model.safetensors.index.json`.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::atomic::folder_of;
use super::error::{CheckpointError, Defect};
use super::safetensors::{Reader, TensorInfo, regular_length};

/// File name of an index.
pub const INDEX: &str = "model.safetensors.index.json";
/// File name of a checkpoint of one file.
pub const SINGLE: &str = "model.safetensors";
/// The longest index that is read.
const MAX_INDEX: u64 = 100_000_000;

/// An open checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    shards: Vec<Reader>,
    by_name: HashMap<String, (usize, usize)>,
    index: Option<Index>,
}

/// The facts of an index beside the map.
#[derive(Clone, Debug, Default)]
struct Index {
    metadata: Map<String, Value>,
}

/// A tensor and the shard that holds it.
#[derive(Clone, Copy, Debug)]
pub struct Located<'a> {
    /// The shard.
    pub shard: &'a Reader,
    /// The tensor.
    pub tensor: &'a TensorInfo,
}

#[derive(Deserialize)]
struct RawIndex {
    #[serde(default)]
    metadata: Map<String, Value>,
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens a `.safetensors` file, an index, or a folder that holds either.
    ///
    /// # Errors
    /// The defect, with file and tensor.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        if path.is_dir() {
            let (index, single) = (path.join(INDEX), path.join(SINGLE));
            return if index.exists() {
                Self::open_index(&index)
            } else if single.exists() {
                Self::open_single(&single)
            } else {
                Err(CheckpointError::file(path, Defect::NoCheckpoint))
            };
        }
        if path.extension().is_some_and(|extension| extension == "json") {
            Self::open_index(path)
        } else {
            Self::open_single(path)
        }
    }

    fn open_single(path: &Path) -> Result<Self, CheckpointError> {
        Self::gather(folder_of(path).to_owned(), vec![Reader::open(path)?], None)
    }

    fn open_index(path: &Path) -> Result<Self, CheckpointError> {
        let io = |action| move |source| CheckpointError::file(path, Defect::Io { action, source });
        let length = regular_length(path)?;
        if length > MAX_INDEX {
            let message = format!("is {length} bytes long, the limit is {MAX_INDEX}");
            return Err(CheckpointError::file(path, Defect::Index { message }));
        }
        let bytes = std::fs::read(path).map_err(io("read"))?;
        let raw: RawIndex = serde_json::from_slice(&bytes)
            .map_err(|error| CheckpointError::file(path, Defect::Index { message: error.to_string() }))?;
        if raw.weight_map.is_empty() {
            let message = "lists no tensors".to_owned();
            return Err(CheckpointError::file(path, Defect::Index { message }));
        }
        let folder = folder_of(path).to_owned();
        let mut names: Vec<&String> = raw.weight_map.values().collect();
        names.sort();
        names.dedup();
        let mut shards = Vec::with_capacity(names.len());
        for name in names {
            if !is_plain_name(name) {
                return Err(CheckpointError::file(path, Defect::ShardName { shard: name.clone() }));
            }
            shards.push(Reader::open(&folder.join(name))?);
        }
        let checkpoint = Self::gather(folder, shards, Some(Index { metadata: raw.metadata }))?;
        for (tensor, shard) in &raw.weight_map {
            let held = checkpoint.get(tensor).is_some_and(|found| shard_name(found.shard) == *shard);
            if !held {
                return Err(CheckpointError::tensor(
                    path,
                    tensor,
                    Defect::NotInShard { shard: shard.clone() },
                ));
            }
        }
        Ok(checkpoint)
    }

    fn gather(folder: PathBuf, shards: Vec<Reader>, index: Option<Index>) -> Result<Self, CheckpointError> {
        let mut by_name: HashMap<String, (usize, usize)> = HashMap::new();
        for (at, shard) in shards.iter().enumerate() {
            for (position, tensor) in shard.tensors().iter().enumerate() {
                if let Some((first, _)) = by_name.insert(tensor.name.clone(), (at, position)) {
                    let defect =
                        Defect::InTwoShards { first: shard_name(&shards[first]), second: shard_name(shard) };
                    return Err(CheckpointError::tensor(&folder, &tensor.name, defect));
                }
            }
        }
        Ok(Self { folder, shards, by_name, index })
    }

    /// The folder that the checkpoint lies in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its name in messages: its only file, else its folder.
    pub fn path(&self) -> &Path {
        match (&self.index, &self.shards[..]) {
            (None, [only]) => only.path(),
            _ => &self.folder,
        }
    }

    /// The file that holds a tensor; of one that is in none, what messages call the checkpoint.
    pub fn path_of(&self, name: &str) -> &Path {
        self.get(name).map_or(self.path(), |at| at.shard.path())
    }

    /// The files.
    pub fn shards(&self) -> &[Reader] {
        &self.shards
    }

    /// Whether there is an index.
    pub const fn is_sharded(&self) -> bool {
        self.index.is_some()
    }

    /// The tensor called `name`, wherever it is.
    pub fn get(&self, name: &str) -> Option<Located<'_>> {
        let &(shard, position) = self.by_name.get(name)?;
        let shard = &self.shards[shard];
        Some(Located { shard, tensor: &shard.tensors()[position] })
    }

    /// Every tensor, shard by shard in the order of their bytes.
    pub fn tensors(&self) -> impl Iterator<Item = Located<'_>> {
        self.shards
            .iter()
            .flat_map(|shard| shard.tensors().iter().map(move |tensor| Located { shard, tensor }))
    }

    /// The text of an index for new shards: the map, this checkpoint's other index metadata, and the new total size.
    pub fn new_index(&self, weight_map: &BTreeMap<String, String>, total_size: u64) -> String {
        let mut metadata = self.index.as_ref().map(|index| index.metadata.clone()).unwrap_or_default();
        // Counts what the input held.
        metadata.remove("total_parameters");
        metadata.insert("total_size".to_owned(), total_size.into());
        let index = serde_json::json!({"metadata": metadata, "weight_map": weight_map});
        format!("{index:#}\n")
    }
}

/// The file name of a shard; of what a GGUF file becomes, that of a checkpoint of one file.
pub fn shard_name(shard: &Reader) -> String {
    if shard.is_gguf() {
        return SINGLE.to_owned();
    }
    shard.path().file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Whether a name from an index stays in its folder on every system.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', ':', '\0'])
}

#[cfg(test)]
mod tests {
    use super::super::stored::StoredType;
    use super::super::writer::{Layout, TensorSpec, Writer};
    use super::*;

    fn shard(folder: &Path, file: &str, tensor: &str) {
        let path = folder.join(file);
        let spec = TensorSpec { name: tensor.to_owned(), dtype: StoredType::U8, shape: vec![2] };
        let layout = Layout::new(&path, &[], &[spec]).unwrap();
        let mut writer = Writer::create(&path, true, layout).unwrap();
        writer.append(0, &[1, 2]).unwrap();
        writer.commit().unwrap();
    }

    fn index(folder: &Path, text: &str) -> Result<Checkpoint, CheckpointError> {
        let path = folder.join(INDEX);
        std::fs::write(&path, text).unwrap();
        Checkpoint::open(folder)
    }

    #[test]
    fn shards_are_found_through_the_index() {
        let folder = tempfile::tempdir().unwrap();
        shard(folder.path(), "a.safetensors", "x");
        shard(folder.path(), "b.safetensors", "y");
        let text = r#"{"metadata":{"total_size":4,"note":"kept"},"weight_map":{"y":"b.safetensors","x":"a.safetensors"}}"#;
        let checkpoint = index(folder.path(), text).unwrap();
        assert!(checkpoint.is_sharded());
        assert_eq!(checkpoint.tensors().map(|t| t.tensor.name.as_str()).collect::<Vec<_>>(), ["x", "y"]);
        assert_eq!(shard_name(checkpoint.get("y").unwrap().shard), "b.safetensors");
        let map = BTreeMap::from([("x".to_owned(), "a.safetensors".to_owned())]);
        let text: Value = serde_json::from_str(&checkpoint.new_index(&map, 9)).unwrap();
        assert_eq!(text["metadata"], serde_json::json!({"total_size": 9, "note": "kept"}));
        assert_eq!(text["weight_map"]["x"], "a.safetensors");
    }

    #[test]
    fn an_index_that_lies_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        shard(folder.path(), "a.safetensors", "x");
        shard(folder.path(), "b.safetensors", "y");
        type Expect = fn(&Defect) -> bool;
        let cases: [(&str, Expect); 7] = [
            ("{", |d| matches!(d, Defect::Index { .. })),
            (r#"{"weight_map":{}}"#, |d| matches!(d, Defect::Index { .. })),
            (r#"{"weight_map":{"x":"../a.safetensors"}}"#, |d| matches!(d, Defect::ShardName { .. })),
            (r#"{"weight_map":{"x":".."}}"#, |d| matches!(d, Defect::ShardName { .. })),
            (r#"{"weight_map":{"x":"c.safetensors"}}"#, |d| matches!(d, Defect::Io { .. })),
            (r#"{"weight_map":{"z":"a.safetensors"}}"#, |d| matches!(d, Defect::NotInShard { .. })),
            (r#"{"weight_map":{"x":"b.safetensors","y":"a.safetensors"}}"#, |d| {
                matches!(d, Defect::NotInShard { .. })
            }),
        ];
        for (text, expected) in cases {
            let error = index(folder.path(), text).unwrap_err();
            assert!(expected(&error.defect), "{text}: {error}");
        }
        shard(folder.path(), "b.safetensors", "x");
        let text = r#"{"weight_map":{"x":"a.safetensors","w":"b.safetensors"}}"#;
        assert!(matches!(*index(folder.path(), text).unwrap_err().defect, Defect::InTwoShards { .. }));
    }

    #[test]
    fn a_folder_without_a_checkpoint_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let error = Checkpoint::open(folder.path()).unwrap_err();
        assert!(matches!(*error.defect, Defect::NoCheckpoint));
    }
}
