//! Device functions: calls of every kind, frames, and what the runtime of a device provides.

use warpwright_emu::{Fault, LaunchConfig, LaunchError, Memory, Options, Program, Report, launch};

const HEAD: &str = ".version 7.8\n.target sm_90\n.address_size 64\n";

/// Runs kernel `k(out)` with a block of threads; the 32-bit words that it left, and the report.
fn run(text: &str, threads: u32, words: usize) -> (Vec<u32>, Result<Report, LaunchError>) {
    let program = Program::load(&format!("{HEAD}{text}")).unwrap_or_else(|e| panic!("{e}"));
    let memory = Memory::new();
    let out = memory.alloc(words as u64 * 4, "out").unwrap();
    memory.fill(out, 0, words as u64 * 4).unwrap();
    let options = Options { max_steps: 1 << 22, ..Options::default() };
    let report =
        launch(&program, "k", &LaunchConfig::linear(1, threads), &out.to_le_bytes(), &memory, &options);
    let mut bytes = vec![0; words * 4];
    memory.read(out, &mut bytes).unwrap();
    (bytes.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect(), report)
}

fn clean(text: &str, threads: u32) -> Vec<u32> {
    let (words, report) = run(text, threads, threads as usize);
    let report = report.unwrap_or_else(|e| panic!("{e}"));
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert!(report.unfreed.is_empty());
    words
}

fn fault(text: &str) -> Fault {
    match run(text, 32, 32).1 {
        Err(LaunchError::Fault { fault, .. }) => fault,
        other => panic!("no fault: {other:?}"),
    }
}

/// A kernel that calls `f(tid)` and stores what it returns.
const CALLER: &str = "
.visible .entry k(.param .u64 p0)
{
    .reg .b32 %r<4>; .reg .b64 %rd<4>;
    mov.u32 %r1, %tid.x;
    { .param .b32 a; .param .b32 v;
      st.param.b32 [a+0], %r1;
      call.uni (v), f, (a);
      ld.param.b32 %r2, [v+0]; }
    ld.param.u64 %rd1, [p0];
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd1, %rd1, %rd2;
    st.global.u32 [%rd1], %r2;
    ret;
}
";

#[test]
fn results_are_stored_in_every_form_that_ptxas_takes() {
    // In another function's frame, by name of the space, in bytes and halves, and under a guard.
    let reverse = ".func (.param .align 16 .b8 r[16]) h(.param .align 16 .b8 n[16])
{ .reg .b32 %r<5>; ld.param.v4.b32 {%r1, %r2, %r3, %r4}, [n]; st.param.v4.b32 [r], {%r4, %r3, %r2, %r1}; ret; }";
    let stored = |body: &str, want: fn(u32) -> u32| {
        let f = format!(
            ".func (.param .b32 r) f(.param .b32 a)\n{{ .reg .pred %p<2>; .reg .b32 %r<6>; ld.param::func.b32 %r1, [a];\n{body} ret; }}"
        );
        assert_eq!(
            clean(&format!("{reverse}{f}{CALLER}"), 64),
            (0..64).map(want).collect::<Vec<_>>(),
            "{body}"
        );
    };
    stored("st.param::func.b32 [r], %r1;", |i| i);
    stored("st.param.b8 [r], %r1; st.param.b8 [r+1], %r1; st.param.u16 [r+2], %r1;", |i| {
        i | i << 8 | i << 16
    });
    stored("setp.eq.u32 %p1, %r1, 1; @%p1 st.param.b32 [r], 5; @!%p1 st.param.b32 [r], 6;", |i| {
        6 - u32::from(i == 1)
    });
    stored(
        ".param .align 16 .b8 n[16]; .param .align 16 .b8 q[16]; add.u32 %r2, %r1, 9;
         st.param.v2.b32 [n], {%r1, %r2}; st.param.v2.b32 [n+8], {%r2, %r2}; call (q), h, (n);
         ld.param.v4.b32 {%r2, %r3, %r4, %r5}, [q]; sub.u32 %r5, %r4, %r5; st.param.b32 [r], %r5;",
        |_| 9,
    );
}

