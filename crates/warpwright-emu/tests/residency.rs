//! Blocks that wait for each other through global memory, and what is said when nobody can go on.

mod support;

use support::{STORE, kernel, load, run};
use warpwright_emu::{Fault, LaunchConfig, LaunchError, Options, Program, Report, Sanitizers};

fn options(threads: usize) -> Options {
    Options { threads, max_steps: 1 << 28, ..Options::default() }
}

fn clean(result: Result<Report, LaunchError>) -> Report {
    let report = result.unwrap_or_else(|e| panic!("{e}"));
    assert!(report.is_clean(), "{:?}", report.findings);
    report
}

/// Three times over, every thread stores a value, waits for the grid, and takes what the same thread of the next block
/// stored.
const GRID_BARRIER: &str = "
.global .align 4 .u32 arrived = 0;
.visible .entry k(.param .u64 out)
{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %nctaid.x;
    mov.u32 %r3, %ntid.x;
    mul.lo.u32 %r4, %r2, %r3;
    mad.lo.u32 %r5, %r1, %r3, %r0;
    mul.wide.u32 %rd1, %r5, 4;
    add.u64 %rd1, %rd0, %rd1;
    add.u32 %r6, %r5, %r3;
    rem.u32 %r6, %r6, %r4;
    mul.wide.u32 %rd2, %r6, 4;
    add.u64 %rd2, %rd0, %rd2;
    setp.ne.u32 %p0, %r0, 0;
    mov.u32 %r7, %r2;
    mov.u32 %r8, %r5;
    mov.u32 %r10, 0;
ROUND:
    st.global.u32 [%rd1], %r8;
    bar.sync 0;
    @%p0 bra WAITED;
    fence.acq_rel.gpu;
    red.global.add.u32 [arrived], 1;
SPIN:
    ld.relaxed.gpu.global.u32 %r9, [arrived];
    setp.lt.u32 %p1, %r9, %r7;
    @%p1 bra SPIN;
    fence.acq_rel.gpu;
    add.u32 %r7, %r7, %r2;
WAITED:
    bar.sync 0;
    ld.global.u32 %r8, [%rd2];
    bar.sync 0;
    @%p0 bra READ;
    fence.acq_rel.gpu;
    red.global.add.u32 [arrived], 1;
AGAIN:
    ld.relaxed.gpu.global.u32 %r9, [arrived];
    setp.lt.u32 %p1, %r9, %r7;
    @%p1 bra AGAIN;
    fence.acq_rel.gpu;
    add.u32 %r7, %r7, %r2;
READ:
    bar.sync 0;
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p2, %r10, 3;
    @%p2 bra ROUND;
    st.global.u32 [%rd1], %r8;
    ret;
}
";

#[test]
fn a_grid_waits_for_all_its_blocks() {
    let program = load(GRID_BARRIER);
    let config = LaunchConfig::linear(64, 64);
    for threads in [1, 2] {
        let (result, out) = run(&program, &config, &options(threads));
        clean(result);
        assert!(out.iter().enumerate().all(|(i, v)| *v == (i as u32 + 3 * 64) % 4096), "{threads}: {out:?}");
    }
}

#[test]
fn a_schedule_is_the_same_for_the_same_seed() {
    let program = load(GRID_BARRIER);
    let config = LaunchConfig::linear(20, 96);
    let steps = |seed| {
        let options = Options { seed, counters: true, ..options(1) };
        let report = clean(run(&program, &config, &options).0);
        (report.steps, report.counters)
    };
    for seed in [0, 7] {
        assert_eq!(steps(seed), steps(seed));
    }
}

