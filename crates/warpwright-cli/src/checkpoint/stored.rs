//! The element types of the safetensors format.

use std::fmt;

use warpwright_ptx::DType;

macro_rules! stored_types {
    ($($variant:ident = $name:literal, $bits:literal;)*) => {
        /// An element type as a safetensors header spells it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum StoredType { $(#[doc = concat!("`", $name, "`, ", stringify!($bits), " bits")] $variant),* }

        impl StoredType {
            /// Every type, in declaration order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The spelling in a header.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Bits of one element; types below 8 bits are packed.
            pub const fn bits(self) -> u64 {
                match self { $(Self::$variant => $bits),* }
            }
        }
    };
}

stored_types! {
    F4 = "F4", 4;
    F6E2M3 = "F6_E2M3", 6;
    F6E3M2 = "F6_E3M2", 6;
    Bool = "BOOL", 8;
    U8 = "U8", 8;
    I8 = "I8", 8;
    F8E4M3 = "F8_E4M3", 8;
    F8E5M2 = "F8_E5M2", 8;
    F8E8M0 = "F8_E8M0", 8;
    F8E4M3Fnuz = "F8_E4M3FNUZ", 8;
    F8E5M2Fnuz = "F8_E5M2FNUZ", 8;
    U16 = "U16", 16;
    I16 = "I16", 16;
    F16 = "F16", 16;
    BF16 = "BF16", 16;
    U32 = "U32", 32;
    I32 = "I32", 32;
    F32 = "F32", 32;
    C64 = "C64", 64;
    U64 = "U64", 64;
    I64 = "I64", 64;
    F64 = "F64", 64;
}

impl StoredType {
    /// The type that a header spells `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|t| t.name() == name)
    }

    /// Bytes that `elements` elements take; `None` if they do not fill whole bytes or the count overflows.
    pub const fn bytes(self, elements: u64) -> Option<u64> {
        match elements.checked_mul(self.bits()) {
            Some(bits) if bits.is_multiple_of(8) => Some(bits / 8),
            // A count whose bits overflow can still have representable bytes, but no file is that long.
            _ => None,
        }
    }

    /// The alignment that readers which map the file want for this type, in bytes.
    pub const fn alignment(self) -> u64 {
        if self.bits() < 8 { 1 } else { self.bits() / 8 }
    }

    /// The same type as the primitives know it, if they compute with it.
    pub const fn float(self) -> Option<DType> {
        match self {
            Self::F16 => Some(DType::F16),
            Self::BF16 => Some(DType::BF16),
            Self::F32 => Some(DType::F32),
            Self::F64 => Some(DType::F64),
            _ => None,
        }
    }

    /// The stored form of a floating-point type; `None` for integers.
    pub const fn from_float(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F16 => Some(Self::F16),
            DType::BF16 => Some(Self::BF16),
            DType::F32 => Some(Self::F32),
            DType::F64 => Some(Self::F64),
            _ => None,
        }
    }
}

impl fmt::Display for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for &t in StoredType::ALL {
            assert_eq!(StoredType::from_name(t.name()), Some(t));
        }
        assert_eq!(StoredType::from_name("f32"), None);
    }

    #[test]
    fn packed_types_need_whole_bytes() {
        assert_eq!(StoredType::F4.bytes(4), Some(2));
        assert_eq!(StoredType::F4.bytes(3), None);
        assert_eq!(StoredType::F6E2M3.bytes(4), Some(3));
        assert_eq!(StoredType::F64.bytes(u64::MAX / 8), None);
        assert_eq!(StoredType::F32.bytes(5_000_000_000), Some(20_000_000_000));
    }
}
