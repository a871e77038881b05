//! Recurrent nets over sequences: LSTM, GRU and the plain cell, forward and backward.
//!
//! For each step, with `x` the input, `h` and `c` the state before:
//!
//! ```text
//! LSTM   i, f, o = sigmoid(W_ih x + b_ih + W_hh h + b_hh)      g = tanh(the same)
//!        c' = f c + i g                                        h' = o tanh(c'), with a projection W_hr (o tanh(c'))
//! GRU    r, z = sigmoid(W_ih x + b_ih + W_hh h + b_hh)         n = tanh(W_in x + b_in + r (W_hn h + b_hn))
//!        h' = (1 - z) n + z h
//! RNN    h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu of it
//! ```
//!
//! Gates lie in the order i, f, g, o or r, z, n along the rows of the weights `[gates hidden, input]` and `[gates hidden, hidden]`
//! and of the biases, as in PyTorch and cuDNN. A projection `W_hr [projection, hidden]` makes hidden states of `projection`
//! elements; `W_hh` is `[gates hidden, projection]` then. Below, `output` is the elements of a hidden state. Sources: Hochreiter
//! and Schmidhuber 1997 with the forget gate of Gers et al. 2000; Sak et al. 2014; Cho et al. 2014, with the reset gate behind
//! the product.
//!
//! Sequences are `[steps, batch, ..]` or `[batch, steps, ..]`. With `directions = 2` a second pass reads them from their ends,
//! and a place of `y` has the units of both. Layers read the `y` of the layer before. With `lengths`, sequence `b` has the
//! first `lengths[b]` places: `y` is zero beyond, the last state is that of the last place, and the second direction begins
//! there. What `x` and `dy` hold beyond does not matter to results; for the gradients of the weights it must be finite. Kernels cut
//! lengths to what is from 0 to the places that there are; [`check_lengths`] finds such on the host.
//!
//! With `dropout`, elements of what a layer gives are zero at random for the next one, and the others are multiplied by `1 / (1 -
//! dropout)`. Which are depends on `random`, a seed and an offset, on the layer, the place, the sequence and the element; a
//! backward pass that is given the same numbers drops the same ones.
//!
//! The products of the inputs of all steps are one matrix product whose sums stay in `f32`; what a unit hands to its own next
//! step (`c`, or what z keeps of `h`) stays in `f32` for the whole sequence (`f64` for `f64`). The hidden state of a step is
//! rounded to the element type before the recurrent weights multiply it, as in `y`.
//!
//! A single step of up to four sequences, of rows of whole 16 bytes, is one launch that reads every weight once; in 16 bits, on
//! tensor cores (sm_80 and later), one of up to 16, or of up to 64 where there are no more than 1024 units.
//!
//! With [`Precision::Tf32`] products of `f32` are those of factors rounded to `tf32`, forward and backward, wherever there are kernels that
//! are faster for it: the inputs of all places, gradients over all places, projections, single steps that are no launch of their own, and
//! steps in one launch of many sequences. The rest is as exact as without.
//!
//! Where the recurrent weights fit the registers of the multiprocessors, all steps of a pass are one launch, either way
//! ([`tuning::Schedule`]); it needs a device with as many multiprocessors as the grid has blocks, and refuses others before it is
//! launched.
//!
//! # The reserve
//!
//! A forward pass for training writes what the backward pass starts from into a tensor of the type of sums (`f64` for `f64`,
//! else `f32`). For each layer and direction, in the order of the weights: the activated gates `[row][gates][hidden]`; then, but
//! for the plain cell, `[row][hidden]`: `c` after the step (LSTM) or `W_hn h + b_hn` (GRU). A row is a place of a sequence, in
//! the order of `x`. Then, for every layer but the last, its `y` in the element type. Each part begins at a multiple of 16 bytes.
//! The backward pass does not change it.

