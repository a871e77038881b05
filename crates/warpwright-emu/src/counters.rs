//! Counters of a launch: numbers that depend on the kernel and its arguments alone.
//!
//! Two runs of one launch count the same, whatever the number of workers and the warp schedule, unless the kernel
//! itself branches on the outcome of races or clocks. Definitions:
//!
//! - **Warp instruction**: one executed by at least one lane. **Lane instruction**: one per executing lane.
//! - **Global memory**: a warp access of up to 4 bytes per lane is one request of 32 lanes; 8 bytes are two requests
//!   of half a warp each, 16 bytes four of a quarter, 32 bytes eight of four lanes. A request counts the different
//!   32-byte *sectors* and 128-byte *lines* that it touches. The *ideal* is the number of different bytes that the
//!   lanes ask for, divided by 32 and rounded up, per warp access: a broadcast is ideal with one sector.
//! - **Shared memory**: 32 banks of 4 bytes. Requests are split by size in the same way; a request takes as many
//!   *wavefronts* as the largest number of different words that one bank has to deliver. The *ideal* is one wavefront
//!   per request; *bank conflicts* are the wavefronts beyond.
//! - **Asynchronous copies** are counted where they are issued, their global and their shared side. `cp.async` counts as
//!   a load of the bytes of its source and a store of its destination; a bulk or tensor copy is one access of 128 bytes a
//!   wavefront on the shared side, and takes sectors for each run of bytes of the global one. With a multicast every
//!   block's copy counts.
//! - **Bytes**: those the lanes ask for (a broadcast to 32 lanes of 4 bytes is 128 bytes).
//! - **Divergent branch**: a conditional branch for which some executing lanes of the warp go either way. **Active lanes**
//!   are the lane instructions per warp instruction: 32 if nothing diverges and all warps are full.
//! - **Barrier wait**: a warp's arrival at a barrier that holds it until others are there; `arrive` alone does not.
//! - **Tensor operations**: the multiply-adds of tensor-core instructions, M x N x K for each.
//!
//! A [`Report`](crate::Report) has the totals of a launch and, in [`LineCounters`], what each line of the text did.

mod lines;

use std::ops::AddAssign;

pub use lines::LineCounters;
pub(crate) use lines::{Lines, Tally};

/// The class that an instruction is counted under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
pub enum Class {
    /// f32 arithmetic and comparison.
    F32,
    /// f64 arithmetic and comparison.
    F64,
    /// f16 and bf16 arithmetic, packed or not.
    Half,
    /// Integer arithmetic, logic and comparison.
    Integer,
    /// Approximate functions (ex2, rcp, rsqrt, sin, ...).
    Special,
    /// Conversions.
    Convert,
    /// Moves, selections, predicate logic.
    Move,
    /// Branches, returns and exits.
    Control,
    /// Loads and stores of any space.
    Memory,
    /// Atomics and reductions on memory.
    Atomic,
    /// Shuffles, votes, matches and other warp exchange.
    Warp,
    /// Barriers, fences.
    Sync,
    /// Tensor-core instructions.
    Matrix,
}

impl Class {
    /// Every class, in order.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::F64,
        Self::Half,
        Self::Integer,
        Self::Special,
        Self::Convert,
        Self::Move,
        Self::Control,
        Self::Memory,
        Self::Atomic,
        Self::Warp,
        Self::Sync,
        Self::Matrix,
    ];

    /// A lower-case name for tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Half => "half",
            Self::Integer => "integer",
            Self::Special => "special",
            Self::Convert => "convert",
            Self::Move => "move",
            Self::Control => "control",
            Self::Memory => "memory",
            Self::Atomic => "atomic",
            Self::Warp => "warp",
            Self::Sync => "sync",
            Self::Matrix => "matrix",
        }
    }
}

/// Direction of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From memory.
    Load,
    /// To memory; atomics count as stores.
    Store,
}