/// A scan of ones: every block publishes its sum and looks back until it meets a sum of everything before. The argument
/// says whether blocks are numbered backwards, so that each waits for those that begin after it.
fn look_back(backwards: bool) -> Program {
    let number =
        if backwards { "mov.u32 %r2, %nctaid.x;\nsub.u32 %r1, %r2, %r1;\nsub.u32 %r1, %r1, 1;" } else { "" };
    load(&format!(
        ".global .align 8 .u64 state[256];
.visible .entry k(.param .u64 out)
{{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<16>;
    .shared .align 4 .u32 before;
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    {number}
    mov.u64 %rd1, state;
    mul.wide.u32 %rd2, %r1, 8;
    add.u64 %rd2, %rd1, %rd2;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra JOIN;
    // Zeroed by all blocks before would be a race: 0 is what a module variable holds.
    mov.b64 %rd3, 0x100000040;
    st.release.gpu.global.u64 [%rd2], %rd3;
    mov.u32 %r5, 0;
    mov.u64 %rd4, %rd2;
LOOK:
    setp.eq.u64 %p1, %rd4, %rd1;
    @%p1 bra FOUND;
    ld.acquire.gpu.global.u64 %rd5, [%rd4+-8];
    mov.b64 {{%r6, %r7}}, %rd5;
    setp.eq.u32 %p2, %r7, 0;
    @%p2 bra LOOK;
    add.u32 %r5, %r5, %r6;
    sub.u64 %rd4, %rd4, 8;
    setp.eq.u32 %p3, %r7, 1;
    @%p3 bra LOOK;
FOUND:
    add.u32 %r8, %r5, 64;
    mov.u32 %r9, 2;
    mov.b64 %rd6, {{%r8, %r9}};
    st.release.gpu.global.u64 [%rd2], %rd6;
    st.shared.u32 [before], %r5;
JOIN:
    bar.sync 0;
    ld.shared.u32 %r9, [before];
    add.u32 %r9, %r9, %r0;
    {STORE}
    ret;
}}
"
    ))
}

#[test]
fn blocks_look_back_over_those_before() {
    let config = LaunchConfig::linear(200, 64);
    for backwards in [false, true] {
        let program = look_back(backwards);
        for threads in [1, 2] {
            let (result, out) = run(&program, &config, &options(threads));
            clean(result);
            assert!(out.iter().enumerate().all(|(i, v)| *v == i as u32), "{backwards} {threads}: {out:?}");
        }
    }
}

#[test]
fn a_limit_on_resident_blocks_that_is_too_low_is_named() {
    let config = LaunchConfig::linear(200, 64);
    let program = look_back(true);
    let options = Options { max_resident_blocks: 50, ..options(1) };
    let (result, _) = run(&program, &config, &options);
    let Err(LaunchError::Fault { fault, report, .. }) = result else { panic!("a fault") };
    assert_eq!(report.findings.len(), 2);
    let text = fault.to_string();
    let Fault::Residency { resident: 50, waiting: 150, limit: 50, .. } = fault else { panic!("{fault:?}") };
    assert!(
        text.starts_with(
            "50 blocks wait for ever while 150 blocks may not begin: Options::max_resident_blocks is 50; line "
        ),
        "{text}"
    );
    // With as many as it takes, the limit is no hindrance.
    let options = Options { max_resident_blocks: 200, ..options };
    clean(run(&program, &config, &options).0);
}

#[test]
fn a_ticket_lock_is_handed_from_block_to_block() {
    // The holder sleeps for long, so that all others come to wait for it.
    let program = load(
        ".global .align 4 .u32 next = 0;
.global .align 4 .u32 serving = 0;
.global .align 4 .u32 total = 0;
.visible .entry k(.param .u64 out)
{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<16>;
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    atom.relaxed.gpu.global.add.u32 %r2, [next], 1;
TAKE:
    ld.acquire.gpu.global.u32 %r3, [serving];
    setp.ne.u32 %p0, %r3, %r2;
    @%p0 bra TAKE;
    ld.global.u32 %r9, [total];
    mov.u32 %r4, 0;
HOLD:
    nanosleep.u32 100;
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p1, %r4, 5;
    @%p1 bra HOLD;
    add.u32 %r9, %r9, 1;
    st.global.u32 [total], %r9;
    add.u32 %r5, %r2, 1;
    st.release.gpu.global.u32 [serving], %r5;
    mul.wide.u32 %rd1, %r1, 4;
    add.u64 %rd1, %rd0, %rd1;
    st.global.u32 [%rd1], %r9;
    ret;
}
",
    );
    for threads in [1, 2] {
        let (result, mut out) = run(&program, &LaunchConfig::linear(40, 1), &options(threads));
        clean(result);
        out.sort_unstable();
        assert_eq!(out, (1..=40).collect::<Vec<_>>());
    }
}

