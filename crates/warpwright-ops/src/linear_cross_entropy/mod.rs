//! Cross entropy of a linear layer: `cross_entropy(x weight^T + bias, target)` without the logits of all rows in memory.
//!
//! `x` is `[rows, features]`, `weight` `[classes, features]`, `bias` `[classes]` and `target` `[rows]` in i64 or i32. The logits of a chunk
//! of rows are computed, then their losses, and, where gradients are wanted, the gradients of the logits in their place and the products
//! with them: `dx = dlogits weight`, `dweight = dlogits^T x`, `dbias` the sums of the columns of `dlogits`. One launch of the plan gives the
//! loss and all gradients, for a gradient 1 of the loss; the logits are computed once.
//!
//! Ignored rows, label smoothing, the reductions and targets that are no classes are as in
//! [`cross_entropy`](crate::cross_entropy), and products are those of [`gemm`](crate::gemm): logits and their gradients are rounded to the
//! type of `x`. With half types the loss is in f32, and the sums of `dweight` and `dbias` over chunks are kept in f32 and rounded once.
//! Gradients need a loss that is reduced. Results are the same from run to run; those of other `chunk_rows` differ by roundings.
//!
//! Scratch memory: the logits of a chunk, in rows that begin at multiples of 16 bytes, and, with half types and more than one chunk,
//! `dweight` in f32.
//!
//! Source: Hsu et al. 2024, Liger Kernel, arXiv:2410.10989, section 3.2.

mod functions;
mod kernel;
pub mod reference;
pub(crate) mod samples;
pub mod tuning;

use warpwright_dsl::{Elem, In, InOut, Out};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use crate::PlanError;
use crate::cast::{CastArgs, CastDesc};
use crate::catalogue::Direction;
use crate::cross_entropy::{
    self as rows, CrossEntropyBackwardDesc, CrossEntropyDesc, Gradients, Losses, Reduction,
};
use crate::gemm::{GemmDesc, LINE, Part, WIDE};
use crate::plan::embedded::value_of;
use crate::plan::{self, Operation, Plan, Real, Variant};
use crate::tensors::tensors;

pub use functions::*;

const OP: &str = "linear_cross_entropy";

/// The losses of rows of a linear layer, and their gradients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LinearCrossEntropyDesc {
    /// Element type of `x`, `weight`, `bias` and the gradients; the loss is in the type of its sums, f32 for half types.
    pub dtype: DType,
    /// Element type of the targets: i64 or i32.
    pub target: DType,
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row of `x`.
    pub features: usize,
    /// Number of classes.
    pub classes: usize,
    /// Whether there is a `bias`.
    pub bias: bool,
    /// A target that does not count; PyTorch's default is -100.
    pub ignore_index: i64,
    /// The share of the target distribution that is spread over all classes, from 0 to 1.
    pub label_smoothing: Real,
    /// The reduction of the losses.
    pub reduction: Reduction,
    /// Whether the gradients are computed, too.
    pub gradients: bool,
    /// Rows of logits that are in memory at a time; `None` leaves it to [`tuning::chunk_rows`].
    pub chunk_rows: Option<usize>,
}

tensors! {
    /// Tensors of [`LinearCrossEntropyDesc`].
    pub struct LinearCrossEntropyArgs<'a> {
        /// `[rows, features]`
        x: In,
        /// `[classes, features]`
        weight: In,
        /// `[classes]`
        bias: Option<In>,
        /// `[rows]`
        target: In,
        /// One element, or one for each row without a reduction.
        loss: Out,
        /// The gradient of `x`.
        dx: Option<Out>,
        /// The gradient of `weight`.
        dweight: Option<Out>,
        /// The gradient of `bias`.
        dbias: Option<Out>,
        /// Scratch memory; see [`Plan::workspace`].
        workspace: Option<Out>,
    }
}

type Args<'a> = LinearCrossEntropyArgs<'a>;

impl LinearCrossEntropyDesc {
    /// The mean loss of `[rows, features, classes]` without a bias, smoothing and gradients.
    pub const fn new(dtype: DType, target: DType, [rows, features, classes]: [usize; 3]) -> Self {
        Self {
            dtype,
            target,
            rows,
            features,
            classes,
            bias: false,
            ignore_index: -100,
            label_smoothing: Real::new(0.0),
            reduction: Reduction::Mean,
            gradients: false,
            chunk_rows: None,
        }
    }

