//! `wmma`: matrices in memory, loaded, multiplied and stored, because nothing is said about fragments in between.

use super::numbers::{Kind, Matrix, Random, Sums, Type, dot, put, tolerance};
use super::{Expected, Format, PtxCase, list, module};

/// One form of the product.
#[derive(Clone, Copy)]
struct Form {
    shape: (usize, usize, usize),
    ty: Type,
    b_ty: Type,
    d: Type,
    c: Type,
    /// Whether A, B and C with D are stored by columns.
    columns: [bool; 3],
    /// `.xor.popc`, `.and.popc`
    product: &'static str,
    satfinite: bool,
}

const HALF_SHAPES: [(usize, usize, usize); 3] = [(16, 16, 16), (8, 32, 16), (32, 8, 16)];

fn forms() -> Vec<Form> {
    use Type::*;
    let mut forms = Vec::new();
    let form = |shape, ty, b_ty, d, c| Form {
        shape,
        ty,
        b_ty,
        d,
        c,
        columns: [false; 3],
        product: "",
        satfinite: false,
    };
    let layouts = || (0..8).map(|i| [i & 1 == 1, i & 2 == 2, i & 4 == 4]);
    for (shape, columns) in HALF_SHAPES.into_iter().flat_map(|s| layouts().map(move |l| (s, l))) {
        for (d, c) in [(F32, F32), (F16, F16), (F32, F16), (F16, F32)] {
            forms.push(Form { columns, ..form(shape, F16, F16, d, c) });
        }
        forms.push(Form { columns, ..form(shape, Bf16, Bf16, F32, F32) });
        for ty in [S8, U8] {
            let plain = Form { columns, ..form(shape, ty, ty, S32, S32) };
            forms.extend([plain, Form { satfinite: true, ..plain }]);
        }
    }
    for columns in layouts() {
        forms.push(Form { columns, ..form((16, 16, 8), Tf32, Tf32, F32, F32) });
        forms.push(Form { columns, ..form((8, 8, 4), F64, F64, F64, F64) });
    }
    for last in [false, true] {
        let columns = [false, true, last];
        for ty in [S4, U4] {
            let plain = Form { columns, ..form((8, 8, 32), ty, ty, S32, S32) };
            forms.extend([plain, Form { satfinite: true, ..plain }]);
        }
        for product in [".xor.popc", ".and.popc"] {
            forms.push(Form { columns, product, ..form((8, 8, 128), B1, B1, S32, S32) });
        }
    }
    forms
}

/// Every shape, type and layout.
pub fn cases() -> Vec<PtxCase> {
    let mut cases = Vec::new();
    for form in forms() {
        let kinds: &[Kind] = match form.ty {
            Type::B1 => &[Kind::Whole],
            ty if ty.is_integer() => &[Kind::Whole, Kind::Extreme],
            _ => &[Kind::Whole, Kind::Real],
        };
        cases.extend(kinds.iter().map(|kind| case(&form, *kind)));
    }
    cases
}

/// Elements from one row or column to the next: 32 bytes more than there are.
fn stride(ty: Type, length: usize) -> usize {
    length + 256 / ty.bits()
}

/// A matrix by rows or by columns.
fn in_memory(matrix: &Matrix, (rows, columns): (usize, usize), by_columns: bool) -> Vec<u8> {
    let (lines, length) = if by_columns { (columns, rows) } else { (rows, columns) };
    let (bits, stride) = (matrix.ty.bits(), stride(matrix.ty, length));
    let mut out = vec![0; lines * stride * bits / 8];
    for (row, column) in (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))) {
        let (line, at) = if by_columns { (column, row) } else { (row, column) };
        put(&mut out, (line * stride + at) * bits, bits, matrix.bits(row, column));
    }
    out
}

/// Registers of A or B.
fn factor_registers(ty: Type, elements: usize) -> usize {
    if ty == Type::F16 { 8 } else { elements * ty.bits() / 32 / ty.bits().max(32) }
}

/// Registers of C or D.
fn sum_registers(ty: Type, elements: usize) -> usize {
    elements / 32 * ty.bits().min(32) / 32
}

