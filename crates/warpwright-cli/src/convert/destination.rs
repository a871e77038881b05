//! Where a converted checkpoint goes: a file, or a folder that appears as a whole.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::config::{self, CONFIG, Change};
use crate::checkpoint::atomic::{check_free, folder_of, sync_folder};
use crate::checkpoint::sharded::{INDEX, SINGLE};
use crate::checkpoint::{AtomicFile, Checkpoint, CheckpointError, Defect, Layout, Storage, Writer};
use crate::error::Error;
use crate::interrupt::{self, Leftover};
use crate::paths::Shown;

/// Files of a model's folder that go with any form of its weights: what reads text, and defaults of inference.
const COMPANIONS: [&str; 14] = [
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
    "merges.txt",
    "modules.json",
    "preprocessor_config.json",
    "sentence_bert_config.json",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
];

/// The files of an output, none of which has its name before [`Destination::commit`].
#[derive(Debug)]
pub struct Destination {
    form: Form,
    replace: bool,
    pending: Vec<AtomicFile>,
}

#[derive(Debug)]
enum Form {
    File(PathBuf),
    /// A folder that does not exist yet, or is empty: built beside its place, then renamed.
    NewFolder {
        target: PathBuf,
        staging: TempDir,
        /// Dropped after the folder.
        _leftover: Leftover,
    },
    /// A folder with files, some of which are replaced.
    OldFolder(PathBuf),
}

impl Destination {
    /// Decides on file or folder, and refuses early what would fail at the end.
    ///
    /// # Errors
    /// The output exists and `replace` is not set, or it cannot be what it is asked to be.
    pub fn new(input: &Path, checkpoint: &Checkpoint, output: &Path, replace: bool) -> Result<Self, Error> {
        let names_folder = output.is_dir() || ends_in_separator(output);
        let has = |name: &str| !names_folder && output.extension().is_some_and(|extension| extension == name);
        let (is_index, names_file) = (has("json"), has("safetensors"));
        if has("gguf") {
            return Err(Error::usage(
                format!("{}: GGUF files are read, not written", Shown(output)),
                format!("-o {}", Shown(&output.with_extension("safetensors"))),
            ));
        }
        if checkpoint.is_sharded() && names_file {
            return Err(Error::usage(
                format!("{}: the input has several shards, the output must be a folder", output.display()),
                format!("-o {}", output.with_extension("").display()),
            ));
        }
        if is_index && !checkpoint.is_sharded() {
            return Err(Error::usage(
                format!("{}: the input has no index, the output needs none", output.display()),
                format!("-o {}", output.with_file_name(SINGLE).display()),
            ));
        }
        let folder = checkpoint.is_sharded() || names_folder || (input.is_dir() && !names_file);
        let form = if !folder {
            check_free(output, replace)?;
            Form::File(output.to_owned())
        } else {
            folder_form(if is_index { folder_of(output) } else { output }, replace)?
        };
        if let Form::OldFolder(folder) = &form {
            // Which of the two forms a loader prefers is its own affair, so there must not be both.
            let other = folder.join(if checkpoint.is_sharded() { SINGLE } else { INDEX });
            if other.exists() {
                return Err(Error::usage(
                    format!(
                        "{}: would be loaded instead of the output, which does not replace it",
                        Shown(&other)
                    ),
                    "remove the checkpoint that it belongs to, or name another folder",
                ));
            }
        }
        Ok(Self { form, replace, pending: Vec::new() })
    }

    /// The path as the user will see it.
    pub fn shown(&self) -> &Path {
        match &self.form {
            Form::File(path) | Form::OldFolder(path) | Form::NewFolder { target: path, .. } => path,
        }
    }

    /// Where a file of this name is built.
    fn place(&self, name: &str) -> PathBuf {
        match &self.form {
            Form::File(path) => path.clone(),
            Form::NewFolder { staging, .. } => staging.path().join(name),
            Form::OldFolder(folder) => folder.join(name),
        }
    }

    /// The name by which messages call a file of this output.
    pub fn name_of(&self, shard: &str) -> PathBuf {
        match &self.form {
            Form::File(path) => path.clone(),
            Form::NewFolder { target, .. } | Form::OldFolder(target) => target.join(shard),
        }
    }

    /// Begins the shard called `name` (which a single file's own name overrides).
    ///
    /// # Errors
    /// It cannot be created.
    pub fn shard(&self, name: &str, layout: Layout) -> Result<Writer<AtomicFile>, Error> {
        let storage = AtomicFile::create(&self.place(name), self.replace)?;
        Ok(Writer::new(storage, &self.name_of(name), layout)?)
    }

    /// Takes a complete file; it gets its name on commit.
    pub fn keep(&mut self, file: AtomicFile) {
        self.pending.push(file);
    }

