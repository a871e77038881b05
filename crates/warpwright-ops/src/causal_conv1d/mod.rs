//! Causal depthwise convolution along time with filters of 2 to 4 taps, as Mamba (Gu and Dao 2023, arXiv:2312.00752) has it in front of
//! its scan. Forward, backward, and steps of a few positions.
//!
//! `x` is `[batch, channels, len]` with channels first, `[batch, len, channels]` with channels last; the states, `width - 1` positions of
//! every channel, lie in the same order. `weight` is `[channels, width]`, its last tap that of the position itself, `bias` `[channels]`.
//!
//! `y[l] = act(bias + sum_i weight[i] x[l - width + 1 + i])`, `act` nothing or `silu`. Before the first position are the initial states, or
//! zeros. The final states are the last `width - 1` positions of initial states and `x` together.
//!
//! With `sequences`, `seq_idx` (`[batch, len]`, i32) has the number of the sequence of each position: a tap counts where its position has
//! the number of the result's, and where that is negative `y` is 0. There are no states then.
//!
//! Backward takes the forward inputs and computes the sums again. Sums are in f32, f64 for f64, in an order that depends on the shape
//! alone; half types are rounded once.
//!
//! Source: <https://github.com/Dao-AILab/causal-conv1d>, of which the definition is taken.

mod functions;
mod kernels;
pub mod reference;
pub(crate) mod samples;
pub mod tuning;

use warpwright_dsl::{KernelDef, Optional};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use crate::PlanError;
pub use crate::batch_norm::Layout;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, Variant};
use crate::tensors::{InSlot, SlotSpec, tensors};

pub use functions::*;
use kernels::{BackwardArgs, Config, ForwardArgs, ParameterArgs, Parameters, Problem, lines, walk};
use tuning::Work;

/// The name in the catalogue.
const OP: &str = "causal_conv1d";
/// That of steps.
const UPDATE: &str = "causal_conv1d_update";

/// Taps that filters may have.
pub const WIDTHS: std::ops::RangeInclusive<usize> = 2..=4;

/// A filter over the channels of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CausalConv1d {
    /// Element type of all tensors.
    pub dtype: DType,
    /// Where the channels are.
    pub layout: Layout,
    /// Samples.
    pub batch: usize,
    /// Channels.
    pub channels: usize,
    /// Positions of a sample.
    pub len: usize,
    /// Taps, 2 to 4.
    pub width: usize,
    /// Whether there is a bias; without, it is 0.
    pub bias: bool,
    /// Whether `silu` follows.
    pub silu: bool,
}

/// The convolution of whole samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CausalConv1dDesc {
    /// Filter and samples.
    pub conv: CausalConv1d,
    /// Whether states precede the samples.
    pub initial_states: bool,
    /// Whether the last positions are wanted.
    pub final_states: bool,
    /// Whether positions belong to sequences; not together with states.
    pub sequences: bool,
    /// Elements from one position of `x` to the next where its channels are innermost and its rows are parts of longer ones; without, they are
    /// the channels. All other tensors are without gaps.
    pub position_stride: Option<usize>,
}

tensors! {
    /// Tensors of [`CausalConv1dDesc`].
    pub struct CausalConv1dArgs<'a> {
        /// The samples.
        x: In,
        /// `[channels, width]`.
        weight: In,
        /// `[channels]`.
        bias: Option<In>,
        /// `width - 1` positions of each channel.
        initial_states: Option<In>,
        /// `[batch, len]`, i32.
        seq_idx: Option<In>,
        /// The result, of the shape of `x`.
        y: Out,
        /// `width - 1` positions of each channel.
        final_states: Option<Out>,
    }
}

/// The gradient of [`CausalConv1dDesc`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CausalConv1dBackwardDesc {
    /// The forward operation.
    pub forward: CausalConv1dDesc,
}

tensors! {
    /// Tensors of [`CausalConv1dBackwardDesc`].
    pub struct CausalConv1dBackwardArgs<'a> {
        /// The forward input.
        x: In,
        /// `[channels, width]`.
        weight: In,
        /// `[channels]`.
        bias: Option<In>,
        /// The forward input.
        initial_states: Option<In>,
        /// The forward input.
        seq_idx: Option<In>,
        /// Gradient of the result, of the shape of `x`.
        dy: In,
        /// Gradient of the final states, where forward has them.
        dfinal_states: Option<In>,
        /// Gradient of `x`, of its shape.
        dx: Out,
        /// Gradient of `weight`.
        dweight: Out,
        /// Gradient of `bias`, where there is one.
        dbias: Option<Out>,
        /// Gradient of the initial states, where there are any.
        dinitial_states: Option<Out>,
        /// Of [`Plan::workspace_bytes`].
        workspace: Option<Out>,
    }
}

