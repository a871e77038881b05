//! Arithmetic lane by lane: every operation, type and modifier that has no vectorised form, and the yardstick for those
//! that have one.

use warpwright_ptx::{BinaryOp, BoolOp, CmpOp, Inst, MixedOp, Modifiers, ScalarType, TernaryOp, UnaryOp};

use super::global::{lane_value, lanes_of, set_lane};
use super::lanes;
use super::rows::put_pred;
use crate::code::Scalar;
use crate::code::layout::Slot;
use crate::float;
use crate::warp::Warp;

mod packed;

/// Runs an instruction for the lanes of `exec`.
#[inline(never)]
pub(super) fn run(warp: &mut Warp, exec: u32, s: &Scalar) {
    if let Inst::Setp { cmp, ty, ftz, .. } = &s.inst {
        return setp(warp, exec, s, *cmp, *ty, *ftz);
    }
    for lane in lanes_of(exec) {
        let src = |i: usize| s.src.get(i).map_or(0, |slot| lane_value(&warp.regs, *slot, lane));
        let (a, b, c) = (src(0), src(1), src(2));
        let mut carry = warp.carry >> lane & 1 != 0;
        let value = match &s.inst {
            Inst::Unary { op, ty, mods, .. } => unary(*op, *ty, mods, a),
            Inst::Binary { op, ty, mods, .. } => binary(*op, *ty, mods, a, b, &mut carry),
            Inst::Ternary { op, ty, mods, .. } => ternary(*op, *ty, mods, a, b, c, &mut carry),
            Inst::Bfi { ty, .. } => bfi(*ty, a, b, c, src(3)),
            Inst::Dp4a { a_ty, b_ty, .. } => dp4a(*a_ty, *b_ty, a as u32, b as u32, c as u32),
            Inst::Dp2a { high, a_ty, b_ty, .. } => {
                packed::dp2a(*high, (*a_ty, *b_ty), a as u32, b as u32, c as u32)
            }
            Inst::Video { form, .. } => u64::from(packed::video(form, a as u32, b as u32, c as u32)),
            Inst::Fns { .. } => u64::from(packed::fns(a as u32, b as u32, c as u32 as i32)),
            Inst::CvtPack { to, .. } => packed::saturated(*to, a as u32, b as u32, c as u32),
            Inst::MinMax3 { max, ty, mods, .. } => float::extreme3(*max, *ty, mods, [a, b, c]),
            Inst::Mixed { op: MixedOp::Fma, narrow, mods, .. } => float::mixed_fma(*narrow, mods, [a, b, c]),
            Inst::Mixed { op, narrow, mods, .. } => {
                float::mixed_sum(*op == MixedOp::Sub, *narrow, mods, [a, b])
            }
            Inst::Set { cmp, dst_ty, ty, ftz, .. } => {
                let third = third(warp, s, lane);
                let packed = matches!(ty, ScalarType::F16x2 | ScalarType::BF16x2);
                if packed && dst_ty.bits() == 32 {
                    // Each half gives a half of its own.
                    let element = if *ty == ScalarType::F16x2 { ScalarType::F16 } else { ScalarType::BF16 };
                    let half = |shift: u32| {
                        let hit = compare(*cmp, element, *ftz, a >> shift & 0xFFFF, b >> shift & 0xFFFF);
                        truth(*dst_ty, combine(hit, third), true)
                    };
                    half(16) << 16 | half(0)
                } else {
                    truth(*dst_ty, combine(compare(*cmp, *ty, *ftz, a, b), third), false)
                }
            }
            Inst::Slct { c_ty, ftz, .. } => {
                let positive = if *c_ty == ScalarType::F32 {
                    let c = f32::from_bits(c as u32);
                    // Subnormals count as zeros, which are not negative, with `.ftz`.
                    c >= 0.0 || (*ftz && c.is_subnormal())
                } else {
                    c as u32 as i32 >= 0
                };
                if positive { a } else { b }
            }
            Inst::Cvt { to, from, mods, b: second, .. } => {
                if second.is_some() {
                    float::convert_pair(*to, *from, mods, a, b)
                } else {
                    convert(*to, *from, mods, a, s.dst_bits)
                }
            }
            // The decoder makes no scalars of other shapes.
            _ => 0,
        };
        warp.carry = warp.carry & !(1 << lane) | u32::from(carry) << lane;
        let keep = u64::MAX >> (64 - s.dst_bits.clamp(1, 64));
        set_lane(&mut warp.regs, s.dst, lane, value & keep);
    }
}

