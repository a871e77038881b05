//! The plan of a forward pass.

use warpwright_ptx::Target;

use super::launches::{Arena, Launches, Place};
use super::{Pass, Reserve, persistent};
use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{Operation, Plan, PlanParts, Variant};
use crate::recurrent::persistent::Sequence;
use crate::recurrent::persistent::forward::{ForwardPass, SequenceArgs};
use crate::recurrent::step::epilogue::{BiasArgs, NextArgs, ResultArgs, StateArgs};
use crate::recurrent::step::fused_mma::FusedMma;
use crate::recurrent::step::gemv::{self, Gemv, GemvArgs};
use crate::recurrent::step::pointwise::{Forward, ForwardArgs};
use crate::recurrent::step::projection;
use crate::recurrent::tuning::{PersistentConfig, Schedule};
use crate::recurrent::walk::{Flag, WalkArgs};
use crate::recurrent::{Biases, RecurrentArgs, RecurrentDesc, WIDE, WeightRefs, small, sums_of};

/// Scratch memory.
struct Scratch {
    /// Products of the inputs, if there is no reserve that keeps them.
    products: Place,
    /// Products of the state of a step; or the exchange.
    recurrent: Place,
    /// The values that pass from step to step.
    carried: Place,
    /// The hidden state of a step.
    h: Place,
    /// The same before its projection, and the sums of that.
    unprojected: Place,
    projected: Place,
    /// Results of layers in turns, if there is no reserve that keeps them.
    between: [Place; 2],
    /// A layer's result after dropout.
    dropped: Place,
    bytes: u64,
}

struct Planner<'d> {
    desc: &'d RecurrentDesc,
    scratch: &'d Scratch,
    launches: Launches<'d>,
}

/// The plan of `desc` as primitive `op`; a single step has no `y` beside its state.
pub(in crate::recurrent) fn plan<O: Operation>(
    desc: &RecurrentDesc,
    target: Target,
    schedule: Schedule,
    op: &'static str,
) -> Result<Plan<O>, PlanError> {
    desc.check(op)?;
    desc.precision.check_target(op, target)?;
    let has_y = op == desc.op();
    let takes = |config: PersistentConfig| desc.projection == 0 && config.takes(desc, target);
    let sequence =
        persistent(desc, op, schedule, |config| takes(config).then(|| Sequence::of(desc, config)).flatten())?;
    let sequence = sequence.as_ref();
    let reserve = Reserve::of(desc, RecurrentArgs::reserve);
    let scratch = scratch(desc, sequence);
    let mut variants = Vec::new();
    for (alignment, sequence) in [(WIDE, sequence), (1, None)] {
        let wide = alignment == WIDE;
        let launches = Launches { net: desc, op, target, wide, steps: Vec::new() };
        let mut planner = Planner { desc, scratch: &scratch, launches };
        if desc.batch > 0 {
            for (pass, dropout) in passes(desc, &scratch, &reserve) {
                planner.pass(&pass, sequence)?;
                if let Some((layer, y)) = dropout {
                    let places = [y, scratch.dropped, Place::of(RecurrentArgs::random)];
                    planner.launches.drop(layer, places, None)?;
                }
            }
        }
        variants.push(Variant { alignment, steps: planner.launches.steps });
    }
    let dtype = desc.dtype;
    let (states, cells) = (desc.passes() * desc.state(), desc.passes() * desc.units());
    let sums = sums_of(dtype);
    let len = if desc.batch == 0 { 0 } else { scratch.bytes as usize / sums.bytes() };
    let kept = desc.training && desc.batch > 0;
    let read = [
        RecurrentArgs::x,
        RecurrentArgs::lengths,
        RecurrentArgs::h0,
        RecurrentArgs::c0,
        RecurrentArgs::random,
    ];
    let reserved = if kept { reserve.len(sums) } else { 0 };
    let written = [
        RecurrentArgs::y.holds(dtype, desc.rows() * desc.result()).optional(has_y),
        RecurrentArgs::h_n.holds(dtype, states),
        RecurrentArgs::c_n.holds(dtype, cells).optional(desc.cell.has_c()),
        RecurrentArgs::reserve.holds(sums, reserved).optional(desc.training),
        RecurrentArgs::workspace.scratch(sums, len),
    ];
    let weights = (0..desc.passes()).flat_map(|pass| {
        let input = desc.input_of(pass / desc.directions);
        let of = |slot| RecurrentArgs::weights.of(pass, slot);
        [
            of(WeightRefs::w_ih).holds(dtype, desc.wide() * input),
            of(WeightRefs::w_hh).holds(dtype, desc.wide() * desc.output()),
            of(WeightRefs::w_hr).holds(dtype, desc.projection * desc.hidden).optional(desc.projection > 0),
            of(WeightRefs::b_ih).holds(dtype, desc.wide()).optional(desc.biases != Biases::Absent),
            of(WeightRefs::b_hh).holds(dtype, desc.wide()).optional(desc.biases == Biases::Two),
        ]
    });
    let tensors = RecurrentArgs::specs(desc.inputs(read).into_iter().chain(written).chain(weights));
    let workspace_bytes = (len * sums.bytes()) as u64;
    let direction = Direction::Forward;
    Ok(Plan::new(PlanParts { op, direction, target, tensors, variants, workspace_bytes }))
}

