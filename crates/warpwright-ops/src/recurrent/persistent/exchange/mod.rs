//! How the blocks of a persistent kernel hand each other the vectors of a step.
//!
//! There is no barrier of the grid: whoever needs an element of a step waits for that. Two buffers take turns: a block publishes
//! for step `t + 1` after all of its warps have read step `t`, and reads `t + 1` of all blocks before it overwrites `t`.

mod dsmem;
mod flagged;
mod inband;
mod ll;

use std::fmt::Debug;

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;
use warpwright_ptx::{Address, CacheHints, Inst, Ordering, ScalarType, Scope, Semantics, StateSpace, Target};
use warpwright_runtime::LaunchStep;

pub(in crate::recurrent) use dsmem::Dsmem;
pub(in crate::recurrent) use flagged::Flagged;
pub(in crate::recurrent) use inband::{FirstStates, Inband};
pub(in crate::recurrent) use ll::Ll;

use super::gemm::{StepGemm, Sums, THREADS};
use super::weights::Matrix;
use crate::PlanError;
use crate::plan;
use crate::recurrent::plan::Place;
use crate::recurrent::tuning::{ExchangeKind, PersistentConfig};

/// The memory that an exchange needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::recurrent) struct Memory {
    /// 64-bit words of device memory of a group, and how many of the first are zero before the launch.
    pub(in crate::recurrent) words: u32,
    pub(in crate::recurrent) zeroed: u32,
    /// Bytes of dynamic shared memory of a block.
    pub(in crate::recurrent) shared_bytes: u32,
}

/// When the kernel reads from memory what a step needs beside the vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::recurrent) enum Reads {
    /// Before it waits for the vectors.
    Before,
    /// Behind the product, which needs all registers: they come to the L1 cache a step ahead.
    Behind,
    /// A step ahead: a step is shorter than the way from memory.
    Ahead,
}

/// The buffer of a step.
#[derive(Clone, Copy)]
pub(in crate::recurrent) struct Slot<'k> {
    /// The buffer, where it is in device memory.
    words: Ptr<'k, ReadWrite, u64>,
    /// The mark of elements of the step, as the exchange defines it.
    mark: U32<'k>,
    /// The buffer's number.
    turn: U32<'k>,
}

/// The lanes that publish the values of a unit: whether this one does, and lanes from those of a unit to those of the next.
pub(in crate::recurrent) type Publishers<'k> = (Pred<'k>, u32);

/// One of the vectors of a block.
#[derive(Clone, Copy)]
pub(in crate::recurrent) struct Vector<'k> {
    /// Its number in the block, and whether the block has so many.
    pub(in crate::recurrent) at: U32<'k>,
    pub(in crate::recurrent) held: Pred<'k>,
    /// The sequence, and whether the net has so many.
    pub(in crate::recurrent) batch: U32<'k>,
    pub(in crate::recurrent) there: Pred<'k>,
}

/// A way to hand over vectors, with the product whose vectors they are.
pub(in crate::recurrent) trait Exchange: Debug {
    fn gemm(&self) -> &StepGemm;

    fn memory(&self) -> Memory;

    /// The buffer of step `step` in the memory of the group.
    fn slot<'k>(&self, memory: Ptr<'k, ReadWrite, u64>, step: U32<'k>) -> Slot<'k>;

