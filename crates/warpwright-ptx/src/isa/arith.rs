//! Rows of the arithmetic, logic and comparison families.

use super::set::{Form, ModifierSet as M, Row, TypeSet};
use crate::inst::{BinaryOp, CmpOp, MixedOp, TernaryOp, UnaryOp};
use crate::types::ScalarType::{self, *};

pub(super) const B32_ONLY: TypeSet = TypeSet::of(&[B32]);
pub(super) const F32_ONLY: TypeSet = TypeSet::of(&[F32]);
pub(super) const F64_ONLY: TypeSet = TypeSet::of(&[F64]);
pub(super) const F16S: TypeSet = TypeSet::of(&[F16, F16x2]);
pub(super) const BF16S: TypeSet = TypeSet::of(&[BF16, BF16x2]);
/// Untyped bits that logic works on.
pub(super) const BITS: TypeSet = TypeSet::of(&[B16, B32, B64]);
pub(super) const SIGNED: TypeSet = TypeSet::of(&[S16, S32, S64]);
pub(super) const UNSIGNED: TypeSet = TypeSet::of(&[U16, U32, U64]);
/// Integers that arithmetic works on.
pub(super) const INTEGERS: TypeSet = SIGNED.or(UNSIGNED);
pub(super) const INTEGERS_16_32: TypeSet = TypeSet::of(&[U16, U32, S16, S32]);
pub(super) const INTEGERS_32: TypeSet = TypeSet::of(&[U32, S32]);
pub(super) const INTEGERS_32_64: TypeSet = TypeSet::of(&[U32, U64, S32, S64]);
const WIDE_BITS: TypeSet = TypeSet::of(&[B32, B64]);
const F32X2: TypeSet = TypeSet::of(&[F32x2]);
const PACKED_16: TypeSet = TypeSet::of(&[U16x2, S16x2]);
const S32_ONLY: TypeSet = TypeSet::of(&[S32]);
const INTEGERS_BUT_S32: TypeSet = TypeSet::of(&[U16, U32, U64, S16, S64]);

const FLOAT_ROUNDING: M = M::FLOAT_ROUNDING;
const FTZ: M = M::FTZ;
const NONE: M = M::empty();

const fn any(a: M, b: M) -> M {
    a.union(b)
}

/// `.approx{.ftz}.f32` and nothing else.
const APPROX_F32: Form = Form::of(F32_ONLY).require(M::APPROX).allow(FTZ);
/// `{.rnd}.f64`, rounding mandatory.
const ROUNDED_F64: Form = Form::of(F64_ONLY).one_of(FLOAT_ROUNDING);
/// `.rnd{.ftz}.f32`, rounding mandatory.
const ROUNDED_F32: Form = Form::of(F32_ONLY).one_of(FLOAT_ROUNDING).allow(FTZ);

const fn row<O: Copy>(op: O, forms: &'static [Form]) -> Row<O> {
    Row { op, forms }
}

/// One row per [`UnaryOp`], in order.
pub const UNARY: &[Row<UnaryOp>] = &[
    row(UnaryOp::Neg, NEGATE),
    row(UnaryOp::Abs, ABSOLUTE),
    row(UnaryOp::Not, &[Form::of(BITS)]),
    row(UnaryOp::Cnot, &[Form::of(BITS)]),
    row(UnaryOp::Popc, &[Form::of(WIDE_BITS)]),
    row(UnaryOp::Clz, &[Form::of(WIDE_BITS)]),
    row(UnaryOp::Brev, &[Form::of(WIDE_BITS)]),
    row(UnaryOp::Bfind, &[Form::of(INTEGERS_32_64)]),
    row(UnaryOp::BfindShiftAmt, &[Form::of(INTEGERS_32_64)]),
    row(
        UnaryOp::Rcp,
        &[APPROX_F32, ROUNDED_F32, ROUNDED_F64, Form::of(F64_ONLY).require(any(M::APPROX, FTZ))],
    ),
    row(UnaryOp::Sqrt, &[APPROX_F32, ROUNDED_F32, ROUNDED_F64]),
    row(UnaryOp::Rsqrt, &[APPROX_F32, Form::of(F64_ONLY).require(M::APPROX).allow(FTZ)]),
    row(
        UnaryOp::Ex2,
        &[
            APPROX_F32,
            Form::of(F16S).require(M::APPROX).since(7, 0, 75),
            Form::of(BF16S).require(any(M::APPROX, FTZ)).since(7, 8, 90),
        ],
    ),
    row(UnaryOp::Lg2, &[APPROX_F32]),
    row(UnaryOp::Sin, &[APPROX_F32]),
    row(UnaryOp::Cos, &[APPROX_F32]),
    row(
        UnaryOp::Tanh,
        &[
            Form::of(F32_ONLY.or(F16S)).require(M::APPROX).since(7, 0, 75),
            Form::of(BF16S).require(M::APPROX).since(7, 8, 90),
        ],
    ),
    row(UnaryOp::TestFinite, TEST),
    row(UnaryOp::TestInfinite, TEST),
    row(UnaryOp::TestNumber, TEST),
    row(UnaryOp::TestNan, TEST),
    row(UnaryOp::TestNormal, TEST),
    row(UnaryOp::TestSubnormal, TEST),
];

