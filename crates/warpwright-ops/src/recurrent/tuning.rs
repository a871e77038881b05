//! Which kernel runs for which sequence.

use warpwright_ptx::{DType, Target};

use super::RecurrentDesc;
use super::exchange::THREADS;

/// How a persistent kernel is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PersistentConfig {
    /// Units of a block, of which it keeps the recurrent weights.
    pub units: u32,
}

/// How the steps of a sequence are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// One launch for all: the recurrent weights stay on the chip.
    Persistent(PersistentConfig),
    /// A product and a cell for every step.
    Stepwise,
}

/// Multiprocessors that every device with the architecture's full chip has: a persistent grid is never larger.
const fn multiprocessors(target: Target) -> usize {
    match target.sm {
        80 => 108,
        90..=100 => 132,
        _ => 0,
    }
}

/// Units of a block, least first.
const UNITS: [u32; 3] = [4, 8, 16];
/// Rows of a tile of a product on tensor cores.
const TILE_ROWS: usize = 16;
/// Registers of a thread that weights take at most, beside the fragments and sums of products on tensor cores.
const MOST_WEIGHTS: usize = 96;
/// Registers that a thread needs for each gate that it computes, and how many it has for them and 16-bit weights.
const OF_ITEM: usize = 4;
const MOST_TOGETHER: usize = 112;
/// The same of `f32`.
const MOST_SINGLE_WEIGHTS: usize = 128;
/// Elements of the state that all blocks read in every step.
const MOST_STATE: usize = 32 << 10;
/// Gradients of gates that all blocks read in every step backward.
const MOST_GRADIENTS: usize = 64 << 10;
/// Batches of a tile of a product on tensor cores.
const TILE_BATCH: usize = 8;
/// Batches that `f32` multiplies one after the other.
const MOST_SINGLE_BATCH: usize = 4;

/// The schedule of the steps of a net. A single step is a product and a cell at any rate.
pub fn choose(desc: &RecurrentDesc, target: Target) -> Schedule {
    if desc.steps < 2 {
        return Schedule::Stepwise;
    }
    persistent(desc, target).map_or(Schedule::Stepwise, Schedule::Persistent)
}

/// How a persistent kernel is laid out, if one takes the net.
fn persistent(desc: &RecurrentDesc, target: Target) -> Option<PersistentConfig> {
    let RecurrentDesc { cell, dtype, batch, hidden, .. } = *desc;
    let fits_type = match dtype {
        DType::F16 | DType::BF16 => hidden.is_multiple_of(16),
        DType::F32 => hidden.is_multiple_of(4) && batch <= MOST_SINGLE_BATCH,
        _ => false,
    };
    if !fits_type || batch == 0 || hidden == 0 || batch.checked_mul(hidden)? > MOST_STATE {
        return None;
    }
    let fitting = UNITS.map(|units| PersistentConfig { units });
    let mut fitting = fitting.into_iter().filter(|config| config.fits(desc, target));
    // The products of up to 8 batches take the same time, and fewer blocks have fewer to wait for; so they do for rows that
    // do not fill a tile.
    let part = dtype != DType::F32 && cell.gates() == 1;
    let one_tile = dtype != DType::F32 && batch <= TILE_BATCH;
    if one_tile || part { fitting.next_back() } else { fitting.next() }
}

/// The schedule of the steps backward.
pub fn choose_backward(desc: &RecurrentDesc, target: Target) -> Schedule {
    if desc.steps < 2 {
        return Schedule::Stepwise;
    }
    let fitting = UNITS.map(|units| PersistentConfig { units }).into_iter();
    let mut fitting = fitting.filter(|config| config.takes_back(desc, target));
    // A tile has 16 rows, whether they are there or not.
    let config = if desc.dtype == DType::F32 { fitting.next() } else { fitting.next_back() };
    config.map_or(Schedule::Stepwise, Schedule::Persistent)
}

impl PersistentConfig {
    /// Whether the persistent kernel takes the steps backward with this layout: a block has the columns of its units, and
    /// the gradients of all gates go round.
    pub(super) fn takes_back(self, desc: &RecurrentDesc, target: Target) -> bool {
        let RecurrentDesc { cell, dtype, batch, hidden, .. } = *desc;
        let (units, depth) = (self.units as usize, hidden.saturating_mul(cell.gates()));
        let items = units.saturating_mul(batch).div_ceil(THREADS as usize);
        let fits = match dtype {
            DType::F16 | DType::BF16 => {
                let weights = 4 * (depth / 16).div_ceil(8);
                let most = MOST_TOGETHER.saturating_sub(2 * OF_ITEM * items);
                units == TILE_ROWS && hidden.is_multiple_of(16) && weights <= most.min(MOST_WEIGHTS)
            }
            DType::F32 => {
                let weights = units * 2 * depth.div_ceil(512);
                hidden.is_multiple_of(4) && batch <= MOST_SINGLE_BATCH && weights <= MOST_SINGLE_WEIGHTS
            }
            _ => false,
        };
        UNITS.contains(&self.units)
            && fits
            && batch > 0
            && hidden > 0
            && batch.saturating_mul(depth) <= MOST_GRADIENTS
            && hidden.is_multiple_of(units)
            && hidden / units <= multiprocessors(target)
    }

    /// Whether the weights fit the registers, and the blocks the device.
    fn fits(self, desc: &RecurrentDesc, target: Target) -> bool {
        let RecurrentDesc { cell, dtype, batch, hidden, .. } = *desc;
        let units = self.units as usize;
        let rows = units * cell.gates();
        let items = (units * batch).saturating_mul(cell.lanes() as usize).div_ceil(THREADS as usize);
        // A block has 256 threads; weights of 16 bits come two to a register, in slices for whole warps.
        let (weights, most) = match dtype {
            DType::F32 => (rows * 2 * hidden.div_ceil(512), MOST_SINGLE_WEIGHTS),
            _ => {
                let most = MOST_TOGETHER.saturating_sub(OF_ITEM.saturating_mul(items)).min(MOST_WEIGHTS);
                (4 * rows.div_ceil(TILE_ROWS) * (hidden / 16).div_ceil(8), most)
            }
        };
        hidden.is_multiple_of(units) && hidden / units <= multiprocessors(target) && weights <= most
    }

    /// Whether the persistent kernel takes a net with this layout.
    pub(super) fn takes(self, desc: &RecurrentDesc, target: Target) -> bool {
        UNITS.contains(&self.units) && persistent(desc, target).is_some() && self.fits(desc, target)
    }
}
