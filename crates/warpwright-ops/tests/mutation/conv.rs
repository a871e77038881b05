//! Convolutions and their gradients.

use warpwright_ops::activation::Activation;
use warpwright_ops::conv::tuning::{self, PersistentConfig, Tile};
use warpwright_ops::conv::{Axis, Conv, ConvBackwardDesc, ConvDesc, Layout};
use warpwright_ops::gemm::Precision;
use warpwright_ops::plan::TensorSpec;
use warpwright_ops::{Operation, PlanError};
use warpwright_ptx::DType;

use crate::harness::{Fill, Survivor, Sweep, TARGET, plain, plans};
use crate::products::FENCE_OF_COPIES;

const FIRST: Layout = Layout::ChannelsFirst;
const LAST: Layout = Layout::ChannelsLast;

/// Two dimensions of this side, kernel, stride and padding.
fn square(side: usize, kernel: usize, stride: usize, padding: usize) -> [Axis; 3] {
    let axis = Axis::new(side, kernel).with(stride, padding, 1);
    [Axis::ONE, axis, axis]
}

fn conv(dtype: DType, sizes: [usize; 3], groups: usize, axes: [Axis; 3], layout: Layout) -> Conv {
    Conv { groups, axes, layout, weight_layout: layout, ..Conv::new(dtype, sizes, Axis::ONE, Axis::ONE) }
}

/// Of gradients in tiles that are copied: a passage, and why nothing is noticed there.
const WHOLE_VECTORS: (&str, &str) =
    ("(to_col + (width - 1)).@lt(n)", "channels of a group are whole vectors where copies are");
const BY_ELEMENTS: &str = "let left = (n - to_col).min(width); k.@for_each(";
const FUNCTION: (&str, &str) =
    ("self.epilogue.activation.@eq(first)", "gradients are stored without a function");

const SURVIVORS: &[Survivor] = &[
    Survivor::equivalent(
        "_grouped_bf16_",
        "bring(&self.corner(next), write)); k.@commit_copies()",
        "blocks have one box each, other than those of f16",
    ),
    Survivor::equivalent(
        "_residual",
        "bring(&self.corner(self.part), self.stages); self.k.@commit_copies()",
        "the residual's copies are committed with these, and waited for before either is read",
    ),
    Survivor::equivalent(
        "_residual",
        "|number, (read, write, sums)| { k.@wait_copies(0)",
        "the wait for the residual is one for what was committed before it",
    ),
    Survivor::missed("_wgp_", "@publish_mbarriers()", FENCE_OF_COPIES),
    Survivor::equivalent(
        "_exact",
        "cx.pipeline.@consumer_wait(low)",
        "warps that split elements hand on both stages at once",
    ),
    Survivor::equivalent(
        "_exact",
        "other.@restart(high_a, low_b",
        "the products in front of them have a fence behind all writes of slices",
    ),
    Survivor::equivalent(
        "_exact",
        "(bit & 1).@eq(0).select(first, second)",
        "results that are made again are the same at both numbers of a pair",
    ),
    Survivor::equivalent("_apart", ".@ge(self.p.channels)", "a product has one tap"),
    Survivor::equivalent(
        "_scattered",
        "// A warp stores the rows that it has written. k.@warp_barrier();",
        "elements of 16 bits go to the panel by an instruction at which all lanes meet",
    ),
    Survivor::equivalent(
        "_p16_",
        "* size - 1)).@eq(0)",
        "either shift leaves vectors to the path of single elements",
    ),
    Survivor::equivalent("_dx_2d_64x64", WHOLE_VECTORS.0, WHOLE_VECTORS.1),
    Survivor::equivalent("_dx_3d_64x64", WHOLE_VECTORS.0, WHOLE_VECTORS.1),
    Survivor::equivalent("_dweight_2d_64x64", WHOLE_VECTORS.0, WHOLE_VECTORS.1),
    Survivor::equivalent("_dweight_3d_64x64", WHOLE_VECTORS.0, WHOLE_VECTORS.1),
    Survivor::equivalent("_dx_", BY_ELEMENTS, WHOLE_VECTORS.1),
    Survivor::equivalent("_dweight_", BY_ELEMENTS, WHOLE_VECTORS.1),
    Survivor::equivalent("_dx_", FUNCTION.0, FUNCTION.1),
    Survivor::equivalent("_dweight_", FUNCTION.0, FUNCTION.1),
];
const ACTIVATIONS: [Option<Activation>; 7] = [
    None,
    Some(Activation::Relu),
    Some(Activation::Silu),
    Some(Activation::GeluErf),
    Some(Activation::GeluTanh),
    Some(Activation::Sigmoid),
    Some(Activation::Tanh),
];