fn third(warp: &Warp, s: &Scalar, lane: usize) -> Option<(BoolOp, bool)> {
    s.combine.map(|(op, p, negated)| (op, (warp.regs.pred[p as usize] >> lane & 1 != 0) != negated))
}

pub(super) fn combine(a: bool, third: Option<(BoolOp, bool)>) -> bool {
    match third {
        None => a,
        Some((BoolOp::And, b)) => a && b,
        Some((BoolOp::Or, b)) => a || b,
        Some((BoolOp::Xor, b)) => a != b,
    }
}

/// The result of `set`: all ones or zeros for integers, 1.0 or 0.0 for floats.
fn truth(ty: ScalarType, hit: bool, half: bool) -> u64 {
    let one = match ty {
        ScalarType::F32 => 0x3F80_0000,
        ScalarType::F16 | ScalarType::F16x2 => 0x3C00,
        ScalarType::BF16 | ScalarType::BF16x2 => 0x3F80,
        _ if half => 0xFFFF,
        _ => u64::MAX >> (64 - ty.bits()),
    };
    if hit { one } else { 0 }
}

fn setp(warp: &mut Warp, exec: u32, s: &Scalar, cmp: CmpOp, ty: ScalarType, ftz: bool) {
    let (mut yes, mut no) = (0, 0);
    for lane in lanes_of(exec) {
        let src = |i: usize| s.src.get(i).map_or(0, |slot| lane_value(&warp.regs, *slot, lane));
        let (a, b) = (src(0), src(1));
        let third = third(warp, s, lane);
        let element = match ty {
            ScalarType::F16x2 => Some(ScalarType::F16),
            ScalarType::BF16x2 => Some(ScalarType::BF16),
            _ => None,
        };
        let (first, second) = match element {
            // Two comparisons: the destinations take one half each.
            Some(element) => {
                let half = |x: u64, shift: u32| x >> shift & 0xFFFF;
                (
                    compare(cmp, element, ftz, half(a, 0), half(b, 0)),
                    compare(cmp, element, ftz, half(a, 16), half(b, 16)),
                )
            }
            None => {
                let hit = compare(cmp, ty, ftz, a, b);
                (hit, !hit)
            }
        };
        yes |= u32::from(combine(first, third)) << lane;
        no |= u32::from(combine(second, third)) << lane;
    }
    if let Slot::P(p) = s.dst {
        put_pred(&mut warp.regs.pred[p as usize], yes, exec);
    }
    if let Some(p) = s.dst_not {
        put_pred(&mut warp.regs.pred[p as usize], no, exec);
    }
}

fn is_signed(ty: ScalarType) -> bool {
    matches!(ty, ScalarType::S8 | ScalarType::S16 | ScalarType::S32 | ScalarType::S64)
}

/// The low `bits` of a value as a signed number.
fn signed(v: u64, bits: u32) -> i64 {
    let shift = 64 - bits.clamp(1, 64);
    ((v << shift) as i64) >> shift
}

fn unsigned(v: u64, bits: u32) -> u64 {
    v & (u64::MAX >> (64 - bits.clamp(1, 64)))
}

/// A value as the 128-bit integer that its type means.
fn wide(v: u64, ty: ScalarType) -> i128 {
    if is_signed(ty) { i128::from(signed(v, ty.bits())) } else { i128::from(unsigned(v, ty.bits())) }
}

pub(super) fn compare(cmp: CmpOp, ty: ScalarType, ftz: bool, a: u64, b: u64) -> bool {
    if ty.is_float() {
        return float::compare(cmp, ty, ftz, a, b);
    }
    let (a, b) = (wide(a, ty), wide(b, ty));
    match cmp {
        CmpOp::Eq | CmpOp::Equ => a == b,
        CmpOp::Ne | CmpOp::Neu => a != b,
        CmpOp::Lt | CmpOp::Lo | CmpOp::Ltu => a < b,
        CmpOp::Le | CmpOp::Ls | CmpOp::Leu => a <= b,
        CmpOp::Gt | CmpOp::Hi | CmpOp::Gtu => a > b,
        CmpOp::Ge | CmpOp::Hs | CmpOp::Geu => a >= b,
        CmpOp::Num => true,
        CmpOp::Nan => false,
    }
}