mod backward;
mod cell;
mod cell_functions;
mod cluster;
mod drops;
mod epilogue;
mod exchange;
mod few;
mod forward;
mod functions;
mod launches;
mod once;
mod packed;
mod persistent;
mod pointwise;
mod projection;
pub mod reference;
mod saved;
mod single;
mod staged;
mod sums;
mod sweep;
mod tagged;
pub mod tuning;
mod walk;

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use crate::catalogue::{Direction, Entry, TARGETS};
use crate::gemm::Precision;
use crate::plan::{self, Operation, Plan, Real};
use crate::tensors::{InSlot, Slot, SlotSpec, tensors};
use crate::{Dropout, PlanError};

pub use cell::Cell;
pub use cell_functions::*;
pub use functions::*;
use launches::{Arena, Place};
pub use single::*;
use tuning::{PersistentConfig, Schedule};
use walk::{Flag, Flags, WalkArgs};

/// The biases of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Biases {
    /// None.
    #[default]
    Absent,
    /// `b_ih` alone.
    One,
    /// `b_ih` and `b_hh`.
    Two,
}

/// A recurrent net over sequences.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecurrentDesc {
    /// What a unit computes.
    pub cell: Cell,
    /// Element type of all tensors but `lengths` and the reserve.
    pub dtype: DType,
    /// Places of a sequence, at least 1.
    pub steps: usize,
    /// Sequences.
    pub batch: usize,
    /// Elements of an input, at least 1.
    pub input: usize,
    /// Units of a layer and direction, at least 1.
    pub hidden: usize,
    /// Elements that the hidden states of an LSTM are projected to, at most `hidden`; 0 if they are not.
    pub projection: usize,
    /// Layers, at least 1.
    pub layers: usize,
    /// 1, or 2 for a second one that reads sequences from their ends.
    pub directions: usize,
    /// Whether tensors are `[batch, steps, ..]`.
    pub batch_first: bool,
    /// Which biases there are.
    pub biases: Biases,
    /// Whether there is an `h0`; else it is zero.
    pub h0: bool,
    /// Whether there is a `c0`; else it is zero. [`Cell::Lstm`] alone has one.
    pub c0: bool,
    /// Whether sequences have lengths of their own.
    pub lengths: bool,
    /// Whether a reserve is written.
    pub training: bool,
    /// The probability that an element is dropped between two layers; then there are `random` numbers.
    pub dropout: Option<Real>,
    /// How exact products are; [`Precision::Tf32`] is for `f32`.
    pub precision: Precision,
}

tensors! {
    /// The weights of a layer and direction.
    #[derive(Clone, Copy)]
    pub struct WeightRefs<'a> {
        /// `[gates hidden, input]`; the inputs of later layers have `directions output` elements.
        w_ih: In,
        /// `[gates hidden, output]`
        w_hh: In,
        /// `[projection, hidden]`
        w_hr: Option<In>,
        /// `[gates hidden]`
        b_ih: Option<In>,
        /// `[gates hidden]`
        b_hh: Option<In>,
    }
}

tensors! {
    /// Tensors of [`RecurrentDesc`].
    pub struct RecurrentArgs<'a> {
        /// `[steps, batch, input]`
        x: In,
        /// `[batch]`, i32; below 0 counts as 0, more than `steps` as `steps`.
        lengths: Option<In>,
        /// `[layers directions, batch, output]`
        h0: Option<In>,
        /// `[layers directions, batch, hidden]`
        c0: Option<In>,
        /// Seed and offset of what is dropped, `[2]`, i64.
        random: Option<In>,
        /// The hidden state of the last layer at every place, `[steps, batch, directions output]`.
        y: Out,
        /// The hidden states of the last steps, `[layers directions, batch, output]`.
        h_n: Out,
        /// The cells of the last steps, `[layers directions, batch, hidden]`; of [`Cell::Lstm`].
        c_n: Option<Out>,
        /// What the backward pass needs.
        reserve: Option<Out>,
        /// Scratch memory.
        workspace: Option<Out>,
        /// Of each direction of each layer.
        weights: Each<WeightRefs>,
    }
}

/// The gradients of [`RecurrentDesc`], whose `training` must be set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecurrentBackwardDesc {
    /// The forward pass.
    pub forward: RecurrentDesc,
    /// Whether `y` has a gradient.
    pub dy: bool,
    /// Whether `h_n` has one.
    pub dh_n: bool,
    /// Whether `c_n` has one.
    pub dc_n: bool,
    /// Whether that of `x` is wanted. Those of `h0` and `c0` are wherever there are such tensors.
    pub dx: bool,
}

