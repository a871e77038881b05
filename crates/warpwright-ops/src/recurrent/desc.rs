//! Descriptors of nets, their sizes, and what they refuse.

use warpwright_ptx::{DType, Target};

use super::plan::{Reserve, backward, forward};
use super::tuning::{self, Schedule};
use super::walk::{Flag, Flags, WalkArgs};
use super::{Cell, RecurrentArgs, RecurrentBackwardArgs, sums_of};
use crate::gemm::Precision;
use crate::plan::small;
use crate::plan::{Operation, Plan, Real};
use crate::tensors::{InSlot, SlotSpec};
use crate::{Dropout, PlanError};

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
    /// The cell.
    pub cell: Cell,
    /// Element type of all tensors but `lengths` and the reserve.
    pub dtype: DType,
    /// Time steps of a sequence, at least 1.
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
    /// The biases.
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

/// Layers of a net.
const MOST_LAYERS: usize = 1024;

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

    /// The schedule that tuning chooses.
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
            Reserve::of(self, RecurrentArgs::reserve).len(sums_of(self.dtype))
        };
        Ok((sums_of(self.dtype), len))
    }

    pub(super) fn op(&self) -> &'static str {
        self.cell.op()
    }

    /// Time steps of all sequences.
    pub(super) const fn rows(&self) -> usize {
        self.steps * self.batch
    }

    /// Gates of all units.
    pub(super) const fn wide(&self) -> usize {
        self.cell.gates() * self.hidden
    }

    /// Elements of a hidden state of a sequence: the projection, or the units without one.
    pub const fn output(&self) -> usize {
        if self.projection == 0 { self.hidden } else { self.projection }
    }

    /// Elements of the hidden states of a layer and direction.
    pub(super) const fn state(&self) -> usize {
        self.batch * self.output()
    }

    /// Units of all sequences of a layer and direction.
    pub(super) const fn units(&self) -> usize {
        self.batch * self.hidden
    }

    /// Directions of all layers: the first extent of a state.
    pub const fn passes(&self) -> usize {
        self.layers * self.directions
    }

    /// Elements of a row of the result of a layer: a hidden state of each direction.
    pub const fn result(&self) -> usize {
        self.directions * self.output()
    }

    /// Elements of a row of the input of a layer.
    pub(super) const fn input_of(&self, layer: usize) -> usize {
        if layer == 0 { self.input } else { self.result() }
    }

    /// Rows from a time step to the next, and from a sequence to the next.
    pub(super) fn row_strides(&self) -> [u32; 2] {
        if self.batch_first { [1, small(self.steps)] } else { [small(self.batch), 1] }
    }

    pub(super) fn check(&self, op: &'static str) -> Result<(), PlanError> {
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
    pub(super) fn inputs(&self, [x, lengths, h0, c0, random]: [InSlot; 5]) -> [SlotSpec; 5] {
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
    pub(super) fn flags(&self, direction: usize) -> Flags {
        Flags::default()
            .with(Flag::BIh, self.biases != Biases::Absent)
            .with(Flag::BHh, self.biases == Biases::Two)
            .with(Flag::H0, self.h0)
            .with(Flag::C0, self.c0)
            .with(Flag::Lengths, self.lengths)
            .with(Flag::Reverse, direction == 1)
    }

    /// How a pass with these flags goes through the sequences.
    pub(super) fn walk(&self, flags: Flags) -> WalkArgs {
        let [row_step, row_batch] = self.row_strides();
        WalkArgs { steps: small(self.steps), row_step, row_batch, y_row: small(self.result()), flags }
    }
}

/// Checks how many of the `steps` time steps of each sequence count.
///
/// # Errors
/// Names the first number that does not fit.
pub fn check_lengths(op: &'static str, lengths: &[i32], steps: usize) -> Result<(), PlanError> {
    let fits = |length: i32| usize::try_from(length).is_ok_and(|length| length <= steps);
    match lengths.iter().position(|length| !fits(*length)) {
        Some(at) => {
            let got = format!("{} at {at}", lengths[at]);
            Err(refuse(op, "lengths", got, "from 0 to the time steps of a sequence"))
        }
        None => Ok(()),
    }
}

pub(super) fn refuse(
    op: &'static str,
    parameter: &'static str,
    got: impl ToString,
    expected: &'static str,
) -> PlanError {
    PlanError::Parameter { op, parameter, got: got.to_string(), expected }
}

impl Operation for RecurrentBackwardDesc {
    type Args<'a> = RecurrentBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.plan_with(target, self.schedule(target))
    }
}

impl RecurrentBackwardDesc {
    /// The schedule that tuning chooses.
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
