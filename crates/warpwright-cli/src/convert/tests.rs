//! The engines on kernels that are the reference itself, so that only the streaming is under test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use globset::{Glob, GlobSetBuilder};
use warpwright_ops::quantize::reference;
use warpwright_ptx::DType;
use warpwright_runtime::{Device, HostBuffer};

use super::destination::Destination;
use super::device::DeviceKernels;
use super::kernels::{GroupBuffers, Groups, Kernels, Lane, Method, NestedScales};
use super::quantize::{Observer, Options};
use super::verify::Mismatches;
use super::{dequantize, quantize};
use crate::args::Format;
use crate::checkpoint::atomic::tests::names_in;
use crate::checkpoint::floats;
use crate::checkpoint::quantized::find_quantized;
use crate::checkpoint::sharded::{INDEX, SINGLE};
use crate::checkpoint::{Checkpoint, Layout, StoredType, TensorSpec, Writer};
use crate::error::Error;

/// The reference as a device; flips a bit of the codes if it is told to.
#[derive(Clone, Copy, Default)]
struct Reference {
    broken: bool,
}

impl Kernels for Reference {
    fn lane(&self) -> Result<Box<dyn Lane + '_>, Error> {
        Ok(Box::new(*self))
    }
}

impl Lane for Reference {
    fn host(&self, bytes: usize) -> Result<HostBuffer, Error> {
        Ok(HostBuffer::pageable(bytes))
    }

    fn quantize(
        &mut self,
        x: &[u8],
        dtype: DType,
        method: Method,
        out: &mut GroupBuffers,
    ) -> Result<(), Error> {
        let x = floats::to_f64(x, dtype);
        let q = reference::quantize::<f32>(&x, method.scheme, method.group_size as usize, method.order);
        let codes = out.codes.fit(self, q.codes.len())?;
        codes.copy_from_slice(&q.codes);
        codes[0] ^= u8::from(self.broken);
        (out.scales, out.zero_points) = (q.scales, q.zero_points);
        Ok(())
    }

    fn dequantize(
        &mut self,
        groups: Groups<'_>,
        dtype: DType,
        method: Method,
        values: &mut [u8],
    ) -> Result<(), Error> {
        let q = reference::Quantized {
            codes: groups.codes.to_vec(),
            scales: groups.scales.to_vec(),
            zero_points: groups.zero_points.to_vec(),
        };
        let elements = values.len() / dtype.bytes();
        let group_size = method.group_size as usize;
        let restored = reference::dequantize(&q, elements, method.scheme, group_size, method.order);
        let mut bytes = Vec::new();
        restored.iter().for_each(|value| floats::push(&mut bytes, f64::from(*value), dtype));
        values.copy_from_slice(&bytes);
        Ok(())
    }

    fn nest(&mut self, scales: &[f32]) -> Result<NestedScales, Error> {
        let reference::Nested { codes, absmax, offset } = reference::quantize_nested(scales);
        Ok(NestedScales { codes, absmax, offset })
    }

    fn unnest(&mut self, nested: &NestedScales) -> Result<Vec<f32>, Error> {
        let NestedScales { codes, absmax, offset } = nested.clone();
        Ok(reference::dequantize_nested(&reference::Nested { codes, absmax, offset }))
    }
}

struct Silent;

impl Observer for Silent {
    fn begin(&self, _: &str) {}
    fn advance(&self, _: u64) {}
}

type Tensors<'a> = &'a [(&'a str, StoredType, &'a [u64], Vec<u8>)];

fn write(path: &Path, tensors: Tensors<'_>) {
    let specs: Vec<_> = tensors
        .iter()
        .map(|(name, dtype, shape, _)| TensorSpec {
            name: (*name).to_owned(),
            dtype: *dtype,
            shape: shape.to_vec(),
        })
        .collect();
    let metadata = [("origin".to_owned(), "test".to_owned())];
    let mut writer = Writer::create(path, true, Layout::new(path, &metadata, &specs).unwrap()).unwrap();
    for (at, (_, _, _, bytes)) in tensors.iter().enumerate() {
        writer.append(at, bytes).unwrap();
    }
    writer.commit().unwrap();
}