#[test]
fn a_block_may_wait_for_the_last_one() {
    // Block 0 waits until all others have ended, of which each needs long; only two are ever resident.
    let program = kernel(
        "mov.u32 %r2, %nctaid.x;\nsub.u32 %r2, %r2, 1;\nsetp.ne.u32 %p0, %r1, 0;\n@%p0 bra WORK;\nWAIT:\n\
         ld.acquire.gpu.global.u32 %r3, [%rd0];\nadd.u32 %r3, %r3, 0x11111112;\nsetp.ne.u32 %p1, %r3, %r2;\n\
         @%p1 bra WAIT;\nst.relaxed.gpu.global.u32 [%rd0], 7;\nret;\nWORK:\nmov.u32 %r4, 0;\nLOOP:\nadd.u32 %r4, %r4, 1;\n\
         setp.lt.u32 %p2, %r4, 5000;\n@%p2 bra LOOP;\nfence.acq_rel.gpu;\nred.global.add.u32 [%rd0], 1;",
    );
    let options = Options { max_resident_blocks: 2, ..options(1) };
    let (result, out) = run(&program, &LaunchConfig::linear(300, 1), &options);
    clean(result);
    assert_eq!(out[0], 7);
}

#[test]
fn clocks_go_on_and_are_the_same_every_time() {
    // Every block waits for a time on each clock, and stores how often it looked.
    let program = kernel(&format!(
        "mov.u32 %r9, 0;\nmov.u64 %rd1, %globaltimer;\nA:\nmov.u64 %rd2, %globaltimer;\nsub.u64 %rd3, %rd2, %rd1;\n\
         add.u32 %r9, %r9, 1;\nsetp.lt.u64 %p0, %rd3, 5000;\n@%p0 bra A;\nmov.u64 %rd1, %clock64;\nB:\n\
         nanosleep.u32 300;\nmov.u64 %rd4, %clock64;\nsub.u64 %rd3, %rd4, %rd1;\nadd.u32 %r9, %r9, 1000;\n\
         setp.lt.u64 %p0, %rd3, 5000;\n@%p0 bra B;\n{STORE}"
    ));
    let config = LaunchConfig::linear(3, 64);
    let once = || {
        let (result, out) = run(&program, &config, &options(1));
        clean(result);
        out
    };
    let out = once();
    assert_eq!(out, once());
    // A sleep of 300 passes 300: fewer looks than steps.
    assert!(out.iter().all(|n| (1000..=17_000).contains(&(n / 1000 * 1000)) && n % 1000 > 20), "{out:?}");
    let (result, _) = run(&program, &config, &options(2));
    clean(result);
}

#[test]
fn a_wait_with_a_time_limit_ends() {
    // The clock is looked at first and its register is overwritten, so that every turn ends in the same state.
    let program = kernel(&format!(
        "mov.u32 %r9, %clock;\nL:\nmov.u32 %r3, %clock;\nsub.u32 %r3, %r3, %r9;\nsetp.gt.u32 %p0, %r3, 100000;\n\
         mov.u32 %r3, 0;\n@%p0 bra OUT;\nld.relaxed.gpu.global.u32 %r3, [%rd0];\nsetp.eq.u32 %p1, %r3, 0xEEEEEEEE;\n\
         @%p1 bra L;\nOUT:\nmov.u32 %r9, 5;\nbar.sync 0;\n{STORE}"
    ));
    for threads in [1, 2] {
        // What is polled is overwritten in the end, which racecheck would report.
        let options = Options { sanitizers: Sanitizers::SYNCCHECK, ..options(threads) };
        let (result, out) = run(&program, &LaunchConfig::linear(2, 32), &options);
        clean(result);
        assert_eq!(out, [5; 64]);
    }
}

