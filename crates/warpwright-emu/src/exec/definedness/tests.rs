//! The definedness rules of bits, against all values that the bits can have.

use warpwright_ptx::{BinaryOp, Inst, Modifiers, Operand, Reg, TernaryOp, UnaryOp};

use super::*;
use crate::code::rows::Row32;
use crate::decode::rule;

/// A generator of numbers (Steele et al., SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// Numbers of few bits now and then, as places and lengths are.
    fn word(&mut self) -> u64 {
        let word = self.next() & 0xFFFF_FFFF;
        if self.next() & 1 == 0 { word & 31 } else { word }
    }
}

const A: Operand = Operand::Reg(Reg(1));
const B: Operand = Operand::Reg(Reg(2));
const C: Operand = Operand::Reg(Reg(3));
const MODS: Modifiers = Modifiers::NONE;

/// Instructions of 32 bits with every rule.
fn instructions() -> Vec<Inst> {
    use ScalarType::{B32, S16, S32, U8, U16, U32};
    let dst = Reg(0);
    let unary = |op, ty| Inst::Unary { op, ty, mods: MODS, dst, a: A };
    let binary = |op, ty| Inst::Binary { op, ty, mods: MODS, dst, a: A, b: B };
    let ternary = |op, ty| Inst::Ternary { op, ty, mods: MODS, dst, a: A, b: B, c: C };
    let cvt = |to, from| Inst::Cvt { to, from, mods: MODS, dst, a: A, b: None };
    let mut all = vec![
        unary(UnaryOp::Not, B32),
        unary(UnaryOp::Brev, B32),
        unary(UnaryOp::Neg, S32),
        unary(UnaryOp::Popc, B32),
        binary(BinaryOp::And, B32),
        binary(BinaryOp::Or, B32),
        binary(BinaryOp::Xor, B32),
        binary(BinaryOp::Shl, B32),
        binary(BinaryOp::Shr, U32),
        binary(BinaryOp::Shr, S32),
        binary(BinaryOp::Szext, S32),
        binary(BinaryOp::Add, U32),
        binary(BinaryOp::Sub, S32),
        binary(BinaryOp::MulLo, U32),
        binary(BinaryOp::MulHi, U32),
        binary(BinaryOp::Min, S32),
        binary(BinaryOp::Div, U32),
        ternary(TernaryOp::MadLo, S32),
        ternary(TernaryOp::Bfe, U32),
        ternary(TernaryOp::Bfe, S32),
        ternary(TernaryOp::ShfLWrap, B32),
        ternary(TernaryOp::ShfRClamp, B32),
        ternary(TernaryOp::Prmt, B32),
        ternary(TernaryOp::PrmtRc16, B32),
        ternary(TernaryOp::Sad, U32),
        cvt(U32, U16),
        cvt(S32, S16),
        cvt(U8, U32),
    ];
    all.extend([0x80, 0xCA, 0x96, 0xE8].map(|lut| Inst::Lop3 { dst, a: A, b: B, c: C, lut }));
    all.push(Inst::Bfi { ty: B32, dst, a: A, b: B, pos: C, len: Operand::Reg(Reg(4)) });
    all
}

fn evaluate(inst: &Inst, operands: [u64; MOST]) -> u64 {
    match inst {
        Inst::Lop3 { lut, .. } => {
            let [a, b, c, _] = operands.map(|operand| operand as u32);
            u64::from(super::super::lanes::lop3(a, b, c, *lut))
        }
        _ => scalar::moved(inst, operands) & 0xFFFF_FFFF,
    }
}

