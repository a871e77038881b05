//! Checkpoints in other tools' formats as a user makes them: written, read back, and converted into one another.

use std::collections::BTreeMap;

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Value, json};

use crate::common::Place;

const Q: &str = "model.layers.0.self_attn.q_proj.weight";
const K: &str = "model.layers.0.self_attn.k_proj.weight";
const ODD: &str = "model.layers.0.odd.weight";

/// Weights that look like a layer's: some of them large, a group of zeros, and one of a sign.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    (0..count)
        .map(|at| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let x = (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
            match at {
                0..32 => 0.0,
                32..64 => x.abs() + 0.01,
                _ if at % 97 == 0 => x * 9.0,
                _ => x * 0.2,
            }
        })
        .collect()
}

/// A model's folder: two layers that are multiplied as one, and what is never quantized.
fn model(place: &Place, dtype: Dtype) {
    let bytes = |values: &[f32]| -> Vec<u8> {
        match dtype {
            Dtype::BF16 => values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect(),
            Dtype::F16 => values.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect(),
            _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    };
    let shapes = [
        (Q, vec![160, 96], 1),
        (K, vec![32, 96], 2),
        (ODD, vec![5, 7], 3),
        ("model.embed_tokens.weight", vec![10, 96], 4),
        ("lm_head.weight", vec![32, 96], 5),
        ("model.norm.weight", vec![96], 6),
    ];
    let data: Vec<_> = shapes
        .iter()
        .map(|(name, shape, seed)| (*name, shape.clone(), bytes(&numbers(shape.iter().product(), *seed))))
        .collect();
    let views = data
        .iter()
        .map(|(name, shape, bytes)| (*name, TensorView::new(dtype, shape.clone(), bytes).expect("a tensor")));
    std::fs::create_dir_all(place.path("model")).expect("a folder");
    place.write("model/model.safetensors", safetensors::serialize(views, None).expect("a file"));
    place.write("model/config.json", r#"{"architectures":["LlamaForCausalLM"],"hidden_size":96}"#);
    place.write("model/tokenizer.json", "{}");
}

/// The tensors of a file, by name.
fn tensors(place: &Place, file: &str) -> BTreeMap<String, Vec<u8>> {
    let bytes = place.read(file);
    let read = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    read.tensors().into_iter().map(|(name, view)| (name, view.data().to_vec())).collect()
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// The folder dequantized to f32.
fn restored(place: &Place, folder: &str) -> BTreeMap<String, Vec<u8>> {
    let back = format!("{folder}-f32");
    let args = ["dequantize", folder, "-o", &back, "--dtype", "f32", "--device", "emulator", "--json"];
    place.json(&args);
    tensors(place, &format!("{back}/model.safetensors"))
}

/// Every format, its scheme, options, and the largest relative error that it may have.
const FORMATS: [(&str, &str, &[&str], f64); 12] = [
    ("gptq", "gptq", &["--group-size", "32"], 0.13),
    ("gptq", "gptq", &["--group-size", "96", "--asymmetric", "--search"], 0.2),
    ("gptq", "gptq", &["--group-size", "32", "--search"], 0.12),
    ("awq", "awq", &["--group-size", "32"], 0.13),
    ("awq", "awq", &["--group-size", "48", "--symmetric"], 0.16),
    ("compressed-tensors-int4", "pack-quantized", &["--group-size", "32"], 0.13),
    ("compressed-tensors-int4", "pack-quantized", &["--block-size", "16", "--asymmetric"], 0.12),
    ("mxfp4", "mxfp4-pack-quantized", &[], 0.17),
    ("mxfp4", "mxfp4-pack-quantized", &["--search"], 0.15),
    ("nvfp4", "nvfp4-pack-quantized", &[], 0.12),
    ("nvfp4", "nvfp4-pack-quantized", &["--search"], 0.11),
    ("fp8", "fp8", &[], 0.03),
];

#[test]
fn what_is_written_is_read_back_with_the_error_that_was_told() {
    for dtype in [Dtype::F32, Dtype::BF16, Dtype::F16] {
        let place = Place::new();
        model(&place, dtype);
        let original = restored_floats(&place, dtype);
        for (number, (format, scheme, options, limit)) in FORMATS.into_iter().enumerate() {
            let what = format!("{dtype:?} {format} {options:?}");
            let out = format!("out-{number}");
            let args = [&["quantize", "model", "-o", &out, "--json", "--format", format], options].concat();
            let told = place.json(&args);
            let inspected = place.json(&["inspect", &out, "--json"]);
            assert_eq!(inspected["schemes"], json!([scheme]), "{what}");
            assert_eq!(inspected["defect"], Value::Null, "{what}");
            let back = restored(&place, &out);
            assert_eq!(back.keys().collect::<Vec<_>>(), original.keys().collect::<Vec<_>>(), "{what}");
            for tensor in told["tensors"].as_array().expect("a list") {
                let name = tensor["name"].as_str().expect("a name");
                let whole = format == "fp8" && name == ODD;
                assert_eq!(tensor["quantized"], [Q, K].contains(&name) || whole, "{what} {name}");
                if tensor["quantized"] != true {
                    continue;
                }
                let (x, y) = (f32s(&original[name]), f32s(&back[name]));
                let sum = |of: &dyn Fn(usize) -> f64| (0..x.len()).map(|at| of(at).powi(2)).sum::<f64>();
                let error = (sum(&|at| f64::from(x[at]) - f64::from(y[at])) / sum(&|at| x[at].into())).sqrt();
                let said = tensor["relative_error"].as_f64().expect("a number");
                assert!((error - said).abs() <= 1e-6 * said, "{what} {name}: {error}, told {said}");
                assert!(error < limit, "{what} {name}: {error}");
                assert!(x.iter().zip(&y).all(|(x, y)| *x != 0.0 || *y == 0.0), "{what}: zero stays zero");
            }
            assert!(place.path(&format!("{out}/tokenizer.json")).exists(), "{what}");
        }
    }
}

/// The weights before, in f32.
fn restored_floats(place: &Place, dtype: Dtype) -> BTreeMap<String, Vec<u8>> {
    let wide = |bytes: &[u8]| -> Vec<u8> {
        let pairs = bytes.as_chunks::<2>().0;
        match dtype {
            Dtype::BF16 => {
                pairs.iter().flat_map(|b| half::bf16::from_le_bytes(*b).to_f32().to_le_bytes()).collect()
            }
            Dtype::F16 => {
                pairs.iter().flat_map(|b| half::f16::from_le_bytes(*b).to_f32().to_le_bytes()).collect()
            }
            _ => bytes.to_vec(),
        }
    };
    tensors(place, "model/model.safetensors").into_iter().map(|(name, bytes)| (name, wide(&bytes))).collect()
}

#[test]
fn the_configuration_says_what_was_written() {
    let place = Place::new();
    model(&place, Dtype::BF16);
    let entry = |options: &[&str]| -> Value {
        place.json(&[&["quantize", "model", "-o", "out", "--force", "--json"], options].concat());
        let config: Value = serde_json::from_slice(&place.read("out/config.json")).expect("JSON");
        assert_eq!(config["architectures"], json!(["LlamaForCausalLM"]));
        config["quantization_config"].clone()
    };
    let left = json!(["lm_head", "model.embed_tokens", "model.layers.0.odd"]);
    let gptq = entry(&["--format", "gptq", "--group-size", "32"]);
    let expected = json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": false, "sym": true,
        "lm_head": false, "checkpoint_format": "gptq",
        "dynamic": {"-:^lm_head$": {}, r"-:^model\.embed_tokens$": {}, r"-:^model\.layers\.0\.odd$": {}}});
    assert_eq!(gptq, expected);
    let awq = entry(&["--format", "awq", "--group-size", "32"]);
    assert_eq!(
        (&awq["zero_point"], &awq["version"], &awq["modules_to_not_convert"]),
        (&json!(true), &json!("gemm"), &left)
    );
    let int4 = entry(&["--format", "compressed-tensors-int4", "--group-size", "32", "--asymmetric"]);
    let weights = &int4["config_groups"]["group_0"]["weights"];
    assert_eq!((&int4["format"], &int4["ignore"]), (&json!("pack-quantized"), &left));
    assert_eq!(
        (&weights["symmetric"], &weights["group_size"], &weights["num_bits"]),
        (&json!(false), &json!(32), &json!(4))
    );
    let skipped = entry(&["--format", "nvfp4", "--skip", "*q_proj*"]);
    assert_eq!(skipped["format"], "nvfp4-pack-quantized");
    assert_eq!(skipped["ignore"].as_array().map(Vec::len), Some(4));
    let fp8 = entry(&["--format", "fp8"]);
    assert_eq!((&fp8["quant_method"], &fp8["weight_block_size"]), (&json!("fp8"), &json!([128, 128])));
    assert_eq!(fp8["modules_to_not_convert"], json!(["lm_head", "model.embed_tokens"]));
}

/// Layers that are multiplied as one have one divisor, which is that of the largest number of both.
#[test]
fn nvfp4_divisors_are_shared() {
    let place = Place::new();
    model(&place, Dtype::F32);
    place.json(&["quantize", "model", "-o", "out", "--format", "nvfp4", "--json"]);
    let (all, original) =
        (tensors(&place, "out/model.safetensors"), tensors(&place, "model/model.safetensors"));
    let global = |name: &str| f32s(&all[&name.replace(".weight", ".weight_global_scale")])[0];
    let largest =
        [Q, K].iter().flat_map(|name| f32s(&original[*name])).fold(0f32, |most, x| most.max(x.abs()));
    assert_eq!((global(Q), global(K)), (2688.0 / largest, 2688.0 / largest));
}

#[test]
fn integers_keep_their_codes_from_format_to_format() {
    let place = Place::new();
    model(&place, Dtype::F16);
    for zero_points in ["--symmetric", "--asymmetric"] {
        let first = format!("gptq{zero_points}");
        place.json(&[
            "quantize",
            "model",
            "-o",
            &first,
            "--format",
            "gptq",
            "--group-size",
            "32",
            "--json",
            zero_points,
        ]);
        let numbers = restored(&place, &first);
        let mut folder = first.clone();
        for format in ["compressed-tensors-int4", "awq", "compressed-tensors-int4", "gptq"] {
            let next = format!("{folder}-{format}");
            let told = place.json(&["convert", &folder, "-o", &next, "--format", format, "--json"]);
            let errors: Vec<_> =
                told["tensors"].as_array().expect("a list").iter().map(|t| &t["relative_error"]).collect();
            assert_eq!(errors.iter().filter(|error| ***error == json!(0.0)).count(), 2, "{next}: {errors:?}");
            assert_eq!(told["group_size"], 32);
            let total = |folder: &str| place.json(&["inspect", folder, "--json"])["bytes"].clone();
            assert_eq!((&told["bytes"], &told["bytes_after"]), (&total(&folder), &total(&next)), "{next}");
            assert!(restored(&place, &next) == numbers, "{next}");
            folder = next;
        }
        let file = |folder: &str| tensors(&place, &format!("{folder}/model.safetensors"));
        assert!(file(&folder) == file(&first), "{zero_points}: the same file after all");
    }
}

/// From scales of f32 to those of f16: the same codes, and an error of half a unit in the last place of f16.
#[test]
fn codes_are_kept_where_scales_are_rounded() {
    let place = Place::new();
    model(&place, Dtype::F32);
    place.json(&[
        "quantize",
        "model",
        "-o",
        "ct",
        "--format",
        "compressed-tensors-int4",
        "--group-size",
        "32",
        "--json",
    ]);
    let told = place.json(&["convert", "ct", "-o", "gptq", "--format", "gptq", "--json"]);
    place.json(&["convert", "gptq", "-o", "back", "--format", "compressed-tensors-int4", "--json"]);
    let (ct, back) = (tensors(&place, "ct/model.safetensors"), tensors(&place, "back/model.safetensors"));
    let codes = Q.replace(".weight", ".weight_packed");
    assert!(ct[&codes] == back[&codes]);
    let (x, y) = (restored(&place, "ct"), restored(&place, "gptq"));
    let largest = f32s(&x[Q]).iter().zip(f32s(&y[Q])).map(|(x, y)| (x - y).abs()).fold(0f32, f32::max);
    let of_q =
        told["tensors"].as_array().expect("a list").iter().find(|t| t["name"] == Q).expect("it is there");
    assert_eq!(of_q["max_error"].as_f64(), Some(f64::from(largest)));
    assert!((1e-6..2f64.powi(-11)).contains(&of_q["relative_error"].as_f64().expect("a number")), "{of_q}");
}

#[test]
fn a_conversion_that_cannot_keep_codes_quantizes_again() {
    let place = Place::new();
    model(&place, Dtype::BF16);
    place.json(&[
        "quantize",
        "model",
        "-o",
        "int4",
        "--format",
        "compressed-tensors-int4",
        "--group-size",
        "32",
        "--json",
    ]);
    for (format, limit) in [("nvfp4", 0.12), ("mxfp4", 0.2), ("fp8", 0.03)] {
        let out = format!("out-{format}");
        let told = place.json(&["convert", "int4", "-o", &out, "--format", format, "--json"]);
        let (before, after) = (restored(&place, "int4"), restored(&place, &out));
        std::fs::remove_dir_all(place.path("int4-f32")).expect("it is there");
        let of_q =
            told["tensors"].as_array().expect("a list").iter().find(|t| t["name"] == Q).expect("it is there");
        assert!(
            (1e-4..limit).contains(&of_q["relative_error"].as_f64().expect("a number")),
            "{format}: {of_q}"
        );
        assert_eq!(before["model.embed_tokens.weight"], after["model.embed_tokens.weight"], "{format}");
        let inspected = place.json(&["inspect", &out, "--json"]);
        assert_eq!(inspected["defect"], Value::Null, "{format}");
    }
    // Half of a row's group has no place.
    let ran = place.run(&["convert", "int4", "-o", "none", "--format", "gptq", "--group-size", "64"]);
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.err.contains("a weight of [160, 96] cannot be stored as gptq")
            || ran.err.contains("a weight of [32, 96]"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("help: name another format or --group-size"), "{}", ran.err);
    assert!(!place.path("none").exists());
    // Back to integers of other groups.
    let told = place.json(&[
        "convert",
        "out-fp8",
        "-o",
        "again",
        "--format",
        "gptq",
        "--group-size",
        "96",
        "--json",
    ]);
    assert_eq!(told["symmetric"], true);
}

#[test]
fn four_bit_floats_of_modelopt_keep_codes_and_scales() {
    let place = Place::new();
    model(&place, Dtype::BF16);
    place.json(&["quantize", "model", "-o", "ct", "--format", "nvfp4", "--json"]);
    // ModelOpt's names, and its factor for compressed-tensors' divisor.
    let theirs = tensors(&place, "ct/model.safetensors");
    let shapes = |name: &str| if name.contains("q_proj") { [160, 96] } else { [32, 96] };
    let mut renamed: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for (name, bytes) in &theirs {
        let [n, k] = shapes(name);
        if let Some(base) = name.strip_suffix("weight_packed") {
            renamed.push((format!("{base}weight"), Dtype::U8, vec![n, k / 2], bytes.clone()));
        } else if name.ends_with("weight_scale") {
            renamed.push((name.clone(), Dtype::F8_E4M3, vec![n, k / 16], bytes.clone()));
        } else if let Some(base) = name.strip_suffix("weight_global_scale") {
            let factor = (1.0 / f32s(bytes)[0]).to_le_bytes().to_vec();
            renamed.push((format!("{base}weight_scale_2"), Dtype::F32, vec![], factor));
            renamed.push((format!("{base}input_scale"), Dtype::F32, vec![], 1f32.to_le_bytes().to_vec()));
        }
    }
    let views = renamed.iter().map(|(name, dtype, shape, bytes)| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor"))
    });
    std::fs::create_dir(place.path("modelopt")).expect("a folder");
    place.write("modelopt/model.safetensors", safetensors::serialize(views, None).expect("a file"));
    let told = place.json(&["convert", "modelopt", "-o", "back", "--format", "nvfp4", "--json"]);
    // The reciprocal of the factor is rounded, and so is what readers divide by it.
    let (x, y) = (restored(&place, "modelopt"), restored(&place, "back"));
    let told = told["tensors"].as_array().expect("a list");
    assert!(told.iter().any(|tensor| tensor["max_error"] != 0.0), "{told:?}");
    for tensor in told {
        let name = tensor["name"].as_str().expect("a name");
        let pairs = || f32s(&x[name]).into_iter().zip(f32s(&y[name]));
        let largest = pairs().map(|(x, y)| (x - y).abs()).fold(0f32, f32::max);
        assert_eq!(tensor["max_error"].as_f64(), Some(f64::from(largest)), "{name}");
        assert!(pairs().all(|(x, y)| (x - y).abs() <= 2.0 * f32::EPSILON * x.abs()), "{name}");
    }
    let back = tensors(&place, "back/model.safetensors");
    assert_eq!(back.len(), 6);
    for (name, bytes) in &back {
        if name.ends_with("weight_global_scale") {
            // The reciprocal of a reciprocal.
            let (a, b) = (f32s(bytes)[0], f32s(&theirs[name])[0]);
            assert!((a - b).abs() <= 2.0 * f32::EPSILON * b, "{name}: {a}, {b}");
        } else {
            assert!(bytes == &theirs[name], "{name}");
        }
    }
}

