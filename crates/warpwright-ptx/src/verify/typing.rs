//! V-TYPE: operators, types, modifiers and operands fit together.

mod asynchronous;
mod tcgen05;
mod tensor;

use super::{Breach, Checker, Rule};
use crate::inst::*;
use crate::isa::{self, Misfit};
use crate::types::ScalarType::{self, *};
use crate::types::{StateSpace, TypeClass};
use asynchronous::three;

/// How the width of a register may differ from the instruction type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Width {
    /// Not at all.
    Exact,
    /// The register may be wider: `ld`, `st` and `cvt`.
    OrWider,
}

pub(super) fn check(cx: &mut Checker<'_>) {
    cx.each(|cx, instruction| {
        if let Some(guard) = instruction.guard {
            predicate(cx, guard.reg, "the guard");
        }
        form(cx, &instruction.inst);
        operands(cx, &instruction.inst);
    });
    for (b, block) in (0u32..).zip(&cx.function.blocks) {
        (cx.block, cx.index) = (BlockId(b), block.instructions.len());
        match &block.terminator {
            Terminator::Branch { pred, .. } => predicate(cx, pred.reg, "the condition of a branch"),
            Terminator::BranchIndexed { index, .. } => {
                register(cx, *index, U32, Width::Exact, "the index of a branch");
            }
            Terminator::Jump { .. } | Terminator::Ret | Terminator::Exit => {}
        }
    }
}

/// V-TYPE-1 and V-TYPE-4: the row of the operator.
fn form(cx: &mut Checker<'_>, inst: &Inst) {
    match isa::form(inst) {
        Ok(_) => {}
        Err(Misfit::Types) => cx.report(Rule::Type1, Breach::NoSuchForm { form: spelling(inst) }),
        Err(Misfit::Modifiers(error)) => {
            cx.report(Rule::Type4, Breach::Modifiers { form: spelling(inst), error });
        }
    }
}

/// Operator and types as PTX spells them, without modifiers.
fn spelling(inst: &Inst) -> String {
    match inst {
        Inst::Unary { op, ty, .. } => format!("{op}.{ty}"),
        Inst::Binary { op, ty, .. } => format!("{op}.{ty}"),
        Inst::Ternary { op, ty, .. } => format!("{op}.{ty}"),
        Inst::Bfi { ty, .. } => format!("bfi.{ty}"),
        Inst::Dp4a { a_ty, b_ty, .. } => format!("dp4a.{a_ty}.{b_ty}"),
        Inst::Setp { cmp, ty, .. } => format!("setp.{cmp}.{ty}"),
        Inst::Set { cmp, dst_ty, ty, .. } => format!("set.{cmp}.{dst_ty}.{ty}"),
        Inst::Selp { ty, .. } => format!("selp.{ty}"),
        Inst::Slct { ty, c_ty, .. } => format!("slct.{ty}.{c_ty}"),
        Inst::Mov { ty, .. } | Inst::Pack { ty, .. } | Inst::Unpack { ty, .. } => format!("mov.{ty}"),
        Inst::Cvt { to, from, .. } => format!("cvt.{to}.{from}"),
        Inst::Cvta { ty, .. } => format!("cvta.{ty}"),
        Inst::Ld { ty, .. } => format!("ld.{ty}"),
        Inst::St { ty, .. } => format!("st.{ty}"),
        Inst::Atom { op, ty, dst: Some(_), .. } => format!("atom.{op}.{ty}"),
        Inst::Atom { op, ty, dst: None, .. } => format!("red.{op}.{ty}"),
        Inst::Match { ty, .. } => format!("match.{ty}"),
        Inst::Redux { op, ty, .. } => format!("redux.sync.{op}.{ty}"),
        _ => crate::text::mnemonic(inst),
    }
}