#[test]
fn arguments_go_in_and_results_come_back() {
    let f = ".func (.param .b32 r) f(.param .b32 x)
{ .reg .b32 %r<3>; ld.param.u32 %r1, [x]; mad.lo.u32 %r2, %r1, %r1, 7; st.param.b32 [r+0], %r2; ret; }";
    assert_eq!(clean(&format!("{f}{CALLER}"), 64), (0..64).map(|i| i * i + 7).collect::<Vec<_>>());
}

#[test]
fn a_function_may_be_declared_first_and_recurse() {
    // Fibonacci: both calls need what the caller has in registers.
    let f = ".func (.param .b32 r) f(.param .b32 x);
.func (.param .b32 r) f(.param .b32 x)
{
    .reg .b32 %r<8>; .reg .pred %p;
    ld.param.u32 %r1, [x];
    setp.lt.u32 %p, %r1, 2;
    @%p bra DONE;
    sub.u32 %r2, %r1, 1;
    { .param .b32 a; .param .b32 v; st.param.b32 [a+0], %r2; call.uni (v), f, (a); ld.param.b32 %r3, [v+0]; }
    sub.u32 %r4, %r1, 2;
    { .param .b32 a; .param .b32 v; st.param.b32 [a+0], %r4; call.uni (v), f, (a); ld.param.b32 %r5, [v+0]; }
    add.u32 %r1, %r3, %r5;
DONE:
    st.param.b32 [r+0], %r1;
    ret;
}";
    let mut fibonacci = vec![0u32, 1];
    (2..32).for_each(|i| fibonacci.push(fibonacci[i - 1] + fibonacci[i - 2]));
    // Lanes recurse to different depths.
    let limited = CALLER
        .replace("mov.u32 %r1, %tid.x;", "mov.u32 %r1, %tid.x; and.b32 %r3, %r1, 11;")
        .replace("[a+0], %r1", "[a+0], %r3");
    assert_eq!(
        clean(&format!("{f}{limited}"), 64),
        (0..64).map(|i: usize| fibonacci[i & 11]).collect::<Vec<_>>()
    );
}

#[test]
fn functions_that_call_each_other_keep_their_registers() {
    // f(n) = n + g(n - 1), g(n) = 2 * f(n - 1), both 1 at 0.
    let function = |name: &str, other: &str, last: &str| {
        format!(
            ".func (.param .b32 r) {name}(.param .b32 x)
{{
    .reg .b32 %r<8>; .reg .pred %p;
    ld.param.u32 %r1, [x];
    mov.u32 %r4, 1;
    mov.u32 %r2, 0;
    setp.eq.u32 %p, %r1, 0;
    @!%p sub.u32 %r2, %r1, 1;
    {{ .param .b32 a; .param .b32 v; st.param.b32 [a+0], %r2; @!%p call (v), {other}, (a); @!%p ld.param.b32 %r3, [v+0]; }}
    @!%p {last}
    st.param.b32 [r+0], %r4;
    ret;
}}"
        )
    };
    let (f, g) = (function("f", "g", "add.u32 %r4, %r1, %r3;"), function("g", "f", "add.u32 %r4, %r3, %r3;"));
    fn f_of(n: u32) -> u32 {
        if n == 0 { 1 } else { n + g_of(n - 1) }
    }
    fn g_of(n: u32) -> u32 {
        if n == 0 { 1 } else { 2 * f_of(n - 1) }
    }
    let text = format!(".func (.param .b32 r) g(.param .b32 x);{f}{g}{CALLER}");
    assert_eq!(clean(&text, 32), (0..32).map(f_of).collect::<Vec<_>>());
}