/// Numbers that look like weights.
fn values(count: usize, dtype: DType) -> Vec<u8> {
    let mut bytes = Vec::new();
    for i in 0..count {
        floats::push(&mut bytes, ((i * i + 3 * i) % 101) as f64 / 50.0 - 1.0, dtype);
    }
    bytes
}

fn sample(path: &Path) {
    write(
        path,
        &[
            ("a.weight", StoredType::F32, &[7, 33], values(231, DType::F32)),
            ("a.bias", StoredType::F32, &[7], values(7, DType::F32)),
            ("b.weight", StoredType::BF16, &[16, 64], values(1024, DType::BF16)),
            ("c.weight", StoredType::F16, &[3, 5], values(15, DType::F16)),
            ("wide", StoredType::F64, &[2, 2], values(4, DType::F64)),
            ("ids", StoredType::I64, &[1, 4], vec![7; 32]),
            ("nothing", StoredType::F32, &[0, 9], vec![]),
            ("one", StoredType::F32, &[1, 1], values(1, DType::F32)),
        ],
    );
}

fn quantize_to(
    input: &Path,
    output: &Path,
    options: &Options,
    kernels: &Reference,
) -> Result<quantize::Summary, Error> {
    let checkpoint = Checkpoint::open(input)?;
    let destination = Destination::new(input, &checkpoint, output, false)?;
    quantize::run(&checkpoint, destination, options, kernels, &Silent)
}

fn dequantize_to(input: &Path, output: &Path, dtype: Option<DType>) -> Result<dequantize::Summary, Error> {
    let checkpoint = Checkpoint::open(input)?;
    let destination = Destination::new(input, &checkpoint, output, false)?;
    dequantize::run(&checkpoint, destination, dtype, &Reference::default(), &Silent)
}

fn contents(path: &Path) -> BTreeMap<String, (StoredType, Vec<u64>, Vec<u8>)> {
    let checkpoint = Checkpoint::open(path).unwrap();
    checkpoint
        .tensors()
        .map(|at| {
            let bytes = at.shard.read(at.tensor).unwrap();
            (at.tensor.name.clone(), (at.tensor.dtype, at.tensor.shape.clone(), bytes))
        })
        .collect()
}

fn every_option() -> Vec<Options> {
    let mut all = Vec::new();
    for format in [Format::BnbNf4, Format::BnbFp4, Format::Int4] {
        for (block_size, flag) in [(64, false), (64, true), (32, false)] {
            let base = Options { block_size, verify: true, chunk: 100, ..Options::new(format) };
            all.push(Options {
                double_quant: flag && format.is_bnb(),
                asymmetric: flag && !format.is_bnb(),
                ..base
            });
        }
    }
    all.push(Options { block_size: 7, chunk: 1, verify: true, ..Options::new(Format::Int4) });
    all.push(Options { block_size: u32::MAX, asymmetric: true, ..Options::new(Format::Int4) });
    all
}

#[test]
fn every_format_makes_the_whole_way_there_and_back() {
    for options in every_option() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        sample(&path("in.safetensors"));
        let summary =
            quantize_to(&path("in.safetensors"), &path("q.safetensors"), &options, &Reference::default())
                .unwrap();
        assert!(!summary.has_mismatches(), "{options:?}");
        let quantized: Vec<_> = summary.quantized().map(|(tensor, _)| tensor.name.as_str()).collect();
        assert_eq!(quantized.len(), 4, "{quantized:?}");
        let (before, after) = (contents(&path("in.safetensors")), contents(&path("q.safetensors")));
        for name in ["a.bias", "wide", "ids", "nothing"] {
            assert_eq!(before[name], after[name], "{name} is copied through");
        }
        let written: u64 = after.values().map(|(_, _, bytes)| bytes.len() as u64).sum();
        assert_eq!(summary.bytes().1, written);

        dequantize_to(&path("q.safetensors"), &path("back.safetensors"), None).unwrap();
        let back = contents(&path("back.safetensors"));
        assert_eq!(before.keys().collect::<Vec<_>>(), back.keys().collect::<Vec<_>>());
        for (name, (dtype, shape, bytes)) in &back {
            assert_eq!((dtype, shape), (&before[name].0, &before[name].1), "{name}");
            // One pass of the reference over the whole tensor, rounded as the type asks.
            let float = dtype.float().unwrap_or(DType::F32);
            if quantized.contains(&name.as_str()) {
                let x = &before[name].2;
                let method = options.method();
                let mut device = Reference::default();
                let mut groups = GroupBuffers::default();
                device.quantize(x, float, method, &mut groups).unwrap();
                if options.double_quant {
                    let nested = device.nest(&groups.scales).unwrap();
                    groups.scales = device.unnest(&nested).unwrap();
                }
                let mut expected = vec![0; x.len()];
                let groups = groups.groups(x.len() / float.bytes());
                device.dequantize(groups, float, method, &mut expected).unwrap();
                assert_eq!(*bytes, expected, "{name} {options:?}");
            } else {
                assert_eq!(*bytes, before[name].2, "{name}");
            }
        }
        assert_eq!(names_in(folder.path()).len(), 3, "no temporary file is left");
    }
}

