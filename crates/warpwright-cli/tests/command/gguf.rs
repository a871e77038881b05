//! GGUF files: inspected, dequantized, and refused where they are damaged.

use serde_json::{Value, json};

use crate::common::Place;

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A key, its type and its bytes.
fn pair(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&string(key)[..], &kind.to_le_bytes(), value].concat()
}

/// A tensor's entry: extents from the innermost on, ggml's type, offset.
fn entry(name: &str, extents: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let extents: Vec<u8> = extents.iter().flat_map(|extent| extent.to_le_bytes()).collect();
    let dimensions = (extents.len() as u32 / 8).to_le_bytes();
    [&string(name)[..], &dimensions, &extents, &kind.to_le_bytes(), &offset.to_le_bytes()].concat()
}

/// A file of these pairs and entries, with `data` from the next multiple of `alignment` on.
fn file(pairs: &[Vec<u8>], entries: &[Vec<u8>], data: &[u8], alignment: usize) -> Vec<u8> {
    let counts = [entries.len() as u64, pairs.len() as u64].map(u64::to_le_bytes).concat();
    let mut bytes = [&b"GGUF"[..], &3u32.to_le_bytes(), &counts].concat();
    bytes.extend(pairs.concat());
    bytes.extend(entries.concat());
    bytes.resize(bytes.len().next_multiple_of(alignment), 0);
    bytes.extend(data);
    bytes
}

/// Values of every kind, lists among them.
fn pairs() -> Vec<Vec<u8>> {
    let strings = [&8u32.to_le_bytes()[..], &2u64.to_le_bytes(), &string("a"), &string("bc")].concat();
    let numbers = [&5u32.to_le_bytes()[..], &3u64.to_le_bytes(), &[0; 12]].concat();
    let nested = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes(), &numbers].concat();
    vec![
        pair("general.architecture", 8, &string("llama")),
        pair("llama.block_count", 4, &[1, 0, 0, 0]),
        pair("flag", 7, &[1]),
        pair("wide", 12, &[0; 8]),
        pair("tokenizer.ggml.tokens", 9, &strings),
        pair("nested", 9, &nested),
        pair("general.alignment", 4, &64u32.to_le_bytes()),
    ]
}

/// Two rows of two Q8_0 blocks, each with the scale 0.5 and codes that count from `first` on.
fn q8_0() -> Vec<u8> {
    let block = |first: i8| {
        [&half::f16::from_f32(0.5).to_le_bytes()[..], &(0..32).map(|e| (first + e) as u8).collect::<Vec<_>>()]
            .concat()
    };
    [block(-16), block(0), block(1), block(2)].concat()
}

fn good() -> Vec<u8> {
    let mut data = q8_0();
    data.resize(192, 0);
    data.extend([1f32, 2.0, 3.0].iter().flat_map(|x| x.to_le_bytes()));
    let entries = [entry("blk.0.w.weight", &[64, 2], 8, 0), entry("norm.weight", &[3], 0, 192)];
    file(&pairs(), &entries, &data, 64)
}