#[test]
fn structures_pass_by_value_and_the_callee_may_change_its_copy() {
    let text = "
.func (.param .align 8 .b8 r[16]) f(.param .align 8 .b8 s[16], .param .b32 by)
{
    .reg .b32 %r<4>; .reg .b64 %rd<3>;
    ld.param.u32 %r1, [s+0];
    ld.param.u64 %rd1, [s+8];
    ld.param.u32 %r2, [by];
    add.u32 %r1, %r1, %r2;
    cvt.u64.u32 %rd2, %r2;
    add.u64 %rd1, %rd1, %rd2;
    st.param.b32 [r+0], %r1;
    st.param.b64 [r+8], %rd1;
    ret;
}
.visible .entry k(.param .u64 p0)
{
    .reg .b32 %r<8>; .reg .b64 %rd<8>;
    mov.u32 %r1, %tid.x;
    cvt.u64.u32 %rd1, %r1;
    { .param .align 8 .b8 a[16]; .param .b32 b; .param .align 8 .b8 v[16];
      st.param.b32 [a+0], %r1;
      st.param.b64 [a+8], %rd1;
      st.param.b32 [b+0], 1000;
      call (v), f, (a, b);
      ld.param.b32 %r2, [v+0];
      ld.param.b64 %rd2, [v+8];
      ld.param.b32 %r3, [a+0]; }
    cvt.u32.u64 %r4, %rd2;
    add.u32 %r2, %r2, %r4;
    sub.u32 %r2, %r2, %r3;
    ld.param.u64 %rd3, [p0];
    mul.wide.u32 %rd4, %r1, 4;
    add.u64 %rd3, %rd3, %rd4;
    st.global.u32 [%rd3], %r2;
    ret;
}";
    assert_eq!(clean(text, 32), (0..32).map(|i| i + 2000).collect::<Vec<_>>());
}

#[test]
fn register_parameters_and_literals() {
    let text = "
.func (.reg .b32 r) f(.reg .b32 x, .reg .b32 y)
{ .reg .b32 %t; mul.lo.u32 %t, x, y; sub.u32 r, %t, y; ret; }
.visible .entry k(.param .u64 p0)
{
    .reg .b32 %r<4>; .reg .b64 %rd<4>;
    mov.u32 %r1, %tid.x;
    call (%r2), f, (%r1, 5);
    call (%r2), f, (%r2, 3);
    ld.param.u64 %rd1, [p0];
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd1, %rd1, %rd2;
    st.global.u32 [%rd1], %r2;
    ret;
}";
    assert_eq!(
        clean(text, 32),
        (0..32u32).map(|i| (5 * i).wrapping_sub(5).wrapping_mul(3).wrapping_sub(3)).collect::<Vec<_>>()
    );
}

/// Lanes take functions from a table in global memory.
const TABLE: &str = "
.func (.param .b32 r) f0(.param .b32 x) { .reg .b32 %r<2>; ld.param.u32 %r1, [x]; add.u32 %r1, %r1, 100; st.param.b32 [r+0], %r1; ret; }
.func (.param .b32 r) f1(.param .b32 x) { .reg .b32 %r<2>; ld.param.u32 %r1, [x]; mul.lo.u32 %r1, %r1, 3; st.param.b32 [r+0], %r1; ret; }
.func (.param .b32 r) f2(.param .b32 x) { .reg .b32 %r<2>; ld.param.u32 %r1, [x]; not.b32 %r1, %r1; st.param.b32 [r+0], %r1; ret; }
.global .align 8 .u64 table[4] = {f0, f1, f2, 0};
.visible .entry k(.param .u64 p0)
{
    .reg .b32 %r<8>; .reg .b64 %rd<8>;
    mov.u32 %r1, %tid.x;
    rem.u32 %r2, %r1, COUNT;
    mov.u64 %rd1, table;
    mul.wide.u32 %rd2, %r2, 8;
    add.u64 %rd1, %rd1, %rd2;
    ld.global.u64 %rd3, [%rd1];
    { .param .b32 a; .param .b32 v;
      st.param.b32 [a+0], %r1;
      prototype_0 : .callprototype (.param .b32 _) _ (.param .b32 _);
      call (v), %rd3, (a), prototype_0;
      ld.param.b32 %r3, [v+0]; }
    ld.param.u64 %rd4, [p0];
    mul.wide.u32 %rd5, %r1, 4;
    add.u64 %rd4, %rd4, %rd5;
    st.global.u32 [%rd4], %r3;
    ret;
}";

