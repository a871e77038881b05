//! Every decoder against its formula, element by element, on random words and odd sizes.

use half::{bf16, f16};
use serde_json::{Value, json};
use warpwright_ptx::DType;
use warpwright_ptx::float8::{e4m3_value, e5m2_value};

use super::packing::e8m0_value;
use super::*;
use crate::checkpoint::{Layout, StoredType, TensorSpec, Writer};

/// Random words, the same in every run.
struct Random(u64);

impl Random {
    fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    fn words(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.word()).collect()
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.word() as u8).collect()
    }

    /// Scales, among them 0, infinity and NaN.
    fn scales(&mut self, count: usize) -> Vec<f32> {
        let special = [0.0, f32::INFINITY, f32::NAN, -0.5];
        (0..count)
            .map(|_| match self.word() % 16 {
                at @ 0..4 => special[at as usize],
                _ => (self.word() % 4000) as f32 / 4096.0 + 0.001,
            })
            .collect()
    }
}

type Tensor<'a> = (&'a str, StoredType, &'a [usize], Vec<u8>);

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Numbers in a 16- or 32-bit type, and what is left of them.
fn floats(values: &[f32], dtype: StoredType) -> (Vec<u8>, Vec<f32>) {
    match dtype {
        StoredType::F16 => {
            let kept: Vec<_> = values.iter().map(|v| f16::from_f32(*v)).collect();
            (kept.iter().flat_map(|v| v.to_le_bytes()).collect(), kept.iter().map(|v| v.to_f32()).collect())
        }
        StoredType::BF16 => {
            let kept: Vec<_> = values.iter().map(|v| bf16::from_f32(*v)).collect();
            (kept.iter().flat_map(|v| v.to_le_bytes()).collect(), kept.iter().map(|v| v.to_f32()).collect())
        }
        _ => (values.iter().flat_map(|v| v.to_le_bytes()).collect(), values.to_vec()),
    }
}

/// The only weight of a checkpoint of these tensors, and its numbers.
fn decoded(tensors: &[Tensor<'_>], config: &Value) -> (PackedWeight, Vec<f32>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let specs: Vec<_> = tensors
        .iter()
        .map(|(name, dtype, shape, _)| TensorSpec {
            name: (*name).to_owned(),
            dtype: *dtype,
            shape: shape.iter().map(|extent| *extent as u64).collect(),
        })
        .collect();
    let mut writer = Writer::create(&path, true, Layout::new(&path, &[], &specs).unwrap()).unwrap();
    tensors.iter().enumerate().for_each(|(at, (.., bytes))| writer.append(at, bytes).unwrap());
    writer.commit().unwrap();
    if !config.is_null() {
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    }
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let mut found = find_packed(&checkpoint).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    let weight = found.remove(0);
    let decoder = Decoder::open(&checkpoint, &weight).unwrap();
    // In two bands, so that rows in the middle are begun with too.
    let middle = weight.all_rows() / 2;
    let mut values = decoder.rows(0..middle).unwrap();
    values.extend(decoder.rows(middle..weight.all_rows()).unwrap());
    assert_eq!(weight.parts().count() + 1, tensors.len(), "every tensor belongs to the weight");
    drop(decoder);
    (weight, values)
}

fn assert_same(got: &[f32], expected: impl Iterator<Item = f32>, what: &str) {
    let expected: Vec<_> = expected.collect();
    assert_eq!(got.len(), expected.len(), "{what}");
    for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
        let same = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
        assert!(same, "{what}: element {at} is {got}, expected {expected}");
    }
}

/// Bits `from..from + count` of a stream of words, one bit at a time.
fn bits(word: impl Fn(usize) -> u32, from: usize, count: usize) -> u32 {
    (0..count).map(|bit| (word((from + bit) / 32) >> ((from + bit) % 32) & 1) << bit).sum()
}

fn elements(rows: usize, columns: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).flat_map(move |n| (0..columns).map(move |k| (n, k)))
}