/// Whether a register of type `reg` serves as an operand of type `ty`.
fn fits(reg: ScalarType, ty: ScalarType, width: Width) -> bool {
    if reg == Pred || ty == Pred {
        return reg == ty;
    }
    let wide_enough = match width {
        Width::Exact => reg.bits() == ty.bits(),
        Width::OrWider => reg.bits() >= ty.bits(),
    };
    let same_width = reg.bits() == ty.bits();
    match (ty.class(), reg.class()) {
        (_, TypeClass::Predicate) | (TypeClass::Predicate, _) => false,
        (TypeClass::Bits, _) => wide_enough,
        (TypeClass::Unsigned | TypeClass::Signed, TypeClass::Float) => {
            // The assembler takes packed halves for 32 untyped bits here.
            reg == F16x2 && wide_enough
        }
        (TypeClass::Unsigned | TypeClass::Signed, _) => wide_enough,
        (TypeClass::Float, TypeClass::Bits) => match ty {
            // These have no registers of their own and are never widened.
            BF16 | BF16x2 | TF32 | F32x2 | E4M3x2 | E5M2x2 | E2M1x2 | E2M3x2 | E3M2x2 | UE8M0x2 | E4M3x4
            | E5M2x4 | E2M1x4 | E2M3x4 | E3M2x4 => same_width,
            _ => wide_enough,
        },
        (TypeClass::Float, TypeClass::Float) => reg == ty && same_width,
        (TypeClass::Float, TypeClass::Unsigned | TypeClass::Signed) => false,
    }
}

/// Whether a literal serves as an operand of type `ty`.
fn literal_fits(literal: Imm, ty: ScalarType) -> bool {
    match (ty.class(), literal) {
        (TypeClass::Bits | TypeClass::Unsigned | TypeClass::Signed, Imm::Int(_)) => true,
        (TypeClass::Bits, Imm::F32(_)) => ty.bits() == 32,
        (TypeClass::Bits, Imm::F64(_)) => ty.bits() == 64,
        (TypeClass::Float, Imm::F32(_) | Imm::F64(_)) => matches!(ty, F32 | F64),
        (TypeClass::Predicate, Imm::Int(_)) => true,
        _ => false,
    }
}

fn predicate(cx: &mut Checker<'_>, r: Reg, what: &'static str) {
    let found = cx.type_of(r);
    if found != Pred {
        cx.report(Rule::Type9, Breach::NotPredicate { operand: what, ty: found });
    }
}

fn register(cx: &mut Checker<'_>, r: Reg, ty: ScalarType, width: Width, what: &'static str) {
    let found = cx.type_of(r);
    if fits(found, ty, width) {
        return;
    }
    if ty == Pred {
        cx.report(Rule::Type9, Breach::NotPredicate { operand: what, ty: found });
    } else {
        cx.report(Rule::Type2, Breach::RegisterType { operand: what, ty: found, needed: ty });
    }
}

fn result(cx: &mut Checker<'_>, r: Reg, ty: ScalarType) {
    register(cx, r, ty, Width::Exact, "the result");
}

/// A source that is a register or a literal.
fn source(cx: &mut Checker<'_>, o: Operand, ty: ScalarType, what: &'static str) {
    source_of_width(cx, o, ty, Width::Exact, what);
}

fn source_of_width(cx: &mut Checker<'_>, o: Operand, ty: ScalarType, width: Width, what: &'static str) {
    match o {
        Operand::Reg(r) => register(cx, r, ty, width, what),
        Operand::Imm(literal) => {
            if !literal_fits(literal, ty) {
                cx.report(Rule::Type3, Breach::LiteralType { operand: what, literal, needed: ty });
            }
        }
        Operand::Special(_) => cx.report(Rule::Type5, Breach::SpecialOperand { operand: what }),
        Operand::Symbol(..) => cx.report(Rule::Type6, Breach::SymbolOperand { operand: what }),
    }
}

const A: &str = "the first operand";
const B: &str = "the second operand";
const C: &str = "the third operand";
const D: &str = "the fourth operand";
const MASK: &str = "the lane mask";

