//! Matrix descriptors of `wgmma`: where in shared memory the elements of an operand lie.
//!
//! | bits | field |
//! |---|---|
//! | 0-13 | start address, in units of 16 bytes as all of these |
//! | 16-29 | leading-dimension offset |
//! | 32-45 | stride-dimension offset |
//! | 49-51 | base offset of the swizzle pattern |
//! | 62-63 | swizzle: 0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes |
//!
//! An operand of `wgmma` has 32 bytes along k in each of its rows (the M or N axis), so it is made of chunks of 16
//! bytes: two for each row if it is stored K-major, one for each 8 rows and k if it is stored MN-major (16-bit
//! elements only). A pattern of `8 w` rows of `16 w` bytes is swizzled by exchanging chunks: address bits 4 and up are
//! combined by exclusive or with bits 7 and up, from which the base offset is subtracted.
//!
//! Those of `tcgen05` differ in the upper bits (PTX ISA, "Shared memory descriptor" of the fifth generation; the fields are
//! those of `SmemDescriptor` in CUTLASS's `mma_sm100_desc.hpp`): bits 46-48 hold 1, bit 52 says that the leading offset is an
//! address, and bits 61-63 name the swizzle: 0 none, 1 128 bytes in pieces of 32, 2 128 bytes, 4 64 bytes, 6 32 bytes. The
//! places of the elements are the same.

use crate::code::matrix::Major;
use std::fmt;

/// The bytes that one swizzle pattern is wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Swizzle {
    None,
    B32,
    B64,
    B128,
}

impl Swizzle {
    /// Chunks in a row of the pattern.
    const fn chunks(self) -> u64 {
        match self {
            Self::None => 1,
            Self::B32 => 2,
            Self::B64 => 4,
            Self::B128 => 8,
        }
    }

    /// Where the chunk that belongs at an address lies.
    const fn apply(self, address: u64, base_offset: u64) -> u64 {
        address ^ (((address >> 7).wrapping_sub(base_offset) & (self.chunks() - 1)) << 4)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::None => "no swizzle",
            Self::B32 => "32-byte swizzle",
            Self::B64 => "64-byte swizzle",
            Self::B128 => "128-byte swizzle",
        }
    }
}

/// A decoded descriptor; offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) bits: u64,
    pub(crate) start: u64,
    pub(crate) leading: u64,
    pub(crate) stride: u64,
    pub(crate) base_offset: u64,
    pub(crate) swizzle: Swizzle,
}

impl Descriptor {
    /// Bits that no field uses.
    const RESERVED: u64 = !(0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 49 | 3 << 62);

    pub(crate) fn decode(bits: u64) -> Self {
        let field = |at: u32| (bits >> at & 0x3FFF) << 4;
        Self {
            bits,
            start: field(0),
            leading: field(16),
            stride: field(32),
            base_offset: bits >> 49 & 7,
            swizzle: match bits >> 62 {
                0 => Swizzle::None,
                1 => Swizzle::B128,
                2 => Swizzle::B64,
                _ => Swizzle::B32,
            },
        }
    }

    /// Bits that no field of a descriptor of `tcgen05` uses.
    const RESERVED_OF_TENSOR: u64 =
        !(0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 46 | 7 << 49 | 1 << 52 | 7 << 61);

    /// A descriptor of `tcgen05`, or why it is none that is known here.
    pub(in crate::exec) fn of_tensor_core(bits: u64) -> Result<Self, String> {
        if bits & Self::RESERVED_OF_TENSOR != 0 {
            let set = bits & Self::RESERVED_OF_TENSOR;
            return Err(format!(
                "has bits {set:#x} set, which no field uses: addresses and offsets go in as 14 bits, shifted right by 4"
            ));
        }
        if bits >> 46 & 7 != 1 {
            return Err(format!("has {} in bits 46 to 48, which must hold 1", bits >> 46 & 7));
        }
        if bits >> 52 & 1 != 0 {
            return Err("gives the leading dimension as an address, which is not executed".to_owned());
        }
        let swizzle = match bits >> 61 {
            0 => Swizzle::None,
            2 => Swizzle::B128,
            4 => Swizzle::B64,
            6 => Swizzle::B32,
            1 => return Err("swizzles 128 bytes in pieces of 32, which is not executed".to_owned()),
            other => return Err(format!("names swizzle {other}, which there is not")),
        };
        Ok(Self { swizzle, ..Self::decode(bits & !(0xFFFF << 48) | bits & 7 << 49) }.with_bits(bits))
    }