/// Traffic of one state space in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalTraffic {
    /// Warp accesses.
    pub accesses: u64,
    /// 32-byte sectors touched, summed over requests.
    pub sectors: u64,
    /// Sectors that the same bytes would take if they were dense.
    pub ideal_sectors: u64,
    /// 128-byte lines touched, summed over requests.
    pub lines: u64,
    /// Bytes that the lanes asked for.
    pub bytes: u64,
}

/// Shared-memory traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedTraffic {
    /// Warp accesses.
    pub accesses: u64,
    /// Wavefronts taken.
    pub wavefronts: u64,
    /// Wavefronts without conflicts: one per request.
    pub ideal_wavefronts: u64,
    /// Bytes that the lanes asked for.
    pub bytes: u64,
}

impl SharedTraffic {
    /// Wavefronts beyond the ideal.
    pub const fn bank_conflicts(&self) -> u64 {
        self.wavefronts - self.ideal_wavefronts
    }
}

/// The counters of a launch, or of the part of it that one worker ran.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Warp instructions by [`Class`].
    pub warp_instructions: [u64; Class::ALL.len()],
    /// Lane instructions by [`Class`].
    pub lane_instructions: [u64; Class::ALL.len()],
    /// Global loads.
    pub global_loads: GlobalTraffic,
    /// Global stores and atomics.
    pub global_stores: GlobalTraffic,
    /// Shared loads.
    pub shared_loads: SharedTraffic,
    /// Shared stores and atomics.
    pub shared_stores: SharedTraffic,
    /// Bytes loaded from and stored to local memory.
    pub local_bytes: u64,
    /// Bytes loaded from constant memory.
    pub constant_bytes: u64,
    /// Warp arrivals at block barriers.
    pub barriers: u64,
    /// Those that hold the warp until others arrive.
    pub barrier_waits: u64,
    /// Multiply-adds of tensor-core instructions.
    pub tensor_operations: u64,
    /// Conditional branches executed by warps.
    pub branches: u64,
    /// Those at which the warp split.
    pub divergent_branches: u64,
    /// Blocks that ran.
    pub blocks: u64,
    /// Warps that ran.
    pub warps: u64,
}

impl Counters {
    /// All zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Warp instructions of all classes.
    pub fn total_warp_instructions(&self) -> u64 {
        self.warp_instructions.iter().sum()
    }

    /// Lane instructions of all classes.
    pub fn total_lane_instructions(&self) -> u64 {
        self.lane_instructions.iter().sum()
    }

    /// Every counter by name, for tables and JSON.
    pub fn rows(&self) -> Vec<(String, u64)> {
        let mut rows = vec![
            ("warp_instructions".to_owned(), self.total_warp_instructions()),
            ("lane_instructions".to_owned(), self.total_lane_instructions()),
        ];
        for class in Class::ALL {
            rows.push((
                format!("warp_instructions.{}", class.name()),
                self.warp_instructions[class as usize],
            ));
        }
        for (name, traffic) in [("global_loads", self.global_loads), ("global_stores", self.global_stores)] {
            rows.push((format!("{name}.accesses"), traffic.accesses));
            rows.push((format!("{name}.bytes"), traffic.bytes));
            rows.push((format!("{name}.sectors"), traffic.sectors));
            rows.push((format!("{name}.ideal_sectors"), traffic.ideal_sectors));
            rows.push((format!("{name}.lines"), traffic.lines));
        }
        for (name, traffic) in [("shared_loads", self.shared_loads), ("shared_stores", self.shared_stores)] {
            rows.push((format!("{name}.accesses"), traffic.accesses));
            rows.push((format!("{name}.bytes"), traffic.bytes));
            rows.push((format!("{name}.wavefronts"), traffic.wavefronts));
            rows.push((format!("{name}.bank_conflicts"), traffic.bank_conflicts()));
        }
        rows.extend([
            ("local_bytes".to_owned(), self.local_bytes),
            ("constant_bytes".to_owned(), self.constant_bytes),
            ("tensor_operations".to_owned(), self.tensor_operations),
            ("barriers".to_owned(), self.barriers),
            ("barrier_waits".to_owned(), self.barrier_waits),
            ("branches".to_owned(), self.branches),
            ("divergent_branches".to_owned(), self.divergent_branches),
            ("blocks".to_owned(), self.blocks),
            ("warps".to_owned(), self.warps),
        ]);
        rows
    }