/// Whatever the undefined bits are, those that a rule calls defined stay as they are.
#[test]
fn defined_bits_do_not_depend_on_undefined_ones() {
    let mut random = Random(1);
    for inst in instructions() {
        let mut kept = 0;
        for _ in 0..400 {
            let values: [u64; MOST] = std::array::from_fn(|_| random.word());
            let sparse = [random.next(), random.next(), random.next() & random.next()];
            let undefined: [u64; MOST] = std::array::from_fn(|i| {
                let bits = sparse[0].rotate_left(7 * i as u32) & sparse[1].rotate_left(i as u32) & sparse[2];
                if random.next() & 3 == 0 { 0 } else { bits & 0xFFFF_FFFF }
            });
            let known = known(&inst, values, undefined);
            let right = evaluate(&inst, values);
            for _ in 0..20 {
                let others = std::array::from_fn(|i| values[i] ^ random.next() & undefined[i]);
                let changed = evaluate(&inst, others) ^ right;
                assert_eq!(changed & known, 0, "{inst:?} of {values:x?}, undefined {undefined:x?}");
            }
            kept += (known & 0xFFFF_FFFF).count_ones();
        }
        assert!(kept > 0, "{inst:?}: nothing is ever defined");
    }
}

/// The defined bits of a result.
fn known(inst: &Inst, values: [u64; MOST], undefined: [u64; MOST]) -> u64 {
    let mut operands = Vec::new();
    inst.visit(|role, r| {
        if role == warpwright_ptx::Role::Use {
            operands.push(Operand::Reg(r));
        }
    });
    let (rule, operands) = rule(inst).unwrap_or((Rule::Any, operands));
    let mut definedness = Definedness::new(MOST);
    let mut regs = Registers::default();
    for (i, (value, undefined)) in (FIRST..).zip(values.into_iter().zip(undefined)) {
        let mut row = Row32::ZERO;
        row.0[0] = value as u32;
        regs.r32.push(row);
        definedness.set(i, 0, undefined, None);
    }
    let source = |operand: &Operand| {
        let Operand::Reg(Reg(r)) = operand else { panic!("a register") };
        let (row, tracked) = (r - 1, FIRST + r - 1);
        Source { value: Some(Slot::W(row)), tracked: Some(tracked), ty: None, bits: 0xFFFF_FFFF }
    };
    let sources = operands.iter().map(source).collect();
    let passing = Passing { pc: 0, rule, sources, targets: Vec::new(), copies: false };
    !Lane { regs: &regs, definedness: &definedness, lane: 0 }.results(&passing)[0]
}

/// Comparisons that every value of the undefined bits decides alike are decided, and no others.
#[test]
fn comparisons_are_as_open_as_their_bits() {
    use warpwright_ptx::CmpOp::{Eq, Ge, Gt, Le, Lt, Ne};
    for (ty, cmp) in [ScalarType::U16, ScalarType::S16]
        .into_iter()
        .flat_map(|ty| [Eq, Ne, Lt, Le, Gt, Ge].map(|cmp| (ty, cmp)))
    {
        let mut random = Random(2);
        for _ in 0..500 {
            // Few undefined bits, of which all values are tried.
            let mut bits =
                || (random.next() & random.next() & random.next() & 0xF00F, random.next() & 0xF00F);
            let ((ua, a), (ub, b)) = (bits(), bits());
            let values = |value: u64, undefined: u64| {
                let mut all = vec![value];
                for bit in (0..16).map(|bit| 1 << bit).filter(|bit| undefined & bit != 0) {
                    all.extend(all.clone().iter().map(|v| v ^ bit));
                }
                all
            };
            let hits: Vec<bool> = values(a, ua)
                .iter()
                .flat_map(|a| values(b, ub).into_iter().map(move |b| scalar::compare(cmp, ty, false, *a, b)))
                .collect();
            let decided = hits.iter().all(|hit| *hit == hits[0]);
            let [first, second] = scalar::outcomes(cmp, ty, [a, b], [ua, ub]);
            assert_eq!(first == second, decided, "{cmp:?}.{ty} {a:x} {b:x}, undefined {ua:x} {ub:x}");
            assert!(!decided || first == hits[0]);
        }
    }
}
