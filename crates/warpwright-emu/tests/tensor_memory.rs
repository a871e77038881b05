//! Whole kernels of the fifth generation of tensor cores against sums in f64, in several schedules and under all
//! sanitizers.

#[path = "support/assemble.rs"]
mod assemble;

use std::fmt::Write as _;

use assemble::assemble;
use half::f16;
use warpwright_emu::{Completion, LaunchConfig, Memory, Options, Program, launch};
use warpwright_ptx::float16::{bf16_bits, f16_bits};

/// Bytes of a tile along k: a pattern of the widest swizzle.
const TILE: usize = 128;

/// Types of a product, as its text and its instruction descriptor have them.
#[derive(Clone, Copy, Debug)]
struct Types {
    kind: &'static str,
    /// Codes of A and B.
    codes: [u32; 2],
    /// Code of D: 0 f16, 1 f32, 2 s32.
    sums: u32,
    /// Bits of an element in shared memory, with what fills it up.
    bits: usize,
}

const F16: Types = Types { kind: "f16", codes: [0, 0], sums: 1, bits: 16 };
const BF16: Types = Types { kind: "f16", codes: [1, 1], sums: 1, bits: 16 };
const HALF_SUMS: Types = Types { kind: "f16", codes: [0, 0], sums: 0, bits: 16 };
const TF32: Types = Types { kind: "tf32", codes: [2, 2], sums: 1, bits: 32 };
const E4M3_E5M2: Types = Types { kind: "f8f6f4", codes: [0, 1], sums: 1, bits: 8 };
const E2M1_E3M2: Types = Types { kind: "f8f6f4", codes: [5, 4], sums: 1, bits: 8 };
const E2M3: Types = Types { kind: "f8f6f4", codes: [3, 3], sums: 1, bits: 8 };
const I8: Types = Types { kind: "i8", codes: [1, 0], sums: 2, bits: 8 };

/// How a tile lies in shared memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    /// Rows of 128, 64 or 32 bytes along k, whose pieces of 16 bytes are exchanged.
    Swizzled(usize),
    /// Matrices of eight rows of 16 bytes, those along k behind each other.
    Plain,
    /// Rows of 128 bytes along M or N for each k, swizzled.
    Transposed,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    m: usize,
    n: usize,
    types: Types,
    layout: Layout,
    /// Whether A is stored to tensor memory first.
    a_in_memory: bool,
}

/// A small number that every type has.
fn number(i: usize, step: usize, types: Types, which: usize) -> f64 {
    let value = (i * step + i / 7) % 5;
    match (types.kind, types.codes[which]) {
        ("i8", 0) => value as f64,
        (_, 3) => value as f64 * 0.375 - 0.75,
        _ => value as f64 - 2.0,
    }
}

/// The bits of a value with `exponent` and `mantissa` bits behind its sign.
fn narrow(value: f64, exponent: i32, mantissa: i32) -> u32 {
    if value == 0.0 {
        return 0;
    }
    let bias = (1 << (exponent - 1)) - 1;
    let e = (value.abs().log2().floor() as i32).max(1 - bias);
    let fraction = (value.abs() / 2f64.powi(e - mantissa)) as u32;
    let code = fraction + (((e + bias - 1) as u32) << mantissa);
    code | u32::from(value < 0.0) << (exponent + mantissa)
}

fn encode(value: f64, types: Types, which: usize) -> u32 {
    match (types.kind, types.codes[which]) {
        ("f16", 0) => f16_bits(value).into(),
        ("f16", _) => bf16_bits(value).into(),
        ("tf32", _) => (value as f32).to_bits(),
        ("i8", _) => u32::from(value as i8 as u8),
        (_, 0) => narrow(value, 4, 3),
        (_, 1) => narrow(value, 5, 2),
        (_, 3) => narrow(value, 2, 3),
        (_, 4) => narrow(value, 3, 2),
        (_, _) => narrow(value, 2, 1),
    }
}

/// The bytes of a row: 128 of them, of which narrow elements fill 16 for 16.
fn row_bytes(values: &[f64], types: Types, which: usize) -> Vec<u8> {
    let width = match (types.kind, types.codes[which]) {
        ("f8f6f4", 5) => 4,
        ("f8f6f4", 3 | 4) => 6,
        _ => types.bits,
    };
    let mut bytes = Vec::new();
    for sixteen in values.chunks(16) {
        let mut piece = vec![0u8; 16 * types.bits / 8];
        for (i, value) in sixteen.iter().enumerate() {
            let code = encode(*value, types, which);
            for bit in 0..width {
                piece[(i * width + bit) / 8] |= ((code >> bit & 1) as u8) << ((i * width + bit) % 8);
            }
        }
        bytes.extend(piece);
    }
    bytes
}