fn scratch(desc: &RecurrentDesc, sequence: Option<&Sequence<ForwardPass>>) -> Scratch {
    let sums = sums_of(desc.dtype);
    let mut arena = Arena::new(RecurrentArgs::workspace);
    let inference = |len: usize| if desc.training { 0 } else { len };
    let products = arena.take(inference(desc.rows() * desc.wide()), sums);
    let exchange = sequence.map_or(0, |sequence| 2 * sequence.exchange.words() as usize);
    let recurrent = arena.take((desc.batch * desc.wide()).max(exchange), sums);
    let carried = arena.take(desc.units(), sums);
    let h = arena.take(desc.state(), desc.dtype);
    let projecting = |len: usize| if desc.projection > 0 { len } else { 0 };
    let unprojected = arena.take(projecting(desc.units()), desc.dtype);
    let projected = arena.take(projecting(desc.state()), sums);
    let mut between = |from| {
        let len = if desc.layers > from { desc.rows() * desc.result() } else { 0 };
        arena.take(inference(len), desc.dtype)
    };
    let between = [between(1), between(2)];
    let dropout = desc.dropout.is_some() && desc.layers > 1;
    let dropped = arena.take(if dropout { desc.rows() * desc.result() } else { 0 }, desc.dtype);
    let bytes = arena.bytes;
    Scratch { products, recurrent, carried, h, unprojected, projected, between, dropped, bytes }
}

/// The layer whose result is complete, and the result, on which dropout acts.
type CompleteLayer = (usize, Place);

/// The passes in order, and what is complete with each where there is dropout behind it.
fn passes(desc: &RecurrentDesc, scratch: &Scratch, reserve: &Reserve) -> Vec<(Pass, Option<CompleteLayer>)> {
    let mut all = Vec::new();
    let mut x = Place::of(RecurrentArgs::x);
    for layer in 0..desc.layers {
        let y = match reserve.between.get(layer) {
            None => Place::of(RecurrentArgs::y),
            Some(kept) if desc.training => *kept,
            Some(_) => scratch.between[layer % 2],
        };
        let dropout = desc.dropout.is_some() && layer + 1 < desc.layers;
        for direction in 0..desc.directions {
            let complete = (dropout && direction + 1 == desc.directions).then_some((layer, y));
            let index = layer * desc.directions + direction;
            let (kept, extra) = reserve.passes[index];
            let gates = if desc.training { kept } else { scratch.products };
            let (weights, input) = (RecurrentArgs::weights, desc.input_of(layer));
            let of_direction = y.after(direction * desc.output(), desc.dtype);
            let pass = Pass { weights, index, direction, input, x, y: of_direction, dy: None, gates, extra };
            all.push((pass, complete));
        }
        x = if dropout { scratch.dropped } else { y };
    }
    all
}

