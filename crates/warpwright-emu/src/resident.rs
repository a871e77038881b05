//! Blocks that have begun: what they consist of, clusters of them, and how they begin and change places.
//!
//! A worker takes the blocks of a cluster at once and runs them in turns; a launch without clusters has clusters of one
//! block. The block that runs has its parts in the [`Context`], where the interpreter reaches them directly; its
//! [`Resident`] is a husk meanwhile. A cluster that can only wait for other clusters is parked whole.

use std::mem;

use crate::block::{Block, SharedMemory};
use crate::code::Code;
use crate::code::layout::{LaunchValue, Slot, SpecialTime, special_time};
use crate::code::rows::{LANES, Registers, Row32, Row64};
use crate::context::{Context, Shared};
use crate::events::view::View;
use crate::exec::asynchronous::State as Asynchronous;
use crate::exec::matrix::Flights;
use crate::exec::{Definedness, Paths, read_image, special_value};
use crate::memory::POISON;
use crate::progress::{Outlook, Stamp, Watch};
use crate::sanitize::racecheck::BlockRaces;
use crate::space::{LOCAL_BASE, map_cluster};
use crate::warp::{Group, Local, Wait, Warp};

/// A block that has begun.
pub(crate) struct Resident<'a> {
    pub(crate) block: Block,
    pub(crate) races: Option<BlockRaces<'a>>,
    pub(crate) warps: Vec<Warp>,
}

/// A state of memory and clocks, told from others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) stamp: Stamp,
    /// How often the clocks were put forward.
    pub(crate) epoch: u64,
    /// Of other launches on the memory, as [`Memory::alone`](crate::memory::Memory::alone) says. Of a cluster that has run, before it did: it may not
    /// have seen what another launch wrote meanwhile, even if that has ended.
    pub(crate) alone: Option<u64>,
}

/// No warp of a cluster gets further before memory changes or the clocks are put forward.
pub(crate) struct Settled {
    pub(crate) since: Moment,
    /// The most that the warps can come to.
    pub(crate) outlook: Outlook,
}

/// The blocks of a cluster, which run on one worker.
#[derive(Default)]
pub(crate) struct Cluster<'a> {
    /// By rank.
    pub(crate) residents: Vec<Resident<'a>>,
    pub(crate) barrier: ClusterBarrier,
    /// Index in the grid of clusters, x fastest.
    pub(crate) linear: u64,
    /// The block whose parts are in the context.
    current: Option<usize>,
    /// If that was found when it last ran.
    pub(crate) settled: Option<Settled>,
    /// Copies in flight, and mbarriers.
    pub(crate) asynchronous: Asynchronous,
}

/// The barrier of a cluster. A phase ends when every thread that has not exited has arrived.
#[derive(Debug, Default)]
pub(crate) struct ClusterBarrier {
    /// Phases that have ended.
    pub(crate) phase: u32,
    /// By rank and warp: lanes that have arrived in this phase, and lanes that have not waited since they arrived.
    lanes: Vec<(u32, u32)>,
    warps: usize,
    /// Threads that have not exited, and those of them that have not arrived.
    live: u32,
    missing: u32,
    arrivals: bool,
    /// Knowledge of those who arrived in this phase, and in the last one that ended, for racecheck.
    pub(crate) published: View,
    pub(crate) known: View,
}

impl ClusterBarrier {
    fn begin(&mut self, blocks: usize, warps: usize, threads: u32) {
        self.phase = 0;
        self.lanes.clear();
        self.lanes.resize(blocks * warps, (0, 0));
        self.warps = warps;
        self.live = threads;
        self.missing = threads;
        self.arrivals = false;
        self.published = View::default();
        self.known = View::default();
    }

    fn at(&mut self, rank: u32, warp: u32) -> Option<&mut (u32, u32)> {
        self.lanes.get_mut(rank as usize * self.warps + warp as usize)
    }

    /// Lanes of a warp that have arrived in this phase.
    pub(crate) fn arrived(&self, rank: u32, warp: u32) -> u32 {
        self.lanes.get(rank as usize * self.warps + warp as usize).map_or(0, |lanes| lanes.0)
    }

    /// Threads that have not exited, and how many of them have arrived.
    pub(crate) fn counts(&self) -> (u32, u32) {
        (self.live, self.live - self.missing)
    }

    /// Lanes arrive. Gives those that had not waited for their last arrival, which PTX forbids.
    pub(crate) fn arrive(&mut self, rank: u32, warp: u32, lanes: u32) -> u32 {
        let Some((arrived, owing)) = self.at(rank, warp) else { return 0 };
        let twice = *owing & lanes;
        let new = lanes & !*arrived;
        *arrived |= lanes;
        *owing |= lanes;
        self.missing -= new.count_ones();
        self.arrivals = true;
        self.end_phase();
        twice
    }

