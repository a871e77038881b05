//! How instructions pass definedness on from their operands to their results.

use warpwright_ptx::{
    BinaryOp, BoolOp, Inst, Modifiers, Operand, Reg, Role, ScalarType, StateSpace, TernaryOp, UnaryOp,
};

use super::defined::Analysis;
use super::{Decoder, index};
use crate::code::definedness::{DEFINED, Passing, Rule, Shuffled, Source, Target, UNDEFINED};
use crate::code::op::Op;

/// The treatment of undefined operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// They decide something: an error.
    Used,
    /// Results are as defined as operands.
    Passed,
    /// The shuffled register goes to other lanes; the operands that say to which are used.
    Shuffled,
    /// The value is stored to shared memory; the address is used.
    Stored,
}

/// Tables of `lop3` for functions of two bits, and of a choice by the third.
const AND: u8 = 0xF0 & 0xCC;
const OR: u8 = 0xF0 | 0xCC;
const XOR: u8 = 0xF0 ^ 0xCC;
const NOT: u8 = !0xF0;
const CHOICE: u8 = 0xF0 & 0xAA | 0xCC & !0xAA;

/// The effect of undefined operands on an instruction.
pub(crate) fn fate(inst: &Inst) -> Fate {
    match inst {
        Inst::Shfl { .. } => Fate::Shuffled,
        Inst::St { space: StateSpace::Shared, .. } => Fate::Stored,
        // What these give is of a place or of the device.
        Inst::Ld { .. }
        | Inst::Ldu { .. }
        | Inst::Isspacep { .. }
        | Inst::Activemask { .. }
        | Inst::CreatePolicy { .. }
        | Inst::Mapa { .. }
        | Inst::GetCtaRank { .. }
        | Inst::MbarrierPendingCount { .. } => Fate::Used,
        // Nothing follows the carry flag.
        _ if inst.has_side_effects() || inst.uses_carry() => Fate::Used,
        _ => Fate::Passed,
    }
}

/// The registers that decide something in an instruction which does not pass all of them on, and those whose values it hands on, to
/// other lanes or to memory.
pub(super) fn uses(inst: &Inst) -> (Vec<Reg>, Vec<Reg>) {
    let mut used = Vec::new();
    inst.visit(|role, r| {
        if role == Role::Use {
            used.push(r);
        }
    });
    let handed_on: Vec<Reg> = match inst {
        Inst::Shfl { a, .. } => register(a).into_iter().collect(),
        Inst::St { srcs, .. } => srcs.iter().filter_map(register).collect(),
        _ => Vec::new(),
    };
    for r in &handed_on {
        // Once each: the same register may be an address too.
        if let Some(at) = used.iter().position(|u| u == r) {
            used.remove(at);
        }
    }
    (used, handed_on)
}

/// The operands that are not used but passed on.
pub(crate) fn passed(inst: &Inst, mut each: impl FnMut(Reg)) {
    match fate(inst) {
        Fate::Passed => inst.visit(|role, r| {
            if role == Role::Use {
                each(r);
            }
        }),
        Fate::Shuffled | Fate::Stored => uses(inst).1.into_iter().for_each(each),
        Fate::Used => {}
    }
}

pub(super) fn register(operand: &Operand) -> Option<Reg> {
    if let Operand::Reg(r) = operand { Some(*r) } else { None }
}

/// Integers whose sums and products are of the whole register.
fn is_integer(ty: ScalarType, mods: &Modifiers) -> bool {
    !ty.is_float() && !matches!(ty, ScalarType::U16x2 | ScalarType::S16x2) && !mods.sat && !mods.relu
}

