//! Checkpoints of other tools as a user has them: read, and refused where they are damaged.

use serde_json::{Value, json};

use crate::common::{Place, safetensors};

/// A tensor by name, type and shape.
type Tensor = (String, &'static str, Vec<u64>);

/// A good checkpoint of one scheme with one weight.
struct Family {
    name: &'static str,
    tensors: Vec<Tensor>,
    config: Value,
    /// Tensors that may be changed without harm.
    harmless: &'static [&'static str],
    /// Declarations that contradict the tensors, or cannot be.
    lies: Vec<(&'static str, Value)>,
}

fn tensors(list: &[(&str, &'static str, &[u64])]) -> Vec<Tensor> {
    list.iter().map(|(name, dtype, shape)| (format!("l.{name}"), *dtype, shape.to_vec())).collect()
}

fn compressed(format: &str, weights: Value) -> Value {
    json!({"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": {"weights": weights}}})
}

fn families() -> Vec<Family> {
    vec![
        Family {
            name: "gptq",
            tensors: tensors(&[
                ("qweight", "I32", &[8, 32]),
                ("qzeros", "I32", &[2, 4]),
                ("scales", "F16", &[2, 32]),
                ("g_idx", "I32", &[64]),
            ]),
            config: json!({"quant_method": "gptq", "bits": 4, "group_size": 32}),
            harmless: &["l.g_idx missing"],
            lies: vec![
                ("bits", json!(8)),
                ("bits", json!(5)),
                ("group_size", json!(16)),
                ("group_size", json!(0)),
                ("quant_method", json!("awq")),
                ("checkpoint_format", json!("marlin")),
            ],
        },
        Family {
            name: "awq",
            tensors: tensors(&[
                ("qweight", "I32", &[64, 4]),
                ("qzeros", "I32", &[2, 4]),
                ("scales", "F16", &[2, 32]),
            ]),
            config: json!({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}),
            harmless: &[],
            lies: vec![
                ("bits", json!(8)),
                ("version", json!("gemv")),
                ("group_size", json!(128)),
                ("quant_method", json!("gptq")),
            ],
        },
        Family {
            name: "pack-quantized",
            tensors: tensors(&[
                ("weight_packed", "I32", &[32, 8]),
                ("weight_scale", "BF16", &[32, 2]),
                ("weight_shape", "I64", &[2]),
                ("weight_zero_point", "I32", &[4, 2]),
                ("weight_g_idx", "I32", &[64]),
            ]),
            config: compressed("pack-quantized", json!({"num_bits": 4, "group_size": 32})),
            harmless: &["l.weight_zero_point missing", "l.weight_g_idx missing"],
            lies: vec![
                ("bits", json!(8)),
                ("bits", json!(0)),
                ("group_size", json!(64)),
                ("format", json!("marlin-24")),
            ],
        },
        Family {
            name: "int-quantized",
            tensors: tensors(&[
                ("weight", "I8", &[32, 64]),
                ("weight_scale", "BF16", &[32, 1]),
                ("weight_zero_point", "I8", &[32, 1]),
            ]),
            config: compressed("int-quantized", json!({"num_bits": 8})),
            // A scale for each row says nothing about the row's length.
            harmless: &[
                "l.weight_zero_point missing",
                "l.weight with one more in dimension 1",
                "l.weight with none in dimension 1",
            ],
            lies: vec![],
        },
        Family {
            name: "fp8",
            tensors: tensors(&[("weight", "F8_E4M3", &[256, 200]), ("weight_scale_inv", "F32", &[2, 2])]),
            config: json!({"quant_method": "fp8", "weight_block_size": [128, 128]}),
            // The last block is short already.
            harmless: &["l.weight with one more in dimension 1"],
            lies: vec![
                ("weight_block_size", json!([64, 128])),
                ("weight_block_size", json!([128])),
                ("weight_block_size", json!([0, 128])),
                ("weight_block_size", json!("128")),
                ("weight_block_size", json!([128, 64])),
                ("weight_block_size", json!([128, -1])),
            ],
        },
        Family {
            name: "nvfp4-pack-quantized",
            tensors: tensors(&[
                ("weight_packed", "U8", &[32, 32]),
                ("weight_scale", "F8_E4M3", &[32, 4]),
                ("weight_global_scale", "F32", &[1]),
            ]),
            config: compressed("nvfp4-pack-quantized", json!({"num_bits": 4, "group_size": 16})),
            harmless: &["l.weight_global_scale with 1 as dimension 1"],
            lies: vec![("group_size", json!(32)), ("group_size", json!("sixteen"))],
        },
        Family {
            name: "mxfp4-pack-quantized",
            tensors: tensors(&[("weight_packed", "U8", &[32, 32]), ("weight_scale", "U8", &[32, 2])]),
            config: compressed("mxfp4-pack-quantized", json!({"num_bits": 4, "group_size": 32})),
            harmless: &[],
            lies: vec![
                ("group_size", json!(16)),
                ("group_size", json!(-2)),
                ("group_size", json!(1.5)),
                ("format", json!("nvfp4-pack-quantized")),
            ],
        },
        Family {
            name: "modelopt-nvfp4",
            tensors: tensors(&[
                ("weight", "U8", &[32, 32]),
                ("weight_scale", "F8_E4M3", &[32, 4]),
                ("weight_scale_2", "F32", &[]),
            ]),
            config: json!({"quant_method": "modelopt", "group_size": 16}),
            harmless: &["l.weight_scale_2 with 1 as dimension 0"],
            lies: vec![("group_size", json!(32)), ("group_size", json!({}))],
        },
        Family {
            name: "gpt-oss-mxfp4",
            tensors: vec![
                ("e.down_proj_blocks".to_owned(), "U8", vec![2, 32, 2, 16]),
                ("e.down_proj_scales".to_owned(), "U8", vec![2, 32, 2]),
            ],
            config: json!({"quant_method": "mxfp4"}),
            harmless: &[],
            lies: vec![],
        },
    ]
}

fn bits_of(dtype: &str) -> u64 {
    match dtype {
        "I64" | "F64" => 64,
        "I32" | "F32" => 32,
        "F16" | "BF16" => 16,
        _ => 8,
    }
}

/// A file of these tensors: all zeros, but the shape of compressed-tensors.
fn file(tensors: &[Tensor]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, dtype, shape) in tensors {
        let start = data.len();
        if name == "l.weight_shape" && shape == &[2] && *dtype == "I64" {
            data.extend([32u64, 64].iter().flat_map(|n| n.to_le_bytes()));
        } else {
            let bytes = shape.iter().product::<u64>() * bits_of(dtype) / 8;
            data.resize(start + bytes as usize, 0);
        }
        header.insert(
            name.clone(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]}),
        );
    }
    safetensors(&Value::Object(header).to_string(), &data)
}

