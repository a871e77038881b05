//! Kernels of rows and columns: row norms, windows, softmax, cross entropy.

use warpwright_ops::Operation;
use warpwright_ops::cross_entropy::{CrossEntropyBackwardDesc, CrossEntropyDesc, Reduction};
use warpwright_ops::layer_norm::tuning::{Layout as RowLayout, backward_vectors, forward_vectors, scalars};
use warpwright_ops::layer_norm::{RowNorm, RowNormBackwardDesc, RowNormDesc};
use warpwright_ops::linear_cross_entropy::LinearCrossEntropyDesc;
use warpwright_ops::local_response_norm::tuning::Walk;
use warpwright_ops::local_response_norm::{
    Coefficients, LocalResponseNormBackwardDesc, LocalResponseNormDesc,
};
use warpwright_ops::plan::Real;
use warpwright_ops::softmax::tuning::{Config, Layout as Spread};
use warpwright_ops::softmax::{MaskKind, MaskedSoftmaxDesc, Softmax, SoftmaxBackwardDesc, SoftmaxDesc};
use warpwright_ptx::DType;

use crate::harness::{TARGET, check, check_except};

/// A layout for the shortest rows, one with several warps to a row, and one for rows of any length.
fn layouts(vectors: &[RowLayout]) -> Vec<RowLayout> {
    let (scalar, several) = (scalars(), vectors.iter().find(|l| l.group > 32));
    [vectors[0], scalar[0], scalar[2]].into_iter().chain(several.copied()).collect()
}

/// Lengths that end within each of the vectors that a thread keeps, and between two of them.
fn ends(layout: RowLayout) -> Vec<usize> {
    let group = layout.group as usize;
    let within = (0..layout.vectors.max(2) as usize).map(|i| group * i + group / 2);
    let lengths = within.chain([1, group - 1, group, group + 1]).map(|n| n * layout.width as usize);
    lengths.filter(|len| *len <= layout.capacity()).collect()
}

#[test]
fn shifted_bounds_and_barriers_of_row_norms_are_noticed() {
    let dtype = DType::F32;
    for norm in RowNorm::ALL {
        let bias = norm == RowNorm::Layer;
        for layout in layouts(&forward_vectors(dtype, TARGET)) {
            check(&ends(layout), |len| {
                let eps = Real::new(1e-5);
                let (weight, residual, statistics) = (true, true, true);
                let desc = RowNormDesc { norm, dtype, rows: 5, len, eps, weight, bias, residual, statistics };
                desc.plan_with(TARGET, &[layout]).expect("plan")
            });
        }
    }
}

#[test]
fn shifted_bounds_and_barriers_of_row_norm_gradients_are_noticed() {
    let dtype = DType::F32;
    for norm in RowNorm::ALL {
        let bias = norm == RowNorm::Layer;
        for layout in layouts(&backward_vectors(norm, dtype)) {
            let groups = layout.rows() as usize;
            // The last row is the only one of the second block, or of the first block's second round.
            let few = ends(layout).into_iter().enumerate();
            let mut shapes: Vec<_> = few.map(|(i, len)| (len, (1 + i % 2) * groups + 1, 2)).collect();
            // Rows of partial sums that end at each of those that a thread has in flight, and behind the last.
            let partial_rows = (1..8).map(|i| 4 * i + 2).chain([33]);
            shapes.extend(partial_rows.map(|rows| (layout.width as usize, rows as usize * groups, rows)));
            check(&(0..shapes.len()).collect::<Vec<_>>(), |i| {
                let (len, rows, partial_rows) = shapes[i];
                let desc = RowNormBackwardDesc { norm, dtype, rows, len, weight: true, bias, dz: true };
                desc.plan_with(TARGET, &[(layout, partial_rows)]).expect("plan")
            });
        }
    }
}

