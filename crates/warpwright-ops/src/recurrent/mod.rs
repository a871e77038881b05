//! Recurrent nets: an LSTM over a sequence, forward.
//!
//! For each step, with `x` the input and `h`, `c` the state before:
//!
//! ```text
//! i, f, o = sigmoid(W_ih x + b_ih + W_hh h + b_hh)      g = tanh(the same)
//! c' = f c + i g                                        h' = o tanh(c')
//! ```
//!
//! Gates lie in the order i, f, g, o along the rows of the weights `[4 hidden, input]` and `[4 hidden, hidden]` and of the
//! biases, as in PyTorch and cuDNN. Source: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000.
//!
//! Sequences are `[steps, batch, ..]`. The products of the inputs of all steps are one matrix product whose sums stay in `f32`;
//! cells stay in `f32` for the whole sequence (`f64` for `f64`). The hidden state of a step is rounded to the element type
//! before the next step multiplies it, as in `y`.
//!
//! Where the recurrent weights fit the registers of the multiprocessors, all steps are one launch ([`tuning::Schedule`]); it
//! needs a device with as many multiprocessors as the grid has blocks, and refuses others before it is launched.

mod cell;
mod functions;
mod persistent;
pub mod reference;
pub mod tuning;

use warpwright_dsl::{In, InOut, KernelArgs, Out};
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{LaunchStep, TensorMut, TensorRef};

use crate::catalogue::{Direction, Entry, TARGETS};
use crate::gemm::GemmDesc;
use crate::plan::{self, Operation, Plan, PlanParts, TensorSpec, Variant};
use crate::{Binding, PlanError};

pub use functions::*;
use tuning::{PersistentConfig, Schedule};

/// The name of the operation.
const OP: &str = "lstm";

/// An LSTM over a sequence, one layer, one direction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LstmDesc {
    /// Element type of all tensors.
    pub dtype: DType,
    /// Steps, at least 1.
    pub steps: usize,
    /// Sequences.
    pub batch: usize,
    /// Elements of an input, at least 1.
    pub input: usize,
    /// Units, at least 1.
    pub hidden: usize,
    /// Whether there are `b_ih` and `b_hh`.
    pub bias: bool,
    /// Whether there is an `h0`; else it is zero.
    pub h0: bool,
    /// Whether there is a `c0`; else it is zero.
    pub c0: bool,
}

/// Tensors of [`LstmDesc`].
#[derive(Debug)]
pub struct LstmArgs<'a> {
    /// `[steps, batch, input]`
    pub x: TensorRef<'a>,
    /// `[4 hidden, input]`
    pub w_ih: TensorRef<'a>,
    /// `[4 hidden, hidden]`
    pub w_hh: TensorRef<'a>,
    /// `[4 hidden]`
    pub b_ih: Option<TensorRef<'a>>,
    /// `[4 hidden]`
    pub b_hh: Option<TensorRef<'a>>,
    /// `[batch, hidden]`
    pub h0: Option<TensorRef<'a>>,
    /// `[batch, hidden]`
    pub c0: Option<TensorRef<'a>>,
    /// The hidden state of every step, `[steps, batch, hidden]`.
    pub y: TensorMut<'a>,
    /// The hidden state of the last step, `[batch, hidden]`.
    pub h_n: TensorMut<'a>,
    /// The cells of the last step, `[batch, hidden]`.
    pub c_n: TensorMut<'a>,
    /// Scratch memory.
    pub workspace: Option<TensorMut<'a>>,
}

/// Slots of the tensors.
mod slot {
    pub(super) const X: u32 = 0;
    pub(super) const W_IH: u32 = 1;
    pub(super) const W_HH: u32 = 2;
    pub(super) const B_IH: u32 = 3;
    pub(super) const B_HH: u32 = 4;
    pub(super) const H0: u32 = 5;
    pub(super) const C0: u32 = 6;
    pub(super) const Y: u32 = 7;
    pub(super) const H_N: u32 = 8;
    pub(super) const C_N: u32 = 9;
    pub(super) const WORKSPACE: u32 = 10;
}