/// Random BF16 and F16 weights, large enough that products of code values and scales lie next to the middle between two
/// numbers of those types.
#[test]
fn results_of_the_kernels_verify_whatever_the_type() {
    for (dtype, stored) in [(DType::BF16, StoredType::BF16), (DType::F16, StoredType::F16)] {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f64 / f64::from(1 << 24) - 0.5
        };
        let mut bytes = Vec::new();
        (0..1 << 20).for_each(|_| floats::push(&mut bytes, (random() + random() + random()) * 0.04, dtype));
        write(&path("in.safetensors"), &[("w", stored, &[1024, 1024], bytes)]);
        let checkpoint = Checkpoint::open(&path("in.safetensors")).unwrap();
        for (number, double_quant) in [false, true].into_iter().enumerate() {
            let options = Options { double_quant, verify: true, ..Options::new(Format::BnbNf4) };
            let output = path(&format!("{number}.safetensors"));
            let output = Destination::new(&path("in.safetensors"), &checkpoint, &output, false).unwrap();
            let kernels = DeviceKernels::new(&Device::emulator());
            let summary = quantize::run(&checkpoint, output, &options, &kernels, &Silent).unwrap();
            assert_eq!(summary.tensors[0].mismatches, Some(Mismatches::default()), "{dtype} {double_quant}");
        }
    }
}

/// Chunks are finished in any order, by any number of threads.
#[test]
fn the_summary_does_not_depend_on_the_order_of_chunks() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let tensors: Vec<_> = (0..5).map(|i| format!("{i}.weight")).collect();
    let tensors: Vec<_> = tensors
        .iter()
        .map(|name| (name.as_str(), StoredType::BF16, &[64u64, 640][..], values(64 * 640, DType::BF16)))
        .collect();
    write(&path("in.safetensors"), &tensors);
    for double_quant in [false, true] {
        let options = Options { double_quant, chunk: 640, ..Options::new(Format::BnbNf4) };
        let run = |name: &str| {
            let summary =
                quantize_to(&path("in.safetensors"), &path(name), &options, &Reference::default()).unwrap();
            let errors: Vec<_> = summary.tensors.iter().map(|t| t.error.unwrap()).collect();
            (errors, std::fs::read(path(name)).unwrap())
        };
        let first = run(&format!("first-{double_quant}.safetensors"));
        for round in 0..5 {
            assert_eq!(run(&format!("{round}-{double_quant}.safetensors")), first);
        }
    }
}

#[test]
fn a_type_may_be_asked_for_on_the_way_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    sample(&path("in.safetensors"));
    let options = Options::new(Format::BnbNf4);
    quantize_to(&path("in.safetensors"), &path("q.safetensors"), &options, &Reference::default()).unwrap();
    let summary = dequantize_to(&path("q.safetensors"), &path("back.safetensors"), Some(DType::F16)).unwrap();
    assert_eq!((summary.weights.len(), summary.copied), (4, 4));
    let back = contents(&path("back.safetensors"));
    assert_eq!(back["b.weight"].0, StoredType::F16);
    assert_eq!(back["a.bias"].0, StoredType::F32);
    let again = dequantize_to(&path("back.safetensors"), &path("x.safetensors"), None).unwrap_err();
    assert!(again.to_string().contains("holds no quantized weights"));
}