tensors! {
    /// The weights of a layer and direction, and what becomes their gradients.
    pub struct WeightGradients<'a> {
        /// As in the forward pass.
        w_ih: In,
        /// As in the forward pass.
        w_hh: In,
        /// As in the forward pass.
        w_hr: Option<In>,
        /// The gradient of `w_ih`.
        dw_ih: Out,
        /// The gradient of `w_hh`.
        dw_hh: Out,
        /// The gradient of `w_hr`.
        dw_hr: Option<Out>,
        /// The gradient of `b_ih`.
        db_ih: Option<Out>,
        /// The gradient of `b_hh`.
        db_hh: Option<Out>,
    }
}

tensors! {
    /// Tensors of [`RecurrentBackwardDesc`].
    pub struct RecurrentBackwardArgs<'a> {
        /// As in the forward pass.
        x: In,
        /// As in the forward pass.
        lengths: Option<In>,
        /// As in the forward pass.
        h0: Option<In>,
        /// As in the forward pass.
        c0: Option<In>,
        /// As in the forward pass.
        random: Option<In>,
        /// What the forward pass gave.
        y: In,
        /// What the forward pass left.
        reserve: In,
        /// The gradient of `y`.
        dy: Option<In>,
        /// The gradient of `h_n`.
        dh_n: Option<In>,
        /// The gradient of `c_n`.
        dc_n: Option<In>,
        /// The gradient of `x`.
        dx: Option<Out>,
        /// The gradient of `h0`.
        dh0: Option<Out>,
        /// The gradient of `c0`.
        dc0: Option<Out>,
        /// Scratch memory.
        workspace: Option<Out>,
        /// Of each direction of each layer.
        weights: Each<WeightGradients>,
    }
}

/// What parts of memory are aligned to.
const WIDE: u64 = 16;

impl Operation for RecurrentDesc {
    type Args<'a> = RecurrentArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.plan_with(target, self.schedule(target))
    }
}

impl RecurrentDesc {
    /// One layer that reads `[steps, batch, input]` forward, with two biases, from a state of zeros.
    pub const fn new(cell: Cell, dtype: DType, [steps, batch, input, hidden]: [usize; 4]) -> Self {
        Self {
            cell,
            dtype,
            steps,
            batch,
            input,
            hidden,
            projection: 0,
            layers: 1,
            directions: 1,
            batch_first: false,
            biases: Biases::Two,
            h0: false,
            c0: false,
            lengths: false,
            training: false,
            dropout: None,
            precision: Precision::Full,
        }
    }

    /// What tuning gives.
    pub fn schedule(&self, target: Target) -> Schedule {
        if self.projection > 0 { Schedule::Stepwise } else { tuning::choose(self, target) }
    }

    /// The plan with a schedule of the caller's choice.
    ///
    /// # Errors
    /// As [`Operation::plan`]; [`PlanError::Parameter`] if the persistent kernel does not take the sequence.
    pub fn plan_with(&self, target: Target, schedule: Schedule) -> Result<Plan<Self>, PlanError> {
        forward::plan(self, target, schedule, self.op())
    }

