//! The vectorised operations against the lane-by-lane ones, on random and hostile values.

use warpwright_ptx::{
    BinaryOp, Block, CmpOp, Function, Inst, Instruction, Modifiers, Module, Operand, PtxVersion, Reg,
    RegKind, Rounding, ScalarType, SourceLoc, Target, Terminator, TernaryOp, UnaryOp,
};

use super::rows;
use super::{lanes, scalar};
use crate::code::Code;
use crate::code::layout::Slot;
use crate::code::op::{Op, hot_ops};
use crate::code::rows::{LANES, Registers};
use crate::decode::decode;

macro_rules! apply {
    ([$op:expr, $regs:expr, $exec:expr] $($kind:ident $shape:ident { $($name:ident($($x:ident),*) = $value:expr;)* })*) => {
        match $op {
            $($(Op::$name(o) => { rows::$shape($regs, $exec, o, |$($x),*| $value); true })*)*
            Op::Lop3(o, table) => { rows::w3($regs, $exec, o, |a, b, c| lanes::lop3(a, b, c, table)); true }
            _ => false,
        }
    };
}

/// Runs the hot operations of a kernel; `false` at the first that is not hot.
fn run_hot(code: &Code, regs: &mut Registers, exec: u32) -> bool {
    code.ins.iter().take_while(|i| i.op != Op::Exit).all(|ins| hot_ops!(apply [ins.op, regs, exec]))
}

/// Small steady numbers for the tests: the same on every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A value of a type: often a special one.
    fn value(&mut self, ty: ScalarType) -> u64 {
        const F32: [u32; 14] = [
            0,
            0x8000_0000,
            1,
            0x8000_0001,
            0x007F_FFFF,
            0x0080_0000,
            0x3F80_0000,
            0xBF80_0000,
            0x7F80_0000,
            0xFF80_0000,
            0x7FC0_1234,
            0x7F7F_FFFF,
            0x3F00_0000,
            0xC020_0000,
        ];
        const F64: [f64; 8] = [0.0, -0.0, 1.0, -2.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-310];
        const INTEGERS: [u64; 10] = [0, 1, 2, 31, 32, 33, u64::MAX, 0x8000_0000, 1 << 63, 0x7FFF_FFFF];
        let pick = self.next();
        let special = pick.is_multiple_of(3);
        let bits = match ty {
            ScalarType::F32 if special => u64::from(F32[(pick >> 8) as usize % F32.len()]),
            ScalarType::F64 if special => F64[(pick >> 8) as usize % F64.len()].to_bits(),
            ScalarType::F32 if pick % 3 == 1 => {
                u64::from(((self.next() % 2000) as f32 / 64.0 - 15.0).to_bits())
            }
            ScalarType::F16 if special => {
                [0u64, 0x8000, 1, 0x3FF, 0x400, 0x7C00, 0xFC00, 0x7E01][(pick >> 8) as usize % 8]
            }
            _ if special => INTEGERS[(pick >> 8) as usize % INTEGERS.len()],
            _ => self.next(),
        };
        bits & (u64::MAX >> (64 - ty.bits().clamp(1, 64)))
    }
}

/// A kernel of one instruction, whose operands are registers of the given types, the destination last.
fn kernel(types: &[ScalarType], make: impl Fn(&[Reg]) -> Inst) -> (Code, Vec<Slot>) {
    let mut function = Function::entry("k");
    let regs: Vec<Reg> = types
        .iter()
        .map(|ty| {
            let ty = match ty {
                ScalarType::F16 | ScalarType::BF16 => ScalarType::B16,
                other => *other,
            };
            function.new_reg(ty, RegKind::Variable)
        })
        .collect();
    function.blocks.push(Block {
        instructions: vec![Instruction { guard: None, inst: make(&regs) }],
        terminator: Terminator::Exit,
        locations: vec![SourceLoc::Unknown],
    });
    let mut module = Module::new(PtxVersion::new(8, 0), Target::sm(90));
    module.functions.push(function);
    let mut code = decode(&module, 0, &[]).expect("a decodable instruction");
    // Every operand is a register of its own, in the order of the types.
    let (mut w, mut l, mut p) = (0, 0, 1);
    let slots = types
        .iter()
        .map(|ty| match ty.bits() {
            1 => {
                p += 1;
                Slot::P(p - 1)
            }
            64 => {
                l += 1;
                Slot::L(l - 1)
            }
            _ => {
                w += 1;
                Slot::W(w - 1)
            }
        })
        .collect();
    code.ins.retain(|i| !matches!(i.op, Op::CheckDefined(_) | Op::MarkDefined(_) | Op::PassDefined { .. }));
    (code, slots)
}

