//! Refusals of plans and launches, and effects that they must not have.

use std::collections::HashMap;

use warpwright_ops::activation::{
    Activation, ActivationArgs, ActivationBackwardDesc, ActivationDesc, GatedActivation, GatedArgs,
    GatedDesc, GatedGradients, activate, activate_in_place, gelu_erf, leaky_relu, relu, silu, swiglu,
    swiglu_backward, tanh_backward,
};
use warpwright_ops::plan::Real;
use warpwright_ops::softmax::{Softmax, SoftmaxArgs, SoftmaxDesc, tuning};
use warpwright_ops::{Direction, Error, Operation, PlanError, catalogue};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Binding, Device, Error as RuntimeError, Tensor};

fn floats(device: &Device, values: &[f32]) -> Tensor {
    Tensor::from_slice(device, values, &[values.len()]).expect("memory")
}

const TARGET: Target = Target::sm(90);

fn desc(dtype: DType, len: usize) -> ActivationDesc {
    ActivationDesc { activation: Activation::Silu, dtype, len }
}

#[test]
fn a_length_does_not_change_the_kernel() {
    let text = |len| desc(DType::BF16, len).plan(TARGET).expect("plan").steps()[0].kernel().text().as_ptr();
    assert_eq!(text(1), text(5_000_000_000), "one recorded kernel serves every length");
}

#[test]
fn an_empty_tensor_launches_nothing() {
    let plan = desc(DType::F32, 0).plan(TARGET).expect("plan");
    assert!(plan.steps().is_empty());
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let y =
        silu(&stream, &Tensor::from_slice::<f32>(&device, &[], &[3, 0]).expect("memory")).expect("launch");
    assert_eq!((y.shape(), y.len()), (&[3usize, 0][..], 0));
}

#[test]
fn grids_cover_the_longest_tensors_or_say_so() {
    let plan = desc(DType::F32, 5_000_000_000).plan(TARGET).expect("plan");
    assert_eq!(plan.steps()[0].grid(), [5_000_000_000u64.div_ceil(1024) as u32, 1, 1]);
    let too_large = desc(DType::F32, usize::MAX).plan(TARGET).expect_err("no grid is that large");
    assert!(matches!(too_large, PlanError::TooLarge { op: "silu", .. }), "{too_large}");
}

#[test]
fn tensors_that_no_layout_takes_are_refused() {
    let desc = SoftmaxDesc {
        function: Softmax::Plain,
        dtype: DType::F32,
        outer: 2,
        n: 4,
        inner: 1,
        scale: Real::new(1.0),
    };
    let vectors = tuning::configs(DType::F32, Direction::Forward, TARGET, 4, 1)[0];
    let plan = desc.plan_with(TARGET, vectors).expect("a plan of one layout");
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let (x, mut y) = (floats(&device, &[0.0; 9]), floats(&device, &[0.0; 9]));
    let x = x.as_ref().narrow(0, 1, 8).and_then(|x| x.reshape(&[2, 4])).expect("a view");
    let y = y.as_mut().narrow(0, 0, 8).and_then(|y| y.reshape(&[2, 4])).expect("a view");
    let e = plan.launch(&stream, SoftmaxArgs { x: Some(x), y }).expect_err("one element past a vector");
    assert!(matches!(e, RuntimeError::Alignment { op: "softmax", argument: "x", required: 16, .. }), "{e}");
}

#[test]
fn descriptors_without_a_plan() {
    let e = desc(DType::U8, 4).plan(TARGET).expect_err("no integers");
    assert!(matches!(e, PlanError::DType { op: "silu", tensor: "x", got: DType::U8, .. }), "{e}");
    let activation = Activation::LeakyRelu { negative_slope: Real::new(f64::NAN) };
    let e = ActivationDesc { activation, dtype: DType::F32, len: 4 }.plan(TARGET).expect_err("no NaN");
    assert!(matches!(e, PlanError::Parameter { parameter: "negative_slope", .. }), "{e}");
    let e =
        ActivationBackwardDesc { activation, dtype: DType::F32, len: 4 }.plan(TARGET).expect_err("no NaN");
    assert!(matches!(e, PlanError::Parameter { .. }), "{e}");
}

