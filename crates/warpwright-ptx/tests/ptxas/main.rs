//! Holds the table of legal forms against the real assembler.
//!
//! `WARPWRIGHT_PTXAS` names the assembler; PyPI's `nvidia-cuda-nvcc` has one. Without it these tests say that they are
//! skipped, and fail under `WARPWRIGHT_REQUIRE_PTXAS=1`.

mod assembler;
mod families;
mod forms;

use assembler::{Assembler, register_of, register_types, text_of};
use warpwright_ptx::ScalarType::*;
use warpwright_ptx::isa::{self, Requirement};
use warpwright_ptx::*;

/// Targets older than this are refused by the assembler, so minima below cannot be told apart.
const OLDEST: Target = Target::sm(75);
/// The target with every instruction of the table, and a version that knows it.
const NEWEST: (PtxVersion, Target) = (PtxVersion::new(8, 8), Target::specific(100));

/// Targets that differ in what they have.
const PLAIN_TARGETS: [u32; 7] = [75, 80, 86, 89, 90, 100, 120];

/// Types that arithmetic could have.
const ARITHMETIC: [ScalarType; 28] = [
    B8, B16, B32, B64, U8, U16, U32, U64, S8, S16, S32, S64, F16, F16x2, BF16, BF16x2, F32, F64, TF32,
    E4M3x2, E5M2x2, U16x2, S16x2, F32x2, E2M1x2, E2M3x2, E3M2x2, UE8M0x2,
];

/// Compares the table with the assembler for each instruction; returns the disagreements.
fn compare(assembler: &Assembler, instructions: &[Inst]) -> Vec<String> {
    compare_on(assembler, NEWEST.0, NEWEST.1, instructions)
}

/// The same for one target, where forms that it has not are refused.
fn compare_on(
    assembler: &Assembler,
    version: PtxVersion,
    target: Target,
    instructions: &[Inst],
) -> Vec<String> {
    let verdicts = assembler.judge(version, target, instructions);
    let mut wrong = Vec::new();
    for (inst, said) in instructions.iter().zip(verdicts) {
        match (isa::form(inst), said) {
            (Ok(_), Some(_)) if !isa::requirement_on(inst, target).has_target(target) => {}
            (Ok(_), Some(said)) => wrong.push(format!("table allows `{}`, ptxas: {said}", text_of(inst))),
            (Err(_), None) if undocumented(inst) => {}
            (Err(e), None) => {
                wrong.push(format!("table refuses `{}` ({e:?}), ptxas takes it", text_of(inst)));
            }
            _ => {}
        }
    }
    wrong
}

fn expect_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} disagreements:\n{}", wrong.len(), wrong[..wrong.len().min(400)].join("\n"));
}

#[test]
fn arithmetic_forms_are_those_of_ptxas() {
    let Some(assembler) = Assembler::find("arithmetic") else { return };
    let sets: Vec<Modifiers> = forms::modifier_sets().iter().map(|s| s.to_modifiers()).collect();
    let mut wrong = Vec::new();
    let mut tried = 0;
    let mut batch = |instructions: Vec<Inst>| {
        tried += instructions.len();
        wrong.extend(compare(&assembler, &instructions));
    };
    let each = |f: &dyn Fn(ScalarType, Modifiers) -> Inst| -> Vec<Inst> {
        ARITHMETIC.iter().flat_map(|ty| sets.iter().map(|m| f(*ty, *m))).collect()
    };
    for op in UnaryOp::ALL {
        batch(each(&|ty, mods| forms::unary(*op, ty, mods)));
    }
    for op in BinaryOp::ALL {
        batch(each(&|ty, mods| forms::binary(*op, ty, mods)));
    }
    for op in TernaryOp::ALL {
        batch(each(&|ty, mods| forms::ternary(*op, ty, mods)));
    }
    assert!(tried > 100_000, "{tried} instructions tried");
    expect_none(&wrong);
}

#[test]
fn conversions_are_those_of_ptxas() {
    let Some(assembler) = Assembler::find("conversions") else { return };
    let sets: Vec<Modifiers> = forms::modifier_sets().iter().map(|s| s.to_modifiers()).collect();
    let mut wrong = Vec::new();
    for to in ARITHMETIC {
        for pair in [false, true] {
            let all =
                ARITHMETIC.iter().flat_map(|from| sets.iter().map(move |m| forms::cvt(to, *from, *m, pair)));
            wrong.extend(compare(&assembler, &all.collect::<Vec<_>>()));
        }
    }
    expect_none(&wrong);
}

