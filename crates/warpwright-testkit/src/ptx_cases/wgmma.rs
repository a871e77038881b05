//! `wgmma.mma_async` with every type, layout and swizzle.
//!
//! Tiles are laid out here as a tile of rows: with a swizzle of `S` bytes a row has `S` bytes, and the chunk `c` of 16
//! bytes of row `r` stands at place `c ^ (r % 8)` for 128 bytes, `c ^ (r / 2 % 4)` for 64 and `c ^ (r / 4 % 2)` for 32.
//! Without a swizzle, core matrices of eight rows of 16 bytes are contiguous. Rows are M or N if the operand is K-major,
//! and K if it is MN-major.

use super::numbers::{Kind, Matrix, Random, Sums, Type, dot, put, tolerance};
use super::{Expected, Format, PtxCase, list, module};

/// How an operand lies in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    /// Bytes; 0 means none.
    swizzle: usize,
    mn_major: bool,
    /// How far the tile begins behind a pattern's boundary, in units of 128 bytes; the descriptor's base offset.
    base_offset: usize,
}

const K128: Layout = Layout { swizzle: 128, mn_major: false, base_offset: 0 };

impl Layout {
    fn name(self) -> String {
        let major = if self.mn_major { "MN" } else { "K" };
        let base =
            if self.base_offset > 0 { format!(" base offset {}", self.base_offset) } else { String::new() };
        format!("{major}-major {}B{base}", self.swizzle)
    }

    /// The most that the k axis may have, in steps of one instruction.
    fn max_steps(self) -> usize {
        if self.mn_major || self.swizzle == 0 { 4 } else { self.swizzle / 32 }
    }
}

/// An operand in shared memory, in bytes.
struct Placed {
    image: Vec<u8>,
    leading: usize,
    stride: usize,
    /// From one step along k to the next.
    advance: usize,
}

/// Lays out a matrix whose element `(mn, k)` `get` gives.
fn place(ty: Type, layout: Layout, mn: usize, k: usize, get: impl Fn(usize, usize) -> u64) -> Placed {
    let bits = ty.bits();
    let s = layout.swizzle;
    let chunk_of = |row: usize, chunk: usize| match s {
        128 => chunk ^ (row % 8),
        64 => chunk ^ (row / 2 % 4),
        32 => chunk ^ (row / 4 % 2),
        _ => chunk,
    };
    let step_k = 256 / bits;
    let (leading, stride, advance) = match (layout.mn_major, s) {
        // Neighbours along k are contiguous in one, far apart in the other.
        (false, 0) => (128, 128 * (k * bits / 128), 256),
        (true, 0) => (128 * (mn / 8), 128, 2 * 128 * (mn / 8)),
        (false, _) => (16, 8 * s, 32),
        (true, _) => (k * s, 8 * s, step_k * s),
    };
    let mut image = vec![0u8; mn * k * bits / 8];
    if !layout.mn_major && s > 0 {
        image.resize(mn * s, 0);
    }
    if layout.mn_major && s > 0 {
        image.resize((mn * bits / 8).div_ceil(s) * k * s, 0);
    }
    for i in 0..mn {
        for j in 0..k {
            let (byte, bit) = match (layout.mn_major, s) {
                (false, 0) => (i / 8 * stride + j * bits / 128 * leading + i % 8 * 16, j * bits % 128),
                (true, 0) => (i / 8 * stride + j / 8 * leading + j % 8 * 16, i * bits % 128),
                (false, _) => (i * s + 16 * chunk_of(i, j * bits / 128), j * bits % 128),
                (true, _) => {
                    let per_row = 8 * s / bits;
                    let chunk = i % per_row * bits / 128;
                    (i / per_row * leading + j * s + 16 * chunk_of(j, chunk), i * bits % 128)
                }
            };
            put(&mut image, 8 * byte + bit, bits, get(i, j));
        }
    }
    Placed { image, leading, stride, advance }
}

/// The accumulator that a product is added to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scale {
    /// The first step replaces D, the others add.
    Literal(bool),
    Predicate(bool),
}