/// A step: the convolution of a few positions behind the states, which become the last positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CausalConv1dUpdateDesc {
    /// Filter and samples.
    pub conv: CausalConv1d,
}

tensors! {
    /// Tensors of [`CausalConv1dUpdateDesc`].
    pub struct CausalConv1dUpdateArgs<'a> {
        /// The new positions.
        x: In,
        /// `[channels, width]`.
        weight: In,
        /// `[channels]`.
        bias: Option<In>,
        /// `width - 1` positions of each channel.
        states: InOut,
        /// The result, of the shape of `x`.
        y: Out,
    }
}

/// Elements of a sample, of its states and of the sums of a share at most.
const MAX_SAMPLE: usize = 1 << 31;

/// Bytes at multiples of which the tensors of vectors begin.
const ALIGNMENT: u64 = 16;

/// A filter and samples whose sizes are in order.
struct Checked {
    op: &'static str,
    conv: CausalConv1d,
    target: Target,
    /// Elements of `x`, of the weight, and of the states.
    elements: [usize; 3],
    /// Elements from one position of `x` to the next, where channels are innermost.
    position_stride: usize,
}

/// How the shares of a sample are made and handed out.
#[derive(Clone, Copy)]
struct Shares {
    /// Shares of a sample.
    items: usize,
    /// Shares of a block.
    of_block: u32,
    /// Positions of a share.
    run: u32,
}

impl CausalConv1d {
    fn check(&self, op: &'static str, target: Target) -> Result<Checked, PlanError> {
        let Self { dtype, batch, channels, len, width, .. } = *self;
        PlanError::check_floats(op, "x", dtype)?;
        if !WIDTHS.contains(&width) {
            return Err(PlanError::refused(op, "width", width, "from 2 to 4"));
        }
        if channels.checked_mul(len.max(width + 1)).is_none_or(|n| n > MAX_SAMPLE) {
            let expected = "so few that a sample and its states have at most 2^31 elements";
            return Err(PlanError::refused(op, "channels", channels, expected));
        }
        let all = channels.max(1) * len.max(width);
        if batch > u32::MAX as usize || batch.checked_mul(all).and_then(|n| n.checked_mul(8)).is_none() {
            let expected = "so few that the bytes of a tensor can be counted";
            return Err(PlanError::refused(op, "batch", batch, expected));
        }
        let elements = [batch * channels * len, channels * width, batch * channels * (width - 1)];
        Ok(Checked { op, conv: *self, target, elements, position_stride: channels })
    }
}

impl CausalConv1dDesc {
    fn check(&self, target: Target) -> Result<Checked, PlanError> {
        let mut checked = self.conv.check(OP, target)?;
        if let Some(stride) = self.position_stride {
            let CausalConv1d { layout, batch, channels, len, .. } = self.conv;
            let refuse = |expected| PlanError::refused(OP, "position_stride", stride, expected);
            if layout != Layout::ChannelsLast {
                return Err(refuse("given where channels are innermost alone"));
            }
            if stride < channels {
                return Err(refuse("at least the channels"));
            }
            let sample = stride.checked_mul(len.max(1)).filter(|n| *n <= MAX_SAMPLE);
            if sample.and_then(|n| n.checked_mul(batch.max(1))).and_then(|n| n.checked_mul(8)).is_none() {
                return Err(refuse("so small that a sample has at most 2^31 elements"));
            }
            checked.position_stride = stride;
        }
        let states = self.initial_states || self.final_states;
        if states && self.sequences {
            return Err(PlanError::refused(OP, "sequences", true, "false where there are states"));
        }
        if states && self.conv.len == 0 {
            return Err(PlanError::refused(OP, "len", 0, "at least 1 where there are states"));
        }
        Ok(checked)
    }
}

impl Operation for CausalConv1dDesc {
    type Args<'a> = CausalConv1dArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = CausalConv1dArgs<'a>;
        let checked = self.check(target)?;
        let CausalConv1d { dtype, layout, channels, len, .. } = self.conv;
        let [x, weight, states] = checked.elements;
        let y = Args::y.holds(dtype, x);
        let tensors = Args::specs([
            Args::x.holds(dtype, checked.span()),
            Args::weight.holds(dtype, weight),
            Args::bias.holds(dtype, channels).optional(self.conv.bias),
            Args::initial_states.holds(dtype, states).optional(self.initial_states),
            Args::seq_idx.holds(DType::I32, self.conv.batch * len).optional(self.sequences),
            if checked.span() == x { y.like(Args::x) } else { y },
            Args::final_states.holds(dtype, states).optional(self.final_states),
        ]);
        let variants = checked.variants(self.sequences, Direction::Forward, |config| {
            let shares = checked.shares(&config, Direction::Forward);
            let initial = (Args::initial_states, self.initial_states);
            let slots = (Args::x, Args::weight, Args::bias, Args::seq_idx);
            let last = Optional { value: Args::final_states.arg(), given: self.final_states };
            let problem = checked.problem(slots, initial, shares);
            let args = ForwardArgs { problem, y: Args::y.arg(), last };
            match layout {
                Layout::ChannelsFirst => checked.step(&lines::Forward(config), args, shares),
                Layout::ChannelsLast => checked.step(&walk::Forward(config), args, shares),
            }
        })?;
        Ok(Plan::of(OP, Direction::Forward, target, tensors, variants))
    }
}

