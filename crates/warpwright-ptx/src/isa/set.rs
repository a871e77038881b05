//! Sets of types and of modifiers, and the form: one row of what is legal.

use bitflags::bitflags;

use crate::inst::Modifiers;
use crate::types::{PtxVersion, Rounding, ScalarType, Target, TargetVariant};

/// A set of [`ScalarType`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TypeSet(u64);

impl TypeSet {
    /// No type.
    pub const EMPTY: Self = Self(0);

    /// The set of `types`.
    pub const fn of(types: &[ScalarType]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < types.len() {
            bits |= 1 << (types[i] as u64);
            i += 1;
        }
        Self(bits)
    }

    /// Both sets together.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether `ty` is in the set.
    pub const fn contains(self, ty: ScalarType) -> bool {
        self.0 & (1 << (ty as u64)) != 0
    }

    /// Whether the set has no type.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The types in declaration order.
    pub fn iter(self) -> impl Iterator<Item = ScalarType> {
        ScalarType::ALL.iter().copied().filter(move |t| self.contains(*t))
    }
}

bitflags! {
    /// Modifiers of an arithmetic instruction or conversion as a set.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct ModifierSet: u32 {
        /// `.rn`
        const RN = 1;
        /// `.rz`
        const RZ = 1 << 1;
        /// `.rm`
        const RM = 1 << 2;
        /// `.rp`
        const RP = 1 << 3;
        /// `.rna`
        const RNA = 1 << 4;
        /// `.rni`
        const RNI = 1 << 5;
        /// `.rzi`
        const RZI = 1 << 6;
        /// `.rmi`
        const RMI = 1 << 7;
        /// `.rpi`
        const RPI = 1 << 8;
        /// `.approx`
        const APPROX = 1 << 9;
        /// `.full`
        const FULL = 1 << 10;
        /// `.ftz`
        const FTZ = 1 << 11;
        /// `.sat`
        const SAT = 1 << 12;
        /// `.relu`
        const RELU = 1 << 13;
        /// `.NaN`
        const NAN = 1 << 14;
        /// `.xorsign.abs`
        const XORSIGN_ABS = 1 << 15;
        /// `.satfinite`
        const SATFINITE = 1 << 16;
        /// `.oob`
        const OOB = 1 << 17;
        /// The four IEEE roundings.
        const FLOAT_ROUNDING = Self::RN.bits() | Self::RZ.bits() | Self::RM.bits() | Self::RP.bits();
        /// The four roundings to an integer.
        const INTEGER_ROUNDING = Self::RNI.bits() | Self::RZI.bits() | Self::RMI.bits() | Self::RPI.bits();
        /// Every rounding.
        const ROUNDING = Self::FLOAT_ROUNDING.bits() | Self::RNA.bits() | Self::INTEGER_ROUNDING.bits();
    }
}