#[test]
fn gptq_is_decoded_in_all_widths_formats_and_orders() {
    let mut random = Random(1);
    for b in [2usize, 3, 4, 8] {
        for (n_all, k_all, g, act_order) in
            [(8usize, 64usize, 32, false), (5, 37, 16, true), (1, 96, 96, false), (33, 64, 48, true)]
        {
            for (format, less_one) in [("gptq", 1), ("gptq_v2", 0)] {
                let groups = k_all.div_ceil(g);
                let q = random.words((k_all * b).div_ceil(32) * n_all);
                let zero_words = (n_all * b).div_ceil(32);
                let z = random.words(groups * zero_words);
                let (scales, s) = floats(&random.scales(groups * n_all), StoredType::F16);
                let index: Vec<u32> = (0..k_all)
                    .map(|k| if act_order { random.word() % groups as u32 } else { (k / g) as u32 })
                    .collect();
                let config = json!({"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "gptq",
                    "bits": b, "group_size": g, "sym": false, "desc_act": act_order, "checkpoint_format": format}});
                let tensors = [
                    ("l.qweight", StoredType::I32, &[(k_all * b).div_ceil(32), n_all][..], bytes_of(&q)),
                    ("l.qzeros", StoredType::I32, &[groups, zero_words], bytes_of(&z)),
                    ("l.scales", StoredType::F16, &[groups, n_all], scales),
                    ("l.g_idx", StoredType::I32, &[k_all], bytes_of(&index)),
                ];
                let (weight, got) = decoded(&tensors, &config);
                assert_eq!(
                    (weight.name.as_str(), weight.shape()),
                    ("l.weight", vec![n_all as u64, k_all as u64])
                );
                assert_eq!((weight.tool, weight.dtype), (Tool::Gptq, DType::BF16));
                let expected = elements(n_all, k_all).map(|(n, k)| {
                    let group = index[k] as usize;
                    let code = bits(|word| q[word * n_all + n], k * b, b);
                    let stored = bits(|word| z[group * zero_words + word], n * b, b);
                    let zero = (stored + less_one) % (1 << b);
                    (code as f32 - zero as f32) * s[group * n_all + n]
                });
                assert_same(&got, expected, &format!("{b} bits, [{n_all}, {k_all}], {format}"));
            }
        }
    }
}

#[test]
fn symmetric_gptq_is_believed_by_its_words() {
    let q = Random(2).words(4 * 8);
    let (scales, s) = floats(&[0.5; 8], StoredType::F16);
    // Format 1 as it should be, format 1 in name alone, and no configuration at all.
    let quantized = |entry: Value| json!({ "quantization_config": entry });
    let says = |format: &str| {
        quantized(
            json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true, "checkpoint_format": format}),
        )
    };
    for (word, config) in [
        (0x7777_7777u32, says("gptq")),
        (0x8888_8888, says("gptq")),
        (0x8888_8888, says("gptq_v2")),
        (0x7777_7777, says("gptq_v2")),
        (0x7777_7777, Value::Null),
        (0x8888_8888, Value::Null),
    ] {
        let tensors = [
            ("l.qweight", StoredType::I32, &[4, 8][..], bytes_of(&q)),
            ("l.qzeros", StoredType::I32, &[1, 1], bytes_of(&[word])),
            ("l.scales", StoredType::F16, &[1, 8], scales.clone()),
        ];
        let (weight, got) = decoded(&tensors, &config);
        assert_eq!(weight.dtype, DType::F16);
        let expected = elements(8, 32).map(|(n, k)| {
            let code = bits(|word| q[word * 8 + n], k * 4, 4);
            (code as f32 - 8.0) * s[n]
        });
        assert_same(&got, expected, &format!("{word:#x}, {config}"));
    }
}