/// A tile in shared memory, and the fields of its descriptor: leading and stride offsets, swizzle, and the bytes from one
/// step along k to the next.
fn image(rows: &[Vec<u8>], types: Types, layout: Layout) -> (Vec<u8>, [usize; 4]) {
    let mut out = vec![0; rows.len() * TILE];
    for (r, bytes) in rows.iter().enumerate() {
        for (at, byte) in bytes.iter().enumerate() {
            let place = match layout {
                Layout::Plain => (r / 8) * 1024 + (at / 16) * 128 + (r % 8) * 16 + at % 16,
                Layout::Swizzled(width) => {
                    // Columns of `width` bytes one behind the other.
                    let inside = (r % 8) * width + at % width;
                    let turned = inside ^ (inside >> 7 & (width / 16 - 1)) << 4;
                    (at / width) * rows.len() * width + (r / 8) * 8 * width + turned
                }
                Layout::Transposed => {
                    let (element, part) = (at / (types.bits / 8), at % (types.bits / 8));
                    let per_row = 128 / (types.bits / 8);
                    let inside = (element % 8) * 128 + (r % per_row) * (types.bits / 8) + part;
                    let turned = inside ^ (inside >> 7 & 7) << 4;
                    (r / per_row) * TILE * per_row + (element / 8) * 1024 + turned
                }
            };
            out[place] = *byte;
        }
    }
    let fields = match layout {
        Layout::Plain => [128, 1024, 0, 256],
        Layout::Swizzled(128) => [16, 1024, 2, 32],
        Layout::Swizzled(64) => [16, 512, 4, 32],
        Layout::Swizzled(_) => [16, 256, 6, 32 * rows.len()],
        Layout::Transposed => {
            let elements = 8 / types.bits.min(8) * 128 / (types.bits / 8);
            [TILE * elements, 1024, 2, 32 / (types.bits / 8) / 8 * 1024]
        }
    };
    (out, fields)
}

/// The first part of a kernel: fills shared memory with `bytes` bytes of `image`, prepares an mbarrier and allocates columns.
fn kernel_head(bytes: usize, columns: usize) -> String {
    format!(
        ".version 8.8\n.target sm_100a\n.address_size 64\n.extern .shared .align 1024 .b8 tiles[];\n
.visible .entry k(.param .u64 image, .param .u64 a, .param .u64 d)\n.reqntid 128\n{{
    .reg .pred %p, %first, %zero, %add; .reg .b32 %r<128>; .reg .b32 %t, %warp, %tiles, %i, %bar, %mem, %at, %desc, %quarter;
    .reg .b64 %rd<8>; .reg .b64 %da, %db, %out;
    .shared .align 8 .b64 bar; .shared .align 4 .b32 mem;
    mov.u32 %t, %tid.x; shr.u32 %warp, %t, 5; mov.u32 %tiles, tiles; mov.u32 %bar, bar;
    shl.b32 %quarter, %warp, 21;
    setp.eq.u32 %first, %t, 0; setp.eq.u32 %zero, %warp, 0; setp.ne.u32 %add, %t, %t;
    ld.param.u64 %rd0, [image]; cvta.to.global.u64 %rd0, %rd0;
    ld.param.u64 %out, [d]; cvta.to.global.u64 %out, %out;
    shl.b32 %i, %t, 4;
COPY:
    cvt.u64.u32 %rd1, %i; add.u64 %rd1, %rd0, %rd1; add.u32 %at, %tiles, %i;
    ld.global.v4.b32 {{%r0, %r1, %r2, %r3}}, [%rd1]; st.shared.v4.b32 [%at], {{%r0, %r1, %r2, %r3}};
    add.u32 %i, %i, 2048; setp.lt.u32 %p, %i, {bytes}; @%p bra COPY;
    fence.proxy.async.shared::cta;
    @%first mbarrier.init.shared.b64 [%bar], 1;
    @!%zero bra ALLOCATED;
    mov.u32 %at, mem;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%at], {columns};
    tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
ALLOCATED:
    tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
    ld.shared.b32 %mem, [mem];
"
    )
}

/// The last part of a kernel: commits, waits, writes `n` columns of `m` rows to `d` and frees the columns.
fn kernel_tail(w: &mut String, m: usize, n: usize, columns: usize) {
    write!(
        w,
        "    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar];
ISSUED:
    bar.warp.sync -1;
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p, [%bar], 0; @!%p bra WAIT;
    tcgen05.fence::after_thread_sync;
    add.u32 %at, %mem, %quarter; mul.wide.u32 %rd1, %t, {}; add.u64 %out, %out, %rd1;\n",
        4 * n
    )
    .expect("text");
    let piece = if n.is_multiple_of(32) { 32 } else { 8 };
    for column in (0..n).step_by(piece) {
        let registers: Vec<String> = (0..piece).map(|i| format!("%r{i}")).collect();
        write!(
            w,
            "    tcgen05.ld.sync.aligned.32x32b.x{piece}.b32 {{{}}}, [%at+{column}];\n    tcgen05.wait::ld.sync.aligned;\n",
            registers.join(", ")
        )
        .expect("text");
        // Of 64 rows half of the lanes hold none.
        let guard = if m == 64 { "and.b32 %i, %t, 31; setp.lt.u32 %p, %i, 16; @%p " } else { "" };
        for (i, register) in registers.iter().enumerate() {
            let guard = if i == 0 || guard.is_empty() { guard } else { "@%p " };
            writeln!(w, "    {guard}st.global.b32 [%out+{}], {register};", 4 * (column + i)).expect("text");
        }
    }
    write!(
        w,
        "    tcgen05.fence::before_thread_sync; bar.sync 0;
    @!%zero bra DONE;
    tcgen05.fence::after_thread_sync;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %mem, {columns};
DONE:
    ret;\n}}\n"
    )
    .expect("text");
}

