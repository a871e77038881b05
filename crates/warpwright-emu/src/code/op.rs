//! The flat operation enum of decoded code.
//!
//! [`hot_ops`] is the one table of the operations that run vectorised: the enum and the interpreter's match arms are
//! both generated from it. Everything else is an index into one of the side tables of
//! [`Code`](super::Code).

use super::rows::{R1, R2, R3};

/// Makes an operation of one source, two, or three.
pub(crate) type Make1 = fn(R1) -> Op;
pub(crate) type Make2 = fn(R2) -> Op;
pub(crate) type Make3 = fn(R3) -> Op;

/// Hands the table of hot operations to macro `$callback`, after the tokens in brackets.
///
/// A row reads `Name(sources) = result;` under the shape that says which rows are read and written; see
/// `exec::rows`.
macro_rules! hot_ops {
    ($callback:ident [$($extra:tt)*]) => {
        $callback! {
            [$($extra)*]
            R1 w1 {
                MovW(a) = a;
                NotW(a) = !a;
                NegI32(a) = a.wrapping_neg();
                AbsI32(a) = (a as i32).wrapping_abs() as u32;
                Popc(a) = a.count_ones();
                Clz(a) = a.leading_zeros();
                Brev(a) = a.reverse_bits();
                Zext8(a) = a & 0xFF;
                Zext16(a) = a & 0xFFFF;
                Sext8(a) = a as i8 as u32;
                Sext16(a) = a as i16 as u32;
                // The sign-extended low byte in a 16-bit register.
                Sext8To16(a) = a as i8 as u16 as u32;
                High16(a) = a >> 16;
                NegF32(a) = lanes::neg_f32(a);
                AbsF32(a) = lanes::abs_f32(a);
                RcpF32(a) = lanes::rcp_f32(a);
                SqrtF32(a) = lanes::sqrt_f32(a);
                RcpFtzF32(a) = lanes::flush(lanes::rcp_f32(lanes::flush(a)));
                TanhF32(a) = lanes::tanh_f32(a);
                RsqrtF32(a) = lanes::rsqrt_f32(a);
                Ex2F32(a) = lanes::ex2_f32(a);
                Ex2FtzF32(a) = lanes::flush(lanes::ex2_f32(lanes::flush(a)));
                Lg2F32(a) = lanes::lg2_f32(a);
                RniF32(a) = lanes::round_f32(a, f32::round_ties_even);
                RziF32(a) = lanes::round_f32(a, f32::trunc);
                RmiF32(a) = lanes::round_f32(a, f32::floor);
                RpiF32(a) = lanes::round_f32(a, f32::ceil);
                F32FromS32(a) = (a as i32 as f32).to_bits();
                F32FromU32(a) = (a as f32).to_bits();
                // A cast saturates and turns NaN into 0, as `cvt` does.
                S32FromF32Rni(a) = f32::from_bits(a).round_ties_even() as i32 as u32;
                S32FromF32Rzi(a) = f32::from_bits(a) as i32 as u32;
                S32FromF32Rmi(a) = f32::from_bits(a).floor() as i32 as u32;
                S32FromF32Rpi(a) = f32::from_bits(a).ceil() as i32 as u32;
                U32FromF32Rni(a) = f32::from_bits(a).round_ties_even() as u32;
                U32FromF32Rzi(a) = f32::from_bits(a) as u32;
                F32FromF16(a) = lanes::f16_to_f32(a);
                F32FromBf16(a) = lanes::bf16_to_f32(a);
                F16FromF32(a) = lanes::f32_to_f16(a);
                Bf16FromF32(a) = lanes::f32_to_bf16(a);
            }
            R2 w2 {
                AddI32(a, b) = a.wrapping_add(b);
                SubI32(a, b) = a.wrapping_sub(b);
                MulI32(a, b) = a.wrapping_mul(b);
                MulHiU32(a, b) = ((u64::from(a) * u64::from(b)) >> 32) as u32;
                MulHiS32(a, b) = ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32;
                MinU32(a, b) = a.min(b);
                MaxU32(a, b) = a.max(b);
                MinS32(a, b) = (a as i32).min(b as i32) as u32;
                MaxS32(a, b) = (a as i32).max(b as i32) as u32;
                DivU32(a, b) = lanes::div_u32(a, b);
                RemU32(a, b) = lanes::rem_u32(a, b);
                AndW(a, b) = a & b;
                OrW(a, b) = a | b;
                XorW(a, b) = a ^ b;
                ShlW(a, b) = if b < 32 { a << (b & 31) } else { 0 };
                ShrU32(a, b) = if b < 32 { a >> (b & 31) } else { 0 };
                ShrS32(a, b) = ((a as i32) >> b.min(31)) as u32;
                AddF32(a, b) = lanes::add_f32(a, b);
                SubF32(a, b) = lanes::sub_f32(a, b);
                MulF32(a, b) = lanes::mul_f32(a, b);
                DivF32(a, b) = lanes::div_f32(a, b);
                MinF32(a, b) = lanes::min_f32(a, b);
                MaxF32(a, b) = lanes::max_f32(a, b);
                MinNanF32(a, b) = lanes::propagate(a, b, lanes::min_f32(a, b));
                MaxNanF32(a, b) = lanes::propagate(a, b, lanes::max_f32(a, b));
                MinBf16x2(a, b) = lanes::each_bf16(a, b, lanes::min_f32);
                MaxBf16x2(a, b) = lanes::each_bf16(a, b, lanes::max_f32);
                MinNanBf16x2(a, b) = lanes::each_bf16(a, b, |a, b| lanes::propagate(a, b, lanes::min_f32(a, b)));
                MaxNanBf16x2(a, b) = lanes::each_bf16(a, b, |a, b| lanes::propagate(a, b, lanes::max_f32(a, b)));
                CopysignF32(a, b) = a & 0x8000_0000 | b & 0x7FFF_FFFF;
                // The first source of a packing conversion is the upper half.
                F16x2FromF32(a, b) = lanes::f32_to_f16(a) << 16 | lanes::f32_to_f16(b);
                Bf16x2FromF32(a, b) = lanes::f32_to_bf16(a) << 16 | lanes::f32_to_bf16(b);
                Pack16(a, b) = a | b << 16;
            }
            R3 w3 {
                MadI32(a, b, c) = a.wrapping_mul(b).wrapping_add(c);
                FmaF32(a, b, c) = lanes::fma_f32(a, b, c);
                ShfLWrap(a, b, c) = lanes::shf_l(a, b, c & 31);
                ShfLClamp(a, b, c) = lanes::shf_l(a, b, c.min(32));
                ShfRWrap(a, b, c) = lanes::shf_r(a, b, c & 31);
                ShfRClamp(a, b, c) = lanes::shf_r(a, b, c.min(32));
                BfeU32(a, b, c) = lanes::bfe_u32(a, b, c);
                Prmt(a, b, c) = lanes::prmt(a, b, c);
            }
            R1 l1 {
                MovL(a) = a;
                NotL(a) = !a;
                NegI64(a) = a.wrapping_neg();
                AbsI64(a) = (a as i64).wrapping_abs() as u64;
                NegF64(a) = a ^ (1 << 63);
                AbsF64(a) = a & !(1 << 63);
                RcpF64(a) = (1.0 / f64::from_bits(a)).to_bits();
                SqrtF64(a) = f64::from_bits(a).sqrt().to_bits();
                F64FromU64(a) = (a as f64).to_bits();
                F64FromS64(a) = (a as i64 as f64).to_bits();
                RniF64(a) = f64::from_bits(a).round_ties_even().to_bits();
                RziF64(a) = f64::from_bits(a).trunc().to_bits();
                RmiF64(a) = f64::from_bits(a).floor().to_bits();
                RpiF64(a) = f64::from_bits(a).ceil().to_bits();
            }
            R2 l2 {
                AddI64(a, b) = a.wrapping_add(b);
                SubI64(a, b) = a.wrapping_sub(b);
                MulI64(a, b) = a.wrapping_mul(b);
                MinU64(a, b) = a.min(b);
                MaxU64(a, b) = a.max(b);
                MinS64(a, b) = (a as i64).min(b as i64) as u64;
                MaxS64(a, b) = (a as i64).max(b as i64) as u64;
                DivU64(a, b) = lanes::div_u64(a, b);
                RemU64(a, b) = lanes::rem_u64(a, b);
                AndL(a, b) = a & b;
                OrL(a, b) = a | b;
                XorL(a, b) = a ^ b;
                AddF64(a, b) = (f64::from_bits(a) + f64::from_bits(b)).to_bits();
                SubF64(a, b) = (f64::from_bits(a) - f64::from_bits(b)).to_bits();
                MulF64(a, b) = (f64::from_bits(a) * f64::from_bits(b)).to_bits();
                DivF64(a, b) = (f64::from_bits(a) / f64::from_bits(b)).to_bits();
                MinF64(a, b) = lanes::min_f64(a, b);
                MaxF64(a, b) = lanes::max_f64(a, b);
                CopysignF64(a, b) = a & 1 << 63 | b & !(1 << 63);
            }
            R3 l3 {
                MadI64(a, b, c) = a.wrapping_mul(b).wrapping_add(c);
                FmaF64(a, b, c) = f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)).to_bits();
            }
            R2 lw2 {
                ShlL(a, b) = if b < 64 { a << (b & 63) } else { 0 };
                ShrU64(a, b) = if b < 64 { a >> (b & 63) } else { 0 };
                ShrS64(a, b) = ((a as i64) >> b.min(63)) as u64;
            }
            R1 widen1 {
                ZextL(a) = u64::from(a);
                SextL(a) = a as i32 as u64;
                Sext16L(a) = a as i16 as u64;
                F64FromF32(a) = lanes::f32_to_f64(a);
                F64FromS32(a) = f64::from(a as i32).to_bits();
                F64FromU32(a) = f64::from(a).to_bits();
            }
            R2 widen2 {
                MulWideU32(a, b) = u64::from(a) * u64::from(b);
                MulWideS32(a, b) = (i64::from(a as i32) * i64::from(b as i32)) as u64;
                PackL(a, b) = u64::from(a) | u64::from(b) << 32;
            }
            R3 widen3 {
                MadWideU32(a, b, c) = (u64::from(a) * u64::from(b)).wrapping_add(c);
                MadWideS32(a, b, c) = ((i64::from(a as i32) * i64::from(b as i32)) as u64).wrapping_add(c);
            }
            R1 narrow1 {
                TruncL(a) = a as u32;
                Trunc16L(a) = a as u32 & 0xFFFF;
                HighL(a) = (a >> 32) as u32;
                U32FromF64Rzi(a) = lanes::f64_to_u32(a);
                S32FromF64Rzi(a) = lanes::f64_to_s32(a);
                S32FromF64Rni(a) = lanes::f64_to_s32(f64::from_bits(a).round_ties_even().to_bits());
                F32FromF64(a) = lanes::f64_to_f32(a);
            }
            R2 pw2 {
                EqW(a, b) = a == b;
                NeW(a, b) = a != b;
                LtU32(a, b) = a < b;
                LeU32(a, b) = a <= b;
                LtS32(a, b) = (a as i32) < b as i32;
                LeS32(a, b) = a as i32 <= b as i32;
                EqF32(a, b) = f32::from_bits(a) == f32::from_bits(b);
                LtF32(a, b) = f32::from_bits(a) < f32::from_bits(b);
                LeF32(a, b) = f32::from_bits(a) <= f32::from_bits(b);
                NeF32(a, b) = lanes::ordered_ne_f32(a, b);
                NeuF32(a, b) = f32::from_bits(a) != f32::from_bits(b);
                NanF32(a, b) = f32::from_bits(a).is_nan() | f32::from_bits(b).is_nan();
                NumF32(a, b) = !(f32::from_bits(a).is_nan() | f32::from_bits(b).is_nan());
                EquF32(a, b) = !lanes::ordered_ne_f32(a, b);
                // Not less or equal: greater or unordered.
                GtuF32(a, b) = lanes::not_le_f32(a, b);
                GeuF32(a, b) = lanes::not_lt_f32(a, b);
            }
            R2 pl2 {
                EqL(a, b) = a == b;
                NeL(a, b) = a != b;
                LtU64(a, b) = a < b;
                LeU64(a, b) = a <= b;
                LtS64(a, b) = (a as i64) < b as i64;
                LeS64(a, b) = a as i64 <= b as i64;
                EqF64(a, b) = f64::from_bits(a) == f64::from_bits(b);
                LtF64(a, b) = f64::from_bits(a) < f64::from_bits(b);
                LeF64(a, b) = f64::from_bits(a) <= f64::from_bits(b);
                NanF64(a, b) = f64::from_bits(a).is_nan() | f64::from_bits(b).is_nan();
                NumF64(a, b) = !(f64::from_bits(a).is_nan() | f64::from_bits(b).is_nan());
                NeuF64(a, b) = f64::from_bits(a) != f64::from_bits(b);
                GtuF64(a, b) = lanes::not_le_f64(a, b);
                GeuF64(a, b) = lanes::not_lt_f64(a, b);
            }
        }
    };
}
pub(crate) use hot_ops;