#[allow(clippy::too_many_lines, reason = "one arm per instruction shape")]
fn operands(cx: &mut Checker<'_>, inst: &Inst) {
    match *inst {
        Inst::Unary { op, ty, dst, a, .. } => {
            source(cx, a, ty, A);
            result(cx, dst, isa::unary_result(op, ty));
        }
        Inst::Binary { op, ty, dst, a, b, .. } => {
            let (second, out) = match op {
                BinaryOp::Shl | BinaryOp::Shr => (U32, ty),
                BinaryOp::Szext | BinaryOp::SzextWrap => (U32, ty),
                BinaryOp::MulWide => (ty, isa::widened(ty)),
                _ => (ty, ty),
            };
            source(cx, a, ty, A);
            source(cx, b, second, B);
            result(cx, dst, out);
        }
        Inst::Ternary { op, ty, dst, a, b, c, .. } => {
            use TernaryOp::*;
            let (second, third, out) = match op {
                Bfe => (U32, U32, ty),
                ShfLWrap | ShfLClamp | ShfRWrap | ShfRClamp => (ty, U32, ty),
                MadWide => (ty, isa::widened(ty), isa::widened(ty)),
                Sad => (ty, isa::unsigned(ty), isa::unsigned(ty)),
                _ => (ty, ty, ty),
            };
            source(cx, a, ty, A);
            source(cx, b, second, B);
            source(cx, c, third, C);
            result(cx, dst, out);
        }
        Inst::Bfi { ty, dst, a, b, pos, len } => {
            source(cx, a, ty, A);
            source(cx, b, ty, B);
            source(cx, pos, U32, C);
            source(cx, len, U32, D);
            result(cx, dst, ty);
        }
        Inst::Lop3 { dst, a, b, c, .. } => {
            source(cx, a, B32, A);
            source(cx, b, B32, B);
            source(cx, c, B32, C);
            result(cx, dst, B32);
        }
        Inst::Dp4a { dst, a, b, c, .. } => {
            source(cx, a, U32, A);
            source(cx, b, U32, B);
            source(cx, c, U32, C);
            result(cx, dst, U32);
        }
        Inst::Setp { combine, ty, dst, dst_not, a, b, .. } => {
            source(cx, a, ty, A);
            source(cx, b, ty, B);
            combined(cx, combine);
            result(cx, dst, Pred);
            if let Some(q) = dst_not {
                register(cx, q, Pred, Width::Exact, "the second result");
            } else if matches!(ty, F16x2 | BF16x2) {
                cx.report(Rule::Type8, Breach::OneResultOfHalves { ty });
            }
        }
        Inst::Set { combine, dst_ty, ty, dst, a, b, .. } => {
            source(cx, a, ty, A);
            source(cx, b, ty, B);
            combined(cx, combine);
            result(cx, dst, dst_ty);
        }
        Inst::Selp { ty, dst, a, b, pred } => {
            source(cx, a, ty, A);
            source(cx, b, ty, B);
            predicate(cx, pred, "the selector");
            result(cx, dst, ty);
        }
        Inst::Slct { ty, c_ty, dst, a, b, c, .. } => {
            source(cx, a, ty, A);
            source(cx, b, ty, B);
            source(cx, c, c_ty, C);
            result(cx, dst, ty);
        }
        Inst::Mov { ty, dst, src } => {
            moved(cx, src, ty);
            result(cx, dst, ty);
        }
        Inst::Pack { ty, dst, ref parts } => {
            if let Some(part) = part_type(cx, ty, parts.len()) {
                for p in parts {
                    source(cx, *p, part, "a part");
                }
            }
            result(cx, dst, ty);
        }
        Inst::Unpack { ty, ref dsts, src } => {
            if let Some(part) = part_type(cx, ty, dsts.len()) {
                for d in dsts.iter().flatten() {
                    register(cx, *d, part, Width::Exact, "a part");
                }
            }
            source(cx, src, ty, A);
        }
        Inst::PredBinary { dst, a, b, .. } => {
            predicate(cx, a, A);
            predicate(cx, b, B);
            result(cx, dst, Pred);
        }
        Inst::PredNot { dst, a } => {
            predicate(cx, a, A);
            result(cx, dst, Pred);
        }
        Inst::PredMov { dst, a } => {
            moved(cx, a, Pred);
            result(cx, dst, Pred);
        }
        Inst::Cvt { to, from, dst, a, b, .. } => convert(cx, to, from, dst, a, b),
        Inst::Cvta { to_space, space, ty, dst, src } => {
            match src {
                Operand::Symbol(..) if !to_space => {}
                _ => source(cx, src, ty, A),
            }
            if space == StateSpace::Generic {
                cx.report(Rule::Mem1, Breach::CvtaGeneric);
            }
            result(cx, dst, ty);
        }
        Inst::Isspacep { dst, a, .. } => {
            // A 32-bit address is taken too.
            let narrow = matches!(a, Operand::Reg(r) if cx.type_of(r).bits() == 32);
            source(cx, a, if narrow { U32 } else { U64 }, A);
            result(cx, dst, Pred);
        }
        Inst::Ld { space, ty, ref hints, ref dsts, .. } => {
            vector(cx, space, ty, dsts.len());
            for d in dsts.iter().flatten() {
                register(cx, *d, ty, Width::OrWider, "the result");
            }
            policy(cx, hints.policy);
        }
        Inst::St { space, ty, ref hints, ref srcs, .. } => {
            vector(cx, space, ty, srcs.len());
            for s in srcs {
                source_of_width(cx, *s, ty, Width::OrWider, "the stored operand");
            }
            policy(cx, hints.policy);
        }
        Inst::Prefetch { .. } | Inst::Fence { .. } | Inst::Brkpt | Inst::Trap => {}
        Inst::Atom { op, ty, dst, b, c, noftz, policy: p, .. } => {
            atomic(cx, op, ty, dst, b, c, noftz);
            policy(cx, p);
        }
        Inst::Shfl { dst, pred, a, b, c, mask, .. } => {
            source(cx, a, B32, A);
            source(cx, b, U32, B);
            source(cx, c, U32, C);
            source(cx, mask, U32, MASK);
            result(cx, dst, B32);
            if let Some(p) = pred {
                register(cx, p, Pred, Width::Exact, "the second result");
            }
        }
        Inst::Vote { mode, dst, src, mask } => {
            predicate(cx, src.reg, A);
            source(cx, mask, U32, MASK);
            result(cx, dst, if mode == VoteMode::Ballot { B32 } else { Pred });
        }
        Inst::Match { all, ty, dst, pred, a, mask } => {
            source(cx, a, ty, A);
            source(cx, mask, U32, MASK);
            result(cx, dst, U32);
            if let Some(p) = pred {
                register(cx, p, Pred, Width::Exact, "the second result");
                if !all {
                    cx.report(Rule::Type8, Breach::MatchAnyPredicate);
                }
            }
        }
        Inst::Redux { ty, dst, a, mask, .. } => {
            source(cx, a, ty, A);
            source(cx, mask, U32, MASK);
            result(cx, dst, ty);
        }
        Inst::Activemask { dst } => result(cx, dst, B32),
        Inst::Elect { dst, pred, mask } => {
            source(cx, mask, U32, MASK);
            if let Some(d) = dst {
                result(cx, d, U32);
            }
            register(cx, pred, Pred, Width::Exact, "the second result");
        }
        Inst::Barrier { ref kind, id, count, .. } => {
            source(cx, id, U32, "the barrier number");
            if let Some(count) = count {
                source(cx, count, U32, "the count of threads");
            } else if *kind == BarrierKind::Arrive {
                cx.report(Rule::Type8, Breach::ArriveWithoutCount);
            }
            if let BarrierKind::Reduce { op, dst, src } = *kind {
                predicate(cx, src.reg, "the reduced operand");
                result(cx, dst, if op == BarRedOp::Popc { U32 } else { Pred });
            }
        }
        Inst::WarpBarrier { mask } => source(cx, mask, U32, MASK),
        Inst::Nanosleep { duration } => source(cx, duration, U32, A),
        Inst::Dp2a { dst, a, b, c, .. } | Inst::Video { dst, a, b, c, .. } => {
            three(cx, [a, b, c], U32);
            result(cx, dst, U32);
        }
        Inst::Lop3Pred { dst, pred, a, b, c, q, .. } => {
            three(cx, [a, b, c], B32);
            predicate(cx, q.reg, D);
            if let Some(d) = dst {
                result(cx, d, B32);
            }
            register(cx, pred, Pred, Width::Exact, "the second result");
        }
        Inst::Fns { dst, mask, base, offset } => {
            three(cx, [mask, base, offset], B32);
            result(cx, dst, B32);
        }
        Inst::MinMax3 { ty, dst, a, b, c, .. } => {
            three(cx, [a, b, c], ty);
            result(cx, dst, ty);
        }
        Inst::Mixed { narrow, dst, a, b, c, .. } => {
            source(cx, a, narrow, A);
            if let Some(b) = b {
                source(cx, b, narrow, B);
            }
            source(cx, c, F32, C);
            result(cx, dst, F32);
        }
        Inst::CvtStochastic { to, from, dst, ref srcs, bits, .. } => {
            let halves = matches!(to, F16x2 | BF16x2);
            if srcs.len() != if halves { 2 } else { 4 } {
                cx.report(Rule::Type7, Breach::ConvertedValues { values: srcs.len(), ty: to });
            }
            for s in srcs {
                source(cx, *s, from, A);
            }
            source(cx, bits, B32, "the random bits");
            result(cx, dst, to);
        }
        Inst::CvtPack { to, dst, a, b, c } => {
            source(cx, a, S32, A);
            source(cx, b, S32, B);
            if c.is_some() != (to.bits() < 16) {
                cx.report(Rule::Type8, Breach::CvtPackOperand { to });
            }
            if let Some(c) = c {
                source(cx, c, B32, C);
            }
            result(cx, dst, B32);
        }
        Inst::Ldu { ty, ref dsts, .. } => {
            // Without the long vectors of `ld`.
            vector(cx, StateSpace::Shared, ty, dsts.len());
            for d in dsts.iter().flatten() {
                register(cx, *d, ty, Width::OrWider, "the result");
            }
        }
        Inst::AtomVector { op, space, ty, noftz, ref dsts, ref srcs, policy: p, .. } => {
            asynchronous::atomic_vector(cx, op, space, ty, noftz, dsts.as_deref(), srcs);
            policy(cx, p);
        }
        Inst::Mma(ref m) => tensor::mma(cx, m),
        Inst::LdMatrix { tiles, ref dsts, .. } => tensor::load_matrix(cx, tiles, dsts),
        Inst::StMatrix { tiles, ref srcs, .. } => tensor::store_matrix(cx, tiles, srcs),
        Inst::MovMatrix { dst, a } => {
            tensor::only_register(cx, a, B32, A);
            result(cx, dst, B32);
        }
        Inst::Wgmma(ref m) => tensor::wgmma(cx, m),
        Inst::Tcgen05(ref t) => tcgen05::tcgen05(cx, t),
        Inst::WmmaLoad { ref tile, ref dsts } => tensor::wmma_load(cx, tile, dsts),
        Inst::WmmaStore { ref tile, ref srcs } => tensor::wmma_store(cx, tile, srcs),
        Inst::Wmma(ref m) => tensor::wmma(cx, m),
        Inst::SetMaxNreg { count, .. } => tensor::max_registers(cx, count),
        Inst::Call { .. } => super::calls::operands(cx, inst),
        _ => asynchronous::operands(cx, inst),
    }
}

