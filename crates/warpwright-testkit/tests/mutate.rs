//! Mutants of kernels with a barrier, a bound and a wait are each given away by a sanitizer.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{ArgValue, DType, Module, text};
use warpwright_runtime::{Device, Error, LaunchStep, Tensor};
use warpwright_testkit::mutate::{Mutant, Mutation, mutants};

/// The text of a kernel of `threads` threads for target `sm` that reverses 64 elements through shared memory. `guard` is in front of every access.
fn reverse([sm, threads]: [u32; 2], guard: &str, copy: &str) -> String {
    format!(
        "
.version 7.0
.target sm_{sm}
.address_size 64
.visible .entry reverse(.param .u64 x)
.reqntid {threads}, 1, 1
{{
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
    {copy}
    bar.sync 0;
    {guard} ld.shared.b32 %r7, [%r6];
    {guard} st.global.b32 [%rd2], %r7;
    ret;
}}
"
    )
}

/// Threads from 64 on have nothing to do.
fn guarded() -> String {
    let copy = "setp.lt.u32 %p0, %r0, 64;
    @%p0 ld.global.b32 %r7, [%rd2];
    @%p0 st.shared.b32 [%r3], %r7;";
    reverse([75, 96], "@%p0", copy)
}

/// An asynchronous copy of each element.
fn copied() -> String {
    let copy = "cp.async.ca.shared.global [%r3], [%rd2], 4;
    cp.async.commit_group;
    cp.async.wait_group 0;";
    reverse([80, 64], "", copy)
}

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

/// The module, which is in order and reverses, and its mutants.
fn mutants_of(text: &str) -> (Module, Vec<Mutant>) {
    let parsed = text::parse(text);
    assert!(parsed.diagnostics.is_empty(), "{:?}", parsed.diagnostics);
    let kernel = Kernel::new(parsed.module.clone()).expect("the kernel is in order");
    assert_eq!(run(&kernel).expect("the kernel is in order"), right());
    let all = mutants(&parsed.module);
    (parsed.module, all)
}

fn right() -> Vec<u32> {
    (0..64).rev().collect()
}

fn run_mutant(module: &Module, mutant: &Mutant) -> Result<Vec<u32>, Error> {
    run(&Kernel::new(mutant.of(module)).expect("mutants are legal PTX"))
}

#[test]
fn every_mutant_is_noticed() {
    let (module, all) = mutants_of(&guarded());
    let kinds: Vec<Mutation> = all.iter().map(|m| m.mutation).collect();
    let shifted = |by| Mutation::BoundShifted { by };
    assert_eq!(kinds, [shifted(-1), shifted(1), Mutation::BarrierRemoved]);
    for mutant in all {
        let result = run_mutant(&module, &mutant);
        let noticed = match (&result, mutant.mutation) {
            // One element too many passes the ends of both memories; a race needs no wrong number to be one.
            (Err(Error::Sanitizer(_)), _) => true,
            (Ok(values), Mutation::BoundShifted { by: 1 }) => *values != right(),
            _ => false,
        };
        assert!(noticed, "{:?}: {result:?}", mutant.mutation);
    }
}

#[test]
fn waits_and_groups_are_removed_too() {
    let (module, all) = mutants_of(&copied());
    let kinds: Vec<Mutation> = all.iter().map(|m| m.mutation).collect();
    assert_eq!(kinds, [Mutation::OrderRemoved, Mutation::OrderRemoved, Mutation::BarrierRemoved]);
    for mutant in all {
        let result = run_mutant(&module, &mutant);
        assert!(matches!(result, Err(Error::Sanitizer(_))), "{:?}: {result:?}", mutant.mutation);
    }
}
