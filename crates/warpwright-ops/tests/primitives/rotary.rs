//! Rotary position embedding: free functions, and descriptors that are refused.

use warpwright_ops::plan::Layout;
use warpwright_ops::rotary::{
    Pairing, RotaryBackwardDesc, RotaryDesc, RotaryOptions, RotaryPositions, RotaryTables, check_positions,
    rotary_embedding, rotary_embedding_backward, rotary_embedding_backward_in_place,
    rotary_embedding_in_place,
};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Tensor};
use warpwright_testkit::inputs::Input;

const TARGET: Target = Target::sm(90);

fn desc() -> RotaryDesc {
    let [q, k] = [4, 2].map(|heads| Layout::contiguous([2, 3, heads, 8]));
    RotaryDesc {
        dtype: DType::BF16,
        q,
        k: Some(k),
        q_rotated: q,
        k_rotated: Some(k),
        pairing: Pairing::Half,
        rotary_dim: 8,
        tables: RotaryTables { dtype: DType::F32, batch: 1, rows: 3, repeated: false },
        positions: None,
    }
}

#[test]
fn descriptors_without_meaning_are_refused() {
    let refused = |desc: RotaryDesc, name: &str| {
        let forward = desc.plan(TARGET).map(drop);
        let backward = RotaryBackwardDesc { forward: desc }.plan(TARGET).map(drop);
        for e in [forward, backward] {
            let parameter = matches!(&e, Err(PlanError::Parameter { parameter, .. }) if *parameter == name);
            assert!(parameter, "{name}: {e:?}");
        }
    };
    let tables = desc().tables;
    for rotary_dim in [0, 3, 10] {
        refused(RotaryDesc { rotary_dim, ..desc() }, "rotary_dim");
    }
    refused(RotaryDesc { k: Some(Layout::contiguous([2, 3, 2, 16])), ..desc() }, "k");
    refused(RotaryDesc { k_rotated: None, ..desc() }, "k_rotated");
    refused(RotaryDesc { q_rotated: Layout::contiguous([2, 3, 5, 8]), ..desc() }, "q_rotated");
    let turned = Layout { strides: [96, 32, 1, 4], ..desc().q };
    refused(RotaryDesc { q: turned, ..desc() }, "q");
    refused(RotaryDesc { tables: RotaryTables { batch: 3, ..tables }, ..desc() }, "tables.batch");
    refused(RotaryDesc { tables: RotaryTables { rows: 2, ..tables }, ..desc() }, "tables.rows");
    let positions = Some(RotaryPositions { dtype: DType::I32, batch: 3 });
    refused(RotaryDesc { positions, ..desc() }, "positions.batch");
    let huge = Layout::contiguous([1 << 40, 1 << 20, 4, 8]);
    let e = RotaryDesc { q: huge, k: None, q_rotated: huge, k_rotated: None, ..desc() }.plan(TARGET);
    assert!(matches!(e, Err(PlanError::Parameter { parameter: "q", .. })), "{e:?}");
    let overlapping = Layout { strides: [96, 0, 8, 1], ..desc().q };
    let e = RotaryDesc { q_rotated: overlapping, ..desc() }.plan(TARGET);
    assert!(matches!(e, Err(PlanError::Parameter { parameter: "q", .. })), "{e:?}");
    let dtypes = [
        (RotaryDesc { dtype: DType::I32, ..desc() }, "q"),
        (RotaryDesc { tables: RotaryTables { dtype: DType::F16, ..tables }, ..desc() }, "cos"),
        (
            RotaryDesc { positions: Some(RotaryPositions { dtype: DType::U8, batch: 1 }), ..desc() },
            "positions",
        ),
    ];
    for (desc, name) in dtypes {
        let e = desc.plan(TARGET);
        assert!(matches!(&e, Err(PlanError::DType { tensor, .. }) if *tensor == name), "{e:?}");
    }
    assert!(check_positions(&[0, 2, 1], 3).is_ok());
    let e = check_positions(&[0, 3], 3);
    assert!(matches!(&e, Err(PlanError::Parameter { got, .. }) if got == "3 at 1"), "{e:?}");
}