/// The kernel of a case: shared memory comes as it is to be from `image`; four products make the tile's sums.
fn kernel(case: Case, fields: [usize; 4]) -> String {
    let Case { m, n, types, layout, a_in_memory } = case;
    let transposed = u32::from(layout == Layout::Transposed);
    let a_transposed = if a_in_memory { 0 } else { transposed };
    let [a_code, b_code] = types.codes;
    let instruction = types.sums << 4
        | a_code << 7
        | b_code << 10
        | a_transposed << 15
        | transposed << 16
        | (n as u32 / 8) << 17
        | (m as u32 / 16) << 24;
    let [leading, stride, swizzle, step] = fields;
    let upper = (leading as u64 / 16) << 16 | (stride as u64 / 16) << 32 | 1 << 46 | (swizzle as u64) << 61;
    let columns = (n + 32).next_power_of_two().max(64);
    let mut t = kernel_head((m + n) * TILE, columns);
    let w = &mut t;
    if a_in_memory {
        // Every thread stores the row that its lane has: 32 words behind D.
        let row = if m == 128 {
            "mov.u32 %at, %t;"
        } else {
            "and.b32 %at, %t, 15; shl.b32 %r0, %warp, 4; add.u32 %at, %at, %r0;"
        };
        write!(w, "    ld.param.u64 %rd2, [a]; cvta.to.global.u64 %rd2, %rd2; {row}\n    mul.wide.u32 %rd3, %at, {TILE}; add.u64 %rd2, %rd2, %rd3;\n").expect("text");
        for i in 0..32 {
            writeln!(w, "    ld.global.b32 %r{i}, [%rd2+{}];", 4 * i).expect("text");
        }
        let registers: Vec<String> = (0..32).map(|i| format!("%r{i}")).collect();
        write!(
            w,
            "    add.u32 %at, %mem, %quarter;\n    tcgen05.st.sync.aligned.32x32b.x32.b32 [%at+{n}], {{{}}};\n    tcgen05.wait::st.sync.aligned;
    tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;\n",
            registers.join(", ")
        )
        .expect("text");
    }
    write!(
        w,
        "    @!%first bra ISSUED;
    shr.u32 %at, %tiles, 4; cvt.u64.u32 %da, %at; or.b64 %da, %da, {upper};
    add.u32 %at, %tiles, {}; shr.u32 %at, %at, 4; cvt.u64.u32 %db, %at; or.b64 %db, %db, {upper};
    mov.b32 %desc, {instruction}; add.u32 %at, %mem, {n};\n",
        m * TILE
    )
    .expect("text");
    let sizes = [m, n].map(|rows| if matches!(layout, Layout::Swizzled(32)) { 32 * rows } else { step });
    for k in 0..4 {
        let a = if a_in_memory { "[%at]" } else { "%da" };
        writeln!(w, "    tcgen05.mma.cta_group::1.kind::{} [%mem], {a}, %db, %desc, %add;", types.kind)
            .expect("text");
        // Half of a row of 64 bytes is in the next column.
        let next = |rows: usize, step: usize| match layout {
            Layout::Swizzled(64) if k % 2 == 1 => rows * 64 - 32,
            _ => step,
        };
        writeln!(
            w,
            "    add.u64 %da, %da, {}; add.u64 %db, %db, {}; add.u32 %at, %at, 8; setp.eq.u32 %add, %t, %t;",
            next(m, sizes[0]) / 16,
            next(n, sizes[1]) / 16
        )
        .expect("text");
    }
    kernel_tail(w, m, n, columns);
    t
}

