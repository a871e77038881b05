//! Scalar types, state spaces, memory ordering, rounding, targets and versions.
//!
//! Every enum here prints as it is spelled in PTX (`name()`), and reads back with `from_name`.

use std::fmt;

/// Declares an enum whose variants are spelled in PTX, with `name`, `from_name` and `ALL`.
macro_rules! spelled {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        $vis enum $name { $($(#[$vmeta])* #[doc = concat!("`", $text, "`")] $variant),* }

        impl $name {
            /// Every value, in declaration order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The PTX spelling, without dots.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }

            /// The value that is spelled `name`.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($text => Some(Self::$variant),)* _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
pub(crate) use spelled;

spelled! {
    /// The type of a register or of an instruction's operands.
    pub enum ScalarType {
        /// One-bit predicate.
        Pred = "pred",
        /// Untyped bits of the given width.
        B8 = "b8", B16 = "b16", B32 = "b32", B64 = "b64", B128 = "b128",
        /// Unsigned integers.
        U8 = "u8", U16 = "u16", U32 = "u32", U64 = "u64",
        /// Signed integers.
        S8 = "s8", S16 = "s16", S32 = "s32", S64 = "s64",
        /// IEEE half precision, alone and packed in pairs.
        F16 = "f16", F16x2 = "f16x2",
        /// bfloat16, alone and packed in pairs; instruction types only, registers are `.b16` and `.b32`.
        BF16 = "bf16", BF16x2 = "bf16x2",
        /// IEEE single and double precision.
        F32 = "f32", F64 = "f64",
        /// TensorFloat-32; an instruction type that lives in `.b32`.
        TF32 = "tf32",
        /// Packed 8-bit floats; instruction types that live in `.b16`.
        E4M3x2 = "e4m3x2", E5M2x2 = "e5m2x2",
        /// Packed 16-bit integers.
        U16x2 = "u16x2", S16x2 = "s16x2",
        /// Packed single precision; an instruction type that lives in `.b64`.
        F32x2 = "f32x2",
        /// Packed narrow floats and scales of conversions; they live in `.b16`, the 4-bit ones in `.b8`.
        E2M1x2 = "e2m1x2", E2M3x2 = "e2m3x2", E3M2x2 = "e3m2x2", UE8M0x2 = "ue8m0x2",
        /// Four packed narrow floats, results of stochastic rounding; they live in `.b32`, the 4-bit ones in `.b16`.
        E4M3x4 = "e4m3x4", E5M2x4 = "e5m2x4", E2M1x4 = "e2m1x4", E2M3x4 = "e2m3x4", E3M2x4 = "e3m2x4",
    }
}

/// Kind of the values of a [`ScalarType`]; decides which registers an instruction type accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TypeClass {
    /// `.pred`
    Predicate,
    /// `.bN`
    Bits,
    /// `.uN`
    Unsigned,
    /// `.sN`
    Signed,
    /// Every floating-point type, packed ones included.
    Float,
}

impl ScalarType {
    /// Width in bits; 1 for a predicate.
    pub const fn bits(self) -> u32 {
        use ScalarType::*;
        match self {
            Pred => 1,
            B8 | U8 | S8 | E2M1x2 => 8,
            B16 | U16 | S16 | F16 | BF16 | E4M3x2 | E5M2x2 | E2M3x2 | E3M2x2 | UE8M0x2 | E2M1x4 => 16,
            B32 | U32 | S32 | F32 | F16x2 | BF16x2 | TF32 | U16x2 | S16x2 | E4M3x4 | E5M2x4 | E2M3x4
            | E3M2x4 => 32,
            B64 | U64 | S64 | F64 | F32x2 => 64,
            B128 => 128,
        }
    }

    /// Width in memory in bytes; 1 for a predicate, which cannot be stored.
    pub const fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    /// The kind of value.
    pub const fn class(self) -> TypeClass {
        use ScalarType::*;
        match self {
            Pred => TypeClass::Predicate,
            B8 | B16 | B32 | B64 | B128 => TypeClass::Bits,
            U8 | U16 | U32 | U64 | U16x2 => TypeClass::Unsigned,
            S8 | S16 | S32 | S64 | S16x2 => TypeClass::Signed,
            F16 | F16x2 | BF16 | BF16x2 | F32 | F64 | TF32 | F32x2 | E4M3x2 | E5M2x2 | E2M1x2 | E2M3x2
            | E3M2x2 | UE8M0x2 | E4M3x4 | E5M2x4 | E2M1x4 | E2M3x4 | E3M2x4 => TypeClass::Float,
        }
    }

    /// Whether the type holds floating-point values.
    pub const fn is_float(self) -> bool {
        matches!(self.class(), TypeClass::Float)
    }

    /// Whether registers and variables have the type; the others belong to instructions alone.
    pub const fn is_storage(self) -> bool {
        use ScalarType::*;
        match self.class() {
            TypeClass::Float => matches!(self, F16 | F16x2 | F32 | F64),
            TypeClass::Signed | TypeClass::Unsigned => !matches!(self, U16x2 | S16x2),
            TypeClass::Predicate | TypeClass::Bits => true,
        }
    }

    /// Whether the type is a signed or unsigned integer.
    pub const fn is_integer(self) -> bool {
        matches!(self.class(), TypeClass::Signed | TypeClass::Unsigned)
    }

    /// The untyped type of the same width (`Pred` stays).
    pub const fn to_bits(self) -> Self {
        match self.bits() {
            8 => Self::B8,
            16 => Self::B16,
            32 => Self::B32,
            64 => Self::B64,
            128 => Self::B128,
            _ => Self::Pred,
        }
    }
}

spelled! {
    /// Where an address points.
    pub enum StateSpace {
        /// No space is named: the address selects it.
        Generic = "generic",
        /// Device memory.
        Global = "global",
        /// The block's shared memory (`.shared` is `.shared::cta`).
        Shared = "shared",
        /// Shared memory of any block of the cluster.
        SharedCluster = "shared::cluster",
        /// A thread's private memory.
        Local = "local",
        /// Kernel or function parameters.
        Param = "param",
        /// Constant memory.
        Const = "const",
    }
}

spelled! {
    /// The threads among which a memory operation is ordered.
    pub enum Scope { Cta = "cta", Cluster = "cluster", Gpu = "gpu", Sys = "sys" }
}

spelled! {
    /// Memory ordering of an access; `Weak` is the default of plain loads and stores and prints nothing.
    pub enum Semantics {
        Weak = "weak", Relaxed = "relaxed", Acquire = "acquire", Release = "release", AcqRel = "acq_rel",
        Volatile = "volatile", Mmio = "mmio",
    }
}

/// Ordering and scope of an access. `scope` is `None` where PTX allows none to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ordering {
    /// The semantics.
    pub semantics: Semantics,
    /// The scope, if one is written.
    pub scope: Option<Scope>,
}

impl Ordering {
    /// A plain access.
    pub const WEAK: Self = Self { semantics: Semantics::Weak, scope: None };
    /// `.volatile`
    pub const VOLATILE: Self = Self { semantics: Semantics::Volatile, scope: None };

    /// `.relaxed.scope` and the like.
    pub const fn new(semantics: Semantics, scope: Scope) -> Self {
        Self { semantics, scope: Some(scope) }
    }
}

spelled! {
    /// Rounding of a floating-point or conversion instruction.
    pub enum Rounding {
        /// To nearest, ties to even.
        Rn = "rn",
        /// Towards zero.
        Rz = "rz",
        /// Towards minus infinity.
        Rm = "rm",
        /// Towards plus infinity.
        Rp = "rp",
        /// To nearest, ties away from zero (`cvt` to tf32).
        Rna = "rna",
        /// To the nearest integer, ties to even.
        Rni = "rni",
        /// To an integer towards zero.
        Rzi = "rzi",
        /// To an integer towards minus infinity.
        Rmi = "rmi",
        /// To an integer towards plus infinity.
        Rpi = "rpi",
    }
}

spelled! {
    /// Cache operator of a load or store; `Default` prints nothing.
    pub enum CacheOp {
        Default = "", Ca = "ca", Cg = "cg", Cs = "cs", Lu = "lu", Cv = "cv", Wb = "wb", Wt = "wt",
    }
}

spelled! {
    /// Priority of a line in the L1 cache; `Default` prints nothing.
    pub enum L1Eviction {
        Default = "", Normal = "L1::evict_normal", Unchanged = "L1::evict_unchanged", First = "L1::evict_first",
        Last = "L1::evict_last", NoAllocate = "L1::no_allocate",
    }
}

spelled! {
    /// Priority of a line in the L2 cache; `Default` prints nothing.
    pub enum L2Eviction {
        Default = "", Normal = "L2::evict_normal", First = "L2::evict_first", Last = "L2::evict_last",
    }
}

spelled! {
    /// How much of a line a load prefetches into the L2 cache; `Default` prints nothing.
    pub enum L2Prefetch { Default = "", B64 = "L2::64B", B128 = "L2::128B", B256 = "L2::256B" }
}

/// An `sm_XX` architecture with its suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// 75 for `sm_75`, 120 for `sm_120`.
    pub sm: u32,
    /// Which devices the code runs on.
    pub variant: TargetVariant,
}

/// The suffix of a target name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TargetVariant {
    /// `sm_90`: runs on this architecture and later ones.
    Plain,
    /// `sm_100f`: runs on the family.
    Family,
    /// `sm_90a`: runs on this architecture alone.
    Specific,
}

impl Target {
    /// A plain target.
    pub const fn sm(sm: u32) -> Self {
        Self { sm, variant: TargetVariant::Plain }
    }

    /// An architecture-specific target such as `sm_90a`.
    pub const fn specific(sm: u32) -> Self {
        Self { sm, variant: TargetVariant::Specific }
    }

    /// Reads `sm_90`, `sm_90a` or `sm_100f`.
    pub fn from_name(name: &str) -> Option<Self> {
        let rest = name.strip_prefix("sm_")?;
        let (digits, variant) = match rest.as_bytes().last()? {
            b'a' => (&rest[..rest.len() - 1], TargetVariant::Specific),
            b'f' => (&rest[..rest.len() - 1], TargetVariant::Family),
            _ => (rest, TargetVariant::Plain),
        };
        if digits.is_empty() || digits.len() > 4 || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        Some(Self { sm: digits.parse().ok()?, variant })
    }

    /// Whether a module with this target can be assembled for `other`, as `ptxas -arch` takes it.
    pub const fn builds_for(self, other: Self) -> bool {
        match (self.variant, other.variant) {
            (TargetVariant::Plain, _) => other.sm >= self.sm,
            (TargetVariant::Family, TargetVariant::Plain)
            | (TargetVariant::Specific, TargetVariant::Plain) => false,
            (TargetVariant::Specific, TargetVariant::Family) => false,
            (TargetVariant::Family, _) => self.runs_on(other.sm),
            (TargetVariant::Specific, TargetVariant::Specific) => self.sm == other.sm,
        }
    }

    /// Whether code for this target loads on a device of compute capability `device_sm`.
    pub const fn runs_on(self, device_sm: u32) -> bool {
        match self.variant {
            TargetVariant::Plain => device_sm >= self.sm,
            TargetVariant::Specific => device_sm == self.sm,
            TargetVariant::Family => device_sm >= self.sm && device_sm / 10 == self.sm / 10,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.variant {
            TargetVariant::Plain => "",
            TargetVariant::Family => "f",
            TargetVariant::Specific => "a",
        };
        write!(f, "sm_{}{suffix}", self.sm)
    }
}

/// A PTX ISA version such as 7.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PtxVersion {
    /// Major number.
    pub major: u16,
    /// Minor number.
    pub minor: u16,
}

impl PtxVersion {
    /// The version `major.minor`.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }
}

impl fmt::Display for PtxVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
