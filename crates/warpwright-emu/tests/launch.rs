//! Launches as a whole: configuration, faults, schedules, counters, variables.

mod support;

use support::{HEADER, STORE, kernel, load, run};
use warpwright_emu::{
    Fault, LaunchConfig, LaunchError, LoadError, Memory, MemoryError, Options, Program, Sanitizers, Tool,
    launch,
};

#[test]
fn coordinates_follow_x_first() {
    let program = load(
        ".visible .entry k(.param .u64 out)\n{\n.reg .b32 %r<16>;\n.reg .b64 %rd<4>;\nld.param.u64 %rd0, [out];\n\
         mov.u32 %r0, %tid.x;\nmov.u32 %r1, %tid.y;\nmov.u32 %r2, %tid.z;\nmov.u32 %r3, %ctaid.x;\n\
         mov.u32 %r4, %ctaid.y;\nmov.u32 %r5, %ctaid.z;\nmad.lo.u32 %r6, %r5, 3, %r4;\n\
         mad.lo.u32 %r6, %r6, 2, %r3;\nmad.lo.u32 %r7, %r2, 4, %r1;\nmad.lo.u32 %r7, %r7, 5, %r0;\n\
         mad.lo.u32 %r8, %r6, 40, %r7;\nmul.wide.u32 %rd1, %r8, 4;\nadd.u64 %rd2, %rd0, %rd1;\n\
         st.global.u32 [%rd2], %r8;\nret;\n}\n",
    );
    let config = LaunchConfig { grid: [2, 3, 2], block: [5, 4, 2], dynamic_shared: 0, cluster: [1; 3] };
    let (report, out) = run(&program, &config, &Options::default());
    assert!(report.expect("a launch").is_clean());
    assert!(out.iter().enumerate().all(|(i, v)| i as u32 == *v), "{out:?}");
}

#[test]
fn results_counters_and_findings_do_not_depend_on_workers_or_schedule() {
    // Blocks of two and a half warps exchange through shared memory; block 5 reads past the end of `out`.
    let body = format!(
        "mov.u32 %r2, tile;\nshl.b32 %r3, %r0, 2;\nadd.u32 %r4, %r2, %r3;\nst.shared.u32 [%r4], %r0;\nbar.sync 0;\n\
         mov.u32 %r5, 79;\nsub.u32 %r5, %r5, %r0;\nshl.b32 %r5, %r5, 2;\nadd.u32 %r6, %r2, %r5;\n\
         ld.shared.u32 %r9, [%r6];\nsetp.eq.u32 %p0, %r1, 5;\n@%p0 ld.global.u32 %r7, [%rd0+2560];\n\
         @%p0 add.u32 %r9, %r9, %r7;\n{STORE}"
    );
    let program = kernel(&body);
    let config = LaunchConfig::linear(8, 80);
    let mut seen = Vec::new();
    for threads in [1, 2] {
        for seed in [0, 1, 99] {
            let options = Options { threads, seed, counters: true, ..Options::default() };
            let (report, out) = run(&program, &config, &options);
            let report = report.expect("a launch");
            assert_eq!(report.findings.len(), 1);
            let finding = &report.findings[0];
            assert_eq!((finding.tool, finding.kind, finding.count), (Tool::Memcheck, "out-of-bounds", 80));
            assert_eq!((finding.block, finding.thread), ([5, 0, 0], [0, 0, 0]));
            assert_eq!(finding.line, 25);
            assert!(
                finding.message.contains("0 bytes past the end of `out`, which has 2560"),
                "{}",
                finding.message
            );
            seen.push((report.counters, out, report.steps));
        }
    }
    assert!(seen.windows(2).all(|w| w[0] == w[1]));
    // Suppressed loads give 0, so that block 5 has what the others have.
    assert!(seen[0].1.iter().enumerate().all(|(i, v)| *v == 79 - (i as u32 % 80)));
    let counters = &seen[0].0;
    assert_eq!((counters.blocks, counters.warps, counters.barriers), (8, 24, 24));
    // The guarded load and addition run in block 5 alone.
    assert_eq!(counters.global_stores.bytes, 4 * 640);
    assert_eq!(counters.shared_loads.bytes, 4 * 640);
    assert_eq!(counters.lane_instructions.iter().sum::<u64>() % 640, 160);
}

