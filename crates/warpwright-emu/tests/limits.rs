//! Launches that are ended from outside: step limits, deadlines and interrupts.

mod support;

use std::time::{Duration, Instant};

use support::{STORE, kernel, load, run};
use warpwright_emu::{Fault, Interrupt, LaunchConfig, LaunchError, Memory, Options, Program, Report, launch};

/// Counts for ever.
const ENDLESS: &str = "mov.u32 %r9, 0;\nL:\nadd.u32 %r9, %r9, 1;\nbra L;";

/// Straight code of `n` additions.
fn straight(n: usize) -> String {
    "add.u32 %r9, %r9, 1;\n".repeat(n)
}

fn fault(result: Result<Report, LaunchError>) -> (Fault, Report) {
    match result {
        Err(LaunchError::Fault { kernel, fault, report }) => {
            assert_eq!(kernel, "k");
            (fault, *report)
        }
        other => panic!("a fault, not {other:?}"),
    }
}

/// Kernels of different shapes that end, and how they are launched.
fn ending() -> Vec<(&'static str, Program, LaunchConfig)> {
    let straight = format!("mov.u32 %r9, 0;\n{}{STORE}", straight(6000));
    let body = format!(
        "mov.u32 %r9, 0;\nL:\n{}setp.lt.u32 %p0, %r9, 20000;\n@%p0 bra L;\n{STORE}",
        self::straight(100)
    );
    // Lanes leave the loop at different times.
    let divergent = format!(
        "mov.u32 %r9, 0;\nmul.lo.u32 %r8, %r0, 50;\nL:\nadd.u32 %r9, %r9, 1;\nsetp.lt.u32 %p0, %r9, %r8;\n\
         @%p0 bra L;\nbar.sync 0;\n{STORE}"
    );
    vec![
        ("straight", kernel(&straight), LaunchConfig::linear(1, 32)),
        ("loop", kernel(&body), LaunchConfig::linear(2, 96)),
        ("divergent", kernel(&divergent), LaunchConfig::linear(3, 64)),
        ("many blocks", kernel(&format!("mov.u32 %r9, 1;\n{STORE}")), LaunchConfig::linear(700, 32)),
    ]
}

#[test]
fn a_step_limit_is_the_number_of_instructions_that_a_launch_needs() {
    for (name, program, config) in ending() {
        let limited = |max_steps, threads| {
            let options = Options { max_steps, threads, ..Options::default() };
            run(&program, &config, &options).0
        };
        let needs = limited(0, 1).expect(name).steps;
        assert!(needs > 1000, "{name}: {needs}");
        for threads in [1, 2] {
            assert_eq!(limited(needs, threads).expect(name).steps, needs, "{name}");
            for steps in [1, 777, needs / 2, needs - 1] {
                let (fault, report) = fault(limited(steps, threads));
                let Fault::StepLimit { steps: limit, .. } = fault else { panic!("{name}: {fault}") };
                assert_eq!(limit, steps, "{name}");
                // One worker stops at the very instruction, several take the rest in parts.
                let slack = if threads == 1 { 0 } else { 2 * 4096 };
                let ran = report.steps;
                assert!((steps..=(steps + slack).min(needs)).contains(&ran), "{name}: {ran} of {steps}");
            }
        }
    }
}

#[test]
fn a_step_limit_inside_straight_code_says_where() {
    let program = kernel(&format!("mov.u32 %r9, 0;\n{}{STORE}", straight(50_000)));
    let options = Options { max_steps: 30_000, threads: 1, ..Options::default() };
    let (fault, report) = fault(run(&program, &LaunchConfig::linear(1, 32), &options).0);
    let Fault::StepLimit { block, positions, .. } = fault else { panic!("{fault}") };
    assert_eq!((block, report.steps), ([0; 3], 30_000));
    let line: u32 = positions.rsplit(' ').next().and_then(|n| n.parse().ok()).expect("a line at the end");
    assert!((29_990..30_050).contains(&line), "{positions}");
}

