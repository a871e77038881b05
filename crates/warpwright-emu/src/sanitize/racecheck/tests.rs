//! The detector driven directly: what the emulator would call for short kernels.

use warpwright_ptx::{Ordering, Scope, Semantics};

use super::*;
use crate::events::StrongAccess;
use crate::report::{Finding, Position, Resolve, Severity, Space};

const FULL: u32 = u32::MAX;

struct Names;

impl Resolve for Names {
    fn kernel(&self) -> &str {
        "k"
    }
    fn grid(&self) -> [u32; 3] {
        [64, 1, 1]
    }
    fn block(&self) -> [u32; 3] {
        [1024, 1, 1]
    }
    fn position(&self, pc: u32) -> Position {
        Position { line: pc, column: 1 }
    }
    fn label(&self, _: Space, _: u64) -> Option<(String, u64)> {
        None
    }
}

/// A launch on fresh memory with one allocation, run by one worker.
struct Bench {
    launch: LaunchRaces,
    shared: Shadow,
    global: Shadow,
    findings: Findings,
}

impl Bench {
    fn new() -> Self {
        Self::with_workers(1)
    }

    fn with_workers(workers: usize) -> Self {
        Self {
            launch: LaunchRaces::new(&RaceClock::new(), 64, workers),
            shared: Shadow::shared(48 << 10),
            global: Shadow::global(0x1000, 1 << 16),
            findings: Findings::new(),
        }
    }

    fn run(&mut self, body: impl FnOnce(&mut Run<'_>)) {
        let races = BlockRaces::new(&self.launch);
        let mut run =
            Run { races, shared: &self.shared, global: &self.global, findings: &mut self.findings, warps: 0 };
        body(&mut run);
    }

    fn found(self) -> Vec<Finding> {
        self.findings.finish(&Names, 100)
    }

    fn kinds(self) -> Vec<&'static str> {
        self.found().iter().map(|f| f.kind).collect()
    }
}

struct Run<'a> {
    races: BlockRaces<'a>,
    shared: &'a Shadow,
    global: &'a Shadow,
    findings: &'a mut Findings,
    warps: u32,
}

fn weak(kind: AccessKind, warp: u32, pc: u32, bytes: u32) -> Access {
    Access { warp, pc, bytes, kind, strength: Strength::Weak }
}

const READ: AccessKind = AccessKind::Read;
const WRITE: AccessKind = AccessKind::Write;
const ATOMIC: AccessKind = AccessKind::Atomic;

impl Run<'_> {
    fn block(&mut self, block: u32, warps: u32) {
        self.races.begin(block, warps);
        self.warps = warps;
    }

    /// Element `i` of the warp's run starts at `offset`.
    fn row(&mut self, space: Space, offset: u64, access: Access) {
        let shadow = if space == Space::Shared { self.shared } else { self.global };
        self.races.contiguous(shadow, offset, 0, 32, access, self.findings, &|_, _| false);
    }

    fn lane(&mut self, space: Space, offset: u64, lane: u32, access: Access) {
        let shadow = if space == Space::Shared { self.shared } else { self.global };
        self.races.contiguous(shadow, offset, lane, 1, access, self.findings, &|_, _| false);
    }

    fn all(&mut self, space: Space, offset: u64, mask: u32, access: Access) {
        let shadow = if space == Space::Shared { self.shared } else { self.global };
        self.races.uniform(shadow, offset, mask, access, self.findings, &|_, _| true);
    }

    fn barrier(&mut self) {
        let everyone: Vec<Participant> =
            (0..self.warps).map(|warp| Participant { warp, lanes: FULL, live: FULL }).collect();
        for participant in &everyone {
            self.races.barrier_arrive(0, participant.warp, FULL);
        }
        self.races.barrier_complete(0, &everyone, true);
    }

    fn strong(
        &mut self,
        space: Space,
        offset: u64,
        (warp, lane): (u32, u32),
        kind: AccessKind,
        pc: u32,
        o: Ordering,
    ) {
        let shadow = if space == Space::Shared { self.shared } else { self.global };
        let strength = if kind == ATOMIC { Strength::of_atomic(o) } else { Strength::of(o) };
        let access = Access { warp, pc, bytes: 4, kind, strength };
        self.races.contiguous(shadow, offset, lane, 1, access, self.findings, &|_, _| false);
        let access = StrongAccess { space, address: offset, warp, lane: lane as usize, kind, ordering: o };
        self.races.release(&access);
        self.races.acquire(&access);
    }
}