/// Both directions of convolutions, with functions of the sums where no tile is asked for.
fn check(convs: &[Conv], tile: Option<Tile>, skipped: fn(&str) -> bool) {
    let sweep = Sweep { skipped, survivors: SURVIVORS, by_line: true, ..Sweep::new(plain) };
    let all: Vec<usize> = (0..convs.len()).collect();
    let right = |plan: Result<_, PlanError>| plan.expect("plan");
    let forward = plans(&all, |i| {
        let function = ACTIVATIONS[i % ACTIVATIONS.len()];
        let recorded = matches!(tile, Some(Tile::Persistent(_)));
        let (bias, activation) = if recorded { (false, None) } else { (i % 3 == 0, function) };
        let desc = ConvDesc { bias, activation, ..ConvDesc::new(convs[i]) };
        right(tile.map_or_else(|| desc.plan(TARGET), |tile| desc.plan_with(TARGET, tile)))
    });
    sweep.check(&forward);
    let right = |plan: Result<_, PlanError>| plan.expect("plan");
    let backward = plans(&all, |i| {
        let desc = ConvBackwardDesc { conv: convs[i], dx: true, dweight: true, dbias: i % 2 == 0 };
        right(tile.map_or_else(|| desc.plan(TARGET), |tile| desc.plan_with(TARGET, tile)))
    });
    sweep.check(&backward);
}

/// Convolutions with a factor, a shift and a residual, forward.
fn check_ends(convs: &[Conv], tile: Option<Tile>, skipped: fn(&str) -> bool) {
    let sweep = Sweep { skipped, survivors: SURVIVORS, by_line: true, ..Sweep::new(plain) };
    let all: Vec<usize> = (0..convs.len()).collect();
    sweep.check(&plans(&all, |i| {
        let desc = ConvDesc { scale: true, bias: true, residual: true, ..ConvDesc::new(convs[i]) };
        let plan = tile.map_or_else(|| desc.plan(TARGET), |tile| desc.plan_with(TARGET, tile));
        plan.expect("plan")
    }));
}

#[test]
fn defects_of_copies_of_few_channels_are_noticed() {
    let of = |dtype: DType, channels: usize| {
        conv(dtype, [3, channels, 16], 1, square(48, 8, 8, 0), Layout::ChannelsFirst)
    };
    check(&[of(DType::BF16, 3), of(DType::F32, 4)], None, |name| !name.contains("_interleave_"));
}

/// Pixels of rows and images that end within a tile, channels and filters too, and a common dimension that several blocks share.
fn gathered(layout: Layout) {
    let axes = [
        Axis::ONE,
        Axis { input: 6, kernel: 3, stride: 2, padding: [2, 0], dilation: 1 },
        Axis { input: 9, kernel: 2, stride: 1, padding: [0, 3], dilation: 3 },
    ];
    let cube = [Axis::new(4, 3).with(1, 1, 1), Axis::new(5, 2).with(2, 0, 2), Axis::new(6, 3).with(1, 1, 1)];
    let convs = [
        conv(DType::F64, [2, 5, 7], 1, axes, layout),
        conv(DType::F64, [1, 4, 6], 2, cube, layout),
        conv(DType::F64, [2, 1, 70], 1, square(23, 2, 1, 0), layout),
        conv(DType::F64, [1, 33, 65], 1, square(3, 2, 1, 1), layout),
    ];
    check(&convs, None, |name| !name.contains("_gather") && !name.contains("_bias_"));
}

#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_gathered_images_are_noticed() {
    gathered(LAST);
    gathered(FIRST);
}

#[test]
fn defects_of_depthwise_kernels_are_noticed() {
    let convs = [
        conv(DType::F32, [2, 8, 8], 8, square(19, 3, 1, 1), LAST),
        conv(DType::F32, [1, 70, 70], 70, square(9, 3, 1, 0), LAST),
        conv(DType::F32, [2, 4, 4], 4, square(11, 3, 1, 2), LAST),
    ];
    // Each function of the sums, with a bias and without.
    let functions = (0..12).map(|_| conv(DType::F32, [1, 4, 4], 4, square(5, 3, 1, 1), LAST));
    let convs: Vec<Conv> = convs.into_iter().chain(functions).collect();
    check(&convs, None, |name| !name.contains("_depthwise_") && !name.contains("_sum_"));
}

/// A tile of two warpgroups, with as few stages as there can be.
const SMALL: PersistentConfig =
    PersistentConfig { rows: 128, cols: 64, groups: 2, stages: 2, cluster: 1, height: 2 };

