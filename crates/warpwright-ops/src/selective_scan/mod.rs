//! The scan of selective state spaces, as Mamba (Gu and Dao 2023, arXiv:2312.00752) has it behind its convolution. Forward, backward, and
//! steps of a few positions.
//!
//! `u`, the time steps `delta`, the gate `z` and the result are `[batch, channels, len]` with channels first, `[batch, len, channels]` with
//! channels last; `B` and `C` are `[batch, groups, state, len]` and `[batch, len, groups, state]`, each group with as many neighbouring
//! channels as the others. `A` is `[channels, state]`, `D` and `delta_bias` are `[channels]`, and states `[batch, channels, state]`, of
//! the type of sums.
//!
//! With `s[t] = softplus(delta[t] + delta_bias)`, or without `softplus`, every number of a channel's state goes
//! `h[t] = exp(s[t] A) h[t - 1] + s[t] B[t] u[t]` from the initial state or 0 on, and `y[t] = (C[t] . h[t] + D u[t]) silu(z[t])`.
//!
//! Backward starts from states that forward saved, one for each [chunk](tuning::chunk) of positions, and computes the others again.
//! Sums are in f32, f64 for f64, in an order that depends on the shape alone; half types are rounded once.
//!
//! Source: <https://github.com/state-spaces/mamba>, `selective_scan_fn`, of which the definition is taken.

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
use kernels::backward::{Backward, BackwardArgs};
use kernels::forward::{Forward, ForwardArgs};
use kernels::sums::{ParameterArgs, Parameters, RowSumArgs, RowSums};
use kernels::update::{Update, UpdateArgs};
use kernels::{Config, Problem};

/// The name in the catalogue.
const OP: &str = "selective_scan";
/// That of steps.
const UPDATE: &str = "selective_scan_update";

/// Numbers that the state of a channel may have.
pub const STATES: std::ops::RangeInclusive<usize> = 1..=64;
/// Numbers that it may have in a step.
pub const UPDATE_STATES: std::ops::RangeInclusive<usize> = 1..=256;

/// A scan over the channels of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SelectiveScan {
    /// Element type of `u`, `delta`, `B`, `C`, `z` and the result.
    pub dtype: DType,
    /// Where the channels are.
    pub layout: Layout,
    /// Samples.
    pub batch: usize,
    /// Channels.
    pub channels: usize,
    /// Positions of a sample.
    pub len: usize,
    /// Numbers in the state of a channel, 1 to 64; in steps 1 to 256.
    pub state: usize,
    /// Groups of channels, each with rows of `B` and `C`.
    pub groups: usize,
    /// Whether there is a `D`; without, it is 0.
    pub d: bool,
    /// Whether there is a gate `z`.
    pub gate: bool,
    /// Whether there is a bias of the time steps.
    pub delta_bias: bool,
    /// Whether time steps go through `softplus`.
    pub delta_softplus: bool,
}

/// The scan of whole samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SelectiveScanDesc {
    /// Scan and samples.
    pub scan: SelectiveScan,
    /// Whether a state precedes the samples.
    pub initial_state: bool,
    /// Whether the state behind the last position is wanted.
    pub last_state: bool,
    /// Whether states are saved for the gradient.
    pub training: bool,
}

tensors! {
    /// Tensors of [`SelectiveScanDesc`].
    pub struct SelectiveScanArgs<'a> {
        /// The samples.
        u: In,
        /// Time steps, of the shape of `u`.
        delta: In,
        /// `[channels, state]`, of the type of sums.
        a: In,
        /// A row of `state` for each position and group.
        b: In,
        /// The same.
        c: In,
        /// `[channels]`, of the type of sums.
        d: Option<In>,
        /// The gate, of the shape of `u`.
        z: Option<In>,
        /// `[channels]`, of the type of sums.
        delta_bias: Option<In>,
        /// `[batch, channels, state]`, of the type of sums.
        initial_state: Option<In>,
        /// The result, of the shape of `u`.
        y: Out,
        /// `[batch, channels, state]`, of the type of sums.
        last_state: Option<Out>,
        /// `[batch, chunks, channels, state]`, of the type of sums: what backward takes.
        states: Option<Out>,
    }
}

