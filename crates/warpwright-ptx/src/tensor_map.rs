//! Tensor maps as data: what `cp.async.bulk.tensor` is told about a tensor in global memory.
//!
//! A [`TensorMap`] says where a tensor of up to five dimensions lies, which elements of it one copy moves (a box, or
//! pixels of an image in im2col mode) and how they are laid out in shared memory. [`TensorMap::check`] holds it
//! against the rules of `cuTensorMapEncodeTiled` and `cuTensorMapEncodeIm2col`.
//!
//! The 128 bytes that a kernel gets are opaque and differ from one driver to the next. [`TensorMap::encode`] is the
//! encoding of the emulator; a CUDA backend asks the driver for its own.

mod mode;

use std::fmt;

use crate::DType;

pub use mode::{Im2col, TensorMode};

/// Bytes of an encoded tensor map.
pub const TENSOR_MAP_BYTES: usize = 128;
/// Alignment of an encoded tensor map.
pub const TENSOR_MAP_ALIGN: u64 = 64;
/// Dimensions that a map may have.
const MAX_RANK: usize = 5;
const MAGIC: [u8; 8] = *b"WWTMAP\0\x01";

/// Type of the elements of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names of the driver's types")]
pub enum TensorElement {
    U8,
    U16,
    U32,
    S32,
    U64,
    S64,
    F16,
    F32,
    F64,
    BF16,
    /// Subnormals become zero.
    F32Ftz,
    /// 19 significant bits in 32.
    TF32,
    /// 19 significant bits in 32, subnormals become zero.
    TF32Ftz,
}

/// The element of the same type; a map does not tell types of 8 bits apart, nor signs of 16-bit integers.
impl From<DType> for TensorElement {
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::F64 => Self::F64,
            DType::F32 => Self::F32,
            DType::F16 => Self::F16,
            DType::BF16 => Self::BF16,
            DType::U8 | DType::I8 | DType::F8E4M3 | DType::F8E5M2 => Self::U8,
            DType::U16 | DType::I16 => Self::U16,
            DType::U32 => Self::U32,
            DType::I32 => Self::S32,
            DType::U64 => Self::U64,
            DType::I64 => Self::S64,
        }
    }
}

impl TensorElement {
    /// All types, in the order of the driver's numbers.
    pub const ALL: [Self; 13] = [
        Self::U8,
        Self::U16,
        Self::U32,
        Self::S32,
        Self::U64,
        Self::S64,
        Self::F16,
        Self::F32,
        Self::F64,
        Self::BF16,
        Self::F32Ftz,
        Self::TF32,
        Self::TF32Ftz,
    ];

    /// Size of an element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::U8 => 1,
            Self::U16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::S32 | Self::F32 | Self::F32Ftz | Self::TF32 | Self::TF32Ftz => 4,
            Self::U64 | Self::S64 | Self::F64 => 8,
        }
    }

    /// Whether NaN can fill what lies outside.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            Self::F16 | Self::F32 | Self::F64 | Self::BF16 | Self::F32Ftz | Self::TF32 | Self::TF32Ftz
        )
    }

    /// The number that the driver has for it (`CUtensorMapDataType`).
    pub const fn driver_code(self) -> u32 {
        self as u32
    }

    /// The type that `tensormap.replace.elemtype` has this number for.
    pub const fn from_replace_code(code: u32) -> Option<Self> {
        Some(match code {
            0 => Self::U8,
            1 => Self::U16,
            2 => Self::U32,
            3 => Self::S32,
            4 => Self::U64,
            5 => Self::S64,
            6 => Self::F16,
            7 => Self::F32,
            8 => Self::F32Ftz,
            9 => Self::F64,
            10 => Self::BF16,
            11 => Self::TF32,
            12 => Self::TF32Ftz,
            _ => return None,
        })
    }

    /// The name, as [`from_name`](Self::from_name) reads it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::S32 => "s32",
            Self::U64 => "u64",
            Self::S64 => "s64",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::BF16 => "bf16",
            Self::F32Ftz => "f32ftz",
            Self::TF32 => "tf32",
            Self::TF32Ftz => "tf32ftz",
        }
    }

    /// The type with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|e| e.name() == name)
    }
}