    /// The element type and the elements of the reserve.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn reserve(&self) -> Result<(DType, usize), PlanError> {
        self.check(self.op())?;
        let len = if self.batch == 0 {
            0
        } else {
            self.reserve_parts(RecurrentArgs::reserve).len(sums_of(self.dtype))
        };
        Ok((sums_of(self.dtype), len))
    }

    fn op(&self) -> &'static str {
        self.cell.op()
    }

    /// Places of all sequences.
    const fn rows(&self) -> usize {
        self.steps * self.batch
    }

    /// Elements of the sums of a place.
    const fn wide(&self) -> usize {
        self.cell.gates() * self.hidden
    }

    /// Elements of a hidden state of a sequence.
    const fn output(&self) -> usize {
        if self.projection == 0 { self.hidden } else { self.projection }
    }

    /// Elements of the hidden states of a layer and direction.
    const fn state(&self) -> usize {
        self.batch * self.output()
    }

    /// Units of all sequences of a layer and direction.
    const fn units(&self) -> usize {
        self.batch * self.hidden
    }

    /// Directions of all layers.
    const fn passes(&self) -> usize {
        self.layers * self.directions
    }

    /// Elements of a place of the result of a layer.
    const fn result(&self) -> usize {
        self.directions * self.output()
    }

    /// Elements of a place of the input of a layer.
    const fn input_of(&self, layer: usize) -> usize {
        if layer == 0 { self.input } else { self.result() }
    }

    /// Rows from a place to the next, and from a sequence to the next.
    fn row_strides(&self) -> [u32; 2] {
        if self.batch_first { [1, small(self.steps)] } else { [small(self.batch), 1] }
    }

    fn check(&self, op: &'static str) -> Result<(), PlanError> {
        if !DType::FLOATS.contains(&self.dtype) {
            let (got, expected) = (self.dtype, &DType::FLOATS);
            return Err(PlanError::DType { op, tensor: "x", got, expected });
        }
        self.precision.check(op, self.dtype)?;
        let sizes =
            [("steps", self.steps), ("input", self.input), ("hidden", self.hidden), ("layers", self.layers)];
        for (name, size) in sizes {
            if size == 0 {
                return Err(refuse(op, name, size, "at least 1"));
            }
        }
        if !(1..=2).contains(&self.directions) {
            return Err(refuse(op, "directions", self.directions, "1 or 2"));
        }
        if self.layers > MOST_LAYERS {
            return Err(refuse(op, "layers", self.layers, "at most 1024"));
        }
        if self.c0 && !self.cell.has_c() {
            return Err(refuse(op, "c0", true, "false: only an LSTM has cells"));
        }
        if self.projection > 0 && !self.cell.has_c() {
            return Err(refuse(op, "projection", self.projection, "0: only an LSTM projects"));
        }
        if self.projection > self.hidden {
            return Err(refuse(op, "projection", self.projection, "at most hidden"));
        }
        if let Some(probability) = self.dropout {
            Dropout::constants(op, probability.get())?;
        }
        let small = |a: usize, b: usize| {
            let len = a.checked_mul(b).and_then(|ab| ab.checked_mul(4));
            len.is_some_and(|len| i32::try_from(len).is_ok())
        };
        if !small(self.batch, self.hidden) {
            let expected = "such that a step has less than 2^31 gates";
            return Err(refuse(op, "batch x hidden", self.batch, expected));
        }
        let widest = self.hidden.saturating_mul(self.directions).max(self.input);
        if !small(self.hidden, widest) {
            let expected = "such that the weights have less than 2^31 elements";
            return Err(refuse(op, "hidden", self.hidden, expected));
        }
        let rows = self.steps.checked_mul(self.batch.max(1));
        let wide = rows.and_then(|rows| rows.checked_mul(widest.max(4 * self.hidden)));
        // Even the largest net has less than 2^62 bytes of everything.
        match rows {
            Some(rows) if i32::try_from(rows).is_ok() && wide.is_some_and(|len| len < 1 << 44) => Ok(()),
            _ => Err(refuse(op, "steps x batch", self.steps, "less than 2^31")),
        }
    }

    /// The tensors that both directions of a net read.
    fn inputs(&self, [x, lengths, h0, c0, random]: [InSlot; 5]) -> [SlotSpec; 5] {
        let (states, cells) = (self.passes() * self.state(), self.passes() * self.units());
        [
            x.holds(self.dtype, self.rows() * self.input),
            lengths.holds(DType::I32, self.batch).optional(self.lengths),
            h0.holds(self.dtype, states).optional(self.h0),
            c0.holds(self.dtype, cells).optional(self.c0),
            random.holds(DType::I64, 2).optional(self.dropout.is_some()),
        ]
    }

    /// The flags of both passes of direction `direction`.
    fn flags(&self, direction: usize) -> Flags {
        Flags::default()
            .with(Flag::BIh, self.biases != Biases::Absent)
            .with(Flag::BHh, self.biases == Biases::Two)
            .with(Flag::H0, self.h0)
            .with(Flag::C0, self.c0)
            .with(Flag::Lengths, self.lengths)
            .with(Flag::Reverse, direction == 1)
    }

    /// How a pass with these flags goes through the sequences.
    fn walk(&self, flags: Flags) -> WalkArgs {
        let [row_step, row_batch] = self.row_strides();
        WalkArgs { steps: small(self.steps), row_step, row_batch, y_row: small(self.result()), flags }
    }

    /// The reserve in the tensor at `slot`.
    fn reserve_parts(&self, slot: impl Into<Slot>) -> Reserve {
        let sums = sums_of(self.dtype);
        let mut arena = Arena::new(slot);
        let mut passes = Vec::new();
        for _ in 0..self.passes() {
            let gates = arena.take(self.rows() * self.wide(), sums);
            let extra = if self.cell.carries() { self.rows() * self.hidden } else { 0 };
            passes.push((gates, arena.take(extra, sums)));
        }
        let between = |_| arena.take(self.rows() * self.result(), self.dtype);
        let between = (1..self.layers).map(between).collect();
        Reserve { passes, between, bytes: arena.bytes }
    }
}

