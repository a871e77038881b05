use warpwright_ptx::{BinaryOp, Modifiers, ScalarType, TernaryOp, UnaryOp};

use super::*;

fn bin(op: BinaryOp, ty: ScalarType, a: u64, b: u64) -> u64 {
    binary(op, ty, &Modifiers::NONE, a, b, &mut false)
}

fn ter(op: TernaryOp, ty: ScalarType, a: u64, b: u64, c: u64) -> u64 {
    ternary(op, ty, &Modifiers::NONE, a, b, c, &mut false)
}

#[test]
fn shifts_clamp() {
    assert_eq!(bin(BinaryOp::Shl, ScalarType::B32, 1, 33), 0);
    assert_eq!(bin(BinaryOp::Shl, ScalarType::B16, 0x8001, 1), 2);
    assert_eq!(bin(BinaryOp::Shr, ScalarType::S32, 0x8000_0000, 40), 0xFFFF_FFFF);
    assert_eq!(bin(BinaryOp::Shr, ScalarType::U64, u64::MAX, 64), 0);
    assert_eq!(bin(BinaryOp::Shr, ScalarType::S16, 0x8000, 3), 0xF000);
}

#[test]
fn bit_fields() {
    assert_eq!(ter(TernaryOp::Bfe, ScalarType::U32, 0xABCD_1234, 8, 8), 0x12);
    assert_eq!(ter(TernaryOp::Bfe, ScalarType::S32, 0x0000_8F00, 8, 8), 0xFFFF_FF8F);
    // Beyond the end the sign is the number's own.
    assert_eq!(ter(TernaryOp::Bfe, ScalarType::S32, 0x8000_0000, 28, 8), 0xFFFF_FFF8);
    assert_eq!(ter(TernaryOp::Bfe, ScalarType::S32, 0x8000_0000, 40, 4), 0xFFFF_FFFF);
    assert_eq!(ter(TernaryOp::Bfe, ScalarType::S32, 0x8000_0000, 28, 0), 0);
    assert_eq!(bfi(ScalarType::B32, 0xFF, 0x1234_5678, 8, 8), 0x1234_FF78);
    assert_eq!(bfi(ScalarType::B32, 0xFF, 0x1234_5678, 32, 8), 0x1234_5678);
    assert_eq!(bfi(ScalarType::B64, u64::MAX, 0, 60, 8), 0xF000_0000_0000_0000);
}

#[test]
fn bits_are_counted_in_the_type() {
    let un = |op, ty, a| unary(op, ty, &Modifiers::NONE, a);
    assert_eq!(un(UnaryOp::Clz, ScalarType::B32, 1), 31);
    assert_eq!(un(UnaryOp::Clz, ScalarType::B64, 1), 63);
    assert_eq!(un(UnaryOp::Bfind, ScalarType::U32, 0), 0xFFFF_FFFF);
    assert_eq!(un(UnaryOp::Bfind, ScalarType::S32, 0xFFFF_FFFE), 0);
    assert_eq!(un(UnaryOp::BfindShiftAmt, ScalarType::U32, 1 << 20), 11);
    assert_eq!(un(UnaryOp::Brev, ScalarType::B64, 1), 1 << 63);
    assert_eq!(un(UnaryOp::Neg, ScalarType::S16, 1), 0xFFFF);
    assert_eq!(un(UnaryOp::Cnot, ScalarType::B32, 0), 1);
}

#[test]
fn products_and_carries() {
    assert_eq!(bin(BinaryOp::MulHi, ScalarType::U64, u64::MAX, u64::MAX), u64::MAX - 1);
    assert_eq!(bin(BinaryOp::MulHi, ScalarType::S64, u64::MAX, 1), u64::MAX);
    assert_eq!(bin(BinaryOp::MulWide, ScalarType::S16, 0xFFFF, 2) as u32, 0xFFFF_FFFE);
    assert_eq!(bin(BinaryOp::Mul24Hi, ScalarType::S32, 0x00FF_FFFF, 0x10000), 0xFFFF_FFFF);
    assert_eq!(bin(BinaryOp::Div, ScalarType::S32, 0xFFFF_FFF9, 2), 0xFFFF_FFFD);
    assert_eq!(bin(BinaryOp::Rem, ScalarType::S32, 0xFFFF_FFF9, 2), 0xFFFF_FFFF);
    assert_eq!(bin(BinaryOp::Div, ScalarType::U32, 7, 0), 0xFFFF_FFFF);
    let mut carry = false;
    let none = Modifiers::NONE;
    assert_eq!(binary(BinaryOp::AddCc, ScalarType::U32, &none, 0xFFFF_FFFF, 1, &mut carry), 0);
    assert!(carry);
    assert_eq!(binary(BinaryOp::Addc, ScalarType::U32, &none, 1, 1, &mut carry), 3);
    assert_eq!(binary(BinaryOp::SubCc, ScalarType::U32, &none, 0, 1, &mut carry), 0xFFFF_FFFF);
    assert_eq!(binary(BinaryOp::Subc, ScalarType::U32, &none, 5, 1, &mut carry), 3);
    assert_eq!(ternary(TernaryOp::MadLoCc, ScalarType::U32, &none, 3, 5, 0xFFFF_FFFF, &mut carry), 14);
    assert!(carry);
    assert_eq!(ter(TernaryOp::Sad, ScalarType::S32, 0xFFFF_FFFF, 3, 10), 14);
    assert_eq!(dp4a(ScalarType::S32, ScalarType::U32, 0xFF01_FF01, 0x0202_0202, 1), 1);
}

#[test]
fn byte_permutations() {
    assert_eq!(ter(TernaryOp::Prmt, ScalarType::B32, 0x4433_2211, 0x8877_6655, 0x5410), 0x6655_2211);
    assert_eq!(ter(TernaryOp::Prmt, ScalarType::B32, 0x4433_2280, 0, 0x0008), 0x8080_80FF);
    assert_eq!(ter(TernaryOp::PrmtF4e, ScalarType::B32, 0x4433_2211, 0x8877_6655, 1), 0x5544_3322);
    assert_eq!(ter(TernaryOp::PrmtB4e, ScalarType::B32, 0x4433_2211, 0x8877_6655, 1), 0x7788_1122);
    assert_eq!(ter(TernaryOp::PrmtRc16, ScalarType::B32, 0x4433_2211, 0, 1), 0x4433_4433);
    assert_eq!(ter(TernaryOp::PrmtEcl, ScalarType::B32, 0x4433_2211, 0, 2), 0x4433_3333);
    assert_eq!(ter(TernaryOp::PrmtEcr, ScalarType::B32, 0x4433_2211, 0, 2), 0x3333_2211);
}

#[test]
fn integer_conversions_extend_and_saturate() {
    let none = Modifiers::NONE;
    let sat = Modifiers { sat: true, ..none };
    assert_eq!(convert(ScalarType::U8, ScalarType::S32, &sat, 0xFFFF_FFFF, 32), 0);
    assert_eq!(convert(ScalarType::S8, ScalarType::S32, &sat, 300, 32), 127);
    assert_eq!(convert(ScalarType::S8, ScalarType::U32, &none, 0x80, 32) as u32, 0xFFFF_FF80);
    assert_eq!(convert(ScalarType::U64, ScalarType::S32, &none, 0xFFFF_FFFF, 64), u64::MAX);
    assert_eq!(convert(ScalarType::S64, ScalarType::U32, &none, 0xFFFF_FFFF, 64), 0xFFFF_FFFF);
}
