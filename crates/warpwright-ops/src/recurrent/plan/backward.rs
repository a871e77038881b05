//! The plan of a backward pass: the steps from the last to the first, then the gradients of weights and inputs as products
//! over all time steps.

use warpwright_ptx::Target;

use super::launches::{Arena, Launches, Place};
use super::{Pass, Reserve, persistent};
use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, PlanParts, Variant};
use crate::recurrent::persistent::Sequence;
use crate::recurrent::persistent::backward::{BackwardPass, SequenceBackwardArgs};
use crate::recurrent::step::pointwise::{Backward, BackwardArgs, Start, StartArgs};
use crate::recurrent::step::projection;
use crate::recurrent::step::saved::SavedArgs;
use crate::recurrent::step::sums::{self, ColumnArgs, Columns, Round, RoundArgs};
use crate::recurrent::tuning::{PersistentConfig, Schedule};
use crate::recurrent::walk::{Flag, Flags, WalkArgs};
use crate::recurrent::{
    Biases, RecurrentBackwardArgs, RecurrentBackwardDesc, RecurrentDesc, WIDE, WeightGradients, refuse,
    small, sums_of,
};

/// Most parts of the rows that columns are summed over.
const PARTS: usize = 64;
/// Fewest rows of a part.
const LEAST_ROWS: usize = 32;

/// Scratch memory.
struct Scratch {
    /// Gradients of the gates' sums on the side of the input.
    dx_gates: Place,
    /// The same on the side of the state; the very same but for [`Cell::Gru`](super::Cell::Gru).
    dh_gates: Place,
    /// Hidden states before the steps; those after them, as they were before their projection.
    before: Place,
    unprojected: Place,
    /// Gradients of projected states: of all time steps and of one. The latter before the projection.
    projected: Place,
    projected_now: Place,
    unprojected_now: Place,
    /// Gradients of the gates' sums of one step.
    now: Place,
    /// The gradient that comes back through the recurrent weights, or the exchange; and the values that pass from step to step.
    recurrent: Place,
    carry: Place,
    /// Sums that are to be rounded: of weights and columns, how many there is room for, and of the input in every direction.
    sums: Place,
    of_weights: usize,
    input_sums: Place,
    /// The gradient of a layer's result.
    dy: Place,
    /// A layer's result after dropout.
    dropped: Place,
    bytes: u64,
}

struct Planner<'d> {
    desc: &'d RecurrentBackwardDesc,
    net: &'d RecurrentDesc,
    scratch: &'d Scratch,
    launches: Launches<'d>,
}