#[test]
fn indirect_calls_follow_the_address_of_each_lane() {
    let want = |i: u32| match i % 3 {
        0 => i + 100,
        1 => i * 3,
        _ => !i,
    };
    assert_eq!(clean(&TABLE.replace("COUNT", "3"), 64), (0..64).map(want).collect::<Vec<_>>());
    let Fault::Call { thread, message, .. } = fault(&TABLE.replace("COUNT", "4")) else {
        panic!("another fault")
    };
    assert_eq!(thread, [3, 0, 0]);
    assert!(message.contains("null pointer"), "{message}");
}

#[test]
fn indexed_branches_part_the_lanes() {
    let text = "
.visible .entry k(.param .u64 p0)
{
    .reg .b32 %r<8>; .reg .b64 %rd<4>;
    mov.u32 %r1, %tid.x;
    rem.u32 %r2, %r1, COUNT;
    mov.u32 %r3, 0;
    ts: .branchtargets A, B, C;
    brx.idx %r2, ts;
A:  add.u32 %r3, %r3, 1;
B:  add.u32 %r3, %r3, 10;
C:  add.u32 %r3, %r3, 100;
    ld.param.u64 %rd1, [p0];
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd1, %rd1, %rd2;
    st.global.u32 [%rd1], %r3;
    ret;
}";
    assert_eq!(
        clean(&text.replace("COUNT", "3"), 32),
        (0..32).map(|i| [111, 110, 100][i % 3]).collect::<Vec<_>>()
    );
    let Fault::Call { message, .. } = fault(&text.replace("COUNT", "4")) else { panic!("another fault") };
    assert_eq!(message, "takes branch 3 of 3");
}

#[test]
fn pointers_to_local_variables_go_into_functions() {
    // f adds up what it is pointed to and overwrites it; every thread has variables of its own in both frames.
    let text = "
.func (.param .b32 r) f(.param .b64 p, .param .b32 n)
{
    .local .align 4 .b8 depot[8]; .reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .pred %q;
    ld.param.u64 %rd1, [p];
    ld.param.u32 %r1, [n];
    mov.u64 %rd2, depot;
    mov.u32 %r2, 0;
LOOP:
    ld.u32 %r3, [%rd1];
    add.u32 %r2, %r2, %r3;
    st.local.u32 [%rd2+4], %r2;
    st.u32 [%rd1], %r2;
    ld.local.u32 %r2, [%rd2+4];
    add.u64 %rd1, %rd1, 4;
    sub.u32 %r1, %r1, 1;
    setp.ne.u32 %q, %r1, 0;
    @%q bra LOOP;
    st.param.b32 [r+0], %r2;
    ret;
}
.visible .entry k(.param .u64 p0)
{
    .local .align 8 .b8 depot[16]; .reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .b64 %SP, %SPL;
    mov.u64 %SPL, depot;
    cvta.local.u64 %SP, %SPL;
    mov.u32 %r1, %tid.x;
    st.local.v2.u32 [%SPL], {%r1, 2};
    add.u64 %rd1, %SP, 4;
    st.u32 [%rd1+4], 3;
    { .param .b64 a; .param .b32 b; .param .b32 v;
      st.param.b64 [a+0], %SP; st.param.b32 [b+0], 3;
      call.uni (v), f, (a, b);
      ld.param.b32 %r2, [v+0]; }
    ld.local.u32 %r3, [%SPL+4];
    mad.lo.u32 %r2, %r2, 1000, %r3;
    ld.param.u64 %rd2, [p0];
    mul.wide.u32 %rd3, %r1, 4;
    add.u64 %rd2, %rd2, %rd3;
    st.global.u32 [%rd2], %r2;
    ret;
}";
    assert_eq!(clean(text, 64), (0..64).map(|i| (i + 5) * 1000 + i + 2).collect::<Vec<_>>());
}

