//! Declarations of a checkpoint's configuration about its quantization.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use warpwright_ptx::DType;

use crate::checkpoint::error::{CheckpointError, Defect, Quoted};
use crate::checkpoint::quantized::from_torch_name;
use crate::checkpoint::safetensors::regular_length;

/// The longest configuration that is read.
const LONGEST: u64 = 16 << 20;

/// The declarations, wherever they stand: `quantization_config` of `config.json`, else `quantize_config.json` of AutoGPTQ, else
/// `hf_quant_config.json` of ModelOpt.
#[derive(Clone, Debug, Default)]
pub struct Declared {
    file: PathBuf,
    entry: Map<String, Value>,
    /// The weights' type, where `config.json` names one.
    pub dtype: Option<DType>,
    /// The model's architecture as transformers calls it, where `config.json` names one.
    pub model_type: Option<String>,
}

impl Declared {
    /// Reads the declarations beside a checkpoint; none are no error.
    ///
    /// # Errors
    /// A file that is there cannot be read or is no JSON object.
    pub fn read(folder: &Path) -> Result<Self, CheckpointError> {
        let file = folder.join("config.json");
        let config = object(&file)?.unwrap_or_default();
        let dtype = config.get("torch_dtype").or_else(|| config.get("dtype")).and_then(Value::as_str);
        let dtype = dtype.and_then(from_torch_name).filter(|dtype| *dtype != DType::F64);
        let model_type = config.get("model_type").and_then(Value::as_str).map(str::to_owned);
        match config.get("quantization_config") {
            Some(Value::Object(entry)) => return Ok(Self { file, entry: entry.clone(), dtype, model_type }),
            None | Some(Value::Null) => {}
            Some(_) => {
                let message = "quantization_config is not an object".to_owned();
                return Err(CheckpointError::file(&file, Defect::Config { message }));
            }
        }
        for name in ["quantize_config.json", "hf_quant_config.json"] {
            let file = folder.join(name);
            if let Some(mut entry) = object(&file)? {
                if let Some(Value::Object(inner)) = entry.remove("quantization") {
                    entry = inner;
                    entry.insert("quant_method".to_owned(), "modelopt".into());
                }
                return Ok(Self { file, entry, dtype, model_type });
            }
        }
        Ok(Self { dtype, model_type, ..Self::default() })
    }

    /// `quant_method`, in small letters.
    pub fn method(&self) -> Option<String> {
        self.text("quant_method").map(str::to_lowercase)
    }

    /// A string.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.entry.get(key).and_then(Value::as_str)
    }

    /// A truth value.
    pub fn truth(&self, key: &str) -> Option<bool> {
        self.entry.get(key).and_then(Value::as_bool)
    }

    /// The size of groups, where it is said for all weights: -1 is K.
    ///
    /// # Errors
    /// It is no size.
    pub fn group_size(&self, columns: u64) -> Result<Option<u64>, CheckpointError> {
        let value = self.entry.get("group_size").or_else(|| self.weights()?.get("group_size"));
        match value {
            None | Some(Value::Null) => Ok(None),
            Some(value) if value.as_i64() == Some(-1) => Ok(Some(columns.max(1))),
            Some(value) => match value.as_u64() {
                Some(size @ 1..) => Ok(Some(size)),
                _ => Err(self.wrong("group_size", value, "a size or -1")),
            },
        }
    }

    /// The bits of a code, where they are said for all weights.
    ///
    /// # Errors
    /// They are not 1 to 8.
    pub fn bits(&self) -> Result<Option<u32>, CheckpointError> {
        let value = self.entry.get("bits").or_else(|| self.weights()?.get("num_bits"));
        match value {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_u64() {
                Some(bits @ 1..=8) => Ok(Some(bits as u32)),
                _ => Err(self.wrong("the number of bits", value, "1 to 8")),
            },
        }
    }

    /// Rows and columns of blocks that share a scale.
    ///
    /// # Errors
    /// They are not two sizes.
    pub fn block(&self) -> Result<Option<[u64; 2]>, CheckpointError> {
        let value = self.entry.get("weight_block_size").or_else(|| self.weights()?.get("block_structure"));
        match value {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let sizes: Vec<_> = value.as_array().into_iter().flatten().map(Value::as_u64).collect();
                match sizes[..] {
                    [Some(rows @ 1..), Some(columns @ 1..)] => Ok(Some([rows, columns])),
                    _ => Err(self.wrong("the block", value, "two sizes")),
                }
            }
        }
    }

    /// The weights' part of compressed-tensors' only group of modules. Where there are several, the tensors themselves say.
    fn weights(&self) -> Option<&Map<String, Value>> {
        let groups = self.entry.get("config_groups")?.as_object()?;
        let mut all = groups.values();
        match (all.next(), all.next()) {
            (Some(only), None) => only.get("weights")?.as_object(),
            _ => None,
        }
    }

    fn wrong(&self, what: &str, value: &Value, expected: &str) -> CheckpointError {
        let message = format!("{what} is {}, expected {expected}", Quoted(&value.to_string()));
        CheckpointError::file(&self.file, Defect::Config { message })
    }
}

fn object(file: &Path) -> Result<Option<Map<String, Value>>, CheckpointError> {
    if !file.exists() {
        return Ok(None);
    }
    let wrong = |message: String| CheckpointError::file(file, Defect::Config { message });
    let length = regular_length(file)?;
    if length > LONGEST {
        return Err(wrong(format!("is {length} bytes long, the limit is {LONGEST}")));
    }
    let bytes = std::fs::read(file)
        .map_err(|source| CheckpointError::file(file, Defect::Io { action: "read", source }))?;
    serde_json::from_slice(&bytes).map(Some).map_err(|error| wrong(format!("not a JSON object: {error}")))
}
