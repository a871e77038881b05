//! The definition in plain f64 Rust.

use super::{ScaleFormat, Weight4bitDesc, WeightFormat};
use crate::gemm::reference::{Scaled, dot};
use crate::quantize::nested::BLOCK;
use crate::quantize::tables::dynamic_map;

/// The tensors of a weight.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// Bytes of codes.
    pub codes: &'a [u8],
    /// Scales, or their codes; of e4m3 the numbers that these stand for.
    pub scales: &'a [f64],
    /// One a group; empty for formats without.
    pub zero_points: &'a [u8],
    /// Maxima of nested scales, and their offset; empty and 0 where there are none.
    pub nested: (&'a [f64], f64),
    /// The scale of the whole weight beside e4m3 scales; 1 where there is none.
    pub tensor_scale: f64,
    /// The group of each column; empty where neighbours share one.
    pub group_index: &'a [i32],
}

/// Scale `group`, in f32 where nested scales are.
fn scale(desc: &Weight4bitDesc, w: Operand<'_>, group: usize) -> f64 {
    let stored = w.scales[group];
    match desc.scale {
        ScaleFormat::Float(_) => stored,
        ScaleFormat::Nested => {
            let (absmax, offset) = w.nested;
            let value = dynamic_map()[stored as usize] * absmax[group / BLOCK] as f32;
            f64::from(value + offset as f32)
        }
        ScaleFormat::E8m0 if stored == 255.0 => f64::NAN,
        ScaleFormat::E8m0 => 2f64.powi(stored as i32 - 127),
        ScaleFormat::E4m3 => stored * w.tensor_scale,
    }
}

/// The numbers of a weight, `[n, k]`.
pub fn numbers(desc: &Weight4bitDesc, w: Operand<'_>) -> Vec<f64> {
    let Weight4bitDesc { format, n, k, group_size, .. } = *desc;
    let table = format.table();
    let per_row = k.div_ceil(group_size);
    let scales: Vec<f64> = (0..desc.group_count()).map(|group| scale(desc, w, group)).collect();
    let number = |i: usize| {
        let (row, at) = (i / k, i % k);
        let (code, group) = if format.is_flat() {
            (i, i / group_size)
        } else {
            let given = w.group_index.get(at).map(|group| usize::try_from(*group).unwrap_or(usize::MAX));
            let group = given.map_or(at / group_size, |group| group.min(per_row - 1));
            (row * k.next_multiple_of(2) + at, row * per_row + group)
        };
        let value = f64::from(table[usize::from(format.order().unpack(w.codes[code / 2], code % 2))]);
        let zero = if format == WeightFormat::Int4Asymmetric { f64::from(w.zero_points[group]) } else { 0.0 };
        (value - zero) * scales[group]
    };
    (0..n * k).map(number).collect()
}

/// `x W^T + bias` at (`row`, `col`), of the [numbers] of W.
pub fn element(
    desc: &Weight4bitDesc,
    (x, w): (&[f64], &[f64]),
    bias: Option<&[f64]>,
    (row, col): (usize, usize),
) -> Scaled {
    let [x, w] = [(x, row), (w, col)].map(|(all, outer)| &all[outer * desc.k..][..desc.k]);
    let (sum, scale) = dot(x, w);
    let bias = bias.map_or(0.0, |bias| bias[col]);
    (sum + bias, scale + bias.abs())
}

/// `dy W` at (`row`, `col`), of the [numbers] of W.
pub fn gradient(desc: &Weight4bitDesc, (dy, w): (&[f64], &[f64]), (row, col): (usize, usize)) -> Scaled {
    let of_row = &dy[row * desc.n..][..desc.n];
    let column: Vec<f64> = (0..desc.n).map(|n| w[n * desc.k + col]).collect();
    dot(of_row, &column)
}
