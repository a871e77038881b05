//! Kernels written by hand, and checks that every device must pass.

#![allow(dead_code, unused_imports, unused_macros, reason = "each test binary uses its part")]

pub(crate) mod suite;

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{Module, PtxVersion, Target, text};
use warpwright_runtime::{ArgValue, Binding, Device, LaunchStep, Result, Stream, Tensor};

/// The kernel with the given parameters, directives and body.
pub(crate) fn kernel(target: &str, variables: &str, signature: &str, body: &str) -> Kernel {
    let version = if target.starts_with("sm_9") { "8.0" } else { "6.3" };
    let source = format!(
        ".version {version}\n.target {target}\n.address_size 64\n{variables}\n.visible .entry {signature}\n{{\n{body}\n}}\n"
    );
    let parsed = text::parse(&source);
    let errors: Vec<_> = parsed.diagnostics.iter().map(|d| format!("{}: {}", d.line, d.message)).collect();
    assert!(errors.is_empty(), "{errors:?}\n{source}");
    match Kernel::new(parsed.module) {
        Ok(kernel) => kernel,
        Err(error) => panic!("{error}\n{source}"),
    }
}

/// `y[i] = a * x[i]` for `i < n`, 128 threads a block.
pub(crate) fn scale() -> Kernel {
    scale_named("scale")
}

/// The same under a name of its own, so that no cache knows it.
pub(crate) fn scale_named(name: &str) -> Kernel {
    kernel(
        "sm_75",
        "",
        &format!("{name}(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n) .reqntid 128, 1, 1"),
        "   .reg .pred %p<2>; .reg .f32 %f<4>; .reg .b32 %r<5>; .reg .b64 %rd<6>;
            ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.f32 %f1, [a]; ld.param.u32 %r1, [n];
            mov.u32 %r2, %ctaid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r2, 128, %r3;
            setp.ge.u32 %p1, %r4, %r1;
            @%p1 bra DONE;
            mul.wide.u32 %rd3, %r4, 4; add.u64 %rd4, %rd1, %rd3; add.u64 %rd5, %rd2, %rd3;
            ld.global.f32 %f2, [%rd4]; mul.rn.f32 %f3, %f2, %f1; st.global.f32 [%rd5], %f3;
        DONE:
            ret;",
    )
}

/// `x[i] += by`, 64 threads a block, no bound.
pub(crate) fn increment() -> Kernel {
    kernel(
        "sm_75",
        "",
        "increment(.param .u64 x, .param .u32 by) .reqntid 64, 1, 1",
        "   .reg .b32 %r<7>; .reg .b64 %rd<4>;
            ld.param.u64 %rd1, [x]; ld.param.u32 %r1, [by];
            mov.u32 %r2, %ctaid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r2, 64, %r3;
            mul.wide.u32 %rd2, %r4, 4; add.u64 %rd3, %rd1, %rd2;
            ld.global.u32 %r5, [%rd3]; add.u32 %r6, %r5, %r1; st.global.u32 [%rd3], %r6;
            ret;",
    )
}

/// Writes thread numbers to the last 512 bytes of `bytes` of dynamic shared memory, and stores them reversed in `y`.
pub(crate) fn reverse_in_shared() -> Kernel {
    kernel(
        "sm_75",
        ".extern .shared .align 16 .b8 dynamic[];",
        "reverse_in_shared(.param .u64 y, .param .u32 bytes) .reqntid 128, 1, 1",
        "   .reg .b32 %r<10>; .reg .b64 %rd<4>;
            ld.param.u64 %rd1, [y]; ld.param.u32 %r1, [bytes];
            mov.u32 %r2, dynamic; mov.u32 %r3, %tid.x;
            add.u32 %r4, %r2, %r1;
            shl.b32 %r5, %r3, 2; sub.u32 %r6, %r4, 512; add.u32 %r7, %r6, %r5;
            st.shared.u32 [%r7], %r3;
            bar.sync 0;
            sub.u32 %r8, %r4, %r5;
            ld.shared.u32 %r9, [%r8 + -4];
            mul.wide.u32 %rd2, %r3, 4; add.u64 %rd3, %rd1, %rd2;
            st.global.u32 [%rd3], %r9;
            ret;",
    )
}

/// Does nothing with three parameters.
pub(crate) fn nothing() -> Kernel {
    kernel("sm_75", "", "nothing(.param .u64 x, .param .u64 y, .param .u32 n) .reqntid 32, 1, 1", "ret;")
}

/// Adds 1 to `y[0]` after `n` dependent steps of one thread: work whose length the caller chooses.
pub(crate) fn slow() -> Kernel {
    kernel(
        "sm_75",
        "",
        "slow(.param .u64 y, .param .u32 n) .reqntid 1, 1, 1",
        "   .reg .pred %p<2>; .reg .f32 %f<3>; .reg .b32 %r<4>; .reg .b64 %rd<2>;
            ld.param.u64 %rd1, [y]; ld.param.u32 %r1, [n];
            mov.u32 %r2, 0; mov.f32 %f1, 0f3F800000;
        AGAIN:
            fma.rn.f32 %f1, %f1, 0f3F7FFFFF, 0f33800000;
            add.u32 %r2, %r2, 1;
            setp.lt.u32 %p1, %r2, %r1;
            @%p1 bra AGAIN;
            setp.gt.f32 %p1, %f1, 0f00000000;
            ld.global.u32 %r3, [%rd1];
            @%p1 add.u32 %r3, %r3, 1;
            st.global.u32 [%rd1], %r3;
            ret;",
    )
}

