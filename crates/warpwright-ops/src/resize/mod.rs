//! Images at other extents, of one, two or three dimensions, as `torch.nn.functional.interpolate` has them. Forward and backward, channels
//! first and last.
//!
//! Cell `o` of the output is at `src = (o + 1/2) step - 1/2` along each axis, counted in cells of the input; `step` is the extent of the
//! input over that of the output, or `1 / scale` where a scale is given. With aligned corners `src = o step` with
//! `step = (input - 1) / (output - 1)`, 0 for an output of 1.
//!
//! | mode | value |
//! |---|---|
//! | nearest | `x[floor(o step)]` |
//! | nearest_exact | `x[floor((o + 1/2) step)]` |
//! | linear | between the two cells around `src`, which is at least 0, along one to three axes |
//! | cubic | of the four cells around `src` (Keys 1981, with -0.75), along two axes |
//! | area | the mean of adaptive windows: [`adaptive_avg_pool`](crate::pool::adaptive_avg_pool) |
//!
//! Linear at half the extents is the mean of two cells along each axis, and computed as such.
//!
//! Cells beyond the input are the last ones. Places are computed in f32, in f64 for linear and cubic f64, with the operations of PyTorch,
//! so that the same cells are taken. Weights multiply: a weight of 0 makes NaN of an infinity, as there.
//!
//! Backward, each cell of `dx` is the sum over the cells of `dy` that have it, in order, with the weights of the forward pass, of which those
//! that are 0 add nothing: results are the same from run to run. 16-bit types are summed in f32 and rounded once.
//!
//! Planes have at most 2^31 - 1024 cells, and samples with channels last as many elements; tensors may have more.

mod doubling;
mod functions;
mod kernel;
pub mod reference;
pub(crate) mod samples;
pub mod sampling;
pub mod tuning;

use warpwright_dsl::cells::{CellGridArgs, ImageArgs};
use warpwright_dsl::strips::Pixels;
use warpwright_dsl::{KernelArgs, KernelDef};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use crate::PlanError;
pub use crate::batch_norm::Layout;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, Real, TensorSpec, Variant};
use crate::pool::{self, AvgPoolBackwardDesc, AvgPoolDesc, Divisor, Pool};
use crate::tensors::tensors;

use doubling::{Doubled, DoubledBackward, ROWS_BACKWARD};
pub use functions::*;
use kernel::{AxisArgs, Common, ResizeArgs as KernelArguments};
use sampling::Sampling;
use tuning::{Config, Shares};

/// The name in the catalogue.
const OP: &str = "resize";

/// How values between cells are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The cell below; PyTorch's `nearest`.
    #[default]
    Nearest,
    /// The cell whose centre is nearest; PyTorch's `nearest-exact`.
    NearestExact,
    /// Linear along each axis; PyTorch's `linear`, `bilinear`, `trilinear`.
    Linear,
    /// Cubic along two axes; PyTorch's `bicubic`.
    Cubic,
    /// The mean of the cells that an output cell covers, for [`resize`] alone: its plans are those of
    /// [`adaptive_avg_pool`](crate::pool::adaptive_avg_pool).
    Area,
}

impl Mode {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nearest => "nearest",
            Self::NearestExact => "nearest_exact",
            Self::Linear => "linear",
            Self::Cubic => "cubic",
            Self::Area => "area",
        }
    }
}

/// `y` is `x` at other extents.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResizeDesc {
    /// Element type.
    pub dtype: DType,
    /// Where the channels are.
    pub layout: Layout,
    /// Samples.
    pub batch: usize,
    /// Channels of a sample.
    pub channels: usize,
    /// Depth, height and width of the input; 1 for a dimension that there is not.
    pub input: [usize; 3],
    /// Those of the output.
    pub output: [usize; 3],
    /// The function between cells.
    pub mode: Mode,
    /// Whether the first and the last cells of input and output are at the same places; for linear and cubic alone.
    pub align_corners: bool,
    /// The scale that steps are computed from along each axis, if not from the extents: `floor(input * scale)` is the output.
    pub scale: [Option<Real>; 3],
}

tensors! {
    /// Tensors of [`ResizeDesc`].
    pub struct ResizeArgs<'a> {
        /// `[batch, channels, ..]`, or `[batch, .., channels]` for channels last.
        x: In,
        /// The same with the extents of the output.
        y: Out,
    }
}