const RELAXED: Ordering = Ordering::new(Semantics::Relaxed, Scope::Gpu);
const RELEASE: Ordering = Ordering::new(Semantics::Release, Scope::Gpu);
const ACQUIRE: Ordering = Ordering::new(Semantics::Acquire, Scope::Gpu);

#[test]
fn a_missing_block_barrier_is_a_race_and_a_barrier_is_not() {
    for with_barrier in [false, true] {
        let mut bench = Bench::new();
        bench.run(|r| {
            r.block(0, 2);
            r.row(Space::Shared, 0, weak(WRITE, 0, 1, 4));
            r.row(Space::Shared, 128, weak(WRITE, 1, 1, 4));
            if with_barrier {
                r.barrier();
            }
            r.row(Space::Shared, 128, weak(READ, 0, 2, 4));
            r.row(Space::Shared, 0, weak(READ, 1, 2, 4));
        });
        let found = bench.found();
        if with_barrier {
            assert!(found.is_empty(), "{found:?}");
        } else {
            assert_eq!(found.len(), 1);
            assert_eq!((found[0].kind, found[0].line, found[0].count), ("read-write", 1, 64));
            assert_eq!(found[0].other.as_ref().and_then(|o| o.line), Some(2));
            assert_eq!(found[0].severity, Severity::Error);
            assert_eq!((found[0].thread, found[0].block), ([0, 0, 0], [0, 0, 0]));
        }
    }
}

#[test]
fn a_read_then_a_write_of_the_next_iteration_needs_a_barrier_too() {
    for with_barrier in [false, true] {
        let mut bench = Bench::new();
        bench.run(|r| {
            r.block(0, 4);
            for warp in 0..4 {
                r.row(Space::Shared, 128 * u64::from(warp), weak(WRITE, warp, 1, 4));
            }
            r.barrier();
            for warp in 0..4 {
                for tile in 0..4 {
                    r.row(Space::Shared, 128 * tile, weak(READ, warp, 2, 4));
                }
            }
            if with_barrier {
                r.barrier();
            }
            for warp in 0..4 {
                r.row(Space::Shared, 128 * u64::from(warp), weak(WRITE, warp, 1, 4));
            }
        });
        assert_eq!(bench.kinds(), if with_barrier { vec![] } else { vec!["read-write"] });
    }
}

#[test]
fn lanes_of_a_warp_need_a_warp_barrier() {
    for sync in [false, true] {
        let mut bench = Bench::new();
        bench.run(|r| {
            r.block(0, 1);
            r.row(Space::Shared, 0, weak(WRITE, 0, 1, 4));
            r.row(Space::Shared, 0, weak(READ, 0, 2, 4)); // own element: no race
            if sync {
                r.races.warp_barrier(0, FULL, FULL);
            }
            r.row(Space::Shared, 4, weak(READ, 0, 3, 4)); // the neighbour's
        });
        let found = bench.found();
        assert_eq!(
            found.iter().map(|f| f.kind).collect::<Vec<_>>(),
            if sync { vec![] } else { vec!["read-write"] }
        );
        assert!(sync || found[0].help.contains("bar.warp.sync"));
    }
}

#[test]
fn a_partial_warp_barrier_orders_its_lanes_only() {
    let mut bench = Bench::new();
    bench.run(|r| {
        r.block(0, 1);
        r.row(Space::Shared, 0, weak(WRITE, 0, 1, 4));
        r.races.warp_barrier(0, 0xffff, FULL);
        r.lane(Space::Shared, 4 * 3, 2, weak(READ, 0, 2, 4)); // lane 2 reads lane 3's: ordered
        r.all(Space::Shared, 4 * 5, 0xffff, weak(READ, 0, 3, 4)); // all of them read lane 5's: ordered
        r.lane(Space::Shared, 4 * 20, 2, weak(READ, 0, 4, 4)); // lane 20 was not there
    });
    let found = bench.found();
    assert_eq!(found.iter().map(|f| f.other.as_ref().and_then(|o| o.line)).collect::<Vec<_>>(), [Some(4)]);
}

