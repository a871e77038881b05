//! The verifier's rules by example, and what text cannot express.
//!
//! `tests/filetests/verify` has `RULE.good.ptx`, on which the verifier is silent, and `RULE.bad.ptx`, on which it says
//! exactly what the comments announce: `// error[RULE]: part of the message` on the line, or `//! error[RULE]: ...` for
//! what concerns the kernel or module as a whole. Rules about modules that no text describes are tested below.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use warpwright_ptx::verify::{
    BarrierSafety, Rule, Severity, VerifyError, WholeWarp, barrier_safety, has_errors, verify,
};
use warpwright_ptx::*;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests/verify")
}

/// `error[RULE]: message` with the line it belongs to; line 0 is the module.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    line: u32,
    severity: String,
    rule: String,
    message: String,
}

fn expected(text: &str) -> Vec<Finding> {
    let mut all = Vec::new();
    for (line, content) in (1u32..).zip(text.lines()) {
        let Some((_, comment)) = content.split_once("//") else { continue };
        let (line, comment) = match comment.strip_prefix('!') {
            Some(rest) => (0, rest),
            None => (line, comment),
        };
        let Some((severity, rest)) = comment.trim().split_once('[') else { continue };
        let Some((rule, message)) = rest.split_once("]: ") else { continue };
        all.push(Finding { line, severity: severity.into(), rule: rule.into(), message: message.into() });
    }
    all
}

fn found(text: &str) -> Vec<Finding> {
    let parsed = text::parse(text);
    assert!(parsed.diagnostics.is_empty(), "the parser objects: {:?}\n{text}", parsed.diagnostics);
    let line = |e: &VerifyError| match e.location {
        SourceLoc::Ptx { line, .. } => line,
        SourceLoc::Unknown | SourceLoc::Rust(_) => 0,
    };
    let finding = |e: &VerifyError| Finding {
        line: line(e),
        severity: e.severity.to_string(),
        rule: e.rule.to_string(),
        message: e.breach.to_string(),
    };
    verify(&parsed.module).iter().map(finding).collect()
}

/// Pairs expectations with findings; returns what is left of either.
fn unmatched(mut expected: Vec<Finding>, found: Vec<Finding>) -> Vec<String> {
    let mut left = Vec::new();
    for f in found {
        let fits = |e: &Finding| {
            (e.line, &e.severity, &e.rule) == (f.line, &f.severity, &f.rule) && f.message.contains(&e.message)
        };
        match expected.iter().position(fits) {
            Some(at) => drop(expected.remove(at)),
            None => {
                left.push(format!("unexpected, line {}: {}[{}]: {}", f.line, f.severity, f.rule, f.message));
            }
        }
    }
    left.extend(
        expected
            .iter()
            .map(|e| format!("missing, line {}: {}[{}]: {}", e.line, e.severity, e.rule, e.message)),
    );
    left
}