/// How 16-byte pieces of a box are permuted in shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TensorSwizzle {
    /// As they come.
    #[default]
    None,
    /// Within 32 bytes.
    B32,
    /// Within 64 bytes.
    B64,
    /// Within 128 bytes.
    B128,
}

impl TensorSwizzle {
    /// All of them, in the order of the driver's numbers.
    pub const ALL: [Self; 4] = [Self::None, Self::B32, Self::B64, Self::B128];

    /// Bytes within which pieces change places; 16 where nothing does.
    pub const fn span(self) -> u64 {
        match self {
            Self::None => 16,
            Self::B32 => 32,
            Self::B64 => 64,
            Self::B128 => 128,
        }
    }

    /// Where the byte that would be at a shared-memory address goes. Its own inverse.
    pub const fn apply(self, address: u64) -> u64 {
        address ^ ((address >> 7 & (self.span() / 16 - 1)) << 4)
    }

    /// Bytes after which the pattern repeats, which is the alignment that tiles should have.
    pub const fn pattern(self) -> u64 {
        match self {
            Self::None => 128,
            _ => self.span() * 8,
        }
    }

    /// The name, as [`from_name`](Self::from_name) reads it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::B32 => "32B",
            Self::B64 => "64B",
            Self::B128 => "128B",
        }
    }

    /// The swizzle with this name; the `B` may be left out.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name || s.name().trim_end_matches('B') == name)
    }
}

/// Layouts in which channels lie in pieces (`NC/8HWC8`, `NC/16HWC16`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TensorInterleave {
    /// Dense.
    #[default]
    None,
    /// Pieces of 16 bytes.
    B16,
    /// Pieces of 32 bytes.
    B32,
}

/// Values that a load puts where the box reaches past the tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TensorFill {
    /// Zeros.
    #[default]
    Zero,
    /// A NaN.
    Nan,
}

/// A tensor in global memory and the part of it that a copy moves. Lists go from the innermost dimension outwards.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorMap {
    /// Device address of the first element.
    pub base: u64,
    /// Element type.
    pub element: TensorElement,
    /// Elements along each dimension.
    pub dims: Vec<u64>,
    /// Bytes from one index to the next, for all dimensions but the innermost.
    pub strides: Vec<u64>,
    /// Elements that a copy moves.
    pub mode: TensorMode,
    /// Every how many elements one is taken; the innermost counts only with an interleaved layout.
    pub element_strides: Vec<u32>,
    /// Layout of channels.
    pub interleave: TensorInterleave,
    /// Layout in shared memory.
    pub swizzle: TensorSwizzle,
    /// Values that loads put outside the tensor.
    pub fill: TensorFill,
}

