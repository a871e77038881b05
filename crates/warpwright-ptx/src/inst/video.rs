//! Video arithmetic on the two halves or four bytes of words.

use crate::types::{ScalarType, spelled};

spelled! {
    /// Operators of video arithmetic; the number of lanes follows the name.
    pub enum VideoOp {
        Add = "vadd", Sub = "vsub", Average = "vavrg", AbsDiff = "vabsdiff", Min = "vmin", Max = "vmax",
    }
}

/// The form of a video instruction beside its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VideoForm {
    /// The operator.
    pub op: VideoOp,
    /// Four bytes; else two halves.
    pub bytes: bool,
    /// Type of the results, of `a` and of `b`: u32 or s32.
    pub types: [ScalarType; 3],
    /// `.sat`: results are clamped to a lane of their type.
    pub saturate: bool,
    /// `.add`: the results of the lanes of the mask are added to `c`; else they replace its lanes.
    pub accumulate: bool,
    /// The lanes of the mask, one bit each.
    pub mask: u8,
    /// Where the lanes of `a` and of `b` come from, the lowest first: lanes of `a`, then of `b`. Halves have two.
    pub select: [[u8; 4]; 2],
}

impl VideoForm {
    /// Every lane, of `a` and `b` in their order.
    pub const fn plain(op: VideoOp, bytes: bool, types: [ScalarType; 3]) -> Self {
        let form =
            Self { op, bytes, types, saturate: false, accumulate: false, mask: 0, select: [[0; 4]; 2] };
        Self { mask: (1 << form.lanes()) - 1, select: Self::in_order(bytes), ..form }
    }

    /// Lanes of a word.
    pub const fn lanes(&self) -> usize {
        if self.bytes { 4 } else { 2 }
    }

    /// The selection of a form without any.
    pub const fn in_order(bytes: bool) -> [[u8; 4]; 2] {
        if bytes { [[0, 1, 2, 3], [4, 5, 6, 7]] } else { [[0, 1, 0, 0], [2, 3, 0, 0]] }
    }
}
