//! Pooling over windows of one, two or three dimensions: maxima and means, as `torch.nn.functional.max_pool2d`, `avg_pool2d`,
//! `adaptive_max_pool2d`, `adaptive_avg_pool2d` and their siblings have them. Forward and backward, channels first and last.
//!
//! - `max_pool`: `y[o] = max(x[i])` over the cells `i` of window `o` ([`SlidingWindows`]) that the input has
//! - `avg_pool`: `y[o] = sum(x[i]) / n`, where `n` is the [`Divisor`]
//! - `adaptive_max_pool`, `adaptive_avg_pool`: the same over the windows of [`Windows::Adaptive`]; an output of 1 is the global
//!   pooling
//! - backward: `dx[i]` is the sum of `dy[o]` over the windows whose maximum is from `i`, or of `dy[o] / n` over those that have `i`
//!
//! A maximum is NaN if its window has a NaN. Of equal maxima the first is the one that `dy` goes to, of several NaN the last, in order
//! of depth, row and column. A window without a cell of the input, which dilation alone can give, has minus infinity and the index -1.
//! Zeros of both signs are equal; which one comes out is not said.
//!
//! Each gradient is a sum over windows in order, so results are the same from run to run. 16-bit types are summed in f32 and rounded
//! once.
//!
//! Planes have at most 2^31 - 1024 cells, and samples with channels last as many elements; tensors may have more.

mod functions;
mod kernel;
pub mod reference;
mod runs;
pub(crate) mod samples;
mod spread;
pub mod tuning;
pub mod windows;

use warpwright_dsl::cells::{CellGridArgs, ImageArgs};
use warpwright_dsl::divide::{DivisorArgs, WideDivisorArgs};
use warpwright_dsl::{KernelArgs, KernelDef};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use crate::PlanError;
pub use crate::batch_norm::Layout;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, TensorSpec, Variant};
use crate::tensors::tensors;

pub use functions::*;
use kernel::{
    Average, AverageArgs, AverageBackward, AxisArgs, Common, Kind, Max, MaxArgs, MaxBackward,
    MaxBackwardArgs, Numbering, PoolArgs,
};
use runs::{AverageRuns, AverageRunsBackward, MaxRuns, MaxRunsBackward, Runs};
use spread::{MaximumArgs, MaximumSpread, MeanArgs, MeanSpread, Spread, SpreadArgs};
use tuning::{Config, Visits};
use windows::{AxisWindows, along_axes};
pub use windows::{SlidingWindows, Windows};

/// Names in the catalogue.
const MAX: &str = "max_pool";
const AVERAGE: &str = "avg_pool";
const ADAPTIVE_MAX: &str = "adaptive_max_pool";
const ADAPTIVE_AVERAGE: &str = "adaptive_avg_pool";

/// The properties that all poolings have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pool {
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
    /// The windows.
    pub windows: Windows,
}

/// How it is kept where maxima are from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Argmax {
    /// Not at all: there is no backward pass.
    None,
    /// As the number of the cell in its plane, i64: the indices of PyTorch.
    #[default]
    Index,
    /// As the number of the cell in its window, u8: an eighth of the memory. For sliding windows of at most 256 cells without
    /// dilation.
    Tap,
}

impl Argmax {
    /// The element type of the indices.
    pub const fn dtype(self) -> Option<DType> {
        match self {
            Self::None => None,
            Self::Index => Some(DType::I64),
            Self::Tap => Some(DType::U8),
        }
    }

    const fn numbering(self) -> Option<Numbering> {
        match self {
            Self::None => None,
            Self::Index => Some(Numbering::Index),
            Self::Tap => Some(Numbering::Tap),
        }
    }
}

/// The number that the sum over a window is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Divisor {
    /// The cells of the window in the padded input: PyTorch's `count_include_pad`. Without padding, and for adaptive windows, the
    /// cells in the input.
    #[default]
    PaddedCells,
    /// The cells of the window in the input.
    Cells,
    /// This, which is not 0: PyTorch's `divisor_override`.
    Override(i64),
}

