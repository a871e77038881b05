//! Products of `tcgen05.mma` whose factors have scales.
//!
//! Scales lie in tensor memory, as bytes: those of row or column `r` in lane `r % 32` of each quarter, in the word of column
//! `r / 32` from the address on, from the byte that the instruction descriptor names on (PTX ISA, "Scale Factor A ID" and "B
//! ID"; `tcgen05.cp.32x128b.warpx4` of the layout of CUTLASS's `SM100_UTCCP_4x32dp128bit` brings them there).
//!
//! How the sums are rounded is not published. Here products and scales are exact, sums are in f64, and D is rounded once.

use warpwright_ptx::float8::{e4m3_value, e5m2_value};
use warpwright_ptx::{ScaleType, Tcgen05Kind};

use super::instruction::{Instruction, Stored};
use super::perform::InMemory;
use crate::code::matrix::Element;
use crate::exec::matrix::{Factor, Sums};
use crate::tensor_memory::{Area, Cell, LANES, TensorMemory};

/// Where the scales of a product are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scaling {
    pub(super) ty: ScaleType,
    /// Scales of a row.
    pub(super) per_row: u32,
    pub(super) a: Cell,
    pub(super) b: Cell,
    /// The byte of a word with the first scale of a row of A, and of a column of B.
    pub(super) bytes: [u32; 2],
}

impl Scaling {
    /// The place of scales that an address names: its upper two bits are those of the instruction descriptor in CUTLASS, and
    /// do not count.
    pub(super) const fn place(address: u32) -> Cell {
        Cell::at(address & 0x3FFF_FFFF)
    }

    /// The type and bytes of an instruction descriptor of so many scales for each row, or why it has none.
    pub(super) fn decode(
        kind: Tcgen05Kind,
        per_row: u32,
        bits: u32,
    ) -> Result<(ScaleType, [u32; 2]), String> {
        let ty = if bits >> 23 & 1 == 1 { ScaleType::UE8M0 } else { ScaleType::UE4M3 };
        if ty == ScaleType::UE4M3 && (kind != Tcgen05Kind::MxF4NvF4 || per_row != 4) {
            return Err(format!("has scales of ue4m3, which .kind::{kind} has only with four for each row"));
        }
        let bytes = [bits >> 29 & 3, bits >> 4 & 3];
        match bytes.iter().find(|byte| **byte % per_row != 0) {
            Some(byte) => Err(format!("names byte {byte} of scales of which a row has {per_row}")),
            None => Ok((ty, bytes)),
        }
    }

    /// The rectangles of the scales of `m` rows and `n` columns.
    pub(super) fn areas(&self, m: u32, n: u32) -> [Area; 2] {
        [(self.a, m), (self.b, n)].map(|(start, rows)| Area {
            start,
            lanes: LANES,
            columns: rows.div_ceil(32),
        })
    }

    fn scale(&self, tensor: &TensorMemory, (start, byte): (Cell, u32), row: u32, i: u32) -> f64 {
        let word = tensor.load(row % 32, start.column + row / 32);
        let code = (word >> (8 * (byte + i))) as u8;
        match (self.ty, code) {
            (ScaleType::UE8M0, 0xFF) => f64::NAN,
            (ScaleType::UE8M0, code) => 2f64.powi(i32::from(code) - 127),
            // The sign bit is none.
            (ScaleType::UE4M3, code) => e4m3_value(code & 0x7F),
        }
    }
}

/// The elements of a row.
fn values(stored: Stored, row: &Factor) -> Vec<f64> {
    match stored {
        Stored::PackedE2m1 => {
            let of = |code: u8| {
                let value = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
                if code & 8 != 0 { -value } else { value }
            };
            row.iter().flat_map(|byte| [of(byte & 15), of(byte >> 4)]).collect()
        }
        Stored::Plain(Element::E5m2) => row.iter().map(|byte| e5m2_value(*byte)).collect(),
        // What is narrower was widened.
        _ => row.iter().map(|byte| e4m3_value(*byte)).collect(),
    }
}

/// Elements of rows, times their scales.
fn scaled(
    tensor: &TensorMemory,
    scaling: &Scaling,
    place: (Cell, u32),
    (stored, rows): (Stored, &[Factor]),
) -> Vec<Vec<f64>> {
    let scaled_row = |(r, row): (u32, &Factor)| {
        let mut row = values(stored, row);
        let each = row.len() / scaling.per_row as usize;
        for (i, block) in (0..).zip(row.chunks_mut(each)) {
            let scale = scaling.scale(tensor, place, r, i);
            block.iter_mut().for_each(|value| *value *= scale);
        }
        row
    };
    (0..).zip(rows).map(scaled_row).collect()
}

/// Computes D.
pub(super) fn multiply(sums: &mut InMemory<'_>, scaling: &Scaling, (a, b): (&[Factor], &[Factor])) {
    let Instruction { a: a_stored, b: b_stored, negate, .. } = sums.work.instruction;
    let tensor = &*sums.tensor;
    let a = scaled(tensor, scaling, (scaling.a, scaling.bytes[0]), (a_stored, a));
    let b = scaled(tensor, scaling, (scaling.b, scaling.bytes[1]), (b_stored, b));
    for (row, a) in a.iter().enumerate() {
        for (column, b) in b.iter().enumerate() {
            let sum: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
            let c = f64::from(f32::from_bits(sums.c(row, column)));
            let d = (if negate { c - sum } else { c + sum }) as f32;
            let d = if d.is_nan() { 0x7FFF_FFFF } else { d.to_bits() };
            sums.d(row, column, d);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_have_the_types_and_bytes_of_their_kind() {
        let decode = Scaling::decode;
        let both = 1 << 23 | 3 << 29 | 1 << 4;
        assert_eq!(decode(Tcgen05Kind::MxF8F6F4, 1, both), Ok((ScaleType::UE8M0, [3, 1])));
        assert_eq!(decode(Tcgen05Kind::MxF4, 2, 1 << 23 | 2 << 29), Ok((ScaleType::UE8M0, [2, 0])));
        assert_eq!(decode(Tcgen05Kind::MxF4NvF4, 4, 0), Ok((ScaleType::UE4M3, [0, 0])));
        for (kind, per_row, bits, why) in [
            (Tcgen05Kind::MxF8F6F4, 1, 0, "ue4m3"),
            (Tcgen05Kind::MxF4NvF4, 2, 0, "ue4m3"),
            (Tcgen05Kind::MxF4, 2, both, "byte 3"),
            (Tcgen05Kind::MxF4NvF4, 4, 2 << 4, "byte 2"),
        ] {
            let problem = decode(kind, per_row, bits).expect_err(why);
            assert!(problem.contains(why), "{problem}");
        }
    }
}