/// The gradient of [`ResizeDesc`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResizeBackwardDesc {
    /// The forward operation.
    pub forward: ResizeDesc,
}

tensors! {
    /// Tensors of [`ResizeBackwardDesc`].
    pub struct ResizeBackwardArgs<'a> {
        /// Gradient of the result.
        dy: In,
        /// Gradient of `x`, of its shape.
        dx: Out,
    }
}

/// A descriptor whose sizes are in order.
struct Checked<'a> {
    desc: &'a ResizeDesc,
    axes: [Sampling; 3],
    target: Target,
    /// Elements of the input and of the output.
    elements: [usize; 2],
}

impl ResizeDesc {
    /// How each axis is sampled.
    ///
    /// # Errors
    /// As those of the plans.
    pub fn sampling(&self) -> Result<[Sampling; 3], PlanError> {
        let refuse = |parameter, got: String, expected| Err(PlanError::refused(OP, parameter, got, expected));
        let Self { dtype, input, output, mode, align_corners, scale, .. } = *self;
        let between = matches!(mode, Mode::Linear | Mode::Cubic);
        if align_corners && !between {
            return refuse("align_corners", "true".to_owned(), "false but for linear and cubic");
        }
        if mode == Mode::Area {
            return refuse("mode", "Area".to_owned(), "another: the plans of adaptive_avg_pool have it");
        }
        if mode == Mode::Cubic && (input[0], output[0]) != (1, 1) {
            return refuse("mode", "Cubic".to_owned(), "another for three dimensions");
        }
        // The extents of windows of one cell each.
        let extents = |parameter, of: [usize; 3]| {
            let windows = pool::Windows::Adaptive { output: of };
            let axes = pool::windows::along_axes(OP, of, &windows);
            axes.map(|axes| axes.map(|axis| axis.input)).map_err(|e| match e {
                PlanError::Parameter { got, expected, .. } => {
                    PlanError::refused(OP, parameter, got, expected)
                }
                other => other,
            })
        };
        let (from, to) = (extents("input", input)?, extents("output", output)?);
        for (i, scale) in scale.iter().enumerate() {
            let Some(scale) = scale.map(Real::get) else { continue };
            if !(scale.is_finite() && scale > 0.0) || (input[i] as f64 * scale).floor() != output[i] as f64 {
                let expected = "positive, and such that floor(input * scale) is the output";
                return refuse("scale", scale.to_string(), expected);
            }
        }
        // Axes of one cell before the others are no dimensions.
        let ones = (0..2).take_while(|i| (from[*i], to[*i]) == (1, 1)).count();
        let plain = match mode {
            Mode::Linear => ones,
            Mode::Cubic => 1,
            _ => 0,
        };
        let axis = |i: usize| {
            let extents = [from[i], to[i]];
            if i < plain {
                return Sampling::new(dtype, Mode::Nearest, false, extents, None);
            }
            Sampling::new(dtype, mode, align_corners, extents, scale[i].map(Real::get))
        };
        Ok([0, 1, 2].map(axis))
    }

    /// The means of windows side by side that linear sampling at half the extents is: between two cells, halfway.
    fn means(&self, axes: &[Sampling; 3]) -> Option<AvgPoolDesc> {
        let is_kept = |axis: &Sampling| axis.mode == Mode::Nearest && (axis.input, axis.output) == (1, 1);
        let is_halved = |axis: &Sampling| {
            let halves = axis.mode == Mode::Linear && axis.input == 2 * axis.output;
            halves && axis.step == 2.0 && axis.shift == 0.5 && axis.input <= doubling::MAX_CELLS
        };
        if !axes.iter().all(|axis| is_kept(axis) || is_halved(axis)) || !axes.iter().any(is_halved) {
            return None;
        }
        let Self { dtype, layout, batch, channels, input, output, .. } = *self;
        let kernel = [0, 1, 2].map(|i| input[i] / output[i]);
        let windows = pool::Windows::Sliding(pool::SlidingWindows::tiling(kernel));
        let pool = Pool { dtype, layout, batch, channels, input, windows };
        Some(AvgPoolDesc { pool, divisor: Divisor::PaddedCells })
    }