    /// Lanes wait. Gives those that have to, and those that never arrived, which PTX forbids.
    pub(crate) fn wait(&mut self, rank: u32, warp: u32, lanes: u32) -> (u32, u32) {
        let Some((arrived, owing)) = self.at(rank, warp) else { return (0, 0) };
        let strangers = lanes & !*owing;
        *owing &= !lanes;
        (lanes & *arrived, strangers)
    }

    /// Lanes exit, which counts as arriving.
    pub(crate) fn exit(&mut self, rank: u32, warp: u32, lanes: u32) {
        let arrived = self.arrived(rank, warp);
        self.live -= lanes.count_ones();
        self.missing -= (lanes & !arrived).count_ones();
        self.end_phase();
    }

    fn end_phase(&mut self) {
        if self.missing == 0 && self.arrivals {
            self.phase += 1;
            self.known = mem::take(&mut self.published);
            self.lanes.iter_mut().for_each(|lanes| lanes.0 = 0);
            self.missing = self.live;
            self.arrivals = false;
        }
    }
}

/// Blocks per cluster along x, y and z, and where clusters and their blocks lie in the grid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    grid: [u32; 3],
    cluster: [u32; 3],
}

impl Shape {
    pub(crate) fn new(grid: [u32; 3], cluster: [u32; 3]) -> Self {
        Self { grid, cluster }
    }

    /// Blocks of a cluster.
    pub(crate) fn size(self) -> u32 {
        self.cluster.iter().product()
    }

    /// Coordinates of the block of rank `rank` in cluster `cluster`.
    pub(crate) fn coordinates(self, cluster: u64, rank: u32) -> [u32; 3] {
        let clusters: [u64; 3] = std::array::from_fn(|i| u64::from(self.grid[i] / self.cluster[i]));
        let at =
            [cluster % clusters[0], cluster / clusters[0] % clusters[1], cluster / clusters[0] / clusters[1]];
        let [x, y, _] = self.cluster;
        let inside = [rank % x, rank / x % y, rank / x / y];
        std::array::from_fn(|i| at[i] as u32 * self.cluster[i] + inside[i])
    }

    /// Index of a block in the grid, x fastest.
    pub(crate) fn linear(self, [x, y, z]: [u32; 3]) -> u64 {
        let [width, height, _] = self.grid.map(u64::from);
        u64::from(x) + width * (u64::from(y) + height * u64::from(z))
    }
}

impl<'a> Context<'a> {
    /// The rank of the running block in its cluster.
    pub(crate) fn rank(&self) -> u32 {
        self.cluster.current.unwrap_or(0) as u32
    }

    /// Lets a block run: its parts come into the context, those of the block before go back.
    pub(crate) fn enter(&mut self, rank: usize) {
        if self.cluster.current != Some(rank) {
            self.leave();
            self.swap_parts(rank);
            self.cluster.current = Some(rank);
        }
    }

    /// Runs `access` with the shared memory of another block of the cluster in place of the running block's own.
    pub(crate) fn with_shared_of<R>(&mut self, rank: u32, access: impl FnOnce(&mut Self) -> R) -> R {
        let own = self.cluster.current == Some(rank as usize);
        if !own {
            self.swap_shared(rank as usize);
        }
        let result = access(self);
        if !own {
            self.swap_shared(rank as usize);
        }
        result
    }

    fn swap_shared(&mut self, rank: usize) {
        let Some(resident) = self.cluster.residents.get_mut(rank) else { return };
        mem::swap(&mut resident.block.shared, &mut self.block.shared);
        if let (Some(theirs), Some(ours)) = (&mut resident.races, &mut self.races) {
            ours.swap_variables(theirs);
        }
    }

    /// Puts the parts of the running block back.
    fn leave(&mut self) {
        if let Some(rank) = self.cluster.current.take() {
            self.swap_parts(rank);
        }
    }

    fn swap_parts(&mut self, rank: usize) {
        if let Some(resident) = self.cluster.residents.get_mut(rank) {
            mem::swap(&mut resident.block, &mut self.block);
            mem::swap(&mut resident.races, &mut self.races);
        }
    }