/// Layers of a net.
const MOST_LAYERS: usize = 1024;

/// What a forward pass leaves for the backward one.
struct Reserve {
    /// Gates, and what else there is of each direction of each layer.
    passes: Vec<(Place, Place)>,
    /// The results of all layers but the last.
    between: Vec<Place>,
    bytes: u64,
}

impl Reserve {
    /// Elements of `dtype`.
    fn len(&self, dtype: DType) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX) / dtype.bytes()
    }
}

/// The type of sums and cells.
fn sums_of(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Checks how many of the `steps` places of each sequence count.
///
/// # Errors
/// Names the first number that does not fit.
pub fn check_lengths(op: &'static str, lengths: &[i32], steps: usize) -> Result<(), PlanError> {
    let fits = |length: i32| usize::try_from(length).is_ok_and(|length| length <= steps);
    match lengths.iter().position(|length| !fits(*length)) {
        Some(at) => {
            let got = format!("{} at {at}", lengths[at]);
            Err(refuse(op, "lengths", got, "from 0 to the places of a sequence"))
        }
        None => Ok(()),
    }
}

fn refuse(
    op: &'static str,
    parameter: &'static str,
    got: impl ToString,
    expected: &'static str,
) -> PlanError {
    PlanError::Parameter { op, parameter, got: got.to_string(), expected }
}

fn small(x: usize) -> u32 {
    u32::try_from(x).unwrap_or(u32::MAX)
}

impl Operation for RecurrentBackwardDesc {
    type Args<'a> = RecurrentBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.plan_with(target, self.schedule(target))
    }
}

impl RecurrentBackwardDesc {
    /// What tuning gives.
    pub fn schedule(&self, target: Target) -> Schedule {
        let net = &self.forward;
        if net.projection > 0 { Schedule::Stepwise } else { tuning::choose_backward(net, target) }
    }

    /// The plan with a schedule of the caller's choice.
    ///
    /// # Errors
    /// As [`Operation::plan`]; [`PlanError::Parameter`] if the persistent kernel does not take the sequence.
    pub fn plan_with(&self, target: Target, schedule: Schedule) -> Result<Plan<Self>, PlanError> {
        backward::plan(self, target, schedule, self.forward.op())
    }
}

/// The names of the primitives.
const NAMES: [&str; 6] = ["lstm", "gru", "rnn", "lstm_cell", "gru_cell", "rnn_cell"];

/// The family's rows of the catalogue.
pub(crate) fn entries() -> Vec<Entry> {
    let of = |direction| NAMES.map(|op| Entry { op, direction, dtypes: &DType::FLOATS, targets: &TARGETS });
    [of(Direction::Forward), of(Direction::Backward)].concat()
}

/// Sizes that the persistent kernels of the catalogue are for: they know theirs.
const SAMPLES: [(usize, usize); 11] = [
    (1, 512),
    (16, 256),
    (16, 768),
    (32, 1024),
    (3, 32),
    (1, 1024),
    (64, 1024),
    (32, 2048),
    (64, 128),
    (64, 256),
    (4, 512),
];