/// The plan of `desc` as primitive `op`; a single step has no `y` beside its state.
pub(in crate::recurrent) fn plan<O: Operation>(
    desc: &RecurrentBackwardDesc,
    target: Target,
    schedule: Schedule,
    op: &'static str,
) -> Result<Plan<O>, PlanError> {
    let net = &desc.forward;
    net.check(op)?;
    net.precision.check_target(op, target)?;
    let has_y = op == net.op();
    if !net.training {
        return Err(refuse(op, "training", false, "true: the forward pass left a reserve"));
    }
    if desc.dc_n && !net.cell.has_c() {
        return Err(refuse(op, "dc_n", true, "false: only an LSTM has cells"));
    }
    let takes = |config: PersistentConfig| net.projection == 0 && config.takes_back(net, target);
    let sequence =
        persistent(net, op, schedule, |config| takes(config).then(|| Sequence::of(net, config)).flatten())?;
    let sequence = sequence.as_ref();
    let reserve = Reserve::of(net, RecurrentBackwardArgs::reserve);
    let scratch = scratch(net, sequence);
    let mut variants = Vec::new();
    for (alignment, sequence) in [(WIDE, sequence), (1, None)] {
        let wide = alignment == WIDE;
        let launches = Launches { net, op, target, wide, steps: Vec::new() };
        let mut planner = Planner { desc, net, scratch: &scratch, launches };
        for layer in (0..net.layers).rev() {
            planner.layer(layer, &reserve, sequence)?;
        }
        variants.push(Variant { alignment, steps: planner.launches.steps });
    }
    let (dtype, projection) = (net.dtype, net.projection);
    let (states, cells) = (net.passes() * net.state(), net.passes() * net.units());
    let sums = sums_of(dtype);
    let len = scratch.bytes as usize / sums.bytes();
    let y = net.rows() * net.result();
    let kept = if net.batch > 0 { reserve.len(sums) } else { 0 };
    let inputs = net.inputs([
        RecurrentBackwardArgs::x,
        RecurrentBackwardArgs::lengths,
        RecurrentBackwardArgs::h0,
        RecurrentBackwardArgs::c0,
        RecurrentBackwardArgs::random,
    ]);
    let others = [
        RecurrentBackwardArgs::y.holds(dtype, y).optional(has_y),
        RecurrentBackwardArgs::reserve.holds(sums, kept),
        RecurrentBackwardArgs::dy.holds(dtype, y).optional(desc.dy),
        RecurrentBackwardArgs::dh_n.holds(dtype, states).optional(desc.dh_n),
        RecurrentBackwardArgs::dc_n.holds(dtype, cells).optional(desc.dc_n),
        RecurrentBackwardArgs::dx.holds(dtype, net.rows() * net.input).optional(desc.dx),
        RecurrentBackwardArgs::dh0.holds(dtype, states).optional(net.h0),
        RecurrentBackwardArgs::dc0.holds(dtype, cells).optional(net.c0),
        RecurrentBackwardArgs::workspace.scratch(sums, len),
    ];
    let weights = (0..net.passes()).flat_map(|pass| {
        let wide = net.wide();
        let (ih, hh) = (wide * net.input_of(pass / net.directions), wide * net.output());
        let hr = projection * net.hidden;
        let of = |slot| RecurrentBackwardArgs::weights.of(pass, slot);
        let gradient = |slot| RecurrentBackwardArgs::weights.of(pass, slot);
        [
            of(WeightGradients::w_ih).holds(dtype, ih),
            of(WeightGradients::w_hh).holds(dtype, hh),
            of(WeightGradients::w_hr).holds(dtype, hr).optional(projection > 0),
            gradient(WeightGradients::dw_ih).holds(dtype, ih),
            gradient(WeightGradients::dw_hh).holds(dtype, hh),
            gradient(WeightGradients::dw_hr).holds(dtype, hr).optional(projection > 0),
            gradient(WeightGradients::db_ih).holds(dtype, wide).optional(net.biases != Biases::Absent),
            gradient(WeightGradients::db_hh).holds(dtype, wide).optional(net.biases == Biases::Two),
        ]
    });
    let tensors = RecurrentBackwardArgs::specs(inputs.into_iter().chain(others).chain(weights));
    let workspace_bytes = (len * sums.bytes()) as u64;
    let direction = Direction::Backward;
    Ok(Plan::new(PlanParts { op, direction, target, tensors, variants, workspace_bytes }))
}

fn scratch(net: &RecurrentDesc, sequence: Option<&Sequence<BackwardPass>>) -> Scratch {
    let (dtype, sums) = (net.dtype, sums_of(net.dtype));
    let mut arena = Arena::new(RecurrentBackwardArgs::workspace);
    let dx_gates = arena.take(net.rows() * net.wide(), dtype);
    let dh_gates = if net.cell.splits() { arena.take(net.rows() * net.wide(), dtype) } else { dx_gates };
    let before = arena.take(net.rows() * net.output(), dtype);
    let projecting = |len: usize| if net.projection > 0 { len } else { 0 };
    let unprojected = arena.take(projecting(net.rows() * net.hidden), dtype);
    let projected = arena.take(projecting(net.rows() * net.output()), dtype);
    let projected_now = arena.take(projecting(net.state()), dtype);
    let unprojected_now = arena.take(projecting(net.units()), sums);
    let now = arena.take(net.batch * net.wide(), dtype);
    let exchange = sequence.map_or(0, |sequence| 2 * sequence.exchange.words() as usize);
    let recurrent = arena.take(net.state().max(exchange), sums);
    let carry = arena.take(net.units(), sums);
    let both = net.result();
    let widest = if net.layers > 1 { both.max(net.input) } else { net.input };
    let of_weights = net.wide() * widest.max(net.hidden).max(PARTS);
    let sums_place = arena.take(of_weights, sums);
    let input_sums = arena.take(net.directions * net.rows() * widest, sums);
    let dy = arena.take(if net.layers > 1 { net.rows() * both } else { 0 }, dtype);
    let dropout = net.dropout.is_some() && net.layers > 1;
    let dropped = arena.take(if dropout { net.rows() * both } else { 0 }, dtype);
    let bytes = arena.bytes;
    Scratch {
        dx_gates,
        dh_gates,
        before,
        unprojected,
        projected,
        projected_now,
        unprojected_now,
        now,
        recurrent,
        carry,
        sums: sums_place,
        of_weights,
        input_sums,
        dy,
        dropped,
        bytes,
    }
}

