//! The plan of a forward pass.

use warpwright_dsl::{In, KernelArgs};
use warpwright_ptx::Target;
use warpwright_runtime::LaunchStep;

use super::exchange::clear;
use super::persistent::{Sequence, SequenceArgs};
use super::pointwise::{self, Forward, ForwardArgs};
use super::tuning::{PersistentConfig, Schedule};
use super::walk;
use super::{Arena, Biases, Place, RecurrentDesc, Reserve, WIDE, refuse, small, sums_of};
use crate::PlanError;
use crate::catalogue::Direction;
use crate::gemm::GemmDesc;
use crate::plan::{self, Operation, Plan, PlanParts, TensorSpec, Variant};

/// Slots of the tensors.
mod slot {
    pub(super) const X: u32 = 0;
    pub(super) const LENGTHS: u32 = 1;
    pub(super) const H0: u32 = 2;
    pub(super) const C0: u32 = 3;
    pub(super) const Y: u32 = 4;
    pub(super) const H_N: u32 = 5;
    pub(super) const C_N: u32 = 6;
    pub(super) const RESERVE: u32 = 7;
    pub(super) const WORKSPACE: u32 = 8;
    /// The first of `w_ih`, `w_hh`, `b_ih`, `b_hh` of each pass.
    pub(super) const WEIGHTS: u32 = 9;
    pub(super) const OF_PASS: u32 = 4;
}

/// Scratch memory.
struct Scratch {
    /// Products of the inputs, if there is no reserve that keeps them.
    products: Place,
    /// Products of the state of a step; or the exchange.
    recurrent: Place,
    /// What passes from step to step.
    carried: Place,
    /// The hidden state of a step.
    h: Place,
    /// Results of layers in turns, if there is no reserve that keeps them.
    between: [Place; 2],
    bytes: u64,
}

/// One direction of one layer.
struct Pass {
    /// Its number among the weights.
    index: usize,
    direction: usize,
    /// Elements of a place of the input.
    input: usize,
    x: Place,
    /// The result, from the first unit of the direction on.
    y: Place,
    products: Place,
    extra: Place,
}

impl Pass {
    const fn weight(&self, which: u32) -> Place {
        Place::slot(slot::WEIGHTS + slot::OF_PASS * self.index as u32 + which)
    }
}

/// What a plan is made of.
struct Planner<'d> {
    desc: &'d RecurrentDesc,
    target: Target,
    op: &'static str,
    /// Whether tensors begin at multiples of 16 bytes.
    wide: bool,
    scratch: &'d Scratch,
    launches: Vec<LaunchStep>,
}

/// The plan of `desc` as primitive `op`; a single step has no `y` beside its state.
pub(super) fn plan<O: Operation>(
    desc: &RecurrentDesc,
    target: Target,
    schedule: Schedule,
    op: &'static str,
) -> Result<Plan<O>, PlanError> {
    desc.check(op)?;
    let has_y = op == desc.op();
    if let Schedule::Persistent(config) = schedule
        && !config.takes(desc, target)
    {
        let got = format!("{schedule:?} for {} x {} of {}", desc.batch, desc.hidden, desc.dtype);
        return Err(refuse(op, "schedule", got, "one that tuning gives, or Stepwise"));
    }
    let reserve = desc.reserve_parts(slot::RESERVE);
    let scratch = scratch(desc);
    let mut variants = Vec::new();
    for (alignment, schedule) in [(WIDE, schedule), (desc.dtype.bytes() as u64, Schedule::Stepwise)] {
        let wide = alignment == WIDE;
        let launches = Vec::new();
        let mut planner = Planner { desc, target, op, wide, scratch: &scratch, launches };
        if desc.batch > 0 {
            for pass in passes(desc, &scratch, &reserve) {
                planner.pass(&pass, schedule)?;
            }
        }
        variants.push(Variant { alignment, steps: planner.launches });
    }
    let (dtype, state) = (desc.dtype, desc.layers * desc.directions * desc.state());
    let sums = sums_of(dtype);
    let len = if desc.batch == 0 { 0 } else { scratch.bytes as usize / sums.bytes() };
    let kept = desc.training && desc.batch > 0;
    let mut tensors = desc.inputs();
    tensors.extend([
        TensorSpec::write("y", dtype, desc.rows() * desc.directions * desc.hidden).optional(has_y),
        TensorSpec::write("h_n", dtype, state),
        TensorSpec::write("c_n", dtype, state).optional(desc.cell.has_c()),
        TensorSpec::write("reserve", sums, if kept { reserve.len(sums) } else { 0 }).optional(desc.training),
        TensorSpec::workspace(sums, len),
    ]);
    for pass in 0..desc.layers * desc.directions {
        let input = desc.input_of(pass / desc.directions);
        tensors.extend([
            TensorSpec::read("w_ih", dtype, desc.wide() * input),
            TensorSpec::read("w_hh", dtype, desc.wide() * desc.hidden),
            TensorSpec::read("b_ih", dtype, desc.wide()).optional(desc.biases != Biases::Absent),
            TensorSpec::read("b_hh", dtype, desc.wide()).optional(desc.biases == Biases::Two),
        ]);
    }
    let workspace_bytes = (len * sums.bytes()) as u64;
    let direction = Direction::Forward;
    Ok(Plan::new(PlanParts { op, direction, target, tensors, variants, workspace_bytes }))
}