#[test]
fn without_memcheck_a_bad_access_ends_the_launch() {
    let program = kernel("ld.global.u32 %r9, [%rd0+-4];\nst.global.u32 [%rd0], %r9;");
    let (result, out) = run(&program, &LaunchConfig::linear(1, 32), &Options::fast());
    let Err(LaunchError::Fault { kernel, fault: Fault::Access { line, message, .. }, .. }) = result else {
        panic!("a fault");
    };
    assert_eq!((kernel.as_str(), line), ("k", 14));
    assert!(message.contains("4 bytes before the start of `out`"), "{message}");
    assert_eq!(out[0], 0xEEEE_EEEE);
}

#[test]
fn a_freed_address_is_recognised_after_many_others() {
    let program = kernel(&format!("mov.u32 %r9, 1;\n{STORE}"));
    let memory = Memory::new();
    let freed = memory.alloc(128, "weights").expect("memory");
    memory.free(freed).expect("free");
    let found = || {
        let config = LaunchConfig::linear(1, 32);
        let report = launch(&program, "k", &config, &freed.to_le_bytes(), &memory, &Options::default());
        let findings = report.expect("a launch").findings;
        assert_eq!(findings.len(), 1, "{findings:?}");
        (findings[0].kind, findings[0].message.clone())
    };
    let (kind, message) = found();
    assert_eq!(kind, "use-after-free");
    assert!(message.contains("`weights` of 128 bytes, which was freed"), "{message}");
    assert!(matches!(memory.free(freed), Err(MemoryError::Freed { label, .. }) if label == "weights"));
    // The name is forgotten at some time, what happened to the address is not.
    for _ in 0..5000 {
        let other = memory.alloc(128, "other").expect("memory");
        assert_ne!(other, freed);
        memory.free(other).expect("free");
    }
    let (kind, message) = found();
    assert_eq!(kind, "use-after-free");
    assert!(message.contains("was freed, and many others after it"), "{message}");
    assert_eq!(memory.free(freed), Err(MemoryError::FreedEarlier { address: freed }));
}

#[test]
fn traps_endless_loops_and_deadlocks_end() {
    let config = LaunchConfig::linear(2, 64);
    // One worker: of two the second may come to its block first.
    let one = Options { threads: 1, ..Options::default() };
    let trap = kernel("setp.eq.u32 %p0, %r0, 40;\n@%p0 trap;");
    let (result, _) = run(&trap, &config, &one);
    let Err(LaunchError::Fault { fault, .. }) = result else { panic!("a fault") };
    assert_eq!(fault, Fault::Trap { line: 15, block: [0, 0, 0], thread: [40, 0, 0] });

    let endless = kernel("mov.u32 %r9, 0;\nL:\nadd.u32 %r9, %r9, 1;\nbra L;");
    let options = Options { max_steps: 10_000, threads: 1, ..Options::default() };
    let (result, _) = run(&endless, &config, &options);
    let Err(LaunchError::Fault { fault, .. }) = result else { panic!("a fault") };
    let positions = "in block (0, 0, 0) warps 0-1 stand at line 16".to_owned();
    assert_eq!(fault, Fault::StepLimit { block: [0, 0, 0], steps: 10_000, positions });

    // A loop that comes back to the same state needs no limit.
    let (result, _) = run(&kernel("L:\nbra L;"), &config, &Options::default());
    let report = result.expect("synccheck reports it");
    assert_eq!(report.findings.len(), 1);
    assert_eq!((report.findings[0].kind, report.findings[0].line), ("deadlock", 15));

    // Warp 0 waits for 96 threads, of which 64 exist.
    let deadlock = kernel("bar.sync 1, 96;");
    let (result, _) = run(&deadlock, &config, &Options::default());
    let report = result.expect("synccheck reports it");
    assert_eq!(report.findings.len(), 1);
    assert_eq!(report.findings[0].kind, "deadlock");
    assert!(report.findings[0].message.contains("barrier 1 waits for 96 threads and has 64"));
    let (result, _) = run(&deadlock, &config, &Options { threads: 1, ..Options::fast() });
    let Err(LaunchError::Fault { fault: Fault::Deadlock { block, message }, .. }) = result else {
        panic!("a deadlock");
    };
    assert_eq!(block, [0, 0, 0]);
    assert!(message.contains("barrier 1 waits for 96 threads"), "{message}");
}

