//! Mutants of kernels with a barrier, a bound and a wait are each given away by a sanitizer.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{ArgValue, DType, text};
use warpwright_runtime::{Device, Error, LaunchStep, Tensor};
use warpwright_testkit::mutate::{Mutation, mutants};

/// Reverses 64 elements through shared memory; threads from 64 on have nothing to do.
const REVERSE: &str = "
.version 7.0
.target sm_75
.address_size 64
.visible .entry reverse(.param .u64 x)
.reqntid 96, 1, 1
{
    .reg .b32 %r<8>;
    .reg .b64 %rd<3>;
    .reg .pred %p<1>;
    .shared .align 4 .b32 tile[64];
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd1, %r0, 4;
    add.s64 %rd2, %rd0, %rd1;
    mov.u32 %r1, tile;
    shl.b32 %r2, %r0, 2;
    add.u32 %r3, %r1, %r2;
    sub.u32 %r4, 63, %r0;
    shl.b32 %r5, %r4, 2;
    add.u32 %r6, %r1, %r5;
    setp.lt.u32 %p0, %r0, 64;
    @%p0 ld.global.b32 %r7, [%rd2];
    @%p0 st.shared.b32 [%r3], %r7;
    bar.sync 0;
    @%p0 ld.shared.b32 %r7, [%r6];
    @%p0 st.global.b32 [%rd2], %r7;
    ret;
}
";

/// The same of 64 elements through an asynchronous copy of each.
const COPIED: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry reverse(.param .u64 x)
.reqntid 64, 1, 1
{
    .reg .b32 %r<8>;
    .reg .b64 %rd<3>;
    .shared .align 4 .b32 tile[64];
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd1, %r0, 4;
    add.s64 %rd2, %rd0, %rd1;
    mov.u32 %r1, tile;
    shl.b32 %r2, %r0, 2;
    add.u32 %r3, %r1, %r2;
    sub.u32 %r4, 63, %r0;
    shl.b32 %r5, %r4, 2;
    add.u32 %r6, %r1, %r5;
    cp.async.ca.shared.global [%r3], [%rd2], 4;
    cp.async.wait_all;
    bar.sync 0;
    ld.shared.b32 %r7, [%r6];
    st.global.b32 [%rd2], %r7;
    ret;
}
";

fn run(kernel: &Kernel) -> Result<Vec<u32>, Error> {
    let device = Device::emulator();
    let stream = device.stream()?;
    let x = Tensor::from_slice(&device, &std::array::from_fn::<u32, 64, _>(|i| i as u32), &[64])?;
    let step = LaunchStep::new(kernel.clone(), [1, 1, 1], vec![ArgValue::Slot { slot: 0, offset: 0 }]);
    stream.launch(&step, &[x.binding()])?;
    stream.synchronize()?;
    assert_eq!(x.dtype(), DType::U32);
    x.to_vec()
}

#[test]
fn every_mutant_is_noticed() {
    let parsed = text::parse(REVERSE);
    assert!(parsed.diagnostics.is_empty(), "{:?}", parsed.diagnostics);
    let right: Vec<u32> = (0..64).rev().collect();
    let kernel = Kernel::new(parsed.module.clone()).expect("the kernel is in order");
    assert_eq!(run(&kernel).expect("the kernel is in order"), right);

    let all = mutants(&parsed.module);
    let kinds: Vec<Mutation> = all.iter().map(|m| m.mutation).collect();
    let shifted = |by| Mutation::BoundShifted { by };
    assert_eq!(kinds, [shifted(-1), shifted(1), Mutation::BarrierRemoved]);
    for mutant in all {
        let kernel = Kernel::new(mutant.module).expect("mutants are legal PTX");
        let result = run(&kernel);
        let noticed = match (&result, mutant.mutation) {
            // One element too many passes the ends of both memories; a race needs no wrong number to be one.
            (Err(Error::Sanitizer(_)), _) => true,
            (Ok(values), Mutation::BoundShifted { by: 1 }) => *values != right,
            _ => false,
        };
        assert!(noticed, "{:?}: {result:?}", mutant.mutation);
    }
}

#[test]
fn waits_and_fences_are_removed_too() {
    let parsed = text::parse(COPIED);
    assert!(parsed.diagnostics.is_empty(), "{:?}", parsed.diagnostics);
    let kernel = Kernel::new(parsed.module.clone()).expect("the kernel is in order");
    assert_eq!(run(&kernel).expect("the kernel is in order"), (0..64).rev().collect::<Vec<u32>>());
    let all = mutants(&parsed.module);
    let kinds: Vec<Mutation> = all.iter().map(|m| m.mutation).collect();
    assert_eq!(kinds, [Mutation::OrderRemoved, Mutation::BarrierRemoved]);
    for mutant in all {
        let kernel = Kernel::new(mutant.module).expect("mutants are legal PTX");
        let result = run(&kernel);
        assert!(matches!(result, Err(Error::Sanitizer(_))), "{:?}: {result:?}", mutant.mutation);
    }
}