fn scratch(desc: &RecurrentDesc) -> Scratch {
    let sums = sums_of(desc.dtype);
    let mut arena = Arena::new(slot::WORKSPACE);
    let inference = |len: usize| if desc.training { 0 } else { len };
    let products = arena.take(inference(desc.rows() * desc.wide()), sums);
    // The exchange has two buffers of at most 8 bytes an element, of whole tiles of batches.
    let exchange = 4 * desc.state().next_multiple_of(8);
    let recurrent = arena.take((desc.batch * desc.wide()).max(exchange), sums);
    let carried = arena.take(desc.state(), sums);
    let h = arena.take(desc.state(), desc.dtype);
    let mut between = |from| {
        let len = if desc.layers > from { desc.rows() * desc.directions * desc.hidden } else { 0 };
        arena.take(inference(len), desc.dtype)
    };
    let between = [between(1), between(2)];
    Scratch { products, recurrent, carried, h, between, bytes: arena.bytes }
}

/// The passes in order.
fn passes(desc: &RecurrentDesc, scratch: &Scratch, reserve: &Reserve) -> Vec<Pass> {
    let mut all = Vec::new();
    let mut x = Place::slot(slot::X);
    for layer in 0..desc.layers {
        let y = match reserve.between.get(layer) {
            None => Place::slot(slot::Y),
            Some(kept) if desc.training => *kept,
            Some(_) => scratch.between[layer % 2],
        };
        for direction in 0..desc.directions {
            let index = layer * desc.directions + direction;
            let (gates, extra) = reserve.passes[index];
            let products = if desc.training { gates } else { scratch.products };
            let input = desc.input_of(layer);
            let of_direction = y.after(direction * desc.hidden, desc.dtype);
            all.push(Pass { index, direction, input, x, y: of_direction, products, extra });
        }
        x = y;
    }
    all
}

/// The persistent kernel of a layer and direction.
pub(super) fn sequence(desc: &RecurrentDesc, config: PersistentConfig) -> Sequence {
    let (hidden, batch) = (small(desc.hidden), small(desc.batch));
    Sequence { cell: desc.cell, dtype: desc.dtype, hidden, batch, config }
}

