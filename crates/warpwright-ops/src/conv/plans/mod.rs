//! Plans: which kernels a pass is, and what they are given.

mod depthwise;
mod gather;
mod grouped;
mod implicit;
mod pointwise;
mod prepare;
mod tiled;

use warpwright_dsl::{Elem, Extra, In, Out};
use warpwright_ptx::Target;
use warpwright_runtime::LaunchStep;

use super::bias::{self, BiasArgs, BiasParts};
use super::gather::StrideArgs;
use super::tuning::{PIECES, Tile};
use super::weight::{self, Reorder, ReorderArgs, SumArgs, SumManyParts, SumParts};
use super::{Axis, Conv, ConvArgs, ConvBackwardArgs, ConvBackwardDesc, ConvDesc, Layout, OP, Pass, Sizes};
use crate::PlanError;
use crate::catalogue::Direction;
use crate::gemm::epilogue::{self, EpilogueArgs, HAS_BIAS, HAS_C, Program, ResultArgs, sums_dtype};
use crate::gemm::{MAX_LAYERS, WIDE};
use crate::plan::{self, Operation, Plan, Variant, small};
use crate::tensors::{OutSlot, SlotSpec};

/// Bytes that what follows in a workspace begins at a multiple of.
const LINE: usize = 128;

/// The operands of a pass, and its result.
struct Tensors {
    /// The gathered operand: `x`, or `dy` for the gradient of `x`.
    image: In<Elem>,
    /// The weight, or `dy` for that of the weight.
    other: In<Elem>,
    ends: Ends,
    /// The result: a tensor, and the byte of it that the result begins at.
    y: (OutSlot, u64),
}

/// The tensors that an epilogue reads.
#[derive(Clone)]
struct Ends {
    bias: In<Elem>,
    scale: Option<In<Elem>>,
    residual: In<Elem>,
}

impl Ends {
    /// Nothing.
    fn none() -> Self {
        Self { bias: In::address(0), scale: None, residual: In::address(0) }
    }

    /// It and where results go.
    fn results(&self, y: Out<Elem>) -> ResultArgs {
        let Self { bias, scale, residual } = self.clone();
        ResultArgs { scale: Extra(scale), ..ResultArgs::new(residual, bias, y) }
    }
}

impl Tensors {
    /// The result from byte `offset` on.
    fn y_at(&self, offset: u64) -> Out<Elem> {
        self.y.0.arg_at(self.y.1 + offset)
    }
}

/// The epilogue of a result: as kernels that finish any are told, and as it is recorded into others.
type Epilogue = (EpilogueArgs, Program);

/// The order of a weight of three dimensions, by that of another: extents, and the strides in it. An inner index counts pairs.
struct Order {
    outer: (usize, usize),
    middle: (usize, usize),
    /// The extents of both numbers of a pair, and their strides.
    first: (usize, usize),
    second: (usize, usize),
    /// Extents of the result, if it has zeros behind the elements.
    padded: Option<(usize, usize)>,
}

/// Where the gradient of a weight belongs whose images have other channels than the convolution's own.
#[derive(Clone, Copy, Debug)]
struct OwnWeight {
    conv: Conv,
    /// Taps along a row, if they are side by side with the channels.
    row: Option<usize>,
}

/// A pass on its way to launches.
struct Planner<'a> {
    conv: &'a Conv,
    sizes: Sizes,
    target: Target,
    workspace: OutSlot,
    /// Bytes of it that are in use until the end, and that the steps so far have use for.
    base: usize,
    scratch: usize,
    /// Where the gradient of the weight belongs, if not where products have it.
    own_weight: Option<OwnWeight>,
    /// Where `dy` is with its channels last, if it is there.
    dy: Option<usize>,
    /// Whether all tensors begin at multiples of 16 bytes.
    wide: bool,
    /// The tile of products, if it is asked for.
    tile: Option<Tile>,
}

impl<'a> Planner<'a> {
    const fn new(conv: &'a Conv, sizes: Sizes, target: Target, workspace: OutSlot) -> Self {
        Self {
            conv,
            sizes,
            target,
            workspace,
            base: 0,
            scratch: 0,
            own_weight: None,
            dy: None,
            wide: false,
            tile: None,
        }
    }

    /// Gathered pixels and those of the grid of products of an axis, in this order.
    const fn sides(&self, pass: Pass, axis: usize) -> (usize, usize) {
        let (input, output) = (self.conv.axes[axis].input, self.sizes.outputs[axis]);
        if matches!(pass, Pass::BackwardX) { (output, input) } else { (input, output) }
    }