    /// Elements of the loss.
    fn loss_len(&self) -> usize {
        if self.reduction == Reduction::None { self.rows } else { 1 }
    }

    /// Elements from one row of logits to the next: rows begin at multiples of 16 bytes, which products take faster.
    const fn row_stride(&self) -> usize {
        let of_wide = WIDE as usize / self.dtype.bytes();
        if self.classes.is_multiple_of(of_wide) {
            self.classes
        } else {
            self.classes.next_multiple_of(LINE / self.dtype.bytes())
        }
    }

    /// The losses of so many rows of logits.
    fn losses(&self, rows: usize) -> CrossEntropyDesc {
        CrossEntropyDesc {
            loss: self.dtype.accumulator(),
            row_stride: self.row_stride(),
            ignore_index: self.ignore_index,
            label_smoothing: self.label_smoothing,
            reduction: self.reduction,
            ..CrossEntropyDesc::new(self.dtype, self.target, [rows, self.classes])
        }
    }

    /// Rows of a chunk.
    fn chunk(&self) -> Result<usize, PlanError> {
        let Self { rows, features, classes, gradients, .. } = *self;
        match self.chunk_rows {
            Some(0) => Err(PlanError::refused(OP, "chunk_rows", 0, "at least 1")),
            Some(chunk) => Ok(chunk.min(rows).max(1)),
            None => Ok(tuning::chunk_rows([rows, features, classes], self.dtype, gradients)),
        }
    }

    /// Whether sums over chunks of so many rows are kept in the workspace.
    fn has_sums(&self, chunk: usize) -> bool {
        self.gradients && self.dtype != self.dtype.accumulator() && chunk < self.rows
    }

    fn check(&self) -> Result<(), PlanError> {
        let Self { dtype, rows, features, classes, .. } = *self;
        PlanError::check_floats(OP, "x", dtype)?;
        if self.gradients && self.reduction == Reduction::None {
            let expected = "mean or sum, where gradients are computed";
            return Err(PlanError::refused(OP, "reduction", "none", expected));
        }
        for (name, outer) in [("[rows, features]", rows), ("[classes, features]", classes)] {
            let bytes = outer.checked_mul(features).and_then(|len| len.checked_mul(dtype.bytes()));
            if bytes.is_none_or(|bytes| i64::try_from(bytes).is_err()) {
                let got = format!("[{outer}, {features}]");
                return Err(PlanError::refused(OP, name, got, "a tensor that can be addressed"));
            }
        }
        self.losses(self.chunk()?).len(OP).map(|_| ())
    }
}

impl Operation for LinearCrossEntropyDesc {
    type Args<'a> = LinearCrossEntropyArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.check()?;
        let Self { dtype, rows, features, classes, bias, gradients, .. } = *self;
        let wide = dtype.accumulator();
        let (mut variants, mut scratch) = (Vec::new(), 0);
        // Elements are aligned to themselves in any case.
        for alignment in [WIDE, 1] {
            let mut planner = Planner::new(self, target, alignment)?;
            planner.run()?;
            scratch = scratch.max(planner.memory.bytes);
            variants.push(Variant { alignment, steps: planner.steps });
        }
        let tensors = Args::specs([
            Args::x.holds(dtype, rows * features),
            Args::weight.holds(dtype, classes * features),
            Args::bias.holds(dtype, classes).optional(bias),
            Args::target.holds(self.target, rows),
            Args::loss.holds(wide, self.loss_len()),
            Args::dx.holds(dtype, rows * features).optional(gradients),
            Args::dweight.holds(dtype, classes * features).optional(gradients),
            Args::dbias.holds(dtype, classes).optional(gradients && bias),
            Args::workspace.scratch(wide, scratch.div_ceil(wide.bytes())),
        ]);
        let direction = if gradients { Direction::Backward } else { Direction::Forward };
        Ok(Plan::of(OP, direction, target, tensors, variants))
    }
}

/// Parts of the workspace.
#[derive(Default)]
struct Memory {
    bytes: usize,
}