/// `y[o] = max(x[i])`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MaxPoolDesc {
    /// Shapes and windows.
    pub pool: Pool,
    /// Whether and how it is kept where the maxima are from.
    pub argmax: Argmax,
}

tensors! {
    /// Tensors of [`MaxPoolDesc`].
    pub struct MaxPoolArgs<'a> {
        /// `[batch, channels, ..]`, or `[batch, .., channels]` for channels last.
        x: In,
        /// The maxima, with the extents of the output.
        y: Out,
        /// Where they are from, of the shape of `y` and the type of [`Argmax::dtype`].
        indices: Option<Out>,
    }
}

/// The gradient of [`MaxPoolDesc`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MaxPoolBackwardDesc {
    /// The forward operation, which keeps where maxima are from.
    pub forward: MaxPoolDesc,
}

tensors! {
    /// Tensors of [`MaxPoolBackwardDesc`].
    pub struct MaxPoolBackwardArgs<'a> {
        /// Where the maxima are from.
        indices: In,
        /// Gradient of the result, of the shape of `indices`.
        dy: In,
        /// Gradient of `x`, of its shape.
        dx: Out,
    }
}

/// `y[o] = sum(x[i]) / n`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AvgPoolDesc {
    /// Shapes and windows, which have no dilation.
    pub pool: Pool,
    /// The number `n`.
    pub divisor: Divisor,
}

tensors! {
    /// Tensors of [`AvgPoolDesc`].
    pub struct AvgPoolArgs<'a> {
        /// `[batch, channels, ..]`, or `[batch, .., channels]` for channels last.
        x: In,
        /// The means, with the extents of the output.
        y: Out,
    }
}

/// The gradient of [`AvgPoolDesc`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AvgPoolBackwardDesc {
    /// The forward operation.
    pub forward: AvgPoolDesc,
}

tensors! {
    /// Tensors of [`AvgPoolBackwardDesc`].
    pub struct AvgPoolBackwardArgs<'a> {
        /// Gradient of the result.
        dy: In,
        /// Gradient of `x`, of its shape.
        dx: Out,
    }
}

/// A pooling whose sizes are in order.
struct Checked<'a> {
    op: &'static str,
    pool: &'a Pool,
    axes: [AxisWindows; 3],
    target: Target,
    /// Elements of the input and of the output.
    elements: [usize; 2],
}

impl Pool {
    /// The windows along depth, height and width.
    ///
    /// # Errors
    /// As those of the plans.
    pub fn windows_of_axes(&self) -> Result<[AxisWindows; 3], PlanError> {
        along_axes(MAX, self.input, &self.windows)
    }

    /// Depth, height and width of the output.
    ///
    /// # Errors
    /// As those of the plans.
    pub fn output(&self) -> Result<[usize; 3], PlanError> {
        Ok(self.windows_of_axes()?.map(|axis| axis.output as usize))
    }

    fn check(
        &self,
        [sliding, adaptive]: [&'static str; 2],
        target: Target,
    ) -> Result<Checked<'_>, PlanError> {
        let op = if matches!(self.windows, Windows::Adaptive { .. }) { adaptive } else { sliding };
        PlanError::check_floats(op, "x", self.dtype)?;
        let axes = along_axes(op, self.input, &self.windows)?;
        let planes = self.batch.checked_mul(self.channels);
        let count = |of: fn(&AxisWindows) -> u32| {
            let cells = axes.iter().map(|axis| of(axis) as usize).product();
            // Indices have eight bytes.
            let elements = planes?.checked_mul(cells)?;
            elements.checked_mul(8).filter(|bytes| i64::try_from(*bytes).is_ok()).map(|_| elements)
        };
        let (Some(input), Some(output)) = (count(|axis| axis.input), count(|axis| axis.output)) else {
            let expected = "so few that the bytes of a tensor can be counted";
            return Err(PlanError::refused(op, "batch", self.batch, expected));
        };
        Ok(Checked { op, pool: self, axes, target, elements: [input, output] })
    }
}

