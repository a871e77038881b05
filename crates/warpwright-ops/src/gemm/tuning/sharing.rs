//! How persistent blocks share the slices of all tiles of a product.
//!
//! Tiles are taken by lines, whose blocks go through the tiles of their line one behind the other, each through as many slices as the others:
//! a block may end one tile, and begin the next. Lines are alike, so that blocks of all lines read the same slices of one operand at the same
//! time: of that which the tiles of a line differ in.

use super::{Config, DeviceLimits, Shape, Target};

/// How blocks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// Whether lines of tiles lie along the rows of the result.
    pub(crate) along: bool,
    pub(crate) lines: u32,
    /// Tiles of a line.
    pub(crate) tiles: u32,
    /// Slices of a tile.
    pub(crate) steps: u32,
    /// Slices of a block.
    pub(crate) share: u32,
    /// Blocks of a line.
    pub(crate) blocks: u32,
    /// Most parts of a tile.
    pub(crate) parts: u32,
    /// Parts of all tiles.
    pub(crate) pieces: u32,
}

/// Least slices that are worth a block of their own.
const LEAST_SHARE: u64 = 8;
/// How much more than to read parts of all of both operands at other times it is to go through as many slices more.
const SIDES: u64 = 4;
/// Most tiles for each multiprocessor that are shared: more leave few idle.
const MOST_TILES: u64 = 2;

impl Sharing {
    /// The way of a product whose blocks have the fewest slices, if it can be shared; of those the one in which lines read the longer
    /// operand at the same time.
    pub(crate) fn new(target: Target, shape: Shape, config: Config) -> Option<Self> {
        let Shape { m, n, k, batch } = shape;
        let (rows, cols) = config.extent();
        let (down, across) = (m.div_ceil(rows.into()), n.div_ceil(cols.into()));
        let multiprocessors = u64::from(DeviceLimits::of(target).multiprocessors);
        let tiles = down.checked_mul(across)?;
        if batch != 1 || k == 0 || tiles == 0 || tiles > MOST_TILES * multiprocessors {
            return None;
        }
        let steps = k.div_ceil(config.slice().into());
        let way = |along: bool| {
            let (lines, tiles) = if along { (down, across) } else { (across, down) };
            let total = tiles.checked_mul(steps).filter(|total| *total <= i32::MAX as u64)?;
            let most = multiprocessors / lines;
            let share = total.div_ceil(most.max(1)).max(LEAST_SHARE).min(total);
            let parts_of = |tile: u64| ((tile + 1) * steps - 1) / share - tile * steps / share + 1;
            let of_line: u64 = (0..tiles).map(parts_of).sum();
            let parts = (0..tiles).map(parts_of).max()?;
            let [lines, tiles, steps, share, blocks, parts, pieces] =
                [lines, tiles, steps, share, total.div_ceil(share), parts, of_line * lines]
                    .map(|count| u32::try_from(count).ok());
            Some(Self {
                along,
                lines: lines?,
                tiles: tiles?,
                steps: steps?,
                share: share?,
                blocks: blocks?,
                parts: parts?,
                pieces: pieces?,
            })
            .filter(|_| most > 0)
        };
        // The slices of a block, times more where blocks of other lines read other parts of the longer operand, or longer slices of one.
        let cost = |way: &Self| {
            let (apart, side) = if way.along { (m, rows) } else { (n, cols) };
            u64::from(way.share).saturating_mul(SIDES * (m + n) + apart + u64::from(side))
        };
        [way(true), way(false)].into_iter().flatten().min_by_key(cost)
    }
}
