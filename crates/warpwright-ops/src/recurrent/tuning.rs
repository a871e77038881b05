//! The choice of a schedule for a net.

use std::fmt;

use warpwright_ptx::isa::DeviceLimits;
use warpwright_ptx::{DType, Target};

use super::persistent::PassKind;
use super::persistent::backward::BackwardPass;
use super::persistent::exchange::{Dsmem, Exchange, Flagged, Inband, Ll};
use super::persistent::forward::ForwardPass;
use super::persistent::gemm::THREADS;
use super::{Cell, RecurrentDesc};
use crate::gemm::Precision;

/// How a persistent kernel is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PersistentConfig {
    /// Units of a block, of which it keeps the recurrent weights.
    pub units: u32,
    /// Groups of blocks that share the sequences: each has as many of them, and all weights.
    pub groups: u32,
    /// How the blocks hand each other what a step gives.
    pub exchange: ExchangeKind,
}

impl fmt::Display for PersistentConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "u{}", self.units)?;
        match self.exchange {
            ExchangeKind::Ll => {}
            ExchangeKind::Flagged => f.write_str("_flagged")?,
            ExchangeKind::Inband => f.write_str("_inband")?,
            ExchangeKind::Dsmem { sequences } => write!(f, "_dsmem{sequences}")?,
        }
        if self.groups > 1 { write!(f, "_g{}", self.groups) } else { Ok(()) }
    }
}

/// How the blocks of a persistent kernel hand each other what a step gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExchangeKind {
    /// LL, as NCCL calls it: each word with the number of its step, read straight into registers.
    Ll,
    /// All elements of a block at once, with a flag; they are read through shared memory.
    Flagged,
    /// Elements whose own bits say which step they are of, read straight into registers (16-bit states below 2, forward; whatever
    /// is rounded to `tf32`).
    Inband,
    /// Within a cluster, which has all units, through distributed shared memory (sm_90 and later).
    Dsmem {
        /// Sequences of a cluster, a power of two.
        sequences: u32,
    },
}

impl ExchangeKind {
    /// Whether products of `f32` are made of rounded factors where that is allowed.
    pub(super) fn rounds(self, precision: Precision) -> bool {
        precision == Precision::Tf32 && matches!(self, Self::Flagged | Self::Inband)
    }

    /// Sequences that a block has to do with, of `batch`.
    pub(super) const fn batch(self, batch: u32) -> u32 {
        match self {
            Self::Dsmem { sequences } => sequences,
            _ => batch,
        }
    }
}

/// How the steps of a sequence are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// One launch for all: the recurrent weights stay on the chip.
    Persistent(PersistentConfig),
    /// A product and a cell for every step.
    Stepwise,
}

/// Multiprocessors that the grid of a persistent kernel may fill: those of a data-centre GPU, which alone has enough of them, and of
/// shared memory, for the weights of nets that gain by it.
const fn multiprocessors(target: Target) -> usize {
    match target.sm {
        80 | 90..=100 => DeviceLimits::of(target).multiprocessors as usize,
        _ => 0,
    }
}

