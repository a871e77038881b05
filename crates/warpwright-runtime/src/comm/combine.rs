//! Reductions over ranks on the host, in the order of the ranks.

use half::{bf16, f16};
use warpwright_ptx::{DType, float16};

use super::Reduction;

impl Reduction {
    /// Whether elements of a type have this reduction: floating-point numbers but those of 8 bits have all of them, whole numbers of
    /// 8, 32 and 64 bits all but the mean.
    pub fn takes(self, dtype: DType) -> bool {
        match dtype {
            DType::F32 | DType::F64 | DType::F16 | DType::BF16 => true,
            DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::U64 => self != Self::Mean,
            _ => false,
        }
    }
}

/// The number that a reduction is computed in.
trait Number: Copy {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn largest(self, other: Self) -> Self;
    fn share(self, ranks: usize) -> Self;
}

macro_rules! floats {
    ($($t:ty),*) => {
        $(impl Number for $t {
            fn sum(self, other: Self) -> Self {
                self + other
            }
            fn product(self, other: Self) -> Self {
                self * other
            }
            fn least(self, other: Self) -> Self {
                self.min(other)
            }
            fn largest(self, other: Self) -> Self {
                self.max(other)
            }
            fn share(self, ranks: usize) -> Self {
                self / ranks as Self
            }
        })*
    };
}

macro_rules! integers {
    ($($t:ty),*) => {
        $(impl Number for $t {
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn least(self, other: Self) -> Self {
                self.min(other)
            }
            fn largest(self, other: Self) -> Self {
                self.max(other)
            }
            fn share(self, _ranks: usize) -> Self {
                self
            }
        })*
    };
}

floats!(f32, f64);
integers!(i8, u8, i32, u32, i64, u64);

fn combine<const BYTES: usize, N: Number>(
    reduction: Reduction,
    parts: &[&[u8]],
    read: impl Fn([u8; BYTES]) -> N,
    write: impl Fn(N) -> [u8; BYTES],
) -> Vec<u8> {
    let combine = match reduction {
        Reduction::Sum | Reduction::Mean => N::sum,
        Reduction::Product => N::product,
        Reduction::Min => N::least,
        Reduction::Max => N::largest,
    };
    let [first, rest @ ..] = parts else { return Vec::new() };
    let elements = |part: &[u8]| -> Vec<N> { part.as_chunks().0.iter().map(|bytes| read(*bytes)).collect() };
    let mut all = elements(first);
    for part in rest {
        for (sum, x) in all.iter_mut().zip(elements(part)) {
            *sum = combine(*sum, x);
        }
    }
    if reduction == Reduction::Mean {
        all.iter_mut().for_each(|sum| *sum = sum.share(parts.len()));
    }
    all.into_iter().flat_map(write).collect()
}

/// The elements of all ranks made one, rank by rank; those of 16 bits in f32, rounded once. The type has the reduction.
pub(super) fn reduce(reduction: Reduction, dtype: DType, parts: &[&[u8]]) -> Vec<u8> {
    macro_rules! plain {
        ($t:ty) => {
            combine(reduction, parts, <$t>::from_ne_bytes, <$t>::to_ne_bytes)
        };
    }
    match dtype {
        DType::F32 => plain!(f32),
        DType::F64 => plain!(f64),
        DType::F16 => combine(
            reduction,
            parts,
            |b| f16::from_ne_bytes(b).to_f32(),
            |x| float16::f16_bits(x.into()).to_ne_bytes(),
        ),
        DType::BF16 => combine(
            reduction,
            parts,
            |b| bf16::from_ne_bytes(b).to_f32(),
            |x| float16::bf16_bits(x.into()).to_ne_bytes(),
        ),
        DType::I8 => plain!(i8),
        DType::U8 => plain!(u8),
        DType::I32 => plain!(i32),
        DType::U32 => plain!(u32),
        DType::I64 => plain!(i64),
        DType::U64 => plain!(u64),
        // Refused before: see `Reduction::takes`.
        DType::F8E4M3 | DType::F8E5M2 | DType::U16 | DType::I16 => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_rounded_once() {
        // 2048 + 1 + 1 in f16: rounded after each sum it stays 2048.
        let [big, one] = [2048.0f32, 1.0].map(|x| f16::from_f32(x).to_ne_bytes());
        let sum = reduce(Reduction::Sum, DType::F16, &[&big, &one, &one]);
        assert_eq!(sum, f16::from_f32(2050.0).to_ne_bytes());
    }

    #[test]
    fn every_reduction_of_a_type_that_takes_it() {
        for &dtype in DType::ALL {
            for reduction in Reduction::ALL.into_iter().filter(|reduction| reduction.takes(dtype)) {
                let part = vec![1u8; dtype.bytes() * 3];
                assert_eq!(
                    reduce(reduction, dtype, &[&part, &part]).len(),
                    part.len(),
                    "{reduction} {dtype}"
                );
            }
        }
        let parts: Vec<[u8; 4]> = [3i32, -4, 5].iter().map(|x| x.to_ne_bytes()).collect();
        let parts: Vec<&[u8]> = parts.iter().map(<[u8; 4]>::as_slice).collect();
        let of = |reduction| {
            let bytes = reduce(reduction, DType::I32, &parts);
            i32::from_ne_bytes(bytes.try_into().expect("one element"))
        };
        let exact = [Reduction::Sum, Reduction::Product, Reduction::Min, Reduction::Max];
        assert_eq!(exact.map(of), [4, -60, -4, 5]);
        assert!(!Reduction::Mean.takes(DType::I32) && !Reduction::Sum.takes(DType::F8E4M3));
    }
}