#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_products_of_images_are_noticed() {
    let cube = [Axis::new(3, 3).with(1, 1, 1), Axis::new(5, 2).with(2, 0, 1), Axis::new(9, 3).with(1, 1, 1)];
    let convs = [
        conv(DType::BF16, [2, 72, 80], 1, square(9, 3, 1, 1), LAST),
        conv(DType::BF16, [1, 64, 128], 1, square(13, 3, 2, 1), LAST),
        conv(DType::BF16, [2, 8, 128], 1, cube, LAST),
        conv(DType::BF16, [2, 16, 192], 1, square(8, 4, 4, 0), LAST),
        conv(DType::BF16, [1, 136, 8], 1, square(7, 1, 1, 0), LAST),
        // More tiles than there are blocks: of pixels, and of taps.
        conv(DType::BF16, [2, 8, 64], 1, square(95, 2, 1, 0), LAST),
        conv(DType::BF16, [1, 8, 64], 1, square(29, 12, 1, 0), LAST),
        conv(DType::BF16, [1, 64, 8], 1, square(29, 12, 1, 0), LAST),
        conv(DType::BF16, [1, 8, 64], 1, [Axis::new(27, 1), Axis::new(27, 2), Axis::new(27, 1)], LAST),
        conv(DType::BF16, [1, 8, 64], 1, [Axis::new(12, 5), Axis::new(12, 5), Axis::new(12, 6)], LAST),
        conv(DType::BF16, [1, 64, 8], 1, [Axis::new(12, 5), Axis::new(12, 5), Axis::new(12, 6)], LAST),
    ];
    // Sums of parts are stored as results are, by the same lines, of too few tiles here.
    check(&convs, Some(Tile::Persistent(SMALL)), |name| !name.contains("_wgp_") || name.contains("_split"));
}

/// Gradients of weights whose slices warps turn, and split: more than a round of the ring, panels that end within, and each dimension.
fn across(precision: Precision, tile: PersistentConfig, fill: Fill) {
    let cube = [Axis::new(3, 3).with(1, 1, 1), Axis::new(5, 2).with(2, 0, 1), Axis::new(9, 3).with(1, 1, 1)];
    let convs = [
        conv(DType::F32, [2, 64, 80], 1, square(9, 3, 1, 1), LAST),
        conv(DType::F32, [1, 32, 136], 1, square(13, 3, 2, 1), LAST),
        conv(DType::F32, [2, 32, 8], 1, cube, LAST),
        conv(DType::F32, [1, 8, 136], 1, square(13, 1, 1, 0), LAST),
        // More tiles than there are blocks.
        conv(DType::F32, [1, 32, 136], 1, square(15, 12, 1, 0), LAST),
        conv(DType::F32, [1, 8520, 8], 1, square(3, 1, 1, 0), LAST),
        conv(DType::F32, [1, 32, 136], 1, [Axis::new(5, 5), Axis::new(5, 5), Axis::new(6, 6)], LAST),
    ];
    // Sums of parts are stored as results are, by the same lines.
    let skipped = |name: &str| !name.contains("_wgp_") || name.contains("_split");
    let sweep = Sweep { skipped, survivors: SURVIVORS, by_line: true, ..Sweep::new(fill) };
    sweep.check(&plans(&convs, |conv| {
        let conv = Conv { precision, ..conv };
        let desc = ConvBackwardDesc { conv, dx: false, dweight: true, dbias: false };
        desc.plan_with(TARGET, Tile::Persistent(tile)).expect("plan")
    }));
}

/// Images of large numbers, one of 64 the largest: rounded to `tf32` those are infinite, and their sums are computed again.
fn vast(specs: &[TensorSpec], slot: usize) -> Vec<f64> {
    let largest = f64::from(f32::MAX);
    let value = |(i, value): (usize, f64)| match specs[slot].name {
        "x" if i % 64 == 63 => largest,
        "x" => value * 0.1 * largest,
        "dy" => value * 1e-4,
        _ => value,
    };
    plain(specs, slot).into_iter().enumerate().map(value).collect()
}

#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_turned_slices_are_noticed() {
    across(Precision::Tf32, SMALL, plain);
}

#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_split_slices_are_noticed() {
    across(Precision::Full, PersistentConfig { stages: 4, ..SMALL }, vast);
}

