//! Cases of convolutions and their gradients.

use std::sync::Arc;

use warpwright_ops::activation::{Activation, reference as activation};
use warpwright_ops::conv::reference::{Ends, Scaled, View};
use warpwright_ops::conv::tuning::{self, Tile};
use warpwright_ops::conv::{Axis, Conv, ConvArgs, ConvBackwardArgs, ConvBackwardDesc, ConvDesc, Layout};
use warpwright_ops::gemm::Precision;
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::{DType, Target};

use crate::budget;
use crate::case::{self, Bench, Case, CaseError, Scope, Subject, view_mut};
use crate::inputs::Input;
use crate::measure::{Comparison, Expected};
use crate::storage;

#[derive(Clone, Debug)]
struct Subjected {
    conv: Conv,
    direction: Direction,
    scale: bool,
    bias: bool,
    residual: bool,
    activation: Option<Activation>,
    /// The gradients that are asked for: of `x`, the weight and the bias.
    wanted: [bool; 3],
    /// Whether there are NaN and infinities in an image.
    special: bool,
    /// Elements past an aligned address.
    lead: usize,
    /// The tile, where the target has it; otherwise the one that is chosen for the sizes.
    tile: Option<Tile>,
}

const FIRST: Layout = Layout::ChannelsFirst;
const LAST: Layout = Layout::ChannelsLast;

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for direction in [Direction::Forward, Direction::Backward] {
        for dtype in DType::FLOATS {
            for subject in situations(direction, dtype, scope) {
                let Conv { batch, channels, filters, groups, axes, layout, weight_layout, .. } = subject.conv;
                let axes: Vec<String> = axes.iter().filter(|axis| **axis != Axis::ONE).map(name_of).collect();
                let input = format!(
                    "{} {}, weight {}, {groups} groups{}{}{}{}{}{}{}{}{}",
                    layout.name(),
                    axes.join(" "),
                    weight_layout.name(),
                    if subject.scale { ", scale" } else { "" },
                    if subject.bias { ", bias" } else { "" },
                    if subject.residual { ", residual" } else { "" },
                    subject.activation.map_or(String::new(), |f| format!(", {}", f.name())),
                    if subject.wanted == [true; 3] {
                        String::new()
                    } else {
                        format!(", {:?}", subject.wanted)
                    },
                    subject.tile.map_or(String::new(), |tile| format!(", {}", tile.name())),
                    if subject.conv.precision == Precision::Tf32 { ", tf32" } else { "" },
                    if subject.special { ", special" } else { "" },
                    if subject.lead > 0 { ", misaligned" } else { "" },
                );
                out.push(Case {
                    op: "conv",
                    direction,
                    dtype,
                    shape: vec![batch, channels, filters],
                    input,
                    budget: budget::normalised(dtype),
                    subject: Arc::new(subject),
                });
            }
        }
    }
    out
}

/// A dimension as `input/kernel`, with what is not usual.
fn name_of(axis: &Axis) -> String {
    let Axis { input, kernel, stride, padding: [before, behind], dilation } = *axis;
    format!("{input}/{kernel} s{stride} p{before},{behind} d{dilation}")
}