#[test]
fn launches_check_their_tensors() {
    let (device, other) = (Device::emulator(), Device::emulator());
    let stream = device.stream().expect("stream");
    let plan = desc(DType::F32, 4).plan(device.target()).expect("plan");
    let x = floats(&device, &[1.0; 4]);
    let mut y = floats(&device, &[0.0; 4]);
    let launch = |x: &Tensor, y: &mut Tensor| {
        plan.launch(&stream, ActivationArgs { x: Some(x.as_ref()), y: y.as_mut() })
    };
    launch(&x, &mut y).expect("right arguments");

    let halves = Tensor::zeros(&device, DType::F16, &[4]).expect("memory");
    let e = launch(&halves, &mut y).expect_err("dtype");
    assert!(matches!(e, RuntimeError::DType { op: "silu", argument: "x", got: DType::F16, .. }), "{e}");
    let e = launch(&floats(&device, &[1.0; 5]), &mut y).expect_err("length");
    assert!(matches!(e, RuntimeError::Elements { op: "silu", argument: "x", got: 5, .. }), "{e}");
    let e = launch(&x, &mut Tensor::zeros(&device, DType::F32, &[2, 2]).expect("memory")).expect_err("shape");
    assert!(matches!(e, RuntimeError::Shape { argument: "y", .. }), "{e}");
    let e = launch(&floats(&other, &[1.0; 4]), &mut y).expect_err("device");
    assert!(matches!(e, RuntimeError::WrongDevice { argument: "x", .. }), "{e}");
}

#[test]
fn bindings_are_counted_and_aligned() {
    let (device, other) = (Device::emulator(), Device::emulator());
    let stream = device.stream().expect("stream");
    let plan = desc(DType::F32, 4).plan(device.target()).expect("plan");
    let x = floats(&device, &[9.0, 1.0, -1.0, 0.0, 2.0]);
    let y = floats(&device, &[0.0; 4]);
    // Its second element is no multiple of 16 bytes: the scalar variant.
    let shifted = x.as_ref().narrow(0, 1, 4).expect("in range").binding();
    plan.launch_bound(&stream, &[shifted, y.binding()]).expect("right bindings");
    let silu = |x: f32| x / (1.0 + (-x).exp());
    for (got, x) in y.to_vec::<f32>().expect("copy").iter().zip([1.0, -1.0, 0.0, 2.0]) {
        assert!((got - silu(x)).abs() < 1e-6, "silu({x}) = {got}");
    }

    let e = plan.launch_bound(&stream, &[shifted]).expect_err("one is missing");
    assert!(matches!(e, RuntimeError::Presence { op: "silu", argument: "y", given: false }), "{e}");
    let e = plan.launch_bound(&stream, &[shifted, y.binding(), y.binding()]).expect_err("one too many");
    assert!(matches!(e, RuntimeError::Presence { given: true, .. }), "{e}");
    let e = plan.launch_bound(&stream, &[Binding::NULL, y.binding()]).expect_err("no address");
    assert!(matches!(e, RuntimeError::Presence { argument: "x", given: false, .. }), "{e}");
    let bytes = Tensor::zeros(&device, DType::U8, &[32]).expect("memory");
    let odd = bytes.as_ref().narrow(0, 1, 16).expect("in range").binding();
    let e = plan.launch_bound(&stream, &[odd, y.binding()]).expect_err("odd address");
    assert!(matches!(e, RuntimeError::Alignment { argument: "x", required: 4, .. }), "{e}");
    let e =
        plan.launch_bound(&stream, &[floats(&other, &[1.0; 4]).binding(), y.binding()]).expect_err("device");
    assert!(matches!(e, RuntimeError::Launch { .. }), "{e}");
}

#[test]
fn a_plan_remembers_more_than_one_device() {
    let plan = desc(DType::F32, 1).plan(TARGET).expect("plan");
    let devices: Vec<Device> = (0..12).map(|_| Device::emulator()).collect();
    for round in 0..2 {
        for device in &devices {
            let (x, mut y) = (floats(device, &[round as f32]), floats(device, &[7.0]));
            let stream = device.stream().expect("stream");
            plan.launch(&stream, ActivationArgs { x: Some(x.as_ref()), y: y.as_mut() }).expect("launch");
            assert_eq!(y.to_vec::<f32>().expect("copy")[0] > 0.5, round == 1);
        }
    }
}

#[test]
fn strided_and_half_overlapping_views_are_refused() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let plan = desc(DType::F32, 4).plan(device.target()).expect("plan");
    let matrix = Tensor::zeros(&device, DType::F32, &[2, 4]).expect("memory");
    let mut y = Tensor::zeros(&device, DType::F32, &[2, 2]).expect("memory");
    let columns = matrix.as_ref().narrow(1, 0, 2).expect("in range");
    let e = plan.launch(&stream, ActivationArgs { x: Some(columns), y: y.as_mut() }).expect_err("strided");
    assert!(matches!(e, RuntimeError::NotContiguous { argument: "x", .. }), "{e}");
}