/// The messages and lines of the deadlocks of one block of `threads` threads.
fn deadlocks(body: &str, blocks: u32, threads: u32) -> Vec<(u32, String)> {
    let config = LaunchConfig::linear(blocks, threads);
    let (result, _) = run(&kernel(body), &config, &options(1));
    let report = result.unwrap_or_else(|e| panic!("{e}"));
    assert!(report.findings.iter().all(|f| f.kind == "deadlock"), "{:?}", report.findings);
    report.findings.into_iter().map(|f| (f.line, f.message)).collect()
}

#[test]
fn a_deadlock_says_who_waits_for_what() {
    let said = |body: &str, threads: u32, want: &[(u32, &str)]| {
        let got = deadlocks(body, 1, threads);
        let got: Vec<_> = got.iter().map(|(line, text)| (*line, text.as_str())).collect();
        assert_eq!(got, want);
    };
    said(
        "bar.sync 1, 96;",
        64,
        &[(
            14,
            "warps 0-1 wait for ever: barrier 1 waits for 96 threads and has 64; the block has no other threads",
        )],
    );
    said(
        "setp.lt.u32 %p0, %r0, 32;\n@%p0 exit;\nbar.sync 3, 96;",
        96,
        &[(16, "warps 1-2 wait for ever: barrier 3 waits for 96 threads and has 64; warp 0 has exited")],
    );
    said(
        "setp.ge.u32 %p0, %r0, 64;\n@%p0 bra OTHER;\nbar.sync 0;\nbra END;\nOTHER:\nbar.sync 1;\nEND:",
        96,
        &[
            (
                16,
                "warps 0-1 wait for ever: barrier 0 waits for all 96 threads and has 64; warp 2 stands at line 19 \
                 (barrier 1)",
            ),
            (
                19,
                "warp 2 waits for ever: barrier 1 waits for all 96 threads and has 32; warps 0-1 stand at line 16 \
                 (barrier 0)",
            ),
        ],
    );
    said(
        "setp.ge.u32 %p0, %r0, 16;\n@%p0 bra OTHER;\nshfl.sync.bfly.b32 %r2, %r0, 1, 31, 0xffffffff;\nbra END;\n\
         OTHER:\nbarrier.sync 0;\nEND:",
        32,
        &[
            (
                16,
                "lanes 0x0000ffff of warp 0 wait for ever: the warp collective waits for lanes 0xffff0000; lanes \
                 0xffff0000 of warp 0 stand at line 19 (barrier 0)",
            ),
            (
                19,
                "lanes 0xffff0000 of warp 0 wait for ever: barrier 0 waits for all 32 threads and has 16; lanes \
                 0x0000ffff of warp 0 stand at line 16 (warp collective)",
            ),
        ],
    );
}

#[test]
fn polling_for_ever_is_a_deadlock() {
    // Nobody sets the flag: blocks 0 to 2 poll it, the last one has exited.
    let body = "setp.eq.u32 %p0, %r1, 3;\n@%p0 exit;\nSPIN:\nld.relaxed.gpu.global.u32 %r2, [%rd0];\n\
                setp.ne.u32 %p1, %r2, 5;\n@%p1 bra SPIN;";
    let want = "warp 0 polls for ever: no thread is left that could change what is read here";
    let got = deadlocks(body, 4, 32);
    assert_eq!(got.len(), 1, "{got:?}");
    assert_eq!((got[0].0, got[0].1.as_str()), (17, want));
    // The same on two workers, and as a fault without synccheck.
    for threads in [1, 2] {
        let options = Options { threads, ..Options::fast() };
        let (result, _) = run(&kernel(body), &LaunchConfig::linear(4, 32), &options);
        let Err(LaunchError::Fault { fault: Fault::Deadlock { message, .. }, .. }) = result else {
            panic!("a deadlock")
        };
        assert_eq!(message, format!("no thread of the grid can go on; line 17: {want}"));
    }
}

