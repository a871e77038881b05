//! `config.json`, which tells transformers how a checkpoint is quantized.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::pack;
use crate::args::{Format, PackedFormat};
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
    /// It is this.
    Entry(Value),
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

    /// For a format of another tool, whose loaders quantize linear layers alone; `left` are the modules that stay as they are.
    pub fn packed(options: &pack::Options, mut left: Vec<String>) -> Self {
        left.sort();
        let (size, asymmetric) = (options.group_size, options.asymmetric);
        // As `re.match` of a module's name in GPTQModel and vLLM.
        let escape = |c: char| {
            let plain = c.is_alphanumeric() || c == '_';
            [(!plain).then_some('\\'), Some(c)].into_iter().flatten()
        };
        let pattern = |module: &String| {
            let escaped: String = module.chars().flat_map(escape).collect();
            (format!("-:^{escaped}$"), json!({}))
        };
        Self::Entry(match options.format {
            PackedFormat::Gptq => json!({
                "quant_method": "gptq",
                "bits": 4,
                "group_size": size,
                "desc_act": false,
                "sym": !asymmetric,
                "lm_head": false,
                "checkpoint_format": "gptq",
                "dynamic": Value::Object(left.iter().map(pattern).collect()),
            }),
            PackedFormat::Awq => json!({
                "quant_method": "awq",
                "bits": 4,
                "group_size": size,
                // Zero points are stored even where all of them are the middle.
                "zero_point": true,
                "version": "gemm",
                "modules_to_not_convert": left,
            }),
            PackedFormat::Fp8 => json!({
                "quant_method": "fp8",
                "fmt": "e4m3",
                "activation_scheme": "dynamic",
                "weight_block_size": [128, 128],
                "modules_to_not_convert": left,
                "ignored_layers": left,
            }),
            PackedFormat::CompressedTensorsInt4 => compressed(
                "pack-quantized",
                &left,
                &json!({
                    "num_bits": 4, "type": "int", "symmetric": !asymmetric, "strategy": "group", "group_size": size,
                    "dynamic": false,
                }),
            ),
            PackedFormat::Mxfp4 => compressed(
                "mxfp4-pack-quantized",
                &left,
                &json!({
                    "num_bits": 4, "type": "float", "symmetric": true, "strategy": "group", "group_size": size,
                    "dynamic": false, "scale_dtype": "torch.uint8",
                }),
            ),
            PackedFormat::Nvfp4 => compressed(
                "nvfp4-pack-quantized",
                &left,
                &json!({
                    "num_bits": 4, "type": "float", "symmetric": true, "strategy": "tensor_group", "group_size": size,
                    "dynamic": false, "scale_dtype": "torch.float8_e4m3fn",
                }),
            ),
        })
    }
}

/// The entry of compressed-tensors for weights alone.
fn compressed(format: &str, left: &[String], weights: &Value) -> Value {
    json!({
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "global_compression_ratio": null,
        "kv_cache_scheme": null,
        "ignore": left,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": null,
                "output_activations": null,
                "format": format,
            },
        },
    })
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
        Change::Entry(entry) => {
            config.insert("quantization_config".to_owned(), entry.clone());
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
