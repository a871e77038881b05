//! Texts of PTX versions that are newer than what is known here.

use warpwright_emu::{Fault, LaunchConfig, LaunchError, LoadError, Memory, Options, Program, launch};
use warpwright_ptx::PtxVersion;
use warpwright_ptx::isa::NEWEST_VERSION;
use warpwright_ptx::verify::{Breach, Rule, Severity};

/// A kernel `k(out)` that stores what a device function of the text makes of the thread's number.
fn text(version: &str, instruction: &str) -> String {
    format!(
        ".version {version}\n.target sm_90\n.address_size 64\n.func (.param .b32 r) twice(.param .b32 n) .abi_preserve 8 \
         .abi_preserve_control 2\n{{\n.reg .b32 %r<3>;\nld.param.b32 %r0, [n];\nadd.u32 %r1, %r0, %r0;\n\
         st.param.b32 [r], %r1;\nret;\n}}\n.visible .entry k(.param .u64 out)\n{{\n.reg .b32 %r<4>;\n.reg .b64 %rd<4>;\n\
         .param .b32 n;\n.param .b32 r;\nld.param.u64 %rd0, [out];\nmov.u32 %r0, %tid.x;\nst.param.b32 [n], %r0;\n\
         call (r), twice, (n);\nld.param.b32 %r1, [r];\n{instruction}\nmul.wide.u32 %rd1, %r0, 4;\n\
         add.s64 %rd2, %rd0, %rd1;\nst.global.u32 [%rd2], %r1;\nret;\n}}\n"
    )
}

fn run(program: &Program) -> (Result<(), LaunchError>, Vec<u8>) {
    let memory = Memory::new();
    let out = memory.alloc(128, "out").expect("memory");
    let config = LaunchConfig::linear(1, 32);
    let result = launch(program, "k", &config, &out.to_le_bytes(), &memory, &Options::default());
    let mut bytes = vec![0; 128];
    memory.read(out, &mut bytes).expect("the buffer");
    (result.map(|report| assert!(report.is_clean(), "{:?}", report.findings)), bytes)
}

#[test]
fn a_newer_version_is_a_warning_with_both_versions() {
    for (version, major, minor) in [("9.2", 9, 2), ("9.4", 9, 4), ("10.0", 10, 0)] {
        let program = Program::load(&text(version, "")).unwrap_or_else(|e| panic!("{version}: {e}"));
        assert!(program.warnings().is_empty(), "{:?}", program.warnings());
        let [warning] = program.verify_warnings() else { panic!("{:?}", program.verify_warnings()) };
        assert_eq!((warning.rule, warning.severity), (Rule::Target8, Severity::Warning));
        let want = Breach::NewerVersion { version: PtxVersion::new(major, minor), newest: NEWEST_VERSION };
        assert_eq!(warning.breach, want);
        let (result, bytes) = run(&program);
        result.unwrap_or_else(|e| panic!("{version}: {e}"));
        let want: Vec<u8> = (0..32u32).flat_map(|i| (2 * i).to_le_bytes()).collect();
        assert_eq!(bytes, want, "{version}");
    }
    let known = Program::load(&text(&NEWEST_VERSION.to_string(), "")).unwrap_or_else(|e| panic!("{e}"));
    assert!(known.verify_warnings().is_empty());
}

#[test]
fn an_unknown_instruction_of_a_newer_version_names_the_version() {
    for (version, says) in [("9.4", true), ("9.0", false)] {
        let program =
            Program::load(&text(version, "frobnicate.b32 %r1, %r1;")).unwrap_or_else(|e| panic!("{e}"));
        let note = "the text is PTX 9.4, the newest known here is 9.1";
        let [error] = program.warnings() else { panic!("{:?}", program.warnings()) };
        assert_eq!((error.rule, error.message.contains(note)), ("P-UNKNOWN", says), "{}", error.message);
        let (Err(LaunchError::Fault { fault: Fault::Unsupported { message, .. }, .. }), _) = run(&program)
        else {
            panic!("{version}: it ran")
        };
        assert!(message.contains("frobnicate.b32") && message.contains(note) == says, "{message}");
    }
}

#[test]
fn what_a_version_lacks_is_refused_by_its_own_rule() {
    let Err(LoadError::Verify(found)) = Program::load(&text("8.8", "")) else { panic!("it loads") };
    let errors: Vec<_> = found.iter().filter(|f| f.severity == Severity::Error).collect();
    let [error] = errors[..] else { panic!("{errors:?}") };
    let want =
        Breach::DirectivesNeedVersion { needed: PtxVersion::new(9, 0), version: PtxVersion::new(8, 8) };
    assert_eq!((error.rule, &error.breach), (Rule::Target2, &want));
    // Targets that come with a newer version are not known either.
    let newer = text("10.0", "").replace("sm_90", "sm_130");
    let Err(LoadError::Verify(found)) = Program::load(&newer) else { panic!("it loads") };
    assert!(found.iter().any(|f| matches!(f.breach, Breach::NoSuchTarget { .. })), "{found:?}");
}