#[test]
fn misuse_of_formats_is_told_before_any_work() {
    let place = Place::new();
    model(&place, Dtype::F32);
    place.json(&["quantize", "model", "-o", "q", "--format", "mxfp4", "--json"]);
    let file = "model/model.safetensors";
    place.json(&[
        "quantize",
        file,
        "-o",
        "bnb.safetensors",
        "--format",
        "bnb-nf4",
        "--device",
        "emulator",
        "--json",
    ]);
    let cases: [(&[&str], &str); 11] = [
        (&["quantize", "model", "--format", "nvfp4", "--group-size", "32"], "nvfp4 has groups of 16"),
        (&["quantize", "model", "--format", "gptq", "--group-size", "12"], "groups of a multiple of 8"),
        (&["quantize", "model", "--format", "mxfp4", "--asymmetric"], "are for integers"),
        (&["quantize", "model", "--format", "fp8", "--search"], "--search is for the 4-bit formats"),
        (&["quantize", "model", "--format", "int4", "--search"], "--search is not for int4"),
        (&["quantize", "model", "--format", "awq", "--verify"], "--verify is not for awq"),
        (&["quantize", "q", "--format", "gptq"], "is quantized already (mxfp4-pack-quantized)"),
        (&["convert", "model", "--format", "gptq"], "holds no quantized weights\nhelp: "),
        (
            &["convert", "bnb.safetensors", "--format", "gptq"],
            "holds bnb-nf4 weights, which are not converted",
        ),
        (&["convert", "q", "--format", "nvfp4", "--symmetric"], "are for integers"),
        (&["convert", "q", "--format", "awq", "--group-size", "7"], "groups of a multiple of 8"),
    ];
    for (args, expected) in cases {
        place.refused(&[args, &["-o", "out"]].concat(), &[expected]);
    }
}

