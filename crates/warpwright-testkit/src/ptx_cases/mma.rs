//! `mma.sync`, every shape and type of the manual's sections on matrix fragments.

use super::numbers::{Kind, Matrix, Random, Sums, Type, dot, tolerance};
use super::{Expected, Format, PtxCase, list, module};

/// One form of the instruction.
#[derive(Clone, Copy)]
struct Form {
    version: &'static str,
    target: &'static str,
    m: usize,
    k: usize,
    a: Type,
    b: Type,
    d: Type,
    /// Between the layouts and the types.
    modifier: &'static str,
    /// Behind the types.
    operation: &'static str,
}

fn forms() -> Vec<Form> {
    use Type::*;
    let form =
        |version, target, m, k, a, b, d| Form { version, target, m, k, a, b, d, modifier: "", operation: "" };
    let mut forms = vec![
        form("7.0", "sm_80", 16, 8, F16, F16, F16),
        form("7.0", "sm_80", 16, 8, F16, F16, F32),
        form("7.0", "sm_80", 16, 16, F16, F16, F16),
        form("7.0", "sm_80", 16, 16, F16, F16, F32),
        form("7.0", "sm_80", 16, 8, Bf16, Bf16, F32),
        form("7.0", "sm_80", 16, 16, Bf16, Bf16, F32),
        form("7.0", "sm_80", 16, 4, Tf32, Tf32, F32),
        form("7.0", "sm_80", 16, 8, Tf32, Tf32, F32),
        form("7.0", "sm_80", 8, 4, F64, F64, F64),
        form("7.8", "sm_90", 16, 4, F64, F64, F64),
        form("7.8", "sm_90", 16, 8, F64, F64, F64),
        form("7.8", "sm_90", 16, 16, F64, F64, F64),
    ];
    for (m, k, ks) in [(8, 16, 32), (16, 16, 32), (16, 32, 64)] {
        for (a, b) in [(S8, S8), (S8, U8), (U8, S8), (U8, U8)] {
            forms.push(form("7.0", "sm_80", m, k, a, b, S32));
            forms.push(Form { modifier: ".satfinite", ..form("7.0", "sm_80", m, k, a, b, S32) });
        }
        for (a, b) in [(S4, S4), (S4, U4), (U4, S4), (U4, U4)] {
            forms.push(form("7.0", "sm_80", m, ks, a, b, S32));
            forms.push(Form { modifier: ".satfinite", ..form("7.0", "sm_80", m, ks, a, b, S32) });
        }
    }
    for (m, k) in [(8, 128), (16, 128), (16, 256)] {
        for operation in [".xor.popc", ".and.popc"] {
            forms.push(Form { operation, ..form("7.1", "sm_80", m, k, B1, B1, S32) });
        }
    }
    for (a, b) in [(E4m3, E4m3), (E4m3, E5m2), (E5m2, E4m3), (E5m2, E5m2)] {
        forms.push(form("8.4", "sm_89", 16, 32, a, b, F32));
        forms.push(form("8.7", "sm_89", 16, 32, a, b, F16));
        forms.push(form("8.7", "sm_89", 16, 16, a, b, F32));
        forms.push(form("8.7", "sm_89", 16, 16, a, b, F16));
    }
    forms
}

