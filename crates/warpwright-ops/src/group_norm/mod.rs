//! Group normalisation: `y = (x - mean) / sqrt(variance + eps) * weight + bias` over groups of channels (Wu and He 2018,
//! arXiv:1803.08494), optionally followed by `silu`, and its gradients. Instance normalisation (Ulyanov et al. 2016,
//! arXiv:1607.08022) is the case of one channel to a group.
//!
//! `x` is `[N, C, *]` (channels first) or `[N, *, C]` in memory (channels last); a group is `C / groups` successive
//! channels of one sample, with all their pixels. Mean and the biased variance are taken over each group; `weight` and
//! `bias` are `[C]` of the type of `x`, either may be absent. `mean` and `rstd = 1 / sqrt(variance + eps)` can be saved as
//! `[N, groups]` in f32, in f64 for f64. The semantics are those of `torch.nn.functional.group_norm`, and of
//! `instance_norm` without running statistics.
//!
//! Backward, with `xhat = (x - mean) rstd` and `g = dy weight` (with `silu`, `dy` stands for `dy silu'(z)`, `z` being
//! recomputed):
//! `dx = rstd (g - mean(g) - xhat mean(g xhat))` with means over the group, `dweight = sum(dy xhat)` and
//! `dbias = sum(dy)` over samples and pixels.
//!
//! Statistics are computed in two passes over registers, or merged from parts (Chan, Golub and LeVeque 1979), with the
//! mean in two parts, so that a large mean costs no accuracy; half types are computed in f32 and rounded once. What is not
//! finite stays in its group: all of it becomes NaN. A group of one element gives its bias (PyTorch's Python layer
//! refuses some of these shapes). The mean of an empty group is 0 and its rstd NaN. Results do not depend on the run.

mod backward;
mod column_gradients;
mod columns;
mod common;
mod contiguous;
mod functions;
mod gradients;
pub mod reference;
mod resident;
pub(crate) mod samples;
mod spread;
pub mod tuning;

use warpwright_dsl::{KernelDef, PixelTilingArgs};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, Real, Variant};
use crate::tensors::tensors;

pub use crate::batch_norm::Layout;
pub use backward::{GroupNormBackwardArgs, GroupNormBackwardDesc};
pub use functions::*;
use tuning::{Divisor, Path};

/// The name of the operation.
const OP: &str = "group_norm";

/// A tensor and its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupShape {
    /// Samples.
    pub batch: usize,
    /// Channels of a sample.
    pub channels: usize,
    /// Pixels of a channel: the product of all other dimensions.
    pub spatial: usize,
    /// Groups of a sample, a divisor of `channels`.
    pub groups: usize,
    /// How the tensor lies in memory.
    pub layout: Layout,
}

/// Forward.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupNormDesc {
    /// Element type of `x`, `weight`, `bias` and `y`.
    pub dtype: DType,
    /// The tensor and its groups.
    pub shape: GroupShape,
    /// Whether there is a weight.
    pub weight: bool,
    /// Whether there is a bias.
    pub bias: bool,
    /// Whether `silu` follows.
    pub silu: bool,
    /// Whether mean and rstd are stored.
    pub statistics: bool,
    /// Added to the variance, at least 0.
    pub eps: Real,
}

tensors! {
    /// Tensors of [`GroupNormDesc`].
    pub struct GroupNormArgs<'a> {
        /// The input, `[N, C, *]` or `[N, *, C]`.
        x: In,
        /// `[C]`
        weight: Option<In>,
        /// `[C]`
        bias: Option<In>,
        /// The result; may replace `x`.
        y: Out,
        /// `[N, groups]`, f32 or f64.
        mean: Option<Out>,
        /// `[N, groups]`, f32 or f64.
        rstd: Option<Out>,
        /// Scratch memory, see [`Plan::workspace`].
        workspace: Option<Out>,
    }
}

/// A shape whose sizes have been checked.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    op: &'static str,
    target: Target,
    dtype: DType,
    layout: Layout,
    /// Samples, channels, pixels, groups of a sample, channels of a group.
    batch: u64,
    channels: u64,
    spatial: u64,
    groups: u64,
    of_group: u64,
    /// Elements of the tensor.
    len: usize,
    /// Groups of the tensor.
    all_groups: usize,
}