    /// Takes the cluster that runs out of the context.
    pub(crate) fn take_cluster(&mut self) -> Cluster<'a> {
        self.leave();
        mem::take(&mut self.cluster)
    }

    /// The block of a rank, wherever its parts are.
    pub(crate) fn block_of(&mut self, rank: u32) -> Option<&mut Block> {
        if self.cluster.current == Some(rank as usize) {
            return Some(&mut self.block);
        }
        self.cluster.residents.get_mut(rank as usize).map(|resident| &mut resident.block)
    }

    /// The blocks of a cluster, which have not begun.
    pub(crate) fn make_cluster(&self) -> Cluster<'a> {
        let size = self.shared.shape.size();
        let base = |rank| if size > 1 { map_cluster(0, rank) } else { 0 };
        let residents = (0..size)
            .map(|rank| Resident {
                block: Block::new(SharedMemory::of_block(self.shared.shared_end, base(rank))),
                races: self.shared.races.as_ref().map(BlockRaces::new),
                warps: self.make_warps(),
            })
            .collect();
        Cluster { residents, ..Cluster::default() }
    }

    fn make_warps(&self) -> Vec<Warp> {
        let threads: u32 = self.shared.config.block.iter().product();
        let (r32, r64) = template(self.code, self.shared);
        let local_words = local_words(self.code);
        (0..threads.div_ceil(32))
            .map(|index| {
                let mut pred = vec![0; self.code.layout.preds];
                if let Some(first) = pred.first_mut() {
                    *first = u32::MAX;
                }
                let mut warp = Warp {
                    index,
                    regs: Registers { r32: r32.clone(), r64: r64.clone(), pred },
                    live: 0,
                    groups: Vec::with_capacity(4),
                    alone: 0,
                    spins: 0,
                    carry: 0,
                    definedness: Definedness::new(self.code.tracked.len()),
                    local: Local {
                        words: vec![u32::from_ne_bytes([POISON; 4]); local_words],
                        undefined: vec![u32::MAX; local_words],
                    },
                    flights: Flights::new(self.code.flights),
                    watch: Watch::default(),
                    paths: Paths::default(),
                    running: None,
                };
                self.set_specials(&mut warp, SpecialTime::Launch);
                warp
            })
            .collect()
    }

    /// Fills the rows of the special registers that are known at `time`.
    fn set_specials(&self, warp: &mut Warp, time: SpecialTime) {
        for (slot, special) in &self.code.layout.specials {
            if special_time(*special) != time {
                continue;
            }
            let uniform = time == SpecialTime::Block;
            let value = |lane: usize| {
                special_value(self, warp.index, if uniform { 0 } else { lane as u32 }, *special)
            };
            match *slot {
                Slot::W(row) if uniform => {
                    let value = value(0) as u32;
                    warp.regs.r32[row as usize] = Row32([value; LANES]);
                }
                Slot::W(row) => {
                    let values = std::array::from_fn(|lane| value(lane) as u32);
                    warp.regs.r32[row as usize] = Row32(values);
                }
                Slot::L(row) | Slot::Q(row) => {
                    let values = std::array::from_fn(value);
                    warp.regs.r64[row as usize] = Row64(values);
                }
                Slot::P(p) => {
                    let bits = (0..LANES).fold(0, |m, lane| m | ((value(lane) & 1) as u32) << lane);
                    warp.regs.pred[p as usize] = bits;
                }
            }
        }
    }

    /// Makes the blocks of the cluster in the context those of cluster `linear`, which begins.
    pub(crate) fn begin(&mut self, linear: u64) {
        let blocks = self.cluster.residents.len();
        let threads: u32 = self.shared.config.block.iter().product();
        self.cluster.linear = linear;
        self.cluster.settled = None;
        self.cluster.barrier.begin(blocks, threads.div_ceil(32) as usize, threads * blocks as u32);
        self.begin_asynchronous();
        for rank in 0..blocks {
            self.enter(rank);
            let mut warps = self.take_warps(rank);
            self.begin_block(&mut warps, threads);
            self.put_warps(rank, warps);
        }
    }

    /// The warps of a block, to be run.
    pub(crate) fn take_warps(&mut self, rank: usize) -> Vec<Warp> {
        self.cluster.residents.get_mut(rank).map(|r| mem::take(&mut r.warps)).unwrap_or_default()
    }

    /// Puts the warps of a block back.
    pub(crate) fn put_warps(&mut self, rank: usize, warps: Vec<Warp>) {
        if let Some(resident) = self.cluster.residents.get_mut(rank) {
            resident.warps = warps;
        }
    }

    /// Makes everything as it is when a block begins; rows that the kernel always writes first are left as they are.
    fn begin_block(&mut self, warps: &mut [Warp], threads: u32) {
        let (shape, rank) = (self.shared.shape, self.rank());
        let coordinates = shape.coordinates(self.cluster.linear, rank);
        self.block.begin(shape.linear(coordinates), coordinates, threads, warps.len());
        if let Some(races) = &mut self.races {
            let number = self.cluster.linear * u64::from(shape.size()) + u64::from(rank);
            races.begin(number as u32, threads.div_ceil(32));
        }
        self.counters.blocks += 1;
        self.counters.warps += warps.len() as u64;
        for warp in warps {
            let lanes = threads - warp.index * 32;
            warp.live = if lanes >= 32 { u32::MAX } else { (1 << lanes) - 1 };
            warp.groups.clear();
            warp.groups.push(Group { pc: 0, mask: warp.live, wait: Wait::Ready, turn: 0 });
            warp.alone = 0;
            warp.spins = 0;
            warp.carry = 0;
            warp.watch = Watch::default();
            warp.flights.reset();
            warp.definedness.reset();
            for slot in &self.code.tracked {
                // What is read before it is written must not depend on the block before.
                match *slot {
                    Slot::W(row) => warp.regs.r32[row as usize] = Row32::ZERO,
                    Slot::L(row) => warp.regs.r64[row as usize] = Row64::ZERO,
                    Slot::Q(row) => {
                        warp.regs.r64[row as usize] = Row64::ZERO;
                        warp.regs.r64[row as usize + 1] = Row64::ZERO;
                    }
                    Slot::P(p) => warp.regs.pred[p as usize] = 0,
                }
            }
            // Frames of calls come and go.
            let variables = local_words(self.code);
            warp.local.words.truncate(variables);
            warp.local.undefined.truncate(variables);
            warp.paths.reset(self.code.local_end);
            warp.local.words.fill(u32::from_ne_bytes([POISON; 4]));
            warp.local.undefined.fill(u32::MAX);
            self.set_specials(warp, SpecialTime::Block);
        }
    }
}