#[test]
fn the_parts_of_a_weight_are_those_of_bitsandbytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    sample(&path("in.safetensors"));
    let options = Options { double_quant: true, ..Options::new(Format::BnbNf4) };
    quantize_to(&path("in.safetensors"), &path("q.safetensors"), &options, &Reference::default()).unwrap();
    let after = contents(&path("q.safetensors"));
    let shape = |key: &str| (after[key].0, after[key].1.clone());
    assert_eq!(shape("a.weight"), (StoredType::U8, vec![116, 1]));
    assert_eq!(shape("a.weight.absmax"), (StoredType::U8, vec![4]));
    assert_eq!(shape("a.weight.quant_map"), (StoredType::F32, vec![16]));
    assert_eq!(shape("a.weight.nested_absmax"), (StoredType::F32, vec![1]));
    assert_eq!(shape("a.weight.nested_quant_map"), (StoredType::F32, vec![256]));
    let state: serde_json::Value =
        serde_json::from_slice(&after["b.weight.quant_state.bitsandbytes__nf4"].2).unwrap();
    let keys: Vec<_> = state.as_object().unwrap().keys().cloned().collect();
    let expected =
        ["quant_type", "blocksize", "dtype", "shape", "nested_blocksize", "nested_dtype", "nested_offset"];
    assert_eq!(keys, expected);
    assert_eq!(state["dtype"], "bfloat16");
    assert_eq!(state["shape"], serde_json::json!([16, 64]));
    let header = Checkpoint::open(&path("q.safetensors")).unwrap().shards()[0].header().clone();
    assert!(header.metadata.contains(&("format".to_owned(), "pt".to_owned())));
    assert!(header.metadata.contains(&("origin".to_owned(), "test".to_owned())));
}

#[test]
fn skipped_weights_stay() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    sample(&path("in.safetensors"));
    let mut globs = GlobSetBuilder::new();
    globs.add(Glob::new("*.weight").unwrap());
    let options = Options { skip: globs.build().unwrap(), ..Options::new(Format::Int4) };
    let summary =
        quantize_to(&path("in.safetensors"), &path("q.safetensors"), &options, &Reference::default())
            .unwrap();
    assert_eq!(summary.quantized().map(|(tensor, _)| tensor.name.as_str()).collect::<Vec<_>>(), ["one"]);
}

#[test]
fn a_weight_that_is_no_number_is_named_and_nothing_is_left_behind() {
    for (dtype, stored) in
        [(DType::F32, StoredType::F32), (DType::BF16, StoredType::BF16), (DType::F16, StoredType::F16)]
    {
        for (bad, shown) in [(f64::NAN, "NaN"), (f64::INFINITY, "inf"), (f64::NEG_INFINITY, "-inf")] {
            let folder = tempfile::tempdir().unwrap();
            let path = |name: &str| folder.path().join(name);
            let mut bytes = values(500, dtype);
            let mut one = Vec::new();
            floats::push(&mut one, bad, dtype);
            bytes[333 * dtype.bytes()..334 * dtype.bytes()].copy_from_slice(&one);
            write(
                &path("in.safetensors"),
                &[("ok", StoredType::U8, &[1], vec![1]), ("w", stored, &[20, 25], bytes)],
            );
            let options = Options { chunk: 128, ..Options::new(Format::BnbNf4) };
            let error =
                quantize_to(&path("in.safetensors"), &path("q.safetensors"), &options, &Reference::default())
                    .unwrap_err();
            let text = error.to_string();
            assert!(text.contains("in.safetensors: tensor 'w': element 333 is"), "{text}");
            assert!(text.contains(shown), "{text}");
            assert!(error.help().unwrap().contains("--skip"));
            assert_eq!(names_in(folder.path()), ["in.safetensors"]);
        }
    }
}

#[test]
fn weights_at_the_end_of_the_range_are_quantized() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut x = vec![0.0f32; 128];
    (x[70], x[71], x[5]) = (3e38, -3e38, 1e-45);
    write(&path("in.safetensors"), &[("w", StoredType::F32, &[2, 64], floats::f32_bytes(&x))]);
    for (number, options) in every_option().into_iter().enumerate() {
        let output = path(&format!("{number}.safetensors"));
        let summary = quantize_to(&path("in.safetensors"), &output, &options, &Reference::default()).unwrap();
        assert!(!summary.has_mismatches() && summary.error().relative() < 0.2, "{options:?}");
    }
}