#[test]
fn files_have_the_findings_that_they_announce() {
    let mut failures = Vec::new();
    let mut files = 0;
    for entry in std::fs::read_dir(directory()).expect("the directory of file tests") {
        let path = entry.expect("a directory entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("a text file");
        files += 1;
        let announced = expected(&text);
        assert_eq!(announced.is_empty(), name.ends_with(".good.ptx"), "{name} announces {announced:?}");
        let rule = name.split('.').next().expect("a rule");
        assert!(
            announced.iter().all(|e| e.rule == rule),
            "{name} announces findings of another rule: {announced:?}"
        );
        // Examples of other rules compute what nobody uses.
        let mut findings = found(&text);
        findings.retain(|f| rule == Rule::Use1.name() || f.rule != Rule::Use1.name());
        let wrong = unmatched(announced, findings);
        if !wrong.is_empty() {
            failures.push(format!("{name}:\n  {}", wrong.join("\n  ")));
        }
    }
    assert!(files > 50, "{files} files");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The files of the round trip hold every form of their families; targets differ, and nothing is assigned.
#[test]
fn forms_of_the_round_trip_are_legal() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests/roundtrip");
    for (name, least) in
        [("tensor", 160), ("tcgen05", 40), ("asynchronous", 300), ("cluster", 110), ("scalar", 200)]
    {
        let text = std::fs::read_to_string(folder.join(format!("{name}.ptx"))).expect("a text file");
        let parsed = text::parse(&text);
        assert!(parsed.diagnostics.is_empty(), "{name}: {:?}", parsed.diagnostics);
        let count: usize = parsed.module.functions[0].blocks.iter().map(|b| b.instructions.len()).sum();
        assert!(count >= least, "{name} has {count} instructions");
        let aside = [Rule::Target2, Rule::Target3, Rule::Def3, Rule::Def4];
        let findings = verify(&parsed.module);
        let is_error = |e: &&VerifyError| e.severity == Severity::Error && !aside.contains(&e.rule);
        let left: Vec<_> = findings.iter().filter(is_error).collect();
        assert!(left.is_empty(), "{name}: {left:?}");
        let foreign = findings.iter().any(|e| e.rule == Rule::Target3);
        assert_eq!(foreign, name == "tensor", "{name}: only wgmma is of another target");
    }
}

#[test]
fn tensor_memory_is_used_as_its_instructions_say() {
    let text = r".version 8.6
.target sm_100a
.address_size 64
.visible .entry k()
{
    .reg .pred %p<1>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<2>;
    .shared .align 16 .b8 s[64];
    mov.b32 %r0, s; mov.b64 %rd0, 0; setp.eq.b32 %p0, %r0, 0;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 48; // error[V-TYPE-10]: powers of two of 32 to 512 columns, not 48
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 1024; // error[V-TYPE-10]: not 1024
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r0, 16; // error[V-TYPE-10]: not 16
    tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1}, [%r0]; // error[V-TYPE-7]: the result
    tcgen05.st.sync.aligned.16x256b.x1.b32 [%r0], {%r0, %r0}; // error[V-TYPE-7]: the stored vector
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r1}, [%rd0]; // error[V-TYPE-2]: the address in tensor memory
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r1}, [s]; // error[V-TYPE-3]: the address in tensor memory
    tcgen05.cp.cta_group::1.64x128b [%r0], %rd0; // error[V-TYPE-1]: there is no
    tcgen05.mma.cta_group::1.kind::f16 [%r0], %rd0, %r0, %r0, %p0; // error[V-TYPE-2]: the second operand
    tcgen05.mma.cta_group::1.kind::f8f6f4 [%r0], %rd0, %rd0, %r0, %p0, 2; // error[V-TYPE-1]: there is no
    tcgen05.mma.cta_group::2.kind::f16 [%r0], %rd0, %rd0, %r0, {%r0, %r0, %r0, %r0}, %p0; // error[V-TYPE-1]: there is no
    tcgen05.mma.cta_group::1.kind::f16 [%r0], %rd0, %rd0, %r0, {%r0, %r0, %r0, 1}, %p0; // error[V-TYPE-3]: the mask of lanes
    @%p0 tcgen05.wait::ld.sync.aligned;
    ret;
}
";
    let found: Vec<Finding> = found(text).into_iter().filter(|f| f.severity == "error").collect();
    let wrong = unmatched(expected(text), found);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Rules that a parsed module cannot break: the parser reads no values, and reports unknown names and doubles itself.
const WITHOUT_TEXT: [Rule; 5] = [Rule::Def1, Rule::Def2, Rule::Def5, Rule::Def6, Rule::Cfg1];

#[test]
fn every_rule_has_a_good_and_a_bad_example() {
    let names: BTreeSet<String> = std::fs::read_dir(directory())
        .expect("the directory of file tests")
        .map(|e| e.expect("a directory entry").file_name().to_string_lossy().into_owned())
        .collect();
    for rule in Rule::ALL.iter().filter(|r| !WITHOUT_TEXT.contains(r)) {
        for kind in ["good", "bad"] {
            assert!(
                names.contains(&format!("{rule}.{kind}.ptx")),
                "no {kind} example of {rule}: {}",
                rule.description()
            );
        }
    }
    assert_eq!(names.len(), 2 * (Rule::ALL.len() - WITHOUT_TEXT.len()), "files of unknown rules");
}

