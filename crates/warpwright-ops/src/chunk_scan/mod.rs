//! The scan of state spaces whose decay all numbers of a head's state share, as Mamba 2 has it (state space duality, Dao and Gu 2024,
//! arXiv:2405.21060). Forward and backward, by products on tensor cores over chunks of positions.
//!
//! `x` is `[batch, len, heads, head_dim]`, the time steps `dt` are `[batch, len, heads]`, `B` and `C` `[batch, len, groups, state]`, each group
//! with as many neighbouring heads as the others; their positions may lie further apart than that, as those of parts of a tensor do. `A`, `D`
//! and `dt_bias` are `[heads]`, and states `[batch, heads, head_dim, state]`, of f32.
//!
//! With `s[t] = softplus(dt[t] + dt_bias)`, or without `softplus`, a head's state goes `h[t] = exp(s[t] A) h[t - 1] + s[t] x[t] B[t]^T` from the
//! initial state or 0 on, and `y[t] = h[t] C[t] + D x[t]`.
//!
//! The states before chunks of [`tuning::CHUNK`] positions and the weights of pairs of positions are rounded to the type of `x`, as operands of products are;
//! sums are in f32, in an order that depends on the shape alone. Backward takes the states before chunks that forward saved. An infinity or a NaN
//! spreads to results and gradients of all positions of its chunk, not only of those behind it: weights of 0 are multiplied by it.
//!
//! Source: <https://github.com/state-spaces/mamba>, `mamba_chunk_scan_combined`, of which the definition is taken.

mod functions;
mod kernels;
pub mod reference;
pub(crate) mod samples;
pub mod tuning;

use warpwright_dsl::{KernelArgs, KernelDef, Optional, Out, WARP};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, Variant};
use crate::tensors::{InSlot, SlotSpec, tensors};

pub use functions::*;
use kernels::gradients::{GradientArgs, Gradients, OF_CHUNK, OF_POSITION};
use kernels::outputs::{OutputArgs, Outputs};
use kernels::states::{StateArgs, States};
use kernels::step_gradients::{PARAMETERS, StepGradientArgs, StepGradients};
use kernels::steps::{self, Prepare, PrepareArgs, TimeArgs};
use kernels::sums::{ParameterArgs, Parameters, RowSumArgs, RowSums};
use kernels::{Config, Rows, Sizes, Steps};

/// The name in the catalogue.
const OP: &str = "chunk_scan";

/// Elements that a head may have.
pub const HEAD_DIMS: std::ops::RangeInclusive<usize> = 1..=128;
/// Numbers that the state of an element may have.
pub const STATES: std::ops::RangeInclusive<usize> = 1..=256;
/// Element types.
pub const DTYPES: [DType; 2] = [DType::F16, DType::BF16];
/// The first architecture with its products.
const NEEDS_SM: u32 = 80;

/// A scan over the heads of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkScan {
    /// Element type of `x`, `dt`, `B`, `C` and the result: f16 or bf16.
    pub dtype: DType,
    /// Samples.
    pub batch: usize,
    /// Positions of a sample.
    pub len: usize,
    /// Heads.
    pub heads: usize,
    /// Elements of a head, 1 to 128.
    pub head_dim: usize,
    /// Numbers in the state of an element, 1 to 256.
    pub state: usize,
    /// Groups of heads, each with rows of `B` and `C`.
    pub groups: usize,
    /// Elements from one position to the next, of samples without gaps between them.
    pub strides: PositionStrides,
    /// Whether there is a `D`; without, it is 0.
    pub d: bool,
    /// Whether there is a bias of the time steps.
    pub dt_bias: bool,
    /// Whether time steps go through `softplus`.
    pub dt_softplus: bool,
}

/// Elements from one position to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PositionStrides {
    /// Of `x`.
    pub x: usize,
    /// Of the time steps.
    pub dt: usize,
    /// Of `B`.
    pub b: usize,
    /// Of `C`.
    pub c: usize,
}