/// What the exchange is aligned to.
const WIDE: u64 = 16;

/// Where scratch memory begins, in bytes: the products of the inputs, then what the schedule needs.
struct Scratch {
    /// Products of the state, and cells; or the exchange.
    second: u64,
    third: u64,
    /// Elements of the type of sums.
    len: usize,
}

impl Operation for LstmDesc {
    type Args<'a> = LstmArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.plan_with(target, tuning::choose(self.dtype, target, self.batch, self.hidden))
    }

    fn bind<'a>(args: Self::Args<'a>) -> Vec<Binding<'a>> {
        vec![
            args.x.into(),
            args.w_ih.into(),
            args.w_hh.into(),
            args.b_ih.into(),
            args.b_hh.into(),
            args.h0.into(),
            args.c0.into(),
            args.y.into(),
            args.h_n.into(),
            args.c_n.into(),
            args.workspace.into(),
        ]
    }
}

impl LstmDesc {
    /// The plan with a schedule of the caller's choice.
    ///
    /// # Errors
    /// As [`Operation::plan`]; [`PlanError::Parameter`] if the persistent kernel does not take the sequence.
    pub fn plan_with(&self, target: Target, schedule: Schedule) -> Result<Plan<Self>, PlanError> {
        let Self { dtype, steps, batch, input, hidden, bias, h0, c0 } = *self;
        self.check()?;
        if let Schedule::Persistent(config) = schedule
            && !config.takes(dtype, target, batch, hidden)
        {
            let got = format!("{schedule:?} for {batch} x {hidden} of {dtype} on {target}");
            let expected = "one that tuning gives, or Stepwise";
            return Err(PlanError::Parameter { op: OP, parameter: "schedule", got, expected });
        }
        let scratch = self.scratch()?;
        let mut variants = Vec::new();
        for (alignment, schedule) in [(WIDE, schedule), (dtype.bytes() as u64, Schedule::Stepwise)] {
            let mut launches = Vec::new();
            if batch > 0 {
                launches.push(self.input_products(target, alignment == WIDE)?);
                match schedule {
                    Schedule::Persistent(config) => {
                        self.persistent(target, config, &scratch, &mut launches)?;
                    }
                    Schedule::Stepwise => {
                        self.stepwise(target, alignment == WIDE, &scratch, &mut launches)?;
                    }
                }
            }
            variants.push(Variant { alignment, steps: launches });
        }
        let state = batch * hidden;
        let sums = sums(dtype);
        let tensors = vec![
            TensorSpec::read("x", dtype, steps * batch * input),
            TensorSpec::read("w_ih", dtype, GATES * hidden * input),
            TensorSpec::read("w_hh", dtype, GATES * hidden * hidden),
            TensorSpec::read("b_ih", dtype, GATES * hidden).optional(bias),
            TensorSpec::read("b_hh", dtype, GATES * hidden).optional(bias),
            TensorSpec::read("h0", dtype, state).optional(h0),
            TensorSpec::read("c0", dtype, state).optional(c0),
            TensorSpec::write("y", dtype, steps * state),
            TensorSpec::write("h_n", dtype, state),
            TensorSpec::write("c_n", dtype, state),
            TensorSpec::workspace(sums, scratch.len),
        ];
        let workspace_bytes = (scratch.len * sums.bytes()) as u64;
        let direction = Direction::Forward;
        Ok(Plan::new(PlanParts { op: OP, direction, target, tensors, variants, workspace_bytes }))
    }