#[test]
fn vector_and_sub_word_patterns_are_compared_by_lane() {
    let mut bench = Bench::new();
    bench.run(|r| {
        r.block(0, 1);
        // The same lanes through different widths: lane l holds bytes 16 l .. 16 l + 16.
        r.row(Space::Shared, 0, weak(WRITE, 0, 1, 16));
        for lane in 0..32 {
            for part in 0..4 {
                r.lane(Space::Shared, u64::from(16 * lane + 4 * part), lane, weak(READ, 0, 2, 4));
            }
        }
        // Halves: lane l holds bytes 2 l; in place.
        r.row(Space::Shared, 1024, weak(READ, 0, 3, 2));
        r.row(Space::Shared, 1024, weak(WRITE, 0, 4, 2));
        r.lane(Space::Shared, 1024 + 6, 3, weak(READ, 0, 5, 2));
        // Misaligned rows of bytes, in place.
        r.row(Space::Shared, 2051, weak(READ, 0, 6, 1));
        r.row(Space::Shared, 2051, weak(WRITE, 0, 7, 1));
    });
    assert_eq!(bench.found(), []);
    let mut bench = Bench::new();
    bench.run(|r| {
        r.block(0, 1);
        r.row(Space::Shared, 1024, weak(WRITE, 0, 4, 2));
        r.lane(Space::Shared, 1024 + 6, 2, weak(READ, 0, 5, 2));
    });
    assert_eq!(bench.kinds(), ["read-write"]);
}

#[test]
fn different_bytes_of_a_word_do_not_race() {
    let mut bench = Bench::new();
    bench.run(|r| {
        r.block(0, 2);
        r.lane(Space::Shared, 0, 0, weak(WRITE, 0, 1, 2));
        r.lane(Space::Shared, 2, 0, weak(WRITE, 1, 1, 2));
        r.lane(Space::Shared, 0, 0, weak(READ, 0, 2, 2));
    });
    assert_eq!(bench.found(), []);
}

#[test]
fn blocks_race_on_global_memory_until_the_kernel_ends() {
    let clock = RaceClock::new();
    let global = Shadow::global(0x1000, 4096);
    let mut findings = Findings::new();
    for _ in 0..3 {
        let launch = LaunchRaces::new(&clock, 2, 1);
        let mut races = BlockRaces::new(&launch);
        for block in 0..2 {
            races.begin(block, 1);
            // Each block its own row in this launch, the other's in the next.
            races.contiguous(
                &global,
                128 * u64::from(block),
                0,
                32,
                weak(WRITE, 0, 1, 4),
                &mut findings,
                &|_, _| false,
            );
        }
        let launch = LaunchRaces::new(&clock, 2, 1);
        let mut races = BlockRaces::new(&launch);
        for block in 0..2 {
            races.begin(block, 1);
            races.contiguous(
                &global,
                128 * u64::from(1 - block),
                0,
                32,
                weak(READ, 0, 2, 4),
                &mut findings,
                &|_, _| false,
            );
        }
    }
    assert!(findings.is_empty());
    let launch = LaunchRaces::new(&clock, 2, 1);
    let mut races = BlockRaces::new(&launch);
    for block in 0..2 {
        races.begin(block, 1);
        races.contiguous(&global, 0, 0, 32, weak(WRITE, 0, 1, 4), &mut findings, &|_, _| false);
    }
    let found = findings.finish(&Names, 10);
    assert_eq!((found[0].kind, found[0].count, found.len()), ("write-write", 32, 1));
    assert_eq!(found[0].address.as_ref().map(|a| a.address), Some(0x1000));
}

#[test]
fn launches_that_overlap_in_time_are_left_alone() {
    let clock = RaceClock::new();
    let global = Shadow::global(0x1000, 4096);
    let mut findings = Findings::new();
    let (early, late) = (LaunchRaces::new(&clock, 1, 1), LaunchRaces::new(&clock, 1, 1));
    for launch in [&late, &early] {
        let mut races = BlockRaces::new(launch);
        races.begin(0, 1);
        races.contiguous(&global, 0, 0, 32, weak(WRITE, 0, 1, 4), &mut findings, &|_, _| false);
    }
    assert!(findings.is_empty());
}

