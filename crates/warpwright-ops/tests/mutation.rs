//! Kernels with a barrier removed or a bound shifted: a sanitizer or a number must give each of them away.

use std::collections::BTreeMap;

use warpwright_ops::activation::{
    Activation, ActivationBackwardDesc, ActivationDesc, GatedActivation, GatedBackwardDesc,
};
use warpwright_ops::plan::Access;
use warpwright_ops::{Operation, Plan};
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Binding, Device, EmulatorConfig, LaunchStep, OnFinding, Tensor};
use warpwright_testkit::inputs::Input;
use warpwright_testkit::mutate::{Mutant, Site, mutants};
use warpwright_testkit::storage;

const TARGET: Target = Target::sm(90);
/// The longest run of a mutant, in instructions: one that loops for ever is noticed.
const MAX_STEPS: u64 = 10_000_000;

fn device() -> Device {
    Device::emulator_with(EmulatorConfig {
        target: TARGET,
        max_steps: MAX_STEPS,
        on_finding: OnFinding::Fail,
        ..EmulatorConfig::default()
    })
}

/// Runs the plan's kernel of layout `variant`, or `kernel` in its place, on inputs that belong to the plan; the bytes of
/// all outputs, or `None` if something is noticed.
fn run<O: Operation>(plan: &Plan<O>, variant: usize, kernel: Option<&Kernel>) -> Option<Vec<Vec<u8>>> {
    let device = device();
    let mut tensors = Vec::new();
    for (slot, spec) in plan.tensors().iter().enumerate() {
        let bytes = match spec.access {
            Access::Read => storage::encode(spec.dtype, &Input::Normal.values(spec.len, slot as u64)),
            Access::Write => vec![0x7b; spec.len * spec.dtype.bytes()],
        };
        tensors.push(Tensor::from_bytes(&device, spec.dtype, &bytes, &[spec.len]).expect("memory"));
    }
    let bindings: Vec<Binding> = tensors.iter().map(Tensor::binding).collect();
    let stream = device.stream().expect("stream");
    for step in &plan.variants()[variant].steps {
        let step = match kernel {
            Some(kernel) => LaunchStep::new(kernel.clone(), step.grid(), step.args().to_vec()),
            None => step.clone(),
        };
        stream.launch(&step, &bindings).ok()?;
        stream.synchronize().ok()?;
    }
    let outputs = plan.tensors().iter().zip(&tensors).filter(|(spec, _)| spec.access == Access::Write);
    outputs.map(|(_, tensor)| tensor.to_bytes().ok()).collect()
}

fn noticed<O: Operation>(plan: &Plan<O>, variant: usize, mutant: &Mutant) -> bool {
    let kernel = Kernel::new(mutant.module.clone()).expect("a shifted bound is legal PTX");
    let right = run(plan, variant, None);
    assert!(right.is_some(), "the kernel itself is in order");
    run(plan, variant, Some(&kernel)) != right
}

/// Every site of every kernel of the operation must be noticed for some length.
fn check<O: Operation>(plan_of: impl Fn(usize) -> Plan<O>) {
    let plans: Vec<Plan<O>> = [1, 8, 13, 14, 15, 2047, 2049].map(plan_of).into();
    for variant in 0..plans[0].variants().len() {
        let module = plans[0].variants()[variant].steps[0].kernel().module().clone();
        let mut sites: BTreeMap<Site, Vec<Mutant>> = BTreeMap::new();
        for mutant in mutants(&module) {
            sites.entry(mutant.site).or_default().push(mutant);
        }
        assert!(!sites.is_empty(), "an elementwise kernel has a bound");
        for (site, mutants) in sites {
            let caught = mutants.iter().any(|m| plans.iter().any(|plan| noticed(plan, variant, m)));
            let name = &module.functions[site.function].name;
            assert!(caught, "{name}: no mutant of {site:?} ({:?}) is noticed", mutants[0].location);
        }
    }
}

#[test]
fn shifted_bounds_of_activations_are_noticed() {
    for dtype in [DType::BF16, DType::F64] {
        check(|len| {
            ActivationDesc { activation: Activation::Sigmoid, dtype, len }.plan(TARGET).expect("plan")
        });
    }
    check(|len| {
        ActivationBackwardDesc { activation: Activation::GeluErf, dtype: DType::F32, len }
            .plan(TARGET)
            .expect("plan")
    });
    check(|len| {
        GatedBackwardDesc { activation: GatedActivation::Swiglu, dtype: DType::F16, len }
            .plan(TARGET)
            .expect("plan")
    });
}
