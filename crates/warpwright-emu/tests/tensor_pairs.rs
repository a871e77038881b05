//! Products of pairs of blocks against sums in f64, in several orders of completion and under all sanitizers.

#[path = "support/assemble.rs"]
mod assemble;

use assemble::assemble;
use warpwright_emu::{Completion, LaunchConfig, Memory, Options, Program, launch};
use warpwright_ptx::float16::f16_bits;

/// Elements of a row: 32 bytes.
const K: usize = 16;

/// A product of f16 with sums in f32, of `m` rows by two blocks; `commit` and `leave` are what a kernel does there.
fn kernel(m: usize, n: usize, commit: &str, leave: &str) -> String {
    let bytes = (m / 2 + n / 2) * 32;
    let columns = if m == 256 { n } else { n / 2 };
    let instruction = 1 << 4 | (n / 8) << 17 | (m / 16) << 24;
    let upper = 8u64 << 16 | 16 << 32 | 1 << 46;
    let mut text = format!(
        ".version 8.6\n.target sm_100a\n.address_size 64\n.extern .shared .align 128 .b8 tiles[];
.visible .entry k(.param .u64 image, .param .u64 d)\n.reqntid 128\n.reqnctapercluster 2\n{{
    .reg .pred %p, %first, %zero, %add; .reg .b16 %both; .reg .b32 %r<8>, %t, %warp, %tiles, %bar, %mem, %at, %i, %rank;
    .reg .b64 %rd<4>, %da, %db, %out; .shared .align 8 .b64 bar; .shared .align 4 .b32 mem;
    mov.u32 %t, %tid.x; shr.u32 %warp, %t, 5; mov.u32 %tiles, tiles; mov.u32 %bar, bar; mov.u32 %rank, %cluster_ctarank;
    setp.eq.u32 %zero, %warp, 0; setp.ne.u32 %add, %t, %t; setp.eq.u32 %first, %t, 0;
    ld.param.u64 %rd0, [image]; mul.wide.u32 %rd1, %rank, {bytes}; add.u64 %rd0, %rd0, %rd1; shl.b32 %i, %t, 4;
COPY:
    setp.lt.u32 %p, %i, {bytes}; @!%p bra COPIED;
    cvt.u64.u32 %rd1, %i; add.u64 %rd1, %rd0, %rd1; add.u32 %at, %tiles, %i;
    ld.v4.b32 {{%r0, %r1, %r2, %r3}}, [%rd1]; st.shared.v4.b32 [%at], {{%r0, %r1, %r2, %r3}};
    add.u32 %i, %i, 2048; bra COPY;
COPIED:
    fence.proxy.async.shared::cta;
    @%first mbarrier.init.shared.b64 [%bar], 1; fence.mbarrier_init.release.cluster;
    bar.sync 0;
    @!%zero bra ALLOCATED;
    mov.u32 %at, mem; tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%at], 128;
    tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
ALLOCATED:
    tcgen05.fence::before_thread_sync; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    tcgen05.fence::after_thread_sync; ld.shared.b32 %mem, [mem];
    or.b32 %i, %t, %rank; setp.eq.u32 %first, %i, 0;
    @!%first bra ISSUED;
    shr.u32 %at, %tiles, 4; cvt.u64.u32 %da, %at; or.b64 %da, %da, {upper}; add.u64 %db, %da, {};
    tcgen05.mma.cta_group::2.kind::f16 [%mem], %da, %db, {instruction}, %add;
    setp.eq.u32 %add, %t, %t; tcgen05.mma.cta_group::2.kind::f16 [%mem], %da, %db, {instruction}, %add;
    mov.b16 %both, 3;
    {commit}
ISSUED:
    bar.warp.sync -1;
WAIT:
    mbarrier.try_wait.parity.acquire.cluster.shared.b64 %p, [%bar], 0; @!%p bra WAIT;
    tcgen05.fence::after_thread_sync;
    ld.param.u64 %out, [d]; mul.wide.u32 %rd1, %rank, {}; add.u64 %out, %out, %rd1; mul.wide.u32 %rd1, %t, {};
    add.u64 %out, %out, %rd1; shl.b32 %at, %warp, 21; add.u32 %at, %mem, %at;\n",
        m / 2 * 2,
        128 * columns * 4,
        columns * 4
    );
    for column in (0..columns).step_by(8) {
        text += &format!(
            "    tcgen05.ld.sync.aligned.32x32b.x8.b32 {{%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}}, [%at+{column}];
    tcgen05.wait::ld.sync.aligned; st.v4.b32 [%out+{}], {{%r0, %r1, %r2, %r3}}; st.v4.b32 [%out+{}], {{%r4, %r5, %r6, %r7}};\n",
            4 * column,
            4 * column + 16
        );
    }
    text + &format!(
        "    tcgen05.fence::before_thread_sync; {leave}
    @!%zero bra DONE;
    tcgen05.dealloc.cta_group::2.sync.aligned.b32 %mem, 128;
DONE:
    ret;\n}}\n"
    )
}

/// Commits to the mbarriers of both blocks.
const COMMIT: &str =
    "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%bar], %both;";
/// Neither block leaves before the other.
const LEAVE: &str = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;";

fn number(i: usize, step: usize) -> f64 {
    ((i * step + i / 7) % 5) as f64 - 2.0
}