    /// Channels of `x` and `y` that a group has.
    const fn of_group(&self) -> (usize, usize) {
        (self.conv.channels / self.conv.groups, self.conv.filters / self.conv.groups)
    }

    /// Channels, and the extents of the images, that are gathered.
    fn gathered(&self, pass: Pass) -> (usize, [usize; 3]) {
        let channels = if pass == Pass::BackwardX { self.conv.filters } else { self.conv.channels };
        (channels, [0, 1, 2].map(|axis| self.sides(pass, axis).0))
    }

    /// Elements from one image, channel and pixel to the next of images with so many channels and pixels.
    fn strides(&self, channels: usize, pixels: usize) -> StrideArgs {
        let image = channels as u64 * pixels as u64;
        match self.conv.layout {
            Layout::ChannelsFirst => StrideArgs { image, channel: pixels as u64, pixel: 1 },
            Layout::ChannelsLast => StrideArgs { image, channel: 1, pixel: channels as u64 },
        }
    }

    /// Keeps so many bytes of the workspace, and says where they begin.
    fn reserve(&mut self, from: usize, bytes: usize) -> Result<(usize, usize), PlanError> {
        let end = from.checked_add(bytes).map(|end| end.next_multiple_of(LINE));
        let end = end.filter(|end| i64::try_from(*end).is_ok()).ok_or_else(|| {
            Conv::refused("filters", self.conv.filters, "such that the workspace is addressable")
        })?;
        self.scratch = self.scratch.max(end);
        Ok((from, end))
    }

    /// The steps of a pass, with tensor copies if the target has them.
    fn pass(
        &mut self,
        pass: Pass,
        tensors: Tensors,
        epilogue: Epilogue,
    ) -> Result<Vec<LaunchStep>, PlanError> {
        if self.has_copies(pass) {
            return self.implicit(pass, &tensors, &epilogue);
        }
        if let Some(steps) = self.pointwise(pass, &tensors, &epilogue)? {
            return Ok(steps);
        }
        if let Some(kernel) = self.depthwise_kernel(pass, epilogue.1) {
            return self.depthwise(&kernel, &tensors, &epilogue.0);
        }
        if let Some(grouped) = self.grouped_kernel(pass, epilogue.1) {
            return self.grouped(&grouped, &tensors, &epilogue);
        }
        // Where copies are narrow images are padded first.
        let tiles = self.has_tiles(pass);
        if tiles && self.piece(pass) == Some(PIECES[0]) {
            return self.tiled(pass, &tensors, &epilogue);
        }
        if let Some(steps) = self.prepared(pass, &tensors, &epilogue)? {
            return Ok(steps);
        }
        if tiles {
            return self.tiled(pass, &tensors, &epilogue);
        }
        self.gather(pass, &tensors, &epilogue)
    }

    /// The variants of a plan, by the steps of each.
    fn variants(
        &mut self,
        tile: Option<Tile>,
        mut steps: impl FnMut(&mut Self) -> Result<Vec<LaunchStep>, PlanError>,
    ) -> Result<Vec<Variant>, PlanError> {
        self.tile = tile;
        let mut variant = |wide| {
            (self.wide, self.base, self.dy) = (wide, 0, None);
            let alignment = if wide { WIDE } else { 1 };
            Ok(Variant { alignment, steps: steps(self)? })
        };
        Ok(vec![variant(true)?, variant(false)?])
    }

    /// The workspace that the steps have use for.
    fn scratch(&self) -> SlotSpec {
        let sums = sums_dtype(self.conv.dtype);
        self.workspace.scratch(sums, self.scratch.div_ceil(sums.bytes()))
    }

    /// Adds parts of `len` elements in the workspace from byte `at` on, or stores zeros if there are none.
    fn sum(
        &self,
        (at, parts): (usize, u32),
        y: Out<Elem>,
        len: usize,
        wide: bool,
    ) -> Result<LaunchStep, PlanError> {
        let dtype = self.conv.dtype;
        let from = self.workspace.written_at(at as u64);
        let values = SumArgs { from, y, len: len as u64, parts, part: len as u64 };
        if parts > SumManyParts::LEAST {
            let grid = plan::cover(OP, len, SumManyParts::COLUMNS)?.unwrap_or([1; 3]);
            return plan::launch(OP, &SumManyParts { dtype }, values, self.target, grid);
        }
        let width = if wide && len.is_multiple_of(SumParts::WIDE as usize) { SumParts::WIDE } else { 1 };
        let grid = plan::cover(OP, len, weight::THREADS * width)?.unwrap_or([1; 3]);
        plan::launch(OP, &SumParts { dtype, width }, values, self.target, grid)
    }