impl Planner<'_> {
    fn layer(
        &mut self,
        layer: usize,
        reserve: &Reserve,
        sequence: Option<&Sequence<BackwardPass>>,
    ) -> Result<(), PlanError> {
        let net = self.net;
        let input = net.input_of(layer);
        let last = layer + 1 == net.layers;
        let y = reserve.between.get(layer).copied().unwrap_or(Place::of(RecurrentBackwardArgs::y));
        let x = match layer.checked_sub(1) {
            None => Place::of(RecurrentBackwardArgs::x),
            Some(before) if net.dropout.is_some() && net.batch > 0 => {
                let places =
                    [reserve.between[before], self.scratch.dropped, Place::of(RecurrentBackwardArgs::random)];
                self.launches.drop(before, places, None)?;
                self.scratch.dropped
            }
            Some(before) => reserve.between[before],
        };
        let dy = if last { Place::of(RecurrentBackwardArgs::dy) } else { self.scratch.dy };
        let wanted = (layer > 0 || self.desc.dx) && net.batch > 0;
        let sums = sums_of(net.dtype);
        for direction in 0..net.directions {
            let index = layer * net.directions + direction;
            let (gates, extra) = reserve.passes[index];
            let elements = direction * net.output();
            let dy = (!last || self.desc.dy).then_some(dy.after(elements, net.dtype));
            let y = y.after(elements, net.dtype);
            let weights = RecurrentBackwardArgs::weights;
            let pass = Pass { weights, index, direction, input, x, y, dy, gates, extra };
            if net.batch > 0 {
                match sequence {
                    Some(sequence) => self.persistent(&pass, sequence)?,
                    None => self.stepwise(&pass)?,
                }
            }
            self.weights(&pass)?;
            if wanted {
                let to = self.scratch.input_sums.after(direction * net.rows() * input, sums);
                let places = [self.scratch.dx_gates, pass.weight(WeightGradients::w_ih), to];
                self.launches.product([net.rows(), input, net.wide()], [false; 2], places)?;
            }
        }
        let from = self.scratch.input_sums;
        match layer.checked_sub(1).filter(|_| net.dropout.is_some()) {
            _ if !wanted => Ok(()),
            Some(before) => {
                let places = [from, self.scratch.dy, Place::of(RecurrentBackwardArgs::random)];
                self.launches.drop(before, places, Some(net.directions))
            }
            None => {
                let to = if layer == 0 { Place::of(RecurrentBackwardArgs::dx) } else { self.scratch.dy };
                self.round(from, to, net.rows() * input, net.directions)
            }
        }
    }

    fn flags(&self, pass: &Pass) -> Flags {
        let flags = self.net.flags(pass.direction).with(Flag::Dy, pass.dy.is_some());
        flags.with(Flag::DhN, self.desc.dh_n).with(Flag::DcN, self.desc.dc_n)
    }

    fn walk(&self, pass: &Pass) -> WalkArgs {
        self.net.walk(self.flags(pass))
    }

    fn saved(&self, pass: &Pass) -> SavedArgs {
        SavedArgs {
            gates: pass.gates.read(),
            extra: pass.extra.read(),
            y: pass.y.read(),
            h0: self.launches.state(pass.index, RecurrentBackwardArgs::h0).read(),
            c0: self.launches.cells(pass.index, RecurrentBackwardArgs::c0).read(),
            lengths: RecurrentBackwardArgs::lengths.arg(),
            dy: pass.dy.unwrap_or(Place::of(RecurrentBackwardArgs::dy)).read(),
            dh_n: self.launches.state(pass.index, RecurrentBackwardArgs::dh_n).read(),
            dc_n: self.launches.cells(pass.index, RecurrentBackwardArgs::dc_n).read(),
        }
    }

    /// The steps of a pass from the last to the first, and the gradients of the state that it began with.
    fn stepwise(&mut self, pass: &Pass) -> Result<(), PlanError> {
        let (net, scratch) = (self.net, self.scratch);
        let RecurrentDesc { cell, dtype, steps, batch, hidden, .. } = *net;
        let projected = net.projection > 0;
        for step in (0..steps).rev() {
            if projected {
                self.project(pass, step)?;
            }
            let args = BackwardArgs {
                saved: self.saved(pass),
                recurrent: if projected { scratch.unprojected_now.read() } else { scratch.recurrent.read() },
                carry: scratch.carry.both(),
                dx: scratch.dx_gates.write(),
                dh: scratch.dh_gates.write(),
                now: scratch.now.write(),
                states: if projected { scratch.unprojected.write() } else { scratch.before.write() },
                n: small(net.units()),
                hidden: small(hidden),
                step: small(step),
                walk: self.walk(pass),
            };
            self.launches.over(&Backward { cell, dtype, projected }, net.units(), &args)?;
            if step > 0 || net.h0 {
                let places = [scratch.now, pass.weight(WeightGradients::w_hh), scratch.recurrent];
                let sizes = [batch, net.output(), net.wide()];
                // The sums of weights are not there yet.
                let room = (scratch.sums, scratch.of_weights / net.state().max(1));
                self.launches.product_in_parts(sizes, [false; 2], places, room)?;
            }
        }
        if !projected {
            return self.start(pass, hidden, [net.h0, net.c0]);
        }
        self.start(pass, net.output(), [net.h0, false])?;
        self.start(pass, hidden, [false, net.c0])
    }

    /// The gradients of a first state of `width` elements a sequence: whether of the hidden state and of the cells.
    fn start(&mut self, pass: &Pass, width: usize, [h0, c0]: [bool; 2]) -> Result<(), PlanError> {
        let (net, scratch) = (self.net, self.scratch);
        if !h0 && !c0 {
            return Ok(());
        }
        let n = net.batch * width;
        let args = StartArgs {
            recurrent: scratch.recurrent.read(),
            carry: scratch.carry.read(),
            dh_n: self.launches.state(pass.index, RecurrentBackwardArgs::dh_n).read(),
            dc_n: self.launches.cells(pass.index, RecurrentBackwardArgs::dc_n).read(),
            lengths: RecurrentBackwardArgs::lengths.arg(),
            dh0: self.launches.state(pass.index, RecurrentBackwardArgs::dh0).write(),
            dc0: self.launches.cells(pass.index, RecurrentBackwardArgs::dc0).write(),
            n: small(n),
            hidden: small(width),
            steps: small(net.steps),
            flags: self.flags(pass).only_if(Flag::H0, h0).only_if(Flag::C0, c0),
        };
        self.launches.over(&Start { cell: net.cell, dtype: net.dtype }, n, &args)
    }

    /// The gradient of the projected state of a step, and what becomes of it before the projection.
    fn project(&mut self, pass: &Pass, step: usize) -> Result<(), PlanError> {
        let (net, scratch) = (self.net, self.scratch);
        let args = projection::BackwardArgs {
            y: pass.y.read(),
            h0: self.launches.state(pass.index, RecurrentBackwardArgs::h0).read(),
            lengths: RecurrentBackwardArgs::lengths.arg(),
            dy: pass.dy.unwrap_or(Place::of(RecurrentBackwardArgs::dy)).read(),
            dh_n: self.launches.state(pass.index, RecurrentBackwardArgs::dh_n).read(),
            recurrent: scratch.recurrent.read(),
            dh: scratch.projected.write(),
            now: scratch.projected_now.write(),
            before: scratch.before.write(),
            n: small(net.state()),
            output: small(net.output()),
            step: small(step),
            walk: self.walk(pass),
        };
        self.launches.over(&projection::Backward { dtype: net.dtype }, net.state(), &args)?;
        let places = [scratch.projected_now, pass.weight(WeightGradients::w_hr), scratch.unprojected_now];
        self.launches.product([net.batch, net.hidden, net.projection], [false; 2], places)
    }

    /// All steps in one launch.
    fn persistent(&mut self, pass: &Pass, sequence: &Sequence<BackwardPass>) -> Result<(), PlanError> {
        let scratch = self.scratch;
        let args = SequenceBackwardArgs {
            w_hh: pass.weight(WeightGradients::w_hh).read(),
            saved: self.saved(pass),
            dx: scratch.dx_gates.write(),
            dh: scratch.dh_gates.write(),
            before: scratch.before.write(),
            dh0: self.launches.state(pass.index, RecurrentBackwardArgs::dh0).write(),
            dc0: self.launches.cells(pass.index, RecurrentBackwardArgs::dc0).write(),
            exchange: scratch.recurrent.both(),
            walk: self.walk(pass),
        };
        let first = (Place::of(RecurrentBackwardArgs::h0), false);
        self.launches.persistent(sequence, sequence.exchange.as_ref(), (scratch.recurrent, first), &args)
    }

    /// The gradients of the weights and biases of a pass.
    fn weights(&mut self, pass: &Pass) -> Result<(), PlanError> {
        let (net, scratch) = (self.net, self.scratch);
        let (wide, output) = (net.wide(), net.output());
        self.weight([wide, pass.input], [scratch.dx_gates, pass.x, pass.weight(WeightGradients::dw_ih)])?;
        self.weight([wide, output], [scratch.dh_gates, scratch.before, pass.weight(WeightGradients::dw_hh)])?;
        if net.projection > 0 {
            let places = [scratch.projected, scratch.unprojected, pass.weight(WeightGradients::dw_hr)];
            self.weight([output, net.hidden], places)?;
        }
        if net.biases == Biases::Absent {
            return Ok(());
        }
        let parts = self.columns(scratch.dx_gates)?;
        self.round(scratch.sums, pass.weight(WeightGradients::db_ih), wide, parts)?;
        if net.biases == Biases::Two {
            if net.cell.splits() {
                self.columns(scratch.dh_gates)?;
            }
            self.round(scratch.sums, pass.weight(WeightGradients::db_hh), wide, parts)?;
        }
        Ok(())
    }

    /// The gradient of a weight: the gradient of what it gave by what it multiplied, over all time steps.
    fn weight(&mut self, sizes: [usize; 2], [of, by, to]: [Place; 3]) -> Result<(), PlanError> {
        let ([rows, columns], sums) = (sizes, self.scratch.sums);
        self.launches.product([rows, columns, self.net.rows()], [true, false], [of, by, sums])?;
        self.round(sums, to, rows * columns, 1)
    }

    /// Sums of the columns of a gradient of gates, in parts.
    fn columns(&mut self, gates: Place) -> Result<usize, PlanError> {
        let net = self.net;
        let part = net.rows().div_ceil(PARTS).max(LEAST_ROWS);
        let parts = net.rows().div_ceil(part).max(1);
        let args = ColumnArgs {
            x: gates.read(),
            sums: self.scratch.sums.write(),
            rows: small(net.rows()),
            columns: small(net.wide()),
            part: small(part),
        };
        let across = plan::cover(self.launches.op, net.wide(), sums::THREADS)?.unwrap_or([1; 3])[0];
        self.launches.grid(&Columns { dtype: net.dtype }, [across, small(parts), 1], &args)?;
        Ok(parts)
    }

    /// Rounds the sum of `parts` of `n` sums each.
    fn round(&mut self, from: Place, to: Place, n: usize, parts: usize) -> Result<(), PlanError> {
        let (n64, stride, parts) = (n as u64, n as u64, small(parts));
        let args = RoundArgs { sums: from.read(), y: to.write(), n: n64, stride, parts };
        self.launches.over(&Round { dtype: self.net.dtype }, n, &args)
    }
}
