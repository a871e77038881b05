//! The checks that every device must pass, whichever backend is behind it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use warpwright_runtime::{
    ArgValue, Binding, Buffer, DType, Device, Element, Error, Event, F8E4M3, F8E5M2, LaunchLimit, LaunchStep,
    Stream, Target, Tensor, TensorElement, TensorMap, TensorMapError, TensorRef, TensorSwizzle,
    record_launches,
};

use super::{
    any_block, counting, increment, launch_increment, nothing, null, rank, reverse_in_shared, scale,
    scale_for, scale_step, slot, slow_step, tile,
};

fn stream(device: &Device) -> Stream {
    device.stream().expect("stream")
}

fn bytes(n: usize, seed: usize) -> Vec<u8> {
    (0..n).map(|i| ((i * 31 + seed) % 253) as u8).collect()
}

fn read(buffer: &Buffer, offset: u64, n: usize) -> Vec<u8> {
    let mut data = vec![0; n];
    buffer.read(offset, &mut data).expect("read");
    data
}

/// Bytes come back as they were written, whole and in part, and ranges are checked.
pub(crate) fn buffers_keep_bytes(device: &Device) {
    let s = stream(device);
    for n in [1usize, 255, 4096, (1 << 20) + 3] {
        let data = bytes(n, 7);
        let mut a = device.alloc(n as u64).expect("alloc");
        assert_eq!(a.address() % 256, 0, "aligned");
        a.write(0, &data).expect("write");
        assert!(read(&a, 0, n) == data, "{n} bytes differ");

        let mut b = s.alloc(n as u64).expect("stream alloc");
        s.fill(&mut b, 0, 0xA5, n as u64).expect("fill");
        let half = n / 2;
        s.copy(&mut b, 0, &a, (n - half) as u64, half as u64).expect("copy");
        let mut back = vec![0; n];
        s.copy_to_host(&mut back, &b, 0).expect("copy to host");
        assert!(back[..half] == data[n - half..], "{n} bytes differ");
        assert!(back[half..].iter().all(|v| *v == 0xA5));
        s.copy_to_device(&mut b, half as u64, &data[half..]).expect("copy to device");
        assert!(read(&b, half as u64, n - half) == data[half..], "{n} bytes differ");
    }

    let mut a = device.alloc(16).expect("alloc");
    let past = a.write(9, &[0; 8]);
    assert!(matches!(past, Err(Error::Bounds { needed: 17, available: 16, .. })), "{past:?}");
    let wraps = a.read(u64::MAX, &mut [0; 2]);
    assert!(matches!(wraps, Err(Error::Bounds { needed: u64::MAX, available: 16, .. })), "{wraps:?}");
    let mut empty = device.alloc(0).expect("empty");
    empty.write(0, &[]).expect("nothing");
    empty.read(0, &mut []).expect("nothing");
    assert_eq!((empty.bytes(), empty.address()), (0, 0));
}

/// Host memory is zero at first, of the size that was asked for, page-locked for a GPU alone, and copied to and from the device by
/// several threads at a time.
pub(crate) fn host_buffers_are_copied(device: &Device) {
    assert!(device.alloc_host(0).expect("nothing").is_empty());
    std::thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || {
                let n = (1 << 20) + seed;
                let mut host = device.alloc_host(n).expect("alloc_host");
                assert_eq!(host.len(), n);
                assert_eq!(host.is_pinned(), !device.is_emulator());
                assert!(host.iter().all(|b| *b == 0));
                let data = bytes(n, seed);
                host.copy_from_slice(&data);
                let stream = device.new_stream().expect("stream");
                let mut memory = stream.alloc(n as u64).expect("stream alloc");
                stream.copy_to_device(&mut memory, 0, &host).expect("copy to device");
                // What is copied has been read when the call returns.
                host.fill(0xEE);
                stream.copy_to_host(&mut host, &memory, 0).expect("copy to host");
                assert!(host[..] == data, "{n} bytes differ");
            });
        }
    });
}

