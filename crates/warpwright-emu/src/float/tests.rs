//! Values from the PTX specification, and every 16-bit pattern against `half` and wider arithmetic.

use super::*;
use warpwright_ptx::Rounding;

const NAN32: u64 = 0x7fff_ffff;
const NONE: Modifiers = Modifiers::NONE;
const FTZ: Modifiers = Modifiers::NONE.with_ftz();
const SAT: Modifiers = Modifiers { sat: true, ..NONE };
const RELU: Modifiers = Modifiers { relu: true, ..NONE };

fn s(x: f32) -> u64 {
    u64::from(x.to_bits())
}

fn rounded(rounding: Rounding) -> Modifiers {
    Modifiers::rounded(rounding)
}

fn f32_2(op: BinaryOp, mods: Modifiers, a: f32, b: f32) -> u64 {
    binary(op, ScalarType::F32, &mods, s(a), s(b))
}

#[test]
fn f32_arithmetic_is_ieee_with_canonical_nan() {
    let values = [
        0.0f32,
        -0.0,
        1.0,
        -1.5,
        1e-45,
        3.4e38,
        -2e-39,
        0.1,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1e30,
    ];
    let canonical = |x: f32| if x.is_nan() { NAN32 } else { s(x) };
    for a in values {
        for b in values {
            assert_eq!(f32_2(BinaryOp::Add, NONE, a, b), canonical(a + b), "{a} + {b}");
            assert_eq!(f32_2(BinaryOp::Sub, NONE, a, b), canonical(a - b), "{a} - {b}");
            assert_eq!(f32_2(BinaryOp::Mul, NONE, a, b), canonical(a * b), "{a} * {b}");
            assert_eq!(f32_2(BinaryOp::Div, NONE, a, b), canonical(a / b), "{a} / {b}");
            for c in values {
                let fma = ternary(TernaryOp::Fma, ScalarType::F32, &NONE, s(a), s(b), s(c));
                assert_eq!(fma, canonical(a.mul_add(b, c)), "{a} * {b} + {c}");
            }
        }
        assert_eq!(unary(UnaryOp::Sqrt, ScalarType::F32, &NONE, s(a)), canonical(a.sqrt()));
        assert_eq!(unary(UnaryOp::Rcp, ScalarType::F32, &NONE, s(a)), canonical(1.0 / a));
    }
}

#[test]
fn directed_rounding_of_f32() {
    use Rounding::{Rm, Rn, Rp, Rz};
    let third = |r| f32_2(BinaryOp::Div, rounded(r), 1.0, 3.0);
    assert_eq!(
        [third(Rn), third(Rz), third(Rm), third(Rp)],
        [0x3eaa_aaab, 0x3eaa_aaaa, 0x3eaa_aaaa, 0x3eaa_aaab]
    );
    let negative = |r| f32_2(BinaryOp::Div, rounded(r), -1.0, 3.0);
    assert_eq!([negative(Rz), negative(Rm), negative(Rp)], [0xbeaa_aaaa, 0xbeaa_aaab, 0xbeaa_aaaa]);
    // 1 + 2^-30: the small addend only shows in its direction.
    let tiny = 2f32.powi(-30);
    let sum = |r| f32_2(BinaryOp::Add, rounded(r), 1.0, tiny);
    assert_eq!([sum(Rn), sum(Rz), sum(Rm), sum(Rp)], [0x3f80_0000, 0x3f80_0000, 0x3f80_0000, 0x3f80_0001]);
    // Overflow stops at the largest number where the direction points back.
    let big = |r| f32_2(BinaryOp::Mul, rounded(r), f32::MAX, 2.0);
    assert_eq!([big(Rn), big(Rz), big(Rm), big(Rp)], [0x7f80_0000, 0x7f7f_ffff, 0x7f7f_ffff, 0x7f80_0000]);
    // Underflow.
    let small = |r| f32_2(BinaryOp::Mul, rounded(r), 1e-30, -1e-30);
    assert_eq!(
        [small(Rn), small(Rz), small(Rm), small(Rp)],
        [0x8000_0000, 0x8000_0000, 0x8000_0001, 0x8000_0000]
    );
    // x - x is +0 except when rounding down.
    let zero = |r| f32_2(BinaryOp::Sub, rounded(r), 1.5, 1.5);
    assert_eq!([zero(Rn), zero(Rz), zero(Rm), zero(Rp)], [0, 0, 0x8000_0000, 0]);
    let root = |r| unary(UnaryOp::Sqrt, ScalarType::F32, &rounded(r), s(2.0));
    assert_eq!([root(Rn), root(Rz), root(Rp)], [0x3fb5_04f3, 0x3fb5_04f3, 0x3fb5_04f4]);
    // fma rounds once: (1 + 2^-12)^2 - 1 = 2^-11 + 2^-24 exactly.
    let x = s(1.0 + 2f32.powi(-12));
    let fma = ternary(TernaryOp::Fma, ScalarType::F32, &rounded(Rz), x, x, s(-1.0));
    assert_eq!(fma, s(2f32.powi(-11) + 2f32.powi(-24)));
}