impl Memory {
    /// Where so many elements begin.
    fn take(&mut self, elements: usize, dtype: DType) -> Result<u64, PlanError> {
        let begin = self.bytes;
        let end = elements.checked_mul(dtype.bytes()).and_then(|bytes| bytes.checked_add(begin));
        let end = end.and_then(|end| end.checked_next_multiple_of(LINE));
        self.bytes = end.filter(|end| i64::try_from(*end).is_ok()).ok_or_else(|| {
            PlanError::refused(OP, "chunk_rows", elements, "such that the workspace is addressable")
        })?;
        Ok(begin as u64)
    }
}

/// Where parts of the workspace begin, in bytes.
struct Places {
    /// Logits of a chunk, then their gradients.
    logits: u64,
    /// Losses of all rows.
    losses: u64,
    /// Of the rows of a chunk.
    lse: u64,
    nll: u64,
    count: u64,
    ones: u64,
    /// Sums of `dweight` and `dbias` over chunks, where they are not kept in the tensors themselves.
    dweight: u64,
    dbias: u64,
    /// The workspace of the products.
    scratch: u64,
}

/// The launches of one variant.
struct Planner<'d> {
    desc: &'d LinearCrossEntropyDesc,
    target: Target,
    /// Bytes that tensors begin at multiples of.
    alignment: u64,
    chunk: usize,
    memory: Memory,
    places: Places,
    steps: Vec<LaunchStep>,
}

/// Rows of a chunk: the first, how many there are, and whether sums are there already.
#[derive(Clone, Copy)]
struct Chunk {
    first: usize,
    rows: usize,
    adds: bool,
}

impl<'d> Planner<'d> {
    fn new(desc: &'d LinearCrossEntropyDesc, target: Target, alignment: u64) -> Result<Self, PlanError> {
        let LinearCrossEntropyDesc { dtype, rows, features, classes, gradients, .. } = *desc;
        let (chunk, wide) = (desc.chunk()?, dtype.accumulator());
        let mut memory = Memory::default();
        let with_gradients = |len: usize| if gradients { len } else { 0 };
        let logits = memory.take(chunk.saturating_mul(desc.row_stride()), dtype)?;
        let sums = |len: usize| if desc.has_sums(chunk) { len } else { 0 };
        let places = Places {
            logits,
            losses: memory.take(if desc.reduction == Reduction::None { 0 } else { rows }, wide)?,
            lse: memory.take(chunk, wide)?,
            nll: memory.take(chunk, wide)?,
            count: memory.take(1, wide)?,
            ones: memory.take(with_gradients(Self::ones(chunk, dtype)), dtype)?,
            dweight: memory.take(sums(classes * features), wide)?,
            dbias: memory.take(sums(classes), wide)?,
            scratch: memory.bytes as u64,
        };
        Ok(Self { desc, target, alignment, chunk, memory, places, steps: Vec::new() })
    }

    /// Ones of which a row begins at a multiple of 16 bytes.
    fn ones(chunk: usize, dtype: DType) -> usize {
        chunk.next_multiple_of(WIDE as usize / dtype.bytes())
    }

    fn run(&mut self) -> Result<(), PlanError> {
        let LinearCrossEntropyDesc { rows, gradients, reduction, .. } = *self.desc;
        if gradients {
            self.prepare()?;
        }
        for first in (0..rows).step_by(self.chunk) {
            let chunk = Chunk { first, rows: self.chunk.min(rows - first), adds: first > 0 };
            self.losses(chunk)?;
            if gradients {
                self.gradients(chunk)?;
            }
        }
        if reduction != Reduction::None {
            let from = (self.read(self.places.losses), Args::target.arg());
            let to = (Args::loss.arg(), self.write(self.places.count));
            self.steps.push(self.desc.losses(rows).reduce_step(self.target, from, to)?);
        }
        if gradients {
            self.finish()?;
        }
        Ok(())
    }

    fn read(&self, at: u64) -> In<Elem> {
        Args::workspace.written_at(at)
    }

    fn write(&self, at: u64) -> Out<Elem> {
        Args::workspace.arg_at(at)
    }

