//! How a copy selects elements: a box of the tensor, or the pixels that a filter tap reads.

use super::{MAX_RANK, TensorMap, TensorMapError};

/// How the copies of a map select elements. A copy instruction names the mode of its map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TensorMode {
    /// A box of the tensor.
    Tiled {
        /// Elements of the box along each dimension, innermost first.
        box_dims: Vec<u32>,
    },
    /// Channels of a run of pixels.
    Im2col(Im2col),
}

/// The pixels of an image and the channels of each that a copy in im2col mode takes. Tensors have the dimensions C, W, N; C, W, H, N or
/// C, W, H, D, N, innermost first.
///
/// The bounding box of an image holds the pixels with `lower[i] <= x[i] <= extent[i] - 1 + upper[i]` along its spatial dimensions. A
/// copy begins at a pixel of the box and goes through it by the element strides, W fastest, then H and D, then on to the next
/// image. Offsets of the instruction move what is read and leave the walk as it is.
///
/// Source: CUDA Driver API, cuTensorMapEncodeIm2col; PTX ISA, "Im2col mode".
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Im2col {
    /// First pixel of the bounding box, counted from the first one of the image: W, then H, then D. A convolution has the negative padding
    /// (`pixelBoxLowerCorner`).
    pub lower: Vec<i32>,
    /// Last pixel of the bounding box, counted from the last one of the image, in the same order: 0 takes the image to its end
    /// (`pixelBoxUpperCorner`).
    pub upper: Vec<i32>,
    /// Channels of each pixel, at most 256 (`channelsPerPixel`).
    pub channels: u32,
    /// Pixels of a copy, at most 1024 (`pixelsPerColumn`).
    pub pixels: u32,
}

impl Im2col {
    /// Most channels of a copy.
    pub const MAX_CHANNELS: u32 = 256;
    /// Most pixels of a copy.
    pub const MAX_PIXELS: u32 = 1024;

    /// The least and the largest number that a corner may have in a tensor of `rank` dimensions; `None` if it has no pixels.
    pub const fn corner_range(rank: usize) -> Option<(i32, i32)> {
        match rank {
            3 => Some((-(1 << 15), (1 << 15) - 1)),
            4 => Some((-(1 << 7), (1 << 7) - 1)),
            5 => Some((-(1 << 4), (1 << 4) - 1)),
            _ => None,
        }
    }

    /// The largest offset that an instruction may have in a tensor of `rank` dimensions; `None` if it has no pixels.
    pub const fn max_offset(rank: usize) -> Option<u32> {
        match rank {
            3 => Some((1 << 16) - 1),
            4 => Some((1 << 8) - 1),
            5 => Some((1 << 5) - 1),
            _ => None,
        }
    }

    /// First and last pixel of the bounding box along spatial dimension `axis` (0 is W) of a tensor with `extent` pixels there.
    pub fn bounds(&self, axis: usize, extent: u64) -> (i64, i64) {
        let corner = |list: &[i32]| i64::from(list.get(axis).copied().unwrap_or(0));
        let last = i64::try_from(extent).unwrap_or(i64::MAX).saturating_sub(1);
        (corner(&self.lower), last.saturating_add(corner(&self.upper)))
    }

    /// Holds the mode against the rules for `map`, whose lists have the lengths of its rank.
    pub(super) fn check(&self, map: &TensorMap) -> Result<(), TensorMapError> {
        let rank = map.rank();
        let Some((least, largest)) = Self::corner_range(rank) else {
            return Err(TensorMapError::Im2colRank { got: rank });
        };
        let pixels = rank - 2;
        for (list, corner) in [("the lower corner", &self.lower), ("the upper corner", &self.upper)] {
            if corner.len() != pixels {
                return Err(TensorMapError::Length { list, rank, expected: pixels, got: corner.len() });
            }
            if let Some(axis) = corner.iter().position(|c| !(least..=largest).contains(c)) {
                return Err(TensorMapError::Corner { list, axis, got: corner[axis], least, largest });
            }
        }
        if self.channels == 0 || self.channels > Self::MAX_CHANNELS {
            return Err(TensorMapError::Channels { got: self.channels });
        }
        if self.pixels == 0 || self.pixels > Self::MAX_PIXELS {
            return Err(TensorMapError::Pixels { got: self.pixels });
        }
        for (axis, extent) in map.dims[1..=pixels].iter().enumerate() {
            let (first, last) = self.bounds(axis, *extent);
            if first > last {
                return Err(TensorMapError::EmptyBox { axis, first, last });
            }
        }
        Ok(())
    }
}