/// Every element type keeps its bits.
pub(crate) fn tensors_keep_elements(device: &Device) {
    fn check<T: Element>(device: &Device, data: &[T]) {
        let t = Tensor::from_slice(device, data, &[data.len()]).expect("tensor");
        assert_eq!(t.dtype(), T::DTYPE);
        assert_eq!(t.to_vec::<T>().expect("to_vec"), data);
        assert_eq!(t.to_vec_on::<T>(&stream(device)).expect("to_vec_on"), data);
        let zeros = Tensor::zeros(device, T::DTYPE, &[3, 5]).expect("zeros");
        assert_eq!(zeros.to_vec::<T>().expect("to_vec"), vec![T::zeroed(); 15]);
    }
    check(device, &[1.5f32, -0.25, f32::INFINITY]);
    check(device, &[1.5f64, f64::MIN_POSITIVE]);
    check(device, &[1.5, -2.0].map(half::f16::from_f32));
    check(device, &[1.5, -2.0, 0.125].map(half::bf16::from_f32));
    check(device, &[0u8, 255, 7]);
    check(device, &[-128i8, 127]);
    check(device, &[0u16, u16::MAX]);
    check(device, &[i16::MIN, 3]);
    check(device, &[u32::MAX, 1]);
    check(device, &[i32::MIN, 1]);
    check(device, &[u64::MAX, 1]);
    check(device, &[i64::MIN, 1]);

    let mut t = Tensor::from_slice(device, &[1u32, 2, 3, 4, 5, 6], &[2, 3]).expect("tensor");
    t.write(&[6u32, 5, 4, 3, 2, 1]).expect("write");
    let t = t.reshape(&[3, 2]).expect("reshape");
    assert_eq!((t.shape(), t.len()), (&[3usize, 2][..], 6));
    assert_eq!(t.to_vec::<u32>().expect("to_vec"), [6, 5, 4, 3, 2, 1]);
    assert!(matches!(t.to_vec::<f32>(), Err(Error::DType { expected: DType::F32, got: DType::U32, .. })));
    assert!(matches!(t.reshape(&[4]), Err(Error::Elements { expected: 4, got: 6, .. })));
    let short = Tensor::from_slice(device, &[1.0f32], &[2]);
    assert!(matches!(short, Err(Error::Elements { expected: 2, got: 1, .. })), "{short:?}");
    let huge = Tensor::empty(device, DType::F64, &[1 << 40, 1 << 30]);
    assert!(matches!(huge, Err(Error::Overflow { .. })), "{huge:?}");
    let empty = Tensor::from_slice::<f32>(device, &[], &[0, 4]).expect("empty");
    assert!(empty.is_empty());
    assert_eq!(empty.to_vec::<f32>().expect("nothing"), [0.0f32; 0]);
    assert!(matches!(Tensor::empty(device, DType::U8, &[1; 9]), Err(Error::Rank { limit: 8, got: 9, .. })));
}