    fn check(&self) -> Result<(), PlanError> {
        if !DType::FLOATS.contains(&self.dtype) {
            let (got, expected) = (self.dtype, &DType::FLOATS);
            return Err(PlanError::DType { op: OP, tensor: "x", got, expected });
        }
        let refuse = |parameter, got: usize, expected| {
            Err(PlanError::Parameter { op: OP, parameter, got: got.to_string(), expected })
        };
        for (name, size) in [("steps", self.steps), ("input", self.input), ("hidden", self.hidden)] {
            if size == 0 {
                return refuse(name, size, "at least 1");
            }
        }
        let small = |a: usize, b: usize| {
            let len = a.checked_mul(b).and_then(|ab| ab.checked_mul(GATES));
            len.is_some_and(|len| i32::try_from(len).is_ok())
        };
        if !small(self.batch, self.hidden) {
            return refuse("batch x hidden", self.batch, "such that a step has less than 2^31 gates");
        }
        if !small(self.hidden, self.hidden.max(self.input)) {
            return refuse("hidden", self.hidden, "such that the weights have less than 2^31 elements");
        }
        let rows = self.steps.checked_mul(self.batch.max(1));
        let wide = rows.and_then(|rows| rows.checked_mul(self.input.max(GATES * self.hidden)));
        match rows {
            Some(rows) if i32::try_from(rows).is_ok() && wide.is_some_and(|len| len < 1 << 58) => Ok(()),
            _ => refuse("steps x batch", self.steps, "less than 2^31"),
        }
    }

    fn scratch(&self) -> Result<Scratch, PlanError> {
        let bytes = sums(self.dtype).bytes();
        let round = |len: usize| len.next_multiple_of(WIDE as usize / bytes);
        let gates = self.batch * GATES * self.hidden;
        let second = round(self.steps * gates);
        // The exchange has two buffers of at most 8 bytes an element: as much as the gates.
        let third = second + round(gates);
        let len = if self.batch == 0 { 0 } else { third + round(self.batch * self.hidden) };
        let at = |elements: usize| (elements * bytes) as u64;
        Ok(Scratch { second: at(second), third: at(third), len })
    }

    fn flags(&self) -> u32 {
        let flag = |given, bit| if given { bit } else { 0 };
        flag(self.bias, cell::HAS_BIAS) | flag(self.h0, cell::HAS_H0) | flag(self.c0, cell::HAS_C0)
    }

    /// The products of the inputs of all steps.
    fn input_products(&self, target: Target, wide: bool) -> Result<LaunchStep, PlanError> {
        let sizes = [self.steps * self.batch, GATES * self.hidden, self.input];
        let product = GemmDesc::new(self.dtype, sizes, false, true);
        product.sums(target, wide, In::slot(slot::X), In::slot(slot::W_IH), Out::slot(slot::WORKSPACE))
    }

    fn persistent(
        &self,
        target: Target,
        config: PersistentConfig,
        scratch: &Scratch,
        launches: &mut Vec<LaunchStep>,
    ) -> Result<(), PlanError> {
        let def = self.sequence(config);
        let words = 2 * u64::from(def.exchange_words());
        let clear = persistent::ClearArgs { words: Out::slot_at(slot::WORKSPACE, scratch.second), n: words };
        let grid = plan::cover(OP, usize::try_from(words).unwrap_or(usize::MAX), persistent::THREADS)?;
        let kernel = plan::recorded(OP, &persistent::Clear, target)?;
        launches.push(LaunchStep::new(kernel, grid.unwrap_or([1; 3]), clear.values()));
        let args = persistent::SequenceArgs {
            products: In::slot(slot::WORKSPACE),
            w_hh: In::slot(slot::W_HH),
            b_ih: In::slot(slot::B_IH),
            b_hh: In::slot(slot::B_HH),
            h0: In::slot(slot::H0),
            c0: In::slot(slot::C0),
            y: Out::slot(slot::Y),
            h_n: Out::slot(slot::H_N),
            c_n: Out::slot(slot::C_N),
            exchange: InOut::slot_at(slot::WORKSPACE, scratch.second),
            steps: small(self.steps),
            flags: self.flags(),
        };
        let kernel = plan::recorded(OP, &def, target)?;
        let grid = [small(self.hidden) / config.units, 1, 1];
        let step = LaunchStep::new(kernel, grid, args.values()).with_dynamic_shared(def.shared_bytes());
        launches.push(step.cooperative_whole());
        Ok(())
    }

    fn sequence(&self, config: PersistentConfig) -> persistent::Sequence {
        let (hidden, batch) = (small(self.hidden), small(self.batch));
        persistent::Sequence { dtype: self.dtype, hidden, batch, config }
    }