#[test]
fn numbers_that_have_no_code_or_scale_are_refused() {
    for (value, expected) in [(f32::NAN, "element 70 is NaN"), (1e30, "need a scale that F16 cannot hold")] {
        let place = Place::new();
        let mut x = numbers(32 * 32, 9);
        x[70] = value;
        let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
        let view = TensorView::new(Dtype::F32, vec![32, 32], &bytes).expect("a tensor");
        place.write("in.safetensors", safetensors::serialize([("l.weight", view)], None).expect("a file"));
        let args =
            ["quantize", "in.safetensors", "-o", "out.safetensors", "--format", "gptq", "--group-size", "32"];
        place.refused(&args, &["tensor 'l.weight'", expected]);
    }
}

/// A folder with both forms of a checkpoint would be two models, of which loaders take the one or the other.
#[test]
fn a_checkpoint_of_the_other_form_is_not_left_beside_the_output() {
    let place = Place::new();
    model(&place, Dtype::F32);
    std::fs::create_dir(place.path("sharded")).expect("a folder");
    place.write("sharded/a.safetensors", place.read("model/model.safetensors"));
    let map: BTreeMap<_, _> =
        tensors(&place, "model/model.safetensors").into_keys().map(|name| (name, "a.safetensors")).collect();
    place.write("sharded/model.safetensors.index.json", json!({"weight_map": map}).to_string());
    for folder in ["one", "many"] {
        std::fs::create_dir(place.path(folder)).expect("a folder");
    }
    place.write("one/model.safetensors", "theirs");
    place.write("many/model.safetensors.index.json", "theirs");
    for (input, output, other) in [
        ("model", "many", "many/model.safetensors.index.json"),
        ("model/model.safetensors", "many", "many/model.safetensors.index.json"),
        ("sharded", "one", "one/model.safetensors"),
    ] {
        let told = format!("error: {other}: would be loaded instead");
        let quantize = ["quantize", input, "-o", output, "--format", "fp8", "--force"];
        place.refused(&quantize, &[&told, "\nhelp: remove the checkpoint"]);
    }
    // Of the same form, it is replaced.
    for (input, output) in [("model", "one"), ("sharded", "many")] {
        place.json(&["quantize", input, "-o", output, "--format", "fp8", "--force", "--json"]);
        assert_eq!(place.json(&["inspect", output, "--json"])["schemes"], json!(["fp8"]));
    }
}