#[test]
fn a_lock_that_is_never_released_is_a_deadlock() {
    // A compare-and-swap that fails changes nothing, so the threads that try it wait.
    let body = "SPIN:\natom.global.cas.b32 %r2, [%rd0], 0xEEEEEEEE, 1;\nsetp.ne.u32 %p0, %r2, 0xEEEEEEEE;\n@%p0 bra SPIN;";
    let got = deadlocks(body, 2, 1);
    assert_eq!(got.len(), 1, "{got:?}");
    assert_eq!(got[0].0, 15);
}

#[test]
fn many_ordinary_blocks_need_no_room() {
    // Long loops that only compute are no reason to begin other blocks.
    let body = "mov.u32 %r9, 0;\nL:\nadd.u32 %r9, %r9, 1;\nsetp.lt.u32 %p0, %r9, 3000;\n@%p0 bra L;";
    let program = kernel(&format!("{body}\n{STORE}"));
    let options = Options { max_resident_blocks: 1, ..Options::fast() };
    let (result, out) = run(&program, &LaunchConfig::linear(2000, 32), &options);
    clean(result);
    assert!(out.iter().all(|v| *v == 3000));
}

/// A kernel `k(out)` for sm_90 whose body may use `%p`, `%r` and `%rd`; `%rd0` holds `out`, `%r0` the thread, `%r1` the
/// block, `%r2` the address of 256 bytes of shared memory.
fn cluster_kernel(body: &str) -> Program {
    let text = format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 out)\n{{\n.reg .pred %p<8>;\n\
         .reg .b32 %r<16>;\n.reg .b64 %rd<16>;\n.shared .align 16 .b32 tile[64];\nld.param.u64 %rd0, [out];\n\
         mov.u32 %r0, %tid.x;\nmov.u32 %r1, %ctaid.x;\nmov.u32 %r2, tile;\n{body}\nret;\n}}\n"
    );
    Program::load(&text).unwrap_or_else(|e| panic!("{e}"))
}

fn clusters(blocks: u32, threads: u32, size: u32) -> LaunchConfig {
    LaunchConfig { cluster: [size, 1, 1], ..LaunchConfig::linear(blocks, threads) }
}

#[test]
fn a_deadlock_in_a_cluster_says_who_is_missing() {
    let program = cluster_kernel(
        "setp.eq.u32 %p0, %r1, 1;\n@%p0 bra OTHER;\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n\
         bra END;\nOTHER:\nbar.sync 1, 64;\nEND:",
    );
    let (result, _) = run(&program, &clusters(2, 32, 2), &options(1));
    let report = result.unwrap_or_else(|e| panic!("{e}"));
    let said: Vec<_> = report.findings.iter().map(|f| (f.line, f.message.as_str())).collect();
    assert_eq!(
        said,
        [
            (
                17,
                "warp 0 waits for ever: the cluster barrier waits for all 64 threads and has 32; in block 1 of the \
                 cluster warp 0 stands at line 20 (barrier 1)"
            ),
            (
                20,
                "warp 0 waits for ever: barrier 1 waits for 64 threads and has 32; the block has no other threads"
            ),
        ]
    );
}

