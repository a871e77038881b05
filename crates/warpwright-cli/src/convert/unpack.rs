//! Packed weights of other tools on their way to floating point, in bands of rows.

use std::ops::Range;
use std::sync::Arc;

use warpwright_ptx::DType;

use super::CHUNK;
use crate::checkpoint::floats;
use crate::checkpoint::schemes::{Decoder, PackedWeight};
use crate::checkpoint::{Checkpoint, CheckpointError, Storage, Writer};

/// A packed weight, and the tensor of the output that it becomes.
pub(super) struct Unpacked<'t, S> {
    pub(super) weight: &'t PackedWeight,
    pub(super) dtype: DType,
    pub(super) writer: &'t Writer<S>,
    pub(super) at: usize,
}

/// Derived, it would ask the same of `S`.
impl<S> Clone for Unpacked<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Unpacked<'_, S> {}

/// Rows of a weight that are decoded at a time.
pub(super) struct Band<'t> {
    decoder: Arc<Decoder<'t>>,
    rows: Range<u64>,
}

impl Band<'_> {
    /// Bytes of its codes.
    pub(super) fn bytes(&self) -> u64 {
        let weight = self.decoder.weight();
        (self.rows.end - self.rows.start) * weight.columns * u64::from(weight.codes.code.bits()) / 8
    }
}

/// Rows of a weight at a time: whole matrices of those that are turned round, else about a chunk.
pub(super) fn bands(weight: &PackedWeight) -> impl Iterator<Item = Range<u64>> + use<> {
    let rows = if weight.rows == 0 || weight.columns == 0 { 0 } else { weight.all_rows() };
    let length = if weight.transposed { weight.rows } else { CHUNK / weight.columns.max(1) }.max(1);
    (0..rows).step_by(usize::try_from(length).unwrap_or(usize::MAX)).map(move |start| {
        let end = start.saturating_add(length).min(rows);
        start..end
    })
}

impl<'t, S: Storage> Unpacked<'t, S> {
    /// Reads what all bands need, and gives the bands.
    pub(super) fn begin(&self, checkpoint: &'t Checkpoint) -> Result<Vec<Band<'t>>, CheckpointError> {
        let bands: Vec<_> = bands(self.weight).collect();
        if bands.is_empty() {
            return Ok(Vec::new());
        }
        let decoder = Arc::new(Decoder::open(checkpoint, self.weight)?);
        Ok(bands.into_iter().map(|rows| Band { decoder: decoder.clone(), rows }).collect())
    }

    /// Decodes a band into the output.
    pub(super) fn restore(&self, band: &Band<'_>) -> Result<(), CheckpointError> {
        let mut values = band.decoder.rows(band.rows.clone())?;
        if self.weight.transposed {
            values = transposed(&values, self.weight.columns as usize);
        }
        let bytes = floats::encode(&values, self.dtype);
        let width = self.dtype.bytes() as u64;
        // The output has as many bytes as its layout was checked for.
        self.writer.write_at(self.at, band.rows.start * self.weight.columns * width, &bytes)
    }
}

/// From \[N, K\] to \[K, N\].
fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let rows = values.len() / columns;
    (0..values.len()).map(|at| values[at % rows * columns + at / rows]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_is_turned_round() {
        assert_eq!(transposed(&[0.0, 1.0, 2.0, 10.0, 11.0, 12.0], 3), [0.0, 10.0, 1.0, 11.0, 2.0, 12.0]);
    }
}