#[test]
fn flushing_saturation_and_relu() {
    let tiny = 1e-40;
    assert_eq!(f32_2(BinaryOp::Add, FTZ, tiny, tiny), 0);
    assert_eq!(f32_2(BinaryOp::Add, FTZ, -tiny, -tiny), 0x8000_0000);
    assert_eq!(f32_2(BinaryOp::Mul, FTZ, 1e-20, -1e-20), 0x8000_0000); // the result is flushed
    assert_eq!(f32_2(BinaryOp::Mul, NONE, tiny, 1.0), s(tiny));
    assert_eq!(f32_2(BinaryOp::Add, SAT, 0.75, 0.75), s(1.0));
    assert_eq!(f32_2(BinaryOp::Add, SAT, -0.75, 0.25), 0);
    assert_eq!(f32_2(BinaryOp::Add, SAT, f32::NAN, 0.25), 0);
    assert_eq!(f32_2(BinaryOp::Add, SAT, 0.25, 0.25), s(0.5));
    let half = |mods, a| ternary(TernaryOp::Fma, ScalarType::F16, &mods, a, 0x3c00, 0x8000);
    assert_eq!([half(RELU, 0xbc00), half(RELU, 0x3c00), half(RELU, 0x7e01)], [0, 0x3c00, 0x7fff]);
}

#[test]
fn min_and_max() {
    let nan_mode = Modifiers { nan: true, ..NONE };
    let xorsign = Modifiers { xorsign_abs: true, ..NONE };
    let (min, max) = (BinaryOp::Min, BinaryOp::Max);
    assert_eq!(f32_2(min, NONE, 1.0, f32::NAN), s(1.0));
    assert_eq!(f32_2(max, NONE, f32::NAN, -2.0), s(-2.0));
    assert_eq!(f32_2(max, NONE, f32::NAN, f32::NAN), NAN32);
    assert_eq!(f32_2(max, nan_mode, f32::NAN, 1.0), NAN32);
    assert_eq!((f32_2(min, NONE, 0.0, -0.0), f32_2(min, NONE, -0.0, 0.0)), (s(-0.0), s(-0.0)));
    assert_eq!((f32_2(max, NONE, 0.0, -0.0), f32_2(max, NONE, -0.0, 0.0)), (0, 0));
    assert_eq!(f32_2(min, NONE, -3.0, f32::NEG_INFINITY), s(f32::NEG_INFINITY));
    assert_eq!(f32_2(max, NONE, -3.0, -4.0), s(-3.0));
    assert_eq!(f32_2(min, xorsign, -3.0, 2.0), s(-2.0));
    assert_eq!(f32_2(max, xorsign, -3.0, -2.0), s(3.0));
    assert_eq!(f32_2(max, FTZ, 1e-40, 0.0), 0);
    // Each half of a packed pair for itself: NaN | 2.0 against 1.0 | 3.0.
    assert_eq!(binary(max, ScalarType::F16x2, &NONE, 0x7e00_4000, 0x3c00_4200), 0x3c00_4200);
}

