//! `print(parse(print(m))) == print(m)`, on random modules and on files.

#[path = "support/generate.rs"]
mod generate;

use std::collections::HashMap;
use std::path::Path;

use generate::Choices;
use proptest::prelude::*;
use warpwright_ptx::text::{parse, print};
use warpwright_ptx::*;

/// Instructions with what they name.
type Essence = Vec<(Instruction, Vec<String>)>;

/// The instructions of each function in layout order, with registers numbered by appearance and symbols by name, so
/// that what printing may change does not count.
fn essence(module: &Module) -> Vec<(String, Essence)> {
    let instructions = |function: &Function| {
        let mut numbers: HashMap<Reg, u32> = HashMap::new();
        let instructions = function.blocks.iter().flat_map(|b| &b.instructions);
        instructions
            .map(|original| {
                let mut instruction = original.clone();
                let mut types = Vec::new();
                let mut rename = |reg: &mut Reg| {
                    types.push(function.registers[reg.0 as usize].ty.name().to_owned());
                    let next = u32::try_from(numbers.len()).unwrap();
                    *reg = Reg(*numbers.entry(*reg).or_insert(next));
                };
                if let Some(guard) = &mut instruction.guard {
                    rename(&mut guard.reg);
                }
                instruction.inst.visit_mut(|_, reg| rename(reg));
                let symbols = symbols(&mut instruction.inst);
                types.extend(symbols.into_iter().map(|id| match function.symbols[id.0 as usize] {
                    Symbol::Param(i) => function.params[i as usize].name.clone(),
                    Symbol::LocalVariable(i) => function.variables[i as usize].name.clone(),
                    Symbol::Return(i) => function.returns[i as usize].name.clone(),
                    Symbol::Function(i) => module.functions[i as usize].name.clone(),
                    Symbol::ModuleVariable(i) => module.variables[i as usize].name.clone(),
                }));
                (instruction, types)
            })
            .collect()
    };
    // Functions that are used before they are defined come first in the text.
    let mut all: Vec<_> = module.functions.iter().map(|f| (f.name.clone(), instructions(f))).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// Takes the symbols out of an instruction.
fn symbols(inst: &mut Inst) -> Vec<SymbolId> {
    let id = match inst {
        Inst::Call { callee, returns, args, .. } => {
            let direct = if let Callee::Direct(id) = callee { Some(id) } else { None };
            let named = returns.iter_mut().chain(args).filter_map(|o| match o {
                Operand::Symbol(id, _) => Some(id),
                _ => None,
            });
            return direct.into_iter().chain(named).map(|id| std::mem::replace(id, SymbolId(0))).collect();
        }
        Inst::Mov { src: Operand::Symbol(id, _), .. }
        | Inst::PredMov { a: Operand::Symbol(id, _), .. }
        | Inst::Cvta { src: Operand::Symbol(id, _), .. } => id,
        Inst::Ld { addr, .. }
        | Inst::St { addr, .. }
        | Inst::Prefetch { addr, .. }
        | Inst::Atom { addr, .. } => match &mut addr.base {
            AddressBase::Symbol(id) => id,
            _ => return Vec::new(),
        },
        _ => return Vec::new(),
    };
    vec![std::mem::replace(id, SymbolId(0))]
}

fn declarations(module: &Module) -> impl PartialEq + std::fmt::Debug + use<> {
    let head = |f: &Function| {
        let directives = (f.linkage, f.kind, f.directives.clone(), f.variables.clone());
        (f.name.clone(), directives, f.prototype(), f.prototypes.clone(), f.pragmas.len())
    };
    let mut functions: Vec<_> = module.functions.iter().map(head).collect();
    functions.sort_by(|a, b| a.0.cmp(&b.0));
    let names = |i: u32| module.functions[i as usize].name.clone();
    let aliases: Vec<_> = module.aliases.iter().map(|a| (names(a.function), names(a.of))).collect();
    // Addresses of functions are compared through the text.
    let mut variables = module.variables.clone();
    variables.iter_mut().filter_map(|v| v.init.as_mut()).for_each(|i| i.addresses.clear());
    (module.version, module.target, variables, functions, aliases, module.pragmas.clone())
}

fn check(module: &Module) -> Result<(), TestCaseError> {
    let once = print(module);
    let parsed = parse(&once);
    prop_assert!(parsed.diagnostics.is_empty(), "{:?}\n{once}", parsed.diagnostics);
    let twice = print(&parsed.module);
    prop_assert_eq!(&once, &twice);
    prop_assert_eq!(essence(module), essence(&parsed.module), "{}", once);
    prop_assert_eq!(declarations(module), declarations(&parsed.module));
    // From here on nothing changes at all.
    prop_assert_eq!(&parse(&twice).module, &parsed.module);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(2000), ..ProptestConfig::default() })]

    #[test]
    fn random_modules_survive(tape in prop::collection::vec(any::<u64>(), 0..600)) {
        let mut tape = tape.into_iter();
        check(&Choices(|| tape.next().unwrap_or(0)).module(8))?;
    }

    #[test]
    fn token_soup_never_panics(tokens in prop::collection::vec(prop::sample::select(SOUP), 0..120)) {
        let text = tokens.join(" ");
        let parsed = parse(&text);
        let lines = text.lines().count().max(1);
        for d in &parsed.diagnostics {
            prop_assert!(d.line as usize <= lines + 1, "{d}");
        }
        if !parsed.has_errors() {
            let once = print(&parsed.module);
            prop_assert_eq!(&print(&parse(&once).module), &once);
        }
    }

    #[test]
    fn arbitrary_text_never_panics(text in ".{0,300}") {
        parse(&text);
        parse(&format!(".version 7.0\n.target sm_80\n.entry k() {{ {text}"));
    }
}