    /// Executing lanes of an average warp instruction; 0 if there was none.
    pub fn active_lanes(&self) -> f64 {
        let warps = self.total_warp_instructions();
        if warps == 0 { 0.0 } else { self.total_lane_instructions() as f64 / warps as f64 }
    }

    /// Sectors touched in both directions.
    pub const fn global_sectors(&self) -> u64 {
        self.global_loads.sectors + self.global_stores.sectors
    }

    /// Sectors that the same bytes would take if they were dense, in both directions.
    pub const fn ideal_global_sectors(&self) -> u64 {
        self.global_loads.ideal_sectors + self.global_stores.ideal_sectors
    }

    /// Shared-memory wavefronts in both directions.
    pub const fn shared_wavefronts(&self) -> u64 {
        self.shared_loads.wavefronts + self.shared_stores.wavefronts
    }

    /// Shared-memory wavefronts beyond the ideal, in both directions.
    pub const fn bank_conflicts(&self) -> u64 {
        self.shared_loads.bank_conflicts() + self.shared_stores.bank_conflicts()
    }

    /// Warp instructions of one class that `lanes` lanes executed.
    #[inline(always)]
    pub fn instructions(&mut self, class: Class, warps: u64, lanes: u64) {
        self.warp_instructions[class as usize] += warps;
        self.lane_instructions[class as usize] += lanes;
    }

    /// A conditional branch; `divergent` if the executing lanes went both ways.
    #[inline(always)]
    pub fn branch(&mut self, divergent: bool) {
        self.branches += 1;
        self.divergent_branches += u64::from(divergent);
    }

    fn global(&mut self, direction: Direction) -> &mut GlobalTraffic {
        match direction {
            Direction::Load => &mut self.global_loads,
            Direction::Store => &mut self.global_stores,
        }
    }

    fn shared(&mut self, direction: Direction) -> &mut SharedTraffic {
        match direction {
            Direction::Load => &mut self.shared_loads,
            Direction::Store => &mut self.shared_stores,
        }
    }

    /// Bytes of global memory that an asynchronous copy moves one after the other. `first` of the runs of a copy counts as
    /// its access.
    pub fn global_run(&mut self, direction: Direction, address: u64, bytes: u64, first: bool) {
        let Some(last) = bytes.checked_sub(1).map(|more| address + more) else { return };
        let traffic = self.global(direction);
        traffic.accesses += u64::from(first);
        traffic.sectors += last / 32 - address / 32 + 1;
        traffic.lines += last / 128 - address / 128 + 1;
        traffic.ideal_sectors += bytes.div_ceil(32);
        traffic.bytes += bytes;
    }

    /// Counts an asynchronous copy from or to shared memory, which takes no lanes and meets no bank conflicts.
    pub fn shared_copy(&mut self, direction: Direction, bytes: u64) {
        let traffic = self.shared(direction);
        traffic.accesses += 1;
        traffic.wavefronts += bytes.div_ceil(128);
        traffic.ideal_wavefronts += bytes.div_ceil(128);
        traffic.bytes += bytes;
    }

    /// A global access of `lanes` neighbouring lanes, beginning with `first_lane`, to consecutive elements of `bytes`
    /// bytes from `address`.
    #[inline]
    pub fn global_contiguous(
        &mut self,
        direction: Direction,
        address: u64,
        first_lane: u32,
        lanes: u32,
        bytes: u32,
    ) {
        if lanes == 0 {
            return;
        }
        let total = u64::from(lanes) * u64::from(bytes);
        let (mut sectors, mut lines) = (0, 0);
        let group = request_lanes(bytes);
        let (mut lane, mut at) = (first_lane, address);
        let end_lane = first_lane + lanes;
        while lane < end_lane {
            let stop = ((lane / group + 1) * group).min(end_lane);
            let last = at + u64::from(stop - lane) * u64::from(bytes) - 1;
            sectors += last / 32 - at / 32 + 1;
            lines += last / 128 - at / 128 + 1;
            at = last + 1;
            lane = stop;
        }
        let traffic = self.global(direction);
        traffic.accesses += 1;
        traffic.sectors += sectors;
        traffic.lines += lines;
        traffic.ideal_sectors += total.div_ceil(32);
        traffic.bytes += total;
    }

