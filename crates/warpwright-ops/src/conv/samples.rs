//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::bias::BiasParts;
use super::depthwise::{self, Depthwise};
use super::exact::Exact;
use super::gather::Gather;
use super::grouped::Grouped;
use super::implicit::Implicit;
use super::relayout::{Interleave, PackTaps, Relayout};
use super::tiled::TiledConv;
use super::tuning::{Arrival, Kind, PIECES};
use super::weight::{FinishParts, Reorder, SumManyParts, SumParts};
use super::{Axis, Conv, ConvBackwardDesc, ConvDesc, Layout, OP, Pass, tuning};
use crate::PlanError;
use crate::activation::Activation;
use crate::catalogue::Extents;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned};
use crate::gemm::Precision;
use crate::gemm::engine::Store;
use crate::gemm::epilogue::Program;
use crate::plan;

/// The family.
pub(crate) const FAMILY: Family = Family {
    name: "conv",
    aliases: &[("conv", "conv1d"), ("conv", "conv2d"), ("conv", "conv3d")],
    entries,
    plan,
    kernels,
};

/// Channels and pixels along a side of an image where nothing is said.
const CHANNELS: usize = 64;
const SIDE: usize = 56;

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    Entry::both(OP).to_vec()
}

/// The numbers of all three dimensions, the same for each that there is where one is given.
fn of_axes(given: Option<Extents>, dims: usize, default: usize) -> Result<[usize; 3], PlanError> {
    let Extents(given) = given.unwrap_or_else(|| Extents(vec![default]));
    if given.len() != dims && given.len() != 1 {
        let expected = "a number for all dimensions, or one for each of the image's";
        return Err(Conv::refused("kernel", format!("{given:?}"), expected));
    }
    let mut all = [default; 3];
    for (i, axis) in (3 - dims..3).enumerate() {
        all[axis] = given[i % given.len()];
    }
    Ok(all)
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let o = &asked.options;
    let side = if asked.len < SIDE * SIDE { asked.len.isqrt().max(3) } else { SIDE };
    let Extents(image) = o.image().unwrap_or_else(|| Extents(vec![side, side]));
    let dims = image.len();
    let kernel = of_axes(o.kernel(), dims, 3)?;
    let stride = of_axes(o.stride(), dims, 1)?;
    let dilation = of_axes(o.dilation(), dims, 1)?;
    let padding = o.padding().map(|padding| of_axes(Some(padding), dims, 0)).transpose()?;
    let mut axes = [Axis::ONE; 3];
    for (axis, input) in (3 - dims..3).zip(&image) {
        let half = kernel[axis].saturating_sub(1) / 2 * dilation[axis];
        let padding = padding.map_or(half, |padding| padding[axis]);
        axes[axis] = Axis::new(*input, kernel[axis]).with(stride[axis], padding, dilation[axis]);
    }
    let pixels = image.iter().fold(1, |n: usize, extent| n.saturating_mul(*extent)).max(1);
    let channels = o.channels().unwrap_or((asked.len / pixels).clamp(1, CHANNELS));
    let layout = asked.layout();
    let conv = Conv {
        dtype: asked.dtype,
        layout,
        weight_layout: layout,
        batch: o.batch().unwrap_or((asked.len / channels.saturating_mul(pixels).max(1)).max(1)),
        channels,
        filters: o.filters().unwrap_or(channels),
        groups: o.groups().unwrap_or(1),
        axes,
        precision: asked.precision(),
    };
    let bias = o.bias().is_some();
    if asked.is_backward() {
        return asked.plan(&ConvBackwardDesc { conv, dx: true, dweight: true, dbias: bias });
    }
    let (scale, residual) = (o.scale().is_some(), o.residual().is_some());
    asked.plan(&ConvDesc { conv, scale, bias, residual, activation: o.activation() })
}

/// Passes of a direction.
fn passes(direction: Direction) -> &'static [Pass] {
    match direction {
        Direction::Forward => &[Pass::Forward],
        Direction::Backward => &[Pass::BackwardX, Pass::BackwardWeight],
    }
}