impl Planner<'_> {
    fn pass(&mut self, pass: &Pass, schedule: Schedule) -> Result<(), PlanError> {
        let RecurrentDesc { dtype, .. } = *self.desc;
        let product = GemmDesc::new(dtype, [self.desc.rows(), self.desc.wide(), pass.input], false, true);
        let (x, w_ih) = (pass.x.read(), pass.weight(0).read());
        self.launches.push(product.sums(self.target, self.wide, x, w_ih, pass.products.write())?);
        match schedule {
            Schedule::Persistent(config) => self.persistent(pass, config),
            Schedule::Stepwise => self.stepwise(pass),
        }
    }

    /// The state of a pass in tensor `slot`.
    fn state(&self, pass: &Pass, slot: u32) -> Place {
        Place::slot(slot).after(pass.index * self.desc.state(), self.desc.dtype)
    }

    fn flags(&self, pass: &Pass) -> u32 {
        let flag = |given, bit| if given { bit } else { 0 };
        self.desc.flags(pass.direction)
            | flag(self.desc.training, walk::TRAINING)
            | flag(self.op == self.desc.op(), walk::HAS_Y)
    }

    fn persistent(&mut self, pass: &Pass, config: PersistentConfig) -> Result<(), PlanError> {
        let (desc, op) = (self.desc, self.op);
        let def = sequence(desc, config);
        let product = def.product();
        self.launches.push(clear(op, self.target, &product, self.scratch.recurrent)?);
        let [row_step, row_batch] = desc.row_strides();
        let args = SequenceArgs {
            products: pass.products.both(),
            w_hh: pass.weight(1).read(),
            b_ih: pass.weight(2).read(),
            b_hh: pass.weight(3).read(),
            h0: self.state(pass, slot::H0).read(),
            c0: self.state(pass, slot::C0).read(),
            lengths: In::slot(slot::LENGTHS),
            y: pass.y.write(),
            h_n: self.state(pass, slot::H_N).write(),
            c_n: self.state(pass, slot::C_N).write(),
            extra: pass.extra.write(),
            exchange: self.scratch.recurrent.both(),
            steps: small(desc.steps),
            row_step,
            row_batch,
            y_row: small(desc.directions * desc.hidden),
            flags: self.flags(pass),
        };
        let kernel = plan::recorded(op, &def, self.target)?;
        let grid = [small(desc.hidden) / config.units, 1, 1];
        let step = LaunchStep::new(kernel, grid, args.values()).with_dynamic_shared(product.shared_bytes());
        self.launches.push(step.cooperative_whole());
        Ok(())
    }

    fn stepwise(&mut self, pass: &Pass) -> Result<(), PlanError> {
        let (desc, op) = (self.desc, self.op);
        let RecurrentDesc { cell, dtype, steps, batch, hidden, .. } = *desc;
        let kernel = |first| plan::recorded(op, &Forward { cell, dtype, first }, self.target);
        let (first, other) = (kernel(true)?, kernel(false)?);
        let grid = plan::cover(op, desc.state(), pointwise::THREADS)?.unwrap_or([1; 3]);
        let product = GemmDesc::new(dtype, [batch, desc.wide(), hidden], false, true);
        let [row_step, row_batch] = desc.row_strides();
        for step in 0..steps {
            let recurrent = step > 0 || desc.h0;
            let h = if step == 0 { self.state(pass, slot::H0) } else { self.scratch.h };
            if recurrent {
                // The states of passes lie one behind the other.
                let wide = self.wide && h.offset.is_multiple_of(WIDE);
                let to = self.scratch.recurrent.write();
                let w_hh = pass.weight(1).read();
                self.launches.push(product.sums(self.target, wide, h.read(), w_hh, to)?);
            }
            let start = if cell.has_c() { slot::C0 } else { slot::H0 };
            let before = if step == 0 { self.state(pass, start) } else { self.scratch.carried };
            let args = ForwardArgs {
                products: pass.products.both(),
                recurrent: self.scratch.recurrent.read(),
                b_ih: pass.weight(2).read(),
                b_hh: pass.weight(3).read(),
                before: before.read(),
                h0: self.state(pass, slot::H0).read(),
                lengths: In::slot(slot::LENGTHS),
                after: self.scratch.carried.write(),
                h: self.scratch.h.write(),
                y: pass.y.write(),
                h_n: self.state(pass, slot::H_N).write(),
                c_n: self.state(pass, slot::C_N).write(),
                extra: pass.extra.write(),
                n: small(desc.state()),
                hidden: small(hidden),
                step: small(step),
                steps: small(steps),
                row_step,
                row_batch,
                y_row: small(desc.directions * hidden),
                flags: self.flags(pass) | if recurrent { walk::HAS_RECURRENT } else { 0 },
            };
            let kernel = if step == 0 { first.clone() } else { other.clone() };
            self.launches.push(LaunchStep::new(kernel, grid, args.values()));
        }
        Ok(())
    }
}