/// Row and column of element `i` of A in a lane.
fn a_place(form: &Form, lane: usize, i: usize) -> (usize, usize) {
    let (group, member) = (lane >> 2, lane % 4);
    let either = |first: bool| if first { group } else { group + 8 };
    match (form.m, form.k, form.a.bits()) {
        // m8n8k4 .f64
        (8, 4, 64) => (group, member),
        // m8n8k16 of 8 bits, m8n8k32 of 4 bits, m8n8k128 of single bits
        (8, 16, 8) => (group, member * 4 + i),
        (8, 32, 4) => (group, member * 8 + i),
        (8, 128, 1) => (group, member * 32 + i),
        // m16n8k4 .tf32 and .f64
        (16, 4, 32 | 64) => (either(i == 0), member),
        // m16n8k8 .tf32 and .f64
        (16, 8, 32 | 64) => (either(i == 0 || i == 2), if i < 2 { member } else { member + 4 }),
        // m16n8k16 .f64
        (16, 16, 64) => (either(i & 1 == 0), if i & 1 == 0 { i * 2 + member } else { i * 2 - 2 + member }),
        // m16n8k8 of 16 bits
        (16, 8, 16) => (either(i < 2), member * 2 + (i & 1)),
        // m16n8k16 of 16 bits
        (16, 16, 16) => {
            (either(i < 2 || (4..6).contains(&i)), member * 2 + (i & 1) + if i < 4 { 0 } else { 8 })
        }
        // m16n8k16 of 8 bits
        (16, 16, 8) => (either(i < 4), member * 4 + (i & 3)),
        // m16n8k32 of 8 bits
        (16, 32, 8) => {
            (either(i < 4 || (8..12).contains(&i)), member * 4 + (i & 3) + if i < 8 { 0 } else { 16 })
        }
        // m16n8k32 of 4 bits
        (16, 32, 4) => (either(i < 8), member * 8 + (i & 7)),
        // m16n8k64 of 4 bits
        (16, 64, 4) => {
            (either(i < 8 || (16..24).contains(&i)), member * 8 + (i & 7) + if i < 16 { 0 } else { 32 })
        }
        // m16n8k128 and m16n8k256 of single bits
        (16, 128, 1) => (either(i < 32), member * 32 + (i & 0x1F)),
        (16, 256, 1) => {
            (either(i < 32 || (64..96).contains(&i)), member * 32 + (i & 0x1F) + if i < 64 { 0 } else { 128 })
        }
        other => unreachable!("no fragment for {other:?}"),
    }
}

/// Row and column of element `i` of B in a lane.
fn b_place(form: &Form, lane: usize, i: usize) -> (usize, usize) {
    let (group, member) = (lane >> 2, lane % 4);
    let row = match (form.k, form.a.bits()) {
        (4, 32 | 64) => member,
        (8, 32 | 64) => {
            if i == 0 {
                member
            } else {
                member + 4
            }
        }
        (16, 64) => member + i * 4,
        (8, 16) => member * 2 + i,
        (16, 16) => member * 2 + (i & 1) + if i < 2 { 0 } else { 8 },
        (16, 8) => member * 4 + i,
        (32, 8) => member * 4 + (i & 3) + if i < 4 { 0 } else { 16 },
        (32, 4) => member * 8 + i,
        (64, 4) => member * 8 + (i & 7) + if i < 8 { 0 } else { 32 },
        (128, 1) => member * 32 + i,
        (256, 1) => member * 32 + (i & 0x1F) + if i < 32 { 0 } else { 128 },
        other => unreachable!("no fragment for {other:?}"),
    };
    (row, group)
}

/// Row and column of element `i` of C and D in a lane.
fn d_place(form: &Form, lane: usize, i: usize) -> (usize, usize) {
    let (group, member) = (lane >> 2, lane % 4);
    let row = if form.m == 8 || i < 2 { group } else { group + 8 };
    (row, member * 2 + (i & 1))
}

/// Every shape and type.
pub fn cases() -> Vec<PtxCase> {
    let mut cases = Vec::new();
    for form in forms() {
        let kinds: &[Kind] = match form.a {
            Type::B1 => &[Kind::Whole],
            a if a.is_integer() => &[Kind::Whole, Kind::Real, Kind::Extreme],
            _ => &[Kind::Whole, Kind::Real],
        };
        cases.extend(kinds.iter().map(|kind| case(&form, *kind)));
    }
    cases
}