#[test]
fn a_step_limit_counts_all_blocks() {
    let program = kernel(&format!("mov.u32 %r9, 1;\n{STORE}"));
    for threads in [1, 2] {
        let options = Options { max_steps: 2000, threads, ..Options::default() };
        let (fault, _) = fault(run(&program, &LaunchConfig::linear(700, 32), &options).0);
        let Fault::StepLimit { block, .. } = fault else { panic!("{fault}") };
        assert!(block[0] > 10, "{block:?}");
    }
}

#[test]
fn limits_change_nothing_in_launches_that_keep_them() {
    for (name, program, config) in ending() {
        let with = |max_steps, deadline: Option<Instant>| {
            let interrupt = deadline.map(|_| Interrupt::new());
            let options =
                Options { max_steps, deadline, interrupt, threads: 1, counters: true, ..Options::default() };
            let (report, out) = run(&program, &config, &options);
            (report.expect(name), out)
        };
        let later = Some(Instant::now() + Duration::from_secs(3600));
        let free = with(0, None);
        assert!(free == with(1 << 40, later), "{name}");
        assert!(free == with(free.0.steps, None), "{name}");
    }
}

/// Runs `k` on a small buffer.
fn go(program: &Program, config: &LaunchConfig, options: &Options) -> Result<Report, LaunchError> {
    let memory = Memory::new();
    let out = memory.alloc(4096, "out").expect("memory");
    memory.fill(out, 0, 4096).expect("fill");
    launch(program, "k", config, &out.to_le_bytes(), &memory, options)
}

/// Kernels that go on for ever, each in its own way.
fn endless() -> Vec<(&'static str, Program, LaunchConfig)> {
    let body = |text: &str| kernel(text);
    let long = format!("mov.u32 %r9, 0;\nL:\n{}bra L;", straight(40_000));
    let halves = "mov.u32 %r9, 0;\nsetp.lt.u32 %p0, %r0, 7;\n@%p0 bra M;\nL:\nadd.u32 %r9, %r9, 1;\nbra L;\nM:\n\
                  add.u32 %r9, %r9, 3;\nbra M;";
    let waits = "setp.lt.u32 %p0, %r0, 32;\n@%p0 bra L;\nbar.sync 0;\nret;\nL:\nadd.u32 %r9, %r9, 1;\nbra L;";
    // A count may end it, so this is no deadlock for long.
    let polls = "mov.u32 %r7, 0;\nL:\nmov.u32 %r9, %clock;\nld.volatile.global.u32 %r8, [%rd0];\nadd.u32 %r7, %r7, 1;\n\
                 setp.ne.u32 %p0, %r8, %r7;\n@%p0 bra L;";
    let sleeps = "L:\nnanosleep.u32 100;\nmov.u32 %r9, %clock;\nbra L;";
    let calls = load(
        ".func f(.param .b32 n)\n{\n.reg .b32 %r<2>;\nld.param.b32 %r0, [n];\nadd.u32 %r0, %r0, 1;\nret;\n}\n\
         .visible .entry k(.param .u64 out)\n{\n.reg .b32 %r<4>;\nmov.u32 %r1, 0;\nL:\nadd.u32 %r1, %r1, 1;\n{\n\
         .param .b32 n;\nst.param.b32 [n], %r1;\ncall f, (n);\n}\nbra L;\n}\n",
    );
    vec![
        ("a loop", body(ENDLESS), LaunchConfig::linear(4, 64)),
        ("a long loop", kernel(&long), LaunchConfig::linear(2, 128)),
        ("two loops of a warp", body(halves), LaunchConfig::linear(1, 32)),
        ("a warp that others wait for", body(waits), LaunchConfig::linear(2, 64)),
        ("blocks that poll", body(polls), LaunchConfig::linear(6, 32)),
        ("warps that sleep", body(sleeps), LaunchConfig::linear(3, 64)),
        ("calls", calls, LaunchConfig::linear(1, 32)),
        ("two thousand million blocks", body("ret;"), LaunchConfig::linear(i32::MAX as u32, 32)),
    ]
}

