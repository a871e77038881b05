//! Tensor-core instructions: every type, shape and layout against products computed on the host.
//!
//! The cases are those of the testkit, which runs them on devices; they are included as source, because the testkit is
//! built on the emulator.

#[allow(unreachable_pub, reason = "the module is public where it belongs")]
#[path = "../../warpwright-testkit/src/ptx_cases/mod.rs"]
mod ptx_cases;

use ptx_cases::{POISON, PtxCase, mma, moves, wgmma, wmma};
use warpwright_emu::{LaunchConfig, Memory, Options, Program, launch};

/// Runs a case under all sanitizers; gives what is wrong.
fn run(case: &PtxCase) -> Vec<String> {
    let fail = |error: String| vec![format!("{}: {error}\n{}", case.name, case.ptx)];
    let program = match Program::load(&case.ptx) {
        Ok(program) => program,
        Err(error) => return fail(error.to_string()),
    };
    let memory = Memory::new();
    let mut params = Vec::new();
    for (i, input) in case.inputs.iter().enumerate() {
        let address = memory.alloc(input.len() as u64, &format!("input {i}")).expect("memory");
        memory.write(address, input).expect("inside the allocation");
        params.extend(address.to_le_bytes());
    }
    let out = memory.alloc(case.result_bytes as u64, "result").expect("memory");
    memory.fill(out, POISON, case.result_bytes as u64).expect("inside the allocation");
    params.extend(out.to_le_bytes());
    let config = LaunchConfig::linear(1, case.threads);
    match launch(&program, "kernel", &config, &params, &memory, &Options::default()) {
        Err(error) => return fail(error.to_string()),
        Ok(report) if !report.is_clean() => {
            return fail(report.findings.iter().map(|f| f.render(None, &case.ptx)).collect());
        }
        Ok(_) => {}
    }
    let mut result = vec![0; case.result_bytes];
    memory.read(out, &mut result).expect("inside the allocation");
    case.differences(&result)
}

fn check(cases: &[PtxCase], at_least: usize) {
    assert!(cases.len() >= at_least, "only {} cases", cases.len());
    // A result that nothing writes must not pass.
    for case in cases {
        assert!(!case.differences(&vec![POISON; case.result_bytes]).is_empty(), "{} says nothing", case.name);
    }
    let failed: Vec<Vec<String>> = cases.iter().map(run).filter(|f| !f.is_empty()).collect();
    let some: Vec<String> = failed.iter().take(12).flatten().cloned().collect();
    assert!(failed.is_empty(), "{} of {} cases fail:\n{}", failed.len(), cases.len(), some.join("\n"));
}

#[test]
fn mma_multiplies_fragments() {
    check(&mma::cases(), 200);
}

#[test]
fn matrices_move_between_lanes_and_shared_memory() {
    check(&moves::cases(), 37);
}

#[test]
fn wgmma_multiplies_tiles() {
    check(&wgmma::cases(), 300);
}

#[test]
fn wmma_multiplies_matrices_in_memory() {
    check(&wmma::cases(), 350);
}