/// Compares the hot form of an instruction, if it has one, with `expected`, for full and partial warps.
fn compare(
    what: &str,
    types: &[ScalarType],
    make: impl Fn(&[Reg]) -> Inst,
    expected: impl Fn(&[u64]) -> u64,
    hot: &mut Vec<String>,
) {
    let (code, slots) = kernel(types, make);
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    let (sources, dst) = types.split_at(types.len() - 1);
    for round in 0..40 {
        let exec = if round % 2 == 0 { u32::MAX } else { random.next() as u32 };
        let mut regs = Registers {
            r32: code.layout.r32.clone(),
            r64: code.layout.r64.clone(),
            pred: vec![0; code.layout.preds],
        };
        let inputs: Vec<Vec<u64>> =
            (0..LANES).map(|_| sources.iter().map(|ty| random.value(*ty)).collect()).collect();
        for (lane, values) in inputs.iter().enumerate() {
            for (slot, value) in slots.iter().zip(values) {
                super::global::set_lane(&mut regs, *slot, lane, *value);
            }
        }
        let out = slots[slots.len() - 1];
        let untouched = 0x5A & (u64::MAX >> (64 - dst[0].bits().clamp(1, 64)));
        for lane in 0..LANES {
            super::global::set_lane(&mut regs, out, lane, untouched);
        }
        if !run_hot(&code, &mut regs, exec) {
            return;
        }
        for (lane, values) in inputs.iter().enumerate() {
            let got = super::global::lane_value(&regs, out, lane);
            let want = if exec >> lane & 1 == 0 { untouched } else { expected(values) };
            let both_nan =
                dst[0] == ScalarType::F64 && f64::from_bits(got).is_nan() && f64::from_bits(want).is_nan();
            assert!(
                got == want || both_nan,
                "{what}{values:x?}: got {got:#x}, want {want:#x} ({:?})",
                code.ins[0]
            );
        }
    }
    hot.push(what.to_owned());
}

fn all_modifiers() -> Vec<Modifiers> {
    let mut all = vec![Modifiers::NONE];
    for rounding in [Rounding::Rn, Rounding::Rz] {
        all.push(Modifiers::rounded(rounding));
        all.push(Modifiers::rounded(rounding).with_ftz());
    }
    all.extend([
        Modifiers::APPROX,
        Modifiers::APPROX.with_ftz(),
        Modifiers { full: true, ..Modifiers::NONE },
        Modifiers { sat: true, ..Modifiers::RN },
        Modifiers { sat: true, ..Modifiers::NONE },
        Modifiers { nan: true, ..Modifiers::NONE },
    ]);
    all
}

const TYPES: [ScalarType; 15] = {
    use ScalarType::*;
    [B16, B32, B64, U16, U32, U64, S16, S32, S64, F16, BF16, F32, F64, F16x2, BF16x2]
};

#[test]
fn hot_arithmetic_is_what_the_general_form_computes() {
    let mut hot = Vec::new();
    for ty in TYPES {
        for mods in all_modifiers() {
            for op in UnaryOp::ALL {
                let wide = ty.bits() == 64 && matches!(op, UnaryOp::Popc | UnaryOp::Clz | UnaryOp::Bfind);
                let dst_ty = if wide { ScalarType::U32 } else { ty };
                if op.name().starts_with("testp") {
                    continue;
                }
                compare(
                    &format!("{op}.{ty} {mods:?}"),
                    &[ty, dst_ty],
                    |r| Inst::Unary { op: *op, ty, mods, dst: r[1], a: r[0].into() },
                    |v| scalar::unary(*op, ty, &mods, v[0]),
                    &mut hot,
                );
            }
            for op in BinaryOp::ALL {
                let shift = matches!(op, BinaryOp::Shl | BinaryOp::Shr);
                let dst_ty = match (op, ty.bits()) {
                    (BinaryOp::MulWide, 16) => ScalarType::U32,
                    (BinaryOp::MulWide, 32) => ScalarType::U64,
                    (BinaryOp::MulWide, _) => continue,
                    _ => ty,
                };
                compare(
                    &format!("{op}.{ty} {mods:?}"),
                    &[ty, if shift { ScalarType::U32 } else { ty }, dst_ty],
                    |r| Inst::Binary { op: *op, ty, mods, dst: r[2], a: r[0].into(), b: r[1].into() },
                    |v| scalar::binary(*op, ty, &mods, v[0], v[1], &mut false),
                    &mut hot,
                );
            }
            for op in TernaryOp::ALL {
                let (bc, dst_ty) = match (op, ty.bits()) {
                    (TernaryOp::MadWide, 16) => ([ty, ScalarType::U32], ScalarType::U32),
                    (TernaryOp::MadWide, 32) => ([ty, ScalarType::U64], ScalarType::U64),
                    (TernaryOp::MadWide, _) => continue,
                    (TernaryOp::Bfe, _) => ([ScalarType::U32; 2], ty),
                    _ => ([ty; 2], ty),
                };
                compare(
                    &format!("{op}.{ty} {mods:?}"),
                    &[ty, bc[0], bc[1], dst_ty],
                    |r| {
                        let (a, b, c) = (r[0].into(), r[1].into(), r[2].into());
                        Inst::Ternary { op: *op, ty, mods, dst: r[3], a, b, c }
                    },
                    |v| scalar::ternary(*op, ty, &mods, v[0], v[1], v[2], &mut false),
                    &mut hot,
                );
            }
        }
    }
    assert!(hot.len() > 90, "only {} operations are hot: {hot:?}", hot.len());
}