#[test]
fn warps_wait_for_each_other_through_memory() {
    // Warp 1 spins on a flag that warp 0 sets after it has spun for long itself.
    let body = format!(
        "mov.u32 %r2, tile;\nsetp.lt.u32 %p0, %r0, 32;\nsetp.eq.u32 %p1, %r0, 0;\n@%p1 st.shared.u32 [%r2], 0;\n\
         bar.sync 0;\nmov.u32 %r9, 0;\n@%p0 bra PRODUCER;\nSPIN:\nld.volatile.shared.u32 %r3, [%r2];\n\
         setp.eq.u32 %p2, %r3, 0;\n@%p2 bra SPIN;\nmov.u32 %r9, %r3;\nbra DONE;\nPRODUCER:\n\
         add.u32 %r9, %r9, 1;\nsetp.lt.u32 %p3, %r9, 5000;\n@%p3 bra PRODUCER;\n@%p1 st.volatile.shared.u32 [%r2], 77;\n\
         DONE:\n{STORE}"
    );
    for seed in 0..4 {
        let options = Options { seed, max_steps: 1 << 22, ..Options::default() };
        let (report, out) = run(&kernel(&body), &LaunchConfig::linear(1, 64), &options);
        let report = report.expect("a launch");
        assert!(report.is_clean(), "{:?}", report.findings);
        assert_eq!(out[..32], [5000; 32]);
        assert_eq!(out[32..], [77; 32]);
    }
}

#[test]
fn blocks_wait_for_earlier_blocks() {
    // A chain: block i adds 1 to what block i - 1 left, and hands it on.
    let program = load(
        ".visible .entry k(.param .u64 out)\n{\n.reg .pred %p<4>;\n.reg .b32 %r<8>;\n.reg .b64 %rd<4>;\n\
         ld.param.u64 %rd0, [out];\nmov.u32 %r0, %ctaid.x;\nmul.wide.u32 %rd1, %r0, 4;\nadd.u64 %rd2, %rd0, %rd1;\n\
         mov.u32 %r1, 0;\nsetp.eq.u32 %p0, %r0, 0;\n@%p0 bra FIRST;\nSPIN:\nld.acquire.gpu.global.u32 %r1, [%rd2+-4];\n\
         setp.gt.u32 %p1, %r1, 1000;\n@%p1 bra SPIN;\nFIRST:\nadd.u32 %r1, %r1, 1;\n\
         st.release.gpu.global.u32 [%rd2], %r1;\nret;\n}\n",
    );
    for threads in [1, 2] {
        let options = Options { threads, ..Options::default() };
        let (report, out) = run(&program, &LaunchConfig::linear(100, 1), &options);
        let report = report.expect("a launch");
        assert!(report.is_clean(), "{:?}", report.findings);
        assert!(out.iter().enumerate().all(|(i, v)| *v == i as u32 + 1), "{out:?}");
    }
}

#[test]
fn impossible_launches_say_why() {
    let program = kernel("");
    let memory = Memory::new();
    let params = [0; 8];
    let attempt = |config: LaunchConfig, params: &[u8]| {
        launch(&program, "k", &config, params, &memory, &Options::default()).expect_err("refused").to_string()
    };
    let one = LaunchConfig::linear(1, 32);
    let text = launch(&program, "nope", &one, &params, &memory, &Options::default())
        .expect_err("refused")
        .to_string();
    assert_eq!(text, "there is no kernel `nope`; the program has [\"k\"]");
    assert_eq!(attempt(one, &params[..4]), "kernel `k` takes 8 bytes of parameters, got 4");
    assert!(attempt(LaunchConfig::linear(0, 32), &params).contains("at least 1"));
    assert!(attempt(LaunchConfig::linear(1, 1025), &params).contains("1025 threads"));
    assert!(attempt(LaunchConfig { block: [1, 1, 65], ..one }, &params).contains("64 of them along z"));
    assert!(attempt(LaunchConfig { block: [u32::MAX; 3], ..one }, &params).contains("at most 1024"));
    assert!(attempt(LaunchConfig { grid: [1, 65536, 1], ..one }, &params).contains("passes"));
    assert!(attempt(LaunchConfig { cluster: [2, 1, 1], ..one }, &params).contains("multiple of the cluster"));
    assert!(attempt(LaunchConfig { dynamic_shared: 230_000, ..one }, &params).contains("shared memory"));
    let required = load(".visible .entry k()\n.reqntid 64, 1, 1\n{\nret;\n}\n");
    let error = launch(&required, "k", &one, &[], &memory, &Options::default()).expect_err("refused");
    assert!(error.to_string().contains("requires blocks of [64, 1, 1]"));
}