/// Blocks of a grid along x.
const MAX_BLOCKS: u64 = (1 << 31) - 1;

impl Sizes {
    fn of(op: &'static str, target: Target, dtype: DType, shape: GroupShape) -> Result<Self, PlanError> {
        let GroupShape { batch, channels, spatial, groups, layout } = shape;
        PlanError::check_floats(op, "x", dtype)?;
        if groups == 0 || !channels.is_multiple_of(groups) {
            let expected = "a divisor of the number of channels, at least 1";
            return Err(PlanError::refused(op, "groups", groups, expected));
        }
        let too_many = || PlanError::TooLarge { op, blocks: u64::MAX, limit: MAX_BLOCKS };
        let len = batch.checked_mul(channels).and_then(|n| n.checked_mul(spatial)).ok_or_else(too_many)?;
        let all_groups = batch.checked_mul(groups).ok_or_else(too_many)?;
        for blocks in [all_groups as u64, channels as u64, batch as u64] {
            if blocks > MAX_BLOCKS {
                return Err(PlanError::TooLarge { op, blocks, limit: MAX_BLOCKS });
            }
        }
        let [batch, channels, spatial, groups] = [batch, channels, spatial, groups].map(|n| n as u64);
        let of_group = channels / groups;
        Ok(Self { op, target, dtype, layout, batch, channels, spatial, groups, of_group, len, all_groups })
    }

    /// Elements of a vector along the fastest dimension: as many as fit an access, or 1.
    fn widths(&self) -> Vec<u32> {
        let vector = tuning::vector_width(self.dtype);
        let fastest = if self.layout == Layout::ChannelsFirst { self.spatial } else { self.channels };
        if fastest.is_multiple_of(u64::from(vector)) { vec![vector, 1] } else { vec![1] }
    }

    fn alignment(&self, width: u32) -> u64 {
        u64::from(width) * self.dtype.bytes() as u64
    }

    /// A grid of `blocks` blocks along x.
    fn grid(&self, blocks: u64) -> Result<[u32; 3], PlanError> {
        let limit = MAX_BLOCKS;
        match u32::try_from(blocks) {
            Ok(x) if blocks <= limit => Ok([x, 1, 1]),
            _ => Err(PlanError::TooLarge { op: self.op, blocks, limit }),
        }
    }

    /// The launch of a kernel.
    fn launch<D: KernelDef>(&self, def: &D, args: D::Args, grid: [u32; 3]) -> Result<LaunchStep, PlanError> {
        plan::launch(self.op, def, args, self.target, grid)
    }

    /// One over the elements of a group.
    fn reciprocal(&self) -> f64 {
        1.0 / (self.of_group * self.spatial) as f64
    }

    /// `n` as a kernel takes it; what is too large for it would be too large for a grid.
    fn word(&self, n: u64) -> Result<u32, PlanError> {
        Ok(self.grid(n)?[0])
    }

    /// How the blocks of a channels-last tensor lie over it.
    fn tiling(&self, width: u32) -> Result<Tiling, PlanError> {
        let row_vectors = self.channels / u64::from(width);
        let tile = row_vectors.clamp(1, u64::from(columns::MAX_TILE)).next_power_of_two();
        let tiles = row_vectors.div_ceil(tile).max(1);
        let strips = u64::from(columns::THREADS) / tile;
        let (splits, per_split) = tuning::split_pixels(self.batch * tiles, self.spatial, strips);
        let blocks = (self.batch * tiles).saturating_mul(u64::from(splits));
        Ok(Tiling {
            row_vectors: self.word(row_vectors)?,
            tile: tile.trailing_zeros(),
            tiles: self.word(tiles)?,
            splits,
            per_split,
            grid: self.grid(blocks)?,
        })
    }
}