#[test]
fn a_plan_for_a_newer_device_is_refused() {
    let device = Device::open("emulator:sm_80").expect("emulator");
    let stream = device.stream().expect("stream");
    let plan = desc(DType::F32, 4).plan(TARGET).expect("plan");
    let mut y = floats(&device, &[0.0; 4]);
    let e = plan.launch(&stream, ActivationArgs { x: None, y: y.as_mut() }).expect_err("sm_90 code on sm_80");
    assert!(matches!(e, RuntimeError::Target { .. }), "{e}");
}

#[test]
fn free_functions() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let x = Tensor::from_slice(&device, &[-2.0f32, -0.0, 0.5, 3.0], &[2, 2]).expect("memory");
    let values = |t: &Tensor| t.to_vec::<f32>().expect("copy");
    assert_eq!(values(&relu(&stream, &x).expect("launch")), [0.0, 0.0, 0.5, 3.0]);
    assert_eq!(values(&leaky_relu(&stream, &x, 0.25).expect("launch")), [-0.5, 0.0, 0.5, 3.0]);
    let y = gelu_erf(&stream, &x).expect("launch");
    assert_eq!(y.shape(), [2, 2]);
    assert!((values(&y)[3] - 2.995_950_3).abs() < 1e-6);
    let ones = Tensor::from_slice(&device, &[1.0f32; 4], &[2, 2]).expect("memory");
    assert_eq!(values(&tanh_backward(&stream, &x, &ones).expect("launch"))[1], 1.0);
    let GatedGradients { dgate, dup } = swiglu_backward(&stream, &x, &ones, &ones).expect("launch");
    for (y, dup) in values(&swiglu(&stream, &x, &ones).expect("launch")).iter().zip(values(&dup)) {
        assert!((y - dup).abs() <= 1e-6 * dup.abs(), "with up = dy = 1 both are silu: {y} {dup}");
    }
    assert_eq!(values(&dgate)[1], 0.5);
    let mut replaced = Tensor::from_slice(&device, &[-1.0f32, 2.0], &[2]).expect("memory");
    activate_in_place(&stream, Activation::Relu, &mut replaced).expect("launch");
    assert_eq!(values(&replaced), [0.0, 2.0]);
    let bytes = Tensor::zeros(&device, DType::U8, &[4]).expect("memory");
    assert!(matches!(activate(&stream, Activation::Tanh, &bytes), Err(Error::Plan(PlanError::DType { .. }))));
    let e = swiglu(&stream, &x, &Tensor::zeros(&device, DType::F32, &[4]).expect("memory"));
    assert!(matches!(e, Err(Error::Runtime(RuntimeError::Shape { argument: "up", .. }))));
}

#[test]
fn a_gate_may_be_replaced_by_its_result() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let plan = GatedDesc { activation: GatedActivation::Swiglu, dtype: DType::F32, len: 4 };
    let plan = plan.plan(device.target()).expect("plan");
    let both = floats(&device, &[1.0; 8]);
    let mut y = floats(&device, &[0.0; 4]);
    let gate = both.as_ref().narrow(0, 0, 4).expect("in range");
    let up = both.as_ref().narrow(0, 4, 4).expect("in range");
    plan.launch(&stream, GatedArgs { gate, up, y: y.as_mut() })
        .expect("halves of one tensor are two tensors");
    assert!(y.to_vec::<f32>().expect("copy").iter().all(|v| (v - 0.731_058_6).abs() < 1e-6));
}

#[test]
fn the_catalogue_lists_every_operation_once() {
    let all = catalogue();
    let mut keys: Vec<_> = all.iter().map(|e| (e.op, e.direction)).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), all.len());
    for (i, entry) in all.iter().enumerate() {
        assert!(!entry.dtypes.is_empty() && !entry.targets.is_empty(), "row {i}");
    }
    assert!(keys.iter().any(|(op, _)| *op == "geglu_tanh"));
}

#[test]
fn every_kernel_records_under_a_name_of_its_own() {
    names_are_unique([Target::sm(75), Target::sm(90)]);
}

#[test]
#[ignore = "nightly: kernels"]
fn every_kernel_records_for_every_target_under_a_name_of_its_own() {
    names_are_unique(catalogue::TARGETS);
}

fn names_are_unique(targets: impl IntoIterator<Item = Target>) {
    for target in targets {
        let kernels: Vec<_> = catalogue::kernels_for(target, |_| true)
            .collect::<Result<_, _>>()
            .unwrap_or_else(|e| panic!("{target}: {e:?}"));
        let mut texts = HashMap::new();
        for kernel in &kernels {
            // Primitives may share a kernel.
            let first = *texts.entry(kernel.name().to_owned()).or_insert(kernel.text());
            assert_eq!(first, kernel.text(), "{target}: two kernels are called {}", kernel.name());
        }
        assert!(texts.len() > 100, "{target}: {} kernels", texts.len());
    }
}