/// Runs a kernel in three orders of completion; every one must be without findings and give the same.
fn run(text: &str, buffers: &[Vec<u8>], config: &LaunchConfig) -> Vec<u32> {
    let program = Program::load(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut results = Vec::new();
    for (seed, completion) in (0..).zip([Completion::Latest, Completion::Eager, Completion::Random]) {
        let memory = Memory::new();
        let mut params = Vec::new();
        let mut last = 0;
        for (i, data) in buffers.iter().enumerate() {
            last = memory.alloc(data.len() as u64, &format!("buffer {i}")).expect("memory");
            memory.write(last, data).expect("inside the allocation");
            params.extend(last.to_le_bytes());
        }
        let options = Options { seed, completion, ..Options::default() };
        let report =
            launch(&program, "k", config, &params, &memory, &options).unwrap_or_else(|e| panic!("{e}"));
        let findings: String = report.findings.iter().map(|f| f.render(None, text)).collect();
        assert!(findings.is_empty(), "{completion:?}: {findings}");
        let mut out = vec![0; buffers.last().map_or(0, Vec::len)];
        memory.read(last, &mut out).expect("inside the allocation");
        results.push(out);
    }
    assert!(results.windows(2).all(|r| r[0] == r[1]), "the order of completion shows");
    results[0].chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect()
}

/// A word of D as a number.
fn sum_of(word: u32, types: Types) -> f64 {
    match types.sums {
        0 => f16::from_bits(word as u16).to_f64(),
        1 => f32::from_bits(word).into(),
        _ => (word as i32).into(),
    }
}

/// A change of a kernel and what it makes of the sums of the four products: `None` where D is not written.
struct Variant<'a> {
    text: &'a dyn Fn(String) -> String,
    sum: &'a dyn Fn([f64; 4], usize) -> Option<f64>,
}

fn check(case: Case) {
    check_variant(case, &Variant { text: &|text| text, sum: &|parts, _| Some(parts.iter().sum()) });
}

fn check_variant(case: Case, variant: &Variant<'_>) {
    let Case { m, n, types, layout, a_in_memory } = case;
    let k = TILE * 8 / types.bits;
    let matrix = |rows: usize, step: usize, which: usize| -> Vec<Vec<f64>> {
        (0..rows).map(|r| (0..k).map(|c| number(r * 31 + c, step, types, which)).collect()).collect()
    };
    let (a, b) = (matrix(m, 3, 0), matrix(n, 2, 1));
    let bytes = |rows: &[Vec<f64>], which: usize| -> Vec<Vec<u8>> {
        rows.iter().map(|row| row_bytes(row, types, which)).collect()
    };
    let (a_bytes, b_bytes) = (bytes(&a, 0), bytes(&b, 1));
    let (mut shared, fields) = image(&a_bytes, types, layout);
    let (b_image, b_fields) = image(&b_bytes, types, layout);
    shared.extend(b_image);
    assert_eq!(fields[..3], b_fields[..3]);
    let size = shared.len() as u32;
    let text = (variant.text)(kernel(case, fields));
    assemble(&text);
    let config = LaunchConfig { dynamic_shared: size, ..LaunchConfig::linear(1, 128) };
    let words = run(&text, &[shared, a_bytes.concat(), vec![0; 128 * n * 4]], &config);
    for (row, a) in a.iter().enumerate() {
        let lane = if m == 128 { row } else { row / 16 * 32 + row % 16 };
        for (column, b) in b.iter().enumerate() {
            let part = |i: usize| (i * k / 4..(i + 1) * k / 4).map(|k| a[k] * b[k]).sum();
            let Some(want) = (variant.sum)([0, 1, 2, 3].map(part), lane) else { continue };
            let got = sum_of(words[lane * n + column], types);
            assert!(got == want, "{case:?}: row {row}, column {column}: {got}, not {want}");
        }
    }
    assert!(a_in_memory || words.iter().any(|w| *w != 0));
}

#[test]
fn sums_are_scaled_and_lanes_are_left_as_they_are() {
    let case = Case { m: 128, n: 16, types: F16, layout: Layout::Swizzled(128), a_in_memory: false };
    let scaled = Variant {
        text: &|text| text.replace("%desc, %add;", "%desc, %add, 2;"),
        sum: &|parts, _| Some(((parts[0] / 4.0 + parts[1]) / 4.0 + parts[2]) / 4.0 + parts[3]),
    };
    check_variant(case, &scaled);
    check_variant(Case { types: TF32, m: 64, ..case }, &scaled);
    // Of the later products all lanes but 1, 32 to 47 and 127 are written.
    let masked = Variant {
        text: &|text| {
            let (first, rest) = text.split_once("%desc, %add;").expect("a product");
            let values = "mov.b32 %r0, 2; mov.b32 %r1, 0xFFFF; mov.b32 %r2, 0; mov.b32 %r3, 0x80000000;";
            let rest = rest.replace("%desc, %add;", "%desc, {%r0, %r1, %r2, %r3}, %add;");
            format!("{first}%desc, %add; {values}{rest}")
        },
        sum: &|parts, lane| {
            let left = matches!(lane, 1 | 32..48 | 127);
            Some(if left { parts[0] } else { parts.iter().sum() })
        },
    };
    check_variant(case, &masked);
    check_variant(Case { m: 64, ..case }, &masked);
}