#[test]
fn signs_are_bits() {
    assert_eq!(unary(UnaryOp::Neg, ScalarType::F16x2, &NONE, 0x7c00_0000), 0xfc00_8000);
    assert_eq!(unary(UnaryOp::Abs, ScalarType::BF16, &NONE, 0xff80), 0x7f80);
    // A NaN is the canonical one, but of f64 it stays.
    assert_eq!(unary(UnaryOp::Neg, ScalarType::F16x2, &NONE, 0x7e01_0000), 0x7fff_8000);
    assert_eq!(unary(UnaryOp::Abs, ScalarType::BF16, &NONE, 0xffc1), 0x7fff);
    assert_eq!(unary(UnaryOp::Neg, ScalarType::F64, &NONE, 0xfff0_0000_0000_0001), 0xfff8_0000_0000_0001);
    assert_eq!(unary(UnaryOp::Neg, ScalarType::F32, &FTZ, s(1e-40)), s(-0.0));
    assert_eq!(unary(UnaryOp::Neg, ScalarType::F64, &NONE, 0), 1 << 63);
    assert_eq!(f32_2(BinaryOp::Copysign, NONE, -1.0, 2.0), s(-2.0));
}

#[test]
fn f64_nan_payloads_survive() {
    let (one, nan, signalling) = (1f64.to_bits(), 0x7ff8_0000_0000_1234, 0xfff0_0000_0000_0001);
    assert_eq!(binary(BinaryOp::Add, ScalarType::F64, &NONE, one, nan), nan);
    assert_eq!(binary(BinaryOp::Mul, ScalarType::F64, &NONE, signalling, nan), signalling | 1 << 51);
    let infinity = f64::INFINITY.to_bits();
    assert_eq!(binary(BinaryOp::Sub, ScalarType::F64, &NONE, infinity, infinity), 0xfff8_0000_0000_0000);
}

#[test]
fn every_f16_and_bf16_unary_pattern() {
    for bits in 0..=u16::MAX {
        let (h, b) = (half::f16::from_bits(bits), half::bf16::from_bits(bits));
        let a = u64::from(bits);
        let h_square = binary(BinaryOp::Mul, ScalarType::F16, &NONE, a, a);
        let b_square = binary(BinaryOp::Mul, ScalarType::BF16, &NONE, a, a);
        if h.is_nan() {
            assert_eq!(h_square, 0x7fff);
        } else {
            // The f32 product of two f16s is exact.
            assert_eq!(h_square, u64::from(half::f16::from_f32(h.to_f32() * h.to_f32()).to_bits()));
            assert_eq!(convert(ScalarType::F32, ScalarType::F16, &NONE, a), s(h.to_f32()));
        }
        if b.is_nan() {
            assert_eq!(b_square, 0x7fff);
        } else {
            let square = f64::from(b.to_f32()) * f64::from(b.to_f32());
            let expected =
                Format::BF16.encode(Format::F64.decode(square.to_bits()), Round::NearestEven, false);
            assert_eq!(b_square, expected);
            assert_eq!(convert(ScalarType::F32, ScalarType::BF16, &NONE, a), s(b.to_f32()));
        }
        assert_eq!(unary(UnaryOp::TestNan, ScalarType::F16, &NONE, a) == 1, h.is_nan());
        assert_eq!(unary(UnaryOp::TestInfinite, ScalarType::F16, &NONE, a) == 1, h.is_infinite());
        assert_eq!(
            unary(UnaryOp::TestNormal, ScalarType::F16, &NONE, a) == 1,
            h.is_normal() || h.to_f32() == 0.0
        );
        assert_eq!(unary(UnaryOp::TestFinite, ScalarType::BF16, &NONE, a) == 1, b.is_finite());
    }
}

#[test]
fn half_fma_rounds_once() {
    // 1.0009765625 * 1.0009765625 - 1 in f16: exact 0x1.002p-9 rounds to 0x1.000p-9 or, with the product rounded
    // first, to 0x1p-9 as well; take a case that tells them apart instead: a*b just above a tie, c restores it.
    let (a, b, c) = (0x3c01u64, 0x3c01, 0xbc02); // (1 + 2^-10)^2 - (1 + 2^-9) = 2^-20
    assert_eq!(ternary(TernaryOp::Fma, ScalarType::F16, &NONE, a, b, c), 0x0010); // 2^-20 is 16 * 2^-24
    assert_eq!(ternary(TernaryOp::Fma, ScalarType::BF16, &NONE, 0x3f81, 0x3f81, 0xbf82), 0x3880); // 2^-14
    // f32 would lose the tiny addend and then see a tie: 2^15 * 2 - 2^-24 is below 65536, the tie is at 65520.
    assert_eq!(ternary(TernaryOp::Fma, ScalarType::F16, &NONE, 0x7800, 0x4000, 0x8001), 0x7c00);
    // 2048 * 1 + 1 is a tie to even (2048); one more subnormal bit decides upwards.
    let tie = binary(BinaryOp::Add, ScalarType::F16, &NONE, 0x6800, 0x3c00);
    assert_eq!(tie, 0x6800);
    assert_eq!(ternary(TernaryOp::Fma, ScalarType::F16, &NONE, 0x6800, 0x3c00, 0x3c01), 0x6801);
    // In packed form both halves are independent.
    let packed = ternary(TernaryOp::Fma, ScalarType::F16x2, &NONE, 0x6800_3c01, 0x3c00_3c01, 0x3c01_bc02);
    assert_eq!(packed, 0x6801_0010);
}