#[test]
fn collectives_work_inside_functions_that_lanes_reach_from_two_places() {
    let text = "
.func (.param .b32 r) f(.param .b32 x, .param .b32 mask)
{
    .reg .b32 %r<8>;
    ld.param.u32 %r1, [x];
    ld.param.u32 %r2, [mask];
    shfl.sync.bfly.b32 %r3, %r1, 1, 0x1f, %r2;
    activemask.b32 %r4;
    and.b32 %r4, %r4, %r2;
    sub.u32 %r4, %r4, %r2;
    add.u32 %r3, %r3, %r4;
    st.param.b32 [r+0], %r3;
    ret;
}
.visible .entry k(.param .u64 p0)
{
    .reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .pred %q;
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %q, %r1, 16;
    @%q bra LOW;
    { .param .b32 a; .param .b32 m; .param .b32 v;
      st.param.b32 [a+0], %r1; st.param.b32 [m+0], 0xffff0000;
      call (v), f, (a, m); ld.param.b32 %r2, [v+0]; }
    add.u32 %r2, %r2, 500;
    bra JOIN;
LOW:
    { .param .b32 a; .param .b32 m; .param .b32 v;
      st.param.b32 [a+0], %r1; st.param.b32 [m+0], 0x0000ffff;
      call (v), f, (a, m); ld.param.b32 %r2, [v+0]; }
JOIN:
    ld.param.u64 %rd2, [p0];
    mul.wide.u32 %rd3, %r1, 4;
    add.u64 %rd2, %rd2, %rd3;
    st.global.u32 [%rd2], %r2;
    ret;
}";
    assert_eq!(clean(text, 32), (0..32).map(|i| (i ^ 1) + if i < 16 { 0 } else { 500 }).collect::<Vec<_>>());
}

#[test]
fn barriers_and_exits_inside_functions() {
    // Odd threads end inside of the function; the others meet at a barrier there.
    let f = ".shared .align 4 .b8 cell[4];
.func (.param .b32 r) f(.param .b32 x)
{
    .reg .b32 %r<8>; .reg .pred %p;
    ld.param.u32 %r1, [x];
    and.b32 %r2, %r1, 1;
    setp.eq.u32 %p, %r2, 1;
    @%p exit;
    setp.eq.u32 %p, %r1, 0;
    @%p st.shared.u32 [cell], 77;
    barrier.sync 0;
    ld.shared.u32 %r3, [cell];
    add.u32 %r3, %r3, %r1;
    st.param.b32 [r+0], %r3;
    ret;
}";
    let want: Vec<u32> = (0..64).map(|i| if i % 2 == 1 { 0 } else { 77 + i }).collect();
    assert_eq!(clean(&format!("{f}{CALLER}"), 64), want);
}

#[test]
fn a_local_variable_of_a_new_frame_is_uninitialised() {
    let f = ".func (.param .b32 r) f(.param .b32 x)
{
    .local .align 4 .b8 depot[4]; .reg .b32 %r<4>;
    ld.local.u32 %r2, [depot];
    ld.param.u32 %r1, [x];
    st.local.u32 [depot], %r1;
    add.u32 %r1, %r1, %r2;
    st.param.b32 [r+0], %r1;
    ret;
}";
    let twice = CALLER.replace("call.uni (v), f, (a);", "call.uni (v), f, (a); call.uni (v), f, (a);");
    let (_, report) = run(&format!("{f}{twice}"), 32, 32);
    let report = report.unwrap();
    // What the first call returns is not used; the frame of the second lies where that of the first was.
    let [finding] = report.findings.as_slice() else { panic!("{:#?}", report.findings) };
    assert_eq!((finding.kind, finding.count), ("uninitialised-local", 32));
}