/// Why a tensor map is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorMapError {
    /// None, or more than five dimensions.
    #[error("a tensor map has 1 to 5 dimensions, got {got}")]
    Rank {
        /// Dimensions.
        got: usize,
    },
    /// A list has the wrong length.
    #[error("{list} needs {expected} entries for a tensor of {rank} dimensions, got {got}")]
    Length {
        /// Which list.
        list: &'static str,
        /// Dimensions.
        rank: usize,
        /// Entries it needs.
        expected: usize,
        /// Entries it has.
        got: usize,
    },
    /// The tensor does not start where it must.
    #[error("the tensor at {base:#x} is not aligned to {expected} bytes")]
    Base {
        /// Address.
        base: u64,
        /// Alignment that is needed.
        expected: u64,
    },
    /// An extent is zero or too large.
    #[error("dimension {dimension} has {got} elements; it needs 1 to 2^32")]
    Dimension {
        /// From the innermost.
        dimension: usize,
        /// Elements.
        got: u64,
    },
    /// A stride is not possible.
    #[error("stride {index} is {got} bytes; it must be a multiple of {multiple} below 2^40")]
    Stride {
        /// From the innermost.
        index: usize,
        /// Bytes.
        got: u64,
        /// The number that it must be a multiple of.
        multiple: u64,
    },
    /// An extent of the box is zero or too large.
    #[error("the box has {got} elements along dimension {dimension}; it needs 1 to 256")]
    Box {
        /// From the innermost.
        dimension: usize,
        /// Elements.
        got: u32,
    },
    /// The innermost extent of the box is no multiple of 16 bytes.
    #[error("the box is {got} bytes wide, which is no multiple of 16")]
    BoxBytes {
        /// Bytes.
        got: u64,
    },
    /// The box is wider than the swizzle.
    #[error("the box is {got} bytes wide; a {swizzle} swizzle takes at most {limit}")]
    BoxSwizzle {
        /// Bytes.
        got: u64,
        /// The swizzle's.
        limit: u64,
        /// Its name.
        swizzle: &'static str,
    },
    /// An element stride is zero or too large.
    #[error("element stride {dimension} is {got}; it needs 1 to 8")]
    ElementStride {
        /// From the innermost.
        dimension: usize,
        /// The stride.
        got: u32,
    },
    /// The layout does not go with the rest of the map.
    #[error("an interleaved layout needs {needs}")]
    Interleave {
        /// The part that is missing.
        needs: &'static str,
    },
    /// A tensor without pixels in im2col mode.
    #[error("the im2col mode has 3 to 5 dimensions, got {got}")]
    Im2colRank {
        /// Dimensions.
        got: usize,
    },
    /// A corner of the bounding box does not fit into its field.
    #[error("{list} is {got} along spatial dimension {axis}; it needs {least} to {largest}")]
    Corner {
        /// Which corner.
        list: &'static str,
        /// From W.
        axis: usize,
        /// The corner.
        got: i32,
        /// The least that it may be for tensors of this rank.
        least: i32,
        /// The largest.
        largest: i32,
    },
    /// The bounding box has no pixels.
    #[error("the bounding box goes from {first} to {last} along spatial dimension {axis}, which is empty")]
    EmptyBox {
        /// From W.
        axis: usize,
        /// Its first pixel.
        first: i64,
        /// Its last one.
        last: i64,
    },
    /// No channels, or too many.
    #[error("a copy takes {got} channels of a pixel; it needs 1 to 256")]
    Channels {
        /// Channels.
        got: u32,
    },
    /// No pixels, or too many.
    #[error("a copy takes {got} pixels; it needs 1 to 1024")]
    Pixels {
        /// Pixels.
        got: u32,
    },
    /// NaN for integers.
    #[error("only floating-point tensors can be filled with NaN, not {element}")]
    Fill {
        /// The type.
        element: &'static str,
    },
}