#[test]
fn more_threads_than_32_bits_count_are_refused() {
    let q = Layout::contiguous([1, 1 << 30, 1, 8]);
    let tables = RotaryTables { rows: 1 << 30, ..desc().tables };
    let desc = RotaryDesc { q, k: None, q_rotated: q, k_rotated: None, tables, rotary_dim: 2, ..desc() };
    let e = desc.plan(TARGET);
    assert!(matches!(e, Err(PlanError::TooLarge { .. })), "{e:?}");
}

fn floats(device: &Device, salt: u64, shape: &[usize]) -> Tensor {
    let values = Input::Normal.values(shape.iter().product(), salt);
    let values: Vec<f32> = values.iter().map(|v| *v as f32).collect();
    Tensor::from_slice(device, &values, shape).expect("memory")
}

#[test]
fn functions_agree_in_place_and_out_of_place() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let (cos, sin) = (floats(&device, 1, &[9, 4]), floats(&device, 2, &[9, 4]));
    let options = RotaryOptions { offset: 4, ..RotaryOptions::default() };
    let mut qkv = floats(&device, 3, &[2, 5, 7, 8]);
    let q = qkv.as_ref().narrow(2, 0, 4).expect("view");
    let k = qkv.as_ref().narrow(2, 4, 2).expect("view");
    let out = rotary_embedding(&stream, q, Some(k), &cos, &sin, options).expect("launch");
    let positions = Tensor::from_slice(&device, &[4i32, 5, 6, 7, 8], &[5]).expect("memory");
    let by_positions = RotaryOptions { positions: Some(positions.as_ref()), ..RotaryOptions::default() };
    let same = rotary_embedding(&stream, q, Some(k), &cos, &sin, by_positions).expect("launch");
    assert_eq!(out.q.to_bytes().expect("read"), same.q.to_bytes().expect("read"));

    let before = qkv.to_vec::<f32>().expect("read");
    let heads = qkv.as_mut().narrow(2, 0, 6).expect("view");
    rotary_embedding_in_place(&stream, heads, None, &cos, &sin, options).expect("launch");
    let after = qkv.to_vec_on::<f32>(&stream).expect("read");
    let (q, k) = (out.q.to_vec::<f32>().expect("read"), out.k.expect("keys").to_vec::<f32>().expect("read"));
    for (token, row) in after.chunks(56).enumerate() {
        assert_eq!(row[..32], q[token * 32..][..32]);
        assert_eq!(row[32..48], k[token * 16..][..16]);
        assert_eq!(row[48..], before[token * 56 + 48..][..8]);
    }

    let dq = out.q;
    let back = rotary_embedding_backward(&stream, &dq, None, &cos, &sin, options).expect("launch");
    let mut in_place = dq;
    rotary_embedding_backward_in_place(&stream, &mut in_place, None, &cos, &sin, options).expect("launch");
    assert!(back.dk.is_none());
    assert_eq!(back.dq.to_bytes().expect("read"), in_place.to_bytes().expect("read"));
}

#[test]
fn functions_refuse_tensors_that_do_not_fit() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let q = floats(&device, 1, &[1, 5, 2, 8]);
    let refused = |q: &Tensor, [cos, sin]: [&[usize]; 2], options: RotaryOptions<'_>| {
        let (cos, sin) = (floats(&device, 2, cos), floats(&device, 3, sin));
        match rotary_embedding(&stream, q, None, &cos, &sin, options) {
            Err(Error::Plan(PlanError::Parameter { parameter, .. })) => parameter,
            other => panic!("{other:?}"),
        }
    };
    let options = RotaryOptions::default();
    assert_eq!(refused(&q, [&[5, 3], &[5, 3]], options), "cos");
    assert_eq!(refused(&q, [&[5, 4], &[5, 8]], options), "sin");
    assert_eq!(refused(&q, [&[4, 4], &[4, 4]], options), "tables.rows");
    assert_eq!(refused(&q, [&[5, 4], &[5, 4]], RotaryOptions { offset: 1, ..options }), "tables.rows");
    let of_samples: [&[usize]; 2] = [&[1, 5, 4], &[1, 5, 4]];
    assert_eq!(refused(&q, of_samples, RotaryOptions { offset: 1, ..options }), "offset");
    assert_eq!(refused(&floats(&device, 1, &[5, 16]), [&[5, 4], &[5, 4]], options), "q");
}