#[test]
fn verification_notices_one_wrong_code_and_withholds_the_output() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    sample(&path("in.safetensors"));
    let options = Options { verify: true, ..Options::new(Format::BnbNf4) };
    let summary =
        quantize_to(&path("in.safetensors"), &path("q.safetensors"), &options, &Reference { broken: true })
            .unwrap();
    assert!(summary.has_mismatches());
    let found = summary.tensors.iter().find(|t| t.name == "b.weight").unwrap().mismatches.unwrap();
    assert_eq!((found.codes, found.scales), (1, 0));
    assert_eq!(names_in(folder.path()), ["in.safetensors"]);
}

#[test]
fn keys_that_would_appear_twice_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    write(
        &path("in.safetensors"),
        &[
            ("w", StoredType::F32, &[1, 2], values(2, DType::F32)),
            ("w.absmax", StoredType::F32, &[1], values(1, DType::F32)),
        ],
    );
    let options = Options::new(Format::BnbNf4);
    let error = quantize_to(&path("in.safetensors"), &path("q.safetensors"), &options, &Reference::default())
        .unwrap_err();
    assert!(error.to_string().contains("tensor 'w.absmax': the output would hold"), "{error}");
}

fn sharded(folder: &Path) -> PathBuf {
    let model = folder.join("model");
    std::fs::create_dir(&model).unwrap();
    write(
        &model.join("m-1.safetensors"),
        &[("x.weight", StoredType::F32, &[4, 64], values(256, DType::F32))],
    );
    write(
        &model.join("m-2.safetensors"),
        &[
            ("y.weight", StoredType::BF16, &[2, 64], values(128, DType::BF16)),
            ("z", StoredType::F32, &[3], values(3, DType::F32)),
        ],
    );
    let index = r#"{"metadata":{"total_size":1292},"weight_map":
        {"x.weight":"m-1.safetensors","y.weight":"m-2.safetensors","z":"m-2.safetensors"}}"#;
    std::fs::write(model.join(INDEX), index).unwrap();
    std::fs::write(model.join("config.json"), r#"{"model_type":"test"}"#).unwrap();
    model
}

#[test]
fn shards_go_to_a_folder_with_an_index_and_a_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let model = sharded(folder.path());
    let output = folder.path().join("out");
    let options = Options::new(Format::BnbNf4);
    quantize_to(&model, &output, &options, &Reference::default()).unwrap();
    assert_eq!(names_in(&output), ["config.json", "m-1.safetensors", "m-2.safetensors", INDEX]);
    assert_eq!(names_in(folder.path()), ["model", "out"]);
    let index: serde_json::Value =
        serde_json::from_slice(&std::fs::read(output.join(INDEX)).unwrap()).unwrap();
    assert_eq!(index["weight_map"]["y.weight.absmax"], "m-2.safetensors");
    let total: u64 = contents(&output).values().map(|(_, _, bytes)| bytes.len() as u64).sum();
    assert_eq!(index["metadata"]["total_size"], total);
    let config = std::fs::read_to_string(output.join("config.json")).unwrap();
    assert!(config.contains("\"bnb_4bit_quant_type\": \"nf4\""), "{config}");

    let back = folder.path().join("back");
    dequantize_to(&output, &back, None).unwrap();
    assert_eq!(contents(&back).keys().collect::<Vec<_>>(), ["x.weight", "y.weight", "z"]);
    assert!(!std::fs::read_to_string(back.join("config.json")).unwrap().contains("quantization_config"));
}