    /// Bytes of so many elements.
    const fn bytes(&self, elements: usize) -> u64 {
        (elements * self.desc.dtype.bytes()) as u64
    }

    /// The targets of a chunk.
    fn targets(&self, chunk: Chunk) -> In<u32> {
        Args::target.arg_at((chunk.first * self.desc.target.bytes()) as u64)
    }

    /// The rows of `x` of a chunk.
    fn x(&self, chunk: Chunk) -> In<Elem> {
        Args::x.arg_at(self.bytes(chunk.first * self.desc.features))
    }

    fn prepare(&mut self) -> Result<(), PlanError> {
        let LinearCrossEntropyDesc { dtype, rows, ignore_index, .. } = *self.desc;
        let args = kernel::PrepareArgs {
            target: Args::target.arg(),
            count: self.write(self.places.count),
            ones: self.write(self.places.ones),
            rows: rows as u64,
            len: Self::ones(self.chunk, dtype) as u64,
            words: self.desc.losses(rows).words(),
            ignore_index,
        };
        self.steps.push(plan::launch(OP, &kernel::Prepare { dtype }, args, self.target, [1; 3])?);
        Ok(())
    }

    /// The alignment of rows of `x`, and of `dx`, of a chunk.
    fn alignment_of(&self, chunk: Chunk) -> u64 {
        let offset = self.bytes(chunk.first * self.desc.features);
        if offset.is_multiple_of(self.alignment) { self.alignment } else { 1 }
    }

    /// The launches of a product, whose addend, if it has one, is what `y` holds.
    fn product(
        &mut self,
        desc: &GemmDesc,
        alignment: u64,
        [a, b]: [In<Elem>; 2],
        bias: In<Elem>,
        y: Out<Elem>,
    ) -> Result<(), PlanError> {
        let plan = desc.plan(self.target)?;
        let before = self.memory.bytes;
        self.memory.bytes = self.places.scratch as usize;
        let bytes = usize::try_from(plan.workspace_bytes()).unwrap_or(usize::MAX);
        self.memory.take(bytes, DType::U8)?;
        self.memory.bytes = self.memory.bytes.max(before);
        let part = Part { a, b, bias, y, workspace: self.write(self.places.scratch) };
        self.steps.extend(part.steps(&plan, alignment));
        Ok(())
    }

    /// Logits of a chunk and the losses of its rows.
    fn losses(&mut self, chunk: Chunk) -> Result<(), PlanError> {
        let LinearCrossEntropyDesc { dtype, features, classes, bias, .. } = *self.desc;
        let Places { logits, losses, lse, nll, .. } = self.places;
        let product = GemmDesc::new(dtype, [chunk.rows, classes, features], false, true);
        self.product(
            &GemmDesc { bias, ldy: self.desc.row_stride(), ..product },
            self.alignment_of(chunk),
            [self.x(chunk), Args::weight.arg()],
            Args::bias.arg(),
            self.write(logits),
        )?;
        let first = (chunk.first * dtype.accumulator().bytes()) as u64;
        let desc = self.desc.losses(chunk.rows);
        let (loss, losses) = desc.places(Args::loss.arg_at(first), self.write(losses + first));
        let each = Losses {
            logits: self.read(logits),
            target: self.targets(chunk),
            loss,
            losses,
            lse: self.write(lse),
            nll: self.write(nll),
        };
        let configs = rows::tuning::forward(dtype, chunk.rows, classes);
        let config = configs[usize::from(configs[0].alignment(dtype) > self.alignment)];
        self.steps.extend(desc.losses_step(self.target, config, each)?);
        Ok(())
    }