/// Words of local memory that a warp has for the variables of the kernel.
fn local_words(code: &Code) -> usize {
    if code.local_end > LOCAL_BASE { code.local_end.div_ceil(4) as usize * LANES } else { 0 }
}

/// The rows of a warp that are the same for all warps and blocks of the launch.
fn template(code: &Code, shared: &Shared<'_>) -> (Vec<Row32>, Vec<Row64>) {
    let (mut r32, mut r64) = (code.layout.r32.clone(), code.layout.r64.clone());
    for (slot, value) in &code.layout.launch {
        let value = match *value {
            LaunchValue::Param { offset, bytes, sign } => {
                let value = read_image(shared.params, offset, bytes);
                let shift = 64 - 8 * bytes.clamp(1, 8);
                if sign { ((value << shift) as i64 >> shift) as u64 } else { value }
            }
            LaunchValue::Global { index, offset } => {
                shared.globals.get(index as usize).copied().unwrap_or(0).wrapping_add(offset as u64)
            }
        };
        match *slot {
            Slot::W(row) => r32[row as usize] = Row32([value as u32; LANES]),
            Slot::L(row) | Slot::Q(row) => r64[row as usize] = Row64([value; LANES]),
            Slot::P(_) => {}
        }
    }
    (r32, r64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_tile_the_grid() {
        let shape = Shape::new([4, 6, 1], [2, 3, 1]);
        assert_eq!(shape.size(), 6);
        assert_eq!(shape.coordinates(0, 5), [1, 2, 0]);
        assert_eq!(shape.coordinates(1, 0), [2, 0, 0]);
        assert_eq!(shape.coordinates(2, 3), [1, 4, 0]);
        assert_eq!(shape.linear([1, 4, 0]), 17);
        let plain = Shape::new([5, 2, 3], [1; 3]);
        assert!((0..30).all(|i| plain.linear(plain.coordinates(i, 0)) == i));
    }

    #[test]
    fn a_phase_ends_when_all_that_are_left_have_arrived() {
        let mut barrier = ClusterBarrier::default();
        barrier.begin(2, 1, 64);
        assert_eq!(barrier.arrive(0, 0, u32::MAX), 0);
        assert_eq!(barrier.wait(0, 0, 0xFF), (0xFF, 0));
        assert_eq!(barrier.arrive(1, 0, 0xFFFF), 0);
        assert_eq!((barrier.phase, barrier.counts()), (0, (64, 48)));
        barrier.exit(1, 0, 0xFFFF_0000);
        assert_eq!((barrier.phase, barrier.counts()), (1, (48, 0)));
        assert_eq!(barrier.wait(1, 0, 0xFFFF), (0, 0));
        // Lanes 8 to 31 of block 0 arrive again without having waited; block 1 waits without having arrived.
        assert_eq!(barrier.arrive(0, 0, u32::MAX), 0xFFFF_FF00);
        assert_eq!(barrier.wait(1, 0, 1), (0, 1));
        // Those that have arrived and exit leave the phase as it is.
        barrier.exit(0, 0, 0xF);
        assert_eq!((barrier.phase, barrier.counts()), (1, (44, 28)));
        barrier.exit(1, 0, 0xFFFF);
        assert_eq!(barrier.phase, 2);
    }
}