/// Tensors are filled with elements of every size, copied, and written in the order of a stream, captured or not.
pub(crate) fn tensors_are_filled_and_copied(device: &Device) {
    fn check<T: Element>(device: &Device, value: T) {
        let s = device.new_stream().expect("stream");
        for n in [0usize, 1, 2, 3, 7, 8193, 20_000] {
            let mut x = Tensor::full_on(&s, value, &[n]).expect("full_on");
            let copy = x.clone_on(&s).expect("clone_on");
            x.fill(&s, T::zeroed()).expect("fill");
            assert_eq!(x.to_vec_on::<T>(&s).expect("zeros"), vec![T::zeroed(); n]);
            assert_eq!(copy.to_vec_on::<T>(&s).expect("copy"), vec![value; n]);
        }
        let zeros = Tensor::zeros_on(&s, T::DTYPE, &[3, 5]).expect("zeros_on");
        assert_eq!(zeros.to_vec_on::<T>(&s).expect("zeros"), vec![T::zeroed(); 15]);
    }
    check(device, 1.5f32);
    check(device, std::f64::consts::PI);
    check(device, half::f16::from_f32(1.25));
    check(device, half::bf16::from_f32(-3.0));
    check(device, F8E4M3::from_f32(-1.25));
    check(device, F8E5M2::from_f32(0.75));
    check(device, 0xA5u8);
    check(device, -3i8);
    check(device, 0x1234u16);
    check(device, -2i32);
    check(device, 0x0123_4567_89AB_CDEFu64);

    let s = device.new_stream().expect("stream");
    for dtype in DType::ALL.iter().copied() {
        let ones = Tensor::ones_on(&s, dtype, &[5]).expect("ones_on").to_bytes().expect("bytes");
        let mut one = match dtype {
            DType::F64 => vec![0xF0, 0x3F],
            DType::F32 => vec![0x80, 0x3F],
            DType::BF16 => vec![0x80, 0x3F],
            DType::F16 => vec![0x00, 0x3C],
            DType::F8E4M3 => vec![0x38],
            DType::F8E5M2 => vec![0x3C],
            _ => vec![1],
        };
        let float = DType::FLOATS.contains(&dtype);
        let rest = vec![0; dtype.bytes() - one.len()];
        one = if float { [rest, one].concat() } else { [one, rest].concat() };
        assert_eq!(ones, one.repeat(5), "{dtype}");
    }
    let ones = Tensor::ones_on(&s, DType::F32, &[2]).expect("ones_on");
    assert_eq!(ones.to_vec_on::<f32>(&s).expect("ones"), [1.0; 2]);

    let source = Tensor::from_slice_on(&s, &[1u32, 2, 3], &[3]).expect("from_slice_on");
    let (mut x, mut y) = (source.clone_on(&s).expect("x"), source.clone_on(&s).expect("y"));
    let graph = s.capture(|s| {
        x.copy_from(s, &source)?;
        y.fill(s, 9u32)
    });
    let graph = graph.expect("capture");
    x.fill(&s, 0u32).expect("fill");
    graph.launch(&s).expect("replay");
    assert_eq!(x.to_vec_on::<u32>(&s).expect("x"), [1, 2, 3]);
    assert_eq!(y.to_vec_on::<u32>(&s).expect("y"), [9; 3]);

    let e = x.fill(&s, 0.0f32).expect_err("another type");
    assert!(matches!(e, Error::DType { expected: DType::U32, got: DType::F32, .. }), "{e}");
    let e = x.copy_from(&s, &ones).expect_err("another type");
    assert!(matches!(e, Error::DType { op: "Tensor::copy_from", .. }), "{e}");
    let e = x.copy_from(&s, &Tensor::zeros_on(&s, DType::U32, &[3, 1]).expect("zeros")).expect_err("shape");
    assert!(matches!(e, Error::Shape { argument: "source", .. }), "{e}");
    let e = Tensor::from_slice_on(&s, &[1u32], &[2]).expect_err("too few");
    assert!(matches!(e, Error::Elements { expected: 2, got: 1, .. }), "{e}");
}

/// Views address the elements they say.
pub(crate) fn views_address_elements(device: &Device) {
    let t = Tensor::from_slice(device, &(0..24u32).collect::<Vec<_>>(), &[2, 3, 4]).expect("tensor");
    let v = t.as_ref();
    let base = v.address();
    assert_eq!(v.strides(), [12, 4, 1]);
    assert_eq!(v.byte_range(), Some(base..base + 96));
    let column = v.narrow(2, 1, 1).expect("narrow");
    assert_eq!((column.address(), column.is_contiguous()), (base + 4, false));
    assert_eq!(column.byte_range(), Some(base + 4..base + 4 + (23 - 3 + 1) * 4));
    let turned = v.permute(&[2, 0, 1]).expect("permute");
    assert_eq!((turned.shape(), turned.strides()), (&[4usize, 2, 3][..], &[1i64, 12, 4][..]));
    assert!(matches!(turned.reshape(&[24]), Err(Error::NotContiguous { .. })));
    assert!(v.permute(&[0, 0, 1]).is_err());
    assert!(matches!(v.narrow(1, 2, 2), Err(Error::Bounds { needed: 4, available: 3, .. })));
    assert!(matches!(v.narrow(3, 0, 1), Err(Error::Rank { limit: 3, got: 3, .. })));
    let (front, back) = (v.narrow(0, 0, 1).expect("front"), v.narrow(0, 1, 1).expect("back"));
    assert!(front.is_contiguous() && back.is_contiguous());
    assert!(!front.overlaps(&back) && front.overlaps(&v));
    assert!(v.is_aligned(256) && !column.is_aligned(16));
    let none = v.narrow(0, 2, 0).expect("empty");
    assert_eq!(none.byte_range(), None);
    assert!(!none.overlaps(&v));
    let strided = raw(device, base, &[3, 2], Some(&[-4, 1]));
    assert!(matches!(strided, Ok(r) if r.byte_range() == Some(base - 32..base + 8)));
    assert!(matches!(raw(device, 8, &[4], Some(&[-1])), Err(Error::Overflow { .. })));
    assert!(matches!(raw(device, base, &[4], Some(&[1, 1])), Err(Error::Rank { .. })));
}

fn raw<'a>(
    device: &'a Device,
    address: u64,
    shape: &[usize],
    strides: Option<&[i64]>,
) -> warpwright_runtime::Result<TensorRef<'a>> {
    // SAFETY: the views are only asked for their ranges.
    unsafe { TensorRef::from_raw(device, address, DType::F32, shape, strides) }
}