    const fn with_bits(self, bits: u64) -> Self {
        Self { bits, ..self }
    }

    /// The defect of a descriptor of an operand of `rows` rows, if it has one.
    pub(crate) fn problem(&self, major: Major, rows: u64) -> Option<String> {
        if self.bits & Self::RESERVED != 0 {
            return Some(format!(
                "has bits {:#x} set, which no field uses: addresses and offsets go in as 14 bits, shifted right by 4",
                self.bits & Self::RESERVED
            ));
        }
        self.offset_problem(major, rows)
    }

    /// The defect of the offsets.
    pub(in crate::exec) fn offset_problem(&self, major: Major, rows: u64) -> Option<String> {
        let w = self.swizzle.chunks();
        if self.swizzle == Swizzle::None {
            return None;
        }
        // Only the offsets that the operand is long enough to use.
        let pattern = 128 * w;
        let (stride_used, leading_used) = match major {
            Major::K => (rows > 8, false),
            Major::Mn => (true, rows > 8 * w),
        };
        let uses = [("stride", self.stride, stride_used), ("leading", self.leading, leading_used)];
        let (name, bytes, _) = uses.into_iter().find(|(_, bytes, used)| *used && bytes % pattern != 0)?;
        Some(format!(
            "has a {name}-dimension offset of {bytes} bytes, which is no multiple of the {pattern} bytes of a {} \
             pattern",
            self.swizzle.name()
        ))
    }

    /// Address of chunk `chunk` of `row` in a K-major operand.
    #[inline(always)]
    pub(crate) const fn k_major(&self, row: u64, chunk: u64) -> u64 {
        let group = row / 8 * self.stride;
        let offset = match self.swizzle {
            Swizzle::None => row % 8 * 16 + group + chunk * self.leading,
            swizzle => row % 8 * (16 * swizzle.chunks()) + group + chunk * 16,
        };
        self.swizzle.apply(self.start + offset, self.base_offset)
    }

    /// Address of the chunk with `k` of rows `8 * chunk` to `8 * chunk + 7` in an MN-major operand.
    #[inline(always)]
    pub(crate) const fn mn_major(&self, chunk: u64, k: u64) -> u64 {
        let offset = match self.swizzle {
            Swizzle::None => chunk * self.stride + k % 8 * 16 + k / 8 * self.leading,
            swizzle => {
                let w = swizzle.chunks();
                chunk % w * 16 + chunk / w * self.leading + k % 8 * (16 * w) + k / 8 * self.stride
            }
        };
        self.swizzle.apply(self.start + offset, self.base_offset)
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:#018x} (start {:#x}, leading-dimension offset {}, stride-dimension offset {}, {}",
            self.bits,
            self.start,
            self.leading,
            self.stride,
            self.swizzle.name()
        )?;
        if self.base_offset != 0 {
            write!(f, ", base offset {}", self.base_offset)?;
        }
        write!(f, ")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_of_tensor_cores_have_their_own_upper_bits() {
        let fields = |swizzle: u64| 0x40 | 1 << 16 | 64 << 32 | 1 << 46 | swizzle << 61;
        let read = |bits| Descriptor::of_tensor_core(bits);
        for (code, swizzle) in [(0, Swizzle::None), (2, Swizzle::B128), (4, Swizzle::B64), (6, Swizzle::B32)]
        {
            let d = read(fields(code)).expect("a descriptor");
            assert_eq!((d.start, d.leading, d.stride, d.base_offset), (0x400, 16, 1024, 0));
            assert_eq!((d.swizzle, d.bits), (swizzle, fields(code)));
        }
        assert_eq!(read(fields(2) | 5 << 49).map(|d| d.base_offset), Ok(5));
        for (bits, why) in [
            (fields(3), "names swizzle 3"),
            (fields(1), "pieces of 32"),
            (fields(2) & !(7 << 46), "must hold 1"),
            (fields(2) | 1 << 52, "as an address"),
            (fields(2) | 1 << 14, "no field uses"),
        ] {
            let problem = read(bits).expect_err("a defect");
            assert!(problem.contains(why), "{problem}");
        }
    }
}
