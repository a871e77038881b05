//! `ldmatrix`, `stmatrix` and `movmatrix` of 8x8 matrices of 16-bit elements.
//!
//! Lane `8 m + i` gives the address of row `i` of matrix `m`. Four lanes share a row: lane `L` has elements
//! `2 (L % 4)` and the one behind it of row `L / 4`, or of column `L / 4` with `.trans`.

use super::numbers::Random;
use super::{Expected, Format, PtxCase, list, module};

/// Rows of 16 bytes in shared memory, more than any case uses.
const ROWS: usize = 64;

/// Every number of matrices, straight and transposed.
pub fn cases() -> Vec<PtxCase> {
    let mut cases = Vec::new();
    for count in [1, 2, 4] {
        for trans in ["", ".trans"] {
            for space in ["", ".shared", ".shared::cta"] {
                cases.push(load(count, trans, space));
                cases.push(store(count, trans, space));
            }
        }
    }
    cases.push(transpose());
    cases
}

/// Row (in all matrices) and column of half `half` of register `m` of a lane.
fn place(trans: &str, lane: usize, m: usize, half: usize) -> (usize, usize) {
    let (first, second) = (lane / 4, 2 * (lane % 4) + half);
    if trans.is_empty() { (8 * m + first, second) } else { (8 * m + second, first) }
}

/// Where each lane's row lies, in bytes from the start of the array: any different places.
fn rows(random: &mut Random) -> Vec<u32> {
    let mut places: Vec<u32> = (0..ROWS as u32).map(|i| 16 * i).collect();
    for i in (1..ROWS).rev() {
        places.swap(i, random.below(i as u64 + 1) as usize);
    }
    places.truncate(32);
    places
}