impl TensorMap {
    /// A dense map in tiled mode: rows follow each other without gaps, every element is taken, and what lies outside is zero.
    pub fn dense(
        base: u64,
        element: TensorElement,
        dims: &[u64],
        box_dims: &[u32],
        swizzle: TensorSwizzle,
    ) -> Self {
        let mut strides = Vec::new();
        let mut bytes = element.bytes();
        for extent in dims.iter().take(dims.len().saturating_sub(1)) {
            bytes = bytes.saturating_mul(*extent);
            strides.push(bytes);
        }
        Self {
            base,
            element,
            dims: dims.to_vec(),
            strides,
            mode: TensorMode::Tiled { box_dims: box_dims.to_vec() },
            element_strides: vec![1; dims.len()],
            interleave: TensorInterleave::None,
            swizzle,
            fill: TensorFill::Zero,
        }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Elements that a copy moves along each dimension; in im2col mode the channels and the pixels.
    pub fn extents(&self) -> Vec<u64> {
        let box_dims = match &self.mode {
            TensorMode::Tiled { box_dims } => box_dims,
            TensorMode::Im2col(mode) => return vec![u64::from(mode.channels), u64::from(mode.pixels)],
        };
        let step = |d: usize| match (d, self.interleave) {
            (0, TensorInterleave::None) => 1,
            _ => u64::from(self.element_strides.get(d).copied().unwrap_or(1).max(1)),
        };
        box_dims.iter().enumerate().map(|(d, n)| u64::from(*n).div_ceil(step(d))).collect()
    }

    /// Bytes that a copy moves, which is also what a load reports to its mbarrier.
    pub fn box_bytes(&self) -> u64 {
        self.extents().iter().product::<u64>() * self.element.bytes()
    }

    /// Holds the map against the rules of the driver.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check(&self) -> Result<(), TensorMapError> {
        let rank = self.rank();
        if !(1..=MAX_RANK).contains(&rank) {
            return Err(TensorMapError::Rank { got: rank });
        }
        let lengths = [
            ("the list of strides", self.strides.len(), rank - 1),
            ("the list of element strides", self.element_strides.len(), rank),
        ];
        if let Some((list, got, expected)) = lengths.into_iter().find(|(_, got, want)| got != want) {
            return Err(TensorMapError::Length { list, rank, expected, got });
        }
        let grain = if self.interleave == TensorInterleave::B32 { 32 } else { 16 };
        if !self.base.is_multiple_of(grain) {
            return Err(TensorMapError::Base { base: self.base, expected: grain });
        }
        for (dimension, got) in self.dims.iter().copied().enumerate() {
            if got == 0 || got > 1 << 32 {
                return Err(TensorMapError::Dimension { dimension, got });
            }
        }
        for (index, got) in self.strides.iter().copied().enumerate() {
            if !got.is_multiple_of(grain) || got >= 1 << 40 {
                return Err(TensorMapError::Stride { index, got, multiple: grain });
            }
        }
        match &self.mode {
            TensorMode::Tiled { box_dims } => self.check_box(box_dims)?,
            TensorMode::Im2col(mode) => mode.check(self)?,
        }
        for (dimension, got) in self.element_strides.iter().copied().enumerate() {
            if got == 0 || got > 8 {
                return Err(TensorMapError::ElementStride { dimension, got });
            }
        }
        if self.interleave == TensorInterleave::None {
            self.check_width()?;
        } else {
            self.check_interleave()?;
        }
        if self.fill == TensorFill::Nan && !self.element.is_float() {
            return Err(TensorMapError::Fill { element: self.element.name() });
        }
        Ok(())
    }

    fn check_box(&self, box_dims: &[u32]) -> Result<(), TensorMapError> {
        let (rank, got) = (self.rank(), box_dims.len());
        if got != rank {
            return Err(TensorMapError::Length { list: "the box", rank, expected: rank, got });
        }
        match box_dims.iter().position(|n| *n == 0 || *n > 256) {
            Some(dimension) => Err(TensorMapError::Box { dimension, got: box_dims[dimension] }),
            None => Ok(()),
        }
    }

    fn check_width(&self) -> Result<(), TensorMapError> {
        let width = self.element.bytes() * u64::from(self.mode.width());
        if !width.is_multiple_of(16) {
            return Err(TensorMapError::BoxBytes { got: width });
        }
        let limit = self.swizzle.span();
        if self.swizzle != TensorSwizzle::None && width > limit {
            return Err(TensorMapError::BoxSwizzle { got: width, limit, swizzle: self.swizzle.name() });
        }
        Ok(())
    }

    fn check_interleave(&self) -> Result<(), TensorMapError> {
        if matches!(self.mode, TensorMode::Im2col(_)) {
            return Err(TensorMapError::Interleave { needs: "the tiled mode" });
        }
        if self.rank() < 3 {
            return Err(TensorMapError::Interleave { needs: "at least 3 dimensions" });
        }
        if self.interleave == TensorInterleave::B32 && self.swizzle != TensorSwizzle::B32 {
            return Err(TensorMapError::Interleave { needs: "a 32B swizzle for pieces of 32 bytes" });
        }
        Ok(())
    }

