//! The device suite on the emulator, and what only the emulator does.

mod common;

use std::time::{Duration, Instant};

use common::suite;
use common::{counting, kernel, scale, scale_step, slot};
use warpwright_emu::{Fault, LaunchError};
use warpwright_ptx::verify::Rule;
use warpwright_runtime::{
    ArgValue, Binding, DType, Device, DeviceId, EmulatorConfig, Error, Interrupt, LaunchStep, OnFinding,
    Sanitizers, Target, Tensor, discover, interop,
};

macro_rules! suite {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            let device = Device::emulator();
            suite::$name(&device);
            let findings = device.findings();
            assert!(findings.is_empty(), "{findings:?}");
        })*
    };
}

common::device_suite!(suite);

#[test]
fn best_is_the_emulator_without_a_gpu() {
    let found = discover();
    let device = Device::best();
    assert_eq!(device.is_emulator(), found.unavailable.is_some(), "{found}");
    if let Some(why) = found.unavailable {
        let refused = Device::cuda(0);
        assert!(matches!(&refused, Err(Error::NoDriver(w)) if *w == why), "{refused:?}");
        let (device, reason) = Device::best_with_reason();
        assert!(device.is_emulator());
        assert!(matches!(&reason, Some(Error::NoDriver(w)) if *w == why), "{reason:?}");
        assert_eq!(device.name(), "emulator (sm_90)");
        assert!(!why.to_string().is_empty());
    }
}

#[test]
fn devices_open_by_name() {
    let e = Device::open("emulator").expect("emulator");
    assert_eq!((e.sm(), e.target()), (90, Target::sm(90)));
    let e = Device::open("emulator:sm_100a").expect("emulator");
    assert_eq!((e.sm(), e.target(), e.name()), (100, Target::specific(100), "emulator (sm_100a)"));
    assert!(matches!(e.id(), DeviceId::Emulator(_)));
    assert!(Device::open("auto").is_ok());
    for name in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "emulator:90", "auto:1"] {
        let refused = Device::open(name);
        assert!(matches!(&refused, Err(Error::DeviceName { name: n }) if n == name), "{name}: {refused:?}");
    }
}

#[test]
fn shared_memory_is_that_of_the_architecture() {
    for (target, kb) in
        [("sm_75", 64), ("sm_80", 163), ("sm_86", 99), ("sm_89", 99), ("sm_90", 227), ("sm_120", 99)]
    {
        let device = Device::open(&format!("emulator:{target}")).expect("emulator");
        assert_eq!(device.properties().max_shared, kb << 10, "{target}");
    }
}

#[test]
fn kernels_of_other_targets_are_refused() {
    let device = Device::open("emulator:sm_75").expect("emulator");
    let newer = kernel("sm_90", "", "newer()", "ret;");
    let refused = device.load(&newer);
    assert!(
        matches!(refused, Err(Error::Target { sm: 75, needs: Target { sm: 90, .. }, .. })),
        "{refused:?}"
    );
}

#[test]
fn a_version_from_the_future_is_a_kernel() {
    // Drivers refuse it, as the GPU tests see; the verifier warns, and the emulator runs what it knows.
    let future = common::from_the_future();
    assert_eq!(future.module().version, common::FUTURE);
    assert_eq!(future.warnings().iter().map(|w| w.rule).collect::<Vec<_>>(), [Rule::Target8]);
    Device::emulator().load(&future).expect("load");
}

/// Reads one element past the end of `x`.
fn out_of_bounds(device: &Device) -> Result<Tensor, Error> {
    let x = counting(device, 100);
    let y = Tensor::zeros(device, DType::F32, &[128]).expect("y");
    device.stream().expect("stream").launch(&scale_step(scale(), 1.0, 101), &[x.binding(), y.binding()])?;
    Ok(y)
}

#[test]
fn a_defect_fails_the_launch() {
    let device = Device::emulator();
    let Err(Error::Sanitizer(failure)) = out_of_bounds(&device) else { panic!("expected a finding") };
    assert_eq!((failure.kernel.as_str(), failure.count), ("scale", 1));
    assert!(failure.finding.contains("ld.global.f32"), "{}", failure.finding);
    assert_eq!(device.findings().len(), 1);
    assert!(device.findings().is_empty(), "taken");
    suite::launches_compute(&device);
}