#[test]
fn readers_of_many_blocks_and_a_writer_race() {
    for writer in [0, 3, 7] {
        let mut bench = Bench::new();
        bench.run(|r| {
            for block in (0..8).filter(|b| *b != writer) {
                r.block(block, 1);
                r.row(Space::Global, 64, weak(READ, 0, 1, 4));
                r.all(Space::Global, 512, FULL, weak(READ, 0, 2, 4));
            }
            r.block(writer, 1);
            r.row(Space::Global, 64, weak(WRITE, 0, 3, 4));
            r.lane(Space::Global, 512, 0, weak(WRITE, 0, 4, 4));
        });
        assert_eq!(bench.kinds(), ["read-write", "read-write"], "writer {writer}");
    }
}

/// Every block stores a partial sum, then counts; the last one to count reads all partial sums.
fn last_block(bench: &mut Bench, blocks: u32, fence: bool, barrier: bool) {
    bench.run(|r| {
        for block in 0..blocks {
            r.block(block, 2);
            r.row(Space::Global, 4096 + 256 * u64::from(block), weak(WRITE, 0, 1, 4));
            r.row(Space::Global, 4096 + 256 * u64::from(block) + 128, weak(WRITE, 1, 1, 4));
            if barrier {
                r.barrier();
            }
            if fence {
                r.races.fence(0, 1, Scope::Gpu);
            }
            r.strong(Space::Global, 0, (0, 0), ATOMIC, 2, RELAXED);
            r.barrier();
            if block + 1 == blocks {
                for other in 0..blocks {
                    r.row(Space::Global, 4096 + 256 * u64::from(other), weak(READ, 1, 3, 4));
                    r.row(Space::Global, 4096 + 256 * u64::from(other) + 128, weak(READ, 0, 3, 4));
                }
            }
        }
    });
}

#[test]
fn the_last_block_reduction_is_clean_with_barrier_and_fence_only() {
    for (fence, barrier) in [(true, true), (false, true), (true, false)] {
        let mut bench = Bench::new();
        last_block(&mut bench, 8, fence, barrier);
        let kinds = bench.kinds();
        assert_eq!(kinds, if fence && barrier { vec![] } else { vec!["read-write"] }, "{fence} {barrier}");
    }
}

#[test]
fn a_fence_by_every_thread_before_the_barrier_serves_thread_zero() {
    let mut bench = Bench::new();
    bench.run(|r| {
        r.block(0, 2);
        r.row(Space::Global, 4096, weak(WRITE, 1, 1, 4));
        r.races.fence(0, FULL, Scope::Gpu);
        r.races.fence(1, FULL, Scope::Gpu);
        r.barrier();
        r.strong(Space::Global, 0, (0, 0), ATOMIC, 2, RELAXED);
        r.block(1, 1);
        r.strong(Space::Global, 0, (0, 0), ATOMIC, 2, RELAXED);
        r.races.fence(0, 1, Scope::Gpu);
        r.all(Space::Global, 4096, 1, weak(READ, 0, 3, 4)); // lane 0 acquired
    });
    assert_eq!(bench.found(), []);
}

#[test]
fn a_write_after_the_fence_is_not_released() {
    let mut bench = Bench::new();
    bench.run(|r| {
        r.block(0, 1);
        r.lane(Space::Global, 4096, 0, weak(WRITE, 0, 1, 4));
        r.races.fence(0, 1, Scope::Gpu);
        r.lane(Space::Global, 8192, 0, weak(WRITE, 0, 2, 4));
        r.strong(Space::Global, 0, (0, 0), ATOMIC, 3, RELAXED);
        r.block(1, 1);
        r.strong(Space::Global, 0, (0, 0), ATOMIC, 3, RELAXED);
        r.races.fence(0, 1, Scope::Gpu);
        r.lane(Space::Global, 4096, 0, weak(READ, 0, 4, 4));
        r.lane(Space::Global, 8192, 0, weak(READ, 0, 5, 4));
    });
    let found = bench.found();
    assert_eq!(found.iter().map(|f| f.line).collect::<Vec<_>>(), [2]);
}