/// The gradient of [`SelectiveScanDesc`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SelectiveScanBackwardDesc {
    /// The forward operation. What it saves, backward takes.
    pub forward: SelectiveScanDesc,
}

tensors! {
    /// Tensors of [`SelectiveScanBackwardDesc`].
    pub struct SelectiveScanBackwardArgs<'a> {
        /// The forward input.
        u: In,
        /// The forward input.
        delta: In,
        /// The forward input.
        a: In,
        /// The forward input.
        b: In,
        /// The forward input.
        c: In,
        /// The forward input.
        d: Option<In>,
        /// The forward input.
        z: Option<In>,
        /// The forward input.
        delta_bias: Option<In>,
        /// Those that forward saved.
        states: In,
        /// Gradient of the result, of the shape of `u`.
        dy: In,
        /// Gradient of the last state, where forward has it.
        dlast_state: Option<In>,
        /// Gradient of `u`.
        du: Out,
        /// Gradient of the time steps.
        ddelta: Out,
        /// Gradient of `a`.
        da: Out,
        /// Gradient of `b`.
        db: Out,
        /// Gradient of `c`.
        dc: Out,
        /// Gradient of `d`, where there is one.
        dd: Option<Out>,
        /// Gradient of the gate, where there is one.
        dz: Option<Out>,
        /// Gradient of the bias, where there is one.
        ddelta_bias: Option<Out>,
        /// Gradient of the initial state, where there is one.
        dinitial_state: Option<Out>,
        /// Of [`Plan::workspace_bytes`].
        workspace: Option<Out>,
    }
}

/// A step: the scan of a few positions behind the state, which becomes that behind the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SelectiveScanUpdateDesc {
    /// Scan and samples.
    pub scan: SelectiveScan,
}

tensors! {
    /// Tensors of [`SelectiveScanUpdateDesc`].
    pub struct SelectiveScanUpdateArgs<'a> {
        /// The new positions.
        u: In,
        /// Time steps, of the shape of `u`.
        delta: In,
        /// `[channels, state]`, of the type of sums.
        a: In,
        /// A row of `state` for each position and group.
        b: In,
        /// The same.
        c: In,
        /// `[channels]`, of the type of sums.
        d: Option<In>,
        /// The gate, of the shape of `u`.
        z: Option<In>,
        /// `[channels]`, of the type of sums.
        delta_bias: Option<In>,
        /// `[batch, channels, state]`, of the type of sums.
        state: InOut,
        /// The result, of the shape of `u`.
        y: Out,
    }
}

/// Elements of a sample, of its rows and of its states at most.
const MAX_SAMPLE: usize = 1 << 31;

/// Bytes at multiples of which the tensors of vectors begin.
const ALIGNMENT: u64 = 16;

/// A scan whose sizes are in order.
#[derive(Clone, Copy)]
struct Checked {
    op: &'static str,
    scan: SelectiveScan,
    target: Target,
    /// Elements of `u`, of `A`, of `B`, and of the states behind the samples.
    elements: [usize; 4],
    /// States of a sample that are saved.
    chunks: usize,
    /// Blocks of a group.
    tiles: usize,
}