impl ChunkScan {
    /// A scan over tensors without gaps, with neither `D`, bias nor `softplus`.
    pub const fn new(
        dtype: DType,
        [batch, len, heads, head_dim]: [usize; 4],
        [groups, state]: [usize; 2],
    ) -> Self {
        let rows = groups.saturating_mul(state);
        let strides = PositionStrides { x: heads.saturating_mul(head_dim), dt: heads, b: rows, c: rows };
        Self {
            dtype,
            batch,
            len,
            heads,
            head_dim,
            state,
            groups,
            strides,
            d: false,
            dt_bias: false,
            dt_softplus: false,
        }
    }
}

/// The scan of whole samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkScanDesc {
    /// Scan and samples.
    pub scan: ChunkScan,
    /// Whether a state precedes the samples.
    pub initial_state: bool,
    /// Whether the state behind the last position is wanted.
    pub last_state: bool,
    /// Whether states are saved for the gradient.
    pub training: bool,
}

tensors! {
    /// Tensors of [`ChunkScanDesc`].
    pub struct ChunkScanArgs<'a> {
        /// The samples.
        x: In,
        /// Time steps.
        dt: In,
        /// `[heads]`, of f32.
        a: In,
        /// A row of `state` for each position and group.
        b: In,
        /// The same.
        c: In,
        /// `[heads]`, of f32.
        d: Option<In>,
        /// `[heads]`, of f32.
        dt_bias: Option<In>,
        /// `[batch, heads, head_dim, state]`, of f32.
        initial_state: Option<In>,
        /// The result, `[batch, len, heads, head_dim]`.
        y: Out,
        /// `[batch, heads, head_dim, state]`, of f32.
        last_state: Option<Out>,
        /// `[batch, chunks, heads, head_dim, state]`: what backward takes.
        states: Option<Out>,
        /// Of [`Plan::workspace_bytes`].
        workspace: Option<Out>,
    }
}

/// The gradient of [`ChunkScanDesc`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkScanBackwardDesc {
    /// The forward operation. What it saves, backward takes.
    pub forward: ChunkScanDesc,
}

tensors! {
    /// Tensors of [`ChunkScanBackwardDesc`]; gradients have no gaps.
    pub struct ChunkScanBackwardArgs<'a> {
        /// The forward input.
        x: In,
        /// The forward input.
        dt: In,
        /// The forward input.
        a: In,
        /// The forward input.
        b: In,
        /// The forward input.
        c: In,
        /// The forward input.
        d: Option<In>,
        /// The forward input.
        dt_bias: Option<In>,
        /// Those that forward saved.
        states: In,
        /// Gradient of the result.
        dy: In,
        /// Gradient of the last state, where forward has it.
        dlast_state: Option<In>,
        /// Gradient of `x`.
        dx: Out,
        /// Gradient of the time steps.
        ddt: Out,
        /// Gradient of `a`.
        da: Out,
        /// Gradient of `b`.
        db: Out,
        /// Gradient of `c`.
        dc: Out,
        /// Gradient of `d`, where there is one.
        dd: Option<Out>,
        /// Gradient of the bias, where there is one.
        ddt_bias: Option<Out>,
        /// Gradient of the initial state, where there is one.
        dinitial_state: Option<Out>,
        /// Of [`Plan::workspace_bytes`].
        workspace: Option<Out>,
    }
}

/// Bytes at multiples of which the tensors of vectors begin, and parts of the workspace.
const ALIGNMENT: u64 = 16;
/// Positions of all heads, and blocks.
const MAX_COUNT: usize = 1 << 31;

/// A scan whose sizes are in order.
struct Checked {
    scan: ChunkScan,
    target: Target,
    chunks: usize,
    /// Positions of all heads, in whole chunks.
    positions: usize,
    /// Elements of states behind samples, and of those before all chunks.
    of_samples: usize,
    of_chunks: usize,
    /// Blocks that share the heads of a group.
    parts: usize,
}

/// Parts of a workspace, one behind the other.
#[derive(Default)]
struct Regions {
    bytes: u64,
}

impl Regions {
    /// Where so many elements of `size` bytes begin.
    fn take(&mut self, elements: usize, size: usize) -> u64 {
        let at = self.bytes;
        self.bytes += (elements as u64 * size as u64).next_multiple_of(ALIGNMENT);
        at
    }