    /// The gradients of the logits of a chunk, and what they add to the others.
    fn gradients(&mut self, chunk: Chunk) -> Result<(), PlanError> {
        let LinearCrossEntropyDesc { dtype, features, classes, bias, .. } = *self.desc;
        let Places { logits, lse, nll, count, ones, .. } = self.places;
        let all = Gradients {
            logits: self.read(logits),
            target: self.targets(chunk),
            lse: self.read(lse),
            nll: self.read(nll),
            dloss: self.read(ones),
            count: self.read(count),
            dlogits: self.write(logits),
        };
        let configs = rows::tuning::backward(dtype);
        let config = configs[usize::from(configs[0].alignment(dtype) > self.alignment)];
        // The ones are gradients of losses, and factors of products.
        let forward = CrossEntropyDesc { loss: dtype, ..self.desc.losses(chunk.rows) };
        let desc = CrossEntropyBackwardDesc { forward };
        self.steps.extend(desc.step(self.target, config, all)?);
        let (dlogits, lda) = (self.read(logits), self.desc.row_stride());
        let alignment = self.alignment_of(chunk);
        let dx = GemmDesc::new(dtype, [chunk.rows, features, classes], false, false);
        let to = Args::dx.arg_at(self.bytes(chunk.first * features));
        let factors = [dlogits.clone(), Args::weight.arg()];
        self.product(&GemmDesc { lda, ..dx }, alignment, factors, In::address(0), to)?;

        let dweight = GemmDesc::new(dtype, [classes, features, chunk.rows], true, false);
        let dweight = GemmDesc { lda, ..dweight };
        let factors = [dlogits.clone(), self.x(chunk)];
        self.sum(&dweight, alignment, factors, (Args::dweight.read_write(), self.places.dweight), chunk)?;
        if bias {
            let dbias = GemmDesc::new(dtype, [classes, 1, chunk.rows], true, true);
            let ldb = Self::ones(chunk.rows, dtype);
            let dbias = GemmDesc { lda, ldb, ..dbias };
            let factors = [dlogits, self.read(ones)];
            let to = (Args::dbias.read_write(), self.places.dbias);
            self.sum(&dbias, self.alignment, factors, to, chunk)?;
        }
        Ok(())
    }

    /// A product that is added to `y`; with half types and several chunks to sums in the workspace.
    fn sum(
        &mut self,
        desc: &GemmDesc,
        alignment: u64,
        factors: [In<Elem>; 2],
        (y, sums): (InOut<Elem>, u64),
        chunk: Chunk,
    ) -> Result<(), PlanError> {
        if desc.m == 0 || desc.n == 0 {
            return Ok(());
        }
        if self.desc.has_sums(self.chunk) {
            let to = Args::workspace.read_write_at(sums);
            let wide = alignment == WIDE;
            self.steps.push(desc.sums_onto(self.target, wide, factors, to, chunk.adds)?);
            return Ok(());
        }
        let beta = Real::new(if chunk.adds { 1.0 } else { 0.0 });
        let desc = GemmDesc { beta, ..desc.clone() };
        self.product(&desc, alignment, factors, In::address(0), Out::from(value_of(&y)))
    }

    /// Rounds the sums over chunks; without rows all gradients are zero.
    fn finish(&mut self) -> Result<(), PlanError> {
        let LinearCrossEntropyDesc { dtype, rows, features, classes, bias, .. } = *self.desc;
        if rows == 0 {
            let none = Chunk { first: 0, rows: 0, adds: false };
            let dweight = GemmDesc::new(dtype, [classes, features, 0], true, false);
            let factors = [Args::x.arg(), Args::x.arg()];
            self.sum(&dweight, self.alignment, factors.clone(), (Args::dweight.read_write(), 0), none)?;
            if bias {
                let dbias = GemmDesc::new(dtype, [classes, 1, 0], true, true);
                self.sum(&dbias, self.alignment, factors, (Args::dbias.read_write(), 0), none)?;
            }
        }
        if !self.desc.has_sums(self.chunk) {
            return Ok(());
        }
        let Places { dweight: of_weight, dbias: of_bias, .. } = self.places;
        let mut all: Vec<(u64, Out<Elem>, usize)> =
            vec![(of_weight, Args::dweight.arg(), classes * features)];
        all.extend(bias.then(|| (of_bias, Args::dbias.arg(), classes)));
        for (at, y, len) in all {
            let plan = CastDesc { from: dtype.accumulator(), to: dtype, len }.plan(self.target)?;
            let places = [
                (value_of(&CastArgs::x.arg::<Elem>()), value_of(&self.read(at))),
                (value_of(&CastArgs::y.arg::<Elem>()), value_of(&y)),
            ];
            self.steps.extend(plan.embedded(self.alignment, &places));
        }
        Ok(())
    }
}
