//! Elementwise expressions: functions as PyTorch's, what is refused, launches of parts, kernels that sizes have in common.

use warpwright_ops::elementwise::{
    ElementwiseArgs, ElementwiseDesc, Expr, ExprError, InputDesc, Operand, add, add_in_place, dropout,
    dropout_add, lerp, map, map_into, mul_in_place, where_,
};
use warpwright_ops::plan::{Real, View};
use warpwright_ops::{Dropout, Error, Operation, PlanError};
use warpwright_ptx::{ArgValue, DType, Target};
use warpwright_runtime::{Device, Error as RuntimeError, Tensor};

const TARGET: Target = Target::sm(90);

fn desc(expr: &Expr, dtype: DType, shape: &[usize], inputs: &[&[usize]]) -> ElementwiseDesc {
    let input = |shape: &&[usize]| InputDesc { dtype, view: View::contiguous(shape).expect("rank") };
    ElementwiseDesc {
        outputs: vec![expr.clone()],
        dtypes: vec![dtype],
        shape: shape.to_vec(),
        inputs: inputs.iter().map(input).collect(),
        scalars: vec![Real::new(1.0); expr.scalar_count()],
        dropout: expr.has_dropout().then_some(Real::new(0.5)),
    }
}

fn sum() -> Expr {
    let [x, y] = Expr::inputs();
    x + y
}

fn name(desc: &ElementwiseDesc) -> String {
    desc.plan(TARGET).expect("plan").steps()[0].kernel().name().to_owned()
}

/// Sizes, numbers and the seed are arguments; the text of the expression, types and the way to read an input are not.
#[test]
fn kernels_are_compiled_once_for_an_expression() {
    let scaled = "add(x0, mul(s0, x1))".parse().expect("an expression");
    let of = |shape: &[usize], inputs: &[&[usize]]| desc(&scaled, DType::BF16, shape, inputs);
    let flat = name(&of(&[4096], &[&[4096], &[4096]]));
    assert!(flat.starts_with("elementwise_add_") && flat.ends_with("_bf16_bf16_to_bf16_cc_x8"), "{flat}");
    assert_eq!(name(&of(&[3, 5, 7], &[&[3, 5, 7], &[3, 5, 7]])), flat);
    let other = ElementwiseDesc { scalars: vec![Real::new(3.0)], ..of(&[8], &[&[8], &[8]]) };
    assert_eq!(name(&other), flat);
    let row = name(&of(&[9, 64], &[&[9, 64], &[64]]));
    assert!(row.ends_with("_cr1_x8"), "{row}");
    assert_eq!(name(&of(&[7, 3, 128], &[&[7, 3, 128], &[128]])), row);
    assert!(name(&of(&[9, 68], &[&[9, 68], &[68]])).ends_with("_cr1_x4"));
    assert_ne!(name(&desc(&sum(), DType::BF16, &[64], &[&[64], &[64]])), flat);
}

/// A tensor of more vectors than a number below 2^31 counts is several launches, each where the one before it ended.
#[test]
fn large_tensors_are_several_launches() {
    let (rows, columns) = (1usize << 22, 1usize << 13);
    let plan = desc(&sum(), DType::BF16, &[rows, columns], &[&[rows, columns], &[columns]]);
    let plan = plan.plan(TARGET).expect("plan");
    let starts = |slot: u32| -> Vec<u64> {
        let of_step = |args: &[ArgValue]| {
            args.iter().find_map(|arg| match arg {
                ArgValue::Slot { slot: of, offset } if *of == slot => Some(*offset),
                _ => None,
            })
        };
        plan.steps().iter().filter_map(|step| of_step(step.args())).collect()
    };
    let quarter = (rows * columns * 2 / 4) as u64;
    assert_eq!(starts(0), [0, quarter, 2 * quarter, 3 * quarter]);
    assert_eq!(starts(1), [0; 4]);
    assert_eq!(starts(3), starts(0));
    assert!(plan.steps().iter().all(|step| step.grid() == [1 << 22, 1, 1]));
}

#[test]
fn what_has_no_plan() {
    let refused = |desc: ElementwiseDesc| desc.plan(TARGET).expect_err("no plan");
    let good = desc(&sum(), DType::F32, &[4], &[&[4], &[4]]);
    let e = refused(ElementwiseDesc { inputs: good.inputs[..1].to_vec(), ..good.clone() });
    let missing = ExprError::Missing { name: "x1".to_owned(), given: 1 };
    assert!(matches!(&e, PlanError::Expression { op: "elementwise", source } if *source == missing), "{e}");
    let e = refused(ElementwiseDesc { dtypes: vec![DType::I32], ..good.clone() });
    assert!(matches!(e, PlanError::DType { tensor: "y0", got: DType::I32, .. }), "{e}");
    let e = refused(ElementwiseDesc { dtypes: Vec::new(), ..good.clone() });
    assert!(matches!(e, PlanError::Parameter { parameter: "dtypes", .. }), "{e}");
    let e = refused(desc(&sum(), DType::F32, &[4], &[&[4], &[3]]));
    assert!(matches!(e, PlanError::Parameter { parameter: "x1", .. }), "{e}");
    let e = refused(desc(&sum(), DType::F32, &[4], &[&[4], &[2, 4]]));
    assert!(matches!(e, PlanError::Parameter { parameter: "x1", .. }), "{e}");
    let e = refused(ElementwiseDesc { shape: vec![1; 9], ..good.clone() });
    assert!(matches!(e, PlanError::Parameter { parameter: "shape", .. }), "{e}");
    let e = refused(desc(&sum(), DType::F32, &[1 << 30, 1 << 30], &[&[1], &[1]]));
    assert!(matches!(e, PlanError::Parameter { parameter: "shape", .. }), "{e}");
    let dropped = desc(&sum().dropout(), DType::F32, &[4], &[&[4], &[4]]);
    let e = refused(ElementwiseDesc { dropout: Some(Real::new(1.5)), ..dropped });
    assert!(matches!(e, PlanError::Parameter { parameter: "dropout.probability", .. }), "{e}");
}

