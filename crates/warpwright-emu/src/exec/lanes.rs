//! Arithmetic of one lane for the hot operations, without branches, so that loops over lanes vectorise.
//!
//! The rules are those of [`float`](crate::float), which also serves every operation that is not hot; a test compares
//! the two.

use crate::float::approx;

/// The NaN that single-precision instructions return.
pub(crate) const NAN32: u32 = 0x7FFF_FFFF;

#[inline(always)]
pub(crate) fn canonical(x: f32) -> u32 {
    if x.is_nan() { NAN32 } else { x.to_bits() }
}

#[inline(always)]
pub(crate) fn add_f32(a: u32, b: u32) -> u32 {
    canonical(f32::from_bits(a) + f32::from_bits(b))
}

#[inline(always)]
pub(crate) fn sub_f32(a: u32, b: u32) -> u32 {
    canonical(f32::from_bits(a) - f32::from_bits(b))
}

#[inline(always)]
pub(crate) fn mul_f32(a: u32, b: u32) -> u32 {
    canonical(f32::from_bits(a) * f32::from_bits(b))
}

#[inline(always)]
pub(crate) fn div_f32(a: u32, b: u32) -> u32 {
    canonical(f32::from_bits(a) / f32::from_bits(b))
}

#[inline(always)]
pub(crate) fn fma_f32(a: u32, b: u32, c: u32) -> u32 {
    canonical(f32::from_bits(a).mul_add(f32::from_bits(b), f32::from_bits(c)))
}

#[inline(always)]
pub(crate) fn rcp_f32(a: u32) -> u32 {
    canonical(1.0 / f32::from_bits(a))
}

#[inline(always)]
pub(crate) fn sqrt_f32(a: u32) -> u32 {
    canonical(f32::from_bits(a).sqrt())
}

#[inline(always)]
pub(crate) fn rsqrt_f32(a: u32) -> u32 {
    canonical(approx::rsqrt(f64::from(f32::from_bits(a))) as f32)
}

#[inline(always)]
pub(crate) fn ex2_f32(a: u32) -> u32 {
    canonical(approx::exp2(f64::from(f32::from_bits(a))) as f32)
}

#[inline(always)]
pub(crate) fn lg2_f32(a: u32) -> u32 {
    canonical(approx::log2(f64::from(f32::from_bits(a))) as f32)
}

/// Subnormals become zeros of their sign.
#[inline(always)]
pub(crate) fn flush(a: u32) -> u32 {
    if a & 0x7F80_0000 == 0 { a & 0x8000_0000 } else { a }
}

#[inline(always)]
pub(crate) fn neg_f32(a: u32) -> u32 {
    if f32::from_bits(a).is_nan() { NAN32 } else { a ^ 0x8000_0000 }
}

#[inline(always)]
pub(crate) fn abs_f32(a: u32) -> u32 {
    if f32::from_bits(a).is_nan() { NAN32 } else { a & 0x7FFF_FFFF }
}

#[inline(always)]
pub(crate) fn round_f32(a: u32, round: impl Fn(f32) -> f32) -> u32 {
    canonical(round(f32::from_bits(a)))
}

/// The smaller; a NaN loses, and -0 is below +0.
#[inline(always)]
pub(crate) fn min_f32(a: u32, b: u32) -> u32 {
    let (x, y) = (f32::from_bits(a), f32::from_bits(b));
    let smaller = if x < y { a } else { b };
    // Equal values differ at most in the sign of a zero.
    let result = if x == y { a | b } else { smaller };
    let result = if y.is_nan() { a } else { result };
    let result = if x.is_nan() { b } else { result };
    canonical(f32::from_bits(result))
}

/// The larger; a NaN loses, and +0 is above -0.
#[inline(always)]
pub(crate) fn max_f32(a: u32, b: u32) -> u32 {
    let (x, y) = (f32::from_bits(a), f32::from_bits(b));
    let larger = if x > y { a } else { b };
    let result = if x == y { a & b } else { larger };
    let result = if y.is_nan() { a } else { result };
    let result = if x.is_nan() { b } else { result };
    canonical(f32::from_bits(result))
}

/// Applies `f`, which gives one of its operands or NaN, to both halves: a bfloat16 number is the upper half of the same f32.
#[inline(always)]
pub(crate) fn each_bf16(a: u32, b: u32, f: impl Fn(u32, u32) -> u32) -> u32 {
    const UPPER: u32 = 0xFFFF_0000;
    f(a & UPPER, b & UPPER) & UPPER | f(a << 16, b << 16) >> 16
}