#[test]
fn impossible_clusters_are_refused() {
    let fixed = Program::load(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 out)\n\
         .reqnctapercluster 2, 1, 1\n{\nret;\n}\n",
    )
    .unwrap_or_else(|e| panic!("{e}"));
    let refused = |program: &Program, config: &LaunchConfig| {
        run(program, config, &options(1)).0.expect_err("refused").to_string()
    };
    let plain = kernel("");
    assert!(
        refused(&plain, &clusters(17, 32, 17)).contains("a cluster of [17, 1, 1] has 17 blocks; at most 16")
    );
    assert!(refused(&plain, &clusters(3, 32, 2)).contains("is not a multiple of the cluster"));
    assert!(refused(&fixed, &clusters(4, 32, 4)).contains("requires clusters of [2, 1, 1], got [4, 1, 1]"));
    assert!(
        refused(&fixed, &LaunchConfig::linear(3, 32)).contains("is not a multiple of the cluster [2, 1, 1]")
    );
    clean(run(&fixed, &LaunchConfig::linear(4, 32), &options(1)).0);
}

const CLUSTER_BARRIER: &str = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;";

#[test]
fn a_cluster_reduces_through_distributed_shared_memory() {
    // Every block sums its numbers with atomics of its own; then every thread of rank 0 fetches the sum of a block.
    let program = cluster_kernel(&format!(
        "setp.eq.u32 %p0, %r0, 0;\n@%p0 st.shared.u32 [%r2], 0;\nbar.sync 0;\nmad.lo.u32 %r3, %r1, 64, %r0;\n\
         red.shared.add.u32 [%r2], %r3;\n{CLUSTER_BARRIER}\nmov.u32 %r9, 0;\nmov.u32 %r4, 0;\nSUM:\n\
         mapa.shared::cluster.u32 %r5, %r2, %r4;\nld.shared::cluster.u32 %r6, [%r5];\nadd.u32 %r9, %r9, %r6;\n\
         add.u32 %r4, %r4, 1;\nsetp.lt.u32 %p1, %r4, 8;\n@%p1 bra SUM;\n{CLUSTER_BARRIER}\n{STORE}"
    ));
    for threads in [1, 2] {
        for seed in 0..3 {
            let options = Options { seed, ..options(threads) };
            let (result, out) = run(&program, &clusters(32, 64, 8), &options);
            clean(result);
            let sum = |cluster: u32| (512 * cluster..512 * (cluster + 1)).sum::<u32>();
            assert!(out.iter().enumerate().all(|(i, v)| *v == sum(i as u32 / 512)), "{out:?}");
        }
    }
}

#[test]
fn a_block_sets_a_flag_in_another_block() {
    // Rank 1 polls a flag in its own shared memory, which rank 0 sets after the value; blocks of a cluster take turns.
    let program = cluster_kernel(&format!(
        "setp.eq.u32 %p0, %r0, 0;\n@%p0 st.shared.v2.u32 [%r2], {{%r0, %r0}};\n{CLUSTER_BARRIER}\nmov.u32 %r9, 0;\n\
         mov.u32 %r3, %cluster_ctarank;\nsetp.eq.u32 %p1, %r3, 1;\n@%p1 bra READ;\n@!%p0 bra END;\n\
         mapa.shared::cluster.u32 %r4, %r2, 1;\nst.shared::cluster.u32 [%r4], 4711;\n\
         st.release.cluster.shared::cluster.u32 [%r4+4], 1;\nbra END;\nREAD:\n\
         ld.acquire.cluster.shared::cta.u32 %r5, [%r2+4];\nsetp.eq.u32 %p2, %r5, 0;\n@%p2 bra READ;\n\
         ld.shared.u32 %r9, [%r2];\nEND:\n{CLUSTER_BARRIER}\n{STORE}"
    ));
    for seed in 0..4 {
        let options = Options { seed, ..options(1) };
        let (result, out) = run(&program, &clusters(4, 32, 2), &options);
        clean(result);
        assert!(out.iter().enumerate().all(|(i, v)| *v == if i / 32 % 2 == 1 { 4711 } else { 0 }), "{out:?}");
    }
}