#[test]
fn what_is_copied_and_not_used_may_be_undefined() {
    // Of eight bytes the first four are written; all of them go from variable to argument to variable to result.
    let f = ".func (.param .b64 r) g(.param .b64 x)
{
    .local .align 8 .b8 depot[8]; .reg .b32 %r<4>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [x];
    mov.b64 %rd2, %rd1;
    st.local.u64 [depot], %rd2;
    ld.local.u64 %rd3, [depot];
    st.param.b64 [r+0], %rd3;
    ret;
}
.func (.param .b32 r) f(.param .b32 x)
{
    .local .align 8 .b8 pair[8]; .reg .b32 %r<4>; .reg .b64 %rd<4>;
    ld.param.u32 %r1, [x];
    st.local.u32 [pair], %r1;
    ld.local.v2.u32 {%r2, %r3}, [pair];
    st.local.v2.u32 [pair], {%r2, %r3};
    ld.local.u64 %rd1, [pair];
    .param .b64 a;
    .param .b64 v;
    st.param.b64 [a+0], %rd1;
    call.uni (v), g, (a);
    ld.param.b64 %rd2, [v+0];
    st.local.u64 [pair], %rd2;
    ld.local.u32 %r2, [pair+WHICH];
    st.param.b32 [r+0], %r2;
    ret;
}";
    let kinds = |which: &str| {
        let (_, report) = run(&format!("{}{CALLER}", f.replace("WHICH", which)), 32, 32);
        report.unwrap().findings.iter().map(|finding| finding.kind).collect::<Vec<_>>()
    };
    assert_eq!((kinds("0"), kinds("4")), (vec![], vec!["uninitialised-local"]));
}

#[test]
fn endless_recursion_is_a_fault_with_the_calls() {
    let f = ".func (.param .b32 r) f(.param .b32 x)
{
    .reg .b32 %r<4>;
    ld.param.u32 %r1, [x];
    { .param .b32 a; .param .b32 v; st.param.b32 [a+0], %r1; call (v), f, (a); ld.param.b32 %r2, [v+0]; }
    st.param.b32 [r+0], %r2;
    ret;
}";
    let Fault::Call { line, message, .. } = fault(&format!("{f}{CALLER}")) else { panic!("another fault") };
    assert_eq!(line, 8);
    assert!(
        message.contains("limit")
            && message.contains("in f, called in line 8")
            && message.contains("more calls"),
        "{message}"
    );
}

#[test]
fn what_is_only_declared_is_named_when_it_is_called() {
    let text = ".extern .func (.param .b32 r) __nv_something(.param .b32 x);";
    let caller = CALLER.replace(" f, ", " __nv_something, ");
    let Fault::Call { message, .. } = fault(&format!("{text}{caller}")) else { panic!("another fault") };
    assert_eq!(message, "calls `__nv_something`, which the module only declares");
    // Nothing is wrong as long as no thread gets there.
    let never = caller
        .replace("call.uni", "setp.eq.u32 %p, %r1, 99; @%p call")
        .replace(".reg .b64 %rd<4>;", ".reg .b64 %rd<4>; .reg .pred %p;")
        .replace("ld.param.b32 %r2, [v+0];", "mov.u32 %r2, 5;");
    assert_eq!(clean(&format!("{text}{never}"), 32), vec![5; 32]);
}

const PRINTING: &str = "
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.global .align 1 .b8 text[26] = {37, 100, 32, 104, 97, 115, 32, 37, 46, 50, 102, 32, 37, 115, 32, 37, 108, 108, 120, 33, 10, 0, 0, 0, 0, 0};
.const .align 1 .b8 word[4] = {111, 100, 100, 0};
.visible .entry k(.param .u64 p0)
{
    .local .align 8 .b8 depot[32]; .reg .b32 %r<4>; .reg .b64 %rd<8>; .reg .f64 %fd;
    mov.u32 %r1, %tid.x;
    mov.u64 %rd1, depot;
    st.local.u32 [%rd1], %r1;
    cvt.rn.f64.u32 %fd, %r1;
    st.local.f64 [%rd1+8], %fd;
    mov.u64 %rd2, word;
    cvta.const.u64 %rd2, %rd2;
    st.local.u64 [%rd1+16], %rd2;
    mov.u64 %rd3, 0x1234567890;
    st.local.u64 [%rd1+24], %rd3;
    cvta.local.u64 %rd4, %rd1;
    mov.u64 %rd5, text;
    cvta.global.u64 %rd5, %rd5;
    { .param .b64 f; .param .b64 a; .param .b32 v;
      st.param.b64 [f+0], %rd5; st.param.b64 [a+0], %rd4;
      call.uni (v), vprintf, (f, a); ld.param.b32 %r2, [v+0]; }
    ld.param.u64 %rd6, [p0];
    mul.wide.u32 %rd7, %r1, 4;
    add.u64 %rd6, %rd6, %rd7;
    st.global.u32 [%rd6], %r2;
    ret;
}";