fn case(form: &Form, kind: Kind) -> PtxCase {
    let Form { m, k, a, b, d, modifier, operation, .. } = *form;
    let instruction = format!(
        "mma.sync.aligned.m{m}n8k{k}.row.col{modifier}.{}.{}.{}.{}{operation}",
        d.name(),
        a.name(),
        b.name(),
        d.name()
    );
    let name = format!("{instruction}, {}", kind.name());
    let mut random = Random::new(&name);
    let c_kind = if kind == Kind::Real && d == Type::S32 { Kind::Whole } else { kind };
    let (ma, mb, mc) = (
        Matrix::random(&mut random, a, kind, m, k),
        Matrix::random(&mut random, b, kind, k, 8),
        Matrix::random(&mut random, d, c_kind, m, 8),
    );
    let (na, nb, nd) = (m * k / 32, k * 8 / 32, m * 8 / 32);
    let width = if a == Type::F64 { 64 } else { 32 };
    let registers = |n: usize, ty: Type| n * ty.bits() / width;
    let (ra, rb, rd) = (registers(na, a), registers(nb, b), registers(nd, d));
    let mut body = format!("    .reg .b{width} a<{ra}>, b<{rb}>, c<{rd}>, d<{rd}>;\n");
    body += "    .reg .b32 lane;\n    .reg .b64 p, o;\n    mov.u32 lane, %tid.x;\n";
    for (operand, pointer, count) in [("a", "pa", ra), ("b", "pb", rb), ("c", "pc", rd)] {
        let bytes = count * width / 8;
        body += &format!(
            "    ld.param.u64 p, [{pointer}];\n    mul.wide.u32 o, lane, {bytes};\n    add.u64 p, p, o;\n"
        );
        for i in 0..count {
            body += &format!("    ld.global.b{width} {operand}{i}, [p+{}];\n", i * width / 8);
        }
    }
    body += &format!(
        "    {instruction} {}, {}, {}, {};\n",
        list("d", 0..rd),
        list("a", 0..ra),
        list("b", 0..rb),
        list("c", 0..rd)
    );
    let bytes = rd * width / 8;
    body += &format!("    ld.param.u64 p, [pd];\n    mul.wide.u32 o, lane, {bytes};\n    add.u64 p, p, o;\n");
    for i in 0..rd {
        body += &format!("    st.global.b{width} [p+{}], d{i};\n", i * width / 8);
    }
    // Products of bytes are added in two steps, and C after them.
    let sums = Sums { bits: 22, roundings: if a.bits() == 8 { 2 } else { 0 } };
    let mut expected = Vec::new();
    for lane in 0..32 {
        for i in 0..nd {
            let (row, column) = d_place(form, lane, i);
            let index = lane * nd + i;
            let pairs = (0..k).map(|j| match operation {
                ".xor.popc" => ((ma.bits(row, j) ^ mb.bits(j, column)) as f64, 1.0),
                _ => (ma.value(row, j), mb.value(j, column)),
            });
            let (value, size) = dot(pairs, mc.value(row, column));
            let value = match (d, modifier) {
                (Type::S32, ".satfinite") => value.clamp(f64::from(i32::MIN), f64::from(i32::MAX)),
                (Type::S32, _) => f64::from(value as i64 as i32),
                _ => value,
            };
            let tolerance = if kind == Kind::Whole { 0.0 } else { tolerance(d, &sums, k, value, size) };
            expected.push(Expected { index, value, tolerance });
        }
    }
    let format = match d {
        Type::S32 => Format::S32,
        Type::F16 => Format::F16,
        Type::F64 => Format::F64,
        _ => Format::F32,
    };
    PtxCase {
        name,
        ptx: module(form.version, form.target, &["pa", "pb", "pc", "pd"], &body),
        threads: 32,
        inputs: vec![
            ma.fragments(32, na, |lane, i| a_place(form, lane, i)),
            mb.fragments(32, nb, |lane, i| b_place(form, lane, i)),
            mc.fragments(32, nd, |lane, i| d_place(form, lane, i)),
        ],
        result_bytes: 32 * bytes,
        format,
        expected,
    }
}
