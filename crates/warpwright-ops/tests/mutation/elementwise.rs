//! Elementwise kernels.

use warpwright_ops::Operation;
use warpwright_ops::activation::{
    Activation, ActivationBackwardDesc, ActivationDesc, GatedActivation, GatedBackwardDesc,
};
use warpwright_ops::cast::CastDesc;
use warpwright_ops::copy::{CatDesc, PermuteDesc};
use warpwright_ops::dynamic_map::Map;
use warpwright_ops::elementwise::{ElementwiseDesc, Expr, InputDesc};
use warpwright_ops::plan::{TensorSpec, View};
use warpwright_ops::quantize::{DequantizeDesc, NibbleOrder, QuantizeDesc, Scheme};
use warpwright_ops::quantize_dynamic::{self, DequantizeDynamicDesc, QuantizeDynamicDesc};
use warpwright_ops::quantize8::{Dequantize8Desc, Format, Problem, Quantize8Desc, Scaling};
use warpwright_ptx::DType;
use warpwright_ptx::abi::ArgValue;
use warpwright_runtime::LaunchStep;
use warpwright_testkit::inputs::Input;

use crate::harness::{Survivor, Sweep, TARGET, check, grouped, plans};

/// Lengths around a vector, a warp and a block of an elementwise kernel.
const ELEMENTWISE: [usize; 7] = [1, 8, 13, 14, 15, 2047, 2049];

#[test]
fn shifted_bounds_of_quantization_are_noticed() {
    // Every element of the first vector of each round, and the last element of a block. The kernels for aligned f32 tensors
    // quantize in four rounds of 128 elements to a warp, and dequantize in two of 1024 to a block.
    let first = |stride: usize| (0..4usize).flat_map(move |round| (1..=4).map(move |i| stride * round + i));
    let lengths: Vec<usize> = first(128).chain(first(1024)).chain([2047, 2048, 4095, 4096]).collect();
    let (dtype, group_size, order) = (DType::F32, 64, NibbleOrder::HighFirst);
    for scheme in [Scheme::Nf4, Scheme::Int4Asymmetric] {
        check(&lengths, |len| {
            QuantizeDesc { scheme, dtype, group_size, order, len }.plan(TARGET).expect("plan")
        });
        check(&lengths, |len| {
            DequantizeDesc { scheme, dtype, group_size, order, len }.plan(TARGET).expect("plan")
        });
    }
}

#[test]
fn shifted_bounds_of_activations_are_noticed() {
    for dtype in [DType::BF16, DType::F64] {
        check(&ELEMENTWISE, |len| {
            ActivationDesc { activation: Activation::Sigmoid, dtype, len }.plan(TARGET).expect("plan")
        });
    }
    check(&ELEMENTWISE, |len| {
        ActivationBackwardDesc { activation: Activation::GeluErf, dtype: DType::F32, len }
            .plan(TARGET)
            .expect("plan")
    });
    check(&ELEMENTWISE, |len| {
        GatedBackwardDesc { activation: GatedActivation::Swiglu, dtype: DType::F16, len }
            .plan(TARGET)
            .expect("plan")
    });
}

/// Shorter rows have another layout.
const QUANTIZE8: [Survivor; 3] = [
    Survivor::equivalent("rows32v4", "team.@hold", "every thread has a first and a second vector").at_most(2),
    Survivor::equivalent("rows128v4", "team.@hold", "every thread has a first vector").at_most(1),
    Survivor::equivalent("rowsloop", "row.@fold", "every thread has a first round").at_most(1),
];

