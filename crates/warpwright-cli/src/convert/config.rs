//! `config.json`, which tells transformers how a checkpoint is quantized.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::args::Format;
use crate::error::Error;

/// File name of the configuration.
pub const CONFIG: &str = "config.json";

/// The change to the configuration's quantization entry.
#[derive(Clone, Debug)]
pub enum Change {
    /// It describes a bitsandbytes checkpoint.
    Bnb {
        /// `nf4` or `fp4`.
        quant_type: &'static str,
        /// Whether scales are quantized too.
        double_quant: bool,
        /// Modules that stay as they are.
        skipped: Vec<String>,
    },
    /// It goes.
    Remove,
}

impl Change {
    /// For the output of `quantize`.
    pub fn for_format(format: Format, double_quant: bool, skipped: Vec<String>) -> Self {
        match format {
            Format::BnbNf4 => Self::Bnb { quant_type: "nf4", double_quant, skipped },
            Format::BnbFp4 => Self::Bnb { quant_type: "fp4", double_quant, skipped },
            // transformers knows no name for this layout.
            Format::Int4 => Self::Remove,
        }
    }
}

/// The text of a configuration after a change; everything else stays, in its order.
///
/// # Errors
/// The file is not a JSON object; `file` is for the message.
pub fn rewrite(file: &Path, text: &str, change: &Change) -> Result<String, Error> {
    let mut config: Map<String, Value> = serde_json::from_str(text).map_err(|error| Error::Usage {
        message: format!("{}: not a JSON object: {error}", file.display()),
        help: Some("repair it, or move it away: the checkpoint converts without it".to_owned()),
    })?;
    match change {
        Change::Bnb { quant_type, double_quant, skipped } => {
            let compute = config.get("torch_dtype").or_else(|| config.get("dtype")).and_then(Value::as_str);
            let entry = json!({
                "quant_method": "bitsandbytes",
                "load_in_4bit": true,
                "load_in_8bit": false,
                "bnb_4bit_quant_type": quant_type,
                "bnb_4bit_use_double_quant": double_quant,
                "bnb_4bit_compute_dtype": compute.unwrap_or("float32"),
                "bnb_4bit_quant_storage": "uint8",
                "llm_int8_skip_modules": if skipped.is_empty() { Value::Null } else { json!(skipped) },
            });
            config.insert("quantization_config".to_owned(), entry);
        }
        Change::Remove => {
            config.shift_remove("quantization_config");
        }
    }
    Ok(format!("{:#}\n", Value::Object(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_comes_and_goes_and_the_rest_stays() {
        let file = Path::new("config.json");
        let change = Change::for_format(Format::BnbNf4, true, vec!["lm_head".to_owned()]);
        let text = rewrite(file, r#"{"z":1,"torch_dtype":"bfloat16","a":[2]}"#, &change).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        let entry = &value["quantization_config"];
        assert_eq!(entry["bnb_4bit_quant_type"], "nf4");
        assert_eq!(entry["bnb_4bit_use_double_quant"], true);
        assert_eq!(entry["bnb_4bit_compute_dtype"], "bfloat16");
        assert_eq!(entry["llm_int8_skip_modules"], json!(["lm_head"]));
        let back = rewrite(file, &text, &Change::Remove).unwrap();
        let order: Vec<_> =
            serde_json::from_str::<Map<String, Value>>(&back).unwrap().keys().cloned().collect();
        assert_eq!(order, ["z", "torch_dtype", "a"]);
    }

    #[test]
    fn a_configuration_that_is_none_is_an_error_with_its_name() {
        let error = rewrite(Path::new("config.json"), "[]", &Change::Remove).unwrap_err();
        assert!(error.to_string().starts_with("config.json: not a JSON object"));
    }
}