/// NaN if an operand is NaN, else `result`.
#[inline(always)]
pub(crate) fn propagate(a: u32, b: u32, result: u32) -> u32 {
    if f32::from_bits(a).is_nan() | f32::from_bits(b).is_nan() { NAN32 } else { result }
}

#[inline(always)]
pub(crate) fn min_f64(a: u64, b: u64) -> u64 {
    let (x, y) = (f64::from_bits(a), f64::from_bits(b));
    let smaller = if x < y { a } else { b };
    let result = if x == y { a | b } else { smaller };
    let result = if y.is_nan() { a } else { result };
    if x.is_nan() { b } else { result }
}

#[inline(always)]
pub(crate) fn max_f64(a: u64, b: u64) -> u64 {
    let (x, y) = (f64::from_bits(a), f64::from_bits(b));
    let larger = if x > y { a } else { b };
    let result = if x == y { a & b } else { larger };
    let result = if y.is_nan() { a } else { result };
    if x.is_nan() { b } else { result }
}

/// Towards zero; NaN gives the most significant bit alone, as with every f64 source.
#[inline(always)]
pub(crate) fn f64_to_u32(a: u64) -> u32 {
    let x = f64::from_bits(a);
    if x.is_nan() { 1 << 31 } else { x as u32 }
}

#[inline(always)]
pub(crate) fn f64_to_s32(a: u64) -> u32 {
    let x = f64::from_bits(a);
    if x.is_nan() { 1 << 31 } else { x as i32 as u32 }
}

#[inline(always)]
pub(crate) fn tanh_f32(a: u32) -> u32 {
    canonical(approx::tanh(f64::from(f32::from_bits(a))) as f32)
}

#[inline(always)]
pub(crate) fn ordered_ne_f32(a: u32, b: u32) -> bool {
    let (x, y) = (f32::from_bits(a), f32::from_bits(b));
    (x < y) | (x > y)
}

/// Greater or unordered.
#[inline(always)]
#[allow(clippy::neg_cmp_op_on_partial_ord, reason = "true for NaN is what is meant")]
pub(crate) fn not_le_f32(a: u32, b: u32) -> bool {
    !(f32::from_bits(a) <= f32::from_bits(b))
}

/// Greater or unordered.
#[inline(always)]
#[allow(clippy::neg_cmp_op_on_partial_ord, reason = "true for NaN is what is meant")]
pub(crate) fn not_le_f64(a: u64, b: u64) -> bool {
    !(f64::from_bits(a) <= f64::from_bits(b))
}

/// Greater, equal or unordered.
#[inline(always)]
#[allow(clippy::neg_cmp_op_on_partial_ord, reason = "true for NaN is what is meant")]
pub(crate) fn not_lt_f32(a: u32, b: u32) -> bool {
    !(f32::from_bits(a) < f32::from_bits(b))
}

/// Greater, equal or unordered.
#[inline(always)]
#[allow(clippy::neg_cmp_op_on_partial_ord, reason = "true for NaN is what is meant")]
pub(crate) fn not_lt_f64(a: u64, b: u64) -> bool {
    !(f64::from_bits(a) < f64::from_bits(b))
}

#[inline(always)]
pub(crate) fn bf16_to_f32(a: u32) -> u32 {
    a << 16
}

/// Rounds to nearest even; every NaN becomes 0x7FFF.
#[inline(always)]
pub(crate) fn f32_to_bf16(a: u32) -> u32 {
    let rounded = a.wrapping_add(0x7FFF + ((a >> 16) & 1)) >> 16;
    if f32::from_bits(a).is_nan() { 0x7FFF } else { rounded }
}

/// Exact: the exponent is moved by a multiplication, which also normalises subnormals.
#[inline(always)]
pub(crate) fn f16_to_f32(a: u32) -> u32 {
    const SCALE: f32 = f32::from_bits(0x7780_0000); // 2^112
    let sign = (a & 0x8000) << 16;
    let magnitude = (a & 0x7FFF) << 13;
    let scaled = (f32::from_bits(magnitude) * SCALE).to_bits();
    let special = if a & 0x3FF != 0 { NAN32 } else { sign | 0x7F80_0000 };
    if a & 0x7C00 == 0x7C00 { special } else { sign | scaled }
}