impl Operation for CausalConv1dUpdateDesc {
    type Args<'a> = CausalConv1dUpdateArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = CausalConv1dUpdateArgs<'a>;
        let checked = self.conv.check(UPDATE, target)?;
        let CausalConv1d { dtype, layout, channels, len, .. } = self.conv;
        if len == 0 {
            return Err(PlanError::refused(UPDATE, "len", 0, "at least 1"));
        }
        let [x, weight, states] = checked.elements;
        let tensors = Args::specs([
            Args::x.holds(dtype, x),
            Args::weight.holds(dtype, weight),
            Args::bias.holds(dtype, channels).optional(self.conv.bias),
            Args::states.holds(dtype, states),
            Args::y.holds(dtype, x).like(Args::x),
        ]);
        let step = |config: Config| {
            // One thread has all positions of its channels, or states would be overwritten that others still read.
            let items = channels.div_ceil(config.vector as usize);
            let shares = Shares { items, of_block: tuning::THREADS, run: plan::small(len) };
            let slots = (Args::x, Args::weight, Args::bias, Args::x);
            let problem = checked.problem(slots, (Args::states.before(), true), shares);
            let last = Optional { value: Args::states.after().arg(), given: true };
            checked.step(&walk::Forward(config), ForwardArgs { problem, y: Args::y.arg(), last }, shares)
        };
        let variants = match layout {
            Layout::ChannelsLast => checked.variants(false, Direction::Forward, step)?,
            Layout::ChannelsFirst => {
                let config =
                    Config { vector: 1, aligned: false, ..checked.config(false, Direction::Forward) };
                vec![Variant { alignment: 1, steps: step(config)?.into_iter().collect() }]
            }
        };
        Ok(Plan::of(UPDATE, Direction::Forward, target, tensors, variants))
    }
}

impl Operation for CausalConv1dBackwardDesc {
    type Args<'a> = CausalConv1dBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = CausalConv1dBackwardArgs<'a>;
        let CausalConv1dDesc { conv, initial_states, final_states, sequences, .. } = self.forward;
        let checked = self.forward.check(target)?;
        let CausalConv1d { dtype, layout, batch, channels, len, width, bias, .. } = conv;
        let [x, weight, states] = checked.elements;
        let config = checked.config(sequences, Direction::Backward);
        let shares = checked.shares(&config, Direction::Backward);
        // Shares of the positions of a sample, each with a row of sums.
        let runs = len.div_ceil(shares.run as usize);
        let columns = channels * (width + 1);
        let rows = batch.checked_mul(runs).and_then(|rows| u32::try_from(rows).ok());
        let sums = rows.and_then(|rows| (rows as usize).checked_mul(columns));
        let (Some(rows), Some(sums)) = (rows, sums) else {
            let expected = "so few that the bytes of a tensor can be counted";
            return Err(PlanError::refused(OP, "batch", batch, expected));
        };
        let like_x = |spec: SlotSpec| if checked.span() == x { spec.like(Args::x) } else { spec };
        let tensors = Args::specs([
            Args::x.holds(dtype, checked.span()),
            Args::weight.holds(dtype, weight),
            Args::bias.holds(dtype, channels).optional(bias),
            Args::initial_states.holds(dtype, states).optional(initial_states),
            Args::seq_idx.holds(DType::I32, batch * len).optional(sequences),
            like_x(Args::dy.holds(dtype, x)),
            Args::dfinal_states.holds(dtype, states).optional(final_states),
            like_x(Args::dx.holds(dtype, x)),
            Args::dweight.holds(dtype, weight),
            Args::dbias.holds(dtype, channels).optional(bias),
            Args::dinitial_states.holds(dtype, states).optional(initial_states),
            Args::workspace.scratch(dtype.accumulator(), sums),
        ]);
        let parameters = ParameterArgs {
            sums: Args::workspace.written(),
            dweight: Args::dweight.arg(),
            dbias: Optional { value: Args::dbias.arg(), given: bias },
            rows,
            channels: plan::small(channels),
            width: plan::small(width),
        };
        let parameters = plan::launch_column_sums(OP, &Parameters { dtype }, parameters, target, columns)?;
        let mut variants = checked.variants(sequences, Direction::Backward, |config| {
            let slots = (Args::x, Args::weight, Args::bias, Args::seq_idx);
            let args = BackwardArgs {
                problem: checked.problem(slots, (Args::initial_states, initial_states), shares),
                dy: Args::dy.arg(),
                dlast: Optional { value: Args::dfinal_states.arg(), given: final_states },
                dx: Args::dx.arg(),
                dinitial: Optional { value: Args::dinitial_states.arg(), given: initial_states },
                sums: Args::workspace.arg(),
            };
            match layout {
                Layout::ChannelsFirst => checked.step(&lines::Backward(config), args, shares),
                Layout::ChannelsLast => checked.step(&walk::Backward(config), args, shares),
            }
        })?;
        for variant in &mut variants {
            variant.steps.extend(parameters.clone());
        }
        Ok(Plan::of(OP, Direction::Backward, target, tensors, variants))
    }
}