impl Checked<'_> {
    /// Images of the kernels, and elements of a pixel.
    fn images(&self) -> (u64, usize) {
        let Pool { layout, batch, channels, .. } = *self.pool;
        match layout {
            Layout::ChannelsFirst => (batch as u64 * channels as u64, 1),
            Layout::ChannelsLast => (batch as u64, channels),
        }
    }

    fn common(&self, config: Config) -> Common {
        let sliding = self.axes.iter().all(|axis| axis.sliding.is_some());
        let kind = if sliding { Kind::Sliding } else { Kind::Adaptive };
        Common { dtype: self.pool.dtype, kind, config }
    }

    /// The cells of the input that are shared out in the backward pass, or where threads have runs the windows of these.
    fn cells(&self, visits: Visits) -> [u32; 3] {
        let [depth, rows, columns] = self.axes.map(|axis| axis.input);
        match visits {
            Visits::Runs(run) => [depth, rows.div_ceil(run.stride), columns / run.stride],
            _ => [depth, rows, columns],
        }
    }

    fn runs(&self, run: tuning::Run) -> Runs {
        Runs { dtype: self.pool.dtype, run }
    }

    /// The number that the sums of all windows are divided by, if it is the same.
    fn common_divisor(&self, divisor: Divisor) -> Option<f64> {
        if let Divisor::Override(divisor) = divisor {
            return Some(divisor as f64);
        }
        let cells = self.axes.iter().map(|axis| {
            let windows::Sliding { kernel, stride, padding, .. } = axis.sliding?;
            let counted = if divisor == Divisor::PaddedCells { padding } else { 0 };
            // The last window ends within what counts, and the first one begins there.
            let end = u64::from(axis.output - 1) * u64::from(stride) + u64::from(kernel);
            let within = end <= u64::from(axis.input) + u64::from(counted) + u64::from(padding);
            (within && padding <= counted).then_some(f64::from(kernel))
        });
        cells.product()
    }

    /// The arguments of a launch over `cells` of each image, in tiles, and its grid. Cells of the padding count where `padded`.
    fn args(&self, cells: [u32; 3], padded: bool, config: Config) -> Result<(PoolArgs, [u32; 3]), PlanError> {
        let (images, pixel) = self.images();
        let [depth, height, width] = cells;
        let tiles = match config.visits {
            Visits::Runs(run) => [depth, height, width / run.outputs],
            visits => [depth, height.div_ceil(visits.tile()), width.div_ceil(visits.tile())],
        };
        let lanes = config.lanes();
        let vectors = plan::small(pixel / lanes as usize);
        let group = tuning::row_group(self.pool.layout, tiles[1]);
        let over = CellGridArgs::over(images, tiles, vectors, group, tuning::THREADS, config.chunk);
        let image =
            |of: fn(&AxisWindows) -> u32| ImageArgs::new(self.axes.map(|axis| of(&axis)), vectors, lanes);
        let (Some((cells, grid)), Some(input), Some(output)) =
            (over, image(|axis| axis.input), image(|axis| axis.output))
        else {
            let expected = "so few that a sample with channels last has at most 2^31 - 1024 elements";
            return Err(PlanError::refused(self.op, "channels", self.pool.channels, expected));
        };
        let axes = self.axes.map(|axis| axis_args(axis, padded));
        Ok((PoolArgs { cells, input, output, axes }, grid))
    }

    /// The arguments of a launch over runs of `dx`, and its grid.
    fn spread(
        &self,
        of: tuning::Spread,
        numbering: Option<Numbering>,
        config: Config,
    ) -> Result<(SpreadArgs, [u32; 3]), PlanError> {
        let (planes, _) = self.images();
        let (input, output) = (self.axes.map(|axis| axis.input), self.axes.map(|axis| axis.output));
        let [_, kernel_rows, kernel_columns] = self.axes.map(AxisWindows::span);
        let run = of.run;
        let sizes = if of.planes {
            // The planes of a run are one row, of windows of a plane each.
            let plane: u32 = input.iter().product();
            (planes / u64::from(run), [1, 1, plane * run], [1, 1, run], [1, plane])
        } else {
            (planes, input, output, [kernel_rows, kernel_columns])
        };
        let (images, input, output, [rows, columns]) = sizes;
        let over = [input[0], input[1], input[2] / run];
        let grid = CellGridArgs::over(images, over, 1, 0, tuning::THREADS, config.chunk);
        let (Some((cells, grid)), Some(of_input), Some(of_output)) =
            (grid, ImageArgs::new(input, 1, 1), ImageArgs::new(output, 1, 1))
        else {
            return Err(PlanError::refused(self.op, "batch", self.pool.batch, "fewer samples"));
        };
        let (plane, row, window_row, window_column) = match numbering {
            Some(Numbering::Index) if !of.planes => (input[1] * input[2], input[2], 0, 0),
            _ => (0, columns, rows * columns, columns),
        };
        let (rows, columns) = (DivisorArgs::new(rows), DivisorArgs::new(columns));
        let args = SpreadArgs {
            cells,
            input: of_input,
            output: of_output,
            rows,
            columns,
            plane,
            row,
            window_row,
            window_column,
        };
        Ok((args, grid))
    }

    /// A launch, if there is anything to do.
    fn step<D: KernelDef>(
        &self,
        def: &D,
        args: &D::Args,
        grid: [u32; 3],
    ) -> Result<Vec<LaunchStep>, PlanError> {
        let kernel = plan::recorded(self.op, def, self.target)?;
        let step = LaunchStep::new(kernel, grid, args.values());
        Ok(if self.elements.contains(&0) { Vec::new() } else { vec![step] })
    }

    /// The ways to launch: with the vectors of `config`, if it has any, and with single elements and these visits.
    fn variants(
        &self,
        config: Config,
        single: Visits,
        steps: impl Fn(Config) -> Result<Vec<LaunchStep>, PlanError>,
    ) -> Result<Vec<Variant>, PlanError> {
        let mut configs = vec![config];
        if config.width > 1 {
            configs.push(config.single(single));
        }
        let variant = |config: Config| {
            Ok(Variant { alignment: config.alignment(self.pool.dtype), steps: steps(config)? })
        };
        configs.into_iter().map(variant).collect()
    }

    fn finish<O: Operation>(
        &self,
        direction: Direction,
        tensors: Vec<TensorSpec>,
        variants: Vec<Variant>,
    ) -> Plan<O> {
        Plan::of(self.op, direction, self.target, tensors, variants)
    }
}

