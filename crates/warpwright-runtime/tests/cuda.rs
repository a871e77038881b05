//! The device suite on a GPU, and what only a GPU does. Without one every test says that it is skipped, and fails if
//! `WARPWRIGHT_REQUIRE_GPU=1`.
//!
//! Tests whose process must be their own (a fault costs the process its device; the cache is configured by the
//! environment) are `#[ignore]`d and started by a test beside them.

mod common;

use std::ffi::c_void;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use common::{
    FUTURE, counting, from_the_future, increment, launch_increment, nothing, scale, scale_for, scale_named,
    scale_step, slot, slow_step, suite,
};
use cudarc::driver::sys;
use warpwright_ptx::kernel::Kernel;
use warpwright_runtime::timing::{Timer, TimerOptions};
use warpwright_runtime::{
    ArgValue, Binding, DType, Device, DeviceId, DriverVersion, Error, LaunchStep, PtxVersion, Stream, Tensor,
    discover, interop,
};

/// One test at a time: some watch the device's memory, some its clock.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn gpu() -> Option<(Device, MutexGuard<'static, ()>)> {
    match Device::cuda(0) {
        Ok(device) => Some((device, ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner))),
        Err(why) => {
            let required = std::env::var_os("WARPWRIGHT_REQUIRE_GPU").is_some_and(|v| v == "1");
            assert!(!required, "a GPU is required: {why}");
            println!("skipped: no CUDA device ({why})");
            None
        }
    }
}