/// Copies 128 rows of 32 bytes of words that count, from matrices of eight rows of 16 bytes, by `copy`, and gives what the
/// 128 lanes of 8 columns hold, where other instructions wrote `old`.
fn copied(copy: &str, old: u32) -> Vec<Vec<u32>> {
    let mut text = format!(
        ".version 8.6\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .u64 out)\n.reqntid 128\n{{
    .reg .pred %first, %zero, %p; .reg .b32 %r<8>, %t, %warp, %tile, %bar, %mem, %at, %i; .reg .b64 %desc, %out, %o;
    .shared .align 16 .b8 tile[4096]; .shared .align 8 .b64 bar; .shared .align 4 .b32 mem;
    mov.u32 %t, %tid.x; shr.u32 %warp, %t, 5; mov.u32 %tile, tile; mov.u32 %bar, bar;
    setp.eq.u32 %first, %t, 0; setp.eq.u32 %zero, %warp, 0; mov.u32 %i, %t;
FILL:
    shl.b32 %at, %i, 2; add.u32 %at, %tile, %at; st.shared.b32 [%at], %i; add.u32 %i, %i, 128;
    setp.lt.u32 %p, %i, 1024; @%p bra FILL;
    fence.proxy.async.shared::cta; @%first mbarrier.init.shared.b64 [%bar], 1;
    @!%zero bra ALLOCATED;
    mov.u32 %at, mem; tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%at], 32;
ALLOCATED:
    tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
    ld.shared.b32 %mem, [mem]; shl.b32 %at, %warp, 21; add.u32 %at, %mem, %at; mov.u32 %i, {old};
    tcgen05.st.sync.aligned.32x32b.x8.b32 [%at], {{%i, %i, %i, %i, %i, %i, %i, %i}};
    tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
    @!%first bra ISSUED;
    shr.u32 %i, %tile, 4; cvt.u64.u32 %desc, %i; or.b64 %desc, %desc, {};
    {copy}
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar];
ISSUED:
    bar.warp.sync -1;
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p, [%bar], 0; @!%p bra WAIT;
    tcgen05.fence::after_thread_sync;
    tcgen05.ld.sync.aligned.32x32b.x8.b32 {{%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}}, [%at];
    tcgen05.wait::ld.sync.aligned;
    ld.param.u64 %out, [out]; mul.wide.u32 %o, %t, 32; add.u64 %out, %out, %o;
    st.v4.b32 [%out], {{%r0, %r1, %r2, %r3}}; st.v4.b32 [%out+16], {{%r4, %r5, %r6, %r7}};
    tcgen05.fence::before_thread_sync; bar.sync 0;
    @!%zero bra DONE;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %mem, 32;
DONE:
    ret;\n",
        // Matrices along a row 128 bytes apart, and along the rows 256 bytes.
        8u64 << 16 | 16 << 32 | 1 << 46
    );
    text += "}\n";
    assemble(&text);
    run(&text, &[vec![0; 4096]], &LaunchConfig::linear(1, 128)).chunks(8).map(<[u32]>::to_vec).collect()
}