#[derive(Clone, Copy)]
struct Form {
    n: usize,
    a: Type,
    b: Type,
    d: Type,
    /// `None`: in registers.
    a_layout: Option<Layout>,
    b_layout: Layout,
    steps: usize,
    scale: Scale,
    negate: (bool, bool),
    satfinite: bool,
    kind: Kind,
}

fn forms() -> Vec<Form> {
    use Type::*;
    let base = Form {
        n: 64,
        a: Bf16,
        b: Bf16,
        d: F32,
        a_layout: Some(K128),
        b_layout: K128,
        steps: 1,
        scale: Scale::Literal(false),
        negate: (false, false),
        satfinite: false,
        kind: Kind::Whole,
    };
    // Every N.
    let mut forms: Vec<Form> = (8..=256).step_by(8).map(|n| Form { n, ..base }).collect();
    // Every pair of layouts of 16-bit elements, over several steps, and A in registers.
    let layouts: Vec<Layout> = [0, 32, 64, 128]
        .into_iter()
        .flat_map(|swizzle| [false, true].map(|mn_major| Layout { swizzle, mn_major, base_offset: 0 }))
        .collect();
    for a in &layouts {
        for b in &layouts {
            let steps = a.max_steps().min(b.max_steps());
            forms.push(Form { n: 136, a_layout: Some(*a), b_layout: *b, steps, ..base });
        }
        let steps = a.max_steps();
        forms.push(Form { n: 72, a: F16, b: F16, a_layout: None, b_layout: *a, steps, ..base });
        let other = Layout { base_offset: 3, ..*a };
        if a.swizzle > 0 {
            forms.push(Form { n: 96, a_layout: Some(other), b_layout: other, steps, ..base });
        }
    }
    // Every type, in shared memory and in registers.
    let mut types =
        vec![(F16, F16, F32), (F16, F16, F16), (Bf16, Bf16, F32), (Tf32, Tf32, F32), (B1, B1, S32)];
    for (a, b) in [(E4m3, E4m3), (E4m3, E5m2), (E5m2, E4m3), (E5m2, E5m2)] {
        types.extend([(a, b, F32), (a, b, F16)]);
    }
    for (a, b) in [(S8, S8), (S8, U8), (U8, S8), (U8, U8)] {
        types.push((a, b, S32));
    }
    for (a, b, d) in types {
        let form = Form { n: 32, a, b, d, scale: Scale::Literal(true), ..base };
        for a_layout in [Some(K128), None] {
            for swizzle in [0, 32, 64, 128] {
                let b_layout = Layout { swizzle, ..K128 };
                let steps = b_layout.max_steps();
                forms.push(Form { a_layout, b_layout, steps, ..form });
            }
            if a != B1 {
                forms.push(Form { a_layout, kind: Kind::Real, ..form });
            }
        }
        for n in [8, 24, 256] {
            forms.push(Form { n, ..form });
        }
        if d == S32 && a != B1 {
            for satfinite in [false, true] {
                forms.push(Form { satfinite, kind: Kind::Extreme, ..form });
            }
        }
        if d != S32 {
            for negate in [(true, false), (false, true), (true, true)] {
                forms.push(Form { negate, ..form });
            }
        }
        for scale in [Scale::Predicate(false), Scale::Predicate(true), Scale::Literal(false)] {
            forms.push(Form { scale, ..form });
        }
    }
    forms
}

/// Every type, N, layout and swizzle.
pub fn cases() -> Vec<PtxCase> {
    forms().iter().map(case).collect()
}

/// Row and column of element `i` of D in a thread of the warpgroup.
fn d_place(thread: usize, i: usize) -> (usize, usize) {
    let (warp, lane) = (thread / 32, thread % 32);
    (16 * warp + lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * (lane % 4) + i % 2)
}

/// Row and column of element `i` of one step of A in registers.
fn a_place(ty: Type, thread: usize, i: usize) -> (usize, usize) {
    let (warp, lane) = (thread / 32, thread % 32);
    let (group, member) = (lane / 4, lane % 4);
    // Elements in a register; registers alternate between the two halves of the rows, then of k.
    let per = 32 / ty.bits();
    let (register, within) = (i / per, i % per);
    (16 * warp + group + 8 * (register % 2), per * member + within + 4 * per * (register / 2))
}