/// The checkpoint with each tensor gone, of another type, and of other shapes.
fn damaged(tensors: &[Tensor]) -> Vec<(String, Vec<Tensor>)> {
    let mut all = Vec::new();
    for (at, (name, dtype, shape)) in tensors.iter().enumerate() {
        let mut add = |what: String, tensor: Option<Tensor>| {
            let mut changed = tensors.to_vec();
            match tensor {
                Some(tensor) => changed[at] = tensor,
                None => drop(changed.remove(at)),
            }
            all.push((format!("{name} {what}"), changed));
        };
        add("missing".to_owned(), None);
        for other in ["F64", "BOOL"] {
            add(format!("of {other}"), Some((name.clone(), other, shape.clone())));
        }
        for dimension in 0..shape.len() {
            for (what, extent) in [("one more", shape[dimension] + 1), ("none", 0)] {
                let mut shape = shape.clone();
                shape[dimension] = extent;
                add(format!("with {what} in dimension {dimension}"), Some((name.clone(), dtype, shape)));
            }
        }
        let more = [&shape[..], &[1]].concat();
        add(format!("with 1 as dimension {}", shape.len()), Some((name.clone(), dtype, more)));
    }
    all
}

#[test]
fn good_checkpoints_are_named_and_read() {
    for family in families() {
        let place = Place::new();
        place.write("model.safetensors", file(&family.tensors));
        place.write(
            "config.json",
            json!({"dtype": "float16", "quantization_config": family.config}).to_string(),
        );
        let inspected = place.json(&["inspect", ".", "--json"]);
        assert_eq!(inspected["schemes"], json!([family.name]));
        assert_eq!(inspected["defect"], Value::Null);
        let restored = place.json(&["dequantize", ".", "-o", "out", "--device", "emulator", "--json"]);
        let weights = restored["weights"].as_array().expect("a list");
        assert_eq!(weights.len(), 1, "{}", family.name);
        assert_eq!(restored["copied"], 0, "{}", family.name);
        assert_eq!(weights[0]["dtype"], "f16", "{}", family.name);
        let config: Value = serde_json::from_slice(&place.read("out/config.json")).expect("JSON");
        assert_eq!(config, json!({"dtype": "float16"}), "{}", family.name);
        let after = place.json(&["inspect", "out", "--json"]);
        assert_eq!(after["schemes"], json!([]), "{}", family.name);
        assert_eq!(after["tensors"][0]["shape"], weights[0]["shape"], "{}", family.name);
    }
}

