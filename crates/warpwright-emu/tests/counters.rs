//! Counters by line: each line's numbers, worked out by hand, and their sums.

use warpwright_emu::counters::{Class, LineCounters};
use warpwright_emu::{LaunchConfig, Memory, Options, Program, Report, launch};

/// 64 threads in one block: a strided load, a two-way bank conflict, a divergent branch, a barrier.
const KERNEL: &str = "\
.version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p)
{
    .shared .align 8 .b8 tile[1024];
    .reg .b64 %rd<5>;
    .reg .b32 %r<6>;
    .reg .pred %p<2>;
    ld.param.u64 %rd0, [p];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd1, %r0, 32; // strided
    add.s64 %rd2, %rd0, %rd1;
    ld.global.u32 %r1, [%rd2]; // strided load
    shl.b32 %r2, %r0, 3;
    mov.u32 %r3, tile;
    add.s32 %r3, %r3, %r2;
    st.shared.u32 [%r3], %r1; // two-way conflict
    bar.sync 0;
    setp.lt.u32 %p0, %r0, 8;
    @%p0 bra FEW; // divergent in warp 0
    add.s32 %r1, %r1, 1; // the rest
FEW:
    @%p0 st.global.u32 [%rd2], %r1; // eight lanes
    setp.gt.u32 %p1, %r0, 99;
    @%p1 st.global.u32 [%rd2], %r0; // nobody
    ret;
}
";

fn run(text: &str, blocks: u32, options: &Options) -> Report {
    let program = Program::load(text).unwrap();
    let memory = Memory::new();
    let p = memory.alloc(64 * 32, "p").unwrap();
    memory.fill(p, 1, 64 * 32).unwrap();
    let config = LaunchConfig::linear(blocks, 64);
    launch(&program, "k", &config, &p.to_le_bytes(), &memory, options).unwrap()
}

fn counting() -> Options {
    Options { counters: true, ..Options::default() }
}

/// The row of the line that contains `what`.
fn line<'a>(report: &'a Report, what: &str) -> &'a LineCounters {
    let at = KERNEL.lines().position(|l| l.contains(what)).unwrap() as u32 + 1;
    report.lines.iter().find(|row| row.line == at).unwrap()
}

#[test]
fn every_line_has_its_own_numbers() {
    let report = run(KERNEL, 1, &counting());
    assert!(report.is_clean(), "{:?}", report.findings);
    let executed = |what: &str| {
        let c = &line(&report, what).counters;
        (c.total_warp_instructions(), c.total_lane_instructions())
    };
    assert_eq!(executed("// strided"), (2, 64));
    assert_eq!(executed("strided load"), (2, 64));
    assert_eq!(executed("divergent"), (2, 64));
    assert_eq!(executed("the rest"), (2, 56));
    assert_eq!(executed("eight lanes"), (1, 8));
    assert_eq!(executed("nobody"), (0, 0));
    // Moves that the decoder leaves out are counted where they stand.
    assert_eq!(executed("mov.u32 %r3, tile"), (2, 64));
    assert_eq!(line(&report, "the rest").counters.active_lanes(), 28.0);

    let load = &line(&report, "strided load").counters;
    assert_eq!((load.global_loads.sectors, load.global_loads.ideal_sectors), (64, 8));
    assert_eq!((load.global_loads.lines, load.global_loads.bytes), (16, 256));
    assert_eq!(load.global_stores, Default::default());
    assert_eq!(load.lane_instructions[Class::Memory as usize], 64);
    let store = &line(&report, "two-way").counters;
    assert_eq!((store.shared_wavefronts(), store.bank_conflicts()), (4, 2));
    let barrier = &line(&report, "bar.sync").counters;
    assert_eq!((barrier.barriers, barrier.barrier_waits), (2, 2));
    let branch = &line(&report, "divergent").counters;
    assert_eq!((branch.branches, branch.divergent_branches), (2, 1));
    assert_eq!(line(&report, "eight lanes").counters.global_stores.sectors, 8);
    // The opcode, behind its guard.
    assert_eq!(line(&report, "eight lanes").column, 10);
}

#[test]
fn lines_add_up_to_the_totals_whatever_the_workers() {
    let one = run(KERNEL, 1, &counting());
    for threads in [1, 3] {
        let report = run(KERNEL, 7, &Options { threads, ..counting() });
        let mut sum = warpwright_emu::Counters::new();
        for row in &report.lines {
            sum += &row.counters;
        }
        (sum.blocks, sum.warps) = (7, 14);
        assert_eq!(sum, report.counters);
        for (a, b) in one.lines.iter().zip(&report.lines) {
            assert_eq!((a.line, a.column), (b.line, b.column));
            let many = b.counters.total_lane_instructions();
            assert_eq!(7 * a.counters.total_lane_instructions(), many, "line {}", a.line);
        }
    }
}

#[test]
fn nothing_is_kept_unless_asked_for() {
    let report = run(KERNEL, 1, &Options::default());
    assert!(report.lines.is_empty());
    assert_eq!(report.counters, warpwright_emu::Counters::new());
}

#[test]
fn asynchronous_copies_count_on_both_sides() {
    // 16 bytes a lane, then as many in one copy, beginning 16 bytes into a sector, and back.
    let text = ".version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out)
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    .shared .align 128 .b8 tile[1024];
    .shared .align 8 .b64 full;
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, tile;
    mov.u32 %r2, full;
    setp.eq.u32 %p0, %r0, 0;
    mad.lo.u32 %r3, %r0, 16, %r1;
    mul.wide.u32 %rd1, %r0, 16;
    add.u64 %rd1, %rd1, %rd0;
    @%p0 mbarrier.init.shared.b64 [%r2], 1;
    cp.async.cg.shared.global [%r3], [%rd1], 16;
    cp.async.wait_all;
    bar.sync 0;
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 512;
    @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+512], [%rd0+16], 512, [%r2];
W:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 0;
    @!%p1 bra W;
    fence.proxy.async;
    bar.sync 0;
    @%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd0+1024], [%r1], 512;
    @%p0 cp.async.bulk.commit_group;
    @%p0 cp.async.bulk.wait_group 0;
    ret;
}
";
    let program = Program::load(text).expect("a module");
    let memory = Memory::new();
    let out = memory.alloc(2048, "out").expect("memory");
    memory.fill(out, 1, 2048).expect("fill");
    let report =
        launch(&program, "k", &LaunchConfig::linear(1, 32), &out.to_le_bytes(), &memory, &counting());
    let report = report.expect("a launch");
    assert!(report.is_clean(), "{:?}", report.findings);
    let of = |what: &str| {
        let line = text.lines().position(|l| l.contains(what)).expect("a line") as u32 + 1;
        &report.lines.iter().find(|l| l.line == line).expect("counters").counters
    };
    let global =
        |t: warpwright_emu::counters::GlobalTraffic| (t.accesses, t.sectors, t.ideal_sectors, t.bytes);
    let shared = |t: warpwright_emu::counters::SharedTraffic| (t.accesses, t.wavefronts, t.bytes);
    let copy = of("cp.async.cg");
    assert_eq!((global(copy.global_loads), shared(copy.shared_stores)), ((1, 16, 16, 512), (1, 4, 512)));
    let bulk = of("bulk.shared");
    assert_eq!((global(bulk.global_loads), shared(bulk.shared_stores)), ((1, 17, 16, 512), (1, 4, 512)));
    let back = of("bulk.global");
    assert_eq!((global(back.global_stores), shared(back.shared_loads)), ((1, 16, 16, 512), (1, 4, 512)));
}