#[test]
fn bad_text_is_an_error_with_lines() {
    let Err(LoadError::Parse(diagnostics)) = Program::load("this is not PTX") else {
        panic!("a parse error")
    };
    assert!(!diagnostics.is_empty());
    let text =
        format!("{HEADER}.visible .entry k()\n{{\n.reg .f32 %f<2>;\nadd.u32 %f0, %f1, %f1;\nret;\n}}\n");
    let error = Program::load(&text).expect_err("a type error");
    assert!(matches!(error, LoadError::Verify(_)));
    assert!(error.to_string().contains("line 7"), "{error}");
}

#[test]
fn module_variables_keep_their_values_between_launches() {
    let program = load(
        ".global .align 4 .u32 counter = 40;\n.visible .entry k(.param .u64 out)\n{\n.reg .b32 %r<2>;\n\
         atom.global.add.u32 %r0, [counter], 1;\nret;\n}\n",
    );
    let memory = Memory::new();
    let config = LaunchConfig::linear(4, 32);
    for _ in 0..2 {
        let report = launch(&program, "k", &config, &[0; 8], &memory, &Options::default()).expect("a launch");
        assert!(report.is_clean());
    }
    let address = program.global(&memory, "counter").expect("memory").expect("the variable");
    let mut value = [0; 4];
    memory.read(address, &mut value).expect("read");
    assert_eq!(u32::from_le_bytes(value), 40 + 2 * 128);
    assert_eq!(program.global(&memory, "nothing").expect("memory"), None);
}

#[test]
fn launches_may_run_at_the_same_time() {
    let program = kernel(&format!("mov.u32 %r9, %r1;\n{STORE}"));
    let memory = Memory::new();
    let config = LaunchConfig::linear(16, 64);
    let buffers: Vec<u64> = (0..4).map(|i| memory.alloc(4096, &format!("b{i}")).expect("memory")).collect();
    std::thread::scope(|scope| {
        for buffer in &buffers {
            let (program, memory) = (&program, &memory);
            scope.spawn(move || {
                let params = buffer.to_le_bytes();
                let report =
                    launch(program, "k", &config, &params, memory, &Options::default()).expect("a launch");
                assert!(report.is_clean(), "{:?}", report.findings);
            });
        }
    });
    for buffer in buffers {
        let mut data = vec![0; 4096];
        memory.read(buffer, &mut data).expect("read");
        let words = data.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]));
        assert!(words.enumerate().all(|(i, v)| v == i as u32 / 64));
    }
}

#[test]
fn each_sanitizer_can_be_switched_off() {
    // Every thread of two warps stores to one word without order, after reading memory that nobody wrote.
    let program = kernel("ld.global.u32 %r9, [%rd0+4];\nst.shared.u32 [tile], %r0;");
    let memory = Memory::new();
    let out = memory.alloc(64, "out").expect("memory");
    let tools = |sanitizers| {
        let options = Options { sanitizers, ..Options::default() };
        let config = LaunchConfig::linear(1, 64);
        let report = launch(&program, "k", &config, &out.to_le_bytes(), &memory, &options).expect("a launch");
        let mut tools: Vec<Tool> = report.findings.iter().map(|f| f.tool).collect();
        tools.dedup();
        tools
    };
    assert_eq!(tools(Sanitizers::empty()), []);
    assert_eq!(tools(Sanitizers::INITCHECK), [Tool::Initcheck]);
    assert_eq!(tools(Sanitizers::RACECHECK), [Tool::Racecheck]);
    assert_eq!(tools(Sanitizers::all()), [Tool::Initcheck, Tool::Racecheck]);
}

#[test]
fn the_blocks_of_a_grid_meet_in_its_workspace() {
    // Where the runtime of a device puts the barrier of a cooperative grid: the workspace starts as zeros.
    let program = kernel(&format!(
        "mov.u32 %r2, %envreg2;\nmov.u32 %r3, %envreg1;\nmov.b64 %rd1, {{%r2, %r3}};\n\
         atom.add.acq_rel.gpu.u32 %r4, [%rd1+4], 1;\nmov.u32 %r5, %nctaid.x;\n\
         WAIT:\nld.acquire.gpu.u32 %r9, [%rd1+4];\nsetp.lt.u32 %p0, %r9, %r5;\n@%p0 bra WAIT;\n{STORE}"
    ));
    let (report, out) = run(&program, &LaunchConfig::linear(3, 1), &Options::default());
    assert!(report.expect("a launch").is_clean());
    assert_eq!(out, [3; 3]);
}
