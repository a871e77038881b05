//! Norms whose blocks work together in clusters.

use warpwright_ops::Operation;
use warpwright_ops::batch_norm::{BatchNorm, BatchNormBackwardDesc, BatchNormDesc, Layout, Momentum, Real};
use warpwright_ops::group_norm::tuning::{Path, Resident};
use warpwright_ptx::DType;

use crate::harness::{Sweep, TARGET, grouped, plans};
use crate::norms::group_norm_shapes;

/// A group ends at, before and after each vector of a thread of either block; channels end inside of a block.
#[test]
fn defects_of_group_normalisation_in_clusters_are_noticed() {
    let resident = Resident { width: 4, threads: 64, vectors: 2, cluster: 2 };
    let ends = (1..=4).flat_map(|i| [256 * i - 4, 256 * i, 256 * i + 4]).filter(|spatial| *spatial <= 1024);
    let mut shapes: Vec<[usize; 4]> = ends.map(|spatial| [1, 2, spatial, 2]).collect();
    shapes.extend([[2, 4, 4, 2], [2, 6, 84, 2], [1, 6, 168, 2], [3, 2, 508, 1], [2, 64, 4, 2]]);
    let layout = Layout::ChannelsFirst;
    group_norm_shapes(Sweep::new(grouped), layout, &shapes, Some(Path::Resident(resident)));
}

/// Channels that a cluster of two or of eight holds, of one row and of several.
#[test]
fn defects_of_batch_normalisation_in_clusters_are_noticed() {
    let shapes = [(1, 1, 4 * 6404), (2, 1, 4 * 2001), (3, 2, 4 * 1100), (3, 2, 4 * 2801)];
    let norm =
        |(n, channels, spatial)| BatchNorm::new(DType::F32, Layout::ChannelsFirst, n, channels, spatial);
    let sweep = Sweep { skipped: |name| !name.contains("cluster"), by_line: true, ..Sweep::new(grouped) };
    let momentum = Some(Momentum::Exponential(Real::new(0.1)));
    sweep.check(&plans(&shapes, |shape| {
        BatchNormDesc { norm: norm(shape), residual: true, momentum }.plan(TARGET).expect("plan")
    }));
    sweep.check(&plans(&shapes, |shape| {
        let norm = BatchNorm { relu: true, ..norm(shape) };
        BatchNormBackwardDesc { norm, dresidual: true }.plan(TARGET).expect("plan")
    }));
}