#[test]
fn awq_is_decoded_in_its_order_of_nibbles() {
    const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
    let mut random = Random(3);
    for (n_all, k_all, g) in [(8usize, 32usize, 32), (24, 37, 16), (64, 5, 5)] {
        let groups = k_all.div_ceil(g);
        let width = n_all / 8;
        let (q, z) = (random.words(k_all * width), random.words(groups * width));
        let (scales, s) = floats(&random.scales(groups * n_all), StoredType::F16);
        let config = json!({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": g, "version": "GEMM"}});
        let tensors = [
            ("l.qweight", StoredType::I32, &[k_all, width][..], bytes_of(&q)),
            ("l.qzeros", StoredType::I32, &[groups, width], bytes_of(&z)),
            ("l.scales", StoredType::F16, &[groups, n_all], scales),
        ];
        let (weight, got) = decoded(&tensors, &config);
        assert_eq!((weight.tool, weight.dtype), (Tool::Awq, DType::F16));
        // Nibble i of a word holds column ORDER[i].
        let nibble = |words: &[u32], row: usize, n: usize| {
            let at = ORDER.iter().position(|column| *column == n % 8).unwrap();
            (words[row * width + n / 8] >> (4 * at) & 15) as f32
        };
        let expected = elements(n_all, k_all)
            .map(|(n, k)| (nibble(&q, k, n) - nibble(&z, k / g, n)) * s[k / g * n_all + n]);
        assert_same(&got, expected, &format!("[{n_all}, {k_all}]"));
    }
}

#[test]
fn pack_quantized_is_decoded_with_every_width_strategy_and_order() {
    let mut random = Random(4);
    for b in 1..=8usize {
        for (n_all, k_all, g) in [(8, 64, 32), (5, 37, 16), (3, 70, 70), (1, 5, 5)] {
            for (zero_points, act_order, scale_type) in [
                (false, false, StoredType::BF16),
                (true, false, StoredType::F16),
                (true, true, StoredType::F32),
            ] {
                let groups = usize::div_ceil(k_all, g);
                let width = (k_all * b).div_ceil(32);
                let q = random.words(n_all * width);
                let z = random.words((n_all * b).div_ceil(32) * groups);
                let (scales, s) = floats(&random.scales(n_all * groups), scale_type);
                let index: Vec<u32> = (0..k_all).map(|_| random.word() % groups as u32).collect();
                let shape: Vec<u8> =
                    [n_all as u64, k_all as u64].iter().flat_map(|n| n.to_le_bytes()).collect();
                let config = json!({"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized",
                    "config_groups": {"group_0": {"weights": {"num_bits": b, "group_size": g}}}}});
                let shapes = [[n_all, width], [n_all, groups], [(n_all * b).div_ceil(32), groups]];
                let mut tensors = vec![
                    ("l.weight_packed", StoredType::I32, &shapes[0][..], bytes_of(&q)),
                    ("l.weight_scale", scale_type, &shapes[1], scales),
                    ("l.weight_shape", StoredType::I64, &[2], shape),
                ];
                if zero_points {
                    tensors.push(("l.weight_zero_point", StoredType::I32, &shapes[2], bytes_of(&z)));
                }
                let columns = [k_all];
                if act_order {
                    tensors.push(("l.weight_g_idx", StoredType::I32, &columns, bytes_of(&index)));
                }
                let (weight, got) = decoded(&tensors, &config);
                assert_eq!(weight.tool, Tool::PackQuantized);
                let expected = elements(n_all, k_all).map(|(n, k)| {
                    let group = if act_order { index[k] as usize } else { k / g };
                    let code = bits(|word| q[n * width + word], k * b, b);
                    let zero = if zero_points {
                        bits(|word| z[word * groups + group], n * b, b) as f32
                    } else {
                        2f32.powi(b as i32 - 1)
                    };
                    (code as f32 - zero) * s[n * groups + group]
                });
                assert_same(&got, expected, &format!("{b} bits, [{n_all}, {k_all}], {scale_type}"));
            }
        }
    }
}

#[test]
fn an_unset_index_and_a_single_scale_are_understood() {
    let q = Random(5).words(3 * 2);
    let shape: Vec<u8> = [3u64, 16].iter().flat_map(|n| n.to_le_bytes()).collect();
    let tensors = [
        ("l.weight_packed", StoredType::I32, &[3, 2][..], bytes_of(&q)),
        ("l.weight_scale", StoredType::F32, &[1], 0.25f32.to_le_bytes().to_vec()),
        ("l.weight_shape", StoredType::I64, &[2], shape),
        ("l.weight_g_idx", StoredType::I32, &[16], vec![0xff; 64]),
    ];
    let (weight, got) = decoded(&tensors, &Value::Null);
    assert_eq!((weight.codes.code, weight.dtype), (Code::Unsigned(4), DType::BF16));
    let expected = elements(3, 16).map(|(n, k)| (bits(|word| q[n * 2 + word], k * 4, 4) as f32 - 8.0) * 0.25);
    assert_same(&got, expected, "one scale");
}

/// Scales of one number, of rows, of blocks and of groups, for codes of a byte.
#[test]
fn bytes_are_decoded_with_scales_of_every_shape() {
    let mut random = Random(6);
    for (n_all, k_all) in [(130usize, 257usize), (1, 128), (128, 256), (7, 33)] {
        let [block_n, block_k] = [n_all.div_ceil(128), k_all.div_ceil(128)];
        let shapes: [(&[usize], [usize; 2]); 6] = [
            (&[], [n_all, k_all]),
            (&[1], [n_all, k_all]),
            (&[n_all], [1, k_all]),
            (&[n_all, 1], [1, k_all]),
            (&[block_n, block_k], [128, 128]),
            (&[n_all, k_all.div_ceil(8)], [1, 8]),
        ];
        for (shape, [share_n, share_k]) in shapes {
            let count: usize = shape.iter().product();
            // A row of K / 128 groups is a block as well.
            let [declared, value] = if share_k == 8 { ["group_size", "8"] } else { ["fmt", "0"] };
            let value: Value = serde_json::from_str(value).unwrap();
            for (stored, key, tool) in [
                (StoredType::F8E4M3, "l.weight_scale_inv", Tool::Fp8),
                (StoredType::F8E5M2, "l.weight_scale", Tool::Fp8),
                (StoredType::I8, "l.weight_scale", Tool::IntQuantized),
            ] {
                let q = random.bytes(n_all * k_all);
                let (scales, s) = floats(&random.scales(count), StoredType::F32);
                let config = json!({"quantization_config": {"quant_method": "fp8", declared: value}});
                let tensors = [
                    ("l.weight", stored, &[n_all, k_all][..], q.clone()),
                    (key, StoredType::F32, shape, scales),
                    ("l.input_scale", StoredType::F32, &[1], vec![0; 4]),
                ];
                let (weight, got) = decoded(&tensors, &config);
                assert_eq!((weight.tool, weight.dtype), (tool, DType::BF16));
                let expected = elements(n_all, k_all).map(|(n, k)| {
                    let byte = q[n * k_all + k];
                    let code = match stored {
                        StoredType::F8E4M3 => e4m3_value(byte) as f32,
                        StoredType::F8E5M2 => e5m2_value(byte) as f32,
                        _ => f32::from(byte as i8),
                    };
                    let per_row = k_all.div_ceil(share_k);
                    code * s[n / share_n * per_row + k / share_k]
                });
                assert_same(&got, expected, &format!("{stored} [{n_all}, {k_all}], scales {shape:?}"));
            }
        }
    }
}

#[test]
fn integers_of_a_byte_have_zero_points() {
    let mut random = Random(7);
    let (q, z) = (random.bytes(6 * 10), random.bytes(6 * 2));
    let (scales, s) = floats(&random.scales(6 * 2), StoredType::F16);
    let tensors = [
        ("l.weight", StoredType::I8, &[6, 10][..], q.clone()),
        ("l.weight_scale", StoredType::F16, &[6, 2], scales),
        ("l.weight_zero_point", StoredType::I8, &[6, 2], z.clone()),
    ];
    let (_, got) = decoded(&tensors, &Value::Null);
    let expected = elements(6, 10).map(|(n, k)| {
        let at = n * 2 + k / 5;
        (f32::from(q[n * 10 + k] as i8) - f32::from(z[at] as i8)) * s[at]
    });
    assert_same(&got, expected, "int8");
}

#[test]
fn eight_bit_floats_without_scales_are_casts() {
    let q: Vec<u8> = (0..=255).collect();
    let (weight, got) = decoded(&[("l.weight", StoredType::F8E4M3, &[4, 64], q.clone())], &Value::Null);
    assert_eq!(weight.describe(), "fp8, without scales");
    assert_same(&got, q.iter().map(|byte| e4m3_value(*byte) as f32), "cast");
}

#[test]
fn llm_int8_is_decoded() {
    let mut random = Random(8);
    let q = random.bytes(5 * 7);
    let (scales, s) = floats(&random.scales(5), StoredType::F32);
    let tensors = [
        ("l.weight", StoredType::I8, &[5, 7][..], q.clone()),
        ("l.SCB", StoredType::F32, &[5], scales),
        ("l.weight_format", StoredType::U8, &[], vec![0]),
    ];
    let (weight, got) = decoded(&tensors, &Value::Null);
    assert_eq!(weight.tool, Tool::BnbInt8);
    let expected = elements(5, 7).map(|(n, k)| f32::from(q[n * 7 + k] as i8) * (s[n] / 127.0));
    assert_same(&got, expected, "LLM.int8");
}

/// A 4-bit float by its definition: 2^(e - 1) (1 + m / 2), or m / 2 for e = 0.
fn e2m1(code: u8) -> f32 {
    let (sign, exponent, mantissa) = (code >> 3 & 1, i32::from(code >> 1 & 3), f32::from(code & 1));
    let size = if exponent == 0 { mantissa / 2.0 } else { 2f32.powi(exponent - 1) * (1.0 + mantissa / 2.0) };
    if sign == 1 { -size } else { size }
}

#[test]
fn four_bit_floats_are_decoded_with_both_kinds_of_scales() {
    let mut random = Random(9);
    for (n_all, k_all) in [(4usize, 64usize), (3, 34), (1, 2)] {
        let q = random.bytes(n_all * k_all / 2);
        let code = |n: usize, k: usize| e2m1(q[(n * k_all + k) / 2] >> (4 * (k % 2)) & 15);
        let shapes = [[n_all, k_all / 2], [n_all, k_all.div_ceil(16)], [n_all, k_all.div_ceil(32)]];
        let eight = random.bytes(shapes[1][0] * shapes[1][1]);
        let global = 96.5f32;
        for (codes, factor, tool) in [
            ("l.weight_packed", "l.weight_global_scale", Tool::Nvfp4),
            ("l.weight", "l.weight_scale_2", Tool::ModelOptNvfp4),
        ] {
            let tensors = [
                (codes, StoredType::U8, &shapes[0][..], q.clone()),
                ("l.weight_scale", StoredType::F8E4M3, &shapes[1], eight.clone()),
                (factor, StoredType::F32, &[], global.to_le_bytes().to_vec()),
            ];
            let (weight, got) = decoded(&tensors, &Value::Null);
            assert_eq!((weight.name.as_str(), weight.tool), ("l.weight", tool));
            let expected = elements(n_all, k_all).map(|(n, k)| {
                let s = e4m3_value(eight[n * shapes[1][1] + k / 16]) as f32;
                code(n, k) * if tool == Tool::Nvfp4 { s / global } else { s * global }
            });
            assert_same(&got, expected, tool.name());
        }
        let mut powers = random.bytes(shapes[2][0] * shapes[2][1]);
        powers[0] = 255;
        if let Some(last) = powers.get_mut(1) {
            *last = 0;
        }
        for stored in [StoredType::U8, StoredType::F8E8M0] {
            let tensors = [
                ("l.weight_packed", StoredType::U8, &shapes[0][..], q.clone()),
                ("l.weight_scale", stored, &shapes[2], powers.clone()),
            ];
            let (weight, got) = decoded(&tensors, &Value::Null);
            assert_eq!(weight.tool, Tool::Mxfp4);
            let expected = elements(n_all, k_all)
                .map(|(n, k)| code(n, k) * e8m0_value(powers[n * shapes[2][1] + k / 32]));
            assert_same(&got, expected, "mxfp4");
        }
    }
}

#[test]
fn eight_bit_floats_have_powers_of_two() {
    let mut random = Random(10);
    let (q, powers) = (random.bytes(3 * 70), random.bytes(3 * 3));
    let tensors = [
        ("l.weight", StoredType::F8E4M3, &[3, 70][..], q.clone()),
        ("l.weight_scale", StoredType::U8, &[3, 3], powers.clone()),
    ];
    let (weight, got) = decoded(&tensors, &Value::Null);
    assert_eq!(weight.tool, Tool::Mxfp8);
    let expected =
        elements(3, 70).map(|(n, k)| e4m3_value(q[n * 70 + k]) as f32 * e8m0_value(powers[n * 3 + k / 32]));
    assert_same(&got, expected, "mxfp8");
}

#[test]
fn experts_of_gpt_oss_are_decoded() {
    let mut random = Random(11);
    let (blocks, powers) = (random.bytes(2 * 6 * 3 * 16), random.bytes(2 * 6 * 3));
    let tensors = [
        ("e.gate_up_proj_blocks", StoredType::U8, &[2, 6, 3, 16][..], blocks.clone()),
        ("e.gate_up_proj_scales", StoredType::U8, &[2, 6, 3], powers.clone()),
    ];
    let (weight, got) = decoded(&tensors, &Value::Null);
    assert_eq!((weight.name.as_str(), weight.shape()), ("e.gate_up_proj", vec![2, 96, 6]));
    let expected = elements(12, 96).map(|(n, k)| {
        let byte = blocks[(n * 3 + k / 32) * 16 + k % 32 / 2];
        e2m1(byte >> (4 * (k % 2)) & 15) * e8m0_value(powers[n * 3 + k / 32])
    });
    assert_same(&got, expected, "gpt-oss");
}

/// Random blocks whose f16 scales are numbers of ordinary size.
fn random_blocks(random: &mut Random, block: Block, count: usize) -> Vec<u8> {
    let mut bytes = random.bytes(count * block.bytes());
    for one in bytes.chunks_exact_mut(block.bytes()) {
        let scales: &[usize] = match block {
            Block::Q4_1 | Block::Q5_1 | Block::Q4K | Block::Q5K => &[0, 2],
            Block::Q6K => &[208],
            Block::Mxfp4 => &[],
            _ => &[0],
        };
        for at in scales {
            let d = f16::from_f32((random.word() % 2000) as f32 / 1000.0 - 1.0);
            one[*at..at + 2].copy_from_slice(&d.to_le_bytes());
        }
    }
    bytes
}

/// As ggml's loops write elements, run by run, with every place computed from the beginning of the block.
fn ggml(block: Block, b: &[u8]) -> Vec<f32> {
    let half = |at: usize| f16::from_le_bytes([b[at], b[at + 1]]).to_f32();
    let mut y = vec![0.0; block.elements()];
    match block {
        Block::Q4_0 | Block::Q4_1 | Block::Q5_0 | Block::Q5_1 | Block::Mxfp4 => {
            for j in 0..16 {
                let (qs, qh) = match block {
                    Block::Q4_0 => (2, None),
                    Block::Q4_1 => (4, None),
                    Block::Q5_0 => (6, Some(2)),
                    Block::Q5_1 => (8, Some(4)),
                    _ => (1, None),
                };
                let bit = |e: usize| {
                    qh.map_or(0, |at| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]) >> e & 1)
                };
                for (e, nibble) in [(j, b[qs + j] & 15), (j + 16, b[qs + j] >> 4)] {
                    let q = (u32::from(nibble) | bit(e) << 4) as f32;
                    y[e] = match block {
                        Block::Q4_0 => half(0) * (q - 8.0),
                        Block::Q5_0 => half(0) * (q - 16.0),
                        Block::Mxfp4 => e2m1(nibble) * e8m0_value(b[0]),
                        _ => half(0) * q + half(2),
                    };
                }
            }
        }
        Block::Q8_0 => (0..32).for_each(|e| y[e] = half(0) * f32::from(b[2 + e] as i8)),
        Block::Q4K | Block::Q5K => {
            let (qs, mut is) = (if block == Block::Q4K { 16 } else { 48 }, 0);
            let p = &b[4..16];
            let scale_min = |j: usize| match j {
                0..4 => (p[j] & 63, p[j + 4] & 63),
                _ => ((p[j + 4] & 15) | ((p[j - 4] >> 6) << 4), (p[j + 4] >> 4) | ((p[j] >> 6) << 4)),
            };
            for j in (0..256).step_by(64) {
                for (shift, at) in [(0, j), (4, j + 32)] {
                    let (sc, m) = scale_min(is);
                    for l in 0..32 {
                        let high = if block == Block::Q5K { (b[16 + l] >> is & 1) * 16 } else { 0 };
                        let q = (b[qs + j / 2 + l] >> shift & 15) + high;
                        y[at + l] = half(0) * f32::from(sc) * f32::from(q) - half(2) * f32::from(m);
                    }
                    is += 1;
                }
            }
        }
        Block::Q6K => {
            for n in 0..2 {
                let (ql, qh, sc) = (64 * n, 128 + 32 * n, 192 + 8 * n);
                for l in 0..32 {
                    let of = |byte: u8, pair: u32| i32::from(byte | (b[qh + l] >> (2 * pair) & 3) << 4) - 32;
                    let q = [
                        of(b[ql + l] & 15, 0),
                        of(b[ql + l + 32] & 15, 1),
                        of(b[ql + l] >> 4, 2),
                        of(b[ql + l + 32] >> 4, 3),
                    ];
                    for (quarter, q) in q.into_iter().enumerate() {
                        let scale = f32::from(b[sc + l / 16 + 2 * quarter] as i8);
                        y[128 * n + 32 * quarter + l] = half(208) * scale * q as f32;
                    }
                }
            }
        }
    }
    y
}

#[test]
fn blocks_of_gguf_are_decoded_as_ggml_does() {
    let mut random = Random(12);
    for number in 0..64 {
        let Some(block) = Block::from_number(number) else { continue };
        let bytes = random_blocks(&mut random, block, 20);
        let mut got = Vec::new();
        block.decode(&bytes, &mut got);
        let expected = bytes.chunks_exact(block.bytes()).flat_map(|one| ggml(block, one));
        assert_same(&got, expected, block.name());
    }
}