/// Units of a block, least first.
const UNITS: [u32; 3] = [4, 8, 16];
/// Groups that share the sequences.
const GROUPS: [u32; 3] = [1, 2, 4];
/// Sequences of a group at the least, where there are several.
const LEAST_SEQUENCES: usize = 4;
/// Units of a block of the flagged exchange, at the least.
const FEWEST_UNITS: u32 = 2;
/// Rows of a tile of a product on tensor cores.
const TILE_ROWS: usize = 16;
/// Registers of a thread that weights take at most, beside the fragments and sums of products on tensor cores.
const MOST_WEIGHTS: usize = 96;
/// Registers that a thread needs for each gate that it computes, and how many it has for them and 16-bit weights.
const OF_ITEM: usize = 4;
const MOST_TOGETHER: usize = 112;
/// The same of `f32`.
const MOST_SINGLE_WEIGHTS: usize = 128;
/// Elements of the state that all blocks read in every step through LL.
const MOST_STATE: usize = 32 << 10;
/// Gradients of gates that all blocks read in every step backward through LL.
const MOST_GRADIENTS: usize = 64 << 10;
/// The same of the other exchanges; the flagged one has room for the flags of so many elements of a state.
const MOST_ELEMENTS: usize = 512 << 10;
const LEAST_STATE: usize = 128;
/// Gates of a thread, and units of a thread backward, where state passes through shared memory.
const MOST_GATES: usize = 8;
const MOST_UNITS: usize = 4;
/// Units of a block of a cluster, least first, and sequences of one.
const CLUSTER_UNITS: [u32; 3] = [8, 16, 32];
const MOST_SEQUENCES: u32 = 16;
/// Sequences, and blocks of a cluster for each, up to which there is nothing faster; of rounded factors half as many.
const FEW_SEQUENCES: usize = 8;
const FEW_TOGETHER: usize = 64;
/// Blocks that a cluster can have everywhere.
const PORTABLE_CLUSTER: usize = 8;
/// Registers of weights of a block of which a multiprocessor holds two.
const LIGHT_WEIGHTS: u32 = 32;
/// Batches of a tile of a product on tensor cores.
const TILE_BATCH: usize = 8;
/// Batches that `f32` multiplies one after the other.
const MOST_SINGLE_BATCH: usize = 4;

/// The schedule of the steps of a net. A single step is a product and a cell at any rate.
pub fn choose(desc: &RecurrentDesc, target: Target) -> Schedule {
    // Sizes that no plan takes may overflow below.
    if desc.steps < 2 || desc.check(desc.op()).is_err() {
        return Schedule::Stepwise;
    }
    let takes = |config: &PersistentConfig| config.takes(desc, target);
    let straight = |exchange| of_groups(desc).find_map(|groups| straight(desc, exchange, groups, takes));
    let flagged =
        || of_groups(desc).find_map(|groups| layouts_with(ExchangeKind::Flagged, groups).find(takes));
    let rounds = ExchangeKind::Inband.rounds(desc.precision);
    // Of few sequences LL is as fast as rounded elements in band, and exact.
    let few = (rounds && desc.batch < LEAST_SEQUENCES).then(|| straight(ExchangeKind::Ll)).flatten();
    let ll = || straight(ExchangeKind::Ll);
    let spread = || few.or_else(|| straight(ExchangeKind::Inband)).or_else(ll).or_else(flagged);
    let most = if rounds { FEW_TOGETHER / 2 } else { FEW_TOGETHER };
    let config = near(desc, (cluster(desc, target, &FORWARD), most), spread);
    config.map_or(Schedule::Stepwise, Schedule::Persistent)
}

/// Every layout that some net is taken with.
pub fn layouts() -> impl Iterator<Item = PersistentConfig> {
    let spread = GROUPS.into_iter().flat_map(|groups| {
        let few = PersistentConfig { units: FEWEST_UNITS, groups, exchange: ExchangeKind::Flagged };
        let of = move |exchange| layouts_with(exchange, groups);
        [few]
            .into_iter()
            .chain([ExchangeKind::Ll, ExchangeKind::Inband, ExchangeKind::Flagged].into_iter().flat_map(of))
    });
    let sequences = (0..=MOST_SEQUENCES.ilog2()).map(|power| 1 << power);
    let clusters = sequences.flat_map(|sequences| CLUSTER_UNITS.map(|units| in_cluster(units, sequences)));
    spread.chain(clusters)
}

/// Within clusters of so many sequences.
const fn in_cluster(units: u32, sequences: u32) -> PersistentConfig {
    PersistentConfig { units, groups: 1, exchange: ExchangeKind::Dsmem { sequences } }
}

/// The layouts with one kind of exchange in so many groups.
fn layouts_with(exchange: ExchangeKind, groups: u32) -> impl DoubleEndedIterator<Item = PersistentConfig> {
    UNITS.into_iter().map(move |units| PersistentConfig { units, groups, exchange })
}

