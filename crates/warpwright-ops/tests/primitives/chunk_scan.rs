//! The scan of Mamba 2: free functions, plans that are refused, and parts that make a whole.

use half::bf16;
use warpwright_ops::chunk_scan::{
    ChunkScan, ChunkScanBackwardDesc, ChunkScanDesc, ChunkScanInputs, ChunkScanOptions, PositionStrides,
    chunk_scan, chunk_scan_backward,
};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Tensor};
use warpwright_testkit::inputs::Input;

const TARGET: Target = Target::sm(90);

fn scan() -> ChunkScan {
    ChunkScan::new(DType::BF16, [2, 100, 4, 16], [2, 16])
}

fn training(scan: ChunkScan) -> ChunkScanDesc {
    ChunkScanDesc { scan, initial_state: false, last_state: false, training: true }
}

fn halves(device: &Device, values: &[f32], shape: &[usize]) -> Tensor {
    let values: Vec<bf16> = values.iter().copied().map(bf16::from_f32).collect();
    Tensor::from_slice(device, &values, shape).expect("memory")
}

fn floats(device: &Device, values: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(device, values, shape).expect("memory")
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec::<bf16>().expect("values").into_iter().map(bf16::to_f32).collect()
}

fn random(salt: u64, count: usize) -> Vec<f32> {
    Input::Normal.values(count, salt).into_iter().map(|v| v as f32).collect()
}

#[test]
fn descriptors_without_meaning_are_refused() {
    let good = scan();
    let errors = |scan: ChunkScan, target: Target| {
        let desc = training(scan);
        [desc.plan(target).map(drop), ChunkScanBackwardDesc { forward: desc }.plan(target).map(drop)]
    };
    let refused = |scan: ChunkScan, name: &str| {
        for e in errors(scan, TARGET) {
            let parameter = matches!(&e, Err(PlanError::Parameter { parameter, .. }) if *parameter == name);
            assert!(parameter, "{name}: {e:?}");
        }
    };
    for head_dim in [0, 129, usize::MAX] {
        refused(ChunkScan { head_dim, ..good }, "head_dim");
    }
    for state in [0, 257, usize::MAX] {
        refused(ChunkScan { state, ..good }, "state");
    }
    for groups in [0, 3, 8, usize::MAX] {
        refused(ChunkScan { groups, ..good }, "groups");
    }
    let PositionStrides { x, dt, b, c } = good.strides;
    refused(ChunkScan { strides: PositionStrides { x: x - 1, dt, b, c }, ..good }, "stride of x");
    refused(ChunkScan { strides: PositionStrides { x, dt: dt - 1, b, c }, ..good }, "stride of dt");
    refused(ChunkScan { strides: PositionStrides { x, dt, b: b - 1, c }, ..good }, "stride of b");
    refused(ChunkScan { strides: PositionStrides { x, dt, b, c: 0 }, ..good }, "stride of c");
    refused(ChunkScan { len: 1 << 40, ..good }, "len");
    refused(ChunkScan { batch: usize::MAX, ..good }, "len");
    let wide = PositionStrides { x: usize::MAX, dt, b, c };
    refused(ChunkScan { strides: wide, ..good }, "batch");
    for e in errors(ChunkScan { dtype: DType::F32, ..good }, TARGET) {
        assert!(matches!(&e, Err(PlanError::DType { got: DType::F32, .. })), "{e:?}");
    }
    for e in errors(good, Target::sm(75)) {
        assert!(matches!(&e, Err(PlanError::Target { needs: 80, .. })), "{e:?}");
    }
    // Tiles of 256 numbers by 128 elements take more than a block of these has.
    for e in errors(ChunkScan::new(DType::F16, [1, 64, 1, 128], [1, 256]), Target::sm(86)) {
        assert!(matches!(&e, Err(PlanError::SharedMemory { .. })), "{e:?}");
    }
}

