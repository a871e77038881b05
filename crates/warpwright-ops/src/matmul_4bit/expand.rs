//! The weight as a matrix of the type of `x`, for products that are not bound by memory.

use warpwright_dsl::prelude::*;

use super::scales::{Groups, ScaleArgs, numbers, shift_of};
use super::tuning::EXPAND_THREADS;

kernel_args! {
    /// Codes and scales to elements.
    pub(super) struct ExpandArgs => ExpandParams {
        weight: In<u8>, scale: ScaleArgs, y: Out<Elem>,
        k: u32,
        /// Elements from one row of codes to the next.
        pitch: u64,
        /// The same as scales count them, and elements that share one, or the logarithm; of indexed groups the scales of a row, and the last.
        group_pitch: u64, divisor: u64,
    }
}

/// A block for each row, and vectors of `width` elements, which share a scale unless groups are indexed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expand {
    pub(super) dtype: DType,
    pub(super) groups: Groups,
    /// Whether the size of a group is a power of two.
    pub(super) shifts: bool,
    pub(super) width: u32,
}

impl KernelDef for Expand {
    type Args = ExpandArgs;

    fn spec(&self) -> KernelSpec {
        let find = if self.shifts { "shift" } else { "divide" };
        let name = format!("matmul_4bit_expand_{}_{}_{find}_x{}", self.groups.name(), self.dtype, self.width);
        KernelSpec::new(name, BlockDim::x(EXPAND_THREADS))
            .dtypes(self.groups.dtypes(DTypes::NONE.with("y", self.dtype)))
    }

    fn build<'k>(&self, k: K<'k>, a: ExpandParams<'k>) {
        let format = self.groups.format;
        let values = numbers(k, format);
        k.after_previous_grid();
        let decoder = self.groups.decoder(k, a.scale);
        let row = k.block_idx_x().to_u64();
        let (codes, groups, y) = (row * a.pitch, row * a.group_pitch, a.y.at(row * a.k.to_u64()));
        let order = format.order();
        // All lanes look up, so the loop is that of the first thread.
        let step = EXPAND_THREADS * self.width;
        k.for_each(k.range(0, a.k, step), |start| {
            let at = start + k.thread_idx() * self.width;
            let there = at.lt(a.k);
            let inside = at.min(a.k - self.width).to_u64();
            let code = codes + inside;
            let word = match self.width {
                8 => a.weight.at(code >> 1).cast::<u32>().get(),
                _ => a.weight.at(code >> 1).get(),
            };
            let odd = (code & 1).to_u32();
            let of = |at| {
                let loaded = decoder.load(decoder.group_of(groups, at, a.divisor, self.shifts), 0);
                (decoder.scale(k, &loaded), decoder.zero_point(&loaded))
            };
            let shared = (!self.groups.indexed).then(|| of(inside));
            let weights: Lanes<'k, f32> = (0..self.width as usize)
                .map(|i| {
                    let code = match self.width {
                        1 => word >> shift_of(format, odd),
                        _ => word >> order.shift(i),
                    };
                    let value = values.get(code & 15);
                    let (scale, zero) = shared.unwrap_or_else(|| of(inside + i as u64));
                    zero.map_or(value, |zero| value - zero) * scale
                })
                .collect();
            k.if_(there, || y.at(inside).store(weights));
        });
    }
}