pub(super) fn unary(op: UnaryOp, ty: ScalarType, mods: &Modifiers, a: u64) -> u64 {
    let bits = ty.bits();
    let value = unsigned(a, bits);
    let result = match op {
        UnaryOp::Neg | UnaryOp::Abs if !ty.is_float() => {
            let s = signed(a, bits);
            let min = signed(1 << (bits - 1), bits);
            let negate = op == UnaryOp::Neg || s < 0;
            // `.sat` keeps the most negative number from wrapping.
            if negate && s == min && mods.sat {
                unsigned(min as u64, bits).wrapping_sub(1)
            } else if negate {
                s.wrapping_neg() as u64
            } else {
                s as u64
            }
        }
        UnaryOp::Not => !a,
        UnaryOp::Cnot => u64::from(value == 0),
        UnaryOp::Popc => u64::from(value.count_ones()),
        UnaryOp::Clz => u64::from(value.leading_zeros() - (64 - bits)),
        UnaryOp::Brev => value.reverse_bits() >> (64 - bits),
        UnaryOp::Bfind | UnaryOp::BfindShiftAmt => {
            let s = signed(a, bits);
            // For signed types: the most significant bit that differs from the sign.
            let v = if is_signed(ty) && s < 0 { unsigned(!a, bits) } else { value };
            match v.checked_ilog2() {
                None => 0xFFFF_FFFF,
                Some(at) if op == UnaryOp::BfindShiftAmt => u64::from(bits - 1 - at),
                Some(at) => u64::from(at),
            }
        }
        UnaryOp::Neg
        | UnaryOp::Abs
        | UnaryOp::Rcp
        | UnaryOp::Sqrt
        | UnaryOp::Rsqrt
        | UnaryOp::Ex2
        | UnaryOp::Lg2
        | UnaryOp::Sin
        | UnaryOp::Cos
        | UnaryOp::Tanh
        | UnaryOp::TestFinite
        | UnaryOp::TestInfinite
        | UnaryOp::TestNumber
        | UnaryOp::TestNan
        | UnaryOp::TestNormal
        | UnaryOp::TestSubnormal => return float::unary(op, ty, mods, a),
    };
    match op {
        // These count in 32 bits whatever the type.
        UnaryOp::Popc | UnaryOp::Clz | UnaryOp::Bfind | UnaryOp::BfindShiftAmt => result,
        _ => unsigned(result, bits),
    }
}