#[test]
fn printing() {
    let (words, report) = run(PRINTING, 3, 3);
    let report = report.unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert_eq!(words, [4, 4, 4]);
    let lines: Vec<_> = report.printed.iter().map(|p| (p.thread[0], p.text.as_str())).collect();
    assert_eq!(
        lines,
        [
            (0, "0 has 0.00 odd 1234567890!\n"),
            (1, "1 has 1.00 odd 1234567890!\n"),
            (2, "2 has 2.00 odd 1234567890!\n")
        ]
    );
    // A string that cannot be read.
    let (_, report) = run(&PRINTING.replace("cvta.const.u64 %rd2, %rd2;", ""), 1, 1);
    assert_eq!(report.unwrap().printed[0].text, "0 has 0.00 (null) 1234567890!\n");
}

#[test]
fn assertions() {
    let text = "
.extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 s) .noreturn;
.global .align 1 .b8 message[6] = {120, 32, 60, 32, 57, 0};
.global .align 1 .b8 file[5] = {97, 46, 99, 117, 0};
.global .align 1 .b8 function[2] = {107, 0};
.visible .entry k(.param .u64 p0)
{
    .reg .b32 %r<4>; .reg .b64 %rd<8>; .reg .pred %p;
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p, %r1, 9;
    @%p bra FINE;
    mov.u64 %rd1, message;
    mov.u64 %rd2, file;
    mov.u64 %rd3, function;
    { .param .b64 m; .param .b64 f; .param .b32 l; .param .b64 n; .param .b64 s;
      st.param.b64 [m+0], %rd1; st.param.b64 [f+0], %rd2; st.param.b32 [l+0], 42; st.param.b64 [n+0], %rd3; st.param.b64 [s+0], 1;
      call.uni __assertfail, (m, f, l, n, s); }
FINE:
    ret;
}";
    let Fault::Assertion { thread, message, file, source_line, function, .. } = fault(text) else {
        panic!("another fault")
    };
    assert_eq!((thread, &*message, &*file, source_line, &*function), ([9, 0, 0], "x < 9", "a.cu", 42, "k"));
}

/// Allocates, uses, and does with the memory what `LAST` says.
const HEAP: &str = "
.extern .func (.param .b64 r) malloc(.param .b64 n);
.extern .func free(.param .b64 p);
.visible .entry k(.param .u64 p0)
{
    .reg .b32 %r<4>; .reg .b64 %rd<8>; .reg .pred %q;
    mov.u32 %r1, %tid.x;
    setp.eq.u32 %q, %r1, 1;
    { .param .b64 n; .param .b64 v; st.param.b64 [n+0], 8; call.uni (v), malloc, (n); ld.param.b64 %rd1, [v+0]; }
    st.u32 [%rd1+4], %r1;
    ld.u32 %r2, [%rd1+4];
    ld.param.u64 %rd2, [p0];
    mul.wide.u32 %rd3, %r1, 4;
    add.u64 %rd2, %rd2, %rd3;
    st.global.u32 [%rd2], %r2;
    LAST
    ret;
}";
const FREE: &str = "{ .param .b64 p; st.param.b64 [p+0], %rd1; call.uni free, (p); }";