    /// A global access of the lanes in `mask` to any addresses.
    pub fn global_scattered(&mut self, direction: Direction, addresses: &[u64; 32], mask: u32, bytes: u32) {
        if mask == 0 {
            return;
        }
        let (mut sectors, mut lines, mut distinct_bytes) = (0, 0, 0);
        let group = request_lanes(bytes);
        let mut sorted = [0u64; 32];
        for first in (0..32).step_by(group as usize) {
            let n = gather(addresses, mask, first..first + group, &mut sorted);
            sectors += distinct(&sorted[..n], bytes, 32);
            lines += distinct(&sorted[..n], bytes, 128);
        }
        let n = gather(addresses, mask, 0..32, &mut sorted);
        let mut covered = 0;
        for &start in &sorted[..n] {
            let end = start.saturating_add(u64::from(bytes));
            distinct_bytes += end - start.clamp(covered, end);
            covered = end;
        }
        let traffic = self.global(direction);
        traffic.accesses += 1;
        traffic.sectors += sectors;
        traffic.lines += lines;
        traffic.ideal_sectors += distinct_bytes.div_ceil(32);
        traffic.bytes += u64::from(mask.count_ones()) * u64::from(bytes);
    }

    /// A shared access of `lanes` neighbouring lanes, beginning with `first_lane`, to consecutive elements of `bytes`
    /// bytes. Such an access has no bank conflicts: every request covers at most 128 consecutive bytes.
    #[inline]
    pub fn shared_contiguous(&mut self, direction: Direction, first_lane: u32, lanes: u32, bytes: u32) {
        if lanes == 0 {
            return;
        }
        let group = request_lanes(bytes);
        let requests = u64::from((first_lane + lanes - 1) / group - first_lane / group + 1);
        let traffic = self.shared(direction);
        traffic.accesses += 1;
        traffic.wavefronts += requests;
        traffic.ideal_wavefronts += requests;
        traffic.bytes += u64::from(lanes) * u64::from(bytes);
    }

    /// A shared access of the lanes in `mask` to any offsets in the shared window.
    pub fn shared_scattered(&mut self, direction: Direction, offsets: &[u64; 32], mask: u32, bytes: u32) {
        if mask == 0 {
            return;
        }
        let group = request_lanes(bytes);
        let (mut wavefronts, mut ideal) = (0, 0);
        let mut sorted = [0u64; 32];
        for first in (0..32).step_by(group as usize) {
            let n = gather(offsets, mask, first..first + group, &mut sorted);
            if n > 0 {
                ideal += 1;
                wavefronts += u64::from(bank_wavefronts(&sorted[..n], bytes));
            }
        }
        let traffic = self.shared(direction);
        traffic.accesses += 1;
        traffic.wavefronts += wavefronts;
        traffic.ideal_wavefronts += ideal;
        traffic.bytes += u64::from(mask.count_ones()) * u64::from(bytes);
    }
}

/// Lanes of one request for a size per lane.
const fn request_lanes(bytes: u32) -> u32 {
    match bytes {
        0..=4 => 32,
        5..=8 => 16,
        9..=16 => 8,
        _ => 4,
    }
}

/// Copies the addresses of the masked lanes in the range to the front of `into`, sorted.
fn gather(addresses: &[u64; 32], mask: u32, lanes: std::ops::Range<u32>, into: &mut [u64; 32]) -> usize {
    let mut n = 0;
    for lane in lanes {
        if mask >> lane & 1 == 1 {
            into[n] = addresses[lane as usize];
            n += 1;
        }
    }
    into[..n].sort_unstable();
    n
}

