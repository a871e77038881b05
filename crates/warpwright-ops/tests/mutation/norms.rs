//! Norms over channels and groups.

use warpwright_ops::Operation;
use warpwright_ops::batch_norm::{
    BatchNorm, BatchNormBackwardDesc, BatchNormDesc, BatchNormInferenceDesc, Layout, Momentum, Real,
};
use warpwright_ops::group_norm::tuning::{Path, Resident};
use warpwright_ops::group_norm::{GroupNormBackwardDesc, GroupNormDesc, GroupShape};
use warpwright_ptx::DType;

use crate::harness::{Sweep, TARGET, check, check_except, grouped, plans};

/// The shapes of each layout.
fn batch_norm_shapes(layout: Layout) -> Vec<BatchNorm> {
    // Batch, channels, spatial size: one slab and several, rows shorter and longer than a block, vectors and odd rests,
    // tiles that are cut by the last channel, more columns than threads, and the last channel of a block of eight.
    let first = [
        (2, 3, 40),
        (3, 2, 200),
        (6, 2, 200),
        (12, 2, 200),
        (25, 2, 200),
        (700, 9, 8),
        (1, 2, 20_008),
        (3, 8, 4100),
        (10, 2, 1028),
    ];
    // Last: more slabs than the threads that combine them.
    let last = [(3, 24, 2), (70, 40, 17), (2, 2056, 1), (999, 8, 1), (33, 264, 4), (519, 1024, 1)];
    let all: &[_] = if layout == Layout::ChannelsFirst { &first } else { &last };
    all.iter().map(|&(n, c, s)| BatchNorm::new(DType::F32, layout, n, c, s)).collect()
}

fn batch_norm(layout: Layout) {
    let norms = batch_norm_shapes(layout);
    let indices: Vec<usize> = (0..norms.len()).collect();
    let momentum = Some(Momentum::Exponential(Real::new(0.1)));
    // The kernels that combine slabs are the same in both layouts; those for clusters differ in what only
    // distributed shared memory does; those for cooperative grids are in `parts`, those that sum channels last need a
    // tensor for a whole device before a thread goes round its loops.
    fn apart(name: &str) -> bool {
        let cluster = name.contains("cluster") && !name.ends_with("cluster1");
        let sums = name.contains("nhwc") && (name.contains("statistics") || name.contains("sums"));
        cluster || name.ends_with("grid") || sums
    }
    let skipped: fn(&str) -> bool = match layout {
        Layout::ChannelsFirst => |name: &str| apart(name) || name.contains("combine"),
        Layout::ChannelsLast => apart,
    };
    check_except(skipped, &indices, |i| {
        BatchNormDesc { norm: norms[i], residual: true, momentum }.plan(TARGET).expect("plan")
    });
    check_except(skipped, &indices, |i| {
        let norm = BatchNorm { relu: true, ..norms[i] };
        BatchNormBackwardDesc { norm, dresidual: true }.plan(TARGET).expect("plan")
    });
}

#[test]
#[ignore = "nightly: mutation-norms"]
fn shifted_bounds_of_batch_normalisation_are_noticed() {
    batch_norm(Layout::ChannelsFirst);
}

#[test]
#[ignore = "nightly: mutation-norms"]
fn shifted_bounds_of_batch_normalisation_with_channels_last_are_noticed() {
    batch_norm(Layout::ChannelsLast);
}

#[test]
fn shifted_bounds_of_batch_normalisation_in_inference_are_noticed() {
    let norms = batch_norm_shapes(Layout::ChannelsLast);
    check(&[0, 1, 2, 3], |i| {
        BatchNormInferenceDesc { norm: norms[i], residual: false }.plan(TARGET).expect("plan")
    });
}

/// Both directions of group normalisation along a path, over shapes by their index: batch, channels, spatial size, groups.
pub(crate) fn group_norm_shapes(sweep: Sweep, layout: Layout, shapes: &[[usize; 4]], path: Option<Path>) {
    let indices: Vec<usize> = (0..shapes.len()).collect();
    let (dtype, eps) = (DType::F32, Real::new(1e-5));
    let shape = |i: usize| {
        let [batch, channels, spatial, groups] = shapes[i];
        GroupShape { batch, channels, spatial, groups, layout }
    };
    // Each tensor that may be absent is, in some of the shapes.
    sweep.check(&plans(&indices, |i| {
        let (weight, bias, silu, statistics) = (i % 3 != 0, i % 2 == 0, i % 5 == 4, i % 4 != 1);
        let desc = GroupNormDesc { dtype, shape: shape(i), weight, bias, silu, statistics, eps };
        path.map_or_else(|| desc.plan(TARGET), |path| desc.plan_along(TARGET, path)).expect("plan")
    }));
    // The second step's sums of columns are those of the row norms, whose tests reach each of their bounds.
    let sweep = Sweep { skipped: |name| name.contains("parameters"), ..sweep };
    sweep.check(&plans(&indices, |i| {
        let (weight, bias, silu) = (i % 3 != 0, i % 2 == 0, i % 5 == 4);
        let (dweight, dbias) = (i % 4 > 1, i % 2 == 0);
        let desc = GroupNormBackwardDesc { dtype, shape: shape(i), weight, bias, silu, dweight, dbias };
        path.map_or_else(|| desc.plan(TARGET), |path| desc.plan_along(TARGET, path)).expect("plan")
    }));
}

#[test]
fn defects_of_group_normalisation_in_registers_are_noticed() {
    // Groups that end at, before and after each vector of a thread, of 256 elements of a block or of 128 in the kernel for
    // any address; channels that end inside of a block.
    let resident = Resident { width: 4, threads: 64, vectors: 4, cluster: 1 };
    let ends = (1..=8).flat_map(|i| [128 * i - 4, 128 * i, 128 * i + 4]).filter(|spatial| *spatial <= 1024);
    let mut shapes: Vec<[usize; 4]> = ends.map(|spatial| [1, 2, spatial, 2]).collect();
    shapes.extend([
        [2, 4, 4, 2],
        [2, 6, 84, 2],
        [1, 6, 168, 2],
        [3, 2, 508, 1],
        [2, 64, 4, 2],
        [40, 2, 4, 2],
    ]);
    let path = Some(Path::Resident(resident));
    group_norm_shapes(Sweep::new(grouped), Layout::ChannelsFirst, &shapes, path);
}