/// Found out before the work, which takes long.
#[test]
fn a_model_of_other_weights_and_a_bad_configuration_are_refused() {
    let place = Place::new();
    model(&place, Dtype::F32);
    for (config, expected) in [
        (r#"{"model_type": "gpt2"}"#, "model/model.safetensors: weights of gpt2 are [inputs, outputs]"),
        ("{", "model/config.json: not a JSON object"),
    ] {
        place.write("model/config.json", config);
        let told = format!("error: {expected}");
        place.refused(&["quantize", "model", "-o", "out", "--format", "fp8"], &[&told, "\nhelp: "]);
    }
    place.write("model/config.json", r#"{"model_type": "gpt_bigcode"}"#);
    place.json(&["quantize", "model", "-o", "out", "--format", "fp8", "--json"]);
}

/// Keys and shapes alone do not tell a loader what it reads.
#[test]
fn a_missing_configuration_and_an_empty_outcome_are_told() {
    let place = Place::new();
    model(&place, Dtype::F32);
    std::fs::remove_file(place.path("model/config.json")).expect("it is there");
    let ran = place.run(&["quantize", "model", "-o", "out", "--format", "gptq", "--group-size", "64"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.err.contains("note: the input has no config.json"), "{}", ran.err);
    assert!(ran.err.contains("note: no tensor was quantized: gptq with groups of 64"), "{}", ran.err);
    let ran = place.run(&["quantize", "model", "-o", "fp8", "--format", "fp8"]);
    assert!(!ran.err.contains("no tensor was quantized"), "{}", ran.err);
    let ran = place.run(&["dequantize", "fp8", "-o", "back", "--device", "emulator"]);
    assert_eq!((ran.code, ran.err.contains("config.json")), (Some(0), false), "{}", ran.err);
}