fn situations(direction: Direction, dtype: DType, scope: Scope) -> Vec<Subjected> {
    let mut all = Vec::new();
    let with =
        |sizes: [usize; 3], groups: usize, axes: [Axis; 3], (layout, weight_layout): (Layout, Layout)| {
            let conv =
                Conv { groups, axes, layout, weight_layout, ..Conv::new(dtype, sizes, Axis::ONE, Axis::ONE) };
            Subjected {
                conv,
                direction,
                scale: false,
                bias: direction == Direction::Backward,
                residual: false,
                activation: None,
                wanted: [true; 3],
                special: false,
                lead: 0,
                tile: None,
            }
        };
    let square = |side: usize, kernel: usize, stride, padding, dilation| {
        let axis = Axis::new(side, kernel).with(stride, padding, dilation);
        [Axis::ONE, axis, axis]
    };
    let uneven = [
        Axis::ONE,
        Axis { input: 6, kernel: 3, stride: 2, padding: [2, 0], dilation: 1 },
        Axis { input: 9, kernel: 2, stride: 1, padding: [0, 3], dilation: 3 },
    ];
    let cube = [Axis::new(4, 3).with(1, 1, 1), Axis::new(5, 2).with(2, 0, 2), Axis::new(6, 3).with(1, 1, 1)];
    for layouts in [(LAST, LAST), (FIRST, FIRST), (LAST, FIRST), (FIRST, LAST)] {
        all.push(with([2, 5, 7], 1, square(7, 3, 1, 1, 1), layouts));
        all.push(with([1, 8, 16], 1, uneven, layouts));
        all.push(with([2, 6, 9], 3, square(6, 3, 2, 1, 1), layouts));
        all.push(with([1, 4, 8], 4, cube, layouts));
        all.push(with([2, 72, 40], 1, square(5, 3, 1, 1, 1), layouts));
    }
    let both = (LAST, LAST);
    // One dimension, a kernel as large as the image, patches, points, and a stride beyond the kernel, between whose taps are pixels that
    // nothing comes from.
    all.push(with([2, 16, 24], 1, [Axis::ONE, Axis::ONE, Axis::new(70, 4).with(1, 3, 2)], both));
    all.push(with([3, 8, 8], 1, square(4, 4, 1, 0, 1), both));
    all.push(with([2, 3, 32], 1, square(8, 4, 4, 0, 1), (FIRST, FIRST)));
    all.push(with([2, 2, 24], 1, square(8, 4, 4, 0, 1), (FIRST, FIRST)));
    all.push(with([2, 2, 24], 1, square(8, 4, 4, 0, 1), (FIRST, LAST)));
    all.push(with([3, 3, 16], 1, square(48, 8, 8, 0, 1), (FIRST, FIRST)));
    all.push(with([2, 4, 24], 1, square(12, 4, 4, 0, 1), (FIRST, FIRST)));
    all.push(with([1, 6, 8], 1, square(9, 2, 2, 0, 1), (LAST, FIRST)));
    all.push(with([2, 64, 72], 1, square(6, 1, 1, 0, 1), both));
    all.push(with([2, 16, 8], 1, square(9, 2, 3, 0, 1), both));
    // Points: products of matrices as they lie.
    for (layouts, side) in [(both, 5), ((FIRST, FIRST), 4), ((FIRST, LAST), 3)] {
        all.push(with([3, 24, 17], 1, square(side, 1, 1, 0, 1), layouts));
        all.push(with([1, 72, 40], 1, square(side * 2, 1, 1, 0, 1), layouts));
    }
    // Few channels, whose taps are packed.
    all.push(with([2, 3, 16], 1, square(11, 7, 2, 3, 1), (FIRST, FIRST)));
    all.push(with([1, 4, 12], 1, square(9, 5, 1, 2, 2), both));
    // Depthwise, with more filters than channels too.
    all.push(with([2, 12, 12], 12, square(6, 3, 1, 1, 1), both));
    all.push(with([2, 5, 5], 5, square(7, 3, 2, 1, 1), both));
    all.push(with([1, 36, 36], 36, square(19, 7, 1, 3, 1), both));
    all.push(with([2, 8, 8], 8, square(9, 5, 2, 2, 1), both));
    all.push(with([1, 8, 8], 8, [Axis::ONE, Axis::ONE, Axis::new(21, 4).with(2, 3, 1)], both));
    all.push(with([1, 4, 4], 4, square(12, 3, 2, 0, 1), (LAST, FIRST)));
    all.push(with(
        [1, 4, 4],
        4,
        [Axis::ONE, Axis::new(9, 2).with(1, 1, 1), Axis::new(8, 5).with(1, 4, 1)],
        both,
    ));
    all.push(with([1, 4, 4], 4, square(9, 3, 3, 1, 1), both));
    all.push(with([1, 6, 12], 6, square(7, 5, 2, 2, 1), (FIRST, FIRST)));
    // Nothing in the images, or no images.
    all.push(with([0, 8, 8], 1, square(4, 3, 1, 1, 1), both));
    all.push(with(
        [2, 8, 8],
        1,
        [Axis::ONE, Axis::new(0, 2).with(1, 1, 1), Axis::new(4, 3).with(1, 1, 1)],
        both,
    ));
    all.push(Subjected { lead: 1, ..with([2, 16, 16], 1, square(5, 3, 1, 1, 1), both) });
    // Zeros of the padding make NaN of an infinite `dy` in the gradient of the weight.
    let padding = usize::from(direction == Direction::Forward);
    all.push(Subjected { special: true, ..with([2, 16, 24], 1, square(5, 3, 1, padding, 1), both) });
    all.push(Subjected { special: true, ..with([2, 6, 4], 2, square(5, 3, 2, padding, 1), (FIRST, FIRST)) });
    if direction == Direction::Forward {
        for (activation, layouts) in [(Activation::Relu, both), (Activation::Silu, (FIRST, FIRST))] {
            for kernel in [1, 3] {
                let plain = with([2, 16, 24], 1, square(6, kernel, 1, kernel / 2, 1), layouts);
                all.push(Subjected { bias: true, activation: Some(activation), ..plain.clone() });
                all.push(Subjected { activation: Some(activation), ..plain });
            }
        }
        all.push(Subjected { bias: true, ..with([2, 16, 21], 1, square(6, 3, 1, 1, 1), both) });
        // So deep and small that blocks share the common dimension.
        for filters in [16, 9] {
            let deep = with([1, 264, filters], 1, square(4, 3, 1, 1, 1), both);
            all.push(Subjected { bias: true, activation: Some(Activation::Relu), ..deep.clone() });
            all.extend(with_ends(&deep));
        }
        // What products of every kind end with: tiles and points of both layouts, rows that begin anywhere, groups, strips, and gathered images.
        for (filters, groups, kernel, layouts) in [
            (24, 1, 3, both),
            (21, 1, 3, both),
            (136, 1, 1, both),
            (16, 1, 1, (FIRST, FIRST)),
            (12, 1, 3, (FIRST, FIRST)),
            (16, 16, 3, both),
            (16, 16, 3, (FIRST, FIRST)),
            (16, 4, 3, both),
            (16, 2, 3, both),
            (32, 2, 3, both),
            (16, 2, 3, (FIRST, FIRST)),
        ] {
            all.extend(with_ends(&with(
                [2, 16, filters],
                groups,
                square(10, kernel, 1, kernel / 2, 1),
                layouts,
            )));
        }
        all.extend(with_ends(&with([3, 48, 48], 3, square(13, 3, 2, 1, 1), both)));
        all.extend(with_ends(&with([1, 64, 64], 2, square(9, 3, 1, 1, 1), both)));
        all.extend(with_ends(&with([1, 5, 7], 1, cube, both)));
        all.extend(with_ends(&with([1, 4, 6], 2, cube, (FIRST, FIRST))));
        all.extend(with_ends(&Subjected { lead: 1, ..with([2, 16, 16], 1, square(5, 3, 1, 1, 1), both) }));
        if dtype.bytes() == 2 {
            // More tiles than there are blocks, and more boxes.
            all.extend(with_ends(&with([1, 8, 264], 1, square(90, 1, 1, 0, 1), both)).take(1));
            all.extend(with_ends(&with([3, 16, 16], 4, square(134, 3, 1, 1, 1), both)).take(1));
        }
    } else {
        let plain = || with([2, 16, 24], 1, square(6, 3, 1, 1, 1), both);
        for wanted in [[true, false, false], [false, true, false], [false, false, true]] {
            all.push(Subjected { wanted, ..plain() });
        }
        // Points of images whose products are added: slices that end within an image and that do not, more images than a block has slices, and
        // several tiles.
        all.push(with([7, 72, 40], 1, square(12, 1, 1, 0, 1), (FIRST, FIRST)));
        all.push(with([40, 16, 136], 1, square(12, 1, 1, 0, 1), (FIRST, LAST)));
        all.push(with([3, 264, 8], 1, square(8, 1, 1, 0, 1), (FIRST, FIRST)));
        all.push(Subjected { special: true, ..with([9, 9, 17], 1, square(12, 1, 1, 0, 1), (FIRST, FIRST)) });
        // So many pixels that several blocks share them.
        all.push(with([2, 16, 8], 1, square(26, 3, 1, 1, 1), both));
        all.push(with([2, 3, 5], 1, square(30, 3, 1, 1, 1), (FIRST, FIRST)));
    }
    // Groups of several channels, whose copies have 16, 8 or 4 bytes.
    all.push(with([2, 32, 16], 2, square(7, 3, 1, 1, 1), both));
    all.push(with([1, 24, 36], 3, square(6, 3, 2, 1, 1), (FIRST, FIRST)));
    all.push(with([1, 8, 12], 2, square(7, 2, 1, 0, 2), both));
    all.push(with(
        [1, 16, 8],
        2,
        [Axis::new(4, 2).with(1, 0, 1), Axis::new(5, 3).with(2, 1, 1), Axis::new(6, 2)],
        both,
    ));
    all.push(Subjected { special: true, ..with([2, 16, 16], 2, square(6, 3, 1, padding, 1), both) });
    all.push(Subjected { lead: 1, ..with([1, 16, 16], 2, square(5, 3, 1, 1, 1), both) });
    // Groups that are read from halos: of each number of channels, slices that end within, boxes of several images, rows and columns that end
    // within a box, strides, dilations, and one and many taps.
    for (channels, groups, axes) in [
        (24, 3, square(20, 3, 1, 1, 1)),
        (72, 18, square(5, 3, 1, 1, 1)),
        (80, 5, [Axis::ONE, Axis::new(9, 3).with(1, 1, 1), Axis::new(70, 3).with(1, 2, 2)]),
        (96, 3, square(7, 3, 1, 1, 1)),
        (16, 2, [Axis::ONE, Axis::new(13, 3).with(2, 1, 1), Axis::new(19, 2).with(1, 0, 3)]),
        (24, 3, [Axis::ONE, Axis::ONE, Axis::new(150, 5).with(1, 4, 2)]),
        (32, 2, square(9, 1, 1, 0, 1)),
        (8, 2, square(12, 7, 1, 3, 1)),
        (64, 2, square(11, 3, 2, 1, 2)),
    ] {
        all.push(with([3, channels, channels], groups, axes, both));
    }
    if dtype.bytes() == 2 {
        // More boxes than there are blocks.
        all.push(with([3, 16, 16], 4, square(134, 3, 1, 1, 1), both));
    }
    all.push(with([2, 16, 16], 2, square(6, 3, 1, 1, 1), (FIRST, FIRST)));
    all.push(with([2, 16, 16], 4, square(6, 3, 1, 1, 1), (LAST, FIRST)));
    for (channels, groups) in [(16, 4), (24, 3), (48, 3), (64, 2)] {
        // Without padding: infinite numbers meet no zeros but those beyond the results.
        all.push(Subjected {
            special: true,
            ..with([3, channels, channels], groups, square(7, 3, 1, padding, 1), both)
        });
    }
    if direction == Direction::Forward {
        for (activation, channels) in [(Activation::Relu, 16), (Activation::GeluTanh, 48)] {
            let plain = with([2, channels, channels], 2, square(8, 3, 1, 1, 1), both);
            all.push(Subjected { bias: true, activation: Some(activation), ..plain });
        }
    }
    // Every tile: more than a round of its ring, whole tiles and others.
    for &precision in if dtype == DType::F32 { PRECISIONS.as_slice() } else { &PRECISIONS[..1] } {
        for tile in tuning::tiles(dtype, precision, Target::sm(90)) {
            let of_tile = of_tile(direction, tile).map(|([batch, channels, filters], axes)| {
                // Slices of the gradient of the weight have 32 channels.
                let whole = direction == Direction::Backward && dtype == DType::F32;
                let channels = if whole { channels.next_multiple_of(32) } else { channels };
                let subject = with([batch, channels, filters], 1, axes, both);
                Subjected { tile: Some(tile), conv: Conv { precision, ..subject.conv }, ..subject }
            });
            if direction == Direction::Forward {
                all.extend(with_ends(&of_tile[0]).take(1));
            }
            all.extend(of_tile);
        }
    }
    if dtype == DType::F32 {
        let rounded = |subject: Subjected| Subjected {
            conv: Conv { precision: Precision::Tf32, ..subject.conv },
            ..subject
        };
        all.push(rounded(with([2, 16, 24], 1, square(7, 3, 2, 1, 1), both)));
        all.push(rounded(with([1, 8, 12], 2, square(7, 3, 1, 1, 1), (FIRST, FIRST))));
        all.push(rounded(with([2, 24, 20], 1, square(6, 1, 1, 0, 1), both)));
        all.push(rounded(with([2, 3, 16], 1, square(9, 5, 2, 2, 1), (FIRST, FIRST))));
        all.push(rounded(with([5, 24, 20], 1, square(10, 1, 1, 0, 1), (FIRST, FIRST))));
        all.push(rounded(with([2, 64, 24], 1, square(9, 3, 2, 1, 1), (LAST, FIRST))));
        all.push(rounded(with([3, 32, 136], 1, square(7, 3, 1, 1, 2), (FIRST, FIRST))));
        all.push(rounded(with(
            [1, 32, 8],
            1,
            [Axis::new(5, 2).with(1, 1, 1), axis(6, 3, 1), axis(7, 2, 0)],
            both,
        )));
        // So many pixels that several blocks share them.
        all.push(rounded(with([2, 64, 40], 1, square(26, 3, 1, 1, 1), both)));
        all.push(with([2, 64, 40], 1, square(26, 3, 1, 1, 1), both));
        all.push(with([2, 64, 24], 1, square(9, 3, 2, 1, 1), (LAST, FIRST)));
        all.push(with([3, 32, 136], 1, square(7, 3, 1, 1, 2), (FIRST, FIRST)));
        all.push(with([1, 32, 8], 1, [Axis::new(5, 2).with(1, 1, 1), axis(6, 3, 1), axis(7, 2, 0)], both));
        all.push(Subjected { special: true, ..with([2, 64, 24], 1, square(9, 3, 2, 0, 1), both) });
        all.push(Subjected { special: true, ..with([3, 72, 40], 1, square(5, 1, 1, 0, 1), both) });
    }
    if scope == Scope::Full {
        for channels in 1..=9 {
            for layouts in [both, (FIRST, FIRST)] {
                all.push(with([2, channels, 8], 1, square(6, 3, 1, 1, 1), layouts));
                all.push(with([1, 8, channels], 1, square(6, 3, 2, 1, 1), layouts));
                all.push(with([1, 16 * channels, 8 * channels], 1, square(5, 2, 1, 1, 2), layouts));
            }
        }
        for kernel in 1..=7 {
            for stride in 1..=4 {
                for padding in 0..=kernel {
                    all.push(with([1, 16, 8], 1, square(8, kernel, stride, padding, 1), both));
                }
            }
        }
    }
    all
}