impl TensorMode {
    const TILED: u8 = 0;
    const IM2COL: u8 = 1;

    /// Offsets in the encoding of the emulator.
    const MODE_AT: usize = 21;
    const BOX_AT: usize = 80;
    const PIXELS_AT: usize = 84;
    const LOWER_AT: usize = 96;
    const UPPER_AT: usize = 108;

    /// Numbers along the innermost dimension of what a copy moves.
    pub(super) fn width(&self) -> u32 {
        match self {
            Self::Tiled { box_dims } => box_dims.first().copied().unwrap_or(0),
            Self::Im2col(im2col) => im2col.channels,
        }
    }

    /// Its part of the encoding of the emulator.
    pub(super) fn encode(&self, put: &mut impl FnMut(usize, &[u8])) {
        match self {
            Self::Tiled { box_dims } => {
                put(Self::MODE_AT, &[Self::TILED]);
                for (i, extent) in box_dims.iter().take(MAX_RANK).enumerate() {
                    put(Self::BOX_AT + 2 * i, &(*extent as u16).to_le_bytes());
                }
            }
            Self::Im2col(Im2col { lower, upper, channels, pixels }) => {
                put(Self::MODE_AT, &[Self::IM2COL]);
                put(Self::BOX_AT, &channels.to_le_bytes());
                put(Self::PIXELS_AT, &pixels.to_le_bytes());
                for (at, corner) in [(Self::LOWER_AT, lower), (Self::UPPER_AT, upper)] {
                    for (i, c) in corner.iter().take(MAX_RANK - 2).enumerate() {
                        put(at + 4 * i, &c.to_le_bytes());
                    }
                }
            }
        }
    }

