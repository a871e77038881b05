//! Threads that poll in vain: loops that count their polls, read clocks or sleep are found as well as plain ones, and
//! their twins, whose flag comes late or whose limit ends them, go on as they would on a device.

mod support;

use std::time::{Duration, Instant};

use support::{STORE, kernel, run};
use warpwright_emu::{
    Fault, LaunchConfig, LaunchError, Memory, Options, Program, Report, Sanitizers, launch,
};

/// Long enough for a machine that is busy; a loop that is not seen through never ends.
fn options(threads: usize) -> Options {
    Options { threads, deadline: Some(Instant::now() + Duration::from_secs(60)), ..Options::default() }
}

/// A kernel as [`kernel`], for sm_90, with `bar`, an mbarrier of one arrival whose address is in `%r8`.
fn barrier_kernel(body: &str) -> Program {
    let text = format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 out)\n{{\n.reg .pred %p<8>;\n\
         .reg .b32 %r<16>;\n.reg .b64 %rd<16>;\n.shared .align 8 .b64 bar;\nld.param.u64 %rd0, [out];\n\
         mov.u32 %r0, %tid.x;\nmov.u32 %r1, %ctaid.x;\nmov.u32 %r8, bar;\nsetp.eq.u32 %p0, %r0, 0;\n\
         @%p0 mbarrier.init.shared.b64 [%r8], 1;\nbar.sync 0;\n{body}\nret;\n}}\n"
    );
    Program::load(&text).unwrap_or_else(|e| panic!("{e}"))
}

/// Lines and messages of the deadlocks of a launch, which finds nothing else, with one and two workers.
fn stuck(program: &Program, config: &LaunchConfig) -> Vec<(u32, String)> {
    let each = [1, 2].map(|threads| {
        let (result, _) = run(program, config, &options(threads));
        let report = result.unwrap_or_else(|e| panic!("{threads}: {e}"));
        assert!(report.findings.iter().all(|f| f.kind == "deadlock"), "{:?}", report.findings);
        report.findings.into_iter().map(|f| (f.line, f.message)).collect::<Vec<_>>()
    });
    assert_eq!(each[0], each[1]);
    each.into_iter().next().unwrap_or_default()
}

const FOR_EVER: &str = "warp 0 polls for ever: no thread is left that could change what is read here";

/// Checks that one warp is found to poll for ever at `line`, as `ends` says.
fn polls_for_ever(program: &Program, blocks: u32, line: u32, ends: &str) {
    let got = stuck(program, &LaunchConfig::linear(blocks, 32));
    assert_eq!(got, [(line, format!("{FOR_EVER}{ends}"))]);
}