fn bytes32(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn words(bytes: &[u8]) -> Vec<Expected> {
    bytes
        .chunks_exact(4)
        .enumerate()
        .map(|(index, w)| {
            let value = f64::from(u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
            Expected { index, value, tolerance: 0.0 }
        })
        .collect()
}

/// Sets up `a` (the lane's row address), `p` and `o`.
fn prologue(space: &str) -> String {
    let mut text = format!(
        "    .shared .align 16 .b8 tile[{}];\n    .reg .b32 lane, base, r<4>, v<4>;\n    .reg .b64 p, q, o, a;\n    \
         .reg .b32 offset;\n    mov.u32 lane, %tid.x;\n    mov.u32 base, tile;\n    ld.param.u64 p, [prows];\n    \
         mul.wide.u32 o, lane, 4;\n    add.u64 p, p, o;\n    ld.global.u32 offset, [p];\n    add.u32 offset, offset, base;\n    \
         cvt.u64.u32 a, offset;\n",
        16 * ROWS
    );
    if space.is_empty() {
        text += "    cvta.shared.u64 a, a;\n";
    }
    text
}

/// Copies between global memory at `[pointer]` and the array: 32 bytes for each lane.
fn copy(pointer: &str, to_shared: bool) -> String {
    let mut text = format!(
        "    ld.param.u64 q, [{pointer}];\n    mul.wide.u32 o, lane, 32;\n    add.u64 q, q, o;\n    \
         shl.b32 offset, lane, 5;\n    add.u32 offset, offset, base;\n"
    );
    for i in [0, 16] {
        let (load, store) = if to_shared {
            (
                format!("ld.global.v4.b32 {{v0, v1, v2, v3}}, [q+{i}]"),
                format!("st.shared.v4.b32 [offset+{i}], {{v0, v1, v2, v3}}"),
            )
        } else {
            (
                format!("ld.shared.v4.b32 {{v0, v1, v2, v3}}, [offset+{i}]"),
                format!("st.global.v4.b32 [q+{i}], {{v0, v1, v2, v3}}"),
            )
        };
        text += &format!("    {load};\n    {store};\n");
    }
    text + "    bar.sync 0;\n"
}

/// Moves the `count` registers of each lane between global memory at `[pointer]` and `r0`, ...
fn registers(pointer: &str, count: usize, store: bool) -> String {
    let mut text = format!(
        "    ld.param.u64 q, [{pointer}];\n    mul.wide.u32 o, lane, {};\n    add.u64 q, q, o;\n",
        4 * count
    );
    for i in 0..count {
        text += &if store {
            format!("    st.global.b32 [q+{}], r{i};\n", 4 * i)
        } else {
            format!("    ld.global.b32 r{i}, [q+{}];\n", 4 * i)
        };
    }
    text
}

fn load(count: usize, trans: &str, space: &str) -> PtxCase {
    let instruction = format!("ldmatrix.sync.aligned.m8n8.x{count}{trans}{space}.b16");
    let mut random = Random::new(&instruction);
    let image: Vec<u8> = (0..16 * ROWS).map(|_| random.bits() as u8).collect();
    let rows = rows(&mut random);
    let mut result = Vec::new();
    for lane in 0..32 {
        for m in 0..count {
            for half in 0..2 {
                let (row, column) = place(trans, lane, m, half);
                let at = rows[row] as usize + 2 * column;
                result.extend_from_slice(&image[at..at + 2]);
            }
        }
    }
    let body = prologue(space)
        + &copy("pimage", true)
        + &format!("    {instruction} {}, [a];\n", list("r", 0..count))
        + &registers("presult", count, true);
    PtxCase {
        name: instruction,
        ptx: module("7.8", "sm_80", &["prows", "pimage", "presult"], &body),
        threads: 32,
        inputs: vec![bytes32(&rows), image],
        result_bytes: result.len(),
        format: Format::Bits,
        expected: words(&result),
    }
}

fn store(count: usize, trans: &str, space: &str) -> PtxCase {
    let instruction = format!("stmatrix.sync.aligned.m8n8.x{count}{trans}{space}.b16");
    let mut random = Random::new(&instruction);
    let before: Vec<u8> = (0..16 * ROWS).map(|_| random.bits() as u8).collect();
    let rows = rows(&mut random);
    let values: Vec<u8> = (0..4 * 32 * count).map(|_| random.bits() as u8).collect();
    let mut image = before.clone();
    for lane in 0..32 {
        for m in 0..count {
            for half in 0..2 {
                let (row, column) = place(trans, lane, m, half);
                let (to, from) = (rows[row] as usize + 2 * column, 4 * (lane * count + m) + 2 * half);
                image[to..to + 2].copy_from_slice(&values[from..from + 2]);
            }
        }
    }
    let body = prologue(space)
        + &copy("pimage", true)
        + &registers("pvalues", count, false)
        + &format!("    {instruction} [a], {};\n    bar.sync 0;\n", list("r", 0..count))
        + &copy("presult", false);
    PtxCase {
        name: instruction,
        ptx: module("7.8", "sm_90", &["prows", "pimage", "pvalues", "presult"], &body),
        threads: 32,
        inputs: vec![bytes32(&rows), before, values],
        result_bytes: image.len(),
        format: Format::Bits,
        expected: words(&image),
    }
}

fn transpose() -> PtxCase {
    let instruction = "movmatrix.sync.aligned.m8n8.trans.b16";
    let mut random = Random::new(instruction);
    let matrix: Vec<[u16; 8]> = (0..8).map(|_| std::array::from_fn(|_| random.bits() as u16)).collect();
    let fragments = |trans: &str| -> Vec<u8> {
        let halves = (0..32).flat_map(|lane| [place(trans, lane, 0, 0), place(trans, lane, 0, 1)]);
        halves.flat_map(|(row, column)| matrix[row][column].to_le_bytes()).collect()
    };
    let body = "    .reg .b32 lane, r<2>;\n    .reg .b64 q, o;\n    mov.u32 lane, %tid.x;\n".to_owned()
        + &registers("pvalues", 1, false)
        + &format!("    {instruction} r0, r0;\n")
        + &registers("presult", 1, true);
    let result = fragments(".trans");
    PtxCase {
        name: instruction.to_owned(),
        ptx: module("7.8", "sm_80", &["pvalues", "presult"], &body),
        threads: 32,
        inputs: vec![fragments("")],
        result_bytes: result.len(),
        format: Format::Bits,
        expected: words(&result),
    }
}