impl Checked {
    /// Elements from the first of `x` to the last.
    fn span(&self) -> usize {
        let CausalConv1d { batch, channels, len, .. } = self.conv;
        match self.elements[0] {
            0 => 0,
            x if self.conv.layout == Layout::ChannelsFirst => x,
            _ => (batch * len - 1) * self.position_stride + channels,
        }
    }

    fn config(&self, sequences: bool, direction: Direction) -> Config {
        let CausalConv1d { dtype, layout, width, silu, .. } = self.conv;
        let vector = tuning::vector(dtype, layout, direction);
        Config { dtype, layout, width: plan::small(width), silu, sequences, vector, aligned: true }
    }

    /// Plans for vectors, if the innermost dimension is a multiple of them, and for elements.
    fn variants(
        &self,
        sequences: bool,
        direction: Direction,
        step: impl Fn(Config) -> Result<Option<LaunchStep>, PlanError>,
    ) -> Result<Vec<Variant>, PlanError> {
        let config = self.config(sequences, direction);
        let innermost = match self.conv.layout {
            Layout::ChannelsFirst => self.conv.len,
            Layout::ChannelsLast => self.conv.channels,
        };
        let vector = config.vector as usize;
        let aligned = innermost.is_multiple_of(vector)
            && (self.conv.layout == Layout::ChannelsFirst || self.position_stride.is_multiple_of(vector));
        let all = [(aligned, ALIGNMENT), (true, 1)].into_iter().filter(|(possible, _)| *possible);
        all.map(|(_, alignment)| {
            let step = step(Config { aligned: alignment > 1, ..config })?;
            Ok(Variant { alignment, steps: step.into_iter().collect() })
        })
        .collect()
    }

    fn shares(&self, config: &Config, direction: Direction) -> Shares {
        let CausalConv1d { layout, batch, channels, len, .. } = self.conv;
        let v = config.vector as usize;
        match (layout, direction) {
            (Layout::ChannelsFirst, Direction::Forward) => {
                let items = channels * len.div_ceil(v);
                Shares { items, of_block: tuning::THREADS, run: config.vector }
            }
            (Layout::ChannelsFirst, Direction::Backward) => {
                let run = tuning::lines(Work { batch, of_run: channels, len }, self.target, config.vector);
                Shares { items: channels * len.div_ceil(run as usize), of_block: lines::WARPS, run }
            }
            (Layout::ChannelsLast, _) => {
                let of_run = channels.div_ceil(v);
                let run = tuning::walk(Work { batch, of_run, len }, self.target, direction);
                Shares { items: of_run * len.div_ceil(run as usize), of_block: tuning::THREADS, run }
            }
        }
    }

    fn problem(
        &self,
        (x, weight, bias, ids): (InSlot, InSlot, InSlot, InSlot),
        (initial, given): (InSlot, bool),
        shares: Shares,
    ) -> Problem {
        Problem {
            x: x.arg(),
            weight: weight.arg(),
            bias: Optional { value: bias.arg(), given: self.conv.bias },
            initial: Optional { value: initial.arg(), given },
            ids: ids.arg(),
            channels: plan::small(self.conv.channels),
            len: plan::small(self.conv.len),
            items: plan::small(shares.items),
            tiles: plan::small(shares.items).div_ceil(shares.of_block),
            run: shares.run,
            position_stride: plan::small(self.position_stride),
        }
    }

    /// A launch, if there is anything to do.
    fn step<D: KernelDef>(
        &self,
        def: &D,
        args: D::Args,
        shares: Shares,
    ) -> Result<Option<LaunchStep>, PlanError> {
        let tiles = shares.items.div_ceil(shares.of_block as usize);
        let grid = plan::cover(self.op, self.conv.batch.saturating_mul(tiles), 1)?;
        plan::launch_over(self.op, def, args, self.target, grid)
    }
}