const NEGATE: &[Form] = &[
    Form::of(SIGNED.or(F64_ONLY)),
    Form::of(F32_ONLY).allow(FTZ),
    Form::of(F16S).allow(FTZ).since(6, 0, 53),
    Form::of(BF16S).since(7, 0, 80),
];
const ABSOLUTE: &[Form] = &[
    Form::of(SIGNED.or(F64_ONLY)),
    Form::of(F32_ONLY).allow(FTZ),
    Form::of(F16S).allow(FTZ).since(6, 5, 53),
    Form::of(BF16S).since(7, 0, 80),
];
const TEST: &[Form] = &[Form::of(F32_ONLY.or(F64_ONLY))];

/// One row per [`BinaryOp`], in order.
pub const BINARY: &[Row<BinaryOp>] = &[
    row(BinaryOp::Add, ADD),
    row(BinaryOp::Sub, SUBTRACT),
    row(
        BinaryOp::Mul,
        &[
            Form::of(F32_ONLY).allow(any(FLOAT_ROUNDING, any(FTZ, M::SAT))),
            Form::of(F64_ONLY).allow(FLOAT_ROUNDING),
            HALF_ADD,
            BRAIN_ADD,
            PACKED_F32_ADD,
        ],
    ),
    row(BinaryOp::MulLo, &[Form::of(INTEGERS)]),
    row(BinaryOp::MulHi, &[Form::of(INTEGERS)]),
    row(BinaryOp::MulWide, &[Form::of(INTEGERS_16_32)]),
    row(BinaryOp::Mul24Lo, &[Form::of(INTEGERS_32)]),
    row(BinaryOp::Mul24Hi, &[Form::of(INTEGERS_32)]),
    row(
        BinaryOp::Div,
        &[
            Form::of(INTEGERS),
            ROUNDED_F32,
            Form::of(F32_ONLY).one_of(any(M::APPROX, M::FULL)).allow(FTZ),
            ROUNDED_F64,
        ],
    ),
    row(BinaryOp::Rem, &[Form::of(INTEGERS)]),
    row(BinaryOp::Min, MIN_MAX),
    row(BinaryOp::Max, MIN_MAX),
    row(BinaryOp::And, &[Form::of(BITS)]),
    row(BinaryOp::Or, &[Form::of(BITS)]),
    row(BinaryOp::Xor, &[Form::of(BITS)]),
    row(BinaryOp::Shl, &[Form::of(BITS)]),
    row(BinaryOp::Shr, &[Form::of(BITS.or(INTEGERS))]),
    row(BinaryOp::Copysign, &[Form::of(F32_ONLY.or(F64_ONLY))]),
    row(BinaryOp::AddCc, CARRY),
    row(BinaryOp::Addc, CARRY),
    row(BinaryOp::AddcCc, CARRY),
    row(BinaryOp::SubCc, CARRY),
    row(BinaryOp::Subc, CARRY),
    row(BinaryOp::SubcCc, CARRY),
    row(BinaryOp::Bmsk, &[Form::of(B32_ONLY).since(7, 6, 70)]),
    row(BinaryOp::BmskWrap, &[Form::of(B32_ONLY).since(7, 6, 70)]),
    row(BinaryOp::Szext, &[Form::of(INTEGERS_32).since(7, 6, 70)]),
    row(BinaryOp::SzextWrap, &[Form::of(INTEGERS_32).since(7, 6, 70)]),
];