#[test]
fn comparisons_selections_and_atomics_are_those_of_ptxas() {
    let Some(assembler) = Assembler::find("comparisons") else { return };
    let mut all = Vec::new();
    for (cmp, ty, ftz) in CmpOp::ALL
        .iter()
        .flat_map(|c| ARITHMETIC.iter().flat_map(move |t| [false, true].map(|ftz| (*c, *t, ftz))))
    {
        all.push(forms::setp(cmp, ty, ftz));
        all.extend(ARITHMETIC.iter().map(|d| forms::set(cmp, *d, ty, ftz)));
    }
    for ty in ARITHMETIC {
        let (a, b) = (forms::operand(ty, 1), forms::operand(ty, 2));
        let dst = assembler::register(ty, 0);
        all.push(Inst::Selp { ty, dst, a, b, pred: assembler::register(Pred, 0) });
        for (c_ty, ftz) in [(S32, false), (S32, true), (F32, false), (F32, true), (U32, false), (F64, false)]
        {
            all.push(Inst::Slct { ty, c_ty, ftz, dst, a, b, c: forms::operand(c_ty, 3) });
        }
        all.push(Inst::Mov { ty, dst, src: a });
        all.push(Inst::Bfi { ty, dst, a, b, pos: Operand::int(1), len: Operand::int(1) });
        all.extend(AtomOp::ALL.iter().map(|op| forms::atom(*op, ty)));
        let redux = |op: &ReduxOp| Inst::Redux {
            op: *op,
            abs: false,
            nan: false,
            ty,
            dst,
            a,
            mask: Operand::int(-1),
        };
        all.extend(ReduxOp::ALL.iter().map(redux));
        all.push(forms::load(StateSpace::Global, ty, 1, Ordering::WEAK, CacheHints::NONE));
        all.push(forms::store(StateSpace::Global, ty, 1, Ordering::WEAK, CacheHints::NONE));
    }
    expect_none(&compare(&assembler, &all));
}

#[test]
fn families_are_those_of_ptxas() {
    let Some(assembler) = Assembler::find("families") else { return };
    let all = families::candidates();
    println!("{} instructions", all.len());
    let mut wrong = Vec::new();
    for target in [Target::specific(90), Target::specific(100), Target::specific(120)] {
        wrong.extend(compare_on(&assembler, NEWEST.0, target, &all));
    }
    wrong.extend(compare(&assembler, &families::every_matrix()));
    for some in families::every_wmma().chunks(500) {
        wrong.extend(compare_on(&assembler, NEWEST.0, Target::sm(80), some));
    }
    let products = families::every_mma();
    println!("{} products", products.len());
    wrong.extend(compare_on(&assembler, NEWEST.0, Target::specific(120), &products));
    expect_none(&wrong);
}

/// The version from which on `target` has what `needs` says.
fn floor_on(needs: Requirement, target: Target) -> (PtxVersion, Target) {
    (needs.version.max(isa::target_version(target).expect("a known target")), target)
}

/// The version and target below which `needs` says that nothing works, as far as the assembler can tell.
fn floor(needs: Requirement) -> (PtxVersion, Target) {
    let sm = needs.sm.max(OLDEST.sm);
    let target = match needs.specific {
        [] => Target::sm(sm),
        [first, ..] => Target::specific(*first),
    };
    floor_on(needs, target)
}

/// Whether ptxas takes an instruction that the manual does not have. The table follows the manual.
fn undocumented(inst: &Inst) -> bool {
    match inst {
        Inst::Unary { op: UnaryOp::Rcp, ty: F64, mods, .. } => mods.ftz && mods.rounding.is_some(),
        Inst::Binary { op: BinaryOp::Addc | BinaryOp::Subc, ty: U16 | S16, .. } => true,
        // Products of fragments that nothing loads, and fragments that nothing multiplies.
        Inst::Wmma(m) => matches!(m.a_ty, MatrixType::F64 | MatrixType::S4 | MatrixType::U4),
        Inst::WmmaLoad { tile, .. } | Inst::WmmaStore { tile, .. } => {
            tile.ty == MatrixType::F32 && matches!(tile.shape, WmmaShape::M8N8K32 | WmmaShape::M8N8K128)
        }
        Inst::Binary { op: BinaryOp::Addc | BinaryOp::Subc, ty: S32, mods, .. } => mods.sat,
        Inst::Ternary { op: TernaryOp::MadcLo | TernaryOp::MadcHi, ty: U16 | S16, .. } => true,
        Inst::Ternary { op: TernaryOp::MadcHi, ty: S32, mods, .. } => mods.sat,
        Inst::Ternary { op: TernaryOp::Fma, ty: BF16 | BF16x2, mods, .. } => {
            mods.rounding != Some(Rounding::Rn)
        }
        Inst::Cvt { to: F32 | F64, from: BF16, mods, .. } => mods.rounding.is_some(),
        // The manual has a scale of D for the kinds f16 and tf32.
        Inst::Tcgen05(t) => {
            matches!(&**t, Tcgen05::Mma(m) if m.kind == Tcgen05Kind::I8 && m.scale_d.is_some())
        }
        // The manual has these from PTX 8.6 and sm_90 on.
        Inst::Fence { semantics: FenceSemantics::Acquire | FenceSemantics::Release, .. } => true,
        _ => false,
    }
}

