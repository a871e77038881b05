//! Conversions round exactly, at every tie and at both ends of the range; what has no plan.

use half::{bf16, f16};
use warpwright_ops::cast::{CastArgs, CastDesc, cast, reference};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, EmulatorConfig, Error as RuntimeError, Tensor};
use warpwright_testkit::storage;

/// With the packing conversion of 16-bit types, and before it.
fn devices() -> [Device; 2] {
    [90, 75].map(|sm| Device::emulator_with(EmulatorConfig { target: Target::sm(sm), ..Default::default() }))
}

/// `values` of type `from` come out as the reference has them in `to`, to the bit but for the payload of NaN.
fn converts(device: &Device, from: DType, to: DType, values: &[f64]) {
    let stream = device.stream().expect("stream");
    let x =
        Tensor::from_bytes(device, from, &storage::encode(from, values), &[values.len()]).expect("memory");
    let y = cast(&stream, &x, to).expect("launch");
    stream.synchronize().expect("done");
    let got = storage::decode(to, &y.to_bytes().expect("copy"));
    for (got, &x) in got.into_iter().zip(values) {
        let want = reference::cast(to, x);
        let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
        assert!(same, "{from} {x:e} to {to}: {got:e}, should be {want:e}");
    }
    assert!(device.findings().is_empty());
}

/// Every number of a 16-bit type.
fn all_of(dtype: DType) -> Vec<f64> {
    let value = |bits| match dtype {
        DType::F16 => f64::from(f16::from_bits(bits)),
        _ => f64::from(bf16::from_bits(bits)),
    };
    (0..=u16::MAX).map(value).collect()
}

#[test]
fn every_number_of_16_bits() {
    for device in devices() {
        for from in [DType::F16, DType::BF16] {
            let values = all_of(from);
            for to in DType::FLOATS {
                converts(&device, from, to, &values);
            }
        }
    }
}

/// The midpoints between neighbors of a 16-bit type, and the numbers of the wider type on either side of each.
#[test]
fn ties_and_their_neighbors() {
    for device in devices() {
        for to in [DType::F16, DType::BF16] {
            let mut numbers: Vec<f64> = all_of(to).into_iter().filter(|x| x.is_finite()).collect();
            numbers.sort_by(f64::total_cmp);
            // Past the largest, where a further number of the format would be.
            let (last, gap) =
                (numbers[numbers.len() - 1], numbers[numbers.len() - 1] - numbers[numbers.len() - 2]);
            numbers.extend([last + gap]);
            numbers.insert(0, -last - gap);
            let ties: Vec<f64> = numbers.windows(2).map(|pair| 0.5 * (pair[0] + pair[1])).collect();
            let single =
                ties.iter().map(|&tie| tie as f32).flat_map(|tie| [tie.next_down(), tie, tie.next_up()]);
            converts(&device, DType::F32, to, &single.map(f64::from).collect::<Vec<_>>());
            let double = ties.iter().flat_map(|tie| [tie.next_down(), *tie, tie.next_up()]);
            converts(&device, DType::F64, to, &double.collect::<Vec<_>>());
        }
    }
}

#[test]
fn from_f64_to_f32() {
    // Around numbers of f32 from below the smallest to beyond the largest: ties, and f64 on either side of them.
    let numbers = (0..=u8::MAX).flat_map(|exponent| {
        [0u32, 1, 2, 0x2a_aaaa, 0x7f_fffe].map(|bits| f32::from_bits(u32::from(exponent) << 23 | bits))
    });
    let finite = numbers.filter(|x| x.is_finite());
    let ties = finite.map(|x| f64::from(x) + 0.5 * (f64::from(x.next_up().min(f32::MAX)) - f64::from(x)));
    let ties: Vec<f64> =
        ties.chain([3.402_823_567_797_336_6e38, f64::MAX, f64::INFINITY, f64::NAN]).collect();
    let around = ties.iter().flat_map(|&x| [x, x.next_up(), x.next_down()]).flat_map(|x| [x, -x]);
    let values: Vec<f64> = around.collect();
    for device in devices() {
        converts(&device, DType::F64, DType::F32, &values);
    }
}

#[test]
fn shapes_stay_and_empty_tensors_launch_nothing() {
    let [device, _] = devices();
    let stream = device.stream().expect("stream");
    let x = Tensor::from_slice(&device, &[1.5f64; 6], &[2, 3]).expect("memory");
    let y = cast(&stream, &x, DType::BF16).expect("launch");
    assert_eq!((y.dtype(), y.shape()), (DType::BF16, &[2, 3][..]));
    let empty = Tensor::empty(&device, DType::F32, &[2, 0]).expect("memory");
    assert_eq!(cast(&stream, &empty, DType::F64).expect("nothing to do").shape(), [2, 0]);
}

#[test]
fn what_has_no_plan() {
    let plan = |from, to| CastDesc { from, to, len: 4 }.plan(Target::sm(90));
    let e = plan(DType::I32, DType::F32).expect_err("integers");
    assert!(matches!(e, PlanError::DType { op: "cast", tensor: "x", got: DType::I32, .. }), "{e}");
    let e = plan(DType::F32, DType::U8).expect_err("integers");
    assert!(matches!(e, PlanError::DType { op: "cast", tensor: "y", got: DType::U8, .. }), "{e}");
    let [device, _] = devices();
    let stream = device.stream().expect("stream");
    let x = Tensor::from_slice(&device, &[1i64], &[1]).expect("memory");
    let e = cast(&stream, &x, DType::F32).expect_err("integers");
    assert!(matches!(e, Error::Plan(PlanError::DType { tensor: "x", .. })), "{e}");
    let plan = plan(DType::F32, DType::F16).expect("plan");
    let x = Tensor::from_slice(&device, &[1f32; 4], &[4]).expect("memory");
    let mut y = Tensor::empty(&device, DType::F16, &[2, 2]).expect("memory");
    let e = plan.launch(&stream, CastArgs { x: x.as_ref(), y: y.as_mut() }).expect_err("shape");
    assert!(matches!(e, RuntimeError::Shape { op: "cast", argument: "y", .. }), "{e}");
}