#[test]
fn the_device_heap() {
    assert_eq!(clean(&HEAP.replace("LAST", FREE), 32), (0..32).collect::<Vec<_>>());
    // Nobody frees.
    let (_, report) = run(&HEAP.replace("LAST", ""), 2, 2);
    let report = report.unwrap();
    assert!(report.is_clean());
    let leaks: Vec<_> = report.unfreed.iter().map(|b| (b.thread, b.bytes)).collect();
    assert_eq!(leaks, [(0, 8), (1, 8)]);
    // Twice, beyond the end, after the end, and what was never allocated.
    let kinds = |last: &str| {
        let (_, report) = run(&HEAP.replace("LAST", last), 1, 1);
        report.unwrap().findings.iter().map(|f| f.kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&format!("{FREE}{FREE}")), ["invalid-free"]);
    assert_eq!(kinds(&format!("add.u64 %rd1, %rd1, 4;{FREE}")), ["invalid-free"]);
    assert_eq!(kinds(&format!("st.u32 [%rd1+8], %r1;{FREE}")), ["out-of-bounds"]);
    assert_eq!(kinds(&format!("{FREE}ld.u32 %r2, [%rd1+4];")), ["use-after-free"]);
}

#[test]
fn the_stack_grows_and_shrinks() {
    let text = "
.visible .entry k(.param .u64 p0)
{
    .local .align 4 .b8 depot[4]; .reg .b32 %r<8>; .reg .b64 %rd<8>;
    mov.u32 %r1, %tid.x;
    st.local.u32 [depot], 1;
    stacksave.u64 %rd1;
    alloca.u64 %rd2, 16, 16;
    alloca.u64 %rd3, 8;
    st.local.u32 [%rd2+12], %r1;
    st.local.u32 [%rd3+4], 5;
    ld.local.u32 %r2, [%rd2+12];
    ld.local.u32 %r3, [%rd3+4];
    mad.lo.u32 %r2, %r2, 10, %r3;
    stackrestore.u64 %rd1;
    LAST
    ld.param.u64 %rd4, [p0];
    mul.wide.u32 %rd5, %r1, 4;
    add.u64 %rd4, %rd4, %rd5;
    st.global.u32 [%rd4], %r2;
    ret;
}";
    assert_eq!(clean(&text.replace("LAST", ""), 32), (0..32).map(|i| 10 * i + 5).collect::<Vec<_>>());
    let (_, report) = run(&text.replace("LAST", "ld.local.u32 %r3, [%rd2+12];"), 1, 1);
    let kinds: Vec<_> = report.unwrap().findings.iter().map(|f| f.kind).collect();
    assert_eq!(kinds, ["out-of-bounds"]);
}

#[test]
fn initialisers_hold_addresses() {
    // A pointer to a global, one into a constant, and generic ones; the constant points back.
    let text = "
.global .align 4 .u32 number = 7;
.const .align 4 .u32 fixed[2] = {11, 13};
.global .align 8 .u64 pointers[3] = {number, generic(fixed)+4, generic(number)};
.const .align 8 .u64 back = generic(number);
.visible .entry k(.param .u64 p0)
{
    .reg .b32 %r<8>; .reg .b64 %rd<8>;
    ld.global.u64 %rd1, [pointers];
    ld.global.u32 %r1, [%rd1];
    ld.global.u64 %rd2, [pointers+8];
    ld.u32 %r2, [%rd2];
    ld.global.u64 %rd3, [pointers+16];
    ld.u32 %r3, [%rd3];
    ld.const.u64 %rd4, [back];
    ld.u32 %r4, [%rd4];
    mad.lo.u32 %r1, %r1, 100, %r2;
    mad.lo.u32 %r3, %r3, 100, %r4;
    mad.lo.u32 %r1, %r1, 10000, %r3;
    ld.param.u64 %rd5, [p0];
    st.global.u32 [%rd5], %r1;
    ret;
}";
    assert_eq!(clean(text, 1), [7_130_707]);
}