macro_rules! on_gpu {
    ($($(#[$meta:meta])* fn $name:ident($device:ident) $body:block)*) => {
        $($(#[$meta])* #[test]
        fn $name() {
            let Some((device, _guard)) = gpu() else { return };
            let $device = &device;
            $body
        })*
    };
}

macro_rules! suite {
    ($($name:ident),* $(,)?) => {
        on_gpu! { $(fn $name(device) { suite::$name(device) })* }
    };
}

common::device_suite!(suite);

fn stream(device: &Device) -> Stream {
    device.stream().expect("stream")
}

on_gpu! {
    fn discovery_describes_the_device(device) {
        let found = discover();
        println!("{found}");
        assert_eq!(found.unavailable, None);
        let info = &found.devices[0];
        assert_eq!((info.name.as_str(), info.sm), (device.name(), device.sm()));
        let p = device.properties();
        assert_eq!((p.id, p.driver), (DeviceId::Cuda(0), found.driver));
        assert!(p.multiprocessors > 0 && p.max_threads == 1024 && p.l2_bytes > 1 << 20 && p.memory > 1 << 30, "{p:?}");
        assert!(p.target.runs_on(device.sm()));
        assert!(!device.is_emulator());
        assert_eq!(Device::best(), *device, "the same context and caches");
        assert_eq!(Device::open("cuda:0").expect("open"), *device);
        let none = Device::cuda(1000);
        assert!(matches!(none, Err(Error::NoSuchDevice { ordinal: 1000, count }) if count >= 1), "{none:?}");
    }

    fn kernel_info_is_that_of_the_driver(device) {
        let info = device.load(&scale()).expect("load").info();
        println!("scale: {info:?}");
        let registers = info.registers.expect("registers");
        assert!((4..=64).contains(&registers), "{info:?}");
        assert_eq!((info.local_bytes, info.shared_bytes), (Some(0), 0));
        assert!((128..=1024).contains(&info.max_threads), "{info:?}");
        assert!(info.binary_sm.is_some_and(|sm| sm <= device.sm()));
    }

    fn compiling_through_the_linker_costs_no_registers(device) {
        // SAFETY: plain driver calls on the context that a call of the runtime has made current on this thread.
        let direct = unsafe {
            let context = interop::raw_context(device).expect("context") as sys::CUcontext;
            assert_eq!(sys::cuCtxSetCurrent(context), sys::CUresult::CUDA_SUCCESS);
            let text = std::ffi::CString::new(scale().text()).expect("text");
            let mut module = std::ptr::null_mut();
            assert_eq!(sys::cuModuleLoadData(&raw mut module, text.as_ptr().cast()), sys::CUresult::CUDA_SUCCESS);
            let mut function = std::ptr::null_mut();
            let found = sys::cuModuleGetFunction(&raw mut function, module, c"scale".as_ptr());
            assert_eq!(found, sys::CUresult::CUDA_SUCCESS);
            let mut registers = 0;
            let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS;
            assert_eq!(sys::cuFuncGetAttribute(&raw mut registers, which, function), sys::CUresult::CUDA_SUCCESS);
            sys::cuModuleUnload(module);
            registers
        };
        let linked = device.load(&scale()).expect("load").info().registers;
        assert_eq!(linked, u32::try_from(direct).ok());
    }

    fn ptx_newer_than_the_driver_says_so(device) {
        let future = from_the_future();
        match device.load(&future) {
            Err(Error::PtxTooNew { kernel, needs, supported: Some(supported), driver }) => {
                println!("{driver} reads PTX up to {supported}");
                assert_eq!((kernel.as_str(), needs), ("from_the_future", FUTURE));
                assert!(supported >= PtxVersion::new(7, 4) && supported < needs);
            }
            other => panic!("{other:?}"),
        }
    }

    fn the_newest_ptx_of_the_driver_loads(device) {
        let newest = device.properties().driver.and_then(DriverVersion::ptx_version).expect("a known driver");
        let module = warpwright_ptx::Module { version: newest, ..scale_named("newest").module().clone() };
        device.load(&Kernel::new(module).expect("kernel")).expect("load");
    }

    fn the_devices_own_target_loads(device) {
        let info = device.load(&scale_for(device.target())).expect("load").info();
        println!("{}: {info:?}", device.target());
        assert_eq!(info.binary_sm, Some(device.sm()));
    }

    fn events_order_streams(device) {
        let (a, b) = (device.new_stream().expect("a"), device.new_stream().expect("b"));
        let y = Tensor::from_slice(device, &[0u32], &[1]).expect("y");
        let (long, short) = (slow_step(2_000_000), slow_step(1));
        long.warm_up(device).expect("warm up");
        for round in 1..=3u32 {
            // The second reads what the first writes at its end: without the wait it would be lost.
            a.launch(&long, &[y.binding()]).expect("launch");
            assert!(!a.is_idle().expect("idle"), "milliseconds of work are in flight");
            let done = a.record().expect("record");
            b.wait(&done).expect("wait");
            b.launch(&short, &[y.binding()]).expect("launch");
            assert_eq!(y.to_vec_on::<u32>(&b).expect("y"), [2 * round]);
        }
    }

    fn events_time(device) {
        let s = stream(device);
        let y = Tensor::from_slice(device, &[0u32], &[1]).expect("y");
        let time = |n: u32| {
            let step = slow_step(n);
            step.warm_up(device).expect("warm up");
            let start = s.record().expect("start");
            s.launch(&step, &[y.binding()]).expect("launch");
            let end = s.record().expect("end");
            start.elapsed_us(&end).expect("elapsed").expect("a clock")
        };
        let (short, long) = (time(1_000_000), time(4_000_000));
        println!("1 M steps {short:.0} us, 4 M steps {long:.0} us");
        assert!((2.5..6.0).contains(&(long / short)));
    }

    fn reading_waits_for_every_stream(device) {
        let s = device.new_stream().expect("stream");
        let y = Tensor::from_slice(device, &[0u32], &[1]).expect("y");
        let step = slow_step(2_000_000);
        step.warm_up(device).expect("warm up");
        s.launch(&step, &[y.binding()]).expect("launch");
        assert_eq!(y.to_vec::<u32>().expect("y"), [1]);
    }

    fn memory_is_freed_after_the_work_that_uses_it(device) {
        let s = device.new_stream().expect("stream");
        let step = slow_step(2_000_000);
        step.warm_up(device).expect("warm up");
        let y = Tensor::zeros(device, DType::U32, &[1]).expect("y");
        s.launch(&step, &[y.binding()]).expect("launch");
        drop(y);
        let z = Tensor::empty_on(&s, DType::U32, &[1]).expect("z");
        s.launch(&step, &[z.binding()]).expect("launch");
        drop(z);
        s.synchronize().expect("no fault");
    }

    fn streams_of_others_work(device) {
        let own = device.new_stream().expect("stream");
        let raw = interop::raw_stream(&own).expect("raw");
        assert_ne!(raw, 0);
        let (x, y) = (counting(device, 128), Tensor::zeros(device, DType::F32, &[128]).expect("y"));
        for raw in [raw, 0] {
            // SAFETY: the stream outlives the wrapper; 0 is the legacy default stream.
            let wrapped = unsafe { interop::stream_from_raw(device, raw) }.expect("wrap");
            assert_eq!(interop::raw_stream(&wrapped).expect("raw"), raw);
            wrapped.launch(&scale_step(scale(), 3.0, 128), &[x.binding(), y.binding()]).expect("launch");
            wrapped.synchronize().expect("synchronize");
            assert_eq!(y.to_vec_on::<f32>(&wrapped).expect("y")[127], 381.0);
            drop(wrapped);
        }
        own.synchronize().expect("not destroyed with its wrapper");
        let loaded = device.load(&scale()).expect("load");
        assert_ne!(interop::raw_function(device, &loaded).expect("function"), 0);
    }

    fn a_thread_without_a_context_gets_one(device) {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: takes the context from this thread alone.
                let cleared = unsafe { sys::cuCtxSetCurrent(std::ptr::null_mut()) };
                assert_eq!(cleared, sys::CUresult::CUDA_SUCCESS);
                assert_eq!(counting(device, 10).to_vec::<f32>().expect("read")[9], 9.0);
            });
        });
    }

    fn a_hundred_thousand_launches_leave_memory_as_it_was(device) {
        let s = stream(device);
        let x = Tensor::from_slice(device, &[0u32; 64], &[64]).expect("x");
        let step = LaunchStep::new(increment(), [1, 1, 1], vec![slot(0), ArgValue::U32(1)]);
        let run = |n: u32| {
            for i in 0..n {
                launch_increment(&s, &step, &x).expect("launch");
                if i % 1000 == 0 {
                    drop(s.alloc(1 << 16).expect("alloc"));
                    drop(s.record().expect("event"));
                }
            }
            s.synchronize().expect("synchronize");
        };
        run(10_000);
        let (free, resident) = (device.memory_info().expect("info").free, resident_bytes());
        run(100_000);
        let (free_after, resident_after) = (device.memory_info().expect("info").free, resident_bytes());
        println!("device memory {free} -> {free_after} free, host {resident} -> {resident_after} resident");
        assert!(free_after + (2 << 20) >= free, "the device's memory went");
        assert!(resident_after < resident + (4 << 20), "the host's memory grew");
        assert_eq!(x.to_vec::<u32>().expect("x"), [110_000; 64]);
    }

    fn launching_costs_little_more_than_the_driver(device) {
        let s = stream(device);
        let x = counting(device, 32);
        let bindings = [x.binding(), x.binding()];
        let step = LaunchStep::new(nothing(), [1, 1, 1], vec![slot(0), slot(1), ArgValue::U32(32)]);
        let loaded = step.warm_up(device).expect("warm up");
        let function = interop::raw_function(device, &loaded).expect("function") as sys::CUfunction;
        let raw = interop::raw_stream(&s).expect("stream") as sys::CUstream;
        let (mut a, mut b, mut n) = (x.buffer().address(), x.buffer().address(), 32u32);
        let mut bare = || {
            let mut params: [*mut c_void; 3] =
                [(&raw mut a).cast(), (&raw mut b).cast(), (&raw mut n).cast()];
            let none = std::ptr::null_mut();
            // SAFETY: three pointers to values of the kernel's three parameter types, on a live function and stream.
            let code = unsafe {
                sys::cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, raw, params.as_mut_ptr(), none)
            };
            assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
        };
        let mut ours = || s.launch(&step, &bindings).expect("launch");
        // Alternating, in batches that fit the driver's queue; the fastest quarter, since anything else disturbs.
        let (mut bare_us, mut our_us) = (Vec::new(), Vec::new());
        for _ in 0..200 {
            bare_us.push(host_us_per_call(&s, &mut bare));
            our_us.push(host_us_per_call(&s, &mut ours));
        }
        let (bare, ours) = (lower_quartile(bare_us), lower_quartile(our_us));
        println!("host time of a launch: bare {bare:.2} us, ours {ours:.2} us, overhead {:.2} us", ours - bare);
        assert!(ours - bare < 1.5, "target: 1.5 us");

        let graph = s
            .capture(|s| (0..100).try_for_each(|_| s.launch(&step, &bindings)))
            .expect("capture");
        assert_eq!(graph.nodes(), 100);
        graph.launch(&s).expect("warm up");
        s.synchronize().expect("synchronize");
        let (start, _, end) =
            (s.record().expect("start"), graph.launch(&s).expect("launch"), s.record().expect("end"));
        let us = start.elapsed_us(&end).expect("elapsed").expect("a clock");
        println!("graph of 100 empty kernels: {us:.1} us");
    }

    fn stream_ordered_memory_is_cheap(device) {
        let s = stream(device);
        let mut allocate = || drop(s.alloc(1 << 20).expect("alloc"));
        allocate();
        let times = (0..20).map(|_| host_us_per_call(&s, &mut allocate)).collect();
        let us = lower_quartile(times);
        println!("allocating and freeing 1 MiB on a stream: {us:.2} us");
        assert!(us < 20.0);
    }

    fn copies_reach_the_roofline(device) {
        let mut timer = Timer::new(&stream(device), TimerOptions::default()).expect("timer");
        for mb in [1u64, 16, 64, 256, 1024] {
            let gb_per_s = timer.copy_bandwidth(mb << 20).expect("measured");
            println!("copy {mb:>4} MB: {gb_per_s:.0} GB/s");
            assert!(gb_per_s > 20.0 && gb_per_s < 20_000.0);
        }
        let y = Tensor::from_slice(device, &[0u32], &[1]).expect("y");
        let step = slow_step(100_000);
        let single = timer.measure(|s| s.launch(&step, &[y.binding()])).expect("measured");
        let graph = timer.measure_in_graph(10, |s| s.launch(&step, &[y.binding()])).expect("measured");
        println!("slow: {:.1} us alone (spread {:.3}), {:.1} us in a graph", single.median_us, single.spread(), graph.median_us);
        assert!((graph.median_us / single.median_us - 1.0).abs() < 0.2);
        let empty = LaunchStep::new(nothing(), [1, 1, 1], vec![slot(0), slot(0), ArgValue::U32(0)]);
        let floor = timer.measure(|s| s.launch(&empty, &[Binding::NULL])).expect("measured");
        println!("empty kernel: {:.2} us between events", floor.median_us);
    }
}