/// A launch computes, with tails, offsets and several streams.
pub(crate) fn launches_compute(device: &Device) {
    let kernel = scale();
    for (n, a) in [(1u32, 2.0f32), (127, -1.0), (128, 0.5), (1000, 3.0)] {
        let x = counting(device, n as usize);
        let y = Tensor::zeros(device, DType::F32, &[n as usize]).expect("y");
        let s = device.new_stream().expect("stream");
        s.launch(&scale_step(kernel.clone(), a, n), &[x.binding(), y.binding()]).expect("launch");
        s.synchronize().expect("synchronize");
        assert!(s.is_idle().expect("idle"));
        let expected: Vec<f32> = (0..n).map(|i| i as f32 * a).collect();
        assert_eq!(y.to_vec_on::<f32>(&s).expect("y"), expected);
    }

    // Slots with offsets, arguments made on the spot, and a grid of nothing.
    let x = counting(device, 64);
    let y = Tensor::zeros(device, DType::F32, &[64]).expect("y");
    let s = stream(device);
    let loaded = device.load(&kernel).expect("load");
    let args = [
        ArgValue::Slot { slot: 1, offset: 128 },
        ArgValue::Slot { slot: 0, offset: 64 },
        ArgValue::F32(1.0),
        ArgValue::U32(16),
    ];
    s.launch_kernel(&loaded, [1, 1, 1], 0, &args, &[y.binding(), x.binding()]).expect("launch");
    let mut expected = vec![0.0f32; 64];
    (0..16).for_each(|i| expected[16 + i] = (32 + i) as f32);
    assert_eq!(y.to_vec::<f32>().expect("y"), expected);
    s.launch(&scale_step(kernel, 9.0, 64).with_grid([0, 1, 1]), &[x.binding(), y.binding()])
        .expect("nothing");
    assert_eq!(y.to_vec::<f32>().expect("y"), expected);
}

/// Launches that do not fit are refused with numbers, before the driver sees them.
pub(crate) fn launches_are_checked(device: &Device) {
    let s = stream(device);
    let limit = |step: LaunchStep, bindings: &[Binding]| match s.launch(&step, bindings) {
        Err(Error::Launch { limit, .. }) => limit,
        other => panic!("expected a refusal, got {other:?}"),
    };
    let x = counting(device, 128);
    let bindings = [x.binding(), x.binding()];
    let step = || scale_step(scale(), 1.0, 128);

    let got = limit(step().with_block([64, 1, 1]), &bindings);
    assert_eq!(got, LaunchLimit::Block { expected: [128, 1, 1], got: [64, 1, 1] });
    let got = limit(step().with_grid([1, 65_536, 1]), &bindings);
    assert!(matches!(got, LaunchLimit::Grid { got: [1, 65_536, 1], .. }), "{got}");
    let got = limit(step(), &bindings[..1]);
    assert_eq!(got, LaunchLimit::Unbound { argument: 1, slot: 1, bound: 1 });
    let most = device.properties().max_shared;
    let got = limit(step().with_dynamic_shared(most + 1), &bindings);
    assert_eq!(got, LaunchLimit::SharedMemory { fixed: 0, dynamic: most + 1, limit: most });

    let free = LaunchStep::new(any_block(), [1, 1, 1], vec![]);
    assert_eq!(limit(free.clone(), &[]), LaunchLimit::BlockMissing);
    let got = limit(free.clone().with_block([65, 1, 1]), &[]);
    assert!(matches!(got, LaunchLimit::Threads { threads: 64, got: [65, 1, 1], .. }), "{got}");
    let got = limit(free.clone().with_block([0, 1, 1]), &[]);
    assert!(matches!(got, LaunchLimit::Threads { got: [0, 1, 1], .. }), "{got}");
    s.launch(&free.with_block([64, 1, 1]), &[]).expect("a block that fits");

    let few = LaunchStep::new(nothing(), [1, 1, 1], vec![slot(0)]);
    assert!(matches!(s.launch(&few, &bindings), Err(Error::Arguments(_))));
    let wrong = step().with_args(vec![slot(0), slot(1), ArgValue::U32(1), ArgValue::U32(1)]);
    assert!(matches!(s.launch(&wrong, &bindings), Err(Error::Arguments(_))));

    let other = Device::emulator();
    let foreign = counting(&other, 128);
    let got = limit(step(), &[x.binding(), foreign.binding()]);
    assert!(matches!(got, LaunchLimit::ForeignTensor { slot: 1, .. }), "{got}");
    let event = Event::new(&other).expect("event");
    assert!(matches!(s.wait(&event), Err(Error::WrongDevice { argument: "event", .. })));
    let loaded = other.load(&scale()).expect("load");
    let got = s.launch_kernel(&loaded, [1, 1, 1], 0, step().args(), &bindings);
    assert!(matches!(got, Err(Error::WrongDevice { argument: "kernel", .. })), "{got:?}");

    // After all that the device still works.
    s.launch(&step(), &bindings).expect("launch");
    s.launch(&LaunchStep::new(nothing(), [1, 1, 1], vec![slot(0), slot(0), ArgValue::U32(0)]), &[null()])
        .expect("a null tensor");
    s.synchronize().expect("synchronize");
}