/// Clamps to the range of a type.
fn saturate(v: i128, ty: ScalarType) -> u64 {
    let bits = ty.bits();
    let (low, high) = if is_signed(ty) {
        (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
    } else {
        (0, (1i128 << bits) - 1)
    };
    v.clamp(low, high) as u64
}

pub(super) fn binary(
    op: BinaryOp,
    ty: ScalarType,
    mods: &Modifiers,
    a: u64,
    b: u64,
    carry: &mut bool,
) -> u64 {
    if let ScalarType::U16x2 | ScalarType::S16x2 = ty {
        return packed::halves(op, ty == ScalarType::S16x2, mods, a, b);
    }
    let bits = ty.bits();
    let relu = |v: u64| if mods.relu && signed(v, bits) < 0 { 0 } else { v };
    let result = match op {
        BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Min | BinaryOp::Max
            if ty.is_float() =>
        {
            return float::binary(op, ty, mods, a, b);
        }
        BinaryOp::Copysign => return float::binary(op, ty, mods, a, b),
        BinaryOp::Add if mods.sat => saturate(wide(a, ty) + wide(b, ty), ty),
        BinaryOp::Sub if mods.sat => saturate(wide(a, ty) - wide(b, ty), ty),
        BinaryOp::Add => a.wrapping_add(b),
        BinaryOp::Sub => a.wrapping_sub(b),
        BinaryOp::Mul | BinaryOp::MulLo => a.wrapping_mul(b),
        BinaryOp::MulHi => mul_hi(ty, a, b),
        BinaryOp::MulWide => return (wide(a, ty) * wide(b, ty)) as u64,
        BinaryOp::Mul24Lo => (low24(a, ty) * low24(b, ty)) as u64,
        BinaryOp::Mul24Hi => ((low24(a, ty) * low24(b, ty)) >> 16) as u64,
        BinaryOp::Div => {
            let (x, y) = (wide(a, ty), wide(b, ty));
            // The hardware's expansion of a division by zero gives all ones.
            x.checked_div(y).map_or(u64::MAX, |q| q as u64)
        }
        BinaryOp::Rem => {
            let (x, y) = (wide(a, ty), wide(b, ty));
            x.checked_rem(y).map_or(a, |r| r as u64)
        }
        BinaryOp::Min => relu(wide(a, ty).min(wide(b, ty)) as u64),
        BinaryOp::Max => relu(wide(a, ty).max(wide(b, ty)) as u64),
        BinaryOp::And => a & b,
        BinaryOp::Or => a | b,
        BinaryOp::Xor => a ^ b,
        BinaryOp::Shl => {
            let n = b as u32;
            if n >= bits { 0 } else { a << n }
        }
        BinaryOp::Shr => {
            let n = (b as u32).min(if is_signed(ty) { bits - 1 } else { bits });
            if is_signed(ty) {
                (signed(a, bits) >> n) as u64
            } else {
                unsigned(a, bits).checked_shr(n).unwrap_or(0)
            }
        }
        BinaryOp::AddCc => add_carry(bits, a, b, false, Some(carry)),
        BinaryOp::Addc => add_carry(bits, a, b, *carry, None),
        BinaryOp::AddcCc => {
            let c = *carry;
            add_carry(bits, a, b, c, Some(carry))
        }
        BinaryOp::SubCc => sub_borrow(bits, a, b, false, Some(carry)),
        BinaryOp::Subc => sub_borrow(bits, a, b, *carry, None),
        BinaryOp::SubcCc => {
            let c = *carry;
            sub_borrow(bits, a, b, c, Some(carry))
        }
        BinaryOp::Bmsk | BinaryOp::BmskWrap => {
            let (mut pos, mut len) = (a as u32, b as u32);
            if op == BinaryOp::BmskWrap {
                (pos, len) = (pos & 31, len & 31);
            }
            let ones = if len >= 32 { u32::MAX } else { (1 << len) - 1 };
            u64::from(ones.checked_shl(pos).unwrap_or(0))
        }
        BinaryOp::Szext | BinaryOp::SzextWrap => {
            let n = if op == BinaryOp::SzextWrap { b as u32 & 31 } else { b as u32 };
            match n {
                0 => 0,
                32.. => a,
                _ if is_signed(ty) => signed(a, n) as u64,
                _ => unsigned(a, n),
            }
        }
    };
    unsigned(result, bits)
}

fn mul_hi(ty: ScalarType, a: u64, b: u64) -> u64 {
    if ty == ScalarType::U64 {
        return ((u128::from(a) * u128::from(b)) >> 64) as u64;
    }
    ((wide(a, ty) * wide(b, ty)) >> ty.bits()) as u64
}

/// The low 24 bits, sign-extended for signed types.
fn low24(v: u64, ty: ScalarType) -> i64 {
    if is_signed(ty) { signed(v, 24) } else { unsigned(v, 24) as i64 }
}

fn add_carry(bits: u32, a: u64, b: u64, carry: bool, out: Option<&mut bool>) -> u64 {
    let sum = u128::from(unsigned(a, bits)) + u128::from(unsigned(b, bits)) + u128::from(carry);
    if let Some(out) = out {
        *out = sum >> bits != 0;
    }
    sum as u64
}

fn sub_borrow(bits: u32, a: u64, b: u64, borrow: bool, out: Option<&mut bool>) -> u64 {
    let difference = i128::from(unsigned(a, bits)) - i128::from(unsigned(b, bits)) - i128::from(borrow);
    if let Some(out) = out {
        *out = difference < 0;
    }
    difference as u64
}

pub(super) fn ternary(
    op: TernaryOp,
    ty: ScalarType,
    mods: &Modifiers,
    a: u64,
    b: u64,
    c: u64,
    carry: &mut bool,
) -> u64 {
    let bits = ty.bits();
    let lo = |x: u64, y: u64| unsigned(x.wrapping_mul(y), bits);
    let (a32, b32, c32) = (a as u32, b as u32, c as u32);
    let result = match op {
        TernaryOp::Fma | TernaryOp::Mad if ty.is_float() => return float::ternary(op, ty, mods, a, b, c),
        TernaryOp::Fma | TernaryOp::Mad | TernaryOp::MadLo => lo(a, b).wrapping_add(c),
        TernaryOp::MadHi if mods.sat => {
            saturate(i128::from(signed(mul_hi(ty, a, b), bits)) + wide(c, ty), ty)
        }
        TernaryOp::MadHi => mul_hi(ty, a, b).wrapping_add(c),
        TernaryOp::MadWide => return ((wide(a, ty) * wide(b, ty)) as u64).wrapping_add(c),
        TernaryOp::Mad24Lo => ((low24(a, ty) * low24(b, ty)) as u64).wrapping_add(c),
        TernaryOp::Mad24Hi => {
            let high = (low24(a, ty) * low24(b, ty)) >> 16;
            if mods.sat {
                saturate(i128::from(signed(high as u64, 32)) + wide(c, ty), ty)
            } else {
                (high as u64).wrapping_add(c)
            }
        }
        TernaryOp::MadLoCc => add_carry(bits, lo(a, b), c, false, Some(carry)),
        TernaryOp::MadHiCc => add_carry(bits, mul_hi(ty, a, b), c, false, Some(carry)),
        TernaryOp::MadcLo => add_carry(bits, lo(a, b), c, *carry, None),
        TernaryOp::MadcHi => add_carry(bits, mul_hi(ty, a, b), c, *carry, None),
        TernaryOp::MadcLoCc => {
            let x = *carry;
            add_carry(bits, lo(a, b), c, x, Some(carry))
        }
        TernaryOp::MadcHiCc => {
            let x = *carry;
            add_carry(bits, mul_hi(ty, a, b), c, x, Some(carry))
        }
        TernaryOp::Sad => {
            let difference = (wide(a, ty) - wide(b, ty)).unsigned_abs() as u64;
            c.wrapping_add(difference)
        }
        TernaryOp::Bfe => bfe(ty, a, b32, c32),
        TernaryOp::ShfLWrap => u64::from(lanes::shf_l(a32, b32, c32 & 31)),
        TernaryOp::ShfLClamp => u64::from(lanes::shf_l(a32, b32, c32.min(32))),
        TernaryOp::ShfRWrap => u64::from(lanes::shf_r(a32, b32, c32 & 31)),
        TernaryOp::ShfRClamp => u64::from(lanes::shf_r(a32, b32, c32.min(32))),
        TernaryOp::Prmt => u64::from(lanes::prmt(a32, b32, c32)),
        TernaryOp::PrmtF4e
        | TernaryOp::PrmtB4e
        | TernaryOp::PrmtRc8
        | TernaryOp::PrmtEcl
        | TernaryOp::PrmtEcr
        | TernaryOp::PrmtRc16 => u64::from(lanes::prmt(a32, b32, prmt_selector(op, c32))),
    };
    unsigned(result, bits)
}

/// The selector of the default mode that does what a special mode does.
fn prmt_selector(op: TernaryOp, c: u32) -> u32 {
    let n = c & 3;
    let nibbles = |f: &dyn Fn(u32) -> u32| (0..4).fold(0, |s, i| s | (f(i) & 7) << (4 * i));
    match op {
        TernaryOp::PrmtF4e => nibbles(&|i| n + i),
        TernaryOp::PrmtB4e => nibbles(&|i| n.wrapping_sub(i)),
        TernaryOp::PrmtRc8 => nibbles(&|_| n),
        // Edge clamping to the left: bytes below `n` repeat it; to the right: bytes above.
        TernaryOp::PrmtEcl => nibbles(&|i| i.max(n)),
        TernaryOp::PrmtEcr => nibbles(&|i| i.min(n)),
        TernaryOp::PrmtRc16 => {
            let base = 2 * (n & 1);
            nibbles(&|i| base + (i & 1))
        }
        _ => c,
    }
}

/// A position or length in a field: the low 8 bits, or for 64-bit fields all of them, though the manual says otherwise;
/// devices do it like this.
fn place(bits: u32, n: u32) -> u32 {
    if bits == 64 { n.min(64) } else { n & 0xFF }
}

fn bfe(ty: ScalarType, a: u64, pos: u32, len: u32) -> u64 {
    let bits = ty.bits();
    let (pos, len) = (place(bits, pos), place(bits, len));
    let value = unsigned(a, bits);
    let field = if pos >= bits { 0 } else { value >> pos };
    let kept = if len >= 64 { field } else { field & ((1 << len) - 1) };
    if !is_signed(ty) || len == 0 {
        return kept;
    }
    // The sign is the field's highest bit, or the number's own where the field passes its end.
    let top = (pos + len - 1).min(bits - 1);
    if value >> top & 1 != 0 { kept | u64::MAX << (top.saturating_sub(pos).min(len - 1)) } else { kept }
}

fn bfi(ty: ScalarType, a: u64, b: u64, pos: u64, len: u64) -> u64 {
    let bits = ty.bits();
    let (pos, len) = (place(bits, pos as u32), place(bits, len as u32));
    if pos >= bits {
        return b;
    }
    let ones = if len >= 64 { u64::MAX } else { (1 << len) - 1 };
    let mask = ones << pos;
    unsigned(b & !mask | (a << pos) & mask, bits)
}

fn dp4a(a_ty: ScalarType, b_ty: ScalarType, a: u32, b: u32, c: u32) -> u64 {
    let byte = |v: u32, i: u32, ty: ScalarType| {
        let byte = (v >> (8 * i)) as u8;
        if is_signed(ty) { i32::from(byte as i8) } else { i32::from(byte) }
    };
    let sum = (0..4).fold(c, |sum, i| sum.wrapping_add((byte(a, i, a_ty) * byte(b, i, b_ty)) as u32));
    u64::from(sum)
}

/// `cvt` with one source. The result fills a destination of `dst_bits`, which may be wider than the type.
pub(super) fn convert(to: ScalarType, from: ScalarType, mods: &Modifiers, a: u64, dst_bits: u32) -> u64 {
    if to.is_float() || from.is_float() {
        let value = float::convert(to, from, mods, unsigned(a, from.bits()));
        // A float goes into a wider register zero-extended, an integer as its type says.
        return if is_signed(to) && dst_bits > to.bits() { signed(value, to.bits()) as u64 } else { value };
    }
    let value = wide(a, from);
    let value = if mods.sat { saturate(value, to) } else { value as u64 };
    if is_signed(to) { signed(value, to.bits()) as u64 } else { unsigned(value, to.bits()) }
}

/// Where an instruction that moves the bits of its first operands puts them; the others are what they are.
pub(super) fn moved(inst: &Inst, [a, b, c, d]: [u64; 4]) -> u64 {
    let mut carry = false;
    match inst {
        Inst::Unary { op, ty, mods, .. } => unary(*op, *ty, mods, a),
        Inst::Binary { op, ty, mods, .. } => binary(*op, *ty, mods, a, b, &mut carry),
        Inst::Ternary { op, ty, mods, .. } => ternary(*op, *ty, mods, a, b, c, &mut carry),
        Inst::Bfi { ty, .. } => bfi(*ty, a, b, c, d),
        Inst::Cvt { to, from, mods, .. } => convert(*to, *from, mods, a, 64),
        _ => a,
    }
}

/// How a comparison of integers can turn out if some of their bits may be anything.
pub(super) fn outcomes(cmp: CmpOp, ty: ScalarType, [a, b]: [u64; 2], undefined: [u64; 2]) -> [bool; 2] {
    let hit = |a: u64, b: u64| compare(cmp, ty, false, a, b);
    let unknown = undefined[0] | undefined[1];
    if matches!(cmp, CmpOp::Eq | CmpOp::Equ | CmpOp::Ne | CmpOp::Neu) {
        // They differ, whatever the others are.
        let decided = unknown == 0 || unsigned((a ^ b) & !unknown, ty.bits()) != 0;
        return [hit(a, b), hit(a, b) == decided];
    }
    let sign = if is_signed(ty) { 1 << (ty.bits() - 1) } else { 0 };
    let least = |x: u64, undefined: u64| ((x ^ sign) & !undefined) ^ sign;
    let most = |x: u64, undefined: u64| ((x ^ sign) | undefined) ^ sign;
    [hit(least(a, undefined[0]), most(b, undefined[1])), hit(most(a, undefined[0]), least(b, undefined[1]))]
}

#[cfg(test)]
mod tests;
