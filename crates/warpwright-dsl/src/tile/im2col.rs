//! Tiles of an image's pixels and channels, as the products of a convolution read them: tensor copies in im2col mode.
//!
//! Source: PTX ISA, "Im2col mode".

use warpwright_ptx::{Im2col, TensorMap, TensorMode};

use crate::mbarrier::{Mbarrier, TensorMapParam};
use crate::reg::U32;

use super::shared::Major;
use super::wgmma::{PANEL_BYTES, PanelTile};

/// Images of which copies in im2col mode take pixels, channels contiguous (NWC, NHWC or NDHWC). Lists go from the innermost dimension outwards.
///
/// A convolution with the padding `pad_lower` and `pad_upper`, `taps` taps, the dilation `dilation` and the stride `stride` along an axis
/// has `lower = -pad_lower`, `upper = pad_upper - (taps - 1) * dilation` and `steps = stride`; copies for the tap `t` begin at pixels
/// `q * stride - pad_lower` and have the offset `t * dilation`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Im2colImage {
    /// Channels of a pixel. Those past the last read as zero.
    pub channels: u64,
    /// How many pixels there are along W, (H, D,) and how many images N, each with the bytes from one to the next, multiples of 16.
    pub pixel_dims: Vec<(u64, u64)>,
    /// First pixel of the bounding box along W, (H, D), counted from the first of the image.
    pub lower: Vec<i32>,
    /// Last pixel of the bounding box along W, (H, D), counted from the last of the image.
    pub upper: Vec<i32>,
    /// Every how many pixels one is taken along W, (H, D), 1 to 8.
    pub steps: Vec<u32>,
}

impl PanelTile {
    /// The map of the tile's copies in im2col mode, from images of which the first begins where it is bound. With [`Major::K`] the tile
    /// has `outer` pixels of `depth` channels, with [`Major::Mn`] `depth` pixels of `outer` channels.
    pub fn im2col_map(self, image: &Im2colImage) -> TensorMap {
        let (pixels, strides): (Vec<u64>, Vec<u64>) = image.pixel_dims.iter().copied().unzip();
        let mut map = self.map((0, 0), 0, &[]);
        map.dims = [image.channels].into_iter().chain(pixels).collect();
        map.strides = strides;
        map.element_strides = [1].into_iter().chain(image.steps.iter().copied()).chain([1]).collect();
        map.mode = TensorMode::Im2col(Im2col {
            lower: image.lower.clone(),
            upper: image.upper.clone(),
            channels: self.width(),
            pixels: self.rows(),
        });
        map
    }

    /// Starts the copies that fill the tile at `to` with the channels from `channel` on of the pixels from `at` on (W, (H, D,) N), moved by
    /// `offsets` (W, (H, D)); one copy for each panel. `done` counts their bytes, which are those of the tile. For one thread.
    #[track_caller]
    pub fn fetch_im2col<'k>(
        self,
        from: TensorMapParam<'k>,
        to: U32<'k>,
        channel: U32<'k>,
        at: &[U32<'k>],
        offsets: &[U32<'k>],
        done: Mbarrier<'k>,
    ) {
        let channels = match self.major {
            Major::K => self.depth,
            Major::Mn => self.outer,
        };
        to.k().on_behalf(|| {
            let offsets = TensorMapParam::im2col_offsets(offsets);
            let (mut to, mut channel) = (to, channel);
            for panel in 0..channels / self.width() {
                if panel > 0 {
                    to = to + self.rows() * PANEL_BYTES;
                    channel = channel + self.width();
                }
                let coords: Vec<_> = [channel].into_iter().chain(at.iter().copied()).collect();
                from.load_im2col(to, &coords, &offsets, done);
            }
        });
    }
}