#[test]
fn shifted_bounds_of_windows_are_noticed() {
    // Windows that slide, and one that does not; every remainder of the channels that a thread takes at once.
    let runs_and_channels: Vec<usize> = (808..=816).chain(1608..=1616).collect();
    for (size, beta) in [(5, 0.75), (3, 1.5), (4, 0.75)] {
        let desc = |channels: usize| LocalResponseNormDesc {
            dtype: DType::F32,
            images: 2,
            channels,
            spatial: 64 + channels,
            size,
            coefficients: Coefficients { alpha: Real::new(1.0), beta: Real::new(beta), k: Real::new(1.0) },
        };
        // One run of all channels, and several.
        let walk = |run: usize| match size {
            4 => Walk::Single,
            _ => Walk::Sliding { channels: run as u32 },
        };
        check(&runs_and_channels, |both| desc(both % 100).plan_with(TARGET, walk(both / 100)).expect("plan"));
        check(&runs_and_channels, |both| {
            let forward = desc(both % 100);
            LocalResponseNormBackwardDesc { forward }.plan_with(TARGET, walk(both / 100)).expect("plan")
        });
    }
}

/// Shapes whose rows end at, before and after each vector of a thread, by their index.
fn softmax_shapes(shapes: &[[usize; 3]], config: Config) {
    let indices: Vec<usize> = (0..shapes.len()).collect();
    let (function, dtype, scale) = (Softmax::Plain, DType::F32, Real::new(1.0));
    check(&indices, |i| {
        let [outer, n, inner] = shapes[i];
        let desc = SoftmaxDesc { function, dtype, outer, n, inner, scale };
        desc.plan_with(TARGET, config).expect("plan")
    });
    check(&indices, |i| {
        let [outer, n, inner] = shapes[i];
        let desc = SoftmaxBackwardDesc {
            forward: SoftmaxDesc { function: Softmax::Log, dtype, outer, n, inner, scale },
        };
        desc.plan_with(TARGET, config).expect("plan")
    });
}

#[test]
fn defects_of_softmax_in_rows_are_noticed() {
    let rows = |team, vectors, threads, width| Config {
        layout: Spread::Rows { team, vectors },
        width,
        threads,
        keep: false,
    };
    softmax_shapes(&[[1, 32, 1], [17, 4, 1], [3, 28, 1]], rows(8, 1, 128, 4));
    softmax_shapes(&[[2, 4, 1], [1, 256, 1], [3, 260, 1], [2, 508, 1]], rows(64, 2, 64, 4));
    softmax_shapes(&[[1, 4, 1], [2, 252, 1], [2, 256, 1], [2, 512, 1]], rows(128, 1, 64, 4));
    let passes = |width| Config { layout: Spread::RowLoop, width, threads: 64, keep: false };
    let around = |n: usize| [[2, n - 4, 1], [2, n, 1], [2, n + 4, 1]];
    let shapes: Vec<[usize; 3]> = [8, 256, 512, 768, 1024].into_iter().flat_map(around).collect();
    softmax_shapes(&shapes, passes(4));
}

#[test]
fn defects_of_softmax_in_columns_are_noticed() {
    let layout = Spread::Columns { lanes: 8, teams: 8, vectors: 2 };
    let config = Config { layout, width: 2, threads: 64, keep: false };
    softmax_shapes(&[[2, 1, 16], [1, 8, 2], [2, 9, 18], [1, 16, 14], [3, 7, 30]], config);
    let layout = Spread::Columns { lanes: 16, teams: 2, vectors: 1 };
    let config = Config { layout, width: 4, threads: 32, keep: false };
    softmax_shapes(&[[2, 1, 64], [1, 2, 4], [2, 2, 68]], config);
    let layout = Spread::ColumnLoop { lanes: 8, teams: 4 };
    let config = Config { layout, width: 1, threads: 32, keep: false };
    let shapes = [1, 4, 5, 8, 9, 12, 13, 16, 17].map(|n| [2, n, 9]);
    softmax_shapes(&shapes, config);
}

