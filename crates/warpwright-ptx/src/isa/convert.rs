//! Rows of the conversions and data movements.

use super::arith::{BITS, F32_ONLY, F64_ONLY, INTEGERS};
use super::set::{Form, ModifierSet as M, TypeSet};
use crate::types::ScalarType::{self, *};
use crate::types::TypeClass;

const BYTES: TypeSet = TypeSet::of(&[U8, S8]);
const ALL_INTEGERS: TypeSet = INTEGERS.or(BYTES);
const F16_ONLY: TypeSet = TypeSet::of(&[F16]);
const BF16_ONLY: TypeSet = TypeSet::of(&[BF16]);
const TF32_ONLY: TypeSet = TypeSet::of(&[TF32]);
const PACKED_HALVES: TypeSet = TypeSet::of(&[F16x2, BF16x2]);
const NEAR_OR_ZERO: M = any(M::RN, M::RZ);
const F8: TypeSet = TypeSet::of(&[E4M3x2, E5M2x2]);

const fn any(a: M, b: M) -> M {
    a.union(b)
}

/// `mov` between registers, from literals and from addresses.
pub const MOV: Form = Form::of(BITS.or(INTEGERS).or(F32_ONLY).or(F64_ONLY));
/// `mov` that packs or unpacks: the whole.
pub const PACK: &[Form] = &[Form::of(BITS), Form::of(TypeSet::of(&[B128])).since(8, 3, 70)];

/// `cvt` with one source: destination types with source types.
pub const CVT: &[Form] = &[
    // Integer to integer; whether `.sat` may be written depends on the ranges (see `cvt_sat_fits`).
    Form::of(ALL_INTEGERS).with(ALL_INTEGERS).allow(M::SAT),
    // Float to integer.
    Form::of(ALL_INTEGERS).with(F32_ONLY).one_of(M::INTEGER_ROUNDING).allow(any(M::FTZ, M::SAT)),
    Form::of(ALL_INTEGERS).with(F64_ONLY.or(F16_ONLY)).one_of(M::INTEGER_ROUNDING).allow(M::SAT),
    Form::of(ALL_INTEGERS).with(BF16_ONLY).one_of(M::INTEGER_ROUNDING).since(7, 8, 90),
    // Integer to float.
    Form::of(F32_ONLY).with(ALL_INTEGERS).one_of(M::FLOAT_ROUNDING).allow(any(M::FTZ, M::SAT)),
    Form::of(F64_ONLY.or(F16_ONLY)).with(ALL_INTEGERS).one_of(M::FLOAT_ROUNDING).allow(M::SAT),
    Form::of(BF16_ONLY).with(ALL_INTEGERS).one_of(M::FLOAT_ROUNDING).since(7, 8, 90),
    // Float to the same float: rounding to an integral value.
    Form::of(F32_ONLY).with(F32_ONLY).allow(any(M::INTEGER_ROUNDING, any(M::FTZ, M::SAT))),
    Form::of(F64_ONLY).with(F64_ONLY).allow(any(M::INTEGER_ROUNDING, M::SAT)),
    Form::of(F16_ONLY).with(F16_ONLY).allow(any(M::INTEGER_ROUNDING, M::SAT)),
    Form::of(BF16_ONLY).with(BF16_ONLY).allow(M::INTEGER_ROUNDING).since(7, 8, 90),
    // Widening, which is exact.
    Form::of(F64_ONLY).with(F32_ONLY).allow(any(M::FTZ, M::SAT)),
    Form::of(F32_ONLY).with(F16_ONLY).allow(any(M::FTZ, M::SAT)),
    Form::of(F64_ONLY).with(F16_ONLY).allow(M::SAT),
    Form::of(F32_ONLY).with(BF16_ONLY).since(7, 1, 80),
    Form::of(F32_ONLY).with(BF16_ONLY).require(M::FTZ).since(7, 8, 90),
    Form::of(F64_ONLY).with(BF16_ONLY).since(7, 8, 90),
    // Narrowing.
    Form::of(F32_ONLY).with(F64_ONLY).one_of(M::FLOAT_ROUNDING).allow(any(M::FTZ, M::SAT)),
    Form::of(F16_ONLY).with(F32_ONLY).one_of(M::FLOAT_ROUNDING).allow(any(M::FTZ, M::SAT)),
    Form::of(F16_ONLY).with(F32_ONLY).one_of(NEAR_OR_ZERO).allow(M::RELU).since(7, 0, 80),
    Form::of(F16_ONLY).with(F32_ONLY).one_of(NEAR_OR_ZERO).require(M::SATFINITE).since(8, 1, 53),
    Form::of(F16_ONLY)
        .with(F32_ONLY)
        .one_of(NEAR_OR_ZERO)
        .require(any(M::SATFINITE, M::RELU))
        .since(8, 1, 80),
    Form::of(F16_ONLY).with(F64_ONLY).one_of(M::FLOAT_ROUNDING).allow(M::SAT),
    Form::of(BF16_ONLY).with(F32_ONLY).one_of(NEAR_OR_ZERO).allow(M::RELU).since(7, 0, 80),
    Form::of(BF16_ONLY)
        .with(F32_ONLY)
        .one_of(NEAR_OR_ZERO)
        .require(M::SATFINITE)
        .allow(M::RELU)
        .since(8, 1, 80),
    Form::of(BF16_ONLY).with(F32_ONLY).one_of(M::FLOAT_ROUNDING).allow(M::FTZ).since(7, 0, 80),
    Form::of(BF16_ONLY).with(F64_ONLY).one_of(M::FLOAT_ROUNDING).since(7, 8, 90),
    // Between the halves neither range nor precision covers the other.
    Form::of(BF16_ONLY).with(F16_ONLY).allow(M::FLOAT_ROUNDING).since(7, 8, 90),
    Form::of(F16_ONLY).with(BF16_ONLY).allow(M::FLOAT_ROUNDING).since(7, 8, 90),
    Form::of(TF32_ONLY).with(F32_ONLY).require(M::RNA).since(7, 0, 80),
    Form::of(TF32_ONLY).with(F32_ONLY).one_of(NEAR_OR_ZERO).allow(M::RELU).since(7, 8, 90),
    Form::of(TF32_ONLY).with(F32_ONLY).require(any(M::RNA, M::SATFINITE)).since(8, 1, 80),
    Form::of(TF32_ONLY)
        .with(F32_ONLY)
        .one_of(NEAR_OR_ZERO)
        .require(M::SATFINITE)
        .allow(M::RELU)
        .since(8, 6, 100),
    // Packed 8-bit floats to halves and back.
    Form::of(TypeSet::of(&[F16x2])).with(F8).require(M::RN).allow(M::RELU).since(8, 1, 89),
    Form::of(TypeSet::of(&[F16x2])).with(F8).require(M::RN).allow(M::RELU).since(7, 8, 90),
    Form::of(F8).with(TypeSet::of(&[F16x2])).require(any(M::RN, M::SATFINITE)).allow(M::RELU).since(8, 1, 89),
    Form::of(F8).with(TypeSet::of(&[F16x2])).require(any(M::RN, M::SATFINITE)).allow(M::RELU).since(7, 8, 90),
    Form::of(TypeSet::of(&[F16x2])).with(F6_F4).require(M::RN).allow(M::RELU).only(8, 6, NARROWEST),
    Form::of(TypeSet::of(&[E2M1x2]))
        .with(TypeSet::of(&[F16x2]))
        .require(any(M::RN, M::SATFINITE))
        .allow(M::RELU)
        .only(8, 6, NARROWEST),
    Form::of(SCALES)
        .with(TypeSet::of(&[BF16x2]))
        .one_of(any(M::RZ, M::RP))
        .allow(M::SATFINITE)
        .only(8, 6, NARROWEST),
    Form::of(TypeSet::of(&[BF16x2])).with(SCALES).require(M::RN).only(8, 6, NARROWEST),
];