impl SelectiveScan {
    fn check(&self, op: &'static str, target: Target) -> Result<Checked, PlanError> {
        let Self { dtype, batch, channels, len, state, groups, .. } = *self;
        PlanError::check_floats(op, "u", dtype)?;
        let (states, expected) = match op {
            UPDATE => (UPDATE_STATES, "from 1 to 256"),
            _ => (STATES, "from 1 to 64"),
        };
        if !states.contains(&state) {
            return Err(PlanError::refused(op, "state", state, expected));
        }
        if groups == 0 || !channels.is_multiple_of(groups) {
            return Err(PlanError::refused(op, "groups", groups, "a divisor of the channels"));
        }
        let most = |a: usize, b: usize| a.checked_mul(b).is_some_and(|n| n <= MAX_SAMPLE);
        if !most(channels, len.max(state + 2)) || !most(groups.saturating_mul(state), len.max(1)) {
            let expected = "so few that a sample has at most 2^31 elements";
            return Err(PlanError::refused(op, "channels", channels, expected));
        }
        let chunks = len.div_ceil(tuning::chunk(dtype) as usize);
        let of_block = (tuning::THREADS / tuning::lanes(state)) as usize;
        let tiles = (channels / groups).div_ceil(of_block);
        // Of the largest tensors of all samples: those of positions, saved states, and the rows that blocks leave.
        let of_sample = [
            channels * len,
            chunks * channels * state,
            2 * tiles.max(1) * groups * state * len,
            channels * (state + 2),
        ];
        let largest = of_sample.into_iter().fold(1, usize::max);
        if batch > u32::MAX as usize || batch.checked_mul(largest).and_then(|n| n.checked_mul(16)).is_none() {
            let expected = "so few that the bytes of a tensor can be counted";
            return Err(PlanError::refused(op, "batch", batch, expected));
        }
        let (rows, states) = (batch * groups * state * len, batch * channels * state);
        let elements = [batch * channels * len, channels * state, rows, states];
        Ok(Checked { op, scan: *self, target, elements, chunks, tiles })
    }
}

impl Operation for SelectiveScanDesc {
    type Args<'a> = SelectiveScanArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = SelectiveScanArgs<'a>;
        let checked = self.scan.check(OP, target)?;
        let dtype = self.scan.dtype;
        let (sums, [u, .., states]) = (dtype.accumulator(), checked.elements);
        let inputs = [Args::u, Args::delta, Args::a, Args::b, Args::c, Args::d, Args::z, Args::delta_bias];
        let tensors = Args::specs(checked.inputs(inputs).into_iter().chain([
            Args::initial_state.holds(sums, states).optional(self.initial_state),
            Args::y.holds(dtype, u).like(Args::u),
            Args::last_state.holds(sums, states).optional(self.last_state),
            Args::states.holds(sums, states * checked.chunks).optional(self.training),
        ]));
        let variants = checked.variants(|config| {
            let args = ForwardArgs {
                problem: checked.problem(inputs),
                initial: Optional { value: Args::initial_state.arg(), given: self.initial_state },
                y: Args::y.arg(),
                last: Optional { value: Args::last_state.arg(), given: self.last_state },
                states: Optional { value: Args::states.arg(), given: self.training },
            };
            checked.step(&Forward(config), args)
        })?;
        Ok(Plan::of(OP, Direction::Forward, target, tensors, variants))
    }
}