    /// All of them.
    fn words(&self) -> usize {
        (self.bytes / 4) as usize
    }
}

impl ChunkScan {
    /// Chunks of a sample.
    pub const fn chunks(&self) -> usize {
        self.len.div_ceil(tuning::CHUNK as usize)
    }

    fn check(&self, target: Target) -> Result<Checked, PlanError> {
        let Self { dtype, batch, len, heads, head_dim, state, groups, strides, .. } = *self;
        let refuse = |parameter, got: usize, expected| Err(PlanError::refused(OP, parameter, got, expected));
        if !DTYPES.contains(&dtype) {
            return Err(PlanError::DType { op: OP, tensor: "x", got: dtype, expected: &DTYPES });
        }
        if !HEAD_DIMS.contains(&head_dim) {
            return refuse("head_dim", head_dim, "from 1 to 128");
        }
        if !STATES.contains(&state) {
            return refuse("state", state, "from 1 to 256");
        }
        if groups == 0 || !heads.is_multiple_of(groups) {
            return refuse("groups", groups, "a divisor of the heads");
        }
        let widths = [
            ("stride of x", strides.x, heads.saturating_mul(head_dim)),
            ("stride of dt", strides.dt, heads),
            ("stride of b", strides.b, groups.saturating_mul(state)),
            ("stride of c", strides.c, groups.saturating_mul(state)),
        ];
        for (name, stride, width) in widths {
            if stride < width {
                return refuse(name, stride, "at least the elements of a position");
            }
        }
        let chunks = self.chunks();
        let count = |factors: &[usize]| factors.iter().try_fold(1usize, |n, f| n.checked_mul(*f));
        let positions = count(&[batch, chunks, tuning::CHUNK as usize, heads]);
        let Some(positions) =
            positions.filter(|n| *n <= MAX_COUNT && batch.saturating_mul(heads) <= MAX_COUNT / 4)
        else {
            return refuse("len", len, "such that the positions of all heads are at most 2^31");
        };
        // Bytes of the largest tensors and of the workspace.
        let most = strides.x.max(strides.dt).max(strides.b).max(strides.c);
        let bytes = [[batch, len, most, 64], [batch, chunks, heads, head_dim * state * 16]];
        if bytes.iter().any(|factors| count(factors).is_none()) {
            return refuse("batch", batch, "so few that the bytes of a tensor can be counted");
        }
        if target.sm < NEEDS_SM {
            return Err(PlanError::Target { op: OP, needs: NEEDS_SM, target });
        }
        let of_samples = batch * heads * head_dim * state;
        let parts = (heads / groups).div_ceil(tuning::HEADS as usize);
        Ok(Checked {
            scan: *self,
            target,
            chunks,
            positions,
            of_samples,
            of_chunks: of_samples * chunks,
            parts,
        })
    }
}

/// The places of the inputs of both directions.
type Inputs = [InSlot; 7];