#[test]
fn free_functions_check_their_tensors() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let x = halves(&device, &random(1, 240), &[2, 5, 3, 8]);
    let dt = halves(&device, &random(2, 30), &[2, 5, 3]);
    let a = floats(&device, &[-1.0; 3], &[3]);
    let rows = halves(&device, &random(3, 80), &[2, 5, 1, 8]);
    let inputs = ChunkScanInputs { x: &x, dt: &dt, a: &a, b: &rows, c: &rows };
    let options = ChunkScanOptions { training: true, ..Default::default() };
    let parameter = |inputs: ChunkScanInputs<'_>, name: &str| {
        let e = chunk_scan(&stream, inputs, options);
        assert!(
            matches!(e, Err(Error::Plan(PlanError::Parameter { parameter, .. })) if parameter == name),
            "{name}"
        );
    };
    parameter(ChunkScanInputs { x: &dt, ..inputs }, "dimensions");
    parameter(ChunkScanInputs { b: &dt, ..inputs }, "dimensions of b");
    let refused = |inputs: ChunkScanInputs<'_>, options: ChunkScanOptions<'_>| {
        let e = chunk_scan(&stream, inputs, options);
        assert!(matches!(e, Err(Error::Runtime(_))), "{e:?}");
    };
    refused(ChunkScanInputs { dt: &x, ..inputs }, options);
    refused(ChunkScanInputs { a: &dt, ..inputs }, options);
    refused(ChunkScanInputs { c: &x, ..inputs }, options);
    let few = floats(&device, &[1.0], &[1]);
    for options in [
        ChunkScanOptions { d: Some(&few), ..options },
        ChunkScanOptions { dt_bias: Some(&few), ..options },
        ChunkScanOptions { initial_state: Some(&few), ..options },
    ] {
        refused(inputs, options);
    }
    let states = chunk_scan(&stream, inputs, options).expect("launch").states.expect("asked for");
    assert_eq!(states.shape(), [2, 1, 3, 8, 8]);
    let e = chunk_scan_backward(&stream, inputs, &states, &dt, None, options);
    assert!(matches!(e, Err(Error::Runtime(_))));
    let e = chunk_scan_backward(&stream, inputs, &x, &x, None, options);
    assert!(matches!(e, Err(Error::Runtime(_))));
    // Zeros for the parameters where there are no samples.
    let none = |shape: &[usize]| halves(&device, &[], shape);
    let (x, dt, rows, states) =
        (none(&[0, 5, 3, 8]), none(&[0, 5, 3]), none(&[0, 5, 1, 8]), none(&[0, 1, 3, 8, 8]));
    let inputs = ChunkScanInputs { x: &x, dt: &dt, a: &a, b: &rows, c: &rows };
    let d = chunk_scan_backward(&stream, inputs, &states, &x, None, options).expect("gradients");
    assert_eq!(d.da.to_vec::<f32>().expect("values"), [0.0; 3]);
    assert_eq!(d.dx.shape(), [0, 5, 3, 8]);
}

/// Steps of 0 keep the state as it is, whose rows are whole vectors or not.
#[test]
fn nothing_happens_in_no_time() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    for (head_dim, state) in [(5, 6), (8, 8)] {
        let x = halves(&device, &vec![3.0; head_dim], &[1, 1, 1, head_dim]);
        let dt = halves(&device, &[0.0], &[1, 1, 1]);
        let a = floats(&device, &[-1.0], &[1]);
        let b = halves(&device, &vec![1.0; state], &[1, 1, 1, state]);
        let first: Vec<f32> = (0..head_dim * state).map(|i| i as f32).collect();
        let initial = floats(&device, &first, &[1, 1, head_dim, state]);
        let options = ChunkScanOptions {
            initial_state: Some(&initial),
            last_state: true,
            training: true,
            ..Default::default()
        };
        let inputs = ChunkScanInputs { x: &x, dt: &dt, a: &a, b: &b, c: &b };
        let out = chunk_scan(&stream, inputs, options).expect("launch");
        assert_eq!(values(&out.states.expect("asked for")), first);
        assert_eq!(out.last_state.expect("asked for").to_vec::<f32>().expect("values"), first);
        let sums: Vec<f32> = first.chunks(state).map(|row| row.iter().sum()).collect();
        assert_eq!(values(&out.y), sums);
    }
}

/// Two parts, the second behind the state of the first, give to the bit what the whole does where the first has whole chunks; and saved
/// states change nothing.
#[test]
fn parts_make_a_whole() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let (len, heads, head_dim, groups, state) = (150, 4, 8, 2, 16);
    let a = floats(&device, &random(1, heads).iter().map(|a| -a.abs()).collect::<Vec<_>>(), &[heads]);
    let (d, bias) =
        (floats(&device, &random(2, heads), &[heads]), floats(&device, &random(3, heads), &[heads]));
    let widths = [heads * head_dim, heads, groups * state, groups * state];
    let all: Vec<Vec<f32>> = (4..).zip(widths).map(|(salt, width)| random(salt, len * width)).collect();
    let run = |from: usize, to: usize, initial_state: Option<&Tensor>, training: bool| {
        let part = |i: usize, inner: &[usize]| {
            let shape = [&[1, to - from], inner].concat();
            halves(&device, &all[i][from * widths[i]..to * widths[i]], &shape)
        };
        let (x, dt) = (part(0, &[heads, head_dim]), part(1, &[heads]));
        let (b, c) = (part(2, &[groups, state]), part(3, &[groups, state]));
        let inputs = ChunkScanInputs { x: &x, dt: &dt, a: &a, b: &b, c: &c };
        let options = ChunkScanOptions {
            d: Some(&d),
            dt_bias: Some(&bias),
            dt_softplus: true,
            initial_state,
            last_state: true,
            training,
        };
        let out = chunk_scan(&stream, inputs, options).expect("launch");
        assert_eq!(out.states.is_some(), training);
        (values(&out.y), out.last_state.expect("asked for"))
    };
    let (whole, last) = run(0, len, None, true);
    let (unsaved, _) = run(0, len, None, false);
    assert_eq!(whole, unsaved);
    let (first, state) = run(0, 64, None, false);
    let (rest, behind) = run(64, len, Some(&state), false);
    assert_eq!([first, rest].concat(), whole);
    let states = [last, behind].map(|state| state.to_vec::<f32>().expect("values"));
    assert_eq!(states[0], states[1]);
}