/// Targets with conversions of 4- and 6-bit floats and of scales.
const NARROWEST: &[u32] = &[100, 101, 103, 110, 120, 121];
/// Targets that round stochastically.
const STOCHASTIC: &[u32] = &[100, 103];
const F6_F4: TypeSet = TypeSet::of(&[E2M1x2, E2M3x2, E3M2x2]);
const SCALES: TypeSet = TypeSet::of(&[UE8M0x2]);

/// `cvt.rs`: results with the type of the sources.
pub const CVT_STOCHASTIC: &[Form] = &[
    Form::of(PACKED_HALVES).with(F32_ONLY).allow(any(M::RELU, M::SATFINITE)).only(8, 7, STOCHASTIC),
    Form::of(TypeSet::of(&[E4M3x4, E5M2x4, E2M1x4, E2M3x4, E3M2x4]))
        .with(F32_ONLY)
        .require(M::SATFINITE)
        .allow(M::RELU)
        .only(8, 7, STOCHASTIC),
];

/// `cvt` that packs two sources.
pub const CVT_PAIR: &[Form] = &[
    Form::of(PACKED_HALVES).with(F32_ONLY).one_of(NEAR_OR_ZERO).allow(M::RELU).since(7, 0, 80),
    Form::of(PACKED_HALVES)
        .with(F32_ONLY)
        .one_of(NEAR_OR_ZERO)
        .require(M::SATFINITE)
        .allow(M::RELU)
        .since(8, 1, 80),
    Form::of(F8).with(F32_ONLY).require(any(M::RN, M::SATFINITE)).allow(M::RELU).since(8, 1, 89),
    Form::of(F8).with(F32_ONLY).require(any(M::RN, M::SATFINITE)).allow(M::RELU).since(7, 8, 90),
    Form::of(F6_F4).with(F32_ONLY).require(any(M::RN, M::SATFINITE)).allow(M::RELU).only(8, 6, NARROWEST),
    Form::of(SCALES).with(F32_ONLY).one_of(any(M::RZ, M::RP)).allow(M::SATFINITE).only(8, 6, NARROWEST),
];

/// Whether `cvt.sat` from `from` to `to` has anything to do: between integers it must exclude some value.
pub const fn cvt_sat_fits(to: ScalarType, from: ScalarType) -> bool {
    if !to.is_integer() || !from.is_integer() {
        return true;
    }
    const fn signed(t: ScalarType) -> bool {
        matches!(t.class(), TypeClass::Signed)
    }
    match (signed(to), signed(from)) {
        (false, true) => true,
        (true, false) => to.bits() <= from.bits(),
        _ => to.bits() < from.bits(),
    }
}