const HALF_ADD: Form = Form::of(F16S).allow(any(M::RN, any(FTZ, M::SAT))).since(4, 2, 53);
const BRAIN_ADD: Form = Form::of(BF16S).allow(M::RN).since(7, 8, 90);
const PACKED_F32_ADD: Form = Form::of(F32X2).allow(any(FLOAT_ROUNDING, FTZ)).since(8, 6, 100);
const SUBTRACT: &[Form] = &[
    Form::of(INTEGERS_BUT_S32),
    Form::of(S32_ONLY).allow(M::SAT),
    Form::of(F32_ONLY).allow(any(FLOAT_ROUNDING, any(FTZ, M::SAT))),
    Form::of(F64_ONLY).allow(FLOAT_ROUNDING),
    HALF_ADD,
    BRAIN_ADD,
    PACKED_F32_ADD,
];
const ADD: &[Form] = &[
    Form::of(INTEGERS_BUT_S32),
    Form::of(S32_ONLY).allow(M::SAT),
    Form::of(F32_ONLY).allow(any(FLOAT_ROUNDING, any(FTZ, M::SAT))),
    Form::of(F64_ONLY).allow(FLOAT_ROUNDING),
    HALF_ADD,
    BRAIN_ADD,
    PACKED_F32_ADD,
    Form::of(PACKED_16).since(8, 0, 90),
];
const MIN_MAX: &[Form] = &[
    Form::of(INTEGERS.or(F64_ONLY)),
    Form::of(TypeSet::of(&[S32, S16x2])).require(M::RELU).since(8, 0, 90),
    Form::of(PACKED_16).since(8, 0, 90),
    Form::of(F32_ONLY).allow(FTZ),
    Form::of(F32_ONLY).require(M::NAN).allow(FTZ).since(7, 0, 80),
    Form::of(F32_ONLY).require(M::XORSIGN_ABS).allow(any(FTZ, M::NAN)).since(7, 2, 86),
    Form::of(F16S).allow(any(FTZ, M::NAN)).since(7, 0, 80),
    Form::of(F16S).require(M::XORSIGN_ABS).allow(any(FTZ, M::NAN)).since(7, 2, 86),
    Form::of(BF16S).allow(M::NAN).since(7, 0, 80),
    Form::of(BF16S).require(M::XORSIGN_ABS).allow(M::NAN).since(7, 2, 86),
];
const CARRY: &[Form] = &[Form::of(INTEGERS_32), Form::of(TypeSet::of(&[U64, S64])).since(4, 3, 20)];