impl Operation for ChunkScanDesc {
    type Args<'a> = ChunkScanArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = ChunkScanArgs<'a>;
        let checked = self.scan.check(target)?;
        let (dtype, sizes) = (self.scan.dtype, checked.sizes());
        let inputs = [Args::x, Args::dt, Args::a, Args::b, Args::c, Args::d, Args::dt_bias];
        let mut regions = Regions::default();
        let (step, sum) = (regions.take(checked.positions, 4), regions.take(checked.positions, 4));
        let scratch = if self.training { 0 } else { checked.of_chunks };
        let states_at = regions.take(scratch, dtype.bytes());
        let tensors = Args::specs(checked.inputs(inputs).into_iter().chain([
            Args::initial_state.holds(DType::F32, checked.of_samples).optional(self.initial_state),
            Args::y.holds(dtype, checked.results()),
            Args::last_state.holds(DType::F32, checked.of_samples).optional(self.last_state),
            Args::states.holds(dtype, checked.of_chunks).optional(self.training),
            Args::workspace.scratch(DType::F32, regions.words()),
        ]));
        let steps = || Steps { step: Args::workspace.written_at(step), sum: Args::workspace.written_at(sum) };
        let prepare = checked.prepare(inputs, [Args::workspace.arg_at(step), Args::workspace.arg_at(sum)])?;
        let variants = checked.variants(|config| {
            let [x, b, c] = checked.rows(inputs);
            let states = StateArgs {
                left: x,
                right: b,
                steps: steps(),
                sizes: sizes.clone(),
                first: Optional { value: Args::initial_state.arg(), given: self.initial_state },
                states: if self.training { Args::states.arg() } else { Args::workspace.arg_at(states_at) },
                last: Optional { value: Args::last_state.arg(), given: self.last_state },
            };
            let [x, b, _] = checked.rows(inputs);
            let outputs = OutputArgs {
                x,
                b,
                c,
                steps: steps(),
                states: match self.training {
                    true => Args::states.written(),
                    false => Args::workspace.written_at(states_at),
                },
                d: Optional { value: Args::d.arg(), given: self.scan.d },
                y: Args::y.arg(),
                sizes: sizes.clone(),
                parts: plan::small(checked.parts),
            };
            let def = Outputs(config);
            let outputs = checked.step(&def, outputs, checked.shares(), def.shared_bytes())?;
            Ok([prepare.clone(), checked.states(config, false, states)?, outputs])
        })?;
        Ok(Plan::of(OP, Direction::Forward, target, tensors, variants))
    }
}