macro_rules! define_op {
    ([] $($regs:ident $shape:ident { $($name:ident($($x:ident),*) = $value:expr;)* })*) => {
        /// A decoded operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Op {
            $($(
                #[doc = stringify!($value)]
                $name($regs),
            )*)*
            /// `lop3`: the truth table is applied bit by bit.
            Lop3(R3, u8),
            /// 32-bit select: predicate `c` chooses `a` or `b`.
            SelectW(R3),
            /// 64-bit select.
            SelectL(R3),
            /// Predicate logic on masks.
            PredAnd(R2),
            PredOr(R2),
            PredXor(R2),
            PredNot(R1),
            PredMov(R1),
            /// Any other arithmetic instruction, lane by lane: index into `Code::scalars`.
            Scalar(u32),
            /// Index into `Code::loads`.
            Load(u32),
            /// Index into `Code::stores`.
            Store(u32),
            /// Index into `Code::atomics`.
            Atomic(u32),
            /// Index into `Code::lines`: checks an address.
            Line(u32),
            /// Index into `Code::stack`.
            Stack(u32),
            /// Index into `Code::collectives`: shuffles, votes and other exchanges within a warp.
            Collective(u32),
            /// Index into `Code::barriers`.
            Barrier(u32),
            /// Index into `Code::clusters`.
            Cluster(u32),
            /// Asynchronous copies, mbarriers and proxy fences: index into `Code::asynchronous`.
            Asynchronous(u32),
            /// Index into `Code::specials`: special registers that change while a kernel runs.
            Special(u32),
            /// `isspacep`: index into `Code::isspacep`.
            Isspacep(u32),
            /// Memory fence: index into `Code::fences`.
            Fence(u32),
            /// `nanosleep`, with the row of times: gives other warps a turn.
            Yield { nanoseconds: u32 },
            Trap,
            /// An instruction that the emulator does not execute: index into `Code::unsupported`.
            Unsupported(u32),
            /// A tensor-core instruction: index into `Code::collectives`.
            Matrix(u32),
            /// Touches registers that `wgmma` uses: index into `Code::touches`.
            Touch(u32),
            /// Checks that registers are defined: index into `Code::checks`.
            CheckDefined(u32),
            /// Marks registers as defined: index into `Code::marks`.
            MarkDefined(u32),
            /// Register `to` is defined if those of `from` are; otherwise an entry of `Code::passings` says what is of it. It is a result
            /// of the next instruction, which has the same guard.
            PassDefined { from: [u32; 3], to: u32 },
            Jump { to: u32 },
            /// To `then` where predicate `pred` (inverted by `invert`) holds, else to `otherwise`.
            Branch { pred: u32, invert: u32, then: u32, otherwise: u32 },
            /// To the target with the number in row `index`: `table` is an index into `Code::tables`.
            BranchIndexed { index: u32, table: u32 },
            /// Index into `Code::calls`.
            Call(u32),
            /// Back to the caller of a device function.
            Return,
            Exit,
            /// An instruction without effect here.
            Nothing,
        }
    };
}
hot_ops!(define_op []);

/// One decoded instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ins {
    /// Predicate that guards it; 0 is always true.
    pub(crate) guard: u32,
    /// All ones if the guard is negated.
    pub(crate) invert: u32,
    pub(crate) op: Op,
}
