//! The time step of a sequence that a step of a pass has to do with.

use warpwright_dsl::args::{ArgInfo, Argument, DTypes};
use warpwright_dsl::prelude::*;
use warpwright_dsl::{ArgValue, kernel_args};

/// A property of a launch: an optional tensor that it has, or how it goes through the sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flag {
    /// `b_ih` is given.
    BIh,
    /// `b_hh` is given.
    BHh,
    /// `h0` is given; of gradients, `dh0` is wanted.
    H0,
    /// `c0` is given; of gradients, `dc0` is wanted.
    C0,
    /// `lengths` are given.
    Lengths,
    /// Sequences are read from their ends.
    Reverse,
    /// The state that the backward pass starts from is saved.
    Training,
    /// `y` is written.
    Y,
    /// The state has been multiplied with the recurrent weights.
    Recurrent,
    /// `dy` is given.
    Dy,
    /// `dh_n` is given.
    DhN,
    /// `dc_n` is given.
    DcN,
}

/// The [`Flag`]s of a launch: one `u32` parameter, a bit for each. In `build` it is a [`FlagsParam`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags(u32);

impl Flags {
    /// The same with `flag` if it is `given`.
    pub(super) const fn with(self, flag: Flag, given: bool) -> Self {
        Self(self.0 | (given as u32) << flag as u32)
    }

    /// The same without `flag` unless it is `wanted`.
    pub(super) const fn only_if(self, flag: Flag, wanted: bool) -> Self {
        Self(self.0 & !((!wanted as u32) << flag as u32))
    }
}

/// The handle of [`Flags`].
#[derive(Clone, Copy, Debug)]
pub(super) struct FlagsParam<'k>(U32<'k>);

impl<'k> FlagsParam<'k> {
    /// Whether the launch has `flag`.
    pub(super) fn has(self, flag: Flag) -> Pred<'k> {
        (self.0 & (1 << flag as u32)).ne(0)
    }
}

impl Argument for Flags {
    type Param<'k> = FlagsParam<'k>;

    fn describe(path: &str, all: &mut Vec<ArgInfo>) {
        u32::describe(path, all);
    }

    fn pass(&self, values: &mut Vec<ArgValue>) {
        self.0.pass(values);
    }

    fn declare<'k>(k: K<'k>, path: &str, dtypes: &DTypes) -> Self::Param<'k> {
        FlagsParam(u32::declare(k, path, dtypes))
    }
}

kernel_args! {
    /// How a pass goes through the rows of sequences.
    pub(super) struct WalkArgs => WalkParams {
        /// Time steps of the longest sequence.
        steps: u32,
        /// Rows from a time step to the next, and from a sequence to the next.
        row_step: u32, row_batch: u32,
        /// Elements of a row of `y`.
        y_row: u32,
        flags: Flags,
    }
}

/// A pass over sequences: step `s` of a sequence of `length` time steps has to do with time step `s`, or with `length - 1 - s`
/// where they are read from their ends. Time steps from `length` on are those of the steps that a sequence does not have.
#[derive(Clone, Copy)]
pub(super) struct Walk<'k> {
    lengths: Ptr<'k, Read, i32>,
    params: WalkParams<'k>,
}

impl<'k> WalkParams<'k> {
    /// The pass over sequences of these lengths.
    pub(super) const fn over(self, lengths: Ptr<'k, Read, i32>) -> Walk<'k> {
        Walk { lengths, params: self }
    }
}

/// Time steps of sequence `batch`, which is one of them if `there`, of `steps` at most.
pub(super) fn length_of<'k>(
    lengths: Ptr<'k, Read, i32>,
    (steps, flags): (U32<'k>, FlagsParam<'k>),
    batch: U32<'k>,
    there: Pred<'k>,
) -> U32<'k> {
    let given = flags.has(Flag::Lengths);
    let length = lengths.at(batch).only_where(there & given, Fill::Zero).get::<i32>();
    given.select(length.max(0).to_u32().min(steps), steps)
}

impl<'k> Walk<'k> {
    /// Whether the launch has `flag`.
    pub(super) fn has(&self, flag: Flag) -> Pred<'k> {
        self.params.flags.has(flag)
    }

    /// Time steps of sequence `batch`, which is one of them if `there`.
    pub(super) fn length(&self, batch: U32<'k>, there: Pred<'k>) -> U32<'k> {
        length_of(self.lengths, (self.params.steps, self.params.flags), batch, there)
    }

    /// The row of step `step` of sequence `batch`.
    pub(super) fn row(&self, step: U32<'k>, batch: U32<'k>, length: U32<'k>) -> U64<'k> {
        let turned = self.has(Flag::Reverse) & step.lt(length);
        let time = turned.select(length - 1 - step, step);
        (time * self.params.row_step + batch * self.params.row_batch).to_u64()
    }

    /// The place of element `element` of a row of `y`.
    pub(super) fn in_y(&self, row: U64<'k>, element: U32<'k>) -> U64<'k> {
        row * self.params.y_row.to_u64() + element.to_u64()
    }
}