/// Nets of these sizes.
fn samples(cell: Cell, dtype: DType, target: Target) -> impl Iterator<Item = RecurrentDesc> {
    Precision::of(dtype, target).iter().flat_map(move |&precision| {
        let of = move |(batch, hidden)| RecurrentDesc::new(cell, dtype, [2, batch, hidden, hidden]);
        SAMPLES.into_iter().map(of).map(move |desc| RecurrentDesc { precision, ..desc })
    })
}

/// The persistent kernel that a net has to itself.
fn persistent(desc: &RecurrentDesc, schedule: Schedule) -> Option<PersistentConfig> {
    match schedule {
        Schedule::Persistent(config) => Some(config)
            .filter(|config| desc.precision == Precision::Full || config.exchange.rounds(desc.precision)),
        Schedule::Stepwise => None,
    }
}

/// Every kernel that a plan can hold but those of products; the persistent ones, which know their sizes, for a few of them.
pub(crate) fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let op = entry.op;
    let mut all = Vec::new();
    for cell in Cell::ALL.into_iter().filter(|cell| cell.op() == op || cell.cell_op() == op) {
        if entry.direction == Direction::Backward {
            all.push(plan::recorded(op, &pointwise::Backward { cell, dtype, projected: false }, target)?);
            all.push(plan::recorded(op, &pointwise::Start { cell, dtype }, target)?);
            for desc in samples(cell, dtype, target).filter(|_| cell.op() == op) {
                if let Some(config) = persistent(&desc, tuning::choose_backward(&desc, target)) {
                    if config.exchange == tuning::Exchange::Tags {
                        all.push(plan::recorded(op, &tagged::Begin { dtype }, target)?);
                    }
                    all.push(plan::recorded(op, &backward::sweep(&desc, config), target)?);
                }
            }
            continue;
        }
        let step = pointwise::Forward { cell, dtype, first: true, projected: false };
        all.push(plan::recorded(op, &step, target)?);
        for batch in [1, 2, 3, few::MOST_BATCH as u32] {
            if !once::Once::takes(dtype, batch as usize, 1, target) {
                all.push(plan::recorded(op, &few::Few { cell, dtype, batch }, target)?);
            }
        }
        for tiles in once::Once::TILES {
            if once::Once::takes(dtype, 1, 1, target) {
                all.push(plan::recorded(op, &once::Once { cell, dtype, tiles }, target)?);
            }
        }
        if cell.cell_op() == op {
            continue;
        }
        all.push(plan::recorded(op, &pointwise::Forward { first: false, ..step }, target)?);
        for desc in samples(cell, dtype, target) {
            if let Some(config) = persistent(&desc, desc.schedule(target)) {
                if config.exchange == tuning::Exchange::Tags {
                    all.push(plan::recorded(op, &tagged::Begin { dtype }, target)?);
                }
                all.push(plan::recorded(op, &forward::sequence(&desc, config), target)?);
            }
        }
    }
    if entry.direction == Direction::Backward && op == NAMES[0] {
        all.push(plan::recorded(op, &sums::Round { dtype }, target)?);
        all.push(plan::recorded(op, &sums::Columns { dtype }, target)?);
    }
    if op == NAMES[0] {
        for of_sums in [false, true] {
            all.push(plan::recorded(op, &drops::Drop { dtype, of_sums }, target)?);
        }
        all.extend(projected(entry.direction, dtype, target)?);
    }
    Ok(all)
}

/// The kernels of an LSTM with a projection.
fn projected(direction: Direction, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let (cell, op) = (Cell::Lstm, NAMES[0]);
    if direction == Direction::Backward {
        let step = pointwise::Backward { cell, dtype, projected: true };
        let project = projection::Backward { dtype };
        return Ok(vec![plan::recorded(op, &step, target)?, plan::recorded(op, &project, target)?]);
    }
    let step = |first| pointwise::Forward { cell, dtype, first, projected: true };
    Ok(vec![
        plan::recorded(op, &step(true), target)?,
        plan::recorded(op, &step(false), target)?,
        plan::recorded(op, &projection::Forward { dtype }, target)?,
    ])
}
