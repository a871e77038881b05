//! The plans of both passes: which launches, and where in memory they work.

pub(super) mod backward;
pub(super) mod forward;
mod launches;

pub(super) use launches::{Arena, Place};

use warpwright_ptx::DType;

use super::tuning::{PersistentConfig, Schedule};
use super::{RecurrentDesc, refuse, sums_of};
use crate::PlanError;
use crate::tensors::{EachSlot, Member, Slot};

/// The parts of a reserve.
pub(super) struct Reserve {
    /// The gates, and what else there is of each direction of each layer.
    passes: Vec<(Place, Place)>,
    /// The results of all layers but the last.
    between: Vec<Place>,
    bytes: u64,
}

impl Reserve {
    /// That of a net in the tensor at `slot`.
    pub(super) fn of(net: &RecurrentDesc, slot: impl Into<Slot>) -> Self {
        let sums = sums_of(net.dtype);
        let mut arena = Arena::new(slot);
        let mut passes = Vec::new();
        for _ in 0..net.passes() {
            let gates = arena.take(net.rows() * net.wide(), sums);
            let extra = if net.cell.carries() { net.rows() * net.hidden } else { 0 };
            passes.push((gates, arena.take(extra, sums)));
        }
        let between = |_| arena.take(net.rows() * net.result(), net.dtype);
        let between = (1..net.layers).map(between).collect();
        Self { passes, between, bytes: arena.bytes }
    }

    /// Elements of `dtype`.
    pub(super) fn len(&self, dtype: DType) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX) / dtype.bytes()
    }
}

/// One direction of one layer.
struct Pass {
    /// The groups of weights, and the number of its own.
    weights: EachSlot,
    index: usize,
    direction: usize,
    /// Elements of a row of the input.
    input: usize,
    x: Place,
    /// The result, from the first unit of the direction on.
    y: Place,
    /// The gradient of `y`, if the pass goes backward and has one.
    dy: Option<Place>,
    /// The gates; in a forward pass products of the inputs first.
    gates: Place,
    extra: Place,
}

impl Pass {
    /// A tensor of the group of the pass.
    fn weight<S: Member + Into<Slot>>(&self, which: S) -> Place {
        Place::of(self.weights.of(self.index, which))
    }
}

/// The kernel of all steps that a schedule names, if it names one; `of` makes it of a configuration that fits.
fn persistent<S>(
    net: &RecurrentDesc,
    op: &'static str,
    schedule: Schedule,
    of: impl FnOnce(PersistentConfig) -> Option<S>,
) -> Result<Option<S>, PlanError> {
    let Schedule::Persistent(config) = schedule else { return Ok(None) };
    match of(config) {
        Some(sequence) => Ok(Some(sequence)),
        None => {
            let got = format!("{schedule:?} for {} x {} of {}", net.batch, net.hidden, net.dtype);
            Err(refuse(op, "schedule", got, "one that tuning gives, or Stepwise"))
        }
    }
}