/// How the blocks of a channels-last tensor lie over it.
#[derive(Clone, Copy, Debug)]
struct Tiling {
    row_vectors: u32,
    /// Binary logarithm of the vectors of a tile.
    tile: u32,
    tiles: u32,
    splits: u32,
    per_split: u64,
    grid: [u32; 3],
}

impl Tiling {
    const fn shape(&self, pixels: u64) -> PixelTilingArgs {
        let Self { row_vectors, tile, tiles, splits, per_split, .. } = *self;
        PixelTilingArgs { pixels, row_vectors, tiles, tile, splits, per_split }
    }
}

/// The launches with vectors of one width, and the elements of scratch memory that they need.
type Steps = (Vec<LaunchStep>, u64);

type Args<'a> = GroupNormArgs<'a>;

impl GroupNormDesc {
    fn flags(&self) -> u32 {
        plan::bits([
            (common::HAS_WEIGHT, self.weight),
            (common::HAS_BIAS, self.bias),
            (common::SAVES, self.statistics),
            (common::SILU, self.silu),
        ])
    }

    fn steps(&self, sizes: &Sizes, width: u32, path: Option<Path>) -> Result<Steps, PlanError> {
        if sizes.all_groups == 0 || sizes.len == 0 && !self.statistics {
            return Ok((Vec::new(), 0));
        }
        match sizes.layout {
            Layout::ChannelsFirst => self.contiguous_steps(sizes, width, path),
            Layout::ChannelsLast => self.column_steps(sizes, width),
        }
    }

    fn contiguous_steps(&self, sizes: &Sizes, width: u32, path: Option<Path>) -> Result<Steps, PlanError> {
        let (dtype, groups) = (self.dtype, sizes.all_groups as u64);
        let channel_vectors = sizes.spatial / u64::from(width);
        let vectors = sizes.of_group * channel_vectors;
        let divisor = Divisor::new(channel_vectors);
        let path = path.unwrap_or_else(|| tuning::forward_for(dtype, sizes.target, width, groups, vectors));
        let tensors = contiguous::TensorsArgs {
            x: Args::x.arg(),
            weight: Args::weight.arg(),
            bias: Args::bias.arg(),
            y: Args::y.arg(),
            mean: Args::mean.arg(),
            rstd: Args::rstd.arg(),
        };
        if let Path::Resident(config) = path {
            let args = resident::ForwardArgs {
                tensors,
                groups: sizes.word(sizes.groups)?,
                channels: sizes.word(sizes.of_group)?,
                vectors: sizes.word(vectors)?,
                per_block: sizes.word(config.per_block(vectors, channel_vectors))?,
                magic: divisor.magic,
                shift: divisor.shift,
                flags: self.flags(),
                eps: self.eps.get(),
            };
            let grid = sizes.grid(groups * u64::from(config.cluster))?;
            let def = resident::Forward { dtype, config };
            return Ok((vec![sizes.launch(&def, args, grid)?], 0));
        }
        let (splits, per_split) = tuning::split(groups, vectors);
        let elements = common::Elements { dtype, width };
        let grid = sizes.grid(groups * u64::from(splits))?;
        let moments = contiguous::MomentsArgs {
            x: Args::x.arg(),
            partials: Args::workspace.arg(),
            vectors,
            splits,
            per_split,
        };
        let apply = contiguous::ApplyArgs {
            tensors: tensors.clone(),
            partials: Args::workspace.written(),
            groups: sizes.word(sizes.groups)?,
            channels: sizes.word(sizes.of_group)?,
            vectors,
            splits,
            per_split,
            channel_vectors: channel_vectors.max(1),
            magic: divisor.magic,
            shift: divisor.shift,
            limit: divisor.limit,
            flags: self.flags(),
            eps: self.eps.get(),
        };
        let steps = vec![
            sizes.launch(&contiguous::Moments(elements), moments, grid)?,
            sizes.launch(&contiguous::Apply(elements), apply, grid)?,
        ];
        Ok((steps, 3 * groups * u64::from(splits)))
    }