    /// The encoding of the emulator. Nothing is checked: an impossible map is found when it is used, as on a device.
    pub fn encode(&self) -> [u8; TENSOR_MAP_BYTES] {
        let mut out = [0; TENSOR_MAP_BYTES];
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(slot) = out.get_mut(at..at + bytes.len()) {
                slot.copy_from_slice(bytes);
            }
        };
        put(0, &MAGIC);
        put(8, &self.base.to_le_bytes());
        let rank = self.rank().min(MAX_RANK);
        put(
            16,
            &[self.element as u8, rank as u8, self.interleave as u8, self.swizzle as u8, self.fill as u8],
        );
        for i in 0..rank {
            put(24 + 4 * i, &(self.dims[i].wrapping_sub(1) as u32).to_le_bytes());
            put(90 + i, &[self.element_strides.get(i).copied().unwrap_or(0) as u8]);
        }
        self.mode.encode(&mut put);
        for (i, stride) in self.strides.iter().take(MAX_RANK - 1).enumerate() {
            put(48 + 8 * i, &stride.to_le_bytes());
        }
        let sum = checksum(&out);
        out[124..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads an encoded map; `None` if the bytes are not one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; TENSOR_MAP_BYTES] = bytes.try_into().ok()?;
        if bytes[..8] != MAGIC || bytes[124..] != checksum(bytes).to_le_bytes() {
            return None;
        }
        let long = |at: usize| bytes[at..at + 8].iter().rev().fold(0u64, |v, b| v << 8 | u64::from(*b));
        let word = |at: usize| bytes[at..at + 4].iter().rev().fold(0u32, |v, b| v << 8 | u32::from(*b));
        let rank = usize::from(bytes[17]);
        if rank > MAX_RANK {
            return None;
        }
        Some(Self {
            base: long(8),
            element: TensorElement::ALL.get(usize::from(bytes[16])).copied()?,
            dims: (0..rank).map(|i| u64::from(word(24 + 4 * i)) + 1).collect(),
            strides: (0..rank.saturating_sub(1)).map(|i| long(48 + 8 * i)).collect(),
            mode: TensorMode::decode(bytes[21], word, rank)?,
            element_strides: (0..rank).map(|i| u32::from(bytes[90 + i])).collect(),
            interleave: match bytes[18] {
                0 => TensorInterleave::None,
                1 => TensorInterleave::B16,
                2 => TensorInterleave::B32,
                _ => return None,
            },
            swizzle: TensorSwizzle::ALL.get(usize::from(bytes[19])).copied()?,
            fill: match bytes[20] {
                0 => TensorFill::Zero,
                1 => TensorFill::Nan,
                _ => return None,
            },
        })
    }
}

/// FNV-1a over everything in front of the checksum.
fn checksum(bytes: &[u8; TENSOR_MAP_BYTES]) -> u32 {
    bytes[..124].iter().fold(0x811C_9DC5, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193))
}