#[test]
fn comparisons() {
    let c = |cmp, a, b| compare(cmp, ScalarType::F32, false, s(a), s(b));
    for (cmp, less, equal, greater, unordered) in [
        (CmpOp::Eq, false, true, false, false),
        (CmpOp::Ne, true, false, true, false),
        (CmpOp::Lt, true, false, false, false),
        (CmpOp::Le, true, true, false, false),
        (CmpOp::Gt, false, false, true, false),
        (CmpOp::Ge, false, true, true, false),
        (CmpOp::Equ, false, true, false, true),
        (CmpOp::Neu, true, false, true, true),
        (CmpOp::Ltu, true, false, false, true),
        (CmpOp::Leu, true, true, false, true),
        (CmpOp::Gtu, false, false, true, true),
        (CmpOp::Geu, false, true, true, true),
        (CmpOp::Num, true, true, true, false),
        (CmpOp::Nan, false, false, false, true),
    ] {
        let seen = [c(cmp, 1.0, 2.0), c(cmp, 0.0, -0.0), c(cmp, 2.0, 1.0), c(cmp, f32::NAN, 1.0)];
        assert_eq!(seen, [less, equal, greater, unordered], "{cmp}");
    }
    assert!(compare(CmpOp::Eq, ScalarType::F32, true, s(1e-40), 0));
    assert!(!compare(CmpOp::Eq, ScalarType::F32, false, s(1e-40), 0));
}

#[test]
fn approximate_functions_and_their_special_values() {
    let f = |op, a: f32| unary(op, ScalarType::F32, &Modifiers::APPROX, s(a));
    assert_eq!(f(UnaryOp::Ex2, 10.0), s(1024.0));
    assert_eq!((f(UnaryOp::Ex2, f32::NEG_INFINITY), f(UnaryOp::Ex2, f32::INFINITY)), (0, s(f32::INFINITY)));
    assert_eq!((f(UnaryOp::Ex2, -0.0), f(UnaryOp::Ex2, -149.0)), (s(1.0), 1));
    assert_eq!((f(UnaryOp::Lg2, 8.0), f(UnaryOp::Lg2, 0.0)), (s(3.0), s(f32::NEG_INFINITY)));
    assert_eq!((f(UnaryOp::Lg2, -1.0), f(UnaryOp::Lg2, f32::from_bits(1))), (NAN32, s(-149.0)));
    assert_eq!((f(UnaryOp::Rsqrt, 4.0), f(UnaryOp::Rsqrt, -0.0)), (s(0.5), s(f32::NEG_INFINITY)));
    assert_eq!((f(UnaryOp::Rcp, -0.0), f(UnaryOp::Rcp, f32::INFINITY)), (s(f32::NEG_INFINITY), 0));
    assert_eq!((f(UnaryOp::Sqrt, -0.0), f(UnaryOp::Sqrt, -1.0)), (s(-0.0), NAN32));
    assert_eq!((f(UnaryOp::Sin, f32::INFINITY), f(UnaryOp::Cos, 0.0)), (NAN32, s(1.0)));
    assert_eq!((f(UnaryOp::Tanh, f32::INFINITY), f(UnaryOp::Tanh, 1e-40)), (s(1.0), s(1e-40)));
    let flushed = Modifiers::APPROX.with_ftz();
    assert_eq!(unary(UnaryOp::Ex2, ScalarType::F32, &flushed, s(-140.0)), 0);
    assert_eq!(unary(UnaryOp::Rsqrt, ScalarType::F32, &flushed, s(1e-40)), s(f32::INFINITY));
    assert_eq!(f32_2(BinaryOp::Div, Modifiers::APPROX, 1.0, 3.0), s(1.0 / 3.0));
    // f16 and bf16: rounded from f64, for every pattern of the argument.
    for bits in 0..=u16::MAX {
        let (h, b) = (half::f16::from_bits(bits), half::bf16::from_bits(bits));
        let ex2 = unary(UnaryOp::Ex2, ScalarType::F16, &Modifiers::APPROX, bits.into());
        let tanh = unary(UnaryOp::Tanh, ScalarType::BF16, &Modifiers::APPROX, bits.into());
        if h.is_nan() {
            assert_eq!(ex2, 0x7fff);
        } else {
            let exact = Format::F64.decode(h.to_f64().exp2().to_bits());
            assert_eq!(ex2, Format::F16.encode(exact, Round::NearestEven, false), "{h}");
        }
        if !b.is_nan() {
            let exact = Format::F64.decode(b.to_f64().tanh().to_bits());
            assert_eq!(tanh, Format::BF16.encode(exact, Round::NearestEven, false), "{b}");
        }
    }
    // The f64 forms leave the lower word empty.
    assert_eq!(
        unary(UnaryOp::Rcp, ScalarType::F64, &flushed, 3f64.to_bits()),
        (1f64 / 3.0).to_bits() & UPPER_WORD
    );
}