impl Planner<'_> {
    fn pass(&mut self, pass: &Pass, sequence: Option<&Sequence<ForwardPass>>) -> Result<(), PlanError> {
        if self.is_one_launch(pass) {
            return self.one_launch(pass);
        }
        let sizes = [self.desc.rows(), self.desc.wide(), pass.input];
        self.launches.product(sizes, [false, true], [pass.x, pass.weight(WeightRefs::w_ih), pass.gates])?;
        match sequence {
            Some(sequence) => self.persistent(pass, sequence),
            None => self.stepwise(pass),
        }
    }

    fn walk(&self, pass: &Pass) -> WalkArgs {
        let flags = self.desc.flags(pass.direction);
        let flags = flags.with(Flag::Training, self.desc.training);
        self.desc.walk(flags.with(Flag::Y, self.launches.op == self.desc.op()))
    }

    fn biases(pass: &Pass) -> BiasArgs {
        BiasArgs { b_ih: pass.weight(WeightRefs::b_ih).read(), b_hh: pass.weight(WeightRefs::b_hh).read() }
    }

    /// The tensors at the start of a step, of which a unit's own value is at `before`.
    fn state(&self, pass: &Pass, before: Place) -> StateArgs {
        StateArgs {
            before: before.read(),
            h0: self.launches.state(pass.index, RecurrentArgs::h0).read(),
            lengths: RecurrentArgs::lengths.arg(),
        }
    }

    fn results(&self, pass: &Pass) -> ResultArgs {
        ResultArgs {
            y: pass.y.write(),
            h_n: self.launches.state(pass.index, RecurrentArgs::h_n).write(),
            c_n: self.launches.cells(pass.index, RecurrentArgs::c_n).write(),
            extra: pass.extra.write(),
        }
    }

    /// The tensors at the end of a step, of which the hidden state goes to `h`.
    fn next(&self, pass: &Pass, h: Place) -> NextArgs {
        NextArgs { after: self.scratch.carried.write(), h: h.write(), results: self.results(pass) }
    }

    /// A unit's own value before the first step.
    fn first(&self, pass: &Pass) -> Place {
        if self.desc.cell.has_c() {
            self.launches.cells(pass.index, RecurrentArgs::c0)
        } else {
            self.launches.state(pass.index, RecurrentArgs::h0)
        }
    }

    fn persistent(&mut self, pass: &Pass, sequence: &Sequence<ForwardPass>) -> Result<(), PlanError> {
        let desc = self.desc;
        let args = SequenceArgs {
            products: pass.gates.both(),
            w_hh: pass.weight(WeightRefs::w_hh).read(),
            biases: Self::biases(pass),
            h0: self.launches.state(pass.index, RecurrentArgs::h0).read(),
            c0: self.launches.cells(pass.index, RecurrentArgs::c0).read(),
            lengths: RecurrentArgs::lengths.arg(),
            results: self.results(pass),
            exchange: self.scratch.recurrent.both(),
            walk: self.walk(pass),
        };
        let first = (self.launches.state(pass.index, RecurrentArgs::h0), desc.h0);
        let memory = self.scratch.recurrent;
        self.launches.persistent(sequence, sequence.exchange.as_ref(), (memory, first), &args)
    }

    fn stepwise(&mut self, pass: &Pass) -> Result<(), PlanError> {
        let (desc, scratch) = (self.desc, self.scratch);
        let RecurrentDesc { cell, dtype, steps, batch, hidden, .. } = *desc;
        let projected = desc.projection > 0;
        for step in 0..steps {
            let recurrent = step > 0 || desc.h0;
            if recurrent {
                let h =
                    if step == 0 { self.launches.state(pass.index, RecurrentArgs::h0) } else { scratch.h };
                let sizes = [batch, desc.wide(), desc.output()];
                let places = [h, pass.weight(WeightRefs::w_hh), scratch.recurrent];
                self.launches.product(sizes, [false, true], places)?;
            }
            let before = if step == 0 { self.first(pass) } else { scratch.carried };
            let h = if projected { scratch.unprojected } else { scratch.h };
            let walk = self.walk(pass);
            let flags = walk.flags.with(Flag::Recurrent, recurrent);
            let args = ForwardArgs {
                products: pass.gates.both(),
                recurrent: scratch.recurrent.read(),
                biases: Self::biases(pass),
                state: self.state(pass, before),
                next: self.next(pass, h),
                n: small(desc.units()),
                hidden: small(hidden),
                step: small(step),
                walk: WalkArgs { flags, ..walk },
            };
            let def = Forward { cell, dtype, first: step == 0, projected };
            self.launches.over(&def, desc.units(), &args)?;
            if projected {
                self.project(pass, step)?;
            }
        }
        Ok(())
    }

    /// Whether a pass is a single step that is one launch.
    fn is_one_launch(&self, pass: &Pass) -> bool {
        let (desc, width) = (self.desc, Gemv::width(self.desc.dtype));
        let whole = pass.input.is_multiple_of(width) && desc.hidden.is_multiple_of(width);
        let single = desc.steps == 1 && desc.projection == 0;
        self.launches.wide
            && whole
            && single
            && (desc.batch <= gemv::MOST_BATCH || self.fused_mma().is_some())
    }

    /// The kernel on tensor cores that takes it, if one does.
    fn fused_mma(&self) -> Option<FusedMma> {
        let RecurrentDesc { cell, dtype, batch, hidden, .. } = *self.desc;
        FusedMma::of(cell, dtype, [batch, hidden], self.launches.target)
    }

    /// A single step in one launch.
    fn one_launch(&mut self, pass: &Pass) -> Result<(), PlanError> {
        let (desc, scratch) = (self.desc, self.scratch);
        let RecurrentDesc { cell, dtype, batch, hidden, .. } = *desc;
        let args = GemvArgs {
            x: pass.x.read(),
            w_ih: pass.weight(WeightRefs::w_ih).read(),
            w_hh: pass.weight(WeightRefs::w_hh).read(),
            biases: Self::biases(pass),
            state: self.state(pass, self.first(pass)),
            products: pass.gates.both(),
            next: self.next(pass, scratch.h),
            batch: small(batch),
            input: small(pass.input),
            hidden: small(hidden),
            step: 0,
            walk: self.walk(pass),
        };
        if let Some(def) = self.fused_mma() {
            let grid = [def.blocks(small(hidden)), 1, 1];
            return self.launches.grid_with(&def, grid, def.shared_bytes(), &args);
        }
        let def = Gemv { cell, dtype, batch: small(batch) };
        self.launches.grid(&def, [Gemv::blocks(small(hidden)), 1, 1], &args)
    }

    /// The projection of the hidden state of a step.
    fn project(&mut self, pass: &Pass, step: usize) -> Result<(), PlanError> {
        let (desc, scratch) = (self.desc, self.scratch);
        let sizes = [desc.batch, desc.projection, desc.hidden];
        let places = [scratch.unprojected, pass.weight(WeightRefs::w_hr), scratch.projected];
        self.launches.product(sizes, [false, true], places)?;
        let args = projection::ForwardArgs {
            sums: scratch.projected.read(),
            h0: self.launches.state(pass.index, RecurrentArgs::h0).read(),
            lengths: RecurrentArgs::lengths.arg(),
            h: scratch.h.write(),
            y: pass.y.write(),
            h_n: self.launches.state(pass.index, RecurrentArgs::h_n).write(),
            n: small(desc.state()),
            output: small(desc.output()),
            step: small(step),
            walk: self.walk(pass),
        };
        self.launches.over(&projection::Forward { dtype: desc.dtype }, desc.state(), &args)
    }
}