/// Whether filters have factors.
const fn scales(pass: Pass) -> &'static [bool] {
    if matches!(pass, Pass::Forward) { &[false, true] } else { &[false] }
}

/// Every kernel that a plan of `entry` can hold.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let layouts = [Layout::ChannelsFirst, Layout::ChannelsLast];
    let mut all = Vec::new();
    for sums in [true, false] {
        all.push(plan::recorded(OP, &Reorder { dtype, sums }, target)?);
    }
    all.push(plan::recorded(OP, &SumManyParts { dtype }, target)?);
    for from in layouts {
        for to in layouts {
            for width in [1, Relayout::WIDE] {
                if (from, to) != (Layout::ChannelsFirst, Layout::ChannelsFirst) {
                    all.push(plan::recorded(OP, &Relayout { dtype, from, to, width }, target)?);
                }
            }
        }
    }
    for to in layouts {
        for channels in Interleave::CHANNELS {
            all.push(plan::recorded(OP, &Interleave { dtype, to, channels }, target)?);
        }
    }
    if dtype != DType::F64 {
        all.push(plan::recorded(OP, &PackTaps { dtype }, target)?);
    }
    for width in [1, SumParts::WIDE] {
        all.push(plan::recorded(OP, &SumParts { dtype, width }, target)?);
        if dtype != DType::F64 {
            for scale in [false, true] {
                all.push(plan::recorded(OP, &FinishParts { dtype, width, scale }, target)?);
            }
        }
    }
    for &pass in passes(entry.direction) {
        for layout in layouts {
            for weight in layouts {
                let splits: &[bool] = if pass == Pass::BackwardWeight { &[false, true] } else { &[false] };
                for &split in splits {
                    for &scale in scales(pass) {
                        let gather = Gather { dtype, pass, layout, weight, split, scale };
                        all.push(plan::recorded(OP, &gather, target)?);
                    }
                }
            }
        }
        for kernel in tiled_kernels(dtype, pass, target) {
            all.push(plan::recorded(OP, &kernel, target)?);
        }
        if target.sm >= 80 {
            for kernel in grouped_kernels(dtype, pass) {
                all.push(plan::recorded(OP, &kernel, target)?);
            }
        }
        for kernel in depthwise_kernels(dtype, pass) {
            all.push(plan::recorded(OP, &kernel, target)?);
        }
        if target.sm == 90 {
            for kernel in implicit_kernels(dtype, pass, Arrival::of(dtype, Precision::Tf32, pass)) {
                all.push(plan::recorded(OP, &kernel, Target::specific(target.sm))?);
            }
            if dtype == DType::F32 && pass == Pass::BackwardWeight {
                for kernel in implicit_kernels(dtype, pass, Arrival::Split) {
                    all.push(plan::recorded(OP, &Exact(kernel), Target::specific(target.sm))?);
                }
            }
        }
    }
    if entry.direction == Direction::Backward {
        for layout in layouts {
            all.push(plan::recorded(OP, &BiasParts { dtype, layout }, target)?);
        }
    }
    Ok(all)
}

/// Kernels in tiles: of `f16` those of two dimensions with the widest copies.
fn tiled_kernels(dtype: DType, pass: Pass, target: Target) -> Vec<TiledConv> {
    let mut all = Vec::new();
    for piece in PIECES {
        for dims in [2, 3] {
            if dtype == DType::F16 && (dims, piece) != (2, PIECES[0]) {
                continue;
            }
            // Sums of narrow copies are stored by the same lines.
            let wide = piece == PIECES[0];
            let splits: &[bool] = if wide { &[false, true] } else { &[false] };
            let of_config = |config| {
                let plain =
                    TiledConv { dtype, pass, dims, config, split: false, scale: false, residual: false };
                let ends = (wide && dims == 2 && pass == Pass::Forward)
                    .then_some([(true, true), (false, true)])
                    .into_iter()
                    .flatten()
                    .map(move |(scale, residual)| TiledConv { scale, residual, ..plain });
                splits.iter().map(move |&split| TiledConv { split, ..plain }).chain(ends)
            };
            for &precision in Precision::of(dtype, target) {
                let kind = Kind { dtype, precision, target, pass };
                all.extend(tuning::tiled_configs(&kind, piece).into_iter().flat_map(of_config));
            }
        }
    }
    all
}