impl Operation for SelectiveScanUpdateDesc {
    type Args<'a> = SelectiveScanUpdateArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = SelectiveScanUpdateArgs<'a>;
        let checked = self.scan.check(UPDATE, target)?;
        let dtype = self.scan.dtype;
        let (sums, [u, .., states]) = (dtype.accumulator(), checked.elements);
        let inputs = [Args::u, Args::delta, Args::a, Args::b, Args::c, Args::d, Args::z, Args::delta_bias];
        let tensors = Args::specs(
            checked
                .inputs(inputs)
                .into_iter()
                .chain([Args::state.holds(sums, states), Args::y.holds(dtype, u).like(Args::u)]),
        );
        let SelectiveScan { layout, channels, len, state, groups, .. } = self.scan;
        let (lanes, vectors) = tuning::update(state);
        // Of one position all layouts are alike.
        let last = layout == Layout::ChannelsLast || len == 1;
        let strides = match last {
            true => [1, channels, groups * state, state, 1],
            false => [len, 1, 1, state * len, len],
        };
        let [of_channel, of_position, of_row, of_rows, of_number] = strides.map(plan::small);
        let whole = last && state.is_multiple_of(tuning::OWN as usize);
        let variants = [(true, ALIGNMENT), (false, 1)].into_iter().filter(|(aligned, _)| whole || !aligned);
        let variants = variants.map(|(aligned, alignment)| {
            let def = Update { dtype, lanes, vectors, aligned };
            let tiles = (channels / groups).div_ceil(def.channels() as usize);
            let args = UpdateArgs {
                problem: Problem { tiles: plan::small(tiles), ..checked.problem(inputs) },
                before: Args::state.before().arg(),
                y: Args::y.arg(),
                after: Args::state.after().arg(),
                of_channel,
                of_position,
                of_row,
                of_rows,
                of_number,
            };
            let step = Checked { tiles, ..checked }.step(&def, args)?;
            Ok(Variant { alignment, steps: step.into_iter().collect() })
        });
        let variants = variants.collect::<Result<Vec<_>, PlanError>>()?;
        Ok(Plan::of(UPDATE, Direction::Forward, target, tensors, variants))
    }
}

impl Operation for SelectiveScanBackwardDesc {
    type Args<'a> = SelectiveScanBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = SelectiveScanBackwardArgs<'a>;
        let SelectiveScanDesc { scan, initial_state, last_state, .. } = self.forward;
        let checked = scan.check(OP, target)?;
        let SelectiveScan { dtype, batch, channels, state, d, gate, delta_bias, .. } = scan;
        let (sums, [u, a, rows, states]) = (dtype.accumulator(), checked.elements);
        // What each block of a group leaves for `B` and `C`, and what each sample leaves for the parameters.
        let (of_rows, of_sample) = (2 * checked.tiles * rows, channels * (state + 2));
        let inputs = [Args::u, Args::delta, Args::a, Args::b, Args::c, Args::d, Args::z, Args::delta_bias];
        let tensors = Args::specs(checked.inputs(inputs).into_iter().chain([
            Args::states.holds(sums, states * checked.chunks),
            Args::dy.holds(dtype, u).like(Args::u),
            Args::dlast_state.holds(sums, states).optional(last_state),
            Args::du.holds(dtype, u).like(Args::u),
            Args::ddelta.holds(dtype, u).like(Args::u),
            Args::da.holds(sums, a),
            Args::db.holds(dtype, rows).like(Args::b),
            Args::dc.holds(dtype, rows).like(Args::b),
            Args::dd.holds(sums, channels).optional(d),
            Args::dz.holds(dtype, u).like(Args::u).optional(gate),
            Args::ddelta_bias.holds(sums, channels).optional(delta_bias),
            Args::dinitial_state.holds(sums, states).optional(initial_state),
            Args::workspace.scratch(sums, of_rows + batch * of_sample),
        ]));
        let parameters_at = (of_rows * sums.bytes()) as u64;
        let row_sums = RowSumArgs {
            partial: Args::workspace.written(),
            db: Args::db.arg(),
            dc: Args::dc.arg(),
            rows: plan::small(checked.tiles),
            elements: rows as u64,
        };
        let parameters = ParameterArgs {
            partial: Args::workspace.written_at(parameters_at),
            da: Args::da.arg(),
            dd: Optional { value: Args::dd.arg(), given: d },
            ddelta_bias: Optional { value: Args::ddelta_bias.arg(), given: delta_bias },
            rows: plan::small(batch),
            channels: plan::small(channels),
            state: plan::small(state),
        };
        let last = [
            plan::launch_column_sums(OP, &RowSums { dtype }, row_sums, target, 2 * rows)?,
            plan::launch_column_sums(OP, &Parameters { dtype: sums }, parameters, target, of_sample)?,
        ];
        let mut variants = checked.variants(|config| {
            let args = BackwardArgs {
                problem: checked.problem(inputs),
                states: Args::states.arg(),
                dy: Args::dy.arg(),
                dlast: Optional { value: Args::dlast_state.arg(), given: last_state },
                du: Args::du.arg(),
                ddelta: Args::ddelta.arg(),
                dz: Optional { value: Args::dz.arg(), given: gate },
                dinitial: Optional { value: Args::dinitial_state.arg(), given: initial_state },
                rows: Args::workspace.arg(),
                parameters: Args::workspace.arg_at(parameters_at),
                elements: rows as u64,
            };
            checked.step(&Backward(config), args)
        })?;
        for variant in &mut variants {
            variant.steps.extend(last.iter().flatten().cloned());
        }
        Ok(Plan::of(OP, Direction::Backward, target, tensors, variants))
    }
}