#[test]
fn copies_go_to_the_lanes_that_their_shapes_name() {
    // Word `w` of a row, in matrices of eight rows of four words.
    let word = |row: usize, w: usize| (row / 8 * 64 + w / 4 * 32 + row % 8 * 4 + w % 4) as u32;
    let old = 77_777;
    // The row that a lane has, and the words of it.
    type Rows<'a> = &'a dyn Fn(usize) -> Option<usize>;
    let cases: [(&str, Rows<'_>, usize); 7] = [
        ("128x256b [%mem]", &Some, 8),
        ("128x128b [%mem]", &Some, 4),
        ("4x256b [%mem]", &|lane| (lane % 32 == 0).then_some(lane / 32), 8),
        ("4x256b [%i]", &|lane| (lane % 32 == 28).then_some(lane / 32), 8),
        ("64x128b.warpx2::02_13 [%mem]", &|lane| Some(lane % 64), 4),
        ("64x128b.warpx2::01_23 [%mem]", &|lane| Some(lane / 64 * 32 + lane % 32), 4),
        ("32x128b.warpx4 [%mem]", &|lane| Some(lane % 32), 4),
    ];
    for (shape, row, words) in cases {
        let copy = format!("add.u32 %i, %mem, {}; tcgen05.cp.cta_group::1.{shape}, %desc;", 28 << 16);
        for (lane, got) in copied(&copy, old).iter().enumerate() {
            for (w, got) in got.iter().enumerate() {
                let want = row(lane).filter(|_| w < words).map_or(old, |row| word(row, w));
                assert_eq!(*got, want, "{shape}: lane {lane}, word {w}");
            }
        }
    }
}

#[test]
fn products_of_every_type_and_shape() {
    let case = Case { m: 128, n: 64, types: F16, layout: Layout::Swizzled(128), a_in_memory: false };
    for types in [F16, BF16, HALF_SUMS, TF32, E4M3_E5M2, E2M1_E3M2, E2M3, I8] {
        check(Case { types, ..case });
        check(Case { types, m: 64, n: 8, ..case });
    }
    for n in [16, 48, 256] {
        check(Case { n, ..case });
    }
    check(Case { m: 64, n: 24, ..case });
}

#[test]
fn factors_lie_in_shared_memory_as_their_descriptors_say() {
    let case = Case { m: 128, n: 64, types: F16, layout: Layout::Plain, a_in_memory: false };
    for layout in [Layout::Plain, Layout::Swizzled(64), Layout::Swizzled(32), Layout::Transposed] {
        check(Case { layout, ..case });
        check(Case { layout, m: 64, n: 128, ..case });
    }
    check(Case { layout: Layout::Transposed, types: E4M3_E5M2, n: 128, ..case });
}

#[test]
fn the_first_factor_may_be_in_tensor_memory() {
    let case = Case { m: 128, n: 64, types: F16, layout: Layout::Swizzled(128), a_in_memory: true };
    for types in [F16, TF32, E4M3_E5M2, I8] {
        check(Case { types, ..case });
        check(Case { types, m: 64, ..case });
    }
}

/// Where register `r` of lane `t` lies: lane and column from the start of the access on. The numbers are the strides of the
/// layouts in CuTe's `copy_traits_sm100.hpp`, in bits.
fn fragment(shape: &str, t: u32, r: u32, split: u32) -> (u32, u32) {
    let (width, bit) = match shape {
        "32x32b" => return (t, r),
        "16x32bx2" => return (t % 16, r + t / 16 * split),
        "16x64b" => (64, 512 * (t % 2) + 32 * (t / 2 % 2) + 64 * (t / 4)),
        "16x128b" => (128, 32 * (t % 4) + 128 * (t / 4) + 1024 * (r % 2)),
        "16x256b" => (256, 64 * (t % 4) + 256 * (t / 4) + 32 * (r % 2) + 2048 * (r / 2 % 2)),
        other => panic!("{other}"),
    };
    let pieces = r / (width / 64).max(1);
    (bit / width, bit % width / 32 + pieces * width / 32)
}

/// One warp: stores words to 64 columns, from `t` in `stored`, and gives what it loads as `loaded`.
fn through_tensor_memory(store: &str, stored: &[Vec<u32>], load: &str, loaded: usize) -> Vec<Vec<u32>> {
    let registers = |n: usize| (0..n).map(|i| format!("%r{i}")).collect::<Vec<_>>().join(", ");
    let mut text = String::new();
    write!(
        text,
        ".version 8.6\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .u64 words, .param .u64 out)\n.reqntid 32\n{{
    .reg .b32 %r<128>, %t, %at, %mem; .reg .b64 %in, %out, %o; .shared .align 4 .b32 mem;
    mov.u32 %t, %tid.x; mov.u32 %at, mem;
    ld.param.u64 %in, [words]; ld.param.u64 %out, [out];
    mul.wide.u32 %o, %t, {}; add.u64 %in, %in, %o; mul.wide.u32 %o, %t, {}; add.u64 %out, %out, %o;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%at], 64;
    bar.sync 0; ld.shared.b32 %mem, [mem]; mov.b32 %r0, 0;\n",
        4 * stored[0].len(),
        4 * loaded
    )
    .expect("text");
    for column in 0..64 {
        writeln!(text, "    tcgen05.st.sync.aligned.32x32b.x1.b32 [%mem+{column}], {{%r0}};").expect("text");
    }
    for i in 0..stored[0].len() {
        writeln!(text, "    ld.b32 %r{i}, [%in+{}];", 4 * i).expect("text");
    }
    let stores = store.replace("SRCS", &registers(stored[0].len()));
    let loads = load.replace("DSTS", &registers(loaded));
    write!(
        text,
        "    {stores}\n    tcgen05.wait::st.sync.aligned;\n    {loads}\n    tcgen05.wait::ld.sync.aligned;\n"
    )
    .expect("text");
    for i in 0..loaded {
        writeln!(text, "    st.b32 [%out+{}], %r{i};", 4 * i).expect("text");
    }
    text += "    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %mem, 64;\n    ret;\n}\n";
    assemble(&text);
    let words = stored.concat().into_iter().flat_map(u32::to_le_bytes).collect();
    let config = LaunchConfig::linear(1, 32);
    let out = run(&text, &[words, vec![0; 32 * loaded * 4]], &config);
    out.chunks(loaded).map(<[u32]>::to_vec).collect()
}