#[test]
fn a_new_folder_gets_the_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let model = sharded(folder.path());
    std::fs::write(model.join("tokenizer.json"), "{}").unwrap();
    std::fs::write(model.join("pytorch_model.bin"), "weights of another format").unwrap();
    let output = folder.path().join("out");
    let options = Options::new(Format::BnbNf4);
    quantize_to(&model, &output, &options, &Reference::default()).unwrap();
    let all = ["config.json", "m-1.safetensors", "m-2.safetensors", INDEX, "tokenizer.json"];
    assert_eq!(names_in(&output), all);
    assert_eq!(std::fs::read_to_string(output.join("tokenizer.json")).unwrap(), "{}");
    let back = folder.path().join("back");
    dequantize_to(&output, &back, None).unwrap();
    assert_eq!(names_in(&back), all);

    // A folder with files keeps its own.
    std::fs::write(output.join("tokenizer.json"), "[]").unwrap();
    let checkpoint = Checkpoint::open(&model).unwrap();
    let destination = Destination::new(&model, &checkpoint, &output, true).unwrap();
    quantize::run(&checkpoint, destination, &options, &Reference::default(), &Silent).unwrap();
    assert_eq!(std::fs::read_to_string(output.join("tokenizer.json")).unwrap(), "[]");
}

#[test]
fn parts_of_one_weight_may_lie_in_different_shards() {
    let folder = tempfile::tempdir().unwrap();
    let model = sharded(folder.path());
    let output = folder.path().join("out");
    quantize_to(&model, &output, &Options::new(Format::BnbNf4), &Reference::default()).unwrap();
    // The absmax of x moves to the second shard.
    let all = contents(&output);
    let part = |key: &'static str| {
        let (dtype, shape, bytes) = all[key].clone();
        (key, dtype, shape, bytes)
    };
    let shard = |path: &Path, keys: &[&'static str]| {
        let parts: Vec<_> = keys.iter().map(|key| part(key)).collect();
        let tensors: Vec<_> = parts.iter().map(|(k, d, s, b)| (*k, *d, s.as_slice(), b.clone())).collect();
        write(path, &tensors);
    };
    let split = folder.path().join("split");
    std::fs::create_dir(&split).unwrap();
    shard(&split.join("1.safetensors"), &["x.weight", "x.weight.quant_state.bitsandbytes__nf4"]);
    shard(&split.join("2.safetensors"), &["x.weight.absmax", "x.weight.quant_map"]);
    let index = r#"{"weight_map":{"x.weight":"1.safetensors","x.weight.absmax":"2.safetensors"}}"#;
    std::fs::write(split.join(INDEX), index).unwrap();
    let (whole, back) = (folder.path().join("whole"), folder.path().join("back"));
    dequantize_to(&output, &whole, None).unwrap();
    dequantize_to(&split, &back, None).unwrap();
    assert_eq!(contents(&back)["x.weight"], contents(&whole)["x.weight"]);
    assert_eq!(names_in(&back), ["1.safetensors", INDEX]);
}

#[test]
fn outputs_that_are_there_or_do_not_fit_are_refused_before_any_work() {
    let folder = tempfile::tempdir().unwrap();
    let model = sharded(folder.path());
    let checkpoint = Checkpoint::open(&model).unwrap();
    let refuse =
        |output: &Path| Destination::new(&model, &checkpoint, output, false).unwrap_err().to_string();
    assert!(refuse(&folder.path().join("one.safetensors")).contains("the output must be a folder"));
    let full = folder.path().join("full");
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("README"), "mine").unwrap();
    assert!(refuse(&full).contains("exists already"));
    assert!(refuse(&full.join("README")).contains("exists already"));
    assert!(refuse(&folder.path().join("no/such/folder")).contains("cannot create the folder"));
    // With leave to replace, what is not replaced stays.
    let destination = Destination::new(&model, &checkpoint, &full, true).unwrap();
    let options = Options::new(Format::Int4);
    quantize::run(&checkpoint, destination, &options, &Reference::default(), &Silent).unwrap();
    assert_eq!(std::fs::read_to_string(full.join("README")).unwrap(), "mine");
    assert_eq!(find_quantized(&Checkpoint::open(&full).unwrap()).unwrap().len(), 2);
}

#[test]
fn a_file_goes_into_an_existing_folder_under_its_own_name() {
    let folder = tempfile::tempdir().unwrap();
    sample(&folder.path().join(SINGLE));
    let output = folder.path().join("out");
    std::fs::create_dir(&output).unwrap();
    quantize_to(&folder.path().join(SINGLE), &output, &Options::new(Format::Int4), &Reference::default())
        .unwrap();
    assert_eq!(names_in(&output), [SINGLE]);
}

