//! PTX that another compiler printed, under test without a GPU: it is parsed, verified, run in the emulator with every sanitizer on,
//! and held against plain Rust. A copy of it that lacks a barrier is found out. The same lines stand in anyone's `cargo test`.

use std::error::Error;

use warpwright::ptx::kernel::Kernel;
use warpwright::ptx::text;
use warpwright::{ArgValue, Device, LaunchStep, RuntimeError, Tensor};

/// Reverses each block of 64 words through shared memory, as a compiler prints it.
const REVERSE: &str = "
    .version 7.0
    .target sm_75
    .address_size 64
    .visible .entry reverse(.param .u64 x, .param .u64 y)
    .reqntid 64, 1, 1
    {
        .reg .b32 %r<8>;
        .reg .b64 %rd<8>;
        .shared .align 4 .b8 tile[256];
        ld.param.u64 %rd1, [x];
        ld.param.u64 %rd2, [y];
        mov.u32 %r1, %tid.x;
        mov.u32 %r2, %ctaid.x;
        mad.lo.u32 %r3, %r2, 64, %r1;
        mul.wide.u32 %rd3, %r3, 4;
        add.u64 %rd4, %rd1, %rd3;
        ld.global.u32 %r4, [%rd4];
        shl.b32 %r5, %r1, 2;
        mov.u32 %r6, tile;
        add.u32 %r7, %r6, %r5;
        st.shared.u32 [%r7], %r4;
        bar.sync 0;
        sub.u32 %r7, %r6, %r5;
        ld.shared.u32 %r4, [%r7+252];
        add.u64 %rd5, %rd2, %rd3;
        st.global.u32 [%rd5], %r4;
        ret;
    }";

/// Runs the kernel of `source` on `x`.
fn run(source: &str, x: &[u32]) -> Result<Vec<u32>, Box<dyn Error>> {
    let parsed = text::parse(source);
    if let Some(first) = parsed.diagnostics.first() {
        return Err(format!("line {}: {}", first.line, first.message).into());
    }
    // The verifier refuses what ptxas would.
    let kernel = Kernel::new(parsed.module)?;
    let device = Device::emulator();
    let stream = device.stream()?;
    let of_x = Tensor::from_slice(&device, x, &[x.len()])?;
    let y = Tensor::empty(&device, of_x.dtype(), of_x.shape())?;
    let args = vec![ArgValue::Slot { slot: 0, offset: 0 }, ArgValue::Slot { slot: 1, offset: 0 }];
    let step = LaunchStep::new(kernel, [u32::try_from(x.len() / 64)?, 1, 1], args);
    stream.launch(&step, &[of_x.binding(), y.binding()])?;
    Ok(y.to_vec()?)
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let x: Vec<u32> = (0..128).collect();
    let want: Vec<u32> = x.chunks(64).flat_map(|block| block.iter().rev().copied()).collect();
    assert_eq!(run(REVERSE, &x)?, want);

    let broken = REVERSE.replace("bar.sync 0;", "");
    let found = run(&broken, &x).expect_err("a race");
    let found = found.downcast::<RuntimeError>()?;
    let RuntimeError::Sanitizer(failure) = &*found else { return Err(found) };
    assert!(failure.finding.contains("racecheck"), "{failure}");
    println!("without its barrier:\n{failure}");
    Ok(())
}