/// Runs have windows of one divisor.
fn settled(config: Config, divisor: Option<f64>, single: Visits) -> Config {
    match (config.visits, divisor) {
        (Visits::Runs(_), None) => config.single(single),
        _ => config,
    }
}

/// The windows of an axis as kernels take them.
fn axis_args(axis: AxisWindows, padded: bool) -> AxisArgs {
    let AxisWindows { input, output, sliding } = axis;
    let none = windows::Sliding { kernel: 1, stride: 1, padding: 0, dilation: 1 };
    let sliding = sliding.unwrap_or(none);
    let windows::Sliding { kernel, stride, padding, dilation } = sliding;
    AxisArgs {
        input,
        output,
        kernel,
        span: sliding.span(),
        stride: DivisorArgs::new(stride),
        padding,
        counted_padding: if padded { padding } else { 0 },
        dilation: DivisorArgs::new(dilation),
        by_output: WideDivisorArgs::new(output.into()),
        by_input: WideDivisorArgs::new(input.into()),
    }
}

impl MaxPoolDesc {
    fn check(&self, target: Target) -> Result<Checked<'_>, PlanError> {
        let checked = self.pool.check([MAX, ADAPTIVE_MAX], target)?;
        let cells = match self.pool.windows {
            Windows::Adaptive { .. } => None,
            Windows::Sliding(SlidingWindows { kernel, dilation, .. }) => {
                let cells = kernel.iter().try_fold(1usize, |n, of| n.checked_mul(*of));
                cells.filter(|_| dilation == [1; 3])
            }
        };
        if self.argmax == Argmax::Tap && cells.is_none_or(|cells| cells > 256) {
            let expected = "Index, or sliding windows of at most 256 cells without dilation";
            return Err(PlanError::refused(checked.op, "argmax", "Tap", expected));
        }
        Ok(checked)
    }

    /// The plan with this layout: for measuring one against another.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn plan_with(&self, target: Target, config: Config) -> Result<Plan<Self>, PlanError> {
        let checked = self.check(target)?;
        type Args<'a> = MaxPoolArgs<'a>;
        let (dtype, [input, output]) = (self.pool.dtype, checked.elements);
        let kept = self.argmax.dtype();
        let tensors = Args::specs([
            Args::x.holds(dtype, input),
            Args::y.holds(dtype, output),
            Args::indices.holds(kept.unwrap_or(DType::U8), output).optional(kept.is_some()),
        ]);
        let numbering = self.argmax.numbering();
        let single = tuning::forward_visits(&checked.axes);
        let variants = checked.variants(config, single, |config| {
            let (pool, grid) = checked.args(checked.axes.map(|axis| axis.output), false, config)?;
            let args = MaxArgs { pool, x: Args::x.arg(), y: Args::y.arg(), indices: Args::indices.arg() };
            match config.visits {
                Visits::Runs(run) => {
                    checked.step(&MaxRuns { runs: checked.runs(run), numbering }, &args, grid)
                }
                _ => checked.step(&Max { common: checked.common(config), numbering }, &args, grid),
            }
        })?;
        Ok(checked.finish(Direction::Forward, tensors, variants))
    }
}