    fn column_steps(&self, sizes: &Sizes, width: u32) -> Result<Steps, PlanError> {
        let dtype = self.dtype;
        let groups = sizes.all_groups as u64;
        let (t, elements) = (sizes.tiling(width)?, common::Elements { dtype, width });
        let plane = sizes.batch * u64::from(t.splits) * sizes.channels;
        let statistics = 3 * plane * dtype.accumulator().bytes() as u64;
        let moments = columns::MomentsArgs {
            x: Args::x.arg(),
            partials: Args::workspace.arg(),
            shape: t.shape(sizes.spatial),
            plane,
        };
        let finish = columns::FinishArgs {
            partials: Args::workspace.written(),
            statistics: Args::workspace.arg_at(statistics),
            mean: Args::mean.arg(),
            rstd: Args::rstd.arg(),
            groups: sizes.word(sizes.groups)?,
            channels: sizes.word(sizes.of_group)?,
            pixels: sizes.spatial,
            splits: t.splits,
            per_split: t.per_split,
            plane,
            statistics_plane: groups,
            flags: self.flags(),
            eps: self.eps.get(),
        };
        let apply = columns::ApplyArgs {
            x: Args::x.arg(),
            weight: Args::weight.arg(),
            bias: Args::bias.arg(),
            statistics: Args::workspace.written_at(statistics),
            y: Args::y.arg(),
            groups: sizes.word(sizes.groups)?,
            channels: sizes.word(sizes.of_group)?,
            shape: t.shape(sizes.spatial),
            statistics_plane: groups,
            flags: self.flags(),
        };
        let steps = vec![
            sizes.launch(&columns::Moments(elements), moments, t.grid)?,
            sizes.launch(&columns::Finish { dtype }, finish, sizes.grid(groups)?)?,
            sizes.launch(&columns::Apply(elements), apply, t.grid)?,
        ];
        Ok((steps, 3 * plane + 3 * groups))
    }
}

impl GroupNormDesc {
    /// The plan with a chosen path for vectors instead of the one that tuning takes: for tests and measurements. A
    /// resident kernel must have room for a group.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn plan_along(&self, target: Target, path: Path) -> Result<Plan<Self>, PlanError> {
        self.plan_by(target, Some(path))
    }

    fn plan_by(&self, target: Target, path: Option<Path>) -> Result<Plan<Self>, PlanError> {
        let sizes = Sizes::of(OP, target, self.dtype, self.shape)?;
        PlanError::check_eps(OP, self.eps)?;
        let (variants, workspace) =
            variants(&sizes, |width| self.steps(&sizes, width, path.filter(|p| p.fits(width))))?;
        let statistics = self.dtype.accumulator();
        let channels = self.shape.channels;
        let tensors = Args::specs([
            Args::x.holds(self.dtype, sizes.len),
            Args::weight.holds(self.dtype, channels).optional(self.weight),
            Args::bias.holds(self.dtype, channels).optional(self.bias),
            Args::y.holds(self.dtype, sizes.len).in_place().like(Args::x),
            Args::mean.holds(statistics, sizes.all_groups).optional(self.statistics),
            Args::rstd.holds(statistics, sizes.all_groups).optional(self.statistics),
            Args::workspace.scratch(statistics, workspace),
        ]);
        Ok(Plan::of(OP, Direction::Forward, target, tensors, variants))
    }
}

impl Operation for GroupNormDesc {
    type Args<'a> = GroupNormArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.plan_by(target, None)
    }
}

/// A variant for each width that the shape allows, and the elements of scratch memory that the neediest takes.
fn variants(
    sizes: &Sizes,
    steps: impl Fn(u32) -> Result<Steps, PlanError>,
) -> Result<(Vec<Variant>, usize), PlanError> {
    let (mut variants, mut most) = (Vec::new(), 0);
    for width in sizes.widths() {
        let (steps, workspace) = steps(width)?;
        most = most.max(workspace);
        variants.push(Variant { alignment: sizes.alignment(width), steps });
    }
    let most = usize::try_from(most).map_err(|_| PlanError::TooLarge {
        op: sizes.op,
        blocks: most,
        limit: MAX_BLOCKS,
    })?;
    Ok((variants, most))
}
