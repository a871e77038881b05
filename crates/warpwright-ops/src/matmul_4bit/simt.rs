//! Products for any alignment, type and target: a warp for each column of the result.

use warpwright_dsl::WARP;
use warpwright_dsl::prelude::*;

use super::scales::{Groups, ScaleArgs, numbers, shift_of};
use super::tuning::{SIMT_ROWS, SIMT_THREADS};

kernel_args! {
    /// `y = x W^T + bias`
    pub(super) struct SimtArgs => SimtParams {
        x: In<Elem>, weight: In<u8>, scale: ScaleArgs, bias: In<Elem>, y: Out<Elem>,
        m: u32, n: u32, k: u32,
        /// Elements from one row of codes to the next.
        pitch: u64,
        /// The same as scales count them, and elements that share one, or the logarithm; of indexed groups the scales of a row, and the last.
        group_pitch: u64, divisor: u64,
    }
}

/// A warp of columns of W at a time, [`SIMT_ROWS`] rows of `x`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Simt {
    pub(super) dtype: DType,
    pub(super) groups: Groups,
    /// Whether the size of a group is a power of two.
    pub(super) shifts: bool,
    pub(super) bias: bool,
}

impl KernelDef for Simt {
    type Args = SimtArgs;

    fn spec(&self) -> KernelSpec {
        let bias = if self.bias { "_bias" } else { "" };
        let find = if self.shifts { "shift" } else { "divide" };
        let name = format!("matmul_4bit_simt_{}_{}_{find}{bias}", self.groups.name(), self.dtype);
        let dtypes =
            ["x", "bias", "y"].into_iter().fold(DTypes::NONE, |all, name| all.with(name, self.dtype));
        KernelSpec::new(name, BlockDim::x(SIMT_THREADS)).dtypes(self.groups.dtypes(dtypes))
    }

    fn build<'k>(&self, k: K<'k>, a: SimtParams<'k>) {
        let values = numbers(k, self.groups.format);
        k.after_previous_grid();
        let decoder = self.groups.decoder(k, a.scale);
        let lane = k.lane_idx();
        let column = k.block_idx_x() * (SIMT_THREADS / 32) + k.warp_idx();
        // Warps behind the last column compute it, too, and store nothing.
        let row = column.min(a.n - 1).to_u64();
        let first = k.block_idx_y() * SIMT_ROWS;
        let rows: Vec<U64<'k>> = (0..SIMT_ROWS).map(|i| (first + i).min(a.m - 1).to_u64()).collect();
        let x: Vec<_> = rows.iter().map(|row| a.x.at(*row * a.k.to_u64())).collect();
        let zeros: Vec<F32<'k>> = x.iter().map(|_| k.lit(0.0)).collect();
        let (codes, groups) = (row * a.pitch, row * a.group_pitch);
        let sums = k.fold(k.range(0, a.k, WARP), zeros, |start, sums| {
            let at = start + lane;
            let there = at.lt(a.k);
            let at = at.min(a.k - 1).to_u64();
            let code = codes + at;
            let byte = a.weight.at(code >> 1).get();
            let odd = (code & 1).to_u32();
            let value = values.get((byte >> shift_of(self.groups.format, odd)) & 15);
            let loaded = decoder.load(decoder.group_of(groups, at, a.divisor, self.shifts), 0);
            let value = decoder.zero_point(&loaded).map_or(value, |zero| value - zero);
            let weight = there.select(value * decoder.scale(k, &loaded), 0.0);
            let product = |(sum, x): (F32<'k>, &Ptr<'k, Read, Elem>)| {
                weight.mul_add(x.at(at).only_where(there, Fill::Zero).get::<f32>(), sum)
            };
            sums.into_iter().zip(&x).map(product).collect()
        });
        let sums: Vec<F32<'k>> = sums.into_iter().map(|sum| warp_reduce(k, Sum, sum)).collect();
        k.if_(lane.eq(0) & column.lt(a.n), || {
            for (i, sum) in (0..).zip(sums) {
                let sum = if self.bias { sum + a.bias.at(column).get::<f32>() } else { sum };
                let row = first + i;
                k.if_(row.lt(a.m), || a.y.at(row.mul_wide(a.n) + column.to_u64()).set(sum));
            }
        });
    }
}