/// Units of `unit` bytes that accesses at the sorted addresses touch.
fn distinct(sorted: &[u64], bytes: u32, unit: u64) -> u64 {
    let mut count = 0;
    let mut next = 0;
    for &address in sorted {
        let first = (address / unit).max(next);
        let last = address.saturating_add(u64::from(bytes.max(1)) - 1) / unit;
        count += (last + 1).saturating_sub(first);
        next = next.max(last + 1);
    }
    count
}

/// Largest number of different words in one bank.
fn bank_wavefronts(sorted: &[u64], bytes: u32) -> u32 {
    let mut per_bank = [0u8; 32];
    let mut next = 0;
    for &offset in sorted {
        let last = offset.saturating_add(u64::from(bytes.max(1)) - 1) / 4;
        for word in (offset / 4).max(next)..=last {
            per_bank[(word % 32) as usize] += 1;
        }
        next = next.max(last + 1);
    }
    u32::from(per_bank.into_iter().max().unwrap_or(0))
}

impl AddAssign<&Self> for GlobalTraffic {
    fn add_assign(&mut self, other: &Self) {
        self.accesses += other.accesses;
        self.sectors += other.sectors;
        self.ideal_sectors += other.ideal_sectors;
        self.lines += other.lines;
        self.bytes += other.bytes;
    }
}

impl AddAssign<&Self> for SharedTraffic {
    fn add_assign(&mut self, other: &Self) {
        self.accesses += other.accesses;
        self.wavefronts += other.wavefronts;
        self.ideal_wavefronts += other.ideal_wavefronts;
        self.bytes += other.bytes;
    }
}