#[test]
fn a_defect_can_be_collected() {
    let config = EmulatorConfig { on_finding: OnFinding::Collect, ..EmulatorConfig::default() };
    let device = Device::emulator_with(config);
    let y = out_of_bounds(&device).expect("goes on");
    assert_eq!(y.to_vec::<f32>().expect("y")[99..102], [99.0, 0.0, 0.0]);
    assert_eq!(device.findings().len(), 1);
}

#[test]
#[allow(unsafe_code, reason = "safe code cannot free what a graph uses")]
fn memory_from_elsewhere_that_was_freed_is_found_in_a_graph() {
    let device = Device::emulator();
    let s = device.stream().expect("stream");
    let (x, y) = (counting(&device, 8), counting(&device, 8));
    let step = scale_step(scale(), 1.0, 8);
    // SAFETY: the emulator checks every access, so that memory that is gone does no harm there.
    let raw = unsafe { Binding::from_raw(&device, x.binding().address()) };
    let graph = s.capture(|s| s.launch(&step, &[raw, y.binding()])).expect("capture");
    graph.launch(&s).expect("both are there");
    drop(x);
    assert!(matches!(graph.launch(&s), Err(Error::Sanitizer(_))));
}

#[test]
fn counters_are_taken() {
    let device = Device::emulator_with(EmulatorConfig { counters: true, ..EmulatorConfig::default() });
    let (x, y) = (counting(&device, 256), counting(&device, 256));
    let step = scale_step(scale(), 2.0, 256);
    let s = device.stream().expect("stream");
    s.launch(&step, &[x.binding(), y.binding()]).expect("launch");
    s.launch(&step, &[x.binding(), y.binding()]).expect("launch");
    let counters = device.counters().expect("counters");
    assert_eq!((counters.global_loads.bytes, counters.global_stores.bytes), (2048, 2048));
    assert_eq!(device.counters().expect("counters").global_loads.bytes, 0, "taken");
    assert!(Device::emulator().counters().is_none());
}

#[test]
fn a_launch_that_never_ends_is_stopped() {
    let config =
        EmulatorConfig { max_steps: 10_000, sanitizers: Sanitizers::empty(), ..EmulatorConfig::default() };
    let device = Device::emulator_with(config);
    let spin = kernel("sm_75", "", "spin() .reqntid 32, 1, 1", "AGAIN:\n bra AGAIN;");
    let step = LaunchStep::new(spin, [1, 1, 1], vec![]);
    let stopped = device.stream().expect("stream").launch(&step, &[]);
    assert!(matches!(stopped, Err(Error::Emulator(_))), "{stopped:?}");
}

/// Counts for ever.
fn endless() -> LaunchStep {
    let body = ".reg .b32 %n;\nmov.u32 %n, 0;\nAGAIN:\nadd.u32 %n, %n, 1;\nbra AGAIN;";
    LaunchStep::new(kernel("sm_75", "", "endless() .reqntid 32, 1, 1", body), [1, 1, 1], vec![])
}