/// The rule for an instruction, and those of its operands that it looks at, in its order.
pub(crate) fn rule(inst: &Inst) -> Option<(Rule, Vec<Operand>)> {
    let moved = |operands: &[Operand], moved: usize| {
        Some((Rule::Move { inst: Box::new(inst.clone()), moved }, operands.to_vec()))
    };
    let logic = |table, operands: &[Operand]| Some((Rule::Logic { table }, operands.to_vec()));
    Some(match inst {
        Inst::Unary { op: UnaryOp::Not, a, .. } => return logic(NOT, &[*a]),
        Inst::Unary { op: UnaryOp::Brev, a, .. } => return moved(&[*a], 1),
        Inst::Unary { op: UnaryOp::Neg, ty, mods, a, .. } if is_integer(*ty, mods) => (Rule::Carry, vec![*a]),
        Inst::Binary { op, ty, mods, a, b, .. } => match op {
            BinaryOp::And => return logic(AND, &[*a, *b]),
            BinaryOp::Or => return logic(OR, &[*a, *b]),
            BinaryOp::Xor => return logic(XOR, &[*a, *b]),
            BinaryOp::Shl | BinaryOp::Shr | BinaryOp::Szext | BinaryOp::SzextWrap => {
                return moved(&[*a, *b], 1);
            }
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::MulLo | BinaryOp::MulWide
                if is_integer(*ty, mods) =>
            {
                (Rule::Carry, vec![*a, *b])
            }
            _ => return None,
        },
        Inst::Ternary { op, ty, mods, a, b, c, .. } => match op {
            TernaryOp::Mad | TernaryOp::MadLo | TernaryOp::MadWide if is_integer(*ty, mods) => {
                (Rule::Carry, vec![*a, *b, *c])
            }
            TernaryOp::Bfe => return moved(&[*a, *b, *c], 1),
            TernaryOp::ShfLWrap | TernaryOp::ShfLClamp | TernaryOp::ShfRWrap | TernaryOp::ShfRClamp => {
                return moved(&[*a, *b, *c], 2);
            }
            TernaryOp::Prmt
            | TernaryOp::PrmtF4e
            | TernaryOp::PrmtB4e
            | TernaryOp::PrmtRc8
            | TernaryOp::PrmtEcl
            | TernaryOp::PrmtEcr
            | TernaryOp::PrmtRc16 => return moved(&[*a, *b, *c], 2),
            _ => return None,
        },
        Inst::Bfi { a, b, pos, len, .. } => return moved(&[*a, *b, *pos, *len], 2),
        Inst::Lop3 { a, b, c, lut, .. } => return logic(*lut, &[*a, *b, *c]),
        Inst::Selp { a, b, pred, .. } => return logic(CHOICE, &[*a, *b, Operand::Reg(*pred)]),
        Inst::PredBinary { op, a, b, .. } => {
            let table = match op {
                BoolOp::And => AND,
                BoolOp::Or => OR,
                BoolOp::Xor => XOR,
            };
            return logic(table, &[Operand::Reg(*a), Operand::Reg(*b)]);
        }
        Inst::PredNot { a, .. } => return logic(NOT, &[Operand::Reg(*a)]),
        Inst::PredMov { a, .. } => return logic(0xF0, &[*a]),
        Inst::Mov { ty, src, .. } if ty.bits() <= 64 => return moved(&[*src], 1),
        Inst::Cvt { to, from, mods, a, b: None, .. } if is_integer(*to, mods) && !from.is_float() => {
            return moved(&[*a], 1);
        }
        Inst::Cvta { src, .. } => (Rule::Carry, vec![*src]),
        Inst::Setp { cmp, combine, ty, a, b, .. } if !ty.is_float() => {
            let third = combine.map(|(_, third)| Operand::Reg(third.reg));
            let combine = combine.map(|(op, third)| (op, third.negated));
            (Rule::Compare { cmp: *cmp, ty: *ty, combine }, [*a, *b].into_iter().chain(third).collect())
        }
        Inst::Pack { ty, parts, .. } if ty.bits() <= 64 => {
            (Rule::Pack { bits: ty.bits() / index(parts.len()).max(1) }, parts.clone())
        }
        Inst::Unpack { ty, dsts, src } if ty.bits() <= 64 => {
            (Rule::Unpack { bits: ty.bits() / index(dsts.len()).max(1) }, vec![*src])
        }
        _ => return None,
    })
}

/// Whether an instruction only copies, so that what uses the copy is what reads the register.
fn is_copy(inst: &Inst) -> bool {
    match inst {
        Inst::Mov { .. } | Inst::PredMov { .. } => true,
        Inst::Cvt { to, from, mods, b: None, .. } => !to.is_float() && !from.is_float() && !mods.sat,
        _ => false,
    }
}