#[test]
fn defects_of_8_bit_quantization_are_noticed() {
    let check_all = |scaling, dtype, shapes: &[[usize; 2]]| {
        let indices: Vec<usize> = (0..shapes.len()).collect();
        let problem = |i: usize| {
            let [rows, cols] = shapes[i];
            Problem { format: Format::E4M3, scaling, dtype, rows, cols }
        };
        let sweep = Sweep { survivors: &QUANTIZE8, ..Sweep::new(grouped) };
        let codes = |i| Quantize8Desc { problem: problem(i) }.plan(TARGET).expect("plan");
        sweep.check(&plans(&indices, codes));
        let back = |i| Dequantize8Desc { problem: problem(i) }.plan(TARGET).expect("plan");
        sweep.check(&plans(&indices, back));
    };
    // Around every vector of a thread, and rows around those of a block.
    let around = |n: usize| [[1, n - 8], [1, n], [1, n + 8]];
    let vectors = [2048, 4096, 6144, 8192].into_iter().flat_map(around);
    let flat: Vec<[usize; 2]> = vectors.chain([1, 13, 14, 15, 257, 513, 769, 2047].map(|n| [1, n])).collect();
    check_all(Scaling::Static, DType::BF16, &flat);
    // Around the vectors of a thread that looks for the maximum, in vectors and in single elements.
    let amax = [32_776, 65_544, 98_312, 131_072, 4097, 8193, 12_289].map(|n| [1, n]);
    check_all(Scaling::TensorWise, DType::BF16, &[flat, amax.to_vec()].concat());
    // Rows in vectors, and in single elements: around each of a thread.
    let single: Vec<[usize; 2]> = (0..16).map(|v| [5, 32 * v + 1]).collect();
    check_all(Scaling::RowWise, DType::BF16, &[&[[17, 56], [16, 64], [3, 8]], &single[..]].concat());
    check_all(Scaling::RowWise, DType::BF16, &[&[[5, 504], [3, 264], [2, 512]], &single[..]].concat());
    let long: Vec<[usize; 2]> =
        [760, 1016, 1025, 1032, 1057, 1089, 1121, 1536, 2048, 2056, 2560, 3072, 3080, 4088, 4096]
            .map(|cols| [3, cols])
            .to_vec();
    check_all(Scaling::RowWise, DType::BF16, &long);
    let rows = [2, 3, 16, 17, 18, 19, 33, 63, 64, 65, 128, 129].map(|rows| [rows, 136]);
    let blocks = [&rows[..], &[129, 161, 193, 225].map(|cols| [3, cols])].concat();
    check_all(Scaling::BlockWise1x128, DType::BF16, &blocks);
    check_all(Scaling::BlockWise128x128, DType::BF16, &blocks);
}

/// A vector behind the end of a tensor is not there; threads that exchange maxima wait for one another.
const QUANTIZE_DYNAMIC: [Survivor; 2] = [
    Survivor::equivalent("_b4096", "k.@barrier", "maxima are exchanged before tables are read").at_most(1),
    Survivor::equivalent("dequantize_", "k.@for_each", "a round behind the end has no elements").at_most(1),
];

/// Half as many thread blocks, of two rounds each, as millions of elements have.
fn two_rounds(step: &LaunchStep) -> LaunchStep {
    let rounds = |arg: &ArgValue| match arg {
        ArgValue::U32(1) => ArgValue::U32(2),
        other => other.clone(),
    };
    let [blocks, ..] = step.grid();
    LaunchStep::new(
        step.kernel().clone(),
        [blocks.div_ceil(2), 1, 1],
        step.args().iter().map(rounds).collect(),
    )
}

/// Parts of a block of elements that end with each vector of a thread, and several rounds of a thread block.
#[test]
fn defects_of_blockwise_quantization_are_noticed() {
    let numbers = |specs: &[TensorSpec], slot: usize| match &specs[slot] {
        spec if spec.dtype == DType::U8 => (0..spec.len).map(|i| (i * 37 % 256) as f64).collect(),
        spec => Input::Normal.values(spec.len, slot as u64),
    };
    for (map, block_size) in [(Map::Signed, 256), (Map::Unsigned, 4096)] {
        let problem = |len| quantize_dynamic::Problem { map, dtype: DType::F32, len, block_size };
        let single = (0..8).map(|v| 32 * v + 1).chain((0..16).map(|v| 256 * v + 1));
        let vectors =
            [4, 124, 128, 132, 252, 256, 1020, 1024, 1028, 2044, 2048, 2052, 3072, 4092, 4096, 4100, 8192];
        let lens: Vec<usize> = single.chain(vectors).collect();
        let sweep = Sweep { survivors: &QUANTIZE_DYNAMIC, launched: two_rounds, ..Sweep::new(numbers) };
        sweep.check(&plans(&lens, |len| {
            QuantizeDynamicDesc { problem: problem(len) }.plan(TARGET).expect("plan")
        }));
        sweep.check(&plans(&lens, |len| {
            DequantizeDynamicDesc { problem: problem(len) }.plan(TARGET).expect("plan")
        }));
    }
}