#[test]
fn hot_comparisons_and_conversions_are_what_the_general_forms_compute() {
    use ScalarType::*;
    let mut hot = Vec::new();
    for ty in TYPES {
        for cmp in CmpOp::ALL {
            compare(
                &format!("setp.{cmp}.{ty}"),
                &[ty, ty, Pred],
                |r| Inst::Setp {
                    cmp: *cmp,
                    combine: None,
                    ty,
                    ftz: false,
                    dst: r[2],
                    dst_not: None,
                    a: r[0].into(),
                    b: r[1].into(),
                },
                |v| u64::from(scalar::compare(*cmp, ty, false, v[0], v[1])),
                &mut hot,
            );
        }
    }
    assert!(hot.len() > 50, "only {} comparisons are hot", hot.len());
    let comparisons = hot.len();
    let types = [U8, S8, U16, S16, U32, S32, U64, S64, F16, BF16, F32, F64];
    let roundings = [
        None,
        Some(Rounding::Rn),
        Some(Rounding::Rz),
        Some(Rounding::Rni),
        Some(Rounding::Rzi),
        Some(Rounding::Rmi),
        Some(Rounding::Rpi),
    ];
    for to in types {
        for from in types {
            for rounding in roundings {
                let integral = matches!(rounding, Some(r) if !matches!(r, Rounding::Rn | Rounding::Rz));
                let legal = match (to.is_float(), from.is_float()) {
                    (false, false) => rounding.is_none(),
                    (false, true) => integral,
                    (true, false) => rounding.is_some() && !integral,
                    (true, true) if to == from => integral,
                    (true, true) if to.bits() > from.bits() => rounding.is_none(),
                    (true, true) => rounding.is_some() && !integral && to.bits() < from.bits(),
                };
                let register = |ty: ScalarType| if ty.bits() == 8 { U16 } else { ty };
                if !legal {
                    continue;
                }
                let mods = Modifiers { rounding, ..Modifiers::NONE };
                compare(
                    &format!("cvt {rounding:?}.{to}.{from}"),
                    &[register(from), register(to)],
                    |r| Inst::Cvt { to, from, mods, dst: r[1], a: r[0].into(), b: None },
                    |v| {
                        let bits = register(to).bits();
                        scalar::convert(to, from, &mods, v[0], bits) & (u64::MAX >> (64 - bits))
                    },
                    &mut hot,
                );
            }
        }
    }
    for to in [F16x2, BF16x2] {
        compare(
            &format!("cvt.rn.{to}.f32"),
            &[F32, F32, B32],
            |r| Inst::Cvt {
                to,
                from: F32,
                mods: Modifiers::RN,
                dst: r[2],
                a: r[0].into(),
                b: Some(r[1].into()),
            },
            |v| crate::float::convert_pair(to, F32, &Modifiers::RN, v[0], v[1]),
            &mut hot,
        );
    }
    assert!(hot.len() - comparisons > 50, "only {} conversions are hot", hot.len() - comparisons);
}

#[test]
fn every_half_converts_as_the_general_form_says() {
    for bits in 0..=u16::MAX {
        let bits = u64::from(bits);
        let none = Modifiers::NONE;
        let wide = |ty| crate::float::convert(ScalarType::F32, ty, &none, bits);
        assert_eq!(u64::from(lanes::f16_to_f32(bits as u32)), wide(ScalarType::F16), "f16 {bits:#x}");
        assert_eq!(u64::from(lanes::bf16_to_f32(bits as u32)), wide(ScalarType::BF16), "bf16 {bits:#x}");
    }
    // Around every f16 value and every midpoint.
    for bits in (0..=u16::MAX).map(u32::from) {
        for low in [0u32, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF] {
            let x = lanes::f16_to_f32(bits) ^ low;
            let narrow = |ty| crate::float::convert(ty, ScalarType::F32, &Modifiers::RN, u64::from(x));
            assert_eq!(u64::from(lanes::f32_to_f16(x)), narrow(ScalarType::F16), "f32 {x:#x}");
            assert_eq!(u64::from(lanes::f32_to_bf16(x)), narrow(ScalarType::BF16), "f32 {x:#x}");
        }
    }
}

#[test]
fn truth_tables_and_operands_that_are_literals() {
    let (code, _) = kernel(&[ScalarType::U32, ScalarType::U32], |r| Inst::Binary {
        op: BinaryOp::Add,
        ty: ScalarType::U32,
        mods: Modifiers::NONE,
        dst: r[1],
        a: r[0].into(),
        b: Operand::int(-3),
    });
    let mut regs =
        Registers { r32: code.layout.r32.clone(), r64: Vec::new(), pred: vec![0; code.layout.preds] };
    assert!(run_hot(&code, &mut regs, u32::MAX));
    assert_eq!(regs.r32[1].0, [0xFFFF_FFFD; LANES]);
    for table in 0..=255u8 {
        let got = lanes::lop3(0xF0F0_F0F0, 0xCCCC_CCCC, 0xAAAA_AAAA, table);
        assert_eq!(got, u32::from_le_bytes([table; 4]));
    }
}