#[test]
fn integers_to_integers() {
    use ScalarType::*;
    let sat = SAT;
    assert_eq!(convert(S32, S8, &NONE, 0x80), 0xffff_ff80);
    assert_eq!(convert(U64, S32, &NONE, 0xffff_ffff), u64::MAX);
    assert_eq!(convert(U64, U32, &NONE, 0xffff_ffff), 0xffff_ffff);
    assert_eq!(convert(U8, U32, &NONE, 0x1234), 0x34);
    assert_eq!(convert(U8, U32, &sat, 0x1234), 0xff);
    assert_eq!(convert(S8, S32, &sat, (-1000i32) as u32 as u64), 0x80);
    assert_eq!(convert(U16, S32, &sat, 0xffff_ffff), 0);
    assert_eq!(convert(S16, U64, &sat, u64::MAX), 0x7fff);
    assert_eq!(convert(S64, U64, &sat, u64::MAX), i64::MAX as u64);
}

#[test]
fn integers_to_floats() {
    use Rounding::*;
    use ScalarType::*;
    let f32_of = |r, x: u32| convert(F32, U32, &rounded(r), x.into());
    assert_eq!([f32_of(Rn, u32::MAX), f32_of(Rz, u32::MAX)], [0x4f80_0000, 0x4f7f_ffff]);
    assert_eq!([f32_of(Rm, 16_777_217), f32_of(Rp, 16_777_217)], [0x4b80_0000, 0x4b80_0001]);
    for x in [0i64, -1, i64::MIN, i64::MAX, 1 << 53 | 1, -12345] {
        assert_eq!(convert(F64, S64, &rounded(Rn), x as u64), (x as f64).to_bits());
        assert_eq!(convert(F32, S64, &rounded(Rn), x as u64), s(x as f32));
        assert_eq!(convert(F32, U64, &rounded(Rn), x as u64), s(x as u64 as f32));
    }
    assert_eq!(convert(F16, S32, &rounded(Rn), 100_000), 0x7c00);
    assert_eq!(convert(F16, S16, &rounded(Rn), 0xffff), 0xbc00);
    assert_eq!(convert(F32, S32, &Modifiers { sat: true, ..rounded(Rn) }, 7), s(1.0));
}