#[test]
fn every_form_assembles_at_its_minimum() {
    let Some(assembler) = Assembler::find("minimum") else { return };
    let all = forms::every_form();
    println!("{} forms", all.len());
    assert!(all.len() > 3000, "{} forms", all.len());
    let mut groups: std::collections::BTreeMap<(PtxVersion, Target), Vec<Inst>> =
        std::collections::BTreeMap::new();
    for inst in &all {
        let needs = isa::requirement(inst);
        groups.entry(floor(needs)).or_default().push(inst.clone());
        for target in PLAIN_TARGETS.into_iter().map(Target::sm).filter(|t| needs.has_target(*t)) {
            groups.entry(floor_on(isa::requirement_on(inst, target), target)).or_default().push(inst.clone());
        }
    }
    let mut wrong = Vec::new();
    for ((version, target), group) in &groups {
        for (inst, said) in group.iter().zip(assembler.judge(*version, *target, group)) {
            if let Some(said) = said {
                wrong.push(format!("{version} {target}: `{}`: {said}", text_of(inst)));
            }
        }
    }
    expect_none(&wrong);
}

#[test]
fn no_form_assembles_below_its_minimum() {
    let Some(assembler) = Assembler::find("below") else { return };
    let versions: Vec<PtxVersion> = all_versions();
    let mut groups: std::collections::BTreeMap<(PtxVersion, Target), Vec<Inst>> =
        std::collections::BTreeMap::new();
    for inst in forms::every_form() {
        if undocumented(&inst) {
            continue;
        }
        // Below its version the assembler already refuses the declaration of a 128-bit register.
        let mut wide = false;
        inst.visit(|_, r| wide |= r.0 / 8 == register_of(B128, 0).0 / 8);
        if wide {
            continue;
        }
        let needs = isa::requirement(&inst);
        // One version earlier, on every target that has the instruction.
        for sm in PLAIN_TARGETS.into_iter().filter(|sm| *sm >= needs.sm) {
            let target = Target::sm(sm);
            let known = isa::target_version(target).expect("a known target");
            let first = isa::requirement_on(&inst, target).version;
            if let Some(v) = versions.iter().copied().rfind(|v| *v < first).filter(|v| *v >= known) {
                groups.entry((v, target)).or_default().push(inst.clone());
            }
        }
        // One architecture earlier, on a version that has everything.
        if let Some(sm) = PLAIN_TARGETS.into_iter().rfind(|sm| *sm < needs.sm) {
            groups.entry((NEWEST.0, Target::sm(sm))).or_default().push(inst.clone());
        }
    }
    let tried: usize = groups.values().map(Vec::len).sum();
    assert!(tried > 400, "{tried} instructions below their minimum");
    let mut wrong = Vec::new();
    for ((version, target), group) in &groups {
        for (inst, said) in group.iter().zip(assembler.judge(*version, *target, group)) {
            if said.is_none() {
                let Requirement { version: v, sm, .. } = isa::requirement(inst);
                wrong.push(format!(
                    "{version} {target} takes `{}`, the table says {v} sm_{sm}",
                    text_of(inst)
                ));
            }
        }
    }
    expect_none(&wrong);
}

/// Every PTX version that some target or form could need.
fn all_versions() -> Vec<PtxVersion> {
    let minors = [(6, 3..=5), (7, 0..=8), (8, 0..=8)];
    let mut all: Vec<_> = minors
        .into_iter()
        .flat_map(|(major, minors)| minors.map(move |m| PtxVersion::new(major, m)))
        .collect();
    all.push(PtxVersion::new(9, 0));
    all
}

