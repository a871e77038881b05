//! Floating-point and conversion instructions, bit for bit, one lane at a time.
//!
//! Values travel as raw bits in the low end of a `u64`, zero above the type's width; packed types hold two. These
//! functions cover every type and modifier and decide what is right; the interpreter's vectorised loops repeat the
//! common cases and are tested against them.
//!
//! - Results are rounded once, in any direction, from exact values ([`exact`]). `fma` rounds once.
//! - NaN results are canonical: `0x7fffffff` (f32), `0x7fff` (f16, bf16). f64 keeps the payload of the first NaN operand
//!   and makes `0xfff8000000000000` where there is none. `abs`, `neg` and `copysign` of other types than f32 only touch
//!   the sign.
//! - `.ftz` makes subnormal operands and results zeros of their sign; `.sat` clamps to \[0, 1\] and turns NaN into +0;
//!   `.relu` turns negative results and -0 into +0 and keeps NaN.
//! - `min` and `max` prefer a number over NaN unless `.NaN` is set, and put -0 below +0.
//! - Approximate functions ([`approx`]) return the f64 value rounded to the type.

pub mod approx;
mod convert;
pub mod exact;

use warpwright_ptx::{BinaryOp, CmpOp, Modifiers, ScalarType, TernaryOp, UnaryOp};

pub use convert::{convert, convert_pair};
pub use exact::{Exact, Format, Round};

/// The format of a floating-point type and whether two of them are packed.
const fn format_of(ty: ScalarType) -> Option<(Format, bool)> {
    Some(match ty {
        ScalarType::F16 => (Format::F16, false),
        ScalarType::F16x2 => (Format::F16, true),
        ScalarType::BF16 => (Format::BF16, false),
        ScalarType::BF16x2 => (Format::BF16, true),
        ScalarType::F32 => (Format::F32, false),
        ScalarType::F32x2 => (Format::F32, true),
        ScalarType::F64 => (Format::F64, false),
        ScalarType::TF32 => (Format::TF32, false),
        _ => return None,
    })
}

/// Applies `f` to each element of up to three operands.
fn each(ty: ScalarType, [a, b, c]: [u64; 3], f: impl Fn(Format, u64, u64, u64) -> u64) -> u64 {
    match format_of(ty) {
        None => 0,
        Some((format, false)) => f(format, a, b, c),
        Some((format, true)) => {
            let width = ty.bits() / 2;
            let part = |x: u64, shift: u32| x >> shift & ((1 << width) - 1);
            let at = |shift| f(format, part(a, shift), part(b, shift), part(c, shift));
            at(width) << width | at(0)
        }
    }
}

/// The modifiers that act on results.
fn finish(format: Format, bits: u64, mods: &Modifiers) -> u64 {
    let bits = if mods.ftz { format.flush(bits) } else { bits };
    if mods.sat {
        return saturate(format, bits);
    }
    if mods.relu && format.is_negative(bits) && !format.is_nan(bits) { 0 } else { bits }
}

/// Clamps to \[0, 1\]; NaN becomes +0.
pub(crate) fn saturate(format: Format, bits: u64) -> u64 {
    if format.is_nan(bits) || format.is_negative(bits) { 0 } else { bits.min(format.one()) }
}

fn operand(format: Format, bits: u64, mods: &Modifiers) -> u64 {
    if mods.ftz { format.flush(bits) } else { bits }
}

/// The NaN that arithmetic on these operands returns.
fn nan_of(format: Format, operands: &[u64]) -> u64 {
    if format == Format::F64 {
        let quiet = 1 << 51;
        operands.iter().find(|bits| format.is_nan(**bits)).map_or(format.nan(), |bits| bits | quiet)
    } else {
        format.nan()
    }
}

/// Rounds a number; with `.ftz`, one that is too small for a normal number becomes zero.
fn encode(format: Format, exact: Exact, mods: &Modifiers, saturate: bool) -> u64 {
    let rounding = Round::of(mods.rounding);
    let bits = format.encode(exact, rounding, saturate);
    if mods.ftz && format.is_tiny(exact, rounding) {
        format.signed(format.is_negative(bits), 0)
    } else {
        bits
    }
}

/// Rounds an exact result of `operands` and applies the modifiers.
fn round(format: Format, exact: Exact, operands: &[u64], mods: &Modifiers) -> u64 {
    let bits = match exact {
        Exact::Nan => nan_of(format, operands),
        exact => encode(format, exact, mods, false),
    };
    finish(format, bits, mods)
}

/// The value as f64; exact for every format.
fn to_f64(format: Format, bits: u64) -> f64 {
    match format {
        Format::F32 => f64::from(f32::from_bits(bits as u32)),
        Format::F64 => f64::from_bits(bits),
        _ => f64::from_bits(Format::F64.encode(format.decode(bits), Round::NearestEven, false)),
    }
}