    fn stepwise(
        &self,
        target: Target,
        wide: bool,
        scratch: &Scratch,
        launches: &mut Vec<LaunchStep>,
    ) -> Result<(), PlanError> {
        let Self { dtype, steps, batch, hidden, .. } = *self;
        let sums = sums(dtype);
        let state = batch * hidden;
        let kernel = |before| plan::recorded(OP, &cell::Cell { dtype, before }, target);
        let (first, other) = (kernel(dtype)?, kernel(sums)?);
        let grid = plan::cover(OP, state, cell::THREADS)?.unwrap_or([1; 3]);
        let product = GemmDesc::new(dtype, [batch, GATES * hidden, hidden], false, true);
        // Rows of a step begin wherever the one before ends.
        let wide = wide && (hidden * dtype.bytes()).is_multiple_of(WIDE as usize);
        for step in 0..steps {
            let of_y = |step: usize| (step * state * dtype.bytes()) as u64;
            let recurrent = step > 0 || self.h0;
            if recurrent {
                let h = if step == 0 { In::slot(slot::H0) } else { In::slot_at(slot::Y, of_y(step - 1)) };
                let to = Out::slot_at(slot::WORKSPACE, scratch.second);
                launches.push(product.sums(target, wide, h, In::slot(slot::W_HH), to)?);
            }
            let cells = || Out::slot_at(slot::WORKSPACE, scratch.third);
            let flag = |given, bit| if given { bit } else { 0 };
            let args = cell::CellArgs {
                products: In::slot_at(slot::WORKSPACE, (step * GATES * state * sums.bytes()) as u64),
                recurrent: In::slot_at(slot::WORKSPACE, scratch.second),
                b_ih: In::slot(slot::B_IH),
                b_hh: In::slot(slot::B_HH),
                before: if step == 0 {
                    In::slot(slot::C0)
                } else {
                    In::slot_at(slot::WORKSPACE, scratch.third)
                },
                after: cells(),
                h: Out::slot_at(slot::Y, of_y(step)),
                h_n: Out::slot(slot::H_N),
                c_n: Out::slot(slot::C_N),
                n: small(state),
                hidden: small(hidden),
                flags: self.flags() & cell::HAS_BIAS
                    | flag(step > 0 || self.c0, cell::HAS_BEFORE)
                    | flag(recurrent, cell::HAS_RECURRENT)
                    | flag(step + 1 == steps, cell::IS_LAST),
            };
            let kernel = if step == 0 { first.clone() } else { other.clone() };
            launches.push(LaunchStep::new(kernel, grid, args.values()));
        }
        Ok(())
    }
}

/// Gates of a unit.
const GATES: usize = 4;

/// The type of sums and cells.
fn sums(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

fn small(x: usize) -> u32 {
    u32::try_from(x).unwrap_or(u32::MAX)
}

/// The family's row of the catalogue.
pub(crate) fn entries() -> Vec<Entry> {
    vec![Entry { op: OP, direction: Direction::Forward, dtypes: &DType::FLOATS, targets: &TARGETS }]
}

/// Every kernel that a plan can hold but those of products; the persistent ones, which know their sizes, for a few of them.
pub(crate) fn kernels(_: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let mut all = vec![plan::recorded(OP, &cell::Cell { dtype, before: dtype }, target)?];
    if sums(dtype) != dtype {
        all.push(plan::recorded(OP, &cell::Cell { dtype, before: sums(dtype) }, target)?);
    }
    for (batch, hidden) in [(1, 512), (16, 256), (16, 768), (32, 1024), (3, 32), (1, 1024)] {
        if let Schedule::Persistent(config) = tuning::choose(dtype, target, batch, hidden) {
            let (bias, h0, c0) = (true, true, true);
            let desc = LstmDesc { dtype, steps: 1, batch, input: hidden, hidden, bias, h0, c0 };
            all.push(plan::recorded(OP, &desc.sequence(config), target)?);
        }
    }
    Ok(all)
}