    /// Reads [`encode`](Self::encode)'s part for a tensor of `rank` dimensions.
    pub(super) fn decode(mode: u8, word: impl Fn(usize) -> u32, rank: usize) -> Option<Self> {
        let corner = |at: usize| (0..rank.saturating_sub(2)).map(|i| word(at + 4 * i) as i32).collect();
        match mode {
            Self::TILED => {
                let box_dims = (0..rank).map(|i| word(Self::BOX_AT + 2 * i) & 0xFFFF).collect();
                Some(Self::Tiled { box_dims })
            }
            Self::IM2COL => Some(Self::Im2col(Im2col {
                lower: corner(Self::LOWER_AT),
                upper: corner(Self::UPPER_AT),
                channels: word(Self::BOX_AT),
                pixels: word(Self::PIXELS_AT),
            })),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor_map::{TensorElement, TensorInterleave, TensorSwizzle};

    fn map() -> TensorMap {
        let mut map =
            TensorMap::dense(0x1000, TensorElement::BF16, &[128, 14, 10, 3], &[], TensorSwizzle::B128);
        map.mode =
            TensorMode::Im2col(Im2col { lower: vec![-3, -1], upper: vec![-2, 1], channels: 64, pixels: 100 });
        map
    }

    fn im2col(map: &mut TensorMap) -> &mut Im2col {
        match &mut map.mode {
            TensorMode::Im2col(mode) => mode,
            TensorMode::Tiled { .. } => unreachable!("the map is in im2col mode"),
        }
    }

    #[test]
    fn maps_come_back_from_their_encoding() {
        let mut m = map();
        m.element_strides = vec![1, 2, 8, 1];
        assert_eq!(TensorMap::decode(&m.encode()), Some(m.clone()));
        // Impossible numbers too: they are found where the map is used.
        *im2col(&mut m) = Im2col {
            lower: vec![i32::MIN, 70_000],
            upper: vec![i32::MAX, -70_000],
            channels: 70_000,
            pixels: 0,
        };
        assert_eq!(TensorMap::decode(&m.encode()), Some(m.clone()));
        m.mode = TensorMode::Tiled { box_dims: vec![64, 1, 2, 3] };
        assert_eq!(TensorMap::decode(&m.encode()), Some(m));
    }

    #[test]
    fn copies_have_the_same_size_whatever_the_strides_are() {
        let mut m = map();
        m.element_strides = vec![1, 3, 2, 1];
        assert_eq!(m.extents(), [64, 100]);
        assert_eq!(m.box_bytes(), 64 * 100 * 2);
        let (w, h) = (im2col(&mut m).bounds(0, 14), im2col(&mut m).bounds(1, 10));
        assert_eq!((w, h), ((-3, 11), (-1, 10)));
    }

    #[test]
    fn every_rule_is_checked() {
        let broken = |change: fn(&mut TensorMap)| {
            let mut m = map();
            change(&mut m);
            m.check().expect_err("a broken map")
        };
        assert_eq!(map().check(), Ok(()));
        let flat = |m: &mut TensorMap| {
            m.dims.truncate(2);
            m.strides.truncate(1);
            m.element_strides.truncate(2);
        };
        assert_eq!(broken(flat), TensorMapError::Im2colRank { got: 2 });
        assert!(matches!(
            broken(|m| im2col(m).upper = vec![0]),
            TensorMapError::Length { list: "the upper corner", expected: 2, got: 1, .. }
        ));
        let corner = |axis, got| TensorMapError::Corner {
            list: "the lower corner",
            axis,
            got,
            least: -128,
            largest: 127,
        };
        assert_eq!(broken(|m| im2col(m).lower[1] = -129), corner(1, -129));
        assert_eq!(broken(|m| im2col(m).lower[0] = 128), corner(0, 128));
        let long = |m: &mut TensorMap| {
            *m = TensorMap::dense(0, TensorElement::F16, &[64, 9, 9, 9, 2], &[], TensorSwizzle::B128);
            m.mode = TensorMode::Im2col(Im2col {
                lower: vec![0, 0, -17],
                upper: vec![0, 0, 15],
                channels: 64,
                pixels: 1,
            });
        };
        assert!(matches!(broken(long), TensorMapError::Corner { axis: 2, got: -17, least: -16, .. }));
        for channels in [0, 257] {
            let mut m = map();
            im2col(&mut m).channels = channels;
            assert_eq!(m.check(), Err(TensorMapError::Channels { got: channels }));
        }
        for pixels in [0, 1025] {
            let mut m = map();
            im2col(&mut m).pixels = pixels;
            assert_eq!(m.check(), Err(TensorMapError::Pixels { got: pixels }));
        }
        assert_eq!(
            broken(|m| im2col(m).upper[0] = -17),
            TensorMapError::EmptyBox { axis: 0, first: -3, last: -4 }
        );
        assert_eq!(broken(|m| im2col(m).channels = 12), TensorMapError::BoxBytes { got: 24 });
        assert!(matches!(
            broken(|m| im2col(m).channels = 128),
            TensorMapError::BoxSwizzle { got: 256, limit: 128, .. }
        ));
        assert!(matches!(
            broken(|m| m.element_strides[2] = 9),
            TensorMapError::ElementStride { dimension: 2, got: 9 }
        ));
        assert!(matches!(
            broken(|m| m.interleave = TensorInterleave::B16),
            TensorMapError::Interleave { needs: "the tiled mode" }
        ));
    }
}
