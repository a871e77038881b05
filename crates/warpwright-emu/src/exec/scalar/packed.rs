//! Operations on the parts of a word.

use warpwright_ptx::{BinaryOp, Modifiers, PackedInteger, ScalarType, VideoForm, VideoOp};

use super::is_signed;

/// The 16-bit halves of `a` times two bytes of `b`, added to `c`; both keep the signs of their types.
pub(super) fn dp2a(high: bool, (a_ty, b_ty): (ScalarType, ScalarType), a: u32, b: u32, c: u32) -> u64 {
    let b = if high { b >> 16 } else { b };
    let half = |i: u32| {
        let half = (a >> (16 * i)) as u16;
        if is_signed(a_ty) { i32::from(half as i16) } else { i32::from(half) }
    };
    let byte = |i: u32| {
        let byte = (b >> (8 * i)) as u8;
        if is_signed(b_ty) { i32::from(byte as i8) } else { i32::from(byte) }
    };
    u64::from((0..2).fold(c, |sum, i| sum.wrapping_add(half(i).wrapping_mul(byte(i)) as u32)))
}

/// Video arithmetic: the lanes of the mask of the results replace those of `c`, or are added to it.
pub(super) fn video(form: &VideoForm, a: u32, b: u32, c: u32) -> u32 {
    let bits = 32 / form.lanes() as u32;
    let ones = (1u32 << bits) - 1;
    let both = u64::from(b) << 32 | u64::from(a);
    let operand = |side: usize, lane: usize| {
        let word = (both >> (u32::from(form.select[side][lane]) * bits)) as u32 & ones;
        let unused = 32 - bits;
        if is_signed(form.types[side + 1]) { (word << unused).cast_signed() >> unused } else { word as i32 }
    };
    let signed = is_signed(form.types[0]);
    let (low, high) = if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
    let lanes = (0..form.lanes()).filter(|lane| form.mask >> lane & 1 != 0);
    lanes.fold(c, |word, lane| {
        let (x, y) = (operand(0, lane), operand(1, lane));
        let exact = match form.op {
            VideoOp::Add => x + y,
            VideoOp::Sub => x - y,
            VideoOp::Average => (x + y + i32::from(x + y >= 0)) >> 1,
            VideoOp::AbsDiff => (x - y).abs(),
            VideoOp::Min => x.min(y),
            VideoOp::Max => x.max(y),
        };
        let result = (if form.saturate { exact.clamp(low, high) } else { exact }).cast_unsigned();
        if form.accumulate {
            return word.wrapping_add(result);
        }
        let at = lane as u32 * bits;
        word & !(ones << at) | (result & ones) << at
    })
}

/// The place of the n-th bit of `mask` that is set, counted from bit `base` on, upwards or, for negative `n`, downwards;
/// with 0 bit `base` itself. All ones if there is none.
pub(super) fn fns(mask: u32, base: u32, n: i32) -> u32 {
    if base > 31 {
        return u32::MAX;
    }
    let set = |at: &u32| mask >> at & 1 != 0;
    let skip = (n.unsigned_abs() as usize).saturating_sub(1);
    let found = match n {
        0 => Some(base).filter(set),
        1.. => (base..32).filter(set).nth(skip),
        _ => (0..=base).rev().filter(set).nth(skip),
    };
    found.unwrap_or(u32::MAX)
}

/// `add`, `min` and `max` of packed 16-bit integers.
pub(super) fn halves(op: BinaryOp, signed: bool, mods: &Modifiers, a: u64, b: u64) -> u64 {
    let half = |shift: u32| {
        let (a, b) = ((a >> shift) as u16, (b >> shift) as u16);
        let smaller = if signed { (a as i16) < b as i16 } else { a < b };
        let value = match op {
            BinaryOp::Min if smaller => a,
            BinaryOp::Max if !smaller => a,
            BinaryOp::Min | BinaryOp::Max => b,
            BinaryOp::Sub => a.wrapping_sub(b),
            _ => a.wrapping_add(b),
        };
        u64::from(if mods.relu && (value as i16) < 0 { 0 } else { value })
    };
    half(16) << 16 | half(0)
}

/// `a` and `b` clamped to a narrow integer, in the low bits below those of `c`.
pub(super) fn saturated(to: PackedInteger, a: u32, b: u32, c: u32) -> u64 {
    let bits = to.bits();
    let (low, high) = match to {
        PackedInteger::U16 | PackedInteger::U8 | PackedInteger::U4 | PackedInteger::U2 => {
            (0, (1i32 << bits) - 1)
        }
        PackedInteger::S16 | PackedInteger::S8 | PackedInteger::S4 | PackedInteger::S2 => {
            (-(1i32 << (bits - 1)), (1i32 << (bits - 1)) - 1)
        }
    };
    let part = |x: u32| ((x as i32).clamp(low, high) as u32) & ((1 << bits) - 1);
    u64::from(c.checked_shl(2 * bits).unwrap_or(0) | part(a) << bits | part(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_found_in_both_directions() {
        // The loop of the PTX manual, for every base and a range of counts.
        let manual = |mask: u32, base: i32, n: i32| {
            if n == 0 {
                return if mask >> base & 1 == 1 { base as u32 } else { u32::MAX };
            }
            let (mut at, mut count) = (base, n.abs() - 1);
            while (0..32).contains(&at) {
                if mask >> at & 1 == 1 {
                    if count == 0 {
                        return at as u32;
                    }
                    count -= 1;
                }
                at += n.signum();
            }
            u32::MAX
        };
        for mask in [0, 1, 0x8000_0000, 0xFFFF_FFFF, 0x1234_5678, 0xA5A5_0F0F] {
            for base in 0..32 {
                for n in -34..=34 {
                    assert_eq!(fns(mask, base as u32, n), manual(mask, base, n), "{mask:#x} {base} {n}");
                }
            }
        }
        assert_eq!(fns(1, 0, i32::MIN), u32::MAX);
    }

    #[test]
    fn halves_and_bytes() {
        let (s, u) = (ScalarType::S32, ScalarType::U32);
        // Halves 2 and -1 with bytes 3, -2 | 5, 7.
        let (a, b) = (0xFFFF_0002, 0x0705_FE03);
        assert_eq!(dp2a(false, (s, s), a, b, 10) as u32, (2 * 3 + 2 + 10) as u32);
        assert_eq!(dp2a(true, (s, s), a, b, 0) as u32 as i32, 2 * 5 - 7);
        assert_eq!(dp2a(false, (u, u), a, b, 0) as u32, 2 * 3 + 65535 * 254);
        let relu = Modifiers { relu: true, ..Modifiers::NONE };
        assert_eq!(halves(BinaryOp::Add, false, &Modifiers::NONE, 0xFFFF_0001, 0x0002_0003), 0x0001_0004);
        assert_eq!(halves(BinaryOp::Min, true, &Modifiers::NONE, 0xFFFF_0001, 0x0002_0003), 0xFFFF_0001);
        assert_eq!(halves(BinaryOp::Min, false, &Modifiers::NONE, 0xFFFF_0001, 0x0002_0003), 0x0002_0001);
        assert_eq!(halves(BinaryOp::Max, true, &relu, 0xFFFF_8001, 0xFFFE_8003), 0);
    }
}