/// Shared memory up to the opt-in limit.
pub(crate) fn dynamic_shared_memory(device: &Device) {
    let s = stream(device);
    let expected: Vec<u32> = (0..128).rev().collect();
    let most = device.properties().max_shared;
    assert!(most >= 64 << 10, "every supported device has more than 48 KB, this one {most}");
    // Small after large: the limit of the kernel must not be lowered.
    for bytes in [512, 48 << 10, most, 1024, 49 << 10] {
        let y = Tensor::zeros(device, DType::U32, &[128]).expect("y");
        let step = LaunchStep::new(reverse_in_shared(), [1, 1, 1], vec![slot(0), ArgValue::U32(bytes)])
            .with_dynamic_shared(bytes);
        s.launch(&step, &[y.binding()]).unwrap_or_else(|e| panic!("{bytes} bytes: {e}"));
        assert_eq!(y.to_vec::<u32>().expect("y"), expected, "{bytes} bytes");
    }
}

/// Capturing runs nothing; each replay runs everything in order.
pub(crate) fn graphs_replay(device: &Device) {
    let s = device.new_stream().expect("stream");
    let mut x = Tensor::from_slice(device, &[0u32; 128], &[128]).expect("x");
    let by = |n: u32| LaunchStep::new(increment(), [2, 1, 1], vec![slot(0), ArgValue::U32(n)]);
    let (one, ten) = (by(1), by(10));
    let mut copy = device.alloc(512).expect("copy");
    let graph = s
        .capture(|s| {
            assert!(s.is_capturing());
            launch_increment(s, &one, &x)?;
            s.copy(&mut copy, 0, x.buffer(), 0, 512)?;
            launch_increment(s, &ten, &x)
        })
        .expect("capture");
    assert!(!s.is_capturing());
    assert_eq!(graph.nodes(), 3);
    assert_eq!(x.to_vec::<u32>().expect("x"), [0; 128], "nothing ran");
    for replay in 1..=3 {
        graph.launch(&s).expect("replay");
        assert_eq!(x.to_vec_on::<u32>(&s).expect("x"), [11 * replay; 128]);
        let mut copied = vec![0u8; 512];
        s.copy_to_host(&mut copied, &copy, 0).expect("copy");
        assert!(copied.chunks(4).all(|c| c == (11 * replay - 10).to_le_bytes()), "replay {replay}");
    }
    x.write(&[100u32; 128]).expect("write");
    graph.launch(&device.new_stream().expect("stream")).expect("on another stream");
    device.synchronize().expect("synchronize");
    assert_eq!(x.to_vec::<u32>().expect("x"), [111; 128], "a graph reads what is there at its launch");
}