#[test]
fn targets_appear_with_their_version() {
    let Some(assembler) = Assembler::find("targets") else { return };
    let versions = all_versions();
    let text = |version, target| text::print(&assembler::module(version, target, &[], &[]));
    for (target, first) in isa::targets().filter(|t| t.0.sm >= OLDEST.sm) {
        // Targets that the assembler has dropped or renamed.
        let (known, said) = assembler.run(target, &text(PtxVersion::new(9, 0), target));
        if !known && said.contains("is not defined for option") {
            println!("{target}: this assembler does not know it");
            continue;
        }
        let (ok, said) = assembler.run(target, &text(first, target));
        assert!(ok, "{target} at {first}: {said}");
        // The assembler of CUDA 13.0 takes sm_88 one version early; later ones do not.
        let early = target.sm == 88;
        if let Some(earlier) = versions.iter().copied().rfind(|v| *v < first && !early) {
            let (ok, _) = assembler.run(target, &text(earlier, target));
            assert!(!ok, "{target} already exists at {earlier}");
        }
    }
}

/// Whether the verifier refuses the operands of an instruction.
fn refuses(inst: &Inst) -> bool {
    let module = assembler::module(NEWEST.0, NEWEST.1, std::slice::from_ref(inst), &[0]);
    let unassigned = [verify::Rule::Def3, verify::Rule::Def4];
    verify::verify(&module)
        .iter()
        .any(|e| e.severity == verify::Severity::Error && !unassigned.contains(&e.rule))
}

#[test]
fn registers_and_literals_fit_as_in_ptxas() {
    let Some(assembler) = Assembler::find("operands") else { return };
    let mut all = Vec::new();
    let none = Modifiers::NONE;
    for from in register_types().iter().copied() {
        // Packed halves in `.f16x2` registers: the assembler takes them for predicates, crashing on some.
        if from == Pred || from == F16x2 {
            continue;
        }
        let (r, s): (Reg, Operand) = (register_of(from, 1), register_of(from, 2).into());
        for ty in [U16, U32, U64, S32, F16, F16x2, BF16, BF16x2, F32, F64] {
            all.push(Inst::Binary { op: BinaryOp::Add, ty, mods: none, dst: r, a: s, b: s });
        }
        for ty in [B16, B32, B64] {
            all.push(Inst::Binary { op: BinaryOp::And, ty, mods: none, dst: r, a: s, b: s });
            let dst = assembler::register(ty, 0);
            all.push(Inst::Binary { op: BinaryOp::Shl, ty, mods: none, dst, a: dst.into(), b: s });
        }
        for ty in [B16, B32, B64, U16, U32, U64, S64, F32, F64] {
            all.push(Inst::Mov { ty, dst: r, src: s });
            let pred = register_of(Pred, 0);
            all.push(Inst::Selp { ty, dst: r, a: s, b: s, pred });
        }
        for ty in [B8, B16, B32, B64, B128, U8, U16, U32, U64, S8, S16, S32, S64, F32, F64] {
            let Inst::Ld { space, ordering, hints, non_coherent, addr, .. } =
                forms::load(StateSpace::Global, ty, 1, Ordering::WEAK, CacheHints::NONE)
            else {
                continue;
            };
            all.push(Inst::Ld { space, ty, ordering, hints, non_coherent, dsts: vec![Some(r)], addr });
            all.push(Inst::St { space, ty, ordering, hints, srcs: vec![s], addr });
        }
        for ty in [U8, S8, U16, S16, U32, S32, U64, S64] {
            all.push(Inst::Cvt { to: ty, from: U32, mods: none, dst: r, a: forms::operand(U32, 1), b: None });
            all.push(Inst::Cvt { to: U32, from: ty, mods: none, dst: register_of(U32, 0), a: s, b: None });
        }
        for ty in [F16, BF16, F32, F64] {
            let rn = Modifiers::RN;
            all.push(Inst::Cvt { to: ty, from: U32, mods: rn, dst: r, a: forms::operand(U32, 1), b: None });
            let rni = Modifiers::rounded(Rounding::Rni);
            all.push(Inst::Cvt { to: U32, from: ty, mods: rni, dst: register_of(U32, 0), a: s, b: None });
        }
        for op in [TernaryOp::Bfe, TernaryOp::MadWide] {
            let (a, b) = (forms::operand(U32, 1), forms::operand(U32, 2));
            all.push(Inst::Ternary { op, ty: U32, mods: none, dst: r, a, b, c: s });
            all.push(Inst::Ternary { op, ty: U32, mods: none, dst: register_of(B64, 0), a, b, c: s });
        }
        for op in [UnaryOp::Popc, UnaryOp::Clz] {
            all.push(Inst::Unary { op, ty: B64, mods: none, dst: r, a: forms::operand(B64, 1) });
        }
        let pair = Modifiers::RN;
        for ty in [F16x2, BF16x2] {
            let a = forms::operand(F32, 1);
            all.push(Inst::Cvt { to: ty, from: F32, mods: pair, dst: r, a, b: Some(a) });
        }
        all.push(Inst::WarpBarrier { mask: s });
        all.push(Inst::Isspacep { space: StateSpace::Shared, dst: register_of(Pred, 0), a: s });
        all.push(Inst::Atom {
            op: AtomOp::Exch,
            space: StateSpace::Global,
            ty: B32,
            ordering: Ordering::WEAK,
            noftz: false,
            dst: Some(r),
            addr: Address::reg(register_of(B64, 7), 0),
            b: s,
            c: None,
            policy: None,
        });
    }
    for literal in [Imm::Int(1), Imm::Int(-1), Imm::F32(0x3F80_0000), Imm::F64(0x3FF0_0000_0000_0000)] {
        let l = Operand::Imm(literal);
        for ty in [U16, U32, U64, S16, S32, S64, F16, F16x2, BF16, BF16x2, F32, F64] {
            let (dst, a) = (assembler::register(ty, 0), forms::operand(ty, 1));
            all.push(Inst::Binary { op: BinaryOp::Add, ty, mods: none, dst, a, b: l });
        }
        for ty in [B16, B32, B64, U16, U32, U64, S32, F32, F64] {
            let (dst, a) = (assembler::register(ty, 0), forms::operand(ty, 1));
            all.push(Inst::Mov { ty, dst, src: l });
            all.push(Inst::Selp { ty, dst, a, b: l, pred: register_of(Pred, 0) });
        }
        for ty in [B8, U8, B16, B32, B64, U16, U32, S64, F32, F64] {
            let addr = Address::reg(register_of(B64, 7), 0);
            let (ordering, hints) = (Ordering::WEAK, CacheHints::NONE);
            all.push(Inst::St { space: StateSpace::Global, ty, ordering, hints, srcs: vec![l], addr });
        }
    }
    let verdicts = assembler.judge(NEWEST.0, NEWEST.1, &all);
    let mut wrong = Vec::new();
    for (inst, said) in all.iter().zip(verdicts) {
        if refuses(inst) != said.is_some() {
            let said = said.unwrap_or_else(|| "takes it".to_owned());
            wrong.push(format!("`{}` with {:?}: ptxas: {said}", text_of(inst), inst));
        }
    }
    expect_none(&wrong);
}