impl Operation for ChunkScanBackwardDesc {
    type Args<'a> = ChunkScanBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = ChunkScanBackwardArgs<'a>;
        let ChunkScanDesc { scan, initial_state, last_state, .. } = self.forward;
        let checked = scan.check(target)?;
        let (dtype, sizes, sums) = (scan.dtype, checked.sizes(), DType::F32);
        let ChunkScan { batch, heads, d, dt_bias, .. } = scan;
        let rows = batch * scan.len * scan.groups * scan.state;
        let (of_chunks, chunk_rows) = (batch * checked.chunks * heads, batch * checked.chunks);
        let inputs = [Args::x, Args::dt, Args::a, Args::b, Args::c, Args::d, Args::dt_bias];
        let mut regions = Regions::default();
        let (step, sum) = (regions.take(checked.positions, 4), regions.take(checked.positions, 4));
        let dstates = regions.take(checked.of_chunks, dtype.bytes());
        let positions = regions.take(checked.positions * OF_POSITION as usize, 4);
        let chunks = regions.take(of_chunks * OF_CHUNK as usize, 4);
        let parameters = regions.take(of_chunks * PARAMETERS as usize, 4);
        let of_rows = regions.take(2 * checked.parts * rows, 4);
        let tensors = Args::specs(checked.inputs(inputs).into_iter().chain([
            Args::states.holds(dtype, checked.of_chunks),
            Args::dy.holds(dtype, checked.results()),
            Args::dlast_state.holds(sums, checked.of_samples).optional(last_state),
            Args::dx.holds(dtype, checked.results()),
            Args::ddt.holds(dtype, batch * scan.len * heads),
            Args::da.holds(sums, heads),
            Args::db.holds(dtype, rows),
            Args::dc.holds(dtype, rows),
            Args::dd.holds(sums, heads).optional(d),
            Args::ddt_bias.holds(sums, heads).optional(dt_bias),
            Args::dinitial_state.holds(sums, checked.of_samples).optional(initial_state),
            Args::workspace.scratch(sums, regions.words()),
        ]));
        let steps = || Steps { step: Args::workspace.written_at(step), sum: Args::workspace.written_at(sum) };
        let prepare = checked.prepare(inputs, [Args::workspace.arg_at(step), Args::workspace.arg_at(sum)])?;
        let of_steps = StepGradientArgs {
            time: checked.time(inputs),
            steps: steps(),
            sizes: sizes.clone(),
            samples: plan::small(batch),
            positions: Args::workspace.written_at(positions),
            chunks: Args::workspace.written_at(chunks),
            ddt: Args::ddt.arg(),
            parameters: Args::workspace.arg_at(parameters),
            of_positions: checked.positions as u64,
            of_chunks: of_chunks as u64,
        };
        let sum_rows = RowSumArgs {
            partial: Args::workspace.written_at(of_rows),
            db: Args::db.arg(),
            dc: Args::dc.arg(),
            parts: plan::small(checked.parts),
            elements: rows as u64,
        };
        let of_parameters = ParameterArgs {
            partial: Args::workspace.written_at(parameters),
            da: Args::da.arg(),
            dd: Optional { value: Args::dd.arg(), given: d },
            dbias: Optional { value: Args::ddt_bias.arg(), given: dt_bias },
            rows: plan::small(chunk_rows),
            heads: plan::small(heads),
        };
        let step_gradients =
            plan::launch_over(OP, &StepGradients { dtype }, of_steps, target, checked.warps()?)?;
        let parameter_gradients =
            plan::launch_column_sums(OP, &Parameters, of_parameters, target, heads * PARAMETERS as usize)?;
        let variants = checked.variants(|config| {
            let [x, b, c] = checked.rows(inputs);
            let dy = || Rows { data: Args::dy.arg(), row: (heads * scan.head_dim) as u64 };
            let states = StateArgs {
                left: dy(),
                right: c.clone(),
                steps: steps(),
                sizes: sizes.clone(),
                first: Optional { value: Args::dlast_state.arg(), given: last_state },
                states: Args::workspace.arg_at(dstates),
                last: Optional { value: Args::dinitial_state.arg(), given: initial_state },
            };
            let gradients = GradientArgs {
                x,
                dy: dy(),
                b,
                c,
                steps: steps(),
                states: Args::states.arg(),
                dstates: Args::workspace.written_at(dstates),
                d: Optional { value: Args::d.arg(), given: d },
                dx: Args::dx.arg(),
                rows: Args::workspace.arg_at(of_rows),
                positions: Args::workspace.arg_at(positions),
                chunks: Args::workspace.arg_at(chunks),
                sizes: sizes.clone(),
                parts: plan::small(checked.parts),
                elements: rows as u64,
                of_positions: checked.positions as u64,
                of_chunks: of_chunks as u64,
            };
            let def = Gradients(config);
            let gradients = checked.step(&def, gradients, checked.shares(), def.shared_bytes())?;
            let width = if config.aligned { RowSums::WIDE } else { 1 };
            let grid = plan::cover(OP, 2 * rows, RowSums::THREADS * width)?;
            let row_sums = plan::launch_over(OP, &RowSums { dtype, width }, sum_rows.clone(), target, grid)?;
            let states = checked.states(config, true, states)?;
            let (of_steps, of_parameters) = (step_gradients.clone(), parameter_gradients.clone());
            Ok([prepare.clone(), states, gradients, of_steps, row_sums, of_parameters])
        })?;
        Ok(Plan::of(OP, Direction::Backward, target, tensors, variants))
    }
}

impl Checked {
    /// Plans for vectors, if rows are whole ones, and for elements.
    fn variants<S: IntoIterator<Item = Option<LaunchStep>>>(
        &self,
        steps: impl Fn(Config) -> Result<S, PlanError>,
    ) -> Result<Vec<Variant>, PlanError> {
        let ChunkScan { dtype, head_dim, state, strides, .. } = self.scan;
        let vector = ALIGNMENT as usize / dtype.bytes();
        let whole = [strides.x, strides.b, strides.c, head_dim, state];
        let aligned = whole.into_iter().all(|elements| elements.is_multiple_of(vector));
        let config = Config { dtype, head: tuning::width(head_dim), state: tuning::width(state), aligned };
        let all = [(aligned, ALIGNMENT), (true, 1)].into_iter().filter(|(possible, _)| *possible);
        all.map(|(_, alignment)| {
            let steps = steps(Config { aligned: alignment > 1, ..config })?;
            Ok(Variant { alignment, steps: steps.into_iter().flatten().collect() })
        })
        .collect()
    }