impl Operation for MaxPoolDesc {
    type Args<'a> = MaxPoolArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let Pool { dtype, layout, channels, .. } = self.pool;
        let config = tuning::forward(dtype, layout, channels, &self.check(target)?.axes);
        self.plan_with(target, config)
    }
}

impl MaxPoolBackwardDesc {
    /// The plan with this layout: for measuring one against another.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn plan_with(&self, target: Target, config: Config) -> Result<Plan<Self>, PlanError> {
        let MaxPoolDesc { ref pool, argmax } = self.forward;
        let checked = self.forward.check(target)?;
        let (Some(numbering), Some(kept)) = (argmax.numbering(), argmax.dtype()) else {
            return Err(PlanError::refused(checked.op, "argmax", "None", "Index or Tap for the gradient"));
        };
        type Args<'a> = MaxPoolBackwardArgs<'a>;
        let [input, output] = checked.elements;
        let tensors = Args::specs([
            Args::indices.holds(kept, output),
            Args::dy.holds(pool.dtype, output).like(Args::indices),
            Args::dx.holds(pool.dtype, input),
        ]);
        let single = tuning::backward_visits(&checked.axes);
        let variants = checked.variants(config, single, |config| {
            let (indices, dy, dx) = (Args::indices.arg(), Args::dy.arg(), Args::dx.arg());
            if let Visits::Spread(of) = config.visits {
                let (spread, grid) = checked.spread(of, Some(numbering), config)?;
                let args = MaximumArgs { spread, indices, dy, dx };
                let spread = Spread { dtype: pool.dtype, run: of.run };
                return checked.step(&MaximumSpread { spread, numbering }, &args, grid);
            }
            let (pool, grid) = checked.args(checked.cells(config.visits), false, config)?;
            let args = MaxBackwardArgs { pool, indices, dy, dx };
            match config.visits {
                Visits::Runs(run) => {
                    checked.step(&MaxRunsBackward { runs: checked.runs(run), numbering }, &args, grid)
                }
                _ => checked.step(&MaxBackward { common: checked.common(config), numbering }, &args, grid),
            }
        })?;
        Ok(checked.finish(Direction::Backward, tensors, variants))
    }
}

impl Operation for MaxPoolBackwardDesc {
    type Args<'a> = MaxPoolBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let Pool { dtype, layout, batch, channels, .. } = self.forward.pool;
        let config = tuning::backward(dtype, layout, [batch, channels], &self.forward.check(target)?.axes);
        self.plan_with(target, config)
    }
}