#[test]
fn rule_names_are_distinct_and_follow_their_family() {
    let names: BTreeSet<_> = Rule::ALL.iter().map(|r| r.name()).collect();
    assert_eq!(names.len(), Rule::ALL.len());
    for rule in Rule::ALL {
        let family = rule.name().split('-').nth(1).unwrap_or_default();
        assert!(["TYPE", "DEF", "TARGET", "MEM", "CALL", "CONV", "CFG", "USE"].contains(&family), "{rule}");
        assert!(rule.description().ends_with('.'), "{rule}: {}", rule.description());
    }
}

/// A kernel of straight-line blocks: each of `blocks` jumps to the next.
fn kernel(registers: &[(ScalarType, RegKind)], blocks: Vec<Vec<Inst>>) -> Module {
    let mut function = Function::entry("k");
    for (ty, kind) in registers {
        function.new_reg(*ty, *kind);
    }
    let last = blocks.len() - 1;
    for (i, instructions) in blocks.into_iter().enumerate() {
        let next = BlockId(u32::try_from(i + 1).expect("few blocks"));
        let terminator =
            if i == last { Terminator::Ret } else { Terminator::Jump { to: next, uniform: false } };
        let instructions = instructions.into_iter().map(Into::into).collect();
        function.blocks.push(Block { instructions, terminator, locations: Vec::new() });
    }
    let mut module = Module::new(PtxVersion::new(7, 0), Target::sm(80));
    module.functions.push(function);
    module
}

fn mov(dst: u32, value: i64) -> Inst {
    Inst::Mov { ty: ScalarType::U32, dst: Reg(dst), src: Operand::int(value) }
}

fn copy(dst: u32, src: u32) -> Inst {
    Inst::Mov { ty: ScalarType::U32, dst: Reg(dst), src: Reg(src).into() }
}

/// Rule, block and index of each finding.
fn places(module: &Module) -> Vec<(Rule, u32, usize)> {
    verify(module).iter().map(|e| (e.rule, e.block.0, e.index)).collect()
}

const VALUE: (ScalarType, RegKind) = (ScalarType::U32, RegKind::Value);
const VARIABLE: (ScalarType, RegKind) = (ScalarType::U32, RegKind::Variable);

#[test]
fn a_value_has_one_definition() {
    assert_eq!(places(&kernel(&[VARIABLE], vec![vec![mov(0, 1)], vec![mov(0, 2)]])), []);
    assert_eq!(places(&kernel(&[VALUE], vec![vec![mov(0, 1)], vec![mov(0, 2)]])), [(Rule::Def1, 1, 0)]);
}

#[test]
fn the_definition_of_a_value_dominates_its_uses() {
    assert_eq!(places(&kernel(&[VALUE, VALUE], vec![vec![mov(0, 1)], vec![copy(1, 0)]])), []);
    // In a block that comes later, and later in the same block.
    let later = kernel(&[VALUE, VALUE], vec![vec![copy(1, 0)], vec![mov(0, 1)]]);
    assert_eq!(places(&later), [(Rule::Def2, 0, 0)]);
    assert_eq!(places(&kernel(&[VALUE, VALUE], vec![vec![copy(1, 0), mov(0, 1)]])), [(Rule::Def2, 0, 0)]);
}