/// The same with what follows sums: a factor and a shift of each filter, a tensor, and a function.
fn with_ends(plain: &Subjected) -> impl Iterator<Item = Subjected> {
    let all = Subjected { scale: true, bias: true, residual: true, ..plain.clone() };
    let rectified = Subjected { activation: Some(Activation::Relu), ..all.clone() };
    let residual = Subjected { residual: true, ..plain.clone() };
    [rectified, Subjected { bias: true, ..residual.clone() }, residual, Subjected { residual: false, ..all }]
        .into_iter()
}

/// A dimension without a stride.
const fn axis(input: usize, kernel: usize, padding: usize) -> Axis {
    Axis::new(input, kernel).with(1, padding, 1)
}

const PRECISIONS: [Precision; 2] = [Precision::Full, Precision::Tf32];

/// Images, channels, filters and axes of more than a round of a tile's ring, whole tiles and others.
fn of_tile(direction: Direction, tile: Tile) -> [([usize; 3], [Axis; 3]); 2] {
    let (rows, cols) = tile.sides();
    let (rows, cols) = (rows as usize, cols as usize);
    let side = (rows as f64).sqrt() as usize + 3;
    // Rings of few stages go round with fewer taps.
    let axis = Axis::new(side, if tile.stages() > 6 { 3 } else { 2 }).with(1, 1, 1);
    [(72, cols + 8), (64, 40)].map(|(channels, filters)| {
        let (channels, filters) = match direction {
            Direction::Forward => (channels, filters),
            // Columns are channels.
            Direction::Backward => (filters, channels),
        };
        ([1, channels, filters], [Axis::ONE, axis, axis])
    })
}

