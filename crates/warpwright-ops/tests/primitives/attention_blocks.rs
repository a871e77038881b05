//! Attention under masks of tiles: every case of them, tables against their definition, and what is refused.

use warpwright_ops::attention::tuning::{DecodeConfig, decode_configs};
use warpwright_ops::attention::{
    Algorithm, AttentionArgs, AttentionBackwardArgs, AttentionDesc, AttentionInputs, AttentionOptions,
    BlockMask, BlockMaskShape, BlockMaskTables, MASK_TILE, Scores, Window, attention, check_block_mask,
};
use warpwright_ops::cast::cast;
use warpwright_ops::plan::Layout;
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::DType;
use warpwright_runtime::{Device, Stream, Tensor};
use warpwright_testkit::inputs::Input;
use warpwright_testkit::{Case, Filter, Scope, cases};

use crate::attention::{TARGET, backward_of, of_halves};
use crate::emulator::device;
use crate::suite;

fn masked(of: impl Fn(&Case) -> bool) -> Vec<Case> {
    let all = cases(&Filter { scope: Scope::Quick, ops: vec!["attention".into()], ..Filter::default() });
    all.into_iter().filter(|case| case.input.contains("mask of tiles") && of(case)).collect()
}

#[test]
fn masks_of_16_bit_types() {
    suite::run_all(&device(90), &masked(|case| case.dtype.bytes() == 2));
}

/// Of f64 a third: its kernels are those of f32 with other types, and `every_case` has them all.
#[test]
fn masks_of_wider_types() {
    let mut cases = masked(|case| case.dtype == DType::F32);
    cases.extend(masked(|case| case.dtype == DType::F64).into_iter().step_by(3));
    suite::run_all(&device(90), &cases);
}

/// Without tensor cores, and with those of warps alone: a sixth of the cases each, and all of them in `every_kind_of_case_for_other_targets`.
#[test]
fn masks_on_other_targets() {
    let cases = masked(|case| matches!(case.dtype, DType::F16 | DType::F32));
    for (sm, first) in [(75, 0), (80, 1)] {
        let sample: Vec<Case> = cases.iter().skip(first).step_by(6).cloned().collect();
        assert!(sample.iter().any(|case| case.dtype == DType::F16));
        assert!(sample.iter().any(|case| case.dtype == DType::F32));
        suite::run_all(&device(sm), &sample);
    }
}

const TILE: usize = MASK_TILE as usize;

/// Whether a pair sees each other as the tables say, in the list of its query and in that of its key.
fn looked_up(t: &BlockMaskTables, [b, h, query, key]: [usize; 4]) -> [bool; 2] {
    let [of_queries, of_keys] = t.extents.map(|extent| extent.div_ceil(TILE));
    let side = |lists: &[i32], half: usize, [row, column]: [usize; 2], [rows, columns]: [usize; 2]| {
        let number = (b * t.shape.heads + h) * rows + row / TILE;
        let list = &lists[number * (1 + 2 * columns)..];
        let mut entries = list[1..].chunks(2).take(list[0] as usize);
        entries.find(|entry| entry[0] as usize == column / TILE).is_some_and(|entry| {
            let Ok(part) = usize::try_from(entry[1]) else { return true };
            let word = t.bits[((part * 2 + half) * TILE + row % TILE) * 4 + column % TILE / 32];
            word >> (column % 32) & 1 == 1
        })
    };
    [
        side(&t.key_tiles, 0, [query, key], [of_queries, of_keys]),
        side(&t.query_tiles, 1, [key, query], [of_keys, of_queries]),
    ]
}

/// The window of a query and, for head 1, a prefix.
fn sees(_: usize, h: usize, query: usize, key: usize) -> bool {
    query.abs_diff(key) < 100 || h == 1 && key < 130
}

#[test]
fn tables_are_those_of_their_function() {
    let shape = [1, 2, 300, 400];
    let tables = BlockMaskTables::from_fn(shape, sees).expect("small");
    tables.check().expect("its own");
    for (h, query, key) in (0..2).flat_map(|h| (0..300).flat_map(move |q| (0..400).map(move |k| (h, q, k)))) {
        assert_eq!(looked_up(&tables, [0, h, query, key]), [sees(0, h, query, key); 2], "{h} {query} {key}");
    }
    let all = |h, query, key| sees(0, h, query, key);
    let dense: Vec<bool> =
        (0..2 * 300 * 400).map(|at| all(at / (300 * 400), at / 400 % 300, at % 400)).collect();
    assert_eq!(BlockMaskTables::from_dense(shape, &dense).expect("as many"), tables);
    // Tiles with the same bits share them, and the last queries are no reason for bits.
    let causal = BlockMaskTables::from_fn([1, 1, 600, 512], |_, _, query, key| key <= query).expect("small");
    assert_eq!(causal.shape.tiles, 1);
    let whole = BlockMaskTables::from_fn([1, 1, 5, 128], |_, _, _, _| true).expect("small");
    assert_eq!((whole.key_tiles, whole.query_tiles), (vec![1, 0, -1], vec![1, 0, -1]));
    let cut = BlockMaskTables::from_fn([1, 1, 5, 127], |_, _, _, _| true).expect("small");
    assert_eq!(cut.key_tiles, [1, 0, 0]);
    assert_eq!(
        BlockMaskTables::from_fn([1, 1, 5, 127], |_, _, _, _| false).expect("small").key_tiles,
        [0; 3]
    );
}

