//! Copies by the free functions: types and shapes, tensors with strides, payloads of NaN, and what is refused.

use warpwright_ops::copy::{CatArgs, CatDesc, PermuteArgs, PermuteDesc, cat, permute, reference, split};
use warpwright_ops::plan::View;
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Element, EmulatorConfig, Tensor};

fn devices() -> [Device; 2] {
    [90, 75].map(|sm| Device::emulator_with(EmulatorConfig { target: Target::sm(sm), ..Default::default() }))
}

fn turned<T: Element + PartialEq + std::fmt::Debug>(x: &[T], shape: &[usize], axes: &[usize]) {
    for device in devices() {
        let stream = device.stream().expect("stream");
        let tensor = Tensor::from_slice(&device, x, shape).expect("memory");
        let y = permute(&stream, &tensor, axes).expect("launch");
        assert_eq!(y.shape(), axes.iter().map(|axis| shape[*axis]).collect::<Vec<_>>());
        assert_eq!(y.to_vec_on::<T>(&stream).expect("memory"), reference::permute(x, shape, axes));
    }
}

#[test]
fn every_size_of_an_element_is_moved() {
    let shape = [3, 34, 70];
    let len = 3 * 34 * 70u64;
    for axes in [[0, 2, 1], [2, 1, 0], [1, 0, 2]] {
        turned(&(0..len).map(|i| (i * 7 % 251) as u8).collect::<Vec<_>>(), &shape, &axes);
        turned(&(0..len).map(|i| i as i32 * 65_537).collect::<Vec<_>>(), &shape, &axes);
        turned(&(0..len).map(|i| (i as i64) << 33 | i as i64).collect::<Vec<_>>(), &shape, &axes);
    }
}

/// Every pattern of 16 bits, signalling NaN among them.
#[test]
fn bits_stay_as_they_are() {
    let bits: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for device in devices() {
        let stream = device.stream().expect("stream");
        let x = Tensor::from_bytes(&device, DType::F16, &bits, &[128, 512]).expect("memory");
        let there = permute(&stream, &x, &[1, 0]).expect("launch");
        let back = permute(&stream, &there, &[1, 0]).expect("launch");
        stream.synchronize().expect("done");
        assert_ne!(there.to_bytes().expect("memory"), bits);
        assert_eq!(back.to_bytes().expect("memory"), bits);
        let parts = split(&stream, &x, &[100, 1, 411], 1).expect("launch");
        let whole = cat(&stream, &parts.iter().collect::<Vec<_>>(), 1).expect("launch");
        stream.synchronize().expect("done");
        assert_eq!(whole.to_bytes().expect("memory"), bits);
    }
}

#[test]
fn tensors_with_strides_are_read_where_they_are() {
    for device in devices() {
        let stream = device.stream().expect("stream");
        let x: Vec<f32> = (0..40 * 66).map(|i| i as f32).collect();
        let tensor = Tensor::from_slice(&device, &x, &[40, 66]).expect("memory");
        // 33 columns from the third on, of the transposed matrix, and its rows in the other order of dimensions.
        let narrow = tensor.as_ref().narrow(1, 2, 33).expect("columns").permute(&[1, 0]).expect("axes");
        for axes in [[0, 1], [1, 0]] {
            let view = View::of(&narrow).expect("rank");
            let desc = PermuteDesc { dtype: DType::F32, x: view, axes: axes.to_vec() };
            let plan = desc.plan(device.target()).expect("plan");
            let shape = axes.map(|axis: usize| [33, 40][axis]);
            let mut y = Tensor::empty(&device, DType::F32, &shape).expect("memory");
            plan.launch(&stream, PermuteArgs { x: narrow, y: y.as_mut() }).expect("launch");
            let y = y.to_vec_on::<f32>(&stream).expect("memory");
            for i in 0..33 {
                for j in 0..40 {
                    let place = if axes[0] == 0 { i * 40 + j } else { j * 33 + i };
                    assert_eq!(y[place], x[j * 66 + i + 2], "{axes:?} {i} {j}");
                }
            }
        }
    }
}