/// Tiles that ordinary copies bring images of groups to, behind `depth`: strides, results that end within a tile and a vector, more than a
/// round of the ring, and each function of the sums.
fn copied(depth: Axis) {
    let images = |sizes, groups, [_, height, width]: [Axis; 3]| {
        conv(DType::BF16, sizes, groups, [depth, height, width], LAST)
    };
    let uneven = [
        Axis::ONE,
        Axis { input: 6, kernel: 3, stride: 2, padding: [2, 0], dilation: 1 },
        Axis { input: 9, kernel: 2, stride: 1, padding: [0, 3], dilation: 3 },
    ];
    let convs = [
        images([2, 48, 48], 2, square(9, 3, 1, 1)),
        images([1, 64, 56], 8, square(7, 3, 1, 1)),
        images([1, 24, 72], 3, uneven),
        images([2, 16, 24], 2, square(9, 3, 2, 1)),
        images([1, 144, 16], 2, square(9, 3, 1, 1)),
        images([1, 16, 40], 2, square(5, 2, 1, 0)),
        images([3, 32, 16], 2, square(6, 3, 1, 2)),
        images([1, 16, 160], 2, square(9, 1, 1, 0)),
        // The last of five slices of the gradient of `x` is where sums go.
        images([1, 16, 32], 2, square(6, 3, 1, 1)),
    ];
    let tile = tuning::tiles(DType::BF16, Precision::Full, TARGET)
        .into_iter()
        .find(|tile| matches!(tile, Tile::Copied(_)) && tile.sides() == (64, 64));
    // Narrow copies and sums of parts have the same lines, and what follows products has a sweep of its own.
    check(&convs, tile, |name| !name.contains("_p16_") || name.contains("_split"));
}

#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_copied_images_are_noticed() {
    copied(Axis::ONE);
    copied(Axis::new(2, 2).with(1, 1, 1));
}

/// Groups that are read from halos: slices, images, rows and columns that end within a box, boxes of several images, and strides.
fn in_halos(convs: &[Conv]) {
    check(convs, None, |name| !name.contains("_grouped_"));
}

#[test]
fn defects_of_groups_are_noticed() {
    in_halos(&[
        conv(DType::BF16, [3, 24, 24], 3, square(8, 3, 1, 1), LAST),
        conv(
            DType::BF16,
            [1, 16, 16],
            2,
            [Axis::ONE, Axis::new(15, 3).with(1, 1, 1), Axis::new(17, 3)],
            LAST,
        ),
    ]);
}

/// The residual of a box comes to shared memory before its results, in their place.
#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_ends_of_groups_are_noticed() {
    check_ends(
        &[
            conv(DType::BF16, [3, 24, 24], 3, square(8, 3, 1, 1), LAST),
            conv(DType::BF16, [2, 80, 80], 5, square(9, 3, 2, 1), LAST),
            // More boxes than there are blocks.
            conv(DType::BF16, [1, 16, 16], 2, square(226, 1, 1, 0), LAST),
        ],
        None,
        |name| !name.contains("_grouped_"),
    );
}

#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_ends_of_products_of_images_are_noticed() {
    check_ends(
        &[
            conv(DType::BF16, [2, 72, 80], 1, square(9, 3, 1, 1), LAST),
            conv(DType::BF16, [1, 64, 128], 1, square(13, 3, 2, 1), LAST),
            // More tiles than there are blocks.
            conv(DType::BF16, [2, 8, 64], 1, square(95, 2, 1, 0), LAST),
        ],
        Some(Tile::Persistent(SMALL)),
        |name| !name.contains("_wgp_"),
    );
}

#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_groups_of_every_size_are_noticed() {
    let strided = [Axis::ONE, Axis::new(13, 3).with(2, 1, 1), Axis::new(21, 3).with(2, 1, 1)];
    for (channels, groups) in [(24, 6), (24, 3), (80, 5), (96, 3)] {
        in_halos(&[
            conv(DType::BF16, [3, channels, channels], groups, square(8, 3, 1, 1), LAST),
            conv(DType::BF16, [1, channels, channels], groups, square(19, 3, 1, 1), LAST),
            conv(DType::BF16, [2, channels, channels], groups, strided, LAST),
        ]);
    }
    // More boxes than there are blocks.
    in_halos(&[conv(DType::F16, [1, 16, 16], 2, square(226, 1, 1, 0), LAST)]);
}

#[test]
fn defects_of_changes_of_layout_are_noticed() {
    let convs = [
        conv(DType::BF16, [2, 70, 67], 1, square(9, 2, 1, 0), FIRST),
        conv(DType::BF16, [2, 3, 9], 1, square(11, 7, 2, 3), FIRST),
        conv(DType::BF16, [1, 5, 12], 1, square(6, 3, 1, 1), LAST),
        conv(DType::F32, [2, 6, 6], 6, square(9, 3, 1, 1), FIRST),
        conv(DType::BF16, [2, 70, 66], 1, square(10, 2, 1, 0), FIRST),
    ];
    check(&convs, None, |name| {
        !["_relayout_", "_reorder_", "_pack_taps_", "_sum_", "_finish_"]
            .iter()
            .any(|part| name.contains(part))
    });
}