fn case(form: &Form, kind: Kind) -> PtxCase {
    let Form { shape: (m, n, k), ty, b_ty, d, c, columns, product, satfinite } = *form;
    let shape = format!("m{m}n{n}k{k}");
    let layout = |by_columns: bool| if by_columns { "col" } else { "row" };
    let [la, lb, ld] = columns.map(layout);
    let types = match ty {
        Type::F16 => format!("{}.{}", d.name(), c.name()),
        _ => format!("{}.{}.{}.{}", d.name(), ty.name(), b_ty.name(), c.name()),
    };
    let saturate = if satfinite { ".satfinite" } else { "" };
    let rounding = if ty == Type::F64 { ".rn" } else { "" };
    let instruction = format!("wmma.mma{product}.sync.aligned.{la}.{lb}.{shape}{rounding}.{types}{saturate}");
    let name = format!("{instruction}, {ld}, {}", kind.name());
    let mut random = Random::new(&name);
    let c_kind = if ty == Type::B1 { Kind::Whole } else { kind };
    let (ma, mb, mc) = (
        Matrix::random(&mut random, ty, kind, m, k),
        Matrix::random(&mut random, b_ty, kind, k, n),
        Matrix::random(&mut random, c, c_kind, m, n),
    );
    let length = |by_columns: bool, rows: usize, columns: usize| if by_columns { rows } else { columns };
    let strides = [
        stride(ty, length(columns[0], m, k)),
        stride(b_ty, length(columns[1], k, n)),
        stride(c, length(columns[2], m, n)),
        stride(d, length(columns[2], m, n)),
    ];
    let counts = [
        factor_registers(ty, m * k),
        factor_registers(b_ty, k * n),
        sum_registers(c, m * n),
        sum_registers(d, m * n),
    ];
    let width = |ty: Type| match ty {
        Type::F64 => ".f64",
        Type::F32 => ".f32",
        _ => ".b32",
    };
    let mut body = String::from("    .reg .b64 p, q;\n    .reg .b32 s;\n");
    for ((operand, ty), count) in [("a", ty), ("b", b_ty), ("c", c), ("d", d)].into_iter().zip(counts) {
        body += &format!("    .reg {} {operand}<{count}>;\n", width(ty));
    }
    // Generic addresses and addresses in global memory.
    for (operand, ty, at, layout, space) in
        [("a", ty, 0, la, ""), ("b", b_ty, 1, lb, ".global"), ("c", c, 2, ld, "")]
    {
        body += &format!(
            "    ld.param.u64 p, [p{operand}];\n    mov.u32 s, {};\n    \
             wmma.load.{operand}.sync.aligned.{layout}.{shape}{space}.{} {}, [p], s;\n",
            strides[at],
            ty.name(),
            list(operand, 0..counts[at])
        );
    }
    body += &format!(
        "    {instruction} {}, {}, {}, {};\n    ld.param.u64 p, [pd];\n    mov.u32 s, {};\n    \
         wmma.store.d.sync.aligned.{ld}.{shape}.global.{} [p], {}, s;\n",
        list("d", 0..counts[3]),
        list("a", 0..counts[0]),
        list("b", 0..counts[1]),
        list("c", 0..counts[2]),
        strides[3],
        d.name(),
        list("d", 0..counts[3])
    );
    let sums = Sums { bits: 22, roundings: 1 };
    let mut expected = Vec::new();
    for (row, column) in (0..m).flat_map(|r| (0..n).map(move |c| (r, c))) {
        let (line, at) = if columns[2] { (column, row) } else { (row, column) };
        let pairs = (0..k).map(|j| match product {
            ".xor.popc" => ((ma.bits(row, j) ^ mb.bits(j, column)) as f64, 1.0),
            _ => (ma.value(row, j), mb.value(j, column)),
        });
        let (value, size) = dot(pairs, mc.value(row, column));
        let value = match (d, satfinite) {
            (Type::S32, true) => value.clamp(f64::from(i32::MIN), f64::from(i32::MAX)),
            (Type::S32, false) => f64::from(value as i64 as i32),
            _ => value,
        };
        let tolerance = if kind == Kind::Whole { 0.0 } else { tolerance(d, &sums, k, value, size) };
        expected.push(Expected { index: line * strides[3] + at, value, tolerance });
    }
    let format = match d {
        Type::S32 => Format::S32,
        Type::F16 => Format::F16,
        Type::F64 => Format::F64,
        _ => Format::F32,
    };
    let lines = if columns[2] { n } else { m };
    PtxCase {
        name,
        ptx: module("7.1", "sm_80", &["pa", "pb", "pc", "pd"], &body),
        threads: 32,
        inputs: vec![
            in_memory(&ma, (m, k), columns[0]),
            in_memory(&mb, (k, n), columns[1]),
            in_memory(&mc, (m, n), columns[2]),
        ],
        result_bytes: lines * strides[3] * d.bits() / 8,
        format,
        expected,
    }
}