    fn check(&self, target: Target) -> Result<Checked<'_>, PlanError> {
        PlanError::check_floats(OP, "x", self.dtype)?;
        let axes = self.sampling()?;
        let count = |extents: [usize; 3]| {
            let planes = self.batch.checked_mul(self.channels)?;
            let elements = planes.checked_mul(extents.iter().product())?;
            elements.checked_mul(8).filter(|bytes| i64::try_from(*bytes).is_ok()).map(|_| elements)
        };
        let (Some(input), Some(output)) = (count(self.input), count(self.output)) else {
            let expected = "so few that the bytes of a tensor can be counted";
            return Err(PlanError::refused(OP, "batch", self.batch, expected));
        };
        Ok(Checked { desc: self, axes, target, elements: [input, output] })
    }

    fn tensors(&self, [input, output]: [usize; 2]) -> Vec<TensorSpec> {
        type Args<'a> = ResizeArgs<'a>;
        Args::specs([Args::x.holds(self.dtype, input), Args::y.holds(self.dtype, output)])
    }

    /// The plan with these layouts, best first: for measuring one against another.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn plan_with(&self, target: Target, configs: &[Config]) -> Result<Plan<Self>, PlanError> {
        self.planned(&self.check(target)?, configs)
    }

    fn planned(&self, checked: &Checked<'_>, configs: &[Config]) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = ResizeArgs<'a>;
        let tensors = self.tensors(checked.elements);
        let variants = checked.variants(configs, |config| {
            let (cells, input, output, axes, grid) = checked.args(Direction::Forward, config)?;
            let args = KernelArguments { cells, input, output, axes, x: Args::x.arg(), y: Args::y.arg() };
            match checked.doubled(config) {
                Some(doubled) => checked.step(&doubled, args, grid),
                None => checked.step(&kernel::Resize { common: checked.common(config) }, args, grid),
            }
        })?;
        Ok(Plan::of(OP, Direction::Forward, checked.target, tensors, variants))
    }
}

impl Operation for ResizeDesc {
    type Args<'a> = ResizeArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let checked = self.check(target)?;
        if let Some(means) = self.means(&checked.axes) {
            let tensors = self.tensors(checked.elements);
            let variants = means.plan(target)?.variants().to_vec();
            return Ok(Plan::of(OP, Direction::Forward, target, tensors, variants));
        }
        let Self { dtype, layout, channels, .. } = *self;
        self.planned(&checked, &tuning::configs(dtype, layout, channels, &checked.axes, Direction::Forward))
    }
}

impl ResizeBackwardDesc {
    fn tensors(&self, [input, output]: [usize; 2]) -> Vec<TensorSpec> {
        type Args<'a> = ResizeBackwardArgs<'a>;
        let dtype = self.forward.dtype;
        Args::specs([Args::dy.holds(dtype, output), Args::dx.holds(dtype, input)])
    }

    /// The plan with these layouts, best first: for measuring one against another.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn plan_with(&self, target: Target, configs: &[Config]) -> Result<Plan<Self>, PlanError> {
        self.planned(&self.forward.check(target)?, configs)
    }

    fn planned(&self, checked: &Checked<'_>, configs: &[Config]) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = ResizeBackwardArgs<'a>;
        let tensors = self.tensors(checked.elements);
        let variants = checked.variants(configs, |config| {
            let (cells, input, output, axes, grid) = checked.args(Direction::Backward, config)?;
            let args = KernelArguments { cells, input, output, axes, x: Args::dy.arg(), y: Args::dx.arg() };
            match checked.doubled(config) {
                Some(doubled) => checked.step(&DoubledBackward(doubled), args, grid),
                None => checked.step(&kernel::ResizeBackward { common: checked.common(config) }, args, grid),
            }
        })?;
        Ok(Plan::of(OP, Direction::Backward, checked.target, tensors, variants))
    }
}

impl Operation for ResizeBackwardDesc {
    type Args<'a> = ResizeBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let ResizeDesc { dtype, layout, channels, .. } = self.forward;
        let checked = self.forward.check(target)?;
        if let Some(forward) = self.forward.means(&checked.axes) {
            let tensors = self.tensors(checked.elements);
            let variants = AvgPoolBackwardDesc { forward }.plan(target)?.variants().to_vec();
            return Ok(Plan::of(OP, Direction::Backward, target, tensors, variants));
        }
        self.planned(&checked, &tuning::configs(dtype, layout, channels, &checked.axes, Direction::Backward))
    }
}

