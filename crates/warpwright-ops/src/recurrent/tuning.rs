//! Which kernel runs for which sequence.

use warpwright_ptx::{DType, Target};

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

/// Units of a block for each kind of product, least first.
const UNITS: [u32; 3] = [4, 8, 16];
/// Registers of a thread that weights take at most, beside the fragments and sums of products on tensor cores.
const MOST_WEIGHTS: usize = 96;
/// The same of `f32`.
const MOST_SINGLE_WEIGHTS: usize = 128;
/// Elements of the state that all blocks read in every step.
const MOST_STATE: usize = 32 << 10;
/// Batches of a tile of a product on tensor cores.
const TILE_BATCH: usize = 8;
/// Batches that `f32` multiplies one after the other.
const MOST_SINGLE_BATCH: usize = 4;

/// The schedule of a sequence of `batch` sequences with `hidden` units.
pub fn choose(dtype: DType, target: Target, batch: usize, hidden: usize) -> Schedule {
    persistent(dtype, target, batch, hidden).map_or(Schedule::Stepwise, Schedule::Persistent)
}

/// How a persistent kernel is laid out, if one takes the sequence.
fn persistent(dtype: DType, target: Target, batch: usize, hidden: usize) -> Option<PersistentConfig> {
    let fits_type = match dtype {
        DType::F16 | DType::BF16 => hidden.is_multiple_of(16),
        DType::F32 => hidden.is_multiple_of(4) && batch <= MOST_SINGLE_BATCH,
        _ => false,
    };
    if !fits_type || batch == 0 || hidden == 0 || batch.checked_mul(hidden)? > MOST_STATE {
        return None;
    }
    let fitting = UNITS.map(|units| PersistentConfig { units });
    let mut fitting = fitting.into_iter().filter(|config| config.fits(dtype, target, hidden));
    // The products of up to 8 batches take the same time, and fewer blocks have fewer to wait for.
    let one_tile = dtype != DType::F32 && batch <= TILE_BATCH;
    if one_tile { fitting.next_back() } else { fitting.next() }
}

impl PersistentConfig {
    /// Whether the weights fit the registers, and the blocks the device.
    fn fits(self, dtype: DType, target: Target, hidden: usize) -> bool {
        let units = self.units as usize;
        // A block has 256 threads; weights of 16 bits come two to a register, in slices for whole warps.
        let (weights, most) = match dtype {
            DType::F32 => (4 * units * 2 * hidden.div_ceil(512), MOST_SINGLE_WEIGHTS),
            _ => (units * (hidden / 16).div_ceil(8), MOST_WEIGHTS),
        };
        hidden.is_multiple_of(units) && hidden / units <= multiprocessors(target) && weights <= most
    }

    /// Whether the persistent kernel takes a sequence with this layout.
    pub(super) fn takes(self, dtype: DType, target: Target, batch: usize, hidden: usize) -> bool {
        UNITS.contains(&self.units)
            && persistent(dtype, target, batch, hidden).is_some()
            && self.fits(dtype, target, hidden)
    }
}