#[test]
fn release_and_acquire_order_the_lanes_that_use_them() {
    let mut bench = Bench::new();
    bench.run(|r| {
        r.block(0, 1);
        r.lane(Space::Global, 4096, 5, weak(WRITE, 0, 1, 4));
        r.strong(Space::Global, 0, (0, 5), WRITE, 2, RELEASE);
        r.block(1, 1);
        r.strong(Space::Global, 0, (0, 9), READ, 3, ACQUIRE);
        r.lane(Space::Global, 4096, 9, weak(READ, 0, 4, 4)); // the lane that acquired
        r.lane(Space::Global, 4096, 8, weak(READ, 0, 5, 4)); // its neighbour did not
    });
    let found = bench.found();
    assert_eq!(found.iter().map(|f| f.other.as_ref().and_then(|o| o.line)).collect::<Vec<_>>(), [Some(5)]);
}

#[test]
fn warps_of_a_block_synchronise_through_a_flag_in_shared_memory() {
    let cta = |semantics| Ordering::new(semantics, Scope::Cta);
    for released in [true, false] {
        let mut bench = Bench::new();
        bench.run(|r| {
            r.block(0, 2);
            r.lane(Space::Shared, 512, 0, weak(WRITE, 0, 1, 4));
            let store = if released { Semantics::Release } else { Semantics::Relaxed };
            r.strong(Space::Shared, 0, (0, 0), WRITE, 2, cta(store));
            r.strong(Space::Shared, 0, (1, 0), READ, 3, cta(Semantics::Acquire));
            r.lane(Space::Shared, 512, 0, weak(READ, 1, 4, 4));
        });
        assert_eq!(bench.kinds(), if released { vec![] } else { vec!["read-write"] });
    }
}

#[test]
fn atomics_do_not_race_with_each_other_but_with_plain_accesses_and_across_narrow_scopes() {
    let mut bench = Bench::new();
    bench.run(|r| {
        for block in 0..3 {
            r.block(block, 2);
            r.strong(Space::Global, 0, (0, 0), ATOMIC, 1, RELAXED);
            r.strong(Space::Global, 0, (1, 3), ATOMIC, 1, RELAXED);
        }
    });
    assert_eq!(bench.found(), []);
    let mut bench = Bench::new();
    bench.run(|r| {
        r.block(0, 1);
        r.strong(Space::Global, 0, (0, 0), ATOMIC, 1, RELAXED);
        r.block(1, 1);
        r.lane(Space::Global, 0, 0, weak(READ, 0, 2, 4));
    });
    assert_eq!(bench.kinds(), ["read-write"]);
    let mut bench = Bench::new();
    bench.run(|r| {
        for block in 0..2 {
            r.block(block, 1);
            r.strong(Space::Global, 0, (0, 0), ATOMIC, 1, Ordering::new(Semantics::Relaxed, Scope::Cta));
        }
    });
    assert_eq!(bench.kinds(), ["scope-too-narrow"]);
}

#[test]
fn named_barriers_order_their_participants() {
    // Warp 0 produces, warps 1 and 2 consume after barrier 1 (arrive / sync); warp 3 takes no part.
    let mut bench = Bench::new();
    bench.run(|r| {
        r.block(0, 4);
        r.row(Space::Shared, 0, weak(WRITE, 0, 1, 4));
        r.races.barrier_arrive(1, 0, FULL); // bar.arrive
        r.row(Space::Shared, 256, weak(WRITE, 0, 2, 4)); // after the arrival
        let wait = |warp| Participant { warp, lanes: FULL, live: FULL };
        r.races.barrier_arrive(1, 1, FULL);
        r.races.barrier_arrive(1, 2, FULL);
        r.races.barrier_complete(1, &[wait(1), wait(2)], false);
        r.row(Space::Shared, 0, weak(READ, 1, 3, 4));
        r.row(Space::Shared, 0, weak(READ, 2, 3, 4));
        r.row(Space::Shared, 256, weak(READ, 2, 4, 4)); // race: written after the arrival
        r.row(Space::Shared, 0, weak(READ, 3, 5, 4)); // race: not a participant
    });
    let found = bench.found();
    let lines: Vec<_> = found.iter().map(|f| (f.line, f.other.as_ref().and_then(|o| o.line))).collect();
    assert_eq!(lines, [(1, Some(5)), (2, Some(4))]);
}

