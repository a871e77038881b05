//! Tiles of 32-bit elements that copies brought across the common dimension, turned in shared memory: `wgmma` reads them along it alone.

use crate::context::K;
use crate::error::IssueKind;
use crate::lanes::Lanes;
use crate::reg::{F32, U32};

use super::mma::TF32_IGNORED;
use super::shared::{SharedTile, TileLayout};
use super::wgmma::{PANEL_BYTES, PanelTile};

/// Elements of a piece of 16 bytes, and the rows of a panel whose pieces a lane turns together.
const PIECE: u32 = 4;
/// Pieces of a row of a panel.
const PIECES: u32 = 8;
/// Bytes of a panel that is as high as it is wide.
const PANEL: u32 = PIECES * PIECE * PANEL_BYTES;

/// A lane's four rows of pieces of a panel, before they are turned and behind.
struct Corner<'k> {
    /// The piece of a row before, the rows behind.
    across: U32<'k>,
    down: U32<'k>,
}

impl<'k> Corner<'k> {
    /// That of a lane in one half of a panel, whose places before are its places behind.
    ///
    /// Eight neighbouring lanes read pieces whose numbers in their rows differ as they are placed, and write such: their bits 0 and 1 are those of
    /// the piece before, bits 2 and 1 those of the piece behind.
    fn new(k: K<'k>, half: u32) -> Self {
        let lane = k.lane_idx();
        let across = (lane & 3) + ((lane >> 3 & 1) << 2);
        let down = (lane >> 2 & 1) + ((lane & 2) ^ (half << 1)) + ((lane >> 4) << 2);
        Self { across, down }
    }

    fn read(&self, panel: SharedTile<'k>) -> Vec<Lanes<'k, f32>> {
        let from = panel.point(self.down * PIECE, self.across * PIECE);
        (0..PIECE).map(|row| from.at(row, 0).load(PIECE)).collect()
    }

    fn write(&self, panel: SharedTile<'k>, rows: &[Lanes<'k, f32>]) {
        let to = panel.point(self.across * PIECE, self.down * PIECE);
        for column in 0..PIECE {
            let turned: Vec<F32<'k>> = rows.iter().map(|row| row[column as usize]).collect();
            to.at(column, 0).store(Lanes::from(turned));
        }
    }
}

/// A number as the sum of one of `tf32` and another, and this times `factor`.
fn split(x: F32<'_>, factor: f64) -> (F32<'_>, F32<'_>) {
    let high = F32::from_bits((x.to_bits() + TF32_IGNORED.div_ceil(2)) & !TF32_IGNORED);
    (high, (x - high) * factor)
}

impl PanelTile {
    /// Turns the tile at `at`, which copies brought as [`Major::Mn`](crate::Major::Mn) of this shape, in place: the share of warp `warp` of
    /// `warps`, whole warps. Elements have 32 bits, and the tile is as deep as a panel is wide.
    /// [`K::fence_shared_copies`](crate::K::fence_shared_copies) and a barrier follow before it is multiplied as [`Major::K`](crate::Major::K).
    #[track_caller]
    pub fn turn<'k>(self, at: U32<'k>, share: (U32<'k>, u32)) {
        self.turn_to(at, share, 2, |corner, offset, rows| corner.write(self.turned_panel(at, offset), &rows));
    }

    /// The same, and splits elements: to the tile at `at`, rounded to `tf32`, and what is left of them times `factor` to the tile at `low`.
    #[track_caller]
    pub fn turn_split<'k>(self, at: U32<'k>, (low, factor): (U32<'k>, f64), share: (U32<'k>, u32)) {
        // Both halves, split, are more than the registers of a thread that copies.
        self.turn_to(at, share, 1, |corner, offset, rows| {
            let (mut highs, mut lows) = (Vec::new(), Vec::new());
            for row in &rows {
                let (high, low): (Vec<_>, Vec<_>) = row.iter().map(|x| split(x, factor)).unzip();
                highs.push(Lanes::from(high));
                lows.push(Lanes::from(low));
            }
            corner.write(self.turned_panel(at, offset), &highs);
            corner.write(self.turned_panel(low, offset), &lows);
        });
    }

    /// The panel `offset` behind the first of the tile at `at`.
    fn turned_panel<'k>(self, at: U32<'k>, offset: U32<'k>) -> SharedTile<'k> {
        SharedTile::at_address(TileLayout::new(self.dtype, self.width(), self.width()), at + offset)
    }

    /// Reads the panels of a warp, and has `write` store the four rows of each corner of the panel so far behind the first: of so
    /// many halves after they have been read together.
    #[track_caller]
    fn turn_to<'k>(
        self,
        at: U32<'k>,
        (warp, warps): (U32<'k>, u32),
        together: usize,
        write: impl Fn(&Corner<'k>, U32<'k>, Vec<Lanes<'k, f32>>),
    ) {
        let k = at.k();
        k.on_behalf(|| {
            if self.dtype.bytes() != 4 || self.depth != self.width() || !self.outer.is_multiple_of(self.depth)
            {
                let (left, right) = (self.depth as usize, self.width() as usize);
                k.issue(IssueKind::Shape { what: "a tile that is turned", left, right });
            }
            let corners: Vec<_> = (0..2).map(|half| Corner::new(k, half)).collect();
            k.for_each(k.range(warp, self.bytes() / PANEL, warps), |panel| {
                let offset = panel * PANEL;
                let from = self.turned_panel(at, offset);
                for corners in corners.chunks(together) {
                    let rows: Vec<_> = corners.iter().map(|corner| corner.read(from)).collect();
                    // What is written was read by other lanes.
                    k.warp_barrier();
                    for (corner, rows) in corners.iter().zip(rows) {
                        write(corner, offset, rows);
                    }
                }
            });
        });
    }
}
