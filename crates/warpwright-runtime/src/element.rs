//! Rust types that can be elements of a tensor.

use warpwright_ptx::DType;

/// A Rust type whose bytes are those of a [`DType`].
pub trait Element: bytemuck::Pod + Send + Sync + PartialEq + std::fmt::Debug {
    /// The element type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {
        $(impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        })*

        #[cfg(test)]
        mod tests {
            use super::*;

            #[test]
            fn sizes_agree_with_the_dtype() {
                let mut seen = Vec::new();
                $(
                    assert_eq!(size_of::<$rust>(), <$rust as Element>::DTYPE.bytes(), stringify!($rust));
                    seen.push(<$rust as Element>::DTYPE);
                )*
                for dtype in DType::ALL {
                    assert_eq!(seen.iter().filter(|d| *d == dtype).count(), 1, "{dtype} has one Rust type");
                }
            }
        }
    };
}

elements! {
    f32 => F32,
    f64 => F64,
    half::f16 => F16,
    half::bf16 => BF16,
    crate::F8E4M3 => F8E4M3,
    crate::F8E5M2 => F8E5M2,
    u8 => U8,
    i8 => I8,
    u16 => U16,
    i16 => I16,
    u32 => U32,
    i32 => I32,
    u64 => U64,
    i64 => I64,
}
