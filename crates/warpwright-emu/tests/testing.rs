//! The interface for tests of other crates.

use half::f16;
use warpwright_emu::testing::CallError;
use warpwright_emu::{LaunchError, Options, Program, Sanitizers};

/// Copies `n` bytes of each input to the output, one thread a byte, and adds `k`.
const COPY: &str = "\
.version 7.0
.target sm_80
.address_size 64
.visible .entry copy(.param .u64 x, .param .u64 y, .param .u8 k, .param .u32 n)
{
    .reg .b64 %rd<5>;
    .reg .b32 %r<6>;
    .reg .b16 %h<4>;
    .reg .pred %p<1>;
    ld.param.u64 %rd0, [x];
    ld.param.u64 %rd1, [y];
    ld.param.u8 %h0, [k];
    ld.param.u32 %r0, [n];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    setp.ge.u32 %p0, %r4, %r0;
    @%p0 bra DONE;
    cvt.u64.u32 %rd2, %r4;
    add.s64 %rd3, %rd0, %rd2;
    ld.global.u8 %h1, [%rd3];
    add.s16 %h2, %h1, %h0;
    add.s64 %rd4, %rd1, %rd2;
    st.global.u8 [%rd4], %h2;
DONE:
    ret;
}
";

#[test]
fn arrays_of_every_type_go_in_and_out() {
    let program = Program::load(COPY).unwrap();
    macro_rules! check {
        ($($ty:ty: $values:expr;)*) => {$({
            let x: [$ty; 3] = $values;
            let mut y = [<$ty>::default(); 3];
            let n = size_of_val(&x) as u32;
            let run = program.call("copy").grid(2).block([8, 2]).input(&x).output(&mut y).value(0u8).value(n);
            // The kernel uses x alone, so the second row of threads repeats the first.
            run.options(Options::fast()).run().unwrap();
            assert_eq!(x, y);
        })*};
    }
    check! {
        u8: [1, 2, 255];
        i8: [-1, 2, -128];
        u16: [1, 2, 65535];
        i16: [-1, 2, -32768];
        u32: [1, 2, u32::MAX];
        i32: [-1, 2, i32::MIN];
        f32: [1.5, -0.0, f32::INFINITY];
        f16: [f16::ONE, f16::MIN, f16::EPSILON];
    }
    let mut z = [1u8, 2, 3];
    let x = [10u8, 20, 30];
    program
        .call("copy")
        .block(3)
        .input(&x)
        .in_out(&mut z)
        .value(5u8)
        .value(2u32)
        .run()
        .unwrap()
        .assert_clean();
    assert_eq!(z, [15, 25, 3]);
    // What nothing wrote has all bits set.
    let mut y = [0u8; 3];
    program.call("copy").block(3).input(&x).output(&mut y).value(0u8).value(2u32).run().unwrap();
    assert_eq!(y, [10, 20, 255]);
}

#[test]
fn findings_name_the_parameter_and_quote_the_text() {
    let program = Program::load(COPY).unwrap();
    let mut y = [0u8; 4];
    let outcome = program
        .call("copy")
        .block(4)
        .input(&[1u8, 2, 3])
        .output(&mut y)
        .value(0u8)
        .value(4u32)
        .run()
        .unwrap();
    let text = outcome.render();
    assert!(text.contains("ld.global.u8 %h1, [%rd3];") && text.contains("`x` + 3"), "{text}");
    let panic = std::panic::catch_unwind(|| outcome.assert_clean()).unwrap_err();
    assert!(panic.downcast_ref::<String>().unwrap().contains("error[memcheck/"), "{panic:?}");
    let report = outcome.into_report();
    assert_eq!((report.findings.len(), report.counters.warps), (1, 1));
}

#[test]
fn mistakes_are_errors_with_data() {
    let program = Program::load(COPY).unwrap();
    let call = || program.call("copy").input(&[0u8; 4]);
    assert!(matches!(call().run(), Err(CallError::Argument(_))));
    assert!(matches!(call().value(1u32).value(1u32).value(1u32).run(), Err(CallError::Argument(_))));
    let nobody = program.call("move").value(1u32).run();
    assert!(matches!(nobody, Err(CallError::Launch(LaunchError::NoSuchEntry { .. }))), "{nobody:?}");
    let options = Options { sanitizers: Sanitizers::empty(), ..Options::default() };
    let mut y = [0u8; 4];
    let fault = call().output(&mut y).value(0u8).value(9u32).block(32).options(options).run();
    assert!(matches!(fault, Err(CallError::Launch(LaunchError::Fault { .. }))), "{fault:?}");
    let outcome = call().output(&mut y).block(2000).value(0u8).value(1u32).run();
    assert!(matches!(outcome, Err(CallError::Launch(LaunchError::Configuration { .. }))), "{outcome:?}");
}