/// Groups that the sequences may be shared by, most first: fewer sequences are less to read and to multiply in every step.
fn of_groups(desc: &RecurrentDesc) -> impl Iterator<Item = u32> {
    let batch = desc.batch;
    GROUPS.into_iter().rev().filter(move |groups| *groups == 1 || batch / *groups as usize >= LEAST_SEQUENCES)
}

/// How a persistent kernel is laid out that reads states straight into registers, if `takes` says that one takes the net.
fn straight(
    desc: &RecurrentDesc,
    exchange: ExchangeKind,
    groups: u32,
    takes: impl FnMut(&PersistentConfig) -> bool,
) -> Option<PersistentConfig> {
    let RecurrentDesc { cell, dtype, batch, precision, .. } = *desc;
    let mut fitting = layouts_with(exchange, groups).filter(takes);
    // The products of up to 8 batches take the same time, and fewer blocks have fewer to wait for; so they do for rows that
    // do not fill a tile.
    let tensor = dtype != DType::F32 || exchange.rounds(precision);
    let part = tensor && cell.gates() == 1;
    let one_tile = tensor && groups == 1 && batch <= TILE_BATCH;
    if one_tile || part { fitting.next_back() } else { fitting.next() }
}

/// The limits of layouts within clusters.
struct Way {
    /// Units of a block at the least.
    units: u32,
    takes: fn(PersistentConfig, &RecurrentDesc, Target) -> bool,
    /// Whether a multiprocessor holds two blocks.
    is_light: fn(PersistentConfig, &RecurrentDesc) -> bool,
}

const FORWARD: Way = Way { units: 16, takes: PersistentConfig::takes, is_light: PersistentConfig::is_light };
const BACKWARD: Way = Way { units: 32, takes: PersistentConfig::takes_back, is_light: |_, _| false };

/// How one is laid out that stays within clusters, if that is possible: with the fewest sequences with which all run at once.
fn cluster(desc: &RecurrentDesc, target: Target, way: &Way) -> Option<PersistentConfig> {
    let layout = |units: u32| {
        let config = |sequences| in_cluster(units, sequences);
        let all = multiprocessors(target);
        // Blocks that fill a multiprocessor leave some without one: their groups are not of the same size.
        let room = if (way.is_light)(config(1), desc) { all } else { all * 7 / 8 };
        let clusters = (room / (desc.hidden / units as usize).max(1)).max(1);
        let sequences = u32::try_from(desc.batch.div_ceil(clusters).next_power_of_two()).ok()?;
        (way.takes)(config(sequences), desc, target).then_some(config(sequences))
    };
    // Small blocks need more of them, up to what a cluster can have everywhere.
    let fits = |units: &u32| *units >= way.units && desc.hidden <= PORTABLE_CLUSTER * *units as usize;
    let small = CLUSTER_UNITS.into_iter().filter(fits).find_map(layout);
    small.or_else(|| CLUSTER_UNITS.into_iter().rev().find_map(layout))
}

/// A layout within clusters, or one of blocks all over the device if there is one and a cluster would have much to do.
fn near(
    desc: &RecurrentDesc,
    (cluster, most): (Option<PersistentConfig>, usize),
    spread: impl FnOnce() -> Option<PersistentConfig>,
) -> Option<PersistentConfig> {
    let little = |config: &PersistentConfig| {
        let (sequences, blocks) = (config.batch(desc), desc.hidden / config.units as usize);
        sequences <= FEW_SEQUENCES && sequences * blocks <= most
    };
    cluster.filter(little).or_else(spread).or(cluster)
}