impl Subjected {
    fn values(&self, len: usize, salt: u64) -> Vec<f64> {
        let values = Input::Normal.values(len, salt << 32 | len as u64);
        // Elements of `bf16` are elements of `tf32`.
        let dtype = if self.conv.precision == Precision::Tf32 { DType::BF16 } else { self.conv.dtype };
        values.into_iter().map(|v| storage::round(dtype, v)).collect()
    }

    /// The tile that is asked for, if a target has it.
    fn tile_on(&self, target: Target) -> Option<Tile> {
        self.tile.filter(|tile| tuning::tiles(self.conv.dtype, self.conv.precision, target).contains(tile))
    }

    /// The shapes with the precision that a target has.
    fn conv_on(&self, target: Target) -> Conv {
        let known = target.sm >= 80;
        Conv { precision: if known { self.conv.precision } else { Precision::Full }, ..self.conv }
    }

    /// An image with numbers that nothing cancels.
    fn image(&self, len: usize, salt: u64) -> Vec<f64> {
        let mut values = self.values(len, salt);
        if self.special {
            values.iter_mut().step_by(61).for_each(|v| *v = f64::NAN);
            values.iter_mut().skip(7).step_by(83).for_each(|v| *v = f64::INFINITY);
        }
        values
    }

    fn expected(&self, sums: Vec<Scaled>) -> Vec<Expected> {
        let of = |(value, scale): Scaled| {
            let value = self.activation.map_or(value, |f| activation::forward(f, value));
            Expected { value, scale, underflow: 0.0 }
        };
        sums.into_iter().map(of).collect()
    }