#[test]
fn defects_of_masks_are_noticed() {
    // One element a thread, and four: rows that end at, before and after each vector of a round.
    let scalar = [7, 255, 256, 257, 513, 769, 1025];
    let vectors =
        [1, 2, 3, 4].into_iter().flat_map(|round| [1024 * round - 4, 1024 * round, 1024 * round + 4]);
    let lengths: Vec<usize> = scalar.into_iter().chain(vectors).collect();
    let indices: Vec<usize> = (0..lengths.len()).collect();
    for mask in [MaskKind::Additive, MaskKind::Boolean] {
        check(&indices, |i| {
            let (outer, n, inner) = (2, lengths[i], 1);
            let (function, dtype, scale) = (Softmax::Plain, DType::F32, Real::new(1.0));
            let softmax = SoftmaxDesc { function, dtype, outer, n, inner, scale };
            MaskedSoftmaxDesc { softmax, mask, repeat: 1, period: 2 }.plan(TARGET).expect("plan")
        });
    }
}

/// Classes that begin and end at, before and after vectors; both types of targets, so that each word counts.
fn cross_entropy(i: usize) -> CrossEntropyDesc {
    let classes = [1, 2, 3, 6, 7, 130, 255, 258, 385, 513, 33, 65, 97][i];
    let reduction = [Reduction::Mean, Reduction::Sum][i % 2];
    let target = [DType::I64, DType::I32][i / 2 % 2];
    // As many rows as the threads that add up the losses; so few that all targets are classes, and the sum a number.
    let rows = [40, 1024, 40, 40, 4, 4, 40, 40, 40, 40, 40, 40, 40][i];
    CrossEntropyDesc {
        row_stride: classes + if rows == 40 { i } else { 0 },
        ignore_index: -1,
        label_smoothing: Real::new(0.1),
        reduction,
        ..CrossEntropyDesc::new(DType::F32, target, [rows, classes])
    }
}

#[test]
fn defects_of_cross_entropy_are_noticed() {
    let all: Vec<usize> = (0..13).collect();
    check(&all, |i| cross_entropy(i).plan(TARGET).expect("plan"));
    let backward = [1, 2, 3, 6, 7, 130, 4096, 256, 512, 768, 1024, 2048, 3072];
    let of = |i: usize| CrossEntropyDesc {
        rows: 64,
        classes: backward[i],
        row_stride: backward[i] + i,
        ..cross_entropy(i)
    };
    check(&all, |i| CrossEntropyBackwardDesc { forward: of(i) }.plan(TARGET).expect("plan"));
}

/// Products and losses have tests of their own.
#[test]
fn defects_of_linear_cross_entropy_are_noticed() {
    let others = |name: &str| !name.starts_with("linear_cross_entropy");
    check_except(others, &[5, 6, 1030], |rows| {
        let target = if rows == 6 { DType::I32 } else { DType::I64 };
        let desc = LinearCrossEntropyDesc::new(DType::F32, target, [rows, 4, 2]);
        let desc = LinearCrossEntropyDesc { ignore_index: -1, bias: true, gradients: true, ..desc };
        desc.plan(TARGET).expect("plan")
    });
}

#[test]
#[ignore = "nightly: mutation-norms"]
fn defects_of_cross_entropy_of_many_classes_are_noticed() {
    // Rows that end at and behind each of a thread's vectors, and of its single elements.
    let long = [
        2049, 2050, 2561, 3073, 3585, 4099, 4100, 4609, 5121, 5633, 6145, 8192, 8199, 10241, 12289, 14337,
        16384, 16391,
    ];
    let of = |i: usize| CrossEntropyDesc {
        rows: 24,
        classes: long[i],
        row_stride: long[i],
        reduction: Reduction::None,
        ..cross_entropy(i % 13)
    };
    check(&(0..long.len()).collect::<Vec<_>>(), |i| of(i).plan(TARGET).expect("plan"));
}