#[test]
fn a_configuration_of_someone_else_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in");
    std::fs::create_dir(&input).unwrap();
    sample(&input.join(SINGLE));
    std::fs::write(input.join("config.json"), "{}").unwrap();
    let run = |output: &Path| {
        quantize_to(&input.join(SINGLE), output, &Options::new(Format::BnbFp4), &Reference::default())
            .unwrap()
    };
    let summary = run(&input.join("q.safetensors"));
    assert!(summary.notes[0].contains("belongs to the input"));
    assert_eq!(std::fs::read_to_string(input.join("config.json")).unwrap(), "{}");
    assert!(run(&folder.path().join("q.safetensors")).notes.is_empty());
    let config = folder.path().join("config.json");
    assert!(std::fs::read_to_string(&config).unwrap().contains("fp4"));
    std::fs::write(&config, "theirs").unwrap();
    assert!(run(&folder.path().join("q2.safetensors")).notes[0].contains("exists and was left"));
    assert_eq!(std::fs::read_to_string(&config).unwrap(), "theirs");
}

/// A damaged part of a quantized weight, and what the message must say.
#[test]
fn quantized_weights_whose_parts_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    write(&path("in.safetensors"), &[("w", StoredType::F32, &[4, 64], values(256, DType::F32))]);
    let options = Options { double_quant: true, ..Options::new(Format::BnbNf4) };
    quantize_to(&path("in.safetensors"), &path("q.safetensors"), &options, &Reference::default()).unwrap();
    let whole = contents(&path("q.safetensors"));
    const STATE: &str = "w.quant_state.bitsandbytes__nf4";
    let state = String::from_utf8(whole[STATE].2.clone()).unwrap();
    let with_state = |from: &str, to: &str| {
        assert!(state.contains(from), "{from}");
        (STATE, Some(state.replace(from, to).into_bytes()))
    };
    let cases = [
        (("w.absmax", None), "'w.absmax' is missing"),
        (("w.quant_map", Some(vec![0; 60])), "w.quant_map holds 15 F32 where 16 F32 are needed"),
        (("w.quant_map", Some(vec![0; 64])), "is not the standard code"),
        (("w.nested_absmax", Some(vec![0; 8])), "holds 2 F32 where 1 F32"),
        (("w", Some(vec![0; 9])), "w holds 9 U8 where 128 U8"),
        ((STATE, Some(b"{".to_vec())), "state: EOF"),
        (with_state("\"nf4\"", "\"fp4\""), "its key says otherwise"),
        (with_state("64", "0"), "a block size of 0"),
        (with_state("64", "99999999999"), "a block size of 99999999999"),
        (with_state("[4,64]", "[18446744073709551615,64]"), "the shape overflows"),
        (with_state("[4,64]", "[5,64]"), "holds 128 U8 where 160 U8"),
        (with_state("float32\",\"shape", "int8\",\"shape"), "is not a floating-point type"),
        (with_state("256,", "128,"), "nested_blocksize must be 256"),
        (with_state(",\"nested_dtype\":\"float32\"", ""), "go together"),
    ];
    for (number, ((key, bytes), expected)) in cases.into_iter().enumerate() {
        let tensors: Vec<_> = whole
            .iter()
            .filter_map(|(name, (dtype, shape, old))| {
                let new = if name == key { bytes.clone()? } else { old.clone() };
                let shape = if new.len() == old.len() {
                    shape.clone()
                } else {
                    vec![new.len() as u64 * 8 / dtype.bits()]
                };
                Some((name.as_str(), *dtype, shape, new))
            })
            .collect();
        let tensors: Vec<_> = tensors.iter().map(|(n, d, s, b)| (*n, *d, s.as_slice(), b.clone())).collect();
        let damaged = path(&format!("damaged-{number}.safetensors"));
        write(&damaged, &tensors);
        let error = dequantize_to(&damaged, &path("back.safetensors"), None).unwrap_err();
        assert!(error.to_string().contains(expected), "{expected}: {error}");
        assert!(error.help().is_some());
        assert!(!path("back.safetensors").exists());
    }
}
