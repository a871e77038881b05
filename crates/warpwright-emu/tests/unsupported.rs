//! An instruction that the emulator cannot execute ends a launch when it is reached, and does not matter before.

use warpwright_emu::{Fault, LaunchConfig, LaunchError, Memory, Options, Program, launch};

/// A kernel with one instruction that nothing executes, behind a branch on its parameter.
fn program(instruction: &str) -> Program {
    let text = format!(
        ".version 8.6
.target sm_100a
.address_size 64
.visible .entry k(.param .u32 n)
{{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    ld.param.u32 %r1, [n];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra DONE;
    {instruction};
DONE:
    ret;
}}
"
    );
    Program::load(&text).unwrap_or_else(|e| panic!("{instruction}: {e}"))
}

fn run(instruction: &str, n: u32) -> Result<(), Fault> {
    let (program, memory) = (program(instruction), Memory::new());
    let config = LaunchConfig::linear(1, 32);
    match launch(&program, "k", &config, &n.to_le_bytes(), &memory, &Options::default()) {
        Ok(_) => Ok(()),
        Err(LaunchError::Fault { fault, .. }) => Err(fault),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn an_instruction_that_cannot_run_is_named_when_it_is_reached() {
    for (instruction, name) in [
        ("clusterlaunchcontrol.frobnicate", "clusterlaunchcontrol.frobnicate"),
        ("vadd.s32.s32.s32 %r1, %r2, %r3", "vadd.s32.s32.s32"),
        ("frobnicate.b32 %r1, %r1", "frobnicate.b32"),
        ("add.sideways.u32 %r1, %r1, 1", "add.sideways.u32"),
    ] {
        assert_eq!(run(instruction, 0), Ok(()), "{instruction} is not reached");
        let Err(Fault::Unsupported { line, thread, message, .. }) = run(instruction, 1) else {
            panic!("{instruction} ran");
        };
        assert_eq!((line, thread), (11, [0, 0, 0]), "{instruction}");
        assert!(message.contains(name), "{instruction}: {message}");
    }
}

#[test]
fn other_errors_of_the_parser_still_refuse_the_text() {
    assert!(Program::load(".version 7.0\n.target sm_80\n.entry k() { add.u32 %r1, %r1, 1; ret; }").is_err());
}