#[test]
fn file_tests_of_the_verifier_say_truly_what_ptxas_does() {
    let Some(assembler) = Assembler::find("filetests") else { return };
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests/verify");
    let mut tried = 0;
    for entry in std::fs::read_dir(directory).expect("the directory of file tests") {
        let path = entry.expect("a directory entry").path();
        let text = std::fs::read_to_string(&path).expect("a text file");
        let target =
            text.lines().find_map(|l| Target::from_name(l.strip_prefix(".target ")?)).expect("a target");
        let name = path.display();
        let expected = name.to_string().ends_with(".good.ptx") || text.contains("ptxas accepts it");
        assert!(expected || text.contains("ptxas refuses it"), "{name} does not say what ptxas does");
        let (accepted, said) = assembler.run(target, &text);
        assert_eq!(accepted, expected, "{name}: {said}");
        tried += 1;
    }
    assert!(tried > 50, "{tried} files");
}

#[test]
fn what_is_printed_of_file_tests_assembles() {
    let Some(assembler) = Assembler::find("printed") else { return };
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests");
    let mut tried = 0;
    for (folder, suffix) in [("roundtrip", ".canonical"), ("verify", ".good.ptx")] {
        for entry in std::fs::read_dir(root.join(folder)).expect("the directory of file tests") {
            let path = entry.expect("a directory entry").path();
            if !path.display().to_string().ends_with(suffix) {
                continue;
            }
            let parsed = text::parse(&std::fs::read_to_string(&path).expect("a text file"));
            assert!(!parsed.has_errors(), "{}: {:?}", path.display(), parsed.diagnostics);
            let (accepted, said) = assembler.run(parsed.module.target, &text::print(&parsed.module));
            assert!(accepted, "{}: {said}", path.display());
            tried += 1;
        }
    }
    assert!(tried > 40, "{tried} files");
}