fn combined(cx: &mut Checker<'_>, combine: Option<(BoolOp, PredUse)>) {
    if let Some((_, p)) = combine {
        predicate(cx, p.reg, C);
    }
}

/// The source of a `mov`.
fn moved(cx: &mut Checker<'_>, src: Operand, ty: ScalarType) {
    match src {
        Operand::Special(s) => {
            if ty.is_float() || !isa::special_widths(s).contains(&ty.bits()) {
                cx.report(Rule::Type5, Breach::MovSpecial { ty, special: isa::special_type(s) });
            }
        }
        Operand::Symbol(..) => {
            if ty.is_float() || !matches!(ty.bits(), 32 | 64) {
                cx.report(Rule::Type6, Breach::MovAddress { ty });
            }
        }
        Operand::Reg(_) | Operand::Imm(_) => source(cx, src, ty, A),
    }
}

fn convert(cx: &mut Checker<'_>, to: ScalarType, from: ScalarType, dst: Reg, a: Operand, b: Option<Operand>) {
    // Where a type without registers of its own takes part, nothing is widened.
    let narrow = |t| matches!(t, BF16 | BF16x2 | TF32 | E4M3x2 | E5M2x2 | E2M1x2 | E2M3x2 | E3M2x2 | UE8M0x2);
    let width = if narrow(to) || narrow(from) { Width::Exact } else { Width::OrWider };
    match a {
        Operand::Special(s) => {
            let widest = isa::special_type(s).bits();
            if b.is_some() || !from.is_integer() || from.bits() > widest || widest == 1 {
                cx.report(Rule::Type5, Breach::CvtSpecial { from });
            }
        }
        _ => source_of_width(cx, a, from, width, A),
    }
    if let Some(b) = b {
        source_of_width(cx, b, from, width, B);
    }
    register(cx, dst, to, width, "the result");
}