impl AvgPoolDesc {
    fn check(&self, target: Target) -> Result<Checked<'_>, PlanError> {
        let checked = self.pool.check([AVERAGE, ADAPTIVE_AVERAGE], target)?;
        if let Windows::Sliding(SlidingWindows { dilation, .. }) = self.pool.windows
            && dilation != [1; 3]
        {
            let got = format!("{dilation:?}");
            return Err(PlanError::refused(checked.op, "dilation", got, "1: means have none"));
        }
        if self.divisor == Divisor::Override(0) {
            return Err(PlanError::refused(checked.op, "divisor", "Override(0)", "not 0"));
        }
        Ok(checked)
    }

    /// 0 where the cells of a window count.
    fn override_(&self) -> f64 {
        if let Divisor::Override(divisor) = self.divisor { divisor as f64 } else { 0.0 }
    }

    /// The plan with this layout: for measuring one against another.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn plan_with(&self, target: Target, config: Config) -> Result<Plan<Self>, PlanError> {
        let checked = self.check(target)?;
        type Args<'a> = AvgPoolArgs<'a>;
        let common = checked.common_divisor(self.divisor);
        let single = tuning::forward_visits(&checked.axes);
        let config = settled(config, common, single);
        let (dtype, [input, output]) = (self.pool.dtype, checked.elements);
        let tensors = Args::specs([Args::x.holds(dtype, input), Args::y.holds(dtype, output)]);
        let variants = checked.variants(config, single, |config| {
            let padded = self.divisor == Divisor::PaddedCells;
            let (pool, grid) = checked.args(checked.axes.map(|axis| axis.output), padded, config)?;
            let divisor = match config.visits {
                Visits::Runs(_) => common.unwrap_or_default(),
                _ => self.override_(),
            };
            let args = AverageArgs { pool, x: Args::x.arg(), y: Args::y.arg(), divisor };
            match config.visits {
                Visits::Runs(run) => checked.step(&AverageRuns(checked.runs(run)), &args, grid),
                _ => checked.step(&Average { common: checked.common(config) }, &args, grid),
            }
        })?;
        Ok(checked.finish(Direction::Forward, tensors, variants))
    }
}

impl Operation for AvgPoolDesc {
    type Args<'a> = AvgPoolArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let Pool { dtype, layout, channels, .. } = self.pool;
        let config = tuning::forward(dtype, layout, channels, &self.check(target)?.axes);
        self.plan_with(target, config)
    }
}

impl AvgPoolBackwardDesc {
    /// The plan with this layout: for measuring one against another.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn plan_with(&self, target: Target, config: Config) -> Result<Plan<Self>, PlanError> {
        let AvgPoolDesc { ref pool, divisor } = self.forward;
        let checked = self.forward.check(target)?;
        type Args<'a> = AvgPoolBackwardArgs<'a>;
        let common = checked.common_divisor(divisor);
        let single = tuning::backward_visits(&checked.axes);
        let config = settled(config, common, single);
        let [input, output] = checked.elements;
        let tensors = Args::specs([Args::dy.holds(pool.dtype, output), Args::dx.holds(pool.dtype, input)]);
        let variants = checked.variants(config, single, |config| {
            let padded = divisor == Divisor::PaddedCells;
            let divisor = self.forward.override_();
            if let Visits::Spread(of) = config.visits {
                let (spread, grid) = checked.spread(of, None, config)?;
                let divisor = common.unwrap_or_default();
                let args = MeanArgs { spread, dy: Args::dy.arg(), dx: Args::dx.arg(), divisor };
                return checked.step(&MeanSpread(Spread { dtype: pool.dtype, run: of.run }), &args, grid);
            }
            let (pool, grid) = checked.args(checked.cells(config.visits), padded, config)?;
            let args = |divisor| AverageArgs { pool, x: Args::dy.arg(), y: Args::dx.arg(), divisor };
            match config.visits {
                Visits::Runs(run) => {
                    let args = args(common.unwrap_or_default());
                    checked.step(&AverageRunsBackward(checked.runs(run)), &args, grid)
                }
                _ => checked.step(&AverageBackward { common: checked.common(config) }, &args(divisor), grid),
            }
        })?;
        Ok(checked.finish(Direction::Backward, tensors, variants))
    }
}

impl Operation for AvgPoolBackwardDesc {
    type Args<'a> = AvgPoolBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let Pool { dtype, layout, batch, channels, .. } = self.forward.pool;
        let config = tuning::backward(dtype, layout, [batch, channels], &self.forward.check(target)?.axes);
        self.plan_with(target, config)
    }
}