/// The schedule of the steps backward.
pub fn choose_backward(desc: &RecurrentDesc, target: Target) -> Schedule {
    // Sizes that no plan takes may overflow below.
    if desc.steps < 2 || desc.check(desc.op()).is_err() {
        return Schedule::Stepwise;
    }
    let takes = |config: &PersistentConfig| config.takes_back(desc, target);
    let layout = |groups: u32| {
        let inband = layouts_with(ExchangeKind::Inband, groups).find(takes);
        let mut fitting = layouts_with(ExchangeKind::Ll, groups).filter(takes);
        // A tile has 16 rows, whether they are there or not.
        let ll = if desc.dtype == DType::F32 { fitting.next() } else { fitting.next_back() };
        let flagged = layouts_with(ExchangeKind::Flagged, groups).find(takes);
        // The words of LL are on their way for less time than a flag is, if there are few. The elements of three gates are left one by
        // one.
        let at_once = desc.cell.gates().is_power_of_two();
        let many = desc.batch / groups as usize > TILE_BATCH;
        // Of few sequences LL is as fast, and exact.
        let inband = inband.filter(|_| desc.batch >= LEAST_SEQUENCES);
        if many && at_once { flagged.or(inband).or(ll) } else { inband.or(ll).or(flagged) }
    };
    let spread = || of_groups(desc).find_map(layout);
    near(desc, (cluster(desc, target, &BACKWARD), FEW_TOGETHER), spread)
        .map_or(Schedule::Stepwise, Schedule::Persistent)
}

impl PersistentConfig {
    /// Whether the persistent kernel takes the steps of a net with this layout.
    pub(super) fn takes(self, desc: &RecurrentDesc, target: Target) -> bool {
        if !self.spreads(desc, (desc.hidden, MOST_STATE), target) {
            return false;
        }
        let RecurrentDesc { cell, dtype, hidden, .. } = *desc;
        let (units, batch) = (self.units as usize, self.batch(desc));
        let rows = units * cell.gates();
        let lanes = cell.lanes() as usize;
        let items = (units * batch).saturating_mul(lanes).div_ceil(THREADS as usize);
        let gemm = ForwardPass::gemm(desc, self);
        match (self.exchange, dtype) {
            (ExchangeKind::Dsmem { .. }, _) => {
                items <= MOST_GATES && Dsmem::of(gemm).is_some_and(|dsmem| dsmem.fits(target))
            }
            (ExchangeKind::Inband, _) => {
                let fits = items <= MOST_GATES && (gemm.rounds || stays_small(desc));
                fits && Inband::of(gemm).is_some_and(|inband| has_room(&inband, target))
            }
            (ExchangeKind::Flagged, _) => {
                items <= MOST_GATES
                    && Flagged::of(gemm).is_some_and(|flagged| takes_flagged(&flagged, target))
            }
            (_, DType::F32) => {
                let weights = rows * 2 * hidden.div_ceil(512);
                hidden.is_multiple_of(4) && batch <= MOST_SINGLE_BATCH && weights <= MOST_SINGLE_WEIGHTS
            }
            // A block has 256 threads; weights of 16 bits come two to a register, in slices for whole warps.
            _ => {
                let most = MOST_TOGETHER.saturating_sub(OF_ITEM.saturating_mul(items)).min(MOST_WEIGHTS);
                let weights = 4 * rows.div_ceil(TILE_ROWS) * (hidden / 16).div_ceil(8);
                hidden.is_multiple_of(16) && weights <= most && has_room(&Ll::of(gemm), target)
            }
        }
    }

