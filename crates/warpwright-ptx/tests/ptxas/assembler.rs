//! The real assembler: found through `WARPWRIGHT_PTXAS`, fed with one instruction per line.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

use warpwright_ptx::{
    Block, Function, Inst, Module, PtxVersion, Reg, RegKind, ScalarType, SourceLoc, Target, Terminator,
};

/// The file that is assembled.
const SOURCE: &str = "case.ptx";

/// An executable `ptxas`.
pub(crate) struct Assembler {
    path: PathBuf,
    directory: PathBuf,
}

impl Assembler {
    /// The assembler named by the environment. Without one the test is skipped, or fails where it is required.
    pub(crate) fn find(test: &str) -> Option<Self> {
        let required = std::env::var_os("WARPWRIGHT_REQUIRE_PTXAS").is_some_and(|v| v == "1");
        let Some(path) = std::env::var_os("WARPWRIGHT_PTXAS").map(PathBuf::from) else {
            assert!(!required, "WARPWRIGHT_REQUIRE_PTXAS=1, but WARPWRIGHT_PTXAS names no assembler");
            println!("{test}: skipped, WARPWRIGHT_PTXAS is not set");
            return None;
        };
        assert!(path.is_file(), "WARPWRIGHT_PTXAS is {}, which is no file", path.display());
        let directory = std::env::temp_dir().join(format!("warpwright-ptxas-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a temporary directory");
        Some(Self { path, directory })
    }

    /// Assembles `text` and returns what the assembler says.
    pub(crate) fn run(&self, target: Target, text: &str) -> (bool, String) {
        let source = self.directory.join(SOURCE);
        std::fs::write(&source, text).expect("the source is written");
        let output = Command::new(&self.path)
            .args(["-O0", "-arch", &target.to_string(), "-o"])
            .arg(self.directory.join("case.cubin"))
            .arg(&source)
            .output()
            .expect("ptxas starts");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// For each instruction the complaint of the assembler, or `None` if it takes it.
    ///
    /// All instructions go into one kernel. Those complained about are taken out and the rest is assembled again, until
    /// the rest passes as a whole.
    pub(crate) fn judge(
        &self,
        version: PtxVersion,
        target: Target,
        instructions: &[Inst],
    ) -> Vec<Option<String>> {
        let mut verdicts: Vec<Option<String>> = vec![None; instructions.len()];
        loop {
            let alive: Vec<usize> = (0..instructions.len()).filter(|i| verdicts[*i].is_none()).collect();
            if alive.is_empty() {
                return verdicts;
            }
            let (text, origin) = print(version, target, instructions, &alive);
            let (success, said) = self.run(target, &text);
            if success {
                return verdicts;
            }
            let before = verdicts.iter().flatten().count();
            for (line, message) in said.lines().filter_map(complaint) {
                if let Some(i) = origin.get(&line) {
                    verdicts[*i].get_or_insert(message);
                }
            }
            if verdicts.iter().flatten().count() == before {
                // Some complaints are about what the assembler made of an instruction, and do not say of which.
                let parts: Vec<&[usize]> = match alive.as_slice() {
                    [only] => {
                        verdicts[*only] = Some(said);
                        continue;
                    }
                    alive => alive.chunks(alive.len().div_ceil(2)).collect(),
                };
                for part in parts {
                    let some: Vec<Inst> = part.iter().map(|i| instructions[*i].clone()).collect();
                    for (i, verdict) in part.iter().zip(self.judge(version, target, &some)) {
                        verdicts[*i] = verdict;
                    }
                }
                return verdicts;
            }
        }
    }
}

impl Drop for Assembler {
    fn drop(&mut self) {
        // Left-over files in the temporary directory hurt nobody.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// `ptxas case.ptx, line 9; error   : message`
fn complaint(line: &str) -> Option<(usize, String)> {
    let (file, rest) = line.split_once(", line ")?;
    if !file.ends_with(SOURCE) {
        // The assembler's own macros have lines too.
        return None;
    }
    let (number, rest) = rest.split_once("; ")?;
    let (severity, message) = rest.split_once(':')?;
    matches!(severity.trim(), "error" | "fatal")
        .then(|| Some((number.parse().ok()?, message.trim().to_owned())))?
}

/// The types that registers have; each has [`PER_TYPE`] registers in a row.
const REGISTER_TYPES: [ScalarType; 18] = {
    use ScalarType::*;
    [Pred, B8, B16, B32, B64, B128, U8, U16, U32, U64, S8, S16, S32, S64, F16, F16x2, F32, F64]
};
const PER_TYPE: usize = 8;

/// Types that registers can be declared with.
pub(crate) fn register_types() -> &'static [ScalarType] {
    &REGISTER_TYPES
}

/// The `n`-th register declared as `ty`.
pub(crate) fn register_of(ty: ScalarType, n: usize) -> Reg {
    let at = REGISTER_TYPES.iter().position(|t| *t == ty).expect("a register type");
    Reg(u32::try_from(at * PER_TYPE + n).expect("few registers"))
}

/// The `n`-th register that holds an operand of type `ty`: untyped, so that it fits every instruction type.
pub(crate) fn register(ty: ScalarType, n: usize) -> Reg {
    register_of(if ty.bits() == 8 { ScalarType::B16 } else { ty.to_bits() }, n)
}

/// The kernel around the instructions.
pub(crate) fn module(version: PtxVersion, target: Target, instructions: &[Inst], chosen: &[usize]) -> Module {
    let mut function = Function::entry("k");
    for ty in REGISTER_TYPES {
        for _ in 0..PER_TYPE {
            function.new_reg(ty, RegKind::Variable);
        }
    }
    let line = |i: usize| SourceLoc::Ptx { line: u32::try_from(i).expect("few instructions"), column: 1 };
    function.blocks.push(Block {
        instructions: chosen.iter().map(|i| instructions[*i].clone().into()).collect(),
        terminator: Terminator::Ret,
        locations: chosen.iter().map(|i| line(*i)).collect(),
    });
    let mut module = Module::new(version, target);
    module.functions.push(function);
    module
}

/// The text, and for each of its lines the instruction that it holds.
fn print(
    version: PtxVersion,
    target: Target,
    instructions: &[Inst],
    chosen: &[usize],
) -> (String, HashMap<usize, usize>) {
    let printed = warpwright_ptx::text::print_with_lines(&module(version, target, instructions, chosen));
    let origin = (1usize..).zip(&printed.lines).filter_map(|(line, at)| match at {
        SourceLoc::Ptx { line: i, .. } => Some((line, *i as usize)),
        _ => None,
    });
    (printed.text.clone(), origin.collect())
}

/// One instruction as text.
pub(crate) fn text_of(inst: &Inst) -> String {
    let (text, origin) = print(PtxVersion::new(9, 0), Target::sm(90), std::slice::from_ref(inst), &[0]);
    let line = origin.keys().next().copied().unwrap_or(1);
    text.lines().nth(line - 1).unwrap_or_default().trim().to_owned()
}