/// Threads, input, output and axes of a launch, and its grid.
type Launch = (CellGridArgs, ImageArgs, ImageArgs, [AxisArgs; 3], [u32; 3]);

impl Checked<'_> {
    fn common(&self, config: Config) -> Common {
        let mode = self.desc.mode;
        let rank = self.axes.iter().filter(|axis| axis.mode == mode).count() as u32;
        Common { dtype: self.desc.dtype, mode, rank, config }
    }

    /// The kernel of a configuration whose threads have runs of cells.
    fn doubled(&self, config: Config) -> Option<Doubled> {
        let Shares::Doubled(run) = config.shares else { return None };
        let pixels = match self.desc.layout {
            Layout::ChannelsFirst => Pixels::Elements,
            Layout::ChannelsLast => Pixels::Vectors(config.width),
        };
        Some(Doubled { common: self.common(config), pixels, run })
    }

    /// The cells, runs or tiles that are shared out among threads, along depth, height and width.
    fn shares(&self, direction: Direction, shares: Shares) -> [u32; 3] {
        match (shares, direction) {
            (Shares::Single | Shares::Run(_), Direction::Forward) => {
                let [depth, height, width] = self.axes.map(|axis| axis.output);
                [depth, height, width / shares.run()]
            }
            (Shares::Single | Shares::Run(_), Direction::Backward) => self.axes.map(|axis| axis.input),
            (Shares::Doubled(run), direction) => {
                let [depth, height, width] = self.axes.map(|axis| axis.input);
                let rows = if direction == Direction::Forward { 1 } else { ROWS_BACKWARD };
                [depth, height.div_ceil(rows), width / run]
            }
        }
    }

    /// The arguments of a launch over the cells of the input or the output.
    fn args(&self, direction: Direction, config: Config) -> Result<Launch, PlanError> {
        let ResizeDesc { layout, batch, channels, .. } = *self.desc;
        let (images, pixel) = match layout {
            Layout::ChannelsFirst => (batch as u64 * channels as u64, 1),
            Layout::ChannelsLast => (batch as u64, channels),
        };
        let vectors = plan::small(pixel / config.width as usize);
        let over = self.shares(direction, config.shares);
        let group = pool::tuning::row_group(layout, over[1]);
        let threads = match config.shares {
            Shares::Doubled(_) => doubling::threads(self.desc.mode),
            _ => tuning::THREADS,
        };
        let grid = CellGridArgs::over(images, over, vectors, group, threads, config.chunk);
        let image = |extents| ImageArgs::new(extents, vectors, config.width);
        let (Some((cells, grid)), Some(input), Some(output)) =
            (grid, image(self.axes.map(|axis| axis.input)), image(self.axes.map(|axis| axis.output)))
        else {
            let expected = "so few that a sample with channels last has at most 2^31 - 1024 elements";
            return Err(PlanError::refused(OP, "channels", channels, expected));
        };
        let axes = self.axes.map(|Sampling { input, output, step, offset, shift, .. }| {
            // Without a step all cells of the output are at the first one.
            let per_step = if step == 0.0 { f64::from(output) } else { 1.0 / step };
            AxisArgs { input, output, step, offset, shift, per_step }
        });
        Ok((cells, input, output, axes, grid))
    }

    /// A launch, if there is anything to do.
    fn step<D: KernelDef<Args = KernelArguments>>(
        &self,
        def: &D,
        args: KernelArguments,
        grid: [u32; 3],
    ) -> Result<Vec<LaunchStep>, PlanError> {
        let kernel = plan::recorded(OP, def, self.target)?;
        let step = LaunchStep::new(kernel, grid, args.values());
        Ok(if self.elements.contains(&0) { Vec::new() } else { vec![step] })
    }

    fn variants(
        &self,
        configs: &[Config],
        steps: impl Fn(Config) -> Result<Vec<LaunchStep>, PlanError>,
    ) -> Result<Vec<Variant>, PlanError> {
        let variant = |config: &Config| {
            Ok(Variant {
                alignment: config.alignment(self.desc.layout, self.desc.dtype),
                steps: steps(*config)?,
            })
        };
        configs.iter().map(variant).collect()
    }
}