#[test]
fn one_instruction_that_stores_different_values_to_one_word() {
    let shared = Shadow::shared(1024);
    let launch = LaunchRaces::new(&RaceClock::new(), 1, 1);
    let mut offsets = [0u64; 32];
    for (lane, offset) in offsets.iter_mut().enumerate() {
        *offset = 4 * (lane as u64 / 2);
    }
    for same in [true, false] {
        let mut findings = Findings::new();
        let mut races = BlockRaces::new(&launch);
        races.begin(0, 1);
        races.scattered(&shared, &offsets, FULL, weak(WRITE, 0, 1, 4), &mut findings, &|_, other| {
            same && other.is_some()
        });
        races.uniform(&shared, 512, FULL, weak(WRITE, 0, 2, 4), &mut findings, &|_, other| {
            same && other.is_some()
        });
        let found = findings.finish(&Names, 10);
        let seen: Vec<_> = found.iter().map(|f| (f.kind, f.line)).collect();
        let kind = "write-write-one-instruction";
        assert_eq!(seen, if same { vec![] } else { vec![(kind, 1), (kind, 2)] });
    }
}

#[test]
fn equal_values_by_different_warps_are_a_warning() {
    let mut bench = Bench::new();
    bench.run(|r| {
        r.block(0, 2);
        r.all(Space::Shared, 0, FULL, weak(WRITE, 0, 1, 4));
        r.all(Space::Shared, 0, FULL, weak(WRITE, 1, 1, 4));
    });
    let found = bench.found();
    assert_eq!((found[0].kind, found[0].severity), ("write-write-same-value", Severity::Warning));
    assert_eq!(found.len(), 1);
}

#[test]
fn shared_memory_of_an_earlier_block_is_not_remembered() {
    let mut bench = Bench::new();
    bench.run(|r| {
        for block in 0..4 {
            r.block(block, 2);
            r.row(Space::Shared, 4, weak(WRITE, block & 1, 1, 4));
            r.row(Space::Shared, 4, weak(READ, block & 1, 2, 4));
        }
    });
    assert_eq!(bench.found(), []);
}

#[test]
fn a_block_number_that_wraps_starts_a_new_generation() {
    let clock = RaceClock::new();
    let global = Shadow::global(0, 4096);
    let mut findings = Findings::new();
    for blocks in [1, u32::MAX - 4, 7, 7] {
        let launch = LaunchRaces::new(&clock, blocks, 1);
        let mut races = BlockRaces::new(&launch);
        races.begin(0, 1);
        races.contiguous(&global, 12, 0, 32, weak(WRITE, 0, 1, 4), &mut findings, &|_, _| false);
    }
    assert!(findings.is_empty());
}

#[test]
fn parallel_workers_find_every_racing_word() {
    // Two workers write the same rows: whoever comes second must see the first, for every word.
    let clock = RaceClock::new();
    let global = Shadow::global(0, 1 << 16);
    for _ in 0..20 {
        let launch = LaunchRaces::new(&clock, 2, 2);
        let counts: Vec<u64> = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..2)
                .map(|block| {
                    let (launch, global) = (&launch, &global);
                    scope.spawn(move || {
                        let mut findings = Findings::new();
                        let mut races = BlockRaces::new(launch);
                        races.begin(block, 1);
                        for row in 0..512 {
                            races.contiguous(
                                global,
                                128 * row,
                                0,
                                32,
                                weak(WRITE, 0, 1, 4),
                                &mut findings,
                                &|_, _| false,
                            );
                        }
                        findings.finish(&Names, 10).iter().map(|f| f.count).sum()
                    })
                })
                .collect();
            handles.into_iter().map(|h| h.join().expect("worker")).collect()
        });
        assert_eq!(counts.iter().sum::<u64>(), 512 * 32);
    }
}