impl ModifierSet {
    /// The PTX spelling of one modifier, without its leading dot.
    const NAMES: [(Self, &'static str); 18] = [
        (Self::RN, "rn"),
        (Self::RZ, "rz"),
        (Self::RM, "rm"),
        (Self::RP, "rp"),
        (Self::RNA, "rna"),
        (Self::RNI, "rni"),
        (Self::RZI, "rzi"),
        (Self::RMI, "rmi"),
        (Self::RPI, "rpi"),
        (Self::APPROX, "approx"),
        (Self::FULL, "full"),
        (Self::FTZ, "ftz"),
        (Self::SAT, "sat"),
        (Self::RELU, "relu"),
        (Self::NAN, "NaN"),
        (Self::XORSIGN_ABS, "xorsign.abs"),
        (Self::SATFINITE, "satfinite"),
        (Self::OOB, "oob"),
    ];

    /// The set that holds `rounding` alone.
    pub const fn rounding(rounding: Rounding) -> Self {
        match rounding {
            Rounding::Rn => Self::RN,
            Rounding::Rz => Self::RZ,
            Rounding::Rm => Self::RM,
            Rounding::Rp => Self::RP,
            Rounding::Rna => Self::RNA,
            Rounding::Rni => Self::RNI,
            Rounding::Rzi => Self::RZI,
            Rounding::Rmi => Self::RMI,
            Rounding::Rpi => Self::RPI,
        }
    }

    /// The set as [`Modifiers`]; of several roundings the first is kept.
    pub fn to_modifiers(self) -> Modifiers {
        Modifiers {
            rounding: Rounding::ALL.iter().copied().find(|r| self.contains(Self::rounding(*r))),
            approx: self.contains(Self::APPROX),
            full: self.contains(Self::FULL),
            ftz: self.contains(Self::FTZ),
            sat: self.contains(Self::SAT),
            relu: self.contains(Self::RELU),
            nan: self.contains(Self::NAN),
            xorsign_abs: self.contains(Self::XORSIGN_ABS),
            satfinite: self.contains(Self::SATFINITE),
            oob: self.contains(Self::OOB),
        }
    }

    /// The modifiers as they are spelled, with dots and separated by `separator`.
    pub fn spelled(self, separator: &str) -> String {
        let names: Vec<_> =
            Self::NAMES.iter().filter(|(m, _)| self.contains(*m)).map(|(_, n)| format!(".{n}")).collect();
        names.join(separator)
    }
}

impl From<Modifiers> for ModifierSet {
    fn from(m: Modifiers) -> Self {
        let mut set = m.rounding.map_or(Self::empty(), Self::rounding);
        for (on, flag) in [
            (m.approx, Self::APPROX),
            (m.full, Self::FULL),
            (m.ftz, Self::FTZ),
            (m.sat, Self::SAT),
            (m.relu, Self::RELU),
            (m.nan, Self::NAN),
            (m.xorsign_abs, Self::XORSIGN_ABS),
            (m.satfinite, Self::SATFINITE),
            (m.oob, Self::OOB),
        ] {
            set.set(flag, on);
        }
        set
    }
}

/// The PTX version and target that something needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    /// The least `.version`.
    pub version: PtxVersion,
    /// The least architecture: 80 for `sm_80`.
    pub sm: u32,
    /// If not empty, only architecture-specific targets have it (`sm_90a` for 90), and from 100 on their families.
    pub specific: &'static [u32],
}

impl Requirement {
    /// The requirement that every version and target that this crate knows meets.
    pub const BASE: Self = Self::new(1, 0, 10);

    /// Version `major.minor` and `sm`.
    pub const fn new(major: u16, minor: u16, sm: u32) -> Self {
        Self { version: PtxVersion::new(major, minor), sm, specific: &[] }
    }

    /// Version `major.minor` and only the architecture-specific targets of `specific`, the oldest first.
    pub const fn only(major: u16, minor: u16, specific: &'static [u32]) -> Self {
        let sm = if specific.is_empty() { 0 } else { specific[0] };
        Self { version: PtxVersion::new(major, minor), sm, specific }
    }

    /// Whether a target has it, in a version that is new enough.
    pub fn has_target(&self, target: Target) -> bool {
        let family = |sm: &u32| *sm >= 100 && sm / 10 == target.sm / 10 && *sm <= target.sm;
        match target.variant {
            _ if self.specific.is_empty() => target.sm >= self.sm,
            TargetVariant::Plain => false,
            TargetVariant::Specific => self.specific.iter().any(|sm| *sm == target.sm || family(sm)),
            TargetVariant::Family => self.specific.iter().any(family),
        }
    }

    /// The requirement of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            version: self.version.max(other.version),
            sm: self.sm.max(other.sm),
            specific: if self.specific.is_empty() { other.specific } else { self.specific },
        }
    }
}

/// A row of the table: the types and modifiers of one legal form of an operator, and what it needs.
///
/// An operator may have several forms for one type, for instance one that older targets offer and one with a modifier
/// that came later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// The instruction type.
    pub types: TypeSet,
    /// The second type where the shape has one (source of `cvt`, destination of `set`, selector of `slct`).
    pub other: TypeSet,
    /// Modifiers that must be written.
    pub required: ModifierSet,
    /// Exactly one of these must be written, unless empty.
    pub one_of: ModifierSet,
    /// Modifiers that may be written besides.
    pub allowed: ModifierSet,
    /// The version and target that have the form.
    pub needs: Requirement,
}

impl Form {
    /// The form of `types` without modifiers.
    pub const fn of(types: TypeSet) -> Self {
        Self {
            types,
            other: TypeSet::EMPTY,
            required: ModifierSet::empty(),
            one_of: ModifierSet::empty(),
            allowed: ModifierSet::empty(),
            needs: Requirement::BASE,
        }
    }