#[test]
fn floats_to_integers() {
    use Rounding::*;
    use ScalarType::*;
    let to_s32 = |r, x: f32| convert(S32, F32, &rounded(r), s(x)) as u32 as i32;
    for (x, rni, rzi, rmi, rpi) in [
        (2.5, 2, 2, 2, 3),
        (-2.5, -2, -2, -3, -2),
        (3.5, 4, 3, 3, 4),
        (-0.25, 0, 0, -1, 0),
        (1e20, i32::MAX, i32::MAX, i32::MAX, i32::MAX),
    ] {
        assert_eq!(
            [to_s32(Rni, x), to_s32(Rzi, x), to_s32(Rmi, x), to_s32(Rpi, x)],
            [rni, rzi, rmi, rpi],
            "{x}"
        );
    }
    assert_eq!(to_s32(Rzi, f32::NEG_INFINITY), i32::MIN);
    assert_eq!(to_s32(Rzi, f32::NAN), 0);
    assert_eq!(convert(S64, F32, &rounded(Rzi), s(f32::NAN)), 1 << 63);
    assert_eq!(convert(U32, F64, &rounded(Rzi), f64::NAN.to_bits()), 0x8000_0000);
    assert_eq!(convert(U32, F32, &rounded(Rzi), s(-5.0)), 0);
    assert_eq!(convert(U8, F32, &rounded(Rni), s(300.0)), 0xff);
    assert_eq!(convert(S8, F16, &rounded(Rni), 0xd800), 0x80); // -128
    assert_eq!(
        convert(U64, F64, &rounded(Rzi), 18_446_744_073_709_549_568f64.to_bits()),
        18_446_744_073_709_549_568
    );
    assert_eq!(convert(U64, F64, &rounded(Rzi), 1e300f64.to_bits()), u64::MAX);
    let ftz_up = Modifiers { ftz: true, ..rounded(Rpi) };
    assert_eq!(convert(S32, F32, &ftz_up, s(1e-40)), 0);
    assert_eq!(to_s32(Rpi, 1e-40), 1);
}

#[test]
fn floats_to_floats() {
    use Rounding::*;
    use ScalarType::*;
    let rn = rounded(Rn);
    assert_eq!(convert(F32, F64, &rn, 0.1f64.to_bits()), s(0.1f64 as f32));
    assert_eq!(convert(F32, F64, &rounded(Rp), 0.1f64.to_bits()), s(0.1));
    assert_eq!(convert(F32, F64, &rounded(Rm), 0.1f64.to_bits()), s(0.1f32.next_down()));
    assert_eq!(convert(F64, F32, &NONE, s(0.1)), f64::from(0.1f32).to_bits());
    let (rni, rpi) = (rounded(Rni), rounded(Rpi));
    assert_eq!(convert(F32, F32, &rni, s(-0.3)), s(-0.0));
    assert_eq!(convert(F64, F64, &rpi, 1.25f64.to_bits()), 2f64.to_bits());
    assert_eq!(convert(F16, F16, &rni, 0x3e00), 0x4000); // 1.5 -> 2
    assert_eq!(convert(F32, F32, &SAT, s(1.5)), s(1.0));
    assert_eq!(convert(F32, F32, &FTZ, s(-1e-40)), s(-0.0));
    // A double that lies just above a tie of f16 must not be rounded through f32.
    let above = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
    assert_eq!(convert(F16, F64, &rn, above.to_bits()), 0x3c01);
    assert_eq!(convert(F16, F32, &rn, s(70000.0)), 0x7c00);
    assert_eq!(convert(F16, F32, &Modifiers { satfinite: true, ..rn }, s(70000.0)), 0x7bff);
    assert_eq!(convert(F16, F32, &Modifiers { relu: true, ..rn }, s(-1.0)), 0);
    assert_eq!(convert(BF16, F32, &rn, s(f32::NAN)), 0x7fff);
    assert_eq!(convert(BF16, F16, &rn, 0x3c01), 0x3f80);
    assert_eq!(convert(TF32, F32, &rounded(Rna), 0x3f80_1000), 0x3f80_2000);
}

#[test]
fn packing_conversions() {
    use ScalarType::*;
    let rn = rounded(Rounding::Rn);
    assert_eq!(convert_pair(F16x2, F32, &rn, s(1.0), s(2.0)), 0x3c00_4000);
    assert_eq!(convert_pair(BF16x2, F32, &rn, s(1.0), s(-2.0)), 0x3f80_c000);
    assert_eq!(convert_pair(BF16x2, F32, &Modifiers { relu: true, ..rn }, s(1.0), s(-2.0)), 0x3f80_0000);
    let fp8 = Modifiers { satfinite: true, ..rn };
    assert_eq!(convert_pair(E4M3x2, F32, &fp8, s(1.0), s(1000.0)), 0x387e);
    assert_eq!(convert_pair(E5M2x2, F32, &fp8, s(f32::NAN), s(-1.0)), 0x7fbc);
    assert_eq!(convert(F16x2, E4M3x2, &rn, 0x387e), 0x3c00_5f00); // 1, 448
    assert_eq!(convert(E5M2x2, F16x2, &fp8, 0x3c00_fc00), 0x3cfb); // 1, -inf -> largest
}