impl Checked {
    /// Plans for vectors, if the innermost dimension is a multiple of them, and for elements.
    fn variants(
        &self,
        step: impl Fn(Config) -> Result<Option<LaunchStep>, PlanError>,
    ) -> Result<Vec<Variant>, PlanError> {
        let SelectiveScan { dtype, layout, channels, len, state, groups, .. } = self.scan;
        let lanes = tuning::lanes(state);
        let whole = (lanes * tuning::OWN) as usize == state;
        let config = Config { dtype, layout, lanes, whole, aligned: true };
        let innermost = match layout {
            Layout::ChannelsFirst => len,
            Layout::ChannelsLast => channels / groups,
        };
        let aligned = innermost.is_multiple_of(config.vector() as usize);
        let all = [(aligned, ALIGNMENT), (true, 1)].into_iter().filter(|(possible, _)| *possible);
        all.map(|(_, alignment)| {
            let step = step(Config { aligned: alignment > 1, ..config })?;
            Ok(Variant { alignment, steps: step.into_iter().collect() })
        })
        .collect()
    }

    /// The tensors that every scan reads.
    fn inputs(&self, [u, delta, a, b, c, d, z, delta_bias]: [InSlot; 8]) -> [SlotSpec; 8] {
        let SelectiveScan { dtype, channels, .. } = self.scan;
        let (sums, [len, of_a, rows, _]) = (dtype.accumulator(), self.elements);
        [
            u.holds(dtype, len),
            delta.holds(dtype, len).like(u),
            a.holds(sums, of_a),
            b.holds(dtype, rows),
            c.holds(dtype, rows).like(b),
            d.holds(sums, channels).optional(self.scan.d),
            z.holds(dtype, len).like(u).optional(self.scan.gate),
            delta_bias.holds(sums, channels).optional(self.scan.delta_bias),
        ]
    }

    fn problem(&self, [u, delta, a, b, c, d, z, delta_bias]: [InSlot; 8]) -> Problem {
        let SelectiveScan { channels, len, state, groups, .. } = self.scan;
        Problem {
            u: u.arg(),
            delta: delta.arg(),
            a: a.arg(),
            b: b.arg(),
            c: c.arg(),
            d: Optional { value: d.arg(), given: self.scan.d },
            z: Optional { value: z.arg(), given: self.scan.gate },
            delta_bias: Optional { value: delta_bias.arg(), given: self.scan.delta_bias },
            softplus: u32::from(self.scan.delta_softplus),
            channels: plan::small(channels),
            len: plan::small(len),
            state: plan::small(state),
            groups: plan::small(groups),
            of_group: plan::small(channels / groups),
            tiles: plan::small(self.tiles),
        }
    }

    /// A launch for all blocks of all groups, if there are any.
    fn step<D: KernelDef>(&self, def: &D, args: D::Args) -> Result<Option<LaunchStep>, PlanError> {
        let SelectiveScan { batch, groups, .. } = self.scan;
        let grid = plan::cover(self.op, batch.saturating_mul(groups).saturating_mul(self.tiles), 1)?;
        plan::launch_over(self.op, def, args, self.target, grid)
    }
}