pub(crate) fn slow_step(n: u32) -> LaunchStep {
    LaunchStep::new(slow(), [1, 1, 1], vec![slot(0), ArgValue::U32(n)])
}

/// Stores in `y` each block's rank in its cluster of four.
pub(crate) fn rank() -> Kernel {
    kernel(
        "sm_90",
        "",
        "rank(.param .u64 y) .reqntid 32, 1, 1 .reqnctapercluster 4, 1, 1",
        "   .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<4>;
            ld.param.u64 %rd1, [y]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %cluster_ctarank; mov.u32 %r3, %tid.x;
            setp.ne.u32 %p1, %r3, 0;
            @%p1 bra DONE;
            mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2;
            st.global.u32 [%rd3], %r2;
        DONE:
            ret;",
    )
}

/// Copies the box at column 4 and row 2 of a tensor of words, 8 columns of 4 rows, to `y`.
pub(crate) fn tile() -> Kernel {
    kernel(
        "sm_90",
        "",
        "tile(.param .u64 y, .param .align 64 .b8 map[128]) .reqntid 32, 1, 1",
        "   .reg .pred %p<3>; .reg .b32 %r<8>; .reg .b64 %rd<6>;
            .shared .align 128 .b8 tile[128];
            .shared .align 8 .b64 full;
            ld.param.u64 %rd1, [y]; mov.b64 %rd2, map; cvta.param.u64 %rd2, %rd2;
            mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mov.u32 %r3, full; setp.eq.u32 %p1, %r1, 0;
            @%p1 mbarrier.init.shared::cta.b64 [%r3], 1;
            @%p1 fence.mbarrier_init.release.cluster;
            bar.sync 0;
            mov.u32 %r4, 4; mov.u32 %r5, 2;
            @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 128;
            @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%rd2, {%r4, %r5}], [%r3];
        WAIT:
            mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;
            @!%p2 bra WAIT;
            shl.b32 %r6, %r1, 2; add.u32 %r2, %r2, %r6; ld.shared.u32 %r7, [%r2];
            mul.wide.u32 %rd3, %r1, 4; add.u64 %rd4, %rd1, %rd3;
            st.global.u32 [%rd4], %r7;
            ret;",
    )
}

/// A version that no driver reads.
pub(crate) const FUTURE: PtxVersion = PtxVersion::new(99, 0);

/// A kernel of a PTX version that no driver reads.
pub(crate) fn from_the_future() -> Kernel {
    let mut module = scale_named("from_the_future").module().clone();
    module.version = FUTURE;
    Kernel::new(module).expect("a kernel")
}

/// [`scale`] for another architecture.
pub(crate) fn scale_for(target: Target) -> Kernel {
    let module = Module { target, version: PtxVersion::new(9, 0), ..scale().module().clone() };
    Kernel::new(module).expect("a kernel")
}

/// No block size of its own.
pub(crate) fn any_block() -> Kernel {
    kernel("sm_75", "", "any_block() .maxntid 64, 1, 1", "ret;")
}

pub(crate) const fn slot(slot: u32) -> ArgValue {
    ArgValue::Slot { slot, offset: 0 }
}

/// The launch of [`scale`] over `n` elements.
pub(crate) fn scale_step(kernel: Kernel, a: f32, n: u32) -> LaunchStep {
    let args = vec![slot(0), slot(1), ArgValue::F32(a), ArgValue::U32(n)];
    LaunchStep::new(kernel, [n.div_ceil(128), 1, 1], args)
}

/// A tensor of 0, 1, 2, ...
pub(crate) fn counting(device: &Device, n: usize) -> Tensor {
    let data: Vec<f32> = (0..n).map(|i| i as f32).collect();
    Tensor::from_slice(device, &data, &[n]).expect("tensor")
}

pub(crate) fn launch_increment(stream: &Stream, step: &LaunchStep, x: &Tensor) -> Result<()> {
    stream.launch(step, &[x.binding()])
}

pub(crate) fn null() -> Binding<'static> {
    Binding::NULL
}

/// Hands the names of the tests of [`suite`] to a macro that says what each of them runs on.
macro_rules! device_suite {
    ($each:ident) => {
        $each! {
            buffers_keep_bytes,
            host_buffers_are_copied,
            tensors_are_filled_and_copied,
            tensors_keep_elements,
            views_address_elements,
            launches_compute,
            launches_are_checked,
            dynamic_shared_memory,
            graphs_replay,
            launches_are_recorded,
            failed_captures_leave_the_stream_usable,
            graphs_outlive_their_steps,
            graphs_keep_memory,
            graphs_own_what_they_allocate,
            memory_waits_for_other_streams,
            threads_share_a_kernel,
            out_of_memory,
            slow_kernels_count,
            clusters_have_ranks,
            tensor_maps,
            other_architectures_are_refused,
        }
    };
}

pub(crate) use device_suite;
