//! The canonical form: names, labels, declarations and line origins.

use warpwright_ptx::text::{print, print_with_lines};
use warpwright_ptx::*;

fn block(instructions: Vec<Instruction>, terminator: Terminator) -> Block {
    Block { instructions, terminator, locations: Vec::new() }
}

fn module(function: Function) -> Module {
    let mut module = Module::new(PtxVersion::new(7, 8), Target::specific(90));
    module.functions.push(function);
    module
}

/// The lines between `{` and `}`, trimmed.
fn body(function: Function) -> Vec<String> {
    let text = print(&module(function));
    let inner = text.split_once("\n{\n").unwrap().1.rsplit_once("\n}").unwrap().0;
    inner.lines().map(|line| line.trim().to_owned()).collect()
}

fn add(dst: Reg, a: impl Into<Operand>, b: Operand) -> Instruction {
    Inst::Binary { op: BinaryOp::Add, ty: ScalarType::F32, mods: Modifiers::RN, dst, a: a.into(), b }.into()
}

#[test]
fn a_whole_module() {
    let mut f = Function::entry("scale");
    f.params.push(Param::scalar("x", ScalarType::U64));
    f.params.push(Param { array: Some(128), align: 64, ..Param::scalar("map", ScalarType::B8) });
    f.params.push(Param {
        pointer: Some(PointerAttr { space: StateSpace::Global, align: Some(16) }),
        ..Param::scalar("y", ScalarType::U64)
    });
    f.directives.required_threads = Some([256, 1, 1]);
    f.directives.min_blocks_per_sm = Some(2);
    let x = f.symbol(Symbol::Param(0));
    let table = f.symbol(Symbol::ModuleVariable(1));
    f.new_reg(ScalarType::F64, RegKind::Value); // never used, so never declared
    let (wide, float) =
        (f.new_reg(ScalarType::B64, RegKind::Value), f.new_reg(ScalarType::F32, RegKind::Value));
    let load = |space, ty, dst, addr| Inst::Ld {
        space,
        ty,
        ordering: Ordering::WEAK,
        hints: CacheHints::NONE,
        non_coherent: false,
        dsts: vec![Some(dst)],
        addr,
    };
    f.blocks.push(block(
        vec![
            load(StateSpace::Param, ScalarType::U64, wide, Address::symbol(x, 0)).into(),
            load(StateSpace::Const, ScalarType::F32, float, Address::symbol(table, 4)).into(),
            Inst::St {
                space: StateSpace::Global,
                ty: ScalarType::F32,
                ordering: Ordering::new(Semantics::Release, Scope::Gpu),
                hints: CacheHints::NONE,
                srcs: vec![float.into(), Operand::f32(-0.0)],
                addr: Address::reg(wide, -8),
            }
            .into(),
        ],
        Terminator::Ret,
    ));
    let variable = |name: &str, space, ty, len, linkage, init| Variable {
        name: name.to_owned(),
        space,
        ty,
        align: 4,
        len,
        array: true,
        linkage,
        init,
        managed: false,
        unified: None,
    };
    let mut m = module(f);
    m.variables.push(variable("dyn", StateSpace::Shared, ScalarType::B8, None, Linkage::Extern, None));
    let init = [1f32.to_le_bytes(), 2.5f32.to_le_bytes()].concat();
    m.variables.push(variable(
        "table",
        StateSpace::Const,
        ScalarType::F32,
        Some(4),
        Linkage::Internal,
        Some(init.into_iter().collect()),
    ));
    assert_eq!(
        print(&m),
        "\
.version 7.8
.target sm_90a
.address_size 64

.extern .shared .align 4 .b8 dyn[];
.const .align 4 .f32 table[4] = {0f3F800000, 0f40200000};

.visible .entry scale(
    .param .u64 x,
    .param .align 64 .b8 map[128],
    .param .u64 .ptr .global .align 16 y
)
.reqntid 256, 1, 1
.minnctapersm 2
{
    .reg .b64 %rd<1>;
    .reg .f32 %f<1>;
    ld.param.u64 %rd0, [x];
    ld.const.f32 %f0, [table+4];
    st.release.gpu.global.v2.f32 [%rd0+-8], {%f0, 0f80000000};
    ret;
}
"
    );
}