/// One row per [`TernaryOp`], in order.
pub const TERNARY: &[Row<TernaryOp>] = &[
    row(
        TernaryOp::Fma,
        &[
            Form::of(F32_ONLY).one_of(FLOAT_ROUNDING).allow(any(FTZ, M::SAT)),
            ROUNDED_F64,
            Form::of(F16S).require(M::RN).allow(any(FTZ, M::SAT)).since(4, 2, 53),
            Form::of(F16S).require(any(M::RN, M::RELU)).allow(FTZ).since(7, 0, 80),
            Form::of(BF16S).require(M::RN).allow(M::RELU).since(7, 0, 80),
            Form::of(F16S).require(any(M::RN, M::OOB)).allow(M::SAT).since(8, 1, 90),
            Form::of(F16S.or(BF16S)).require(any(M::RN, M::OOB)).allow(M::RELU).since(8, 1, 90),
            Form::of(F32X2).one_of(FLOAT_ROUNDING).allow(FTZ).since(8, 6, 100),
        ],
    ),
    row(TernaryOp::Mad, &[Form::of(F32_ONLY).one_of(FLOAT_ROUNDING).allow(any(FTZ, M::SAT)), ROUNDED_F64]),
    row(TernaryOp::MadLo, &[Form::of(INTEGERS)]),
    row(TernaryOp::MadHi, &[Form::of(INTEGERS), Form::of(S32_ONLY).require(M::SAT)]),
    row(TernaryOp::MadWide, &[Form::of(INTEGERS_16_32)]),
    row(TernaryOp::Mad24Lo, &[Form::of(INTEGERS_32)]),
    row(TernaryOp::Mad24Hi, &[Form::of(INTEGERS_32), Form::of(S32_ONLY).require(M::SAT)]),
    row(TernaryOp::MadLoCc, CARRY),
    row(TernaryOp::MadHiCc, CARRY),
    row(TernaryOp::MadcLo, CARRY),
    row(TernaryOp::MadcHi, CARRY),
    row(TernaryOp::MadcLoCc, CARRY),
    row(TernaryOp::MadcHiCc, CARRY),
    row(TernaryOp::Sad, &[Form::of(INTEGERS)]),
    row(TernaryOp::Bfe, &[Form::of(INTEGERS_32_64)]),
    row(TernaryOp::ShfLWrap, FUNNEL),
    row(TernaryOp::ShfLClamp, FUNNEL),
    row(TernaryOp::ShfRWrap, FUNNEL),
    row(TernaryOp::ShfRClamp, FUNNEL),
    row(TernaryOp::Prmt, &[Form::of(B32_ONLY)]),
    row(TernaryOp::PrmtF4e, &[Form::of(B32_ONLY)]),
    row(TernaryOp::PrmtB4e, &[Form::of(B32_ONLY)]),
    row(TernaryOp::PrmtRc8, &[Form::of(B32_ONLY)]),
    row(TernaryOp::PrmtEcl, &[Form::of(B32_ONLY)]),
    row(TernaryOp::PrmtEcr, &[Form::of(B32_ONLY)]),
    row(TernaryOp::PrmtRc16, &[Form::of(B32_ONLY)]),
];

const FUNNEL: &[Form] = &[Form::of(B32_ONLY).since(3, 1, 32)];

/// One row per [`CmpOp`], in order: the types that `setp` and `set` compare. `.ftz` is a modifier of the comparison.
pub const COMPARE: &[Row<CmpOp>] = &[
    row(CmpOp::Eq, COMPARE_EQUAL),
    row(CmpOp::Ne, COMPARE_EQUAL),
    row(CmpOp::Lt, COMPARE_ORDER),
    row(CmpOp::Le, COMPARE_ORDER),
    row(CmpOp::Gt, COMPARE_ORDER),
    row(CmpOp::Ge, COMPARE_ORDER),
    row(CmpOp::Lo, COMPARE_UNSIGNED),
    row(CmpOp::Ls, COMPARE_UNSIGNED),
    row(CmpOp::Hi, COMPARE_UNSIGNED),
    row(CmpOp::Hs, COMPARE_UNSIGNED),
    row(CmpOp::Equ, COMPARE_FLOAT),
    row(CmpOp::Neu, COMPARE_FLOAT),
    row(CmpOp::Ltu, COMPARE_FLOAT),
    row(CmpOp::Leu, COMPARE_FLOAT),
    row(CmpOp::Gtu, COMPARE_FLOAT),
    row(CmpOp::Geu, COMPARE_FLOAT),
    row(CmpOp::Num, COMPARE_FLOAT),
    row(CmpOp::Nan, COMPARE_FLOAT),
];

const COMPARE_F32: Form = Form::of(F32_ONLY).allow(FTZ);
const COMPARE_F16: Form = Form::of(F16S).allow(FTZ).since(4, 2, 53);
const COMPARE_BF16: Form = Form::of(BF16S).since(7, 8, 90);
const COMPARE_EQUAL: &[Form] =
    &[Form::of(BITS.or(INTEGERS).or(F64_ONLY)), COMPARE_F32, COMPARE_F16, COMPARE_BF16];
const COMPARE_ORDER: &[Form] = &[Form::of(INTEGERS.or(F64_ONLY)), COMPARE_F32, COMPARE_F16, COMPARE_BF16];
const COMPARE_UNSIGNED: &[Form] = &[Form::of(UNSIGNED)];
const COMPARE_FLOAT: &[Form] = &[Form::of(F64_ONLY), COMPARE_F32, COMPARE_F16, COMPARE_BF16];