/// The launches of a call can be enqueued again on other memory; a call that does more is not recorded.
pub(crate) fn launches_are_recorded(device: &Device) {
    let s = device.new_stream().expect("stream");
    let [x, y] = [0u32, 100].map(|n| Tensor::from_slice(device, &[n; 128], &[128]).expect("tensor"));
    let by = |n: u32| LaunchStep::new(increment(), [2, 1, 1], vec![slot(0), ArgValue::U32(n)]);
    let (done, launches) = record_launches(|| {
        launch_increment(&s, &by(1), &x)?;
        launch_increment(&s, &by(10), &x)
    });
    done.expect("launches");
    assert_eq!(x.to_vec_on::<u32>(&s).expect("x"), [11; 128], "it runs while it is recorded");
    let launches = launches.expect("nothing but launches");
    assert_eq!(launches.iter().map(|l| l.addresses().len()).collect::<Vec<_>>(), [1, 1]);
    assert!(launches.iter().all(|l| l.addresses() == [x.buffer().address()]));
    for launch in &launches {
        launch.launch(&s, &[y.binding()]).expect("again");
    }
    assert_eq!(x.to_vec_on::<u32>(&s).expect("x"), [11; 128]);
    assert_eq!(y.to_vec_on::<u32>(&s).expect("y"), [111; 128]);
    let (inner, outer) = record_launches(|| record_launches(|| launch_increment(&s, &by(1), &x)));
    assert_eq!(inner.1.map(|l| l.len()), Some(1));
    assert!(outer.is_none(), "what an inner recording took is missing");
    let (copy, launches) = record_launches(|| s.alloc(512));
    assert!(launches.is_none(), "memory was allocated");
    let mut copy = copy.expect("copy");
    assert!(record_launches(|| s.copy(&mut copy, 0, x.buffer(), 0, 512)).1.is_none());
    assert!(record_launches(|| s.fill(&mut copy, 0, 0, 512)).1.is_none());
    assert!(record_launches(|| s.record()).1.is_none());
}

/// A graph keeps the memory of its work, whoever drops it.
pub(crate) fn graphs_keep_memory(device: &Device) {
    let s = device.new_stream().expect("stream");
    let y = Tensor::from_slice(device, &[0u32; 64], &[64]).expect("y");
    let graph = {
        let mut x = s.alloc(256).expect("x");
        s.copy_to_device(&mut x, 0, bytemuck::cast_slice(&[5u32; 64])).expect("copy");
        let one = LaunchStep::new(increment(), [1, 1, 1], vec![slot(0), ArgValue::U32(1)]);
        let mut into = device.alloc(256).expect("into");
        let copied = scale_step(scale(), 1.0, 64);
        s.capture(|s| {
            s.launch(&one, &[x.binding()])?;
            s.copy(&mut into, 0, &x, 0, 256)?;
            s.launch(&copied, &[into.binding(), y.binding()])
        })
        .expect("capture")
    };
    // What was freed would be given out again here.
    let others: Vec<_> = (0..4).map(|_| Tensor::zeros(device, DType::U32, &[64]).expect("zeros")).collect();
    for _ in 0..3 {
        graph.launch(&s).expect("replay");
    }
    s.synchronize().expect("synchronize");
    assert_eq!(graph.nodes(), 3);
    // Subnormal floats of the words, times 1.
    assert_eq!(y.to_vec::<u32>().expect("y"), [8; 64]);
    assert!(others.iter().all(|other| other.to_vec::<u32>().expect("zeros") == [0; 64]));
}

/// Memory that a capture allocates is its graph's: a tensor that was kept holds the result of the last launch, and one that was dropped makes
/// room for the next of its size.
pub(crate) fn graphs_own_what_they_allocate(device: &Device) {
    let s = device.new_stream().expect("stream");
    let mut x = Tensor::from_slice(device, &[1u32; 64], &[64]).expect("x");
    let one = LaunchStep::new(increment(), [1, 1, 1], vec![slot(0), ArgValue::U32(1)]);
    let (mut kept, mut addresses) = (None, Vec::new());
    let graph = s
        .capture(|s| {
            let next = |x: &Tensor| {
                let y = x.clone_on(s)?;
                launch_increment(s, &one, &y)?;
                Ok::<_, Error>(y)
            };
            let first = next(&x)?;
            let second = next(&first)?;
            addresses.extend([&first, &second].map(|y| y.buffer().address()));
            drop(first);
            let third = next(&second)?;
            addresses.push(third.buffer().address());
            kept = Some((second, third));
            Ok::<_, Error>(())
        })
        .expect("capture");
    assert_eq!(graph.nodes(), 6);
    assert!(addresses[0] != addresses[1] && addresses[0] == addresses[2], "{addresses:x?}");
    let (second, third) = kept.expect("captured");
    for x_is in [1u32, 10] {
        x.fill(&s, x_is).expect("fill");
        graph.launch(&s).expect("replay");
        assert_eq!(second.to_vec_on::<u32>(&s).expect("second"), [x_is + 2; 64]);
        assert_eq!(third.to_vec_on::<u32>(&s).expect("third"), [x_is + 3; 64]);
    }
    drop(graph);
    assert_eq!(third.to_vec_on::<u32>(&s).expect("third"), [13; 64], "tensors outlive the graph");
    let abandoned = s.capture(|s| s.alloc(256).map(drop).and_then(|()| s.synchronize()));
    assert!(matches!(abandoned, Err(Error::Capturing { call: "Stream::synchronize" })), "{abandoned:?}");
}