    /// Adds the files that a model has beside its shards: `config.json` with a change, in a new folder those of its tokenizer and the like, and
    /// the index of several shards, which says where tensors are and how many bytes they have in all. Returns a remark for the user.
    ///
    /// # Errors
    /// One of the input cannot be read, or one cannot be written.
    pub fn beside(
        &mut self,
        checkpoint: &Checkpoint,
        change: &Change,
        weight_map: &BTreeMap<String, String>,
        total: u64,
    ) -> Result<Option<String>, Error> {
        let note = self.config(checkpoint.folder(), change)?;
        self.companions(checkpoint.folder())?;
        if checkpoint.is_sharded() {
            self.text(INDEX, &checkpoint.new_index(weight_map, total))?;
        }
        Ok(note)
    }

    /// Adds a small text file to a folder.
    ///
    /// # Errors
    /// It cannot be written.
    fn text(&mut self, name: &str, text: &str) -> Result<(), Error> {
        self.small(name, text.as_bytes())
    }

    fn small(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let place = match &self.form {
            Form::File(path) => folder_of(path).join(name),
            _ => self.place(name),
        };
        let file = AtomicFile::create(&place, self.replace)?;
        file.write_all_at(bytes, 0)
            .map_err(|source| CheckpointError::file(&place, Defect::Io { action: "write", source }))?;
        self.keep(file);
        Ok(())
    }

    /// Copies the input's `config.json`, changed, if there is one and it does not take the place of another.
    /// Returns what to tell the user if it was left out.
    ///
    /// # Errors
    /// It cannot be read, is no JSON, or cannot be written.
    fn config(&mut self, input_folder: &Path, change: &Change) -> Result<Option<String>, Error> {
        let source = input_folder.join(CONFIG);
        let text = match std::fs::read_to_string(&source) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let note =
                    "the input has no config.json, whose quantization_config tells loaders of the format";
                return Ok(matches!(change, Change::Entry(_)).then(|| note.to_owned()));
            }
            Err(error) => return Err(Error::file(&source, "read")(error)),
        };
        let text = config::rewrite(&source, &text, change)?;
        if let Form::File(path) = &self.form {
            let place = folder_of(path).join(CONFIG);
            if same_folder(input_folder, folder_of(path)) {
                return Ok(Some(format!("{} belongs to the input and was left as it is", place.display())));
            }
            if !self.replace && place.exists() {
                return Ok(Some(format!("{} exists and was left as it is", place.display())));
            }
        }
        self.text(CONFIG, &text)?;
        Ok(None)
    }

    /// Copies the files of the input's folder that a model needs beside its weights, such as those of its tokenizer, to a new folder. A
    /// folder that was there keeps its own.
    ///
    /// # Errors
    /// One cannot be read or written.
    fn companions(&mut self, input_folder: &Path) -> Result<(), Error> {
        if !matches!(self.form, Form::NewFolder { .. }) {
            return Ok(());
        }
        for name in COMPANIONS {
            let source = input_folder.join(name);
            match std::fs::read(&source) {
                Ok(bytes) => self.small(name, &bytes)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(Error::file(&source, "read")(error)),
            }
        }
        Ok(())
    }

    /// Gives every file its name, in the order in which they were kept.
    ///
    /// # Errors
    /// A file cannot be made durable or renamed.
    pub fn commit(self) -> Result<(), Error> {
        // What takes long comes first; then all names change together.
        for file in &self.pending {
            interrupt::check()?;
            file.sync()?;
        }
        let _busy = interrupt::busy();
        for file in self.pending {
            file.commit()?;
        }
        if let Form::NewFolder { target, staging, .. } = self.form {
            let renamed = || {
                // An empty folder may be in the way, which not every system renames over.
                match std::fs::remove_dir(&target) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
                std::fs::rename(staging.path(), &target)
            };
            renamed().map_err(|source| {
                let defect = match source.kind() {
                    io::ErrorKind::DirectoryNotEmpty => Defect::OutputExists,
                    _ => Defect::Io { action: "rename the finished folder", source },
                };
                CheckpointError::file(&target, defect)
            })?;
            // Its name has gone, so there is nothing left to remove.
            let _ = staging.keep();
            sync_folder(folder_of(&target));
        }
        Ok(())
    }
}

/// Whether a path is spelled as only that of a folder is.
fn ends_in_separator(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().last().is_some_and(|byte| std::path::is_separator((*byte).into()))
}

fn folder_form(target: &Path, replace: bool) -> Result<Form, CheckpointError> {
    let fail = |defect| CheckpointError::file(target, defect);
    let io = |action| move |source| fail(Defect::Io { action, source });
    match std::fs::read_dir(target) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                return if replace {
                    Ok(Form::OldFolder(target.to_owned()))
                } else {
                    Err(fail(Defect::OutputExists))
                };
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Err(fail(Defect::OutputExists)),
        Err(source) => return Err(fail(Defect::Io { action: "open the folder", source })),
    }
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(target.file_name().unwrap_or_default());
    prefix.push(".");
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(".tmp");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o777));
    }
    let busy = interrupt::busy();
    let staging = builder.tempdir_in(folder_of(target)).map_err(io("create the folder"))?;
    let leftover = Leftover::new(staging.path(), &busy);
    Ok(Form::NewFolder { target: target.to_owned(), staging, _leftover: leftover })
}

fn same_folder(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}
