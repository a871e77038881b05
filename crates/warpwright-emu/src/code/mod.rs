//! A decoded kernel: the data that decoding writes and execution reads.
//!
//! A kernel is one flat list of instructions ([`op`]) whose operands are rows of 32 lanes ([`rows`], [`layout`]). What does
//! not fit into an instruction stands in side tables of [`Code`], by family.

pub(crate) mod asynchronous;
pub(crate) mod barrier;
pub(crate) mod collective;
pub(crate) mod definedness;
pub(crate) mod function;
pub(crate) mod layout;
pub(crate) mod matrix;
pub(crate) mod memory;
pub(crate) mod op;
pub(crate) mod rows;
pub(crate) mod tensor;

use std::collections::HashMap;

use warpwright_ptx::{BoolOp, Inst, Scope, SpecialReg, StateSpace};

use crate::counters::Class;
use crate::report::Position;
use asynchronous::Asynchronous;
use barrier::{BarrierOp, ClusterOp};
use collective::Collective;
use definedness::{Check, Mark, Passing};
use function::{Call, FunctionCode};
use layout::{Layout, Slot};
use matrix::{MatrixOp, Touch};
use memory::{Access, Atomic, Stack};
use op::Ins;

/// An arithmetic instruction that is evaluated lane by lane.
#[derive(Debug)]
pub(crate) struct Scalar {
    pub(crate) inst: Inst,
    pub(crate) dst: Slot,
    /// Width of the destination register.
    pub(crate) dst_bits: u32,
    /// The complement of a `setp`.
    pub(crate) dst_not: Option<u32>,
    pub(crate) src: Vec<Slot>,
    /// Third predicate of `setp` and `set`: operator, predicate, whether it is negated.
    pub(crate) combine: Option<(BoolOp, u32, bool)>,
}

/// A decoded instruction as reports and counters see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) position: Position,
    /// `None` for the second half of an instruction that was decoded into several.
    pub(crate) class: Option<Class>,
}

/// A move that was left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elided {
    pub(crate) position: Position,
    pub(crate) class: Class,
    /// The instruction that runs as often as it would.
    pub(crate) next: u32,
}

/// The instruction of the text that a decoded one was made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index into [`Code::functions`].
    pub(crate) function: u32,
    pub(crate) block: u32,
    /// Within the block; their number for the terminator.
    pub(crate) instruction: u32,
}

/// A decoded kernel.
#[derive(Debug, Default)]
pub(crate) struct Code {
    pub(crate) ins: Vec<Ins>,
    /// One per instruction.
    pub(crate) origins: Vec<Origin>,
    /// One per instruction.
    pub(crate) places: Vec<Place>,
    pub(crate) scalars: Vec<Scalar>,
    pub(crate) loads: Vec<Access>,
    pub(crate) stores: Vec<Access>,
    pub(crate) atomics: Vec<Atomic>,
    /// Line operations that touch no data: `discard` and `applypriority`.
    pub(crate) lines: Vec<Access>,
    pub(crate) stack: Vec<Stack>,
    pub(crate) collectives: Vec<Collective>,
    pub(crate) barriers: Vec<BarrierOp>,
    pub(crate) matrix: Vec<MatrixOp>,
    pub(crate) touches: Vec<Touch>,
    /// Registers that `wgmma` uses.
    pub(crate) flights: u32,
    pub(crate) clusters: Vec<ClusterOp>,
    pub(crate) specials: Vec<(Slot, SpecialReg)>,
    pub(crate) isspacep: Vec<(StateSpace, u32, Slot)>,
    pub(crate) fences: Vec<Scope>,
    pub(crate) asynchronous: Vec<Asynchronous>,
    /// Whether anything reads shared memory through the asynchronous proxy.
    pub(crate) proxies: bool,
    pub(crate) checks: Vec<Check>,
    pub(crate) marks: Vec<Mark>,
    pub(crate) passings: Vec<Passing>,
    /// The reason for each instruction that cannot be executed.
    pub(crate) unsupported: Vec<String>,
    pub(crate) calls: Vec<Call>,
    /// The kernel, then the functions that it can reach.
    pub(crate) functions: Vec<FunctionCode>,
    /// Functions by their addresses.
    pub(crate) addresses: HashMap<u64, u32>,
    /// Targets of indexed branches.
    pub(crate) tables: Vec<Vec<u32>>,
    /// Memory instructions that look up allocations.
    pub(crate) sites: u32,
    /// Moves that were left out.
    pub(crate) elided: Vec<Elided>,
    pub(crate) layout: Layout,
    /// Registers that may be read before they are written, in the order of `Warp::definedness`.
    pub(crate) tracked: Vec<Slot>,
    /// End of the static shared variables, from address 0.
    pub(crate) shared_end: u64,
    /// Where dynamic shared memory starts.
    pub(crate) dynamic_base: u64,
    /// End of the local variables, from address 0.
    pub(crate) local_end: u64,
    /// Shared variables for reports: name, start, bytes (0: dynamic).
    pub(crate) shared_names: Vec<(String, u64, u64)>,
    pub(crate) local_names: Vec<(String, u64, u64)>,
}

impl Code {
    /// Where an instruction stands in the text.
    pub(crate) fn position(&self, pc: u32) -> Position {
        self.origins.get(pc as usize).map_or(Position::default(), |o| o.position)
    }
}