/// The case that matters for speed: up to three sources that are tracked, and the only target.
fn quick(sources: &[Source], targets: &[Option<Target>]) -> ([u32; 3], u32) {
    let mut from = [DEFINED; 3];
    let mut tracked: Vec<u32> = sources.iter().filter_map(|source| source.tracked).collect();
    tracked.sort_unstable();
    tracked.dedup();
    from.iter_mut().zip(&tracked).for_each(|(from, tracked)| *from = *tracked);
    let mut targets = targets.iter().flatten();
    match (tracked.len(), targets.next(), targets.next()) {
        (0..=3, Some(target), None) => (from, target.tracked),
        _ => ([UNDEFINED; 3], DEFINED),
    }
}

/// All ones in the low bits of a type.
pub(super) fn bits_of(ty: ScalarType) -> u64 {
    match ty {
        ScalarType::Pred => 1,
        _ => u64::MAX >> (64 - ty.bits().clamp(1, 64)),
    }
}

impl Decoder<'_> {
    /// Emits that the tracked results of an instruction are as defined as its operands, before it runs. `false` if all of these are
    /// defined anyway.
    pub(super) fn pass(&mut self, inst: &Inst, analysis: &Analysis) -> bool {
        let mut targets = self.targets(inst, analysis);
        let mut tracked = false;
        inst.visit(|role, r| tracked |= role == Role::Use && analysis.slot(r).is_some());
        if !tracked || fate(inst) != Fate::Passed {
            return false;
        }
        if targets.iter().all(Option::is_none) {
            return true;
        }
        let (rule, operands) = rule(inst).unwrap_or_else(|| {
            let mut operands = Vec::new();
            inst.visit(|role, r| {
                if role == Role::Use {
                    operands.push(Operand::Reg(r));
                }
            });
            (Rule::Any, operands)
        });
        // Every target has a number in a rule; those of others are all alike.
        if !matches!(rule, Rule::Unpack { .. } | Rule::Compare { .. }) {
            targets.retain(Option::is_some);
        }
        let sources: Vec<_> = operands.iter().map(|operand| self.definedness_of(operand, analysis)).collect();
        let (from, to) = quick(&sources, &targets);
        let pc = index(self.code.ins.len());
        self.code.passings.push(Passing { pc, rule, sources, targets, copies: is_copy(inst) });
        self.emit_part(Op::PassDefined { from, to });
        true
    }

    /// The results of an instruction, in its order.
    fn targets(&self, inst: &Inst, analysis: &Analysis) -> Vec<Option<Target>> {
        let target = |r: Reg| {
            let bits = self.function.reg_type(r).map_or(u64::MAX, bits_of);
            analysis.slot(r).map(|tracked| Target { tracked, bits })
        };
        match inst {
            Inst::Unpack { dsts, .. } => dsts.iter().map(|dst| dst.and_then(target)).collect(),
            Inst::Setp { dst, dst_not, .. } => vec![target(*dst), dst_not.and_then(target)],
            _ => {
                let mut targets = Vec::new();
                inst.visit(|role, r| {
                    if role == Role::Def {
                        targets.push(target(r));
                    }
                });
                targets
            }
        }
    }

    fn definedness_of(&mut self, operand: &Operand, analysis: &Analysis) -> Source {
        let r = register(operand);
        let ty = r.and_then(|r| self.function.reg_type(r));
        let value = match operand {
            // Literals have the width of the row that they are put in.
            Operand::Imm(_) => self.source(operand, ScalarType::B64).ok(),
            _ => r.and_then(|r| self.regs.slot(r)),
        };
        let tracked = r.and_then(|r| analysis.slot(r));
        Source { value, tracked, ty, bits: ty.map_or(u64::MAX, bits_of) }
    }

    /// Tells a shuffle that has been decoded which of its registers are tracked.
    pub(super) fn pass_shuffled(&mut self, inst: &Inst, analysis: &Analysis) {
        let Inst::Shfl { dst, a, .. } = inst else { return };
        let Some(target) = analysis.slot(*dst) else { return };
        let source = self.definedness_of(a, analysis);
        if let Some(collective) = self.code.collectives.last_mut() {
            collective.shuffled = Some(Box::new(Shuffled { source, target }));
        }
    }
}