/// Destination types of `set` and what each compares; the comparison's own row must have the source type too.
pub const SET: &[Form] = &[
    Form::of(TypeSet::of(&[U32, S32, F32])).with(SELECT_TYPES).allow(FTZ),
    Form::of(TypeSet::of(&[U16, S16, U32, S32])).with(TypeSet::of(&[F16])).allow(FTZ).since(6, 5, 53),
    Form::of(TypeSet::of(&[U32, S32])).with(TypeSet::of(&[F16x2])).allow(FTZ).since(6, 5, 53),
    Form::of(TypeSet::of(&[F16x2])).with(TypeSet::of(&[F16x2])).allow(FTZ).since(4, 2, 53),
    Form::of(TypeSet::of(&[F16])).with(SELECT_TYPES.or(TypeSet::of(&[F16]))).allow(FTZ).since(4, 2, 53),
    Form::of(TypeSet::of(&[U16, S16, U32, S32])).with(TypeSet::of(&[BF16])).since(7, 8, 90),
    Form::of(TypeSet::of(&[U32, S32, BF16x2])).with(TypeSet::of(&[BF16x2])).since(7, 8, 90),
    Form::of(TypeSet::of(&[BF16])).with(SELECT_TYPES.or(TypeSet::of(&[BF16, F16]))).since(7, 8, 90),
];

/// `selp`: the types it selects among.
pub const SELP: Form = Form::of(SELECT_TYPES).allow(NONE);
/// `slct`: the types it selects among, with the selector's type. `.ftz` belongs to the f32 selector.
pub const SLCT: &[Form] =
    &[Form::of(SELECT_TYPES).with(S32_ONLY), Form::of(SELECT_TYPES).with(F32_ONLY).allow(FTZ)];
const SELECT_TYPES: TypeSet = BITS.or(INTEGERS).or(F32_ONLY).or(F64_ONLY);

/// `bfi`
pub const BFI: Form = Form::of(WIDE_BITS);
/// `dp4a`: the types of both vectors.
pub const DP4A: Form = Form::of(INTEGERS_32).with(INTEGERS_32).since(5, 0, 61);
/// `{min|max}` of three values.
pub const MIN_MAX_3: Form = Form::of(F32_ONLY).allow(any(FTZ, M::NAN)).since(8, 8, 100);
/// `add`, `sub` and `fma` on f32 with narrow operands: f32 and the narrow type.
pub const MIXED: &[(MixedOp, Form)] = &[
    (MixedOp::Add, MIXED_ADD),
    (MixedOp::Sub, MIXED_ADD),
    (MixedOp::Fma, Form::of(F32_ONLY).with(NARROW).one_of(FLOAT_ROUNDING).allow(M::SAT).since(8, 6, 100)),
];
const MIXED_ADD: Form = Form::of(F32_ONLY).with(NARROW).allow(any(FLOAT_ROUNDING, M::SAT)).since(8, 6, 100);
const NARROW: TypeSet = TypeSet::of(&[F16, BF16]);
/// `lop3`
pub const LOP3: Form = Form::of(B32_ONLY).since(4, 3, 50);

/// The type of the result of a unary operator whose instruction type is `ty`.
pub const fn unary_result(op: UnaryOp, ty: ScalarType) -> ScalarType {
    match op {
        UnaryOp::Popc | UnaryOp::Clz => U32,
        UnaryOp::Bfind | UnaryOp::BfindShiftAmt => U32,
        UnaryOp::TestFinite
        | UnaryOp::TestInfinite
        | UnaryOp::TestNumber
        | UnaryOp::TestNan
        | UnaryOp::TestNormal
        | UnaryOp::TestSubnormal => Pred,
        _ => ty,
    }
}

/// The type twice as wide as an integer type; other types stay.
pub const fn widened(ty: ScalarType) -> ScalarType {
    match ty {
        U16 => U32,
        S16 => S32,
        U32 => U64,
        S32 => S64,
        _ => ty,
    }
}

/// The unsigned type of the same width; other types stay.
pub const fn unsigned(ty: ScalarType) -> ScalarType {
    match ty {
        S8 => U8,
        S16 => U16,
        S32 => U32,
        S64 => U64,
        _ => ty,
    }
}