/// Kernels in persistent blocks: of two dimensions and `bf16`, or slices that are turned, every tile, of others one.
fn implicit_kernels(dtype: DType, pass: Pass, arrival: Arrival) -> Vec<Implicit> {
    let mut all = Vec::new();
    if dtype == DType::F64 {
        return all;
    }
    for config in tuning::persistent_configs(arrival) {
        let usual = (config.rows, config.cols) == (128, 128);
        for dims in [2, 3] {
            if usual || (dims == 2 && (dtype == DType::BF16 || arrival != Arrival::AsMultiplied)) {
                all.extend(implicit_variants(Implicit {
                    dtype,
                    pass,
                    dims,
                    config,
                    program: Program::default(),
                    store: Store::Panels,
                    split: false,
                    joined: false,
                    scattered: false,
                    apart: false,
                }));
            }
        }
    }
    all
}

/// Every way that a tile is stored in, with the shortest epilogue and a long one, and what its columns can be.
fn implicit_variants(kernel: Implicit) -> Vec<Implicit> {
    let program = Program { bias: true, activation: Some(Activation::GeluErf), ..Program::default() };
    let rows = Implicit { store: Store::Rows, ..kernel };
    let split = |kernel: Implicit| [kernel, Implicit { split: true, ..kernel }];
    match kernel.pass {
        Pass::Forward => {
            let ends = Program { scale: true, residual: true, ..program };
            let residual = Program { residual: true, ..Program::default() };
            let with = |program| [kernel, rows].map(|kernel| Implicit { program, ..kernel });
            [split(kernel), split(rows), with(program), with(ends), with(residual)].concat()
        }
        Pass::BackwardX => {
            let scattered = Implicit { scattered: true, ..rows };
            [split(kernel), [scattered, Implicit { apart: true, ..scattered }]].concat()
        }
        Pass::BackwardWeight => [split(kernel), split(Implicit { joined: true, ..kernel })].concat(),
    }
}

/// Depthwise kernels of usual sizes.
fn depthwise_kernels(dtype: DType, pass: Pass) -> Vec<Depthwise> {
    let mut all = Vec::new();
    for taps in [(3, 3), (5, 5), (7, 7), (1, 4)].into_iter().filter(|taps| Depthwise::has(dtype, *taps)) {
        for stride in depthwise::STRIDES {
            let lefts: &[(u32, u32)] =
                if pass == Pass::BackwardX && stride > 1 { &[(0, 0), (1, 1)] } else { &[(0, 0)] };
            for &left in lefts {
                for wide in [true, false] {
                    let width = Depthwise::width(dtype, taps, 8, wide);
                    let ends: &[(bool, bool)] = match pass {
                        Pass::Forward => &[(false, false), (true, false), (true, true)],
                        _ => &[(false, false)],
                    };
                    for &(finishes, scale) in ends {
                        all.push(Depthwise { dtype, pass, taps, stride, left, width, finishes, scale });
                    }
                }
            }
        }
    }
    all
}

/// Kernels for groups: of `bf16` of every number of channels, with the most taps too and what follows sums, of `f16` one.
fn grouped_kernels(dtype: DType, pass: Pass) -> Vec<Grouped> {
    let long = Program { bias: true, activation: Some(Activation::GeluErf), ..Program::default() };
    let mut all = Vec::new();
    for channels in Grouped::CHANNELS {
        for taps in [9, 12, 16, 36, 49] {
            for program in [Program::default(), long, Program { scale: true, residual: true, ..long }] {
                let kernel = Grouped { dtype, pass, channels, taps, program };
                let plain = program == Program::default();
                let usual = taps == 9 && channels == 8 && plain;
                let wanted =
                    if plain { taps != 12 || channels == 8 } else { taps == 9 && pass == Pass::Forward };
                if kernel.exists() && (usual || (wanted && dtype == DType::BF16)) {
                    all.push(kernel);
                }
            }
        }
    }
    all
}