fn parameter(found: Result<impl std::fmt::Debug, impl Into<Error>>) -> &'static str {
    match found.map_err(Into::into) {
        Err(Error::Plan(PlanError::Parameter { op: "attention", parameter, .. })) => parameter,
        other => panic!("{other:?}"),
    }
}

#[test]
fn tables_are_checked_on_the_host() {
    let model = BlockMaskTables::from_fn([1, 2, 300, 400], sees).expect("small");
    let changed = |change: &dyn Fn(&mut BlockMaskTables)| {
        let mut tables = model.clone();
        change(&mut tables);
        parameter(check_block_mask(
            tables.shape,
            tables.extents,
            &tables.key_tiles,
            &tables.query_tiles,
            &tables.bits,
        ))
    };
    // A list of four tiles of keys has nine numbers, one of three tiles of queries seven.
    assert_eq!(model.key_tiles[..5], [2, 0, 0, 1, 1]);
    assert_eq!(changed(&|t| t.key_tiles[0] = 5), "key_tiles");
    assert_eq!(changed(&|t| t.key_tiles[0] = -1), "key_tiles");
    assert_eq!(changed(&|t| t.key_tiles[1] = 1), "key_tiles");
    assert_eq!(changed(&|t| t.key_tiles[3] = 4), "key_tiles");
    assert_eq!(changed(&|t| t.key_tiles[3] = -1), "key_tiles");
    assert_eq!(changed(&|t| t.key_tiles[2] = t.shape.tiles as i32), "key_tiles");
    assert_eq!(changed(&|t| t.key_tiles[2] = -2), "key_tiles");
    assert_eq!(changed(&|t| t.query_tiles[1] = 3), "query_tiles");
    // Other pairs of tiles, and other bits, than the other table has.
    assert_eq!(changed(&|t| t.query_tiles[0] = 1), "query_tiles");
    assert_eq!(changed(&|t| t.query_tiles[2] = -1), "query_tiles");
    assert_eq!(changed(&|t| t.bits[0] ^= 1), "mask_bits");
    assert_eq!(changed(&|t| t.bits[512] ^= 1), "mask_bits");
    assert_eq!(changed(&|t| t.bits.truncate(5)), "mask_bits");
    assert_eq!(changed(&|t| t.key_tiles.push(0)), "key_tiles");
    assert_eq!(changed(&|t| t.query_tiles.push(0)), "query_tiles");
    let cut = BlockMaskTables::from_fn([1, 1, 5, 127], |_, _, _, _| true).expect("small");
    let with = |key_tiles: &[i32], bits: &[i32]| {
        parameter(check_block_mask(cut.shape, cut.extents, key_tiles, &cut.query_tiles, bits))
    };
    assert_eq!(with(&[1, 0, -1], &cut.bits), "key_tiles");
    let mut beyond = cut.bits.clone();
    // Query 0 and key 127, both ways.
    beyond[3] |= i32::MIN;
    beyond[512 + 127 * 4] |= 1;
    assert_eq!(with(&cut.key_tiles, &beyond), "mask_bits");
    assert_eq!(parameter(BlockMaskTables::from_dense([1, 1, 2, 2], &[true; 3])), "block_mask");
    assert_eq!(
        parameter(BlockMaskTables::from_fn([1 << 40, 1 << 40, 1, 1], |_, _, _, _| true)),
        "block_mask"
    );
}

fn halves(options: AttentionOptions) -> AttentionDesc {
    AttentionDesc { options, ..of_halves(64) }
}

#[test]
fn masks_beside_what_they_do_not_go_with_are_refused() {
    let block_mask = Some(BlockMaskShape { batch: 2, heads: 1, tiles: 4 });
    let masked = AttentionOptions { block_mask, ..AttentionOptions::default() };
    halves(masked).plan(TARGET).expect("the model of the others");
    backward_of(halves(masked)).plan(TARGET).expect("the model of the others");
    let others = [
        AttentionOptions { causal: true, ..masked },
        AttentionOptions { window: Window { left: Some(3), right: None }, ..masked },
        AttentionOptions { key_lengths: true, ..masked },
        AttentionOptions { bias: Some(Layout::contiguous([2, 4, 64, 80])), ..masked },
        AttentionOptions { block_mask: Some(BlockMaskShape { batch: 3, heads: 1, tiles: 4 }), ..masked },
        AttentionOptions { block_mask: Some(BlockMaskShape { batch: 1, heads: 2, tiles: 4 }), ..masked },
        AttentionOptions {
            block_mask: Some(BlockMaskShape { batch: 1, heads: 1, tiles: 1 << 62 }),
            ..masked
        },
    ];
    for options in others {
        assert_eq!(parameter(halves(options).plan(TARGET)), "block_mask", "{options:?}");
        assert_eq!(parameter(backward_of(halves(options)).plan(TARGET)), "block_mask", "{options:?}");
    }
    let layout = decode_configs(DType::BF16, TARGET, 64, 8)[0];
    assert!(matches!(layout, DecodeConfig::Mma(_)));
    let few = halves(masked).plan_with(TARGET, Algorithm::Decode { layout, splits: 1 });
    assert_eq!(parameter(few), "algorithm");
}

