//! Operators and modifiers, one enum per family.

use super::operand::{PredUse, Reg};
use crate::types::*;

spelled! {
    /// One-source operators.
    pub enum UnaryOp {
        Neg = "neg", Abs = "abs", Not = "not", Cnot = "cnot", Popc = "popc", Clz = "clz", Brev = "brev",
        Bfind = "bfind", BfindShiftAmt = "bfind.shiftamt",
        Rcp = "rcp", Sqrt = "sqrt", Rsqrt = "rsqrt", Ex2 = "ex2", Lg2 = "lg2", Sin = "sin", Cos = "cos",
        Tanh = "tanh",
        /// `testp.*`: classifies a float; the destination is a predicate.
        TestFinite = "testp.finite", TestInfinite = "testp.infinite", TestNumber = "testp.number",
        TestNan = "testp.notanumber", TestNormal = "testp.normal", TestSubnormal = "testp.subnormal",
    }
}

spelled! {
    /// Two-source operators.
    pub enum BinaryOp {
        Add = "add", Sub = "sub", Mul = "mul", MulLo = "mul.lo", MulHi = "mul.hi", MulWide = "mul.wide",
        Mul24Lo = "mul24.lo", Mul24Hi = "mul24.hi",
        Div = "div", Rem = "rem", Min = "min", Max = "max",
        And = "and", Or = "or", Xor = "xor", Shl = "shl", Shr = "shr", Copysign = "copysign",
        AddCc = "add.cc", Addc = "addc", AddcCc = "addc.cc", SubCc = "sub.cc", Subc = "subc", SubcCc = "subc.cc",
        Bmsk = "bmsk.clamp", BmskWrap = "bmsk.wrap", Szext = "szext.clamp", SzextWrap = "szext.wrap",
    }
}

spelled! {
    /// Three-source operators.
    pub enum TernaryOp {
        Fma = "fma", Mad = "mad", MadLo = "mad.lo", MadHi = "mad.hi", MadWide = "mad.wide",
        Mad24Lo = "mad24.lo", Mad24Hi = "mad24.hi",
        MadLoCc = "mad.lo.cc", MadHiCc = "mad.hi.cc", MadcLo = "madc.lo", MadcHi = "madc.hi",
        MadcLoCc = "madc.lo.cc", MadcHiCc = "madc.hi.cc",
        Sad = "sad", Bfe = "bfe",
        ShfLWrap = "shf.l.wrap", ShfLClamp = "shf.l.clamp", ShfRWrap = "shf.r.wrap", ShfRClamp = "shf.r.clamp",
        Prmt = "prmt", PrmtF4e = "prmt.f4e", PrmtB4e = "prmt.b4e", PrmtRc8 = "prmt.rc8", PrmtEcl = "prmt.ecl",
        PrmtEcr = "prmt.ecr", PrmtRc16 = "prmt.rc16",
    }
}

/// Modifiers of an arithmetic instruction. What may be set for which operator is in [`isa`](crate::isa).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Modifiers {
    /// `.rn`, `.rz`, ...
    pub rounding: Option<Rounding>,
    /// `.approx`
    pub approx: bool,
    /// `.full` (`div.full`)
    pub full: bool,
    /// `.ftz`: subnormal inputs and results become zero.
    pub ftz: bool,
    /// `.sat`: clamp to \[0, 1\], or saturate integers.
    pub sat: bool,
    /// `.relu`: clamp negatives to 0.
    pub relu: bool,
    /// `.NaN`: min and max propagate NaN.
    pub nan: bool,
    /// `.xorsign.abs`
    pub xorsign_abs: bool,
    /// `.satfinite` (`cvt` only)
    pub satfinite: bool,
    /// `.oob` (`fma` only): an operand that is the out-of-bounds NaN of a tensor copy makes the result zero.
    pub oob: bool,
}

impl Modifiers {
    /// No modifier.
    pub const NONE: Self = Self {
        rounding: None,
        approx: false,
        full: false,
        ftz: false,
        sat: false,
        relu: false,
        nan: false,
        xorsign_abs: false,
        satfinite: false,
        oob: false,
    };
    /// `.rn`
    pub const RN: Self = Self { rounding: Some(Rounding::Rn), ..Self::NONE };
    /// `.approx`
    pub const APPROX: Self = Self { approx: true, ..Self::NONE };