#[test]
fn launches_that_do_not_fit_are_refused() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let plan = desc(&sum(), DType::F32, &[2, 4], &[&[2, 4], &[4]]).plan(device.target()).expect("plan");
    let x = Tensor::zeros(&device, DType::F32, &[2, 4]).expect("memory");
    let row = Tensor::zeros(&device, DType::F32, &[4]).expect("memory");
    let mut y = Tensor::zeros(&device, DType::F32, &[2, 4]).expect("memory");
    let inputs = vec![x.as_ref().into(), x.as_ref().into()];
    let args = ElementwiseArgs { inputs, random: None, outputs: vec![y.as_mut()] };
    let e = plan.launch(&stream, args).expect_err("a matrix for a row");
    assert!(matches!(e, RuntimeError::Shape { argument: "x1", .. }), "{e}");
    let inputs = vec![x.as_ref().into(), Operand::Output(0)];
    let args = ElementwiseArgs { inputs, random: None, outputs: vec![y.as_mut()] };
    let e = plan.launch(&stream, args).expect_err("the output for a row");
    assert!(matches!(e, RuntimeError::Shape { .. }), "{e}");
    let e = map_into(&stream, vec![Operand::Output(1), row.as_ref().into()], &[sum()], &[], vec![y.as_mut()]);
    let e = e.expect_err("no second output");
    assert_eq!(e.to_string(), "elementwise: `y1` is not among the 1 that are given");
    let two = map_into(&stream, Vec::new(), &[sum()], &[], Vec::new());
    assert!(matches!(two, Err(Error::Plan(PlanError::Expression { .. }))));
}

#[test]
fn functions_have_pytorchs_semantics() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let of = |x: &[f32]| Tensor::from_slice(&device, x, &[x.len()]).expect("memory");
    let (x, y) = (of(&[1.0, -2.0, f32::MAX]), of(&[3.0, 0.5, -f32::MAX]));
    let values = |y: Tensor| y.to_vec::<f32>().expect("values");
    assert_eq!(values(add(&stream, &x, &y, 1.0).expect("add")), [4.0, -1.5, 0.0]);
    // Either end exactly; from the nearer one.
    assert_eq!(values(lerp(&stream, &x, &y, 0.0).expect("lerp"))[..2], [1.0, -2.0]);
    assert_eq!(values(lerp(&stream, &x, &y, 1.0).expect("lerp"))[..2], [3.0, 0.5]);
    let mask = Tensor::from_slice(&device, &[2u8, 0, 1], &[3]).expect("memory");
    assert_eq!(values(where_(&stream, &mask, &x, &y).expect("where")), [1.0, 0.5, f32::MAX]);
    let mut z = of(&[1.0, 2.0, 3.0]);
    add_in_place(&stream, &mut z, &of(&[10.0]), 0.5).expect("in place");
    mul_in_place(&stream, &mut z, &of(&[2.0])).expect("in place");
    assert_eq!(values(z), [12.0, 14.0, 16.0]);
    // Types that hold both.
    let half = Tensor::from_bytes(&device, DType::F16, &[0, 0x3c], &[1]).expect("memory");
    let brain = Tensor::from_bytes(&device, DType::BF16, &[0x80, 0x3f], &[1]).expect("memory");
    let both = add(&stream, &half, &brain, 1.0).expect("add");
    assert_eq!((both.dtype(), values(both)), (DType::F32, vec![2.0]));
    let same = add(&stream, &half, &half, 1.0).expect("add");
    assert_eq!((same.dtype(), same.to_bytes().expect("bytes")), (DType::F16, vec![0, 0x40]));
    // Masks out.
    let [a, b] = Expr::inputs();
    let greater = map(&stream, &[&x, &y], &a.gt(b), &[], DType::U8).expect("mask");
    assert_eq!(greater.to_vec::<u8>().expect("values"), [0, 0, 1]);
    let e = dropout_add(&stream, &x, &of(&[1.0]), Dropout { probability: 0.5, seed: 0, offset: 0 });
    assert!(matches!(e, Err(Error::Plan(PlanError::Parameter { parameter: "residual", .. }))));
    let e = dropout(&stream, &mask, Dropout { probability: 0.5, seed: 0, offset: 0 });
    assert!(matches!(e, Err(Error::Plan(PlanError::DType { op: "dropout", .. }))));
    assert!(device.findings().is_empty());
}