#[test]
fn registers_are_numbered_by_appearance() {
    let mut f = Function::entry("k");
    let regs: Vec<Reg> = (0..3).map(|_| f.new_reg(ScalarType::F32, RegKind::Variable)).collect();
    f.blocks.push(block(vec![add(regs[2], regs[0], Operand::f32(1.0))], Terminator::Exit));
    assert_eq!(body(f), [".reg .f32 %f<2>;", "add.rn.f32 %f0, %f1, 0f3F800000;", "exit;"]);
}

#[test]
fn registers_keep_clear_of_parameter_names() {
    let mut f = Function::entry("k");
    f.params.push(Param::scalar("%f0", ScalarType::F32));
    let r = f.new_reg(ScalarType::F32, RegKind::Variable);
    f.blocks.push(block(vec![add(r, r, Operand::f32(1.0))], Terminator::Ret));
    assert_eq!(body(f)[0], ".reg .f32 %f_<1>;");
}

#[test]
fn labels_keep_clear_of_parameter_names() {
    let mut f = Function::entry("k");
    f.params.push(Param::scalar("$B7", ScalarType::F32));
    f.blocks.push(block(Vec::new(), Terminator::Jump { to: BlockId(0), uniform: true }));
    assert_eq!(body(f), ["$B_0:", "bra.uni $B_0;"]);
}

#[test]
fn labels_stand_only_where_a_branch_goes() {
    let mut f = Function::entry("k");
    let reg = f.new_reg(ScalarType::Pred, RegKind::Variable);
    let pred = PredUse { reg, negated: false };
    let jump = |to| Terminator::Jump { to: BlockId(to), uniform: false };
    let branch = |then, otherwise| Terminator::Branch {
        pred,
        uniform: false,
        then: BlockId(then),
        otherwise: BlockId(otherwise),
    };
    let full = |terminator| block(vec![Inst::Brkpt.into()], terminator);
    let empty = |terminator| block(Vec::new(), terminator);
    f.blocks = vec![
        full(jump(2)),          // falls through an empty block
        empty(jump(2)),         // falls
        full(branch(3, 5)),     // the negated branch skips two blocks
        full(jump(4)),          // falls
        full(jump(9)),          //
        full(branch(2, 6)),     // back edge, falls out
        full(branch(9, 2)),     // neither is next
        full(jump(7)),          // unreachable self loop
        full(branch(9, 9)),     // both ways to the next block
        full(branch(10, 12)),   // a guarded return, through an empty block
        empty(jump(11)),        //
        empty(Terminator::Ret), // belongs to the branch above
        full(Terminator::Exit),
    ];
    assert_eq!(
        body(f),
        [
            ".reg .pred %p<1>;",
            "brkpt;",
            "$B0:",
            "brkpt;",
            "@!%p0 bra $B1;",
            "brkpt;",
            "brkpt;",
            "bra $B3;",
            "$B1:",
            "brkpt;",
            "@%p0 bra $B0;",
            "brkpt;",
            "@%p0 bra $B3;",
            "bra $B0;",
            "$B2:",
            "brkpt;",
            "bra $B2;",
            "brkpt;",
            "$B3:",
            "brkpt;",
            "@%p0 ret;",
            "brkpt;",
            "exit;"
        ]
    );
}

#[test]
fn lines_carry_the_place_that_recorded_them() {
    let here = std::panic::Location::caller();
    let mut f = Function::entry("k");
    let r = f.new_reg(ScalarType::F32, RegKind::Variable);
    f.blocks.push(Block {
        instructions: vec![add(r, r, Operand::f32(1.0))],
        terminator: Terminator::Ret,
        locations: vec![SourceLoc::Rust(here), SourceLoc::Ptx { line: 7, column: 3 }],
    });
    let printed = print_with_lines(&module(f));
    assert_eq!(printed.lines.len(), printed.text.lines().count());
    for (line, origin) in printed.text.lines().zip(&printed.lines) {
        let expected = match line.trim() {
            "add.rn.f32 %f0, %f0, 0f3F800000;" => {
                matches!(origin, SourceLoc::Rust(at) if at.line() == here.line())
            }
            "ret;" => matches!(origin, SourceLoc::Ptx { line: 7, column: 3 }),
            _ => matches!(origin, SourceLoc::Unknown),
        };
        assert!(expected, "{line}: {origin:?}");
    }
}