/// Rows in matrices of eight rows of 16 bytes.
fn tile(rows: &[Vec<f64>]) -> Vec<u8> {
    let mut out = vec![0; rows.len() * 32];
    for (r, row) in rows.iter().enumerate() {
        for (k, value) in row.iter().enumerate() {
            let place = r / 8 * 256 + k / 8 * 128 + r % 8 * 16 + k % 8 * 2;
            out[place..place + 2].copy_from_slice(&f16_bits(*value).to_le_bytes());
        }
    }
    out
}

/// Launches a kernel; what is found, as kinds, and the words of D.
fn run(text: &str, image: &[u8], words: usize, completion: Completion, seed: u64) -> (Vec<String>, Vec<u32>) {
    let program = Program::load(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let memory = Memory::new();
    let buffer = |bytes: &[u8]| {
        let address = memory.alloc(bytes.len() as u64, "buffer").expect("memory");
        memory.write(address, bytes).expect("inside the allocation");
        address
    };
    let (image_at, d) = (buffer(image), buffer(&vec![0; 4 * words]));
    let params = [image_at.to_le_bytes(), d.to_le_bytes()].concat();
    let shared = image.len() as u32 / 2;
    let config = LaunchConfig { cluster: [2, 1, 1], dynamic_shared: shared, ..LaunchConfig::linear(2, 128) };
    let options = Options { seed, completion, max_steps: 1 << 22, ..Options::default() };
    let report = launch(&program, "k", &config, &params, &memory, &options).unwrap_or_else(|e| panic!("{e}"));
    let mut out = vec![0; 4 * words];
    memory.read(d, &mut out).expect("inside the allocation");
    let kinds = report.findings.iter().map(|f| format!("{} {}", f.tool.name(), f.kind)).collect();
    (kinds, out.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect())
}

/// A and B as the blocks have them: half of the rows of each.
fn factors(m: usize, n: usize) -> (Vec<Vec<f64>>, Vec<Vec<f64>>, Vec<u8>) {
    let matrix = |rows: usize, step: usize| -> Vec<Vec<f64>> {
        (0..rows).map(|r| (0..K).map(|k| number(r * 31 + k, step)).collect()).collect()
    };
    let (a, b) = (matrix(m, 3), matrix(n, 2));
    let half = |rows: &[Vec<f64>], i: usize| tile(&rows[i * rows.len() / 2..(i + 1) * rows.len() / 2]);
    let image = [0, 1].map(|i| [half(&a, i), half(&b, i)].concat()).concat();
    (a, b, image)
}

#[test]
fn two_blocks_share_rows_and_columns() {
    for (m, n) in [(256, 64), (256, 16), (128, 64), (128, 128)] {
        let (a, b, image) = factors(m, n);
        let columns = if m == 256 { n } else { n / 2 };
        let text = kernel(m, n, COMMIT, LEAVE);
        assemble(&text);
        for (seed, completion) in (0..).zip([Completion::Latest, Completion::Eager, Completion::Random]) {
            let (found, words) = run(&text, &image, 256 * columns, completion, seed);
            assert!(found.is_empty(), "{m} x {n}, {completion:?}: {found:?}");
            for (at, word) in words.iter().enumerate() {
                let (rank, lane, column) = (at / columns / 128, at / columns % 128, at % columns);
                let (row, column) = match m {
                    256 => (128 * rank + lane, column),
                    _ => (64 * rank + lane % 64, lane / 64 * columns + column),
                };
                let want: f64 = a[row].iter().zip(&b[column]).map(|(a, b)| 2.0 * a * b).sum();
                let got = f64::from(f32::from_bits(*word));
                assert!(got == want, "{m} x {n}: row {row}, column {column}: {got}, not {want}");
            }
        }
    }
}

#[test]
fn a_product_of_a_pair_is_watched_in_both_blocks() {
    let (_, _, image) = factors(256, 64);
    for (seed, completion) in (0..).zip([Completion::Latest, Completion::Eager, Completion::Random]) {
        // The other block arrives for itself, and loads what it has not been told of.
        let alone = "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64 [%bar];";
        let arrive = "ISSUED:
    mad.lo.u32 %i, %rank, 128, %t; setp.eq.u32 %p, %i, 128; @%p mbarrier.arrive.shared.b64 _, [%bar];";
        let text = kernel(256, 64, alone, LEAVE).replace("ISSUED:", arrive);
        assemble(&text);
        let (found, _) = run(&text, &image, 256 * 64, completion, seed);
        assert!(found.iter().any(|kind| kind.starts_with("racecheck tensor-")), "{completion:?}: {found:?}");
    }
    let text = kernel(256, 64, COMMIT, LEAVE).replace(".reqnctapercluster 2\n", "");
    let program = Program::load(&text).expect("a kernel");
    let memory = Memory::new();
    let at = memory.alloc(image.len() as u64, "image").expect("memory");
    memory.write(at, &image).expect("inside the allocation");
    let params = [at.to_le_bytes(), at.to_le_bytes()].concat();
    let config = LaunchConfig { dynamic_shared: 1 << 15, ..LaunchConfig::linear(1, 128) };
    let report = launch(
        &program,
        "k",
        &config,
        &params,
        &memory,
        &Options { max_steps: 1 << 20, ..Options::default() },
    );
    let found = report.map(|r| r.findings.iter().map(|f| f.kind).collect::<Vec<_>>()).expect("a report");
    assert!(found.contains(&"no-such-block"), "{found:?}");
}