    /// The row of the weights that element `depth` of a vector multiplies: where blocks hand over all elements of a unit at once, they
    /// are neighbours in a vector.
    fn row_of<'k>(&self, depth: U32<'k>) -> U32<'k> {
        interleaved(self.gemm(), depth)
    }

    /// Hands the values of a unit in vector `batch` to all blocks. All lanes come here.
    fn publish<'k>(
        &self,
        slot: Slot<'k>,
        at: (U32<'k>, U32<'k>),
        values: &[F32<'k>],
        publishers: Publishers<'k>,
    );

    /// All threads come here after they have published all that they have of step `step`.
    fn commit<'k>(&self, _: K<'k>, _memory: Ptr<'k, ReadWrite, u64>, _step: U32<'k>) {}

    /// The part of the matrix that the thread multiplies by.
    fn load<'k>(&self, k: K<'k>, matrix: &Matrix<'k, '_>) -> Box<dyn Weights<'k> + 'k>;

    /// Prepares the shared memory of the block before the first step.
    fn begin(&self, _: K<'_>) {}

    /// Ends the block behind the last step, of which nobody reads the vectors.
    fn end<'k>(&self, _: K<'k>, _memory: Ptr<'k, ReadWrite, u64>, _step: U32<'k>) {}

    /// When a kernel reads what a step needs beside the vectors.
    fn reads(&self) -> Reads;

    /// Whether the vectors of the first step are published by the kernel, rather than by the launch before.
    fn publishes_first(&self) -> bool {
        true
    }

    /// Whether all lanes of a unit publish it, rather than the first.
    fn shares_publishing(&self) -> bool {
        false
    }

    /// Blocks of a cluster.
    fn cluster(&self) -> u32 {
        1
    }

    /// Whether all blocks of the grid have to run at once, since they wait for each other.
    fn is_cooperative(&self) -> bool {
        true
    }

    /// Blocks along x that `batch` sequences take.
    fn blocks(&self, _batch: u32) -> u32 {
        self.gemm().hidden / self.gemm().units
    }

    /// The first unit of the block.
    fn first_unit<'k>(&self, k: K<'k>) -> U32<'k> {
        k.block_idx_x() * self.gemm().units
    }

    /// Vector `at` of the block, of a net of `batch` sequences.
    fn vector<'k>(&self, at: U32<'k>, _batch: u32) -> Vector<'k> {
        let gemm = self.gemm();
        let held = at.lt(gemm.batch);
        let batch = if gemm.groups > 1 { at.k().block_idx_y() * gemm.batch + at } else { at };
        Vector { at, held, batch, there: held }
    }

    /// The launch that fills `memory` before the kernel, if one must: `h0` is where the first states are, if they are given.
    ///
    /// # Errors
    /// The kernel cannot be recorded, or the grid is too large.
    fn prepare(
        &self,
        op: &'static str,
        target: Target,
        memory: Place,
        _h0: (Place, bool),
    ) -> Result<Option<LaunchStep>, PlanError> {
        clear(op, target, (self.gemm().groups, self.memory()), memory)
    }
}

/// The weights of a block, as an exchange multiplies them.
pub(in crate::recurrent) trait Weights<'k> {
    /// Waits for the vectors of step `step` and multiplies them. There is one barrier before the sums are complete; those of the next
    /// step go elsewhere, unless [`Exchange::commit`] has another barrier.
    fn multiply(&self, memory: Ptr<'k, ReadWrite, u64>, step: U32<'k>) -> Sums<'k>;
}

/// The exchange of a configuration; `None` if its sizes do not allow it.
pub(in crate::recurrent) fn of(config: PersistentConfig, gemm: StepGemm) -> Option<Box<dyn Exchange>> {
    Some(match config.exchange {
        ExchangeKind::Ll => Box::new(Ll::of(gemm)),
        ExchangeKind::Flagged => Box::new(Flagged::of(gemm)?),
        ExchangeKind::Inband => Box::new(Inband::of(gemm)?),
        ExchangeKind::Dsmem { .. } => Box::new(Dsmem::of(gemm)?),
    })
}

impl dyn Exchange {
    /// Words that all groups exchange.
    pub(in crate::recurrent) fn words(&self) -> u32 {
        self.gemm().groups * self.memory().words
    }

    /// The memory of the block's group.
    pub(in crate::recurrent) fn own<'k>(
        &self,
        k: K<'k>,
        memory: Ptr<'k, ReadWrite, u64>,
    ) -> Ptr<'k, ReadWrite, u64> {
        if self.gemm().groups == 1 {
            memory
        } else {
            memory.at((k.block_idx_y() * self.memory().words).to_u64())
        }
    }
}