#[test]
fn shifted_bounds_of_conversions_are_noticed() {
    for (from, to) in [(DType::F32, DType::BF16), (DType::F16, DType::BF16), (DType::F64, DType::F32)] {
        check(&ELEMENTWISE, |len| CastDesc { from, to, len }.plan(TARGET).expect("plan"));
    }
}

#[test]
fn defects_of_copies_are_noticed() {
    let permuted = |dtype, shape: &[usize], axes: &[usize]| {
        let x = View::contiguous(shape).expect("rank");
        PermuteDesc { dtype, x, axes: axes.to_vec() }.plan(TARGET).expect("plan")
    };
    let sweep = Sweep { by_line: true, ..Sweep::new(grouped) };
    // Around a tile in both directions, with ends in each of its rounds.
    let sides: Vec<[usize; 2]> = [2, 8, 10, 16, 30, 62, 64, 66, 130].map(|n| [n, 70]).to_vec();
    let sides = [sides.clone(), sides.into_iter().map(|[a, b]| [b, a]).collect()].concat();
    for dtype in [DType::BF16, DType::F32, DType::F64] {
        let all: Vec<usize> = (0..sides.len()).collect();
        let tiles = |i: usize| permuted(dtype, &[2, sides[i][0], sides[i][1]], &[0, 2, 1]);
        sweep.check(&plans(&all, tiles));
    }
    // Odd sides, which are turned one by one, and few of one dimension.
    let odd: Vec<[usize; 2]> = [3, 5, 7, 9, 17, 33, 63, 65].map(|n| [n, 513]).to_vec();
    let odd = [odd.clone(), odd.into_iter().map(|[a, b]| [b, a]).collect()].concat();
    let all: Vec<usize> = (0..odd.len()).collect();
    sweep.check(&plans(&all, |i| permuted(DType::F16, &odd[i], &[1, 0])));
    let rows: Vec<usize> = vec![1, 2, 3, 5, 8, 31, 64, 257];
    sweep.check(&plans(&rows, |n| permuted(DType::BF16, &[3, 2, n, 8], &[2, 1, 0, 3])));
    sweep.check(&plans(&rows, |n| {
        CatDesc { dtype: DType::F32, outer: n, lens: vec![4, 12, 3] }.plan(TARGET).expect("plan")
    }));
}

#[test]
fn shifted_bounds_of_expressions_are_noticed() {
    let [x, y] = Expr::inputs();
    let input = |dtype, shape: &[usize]| InputDesc { dtype, view: View::contiguous(shape).expect("rank") };
    for dtype in [DType::BF16, DType::F64] {
        // One element beside one is no broadcast.
        check(&ELEMENTWISE[1..], |len| {
            let outputs = vec![&x + &y, x.maximum(&y)];
            let desc = ElementwiseDesc {
                outputs,
                dtypes: vec![dtype; 2],
                shape: vec![len],
                inputs: vec![input(dtype, &[len]), input(dtype, &[1])],
                scalars: Vec::new(),
                // A shifted threshold would drop one more of 2^32 elements.
                dropout: None,
            };
            desc.plan(TARGET).expect("plan")
        });
    }
    // Rows of vectors and of single elements.
    for columns in [8, 7] {
        check(&[31, 32, 33, 255, 256, 257, 292, 293], |rows| {
            let desc = ElementwiseDesc {
                outputs: vec![&x + &y],
                dtypes: vec![DType::BF16],
                shape: vec![rows, columns],
                inputs: vec![input(DType::BF16, &[rows, columns]), input(DType::BF16, &[columns])],
                scalars: Vec::new(),
                dropout: None,
            };
            desc.plan(TARGET).expect("plan")
        });
    }
}