#[test]
fn a_file_is_named_and_dequantized() {
    let place = Place::new();
    place.write("m.gguf", good());
    let inspected = place.json(&["inspect", "m.gguf", "--json"]);
    assert_eq!(inspected["schemes"], json!(["gguf-q8_0"]));
    assert_eq!(inspected["metadata"], json!({"general.architecture": "llama"}));
    assert_eq!(inspected["tensors"][0]["quantization"]["shape"], json!([2, 64]));
    assert_eq!(inspected["tensors"][1]["shape"], json!([3]));
    let restored =
        place.json(&["dequantize", "m.gguf", "-o", "m.safetensors", "--device", "emulator", "--json"]);
    assert_eq!((&restored["weights"][0]["dtype"], &restored["copied"]), (&json!("f16"), &json!(1)));
    place.json(&[
        "dequantize",
        "m.gguf",
        "-o",
        "wide.safetensors",
        "--dtype",
        "f32",
        "--device",
        "emulator",
        "--json",
    ]);
    let bytes = place.read("wide.safetensors");
    let read = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let floats = |name: &str| -> Vec<f32> {
        let view = read.tensor(name).expect("it is there");
        view.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    let expected =
        [-16i8, 0, 1, 2].into_iter().flat_map(|first| (0..32).map(move |e| f32::from(first + e) * 0.5));
    assert_eq!(floats("blk.0.w.weight"), expected.collect::<Vec<_>>());
    assert_eq!(floats("norm.weight"), [1.0, 2.0, 3.0]);
    // A folder gets the name that a checkpoint of one file has.
    std::fs::create_dir(place.path("out")).expect("a folder");
    let ran = place.run(&["dequantize", "m.gguf", "-o", "out", "--device", "emulator"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(place.path("out/model.safetensors").exists());
    // So does one that is not there yet, if it is spelled as one.
    let ran = place.run(&["dequantize", "m.gguf", "-o", "new/", "--device", "emulator"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!(place.read("new/model.safetensors"), place.read("out/model.safetensors"));
    let ran = place.run(&["dequantize", "m.gguf", "-o", "wide.gguf"]);
    assert_eq!((ran.code, place.path("wide.gguf").exists()), (Some(2), false));
    assert!(ran.err.contains("GGUF files are read, not written\nhelp: -o wide.safetensors"), "{}", ran.err);
    // llama.cpp's names are no names for these.
    let ran = place.run(&["convert", "m.gguf", "-o", "q.safetensors", "--format", "fp8"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("llama.cpp's names"), "{}", ran.err);
    assert!(!place.path("q.safetensors").exists());
    place.write("f32.gguf", file(&[], &[entry("blk.0.w.weight", &[8, 2], 0, 0)], &[0; 64], 32));
    let quantize = ["quantize", "f32.gguf", "-o", "q.safetensors", "--format", "fp8"];
    place.refused(&quantize, &["llama.cpp's names"]);
}

#[test]
fn damaged_files_are_refused_and_leave_nothing_behind() {
    let data = q8_0();
    let one = |entry: Vec<u8>| file(&[], &[entry], &data, 32);
    let value = |kind: u32, value: &[u8]| file(&[pair("k", kind, value)], &[], &[], 32);
    let list = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
    let good = good();
    let patched = |at: usize, bytes: &[u8]| {
        let mut all = good.clone();
        all[at..at + bytes.len()].copy_from_slice(bytes);
        all
    };
    let deep = (0..6).fold(list(5, 0), |inner, _| [&list(9, 1)[..], &inner].concat());
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("the magic alone", b"GGUF".to_vec(), "ends inside its header"),
        ("version 1", patched(4, &1u32.to_le_bytes()), "version 1"),
        ("the other order of bytes", patched(4, &3u32.to_be_bytes()), "only 2 and 3 in little-endian"),
        ("too many tensors", patched(8, &u64::MAX.to_le_bytes()), ""),
        ("too many values", patched(16, &u64::MAX.to_le_bytes()), ""),
        ("a long name", patched(24, &u64::MAX.to_le_bytes()), "name of 18446744073709551615 bytes"),
        ("a name that is no text", patched(32, &[0xff]), "not UTF-8"),
        ("cut in the header", good[..90].to_vec(), "ends inside its header"),
        ("cut in the data", good[..good.len() - 1].to_vec(), "ends at byte"),
        ("an unknown value", value(13, &[0; 8]), "unknown type 13"),
        ("a long string", value(8, &u64::MAX.to_le_bytes()), "ends inside its header"),
        ("a long list", value(9, &list(12, u64::MAX)), "ends inside its header"),
        ("a long list of strings", value(9, &list(8, 1 << 60)), "ends inside its header"),
        ("lists in lists in lists", value(9, &deep), "unknown type 9"),
        ("no alignment", file(&[pair("general.alignment", 4, &[0; 4])], &[], &[], 32), "no power of two"),
        (
            "an odd alignment",
            file(&[pair("general.alignment", 4, &[24, 0, 0, 0])], &[], &[], 32),
            "no power of two",
        ),
        ("five dimensions", one(entry("w", &[32, 1, 1, 1, 1], 8, 0)), "has 5 dimensions"),
        ("an unknown type", one(entry("w", &[32, 2], 10, 0)), "has the ggml type 10 (Q2_K)"),
        ("a type that nobody knows", one(entry("w", &[32, 2], 99, 0)), "has the ggml type 99, which"),
        ("part of a block", one(entry("w", &[48, 2], 8, 0)), "rows of 48 elements in blocks of 32"),
        ("a vector in blocks", one(entry("w", &[32], 8, 0)), "which only matrices are"),
        ("a number in blocks", one(entry("w", &[], 8, 0)), "which only matrices are"),
        ("overflowing extents", one(entry("w", &[1 << 40, 1 << 40], 8, 0)), "has no size in bytes"),
        ("overflowing empty extents", one(entry("w", &[0, 1 << 40, 1 << 40], 8, 0)), "has no size in bytes"),
        ("an overflowing row", one(entry("w", &[!31, 1], 8, 0)), "has no size in bytes"),
        ("behind the end", one(entry("w", &[64, 4], 8, 0)), "ends at byte 272 of the data"),
        ("far behind the end", one(entry("w", &[64, 2], 8, !31)), "has no size in bytes"),
        ("not aligned", one(entry("w", &[64, 1], 8, 8)), "no multiple of 32"),
        (
            "two of a name",
            file(&[], &[entry("w", &[32, 1], 8, 0), entry("w", &[32, 1], 8, 64)], &data, 32),
            "appears twice",
        ),
        (
            "one over the other",
            file(&[], &[entry("v", &[64, 1], 8, 0), entry("w", &[64, 1], 8, 32)], &data, 32),
            "overlaps tensor 'v'",
        ),
    ];
    for (what, bytes, expected) in cases {
        let place = Place::new();
        place.write("m.gguf", bytes);
        for command in [
            &["dequantize", "m.gguf", "-o", "out.safetensors", "--device", "emulator"][..],
            &["inspect", "m.gguf"],
        ] {
            let told = place.refused(command, &[expected, "\nhelp: "]);
            assert!(told.starts_with("error: m.gguf: "), "{what}: {told}");
        }
    }
}

#[test]
fn an_index_does_not_lead_to_such_a_file() {
    let place = Place::new();
    place.write("m.gguf", good());
    let index: Value = json!({"weight_map": {"norm.weight": "m.gguf"}});
    place.write("model.safetensors.index.json", index.to_string());
    place.refused(&["inspect", "model.safetensors.index.json"], &["m.gguf"]);
}