    /// Sums of parts, or elements, in another order.
    fn reorder(
        &self,
        from: In<Elem>,
        y: Out<Elem>,
        sums: bool,
        (parts, part): (u32, usize),
        order: &Order,
    ) -> Result<LaunchStep, PlanError> {
        let Order { outer, middle, first, second, padded } = *order;
        let (outer_extent, inner) = padded.unwrap_or((outer.0, first.0 * second.0));
        let [x, ..] = plan::cover(OP, middle.0 * inner, weight::THREADS)?.unwrap_or([1; 3]);
        let values = ReorderArgs {
            from,
            y,
            parts,
            part: part as u64,
            outer: small(outer_extent),
            middle: small(middle.0),
            inner: small(inner),
            known_outer: small(outer.0),
            known_inner: small(first.0 * second.0),
            pair: small(second.0),
            stride_outer: outer.1 as u64,
            stride_middle: middle.1 as u64,
            stride_first: first.1 as u64,
            stride_second: second.1 as u64,
        };
        let grid = [x, small(outer_extent.min(MAX_LAYERS)), 1];
        plan::launch(OP, &Reorder { dtype: self.conv.dtype, sums }, values, self.target, grid)
    }

    /// The gradient of the bias.
    fn bias(&mut self, dy: In<Elem>, dbias: Out<Elem>) -> Result<Vec<LaunchStep>, PlanError> {
        let Conv { dtype, layout, batch, filters, .. } = *self.conv;
        let pixels = self.sizes.pixels_out;
        let rows = if layout == Layout::ChannelsLast { batch * pixels } else { batch };
        let kernel = BiasParts { dtype, layout };
        let across = filters.div_ceil(kernel.channels() as usize);
        let part = bias::part(self.target, rows, across);
        let parts = rows.div_ceil(part).max(1);
        let (at, _) =
            self.reserve(self.base, filters.saturating_mul(parts).saturating_mul(sums_dtype(dtype).bytes()))?;
        let grid = plan::cover(OP, across, 1)?.map_or([1; 3], |[x, ..]| [x, small(parts), 1]);
        let values = BiasArgs {
            dy,
            sums: self.workspace.arg_at(at as u64),
            filters: small(filters),
            rows: small(rows),
            part: small(part),
            pixels: small(pixels),
        };
        Ok(vec![
            plan::launch(OP, &kernel, values, self.target, grid)?,
            self.sum((at, small(parts)), dbias, filters, false)?,
        ])
    }
}

impl Conv {
    /// The same convolution with larger pixels, where a kernel goes from pixel to pixel without overlaps: those of a row that it takes together
    /// are the channels of one, and rows are a dimension of their own.
    fn folded(self) -> Self {
        let whole = |axis: &Axis| {
            let apart = axis.kernel == axis.stride && axis.dilation == 1 && axis.padding == [0; 2];
            apart && axis.stride > 1 && axis.input.is_multiple_of(axis.stride)
        };
        let [depth, height, width] = self.axes;
        let last = self.layout == Layout::ChannelsLast && self.weight_layout == Layout::ChannelsLast;
        if !last || self.groups > 1 || !whole(&width) {
            return self;
        }
        let channels = self.channels.saturating_mul(width.kernel);
        let width = Axis::new(width.input / width.stride, 1);
        let axes = match depth == Axis::ONE && whole(&height) {
            true => {
                [Axis::new(height.input / height.stride, 1), Axis::new(height.kernel, height.kernel), width]
            }
            false => [depth, height, width],
        };
        Self { channels, axes, ..self }
    }
}

impl ConvDesc {
    /// The plan in which aligned tensors are multiplied in tiles of `tile`, one of [`tuning::tiles`](crate::conv::tuning::tiles), where
    /// its copies reach the tensors.
    ///
    /// # Errors
    /// As [`plan`](Operation::plan).
    pub fn plan_with(&self, target: Target, tile: Tile) -> Result<Plan<Self>, PlanError> {
        self.plan_choosing(target, Some(tile))
    }