/// A result computed in f64, rounded to nearest.
fn from_f64(format: Format, value: f64, mods: &Modifiers) -> u64 {
    let bits = if value.is_nan() {
        format.nan()
    } else {
        match format {
            Format::F32 => u64::from((value as f32).to_bits()),
            Format::F64 => value.to_bits(),
            _ => format.encode(Format::F64.decode(value.to_bits()), Round::NearestEven, false),
        }
    };
    finish(format, bits, mods)
}

/// `op.mods.ty` of one operand. `testp` gives 0 or 1; other operators than the floating-point ones give 0.
pub fn unary(op: UnaryOp, ty: ScalarType, mods: &Modifiers, a: u64) -> u64 {
    each(ty, [a, 0, 0], |format, a, _, _| unary_element(op, format, mods, a))
}

fn unary_element(op: UnaryOp, format: Format, mods: &Modifiers, bits: u64) -> u64 {
    let a = operand(format, bits, mods);
    let magnitude = format.magnitude(a);
    match op {
        // Of f64 the payload and even the sign stay.
        UnaryOp::Neg | UnaryOp::Abs if format.is_nan(a) => match format {
            Format::F64 => format.nan_of(format, a),
            _ => format.nan(),
        },
        UnaryOp::Neg => format.negate(a),
        UnaryOp::Abs => magnitude,
        UnaryOp::Rcp if mods.approx && format == Format::F64 => {
            from_f64(format, 1.0 / f64::from_bits(a), mods) & UPPER_WORD
        }
        UnaryOp::Rcp => {
            let one = format.decode(format.one());
            round(format, one.divided_by(format.decode(a)), &[a], mods)
        }
        UnaryOp::Sqrt => round(format, format.decode(a).square_root(), &[a], mods),
        UnaryOp::Rsqrt => {
            let bits = from_f64(format, approx::rsqrt(to_f64(format, a)), mods);
            // Only the flushing form is the coarse one.
            if format == Format::F64 && mods.ftz { bits & UPPER_WORD } else { bits }
        }
        UnaryOp::Ex2 => from_f64(format, approx::exp2(to_f64(format, a)), mods),
        UnaryOp::Lg2 => from_f64(format, approx::log2(to_f64(format, a)), mods),
        UnaryOp::Sin => from_f64(format, approx::sin(to_f64(format, a)), mods),
        UnaryOp::Cos => from_f64(format, approx::cos(to_f64(format, a)), mods),
        UnaryOp::Tanh => from_f64(format, approx::tanh(to_f64(format, a)), mods),
        UnaryOp::TestNan => u64::from(format.is_nan(bits)),
        UnaryOp::TestNumber => u64::from(!format.is_nan(bits)),
        UnaryOp::TestSubnormal => u64::from(format.is_subnormal(bits)),
        UnaryOp::TestInfinite => u64::from(matches!(format.decode(bits), Exact::Infinite { .. })),
        UnaryOp::TestFinite => u64::from(matches!(format.decode(bits), Exact::Finite { .. })),
        UnaryOp::TestNormal => {
            let finite = matches!(format.decode(bits), Exact::Finite { .. });
            // Zeros count as normal (ISA, `testp`).
            u64::from(finite && !format.is_subnormal(bits))
        }
        UnaryOp::Not
        | UnaryOp::Cnot
        | UnaryOp::Popc
        | UnaryOp::Clz
        | UnaryOp::Brev
        | UnaryOp::Bfind
        | UnaryOp::BfindShiftAmt => 0,
    }
}

/// The approximate f64 functions fill only the upper word of the result.
const UPPER_WORD: u64 = 0xffff_ffff_0000_0000;

/// `op.mods.ty` of two operands; other operators than the floating-point ones give 0.
pub fn binary(op: BinaryOp, ty: ScalarType, mods: &Modifiers, a: u64, b: u64) -> u64 {
    each(ty, [a, b, 0], |format, a, b, _| binary_element(op, format, mods, a, b))
}

fn binary_element(op: BinaryOp, format: Format, mods: &Modifiers, a: u64, b: u64) -> u64 {
    if op == BinaryOp::Copysign {
        return format.signed(format.is_negative(a), format.magnitude(b));
    }
    let (a, b) = (operand(format, a, mods), operand(format, b, mods));
    let rounding = Round::of(mods.rounding);
    let (x, y) = (format.decode(a), format.decode(b));
    let exact = match op {
        BinaryOp::Add => x.plus(y, rounding),
        BinaryOp::Sub => x.plus(y.negated(), rounding),
        BinaryOp::Mul => x.times(y),
        BinaryOp::Div if mods.approx && format == Format::F32 => {
            let quotient = approx::div_f32(f32::from_bits(a as u32), f32::from_bits(b as u32));
            return from_f64(format, f64::from(quotient), mods);
        }
        BinaryOp::Div => x.divided_by(y),
        BinaryOp::Min | BinaryOp::Max => {
            return finish(format, extreme(op == BinaryOp::Max, format, mods, a, b), mods);
        }
        _ => return 0,
    };
    round(format, exact, &[a, b], mods)
}