fn fault(stopped: Result<(), Error>) -> Fault {
    match stopped {
        Err(Error::Emulator(error)) => match *error {
            LaunchError::Fault { kernel, fault, .. } if kernel == "endless" => fault,
            other => panic!("{other}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_interrupt_ends_the_launches_of_its_stream() {
    let device = Device::emulator();
    let (one, other) = (device.new_stream().expect("stream"), device.new_stream().expect("stream"));
    let interrupt = Interrupt::new();
    one.set_interrupt(Some(interrupt.clone()));
    let raised = std::thread::spawn({
        let interrupt = interrupt.clone();
        move || {
            std::thread::sleep(Duration::from_millis(50));
            interrupt.raise();
        }
    });
    let graph = one.capture(|stream| stream.launch(&endless(), &[])).expect("a graph");
    let begun = Instant::now();
    assert!(matches!(fault(one.launch(&endless(), &[])), Fault::Interrupted { .. }));
    assert!(begun.elapsed() < Duration::from_secs(1));
    raised.join().expect("the thread raises");
    assert!(matches!(fault(graph.launch(&one)), Fault::Interrupted { .. }));
    // Others go on, and so does this one once it is let.
    let (x, y) = (counting(&device, 8), counting(&device, 8));
    let step = scale_step(scale(), 2.0, 8);
    other.launch(&step, &[x.binding(), y.binding()]).expect("another stream");
    assert!(one.launch(&step, &[x.binding(), y.binding()]).is_err());
    one.set_interrupt(None);
    one.launch(&step, &[x.binding(), y.binding()]).expect("without the interrupt");
}

#[test]
fn a_device_can_have_a_deadline_and_an_interrupt() {
    let deadline = Some(Instant::now() + Duration::from_millis(50));
    let device = Device::emulator_with(EmulatorConfig { deadline, ..EmulatorConfig::default() });
    let stopped = device.stream().expect("stream").launch(&endless(), &[]);
    assert!(matches!(fault(stopped), Fault::TimeLimit { .. }));
    let interrupt = Interrupt::new();
    interrupt.raise();
    let config = EmulatorConfig { interrupt: Some(interrupt), ..EmulatorConfig::default() };
    let stopped = Device::emulator_with(config).stream().expect("stream").launch(&endless(), &[]);
    assert!(matches!(fault(stopped), Fault::Interrupted { .. }));
}

#[test]
fn memory_is_limited_and_given_back() {
    let device = Device::emulator_with(EmulatorConfig { memory: 1000, ..EmulatorConfig::default() });
    let first = device.alloc(600).expect("fits");
    assert_eq!(device.memory_info().expect("info").free, 400);
    let second = device.alloc(401);
    assert!(
        matches!(second, Err(Error::OutOfMemory { requested: 401, free: 400, total: 1000, .. })),
        "{second:?}"
    );
    drop(first);
    assert_eq!(device.memory_info().expect("info").free, 1000);
    assert!(device.alloc(1000).is_ok());
}

#[test]
fn what_only_cuda_has_is_an_error() {
    let device = Device::emulator();
    let s = device.stream().expect("stream");
    assert!(matches!(interop::raw_stream(&s), Err(Error::NotSupported { .. })));
    assert!(matches!(interop::raw_context(&device), Err(Error::NotSupported { .. })));
    let loaded = device.load(&scale()).expect("load");
    assert!(matches!(interop::raw_function(&device, &loaded), Err(Error::NotSupported { .. })));
    // SAFETY: refused before the number is used.
    let adopted = unsafe { interop::stream_from_raw(&device, 0) };
    assert!(matches!(adopted, Err(Error::NotSupported { .. })));
    let (start, end) = (s.record().expect("event"), s.record().expect("event"));
    assert_eq!(start.elapsed_us(&end).expect("no clock"), None);
    assert_eq!(loaded.info().registers, None);
}

#[test]
fn emulators_have_their_own_memory() {
    let (a, b) = (Device::emulator(), Device::emulator());
    assert_ne!(a.id(), b.id());
    let (x, y) = (counting(&a, 8), counting(&b, 8));
    let refused =
        b.stream().expect("stream").launch(&scale_step(scale(), 1.0, 8), &[x.binding(), y.binding()]);
    assert!(matches!(refused, Err(Error::Launch { .. })), "{refused:?}");
    let mut into = b.alloc(32).expect("buffer");
    let copied = b.stream().expect("stream").copy(&mut into, 0, x.buffer(), 0, 32);
    assert!(matches!(copied, Err(Error::WrongDevice { argument: "source", .. })), "{copied:?}");
}

#[test]
fn wild_host_addresses_are_errors() {
    let device = Device::emulator();
    let step = LaunchStep::new(common::increment(), [1, 1, 1], vec![slot(0), ArgValue::U32(1)]);
    // SAFETY: the emulator checks every address.
    let wild = unsafe { Binding::from_raw(&device, 0xdead_0000) };
    let found = device.stream().expect("stream").launch(&step, &[wild]);
    assert!(matches!(found, Err(Error::Sanitizer(_))), "{found:?}");
}
