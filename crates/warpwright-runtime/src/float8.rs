//! 8-bit floating-point numbers on the host.

use warpwright_ptx::float8;

macro_rules! float8 {
    ($(#[$doc:meta])* $name:ident, $bits:path, $value:path, $max:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(transparent)]
        pub struct $name(u8);

        impl $name {
            /// The largest number.
            pub const MAX: Self = Self($max);
            /// 1
            pub const ONE: Self = Self($bits(1.0));

            /// The number with the given bits.
            pub const fn from_bits(bits: u8) -> Self {
                Self(bits)
            }

            /// Its bits.
            pub const fn to_bits(self) -> u8 {
                self.0
            }

            /// The nearest number, ties to even. What is beyond the largest becomes the largest, infinity too; NaN stays NaN.
            pub const fn from_f32(value: f32) -> Self {
                Self::from_f64(value as f64)
            }

            /// The nearest number, as [`from_f32`](Self::from_f32).
            pub const fn from_f64(value: f64) -> Self {
                Self($bits(value))
            }

            /// The number, exactly.
            pub fn to_f32(self) -> f32 {
                self.to_f64() as f32
            }

            /// The number, exactly.
            pub fn to_f64(self) -> f64 {
                $value(self.0)
            }
        }

        /// Numbers are equal as floating-point numbers are: both zeros, and NaN to nothing.
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.to_f64() == other.to_f64()
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                self.to_f64().partial_cmp(&other.to_f64())
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&self.to_f32(), f)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.to_f32(), f)
            }
        }

        impl From<$name> for f32 {
            fn from(value: $name) -> Self {
                value.to_f32()
            }
        }

        impl From<$name> for f64 {
            fn from(value: $name) -> Self {
                value.to_f64()
            }
        }
    };
}

float8! {
    /// An element of [`DType::F8E4M3`](crate::DType::F8E4M3): four exponent bits, three of the significand, no infinities.
    ///
    /// ```
    /// use warpwright_runtime::F8E4M3;
    ///
    /// assert_eq!(F8E4M3::from_f32(1.06).to_f32(), 1.0);
    /// assert_eq!(F8E4M3::from_f32(1e9), F8E4M3::MAX);
    /// assert_eq!(F8E4M3::MAX.to_f32(), 448.0);
    /// ```
    F8E4M3, float8::e4m3_bits, float8::e4m3_value, 0x7e
}

float8! {
    /// An element of [`DType::F8E5M2`](crate::DType::F8E5M2): five exponent bits, two of the significand.
    ///
    /// ```
    /// use warpwright_runtime::F8E5M2;
    ///
    /// assert_eq!(F8E5M2::from_f32(1.1).to_f32(), 1.0);
    /// assert_eq!(F8E5M2::MAX.to_f32(), 57344.0);
    /// ```
    F8E5M2, float8::e5m2_bits, float8::e5m2_value, 0x7b
}