/// V-TYPE-7 for `mov` that packs or unpacks: the type of one part.
fn part_type(cx: &mut Checker<'_>, ty: ScalarType, parts: usize) -> Option<ScalarType> {
    let part = match (ty.bits(), parts) {
        (16, 2) | (32, 4) => B8,
        (32, 2) | (64, 4) => B16,
        (64, 2) | (128, 4) => B32,
        (128, 2) => B64,
        _ => {
            cx.report(Rule::Type7, Breach::Parts { parts, ty });
            return None;
        }
    };
    Some(part)
}

/// V-TYPE-7 for loads and stores.
fn vector(cx: &mut Checker<'_>, space: StateSpace, ty: ScalarType, width: usize) {
    match isa::vector(width, ty.bits()) {
        None => cx.report(Rule::Type7, Breach::NoVector { elements: width, ty }),
        Some(_)
            if width as u64 * u64::from(ty.bytes()) > 16
                && !matches!(space, StateSpace::Global | StateSpace::Generic) =>
        {
            cx.report(Rule::Type7, Breach::GlobalVector { elements: width, ty });
        }
        Some(_) => {}
    }
}

fn policy(cx: &mut Checker<'_>, policy: Option<Reg>) {
    if let Some(p) = policy {
        register(cx, p, B64, Width::Exact, "the cache policy");
    }
}

fn atomic(
    cx: &mut Checker<'_>,
    op: AtomOp,
    ty: ScalarType,
    dst: Option<Reg>,
    b: Operand,
    c: Option<Operand>,
    noftz: bool,
) {
    source(cx, b, ty, B);
    if let Some(c) = c {
        source(cx, c, ty, C);
    }
    if let Some(d) = dst {
        result(cx, d, ty);
    }
    match (op, c) {
        (AtomOp::Cas, None) => cx.report(Rule::Type8, Breach::CasOperands),
        (AtomOp::Cas, Some(_)) | (_, None) => {}
        (_, Some(_)) => cx.report(Rule::Type8, Breach::OneOperand { op }),
    }
    if dst.is_none() && matches!(op, AtomOp::Cas | AtomOp::Exch) {
        cx.report(Rule::Type8, Breach::NoReduction { op });
    }
    let half_add = op == AtomOp::Add && matches!(ty, F16 | F16x2 | BF16 | BF16x2);
    if half_add != noftz {
        cx.report(Rule::Type4, Breach::Noftz { op: op.name(), ty, needed: half_add });
    }
}