    /// Only the given rounding.
    pub const fn rounded(rounding: Rounding) -> Self {
        Self { rounding: Some(rounding), ..Self::NONE }
    }

    /// The same with `.ftz`.
    pub const fn with_ftz(self) -> Self {
        Self { ftz: true, ..self }
    }
}

spelled! {
    /// Comparisons. The `u` forms are true if an operand is NaN; `lo ls hi hs` compare unsigned integers.
    pub enum CmpOp {
        Eq = "eq", Ne = "ne", Lt = "lt", Le = "le", Gt = "gt", Ge = "ge",
        Lo = "lo", Ls = "ls", Hi = "hi", Hs = "hs",
        Equ = "equ", Neu = "neu", Ltu = "ltu", Leu = "leu", Gtu = "gtu", Geu = "geu", Num = "num", Nan = "nan",
    }
}

spelled! {
    /// How `setp` combines its comparison with a third predicate.
    pub enum BoolOp { And = "and", Or = "or", Xor = "xor" }
}

spelled! {
    /// Read-modify-write operators of `atom` and `red`.
    pub enum AtomOp {
        Add = "add", Min = "min", Max = "max", Inc = "inc", Dec = "dec", And = "and", Or = "or", Xor = "xor",
        Exch = "exch", Cas = "cas",
    }
}

spelled! {
    /// Operators on f32 with operands of half the width.
    pub enum MixedOp { Add = "add", Sub = "sub", Fma = "fma" }
}

spelled! {
    /// Types to which `cvt.pack` saturates.
    pub enum PackedInteger {
        U16 = "u16", S16 = "s16", U8 = "u8", S8 = "s8", U4 = "u4", S4 = "s4", U2 = "u2", S2 = "s2",
    }
}

impl PackedInteger {
    /// Width in bits.
    pub const fn bits(self) -> u32 {
        match self {
            Self::U16 | Self::S16 => 16,
            Self::U8 | Self::S8 => 8,
            Self::U4 | Self::S4 => 4,
            Self::U2 | Self::S2 => 2,
        }
    }
}

spelled! {
    /// Which lane a shuffle reads.
    pub enum ShflMode { Up = "up", Down = "down", Bfly = "bfly", Idx = "idx" }
}

spelled! {
    /// Result of a vote.
    pub enum VoteMode { All = "all", Any = "any", Uni = "uni", Ballot = "ballot" }
}

spelled! {
    /// Operators of `redux.sync`.
    pub enum ReduxOp { Add = "add", Min = "min", Max = "max", And = "and", Or = "or", Xor = "xor" }
}

spelled! {
    /// Reductions on a barrier.
    pub enum BarRedOp { Popc = "popc", And = "and", Or = "or" }
}

spelled! {
    /// How far a prefetch reaches.
    pub enum PrefetchLevel {
        L1 = "L1", L2 = "L2", L2EvictLast = "L2::evict_last", L2EvictNormal = "L2::evict_normal",
    }
}

/// Cache behaviour of a load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheHints {
    /// `.ca`, `.cg`, `.cs`, ...
    pub op: CacheOp,
    /// `.L1::evict_*`
    pub l1: L1Eviction,
    /// `.L2::evict_*`
    pub l2: L2Eviction,
    /// `.L2::128B`, ...
    pub l2_prefetch: L2Prefetch,
    /// `.L2::cache_hint` with the 64-bit register that holds the policy.
    pub policy: Option<Reg>,
}

impl CacheHints {
    /// Nothing is said.
    pub const NONE: Self = Self {
        op: CacheOp::Default,
        l1: L1Eviction::Default,
        l2: L2Eviction::Default,
        l2_prefetch: L2Prefetch::Default,
        policy: None,
    };
}

/// Form of a named barrier instruction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the operand names of the form in each variant's documentation")]
pub enum BarrierKind {
    /// Arrive and wait.
    Sync,
    /// Arrive only; needs a count.
    Arrive,
    /// Arrive, wait and reduce a predicate; the destination is `.u32` for `popc` and a predicate otherwise.
    Reduce { op: BarRedOp, dst: Reg, src: PredUse },
}
