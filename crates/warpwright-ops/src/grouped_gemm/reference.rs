//! The definition in plain f64 Rust.

use std::ops::Range;

use super::{GroupedGemmDesc, Grouping};
use crate::gemm::reference::Scaled;

/// The rows of each group, as kernels take them from any numbers.
pub fn rows_of_groups(desc: &GroupedGemmDesc, ends: &[i32]) -> Vec<Range<usize>> {
    let cut = |end: i32| usize::try_from(end).unwrap_or(0).min(desc.rows());
    let mut begin = 0;
    let group = |end: &i32| {
        let rows = begin..cut(*end).max(begin);
        begin = if desc.grouping == Grouping::M { rows.end } else { cut(*end) };
        rows
    };
    ends.iter().map(group).collect()
}

/// The result of `group` at (`row`, `col`); that of a row behind all groups is 0. With [`Grouping::M`] `row` is one of `a`, and `group`
/// the one that has it.
pub fn element(
    desc: &GroupedGemmDesc,
    (a, b): (&[f64], &[f64]),
    groups: &[Range<usize>],
    (group, row, col): (usize, usize, usize),
) -> Scaled {
    let Some(rows) = groups.get(group) else { return (0.0, 0.0) };
    let (stride_b, _) = desc.strides();
    let product = |depth: usize| match desc.grouping {
        Grouping::M => {
            let at = if desc.transpose_b { col * desc.ldb + depth } else { depth * desc.ldb + col };
            a[row * desc.lda + depth] * b[group * stride_b + at]
        }
        Grouping::K => a[depth * desc.lda + row] * b[depth * desc.ldb + col],
    };
    let common = if desc.grouping == Grouping::M { 0..desc.k } else { rows.clone() };
    common.map(product).fold((0.0, 0.0), |(sum, scale), p| (sum + p, scale + p.abs()))
}