fn instruction(form: &Form) -> String {
    let k = 256 / form.a.bits();
    let sat = if form.satfinite { ".satfinite" } else { "" };
    let operation = if form.a == Type::B1 { ".and.popc" } else { "" };
    format!(
        "wgmma.mma_async.sync.aligned.m64n{}k{k}.{}.{}.{}{operation}{sat}",
        form.n,
        form.d.name(),
        form.a.name(),
        form.b.name()
    )
}

fn case(form: &Form) -> PtxCase {
    let instruction = instruction(form);
    let scale = match form.scale {
        Scale::Literal(s) => format!("scale-d {}", u8::from(s)),
        Scale::Predicate(s) => format!("scale-d predicate {}", u8::from(s)),
    };
    let name = format!(
        "{instruction}, A {}, B {}, {} steps, {scale}, signs {:?}, {}",
        form.a_layout.map_or("in registers".to_owned(), Layout::name),
        form.b_layout.name(),
        form.steps,
        form.negate,
        form.kind.name()
    );
    let mut random = Random::new(&name);
    let step_k = 256 / form.a.bits();
    let k = step_k * form.steps;
    let c_kind = if form.kind == Kind::Real && form.d == Type::S32 { Kind::Whole } else { form.kind };
    let a = Matrix::random(&mut random, form.a, form.kind, 64, k);
    let b = Matrix::random(&mut random, form.b, form.kind, k, form.n);
    let c = Matrix::random(&mut random, form.d, c_kind, 64, form.n);
    let elements = form.n / 2;
    let registers = elements * form.d.bits() / 32;

    let mut image = Vec::new();
    let mut operand = |layout: Layout, placed: Placed| {
        image.resize(image.len().next_multiple_of(1024) + 128 * layout.base_offset, 0);
        let start = image.len();
        image.extend_from_slice(&placed.image);
        let mode = match layout.swizzle {
            128 => 1u64,
            64 => 2,
            32 => 3,
            _ => 0,
        };
        let fields = (placed.leading as u64 >> 4) << 16
            | (placed.stride as u64 >> 4) << 32
            | (layout.base_offset as u64) << 49
            | mode << 62;
        (start, fields, placed.advance)
    };
    let a_operand =
        form.a_layout.map(|layout| operand(layout, place(form.a, layout, 64, k, |mn, k| a.bits(mn, k))));
    let b_operand = operand(form.b_layout, place(form.b, form.b_layout, form.n, k, |mn, k| b.bits(k, mn)));
    image.resize(image.len().next_multiple_of(2048), 0);

    let mut body = format!(
        "    .shared .align 1024 .b8 tile[{}];\n    .reg .b32 thread, i, at, base, v<4>, d<{registers}>, a<16>;\n    \
         .reg .b64 p, o, start, da, db;\n    .reg .pred more, scale;\n    mov.u32 thread, %tid.x;\n    mov.u32 base, tile;\n    \
         shl.b32 i, thread, 4;\nCOPY:\n    ld.param.u64 p, [pimage];\n    cvt.u64.u32 o, i;\n    add.u64 p, p, o;\n    \
         ld.global.v4.b32 {{v0, v1, v2, v3}}, [p];\n    add.u32 at, base, i;\n    \
         st.shared.v4.b32 [at], {{v0, v1, v2, v3}};\n    add.u32 i, i, 2048;\n    setp.lt.u32 more, i, {};\n    \
         @more bra COPY;\n    fence.proxy.async.shared::cta;\n    bar.sync 0;\n",
        image.len(),
        image.len()
    );
    let mut load = |pointer: &str, prefix: &str, count: usize| {
        body += &format!(
            "    ld.param.u64 p, [{pointer}];\n    mul.wide.u32 o, thread, {};\n    add.u64 p, p, o;\n",
            4 * count
        );
        for r in 0..count {
            body += &format!("    ld.global.b32 {prefix}{r}, [p+{}];\n", 4 * r);
        }
    };
    load("pd", "d", registers);
    if form.a_layout.is_none() {
        load("pa", "a", 4 * form.steps);
    }
    if let Scale::Predicate(value) = form.scale {
        body += &format!("    setp.eq.u32 scale, {}, 1;\n", u8::from(value));
    }
    body += "    cvt.u64.u32 start, base;\n    shr.u64 start, start, 4;\n    wgmma.fence.sync.aligned;\n";
    for step in 0..form.steps {
        let mut descriptor = |register: &str, (start, fields, advance): (usize, u64, usize)| {
            let offset = (start + step * advance) as u64 >> 4;
            body += &format!(
                "    add.u64 {register}, start, {offset};\n    or.b64 {register}, {register}, {fields:#x};\n"
            );
        };
        descriptor("db", b_operand);
        let a_text = match a_operand {
            Some(a) => {
                descriptor("da", a);
                "da".to_owned()
            }
            None => list("a", 4 * step..4 * step + 4),
        };
        let scale = match (step, form.scale) {
            (0, Scale::Literal(false)) => "0",
            (0, Scale::Predicate(_)) => "scale",
            _ => "1",
        };
        let mut operands = format!("{}, {a_text}, db, {scale}", list("d", 0..registers));
        if form.d != Type::S32 {
            for negate in [form.negate.0, form.negate.1] {
                operands += if negate { ", -1" } else { ", 1" };
            }
        }
        if form.a.bits() == 16 {
            if let Some(layout) = form.a_layout {
                operands += if layout.mn_major { ", 1" } else { ", 0" };
            }
            operands += if form.b_layout.mn_major { ", 1" } else { ", 0" };
        }
        body += &format!("    {instruction} {operands};\n");
    }
    body += &format!(
        "    wgmma.commit_group.sync.aligned;\n    wgmma.wait_group.sync.aligned 0;\n    ld.param.u64 p, [presult];\n    \
         mul.wide.u32 o, thread, {};\n    add.u64 p, p, o;\n",
        4 * registers
    );
    for r in 0..registers {
        body += &format!("    st.global.b32 [p+{}], d{r};\n", 4 * r);
    }

    let sign = if form.negate.0 == form.negate.1 { 1.0 } else { -1.0 };
    let adds = matches!(form.scale, Scale::Literal(true) | Scale::Predicate(true));
    // Of products of bytes 14 bits count.
    let sums = Sums { bits: if form.a.bits() == 8 { 12 } else { 22 }, roundings: form.steps - 1 };
    let mut expected = Vec::new();
    for thread in 0..128 {
        for i in 0..elements {
            let (row, column) = d_place(thread, i);
            let start = if adds { c.value(row, column) } else { 0.0 };
            let pairs = (0..k).map(|j| (sign * a.value(row, j), b.value(j, column)));
            let (value, size) = dot(pairs, start);
            let value = match (form.d, form.satfinite) {
                (Type::S32, true) => value.clamp(f64::from(i32::MIN), f64::from(i32::MAX)),
                (Type::S32, false) => f64::from(value as i64 as i32),
                _ => value,
            };
            let tolerance =
                if form.kind == Kind::Whole { 0.0 } else { tolerance(form.d, &sums, k, value, size) };
            expected.push(Expected { index: thread * elements + i, value, tolerance });
        }
    }
    let per_step = step_k / 2;
    let a_registers = a.fragments(128, per_step * form.steps, |thread, i| {
        let (row, column) = a_place(form.a, thread, i % per_step);
        (row, column + i / per_step * step_k)
    });
    PtxCase {
        name,
        ptx: module("8.4", "sm_90a", &["pimage", "pd", "pa", "presult"], &body),
        threads: 128,
        inputs: vec![image, c.fragments(128, elements, d_place), a_registers],
        result_bytes: 4 * 128 * registers,
        format: match form.d {
            Type::S32 => Format::S32,
            Type::F16 => Format::F16,
            _ => Format::F32,
        },
        expected,
    }
}