/// Rounds to nearest even; every NaN becomes 0x7FFF.
#[inline(always)]
pub(crate) fn f32_to_f16(a: u32) -> u32 {
    let sign = (a >> 16) & 0x8000;
    let magnitude = a & 0x7FFF_FFFF;
    // Below 2^-14 the result is subnormal: adding 0.5 aligns its last bit with the last bit of the sum, so that the
    // addition rounds, and the sum's mantissa is the result.
    let half = 0x3F00_0000u32;
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(half)).to_bits().wrapping_sub(half);
    // Otherwise rebias the exponent by -112 and round at bit 13; a carry runs into the exponent.
    let normal = magnitude.wrapping_add(0xC800_0000).wrapping_add(0xFFF + ((magnitude >> 13) & 1)) >> 13;
    let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
    // 65520 and above round to infinity.
    let bounded = if magnitude >= 0x477F_F000 { 0x7C00 } else { finite };
    if magnitude > 0x7F80_0000 { 0x7FFF } else { sign | bounded }
}

#[inline(always)]
pub(crate) fn f32_to_f64(a: u32) -> u64 {
    let x = f32::from_bits(a);
    f64::from(x).to_bits()
}

#[inline(always)]
pub(crate) fn f64_to_f32(a: u64) -> u32 {
    let nan = (a >> 32) as u32 & 0x8000_0000 | 0x7FC0_0000 | (a >> 29) as u32 & 0x3F_FFFF;
    let x = f64::from_bits(a);
    if x.is_nan() { nan } else { (x as f32).to_bits() }
}

/// Division by zero gives all ones, as the hardware's expansion does.
#[inline(always)]
pub(crate) fn div_u32(a: u32, b: u32) -> u32 {
    a.checked_div(b).unwrap_or(u32::MAX)
}

#[inline(always)]
pub(crate) fn rem_u32(a: u32, b: u32) -> u32 {
    a.checked_rem(b).unwrap_or(a)
}

#[inline(always)]
pub(crate) fn div_u64(a: u64, b: u64) -> u64 {
    a.checked_div(b).unwrap_or(u64::MAX)
}

#[inline(always)]
pub(crate) fn rem_u64(a: u64, b: u64) -> u64 {
    a.checked_rem(b).unwrap_or(a)
}

/// The upper word of `b:a << n` with `n <= 32`.
#[inline(always)]
pub(crate) fn shf_l(a: u32, b: u32, n: u32) -> u32 {
    (((u64::from(b) << 32 | u64::from(a)) << n) >> 32) as u32
}

/// The lower word of `b:a >> n` with `n <= 32`.
#[inline(always)]
pub(crate) fn shf_r(a: u32, b: u32, n: u32) -> u32 {
    ((u64::from(b) << 32 | u64::from(a)) >> n) as u32
}

/// `len` bits of `a` from `pos`; both use their low 8 bits.
#[inline(always)]
pub(crate) fn bfe_u32(a: u32, pos: u32, len: u32) -> u32 {
    let (pos, len) = (pos & 0xFF, len & 0xFF);
    let shifted = if pos < 32 { a >> (pos & 31) } else { 0 };
    let mask = if len < 32 { (1u32 << (len & 31)) - 1 } else { u32::MAX };
    shifted & mask
}

/// Byte permutation in the default mode.
#[inline(always)]
pub(crate) fn prmt(a: u32, b: u32, selector: u32) -> u32 {
    let pool = u64::from(b) << 32 | u64::from(a);
    let mut out = 0;
    for i in 0..4 {
        let pick = selector >> (4 * i);
        let byte = (pool >> (8 * (pick & 7))) as u32 & 0xFF;
        let sign = (byte >> 7) * 0xFF;
        out |= (if pick & 8 != 0 { sign } else { byte }) << (8 * i);
    }
    out
}

/// Any function of three bits, bit by bit; index `a*4 + b*2 + c` of the table.
#[inline(always)]
pub(crate) fn lop3(a: u32, b: u32, c: u32, table: u8) -> u32 {
    let mut out = 0;
    for i in 0..8u32 {
        let on = 0u32.wrapping_sub(u32::from(table >> i) & 1);
        let x = if i & 4 != 0 { a } else { !a };
        let y = if i & 2 != 0 { b } else { !b };
        let z = if i & 1 != 0 { c } else { !c };
        out |= x & y & z & on;
    }
    out
}
