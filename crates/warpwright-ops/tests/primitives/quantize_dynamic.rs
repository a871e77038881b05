//! Blockwise quantization through its functions: shapes, the map of bitsandbytes, and what has no plan.

use warpwright_ops::dynamic_map::Map;
use warpwright_ops::quantize_dynamic::{
    DequantizeDynamicDesc, Problem, QuantizeDynamicDesc, QuantizedDynamic, dequantize_dynamic,
    quantize_dynamic, reference,
};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Tensor};

/// A few entries of `create_dynamic_map`, from its definition: `10^(i - 6) (0.1 + 0.9 (j + 1/2) / pieces)`.
#[test]
fn maps_are_those_of_the_definition() {
    for (map, first) in [(Map::Signed, 1u32), (Map::Unsigned, 2)] {
        let values = map.values();
        for i in 0..7 {
            let pieces = first << i;
            for j in 0..pieces {
                let want = 10f64.powi(i - 6) * (0.1 + 0.9 * (f64::from(j) + 0.5) / f64::from(pieces));
                let code = match map {
                    Map::Signed => 127 + pieces + j,
                    Map::Unsigned => pieces + j - 1,
                };
                let got = f64::from(values[code as usize]);
                assert!((got - want).abs() < want * 3e-7, "{map:?} {code}: {got}, not {want}");
                if map == Map::Signed {
                    assert_eq!(values[254 - code as usize], -values[code as usize]);
                }
            }
        }
    }
}

/// Entries of a map get their own codes: every one, in any shape.
#[test]
fn codes_are_those_of_their_own_values() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let codes: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
    for map in Map::ALL {
        let q = QuantizedDynamic {
            map,
            block_size: 256,
            codes: Tensor::from_slice(&device, &codes, &[2, 4, 64]).expect("memory"),
            absmax: Tensor::from_slice(&device, &[1.0f32, 8.0], &[2]).expect("memory"),
        };
        let y = dequantize_dynamic(&stream, &q, DType::F32).expect("launch");
        let values = y.to_vec_on::<f32>(&stream).expect("copy");
        let want: Vec<f32> = codes
            .iter()
            .enumerate()
            .map(|(i, code)| map.values()[usize::from(*code)] * [1.0, 8.0][i / 256])
            .collect();
        assert_eq!((y.shape(), &values), (&[2, 4, 64][..], &want));
        let again = quantize_dynamic(&stream, &y, map, 256).expect("launch");
        assert_eq!(again.codes.shape(), [2, 4, 64]);
        assert_eq!(again.codes.to_vec_on::<u8>(&stream).expect("copy"), codes);
        assert_eq!(again.absmax.to_vec_on::<f32>(&stream).expect("copy"), [1.0, 8.0]);
    }
    assert!(device.findings().is_empty());
}

/// So many elements that thread blocks take several rounds: all periods of a pattern have the codes of one, and the last is a part of a block.
#[test]
fn thread_blocks_take_several_rounds() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let period = 4096;
    // Every block has the same maximum.
    let values: Vec<f32> =
        (0..period).map(|i| if i % 256 == 0 { 2.0 } else { (i as f32 * 0.7).sin() }).collect();
    for (map, block_size, len) in
        [(Map::Unsigned, 256, (1 << 23) + 1300), (Map::Signed, 4096, (1 << 24) + 1300)]
    {
        let all: Vec<f32> = values.iter().copied().cycle().take(len).collect();
        let x = Tensor::from_slice(&device, &all, &[len]).expect("memory");
        let want = reference::quantize(map, &values, block_size);
        let q = quantize_dynamic(&stream, &x, map, block_size).expect("launch");
        let codes = q.codes.to_vec_on::<u8>(&stream).expect("copy");
        assert!(codes.chunks(period).all(|codes| codes == &want.codes[..codes.len()]), "{map:?}");
        let absmax = q.absmax.to_vec_on::<f32>(&stream).expect("copy");
        assert!(
            absmax.len() == len.div_ceil(block_size) && absmax.iter().all(|most| *most == 2.0),
            "{map:?}"
        );
        let back = dequantize_dynamic(&stream, &q, DType::F32).expect("launch");
        let back = back.to_vec_on::<f32>(&stream).expect("copy");
        let whole = len / period * period;
        let want = reference::dequantize(map, &want, block_size);
        assert!(back[..whole].chunks(period).all(|y| y == want), "{map:?}");
    }
    assert!(device.findings().is_empty());
}

#[test]
fn what_has_no_plan_says_why() {
    let target = Target::sm(90);
    let problem = Problem { map: Map::Signed, dtype: DType::BF16, len: 300, block_size: 256 };
    let e = QuantizeDynamicDesc { problem: Problem { block_size: 128, ..problem } }
        .plan(target)
        .expect_err("block");
    assert!(matches!(e, PlanError::Parameter { op: "quantize_dynamic", parameter: "block_size", .. }), "{e}");
    let problem_f64 = Problem { dtype: DType::F64, ..problem };
    let e = DequantizeDynamicDesc { problem: problem_f64 }.plan(target).expect_err("f64");
    assert!(
        matches!(e, PlanError::DType { op: "dequantize_dynamic", tensor: "y", got: DType::F64, .. }),
        "{e}"
    );
    let problem_huge = Problem { len: usize::MAX, ..problem };
    let e = QuantizeDynamicDesc { problem: problem_huge }.plan(target).expect_err("elements");
    assert!(matches!(e, PlanError::TooLarge { .. }), "{e}");
    // Beyond 32 bits of elements.
    let plan = QuantizeDynamicDesc { problem: Problem { len: (1 << 33) + 8, ..problem } }
        .plan(target)
        .expect("plan");
    assert_eq!(plan.steps().len(), 1);
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let x = Tensor::zeros(&device, DType::F64, &[4]).expect("memory");
    assert!(matches!(
        quantize_dynamic(&stream, &x, Map::Signed, 256),
        Err(Error::Plan(PlanError::DType { .. }))
    ));
    let empty = Tensor::zeros(&device, DType::F32, &[3, 0]).expect("memory");
    let q = quantize_dynamic(&stream, &empty, Map::Unsigned, 4096).expect("nothing to do");
    assert_eq!((q.codes.shape(), q.absmax.shape()), (&[3, 0][..], &[0][..]));
    let codes = Tensor::zeros(&device, DType::F32, &[4]).expect("memory");
    let absmax = Tensor::zeros(&device, DType::F32, &[1]).expect("memory");
    let wrong = QuantizedDynamic { map: Map::Signed, block_size: 256, codes, absmax };
    assert!(matches!(dequantize_dynamic(&stream, &wrong, DType::F32), Err(Error::Runtime(_))));
}