    /// With the second type in `other`.
    pub const fn with(self, other: TypeSet) -> Self {
        Self { other, ..self }
    }

    /// `modifiers` must be written.
    pub const fn require(self, modifiers: ModifierSet) -> Self {
        Self { required: modifiers, ..self }
    }

    /// Exactly one of `modifiers` must be written.
    pub const fn one_of(self, modifiers: ModifierSet) -> Self {
        Self { one_of: modifiers, ..self }
    }

    /// `modifiers` may be written.
    pub const fn allow(self, modifiers: ModifierSet) -> Self {
        Self { allowed: modifiers, ..self }
    }

    /// Exists from PTX `major.minor` and `sm` on.
    pub const fn since(self, major: u16, minor: u16, sm: u32) -> Self {
        Self { needs: Requirement::new(major, minor, sm), ..self }
    }

    /// Exists on architecture-specific targets only.
    pub const fn only(self, major: u16, minor: u16, specific: &'static [u32]) -> Self {
        Self { needs: Requirement::only(major, minor, specific), ..self }
    }

    /// Whether the form has this type.
    pub const fn has_type(&self, ty: ScalarType) -> bool {
        self.types.contains(ty)
    }

    /// Whether the form has these types.
    pub const fn has_types(&self, ty: ScalarType, other: ScalarType) -> bool {
        self.types.contains(ty) && self.other.contains(other)
    }

    /// Checks a set of modifiers.
    pub fn check(&self, modifiers: ModifierSet) -> Result<(), ModifierError> {
        let missing = self.required.difference(modifiers);
        if !missing.is_empty() {
            return Err(ModifierError::Missing(missing));
        }
        let illegal = modifiers.difference(self.required | self.one_of | self.allowed);
        if !illegal.is_empty() {
            return Err(ModifierError::Illegal(illegal));
        }
        if !self.one_of.is_empty() {
            match modifiers.intersection(self.one_of).bits().count_ones() {
                0 => return Err(ModifierError::MissingOneOf(self.one_of)),
                1 => {}
                _ => return Err(ModifierError::Conflict(modifiers.intersection(self.one_of))),
            }
        }
        Ok(())
    }
}

/// Why a set of modifiers does not fit a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModifierError {
    /// These must be written.
    #[error("`{}` is required", .0.spelled(""))]
    Missing(ModifierSet),
    /// One of these must be written.
    #[error("one of `{}` is required", .0.spelled("`, `"))]
    MissingOneOf(ModifierSet),
    /// These do not exist here.
    #[error("`{}` is not allowed", .0.spelled(""))]
    Illegal(ModifierSet),
    /// These exclude one another.
    #[error("`{}` exclude one another", .0.spelled("`, `"))]
    Conflict(ModifierSet),
}

/// All forms of one operator.
#[derive(Clone, Copy, Debug)]
pub struct Row<O: 'static> {
    /// The operator.
    pub op: O,
    /// Its forms. Several may fit; the first is the one that the oldest targets have.
    pub forms: &'static [Form],
}

/// Why no form fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// No form has the types.
    Types,
    /// A form has the types but not the modifiers.
    Modifiers(ModifierError),
}

/// The form of `forms` that `has` the types and takes `modifiers`: the first, or, for a known target, the one that this
/// target has had for longest.
pub(super) fn fit<'a>(
    forms: impl IntoIterator<Item = &'a Form>,
    modifiers: ModifierSet,
    target: Option<Target>,
    has: impl Fn(&Form) -> bool,
) -> Result<&'a Form, Misfit> {
    let mut misfit = Misfit::Types;
    let mut best: Option<&Form> = None;
    for form in forms {
        if !has(form) {
            continue;
        }
        match (form.check(modifiers), target) {
            (Ok(()), None) => return Ok(form),
            (Ok(()), Some(target)) => {
                let rank = |f: &Form| (f.needs.sm.saturating_sub(target.sm), f.needs.version);
                if best.is_none_or(|b| rank(form) < rank(b)) {
                    best = Some(form);
                }
            }
            // The complaint of the plainest form is the most useful one.
            (Err(e), _) if misfit == Misfit::Types => misfit = Misfit::Modifiers(e),
            (Err(_), _) => {}
        }
    }
    best.ok_or(misfit)
}