fn normal(stream: &Stream, dtype: DType, shape: &[usize]) -> Tensor {
    let values: Vec<f32> =
        Input::Normal.values(shape.iter().product(), 3).into_iter().map(|v| v as f32).collect();
    let x = Tensor::from_slice_on(stream, &values, shape).expect("memory");
    cast(stream, &x, dtype).expect("cast")
}

#[test]
fn masks_for_other_extents_are_refused() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let mask = BlockMask::from_fn(&stream, [1, 1, 20, 30], |_, _, _, _| true).expect("mask");
    let x = normal(&stream, DType::F32, &[1, 20, 1, 8]);
    let scores = Scores { block_mask: Some(&mask), ..Scores::default() };
    assert_eq!(parameter(attention(&stream, &x, &x, &x, scores)), "block_mask");
}

/// Tables that the host did not check read nothing outside of the tensors, in any of the kernels for them.
#[test]
fn numbers_on_the_device_that_lead_outside_are_cut() {
    let cases = [(90, DType::BF16, 64), (80, DType::BF16, 64), (80, DType::F32, 64), (75, DType::F32, 8)];
    for (sm, dtype, width) in cases {
        let device = device(sm);
        let stream = device.stream().expect("stream");
        let layout = |rows| Layout::contiguous([1, rows, 1, width]);
        let (q, k) = (layout(140), layout(150));
        let block_mask = Some(BlockMaskShape { batch: 1, heads: 1, tiles: 2 });
        let options = AttentionOptions { block_mask, ..AttentionOptions::default() };
        let forward = AttentionDesc { dtype, q, k, v: k, o: q, options };
        let backward = backward_of(forward.clone());
        let numbers =
            |numbers: &[i32]| Tensor::from_slice_on(&stream, numbers, &[numbers.len()]).expect("memory");
        let tables = [
            [99, i32::MAX, 1, -7, i32::MAX, -5, 0, 0, 0, 0],
            [i32::MAX, 2, 2, 7, i32::MIN, i32::MIN, 1, 1, 1, 1],
        ];
        for table in &tables {
            let (lists, bits) = (numbers(table), numbers(&[-1; 2 * 1024]));
            let (x, y) = (normal(&stream, dtype, &q.shape), normal(&stream, dtype, &k.shape));
            let inputs = || AttentionInputs {
                key_tiles: Some(lists.as_ref()),
                query_tiles: Some(lists.as_ref()),
                mask_bits: Some(bits.as_ref()),
                ..AttentionInputs::new(x.as_ref(), y.as_ref(), y.as_ref())
            };
            let empty = |shape: &[usize]| Tensor::empty_on(&stream, dtype, shape).expect("memory");
            let (mut o, mut lse) =
                (empty(&q.shape), Tensor::empty_on(&stream, DType::F32, &[140]).expect("memory"));
            let plan = forward.plan(device.target()).expect("plan");
            let args = AttentionArgs { inputs: inputs(), o: o.as_mut(), lse: lse.as_mut(), workspace: None };
            plan.launch(&stream, args).expect("clean");
            let plan = backward.plan(device.target()).expect("plan");
            let [mut dq, mut dk, mut dv] = [empty(&q.shape), empty(&k.shape), empty(&k.shape)];
            let mut workspace = plan.workspace(&stream).expect("memory");
            let args = AttentionBackwardArgs {
                inputs: inputs(),
                o: o.as_ref(),
                lse: lse.as_ref(),
                dy: x.as_ref(),
                dq: dq.as_mut(),
                dk: dk.as_mut(),
                dv: dv.as_mut(),
                dbias: None,
                dsinks: None,
                workspace: workspace.as_mut().map(Tensor::as_mut),
            };
            plan.launch(&stream, args).expect("clean");
            stream.synchronize().expect("no findings");
            for x in [&o, &dq, &dk, &dv] {
                let x = cast(&stream, x, DType::F32).expect("cast");
                assert!(
                    x.to_vec_on::<f32>(&stream).expect("read").iter().all(|x| x.is_finite()),
                    "{sm} {dtype}"
                );
            }
        }
    }
}