/// Memory of one stream is not given out again before another stream has done what it was given to do with it.
pub(crate) fn memory_waits_for_other_streams(device: &Device) {
    let (own, other) = (device.new_stream().expect("stream"), device.new_stream().expect("stream"));
    for round in 0..8u8 {
        let mut x = own.alloc(4).expect("x");
        own.fill(&mut x, 0, 0, 4).expect("fill");
        other.wait(&own.record().expect("event")).expect("wait");
        other.launch(&slow_step(200_000), &[x.binding()]).expect("launch");
        drop(x);
        // The pool gives out the same memory, which the kernel would still write.
        let mut y = own.alloc(4).expect("y");
        own.fill(&mut y, 0, round, 4).expect("fill");
        device.synchronize().expect("synchronize");
        assert_eq!(read(&y, 0, 4), [round; 4]);
    }
}

/// Work that a capture cannot hold is an error, and the stream is as before afterwards.
pub(crate) fn failed_captures_leave_the_stream_usable(device: &Device) {
    let s = device.new_stream().expect("stream");
    let x = Tensor::from_slice(device, &[0u32; 64], &[64]).expect("x");
    let one = LaunchStep::new(increment(), [1, 1, 1], vec![slot(0), ArgValue::U32(1)]);
    one.warm_up(device).expect("warm up");

    let copies = s.capture(|s| Tensor::from_slice_on(s, &[0u32], &[1]).map(drop));
    assert!(matches!(copies, Err(Error::Capturing { call: "Stream::copy_to_device" })), "{copies:?}");
    let waits = s.capture(|s| {
        launch_increment(s, &one, &x)?;
        s.synchronize()
    });
    assert!(matches!(waits, Err(Error::Capturing { call: "Stream::synchronize" })), "{waits:?}");
    let nested = s.capture(|s| s.capture(|_| Ok::<_, Error>(())).map(drop));
    assert!(matches!(nested, Err(Error::Capturing { call: "Stream::capture" })), "{nested:?}");
    let panics = catch_unwind(AssertUnwindSafe(|| s.capture::<Error>(|_| panic!("in a capture"))));
    assert!(panics.is_err());
    assert!(!s.is_capturing());

    launch_increment(&s, &one, &x).expect("launch");
    assert_eq!(x.to_vec_on::<u32>(&s).expect("x"), [1; 64], "only the launch outside ran");
    let graph = s.capture(|s| launch_increment(s, &one, &x)).expect("capture");
    graph.launch(&s).expect("replay");
    assert_eq!(x.to_vec_on::<u32>(&s).expect("x"), [2; 64]);
}

/// A graph keeps its kernels loaded.
pub(crate) fn graphs_outlive_their_steps(device: &Device) {
    let s = device.new_stream().expect("stream");
    let x = Tensor::from_slice(device, &[0u32; 64], &[64]).expect("x");
    let graph = {
        let step = LaunchStep::new(increment(), [1, 1, 1], vec![slot(0), ArgValue::U32(5)]);
        s.capture(|s| launch_increment(s, &step, &x)).expect("capture")
    };
    device.clear_kernel_cache();
    graph.launch(&s).expect("replay");
    assert_eq!(x.to_vec_on::<u32>(&s).expect("x"), [5; 64]);
}

/// Threads that ask for one kernel get one compilation, and launch on streams of their own.
pub(crate) fn threads_share_a_kernel(device: &Device) {
    let kernel = super::scale_named("scale_of_many_threads");
    let before = device.cache_statistics();
    std::thread::scope(|scope| {
        for t in 0..8u32 {
            let kernel = kernel.clone();
            scope.spawn(move || {
                let s = device.new_stream().expect("stream");
                let x = counting(device, 300);
                let y = Tensor::zeros(device, DType::F32, &[300]).expect("y");
                let step = scale_step(kernel, t as f32, 300);
                for _ in 0..20 {
                    s.launch(&step, &[x.binding(), y.binding()]).expect("launch");
                }
                let expected: Vec<f32> = (0..300).map(|i| (i * t) as f32).collect();
                assert_eq!(y.to_vec_on::<f32>(&s).expect("y"), expected);
            });
        }
    });
    let after = device.cache_statistics();
    let fresh = after.compiled + after.disk_hits - before.compiled - before.disk_hits;
    assert_eq!(fresh, 1, "{before:?} -> {after:?}");
    assert_eq!(after.memory_hits - before.memory_hits, 7);
}