    fn plan_choosing(&self, target: Target, tile: Option<Tile>) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = ConvArgs<'a>;
        self.check()?;
        let conv = &self.conv.folded();
        let sizes = conv.check()?;
        conv.precision.check_target(OP, target)?;
        let mut planner = Planner::new(conv, sizes, target, Args::workspace);
        let Self { scale, bias, residual, activation, .. } = *self;
        let program = Program { scale, bias, residual, activation, ..Program::default() };
        let flag = |there: bool, flag: u32| if there { flag } else { 0 };
        let epilogue = EpilogueArgs {
            beta: 1.0,
            flags: flag(bias, HAS_BIAS) | flag(residual, HAS_C),
            activation: epilogue::code(activation).unwrap_or(0),
            ..EpilogueArgs::NONE
        };
        let variants = planner.variants(tile, |planner| {
            let tensors = Tensors {
                image: Args::x.arg(),
                other: Args::weight.arg(),
                ends: Ends {
                    bias: Args::bias.arg(),
                    scale: scale.then(|| Args::scale.arg()),
                    residual: Args::residual.arg(),
                },
                y: (Args::y, 0),
            };
            match sizes.y {
                0 => Ok(Vec::new()),
                _ => planner.pass(Pass::Forward, tensors, (epilogue.clone(), program)),
            }
        })?;
        let factors = if scale { sums_dtype(conv.dtype) } else { conv.dtype };
        let tensors = Args::specs([
            Args::x.holds(conv.dtype, sizes.x),
            Args::weight.holds(conv.dtype, sizes.weight),
            Args::scale.holds(factors, conv.filters).optional(scale),
            Args::bias.holds(factors, conv.filters).optional(bias),
            Args::residual.holds(conv.dtype, sizes.y).optional(residual),
            Args::y.holds(conv.dtype, sizes.y),
            planner.scratch(),
        ]);
        Ok(Plan::of(OP, Direction::Forward, target, tensors, variants))
    }
}

impl Operation for ConvDesc {
    type Args<'a> = ConvArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.plan_choosing(target, None)
    }
}

impl ConvBackwardDesc {
    /// The plan in which aligned tensors are multiplied in tiles of `tile`, one of [`tuning::tiles`](crate::conv::tuning::tiles), where
    /// its copies reach the tensors.
    ///
    /// # Errors
    /// As [`plan`](Operation::plan).
    pub fn plan_with(&self, target: Target, tile: Tile) -> Result<Plan<Self>, PlanError> {
        self.plan_choosing(target, Some(tile))
    }

    fn plan_choosing(&self, target: Target, tile: Option<Tile>) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = ConvBackwardArgs<'a>;
        self.conv.check()?;
        let conv = &self.conv.folded();
        let sizes = conv.check()?;
        conv.precision.check_target(OP, target)?;
        let mut planner = Planner::new(conv, sizes, target, Args::workspace);
        let sums = (EpilogueArgs::NONE, Program::default());
        let variants = planner.variants(tile, |planner| {
            let dy = || Args::dy.arg();
            let mut steps = Vec::new();
            if self.dx && sizes.x > 0 {
                let other = Args::weight.arg();
                let tensors = Tensors { image: dy(), other, ends: Ends::none(), y: (Args::dx, 0) };
                steps.extend(planner.pass(Pass::BackwardX, tensors, sums.clone())?);
            }
            if self.dweight {
                let tensors =
                    Tensors { image: Args::x.arg(), other: dy(), ends: Ends::none(), y: (Args::dweight, 0) };
                steps.extend(planner.pass(Pass::BackwardWeight, tensors, sums.clone())?);
            }
            if self.dbias {
                steps.extend(planner.bias(dy(), Args::dbias.arg())?);
            }
            Ok(steps)
        })?;
        let tensors = Args::specs([
            Args::x.holds(conv.dtype, sizes.x).optional(self.dweight),
            Args::weight.holds(conv.dtype, sizes.weight).optional(self.dx),
            Args::dy.holds(conv.dtype, sizes.y),
            Args::dx.holds(conv.dtype, sizes.x).optional(self.dx),
            Args::dweight.holds(conv.dtype, sizes.weight).optional(self.dweight),
            Args::dbias.holds(conv.dtype, conv.filters).optional(self.dbias),
            planner.scratch(),
        ]);
        Ok(Plan::of(OP, Direction::Backward, target, tensors, variants))
    }
}

impl Operation for ConvBackwardDesc {
    type Args<'a> = ConvBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.plan_choosing(target, None)
    }
}