/// The fault and the report of a launch that is interrupted after a while, and how long after that it ended.
fn interrupted_after(
    wait: Duration,
    (program, config): (&Program, &LaunchConfig),
    (threads, fast): (usize, bool),
) -> (Fault, Report, Duration) {
    let interrupt = Interrupt::new();
    let base = if fast { Options::fast() } else { Options::default() };
    let options = Options { threads, interrupt: Some(interrupt.clone()), ..base };
    let (result, late) = std::thread::scope(|scope| {
        let raised = scope.spawn(move || {
            std::thread::sleep(wait);
            interrupt.raise();
            Instant::now()
        });
        let result = go(program, config, &options);
        let ended = Instant::now();
        (result, ended - raised.join().expect("the thread sleeps and raises"))
    });
    let (fault, report) = fault(result);
    (fault, report, late)
}

#[test]
fn an_interrupt_ends_whatever_runs() {
    for (name, program, config) in endless() {
        for how in [(1, false), (2, false), (2, true)] {
            let after = |millis| interrupted_after(Duration::from_millis(millis), (&program, &config), how);
            // On a machine with other work a launch may not have begun after so long.
            let begun = [60, 500, 4000].into_iter().map(after).find(|(_, report, _)| report.steps > 0);
            let (fault, _, late) = begun.unwrap_or_else(|| panic!("{name}: nothing has run"));
            let Fault::Interrupted { positions, .. } = &fault else { panic!("{name}: {fault}") };
            assert!(positions.contains("warp") && positions.contains("line"), "{name}: {fault}");
            assert!(late < Duration::from_millis(500), "{name}, {how:?}: {late:?}");
        }
    }
}

#[test]
fn a_deadline_ends_whatever_runs() {
    for (name, program, config) in endless() {
        let begun = Instant::now();
        let limit = Duration::from_millis(60);
        let options = Options { threads: 2, deadline: Some(begun + limit), ..Options::default() };
        let (fault, _) = fault(go(&program, &config, &options));
        let Fault::TimeLimit { elapsed, positions, .. } = &fault else { panic!("{name}: {fault}") };
        assert!(positions.contains("line"), "{name}: {fault}");
        assert!(
            *elapsed >= Duration::from_millis(30) && *elapsed < Duration::from_millis(500),
            "{name}: {fault}"
        );
        assert!(begun.elapsed() < Duration::from_millis(600), "{name}");
    }
}

#[test]
fn what_was_raised_before_ends_a_launch_before_its_first_instruction() {
    let program = kernel(&format!("mov.u32 %r9, 1;\n{STORE}"));
    let interrupt = Interrupt::new();
    interrupt.raise();
    let options = Options { interrupt: Some(interrupt.clone()), ..Options::default() };
    let (fault, report) = fault(run(&program, &LaunchConfig::linear(2, 32), &options).0);
    assert!(matches!(fault, Fault::Interrupted { block: [0, 0, 0], .. }), "{fault}");
    assert_eq!(report.steps, 0);
    assert!(interrupt.clone().is_raised());
    interrupt.reset();
    assert!(run(&program, &LaunchConfig::linear(2, 32), &options).0.expect("a launch").is_clean());
}

#[test]
fn memory_can_be_used_after_an_interrupt() {
    let memory = Memory::new();
    let out = memory.alloc(32 * 4, "out").expect("memory");
    let endless = kernel(ENDLESS);
    let deadline = Some(Instant::now() + Duration::from_millis(20));
    let options = Options { deadline, ..Options::default() };
    let config = LaunchConfig::linear(1, 32);
    let (fault, _) = fault(launch(&endless, "k", &config, &out.to_le_bytes(), &memory, &options));
    assert!(matches!(fault, Fault::TimeLimit { .. }), "{fault}");
    let program = kernel(&format!("mov.u32 %r9, 7;\n{STORE}"));
    let report = launch(&program, "k", &config, &out.to_le_bytes(), &memory, &Options::default());
    assert!(report.expect("a launch").is_clean());
    let mut bytes = [0; 4];
    memory.read(out, &mut bytes).expect("the buffer");
    assert_eq!(u32::from_le_bytes(bytes), 7);
}