/// Pieces from which random text is made; whole statements keep it inside the grammar for a while.
const SOUP: &[&str] = &[
    ".version 7.0\n.target sm_80\n",
    ".visible .entry k(.param .u64 p) {",
    ".entry",
    "{",
    "}",
    ";",
    "\n",
    ".reg .b32 %r<4>;",
    ".reg .pred %p<2>;",
    ".reg .b32 %r1;",
    ".shared .align 4 .b8 s[16];",
    "add.u32 %r1, %r2, 3;",
    "@%p1 ret;",
    "@!%p1 bra L;",
    "L:",
    "L",
    "M:",
    "bra.uni M;",
    "ret;",
    "ld.param.u64 %r1, [p];",
    "mov.b32 {%r1, _}, %r2;",
    "st.shared.v2.b32 [s+4], {%r1, %r2};",
    "setp.lt.and.s32 %p0|%p1, %r1, %r2, !%p1;",
    "@",
    "!",
    "%p1",
    "%r1",
    "%r99999999999999",
    ",",
    "[",
    "]",
    "+",
    "-",
    "0x",
    "0f3F800000",
    "18446744073709551615",
    "18446744073709551616",
    "1e400",
    "mma.sync.aligned.m16n8k16",
    ".global .u32 g = 7;",
    "/*",
    "//",
    "\"",
    "(",
    ")",
    ".loc 1 2 3",
    ".section .x {",
    ":",
    "<",
    ">",
    "\u{e9}",
    "\0",
];

#[test]
fn files_survive() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests/roundtrip");
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "ptx") {
            continue;
        }
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let parsed = parse(&text);
        assert!(parsed.diagnostics.is_empty(), "{name}: {:?}", parsed.diagnostics);
        let once = print(&parsed.module);
        // Files without comments are in canonical form already; the others say beside them what it is.
        if std::env::var_os("WARPWRIGHT_BLESS").is_some() && text.contains("//") {
            std::fs::write(path.with_extension("canonical"), &once).unwrap();
        }
        let expected = if text.contains("//") {
            std::fs::read_to_string(path.with_extension("canonical")).unwrap()
        } else {
            text
        };
        assert_eq!(expected, once, "{name}");
        check(&parsed.module).unwrap_or_else(|e| panic!("{name}: {e}"));
        count += 1;
    }
    assert!(count >= 4, "only {count} files in {}", folder.display());
}