/// The row of element `depth` of a vector in which the elements of a unit are neighbours.
fn interleaved<'k>(gemm: &StepGemm, depth: U32<'k>) -> U32<'k> {
    let parts = gemm.depth / gemm.hidden;
    depth % parts * gemm.hidden + depth / parts
}

/// The buffer of step `step` among two of `buffer` words behind the `first`. Zero, which memory begins with, marks none.
fn alternating<'k>(memory: Ptr<'k, ReadWrite, u64>, step: U32<'k>, (first, buffer): (u32, u32)) -> Slot<'k> {
    let turn = step & 1;
    let words = memory.at(turn.to_u64() * u64::from(buffer)).at(u64::from(first));
    Slot { words, mark: step + 1, turn }
}

const RELAXED: Ordering = Ordering::new(Semantics::Relaxed, Scope::Gpu);

/// Stores neighbouring words of type `ty` at once.
fn store_global(
    k: K<'_>,
    ty: ScalarType,
    ordering: Ordering,
    addr: Address,
    words: Vec<warpwright_ptx::Operand>,
) {
    k.raw(Inst::St { space: StateSpace::Global, ty, ordering, hints: CacheHints::NONE, srcs: words, addr });
}

/// Loads `count` neighbouring words at once, as they are now.
fn load_global<'k, T: Scalar>(k: K<'k>, ordering: Ordering, addr: Address, count: usize) -> Vec<Reg<'k, T>> {
    let words: Vec<_> = (0..count).map(|_| k.raw_reg::<T>()).collect();
    k.raw(Inst::Ld {
        space: StateSpace::Global,
        ty: T::TYPE,
        ordering,
        hints: CacheHints::NONE,
        non_coherent: false,
        dsts: words.iter().map(|word| Some(word.id())).collect(),
        addr,
    });
    words
}

/// Whether a lane of the warp finds one of `bits` set: the whole warp goes on together, its products need all lanes.
fn any_set<'k>(k: K<'k>, bits: impl Iterator<Item = U32<'k>>, mask: Option<U32<'k>>) -> Pred<'k> {
    let all = bits.reduce(|a, b| a | b);
    let all = all.map(|all| mask.map_or(all, |mask| all & mask));
    all.map_or_else(|| k.lit(false), |all| all.ne(0).vote_any())
}

kernel_args! {
    /// The first `part` words of every `stride`, `n` in all.
    pub(super) struct ClearArgs => ClearParams { words: Out<u64>, n: u32, part: u32, stride: u32 }
}

/// Clears the first words of each group.
#[derive(Clone, Copy, Debug)]
struct Clear;

impl KernelDef for Clear {
    type Args = ClearArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("recurrent_clear_exchange", BlockDim::x(THREADS))
    }

    fn build<'k>(&self, k: K<'k>, p: ClearParams<'k>) {
        let at = k.block_idx_x() * THREADS + k.thread_idx();
        k.if_(at.lt(p.n), || p.words.at((at / p.part * p.stride + at % p.part).to_u64()).set(0u64));
    }
}

/// The launch that makes the first words of each group zero, if any have to be.
fn clear(
    op: &'static str,
    target: Target,
    (groups, memory): (u32, Memory),
    at: Place,
) -> Result<Option<LaunchStep>, PlanError> {
    let (stride, part) = (memory.words, memory.zeroed);
    let n = groups * part;
    if n == 0 {
        return Ok(None);
    }
    let args = ClearArgs { words: at.write(), n, part, stride };
    let grid = plan::cover(op, n as usize, THREADS)?;
    let kernel = plan::recorded(op, &Clear, target)?;
    Ok(Some(LaunchStep::new(kernel, grid.unwrap_or([1; 3]), args.values())))
}