#[test]
fn what_is_named_exists() {
    assert_eq!(places(&kernel(&[VALUE], vec![vec![mov(1, 1)]])), [(Rule::Def5, 0, 0)]);
    let symbol = Inst::Mov { ty: ScalarType::U64, dst: Reg(0), src: Operand::Symbol(SymbolId(3), 0) };
    let module = kernel(&[(ScalarType::U64, RegKind::Value)], vec![vec![symbol]]);
    assert_eq!(places(&module), [(Rule::Def5, 0, 0)]);
    let mut module = kernel(&[VALUE], vec![vec![mov(0, 1)]]);
    module.functions[0].blocks[0].instructions[0].guard = Some(PredUse { reg: Reg(9), negated: false });
    assert_eq!(places(&module), [(Rule::Def5, 0, 0)]);
}

#[test]
fn names_are_distinct() {
    let mut module = kernel(&[VALUE], vec![vec![mov(0, 1)]]);
    module.functions.push(module.functions[0].clone());
    assert_eq!(places(&module), [(Rule::Def6, 0, 0)]);
    module.functions[1].name = "other".into();
    assert_eq!(places(&module), []);
    module.functions[1].params =
        vec![Param::scalar("n", ScalarType::U32), Param::scalar("n", ScalarType::U32)];
    assert_eq!(places(&module), [(Rule::Def6, 0, 0)]);
}

#[test]
fn branches_stay_in_the_kernel_and_a_kernel_has_a_block() {
    let mut module = kernel(&[VALUE], vec![vec![mov(0, 1)]]);
    assert_eq!(places(&module), []);
    module.functions[0].blocks[0].terminator = Terminator::Jump { to: BlockId(4), uniform: false };
    assert_eq!(places(&module)[0], (Rule::Cfg1, 0, 1));
    module.functions[0].blocks.clear();
    assert_eq!(places(&module), [(Rule::Cfg1, 0, 0)]);
}

#[test]
fn atomics_have_the_operands_of_their_operator() {
    let cell = (ScalarType::U64, RegKind::Value);
    let atom = |op, dst, c| Inst::Atom {
        op,
        space: StateSpace::Global,
        ty: ScalarType::B32,
        ordering: Ordering::WEAK,
        noftz: false,
        dst,
        addr: Address::reg(Reg(0), 0),
        b: Operand::int(1),
        c,
        policy: None,
    };
    let set = Inst::Mov { ty: ScalarType::U64, dst: Reg(0), src: Operand::int(0) };
    let with = |inst| places(&kernel(&[cell, VALUE], vec![vec![set.clone(), inst]]));
    let (one, dst) = (Some(Operand::int(1)), Some(Reg(1)));
    assert_eq!(with(atom(AtomOp::Cas, dst, one)), []);
    assert_eq!(with(atom(AtomOp::Cas, dst, None)), [(Rule::Type8, 0, 1)]);
    assert_eq!(with(atom(AtomOp::Exch, dst, one)), [(Rule::Type8, 0, 1)]);
    assert_eq!(with(atom(AtomOp::Exch, None, None)), [(Rule::Type8, 0, 1)]);
    assert_eq!(with(atom(AtomOp::Or, None, None)), []);
}

#[test]
fn aligned_instructions_under_a_guard_name_where_the_lanes_part() {
    let text = "\
.version 7.8
.target sm_90
.address_size 64
.visible .entry k()
.reqntid 128
{
    .reg .b32 %r<8>;
    .reg .pred %p<4>;
    mov.u32 %r1, %tid.x;
    and.b32 %r2, %r1, 7;
    shl.b32 %r3, %r2, 1;
    setp.eq.u32 %p1, %r3, 4;
    @%p1 bra SKIP;
    bar.sync 0;
    mov.u32 %r4, 0;
SKIP:
    bar.sync 1;
    ret;
}
";
    let mut module = text::parse(text).module;
    let findings = verify(&module);
    let [finding] = findings.as_slice() else { panic!("{findings:?}") };
    assert_eq!((finding.rule, finding.severity), (Rule::Conv1, Severity::Warning));
    assert!(finding.breach.to_string().ends_with("depends on `%tid.x`"), "{}", finding.breach);
    let at = |location: SourceLoc| match location {
        SourceLoc::Ptx { line, .. } => line,
        _ => 0,
    };
    assert_eq!(at(finding.location), 14);
    let notes: Vec<_> = finding.notes.iter().map(|n| (at(n.location), n.kind.to_string())).collect();
    let differs = "`%tid.x` differs between the lanes of a warp";
    assert_eq!(notes, [(13, "this branch splits the warp".to_owned()), (9, differs.to_owned())]);
    assert!(finding.help.is_some());
    // The same for a tensor-core instruction.
    let barrier = &mut module.functions[0].blocks[1].instructions[0];
    barrier.inst = Inst::MovMatrix { dst: Reg(2), a: Reg(1).into() };
    assert_eq!(places(&module), [(Rule::Conv5, 1, 0)]);
    // All lanes that differ in `%tid.x >> 5` are in different warps.
    let uniform = text.replace("and.b32 %r2, %r1, 7", "shr.u32 %r2, %r1, 5");
    assert_eq!(places(&text::parse(&uniform).module), []);
}