fn host_us_per_call(s: &Stream, call: &mut dyn FnMut()) -> f64 {
    const BATCH: u32 = 200;
    let start = Instant::now();
    (0..BATCH).for_each(|_| call());
    let us = start.elapsed().as_secs_f64() * 1e6 / f64::from(BATCH);
    s.synchronize().expect("synchronize");
    us
}

fn lower_quartile(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 4]
}

/// Resident memory of this process; 0 where it cannot be read.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok())
        .map_or(0, |pages| pages * 4096)
}

/// Runs one of the ignored tests below in a process of its own.
fn in_a_process(test: &str, cache: &Path) -> Output {
    let program = std::env::current_exe().expect("this program");
    let run = Command::new(program)
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .env("WARPWRIGHT_CACHE_DIR", cache)
        .env_remove("WARPWRIGHT_CACHE")
        .env("WARPWRIGHT_REQUIRE_GPU", "1")
        .output()
        .expect("run");
    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && out.contains("1 passed"), "{test}: {}\n{out}\n{err}", run.status);
    run
}

fn says(run: &Output, what: &str) -> bool {
    String::from_utf8_lossy(&run.stdout).contains(what)
}

#[test]
fn machine_code_is_kept_between_processes() {
    let Some((_device, _guard)) = gpu() else { return };
    let directory = tempfile::tempdir().expect("directory");
    let cache = directory.path();
    let test = "process_loads_a_kernel";
    assert!(says(&in_a_process(test, cache), "from disk: false"), "nothing is there");
    assert!(says(&in_a_process(test, cache), "from disk: true"), "stored by the first");
    let files: Vec<_> = std::fs::read_dir(cache).expect("list").flatten().map(|e| e.path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let good = std::fs::read(&files[0]).expect("file");

    let mut torn = good.clone();
    torn.truncate(good.len() / 2);
    std::fs::write(&files[0], torn).expect("write");
    assert!(says(&in_a_process(test, cache), "from disk: false"), "a torn file is ignored");
    assert!(says(&in_a_process(test, cache), "from disk: true"), "and rebuilt");
    let mut flipped = good.clone();
    let last = flipped.len() - 1;
    flipped[last] ^= 0x10;
    std::fs::write(&files[0], flipped).expect("write");
    assert!(says(&in_a_process(test, cache), "from disk: false"), "a flipped bit is noticed");
}

#[test]
#[ignore = "started by machine_code_is_kept_between_processes"]
fn process_loads_a_kernel() {
    let Some((device, _guard)) = gpu() else { return };
    let start = Instant::now();
    let loaded = device.load(&scale()).expect("load");
    println!("from disk: {} in {:?}, {:?}", loaded.from_disk_cache(), start.elapsed(), loaded.info());
    let statistics = device.cache_statistics();
    assert_eq!(statistics.compiled + statistics.disk_hits, 1);
    assert_eq!(statistics.disk_hits == 1, loaded.from_disk_cache());
    suite::launches_compute(&device);
}

#[test]
fn a_fault_costs_the_device_and_nothing_else() {
    let Some((_device, _guard)) = gpu() else { return };
    let directory = tempfile::tempdir().expect("directory");
    assert!(says(&in_a_process("process_survives_a_fault", directory.path()), "survived"));
}

#[test]
#[ignore = "started by a_fault_costs_the_device_and_nothing_else"]
fn process_survives_a_fault() {
    let Some((device, _guard)) = gpu() else { return };
    let s = device.new_stream().expect("stream");
    let before = counting(&device, 64);
    let step = LaunchStep::new(increment(), [1, 1, 1], vec![slot(0), ArgValue::U32(1)]);
    // SAFETY: not at all; the address is one that no allocation has, which is what this test is about.
    let wild = unsafe { Binding::from_raw(&device, 0x1000) };
    s.launch(&step, &[wild]).expect("a launch only enqueues");
    match s.synchronize() {
        Err(Error::Fault(fault)) => {
            println!("{fault}");
            assert_eq!(
                (fault.device, fault.name.as_str()),
                (DeviceId::Cuda(0), "CUDA_ERROR_ILLEGAL_ADDRESS")
            );
            assert_eq!(fault.last_kernel.as_deref(), Some("increment"));
        }
        other => panic!("{other:?}"),
    }
    // Everything on the device reports the same fault from here on.
    assert!(matches!(device.alloc(16), Err(Error::Fault(_))));
    assert!(matches!(before.to_vec::<f32>(), Err(Error::Fault(_))));
    assert!(matches!(s.launch(&step, &[before.binding()]), Err(Error::Fault(_))));
    assert!(matches!(device.new_stream(), Err(Error::Fault(_))));
    assert!(matches!(device.load(&scale()), Err(Error::Fault(_))));
    drop((before, s));
    // Discovery, and the emulator, which names the instruction.
    assert_eq!(discover().unavailable, None);
    let emulator = Device::emulator();
    // SAFETY: the emulator checks every address.
    let wild = unsafe { Binding::from_raw(&emulator, 0x1000) };
    match stream(&emulator).launch(&step, &[wild]) {
        Err(Error::Sanitizer(failure)) => println!("{failure}"),
        other => panic!("{other:?}"),
    }
    println!("survived");
}