    /// Whether the persistent kernel takes the steps backward with this layout: a block has the columns of its units, and
    /// the gradients of all gates go round.
    pub(super) fn takes_back(self, desc: &RecurrentDesc, target: Target) -> bool {
        let RecurrentDesc { cell, dtype, hidden, .. } = *desc;
        let batch = self.batch(desc);
        let (units, depth) = (self.units as usize, hidden.saturating_mul(cell.gates()));
        if !self.spreads(desc, (depth, MOST_GRADIENTS), target) {
            return false;
        }
        let items = units.saturating_mul(batch).div_ceil(THREADS as usize);
        let gemm = BackwardPass::gemm(desc, self);
        match (self.exchange, dtype) {
            (ExchangeKind::Dsmem { .. }, _) => {
                items <= MOST_UNITS && Dsmem::of(gemm).is_some_and(|dsmem| dsmem.fits(target))
            }
            (ExchangeKind::Inband, _) => {
                let fits = items <= MOST_UNITS && gemm.rounds && units == TILE_ROWS;
                fits && Inband::of(gemm).is_some_and(|inband| has_room(&inband, target))
            }
            (ExchangeKind::Flagged, _) => {
                let whole_tiles = |flagged: &Flagged| !flagged.is_mma() || units == TILE_ROWS;
                let fits = |flagged| whole_tiles(&flagged) && takes_flagged(&flagged, target);
                items <= MOST_UNITS && Flagged::of(gemm).is_some_and(fits)
            }
            (_, DType::F32) => {
                let weights = units * 2 * depth.div_ceil(512);
                hidden.is_multiple_of(4) && batch <= MOST_SINGLE_BATCH && weights <= MOST_SINGLE_WEIGHTS
            }
            _ => {
                let weights = 4 * (depth / 16).div_ceil(8);
                let most = MOST_TOGETHER.saturating_sub(2 * OF_ITEM * items);
                let fits = weights <= most.min(MOST_WEIGHTS) && has_room(&Ll::of(gemm), target);
                units == TILE_ROWS && hidden.is_multiple_of(16) && fits
            }
        }
    }

    /// Whether a block forward is small.
    fn is_light(self, desc: &RecurrentDesc) -> bool {
        Dsmem::of(ForwardPass::gemm(desc, self)).is_some_and(|dsmem| dsmem.weights() <= LIGHT_WEIGHTS)
    }

    /// Whether the device holds all blocks at once, and these exchange no more than they can, of `depth`
    /// elements a batch; through LL at most `ll`.
    fn spreads(self, desc: &RecurrentDesc, (depth, ll): (usize, usize), target: Target) -> bool {
        let RecurrentDesc { dtype, batch, hidden, .. } = *desc;
        let (units, groups) = (self.units as usize, self.groups as usize);
        if !GROUPS.contains(&self.groups) || !batch.is_multiple_of(groups) {
            return false;
        }
        let elements = self.batch(desc).saturating_mul(depth);
        let blocks = self.exchange == ExchangeKind::Flagged;
        let known = matches!(dtype, DType::F16 | DType::BF16 | DType::F32);
        let (least, most) = match self.exchange {
            ExchangeKind::Ll => (1, ll),
            ExchangeKind::Inband => (1, MOST_ELEMENTS),
            ExchangeKind::Flagged => (LEAST_STATE, MOST_ELEMENTS),
            ExchangeKind::Dsmem { sequences } => {
                // Clusters share the sequences themselves.
                return known
                    && self.groups == 1
                    && CLUSTER_UNITS.contains(&self.units)
                    && hidden.is_multiple_of(units)
                    && (1..=MOST_SEQUENCES).contains(&sequences);
            }
        };
        known
            && (UNITS.contains(&self.units) || (blocks && self.units == FEWEST_UNITS))
            && (least..=most).contains(&elements)
            && hidden.is_multiple_of(units)
            && hidden / units * groups <= multiprocessors(target)
    }

    /// Sequences of a block.
    fn batch(self, desc: &RecurrentDesc) -> usize {
        match self.exchange {
            ExchangeKind::Dsmem { sequences } => sequences as usize,
            _ => desc.batch / self.groups.max(1) as usize,
        }
    }
}

/// Whether states stay below 2: those of a GRU are between the first state and 1.
fn stays_small(desc: &RecurrentDesc) -> bool {
    match desc.cell {
        Cell::Lstm | Cell::RnnTanh => true,
        Cell::Gru => !desc.h0,
        Cell::RnnRelu => false,
    }
}

/// Whether the shared memory of a block has room for an exchange.
fn has_room(exchange: &dyn Exchange, target: Target) -> bool {
    exchange.memory().shared_bytes <= DeviceLimits::of(target).shared_per_block
}

/// Whether the weights fit the registers, and the rest shared memory.
fn takes_flagged(flagged: &Flagged, target: Target) -> bool {
    flagged.fits_registers() && has_room(flagged, target)
}