#[test]
fn a_kernel_is_safe_at_its_barriers_or_where_it_is_not_is_listed() {
    let text = "\
.version 7.8
.target sm_90
.address_size 64
.visible .entry safe(.param .u32 n)
{
    .reg .b32 %r<8>;
    .reg .pred %p<4>;
    ld.param.u32 %r2, [n];
    mov.u32 %r1, %tid.x;
    setp.ge.u32 %p1, %r1, %r2;
    @%p1 bra DONE;
    bar.sync 0;
DONE:
    ret;
}
.visible .entry unsafe(.param .u32 n)
{
    .reg .b32 %r<8>;
    .reg .pred %p<4>;
    ld.param.u32 %r2, [n];
    mov.u32 %r1, %laneid;
    setp.ge.u32 %p1, %r1, %r2;
    @%p1 bra DONE;
    bar.sync 0;
    shfl.sync.bfly.b32 %r3, %r1, 1, 0x1f, 0xffffffff;
DONE:
    @!%p1 bar.sync 0;
    bar.sync 0;
    ret;
}
";
    let mut module = text::parse(text).module;
    assert!(barrier_safety(&module, &module.functions[0]).is_safe());
    let found = barrier_safety(&module, &module.functions[1]);
    let (line, at) = (|l: SourceLoc| matches!(l, SourceLoc::Ptx { line, .. } if line > 0), BlockId(1));
    let told: Vec<_> = found.violations().iter().map(|v| (v.wait, v.block, v.index, v.branch)).collect();
    assert_eq!(
        told,
        [
            (WholeWarp::Barrier, at, 0, Some(BlockId(0))),
            (WholeWarp::Lanes, at, 1, Some(BlockId(0))),
            (WholeWarp::Barrier, BlockId(2), 0, None),
        ]
    );
    for violation in found.violations() {
        let origin = violation.origin.as_ref().expect("an origin");
        assert_eq!(origin.0, "`%laneid`");
        assert!(line(origin.1) && line(violation.location), "{violation:?}");
    }
    assert_eq!(found.violations()[2].guard.map(|g| g.negated), Some(true));
    // Of a broken function nothing is known.
    module.functions[1].blocks[0].terminator = Terminator::Jump { to: BlockId(9), uniform: false };
    let BarrierSafety::NotDecided(why) = barrier_safety(&module, &module.functions[1]) else {
        panic!("it is decided")
    };
    assert_eq!(why.iter().map(|e| e.rule).collect::<Vec<_>>(), [Rule::Cfg1]);
}