/// Too large an allocation says how much there is, and the device goes on.
pub(crate) fn out_of_memory(device: &Device) {
    let requested = 1u64 << 50;
    for got in [device.alloc(requested), stream(device).alloc(requested)] {
        match got {
            Err(Error::OutOfMemory { requested: r, free, total, .. }) => {
                assert!(r == requested && free > 0 && free <= total && total < requested);
            }
            other => panic!("{other:?}"),
        }
    }
    buffers_keep_bytes(device);
}

/// The kernel that other tests use as a clock.
pub(crate) fn slow_kernels_count(device: &Device) {
    let s = stream(device);
    let y = Tensor::from_slice(device, &[7u32], &[1]).expect("y");
    for n in [1, 1000] {
        s.launch(&slow_step(n), &[y.binding()]).expect("launch");
    }
    assert_eq!(y.to_vec_on::<u32>(&s).expect("y"), [9]);
}

/// Blocks of a cluster know their rank, and a grid is whole clusters.
pub(crate) fn clusters_have_ranks(device: &Device) {
    if device.sm() < 90 {
        println!("skipped: {device} has no clusters");
        return;
    }
    let s = stream(device);
    let y = Tensor::zeros(device, DType::U32, &[8]).expect("y");
    let step = LaunchStep::new(rank(), [8, 1, 1], vec![slot(0)]);
    assert_eq!(step.cluster(), Some([4, 1, 1]));
    s.launch(&step, &[y.binding()]).expect("launch");
    assert_eq!(y.to_vec::<u32>().expect("y"), [0, 1, 2, 3, 0, 1, 2, 3]);
    let odd = s.launch(&step.with_grid([6, 1, 1]), &[y.binding()]);
    let limit = LaunchLimit::Cluster { cluster: [4, 1, 1], grid: [6, 1, 1] };
    assert!(matches!(&odd, Err(Error::Launch { limit: got, .. }) if *got == limit), "{odd:?}");
}

/// Tensor maps are encoded for the device, over a bound tensor or a plain address, and checked first.
pub(crate) fn tensor_maps(device: &Device) {
    if device.sm() < 90 {
        return;
    }
    let s = stream(device);
    let data: Vec<u32> = (0..16 * 8).collect();
    let x = Tensor::from_slice(device, &data, &[8, 16]).expect("x");
    let y = Tensor::zeros(device, DType::U32, &[32]).expect("y");
    let map = |base| TensorMap::dense(base, TensorElement::U32, &[16, 8], &[8, 4], TensorSwizzle::None);
    let expected: Vec<u32> = (0..32).map(|i| (i / 8 + 2) * 16 + i % 8 + 4).collect();
    let launch = |map: TensorMap, slot| {
        let map = ArgValue::TensorMap { map: Box::new(map), slot };
        let step = LaunchStep::new(tile(), [1, 1, 1], vec![super::slot(0), map]);
        s.launch(&step, &[y.binding(), x.binding()])
    };
    launch(map(0), Some(1)).expect("launch");
    assert_eq!(y.to_vec::<u32>().expect("y"), expected);
    launch(map(x.binding().address() + 64), None).expect("launch");
    let lower: Vec<u32> = expected.iter().map(|v| v + 16).collect();
    // The map over the rows from the first on promises a row more than there is, which the box does not reach.
    assert_eq!(y.to_vec::<u32>().expect("y"), lower);
    let odd = TensorMap { strides: vec![60], ..map(0) };
    let refused = launch(odd, Some(1));
    let limit = LaunchLimit::TensorMap {
        argument: 1,
        error: TensorMapError::Stride { index: 0, got: 60, multiple: 16 },
    };
    assert!(matches!(&refused, Err(Error::Launch { limit: got, .. }) if *got == limit), "{refused:?}");
}

/// Kernels of another architecture are refused before the driver sees them.
pub(crate) fn other_architectures_are_refused(device: &Device) {
    let other = Target::specific(if device.sm() == 100 { 90 } else { 100 });
    match device.load(&scale_for(other)) {
        Err(Error::Target { kernel, needs, device: id, sm }) => {
            assert_eq!((kernel.as_str(), needs, id, sm), ("scale", other, device.id(), device.sm()));
        }
        refused => panic!("{refused:?}"),
    }
}