    /// Elements of the result.
    fn results(&self) -> usize {
        let ChunkScan { batch, len, heads, head_dim, .. } = self.scan;
        batch * len * heads * head_dim
    }

    /// The tensors that both directions read.
    fn inputs(&self, [x, dt, a, b, c, d, dt_bias]: Inputs) -> [SlotSpec; 7] {
        let ChunkScan { dtype, batch, len, heads, head_dim, state, groups, strides, .. } = self.scan;
        let rows = |stride: usize, width: usize| match batch * len * width {
            0 => 0,
            _ => (batch * len - 1) * stride + width,
        };
        [
            x.holds(dtype, rows(strides.x, heads * head_dim)),
            dt.holds(dtype, rows(strides.dt, heads)),
            a.holds(DType::F32, heads),
            b.holds(dtype, rows(strides.b, groups * state)),
            c.holds(dtype, rows(strides.c, groups * state)),
            d.holds(DType::F32, heads).optional(self.scan.d),
            dt_bias.holds(DType::F32, heads).optional(self.scan.dt_bias),
        ]
    }

    fn time(&self, [_, dt, a, .., dt_bias]: Inputs) -> TimeArgs {
        TimeArgs {
            dt: Rows { data: dt.arg(), row: self.scan.strides.dt as u64 },
            a: a.arg(),
            bias: Optional { value: dt_bias.arg(), given: self.scan.dt_bias },
            softplus: u32::from(self.scan.dt_softplus),
        }
    }

    /// `x`, `B` and `C`.
    fn rows(&self, [x, _, _, b, c, ..]: Inputs) -> [Rows; 3] {
        let PositionStrides { x: of_x, b: of_b, c: of_c, .. } = self.scan.strides;
        [(x, of_x), (b, of_b), (c, of_c)].map(|(slot, row)| Rows { data: slot.arg(), row: row as u64 })
    }

    fn sizes(&self) -> Sizes {
        let ChunkScan { len, heads, head_dim, state, groups, .. } = self.scan;
        Sizes {
            len: plan::small(len),
            chunks: plan::small(self.chunks),
            heads: plan::small(heads),
            head_dim: plan::small(head_dim),
            state: plan::small(state),
            groups: plan::small(groups),
            of_group: plan::small(heads / groups),
        }
    }

    /// Blocks of results and gradients.
    fn shares(&self) -> usize {
        self.scan.batch * self.chunks * self.scan.groups * self.parts
    }

    /// Blocks with a warp for each head of each chunk, if there are any.
    fn warps(&self) -> Result<Option<[u32; 3]>, PlanError> {
        plan::cover(OP, self.positions / tuning::CHUNK as usize, steps::THREADS / WARP)
    }

    /// The launch that makes steps and sums of their exponents, if there are any.
    fn prepare(&self, inputs: Inputs, [step, sum]: [Out<f32>; 2]) -> Result<Option<LaunchStep>, PlanError> {
        let ChunkScan { dtype, batch, .. } = self.scan;
        let (time, sizes) = (self.time(inputs), self.sizes());
        let args = PrepareArgs { time, sizes, samples: plan::small(batch), step, sum };
        plan::launch_over(OP, &Prepare { dtype }, args, self.target, self.warps()?)
    }

    /// The launch of a scan over chunks, if there is a state.
    fn states(
        &self,
        config: Config,
        backward: bool,
        args: StateArgs,
    ) -> Result<Option<LaunchStep>, PlanError> {
        let def = States { config, backward };
        let blocks = self.scan.batch * self.scan.heads * def.tiles() as usize;
        self.step(&def, args, blocks, def.shared_bytes())
    }

    /// A launch of so many blocks, if there are any.
    fn step<D: KernelDef>(
        &self,
        def: &D,
        args: D::Args,
        blocks: usize,
        shared: u32,
    ) -> Result<Option<LaunchStep>, PlanError> {
        let kernel = plan::recorded(OP, def, self.target)?;
        let grid = plan::cover(OP, blocks, 1)?;
        grid.map(|grid| plan::launch_step(OP, kernel, grid, args.values(), shared)).transpose()
    }
}
