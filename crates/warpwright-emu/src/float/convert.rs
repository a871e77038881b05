//! `cvt`: every pair of types.

use warpwright_ptx::{Modifiers, Rounding, ScalarType, TypeClass};

use super::{Exact, Format, Round, encode, finish, format_of};

/// The elements of a type that `cvt` packs or unpacks.
const fn packed_format(ty: ScalarType) -> Option<(Format, u32)> {
    Some(match ty {
        ScalarType::F16x2 => (Format::F16, 16),
        ScalarType::BF16x2 => (Format::BF16, 16),
        ScalarType::E4M3x2 => (Format::E4M3, 8),
        ScalarType::E5M2x2 => (Format::E5M2, 8),
        _ => return None,
    })
}

fn low_bits(bits: u64, width: u32) -> u64 {
    if width >= 64 { bits } else { bits & ((1 << width) - 1) }
}

/// `cvt.mods.to.from` of one source: bits of type `to`, zero above its width. The caller extends them to a wider register.
///
/// - Integers: sign or zero extension by the source's type, truncation, or clamping with `.sat`.
/// - Integer to float: rounded as the modifier says, to nearest without one.
/// - Float to integer: rounded as the modifier says, towards zero without one, and clamped to the destination. NaN gives
///   0, or the top bit alone if the source is f64 or the destination has 64 bits.
/// - Float to float: rounded; with an integral rounding (`.rni`, ...) between floats, to an integer first. Conversions from
///   and to f64 keep what fits of the payload of a NaN and make it quiet; from bf16 to f32 and, with `.rna`, to tf32 the
///   bits stay as they are; all others give the canonical NaN. So does an H200; PTX leaves it open.
/// - Packed to packed converts both elements.
pub fn convert(to: ScalarType, from: ScalarType, mods: &Modifiers, a: u64) -> u64 {
    match (packed_format(to), packed_format(from)) {
        (Some((target, width)), Some((source, source_width))) => {
            let element = |bits| float_to_float(target, source, mods, low_bits(bits, source_width));
            return element(a >> source_width) << width | element(a);
        }
        (Some(_), None) | (None, Some(_)) => return 0,
        (None, None) => {}
    }
    match (format_of(to), format_of(from)) {
        (Some((target, _)), Some((source, _))) => float_to_float(target, source, mods, a),
        (Some((target, _)), None) => {
            let exact = integer(from, a);
            finish(target, target.encode(exact, Round::of(mods.rounding), false), mods)
        }
        (None, Some((source, _))) => float_to_integer(to, source, mods, a),
        (None, None) => integer_to_integer(to, from, mods.sat, a),
    }
}

/// The packing form `cvt.mods.to.from d, a, b`: `a` becomes the upper element.
pub fn convert_pair(to: ScalarType, from: ScalarType, mods: &Modifiers, a: u64, b: u64) -> u64 {
    let (Some((target, width)), Some((source, false))) = (packed_format(to), format_of(from)) else {
        return 0;
    };
    float_to_float(target, source, mods, a) << width | float_to_float(target, source, mods, b)
}

/// The value of an integer type's low bits.
fn integer_value(ty: ScalarType, bits: u64) -> i128 {
    let width = ty.bits().clamp(1, 64);
    let low = low_bits(bits, width);
    if ty.class() == TypeClass::Signed {
        i128::from(((low << (64 - width)) as i64) >> (64 - width))
    } else {
        i128::from(low)
    }
}

/// Smallest and largest value of an integer type.
fn integer_range(ty: ScalarType) -> (i128, i128) {
    let width = ty.bits().clamp(1, 64);
    if ty.class() == TypeClass::Signed {
        (-(1 << (width - 1)), (1 << (width - 1)) - 1)
    } else {
        (0, (1 << width) - 1)
    }
}

fn integer(ty: ScalarType, bits: u64) -> Exact {
    let value = integer_value(ty, bits);
    Exact::integer(value < 0, value.unsigned_abs() as u64)
}

fn integer_to_integer(to: ScalarType, from: ScalarType, sat: bool, a: u64) -> u64 {
    let value = integer_value(from, a);
    let (low, high) = integer_range(to);
    let value = if sat { value.clamp(low, high) } else { value };
    low_bits(value as u64, to.bits())
}

fn float_to_integer(to: ScalarType, source: Format, mods: &Modifiers, a: u64) -> u64 {
    let a = if mods.ftz { source.flush(a) } else { a };
    let rounding = if mods.rounding.is_none() { Round::Zero } else { Round::of(mods.rounding) };
    let (low, high) = integer_range(to);
    let width = to.bits();
    let nan = if source == Format::F64 || width == 64 { 1i128 << (width - 1) } else { 0 };
    low_bits(source.decode(a).integral(rounding).clamped(low, high, nan) as u64, width)
}

fn float_to_float(target: Format, source: Format, mods: &Modifiers, a: u64) -> u64 {
    let a = if mods.ftz { source.flush(a) } else { a };
    if source.is_nan(a) {
        let bits = match (source, target) {
            (Format::F64, Format::F64 | Format::F32 | Format::F16 | Format::BF16) => target.nan_of(source, a),
            (Format::F32 | Format::F16 | Format::BF16, Format::F64) => target.nan_of(source, a),
            (Format::BF16, Format::F32) if !mods.ftz => a << 16,
            (Format::F32, Format::TF32) if mods.rounding == Some(Rounding::Rna) => a & 0xFFFF_E000,
            _ => target.nan(),
        };
        return finish(target, bits, mods);
    }
    let rounding = Round::of(mods.rounding);
    let exact = source.decode(a);
    let integral =
        matches!(mods.rounding, Some(Rounding::Rni | Rounding::Rzi | Rounding::Rmi | Rounding::Rpi));
    let exact = if integral { exact.integral(rounding) } else { exact };
    // The 8-bit formats always saturate; the others only if told.
    let saturate = mods.satfinite || matches!(target, Format::E4M3 | Format::E5M2);
    finish(target, encode(target, exact, mods, saturate), mods)
}