/// `min` and `max`.
fn extreme(max: bool, format: Format, mods: &Modifiers, a: u64, b: u64) -> u64 {
    let sign = mods.xorsign_abs && format.is_negative(a) != format.is_negative(b);
    let (a, b) = if mods.xorsign_abs { (format.magnitude(a), format.magnitude(b)) } else { (a, b) };
    let chosen = match (format.is_nan(a), format.is_nan(b)) {
        (true, true) => return format.nan(),
        (true, false) | (false, true) if mods.nan => return format.nan(),
        (true, false) => b,
        (false, true) => a,
        // As integers that order like the numbers, -0 below +0.
        (false, false) => {
            let order = |bits: u64| {
                let magnitude = format.magnitude(bits) as i64;
                if format.is_negative(bits) { -magnitude - 1 } else { magnitude }
            };
            if (order(a) > order(b)) == max { a } else { b }
        }
    };
    if sign { format.negate(chosen) } else { chosen }
}

/// The halves outside of the tensor in a tensor copy that fills with NaN, as `fma.oob` recognizes them. The manual
/// calls it a NaN of its own without giving its bits.
pub const OOB_NAN: u64 = 0xffff;

/// `min` and `max` of three operands.
pub fn extreme3(max: bool, ty: ScalarType, mods: &Modifiers, operands: [u64; 3]) -> u64 {
    each(ty, operands, |format, a, b, c| {
        let [a, b, c] = [a, b, c].map(|bits| operand(format, bits, mods));
        let pair = extreme(max, format, mods, a, b);
        // A NaN that was propagated must not lose against a number.
        finish(
            format,
            if mods.nan && format.is_nan(pair) { pair } else { extreme(max, format, mods, pair, c) },
            mods,
        )
    })
}

/// A half as single precision, exactly.
fn widened(narrow: ScalarType, bits: u64) -> Exact {
    format_of(narrow).map_or(Exact::Nan, |(format, _)| format.decode(bits & 0xffff))
}

/// `add` and `sub` of a half and a single-precision number.
pub fn mixed_sum(subtract: bool, narrow: ScalarType, mods: &Modifiers, [a, c]: [u64; 2]) -> u64 {
    let c = Format::F32.decode(c);
    let sum = widened(narrow, a).plus(if subtract { c.negated() } else { c }, Round::of(mods.rounding));
    round(Format::F32, sum, &[], mods)
}

/// `fma` of two halves and a single-precision number.
pub fn mixed_fma(narrow: ScalarType, mods: &Modifiers, [a, b, c]: [u64; 3]) -> u64 {
    let product = widened(narrow, a).times(widened(narrow, b));
    round(Format::F32, product.plus(Format::F32.decode(c), Round::of(mods.rounding)), &[], mods)
}

/// `fma` and `mad`, rounded once; other operators give 0.
pub fn ternary(op: TernaryOp, ty: ScalarType, mods: &Modifiers, a: u64, b: u64, c: u64) -> u64 {
    if !matches!(op, TernaryOp::Fma | TernaryOp::Mad) {
        return 0;
    }
    each(ty, [a, b, c], |format, a, b, c| {
        if mods.oob && [a, b].contains(&OOB_NAN) {
            return 0;
        }
        let [a, b, c] = [a, b, c].map(|bits| operand(format, bits, mods));
        let product = format.decode(a).times(format.decode(b));
        let sum = product.plus(format.decode(c), Round::of(mods.rounding));
        round(format, sum, &[a, b, c], mods)
    })
}

/// A comparison of two numbers of a floating-point type that is not packed. Ordered comparisons (`ne` included) are
/// false with NaN, the `u` forms true. The unsigned integer forms are false.
pub fn compare(cmp: CmpOp, ty: ScalarType, ftz: bool, a: u64, b: u64) -> bool {
    let Some((format, _)) = format_of(ty) else { return false };
    let value = |bits| to_f64(format, if ftz { format.flush(bits) } else { bits });
    let (a, b) = (value(a), value(b));
    let unordered = a.is_nan() || b.is_nan();
    match cmp {
        CmpOp::Eq => a == b,
        CmpOp::Ne => !unordered && a != b,
        CmpOp::Lt => a < b,
        CmpOp::Le => a <= b,
        CmpOp::Gt => a > b,
        CmpOp::Ge => a >= b,
        CmpOp::Equ => unordered || a == b,
        CmpOp::Neu => unordered || a != b,
        CmpOp::Ltu => unordered || a < b,
        CmpOp::Leu => unordered || a <= b,
        CmpOp::Gtu => unordered || a > b,
        CmpOp::Geu => unordered || a >= b,
        CmpOp::Num => !unordered,
        CmpOp::Nan => unordered,
        CmpOp::Lo | CmpOp::Ls | CmpOp::Hi | CmpOp::Hs => false,
    }
}

#[cfg(test)]
mod tests;