#[test]
fn damaged_checkpoints_are_refused_and_leave_nothing_behind() {
    for family in families() {
        let good = file(&family.tensors);
        let config = |entry: &Value| json!({ "quantization_config": entry }).to_string();
        let declared = config(&family.config);
        let mut cases: Vec<(String, Vec<u8>, String)> = damaged(&family.tensors)
            .into_iter()
            .filter(|(what, _)| !family.harmless.contains(&what.as_str()))
            .map(|(what, tensors)| (what, file(&tensors), declared.clone()))
            .collect();
        for (key, value) in &family.lies {
            let mut entry = family.config.clone();
            entry[*key] = value.clone();
            cases.push((format!("{key} = {value}"), good.clone(), config(&entry)));
        }
        let text = |what: &str, config: &str| (what.to_owned(), good.clone(), config.to_owned());
        cases.extend([
            text("configuration cut short", &declared[..declared.len() - 3]),
            text("configuration that is a list", "[]"),
            text("quantization that is a list", r#"{"quantization_config": []}"#),
            ("data cut short".to_owned(), good[..good.len() - 1].to_vec(), declared.clone()),
            ("header cut short".to_owned(), good[..40].to_vec(), declared.clone()),
        ]);
        let huge = |tensor: &Tensor| {
            format!(
                r#""{}":{{"dtype":"{}","shape":[4294967296,4294967296,16],"data_offsets":[0,0]}}"#,
                tensor.0, tensor.1
            )
        };
        let header: Vec<_> = family.tensors.iter().map(huge).collect();
        cases.push((
            "overflowing shapes".to_owned(),
            safetensors(&format!("{{{}}}", header.join(",")), &[]),
            declared.clone(),
        ));
        assert!(cases.len() >= 20, "{}: {} cases", family.name, cases.len());
        for (what, bytes, config) in cases {
            let place = Place::new();
            place.write("model.safetensors", bytes);
            place.write("config.json", config);
            let told =
                place.refused(&["dequantize", ".", "-o", "out", "--device", "emulator"], &["\nhelp: "]);
            let what = format!("{}, {what}", family.name);
            assert!(told.starts_with("error: "), "{what}: {told}");
            // Its tensors can still be looked at, unless there is no telling where they are.
            let inspected = place.run(&["inspect", "."]);
            assert!(matches!(inspected.code, Some(0..=2)), "{what}: {}", inspected.err);
        }
    }
}

const DEQUANTIZE: [&str; 6] =
    ["dequantize", "model.safetensors", "-o", "out.safetensors", "--device", "emulator"];

/// Taken over as they are, they would look like weights that were never quantized.
#[test]
fn experts_in_one_tensor_are_refused() {
    let place = Place::new();
    let experts = tensors(&[("weight", "F8_E4M3", &[2, 128, 128]), ("weight_scale_inv", "F32", &[2, 1, 1])]);
    place.write("model.safetensors", file(&experts));
    place.refused(&DEQUANTIZE, &["weights of [2, 128, 128] are not read"]);
    let inspected = place.run(&["inspect", "model.safetensors"]);
    assert_eq!(inspected.code, Some(1));
    assert!(
        inspected.out.contains("l.weight ") && inspected.err.contains("only matrices"),
        "{}",
        inspected.err
    );
}

/// Bytes whose order or scales are not known here would be wrong numbers.
#[test]
fn bytes_of_unknown_meaning_are_refused() {
    let weight = ("weight", "I8", &[32u64, 64][..]);
    let order = file(&tensors(&[weight, ("SCB", "F32", &[32]), ("weight_format", "U8", &[1])]));
    let mut turing = order.clone();
    *turing.last_mut().expect("a file") = 2;
    let long = file(&tensors(&[weight, ("SCB", "F32", &[32]), ("weight_format", "U8", &[2])]));
    let scaled = file(&tensors(&[weight, ("scale", "F8_E8M0", &[32, 4])]));
    for (bytes, expected) in [
        (order, None),
        (turing, Some("weight_format [2] is not read")),
        (long, Some("'l.weight_format' is U8 [2], expected one U8")),
        (scaled, Some("bytes with a scale of F8_E8M0 are not read")),
    ] {
        let place = Place::new();
        place.write("m.safetensors", bytes);
        let ran =
            place.run(&["dequantize", "m.safetensors", "-o", "out.safetensors", "--device", "emulator"]);
        assert_eq!(ran.code, Some(if expected.is_some() { 2 } else { 0 }), "{expected:?}: {}", ran.err);
        assert!(ran.err.contains(expected.unwrap_or_default()), "{}", ran.err);
        assert_eq!(place.path("out.safetensors").exists(), expected.is_none());
    }
}

/// Data that only reading finds out.
#[test]
fn groups_that_are_not_there_and_shapes_that_are_none_are_refused() {
    let family = &families()[0];
    let mut index = vec![0u8; 64 * 4];
    for (bad, shown) in [(2i32, "column 9 into group 2 of 2"), (-1, "column 9 into group -1 of 2")] {
        index[36..40].copy_from_slice(&bad.to_le_bytes());
        let place = Place::new();
        let mut bytes = file(&family.tensors);
        let start = bytes.len() - index.len();
        bytes[start..].copy_from_slice(&index);
        place.write("model.safetensors", bytes);
        place.refused(&DEQUANTIZE, &["error: model.safetensors: tensor 'l.weight': ", shown]);
    }
    let mut tensors = families()[2].tensors.clone();
    tensors.rotate_left(3);
    let good = file(&tensors);
    for shape in [[-1i64, 64], [32, i64::MAX], [i64::MIN, 0], [64, 32]] {
        let place = Place::new();
        let mut bytes = good.clone();
        let (start, end) = (bytes.len() - 16, bytes.len());
        bytes[start..end].copy_from_slice(&shape.map(i64::to_le_bytes).concat());
        place.write("model.safetensors", bytes);
        place.refused(&DEQUANTIZE, &["quantized weight: "]);
    }
}

/// A machine without the device that is named decodes them all the same.
#[test]
fn weights_of_other_tools_are_decoded_without_a_device() {
    let place = Place::new();
    place.write("m.safetensors", file(&families()[0].tensors));
    let told = place.json(&[
        "dequantize",
        "m.safetensors",
        "-o",
        "out.safetensors",
        "--device",
        "cuda:99",
        "--json",
    ]);
    assert_eq!((&told["device"], &told["weights"][0]["name"]), (&json!("the host"), &json!("l.weight")));
}