fn clean(result: Result<Report, LaunchError>) {
    let report = result.unwrap_or_else(|e| panic!("{e}"));
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// The results of a clean launch, the same with one and two workers.
fn results(program: &Program, config: &LaunchConfig) -> Vec<u32> {
    let each = [1, 2].map(|threads| {
        // What is polled is the buffer of the results, and racecheck would report that it is overwritten.
        let sanitizers = Sanitizers::all() - Sanitizers::RACECHECK;
        let (result, out) = run(program, config, &Options { sanitizers, ..options(threads) });
        clean(result);
        out
    });
    assert_eq!(each[0], each[1]);
    each.into_iter().next().unwrap_or_default()
}

/// Polls the first result, which nobody sets to 5, and does `more` between two polls.
fn flag(more: &str) -> Program {
    kernel(&format!(
        "mov.u32 %r4, 0;\nmov.u64 %rd6, 0;\nmov.u64 %rd4, %globaltimer;\nSPIN:\nld.relaxed.gpu.global.u32 %r2, [%rd0];\n\
         setp.eq.u32 %p1, %r2, 5;\n@%p1 bra END;\n{more}\nbra SPIN;\nEND:"
    ))
}
const FLAG_LINE: u32 = 18;

#[test]
fn a_counter_that_decides_nothing_does_not_hide_a_deadlock() {
    for blocks in [1, 3] {
        polls_for_ever(&flag("add.u32 %r4, %r4, 1;"), blocks, FLAG_LINE, "");
    }
    // After some polls the loop sleeps, longer and longer.
    polls_for_ever(
        &flag(
            "add.u32 %r4, %r4, 1;\nsetp.lt.u32 %p2, %r4, 16;\n@%p2 bra SPIN;\nmin.u32 %r5, %r4, 1000;\n\
             nanosleep.u32 %r5;",
        ),
        1,
        FLAG_LINE,
        "",
    );
}

#[test]
fn clocks_that_decide_nothing_do_not_hide_a_deadlock() {
    polls_for_ever(&flag("mov.u64 %rd5, %clock64;\nadd.u64 %rd6, %rd6, %rd5;"), 2, FLAG_LINE, "");
    // The back-off of libcu++: no sleep at first, then a quarter of the time that has passed, at most a millisecond.
    polls_for_ever(
        &flag(
            "setp.lt.u32 %p2, %r4, 16;\n@%p2 add.u32 %r4, %r4, 1;\n@%p2 bra SPIN;\nmov.u64 %rd5, %globaltimer;\n\
             sub.u64 %rd5, %rd5, %rd4;\nshr.s64 %rd6, %rd5, 2;\nsetp.gt.s64 %p3, %rd6, 999999;\n@%p3 bra LONG;\n\
             setp.lt.s64 %p4, %rd6, 10000;\n@%p4 bra SPIN;\ncvt.u32.u64 %r5, %rd6;\nnanosleep.u32 %r5;\nbra SPIN;\nLONG:\n\
             nanosleep.u32 1000000;",
        ),
        2,
        FLAG_LINE,
        "",
    );
}

#[test]
fn a_deadline_that_never_passes_is_a_deadlock() {
    // The deadline is data, as it is where a wait without one calls the same function.
    let program = flag(
        "mov.u64 %rd5, %globaltimer;\nsub.u64 %rd5, %rd5, %rd4;\nld.param.u64 %rd6, [out];\n\
         or.b64 %rd6, %rd6, 0x7fffffffffffffff;\nsetp.gt.u64 %p2, %rd5, %rd6;\n@%p2 bra END;\nnanosleep.u32 100;",
    );
    polls_for_ever(&program, 2, FLAG_LINE, ", and 833 days on the clocks do not end the loop");
}

#[test]
fn a_count_that_is_never_reached_is_a_deadlock() {
    let program = flag("add.u32 %r4, %r4, 1;\nsetp.eq.u32 %p2, %r4, 0x7fffffff;\n@%p2 bra END;");
    polls_for_ever(&program, 1, FLAG_LINE, ", and 2097152 polls do not end the loop");
    // Another flag is looked at now and then: the count starts again, and the state comes back.
    let program = flag(
        "add.u32 %r4, %r4, 1;\nsetp.lt.u32 %p2, %r4, 10000;\n@%p2 bra SPIN;\nmov.u32 %r4, 0;\n\
         ld.volatile.global.u32 %r3, [%rd0+4];\nsetp.eq.u32 %p3, %r3, 1;\n@!%p3 bra SPIN;\ntrap;",
    );
    polls_for_ever(&program, 1, FLAG_LINE, "");
}

#[test]
fn without_synccheck_it_is_a_fault() {
    let options = Options { deadline: options(1).deadline, threads: 1, ..Options::fast() };
    let program = flag("add.u32 %r4, %r4, 1;\nmov.u64 %rd5, %clock64;");
    let (result, _) = run(&program, &LaunchConfig::linear(1, 32), &options);
    let Err(LaunchError::Fault { fault: Fault::Deadlock { message, .. }, .. }) = result else {
        panic!("a deadlock: {result:?}")
    };
    assert_eq!(message, format!("no thread of the grid can go on; line {FLAG_LINE}: {FOR_EVER}"));
}

/// `barrier::wait` of libcu++: tries, then sleeps by the time that has passed. `more` may leave for `END`.
fn wait(instruction: &str, more: &str) -> String {
    format!(
        "mov.u32 %r4, 0;\nmov.u32 %r9, 0;\nmov.u64 %rd4, %globaltimer;\nTRY:\n\
         mbarrier.{instruction}.parity.shared::cta.b64 %p1, [%r8], 0;\n@%p1 bra END;\n{more}\n\
         setp.gt.s32 %p2, %r4, 15;\n@%p2 bra SLEEP;\nadd.s32 %r4, %r4, 1;\nbra TRY;\nSLEEP:\nmov.u64 %rd5, %globaltimer;\n\
         sub.u64 %rd5, %rd5, %rd4;\nshr.s64 %rd6, %rd5, 2;\nsetp.lt.s64 %p3, %rd6, 10000;\n@%p3 bra TRY;\n\
         cvt.u32.u64 %r5, %rd6;\nnanosleep.u32 %r5;\nbra TRY;\nEND:"
    )
}

#[test]
fn a_barrier_of_libcuxx_that_nobody_arrives_at_is_a_deadlock() {
    let program = barrier_kernel(&wait("try_wait", ""));
    for blocks in [1, 3] {
        let got = stuck(&program, &LaunchConfig::linear(blocks, 32));
        let want = "warp 0 waits for ever; the block has no other threads; the mbarrier at `bar` + 0: phase 0 still waits \
                    for 1 of 1 arrivals";
        assert_eq!(got, [(21, want.to_owned())], "{blocks}");
    }
    polls_for_ever(&barrier_kernel(&wait("test_wait", "")), 2, 21, "");
    // Only one of two threads waits, and the other has exited.
    let lone = format!("@!%p0 exit;\n{}", wait("test_wait", ""));
    let got = stuck(&barrier_kernel(&lone), &LaunchConfig::linear(1, 2));
    assert_eq!(got, [(22, FOR_EVER.to_owned())]);
}

#[test]
fn a_barrier_of_libcuxx_may_be_arrived_at_late() {
    for instruction in ["try_wait", "test_wait"] {
        // The second warp needs ten milliseconds before it arrives.
        let program = barrier_kernel(&format!(
            "setp.ge.u32 %p5, %r0, 32;\n@%p5 bra LATE;\n{}\nmov.u32 %r9, 7;\n{STORE}\nret;\nLATE:\n\
             mov.u64 %rd4, %globaltimer;\nLOOP:\nmov.u64 %rd5, %globaltimer;\nsub.u64 %rd5, %rd5, %rd4;\n\
             setp.lt.u64 %p6, %rd5, 10000000;\n@%p6 bra LOOP;\nsetp.eq.u32 %p7, %r0, 32;\n\
             @%p7 mbarrier.arrive.shared::cta.b64 _, [%r8];\nmov.u32 %r9, 3;\n{STORE}",
            wait(instruction, "")
        ));
        let out = results(&program, &LaunchConfig::linear(2, 64));
        assert!(out.iter().enumerate().all(|(i, v)| *v == if i % 64 < 32 { 7 } else { 3 }), "{out:?}");
    }
}

#[test]
fn a_wait_that_is_given_up_ends() {
    // By time, after a second on the clocks.
    let by_time = "mov.u64 %rd7, %globaltimer;\nsub.u64 %rd7, %rd7, %rd4;\nsetp.gt.u64 %p4, %rd7, 1000000000;\n\
                   selp.u32 %r9, 9, 0, %p4;\n@%p4 bra END;";
    // By count: as often as no other limit of the emulator's.
    let by_count = "add.u32 %r9, %r9, 1;\nsetp.eq.u32 %p4, %r9, 100000;\n@%p4 mov.u32 %r9, 9;\n@%p4 bra END;";
    for more in [by_time, by_count] {
        for instruction in ["try_wait", "test_wait"] {
            let program = barrier_kernel(&format!("{}\n{STORE}", wait(instruction, more)));
            assert_eq!(results(&program, &LaunchConfig::linear(2, 32)), [9; 64], "{instruction}: {more}");
        }
    }
}

#[test]
fn a_count_ends_a_loop_as_on_a_device() {
    let program = kernel(&format!(
        "mov.u32 %r9, 0;\nSPIN:\nld.relaxed.gpu.global.u32 %r2, [%rd0];\nsetp.eq.u32 %p1, %r2, 5;\n@%p1 bra END;\n\
         add.u32 %r9, %r9, 1;\nsetp.lt.u32 %p2, %r9, 100000;\n@%p2 bra SPIN;\nEND:\nbar.sync 0;\n{STORE}"
    ));
    let sanitizers = Sanitizers::SYNCCHECK;
    let (result, out) = run(&program, &LaunchConfig::linear(1, 64), &Options { sanitizers, ..options(1) });
    clean(result);
    assert_eq!(out, [100_000; 64]);
}

/// One warp sets a flag when `set` nanoseconds have passed; the other waits for it for `limit` nanoseconds and stores
/// whether it came.
fn deadlines(set: u64, limit: u64, clock: &str) -> u32 {
    let program = kernel(&format!(
        "mov.u32 %r2, tile;\nsetp.eq.u32 %p0, %r0, 0;\n@%p0 st.shared.u32 [%r2], 0;\nbar.sync 0;\n\
         mov.u64 %rd4, {clock};\nsetp.ge.u32 %p1, %r0, 32;\n@%p1 bra SET;\nmov.u32 %r9, 1;\nWAIT:\n\
         ld.acquire.cta.shared.u32 %r3, [%r2];\nsetp.eq.u32 %p2, %r3, 1;\n@%p2 bra END;\nmov.u64 %rd5, {clock};\n\
         sub.u64 %rd5, %rd5, %rd4;\nsetp.lt.u64 %p3, %rd5, {limit};\n@%p3 bra WAIT;\nmov.u32 %r9, 0;\nbra END;\nSET:\n\
         mov.u64 %rd5, {clock};\nsub.u64 %rd5, %rd5, %rd4;\nsetp.lt.u64 %p3, %rd5, {set};\n@%p3 bra SET;\n\
         setp.eq.u32 %p4, %r0, 32;\n@%p4 st.release.cta.shared.u32 [%r2], 1;\nmov.u32 %r9, 2;\nEND:\n{STORE}"
    ));
    let out = results(&program, &LaunchConfig::linear(1, 64));
    assert!(out[..32].iter().all(|v| *v == out[0]) && out[32..].iter().all(|v| *v == 2), "{out:?}");
    out[0]
}

#[test]
fn deadlines_come_in_their_order() {
    for clock in ["%globaltimer", "%clock64"] {
        for time in [10_000, 1_000_000, 3_000_000_000] {
            assert_eq!(deadlines(time, 2 * time, clock), 1, "{time}");
            assert_eq!(deadlines(2 * time, time, clock), 0, "{time}");
        }
    }
}

#[test]
fn a_wait_that_is_tried_again_and_again_ends_after_the_last_time() {
    // A millisecond passes five hundred times.
    let program = kernel(&format!(
        "mov.u32 %r9, 0;\nAGAIN:\nmov.u64 %rd4, %globaltimer;\nSPIN:\nld.relaxed.gpu.global.u32 %r2, [%rd0];\n\
         setp.eq.u32 %p1, %r2, 5;\n@%p1 bra END;\nmov.u64 %rd5, %globaltimer;\nsub.u64 %rd5, %rd5, %rd4;\n\
         setp.lt.u64 %p2, %rd5, 1000000;\n@%p2 bra SPIN;\nadd.u32 %r9, %r9, 1;\nsetp.lt.u32 %p3, %r9, 500;\n\
         @%p3 bra AGAIN;\nEND:\nbar.sync 0;\n{STORE}"
    ));
    assert_eq!(results(&program, &LaunchConfig::linear(1, 32)), [500; 32]);
}

#[test]
fn warps_sleep_at_the_same_time() {
    // Every warp sleeps a hundred times a microsecond, and stores how many microseconds that took.
    let program = kernel(&format!(
        "mov.u64 %rd4, %globaltimer;\nmov.u32 %r3, 0;\nLOOP:\nnanosleep.u32 1000;\nadd.u32 %r3, %r3, 1;\n\
         setp.lt.u32 %p1, %r3, 100;\n@%p1 bra LOOP;\nmov.u64 %rd5, %globaltimer;\nsub.u64 %rd5, %rd5, %rd4;\n\
         div.u64 %rd5, %rd5, 1000;\ncvt.u32.u64 %r9, %rd5;\n{STORE}"
    ));
    let (result, out) = run(&program, &LaunchConfig::linear(1, 256), &options(1));
    clean(result);
    assert!(out.iter().all(|t| (100..150).contains(t)), "{out:?}");
}

#[test]
fn a_flag_that_another_block_sets_late_is_seen() {
    // Block 1 sleeps for long before it sets the flag; block 0 counts polls and looks at clocks meanwhile.
    let program = kernel(&format!(
        "mov.u32 %r9, 0;\nsetp.eq.u32 %p0, %r1, 1;\n@%p0 bra SET;\nSPIN:\nld.acquire.gpu.global.u32 %r2, [%rd0+128];\n\
         add.u32 %r4, %r4, 1;\nmov.u64 %rd5, %clock64;\nnanosleep.u32 50;\nsetp.ne.u32 %p1, %r2, 77;\n@%p1 bra SPIN;\n\
         mov.u32 %r9, 1;\n{STORE}\nret;\nSET:\nmov.u32 %r3, 0;\nLOOP:\nnanosleep.u32 1000000;\nadd.u32 %r3, %r3, 1;\n\
         setp.lt.u32 %p2, %r3, 3000;\n@%p2 bra LOOP;\nmov.u32 %r9, 77;\nbar.sync 0;\nst.release.gpu.global.u32 [%rd0+128], %r9;"
    ));
    for threads in [1, 2] {
        let options = Options { sanitizers: Sanitizers::SYNCCHECK, ..options(threads) };
        let (result, out) = run(&program, &LaunchConfig::linear(2, 32), &options);
        clean(result);
        assert_eq!(out[..32], [1; 32]);
    }
}

/// All threads of a block look at a flag between barriers, as `__syncthreads_or` does if `reduce` says so.
fn together(count: &str, reduce: bool) -> Program {
    let meet = if reduce {
        "setp.eq.u32 %p1, %r2, 5;\nbarrier.red.or.pred %p1, 0, %p1;"
    } else {
        // Lanes of a warp may see the flag at different times.
        "shfl.sync.idx.b32 %r2, %r2, 0, 31, -1;\nbar.sync 0;\nsetp.eq.u32 %p1, %r2, 5;"
    };
    kernel(&format!(
        "mov.u32 %r4, 0;\nmov.u32 %r2, 0;\nsetp.eq.u32 %p5, %r1, 1;\n@%p5 bra SET;\nLOOP:\n\
         ld.acquire.gpu.global.u32 %r2, [%rd0];\n{meet}\n{count}\n@!%p1 bra LOOP;\nSET:\n\
         setp.eq.u32 %p6, %r0, 0;\nand.pred %p6, %p5, %p6;\n@%p6 st.release.gpu.global.u32 [%rd0], 5;"
    ))
}

#[test]
fn blocks_that_meet_at_barriers_to_poll_are_deadlocked_together() {
    for reduce in [false, true] {
        let program = together("add.u32 %r4, %r4, 1;", reduce);
        let got = stuck(&program, &LaunchConfig::linear(1, 64));
        assert!(!got.is_empty(), "{reduce}");
        // With the second block, which sets the flag after the first has begun to poll, they end.
        for threads in [1, 2] {
            let options = Options { sanitizers: Sanitizers::SYNCCHECK, ..options(threads) };
            clean(run(&program, &LaunchConfig::linear(2, 64), &options).0);
        }
    }
}

#[test]
fn lanes_that_poll_do_not_hide_those_that_set_the_flag() {
    // Three groups of lanes: two poll and one sets the flag after a thousand turns of its own.
    let program = kernel(&format!(
        "mov.u32 %r2, tile;\nsetp.eq.u32 %p0, %r0, 0;\n@%p0 st.shared.u32 [%r2], 0;\nbar.warp.sync 0xffffffff;\n\
         mov.u32 %r9, 0;\nsetp.lt.u32 %p1, %r0, 8;\n@%p1 bra FIRST;\nsetp.lt.u32 %p1, %r0, 16;\n@%p1 bra SECOND;\nLOOP:\n\
         ld.volatile.shared.u32 %r3, [%r2];\nadd.u32 %r9, %r9, 1;\nsetp.lt.u32 %p2, %r9, 1000;\n@%p2 bra LOOP;\n\
         setp.eq.u32 %p3, %r0, 31;\n@%p3 st.volatile.shared.u32 [%r2], 1;\nbra END;\nFIRST:\n\
         ld.volatile.shared.u32 %r3, [%r2];\nsetp.ne.u32 %p2, %r3, 1;\n@%p2 bra FIRST;\nbra END;\nSECOND:\n\
         ld.volatile.shared.u32 %r3, [%r2];\nsetp.ne.u32 %p2, %r3, 1;\n@%p2 bra SECOND;\nEND:\n{STORE}"
    ));
    let out = results(&program, &LaunchConfig::linear(1, 32));
    assert!(out.iter().enumerate().all(|(i, v)| *v == if i < 16 { 0 } else { 1000 }), "{out:?}");
}

#[test]
fn launches_on_the_same_memory_wait_for_each_other() {
    // The setter says that it has begun, computes for long, and sets the flag; then the other one is launched.
    let set = kernel(
        "st.relaxed.gpu.global.u32 [%rd0+4], 1;\nmov.u32 %r9, 0;\nL:\nadd.u32 %r9, %r9, 1;\nsetp.lt.u32 %p0, %r9, 3000000;\n\
         @%p0 bra L;\nst.release.gpu.global.u32 [%rd0], 5;",
    );
    for more in ["", "add.u32 %r4, %r4, 1;"] {
        let wait = flag(more);
        let memory = Memory::new();
        let out = memory.alloc(256, "out").expect("memory");
        memory.fill(out, 0, 256).expect("fill");
        let go = |program: &Program| {
            let options = Options { sanitizers: Sanitizers::SYNCCHECK, ..options(1) };
            launch(program, "k", &LaunchConfig::linear(1, 1), &out.to_le_bytes(), &memory, &options)
        };
        std::thread::scope(|scope| {
            let setter = scope.spawn(|| go(&set));
            let mut begun = [0; 4];
            while begun == [0; 4] {
                memory.read(out + 4, &mut begun).expect("the buffer");
            }
            clean(go(&wait));
            clean(setter.join().expect("the thread launches"));
        });
    }
}