    fn forward(&self, bench: &mut Bench<'_>, view: &View<'_>) -> Result<Comparison, CaseError> {
        let Self { scale, bias, residual, activation, .. } = *self;
        let desc = ConvDesc { conv: self.conv_on(bench.target()), scale, bias, residual, activation };
        let plan = match self.tile_on(bench.target()) {
            Some(tile) => desc.plan_with(bench.target(), tile)?,
            None => desc.plan(bench.target())?,
        };
        let len = |name: &str| plan.tensor(name).map_or(0, |spec| spec.len);
        let (dtype, lead) = (self.conv.dtype, self.lead);
        let (x_values, weight_values) = (self.image(len("x"), 1), self.values(len("weight"), 2));
        let bias_values = bias.then(|| self.values(self.conv.filters, 3));
        let scale_values = scale.then(|| self.values(self.conv.filters, 4));
        let residual_values = residual.then(|| self.values(len("y"), 5));
        let factors = if scale { dtype.accumulator() } else { dtype };
        let x = bench.input("x", dtype, &x_values, lead)?;
        let weight = bench.input("weight", dtype, &weight_values, lead)?;
        let scale = bench.optional_input("scale", factors, scale_values.as_ref(), lead)?;
        let bias = bench.optional_input("bias", factors, bias_values.as_ref(), lead)?;
        let residual = bench.optional_input("residual", dtype, residual_values.as_ref(), lead)?;
        let mut y = bench.output("y", dtype, len("y"), lead)?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let args = ConvArgs {
                x: x.view()?,
                weight: weight.view()?,
                scale: case::view(&scale)?,
                bias: case::view(&bias)?,
                residual: case::view(&residual)?,
                y: y.view_mut()?,
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let ends = Ends {
            scale: scale_values.as_deref(),
            bias: bias_values.as_deref(),
            residual: residual_values.as_deref(),
        };
        let expected = view.forward(&x_values, &weight_values, ends);
        bench.compare(&y, &self.expected(expected))
    }

    fn backward(&self, bench: &mut Bench<'_>, view: &View<'_>) -> Result<Comparison, CaseError> {
        let [dx, dweight, dbias] = self.wanted;
        let desc = ConvBackwardDesc { conv: self.conv_on(bench.target()), dx, dweight, dbias };
        let plan = match self.tile_on(bench.target()) {
            Some(tile) => desc.plan_with(bench.target(), tile)?,
            None => desc.plan(bench.target())?,
        };
        let (dtype, lead) = (self.conv.dtype, self.lead);
        let len = |name: &str| plan.tensor(name).map_or(0, |spec| spec.len);
        let dy_values = self.image(len("dy"), 3);
        let x_values = dweight.then(|| self.values(len("x"), 1));
        let weight_values = dx.then(|| self.values(len("weight"), 2));
        let dy = bench.input("dy", dtype, &dy_values, lead)?;
        let x = bench.optional_input("x", dtype, x_values.as_ref(), lead)?;
        let weight = bench.optional_input("weight", dtype, weight_values.as_ref(), lead)?;
        let output = |name, wanted| bench.optional_output(name, dtype, (len(name), lead), wanted);
        let (mut to_x, mut to_weight) = (output("dx", dx)?, output("dweight", dweight)?);
        let mut to_bias = output("dbias", dbias)?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let args = ConvBackwardArgs {
                x: case::view(&x)?,
                weight: case::view(&weight)?,
                dy: dy.view()?,
                dx: view_mut(&mut to_x)?,
                dweight: view_mut(&mut to_weight)?,
                dbias: view_mut(&mut to_bias)?,
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let mut all = Comparison::default();
        if let (Some(dx), Some(weight)) = (&to_x, &weight_values) {
            all = all.merge(bench.compare(dx, &self.expected(view.dx(weight, &dy_values)))?);
        }
        if let (Some(dweight), Some(x)) = (&to_weight, &x_values) {
            all = all.merge(bench.compare(dweight, &self.expected(view.dweight(x, &dy_values)))?);
        }
        if let Some(dbias) = &to_bias {
            all = all.merge(bench.compare(dbias, &self.expected(view.dbias(&dy_values)))?);
        }
        Ok(all)
    }
}

impl Subject for Subjected {
    fn layout(&self) -> String {
        self.tile.map_or(String::new(), |tile| tile.name())
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Some(view) = View::new(&self.conv) else {
            // What has no outputs has no plan.
            ConvDesc::new(self.conv).plan(bench.target())?;
            return Ok(Comparison::default());
        };
        match self.direction {
            Direction::Forward => self.forward(bench, &view),
            Direction::Backward => self.backward(bench, &view),
        }
    }
}