#[test]
fn fragments_of_loads_and_stores_are_those_of_the_shapes() {
    for (shape, count, registers) in
        [("32x32b", 4, 4), ("16x64b", 4, 4), ("16x128b", 2, 4), ("16x256b", 2, 8), ("16x32bx2", 4, 4)]
    {
        let split = if shape == "16x32bx2" { 16 } else { 0 };
        let imm = if split != 0 { ", 16" } else { "" };
        let words = |len: u32, f: &dyn Fn(u32, u32) -> u32| -> Vec<Vec<u32>> {
            (0..32).map(|t| (0..len).map(|i| f(t, i)).collect()).collect()
        };
        // A load of the shape of what 32 columns hold.
        let plain = "tcgen05.st.sync.aligned.32x32b.x32.b32 [%mem], {SRCS};";
        let load = format!("tcgen05.ld.sync.aligned.{shape}.x{count}.b32 {{DSTS}}, [%mem]{imm};");
        let got = through_tensor_memory(plain, &words(32, &|t, i| t << 16 | i), &load, registers);
        for (t, lane) in (0..).zip(&got) {
            for (r, word) in (0..).zip(lane) {
                let (row, column) = fragment(shape, t, r, split);
                assert_eq!(*word, row << 16 | column, "{shape}: lane {t}, register {r}");
            }
        }
        // A store of the shape, seen by rows.
        let store = format!("tcgen05.st.sync.aligned.{shape}.x{count}.b32 [%mem]{imm}, {{SRCS}};");
        let plain = "tcgen05.ld.sync.aligned.32x32b.x32.b32 {DSTS}, [%mem];";
        let stored = words(registers as u32, &|t, r| t << 16 | r | 1 << 31);
        let got = through_tensor_memory(&store, &stored, plain, 32);
        let mut want = vec![vec![0; 32]; 32];
        for t in 0..32 {
            for r in 0..registers as u32 {
                let (row, column) = fragment(shape, t, r, split);
                want[row as usize][column as usize] = t << 16 | r | 1 << 31;
            }
        }
        assert_eq!(got, want, "{shape}");
    }
}

#[test]
fn packed_registers_hold_the_low_halves_of_two_columns() {
    let stored: Vec<Vec<u32>> =
        (0..32).map(|t| vec![t << 24 | 0xA_0001, t << 24 | 0xB_0002 | t << 8]).collect();
    let store = "tcgen05.st.sync.aligned.32x32b.x2.b32 [%mem], {SRCS};";
    let load = "tcgen05.ld.sync.aligned.32x32b.x1.pack::16b.b32 {DSTS}, [%mem];";
    let got = through_tensor_memory(store, &stored, load, 1);
    for (t, words) in (0..).zip(&got) {
        assert_eq!(words[0], 1 | (2 | t << 8) << 16, "lane {t}");
    }
    let store = "tcgen05.st.sync.aligned.16x64b.x1.unpack::16b.b32 [%mem], {SRCS};";
    let stored: Vec<Vec<u32>> = (0..32).map(|t| vec![0xBEEF_0000 | t]).collect();
    let got =
        through_tensor_memory(store, &stored, "tcgen05.ld.sync.aligned.32x32b.x4.b32 {DSTS}, [%mem];", 4);
    for t in 0..32 {
        let (row, column) = fragment("16x64b", t, 0, 0);
        let words = &got[row as usize][2 * column as usize..];
        assert_eq!(words[..2], [t, 0xBEEF], "lane {t}");
    }
}

/// A kind of product with scales.
#[derive(Clone, Copy, Debug)]
struct Scaled {
    kind: &'static str,
    types: Types,
    /// Scales of a row.
    per_row: usize,
    /// Whether scales are powers of two.
    powers: bool,
    /// The bytes of a word with the first scale.
    bytes: [u32; 2],
    n: usize,
}

/// A scale of row `r` as its code and value.
fn scale(r: usize, i: usize, which: usize, powers: bool) -> (u8, f64) {
    if powers {
        let exponent = ((r + 3 * i + which) % 5) as i32 - 2;
        ((127 + exponent) as u8, 2f64.powi(exponent))
    } else {
        let value = [0.5, 1.0, 1.5, 3.0][(r + i + which) % 4];
        (narrow(value, 4, 3) as u8, value)
    }
}

/// The scales of rows as `tcgen05.cp.32x128b.warpx4` takes them, 128 rows in 512 bytes, each in the bytes from `first` on.
fn scale_bytes(rows: usize, case: Scaled, which: usize) -> Vec<u8> {
    let mut out = vec![0; rows.div_ceil(128) * 512];
    for r in 0..rows {
        for i in 0..case.per_row {
            let place = r / 128 * 512 + r % 32 * 16 + r % 128 / 32 * 4 + case.bytes[which] as usize + i;
            out[place] = scale(r, i, which, case.powers).0;
        }
    }
    out
}