#[test]
fn all_errors_are_collected_in_order_and_located() {
    let text = "\
.version 7.8
.target sm_90
.address_size 64
.visible .entry k()
{
    .reg .b32 %r<4>;
    .reg .f32 %f<4>;
    shl.s32 %r1, 1, 2;
    add.f32 %f1, 1.0, 1;
    mov.b64 %r2, 1;
    ret;
}
";
    let parsed = text::parse(text);
    let findings: Vec<_> =
        verify(&parsed.module).into_iter().filter(|e| e.severity == Severity::Error).collect();
    let rules: Vec<_> = findings.iter().map(|e| e.rule).collect();
    assert_eq!(rules, [Rule::Type1, Rule::Type3, Rule::Type2]);
    assert!(has_errors(&findings));
    let lines: Vec<_> = findings.iter().map(|e| format!("{:?}", e.location)).collect();
    assert!(lines[0].contains("line: 8") && lines[2].contains("line: 10"), "{lines:?}");
    assert!(
        findings[0].to_string().starts_with("error[V-TYPE-1]: there is no `shl.s32` (kernel `k`, block 0, ")
    );
    assert_eq!(findings[0].severity, Severity::Error);
}

/// A kernel with `blocks` diamonds, each with barriers, loads and loop-carried registers.
fn large(diamonds: u32) -> Module {
    let mut function = Function::entry("k");
    let [tid, sum] = [0, 1].map(|_| function.new_reg(ScalarType::U32, RegKind::Variable));
    let block = |instructions: Vec<Inst>, terminator| Block {
        instructions: instructions.into_iter().map(Into::into).collect(),
        terminator,
        locations: Vec::new(),
    };
    let jump = |to| Terminator::Jump { to: BlockId(to), uniform: false };
    let tid_x = Inst::Mov { ty: ScalarType::U32, dst: tid, src: Operand::Special(SpecialReg::Tid(Axis::X)) };
    function
        .blocks
        .push(block(vec![tid_x, Inst::Mov { ty: ScalarType::U32, dst: sum, src: Operand::int(0) }], jump(1)));
    let add =
        |dst, a, b| Inst::Binary { op: BinaryOp::Add, ty: ScalarType::U32, mods: Modifiers::NONE, dst, a, b };
    for i in 0..diamonds {
        let at = 1 + 4 * i;
        let pred = function.new_reg(ScalarType::Pred, RegKind::Value);
        let mut head = Vec::new();
        for _ in 0..8 {
            let value = function.new_reg(ScalarType::U32, RegKind::Value);
            head.push(add(value, sum.into(), Operand::int(i64::from(i))));
            head.push(add(sum, sum.into(), value.into()));
        }
        let (cmp, ty) = (CmpOp::Lt, ScalarType::U32);
        let (a, b) = (tid.into(), Operand::int(i64::from(i)));
        head.push(Inst::Setp { cmp, combine: None, ty, ftz: false, dst: pred, dst_not: None, a, b });
        let pred = PredUse { reg: pred, negated: false };
        let fork =
            Terminator::Branch { pred, uniform: false, then: BlockId(at + 1), otherwise: BlockId(at + 2) };
        function.blocks.push(block(head, fork));
        function.blocks.push(block(vec![add(sum, sum.into(), Operand::int(1))], jump(at + 3)));
        function.blocks.push(block(vec![add(sum, sum.into(), Operand::int(2))], jump(at + 3)));
        let barrier =
            Inst::Barrier { kind: BarrierKind::Sync, aligned: true, id: Operand::int(0), count: None };
        function.blocks.push(block(vec![barrier], jump(at + 4)));
    }
    function.blocks.push(block(Vec::new(), Terminator::Ret));
    let mut module = Module::new(PtxVersion::new(7, 0), Target::sm(80));
    module.functions.push(function);
    module
}

#[test]
fn time_stays_near_linear_in_the_number_of_instructions() {
    let module = large(5000);
    let count: usize = module.functions[0].blocks.iter().map(|b| b.instructions.len()).sum();
    assert!(count >= 100_000, "{count} instructions");
    let start = std::time::Instant::now();
    let findings = verify(&module);
    let elapsed = start.elapsed();
    assert!(findings.is_empty(), "{:?}", findings.first());
    println!("{count} instructions in {elapsed:?}");
    // Unoptimised and on a busy machine; a quadratic pass would take minutes.
    assert!(elapsed.as_secs_f64() < 5.0, "{elapsed:?}");
}