impl AddAssign<&Self> for Counters {
    fn add_assign(&mut self, other: &Self) {
        for (ours, theirs) in self.warp_instructions.iter_mut().zip(other.warp_instructions) {
            *ours += theirs;
        }
        for (ours, theirs) in self.lane_instructions.iter_mut().zip(other.lane_instructions) {
            *ours += theirs;
        }
        self.global_loads += &other.global_loads;
        self.global_stores += &other.global_stores;
        self.shared_loads += &other.shared_loads;
        self.shared_stores += &other.shared_stores;
        self.local_bytes += other.local_bytes;
        self.constant_bytes += other.constant_bytes;
        self.barriers += other.barriers;
        self.barrier_waits += other.barrier_waits;
        self.tensor_operations += other.tensor_operations;
        self.branches += other.branches;
        self.divergent_branches += other.divergent_branches;
        self.blocks += other.blocks;
        self.warps += other.warps;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strided(start: u64, stride: u64) -> [u64; 32] {
        std::array::from_fn(|lane| start + lane as u64 * stride)
    }

    #[test]
    fn contiguous_and_scattered_count_the_same_for_dense_accesses() {
        for bytes in [1u32, 2, 4, 8, 16] {
            for misaligned in [0, u64::from(bytes), 3 * u64::from(bytes)] {
                for (first, lanes) in [(0u32, 32u32), (0, 5), (3, 20), (31, 1)] {
                    let base = 0x1000 + misaligned;
                    let mut dense = Counters::new();
                    dense.global_contiguous(Direction::Load, base, first, lanes, bytes);
                    dense.shared_contiguous(Direction::Store, first, lanes, bytes);
                    let addresses = std::array::from_fn(|lane| {
                        let past = (lane as u64).wrapping_sub(u64::from(first));
                        base.wrapping_add(past.wrapping_mul(u64::from(bytes)))
                    });
                    let mask = (((1u64 << lanes) - 1) << first) as u32;
                    let mut scattered = Counters::new();
                    scattered.global_scattered(Direction::Load, &addresses, mask, bytes);
                    scattered.shared_scattered(Direction::Store, &addresses, mask, bytes);
                    assert_eq!(dense, scattered, "{bytes} bytes, +{misaligned}, lanes {first}+{lanes}");
                }
            }
        }
    }

    #[test]
    fn global_sectors_and_lines() {
        let mut c = Counters::new();
        c.global_contiguous(Direction::Load, 0x1000, 0, 32, 4);
        assert_eq!((c.global_loads.sectors, c.global_loads.ideal_sectors, c.global_loads.lines), (4, 4, 1));
        // One float past alignment touches a fifth sector and a second line.
        c.global_contiguous(Direction::Load, 0x1004, 0, 32, 4);
        assert_eq!((c.global_loads.sectors, c.global_loads.ideal_sectors, c.global_loads.lines), (9, 8, 3));
        // v4.f32: four requests of eight lanes, 128 bytes each.
        c.global_contiguous(Direction::Store, 0x2000, 0, 32, 16);
        assert_eq!((c.global_stores.sectors, c.global_stores.lines, c.global_stores.bytes), (16, 4, 512));
        // One float per 128-byte line: 32 sectors for 128 bytes of data.
        let mut c = Counters::new();
        c.global_scattered(Direction::Load, &strided(0, 128), u32::MAX, 4);
        assert_eq!((c.global_loads.sectors, c.global_loads.ideal_sectors, c.global_loads.lines), (32, 4, 32));
        // A broadcast is one sector, and that is the ideal.
        let mut c = Counters::new();
        c.global_scattered(Direction::Load, &[64; 32], u32::MAX, 4);
        assert_eq!((c.global_loads.sectors, c.global_loads.ideal_sectors, c.global_loads.bytes), (1, 1, 128));
    }

    #[test]
    fn shared_bank_conflicts() {
        let cases: [([u64; 32], u32, u64, u64); 7] = [
            (strided(0, 4), 4, 1, 1),
            (strided(0, 8), 4, 2, 1),    // two-way
            (strided(0, 128), 4, 32, 1), // every lane in bank 0
            (strided(0, 132), 4, 1, 1),  // padded column
            ([40; 32], 4, 1, 1),         // broadcast
            (strided(0, 8), 8, 2, 2),    // 64-bit elements: two half-warps
            (strided(0, 16), 16, 4, 4),  // 128-bit elements: four quarters
        ];
        for (offsets, bytes, wavefronts, ideal) in cases {
            let mut c = Counters::new();
            c.shared_scattered(Direction::Load, &offsets, u32::MAX, bytes);
            assert_eq!((c.shared_loads.wavefronts, c.shared_loads.ideal_wavefronts), (wavefronts, ideal));
            assert_eq!(c.shared_loads.bank_conflicts(), wavefronts - ideal);
        }
    }

    #[test]
    fn rows_of_a_matrix_conflict_where_they_share_banks() {
        for (stride, wavefronts) in [(16, 1), (128, 8), (144, 1), (64, 4)] {
            let mut c = Counters::new();
            c.shared_scattered(Direction::Load, &strided(0, stride), 0xff, 16);
            assert_eq!((c.shared_loads.wavefronts, c.shared_loads.bytes), (wavefronts, 128), "{stride}");
            assert_eq!(c.bank_conflicts(), wavefronts - 1);
        }
    }

    #[test]
    fn no_lane_means_no_access() {
        let mut c = Counters::new();
        c.global_contiguous(Direction::Load, 0, 0, 0, 4);
        c.global_scattered(Direction::Load, &[0; 32], 0, 4);
        c.shared_contiguous(Direction::Load, 0, 0, 4);
        c.shared_scattered(Direction::Load, &[0; 32], 0, 4);
        assert_eq!(c, Counters::new());
    }

    #[test]
    fn counters_of_workers_add_up() {
        let mut a = Counters::new();
        a.instructions(Class::F32, 1, 32);
        a.branch(true);
        let mut b = Counters::new();
        b.instructions(Class::F32, 1, 7);
        b.instructions(Class::Matrix, 1, 32);
        b.tensor_operations = 16 * 8 * 16;
        b.branch(false);
        b.shared_contiguous(Direction::Load, 0, 32, 4);
        a += &b;
        assert_eq!(a.warp_instructions[Class::F32 as usize], 2);
        assert_eq!(a.total_lane_instructions(), 71);
        assert_eq!(a.active_lanes(), 71.0 / 3.0);
        assert_eq!(a.tensor_operations, 2048);
        assert_eq!((a.branches, a.divergent_branches), (2, 1));
        assert_eq!(a.shared_loads.bytes, 128);
    }
}
