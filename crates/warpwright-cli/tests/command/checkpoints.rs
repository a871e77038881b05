//! `quantize`, `dequantize`, `inspect` and `demo` as a user runs them.

use crate::common::{Place, finish, one_weight, safetensors, weights};
use serde_json::json;

#[test]
fn the_demo_checkpoint_is_quantized_verified_and_restored() {
    let place = Place::new();
    let ran = place.run(&["demo", "-o", "demo.safetensors"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let before = place.json(&["inspect", "demo.safetensors", "--json"]);
    assert_eq!(before["schemes"], json!([]));

    let quantized = place.json(&[
        "quantize",
        "demo.safetensors",
        "-o",
        "q.safetensors",
        "--format",
        "bnb-nf4",
        "--double-quant",
        "--verify",
        "--device",
        "emulator",
        "--report",
        "r.html",
        "--json",
    ]);
    assert_eq!(quantized["verified"], true);
    let error = quantized["relative_error"].as_f64().expect("a number");
    assert!((0.05..0.2).contains(&error), "{error}");
    let (bytes, after) =
        (quantized["bytes"].as_f64().expect("bytes"), quantized["bytes_after"].as_f64().expect("bytes"));
    assert!(bytes / after > 7.0, "{bytes} to {after}");
    let report = String::from_utf8(place.read("r.html")).expect("text");
    assert!(report.contains("<svg") && report.contains("model.layers.1.mlp.down_proj.weight"));

    let inspected = place.json(&["inspect", "q.safetensors", "--json"]);
    assert_eq!(inspected["schemes"], json!(["bnb-nf4"]));
    assert_eq!(inspected["metadata"]["format"], "pt");

    let restored = place.json(&[
        "dequantize",
        "q.safetensors",
        "-o",
        "back.safetensors",
        "--device",
        "emulator",
        "--json",
    ]);
    assert_eq!(restored["weights"].as_array().map(Vec::len), Some(13));
    let after = place.json(&["inspect", "back.safetensors", "--json"]);
    let shapes = |value: &serde_json::Value| {
        let mut shapes: Vec<_> = value["tensors"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|t| (t["name"].to_string(), t["shape"].to_string(), t["dtype"].to_string()))
            .collect();
        shapes.sort();
        shapes
    };
    assert_eq!(shapes(&before), shapes(&after));
    assert_eq!(place.files(), ["back.safetensors", "demo.safetensors", "q.safetensors", "r.html"]);
}

#[test]
fn every_format_is_verified_on_odd_shapes() {
    let place = Place::new();
    place.write("in.safetensors", one_weight([7, 33], weights()));
    let formats: [&[&str]; 8] = [
        &["bnb-nf4"],
        &["bnb-nf4", "--double-quant", "--block-size", "32"],
        &["bnb-fp4", "--block-size", "128"],
        &["bnb-fp4", "--double-quant"],
        &["int4"],
        &["int4", "--asymmetric"],
        &["int4", "--symmetric", "--block-size", "7"],
        &["int4", "--asymmetric", "--block-size", "4294967295"],
    ];
    for (number, format) in formats.into_iter().enumerate() {
        let output = format!("{number}.safetensors");
        let args = [
            &[
                "quantize",
                "in.safetensors",
                "-o",
                &output,
                "--verify",
                "--device",
                "emulator",
                "--json",
                "--format",
            ],
            format,
        ];
        assert_eq!(place.json(&args.concat())["verified"], true, "{format:?}");
        let back = format!("back-{number}.safetensors");
        place.json(&["dequantize", &output, "-o", &back, "--dtype", "f64", "--device", "emulator", "--json"]);
        let tensors = &place.json(&["inspect", &back, "--json"])["tensors"];
        assert_eq!(tensors[0]["dtype"], "F64", "{format:?}");
        assert_eq!(tensors[0]["shape"], json!([7, 33]));
    }
}

/// A bad input, and what the error must say about file, tensor and remedy.
#[test]
fn bad_inputs_are_named_and_leave_nothing_behind() {
    let nan = weights().take(100).chain(std::iter::once(f32::NAN)).chain(weights());
    let header = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let good = one_weight([4, 64], weights());
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("empty", vec![], &["is 0 bytes long"]),
        ("truncated header", good[..20].to_vec(), &["ends inside its header", "cut short"]),
        (
            "truncated data",
            good[..200].to_vec(),
            &["tensor 'w'", "ends at byte 1024 of the data", "fetch it again"],
        ),
        (
            "huge header",
            [&u64::MAX.to_le_bytes()[..], b"{}"].concat(),
            &["claims a header of 18446744073709551615 bytes"],
        ),
        ("pickle", b"\x80\x02}q\x00X\x01\x00\x00\x00".to_vec(), &["claims a header", "pickled"]),
        ("garbage", safetensors("hello", &[]), &["header: expected value"]),
        ("not text", safetensors("{\"\u{0}", &[]), &["header:"]),
        (
            "lying offsets",
            safetensors(&header("F32", "[4,4]", "[0,32]"), &[0; 32]),
            &["tensor 'w'", "takes 64 bytes, data_offsets span 32"],
        ),
        (
            "backwards",
            safetensors(&header("F32", "[1,1]", "[4,0]"), &[0; 4]),
            &["tensor 'w'", "run backwards"],
        ),
        (
            "five billion",
            safetensors(&header("F32", "[5000000000]", "[0,16]"), &[0; 16]),
            &["tensor 'w'", "takes 20000000000 bytes"],
        ),
        (
            "overflow",
            safetensors(&header("F32", "[4294967296,4294967296,16]", "[0,16]"), &[0; 16]),
            &["tensor 'w'", "has no size in bytes"],
        ),
        (
            "unknown dtype",
            safetensors(&header("F33", "[1]", "[0,4]"), &[0; 4]),
            &["tensor 'w'", "unknown dtype 'F33'", "known are"],
        ),
        ("trailing", [&good[..], &[0; 8]].concat(), &["bytes 1024 to 1032 of the data belong to no tensor"]),
        ("nan", one_weight([4, 64], nan), &["tensor 'w'", "element 100 is NaN", "--skip"]),
        (
            "infinite",
            one_weight([4, 64], weights().map(|x| 1.0 / (x * 0.0))),
            &["tensor 'w'", "element 0 is -inf"],
        ),
    ];
    for (what, bytes, expected) in cases {
        let place = Place::new();
        place.write("in.safetensors", bytes);
        let quantize =
            ["quantize", "in.safetensors", "-o", "q.safetensors", "--format=bnb-nf4", "--device=emulator"];
        let told = place.refused(&quantize, expected);
        assert!(told.starts_with("error: in.safetensors: ") && told.contains("\nhelp: "), "{what}: {told}");
    }
}

#[test]
fn misuse_is_told_before_any_work() {
    let place = Place::new();
    place.write("in.safetensors", one_weight([4, 64], weights()));
    place.write("there.safetensors", "mine");
    let cases: [(&[&str], &str); 10] = [
        (&["there.safetensors", "--format", "int4"], "there.safetensors: exists already"),
        (&["q.safetensors", "--format", "bnb-nf4", "--block-size", "48"], "--block-size 48"),
        (&["q.safetensors", "--format", "int4", "--double-quant"], "--double-quant is for the bnb formats"),
        (&["q.safetensors", "--format", "bnb-fp4", "--asymmetric"], "are for int4"),
        (&["q.safetensors", "--format", "int4", "--skip", "["], "--skip:"),
        (&["q.safetensors", "--format", "int4", "--device", "tpu"], "names no device"),
        (
            &["q.safetensors", "--format", "int4", "--report", "there.safetensors"],
            "there.safetensors: exists already",
        ),
        (&["no/folder/q.safetensors", "--format", "int4"], "no/folder/q.safetensors: cannot create the file"),
        (&["q.safetensors", "--format", "int5"], "invalid value 'int5'"),
        (&["q.safetensors"], "--format"),
    ];
    place.refuses(&["quantize", "in.safetensors", "-o"], &cases);
    let missing = ["quantize", "nowhere.safetensors", "-o", "q", "--format", "int4"];
    place.refused(&missing, &["error: nowhere.safetensors: cannot open: "]);
}

#[test]
fn an_output_is_replaced_only_when_asked() {
    let place = Place::new();
    place.write("in.safetensors", one_weight([4, 64], weights()));
    place.write("q.safetensors", "mine");
    let args =
        ["quantize", "in.safetensors", "-o", "q.safetensors", "--format", "int4", "--device", "emulator"];
    place.refused(&args, &["q.safetensors: exists already"]);
    let ran = place.run(&[&args[..], &["--force"]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!(place.json(&["inspect", "q.safetensors", "--json"])["schemes"], json!(["int4"]));
    let again = ["quantize", "q.safetensors", "-o", "qq.safetensors", "--format", "int4"];
    place.refused(&again, &["is quantized already (int4)"]);
}

/// A disk that is full: the shell limits the size of files that the command may write.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_the_folder_as_it_was() {
    let place = Place::new();
    place.write("in.safetensors", one_weight([512, 512], weights()));
    place.write("q.safetensors", "mine");
    let script = "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\"";
    let mut shell = std::process::Command::new("sh");
    shell.current_dir(place.path("")).args(["-c", script, env!("CARGO_BIN_EXE_warpwright")]);
    shell.args([
        "quantize",
        "in.safetensors",
        "-o",
        "q.safetensors",
        "--format",
        "int4",
        "--force",
        "--device",
        "emulator",
    ]);
    let ran = finish(&mut shell);
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(ran.err.contains("error: q.safetensors: tensor 'w': cannot write: "), "{}", ran.err);
    assert!(ran.err.contains("help: free some space"), "{}", ran.err);
    assert_eq!(place.files(), ["in.safetensors", "q.safetensors"]);
    assert_eq!(place.read("q.safetensors"), b"mine");
}

#[cfg(unix)]
#[test]
fn an_output_that_is_no_file_is_refused_even_with_force() {
    let place = Place::new();
    place.write("in.safetensors", one_weight([4, 64], weights()));
    let quantize = ["quantize", "in.safetensors", "-o", "/dev/full", "--format", "int4", "--force"];
    place.refused(&quantize, &["error: /dev/full: is not a regular file"]);
}

#[test]
fn shards_go_in_and_out_through_the_index() {
    let place = Place::new();
    std::fs::create_dir(place.path("model")).expect("a folder");
    place.write("model/1.safetensors", one_weight([4, 64], weights()));
    let header = r#"{"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    place.write("model/2.safetensors", safetensors(header, &[1; 8]));
    let index = r#"{"metadata":{"total_size":1032},"weight_map":{"w":"1.safetensors","v":"2.safetensors"}}"#;
    place.write("model/model.safetensors.index.json", index);
    place.write("model/config.json", r#"{"architectures":["Test"]}"#);
    let ran = place.run(&["quantize", "model", "-o", "out", "--format", "bnb-nf4", "--device", "emulator"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let config: serde_json::Value = serde_json::from_slice(&place.read("out/config.json")).expect("JSON");
    assert_eq!(config["quantization_config"]["quant_method"], "bitsandbytes");
    assert_eq!(config["architectures"], json!(["Test"]));
    let inspected = place.json(&["inspect", "out/model.safetensors.index.json", "--json"]);
    assert_eq!(inspected["files"], json!(["1.safetensors", "2.safetensors"]));
    assert_eq!(place.files(), ["model", "out"]);
}

#[test]
fn a_name_from_a_file_cannot_act_on_the_terminal() {
    let place = Place::new();
    let header = r#"{"\u001b[2J":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    place.write("in.safetensors", safetensors(header, &[0; 4]));
    let ran = place.run(&["inspect", "in.safetensors"]);
    assert_eq!(ran.code, Some(0));
    assert!(ran.out.contains("\\u{1b}[2J") && !ran.out.contains('\u{1b}'), "{}", ran.out);
}