fn check_scaled(case: Scaled) {
    let Scaled { kind, types, per_row, powers, bytes, n } = case;
    let k = if types.codes[0] == 1 && types.bits == 4 { 64 } else { 32 };
    let matrix = |rows: usize, step: usize, which: usize| -> Vec<Vec<f64>> {
        (0..rows).map(|r| (0..k).map(|c| number(r * 31 + c, step, types, which)).collect()).collect()
    };
    let (a, b) = (matrix(128, 3, 0), matrix(n, 2, 1));
    // Rows of 32 bytes, in matrices of eight rows of 16 bytes.
    let tile = |rows: &[Vec<f64>], which: usize| -> Vec<u8> {
        let mut out = vec![0; rows.len() * 32];
        for (r, row) in rows.iter().enumerate() {
            let row = if types.bits == 4 {
                let codes: Vec<u32> = row.iter().map(|v| narrow(*v, 2, 1)).collect();
                codes.chunks(2).map(|two| (two[0] | two[1] << 4) as u8).collect()
            } else {
                row_bytes(row, types, which)
            };
            for (at, byte) in row.into_iter().enumerate() {
                out[r / 8 * 256 + at / 16 * 128 + r % 8 * 16 + at % 16] = byte;
            }
        }
        out
    };
    let parts = [tile(&a, 0), tile(&b, 1), scale_bytes(128, case, 0), scale_bytes(n, case, 1)];
    let starts = [0, 4096, 4096 + 32 * n, 4608 + 32 * n];
    let shared: Vec<u8> = parts.concat();
    let [a_code, b_code] = types.codes;
    let instruction = bytes[1] << 4
        | a_code << 7
        | b_code << 10
        | (n as u32 / 8) << 17
        | u32::from(powers) << 23
        | 8 << 24
        | bytes[0] << 29;
    let upper = 8u64 << 16 | 16 << 32 | 1 << 46;
    // Matrices of scales are one behind the other.
    let scales_upper = 1u64 << 16 | 8 << 32 | 1 << 46;
    let columns = (n + 12).next_power_of_two();
    let mut text = kernel_head(shared.len(), columns);
    writeln!(text, "    @!%first bra ISSUED;").expect("text");
    let descriptor = |at: usize, upper: u64| {
        format!(
            "add.u32 %at, %tiles, {at}; shr.u32 %at, %at, 4; cvt.u64.u32 %da, %at; or.b64 %da, %da, {upper};"
        )
    };
    let copies = [(starts[2], n)]
        .into_iter()
        .chain((0..n.div_ceil(128)).map(|i| (starts[3] + 512 * i, n + 4 + 4 * i)));
    for (at, column) in copies {
        writeln!(
            text,
            "    {} add.u32 %at, %mem, {column}; tcgen05.cp.cta_group::1.32x128b.warpx4 [%at], %da;",
            descriptor(at, scales_upper)
        )
        .expect("text");
    }
    write!(
        text,
        "    {} mov.b64 %db, %da; {}
    mov.b32 %desc, {instruction}; add.u32 %at, %mem, {n}; add.u32 %i, %at, 4;
    tcgen05.mma.cta_group::1.kind::{kind} [%mem], %da, %db, %desc, [%at], [%i], %add;\n",
        descriptor(starts[1], upper),
        descriptor(0, upper)
    )
    .expect("text");
    kernel_tail(&mut text, 128, n, columns);
    assemble(&text);
    let config = LaunchConfig { dynamic_shared: shared.len() as u32, ..LaunchConfig::linear(1, 128) };
    let words = run(&text, &[shared, vec![0; 4], vec![0; 128 * n * 4]], &config);
    let each = k / per_row;
    for (row, a) in a.iter().enumerate() {
        for (column, b) in b.iter().enumerate() {
            let block = |i: usize| {
                let sum: f64 = (i * each..(i + 1) * each).map(|k| a[k] * b[k]).sum();
                sum * scale(row, i, 0, powers).1 * scale(column, i, 1, powers).1
            };
            let want: f64 = (0..per_row).map(block).sum();
            let got = sum_of(words[row * n + column], types);
            assert!(got == want, "{case:?}: row {row}, column {column}: {got}, not {want}");
        }
    }
}

#[test]
fn factors_with_scales() {
    let e2m1 = Types { kind: "mxf4", codes: [1, 1], sums: 1, bits: 4 };
    let mixed = Types { kind: "f8f6f4", codes: [5, 1], sums: 1, bits: 8 };
    let mxf8 = Scaled {
        kind: "mxf8f6f4.block_scale.scale_vec::1X",
        types: E4M3_E5M2,
        per_row: 1,
        powers: true,
        bytes: [0, 0],
        n: 64,
    };
    check_scaled(mxf8);
    check_scaled(Scaled { bytes: [3, 1], n: 8, ..mxf8 });
    check_scaled(Scaled { types: mixed, n: 256, ..mxf8 });
    let mxf4 =
        Scaled { kind: "mxf4.block_scale.scale_vec::2X", types: e2m1, per_row: 2, bytes: [0, 2], ..mxf8 };
    check_scaled(mxf4);
    let nvf4 = "mxf4nvf4.block_scale.scale_vec::4X";
    check_scaled(Scaled { kind: nvf4, per_row: 4, powers: false, bytes: [0, 0], n: 136, ..mxf4 });
    check_scaled(Scaled { kind: nvf4, per_row: 4, bytes: [0, 0], ..mxf4 });
}
