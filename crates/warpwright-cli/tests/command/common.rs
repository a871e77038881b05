//! Running the command in tests, and making files for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::SystemTime;

/// A folder that goes away with the test, and the command run in it.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

/// The outcome of a command.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder for the test") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).expect("the folder is writable");
        path
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Every name in the folder, hidden ones included.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).expect("the folder is there");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warpwright"));
        command.current_dir(self.folder.path()).env_remove("NO_COLOR").env_remove("WARPWRIGHT_LOG");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        finish(self.command().args(args))
    }

    /// Every file below the folder, with its size and when it was written.
    fn snapshot(&self) -> BTreeMap<PathBuf, Option<(u64, SystemTime)>> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("the folder is there") {
                let entry = entry.expect("readable");
                let meta = entry.metadata().expect("the entry is there");
                if meta.is_dir() {
                    folders.push(entry.path());
                }
                let written = || (meta.len(), meta.modified().expect("the system has times"));
                found.insert(entry.path(), meta.is_file().then(written));
            }
        }
        found
    }

    /// Runs the command, which must refuse: it ends with 2, says why with all of `words` and prints nothing else, and
    /// every file is as before. What it says.
    pub(crate) fn refused(&self, args: &[&str], words: &[&str]) -> String {
        let before = self.snapshot();
        let ran = self.run(args);
        assert_eq!((ran.code, &*ran.out), (Some(2), ""), "{args:?}: {}", ran.err);
        for word in words {
            assert!(ran.err.contains(word), "{args:?}: no {word:?} in {}", ran.err);
        }
        assert_eq!(self.snapshot(), before, "{args:?}");
        ran.err
    }

    /// The command with each of these arguments must be [`refused`](Self::refused) with the words beside them.
    pub(crate) fn refuses(&self, command: &[&str], cases: &[(&[&str], &str)]) {
        for (args, words) in cases {
            self.refused(&[command, args].concat(), &[words]);
        }
    }

    /// Runs the command, which must succeed and print JSON.
    pub(crate) fn json(&self, args: &[&str]) -> serde_json::Value {
        let ran = self.run(args);
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.err);
        serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{args:?}: {error}: {}", ran.out))
    }
}

pub(crate) fn finish(command: &mut Command) -> Ran {
    let Output { status, stdout, stderr } = command.output().expect("the command starts");
    let text = |bytes| String::from_utf8(bytes).expect("the command prints text");
    Ran { code: status.code(), out: text(stdout), err: text(stderr) }
}

/// A safetensors file with this header and so many bytes of data.
pub(crate) fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// A file with one weight.
pub(crate) fn one_weight(shape: [usize; 2], values: impl Iterator<Item = f32>) -> Vec<u8> {
    let bytes: Vec<u8> = values.take(shape[0] * shape[1]).flat_map(f32::to_le_bytes).collect();
    assert_eq!(bytes.len(), shape[0] * shape[1] * 4);
    let header = format!(
        r#"{{"w":{{"dtype":"F32","shape":[{},{}],"data_offsets":[0,{}]}}}}"#,
        shape[0],
        shape[1],
        bytes.len()
    );
    safetensors(&header, &bytes)
}

/// Numbers that look like weights.
pub(crate) fn weights() -> impl Iterator<Item = f32> {
    (0u32..).map(|i| i % 10_007).map(|i| ((i * 37 + i * i % 11) % 101) as f32 / 50.0 - 1.0)
}

/// A `.npy` file of f32.
pub(crate) fn npy(values: &[f32]) -> Vec<u8> {
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({},), }}", values.len());
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    bytes
}

/// The f32 elements of a `.npy` file.
pub(crate) fn npy_values(path: &Path) -> Vec<f32> {
    let array = warpwright_cli::npy::Array::read(path).expect("an .npy file");
    array.bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}