impl fmt::Display for TensorElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> TensorMap {
        TensorMap::dense(0x1000, TensorElement::BF16, &[128, 40, 3], &[64, 8, 2], TensorSwizzle::B128)
    }

    #[test]
    fn maps_come_back_from_their_encoding() {
        let mut m = map();
        assert_eq!(m.strides, [256, 256 * 40]);
        m.element_strides = vec![1, 2, 8];
        m.fill = TensorFill::Nan;
        m.dims[2] = 1 << 32;
        let bytes = m.encode();
        assert_eq!(TensorMap::decode(&bytes), Some(m));
        for at in [0, 9, 40, 127] {
            let mut broken = bytes;
            broken[at] ^= 1;
            assert_eq!(TensorMap::decode(&broken), None, "byte {at}");
        }
        assert_eq!(TensorMap::decode(&bytes[..64]), None);
    }

    #[test]
    fn boxes_know_their_size() {
        let mut m = map();
        assert_eq!(m.box_bytes(), 64 * 8 * 2 * 2);
        m.element_strides = vec![4, 3, 2];
        assert_eq!(m.extents(), [64, 3, 1]);
        assert_eq!(m.box_bytes(), 64 * 3 * 2);
    }

    #[test]
    fn every_rule_is_checked() {
        let broken = |change: fn(&mut TensorMap)| {
            let mut m = map();
            change(&mut m);
            m.check().expect_err("a broken map")
        };
        assert_eq!(map().check(), Ok(()));
        assert_eq!(broken(|m| m.dims = vec![]), TensorMapError::Rank { got: 0 });
        assert!(matches!(broken(|m| m.dims = vec![1; 6]), TensorMapError::Rank { got: 6 }));
        assert!(matches!(
            broken(|m| m.strides = vec![16]),
            TensorMapError::Length { expected: 2, got: 1, .. }
        ));
        assert_eq!(broken(|m| m.base = 8), TensorMapError::Base { base: 8, expected: 16 });
        assert_eq!(broken(|m| m.dims[1] = 0), TensorMapError::Dimension { dimension: 1, got: 0 });
        assert!(matches!(broken(|m| m.dims[0] = (1 << 32) + 1), TensorMapError::Dimension { .. }));
        assert!(matches!(broken(|m| m.strides[1] = 24), TensorMapError::Stride { index: 1, .. }));
        assert!(matches!(broken(|m| m.strides[0] = 1 << 40), TensorMapError::Stride { index: 0, .. }));
        let boxed = |box_dims: &[u32]| {
            let mut m = map();
            m.mode = TensorMode::Tiled { box_dims: box_dims.to_vec() };
            m.check().expect_err("a broken box")
        };
        assert_eq!(boxed(&[64, 257, 2]), TensorMapError::Box { dimension: 1, got: 257 });
        assert_eq!(boxed(&[0, 8, 2]), TensorMapError::Box { dimension: 0, got: 0 });
        assert!(matches!(boxed(&[64]), TensorMapError::Length { list: "the box", got: 1, .. }));
        assert_eq!(boxed(&[12, 8, 2]), TensorMapError::BoxBytes { got: 24 });
        assert!(matches!(boxed(&[128, 8, 2]), TensorMapError::BoxSwizzle { got: 256, limit: 128, .. }));
        assert!(matches!(broken(|m| m.element_strides[2] = 9), TensorMapError::ElementStride { .. }));
        assert!(matches!(broken(|m| m.element_strides[0] = 0), TensorMapError::ElementStride { .. }));
        assert!(matches!(
            broken(|m| m.interleave = TensorInterleave::B32),
            TensorMapError::Interleave { .. }
        ));
        let integer = |m: &mut TensorMap| {
            m.element = TensorElement::U16;
            m.fill = TensorFill::Nan;
        };
        assert_eq!(broken(integer), TensorMapError::Fill { element: "u16" });
    }

    /// Rows of exactly the span: the tables of the programming guide give the place of 16-byte piece x of row y.
    #[test]
    fn swizzles_permute_pieces_as_the_guide_says() {
        for y in 0..16u64 {
            for x in 0..8u64 {
                let at = |row: u64, piece: u64, span: u64| row * span + 16 * piece;
                assert_eq!(TensorSwizzle::B128.apply(at(y, x, 128)), at(y, x ^ (y % 8), 128));
                if x < 4 {
                    assert_eq!(TensorSwizzle::B64.apply(at(y, x, 64)), at(y, x ^ (y / 2 % 4), 64));
                }
                if x < 2 {
                    assert_eq!(TensorSwizzle::B32.apply(at(y, x, 32)), at(y, x ^ (y / 4 % 2), 32));
                }
            }
        }
        assert_eq!(TensorSwizzle::None.apply(0x1234), 0x1234);
    }

    #[test]
    fn names_are_read_back() {
        for e in TensorElement::ALL {
            assert_eq!(TensorElement::from_name(e.name()), Some(e));
        }
        assert_eq!(TensorElement::from_replace_code(10), Some(TensorElement::BF16));
        assert_eq!(TensorElement::from_replace_code(9), Some(TensorElement::F64));
        assert_eq!(TensorSwizzle::from_name("64"), Some(TensorSwizzle::B64));
        assert_eq!(TensorSwizzle::from_name("128B"), Some(TensorSwizzle::B128));
        assert_eq!(TensorSwizzle::from_name("256B"), None);
    }
}