#[test]
fn parts_are_joined_along_every_dimension() {
    let [device, _] = devices();
    let stream = device.stream().expect("stream");
    for axis in 0..3 {
        let mut shapes = [[2, 3, 4]; 3];
        shapes[1][axis] = 5;
        shapes[2][axis] = 0;
        let mut first = 0;
        let tensors = shapes.map(|shape| {
            let len: i64 = shape.iter().product::<usize>() as i64;
            let values: Vec<i64> = (first..first + len).collect();
            first += len;
            Tensor::from_slice(&device, &values, &shape).expect("memory")
        });
        let whole = cat(&stream, &tensors.each_ref(), axis).expect("launch");
        let mut shape = [2, 3, 4];
        shape[axis] += 5;
        assert_eq!(whole.shape(), shape);
        // Rows of the whole are rows of the parts behind each other.
        let outer: usize = shape[..axis].iter().product();
        let values = tensors.each_ref().map(|tensor| tensor.to_vec_on::<i64>(&stream).expect("memory"));
        let want = reference::cat(&values.each_ref().map(Vec::as_slice), outer);
        assert_eq!(whole.to_vec_on::<i64>(&stream).expect("memory"), want);
        let extents = shapes.map(|shape| shape[axis]);
        let parts = split(&stream, &whole, &extents, axis).expect("launch");
        for ((part, shape), values) in parts.iter().zip(shapes).zip(values) {
            assert_eq!(part.shape(), shape);
            assert_eq!(part.to_vec_on::<i64>(&stream).expect("memory"), values);
        }
    }
}

/// Beyond what one launch counts there are several, and places are computed in 64 bits.
#[test]
fn large_tensors_have_plans() {
    let target = Target::sm(90);
    let desc = CatDesc { dtype: DType::U8, outer: 1 << 20, lens: vec![4097, 8192] };
    let plan = desc.plan(target).expect("plan");
    // Rows of an odd length, byte by byte: 2^32 + 2^20 and 2^33 of them, in launches of at most 2^30.
    let bytewise = &plan.variants().last().expect("a variant").steps;
    assert_eq!(bytewise.len(), 8 + 8);
    let x = View::contiguous(&[1 << 17, 1 << 17]).expect("rank");
    let plan = PermuteDesc { dtype: DType::BF16, x, axes: vec![1, 0] }.plan(target).expect("plan");
    assert_eq!(plan.steps().len(), 1);
}

#[test]
fn what_has_no_plan() {
    let [device, _] = devices();
    let stream = device.stream().expect("stream");
    let tensor = |shape: &[usize]| Tensor::zeros(&device, DType::F32, shape).expect("memory");
    let refused = |error: Error| match error {
        Error::Plan(PlanError::Parameter { op, parameter, got, .. }) => (op, parameter, got),
        other => panic!("{other}"),
    };
    let x = tensor(&[2, 3]);
    for axes in [&[0, 0][..], &[0], &[0, 1, 2], &[0, 2], &[]] {
        let (op, parameter, got) = refused(permute(&stream, &x, axes).expect_err("no permutation"));
        assert_eq!((op, parameter, got), ("permute", "axes", format!("{axes:?} of 2 dimensions")));
    }
    let six = tensor(&[2, 3, 2, 3, 2, 3]);
    let error = permute(&stream, &six, &[5, 4, 3, 2, 1, 0]).expect_err("six dimensions");
    assert!(error.to_string().starts_with("permute: shape is [3, 2, 3, 2, 3, 2]"), "{error}");
    let (op, parameter, _) = refused(cat(&stream, &[], 0).expect_err("nothing"));
    assert_eq!((op, parameter), ("cat", "parts"));
    let (_, parameter, got) = refused(cat(&stream, &[&x, &tensor(&[2, 4])], 0).expect_err("shapes"));
    assert_eq!((parameter, &got[..]), ("parts", "f32 [2, 4] as number 1"));
    let other = Tensor::zeros(&device, DType::F16, &[2, 3]).expect("memory");
    let (_, _, got) = refused(cat(&stream, &[&x, &other], 0).expect_err("types"));
    assert_eq!(got, "f16 [2, 3] as number 1");
    let (_, parameter, got) = refused(cat(&stream, &[&x], 2).expect_err("axis"));
    assert_eq!((parameter, &got[..]), ("axis", "2 of [2, 3]"));
    let (op, _, got) = refused(cat(&stream, &[&x; 17], 0).expect_err("too many"));
    assert_eq!((op, &got[..]), ("cat", "17 tensors"));
    let (op, parameter, got) = refused(split(&stream, &x, &[1, 1], 1).expect_err("sum"));
    assert_eq!((op, parameter, &got[..]), ("split", "extents", "[1, 1] of 3"));
    // Nothing of a part is written over another tensor.
    let plan = CatDesc { dtype: DType::F32, outer: 1, lens: vec![3, 3] }.plan(device.target()).expect("plan");
    let [a, b] = [tensor(&[3]), tensor(&[2])];
    let mut y = tensor(&[6]);
    let args = CatArgs { inputs: vec![a.as_ref(), b.as_ref()], y: y.as_mut() };
    let error = plan.launch(&stream, args).expect_err("too short").to_string();
    assert!(error.contains("x1"), "{error}");
}
